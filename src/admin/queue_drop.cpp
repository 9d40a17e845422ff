/*
 * queue_drop.cpp: what ojs.drop_queue (sql/queue.sql) does to each job that it has taken. Not by SQL: rows that come
 * into ojs_store.finished by SQL are a restore, after which the hot set is rebuilt.
 */
#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/job/envelope.h"
#include "ojs/limits/rate_limits.h"
#include "ojs/limits/slots.h"
#include "ojs/state/transitions.h"
#include "ojs/state/status.h"

using namespace ojs;

/* ojs_store.discard_dropped(job_id uuid, queue bigint, attempt int, deliveries int, flags int, started_at timestamptz,
 * worker text) */
OJS_FUNCTION(ojs_discard_dropped)
{
    enum { p_job_id, p_queue, p_attempt, p_deliveries, p_flags, p_started_at, p_worker };
    store::begin_write("ojs.drop_queue()");
    TimestampTz at = now();
    Tables tables;
    int32 flags = PG_GETARG_INT32(p_flags);
    int32 attempt = PG_GETARG_INT32(p_attempt);
    FinishedRow row = end_waiting(
        {job_id_arg(fcinfo, p_job_id), PG_GETARG_INT64(p_queue), {}, 0, flags, attempt, PG_GETARG_INT32(p_deliveries)},
        at);
    if (PG_ARGISNULL(p_started_at))
        flags &= ~lease_series;
    else
        row.started_at = PG_GETARG_TIMESTAMPTZ(p_started_at);
    row.worker = text_or_null(fcinfo, p_worker);
    row.error = server_error("queue_deleted", "the queue was dropped", attempt, at);
    finish(tables, row, flags);
    tables.close();
    store::end_write();
    PG_RETURN_VOID();
}

/* ojs_store.count_moved(job_id uuid, token bigint, job_tid tid, queue bigint) */
OJS_FUNCTION(ojs_count_moved)
{
    store::begin_write("ojs.drop_queue()");
    Tables tables;
    JobRow job;
    LeaseRow lease = {};
    Limits limits = {tables, now()};
    lease.job_id = *PG_GETARG_UUID_P(0);
    lease.token = PG_GETARG_INT64(1);
    read_job(tables, lease.job_id, *reinterpret_cast<ItemPointer>(PG_GETARG_POINTER(2)), job);
    lease.queue = PG_GETARG_INT64(3);
    free_counted(tables, lease, true);
    const Queue *found = find_queue(lease.queue);
    if (found != nullptr) {
        Queue queue = *found; /* the cache may go meanwhile */
        retake_slots(limits, queue, job, lease);
        store_limit_uses(limits);
    }
    tables.close();
    store::end_write();
    PG_RETURN_VOID();
}
