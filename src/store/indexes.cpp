/*
 * indexes.cpp: index entries.
 *
 * Most of our indexes are plain: B-trees of columns, over all rows. They need nothing of the executor. Nor do those
 * that are out of plans, whose predicate holds for every row, and ready_job, since its predicate is known here. But
 * whoever administers the database may add another kind, and REINDEX CONCURRENTLY has two of one index for a while: a
 * row that is missing in the new one would be missing for good.
 */
#include "ojs/store/rows.h"
#include "ojs/store/store.h"

namespace ojs::store
{

bool
only_ours(Relation rel)
{
    List *indexes = RelationGetIndexList(rel);
    bool one = list_length(indexes) == 1;
    list_free(indexes);
    return one;
}

static bool
is_partial(Relation index)
{
    return !heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, nullptr);
}

bool
is_out_of_plans(Relation index)
{
    return index->rd_rel->relpersistence == RELPERSISTENCE_UNLOGGED && is_partial(index);
}

static bool
holds_all_rows(Relation index)
{
    return !is_partial(index) || std::any_of(std::begin(out_of_plans), std::end(out_of_plans),
                                             [index](Idx one) { return index_oid(one) == RelationGetRelid(index); });
}

static bool
is_plain(Relation index)
{
    return index->rd_rel->relam == BTREE_AM_OID && index->rd_index->indimmediate && !index->rd_index->indisexclusion &&
           heap_attisnull(index->rd_indextuple, Anum_pg_index_indexprs, nullptr) && holds_all_rows(index);
}

static void
open_indexes(Table &table)
{
    Home home(table.context, table.owner);
    List *ids = RelationGetIndexList(table.rel);
    table.all_plain = true;
    for (int i = 0; i < list_length(ids); i++) {
        if (list_nth_oid(ids, i) == index_oid(Idx::ready_job))
            continue;
        Relation index = index_open(list_nth_oid(ids, i), RowExclusiveLock);
        table.indexes = lappend(table.indexes, index);
        table.all_plain &= is_plain(index);
    }
    list_free(ids);
    home.leave();
}

/* The unique indexes on the first column alone: ours, and its copies. */
static List *
keys_of(const ResultRelInfo *indexes)
{
    List *keys = NIL;
    for (int i = 0; i < indexes->ri_NumIndices; i++) {
        const IndexInfo *index = indexes->ri_IndexRelationInfo[i];
        if (index->ii_Unique && index->ii_NumIndexKeyAttrs == 1 && index->ii_IndexAttrNumbers[0] == 1)
            keys = lappend_oid(keys, RelationGetRelid(indexes->ri_IndexRelationDescs[i]));
    }
    return keys;
}

bool
insert_any_entries(Relation rel, TupleTableSlot *slot, bool unless_there, NewEntries which)
{
    EState *state = CreateExecutorState();
    auto *indexes = makeNode(ResultRelInfo);
    bool conflict = false;

    slot->tts_tableOid = RelationGetRelid(rel); /* which not every slot has been told, and indexes may ask for */
    InitResultRelInfo(indexes, rel, 0, nullptr, 0);
    ExecOpenIndices(indexes, false);
    insert_index_tuples(indexes, slot, state, unless_there ? &conflict : nullptr, unless_there ? keys_of(indexes) : NIL,
                        which);
    ExecCloseIndices(indexes);
    FreeExecutorState(state);
    return !conflict;
}

static void
insert_entry(Relation index, const Table &table, HeapTuple tuple, ItemPointer tid)
{
    Form_pg_index form = index->rd_index;
    Datum values[INDEX_MAX_KEYS];
    bool nulls[INDEX_MAX_KEYS];
    if (!form->indisready)
        return;
    for (int k = 0; k < form->indnatts; k++)
        values[k] = heap_getattr(tuple, form->indkey.values[k], RelationGetDescr(table.rel), &nulls[k]);
    /* B-trees want no more description of the index than its relation. */
    (void)index_insert(index, values, nulls, tid, table.rel, form->indisunique ? UNIQUE_CHECK_YES : UNIQUE_CHECK_NO,
                       false, nullptr);
}

static bool
is_moved(const Table &table, HeapTuple tuple)
{
    constexpr int flags = number_of<ReadyRow>(&ReadyRow::flags) + 1;
    bool null;
    return table.which == Rel::ready &&
           (DatumGetInt32(heap_getattr(tuple, flags, RelationGetDescr(table.rel), &null)) & ready_moved) != 0;
}

void
insert_entries(Table &table, HeapTuple tuple, ItemPointer tid)
{
    if (table.indexes == NIL)
        open_indexes(table);
    if (!table.all_plain) {
        TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(table.rel), &TTSOpsHeapTuple);
        ExecStoreHeapTuple(tuple, slot, false);
        slot->tts_tid = *tid;
        (void)insert_any_entries(table.rel, slot, false);
        ExecDropSingleTupleTableSlot(slot);
        return;
    }
    for (int i = 0; i < list_length(table.indexes); i++)
        insert_entry(static_cast<Relation>(list_nth(table.indexes, i)), table, tuple, tid);
    if (is_moved(table, tuple)) {
        Relation index = index_open(index_oid(Idx::ready_job), RowExclusiveLock);
        insert_entry(index, table, tuple, tid);
        index_close(index, NoLock);
    }
}

void
close_indexes(Table &table)
{
    for (int i = 0; i < list_length(table.indexes); i++)
        index_close(static_cast<Relation>(list_nth(table.indexes, i)), NoLock);
    list_free(table.indexes);
}

} // namespace ojs::store
