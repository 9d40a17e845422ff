/*
 * rows.h: the rows of the tables in sql/tables.sql, as structs.
 *
 * The order of members follows the order of columns; rows.cpp turns one into
 * the other, and store/catalog.cpp compares the number of columns with what the
 * database has. Pointers inside a struct point into the slot it was read from.
 */
#pragma once

#include "ojs/store/store.h"

namespace ojs
{

/* The eight states, by the number that `done` stores; names in status.cpp. */
enum class State : int16 { scheduled, available, pending, active, completed, retryable, cancelled, discarded };

constexpr bool
terminal(State state)
{
    return state == State::completed || state == State::cancelled || state == State::discarded;
}

/* job.flags, copied to the hot rows: what an operation must look at beyond the hot row itself. */
enum job_flag : int32 {
    job_pending = 1 << 0,      /* pushed pending */
    job_at_most_once = 1 << 1, /* never delivered twice */
    job_expires = 1 << 2,      /* has a row of kind `expiry` in later: expires_at, enqueue_ttl, total_timeout */
    job_own_lease = 1 << 3,    /* options.visibility_timeout_ms */
    job_unique = 1 << 4,       /* has a row among the unique claims */
    job_has_events = 1 << 5,   /* hot rows only: there are rows in event */
    job_timeouts = 1 << 6,     /* options hold grace_period, heartbeat_timeout or total_timeout */
    job_limits = 1 << 7,       /* options hold a rate limit */
    job_bare_object = 1 << 8,  /* args was pushed as one bare object */
    job_reported = 1 << 9,     /* hot rows only: there may be a row in checkpoint or progress */
    job_result_ttl = 1 << 10,  /* options.result_ttl */
    job_sized = 1 << 11,       /* its size counts towards its queue's max_size_bytes while it waits */
    job_counted = 1 << 12,     /* hot rows only: it takes a place in a concurrency limit while it is held */

    /* Leases only, by their queue's settings when they were made; kept in ready and later, and not looked at there. */
    lease_durable = 1 << 16, /* survives a crash */
    lease_logged = 1 << 17,  /* what happens to it goes to lease_log */
    lease_flags = lease_durable | lease_logged,

