/*
 * locate.cpp: see locate.h.
 */
#include "ojs/state/locate.h"

#include "ojs/pg/json.h"
#include "ojs/queue/access.h"
#include "ojs/state/lease_log.h"
#include "ojs/state/status.h"
#include "ojs/queue/maintenance.h"
#include "ojs/shared/wakeup.h"

namespace ojs
{

/*
 * First where its push has put it: rows only move away from there, so a job that moves meanwhile is met here or at its
 * new position. One that another push updates meanwhile has moved, too, since its envelope is read before.
 */
store::Row
find_ready(Tables &tables, const pg_uuid_t &id, ItemPointer tid)
{
    JobRow job;
    ItemPointerData job_tid;
    ScanKeyData keys[3];
    if (store::find(tables.job(), store::Idx::job_id, id, &job_tid) == store::Row::none)
        return store::Row::none;
    read(tables.job().slot, job);
    ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(job.queue));
    ScanKeyInit(&keys[1], 2, BTEqualStrategyNumber, F_INT2EQ, Int16GetDatum(static_cast<int16>(-job.priority)));
    ScanKeyInit(&keys[2], 3, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(job.seq));
    store::Row seen = store::find(tables.ready(), store::Idx::ready_order, keys, 3, &id, tid);
    return seen != store::Row::none ? seen : store::find(tables.ready(), store::Idx::ready_job, id, tid);
}

Location
locate(Tables &tables, const pg_uuid_t &id)
{
    Location location = {};
    location.seen = find_ready(tables, id, &location.tid);
    if (location.seen != store::Row::none) {
        ReadyRow ready;
        read(tables.ready().slot, ready);
        location.table = &tables.ready();
        static_cast<HotRow &>(location.row) = ready;
        if (location.seen != store::Row::arriving)
            return location;
    }
    /* On its way from one to the other, it is still where it leaves: who waits, waits for that row. */
    Location other = {};
    ScanKeyData key;
    store::Scan scan;
    store::key_uuid(&key, id);
    store::begin(scan, tables.delayed(), store::Idx::delayed_job, &key, 1, false);
    while ((other.seen = store::next(scan)) != store::Row::none) {
        read(tables.delayed().slot, other.row);
        if (other.row.kind == DelayedKind::expiry || (other.seen == store::Row::arriving && location.table != nullptr))
            continue;
        other.table = &tables.delayed();
        other.tid = scan.tid;
        location = other;
        if (other.seen != store::Row::arriving)
            break;
    }
    store::end(scan);
    return location;
}

bool
read_current_status(Tables &tables, const pg_uuid_t &id, TimestampTz now, JobRow &job, Status &status)
{
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    bool exists = read_status(tables, id, snapshot, now, job, status);
    UnregisterSnapshot(snapshot);
    return exists;
}

/* Named as DUPLICATE_JOB names it. */
static Jsonb *
with_twin(Jsonb *reported, const Remark &remark)
{
    ObjectBuilder out;
    if (reported != nullptr)
        each_member(root_of(reported), [&out](std::string_view key, const JsonbValue &value) { out.add(key, value); });
    out.add("existing_job_id",
            std::string_view(DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&*remark.twin)))));
    out.add("existing_job_state", std::string_view(state_name(remark.twin_state)));
    return out.finish();
}

Datum
answer_now(Tables &tables, const pg_uuid_t &id, TimestampTz now, const Remark &remark)
{
    JobRow job;
    Status status;
    CommandCounterIncrement();
    if (!read_current_status(tables, id, now, job, status)) /* a finished job may be removed at any moment */
        raise_no_job(id);
    status.previous_state = remark.previous;
    if (remark.twin)
        status.reported = with_twin(status.reported, remark);
    return render_job(job, status, queue_name(status.queue));
}

static State
state_of(const Tables &tables, const Location &location, TimestampTz now)
{
    if (location.table == &tables.tables[static_cast<int>(store::Rel::ready)] ||
        location.row.due_at <= promoted_to(now))
        return State::available;
    return state_of(location.row.kind);
}

/* Takes a job out of the place it is in, if that place stands for one of `states`; `end` is how it will read. */
static bool
take_in(Tables &tables, const pg_uuid_t &id, int states, TimestampTz now, FinishedRow &end, int32 &flags, State &was)
{
    LeaseRow lease;
    if ((states & state_bit(State::active)) && take_lease(tables, id, {}, lease)) {
        end = end_of(lease, State::cancelled, now);
        flags = lease.flags;
        was = State::active;
        trace(tables, lease, LeaseStep::cancelled, now);
        return true;
    }
    Location location = locate(tables, id);
    if (location.table == nullptr || location.seen == store::Row::arriving)
        return false;
    was = state_of(tables, location, now);
    if (!(states & state_bit(was)))
        return false;
    end = end_waiting(location.row, now, State::cancelled);
    flags = location.row.flags;
    return store::take_waiting(*location.table, &location.tid) == store::Outcome::ok;
}

/*
 * A job that was on its way from one place to the next while we looked is found in the next round. One that never is
 * has no place: the reconcile pass will put it back.
 */
static void
next_round(int &round, const pg_uuid_t &id)
{
    CHECK_FOR_INTERRUPTS();
    if (++round > 1000)
        raise(Code::unavailable, Details().add("job_id", id), "Try again: upkeep puts such a job back.",
              "job %s could not be found where it should be",
              DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&id))));
    if (round > 10)
        pg_usleep(1000);
}

