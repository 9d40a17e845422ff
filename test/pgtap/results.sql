-- results.sql: results of jobs, and what is done once: RES-01 to RES-03, DLV-07.
-- Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();
\ir helpers.psql

select id as a, pg_temp.pushed('res') as b from ojs.push('t', queue => 'res') \gset
select ojs.ack(id, '{"x": 1}') is null as done from ojs.claim('res', 'w') \gset
select is((select string_agg(concat_ws('/', id, state, result), ' ')
    from ojs.results(array[:'b', :'a', '01a1fe98-d88c-7353-99b6-b56eba94d8eb']::uuid[])),
    concat(:'b', '/available ', :'a', '/completed/{"x": 1} 01a1fe98-d88c-7353-99b6-b56eba94d8eb'),
        'RES-03: results in the order asked for');
select is((select count(*) from ojs.results('{}')), 0::bigint, 'RES-03: of no jobs');
select is(state, 'completed', 'RES-03: a finished job is returned at once'),
    is(result, '{"x": 1}', 'RES-03: with its result') from ojs.wait_result(:'a', '10 s');
select is((ojs.wait_result(:'b', '50 ms')).id, null, 'RES-03: null at the timeout'),
    is((ojs.wait_result(:'b', '0')).id, null, 'RES-03: no wait'),
    is((ojs.wait_result(:'b', '-1 s')).id, null, 'RES-03: less than none');
select is(pg_temp.refusal($$ select ojs.wait_result('01a1fe98-d88c-7353-99b6-b56eba94d8eb', '1 s') $$),
    'OJ300 NOT_FOUND', 'RES-03: an unknown job');

-- Size and type -------------------------------------------------------------------------------------------------------

create function pg_temp.done(options jsonb default '{}', result jsonb default '{"x": 1}', queue text default 'res.ttl')
    returns uuid language sql as
$$ select id from (select pg_temp.held(queue, 'w', options) as job offset 0) h, ojs.ack(job, result) $$;
-- What a job's envelope says of its result: whether there is one, its size, how long it is shown.
create function pg_temp.shown(job uuid) returns text language sql volatile as $$
    select concat_ws(' ', coalesce(j ->> 'result', '-'), coalesce(j ->> 'result_size_bytes', '-'),
        coalesce(((j ->> 'result_expires_at')::timestamptz - (j ->> 'completed_at')::timestamptz)::text, '-'),
            (j ->> 'result_stored_at' = j ->> 'completed_at')::text)
    from ojs.info(job) j
$$;
select is(ojs.info(pg_temp.done(result => given)) -> 'result', given, 'RES-01: kept as it is: ' || given::text)
from unnest('{"{\"a\": [1.50, null]}",[],1.50,0,\"0\",\"\",true,null,12345678901234567890123456789}'::jsonb[]) given;
select pg_temp.held('res.size') as id \gset
select is(pg_temp.refusal(format('select ojs.ack(%L, to_jsonb(repeat(%L, 1048575)))', :'id', 'x')),
    'OJ314 RESULT_TOO_LARGE', 'RES-01: a byte more than 1 MiB of JSON text');
select is(pg_temp.refusal_detail(format('select ojs.ack(%L, to_jsonb(repeat(%L, 1048575)))', :'id', 'x')) -> 'details',
    '{"actual_bytes": 1048577, "maximum_bytes": 1048576}', 'RES-01: which is told');
select is(pg_temp.refusal(format('select ojs.ack(%L, %L)', :'id',
    '[1e131071,1e131071,1e131071,1e131071,1e131071,1e131071,1e131071,1e131071' || repeat(',1e9', 200) || ']')),
    'OJ314 RESULT_TOO_LARGE', 'RES-01: however short it was written');
select is(pg_temp.refusal(format('select ojs.ack_many(%L, array[%L]::uuid[], array[to_jsonb(repeat(%L, 1048575))])',
    'w', :'id', 'x')), 'OJ314 RESULT_TOO_LARGE', 'RES-01: of many, too');
