-- extend_workflow.sql: steps that are added to a workflow while it runs (WF-16).
begin;
select no_plan();
\ir helpers.psql
\ir http.psql

create function pg_temp.more(id uuid, variadic types text[]) returns jsonb language sql as $$
    select ojs.extend_workflow(id, jsonb_build_object(case w.type when 'chain' then 'steps' else 'jobs' end,
        (select jsonb_agg(jsonb_build_object('type', t, 'args', '[]'::jsonb, 'queue', 'q')) from unnest(types) t)))
    from ojs_store.workflow w where w.id = $1 $$;
create function pg_temp.job(type text) returns jsonb language sql as $$
    select jsonb_build_object('type', type, 'args', '[]'::jsonb, 'queue', 'q') $$;
-- Finishes what may be claimed; the types, in order.
create function pg_temp.done() returns text language sql as $$
    select coalesce(string_agg(type, ' ' order by type), '')
    from (select c.type, (ojs.ack(c.id, to_jsonb(c.type))).state from ojs.claim('q', 'w', 1000) c) c $$;
-- A workflow as text: state, completed/total, jobs, and the states of its members and callbacks.
create function pg_temp.flow(id uuid) returns text language sql as $$
    select concat_ws(' ', w ->> 'state', coalesce(w ->> 'steps_completed',
        w ->> 'jobs_completed') || '/' || coalesce(w ->> 'steps_total', w ->> 'jobs_total'), w ->> 'job_count',
        (select string_agg(m ->> 'state', ',' order by n)
            from jsonb_array_elements(coalesce(w -> 'steps', w -> 'jobs')) with ordinality e (m, n)),
        (select string_agg(c.key || '=' || (c.value ->> 'state'), ' ' order by c.key)
            from jsonb_each(w -> 'callbacks') c))
    from ojs.workflow(id) w $$;
select ojs.create_queue('q', '{"default_retry": {"max_attempts": 1}}') \g /dev/null

-- A chain grows at its end
select ojs.create_workflow(jsonb_build_object('type', 'chain', 'steps', jsonb_build_array(pg_temp.job('c.a'))))
    ->> 'id' as chain \gset
select id as first from ojs.claim('q', 'w') \gset
select is(pg_temp.more(:'chain', 'c.b', 'c.c') ->> 'steps_total', '3',
    'a chain gets steps while its last one runs (WF-16)');
select is(pg_temp.flow(:'chain'), 'running 0/3 3 active,waiting,waiting', 'which wait for their turn');
select is((ojs.ack(:'first', '"a"')).state, 'completed', 'the step that was the last ends');
select is((select string_agg(type || (extra ->> 'parent_results'), ' ') from ojs.claim('q', 'w', 9)), 'c.b["a"]',
    'the first of the new ones is next, and is given its results');
select ojs.ack(job_id) from ojs.leases \g /dev/null
select is(pg_temp.done(), 'c.c', 'then the second');
select is(pg_temp.flow(:'chain'), 'completed 3/3 3 completed,completed,completed', 'then the chain is completed');
select is(pg_temp.refusal(format('select pg_temp.more(%L, %L)', :'chain', 'c.d')), 'OJ406 WORKFLOW_ENDED',
    'one that has ended does not grow');

-- In the transaction of the step itself, after its ack even
select ojs.create_workflow(jsonb_build_object('type', 'chain', 'steps', jsonb_build_array(pg_temp.job('d.a'))))
    ->> 'id' as chain \gset
savepoint before;
select count(pg_temp.more(:'chain', 'd.b')) from ojs.claim('q', 'w') \g /dev/null
rollback to before;
select is(pg_temp.flow(:'chain'), 'running 0/1 1 pending', 'a rollback takes the new steps along');
select is(pg_temp.done(), 'd.a', 'it ends as it was made');
select is(pg_temp.flow(:'chain'), 'completed 1/1 1 completed', 'with one step');

