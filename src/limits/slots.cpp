/*
 * slots.cpp: see slots.h.
 */
#include "ojs/limits/slots.h"

#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/queue/queue.h"
#include "ojs/shared/wakeup.h"
#include "ojs/store/name_hash.h"

namespace ojs
{

namespace
{

constexpr int many_changes = 16; /* rows of a key that are merged */

LOCKTAG
turn_tag()
{
    LOCKTAG tag;
    SET_LOCKTAG_OBJECT(tag, MyDatabaseId, store::relation_oid(store::Rel::limit_use), 0, 2);
    return tag;
}

/* What stands in `key` of a held job's rows. Two jobs may have the same. */
int64
key_of(const pg_uuid_t &job_id)
{
    int64 key;
    memcpy(&key, job_id.data + 8, sizeof key);
    return key;
}

void
add_settled(SlotChanges &changes, const ItemPointerData &tid, int64 number)
{
    if (changes.n == changes.room) {
        int room = std::max(64, changes.room * 2);
        auto *wider = static_cast<SlotChanges::Settled *>(palloc(sizeof(SlotChanges::Settled) * room));
        std::copy(changes.rows, changes.rows + changes.n, wider);
        changes.rows = wider;
        changes.room = room;
    }
    changes.rows[changes.n++] = {tid, number};
}

bool
any_ended(const List *transactions)
{
    ListCell *cell;
    foreach (cell, transactions)
        if (!TransactionIdIsInProgress(lfirst_oid(cell)))
            return true;
    return false;
}

void
insert_change(Tables &tables, int64 key, LimitUse kind, int64 number, text *name, TimestampTz now)
{
    store::Table &table = tables.limit_use();
    store::insert(table, form(table.rel, LimitUseRow{key, kind, now, number, DT_NOEND, {}, 0, name}));
}

/* One row in the place of all. */
void
merge(Tables &tables, int64 key, const SlotChanges &changes, text *name, TimestampTz now)
{
    int64 total = 0;
    for (int i = 0; i < changes.n; i++)
        if (store::take(tables.limit_use(), &changes.rows[i].tid) == store::Outcome::ok)
            total += changes.rows[i].number;
    if (total != 0)
        insert_change(tables, key, LimitUse::total, total, name, now);
}

} // namespace

void
take_turn(Tables &tables)
{
    (void)tables.limit_use(); /* whoever has locked the table is waited for before the turn */
    LOCKTAG tag = turn_tag();
    (void)LockAcquire(&tag, ExclusiveLock, false, false);
}

void
end_turn()
{
    LOCKTAG tag = turn_tag();
    LockRelease(&tag, ExclusiveLock, false);
}

void
begin_uses(store::Scan &scan, store::Table &table, int64 key, LimitUse kind, TimestampTz after)
{
    ScanKeyData keys[3];
    ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(key));
    ScanKeyInit(&keys[1], 2, BTEqualStrategyNumber, F_INT2EQ, Int16GetDatum(static_cast<int16>(kind)));
    ScanKeyInit(&keys[2], 3, BTGreaterStrategyNumber, F_TIMESTAMPTZ_GT, TimestampTzGetDatum(after));
    store::begin(scan, table, store::Idx::limit_use_key, keys, 3, true);
}

/*
 * What open transactions take counts already, and what they free does not count yet. One that has put a total in the
 * place of other rows changes nothing: the other rows count until it commits. If it ends during the count, some rows
 * may have been read before that and some after: so all are counted anew.
 */
int64
count_slots(Tables &tables, int64 key, SlotChanges &changes)
{
    store::Table &table = tables.limit_use();
    int64 taken;
    List *merging;
    do {
        ScanKeyData keys[2];
        store::Scan scan;
        store::Row seen;
        taken = 0;
        merging = NIL;
        changes.n = 0;
        ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(key));
        ScanKeyInit(&keys[1], 2, BTGreaterEqualStrategyNumber, F_INT2GE,
                    Int16GetDatum(static_cast<int16>(LimitUse::change)));
        store::begin(scan, table, store::Idx::limit_use_key, keys, 2, true);
        while ((seen = store::next(scan)) != store::Row::none) {
            LimitUseRow row;
            read_in_place(table.slot, row);
            if (seen == store::Row::arriving && row.kind == LimitUse::total)
                merging = list_append_unique_oid(merging, scan.dirty.xmin);
            else if (seen == store::Row::leaving)
                merging = list_append_unique_oid(merging, scan.dirty.xmax);
            else if (seen == store::Row::live)
                add_settled(changes, scan.tid, row.number);
            if (seen != store::Row::arriving || (row.kind == LimitUse::change && row.number > 0))
                taken += row.number;
        }
        store::end(scan);
    } while (any_ended(merging));
    return taken;
}

void
change_slots(Tables &tables, int64 key, int64 number, text *name, TimestampTz now)
{
    insert_change(tables, key, LimitUse::change, number, name, now);
}

