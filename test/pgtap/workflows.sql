-- workflows.sql: chains, groups and batches: WF-01 to WF-15, INT-03, QC-05.
begin;
select no_plan();
\ir helpers.psql
\ir http.psql

create function pg_temp.made(def jsonb) returns uuid language sql as $$
    select (ojs.create_workflow(def) ->> 'id')::uuid $$;
-- A member of type t that goes to queue q.
create function pg_temp.job(type text, options jsonb default '{}', queue text default 'q') returns jsonb language sql as
$$ select jsonb_build_object('type', type, 'args', '[]'::jsonb, 'options',
    options || jsonb_build_object('queue', queue)) $$;
create function pg_temp.chain(variadic steps jsonb[]) returns jsonb language sql as $$
    select jsonb_build_object('type', 'chain', 'steps', to_jsonb(steps)) $$;
create function pg_temp.grouped(variadic jobs jsonb[]) returns jsonb language sql as $$
    select jsonb_build_object('type', 'group', 'jobs', to_jsonb(jobs)) $$;
create function pg_temp.batch(callbacks jsonb, variadic jobs jsonb[]) returns jsonb language sql as
$$ select jsonb_build_object('type', 'batch', 'callbacks', callbacks, 'jobs', to_jsonb(jobs)) $$;
-- What may be claimed by now, in the order of its types; claimed.
create table pg_temp.had (id uuid, type text, extra jsonb);
create function pg_temp.claimed(queue text default 'q') returns text language plpgsql as $$
begin
    delete from pg_temp.had;
    insert into pg_temp.had select c.id, c.type, c.extra from ojs.claim(queue, 'w', 100) c;
    return coalesce((select string_agg(h.type, ' ' order by h.type) from pg_temp.had h), '');
end $$;
create function pg_temp.had(type text) returns uuid language sql as $$ select h.id from pg_temp.had h
    where h.type = $1 $$;
create function pg_temp.acked(type text, result jsonb default null) returns text language sql as $$
    select (ojs.ack(pg_temp.had(type), result)).state $$;
create function pg_temp.failed(type text) returns text language sql as
$$ select (ojs.fail(pg_temp.had(type), '{"type": "Net", "code": "FAIL", "message": "broken"}')).state $$;
-- A workflow as text: state, completed/total, and the states of its members.
create function pg_temp.flow(id uuid) returns text language sql as $$
    select concat_ws(' ', w ->> 'state', coalesce(w ->> 'steps_completed',
        w ->> 'jobs_completed') || '/' || coalesce(w ->> 'steps_total', w ->> 'jobs_total'),
        (select string_agg(m ->> 'state', ',' order by n)
            from jsonb_array_elements(coalesce(w -> 'steps', w -> 'jobs')) with ordinality e (m, n)),
        (select string_agg(c.key || '=' || (c.value ->> 'state'), ' ' order by c.key)
            from jsonb_each(w -> 'callbacks') c))
    from ojs.workflow(id) w $$;
create function pg_temp.parents(type text) returns jsonb language sql as $$ select h.extra -> 'parent_results'
    from pg_temp.had h where h.type = $1 $$;
select ojs.create_queue('q', '{"default_retry": {"max_attempts": 1}}') \g /dev/null

-- What is refused: nothing is stored ----------------------------------------------------------------------------------

select is(pg_temp.refusal(format('select ojs.create_workflow(%L)', def)),
    coalesce('OJ404 INVALID_WORKFLOW ' || path, other), 'WF-01: refused: ' || left(def::text, 80))
from (values
    ('[]'::jsonb, '$', null), ('{}', '$.type', null), ('{"type": "ring", "jobs": [{"type": "a.b", "args": []}]}',
        '$.type', null), ('{"type": "chain"}', '$.steps', null),
    ('{"type": "chain", "steps": []}', '$.steps', null),
        ('{"type": "chain", "jobs": [{"type": "a.b", "args": []}]}', '$.steps', null),
    ('{"type": "group", "jobs": []}', '$.jobs', null), ('{"type": "group", "jobs": {}}', '$.jobs', null),
        ('{"type": "group", "jobs": [1]}', '$.jobs[0]', null),
    ('{"type": "batch", "jobs": [{"type": "a.b", "args": []}]}', '$.callbacks', null),
    ('{"type": "batch", "jobs": [{"type": "a.b", "args": []}], "callbacks": {}}', '$.callbacks', null),
    ('{"type": "batch", "jobs": [{"type": "a.b", "args": []}], "callbacks": {"on_success": null}}',
        '$.callbacks', null),
    ('{"type": "batch", "jobs": [{"type": "a.b", "args": []}], "callbacks": {"on_sucess": {"type": "a.b", "args": '
     '[]}}}', '$.callbacks.on_sucess', null),
    ('{"type": "batch", "jobs": [{"type": "a.b", "args": []}], "callbacks": {"on_success": {"type": "chain", "steps": '
     '[]}}}', '$.callbacks.on_success', null),
    ('{"type": "chain", "steps": [{"type": "a.b", "args": []}, {"type": "group", "jobs": []}]}',
        '$.steps[1].jobs', null),
    ('{"type": "chain", "steps": [{"type": "a.b", "args": [], "id": "01920000-0000-7000-8000-000000000001"}]}',
        '$.steps[0].id', null),
    ('{"type": "chain", "steps": [{"type": "a.b", "args": [], "deduplication_key": "k"}]}',
        '$.steps[0].deduplication_key', null),
    ('{"type": "chain", "name": 1, "steps": [{"type": "a.b", "args": []}]}', '$.name', null),
    ('{"type": "chain", "id": "wf_1", "steps": [{"type": "a.b", "args": []}]}', null, 'OJ100 INVALID_PAYLOAD id'),
    ('{"type": "chain", "steps": [{"type": "a.b", "args": []}, {"type": "A b", "args": []}]}', null,
        'OJ101 INVALID_JOB_TYPE type'),
    ('{"type": "chain", "steps": [{"type": "a.b", "args": []}, {"type": "a.b"}]}', null, 'OJ100 INVALID_PAYLOAD args'),
    ('{"name": "n", "steps": [{"id": "a", "type": "a.b", "args": [], "depends_on": []}]}', null,
        'OJ700 UNSUPPORTED_FEATURE $.steps'),
    ('{"type": "group", "jobs": [{"type": "a.b", "args": []}, {"type": "a.c", "args": [], "depends_on": ["a"]}]}', null,
        'OJ700 UNSUPPORTED_FEATURE $.jobs[1]'),
    ('{"type": "chain", "steps": [{"type": "group", "jobs": [{"type": "a.b", "args": [], "depends_on": ["a"]}]}]}',
        null, 'OJ700 UNSUPPORTED_FEATURE $.steps[0].jobs[0]')) refused (def, path, other);
