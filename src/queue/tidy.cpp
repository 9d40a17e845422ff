/*
 * tidy.cpp: see tidy.h. What is to be put in order has no index of its own: queues that are there twice, moves that
 * were not added up. It is found by going through the ids.
 */
#include "ojs/queue/tidy.h"

#include "ojs/pg/error.h"
#include "ojs/queue/id_walk.h"
#include "ojs/store/store.h"

namespace ojs
{

namespace
{

constexpr int64 round_us = 60 * USECS_PER_SEC;
constexpr int most_dropped = 200; /* of the newest, and of older ones */

constinit IdWalk queues = {
    {"select id from ojs_store.queue where id >= $1 order by id limit $2", {INT8OID, INT4OID}, nullptr},
    200,
    round_us,
    false,
    0,
    0,
    0,
    0};
constinit IdWalk counts = {
    {"select queue from ojs_store.queue_count where queue >= $1 order by queue limit $2", {INT8OID, INT4OID}, nullptr},
    2000,
    round_us,
    false,
    0,
    0,
    0,
    0};

/* The ids of the next stretch that are there twice. */
Ids
next_twice(IdWalk &walk, TimestampTz now)
{
    Ids ids(walk.most), twice(walk.most);
    next_ids(walk, now, ids);
    for (int i = 1; i < ids.n; i++)
        if (ids[i] == ids[i - 1] && (twice.n == 0 || twice[twice.n - 1] != ids[i]))
            twice.add(ids[i]);
    return twice;
}

/*
 * Rows of one name that are older than another of it: two sessions made the queue at once, or it was dropped and made
 * anew. Only what nobody has locked.
 */
constinit Statement merge_rows = {R"sql(
    delete from ojs_store.queue where ctid = any (array(
        select q.ctid from ojs_store.queue q
        where q.id = any ($1) and exists (select from ojs_store.queue newer
            where newer.id = q.id and newer.name = q.name
                and (newer.revised_at, newer.ctid) > (q.revised_at, q.ctid))
        for update skip locked))
)sql",
                                  {INT8ARRAYOID},
                                  nullptr};

constinit Statement merge_counts = {R"sql(
    with taken as (
        delete from ojs_store.queue_count where ctid = any (array(
            select c.ctid from ojs_store.queue_count c where c.queue = any ($1) for update skip locked))
        returning queue, dead_lettered
    )
    insert into ojs_store.queue_count (queue, dead_lettered)
    select queue, sum(dead_lettered) from taken group by queue having sum(dead_lettered) <> 0
)sql",
                                    {INT8ARRAYOID},
                                    nullptr};

/* Queues that share an id: rows put in by hand or merged from two databases, since new_queue_id refuses one. */
constinit Statement same_ids = {R"sql(
    select format('%s and %s', min(q.name), max(q.name))
    from ojs_store.queue q where q.id = any ($1) group by q.id having min(q.name) <> max(q.name) limit 1
)sql",
                                {INT8ARRAYOID},
                                nullptr};

void
report_same_ids(Datum ids)
{
    if (execute_latest(same_ids, {ids}) == 0)
        return;
    bool null;
    char *names = TextDatumGetCString(cell(0, 1, &null));
    ereport(WARNING,
            (errmsg("queues %s have the same id, so each sees the jobs of the other", names),
             errhint("Drop one of them with ojs.drop_queue(name, 'move', target), and push to another name.")));
}

/* Dropped queues, the newest first. */
constinit Statement dropped = {R"sql(
    select id, revised_at from ojs_store.queue where state = 'deleted' and revised_at < $1
    order by revised_at desc limit $2
)sql",
                               {TIMESTAMPTZOID, INT4OID},
                               nullptr};

/* Those of them that have delayed jobs. */
constinit Statement with_delayed = {R"sql(
    select distinct d.queue from ojs_store.delayed d where d.kind <> 5 and d.queue in (select unnest($1))
)sql",
                                    {INT8ARRAYOID},
                                    nullptr};

