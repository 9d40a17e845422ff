-- debounce.sql: pushes that change a job that waits instead of making one: on_conflict update, update_except_schedule,
-- merge, merge_except_schedule (UNQ-29). Several sessions: test/specs/debounce.spec.
begin;
select no_plan();
\ir helpers.psql
\ir http.psql

-- A push of type d.NAME by the key of its name; the answer without what differs each time.
create function pg_temp.put(name text, args jsonb, conflict text default 'update', options jsonb default '{}',
    queue text default 'd') returns ojs.job language sql as $$
    select ojs.push('d.' || name, args, queue, "unique" => jsonb_build_object('on_conflict', conflict),
        options => options)
$$;
create function pg_temp.row_of(name text) returns ojs.jobs language sql as $$
    select j from ojs.jobs j where type = 'd.' || name order by created_at desc, seq desc limit 1 $$;
create function pg_temp.ids(name text) returns bigint language sql as $$
    select count(*) from ojs.jobs where type = 'd.' || name $$;
select ojs.create_queue('d', '{"default_retry": {"max_attempts": 3, "initial_interval": "PT1H", "jitter": false}}')
    \g /dev/null

-- update: one job, with what the last push says
create temp table first as select * from pg_temp.put('a', '[1]', options => '{"delay": "PT10S", "meta": {"x": 1}}');
select is((select deduplicated from first), false, 'the first push makes a job (UNQ-29)');
create temp table second as select * from pg_temp.put('a', '[2]',
    options => '{"delay": "PT20S", "priority": 5, "tags": ["t"], "timeout": 7}');
select is((select (id, created_at, seq, deduplicated) from second),
    (select (id, created_at, seq, true) from first), 'the second one answers with that job');
select is((select (args, meta, priority, tags, state, timeout) from second),
    row('[2]'::jsonb, '{}'::jsonb, 5, '{t}'::text[], 'scheduled'::text, interval '7 s'), 'which has all that it says');
select is((select scheduled_at - created_at > interval '15 s' from second), true, 'and its time');
select is(pg_temp.ids('a'), 1::bigint, 'there is one job');
select pg_temp.clock('15 s') \g /dev/null
select is((select count(*) from ojs.claim('d', 'w')), 0::bigint, 'it is not run at the first time');
select pg_temp.clock('25 s') \g /dev/null
select is((select args from ojs.claim('d', 'w')), '[2]', 'but at the second, with the args of the second push');
select is((select count(*) from ojs.claim('d', 'w')), 0::bigint, 'once');

-- A job that runs is never changed
select is((pg_temp.put('a', '[3]')).deduplicated, false, 'while it runs a push makes another job');
select is((pg_temp.put('a', '[4]')).deduplicated, true, 'which the next one updates');
select is((select string_agg(args::text || ' ' || state, ', ' order by seq) from ojs.jobs where type = 'd.a'),
    '[2] active, [4] available', 'the one that runs is as it was');
select is((select count(ojs.ack(job_id)) from ojs.leases), 1::bigint, 'and its ack counts');
select is((select args from ojs.claim('d', 'w')), '[4]', 'the other one is next');
select ojs.ack(job_id) from ojs.leases \g /dev/null
select is((pg_temp.put('a', '[5]')).deduplicated, false, 'one that is finished is in nobody''s way');
select ojs.purge_queue('d', '{available,completed}', true) \g /dev/null
select pg_temp.clock('0') \g /dev/null

-- Its place
select pg_temp.put(n, '[]') from unnest('{b,c}'::text[]) n \g /dev/null
select pg_temp.put('b', '[1]') \g /dev/null
select is((select string_agg(type, ' ') from ojs.claim('d', 'w', 5)), 'd.b d.c',
    'one that may be claimed keeps its place');
select ojs.nack(job_id) from ojs.leases \g /dev/null
select pg_temp.put('b', '[2]', options => '{"priority": -1}') \g /dev/null
select is((select string_agg(type, ' ') from ojs.claim('d', 'w', 5)), 'd.c d.b', 'unless its priority is another one');
select is((select deliveries from ojs.jobs where type = 'd.b'), 1, 'its deliveries are counted anew');
select ojs.ack(job_id) from ojs.leases \g /dev/null

-- Retryable, pending, expiring jobs
select pg_temp.put('e', '[1]') \g /dev/null
select ojs.fail(id, '{"type": "Net", "message": "broken"}') from ojs.claim('d', 'w') \g /dev/null
select is((pg_temp.row_of('e')).state, 'retryable', 'a job waits for its next attempt');
select is((pg_temp.put('e', '[2]', 'update_except_schedule')).state, 'scheduled',
    'updated, it waits for the same time');
