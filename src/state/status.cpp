/*
 * status.cpp: deriving a job's state, and saying so when a call does not fit it.
 */
#include "ojs/state/status.h"

#include "ojs/pg/args.h"
#include "ojs/pg/settings.h"
#include "ojs/queue/access.h"
#include "ojs/queue/maintenance.h"
#include "ojs/state/hot_set_state.h"
#include "ojs/state/reported.h"
#include "ojs/state/transitions.h"

namespace ojs
{

namespace
{

void
from_lease(const LeaseRow &row, Status &status)
{
    status.state = State::active;
    status.queue = row.queue;
    status.attempt = row.attempt;
    status.deliveries = row.deliveries;
    status.started_at = row.claimed_at;
    status.worker = row.worker;
    status.token = row.token;
    status.lease_expires_at = row.deadline;
}

/* An expired result is kept with its job, and no longer shown (RES-02). */
void
heed_result_ttl(const JobRow &job, TimestampTz now, Status &status)
{
    if (std::optional<int64> ttl_ms = result_ttl_ms_of(job)) {
        status.result_expires_at = *status.finished_at + *ttl_ms * 1000;
        if (*status.result_expires_at <= now)
            status.result = nullptr;
    }
}

/* The row of `delayed` that says where the job is, not the one that says when it expires. */
bool
read_delayed(store::Table &delayed, const pg_uuid_t &id, Snapshot snapshot, DelayedRow &row)
{
    ScanKeyData key;
    store::key_uuid(&key, id);
    Relation index = index_open(store::index_oid(store::Idx::delayed_job), AccessShareLock);
    IndexScanDesc scan = index_begin(delayed.rel, index, snapshot, 1);
    bool found = false;

    index_rescan(scan, &key, 1, nullptr, 0);
    while (!found && index_getnext_slot(scan, ForwardScanDirection, delayed.slot)) {
        read(delayed.slot, row);
        found = row.kind != DelayedKind::expiry;
    }
    index_endscan(scan);
    index_close(index, NoLock);
    return found;
}

TimestampTz
first_available(const JobRow &job)
{
    return std::max(job.created_at, job.scheduled_at.value_or(job.created_at));
}

/* When what an event tells let the job into its queue. */
TimestampTz
entry_by(const HistoryRow &event)
{
    return std::max(event.at, event.due_at.value_or(event.at));
}

/* What push alone decided: pending, scheduled, or available since then. */
void
from_envelope(const JobRow &job, TimestampTz now, Status &status)
{
    if (job.flags & job_pending)
        status.state = State::pending;
    else if (job.scheduled_at && *job.scheduled_at > now)
        status.state = State::scheduled;
    else {
        status.state = State::available;
        status.enqueued_at = first_available(job);
    }
}

void
append(JsonbParseState **array, Jsonb *value)
{
    JsonbValue element;
    element.type = jbvBinary;
    element.val.binary.data = &value->root;
    element.val.binary.len = VARSIZE(value) - VARHDRSZ;
    pushJsonbValue(array, WJB_ELEM, &element);
}

const char *
uuid_text(const pg_uuid_t &id)
{
    return DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&id)));
}

constexpr int errors_kept = 25;           /* */
constexpr Size errors_bytes = 512 * 1024; /* as many of the newest as fit */

/* A value as it lies in its row, without reading what is stored outside of it. */
Jsonb *
stored_form(const Jsonb *value)
{
    return static_cast<Jsonb *>(memcpy(palloc(VARSIZE_ANY(value)), value, VARSIZE_ANY(value)));
}

Size
size_of(const Jsonb *value)
{
    return toast_raw_datum_size(PointerGetDatum(value));
}

/* An event whose data is an error; a revival keeps the one that had ended the job. */
bool
is_failure(const HistoryRow &event)
{
    bool may_fail =
        event.kind == HistoryKind::failed || event.kind == HistoryKind::lapsed || event.kind == HistoryKind::revived;
    return may_fail && event.data != nullptr;
}

} // namespace

State
state_of(DelayedKind kind)
{
    switch (kind) {
    case DelayedKind::scheduled:
        return State::scheduled;
    case DelayedKind::retryable:
        return State::retryable;
    case DelayedKind::pending:
        return State::pending;
    default:
        return State::available;
    }
}

