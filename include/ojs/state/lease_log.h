/*
 * lease_log.h: what the logged tables remember of a lease, in queues that ask for it: that it is held, so that it
 * survives a crash (leases_durable), and what happened to it, for those who look (lease_log). Leases of other queues
 * have neither flag, and cost a test of it.
 */
#pragma once

#include "ojs/limits/rate_limits.h"
#include "ojs/store/rows.h"
#include "ojs/store/tables.h"

namespace ojs
{

/* ojs_store.lease_log.event; names in sql/lease_log.sql. */
enum class LeaseStep : int16 {
    claimed = 1,
    extended,
    released,
    acked,
    failed,
    lapsed,
    cancelled,
    purged,
    discarded
}; /* the last two by SQL */

void write_trace(Tables &tables, const LeaseRow &lease, LeaseStep step, TimestampTz now);

/* The lease's row has just been made, changed, or taken. Leaves the slots of all tables as they are. */
inline void
trace(Tables &tables, const LeaseRow &lease, LeaseStep step, TimestampTz now)
{
    if (lease.flags & lease_flags)
        write_trace(tables, lease, step, now);
}

/* A lease that stood when the server crashed stands again, from the event that write_trace() left of it; one that has
 * run out meanwhile is left to the reaper, and so is one whose session has gone. `deadline` as that event has it. */
void restore_lease(Limits &limits, LeaseRow &lease, std::optional<TimestampTz> deadline, const Jsonb *data);

} // namespace ojs
