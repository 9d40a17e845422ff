/*
 * batch.cpp: see batch.h.
 *
 * Equivalent SQL: with held as (delete from ojs_store.lease where job_id = any ($1) and worker = $2 … returning *)
 * insert into ojs_store.finished select job_id, now, queue, attempt, deliveries, claimed_at, 'completed', … from held;
 */
#include "ojs/work/batch.h"

#include "ojs/pg/args.h"
#include "ojs/state/dead_letter.h"
#include "ojs/counters/job_metrics.h"
#include "ojs/pg/settings.h"
#include "ojs/pg/json.h"
#include "ojs/state/lease_log.h"
#include "ojs/state/members.h"
#include "ojs/pg/uuid.h"
#include "ojs/queue/access.h"

namespace ojs
{

namespace
{

constexpr int max_named = 1000; /* */

} // namespace

void
check_result(const Jsonb *result)
{
    if (result == nullptr)
        return;
    int64 size = text_bytes(result);
    if (size > settings.max_result_size)
        raise(Code::result_too_large,
              Details().add("actual_bytes", size).add("maximum_bytes", static_cast<int64>(settings.max_result_size)),
              "Store large results elsewhere and give a reference to them.",
              "result has " INT64_FORMAT " bytes as JSON, and %d are allowed", size, settings.max_result_size);
}

Jsonb *
result_to_keep(Tables &tables, const LeaseRow &lease, Jsonb *result)
{
    if (result == nullptr || !(lease.flags & job_result_ttl))
        return result;
    JobRow job;
    read_job(tables, lease.job_id, lease.job_tid, job);
    return result_ttl_ms_of(job) == 0 ? nullptr : result;
}

void
require_lease_id(const Holder &holder)
{
    if (settings.require_lease_id && holder.lease_id == nullptr)
        raise_field(Code::invalid_payload, "lease_id", "Give the lease_id that the claim returned.",
                    "lease_id must not be null, since ojs.require_lease_id is on");
}

bool
take_held(Tables &tables, const pg_uuid_t &id, const Holder &holder, LeaseRow &lease)
{
    require_lease_id(holder);
    if (!take_lease(tables, id, holder, lease))
        return false;
    check_use_of_job(lease.queue, id, Right::work);
    return true;
}

bool
lock_held(Tables &tables, const pg_uuid_t &id, const Holder &holder, LeaseRow &lease, ItemPointer tid)
{
    if (!lock_lease(tables, id, holder, lease, tid))
        return false;
    check_use_of_job(lease.queue, id, Right::work);
    return true;
}

JobBatch
read_job_batch(FunctionCallInfo fcinfo, int worker_at, int ids_at, int lease_ids_at, int results_at)
{
    JobBatch batch = {};
    batch.worker = text_or_null(fcinfo, worker_at);
    require_worker(batch.worker, "Name the worker that holds the jobs.");
    batch.ids = ids_arg(fcinfo, ids_at, "job_ids");
    batch.done = static_cast<bool *>(palloc0(sizeof(bool) * std::max(batch.ids.n, 1)));
    if (batch.ids.n > max_named)
        raise(Code::batch_size_exceeded,
              Details()
                  .add("field", "job_ids")
                  .add("size", static_cast<int64>(batch.ids.n))
                  .add("maximum", static_cast<int64>(max_named)),
              "Split the call.", "a call may name %d jobs, not %d", max_named, batch.ids.n);
    if (lease_ids_at >= 0)
        batch.lease_ids = texts_arg(fcinfo, lease_ids_at, "lease_ids");
    if (batch.lease_ids.n != 0 && batch.lease_ids.n != batch.ids.n)
        raise_field(Code::invalid_payload, "lease_ids", "Give one lease id per job id, in the same order, or none.",
                    "lease_ids has %d elements and job_ids has %d", batch.lease_ids.n, batch.ids.n);
    if (results_at >= 0)
        batch.results = jsons_arg(fcinfo, results_at, "results");
    if (batch.results.n != 0 && batch.results.n != batch.ids.n)
        raise_field(Code::invalid_payload, "results", "Give one result per job id, in the same order, or none.",
                    "results has %d elements and job_ids has %d", batch.results.n, batch.ids.n);
    return batch;
}

int *
locking_order(const Ids &ids)
{
    auto *order = static_cast<int *>(palloc(sizeof(int) * std::max(ids.n, 1)));
    for (int i = 0; i < ids.n; i++)
        order[i] = i;
    /* By id, and the first of two equal ones first: only that can still find the lease. */
    std::sort(order, order + ids.n, [&](int a, int b) {
        int difference = memcmp(ids.ids[a], ids.ids[b], UUID_LEN);
        return difference != 0 ? difference < 0 : a < b;
    });
    return order;
}

EndedJobs
ended_of(int most, bool for_answer)
{
    EndedJobs ended = {hooks_at(Point::after_execute), nullptr, 0};
    if (for_answer || ended.hooks.n > 0)
        ended.jobs = static_cast<Datum *>(palloc(sizeof(Datum) * std::max(most, 1)));
    return ended;
}

void
note_ended(EndedJobs &ended, Tables &tables, const LeaseRow &lease, Status status)
{
    JobRow job;
    if (ended.jobs == nullptr)
        return;
    read_job(tables, lease.job_id, lease.job_tid, job);
    ended.jobs[ended.n++] = job_answer(tables, job, status);
}

void
attempts_ended(const EndedJobs &ended)
{
    if (ended.hooks.n == 0 || ended.n == 0)
        return;
    CommandCounterIncrement(); /* they see what has been written */
    for (int i = 0; i < ended.n; i++)
        after_execute(ended.hooks, envelope_json(DatumGetHeapTupleHeader(ended.jobs[i])));
    report_failures(ended.hooks, Point::after_execute);
}

void
attempt_ended(Datum job)
{
    attempts_ended({hooks_at(Point::after_execute), &job, 1});
}

int
complete(Tables &tables, const JobBatch &batch, bool strict, TimestampTz now, EndedJobs &ended)
{
    store::Table &table = tables.finished();
    auto *tuples = static_cast<HeapTuple *>(palloc(sizeof(HeapTuple) * std::max(batch.ids.n, 1)));
    int *order = locking_order(batch.ids);
    int n = 0;
    int kept = 0;
    int64 queue_id = 0; /* of which deletes_ends is known */
    bool deletes_ends = false;

    for (int k = 0; k < batch.ids.n; k++) {
        int i = order[k];
        const pg_uuid_t &id = *batch.ids.ids[i];
        LeaseRow lease;

        CHECK_FOR_INTERRUPTS();
        if (strict && k > 0 && memcmp(&id, batch.ids.ids[order[k - 1]], UUID_LEN) == 0)
            raise_field(Code::invalid_payload, "job_ids", "Name each job once.", "job_ids names a job twice");
        require_lease_id(holder_of(batch, i));
        batch.done[i] = take_lease(tables, id, holder_of(batch, i), lease);
        if (!batch.done[i]) {
            if (strict)
                raise_not_held(tables, id, "ack", holder_of(batch, i), now);
            continue;
        }
        Jsonb *result = batch.results.n > 0 ? batch.results.values[i] : nullptr;
        check_result(result);
        trace(tables, lease, LeaseStep::acked, now);
        n++;
        if (n == 1 || lease.queue != queue_id) {
            const Queue *queue = find_queue(lease.queue);
            queue_id = lease.queue;
            if (queue != nullptr)
                check_use_of_job(*queue, id, Right::work);
            deletes_ends = queue != nullptr && queue->delete_on_ack;
            store::note_write(queue == nullptr || queue->durable);
        }
        FinishedRow row = end_of(lease, State::completed, now);
        row.flags = (lease.flags & (job_has_history | job_reported)) == 0 ? finished_alone : 0;
        row.result = result_to_keep(tables, lease, result);
        count_ended(row, lease.flags);
        note_ended(ended, tables, lease, status_of(row, lease.flags));
        if (lease.flags & ends_matter)
            follow_end(tables, row, lease.flags);
        if (deletes_ends && removed_at_end(tables, lease, State::completed))
            continue;
        tuples[kept++] = form(table.rel, row);
        if (lease.flags & job_expires)
            forget_expiry(tables, id);
    }
    store::insert_many(table, tuples, kept);
    return n;
}

Datum
many_answer(FunctionCallInfo fcinfo, int n, const JobBatch &batch, std::optional<TimestampTz> deadline)
{
    const Ids &ids = batch.ids;
    auto *left = static_cast<pg_uuid_t *>(palloc(sizeof(pg_uuid_t) * std::max(ids.n, 1)));
    int n_left = 0;
    for (int i = 0; i < ids.n; i++)
        if (!batch.done[i])
            left[n_left++] = *ids.ids[i];

    TupleDesc desc;
    if (get_call_result_type(fcinfo, nullptr, &desc) != TYPEFUNC_COMPOSITE)
        elog(ERROR, "return type must be a row type");
    Datum values[3] = {Int32GetDatum(n), uuid_array(left, n_left), TimestampTzGetDatum(deadline.value_or(0))};
    bool nulls[3] = {};
    return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
}

} // namespace ojs
