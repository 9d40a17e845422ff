-- system.sql: the server itself over HTTP: what it is, how it is, and what it has not.

create function ojs_http.manifest(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, ojs.manifest())
$$;

-- Producers and workers learn whether the server serves them, as a load balancer asks, and nothing else.
create function ojs_http.health(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    health jsonb;
begin
    if not has_function_privilege('ojs.health()', 'execute') then
        return case when ojs.ready() then ojs_http.reply(200, '{"status": "ok"}')
            else ojs_http.reply(503, '{"status": "unavailable"}', '{"Retry-After": "1"}') end;
    end if;
    health := ojs.health();
    return ojs_http.reply(case when health ->> 'status' = 'ok' then 200 else 503 end,
        health || jsonb_build_object('backend', health -> 'backend' || '{"type": "postgres"}', 'ojs_version', '1.0'),
        case when health ->> 'status' = 'ok' then '{}' else '{"Retry-After": "1"}' end::jsonb);
end $$;

create function ojs_http.ready(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select case when ojs.ready() then ojs_http.reply(200, '{"status": "ready"}')
        else ojs_http.reply(503, '{"status": "not_ready"}', '{"Retry-After": "1"}') end
$$;

create function ojs_http.metrics(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select row(200, '{"Content-Type": "text/plain"}', null, ojs.metrics())::ojs_http.response
$$;

create function ojs_http.maintenance(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, case when told = 'null' then '{"maintenance": false}' else told || '{"maintenance": true}' end)
    from (select ojs.health() -> 'maintenance') as h (told)
$$;

create function ojs_http.set_maintenance(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
begin
    return ojs_http.reply(200, ojs.set_maintenance(ojs_http.field(body, 'enabled', 'boolean', true)::boolean,
        ojs_http.text_field(body, 'reason'), ojs_http.duration_value(nullif(body -> 'estimated_duration', 'null'), 'estimated_duration')));
end $$;

create function ojs_http.reset(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs.reset();
    return ojs_http.reply(200, '{"reset": true}');
end $$;

create function ojs_http.unsupported(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.raise('UNSUPPORTED_FEATURE', 'this version of ojs does not have what this path is for',
        jsonb_build_object('path', left(request.path, 128)), 'GET /ojs/manifest says what it can do.');
end $$;
