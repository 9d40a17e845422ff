/*
 * tidy.cpp: what of rate limits is over.
 */
#include "ojs/limits/rate_limits.h"

#include "ojs/limits/slots.h"
#include "ojs/store/spi.h"

namespace ojs
{

void
tidy_limits(TimestampTz now)
{
    static constinit Statement old_starts = {R"sql(
        delete from ojs_store.limit_use where ctid = any (array(
            select u.ctid from ojs_store.limit_use u
            where u.until <= $1 for update skip locked))
    )sql",
                                             {TIMESTAMPTZOID},
                                             nullptr};
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
        (void)execute_latest(old_starts, {TimestampTzGetDatum(now)});
        (void)execute_latest(old_settings, {TimestampTzGetDatum(now)});
    });
    tidy_slots(now);
    tidied_at = now;
}

} // namespace ojs