select is(pg_temp.at(:'id'), 'active/1/1', 'RES-01: the job stays active');
select is((ojs.ack(:'id', to_jsonb(repeat('x', 1048574)))).state, 'completed', 'RES-01: 1 MiB is not too much');
select throws_ok('set ojs.max_result_size = 65535', '22023', null, 'RES-01: no limit below 64 KiB');
set ojs.max_result_size = '64kB';
select pg_temp.held('res.size') as id \gset
select is(pg_temp.refusal(format('select ojs.ack(%L, to_jsonb(repeat(%L, 65535)))', :'id', 'x')),
    'OJ314 RESULT_TOO_LARGE', 'RES-01: a limit of one''s own'),
    is((ojs.ack(:'id', to_jsonb(repeat('x', 65534)))).state, 'completed', 'RES-01: to the byte');
reset ojs.max_result_size;

-- How long ------------------------------------------------------------------------------------------------------------

select pg_temp.done() as standard, pg_temp.done('{"result_ttl": 60}') as brief,
    pg_temp.done('{"result_ttl": -1}') as forever, pg_temp.done('{"result_ttl": 0}') as none,
    pg_temp.done('{"result_ttl": "P30D"}') as month,
    pg_temp.done(result => null) as nothing \gset
select is(pg_temp.shown(:'standard'), '{"x": 1} 8 7 days true', 'RES-02: 7 days by default'),
    is(pg_temp.shown(:'brief'), '{"x": 1} 8 00:01:00 true', 'RES-02: result_ttl in seconds'),
    is(pg_temp.shown(:'forever'), '{"x": 1} 8 - true', 'RES-02: -1: as long as the job'),
        is(pg_temp.shown(:'none'), '- - -', 'RES-02: 0: not stored'),
    is(pg_temp.shown(:'month'), '{"x": 1} 8 30 days true', 'RES-02: or an ISO 8601 duration'),
        is(pg_temp.shown(:'nothing'), '- - -', 'RES-02: no result, no times');
select is(ojs.info(:'forever') -> 'result_ttl', '-1', 'ENV: result_ttl comes back'),
    is(ojs.info(:'month') -> 'result_ttl', '2592000', 'ENV: in seconds');
select is((select count(*) from ojs_store.finished where job_id = :'none' and result is not null), 0::bigint,
    'RES-02: 0: it takes no space');
select is((ojs.ack(pg_temp.held('res.none', 'w', '{"result_ttl": 0}'), '1')).result, null,
    'RES-02: 0: nor does the ack answer it');
select is((select done from ojs.ack_many('w', array[pg_temp.held('res.none', 'w', '{"result_ttl": 0}')],
    array['1'::jsonb])), 1, 'RES-02: by ack_many');
select is((select count(result) from ojs.jobs where queue = 'res.none'), 0::bigint, 'RES-02: nothing stored either');
select is(pg_temp.refusal(format('select pg_temp.pushed(%L, %L)', 'res', jsonb_build_object('result_ttl', bad))),
    'OJ100 INVALID_PAYLOAD result_ttl', 'RES-02: refused: ' || bad::text)
from unnest('{-2,-1.5,"\"soon\"",true,1e30,[]}'::jsonb[]) bad;
select pg_temp.clock('59 s') is null as moved \gset
select is(ojs.info(:'brief') ? 'result', true, 'RES-02: shown until its time');
select pg_temp.clock('61 s') is null as moved \gset
select is(pg_temp.shown(:'brief'), '- - 00:01:00 true', 'RES-02: and no longer; what is said of it stays'),
    is((select result from ojs.jobs where id = :'brief'), null, 'RES-02: in the view'),
    is((select result from ojs.results(array[:'brief']::uuid[])), null, 'RES-02: by ojs.results'),
        is((ojs.wait_result(:'brief', '0')).result, null, 'RES-02: by ojs.wait_result'),
    is((select data -> 'result' from ojs.events where job_id = :'brief' and type = 'job.completed'), 'null',
        'RES-02: in events'),
        is(pg_temp.at(:'brief'), 'completed/1/1', 'RES-02: the job stays');
select is((select data -> 'result' from ojs.events where job_id = :'standard' and type = 'job.completed'), '{"x": 1}',
    'RES-02: others are still shown');