-- A group
select ojs.create_workflow(jsonb_build_object('type', 'group', 'jobs', jsonb_build_array(pg_temp.job('g.a'))))
    ->> 'id' as grouped \gset
select pg_temp.more(:'grouped', 'g.b', 'g.c') \g /dev/null
select is(pg_temp.flow(:'grouped'), 'running 0/3 3 pending,pending,pending', 'jobs of a group begin at once (WF-16)');
select is(pg_temp.done(), 'g.a g.b g.c', 'and can be claimed');
select is(pg_temp.flow(:'grouped'), 'completed 3/3 3 completed,completed,completed',
    'the group ends with the last of them');

-- A batch, before its callbacks
select ojs.create_workflow(jsonb_build_object('type', 'batch', 'jobs', jsonb_build_array(pg_temp.job('b.a')),
    'callbacks', jsonb_build_object('on_complete', pg_temp.job('b.complete'), 'on_success', pg_temp.job('b.success'))))
    ->> 'id' as batch \gset
select pg_temp.more(:'batch', 'b.b') \g /dev/null
select is(pg_temp.flow(:'batch'), 'running 0/2 2 pending,pending on_complete=waiting on_success=waiting',
    'a batch gets jobs before its callbacks (WF-16)');
select is(pg_temp.done(), 'b.a b.b', 'both run');
select is((select string_agg(type || (extra ->> 'parent_results'), ' ' order by type) from ojs.claim('q', 'w', 9)),
    'b.complete["b.a", "b.b"] b.success["b.a", "b.b"]', 'then each callback once, with the results of all');
select is(pg_temp.refusal(format('select pg_temp.more(%L, %L)', :'batch', 'b.c')), 'OJ406 WORKFLOW_ENDED',
    'by then it does not grow any more');
select ojs.ack(job_id) from ojs.leases \g /dev/null
select is(pg_temp.flow(:'batch'), 'completed 2/2 2 completed,completed on_complete=completed on_success=completed',
    'and it ends');

-- Inner workflows, in both directions
select ojs.create_workflow(jsonb_build_object('type', 'chain', 'steps', jsonb_build_array(
    jsonb_build_object('type', 'group', 'jobs', jsonb_build_array(pg_temp.job('i.a'))), pg_temp.job('i.z')))) ->> 'id'
    as outer \gset
select ojs.workflow(:'outer') #>> '{steps,0,workflow_id}' as inner \gset
select ojs.extend_workflow(:'inner', jsonb_build_object('jobs', jsonb_build_array(pg_temp.job('i.b'),
    jsonb_build_object('type', 'chain', 'steps', jsonb_build_array(pg_temp.job('i.c'), pg_temp.job('i.d'))))))
    \g /dev/null
select is(pg_temp.flow(:'outer'), 'running 0/2 5 active,waiting',
    'an inner workflow grows, and that around it counts it');
select is(pg_temp.done() || ', ' || pg_temp.done() || ', ' || pg_temp.done(), 'i.a i.b i.c, i.d, i.z',
    'what is added may be a workflow itself');
select is(pg_temp.flow(:'outer'), 'completed 2/2 5 completed,completed', 'the whole ends');

-- A failed step, and a cancelled workflow
select ojs.create_workflow(jsonb_build_object('type', 'chain', 'steps', jsonb_build_array(pg_temp.job('f.a'))))
    ->> 'id' as chain \gset
select pg_temp.more(:'chain', 'f.b') \g /dev/null
select ojs.fail(id, '{"type": "Net", "message": "broken"}') from ojs.claim('q', 'w') \g /dev/null
select is(pg_temp.flow(:'chain'), 'failed 0/2 2 failed,cancelled', 'a step that fails ends the chain, new steps too');
select is(pg_temp.done(), '', 'none of them runs');

