/*
 * job_metrics.cpp: see job_metrics.h.
 *
 * A series is what is counted for a queue and a type of job. Series are made when first met and stay, so a note can
 * point to one by its number, and the commit needs no look-up: it takes the queue's spinlock and adds. How many there
 * may be is bounded: each queue has at most max_types of its own, and what comes later is counted under the type
 * "_other", which no job can have.
 *
 * The last hour is kept in parts of five minutes, by the time at which something happened, and what was handed out in
 * the last minute in steps of ten seconds.
 */
#include "ojs/counters/metric_table.h"

#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/store/name_hash.h"

namespace ojs
{

JobMetrics *job_metrics;
constinit Notes<MetricDelta> metric_deltas = {};

namespace
{

constexpr int kept_for_others = max_metric_queues; /* of the series, for "_other" of each queue */
constexpr int max_types = 100;

/* --- finding and making series --- */

struct SeriesKey {
    int64 queue;
    uint64 hash;
};
struct SeriesEntry {
    SeriesKey key;
    int number; /* from 1; 0: not counted */
    int64 looked_us;
};
HTAB *known; /* of SeriesEntry */
Oid known_of;
uint32 known_freed;
SeriesEntry last;

int
find_series(int queue, uint64 hash)
{
    for (int s = 0; s < job_metrics->n_series; s++)
        if (job_metrics->series[s].queue == queue && job_metrics->series[s].hash == hash)
            return s;
    return -1;
}

int
make_series(int queue, uint64 hash, std::string_view type)
{
    int s = find_series(queue, hash);
    if (s >= 0)
        return s;
    for (s = 0; s < job_metrics->n_series && job_metrics->series[s].queue >= 0;)
        s++;
    bool other = hash == 0;
    if (!other && (s >= max_series - kept_for_others || job_metrics->queues[queue].n_types >= max_types))
        return make_series(queue, 0, "_other");
    if (s == max_series)
        return -1;
    Series &series = job_metrics->series[s];
    series = {};
    series.queue = queue;
    series.hash = hash;
    memcpy(series.type, type.data(), std::min(type.size(), max_type_name));
    job_metrics->queues[queue].n_types += !other;
    job_metrics->n_series = std::max(job_metrics->n_series, s + 1);
    return s;
}

bool
is_called(const Series &series, std::string_view type)
{
    return type.size() <= max_type_name && memcmp(series.type, type.data(), type.size()) == 0 &&
           series.type[type.size()] == '\0';
}

/* From 1; 0: not counted. */
int
series_of(int64 queue, std::string_view type, TimestampTz at)
{
    Oid table = store::relation_oid(store::Rel::ready);
    uint32 freed = pg_atomic_read_u32(&job_metrics->freed);
    bool valid = known != nullptr && known_of == table && known_freed == freed;
    if (valid && last.key.queue == queue && last.number > 0 && is_called(job_metrics->series[last.number - 1], type))
        return last.number;

    uint64 hash = type.size() > max_type_name ? 0 : static_cast<uint64>(name_hash(type));
    constexpr long most_known = 10000;
    if (known != nullptr && (!valid || hash_get_num_entries(known) >= most_known)) {
        hash_destroy(known);
        known = nullptr;
    }
    if (known == nullptr) {
        HASHCTL control = {};
        control.keysize = sizeof(SeriesKey);
        control.entrysize = sizeof(SeriesEntry);
        known = hash_create("ojs series", 64, &control, HASH_ELEM | HASH_BLOBS);
        known_of = table;
        known_freed = freed;
    }
    SeriesKey key = {queue, hash};
    bool found;
    auto *entry = static_cast<SeriesEntry *>(hash_search(known, &key, HASH_ENTER, &found));
    constexpr int64 look_again_us = SECS_PER_MINUTE * USECS_PER_SEC; /* for room */
    if (!found || (entry->number == 0 && steady_us() - entry->looked_us > look_again_us)) {
        entry->number = 0;
        entry->looked_us = steady_us();
        Database *database = my_database();
        if (database != nullptr) {
            LWLockAcquire(job_metrics->lock, LW_EXCLUSIVE);
            begin_metrics(*database, table, at);
            int q = make_queue_metrics(table, queue);
            entry->number = q < 0 ? 0 : make_series(q, hash, hash == 0 ? "_other" : type) + 1;
            LWLockRelease(job_metrics->lock);
        }
    }
    last = *entry;
    return last.number;
}

/* The series that a lease names. Leases outlive a restart, series do not; and a queue's jobs may have been moved. */
int
series_in(int32 flags, const FinishedRow &row)
{
    int number = (flags & lease_series) >> lease_series_shift;
    if (number == 0 || number > job_metrics->n_series || !row.started_at)
        return 0;
    const Database *database = my_database();
    int q = job_metrics->series[number - 1].queue;
    if (database == nullptr || q < 0 || database->metrics_of != store::relation_oid(store::Rel::ready) ||
        *row.started_at < database->metrics_since)
        return 0;
    const QueueMetrics &queue = job_metrics->queues[q];
    return queue.queue == row.queue && queue.database == MyDatabaseId && queue.table == database->metrics_of ? number
                                                                                                             : 0;
}

std::string_view
type_of(const JobRow &job)
{
    return view(job.type);
}

template <int n>
int
bucket_of(const int64 (&bounds)[n], int64 us)
{
    int bucket = 0;
    while (bucket < n && us > bounds[bucket])
        bucket++;
    return bucket;
}

void
note(int series, int cell, int64 n, int64 sum, TimestampTz at)
{
    int q = series == 0 ? -1 : job_metrics->series[series - 1].queue;
    if (q < 0)
        return;
    metric_deltas.add({static_cast<int16>(series - 1), static_cast<int16>(cell), GetCurrentTransactionNestLevel(),
                       static_cast<int32>(at / step_us), job_metrics->queues[q].generation, n, sum});
}

/* --- the end of a transaction --- */

bool
is_start(const MetricDelta &what)
{
    return what.cell == cell_started || (what.cell >= cell_wait && what.cell < cell_completed);
}

/* Must not raise. */
void
apply(const MetricDelta &what)
{
    Series &series = job_metrics->series[what.series];
    int q = series.queue;
    if (q < 0)
        return;
    QueueMetrics &queue = job_metrics->queues[q];
    SpinLockAcquire(&queue.mutex);
    if (is_current(what)) {
        add_to(series, what);
        if (what.cell == cell_enqueued)
            queue.head_seq = std::max(queue.head_seq, what.sum);
        PartOfHour *part = part_of(queue, what.step / steps_of_part);
        if (part != nullptr)
            add_to(*part, what);
        StepOfMinute *step = is_start(what) ? step_of(queue, what.step) : nullptr;
        if (step != nullptr)
            add_to(*step, what);
    }
    SpinLockRelease(&queue.mutex);
}

extern "C" void
job_metrics_xact(XactEvent event, void *)
{
    if (event == XACT_EVENT_COMMIT)
        for (int i = 0; i < metric_deltas.n; i++)
            apply(metric_deltas.all[i]);
    if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE)
        metric_deltas.forget();
}

extern "C" void
job_metrics_subxact(SubXactEvent event, SubTransactionId, SubTransactionId, void *)
{
    if (event == SUBXACT_EVENT_COMMIT_SUB)
        metric_deltas.hand_up(GetCurrentTransactionNestLevel());
    else if (event == SUBXACT_EVENT_ABORT_SUB)
        metric_deltas.drop(GetCurrentTransactionNestLevel());
}

} // namespace