void
from_finished(const FinishedRow &row, Status &status)
{
    status.state = row.state;
    status.queue = row.queue;
    status.attempt = row.attempt;
    status.deliveries = row.deliveries;
    status.started_at = row.started_at;
    status.finished_at = row.finished_at;
    status.result = row.result;
    status.error = row.error;
}

std::string_view
queue_name(int64 id)
{
    const Queue *queue = find_queue(id);
    return queue != nullptr ? std::string_view(queue->name) : std::string_view();
}

void
read_history(Tables &tables, const pg_uuid_t &id, Snapshot snapshot, Status &status)
{
    store::Table &events = tables.job_history();
    ScanKeyData key;
    store::key_uuid(&key, id);
    Relation index = index_open(store::index_oid(store::Idx::job_history_job), AccessShareLock);
    IndexScanDesc scan = index_begin(events.rel, index, snapshot, 1);
    bool hot = hot_set_answers(snapshot);
    int n = 0;
    int room = 16;
    auto *rows = static_cast<HistoryRow *>(palloc(sizeof(HistoryRow) * room));

    index_rescan(scan, &key, 1, nullptr, 0);
    while (index_getnext_slot(scan, ForwardScanDirection, events.slot)) {
        if (n == room)
            rows = static_cast<HistoryRow *>(repalloc(rows, sizeof(HistoryRow) * (room *= 2)));
        read(events.slot, rows[n]);
        if (rows[n].data != nullptr)
            rows[n].data = stored_form(rows[n].data);
        n++;
    }
    index_endscan(scan);
    index_close(index, NoLock);
    /* A job's events follow one another by deliveries: who delivers it may have looked at the clock before whoever gave
     * it back. Within one, what says that it is held comes before how that ended; then they go by time. */
    std::sort(rows, rows + n, [](const HistoryRow &a, const HistoryRow &b) {
        auto held = [](const HistoryRow &row) {
            return row.kind == HistoryKind::claimed || row.kind == HistoryKind::leased;
        };
        if (a.deliveries != b.deliveries)
            return a.deliveries < b.deliveries;
        return held(a) != held(b) ? held(a) : a.at < b.at;
    });

    const HistoryRow *last = nullptr;
    int failures = 0;
    for (int i = 0; i < n; i++) {
        failures += is_failure(rows[i]);
        if (rows[i].kind == HistoryKind::activated)
            status.activated_at = rows[i].at;
        bool lease = rows[i].kind == HistoryKind::leased && hot; /* the hot row says it */
        if (rows[i].kind != HistoryKind::claimed && !lease)
            last = &rows[i];
        if (status.finished_at && rows[i].kind != HistoryKind::claimed && rows[i].kind != HistoryKind::leased) {
            TimestampTz entry = entry_by(rows[i]);
            if (entry <= *status.finished_at)
                status.enqueued_at = entry;
        }
    }
    status.has_history = n > 0;
    /* The newest errors; a finished job's last one is in its `finished` row. */
    bool done_error = status.state == State::discarded && status.error != nullptr;
    if (failures > 0 || done_error) {
        JsonbParseState *array = nullptr;
        int first = n;
        int shown = done_error;
        Size bytes_left = errors_bytes;
        for (int i = n - 1; i >= 0 && shown < errors_kept; i--) {
            if (!is_failure(rows[i]))
                continue;
            Size size = size_of(rows[i].data);
            if (size > bytes_left)
                break;
            bytes_left -= size;
            shown++;
            first = i;
        }
        pushJsonbValue(&array, WJB_BEGIN_ARRAY, nullptr);
        for (int i = first; i < n; i++) {
            if (!is_failure(rows[i]))
                continue;
            rows[i].data = DatumGetJsonbP(PointerGetDatum(rows[i].data));
            append(&array, rows[i].data);
            if (status.state != State::completed && !done_error)
                status.error = rows[i].data;
        }
        if (done_error)
            append(&array, status.error);
        status.errors = JsonbValueToJsonb(pushJsonbValue(&array, WJB_END_ARRAY, nullptr));
    }
    if (last == nullptr)
        return;
    if (last->kind == HistoryKind::revived && status.state != State::discarded)
        status.error = nullptr; /* */
    if (!hot && !terminal(status.state)) {
        /* No hot row says it: the last event does. */
        bool waits = last->due_at && *last->due_at > promoted_to(now());
        status.state = !waits                                 ? State::available
                       : last->kind == HistoryKind::leased    ? State::active
                       : last->kind == HistoryKind::failed    ? State::retryable
                       : last->kind == HistoryKind::activated ? State::scheduled
                                                              : State::available;
        status.attempt = last->attempt;
        status.deliveries = last->deliveries;
    }
    if (last->kind == HistoryKind::leased) {
        if (status.state == State::active) {
            status.started_at = last->started_at;
            status.worker = last->worker;
            status.lease_expires_at = *last->due_at;
        }
        return;
    }
    if (status.state == State::retryable && last->due_at) {
        status.next_attempt_at = last->due_at;
        status.started_at = last->started_at;
    }
    if ((status.state == State::retryable || status.state == State::active) && last->kind == HistoryKind::failed &&
        last->due_at)
        status.retry_delay_ms = (*last->due_at - last->at) / 1000; /* RET-13 */
    if (status.state == State::available) {
        status.attempt = last->attempt;
        status.deliveries = last->deliveries;
    }
    if (status.state == State::available || status.state == State::active)
        status.enqueued_at = entry_by(*last);
}

