-- lease.sql: keeping jobs and signs of life: Q-20, Q-41 to Q-44, R-33, R-80, WRK-01 to WRK-05, WRK-09.
begin;
select no_plan();
\ir helpers.psql

create function pg_temp.length_of(job uuid) returns interval language sql stable as
$$ select lease_expires_at - claimed_at from ojs.leases where job_id = job $$;

-- ojs.extend ---------------------------------------------------------------------------------------------------------

select pg_temp.held() as id \gset
select pg_temp.token(:'id') as token \gset
select is(e.state || '/' || attempt || '/' || deliveries, 'active/1/1', 'Q-42: extending counts nothing'),
    is(e.worker, 'w', 'Q-42: still the same worker''s')
from ojs.extend(:'id', '10 minutes') e;
select is(l.lease_id, :'token', 'Q-42 R-80: the lease keeps its id'),
    ok(l.lease_expires_at - clock_timestamp() between interval '9 min 50 s' and '10 min',
    'Q-41: its deadline is now and the length')
from ojs.leases l where job_id = :'id';
select ojs.extend(:'id', '10 minutes') is null as extended \gset
select ok(lease_expires_at - clock_timestamp() between interval '9 min 50 s' and '10 min',
    'Q-41: lengths never add up') from ojs.leases where job_id = :'id';
select ojs.extend(:'id', '5 seconds') is null as extended \gset
select ok(lease_expires_at - clock_timestamp() < interval '5 s', 'Q-41: a lease may be shortened') from ojs.leases
    where job_id = :'id';
select ojs.extend(:'id', '1 ms') is null as extended \gset
select ok(lease_expires_at <= clock_timestamp() + interval '100 ms', 'Q-41 R-33: to 100 ms') from ojs.leases
    where job_id = :'id';
select ojs.extend(:'id', '1 year') is null as extended \gset
select ok(lease_expires_at - clock_timestamp() between interval '23 h' and '24 h',
    'Q-41 R-33: lengthened to a day at most') from ojs.leases where job_id = :'id';
select is(left(pg_temp.refusal(format('select ojs.extend(%L, null)', :'id')), 21), 'OJ100 INVALID_PAYLOAD',
    'Q-41: a length must be given');
select is(pg_temp.refusal(format('select ojs.extend(%L, %L, %L)', :'id', '1 min', 'lease_0000000000000000')),
    'OJ311 LEASE_NOT_HELD', 'R-22: another lease''s');
select is(pg_temp.refusal(format('select ojs.extend(%L, %L, worker => %L)', :'id', '1 min', 'v')),
    'OJ311 LEASE_NOT_HELD', 'R-22 DLV-06: another worker''s');
select is(pg_temp.refusal(format('select ojs.extend(%L, %L, %L, %L)', :'id', '1 min', :'token', 'w')), 'accepted',
    'R-22: the holder''s');
select is(pg_temp.refusal($$ select ojs.extend('01920000-0000-7000-8000-00000000000c', '1 min') $$), 'OJ300 NOT_FOUND',
    'Q-41: an unknown job');

-- An extended lease lives on past its first deadline, and a shortened one ends before it.
select pg_temp.held('long') as long \gset
select pg_temp.held('short') as short \gset
select ojs.extend(:'long', '5 minutes') is null as extended, ojs.extend(:'short', '2 seconds') is null as extended \gset
select pg_temp.clock('3 seconds') \g /dev/null
select is((select count(*) from ojs.claim('short', 'v')), 1::bigint,
    'Q-41: a shortened lease lapses at its new deadline');
select pg_temp.clock('1 minute') \g /dev/null
select is((select count(*) from ojs.claim('long', 'v')), 0::bigint, 'Q-41: a lengthened one does not at its old');
select ojs.tick() is null as ticked \gset
select is(worker, 'w', 'Q-41: nor by a tick') from ojs.leases where job_id = :'long';
select ojs.tick() is null as ticked \gset
select pg_temp.clock('299 seconds') \g /dev/null
select is((select count(*) from ojs.claim('long', 'v')), 0::bigint, 'Q-41: it lives to its new deadline');
select pg_temp.clock('301 seconds') \g /dev/null
select is((select count(*) from ojs.claim('long', 'v')), 1::bigint, 'Q-41 Q-45: and no longer');
select is(pg_temp.refusal(format('select ojs.extend(%L, %L, worker => %L)', :'long', '1 min', 'w')),
    'OJ311 LEASE_NOT_HELD', 'Q-43: then the old holder cannot extend');
select is(skipped, array[:'long'::uuid], 'Q-43: and is skipped')
    from ojs.extend_many('w', array[:'long'::uuid], '1 min');
select pg_temp.clock('0') \g /dev/null
select pg_temp.held('lapsed') as lapsed \gset
select pg_temp.clock('40 seconds') \g /dev/null
select is(pg_temp.refusal(format('select ojs.extend(%L, %L, worker => %L)', :'lapsed', '1 min', 'w')), 'accepted',
    'R-21: a late extension counts while nobody has taken the job back');
