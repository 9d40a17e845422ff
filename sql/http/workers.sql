-- workers.sql: workers over HTTP: heartbeats, and what there is to see and say of them.

-- Conformance cases tell a worker to stop by the meta of a job it holds. Only on a server of tests (R-66).
create function ojs_http.obey_test_directive(worker text, ids uuid[]) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    directive text;
begin
    perform ojs_http.now(); -- loads the library, and with it its settings
    if current_setting('ojs.conformance_mode', true)::boolean then
        for directive in
            select ojs.info(id) -> 'meta' ->> 'test_directive' from unnest(ids) id
            where ojs.info(id) -> 'meta' ->> 'test_directive' in ('quiet', 'terminate')
        loop
            perform ojs.set_worker_state(worker, directive);
        end loop;
    end if;
end $$;

create function ojs_http.heartbeat(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    body jsonb := ojs_http.object(request);
    worker text := ojs_http.text_field(body, 'worker_id', true);
    -- active_jobs may be a mere number (R-34).
    named text[] := coalesce(
        case when jsonb_typeof(body -> 'active_jobs') = 'number'
            then null else ojs_http.texts_field(body, 'active_jobs') end,
        ojs_http.texts_field(body, 'active_job_ids'), '{}');
    ids uuid[] := array(select id::uuid from unnest(named) id
        where id collate "C" ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$');
    no_ids text[] := array(select left(id, 64) from unnest(named) id
        where id collate "C" !~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' limit 1000);
    state text := coalesce(ojs_http.text_field(body, 'state'), 'running');
    beat record;
begin
    perform ojs_http.obey_test_directive(worker, ids);
    select * into beat from ojs.beat(worker, ids, state,
        nullif(body - '{worker_id,active_jobs,active_job_ids,state,visibility_timeout_ms}'::text[], '{}'),
        ojs_http.number_field(body, 'visibility_timeout_ms', 0, 86400000) * interval '1 millisecond');
    return ojs_http.reply(200, jsonb_build_object(
        'state', beat.directive,
        'acknowledged', true,
        'jobs_extended', to_jsonb(beat.extended),
        'cancelled_jobs', to_jsonb(beat.cancelled),
        'lost_jobs', to_jsonb(beat.lost::text[] || no_ids),
        'server_time', ojs_http.rfc3339(ojs_http.now())));
end $$;

create function ojs_http.no_such_worker(worker text) returns void
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.raise('NOT_FOUND', format('worker %s does not exist', left(worker, 64)),
        jsonb_build_object('resource_type', 'worker', 'resource_id', left(worker, 64)),
            'GET /ojs/v1/admin/workers lists them.')
$$;

create function ojs_http.deregister_worker(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    worker text := ojs_http.text_field(body, 'worker_id', true);
begin
    if not ojs.deregister_worker(worker, coalesce(ojs_http.field(body, 'release', 'boolean')::boolean, false)) then
        perform ojs_http.no_such_worker(worker);
    end if;
    return ojs_http.reply(200, jsonb_build_object('deregistered', true, 'worker_id', worker));
end $$;

create function ojs_http.worker_json(w ojs.workers) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_strip_nulls(jsonb_build_object('id', w.worker, 'state',
        case w.status when 'dead' then 'stale' else w.status end, 'status', w.status, 'reported_state', w.state,
        'directive', w.directive,
        'hostname', w.hostname, 'pid', w.pid, 'version', w.info -> 'version', 'queues', coalesce(w.queues, '{}'),
            'concurrency', w.concurrency, 'active_jobs', w.active_jobs,
        'started_at', coalesce(w.info -> 'started_at', to_jsonb(ojs_http.rfc3339(w.registered_at))),
        'registered_at', ojs_http.rfc3339(w.registered_at), 'last_heartbeat_at', ojs_http.rfc3339(w.last_seen_at),
            'metadata', w.info))
$$;

create function ojs_http.worker_named(request ojs_http.request) returns ojs.workers
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    found_worker ojs.workers;
begin
    select * into found_worker from ojs.workers w where w.worker = request.names[1];
    if not found then
        perform ojs_http.no_such_worker(request.names[1]);
    end if;
    return found_worker;
end $$;

-- How a worker is by what it last said and was told: 503 once it takes no more jobs.
create function ojs_http.worker_health(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    worker ojs.workers := ojs_http.worker_named(request);
begin
    return ojs_http.reply(case when worker.status in ('dead', 'stale') then 503 else 200 end,
        ojs_http.worker_json(worker)
        || jsonb_build_object('worker_id', worker.worker, 'state',
            case worker.status when 'quiet' then 'draining' when 'terminate' then 'shutting_down'
            else worker.status end));
end $$;

create function ojs_http.worker(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    worker ojs.workers := ojs_http.worker_named(request);
begin
    return ojs_http.reply(200, ojs_http.worker_json(worker) || jsonb_build_object('active_job_ids',
        coalesce(to_jsonb(worker.active_job_ids), '[]')));
end $$;

-- What its next heartbeat will tell a worker.
create function ojs_http.direct_worker(request ojs_http.request, directive text) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.worker_named(request);
    perform ojs.set_worker_state(request.names[1], directive);
    return ojs_http.worker(request);
end $$;

create function ojs_http.quiet_worker(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog,
    pg_temp as $$ select ojs_http.direct_worker(request, 'quiet') $$;

create function ojs_http.resume_worker(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog,
    pg_temp as $$ select ojs_http.direct_worker(request, 'running') $$;

create function ojs_http.terminate_worker(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog,
    pg_temp as $$ select ojs_http.direct_worker(request, 'terminate') $$;

-- Only what no longer works may be forgotten from outside (ADM-03). Its jobs are given back as those of a dead worker:
-- with its row goes what its death would be noticed by.
create function ojs_http.forget_worker(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    worker ojs.workers := ojs_http.worker_named(request);
begin
    if worker.status not in ('dead', 'stale') then
        perform ojs_http.raise('INVALID_STATE_TRANSITION',
            format('worker %s is %s', left(worker.worker, 64), worker.status),
            jsonb_build_object('current_state', worker.status, 'attempted', 'deregister'),
                'Only a stale or dead worker can be removed.');
    end if;
    perform ojs_http.take_back_jobs(worker.worker);
    perform ojs.deregister_worker(worker.worker);
    return ojs_http.reply(204, null);
end $$;