    /* Leases only, too: where the job is counted (job_metrics.cpp). */
    lease_series_shift = 18,
    lease_series = 0xfff << lease_series_shift,
};

enum done_flag : int16 {
    done_dead_letter = 1 << 0, /* listed among the dead letters */
};

enum class EventKind : int16 {
    failed = 1,    /* FAIL, retries left: due_at says when */
    released = 2,  /* given back by its worker, the attempt refunded */
    lapsed = 3,    /* its lease ran out */
    activated = 4, /* from pending */
    moved = 5,     /* queue or priority changed */
    revived = 6,   /* a manual retry of a finished job; data keeps the done row */
    claimed = 7,   /* at-most-once: the delivery itself */
    leased = 8,    /* leases_durable: held until due_at; data has the token */
};

enum class LaterKind : int16 { scheduled = 1, retryable = 2, pending = 3, released = 4, expiry = 5 };

struct JobRow {
    pg_uuid_t id;
    int64 seq;
    int64 queue;
    TimestampTz created_at;
    int32 flags;
    int32 max_attempts;
    int16 priority;
    text *type;
    Jsonb *args;
    Jsonb *meta;    /* null: {} */
    std::optional<TimestampTz> scheduled_at;
    std::optional<TimestampTz> expires_at;
    std::optional<int64> timeout_ms;
    Jsonb *retry;   /* null: the system's default */
    Jsonb *uniq;    /* null: none */
    Jsonb *options; /* null: none */
};

struct EventRow {
    pg_uuid_t job_id;
    TimestampTz at;
    std::optional<TimestampTz> due_at;
    EventKind kind;
    int32 attempt;
    int32 deliveries;
    std::optional<TimestampTz> started_at;
    text *worker; /* or null */
    Jsonb *data;  /* or null */
};

struct DoneRow {
    pg_uuid_t job_id;
    TimestampTz finished_at;
    int64 queue;
    int32 attempt;
    int32 deliveries;
    std::optional<TimestampTz> started_at;
    State state;
    int16 flags;
    text *worker;  /* of the delivery that ended so, or null */
    Jsonb *result; /* or null */
    Jsonb *error;  /* or null */
};

struct ReadyRow {
    pg_uuid_t job_id;
    int64 queue;
    int64 place;
    ItemPointerData job_tid;
    int16 npriority;
    int32 flags;
    int32 attempt;
    int32 deliveries;
};

struct LeaseRow {
    pg_uuid_t job_id;
    TimestampTz reap_at;
    TimestampTz deadline;
    int64 token;
    int64 queue;
    TimestampTz claimed_at;
    TimestampTz stop_at;
    std::optional<TimestampTz> beat_at;
    int64 lease_ms;
    ItemPointerData job_tid;
    int16 npriority;
    int32 flags;
    int32 attempt;
    int32 deliveries;
    int32 session;
    text *worker;
};

struct LaterRow {
    pg_uuid_t job_id;
    int64 queue;
    TimestampTz due_at;
    ItemPointerData job_tid;
    int16 npriority;
    LaterKind kind;
    int32 flags;
    int32 attempt;
    int32 deliveries;
};

struct CheckpointRow {
    pg_uuid_t job_id;
    int64 sequence;
    TimestampTz created_at;
    Jsonb *state;
};

struct ProgressRow {
    pg_uuid_t job_id;
    TimestampTz started_at;
    int32 deliveries;
    TimestampTz at;
    Numeric progress; /* or null */
    text *message;    /* or null */
    Jsonb *data;      /* or null */
};

/* What retention must know of a row, without looking at what may be large. */
struct JobBrief {
    TimestampTz created_at;
    int32 flags;
    Jsonb *uniq; /* or null */
};
struct DoneBrief {
    pg_uuid_t job_id;
    TimestampTz finished_at;
    int64 queue;
    State state;
    int16 flags;
};

/*
 * The size of a job (BP-02): a fixed part, and its type and JSON values as they are stored, before compression. The same
 * of what a push brings as of its row, of which nothing large is read.
 */
int64 size_of(std::string_view type, std::initializer_list<const Jsonb *> values);
int64 size_of_stored(TupleTableSlot *slot);

enum class LimitUse : int16 { held = 0, start = 1, told = 2 };

/* What a job takes of a rate limit (rate_limits.h). */
struct LimitUseRow {
    int64 key; /* hash of the name */
    LimitUse kind;
    TimestampTz at;
    int64 number;      /* of starts: which one of its key */
    TimestampTz until; /* of starts: when it counts no more */
    pg_uuid_t job_id;
    int64 token; /* of the lease */
    text *name;
};

static_assert(std::is_trivially_destructible_v<JobRow> && std::is_trivially_destructible_v<LeaseRow>);

/* The columns of each table, in the order of store::Rel. */
struct Shape {
    int n;
    const Oid *types;
};
extern const Shape shapes[static_cast<int>(store::Rel::count)];

HeapTuple form(Relation rel, const JobRow &row);
HeapTuple form(Relation rel, const EventRow &row);
HeapTuple form(Relation rel, const DoneRow &row);
HeapTuple form(Relation rel, const ReadyRow &row);
HeapTuple form(Relation rel, const LeaseRow &row);
HeapTuple form(Relation rel, const LaterRow &row);
HeapTuple form(Relation rel, const CheckpointRow &row);
HeapTuple form(Relation rel, const LimitUseRow &row);

void read(TupleTableSlot *slot, JobRow &row);
void read(TupleTableSlot *slot, JobBrief &row);
void read(TupleTableSlot *slot, EventRow &row);
void read(TupleTableSlot *slot, DoneRow &row);
void read(TupleTableSlot *slot, DoneBrief &row);
void read(TupleTableSlot *slot, ReadyRow &row);
void read(TupleTableSlot *slot, LeaseRow &row);
void read(TupleTableSlot *slot, LaterRow &row);
void read(TupleTableSlot *slot, CheckpointRow &row);
void read(TupleTableSlot *slot, ProgressRow &row);
void read(TupleTableSlot *slot, LimitUseRow &row);

} // namespace ojs
