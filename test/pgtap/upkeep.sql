-- upkeep.sql: ojs.tick: SM-04, SM-11, SM-12, SM-15, R-17, R-18, Q-46, PGX-05, TMO-01. At once with other sessions:
-- test/tap.
begin;
select no_plan();
\ir helpers.psql

-- What a tick says of the duties tested here.
create function pg_temp.tick(budget int default null) returns jsonb language sql as
$$ select jsonb_build_object('reaped', t -> 'reaped', 'promoted', t -> 'promoted', 'more', t -> 'more')
    from ojs.tick(budget) t $$;

select pg_temp.held('tick') as held \gset
select pg_temp.pushed('tick', '{"delay_until": "+PT1M"}') as scheduled,
    pg_temp.pushed('tick', '{"pending": true}') as pending,
    pg_temp.pushed('tick', '{"expires_at": "+PT1M"}') as mortal,
        pg_temp.pushed('tick', '{"delay_until": "+PT2M", "expires_at": "+PT1M"}') as stillborn \gset
select id as retryable from ojs.fail(pg_temp.held('tick2'), '{"type": "t", "message": "m"}', delay => '1 minute') \gset
select id as released from ojs.nack(pg_temp.held('tick3'), '1 minute') \gset
select is(pg_temp.tick(), '{"reaped": 0, "promoted": 0, "more": false}', 'PGX-05: nothing to do: nothing done')
    where (select ojs.tick()) is not null;
select is(pg_temp.at(:'scheduled'), 'scheduled/0/0', 'SM-04: not before its time');

select pg_temp.clock('90 seconds') \g /dev/null
select ojs.tick() as ticked \gset
select is((:'ticked'::jsonb ->> 'reaped')::int, 1, 'Q-46: one lease reaped');
select is(pg_temp.at(:'held'), 'available/1/1',
    'SM-11 R-18 R-15: a lapsed job is available at once, its attempt counted'),
    is(error ->> 'type', 'visibility_timeout', 'R-18: the lapse is an error'),
        is(started_at, null, 'SM-11: not started'),
        is(worker, null, 'SM-11: no worker')
from ojs.jobs where id = :'held';
select is(pg_temp.at(:'scheduled'), 'available/0/0', 'SM-04: a due job is available');
select is(pg_temp.at(:'retryable'), 'available/1/1', 'SM-12: a retryable one too');
select is(pg_temp.at(:'released'), 'available/0/1', 'Q-39: and a released one');
select is(pg_temp.at(:'pending'), 'pending/0/0', 'SM-05: a pending one waits');
select is(state || (error ->> 'type'), 'discardedexpired', 'SM-15: an expired job is discarded, with no claim')
    from ojs.jobs where id = :'mortal';
select is(state || (error ->> 'type'), 'discardedexpired', 'ENV-15 SM-15: one that expires before it is due, too')
    from ojs.jobs where id = :'stillborn';
select is((select count(*) from ojs_store.delayed), 1::bigint, 'PGX-05: nothing is left in later but the pending job');
select is((select count(*) from ojs_store.ready where position < 0), 3::bigint,
    'Q-25: what was delivered before is served first');
select is(pg_temp.tick(), '{"reaped": 0, "promoted": 0, "more": false}', 'PGX-05: a second tick finds nothing');

-- Nothing is done twice: a job that was ended or moved meanwhile is left alone.
select pg_temp.clock('0') \g /dev/null
select ojs.cancel(pg_temp.pushed('gone', '{"delay_until": "+PT1M"}')) is null as cancelled,
    ojs.ack(pg_temp.held('gone2', 'w', '{"expires_at": "+PT1M"}')) is null as acked \gset
select pg_temp.clock('2 minutes') \g /dev/null
select is(pg_temp.tick(), '{"reaped": 0, "promoted": 0, "more": false}',
    'PGX-05 SM-28: ended jobs leave nothing to do');
select pg_temp.clock('0') \g /dev/null

-- Budget -------------------------------------------------------------------------------------------------------------

select count(*) as pushed
    from ojs.push_many((select jsonb_agg(jsonb_build_object('type', 't', 'args', '[]'::jsonb, 'queue', 'budget',
    'priority', n % 3,
    'options', '{"delay_until": "+PT1M"}'::jsonb)) from generate_series(1, 25) n)) \gset
