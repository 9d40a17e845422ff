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
    is(p.enqueued_at, null, 'R-27: what is scheduled is not in its queue') from ojs.push('test.job', delay => '1 minute') p;
select is(p.state, 'pending', 'SM-03: pending'), is(p.enqueued_at, null, 'R-27: what is pending is not in its queue')
from ojs.push('test.job', pending => true) p;
select is(p.scheduled_at, p.created_at + interval '90 seconds', 'SM-01: a delay counts from now')
from ojs.push('test.job', delay => '90 seconds') p;

select is(j - array['enqueued_at'], ojs.info((j ->> 'id')::uuid) - array['enqueued_at'] || '{"deduplicated": false}',
    'OP-02: the reply is what ojs.info shows afterwards: ' || (j ->> 'type'))
from (select ojs.push_job(job) as j from (values
    ('{"type": "plain", "args": [1]}'::jsonb),
    ('{"type": "scheduled", "args": [], "options": {"delay_until": "+PT1H"}}'),
    ('{"type": "pending", "args": [], "pending": true}'),
    ('{"type": "full", "args": [{"a": [null, 1.50, "x"]}], "queue": "full", "priority": 7, "meta": {"k": "v"}, "tags": ["a"],
       "timeout": 5, "expires_at": "+PT1H", "retry": {"max_attempts": 9}, "x_own": {"b": 1}}')) jobs (job)) pushed;

-- ENV-02 -------------------------------------------------------------------------------------------------------------

create temp table burst as
select p.id, p.seq, n from generate_series(1, 2000) n, ojs.push('test.job', to_jsonb(array[n]), queue => 'burst') p;
select is((select count(*) from burst where id::text !~ '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$'),
    0::bigint, 'ENV-02: ids are UUIDv7');
select is((select count(distinct id) from burst), 2000::bigint, 'ENV-02: ids are unique');
select is((select count(*) from (select id <= lag(id) over (order by n) as falls from burst) x where falls), 0::bigint,
    'ENV-02: ids grow within a session, inside a millisecond too');
select is((select count(*) from (select seq <= lag(seq) over (order by n) as falls from burst) x where falls), 0::bigint,
    'Q-12: seq grows strictly');
select ok(abs(extract(epoch from clock_timestamp()) * 1000 - ('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint) < 60000,
    'ENV-02: an id begins with the time') from burst limit 1;

-- ENV-04 -------------------------------------------------------------------------------------------------------------

\set mine '01920000-0000-7000-8000-00000000000a'
select is(id, :'mine', 'ENV-04: a caller may bring the id') from ojs.push('test.job', '["first"]', id => :'mine');
-- (Found by the history checker: the hot row did not know where the envelope was, and each claim made the table longer.)
select is((select job_tid from ojs_store.ready where job_id = :'mine'), (select ctid from ojs_store.job where id = :'mine'),
    'ENV-04: the hot row of a job with an id of the caller''s own says where its envelope is');
select is(pg_temp.refusal($$ select ojs.push('other.job', id => '01920000-0000-7000-8000-00000000000a') $$),
    'OJ301 DUPLICATE_JOB id', 'ENV-04 R-71: the same id again is refused');
select is(pg_temp.refusal($$ select ojs.push('test.job', '["first"]', id => '01920000-0000-7000-8000-00000000000a') $$),
    'OJ301 DUPLICATE_JOB id', 'ENV-04 R-71: even if all else is equal');
select is(pg_temp.refusal_detail($$ select ojs.push('other.job', id => '01920000-0000-7000-8000-00000000000a') $$)
    -> 'details' ->> 'existing_job_id', :'mine', 'ENV-04: the refusal names the job that is there');
select is(pg_temp.refusal($$ select ojs.push_job('{"id": "01920000-0000-7000-8000-00000000000a", "type": "t", "args": []}') $$),
    'OJ301 DUPLICATE_JOB id', 'ENV-04: as an envelope');
select is(pg_temp.refusal_detail($$ select ojs.push_many('[{"type": "t", "args": []},
    {"id": "01920000-0000-7000-8000-00000000000a", "type": "t", "args": []}]') $$) #>> '{details,index}', '1', 'ENV-04 OP-04: in a batch');
select is(pg_temp.refusal($$ select ojs.push_many('[{"id": "01920000-0000-7000-8000-00000000000b", "type": "t", "args": []},
    {"id": "01920000-0000-7000-8000-00000000000b", "type": "t", "args": []}]') $$), 'OJ301 DUPLICATE_JOB id', 'ENV-04: twice in one batch');
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

select is((select count(*) from ojs.push_many((select jsonb_agg(jsonb_build_object('type', 'test.job', 'args', '[]'::jsonb,
    'queue', 'large')) from generate_series(1, 10000)))), 10000::bigint, 'OP-03: ten thousand jobs in one call');
select matches(pg_temp.refusal($$ select ojs.push_many((select jsonb_agg(jsonb_build_object('type', 'test.job', 'args', '[]'::jsonb,
    'queue', 'larger')) from generate_series(1, 10001))) $$), '^OJ118 BATCH_SIZE_EXCEEDED', 'BLK-04: one more is refused');
set local ojs.max_batch_size = 2;
select is(pg_temp.refusal_detail($$ select ojs.push_many('[{"type": "t", "args": []}, {"type": "t", "args": []},
    {"type": "t", "args": []}]') $$) #> '{details}' ->> 'maximum', '2', 'BLK-04: the refusal says how many are allowed');
set local ojs.max_batch_size = 10000;

select is((select count(*) from ojs.push_many('[]')), 0::bigint, 'OP-03: an empty batch pushes nothing');
select is(pg_temp.refusal('select ojs.push_many(null)'), 'OJ100 INVALID_PAYLOAD jobs', 'OP-04: no batch');
select is(pg_temp.refusal($$ select ojs.push_many('{"type": "t", "args": []}') $$), 'OJ100 INVALID_PAYLOAD jobs', 'OP-04: not an array');
select is(pg_temp.refusal($$ select ojs.push_many('"x"') $$), 'OJ100 INVALID_PAYLOAD jobs', 'OP-04: a scalar');
select is(pg_temp.refusal($$ select ojs.push_many('[[]]') $$), 'OJ100 INVALID_PAYLOAD jobs', 'OP-04: an array in the array');
select is(pg_temp.refusal($$ select ojs.push_many('[null]') $$), 'OJ100 INVALID_PAYLOAD jobs', 'OP-04: a null in the array');

create temp table before as select count(*) as jobs, (select count(*) from ojs_store.ready) as ready from ojs_store.job;
select is(d #>> '{details,index}', '1', 'OP-04: one bad job, and the error names its place'),
    is(d #>> '{details,field}', 'priority', 'OP-04: and its field'),
    is(d ->> 'code', 'INVALID_PAYLOAD', 'OP-04: and its code')
from pg_temp.refusal_detail($$ select ojs.push_many('[{"type": "t", "args": [], "queue": "never-made"},
    {"type": "t", "args": [], "priority": 1000}, {"type": "Bad Type", "args": []}]') $$) d;
select throws_like($$ select ojs.push_many('[{"type": "t", "args": []}, {"args": []}]') $$, 'jobs[1]: %type%', 'OP-04: the message does, too');
select is(d #>> '{details,index}', null, 'OP-04: an error after a batch''s speaks of no place')
from pg_temp.refusal_detail($$ select ojs.push('Bad Type') $$) d;
select is((select count(*) from ojs_store.job), jobs, 'OP-04: nothing was stored') from before;
select is((select count(*) from ojs_store.ready), ready, 'OP-04: nothing is ready') from before;
select is((select count(*) from ojs.queues where name = 'never-made'), 0::bigint, 'OP-04: no queue was made');

-- Queues ------------------------------------------------------------------------------------------------------------

select is(state, 'active', 'R-31: a first push makes the queue') from ojs.queues where name = 'batch';
set local ojs.strict_queues = on;
select is(pg_temp.refusal($$ select ojs.push('test.job', queue => 'unheard-of') $$), 'OJ300 NOT_FOUND', 'R-31: not where queues are strict');
select is(pg_temp.refusal($$ select ojs.push('test.job', queue => 'batch') $$), 'accepted', 'R-31: a queue that is there takes jobs then');
select is(pg_temp.refusal($$ select ojs.push('test.job') $$), 'accepted', 'R-31: the queue default always exists');
set local ojs.strict_queues = off;
select pg_temp.set_queue('halted', 'paused'), pg_temp.set_queue('draining', 'draining'), pg_temp.set_queue('log', 'active', '{"type": "log"}') \g /dev/null
select is(pg_temp.refusal($$ select ojs.push('test.job', queue => 'halted') $$), 'accepted', 'R-32: a paused queue takes jobs');
select is(pg_temp.refusal($$ select ojs.push('test.job', queue => 'draining') $$), 'OJ304 QUEUE_PAUSED retryable', 'R-32: a draining one does not');
select is(pg_temp.refusal_detail($$ select ojs.push('test.job', queue => 'draining') $$) #>> '{details,queue}', 'draining', 'R-32: and says which');
select is(pg_temp.refusal($$ select ojs.push('test.job', queue => 'log') $$), 'accepted', 'Q-03: a log takes jobs');

-- Names that try to be SQL ------------------------------------------------------------------------------------------

select is(left(pg_temp.refusal(format('select ojs.push(%L)', evil)), 5), 'OJ101', 'PGX-11: a hostile type is refused: ' || evil),
    is(left(pg_temp.refusal(format('select ojs.push(%L, queue => %L)', 'test.job', evil)), 5), 'OJ102', 'PGX-11: a hostile queue is refused: ' || evil)
from unnest(array['x''; drop schema ojs cascade; --', 'a"b', 'a;b', '$1', 'a\b']) evil;
select is(args, jsonb_build_array(evil), 'PGX-11: args are data: ' || evil)
from unnest(array['''; drop schema ojs cascade; --', '$$ || $$', '\''', E'a\nb']) evil, ojs.push('test.job', to_jsonb(array[evil]));

-- PGX-10: by a prepared statement with plain parameters.
prepare push_it (text, jsonb, text, interval, text[]) as select id from ojs.push($1, $2, queue => $3, delay => $4, tags => $5);
select is((select count(*) from ojs.jobs where queue = 'prepared'), 0::bigint, 'PGX-10: before');
execute push_it ('test.job', '[1]', 'prepared', '1 hour', '{a,b}') \gset prepared_
execute push_it ('test.job', '[2]', 'prepared', null, null) \gset prepared_
select is((select string_agg(state || args || coalesce(tags::text, '-'), ' ' order by seq) from ojs.jobs where queue = 'prepared'),
    'scheduled[1]{a,b} available[2]-', 'PGX-10: a prepared push');

select * from finish();
rollback;
