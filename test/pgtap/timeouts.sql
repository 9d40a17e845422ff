-- timeouts.sql: TMO-01 to TMO-07, RET-15, ERR-05: what time does to a job, with a tick and without one.
begin;
select no_plan();
\ir helpers.psql

create function pg_temp.tick() returns void language sql as $$ select ojs.tick() $$;
-- How a job ended or stands: state, type of its last error, and kind, limit and elapsed seconds of a timeout.
create function pg_temp.how(job_id uuid) returns text language sql stable as $$
    select concat_ws(' ', state, error ->> 'type', error ->> 'timeout_kind', error ->> 'limit_seconds',
        (error ->> 'elapsed_seconds')::numeric::int)
    from ojs.jobs where id = job_id
$$;
-- The same with an end that says how long it took, to which a slow machine may add.
create function pg_temp.ended(job_id uuid, want text, what text) returns text language plpgsql as $$
declare
    had text := pg_temp.how(job_id);
    added int := substring(had from '\d+$')::int - substring(want from '\d+$')::int;
begin
    return is(case when added between 1 and 30 then regexp_replace(had, '\d+$', substring(want from '\d+$')) else had
        end, want, what);
end $$;
-- A held job whose lease no one need fear for.
create function pg_temp.running(queue text, options jsonb default '{}') returns uuid language sql as
$$ select pg_temp.pushed(queue, options); select id from ojs.claim(queue, 'w', lease => '10 hours') $$;
create function pg_temp.beat(job uuid) returns text language sql as
$$ select concat_ws('/', cardinality(extended), cardinality(lost))
    from ojs.beat('w', array[job], lease => '10 hours') $$;
-- A clock that jumps ahead is silence of a worker, too: beats without jobs keep it alive.
create function pg_temp.go(ahead interval) returns void language sql as
$$ select pg_temp.clock(ahead); select ojs.beat('w'); select pg_temp.tick() $$;

-- Execution timeout ---------------------------------------------------------------------------------------------------

select pg_temp.running('exec', '{"timeout": 300}') as plain,
    pg_temp.running('exec2', '{"timeout": 300, "grace_period": 20}') as graceful,
    pg_temp.running('exec3', '{"timeout": 300, "retry": {"max_attempts": 1}}') as last,
        pg_temp.running('exec4', '{"timeout": 300, "retry": {"non_retryable_errors": ["timeout"]}}') as listed,
    pg_temp.running('exec5') as ordinary \gset
select pg_temp.go('270 s') \g /dev/null
select is(pg_temp.how(:'plain'), 'active', 'TMO-01: not before its time');
select pg_temp.clock('305 s') \g /dev/null
select is(pg_temp.beat(:'plain'), '1/0', 'TMO-01: heartbeats keep the lease');
select pg_temp.go('305 s') \g /dev/null
select pg_temp.ended(:'plain', 'retryable timeout execution 300 305',
    'TMO-01: but not the attempt: retryable, with kind, limit and elapsed seconds');
select pg_temp.ended(:'last', 'discarded timeout execution 300 305', 'TMO-01: discarded when the budget is spent');
select pg_temp.ended(:'listed', 'discarded timeout execution 300 305',
    'TMO-01: or where the policy does not retry timeouts');
select is(pg_temp.how(:'graceful'), 'active', 'TMO-01: a grace period comes on top');
select pg_temp.go('321 s') \g /dev/null
select pg_temp.ended(:'graceful', 'retryable timeout execution 300 321', 'TMO-01: and no more');
select pg_temp.go('1770 s') \g /dev/null
select is(pg_temp.how(:'ordinary'), 'active', 'R-09: half an hour is the default');
select pg_temp.go('1801 s') \g /dev/null
select pg_temp.ended(:'ordinary', 'retryable timeout execution 1800 1801', 'R-09: no more');
select pg_temp.clock('0') \g /dev/null
select pg_temp.running('short', '{"timeout_ms": 2000}') as id \gset
select pg_temp.clock('3500 ms') \g /dev/null
select is((select count(*) from ojs.claim('short', 'v')), 0::bigint,
    'TMO-02: a claim ends the attempt, without a tick'),
    is(pg_temp.how(:'id'), 'active', 'TMO-02: that this statement does not see');
