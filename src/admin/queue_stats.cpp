/*
 * queue_stats.cpp: the counts that sql/queue_stats.sql and sql/lease_json.sql ask for, and the triggers that keep them
 * when rows change by SQL.
 *
 * The counters say where rows are. What lies beyond its time there (a lease that ran out, a retry that fell due) reads
 * otherwise by the definition of the Queues document; such rows are few, since upkeep moves them, and are found by the
 * indexes that upkeep uses.
 */
#include "ojs/pg/args.h"
#include "ojs/counters/queue_counters.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/pg/row.h"
#include "ojs/queue/maintenance.h"
#include "ojs/store/rows.h"
#include "ojs/state/reap.h"
#include "ojs/hot_set/hot_set.h"

using namespace ojs;

namespace
{

constexpr int64 reply_age_us = USECS_PER_SEC; /* how old the counts in a reply may be where they must be counted */

/* What is past its time, by where it is. */
struct Overdue {
    int64 queue;
    int64 leased, scheduled, retryable, released;
};

/* `overdue` is sorted by queue. */
Overdue *
overdue_of(Overdue *overdue, int n, int64 queue)
{
    Overdue *found = std::lower_bound(overdue, overdue + n, queue,
                                      [](const Overdue &one, int64 wanted) { return one.queue < wanted; });
    return found != overdue + n && found->queue == queue ? found : nullptr;
}

void
find_lapsed(Overdue *overdue, int n, TimestampTz at)
{
    ScanKeyData keys[2];
    store::Scan scan;
    store::Row seen;
    store::Table table = store::open(store::Rel::lease, AccessShareLock);
    ScanKeyInit(&keys[0], 1, BTGreaterEqualStrategyNumber, F_TIMESTAMPTZ_GE, TimestampTzGetDatum(no_lease_before(at)));
    ScanKeyInit(&keys[1], 1, BTLessEqualStrategyNumber, F_TIMESTAMPTZ_LE, TimestampTzGetDatum(at));
    store::begin(scan, table, store::Idx::lease_reap, keys, 2, false);
    while ((seen = store::next(scan)) != store::Row::none) {
        LeaseRow lease;
        read_in_place(table.slot, lease);
        Overdue *of = overdue_of(overdue, n, lease.queue);
        if (seen != store::Row::arriving && of != nullptr && (lease.deadline <= at || lease.stop_at <= at))
            of->leased++;
    }
    store::end(scan);
    store::close(table);
}

void
find_due(Overdue *overdue, int n, TimestampTz at)
{
    ScanKeyData key;
    store::Scan scan;
    store::Row seen;
    store::Table table = store::open(store::Rel::delayed, AccessShareLock);
    ScanKeyInit(&key, 1, BTLessEqualStrategyNumber, F_TIMESTAMPTZ_LE, TimestampTzGetDatum(promoted_to(at)));
    store::begin(scan, table, store::Idx::delayed_due, &key, 1, false);
    while ((seen = store::next(scan)) != store::Row::none) {
        DelayedRow row;
        read(table.slot, row);
        Overdue *of = overdue_of(overdue, n, row.queue);
        if (seen == store::Row::arriving || of == nullptr)
            continue;
        of->scheduled += row.kind == DelayedKind::scheduled;
        of->retryable += row.kind == DelayedKind::retryable;
        of->released += row.kind == DelayedKind::released;
    }
    store::end(scan);
    store::close(table);
}

struct QueueReading {
    Counts *counts;
    Overdue *overdue;
};

QueueReading
read_queue_states(const int64 *queues, int n, bool ended, int64 max_age_us)
{
    TimestampTz at = now();
    QueueReading reading = {static_cast<Counts *>(palloc0(sizeof(Counts) * std::max(n, 1))),
                            static_cast<Overdue *>(palloc0(sizeof(Overdue) * std::max(n, 1)))};
    ensure_hot_set();
    for (int i = 0; i < n; i++)
        reading.overdue[i].queue = queues[i];
    std::sort(reading.overdue, reading.overdue + n,
              [](const Overdue &a, const Overdue &b) { return a.queue < b.queue; });
    read_counts(queues, n, ended, max_age_us, reading.counts);
    find_lapsed(reading.overdue, n, at);
    find_due(reading.overdue, n, at);
    return reading;
}

/* Never below zero, though a commit may be seen a moment before it is counted. */
int64
at_least_0(int64 n)
{
    return std::max<int64>(n, 0);
}

struct StateCounts { /* as the columns of ojs_store.queue_counts() */
    int64 queue, ready, in_flight, delayed, available, active, scheduled, retryable, pending, completed, cancelled,
        discarded;
};

StateCounts
state_counts_of(const Counts &c, const Overdue &over)
{
    StateCounts s = {};
    int64 due = over.scheduled + over.retryable + over.released;
    s.queue = c.queue;
    s.ready = at_least_0(c[Where::ready] + due + over.leased);
    s.in_flight = at_least_0(c[Where::leased] - over.leased);
    s.delayed = at_least_0(c[Where::released] - over.released);
    s.available = at_least_0(c[Where::ready] + over.scheduled + over.retryable + c[Where::released]);
    s.active = at_least_0(c[Where::leased]);
    s.scheduled = at_least_0(c[Where::scheduled] - over.scheduled);
    s.retryable = at_least_0(c[Where::retryable] - over.retryable);
    s.pending = at_least_0(c[Where::pending]);
    s.completed = at_least_0(c[Where::completed]);
    s.cancelled = at_least_0(c[Where::cancelled]);
    s.discarded = at_least_0(c[Where::discarded]);
    return s;
}

void
note_rows(store::Rel rel, Tuplestorestate *rows, TupleDesc desc, int change)
{
    if (rows == nullptr)
        return;
    TupleTableSlot *slot = MakeSingleTupleTableSlot(desc, &TTSOpsMinimalTuple);
    while (tuplestore_gettupleslot(rows, true, false, slot)) {
        bool should_free;
        HeapTuple tuple = ExecFetchSlotHeapTuple(slot, false, &should_free);
        note_row(rel, tuple->t_data, change);
        if (should_free)
            heap_freetuple(tuple);
    }
    ExecDropSingleTupleTableSlot(slot);
}

} // namespace

