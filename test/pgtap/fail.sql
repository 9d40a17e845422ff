-- fail.sql: jobs that were not done: OP-16 to OP-19, SM-08, SM-09, SM-11, RET-06, RET-07, Q-38 to Q-40, R-16 to R-20.
-- Retry policies: retry.sql.
begin;
select no_plan();
\ir helpers.psql

\set error '{"type": "smtp.refused", "message": "no such mailbox"}'

-- What a report must have --------------------------------------------------------------------------------------------

select pg_temp.held('strict') as held \gset
select is(pg_temp.refusal(format('select ojs.fail(%L, %L)', :'held', 'null')), 'OJ100 INVALID_PAYLOAD error',
    'OP-16: an error of null is none');
select is(left(pg_temp.refusal(format('select ojs.fail(%L, null)', :'held')), 21), 'OJ100 INVALID_PAYLOAD',
    'OP-16: no error at all');
select is(pg_temp.at(:'held'), 'active/1/1', 'OP-16: and the job stays active');
select is(state, 'retryable', 'OP-16: a code is as good as a type')
    from ojs.fail(:'held', '{"code": "E42", "message": "m"}');
select is(error ->> 'type', 'E42', 'ERR-03: and becomes it') from ojs.jobs where id = :'held';

-- Retryable ----------------------------------------------------------------------------------------------------------

select pg_temp.held('again') as id \gset
create temp table failed of ojs.job;
insert into failed select * from ojs.fail(:'id', :'error', delay => '5 minutes');
select is(state || '/' || attempt || '/' || max_attempts, 'retryable/1/3',
    'SM-08 OP-17 R-15: retryable, showing the attempt that failed') from failed;
select is(next_attempt_at - interval '5 minutes' between now() and clock_timestamp(), true,
    'OP-17: and when it is tried again') from failed;
select is((e ->> 'retry_delay_ms')::bigint, 300000::bigint, 'OP-17: and in how many ms') from failed f,
    ojs.info(f.id) e;
select is(completed_at, null, 'OP-17: not completed'),
    is(discarded_at, null, 'OP-17: not discarded'),
    is(enqueued_at, null, 'R-27: not in its queue') from failed;
select is(error ->> 'type', 'smtp.refused', 'OP-18: the error'),
    is(error -> 'attempt', '1', 'R-40: with its attempt'),
    is(errors, jsonb_build_array(error), 'OP-18: and the history') from failed;
select is(to_jsonb(f) - 'deduplicated', to_jsonb(j) - 'deduplicated', 'OP-17: as it is read later') from failed f
    join ojs.jobs j using (id);
select is((select count(*) from ojs.leases where job_id = :'id'), 0::bigint, 'SM-08: the lease is gone');
select is((select count(*) from ojs.claim('again', 'w')), 0::bigint, 'RET-06: not claimable yet');

-- RET-07: the third failure is the last.
select pg_temp.clock('6 minutes') \g /dev/null
select is(attempt, 2, 'RET-07: second attempt') from ojs.claim('again', 'w');
select is(state || '/' || attempt, 'retryable/2', 'RET-07: second failure')
    from ojs.fail(:'id', '{"type": "second", "message": "m"}', delay => '1 minute');
select pg_temp.clock('8 minutes') \g /dev/null
select is(attempt, 3, 'RET-07: third attempt') from ojs.claim('again', 'w');
create temp table last_failure as select * from ojs.fail(:'id', '{"type": "third", "message": "m"}',
    delay => '1 minute');
select is(state || '/' || attempt, 'discarded/3', 'RET-07 SM-09: discarded at once, at the third') from last_failure;
select isnt(discarded_at, null, 'OP-17: discarded_at'),
    is(completed_at, discarded_at, 'R-26 OP-17: and completed_at, since it ran'),
    is(next_attempt_at, null, 'OP-17: no next attempt') from last_failure;
select is((select array_agg(e ->> 'type') from jsonb_array_elements(errors) e), '{smtp.refused,second,third}',
    'OP-18: errors in order'),
    is(error ->> 'type', 'third', 'OP-18: the latest') from last_failure;
select is(to_jsonb(f) - 'deduplicated', to_jsonb(j) - 'deduplicated', 'OP-17: as it is read later') from last_failure f
    join ojs.jobs j using (id);
select is((select count(*) from ojs.claim('again', 'w')), 0::bigint, 'RET-07: never again');
select pg_temp.clock('0') \g /dev/null

select is((select string_agg(f.state, ' ')
    from (select pg_temp.held('once', 'w', jsonb_build_object('retry', jsonb_build_object('max_attempts', n))) as id
    from unnest(array[0, 1]) n) x, ojs.fail(x.id, :'error') f), 'discarded discarded',
        'R-16: max_attempts 0 and 1 both mean once');
