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
struct LimitOverride {
    int64 key;
    Jsonb *config; /* null: a pause */
    TimestampTz until;
    TimestampTz set_at;
};
enum { col_key, col_config, col_until, col_set_at, n_columns };

MemoryContext overrides_context;
LimitOverride *overrides;
int n_overrides;
SessionCache overrides_cache;

void
load_overrides()
{
    if (overrides_context == nullptr)
        overrides_context = AllocSetContextCreate(TopMemoryContext, "ojs rate limits", ALLOCSET_SMALL_SIZES);
    MemoryContextReset(overrides_context);
    n_overrides = 0;
    int room = 8;
    overrides = static_cast<LimitOverride *>(MemoryContextAlloc(overrides_context, sizeof(LimitOverride) * room));

    store::Table table = store::open(store::Rel::rate_limit, AccessShareLock);
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    TableScanDesc scan = table_beginscan(table.rel, snapshot, 0, nullptr);
    while (table_scan_getnextslot(scan, ForwardScanDirection, table.slot)) {
        slot_getsomeattrs(table.slot, n_columns);
        const Datum *values = table.slot->tts_values;
        const bool *nulls = table.slot->tts_isnull;
        if (n_overrides == room)
            overrides = static_cast<LimitOverride *>(repalloc(overrides, sizeof(LimitOverride) * (room *= 2)));
        MemoryContext old = MemoryContextSwitchTo(overrides_context);
        overrides[n_overrides++] = {name_hash(view(DatumGetTextPP(values[col_key]))),
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
    overrides_cache.refresh(store::catalog_generation(store::Rel::rate_limit), load_overrides);
    for (int i = 0; i < n_overrides; i++) {
        if (overrides[i].key != key || overrides[i].until <= now)
            continue;
        if (overrides[i].config != nullptr)
            result = read_limit(root_of(overrides[i].config), result);
        else if (overrides[i].set_at <= now + most_ahead_us)
            *paused_until = std::max(*paused_until, overrides[i].until);
    }
    result.key = policy.key;
    return result;
}

} // namespace ojs
