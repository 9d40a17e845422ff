/*
 * control.cpp: ojs.cancel, ojs.activate: what a producer may still do about its job.
 */
#include "ojs/args.h"
#include "ojs/guard.h"
#include "ojs/guc.h"
#include "ojs/moves.h"
#include "ojs/wake.h"
#include "ojs/worker.h"

using namespace ojs;

namespace
{

/* A hot row in whatever place, as far as the job's end needs it. */
struct Where {
    int64 queue;
    int32 flags, attempt, deliveries;
    std::optional<TimestampTz> started_at;
};

template <typename Row>
Where
where_of(const Row &row)
{
    return {row.queue, row.flags, row.attempt, row.deliveries, std::nullopt};
}

/* The row of `later` that holds the job, not its expiry. */
store::Row
find_later(Tables &tables, const pg_uuid_t &id, LaterRow &row, ItemPointer tid)
{
    ScanKeyData key;
    store::Scan scan;
    store::Row seen;
    store::key_uuid(&key, id);
    store::begin(scan, tables.later(), store::Idx::later_job, &key, 1, false);
    while ((seen = store::next(scan)) != store::Row::none) {
        read(tables.later().slot, row);
        if (row.kind != LaterKind::expiry)
            break;
    }
    *tid = scan.tid;
    store::end(scan);
    return seen;
}

bool
committed(store::Row seen)
{
    return seen == store::Row::live || seen == store::Row::leaving;
}

/* Takes an open job out of the place it is in, waiting for a transaction that is moving it. */
bool
take_anywhere(Tables &tables, const pg_uuid_t &id, Where &where)
{
    ItemPointerData tid;
    LeaseRow lease;
    ReadyRow ready;
    LaterRow later;

    if (take_lease(tables, id, {}, lease)) {
        where = where_of(lease);
        where.started_at = lease.claimed_at;
        return true;
    }
    if (committed(store::find(tables.ready(), store::Idx::ready_job, id, &tid))) {
        read(tables.ready().slot, ready);
        where = where_of(ready);
        return store::take_waiting(tables.ready(), &tid) == store::Outcome::ok;
    }
    if (committed(find_later(tables, id, later, &tid))) {
        where = where_of(later);
        return store::take_waiting(tables.later(), &tid) == store::Outcome::ok;
    }
    return false;
}

/* Where the job stands now, by the newest snapshot; false: nowhere. */
bool
stand_now(Tables &tables, const pg_uuid_t &id, TimestampTz at, JobRow &job, Standing &standing)
{
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    bool exists = stand(tables, id, snapshot, at, job, standing);
    UnregisterSnapshot(snapshot);
    return exists;
}

} // namespace

OJS_FUNCTION(ojs_cancel)
{
    store::begin_write("ojs.cancel()");
    ensure_hot_set();
    const pg_uuid_t &id = job_id_arg(fcinfo, 0);
    bool idempotent = !PG_ARGISNULL(1) && PG_GETARG_BOOL(1);
    TimestampTz at = now();
    Tables tables;
    JobRow job;
    Standing standing;
    Where where;

    /* A job that is on its way from one place to the next while we look is found in the next round. */
    while (!take_anywhere(tables, id, where)) {
        CHECK_FOR_INTERRUPTS();
        bool exists = stand_now(tables, id, at, job, standing);
        if (exists && !terminal(standing.state))
            continue;
        if (!exists || !idempotent)
            raise_state(tables, id, "cancel", Needs::open, at);
        Datum unchanged = render_job(job, standing, queue_name(standing.queue));
        tables.close();
        return unchanged;
    }
    DoneRow row = {};
    row.job_id = id;
    row.finished_at = at;
    row.queue = where.queue;
    row.attempt = where.attempt;
    row.deliveries = where.deliveries;
    row.started_at = where.started_at;
    row.state = State::cancelled;
    finish(tables, row, where.flags);
    CommandCounterIncrement();
    stand_now(tables, id, at, job, standing);
    Datum answer = render_job(job, standing, queue_name(standing.queue));
    tables.close();
    store::end_write();
    return answer;
}

OJS_FUNCTION(ojs_activate)
{
    store::begin_write("ojs.activate()");
    ensure_hot_set();
    const pg_uuid_t &id = job_id_arg(fcinfo, 0);
    TimestampTz at = now();
    Tables tables;
    ItemPointerData tid;
    LaterRow row;
    JobRow job;
    Standing standing;

    for (;;) {
        bool pending = committed(find_later(tables, id, row, &tid)) && row.kind == LaterKind::pending;
        if (!pending)
            raise_state(tables, id, "activate", Needs::pending, at);
        if (store::take_waiting(tables.later(), &tid) == store::Outcome::ok)
            break;
        CHECK_FOR_INTERRUPTS();
    }
    read_job(tables, id, row.job_tid, job);
    bool scheduled = job.scheduled_at && *job.scheduled_at > at;

    EventRow event = {};
    event.job_id = id;
    event.at = at;
    event.due_at = scheduled ? job.scheduled_at : std::nullopt;
    event.kind = EventKind::activated;
    event.attempt = row.attempt;
    event.deliveries = row.deliveries;
    store::insert(tables.event(), form(tables.event().rel, event));
    row.flags |= job_has_events;
    if (scheduled) {
        row.kind = LaterKind::scheduled;
        row.due_at = *job.scheduled_at;
        store::insert(tables.later(), form(tables.later().rel, row));
    } else
        make_ready(tables, row, store::next_seq());
    CommandCounterIncrement();
    stand_now(tables, id, at, job, standing);
    Datum answer = render_job(job, standing, queue_name(standing.queue));
    tables.close();
    store::end_write();
    return answer;
}
