/*
 * retention.cpp: see retention.h.
 *
 * Equivalent SQL: with gone as (delete from ojs_store.done d where d.ctid … and finished_at + retention <= now and not
 * (still counted by its unique policy) returning job_id) select ojs_store.remove_jobs(array_agg(job_id)) from gone;
 *
 * The row of `done` is taken first, without waiting: whoever has it is alone with the job, as a manual retry is.
 */
#include "ojs/upkeep/retention.h"

#include "ojs/job/canonical.h"
#include "ojs/state/dead_letter.h"
#include "ojs/pg/settings.h"
#include "ojs/state/locate.h"
#include "ojs/store/spi.h"
#include "ojs/upkeep/block_scan.h"

namespace ojs
{

namespace
{

constinit Sweep finished_jobs = {"done", store::Rel::done, 512, 0, 0, 0, 0};
constinit Sweep keys = {"uniq", store::Rel::uniq, 32, 0, 0, 0, 0};
constinit Sweep lease_log = {"lease_log", store::Rel::lease_log, 128, 0, 0, 0, 0};

constexpr const char *dead_letters = "dead_letter";
constexpr int64 dead_letters_every_us = 60 * USECS_PER_SEC;

/* Plans are saved when tables may still be empty. */
void
by_index()
{
    for (const char *way : {"enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin"})
        set_for_body(way, "off");
}

/* --- jobs --- */

bool
still_counted(const JobBrief &job, State end, TimestampTz now)
{
    if (job.uniq == nullptr)
        return false;
    UniquePolicy policy = read_unique_policy(job.uniq);
    return (policy.states & state_bit(end)) != 0 &&
           (!policy.period_ms || job.created_at + *policy.period_ms * 1000 > now);
}

/* Removes a finished job, whose row of `done` is at tid, unless somebody is at it or its unique policy counts it. */
bool
let_go(Tables &tables, const DoneBrief &done, ItemPointerData tid, TimestampTz now)
{
    JobBrief job;
    ItemPointerData job_tid;
    if (store::find(tables.job(), store::Idx::job_id, done.job_id, &job_tid) != store::Row::none) {
        read(tables.job().slot, job);
        if (still_counted(job, done.state, now))
            return false;
    }
    if (store::take(tables.done(), &tid) != store::Outcome::ok)
        return false;
    (void)remove_job(tables, done.job_id);
    return true;
}

bool
outlived(const DoneBrief &done, TimestampTz now)
{
    const Queue *queue = find_queue(done.queue);
    int64 kept_ms = queue != nullptr ? kept_ms_of(*queue, done.state) : kept_discarded_ms;
    return done.finished_at + kept_ms * 1000 <= now;
}

/* Names of queues that were dropped more than a day ago and have left nothing. */
constinit Statement forget_queues = {R"sql(
    delete from ojs_store.queue where ctid = any (array(
        select q.ctid from ojs_store.queue q
        where q.state = 'deleted' and q.revised_at < $1
            and not exists (select from ojs_store.job j where j.queue = q.id)
            and not exists (select from ojs_store.done d where d.queue = q.id)
            and not exists (select from ojs_store.lease_log l where l.queue = q.id)
        for update skip locked))
)sql", {TIMESTAMPTZOID}, nullptr};

int
sweep_jobs(Tables &tables, int limit, TimestampTz now)
{
    Stretch stretch = next_stretch(finished_jobs, now);
    if (stretch.n == 0)
        return 0;

    BlockNumber next_block = stretch.first + stretch.n;
    std::optional<TimestampTz> newest;
    int seen = 0;
    int removed = 0;
    store::BlockWalk walk;
    store::begin(walk, tables.done(), stretch.first, stretch.n);
    while (store::next(walk)) {
        DoneBrief done;
        read(walk.slot, done);
        seen++;
        if ((done.flags & done_dead_letter) || !outlived(done, now))
            continue;
        if (removed == limit) {
            next_block = ItemPointerGetBlockNumber(&walk.slot->tts_tid);
            break;
        }
        if (!let_go(tables, done, walk.slot->tts_tid, now))
            continue;
        removed++;
        newest = std::max(newest.value_or(done.finished_at), done.finished_at);
    }
    store::end(walk);
    if (next_block >= stretch.of)
        with_spi([&] { execute_latest(forget_queues, {TimestampTzGetDatum(now - USECS_PER_DAY)}); });
    stretch_done(finished_jobs, stretch, next_block, removed > 0 && removed >= seen / 8, newest, now);
    return removed;
}

/* --- dead letters --- */

constinit Statement queues_of_dead_letters = {R"sql(
    with recursive of(queue) as (
        (select queue from ojs_store.dead_letter order by queue limit 1)
        union all
        select (select d.queue from ojs_store.dead_letter d where d.queue > of.queue order by d.queue limit 1)
        from of where of.queue is not null
    )
    select queue from of where queue is not null
)sql", {}, nullptr};

/* Those that died before $2, and those before which at least $3 newer ones came. */
constinit Statement old_dead_letters = {R"sql(
    select d.job_id
    from ojs_store.dead_letter d
    where d.queue = $1 and d.died_at <= greatest($2, (
        select n.died_at from ojs_store.dead_letter n where n.queue = $1 and $3 > 0 order by n.died_at desc offset $3 limit 1))
    order by d.died_at
    limit $4
)sql", {INT8OID, TIMESTAMPTZOID, INT8OID, INT4OID}, nullptr};

constinit Statement report_pruned = {R"sql(
    select ojs_store.record_event('dead_letter.pruned', q.name, jsonb_build_object('queue', q.name, 'count', $2))
    from ojs_store.queue q where q.id = $1 order by q.revised_at desc limit 1
)sql", {INT8OID, INT4OID}, nullptr};

int
prune_dead_letters_of(Tables &tables, int64 queue_id, int limit, TimestampTz now)
{
    const Queue *queue = find_queue(queue_id);
    int64 kept_ms = queue != nullptr ? queue->dead_letter_ttl_ms : kept_dead_letters_ms;
    int64 most = queue != nullptr ? queue->dead_letter_max : kept_dead_letters;
    int removed = 0;
    TimestampTz newest = DT_NOBEGIN;

    uint64 n = execute_latest(old_dead_letters, {Int64GetDatum(queue_id), TimestampTzGetDatum(now - kept_ms * 1000),
                                                 Int64GetDatum(most), Int32GetDatum(limit)});
    for (uint64 i = 0; i < n; i++) {
        bool null;
        ItemPointerData tid;
        DoneBrief done;
        pg_uuid_t id = *DatumGetUUIDP(cell(i, 1, &null));
        if (store::find(tables.done(), store::Idx::done_job, id, &tid) != store::Row::live)
            continue;
        read(tables.done().slot, done);
        if (!let_go(tables, done, tid, now))
            continue;
        removed++;
        newest = std::max(newest, done.finished_at);
    }
    if (removed > 0) {
        execute_latest(report_pruned, {Int64GetDatum(queue_id), Int32GetDatum(removed)});
        note_removed(dead_letters, newest, now);
    }
    return removed;
}

int
prune_dead_letters(Tables &tables, int limit, TimestampTz now)
{
    static TimestampTz looked_at;
    static uint64 queues;
    static uint64 clock;
    int removed = 0;
    bool same = queues == store::catalog_generation(store::Rel::queue) && clock == clock_generation;
    if (same && now >= looked_at && now - looked_at < dead_letters_every_us)
        return 0;
    with_spi([&] {
        by_index();
        uint64 n = execute_latest(queues_of_dead_letters);
        auto *ids = static_cast<int64 *>(palloc(sizeof(int64) * std::max<uint64>(n, 1)));
        for (uint64 i = 0; i < n; i++) {
            bool null;
            ids[i] = DatumGetInt64(cell(i, 1, &null));
        }
        if (n == 0 || !alone_with(dead_letters))
            return;
        for (uint64 i = 0; i < n && removed < limit; i++)
            removed += prune_dead_letters_of(tables, ids[i], limit - removed, now);
    });
    queues = store::catalog_generation(store::Rel::queue);
    clock = clock_generation;
    looked_at = removed < limit ? now : now - dead_letters_every_us;
    return removed;
}

/* --- what jobs leave behind --- */

/* Keys that name a job which is not there any more. They are locked, and then looked at again: whoever was pushing with
 * such a key has ended, and its job is seen. */
constinit Statement lock_keys_of_none = {R"sql(
    select array_agg(k.tid)
    from (
        select u.ctid as tid
        from ojs_store.uniq u
        where u.ctid >= $1 and u.ctid < $2
            and exists (select from unnest(u.past || u.job_id) as named(id)
                where not exists (select from ojs_store.job j where j.id = named.id))
        for update skip locked
    ) k
)sql", {TIDOID, TIDOID}, nullptr};

constinit Statement forget_keys = {R"sql(
    delete from ojs_store.uniq
    where ctid = any ($1) and not exists (select from ojs_store.job j where j.id = any (uniq.past || uniq.job_id))
)sql", {TIDARRAYOID}, nullptr};

constinit Statement mend_keys = {R"sql(
    update ojs_store.uniq set job_id = k.ids[cardinality(k.ids)], past = k.ids[:cardinality(k.ids) - 1]
    from (
        select u.ctid as tid, array(
            select named.id from unnest(u.past || u.job_id) with ordinality as named(id, n)
            where exists (select from ojs_store.job j where j.id = named.id) order by named.n) as ids
        from ojs_store.uniq u where u.ctid = any ($1)
    ) k
    where uniq.ctid = k.tid and k.ids <> uniq.past || uniq.job_id
)sql", {TIDARRAYOID}, nullptr};

constinit Statement old_leases = {
    "delete from ojs_store.lease_log where ctid >= $1 and ctid < $2 and at <= $3", {TIDOID, TIDOID, TIMESTAMPTZOID}, nullptr};

struct TidRange {
    ItemPointerData from, to;
};

TidRange
tids_of(const Stretch &stretch)
{
    TidRange range;
    ItemPointerSet(&range.from, stretch.first, 0);
    ItemPointerSet(&range.to, stretch.first + stretch.n, 0);
    return range;
}

void
sweep_keys(TimestampTz now)
{
    Stretch stretch = next_stretch(keys, now);
    if (stretch.n == 0)
        return;
    TidRange range = tids_of(stretch);
    uint64 changed = 0;
    with_spi([&] {
        bool none;
        by_index();
        execute_latest(lock_keys_of_none, {PointerGetDatum(&range.from), PointerGetDatum(&range.to)});
        Datum tids = cell(0, 1, &none);
        if (none)
            return;
        changed = execute_latest(forget_keys, {tids});
        changed += execute_latest(mend_keys, {tids});
    });
    constexpr int keys_in_block = 40; /* about as many */
    stretch_done(keys, stretch, stretch.first + stretch.n, changed > stretch.n * keys_in_block / 8, std::nullopt, now);
}

void
sweep_lease_log(TimestampTz now)
{
    Stretch stretch = next_stretch(lease_log, now);
    if (stretch.n == 0)
        return;
    TidRange range = tids_of(stretch);
    uint64 n = 0;
    TimestampTz before = now - static_cast<int64>(settings.event_retention_s) * USECS_PER_SEC;
    with_spi([&] {
        n = execute_latest(old_leases, {PointerGetDatum(&range.from), PointerGetDatum(&range.to), TimestampTzGetDatum(before)});
    });
    stretch_done(lease_log, stretch, stretch.first + stretch.n, n > stretch.n, std::nullopt, now);
}

} // namespace

int
prune_jobs(Tables &tables, int limit, TimestampTz now)
{
    return sweep_jobs(tables, limit, now) + prune_dead_letters(tables, limit, now);
}

void
prune_traces(TimestampTz now)
{
    sweep_keys(now);
    sweep_lease_log(now);
}

} // namespace ojs
