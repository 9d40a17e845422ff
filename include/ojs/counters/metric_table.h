/*
 * metric_table.h: what job_metrics.cpp and metrics_read.cpp share: the metrics in shared memory, and what this
 * transaction adds.
 */
#pragma once

#include "ojs/counters/job_metrics.h"
#include "ojs/pg/xact_notes.h"
#include "ojs/shared/shmem.h"

namespace ojs
{

constexpr int max_metric_queues = 1024; /* in all databases; later ones are not counted */
constexpr int max_series = 2048;
constexpr size_t max_type_name = 127;
static_assert(max_series <= lease_series >> lease_series_shift);

constexpr int64 part_us = 300 * USECS_PER_SEC;
constexpr int parts_of_hour = 12;
constexpr int64 step_us = 10 * USECS_PER_SEC;
constexpr int steps_of_minute = 6;
constexpr int steps_of_part = part_us / step_us;

/* Upper ends of the buckets, in µs, as OJS recommends them. */
constexpr int64 wait_bounds[n_wait_buckets - 1] = {10000,     50000,      100000,    500000,   1000000,
                                                   5000000,   10000000,   30000000,  60000000, 300000000,
                                                   600000000, 1800000000, 3600000000};
constexpr int64 duration_bounds[n_duration_buckets - 1] = {5000,     10000,    25000,    50000,     100000,
                                                           250000,   500000,   1000000,  2500000,   5000000,
                                                           10000000, 30000000, 60000000, 120000000, 300000000};

/* What happened to a queue's jobs in five minutes. */
struct PartOfHour {
    int64 number; /* of five minutes since 2000 */
    int64 completed, completed_us, failed, waits, wait_us, enqueued;
};

/* What was handed out in ten seconds. */
struct StepOfMinute {
    int64 number; /* of ten seconds since 2000 */
    int64 starts;
    int64 waits, wait_us; /* of first deliveries */
};

struct QueueMetrics {
    slock_t mutex; /* of all the following, and of the queue's series; what this is of changes under the lock as well */
    uint32 generation; /* how often it was freed: what was noted before is of another queue */
    Oid database;      /* 0: free */
    Oid table;         /* of the extension that is in that database now */
    int64 queue;
    int n_types;
    PartOfHour parts[parts_of_hour + 1];
    StepOfMinute steps[steps_of_minute + 1];
    /* Of the queue's jobs that are kept, as far as somebody has looked: */
    bool seqs_known;
    int64 head_seq;     /* the newest, kept up by commits */
    int64 earliest_seq; /* the oldest, while that one is there; 0: none was there */
    pg_uuid_t earliest_id;
    int64 look_again_us; /* not before this, by the steady clock */
};

struct Series {
    int queue;   /* among the queues; -1: free */
    uint64 hash; /* of the type; 0: all others */
    char type[max_type_name + 1];
    int64 cells[n_cells];
    int64 sums[n_sums];
};

struct JobMetrics {
    LWLock *lock; /* held to make queues and series, and to look for them */
    int n_queues; /* slots that have been used */
    int n_series;
    pg_atomic_uint32 freed; /* how often some were freed: what sessions remember of them holds no more */
    QueueMetrics queues[max_metric_queues];
    Series series[max_series];
};

extern JobMetrics *job_metrics; /* null without preload */

/* What the running transaction has done and will add at its commit. */
struct MetricDelta {
    int16 series;
    int16 cell;
    int level;
    int32 step;        /* ten seconds since 2000 */
    uint32 generation; /* of the queue */
    int64 n;
    int64 sum; /* µs; of pushes the last number instead */

    bool same(const MetricDelta &o) const
    {
        return series == o.series && cell == o.cell && step == o.step && generation == o.generation;
    }
    bool before(const MetricDelta &o) const
    {
        return series != o.series ? series < o.series
               : cell != o.cell   ? cell < o.cell
               : step != o.step   ? step < o.step
                                  : generation < o.generation;
    }
    void add(const MetricDelta &o)
    {
        n += o.n;
        sum = cell == cell_enqueued ? std::max(sum, o.sum) : sum + o.sum;
    }
};
extern Notes<MetricDelta> metric_deltas;

/* Under the lock, exclusively: this database's metrics are those of the extension whose table `ready` this is. Since
 * `at`, if that is new. */
void begin_metrics(Database &database, Oid table, TimestampTz at);
/* Whether what was noted is of the queue that the series is of now. */
bool is_current(const MetricDelta &what);
/* Under the lock, exclusively if it may be made; -1: there is none. */
int find_queue_metrics(Oid table, int64 id);
int make_queue_metrics(Oid table, int64 id);

/* Under the queue's mutex. Return null if that part is more than an hour old, or that step more than a minute. */
PartOfHour *part_of(QueueMetrics &queue, int64 number);
StepOfMinute *step_of(QueueMetrics &queue, int64 number);

void add_to(Series &series, const MetricDelta &what);
void add_to(PartOfHour &part, const MetricDelta &what);
void add_to(StepOfMinute &step, const MetricDelta &what);

} // namespace ojs
