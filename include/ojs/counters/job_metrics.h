/*
 * job_metrics.h: what has happened to jobs since the server started, by queue and type: ojs.metrics(), and the last
 * hour of ojs.queue_stats().
 *
 * A call notes what it does with the running (sub)transaction; the commit adds it up in shared memory, a rollback
 * forgets it, and so does PREPARE TRANSACTION. Nothing here is needed by anything but reports. Without preload there is
 * none of it.
 */
#pragma once

#include "ojs/store/rows.h"

namespace ojs
{

/* What is counted for each queue and type. */
constexpr int n_wait_buckets = 14;     /* one more than bounds */
constexpr int n_duration_buckets = 16; /* … and one more for jobs that ended without having been held */
enum Cell : int {
    cell_enqueued,
    cell_retried,
    cell_expired,
    cell_wait,                                   /* by how long it waited for its first delivery */
    cell_completed = cell_wait + n_wait_buckets, /* by how long it ran */
    cell_discarded = cell_completed + n_duration_buckets + 1,
    cell_cancelled = cell_discarded + n_duration_buckets + 1,
    n_cells = cell_cancelled + n_duration_buckets + 1,
    cell_started = n_cells /* a delivery that is not the first: of the last minute alone, no cell of a series */
};
enum Sum : int { sum_wait, sum_completed, sum_discarded, sum_cancelled, n_sums }; /* µs */

void job_metrics_init(); /* at load: transaction callbacks */

/* In shared memory (shmem.cpp asks). */
Size job_metrics_size();
void job_metrics_startup(LWLock *lock, bool found);

/* Of a database that is gone. */
void free_metrics(Oid database);

void count_pushed(const JobRow &job);
/* A job is handed out. The lease carries on where the job is counted, so that who ends it need not look at the job. */
void count_started(const JobRow &job, LeaseRow &lease);
void count_retried(const LeaseRow &lease, const JobRow &job, TimestampTz now);
void count_ended(const FinishedRow &row, int32 flags); /* flags of its lease; or any where nobody held it */
void count_expired(const JobRow &job, int64 queue, TimestampTz now);

} // namespace ojs
