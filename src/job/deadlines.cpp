/*
 * deadlines.cpp: what a stored job says of its own time limits. Asked on the hot path, so each looks at the flags
 * first.
 */
#include "ojs/job/envelope.h"
#include "ojs/pg/json.h"

namespace ojs
{

namespace
{

constexpr int64 default_timeout_ms = 1800 * 1000;
constexpr int64 default_result_ttl_ms = INT64CONST(7) * 86400 * 1000;
constexpr int64 shortest_heartbeat_timeout_ms = 100; /* as for leases: nothing is looked for more often */

/* A number among the options, times 10^scale; parsing has made sure that it fits. */
int64
option(const JobRow &job, const char *key, int scale, int64 missing)
{
    JsonbValue value;
    int64 n;

    if (job.options == nullptr || !find_member(root_of(job.options), key, value) || !number_of(value, scale, n))
        return missing;
    return n;
}

int64
seconds_option(const JobRow &job, const char *key, int64 missing)
{
    return (job.flags & job_timeouts) ? option(job, key, 3, missing) : missing;
}

} // namespace

std::optional<Expiry>
total_expiry_of(const JobRow &job)
{
    int64 limit_ms = seconds_option(job, "total_timeout", 0);
    if (limit_ms == 0)
        return std::nullopt;
    return Expiry{job.created_at + limit_ms * 1000, "total_timeout", "the job was not done within its total_timeout",
                  "total", limit_ms};
}

std::optional<Expiry>
expiry_of(const JobRow &job, int32 deliveries)
{
    std::optional<Expiry> first = total_expiry_of(job);
    auto or_sooner = [&first](const Expiry &other) {
        if (!first || other.at < first->at)
            first = other;
    };

    if (job.expires_at)
        or_sooner({*job.expires_at, "expired", "the job expired before it was run", nullptr, 0});
    if ((job.flags & job_expires) && deliveries == 0) {
        int64 limit_ms = option(job, "enqueue_ttl", 3, 0);
        if (limit_ms > 0)
            or_sooner({job.created_at + limit_ms * 1000, "enqueue_ttl_expired",
                       "the job was not begun within its enqueue_ttl", "enqueue_ttl", limit_ms});
    }
    return first;
}

int64
lease_ms_of(const JobRow &job)
{
    return (job.flags & job_own_lease) ? option(job, "visibility_timeout_ms", 0, 0) : 0;
}

int64
execution_timeout_ms_of(const JobRow &job)
{
    int64 given = job.timeout_ms.value_or(0);
    return given > 0 ? given : default_timeout_ms; /* */
}

TimestampTz
stop_at_of(const JobRow &job, TimestampTz started_at)
{
    TimestampTz at = started_at + (execution_timeout_ms_of(job) + seconds_option(job, "grace_period", 0)) * 1000;
    std::optional<Expiry> total = total_expiry_of(job);
    return total ? std::min(at, total->at) : at;
}

int64
heartbeat_timeout_ms_of(const JobRow &job)
{
    return std::max(seconds_option(job, "heartbeat_timeout", default_heartbeat_timeout_ms),
                    shortest_heartbeat_timeout_ms);
}

std::optional<int64>
result_ttl_ms_of(const JobRow &job)
{
    int64 ttl_ms =
        (job.flags & job_result_ttl) ? option(job, "result_ttl", 3, default_result_ttl_ms) : default_result_ttl_ms;
    return ttl_ms >= 0 ? std::optional<int64>(ttl_ms) : std::nullopt;
}

} // namespace ojs