bool
is_current(const MetricDelta &what)
{
    int q = job_metrics->series[what.series].queue;
    return q >= 0 && job_metrics->queues[q].database == MyDatabaseId &&
           job_metrics->queues[q].generation == what.generation;
}

/* Of the last ones: null if a later one has its place. */
template <typename Stretch, size_t n>
static Stretch *
stretch_of(Stretch (&stretches)[n], int64 number)
{
    if (number < 0) /* a clock before 2000 */
        return nullptr;
    Stretch &stretch = stretches[number % n];
    if (stretch.number > number)
        return nullptr;
    if (stretch.number < number) {
        stretch = {};
        stretch.number = number;
    }
    return &stretch;
}

PartOfHour *
part_of(QueueMetrics &queue, int64 number)
{
    return stretch_of(queue.parts, number);
}

StepOfMinute *
step_of(QueueMetrics &queue, int64 number)
{
    return stretch_of(queue.steps, number);
}

static int
sum_of(int cell)
{
    return cell < cell_completed ? sum_wait : sum_completed + (cell - cell_completed) / (n_duration_buckets + 1);
}

void
add_to(Series &series, const MetricDelta &what)
{
    if (what.cell == cell_started)
        return;
    series.cells[what.cell] += what.n;
    if (what.cell >= cell_wait)
        series.sums[sum_of(what.cell)] += what.sum;
}

