/*
 * transitions.cpp: see transitions.h. The table of transitions in docs/design.md names the function for each.
 */
#include "ojs/state/transitions.h"

#include "ojs/counters/job_metrics.h"
#include "ojs/pg/settings.h"
#include "ojs/limits/held_position.h"
#include "ojs/state/lease_log.h"
#include "ojs/state/members.h"
#include "ojs/state/ordering.h"
#include "ojs/shared/wakeup.h"

namespace ojs
{

namespace
{

/* Places below zero are served first; they grow with the sequence, so within their class places only grow. */

void
wake(int64 queue)
{
    wake_queue(queue, queue_name(queue), 1);
}

void
record(Tables &tables, const LeaseRow &lease, HistoryKind kind, std::optional<TimestampTz> due_at, int32 attempt,
       Jsonb *data, TimestampTz now)
{
    HistoryRow event = {};
    event.job_id = lease.job_id;
    event.at = now;
    event.due_at = due_at;
    event.kind = kind;
    event.attempt = attempt;
    event.deliveries = lease.deliveries;
    event.started_at = lease.claimed_at;
    event.worker = lease.worker;
    event.data = data;
    store::Table &table = tables.job_history();
    store::insert(table, form(table.rel, event));
}

void
put_delayed(Tables &tables, const LeaseRow &lease, DelayedKind kind, TimestampTz due_at, int32 attempt)
{
    DelayedRow row = {lease, due_at, kind};
    row.flags |= job_has_history;
    row.attempt = attempt;
    may_leave_line(tables, row);
    store::Table &table = tables.delayed();
    store::insert(table, form(table.rel, row));
}

Status
waiting(const LeaseRow &lease, State state, int32 attempt)
{
    Status status = {};
    status.state = state;
    status.queue = lease.queue;
    status.attempt = attempt;
    status.deliveries = lease.deliveries;
    status.has_history = true;
    return status;
}

} // namespace

FinishedRow
end_of(const LeaseRow &lease, State state, TimestampTz now)
{
    FinishedRow row = end_waiting(lease, now, state);
    row.started_at = lease.claimed_at;
    row.worker = lease.worker;
    return row;
}

Status
status_of(const FinishedRow &row, int32 flags)
{
    Status status = {};
    from_finished(row, status);
    status.has_history = flags & job_has_history;
    return status;
}

int64
returned_position()
{
    return returned_base + store::next_seq();
}

void
make_ready(Tables &tables, const HotRow &row, int64 position)
{
    if (row.flags & job_ordered)
        return make_ready_in_turn(tables, row, position);
    store::Table &table = tables.ready();
    store::insert(table, form(table.rel, moved_to(row, position)));
    wake(row.queue);
}

void
put_off(Tables &tables, const ReadyRow &row, TimestampTz until)
{
    DelayedRow delayed = {row, until, DelayedKind::scheduled};
    may_leave_line(tables, row);
    store::insert(tables.delayed(), form(tables.delayed().rel, delayed));
}

static void
note_dead_letter(Tables &tables, const FinishedRow &row)
{
    store::Table &table = tables.get(store::Rel::dead_letter);
    JsonbValue type;
    bool typed = row.error != nullptr && find_member(root_of(row.error), "type", type) && type.type == jbvString;
    Datum values[] = {UUIDPGetDatum(&row.job_id), Int64GetDatum(row.queue), TimestampTzGetDatum(row.finished_at),
                      typed ? PointerGetDatum(cstring_to_text_with_len(type.val.string.val, type.val.string.len)) : 0};
    bool nulls[std::size(values)] = {false, false, false, !typed};
    store::insert(table, heap_form_tuple(RelationGetDescr(table.rel), values, nulls));
}

void
no_dead_letter(Tables &tables, const pg_uuid_t &id)
{
    store::Table &table = tables.get(store::Rel::dead_letter);
    ItemPointerData tid;
    if (store::find(table, store::Idx::dead_letter_job, id, &tid) == store::Row::live)
        (void)store::take_waiting(table, &tid);
}

void
finish(Tables &tables, const FinishedRow &row, int32 flags)
{
    store::Table &table = tables.finished();
    store::insert(table, form(table.rel, row));
    count_ended(row, flags);
    if (flags & job_expires)
        forget_expiry(tables, row.job_id);
    if (row.flags & finished_dead_letter)
        note_dead_letter(tables, row);
    if (flags & ends_matter)
        follow_end(tables, row, flags);
}

void
follow_end(Tables &tables, const FinishedRow &row, int32 flags)
{
    if (flags & job_in_workflow)
        job_ended(tables, row);
    if (flags & job_ordered)
        leave_line(tables, row.job_id);
}

void
forget_expiry(Tables &tables, const pg_uuid_t &id)
{
    ScanKeyData key;
    store::Scan scan;
    store::Row seen;
    store::Table &delayed = tables.delayed();

    store::key_uuid(&key, id);
    store::begin(scan, delayed, store::Idx::delayed_job, &key, 1, false);
    while ((seen = store::next(scan)) != store::Row::none) {
        DelayedRow row;
        read(delayed.slot, row);
        if (seen == store::Row::live && row.kind == DelayedKind::expiry)
            store::take(delayed, &scan.tid);
    }
    store::end(scan);
}

Status
fail_attempt(Tables &tables, const JobRow &job, const LeaseRow &lease, const ReportedError &error,
             std::optional<int64> delay_ms, TimestampTz now)
{
    RetryPolicy policy = read_retry_policy(job.retry);
    Verdict verdict = retry_verdict(policy, error, lease.attempt);

    trace(tables, lease, LeaseStep::failed, now);
    if (lease.flags & job_at_most_once)
        verdict = Verdict::discard; /* DLV-01 */
    if (verdict == Verdict::retry) {
        int64 wait_ms = delay_ms.value_or(retry_delay_ms(policy, lease.attempt));
        TimestampTz due_at = now + wait_ms * 1000;
        std::optional<Expiry> total = total_expiry_of(job);
        if (total && due_at + job.timeout_ms.value_or(0) * 1000 > total->at) { /* RET-15 */
            record(tables, lease, HistoryKind::failed, std::nullopt, lease.attempt, error.stored, now);
            total->message = "a retry could not be done within the job's total_timeout";
            FinishedRow row = expire(tables, job, end_of(lease, State::discarded, now), *total);
            return status_of(row, job_has_history);
        }
        record(tables, lease, HistoryKind::failed, due_at, lease.attempt, error.stored, now);
        put_delayed(tables, lease, DelayedKind::retryable, due_at, lease.attempt);
        count_retried(lease, job, now);
        Status status = waiting(lease, State::retryable, lease.attempt);
        status.started_at = lease.claimed_at;
        return status;
    }
    FinishedRow row = end_of(lease, State::discarded, now);
    row.flags = verdict == Verdict::dead_letter ? finished_dead_letter : 0;
    row.error = error.stored;
    finish(tables, row, lease.flags);
    return status_of(row, job_has_history); /* so that `errors` is looked up and holds this one too */
}

void
lapse(Tables &tables, const JobRow &job, const LeaseRow &lease, const char *error_type, const char *message,
      TimestampTz now)
{
    RetryPolicy policy = read_retry_policy(job.retry);
    Jsonb *error = server_error(error_type, message, lease.attempt, now);
    const Queue *queue = find_queue(lease.queue);
    bool counts = queue == nullptr || queue->expiry_counts_attempt;
    trace(tables, lease, LeaseStep::lapsed, now);
    bool spent = counts && lease.attempt >= std::max(1, policy.max_attempts);

    if ((lease.flags & job_at_most_once) || spent) {
        FinishedRow row = end_of(lease, State::discarded, now);
        row.flags = policy.to_dead_letter && !(lease.flags & job_at_most_once) ? finished_dead_letter : 0;
        row.error = error;
        finish(tables, row, lease.flags);
        return;
    }
    LeaseRow back = lease;
    back.flags |= job_has_history;
    if (!counts)
        back.attempt = std::max(0, back.attempt - 1);
    record(tables, lease, HistoryKind::lapsed, std::nullopt, back.attempt, error, now);
    may_leave_line(tables, back);
    make_ready(tables, back, returned_position());
}

Status
release(Tables &tables, const LeaseRow &lease, int64 delay_ms, TimestampTz now)
{
    trace(tables, lease, LeaseStep::released, now);
    if (lease.flags & job_at_most_once) { /* it has been delivered, and never will be again */
        FinishedRow row = end_of(lease, State::discarded, now);
        row.error = server_error("released", "the worker gave the job back, which may be delivered only once",
                                 lease.attempt, now);
        finish(tables, row, lease.flags);
        return status_of(row, job_has_history);
    }
    LeaseRow back = lease;
    back.flags |= job_has_history;
    back.attempt = std::max(0, lease.attempt - 1);
    if (delay_ms <= 0) {
        record(tables, lease, HistoryKind::released, std::nullopt, back.attempt, nullptr, now);
        may_leave_line(tables, back);
        make_ready(tables, back, returned_position());
    } else {
        TimestampTz due_at = now + delay_ms * 1000;
        record(tables, lease, HistoryKind::released, due_at, back.attempt, nullptr, now);
        put_delayed(tables, lease, DelayedKind::released, due_at, back.attempt);
    }
    return waiting(lease, State::available, back.attempt);
}

FinishedRow
end_waiting(const HotRow &hot, TimestampTz now, State state)
{
    FinishedRow row = {};
    row.job_id = hot.job_id;
    row.finished_at = now;
    row.queue = hot.queue;
    row.attempt = hot.attempt;
    row.deliveries = hot.deliveries;
    row.state = state;
    return row;
}

FinishedRow
expire(Tables &tables, const JobRow &job, FinishedRow row, const Expiry &expiry)
{
    TimeoutFacts facts = {expiry.kind, expiry.limit_ms, (row.finished_at - job.created_at) / 1000};
    row.error = server_error(expiry.error_type, expiry.message, row.attempt, row.finished_at, facts);
    /* A total timeout is the end of all attempts, as a spent budget is. */
    bool exhausted = strcmp(expiry.error_type, "total_timeout") == 0 && !(job.flags & job_at_most_once);
    if (exhausted && read_retry_policy(job.retry).to_dead_letter)
        row.flags = finished_dead_letter;
    count_expired(job, row.queue, row.finished_at);
    finish(tables, row, job.flags);
    return row;
}

bool
end_if_timed_out(Tables &tables, const JobRow &job, const LeaseRow &lease, TimestampTz now)
{
    std::optional<Expiry> total = total_expiry_of(job);
    if (!total || total->at > now)
        return false;
    (void)expire(tables, job, end_of(lease, State::discarded, now), *total);
    return true;
}

void
discard(Tables &tables, const JobRow &job, const HotRow &hot, const char *error_type, const char *message,
        TimestampTz now)
{
    FinishedRow row = end_waiting(hot, now);
    row.error = server_error(error_type, message, hot.attempt, now);
    finish(tables, row, job.flags);
}

} // namespace ojs
