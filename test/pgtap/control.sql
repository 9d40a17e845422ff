-- control.sql: what a producer does about its jobs: OP-20 to OP-23, R-24 to R-27, SM-05, SM-10, SM-14.
begin;
select no_plan();
\ir helpers.psql

-- Cancel -------------------------------------------------------------------------------------------------------------

create temp table cancelled as
select state, c.* from (values
    ('available', pg_temp.pushed()), ('scheduled', pg_temp.pushed('default', '{"delay_until": "+PT1H"}')),
        ('pending', pg_temp.pushed('default', '{"pending": true}')),
    ('active', pg_temp.held('cancel-active')),
    ('retryable', (ojs.fail(pg_temp.held('cancel-retryable'), '{"type": "t", "message": "m"}', delay => '1 hour')).id))
        before (state, id),
    ojs.cancel(before.id) c (id, seq, specversion, type, queue, new_state);
select is(new_state, 'cancelled', 'SM-10 SM-14 OP-20: a job that is ' || state),
    is(extra ->> 'previous_state', state, 'OP-20: previous_state ' || state),
    ok(cancelled_at between now() and clock_timestamp(), 'OP-20: cancelled_at'),
        is(completed_at, null, 'R-26 SM-14: completed_at stays absent'),
    is(discarded_at, null, 'R-26: discarded_at too') from cancelled;
select is((select count(*) from ojs.leases), 0::bigint, 'SM-10 R-24: the lease is dropped');
select is((select count(*) from ojs.claim('{default,cancel-active,cancel-retryable}'::text[], 'w', 10)), 0::bigint,
    'SM-14: none of them is ever claimed');
select is(pg_temp.refusal(format('select ojs.ack(%L)', id)), 'OJ303 JOB_ALREADY_CANCELLED', 'R-24: a later ack'),
    is(pg_temp.refusal(format('select ojs.fail(%L, %L)', id, '{"type": "t", "message": "m"}')),
        'OJ303 JOB_ALREADY_CANCELLED', 'R-24: a later report') from cancelled where state = 'active';
select is(c.cancelled, array[x.id], 'R-24: its worker hears of it with its next beat') from cancelled x,
    ojs.beat('w', array[x.id]) c where state = 'active';
select is(attempt, 1, 'SM-10: the attempt stays counted'),
    isnt(started_at, null, 'SM-10: and when it started') from cancelled where state = 'active';
select is(error ->> 'type', 't', 'SM-14: a retryable job keeps its last error') from cancelled
    where state = 'retryable';
select is(pg_temp.refusal(format('select ojs.cancel(%L)', id)), 'OJ303 JOB_ALREADY_CANCELLED',
    'R-25: a second cancel is refused') from cancelled where state = 'available';
select is(to_jsonb(c) - 'extra', to_jsonb(j) - 'extra', 'R-25: unless it may be') from cancelled x,
    ojs.cancel(x.id, true) c, ojs.jobs j where x.state = 'available' and j.id = x.id;
select is(c.state, 'completed', 'R-25: then a completed job is returned as it is')
    from (select id from ojs.ack(pg_temp.held('finished'))) f, ojs.cancel(f.id, idempotent => true) c;
select is(pg_temp.refusal($$ select ojs.cancel('01920000-0000-7000-8000-00000000000c') $$), 'OJ300 NOT_FOUND',
    'OP-20: an unknown id');
select is(pg_temp.refusal($$ select ojs.cancel('01920000-0000-7000-8000-00000000000c', true) $$), 'OJ300 NOT_FOUND',
    'OP-20: idempotent or not');
select is(pg_temp.refusal('select ojs.cancel(null)'), 'OJ100 INVALID_PAYLOAD job_id', 'OP-20: no id');
select id as mortal from ojs.push('test.job', expires_at => now() + interval '1 minute') \gset
select ojs.cancel(:'mortal') is null as cancelled \gset
select is((select count(*) from ojs_store.delayed where job_id = :'mortal'), 0::bigint,
    'SM-14: a reminder of expiry goes with the job');

-- Where a job that can be claimed is ---------------------------------------------------------------------------------
-- A job at the position of its push has no entry in ready_job, and one that has moved has: each must be found.

