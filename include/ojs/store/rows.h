/*
 * rows.h: the rows of the tables in sql/tables.sql, as structs.
 *
 * Each struct lists its columns() once, in the order of the table: what forms rows, reads them, and finds a column in
 * the bytes of one goes by that list. store/catalog.cpp compares the columns' types with what the database has.
 * read() copies what the pointers of a struct point to, so that a row outlives the slot it was read from.
 */
#pragma once

#include "ojs/store/store.h"

namespace ojs
{

/* The eight states, by the number that `finished` stores; names in status.cpp. */
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
    job_expires = 1 << 2,      /* has a row of kind `expiry` in delayed: expires_at, enqueue_ttl, total_timeout */
    job_own_lease = 1 << 3,    /* options.visibility_timeout_ms */
    job_unique = 1 << 4,       /* has a row among the unique claims */
    job_has_history = 1 << 5,  /* hot rows only: there are rows in job_history */
    job_timeouts = 1 << 6,     /* options hold grace_period, heartbeat_timeout or total_timeout */
    job_limits = 1 << 7,       /* options hold a rate limit */
    job_bare_object = 1 << 8,  /* args was pushed as one bare object */
    job_reported = 1 << 9,     /* hot rows only: there may be a row in checkpoint or progress */
    job_result_ttl = 1 << 10,  /* options.result_ttl */
    job_sized = 1 << 11,       /* its size counts towards its queue's max_size_bytes while it waits */
    job_counted = 1 << 12,     /* hot rows only: it takes a slot in a concurrency limit while it is held */

    job_in_workflow = 1 << 13, /* a member of a workflow: its end is recorded there */
    job_has_parents = 1 << 14, /* with results of members before it, which a claim hands out */

    job_ordered = 1 << 15, /* options.ordering_key: one job of a key is handed out at a time */
    job_relaxed = 1 << 30, /* with job_ordered: it holds back others only while it can be claimed, or is held */
    job_spawned =
        1 << 31, /* names the job that has pushed it: has a row in job_parent. Not for SQL, where it is a sign */

    /*
     * Leases only, by their queue's settings when they were made; kept in delayed, and not looked at there.
     */
    lease_durable = 1 << 16, /* survives a crash */
    lease_logged = 1 << 17,  /* what happens to it goes to lease_log */
    lease_flags = lease_durable | lease_logged,

    /* ready only, in place of one of leases: the job has left the position of its push, or may have (find_ready), and
     * so has an entry in the index ready_job */
    ready_moved = 1 << 16,

    /* Leases only, too: where the job is counted (job_metrics.cpp). */
    lease_series_shift = 18,
    lease_series = 0xfff << lease_series_shift,
};

enum finished_flag : int16 {
    finished_dead_letter = 1 << 0, /* listed among the dead letters */
    finished_alone = 1 << 1,       /* completed, and has neither history nor reports; without it, it may have them */
};

enum class HistoryKind : int16 {
    failed = 1,    /* FAIL, retries left: due_at says when */
    released = 2,  /* given back by its worker, the attempt refunded */
    lapsed = 3,    /* its lease ran out */
    activated = 4, /* from pending */
    moved = 5,     /* queue or priority changed */
    revived = 6,   /* a manual retry of a finished job; data keeps the finished row */
    claimed = 7,   /* at-most-once: the delivery itself */
    leased = 8,    /* leases_durable: held until due_at; data has the token */
};

enum class DelayedKind : int16 { scheduled = 1, retryable = 2, pending = 3, released = 4, expiry = 5, blocked = 6 };

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
    Jsonb *meta; /* null: {} */
    std::optional<TimestampTz> scheduled_at;
    std::optional<TimestampTz> expires_at;
    std::optional<int64> timeout_ms;
    Jsonb *retry;         /* null: the system's default */
    Jsonb *unique_policy; /* null: none */
    Jsonb *options;       /* null: none */

    static constexpr auto columns(auto &r, auto use)
    {
        return use(r.id, r.seq, r.queue, r.created_at, r.flags, r.max_attempts, r.priority, r.type, r.args, r.meta,
                   r.scheduled_at, r.expires_at, r.timeout_ms, r.retry, r.unique_policy, r.options);
    }
};

