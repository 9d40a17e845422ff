-- rights_hooks.sql: a hook is given no job that the role which registered it may not see: SEC-01, MW-01.
-- Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();
\ir helpers.psql

create role rh_insider in role ojs_producer, ojs_worker, ojs_observer;
create role rh_outsider in role ojs_admin;
select ojs.create_queue('rh-vault', '{"producers": ["rh_insider"], "workers": ["rh_insider"],
    "readers": ["rh_insider"], "administrators": ["rh_insider"]}') \g /dev/null
create schema rh;
grant all on schema rh to public;
create table rh.seen (job jsonb);
grant all on rh.seen to public;
set role rh_outsider;
create function rh.look(job jsonb) returns jsonb language plpgsql as
    $$ begin insert into rh.seen values (job); return job; end $$;
reset role;

-- At a push.
set role rh_outsider;
select ojs.register_hook('rh-hook', 'enqueue', 'rh.look(jsonb)') \g /dev/null
reset role;
select is(pg_temp.as_role('rh_insider', call), '57P03', 'SEC-01: with such a hook, a push is refused: ' || call)
from (values ($$ select ojs.push('t', '["SECRET"]', queue => 'rh-vault') $$),
    ($$ select ojs.push_job('{"type": "t", "args": ["SECRET"], "queue": "rh-vault"}') $$),
    ($$ select ojs.push_job('{"type": "t", "args": ["SECRET"], "options": {"queue": "rh-vault"}}') $$)) c (call);
select is(pg_temp.as_role('rh_insider', $$ select count(*) from ojs.push_many(
    '[{"type": "t", "args": ["SECRET"], "queue": "rh-vault"}]', atomicity => 'partial') $$), '57P03',
    'SEC-01: in a batch, too');
select is((select count(*) from rh.seen), 0::bigint, 'SEC-01: and the hook has not seen the job');
select is(pg_temp.as_role('rh_insider', $$ select state from ojs.push('t', queue => 'rh-open') $$), 'available',
    'SEC-01: jobs of queues without lists pass it');
select is((select count(*) from rh.seen), 1::bigint, 'SEC-01: and it sees them');
reset role;
select ojs.unregister_hook('rh-hook') \g /dev/null

-- At a claim and at the end of an attempt: the job goes on without it.
truncate rh.seen;
set role rh_outsider;
select ojs.register_hook('rh-before', 'before_execute', 'rh.look(jsonb)'),
    ojs.register_hook('rh-after', 'after_execute', 'rh.look(jsonb)') \g /dev/null
reset role;
set local client_min_messages = error;
select is(pg_temp.as_role('rh_insider', $$ select state from ojs.push('t', '["SECRET"]', queue => 'rh-vault') $$),
    'available', 'SEC-01: hooks of claims stop no push');
select is(pg_temp.as_role('rh_insider', $$ select args from ojs.claim('rh-vault', 'w') $$), '["SECRET"]',
    'SEC-01: a claim goes on without the hook');
select is((select (ojs.ack(job_id)).state from ojs.leases where queue = 'rh-vault'), 'completed',
    'SEC-01: and so does an ack');
select is((select count(*) from rh.seen), 0::bigint, 'SEC-01: hooks have seen nothing of it');
select is((select string_agg(name || failures, ' ' order by name) from ojs.hooks), 'rh-after1 rh-before1',
    'SEC-01: they count as failed');
-- Who is let in, is called.
select ojs.configure_queue('rh-vault', '{"readers": ["rh_insider", "rh_outsider"]}') \g /dev/null
select pg_temp.as_role('rh_insider', $$ select state from ojs.push('t', queue => 'rh-vault') $$),
    pg_temp.as_role('rh_insider', $$ select args from ojs.claim('rh-vault', 'w') $$) \g /dev/null
select is((select count(*) from rh.seen), 1::bigint, 'SEC-01: a hook of a reader is called');

select * from finish();
rollback;
