/*
 * job_times.cpp: what a stored job says of its own time limits. Asked on the hot path, so each looks at the flags
 * first.
 */
#include "ojs/job.h"
#include "ojs/json.h"

namespace ojs
{

namespace
{

constexpr int64 default_timeout_ms = 1800 * 1000;
constexpr int64 default_heartbeat_timeout_ms = 60 * 1000;

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

std::optional<TimestampTz>
expiry_of(const JobRow &job, int32 deliveries, const char **error_type)
{
    std::optional<TimestampTz> at = job.expires_at;
    const char *type = "expired";

    if ((job.flags & job_expires) && deliveries == 0) {
        int64 ttl_ms = option(job, "enqueue_ttl", 3, -1);
        if (ttl_ms >= 0 && (!at || job.created_at + ttl_ms * 1000 < *at)) {
            at = job.created_at + ttl_ms * 1000;
            type = "enqueue_ttl_expired";
        }
    }
    if (error_type != nullptr)
        *error_type = type;
    return at;
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

int64
stop_after_ms_of(const JobRow &job)
{
    return execution_timeout_ms_of(job) + seconds_option(job, "grace_period", 0);
}

int64
heartbeat_timeout_ms_of(const JobRow &job)
{
    return seconds_option(job, "heartbeat_timeout", default_heartbeat_timeout_ms);
}

int64
total_timeout_ms_of(const JobRow &job)
{
    return seconds_option(job, "total_timeout", 0);
}

} // namespace ojs