-- Checked as a whole, and nothing is stored of what is refused
select ojs.create_workflow(jsonb_build_object('type', 'chain', 'steps', jsonb_build_array(pg_temp.job('r.a'))))
    ->> 'id' as chain \gset
select is(pg_temp.refusal(format('select ojs.extend_workflow(%L, %L)', :'chain', def)), refused, 'refused: ' || def)
from (values
    ('[]', 'OJ404 INVALID_WORKFLOW $'), ('{}', 'OJ404 INVALID_WORKFLOW $.steps'),
    ('{"steps": []}', 'OJ404 INVALID_WORKFLOW $.steps'), ('{"jobs": []}', 'OJ404 INVALID_WORKFLOW $.jobs'),
    ('{"type": "group", "steps": [{"type": "a.b", "args": []}]}', 'OJ404 INVALID_WORKFLOW $.type'),
    ('{"name": "x", "steps": [{"type": "a.b", "args": []}]}', 'OJ404 INVALID_WORKFLOW $.name'),
    ('{"steps": [{"type": "a.b", "args": []}, 1]}', 'OJ404 INVALID_WORKFLOW $.steps[1]'),
    ('{"steps": [{"type": "a.b", "args": []}, {"type": "A", "args": []}]}', 'OJ101 INVALID_JOB_TYPE type'),
    ('{"steps": [{"type": "a.b", "args": [], "id": "01920000-0000-7000-8000-0000000000fa"}]}',
        'OJ404 INVALID_WORKFLOW $.steps[0].id')) v (def, refused);
select is(pg_temp.flow(:'chain'), 'running 0/1 1 pending', 'nothing is stored of that');
select is(pg_temp.refusal(format($$ select ojs.extend_workflow(%L, (select jsonb_build_object('steps',
    jsonb_agg(pg_temp.job('r.b'))) from generate_series(1, 10000))) $$, :'chain')), 'OJ404 INVALID_WORKFLOW def',
    'nor of more steps than a chain may have');
select is(pg_temp.refusal($$ select ojs.extend_workflow('01900000-0000-7000-8000-000000000000', '{"steps": []}') $$),
    'OJ400 WORKFLOW_NOT_FOUND', 'one that does not exist');
select is(pg_temp.refusal(format('select ojs.extend_workflow(%L, null)', :'chain')), 'OJ404 INVALID_WORKFLOW def',
    'without a definition');
select is((select count(*) from ojs.events where type = 'workflow.extended'), 5::bigint,
    'an event tells of each extension');
select is((select data ->> 'added' from ojs.events where type = 'workflow.extended' and subject = :'grouped'), '2',
    'and of how many');

-- Over HTTP
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/workflows/' || :'chain' || '/extend',
    '{"steps": [{"type": "h.b", "args": []}]}')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.workflow.steps_total')), '200 2',
    'over HTTP (WF-16)');
select is(pg_temp.error('POST', '/ojs/v1/workflows/' || :'chain' || '/extend', '{"jobs": []}',
    '{"content-type": "application/json"}'), '400 invalid_workflow', 'refused over HTTP');

-- Rights
create role extend_p in role ojs_producer;
create role extend_q in role ojs_producer;
select ojs.create_queue('mine', '{"producers": ["extend_p"]}') \g /dev/null
select ojs.create_workflow('{"type": "chain", "steps": [{"type": "m.a", "args": [], "queue": "mine"}]}')
    ->> 'id' as mine \gset
set local role extend_q;
select is(left(pg_temp.refusal(format('select ojs.extend_workflow(%L, %L)', :'mine',
    '{"steps": [{"type": "m.b", "args": []}]}')), 5), '42501', 'who may not push to its queues cannot extend it');
select is(left(pg_temp.refusal(format('select ojs.extend_workflow(%L, %L)', :'chain',
    '{"steps": [{"type": "m.b", "args": [], "queue": "mine"}]}')), 5), '42501', 'nor by a job that it may not push');
reset role;

select * from finish();
rollback;