/* A push that looked the queue up just before it was dropped: the queue comes back with its settings. */
constinit Statement revive = {R"sql(
    update ojs_store.queue set state = 'active', revised_at = clock_timestamp() where ctid = any (array(
        select q.ctid from ojs_store.queue q
        where q.id = any ($1) and q.state = 'deleted'
            and not exists (select from ojs_store.queue newer where newer.id = q.id and newer.name = q.name
                and newer.revised_at > q.revised_at)
        for update skip locked))
)sql",
                              {INT8ARRAYOID},
                              nullptr};

constinit Statement say_changed = {"select ojs_store.changed('ojs_store.queue')", {}, nullptr};

/* Adds the ids that a statement finds. */
void
add_found(Ids &ids, Statement &statement, std::initializer_list<SpiArg> args)
{
    uint64 n = execute_latest(statement, args);
    for (uint64 i = 0; i < n; i++) {
        bool null;
        ids.add(DatumGetInt64(cell(i, 1, &null)));
    }
}

/* Adds those queues that have jobs in line. */
void
add_with_ready(Ids &found, const Ids &ids)
{
    store::Table ready = store::open(store::Rel::ready, AccessShareLock);
    ScanKeyData key;
    store::Scan scan;
    ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(0));
    store::begin(scan, ready, store::Idx::ready_order, &key, 1, true);
    for (int i = 0; i < ids.n; i++) {
        store::Row seen;
        ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(ids[i]));
        store::rescan(scan, &key, 1);
        while ((seen = store::next(scan)) == store::Row::arriving)
            ;
        if (seen != store::Row::none)
            found.add(ids[i]);
    }
    store::end(scan);
    store::close(ready);
}

/* Returns the time of the oldest, or infinity if there are no more. */
TimestampTz
find_dropped(TimestampTz before, Ids &ids)
{
    int had = ids.n;
    bool null;
    add_found(ids, dropped, {TimestampTzGetDatum(before), Int32GetDatum(most_dropped)});
    return ids.n - had < most_dropped ? DT_NOEND : DatumGetTimestampTz(cell(most_dropped - 1, 2, &null));
}

/* The newest, and some more of the others each time. */
void
revive_dropped()
{
    static TimestampTz older = DT_NOEND;
    Ids ids(2 * most_dropped), pushed_to(4 * most_dropped);
    TimestampTz newest = find_dropped(DT_NOEND, ids);
    if (newest != DT_NOEND)
        older = find_dropped(std::min(newest, older), ids);
    if (ids.n == 0)
        return;
    add_with_ready(pushed_to, ids);
    /* No index has the queues of delayed jobs: one pass over all of them. */
    for (const char *way : {"enable_seqscan", "enable_hashjoin"})
        set_for_body(way, "on");
    set_for_body("enable_nestloop", "off");
    add_found(pushed_to, with_delayed, {ids.array()});
    if (pushed_to.n > 0 && execute_latest(revive, {pushed_to.array()}) > 0)
        (void)execute_latest(say_changed);
}

} // namespace

void
tidy_queues(TimestampTz now)
{
    if (is_due(queues, now))
        with_spi([now] {
            plan_by_index();
            Ids twice = next_twice(queues, now);
            if (twice.n > 0) {
                (void)execute_latest(merge_rows, {twice.array()});
                report_same_ids(twice.array());
            }
        });
    if (is_due(counts, now))
        with_spi([now] {
            plan_by_index();
            Ids twice = next_twice(counts, now);
            if (twice.n > 0)
                (void)execute_latest(merge_counts, {twice.array()});
        });
    static TimestampTz revived_at;
    if (now >= revived_at && now - revived_at < round_us)
        return;
    with_spi([] {
        plan_by_index();
        revive_dropped();
    });
    revived_at = now;
}

} // namespace ojs
