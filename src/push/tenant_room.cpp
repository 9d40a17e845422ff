/*
 * tenant_room.cpp: see tenant_room.h.
 *
 * How many jobs of a tenant wait is the sum over its queues, which are known by name. With shared counters a push
 * reserves its places in that sum, as it does in a bounded queue (counters/reservation.cpp); without them it locks the
 * tenant until its transaction ends, and counts.
 *
 * A push under a rate leaves rows in limit_use, numbered in order: one with the number of its first job, and one with
 * that of its last. So how many were pushed since a moment is the distance of two numbers. Pushes of a tenant look and
 * write in turn; they count those of open transactions, and do not wait for them. As with rate limits, a clock that was
 * set back has the limit begin anew (limits/overrides.h).
 */
#include "ojs/push/tenant_room.h"

#include "ojs/counters/queue_counters.h"
#include "ojs/limits/overrides.h"
#include "ojs/pg/args.h"
#include "ojs/queue/tenant_settings.h"
#include "ojs/store/name_hash.h"

namespace ojs
{

namespace
{

constexpr int max_removed = 100; /* old rows that one push removes */

/* What of the call is one tenant's. */
struct Wanted {
    TenantSettings limits;
    int64 jobs;
    int64 scheduled;
};

struct WantedList {
    Wanted *of;
    int n;
};

/* In the order in which their locks are taken. */
WantedList
wanted_by(const Envelope *envelopes, int n, TimestampTz now)
{
    WantedList list = {};
    int room = 0;
    for (int i = 0; i < n; i++) {
        std::string_view tenant = tenant_in(envelopes[i].queue);
        const TenantSettings *set = tenant.empty() ? nullptr : settings_of_tenant(tenant);
        if (set == nullptr || !set->bounds_pushes())
            continue;
        int at = list.n - 1;
        while (at >= 0 && list.of[at].limits.tenant != tenant)
            at--;
        if (at < 0) {
            if (list.n == room) {
                room = std::max(4, room * 2);
                auto *wider = static_cast<Wanted *>(palloc(sizeof(Wanted) * room));
                std::copy(list.of, list.of + list.n, wider);
                list.of = wider;
            }
            at = list.n++;
            list.of[at] = {*set, 0, 0};
        }
        list.of[at].jobs++;
        if (!envelopes[i].pending && envelopes[i].scheduled_at && *envelopes[i].scheduled_at > now)
            list.of[at].scheduled++;
    }
    std::sort(list.of, list.of + list.n,
              [](const Wanted &a, const Wanted &b) { return strcmp(a.limits.tenant, b.limits.tenant) < 0; });
    return list;
}

[[noreturn]] void
raise_exceeded(const Wanted &wanted, const char *limit, int64 current, int64 maximum, int64 retry_after_s,
               const char *hint, const char *what)
{
    raise(Code::tenant_limit_exceeded,
          Details()
              .add("tenant_id", wanted.limits.tenant)
              .add("limit", limit)
              .add("current", current)
              .add("maximum", maximum)
              .add("jobs", wanted.jobs)
              .add("retry_after_seconds", retry_after_s),
          hint, "tenant \"%s\" has reached its %s: %lld of %lld %s", wanted.limits.tenant, limit,
          static_cast<long long>(current), static_cast<long long>(maximum), what);
}

/* --- how many wait --- */

int64
bound_id(const char *tenant, const char *limit)
{
    return name_hash(psprintf("+%s@%s", limit, tenant));
}

int64
waiting_by_rows(TenantQueues queues, bool scheduled_only)
{
    auto *counts = static_cast<Counts *>(palloc(sizeof(Counts) * std::max(queues.n, 1)));
    int64 waiting = 0;
    read_counts(queues.ids, queues.n, false, 0, counts);
    for (int i = 0; i < queues.n; i++) {
        if (scheduled_only)
            waiting += counts[i][Where::scheduled];
        else
            for (Where where : waiting_states)
                waiting += counts[i][where];
    }
    pfree(counts);
    return waiting;
}

void
keep_depth(const Wanted &wanted, const char *limit, bool scheduled_only, int64 jobs, int64 maximum)
{
    if (maximum < 0 || jobs == 0)
        return;
    int64 id = bound_id(wanted.limits.tenant, limit);
    TenantQueues queues = queues_of_tenant(wanted.limits.tenant);
    int64 depth = 0;
    Reservation reservation = reserve_among(id, queues.ids, queues.n, scheduled_only, jobs, maximum, &depth);
    if (reservation == Reservation::none) {
        lock_bound(id, ExclusiveLock);
        AcceptInvalidationMessages(); /* whoever had the lock may have pushed to a queue that is new */
        queues = queues_of_tenant(wanted.limits.tenant);
        depth = waiting_by_rows(queues, scheduled_only);
        reservation = depth + jobs <= maximum ? Reservation::made : Reservation::full;
    }
    if (reservation == Reservation::full)
        raise_exceeded(wanted, limit, depth, maximum, 1,
                       jobs > maximum ? "Push fewer jobs at once."
                       : jobs > 1     ? "Try again when workers have made room, or push fewer jobs at once."
                                      : "Try again when workers have made room.",
                       scheduled_only ? "jobs are scheduled" : "jobs wait");
}

/* --- how many come in a time --- */

LOCKTAG
turn_tag(int64 key)
{
    LOCKTAG tag;
    SET_LOCKTAG_OBJECT(tag, MyDatabaseId, store::relation_oid(store::Rel::limit_use), static_cast<uint32>(key), 3);
    return tag;
}

void
begin_pushes(store::Scan &scan, Tables &tables, int64 key, TimestampTz after)
{
    ScanKeyData keys[3];
    ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(key));
    ScanKeyInit(&keys[1], 2, BTEqualStrategyNumber, F_INT2EQ, Int16GetDatum(static_cast<int16>(LimitUse::start)));
    ScanKeyInit(&keys[2], 3, BTGreaterStrategyNumber, F_TIMESTAMPTZ_GT, TimestampTzGetDatum(after));
    store::begin(scan, tables.limit_use(), store::Idx::limit_use_key, keys, 3, true);
}

struct Pushes {
    ItemPointerData *gone; /* rows that count no more */
    int n_gone;
    int64 n;            /* within the period */
    TimestampTz oldest; /* of these */
    TimestampTz last_at;
    int64 last_number;
};

Pushes
count_pushes(Tables &tables, int64 key, int64 period_us, TimestampTz now)
{
    store::Table &table = tables.limit_use();
    Pushes pushes = {
        static_cast<ItemPointerData *>(palloc(sizeof(ItemPointerData) * max_removed)), 0, 0, now, DT_NOBEGIN, 0};
    store::Row seen;
    store::Scan scan;
    LimitUseRow row;

    begin_pushes(scan, tables, key, DT_NOBEGIN);
    scan.direction = BackwardScanDirection;
    while ((seen = store::next(scan)) != store::Row::none) {
        read_in_place(table.slot, row);
        if (row.at <= now + most_ahead_us) {
            pushes.last_at = row.at;
            pushes.last_number = row.number;
            break;
        }
        if (seen == store::Row::live && pushes.n_gone < max_removed)
            pushes.gone[pushes.n_gone++] = scan.tid;
    }
    store::end(scan);
    begin_pushes(scan, tables, key, now - period_us);
    if (pushes.last_at > now - period_us && store::next(scan) != store::Row::none) {
        read_in_place(table.slot, row);
        pushes.oldest = row.at;
        pushes.n = pushes.last_number - row.number + 1;
    }
    store::end(scan);
    return pushes;
}

void
remove_old(Tables &tables, int64 key, Pushes &pushes, TimestampTz now)
{
    store::Table &table = tables.limit_use();
    store::Scan scan;
    store::Row seen;
    begin_pushes(scan, tables, key, DT_NOBEGIN);
    while (pushes.n_gone < max_removed && (seen = store::next(scan)) != store::Row::none) {
        LimitUseRow row;
        read_in_place(table.slot, row);
        if (row.until > now)
            break;
        if (seen == store::Row::live)
            pushes.gone[pushes.n_gone++] = scan.tid;
    }
    store::end(scan);
    for (int i = 0; i < pushes.n_gone; i++)
        (void)store::take(table, &pushes.gone[i]);
}

void
note_push(Tables &tables, const char *key, TimestampTz at, int64 number, int64 period_us)
{
    store::Table &table = tables.limit_use();
    LimitUseRow row = {name_hash(key), LimitUse::start, at, number, at + period_us, {}, 0, cstring_to_text(key)};
    store::insert(table, form(table.rel, row));
}

void
keep_rate(Tables &tables, const Wanted &wanted)
{
    const StartRate &rate = wanted.limits.enqueue_rate;
    if (rate.period_us == 0)
        return;
    const char *key = pushes_key(wanted.limits.tenant);
    int64 hash = name_hash(key);
    (void)tables.limit_use(); /* whoever has locked the table is waited for before the turn */
    LOCKTAG tag = turn_tag(hash);
    (void)LockAcquire(&tag, ExclusiveLock, false, false);
    TimestampTz at = now();
    Pushes pushes = count_pushes(tables, hash, rate.period_us, at);
    at = std::max(at, std::min(pushes.last_at, at + rate.period_us));
    if (pushes.n + wanted.jobs > rate.limit) {
        int64 wait_us = std::max<int64>(pushes.oldest + rate.period_us - at, 0);
        raise_exceeded(wanted, "max_enqueue_rate", pushes.n, rate.limit,
                       std::max<int64>((wait_us + 999999) / 1000000, 1),
                       wanted.jobs > rate.limit ? "Push fewer jobs at once." : "Push again later.",
                       psprintf("jobs were pushed within %lld ms", static_cast<long long>(rate.period_us / 1000)));
    }
    remove_old(tables, hash, pushes, at);
    note_push(tables, key, at, pushes.last_number + 1, rate.period_us);
    if (wanted.jobs > 1)
        note_push(tables, key, at, pushes.last_number + wanted.jobs, rate.period_us);
    (void)LockRelease(&tag, ExclusiveLock, false);
}

} // namespace

void
keep_tenant_limits(Tables &tables, const Envelope *envelopes, int n, TimestampTz now)
{
    if (!has_tenants())
        return;
    WantedList list = wanted_by(envelopes, n, now);
    for (int i = 0; i < list.n; i++) {
        const Wanted &wanted = list.of[i];
        keep_depth(wanted, "max_queue_depth", false, wanted.jobs, wanted.limits.max_queue_depth);
        keep_depth(wanted, "max_scheduled", true, wanted.scheduled, wanted.limits.max_scheduled);
        keep_rate(tables, wanted);
    }
}

void
hold_tenant_limits(const Envelope *envelopes, int n)
{
    if (!has_tenants() || reserves())
        return;
    WantedList list = wanted_by(envelopes, n, now());
    for (int i = 0; i < list.n; i++) {
        if (list.of[i].limits.max_queue_depth >= 0)
            lock_bound(bound_id(list.of[i].limits.tenant, "max_queue_depth"), ExclusiveLock);
        if (list.of[i].limits.max_scheduled >= 0)
            lock_bound(bound_id(list.of[i].limits.tenant, "max_scheduled"), ExclusiveLock);
    }
}

} // namespace ojs
