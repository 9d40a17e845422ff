-- results.sql: results of jobs, and what is done once: RES-03, DLV-07.
begin;
select no_plan();
\ir helpers.psql

select id as a, pg_temp.pushed('res') as b from ojs.push('t', queue => 'res') \gset
select ojs.ack(id, '{"x": 1}') is null as done from ojs.claim('res', 'w') \gset
select is((select string_agg(concat_ws('/', id, state, result), ' ') from ojs.results(array[:'b', :'a', '01a1fe98-d88c-7353-99b6-b56eba94d8eb']::uuid[])),
    concat(:'b', '/available ', :'a', '/completed/{"x": 1} 01a1fe98-d88c-7353-99b6-b56eba94d8eb'), 'RES-03: results in the order asked for');
select is((select count(*) from ojs.results('{}')), 0::bigint, 'RES-03: of no jobs');
select is(state, 'completed', 'RES-03: a finished job is returned at once'), is(result, '{"x": 1}', 'RES-03: with its result') from ojs.wait_result(:'a', '10 s');
select is((ojs.wait_result(:'b', '50 ms')).id, null, 'RES-03: null at the timeout'), is((ojs.wait_result(:'b', '0')).id, null, 'RES-03: no wait'),
    is((ojs.wait_result(:'b', '-1 s')).id, null, 'RES-03: less than none');
select is(pg_temp.refusal($$ select ojs.wait_result('01a1fe98-d88c-7353-99b6-b56eba94d8eb', '1 s') $$), 'OJ300 NOT_FOUND', 'RES-03: an unknown job');

select is(ojs.once('pay-1'), true, 'DLV-07: the first'), is(ojs.once('pay-1'), false, 'DLV-07: and no other'), is(ojs.once('pay-1', 'mail'), true, 'DLV-07: per scope'),
    is(ojs.once('pay-1', ''), false, 'DLV-07: no scope is the empty one'), is(ojs.once('pay-1', null), false, 'DLV-07: and so is null');
savepoint s;
select is(ojs.once('pay-2'), true, 'DLV-07: in a transaction that is rolled back');
rollback to s;
select is(ojs.once('pay-2'), true, 'DLV-07: counts for nothing');
select is(pg_temp.refusal($$ select ojs.once('') $$), 'OJ100 INVALID_PAYLOAD token', 'DLV-07: a token'), is(pg_temp.refusal($$ select ojs.once(null) $$), 'OJ100 INVALID_PAYLOAD token', 'DLV-07: not null'),
    is(pg_temp.refusal($$ select ojs.once(repeat('x', 1025)) $$), 'OJ100 INVALID_PAYLOAD token', 'DLV-07: not too long'), is(ojs.once(repeat('x', 1024)), true, 'DLV-07: 1024 bytes');
select pg_temp.clock('29 d') is null as moved, ojs.tick() is null as ticked \gset
select is(ojs.once('pay-1'), false, 'DLV-07: remembered after 29 days');
select pg_temp.clock('31 d') is null as moved, ojs.tick() is null as ticked \gset
select is(ojs.once('pay-1'), true, 'DLV-07: forgotten after 30');

select * from finish();
rollback;