/* ojs_store.queue_rows(ids bigint[]) returns setof record: the columns of StateCounts */
OJS_FUNCTION(ojs_queue_rows)
{
    ReturnSetInfo *set = begin_set(fcinfo);
    Bigints queues = bigints_arg(fcinfo, 0);
    QueueReading reading = read_queue_states(queues.values, queues.n, true, 0);
    for (int i = 0; i < queues.n; i++) {
        StateCounts s = state_counts_of(reading.counts[i], *overdue_of(reading.overdue, queues.n, queues.values[i]));
        Datum values[] = {Int64GetDatum(s.queue),     Int64GetDatum(s.ready),     Int64GetDatum(s.in_flight),
                          Int64GetDatum(s.delayed),   Int64GetDatum(s.available), Int64GetDatum(s.active),
                          Int64GetDatum(s.scheduled), Int64GetDatum(s.retryable), Int64GetDatum(s.pending),
                          Int64GetDatum(s.completed), Int64GetDatum(s.cancelled), Int64GetDatum(s.discarded)};
        bool none[lengthof(values)] = {};
        put_row(set, values, none);
    }
    return (Datum)0;
}

/* ojs_store.ready_and_held(id bigint, out ready bigint, out in_flight bigint): for replies */
OJS_FUNCTION(ojs_ready_and_held)
{
    int64 queue = PG_GETARG_INT64(0);
    QueueReading reading = read_queue_states(&queue, 1, false, reply_age_us);
    StateCounts s = state_counts_of(*reading.counts, *reading.overdue);
    TupleDesc desc;
    if (get_call_result_type(fcinfo, nullptr, &desc) != TYPEFUNC_COMPOSITE)
        elog(ERROR, "return type must be a row type");
    Datum values[] = {Int64GetDatum(s.ready), Int64GetDatum(s.in_flight)};
    bool nulls[2] = {};
    return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
}

/* ojs_store.counted_apart(ids bigint[], ended boolean, out queue bigint, out limited bigint, out dead_letters bigint)
 * returns setof record: open jobs with a rate limit, and dead letters, which count only where `ended` is true; no rows
 * where rows would have to be counted */
OJS_FUNCTION(ojs_counted_apart)
{
    ReturnSetInfo *set = begin_set(fcinfo);
    Bigints queues = bigints_arg(fcinfo, 0);
    bool ended = PG_GETARG_BOOL(1);
    auto *counts = static_cast<Counts *>(palloc0(sizeof(Counts) * std::max(queues.n, 1)));
    ensure_hot_set();
    if (!read_shared_counts(queues.values, queues.n, ended, counts))
        return (Datum)0;
    for (int i = 0; i < queues.n; i++) {
        Datum values[] = {Int64GetDatum(queues.values[i]), Int64GetDatum(at_least_0(counts[i][Where::limited])),
                          Int64GetDatum(at_least_0(counts[i][Where::dead_letter]))};
        bool nulls[] = {false, false, !ended};
        put_row(set, values, nulls);
    }
    return (Datum)0;
}

/* ojs_store.waiting_bytes(queue bigint) returns bigint */
OJS_FUNCTION(ojs_waiting_bytes)
{
    int64 queue = PG_GETARG_INT64(0);
    Counts counts = {};
    ensure_hot_set();
    read_counts(&queue, 1, false, 0, &counts);
    PG_RETURN_INT64(at_least_0(counts.bytes));
}

/* Statement trigger with transition tables: rows of ready, lease, delayed or finished changed by SQL. Direct table
 * access fires no trigger, and is counted where it happens. */
OJS_FUNCTION(ojs_count_rows)
{
    if (!CALLED_AS_TRIGGER(fcinfo))
        ereport(ERROR,
                (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED), errmsg("ojs_store.count_rows() is a trigger")));
    auto *data = reinterpret_cast<TriggerData *>(fcinfo->context);
    Oid table = RelationGetRelid(data->tg_relation);
    bool truncated = TRIGGER_FIRED_BY_TRUNCATE(data->tg_event);
    for (store::Rel rel : {store::Rel::ready, store::Rel::lease, store::Rel::delayed, store::Rel::finished}) {
        if (table != store::relation_oid(rel))
            continue;
        if (truncated)
            counts_lost(rel == store::Rel::finished ? Part::ended : Part::open);
        note_rows(rel, data->tg_oldtable, RelationGetDescr(data->tg_relation), -1);
        note_rows(rel, data->tg_newtable, RelationGetDescr(data->tg_relation), 1);
    }
    return PointerGetDatum(nullptr);
}
