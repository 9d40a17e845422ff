/*
 * place.cpp: see place.h.
 */
#include "ojs/place.h"

namespace ojs
{

Place
locate(Tables &tables, const pg_uuid_t &id)
{
    Place place = {};
    place.seen = store::find(tables.ready(), store::Idx::ready_job, id, &place.tid);
    if (place.seen != store::Row::none) {
        ReadyRow ready;
        read(tables.ready().slot, ready);
        place.table = &tables.ready();
        place.row.job_id = ready.job_id;
        place.row.queue = ready.queue;
        place.row.job_tid = ready.job_tid;
        place.row.npriority = ready.npriority;
        place.row.flags = ready.flags;
        place.row.attempt = ready.attempt;
        place.row.deliveries = ready.deliveries;
        if (place.seen != store::Row::arriving)
            return place;
    }
    /* On its way from one to the other, it is still where it leaves: who waits, waits for that row. */
    Place other = {};
    ScanKeyData key;
    store::Scan scan;
    store::key_uuid(&key, id);
    store::begin(scan, tables.later(), store::Idx::later_job, &key, 1, false);
    while ((other.seen = store::next(scan)) != store::Row::none) {
        read(tables.later().slot, other.row);
        if (other.row.kind == LaterKind::expiry || (other.seen == store::Row::arriving && place.table != nullptr))
            continue;
        other.table = &tables.later();
        other.tid = scan.tid;
        place = other;
        if (other.seen != store::Row::arriving)
            break;
    }
    store::end(scan);
    return place;
}

bool
stand_now(Tables &tables, const pg_uuid_t &id, TimestampTz now, JobRow &job, Standing &standing)
{
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    bool exists = stand(tables, id, snapshot, now, job, standing);
    UnregisterSnapshot(snapshot);
    return exists;
}

/* Takes an open job out of the place it is in; `end` is how it will read. */
static bool
take_open(Tables &tables, const pg_uuid_t &id, TimestampTz now, DoneRow &end, int32 &flags)
{
    LeaseRow lease;
    if (take_lease(tables, id, {}, lease)) {
        end = end_of(lease, State::cancelled, now);
        flags = lease.flags;
        return true;
    }
    Place place = locate(tables, id);
    if (place.table == nullptr || place.seen == store::Row::arriving)
        return false;
    end = {};
    end.job_id = id;
    end.finished_at = now;
    end.queue = place.row.queue;
    end.attempt = place.row.attempt;
    end.deliveries = place.row.deliveries;
    end.state = State::cancelled;
    flags = place.row.flags;
    return store::take_waiting(*place.table, &place.tid) == store::Outcome::ok;
}

bool
cancel_open(Tables &tables, const pg_uuid_t &id, TimestampTz now, JobRow &job, Standing &standing, bool &exists)
{
    DoneRow end;
    int32 flags;

    /* A job that is on its way from one place to the next while we look is found in the next round. */
    while (!take_open(tables, id, now, end, flags)) {
        CHECK_FOR_INTERRUPTS();
        exists = stand_now(tables, id, now, job, standing);
        if (!exists || terminal(standing.state))
            return false;
    }
    exists = true;
    finish(tables, end, flags);
    CommandCounterIncrement();
    return true;
}

} // namespace ojs
