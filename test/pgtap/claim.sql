-- claim.sql: taking jobs: OP-05 to OP-12, Q-13 to Q-27, R-29, R-30, R-33. Against an oracle: claim_oracle.sql.
begin;
select no_plan();
\ir helpers.psql

-- Pushes one job per letter of `names`, with a name in args, and tells what a claim hands out as letters.
create function pg_temp.push_all(queue text, names text, priority int default 0) returns void language sql as
$$ select ojs.push('test.job', jsonb_build_array(name), queue => $1, priority => $3)
   from regexp_split_to_table(names, '') with ordinality n (name, place) order by place $$;
create function pg_temp.claimed(queue text, max int default 1, worker text default 'w') returns text language sql as
$$ select coalesce(string_agg(args ->> 0, '' order by ordinality), '') from ojs.claim($1, $3, $2) with ordinality $$;
create function pg_temp.claimed(queues text[], max int default 1) returns text language sql as
$$ select coalesce(string_agg(args ->> 0, '' order by ordinality), '') from ojs.claim($1, 'w', $2) with ordinality $$;
create function pg_temp.named(queue text, name text) returns uuid language sql stable as
$$ select id from ojs.jobs j where j.queue = $1 and j.args ->> 0 = $2 $$;

-- The envelope -------------------------------------------------------------------------------------------------------

select pg_temp.push_all('plain', 'a') \g /dev/null
create temp table first_claim as select * from ojs.claim('plain', 'worker-1');
select is(state || '/' || attempt || '/' || deliveries, 'active/1/1',
    'OP-07 SM-06 Q-21: active, attempt 1, delivery 1') from first_claim;
select is(worker, 'worker-1', 'OP-07: claimed by the worker') from first_claim;
select ok(started_at between now() and clock_timestamp(), 'OP-07: started now') from first_claim;
select is(to_jsonb(c) - array['lease_id', 'lease_expires_at', 'deduplicated'], to_jsonb(j) - 'deduplicated',
    'OP-07: a claim shows the complete job, as the view does') from first_claim c join ojs.jobs j using (id);
select matches(lease_id, '^lease_[0-9a-f]{16}$', 'Q-19: lease_id is lease_ and lower-case hex') from first_claim;
select is(lease_expires_at - started_at, interval '30 seconds', 'R-33 Q-20: 30 s from the claim by default')
    from first_claim;
select is(l.queue || l.worker || l.deliveries, 'plainworker-11', 'Q-20: the view leases has it'),
    is(l.lease_expires_at, c.lease_expires_at, 'Q-20: with its deadline'),
        is(l.lease_id, c.lease_id, 'Q-19: and its id')
from first_claim c join ojs.leases l on l.job_id = c.id;
select is(pg_temp.claimed('plain', 10), '',
    'Q-16 OP-08: a held job is not handed out again; nothing to claim is no error');

-- Parameters ---------------------------------------------------------------------------------------------------------

select pg_temp.push_all('many', 'abcdefgh') \g /dev/null
select is(pg_temp.refusal($$ select ojs.claim('many', null) $$), 'OJ100 INVALID_PAYLOAD worker', 'Q-13: no worker');
select is(pg_temp.refusal($$ select ojs.claim('many', '') $$), 'OJ100 INVALID_PAYLOAD worker',
    'Q-13: a worker without a name');
select is(pg_temp.refusal(format('select ojs.claim(%L, %L)', 'many', repeat('x', 256))),
    'OJ100 INVALID_PAYLOAD worker', 'Q-13: a name of more than 255 bytes');
select is(length(pg_temp.refusal_detail(format('select ojs.claim(%L, %L)', repeat('q', 100000), 'w'))::text) < 400,
    true, 'ERR-06: no error repeats a long name');
select is(pg_temp.refusal($$ select ojs.claim('many', 'w', -1) $$), 'OJ100 INVALID_PAYLOAD max',
    'Q-14: a negative max');
