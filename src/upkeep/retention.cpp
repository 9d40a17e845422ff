/*
 * retention.cpp: see retention.h.
 *
 * Equivalent SQL: with gone as (delete from ojs_store.finished d where d.ctid … and finished_at + retention <= now and
 * not (still counted by its unique policy) returning job_id) select ojs_store.remove_jobs(array_agg(job_id)) from gone;
 *
 * The row of `finished` is taken first, without waiting: whoever has it is alone with the job, as a manual retry is.
 */
#include "ojs/upkeep/retention.h"

#include "ojs/job/canonical.h"
#include "ojs/state/dead_letter.h"
#include "ojs/pg/settings.h"
#include "ojs/queue/id_walk.h"
#include "ojs/state/locate.h"
#include "ojs/store/spi.h"
#include "ojs/upkeep/block_scan.h"

namespace ojs
{

namespace
{

constinit BlockScan finished_jobs = {"finished", store::Rel::finished, 512, 0, 0, 0, 0};
constinit BlockScan keys = {"unique_key", store::Rel::unique_key, 32, 0, 0, 0, 0};
constinit BlockScan lease_log = {"lease_log", store::Rel::lease_log, 128, 0, 0, 0, 0};

constexpr const char *dead_letters = "dead_letter";

/* --- jobs --- */

bool
still_counted(const JobBrief &job, State end, TimestampTz now)
{
    if (job.unique_policy == nullptr)
        return false;
    UniquePolicy policy = read_unique_policy(job.unique_policy);
    return (policy.states & state_bit(end)) != 0 && within_period(policy, job.created_at, now);
}

/* Whether another transaction has locked or is writing a row that goes with the job: its history, its checkpoint. */
bool
in_use(Tables &tables, const pg_uuid_t &id)
{
    constexpr struct {
        store::Rel rel;
        store::Idx by_job;
    } all[] = {{store::Rel::job_history, store::Idx::job_history_job},
               {store::Rel::checkpoint, store::Idx::checkpoint_job},
               {store::Rel::progress, store::Idx::progress_job},
               {store::Rel::dead_letter, store::Idx::dead_letter_job}};
    bool busy = false;
    for (const auto &one : all) {
        ScanKeyData key;
        store::Scan scan;
        store::Row seen;
        store::key_uuid(&key, id);
        store::begin(scan, tables.get(one.rel), one.by_job, &key, 1, false);
        while (!busy && (seen = store::next(scan)) != store::Row::none)
            busy = seen != store::Row::live || store::held_by_another(tables.get(one.rel));
        store::end(scan);
    }
    return busy;
}

/* Where the next job most likely lies: jobs end more or less in the order in which they were stored. */
ItemPointerData next_job;

/*
 * Removes a finished job, whose row of `finished` is at tid, unless somebody is at it or its unique policy counts it.
 */
bool
let_go(Tables &tables, const FinishedBrief &done, ItemPointerData tid, TimestampTz now)
{
    JobBrief job;
    ItemPointerData job_tid = next_job;
    store::Row seen = store::find_at(tables.job(), done.job_id, &job_tid)
                          ? store::Row::live
                          : store::find(tables.job(), store::Idx::job_id, done.job_id, &job_tid);
    bool alone = (done.flags & finished_alone) != 0;
    if (seen != store::Row::none) {
        read(tables.job().slot, job);
        if (still_counted(job, done.state, now) || seen != store::Row::live || store::held_by_another(tables.job()))
            return false;
        next_job = job_tid;
        ItemPointerSetOffsetNumber(&next_job, ItemPointerGetOffsetNumber(&job_tid) + 1);
    }
    if ((!alone && in_use(tables, done.job_id)) || store::take_seen(tables.finished(), &tid) != store::Outcome::ok)
        return false;
    if (!alone || seen == store::Row::none)
        (void)remove_job(tables, done.job_id);
    else
        remove_job(tables, done.job_id, job_tid, job.flags);
    return true;
}

bool
outlived(const FinishedBrief &done, TimestampTz now)
{
    const Queue *queue = find_queue(done.queue);
    int64 kept_ms = queue != nullptr ? kept_ms_of(*queue, done.state) : kept_discarded_ms;
    return done.finished_at + kept_ms * 1000 <= now;
}

/* --- names of dropped queues --- */

/*
 * A queue that was dropped is forgotten when nothing is left of it. No index says which jobs a queue has, so the scan
 * of `finished` looks: a dropped queue that has no open job at the beginning of a round, no finished one during the
 * round and again no open one at its end, has none.
 */
struct Round {
    static constexpr int most = 100;
    int64 dropped[most]; /* of which no finished job has been seen */
    int n;
    BlockNumber next; /* where this session's scan goes on, if no other has scanned */
};
constinit Round forgetting = {};

constinit Statement dropped_queues = {R"sql(
    select q.id from (
        select id from ojs_store.queue where state = 'deleted' and revised_at < $1 offset 0 -- by its index
    ) q
    where not exists (select from ojs_store.ready r where r.queue = q.id)
        and not exists (select from ojs_store.lease l where l.queue = q.id)
        and not exists (select from ojs_store.delayed l where l.queue = q.id)
    limit $2
)sql",
                                      {TIMESTAMPTZOID, INT4OID},
                                      nullptr};

constinit Statement forget_queues = {R"sql(
    delete from ojs_store.queue where ctid = any (array(
        select q.ctid from ojs_store.queue q
        where q.id = any ($2) and q.state = 'deleted' and q.revised_at < $1
            and not exists (select from ojs_store.ready r where r.queue = q.id)
            and not exists (select from ojs_store.lease l where l.queue = q.id)
            and not exists (select from ojs_store.delayed l where l.queue = q.id)
        for update skip locked))
)sql",
                                     {TIMESTAMPTZOID, INT8ARRAYOID},
                                     nullptr};