select is(state, 'discarded', 'SM-09 R-35: not retryable')
    from ojs.fail(pg_temp.held('never'), :'error'::jsonb || '{"retryable": false}');
-- Behind an empty string there may be any byte: the first letter of the next value often is.
select is(state, 'retryable', format('an empty text for retryable, before %L, does not decide: ERR-A', behind)),
    is(error -> 'ignored', '["retryable"]', 'and the answer names it as ignored: ERR-A')
    from unnest('{foo,zoo}'::text[]) behind, ojs.fail(pg_temp.held('empty'),
        jsonb_build_object('type', 'x', 'message', 'm', 'retryable', '', 'stack_trace_id', behind));
select is(state, expected, 'SM-09 R-35: directive ' || code)
    from (values ('RETRY', 'retryable'), ('DISCARD', 'discarded'),
    ('DEAD_LETTER', 'discarded'), ('FAIL', 'discarded'), ('fail', 'retryable')) d (code, expected),
    ojs.fail(pg_temp.held('directive'), :'error'::jsonb || jsonb_build_object('code', code));
select is((select next_attempt_at - clock_timestamp() between interval '-1 second' and interval '2 seconds'
    from ojs.fail(pg_temp.held('default'), :'error')), true,
    'RET-06: about a second by the default policy');
select is(left(pg_temp.refusal(format('select ojs.fail(%L, %L, delay => %L)', pg_temp.held('delays'), :'error',
    '-1 s')), 8), 'accepted', 'Q-38: a negative delay is none');

-- Fencing ------------------------------------------------------------------------------------------------------------

select pg_temp.held('fence', 'anna') as fenced \gset
select pg_temp.token(:'fenced') as token \gset
select is(pg_temp.refusal(format('select ojs.fail(%L, %L, worker => %L)', :'fenced', :'error', 'berta')),
    'OJ311 LEASE_NOT_HELD', 'DLV-06 R-22: another worker''s report');
select is(pg_temp.refusal(format('select ojs.fail(%L, %L, %L)', :'fenced', :'error', 'lease_0123456789abcdef')),
    'OJ311 LEASE_NOT_HELD', 'R-22: another lease''s');
select is(pg_temp.refusal(format('select ojs.nack(%L, worker => %L)', :'fenced', 'berta')), 'OJ311 LEASE_NOT_HELD',
    'DLV-06: another worker''s nack');
select is(pg_temp.at(:'fenced'), 'active/1/1', 'DLV-06: nothing has happened');
select is(pg_temp.refusal(format('select ojs.fail(%L, %L, %L, %L)', :'fenced', :'error', :'token', 'anna')),
    'accepted', 'R-22: the holder''s');
select is(pg_temp.refusal(format('select ojs.fail(%L, %L)', :'fenced', :'error')), 'OJ105 INVALID_STATE_TRANSITION',
    'SM-21: and a second time');

-- R-21 and WRK-09: a report that comes late.
select pg_temp.held('late', 'anna') as late \gset
select pg_temp.clock('40 seconds') \g /dev/null
select is(state, 'retryable', 'R-21: a late report counts while nobody has taken the job back')
    from ojs.fail(:'late', :'error', worker => 'anna');
select pg_temp.clock('0') \g /dev/null
select pg_temp.held('late2', 'anna') as late \gset
select pg_temp.clock('40 seconds') \g /dev/null
select is(id, :'late', 'WRK-09: taken over') from ojs.claim('late2', 'berta');
select is(pg_temp.refusal(format('select ojs.fail(%L, %L, worker => %L)', :'late', :'error', 'anna')),
    'OJ311 LEASE_NOT_HELD', 'WRK-09: the old worker''s report is refused');
select pg_temp.clock('0') \g /dev/null

-- Release ------------------------------------------------------------------------------------------------------------

select pg_temp.held('back') as id \gset
create temp table released as select * from ojs.nack(:'id');
select is(state || '/' || attempt || '/' || deliveries, 'available/0/1',
    'SM-11 R-19 Q-39: available, the attempt refunded, the delivery not') from released;
select is(started_at, null, 'SM-11: not started'),
    is(worker, null, 'SM-11: no worker'),
    is(error, null, 'Q-39: no error'),
    is(errors, null, 'Q-39: none in the history'),
    isnt(enqueued_at, null, 'R-27: in its queue') from released;
select is(to_jsonb(f) - 'deduplicated', to_jsonb(j) - 'deduplicated', 'Q-39: as it is read later') from released f
    join ojs.jobs j using (id);