select is(pg_temp.claimed('many', 0), '', 'Q-14: max 0 claims nothing');
select is(pg_temp.claimed('many'), 'a', 'Q-14: one by default');
select is(pg_temp.claimed('many', null), 'b', 'Q-14: null is the default');
select is(pg_temp.claimed('many', 3), 'cde', 'Q-14: at most max');
select is(pg_temp.claimed('many', 30), 'fgh', 'Q-22: fewer where there are fewer');
select count(*) as pushed
    from ojs.push_many((select jsonb_agg('{"type": "t", "args": [], "queue": "thousands"}'::jsonb)
    from generate_series(1, 1001))) \gset
select is((select count(*) from ojs.claim('thousands', 'w', 2000)), 1000::bigint, 'Q-14 R-75: 2000 is clamped to 1000');
select is((select count(*) from ojs.claim('thousands', 'w', 2000)), 1::bigint,
    'R-75: the rest comes with the next call');
select is(pg_temp.refusal($$ select ojs.claim(null::text, 'w') $$), 'OJ102 INVALID_QUEUE queue', 'OP-12: no queue');
select is(pg_temp.refusal($$ select ojs.claim('{}'::text[], 'w') $$), 'OJ102 INVALID_QUEUE queues', 'OP-12: no queues');
select is(pg_temp.refusal($$ select ojs.claim(null::text[], 'w') $$), 'OJ102 INVALID_QUEUE queues',
    'OP-12: queues null');
select is(pg_temp.refusal($$ select ojs.claim('{many,null}'::text[], 'w') $$), 'OJ102 INVALID_QUEUE queues',
    'OP-12: a null among the queues');
