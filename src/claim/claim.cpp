/*
 * claim.cpp: ojs.claim. How jobs are chosen: scan.cpp.
 */
#include "ojs/claim/request.h"
#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/job/envelope.h"
#include "ojs/hot_set/hot_set.h"

using namespace ojs;

namespace
{

constexpr int64 longest_wait_ms = 30000; /* OP-11: the caller's statement keeps its snapshot all the while */

/* Parameters after the queue or queues. */
enum { p_queues, p_worker, p_max, p_lease, p_wait, p_missing_ok };

Datum
claim(FunctionCallInfo fcinfo, const std::string_view *queues, int n)
{
    ReturnSetInfo *set = begin_set(fcinfo);
    store::begin_write("ojs.claim()");
    store::WriteMark before = store::write_mark();
    store::forget_index_locks();
    ensure_hot_set();

    int max = PG_ARGISNULL(p_max) ? 1 : PG_GETARG_INT32(p_max);
    bool missing_ok = !PG_ARGISNULL(p_missing_ok) && PG_GETARG_BOOL(p_missing_ok);
    Interval *wait = interval_or_null(fcinfo, p_wait);
    int64 wait_ms = wait != nullptr ? std::min(interval_ms(wait), longest_wait_ms) : 0;
    text *worker = text_or_null(fcinfo, p_worker);
    Interval *lease = interval_or_null(fcinfo, p_lease);
    int64 until_us = wait_ms > 0 && max > 0 ? steady_us() + wait_ms * 1000 : 0;
    hand_out_until(
        until_us, false, before, set, [&](Tables &) { return read_request(queues, n, worker, max, lease, missing_ok); },
        [](const HandedOut &) {});
    return (Datum)0;
}

} // namespace

OJS_FUNCTION(ojs_claim)
{
    if (PG_ARGISNULL(p_queues))
        raise_field(Code::invalid_queue, "queue", "Name a queue.", "queue must not be null");
    std::string_view queue = view(PG_GETARG_TEXT_PP(p_queues));
    return claim(fcinfo, &queue, 1);
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
    return claim(fcinfo, queues, names.n);
}
