/*
 * read.cpp: finding rows: dirty walks along an index, and reads by a snapshot.
 */
#include "ojs/store/store.h"
#include "ojs/store/index_locks.h"

namespace ojs::store
{

/* Indexes that this session has opened for reading since forget_index_locks(). */
static struct IndexLocks {
    Oid index;
    int n;
} index_locks[static_cast<int>(Idx::count)];

static Relation
open_index(Idx index)
{
    IndexLocks &locks = index_locks[static_cast<int>(index)];
    Oid oid = index_oid(index);
    if (locks.index != oid)
        locks = {oid, 0};
    locks.n++;
    return index_open(oid, AccessShareLock);
}

void
forget_index_locks()
{
    for (IndexLocks &locks : index_locks)
        locks.n = 0;
}

void
unlock_indexes()
{
    for (IndexLocks &locks : index_locks)
        for (; locks.n > 0; locks.n--)
            UnlockRelationOid(locks.index, AccessShareLock);
}

/* A scan keeps as many keys as it was begun with; more would be left out without a word. */
static void
set_keys(IndexScanDesc desc, ScanKey keys, int n)
{
    if (n != desc->numberOfKeys)
        elog(ERROR, "an index scan of %d keys was begun anew with %d", desc->numberOfKeys, n);
    index_rescan(desc, keys, n, nullptr, 0);
}

void
begin(Scan &scan, Table &table, Idx index, ScanKey keys, int n, bool kill_dead)
{
    scan = {};
    scan.direction = ForwardScanDirection;
    scan.table = &table;
    scan.index = open_index(index);
    scan.kill_dead = kill_dead && is_out_of_plans(scan.index);
    InitDirtySnapshot(scan.dirty);
    scan.desc = index_begin(table.rel, scan.index, &scan.dirty, n);
    index_rescan(scan.desc, keys, n, nullptr, 0);
}

void
rescan(Scan &scan, ScanKey keys, int n)
{
    scan.saw_dead = false;
    set_keys(scan.desc, keys, n);
}

void
end(Scan &scan)
{
    index_endscan(scan.desc);
    index_close(scan.index, NoLock);
    ExecClearTuple(scan.table->slot);
}

/*
 * Whether the row at tid, which a dirty snapshot does not show, may have been deleted by this very transaction. Such a
 * delete may still be undone by a rollback, so nothing may be concluded from it. Of a row with several versions (a
 * chain of heap-only updates) only the first is looked at: it may.
 */
static bool
maybe_deleted_by_us(Table &table, ItemPointer tid)
{
    if (!TransactionIdIsValid(GetTopTransactionIdIfAny()))
        return false;
    bool ours = true; /* also where a chain's first version has been pruned away */
    if (table_tuple_fetch_row_version(table.rel, tid, SnapshotAny, table.slot)) {
        bool should_free;
        HeapTuple tuple = ExecFetchSlotHeapTuple(table.slot, false, &should_free);
        HeapTupleHeader header = tuple->t_data;
        bool ended = !(header->t_infomask & HEAP_XMAX_INVALID) && !HEAP_XMAX_IS_LOCKED_ONLY(header->t_infomask);
        ours = (header->t_infomask2 & HEAP_HOT_UPDATED) != 0 ||
               (ended && TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetUpdateXid(header)));
    }
    ExecClearTuple(table.slot);
    return ours;
}

/* The row of an index entry; none for a dead one. */
static Row
row_at(Scan &scan, ItemPointer tid)
{
    Table &table = *scan.table;
    bool again = false;
    bool all_dead = false;

    scan.tid = *tid;
    if (!table_index_fetch_tuple(scan.desc->xs_heapfetch, &scan.tid, &scan.dirty, table.slot, &again, &all_dead)) {
        bool ours = scan.kill_dead && !all_dead && maybe_deleted_by_us(table, tid);
        scan.saw_dead = true;
        scan.saw_ours |= ours;
        if (!scan.desc->xactStartedInRecovery) /* no entry is marked on a standby */
            scan.desc->kill_prior_tuple = all_dead || (scan.kill_dead && !ours);
        return Row::none;
    }
    scan.tid = table.slot->tts_tid; /* the newest version, where a heap-only update moved it */
    if (TransactionIdIsValid(scan.dirty.xmin))
        return Row::arriving;
    return TransactionIdIsValid(scan.dirty.xmax) ? Row::leaving : Row::live;
}

Row
next(Scan &scan)
{
    ItemPointer tid;
    Row row;

    while ((tid = index_getnext_tid(scan.desc, scan.direction)) != nullptr) {
        CHECK_FOR_INTERRUPTS();
        if ((row = row_at(scan, tid)) != Row::none)
            return row;
    }
    return Row::none;
}

void
keep_entries(Scan &scan, bool dead_too)
{
    scan.desc->xs_want_itup = true;
    if (dead_too)
        scan.desc->ignore_killed_tuples = false;
}

