-- admin.sql: jobs past their normal life. C++: src/admin/job_admin.cpp.

create function ojs.retry(job_id uuid, overrides jsonb default '{}') returns ojs.job
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_retry';
comment on function ojs.retry(uuid, jsonb)
    is 'Makes a discarded job available again with a new budget of attempts, or a retryable one at once';

create function ojs_http.retry_ended(job_id uuid, overrides jsonb) returns ojs.job
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_retry_ended';

create function ojs.set_priority(job_id uuid, priority int) returns ojs.job
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_set_priority';
comment on function ojs.set_priority(uuid, int)
    is 'Gives a job that is available or scheduled another priority; among those of it, it lines up as if it came now';

create function ojs.discard(job_id uuid, reason text default null) returns ojs.job
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_discard';
comment on function ojs.discard(uuid, text) is 'Ends an open job that nobody holds as discarded';

create function ojs.delete_job(job_id uuid) returns boolean
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_delete_job';
comment on function ojs.delete_job(uuid) is 'Removes a finished job with its history; false if there is no such job';

-- The id is that of the table, so that a search by it uses the index.
create view ojs.dead_letters as
select
    ojs_store.if_allowed(dead_letter.job_id, readable) as id,
    job.seq, job.specversion, job.type, job.queue, job.state, job.args, job.meta,
    job.priority, job.attempt, job.max_attempts, job.deliveries, job.created_at, job.enqueued_at,
    job.scheduled_at, job.expires_at, job.started_at, job.completed_at, job.cancelled_at, job.discarded_at,
    job.next_attempt_at, job.timeout, job.retry, job."unique", job.schema, job.tags, job.result, job.error, job.errors,
    job.worker, job.extra, job.deduplicated
from ojs_store.dead_letter,
    lateral (select ojs_store.may_use_queue(dead_letter.queue, 'read') as readable) rights,
    lateral ojs_store.visible(dead_letter.job_id) job
where ojs_store.if_allowed(dead_letter.job_id, readable) = dead_letter.job_id and job.id is not null;
comment on view ojs.dead_letters is 'Discarded jobs that were kept as dead letters: the columns of ojs.job';

-- Removes jobs for good, and counts them. The rows that say where they stand have been taken by the caller.
create function ojs_store.remove_jobs(ids uuid[]) returns bigint
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_remove_jobs';
