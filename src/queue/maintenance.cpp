/*
 * maintenance.cpp: see maintenance.h. Switched on and off by sql/maintenance.sql.
 */
#include "ojs/queue/maintenance.h"

#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/store/small_table.h"
#include "ojs/pg/session_cache.h"

namespace ojs
{

namespace
{

SessionCache cache;
TimestampTz since; /* DT_NOEND: no maintenance */

void
load()
{
    since = DT_NOEND;
    store::each_row(store::Rel::maintenance, [](TupleTableSlot *slot) {
        bool null;
        since = std::min(since, DatumGetTimestampTz(slot_getattr(slot, 1, &null)));
        return true;
    });
}

TimestampTz
began_at()
{
    cache.refresh(store::catalog_generation(store::Rel::maintenance), load);
    return since;
}

} // namespace

bool
in_maintenance()
{
    return began_at() != DT_NOEND;
}

TimestampTz
promoted_to(TimestampTz now)
{
    return std::min(now, began_at());
}

} // namespace ojs

using namespace ojs;

/* ojs_store.promoted_to() returns timestamptz */
OJS_FUNCTION(ojs_promoted_to)
{
    PG_RETURN_TIMESTAMPTZ(promoted_to(now()));
}
