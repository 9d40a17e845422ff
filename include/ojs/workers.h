/*
 * workers.h: what the server knows of workers beyond their leases.
 */
#pragma once

#include "ojs/pg.h"

namespace ojs
{

/* Whether this worker was told to take no new jobs, or said so itself. Most often none was, and no table is read. */
bool worker_stopped(const text *worker);

/* A sign of life (WRK-01); answers what the worker is to do: running, quiet or terminate. */
const char *note_beat(text *worker, text *state, Jsonb *info, TimestampTz now);

} // namespace ojs
