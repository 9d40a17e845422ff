/*
 * records.cpp: see records.h. What is told and removed, and when, is said in sql/tick.sql, sql/event_stream.sql and
 * sql/webhook_deliveries.sql.
 */
#include "ojs/upkeep/records.h"

#include "ojs/pg/settings.h"
#include "ojs/shared/shmem.h"
#include "ojs/store/spi.h"

namespace ojs
{

namespace
{

constinit Statement prune = {"select ojs_store.prune_records($1, $2)", {INT4OID, BOOLOID}, nullptr};
constinit Statement tell = {
    "select ojs_store.tell_events($1) from ojs_store.event_notify_cursor limit 1", {INT4OID}, nullptr};
constinit Statement tend = {"select ojs_store.tend_webhooks($1) from ojs_store.webhook limit 1", {INT4OID}, nullptr};

/* Counting may mean a walk over a million index entries. */
constexpr int64 count_every_us = 60 * USECS_PER_SEC;
constinit TimestampTz counted_at = DT_NOBEGIN;
constinit int counted_limit = 0;

} // namespace

int
prune_records(int limit, TimestampTz now)
{
    bool count = now < counted_at || now - count_every_us > counted_at || settings.max_events != counted_limit;
    int n = 0;
    with_spi([&] {
        bool null;
        execute(prune, {Int32GetDatum(limit), BoolGetDatum(count)});
        n = DatumGetInt32(cell(0, 1, &null));
    });
    if (count) {
        counted_at = now;
        counted_limit = settings.max_events;
    }
    return n;
}

void
tell_events(int limit)
{
    if (!notify_has_room()) /* they are told later */
        return;
    with_spi([&] { execute_latest(tell, {Int32GetDatum(limit)}); });
}

bool
tend_webhooks(int limit)
{
    bool more = false, null;
    if (!IsolationUsesXactSnapshot()) /* the next tick does it */
        with_spi([&] {
            if (execute_latest(tend, {Int32GetDatum(limit)}) > 0)
                more = DatumGetBool(cell(0, 1, &null));
        });
    return more;
}

} // namespace ojs