select pg_temp.ended(:'id', 'retryable timeout execution 2 4', 'TMO-02: after 2 s, without grace');
select pg_temp.clock('0') \g /dev/null
select pg_temp.running('tiny', '{"timeout_ms": 1}') as id \gset
select pg_temp.clock('120 ms') \g /dev/null
select pg_temp.tick() \g /dev/null
select is(state || (error ->> 'type'), 'retryabletimeout', 'TMO-01: the shortest timeout is as good as 100 ms')
    from ojs.jobs where id = :'id';

-- Heartbeat stall -----------------------------------------------------------------------------------------------------

select pg_temp.clock('0') \g /dev/null
select pg_temp.running('stall', '{"heartbeat_timeout": 10}') as quick, pg_temp.running('stall2') as plain,
    pg_temp.running('stall3', '{"heartbeat_timeout": 10}') as silent,
    pg_temp.running('stall4', '{"heartbeat_timeout": 10, "retry": {"max_attempts": 1}}') as last,
        pg_temp.running('stall5', '{"heartbeat_timeout": 300}') as slow \gset
select ojs.beat('w', array[:'quick', :'plain', :'last', :'slow']::uuid[], lease => '10 hours') \g /dev/null
select pg_temp.go('5 s') \g /dev/null
select is(pg_temp.how(:'quick'), 'active', 'TMO-03: not before its time');
select is(pg_temp.beat(:'quick'), '1/0', 'TMO-03: a beat for the job begins the time anew');
select pg_temp.go('11 s') \g /dev/null
select is(pg_temp.how(:'quick'), 'active', 'TMO-03: counted from the last beat'),
    pg_temp.ended(:'last', 'discarded stalled stalled 10 11', 'TMO-03: stalled; discarded when the budget is spent');
select pg_temp.go('20 s') \g /dev/null
select pg_temp.ended(:'quick', 'retryable stalled stalled 10 15',
    'TMO-03 R-18: stalled: retryable, with kind, limit and elapsed seconds');
select is(pg_temp.beat(:'quick'), '0/1', 'TMO-03: and lost to its worker');
select pg_temp.go('25 s') \g /dev/null
select pg_temp.go('50 s') \g /dev/null
select is(pg_temp.how(:'silent'), 'active', 'TMO-03: without any beat for the job nothing stalls');
select is(pg_temp.how(:'plain'), 'active', 'TMO-03: 60 s are the default');
select pg_temp.go('61 s') \g /dev/null
select pg_temp.ended(:'plain', 'retryable stalled stalled 60 61', 'TMO-03: no more');
select is(pg_temp.how(:'slow'), 'active', 'TMO-03: a longer one');
select pg_temp.go('90 s') \g /dev/null
select pg_temp.go('301 s') \g /dev/null
select pg_temp.ended(:'slow', 'retryable stalled stalled 300 301', 'TMO-03: is heeded, too');
select pg_temp.clock('0') \g /dev/null
select pg_temp.running('lazy', '{"heartbeat_timeout": 2}') as id \gset
select pg_temp.beat(:'id') \g /dev/null
select pg_temp.clock('3 s') \g /dev/null
select count(*) as claimed from ojs.claim('lazy', 'v') \gset
select pg_temp.ended(:'id', 'retryable stalled stalled 2 3', 'TMO-03: a claim finds the stalled, without a tick');
select pg_temp.clock('0') \g /dev/null
select pg_temp.held('lapse', 'w', '{"heartbeat_timeout": 40}') as id \gset
select ojs.beat('w', array[:'id']::uuid[]) \g /dev/null
select pg_temp.go('41 s') \g /dev/null
select is(pg_temp.how(:'id'), 'available visibility_timeout',
    'TMO-03: a lease that ran out sooner is what counts, however late upkeep comes');
select pg_temp.clock('0') \g /dev/null
select pg_temp.running('both', '{"heartbeat_timeout": 40, "timeout": 30}') as id \gset
select pg_temp.beat(:'id') \g /dev/null
select pg_temp.go('41 s') \g /dev/null
select pg_temp.ended(:'id', 'retryable timeout execution 30 41', 'TMO-01: and so is a timeout');
select pg_temp.clock('0') \g /dev/null
select pg_temp.held('lapse2', 'w', '{"timeout": 60}') as id,
    pg_temp.running('both3', '{"heartbeat_timeout": 30, "timeout": 40}') as stalled \gset
select pg_temp.beat(:'stalled') \g /dev/null
select pg_temp.go('61 s') \g /dev/null
select is(pg_temp.how(:'id'), 'available visibility_timeout',
    'TMO-01: a lease that ran out before the timeout is what counts'),
    pg_temp.ended(:'stalled', 'retryable stalled stalled 30 61', 'TMO-03: and a silence');
