/*
 * access.h: who may do what with a queue and its jobs. The only place that decides; everything else asks here.
 *
 * The lists of a queue narrow what the four roles are granted, and never widen it. A queue without any list costs a
 * look at one flag.
 */
#pragma once

#include "ojs/queue/queue.h"

namespace ojs
{

/* Whether a role may do this with the queue. Without a role: the current user. */
bool may_use_queue(const Queue &queue, Right right);
bool may_use_queue(const Queue &queue, Right right, Oid role);
bool may_use_queue(int64 queue, Right right);

/* Raises PERMISSION_DENIED unless the current user may do so with the queue. */
void check_queue(const Queue &queue, Right right);
/* Likewise with a job, which is in that queue. */
void check_use_of_job(int64 queue, const pg_uuid_t &job_id, Right right);
void check_use_of_job(const Queue &queue, const pg_uuid_t &job_id, Right right);

/* Whether the current user may learn in which state a job of the queue is. */
bool may_know_state(int64 queue);

/*
 * Whose rights count inside an SQL function of ours: such a function is SECURITY DEFINER, so the current user is its
 * owner. Returns the role that the session has taken on then, and the current user anywhere else. Raises
 * PERMISSION_DENIED in a security-restricted operation, where such a function cannot know who calls it.
 */
Oid calling_role();

/* By its name, as SQL gives it: produce, work, read, cancel, administer. */
Right right_named(const text *name);
bool calling_role_may(int64 queue, Right right);
[[noreturn]] void raise_no_job(const pg_uuid_t &id);
[[noreturn]] void raise_job_denied(const pg_uuid_t &job_id, Right right);

void access_init(); /* once, at load */

} // namespace ojs
