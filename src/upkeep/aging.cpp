/*
 * aging.cpp: see aging.h. When a job rises is told in sql/aging.sql.
 *
 * Equivalent SQL, for one queue and the number before which jobs are due:
 *   with due as (
 *       delete from ojs_store.ready where ctid = any (array(
 *           select ctid from ojs_store.ready where queue = $1 and -npriority < $limit and position < $2
 *           for update skip locked))
 *       returning *)
 *   insert into ojs_store.ready select …, npriority - 1, nextval('ojs_store.seq'), … from due;
 *
 * A job that rises lines up at its new priority as one that has just come there, so positions there only grow, as
 * claims expect, and its wait for the next step begins. It cannot be claimed until the tick commits, so one pass takes
 * few.
 */
#include "ojs/upkeep/aging.h"

#include "ojs/claim/scan_hints.h"
#include "ojs/limits/held_position.h"
#include "ojs/queue/queue.h"
#include "ojs/shared/wakeup.h"
#include "ojs/state/transitions.h"
#include "ojs/store/spi.h"
#include "ojs/store/tables.h"
#include "ojs/upkeep/block_scan.h"

namespace ojs
{

namespace
{

constexpr int most_queues = 100; /* in one pass */
constexpr int most_jobs = 200;
constexpr const char *whose_turn = "priority_aging";

/* The ids of these queues, and of their tenants' parts. */
constinit Statement aging_queues = {R"sql(
    select q.id from ojs_store.queue q where q.config ? 'priority_aging_s' and q.state <> 'deleted'
    union
    select part.id
    from ojs_store.queue q join ojs_store.queue part
        on part.name collate "C" > q.name || '@' and part.name collate "C" < q.name || 'A' -- which follows @
    where q.config ? 'priority_aging_s' and q.state <> 'deleted' and part.state <> 'deleted'
)sql",
                                    {},
                                    nullptr};
constinit Statement due_number = {
    "select ojs_store.aging_number($1, $2, $3)", {INT8OID, INT4OID, TIMESTAMPTZOID}, nullptr};
constinit Statement done_with = {"select ojs_store.aging_done($1, $2)", {INT8OID, TIMESTAMPTZOID}, nullptr};

/* As this session knows them. */
struct AgingQueues {
    bool any; /* it knows them */
    uint64 generation;
    int64 *ids;
    int n;
    int next; /* where the next pass begins: each has its turn, however many jobs of others are due or fail */
};
constinit AgingQueues known = {};

void
look_up_queues()
{
    uint64 generation = store::queue_names_generation();
    if (known.any && known.generation == generation)
        return;
    with_spi([] {
        plan_by_index();
        auto n = static_cast<int>(execute_latest(aging_queues, {}));
        auto *ids = static_cast<int64 *>(
            MemoryContextAllocHuge(TopMemoryContext, sizeof(int64) * static_cast<Size>(std::max(n, 1))));
        for (int i = 0; i < n; i++) {
            bool null;
            ids[i] = DatumGetInt64(cell(i, 1, &null));
        }
        if (known.ids != nullptr)
            pfree(known.ids);
        known.ids = ids;
        known.n = n;
    });
    known.any = true;
    known.generation = generation;
}

struct DueJob {
    ItemPointerData tid;
    ReadyRow row;
};

struct Search {
    store::Table &ready;
    store::Scan scan;
    int64 queue;
    int64 before; /* the number */
    DueJob *due;
    int n, most;
};

/* The number that it drew when it came to its priority. */
int64
number_of(const ReadyRow &row)
{
    int64 position = own_position(row.position);
    return position < 0 ? position - returned_base : position;
}

void
scan_from(Search &search, int16 npriority, int64 from, int64 to)
{
    ScanKeyData keys[4];
    ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(search.queue));
    ScanKeyInit(&keys[1], 2, BTEqualStrategyNumber, F_INT2EQ, Int16GetDatum(npriority));
    ScanKeyInit(&keys[2], 3, BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(from));
    ScanKeyInit(&keys[3], 3, BTLessEqualStrategyNumber, F_INT8LE, Int64GetDatum(to));
    store::rescan(search.scan, keys, 4);
}

/* Of the row that the scan is at: false if it is not due yet, and so none behind it in its part of the index. */
bool
note_if_due(Search &search, store::Row seen, ReadyRow &row)
{
    read(search.ready.slot, row);
    if (number_of(row) >= search.before)
        return false;
    if (seen == store::Row::live)
        search.due[search.n++] = {search.scan.tid, row};
    return true;
}

