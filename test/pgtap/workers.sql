-- workers.sql: what workers are told, which there are, and those whose heartbeats stop: WRK-01 to WRK-12, DLV-04,
-- GS-02.
begin;
select no_plan();
\ir helpers.psql
set local ojs.event_retention = 2147483647; -- the clock goes far ahead here

create function pg_temp.tell(worker text, state text) returns void language sql as $$
    select ojs.set_worker_state(worker, state) $$;
create function pg_temp.beat(worker text, state text default 'running', jobs uuid[] default '{}') returns text
    language sql as
$$ select directive from ojs.beat(worker, jobs, state) $$;
create function pg_temp.status(worker text) returns text language sql as $$ select status from ojs.workers
    where workers.worker = status.worker $$;
create function pg_temp.claims(worker text, queue text) returns bigint language sql as $$ select count(*)
    from ojs.claim(queue, worker) $$;
create function pg_temp.push_some(queue text, n int) returns bigint language sql as
$$ select count((select id from ojs.push('test.job', queue => queue))) from generate_series(1, n)
    where queue is not null $$;
create function pg_temp.many(queue text, n int) returns bigint language plpgsql as $$
begin
    for i in 1 .. n loop
        perform ojs.push('test.job', queue => queue);
    end loop;
    return n;
end $$;

-- Directives ----------------------------------------------------------------------------------------------------------

select pg_temp.many('told', 20) \g /dev/null
select is(pg_temp.beat('anna'), 'running', 'WRK-04: a worker that nobody knows is registered by its first beat');
select is(pg_temp.claims('anna', 'told'), 1::bigint, 'WRK-06: a running worker claims');
select pg_temp.tell('anna', 'quiet') \g /dev/null
select is(pg_temp.claims('anna', 'told'), 0::bigint, 'WRK-06: a quiet one gets nothing, even before it knows');
select is((select count(*) from ojs.claim('{told}'::text[], 'anna', 5)), 0::bigint, 'WRK-06: by no kind of claim');
select is(pg_temp.beat('anna'), 'quiet', 'WRK-05: and hears it with its next beat');
select is(pg_temp.beat('anna', 'quiet'), 'quiet', 'WRK-05: and again');
select is(pg_temp.status('anna'), 'quiet', 'GS-02: its health shows it');
select pg_temp.tell('anna', 'running') \g /dev/null
select is(pg_temp.beat('anna', 'quiet'), 'running', 'WRK-05: quiet can be taken back');
select is(pg_temp.beat('anna', 'running'), 'running', 'WRK-05: and is');
select is(pg_temp.claims('anna', 'told'), 1::bigint, 'WRK-05 WRK-06: it claims again');
select is(pg_temp.beat('anna', 'drain'), 'quiet', 'R-65 GS-02: a worker that drains by itself is not told to run');
select is(pg_temp.status('anna'), 'quiet', 'GS-02: its health shows that it drains'),
    is(pg_temp.claims('anna', 'told'), 0::bigint, 'GS-02: and its claims are empty');
select is(pg_temp.beat('anna'), 'running', 'WRK-05: until it says that it runs');
select pg_temp.tell('anna', 'drain') \g /dev/null
select is(pg_temp.beat('anna'), 'quiet', 'R-65: drain is quiet');
select pg_temp.tell('anna', 'terminate') \g /dev/null
select is(pg_temp.beat('anna'), 'terminate', 'WRK-05: from quiet to terminate');
select is(pg_temp.status('anna'), 'terminate', 'WRK-05: its status says so');
select is(pg_temp.refusal($$ select ojs.set_worker_state('anna', 'running') $$), 'OJ105 INVALID_STATE_TRANSITION',
    'WRK-05: terminate never goes back to running');
select is(pg_temp.refusal($$ select ojs.set_worker_state('anna', 'quiet') $$), 'OJ105 INVALID_STATE_TRANSITION',
    'WRK-05: nor to quiet');
select is(pg_temp.refusal($$ select ojs.set_worker_state('anna', 'terminate') $$), 'accepted',
    'WRK-05: saying it twice is saying it once');
select is(pg_temp.beat('berta', 'terminate'), 'terminate', 'WRK-05: one that terminates by itself');
select is(pg_temp.refusal($$ select ojs.set_worker_state('berta', 'quiet') $$), 'OJ105 INVALID_STATE_TRANSITION',
    'WRK-05: does not come back either');

