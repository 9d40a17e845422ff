/*
 * in_doubt.cpp: see in_doubt.h.
 */
#include "ojs/hot_set/in_doubt.h"

#include "ojs/store/store.h"

namespace ojs
{

namespace
{

/* The jobs that the rows are about which open transactions have inserted or removed. */
void
add_jobs(HTAB *to, store::Rel rel)
{
    store::Table table = store::open(rel, AccessShareLock);
    SnapshotData dirty;
    InitDirtySnapshot(dirty);
    TableScanDesc scan = table_beginscan(table.rel, &dirty, 0, nullptr);
    while (table_scan_getnextslot(scan, ForwardScanDirection, table.slot)) {
        bool null;
        CHECK_FOR_INTERRUPTS();
        if (TransactionIdIsValid(dirty.xmin) || TransactionIdIsValid(dirty.xmax))
            (void)hash_search(to, DatumGetUUIDP(slot_getattr(table.slot, 1, &null)), HASH_ENTER, nullptr);
    }
    table_endscan(scan);
    store::close_and_unlock(table, AccessShareLock);
}

} // namespace

int
prepared_before(TransactionId xid)
{
    int n = 0;
    for (int i = 0; i < max_prepared_xacts; i++) { /* slots of those that have ended keep their numbers */
        const PGPROC &slot = PreparedXactProcs[i];
        n += slot.databaseId == MyDatabaseId && TransactionIdPrecedes(slot.xid, xid) &&
             TransactionIdIsInProgress(slot.xid);
    }
    return n;
}

HTAB *
undecided_jobs()
{
    if (prepared_before(ReadNextTransactionId()) == 0)
        return nullptr;
    HASHCTL control = {};
    control.keysize = control.entrysize = sizeof(pg_uuid_t);
    control.hcxt = CurrentMemoryContext;
    HTAB *jobs = hash_create("ojs undecided jobs", 64, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
    for (store::Rel rel :
         {store::Rel::job, store::Rel::job_history, store::Rel::finished, store::Rel::checkpoint, store::Rel::progress})
        add_jobs(jobs, rel);
    return jobs;
}

} // namespace ojs
