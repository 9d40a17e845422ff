/*
 * scan.h: handing out ready jobs: the walk in claim order, and their leases.
 */
#pragma once

#include "ojs/queue/queue.h"
#include "ojs/store/tables.h"

namespace ojs
{

/* What a claim may take of a queue whose jobs are shared out (request.h). */
struct Share {
    int64 queue;
    int quota; /* -1: none is shared out */
};

struct Request {
    Queue *queues; /* copies: the cache may change under a call */
    int n;
    int room;
    int64 *missing; /* the ids that queues will have which it names and which are not there */
    int n_missing;
    uint64 names;          /* queue_names_generation() before it looked for them */
    int32 *weights;        /* by queue (shares.h); null: strictly one after the other */
    struct FairLook *fair; /* of all parts of a queue (fair.h), which it is given as their turns come; null: not so */
    text *worker;
    int max;
    LimitPolicy pool_limit; /* of the pool that the claim names, with its places */
    bool may_wait;          /* if nothing comes of it: then as little as possible is written */
    std::optional<int64> lease_ms;
    int32 session;    /* the work session that the leases are bound to, or 0 */
    bool claim_rules; /* of one of the queues at least */
    Share share;
};
static_assert(std::is_trivially_destructible_v<Request>);

struct QueueIds {
    int64 *ids;
    int n;
};

inline QueueIds
queue_ids(const Request &request)
{
    auto *ids = static_cast<int64 *>(palloc(sizeof(int64) * std::max(request.n, 1)));
    std::transform(request.queues, request.queues + request.n, ids, [](const Queue &queue) { return queue.id; });
    return {ids, request.n};
}

struct Delivery {
    pg_uuid_t job_id;
    int64 token;
};

struct HandedOut {
    int jobs;
    Delivery *deliveries;
    bool no_places;                  /* the pool that the claim names has none left */
    std::optional<int64> free_in_us; /* from when on a limit that jobs wait for may let one start, if that is known */
};

/* Claims up to request.max jobs and puts them into `set` as rows of ojs.claimed_job. */
HandedOut hand_out(Tables &tables, Request &request, TimestampTz now, ReturnSetInfo *set);

} // namespace ojs