select pg_temp.clock('2 minutes') \g /dev/null
select is(pg_temp.tick(10), '{"reaped": 0, "promoted": 10, "more": true}',
    'PGX-05: at most budget rows, and says that there is more');
select is((select count(*) from ojs_store.ready r join ojs.jobs j on r.job_id = j.id where j.queue = 'budget'),
    10::bigint, 'PGX-05: ten are ready');
select is((select array_agg(distinct -npriority) from ojs_store.ready r join ojs.jobs j on r.job_id = j.id
    where j.queue = 'budget'), '{1,2}', 'SM-04: those of higher priority first');
select is(ojs.tick(10) ->> 'more', 'true', 'PGX-05: ten more');
select is(pg_temp.tick(10), '{"reaped": 0, "promoted": 5, "more": false}', 'PGX-05: the rest');
select pg_temp.clock('0') \g /dev/null
select pg_temp.pushed('soonest', jsonb_build_object('scheduled_at', clock_timestamp() + (30 + n) * interval '1 second',
    'tag', n::text)) from unnest('{3,1,2,5,4}'::int[]) n \g /dev/null
select pg_temp.clock('2 minutes') \g /dev/null
select ojs.tick(2) \g /dev/null
select is((select string_agg(extra ->> 'tag', '' order by extra ->> 'tag') from ojs.jobs j
    join ojs_store.ready r on r.job_id = j.id where j.queue = 'soonest'), '12',
    'SM-04: of equal ones those that fell due first');
select ojs.purge_queue('soonest', confirm => true) \g /dev/null
select is(left(pg_temp.refusal('select ojs.tick(0)'), 21), 'OJ100 INVALID_PAYLOAD', 'PGX-05: a budget of nothing');
select is(left(pg_temp.refusal('select ojs.tick(-1)'), 21), 'OJ100 INVALID_PAYLOAD', 'PGX-05: or less');
select count(*) as claimed from ojs.claim('budget', 'w', 25) \gset
select pg_temp.clock('4 minutes') \g /dev/null
select is(ojs.tick(10) -> 'reaped', '10', 'PGX-05: reaping keeps to the budget, too');
select is((ojs.tick(10) ->> 'reaped')::int + (ojs.tick(10) ->> 'reaped')::int, 15, 'PGX-05: and gets to the end');
select is((select count(*) from ojs.leases where queue = 'budget'), 0::bigint, 'Q-46: no lease is left');
select pg_temp.clock('0') \g /dev/null

-- Attempts spent -----------------------------------------------------------------------------------------------------

select pg_temp.held('spent', 'w', '{"retry": {"max_attempts": 1}}') as spent,
    pg_temp.held('spent2', 'w', '{"retry": {"max_attempts": 1, "on_exhaustion": "dead_letter"}}') as buried \gset
select pg_temp.clock('1 minute') \g /dev/null
select ojs.tick() is null as ticked \gset
select is(pg_temp.at(:'spent'), 'discarded/1/1', 'R-17 R-18: a lapse counts against the budget');
select is((select flags from ojs_store.finished where job_id = :'buried') & 1, 1,
    'R-18 R-37: on_exhaustion decides where it goes');
select isnt(completed_at, null, 'R-26: it ran') from ojs.jobs where id = :'spent';
select pg_temp.clock('0') \g /dev/null

-- TMO-01, R-18: an execution timeout ends an attempt though the lease is kept alive, and costs a backoff.
select pg_temp.held('slow', 'w', '{"timeout": 60}') as slow \gset
select pg_temp.clock('20 seconds') \g /dev/null
select ojs.extend(:'slow', '1 hour') is null as extended \gset
select pg_temp.clock('59 seconds') \g /dev/null
select ojs.tick() is null as ticked \gset
select is(pg_temp.at(:'slow'), 'active/1/1', 'TMO-01: not before its time');
select pg_temp.clock('61 seconds') \g /dev/null
select ojs.tick() is null as ticked \gset
select is(pg_temp.at(:'slow'), 'retryable/1/1', 'TMO-01 R-18: retryable, with backoff'),
    is(error ->> 'type', 'timeout', 'TMO-01: for its timeout') from ojs.jobs where id = :'slow';
select pg_temp.clock('0') \g /dev/null

-- A hot row without an envelope stops nobody: it is dropped, with a WARNING.
set local client_min_messages = error;
create function pg_temp.lose(lost uuid) returns uuid language sql as $$ delete from ojs_store.job where id = lost
    returning id $$;
