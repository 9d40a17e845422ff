/*
 * first_due.cpp: see first_due.h.
 */
#include "ojs/upkeep/first_due.h"

#include "ojs/pg/settings.h"
#include "ojs/queue/maintenance.h"
#include "ojs/store/rows.h"
#include "ojs/upkeep/cron.h"

namespace ojs
{

namespace
{

/* The time in the first row along an index on it. */
TimestampTz
first_time(store::Rel rel, store::Idx index, int column)
{
    TimestampTz at = DT_NOEND;
    ScanKeyData key;
    store::Scan scan;
    store::Row seen;
    store::Table table = store::open(rel, AccessShareLock);
    ScanKeyInit(&key, 1, BTLessStrategyNumber, F_TIMESTAMPTZ_LT, TimestampTzGetDatum(DT_NOEND));
    store::begin(scan, table, index, &key, 1, rel == store::Rel::delayed);
    while ((seen = store::next(scan)) != store::Row::none && seen != store::Row::live)
        ;
    if (seen == store::Row::live) {
        bool null;
        at = DatumGetTimestampTz(slot_getattr(table.slot, column, &null));
    }
    store::end(scan);
    store::close(table);
    return at;
}

TimestampTz
by_server_clock(TimestampTz at)
{
    return at == DT_NOEND ? at : GetCurrentTimestamp() + (at - now());
}

} // namespace

TimestampTz
first_due()
{
    if (in_maintenance())
        return DT_NOEND;
    return by_server_clock(std::min(
        first_time(store::Rel::delayed, store::Idx::delayed_due, number_of<DelayedRow>(&DelayedRow::due_at) + 1),
        first_cron()));
}

TimestampTz
first_lapse()
{
    return by_server_clock(
        first_time(store::Rel::lease, store::Idx::lease_reap, number_of<LeaseRow>(&LeaseRow::reap_at) + 1));
}

} // namespace ojs
