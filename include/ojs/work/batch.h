/*
 * batch.h: finishing jobs that one holds: what ack, ack_many and ack_and_claim have in common.
 */
#pragma once

#include "ojs/pg/args.h"
#include "ojs/job/hooks.h"
#include "ojs/state/transitions.h"

namespace ojs
{

/* A batch of jobs as a worker names them; lease_ids and results are empty or as long as ids. */
struct JobBatch {
    Ids ids;
    Texts lease_ids;
    Jsons results;
    text *worker; /* or null, where a single job is named */
    bool *done;   /* which of them the call found held, and has handled */
};

/* Reads and checks the parameters; `results_at` < 0: the call has none. */
JobBatch read_job_batch(FunctionCallInfo fcinfo, int worker_at, int ids_at, int lease_ids_at, int results_at);

/* Positions of the ids in the order in which their rows are locked. */
int *locking_order(const Ids &ids);

/*
 * The jobs whose attempt a call ends, for the after_execute hooks and its answer; nothing is noted where nobody asks.
 */
struct EndedJobs {
    Hooks hooks;
    Datum *jobs; /* of type ojs.job; null: nobody asks */
    int n;
};
static_assert(std::is_trivially_destructible_v<EndedJobs>);

EndedJobs ended_of(int most, bool for_answer = false);
void note_ended(EndedJobs &ended, Tables &tables, const LeaseRow &lease, Status status);
/* Run the hooks, once all that the call writes is written. */
void attempts_ended(const EndedJobs &ended);
void attempt_ended(Datum job);

/* Completes the named jobs that the worker holds, and returns their number. Strict: raises for the first it does not
 * hold. */
int complete(Tables &tables, const JobBatch &batch, bool strict, TimestampTz now, EndedJobs &ended);

inline Holder
holder_of(const JobBatch &batch, int i)
{
    return {batch.worker, batch.lease_ids.n > 0 ? batch.lease_ids.texts[i] : nullptr};
}

/* (done, skipped in request order[, deadline]) */
Datum many_answer(FunctionCallInfo fcinfo, int n, const JobBatch &batch, std::optional<TimestampTz> deadline);

/* A result that is too large is refused, while the job is still held (RES-01). */
void check_result(const Jsonb *result);
/* What is stored of it: nothing, where the job's result_ttl is 0. */
Jsonb *result_to_keep(Tables &tables, const LeaseRow &lease, Jsonb *result);

/*
 * Like take_lease() and lock_lease(), but for a caller who says that it holds the job: raises if it must name the
 * lease (ojs.require_lease_id) and does not, or may not work on the job's queue.
 */
bool take_held(Tables &tables, const pg_uuid_t &id, const Holder &holder, LeaseRow &lease);
bool lock_held(Tables &tables, const pg_uuid_t &id, const Holder &holder, LeaseRow &lease, ItemPointer tid);
void require_lease_id(const Holder &holder);

} // namespace ojs
