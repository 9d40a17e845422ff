-- maintenance.sql: ADM-05: nothing is handed out, time stands still for what waits, pushes and what is held go on.
begin;
select no_plan();
\ir helpers.psql
\ir http.psql

select is(ojs.set_maintenance(false), '{"maintenance": false}', 'ADM-05: ending what has not begun does nothing');
select is((select count(*) from ojs.claim('warm', 'w', missing_ok => true)), 0::bigint,
    'ADM-05: this session has looked before');
select pg_temp.pushed('m') as ready, pg_temp.pushed('m', '{"delay_until": "+PT1H"}') as scheduled,
    pg_temp.held('m.held') as held,
    pg_temp.pushed('m', '{"expires_at": "+PT1H"}') as mortal, pg_temp.held('m.lapsed') as lapsed \gset
select id as retryable from ojs.fail(pg_temp.held('m.failed'), '{"type": "t", "message": "m"}', delay => '1 hour') \gset
select id as released from ojs.nack(pg_temp.held('m.released'), '1 hour') \gset
select from ojs.schedule('nightly', '@every 30m', '{"type": "cron.run", "queue": "m.cron"}') \gset
select from ojs.push('test.job', queue => 'm.paused');
select from ojs.pause_queue('m.paused');

select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/admin/system/maintenance',
    '{"enabled": true, "reason": "Database migration", "estimated_duration": "PT30M"}')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.maintenance'), pg_temp.got('body.reason')),
    '200 true Database migration', 'ADM-05: begun over HTTP');
select is(pg_temp.got('body.estimated_end')::timestamptz - pg_temp.got('body.enabled_at')::timestamptz,
    interval '30 minutes', 'ADM-05: with the end that is expected');

-- Claims
select is((select count(*) from ojs.claim('m', 'w', 10)), 0::bigint, 'ADM-05: a claim comes back empty');
select is((select count(*) from ojs.claim('{m,m.held,m.released}'::text[], 'w', 10)), 0::bigint,
    'ADM-05: of several queues too');
select is((select count(*) from ojs.claim('m', 'w', wait => '50 ms')), 0::bigint, 'ADM-05: and one that waits');
select is(pg_temp.http('POST', '/ojs/v1/workers/fetch', '{"queues": ["m"], "worker_id": "w"}') #> '{body,jobs}', '[]',
    'ADM-05: a fetch over HTTP is no error');
select is(ojs.lease_claim('m', '{"node": "w", "max": 3}') -> 'messages',
    ojs.lease_claim('m.paused', '{"node": "w"}') -> 'messages', 'ADM-05: the lease face answers as for a paused queue');
select ojs.work_open('m', 'w') \g /dev/null
select is((select count(*) from ojs.work_next()), 0::bigint, 'ADM-05: nor does push mode deliver');
select ojs.work_close() \g /dev/null
select is((select count(*) from ojs.ack_and_claim('w', 'm', array[:'held'::uuid])), 0::bigint,
    'ADM-05: a worker finishes what it holds and gets nothing new');
select is(pg_temp.at(:'held'), 'completed/1/1', 'ADM-05: it is finished');

-- Pushes
select is((ojs.push('test.job', queue => 'm')).state, 'available', 'ADM-05: pushes are accepted');
select is((ojs.push('test.job', queue => 'm.new')).state, 'available', 'ADM-05: to new queues too');
select is((ojs.push('test.job', queue => 'm', delay => '1 hour')).state, 'scheduled', 'ADM-05: and for later');
select is(directive, 'running', 'ADM-05: workers are not told to be quiet: they would have to be told to go on')
    from ojs.beat('w');

-- Time
select pg_temp.clock('2 hours') \g /dev/null
select ojs.tick() as ticked \gset
select is(:'ticked'::jsonb -> 'promoted', '0', 'ADM-05: a tick promotes nothing');
select is(:'ticked'::jsonb -> 'crons', '0', 'ADM-05: and runs no cron entry');
select is((select count(*) from ojs.jobs where queue = 'm.cron'), 0::bigint, 'ADM-05: which pushes nothing');
select is(pg_temp.at(:'scheduled'), 'scheduled/0/0', 'ADM-05: a due job stays scheduled');
select is(pg_temp.at(:'retryable'), 'retryable/1/1', 'ADM-05: a failed one retryable');
select is((select (scheduled, retryable) from ojs.queue_stats('m'),
    (select retryable as r from ojs.queue_stats('m.failed')) f), (2::bigint, 0::bigint), 'ADM-05: it is counted so');
select is((select (ready, delayed) from ojs.queue_stats('m.released')), (0::bigint, 1::bigint),
    'ADM-05: what was given back with a delay stays away');
select is(ojs.cancel_many('{"queue": "m.failed", "state": "available"}', true) ->> 'matched', '0',
    'ADM-05: filters see it so');