create function pg_temp.nested(depth int) returns jsonb language sql as $$
    with recursive n as (select 1 as i, pg_temp.grouped(pg_temp.job('a.b')) as def union all select i + 1,
        pg_temp.grouped(def) from n where i < depth)
    select def from n where i = depth $$;
select is(pg_temp.refusal(format('select ojs.create_workflow(%L)', pg_temp.nested(9))),
    'OJ404 INVALID_WORKFLOW $' || repeat('.jobs[0]', 8), 'WF-12: nine deep is too deep');
select is(pg_temp.refusal(format('select ojs.create_workflow(%L)',
    jsonb_build_object('type', 'chain', 'steps',
    (select jsonb_agg(pg_temp.job('a.b')) from generate_series(1, 10001))))),
    'OJ404 INVALID_WORKFLOW $.steps', 'WF-01: more steps than there may be');
select is((select count(*) from ojs_store.workflow) + (select count(*)
    from ojs_store.workflow_member) + (select count(*) from ojs_store.job), 0::bigint, 'WF-01: nothing was stored');

-- Chains --------------------------------------------------------------------------------------------------------------

select pg_temp.made(pg_temp.chain(pg_temp.job('a'), pg_temp.job('b'),
    pg_temp.job('c')) || '{"name": "abc"}') as chain \gset
select is(pg_temp.flow(:'chain'), 'running 0/3 pending,waiting,waiting',
    'WF-02 WF-03: a chain begins with its first step');
select is(pg_temp.claimed(), 'a', 'WF-03: and with no other'),
    is(pg_temp.parents('a'), '[]', 'WF-04: which has nothing before it');
select is(pg_temp.flow(:'chain'), 'running 0/3 active,waiting,waiting', 'WF-02: a step is active');
select is((ojs.nack(pg_temp.had('a'))).state, 'available', 'a step is given back'),
    is(pg_temp.claimed(), 'a', 'and taken again');
select is(pg_temp.acked('a', '{"n": 1}'), 'completed', 'the first is done'),
    is(pg_temp.claimed(), 'b', 'WF-03: and the second begins in its transaction');
select is(extra, jsonb_build_object('workflow_id', :'chain', 'workflow_step', 1, 'parent_results',
    '[{"n": 1}]'::jsonb), 'WF-04: a step knows its place and what was before') from pg_temp.had;
select is(pg_temp.acked('b', '2'), 'completed', 'the second is done'),
    is(pg_temp.claimed(), 'c', 'WF-03: the third begins'),
    is(pg_temp.parents('c'), '[{"n": 1}, 2]', 'WF-04: with all results');
select is(pg_temp.flow(:'chain'), 'running 2/3 completed,completed,active', 'WF-02: it counts');
select is(pg_temp.acked('c'), 'completed', 'the last is done'),
    is(pg_temp.flow(:'chain'), 'completed 3/3 completed,completed,completed', 'WF-03: and the chain');
