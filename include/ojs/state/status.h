/*
 * status.h: where a job stands, derived from where its rows are: a `finished` row
 * says completed, cancelled or discarded; else a lease says active; else a row
 * in `delayed` says scheduled, retryable, pending or (released with a delay)
 * available; else the job is available. All by one snapshot.
 */
#pragma once

#include "ojs/job/envelope.h"
#include "ojs/queue/queue.h"
#include "ojs/store/tables.h"

namespace ojs
{

struct Holder;

/* Returns false if there is no such job. `job` points into the tables' slots. Where the hot set does not
 * answer (hot_set_answers), the logged tables alone do. */
bool read_status(Tables &tables, const pg_uuid_t &id, Snapshot snapshot, TimestampTz now, JobRow &job, Status &status);

/* The state of a job whose row of `delayed` is not yet due. */
State state_of(DelayedKind kind);

/* How a finished job reads, but for its history. */
void from_finished(const FinishedRow &row, Status &status);

/* Fills error, errors and next_attempt_at from the job's events. */
void read_history(Tables &tables, const pg_uuid_t &id, Snapshot snapshot, Status &status);

/* What must be looked up of a job that is handed out, by the flags of its hot row: its history, its checkpoint. */
void read_past(Tables &tables, const pg_uuid_t &id, int32 flags, Status &status);

/* Leaves the row of job `id` in the slot of `job`, whose tts_tid says where it is; by the location that a hot row
 * remembers. Returns false if there is none: a caller that does not have the hot row locked may come when the job has
 * ended and gone. */
bool try_find_job(Tables &tables, const pg_uuid_t &id, ItemPointerData tid);
/* Likewise, and reads it. */
bool try_read_job(Tables &tables, const pg_uuid_t &id, ItemPointerData tid, JobRow &job);
/* For upkeep and claims, which have taken the hot row: without an envelope it stood for no job. Then a WARNING says
 * that it is gone, and one broken row does not stop all others. */
bool read_taken_job(Tables &tables, const pg_uuid_t &id, ItemPointerData tid, JobRow &job);
/* For calls that name the job: NOT_FOUND if there is none. */
void read_job(Tables &tables, const pg_uuid_t &id, ItemPointerData tid, JobRow &job);

/*
 * Says why a call could not be carried out on job `id` as it stands (ERR-B, SM-21 to SM-23). An active job is in the
 * way of a call that needs its lease because the caller does not hold it, and of any other because it is active.
 */
enum class Needs { lease, open, pending };
/* `hint`: what to do about a job that is in another state than the call needs; null: a general word. */
[[noreturn]] void raise_state(Tables &tables, const pg_uuid_t &id, const char *attempted, Needs needs, TimestampTz now,
                              const char *hint = nullptr);
/* The same for a call that needs the lease; says which part of what the caller gave is not that of the lease. */
[[noreturn]] void raise_not_held(Tables &tables, const pg_uuid_t &id, const char *attempted, const Holder &holder,
                                 TimestampTz now);

/* What a call about one job answers: ojs.job, with its history where there is one. */
Datum job_answer(Tables &tables, const JobRow &job, Status &status);

/* Like job_answer(), but returns the JSON envelope. */
Jsonb *job_json(const JobRow &job, const Status &status, std::string_view queue_name);

/* The name of a queue for a row that must have one. */
std::string_view queue_name(int64 id);

} // namespace ojs