/* The lease log names queues for as long as it is kept. */
TimestampTz
dropped_before(TimestampTz now)
{
    return now - USECS_PER_DAY - static_cast<int64>(settings.event_retention_s) * USECS_PER_SEC;
}

void
begin_round(TimestampTz now)
{
    forgetting.n = 0;
    with_spi([&] {
        for (const char *way :
             {"enable_nestloop", "jit"}) /* each table is read once, and only if there are such queues */
            set_for_body(way, "off");
        auto n = static_cast<int>(
            execute_latest(dropped_queues, {TimestampTzGetDatum(dropped_before(now)), Int32GetDatum(Round::most)}));
        for (int i = 0; i < n; i++) {
            bool null;
            forgetting.dropped[i] = DatumGetInt64(cell(i, 1, &null));
        }
        forgetting.n = n;
    });
}

void
note_finished(int64 queue)
{
    int64 *end = forgetting.dropped + forgetting.n;
    forgetting.n = static_cast<int>(std::remove(forgetting.dropped, end, queue) - forgetting.dropped);
}

void
end_round(TimestampTz now)
{
    if (forgetting.n == 0)
        return;
    with_spi([&] {
        set_for_body("enable_nestloop", "off");
        Datum ids[Round::most];
        std::transform(forgetting.dropped, forgetting.dropped + forgetting.n, ids,
                       [](int64 id) { return Int64GetDatum(id); });
        ArrayType *array = construct_array(ids, forgetting.n, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE);
        execute_latest(forget_queues, {TimestampTzGetDatum(dropped_before(now)), PointerGetDatum(array)});
    });
    forgetting.n = 0;
}

/* Nothing has ever finished, so no stretch ends a round. */
void
forget_queues_without_jobs(TimestampTz now)
{
    static TimestampTz done_at;
    if (now >= done_at && now - done_at < 60 * USECS_PER_SEC)
        return;
    begin_round(now);
    end_round(now);
    done_at = now;
}

