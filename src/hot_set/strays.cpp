/*
 * strays.cpp: see strays.h.
 */
#include "ojs/hot_set/strays.h"

#include "ojs/state/ordering.h"
#include "ojs/store/spi.h"

namespace ojs
{

namespace
{

/*
 * The opposite of lost jobs: hot rows of jobs that are finished, or gone. By one snapshot a job is never both open and
 * finished, so these are of no use to anybody, and each of them is in the way of all claims. Reminders (kind 5) may
 * outlive their jobs.
 */
#define STRAY_FROM(hot)                                                                                                \
    " from " hot " hot left join ojs_store.job on job.id = hot.job_id"                                                 \
    " left join ojs_store.finished on finished.job_id = hot.job_id where (job.id is null or finished.job_id is not "   \
    "null)"
#define REMOVE_STRAY(hot, condition)                                                                                   \
    "delete from " hot " where ctid = any (array(select hot.ctid" STRAY_FROM(hot) condition                            \
        " for update of hot skip locked))"
constinit Statement any_stray = {
    "select" STRAY_FROM("(select job_id from ojs_store.ready union all"
                        " select job_id from ojs_store.lease union all"
                        " select job_id from ojs_store.ordering_line union all"
                        " select job_id from ojs_store.delayed where kind <> 5)") " limit 1",
    {},
    nullptr};
constinit Statement remove_stray[] = {{REMOVE_STRAY("ojs_store.ready", ""), {}, nullptr},
                                      {REMOVE_STRAY("ojs_store.lease", ""), {}, nullptr},
                                      {REMOVE_STRAY("ojs_store.ordering_line", ""), {}, nullptr},
                                      {REMOVE_STRAY("ojs_store.delayed", " and kind <> 5"), {}, nullptr}};

/* Those that a row of ordering_due names are about to be looked at. */
constexpr char stuck_lines_sql[] = R"sql(
    select first.queue, first.key
    from (select distinct on (key) key, queue, job_id from ojs_store.ordering_line order by key, position) first
    where first.job_id in (select job_id from ojs_store.delayed where kind = 6)
        and not exists (select from ojs_store.ordering_due due where due.key = first.key)
    limit 100000
)sql";
constinit Statement stuck_lines = {stuck_lines_sql, {}, nullptr};

} // namespace

int64
remove_strays()
{
    uint64 n = 0;
    if (execute_latest(any_stray) > 0)
        for (Statement &remove : remove_stray)
            n += execute_latest(remove);
    return static_cast<int64>(n);
}

int64
advance_stuck_lines()
{
    uint64 n = execute_latest(stuck_lines);
    SPITupleTable *rows = SPI_tuptable;
    int64 advanced = 0;
    Tables tables;
    for (uint64 i = 0; i < n; i++) {
        bool null;
        CHECK_FOR_INTERRUPTS();
        int64 queue = DatumGetInt64(SPI_getbinval(rows->vals[i], rows->tupdesc, 1, &null));
        int64 key = DatumGetInt64(SPI_getbinval(rows->vals[i], rows->tupdesc, 2, &null));
        advanced += advance_line(tables, queue, key);
    }
    tables.close();
    return advanced;
}

} // namespace ojs
