-- lease_log.sql: what happened to the leases of queues that have lease_log on. C++: src/state/lease_log.cpp.

-- For what takes leases away by SQL.
create function ojs_store.log_lease(lease ojs_store.lease, step smallint) returns void
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    insert into ojs_store.lease_log (number, job_id, seq, queue, at, deadline, token, step, deliveries, worker)
    select nextval('ojs_store.seq'), j.id, j.seq, (lease).queue, ojs_store.now(), (lease).deadline, (lease).token, step,
        (lease).deliveries, (lease).worker
    from ojs_store.job j
    where j.id = (lease).job_id and (lease).flags & job_flag.lease_logged <> 0
$$;

create view ojs.lease_log with (security_barrier) as
select
    l.job_id, l.seq,
    (select q.name from ojs_store.queue q where q.id = l.queue order by q.revised_at desc limit 1) as queue,
    ('{claimed,extended,released,acked,failed,lapsed,cancelled,purged,discarded}'::text[])[l.step] as event,
    l.worker, 'lease_' || lpad(to_hex(l.token), 16, '0') as lease_id, l.at, l.deadline, l.deliveries, l.number
from ojs_store.lease_log l
where ojs_store.may_use_queue(l.queue, 'read');
comment on view ojs.lease_log
    is 'What happened to the leases of queues with lease_log, in the order of number: claimed, extended, released, '
       'acked, failed, lapsed, cancelled, purged, discarded';
