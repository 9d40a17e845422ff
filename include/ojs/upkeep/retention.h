/*
 * retention.h: removing what has been kept long enough. What is kept how long, and why: docs/retention.md. Whoever is at
 * a row is not waited for.
 */
#pragma once

#include "ojs/store/tables.h"

namespace ojs
{

/*
 * Removes finished jobs that their queue keeps no longer, dead letters beyond their own bounds among them, with all that
 * belongs to them; at most `limit`, as many again of dead letters. Never one that its unique policy still counts
 * (UNQ-23). How many.
 */
int prune_jobs(Tables &tables, int limit, TimestampTz now);

/* Removes what jobs have left behind: uniqueness keys that no job has any more, old rows of the lease log, the names of
 * dropped queues. */
void prune_traces(TimestampTz now);

} // namespace ojs