select pg_temp.lose(pg_temp.pushed('broken')), pg_temp.pushed('broken') as whole \gset
select is((select array_agg(id) from ojs.claim('broken', 'w', 5)), array[:'whole']::uuid[],
    'SM-28: a claim goes on after a row without a job');
select pg_temp.lose(pg_temp.pushed('broken', '{"rate_limit": {"concurrency": 1}}')),
    pg_temp.pushed('broken', '{"rate_limit": {"concurrency": 1}}') as whole \gset
select is((select array_agg(id) from ojs.claim('broken', 'w', 5)), array[:'whole']::uuid[],
    'SM-28: under a rate limit, too');
select pg_temp.lose(pg_temp.held('broken')) as gone \gset
select is(pg_temp.refusal(format('select ojs.fail(%L, %L)', :'gone', '{"type": "t", "message": "m"}')),
    'OJ300 NOT_FOUND', 'ERR-06: who names such a job hears that there is none'),
    is(pg_temp.refusal(format('select ojs.cancel(%L)', :'gone')),
    'OJ300 NOT_FOUND', 'ERR-06: and so who cancels one that goes meanwhile');
select pg_temp.lose(pg_temp.held('broken', 'beats')) as beaten, pg_temp.held('broken', 'beats') as named \gset
select ojs.beat('beats', array[:'named']::uuid[], lease => '1 hour') \g /dev/null
update ojs_store.lease set deadline = deadline + interval '1 hour',
    reap_at = reap_at + interval '1 hour' where job_id = :'beaten';
select pg_temp.clock('31 s') \g /dev/null
select ojs.tick() \g /dev/null
select is((select count(*) from ojs_store.lease where job_id in (:'gone', :'beaten')), 0::bigint,
    'SM-28: a tick goes on after leases without a job');
select is(pg_temp.at(:'named'), 'available/1/1', 'SM-28: and takes back the next');
select pg_temp.clock('0') \g /dev/null

-- The reconcile pass looks for such rows, and for those of jobs that are finished.
select pg_temp.lose(pg_temp.pushed('stray')), pg_temp.lose(pg_temp.held('stray2')),
    pg_temp.lose(pg_temp.pushed('stray', '{"pending": true}')) \g /dev/null
select pg_temp.pushed('stray') as alive, pg_temp.held('stray3') as ended,
    pg_temp.pushed('stray', '{"pending": true, "expires_at": "+PT1H"}') as pending \gset
