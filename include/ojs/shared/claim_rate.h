/*
 * claim_rate.h: how many claims a worker may make on a queue in a second (claim_rate, Q-68).
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

/*
 * Counts a call, in seconds that begin with a call. 0: it may go on; else in how many milliseconds the next second
 * begins, and the call does not count. Among all sessions; without preload, in this one.
 */
int64 throttle(int64 queue, const text *worker, int64 calls_per_second);

} // namespace ojs
