/*
 * limit_policy.h: what a rate limit says, as a job or a queue states it. What follows from it: rate_limits.h.
 */
#pragma once

#include "ojs/pg/json.h"

namespace ojs
{

enum class OnLimit : int8 { wait, reschedule, drop };

/* So many starts in a time. */
struct StartRate {
    int32 limit;
    int64 period_us; /* 0: there is no such limit */
};

struct LimitPolicy {
    std::string_view key; /* points into the JSON; empty: that of the job's queue */
    int32 concurrency;    /* -1: no limit */
    StartRate rate;       /* within any stretch of the period */
    StartRate throttle;   /* evenly spaced */
    OnLimit on_limit;
};
static_assert(std::is_trivially_destructible_v<LimitPolicy>);

constexpr LimitPolicy no_limit = {{}, -1, {0, 0}, {0, 0}, OnLimit::wait};

inline bool
says_something(const LimitPolicy &policy)
{
    return policy.concurrency >= 0 || policy.rate.period_us > 0 || policy.throttle.period_us > 0;
}

constexpr int max_limits = 16; /* of one job */

/*
 * Lays the members of `object` over `base`; a member that is null lifts that limit. Raises INVALID_PAYLOAD on bad ones.
 */
LimitPolicy read_limit(const JsonbContainer *object, const LimitPolicy &base = no_limit);

/* Calls visit(policy) for each limit of `rate_limit`, an object or an array of objects. */
template <typename Visit>
void
each_limit(const JsonbValue &rate_limit, Visit visit)
{
    if (is_array(rate_limit))
        each_element(rate_limit.val.binary.data,
                     [&visit](const JsonbValue &element) { visit(read_limit(element.val.binary.data)); });
    else
        visit(read_limit(rate_limit.val.binary.data));
}

/* Refuses members that mean nothing. Jobs may have such; what an administrator sets may not. */
void check_limit_members(const JsonbContainer *object);

/* Refuses what is no rate limit, or no list of them. */
void check_rate_limit(const JsonbValue &value);

/* Refuses periods of more than 100 years. */
void check_periods(const LimitPolicy &policy);

/* Refuses, of a job, what check_rate_limit() lets pass and limits nothing: a misspelt member, and a limit without any
 * number. One with a key alone says something: that of a limit that an administrator sets, or that may be paused. */
void check_limits_something(const JsonbValue &value);

/* The characters a key may have. */
void check_limit_key(std::string_view key, const char *field);

} // namespace ojs
