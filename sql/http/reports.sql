-- reports.sql: what workers report of their jobs, over HTTP: progress, checkpoints and the result.

-- As ojs.progress, for whoever holds the job by lease_id and worker, where these are given; whether it does.
create function ojs_http.report_progress(
    job_id uuid, progress numeric, message text, data jsonb, lease_id text, worker text
) returns boolean
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_progress';

-- Returns null if there is no such job. For workers: they may read checkpoints, and report on any job they know the id
-- of.
create function ojs_http.progress_and_checkpoint(id uuid) returns jsonb
language sql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('job_id', job.id, 'state', job.state, 'progress', job.extra -> 'progress',
        'message', job.extra -> 'progress_message', 'data', job.extra -> 'progress_data',
        'checkpoint', (select c.state from ojs_store.checkpoint c where c.job_id = job.id), 'updated_at',
            job.extra -> 'progress_updated_at')
    from ojs_store.look(ojs_store.use_job(id, 'work')) job
    where job.id is not null
$$;

-- Others do not see the checkpoint.
create function ojs_http.progress_json(id uuid) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    job jsonb;
begin
    if has_function_privilege('ojs_http.progress_and_checkpoint(uuid)', 'execute') then
        return ojs_http.progress_and_checkpoint(id);
    end if;
    job := ojs.info(id);
    return jsonb_build_object('job_id', id, 'state', job -> 'state', 'progress', job -> 'progress', 'message',
        job -> 'progress_message',
        'data', job -> 'progress_data', 'checkpoint', null, 'updated_at', job -> 'progress_updated_at');
end $$;

create function ojs_http.progress_reply(id uuid) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    progress jsonb := ojs_http.progress_json(id);
begin
    if progress is null then
        perform ojs_http.no_such_job(id);
    end if;
    return ojs_http.reply(200, progress,
        jsonb_strip_nulls(jsonb_build_object('Cache-Control', 'no-cache', 'X-OJS-Progress', progress ->> 'progress',
        'Last-Modified', to_char((progress ->> 'updated_at')::timestamptz at time zone 'UTC',
            'Dy, DD Mon YYYY HH24:MI:SS "GMT"'))));
end $$;

create function ojs_http.progress(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    id uuid := ojs_http.job_named(request, null);
begin
    perform ojs_http.upkeep();
    return ojs_http.progress_reply(id);
end $$;

create function ojs_http.set_progress(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    id uuid := ojs_http.job_named(request, null);
    body jsonb := ojs_http.object(request);
begin
    if ojs_http.report_progress(id, ojs_http.field(body, 'progress', 'number')::numeric,
        ojs_http.text_field(body, 'message'),
            ojs_http.field(body, 'data', 'object'), ojs_http.text_field(body, 'lease_id'),
                ojs_http.text_field(body, 'worker_id')) then
        perform ojs.checkpoint(id, body -> 'checkpoint') where coalesce(body -> 'checkpoint', 'null') <> 'null';
    end if;
    return ojs_http.progress_reply(id);
end $$;

create function ojs_http.checkpoint(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, ojs.get_checkpoint(ojs_http.job_named(request, null)))
$$;

create function ojs_http.save_checkpoint(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
begin
    if not body ? 'state' then
        perform ojs_http.raise('INVALID_PAYLOAD', 'state is missing', '{"field": "state"}',
            'Give any JSON value as state.');
    end if;
    return ojs_http.reply(200, ojs.checkpoint(ojs_http.job_named(request, null), body -> 'state'));
end $$;

-- As durable handlers of the SDKs save: a step with what it replays. All of it is the checkpoint.
create function ojs_http.save_step(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
begin
    perform ojs_http.only(body, 'state', 'step_index', 'metadata');
    return ojs_http.reply(200, ojs.checkpoint(ojs_http.job_named(request, null), body));
end $$;

-- And as they ask for it when they begin again. A checkpoint that was saved in the other form is the state of a step.
create function ojs_http.resume(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    id uuid := ojs_http.job_named(request, null);
    saved jsonb := ojs_http.progress_and_checkpoint(id);
begin
    if saved is null then
        perform ojs_http.no_such_job(id);
    end if;
    saved := nullif(saved -> 'checkpoint', 'null');
    return ojs_http.reply(200, jsonb_build_object('job_id', id, 'has_checkpoint', saved is not null) ||
        case when saved is null then '{}'
        else jsonb_build_object('checkpoint', case when saved ? 'step_index' then saved
            else jsonb_build_object('state', saved) end) end);
end $$;

create function ojs_http.delete_checkpoint(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    id uuid := ojs_http.job_named(request, null);
begin
    perform ojs.delete_checkpoint(id);
    return ojs_http.reply(200, jsonb_build_object('deleted', true, 'job_id', id));
end $$;

-- With ?wait=true the answer comes when the job has ended, or says 408 after `timeout` seconds.
create function ojs_http.result(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    id uuid := ojs_http.job_named(request, null);
    waits boolean := coalesce(request.query ->> 'wait' = ''
        or ojs_http.query_word(request, 'wait', 'true', 'false', '1', '0') in ('true', '1'), false);
    longest int := ojs_http.query_number(request, 'timeout', 30, 0, 30);
    job jsonb;
begin
    perform ojs_http.upkeep();
    if waits and (case when ojs_http.may_wait(request)
        then (ojs.wait_result(id, make_interval(secs => longest))).id is null
            else ojs.info(id) ->> 'state' not in ('completed', 'cancelled', 'discarded') end) then
        return ojs_http.reply(408, ojs_http.error_body('x_wait_timeout', 'TIMEOUT',
            format('job %s has not ended yet', id), true,
            jsonb_build_object('job_id', id, 'state', ojs.info(id) -> 'state'), 'Ask again.',
                request.headers ->> 'x-request-id'),
            case when ojs_http.may_wait(request) or longest = 0 then '{}'
                else jsonb_build_object('OJS-Would-Wait', longest::text) end);
    end if;
    job := ojs.info(id);
    if not job ? 'result' and (job ->> 'result_expires_at')::timestamptz <= ojs_http.now() then
        return ojs_http.reply(410, ojs_http.error_body('x_result_pruned', 'RESULT_PRUNED',
            format('the result of job %s expired at %s', id, job ->> 'result_expires_at'), false,
            jsonb_build_object('job_id', id, 'result_expires_at', job -> 'result_expires_at'),
                'Push with a longer result_ttl.', request.headers ->> 'x-request-id'));
    end if;
    return ojs_http.reply(200, jsonb_build_object('job_id', id, 'state', job -> 'state', 'result', job -> 'result',
        'error', job -> 'error')
        || jsonb_strip_nulls(jsonb_build_object('result_stored_at', job -> 'result_stored_at', 'result_expires_at',
            job -> 'result_expires_at',
            'result_size_bytes', job -> 'result_size_bytes')));
end $$;
