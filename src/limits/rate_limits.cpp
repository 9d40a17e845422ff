/*
 * rate_limits.cpp: see rate_limits.h.
 *
 * Starts of a key are numbered in order, so how many there were since a moment is the distance of two numbers, and
 * takes two look-ups however many they are. Many have the same time, so the index has their numbers, too. (A claim that
 * is rolled back leaves a gap in the numbers, which may count as a start until it is old: too few may start, never too
 * many.)
 *
 * Slots are in slots.cpp.
 */
#include "ojs/limits/rate_limits.h"

#include "ojs/limits/overrides.h"
#include "ojs/limits/rate_limit_events.h"
#include "ojs/limits/slots.h"
#include "ojs/pg/args.h"
#include "ojs/pg/session_cache.h"
#include "ojs/pg/settings.h"
#include "ojs/queue/tenant.h"
#include "ojs/queue/tenant_settings.h"
#include "ojs/shared/wakeup.h"
#include "ojs/store/name_hash.h"
#include "ojs/store/spi.h"

namespace ojs
{

struct LimitUsed {
    int64 key; /* hash of the name */
    text *name;
    bool known;
    LimitPolicy by; /* the policy by which the rest was found */
    SlotChanges changes;
    int64 held;
    int64 started;       /* within by.rate.period_us */
    TimestampTz oldest;  /* of these */
    TimestampTz last_at; /* the newest start */
    int64 last_number;
    TimestampTz paused_until;
    int32 own_held; /* what this claim adds, and the table does not say yet */
    int64 own_started;
    LimitSight sight;
};

namespace
{

constexpr int64 unknown_wait_us = USECS_PER_SEC; /* when a slot becomes free, nobody knows: ask again after this */
constexpr int max_removed = 100;                 /* old rows that one look removes */

/* The limits of a queue, and those of jobs that name no key. */
const char *
queue_key(std::string_view queue)
{
    return psprintf("queue:%.*s", static_cast<int>(queue.size()), queue.data());
}

bool
stated_limits(const JobRow &job, JsonbValue &stated)
{
    return (job.flags & job_limits) && job.options != nullptr &&
           find_member(root_of(job.options), "rate_limit", stated);
}

/* --- counting --- */

/* The use that the scan is at counts no more: store_limit_uses() removes it. */
void
over(Limits &limits, const store::Scan &scan)
{
    auto *tid = static_cast<ItemPointerData *>(palloc(sizeof(ItemPointerData)));
    *tid = scan.tid;
    limits.over = lappend(limits.over, tid);
}

void
count_starts(Limits &limits, LimitUsed &used)
{
    store::Table &table = limits.tables.limit_use();
    store::Scan scan;
    store::Row seen;
    LimitUseRow use;
    int removed = 0;

    used.started = 0;
    used.last_at = DT_NOBEGIN;
    used.last_number = 0;

    begin_uses(scan, table, used.key, LimitUse::start, DT_NOBEGIN);
    scan.direction = BackwardScanDirection;
    while ((seen = store::next(scan)) != store::Row::none) {
        read_in_place(table.slot, use);
        if (use.at <= limits.now + most_ahead_us) {
            used.last_at = use.at;
            used.last_number = use.number;
            break;
        }
        if (seen == store::Row::live)
            over(limits, scan);
    }
    store::end(scan);

    if (used.by.rate.period_us > 0 && used.last_at > limits.now - used.by.rate.period_us) {
        begin_uses(scan, table, used.key, LimitUse::start, limits.now - used.by.rate.period_us);
        if (store::next(scan) != store::Row::none) {
            read_in_place(table.slot, use);
            used.oldest = use.at;
            used.started = used.last_number - use.number + 1;
        }
        store::end(scan);
    }

    begin_uses(scan, table, used.key, LimitUse::start, DT_NOBEGIN);
    while (removed < max_removed && (seen = store::next(scan)) != store::Row::none) {
        read_in_place(table.slot, use);
        if (use.until > limits.now)
            break;
        if (seen == store::Row::live && use.number != used.last_number) {
            over(limits, scan);
            removed++;
        }
    }
    store::end(scan);
}

int64
spacing_us(const StartRate &throttle)
{
    return throttle.period_us / std::max(throttle.limit, 1);
}

void
begin_turn(Limits &limits)
{
    if (limits.keys != nullptr)
        return;
    take_turn(limits.tables);
    limits.now = std::max(limits.now, now());
    HASHCTL control = {};
    control.keysize = sizeof(int64);
    control.entrysize = sizeof(LimitUsed);
    control.hcxt = CurrentMemoryContext;
    limits.keys = hash_create("ojs limits of a claim", 64, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
    limits.current = static_cast<LimitOnJob *>(palloc(sizeof(LimitOnJob) * (max_limits + 2)));
}

bool
same_numbers(const LimitPolicy &a, const LimitPolicy &b)
{
    return (a.concurrency >= 0) == (b.concurrency >= 0) && a.rate.period_us == b.rate.period_us &&
           (a.throttle.period_us > 0) == (b.throttle.period_us > 0);
}

/* Numbers are part of it, since each job is judged by what it states itself; overrides are not, as they lie over all.
 */
uint64
name_of(int64 key, const LimitPolicy &policy)
{
    auto name = static_cast<uint64>(key);
    for (int64 number : {static_cast<int64>(policy.concurrency), static_cast<int64>(policy.rate.limit),
                         policy.rate.period_us, static_cast<int64>(policy.throttle.limit), policy.throttle.period_us})
        name = hash_combine64(name, static_cast<uint64>(number));
    return name | 1;
}

/* The key may be that of a limit before it: of a queue, and of its jobs that name no key. */
void
add_current(Limits &limits, LimitOnJob limit)
{
    for (int i = 0; i < limits.n_current; i++) {
        LimitOnJob &other = limits.current[i];
        if (other.used != limit.used)
            continue;
        other.takes_slot |= limit.takes_slot;
        other.remembered_us = std::max(other.remembered_us, limit.remembered_us);
        limit.takes_slot = false;
        limit.remembered_us = 0;
    }
    limits.current[limits.n_current++] = limit;
}

void
apply(Limits &limits, const Queue &queue, LimitPolicy policy)
{
    policy.key = policy.key.empty() ? std::string_view(queue_key(queue.name)) : beside(queue.name, policy.key);
    int64 key = name_hash(policy.key);
    TimestampTz paused_until;
    LimitPolicy effective = with_overrides(policy, key, limits.now, &paused_until);

    bool found;
    auto *used = static_cast<LimitUsed *>(hash_search(limits.keys, &key, HASH_ENTER, &found));
    if (!found) {
        *used = {};
        used->key = key;
        used->name = cstring_to_text_with_len(policy.key.data(), static_cast<int>(policy.key.size()));
        used->oldest = used->last_at = DT_NOBEGIN;
    }
    used->paused_until = paused_until;
    if (!used->known || !same_numbers(used->by, effective)) {
        used->by = effective;
        if (effective.concurrency >= 0)
            used->held = count_slots(limits.tables, key, used->changes) + used->own_held;
        if (effective.rate.period_us > 0 || effective.throttle.period_us > 0) {
            count_starts(limits, *used);
            if (used->own_started > 0) {
                used->last_at = std::max(used->last_at, limits.now);
                used->oldest = used->started == 0 ? used->last_at : used->oldest;
                used->started += used->own_started;
                used->last_number += used->own_started;
            }
        }
        used->known = true;
    }
    add_current(limits, {effective, used, name_of(key, policy), effective.concurrency >= 0,
                         std::max(effective.rate.period_us, spacing_us(effective.throttle))});
}

/* When this limit lets another job start: now or before, later, or (DT_NOEND) nobody knows. */
TimestampTz
open_at(const LimitOnJob &limit)
{
    const LimitPolicy &policy = limit.policy;
    const LimitUsed &used = *limit.used;
    TimestampTz at = used.paused_until;

    if (policy.concurrency >= 0 && used.held >= policy.concurrency)
        return DT_NOEND;
    if (policy.rate.period_us > 0 && used.started >= policy.rate.limit) {
        if (policy.rate.limit == 0)
            return DT_NOEND;
        at = std::max(at, used.oldest + policy.rate.period_us);
    }
    if (policy.throttle.period_us > 0 && used.last_at != DT_NOBEGIN)
        at = std::max(at, used.last_at + spacing_us(policy.throttle));
    return at;
}

void
collect(Limits &limits, const Queue &queue, const JobRow &job)
{
    JsonbValue stated;
    limits.n_current = 0;
    if (queue.tenant_concurrency >= 0) {
        LimitPolicy of_tenant = no_limit;
        of_tenant.key = held_key(tenant_in(queue.name));
        of_tenant.concurrency = queue.tenant_concurrency;
        apply(limits, queue, of_tenant);
    }
    if (says_something(queue.limit))
        apply(limits, queue, queue.limit);
    if (stated_limits(job, stated))
        each_limit(stated, [&](const LimitPolicy &policy) { apply(limits, queue, policy); });
}

void
note_use(Limits &limits, LimitUseRow row)
{
    auto *kept = static_cast<LimitUseRow *>(palloc(sizeof(LimitUseRow)));
    *kept = row;
    limits.pending = lappend(limits.pending, kept);
}

void
take_slot(Limits &limits, const LimitOnJob &limit, LeaseRow &lease)
{
    if (!limit.takes_slot)
        return;
    limit.used->held++;
    limit.used->own_held++;
    lease.flags |= job_counted;
    note_use(limits, slot_of(lease, limit.used->key, limit.used->name, limits.now));
}

} // namespace

LimitVerdict
may_start(Limits &limits, const Queue &queue, const JobRow &job, TimestampTz *again_at)
{
    LimitVerdict verdict = LimitVerdict::allowed;
    TimestampTz free_at = DT_NOBEGIN;

    begin_turn(limits);
    collect(limits, queue, job);
    limits.closed = 0;
    for (int i = 0; i < limits.n_current; i++) {
        TimestampTz at = open_at(limits.current[i]);
        if (at <= limits.now)
            continue;
        LimitUsed &used = *limits.current[i].used;
        see_closed(used.sight, limits.current[i].policy, used.held, used.started, used.paused_until > limits.now);
        limits.closed = limits.closed != 0 ? limits.closed : limits.current[i].name;
        OnLimit action = limits.current[i].policy.on_limit;
        verdict = std::max(verdict, action == OnLimit::drop         ? LimitVerdict::drop
                                    : action == OnLimit::reschedule ? LimitVerdict::reschedule
                                                                    : LimitVerdict::wait);
        free_at = std::max(free_at, at);
    }
    if (verdict == LimitVerdict::wait)
        limits.free_at = std::min(limits.free_at, free_at);
    else
        limits.closed = 0;
    *again_at = free_at == DT_NOEND ? limits.now + unknown_wait_us : free_at;
    return verdict;
}

void
starts(Limits &limits, LeaseRow &lease)
{
    for (int i = 0; i < limits.n_current; i++) {
        const LimitOnJob &limit = limits.current[i];
        LimitUsed &used = *limit.used;
        take_slot(limits, limit, lease);
        see_start(used.sight, limit.policy, lease.job_id);
        if (limit.remembered_us > 0) {
            used.last_at = std::max(used.last_at, limits.now);
            used.oldest = used.started == 0 ? used.last_at : used.oldest;
            used.started++;
            used.own_started++;
            used.last_number++;
            note_use(limits, {used.key, LimitUse::start, used.last_at, used.last_number,
                              used.last_at + limit.remembered_us, lease.job_id, lease.token, used.name});
        }
    }
}

int
places_left(Limits &limits, const Queue &queue, const LimitPolicy &policy, LimitOnJob *place)
{
    begin_turn(limits);
    limits.n_current = 0;
    apply(limits, queue, policy);
    *place = limits.current[0];
    LimitUsed &used = *place->used;
    if (place->policy.concurrency < 0 || used.held < place->policy.concurrency)
        return place->policy.concurrency < 0 ? PG_INT32_MAX : static_cast<int>(place->policy.concurrency - used.held);
    see_closed(used.sight, place->policy, used.held, used.started, false);
    limits.free_at = std::min(limits.free_at, limits.now + unknown_wait_us);
    return 0;
}

void
take_place(Limits &limits, const LimitOnJob &place, LeaseRow &lease)
{
    take_slot(limits, place, lease);
}

void
count_anew(Limits &limits)
{
    if (limits.keys == nullptr)
        return;
    HASH_SEQ_STATUS all;
    hash_seq_init(&all, limits.keys);
    while (auto *used = static_cast<LimitUsed *>(hash_seq_search(&all)))
        used->known = false;
}

void
retake_slots(Limits &limits, const Queue &queue, const JobRow &job, LeaseRow &lease)
{
    if (!queue.limited && !(job.flags & job_limits))
        return;
    begin_turn(limits);
    collect(limits, queue, job);
    for (int i = 0; i < limits.n_current; i++)
        take_slot(limits, limits.current[i], lease);
}

namespace
{

/* What the claim used, what counts no more, and the events. */
void
write_uses(Limits &limits)
{
    store::Table &table = limits.tables.limit_use();
    ListCell *cell;
    foreach (cell, limits.over)
        (void)store::take(table, static_cast<ItemPointer>(lfirst(cell)));
    foreach (cell, limits.pending)
        store::insert(table, form(table.rel, *static_cast<LimitUseRow *>(lfirst(cell))));
    HASH_SEQ_STATUS all;
    hash_seq_init(&all, limits.keys);
    while (auto *used = static_cast<LimitUsed *>(hash_seq_search(&all))) {
        if (used->own_held > 0)
            change_slots(limits.tables, used->key, used->own_held, used->name, limits.now);
        merge_if_many(limits.tables, used->key, used->changes, used->name, limits.now);
        tell_limit(limits.tables, used->key, used->sight, limits.now);
    }
}

} // namespace

void
store_limit_uses(Limits &limits, bool writes)
{
    if (limits.keys == nullptr)
        return;
    if (writes)
        write_uses(limits);
    end_turn();
    hash_destroy(limits.keys); /* a claim that waits makes many */
    limits.keys = nullptr;
}

void
pause_limits(std::string_view queue, const JobRow &job, TimestampTz until, const text *reason, TimestampTz now)
{
    static constinit Statement pause = {
        "with pause as (insert into ojs_store.rate_limit (key, config, until, set_at) values ($1, null, $2, $3))"
        " select ojs_store.record_event('rate_limit.dynamic_adjusted', $1,"
        " jsonb_build_object('key', $1, 'until', ojs_store.time_text($2), 'reason', $4))",
        {TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TEXTOID},
        nullptr};
    JsonbValue stated;
    bool paused = false;

    auto pause_key = [&](const LimitPolicy &policy) {
        std::string_view key = policy.key.empty() ? std::string_view(queue_key(queue)) : beside(queue, policy.key);
        TimestampTz already;
        (void)with_overrides(policy, name_hash(key), now, &already);
        if (already >= until)
            return;
        paused = true;
        text *name = cstring_to_text_with_len(key.data(), static_cast<int>(key.size()));
        SpiArg when = TimestampTzGetDatum(until);
        with_spi([&] {
            execute(pause, {PointerGetDatum(name), when, TimestampTzGetDatum(now), PointerGetDatum(reason)});
        });
    };
    if (until <= now)
        return;
    if (stated_limits(job, stated))
        each_limit(stated, pause_key);
    else
        pause_key(no_limit);
    if (paused)
        CacheInvalidateRelcacheByRelid(store::relation_oid(store::Rel::rate_limit));
}

} // namespace ojs
