/*
 * ordering_line.cpp: see ordering_line.h.
 */
#include "ojs/state/ordering_line.h"

#include "ojs/pg/json.h"
#include "ojs/pg/uuid.h"
#include "ojs/store/name_hash.h"

namespace ojs
{

LOCKTAG
lock_of_line(int64 key)
{
    LOCKTAG tag;
    auto bits = static_cast<uint64>(key);
    SET_LOCKTAG_OBJECT(tag, MyDatabaseId, store::relation_oid(store::Rel::ordering_line),
                       static_cast<uint32>(bits ^ (bits >> 32)), 3);
    return tag;
}

namespace
{

int64
key_in(int64 queue, std::string_view key)
{
    return name_hash(psprintf(INT64_FORMAT ":%.*s", queue, static_cast<int>(key.size()), key.data()));
}

} // namespace

int64
stated_key(int64 queue, const Jsonb *options)
{
    JsonbValue value;
    bool found = options != nullptr && find_member(root_of(options), "ordering_key", value) && value.type == jbvString;
    return key_in(queue, found ? text_of(value) : std::string_view());
}

int64
key_of_job(const HotRow &row)
{
    store::Table jobs = store::open(store::Rel::job, RowExclusiveLock);
    ItemPointerData tid = row.job_tid;
    int64 key = key_in(row.queue, {});
    bool null;
    bool there = store::read_at(jobs, &tid) && same(*DatumGetUUIDP(slot_getattr(jobs.slot, 1, &null)), row.job_id);
    if (there || store::find(jobs, store::Idx::job_id, row.job_id, &tid) != store::Row::none) {
        JobRow job;
        read(jobs.slot, job);
        key = stated_key(row.queue, job.options);
    }
    store::close(jobs);
    return key;
}

bool
find_in_line(Tables &tables, const pg_uuid_t &id, LineRow &line, ItemPointer tid)
{
    ItemPointerData found;
    store::Table &table = tables.get(store::Rel::ordering_line);
    if (store::find(table, store::Idx::ordering_line_job, id, &found) == store::Row::none)
        return false;
    read(table.slot, line);
    if (tid != nullptr)
        *tid = found;
    return true;
}

void
insert_in_line(Tables &tables, const LineRow &line)
{
    store::Table &table = tables.get(store::Rel::ordering_line);
    store::insert(table, form(table.rel, line));
}

void
note_due(Tables &tables, int64 queue, int64 key)
{
    store::Table &table = tables.get(store::Rel::ordering_due);
    ScanKeyData keys[2];
    store::Scan scan;
    store::Row seen;
    ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(queue));
    ScanKeyInit(&keys[1], 2, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(key));
    store::begin(scan, table, store::Idx::ordering_due_key, keys, 2, true);
    while ((seen = store::next(scan)) != store::Row::none && seen != store::Row::live)
        ;
    store::end(scan);
    if (seen == store::Row::none)
        store::insert(table, form(table.rel, DueLineRow{queue, key}));
}

namespace
{

enum class Ahead { nobody, somebody, unsure };

/* A job ahead whose row is committed will, when it ends, find who is behind it. Only where there is none does it matter
 * what becomes of those of open transactions. */
Ahead
who_is_ahead(Tables &tables, int64 key, int64 position)
{
    constexpr int most = 100; /* of open transactions */
    ScanKeyData keys[2];
    store::Scan scan;
    store::Row seen = store::Row::none;
    int undecided = 0;
    ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(key));
    ScanKeyInit(&keys[1], 2, BTLessStrategyNumber, F_INT8LT, Int64GetDatum(position));
    store::begin(scan, tables.get(store::Rel::ordering_line), store::Idx::ordering_line_order, keys, 2, true);
    scan.direction = BackwardScanDirection;
    while (undecided < most && (seen = store::next(scan)) != store::Row::none && seen != store::Row::live)
        undecided++;
    store::end(scan);
    return seen == store::Row::live ? Ahead::somebody : undecided > 0 ? Ahead::unsure : Ahead::nobody;
}

} // namespace

bool
is_first(Tables &tables, const LineRow &line)
{
    Ahead ahead = who_is_ahead(tables, line.key, line.position);
    if (ahead == Ahead::unsure)
        note_due(tables, line.queue, line.key);
    return ahead == Ahead::nobody;
}

bool
first_in_line(Tables &tables, int64 key, LineRow &line, ItemPointer tid)
{
    ScanKeyData by_key;
    store::Scan scan;
    store::Row seen;
    ScanKeyInit(&by_key, 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(key));
    store::begin(scan, tables.get(store::Rel::ordering_line), store::Idx::ordering_line_order, &by_key, 1, true);
    while ((seen = store::next(scan)) != store::Row::none && seen != store::Row::live)
        ;
    if (seen == store::Row::live) {
        read(scan.table->slot, line);
        *tid = scan.tid;
    }
    store::end(scan);
    return seen == store::Row::live;
}

} // namespace ojs
