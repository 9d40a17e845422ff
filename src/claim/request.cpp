/*
 * request.cpp: see request.h.
 *
 * A claim of several queues shares out the first of them that has a window; the others it takes from as any claim does.
 * What falls due while a claim window is open is counted for it, and each member makes available what its quota lacks:
 * what one of them made available for the others they could not see before its commit.
 */
#include "ojs/claim/request.h"

#include "ojs/claim/fair.h"
#include "ojs/pg/args.h"
#include "ojs/shared/claim_window.h"
#include "ojs/state/dead_letter.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/queue/access.h"
#include "ojs/queue/maintenance.h"
#include "ojs/queue/tenant.h"
#include "ojs/shared/shmem.h"
#include "ojs/shared/claim_rate.h"
#include "ojs/shared/wakeup.h"
#include "ojs/state/reap.h"
#include "ojs/hot_set/hot_set.h"
#include "ojs/state/client_workers.h"
#include "ojs/state/worker_versions.h"

namespace ojs
{

namespace
{

int64 waited_us; /* since it was last asked for */
bool warned_greedy;

/* Whether a claim that took this row would hand it out. */
bool
would_be_handed_out(Tables &tables, const Queue &queue, const ReadyRow &ready, TimestampTz now)
{
    if (delivered_out(queue, ready))
        return false;
    if (!(ready.flags & job_expires))
        return true;
    JobRow job;
    if (!try_read_job(tables, ready.job_id, ready.job_tid, job))
        return false;
    std::optional<Expiry> expiry = expiry_of(job, ready.deliveries);
    return !expiry || expiry->at > now;
}

/* How many jobs of the queue could be claimed now, counted up to `most`. */
int64
count_claimable(const Queue &queue, int64 most, TimestampTz now)
{
    Tables tables(AccessShareLock);
    ScanKeyData key;
    store::Scan scan;
    store::Row seen;
    int64 n = 0;

    ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(queue.id));
    store::begin(scan, tables.ready(), store::Idx::ready_order, &key, 1, true);
    while (n < most && (seen = store::next(scan)) != store::Row::none) {
        ReadyRow row;
        CHECK_FOR_INTERRUPTS();
        if (seen != store::Row::live)
            continue;
        read(tables.ready().slot, row);
        n += would_be_handed_out(tables, queue, row, now);
    }
    store::end(scan);
    if (n < most)
        n += count_due(tables, queue.id, most - n, now);
    tables.close_and_unlock();
    return n;
}

int64
retry_after_ms(const Queue &queue, const text *worker)
{
    return queue.claim_rate > 0 ? throttle(queue.id, worker, queue.claim_rate) : 0;
}

Details
throttled(const Queue &queue, int64 ms)
{
    return Details().add("queue", queue.name).add("claim_rate", queue.claim_rate).add("retry_after_ms", ms);
}

constexpr const char *throttled_message = "a worker may claim from queue \"%s\" %lld times in a second";
constexpr const char *throttled_hint = "Claim again in %lld ms, or claim more jobs at once.";

/* A worker of a tenant may come before the first job of it. */
const Queue *
queue_for_claim(std::string_view name)
{
    const Queue *queue = find_queue(name);
    if (queue != nullptr || !has_tenants())
        return queue;
    std::string_view stored = stored_queue(name);
    bool is_part = stored != name && find_stored_queue(name) != nullptr;
    return is_part ? queue_to_move_to(stored) : nullptr;
}

} // namespace

int
add_queue(Request &request, const Queue &queue, int32 weight)
{
    if (request.n == request.room) {
        request.room = std::max(4, request.room * 2);
        auto *queues = static_cast<Queue *>(palloc(sizeof(Queue) * request.room));
        std::copy(request.queues, request.queues + request.n, queues);
        request.queues = queues;
        if (request.weights != nullptr) {
            auto *weights = static_cast<int32 *>(palloc(sizeof(int32) * request.room));
            std::copy(request.weights, request.weights + request.n, weights);
            request.weights = weights;
        }
    }
    request.queues[request.n] = queue;
    if (in_maintenance())
        request.queues[request.n].state = QueueState::paused;
    if (request.weights != nullptr)
        request.weights[request.n] = weight;
    request.claim_rules |= queue.claim_rules;
    return request.n++;
}

