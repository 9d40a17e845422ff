/*
 * ordering.h: jobs with an ordering key, of which one is handed out at a time: docs/how-to/ordering.md. job_ordered in
 * their rows says so, and every function here is for such jobs.
 *
 * The open jobs of a key stand in a line, in the order of push. The first of a line has a hot row as any other job has;
 * those behind it that could be claimed are `blocked`: their hot row is in delayed, so no claim meets them. With
 * job_relaxed a job stands in the line only while it can be claimed, is blocked or held.
 */
#pragma once

#include "ojs/state/reap.h"
#include "ojs/store/rows.h"

namespace ojs
{

/*
 * A job that is about to be pushed gets its seq and its place in the line; `can_run`: it is neither scheduled nor
 * pending. Returns false if another job of its key is before it.
 */
bool join_line(Tables &tables, JobRow &job, bool can_run);

/* The row of a job that can run now goes into ready, with `position`, or where others are before it into delayed. A job
 * that stands in no line goes to the end of it. */
void make_ready_in_turn(Tables &tables, const HotRow &row, int64 position);

/* A job that waits for a time, or is held, goes to the end of the line if it stands in none: for rebuilds. */
void keep_in_line(Tables &tables, const HotRow &row);

/* The job leaves its line; the next one gets its turn at the end of the call. */
void leave_line(Tables &tables, const pg_uuid_t &id);

/* A job that is about to wait for a time. A relaxed one leaves its line for that time. */
inline void
may_leave_line(Tables &tables, const HotRow &row)
{
    if (row.flags & job_relaxed)
        leave_line(tables, row.job_id);
}

/* At the end of a call, or before in it where nothing follows that waits: lets those go on whose turn it is. */
extern int lines_left; /* by jobs of this call; how many */
void advance_left_lines();
inline void
advance_lines()
{
    if (lines_left > 0)
        advance_left_lines();
}

/* Looks at lines of which nobody could say whose turn it is, since transactions were open. Returns how many jobs it has
 * let go on, at most `limit`. */
int advance_due_lines(Tables &tables, Scope scope, int limit);

/* Has the first of a line go on if it is blocked. Returns false if it is not, or nobody can say yet. */
bool advance_line(Tables &tables, int64 queue, int64 key);

/* The job's queue becomes another one: it joins the line of its key there in order of push, or in front if it is held.
 * Refused if another job of that line is held, too. Not while open transactions are about to change who is first. */
void move_in_line(Tables &tables, const pg_uuid_t &id, int64 queue);

void ordering_init(); /* once, at load */

} // namespace ojs