void
merge_if_many(Tables &tables, int64 key, const SlotChanges &changes, text *name, TimestampTz now)
{
    if (changes.n >= many_changes)
        merge(tables, key, changes, name, now);
}

LimitUseRow
slot_of(const LeaseRow &lease, int64 key, text *name, TimestampTz now)
{
    return {key_of(lease.job_id), LimitUse::held, now, key, DT_NOEND, lease.job_id, lease.token, name};
}

void
free_counted(Tables &tables, const LeaseRow &lease, bool moves)
{
    store::Table &table = tables.limit_use();
    store::Scan scan;
    store::Row seen;
    begin_uses(scan, table, key_of(lease.job_id), LimitUse::held, DT_NOBEGIN);
    while ((seen = store::next(scan)) != store::Row::none) {
        LimitUseRow slot;
        read(table.slot, slot);
        if (seen != store::Row::live || slot.token != lease.token ||
            memcmp(&slot.job_id, &lease.job_id, sizeof slot.job_id) != 0 ||
            (moves && view(slot.name).starts_with("pool:")))
            continue;
        if (store::take(table, &scan.tid) == store::Outcome::ok)
            change_slots(tables, slot.number, -1, slot.name, now());
    }
    store::end(scan);
    const Queue *queue = find_queue(lease.queue);
    if (queue != nullptr)
        wake_queue(queue->id, queue->name, 1);
}

void
merge_slots(Tables &tables, std::string_view name, TimestampTz now)
{
    SlotChanges changes = {};
    int64 key = name_hash(name);
    take_turn(tables);
    (void)count_slots(tables, key, changes);
    merge(tables, key, changes, cstring_to_text_with_len(name.data(), static_cast<int>(name.size())), now);
    end_turn();
}

} // namespace ojs

using namespace ojs;

/* ojs_store.slots_taken(key bigint) returns bigint */
OJS_FUNCTION(ojs_slots_taken)
{
    Tables tables(AccessShareLock);
    SlotChanges changes = {};
    take_turn(tables);
    int64 taken = count_slots(tables, PG_GETARG_INT64(0), changes);
    end_turn();
    tables.close();
    PG_RETURN_INT64(taken);
}

/*
 * ojs_store.starts_since(key bigint, since timestamptz, out n bigint, out oldest timestamptz, out newest timestamptz):
 * the starts of jobs with a key after a time, as claims count them: they are numbered, so the first and the last tell
 * how many there are. Starts of open transactions do not count yet.
 */
OJS_FUNCTION(ojs_starts_since)
{
    enum { out_n, out_oldest, out_newest, n_out };
    Tables tables(AccessShareLock);
    store::Table &table = tables.limit_use();
    LimitUseRow first = {};
    LimitUseRow last = {};
    auto end_of_scan = [&](ScanDirection direction, LimitUseRow &use) {
        store::Scan scan;
        store::Row seen;
        begin_uses(scan, table, PG_GETARG_INT64(0), LimitUse::start, PG_GETARG_TIMESTAMPTZ(1));
        scan.direction = direction;
        while ((seen = store::next(scan)) == store::Row::arriving)
            ;
        if (seen != store::Row::none)
            read_in_place(table.slot, use);
        store::end(scan);
        return seen != store::Row::none;
    };
    bool any = end_of_scan(ForwardScanDirection, first) && end_of_scan(BackwardScanDirection, last);
    Datum values[n_out] = {Int64GetDatum(any ? last.number - first.number + 1 : 0), TimestampTzGetDatum(first.at),
                           TimestampTzGetDatum(last.at)};
    bool nulls[n_out] = {false, !any, !any};
    TupleDesc columns;
    if (get_call_result_type(fcinfo, nullptr, &columns) != TYPEFUNC_COMPOSITE)
        elog(ERROR, "return type must be a row type");
    tables.close();
    PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(columns), values, nulls)));
}

/* ojs_store.free_slots(job_id uuid, token bigint, queue bigint, flags int) */
OJS_FUNCTION(ojs_free_slots)
{
    store::begin_write("ojs_store.free_slots()");
    Tables tables;
    LeaseRow lease = {};
    lease.job_id = *PG_GETARG_UUID_P(0);
    lease.token = PG_GETARG_INT64(1);
    lease.queue = PG_GETARG_INT64(2);
    lease.flags = PG_GETARG_INT32(3);
    free_slots(tables, lease);
    tables.close();
    store::end_write();
    PG_RETURN_VOID();
}

/* ojs_store.merge_slots(name text) */
OJS_FUNCTION(ojs_merge_slots)
{
    store::begin_write("ojs_store.merge_slots()");
    Tables tables;
    merge_slots(tables, view(PG_GETARG_TEXT_PP(0)), now());
    tables.close();
    store::end_write();
    PG_RETURN_VOID();
}
