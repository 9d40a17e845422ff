-- push.sql: producing jobs: OP-01 to OP-04, ENV-02, ENV-04. What a job may be: envelope.sql.
begin;
select no_plan();
\ir helpers.psql

-- ojs.push -----------------------------------------------------------------------------------------------------------

select is(p.state, 'available', 'SM-02: a plain job is available'),
    is(p.enqueued_at, p.created_at, 'SM-02 R-27: since it was pushed'),
    is(array[p.attempt, p.deliveries], '{0,0}', 'R-15: with no attempt and no delivery') from ojs.push('test.job') p;
select is(p.state, 'available', 'SM-02: a time in the past is immediate')
from ojs.push('test.job', scheduled_at => '2020-01-01Z') p;
select is(p.state, 'scheduled', 'SM-01: a time to come schedules'),
    is(p.enqueued_at, null, 'R-27: what is scheduled is not in its queue')
        from ojs.push('test.job', delay => '1 minute') p;
select is(p.state, 'pending', 'SM-03: pending'),
    is(p.enqueued_at, null, 'R-27: what is pending is not in its queue')
from ojs.push('test.job', pending => true) p;
select is(p.scheduled_at, p.created_at + interval '90 seconds', 'SM-01: a delay counts from now')
from ojs.push('test.job', delay => '90 seconds') p;

select is(j - array['enqueued_at'], ojs.info((j ->> 'id')::uuid) - array['enqueued_at'] || '{"deduplicated": false}',
    'OP-02: the reply is what ojs.info shows afterwards: ' || (j ->> 'type'))
