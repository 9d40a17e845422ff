/*
 * members.h: jobs that belong to a workflow, as the end of a job sees them: job_in_workflow in their rows says so. What
 * a workflow is, and what follows from an end: docs/how-to/workflows.md and sql/workflow.sql.
 */
#pragma once

#include "ojs/job/envelope.h"
#include "ojs/store/tables.h"

namespace ojs
{

/* How a member ended. Null members are none. */
struct MemberEnd {
    const char *state; /* completed, failed, cancelled */
    TimestampTz ended_at;
    int32 attempt;
    std::optional<TimestampTz> started_at;
    Jsonb *result;
    Jsonb *error;
};

/*
 * Notes the end of a job or an inner workflow, by its id, in the caller's transaction. Does nothing where it is no open
 * member: the first end counts. Never waits for another member's transaction.
 */
void member_ended(Tables &tables, const pg_uuid_t &id, const MemberEnd &end);

/* Like the function above, but for a job that has come to its end, or (`removed`) is removed before one. */
void job_ended(Tables &tables, const FinishedRow &row);
void member_removed(Tables &tables, const pg_uuid_t &id, TimestampTz now);

/* Whether members of a workflow are open. unsure: only such whose ends are not committed yet. */
enum class MembersLeft { none, unsure, some };
MembersLeft members_left(Tables &tables, const pg_uuid_t &workflow);

/* A workflow that somebody has to look at, now or in the next tick. */
void workflow_due(Tables &tables, const pg_uuid_t &workflow, TimestampTz now);

/* A row of workflow_open, and one of workflow_end. */
HeapTuple open_member(Tables &tables, const pg_uuid_t &id, const pg_uuid_t &workflow, int32 position, bool is_job);
void store_end(Tables &tables, const pg_uuid_t &id, const pg_uuid_t &workflow, int32 position, bool is_job,
               const MemberEnd &end);

/*
 * At the end of a call that may have ended jobs, when its tables are closed: has the workflows go on of which it ended
 * the last open member. What cannot be done now is left to the tick.
 */
void advance_workflows();

/* Around what has workflows begin or go on, so that no hook inside of it does so with the same ones. The answer is for
 * the end. */
bool begin_workflow_work();
void end_workflow_work(bool begun);

/* Whether what is pushed now is a job of a workflow or a cron entry: it is pushed as the owner of the extension. */
bool pushes_for_others();

void members_init(); /* once, at load */

/* Adds to a job that is handed out what the members before it have led to (WF-04). */
void read_parents(const pg_uuid_t &id, Status &status);

} // namespace ojs
