/*
 * retention.h: removing what has been kept long enough. What is kept how long, and why: docs/how-to/retention.md.
 * Whoever is at a row is not waited for.
 */
#pragma once

#include "ojs/store/tables.h"

namespace ojs
{

/*
 * Removes finished jobs that their queue keeps no longer, with all that belongs to them; at most `limit`. Never one
 * that its unique policy still counts (UNQ-23). Returns the number of jobs removed.
 */
int prune_jobs(int limit, TimestampTz now);

/* Likewise, dead letters beyond the bounds of their own in age and number. Looks once a minute. */
int prune_dead_letters(int limit, TimestampTz now);

/* Removes a stretch of what jobs have left behind: uniqueness keys that no job has any more, and old rows of the lease
 * log. */
void prune_unique_keys(TimestampTz now);
void prune_lease_log(TimestampTz now);

} // namespace ojs
