-- ack.sql: ending jobs well: OP-14, OP-15, Q-28 to Q-36, R-20 to R-22, and ojs.ack_and_claim.
begin;
select no_plan();
\ir helpers.psql

-- ojs.ack ------------------------------------------------------------------------------------------------------------

select pg_temp.held() as held \gset
create temp table acked as select * from ojs.ack(:'held', '{"sent": true}');
select is(a.id, :'held', 'OP-14: an ack answers with the job'),
    is(a.state, 'completed', 'SM-07 OP-14: completed'),
    ok(a.completed_at between now() and clock_timestamp(), 'OP-14: with the time'),
        is(a.attempt, 1, 'R-15: attempt unchanged'),
    is(a.result, '{"sent": true}', 'OP-14: and the result'),
    ok(a.started_at <= a.completed_at, 'OP-14: and the start'),
    is(to_jsonb(a) - 'deduplicated', to_jsonb(j) - 'deduplicated', 'OP-14: and all else as it is read later')
from acked a join ojs.jobs j using (id);
select is((select count(*) from ojs.leases), 0::bigint, 'SM-07: the lease is gone');
select is((select count(*) from ojs.claim('default', 'w')), 0::bigint, 'R-23: a completed job is never claimed again');

create temp table results as select pg_temp.held() as id, result
from unnest(array['{"a": [1, null]}', '[1, 2.50]', '"text"', '0', 'true', 'null', '{}', '[]']::jsonb[]) result;
select is((select a.result from ojs.ack(id, r.result) a), r.result, 'OP-14: any JSON is a result: ' || r.result::text)
    from results r;
select is(j.result, r.result, 'OP-14: and kept as it was: ' || r.result::text) from results r join ojs.jobs j
    using (id);
select is(ojs.info(id) ? 'result', true, 'OP-14: a result of JSON null is a result') from results where result = 'null';
select is(j.result, null, 'OP-14: no result is none'),
    is(ojs.info(j.id) ? 'result', false, 'ENV-24: and absent')
from (select pg_temp.held() as id offset 0) held, ojs.ack(held.id) j;

select pg_temp.held() as big \gset
select is(pg_temp.refusal(format('select ojs.ack(%L, to_jsonb(repeat(%L, 1100000)))', :'big', 'x')),
    'OJ314 RESULT_TOO_LARGE', 'RES-01: a result over 1 MiB');
select is(pg_temp.at(:'big'), 'active/1/1', 'RES-01: leaves the job active');
select is(pg_temp.refusal(format('select ojs.ack(%L, to_jsonb(repeat(%L, 1000000)))', :'big', 'x')), 'accepted',
    'RES-01: one of 1 MB is taken');

-- OP-15
select pg_temp.held('second') as second \gset
select ojs.fail(:'second', '{"type": "first.error", "message": "m"}', delay => '1 minute') is null as failed \gset
select pg_temp.clock('2 minutes') \g /dev/null
select is(id, :'second', 'OP-15: a second attempt'),
    is(error ->> 'type', 'first.error',
    'OP-15: which shows the last error') from ojs.claim('second', 'w');
select is(a.error, null, 'OP-15: after success there is no error'),
    is(jsonb_array_length(a.errors), 1, 'OP-15: but the history stays'),
    is(a.attempt, 2, 'R-15: of two attempts') from ojs.ack(:'second') a;
select is(error, null, 'OP-15: none to be read either'),
    is(errors -> 0 ->> 'type', 'first.error', 'OP-15: history') from ojs.jobs where id = :'second';
select pg_temp.clock('0') \g /dev/null

-- Fencing: who may ack -----------------------------------------------------------------------------------------------

select pg_temp.held('fence', 'anna') as fenced \gset
select pg_temp.token(:'fenced') as token \gset
select is(pg_temp.refusal(format('select ojs.ack(%L, worker => %L)', :'fenced', 'berta')), 'OJ311 LEASE_NOT_HELD',
    'R-22 DLV-06: another worker''s ack');
select is(pg_temp.refusal(format('select ojs.ack(%L, lease_id => %L)', :'fenced', 'lease_0000000000000001')),
    'OJ311 LEASE_NOT_HELD', 'R-22: another lease''s');