select is((pg_temp.row_of('e')).attempt, 0, 'its attempts begin anew');
select is((pg_temp.row_of('e')).errors, null, 'and its errors are gone');
select is((pg_temp.put('e', '[3]')).state, 'available', 'by update it waits no more');
select pg_temp.put('p', '[1]', options => '{"pending": true}') \g /dev/null
select is((pg_temp.put('p', '[2]', 'update_except_schedule')).state, 'pending', 'a pending job stays so');
select is((ojs.activate((pg_temp.row_of('p')).id)).args, '[2]', 'and is activated as any other');
select pg_temp.put('x', '[1]', options => jsonb_build_object('expires_at', now() + interval '1 minute')) \g /dev/null
select pg_temp.put('x', '[2]') \g /dev/null
select pg_temp.clock('2 minutes') \g /dev/null
select ojs.tick() \g /dev/null
select is((pg_temp.row_of('x')).state, 'available', 'an update without expires_at takes it away');
select pg_temp.clock('0') \g /dev/null
select ojs.purge_queue('d', '{available,scheduled}', true) \g /dev/null

-- except_schedule
select pg_temp.put('s', '[1]', options => '{"delay": "PT10S"}') \g /dev/null
select is((pg_temp.put('s', '[2]', 'update_except_schedule', '{"delay": "PT1H"}')).scheduled_at
    - (pg_temp.row_of('s')).created_at <= interval '10 s', true, 'update_except_schedule leaves the time as it is');
select is((pg_temp.put('s', '[3]')).state, 'available', 'a push without a time makes it available');
select is((pg_temp.put('s', '[4]', 'update_except_schedule', '{"delay": "PT1H"}')).state, 'available',
    'and so it stays');

-- period: no longer than so after the first push
select pg_temp.put('l', '[1]', options => '{"delay": "PT10S"}') \g /dev/null
select pg_temp.clock('8 s') \g /dev/null
select is((ojs.push('d.l', '[2]', 'd', delay => '10 s',
    "unique" => '{"on_conflict": "update", "period": "PT15S"}')).deduplicated,
    true, 'within the period a push puts it off');
select pg_temp.clock('16 s') \g /dev/null
select is((ojs.push('d.l', '[3]', 'd', delay => '10 s',
    "unique" => '{"on_conflict": "update", "period": "PT15S"}')).deduplicated,
    false, 'after it another job is made: nothing is put off without end');
select pg_temp.clock('0') \g /dev/null

-- merge
select pg_temp.put('m', '[1, {"a": 1}]', 'merge', '{"delay": "PT10S", "meta": {"x": 1, "y": 1}}') \g /dev/null
select is((select (args, meta) from pg_temp.put('m', '[2]', 'merge', '{"delay": "PT20S", "meta": {"y": 2}}')),
    row('[1, {"a": 1}, 2]'::jsonb, '{"x": 1, "y": 2}'::jsonb), 'merge appends args, and replaces members of meta');
select is((pg_temp.row_of('m')).scheduled_at - (pg_temp.row_of('m')).created_at > interval '15 s', true,
    'and moves the time');
select is((select (args, scheduled_at - created_at > interval '15 s')
    from pg_temp.put('m', '{"b": 2}', 'merge_except_schedule')), row('[1, {"a": 1}, 2, {"b": 2}]'::jsonb, true),
    'merge_except_schedule does not');
set local ojs.max_args_elements = 10;
select is(pg_temp.refusal($$ select pg_temp.put('m', '[1, 2, 3, 4, 5, 6]', 'merge') $$), 'OJ103 INVALID_ARGS args',
    'what would grow beyond the bounds of a job is refused');
set local ojs.max_args_elements = 10000;
set local ojs.max_envelope_size = '1kB';
select is(left(pg_temp.refusal($$ select pg_temp.put('m', jsonb_build_array(repeat('x', 950)), 'merge') $$), 23),
    'OJ109 PAYLOAD_TOO_LARGE', 'in bytes, too');
reset ojs.max_envelope_size;
select is(jsonb_array_length((pg_temp.row_of('m')).args), 4, 'and leaves the job as it was');

