/*
 * bulk_load.cpp: see bulk_load.h.
 */
#include "ojs/store/bulk_load.h"

namespace ojs
{

Sink *
open_sink(store::Rel rel, bool may_be_bulk)
{
    auto *sink = static_cast<Sink *>(palloc0(sizeof(Sink)));
    Oid oid = store::relation_oid(rel);
    bool alone = may_be_bulk && ConditionalLockRelationOid(oid, AccessExclusiveLock);
    sink->table = store::open(rel, RowExclusiveLock);
    sink->bulk = alone && RelationGetNumberOfBlocks(sink->table.rel) == 0;
    if (alone && !sink->bulk)
        UnlockRelationOid(oid, AccessExclusiveLock);
    sink->home = CurrentMemoryContext;
    sink->context = AllocSetContextCreate(CurrentMemoryContext, "ojs rebuild", ALLOCSET_DEFAULT_SIZES);
    if (sink->bulk) {
        TupleDesc desc = CreateTupleDescCopy(RelationGetDescr(sink->table.rel));
        for (TupleTableSlot *&slot : sink->slots)
            slot = MakeSingleTupleTableSlot(desc, &TTSOpsHeapTuple);
        sink->bulk_state = GetBulkInsertState();
    }
    return sink;
}

void
flush(Sink &sink)
{
    CHECK_FOR_INTERRUPTS();
    MemoryContext old = MemoryContextSwitchTo(sink.home);
    if (sink.bulk) {
        for (int i = 0; i < sink.n; i++) {
            ExecStoreHeapTuple(sink.tuples[i], sink.slots[i], false);
            store::watch(sink.table, sink.tuples[i], 1); /* before it can be found: nobody else can look yet */
        }
        if (sink.n > 0)
            table_multi_insert(sink.table.rel, sink.slots, sink.n, GetCurrentCommandId(true), 0, sink.bulk_state);
        for (int i = 0; i < sink.n; i++)
            ExecClearTuple(sink.slots[i]);
    } else
        store::insert_many(sink.table, sink.tuples, sink.n);
    MemoryContextSwitchTo(old);
    MemoryContextReset(sink.context);
    sink.n = 0;
}

bool
close_sink(Sink &sink)
{
    flush(sink);
    if (sink.bulk) {
        FreeBulkInsertState(sink.bulk_state);
        for (TupleTableSlot *slot : sink.slots)
            ExecDropSingleTupleTableSlot(slot);
    }
    store::close(sink.table);
    return sink.bulk;
}

} // namespace ojs
