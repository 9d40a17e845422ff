-- push_many.sql: partial batches and idempotency keys: BLK-01, BLK-02, BLK-04, DDP-09, MW-03, MW-04. Atomic ones:
-- push.sql.
begin;
select no_plan();
\ir helpers.psql

create function pg_temp.batch(jobs jsonb, key text default null) returns text language sql as
$$ select string_agg(concat_ws(' ', index, status, case when id is null then 'no id' end, error ->> 'code',
    error -> 'details' ->> 'field'), ', ' order by o)
   from ojs.push_many(jobs, atomicity => 'partial', deduplication_key => key)
       with ordinality x (index, id, status, error, o) $$;

-- BLK-01 --------------------------------------------------------------------------------------------------------------

select is(pg_temp.batch('[]'), null, 'BLK-01: no jobs, no results');
select is(pg_temp.batch('[{"type": "t", "args": []}, {"type": "t", "args": []}]'), '0 created, 1 created',
    'BLK-01: a partial batch that is all well');
select is(pg_temp.batch('[{"type": "t", "args": [], "queue": "blk"}, {"type": "T T", "args": []}, 7, {"type": "t", '
    '"args": [], "queue": "blk"}, {"args": []},
    {"type": "t", "args": [], "unique": {"keys": 7}}, {"type": "t", "args": [], "queue": "blk"}]'),
    '0 created, 1 failed no id INVALID_JOB_TYPE type, 2 failed no id INVALID_PAYLOAD jobs, 3 created, 4 failed no id '
    'INVALID_PAYLOAD type, 5 failed no id UNIQUE_KEY_INVALID unique.keys, 6 created',
    'BLK-01: one result per job, in order; a bad one costs no other');
select is((select count(*) from ojs.jobs where queue = 'blk'), 3::bigint, 'BLK-01: the good ones are stored');
select is((select array_agg(seq order by seq) = array_agg(seq order by id) from ojs.jobs where queue = 'blk'), true,
    'BLK-01: in their order');
select is(pg_temp.batch('[7, {"type": "T T", "args": []}]'),
    '0 failed no id INVALID_PAYLOAD jobs, 1 failed no id INVALID_JOB_TYPE type', 'BLK-01: even if all are bad');
select is(error - 'hint',
    '{"code": "INVALID_JOB_TYPE", "message": "type is not a job type: \"T T\"", "details": {"field": "type"}, '
    '"retryable": false}', 'BLK-01 ERR-06: an error has code, message, details'),
    ok(error ->> 'hint' <> '', 'BLK-01 ERR-06: and a hint')
        from ojs.push_many('[{"type": "T T", "args": []}]', atomicity => 'partial');
select is(pg_temp.refusal($$select ojs.push_many('[]', atomicity => 'half')$$), 'OJ100 INVALID_PAYLOAD atomicity',
    'BLK-01: atomic or partial');
select is(pg_temp.refusal($$select ojs.push_many('{}', atomicity => 'partial')$$), 'OJ100 INVALID_PAYLOAD jobs',
    'BLK-01: what is no array is refused whole');
select throws_ok($$select ojs.push_many('[{"type": "t", "args": [], "queue": "atomic"}, 7]', atomicity => 'atomic')$$,
    'OJ100', null, 'BLK-01: atomic is all or none');
select is((select count(*) from ojs.jobs where queue = 'atomic'), 0::bigint, 'BLK-01: so none');

-- What fails only when it is stored.
select ojs.push('t', id => '01920000-0000-7000-8000-000000000b01') is null;
select is(pg_temp.batch('[{"type": "t", "args": [], "id": "01920000-0000-7000-8000-000000000b02"}, {"type": "t", '
    '"args": [], "id": "01920000-0000-7000-8000-000000000b01"},
    {"type": "t", "args": []}, {"type": "t", "args": [], "id": "01920000-0000-7000-8000-000000000b02"}]'),
    '0 created, 1 failed no id DUPLICATE_JOB id, 2 created, 3 failed no id DUPLICATE_JOB id',
        'BLK-01 ENV-04: an id that exists, or comes twice');
select ojs.create_queue('drained') is null, ojs.drain_queue('drained');
select is(pg_temp.batch('[{"type": "t", "args": [], "queue": "drained"}, {"type": "t", "args": []}]'),
    '0 failed no id QUEUE_PAUSED, 1 created', 'BLK-01: a draining queue');
