/*
 * reconcile.cpp: when open jobs are looked for that are in no place. The pass itself is in rebuild.cpp.
 */
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/job/envelope.h"
#include "ojs/store/spi.h"
#include "ojs/store/store.h"
#include "ojs/hot_set/hot_set.h"

namespace ojs
{

namespace
{

constexpr char last_pass_sql[] = R"sql(
    select max(rebuilt_at) filter (where cause = 'reconcile'),
        coalesce(max(extract(epoch from took)) filter (where cause = 'reconcile'), 0)::float8,
        max(rebuilt_at)
    from ojs_store.feed
)sql";
constinit Statement last_pass = {last_pass_sql, {}, nullptr};

} // namespace

void
reconcile_if_due()
{
    constexpr int64 every_us = 5 * SECS_PER_MINUTE * USECS_PER_SEC;
    constexpr double most_of_the_time = 0.005; /* that the passes may take together */
    constexpr int64 settled_us = SECS_PER_MINUTE * USECS_PER_SEC;
    static TimestampTz look_at; /* no use to ask before */
    TimestampTz at = GetCurrentTimestamp();
    TimestampTz last = 0;
    double took = 0;

    if (at < look_at)
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
        look_at = std::min(last + pause_us, at + every_us);
        return;
    }
    (void)reconcile_hot_set(now() - settled_us);
}

} // namespace ojs

using namespace ojs;

/* ojs_store.reconcile(older_than interval default '1 minute') returns bigint */
OJS_FUNCTION(ojs_reconcile)
{
    store::begin_write("ojs_store.reconcile()");
    ensure_hot_set();
    TimestampTz before = now() - interval_ms(PG_GETARG_INTERVAL_P(0)) * 1000;
    int64 jobs = reconcile_hot_set(before);
    store::end_write();
    return Int64GetDatum(std::max<int64>(jobs, 0));
}
