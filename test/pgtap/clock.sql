-- clock.sql: a clock that is a year ahead for a moment, as that of a host that boots with a wrong one, and is put
-- right: all that recurs goes on (R-98). What is due at a time that somebody asked for stays due at that time.
begin;
select no_plan();
\ir helpers.psql
set local timezone = 'UTC';

-- Ticks by a clock that is so far ahead, and is put right.
create function pg_temp.jump(ahead interval) returns void language plpgsql as $$
begin
    perform pg_temp.clock(ahead);
    perform ojs.tick();
    perform pg_temp.clock('0');
end $$;
create function pg_temp.made_by(entry text) returns bigint language sql stable as
$$ select count(*) from ojs.jobs where meta ->> 'cron_name' = entry $$;
create function pg_temp.next_of(entry text) returns interval language sql stable as
$$ select next_run_at - ojs_store.now() from ojs.crons where name = entry $$;

-- Cron ---------------------------------------------------------------------------------------------------------------

select ojs.schedule('minutely', '* * * * *', '{"type": "a.b", "queue": "clock"}', '{"overlap_policy": "allow"}'),
    ojs.schedule('every', '@every 10m', '{"type": "a.b", "queue": "clock"}', '{"overlap_policy": "allow"}'),
    ojs.schedule('zoned', '*/5 * * * *', '{"type": "a.b", "queue": "clock"}',
        '{"overlap_policy": "allow", "timezone": "America/New_York"}') \g /dev/null
set local client_min_messages = warning;
select pg_temp.jump('365 days') \g /dev/null
select ojs.tick() \g /dev/null
select is(pg_temp.next_of(name) between '0' and most, true,
    format('an entry of %s is run in its next period after the clock was a year ahead: R-98', name))
from (values ('minutely', interval '1 minute'), ('every', '10 minutes'), ('zoned', '5 minutes')) e (name, most);
select pg_temp.made_by('minutely') as made \gset
select pg_temp.clock('61 s') is null as moved, ojs.tick() is null as ticked, pg_temp.clock('0') is null as back \gset
select is(pg_temp.made_by('minutely') > :made, true, 'and it runs: R-98');

-- Registering an entry anew puts it right, too; after an update nothing says by which clock it was planned.
update ojs_store.cron set next_run_at = now() + interval '365 days', due_at = now() + interval '365 days',
    planned_at = null where name in ('minutely', 'every');
select ojs.schedule('minutely', '* * * * *', '{"type": "a.b", "queue": "clock"}', '{"overlap_policy": "allow"}'),
    ojs.schedule('every', '@every 10m', '{"type": "a.b", "queue": "clock"}', '{"overlap_policy": "allow"}') \g /dev/null
select is(pg_temp.next_of(name) between '0' and most, true,
    format('registering %s anew works out its next run anew: R-98', name))
from (values ('minutely', interval '1 minute'), ('every', '10 minutes')) e (name, most);

-- An entry that was registered by the wrong clock: @every counts from then on, and backwards.
select pg_temp.clock('365 days') is null as moved, ojs.schedule('born', '@every 10m',
    '{"type": "a.b", "queue": "clock"}') is null as made, pg_temp.clock('0') is null as back,
    ojs.tick() is null as t \gset
select is(pg_temp.next_of('born') between '0' and '10 minutes', true,
    'an entry that was registered a year ahead is run within its period: R-98');

-- A clock that is set back by less than a period makes no run twice.
select ojs.schedule('daily', '0 0 * * *', '{"type": "a.b", "queue": "clock"}', '{"overlap_policy": "allow"}')
    is null as s \gset
select pg_temp.jump(date_trunc('day', now()) + interval '1 day 1 second' - now()) \g /dev/null
select pg_temp.made_by('daily') as made \gset
select ojs.tick() \g /dev/null
select ojs.schedule('daily', '0 0 * * *', '{"type": "a.b", "queue": "clock"}', '{"overlap_policy": "allow"}')
    is null as s \gset
select is(pg_temp.next_of('daily') > '1 day', true,
    'a run that was made just ahead of its time is not made again: R-98');
select pg_temp.jump(date_trunc('day', now()) + interval '1 day 2 seconds' - now()) \g /dev/null
select is(pg_temp.made_by('daily'), :made::bigint, 'the clock reaches that time again: no second run: R-98');
select is(ojs.tick() -> 'failed', '[]', 'no duty has failed: R-98');

-- Jobs, leases, limits and retention -------------------------------------------------------------------------------

