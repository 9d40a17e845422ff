-- lease_log.sql: what happened to leases, in queues that ask for it: Q-24, Q-61, Q-64.
begin;
select no_plan();
\ir helpers.psql

select ojs.create_queue('logged', '{"lease_log": true}') is null or ojs.create_queue('silent') is null as made \gset

-- The steps of a job, in order.
create function pg_temp.steps(job uuid) returns text language sql as
$$ select string_agg(event || ' ' || deliveries, ', ' order by number) from ojs.lease_log where job_id = job $$;

-- Each step ---------------------------------------------------------------------------------------------------------

select id, seq from ojs.push('test.job', queue => 'logged') \gset
select is(pg_temp.steps(:'id'), null, 'Q-24: a push is no lease');
select lease_id, lease_expires_at as deadline from ojs.claim('logged', 'w', lease => '1 min') \gset
select is((l.event, l.job_id, l.seq, l.queue, l.worker, l.lease_id, l.deadline, l.deliveries)::text,
    ('claimed', :'id'::uuid, :'seq'::bigint, 'logged', 'w', :'lease_id', :'deadline'::timestamptz, 1)::text,
        'Q-24: a claim is logged with all there is to know of its lease'),
    ok(at <= clock_timestamp() and at > clock_timestamp() - interval '1 min', 'Q-24: and its time')
        from ojs.lease_log l;
select ojs.extend(:'id', '10 min') is null as done, ojs.beat('w', array[:'id'::uuid]) is null as beaten \gset
select is(deadline, (select lease_expires_at from ojs.leases where job_id = :'id'),
    'Q-24: an extension is logged with the new deadline')
from ojs.lease_log order by number desc limit 1;
select ojs.nack(:'id') is null as done \gset
select count(*) from ojs.claim('logged', 'w2') \gset
select ojs.ack(:'id') is null as done \gset
select is(pg_temp.steps(:'id'), 'claimed 1, extended 1, extended 1, released 1, claimed 2, acked 2',
    'Q-24: claim, extend, release, ack, in order');
select is(string_agg(event, ' ' order by number), 'claimed extended extended released claimed acked',
    'Q-24: by seq too') from ojs.lease_log where seq = :'seq';
select is(count(distinct lease_id), 2::bigint, 'Q-24: each delivery under its own lease id'),
    is(string_agg(distinct worker, ' '), 'w w2', 'Q-24: and its worker') from ojs.lease_log;

select id from ojs.push('test.job', queue => 'logged') \gset
select count(*) from ojs.claim('logged', 'w') \gset
select ojs.fail(:'id', '{"type": "E", "message": "m"}', delay => '0') is null as done,
    ojs.tick() is null as ticked \gset
select count(*) from ojs.claim('logged', 'w') \gset
select ojs.fail(:'id', '{}', requeue => true) is null as done \gset
select count(*) from ojs.claim('logged', 'w', lease => '100 ms') \gset
set ojs.clock_offset = '1 min';
select ojs.tick() is null as ticked \gset
select count(*) from ojs.claim('logged', 'w') \gset
select ojs.cancel(:'id') is null as done \gset
reset ojs.clock_offset;
select is(pg_temp.steps(:'id'),
    'claimed 1, failed 1, claimed 2, released 2, claimed 3, lapsed 3, claimed 4, cancelled 4',
    'Q-24: however a lease ends');

-- Batches -----------------------------------------------------------------------------------------------------------

select count(ojs.push('test.job', queue => 'logged')) from generate_series(1, 3) \gset
select array_agg(id) as ids from ojs.claim('logged', 'batch', max => 10) \gset
select done from ojs.extend_many('batch', :'ids', '1 min') \gset
select done from ojs.nack_many('batch', (:'ids'::uuid[])[1:1]) \gset
select done from ojs.ack_many('batch', (:'ids'::uuid[])[2:2]) \gset
select count(*) from ojs.ack_and_claim('batch', 'logged', (:'ids'::uuid[])[3:3]) \gset
select is((select string_agg(pg_temp.steps(id), '; ' order by n) from unnest(:'ids'::uuid[])
    with ordinality as u(id, n)),
    'claimed 1, extended 1, released 1, claimed 2; claimed 1, extended 1, acked 1; claimed 1, extended 1, acked 1',
        'Q-24: calls for many');