select pg_temp.tell('cleo', 'quiet') \g /dev/null
select is(pg_temp.beat('cleo', 'terminate'), 'terminate', 'WRK-05: nor is it told to be quiet');

select pg_temp.tell('carla', 'quiet') \g /dev/null
select is(pg_temp.claims('carla', 'told'), 0::bigint, 'WRK-06: a worker without heartbeats heeds it, too');
select pg_temp.tell('carla', 'running') \g /dev/null
select is(pg_temp.claims('carla', 'told'), 1::bigint, 'WRK-05: and its end');
select pg_temp.tell('nobody', 'running') \g /dev/null
select is(pg_temp.status('nobody'), null, 'WRK-05: an unknown worker that is to run leaves no trace');
select is(pg_temp.beat('dora'), 'running', 'WRK-04: one more worker');
select pg_temp.tell(null, 'quiet') \g /dev/null
select is(array[pg_temp.beat('anna'), pg_temp.beat('berta', 'terminate'), pg_temp.beat('dora')],
    '{terminate,terminate,quiet}', 'WRK-05: all at once, but nobody comes back from terminate');
select is(pg_temp.claims('carla', 'told'), 0::bigint, 'WRK-05: all are also those that only hold jobs');
select is(pg_temp.claims('emma', 'told'), 1::bigint, 'WRK-05: but not those that come later');
select pg_temp.tell(null, 'running') \g /dev/null
select is(pg_temp.claims('carla', 'told'), 1::bigint, 'WRK-05: and back');
select is(pg_temp.refusal($$ select ojs.set_worker_state('anna', 'asleep') $$), 'OJ100 INVALID_PAYLOAD state',
    'WRK-05: an unknown state is refused');
select is(pg_temp.refusal($$ select ojs.set_worker_state('anna', null) $$), 'OJ100 INVALID_PAYLOAD state',
    'WRK-05: and none');
select is(pg_temp.beat('frank', 'drain'), 'quiet', 'WRK-10: a worker may say drain for quiet'),
    is(pg_temp.claims('frank', 'told'), 0::bigint, 'WRK-10: and then gets nothing');
select is(state, 'quiet', 'WRK-10: what it said is kept') from ojs.workers where worker = 'frank';
select is(pg_temp.refusal($$ select ojs.beat('frank', '{}', 'asleep') $$), 'OJ100 INVALID_PAYLOAD state',
    'WRK-10: an unknown state is refused');
select is(pg_temp.beat('frank', 'running'), 'running', 'WRK-10: it may go on');
select is(state, 'running', 'WRK-10: and so it stands') from ojs.workers where worker = 'frank';
select is(pg_temp.refusal($$ select ojs.set_worker_state('', 'quiet') $$), 'OJ100 INVALID_PAYLOAD worker',
    'WRK-05: and a worker without a name');

-- Registration --------------------------------------------------------------------------------------------------------

select ojs.register_worker('greta',
    '{"hostname": "h1", "pid": 77, "queues": ["told", "b"], "concurrency": 10, "labels": ["canary"]}')
    as registered \gset
select is(:'registered'::jsonb - 'server_time',
    '{"ok": true, "heartbeat_interval": 5, "heartbeat_timeout": 30, "visibility_timeout_default": 30}',
    'WRK-04: what a worker is told when it registers');
select matches(:'registered'::jsonb ->> 'server_time', '^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$',
    'WRK-04: the time of the server');
select is((worker, status, state, directive, hostname, pid, queues, concurrency, labels, active_jobs,
    active_job_ids)::text,
    '(greta,running,running,,h1,77,"{told,b}",10,{canary},0,{})', 'WRK-01: what it says of itself can be read')
        from ojs.workers where worker = 'greta';
set local ojs.default_lease = '1500 ms';
select is(ojs.register_worker('greta') -> 'visibility_timeout_default', '1.5',
    'WRK-04: the length of leases, as it is set');
reset ojs.default_lease;
select id as held from ojs.claim('told', 'greta') \gset
select is((active_jobs, active_job_ids)::text, format('(1,{%s})', :'held'), 'WRK-01: the jobs it holds')
    from ojs.workers where worker = 'greta';
select pg_temp.tell('greta', 'terminate') \g /dev/null
select is(pg_temp.beat('greta'), 'terminate', 'WRK-05: it is told to terminate');
select is(ojs.register_worker('greta') -> 'ok', 'true', 'WRK-04: a new process of that name');
select is(pg_temp.beat('greta'), 'running', 'WRK-04: begins anew'),
    is(pg_temp.claims('greta', 'told'), 1::bigint, 'WRK-04: and claims');
