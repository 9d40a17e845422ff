-- pools.sql: pools of queues over HTTP, and how jobs were shared out among queues.

create function ojs_http.pool_json(p ojs.pools) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_strip_nulls(jsonb_build_object('name', p.name, 'queues', p.queues, 'strategy', p.strategy,
        'weights', p.weights, 'concurrency', p.concurrency, 'active_workers', p.active_workers,
        'active_jobs', p.active_jobs, 'updated_at', ojs_http.rfc3339(p.changed_at)))
$$;

-- Null if there is none.
create function ojs_http.pool_named(name text) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.pool_json(p) from ojs.pools p where p.name = pool_named.name
$$;

create function ojs_http.pools(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    entries jsonb[] := array(select ojs_http.pool_json(p) from ojs.pools p order by p.name);
    page int := ojs_http.page_start(request);
begin
    return ojs_http.numbered_page(request, entries[page + 1 : page + ojs_http.query_number(request, 'per_page', 20, 1,
        100)], cardinality(entries));
end $$;

create function ojs_http.pool(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    found_pool jsonb := ojs_http.pool_named(request.names[1]);
begin
    if found_pool is null then
        perform ojs_http.raise('NOT_FOUND', format('pool %s does not exist', left(request.names[1], 64)),
            jsonb_build_object('resource_type', 'pool', 'resource_id', left(request.names[1], 64)),
            'GET /ojs/v1/admin/pools lists them.');
    end if;
    return ojs_http.reply(200, jsonb_build_object('pool', found_pool));
end $$;

create function ojs_http.set_pool(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    known boolean := ojs_http.pool_named(request.names[1]) is not null;
begin
    if coalesce(ojs_http.text_field(body, 'name'), request.names[1]) <> request.names[1] then
        perform ojs_http.raise('INVALID_PAYLOAD', 'name is not that of the path', '{"field": "name"}',
            'Leave it out.');
    end if;
    perform ojs.set_pool(request.names[1], body);
    return ojs_http.reply(case when known then 200 else 201 end,
        jsonb_build_object('pool', ojs_http.pool_named(request.names[1])));
end $$;

create function ojs_http.drop_pool(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.pool(request);
    perform ojs.drop_pool(request.names[1]);
    return ojs_http.reply(204, null);
end $$;

create function ojs_http.scheduling_stats(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    stats jsonb := jsonb_build_object('window', 'PT1M', 'queues', (
        select coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object('name', s.queue,
            'dispatch_count_1m', s.dispatch_count_1m, 'dispatch_ratio_1m', s.dispatch_ratio_1m,
            'avg_wait_ms', s.avg_wait_ms, 'active_jobs', s.active_jobs)) order by s.queue), '[]')
        from ojs.scheduling_stats() s));
begin
    return ojs_http.reply(200, stats || jsonb_build_object('stats', stats));
end $$;
