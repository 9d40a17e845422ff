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

-- At most `most` jobs. Whoever is at a job has its row of `done` and is not waited for. A job that may be delivered only once stays
-- what it is. For the tick.
create function ojs_store.replay_dead_letters(at timestamptz, most int) returns int
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    by_rule record;
    id uuid;
    n int := 0;
begin
    for by_rule in
        with newest as (
            select distinct on (q.name) q.id, q.name, q.state, q.config from ojs_store.queue q order by q.name, q.revised_at desc
        )
        select q.id as queue_id, q.name as queue, r.rule ->> 'name' as name, coalesce(r.rule -> 'filter', '{}') as filter,
            at - extract(epoch from (r.rule ->> 'delay')::interval) * interval '1 second' as died_before, (r.rule ->> 'max_replays')::int as max_replays
        from newest q
        left join newest policy on policy.name = '_default'
        cross join lateral jsonb_array_elements(coalesce(q.config -> 'replay_rules', policy.config -> 'replay_rules', '[]')) with ordinality as r(rule, place)
        where q.name <> '_default' and q.state <> 'deleted' and r.rule -> 'enabled' is distinct from 'false'
        order by q.name, r.place
    loop
        for id in
            select l.job_id
            from ojs_store.dead_letter l
            join ojs_store.done d on d.job_id = l.job_id
            join ojs_store.job j on j.id = l.job_id
            where l.queue = by_rule.queue_id and l.died_at <= by_rule.died_before and j.flags & 2 = 0
                and ojs_store.replay_count(j.meta) < by_rule.max_replays
                and ojs_store.fits(by_rule.filter, j.type, j.priority, j.meta, d.error, d.finished_at)
            order by l.died_at
            limit most - n
            for update of d skip locked
        loop
            perform ojs_store.replay(id, by_rule.name);
            perform ojs_store.record_event('dead_letter.replayed', id::text, jsonb_build_object('job_id', id, 'job_type', j.type, 'queue', by_rule.queue,
                'rule', by_rule.name, 'replay_count', ojs_store.replay_count(j.meta)))
            from ojs_store.job j where j.id = id;
            n := n + 1;
        end loop;
        exit when n >= most;
    end loop;
    return n;
end $$;