select is(pg_temp.refusal($$ select ojs.claim('unheard-of', 'w') $$), 'OJ300 NOT_FOUND', 'Q-11 R-30: an unknown queue');
select is(d #>> '{details,reason}', 'topic_not_found', 'Q-11: topic_not_found'),
    is(d #>> '{details,queue}', 'unheard-of', 'Q-11: and which')
from pg_temp.refusal_detail($$ select ojs.claim('unheard-of', 'w') $$) d;
select is(pg_temp.refusal($$ select ojs.claim('{many,unheard-of}'::text[], 'w') $$), 'OJ300 NOT_FOUND',
    'R-30: one unknown queue of two');
select is((select count(*) from ojs.claim('unheard-of', 'w', missing_ok => true)), 0::bigint, 'R-30: missing_ok');
select is((select count(*) from ojs.queues where name = 'unheard-of'), 0::bigint, 'Q-11: a claim makes no queue');
select pg_temp.set_queue('a-log', 'active', '{"type": "log"}') \g /dev/null
select is(pg_temp.refusal($$ select ojs.claim('a-log', 'w') $$), 'OJ312 TOPIC_NOT_A_QUEUE',
    'Q-03: a log hands out nothing');
select is(pg_temp.refusal($$ select ojs.claim('{many,a-log}'::text[], 'w') $$), 'OJ312 TOPIC_NOT_A_QUEUE',
    'Q-03: nor among others');

-- Length of the lease ------------------------------------------------------------------------------------------------

create function pg_temp.lease_of(queue text, lease interval default null) returns interval language sql as
$$ select lease_expires_at - started_at from ojs.claim($1, 'w', lease => $2) $$;
select pg_temp.push_all('lengths', 'abcdef') \g /dev/null
select is(pg_temp.lease_of('lengths', '5 minutes'), '5 minutes', 'Q-15: as the claim says');
select pg_temp.push_all('short', 'ab') \g /dev/null
select is(pg_temp.lease_of('short', '1 ms'), '100 ms', 'Q-15 R-33: not below 100 ms');
select is((select count(*) from (select ojs.ack(job_id) from ojs.leases where queue = 'short') a), 1::bigint,
    'it is done before it lapses');
select is(pg_temp.lease_of('short', '-1 hour'), '100 ms', 'Q-15 R-33: clamped, not refused');
select is(pg_temp.lease_of('lengths', '1 year'), '24 hours', 'Q-15 R-33: not above a day');
select is(pg_temp.lease_of('lengths', '1.234 s'), '1.234 s', 'Q-20: to the millisecond');
set local ojs.default_lease = '12s';
select is(pg_temp.lease_of('lengths'), '12 s', 'R-33: the setting');
select pg_temp.set_queue('lengths', 'active', '{"lease_ms": 7000}') \g /dev/null
select is(pg_temp.lease_of('lengths'), '7 s', 'R-33: the queue goes before the setting');
select pg_temp.pushed('lengths', '{"visibility_timeout_ms": 3000}') is null as pushed \gset
select is(pg_temp.lease_of('lengths', '8 s'), '8 s', 'R-33: one more with a length of its own waits');
select is(pg_temp.lease_of('lengths'), '3 s', 'R-33 ENV-18: the job goes before the queue');
select pg_temp.pushed('lengths', '{"visibility_timeout": 4}') is null as pushed \gset
select is(pg_temp.lease_of('lengths', '8 s'), '8 s', 'R-33: the claim goes before the job');
reset ojs.default_lease;
select pg_temp.push_all('together', 'abc') \g /dev/null
select is(count(distinct lease_expires_at) || '/' || count(distinct started_at) || '/' || count(distinct lease_id),
    '1/1/3',
    'Q-20: the jobs of one call share the time of the claim; Q-19: not the lease id')
        from ojs.claim('together', 'w', 3);

-- Order --------------------------------------------------------------------------------------------------------------

select pg_temp.push_all('order', 'ab'), pg_temp.push_all('order', 'C', 10), pg_temp.push_all('order', 'z', -10),
    pg_temp.push_all('order', 'D', 10), pg_temp.push_all('order', 'e', 0), pg_temp.push_all('order', 'M', 100),
        pg_temp.push_all('order', 'm', -100) \g /dev/null
select is(pg_temp.claimed('order', 3), 'MCD', 'OP-06 R-29: the highest priority first, then who came first');
select is(pg_temp.claimed('order', 1), 'a', 'OP-06: first in, first out'),
    is(pg_temp.claimed('order', 2), 'be', 'OP-06: across claims');
select pg_temp.push_all('order', 'F', 10) \g /dev/null
select is(pg_temp.claimed('order', 9), 'Fzm', 'OP-06: a late one of higher priority goes first');

select pg_temp.push_all('again', 'abcde') \g /dev/null
select is(pg_temp.claimed('again', 3), 'abc', 'Q-25: three are held …');
select ojs.nack(pg_temp.named('again', 'c')) is null as nacked \gset
select ojs.nack(pg_temp.named('again', 'a')) is null as nacked \gset
select is(pg_temp.claimed('again', 1), 'c',
    'Q-25 R-29: what was given back goes before what is fresh, in the order it came back'),
    is(pg_temp.claimed('again', 1), 'a', 'Q-25: the next that was given back'),
    is(pg_temp.claimed('again', 1), 'd', 'Q-25: then the fresh');
select ojs.nack(pg_temp.named('again', n)) is null as nacked from unnest('{d,b}'::text[]) n \g /dev/null
select is(pg_temp.claimed('again', 3), 'bde', 'R-29 Q-18: chosen returned first, shown in order of seq');
select pg_temp.push_all('again', 'P', 1) \g /dev/null
select ojs.nack(pg_temp.named('again', 'e')) is null as nacked \gset
select is(pg_temp.claimed('again', 1), 'P', 'R-29: priority goes before having been delivered');
select is(pg_temp.claimed('again', 1), 'e', 'R-29: and then the returned');
select is(deliveries, 2, 'Q-21: every delivery counts, after a nack too') from ojs.jobs
    where id = pg_temp.named('again', 'c');

-- More leases expired than a claim has room for: the next claims go on with them before they hand out fresh jobs. A
-- claim inside a longer transaction reaps only what it can hand out.
select pg_temp.push_all('expired', 'abcdef') \g /dev/null
select is(count(*), 3::bigint, '(three jobs are held)') from ojs.claim('expired', 'w', 3, lease => '1 s');
select pg_temp.clock('2 seconds') \g /dev/null
select is(pg_temp.claimed('expired', 1), 'a', 'a claim hands out expired leases first: Q-25 R-101'),
    is(pg_temp.claimed('expired', 1), 'b', 'and the next claim goes on with them at once: Q-25 R-101');
savepoint before;
select pg_temp.claimed('expired', 1) \g /dev/null
rollback to before;
select is(pg_temp.claimed('expired', 1), 'c', 'also where a claim was rolled back: Q-25 R-101'),
    is(pg_temp.claimed('expired', 2), 'de', 'then come the fresh jobs: Q-25 R-101');
select pg_temp.clock('0') \g /dev/null

select pg_temp.push_all('elapsed', 'ab') \g /dev/null
select is(pg_temp.claimed('elapsed', 1), 'a', 'Q-25: held');
select ojs.nack(pg_temp.named('elapsed', 'a'), '1 minute') is null as nacked \gset
select is(pg_temp.claimed('elapsed', 0), '', 'Q-39: released for later');
select pg_temp.clock('2 minutes') \g /dev/null
select is(pg_temp.claimed('elapsed', 2), 'ab', 'Q-25: whose delay has passed …');
select pg_temp.clock('0') \g /dev/null
select pg_temp.push_all('elapsed2', 'ab') \g /dev/null
select is(pg_temp.claimed('elapsed2', 1), 'a', 'Q-25: held');
select ojs.nack(pg_temp.named('elapsed2', 'a'), '1 minute') is null as nacked \gset
select pg_temp.clock('2 minutes') \g /dev/null
select is(pg_temp.claimed('elapsed2', 1), 'a', 'Q-25: … goes before the fresh');
select pg_temp.clock('0') \g /dev/null

-- Several queues -----------------------------------------------------------------------------------------------------

select pg_temp.push_all('one', 'abc'), pg_temp.push_all('two', 'xyz'), pg_temp.push_all('two', 'U', 100),
    pg_temp.push_all('three', 'p') \g /dev/null
select is(pg_temp.claimed('{two,one}'::text[], 2), 'Ux', 'OP-12: the first queue''s jobs first'),
    is(pg_temp.claimed('{one,two}'::text[], 1), 'a', 'OP-12 R-29: in the order of the call, whatever the priority'),
    is(pg_temp.claimed('{one,two,one}'::text[], 3), 'bcy',
        'OP-12: a name twice is harmless, and the claim fills up from the next');
select pg_temp.set_queue('two', 'paused') \g /dev/null
select is(pg_temp.claimed('two', 5), '', 'Q-16: a paused queue hands out nothing');
select is((select string_agg(args ->> 0, '') from ojs.claim('{two,unheard-of,three}'::text[], 'w', 5,
    missing_ok => true)), 'p',
    'INT-07: paused and unknown queues do not keep a claim from the rest');
select is((select count(*) from ojs.jobs where queue = 'two' and state = 'available'), 1::bigint,
    'R-32: its jobs stay available');
select pg_temp.set_queue('two', 'draining') \g /dev/null
select is(pg_temp.claimed('two', 5), 'z', 'R-32: a draining queue hands out what it has');

-- Due jobs and lapsed leases -----------------------------------------------------------------------------------------

select ojs.push('test.job', '["s"]', queue => 'due', delay => '1 minute') is null as pushed \gset
select is(pg_temp.claimed('due'), '', 'OP-09: not before its time');
select pg_temp.clock('59 seconds') \g /dev/null
select is(pg_temp.claimed('due'), '', 'OP-09: nor a second before');
select pg_temp.clock('61 seconds') \g /dev/null
select is(pg_temp.claimed('due'), 's', 'OP-09 Q-45: a claim finds what fell due, without a tick');
select pg_temp.clock('0') \g /dev/null

select pg_temp.push_all('retry', 'r') \g /dev/null
select is(pg_temp.claimed('retry'), 'r', 'RET-06: held');
select ojs.fail(pg_temp.named('retry', 'r'), '{"type": "t", "message": "m"}',
    delay => '1 minute') is null as failed \gset
select pg_temp.clock('59 seconds') \g /dev/null
select is(pg_temp.claimed('retry'), '', 'RET-06: not before next_attempt_at');
select pg_temp.clock('60.2 seconds') \g /dev/null
select is(pg_temp.claimed('retry'), 'r', 'RET-06 OP-09: at most 200 ms after it');
select pg_temp.clock('0') \g /dev/null
select is(pg_temp.at(pg_temp.named('retry', 'r')), 'active/2/2', 'R-15: the second attempt');

select pg_temp.push_all('lapse', 'ab') \g /dev/null
select id as lapsed, lease_id as old_lease from ojs.claim('lapse', 'w') \gset
select pg_temp.clock('29 seconds') \g /dev/null
select is(pg_temp.claimed('lapse', 5), 'b', 'Q-16: no one else''s before its deadline');
select pg_temp.clock('31 seconds') \g /dev/null
select is(pg_temp.claimed('lapse', 5, 'v'), 'a', 'OP-09 Q-45 R-18: a claim takes back what has lapsed, without a tick');
select is(pg_temp.at(:'lapsed'), 'active/2/2', 'R-15 R-17 Q-21: one attempt and one delivery more');
select is(id, :'lapsed', 'DLV-05: redelivery keeps the id'),
    isnt(pg_temp.token(id), :'old_lease', 'Q-19: and makes a new lease'),
    is(worker, 'v', 'DLV-05: for the new worker'),
    is(errors -> 0 ->> 'type', 'visibility_timeout',
        'Q-26: the lapse is among the errors'),
    is(errors -> 0 -> 'attempt', '1', 'Q-26: as the first attempt''s') from ojs.jobs where id = :'lapsed';
select pg_temp.clock('62 seconds') \g /dev/null
select pg_temp.clock('100 seconds') \g /dev/null
select is(length(pg_temp.claimed('lapse', 5)), 2, 'Q-45: both lapsed again');
select pg_temp.clock('200 seconds') \g /dev/null
select is(pg_temp.claimed('lapse', 5), 'b', 'Q-26: three attempts are spent, one is discarded instead of delivered');
select is(state || '/' || attempt || '/' || deliveries, 'discarded/3/3', 'Q-26 R-17: at the third lapse'),
    is(error ->> 'type', 'visibility_timeout', 'Q-26: by its lapse'),
        is(jsonb_array_length(errors), 3, 'Q-26: the third error')
from ojs.jobs where id = :'lapsed';
select pg_temp.clock('0') \g /dev/null

select pg_temp.set_queue('patient', 'active', '{"expiry_counts_attempt": false}') \g /dev/null
select pg_temp.push_all('patient', 'a') \g /dev/null
select is(pg_temp.claimed('patient'), 'a', 'R-17: first delivery');
select pg_temp.clock('1 minute'); select is(pg_temp.claimed('patient'), 'a', 'R-17: second');
select pg_temp.clock('2 minutes'); select is(pg_temp.claimed('patient'), 'a', 'R-17: third');
select pg_temp.clock('3 minutes'); select is(pg_temp.claimed('patient'), 'a',
    'R-17: fourth, where a lapse costs no attempt');
select is(pg_temp.at(pg_temp.named('patient', 'a')), 'active/1/4', 'R-17 Q-21: one attempt, four deliveries');
select pg_temp.clock('0') \g /dev/null
select pg_temp.held('patient', 'w', '{"retry": {"max_attempts": 1}}') as once \gset
select pg_temp.clock('1 minute'); select ojs.tick() \g /dev/null
select is(pg_temp.at(:'once'), 'available/0/1', 'R-17: nor the last attempt');
select pg_temp.clock('0') \g /dev/null

-- Expired jobs -------------------------------------------------------------------------------------------------------

select ojs.push('test.job', '["x"]', queue => 'mortal', expires_at => now() + interval '1 minute') is null as pushed,
    ojs.push('test.job', '["y"]', queue => 'mortal', priority => 5,
        expires_at => now() + interval '1 hour') is null as pushed \gset
select pg_temp.push_all('mortal', 'ab') \g /dev/null
select pg_temp.clock('2 minutes') \g /dev/null
select is(pg_temp.claimed('mortal', 3), 'yab', 'OP-10 Q-22: an expired job is passed over and does not count');
select is(pg_temp.at(pg_temp.named('mortal', 'x')), 'discarded/0/0', 'OP-10 SM-15: it is discarded'),
    is(error ->> 'type', 'expired', 'SM-15: as expired'),
    is(started_at, null, 'R-26: it never started'),
    is(completed_at, null, 'R-26: nor completed'),
    isnt(discarded_at, null, 'R-26: but has a time of discarding')
from ojs.jobs where id = pg_temp.named('mortal', 'x');
select pg_temp.clock('3 hours') \g /dev/null
select is((select state from ojs.jobs where id = pg_temp.named('mortal', 'y')), 'active',
    'OP-10: a job that runs does not expire');
select is((select count(*) from ojs_store.delayed where job_id = pg_temp.named('mortal', 'x')), 0::bigint,
    'OP-10: no reminder stays');
select pg_temp.clock('0') \g /dev/null

-- Stopped workers ----------------------------------------------------------------------------------------------------

select pg_temp.push_all('stop', 'abcdef') \g /dev/null
select is(directive, 'running', 'WRK-06: a worker that runs') from ojs.beat('halting', state => 'running');
select is(pg_temp.claimed('stop', 1, 'halting'), 'a', 'WRK-06: claims');
select is(directive, 'quiet', 'WRK-06: it says that it is quiet, and is not talked out of it')
    from ojs.beat('halting', state => 'quiet');
select is(pg_temp.claimed('stop', 1, 'halting'), '', 'WRK-06: and gets nothing');
select is(pg_temp.claimed('stop', 1, 'other'), 'b', 'WRK-06: others do');
select is(directive, 'running', 'WRK-06: it runs again') from ojs.beat('halting', state => 'running');
select is(pg_temp.claimed('stop', 1, 'halting'), 'c', 'WRK-06: and claims again');
select is(directive, 'quiet', 'R-65: drain') from ojs.beat('halting', state => 'drain');
select is(pg_temp.claimed('stop', 1, 'halting'), '', 'WRK-06 R-65: a draining worker gets nothing');
select ojs.set_worker_state('halting', 'terminate') \g /dev/null
select is(pg_temp.claimed('stop', 1, 'halting'), '', 'WRK-06: one that is told to terminate gets nothing');
select is(directive, 'terminate', 'WRK-05: and hears it with its next beat') from ojs.beat('halting');
select is(pg_temp.claimed('stop', 9), 'def', 'WRK-06: nothing was lost');

-- Waiting ------------------------------------------------------------------------------------------------------------

select pg_temp.push_all('wait', 'a') \g /dev/null
select clock_timestamp() as start \gset
select is((select args ->> 0 from ojs.claim('wait', 'w', wait => '30 s')), 'a', 'OP-11: who finds work does not wait');
select ok(clock_timestamp() - :'start'::timestamptz < interval '10 s', 'OP-11: and returns at once');
select clock_timestamp() as start \gset
select is((select count(*) from ojs.claim('wait', 'w', wait => '150 ms')), 0::bigint,
    'OP-11: who finds none gets none');
select ok(clock_timestamp() - :'start'::timestamptz >= interval '150 ms', 'OP-11: after the time given');
select is((select count(*) from ojs.claim('wait', 'w', wait => '-1 s')), 0::bigint, 'OP-11: a negative wait is none');
create function pg_temp.cancelled_while_waiting() returns boolean language plpgsql as $$
begin
    perform from ojs.claim('wait', 'w', wait => '1 hour');
    return false;
exception when query_canceled then
    return true;
end $$;
set local statement_timeout = '200 ms';
select pg_temp.cancelled_while_waiting() as cancelled \gset
set local statement_timeout = 0;
select ok(:'cancelled', 'OP-11: a wait can be cancelled');

-- What is due in other queues, and between two rounds of upkeep -------------------------------------------------------

select pg_temp.held('not.mine') as lapsed \gset
select pg_temp.push_all('mine', 'a') \g /dev/null
select pg_temp.clock('1 hour') \g /dev/null
select is((select count(*) from ojs.claim('mine', 'w')), 1::bigint, 'a claim in a transaction block');
select is((select count(*) from ojs.leases where job_id = :'lapsed'), 1::bigint,
    'Q-45: takes back nothing that it has no use for, and would hide from others');
select is((select count(*) from ojs.claim('mine', 'w')), 0::bigint, 'an upkeep of this moment');
select pg_temp.pushed('mortal', '{"expires_at": "+PT0.02S"}') as mortal \gset
select pg_temp.clock('1 hour 40 milliseconds') \g /dev/null
select is((select count(*) from ojs.claim('mortal', 'w')), 0::bigint,
    'SM-15: a claim hands out no expired job, though no upkeep has been there');
select is((select state || ' ' || (error ->> 'type') from ojs.jobs where id = :'mortal'), 'discarded expired',
    'SM-15: but discards it');
select pg_temp.pushed('later', '{"delay_until": "+PT1H"}') is null as pushed \gset
select pg_temp.clock('3 hours') \g /dev/null
select is(enqueued_at, scheduled_at, 'R-27: a claimed job was enqueued when it fell due') from ojs.claim('later', 'w');
select ojs.create_queue('rated', '{"claim_rate": 1}') is null as made \gset
select is((select count(*) from ojs.claim('{rated,rated}'::text[], 'w')), 0::bigint,
    'Q-68 OP-06: a queue that is named twice is claimed from once');
select pg_temp.clock('0') \g /dev/null

-- A text that cannot be a queue's name is a mistake, such as a list that a driver has written as text (R-87).
select is(pg_temp.refusal(format(statement, name)), case when length(name) > 128 then 'OJ114 QUEUE_NAME_TOO_LONG queue'
    else 'OJ102 INVALID_QUEUE queue' end, format(statement, left(name, 20)))
from unnest(array['{"probe","shop"}', '["a"]', 'My_Queue', '', repeat('q', 129)]) name, unnest(array[
    'select ojs.claim(%L, ''w'')', 'select ojs.claim(%L, ''w'', missing_ok => true)',
        'select ojs.claim(array[%L], ''w'', missing_ok => true)',
    'select ojs.work_open(%L, ''w'')',
    'select ojs.lease_claim(%L, ''{"node": "w"}'')', 'select ojs.ack_and_claim(''w'', %L, ''{}'')',
        'select ojs.pause_queue(%L)']) statement;
select is(pg_temp.refusal(format(statement, '{"probe"}')), 'OJ102 INVALID_QUEUE queue', format(statement, '{"probe"}'))
from unnest('{"select ojs.queue_info(%L)","select ojs.purge_queue(%L, confirm => true)","select '
            'ojs.drop_queue(%L)"}'::text[]) statement;
do $$ begin perform ojs.claim('{a}', 'w', missing_ok => true); exception when others then
    declare hint text; begin get stacked diagnostics hint = pg_exception_hint;
        perform set_config('test.hint', hint, true); end; end $$;
select is(current_setting('test.hint') like '%queues => $1%', true, 'the hint says how to pass a list');

-- Jobs that cannot be shown fail the claim once, and are then set aside: the others between and behind them come.
select pg_temp.push_all('broken', 'abcd') \g /dev/null
update ojs_store.job set retry = '{"max_attempts": "many"}'
    where id in (select id from ojs.jobs where queue = 'broken' and args ->> 0 in ('a', 'c'));
select isnt(pg_temp.refusal($$ select ojs.claim('broken', 'w', 4) $$), 'accepted',
    'a job that cannot be shown fails its claim');
select is(pg_temp.claimed('broken', 4), 'bd', 'the next claim passes it over, and any other');
select is((select string_agg(format('%s %s', d.state, d.error ->> 'type'), ', ') from ojs_store.finished d
    where d.queue = ojs_store.queue_id('broken')),
    '7 not_renderable, 7 not_renderable', 'and discards them with an error of their own');
select is((select count(*) from ojs.leases where queue = 'broken'), 2::bigint, 'nobody holds them');

select * from finish();
rollback;
