/*
 * overrides.h: what administrators and workers have said of the keys of rate limits (ojs_store.rate_limit), as each
 * session remembers it.
 */
#pragma once

#include "ojs/job/limit_policy.h"

namespace ojs
{

/* A start or a pause that was noted further in the future than this was noted before the clock was set back. It no
 * longer counts: a limit begins anew instead of staying shut until the clock is there again. Nearer ones are of claims
 * that took their turn before this one. */
constexpr int64 most_ahead_us = 60 * USECS_PER_SEC;

/* The job's policy with what an administrator has set for its key laid over it, and until when the key is paused. */
LimitPolicy with_overrides(const LimitPolicy &policy, int64 key, TimestampTz now, TimestampTz *paused_until);

} // namespace ojs
