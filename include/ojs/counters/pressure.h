/*
 * pressure.h: bounded queues tell how they are: the events backpressure.warning, .cleared and .rejected.
 *
 * Pushes only note in shared memory that there is something to tell: that a queue has come to its warning_threshold, or
 * refuses a push after it has taken one. The tick writes the events, so a push that is refused leaves one too, and a
 * queue that goes on refusing no more. Without preload nothing is noted. (What drop_oldest discards tells of itself.)
 */
#pragma once

#include "ojs/counters/queue_counters.h"
#include "ojs/pg/json.h"
#include "ojs/queue/queue.h"

namespace ojs
{

/* What may wait in a queue. */
Load bound_of(const Queue &queue);
/* depth and bound, and the same in bytes, as far as there are such bounds. */
void add_load(ObjectBuilder &out, const Load &depth, const Load &bound);

/* A push to the queue, of a job of this type, is about to be refused. */
void note_refusal(const Queue &queue, std::string_view job_type, const Load &depth);

void tell_pressure(); /* by the tick */
void pressure_init(); /* once, at load */

} // namespace ojs