select ojs.register_worker('odd', '{"pid": "many", "queues": "q", "concurrency": -1, "labels": {"a": 1}}') \g /dev/null
select is((hostname, pid, queues, concurrency, labels)::text, '(,,,,)',
    'WRK-01: what cannot be read as such is only in info') from ojs.workers where worker = 'odd';
select is(pg_temp.refusal($$ select ojs.register_worker('odd', '[]') $$), 'OJ100 INVALID_PAYLOAD info',
    'WRK-04: info is an object');
select is(pg_temp.refusal($$ select ojs.register_worker(null) $$), 'OJ100 INVALID_PAYLOAD worker',
    'WRK-04: a worker has a name');
select is(pg_temp.refusal(format('select ojs.register_worker(%L)', repeat('x', 256))), 'OJ100 INVALID_PAYLOAD worker',
    'WRK-04: of at most 255 bytes');
select is(status || '/' || active_jobs, 'running/2', 'WRK-01: a worker that only claims is listed with what it holds')
    from ojs.workers where worker = 'carla' and state = 'running';
select is((status, state, directive, active_jobs)::text, '(running,,,1)',
    'WRK-01: even if nothing else is known of it') from ojs.workers where worker = 'emma';
select is((select count(*) from ojs_store.worker where name = 'emma'), 0::bigint,
    'WRK-01: a claim writes no row for its worker');
select pg_temp.pushed('in.order'), pg_temp.pushed('in.order'), pg_temp.clock('9 seconds') \g /dev/null
select id as later, started_at as last_at from ojs.claim('in.order', 'olga') \gset
select pg_temp.clock('5 seconds') \g /dev/null
select id as sooner from ojs.claim('in.order', 'olga') \gset
select pg_temp.clock('0') \g /dev/null
select is(active_job_ids, array[:'sooner', :'later']::uuid[], 'WRK-01: its jobs are in the order of their claims'),
    is(last_seen_at, :'last_at'::timestamptz, 'WRK-01: the last of which is when it was seen') from ojs.workers
    where worker = 'olga';

select is(ojs.deregister_worker('odd'), true, 'WRK-11: deregistered'),
    is(ojs.deregister_worker('odd'), false, 'WRK-11: once');
select is(pg_temp.status('odd'), null, 'WRK-11: and gone');
select is(ojs.deregister_worker('greta'), true, 'WRK-11: one that holds jobs'),
    is(pg_temp.at(:'held'), 'active/1/1', 'WRK-11: keeps them unless asked');
select is(ojs.deregister_worker('greta', true), true, 'WRK-11: when asked');
select is(pg_temp.at(:'held'), 'available/0/1', 'WRK-11 R-19: it gives them back, without a fault');
select is((select count(*) from ojs.leases where worker = 'greta'), 0::bigint, 'WRK-11: all of them'),
    is((select count(*) from ojs.leases where worker = 'carla'), 2::bigint, 'WRK-11: and nobody else''s');
select pg_temp.tell('heidi', 'quiet') \g /dev/null
select is(pg_temp.claims('heidi', 'told'), 0::bigint, 'WRK-06: quiet');
select is(ojs.deregister_worker('heidi'), true, 'WRK-11: a quiet one ends'),
    is(pg_temp.claims('heidi', 'told'), 1::bigint, 'WRK-11: a new one of that name knows nothing of it');
select is(pg_temp.refusal($$ select ojs.deregister_worker('') $$), 'OJ100 INVALID_PAYLOAD worker',
    'WRK-11: a worker has a name');
select pg_temp.many('thousands', 2500) \g /dev/null
select count(*) as claimed from (select ojs.claim('thousands', 'ida', 1000) from generate_series(1, 3)) c \gset
select is(ojs.deregister_worker('ida', true), true, 'WRK-11: a worker with many jobs');
select is((select count(*) from ojs.leases where worker = 'ida'), 0::bigint, 'WRK-11: gives back all');

-- The dead ------------------------------------------------------------------------------------------------------------

create function pg_temp.dead(ahead interval) returns text language sql as $$
    select pg_temp.clock(ahead);
    select concat_ws('/', t ->> 'dead_workers', t ->> 'reaped') from ojs.tick() t
$$;
select pg_temp.clock('1 day') \g /dev/null
select ojs.tick() \g /dev/null
select pg_temp.clock('0') \g /dev/null

