/*
 * lease.cpp: fencing. Whoever names a job gets at its lease only while it holds it: the worker and the lease id
 * are compared where they are given, and a lease past its deadline still counts until somebody
 * has taken the job back.
 */
#include "ojs/limits/slots.h"
#include "ojs/state/transitions.h"

#include "ojs/pg/settings.h"
#include "ojs/queue/tenant.h"
#include "ojs/state/lease_log.h"

namespace ojs
{

namespace
{

bool
same_text(const text *a, const text *b)
{
    return VARSIZE_ANY_EXHDR(a) == VARSIZE_ANY_EXHDR(b) &&
           memcmp(VARDATA_ANY(a), VARDATA_ANY(b), VARSIZE_ANY_EXHDR(a)) == 0;
}

bool
held_by(const LeaseRow &lease, const Holder &holder)
{
    if (holder.worker != nullptr && !same_text(holder.worker, lease.worker))
        return false;
    if (has_tenants() && (holder.worker != nullptr || holder.lease_id != nullptr) && is_foreign(lease.queue))
        return false;
    int64 token;
    return holder.lease_id == nullptr || (parse_lease_id(holder.lease_id, &token) && token == lease.token);
}

/*
 * Where this session has stored leases of late, by a part of the job's id. Only a hint: the row there may be another by
 * now, or none.
 */
struct Stored {
    pg_uuid_t id;
    ItemPointerData tid;
};
Stored stored[1024];

Stored &
stored_for(const pg_uuid_t &id)
{
    return stored[(id.data[14] << 8 | id.data[15]) % lengthof(stored)];
}

store::Row
find_lease(store::Table &table, const pg_uuid_t &id, ItemPointer tid)
{
    const Stored &last = stored_for(id);
    if (memcmp(&last.id, &id, sizeof id) == 0) {
        *tid = last.tid;
        if (store::find_at(table, id, tid))
            return store::Row::live;
    }
    return store::find(table, store::Idx::lease_job, id, tid);
}

/*
 * Finds the lease and locks it. Between the look and the lock another call may extend the lease, which moves its row,
 * or end it: then look again.
 */
bool
reach(Tables &tables, const pg_uuid_t &id, const Holder &holder, LeaseRow &lease, ItemPointer tid, bool take)
{
    store::Table &table = tables.lease();

    for (;;) {
        store::Row seen = find_lease(table, id, tid);
        if (seen == store::Row::none || seen == store::Row::arriving)
            return false;
        read(table.slot, lease);
        if (!held_by(lease, holder))
            return false;
        store::Outcome outcome = take ? store::take_waiting(table, tid) : store::lock(table, tid, true);
        if (outcome == store::Outcome::ok)
            return true;
    }
}

} // namespace

void
remember_lease(const pg_uuid_t &id, const ItemPointerData &tid)
{
    stored_for(id) = {id, tid};
}

bool
take_lease(Tables &tables, const pg_uuid_t &id, const Holder &holder, LeaseRow &lease)
{
    ItemPointerData tid;
    if (!reach(tables, id, holder, lease, &tid, true))
        return false;
    free_slots(tables, lease);
    return true;
}

bool
lock_lease(Tables &tables, const pg_uuid_t &id, const Holder &holder, LeaseRow &lease, ItemPointer tid)
{
    return reach(tables, id, holder, lease, tid, false);
}

TimestampTz
stall_at(Tables &tables, const LeaseRow &lease)
{
    if (!lease.beat_at)
        return DT_NOEND;
    int64 limit_ms = default_heartbeat_timeout_ms;
    if (lease.flags & job_timeouts) {
        JobRow job;
        if (try_read_job(tables, lease.job_id, lease.job_tid, job))
            limit_ms = heartbeat_timeout_ms_of(job);
    }
    return *lease.beat_at + limit_ms * 1000;
}

TimestampTz
lapses_at(Tables &tables, const LeaseRow &lease)
{
    return std::min({lease.deadline, lease.stop_at, stall_at(tables, lease)});
}

void
extend_lease(Tables &tables, LeaseRow &lease, ItemPointer tid, int64 lease_ms, TimestampTz now, bool beat)
{
    store::Table &table = tables.lease();
    lease.deadline = now + lease_ms * 1000;
    if (beat)
        lease.beat_at = now;
    lease.reap_at = std::min({lease.reap_at, lease.deadline, stall_at(tables, lease)});
    store::replace(table, tid, form(table.rel, lease));
    trace(tables, lease, LeaseStep::extended, now);
}

} // namespace ojs