bool
next_entry(Scan &scan, int columns, Datum *values)
{
    if (index_getnext_tid(scan.desc, scan.direction) == nullptr)
        return false;
    for (int i = 0; i < columns; i++) {
        bool is_null;
        values[i] = index_getattr(scan.desc->xs_itup, i + 1, scan.desc->xs_itupdesc, &is_null);
    }
    return true;
}

Row
row_of_entry(Scan &scan)
{
    ItemPointerData tid = scan.desc->xs_heaptid;
    return row_at(scan, &tid);
}

bool
held_by_another(const Table &table)
{
    bool should_free;
    HeapTupleHeader header = ExecFetchSlotHeapTuple(table.slot, false, &should_free)->t_data;
    TransactionId xmax = HeapTupleHeaderGetRawXmax(header);
    if (header->t_infomask & HEAP_XMAX_INVALID)
        return false;
    if (header->t_infomask & HEAP_XMAX_IS_MULTI)
        return MultiXactIdIsRunning(xmax, HEAP_XMAX_IS_LOCKED_ONLY(header->t_infomask));
    return !TransactionIdIsCurrentTransactionId(xmax) && TransactionIdIsInProgress(xmax);
}

bool
first_entry(Scan &scan, ScanKey keys, int n, int column, Datum *value)
{
    /* Entries that are marked dead count: that is the point. Most often there is none, which this finds cheaply. */
    set_keys(scan.desc, keys, n);
    bool ignored = scan.desc->ignore_killed_tuples;
    scan.desc->ignore_killed_tuples = false;
    bool found = index_getnext_tid(scan.desc, ForwardScanDirection) != nullptr;
    scan.desc->ignore_killed_tuples = ignored;
    if (!found)
        return false;

    /* Only a scan that was told so at its start keeps the entries themselves. */
    IndexScanDesc desc = index_begin(scan.table->rel, scan.index, &scan.dirty, n);
    desc->xs_want_itup = true;
    desc->ignore_killed_tuples = false;
    index_rescan(desc, keys, n, nullptr, 0);
    found = index_getnext_tid(desc, ForwardScanDirection) != nullptr;
    if (found) {
        bool is_null;
        *value = index_getattr(desc->xs_itup, column, desc->xs_itupdesc, &is_null);
    }
    index_endscan(desc);
    return found;
}

void
key_uuid(ScanKey key, const pg_uuid_t &id)
{
    ScanKeyInit(key, 1, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(&id));
}

/* Whether the row in the slot is of job `id`; null: it need not be. Its first column is the id. */
static bool
is_of(Table &table, const pg_uuid_t *id)
{
    bool is_null;
    return id == nullptr || memcmp(DatumGetUUIDP(slot_getattr(table.slot, 1, &is_null)), id, sizeof *id) == 0;
}

/* What the server remembers of the file's length is at most too little: whoever cuts a file off or writes another says
 * so to all. */
bool
has_block(Relation rel, BlockNumber block)
{
    BlockNumber known = rel->rd_smgr != nullptr ? rel->rd_smgr->smgr_cached_nblocks[MAIN_FORKNUM] : InvalidBlockNumber;
    bool is_known = known != InvalidBlockNumber && block < known;
    return is_known || block < RelationGetNumberOfBlocks(rel);
}

bool
find_at(Table &table, const pg_uuid_t &id, ItemPointer tid)
{
    SnapshotData dirty;
    bool again = false;

    if (!ItemPointerIsValid(tid) || !has_block(table.rel, ItemPointerGetBlockNumber(tid)))
        return false;
    InitDirtySnapshot(dirty);
    IndexFetchTableData *fetch = table_index_fetch_begin(table.rel);
    bool there = table_index_fetch_tuple(fetch, tid, &dirty, table.slot, &again, nullptr) &&
                 !TransactionIdIsValid(dirty.xmin) && !TransactionIdIsValid(dirty.xmax) && is_of(table, &id);
    table_index_fetch_end(fetch);
    if (there)
        *tid = table.slot->tts_tid;
    return there;
}

static bool
read(Table &table, Idx index, ScanKey keys, int n, const pg_uuid_t *id, Snapshot snapshot)
{
    Relation index_rel = open_index(index);
    IndexScanDesc desc = index_begin(table.rel, index_rel, snapshot, n);
    index_rescan(desc, keys, n, nullptr, 0);
    bool found = false;
    while (!found && index_getnext_slot(desc, ForwardScanDirection, table.slot))
        found = is_of(table, id);
    if (found)
        ExecMaterializeSlot(table.slot);
    index_endscan(desc);
    index_close(index_rel, NoLock);
    return found;
}

