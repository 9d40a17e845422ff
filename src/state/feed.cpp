/*
 * feed.cpp: see feed.h.
 *
 * `feed` is unlogged like the hot set, so a crash, a promotion or a restore leaves it empty: then the hot set must be
 * rebuilt. A row with a time says that it was. A row from the beginning of time says that somebody has since written
 * to the logged tables by SQL (a restore): the trigger ojs_store.hot_set_lost() adds it, and a rebuild removes those
 * it has seen. A row with the cause `reconcile` tells of the last reconcile pass.
 */
#include "ojs/state/feed.h"

#include "ojs/store/store.h"

namespace ojs
{

static bool
is_text(Datum datum, std::string_view expected)
{
    text *value = DatumGetTextPP(datum);
    return std::string_view(VARDATA_ANY(value), VARSIZE_ANY_EXHDR(value)) == expected;
}

static Feed
read_feed(Snapshot snapshot)
{
    Feed feed = {};
    Relation rel = store::open_relation(store::Rel::feed, AccessShareLock);
    TableScanDesc scan = table_beginscan(rel, snapshot, 0, nullptr);
    HeapTuple tuple;

    feed.ours = rel->rd_createSubid != InvalidSubTransactionId;
    while ((tuple = heap_getnext(scan, ForwardScanDirection)) != nullptr) {
        Datum values[feed_columns];
        bool nulls[feed_columns];
        heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
        if (is_text(values[feed_cause], "reconcile"))
            continue;
        feed.ours |= TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data));
        if (TIMESTAMP_IS_NOBEGIN(DatumGetTimestampTz(values[feed_rebuilt_at])))
            feed.restored = true;
        else
            feed.rebuilt_by = HeapTupleHeaderGetXmin(tuple->t_data);
    }
    table_endscan(scan);
    table_close(rel, AccessShareLock);
    feed.stands = TransactionIdIsValid(feed.rebuilt_by) && !feed.restored;
    return feed;
}

Feed
read_feed()
{
    return read_feed(SnapshotSelf);
}

bool
hot_set_answers(Snapshot snapshot)
{
    /* Whoever sees that transaction sees what it has rebuilt, until `feed` changes. An older snapshot does not, in a
     * transaction that began before the rebuild. */
    static TransactionId rebuilt_by;
    static uint64 known_generation;
    if (RecoveryInProgress())
        return false;
    uint64 generation = store::catalog_generation(store::Rel::feed);
    if (TransactionIdIsValid(rebuilt_by) && known_generation == generation && !XidInMVCCSnapshot(rebuilt_by, snapshot))
        return true;
    Feed feed = read_feed(snapshot);
    if (!feed.stands || feed.ours)
        return feed.stands;
    rebuilt_by = feed.rebuilt_by;
    known_generation = generation;
    return true;
}

} // namespace ojs
