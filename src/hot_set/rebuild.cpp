/*
 * rebuild.cpp: makes the hot set from the logged tables, and puts back what fell out of it.
 *
 * Both read one snapshot: the open jobs (in `job`, not in `finished`) that are in none of ready, lease and delayed,
 * each put where its newest event says. A job that is pushed meanwhile is not in the snapshot, and brings its own hot
 * row. One that is being claimed, finished or moved meanwhile is, by the snapshot, still where it was. So neither locks
 * out anything but the other (ShareUpdateExclusiveLock on hot_set_state). Only a process that rebuilds after a crash or
 * a promotion takes the empty tables for itself and makes their indexes at the end: sessions wait for it anyhow.
 *
 * No index of a hot table is read: claims mark entries dead that an older snapshot might still need.
 */
#include "ojs/pg/error.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/state/lease_log.h"
#include "ojs/state/ordering.h"
#include "ojs/queue/maintenance.h"
#include "ojs/state/transitions.h"
#include "ojs/store/bulk_load.h"
#include "ojs/store/spi.h"
#include "ojs/store/store.h"
#include "ojs/hot_set/in_doubt.h"
#include "ojs/hot_set/strays.h"
#include "ojs/shared/wakeup.h"
#include "ojs/hot_set/hot_set.h"

namespace ojs
{

namespace
{

/* What was said of the last rebuild, and that rows were restored; what the reconcile pass says of itself stays. */
constexpr char clear_state_sql[] = R"sql(
    delete from ojs_store.hot_set_state where cause <> 'reconcile' returning rebuilt_at = '-infinity'
)sql";
constinit Statement clear_state = {clear_state_sql, {}, nullptr};

/* After a restore under a live worker: some jobs came before their events and endings, and were put where they no
 * longer belong. What another transaction is at stays. */
constexpr char clear_ready_sql[] = R"sql(
    delete from ojs_store.ready where ctid = any (array(select ctid from ojs_store.ready for update skip locked))
)sql";
constinit Statement clear_ready = {clear_ready_sql, {}, nullptr};
constexpr char clear_delayed_sql[] = R"sql(
    delete from ojs_store.delayed where ctid = any (array(select ctid from ojs_store.delayed for update skip locked))
)sql";
constinit Statement clear_delayed = {clear_delayed_sql, {}, nullptr};

#define CLEAR(hot) "delete from " hot " where ctid = any (array(select ctid from " hot " for update skip locked))"
constinit Statement clear_lines[] = {{CLEAR("ojs_store.ordering_line"), {}, nullptr},
                                     {CLEAR("ojs_store.ordering_due"), {}, nullptr}};

constexpr char lost_jobs_sql[] = "select * from ojs_store.lost_jobs where $1 is null or created_at < $1";
constinit Statement lost_jobs = {lost_jobs_sql, {TIMESTAMPTZOID}, nullptr};
enum {
    o_id = 1,
    o_tid,
    o_seq,
    o_queue,
    o_npriority,
    o_flags,
    o_attempt,
    o_deliveries,
    o_at,
    o_started_at,
    o_kind,
    o_due_at,
    o_expires_at,
    o_worker,
    o_data
};

constinit Statement index_ready = {"reindex table ojs_store.ready", {}, nullptr};
constinit Statement index_delayed = {"reindex table ojs_store.delayed", {}, nullptr};

constinit Statement any_job = {"select from ojs_store.job limit 1", {}, nullptr};

constexpr char write_state_sql[] = R"sql(
    insert into ojs_store.hot_set_state (rebuilt_at, took, jobs, cause)
    values ($1, make_interval(secs => $2), $3, $4)
)sql";
constinit Statement write_state = {write_state_sql, {TIMESTAMPTZOID, FLOAT8OID, INT8OID, TEXTOID}, nullptr};

constexpr char jobs_so_far_sql[] = R"sql(
    select coalesce(max(jobs), 0) from ojs_store.hot_set_state where cause = 'reconcile'
)sql";
constinit Statement jobs_so_far = {jobs_so_far_sql, {}, nullptr};