void
read_past(Tables &tables, const pg_uuid_t &id, int32 flags, Status &status)
{
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    if (flags & job_has_history)
        read_history(tables, id, snapshot, status);
    if (flags & job_reported)
        read_checkpoint(tables, id, snapshot, status);
    UnregisterSnapshot(snapshot);
}

bool
read_status(Tables &tables, const pg_uuid_t &id, Snapshot snapshot, TimestampTz now, JobRow &job, Status &status)
{
    status = {};
    if (!store::read(tables.job(), store::Idx::job_id, id, snapshot))
        return false;
    read(tables.job().slot, job);
    status.queue = job.queue;
    from_envelope(job, promoted_to(now), status);

    if (store::read(tables.finished(), store::Idx::finished_job, id, snapshot)) {
        FinishedRow row;
        read(tables.finished().slot, row);
        from_finished(row, status);
        if (status.result != nullptr)
            heed_result_ttl(job, now, status);
        /* what ended before its time had come, or before it was activated, never was in its queue. */
        status.enqueued_at = std::nullopt;
        if (!(job.flags & job_pending) && first_available(job) <= row.finished_at)
            status.enqueued_at = first_available(job);
    } else if (hot_set_answers(snapshot)) {
        DelayedRow delayed;
        if (store::read(tables.lease(), store::Idx::lease_job, id, snapshot)) {
            LeaseRow row;
            read(tables.lease().slot, row);
            from_lease(row, status);
        } else if (read_delayed(tables.delayed(), id, snapshot, delayed)) {
            bool due = delayed.due_at <= promoted_to(now);
            status.state = due ? State::available : state_of(delayed.kind);
            status.queue = delayed.queue;
            status.attempt = delayed.attempt;
            status.deliveries = delayed.deliveries;
            if (status.state == State::available)
                status.enqueued_at = std::max(job.created_at, due ? delayed.due_at : job.created_at);
            else if (status.state != State::available)
                status.enqueued_at = std::nullopt;
        } else if (status.state != State::available) {
            /* pushed pending or for later, and neither of these any more: it has been let go */
            status.state = State::available;
            status.enqueued_at = first_available(job);
        }
    }
    read_history(tables, id, snapshot, status);
    if (status.deliveries > 0)
        read_progress(tables, id, snapshot, status);
    return true;
}

bool
try_find_job(Tables &tables, const pg_uuid_t &id, ItemPointerData tid)
{
    store::Table &table = tables.job();
    bool null;
    if (store::read_at(table, &tid) && memcmp(DatumGetUUIDP(slot_getattr(table.slot, 1, &null)), &id, sizeof id) == 0)
        return true;
    /* The envelope has moved since (VACUUM FULL, CLUSTER, a rewrite by an administrator). */
    return store::find(table, store::Idx::job_id, id, &tid) != store::Row::none;
}

bool
try_read_job(Tables &tables, const pg_uuid_t &id, ItemPointerData tid, JobRow &job)
{
    bool found = try_find_job(tables, id, tid);
    if (found)
        read(tables.job().slot, job);
    return found;
}

bool
read_taken_job(Tables &tables, const pg_uuid_t &id, ItemPointerData tid, JobRow &job)
{
    bool found = try_read_job(tables, id, tid, job);
    if (!found)
        ereport(WARNING, (errmsg("ojs has dropped job %s, which has no envelope", uuid_text(id)),
                          errdetail("Its row in ojs_store.job was removed, but not by ojs.")));
    return found;
}

