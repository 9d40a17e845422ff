/*
 * write.cpp: opening the tables, and the verbs that change them.
 */
#include "ojs/store/store.h"

namespace ojs::store
{

Watcher watcher;

void
watch(const Table &table, HeapTuple tuple, int change)
{
    if (watcher != nullptr && (table.which == Rel::ready || table.which == Rel::lease || table.which == Rel::delayed ||
                               table.which == Rel::finished))
        watcher(table.which, tuple->t_data, change);
}

/* A hundred jobs take 400 kB for a moment. glibc gives what is free beyond 128 kB back to the system at once, and gets
 * it anew for the next call, page by page: a fifteenth of the server's time, and what that pushes out of its caches.
 * Once a piece of this size has been freed, it keeps twice as much. The piece itself is never touched. */
static void
keep_freed_memory()
{
    static bool done;
    if (!done)
        pfree(palloc(1024 * 1024));
    done = true;
}

void
begin_write(const char *what)
{
    PreventCommandIfReadOnly(what);
    PreventCommandIfParallelMode(what);
    PreventCommandDuringRecovery(what);
    /* A pause, a limit or a rebuild that committed before this call is heard of now, even where the locks that this
     * call takes are held already. */
    AcceptInvalidationMessages();
    begin_noting_writes();
    keep_freed_memory();
}

void
end_write()
{
    end_noting_writes();
    CommandCounterIncrement();
}

WriteMark
write_mark()
{
    CommandCounterIncrement(); /* does nothing unless this command has written */
    return {GetTopTransactionIdIfAny(), GetCurrentCommandId(false)};
}

Table
open(Rel rel, LOCKMODE mode)
{
    Table table = {};
    table.context = CurrentMemoryContext;
    table.owner = CurrentResourceOwner;
    table.rel = open_relation(rel, mode);
    table.which = rel;
    table.slot = MakeSingleTupleTableSlot(RelationGetDescr(table.rel), table_slot_callbacks(table.rel));
    return table;
}

static void
release(Table &table, LOCKMODE mode)
{
    Home home(table.context, table.owner);
    ExecDropSingleTupleTableSlot(table.slot);
    close_indexes(table);
    table_close(table.rel, mode);
    home.leave();
    table = {};
}

void
close(Table &table)
{
    release(table, NoLock);
}

void
close_and_unlock(Table &table, LOCKMODE mode)
{
    release(table, mode);
}

void
insert(Table &table, HeapTuple tuple)
{
    simple_heap_insert(table.rel, tuple);
    insert_entries(table, tuple, &tuple->t_self);
    watch(table, tuple, 1);
}

void
insert_many(Table &table, HeapTuple *tuples, int n)
{
    if (n == 0)
        return;
    if (n == 1) {
        insert(table, tuples[0]);
        return;
    }
    /* A descriptor of our own: the relation's is reference counted, and a thousand slots of it make resource
     * bookkeeping quadratic. */
    TupleDesc desc = CreateTupleDescCopy(RelationGetDescr(table.rel));
    auto **slots = static_cast<TupleTableSlot **>(palloc(sizeof(TupleTableSlot *) * n));
    for (int i = 0; i < n; i++) {
        slots[i] = MakeSingleTupleTableSlot(desc, &TTSOpsHeapTuple);
        ExecStoreHeapTuple(tuples[i], slots[i], true); /* the slot's own is not copied */
    }
    heap_multi_insert(table.rel, slots, n, GetCurrentCommandId(true), 0, nullptr);
    for (int i = 0; i < n; i++) {
        slots[i]->tts_flags &= ~TTS_FLAG_SHOULDFREE; /* but still the caller's */
        tuples[i]->t_self = slots[i]->tts_tid;       /* of a row that is toasted, only the slot says it */
        insert_entries(table, tuples[i], &tuples[i]->t_self);
        watch(table, tuples[i], 1);
        ExecDropSingleTupleTableSlot(slots[i]);
    }
    pfree(slots);
    FreeTupleDesc(desc);
}

static Outcome
outcome(TM_Result result)
{
    switch (result) {
    case TM_Ok:
        return Outcome::ok;
    case TM_WouldBlock:
    case TM_BeingModified:
        return Outcome::busy;
    default: /* deleted, updated, by ourselves too, or not visible to this command */
        return Outcome::gone;
    }
}

/*
 * Pins the block of a row that is to be locked or deleted by its address, which the server's calls for that trust;
 * tells whether there is a row. A row that was seen stays at its address while the slot keeps its block pinned, or
 * under a snapshot that is older than the look. Only a row whose inserter has aborted goes at any time: its line
 * pointer may be unused by now.
 */
struct Pin {
    Buffer buffer; /* invalid: the slot has pinned it */
    bool there;
};

static Pin
pin_row(const Table &table, ItemPointer tid)
{
    BlockNumber block = ItemPointerGetBlockNumber(tid);
    OffsetNumber offset = ItemPointerGetOffsetNumber(tid);
    Buffer buffer = TTS_IS_BUFFERTUPLE(table.slot) && !TTS_EMPTY(table.slot)
                        ? reinterpret_cast<const BufferHeapTupleTableSlot *>(table.slot)->buffer
                        : InvalidBuffer;
    bool by_slot = BufferIsValid(buffer) && BufferGetBlockNumber(buffer) == block;
    if (!(by_slot && ItemPointerEquals(&table.slot->tts_tid, tid)) && !holds_snapshot())
        elog(ERROR, "a row of ojs_store.%s is to be changed without a snapshot or a pin that keeps it in its place",
             relation_name(table.which));
    if (!by_slot)
        buffer = ReadBuffer(table.rel, block);
    /* No line pointer that leads to a row changes while the block is pinned. */
    Page page = BufferGetPage(buffer);
    bool there = offset <= PageGetMaxOffsetNumber(page) && ItemIdIsNormal(PageGetItemId(page, offset));
    return {by_slot ? InvalidBuffer : buffer, there};
}

static void
unpin(const Pin &pin)
{
    if (BufferIsValid(pin.buffer))
        ReleaseBuffer(pin.buffer);
}

/* Which rows the slot shows while a tuple lock is taken: whatever is there. */
static TM_Result
lock_tuple(Table &table, ItemPointer tid, LockWaitPolicy policy)
{
    TM_FailureData failure;
    SnapshotData any;
    Pin pin = pin_row(table, tid);
    if (!pin.there) {
        unpin(pin);
        return TM_Deleted;
    }
    InitDirtySnapshot(any);
    TM_Result result = table_tuple_lock(table.rel, tid, &any, table.slot, GetCurrentCommandId(false),
                                        LockTupleExclusive, policy, 0, &failure);
    unpin(pin);
    if (result == TM_Ok)
        (void)GetCurrentCommandId(true); /* only now has this command written (write_mark) */
    return result;
}

Outcome
lock(Table &table, ItemPointer tid, bool wait)
{
    return outcome(lock_tuple(table, tid, wait ? LockWaitBlock : LockWaitSkip));
}

static TM_Result
delete_tuple(Table &table, ItemPointer tid, bool wait)
{
    TM_FailureData failure;
    Pin pin = pin_row(table, tid);
    TM_Result result = pin.there ? table_tuple_delete(table.rel, tid, GetCurrentCommandId(true), InvalidSnapshot,
                                                      InvalidSnapshot, wait, &failure, false)
                                 : TM_Deleted;
    unpin(pin);
    return result;
}

/* The row at tid has just been deleted by us, so it is still there; most often it is in the slot too. */
static void
watch_deleted(Table &table, ItemPointer tid)
{
    note_taken(table, tid);
    if (!TTS_EMPTY(table.slot) && ItemPointerEquals(&table.slot->tts_tid, tid)) {
        bool should_free;
        watch(table, ExecFetchSlotHeapTuple(table.slot, false, &should_free), -1);
        return;
    }
    HeapTupleData tuple;
    Buffer buffer;
    tuple.t_self = *tid;
    if (!fetch_any(table.rel, &tuple, &buffer))
        elog(ERROR, "a row that was just deleted is not there");
    watch(table, &tuple, -1);
    ReleaseBuffer(buffer);
}

/* Whether the slot shows a row at tid that is there for everyone, and that nobody has touched. The slot's pin keeps it
 * from being another row by now. */
static bool
seen_free(const Table &table, ItemPointer tid)
{
    if (TTS_EMPTY(table.slot) || !ItemPointerEquals(&table.slot->tts_tid, tid))
        return false;
    bool should_free;
    HeapTupleHeader row = ExecFetchSlotHeapTuple(table.slot, false, &should_free)->t_data;
    return HeapTupleHeaderXminCommitted(row) && (row->t_infomask & HEAP_XMAX_INVALID) != 0;
}

Outcome
take(Table &table, ItemPointer tid, bool at_once)
{
    if (at_once && seen_free(table, tid))
        return take_seen(table, tid);
    TM_Result result = lock_tuple(table, tid, LockWaitSkip);
    if (result == TM_Ok)
        result = delete_tuple(table, tid, true); /* "wait" for our own lock, which is none */
    if (result == TM_Ok)
        watch_deleted(table, tid);
    return outcome(result);
}

Outcome
take_seen(Table &table, ItemPointer tid)
{
    TM_Result result = delete_tuple(table, tid, false);
    if (result == TM_Ok)
        watch_deleted(table, tid);
    return outcome(result);
}

Outcome
take_waiting(Table &table, ItemPointer tid)
{
    TM_Result result = delete_tuple(table, tid, true);
    if (result == TM_Ok)
        watch_deleted(table, tid);
    return outcome(result);
}

void
replace(Table &table, ItemPointer tid, HeapTuple tuple)
{
    TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(table.rel), &TTSOpsHeapTuple);
    ExecStoreHeapTuple(tuple, slot, false);
    NewEntries needed = update_tuple(table.rel, tid, slot);
    if (needed == NewEntries::all)
        insert_entries(table, tuple, &slot->tts_tid);
    else if (needed == NewEntries::summaries)
        (void)insert_any_entries(table.rel, slot, false, needed);
    ExecDropSingleTupleTableSlot(slot);
}