constinit Statement forget_pass = {"delete from ojs_store.hot_set_state where cause = 'reconcile'", {}, nullptr};

/* What ojs_store.lost_jobs says of a job beside the kinds of `delayed`; null: it can be claimed. */
enum class LostKind : int16 { begun = 0, held = 7 };

constexpr LOCKMODE one_at_a_time = ShareUpdateExclusiveLock;

double
seconds_since(int64 start_us)
{
    return static_cast<double>(steady_us() - start_us) / USECS_PER_SEC;
}

/* --- recovering the lost jobs --- */

/* Claimable again after a delivery: placed at the end, in the order of their return. */
struct ReturnedJob {
    ReadyRow row;
    TimestampTz at;
};

/* With an ordering key: put in line once all are known, in the order of push, and first what is held. */
struct OrderedJob {
    DelayedRow row;
    int64 seq;
    bool held;
    bool can_run;
};

/* May run at most once, and had begun. */
struct BegunJob {
    FinishedRow row;
    int32 flags;
};

/* Held when the server crashed, in a queue whose leases are durable. */
struct LostLease {
    LeaseRow lease;
    std::optional<TimestampTz> deadline;
    Jsonb *data;
};

template <typename T> struct List {
    T *items;
    int64 n, room;

    void add(MemoryContext context, const T &item)
    {
        if (n == room) {
            room = room > 0 ? room * 2 : 64;
            Size size = sizeof(T) * room;
            items =
                static_cast<T *>(items == nullptr ? MemoryContextAllocHuge(context, size) : repalloc_huge(items, size));
        }
        items[n++] = item;
    }
};

struct QueueCount {
    int64 queue;
    int64 jobs;
};

struct Recovery {
    DestReceiver receiver; /* first: the executor hands it back to us */
    HTAB *undecided;       /* ids of jobs, or null (in_doubt.h) */
    MemoryContext context;
    Sink *ready;
    Sink *delayed;
    List<ReturnedJob> returned;
    List<OrderedJob> ordered;
    List<BegunJob> begun;
    List<LostLease> held;
    List<QueueCount> queues;
    int64 jobs;
};

void
count(Recovery &recovery, int64 queue)
{
    recovery.jobs++;
    for (int64 i = recovery.queues.n - 1; i >= 0 && i >= recovery.queues.n - 64; i--)
        if (recovery.queues.items[i].queue == queue) {
            recovery.queues.items[i].jobs++;
            return;
        }
    recovery.queues.add(recovery.context, {queue, 1});
}

bool
has_reminder(Recovery &recovery, const pg_uuid_t &id)
{
    if (recovery.delayed->bulk)
        return false;
    store::Table delayed = store::open(store::Rel::delayed, RowExclusiveLock);
    ScanKeyData key;
    store::Scan scan;
    bool found = false;
    store::key_uuid(&key, id);
    store::begin(scan, delayed, store::Idx::delayed_job, &key, 1, false);
    while (!found && store::next(scan) != store::Row::none) {
        DelayedRow row;
        read(delayed.slot, row);
        found = row.kind == DelayedKind::expiry;
    }
    store::end(scan);
    store::close(delayed);
    return found;
}

void
hold(Recovery &recovery, const DelayedRow &row, TupleTableSlot *slot)
{
    auto value = [slot](int column) { return slot->tts_values[column - 1]; };
    LostLease held = {};
    static_cast<HotRow &>(held.lease) = row;
    held.lease.claimed_at = DatumGetTimestampTz(value(o_started_at));
    if (!slot->tts_isnull[o_due_at - 1])
        held.deadline = DatumGetTimestampTz(value(o_due_at));
    MemoryContext old = MemoryContextSwitchTo(recovery.context);
    held.lease.worker = DatumGetTextPCopy(value(o_worker));
    held.data = DatumGetJsonbPCopy(value(o_data));
    MemoryContextSwitchTo(old);
    recovery.held.add(recovery.context, held);
}