select ojs.tick() is null as ticked \gset
select is(worker, 'w', 'R-21: and the lease lives on') from ojs.leases where job_id = :'lapsed';
select pg_temp.clock('0') \g /dev/null

-- ojs.extend_many ----------------------------------------------------------------------------------------------------

select array_agg(p.id order by n) as ids from generate_series(1, 4) n,
    ojs.push('test.job', to_jsonb(array[n]), queue => 'many') p \gset
select count(*) as claimed from ojs.claim('many', 'anna', 2) \gset
select count(*) as claimed from ojs.claim('many', 'berta', 1) \gset
create temp table many as select * from ojs.extend_many('anna',
    array[(:'ids'::uuid[])[4], (:'ids'::uuid[])[2], (:'ids'::uuid[])[3], (:'ids'::uuid[])[1]], '7 minutes');
select is(done, 2, 'Q-41: those held by the worker'),
    is(skipped, array[(:'ids'::uuid[])[4], (:'ids'::uuid[])[3]],
    'Q-41 Q-44: the others are skipped, in order'),
    ok(deadline - clock_timestamp() between interval '6 min 50 s' and '7 min', 'Q-42: the deadline') from many;
select is((select count(*) from ojs.leases join many on lease_expires_at = deadline), 2::bigint,
    'Q-42: is that of the leases');
select is((select length_of from pg_temp.length_of((:'ids'::uuid[])[3])), '30 seconds',
    'DLV-06: another worker''s is as it was');
select is(done, 1, 'Q-35: an id named twice counts once'),
    is(skipped, (:'ids'::uuid[])[1:1], 'Q-35: and is skipped once')
from ojs.extend_many('anna', array[(:'ids'::uuid[])[1], (:'ids'::uuid[])[1]], '1 min');
select is(done || '/' || cardinality(skipped), '1/1', 'Q-31: tokens are compared')
    from ojs.extend_many('anna', (:'ids'::uuid[])[1:2], '1 min',
    array[pg_temp.token((:'ids'::uuid[])[1]), pg_temp.token((:'ids'::uuid[])[1])]);
select is(left(pg_temp.refusal(format('select ojs.extend_many(%L, %L, null)', 'anna', :'ids')), 21),
    'OJ100 INVALID_PAYLOAD', 'Q-41: a length must be given');
select is(pg_temp.refusal(format('select ojs.extend_many(null, %L, %L)', :'ids', '1 min')),
    'OJ100 INVALID_PAYLOAD worker', 'Q-41: a worker must be given');

-- ojs.beat -----------------------------------------------------------------------------------------------------------

select pg_temp.held('b1', 'anna') as a, pg_temp.held('b2', 'anna') as b, pg_temp.held('b3', 'anna') as c,
    pg_temp.held('b4', 'berta') as d \gset
select ojs.extend(:'a', '1 hour') is null as extended \gset
select ojs.cancel(:'c') is null as cancelled \gset
create temp table beat as select * from ojs.beat('anna',
    array[:'d', :'c', :'b', :'a', '01920000-0000-7000-8000-00000000000c']::uuid[], 'running',
    '{"hostname": "h1", "pid": 77}');
select is(directive, 'running', 'WRK-03: a directive'),
    is(extended, array[:'b', :'a']::uuid[], 'WRK-02 WRK-03: held jobs are extended, in the order of the request'),
    is(cancelled, array[:'c']::uuid[], 'WRK-03 R-24: a cancelled job is reported'),
    is(lost, array[:'d', '01920000-0000-7000-8000-00000000000c']::uuid[],
        'WRK-03: another''s and an unknown one are lost') from beat;
select ok(lease_expires_at - clock_timestamp() between interval '25 s' and '30 s',
    'WRK-02: by each job''s own effective length') from ojs.leases where job_id in (:'a', :'b');
select ok(lease_expires_at - clock_timestamp() < interval '30 s' and worker = 'berta',
    'WRK-02: another''s is left alone') from ojs.leases where job_id = :'d';
select is(info, '{"hostname": "h1", "pid": 77}', 'WRK-01: what it told of itself is kept'),
    is(state, 'running', 'WRK-01: and its state'),
    is(beats, true, 'WRK-04: it was registered'),
    is(seen_at >= registered_at, true, 'WRK-01: and seen') from ojs_store.worker where name = 'anna';
select is(extended, array[:'a']::uuid[], 'WRK-02: with a length given')
    from ojs.beat('anna', array[:'a']::uuid[], lease => '20 minutes');
select ok(lease_expires_at - clock_timestamp() between interval '19 min' and '20 min', 'WRK-02: that length')
    from ojs.leases where job_id = :'a';