Request
read_request(const std::string_view *queues, int n, text *worker, int max, Interval *lease, bool missing_ok,
             const int32 *weights)
{
    Request request = {};
    require_worker(worker, "Name the worker that claims, such as 'mailer-1'.");
    if (max < 0)
        raise_field(Code::invalid_payload, "max", "Give a number from 0 to 1000.", "max must not be negative");
    request.worker = worker;
    request.names = store::queue_names_generation();
    request.share.quota = -1;
    request.pool_limit = no_limit;
    request.max = std::min(max, max_claim);
    if (lease != nullptr)
        request.lease_ms = clamp_lease(interval_ms(lease));
    request.room = std::max(n, 1);
    request.queues = static_cast<Queue *>(palloc(sizeof(Queue) * request.room));
    request.missing = static_cast<int64 *>(palloc(sizeof(int64) * request.room));
    request.weights = weights == nullptr ? nullptr : static_cast<int32 *>(palloc(sizeof(int32) * request.room));
    for (int i = 0; i < n; i++) {
        const Queue *queue = queue_for_claim(queues[i]);
        if (queue == nullptr) {
            if (!missing_ok)
                raise_no_queue(queues[i]);
            validate_queue_name(queues[i]);
            request.missing[request.n_missing++] = queue_id(queues[i]);
            continue;
        }
        check_queue(*queue, Right::work);
        if (queue->is_log)
            raise(Code::topic_not_a_queue, Details().add("queue", queue->name), "Read a log with the view ojs.jobs.",
                  "\"%s\" is a log and hands out no jobs", queue->name);
        bool twice = false;
        for (int j = 0; j < request.n; j++)
            twice |= request.queues[j].id == queue->id;
        if (!twice)
            add_queue(request, *queue, weights != nullptr ? weights[i] : 1);
    }
    return request;
}

void
admit(const Request &request)
{
    for (int i = 0; i < request.n; i++) {
        const Queue &queue = request.queues[i];
        int64 ms = retry_after_ms(queue, request.worker);
        if (ms > 0)
            raise(Code::rate_limited, throttled(queue, ms), psprintf(throttled_hint, static_cast<long long>(ms)),
                  throttled_message, queue.name, static_cast<long long>(queue.claim_rate));
    }
}

bool
admit_or_tell(const Queue &queue, const text *worker, int64 until_us)
{
    static uint32 event;
    bool warned = false;

    while (int64 ms = retry_after_ms(queue, worker)) {
        int64 at_us = steady_us();
        if (!warned)
            tell(Code::rate_limited, throttled(queue, ms), psprintf(throttled_hint, static_cast<long long>(ms)),
                 throttled_message, queue.name, static_cast<long long>(queue.claim_rate));
        warned = true;
        if (at_us + ms * 1000 > until_us)
            return false;
        sleep_ms(ms, "OjsClaimThrottled", &event);
        waited_us += steady_us() - at_us;
    }
    return true;
}

bool
await_share(const Request &request, Share *share)
{
    Queue *end = request.queues + request.n;
    Queue *queue = std::find_if(request.queues, end, [](const Queue &candidate) {
        return candidate.claim_jitter_ms > 0 && candidate.state != QueueState::paused;
    });
    if (queue == end || request.max == 0 || worker_stopped(request.worker))
        return false;
    if (!shared_memory()) {
        if (!warned_greedy)
            ereport(NOTICE, (errmsg("claims of queue \"%s\" are served at once, although it has a claim_jitter_ms",
                                    queue->name),
                             errhint("Sharing out a queue's jobs needs ojs in shared_preload_libraries.")));
        warned_greedy = true;
        return false;
    }

    int64 from_us = steady_us();
    claim_window_join(queue->id, request.max, queue->claim_jitter_ms);
    while (std::optional<int64> most = claim_window_wait())
        claim_window_divide(count_claimable(*queue, *most, now()));
    *share = {queue->id, claim_window_quota()};
    waited_us += steady_us() - from_us;
    AcceptInvalidationMessages();
    ensure_hot_set();
    return true;
}

void
await_jobs(Request &request, const HandedOut &out, int64 until_us, int round)
{
    constexpr int64 look_every_ms = 100;
    static uint32 event;
    int64 at_us = steady_us();

    if (request.max > 0) { /* where jobs wait for a rate limit, nobody says when it lets them start */
        QueueIds queues = awaited_ids(request);
        bool picky = names_versions(request.worker) || worker_stopped(request.worker) || out.no_places;
        wake_wait(queues.ids, queues.n, picky, request.names,
                  out.free_in_us ? std::min(until_us, at_us + *out.free_in_us) : until_us, round);
    } else /* it may hold no more: no wake-up is for it, and nobody tells it of its acks */
        sleep_ms(std::clamp<int64>((until_us - at_us) / 1000, 1, look_every_ms), "OjsWorkFull", &event);
    AcceptInvalidationMessages();
    ensure_hot_set();
}

} // namespace ojs

using namespace ojs;

/* ojs_store.claim_wait_ms() returns numeric: how long claims of this session were made to wait since this was last
 * asked */
OJS_FUNCTION(ojs_claim_wait_ms)
{
    float8 ms = static_cast<float8>(waited_us) / 1000;
    waited_us = 0;
    PG_RETURN_FLOAT8(ms);
}
