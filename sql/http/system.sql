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
    health := jsonb_set(health, '{workers}', health -> 'workers' || jsonb_build_object('active',
        health #> '{workers,connected}',
        'total', (health #> '{workers,connected}')::int + (health #> '{workers,stale}')::int));
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

-- Also in the words of the admin UI.
create function ojs_http.maintenance_json(answer jsonb) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select jsonb_strip_nulls(jsonb_build_object('enabled', answer -> 'maintenance', 'started_at',
        answer -> 'enabled_at', 'ends_at', answer -> 'estimated_end')) || answer
$$;

create function ojs_http.maintenance(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200,
        ojs_http.maintenance_json(case when answer = 'null' then '{"maintenance": false}'
        else answer || '{"maintenance": true}' end))
    from (select ojs.health() -> 'maintenance') as h (answer)
$$;

create function ojs_http.set_maintenance(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    length jsonb := coalesce(nullif(body -> 'estimated_duration', 'null'), nullif(body -> 'duration', 'null'));
begin
    perform ojs_http.only(body, 'enabled', 'reason', 'estimated_duration', 'duration');
    -- Dashboards write 30m and 2h.
    if length #>> '{}' ~ '^[0-9]{1,6}[mhd]$' then
        length := to_jsonb(case when right(length #>> '{}', 1) = 'd' then 'P' else 'PT' end
            || upper(length #>> '{}' collate "C"));
    end if;
    return ojs_http.reply(200,
        ojs_http.maintenance_json(ojs.set_maintenance(ojs_http.field(body, 'enabled', 'boolean', true)::boolean,
        ojs_http.text_field(body, 'reason'), ojs_http.duration_value(length, 'estimated_duration'))));
end $$;
