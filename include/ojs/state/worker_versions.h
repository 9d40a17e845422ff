/*
 * worker_versions.h: which versions of job types a worker takes, by what it said when it registered or sent a
 * heartbeat: {"handlers": [{"type": "invoice.generate", "versions": ">=1.0 <3.0"}]}.
 */
#pragma once

#include "ojs/store/rows.h"
#include "ojs/store/tables.h"

namespace ojs
{

struct WorkerVersions;

/* Null: the worker takes every version of every type. A copy for this call. Where no worker
 * names versions, that is all that a session knows, until the table of workers says that it changed. */
const WorkerVersions *versions_of_worker(const text *worker);
bool names_versions(const text *worker);

/* Whether the worker takes the job of a row. Jobs without a version, and types that it does not name, are for all. */
bool takes_job(Tables &tables, const WorkerVersions &versions, const ReadyRow &row);

/* What stands for these versions among the reasons why a claim passes over jobs (scan_hints.h). */
uint64 id_of(const WorkerVersions &versions);

/* Raises INVALID_PAYLOAD for what a worker says of its handlers, if that cannot be read. */
void check_handlers(const Jsonb *info);

} // namespace ojs