select ojs.create_queue('moved-to') is null as made, ojs.create_queue('moving') is null as made_too \gset
create temp table waiting_jobs as
select * from (values ('pushed', pg_temp.pushed('found')),
    ('of a priority', pg_temp.pushed('found', '{"priority": 7}')),
    ('given back', (ojs.nack(pg_temp.held('found-nacked'))).id),
    ('raised', (ojs.set_priority(pg_temp.pushed('found'), 9)).id),
    ('lowered to that of its push', (ojs.set_priority((ojs.set_priority(pg_temp.pushed('found'), 9)).id, 0)).id),
    ('activated', (ojs.activate(pg_temp.pushed('found', '{"pending": true}'))).id),
    ('due', pg_temp.pushed('found', '{"delay_until": "+PT1S"}')),
    ('of a queue that was dropped', pg_temp.pushed('moving')),
    ('retried', (ojs.retry((ojs.discard(pg_temp.pushed('found'))).id)).id)) before (which, id);
select ojs.drop_queue('moving', 'move', 'moved-to') is null as dropped, pg_temp.clock('2 seconds') is null as later,
    ojs.tick() is null as ticked \gset
select is(r.job_id, w.id, format('a job that is %s is found where it waits (OP-20)', w.which))
    from waiting_jobs w left join ojs_store.ready r on r.job_id = w.id;
select is((select array_agg(which order by which) from waiting_jobs join ojs_store.ready on job_id = id
    where flags & 65536 = 0), '{of a priority,pushed}', 'those that have not moved have no entry in ready_job');
select is((ojs.cancel(id)).state, 'cancelled', format('a job that is %s is cancelled (OP-20)', which))
    from waiting_jobs;
select is((select count(*) from waiting_jobs join ojs_store.ready on job_id = id), 0::bigint,
    'and then none of them waits');
select pg_temp.clock('0') \g /dev/null

-- Activate -----------------------------------------------------------------------------------------------------------

select pg_temp.pushed('wait', '{"pending": true}') as pending \gset
select is((select count(*) from ojs.claim('wait', 'w')), 0::bigint, 'SM-05: a pending job is not claimed');
select pg_temp.clock('10 years') \g /dev/null
select ojs.tick() is null as ticked \gset
select is((select count(*) from ojs.claim('wait', 'w')), 0::bigint, 'SM-05: however long it waits');
select pg_temp.clock('0') \g /dev/null
create temp table activated as select * from ojs.activate(:'pending');
select is(state || attempt, 'available0', 'SM-05 OP-23: available'),
    ok(enqueued_at > created_at, 'R-27: since now, not since its push'),
    is(enqueued_at, (extra ->> 'activated_at')::timestamptz, 'SM-05: activated_at is recorded') from activated;
select is(to_jsonb(a) - 'deduplicated', to_jsonb(j) - 'deduplicated', 'OP-23: as it is read later') from activated a
    join ojs.jobs j using (id);
select is(pg_temp.refusal(format('select ojs.activate(%L)', :'pending')), 'OJ105 INVALID_STATE_TRANSITION',
    'OP-23: only once');
select is((select id from ojs.claim('wait', 'w')), :'pending', 'SM-05: and then it is claimed');
select is(pg_temp.refusal(format('select ojs.activate(%L)', :'pending')), 'OJ105 INVALID_STATE_TRANSITION',
    'OP-23: not while it is active');
select is(pg_temp.refusal($$ select ojs.activate('01920000-0000-7000-8000-00000000000c') $$), 'OJ300 NOT_FOUND',
    'OP-23: an unknown id');
select is(pg_temp.refusal('select ojs.activate(null)'), 'OJ100 INVALID_PAYLOAD job_id', 'OP-23: no id');
select id as both from ojs.push('test.job', queue => 'both', pending => true, delay => '1 hour') \gset
select is(state, 'pending', 'ENV-20: pending goes before scheduled') from ojs.jobs where id = :'both';
select is(state, 'scheduled', 'SM-05 ENV-20: activated before its time it is scheduled') from ojs.activate(:'both');
select is((select count(*) from ojs.claim('both', 'w')), 0::bigint, 'SM-05: and not claimed');
select pg_temp.clock('2 hours') \g /dev/null
select is((select count(*) from ojs.claim('both', 'w')), 1::bigint, 'SM-04: until its time has come');
select id as past from ojs.push('test.job', queue => 'past', pending => true, scheduled_at => '2020-01-01Z') \gset
select is(state, 'available', 'SM-05: activated after its time it is available'),
    is(enqueued_at, (extra ->> 'activated_at')::timestamptz, 'R-27: since now, not since that time')
    from ojs.activate(:'past');
select pg_temp.clock('0') \g /dev/null

-- Info ---------------------------------------------------------------------------------------------------------------