select ojs.create_queue('picky', '{"allowed_job_types": ["a.*"]}') is null;
select is(pg_temp.batch('[{"type": "a.b", "args": [], "queue": "picky"}, {"type": "b.b", "args": [], "queue": '
    '"picky"}]'), '0 created, 1 failed no id PERMISSION_DENIED type',
    'BLK-01 QC-08: a queue that does not take the type');
set local ojs.strict_queues = on;
select is(pg_temp.batch('[{"type": "t", "args": [], "queue": "never-made"}, {"type": "a.b", "args": [], "queue": '
    '"picky"}]'), '0 failed no id NOT_FOUND, 1 created', 'BLK-01 QC-08: a queue that does not exist');
reset ojs.strict_queues;

\set u '"unique": {"keys": ["type", "args"]}'
select is(pg_temp.batch(('[{"type": "blk.u", "args": [1], ' || :'u' || '}, {"type": "blk.u", "args": [1], ' || :'u'
    || '}, {"type": "blk.u", "args": [2], ' || :'u' || '},
    {"type": "blk.u", "args": [2], "unique": {"keys": ["type", "args"], "on_conflict": "ignore"}},
    {"type": "blk.u", "args": [3]}]')::jsonb),
    '0 created, 1 failed no id DUPLICATE_JOB, 2 created, 3 duplicate, 4 created',
        'BLK-01 UNQ-26: unique jobs are decided one after the other');
select is(error #>> '{details,existing_job_id}', (select id::text from ojs.jobs where type = 'blk.u' and args = '[1]'),
    'BLK-01: the error names the job in the way')
from ojs.push_many(('[{"type": "blk.u", "args": [1], ' || :'u' || '}]')::jsonb, atomicity => 'partial');
select is((select count(*) from ojs.jobs where type = 'blk.u'), 3::bigint, 'BLK-01: and each is stored once');
-- A key whose job then fails for another reason is free again.
select is(pg_temp.batch(('[{"type": "blk.v", "args": [1], "queue": "drained", ' || :'u'
    || '}, {"type": "blk.v", "args": [1], ' || :'u' || '}]')::jsonb),
    '0 failed no id QUEUE_PAUSED, 1 created', 'BLK-01: a job that was refused keeps nobody out');
select is(pg_temp.batch('[{"type": "blk.r", "args": [1], "unique": {"on_conflict": "replace"}}, {"type": "X X", '
    '"args": []}, {"type": "blk.r", "args": [1], "unique": {"on_conflict": "replace"}}]'),
    '0 created, 1 failed no id INVALID_JOB_TYPE type, 2 created', 'BLK-01: jobs that replace each other');
select is((select array_agg(state order by seq) from ojs.jobs where type = 'blk.r'), '{cancelled,available}',
    'BLK-01: the later one stays');

select is(pg_temp.batch('[{"type": "t", "args": [], "deduplication_key": "k"}, {"type": "t", "args": []}]'),
    '0 failed no id INVALID_PAYLOAD deduplication_key, 1 created', 'BLK-01: no keys of single jobs');
select is(pg_temp.batch('[{"type": "t", "args": []}, 7]', 'blk-key'), '0 created, 1 failed no id INVALID_PAYLOAD jobs',
    'BLK-01 DDP-08: a key for the batch');
select is(pg_temp.batch('[{"type": "t", "args": []}, 7]', 'blk-key'), '0 created, 1 failed no id INVALID_PAYLOAD jobs',
    'BLK-01: which is free again, since a job failed');

-- Any mixture: what is created is what atomic pushes would have taken, one by one.
select setseed(0.42);
create temp table mixture as select n, case when random() < 0.3 then '7'::jsonb when random() < 0.3
    then jsonb_build_object('type', 't', 'args', '[]'::jsonb, 'queue', 'drained')
    else jsonb_build_object('type', 'mix', 'args', jsonb_build_array(n), 'queue', 'mix') end as job
        from generate_series(0, 499) n;
create temp table mixed as select * from ojs.push_many((select jsonb_agg(job order by n) from mixture),
    atomicity => 'partial');
select is((select count(*) from mixed), 500::bigint, 'BLK-01: 500 jobs, 500 results');
select is((select count(*) from mixed m join mixture x on n = index
    where (status = 'created') <> (job ->> 'type' is not distinct from 'mix')), 0::bigint,
    'BLK-01: the good ones are created, the bad ones not');
select is((select count(*) from mixed join ojs.jobs using (id) where args = jsonb_build_array(index)),
    (select count(*) from mixed where status = 'created'), 'BLK-01: each result is that of its job');
select is((select array_agg((args ->> 0)::int order by seq) from ojs.jobs where queue = 'mix'),
    (select array_agg(n order by n) from mixture where job ->> 'type' = 'mix'), 'BLK-01: in the order of the batch');

-- Hooks
create schema hooks;
create table hooks.log (type text);
create function hooks.judge(job jsonb) returns jsonb language plpgsql as $$
begin
    insert into hooks.log values (job ->> 'type');
    case job ->> 'type' when 'drop.it' then return null;
        when 'refuse.it' then raise 'not today' using errcode = 'P0042'; else return job; end case;
end $$;
select ojs.register_hook('judge', 'enqueue', 'hooks.judge(jsonb)');
select is(pg_temp.batch('[{"type": "ok", "args": []}, {"type": "drop.it", "args": []}, {"type": "refuse.it", "args": '
    '[]}, {"type": "ok", "args": 7}, {"type": "ok", "args": []}]'),
    '0 created, 1 dropped no id, 2 failed no id HOOK_ERROR, 3 failed no id INVALID_ARGS args, 4 created',
        'BLK-01 MW-03 MW-04: hooks drop and refuse single jobs');
select is((select string_agg(type, ' ') from hooks.log), 'ok drop.it ok',
    'BLK-01: what a hook wrote stays, but not for a job that was refused');
select is(error - 'hint', '{"code": "HOOK_ERROR", "message": "not today", "sqlstate": "P0042", "retryable": false}',
    'BLK-01 MW-04: the error is the hook''s own')
from ojs.push_many('[{"type": "refuse.it", "args": []}]', atomicity => 'partial');
select ojs.unregister_hook('judge');

-- BLK-04 --------------------------------------------------------------------------------------------------------------

set local ojs.max_batch_size = 3;
select is(pg_temp.refusal_detail(format('select ojs.push_many(%L, atomicity => %L)', '[1,2,3,4]', a)),
    '{"code": "BATCH_SIZE_EXCEEDED", "retryable": false, "details": {"field": "jobs", "size": 4, "maximum": 3}}',
    'BLK-04: too many jobs are refused whole, with the maximum: ' || a) from unnest('{atomic,partial}'::text[]) a;
select is(pg_temp.batch('[1, 2, {"type": "t", "args": []}]'),
    '0 failed no id INVALID_PAYLOAD jobs, 1 failed no id INVALID_PAYLOAD jobs, 2 created',
    'BLK-04: as many as allowed are not');
reset ojs.max_batch_size;

-- BLK-02 --------------------------------------------------------------------------------------------------------------

create function pg_temp.idem(jobs jsonb, key text, atomicity text default 'atomic', dkey text default null)
    returns jsonb language sql as
$$ select jsonb_agg(to_jsonb(r) order by index) from ojs.push_many(jobs, atomicity => atomicity,
    deduplication_key => dkey, idempotency_key => key) r $$;
select pg_temp.idem('[{"type": "idem", "args": [1]}, {"type": "idem", "args": [2]}]', 'k1') as first \gset
select is(pg_temp.idem('[{"type": "idem", "args": [1]}, {"type": "idem", "args": [2]}]', 'k1'), :'first',
    'BLK-02: the same request under the same key has the same answer');
select is(pg_temp.idem('[{"args": [1], "type": "idem"}, {"type": "idem", "args": [2]}]', 'k1'), :'first',
    'BLK-02: members in another order are the same request');
select is((select count(*) from ojs.jobs where type = 'idem'), 2::bigint, 'BLK-02: and is carried out once');
select is(pg_temp.refusal($$select pg_temp.idem('[{"type": "idem", "args": [1]}]', 'k1')$$),
    'OJ105 INVALID_STATE_TRANSITION idempotency_key', 'BLK-02: another request under the same key is refused');
select is(pg_temp.refusal($$select pg_temp.idem('[{"type": "idem", "args": [1]}, {"type": "idem", "args": [2]}]', 'k1',
    'partial')$$), 'OJ105 INVALID_STATE_TRANSITION idempotency_key', 'BLK-02: another atomicity is another request');
select is(pg_temp.refusal($$select pg_temp.idem('[{"type": "idem", "args": [1]}, {"type": "idem", "args": [2]}]', 'k1',
    'atomic', 'd')$$), 'OJ105 INVALID_STATE_TRANSITION idempotency_key', 'BLK-02: so is another deduplication key');
select isnt(pg_temp.idem('[{"type": "idem", "args": [1]}, {"type": "idem", "args": [2]}]', 'k2'), :'first',
    'BLK-02: another key is another request');
select pg_temp.idem('[7, {"type": "idem.p", "args": []}]', 'k3', 'partial') as first \gset
select is(pg_temp.idem('[7, {"type": "idem.p", "args": []}]', 'k3', 'partial'), :'first',
    'BLK-02: errors are part of the answer');
select is(pg_temp.refusal($$select pg_temp.idem('[7]', 'k4')$$), 'OJ100 INVALID_PAYLOAD jobs',
    'BLK-02: a request that failed as a whole');
select is(jsonb_array_length(pg_temp.idem('[{"type": "t", "args": []}]', 'k4')), 1, 'BLK-02: leaves its key free');
select is(pg_temp.idem('[]', 'k5'), null, 'BLK-02: an empty batch'),
    is(pg_temp.idem('[]', 'k5'), null, 'BLK-02: again');
select is(pg_temp.refusal(format('select pg_temp.idem(%L, %L)', '[]', key)), refused,
    'BLK-02: the length of a key: ' || length(key)) from (values
    ('', 'OJ100 INVALID_PAYLOAD idempotency_key'), (repeat('ä', 256), 'accepted'),
        (repeat('ä', 257), 'OJ100 INVALID_PAYLOAD idempotency_key')) k (key, refused);
select is(jsonb_array_length(pg_temp.idem('[{"type": "t", "args": []}]', 'same', 'atomic', 'same')), 1,
    'DDP-09: a deduplication key of the same text is another thing');
select pg_temp.clock('23 hours 59 minutes');
select ojs.tick() is null;
select is(pg_temp.idem('[7, {"type": "idem.p", "args": []}]', 'k3', 'partial'), :'first',
    'BLK-02: a key is kept for a day');
select pg_temp.clock('24 hours 1 minute');
select isnt(pg_temp.idem('[7, {"type": "idem.p", "args": []}]', 'k3', 'partial'), :'first',
    'BLK-02: after that a request is new');
select ok((ojs.tick() ->> 'keys_removed')::int > 3, 'BLK-02: the tick removes old keys');
select is((select string_agg(key, ' ') from ojs_store.idempotency), 'k3', 'BLK-02: and leaves those of today');

-- Rows that are stored out of line ------------------------------------------------------------------------------------

-- Text that does not become short enough by compression.
create function pg_temp.noise(n int) returns text language sql as $$
    select left(string_agg(encode(sha512(i::text::bytea), 'base64'), ''), n) from generate_series(0, n / 88) i $$;
create temp table large as
select r.id, r.index, n from unnest('{0,1000,2500,3000,9000,70000,1}'::int[]) with ordinality as a(n, i),
    ojs.push_many((select jsonb_agg(jsonb_build_object('type', 'large', 'queue', 'large', 'args',
        jsonb_build_array(pg_temp.noise(n))) order by i)
        from unnest('{0,1000,2500,3000,9000,70000,1}'::int[]) with ordinality as a(n, i))) r where r.index = i - 1;
select is((select string_agg(n::text, ' ' order by n) from large
    where ojs.info(id) -> 'args' is distinct from jsonb_build_array(pg_temp.noise(n))), null,
    'OP-03: jobs of a batch are found by their ids, however large');
set local enable_seqscan = off;
select is((select count(*) from large where not exists (select from ojs_store.job where job.id = large.id)), 0::bigint,
    'OP-03: by SQL too');
reset enable_seqscan;
select is(left(pg_temp.refusal(format($$select ojs.push_many(jsonb_build_array(jsonb_build_object('type', 't', 'args',
    '[]'::jsonb, 'id', %L)))$$, id)), 5), 'OJ301',
    'ENV-04: and an id counts: ' || n) from large where n = 70000;
select is((select count(*) from ojs.claim('large', 'w', 10)), 7::bigint, 'OP-03: they are claimed');
select is(done, 7, 'OP-14: and finished with large results')
    from ojs.ack_many('w', array(select id from large order by index),
    array(select jsonb_build_array(pg_temp.noise(n)) from large order by index));
select is((select string_agg(n::text, ' ' order by n) from large
    where ojs.info(id) -> 'result' is distinct from jsonb_build_array(pg_temp.noise(n))
    or ojs.info(id) ->> 'state' <> 'completed'), null, 'OP-14: which are found, however large');

select * from finish();
rollback;
