/*
 * indexes.cpp: index entries where a table has other indexes than ours.
 *
 * Ours are plain. But whoever administers the database may add one, of an expression or of some of the rows, and REINDEX
 * CONCURRENTLY has two of one index for a while: a row that is missing in the new one would be missing for good.
 */
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

bool
all_plain(CatalogIndexState indexes)
{
    for (int i = 0; i < indexes->ri_NumIndices; i++) {
        const IndexInfo *index = indexes->ri_IndexRelationInfo[i];
        if (index->ii_Expressions != NIL || index->ii_Predicate != NIL || index->ii_ExclusionOps != nullptr)
            return false;
    }
    return true;
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
insert_entries(Relation rel, TupleTableSlot *slot, bool unless_there)
{
    EState *state = CreateExecutorState();
    auto *indexes = makeNode(ResultRelInfo);
    bool conflict = false;

    InitResultRelInfo(indexes, rel, 0, nullptr, 0);
    ExecOpenIndices(indexes, false);
    insert_index_tuples(indexes, slot, state, unless_there ? &conflict : nullptr, unless_there ? keys_of(indexes) : NIL);
    ExecCloseIndices(indexes);
    FreeExecutorState(state);
    return !conflict;
}

} // namespace ojs::store
