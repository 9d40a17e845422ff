/*
 * extend.cpp: ojs.extend, ojs.extend_many, ojs.beat: a worker is still at it.
 */
#include "ojs/work/batch.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/hot_set/hot_set.h"
#include "ojs/queue/access.h"
#include "ojs/state/client_workers.h"

using namespace ojs;

namespace
{

int64
lease_arg(FunctionCallInfo fcinfo, int n)
{
    if (PG_ARGISNULL(n))
        raise_field(Code::invalid_payload, "lease", "Give the new length of the lease, counted from now.",
                    "lease must not be null");
    return clamp_lease(interval_ms(PG_GETARG_INTERVAL_P(n)));
}

Status
active(const LeaseRow &lease)
{
    Status status = {};
    status.state = State::active;
    status.queue = lease.queue;
    status.attempt = lease.attempt;
    status.deliveries = lease.deliveries;
    status.has_history = lease.flags & job_has_history;
    status.started_at = lease.claimed_at;
    status.worker = lease.worker;
    status.token = lease.token;
    status.lease_expires_at = lease.deadline;
    return status;
}

/* The k-th id in locking order has been named before. */
bool
again(const Ids &ids, const int *order, int k)
{
    return k > 0 && memcmp(ids.ids[order[k]], ids.ids[order[k - 1]], UUID_LEN) == 0;
}

/* Leaves each id once, where it was named first. */
void
leave_once(Ids &ids)
{
    int *order = locking_order(ids);
    auto *repeated = static_cast<bool *>(palloc0(sizeof(bool) * std::max(ids.n, 1)));
    int n = 0;
    for (int k = 0; k < ids.n; k++)
        repeated[order[k]] = again(ids, order, k);
    for (int i = 0; i < ids.n; i++)
        if (!repeated[i])
            ids.ids[n++] = ids.ids[i];
    ids.n = n;
}

/* Extends each lease that is held, in locking order; a lease by its own length unless one is given. */
int
extend_all(Tables &tables, const JobBatch &batch, std::optional<int64> lease_ms, bool beat, TimestampTz at)
{
    int *order = locking_order(batch.ids);
    int n = 0;
    for (int k = 0; k < batch.ids.n; k++) {
        int i = order[k];
        LeaseRow lease;
        ItemPointerData tid;
        CHECK_FOR_INTERRUPTS();
        if (again(batch.ids, order, k))
            continue; /* the first counts */
        if (!beat)
            require_lease_id(holder_of(batch, i));
        batch.done[i] = lock_held(tables, *batch.ids.ids[i], holder_of(batch, i), lease, &tid);
        if (!batch.done[i])
            continue;
        extend_lease(tables, lease, &tid, lease_ms.value_or(lease.lease_ms), at, beat);
        n++;
    }
    return n;
}

/* Which of the jobs that a beat named and does not hold were cancelled. */
bool
was_cancelled(Tables &tables, const pg_uuid_t &id)
{
    ItemPointerData tid;
    if (store::find(tables.finished(), store::Idx::finished_job, id, &tid) == store::Row::none)
        return false;
    FinishedRow row;
    read(tables.finished().slot, row);
    return row.state == State::cancelled && may_know_state(row.queue);
}

} // namespace

OJS_CHANGE(ojs_extend, "ojs.extend()")
{
    enum { p_job_id, p_lease, p_lease_id, p_worker };
    const pg_uuid_t &id = job_id_arg(fcinfo, p_job_id);
    int64 lease_ms = lease_arg(fcinfo, p_lease);
    Holder holder = {text_or_null(fcinfo, p_worker), text_or_null(fcinfo, p_lease_id)};
    TimestampTz at = now();
    LeaseRow lease;
    ItemPointerData tid;
    JobRow job;

    require_lease_id(holder);
    if (!lock_held(tables, id, holder, lease, &tid))
        raise_not_held(tables, id, "extend", holder, at);
    extend_lease(tables, lease, &tid, lease_ms, at, false);
    read_job(tables, id, lease.job_tid, job);
    Status status = active(lease);
    return job_answer(tables, job, status);
}

OJS_CHANGE(ojs_extend_many, "ojs.extend_many()")
{
    enum { p_worker, p_ids, p_lease, p_lease_ids };
    JobBatch batch = read_job_batch(fcinfo, p_worker, p_ids, p_lease_ids, -1);
    int64 lease_ms = lease_arg(fcinfo, p_lease);
    TimestampTz at = now();
    int n = extend_all(tables, batch, lease_ms, false, at);
    return many_answer(fcinfo, n, batch, at + lease_ms * 1000);
}

OJS_CHANGE(ojs_beat, "ojs.beat()")
{
    enum { p_worker, p_ids, p_state, p_info, p_lease };
    JobBatch batch = read_job_batch(fcinfo, p_worker, p_ids, -1, -1);
    leave_once(batch.ids);
    std::optional<int64> lease_ms;
    if (!PG_ARGISNULL(p_lease))
        lease_ms = lease_arg(fcinfo, p_lease);
    TimestampTz at = now();
    Beat beat = note_beat(batch.worker, text_or_null(fcinfo, p_state), jsonb_or_null(fcinfo, p_info), at);

    if (extend_all(tables, batch, lease_ms, true, at) > 0 && !beat.for_jobs)
        note_beat_for_jobs(batch.worker);
    auto *extended = static_cast<pg_uuid_t *>(palloc(sizeof(pg_uuid_t) * std::max(batch.ids.n, 1)));
    auto *cancelled = static_cast<pg_uuid_t *>(palloc(sizeof(pg_uuid_t) * std::max(batch.ids.n, 1)));
    auto *lost = static_cast<pg_uuid_t *>(palloc(sizeof(pg_uuid_t) * std::max(batch.ids.n, 1)));
    int n_extended = 0, n_cancelled = 0, n_lost = 0;
    for (int i = 0; i < batch.ids.n; i++) {
        const pg_uuid_t &id = *batch.ids.ids[i];
        if (batch.done[i])
            extended[n_extended++] = id;
        else if (was_cancelled(tables, id))
            cancelled[n_cancelled++] = id;
        else
            lost[n_lost++] = id;
    }

    TupleDesc desc;
    if (get_call_result_type(fcinfo, nullptr, &desc) != TYPEFUNC_COMPOSITE)
        elog(ERROR, "return type must be a row type");
    Datum values[4] = {CStringGetTextDatum(beat.directive), uuid_array(extended, n_extended),
                       uuid_array(cancelled, n_cancelled), uuid_array(lost, n_lost)};
    bool nulls[4] = {};
    return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
}
