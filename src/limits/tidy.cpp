/*
 * tidy.cpp: what of rate limits is over.
 */
#include "ojs/limits/rate_limits.h"

#include "ojs/limits/slots.h"
#include "ojs/pg/args.h"
#include "ojs/store/spi.h"

namespace ojs
{

namespace
{

/* Removes starts that count no more, and slots whose lease is gone (deleted by SQL). Returns keys with many changes, or
 * with some that are nothing in sum. All by one look at the table, which may be large. */
constinit Statement old_uses = {R"sql(
    with uses as materialized (
        select ctid as tid, u.* from ojs_store.limit_use u
    ), gone as (
        delete from ojs_store.limit_use where ctid = any (array(
            select l.ctid from ojs_store.limit_use l where l.ctid = any (array(
                select u.tid from uses u
                where u.until <= $1 or (u.kind = 0 and not exists (select from ojs_store.lease l
                    where l.job_id = u.job_id and l.token = u.token))))
            for update skip locked))
        returning kind, number, name
    ), freed as (
        insert into ojs_store.limit_use (key, kind, at, number, until, job_id, token, name)
        select number, 3, $1, -1, 'infinity', '00000000-0000-0000-0000-000000000000', 0, name from gone where kind = 0
    )
    select min(name) from (
        select key, number, name from uses where kind in (3, 4)
        union all
        select number, -1, name from gone where kind = 0
    ) c
    group by key having count(*) > 8 or sum(number) = 0 limit 1000
)sql",
                                {TIMESTAMPTZOID},
                                nullptr};

void
tidy_uses(TimestampTz now)
{
    uint64 n = execute_latest(old_uses, {TimestampTzGetDatum(now)});
    SPITupleTable *rows = SPI_tuptable;
    Tables tables;
    for (uint64 i = 0; i < n; i++) {
        bool null;
        CHECK_FOR_INTERRUPTS();
        merge_slots(tables, view(DatumGetTextPP(SPI_getbinval(rows->vals[i], rows->tupdesc, 1, &null))), now);
    }
    tables.close();
}

} // namespace

void
tidy_limits(TimestampTz now)
{
    static constinit Statement old_settings = {R"sql(
        delete from ojs_store.rate_limit where ctid = any (array(
            select r.ctid from ojs_store.rate_limit r
            where r.until <= $1 or (r.config is null and r.set_at > $1 + interval '1 minute')
            for update skip locked))
    )sql",
                                               {TIMESTAMPTZOID},
                                               nullptr};
    static constexpr int64 every_us = 60 * USECS_PER_SEC;
    static TimestampTz tidied_at; /* by this session */

    if (now >= tidied_at && now - tidied_at < every_us)
        return;
    with_spi([&] {
        tidy_uses(now);
        (void)execute_latest(old_settings, {TimestampTzGetDatum(now)});
    });
    tidied_at = now;
}

} // namespace ojs