select is(pg_temp.refusal(format('select ojs.ack(%L, lease_id => %L, worker => %L)', :'fenced', :'token', 'berta')),
    'OJ311 LEASE_NOT_HELD', 'R-22: the right lease by the wrong worker');
select is(pg_temp.refusal(format('select ojs.ack(%L, lease_id => %L)', :'fenced', bad)), 'OJ311 LEASE_NOT_HELD',
    'R-22: no lease id at all: ' || n)
from unnest(array['', 'lease_', 'x', upper(:'token'), :'token' || '0', ' ' || :'token', substr(:'token', 7)])
    with ordinality b (bad, n);
select is(pg_temp.at(:'fenced'), 'active/1/1', 'R-22: nothing has happened');
select is(pg_temp.refusal(format('select ojs.ack(%L, lease_id => %L, worker => %L)', :'fenced', :'token', 'anna')),
    'accepted', 'R-22: the holder''s');
select is(pg_temp.refusal(format('select ojs.ack(%L)', :'fenced')), 'OJ302 JOB_ALREADY_COMPLETED',
    'R-69: and a second time');
select is(pg_temp.refusal(format('select ojs.ack(%L, worker => %L)', :'fenced', 'anna')),
    'OJ302 JOB_ALREADY_COMPLETED', 'R-69: also by the holder');
select is(pg_temp.refusal(format('select ojs.ack(%L)', pg_temp.held('fence', 'anna'))), 'accepted',
    'R-22: neither given: being active suffices');
select is(pg_temp.refusal('select ojs.ack(null)'), 'OJ100 INVALID_PAYLOAD job_id', 'OP-14: no id');
select is(pg_temp.refusal($$ select ojs.ack('01920000-0000-7000-8000-00000000000c') $$), 'OJ300 NOT_FOUND',
    'OP-14: an unknown id');

-- R-21, Q-32, Q-33, Q-36: late acks.
select pg_temp.held('late', 'anna') as late \gset
select pg_temp.token(:'late') as token \gset
select pg_temp.clock('40 seconds') \g /dev/null
select is(state, 'completed', 'R-21 Q-36: a late ack counts while nobody has taken the job back')
    from ojs.ack(:'late', null, :'token', 'anna');
select pg_temp.clock('0') \g /dev/null
select pg_temp.held('late', 'anna') as late \gset
select pg_temp.token(:'late') as token \gset
select pg_temp.clock('40 seconds') \g /dev/null
select ojs.tick() is null as ticked \gset
select is(pg_temp.refusal(format('select ojs.ack(%L, null, %L, %L)', :'late', :'token', 'anna')),
    'OJ105 INVALID_STATE_TRANSITION',
    'R-21 Q-36 WRK-09: after the tick has, it is refused');
select is(done || '/' || cardinality(skipped), '0/1', 'R-21 Q-36: or skipped')
    from ojs.ack_many('anna', array[:'late'::uuid]);
select is(id, :'late', 'Q-32: another claims it') from ojs.claim('late', 'berta');
select is(pg_temp.refusal(format('select ojs.ack(%L, null, %L, %L)', :'late', :'token', 'anna')),
    'OJ311 LEASE_NOT_HELD', 'Q-32: the old holder''s ack');
select is(skipped, array[:'late'::uuid], 'Q-32: with its old token')
    from ojs.ack_many('anna', array[:'late'::uuid], lease_ids => array[:'token']);
select is(skipped, array[:'late'::uuid], 'Q-32: or without') from ojs.ack_many('anna', array[:'late'::uuid]);
select is(worker, 'berta', 'Q-32: the new one still holds it') from ojs.leases where job_id = :'late';
select pg_temp.clock('80 seconds') \g /dev/null
select is(id, :'late', 'Q-33: it lapses again and the same worker claims it') from ojs.claim('late', 'berta');
select is(skipped, array[:'late'::uuid], 'Q-33: then its older token is stale')
from ojs.ack_many('berta', array[:'late'::uuid], lease_ids => array[:'token']);
select is(done, 1, 'Q-33: and the newer works') from ojs.ack_many('berta', array[:'late'::uuid],
    lease_ids => array[pg_temp.token(:'late')]);
select pg_temp.clock('0') \g /dev/null