select is((select count(*) from ojs.leases where job_id = :'id'), 0::bigint, 'SM-11: the lease is gone');
select is(attempt || '/' || deliveries, '1/2', 'R-19 Q-21: the next claim is attempt 1 and delivery 2')
    from ojs.claim('back', 'w');
select is(state || '/' || attempt || '/' || deliveries, 'available/0/2', 'OP-19 R-19: fail with requeue is a release'),
    is(error, null, 'OP-19: without an error')
from ojs.fail(:'id', :'error', requeue => true);
select is(attempt || '/' || deliveries, '1/3', 'R-19: a drain never burns a retry') from ojs.claim('back', 'w');
select is(pg_temp.refusal(format('select ojs.fail(%L, null, requeue => true)', :'id')), 'accepted',
    'OP-19: it needs no error');

select pg_temp.held('delayed') as id \gset
select is(state, 'available', 'Q-39: released with a delay') from ojs.nack(:'id', '10 minutes');
select is(pg_temp.at(:'id'), 'available/0/1', 'R-19: it reads available');
select is((select count(*) from ojs.claim('delayed', 'w')), 0::bigint, 'Q-39: but is not handed out');
select pg_temp.clock('9 minutes') \g /dev/null
select is((select count(*) from ojs.claim('delayed', 'w')), 0::bigint, 'Q-39: before its time');
select pg_temp.clock('11 minutes') \g /dev/null
select is((select count(*) from ojs.claim('delayed', 'w')), 1::bigint, 'Q-39: and then is');
select pg_temp.clock('0') \g /dev/null
select pg_temp.held('monday') as id \gset
select ojs.nack(:'id', '3 days') is null as nacked \gset
select pg_temp.clock('71 hours') \g /dev/null
select is((select count(*) from ojs.claim('monday', 'w')), 0::bigint, 'a job waits for all of a delay of days: R-95');
select pg_temp.clock('73 hours') \g /dev/null
select is((select count(*) from ojs.claim('monday', 'w')), 1::bigint, 'and is handed out then: R-95');
select is(pg_temp.refusal(format('select ojs.nack(%L, %L)', :'id', '101 years')), 'OJ100 INVALID_PAYLOAD delay',
    'a delay of more than 100 years is refused: R-95'),
    is(pg_temp.at(:'id'), 'active/1/2', 'and the worker keeps the job: R-95');
select pg_temp.clock('0') \g /dev/null

-- What a call answers is what can be read afterwards.
create temp table answered (how text, job jsonb);
insert into answered select 'fail', to_jsonb(f) from ojs.fail(
    pg_temp.held('answered.0', 'w', '{"retry": {"initial_interval": "PT1H"}}'), '{"type": "t", "message": "m"}') f;
insert into answered select 'fail for good', to_jsonb(f)
    from ojs.fail(pg_temp.held('answered.1'), '{"type": "t", "message": "m", "retryable": false}') f;
insert into answered select 'requeue', to_jsonb(f) from ojs.fail(pg_temp.held('answered.2'), null, requeue => true) f;
insert into answered select 'nack', to_jsonb(f) from ojs.nack(pg_temp.held('answered.3'), '1 hour') f;
insert into answered select 'extend', to_jsonb(f) from ojs.extend(pg_temp.held('answered.4'), '1 hour') f;
select is(a.job - 'deduplicated', to_jsonb(j) - 'deduplicated',
    'OP-17 OP-19: ' || how || ' answers with the job as it is read later')
from answered a join ojs.jobs j on j.id = (a.job ->> 'id')::uuid;

-- ojs.nack_many ------------------------------------------------------------------------------------------------------

select array_agg(p.id order by n) as ids from generate_series(1, 5) n,
    ojs.push('test.job', to_jsonb(array[n]), queue => 'many') p \gset
select count(*) as claimed from ojs.claim('many', 'anna', 3) \gset
select count(*) as claimed from ojs.claim('many', 'berta', 1) \gset
select is(done, 2, 'Q-38: those held by the worker'),
    is(skipped, array[(:'ids'::uuid[])[5], (:'ids'::uuid[])[4]],
    'Q-38: the others are skipped, in order')
from ojs.nack_many('anna', array[(:'ids'::uuid[])[5], (:'ids'::uuid[])[2], (:'ids'::uuid[])[4], (:'ids'::uuid[])[1]]);
select is(done, 1, 'Q-35: an id named twice counts once'),
    is(skipped, (:'ids'::uuid[])[3:3], 'Q-35: and is skipped once')