int
remove_finished_jobs(Tables &tables, int limit, TimestampTz now)
{
    Stretch stretch = next_stretch(finished_jobs, now);
    if (stretch.empty)
        forget_queues_without_jobs(now);
    if (stretch.n == 0)
        return 0;

    BlockNumber next_block = stretch.first + stretch.n;
    std::optional<TimestampTz> newest;
    int seen = 0;
    int removed = 0;
    store::BlockWalk walk;
    store::Table &finished = tables.finished();
    if (stretch.first == 0)
        begin_round(now);
    else if (stretch.first != forgetting.next)
        forgetting.n = 0;
    store::begin(walk, finished, stretch.first, stretch.n);
    while (store::next(walk)) {
        FinishedBrief done;
        read(finished.slot, done);
        seen++;
        if (forgetting.n > 0)
            note_finished(done.queue);
        if ((done.flags & finished_dead_letter) || !outlived(done, now))
            continue;
        if (removed == limit) {
            next_block = ItemPointerGetBlockNumber(&finished.slot->tts_tid);
            break;
        }
        if (!let_go(tables, done, finished.slot->tts_tid, now))
            continue;
        removed++;
        newest = std::max(newest.value_or(done.finished_at), done.finished_at);
    }
    store::end(walk);
    forgetting.next = next_block;
    if (next_block >= stretch.of)
        end_round(now);
    stretch_done(finished_jobs, stretch, next_block, removed > 0 && removed >= seen / 8, newest, now);
    return removed;
}

/* --- dead letters --- */

/* Queues with dead letters, each once. */
constinit IdWalk dead_letter_queues = {{R"sql(
    with recursive of(queue) as (
        (select queue from ojs_store.dead_letter where queue >= $1 order by queue limit 1)
        union all
        select (select d.queue from ojs_store.dead_letter d where d.queue > of.queue order by d.queue limit 1)
        from of where of.queue is not null
    )
    select queue from of where queue is not null limit $2
)sql",
                                        {INT8OID, INT4OID},
                                        nullptr},
                                       100,
                                       60 * USECS_PER_SEC,
                                       false,
                                       0,
                                       0,
                                       0,
                                       0};

/* Those that died by $2, and those beyond the newest $3; many may have died at the same time. */
constinit Statement old_dead_letters = {R"sql(
    (select d.job_id from ojs_store.dead_letter d where d.queue = $1 and d.died_at <= $2 order by d.died_at limit $4)
    union
    (select d.job_id from ojs_store.dead_letter d where d.queue = $1 and $3 > 0 order by d.died_at desc offset $3
        limit $4)
    limit $4
)sql",
                                        {INT8OID, TIMESTAMPTZOID, INT8OID, INT4OID},
                                        nullptr};

constinit Statement report_pruned = {R"sql(
    select ojs_store.record_event('dead_letter.pruned', q.name, jsonb_build_object('queue', q.name, 'count', $2))
    from ojs_store.queue q where q.id = $1 order by q.revised_at desc limit 1
)sql",
                                     {INT8OID, INT4OID},
                                     nullptr};

/* Ids in memory of the caller's: tables must not be opened inside with_spi, whose memory goes first. */
struct Old {
    pg_uuid_t *ids;
    uint64 n;
};

Old
find_old(int64 queue_id, int limit, TimestampTz now)
{
    const Queue *queue = find_queue(queue_id);
    int64 kept_ms = queue != nullptr ? queue->dead_letter_ttl_ms : kept_dead_letters_ms;
    int64 most = queue != nullptr ? queue->dead_letter_max : kept_dead_letters;
    MemoryContext caller = CurrentMemoryContext;
    Old old = {};
    with_spi([&] {
        plan_by_index();
        old.n = execute_latest(old_dead_letters, {Int64GetDatum(queue_id), TimestampTzGetDatum(now - kept_ms * 1000),
                                                  Int64GetDatum(most), Int32GetDatum(limit)});
        old.ids =
            static_cast<pg_uuid_t *>(MemoryContextAllocHuge(caller, sizeof(pg_uuid_t) * std::max<uint64>(old.n, 1)));
        for (uint64 i = 0; i < old.n; i++) {
            bool null;
            old.ids[i] = *DatumGetUUIDP(cell(i, 1, &null));
        }
    });
    return old;
}

int
prune_dead_letters_of(Tables &tables, int64 queue_id, int limit, TimestampTz now)
{
    Old old = find_old(queue_id, limit, now);
    int removed = 0;
    TimestampTz newest = DT_NOBEGIN;

    for (uint64 i = 0; i < old.n; i++) {
        ItemPointerData tid;
        FinishedBrief done;
        if (store::find(tables.finished(), store::Idx::finished_job, old.ids[i], &tid) != store::Row::live)
            continue;
        read(tables.finished().slot, done);
        if (!let_go(tables, done, tid, now))
            continue;
        removed++;
        newest = std::max(newest, done.finished_at);
    }
    pfree(old.ids);
    if (removed > 0)
        with_spi([&] {
            execute_latest(report_pruned, {Int64GetDatum(queue_id), Int32GetDatum(removed)});
            note_removed(dead_letters, newest, now);
        });
    return removed;
}