select id as job from ojs.push('test.job', queue => 'dead', retry => '{"max_attempts": 2}') \gset
select id as last from ojs.push('test.job', queue => 'dead', retry => '{"max_attempts": 1}') \gset
select id as once from ojs.push('test.job', queue => 'dead', options => '{"delivery": "at_most_once"}') \gset
select count(*) as claimed from ojs.claim('dead', 'dead-1', 3, '1 hour') \gset
select id as safe from ojs.push('test.job', queue => 'dead') \gset
select count(*) as claimed from ojs.claim('dead', 'silent', lease => '1 hour') \gset
select pg_temp.token(:'job') as token \gset
select ojs.beat('dead-1', array[:'job', :'last', :'once']::uuid[], lease => '1 hour') \g /dev/null
select is(pg_temp.dead('25 s'), '0/0', 'WRK-07: a heartbeat may be 30 s old'),
    is(pg_temp.status('dead-1'), 'stale', 'WRK-07: it is missed');
select is(pg_temp.at(:'job'), 'active/1/1', 'WRK-07: its jobs are its own');
select is(pg_temp.dead('31 s'), '1/3',
    'WRK-07 DLV-04: then the worker is dead, and its jobs are taken back, long before their leases end');
select is(pg_temp.at(:'job'), 'available/1/1', 'WRK-07 SM-11 R-17: available at once, the attempt counted'),
    is(error ->> 'type', 'worker_death', 'WRK-07 ERR-05: with an error of this type'),
        is(started_at, null, 'SM-11: not started'),
        is(worker, null, 'SM-11: no worker'),
    is(jsonb_array_length(errors), 1, 'WRK-07: among its errors') from ojs.jobs where id = :'job';
select is(pg_temp.at(:'last'), 'discarded/1/1', 'WRK-07 R-17: a spent budget discards'),
    is(error ->> 'type', 'worker_death', 'ERR-05: with the same type') from ojs.jobs where id = :'last';
select is(pg_temp.at(:'once'), 'discarded/1/1', 'DLV-01: a job that may be delivered once does not come back');
select is(pg_temp.status('dead-1'), 'dead', 'WRK-07: it is listed as dead'),
    isnt(died_at, null, 'WRK-07: since when'),
    is(active_jobs, 0, 'WRK-07: and holds nothing') from ojs.workers where worker = 'dead-1';
select is(pg_temp.at(:'safe'), 'active/1/1', 'WRK-08: a worker without heartbeats relies on its lease');
select is(pg_temp.dead('32 s'), '0/0', 'WRK-07: nobody dies twice');
select is(pg_temp.refusal(format('select ojs.ack(%L, worker => %L)', :'job', 'dead-1')),
    'OJ105 INVALID_STATE_TRANSITION', 'WRK-09: its ack comes too late');
select is(pg_temp.refusal(format('select ojs.fail(%L, %L, worker => %L)', :'job', '{"type": "t", "message": "m"}',
    'dead-1')), 'OJ105 INVALID_STATE_TRANSITION', 'WRK-09: and its fail');
select is((done, skipped)::text, format('(0,{%s})', :'job'), 'WRK-09: it is skipped')
    from ojs.ack_many('dead-1', array[:'job']::uuid[]);
select is((directive, extended, cancelled, lost)::text, format('(running,{},{},{%s})', :'job'),
    'WRK-09: and lost to its next beat') from ojs.beat('dead-1', array[:'job']::uuid[]);
select is(pg_temp.status('dead-1'), 'running', 'WRK-09: which brings it back to life'),
    is(active_jobs, 0, 'WRK-09: with empty hands') from ojs.workers where worker = 'dead-1';
select is((select id from ojs.claim('dead', 'dead-2')), :'job', 'WRK-07: another worker gets the job');
select is(pg_temp.refusal(format('select ojs.ack(%L, lease_id => %L)', :'job', :'token')), 'OJ311 LEASE_NOT_HELD',
    'WRK-09: the old lease is worth nothing');
select is(state, 'completed', 'WRK-07: and finishes it') from ojs.ack(:'job', worker => 'dead-2');

select pg_temp.dead('70 s'), pg_temp.clock('0') \g /dev/null
select pg_temp.beat('dead-3', 'running', array[pg_temp.held('dead3', 'dead-3')]) \g /dev/null
select ojs.ack(job_id) from ojs.leases where worker = 'dead-3' \g /dev/null
select pg_temp.clock('29 s') \g /dev/null
select pg_temp.held('dead3', 'dead-3') as job \gset
select is(pg_temp.dead('40 s'), '0/0', 'WRK-07: a claim is a sign of life, too'),
    is(pg_temp.status('dead-3'), 'running', 'WRK-07: so it is not late');
