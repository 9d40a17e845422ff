/*
 * retry_policy.h: retry policies: checking one, and what it says of a failed attempt.
 */
#pragma once

#include "ojs/job/envelope.h"

namespace ojs
{

enum class Backoff { exponential, linear, constant, polynomial };

struct RetryPolicy {
    int max_attempts;
    int64 initial_ms;
    double coefficient;
    int64 max_ms;
    bool jitter;
    bool to_dead_letter; /* on_exhaustion */
    Backoff backoff;
    const JsonbContainer *non_retryable; /* array of strings, or null */
};
static_assert(std::is_trivially_destructible_v<RetryPolicy>);

/* Reads and checks a policy object (null: the system's default); raises INVALID_RETRY_POLICY naming the field. */
RetryPolicy read_retry_policy(const Jsonb *policy);

/* Raises INVALID_RETRY_POLICY for an unknown member whose name is nearly a known one, or another library's word for
 * max_attempts: it would be kept and mean nothing. Null, and what is no object, is left to
 * read_retry_policy(). */
void check_retry_names(const Jsonb *policy);

/* The policy as the envelope shows it: what was given, defaults filled in, unknown members kept. Null gives the
 * system's default, made once per session. */
Jsonb *effective_retry_policy(const Jsonb *policy);

/* `policy` with what it leaves out taken from `base` (a queue's default, say): a member under any of its names replaces
 * the base's, and an inherited max_interval never contradicts a given initial_interval. Either may be null. */
Jsonb *merge_retry_policy(const Jsonb *base, const Jsonb *policy);

enum class Verdict { retry, discard, dead_letter };

/* What follows a failure with this error after `attempt` attempts (RET-07 to RET-10, WRK-12). */
Verdict retry_verdict(const RetryPolicy &policy, const ReportedError &error, int attempt);

/* Delay before retry number n (n = 1 first), RET-02 to RET-05; at least 1 ms. */
int64 retry_delay_ms(const RetryPolicy &policy, int n);

} // namespace ojs
