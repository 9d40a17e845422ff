-- workers.sql: the processes that work: what they are told, and which there are. C++: src/state/client_workers.cpp
-- (beats, and who claims nothing), src/state/dead_workers.cpp (whose heartbeats stopped).

-- Refuses what a worker says of the versions that it takes, if that cannot be read.
create function ojs_store.check_handlers(info jsonb) returns void
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_check_handlers';

-- Whether a version is in a range; null for what is no range.
create function ojs_store.in_range(versions text, version text) returns boolean
language c strict immutable parallel safe as 'MODULE_PATHNAME', 'ojs_in_range';

-- What a worker of the caller's is called in ojs_store.worker: NAME@TENANT for one who acts for a tenant.
create function ojs_store.stored_worker(name text) returns text
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_stored_worker';

create function ojs_store.check_worker(worker text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if coalesce(worker, '') = '' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'worker must not be empty', '{"field": "worker"}',
            'Name the worker, such as ''mailer-1''.');
    elsif octet_length(worker) > 255 then
        perform ojs_store.raise('INVALID_PAYLOAD', 'worker must not be longer than 255 bytes', '{"field": "worker"}',
            'Name the worker, such as ''mailer-1''.');
    end if;
end $$;

-- Whether a role may speak for a worker: its name belongs to the role that registered it, or sent its first beat,
-- until it dies.
create function ojs_store.owns_worker(w ojs_store.worker, role text) returns boolean
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select case
        when w.registered_by is null or w.registered_by = role or w.died_at is not null then true
        when pg_has_role(role, 'ojs_admin', 'usage') then true
        else not exists (select from pg_roles r where r.rolname = w.registered_by
        and not pg_has_role(role, r.oid, 'usage')) end
$$;

-- Whether one more worker of this role is listed: no role takes the place of another's.
create function ojs_store.has_room_for_worker(role text) returns boolean
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select (select count(*) from (select from ojs_store.worker limit 50000) w) < 50000
        or (select count(*) from (select from ojs_store.worker w where w.registered_by = $1 limit 50000) w) < 50000
$$;

