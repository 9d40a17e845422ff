/*
 * fail.cpp: ojs.fail, ojs.nack, ojs.nack_many: a job was not done.
 */
#include "ojs/work/batch.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/job/attributes.h"
#include "ojs/pg/json.h"
#include "ojs/limits/rate_limits.h"
#include "ojs/hot_set/hot_set.h"

using namespace ojs;

namespace
{

/* As the delay of a push: up to 100 years, months by the calendar. */
std::optional<int64>
delay_arg(FunctionCallInfo fcinfo, int n, TimestampTz now)
{
    Interval *delay = interval_or_null(fcinfo, n);
    if (delay == nullptr)
        return std::nullopt;
    if (interval_ms(delay) <= 0)
        return 0; /* */
    return interval_arg_from(now, delay, "delay");
}

/* what becomes of a job in a queue that is not durable may be lost, like the job. */
void
note_write_to(int64 queue_id)
{
    const Queue *queue = find_queue(queue_id);
    store::note_write(queue == nullptr || queue->durable);
}

constexpr int64 longest_pause_us = USECS_PER_DAY; /* one worker's word stops all workers of a key */

/* `rate_limit_until` in the report of a worker that was told to slow down (RL-06). */
void
heed_pause(const LeaseRow &lease, const JobRow &job, const ReportedError &reported, TimestampTz now)
{
    if (reported.paused_until)
        pause_limits(queue_name(lease.queue), job, std::min(*reported.paused_until, now + longest_pause_us),
                     cstring_to_text_with_len(reported.type.data(), static_cast<int>(reported.type.size())), now);
}

} // namespace

OJS_CHANGE(ojs_fail, "ojs.fail()")
{
    enum { p_job_id, p_error, p_lease_id, p_worker, p_requeue, p_delay };
    const pg_uuid_t &id = job_id_arg(fcinfo, p_job_id);
    Jsonb *error = jsonb_or_null(fcinfo, p_error);
    Holder holder = {text_or_null(fcinfo, p_worker), text_or_null(fcinfo, p_lease_id)};
    bool requeue = !PG_ARGISNULL(p_requeue) && PG_GETARG_BOOL(p_requeue);
    TimestampTz at = now();
    std::optional<int64> delay_ms = delay_arg(fcinfo, p_delay, at);
    LeaseRow lease;
    JobRow job;

    ReportedError reported = {};
    if (!requeue)
        require_error(error);
    if (!take_held(tables, id, holder, lease))
        raise_not_held(tables, id, "fail", holder, at);
    note_write_to(lease.queue);
    if (!requeue)
        reported = read_error(error, lease.attempt, at);
    read_job(tables, id, lease.job_tid, job);
    if (!requeue)
        heed_pause(lease, job, reported, at);
    Status status = requeue ? release(tables, lease, delay_ms.value_or(0), at)
                            : fail_attempt(tables, job, lease, reported, delay_ms, at);
    CommandCounterIncrement(); /* the history that is read next has the new event */
    Datum answer = job_answer(tables, job, status);
    attempt_ended(answer);
    return answer;
}

OJS_CHANGE(ojs_nack, "ojs.nack()")
{
    enum { p_job_id, p_delay, p_lease_id, p_worker };
    const pg_uuid_t &id = job_id_arg(fcinfo, p_job_id);
    Holder holder = {text_or_null(fcinfo, p_worker), text_or_null(fcinfo, p_lease_id)};
    TimestampTz at = now();
    int64 delay_ms = delay_arg(fcinfo, p_delay, at).value_or(0);
    LeaseRow lease;
    JobRow job;

    if (!take_held(tables, id, holder, lease))
        raise_not_held(tables, id, "nack", holder, at);
    note_write_to(lease.queue);
    Status status = release(tables, lease, delay_ms, at);
    CommandCounterIncrement();
    read_job(tables, id, lease.job_tid, job);
    Datum answer = job_answer(tables, job, status);
    attempt_ended(answer);
    return answer;
}

OJS_CHANGE(ojs_nack_many, "ojs.nack_many()")
{
    enum { p_worker, p_ids, p_delay, p_lease_ids };
    JobBatch batch = read_job_batch(fcinfo, p_worker, p_ids, p_lease_ids, -1);
    TimestampTz at = now();
    int64 delay_ms = delay_arg(fcinfo, p_delay, at).value_or(0);
    int *order = locking_order(batch.ids);
    EndedJobs ended = ended_of(batch.ids.n);
    int n = 0;

    for (int k = 0; k < batch.ids.n; k++) {
        int i = order[k];
        LeaseRow lease;
        CHECK_FOR_INTERRUPTS();
        batch.done[i] = take_held(tables, *batch.ids.ids[i], holder_of(batch, i), lease);
        if (!batch.done[i])
            continue;
        note_write_to(lease.queue);
        Status status = release(tables, lease, delay_ms, at);
        if (ended.jobs != nullptr)
            CommandCounterIncrement(); /* the history has what was written last */
        note_ended(ended, tables, lease, status);
        n++;
    }
    attempts_ended(ended);
    return many_answer(fcinfo, n, batch, std::nullopt);
}