void
recover(Recovery &recovery, TupleTableSlot *slot)
{
    slot_getallattrs(slot);
    auto value = [slot](int column) { return slot->tts_values[column - 1]; };
    auto given = [slot](int column) { return !slot->tts_isnull[column - 1]; };

    DelayedRow row = {};
    row.job_id = *DatumGetUUIDP(value(o_id));
    row.queue = DatumGetInt64(value(o_queue));
    row.job_tid = *reinterpret_cast<ItemPointer>(DatumGetPointer(value(o_tid)));
    row.npriority = DatumGetInt16(value(o_npriority));
    row.flags = DatumGetInt32(value(o_flags));
    row.attempt = DatumGetInt32(value(o_attempt));
    row.deliveries = DatumGetInt32(value(o_deliveries));
    bool ordered = (row.flags & job_ordered) != 0;
    int64 seq = DatumGetInt64(value(o_seq));
    if (recovery.undecided != nullptr && hash_search(recovery.undecided, &row.job_id, HASH_FIND, nullptr) != nullptr) {
        if (ordered) /* it keeps its place, until it is decided */
            recovery.ordered.add(recovery.context, {row, seq, false, false});
        return;
    }

    if (given(o_kind) && DatumGetInt16(value(o_kind)) == static_cast<int16>(LostKind::begun)) {
        BegunJob one = {};
        one.row = end_waiting(row, now());
        if (given(o_started_at))
            one.row.started_at = DatumGetTimestampTz(value(o_started_at));
        one.flags = row.flags;
        recovery.begun.add(recovery.context, one);
        return;
    }
    count(recovery, row.queue);
    if (given(o_kind) && DatumGetInt16(value(o_kind)) == static_cast<int16>(LostKind::held)) {
        hold(recovery, row, slot);
        if (ordered)
            recovery.ordered.add(recovery.context, {row, seq, true, false});
    } else if (given(o_kind)) {
        row.kind = static_cast<DelayedKind>(DatumGetInt16(value(o_kind)));
        row.due_at = DatumGetTimestampTz(value(o_due_at));
        put(*recovery.delayed, row);
        if (ordered)
            recovery.ordered.add(recovery.context, {row, seq, false, false});
    } else if (ordered) {
        recovery.ordered.add(recovery.context, {row, seq, false, true});
    } else {
        ReadyRow ready = (row.flags & job_has_history) ? moved_to(row, seq) : ReadyRow{row, seq};
        if (row.deliveries == 0)
            put(*recovery.ready, ready);
        else
            recovery.returned.add(recovery.context, {ready, DatumGetTimestampTz(value(o_at))});
    }
    if (given(o_expires_at) && !has_reminder(recovery, row.job_id)) {
        row.kind = DelayedKind::expiry;
        row.due_at = DatumGetTimestampTz(value(o_expires_at));
        put(*recovery.delayed, row);
    }
}

extern "C" bool
receive_job(TupleTableSlot *slot, DestReceiver *self)
{
    recover(*reinterpret_cast<Recovery *>(self), slot);
    return true;
}
extern "C" void
receiver_starts(DestReceiver *, int, TupleDesc)
{
}
extern "C" void
receiver_ends(DestReceiver *)
{
}

bool
by_line(const OrderedJob &a, const OrderedJob &b)
{
    return a.held != b.held ? a.held : a.seq < b.seq;
}

void
line_up(Recovery &recovery)
{
    Tables tables;
    std::sort(recovery.ordered.items, recovery.ordered.items + recovery.ordered.n, by_line);
    for (int64 i = 0; i < recovery.ordered.n; i++) {
        CHECK_FOR_INTERRUPTS();
        OrderedJob &job = recovery.ordered.items[i];
        if (job.can_run)
            make_ready(tables, job.row, job.row.deliveries > 0 ? returned_position() : job.seq);
        else if (job.held || !(job.row.flags & job_relaxed))
            keep_in_line(tables, job.row);
    }
    tables.close();
}

