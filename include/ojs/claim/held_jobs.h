/*
 * held_jobs.h: jobs whose limit is used up, in lines (limits/held_position.h), so that a claim need not look at each.
 *
 * A line holds nothing back. Its head is asked for its limits as any job is; only what stands behind a head that has to
 * wait for the limit of that line is not looked at. Who finds a job in a line that is not its own takes it out.
 */
#pragma once

#include "ojs/claim/walk.h"

namespace ojs
{

/* Takes jobs from the lines of a level, those first that were pushed first. Unless `all`, what was looked at a moment
 * ago may be left out. */
void walk_lines(Walk &walk, store::Scan &scan, int queue_position, Level &level, bool all);

/* The walk passes over this row for the limit that it has just found closed. */
void note_held(Walk &walk, int queue_position, const ReadyRow &row, const ItemPointerData &tid);

/* At the end of a claim whose transaction ends with it: puts jobs into lines that the walk has passed over. */
void store_held(Walk &walk);

} // namespace ojs
