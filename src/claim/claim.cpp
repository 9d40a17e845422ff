/*
 * claim.cpp: ojs.claim, of a queue, of queues, of a pool. How jobs are chosen: scan.cpp.
 */
#include "ojs/claim/fair.h"
#include "ojs/claim/request.h"
#include "ojs/claim/shares.h"
#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/pg/row.h"
#include "ojs/job/envelope.h"
#include "ojs/hot_set/hot_set.h"
#include "ojs/queue/pool.h"

using namespace ojs;

namespace
{

constexpr int64 longest_wait_ms = 30000; /* OP-11: the caller's statement keeps its snapshot all the while */

/* Parameters after the queue, the queues or the pool. */
enum { p_queues, p_worker, p_max, p_lease, p_wait, p_missing_ok, p_strategy, p_weights };

/* `read(worker, max, lease)` returns the request. */
template <typename Read>
Datum
claim(FunctionCallInfo fcinfo, const char *name, Read read)
{
    ReturnSetInfo *set = begin_set(fcinfo);
    store::begin_write(name);
    store::WriteMark before = store::write_mark();
    store::forget_index_locks();
    ensure_hot_set();

    int max = PG_ARGISNULL(p_max) ? 1 : PG_GETARG_INT32(p_max);
    Interval *wait = interval_or_null(fcinfo, p_wait);
    int64 wait_ms = wait != nullptr ? std::min(interval_ms(wait), longest_wait_ms) : 0;
    text *worker = text_or_null(fcinfo, p_worker);
    Interval *lease = interval_or_null(fcinfo, p_lease);
    int64 until_us = wait_ms > 0 && max > 0 ? steady_us() + wait_ms * 1000 : 0;
    hand_out_until(
        until_us, false, before, set, [&](Tables &) { return read(worker, max, lease); }, [](const HandedOut &) {});
    return (Datum)0;
}

bool
missing_ok_arg(FunctionCallInfo fcinfo)
{
    return !PG_ARGISNULL(p_missing_ok) && PG_GETARG_BOOL(p_missing_ok);
}

} // namespace

OJS_FUNCTION(ojs_claim)
{
    if (PG_ARGISNULL(p_queues))
        raise_field(Code::invalid_queue, "queue", "Name a queue.", "queue must not be null");
    std::string_view queue = view(PG_GETARG_TEXT_PP(p_queues));
    bool missing_ok = missing_ok_arg(fcinfo);
    return claim(fcinfo, "ojs.claim()", [&](text *worker, int max, Interval *lease) {
        return names_all_parts(queue) ? fair_request(queue, worker, max, lease, missing_ok)
                                      : read_request(&queue, 1, worker, max, lease, missing_ok);
    });
}

OJS_FUNCTION(ojs_claim_queues)
{
    Texts names = texts_arg(fcinfo, p_queues, "queues");
    auto *queues = static_cast<std::string_view *>(palloc(sizeof(std::string_view) * std::max(names.n, 1)));
    if (names.n == 0)
        raise_field(Code::invalid_queue, "queues", "Name at least one queue.", "queues must not be empty");
    for (int i = 0; i < names.n; i++) {
        if (names.texts[i] == nullptr)
            raise_field(Code::invalid_queue, "queues", "Leave out null elements.", "queues must not hold nulls");
        queues[i] = view(names.texts[i]);
    }
    const int32 *weights =
        weights_by(text_or_null(fcinfo, p_strategy), jsonb_or_null(fcinfo, p_weights), queues, names.n);
    bool missing_ok = missing_ok_arg(fcinfo);
    return claim(fcinfo, "ojs.claim()", [&](text *worker, int max, Interval *lease) {
        return names.n == 1 && names_all_parts(queues[0])
                   ? fair_request(queues[0], worker, max, lease, missing_ok)
                   : read_request(queues, names.n, worker, max, lease, missing_ok, weights);
    });
}

OJS_FUNCTION(ojs_claim_pool)
{
    if (PG_ARGISNULL(p_queues))
        raise_field(Code::invalid_payload, "pool", "Name a pool.", "pool must not be null");
    std::string_view name = view(PG_GETARG_TEXT_PP(p_queues));
    return claim(fcinfo, "ojs.claim_pool()", [&](text *worker, int max, Interval *lease) {
        const Pool &pool = find_pool(name);
        Request request = read_request(pool.queues, pool.n, worker, max, lease, true, pool.weights);
        if (pool.concurrency >= 0) {
            request.pool_limit.key = psprintf("pool:%.*s", static_cast<int>(name.size()), name.data());
            request.pool_limit.concurrency = pool.concurrency;
        }
        return request;
    });
}