Row
find(Table &table, Idx index, ScanKey keys, int n, const pg_uuid_t *id, ItemPointer tid)
{
    Scan scan;
    Row row;
    bool arriving = false;      /* passed a row whose maker is still at work: … */
    bool take_arriving = false; /* … good enough only where there is no other, such as the version it replaces */

    begin(scan, table, index, keys, n, false);
    for (;;) {
        do
            row = next(scan);
        while (row != Row::none && !is_of(table, id));
        if (row == Row::arriving && !take_arriving) {
            arriving = true;
            continue;
        }
        if (row != Row::none)
            break;
        if (arriving && !take_arriving)
            take_arriving = true;
        else {
            if (!scan.saw_dead)
                break;
            /* A dirty scan can miss a row that moves between the visits of index and table. If it came by an entry that
             * led nowhere, only a snapshot can say for certain that there is no row; one that knows what this very
             * command has deleted. */
            Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
            snapshot->curcid = GetCurrentCommandId(false) + 1;
            bool there = read(table, index, keys, n, id, snapshot);
            UnregisterSnapshot(snapshot);
            if (!there)
                break;
            arriving = take_arriving = false;
        }
        rescan(scan, keys, n);
    }
    *tid = scan.tid;
    index_endscan(scan.desc);
    index_close(scan.index, NoLock);
    return row;
}

Row
find(Table &table, Idx index, const pg_uuid_t &id, ItemPointer tid)
{
    ScanKeyData key;
    key_uuid(&key, id);
    return find(table, index, &key, 1, nullptr, tid);
}

bool
read(Table &table, Idx index, const pg_uuid_t &id, Snapshot snapshot)
{
    ScanKeyData key;
    key_uuid(&key, id);
    return read(table, index, &key, 1, nullptr, snapshot);
}

bool
read_at(Table &table, ItemPointer tid)
{
    return ItemPointerIsValid(tid) && has_block(table.rel, ItemPointerGetBlockNumber(tid)) &&
           table_tuple_fetch_row_version(table.rel, tid, SnapshotSelf, table.slot);
}

BlockNumber
blocks_of(Table &table)
{
    return RelationGetNumberOfBlocks(table.rel);
}

void
begin(BlockWalk &walk, Table &table, BlockNumber first, BlockNumber n)
{
    ItemPointerData from;
    ItemPointerData to;
    ItemPointerSet(&from, first, FirstOffsetNumber);
    ItemPointerSet(&to, first + n - 1, MaxOffsetNumber);
    walk.table = &table;
    walk.snapshot = RegisterSnapshot(GetLatestSnapshot());
    walk.desc = table_beginscan_tidrange(table.rel, walk.snapshot, &from, &to);
}

bool
next(BlockWalk &walk)
{
    CHECK_FOR_INTERRUPTS();
    return table_scan_getnextslot_tidrange(walk.desc, ForwardScanDirection, walk.table->slot);
}

void
end(BlockWalk &walk)
{
    table_endscan(walk.desc);
    UnregisterSnapshot(walk.snapshot);
    ExecClearTuple(walk.table->slot);
}

void
wait_for(const Scan &scan)
{
    TransactionId xid = TransactionIdIsValid(scan.dirty.xmin) ? scan.dirty.xmin : scan.dirty.xmax;
    if (TransactionIdIsValid(scan.dirty.xmin) && scan.dirty.speculativeToken != 0)
        SpeculativeInsertionWait(xid,
                                 scan.dirty.speculativeToken); /* it may be taken back before that transaction ends */
    else if (TransactionIdIsValid(xid)) {
        ItemPointerData tid = scan.tid;
        XactLockTableWait(xid, scan.table->rel, &tid, XLTW_Delete);
    }
}

bool
may_hold(Relation rel, int64 value)
{
    constexpr BlockNumber few_blocks = 16;
    int rows_left = 500; /* more take longer than the index */
    BlockNumber blocks = RelationGetNumberOfBlocks(rel);
    bool found = blocks > few_blocks;
    for (BlockNumber block = 0; block < blocks && !found; block++) {
        Buffer buffer = ReadBuffer(rel, block);
        Page page = BufferGetPage(buffer);
        LockBuffer(buffer, BUFFER_LOCK_SHARE);
        OffsetNumber last = PageGetMaxOffsetNumber(page);
        rows_left -= last;
        found = rows_left < 0;
        for (OffsetNumber i = FirstOffsetNumber; i <= last && !found; i++) {
            ItemId item = PageGetItemId(page, i);
            if (!ItemIdIsNormal(item))
                continue;
            auto *row = reinterpret_cast<HeapTupleHeader>(PageGetItem(page, item));
            bool dead = HeapTupleHeaderXminInvalid(row) ||
                        ((row->t_infomask & HEAP_XMAX_COMMITTED) && !HEAP_XMAX_IS_LOCKED_ONLY(row->t_infomask));
            found = !dead && memcmp(reinterpret_cast<char *>(row) + row->t_hoff, &value, sizeof value) == 0;
        }
        UnlockReleaseBuffer(buffer);
    }
    return found;
}

} // namespace ojs::store