select pg_temp.clock('7 days 1 s') is null as moved \gset
select is(ojs.info(:'standard') ? 'result', false, 'RES-02: 7 days'),
    is(ojs.info(:'month') ? 'result', true, 'RES-02: 30 days'),
    is(ojs.info(:'forever') ? 'result', true, 'RES-02: for ever');
select pg_temp.clock('0') is null as moved \gset
select is((select flags & 1024 from ojs_store.job where id = :'standard'), 0,
    'RES-02: a job without a result_ttl is not looked at by its ack');

select is(ojs.once('pay-1'), true, 'DLV-07: the first'),
    is(ojs.once('pay-1'), false, 'DLV-07: and no other'),
    is(ojs.once('pay-1', 'mail'), true, 'DLV-07: per scope'),
    is(ojs.once('pay-1', ''), false, 'DLV-07: no scope is the empty one'),
        is(ojs.once('pay-1', null), false, 'DLV-07: and so is null');
savepoint s;
select is(ojs.once('pay-2'), true, 'DLV-07: in a transaction that is rolled back');
rollback to s;
select is(ojs.once('pay-2'), true, 'DLV-07: counts for nothing');
select is(pg_temp.refusal($$ select ojs.once('') $$), 'OJ100 INVALID_PAYLOAD token', 'DLV-07: a token'),
    is(pg_temp.refusal($$ select ojs.once(null) $$), 'OJ100 INVALID_PAYLOAD token', 'DLV-07: not null'),
    is(pg_temp.refusal($$ select ojs.once(repeat('x', 1025)) $$), 'OJ100 INVALID_PAYLOAD token',
        'DLV-07: not too long'),
        is(ojs.once(repeat('x', 1024)), true, 'DLV-07: 1024 bytes');
select pg_temp.clock('179 d') is null as moved, ojs.tick() is null as ticked \gset
select is(ojs.once('pay-1'), false, 'a token is remembered for as long as a dead letter can be replayed: DLV-07 R-99');
select pg_temp.clock('181 d') is null as moved, ojs.tick() is null as ticked \gset
select is(ojs.once('pay-1'), true, 'and forgotten after 180 days: DLV-07 R-99');
select ojs.configure_queue('payments', '{"dead_letter_ttl": "P1Y"}') is null as kept, ojs.once('pay-3') is null as once,
    pg_temp.clock('545 d') is null as moved, ojs.tick() is null as ticked \gset
select is(ojs.once('pay-3'), false, 'longer where a queue keeps its dead letters longer: R-99');
select pg_temp.clock('547 d') is null as moved, ojs.tick() is null as ticked \gset
select is(ojs.once('pay-3'), true, 'and forgotten when that is over: R-99');
-- A dead letter is retried, and dies anew: what it has done long ago is still done.
select pg_temp.clock('0') is null as moved, ojs.configure_queue('payments', '{"dead_letter_ttl": null}') is null as kept
\gset
select pg_temp.pushed('payments', '{"retry": {"max_attempts": 1, "on_exhaustion": "dead_letter"}}') as id \gset
select ojs.once(:'id', 'charge') is null as once, ojs.once(:'id' || ':mail') is null as mailed,
    ojs.once('01900000-0000-7000-8000-000000000000') is null as other from ojs.claim('payments', 'w') \gset
select ojs.fail(:'id', '{"type": "t", "message": "m"}') is null as died, pg_temp.clock('170 d') is null as moved,
    (ojs.retry(:'id')) is null as again \gset
select (ojs.fail(id, '{"type": "t", "message": "m"}')).state is null as died from ojs.claim('payments', 'w') \gset
select pg_temp.clock('300 d') is null as moved, ojs.tick() is null as ticked \gset
select is((ojs.retry(:'id')).state, 'available', 'a dead letter of a second death is replayed after 300 days'),
    is(ojs.once(:'id', 'charge'), false, 'its token is remembered as long as the job is kept: R-99'),
    is(ojs.once(:'id' || ':mail'), false, 'so is a token that begins with its id: R-99'),
    is(ojs.once('01900000-0000-7000-8000-000000000000'), true, 'that of a job that is gone is not: R-99');

select * from finish();
rollback;
