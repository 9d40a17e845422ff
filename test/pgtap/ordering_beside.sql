-- ordering_beside.sql: ordering keys of jobs that have something else besides: a workflow, a cron entry, a rate limit
-- (DDP-11 with WF-01, CRN-01, RL-01).
begin;
select no_plan();
\ir helpers.psql

create function pg_temp.job(name text, key text default 'K', more jsonb default '{}') returns jsonb language sql as
$$ select jsonb_strip_nulls(jsonb_build_object('type', 't.' || name, 'args', '[]'::jsonb, 'queue', 'b',
    'ordering_key', key)) || more $$;
create function pg_temp.put(name text, key text default 'K', more jsonb default '{}') returns uuid language sql as
$$ select (ojs.push_job(pg_temp.job(name, key, more)) ->> 'id')::uuid $$;
create function pg_temp.claimed(max int default 100) returns text language sql as
$$ select coalesce(string_agg(substr(type, 3), ' '), '') from ojs.claim('b', 'w', max) $$;
create function pg_temp.named(name text) returns uuid language sql as
$$ select id from ojs_store.job where type = 't.' || name order by seq desc limit 1 $$;
create function pg_temp.acked(name text) returns text language sql as $$ select (ojs.ack(pg_temp.named(name))).state $$;
create function pg_temp.left_over() returns text language sql as $$ select concat_ws('/',
    (select count(*) from ojs_store.ordering_line), (select count(*) from ojs_store.ordering_due),
    (select count(*) from ojs_store.workflow_open), (select count(*) from ojs_store.workflow_due)) $$;
select ojs.create_queue('b') \g /dev/null

-- Workflows: a step takes its place in the line when its turn in the workflow has come
select pg_temp.put('x') \g /dev/null
select ojs.create_workflow(jsonb_build_object('type', 'chain', 'steps',
    jsonb_build_array(pg_temp.job('s1'), pg_temp.job('s2'), pg_temp.job('s3', 'L')))) ->> 'id' as chain \gset
select pg_temp.put('y') \g /dev/null
select is(pg_temp.claimed(), 'x', 'a job of the key is before the first step');
select is(pg_temp.acked('x') || pg_temp.claimed(), 'completeds1', 'the first step comes next');
select is(pg_temp.acked('s1') || pg_temp.claimed(), 'completedy',
    'the second one behind what was pushed before it began');
select is(ojs.workflow(:'chain') ->> 'state', 'running', 'the workflow waits');
select is(pg_temp.acked('y') || pg_temp.claimed(), 'completeds2', 'and goes on');
select is(pg_temp.acked('s2') || pg_temp.claimed() || pg_temp.acked('s3'), 'completeds3completed',
    'the step with another key in the transaction of the ack');
select is(ojs.workflow(:'chain') ->> 'state', 'completed', 'to its end');

select ojs.create_workflow(jsonb_build_object('type', 'batch', 'jobs',
    jsonb_build_array(pg_temp.job('g1'), pg_temp.job('g2'), pg_temp.job('g3')),
    'callbacks', jsonb_build_object('on_complete', pg_temp.job('done')))) ->> 'id' as batch \gset
select is(pg_temp.claimed(), 'g1', 'the jobs of a group run one at a time where they have one key');
select is((select string_agg(substr(type, 3), ' ') from ojs.ack_and_claim('w', 'b', array[pg_temp.named('g1')],
    max => 5)),
    'g2', 'in their order');
select is((ojs.cancel(pg_temp.named('g2'))).state || pg_temp.claimed(), 'cancelledg3', 'past one that is cancelled');
select is((ojs.ack_many('w', array[pg_temp.named('g3')])).done || pg_temp.claimed(), '1done',
    'the callback follows the last one of its key');
select is(pg_temp.acked('done') || (ojs.workflow(:'batch') ->> 'state'), 'completedcompleted',
    'and the batch has ended');

select ojs.create_workflow(jsonb_build_object('type', 'group', 'jobs',
    jsonb_build_array(pg_temp.job('c1'), pg_temp.job('c2')))) ->> 'id' as cancelled \gset
select pg_temp.put('z') \g /dev/null
select is(pg_temp.claimed(), 'c1', 'a group with a job that is held');
select ojs.cancel_workflow(:'cancelled') \g /dev/null
select is(pg_temp.acked('c1') || pg_temp.claimed() || pg_temp.acked('z'), 'completedzcompleted',
    'a cancelled workflow takes its blocked jobs out of the line');