-- ojs.ack_many -------------------------------------------------------------------------------------------------------

select array_agg(p.id order by n) as ids from generate_series(1, 6) n,
    ojs.push('test.job', to_jsonb(array[n]), queue => 'many') p \gset
select count(*) as claimed from ojs.claim('many', 'anna', 4) \gset
select count(*) as claimed from ojs.claim('many', 'berta', 1) \gset
-- ids: 1-4 anna, 5 berta, 6 available.
select is(done, 2, 'Q-29: those held by the worker'),
    is(skipped, array[(:'ids'::uuid[])[6], (:'ids'::uuid[])[5], '01920000-0000-7000-8000-00000000000c'],
        'Q-29 Q-35: never claimed, another''s and unknown ones are skipped, in the order of the request')
from ojs.ack_many('anna', array[(:'ids'::uuid[])[6], (:'ids'::uuid[])[2], (:'ids'::uuid[])[5],
    '01920000-0000-7000-8000-00000000000c', (:'ids'::uuid[])[1]],
    array['"r6"', '"r2"', '"r5"', '"rx"', null]::jsonb[]);
select is((select string_agg(state || coalesce(result::text, '-'), ' ' order by seq) from ojs.jobs
    where queue = 'many'),
    'completed- completed"r2" active- active- active- available-', 'Q-29: each result with its job');
select is(done || '/' || cardinality(skipped), '0/2', 'Q-30: the same again does nothing and is no error')
from ojs.ack_many('anna', (:'ids'::uuid[])[1:2]);
select is(done, 1, 'Q-35: an id named twice counts once'),
    is(skipped, (:'ids'::uuid[])[3:3], 'Q-35: the second is skipped')
from ojs.ack_many('anna', array[(:'ids'::uuid[])[3], (:'ids'::uuid[])[3]], array['1', '2']::jsonb[]);
select is(result, '1', 'Q-35: the first result counts') from ojs.jobs where id = (:'ids'::uuid[])[3];
select is(skipped, (:'ids'::uuid[])[4:4], 'Q-31: a stale token')
    from ojs.ack_many('anna', (:'ids'::uuid[])[4:4], lease_ids => '{lease_00}');
select is(done, 1, 'Q-31: the current token') from ojs.ack_many('anna', (:'ids'::uuid[])[4:4],
    lease_ids => array[pg_temp.token((:'ids'::uuid[])[4])]);
select is(pg_temp.refusal(format('select ojs.ack_many(%L, %L, lease_ids => %L)', 'anna', :'ids', '{a,b}')),
    'OJ100 INVALID_PAYLOAD lease_ids', 'Q-31: as many tokens as ids');
select is(pg_temp.refusal(format('select ojs.ack_many(%L, %L, %L)', 'anna', :'ids', '{1,2}')),
    'OJ100 INVALID_PAYLOAD results', 'Q-28: as many results as ids');
select is(pg_temp.refusal(format('select ojs.ack_many(%L, %L)', null, :'ids')), 'OJ100 INVALID_PAYLOAD worker',
    'Q-28: a worker');
select is(pg_temp.refusal(format('select ojs.ack_many(%L, %L)', '', :'ids')), 'OJ100 INVALID_PAYLOAD worker',
    'Q-28: with a name');
select is(pg_temp.refusal($$ select ojs.ack_many('anna', null) $$), 'OJ100 INVALID_PAYLOAD job_ids', 'Q-28: ids');
select is(pg_temp.refusal($$ select ojs.ack_many('anna', '{null}') $$), 'OJ100 INVALID_PAYLOAD job_ids',
    'Q-28: without nulls');
select matches(pg_temp.refusal($$ select ojs.ack_many('anna',
    (select array_agg(gen_random_uuid()) from generate_series(1, 1001))) $$),
    '^OJ118 BATCH_SIZE_EXCEEDED', 'Q-28: at most 1000');
select is(cardinality(skipped), 1000, 'Q-28: a thousand unknown ids')
    from ojs.ack_many('anna', (select array_agg(gen_random_uuid()) from generate_series(1, 1000)));
select is(skipped, array[id], 'Q-44: a cancelled job is skipped')
from (select id from ojs.cancel(pg_temp.held('many2', 'anna'))) c, ojs.ack_many('anna', array[c.id]);

