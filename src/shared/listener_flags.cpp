/*
 * listener_flags.cpp: see listener_flags.h. Nobody waits here for a lock on the table: who cannot have it at once acts
 * as if the flag were up.
 */
#include "ojs/shared/listener_flags.h"

#include "ojs/store/store.h"

namespace ojs
{

namespace
{

constexpr LOCKMODE mode = RowExclusiveLock;

/* A walk over the flags of one queue. There may be several: two claims may raise it at the same time. */
struct Flags {
    store::Table table;
    store::Scan scan;
};

bool
can_open()
{
    return store::installed() && ConditionalLockRelationOid(store::relation_oid(store::Rel::listener_flag), mode);
}

void
begin(Flags &flags)
{
    flags.table = store::open(store::Rel::listener_flag, mode);
    ScanKeyData key;
    ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(0));
    store::begin(flags.scan, flags.table, store::Idx::listener_flag_queue, &key, 1, true);
}

void
look_at(Flags &flags, int64 queue)
{
    ScanKeyData key;
    ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(queue));
    store::rescan(flags.scan, &key, 1);
}

void
end(Flags &flags)
{
    store::end(flags.scan);
    store::close(flags.table);
}

void
insert_missing(const int64 *queues, int n)
{
    Flags flags;
    begin(flags);
    for (int i = 0; i < n; i++) {
        look_at(flags, queues[i]);
        store::Row row;
        while ((row = store::next(flags.scan)) == store::Row::arriving)
            ; /* another claim's; its transaction may still abort */
        if (row != store::Row::none)
            continue;
        Datum value = Int64GetDatum(queues[i]);
        bool null = false;
        store::insert(flags.table, heap_form_tuple(RelationGetDescr(flags.table.rel), &value, &null));
    }
    end(flags);
}

/* Returns whether there was one. */
bool
take_all(int64 queue)
{
    Flags flags;
    bool any = false;
    begin(flags);
    look_at(flags, queue);
    for (store::Row row; (row = store::next(flags.scan)) != store::Row::none;) {
        any = true;
        if (row == store::Row::live)
            (void)store::take(flags.table, &flags.scan.tid);
    }
    end(flags);
    return any;
}

} // namespace

void
raise_listener_flags(const int64 *queues, int n)
{
    if (can_open())
        store::with_snapshot([queues, n] { insert_missing(queues, n); });
}

bool
lower_listener_flag(int64 queue)
{
    if (!can_open())
        return true;
    Relation rel = store::open_relation(store::Rel::listener_flag, mode);
    bool up = store::may_hold(rel, queue);
    table_close(rel, NoLock);
    if (up)
        store::with_snapshot([queue, &up] { up = take_all(queue); });
    return up;
}

int
count_listener_flags(int most)
{
    int n = 0;
    if (!can_open())
        return most;
    store::with_snapshot([most, &n] {
        Flags flags;
        ScanKeyData key;
        store::Row row;
        begin(flags);
        ScanKeyInit(&key, 1, BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(PG_INT64_MIN));
        store::rescan(flags.scan, &key, 1);
        while (n < most && (row = store::next(flags.scan)) != store::Row::none)
            n++;
        end(flags);
    });
    return n;
}

int
flagged_queues(int64 *queues, int most)
{
    if (!can_open())
        return 0;
    Flags flags;
    int n = 0;
    begin(flags);
    for (int64 after = PG_INT64_MIN; n < most; n++) {
        ScanKeyData key;
        Datum value;
        ScanKeyInit(&key, 1, BTGreaterStrategyNumber, F_INT8GT, Int64GetDatum(after));
        if (!store::first_entry(flags.scan, &key, 1, 1, &value))
            break;
        queues[n] = after = DatumGetInt64(value);
    }
    end(flags);
    return n;
}

} // namespace ojs