create temp table twice as select * from ojs_store.lease where job_id = :'ended';
select ojs.ack(:'ended') \g /dev/null
insert into ojs_store.lease select * from twice;
select coalesce(ojs.health() #>> '{hot_set,last_reconcile,jobs}', '0') as before \gset
select is(ojs_store.reconcile('0'), 4::bigint, 'SM-28: rows of the hot set without an open job are found');
select is((select count(*) from ojs_store.ready r where r.job_id = :'alive') + (select count(*)
    from ojs_store.delayed l where l.job_id = :'pending'), 3::bigint, 'SM-28: others stay');
select is(ojs_store.reconcile('0'), 0::bigint, 'SM-28: and removed');
select is((ojs.health() #>> '{hot_set,last_reconcile,jobs}')::int - :before, 4, 'OBS-01: health counts them');
reset client_min_messages;

-- Very many due jobs of other queues: a claim looks at so many at a time, and goes on where it was. For one queue this
-- does not say where jobs of another begin, and none is passed over because a claim wanted fewer.
select count(*) as crowd
    from ojs.push_many((select jsonb_agg(jsonb_build_object('type', 't', 'args', '[]'::jsonb, 'queue', 'crowd',
    'options', '{"delay_until": "+PT20S"}'::jsonb)) from generate_series(1, 9999))) \gset
select pg_temp.pushed('crowd', '{"delay_until": "+PT21S"}'), pg_temp.pushed('late', '{"delay_until": "+PT30S"}'),
    pg_temp.pushed('early', '{"delay_until": "+PT10S"}'),
        pg_temp.pushed('early', '{"delay_until": "+PT10S"}') \g /dev/null
select pg_temp.clock('1 min') \g /dev/null
select is((select count(*) from ojs.claim('early', 'w')), 1::bigint,
    'a due job before a crowd of others is claimed (SM-04)');
select is((select count(*) from ojs.claim('early', 'w')), 1::bigint, 'the next one too (SM-04)');
select is((select count(*) from ojs.claim('late', 'w')), 0::bigint, 'one behind it is not reached at once (SM-04)');
select pg_temp.clock('0'), pg_temp.pushed('early', '{"delay_until": "+PT10S"}'), pg_temp.clock('1 min') \g /dev/null
select is((select count(*) from ojs.claim('early', 'w')), 1::bigint,
    'which another queue does not come to feel (SM-04)');
select is((select count(*) from ojs.claim('late', 'w')) + (select count(*) from ojs.claim('late', 'w')), 1::bigint,
    'but by the claim after (SM-04)');
select pg_temp.clock('0') \g /dev/null

-- A clock that goes back does not hide leases (reap hint).
select pg_temp.clock('1 day') \g /dev/null
select ojs.tick() is null as ticked \gset
select pg_temp.clock('0') \g /dev/null
select pg_temp.held('clock') as held \gset
select pg_temp.clock('31 seconds') \g /dev/null
select ojs.tick() is null as ticked \gset
select is(pg_temp.at(:'held'), 'available/1/1', 'Q-46: a clock that was set back hides nothing');


-- Each duty stands alone ----------------------------------------------------------------------------------------------

select pg_temp.pushed('alone', '{"delay_until": "+PT1M"}') as alone, pg_temp.held('alone') as lapsing \gset
select pg_temp.clock('2 minutes') \g /dev/null
select is(ojs.tick() -> 'failed', '[]', 'as long as all is well, no duty fails');
select pg_temp.clock('0') \g /dev/null
select pg_temp.pushed('alone', '{"delay_until": "+PT1M"}') as alone \gset
alter function ojs_store.prune_records(int, boolean) rename to prune_nothing;
select pg_temp.clock('2 minutes') \g /dev/null
set local client_min_messages = error;
select ojs.tick() as ticked \gset
select ojs.tick() \g /dev/null
reset client_min_messages;
select is(:'ticked'::jsonb -> 'failed', '["events"]', 'a tick names the duties that failed');
select is(pg_temp.at(:'alone'), 'available/0/0', 'and has done the others');
-- What health says of it: test/tap/upkeep_alone.pl. Here a worker that does not see this transaction may say that all
-- is well.
select matches(ojs.metrics(), 'ojs_upkeep_failures_total\{duty="events"\} [1-9]', 'and metrics count it');
alter function ojs_store.prune_nothing(int, boolean) rename to prune_records;
select is(ojs.tick() -> 'failed', '[]', 'a duty that was mended succeeds');
select pg_temp.clock('0') \g /dev/null

-- What is added up once a minute is read a few times, not once for each of its rows.
create function pg_temp.rows_read(of regclass) returns bigint language sql as $$
    select pg_stat_get_xact_tuples_returned(of) $$;
insert into ojs_store.queue_count select n % 500, 1 from generate_series(1, 1000) n;
insert into ojs_store.hook_failure select 'h' || n % 500, 1, now(), '22012' from generate_series(1, 1000) n;
select pg_temp.clock('10 minutes'), pg_temp.rows_read('ojs_store.queue_count') as counts,
    pg_temp.rows_read('ojs_store.hook_failure') as failures \gset
select ojs.tick() \g /dev/null
select cmp_ok(pg_temp.rows_read('ojs_store.queue_count') - :counts, '<', 5000::bigint,
    'moves to dead-letter queues are added up in linear time'),
    cmp_ok(pg_temp.rows_read('ojs_store.hook_failure') - :failures, '<', 5000::bigint, 'and so are failures of hooks');
select is((select count(*) || '/' || sum(dead_lettered) from ojs_store.queue_count where queue between 0 and 499),
    '500/1000', 'and nothing is lost');
delete from ojs_store.queue_count where queue between 0 and 499;
select pg_temp.clock('0') \g /dev/null

-- What nobody has looked after for more than 90 s makes health degraded.
select ojs.tick() \g /dev/null
select pg_temp.pushed('overdue', '{"delay_until": "+PT1M"}'), pg_temp.held('overdue2') as lapses,
    pg_temp.held('overdue2') as kept \gset
-- Due in one to two minutes, whatever second it is.
select ojs.schedule('overdue', extract(minute from now() at time zone 'UTC' + interval '2 minutes') || ' * * * *',
    '{"type": "t"}') \g /dev/null
-- A workflow that was left to the tick.
select ojs.create_workflow('{"type": "chain", "steps": [{"type": "t", "args": []}]}') ->> 'id' as left_open \gset
insert into ojs_store.workflow_due values (:'left_open', ojs_store.now() + interval '1 minute', 0, null);
create function pg_temp.overdue() returns text[] language sql as
$$ select array(select o ->> 'duty' from jsonb_array_elements(ojs.health() #> '{upkeep,overdue}') o) $$;
select pg_temp.clock('100 seconds') \g /dev/null
select ojs.extend(:'kept', '1 hour') \g /dev/null
select is(pg_temp.overdue(), '{}', 'what fell due a moment ago is not overdue');
select pg_temp.clock('10 minutes') \g /dev/null
select is(pg_temp.overdue(), '{reap,promote,cron,workflows}',
    'a lapsed lease, a delayed job, a cron entry and a workflow that nobody looks after are overdue');
select is(ojs.health() ->> 'status', 'degraded', 'health is degraded then');
select ok((ojs.health() #>> '{upkeep,overdue,0,since}')::timestamptz between now() + interval '29 seconds'
    and now() + interval '2 minutes', 'and tells since when');
select ojs.tick() \g /dev/null
select is(pg_temp.overdue(), '{}', 'after a tick nothing is, a lease that was extended neither');
select pg_temp.clock('0') \g /dev/null

-- What a rebuild makes of the logged tables is what is there: its view has the order of events, the states and the
-- times of expiry once more, in SQL.
select pg_temp.pushed('life'), pg_temp.pushed('life', '{"delay_until": "+PT1H", "expires_at": "+PT2H"}'),
    pg_temp.pushed('life', '{"pending": true}'),
    pg_temp.pushed('life', '{"enqueue_ttl": 3600}'), pg_temp.pushed('life',
        '{"enqueue_ttl": 90.5, "total_timeout": 60}'),
        pg_temp.pushed('life', '{"expires_at": "+PT1M", "total_timeout": 7200}') \g /dev/null
select ojs.fail(pg_temp.held('life2', 'w', '{"total_timeout": 86400}'), '{"type": "t", "message": "m"}',
        delay => '1 hour'),
    ojs.nack(pg_temp.held('life3'), '1 hour'),
    ojs.nack(pg_temp.held('life4')), ojs.set_priority(pg_temp.pushed('life5'), 9),
        ojs.activate(pg_temp.pushed('life6', '{"pending": true}')),
    ojs.activate(pg_temp.pushed('life7', '{"pending": true, "delay_until": "+PT1H"}')) \g /dev/null
select pg_temp.held('life8') as twice, pg_temp.held('life9', 'w', '{"retry": {"max_attempts": 1}}') as revived \gset
select pg_temp.clock('1 min'), ojs.nack(:'twice'), ojs.fail(:'revived', '{"type": "t", "message": "m"}'),
    pg_temp.clock('0') \g /dev/null
select count(ojs.fail(id, '{"type": "t", "message": "m"}', delay => '1 hour')),
    count(ojs.retry(:'revived')) from ojs.claim('life8', 'w') \g /dev/null
create temp table life as select id from ojs_store.job
    where queue in (select q.id from ojs_store.queue q where q.name like 'life%');
create temp table hot as
    select job_id, queue, npriority, flags & 4095 as flags, attempt, deliveries, null::smallint as kind,
        null::timestamptz as due_at
    from ojs_store.ready where job_id in (select id from life)
    union all select job_id, queue, npriority, flags & 4095, attempt, deliveries, kind,
        due_at from ojs_store.delayed where kind <> 5 and job_id in (select id from life)
    union all select job_id, queue, 0, 0, 0, 0, kind, due_at from ojs_store.delayed where kind = 5
        and job_id in (select id from life);
delete from ojs_store.ready where job_id in (select id from life);
delete from ojs_store.delayed where job_id in (select id from life);
create temp table made as
    select id, queue, npriority, flags & 4095, attempt, deliveries, kind,
        case when kind is not null then due_at end from ojs_store.lost_jobs
    union all select id, queue, 0, 0, 0, 0, 5::smallint,
        expires_at from ojs_store.lost_jobs where expires_at is not null;
select is((select count(*) from hot where kind = 5), 5::bigint, 'jobs that can expire have a reminder (TMO-04)');
select bag_eq('table made', 'table hot', 'a rebuild makes the hot set as it was (PGX-13)');

select * from finish();
rollback;
