/*
 * metric_queues.cpp: which queues have a slot among the metrics. There is room for so many; whoever comes later takes
 * the place of one where nothing happens.
 */
#include "ojs/counters/metric_table.h"

#include "ojs/pg/settings.h"

namespace ojs
{

/* For a database, a table and a queue of it; none: free. */
static void
begin_queue(QueueMetrics &queue, Oid database, Oid table, int64 id)
{
    SpinLockAcquire(&queue.mutex);
    queue.generation++;
    queue.database = database;
    queue.table = table;
    queue.queue = id;
    queue.n_types = 0;
    std::fill(std::begin(queue.parts), std::end(queue.parts), PartOfHour{});
    std::fill(std::begin(queue.steps), std::end(queue.steps), StepOfMinute{});
    queue.seqs_known = false;
    queue.head_seq = queue.earliest_seq = 0;
    queue.earliest_id = {};
    queue.look_again_us = 0;
    SpinLockRelease(&queue.mutex);
}

static void
free_queue(int q)
{
    begin_queue(job_metrics->queues[q], InvalidOid, InvalidOid, 0);
    pg_atomic_fetch_add_u32(&job_metrics->freed, 1);
    for (int s = 0; s < job_metrics->n_series; s++)
        if (job_metrics->series[s].queue == q)
            job_metrics->series[s].queue = -1;
}

/* What an extension that has been dropped left behind. */
static void
free_others(Oid table)
{
    for (int q = 0; q < job_metrics->n_queues; q++)
        if (job_metrics->queues[q].database == MyDatabaseId && job_metrics->queues[q].table != table)
            free_queue(q);
}

void
free_metrics(Oid database)
{
    LWLockAcquire(job_metrics->lock, LW_EXCLUSIVE);
    for (int q = 0; q < job_metrics->n_queues; q++)
        if (job_metrics->queues[q].database == database)
            free_queue(q);
    LWLockRelease(job_metrics->lock);
}

/*
 * Where nothing has happened for longest, and not since that part of an hour; of all databases, or of one. -1: nowhere.
 */
static int
idlest_queue(Oid database, int64 before)
{
    int idlest = -1;
    for (int q = 0; q < job_metrics->n_queues; q++) {
        if (OidIsValid(database) && job_metrics->queues[q].database != database)
            continue;
        int64 newest = 0;
        for (const PartOfHour &part : job_metrics->queues[q].parts)
            newest = std::max(newest, part.number);
        if (newest < before) {
            before = newest;
            idlest = q;
        }
    }
    return idlest;
}

/* The database that has most queues here; this one, unless another has more by two. */
static Oid
largest_database()
{
    Oid of[max_metric_queues];
    Oid *end = of + max_metric_queues;
    for (int q = 0; q < max_metric_queues; q++)
        of[q] = job_metrics->queues[q].database;
    std::sort(of, end);
    Oid largest = MyDatabaseId;
    auto most = std::count(of, end, MyDatabaseId) + 1;
    for (Oid *next, *at = of; at < end; at = next) {
        next = std::upper_bound(at, end, *at);
        if (next - at > most) {
            most = next - at;
            largest = *at;
        }
    }
    return largest;
}

/* There is no room: makes some where nothing has happened for an hour, dropped queues among them, or else in the
 * database that has most queues, if that is another one: so none pays for the queues of another. -1: nowhere. */
static int
free_idle_queue()
{
    int q = idlest_queue(InvalidOid, now() / part_us - parts_of_hour);
    Oid largest = q < 0 ? largest_database() : MyDatabaseId;
    if (largest != MyDatabaseId)
        q = idlest_queue(largest, PG_INT64_MAX);
    if (q >= 0)
        free_queue(q);
    return q;
}

void
begin_metrics(Database &database, Oid table, TimestampTz at)
{
    if (database.metrics_of == table)
        return;
    free_others(table);
    database.metrics_of = table;
    database.metrics_since = at;
    database.hour_known = false;
}

int
find_queue_metrics(Oid table, int64 id)
{
    for (int q = 0; q < job_metrics->n_queues; q++) {
        const QueueMetrics &queue = job_metrics->queues[q];
        if (queue.queue == id && queue.database == MyDatabaseId && queue.table == table)
            return q;
    }
    return -1;
}

int
make_queue_metrics(Oid table, int64 id)
{
    int q = find_queue_metrics(table, id);
    if (q >= 0)
        return q;
    for (q = 0; q < max_metric_queues && OidIsValid(job_metrics->queues[q].database);)
        q++;
    if (q == max_metric_queues)
        q = free_idle_queue();
    if (q < 0)
        return -1;
    QueueMetrics &queue = job_metrics->queues[q];
    begin_queue(queue, MyDatabaseId, table, id);
    (void)part_of(queue, now() / part_us); /* not idle, from here on */
    job_metrics->n_queues = std::max(job_metrics->n_queues, q + 1);
    return q;
}

} // namespace ojs