create temp table seen as select id, state, ojs.info(id) as info from ojs.jobs;
select is((select count(*) from seen where info ->> 'state' is distinct from state), 0::bigint,
    'OP-21: ojs.info answers in any state');
select is((select count(*) from seen where ojs.info(id)::text <> info::text), 0::bigint,
    'OP-21: twice the same, byte by byte');
select is((select count(*) from seen, jsonb_each(info) where value = 'null' and key <> 'result'), 0::bigint,
    'ENV-24: no nulls');
select is(pg_temp.refusal($$ select ojs.info('01920000-0000-7000-8000-00000000000c') $$), 'OJ300 NOT_FOUND',
    'OP-21: an unknown id');
select is(pg_temp.refusal('select ojs.info(null)'), 'OJ100 INVALID_PAYLOAD job_id', 'OP-21: no id');

select id as due from ojs.push('test.job', queue => 'truth', delay => '1 minute') \gset
select is(ojs.info(:'due') ->> 'state', 'scheduled', 'OP-22: before its time');
select pg_temp.clock('61 seconds') \g /dev/null
select is(ojs.info(:'due') ->> 'state', 'available',
    'OP-22: after its time a scheduled job reads available, with no tick');
select is((ojs.info(:'due') ->> 'enqueued_at')::timestamptz, (ojs.info(:'due') ->> 'scheduled_at')::timestamptz,
    'R-27: in its queue since it was due');
select ojs.tick() is null as ticked \gset
select is((ojs.info(:'due') ->> 'enqueued_at')::timestamptz, (ojs.info(:'due') ->> 'scheduled_at')::timestamptz,
    'R-27: also after the tick');
select pg_temp.clock('0') \g /dev/null
-- What has ended was in its queue since it last came in, if it ever was.
select id as never from ojs.push('test.job', queue => 'entered', delay => '1 hour') \gset
select ojs.cancel(:'never') is null as cancelled \gset
select is(ojs.info(:'never') ? 'enqueued_at', false,
    'R-27: a job that was cancelled before its time never was in its queue');
select (ojs.push_job('{"type": "test.job", "args": [], "queue": "entered", "pending": true}') ->> 'id')::uuid
    as held_back \gset
select ojs.cancel(:'held_back') is null as cancelled \gset
select is(ojs.info(:'held_back') ? 'enqueued_at', false, 'R-27: nor one that was cancelled before it was activated');
select (ojs.push_job('{"type": "test.job", "args": [], "queue": "entered", "pending": true}') ->> 'id')::uuid
    as let_go \gset
select pg_temp.clock('5 seconds') \g /dev/null
select ojs.activate(:'let_go') is null as activated, ojs.cancel(:'let_go') is null as cancelled \gset
select is(ojs.info(:'let_go') ->> 'enqueued_at', ojs.info(:'let_go') ->> 'activated_at',
    'R-27: one that was activated first was, since then');
select (ojs.push_job('{"type": "test.job", "args": [], "queue": "again", "retry": {"initial_interval": "PT10S", '
                     '"jitter": false}}') ->> 'id')::uuid as again \gset
select ojs.claim('again', 'w') is null as claimed \gset
select ojs.fail(:'again', '{"type": "t", "message": "m"}') is null as failed \gset
select ojs.info(:'again') ->> 'next_attempt_at' as due_again \gset
select pg_temp.clock('20 seconds') \g /dev/null
select ojs.claim('again', 'w') is null as claimed \gset
select is((ojs.info(:'again') ->> 'enqueued_at')::timestamptz, :'due_again'::timestamptz,
    'R-27: a retry comes in when it is due');
select ojs.ack(:'again') is null as acked \gset
select is((ojs.info(:'again') ->> 'enqueued_at')::timestamptz, :'due_again'::timestamptz,
    'R-27: which stays so after its end');
select pg_temp.clock('0') \g /dev/null
select pg_temp.held('truth2') as held \gset
select pg_temp.clock('31 seconds') \g /dev/null
select ojs.tick() is null as ticked \gset
select is(ojs.info(:'held') ->> 'state', 'available', 'OP-22: a lapsed lease reads available after the tick');
select is((ojs.info(:'held') ->> 'attempt') || (ojs.info(:'held') ->> 'deliveries'), '11',
    'R-15: with the attempt counted');
select is(ojs.info(:'held') -> 'started_at', null, 'SM-11: started_at is cleared');
select pg_temp.clock('0') \g /dev/null

-- A read takes no locks on rows, and can run in a read-only transaction: see transactions.sql and specs.

select * from finish();
rollback;