void
read_job(Tables &tables, const pg_uuid_t &id, ItemPointerData tid, JobRow &job)
{
    if (!try_read_job(tables, id, tid, job))
        raise_no_job(id);
}

namespace
{

/* An active job is held, and not by the caller: why not. */
[[noreturn]] void
raise_held(const char *job, const char *attempted, const Details &details, const Status &status, const Holder *holder)
{
    constexpr Code code = Code::lease_not_held;
    int64 token;
    if (holder != nullptr && holder->worker != nullptr && view(holder->worker) != view(status.worker))
        raise(
            code, details,
            "Give the name that claimed it. If that was this worker, its lease ran out or was given back: stop working "
            "on the job.",
            "cannot %s job %s: worker \"%s\" does not hold it, \"%s\" does", attempted, job,
            clipped(view(holder->worker)), clipped(view(status.worker)));
    if (holder != nullptr && holder->lease_id != nullptr && !parse_lease_id(holder->lease_id, &token))
        raise(code, details, "Give the lease_id that the claim returned.",
              "cannot %s job %s: \"%s\" is no lease_id of a claim", attempted, job, clipped(view(holder->lease_id)));
    if (holder != nullptr && holder->lease_id != nullptr && token != status.token)
        raise(code, details,
              "Give the lease_id that the claim returned. If it is that, its lease ran out or was given back: stop "
              "working on the job.",
              "cannot %s job %s: the lease_id given is not that of the delivery that holds it (worker \"%s\")",
              attempted, job, clipped(view(status.worker)));
    raise(code, details,
          "Its lease ran out or was given back, and another delivery holds the job now: stop working on it.",
          "cannot %s job %s: the lease is not held", attempted, job);
}

[[noreturn]] void
raise_in_state(Tables &tables, const pg_uuid_t &id, const char *attempted, Needs needs, TimestampTz now,
               const Holder *holder, const char *hint)
{
    JobRow job;
    Status status;
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    bool exists = read_status(tables, id, snapshot, now, job, status);
    UnregisterSnapshot(snapshot);
    if (!exists)
        raise_no_job(id);
    if (!may_know_state(status.queue))
        check_use_of_job(status.queue, id, Right::read);

    const char *name = uuid_text(id);
    const char *state = state_name(status.state);
    Details details = Details().add("job_id", id).add("current_state", state).add("attempted", attempted);
    State fault = needs == Needs::pending || (status.state == State::active && needs != Needs::lease) ? State::available
                                                                                                      : status.state;
    switch (fault) {
    case State::completed:
        raise(Code::job_already_completed, details, hint != nullptr ? hint : "A completed job never changes.",
              "cannot %s job %s: it is completed", attempted, name);
    case State::cancelled:
        raise(Code::job_already_cancelled, details,
              hint != nullptr         ? hint
              : needs == Needs::lease ? "A cancelled job never changes; stop working on it."
                                      : "A cancelled job never changes.",
              "cannot %s job %s: it is cancelled", attempted, name);
    case State::active:
        raise_held(name, attempted, details, status, holder);
    default:
        raise(Code::invalid_state_transition, details,
              hint != nullptr ? hint : "Look at the job's state with ojs.info(job_id).", "cannot %s job %s: it is %s",
              attempted, name, state);
    }
}

} // namespace

void
raise_state(Tables &tables, const pg_uuid_t &id, const char *attempted, Needs needs, TimestampTz now, const char *hint)
{
    raise_in_state(tables, id, attempted, needs, now, nullptr, hint);
}

void
raise_not_held(Tables &tables, const pg_uuid_t &id, const char *attempted, const Holder &holder, TimestampTz now)
{
    raise_in_state(tables, id, attempted, Needs::lease, now, &holder, nullptr);
}

Jsonb *
job_json(const JobRow &job, const Status &status, std::string_view queue_name)
{
    Datum values[claimed_columns];
    bool nulls[claimed_columns];
    bool held = status.state == State::active;
    render(job, status, queue_name, held, values, nulls);
    return envelope_json(values, nulls, held);
}

Datum
job_answer(Tables &tables, const JobRow &job, Status &status)
{
    if (status.state != State::retryable)
        status.enqueued_at = first_available(job);
    if (status.has_history) {
        Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
        read_history(tables, job.id, snapshot, status);
        UnregisterSnapshot(snapshot);
    }
    return render_job(job, status, queue_name(status.queue));
}

} // namespace ojs