/* Inside with_spi. `bulk`: nobody else needs the tables now. */
void
recover_lost_jobs(Recovery &recovery, SpiArg created_before, bool bulk)
{
    /* One pass over each table, and room to do it in memory. The hot tables are empty where nobody else needs them:
     * then the logged ones may be read in the order of their indexes, which costs a quarter where ids grow. */
    set_for_body("enable_nestloop", "off");
    set_for_body("enable_bitmapscan", "off");
    for (const char *by_index : {"enable_mergejoin", "enable_indexscan", "enable_indexonlyscan"})
        if (!bulk)
            set_for_body(by_index, "off");
    set_for_body("jit", "off");
    set_for_body("work_mem", "128MB");
    set_for_body("maintenance_work_mem", "256MB");

    recovery.receiver = {receive_job, receiver_starts, receiver_ends, receiver_ends, DestNone};
    recovery.undecided =
        undecided_jobs(); /* before the snapshot: what is resolved in between waits for the next pass */
    recovery.ready = open_sink(store::Rel::ready, bulk);
    recovery.delayed = open_sink(store::Rel::delayed, bulk);
    execute_latest_into(lost_jobs, {created_before}, &recovery.receiver);

    std::sort(recovery.returned.items, recovery.returned.items + recovery.returned.n,
              [](const ReturnedJob &a, const ReturnedJob &b) { return a.at < b.at; });
    for (int64 i = 0; i < recovery.returned.n; i++) {
        ReadyRow &row = recovery.returned.items[i].row;
        row.position = returned_position();
        put(*recovery.ready, row);
    }
    line_up(recovery);
    bool ready_unindexed = close_sink(*recovery.ready);
    bool delayed_unindexed = close_sink(*recovery.delayed);
    CommandCounterIncrement();
    if (ready_unindexed)
        (void)execute(index_ready);
    if (delayed_unindexed)
        (void)execute(index_delayed);
}

/* Never delivered twice, and nobody can say any more how the one delivery went (DLV-01). */
void
discard_begun(Recovery &recovery)
{
    Tables tables;
    TimestampTz at = now();
    for (int64 i = 0; i < recovery.begun.n; i++) {
        CHECK_FOR_INTERRUPTS();
        BegunJob &begun = recovery.begun.items[i];
        begun.row.error = server_error("worker_death", "the server lost the lease of a job that may run at most once",
                                       begun.row.attempt, at);
        finish(tables, begun.row, begun.flags);
    }
    tables.close();
}

void
restore_leases(Recovery &recovery)
{
    Tables tables;
    Limits limits = {tables, now()};
    for (int64 i = 0; i < recovery.held.n; i++) {
        CHECK_FOR_INTERRUPTS();
        LostLease &held = recovery.held.items[i];
        restore_lease(limits, held.lease, held.deadline, held.data);
    }
    store_limit_uses(limits);
    tables.close();
}

void
wake_all(const Recovery &recovery)
{
    for (int64 i = 0; i < recovery.queues.n; i++) {
        const Queue *queue = find_queue(recovery.queues.items[i].queue);
        if (queue != nullptr)
            wake_queue(queue->id, queue->name,
                       static_cast<int>(std::min<int64>(recovery.queues.items[i].jobs, INT_MAX)));
    }
}

} // namespace

bool
rebuild_under_way()
{
    LOCKTAG tag;
    SET_LOCKTAG_RELATION(tag, MyDatabaseId, store::relation_oid(store::Rel::hot_set_state));
    if (LockAcquire(&tag, one_at_a_time, true, true) == LOCKACQUIRE_NOT_AVAIL)
        return true;
    LockRelease(&tag, one_at_a_time, true);
    return false;
}

