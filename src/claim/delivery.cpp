/*
 * delivery.cpp: see delivery.h.
 */
#include "ojs/claim/delivery.h"

#include "ojs/pg/settings.h"
#include "ojs/state/lease_log.h"
#include "ojs/state/members.h"
#include "ojs/state/transitions.h"

namespace ojs
{

int64
lease_length(const Request &request, const Queue &queue, const JobRow &job)
{
    if (request.lease_ms)
        return *request.lease_ms;
    if (job.flags & job_own_lease)
        return clamp_lease(lease_ms_of(job));
    return clamp_lease(queue.lease_ms > 0 ? queue.lease_ms : settings.default_lease_ms);
}

void
mark_delivered(Tables &tables, LeaseRow &lease, TimestampTz now)
{
    if (lease.flags & (job_at_most_once | lease_durable))
        lease.flags |= job_has_history;
    if ((lease.flags & job_at_most_once) && !(lease.flags & lease_durable)) {
        HistoryRow event = {};
        event.job_id = lease.job_id;
        event.at = now;
        event.kind = HistoryKind::claimed;
        event.attempt = lease.attempt;
        event.deliveries = lease.deliveries;
        event.worker = lease.worker;
        store::insert(tables.job_history(), form(tables.job_history().rel, event));
    }
    trace(tables, lease, LeaseStep::claimed, now);
    if (lease.flags & job_at_most_once) {
        store::note_write(true);
        ForceSyncCommit();
    }
}

void
show(Tables &tables, const Request &request, const ClaimedJob &taken, const JobRow &job, Datum *values, bool *nulls)
{
    Status status = {};
    status.state = State::active;
    status.queue = taken.ready.queue;
    status.attempt = taken.lease.attempt;
    status.deliveries = taken.lease.deliveries;
    status.enqueued_at = std::max(job.created_at, job.scheduled_at.value_or(job.created_at));
    status.started_at = taken.lease.claimed_at;
    status.worker = request.worker;
    status.token = taken.lease.token;
    status.lease_expires_at = taken.lease.deadline;
    if (taken.ready.flags & (job_has_history | job_reported))
        read_past(tables, job.id, taken.ready.flags, status);
    if (taken.ready.flags & job_has_parents)
        read_parents(job.id, status);
    render(job, status, request.queues[taken.queue_position].name, true, values, nulls);
}

} // namespace ojs