-- PERMISSION_DENIED for a worker of another role; null if nobody knows the worker.
create function ojs_store.check_owner(worker text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform from ojs_store.worker w where w.name = check_owner.worker
        and not ojs_store.owns_worker(w, ojs_store.calling_role());
    if found then
        perform ojs_store.raise('PERMISSION_DENIED', format('worker "%s" belongs to another role', left(worker, 64)),
            jsonb_build_object('worker', left(worker, 128), 'reason', 'worker_of_another_role'),
            'Choose another name, or have the role that registered it deregister it.');
    end if;
end $$;

-- Events of workers. A heartbeat is none: there would be more of them than of all others.
create function ojs_store.record_started(worker text) returns void
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_store.record_event('worker.started', w.name, jsonb_strip_nulls(jsonb_build_object('worker_id', w.name,
        'queues', w.info -> 'queues', 'concurrency', w.info -> 'concurrency')))
    from ojs_store.worker w where w.name = worker
$$;

-- The catalog of events knows shutdown, signal and error; `cause` says what it was here.
create function ojs_store.record_stopped(worker text, cause text, since timestamptz) returns void
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_store.record_event('worker.stopped', worker, jsonb_build_object('worker_id', worker,
        'reason', case cause when 'deregistered' then 'shutdown' else 'error' end, 'cause', cause,
        'uptime_ms', greatest(0, floor(extract(epoch from ojs_store.now() - since) * 1000))))
$$;

create function ojs.set_worker_state(worker text, state text) returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    wanted text := case state when 'drain' then 'quiet' else state end;
    at timestamptz := ojs_store.now();
begin
    if wanted is null or wanted not in ('running', 'quiet', 'terminate') then
        perform ojs_store.raise('INVALID_PAYLOAD', format('state must be running, quiet or terminate, not %s',
            coalesce(quote_ident(left(wanted, 64)), 'null')),
            '{"field": "state"}', 'Use quiet (or drain) to stop claims, terminate to end the worker, running to end a '
                'quiet time.');
    end if;
    if set_worker_state.worker is not null then
        perform ojs_store.check_worker(set_worker_state.worker);
    end if;
    lock table ojs_store.worker in row exclusive mode; -- not first to be read, as in bulk.sql
    perform ojs_store.record_audit('worker_directed', coalesce(set_worker_state.worker, '*'), null, null,
        jsonb_build_object('state', wanted));
    -- In the order of their names: two calls for all workers do not wait for each other crosswise.
    perform from ojs_store.worker w where set_worker_state.worker is null or w.name = set_worker_state.worker
        order by w.name for update;
    if wanted <> 'terminate' and exists (select from ojs_store.worker w where w.name = set_worker_state.worker
            and w.died_at is null and 'terminate' in (w.directive, w.state)) then
        perform ojs_store.raise('INVALID_STATE_TRANSITION',
            'the worker was told to terminate, and there is no way back from that',
            jsonb_build_object('current_state', 'terminate', 'attempted', wanted),
                'Start a new process; it registers, or takes a new name.');
    end if;
    -- Workers that were never told anything and send no heartbeats have no row yet; a running one needs none.
    insert into ojs_store.worker as w (name, directive, registered_at, seen_at)
        select known.name, wanted, at, at
        from (select set_worker_state.worker where set_worker_state.worker is not null
            union select l.worker from ojs_store.holders() l where set_worker_state.worker is null
            union select e.name from ojs_store.worker e where set_worker_state.worker is null) known (name)
        where wanted <> 'running' or exists (select from ojs_store.worker e where e.name = known.name)
        order by known.name collate "C"
    on conflict (name) do update set directive = excluded.directive
        where excluded.directive = 'terminate' or w.died_at is not null or 'terminate'
            not in (coalesce(w.directive, ''), w.state);
    perform ojs_store.changed('ojs_store.worker');
end $$;
comment on function ojs.set_worker_state(text, text)
    is 'Tells a worker (null: all of them) with its next beat to be running, quiet or terminate; one that is not '
       'running claims nothing';

create function ojs.register_worker(worker text, info jsonb default '{}') returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    at timestamptz := ojs_store.now();
    stopped boolean;
begin
    lock table ojs_store.worker in row exclusive mode; -- not first to be read, as in bulk.sql
    perform ojs_store.check_worker(register_worker.worker);
    register_worker.worker := ojs_store.stored_worker(register_worker.worker);
    perform ojs_store.check_owner(register_worker.worker);
    if jsonb_typeof(register_worker.info) is distinct from 'object' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'info must be an object', '{"field": "info"}',
            'Give an object such as {"hostname": "h1", "pid": 77}.');
    elsif octet_length(register_worker.info::text) > 16384 then
        perform ojs_store.raise('PAYLOAD_TOO_LARGE', 'info must not be longer than 16384 bytes',
            '{"field": "info", "maximum": 16384}',
            'Keep what is large elsewhere, and name the place.');
    end if;
    perform ojs_store.check_handlers(register_worker.info);
    select w.directive is not null or w.state <> 'running' or w.info ? 'handlers' into stopped from ojs_store.worker w
        where w.name = register_worker.worker for update;
    if not found and not ojs_store.has_room_for_worker(ojs_store.calling_role()) then
        perform ojs_store.raise('UNAVAILABLE', format('the role "%s" has 50000 workers already',
            ojs_store.calling_role()), '{"field": "worker"}',
            'Deregister workers that have ended, and give each process one name.');
    end if;
    -- This is a new process: what one of that name was told before is over.
    insert into ojs_store.worker as w (name, info, registered_at, seen_at, registered_by)
    values (register_worker.worker, register_worker.info, at, at, ojs_store.calling_role())
    on conflict (name) do update set directive = null, registered_by = excluded.registered_by, state = 'running',
        info = excluded.info, registered_at = at,
        seen_at = at, died_at = null, beats_for_jobs = false
        where ojs_store.owns_worker(w, ojs_store.calling_role());
    perform ojs_store.check_owner(register_worker.worker) where not found; -- another role was first
    if stopped or register_worker.info ? 'handlers' then
        perform ojs_store.changed('ojs_store.worker');
    end if;
    perform ojs_store.record_started(register_worker.worker);
    return jsonb_build_object('ok', true, 'server_time',
        to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
        'heartbeat_interval', 5, 'heartbeat_timeout', constant.heartbeat_timeout_us / 1000000,
        'visibility_timeout_default',
            trim_scale(extract(epoch from current_setting('ojs.default_lease')::interval)::numeric));