select is(w #> '{steps,1,result}', '2', 'WF-02: results are told'),
    is(w ->> 'name', 'abc', 'and the name'),
    is(w -> 'job_count', '3', 'and counts'),
    ok(w ? 'completed_at', 'and the end')
from ojs.workflow(:'chain') w;

select pg_temp.made(pg_temp.chain(pg_temp.job('a', '{"retry": {"max_attempts": 2, "initial_interval": "PT1S"}}'),
    pg_temp.job('b'), pg_temp.job('c'))) as chain \gset
select pg_temp.claimed() \g /dev/null
select is(pg_temp.failed('a'), 'discarded', 'FAIL ends it'),
    is(pg_temp.flow(:'chain'), 'failed 0/3 failed,cancelled,cancelled', 'WF-05: a step that fails fails the chain');
select is(pg_temp.claimed(), '', 'WF-05: nothing more begins');
select is(w -> 'failed_step_index', '0', 'WF-05: which step it was'),
    is(w #>> '{errors,0,message}', 'broken', 'WF-05: and why'),
    is(w -> 'failed_job_ids', jsonb_build_array(w #> '{steps,0,job_id}'), 'and its job')
from ojs.workflow(:'chain') w;
select is((ojs.retry((w #>> '{steps,0,job_id}')::uuid)).state, 'available', 'WF-14: the job can be tried again')
    from ojs.workflow(:'chain') w;
select is(pg_temp.claimed(), 'a', 'WF-14: it runs'),
    is(pg_temp.acked('a'), 'completed', 'and completes'),
    is(pg_temp.claimed(), '', 'WF-14: the chain does not go on'),
    is(pg_temp.flow(:'chain'), 'failed 0/3 failed,cancelled,cancelled', 'WF-14: nor is it brought back');

select pg_temp.made(pg_temp.chain(pg_temp.job('a', '{"retry": {"max_attempts": 2, "initial_interval": "PT1S"}}'),
    pg_temp.job('b'))) as chain \gset
select pg_temp.claimed() \g /dev/null
select is((ojs.fail(pg_temp.had('a'), '{"type": "Net", "message": "m"}')).state, 'retryable', 'an attempt fails'),
    is(pg_temp.flow(:'chain'), 'running 0/2 pending,waiting', 'WF-06: which is no failure of the step');
select pg_temp.clock('1 h') \g /dev/null
select is(pg_temp.claimed(), 'a', 'it is tried again'),
    is(pg_temp.acked('a'), 'completed', 'and completes'),
    is(pg_temp.claimed(), 'b', 'WF-06: the chain goes on'),
    is(pg_temp.acked('b'), 'completed', 'to its end');
select pg_temp.clock('0') \g /dev/null

-- Every other way in which a step may end: expiry, discard, cancel, lapse, drop of the queue, purge.
select pg_temp.made(pg_temp.chain(pg_temp.job('a', '{"expires_at": "+PT1M"}'), pg_temp.job('b'))) as chain \gset
select pg_temp.clock('1 h') \g /dev/null
select is(pg_temp.claimed(), '', 'WF-10: an expired step is not handed out'),
    is(pg_temp.flow(:'chain'), 'failed 0/2 failed,cancelled', 'WF-10: it has failed, by a claim');
select pg_temp.clock('0') \g /dev/null
select pg_temp.made(pg_temp.chain(pg_temp.job('a', '{"expires_at": "+PT1M"}'), pg_temp.job('b'))) as chain \gset
select pg_temp.clock('1 h') \g /dev/null
select ojs.tick() \g /dev/null
select is(pg_temp.flow(:'chain'), 'failed 0/2 failed,cancelled', 'WF-10: by a tick');
select pg_temp.clock('0') \g /dev/null
select pg_temp.made(pg_temp.chain(pg_temp.job('a'), pg_temp.job('b'))) as chain \gset
select (ojs.discard((ojs.workflow(:'chain') #>> '{steps,0,job_id}')::uuid)).state \g /dev/null
select is(pg_temp.flow(:'chain'), 'failed 0/2 failed,cancelled', 'WF-10: discarded');
select pg_temp.made(pg_temp.chain(pg_temp.job('a'), pg_temp.job('b'))) as chain \gset
select (ojs.cancel((ojs.workflow(:'chain') #>> '{steps,0,job_id}')::uuid)).state \g /dev/null
select is(pg_temp.flow(:'chain'), 'failed 0/2 cancelled,cancelled', 'WF-10: cancelled');
select pg_temp.made(pg_temp.chain(pg_temp.job('a'), pg_temp.job('b'))) as chain \gset
select ojs.cancel_many('{"queue": "q"}', true) \g /dev/null
select is(pg_temp.flow(:'chain'), 'failed 0/2 cancelled,cancelled', 'WF-10: cancelled with others');
select pg_temp.made(pg_temp.chain(pg_temp.job('a'), pg_temp.job('b'))) as chain \gset
select pg_temp.claimed() \g /dev/null
select pg_temp.clock('1 h') \g /dev/null
select ojs.tick() \g /dev/null
select is(pg_temp.flow(:'chain'), 'failed 0/2 failed,cancelled', 'WF-10: its lease ran out, its budget was spent');
select pg_temp.clock('0') \g /dev/null
select pg_temp.made(pg_temp.chain(pg_temp.job('a'), pg_temp.job('b'))) as chain \gset
select ojs.purge_queue('q', '{available}', true) \g /dev/null
select is(pg_temp.flow(:'chain'), 'failed 0/2 cancelled,cancelled', 'WF-10: purged');
select pg_temp.made(pg_temp.chain(pg_temp.job('a', queue => 'gone'), pg_temp.job('b'))) as chain \gset
select ojs.drop_queue('gone', 'discard') \g /dev/null
select ojs.tick() \g /dev/null
select is(pg_temp.flow(:'chain'), 'failed 0/2 failed,cancelled', 'WF-10: its queue was dropped');
select pg_temp.made(pg_temp.chain(pg_temp.job('a', '{"unique": {"keys": ["type"], "on_conflict": "replace"}}', 'u'),
    pg_temp.job('b'))) as chain \gset
select (ojs.push('a', queue => 'u', "unique" => '{"keys": ["type"], "on_conflict": "replace"}')).state \g /dev/null
select is(pg_temp.flow(:'chain'), 'failed 0/2 cancelled,cancelled', 'INT-03: replaced by another job');
select pg_temp.made(pg_temp.grouped(pg_temp.job('a', '{"unique": {"keys": ["type"], "on_conflict": "ignore"}}', 'u'),
    pg_temp.job('z'))) as grouped \gset
select is(pg_temp.claimed(), 'z', 'a job that is in nobody''s way'),
    is(pg_temp.acked('z'), 'completed', 'is done');
select is(pg_temp.flow(:'grouped'), 'failed 1/2 failed,completed', 'a job in whose way another is has failed'),
    is(ojs.workflow(:'grouped') #>> '{errors,0,code}', 'duplicate', 'as a duplicate');
select ojs.create_queue('once', '{"delete_on_ack": true}') \g /dev/null
select pg_temp.made(pg_temp.chain(pg_temp.job('a', queue => 'once'), pg_temp.job('b', queue => 'once'))) as chain \gset
select is(pg_temp.claimed('once'), 'a', 'where jobs go with their ack'),
    is(pg_temp.acked('a', '"gone"'), 'completed', 'a step goes'),
    is(pg_temp.claimed('once'), 'b', 'and the next comes'),
    is(pg_temp.parents('b'), '["gone"]', 'WF-13: with its result'),
        is((ojs.ack_many('w', array[pg_temp.had('b')])).done, 1, 'which goes with many');
select is(pg_temp.flow(:'chain'), 'completed 2/2 completed,completed', 'and the chain is complete');
select is((select count(*) from ojs_store.job j where j.queue = ojs_store.queue_id('once')), 0::bigint,
    'and nothing is left of its jobs');

-- Groups --------------------------------------------------------------------------------------------------------------

select pg_temp.made(pg_temp.grouped(pg_temp.job('a'), pg_temp.job('b'), pg_temp.job('c'))) as grouped \gset
select is(pg_temp.claimed(), 'a b c', 'WF-07: all jobs of a group begin at once'),
    is(pg_temp.flow(:'grouped'), 'running 0/3 active,active,active', 'WF-07: and run');
select is(pg_temp.acked('b', '2'), 'completed', 'one ends'),
    is(pg_temp.failed('a'), 'discarded', 'one fails'),
    is(pg_temp.flow(:'grouped'), 'running 1/3 failed,completed,active', 'WF-07: which is nothing to the others');
select is(pg_temp.acked('c'), 'completed', 'the last ends'),
    is(pg_temp.flow(:'grouped'), 'failed 2/3 failed,completed,completed', 'WF-07: and then the group has failed');
select pg_temp.made(pg_temp.grouped(pg_temp.job('a'), pg_temp.job('b'), pg_temp.job('c'))) as grouped \gset
select pg_temp.claimed() \g /dev/null
select is((ojs.ack_many('w', (select array_agg(id) from pg_temp.had))).done, 3, 'WF-07: all at once'),
    is(pg_temp.flow(:'grouped'), 'completed 3/3 completed,completed,completed', 'WF-07: complete');

-- A failed job that is tried again while the group runs: its first end counts.
select pg_temp.made(pg_temp.grouped(pg_temp.job('a'), pg_temp.job('b'))) as grouped \gset
select pg_temp.claimed() \g /dev/null
select pg_temp.failed('a'), pg_temp.acked('b') from (select) x \g /dev/null
select is(pg_temp.flow(:'grouped'), 'failed 1/2 failed,completed', 'it ended');
select count(*) as ended from ojs.events where type = 'workflow.failed' \gset
select is((ojs.retry((ojs.workflow(:'grouped') #>> '{jobs,0,job_id}')::uuid)).state, 'available',
    'tried again by hand'),
    is(pg_temp.claimed(), 'a', 'it runs'),
    is(pg_temp.acked('a'), 'completed', 'and completes');
select is(pg_temp.flow(:'grouped'), 'failed 1/2 failed,completed', 'WF-14: its first end counts'),
    is((select count(*) from ojs.events where type = 'workflow.failed'), :ended::bigint, 'and nothing happened twice');

-- Batches -------------------------------------------------------------------------------------------------------------

select jsonb_build_object('on_complete', pg_temp.job('done'), 'on_success', pg_temp.job('well'), 'on_failure',
    pg_temp.job('badly')) as callbacks \gset
select pg_temp.made(pg_temp.batch(:'callbacks', pg_temp.job('a'), pg_temp.job('b'))) as batch \gset
select is(pg_temp.claimed(), 'a b', 'WF-08: a batch is a group'),
    is(pg_temp.acked('a', '1'), 'completed', 'of which one ends'),
    is(pg_temp.acked('b', '2'), 'completed', 'and the other'),
    is(pg_temp.flow(:'batch'),
        'running 2/2 completed,completed on_complete=pending on_failure=waiting on_success=pending',
        'WF-09: it runs as long as its callbacks');
select is(pg_temp.claimed(), 'done well', 'WF-08: which depend on the outcome'),
    is(pg_temp.parents('done'), '[1, 2]', 'WF-08: and get all results');
select is(extra ->> 'workflow_callback', 'on_success', 'WF-08: a callback knows what it is') from pg_temp.had
    where type = 'well';
select is(pg_temp.acked('done'), 'completed', 'one callback'),
    is(pg_temp.acked('well'), 'completed', 'and the other'),
    is(pg_temp.flow(:'batch'),
        'completed 2/2 completed,completed on_complete=completed on_failure=cancelled on_success=completed',
        'WF-09: then it is complete');
select pg_temp.made(pg_temp.batch(:'callbacks', pg_temp.job('a'), pg_temp.job('b'))) as batch \gset
select pg_temp.claimed() \g /dev/null
select pg_temp.failed('a') \g /dev/null
select pg_temp.acked('b', '2') \g /dev/null
select is(pg_temp.claimed(), 'badly done', 'WF-08: other callbacks where a job failed'),
    is(pg_temp.parents('badly'), '[null, 2]', 'WF-08: with the results that there are');
select is(extra #>> '{parent_errors,0,message}', 'broken', 'WF-08: and the errors') from pg_temp.had
    where type = 'badly';
select is(pg_temp.acked('done'), 'completed', 'one callback'),
    is(pg_temp.acked('badly'), 'completed', 'and the other'),
    is(ojs.workflow(:'batch') ->> 'state', 'completed', 'WF-09: complete, since its callbacks are');
select pg_temp.made(pg_temp.batch(jsonb_build_object('on_success', pg_temp.job('well')),
    pg_temp.job('a'))) as batch \gset
select pg_temp.claimed() \g /dev/null
select is(pg_temp.acked('a'), 'completed', 'its job'),
    is(pg_temp.claimed(), 'well', 'its callback'),
    is(pg_temp.failed('well'), 'discarded', 'which fails'),
    is(ojs.workflow(:'batch') ->> 'state', 'failed', 'WF-09: and with it the batch'),
    is(ojs.workflow(:'batch') #>> '{errors,0,callback}', 'on_success', 'WF-09: it is told which');

-- One inside the other ------------------------------------------------------------------------------------------------

select pg_temp.made(pg_temp.chain(pg_temp.job('first'),
    pg_temp.grouped(pg_temp.job('a'), pg_temp.chain(pg_temp.job('x'), pg_temp.job('y')),
    pg_temp.batch(jsonb_build_object('on_complete', pg_temp.job('cb')), pg_temp.job('b'))),
        pg_temp.job('last'))) as outer \gset
select is(pg_temp.claimed(), 'first', 'WF-12: the first step'),
    is(pg_temp.acked('first', '"f"'), 'completed', 'is done'),
    is(pg_temp.claimed(), 'a b x', 'WF-12: the second is a group of a job, a chain and a batch'),
    is(pg_temp.parents('a'), '["f"]', 'WF-12: they know what was before'),
        is(pg_temp.parents('x'), '["f"]', 'WF-12: three deep, too');
select is(ojs.workflow(:'outer') -> 'job_count', '6', 'WF-02: all jobs are counted, those of inner workflows too'),
    is(pg_temp.flow(:'outer'), 'running 1/3 completed,active,waiting', 'WF-12: the step is active');
select is(pg_temp.acked('a', '"A"'), 'completed', 'the job'),
    is(pg_temp.acked('x', '"X"'), 'completed', 'the chain''s first'),
    is(pg_temp.acked('b', '"B"'), 'completed', 'the batch''s job'),
    is(pg_temp.claimed(), 'cb y', 'WF-12: each goes on by itself'),
    is(pg_temp.parents('y'), '["X"]', 'WF-12: with the results of its own'),
        is(pg_temp.parents('cb'), '["B"]', 'WF-12: the callback, too');
select is(pg_temp.acked('y', '"Y"'), 'completed', 'the chain'),
    is(pg_temp.acked('cb'), 'completed', 'the batch'),
    is(pg_temp.claimed(), 'last', 'WF-12: the outer chain goes on'),
    is(pg_temp.parents('last'), '["f", ["A", ["X", "Y"], ["B"]]]',
        'R-55: results of inner workflows are arrays of their own');
select is(pg_temp.acked('last'), 'completed', 'the last'),
    is(pg_temp.flow(:'outer'), 'completed 3/3 completed,completed,completed', 'WF-12: complete'),
    is(ojs.workflow(:'outer') -> 'completed_count', '6', 'WF-02: all of them');
select pg_temp.made(pg_temp.chain(pg_temp.grouped(pg_temp.job('a'), pg_temp.chain(pg_temp.job('x'), pg_temp.job('y'))),
    pg_temp.job('last'))) as outer \gset
select pg_temp.claimed() \g /dev/null
select is(pg_temp.failed('x'), 'discarded', 'an inner step fails'),
    is(pg_temp.flow(:'outer'), 'running 0/2 active,waiting', 'WF-12: the group waits for the other'),
    is(pg_temp.acked('a'), 'completed', 'which ends'),
    is(pg_temp.flow(:'outer'), 'failed 0/2 failed,cancelled', 'WF-12: and the failure reaches the outermost'),
        is(pg_temp.claimed(), '', 'nothing is left');
select pg_temp.made(pg_temp.nested(8)) as deep \gset
select is(pg_temp.claimed(), 'a.b', 'WF-12: eight deep'),
    is(pg_temp.acked('a.b'), 'completed', 'is done'),
    is(pg_temp.flow(:'deep'), 'completed 1/1 completed', 'WF-12: through all of them');

-- Cancelling ----------------------------------------------------------------------------------------------------------

select pg_temp.made(pg_temp.chain(pg_temp.grouped(pg_temp.job('a'), pg_temp.chain(pg_temp.job('x'), pg_temp.job('y'))),
    pg_temp.job('last'))) as outer \gset
select pg_temp.made(pg_temp.chain(pg_temp.job('z'))) as other \gset
select pg_temp.claimed() \g /dev/null
select is((ojs.nack(pg_temp.had('a'))).state, 'available', 'one waits, one runs');
select is(w ->> 'state', 'cancelled', 'WF-11: cancelled'),
    ok(w ? 'cancelled_at', 'with the time') from ojs.cancel_workflow(:'outer') w;
select is(pg_temp.claimed(), '', 'WF-11: what waited is not handed out'),
    is(ojs.workflow(:'other') ->> 'state', 'running', 'another is not touched');
select is(pg_temp.acked('x'), 'completed', 'WF-11: what ran may end') from (select pg_temp.had('x')) x where false;
select is((ojs.ack(job_id)).state, 'completed', 'WF-11: what ran may end') from ojs.leases l
    join ojs_store.job j on j.id = l.job_id where j.type = 'x';
select is(pg_temp.claimed(), '', 'WF-11: after which nothing begins'),
    is(pg_temp.flow(:'outer'), 'cancelled 0/2 cancelled,cancelled', 'WF-11: it stays cancelled');
select is(pg_temp.refusal(format('select ojs.cancel_workflow(%L)', :'outer')), 'OJ406 WORKFLOW_ENDED',
    'WF-11: only once');
select is(pg_temp.refusal(format('select ojs.%s(%L)', f, '01920000-0000-7000-8000-000000000001')),
    'OJ400 WORKFLOW_NOT_FOUND', 'WF-11: none there: ' || f) from unnest('{workflow,cancel_workflow}'::text[]) f;
-- One that is given back after its workflow was cancelled goes with the next tick.
select pg_temp.made(pg_temp.grouped(pg_temp.job('a'), pg_temp.job('b'))) as grouped \gset
select pg_temp.claimed() \g /dev/null
select ojs.cancel_workflow(:'grouped') \g /dev/null
select is((ojs.nack(pg_temp.had('a'))).state, 'available', 'a job of a cancelled group is given back');
select pg_temp.clock('10 s') \g /dev/null
select ojs.tick() \g /dev/null
select pg_temp.clock('0') \g /dev/null
select is(pg_temp.flow(:'grouped'), 'cancelled 0/2 cancelled,active',
    'WF-11: the tick cancels it, and leaves the active one');
select is(pg_temp.acked('b'), 'completed', 'which ends'),
    is(pg_temp.flow(:'grouped'), 'cancelled 1/2 cancelled,completed', 'WF-11: as it may');

-- Hooks, rules of queues, bounds --------------------------------------------------------------------------------------

create function public.wf_drops(job jsonb) returns jsonb language sql as $$
    select case when job ->> 'type' <> 'dropped' then job end $$;
select ojs.register_hook('drops', 'enqueue', 'public.wf_drops(jsonb)') \g /dev/null
select pg_temp.made(pg_temp.chain(pg_temp.job('a'), pg_temp.job('dropped'), pg_temp.job('c'))) as chain \gset
select is(pg_temp.claimed(), 'a', 'MW-01: hooks see the jobs of workflows'),
    is(pg_temp.acked('a'), 'completed', 'and then the next'),
    is(pg_temp.flow(:'chain'), 'failed 1/3 completed,failed,cancelled', 'MW-03: a step that a hook drops has failed'),
    is(ojs.workflow(:'chain') #>> '{errors,0,code}', 'dropped', 'and says so');
select pg_temp.made(pg_temp.chain(pg_temp.job('dropped'), pg_temp.job('c'))) as chain \gset
select is(pg_temp.flow(:'chain'), 'failed 0/2 failed,cancelled', 'MW-03: the first one, too');
select ojs.unregister_hook('drops') \g /dev/null
select ojs.create_queue('full', '{"max_size": 1}') \g /dev/null
select pg_temp.pushed('full') \g /dev/null
select pg_temp.made(pg_temp.chain(pg_temp.job('a'), pg_temp.job('b', queue => 'full'))) as chain \gset
select is(pg_temp.claimed(), 'a', 'BP-01: a step before a full queue'),
    is(pg_temp.acked('a'), 'completed', 'its ack is none of the queue''s business'),
    is(pg_temp.flow(:'chain'), 'running 1/2 completed,waiting', 'the next one waits for room');
select ojs.tick() \g /dev/null
select is(ojs.health() #> '{workflows,held_up}', '1', 'health says that it is held up'),
    is(ojs.health() #>> '{workflows,error}', 'OJ601', 'and by what');
select is((ojs.ack(id)).state, 'completed', 'there is room') from ojs.claim('full', 'w');
select pg_temp.clock('1 min') \g /dev/null
select ojs.tick() \g /dev/null
select pg_temp.clock('0') \g /dev/null
select is(pg_temp.flow(:'chain'), 'running 1/2 completed,pending', 'and it goes on'),
    is(ojs.health() #> '{workflows,held_up}', '0', 'which health says, too');
select ojs.create_queue('theirs', '{"producers": ["ojs_admin"]}') \g /dev/null
create role wf_producer in role ojs_producer;
create role wf_observer in role ojs_observer;
set local role wf_producer;
select is(pg_temp.refusal(format('select ojs.create_workflow(%L)',
    pg_temp.chain(pg_temp.job('a'), pg_temp.job('b', queue => 'theirs')))),
    '42501 queue "theirs" does not take jobs of this role',
    'WF-01: who may not push a later step may not make the workflow');
select pg_temp.made(pg_temp.chain(pg_temp.job('p'))) as mine \gset
select is(pg_temp.flow(:'mine'), 'running 0/1 pending', 'a producer sees its workflow'),
    is(ojs.cancel_workflow(:'mine') ->> 'state', 'cancelled', 'and cancels it');
reset role;
select pg_temp.made(pg_temp.chain(pg_temp.job('a', queue => 'theirs'))) as theirs \gset
set local role wf_producer;
select is(left(pg_temp.refusal(format('select ojs.%s(%L)', f, :'theirs')), 5), '42501',
    'one in a queue of others is not for it: ' || f) from unnest('{workflow,cancel_workflow}'::text[]) f;
select is(left(pg_temp.refusal('select * from ojs.workflows'), 5), '42501', 'the view is for observers');
set local role wf_observer;
select is(ojs.workflow(:'theirs') ->> 'state', 'running', 'an observer sees all'),
    is((select count(*) from ojs.workflows where id = :'theirs'), 1::bigint, 'in the view, too');
select is(left(pg_temp.refusal(format('select ojs.cancel_workflow(%L)', :'theirs')), 5), '42501', 'and cancels none');
reset role;

-- Results have a bound ------------------------------------------------------------------------------------------------

select pg_temp.made(pg_temp.chain(pg_temp.job('a'), pg_temp.job('b'), pg_temp.job('c'))) as chain \gset
select pg_temp.claimed() \g /dev/null
select pg_temp.acked('a', to_jsonb(repeat('a', 100000))) \g /dev/null
select pg_temp.claimed() \g /dev/null
select pg_temp.acked('b', to_jsonb(repeat('b', 200000))) \g /dev/null
select pg_temp.claimed() \g /dev/null
select is(pg_temp.parents('c') -> 0, 'null', 'WF-04: older results go where they are too large'),
    is(length(pg_temp.parents('c') ->> 1), 200000, 'WF-04: the last one is there'),
    is(extra -> 'parent_results_truncated', 'true', 'WF-04: and it is told') from pg_temp.had where type = 'c';
select is(pg_temp.acked('c'), 'completed', 'it ends');
-- Retention of the jobs takes nothing from a workflow that runs.
select pg_temp.made(pg_temp.chain(pg_temp.job('a'), pg_temp.job('b'))) as chain \gset
select pg_temp.claimed() \g /dev/null
select is(pg_temp.acked('a', '"kept"'), 'completed', 'a step'),
    ok(ojs.delete_job(pg_temp.had('a')), 'WF-13: whose job is removed'),
    is(pg_temp.claimed(), 'b', 'the next'),
    is(pg_temp.parents('b'), '["kept"]', 'WF-13: still has its result');

-- Events, explain, HTTP, what nobody can see --------------------------------------------------------------------------

select is((select string_agg(type, ' ' order by time, type) from ojs.events where subject = :'chain'),
    'workflow.created workflow.started workflow.step_completed', 'WF-15: events of a chain');
select is(data, jsonb_build_object('workflow_id', :'chain', 'workflow_name', '', 'step_id', '0', 'step_type', 'a',
    'job_id', data -> 'job_id', 'duration_ms', data -> 'duration_ms', 'steps_remaining', 1),
    'WF-15: what a step''s says')
from ojs.events where subject = :'chain' and type = 'workflow.step_completed';
select is((select string_agg(type, ' ' order by time, type) from ojs.events where subject = :'batch'
    and type <> 'workflow.step_completed'),
    'workflow.created workflow.started workflow.callback_fired workflow.failed', 'WF-15: events of a batch');
select ok(ojs.explain_job(pg_temp.had('b')) like format('Job %s, which is member 1 of workflow %s, is running%%',
    pg_temp.had('b'), :'chain'), 'explain_job says where a job belongs');
select is(pg_temp.keep(pg_temp.http('POST', '/ojs/v1/workflows',
    pg_temp.batch(jsonb_build_object('on_success', pg_temp.job('well')), pg_temp.job('h', queue => 'h')))) -> 'status',
    '201', 'HTTP-01: made over HTTP'),
    is(pg_temp.got('headers.Location'), '/ojs/v1/workflows/' || pg_temp.got('body.workflow.id'), 'with its place'),
    is(pg_temp.got('body.id'), pg_temp.got('body.workflow.id'),
        'HTTP-01: its id also where clients that expect no wrapper look'),
        is(pg_temp.got('body.workflow.jobs_total'), '1', 'and itself');
select is(pg_temp.http('GET', '/ojs/v1/workflows/' || pg_temp.got('body.workflow.id')) #>> '{body,workflow,state}',
    'running', 'HTTP-01: it is told'),
    is(pg_temp.http('DELETE', '/ojs/v1/workflows/' || pg_temp.got('body.workflow.id')) #>> '{body,workflow,state}',
        'cancelled', 'HTTP-01: and cancelled'),
    is(pg_temp.error('DELETE', '/ojs/v1/workflows/' || pg_temp.got('body.workflow.id')), '409 conflict', 'WF-11: once');
select is(pg_temp.error('GET', '/ojs/v1/workflows/wf_none'), '404 not_found', 'HTTP-01: none there'),
    is(pg_temp.error('POST', '/ojs/v1/workflows', '{"type": "chain", "steps": []}',
    '{"content-type": "application/json"}'), '400 invalid_workflow', 'HTTP-01: refused');
select is(pg_temp.http('POST', '/ojs/v1/workflows',
    '{"type": "chain", "steps": []}') #>> '{body,error,details,validation_errors,0,path}', '$.steps',
    'HTTP-01: with the path of what is wrong');
select is((ojs.push('a.b', queue => 'x', options => '{"workflow_id": "w", "parent_results": [1]}')).extra, null,
    'WF-04: a producer cannot say what the server says');
select is(pg_temp.refusal(format('select ojs.create_workflow(%L)',
    pg_temp.chain(pg_temp.job('a')) || jsonb_build_object('id', :'chain'))), 'OJ301 DUPLICATE_JOB id',
    'WF-01: an id can be brought, once');

-- The net: what was left open by others' hands is found, and mended ---------------------------------------------------

select pg_temp.made(pg_temp.chain(pg_temp.job('lost'), pg_temp.job('next', queue => 'n'))) as lost \gset
select pg_temp.claimed() \g /dev/null
select ojs_store.check_workflows() as none \gset
select is(:none, 0, 'nothing is left open by ojs');
delete from ojs_store.workflow_open where member = pg_temp.had('lost');
insert into ojs_store.workflow_end values (:'lost', 0, pg_temp.had('lost'), now(), 1, true, 'completed');
set local client_min_messages = error;
select is(ojs_store.check_workflows(), 1, 'one that was is found');
reset client_min_messages;
select ojs.tick() \g /dev/null
select is(pg_temp.flow(:'lost'), 'running 1/2 completed,pending', 'and goes on'),
    is(ojs.health() #> '{workflows,last_check,mended}', '1', 'health says so');
select pg_temp.made(pg_temp.chain(pg_temp.job('lost'), pg_temp.job('next', queue => 'n'))) as lost \gset
select pg_temp.claimed() \g /dev/null
delete from ojs_store.lease where job_id = pg_temp.had('lost');
delete from ojs_store.job where id = pg_temp.had('lost');
set local client_min_messages = error;
select is(ojs_store.check_workflows(), 1, 'a job that somebody has removed by SQL is found, too');
reset client_min_messages;
select ojs.tick() \g /dev/null
select is(pg_temp.flow(:'lost'), 'failed 0/2 failed,cancelled', 'and has failed');
-- Retention of workflows: what a job of theirs that is tried again by hand is given is kept as long as the job.
create function pg_temp.at_day(day numeric) returns void language plpgsql as $$
begin
    perform pg_temp.clock(day * interval '1 day');
    perform ojs.tick();
    perform ojs.tick();
end $$;
create function pg_temp.kept(retried boolean) returns text language sql as $$
    select string_agg(distinct state, ' ' order by state) from ojs_store.workflow w
    where w.parent is null and ojs_store.may_be_retried(w.id) = retried $$;
select pg_temp.at_day(8), pg_temp.at_day(9.5) \g /dev/null
select is(pg_temp.kept(false), 'failed running', 'completed and cancelled workflows are removed after a week: QC-05'),
    is(pg_temp.kept(true), 'completed failed', 'but not while a job of theirs can be retried: R-97');
select pg_temp.at_day(60), pg_temp.at_day(70) \g /dev/null
select is(pg_temp.kept(false), 'running', 'failed workflows are removed after a month: QC-05'),
    is(pg_temp.kept(true), null, 'and no workflow is kept for jobs that are gone: R-97'),
    is((select count(*) from ojs_store.workflow_end e where not exists (select from ojs_store.workflow w
        where w.id = e.workflow)), 0::bigint, 'with all that belongs to them: QC-05'),
    is((select count(*) from ojs_store.workflow_member e
        where not exists (select from ojs_store.workflow w where w.id = e.workflow)), 0::bigint, 'all of it: QC-05');

create function pg_temp.died(type text) returns text language sql as
$$ select (ojs.fail(pg_temp.had(type), '{"type": "Net", "message": "broken"}')).state $$;
select pg_temp.clock('0') \g /dev/null
\set dead '{"retry": {"max_attempts": 1, "on_exhaustion": "dead_letter"}}'
select pg_temp.made(pg_temp.chain(pg_temp.job('s.one'), pg_temp.job('s.two', :'dead'))) as chain \gset
select pg_temp.claimed() as c, pg_temp.acked('s.one', '{"invoice": 42}') as a, pg_temp.claimed() as c2,
    pg_temp.died('s.two') as f, pg_temp.had('s.two') as step \gset
select pg_temp.made(pg_temp.chain(pg_temp.job('b.one'), pg_temp.batch(jsonb_build_object('on_complete',
    pg_temp.job('b.end')), pg_temp.job('b.two', :'dead')))) as batch \gset
select pg_temp.claimed() as c, pg_temp.acked('b.one', '"before"') as a, pg_temp.claimed() as c2,
    pg_temp.died('b.two') as f, pg_temp.had('b.two') as member, pg_temp.claimed() as c3, pg_temp.acked('b.end') as e
\gset
select pg_temp.made(pg_temp.batch(jsonb_build_object('on_failure', pg_temp.job('c.end', :'dead')),
    pg_temp.job('c.one', '{"retry": {"max_attempts": 1}}'))) as callback \gset
select pg_temp.claimed() as c, pg_temp.died('c.one') as f, pg_temp.claimed() as c2, pg_temp.died('c.end') as f2,
    pg_temp.had('c.end') as called \gset
select is(pg_temp.flow(:'batch'), 'completed 2/2 completed,completed', 'a batch that dealt with its dead letter'),
    is(pg_temp.flow(:'chain'), 'failed 1/2 completed,failed', 'a chain whose second step has died'),
    is(pg_temp.flow(:'callback'), 'failed 0/1 failed on_failure=failed', 'a batch whose callback has died');
select pg_temp.at_day(d) from unnest('{8, 9, 31, 60, 100, 150}'::int[]) d \g /dev/null
select (ojs.retry(:'member')).state as member_is, pg_temp.claimed() as c, pg_temp.parents('b.two') as got \gset
select is(:'got'::jsonb, '["before"]',
    'a member of a batch that is replayed after months is given what came before it: R-97');
select pg_temp.died('b.two') as f \gset
select pg_temp.at_day(179) \g /dev/null
select (ojs.retry(:'step')).state as step_is, (ojs.retry(:'called')).state as called_is, pg_temp.claimed() as c \gset
select is(pg_temp.parents('s.two'), '[{"invoice": 42}]', 'a step that is replayed is given its parent_results: R-97'),
    is((select extra -> 'parent_errors' #> '{0,index}' from pg_temp.had where type = 'c.end'), '0',
        'a callback that is replayed is given its parent_errors: R-97');
select pg_temp.at_day(260) \g /dev/null
select is((select count(*) from ojs_store.workflow where id in (:'chain', :'callback')), 2::bigint,
    'a workflow is kept when its job has died a second time: R-97');
select (ojs.retry(:'step')).state as step_is, (ojs.retry(:'called')).state as called_is, pg_temp.claimed() as c \gset
select is(pg_temp.parents('s.two'), '[{"invoice": 42}]', 'and the job is given its parent_results again: R-97');
select pg_temp.acked('s.two') as a1, pg_temp.acked('c.end') as a2 \gset
select pg_temp.at_day(d) from unnest('{300, 335, 345, 400, 460}'::int[]) d \g /dev/null
select is((select count(*) from ojs_store.workflow where id in (:'chain', :'callback', :'batch')), 0::bigint,
    'and removed once no job of it can be retried: R-97');

-- Retention costs no more than the workflows that it is time for, and comes at each tick.
select pg_temp.clock('0') \g /dev/null
select pg_temp.made(pg_temp.grouped(pg_temp.job('many.n' || n))) from generate_series(1, 250) n \g /dev/null
select count(ojs.ack(c.id)) from ojs.claim('q', 'w', 1000) c where c.type like 'many.%' \g /dev/null
select pg_temp.clock('8 days') \g /dev/null
select ojs.tick(), ojs.tick(), ojs.tick(), ojs.tick() \g /dev/null
select is((select count(*) from ojs_store.workflow w where w.state = 'completed'), 0::bigint,
    'many workflows are removed tick by tick: QC-05');
select pg_temp.clock('0') \g /dev/null
-- A full queue, and what a second try is told ----------------------------------------------------------------------

select ojs.create_queue('narrow', '{"max_size": 1, "overflow_policy": "block", "block_timeout": 30}') \g /dev/null
select ojs.push('full', '[]', 'narrow') \g /dev/null
select pg_temp.made(pg_temp.chain(pg_temp.job('a'), pg_temp.job('b', '{"retry": {"max_attempts": 1}}', 'narrow')))
    as chain \gset
select is(pg_temp.claimed(), 'a', 'a step before one for a full queue');
select is(pg_temp.acked('a', '"told"'), 'completed', 'WF-02: an ack does not fail for want of room for the next step');
select is(pg_temp.claimed('narrow'), 'full', 'room comes');
select is(pg_temp.acked('full'), 'completed', 'and stays');
update ojs_store.workflow_due set due_at = ojs_store.now();
select ojs.tick() \g /dev/null
select is(pg_temp.claimed('narrow'), 'b', 'WF-02: and the tick has the step begin');
select is(pg_temp.failed('b'), 'discarded', 'which fails');
select is((ojs.retry(pg_temp.had('b'))).state, 'available', 'and is tried again by hand');
select is(pg_temp.claimed('narrow'), 'b', 'it runs'),
    is(pg_temp.parents('b'), '["told"]',
    'WF-04: with what the steps before it led to');

create function pg_temp.refuse() returns trigger language plpgsql as $$ begin raise exception 'not now'; end $$;
create trigger refuse before delete on ojs_store.workflow_member for each statement execute function pg_temp.refuse();
select pg_temp.made(pg_temp.grouped(pg_temp.job('old'))) as old \gset
select pg_temp.claimed() as c, pg_temp.acked('old') as a \gset
update ojs_store.workflow set remove_at = ojs_store.now() - interval '1 day' where id = :'old';
set local client_min_messages = error;
select is(ojs.tick() -> 'failed', '[]', 'WF-10: where the check fails, workflows go on');
select is(ojs.health() #>> '{workflows,last_check,error}', 'not now', 'and health says why');
reset client_min_messages;
drop trigger refuse on ojs_store.workflow_member;
update ojs_store.workflow_check set checked_at = ojs_store.now() - interval '1 hour';
select is(ojs.tick() -> 'failed', '[]', 'the next check'),
    is(ojs.health() #>> '{workflows,last_check,error}', null, 'mends that');

select * from finish();
rollback;
