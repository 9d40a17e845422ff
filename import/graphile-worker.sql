-- psql -1 -f graphile-worker.sql: moves the waiting jobs of graphile-worker 0.16 to 0.18 (schema graphile_worker) into
-- ojs. Jobs that run, and those that have no attempt left, stay. A job without a queue of its own goes to `default`.
\ir common.psql
select pg_temp.check_owner('graphile_worker._private_jobs') \g /dev/null
create function pg_temp.take() returns setof jsonb language sql as $$
    with taken as (
        delete from graphile_worker._private_jobs where id in (
            select id from graphile_worker._private_jobs where is_available
            for update skip locked)
        returning *)
    select pg_temp.envelope(task.identifier, job.payload::jsonb, coalesce(queue.queue_name, 'default'),
        jsonb_build_object('from', 'graphile-worker', 'id', job.id, 'job_key', job.key, 'created_at', job.created_at),
        -job.priority, job.run_at, job.max_attempts - job.attempts)
    from taken job
    join graphile_worker._private_tasks task on task.id = job.task_id
    left join graphile_worker._private_job_queues queue on queue.id = job.job_queue_id
    order by job.run_at, job.id
$$;
select pg_temp.import() as moved;
