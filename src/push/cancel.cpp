/*
 * cancel.cpp: ojs.cancel, ojs.activate: what a producer may still do about its job.
 */
#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/queue/access.h"
#include "ojs/state/locate.h"
#include "ojs/hot_set/hot_set.h"

using namespace ojs;

OJS_CHANGE(ojs_cancel, "ojs.cancel()")
{
    const pg_uuid_t &id = job_id_arg(fcinfo, 0);
    bool idempotent = !PG_ARGISNULL(1) && PG_GETARG_BOOL(1);
    TimestampTz at = now();
    JobRow job;
    Status status;
    State was;
    bool exists;

    bool cancelled = cancel_open(tables, id, at, job, status, exists, was);
    if (exists)
        check_use_of_job(status.queue, id, Right::cancel);
    if (!cancelled && (!exists || !idempotent))
        raise_state(tables, id, "cancel", Needs::open, at,
                    "The job has ended. ojs.cancel(job_id, idempotent => true) accepts that.");
    return answer_now(tables, id, at, {cancelled ? std::optional(was) : std::nullopt, std::nullopt, {}});
}

/* ojs_store.cancel_in(job_id uuid, states int) returns boolean: false where the job is in none of these states */
OJS_CHANGE(ojs_cancel_in, "ojs.cancel_many()")
{
    State was;
    int64 queue;
    bool cancelled = cancel_in(tables, *PG_GETARG_UUID_P(0), PG_GETARG_INT32(1) & open_states, now(), was, queue);
    PG_RETURN_BOOL(cancelled);
}

/* ojs_store.hold(job_id uuid, states int, wait boolean) returns boolean: false where another transaction has locked the
 * job */
OJS_CHANGE(ojs_hold, "ojs_store.hold()")
{
    bool held = hold_in(tables, *PG_GETARG_UUID_P(0), PG_GETARG_INT32(1), PG_GETARG_BOOL(2));
    PG_RETURN_BOOL(held);
}

OJS_CHANGE(ojs_activate, "ojs.activate()")
{
    const pg_uuid_t &id = job_id_arg(fcinfo, 0);
    TimestampTz at = now();
    JobRow job;
    Status status;
    Location location;

    if (read_current_status(tables, id, at, job, status))
        check_use_of_job(status.queue, id, Right::produce);
    for (;;) {
        location = locate(tables, id);
        if (location.table != &tables.delayed() || location.row.kind != DelayedKind::pending ||
            location.seen == store::Row::arriving)
            raise_state(tables, id, "activate", Needs::pending, at, "Only pending jobs can be activated.");
        if (store::take_waiting(tables.delayed(), &location.tid) == store::Outcome::ok)
            break;
        CHECK_FOR_INTERRUPTS();
    }
    DelayedRow &row = location.row;
    read_job(tables, id, row.job_tid, job);
    bool scheduled = job.scheduled_at && *job.scheduled_at > at;

    HistoryRow event = {};
    event.job_id = id;
    event.at = at;
    event.due_at = scheduled ? job.scheduled_at : std::nullopt;
    event.kind = HistoryKind::activated;
    event.attempt = row.attempt;
    event.deliveries = row.deliveries;
    store::insert(tables.job_history(), form(tables.job_history().rel, event));
    row.flags |= job_has_history;
    if (scheduled) {
        row.kind = DelayedKind::scheduled;
        row.due_at = *job.scheduled_at;
        store::insert(tables.delayed(), form(tables.delayed().rel, row));
    } else
        make_ready(tables, row, store::next_seq());
    return answer_now(tables, id, at);
}