select is(pg_temp.token(:'a') is not null, true, 'R-80: the lease is the same');
select is(extended || cancelled || lost, '{}', 'WRK-01: a beat without jobs') from ojs.beat('anna');
select is(extended || lost, array[:'a', :'d']::uuid[],
    'Q-35: a job named twice counts once, in the order of the first')
    from ojs.beat('anna', array[:'a', :'d', :'a', :'d']::uuid[]);
select id as long from ojs.push('test.job', queue => 'own') \gset
select count(*) as claimed from ojs.claim('own', 'anna', lease => '7 minutes') \gset
select pg_temp.clock('1 minute') \g /dev/null
select ojs.beat('anna', array[:'long']::uuid[]) \g /dev/null
select is(lease_expires_at - claimed_at > '7 minutes 59 s' and lease_expires_at - claimed_at < '9 minutes', true,
    'WRK-02: without one each lease is renewed by its own length') from ojs.leases where job_id = :'long';
select state as failed from ojs.fail(:'long', '{"code": "DISCARD", "message": "m"}') \gset
select is(concat(cancelled, lost), format('{}{%s}', :'long'),
    'WRK-03: a job that ended otherwise is lost, not cancelled') from ojs.beat('anna', array[:'long']::uuid[]);
select pg_temp.clock('0') \g /dev/null
select is(directive, 'quiet', 'WRK-01 R-65: drain') from ojs.beat('anna', state => 'drain');
select is(state, 'quiet', 'R-65: is quiet') from ojs_store.worker where name = 'anna';
select matches(pg_temp.refusal($$ select ojs.beat('anna', state => 'asleep') $$), '^OJ100 INVALID_PAYLOAD state',
    'WRK-01: an unknown state');
select is(pg_temp.refusal($$ select ojs.beat('anna', info => '[]') $$), 'OJ100 INVALID_PAYLOAD info',
    'WRK-01: info is an object');
select is(pg_temp.refusal($$ select ojs.beat(null) $$), 'OJ100 INVALID_PAYLOAD worker',
    'WRK-01: a worker must be given');
select is(pg_temp.refusal($$ select ojs.beat('') $$), 'OJ100 INVALID_PAYLOAD worker', 'WRK-01: with a name');
select is(pg_temp.refusal(format('select ojs.beat(%L)', worker)), refused,
    format('WRK-01: %s bytes are %s', octet_length(worker), refused)) from (values
    (repeat('ä', 127) || 'x', 'accepted'), (repeat('ä', 128), 'OJ100 INVALID_PAYLOAD worker'),
        (repeat('x', 1000000), 'OJ100 INVALID_PAYLOAD worker')) w (worker, refused);
select is(pg_temp.refusal(format('select ojs.beat(%L, state => %L)', 'w', repeat('x', 1000))),
    'OJ100 INVALID_PAYLOAD state', 'WRK-01: a state that is none');
select ojs.set_worker_state('anna', 'quiet') \g /dev/null
select is(directive, 'quiet', 'WRK-05: what a worker is told comes with its next beat') from ojs.beat('anna');

-- WRK-09: a worker that comes back to life.
select pg_temp.held('revive', 'dora') as id \gset
select pg_temp.clock('1 minute') \g /dev/null
select ojs.tick() is null as ticked \gset
select is(lost, array[:'id']::uuid[], 'WRK-09: whose job was taken back hears that it is lost')
    from ojs.beat('dora', array[:'id']::uuid[]);
select is(pg_temp.refusal(format('select ojs.ack(%L, worker => %L)', :'id', 'dora')), 'OJ105 INVALID_STATE_TRANSITION',
    'WRK-09: and its ack is refused');
select pg_temp.clock('0') \g /dev/null

-- By how much, and where upkeep looks.
select pg_temp.pushed('own.length') is null as pushed \gset
select id as long from ojs.claim('own.length', 'eve', lease => '5 minutes') \gset
select pg_temp.clock('1 minute') \g /dev/null
select is(extended, array[:'long']::uuid[], 'WRK-02: a beat') from ojs.beat('eve', array[:'long']::uuid[]);
select is(lease_expires_at - ojs_store.now() between '299 s' and '5 minutes', true,
    'WRK-02: extends a lease by its own length') from ojs.leases where job_id = :'long';
select pg_temp.held('moved.on', 'fred') as moved \gset
select ojs.extend(:'moved', '10 minutes') is null as extended \gset
select is((select reap_at < deadline from ojs_store.lease where job_id = :'moved'), true,
    'Q-42: an extension leaves the row where upkeep finds it');
select pg_temp.clock('2 minutes') \g /dev/null
select ojs.tick() is null as ticked \gset
select is((select reap_at > ojs_store.now() from ojs_store.lease where job_id = :'moved'), true,
    'Q-46: which moves it to where it may really end');
select pg_temp.clock('0') \g /dev/null

select * from finish();
rollback;
