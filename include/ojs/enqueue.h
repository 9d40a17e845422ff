/*
 * enqueue.h: from a checked envelope to its rows. What push, push_many and whatever else makes jobs have in common.
 */
#pragma once

#include "ojs/standing.h"

namespace ojs
{

struct Pushed {
    JobRow job;
    Standing standing;
    std::string_view queue; /* its name, good until the next look-up of a queue */
};

/* Gives the envelopes ids that brought none. */
void assign_ids(Envelope *envelopes, int n);

/*
 * Sees to it that ids which callers gave are new, and stay so until this transaction ends; raises DUPLICATE_JOB. Lock
 * order of a push: deduplication key, ids, uniqueness keys.
 */
void reserve_ids(Tables &tables, const Envelope *envelopes, int n, bool error_items);

/*
 * Stores the jobs of `envelopes`, checked already and with ids reserved, in their order; fills `pushed`. All or none: raises for the first
 * that cannot be. With error_items, errors say which job they are about.
 */
void enqueue(Tables &tables, Envelope *envelopes, int n, TimestampTz now, Pushed *pushed, bool error_items);

} // namespace ojs
