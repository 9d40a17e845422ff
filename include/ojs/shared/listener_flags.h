/*
 * listener_flags.h: who may be listening to which queue, where there is no shared memory to say so: a row in
 * ojs_store.listener_flag for each queue of which a claim came back short since the last NOTIFY. A NOTIFY makes commits
 * wait for each other, so a push that nobody waits for sends none.
 *
 * Rows are read dirty on both sides. A push stores its jobs and then, about to commit, looks for the flag; a claim
 * raises the flag and then looks for jobs once more. So one of them sees the other: where the claim sees a job that is
 * still arriving, its push may have looked too early, and the claim looks again in a moment, or has listeners claim
 * again.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

void raise_listener_flags(const int64 *queues, int n);

/* Whether somebody may be listening to this queue. The flag comes down when this transaction commits. */
bool lower_listener_flag(int64 queue);

/* Queues whose flag is up, or was not long ago; their number. */
int flagged_queues(int64 *queues, int most);

/* How many flags are up, counted up to `most`. */
int count_listener_flags(int most);

} // namespace ojs
