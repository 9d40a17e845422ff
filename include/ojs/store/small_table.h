/*
 * small_table.h: tables that are read whole, as they are committed now, and what a session keeps of them.
 */
#pragma once

#include "ojs/pg/session_cache.h"
#include "ojs/store/store.h"

namespace ojs::store
{

/* Calls body(slot) for each row until it returns false. No lock stays: a claim may go on to wait. */
template <typename Body>
void
each_row(Rel rel, Body body)
{
    Table table = open(rel, AccessShareLock);
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    TableScanDesc scan = table_beginscan(table.rel, snapshot, 0, nullptr);
    while (table_scan_getnextslot(scan, ForwardScanDirection, table.slot) && body(table.slot)) {}
    table_endscan(scan);
    UnregisterSnapshot(snapshot);
    close_and_unlock(table, AccessShareLock);
}

/* What a session keeps of each row, in a context of its own that a new look empties. */
template <typename Kept> struct SessionRows {
    SessionCache cache;
    MemoryContext context;
    Kept *rows;
    int n;
    int room;

    Kept *begin() const { return rows; }
    Kept *end() const { return rows + n; }

    /* keep(values, nulls, kept) has the row's first columns, and memory that lasts. Returns whether it looked anew. */
    template <typename Keep> bool refresh(Rel rel, int columns, Keep keep)
    {
        if (cache.holds(catalog_generation(rel)))
            return false;
        cache.refresh(catalog_generation(rel), [&] {
            if (context == nullptr)
                context = AllocSetContextCreate(TopMemoryContext, "ojs rows", ALLOCSET_SMALL_SIZES);
            MemoryContextReset(context);
            MemoryContextSetIdentifier(context, relation_name(rel)); /* in pg_backend_memory_contexts */
            rows = static_cast<Kept *>(MemoryContextAlloc(context, sizeof(Kept) * (room = 8)));
            n = 0;
            each_row(rel, [&](TupleTableSlot *slot) {
                slot_getsomeattrs(slot, columns);
                if (n == room)
                    rows = static_cast<Kept *>(repalloc_huge(rows, sizeof(Kept) * (room *= 2)));
                MemoryContext caller = MemoryContextSwitchTo(context);
                n += keep(slot->tts_values, slot->tts_isnull, rows[n]);
                MemoryContextSwitchTo(caller);
                return true;
            });
        });
        return true;
    }
};

} // namespace ojs::store
