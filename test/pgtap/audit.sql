-- audit.sql: what administrators have done is recorded, with who and from where, and by nobody else: PGX-12.
-- Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();
\ir helpers.psql

create role audit_admin in role ojs_admin;
-- The newest entry that a statement of an administrator has left.
create function pg_temp.done(statement text) returns text language plpgsql as $$
declare
    known uuid[] := array(select id from ojs.audit);
begin
    set local role audit_admin;
    execute statement;
    reset role;
    return (select string_agg(concat_ws(' ', act, subject, role, before, after, detail), '; ') from ojs.audit
        where id <> all (known));
end $$;

select is(pg_temp.done($$select ojs.create_queue('q', '{"concurrency": 3}')$$),
    'queue_configured q audit_admin {"concurrency": 3} {"queue": "q", "config": {"concurrency": 3}}', 'a new queue');
select is(pg_temp.done($$select ojs.configure_queue('q', '{"concurrency": 2}')$$),
    'queue_configured q audit_admin {"concurrency": 3} {"concurrency": 2} {"queue": "q", "config": {"concurrency": 2}}',
    'its settings before and after');
select is(pg_temp.done($$select ojs.configure_queue('q', '{"concurrency": 2}')$$), null,
    'what changes nothing is no act');
select is(pg_temp.done($$select ojs.pause_queue('q')$$), 'queue_paused q audit_admin {"queue": "q"}', 'a pause');
select is(pg_temp.done($$select ojs.resume_queue('q')$$), 'queue_resumed q audit_admin {"queue": "q"}', 'its end');
select matches(pg_temp.done($$select ojs.schedule('c', '@hourly', '{"type": "t", "args": ["secret"]}')$$),
    '^cron_set c audit_admin .*"expression": "@hourly"', 'a cron entry');
select unalike(pg_temp.done($$select ojs.schedule('c', '@daily', '{"type": "t", "args": ["secret"]}')$$), '%secret%',
    'without the arguments of its job');
select matches(pg_temp.done($$select ojs.unschedule('c')$$), '^cron_removed c', 'its removal');
select matches(pg_temp.done($$select ojs.set_rate_limit('k', '{"concurrency": 1}')$$), '^rate_limit_set k',
    'a rate limit');
select matches(pg_temp.done($$select ojs.set_rate_limit('k', null)$$),
    '^rate_limit_set k audit_admin .*"concurrency": 1',
    'with what it was');
select matches(pg_temp.done($$select ojs.set_worker_state('w', 'quiet')$$), '^worker_directed w', 'a directive');
select matches(pg_temp.done($$select ojs.set_maintenance(true, 'update')$$), '^maintenance_set', 'maintenance');
select ojs.set_maintenance(false) \g /dev/null
select matches(pg_temp.done($$select ojs.create_schema('t', '1', '{}')$$), '^schema_created t', 'a schema');
select matches(pg_temp.done($$select ojs.set_schema_validation('t', 'off')$$),
    '^schema_validation_set t audit_admin "off"',
    'its mode');
select ojs.push('t', '["mine"]', queue => 'q') \g /dev/null
select matches(pg_temp.done($$select ojs.cancel_many('{"queue": "q", "type": "t"}', true)$$),
    '^jobs_cancelled cancel audit_admin .*"succeeded": 1', 'a bulk operation');
select matches(pg_temp.done($$select ojs.delete_job(id) from ojs.jobs where type = 't'$$), '^job_deleted',
    'a job deleted by hand');
select matches(pg_temp.done($$select ojs.drop_queue('q')$$), '^queue_dropped q', 'a queue dropped');
select is(session_role, session_user::text, 'who logged in') from ojs.audit limit 1;
select is(application, current_setting('application_name'), 'and with what') from ojs.audit limit 1;
select is((select count(*) from ojs.audit where octet_length(after::text) > 16384), 0::bigint, 'an entry has a bound');
select ojs_store.record_audit('test', 'large', to_jsonb(repeat('x', 20000)), null, null) \g /dev/null
select is(before, '{"bytes": 20002, "truncated": true}', 'what is larger is named only') from ojs.audit
    where subject = 'large';

-- Nothing that workers and producers do comes here.
create function pg_temp.entries() returns bigint language sql as $$ select count(*) from ojs_store.audit $$;
select pg_temp.entries() as before \gset
select ojs.push('a.b', queue => 'p'), ojs.cancel(id) from ojs.push('a.b', queue => 'p') \g /dev/null
select ojs.beat('w9'), ojs.register_worker('w8'), ojs.deregister_worker('w8') \g /dev/null
select ojs.ack(id) from ojs.claim('p', 'w9', 10) \g /dev/null
select ojs.tick() \g /dev/null
select is(pg_temp.entries(), :before::bigint, 'workers, producers and ticks write nothing');
set local ojs.events_off = '*';
select matches(pg_temp.done($$select ojs.create_queue('q2')$$), '^queue_configured q2',
    'nor do switched-off events matter');
set local ojs.max_events = 1;
select ojs.tick() \g /dev/null
select cmp_ok(pg_temp.entries(), '>', :before::bigint, 'nor the bound of events');
select pg_temp.clock('364 days') \g /dev/null
select ojs.tick(10000) \g /dev/null
select cmp_ok(pg_temp.entries(), '>', :before::bigint, 'it is kept for a year');
select pg_temp.clock('366 days') \g /dev/null
select ojs.tick(10000) \g /dev/null
select is(pg_temp.entries(), 0::bigint, 'and then removed by ticks');
select is(left(pg_temp.refusal('set local ojs.audit_retention = ''1 hour'''), 5), '22023', 'a day is the least');

-- Who may.
select is((select string_agg(role || ' ' || right_name, ', ')
    from unnest('{ojs_producer,ojs_worker,ojs_observer}'::text[]) role,
    unnest('{select,insert,update,delete}'::text[]) right_name
        where has_table_privilege(role, 'ojs.audit', right_name)), null,
    'no other role reads it (PGX-12)');
select is((select string_agg(right_name, ', ') from unnest('{insert,update,delete,truncate}'::text[]) right_name
    where has_table_privilege('ojs_admin', 'ojs.audit', right_name)
        or has_table_privilege('ojs_admin', 'ojs_store.audit', right_name)), null,
    'and administrators change nothing (PGX-12)');
set local role audit_admin;
select is(left(pg_temp.refusal('set ojs.audit_retention = ''1 day'''), 5), '42501', 'nor the retention (PGX-12)');
reset role;

select ojs.create_queue('q3') \g /dev/null
select is(r.body::jsonb #>> '{entries,0,event_type}', 'admin.queue_configured', 'HTTP shows it to administrators')
from ojs.http('GET', '/ojs/v1/admin/audit?limit=1&subject=q3') r;
create role audit_observer in role ojs_observer;
set local role audit_observer;
select is(r.status, 403, 'and to nobody else (PGX-12)') from ojs.http('GET', '/ojs/v1/admin/audit') r;

select * from finish();
rollback;