void
add_to(PartOfHour &part, const MetricDelta &what)
{
    if (what.cell == cell_enqueued)
        part.enqueued += what.n;
    if (what.cell < cell_wait || what.cell == cell_started)
        return;
    switch (sum_of(what.cell)) {
    case sum_wait:
        part.waits += what.n;
        part.wait_us += what.sum;
        break;
    case sum_completed:
        part.completed += what.n;
        part.completed_us += what.sum;
        break;
    case sum_discarded:
        part.failed += what.n;
        break;
    default:
        break;
    }
}

void
add_to(StepOfMinute &step, const MetricDelta &what)
{
    if (!is_start(what))
        return;
    step.starts += what.n;
    if (what.cell == cell_started)
        return;
    step.waits += what.n;
    step.wait_us += what.sum;
}

void
count_pushed(const JobRow &job)
{
    if (job_metrics != nullptr)
        note(series_of(job.queue, type_of(job), job.created_at), cell_enqueued, 1, job.seq, job.created_at);
}

void
count_started(const JobRow &job, LeaseRow &lease)
{
    lease.flags &= ~lease_series;
    if (job_metrics == nullptr)
        return;
    int series = series_of(lease.queue, type_of(job), lease.claimed_at);
    lease.flags |= series << lease_series_shift;
    /* When a pending job was activated, it does not say. */
    if (lease.deliveries != 1 || (job.flags & job_pending))
        return note(series, cell_started, 1, 0, lease.claimed_at);
    int64 waited =
        std::max<int64>(lease.claimed_at - std::max(job.created_at, job.scheduled_at.value_or(job.created_at)), 0);
    note(series, cell_wait + bucket_of(wait_bounds, waited), 1, waited, lease.claimed_at);
}

void
count_retried(const LeaseRow &lease, const JobRow &job, TimestampTz now)
{
    if (job_metrics != nullptr)
        note(series_of(lease.queue, type_of(job), now), cell_retried, 1, 0, now);
}

void
count_expired(const JobRow &job, int64 queue, TimestampTz now)
{
    if (job_metrics != nullptr)
        note(series_of(queue, type_of(job), now), cell_expired, 1, 0, now);
}

/* The slot is our own: callers still read what they have in theirs. */
static int
series_by_envelope(const FinishedRow &row)
{
    int series = 0;
    ItemPointerData tid;
    store::Table jobs = store::open(store::Rel::job, RowExclusiveLock);
    if (store::find(jobs, store::Idx::job_id, row.job_id, &tid) != store::Row::none) {
        JobRow job;
        read_in_place(jobs.slot, job);
        series = series_of(row.queue, type_of(job), row.finished_at);
    }
    store::close(jobs);
    return series;
}

void
count_ended(const FinishedRow &row, int32 flags)
{
    if (job_metrics == nullptr)
        return;
    int series = series_in(flags, row);
    if (series == 0)
        series = series_by_envelope(row);
    int first = row.state == State::completed   ? cell_completed
                : row.state == State::discarded ? cell_discarded
                                                : cell_cancelled;
    int64 took = row.started_at ? std::max<int64>(row.finished_at - *row.started_at, 0) : 0;
    note(series, first + (row.started_at ? bucket_of(duration_bounds, took) : n_duration_buckets), 1, took,
         row.finished_at);
}

Size
job_metrics_size()
{
    return sizeof(JobMetrics);
}

void
job_metrics_startup(LWLock *lock, bool found)
{
    bool found_metrics;
    job_metrics = static_cast<JobMetrics *>(ShmemInitStruct("ojs metrics", sizeof(JobMetrics), &found_metrics));
    if (!found) {
        memset(static_cast<void *>(job_metrics), 0, sizeof(JobMetrics));
        pg_atomic_init_u32(&job_metrics->freed, 0);
        for (QueueMetrics &queue : job_metrics->queues)
            SpinLockInit(&queue.mutex);
        job_metrics->lock = lock;
    }
}

void
job_metrics_init()
{
    RegisterXactCallback(job_metrics_xact, nullptr);
    RegisterSubXactCallback(job_metrics_subxact, nullptr);
}

} // namespace ojs
