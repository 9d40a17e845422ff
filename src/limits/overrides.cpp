/*
 * overrides.cpp: see overrides.h.
 */
#include "ojs/limits/overrides.h"

#include "ojs/pg/args.h"
#include "ojs/pg/session_cache.h"
#include "ojs/store/name_hash.h"
#include "ojs/store/store.h"

namespace ojs
{

namespace
{

/* A row of ojs_store.rate_limit. */
struct Said {
    int64 key;
    Jsonb *config; /* null: a pause */
    TimestampTz until;
    TimestampTz set_at;
};
enum { col_key, col_config, col_until, col_set_at, n_columns };

MemoryContext said_context;
Said *said;
int n_said;
SessionCache said_cache;

void
load_said()
{
    if (said_context == nullptr)
        said_context = AllocSetContextCreate(TopMemoryContext, "ojs rate limits", ALLOCSET_SMALL_SIZES);
    MemoryContextReset(said_context);
    n_said = 0;
    int room = 8;
    said = static_cast<Said *>(MemoryContextAlloc(said_context, sizeof(Said) * room));

    store::Table table = store::open(store::Rel::rate_limit, AccessShareLock);
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    TableScanDesc scan = table_beginscan(table.rel, snapshot, 0, nullptr);
    while (table_scan_getnextslot(scan, ForwardScanDirection, table.slot)) {
        slot_getsomeattrs(table.slot, n_columns);
        const Datum *values = table.slot->tts_values;
        const bool *nulls = table.slot->tts_isnull;
        if (n_said == room)
            said = static_cast<Said *>(repalloc(said, sizeof(Said) * (room *= 2)));
        MemoryContext old = MemoryContextSwitchTo(said_context);
        said[n_said++] = {name_hash(view(DatumGetTextPP(values[col_key]))),
                          nulls[col_config] ? nullptr : DatumGetJsonbPCopy(values[col_config]),
                          nulls[col_until] ? DT_NOEND : DatumGetTimestampTz(values[col_until]),
                          DatumGetTimestampTz(values[col_set_at])};
        MemoryContextSwitchTo(old);
    }
    table_endscan(scan);
    UnregisterSnapshot(snapshot);
    store::close_and_unlock(table, AccessShareLock);
}

} // namespace

LimitPolicy
with_overrides(const LimitPolicy &policy, int64 key, TimestampTz now, TimestampTz *paused_until)
{
    LimitPolicy result = policy;
    *paused_until = DT_NOBEGIN;
    said_cache.refresh(store::catalog_generation(store::Rel::rate_limit), load_said);
    for (int i = 0; i < n_said; i++) {
        if (said[i].key != key || said[i].until <= now)
            continue;
        if (said[i].config != nullptr)
            result = read_limit(root_of(said[i].config), result);
        else if (said[i].set_at <= now + most_ahead_us)
            *paused_until = std::max(*paused_until, said[i].until);
    }
    result.key = policy.key;
    return result;
}

} // namespace ojs
