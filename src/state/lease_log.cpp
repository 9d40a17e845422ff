/*
 * lease_log.cpp: see lease_log.h.
 *
 * A durable lease leaves an event when it is made and when it is extended. Its end needs none of its own: a later event
 * or the `finished` row says that it is over. So these tables are only inserted into, and a rebuild, which goes by a
 * job's newest event anyhow, finds the lease there.
 */
#include "ojs/state/lease_log.h"

#include "ojs/job/envelope.h"
#include "ojs/pg/json.h"
#include "ojs/state/status.h"

namespace ojs
{

namespace
{

/* Columns of ojs_store.lease_log. */
enum {
    col_number,
    col_job_id,
    col_seq,
    col_queue,
    col_at,
    col_deadline,
    col_token,
    col_step,
    col_deliveries,
    col_worker,
    n_cols
};

void
keep(Tables &tables, const LeaseRow &lease, TimestampTz now)
{
    ObjectBuilder data;
    data.add("token", lease.token).add("lease_ms", lease.lease_ms);
    HistoryRow event = {};
    event.job_id = lease.job_id;
    event.at = now;
    if (lease.session == 0) /* else it does not outlive the server, and its job may be claimed at once */
        event.due_at = lease.deadline;
    event.kind = HistoryKind::leased;
    event.attempt = lease.attempt;
    event.deliveries = lease.deliveries;
    event.started_at = lease.claimed_at;
    event.worker = lease.worker;
    event.data = data.finish();
    store::insert(tables.job_history(), form(tables.job_history().rel, event));
    store::note_write(true);
}

/* By a slot of its own: callers hold on to what is in the other. */
int64
seq_of(const LeaseRow &lease)
{
    Tables own;
    JobRow job;
    read_job(own, lease.job_id, lease.job_tid, job);
    int64 seq = job.seq;
    own.close();
    return seq;
}

void
log(Tables &tables, const LeaseRow &lease, LeaseStep step, TimestampTz now)
{
    store::Table &table = tables.get(store::Rel::lease_log);
    Datum values[n_cols];
    bool nulls[n_cols] = {};
    values[col_number] = Int64GetDatum(store::next_seq());
    values[col_job_id] = UUIDPGetDatum(&lease.job_id);
    values[col_seq] = Int64GetDatum(seq_of(lease));
    values[col_queue] = Int64GetDatum(lease.queue);
    values[col_at] = TimestampTzGetDatum(now);
    values[col_deadline] = TimestampTzGetDatum(lease.deadline);
    values[col_token] = Int64GetDatum(lease.token);
    values[col_step] = Int16GetDatum(static_cast<int16>(step));
    values[col_deliveries] = Int32GetDatum(lease.deliveries);
    values[col_worker] = PointerGetDatum(lease.worker);
    store::insert(table, heap_form_tuple(RelationGetDescr(table.rel), values, nulls));
}

} // namespace

void
write_trace(Tables &tables, const LeaseRow &lease, LeaseStep step, TimestampTz now)
{
    if ((lease.flags & lease_durable) && (step == LeaseStep::claimed || step == LeaseStep::extended))
        keep(tables, lease, now);
    if (lease.flags & lease_logged)
        log(tables, lease, step, now);
}

void
restore_lease(Limits &limits, LeaseRow &lease, std::optional<TimestampTz> deadline, const Jsonb *data)
{
    Tables &tables = limits.tables;
    JobRow job;
    JsonbValue value;
    read_job(tables, lease.job_id, lease.job_tid, job);
    (void)(find_member(root_of(data), "token", value) && number_of(value, 0, lease.token));
    (void)(find_member(root_of(data), "lease_ms", value) && number_of(value, 0, lease.lease_ms));
    lease.deadline = deadline.value_or(limits.now);
    lease.stop_at = stop_at_of(job, lease.claimed_at);
    lease.reap_at = std::min(lease.deadline, lease.stop_at);
    const Queue *queue = find_queue(lease.queue);
    lease.flags |= lease_durable | (queue != nullptr ? queue->lease_flags : 0);
    if (queue != nullptr) {
        Queue copy = *queue; /* the session's cache may go */
        retake_slots(limits, copy, job, lease);
    }
    store::insert(tables.lease(), form(tables.lease().rel, lease));
}

} // namespace ojs
