/*
 * ack.cpp: ojs.ack, ojs.ack_many, ojs.ack_and_claim: a job is done.
 */
#include "ojs/claim/request.h"
#include "ojs/state/dead_letter.h"
#include "ojs/work/batch.h"
#include "ojs/counters/job_metrics.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/state/lease_log.h"
#include "ojs/hot_set/hot_set.h"

using namespace ojs;

OJS_FUNCTION(ojs_ack)
{
    store::begin_write("ojs.ack()");
    ensure_hot_set();
    const pg_uuid_t &id = job_id_arg(fcinfo, 0);
    Jsonb *result = jsonb_or_null(fcinfo, 1);
    Holder holder = {text_or_null(fcinfo, 3), text_or_null(fcinfo, 2)};
    TimestampTz at = now();
    Tables tables;
    LeaseRow lease;
    JobRow job;

    check_result(result);
    if (!take_lease(tables, id, holder, lease))
        raise_state(tables, id, "ack", Needs::lease, at);
    trace(tables, lease, LeaseStep::acked, at);
    DoneRow row = end_of(lease, State::completed, at);
    row.result = result_to_keep(tables, lease, result);
    const Queue *queue = find_queue(lease.queue);
    bool remove = queue != nullptr && queue->delete_on_ack;
    store::note_write(queue == nullptr || queue->durable);
    if (!remove)
        finish(tables, row, lease.flags);
    Standing standing = standing_of(row, lease.flags);
    read_job(tables, id, lease.job_tid, job);
    Datum answer = job_answer(tables, job, standing);
    if (remove) {
        if (removed_at_end(tables, lease, State::completed))
            count_ended(row, lease.flags);
        else
            finish(tables, row, lease.flags);
    }
    tables.close();
    store::end_write();
    attempt_ended(answer);
    return answer;
}

OJS_FUNCTION(ojs_ack_many)
{
    store::begin_write("ojs.ack_many()");
    ensure_hot_set();
    Named named = read_named(fcinfo, 0, 1, 3, 2);
    auto *done = static_cast<bool *>(palloc0(sizeof(bool) * std::max(named.ids.n, 1)));
    Ended ended = ended_of(named.ids.n);
    Tables tables;
    int n = complete(tables, named, false, done, now(), ended);
    tables.close();
    store::end_write();
    attempts_ended(ended);
    return many_answer(fcinfo, n, named.ids, done, std::nullopt);
}

OJS_FUNCTION(ojs_ack_and_claim)
{
    enum { p_worker, p_queue, p_ids, p_lease_ids, p_results, p_max, p_lease };
    ReturnSetInfo *set = begin_set(fcinfo);
    store::begin_write("ojs.ack_and_claim()");
    ensure_hot_set();
    Named named = read_named(fcinfo, p_worker, p_ids, p_lease_ids, p_results);
    if (PG_ARGISNULL(p_queue))
        raise_field(Code::invalid_queue, "queue", "Name a queue.", "queue must not be null");
    std::string_view queue = view(PG_GETARG_TEXT_PP(p_queue));
    int max = PG_ARGISNULL(p_max) ? 1 : PG_GETARG_INT32(p_max);
    Interval *lease = interval_or_null(fcinfo, p_lease);
    auto *done = static_cast<bool *>(palloc0(sizeof(bool) * std::max(named.ids.n, 1)));
    Tables tables;
    bool admitted = false;
    /* The wait for its share comes before it finishes anything: it holds no lock. */
    Request request =
        read_admitted(tables, admitted, [&] { return read_request(&queue, 1, named.worker, max, lease, false); });
    TimestampTz at = now();
    Ended ended = ended_of(named.ids.n);
    complete(tables, named, true, done, at, ended);
    CommandCounterIncrement();
    attempts_ended(ended);
    hand_out(tables, request, at, set);
    tables.close();
    store::end_write();
    return (Datum)0;
}