end $$;
comment on function ojs.register_worker(text, jsonb)
    is 'Optional: says that a worker process begins, and tells it how often to send heartbeats (seconds)';

create function ojs.deregister_worker(worker text, release boolean default false) returns boolean
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    stopped boolean;
    since timestamptz;
    known boolean;
    held uuid[];
    stored text := ojs_store.stored_worker(deregister_worker.worker);
begin
    lock table ojs_store.worker, ojs_store.lease in row exclusive mode; -- not first to be read, as in bulk.sql
    perform ojs_store.check_worker(deregister_worker.worker);
    perform ojs_store.check_owner(stored);
    delete from ojs_store.worker w where w.name = stored
        returning w.directive is not null or w.state <> 'running' or w.info ? 'handlers', w.registered_at
            into stopped, since;
    known := found;
    if known then
        perform ojs_store.record_stopped(stored, 'deregistered', since);
    end if;
    if stopped then
        perform ojs_store.changed('ojs_store.worker');
    end if;
    if release then
        held := array(select l.job_id from ojs_store.lease l where l.worker = deregister_worker.worker
            and ojs_store.may_use_queue(l.queue, 'work'));
        for i in 0 .. (cardinality(held) - 1) / 1000 loop
            perform from ojs.nack_many(deregister_worker.worker, held[i * 1000 + 1 : i * 1000 + 1000]);
        end loop;
    end if;
    return known or coalesce(cardinality(held) > 0, false);
end $$;
comment on function ojs.deregister_worker(text, boolean)
    is 'A worker process ends: forgets it, and with release gives back the jobs it still holds; false if there was '
       'none';

-- What a worker does, if the newest lease that it holds is of this time.
create function ojs_store.worker_status(w ojs_store.worker, claimed_at timestamptz) returns text
language sql volatile parallel unsafe
begin atomic
    select case
        when w.died_at >= coalesce(claimed_at, '-infinity') then 'dead'
        when w.beats and w.died_at is null and greatest(w.seen_at, claimed_at) < ojs_store.now() - interval '15 s'
            then 'stale'
        when 'terminate' in (w.directive, w.state) then 'terminate'
        when 'quiet' in (w.directive, w.state) then 'quiet'
        else 'running'
    end;
end;

create view ojs.workers with (security_barrier) as
select
    coalesce(w.name, held.worker) collate "C" as worker,
    ojs_store.worker_status(w.whole, held.claimed_at) as status,
    w.state, w.directive, w.registered_at, greatest(w.seen_at, held.claimed_at) as last_seen_at, w.died_at,
    w.info ->> 'hostname' as hostname,
    case when w.info ->> 'pid' ~ '^[0-9]{1,9}$' then (w.info ->> 'pid')::int end as pid,
    case when jsonb_typeof(w.info -> 'queues') = 'array'
        then array(select jsonb_array_elements_text(w.info -> 'queues')) end as queues,
    case when w.info ->> 'concurrency' ~ '^[0-9]{1,9}$' then (w.info ->> 'concurrency')::int end as concurrency,
    case when jsonb_typeof(w.info -> 'labels') = 'array'
        then array(select jsonb_array_elements_text(w.info -> 'labels')) end as labels,
    coalesce(cardinality(held.ids), 0) as active_jobs, coalesce(held.ids, '{}') as active_job_ids, w.info
from (
    select case when t.tenant is null then k.name else left(k.name, -1 - length(t.tenant)) end collate "C" as name,
        k.info, k.registered_at, k.seen_at, k.beats, k.directive, k.state, k.died_at, k as whole
    from ojs_store.worker k, ojs_store.caller_tenant() t (tenant)
    where t.tenant is null or right(k.name, length(t.tenant) + 1) = '@' || t.tenant
) w full join ojs_store.holders() held on held.worker = w.name;
comment on view ojs.workers
    is 'Workers that have registered, sent a heartbeat or been told something, and those that hold jobs';
