/*
 * dead_letter.h: jobs that leave their queue otherwise than by their end: moved to a queue of dead letters, or removed
 * without a trace.
 */
#pragma once

#include "ojs/state/transitions.h"

namespace ojs
{

/* The job has been delivered as often as its queue allows, and there is somewhere to put it. */
inline bool
delivered_out(const Queue &queue, const ReadyRow &ready)
{
    return queue.max_deliveries > 0 && ready.deliveries >= queue.max_deliveries && queue.dead_letter[0] != '\0';
}

/*
 * Instead of its next delivery: a copy in the queue's dead-letter queue, with where it came from in its meta, and the
 * end of the job itself. Its ready row has been taken. `job` is good until this call only.
 */
void move_to_dead_letters(Tables &tables, const Queue &queue, const JobRow &job, const ReadyRow &ready,
                          TimestampTz now);

/* Whether nothing is kept of a job that ends so: its queue deletes what ends, and its own unique policy does not count
 * that state (R-23, UNQ-23). */
bool leaves_no_trace(const JobRow &job, State end);

/* For a queue that deletes what ends: removes the job of this lease, which has been taken, unless it must be kept. */
bool removed_at_end(Tables &tables, const LeaseRow &lease, State end);

/*
 * Removes what the logged tables have of a job. The row that says where it stands, in a hot table or in `finished`, has
 * been taken: so nobody else is at it. Its uniqueness key is left to retention.
 */
void remove_job(Tables &tables, const pg_uuid_t &id, ItemPointerData tid, int32 flags);
/* Like the function above, but for a job of which only the id is known. Returns false if there is none. */
bool remove_job(Tables &tables, const pg_uuid_t &id);

} // namespace ojs