-- ojs.ack_and_claim --------------------------------------------------------------------------------------------------

select array_agg(p.id order by n) as ids from generate_series(1, 5) n,
    ojs.push('test.job', to_jsonb(array[n]), queue => 'loop') p \gset
select id as one, lease_id as token from ojs.claim('loop', 'anna') \gset
select is(id, (:'ids'::uuid[])[2], 'DLV-05: finish one, get the next'),
    is(worker, 'anna', 'DLV-05: for the same worker')
from ojs.ack_and_claim('anna', 'loop', array[:'one'::uuid], array[:'token'], array['"r"']::jsonb[]);
select is(state || result, 'completed"r"', 'OP-24: the one is done') from ojs.jobs where id = :'one';
select is((select array_agg(id order by ordinality) from ojs.ack_and_claim('anna', 'loop', (:'ids'::uuid[])[2:2],
    max => 2, lease => '1 minute') with ordinality),
    (:'ids'::uuid[])[3:4], 'OP-06: in claim order, up to max');
select is((select count(*) from ojs.leases where lease_expires_at - claimed_at = interval '1 minute'), 2::bigint,
    'Q-15: with the lease asked for');
select is(pg_temp.refusal(format('select ojs.ack_and_claim(%L, %L, %L)', 'anna', 'loop',
    array[(:'ids'::uuid[])[3], :'one'])), 'OJ302 JOB_ALREADY_COMPLETED', 'R-20: strict');
select is(pg_temp.refusal(format('select ojs.ack_and_claim(%L, %L, %L)', 'berta', 'loop', (:'ids'::uuid[])[3:3])),
    'OJ311 LEASE_NOT_HELD', 'R-20: another worker''s');
select is((select string_agg(state, ' ' order by seq) from ojs.jobs where queue = 'loop'),
    'completed completed active active available', 'R-20: and nothing is done');
select is(pg_temp.refusal(format('select ojs.ack_and_claim(%L, %L, %L)', 'anna', 'unheard-of', (:'ids'::uuid[])[3:3])),
    'OJ300 NOT_FOUND', 'Q-11: an unknown queue');
select is(pg_temp.at((:'ids'::uuid[])[3]), 'active/1/1', 'Q-11: does not finish what it holds');
select is((select count(*) from ojs.ack_and_claim('anna', 'loop', '{}', max => 0)), 0::bigint, 'Q-14: max 0');
select is((select array_agg(id) from ojs.ack_and_claim('anna', 'loop', '{}')), (:'ids'::uuid[])[5:5],
    'Q-28: with nothing to finish it is a claim');
select is((select count(*) from ojs.ack_and_claim('anna', 'loop', (:'ids'::uuid[])[3:5])), 0::bigint,
    'OP-08: the last are finished, nothing is left');
select is((select string_agg(distinct state, ' ') from ojs.jobs where queue = 'loop'), 'completed', 'OP-24: all done');

-- Two queues in one call: each as it says -----------------------------------------------------------------------------

select ojs.create_queue('ack.gone', '{"delete_on_ack": true}') is null as made \gset
select pg_temp.held('ack.stays') as s1, pg_temp.held('ack.gone') as g1, pg_temp.held('ack.stays') as s2,
    pg_temp.held('ack.gone') as g2 \gset
select is(done, 4, 'OP-24: jobs of two queues') from ojs.ack_many('w', array[:'s1', :'g1', :'s2', :'g2']::uuid[]);
select is((select string_agg(queue, ' ') from ojs.jobs where id in (:'s1', :'g1', :'s2', :'g2')),
    'ack.stays ack.stays', 'R-23: delete_on_ack of one of them is not that of the other');
select pg_temp.held('ack.mortal', 'w', '{"expires_at": "+PT1H"}') as mortal \gset
select is((select count(*) from ojs_store.delayed where job_id = :'mortal'), 1::bigint, 'a reminder of its expiry');
select is(done, 1, 'the job is done') from ojs.ack_many('w', array[:'mortal']::uuid[]);
select is((select count(*) from ojs_store.delayed where job_id = :'mortal'), 0::bigint,
    'ENV-15: and the reminder goes with it');

select * from finish();
rollback;
