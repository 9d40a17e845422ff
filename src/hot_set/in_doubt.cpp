/*
 * in_doubt.cpp: see in_doubt.h.
 */
#include "ojs/hot_set/in_doubt.h"

#include "ojs/store/store.h"

namespace ojs
{

namespace
{

bool
any_prepared()
{
    for (int i = 0; i < max_prepared_xacts; i++) /* places of those that have ended keep their numbers */
        if (PreparedXactProcs[i].databaseId == MyDatabaseId && TransactionIdIsInProgress(PreparedXactProcs[i].xid))
            return true;
    return false;
}

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

HTAB *
undecided_jobs()
{
    if (!any_prepared())
        return nullptr;
    HASHCTL control = {};
    control.keysize = control.entrysize = sizeof(pg_uuid_t);
    control.hcxt = CurrentMemoryContext;
    HTAB *jobs = hash_create("ojs undecided jobs", 64, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
    for (store::Rel rel : {store::Rel::job, store::Rel::job_history, store::Rel::finished})
        add_jobs(jobs, rel);
    return jobs;
}

} // namespace ojs