select ojs.tick() \g /dev/null
select is(pg_temp.left_over(), '0/0/0/0', 'no line is left');

-- Cron: each occurrence joins the line
select ojs.schedule('o', '* * * * *', pg_temp.job('cron', 'C'),
    '{"overlap_policy": "allow"}') \g /dev/null
select pg_temp.clock('61s'), ojs.tick() \g /dev/null
select pg_temp.clock('122s'), ojs.tick() \g /dev/null
select is((select count(*) from ojs.jobs where type = 't.cron'), 2::bigint, 'two occurrences of a cron entry');
select is(pg_temp.claimed(), 'cron', 'run one at a time where it has an ordering key');
select is((select (ojs.ack(id)).state from ojs.jobs where type = 't.cron' and state = 'active') || pg_temp.claimed(),
    'completedcron', 'the second when the first has ended');
select count(ojs.ack(id)), ojs.unschedule('o') from ojs.jobs where type = 't.cron' and state = 'active' \g /dev/null
select is(pg_temp.left_over(), '0/0/0/0', 'no line is left');

-- Rate limits: a job that a limit holds back holds back its line, and nobody overtakes it
select pg_temp.put('p1', 'P', '{"rate_limit": {"key": "api", "concurrency": 1}}'),
    pg_temp.put('p2', 'P', '{"rate_limit": {"key": "api", "concurrency": 1}}'), pg_temp.put('p3', 'P'),
    pg_temp.put('q1', 'Q', '{"rate_limit": {"key": "api", "concurrency": 1}}'), pg_temp.put('q2', 'Q') \g /dev/null
select is(pg_temp.claimed(), 'p1', 'the limit has room for one, and those behind it wait for their keys');
select is(pg_temp.claimed(), '', 'nobody overtakes a job that the limit holds back');
select is(pg_temp.acked('p1') || pg_temp.claimed(), 'completedq1', 'the slot goes to the one that waited longest');
select is(pg_temp.acked('q1') || pg_temp.claimed(), 'completedp2 q2', 'then each key goes on in its order');
select is(pg_temp.acked('p2') || pg_temp.claimed() || pg_temp.acked('q2') || pg_temp.acked('p3'),
    'completedp3completedcompleted', 'to its end');

select pg_temp.put('r1', 'R', '{"rate_limit": {"key": "slow", "concurrency": 1, "on_limit": "reschedule"}}'),
    pg_temp.put('s', null, '{"rate_limit": {"key": "slow", "concurrency": 1}}'),
    pg_temp.put('r2', 'R', '{"rate_limit": {"key": "slow", "concurrency": 1, "on_limit": "drop"}}'),
    pg_temp.put('r3', 'R') \g /dev/null
select is(pg_temp.claimed(1), 'r1', 'the limit is used up');
select is((ojs.nack(pg_temp.named('r1'), interval '1s')).state || pg_temp.claimed(), 'availables',
    'by another job than the first of the key, which is released with a delay');
select pg_temp.clock('124s') \g /dev/null
select is(pg_temp.claimed(), '', 'the limit schedules the first of the key for later …');
select is((ojs.info(pg_temp.named('r1')) ->> 'state'), 'scheduled', '… and as it is strict nobody comes before it');
select is(pg_temp.acked('s') || pg_temp.claimed(), 'completed', 'not even when the limit has room');
select pg_temp.clock('3724s') \g /dev/null
select ojs.tick() \g /dev/null
select is(pg_temp.claimed(), 'r1', 'when it is due it is handed out');
select is(pg_temp.put('t', null, '{"rate_limit": {"key": "slow", "concurrency": 2}}') is not null, true, 'another job');
-- A claim has upkeep done once: first where the last is a while ago, else when it has looked.
select pg_temp.clock('3725s') \g /dev/null
select is(pg_temp.acked('r1') || pg_temp.claimed(), 'completedt', 'a claim goes on past what its limit drops');
select is(ojs.info(pg_temp.named('r2')) ->> 'state', 'discarded', 'which has ended');
select is(pg_temp.claimed(), 'r3', 'and lets the next of its key go');
select is(pg_temp.acked('r3') || pg_temp.acked('t') || pg_temp.claimed(), 'completedcompleted', 'to the end');
select ojs.tick() \g /dev/null
select is(pg_temp.left_over(), '0/0/0/0', 'no line is left');

select * from finish();
rollback;
