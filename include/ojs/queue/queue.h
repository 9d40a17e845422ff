/*
 * queue.h: what a session knows of the queues: looked up once, and again after any of them was changed.
 */
#pragma once

#include "ojs/job/envelope.h"
#include "ojs/job/limit_policy.h"
#include "ojs/store/rows.h"

namespace ojs
{

enum class QueueState { active, paused, draining, deleted }; /* deleted: kept for the name of its finished jobs */

/* What a role may do with a queue and its jobs (access.h). */
enum class Right { produce, work, read, cancel, administer };
constexpr int n_rights = 5;
constexpr const char *role_settings[n_rights] = {"producers", "workers", "readers", "cancellers", "administrators"};

enum class Overflow { reject, drop_oldest, block }; /* what becomes of a push to a full queue */

constexpr double default_warning_threshold = 0.8;

struct Queue {
    char name[max_queue_name + 1]; /* key of the session's cache: first member */
    int64 id;
    QueueState state;
    bool is_log;                /* type "log": takes pushes, hands out nothing */
    bool expiry_counts_attempt; /* */
    bool delete_on_ack;         /* */
    int32 lease_flags;          /* of its leases: lease_durable, lease_logged */
    bool durable;               /* commits of push and ack are waited for */
    bool push_rules;     /* what a push must look at: default_retry, default_timeout_ms, allowed_types, producers */
    bool restricted;     /* one of `roles` is set */
    bool claim_rules;    /* what a claim must look at first: claim_jitter_ms, claim_rate */
    bool limited;        /* `limit` says something, or tenant_concurrency does */
    LimitPolicy limit;   /* `concurrency` and `rate_limit`; its key is empty */
    bool tenant_bounded; /* its tenant may not push without bound (tenant_settings.h) */
    int32 tenant_concurrency; /* jobs that its tenant may hold at once, in all of its queues; -1: no limit */
    int64 lease_ms;           /* 0: the setting ojs.default_lease */
    int64 max_deliveries;     /* 0: no bound */
    int64 claim_jitter_ms;    /* 0: claims are served at once */
    int64 claim_rate;         /* claims of a worker in a second; 0: no bound */
    int64 kept_ms[3];         /* finished jobs: completed, discarded, cancelled (kept_ms_of) */
    int64 dead_letter_ttl_ms; /* how long, and … */
    int64 dead_letter_max;    /* … how many of its dead letters are kept; 0: no bound */
    int64 max_size;           /* jobs that may wait: see capacity.h; 0: no bound */
    int64 max_size_bytes;     /* and how large they may be together; 0: no bound */
    bool bounded;             /* one of the two is set */
    Overflow overflow;        /* at that bound */
    int64 block_ms;           /* how long a push waits there, with `block` */
    double warning_threshold; /* the part of the bound from which on pushes are warned */
    char dead_letter[max_queue_name + 1]; /* where jobs go after max_deliveries; empty: nowhere */
    int32 aging_s;                        /* a waiting job rises by one for each so many seconds; 0: it does not */
    int32 aging_limit;                    /* up to this priority */
    TimestampTz revised_at;

    /* Not in copies: these point into the cache. */
    int64 default_timeout_ms;     /* 0: none */
    const Jsonb *default_retry;   /* null: none */
    const Jsonb *allowed_types;   /* array of patterns; null: all */
    const Jsonb *roles[n_rights]; /* by Right: array of names of roles, or "*"; null: see access.cpp */
};
static_assert(std::is_trivially_destructible_v<Queue>);

/* What retention is where neither the queue nor the default policy says. */
constexpr int64 kept_completed_ms = INT64CONST(7) * 86400000;
constexpr int64 kept_discarded_ms = INT64CONST(30) * 86400000;
constexpr int64 kept_cancelled_ms = INT64CONST(7) * 86400000;
constexpr int64 kept_dead_letters_ms = INT64CONST(180) * 86400000;
constexpr int64 kept_dead_letters = 10000;

/* How long the queue keeps a job that ended so. */
inline int64
kept_ms_of(const Queue &queue, State state)
{
    return queue.kept_ms[state == State::completed ? 0 : state == State::discarded ? 1 : 2];
}

/* Returns null if there is no such queue. The pointer is valid until the next call that may find the cache outdated. By
 * id, a deleted queue is found too. */
const Queue *find_queue(std::string_view name);
const Queue *find_queue(int64 id);

/* The id of the queue of this name, deleted or not, or the one that it would get. */
int64 queue_id(std::string_view name);

/* By name, these take what the caller calls a queue; for one who acts for a tenant that is the tenant's part of it
 * (tenant.h). The same by stored names: */
const Queue *find_stored_queue(std::string_view name);
int64 stored_queue_id(std::string_view name);

/*
 * The queue a push goes to; made where it is missing, unless ojs.strict_queues says otherwise. Two sessions that make
 * the same queue at once do not wait for each other (see sql/tables.sql).
 */
const Queue *queue_for_push(std::string_view name);
/* Like queue_for_push(), but for jobs that the server itself moves: creates the queue whatever the setting says. */
const Queue *queue_to_move_to(std::string_view name);

/* The policy that applies to every queue which does not say otherwise: a row of this name, no queue. */
constexpr std::string_view default_policy_name = "_default";
/* Its configuration, or null; good until the next look-up of a queue. */
const Jsonb *default_policy();

/* "base" with the members of "over" in place of its own; the retry policies in both are merged. Either may be null. */
Jsonb *merge_queue_config(const Jsonb *base, const Jsonb *over);

/* Raises NOT_FOUND, with `topic_not_found` in its details. */
[[noreturn]] void raise_no_queue(std::string_view name);

void queue_init(); /* once, at load */

} // namespace ojs