from (select ojs.push_job(job) as j from (values
    ('{"type": "plain", "args": [1]}'::jsonb),
    ('{"type": "scheduled", "args": [], "options": {"delay_until": "+PT1H"}}'),
    ('{"type": "pending", "args": [], "pending": true}'),
    ('{"type": "full", "args": [{"a": [null, 1.50, "x"]}], "queue": "full", "priority": 7, "meta": {"k": "v"}, "tags": '
     '["a"],
       "timeout": 5, "expires_at": "+PT1H", "retry": {"max_attempts": 9}, "x_own": {"b": 1}}')) jobs (job)) pushed;

-- ENV-02 -------------------------------------------------------------------------------------------------------------

create temp table burst as
select p.id, p.seq, n from generate_series(1, 2000) n, ojs.push('test.job', to_jsonb(array[n]), queue => 'burst') p;
select is((select count(*) from burst
    where id::text !~ '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$'),
    0::bigint, 'ENV-02: ids are UUIDv7');
select is((select count(distinct id) from burst), 2000::bigint, 'ENV-02: ids are unique');
select is((select count(*) from (select id <= lag(id) over (order by n) as falls from burst) x where falls), 0::bigint,
    'ENV-02: ids grow within a session, inside a millisecond too');
select is((select count(*) from (select seq <= lag(seq) over (order by n) as falls from burst) x where falls),
    0::bigint,
    'Q-12: seq grows strictly');
select ok(abs(extract(epoch from clock_timestamp()) * 1000 - ('x' || left(replace(id::text, '-', ''),
    12))::bit(48)::bigint) < 60000,
    'ENV-02: an id begins with the time') from burst limit 1;

-- ENV-04 -------------------------------------------------------------------------------------------------------------

\set mine '01920000-0000-7000-8000-00000000000a'
select is(id, :'mine', 'ENV-04: a caller may bring the id') from ojs.push('test.job', '["first"]', id => :'mine');
-- (Found by the history checker: the hot row did not know where the envelope was, and each claim made the table
-- longer.)
select is((select job_tid from ojs_store.ready where job_id = :'mine'),
    (select ctid from ojs_store.job where id = :'mine'),
    'ENV-04: the hot row of a job with an id of the caller''s own says where its envelope is');
select is(pg_temp.refusal($$ select ojs.push('other.job', id => '01920000-0000-7000-8000-00000000000a') $$),
    'OJ301 DUPLICATE_JOB id', 'ENV-04 R-71: the same id again is refused');
select is(pg_temp.refusal($$ select ojs.push('test.job', '["first"]', id => '01920000-0000-7000-8000-00000000000a') $$),
    'OJ301 DUPLICATE_JOB id', 'ENV-04 R-71: even if all else is equal');
select is(pg_temp.refusal_detail($$ select ojs.push('other.job', id => '01920000-0000-7000-8000-00000000000a') $$)
    -> 'details' ->> 'existing_job_id', :'mine', 'ENV-04: the refusal names the job that is there');
select is(pg_temp.refusal($$
    select ojs.push_job('{"id": "01920000-0000-7000-8000-00000000000a", "type": "t", "args": []}') $$),
    'OJ301 DUPLICATE_JOB id', 'ENV-04: as an envelope');
select is(pg_temp.refusal_detail($$ select ojs.push_many('[{"type": "t", "args": []},
    {"id": "01920000-0000-7000-8000-00000000000a", "type": "t", "args": []}]') $$) #>> '{details,index}', '1',
        'ENV-04 OP-04: in a batch');
select is(pg_temp.refusal($$
    select ojs.push_many('[{"id": "01920000-0000-7000-8000-00000000000b", "type": "t", "args": []},
    {"id": "01920000-0000-7000-8000-00000000000b", "type": "t", "args": []}]') $$), 'OJ301 DUPLICATE_JOB id',
        'ENV-04: twice in one batch');
select is(type || args, 'test.job["first"]', 'ENV-04: the first job is as it was') from ojs.jobs where id = :'mine';
select ojs.cancel(:'mine') is null as cancelled \gset
select is(pg_temp.refusal($$ select ojs.push('test.job', id => '01920000-0000-7000-8000-00000000000a') $$),
    'OJ301 DUPLICATE_JOB id', 'ENV-04: after the first job has ended, too');

-- ojs.push_many -----------------------------------------------------------------------------------------------------

create temp table batch as select * from ojs.push_many((
    select jsonb_agg(jsonb_build_object('type', 'test.job', 'args', jsonb_build_array(n), 'queue', 'batch') order by n)
    from generate_series(0, 99) n)) with ordinality;
select is((select count(distinct id) from batch), 100::bigint, 'OP-03: a hundred jobs, a hundred ids');
select is((select array_agg(index order by ordinality) from batch), (select array_agg(n) from generate_series(0, 99) n),
    'OP-03: results in input order');
select is((select count(*) from batch join ojs.jobs using (id) where args = jsonb_build_array(index)), 100::bigint,
    'OP-03: each result is that of its job');
select is((select array_agg(args ->> 0 order by seq) from ojs.jobs where queue = 'batch'),
    (select array_agg(n::text) from generate_series(0, 99) n), 'OP-06: seq follows the order of the batch');
select is((select array_agg(distinct status) from batch), '{created}', 'OP-03: status created');
select is((select count(error) from batch), 0::bigint, 'OP-03: no errors');

select is((select count(*)
    from ojs.push_many((select jsonb_agg(jsonb_build_object('type', 'test.job', 'args', '[]'::jsonb,
    'queue', 'large')) from generate_series(1, 10000)))), 10000::bigint, 'OP-03: ten thousand jobs in one call');
select matches(pg_temp.refusal($$
    select ojs.push_many((select jsonb_agg(jsonb_build_object('type', 'test.job', 'args', '[]'::jsonb,
    'queue', 'larger')) from generate_series(1, 10001))) $$), '^OJ118 BATCH_SIZE_EXCEEDED',
        'BLK-04: one more is refused');
set local ojs.max_batch_size = 2;
select is(pg_temp.refusal_detail($$ select ojs.push_many('[{"type": "t", "args": []}, {"type": "t", "args": []},
    {"type": "t", "args": []}]') $$) #> '{details}' ->> 'maximum', '2',
        'BLK-04: the refusal says how many are allowed');
set local ojs.max_batch_size = 10000;

select is((select count(*) from ojs.push_many('[]')), 0::bigint, 'OP-03: an empty batch pushes nothing');
select is(pg_temp.refusal('select ojs.push_many(null)'), 'OJ100 INVALID_PAYLOAD jobs', 'OP-04: no batch');
select is(pg_temp.refusal($$ select ojs.push_many('{"type": "t", "args": []}') $$), 'OJ100 INVALID_PAYLOAD jobs',
    'OP-04: not an array');
select is(pg_temp.refusal($$ select ojs.push_many('"x"') $$), 'OJ100 INVALID_PAYLOAD jobs', 'OP-04: a scalar');
select is(pg_temp.refusal($$ select ojs.push_many('[[]]') $$), 'OJ100 INVALID_PAYLOAD jobs',
    'OP-04: an array in the array');
select is(pg_temp.refusal($$ select ojs.push_many('[null]') $$), 'OJ100 INVALID_PAYLOAD jobs',
    'OP-04: a null in the array');

create temp table before as select count(*) as jobs, (select count(*) from ojs_store.ready) as ready from ojs_store.job;
select is(d #>> '{details,index}', '1', 'OP-04: one bad job, and the error names its place'),
    is(d #>> '{details,field}', 'priority', 'OP-04: and its field'),
    is(d ->> 'code', 'INVALID_PAYLOAD', 'OP-04: and its code')
from pg_temp.refusal_detail($$ select ojs.push_many('[{"type": "t", "args": [], "queue": "never-made"},
    {"type": "t", "args": [], "priority": 1000}, {"type": "Bad Type", "args": []}]') $$) d;
select throws_like($$ select ojs.push_many('[{"type": "t", "args": []}, {"args": []}]') $$, 'jobs[1]: %type%',
    'OP-04: the message does, too');
select is(d #>> '{details,index}', null, 'OP-04: an error after a batch''s speaks of no place')
from pg_temp.refusal_detail($$ select ojs.push('Bad Type') $$) d;
select is((select count(*) from ojs_store.job), jobs, 'OP-04: nothing was stored') from before;
select is((select count(*) from ojs_store.ready), ready, 'OP-04: nothing is ready') from before;
select is((select count(*) from ojs.queues where name = 'never-made'), 0::bigint, 'OP-04: no queue was made');

-- Queues ------------------------------------------------------------------------------------------------------------

select is(state, 'active', 'R-31: a first push makes the queue') from ojs.queues where name = 'batch';
set local ojs.strict_queues = on;
select is(pg_temp.refusal($$ select ojs.push('test.job', queue => 'unheard-of') $$), 'OJ300 NOT_FOUND',
    'R-31: not where queues are strict');
select is(pg_temp.refusal($$ select ojs.push('test.job', queue => 'batch') $$), 'accepted',
    'R-31: a queue that is there takes jobs then');
select is(pg_temp.refusal($$ select ojs.push('test.job') $$), 'accepted', 'R-31: the queue default always exists');
set local ojs.strict_queues = off;
select pg_temp.set_queue('halted', 'paused'), pg_temp.set_queue('draining', 'draining'),
    pg_temp.set_queue('log', 'active', '{"type": "log"}') \g /dev/null
select is(pg_temp.refusal($$ select ojs.push('test.job', queue => 'halted') $$), 'accepted',
    'R-32: a paused queue takes jobs');
select is(pg_temp.refusal($$ select ojs.push('test.job', queue => 'draining') $$), 'OJ304 QUEUE_PAUSED retryable',
    'R-32: a draining one does not');
select is(pg_temp.refusal_detail($$ select ojs.push('test.job', queue => 'draining') $$) #>> '{details,queue}',
    'draining', 'R-32: and says which');
select is(pg_temp.refusal($$ select ojs.push('test.job', queue => 'log') $$), 'accepted', 'Q-03: a log takes jobs');

-- Names that try to be SQL ------------------------------------------------------------------------------------------

select is(left(pg_temp.refusal(format('select ojs.push(%L)', evil)), 5), 'OJ101',
    'PGX-11: a hostile type is refused: ' || evil),
    is(left(pg_temp.refusal(format('select ojs.push(%L, queue => %L)', 'test.job', evil)), 5), 'OJ102',
        'PGX-11: a hostile queue is refused: ' || evil)
from unnest(array['x''; drop schema ojs cascade; --', 'a"b', 'a;b', '$1', 'a\b']) evil;
select is(args, jsonb_build_array(evil), 'PGX-11: args are data: ' || evil)
from unnest(array['''; drop schema ojs cascade; --', '$$ || $$', '\''', E'a\nb']) evil,
    ojs.push('test.job', to_jsonb(array[evil]));

-- PGX-10: by a prepared statement with plain parameters.
prepare push_it (text, jsonb, text, interval, text[]) as select id
    from ojs.push($1, $2, queue => $3, delay => $4, tags => $5);
select is((select count(*) from ojs.jobs where queue = 'prepared'), 0::bigint, 'PGX-10: before');
execute push_it ('test.job', '[1]', 'prepared', '1 hour', '{a,b}') \gset prepared_
execute push_it ('test.job', '[2]', 'prepared', null, null) \gset prepared_
select is((select string_agg(state || args || coalesce(tags::text, '-'), ' ' order by seq) from ojs.jobs
    where queue = 'prepared'),
    'scheduled[1]{a,b} available[2]-', 'PGX-10: a prepared push');

-- What contradicts, and what would mean nothing -----------------------------------------------------------------------

select is(pg_temp.refusal(format('select ojs.push(%s, options => %L)', p, o)), 'OJ100 INVALID_PAYLOAD ' || field,
    format('%s and %s contradict each other (R-10)', p, o))
from (values
    ('''a.b''', '{"type": "a.c"}', 'type'), ('''a.b'', ''[1]''', '{"args": [2]}', 'args'),
        ('''a.b'', queue => ''x1''', '{"queue": "x2"}', 'queue'),
    ('''a.b'', priority => 5', '{"priority": 6}', 'priority'),
        ('''a.b'', scheduled_at => ''2099-01-01Z''', '{"scheduled_at": "2099-01-02T00:00:00Z"}', 'scheduled_at'),
    ('''a.b'', delay => ''1 h''', '{"delay_until": "+PT2H"}', 'scheduled_at'),
        ('''a.b'', delay => ''1 h''', '{"delay": "PT2H"}', 'delay'),
    ('''a.b'', scheduled_at => ''2099-01-01Z''', '{"delay": "PT2H"}', 'delay'),
        ('''a.b''', '{"delay": "PT2H", "scheduled_at": "+PT1H"}', 'delay'),
    ('''a.b'', expires_at => ''2099-01-01Z''', '{"expires_at": "2099-01-02T00:00:00Z"}', 'expires_at'),
    ('''a.b'', retry => ''{"max_attempts": 2}''', '{"retry": {"max_attempts": 3}}', 'retry'),
        ('''a.b'', retry => ''{"max_attempts": 2}''', '{"max_attempts": 3}', 'max_attempts'),
    ('''a.b''', '{"max_attempts": 3, "retry": {"max_attempts": 4}}', 'max_attempts'),
        ('''a.b'', "unique" => ''{}''', '{"unique": {"keys": ["type"]}}', 'unique'),
    ('''a.b'', meta => ''{"a": 1}''', '{"meta": {"b": 1}}', 'meta'),
        ('''a.b'', meta => ''{"a": 1}''', '{"metadata": {"a": 2}}', 'meta.a'),
    ('''a.b'', timeout => ''1 min''', '{"timeout_ms": 1}', 'timeout'),
        ('''a.b'', deduplication_key => ''x''', '{"deduplicationKey": "y"}', 'deduplication_key'),
    ('''a.b'', deduplication_key => ''x'', deduplication_ttl => ''1 h''', '{"deduplication_ttl": "PT2H"}',
        'deduplication_ttl'),
    ('''a.b'', id => ''0190b5a8-0000-7000-8000-000000000001''', '{"id": "0190b5a8-0000-7000-8000-000000000002"}', 'id'),
    ('''a.b'', pending => true', '{"pending": false}', 'pending'),
        ('''a.b'', tags => ''{x}''', '{"tags": ["y"]}', 'tags')) as v(p, o, field);
select is(pg_temp.refusal(format('select ojs.push(%s, options => %L)', p, o)), 'accepted',
    format('%s and %s agree', p, o))
from (values
    ('''a.b''', '{"type": "a.b"}'), ('''a.b'', ''[1]''', '{"args": [1.0]}'),
        ('''a.b'', queue => ''x1''', '{"queue": "x1"}'), ('''a.b''', '{"queue": "x2", "priority": "HIGH"}'),
    ('''a.b'', retry => ''{"max_attempts": 2}''', '{"max_attempts": 2}'),
        ('''a.b'', timeout => ''1 min''', '{"timeout": 60}'),
    ('''a.b'', retry => ''null'', meta => ''null''', '{"retry": {}, "meta": {"a": 1}}')) as v(p, o);
select is((select meta from ojs.push('a.b', meta => '{"a": 1}', options => '{"metadata": {"b": 3}}')),
    '{"a": 1, "b": 3}', 'metadata adds to the parameter meta (R-10)');
select is((select args || to_jsonb(queue) from ojs.push('a.b', options => '{"args": [7], "queue": "o"}')), '[7, "o"]',
    'a parameter with its default says nothing');

select is((select (state, max_attempts, coalesce(extra ? 'delay', false),
    scheduled_at - clock_timestamp() between '299 s' and '300 s')::text
    from ojs.push('a.b', options => '{"delay": "PT5M", "max_attempts": 7}')), '(scheduled,7,f,t)',
        'delay and max_attempts in options (R-84)');
select is((ojs.push_job('{"type": "a.b", "args": [], "delay_ms": 60000, "max_attempts": 7, "retry": {"jitter": '
    'false}}') -> 'retry') @> '{"max_attempts": 7, "jitter": false}', true,
    'and in an envelope, beside a retry policy');
select id as later from ojs.push_many('[{"type": "a.b", "args": [], "delay": 60, "max_attempts": 2}]') \gset
select is((state, max_attempts)::text, '(scheduled,2)', 'and in a batch') from ojs.jobs where id = :'later';
select is(pg_temp.refusal(format($$ select ojs.push_job('{"type": "a.b", "args": []}'::jsonb || %L) $$, v)),
    'OJ100 INVALID_PAYLOAD ' || field, 'refused: ' || v)
from (values ('{"delay": "5 minutes"}', 'delay'), ('{"delay": "-PT5M"}', 'delay'), ('{"delay": -1}', 'delay'),
    ('{"delay": true}', 'delay'), ('{"delay": "P10000Y"}', 'delay'),
    ('{"delay": 1e400}', 'delay'), ('{"scheduled_at": "+P10000Y"}', 'scheduled_at'),
        ('{"deduplication_ttl": 5}', 'deduplication_ttl'),
        ('{"deduplication_ttl_ms": 5}', 'deduplication_ttl')) as v(v, field);
select is(pg_temp.refusal($$ select ojs.push('a.b', delay => '10000 years') $$), 'OJ100 INVALID_PAYLOAD delay',
    'no delay of more than 100 years');
select is(pg_temp.refusal($$ select ojs.push('a.b', delay => '36525 days') $$), 'accepted', 'one of 100 years is well');
select is(pg_temp.refusal($$ select ojs.push_many('[]', deduplication_ttl => '1 h') $$),
    'OJ100 INVALID_PAYLOAD deduplication_ttl', 'a time for no key, of a batch');
select is(pg_temp.refusal(format($$ select ojs.push('a.b', retry => jsonb_build_object(%L, 5)) $$, name)),
    'OJ106 INVALID_RETRY_POLICY retry.' || name, 'nearly a name of a retry policy: ' || name)
from unnest('{maxAttempts,Max_Attempts,max_atempts,max_attemptss,max_attempt,maxattempts,max-attempts,'
    'initialInterval,jiter,startegy,on_exhaustio}'::text[]) name where name <> 'startegy';
select is(pg_temp.refusal(format($$ select ojs.push('a.b', retry => jsonb_build_object(%L, 5)) $$, name)), 'accepted',
    'unknown to a retry policy, and kept (R-11): ' || name)
from unnest('{x,max,retry_if,"",interval}'::text[]) name;
select is(pg_temp.refusal($$ select ojs.create_queue('nearly', '{"default_retry": {"maxAttempts": 5}}') $$),
    'OJ106 INVALID_RETRY_POLICY retry.maxAttempts', 'a queue''s policy likewise');
select is(pg_temp.refusal($$ select ojs.push('a.b', '{}') $$), 'OJ103 INVALID_ARGS args',
    'an empty bare object is what drivers make of an empty list');
select is((select args from ojs.push('a.b', '[{}]')), '[{}]', 'who means an empty object says so');
select is((select args from ojs.push('a.b', '{"x": 1}')), '[{"x": 1}]', 'another bare object is wrapped (R-01)');

-- Ids of their own take few locks, however many there are.
select count(*) from ojs.push_many((select jsonb_agg(jsonb_build_object('type', 'a.b', 'args', '[]'::jsonb, 'id',
    overlay(overlay(gen_random_uuid()::text placing '7' from 15 for 1) placing '8' from 20 for 1)))
        from generate_series(1, 900)), atomicity => 'partial') \g /dev/null
select is(count(*) between 1 and 64, true, 'a batch with 900 ids holds 64 locks at most') from pg_locks
    where pid = pg_backend_pid() and locktype = 'object' and mode = 'ExclusiveLock';

select * from finish();
rollback;