select pg_temp.pushed('later', '{"delay": "PT1H"}') as later \gset
select pg_temp.pushed('retried', '{"retry": {"initial_interval": "PT1M", "jitter": false}}') as retried \gset
select (ojs.fail(id, '{"type": "t", "message": "m"}')).state as failed from ojs.claim('retried', 'w') \gset
select ojs.configure_queue('kept', '{"retention": {"completed": "PT1H"}}') is null as kept \gset
select ojs.set_rate_limit('partner', '{"rate": {"limit": 1, "period": "PT1M"}}') is null as r,
    ojs.set_rate_limit('slow', '{"throttle": {"limit": 1, "period": "PT1M"}}') is null as t \gset
select pg_temp.clock('365 days') \g /dev/null
select pg_temp.pushed('partner', '{"rate_limit": {"key": "partner"}}') is null as p1,
    pg_temp.pushed('slow', '{"rate_limit": {"key": "slow"}}') is null as p2, pg_temp.pushed('kept') as kept \gset
select count(*) as claimed from unnest('{partner,slow,kept}'::text[]) q, ojs.claim(q, 'w') c, ojs.ack(c.id) \gset
select is(:claimed, 3,  'three jobs are done by the wrong clock');
select ojs.tick() is null as t, pg_temp.clock('0') is null as back \gset
select pg_temp.pushed('partner', '{"rate_limit": {"key": "partner"}}') is null as p1,
    pg_temp.pushed('slow', '{"rate_limit": {"key": "slow"}}') is null as p2 \gset
select pg_temp.clock('2 minutes') is null as moved, ojs.tick() is null as t \gset
select is((select count(*) from ojs.claim(q, 'w2')), 1::bigint,
    format('a start of a year ahead does not hold up the limit %s: R-98', q)) from unnest('{partner,slow}'::text[]) q;
select pg_temp.pushed('kept') as ended \gset
select (ojs.ack(id)).state as ended_as from ojs.claim('kept', 'w') \gset
select pg_temp.clock('2 hours') is null as moved, ojs.tick() is null as t, ojs.tick() is null as t2 \gset
select is(exists (select from ojs_store.job where id = :'ended'), false, 'retention goes on: R-98 QC-05');
select pg_temp.clock('0') is null as back \gset
select pg_temp.held('lapse') as held \gset
select pg_temp.jump('365 days') \g /dev/null
select is(pg_temp.at(:'held'), 'available/1/1', 'a lease that ran out by the wrong clock is given back, not lost');
select is((select count(*) from ojs.claim('lapse', 'w2')), 1::bigint, 'and the job is handed out again');

-- Upkeep -----------------------------------------------------------------------------------------------------------

select is((select count(*) from ojs_store.retention_cursor where at > clock_timestamp() + interval '1 day'
    and ojs.tick() -> 'failed' <> '[]'), 0::bigint, 'no duty of upkeep rests until the wrong time comes: R-98');
select ojs.create_workflow('{"type": "chain", "steps": [{"type": "w.one", "args": [], "queue": "flow"},
    {"type": "w.two", "args": [], "queue": "flow"}]}') is null as made \gset
select pg_temp.jump('365 days') \g /dev/null
select (ojs.ack(id)).state as acked from ojs.claim('flow', 'w') \gset
select ojs.tick() \g /dev/null
select is((select type from ojs.claim('flow', 'w')), 'w.two', 'workflows go on: R-98 WF-02');
select pg_temp.jump('365 days') \g /dev/null
delete from ojs_store.workflow_open where workflow in (select id from ojs_store.workflow where state = 'running');
set local client_min_messages = error;
select ojs.tick() \g /dev/null
select is(exists (select from ojs_store.workflow_due)
    or not exists (select from ojs_store.workflow where state = 'running'), true,
    'the check of workflows looks again once the clock is right: R-98 WF-10');
select is(ojs.health() #>> '{status}', 'ok', 'the server is well: R-98');

-- Hours that come twice, as ojs.schedule gives notice of them.
select is((ojs_store.cron_rest(expression, zone, '2027-01-01 00:00Z')).length::text, wanted,
    format('%s in %s pauses for %s when clocks are set back: R-53', expression, zone, coalesce(wanted, 'no time')))
from (values ('* * * * *', 'Europe/Berlin', '01:00:00'), ('*/15 * * * *', 'America/New_York', '01:00:00'),
    ('@hourly', 'Europe/London', '01:00:00'), ('*/10 * * * *', 'Australia/Lord_Howe', '00:30:00'),
    ('* * * * *', 'UTC', null), ('* * * * *', 'Asia/Tokyo', null), ('30 2 * * *', 'Europe/Berlin', null),
    ('*/15 9-17 * * *', 'Europe/Berlin', null), ('0 9 * * MON-FRI', 'America/New_York', null)) e (expression, zone,
        wanted);
select is((ojs_store.cron_rest('* * * * *', 'Europe/Berlin', '2027-01-01 00:00Z')).at, '2027-10-31 01:00Z'::timestamptz,
    'from the moment at which they are set back: R-53');

select * from finish();
rollback;
