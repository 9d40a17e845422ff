-- http_reports.sql: what workers report of their jobs, over HTTP: progress and checkpoints.

-- As ojs.progress, for whoever holds the job by lease_id and worker, where these are given; whether it does.
create function ojs_http.report_progress(
    job_id uuid, progress numeric, message text, data jsonb, lease_id text, worker text
) returns boolean
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_progress';

-- Null: there is no such job.
create function ojs_http.progress_json(id uuid) returns jsonb
language sql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('job_id', job.id, 'state', job.state, 'progress', job.extra -> 'progress',
        'message', job.extra -> 'progress_message', 'data', job.extra -> 'progress_data',
        'checkpoint', (select c.state from ojs_store.checkpoint c where c.job_id = job.id), 'updated_at', job.extra -> 'progress_updated_at')
    from ojs_store.look(id) job
    where job.id is not null
$$;

create function ojs_http.progress_reply(id uuid) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    progress jsonb := ojs_http.progress_json(id);
begin
    if progress is null then
        perform ojs_http.no_such_job(id);
    end if;
    return ojs_http.reply(200, progress, jsonb_strip_nulls(jsonb_build_object('Cache-Control', 'no-cache', 'X-OJS-Progress', progress ->> 'progress',
        'Last-Modified', to_char((progress ->> 'updated_at')::timestamptz at time zone 'UTC', 'Dy, DD Mon YYYY HH24:MI:SS "GMT"'))));
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
    if ojs_http.report_progress(id, ojs_http.field(body, 'progress', 'number')::numeric, ojs_http.text_field(body, 'message'),
            nullif(body -> 'data', 'null'), ojs_http.text_field(body, 'lease_id'), ojs_http.text_field(body, 'worker_id')) then
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
        perform ojs_http.raise('INVALID_PAYLOAD', 'state is missing', '{"field": "state"}', 'Give any JSON value as state.');
    end if;
    return ojs_http.reply(200, ojs.checkpoint(ojs_http.job_named(request, null), body -> 'state'));
end $$;

create function ojs_http.delete_checkpoint(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    id uuid := ojs_http.job_named(request, null);
begin
    perform ojs.delete_checkpoint(id);
    return ojs_http.reply(200, jsonb_build_object('deleted', true, 'job_id', id));
end $$;