-- In a batch, over HTTP, with a deduplication key
select is((select string_agg(status, ' ' order by index) from ojs.push_many('[
    {"type": "d.n", "args": [1], "queue": "d", "unique": {"on_conflict": "merge"}},
    {"type": "d.n", "args": [2], "queue": "d", "unique": {"on_conflict": "merge"}},
    {"type": "d.n", "args": [3], "queue": "d", "unique": {"on_conflict": "merge"}}]')), 'created duplicate duplicate',
    'in a batch');
select is((pg_temp.row_of('n')).args, '[1, 2, 3]', 'each of them counts');
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs', '{"type": "d.n", "args": [4],
    "options": {"queue": "d", "unique": {"on_conflict": "merge"}}}')) \g /dev/null
select is(pg_temp.got('status') || ' ' || pg_temp.got('body.job.args'), '200 [1, 2, 3, 4]',
    'over HTTP the answer is 200');
select is((ojs.push('d.n', '[5]', 'd', "unique" => '{"on_conflict": "merge"}', deduplication_key => 'k')).deduplicated,
    true,
    'with a deduplication key');
select is((select job_id from ojs.deduplication_keys where queue = 'd' and key = 'k'), (pg_temp.row_of('n')).id,
    'which names the job then');

-- What belongs to it
select is((select count(*) from ojs.events where subject = (pg_temp.row_of('n')).id::text and type = 'job.updated'),
    4::bigint,
    'an event tells of each update');
select is((select data - 'job_id' from ojs.events where subject = (pg_temp.row_of('n')).id::text
    and type = 'job.updated' limit 1),
    '{"queue": "d", "job_type": "d.n"}', 'of which job it was');
select is((select available from ojs.queue_stats('d')),
    (select count(*) from ojs.jobs where queue = 'd' and state = 'available'),
    'statistics count the jobs that there are');
select ojs.create_queue('full', '{"max_size": 1, "overflow_policy": "reject"}') \g /dev/null
select pg_temp.put('f', '[1]', queue => 'full') \g /dev/null
select is((pg_temp.put('f', '[2]', queue => 'full')).args, '[2]', 'an update needs no room in a full queue');
select is(left(pg_temp.refusal($$ select pg_temp.put('g', '[]', queue => 'full') $$), 5), 'OJ601',
    'which another job does');
select is((pg_temp.put('o', '[1]', options => '{"ordering_key": "K"}')).deduplicated, false,
    'a job with an ordering key');
select pg_temp.put('q', '[1]', options => '{"ordering_key": "K"}') \g /dev/null
select is((pg_temp.put('o', '[2]', options => '{"ordering_key": "K"}')).deduplicated, true, 'which is updated');
select ojs.purge_queue('d', '{scheduled}', true) \g /dev/null
select is((select string_agg(type, ' ' order by type) from ojs.claim('d', 'w', 10) where type in ('d.o', 'd.q')), 'd.q',
    'goes to the end of the line of its key');
select ojs.create_workflow('{"type": "chain", "steps": [{"type": "d.w", "args": [1], "queue": "d", "unique": {}}]}')
    \g /dev/null
select is(left(pg_temp.refusal($$ select pg_temp.put('w', '[2]') $$), 19), 'OJ301 DUPLICATE_JOB',
    'a job of a workflow is never changed');
select is(pg_temp.refusal($$ select ojs.create_workflow('{"type": "chain", "steps": [{"type": "d.w", "args": [1],
    "unique": {"on_conflict": "update"}}]}') $$), 'OJ404 INVALID_WORKFLOW $.steps[0].unique', 'and changes no other');

-- A rollback leaves everything as it was
savepoint before;
select pg_temp.put('z', '[1]', options => '{"delay": "PT1H"}') \g /dev/null
savepoint made;
select pg_temp.put('z', '[2]') \g /dev/null
rollback to made;
select is((pg_temp.row_of('z')).args::text || ' ' || (pg_temp.row_of('z')).state, '[1] scheduled',
    'a rollback undoes an update');
select is((pg_temp.put('z', '[3]')).deduplicated, true, 'after which it can be updated');

-- Rights: whoever may not cancel a job may not change it
create role debounce_p in role ojs_producer;
create role debounce_q in role ojs_producer;
select ojs.create_queue('mine', '{"producers": ["debounce_p"]}') \g /dev/null
select ojs.push('d.r', '[1]', 'mine', delay => '1 hour', "unique" => '{}') \g /dev/null
set local role debounce_q;
select is(pg_temp.refusal($$ select ojs.push('d.r', '[2]', 'other',
    "unique" => '{"on_conflict": "update"}') $$) like '42501 %',
    true, 'of another queue too');
reset role;
select is((pg_temp.row_of('r')).args, '[1]', 'it is as it was');

-- What another role pushed is not to be had by merging with it.
select ojs.create_queue('box', '{"producers": ["ojs_producer"], "cancellers": ["ojs_producer"],
    "readers": ["debounce_p"]}'), ojs.create_queue('open') \g /dev/null
set local role debounce_p;
select id
from ojs.push('merged', '["secret"]', 'box', "unique" => '{"keys": ["type"], "on_conflict": "merge"}') \g /dev/null
set local role debounce_q;
select is(concat_ws(' ', id is not null, args, meta, queue), 't',
    'a merged job says only its id to who may not read it')
from ojs.push('merged', '[1]', 'box', "unique" => '{"keys": ["type"], "on_conflict": "merge"}');
select is(ojs.push_job('{"type": "merged", "args": [2], "queue": "box",
    "unique": {"keys": ["type"], "on_conflict": "merge"}}') - 'id', '{"deduplicated": true}', 'as JSON, too');
select throws_ok($$select ojs.push('merged', '[3]', 'open', "unique" => '{"keys": ["type"], "on_conflict": "merge"}')$$,
    '42501', null, 'nor is it taken to a queue where all may read it');
reset role;
select is(args, '["secret", 1, 2]', 'it has what was pushed') from ojs.jobs where type = 'merged';

select * from finish();
rollback;
