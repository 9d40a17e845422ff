/*
 * hot_set_state.h: what the table ojs_store.hot_set_state says: whether the hot set holds every open job.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

enum { state_rebuilt_at, state_took, state_jobs, state_cause, state_columns };

/* What `hot_set_state` says at this moment, whatever the caller's snapshot. */
struct HotSetState {
    bool valid;               /* the hot set holds every open job */
    bool restored;            /* it did, but rows came into the logged tables past it */
    TransactionId rebuilt_by; /* invalid: it was not */
    bool ours;                /* what is said so was written by this very transaction, or the tables were made by it */
};
HotSetState read_hot_set_state();

/*
 * Whether the hot set says where open jobs are, for a reader with this snapshot. On a standby, and after a crash or a
 * restore until the rebuild, it does not: then the logged tables alone answer.
 */
bool hot_set_answers(Snapshot snapshot);

} // namespace ojs
