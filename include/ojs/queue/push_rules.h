/*
 * push_rules.h: what a queue's settings mean to a push, and keeping the table of queues in order.
 */
#pragma once

#include "ojs/job/envelope.h"
#include "ojs/queue/queue.h"

namespace ojs
{

/*
 * What a role may do with a queue that names its producers; with any other queue everybody may do everything.
 * push: push, and cancel or activate its jobs: the producers, and ojs_admin.
 * read: see its jobs by their ids: also those who see or get all jobs anyway, ojs_observer and ojs_worker.
 */
enum class Use { push, read };
bool may_use_queue(const Queue &queue, Use use);
bool may_use_queue(int64 queue, Use use);

/* Raises PERMISSION_DENIED unless the current user may do so with this job, which is in that queue. */
void check_use_of_job(int64 queue, const pg_uuid_t &job_id, Use use);

/* Raises PERMISSION_DENIED unless the current user may push to the queue. */
void check_producer(const Queue &queue);

/* Refuses a role that is no producer of the queue, if that exists. Asked before a push is told anything
 * about jobs that are there. */
void check_push(const Envelope &envelope);

/* For a queue with push_rules: refuses a type or a role that it does not allow, and fills in what the job leaves to the
 * queue. */
void apply_push_rules(const Queue &queue, Envelope &envelope);

/* Now and then, in a tick: merges rows of one name, adds up counters, revives a dropped queue that was pushed to while
 * it was being dropped. Waits for nobody. */
void tidy_queues(TimestampTz now);

} // namespace ojs