select is(pg_temp.dead('52 s'), '0/0', 'WRK-07: for as long as a beat');
select ojs.extend(:'job', '1 hour', worker => 'dead-3') \g /dev/null
select is(pg_temp.dead('61 s'), '1/1', 'WRK-07: then it is dead; an extension is no heartbeat');
select pg_temp.clock('0') \g /dev/null
select pg_temp.held('dead4', 'dead-4') as job \gset
select pg_temp.clock('20 s') \g /dev/null
select pg_temp.beat('dead-4', 'running', array[:'job']::uuid[]) \g /dev/null
update ojs_store.worker set seen_at = seen_at - interval '1 hour' where name = 'dead-4';
select is(pg_temp.dead('40 s'), '0/0',
    'WRK-07: a beat that could not write its worker''s row counts by the leases it extended');
select pg_temp.clock('0') \g /dev/null
select pg_temp.beat('dead-4') \g /dev/null

-- Whoever knows a worker's name only cannot take its jobs away by a beat that nobody goes on with.
select id as long from ojs.push('test.job', queue => 'long') \gset
select count(*) as claimed from ojs.claim('long', 'nightly', lease => '2 hours') \gset
select id as other from ojs.push('test.job', queue => 'long') \gset
select pg_temp.beat('nightly') \g /dev/null
select pg_temp.beat('nightly', 'running', array[:'other']::uuid[]) \g /dev/null
select is(pg_temp.dead('31 s'), '0/0', 'WRK-07: a beat without a job that the worker holds makes nobody lose a job');
select is(pg_temp.at(:'long'), 'active/1/1', 'WRK-07: its lease stands');
select is(pg_temp.status('nightly'), 'running', 'WRK-07: and it is not dead');
select pg_temp.clock('0') \g /dev/null
select pg_temp.beat('nightly', 'running', array[:'long']::uuid[]) \g /dev/null
select ojs.extend(:'long', '2 hours') \g /dev/null
select ojs.register_worker('nightly') \g /dev/null
select is(pg_temp.dead('31 s'), '0/0', 'WRK-07: a new process of that name has not begun to send beats');
select pg_temp.clock('0') \g /dev/null
select pg_temp.beat('nightly', 'running', array[:'long']::uuid[]) \g /dev/null
select is(pg_temp.dead('31 s'), '1/1', 'WRK-07: a worker that names its jobs and falls silent loses them');
select pg_temp.clock('0') \g /dev/null

-- A budget: the rest is for the next tick.
select pg_temp.clock('1 day') \g /dev/null
select ojs.tick() \g /dev/null
select pg_temp.clock('0') \g /dev/null
select pg_temp.many('dead5', 25) \g /dev/null
select count(*) as claimed from ojs.claim('dead5', 'dead-5', 25, '1 hour') \gset
select pg_temp.beat('dead-5', 'running',
    array[(select job_id from ojs.leases where worker = 'dead-5' limit 1)]) \g /dev/null
select pg_temp.clock('31 s') \g /dev/null
select ojs.tick(10) as ticked \gset
select is(:'ticked'::jsonb -> 'reaped', '10', 'PGX-05: a tick keeps to its budget'),
    is(:'ticked'::jsonb -> 'more', 'true', 'PGX-05: and says that there is more');
select isnt(pg_temp.status('dead-5'), 'dead', 'PGX-05: the worker is not done with');
select is((ojs.tick(10) ->> 'reaped')::int + (ojs.tick(10) ->> 'reaped')::int, 15, 'PGX-05: the next ticks go on');
select is(pg_temp.status('dead-5'), 'dead', 'WRK-07: and then it is dead');

-- Nobody is kept for ever.
select pg_temp.clock('22 hours') \g /dev/null
select ojs.tick() \g /dev/null
select is(pg_temp.status('dead-5'), 'dead', 'WRK-07: for a day');
select pg_temp.clock('25 hours') \g /dev/null
select ojs.tick() \g /dev/null
select is(pg_temp.status('dead-5'), null, 'WRK-07: no longer'),
    is((select count(*) from ojs_store.worker where name = 'carla'), 1::bigint,
    'WRK-05: what a worker without heartbeats was told');
