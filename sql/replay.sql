-- replay.sql: dead letters that a rule of their queue tries again. C++: src/upkeep/replay.cpp, src/admin/job_admin.cpp.

-- How often a job has come back from its end; whatever a producer has written in its place counts as never.
create function ojs_store.replay_count(meta jsonb) returns int
language sql immutable parallel safe
begin atomic
    select case when jsonb_typeof(meta -> 'ojs.replay_count') = 'number'
        then greatest(least((meta -> 'ojs.replay_count')::numeric, 1000000000), 0)::int else 0 end;
end;

create function ojs_store.replay(job_id uuid, rule text) returns ojs.job
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_replay';

-- For the tick: retries the dead letters of a queue that died in this time and that a rule means, at most `most`.
-- Returns their number. Whoever is at a job has its row of `finished` and is not waited for. A job that may be
-- delivered only once stays what it is.
create function ojs_store.replay_by_rule(
    queue_id bigint, rule text, filter jsonb, died_after timestamptz, died_before timestamptz, max_replays int, most int
) returns int
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    id uuid;
    n int := 0;
begin
    for id in
        select l.job_id
        from ojs_store.dead_letter l
        join ojs_store.finished d on d.job_id = l.job_id
        join ojs_store.job j on j.id = l.job_id
        cross join ojs_store.workflow_over((j.options ->> 'workflow_id')::uuid)
        where l.queue = queue_id and l.died_at > died_after and l.died_at <= died_before
            and j.flags & job_flag.job_at_most_once = 0
            and ojs_store.replay_count(j.meta) < max_replays
            and ojs_store.fits(filter, j.type, j.priority, j.meta, d.error, d.finished_at)
            and (not workflow_over or (filter -> 'ended_workflows')::boolean is true)
        order by l.died_at
        limit most
        for update of d skip locked
    loop
        perform ojs_store.replay(id, rule);
        perform ojs_store.record_event('dead_letter.replayed', id::text,
            jsonb_build_object('job_id', id, 'job_type', j.type,
            'queue', (select q.name from ojs_store.queue q where q.id = queue_id order by q.revised_at desc limit 1),
            'rule', rule, 'replay_count', ojs_store.replay_count(j.meta)))
        from ojs_store.job j where j.id = id;
        n := n + 1;
    end loop;
    return n;
end $$;
