/*
 * rebuild.cpp: makes the hot set from the truth, and puts back what fell out of it.
 *
 * Both read one snapshot: the open jobs (in `job`, not in `finished`) that are in none of ready, lease and delayed, each put
 * where its newest event says. A job that is pushed meanwhile is not in the snapshot, and brings its own hot row. One
 * that is being claimed, finished or moved meanwhile is, by the snapshot, still where it was. So neither locks out
 * anything but the other (ShareUpdateExclusiveLock on hot_set_state). Only a process that rebuilds after a crash or a promotion
 * takes the empty tables for itself and makes their indexes at the end: sessions wait for it anyhow.
 *
 * No index of a hot table is read: claims mark entries dead that an older snapshot might still need.
 */
#include "ojs/pg/error.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/state/lease_log.h"
#include "ojs/queue/maintenance.h"
#include "ojs/state/transitions.h"
#include "ojs/store/bulk_load.h"
#include "ojs/store/spi.h"
#include "ojs/store/store.h"
#include "ojs/hot_set/in_doubt.h"
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

/*
 * The opposite of lost jobs: hot rows of jobs that are finished, or gone. By one snapshot a job is never both open and finished,
 * so these are of no use to anybody, and each of them is in the way of all claims. Reminders (kind 5) may outlive their jobs.
 */
#define STRAY_FROM(hot)                                                                                                       \
    " from " hot " hot left join ojs_store.job on job.id = hot.job_id"                                                        \
    " left join ojs_store.finished on finished.job_id = hot.job_id where (job.id is null or finished.job_id is not null)"
#define REMOVE_STRAY(hot, condition)                                                                                          \
    "delete from " hot " where ctid = any (array(select hot.ctid" STRAY_FROM(hot) condition " for update of hot skip locked))"
constinit Statement any_stray = {"select" STRAY_FROM("(select job_id from ojs_store.ready union all"
                                                     " select job_id from ojs_store.lease union all"
                                                     " select job_id from ojs_store.delayed where kind <> 5)") " limit 1",
                                 {}, nullptr};
constinit Statement remove_stray[] = {{REMOVE_STRAY("ojs_store.ready", ""), {}, nullptr},
                                      {REMOVE_STRAY("ojs_store.lease", ""), {}, nullptr},
                                      {REMOVE_STRAY("ojs_store.delayed", " and kind <> 5"), {}, nullptr}};

/* What ojs_store.lost_jobs says of a job beside the kinds of `delayed`; null: it can be claimed. */
enum class LostKind : int16 { begun = 0, held = 6 };

constexpr LOCKMODE one_at_a_time = ShareUpdateExclusiveLock;

double
seconds_since(int64 start_us)
{
    return static_cast<double>(steady_us() - start_us) / USECS_PER_SEC;
}

/* --- placing the lost jobs --- */

/* Claimable again after a delivery: placed at the end, in the order of their return. */
struct Returned {
    ReadyRow row;
    TimestampTz at;
};

/* May run at most once, and had begun. */
struct Begun {
    FinishedRow row;
    int32 flags;
};