select pg_temp.clock('31 days') \g /dev/null
select ojs.tick() \g /dev/null
select is((select count(*) from ojs_store.worker), 0::bigint, 'WRK-05: is forgotten after a month');
select is(pg_temp.claims('halted', 'told'), 1::bigint, 'WRK-05: sessions hear of that');

-- Events. The clock of a transaction stands still for none of them: what is looked at is which there are.
select is((select string_agg(concat_ws('/', type, data ->> 'reason', data ->> 'cause'), ' ' order by type,
    data ->> 'reason') from ojs_store.stored_event where subject = 'dead-1'),
    'worker.started worker.started worker.stopped/error/heartbeat_timeout worker.stopped/error/heartbeat_timeout',
        'EVT-03: of a worker that died, came back and died again');
select is((select string_agg(concat_ws('/', type, data ->> 'reason', data ->> 'cause'), ' ' order by type,
    data ->> 'reason') from ojs_store.stored_event where subject = 'greta'),
    'worker.started worker.started worker.started worker.stopped/shutdown/deregistered',
        'EVT-03: of one that registered thrice and left');
select is(data, '{"worker_id": "greta", "queues": ["told", "b"], "concurrency": 10}',
    'EVT-03: with what it said of itself') from ojs_store.stored_event where subject = 'greta' and data ? 'queues';
select is((select count(*) from ojs_store.stored_event where subject = 'anna' and type = 'worker.quiet'
    and (data ->> 'active_jobs')::int >= 1), 2::bigint, 'EVT-03: a worker that becomes quiet, each time once');

-- Told by every refusal, and by the beat: a cancelled job.
select pg_temp.clock('0') \g /dev/null
select pg_temp.held('cancelled', 'w') as id \gset
select ojs.cancel(:'id') \g /dev/null
select is(pg_temp.refusal(format(call, :'id')), 'OJ303 JOB_ALREADY_CANCELLED', 'R-24: ' || call)
    from (values ('select ojs.ack(%L)'), ('select ojs.nack(%L)'),
    ('select ojs.extend(%L, ''1 min'')'), ('select ojs.fail(%L, ''{"type": "t", "message": "m"}'')'),
        ('select ojs.ack_and_claim(''w'', ''cancelled'', array[%L]::uuid[])')) c (call);
select is(cancelled, array[:'id']::uuid[], 'R-24: a beat says it') from ojs.beat('w', array[:'id']::uuid[]);

-- WRK-12: a worker that ends gives its jobs back, and no policy stands against it.
select id as job from ojs.push('test.job', queue => 'shut',
    retry => '{"max_attempts": 3, "non_retryable_errors": ["shutdown", "ShutdownError"]}') \gset
select is(f.state, 'retryable', 'WRK-12: shutdown is retried') from ojs.claim('shut', 'w') c,
    lateral ojs.fail(c.id, '{"type": "shutdown", "message": "m", "retryable": false}') f;
select pg_temp.clock('1 hour') \g /dev/null
select is(f.state, 'retryable', 'WRK-12: ShutdownError, too') from ojs.claim('shut', 'w') c,
    lateral ojs.fail(c.id, '{"type": "ShutdownError", "message": "m", "retryable": false}') f;
select pg_temp.clock('2 hours') \g /dev/null
select is(f.state, 'discarded', 'WRK-12 R-17: within the budget of attempts') from ojs.claim('shut', 'w') c,
    lateral ojs.fail(c.id, '{"type": "shutdown", "message": "m"}') f;

-- What a worker says of itself is bounded, and cannot break the list.
select ojs.register_worker('odd', '{"pid": "٣", "concurrency": "٣"}') is null as made \gset
select is((select count(*) from ojs.workers where worker = 'odd' and pid is null), 1::bigint,
    'digits of other scripts are no pid (WRK-10)');
select is(pg_temp.refusal($$ select ojs.register_worker('big', jsonb_build_object('x', repeat('x', 17000))) $$),
    'OJ109 PAYLOAD_TOO_LARGE info', 'info has a bound (WRK-10)');
select is(pg_temp.refusal($$ select ojs.beat('big', info => jsonb_build_object('x', repeat('x', 17000))) $$),
    'OJ109 PAYLOAD_TOO_LARGE info', 'in a beat, too (WRK-10)');
select ojs_store.record_event('worker.test', 'big', jsonb_build_object('queue', 'q', 'x',
    repeat('x', 17000))) \g /dev/null
select is(data, '{"queue": "q", "truncated": true}', 'and so has the data of an event (EVT-01)')
    from ojs_store.stored_event where type = 'worker.test';

select * from finish();
rollback;
