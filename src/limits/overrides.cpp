/*
 * overrides.cpp: see overrides.h.
 */
#include "ojs/limits/overrides.h"

#include "ojs/pg/args.h"
#include "ojs/store/name_hash.h"
#include "ojs/store/small_table.h"

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

store::SessionRows<LimitOverride> overrides;

bool
keep_override(const Datum *values, const bool *nulls, LimitOverride &kept)
{
    kept = {name_hash(view(DatumGetTextPP(values[col_key]))),
            nulls[col_config] ? nullptr : DatumGetJsonbPCopy(values[col_config]),
            nulls[col_until] ? DT_NOEND : DatumGetTimestampTz(values[col_until]),
            DatumGetTimestampTz(values[col_set_at])};
    return true;
}

} // namespace

LimitPolicy
with_overrides(const LimitPolicy &policy, int64 key, TimestampTz now, TimestampTz *paused_until)
{
    LimitPolicy result = policy;
    *paused_until = DT_NOBEGIN;
    overrides.refresh(store::Rel::rate_limit, n_columns, keep_override);
    for (const LimitOverride &over : overrides) {
        if (over.key != key || over.until <= now)
            continue;
        if (over.config != nullptr)
            result = read_limit(root_of(over.config), result);
        else if (over.set_at <= now + most_ahead_us)
            *paused_until = std::max(*paused_until, over.until);
    }
    result.key = policy.key;
    return result;
}

} // namespace ojs
