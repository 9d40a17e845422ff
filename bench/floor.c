/*
 * floor.c: the least that a queue in this design writes, as a bound of what ojs could cost at best. A job waits and
 * is held in unlogged tables, a held one is found by its id and by its time, a finished one stays. Nothing is looked
 * for or checked: a claim takes the jobs in the order of the table, by a sequence, and an ack ends what its session has
 * claimed.
 *
 * The tables are in systems/floor.sql.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "commands/sequence.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

PG_MODULE_MAGIC;

#define MOST 1000

static ItemPointerData held[MOST];
static int n_held;

enum { JOB, READY, LEASE, LEASE_JOB, LEASE_DEADLINE, FINISHED, FINISHED_JOB, TAKEN, RELATIONS };

static Oid relation(int which) {
    static const char *const names[RELATIONS] = {"job", "ready", "lease", "lease_job", "lease_deadline", "finished",
        "finished_job", "taken"};
    static Oid oids[RELATIONS];
    if (!OidIsValid(oids[which]))
        oids[which] = get_relname_relid(names[which], get_namespace_oid("public", false));
    return oids[which];
}

static Tuplestorestate *begin_rows(ReturnSetInfo *result) {
    MemoryContext caller = MemoryContextSwitchTo(result->econtext->ecxt_per_query_memory);
    result->returnMode = SFRM_Materialize;
    result->setDesc = CreateTupleDescCopy(result->expectedDesc);
    result->setResult = tuplestore_begin_heap(false, false, work_mem);
    MemoryContextSwitchTo(caller);
    return result->setResult;
}

static bool fetch(Relation rel, TupleTableSlot *slot, ItemPointer tid) {
    if (!table_tuple_fetch_row_version(rel, tid, SnapshotAny, slot)) return false;
    slot_getallattrs(slot);
    return true;
}

static void take(Relation rel, ItemPointer tid) {
    TM_FailureData failure;
    if (table_tuple_delete(rel, tid, GetCurrentCommandId(true), InvalidSnapshot, InvalidSnapshot, false, &failure,
            false) != TM_Ok)
        elog(ERROR, "the row has gone");
}

static void insert(Relation rel, HeapTuple *rows, int n, const int *indexes, const int *columns,
        int n_indexes) {
    TupleTableSlot *slots[MOST];
    for (int i = 0; i < n; i++) {
        slots[i] = MakeSingleTupleTableSlot(RelationGetDescr(rel), &TTSOpsHeapTuple);
        ExecStoreHeapTuple(rows[i], slots[i], false);
    }
    if (n == 1)
        table_tuple_insert(rel, slots[0], GetCurrentCommandId(true), 0, NULL);
    else if (n > 1)
        heap_multi_insert(rel, slots, n, GetCurrentCommandId(true), 0, NULL);
    for (int k = 0; k < n_indexes; k++) {
        Relation index = index_open(relation(indexes[k]), RowExclusiveLock);
        for (int i = 0; i < n; i++) {
            bool null;
            Datum key = slot_getattr(slots[i], columns[k], &null);
            index_insert(index, &key, &null, &slots[i]->tts_tid, rel,
                index->rd_index->indisunique ? UNIQUE_CHECK_YES : UNIQUE_CHECK_NO, false, NULL);
        }
        index_close(index, NoLock);
    }
    for (int i = 0; i < n; i++) {
        rows[i]->t_self = slots[i]->tts_tid;
        ExecDropSingleTupleTableSlot(slots[i]);
    }
}

/* floor_claim(max int) returns setof (id, args, type, lease_id) */
PG_FUNCTION_INFO_V1(floor_claim);
Datum floor_claim(PG_FUNCTION_ARGS) {
    static const int indexes[] = {LEASE_JOB, LEASE_DEADLINE};
    static const int columns[] = {1, 2};
    static int rows_per_page;
    HeapTuple leases[MOST];
    int max = Min(PG_GETARG_INT32(0), MOST);
    Relation ready = table_open(relation(READY), RowExclusiveLock);
    Relation lease = table_open(relation(LEASE), RowExclusiveLock);
    Relation job = table_open(relation(JOB), AccessShareLock);
    TupleTableSlot *row = table_slot_create(ready, NULL), *envelope = table_slot_create(job, NULL);
    Oid sequence = relation(TAKEN);
    BlockNumber blocks = RelationGetNumberOfBlocks(ready);
    ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
    Tuplestorestate *shown_rows = begin_rows(result);

    if (rows_per_page == 0) {
        Buffer buffer = ReadBuffer(ready, 0);
        rows_per_page = PageGetMaxOffsetNumber(BufferGetPage(buffer));
        ReleaseBuffer(buffer);
    }
    for (n_held = 0; n_held < max; n_held++) {
        int64 number = nextval_internal(sequence, false) - 1;
        ItemPointerData tid, job_tid;
        bool nulls[8] = {false};
        if (number / rows_per_page >= blocks) break;
        ItemPointerSet(&tid, number / rows_per_page, number % rows_per_page + 1);
        if (!fetch(ready, row, &tid)) break; /* a page that is not full */
        job_tid = *(ItemPointer) DatumGetPointer(row->tts_values[2]);
        Datum held_row[] = {row->tts_values[0], TimestampTzGetDatum(GetCurrentTimestamp() + 30 * USECS_PER_SEC),
            Int64GetDatum(number), row->tts_values[1], PointerGetDatum(&job_tid),
            PointerGetDatum(cstring_to_text("worker"))};
        leases[n_held] = heap_form_tuple(RelationGetDescr(lease), held_row, nulls);
        take(ready, &tid);
        if (!fetch(job, envelope, &job_tid)) elog(ERROR, "a job has gone");
        Datum shown[] = {envelope->tts_values[0], envelope->tts_values[5], envelope->tts_values[4],
            envelope->tts_values[0]};
        tuplestore_putvalues(shown_rows, result->setDesc, shown, nulls);
    }
    insert(lease, leases, n_held, indexes, columns, lengthof(indexes));
    for (int i = 0; i < n_held; i++)
        held[i] = leases[i]->t_self;
    ExecDropSingleTupleTableSlot(row);
    ExecDropSingleTupleTableSlot(envelope);
    table_close(ready, NoLock);
    table_close(lease, NoLock);
    table_close(job, NoLock);
    return (Datum) 0;
}

/* floor_ack() returns int */
PG_FUNCTION_INFO_V1(floor_ack);
Datum floor_ack(PG_FUNCTION_ARGS) {
    static const int indexes[] = {FINISHED_JOB};
    static const int columns[] = {1};
    HeapTuple rows[MOST];
    Relation lease = table_open(relation(LEASE), RowExclusiveLock);
    Relation finished = table_open(relation(FINISHED), RowExclusiveLock);
    TupleTableSlot *slot = table_slot_create(lease, NULL);
    for (int i = 0; i < n_held; i++) {
        bool nulls[6] = {false};
        if (!fetch(lease, slot, &held[i])) elog(ERROR, "a lease has gone");
        Datum row[] = {slot->tts_values[0], TimestampTzGetDatum(GetCurrentTimestamp()), slot->tts_values[3],
            Int32GetDatum(1), slot->tts_values[1], slot->tts_values[5]};
        rows[i] = heap_form_tuple(RelationGetDescr(finished), row, nulls);
        take(lease, &held[i]);
    }
    insert(finished, rows, n_held, indexes, columns, lengthof(indexes));
    ExecDropSingleTupleTableSlot(slot);
    table_close(lease, NoLock);
    table_close(finished, NoLock);
    PG_RETURN_INT32(n_held);
}