select ojs.purge_queue('logged', '{active}', confirm => true) is null as purged \gset
select is(string_agg(event, ' ' order by number), 'claimed extended released claimed purged', 'Q-24: a purge')
    from ojs.lease_log where job_id = (:'ids'::uuid[])[1];

-- Work bound to the session -----------------------------------------------------------------------------------------

select id from ojs.push('test.job', queue => 'logged') \gset
select ojs.work_open('logged', 'bound') is null as opened \gset
select count(*) from ojs.work_next() \gset
select ojs.work_close() is null as closed \gset
select is(pg_temp.steps(:'id'), 'claimed 1, released 1', 'Q-64: what a session gives back');
select ojs.cancel(:'id') is null as done \gset

-- Where nothing is kept of a job, its log stays.
select ojs.configure_queue('logged', '{"delete_on_ack": true}') is null as set \gset
select id, seq from ojs.push('test.job', queue => 'logged') \gset
select ojs.ack(c.id) is null as acked from ojs.claim('logged', 'w') c \gset
select is(string_agg(event, ' ' order by number), 'claimed acked',
    'Q-24: the log outlives a job that is deleted by its ack'),
    is((select count(*) from ojs.jobs where id = :'id'), 0::bigint, 'R-23: which is gone')
from ojs.lease_log where seq = :'seq';

-- A durable lease leaves an event for the rebuild, of which no one else hears.
select ojs.create_queue('both',
    '{"lease_log": true, "leases_durable": true, "delete_on_ack": true}') is null as made \gset
select id from ojs.push('test.job', queue => 'both') \gset
select count(*) from ojs.claim('both', 'w') \gset
select ojs.extend(:'id', '1 min') is null as done \gset
select is((select count(*) from ojs_store.job_history where job_id = :'id' and kind = 8), 2::bigint,
    'Q-60: a durable lease and its extension are written down'),
    is((select count(*) from ojs_store.recorded where job_id = :'id' and kind = 8), 1::bigint, 'EVT: and told of once'),
    is((select errors from ojs.jobs where id = :'id'), null, 'Q-60: they are no errors');
select ojs.ack(:'id') is null as done \gset
select is((select count(*) from ojs_store.job_history where job_id = :'id'), 0::bigint, 'R-23: and go with the job'),
    is(pg_temp.steps(:'id'), 'claimed 1, extended 1, acked 1', 'Q-24: the log stays');

-- On and off --------------------------------------------------------------------------------------------------------

select id from ojs.push('test.job', queue => 'silent') \gset
select ojs.ack(c.id) is null as acked from ojs.claim('silent', 'w') c \gset
select is(pg_temp.steps(:'id'), null, 'Q-24: nothing is logged in a queue that does not ask for it');
select id from ojs.push('test.job', queue => 'logged') \gset
select count(*) from ojs.claim('logged', 'w') \gset
select ojs.configure_queue('logged', '{"lease_log": false}') is null as set \gset
select ojs.nack(:'id') is null as done \gset
select ojs.ack(c.id) is null as acked from ojs.claim('logged', 'w') c \gset
select is(pg_temp.steps(:'id'), 'claimed 1, released 1',
    'Q-24: a lease that was logged is logged to its end, the next one as the queue says then');

-- A log that cannot be written is no half lease (Q-61).
select ojs.configure_queue('logged', '{"lease_log": true}') is null as set \gset
select id from ojs.push('test.job', queue => 'logged') \gset
savepoint before;
alter table ojs_store.lease_log add column unknown int;
select isnt(pg_temp.refusal($$select * from ojs.claim('logged', 'w')$$), 'accepted',
    'Q-61: a claim that cannot be logged is refused');
rollback to before;
select is((select count(*) from ojs.claim('logged', 'w')), 1::bigint, 'Q-61: and its job is not lost');

select * from finish();
rollback;
