/*
 * reported.h: what workers report of their jobs on the way: progress, which belongs to an attempt, and checkpoints,
 * which belong to the job. Jobs without any are never looked up: their hot rows lack job_reported.
 */
#pragma once

#include "ojs/job/envelope.h"
#include "ojs/store/tables.h"

namespace ojs
{

/* Adds a job's progress to how it stands, if its newest attempt has reported any (PRG-02). */
void read_progress(Tables &tables, const pg_uuid_t &id, Snapshot snapshot, Status &status);

/* Adds the checkpoint that the next attempt is to go on from (DUR-04). */
void read_checkpoint(Tables &tables, const pg_uuid_t &id, Snapshot snapshot, Status &status);

/* With the job. */
void forget_reports(Tables &tables, const pg_uuid_t &id);

} // namespace ojs
