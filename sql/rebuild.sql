-- rebuild.sql: how the hot set learns that logged tables were changed by SQL, and the safety net under it.
-- C++: src/hot_set/rebuild.cpp.

-- Fires for COPY and INSERT, as in a restore; direct table access fires no trigger.
create function ojs_store.hot_set_lost() returns trigger
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_hot_set_lost';

create trigger hot_set_lost after insert on ojs_store.job for each statement execute function ojs_store.hot_set_lost();
create trigger hot_set_lost after insert on ojs_store.job_history for each statement execute function
    ojs_store.hot_set_lost();
create trigger hot_set_lost after insert on ojs_store.finished for each statement execute function
    ojs_store.hot_set_lost();
create trigger hot_set_lost after insert on ojs_store.checkpoint for each statement execute function
    ojs_store.hot_set_lost();

-- Sessions that have cached these read them again, whoever changes the rows: a restore does so, too.
create function ojs_store.rows_changed() returns trigger
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.changed(case when tg_nargs = 0 then tg_relid::regclass else tg_argv[0]::regclass end);
    return null;
end $$;

create trigger changed after insert on ojs_store.queue -- ticks, too, remove what is over: that changes nothing
    for each statement execute function ojs_store.rows_changed();
create trigger changed after insert or update or delete or truncate on ojs_store.maintenance
    for each statement execute function ojs_store.rows_changed();
create trigger changed after insert or update or delete or truncate on ojs_store.pool
    for each statement execute function ojs_store.rows_changed();
create trigger changed after insert or update or delete or truncate on ojs_store.tenant_role
    for each statement execute function ojs_store.rows_changed();
create trigger changed after insert or update or delete or truncate on ojs_store.hook
    for each statement execute function ojs_store.rows_changed();
create trigger changed after insert or update or delete or truncate on ojs_store.job_schema
    for each statement execute function ojs_store.rows_changed();
create trigger changed after insert or update or delete or truncate on ojs_store.schema_mode
    for each statement execute function ojs_store.rows_changed('ojs_store.job_schema'); -- read together
create trigger changed after insert on ojs_store.rate_limit
    for each statement execute function ojs_store.rows_changed();

-- Sessions that have cached the key of name_hash, and hashes made with it, read it again.
create function ojs_store.name_key_changed() returns trigger
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.changed('ojs_store.name_key');
    perform ojs_store.changed('ojs_store.rate_limit');
    return null;
end $$;

create trigger name_key_changed after insert or update or delete on ojs_store.name_key
for each row execute function ojs_store.name_key_changed();

-- Whoever changes rows: a session with session_replication_role = replica, too. An update locks no table for a trigger
-- that fires always already.
do $$
declare
    of_rows record;
begin
    for of_rows in select t.tgrelid::regclass as rel, t.tgname as name
        from pg_catalog.pg_trigger t join pg_catalog.pg_proc p on p.oid = t.tgfoid
        where p.pronamespace = 'ojs_store'::regnamespace and t.tgenabled <> 'A'
    loop
        execute format('alter table %s enable always trigger %I', of_rows.rel, of_rows.name);
    end loop;
end $$;

-- Open jobs that are in none of ready, lease and delayed, by one snapshot, and where the newest event puts each: a kind
-- of `delayed`, null for one that can be claimed, or begun for one that may be delivered only once and was, held for
-- one under a durable lease. The order of events is that of read_history() in src/state/status.cpp, and the times of
-- expiry are those of src/job/deadlines.cpp; test/pgtap/upkeep.sql compares them.
create view ojs_store.lost_jobs as
with newest as materialized (
    select distinct on (job_history.job_id, job_history.kind = HistoryKind.moved)
        job_history.job_id, job_history.kind, job_history.at, job_history.due_at, job_history.attempt,
            job_history.deliveries, job_history.started_at,
        job_history.worker, job_history.data
    from ojs_store.job_history
    where not exists (select from ojs_store.finished where finished.job_id = job_history.job_id)
    order by job_history.job_id, job_history.kind = HistoryKind.moved, job_history.deliveries desc,
        job_history.kind in (HistoryKind.claimed, HistoryKind.leased),
        job_history.at desc, job_history.ctid desc
)
select
    job.id, job.ctid as tid, job.seq,
    coalesce((moved.data ->> 'queue')::bigint, job.queue) as queue,
    (-coalesce((moved.data ->> 'priority')::int, job.priority))::smallint as npriority,
    case when last.job_id is null and moved.job_id is null then job.flags else job.flags | job_flag.job_has_history end
        | case when job.id in (select job_id from ojs_store.checkpoint)
            or job.id in (select job_id from ojs_store.progress)
            then job_flag.job_reported else 0 end as flags,
    coalesce(last.attempt, 0) as attempt, coalesce(last.deliveries, 0) as deliveries, last.at, last.started_at,
    (case
        when last.kind is null and job.flags & job_flag.job_pending <> 0 then DelayedKind.pending
        when last.kind is null and job.scheduled_at > (select ojs_store.promoted_to()) then DelayedKind.scheduled
        when last.kind = HistoryKind.claimed then LostKind.begun
        when last.kind = HistoryKind.leased then LostKind.held
        when last.due_at > (select ojs_store.promoted_to()) and last.kind = HistoryKind.failed
            then DelayedKind.retryable
        when last.due_at > (select ojs_store.promoted_to())
            and last.kind in (HistoryKind.activated, HistoryKind.revived) then DelayedKind.scheduled
        when last.due_at > (select ojs_store.promoted_to()) then DelayedKind.released
    end)::smallint as kind,
    case
        when last.kind is not null then last.due_at
        when job.flags & job_flag.job_pending <> 0 then 'infinity'
        else job.scheduled_at
    end as due_at,
    case when job.flags & job_flag.job_expires <> 0 then least(
        job.expires_at,
        case when coalesce(last.deliveries, 0) = 0 and jsonb_typeof(job.options -> 'enqueue_ttl') = 'number'
            then job.created_at + (job.options ->> 'enqueue_ttl')::float8 * interval '1 second' end,
        case when jsonb_typeof(job.options -> 'total_timeout') = 'number'
            then job.created_at + (job.options ->> 'total_timeout')::float8 * interval '1 second' end
    ) end as expires_at,
    last.worker, last.data, job.created_at
from ojs_store.job
left join newest last on last.job_id = job.id and last.kind <> HistoryKind.moved
left join newest moved on moved.job_id = job.id and moved.kind = HistoryKind.moved
where not exists (select from ojs_store.finished where finished.job_id = job.id)
    and not exists (select from ojs_store.ready where ready.job_id = job.id)
    and not exists (select from ojs_store.lease where lease.job_id = job.id)
    and not exists (select from ojs_store.delayed where delayed.job_id = job.id and delayed.kind <> DelayedKind.expiry);

create function ojs_store.reconcile(older_than interval default '1 minute') returns bigint
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_reconcile';
comment on function ojs_store.reconcile(interval)
    is 'Puts back open jobs that are in no place of the hot set, and counts them; done by the tick now and then';
