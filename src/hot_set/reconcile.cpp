/*
 * reconcile.cpp: when open jobs are looked for that are in no place. The pass itself is in rebuild.cpp.
 */
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/job/envelope.h"
#include "ojs/store/spi.h"
#include "ojs/store/store.h"
#include "ojs/hot_set/hot_set.h"
#include "ojs/hot_set/in_doubt.h"

namespace ojs
{

namespace
{

constexpr char last_pass_sql[] = R"sql(
    select max(rebuilt_at) filter (where cause = 'reconcile'),
        coalesce(max(extract(epoch from took)) filter (where cause = 'reconcile'), 0)::float8,
        max(rebuilt_at)
    from ojs_store.hot_set_state
)sql";
constinit Statement last_pass = {last_pass_sql, {}, nullptr};

constexpr char last_rebuild_sql[] = R"sql(
    select r.rebuilt_at, r.ctid, exists (
        select from ojs_store.hot_set_state p where p.cause = 'reconcile' and p.rebuilt_at > r.rebuilt_at)
    from ojs_store.hot_set_state r where r.cause <> 'reconcile' order by r.rebuilt_at desc limit 1
)sql";
constinit Statement last_rebuild = {last_rebuild_sql, {}, nullptr};

/*
 * How many transactions are prepared and older than the one that made a row of hot_set_state. Where that row has been
 * frozen since, its xmin may be of an earlier round of numbers; but then everything that could be older has ended.
 */
int
prepared_before_row(ItemPointerData tid)
{
    store::Table table = store::open(store::Rel::hot_set_state, AccessShareLock);
    int n = 0;
    if (store::read_at(table, &tid)) {
        bool should_free;
        HeapTupleHeader row = ExecFetchSlotHeapTuple(table.slot, false, &should_free)->t_data;
        n = HeapTupleHeaderXminFrozen(row) ? 0 : prepared_before(HeapTupleHeaderGetRawXmin(row));
    }
    store::close(table);
    return n;
}

/*
 * Whether a transaction that was prepared before the last rebuild has ended since this session looked last: its jobs
 * may be in no place. At its first look some may have ended unless there was a pass since. Returns the time of the
 * rebuild, else DT_NOBEGIN.
 */
TimestampTz
doubts_ended()
{
    static int undecided = PG_INT32_MAX;
    TimestampTz rebuilt_at = DT_NOBEGIN;
    int before = undecided;
    undecided = prepared_before(ReadNextTransactionId());
    if (max_prepared_xacts == 0 || (before == 0 && undecided == 0))
        return DT_NOBEGIN;
    with_spi([&] {
        bool null;
        undecided = 0;
        if (execute_latest(last_rebuild) == 0)
            return;
        rebuilt_at = DatumGetTimestampTz(cell(0, 1, &null));
        undecided = prepared_before_row(*reinterpret_cast<ItemPointer>(DatumGetPointer(cell(0, 2, &null))));
        if (before == PG_INT32_MAX && DatumGetBool(cell(0, 3, &null)))
            before = undecided;
    });
    return undecided < before ? rebuilt_at : DT_NOBEGIN;
}

/* Tables whose rows a rebuild reads. */
constexpr store::Rel watched[] = {store::Rel::job, store::Rel::job_history, store::Rel::finished,
                                  store::Rel::checkpoint};

bool
is_watched(store::Rel which)
{
    Relation rel = store::open_relation(which, AccessShareLock);
    const TriggerDesc *triggers = rel->trigdesc;
    bool always = false;
    for (int i = 0; triggers != nullptr && i < triggers->numtriggers; i++)
        always |= strcmp(triggers->triggers[i].tgname, "hot_set_lost") == 0 &&
                  triggers->triggers[i].tgenabled == TRIGGER_FIRES_ALWAYS;
    table_close(rel, AccessShareLock);
    return always;
}

} // namespace

bool
restores_noticed()
{
    return std::all_of(std::begin(watched), std::end(watched), is_watched);
}

void
mend_restore_triggers()
{
    for (store::Rel which : watched) {
        Oid oid = store::relation_oid(which);
        if (is_watched(which) || !ConditionalLockRelationOid(oid, ShareRowExclusiveLock))
            continue;
        with_spi([oid] {
            const char *sql =
                psprintf("alter table ojs_store.%s enable always trigger hot_set_lost", get_rel_name(oid));
            if (SPI_execute(sql, false, 0) != SPI_OK_UTILITY)
                elog(ERROR, "could not run \"%s\"", sql);
        });
        CommandCounterIncrement();
        note_restore();
        ereport(LOG, (errmsg("ojs has enabled its trigger on ojs_store.%s again, and rebuilds its hot set",
                             get_rel_name(oid)),
                      errhint("Restore without --disable-triggers.")));
    }
}

void
reconcile_if_due()
{
    constexpr int64 every_us = 5 * SECS_PER_MINUTE * USECS_PER_SEC;
    constexpr double most_of_the_time = 0.005; /* that the passes may take together */
    constexpr int64 settled_us = SECS_PER_MINUTE * USECS_PER_SEC;
    static int64 look_us; /* no use to ask before, by the steady clock */
    TimestampTz at = GetCurrentTimestamp();
    TimestampTz last = 0;
    double took = 0;

    mend_restore_triggers();
    if (TimestampTz rebuilt_at = doubts_ended(); rebuilt_at != DT_NOBEGIN)
        (void)reconcile_hot_set(rebuilt_at + (now() - at));
    if (steady_us() < look_us)
        return;
    with_spi([&] {
        bool never, null;
        (void)execute_latest(last_pass);
        Datum pass_at = cell(0, 1, &never);
        Datum rebuilt_at = cell(0, 3, &null);
        took = DatumGetFloat8(cell(0, 2, &null));
        last = DatumGetTimestampTz(never ? rebuilt_at : pass_at);
    });
    int64 pause_us = std::max(every_us, static_cast<int64>(took / most_of_the_time * USECS_PER_SEC));
    if (at < last + pause_us && at >= last) {
        look_us = steady_us() + std::min(last + pause_us - at, every_us);
        return;
    }
    (void)reconcile_hot_set(now() - settled_us);
}

} // namespace ojs

using namespace ojs;

/* ojs_store.reconcile(older_than interval default '1 minute') returns bigint */
OJS_CHANGE(ojs_reconcile, "ojs_store.reconcile()")
{
    TimestampTz before = now() - interval_ms(PG_GETARG_INTERVAL_P(0)) * 1000;
    int64 jobs = reconcile_hot_set(before);
    return Int64GetDatum(std::max<int64>(jobs, 0));
}