select pg_temp.clock('0') \g /dev/null
select pg_temp.running('brief', '{"heartbeat_timeout": 0.001}') as id \gset
select pg_temp.beat(:'id') \g /dev/null
select is(reap_at - beat_at, '100 ms', 'TMO-03: the shortest heartbeat_timeout is as good as 100 ms')
    from ojs_store.lease where job_id = :'id';

-- Enqueue TTL ---------------------------------------------------------------------------------------------------------

select pg_temp.clock('0') \g /dev/null
select pg_temp.pushed('ttl', '{"enqueue_ttl": 60}') as waiting,
    pg_temp.pushed('ttl', '{"enqueue_ttl": 60, "pending": true}') as pending,
    pg_temp.pushed('ttl', '{"enqueue_ttl": 60, "delay_until": "+PT1H"}') as scheduled,
        pg_temp.running('ttl2', '{"enqueue_ttl": 60}') as running,
        pg_temp.running('ttl3', '{"enqueue_ttl": 60}') as returned \gset
select pg_temp.go('40 s') \g /dev/null
select is(pg_temp.how(:'waiting'), 'available', 'TMO-04: not before its time');
select ojs.nack(:'returned', '1 min') \g /dev/null
select pg_temp.clock('61 s') \g /dev/null
select count(*) as claimed from ojs.claim('ttl', 'v') \gset
select pg_temp.ended(:'waiting', 'discarded enqueue_ttl_expired enqueue_ttl 60 61',
    'TMO-04: discarded by a claim, without a tick');
select pg_temp.go('61 s') \g /dev/null
select pg_temp.ended(:'pending', 'discarded enqueue_ttl_expired enqueue_ttl 60 61', 'TMO-04: pending, by a tick'),
    pg_temp.ended(:'scheduled', 'discarded enqueue_ttl_expired enqueue_ttl 60 61', 'TMO-04: scheduled');
select is(pg_temp.how(:'running'), 'active', 'TMO-04: one that runs has been in time'),
    is(pg_temp.how(:'returned'), 'available', 'TMO-04: for good');

-- Total timeout -------------------------------------------------------------------------------------------------------

select pg_temp.clock('0') \g /dev/null
select pg_temp.pushed('total', '{"total_timeout": 100}') as waiting,
    pg_temp.pushed('total2', '{"total_timeout": 100, "pending": true}') as pending,
    pg_temp.pushed('total3', '{"total_timeout": 100, "delay_until": "+PT1H"}') as scheduled,
        pg_temp.running('total4', '{"total_timeout": 100}') as running,
    pg_temp.running('total5',
        '{"total_timeout": 100, "retry": {"on_exhaustion": "dead_letter", "initial_interval": "PT90S", "jitter": '
        'false}}') as retryable,
    pg_temp.running('total6',
        '{"total_timeout": 100, "retry": {"initial_interval": "PT200S", "jitter": false}}') as unfit,
    pg_temp.running('total7',
        '{"total_timeout": 100, "timeout": 20, "retry": {"initial_interval": "PT81S", "jitter": false}}') as unfit2,
    pg_temp.running('total8',
        '{"total_timeout": 100, "timeout": 20, "retry": {"initial_interval": "PT70S", "jitter": false}}') as fit,
    pg_temp.running('total9', '{"total_timeout": 100}') as returned,
        pg_temp.running('total10', '{"total_timeout": 100}') as done \gset
select is(state, 'retryable', 'RET-15: a retry that fits') from ojs.fail(:'retryable', '{"type": "t", "message": "m"}');
select is(state || (error ->> 'type') || (errors -> 0 ->> 'type') || jsonb_array_length(errors),
    'discardedtotal_timeoutboom2',
    'RET-15 TMO-05: one that would begin too late discards; the failure itself stays among the errors')
from ojs.fail(:'unfit', '{"type": "boom", "message": "m"}');
select pg_temp.ended(:'unfit', 'discarded total_timeout total 100 0', 'TMO-05: kind, limit and elapsed seconds'),
    is(attempt, 1, 'RET-15: with attempts left') from ojs.jobs where id = :'unfit';
select is(state, 'discarded', 'RET-15: one that could not finish')
    from ojs.fail(:'unfit2', '{"type": "t", "message": "m"}');
