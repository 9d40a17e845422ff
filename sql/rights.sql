-- rights.sql: what a queue's lists of roles (producers, workers, readers, cancellers, administrators) let a caller do.
-- All of it is decided in src/queue/access.cpp. Inside a SECURITY DEFINER function the caller is the role that the
-- session has taken on.

-- The name, if the caller may do so with the queue, or there never was such a queue; else PERMISSION_DENIED. Rights:
-- produce, work, read, cancel, administer.
create function ojs_store.use_queue(name text, right_name text) returns text
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_use_queue';

create function ojs_store.may_use_queue(id bigint, right_name text) returns boolean
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_may_use_queue';

create function ojs_store.may_use_queue(name text, right_name text) returns boolean
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_may_use_queue_named';

-- Whether a role may, whoever asks; by the queue's stored name.
create function ojs_store.role_may_use_queue(role oid, name text, right_name text) returns boolean
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_role_may_use_queue';

-- Whether the caller may do so with all of these.
create function ojs_store.may_use_queues(ids bigint[], right_name text) returns boolean
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_may_use_queues';

-- Like use_queue(), but for the queue of a job.
create function ojs_store.use_job(job_id uuid, right_name text) returns uuid
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_use_job';

create function ojs_store.may_use_job(job_id uuid, right_name text) returns boolean
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_may_use_job';

/*
 * A view whose rows are found by an index cannot be a security barrier, which hides the order of its rows. Instead each
 * column that it takes from a table goes through if_allowed(): so a condition of the caller meets nulls in place of
 * what the caller may not see, whenever it is evaluated. The view then asks if_allowed(id, ...) = id, which drops those
 * rows, and lets the planner use the index on ids. Where no queue has lists, if_allowed() is planned as its first
 * argument, and `allowed` is not evaluated.
 */
create function ojs_store.if_allowed_support(internal) returns internal
language c strict immutable parallel safe as 'MODULE_PATHNAME', 'ojs_if_allowed_support';

create function ojs_store.if_allowed(value anyelement, allowed boolean) returns anyelement
language c strict stable parallel unsafe support ojs_store.if_allowed_support as 'MODULE_PATHNAME', 'ojs_if_allowed';

-- As ojs_store.look, but null if the caller may not read the job.
create function ojs_store.visible(job_id uuid) returns ojs.job
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_visible';

create function ojs_store.calling_role() returns name
language c stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_calling_role';

-- The queue that a job, as ojs.push_job takes it, goes to.
create function ojs_store.queue_of(job jsonb) returns text
language sql immutable parallel safe
begin atomic
    select coalesce(job #>> '{options,queue}', job ->> 'queue', 'default');
end;

-- For what reads tables of the hot set, which a standby does not have, before it writes.
create function ojs_store.refuse_read_only(what text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if current_setting('transaction_read_only')::boolean then
        raise exception using errcode = 'read_only_sql_transaction',
            message = format('cannot execute %s in a read-only transaction', what);
    end if;
end $$;
