-- cron.sql: cron entries and events over HTTP.

create function ojs_http.cron_json(c ojs.crons) returns jsonb
language sql stable parallel safe set search_path = pg_catalog, pg_temp as $$
    select to_jsonb(c) - 'job' || jsonb_build_object(
        'cron', c.expression, 'job_template', c.job, 'type', c.job -> 'type', 'args', c.job -> 'args',
        'status', case when c.enabled then 'active' else 'disabled' end,
        'next_run_at', ojs_http.rfc3339(c.next_run_at), 'last_run_at', ojs_http.rfc3339(c.last_run_at), 'created_at', ojs_http.rfc3339(c.created_at))
$$;

create function ojs_http.no_such_cron(name text) returns void
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.raise('NOT_FOUND', format('cron entry %s does not exist', left(name, 64)),
        jsonb_build_object('resource_type', 'cron', 'resource_id', left(name, 64)), 'GET /ojs/v1/cron lists them.')
$$;

create function ojs_http.crons(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    most int := ojs_http.query_number(request, 'limit', 50, 1, 200);
    skipped int := ojs_http.query_number(request, 'offset', 0, 0, 1000000000);
    after text := ojs_http.page_key(request);
    running boolean := case request.query ->> 'enabled' when 'true' then true when 'false' then false end;
    entries jsonb[];
    keys text[];
    total bigint;
    page ojs_http.response;
begin
    select array_agg(ojs_http.cron_json(c.entry) order by c.name), array_agg(c.name order by c.name) into entries, keys
    from (
        select l as entry, l.name from ojs.crons l where (running is null or l.enabled = running) and (after is null or l.name > after)
        order by l.name limit most + 1 offset skipped
    ) c;
    select count(*) into total from ojs.crons l where running is null or l.enabled = running;
    page := ojs_http.page('crons', entries, keys, total, most, skipped);
    return ojs_http.reply(page.status, page.body || jsonb_build_object('cron_jobs', page.body -> 'crons'));
end $$;

create function ojs_http.cron(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    entry jsonb;
begin
    select ojs_http.cron_json(c) into entry from ojs.crons c where c.name = request.names[1];
    if entry is null then
        perform ojs_http.no_such_cron(request.names[1]);
    end if;
    return ojs_http.reply(200, jsonb_build_object('cron', entry, 'cron_job', entry));
end $$;

-- The job is given as job_template, or by its attributes beside the entry's own.
create function ojs_http.schedule(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    name text := coalesce(request.names[1], ojs_http.text_field(body, 'name', true));
    expression text := coalesce(ojs_http.text_field(body, 'cron'), ojs_http.text_field(body, 'expression', cardinality(request.names) = 0));
    own text[] := '{timezone,enabled,overlap_policy,description}';
    job jsonb := coalesce(ojs_http.field(body, 'job_template', 'object'), nullif(body - own
        - '{name,cron,expression,job_template,status,next_run_at,last_run_at,run_count,created_at}'::text[], '{}'));
    entry jsonb := ojs.schedule(name, expression, job, (select coalesce(jsonb_object_agg(key, value), '{}') from jsonb_each(body) where key = any (own)));
begin
    entry := entry || jsonb_build_object('status', case when entry -> 'enabled' = 'true' then 'active' else 'disabled' end);
    return ojs_http.reply(case when entry -> 'created' = 'true' then 201 else 200 end, jsonb_build_object('cron', entry, 'cron_job', entry),
        case when entry -> 'created' = 'true' then jsonb_build_object('Location', '/ojs/v1/cron/' || name) else '{}' end);
end $$;

create function ojs_http.unschedule(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if not ojs.unschedule(request.names[1]) then
        perform ojs_http.no_such_cron(request.names[1]);
    end if;
    return ojs_http.reply(200, jsonb_build_object('deleted', true, 'name', request.names[1], 'cron', jsonb_build_object('name', request.names[1])));
end $$;

create function ojs_http.events(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.upkeep();
    return ojs_http.reply(200, ojs.events(coalesce(request.query ->> 'after', request.query ->> 'cursor'), ojs_http.query_list(request, 'types'),
        ojs_http.query_list(request, 'queues'), ojs_http.query_list(request, 'job_types'), ojs_http.query_number(request, 'limit', 100, 1, 1000)));
end $$;