bool
rebuild_hot_set(const char *cause)
{
    Oid state_oid = store::relation_oid(store::Rel::hot_set_state);
    LockRelationOid(state_oid, one_at_a_time);
    if (read_hot_set_state().valid) {
        UnlockRelationOid(state_oid, one_at_a_time);
        return false;
    }

    int64 start_us = steady_us();
    Recovery recovery = {};
    recovery.context = CurrentMemoryContext;
    with_spi([&] {
        bool restored = false;
        uint64 said = execute_latest(clear_state);
        for (uint64 i = 0; i < said; i++) {
            bool null;
            restored |= DatumGetBool(cell(i, 1, &null));
        }
        if (restored) {
            (void)execute_latest(clear_ready);
            (void)execute_latest(clear_delayed);
            for (Statement &clear : clear_lines)
                (void)execute_latest(clear);
        }
        recover_lost_jobs(recovery, nullptr, MyBackendType == B_BG_WORKER && !restored);
        discard_begun(recovery);
        restore_leases(recovery);
        const char *why = restored                       ? "restore"
                          : cause != nullptr             ? cause
                          : execute_latest(any_job) == 0 ? "first use"
                                                         : "crash or promotion";
        (void)execute_latest(write_state,
                             {TimestampTzGetDatum(GetCurrentTimestamp()), Float8GetDatum(seconds_since(start_us)),
                              Int64GetDatum(recovery.jobs), CStringGetTextDatum(why)});
    });
    wake_all(recovery);
    ereport(recovery.jobs > 0 ? LOG : DEBUG1, (errmsg("ojs has rebuilt its hot set: " INT64_FORMAT " jobs in %.3f s",
                                                      recovery.jobs, seconds_since(start_us))));
    return true;
}

int64
reconcile_hot_set(TimestampTz created_before)
{
    Oid state_oid = store::relation_oid(store::Rel::hot_set_state);
    if (!ConditionalLockRelationOid(state_oid, one_at_a_time))
        return -1;
    if (!read_hot_set_state().valid) { /* a rebuild does it, and more */
        UnlockRelationOid(state_oid, one_at_a_time);
        return -1;
    }

    int64 start_us = steady_us();
    Recovery recovery = {};
    recovery.context = CurrentMemoryContext;
    int64 jobs = 0;
    int64 strays = 0;
    int64 stuck = 0;
    with_spi([&] {
        bool null;
        (void)execute_latest(jobs_so_far);
        int64 before = DatumGetInt64(cell(0, 1, &null));
        recover_lost_jobs(recovery, TimestampTzGetDatum(created_before), false);
        discard_begun(recovery);
        restore_leases(recovery);
        jobs = recovery.jobs + recovery.begun.n;
        strays = remove_strays();
        stuck = advance_stuck_lines();
        (void)execute_latest(forget_pass);
        (void)execute_latest(write_state,
                             {TimestampTzGetDatum(GetCurrentTimestamp()), Float8GetDatum(seconds_since(start_us)),
                              Int64GetDatum(before + jobs + strays + stuck), CStringGetTextDatum("reconcile")});
    });
    wake_all(recovery);
    if (jobs > 0)
        ereport(WARNING,
                (errmsg("ojs found " INT64_FORMAT " open jobs in no place and put them back", jobs),
                 errdetail("This is expected after a crash with prepared transactions; else it is a defect.")));
    if (strays > 0)
        ereport(WARNING,
                (errmsg("ojs found " INT64_FORMAT " jobs in its hot set that are finished or gone, and removed them",
                        strays),
                 errdetail("Rows of its tables were removed or added, but not by ojs; else it is a defect.")));
    if (stuck > 0)
        ereport(WARNING,
                (errmsg("ojs found " INT64_FORMAT " jobs that were first with their ordering key, and were held"
                        " back all the same; they go on",
                        stuck),
                 errdetail("Rows of its tables were removed or added, but not by ojs; else it is a defect.")));
    return jobs + strays + stuck;
}

} // namespace ojs