/* --- what jobs leave behind --- */

/* Keys that name a job which is not there any more. They are locked, and then looked at again: whoever was pushing with
 * such a key has ended, and its job is seen. */
constinit Statement lock_keys_of_none = {R"sql(
    select array_agg(k.tid)
    from (
        select u.ctid as tid
        from ojs_store.unique_key u
        where u.ctid >= $1 and u.ctid < $2
            and exists (select from unnest(u.past || u.job_id) as named(id)
                where not exists (select from ojs_store.job j where j.id = named.id))
        for update skip locked
    ) k
)sql",
                                         {TIDOID, TIDOID},
                                         nullptr};

constinit Statement forget_keys = {R"sql(
    delete from ojs_store.unique_key
    where ctid = any ($1)
        and not exists (select from ojs_store.job j where j.id = any (unique_key.past || unique_key.job_id))
)sql",
                                   {TIDARRAYOID},
                                   nullptr};

constinit Statement mend_keys = {R"sql(
    update ojs_store.unique_key set job_id = k.ids[cardinality(k.ids)], past = k.ids[:cardinality(k.ids) - 1]
    from (
        select u.ctid as tid, array(
            select named.id from unnest(u.past || u.job_id) with ordinality as named(id, n)
            where exists (select from ojs_store.job j where j.id = named.id) order by named.n) as ids
        from ojs_store.unique_key u where u.ctid = any ($1)
    ) k
    where unique_key.ctid = k.tid and k.ids <> '{}' and k.ids <> unique_key.past || unique_key.job_id
)sql",
                                 {TIDARRAYOID},
                                 nullptr};

constinit Statement old_leases = {"delete from ojs_store.lease_log where ctid >= $1 and ctid < $2 and at <= $3",
                                  {TIDOID, TIDOID, TIMESTAMPTZOID},
                                  nullptr};

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

} // namespace

int
prune_jobs(int limit, TimestampTz now)
{
    Tables tables;
    int removed = remove_finished_jobs(tables, limit, now);
    tables.close();
    CommandCounterIncrement();
    return removed;
}

int
prune_dead_letters(int limit, TimestampTz now)
{
    static uint64 queues;
    static uint64 clock;
    IdWalk &walk = dead_letter_queues;
    bool ours = false;
    int removed = 0;
    if (queues == store::catalog_generation(store::Rel::queue) && clock == clock_generation && !is_due(walk, now))
        return 0;
    queues = store::catalog_generation(store::Rel::queue);
    clock = clock_generation;
    Ids ids(walk.most);
    with_spi([&] {
        plan_by_index();
        next_ids(walk, now, ids);
        ours = ids.n > 0 && alone_with(dead_letters);
    });
    Tables tables;
    for (int i = 0; ours && i < ids.n && removed < limit; i++) {
        removed += prune_dead_letters_of(tables, ids[i], limit - removed, now);
        if (removed >= limit) { /* goes on here at once */
            walk.next = ids[i];
            walk.look_at = now;
        }
    }
    tables.close();
    CommandCounterIncrement();
    return removed;
}

void
prune_unique_keys(TimestampTz now)
{
    Stretch stretch = next_stretch(keys, now);
    if (stretch.n == 0)
        return;
    TidRange range = tids_of(stretch);
    uint64 changed = 0;
    with_spi([&] {
        bool none;
        plan_by_index();
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
prune_lease_log(TimestampTz now)
{
    Stretch stretch = next_stretch(lease_log, now);
    if (stretch.n == 0)
        return;
    TidRange range = tids_of(stretch);
    uint64 n = 0;
    TimestampTz before = now - static_cast<int64>(settings.event_retention_s) * USECS_PER_SEC;
    with_spi([&] {
        n = execute_latest(old_leases,
                           {PointerGetDatum(&range.from), PointerGetDatum(&range.to), TimestampTzGetDatum(before)});
    });
    stretch_done(lease_log, stretch, stretch.first + stretch.n, n > stretch.n, std::nullopt, now);
}

} // namespace ojs