bool
cancel_in(Tables &tables, const pg_uuid_t &id, int states, TimestampTz now, State &was, int64 &queue,
          const pg_uuid_t *replaced_by)
{
    FinishedRow end;
    int32 flags;
    JobRow job;
    Status status;

    for (int round = 0; !take_in(tables, id, states, now, end, flags, was); next_round(round, id))
        if (!read_current_status(tables, id, now, job, status) || !(states & state_bit(status.state)))
            return false;
    store::note_write(true); /* also where a push that replaces it may be lost */
    queue = end.queue;
    if (replaced_by != nullptr)
        end.error = server_error(
            "replaced",
            psprintf("replaced by job %s", DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(replaced_by)))),
            end.attempt, now);
    finish(tables, end, flags);
    CommandCounterIncrement();
    return true;
}

bool
take_waiting_job(Tables &tables, const pg_uuid_t &id, int states, TimestampTz now, Location &location,
                 std::optional<int64> &position)
{
    JobRow job;
    Status status;
    for (int round = 0;; next_round(round, id)) {
        location = locate(tables, id);
        bool there = location.table != nullptr && location.seen != store::Row::arriving;
        if (there && !(states & state_bit(state_of(tables, location, now))))
            return false;
        position = std::nullopt;
        if (there && location.table == &tables.ready()) {
            ReadyRow ready;
            read(tables.ready().slot, ready);
            position = ready.position;
        }
        if (there && store::take_waiting(*location.table, &location.tid) == store::Outcome::ok)
            return true;
        if (!read_current_status(tables, id, now, job, status) || !(states & state_bit(status.state)))
            return false;
    }
}

bool
cancel_unless_busy(Tables &tables, const pg_uuid_t &id, TimestampTz now)
{
    Location location = locate(tables, id);
    if (location.table == nullptr)
        return true;
    if (location.seen != store::Row::live || store::take(*location.table, &location.tid) != store::Outcome::ok)
        return false;
    store::note_write(true);
    finish(tables, end_waiting(location.row, now, State::cancelled), location.row.flags);
    CommandCounterIncrement();
    return true;
}

bool
cancel_open(Tables &tables, const pg_uuid_t &id, TimestampTz now, JobRow &job, Status &status, bool &exists, State &was)
{
    exists = true;
    while (!cancel_in(tables, id, open_states, now, was, status.queue)) {
        exists = read_current_status(tables, id, now, job, status);
        if (!exists || terminal(status.state))
            return false;
    }
    return true;
}

void
hold_open(Tables &tables, const pg_uuid_t &id, TimestampTz now)
{
    for (int round = 0;; next_round(round, id)) {
        JobRow job;
        Status status;
        LeaseRow lease;
        ItemPointerData tid;
        if (!read_current_status(tables, id, now, job, status) || terminal(status.state) ||
            lock_lease(tables, id, {}, lease, &tid))
            return;
        Location location = locate(tables, id);
        if (location.table != nullptr && location.seen != store::Row::arriving &&
            store::lock(*location.table, &location.tid, true) == store::Outcome::ok)
            return;
    }
}

bool
hold_in(Tables &tables, const pg_uuid_t &id, int states, bool wait)
{
    for (;;) {
        CHECK_FOR_INTERRUPTS();
        Location location = {};
        auto is_in = [&](store::Table &table, store::Idx index) {
            location.seen = store::find(table, index, id, &location.tid);
            location.table = &table;
            return location.seen == store::Row::live || location.seen == store::Row::leaving;
        };
        int wanted = open_states & ~state_bit(State::active);
        if (is_in(tables.lease(), store::Idx::lease_job))
            wanted = state_bit(State::active);
        else if (is_in(tables.finished(), store::Idx::finished_job))
            wanted = ~open_states;
        else
            location = locate(tables, id);
        if (location.table == nullptr || location.seen == store::Row::arriving || !(states & wanted))
            return true;
        store::Outcome outcome = store::lock(*location.table, &location.tid, wait);
        if (outcome != store::Outcome::gone)
            return outcome == store::Outcome::ok;
    }
}

/* A row of ready or delayed is never updated: it is taken, and put in again where it was. Claims pass over it
 * meanwhile. */
static bool
flag_waiting(Tables &tables, Location &location, int32 flag)
{
    if (location.row.flags & flag)
        return store::lock(*location.table, &location.tid, true) == store::Outcome::ok;
    ReadyRow ready;
    bool is_ready = location.table == &tables.ready();
    if (is_ready)
        read(tables.ready().slot, ready);
    if (store::take_waiting(*location.table, &location.tid) != store::Outcome::ok)
        return false;
    if (is_ready) {
        ready.flags |= flag;
        store::insert(tables.ready(), form(tables.ready().rel, ready));
        wake_queue(ready.queue, queue_name(ready.queue), 1);
    } else {
        location.row.flags |= flag;
        store::insert(tables.delayed(), form(tables.delayed().rel, location.row));
    }
    return true;
}

bool
flag_open(Tables &tables, const pg_uuid_t &id, int32 flag, TimestampTz now)
{
    for (int round = 0;; next_round(round, id)) {
        JobRow job;
        Status status;
        LeaseRow lease;
        ItemPointerData tid;
        if (!read_current_status(tables, id, now, job, status))
            return false;
        check_use_of_job(status.queue, id, Right::work);
        if (terminal(status.state))
            return false;
        if (lock_lease(tables, id, {}, lease, &tid)) {
            if (!(lease.flags & flag)) {
                lease.flags |= flag;
                store::replace(tables.lease(), &tid, form(tables.lease().rel, lease));
            }
            return true;
        }
        Location location = locate(tables, id);
        if (location.table != nullptr && location.seen != store::Row::arriving && flag_waiting(tables, location, flag))
            return true;
    }
}

} // namespace ojs
