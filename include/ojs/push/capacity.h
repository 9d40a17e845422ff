/*
 * capacity.h: bounds of queues (BP-01 to BP-06): how many jobs may wait in one, how large they may be together, and
 * what becomes of a push beyond that.
 *
 * Only pushes ask. Jobs that come back (retries, lapsed leases, releases, dead letters) are never refused, and may make
 * a queue longer than its bound; then it takes nothing new until it is shorter again.
 */
#pragma once

#include "ojs/counters/queue_counters.h"
#include "ojs/push/insert.h"

namespace ojs
{

/* At the start of a call that pushes: nothing is known of its queues, and none of its time to wait is over. */
void begin_push();

/*
 * Room for those of the jobs, all about to be stored, whose queues have a bound: for all of them, or it raises
 * QUEUE_FULL. The answer is the time when there was room: `now`, or later where the call had to wait.
 */
TimestampTz find_room(Tables &tables, const Envelope *envelopes, int n, TimestampTz now);

/* For a batch that will store its jobs in several steps: takes the locks of its bounded queues, if there are to be any,
 * in an order that all calls keep. */
void hold_bounds(const Envelope *envelopes, int n);

/* The queue of the last push that is nearest to its bound. */
struct Pressure {
    Load depth;
    Load bound; /* 0: no queue has one; see bound_of() */
    double warning_threshold;

    bool any() const { return bound.jobs > 0; }
};
Pressure pressure_of_push();
/* A reply of a push with its pressure, where there is any. */
Jsonb *with_pressure(Jsonb *reply);

} // namespace ojs
