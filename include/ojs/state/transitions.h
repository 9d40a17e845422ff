/*
 * transitions.h: how a job gets from one state to the next. Each transition writes what
 * the logged tables must keep and the hot row of the new state; its caller has taken the
 * hot row of the old one.
 */
#pragma once

#include "ojs/job/retry_policy.h"
#include "ojs/state/status.h"

namespace ojs
{

/* Where put-back jobs line up: before those that were never delivered, in the order of their return. */
int64 returned_position();

/* A hot row's way back into `ready`; wakes its queue. */
void make_ready(Tables &tables, const HotRow &row, int64 position);
/* The opposite: a job that was ready is scheduled (SM-16). A crash forgets that, and it is put off again. */
void put_off(Tables &tables, const ReadyRow &row, TimestampTz until);

/* What a job that ends while it is held leaves behind, and how that reads. */
FinishedRow end_of(const LeaseRow &lease, State state, TimestampTz now);
Status status_of(const FinishedRow &row, int32 flags);

/* The end of a job, for what goes on with it: a workflow, the line of an ordering key. */
constexpr int32 ends_matter = job_in_workflow | job_ordered;
void follow_end(Tables &tables, const FinishedRow &row, int32 flags);

/* The end of a job. Takes its expiry row with it; `error` may be null. */
void finish(Tables &tables, const FinishedRow &row, int32 flags);
/* A finished job is a dead letter no more, or never was. */
void no_dead_letter(Tables &tables, const pg_uuid_t &id);
/* The rows of `delayed` that only say when an ended job would have expired. */
void forget_expiry(Tables &tables, const pg_uuid_t &id);

/*
 * A failed attempt, its lease already taken: by the policy a retry later (after `delay_ms`, where it is given), or the
 * end. How it came out is the answer.
 */
Status fail_attempt(Tables &tables, const JobRow &job, const LeaseRow &lease, const ReportedError &error,
                    std::optional<int64> delay_ms, TimestampTz now);

/* A lease that ran out: the job is available again at once, or at its end when its budget is spent. */
void lapse(Tables &tables, const JobRow &job, const LeaseRow &lease, const char *error_type, const char *message,
           TimestampTz now);

/* A job given back without a fault: the attempt refunded, available after `delay_ms`. */
Status release(Tables &tables, const LeaseRow &lease, int64 delay_ms, TimestampTz now);

/* What a job that ends where nobody holds it leaves behind; who ends it fills in the error. */
FinishedRow end_waiting(const HotRow &row, TimestampTz now, State state = State::discarded);

/* Ends a job whose time is over; `row` is how it stood, and the answer how it ended. */
FinishedRow expire(Tables &tables, const JobRow &job, FinishedRow row, const Expiry &expiry);

/* Like the function above, but for a job whose lease was taken, if its total_timeout is over (TMO-05). */
bool end_if_timed_out(Tables &tables, const JobRow &job, const LeaseRow &lease, TimestampTz now);

/* Ends a job that never ran, or not now. */
void discard(Tables &tables, const JobRow &job, const HotRow &row, const char *error_type, const char *message,
             TimestampTz now);

/* --- leases, as the calls that name a job see them (lease.cpp) --- */

/* What a caller says to prove that it holds a job; null parts are not checked. */
struct Holder {
    text *worker;
    text *lease_id;
};

/*
 * Takes the lease of job `id` out of the table if `holder` holds it, waiting for another transaction that has it.
 * Returns false if there is no such lease, or another holder has it.
 */
bool take_lease(Tables &tables, const pg_uuid_t &id, const Holder &holder, LeaseRow &lease);

/* A lease that this session has just stored at tid: most often it will also be the one that ends it. */
void remember_lease(const pg_uuid_t &id, const ItemPointerData &tid);

/* Like take_lease(), but leaves the row: locks it and returns its location, for extend. */
bool lock_lease(Tables &tables, const pg_uuid_t &id, const Holder &holder, LeaseRow &lease, ItemPointer tid);

/* When its worker, which has sent heartbeats for this job, counts as stalled (TMO-03); never for one that has sent
 * none. */
TimestampTz stall_at(Tables &tables, const LeaseRow &lease);

/* When upkeep will end the lease unless it hears of its worker: at its deadline, an execution timeout or a stall. */
TimestampTz lapses_at(Tables &tables, const LeaseRow &lease);

/* A new deadline for a locked lease; stays within its index entry unless the lease gets shorter. */
void extend_lease(Tables &tables, LeaseRow &lease, ItemPointer tid, int64 lease_ms, TimestampTz now, bool beat);

constexpr int64 min_lease_ms = 100;
constexpr int64 max_lease_ms = 86400000;
constexpr int max_claim = 1000;
inline int64
clamp_lease(int64 ms)
{
    return std::clamp(ms, min_lease_ms, max_lease_ms);
}

} // namespace ojs