/* The index entry of the row in `slot`. UNIQUE_CHECK_PARTIAL: false, without waiting, if there may be another one. */
static bool
insert_key(Table &table, Idx index, TupleTableSlot *slot, IndexUniqueCheck check)
{
    if (!only_ours(table.rel))
        return insert_any_entries(table.rel, slot, check == UNIQUE_CHECK_PARTIAL);
    Relation index_rel = index_open(index_oid(index), RowExclusiveLock);
    Datum values[INDEX_MAX_KEYS];
    bool nulls[INDEX_MAX_KEYS];
    values[0] = slot_getattr(slot, 1, &nulls[0]);
    /* B-trees want no more description of the index than its relation. */
    bool alone = index_insert(index_rel, values, nulls, &slot->tts_tid, table.rel, check, false, nullptr);
    index_close(index_rel, NoLock);
    return alone;
}

bool
insert_unless_there(Table &table, Idx index, HeapTuple tuple)
{
    /* Speculative, as the executor does it: who meets the row before it is confirmed waits for the token only, and a
     * row that is taken back was never there. Two that meet would otherwise wait for each other. */
    TransactionId xid = GetCurrentTransactionId();
    TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(table.rel), &TTSOpsHeapTuple);
    ExecStoreHeapTuple(tuple, slot, false);
    uint32 token = SpeculativeInsertionLockAcquire(xid);
    table_tuple_insert_speculative(table.rel, slot, GetCurrentCommandId(true), 0, nullptr, token);
    bool alone = insert_key(table, index, slot, UNIQUE_CHECK_PARTIAL);
    table_tuple_complete_speculative(table.rel, slot, token, alone);
    SpeculativeInsertionLockRelease(xid);
    tuple->t_self = slot->tts_tid; /* the slot had a copy */
    ExecDropSingleTupleTableSlot(slot);
    return alone;
}

void
replace_keyed(Table &table, Idx index, ItemPointer tid, HeapTuple tuple)
{
    TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(table.rel), &TTSOpsHeapTuple);
    ExecStoreHeapTuple(tuple, slot, false);
    NewEntries needed = update_tuple(table.rel, tid, slot);
    if (needed == NewEntries::all)
        insert_key(table, index, slot, UNIQUE_CHECK_YES);
    else if (needed == NewEntries::summaries)
        (void)insert_any_entries(table.rel, slot, false, needed);
    ExecDropSingleTupleTableSlot(slot);
}

} // namespace ojs::store
