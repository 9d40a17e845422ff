/*
 * client_workers.h: what the server knows of workers beyond their leases.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

/* A worker that has sent heartbeats and then none for so long is dead. sql/workers.sql tells workers the same. */
constexpr int64 heartbeat_timeout_us = 30 * USECS_PER_SEC;

/* Whether this worker was told to take no new jobs, or said so itself. Most often none was, and no table is read. */
bool worker_stopped(const text *worker);

/* A sign of life (WRK-01). */
struct Beat {
    const char *directive; /* what the worker is to do: running, quiet or terminate */
    bool for_jobs;         /* an earlier beat has named a job that it held */
};
Beat note_beat(text *worker, text *state, Jsonb *info, TimestampTz now);
/* A beat has named a job that its worker holds. Whoever knows only a worker's name cannot do that, and so cannot have
 * its jobs taken back by a beat that nobody goes on with. */
void note_beat_for_jobs(text *worker);

/* Removes workers that nothing was heard of for long; looks once a minute. */
void forget_workers(TimestampTz now);

} // namespace ojs