select is(ojs.purge_queue('m.failed', '{available}', true), 0::bigint, 'ADM-05: and a purge');
select is((ojs.cancel((select id from ojs.push('test.job', queue => 'm.c',
    scheduled_at => now() + interval '1 hour')))).state, 'cancelled', 'ADM-05: jobs can be cancelled');
select is(pg_temp.at(:'lapsed'), 'available/1/1', 'ADM-05: leases run out as ever, and their jobs are taken back');

-- How it is seen
select is(ojs.health() #>> '{maintenance,reason}', 'Database migration', 'ADM-05: health says so');
select is(ojs.health() ->> 'status', 'ok', 'ADM-05: the server is well');
select is(ojs.ready(), true, 'ADM-05: and ready for pushes');
select is(pg_temp.http('GET', '/ojs/v1/admin/system/maintenance') #>> '{body,maintenance}', 'true',
    'ADM-05: it can be asked for');
select is(pg_temp.http('GET', '/ojs/v1/admin/stats') #>> '{body,maintenance}', 'true', 'ADM-05: the statistics say it');
select is(line, 'ojs_maintenance 1', 'ADM-05: the metrics too') from string_to_table(ojs.metrics(), e'\n') line
    where line like 'ojs_maintenance%';
select matches(ojs.explain_job(j),
    'waits because the server has been in maintenance since .* \(Database migration\); ojs.set_maintenance\(false\)',
    'ADM-05: a job''s explanation: ' || what)
from (values ('ready', :'ready'::uuid), ('scheduled', :'scheduled'), ('retryable', :'retryable')) e (what, j);
select is((select state from ojs.queues where name = 'm'), 'active', 'ADM-05: a queue''s own state stands');

-- Refusals, and saying it again
select is(pg_temp.refusal('select ojs.set_maintenance(null)'), 'OJ100 INVALID_PAYLOAD enabled',
    'ADM-05: refused: null');
select is(pg_temp.refusal($$ select ojs.set_maintenance(true, estimated_duration => '-1 s') $$),
    'OJ100 INVALID_PAYLOAD estimated_duration', 'ADM-05: refused: a negative duration');
select is(pg_temp.refusal($$ select ojs.set_maintenance(true, estimated_duration => '200000 years') $$),
    'OJ100 INVALID_PAYLOAD estimated_duration', 'ADM-05: refused: an end that RFC 3339 cannot name');
select is(pg_temp.error('POST', '/ojs/v1/admin/system/maintenance', body), '400 invalid_request',
    'ADM-05: refused: ' || body::text)
from unnest(array['{}', '{"enabled": "yes"}', '{"enabled": true, "reason": 1}',
    '{"enabled": true, "estimated_duration": "30 minutes"}',
    '{"enabled": true, "estimated_duration": "Px"}']::jsonb[]) body;
select ojs.health() #>> '{maintenance,enabled_at}' as since \gset
select is(m ->> 'enabled_at', :'since', 'ADM-05: said again, it began when it began'),
    is(m ->> 'reason', 'longer', 'ADM-05: for another reason'),
    is(m ? 'estimated_end', false, 'ADM-05: with no end in sight') from ojs.set_maintenance(true, 'longer') m;
select is((select count(*) from ojs_store.maintenance), 1::bigint, 'ADM-05: once');

-- A rollback of its end
savepoint before_end;
select is(ojs.set_maintenance(false), '{"maintenance": false}', 'ADM-05: ended');
select is((select count(*) from ojs.claim('m.released', 'w')), 1::bigint, 'ADM-05: and claims go on');
rollback to before_end;
select is((select count(*) from ojs.claim('m.released', 'w')), 0::bigint, 'ADM-05: a rollback takes the end back');

-- The end
select is(pg_temp.http('POST', '/ojs/v1/admin/system/maintenance', '{"enabled": false}') -> 'body',
    '{"enabled": false, "maintenance": false}', 'ADM-05: ended over HTTP');
select is(ojs.health() -> 'maintenance', 'null', 'ADM-05: health says so');
select is((select array_agg(id) from ojs.claim('m.released', 'w')), array[:'released'::uuid],
    'ADM-05: what had fallen due is handed out at once');
select is((select count(*) from ojs.claim('m.paused', 'w')), 0::bigint, 'ADM-05: a paused queue stays so');
select is((ojs.tick() ->> 'crons')::int, 1, 'ADM-05 CRN-09: a cron entry runs once for all that it has missed');
select is((select count(*) from ojs.jobs where queue = 'm.cron'), 1::bigint, 'ADM-05 CRN-09: one job');
select is(pg_temp.at(:'scheduled'), 'available/0/0', 'ADM-05: due jobs are promoted');
select is((select state || (error ->> 'type') from ojs.jobs where id = :'mortal'), 'discardedexpired',
    'ADM-05 SCH-03: and what has expired was never handed out');

select * from finish();
rollback;
