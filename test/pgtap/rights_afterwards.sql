-- rights_afterwards.sql: what a queue with lists has left behind is no more for everybody than it was: SEC-01, EVT-03.
-- Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();
\ir helpers.psql

create role insider in role ojs_producer, ojs_worker, ojs_observer, ojs_admin;
create role outsider in role ojs_producer, ojs_worker, ojs_observer, ojs_admin;
select ojs.create_queue('vault', '{"producers": ["insider"], "workers": ["insider"], "readers": ["insider"],
    "administrators": ["insider"]}') \g /dev/null
select ojs.create_queue('bills', '{"readers": ["outsider"]}') \g /dev/null

-- EVENTS OF WHAT IS GONE --------------------------------------------------------------------------------------------

select ojs.schedule('payroll', '@daily', '{"type": "pay.salaries", "queue": "vault"}') \g /dev/null
select ojs_store.cron_event(c, 'cron.triggered', '{}') from ojs_store.cron c where name = 'payroll' \g /dev/null
select ojs.create_workflow('{"type": "chain", "steps": [{"type": "t", "args": [], "queue": "bills"},
    {"type": "t", "args": [], "queue": "vault"}]}') ->> 'id' as flow \gset
-- By the view, and as ojs.events() looks, which runs as its owner. It tells nothing of a transaction that is open.
create function pg_temp.streamed(subject text) returns text language sql security definer as $$
    select string_agg(e.type, ' ' order by e.type) from ojs_store.all_events e
    where e.subject = $1 and e.type !~ '^admin' and ojs_store.may_read_event(e.type, e.queue, e.subject, e.queues)
$$;
create function pg_temp.told(role name, subject text) returns text language sql as $$
    select string_agg(distinct told, ' but ') from (values
        (pg_temp.as_role(role, format($q$select string_agg(type, ' ' order by type) from ojs.events
            where subject = %L and type !~ '^admin'$q$, subject))),
        (pg_temp.as_role(role, format('select pg_temp.streamed(%L)', subject)))) v (told)
$$;
select is(pg_temp.told('insider', 'payroll'), 'cron.triggered', 'EVT-03: a reader sees the events of a cron entry'),
    is(pg_temp.told('outsider', 'payroll'), 'null', 'SEC-01: nobody else');
select is(pg_temp.told('outsider', :'flow'), 'null', 'SEC-01: of a workflow, not who reads a part of its queues'),
    is(pg_temp.told('insider', :'flow'), 'workflow.created workflow.started', 'EVT-03: but who reads all of them');
select ojs.unschedule('payroll') \g /dev/null
delete from ojs_store.workflow where id = :'flow';
select is(pg_temp.told('insider', 'payroll'), 'cron.triggered', 'EVT-03: so it is when the entry is gone'),
    is(pg_temp.told('outsider', 'payroll'), 'null', 'SEC-01: for nobody else'),
    is(pg_temp.told('insider', :'flow'), 'workflow.created workflow.started', 'EVT-03: and the workflow'),
    is(pg_temp.told('outsider', :'flow'), 'null', 'SEC-01: for nobody else, too');
select is((select count(*) from ojs.events where data ? 'queue_ids'), 0::bigint, 'EVT-03: ids of queues are not shown');
select is(ojs_store.webhook_may_read(role, null, type, queue, subject, queues), role = 'insider',
    format('SEC-01: a webhook of %s gets of %s as much', role, type))
from (values ('insider'), ('outsider')) r (role), lateral (
    select e.type, e.queue, e.subject, e.queues from ojs_store.all_events e
    where e.subject = :'flow' and e.type = 'workflow.created'
    union all
    select e.type, e.queue, e.subject, e.queues from ojs_store.all_events e where e.type = 'cron.triggered') e;
-- Events of before 0.2.0 bear no queues.
update ojs_store.stored_event set data = data - 'queue_ids' - 'queue';
select is(pg_temp.told('insider', :'flow'), 'null', 'SEC-01: without its queues an event is nobody''s any more'),
    is(pg_temp.told('insider', 'payroll'), 'null', 'SEC-01: nor that of a cron entry');
select is((select count(*) from ojs.events where subject in ('payroll', :'flow') and type !~ 'admin'), 3::bigint,
    'EVT-03: but a superuser''s');

-- COUNTS ------------------------------------------------------------------------------------------------------------

select ojs.push('t', queue => 'vault', "unique" => '{"keys": ["args"]}'),
    ojs.push('t', queue => 'open', "unique" => '{"keys": ["queue", "args"]}') \g /dev/null
select is(pg_temp.as_role('insider', 'select concat(cardinality(entries), total) from ojs_http.held_keys(1, 1)'), '12',
    'SEC-01: who may, counts all uniqueness keys'),
    is(pg_temp.as_role('outsider', 'select concat(cardinality(entries), total) from ojs_http.held_keys(1, 0)'), '11',
    'SEC-01: others those that they may see, on a full page');

-- ROOM FOR WORKERS --------------------------------------------------------------------------------------------------

insert into ojs_store.worker (name, info, registered_at, seen_at, registered_by)
    select 'flood-' || n, '{}', now(), now(), 'outsider' from generate_series(1, 50000) n;
set local role outsider;
select matches(pg_temp.refusal($$select ojs.register_worker('one-more')$$), '^57P03 the role "outsider" has 50000',
    'SEC-01: a role lists so many workers');
select directive from ojs.beat('one-more') \g /dev/null
set local role insider;
select is(ojs.register_worker('mine') -> 'ok', 'true', 'SEC-01: and does not keep another from its own');
select directive from ojs.beat('mine-too') \g /dev/null
reset role;
select is((select string_agg(name, ' ' order by name) from ojs_store.worker where name !~ '^flood'), 'mine mine-too',
    'SEC-01: by its beats neither');

select * from finish();
rollback;