from ojs.nack_many('anna', array[(:'ids'::uuid[])[3], (:'ids'::uuid[])[3]], '1 hour');
select is((select string_agg(state || attempt, ' ' order by seq) from ojs.jobs where queue = 'many'),
    'available0 available0 available0 active1 available0',
    'R-19 Q-39: attempts refunded');
select is((select string_agg(args ->> 0, '' order by ordinality) from ojs.claim('many', 'w', 5) with ordinality), '125',
    'Q-25 Q-39: two are back, one is delayed');
select is(done || '/' || cardinality(skipped), '0/3', 'Q-30: the same again skips all')
    from ojs.nack_many('anna', (:'ids'::uuid[])[1:3]);
select is(skipped, (:'ids'::uuid[])[4:4], 'Q-38: a stale token')
    from ojs.nack_many('berta', (:'ids'::uuid[])[4:4], lease_ids => '{lease_0}');
select is(done, 1, 'Q-38: the current token') from ojs.nack_many('berta', (:'ids'::uuid[])[4:4],
    lease_ids => array[pg_temp.token((:'ids'::uuid[])[4])]);
select is(pg_temp.refusal(format('select ojs.nack_many(%L, %L, lease_ids => %L)', 'anna', :'ids', '{a}')),
    'OJ100 INVALID_PAYLOAD lease_ids', 'Q-38: as many tokens as ids');
select is(pg_temp.refusal(format('select ojs.nack_many(null, %L)', :'ids')), 'OJ100 INVALID_PAYLOAD worker',
    'Q-38: a worker');

-- What the server alone says of a timeout cannot come from a worker.
select is((select error ?| '{timeout_kind,limit_seconds,elapsed_seconds}'
    from ojs.fail(pg_temp.held('forged'),
    '{"type": "t", "message": "m", "timeout_kind": "execution", "limit_seconds": 1, "elapsed_seconds": 2}')),
    false, 'a worker''s error has no members of the server''s own');
select is((select count(*) from ojs.events where queue = 'forged' and type = 'job.timeout'), 0::bigint,
    'so there is no event of a timeout');

-- Bounds of errors: 64 kB each as stored, 25 and half a megabyte as shown.
create function pg_temp.error_of(error jsonb) returns jsonb language sql as $$
    select f.error from ojs.fail(pg_temp.held('bounds', 'w', '{"retry": {"max_attempts": 1}}'), error) f $$;
select is(octet_length(e ->> 'message'), 16384, 'a long message is cut'),
    alike(e ->> 'message', 'mmm%... (cut)', 'with a mark'),
    is(e -> 'truncated', 'true', 'and the error says so')
from pg_temp.error_of(jsonb_build_object('type', 't', 'message', repeat('m', 200000))) e;
select is(octet_length(e ->> 'code') + octet_length(e ->> 'type'), 510, 'a code and a type too')
    from pg_temp.error_of(jsonb_build_object('type', repeat('t', 9000), 'code', repeat('c', 9000), 'message', 'm')) e;
select is(e ? 'big', false, 'a member that does not fit is left out'),
    is(e -> 'truncated', 'true', 'the error says so'),
    is(e -> 'details', '{"n": 1}', 'what fits stays')
from pg_temp.error_of(jsonb_build_object('type', 't', 'message', 'm', 'details', '{"n": 1}'::jsonb, 'big',
    repeat('x', 70000))) e;
select is(e ? 'n', false, 'a number counts by its digits')
    from pg_temp.error_of(jsonb_build_object('type', 't', 'message', 'm', 'n', 1e131000::numeric)) e;
select ok(octet_length(e::text) < 65536, 'all of it together')
    from pg_temp.error_of(jsonb_build_object('type', 't', 'message', repeat('m', 99999), 'a', repeat('x', 5000),
    'b', repeat('x', 40000), 'backtrace', repeat(repeat('f', 900) || e'\n', 60))) e;
select is(e ? 'truncated', false, 'a common error is stored as it came')
    from pg_temp.error_of('{"type": "t", "message": "m", "details": {"n": 1}}') e;

-- An error of another time, too large to be shown, is not loaded; nor does it stop a claim.
select pg_temp.held('history') as old \gset
select ojs.fail(:'old', '{"type": "first", "message": "m"}', delay => '0 s') \g /dev/null
update ojs_store.job_history set data = data || jsonb_build_object('message', repeat('m', 600000))
    where job_id = :'old';
select is((select errors from ojs.claim('history', 'w')), '[]', 'an error that is too large is not shown');
select ojs.fail(:'old', '{"type": "second", "message": "m"}', delay => '0 s') \g /dev/null
select is((select jsonb_path_query_array(errors, '$[*].type') from ojs.claim('history', 'w')), '["second"]',
    'the newer ones are');

select * from finish();
rollback;