struct HistoryRow {
    pg_uuid_t job_id;
    TimestampTz at;
    std::optional<TimestampTz> due_at;
    HistoryKind kind;
    int32 attempt;
    int32 deliveries;
    std::optional<TimestampTz> started_at;
    text *worker; /* or null */
    Jsonb *data;  /* or null */

    static constexpr auto columns(auto &r, auto use)
    {
        return use(r.job_id, r.at, r.due_at, r.kind, r.attempt, r.deliveries, r.started_at, r.worker, r.data);
    }
};

struct FinishedRow {
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

    static constexpr auto columns(auto &r, auto use)
    {
        return use(r.job_id, r.finished_at, r.queue, r.attempt, r.deliveries, r.started_at, r.state, r.flags, r.worker,
                   r.result, r.error);
    }
};

/* What each row of the hot set says of its job. */
struct HotRow {
    pg_uuid_t job_id;
    int64 queue;
    ItemPointerData job_tid; /* of its row in `job`, most likely */
    int16 npriority;
    int32 flags;
    int32 attempt;
    int32 deliveries;
};

/* Of a job that has just been stored. */
inline HotRow
hot_row_of(const JobRow &job, const ItemPointerData &tid)
{
    return {job.id, job.queue, tid, static_cast<int16>(-job.priority), job.flags, 0, 0};
}

struct ReadyRow : HotRow {
    int64 position;

    static constexpr auto columns(auto &r, auto use)
    {
        return use(r.job_id, r.queue, r.position, r.job_tid, r.npriority, r.flags, r.attempt, r.deliveries);
    }
};

/* Of a job that is not where its push has put it, or may be elsewhere. */
inline ReadyRow
moved_to(const HotRow &row, int64 position)
{
    ReadyRow moved = {row, position};
    moved.flags |= ready_moved;
    return moved;
}

struct LeaseRow : HotRow {
    TimestampTz reap_at;
    TimestampTz deadline;
    int64 token;
    TimestampTz claimed_at;
    TimestampTz stop_at;
    std::optional<TimestampTz> beat_at;
    int64 lease_ms;
    int32 session;
    text *worker;

    static constexpr auto columns(auto &r, auto use)
    {
        return use(r.job_id, r.reap_at, r.deadline, r.token, r.queue, r.claimed_at, r.stop_at, r.beat_at, r.lease_ms,
                   r.job_tid, r.npriority, r.flags, r.attempt, r.deliveries, r.session, r.worker);
    }
};

struct DelayedRow : HotRow {
    TimestampTz due_at;
    DelayedKind kind;

    static constexpr auto columns(auto &r, auto use)
    {
        return use(r.job_id, r.queue, r.due_at, r.job_tid, r.npriority, r.kind, r.flags, r.attempt, r.deliveries);
    }
};

struct CheckpointRow {
    pg_uuid_t job_id;
    int64 sequence;
    TimestampTz created_at;
    Jsonb *state;

    static constexpr auto columns(auto &r, auto use) { return use(r.job_id, r.sequence, r.created_at, r.state); }
};

struct ProgressRow {
    pg_uuid_t job_id;
    TimestampTz started_at;
    int32 deliveries;
    TimestampTz at;
    Numeric progress; /* or null */
    text *message;    /* or null */
    Jsonb *data;      /* or null */

    static constexpr auto columns(auto &r, auto use)
    {
        return use(r.job_id, r.started_at, r.deliveries, r.at, r.progress, r.message, r.data);
    }
};

/* What retention must know of a row, without looking at what may be large. */
struct JobBrief {
    TimestampTz created_at;
    int32 flags;
    Jsonb *unique_policy; /* or null */
};
struct FinishedBrief {
    pg_uuid_t job_id;
    TimestampTz finished_at;
    int64 queue;
    State state;
    int16 flags;
};

/* A job, and the one that has pushed it, which need not be there any more (lineage.h). */
struct ParentRow {
    pg_uuid_t job_id;
    pg_uuid_t parent;

    static constexpr auto columns(auto &r, auto use) { return use(r.job_id, r.parent); }
};

/*
 * The size of a job (BP-02): a fixed part, and its type and JSON values as they are stored, before compression. The
 * same of what a push brings as of its row, of which nothing large is read.
 */
int64 size_of(std::string_view type, std::initializer_list<const Jsonb *> values);
int64 size_of_stored(TupleTableSlot *slot);

