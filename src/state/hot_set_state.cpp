/*
 * hot_set_state.cpp: see hot_set_state.h.
 *
 * `hot_set_state` is unlogged like the hot set, so a crash, a promotion or a restore leaves it empty: then the hot set
 * must be rebuilt. A row with a time says that it was. A row from the beginning of time says that somebody has since
 * written to the logged tables by SQL (a restore): the trigger ojs_store.hot_set_lost() adds it, and a rebuild removes
 * those it has seen. A row with the cause `reconcile` tells of the last reconcile pass.
 */
#include "ojs/state/hot_set_state.h"

#include "ojs/store/store.h"

namespace ojs
{

static bool
is_text(Datum datum, std::string_view expected)
{
    text *value = DatumGetTextPP(datum);
    return std::string_view(VARDATA_ANY(value), VARSIZE_ANY_EXHDR(value)) == expected;
}

static HotSetState
read_hot_set_state(Snapshot snapshot)
{
    HotSetState state = {};
    Relation rel = store::open_relation(store::Rel::hot_set_state, AccessShareLock);
    TableScanDesc scan = table_beginscan(rel, snapshot, 0, nullptr);
    HeapTuple tuple;

    state.ours = rel->rd_createSubid != InvalidSubTransactionId;
    while ((tuple = heap_getnext(scan, ForwardScanDirection)) != nullptr) {
        Datum values[state_columns];
        bool nulls[state_columns];
        heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
        if (is_text(values[state_cause], "reconcile"))
            continue;
        state.ours |= TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data));
        if (TIMESTAMP_IS_NOBEGIN(DatumGetTimestampTz(values[state_rebuilt_at])))
            state.restored = true;
        else
            state.rebuilt_by = HeapTupleHeaderGetXmin(tuple->t_data);
    }
    table_endscan(scan);
    table_close(rel, AccessShareLock);
    state.valid = TransactionIdIsValid(state.rebuilt_by) && !state.restored;
    return state;
}

HotSetState
read_hot_set_state()
{
    return read_hot_set_state(SnapshotSelf);
}

bool
hot_set_answers(Snapshot snapshot)
{
    /* Whoever sees that transaction sees what it has rebuilt, until `hot_set_state` changes. An older snapshot does
     * not, in a transaction that began before the rebuild. */
    static TransactionId rebuilt_by;
    static uint64 known_generation;
    if (RecoveryInProgress())
        return false;
    uint64 generation = store::catalog_generation(store::Rel::hot_set_state);
    if (TransactionIdIsValid(rebuilt_by) && known_generation == generation && !XidInMVCCSnapshot(rebuilt_by, snapshot))
        return true;
    HotSetState state = read_hot_set_state(snapshot);
    if (!state.valid || state.ours)
        return state.valid;
    rebuilt_by = state.rebuilt_by;
    known_generation = generation;
    return true;
}

} // namespace ojs