select is(state, 'retryable', 'RET-15: one that can') from ojs.fail(:'fit', '{"type": "t", "message": "m"}');
select state as acked from ojs.ack(:'done') \gset
select ojs.nack(:'returned') \g /dev/null
select pg_temp.go('84 s') \g /dev/null
select is((select count(*) from ojs.jobs where queue like 'total%' and state <> 'discarded'), 8::bigint,
    'TMO-05: not before its time');
select is((select id from ojs.claim('total5', 'w')), null, 'TMO-05: still waiting');
select pg_temp.go('101 s') \g /dev/null
select pg_temp.ended(id, 'discarded total_timeout total 100 101', 'TMO-05: discarded at once, whatever it was: ' || was)
from (values (:'waiting'::uuid, 'available'), (:'pending', 'pending'), (:'scheduled', 'scheduled'),
    (:'running', 'active, its lease alive'), (:'returned', 'released'), (:'fit', 'retryable')) j (id, was);
select pg_temp.ended(:'retryable', 'discarded total_timeout total 100 101', 'TMO-05: retryable or available again'),
    is((select count(*) from ojs.dead_letters where id = :'retryable'), 1::bigint,
    'TMO-05: on_exhaustion decides where it goes');
select is(pg_temp.how(:'done'), 'completed', 'TMO-05: what is done is done');
select is((select count(*) from ojs_store.delayed l join ojs.jobs j on j.id = l.job_id where j.queue like 'total%'),
    0::bigint, 'TMO-05: no reminder stays');
select is((started_at is not null, completed_at is not null, jsonb_array_length(errors))::text, '(t,t,1)',
    'R-26 TMO-05: the one that ran, with one error') from ojs.jobs where id = :'running';
select pg_temp.clock('0') \g /dev/null
select pg_temp.pushed('lazy2', '{"total_timeout": 5}') as waiting,
    pg_temp.running('lazy3', '{"total_timeout": 5}') as running \gset
select pg_temp.clock('6 s') \g /dev/null
select is((select count(*) from ojs.claim('{lazy2,lazy3}'::text[], 'v', 5)), 0::bigint,
    'TMO-05: a claim gets neither, without a tick');
select pg_temp.ended(id, 'discarded total_timeout total 5 6', 'TMO-05: and discards them')
    from unnest(array[:'waiting', :'running']::uuid[]) id;
select pg_temp.clock('0') \g /dev/null
select pg_temp.running('both2', '{"total_timeout": 50, "timeout": 40, "retry": {"max_attempts": 10}}') as id \gset
select pg_temp.go('41 s') \g /dev/null
select pg_temp.ended(:'id', 'discarded total_timeout total 50 41',
    'RET-15: after an execution timeout, too, no retry that cannot fit');
select is(jsonb_path_query_array(errors, '$.type'), '["timeout", "total_timeout"]',
    'RET-15: both are among its errors') from ojs.jobs where id = :'id';
select pg_temp.clock('0') \g /dev/null
select pg_temp.held('dead', 'w2', '{"total_timeout": 20}') as id \gset
select ojs.beat('w2', array[:'id']::uuid[], lease => '1 hour') \g /dev/null
select pg_temp.go('40 s') \g /dev/null
select pg_temp.ended(:'id', 'discarded total_timeout total 20 40', 'TMO-05: a dead worker''s job, too');

-- A reminder that falls due while the job runs asks again in time for the next limit, however long the lease.
select pg_temp.clock('0') \g /dev/null
select pg_temp.running('again', '{"enqueue_ttl": 10, "total_timeout": 100}') as id \gset
select pg_temp.go('11 s') \g /dev/null
select ojs.nack(:'id') \g /dev/null
select pg_temp.go('80 s') \g /dev/null
select is(pg_temp.how(:'id'), 'available', 'TMO-05: given back');
select pg_temp.go('101 s') \g /dev/null
select pg_temp.ended(:'id', 'discarded total_timeout total 100 101', 'TMO-05: it ends by a tick, in time');

-- What a job without such limits does not pay for.
select pg_temp.clock('0') \g /dev/null
select pg_temp.pushed('plain') as id \gset
select is((select flags & (4 | 64) from ojs_store.job where id = :'id'), 0,
    'TMO-01: no flag says that its options must be looked at');
select is((select count(*) from ojs_store.delayed where job_id = :'id'), 0::bigint, 'TMO-05: nor is there a reminder');

select * from finish();
rollback;