/* Jobs that were delivered before, or those that were not: in the order of their numbers. */
void
search_class(Search &search, int16 npriority, int64 from, int64 to)
{
    ReadyRow row;
    store::Row seen;
    scan_from(search, npriority, from, to);
    while (search.n < search.most && (seen = store::next(search.scan)) != store::Row::none)
        if (!note_if_due(search, seen, row))
            break;
}

/* Jobs whose limit is used up: each line has both kinds, each in the order of its numbers. */
void
search_lines(Search &search, int16 npriority)
{
    for (int64 from = first_held; search.n < search.most;) {
        ReadyRow row;
        store::Row seen;
        bool due = true;
        scan_from(search, npriority, from, PG_INT64_MAX);
        while (due && search.n < search.most && (seen = store::next(search.scan)) != store::Row::none)
            due = note_if_due(search, seen, row);
        bool last_part = (row.position & fresh_bit) != 0;
        if (due || (last_part && end_of_line(row.position) == PG_INT64_MAX))
            return;
        from = last_part ? end_of_line(row.position) + 1 : line_at(row.position) | fresh_bit;
    }
}

/* Returns how many it has found. */
int
find_due(Search &search, int limit)
{
    auto above = static_cast<int16>(-limit);
    int16 npriority;
    ScanKeyData keys[4];
    set_keys(keys, search.queue, BTGreaterStrategyNumber, F_INT2GT, above, BTLessStrategyNumber, F_INT2LT,
             PG_INT16_MAX);
    store::begin(search.scan, search.ready, store::Idx::ready_order, keys, 4, true);
    while (search.n < search.most && level_between(search.scan, search.queue, above, PG_INT16_MAX, &npriority)) {
        search_class(search, npriority, PG_INT64_MIN, -1);
        search_class(search, npriority, 0, first_held - 1);
        search_lines(search, npriority);
        above = npriority;
    }
    store::end(search.scan);
    return search.n;
}

/* Returns how many have risen; the others are gone, or somebody is at them. */
int
raise_due(Search &search)
{
    auto *tuples = static_cast<HeapTuple *>(palloc(sizeof(HeapTuple) * static_cast<Size>(std::max(search.n, 1))));
    int n = 0;
    for (int i = 0; i < search.n; i++) {
        DueJob &job = search.due[i];
        if (store::take(search.ready, &job.tid) != store::Outcome::ok)
            continue;
        job.row.npriority--;
        int64 position = own_position(job.row.position) < 0 ? returned_position() : store::next_seq();
        tuples[n++] = form(search.ready.rel, moved_to(job.row, position));
    }
    store::insert_many(search.ready, tuples, n);
    return n;
}

std::optional<int64>
number_due(const Queue &queue, TimestampTz now)
{
    std::optional<int64> number;
    with_spi([&] {
        bool null;
        execute_latest(due_number, {Int64GetDatum(queue.id), Int32GetDatum(queue.aging_s), TimestampTzGetDatum(now)});
        Datum value = cell(0, 1, &null);
        if (!null)
            number = DatumGetInt64(value);
    });
    return number;
}

/* Returns how many have risen; fewer than `limit`: that was all. */
int
raise_in(const Queue &queue, int limit, TimestampTz now)
{
    std::optional<int64> number = number_due(queue, now);
    if (!number)
        return 0;
    Tables tables;
    Search search = {tables.ready(), {}, queue.id, *number, nullptr, 0, limit};
    search.due = static_cast<DueJob *>(palloc(sizeof(DueJob) * static_cast<Size>(limit)));
    int found = find_due(search, queue.aging_limit);
    int risen = raise_due(search);
    if (risen > 0)
        wake_queue(queue.id, queue.name, risen);
    tables.close();
    CommandCounterIncrement();
    pfree(search.due);
    if (found == limit && risen > 0)
        return limit;
    with_spi([&] { execute_latest(done_with, {Int64GetDatum(queue.id), TimestampTzGetDatum(now)}); });
    return std::min(risen, limit - 1);
}

} // namespace

bool
raise_priorities(int limit, TimestampTz now)
{
    bool ours = false;
    look_up_queues();
    if (known.n == 0 || IsolationUsesXactSnapshot()) /* the next tick does it */
        return false;
    with_spi([&] { ours = alone_with(whose_turn); });
    limit = std::min(limit, most_jobs);
    for (int i = 0; ours && i < std::min(known.n, most_queues); i++) {
        known.next = known.next < known.n ? known.next : 0;
        const Queue *found = find_queue(known.ids[known.next++]);
        if (found != nullptr && found->aging_s > 0 && !found->is_log && found->state != QueueState::deleted) {
            Queue queue = *found;
            int n = raise_in(queue, limit, now);
            if (n == limit)
                return true; /* and goes on when it is its turn again */
            limit -= n;
        }
    }
    return false;
}

} // namespace ojs