/* A job in the line of its ordering key, and a line that somebody has to look at (ordering.h). */
struct LineRow {
    int64 key; /* hash of the queue and the key */
    int64 position;
    int64 queue;
    pg_uuid_t job_id;

    static constexpr auto columns(auto &r, auto use) { return use(r.key, r.position, r.queue, r.job_id); }
};
struct DueLineRow {
    int64 queue;
    int64 key;

    static constexpr auto columns(auto &r, auto use) { return use(r.queue, r.key); }
};

enum class LimitUse : int16 {
    held = 0,   /* by a job that holds a slot: `key` is of the job, `number` of the limit */
    start = 1,  /* of a job */
    event = 2,  /* the last one of the key (rate_limit_events.cpp) */
    change = 3, /* so many slots were taken, or freed (slots.h) */
    total = 4,  /* in the place of many changes */
};

/* What a job takes of a rate limit (rate_limits.h). */
struct LimitUseRow {
    int64 key; /* hash of the name */
    LimitUse kind;
    TimestampTz at;
    int64 number;      /* of starts: which one of its key; of changes and totals: slots */
    TimestampTz until; /* of starts: when it counts no more */
    pg_uuid_t job_id;
    int64 token; /* of the lease */
    text *name;

    static constexpr auto columns(auto &r, auto use)
    {
        return use(r.key, r.kind, r.at, r.number, r.until, r.job_id, r.token, r.name);
    }
};

static_assert(std::is_trivially_destructible_v<JobRow> && std::is_trivially_destructible_v<LeaseRow>);

/* The columns of each table, in the order of store::Rel. */
struct Shape {
    int n;
    const Oid *types;
};
extern const Shape shapes[static_cast<int>(store::Rel::count)];

template <typename Row> HeapTuple form(Relation rel, const Row &row);
template <typename Row> void read(TupleTableSlot *slot, Row &row);

/* Like read(), but pointers of the row may point into the slot: only for a row that is used up before anything is read
 * to this table's slot again, or taken by this table's verbs. For loops over many rows, and for what claims hand out.
 */
template <typename Row> void read_in_place(TupleTableSlot *slot, Row &row);
template <> void read(TupleTableSlot *slot, JobBrief &row);
template <> void read(TupleTableSlot *slot, FinishedBrief &row);

/* Calls f(number of the column, its member) for each column. */
template <typename Row>
constexpr void
each_column(Row &row, auto f)
{
    int number = 0;
    Row::columns(row, [&](auto &...column) { (f(number++, column), ...); });
}

/* The number of a column, from 0. */
template <typename Row, typename Base, typename Member>
constexpr int
number_of(Member Base::*member)
{
    Row row = {};
    int found = -1;
    each_column(row, [&](int number, auto &column) {
        if (static_cast<const void *>(&column) == &(row.*member))
            found = number;
    });
    return found;
}

/* What a column takes in a stored row. */
template <typename Column> struct Stored {
    using type = Column;
};
template <typename Column> struct Stored<std::optional<Column>> {
    using type = Column;
};

/* The number of the column before this one that may be null, or -1. */
template <typename Row, typename Base, typename Member>
constexpr int
nullable_before(Member Base::*member)
{
    Row row = {};
    int wanted = number_of<Row>(member);
    int found = -1;
    each_column(row, [&](int number, auto &column) {
        using Column = std::remove_cvref_t<decltype(column)>;
        if (number < wanted && !std::is_same_v<Column, typename Stored<Column>::type>)
            found = found == -1 ? number : throw "more than one column may be null";
    });
    return found;
}

/* Where a column lies in a stored row, if all columns before it are of fixed width; `null` says that the one which may
 * be null is. */
template <typename Row, typename Base, typename Member>
constexpr int
offset_of(Member Base::*member, bool null)
{
    Row row = {};
    int wanted = number_of<Row>(member);
    int left_out = null ? nullable_before<Row>(member) : -1;
    int offset = 0;
    each_column(row, [&](int number, auto &column) {
        using Column = typename Stored<std::remove_cvref_t<decltype(column)>>::type;
        constexpr int align = alignof(Column);
        if (number <= wanted && number != left_out)
            offset = (offset + align - 1) / align * align + (number < wanted ? static_cast<int>(sizeof(Column)) : 0);
    });
    return offset;
}

} // namespace ojs
