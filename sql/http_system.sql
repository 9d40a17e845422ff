-- http_system.sql: the server itself over HTTP: what it is, how it is, and what it has not.

create function ojs_http.manifest(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, ojs.manifest())
$$;

create function ojs_http.health(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    health jsonb := ojs.health();
begin
    return ojs_http.reply(case when health ->> 'status' = 'ok' then 200 else 503 end,
        health || jsonb_build_object('backend', health -> 'backend' || '{"type": "postgres"}', 'ojs_version', '1.0'),
        case when health ->> 'status' = 'ok' then '{}' else '{"Retry-After": "1"}' end::jsonb);
end $$;

create function ojs_http.ready(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select case when ojs.ready() then ojs_http.reply(200, '{"status": "ready"}')
        else ojs_http.reply(503, '{"status": "not_ready"}', '{"Retry-After": "1"}') end
$$;

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

-- ADMINISTRATION ---------------------------------------------------------------------------------------------------

-- A page by number, as administrators' lists have it: their entries, and how many there are of them in all.
create function ojs_http.numbered_page(request ojs_http.request, entries jsonb[], total bigint, more jsonb default '{}') returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, jsonb_build_object('items', coalesce(to_jsonb(entries), '[]'), 'pagination', jsonb_build_object('total', total,
        'page', ojs_http.query_number(request, 'page', 1, 1, 1000000), 'per_page', ojs_http.query_number(request, 'per_page', 20, 1, 100))) || more)
$$;

create function ojs_http.page_start(request ojs_http.request) returns int
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select (ojs_http.query_number(request, 'page', 1, 1, 1000000) - 1) * ojs_http.query_number(request, 'per_page', 20, 1, 100)
$$;

create function ojs_http.admin_queues(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    entries jsonb[];
begin
    perform ojs_http.upkeep();
    select array_agg(jsonb_build_object('name', p.name, 'state', p.state, 'paused', p.state = 'paused', 'created_at', ojs_http.rfc3339(p.created_at),
        'counts', (select to_jsonb(s) - '{queue,paused}'::text[] from ojs.queue_stats(p.name) s)) order by p.name)
    into entries
    from (
        select * from ojs.queues order by name
        limit ojs_http.query_number(request, 'per_page', 20, 1, 100) offset ojs_http.page_start(request)
    ) p;
    return ojs_http.numbered_page(request, entries, (select count(*) from ojs.queues));
end $$;

create function ojs_http.admin_workers(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    entries jsonb[];
    summary jsonb;
begin
    select array_agg(ojs_http.worker_json(p.entry) order by p.worker) into entries
    from (
        select w as entry, w.worker from ojs.workers w order by w.worker
        limit ojs_http.query_number(request, 'per_page', 20, 1, 100) offset ojs_http.page_start(request)
    ) p;
    select jsonb_build_object('total', count(*), 'running', count(*) filter (where status = 'running'),
        'quiet', count(*) filter (where status in ('quiet', 'terminate')), 'stale', count(*) filter (where status in ('stale', 'dead')))
    into summary from ojs.workers;
    return ojs_http.numbered_page(request, entries, (summary ->> 'total')::bigint, jsonb_build_object('summary', summary));
end $$;

create function ojs_http.admin_dead_letters(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    of_queue text := request.query ->> 'queue';
    entries jsonb[];
begin
    select array_agg(ojs.envelope(p.job) order by p.id desc) into entries
    from (
        select l.id, row(l.*)::ojs.job as job from ojs.dead_letters l where of_queue is null or l.queue = of_queue order by l.id desc
        limit ojs_http.query_number(request, 'per_page', 20, 1, 100) offset ojs_http.page_start(request)
    ) p;
    return ojs_http.numbered_page(request, entries, (select count(*) from ojs.dead_letters l where of_queue is null or l.queue = of_queue));
end $$;

-- RATE LIMITS ------------------------------------------------------------------------------------------------------

create function ojs_http.rate_limit_json(r ojs.rate_limits) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_strip_nulls(to_jsonb(r))
$$;

create function ojs_http.rate_limits(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, jsonb_build_object('rate_limits', coalesce(jsonb_agg(ojs_http.rate_limit_json(r) order by r.key), '[]')))
    from ojs.rate_limits r
$$;

create function ojs_http.rate_limit(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    found_limit ojs.rate_limits;
begin
    select * into found_limit from ojs.rate_limits r where r.key = request.names[1];
    if not found then
        perform ojs_http.raise('NOT_FOUND', format('rate limit %s does not exist', left(request.names[1], 64)),
            jsonb_build_object('resource_type', 'rate_limit', 'resource_id', left(request.names[1], 64)), 'GET /ojs/v1/rate-limits lists them.');
    end if;
    return ojs_http.reply(200, ojs_http.rate_limit_json(found_limit));
end $$;

create function ojs_http.set_rate_limit(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, ojs.set_rate_limit(request.names[1], ojs_http.object(request)))
$$;
