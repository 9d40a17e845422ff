/*
 * locate.h: finding an open job by its id, wherever it is.
 */
#pragma once

#include "ojs/state/transitions.h"

namespace ojs
{

/* A job that nobody holds: its row in ready, or the one in delayed that is not a reminder of its expiry. */
struct Location {
    store::Table *table; /* null: it is in neither */
    ItemPointerData tid;
    store::Row seen; /* live, arriving or leaving */
    DelayedRow row;  /* kind only where it is in delayed */
};

Location locate(Tables &tables, const pg_uuid_t &id);

/* The row of a job that can be claimed, in the slot of `ready`; none if it is not there. */
store::Row find_ready(Tables &tables, const pg_uuid_t &id, ItemPointer tid);

constexpr int
state_bit(State state)
{
    return 1 << static_cast<int>(state);
}
constexpr int open_states = state_bit(State::scheduled) | state_bit(State::available) | state_bit(State::pending) |
                            state_bit(State::active) | state_bit(State::retryable);

/*
 * Cancels a job if it is in one of `states` (bits of open ones), held or not, waiting for a transaction that is moving
 * it; `was` is the state it was in, `queue` its queue. Returns false if it is in none of them, or does not exist.
 */
bool cancel_in(Tables &tables, const pg_uuid_t &id, int states, TimestampTz now, State &was, int64 &queue,
               const pg_uuid_t *replaced_by = nullptr);

/* Like cancel_in(), but for every open state, with its queue in `status`. Returns false if the job has ended, or does
 * not exist; then `status` is its status, and `exists` says whether it exists. */
bool cancel_open(Tables &tables, const pg_uuid_t &id, TimestampTz now, JobRow &job, Status &status, bool &exists,
                 State &was);

/* Takes the row of a job that waits, if that stands for one of `states`, waiting for a transaction that has it;
 * `position`, where it could be claimed. Returns false if the job is in none of them, or does not exist. */
bool take_waiting_job(Tables &tables, const pg_uuid_t &id, int states, TimestampTz now, Location &location,
                      std::optional<int64> &position);

/* Cancels a job that waits, if no other transaction has it: for who may not wait. Returns false if another transaction
 * is moving it. */
bool cancel_unless_busy(Tables &tables, const pg_uuid_t &id, TimestampTz now);

/* Locks the row of an open job where it is, waiting if need be, so that it moves no more until this transaction ends.
 * Nothing for one that has ended. */
void hold_open(Tables &tables, const pg_uuid_t &id, TimestampTz now);

/* Locks the row that says where the job is, if it is in one of `states`. Returns false if another transaction has it
 * and `wait` is false. */
bool hold_in(Tables &tables, const pg_uuid_t &id, int states, bool wait);

/* As hold_open(), and from then on its hot rows bear `flag`. Raises unless the caller may work on its queue. Returns
 * false if the job has ended, or does not exist. */
bool flag_open(Tables &tables, const pg_uuid_t &id, int32 flag, TimestampTz now);

/* Where the job stands by a snapshot of this moment. */
bool read_current_status(Tables &tables, const pg_uuid_t &id, TimestampTz now, JobRow &job, Status &status);

/* What an answer says beside the job. */
struct Remark {
    std::optional<State> previous; /* what the job was (OP-20) */
    std::optional<pg_uuid_t> twin; /* an open job with its uniqueness key (INT-09), and … */
    State twin_state;
};

/* The answer of a call that has changed one job: the job as it stands now. */
Datum answer_now(Tables &tables, const pg_uuid_t &id, TimestampTz now, const Remark &remark = {});

} // namespace ojs
