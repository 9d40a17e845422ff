/*
 * rate_limit_events.cpp: see rate_limit_events.h.
 *
 * The last event of a key is in limit_use: number 1, it was exceeded, until a job starts; then 0 for the rest of the
 * minute, in which it is not emitted again. Like the uses that it speaks of it is unlogged, and the rollback of a claim
 * takes it back.
 */
#include "ojs/limits/rate_limit_events.h"

#include "ojs/pg/args.h"
#include "ojs/pg/json.h"
#include "ojs/pg/settings.h"
#include "ojs/store/spi.h"

namespace ojs
{

namespace
{

constexpr int64 quiet_us = 60 * USECS_PER_SEC;        /* from one rate_limit.exceeded of a key to the next */
constexpr int64 forgotten_us = 86400 * USECS_PER_SEC; /* a key of which no job has started for so long emits again */

text *
name_of(const LimitPolicy &policy)
{
    return cstring_to_text_with_len(policy.key.data(), static_cast<int>(policy.key.size()));
}

/* Returns false if another transaction is emitting events of this key. `last` has no name if no event of it counts. */
bool
find_emitted(Tables &tables, int64 key, TimestampTz now, LimitUseRow &last, ItemPointerData &tid)
{
    store::Table &table = tables.limit_use();
    ScanKeyData keys[2];
    store::Scan scan;
    store::Row seen;
    bool alone = true;

    last.name = nullptr;
    ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(key));
    ScanKeyInit(&keys[1], 2, BTEqualStrategyNumber, F_INT2EQ, Int16GetDatum(static_cast<int16>(LimitUse::event)));
    store::begin(scan, table, store::Idx::limit_use_key, keys, 2, true);
    while ((seen = store::next(scan)) != store::Row::none) {
        LimitUseRow row;
        read(table.slot, row);
        alone &= seen == store::Row::live;
        if (row.until > now) {
            last = row;
            tid = scan.tid;
        }
    }
    store::end(scan);
    return alone;
}

void
record(const char *type, std::string_view subject, ObjectBuilder &data)
{
    static constinit Statement statement = {
        "select ojs_store.record_event($1, $2, $3)", {TEXTOID, TEXTOID, JSONBOID}, nullptr};
    Jsonb *json = data.finish();
    text *of = cstring_to_text_with_len(subject.data(), static_cast<int>(subject.size()));
    with_spi([&] {
        (void)execute(statement, {CStringGetTextDatum(type), PointerGetDatum(of), PointerGetDatum(json)});
    });
}

} // namespace

void
see_closed(LimitSight &sight, const LimitPolicy &policy, int64 held, int64 started, bool paused)
{
    if (sight.strategy != nullptr)
        return;
    sight.name = name_of(policy);
    if (policy.concurrency >= 0 && held >= policy.concurrency) {
        sight.strategy = "concurrency";
        sight.limit = policy.concurrency;
        sight.current = held;
    } else if (paused)
        sight.strategy = "pause";
    else {
        bool rate = policy.rate.period_us > 0 && started >= policy.rate.limit;
        sight.strategy = rate ? "rate" : "throttle";
        sight.limit = rate ? policy.rate.limit : policy.throttle.limit;
        sight.current = started;
    }
}

void
see_start(LimitSight &sight, const LimitPolicy &policy, const pg_uuid_t &job_id)
{
    sight.name = sight.name != nullptr ? sight.name : name_of(policy);
    sight.job_id = job_id;
    sight.started = true;
}

void
tell_limit(Tables &tables, int64 key, const LimitSight &sight, TimestampTz now)
{
    store::Table &table = tables.limit_use();
    LimitUseRow last;
    ItemPointerData tid;
    ObjectBuilder data;

    if (sight.name == nullptr || !find_emitted(tables, key, now, last, tid))
        return;
    bool emitted = last.name != nullptr;
    bool open = emitted && last.number == 1;
    std::string_view tenant = view(sight.name).starts_with('+') ? tenant_in(view(sight.name)) : std::string_view();
    if (open && sight.started) {
        if (store::take(table, &tid) != store::Outcome::ok)
            return;
        last.number = 0;
        last.until = last.at + quiet_us;
        if (last.until > now)
            store::insert(table, form(table.rel, last));
        if (!tenant.empty())
            return;
        data.add("key", view(sight.name));
        data.add("job_id",
                 std::string_view(DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&sight.job_id)))));
        record("rate_limit.released", view(sight.name), data);
    } else if (!emitted && sight.strategy != nullptr) {
        LimitUseRow row = {key, LimitUse::event, now, 1, now + forgotten_us, {}, 0, sight.name};
        store::insert(table, form(table.rel, row));
        if (!tenant.empty()) {
            data.add("tenant_id", tenant).add("limit", std::string_view("max_concurrency"));
            data.add("current", sight.current).add("maximum", sight.limit);
            record("tenant.limit_exceeded", tenant, data);
            return;
        }
        data.add("key", view(sight.name)).add("strategy", std::string_view(sight.strategy));
        data.add("limit", sight.limit).add("current", sight.current);
        record("rate_limit.exceeded", view(sight.name), data);
    }
}

} // namespace ojs
