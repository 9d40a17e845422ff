/*
 * feed.h: what the table ojs_store.feed says: whether the hot set holds every open job.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

enum { feed_rebuilt_at, feed_took, feed_jobs, feed_cause, feed_columns };

/* What `feed` says at this moment, whatever the caller's snapshot. */
struct Feed {
    bool stands;   /* the hot set holds every open job */
    bool restored; /* it did, but rows came into the logged tables past it */
    TransactionId rebuilt_by; /* invalid: it was not */
    bool ours;     /* what is said so was written by this very transaction, or the tables were made by it */
};
Feed read_feed();

/*
 * Whether the hot set says where open jobs are, for a reader with this snapshot. On a standby, and after a crash or a restore
 * until the rebuild, it does not: then the logged tables alone answer.
 */
bool hot_set_answers(Snapshot snapshot);

} // namespace ojs