/* Held when the server crashed, in a queue whose leases are durable. */
struct Held {
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

struct Placing {
    DestReceiver receiver; /* first: the executor hands it back to us */
    HTAB *undecided;       /* ids of jobs, or null (in_doubt.h) */
    MemoryContext context;
    Sink *ready;
    Sink *delayed;
    List<Returned> returned;
    List<Begun> begun;
    List<Held> held;
    List<QueueCount> queues;
    int64 jobs;
};

void
count(Placing &placing, int64 queue)
{
    placing.jobs++;
    for (int64 i = placing.queues.n - 1; i >= 0 && i >= placing.queues.n - 64; i--)
        if (placing.queues.items[i].queue == queue) {
            placing.queues.items[i].jobs++;
            return;
        }
    placing.queues.add(placing.context, {queue, 1});
}

bool
has_reminder(Placing &placing, const pg_uuid_t &id)
{
    if (placing.delayed->bulk)
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
hold(Placing &placing, const DelayedRow &row, TupleTableSlot *slot)
{
    auto value = [slot](int column) { return slot->tts_values[column - 1]; };
    Held held = {};
    static_cast<HotRow &>(held.lease) = row;
    held.lease.claimed_at = DatumGetTimestampTz(value(o_started_at));
    if (!slot->tts_isnull[o_due_at - 1])
        held.deadline = DatumGetTimestampTz(value(o_due_at));
    MemoryContext old = MemoryContextSwitchTo(placing.context);
    held.lease.worker = DatumGetTextPCopy(value(o_worker));
    held.data = DatumGetJsonbPCopy(value(o_data));
    MemoryContextSwitchTo(old);
    placing.held.add(placing.context, held);
}

void
place(Placing &placing, TupleTableSlot *slot)
{
    slot_getallattrs(slot);
    auto value = [slot](int column) { return slot->tts_values[column - 1]; };
    auto given = [slot](int column) { return !slot->tts_isnull[column - 1]; };

    DelayedRow row = {};
    row.job_id = *DatumGetUUIDP(value(o_id));
    if (placing.undecided != nullptr && hash_search(placing.undecided, &row.job_id, HASH_FIND, nullptr) != nullptr)
        return;
    row.queue = DatumGetInt64(value(o_queue));
    row.job_tid = *reinterpret_cast<ItemPointer>(DatumGetPointer(value(o_tid)));
    row.npriority = DatumGetInt16(value(o_npriority));
    row.flags = DatumGetInt32(value(o_flags));
    row.attempt = DatumGetInt32(value(o_attempt));
    row.deliveries = DatumGetInt32(value(o_deliveries));

    if (given(o_kind) && DatumGetInt16(value(o_kind)) == static_cast<int16>(LostKind::begun)) {
        Begun one = {};
        one.row = end_waiting(row, now());
        if (given(o_started_at))
            one.row.started_at = DatumGetTimestampTz(value(o_started_at));
        one.flags = row.flags;
        placing.begun.add(placing.context, one);
        return;
    }
    count(placing, row.queue);
    if (given(o_kind) && DatumGetInt16(value(o_kind)) == static_cast<int16>(LostKind::held)) {
        hold(placing, row, slot);
    } else if (given(o_kind)) {
        row.kind = static_cast<DelayedKind>(DatumGetInt16(value(o_kind)));
        row.due_at = DatumGetTimestampTz(value(o_due_at));
        put(*placing.delayed, row);
    } else {
        ReadyRow ready = {row, DatumGetInt64(value(o_seq))};
        if (row.deliveries == 0)
            put(*placing.ready, ready);
        else
            placing.returned.add(placing.context, {ready, DatumGetTimestampTz(value(o_at))});
    }
    if (given(o_expires_at) && !has_reminder(placing, row.job_id)) {
        row.kind = DelayedKind::expiry;
        row.due_at = DatumGetTimestampTz(value(o_expires_at));
        put(*placing.delayed, row);
    }
}

extern "C" bool
receive_job(TupleTableSlot *slot, DestReceiver *self)
{
    place(*reinterpret_cast<Placing *>(self), slot);
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

/* Inside with_spi. `bulk`: nobody else needs the tables now. */
void
place_lost_jobs(Placing &placing, SpiArg created_before, bool bulk)
{
    /* One pass over each table, and room to do it in memory. */
    set_for_body("enable_nestloop", "off");
    set_for_body("enable_mergejoin", "off");
    set_for_body("enable_indexscan", "off");
    set_for_body("enable_indexonlyscan", "off");
    set_for_body("enable_bitmapscan", "off");
    set_for_body("jit", "off");
    set_for_body("work_mem", "128MB");
    set_for_body("maintenance_work_mem", "256MB");

    placing.receiver = {receive_job, receiver_starts, receiver_ends, receiver_ends, DestNone};
    placing.undecided = undecided_jobs(); /* before the snapshot: what is resolved in between waits for the next pass */
    placing.ready = open_sink(store::Rel::ready, bulk);
    placing.delayed = open_sink(store::Rel::delayed, bulk);
    execute_latest_into(lost_jobs, {created_before}, &placing.receiver);

    std::sort(placing.returned.items, placing.returned.items + placing.returned.n,
              [](const Returned &a, const Returned &b) { return a.at < b.at; });
    for (int64 i = 0; i < placing.returned.n; i++) {
        ReadyRow &row = placing.returned.items[i].row;
        row.place = place_of_returned();
        put(*placing.ready, row);
    }
    bool ready_unindexed = close_sink(*placing.ready);
    bool delayed_unindexed = close_sink(*placing.delayed);
    CommandCounterIncrement();
    if (ready_unindexed)
        (void)execute(index_ready);
    if (delayed_unindexed)
        (void)execute(index_delayed);
}

/* Never delivered twice, and nobody can say any more how the one delivery went (DLV-01). */
void
discard_begun(Placing &placing)
{
    Tables tables;
    TimestampTz at = now();
    for (int64 i = 0; i < placing.begun.n; i++) {
        CHECK_FOR_INTERRUPTS();
        Begun &begun = placing.begun.items[i];
        begun.row.error = server_error("worker_death", "the server lost the lease of a job that may run at most once",
                                       begun.row.attempt, at);
        finish(tables, begun.row, begun.flags);
    }
    tables.close();
}

void
restore_leases(Placing &placing)
{
    Tables tables;
    Limits limits = {tables, now()};
    for (int64 i = 0; i < placing.held.n; i++) {
        CHECK_FOR_INTERRUPTS();
        Held &held = placing.held.items[i];
        restore_lease(limits, held.lease, held.deadline, held.data);
    }
    settle(limits);
    tables.close();
}

/* Inside with_spi, with the settings of place_lost_jobs(). Rows that another transaction has are left to the next pass. */
int64
remove_strays()
{
    uint64 n = 0;
    if (execute_latest(any_stray) > 0)
        for (Statement &remove : remove_stray)
            n += execute_latest(remove);
    return static_cast<int64>(n);
}

void
wake_all(const Placing &placing)
{
    for (int64 i = 0; i < placing.queues.n; i++) {
        const Queue *queue = find_queue(placing.queues.items[i].queue);
        if (queue != nullptr)
            wake_queue(queue->id, queue->name,
                       static_cast<int>(std::min<int64>(placing.queues.items[i].jobs, INT_MAX)));
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
    Placing placing = {};
    placing.context = CurrentMemoryContext;
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
        }
        place_lost_jobs(placing, nullptr, MyBackendType == B_BG_WORKER && !restored);
        discard_begun(placing);
        restore_leases(placing);
        const char *why = restored                       ? "restore"
                          : cause != nullptr             ? cause
                          : execute_latest(any_job) == 0 ? "first use"
                                                         : "crash or promotion";
        (void)execute_latest(write_state,
                             {TimestampTzGetDatum(GetCurrentTimestamp()), Float8GetDatum(seconds_since(start_us)),
                              Int64GetDatum(placing.jobs), CStringGetTextDatum(why)});
    });
    wake_all(placing);
    ereport(placing.jobs > 0 ? LOG : DEBUG1, (errmsg("ojs has rebuilt its hot set: " INT64_FORMAT " jobs in %.3f s",
                                                     placing.jobs, seconds_since(start_us))));
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
    Placing placing = {};
    placing.context = CurrentMemoryContext;
    int64 jobs = 0;
    int64 strays = 0;
    with_spi([&] {
        bool null;
        (void)execute_latest(jobs_so_far);
        int64 before = DatumGetInt64(cell(0, 1, &null));
        place_lost_jobs(placing, TimestampTzGetDatum(created_before), false);
        discard_begun(placing);
        restore_leases(placing);
        jobs = placing.jobs + placing.begun.n;
        strays = remove_strays();
        (void)execute_latest(forget_pass);
        (void)execute_latest(write_state,
                             {TimestampTzGetDatum(GetCurrentTimestamp()), Float8GetDatum(seconds_since(start_us)),
                              Int64GetDatum(before + jobs + strays), CStringGetTextDatum("reconcile")});
    });
    wake_all(placing);
    if (jobs > 0)
        ereport(WARNING,
                (errmsg("ojs found " INT64_FORMAT " open jobs in no place and put them back", jobs),
                 errdetail("This is expected after a crash with prepared transactions; else it is a defect.")));
    if (strays > 0)
        ereport(WARNING, (errmsg("ojs found " INT64_FORMAT " jobs in its hot set that are finished or gone, and removed them", strays),
                          errdetail("Rows of its tables were removed or added, but not by ojs; else it is a defect.")));
    return jobs + strays;
}

} // namespace ojs
