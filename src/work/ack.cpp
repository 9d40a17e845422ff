/*
 * ack.cpp: ojs.ack, ojs.ack_many, ojs.ack_and_claim: a job is done.
 */
#include "ojs/claim/request.h"
#include "ojs/state/dead_letter.h"
#include "ojs/work/batch.h"
#include "ojs/counters/job_metrics.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/pg/row.h"
#include "ojs/state/lease_log.h"
#include "ojs/hot_set/hot_set.h"

using namespace ojs;

OJS_CHANGE(ojs_ack, "ojs.ack()")
{
    enum { p_job_id, p_result, p_lease_id, p_worker };
    const pg_uuid_t *id = &job_id_arg(fcinfo, p_job_id);
    Jsonb *result = jsonb_or_null(fcinfo, p_result);
    text *lease_id = text_or_null(fcinfo, p_lease_id);
    bool done;
    JobBatch batch = {{&id, 1}, {&lease_id, 1}, {&result, 1}, text_or_null(fcinfo, p_worker), &done};
    EndedJobs ended = ended_of(1, true);

    check_result(result);
    (void)complete(tables, batch, true, now(), ended);
    attempts_ended(ended);
    return ended.jobs[0];
}

OJS_CHANGE(ojs_ack_many, "ojs.ack_many()")
{
    JobBatch batch = read_job_batch(fcinfo, 0, 1, 3, 2);
    EndedJobs ended = ended_of(batch.ids.n);
    int n = complete(tables, batch, false, now(), ended);
    attempts_ended(ended);
    return many_answer(fcinfo, n, batch, std::nullopt);
}

OJS_CHANGE(ojs_ack_and_claim, "ojs.ack_and_claim()")
{
    enum { p_worker, p_queue, p_ids, p_lease_ids, p_results, p_max, p_lease };
    ReturnSetInfo *set = begin_set(fcinfo);
    JobBatch batch = read_job_batch(fcinfo, p_worker, p_ids, p_lease_ids, p_results);
    if (PG_ARGISNULL(p_queue))
        raise_field(Code::invalid_queue, "queue", "Name a queue.", "queue must not be null");
    std::string_view queue = view(PG_GETARG_TEXT_PP(p_queue));
    int max = PG_ARGISNULL(p_max) ? 1 : PG_GETARG_INT32(p_max);
    Interval *lease = interval_or_null(fcinfo, p_lease);
    bool admitted = false;
    /* The wait for its share comes before it finishes anything: it holds no lock. */
    Request request =
        read_admitted(tables, admitted, [&] { return read_request(&queue, 1, batch.worker, max, lease, false); });
    TimestampTz at = now();
    EndedJobs ended = ended_of(batch.ids.n);
    (void)complete(tables, batch, true, at, ended);
    CommandCounterIncrement();
    attempts_ended(ended);
    advance_lines();
    hand_out(tables, request, at, set);
    return (Datum)0;
}
