/*
 * rate_limits.h: rate limits, as claims keep them: how many jobs with a key run at once, start within a time, or start
 * at what distance. What counts stands in rows (ojs_store.limit_use) that come and go with the transactions that start
 * and end jobs, so nothing can leak.
 *
 * Claims that meet a limit take turns, from the first limited job they look at until their leases are stored: what is
 * counted is what is taken. They count the uses of open transactions, and do not wait for them.
 */
#pragma once

#include "ojs/job/limit_policy.h"
#include "ojs/queue/queue.h"
#include "ojs/store/rows.h"
#include "ojs/store/tables.h"

namespace ojs
{

struct LimitUsed; /* what of a key's limits is used up */

struct LimitOnJob {
    LimitPolicy policy; /* in force */
    LimitUsed *used;
    uint64 name; /* equal for jobs that the same limit keeps back: of its key and the numbers that were stated */
    /* What the job's start writes down. Where several limits have one key, one of them does it for all. */
    bool takes_slot;
    int64 remembered_us; /* for how long the start counts */
};

/* What one claim knows of limits. */
struct Limits {
    Tables &tables;
    TimestampTz now;                /* when it is our turn, set again */
    TimestampTz free_at = DT_NOEND; /* when a job that was passed over may start, as far as that is known */
    HTAB *keys = nullptr;           /* of LimitUsed; made when it is our turn */
    LimitOnJob *current = nullptr;  /* of the job that may_start() looked at last */
    int n_current = 0;
    uint64 closed = 0;       /* names the limit that it must wait for; 0: none */
    List *pending = nullptr; /* of LimitUseRow, to be stored after their leases */
    List *over = nullptr;    /* of ItemPointer: uses that count no more */
};
static_assert(std::is_trivially_destructible_v<Limits>);

enum class LimitVerdict { allowed, wait, reschedule, drop };

/* Whether the job may start now. If not, `again_at` is when to ask again. */
LimitVerdict may_start(Limits &limits, const Queue &queue, const JobRow &job, TimestampTz *again_at);

/* The job that may_start() was asked about last does start. */
void starts(Limits &limits, LeaseRow &lease);

/* This claim has ended leases itself: their slots are free for it. */
void count_anew(Limits &limits);

/* A lease from before a crash takes its slots again; to be called before it is stored, then store_limit_uses(). It
 * started then, not now: rates are not asked. */
void retake_slots(Limits &limits, const Queue &queue, const JobRow &job, LeaseRow &lease);

/* A limit of the claim as a whole, such as that of a pool: how many jobs it may start now. Each that it starts takes a
 * place by take_place(), before its lease is stored. */
int places_left(Limits &limits, const Queue &queue, const LimitPolicy &policy, LimitOnJob *place);
void take_place(Limits &limits, const LimitOnJob &place, LeaseRow &lease);

/* At the end of the claim, its leases stored: writes down what they use, and lets others go on. Without `writes` (the
 * claim has started nothing and will wait) it only does the latter. */
void store_limit_uses(Limits &limits, bool writes = true);

/* A worker was told to let go for a while (RL-06), by what it says was a `reason`: no job with the keys of this one (or
 * without a key, of this queue) starts before `until`. */
void pause_limits(std::string_view queue, const JobRow &job, TimestampTz until, const text *reason, TimestampTz now);

/* Now and then, in a tick: removes uses and overrides whose time is over. Waits for nobody. */
void tidy_limits(TimestampTz now);

} // namespace ojs
