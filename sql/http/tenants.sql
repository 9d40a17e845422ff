-- tenants.sql: tenants over HTTP.

create function ojs_http.tenant_json(t ojs.tenants) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('tenant_id', t.tenant, 'limits', jsonb_strip_nulls(jsonb_build_object(
            'max_concurrency', t.max_concurrency, 'max_queue_depth', t.max_queue_depth,
            'max_scheduled', t.max_scheduled, 'max_enqueue_rate', t.max_enqueue_rate)),
        'fairness_weight', t.fairness_weight)
        || jsonb_strip_nulls(jsonb_build_object('updated_at', ojs_http.rfc3339(t.changed_at)))
$$;

-- The tenant that the path names, or NOT_FOUND; a tenant that the caller may not know of is none.
create function ojs_http.tenant_named(name text) returns ojs.tenants
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    found_tenant ojs.tenants;
begin
    select * into found_tenant from ojs.tenants t where t.tenant = name;
    if found_tenant.tenant is null then
        perform ojs_http.raise('NOT_FOUND', format('tenant %s does not exist', left(name, 64)),
            jsonb_build_object('resource_type', 'tenant', 'resource_id', left(name, 64)),
            'GET /ojs/v1/admin/tenants lists them.');
    end if;
    return found_tenant;
end $$;

-- What a tenant does, beside what it may do.
create function ojs_http.tenant_stats_json(tenant text) returns setof jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('tenant_id', s.tenant_id,
        'total_jobs', s.available + s.active + s.scheduled + s.retryable + s.pending,
        'jobs', jsonb_build_object('available', s.available, 'active', s.active, 'scheduled', s.scheduled,
            'retryable', s.retryable, 'pending', s.pending, 'completed_24h', s.completed_24h,
            'failed_24h', s.failed_24h),
        'throughput', jsonb_build_object('processed_per_minute', round(s.processed_last_hour / 60.0, 2),
            'enqueued_per_minute', round(s.enqueued_last_hour / 60.0, 2)),
        'limits', jsonb_strip_nulls(jsonb_build_object(
            'max_concurrency', case when t.max_concurrency is not null then jsonb_build_object(
                'limit', t.max_concurrency, 'current', s.active) end,
            'max_queue_depth', case when t.max_queue_depth is not null then jsonb_build_object(
                'limit', t.max_queue_depth, 'current', s.waiting) end,
            'max_scheduled', case when t.max_scheduled is not null then jsonb_build_object(
                'limit', t.max_scheduled, 'current', s.scheduled) end,
            'max_enqueue_rate', t.max_enqueue_rate)),
        'fairness', jsonb_strip_nulls(jsonb_build_object('weight', s.fairness_weight,
            'effective_share', s.effective_share, 'actual_share', s.actual_share)))
    from ojs.tenant_stats(tenant_stats_json.tenant) s join ojs.tenants t on t.tenant = s.tenant_id
    order by s.tenant_id
$$;

create function ojs_http.tenants(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    entries jsonb[] := array(select s from ojs_http.tenant_stats_json(null) s);
    page int := ojs_http.page_start(request);
begin
    return ojs_http.numbered_page(request, entries[page + 1 : page + ojs_http.query_number(request, 'per_page', 20, 1,
        100)], cardinality(entries));
end $$;

create function ojs_http.tenant(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, jsonb_build_object('tenant', ojs_http.tenant_json(
        ojs_http.tenant_named(request.names[1]))))
$$;

create function ojs_http.tenant_stats(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.tenant_named(request.names[1]);
    return ojs_http.reply(200, (select s from ojs_http.tenant_stats_json(request.names[1]) s));
end $$;

-- For the time of this request the caller acts for the tenant; so it sees what this one may see.
create function ojs_http.tenant_jobs(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    before text := current_setting('ojs.tenant');
    response ojs_http.response;
begin
    perform ojs_http.tenant_named(request.names[1]);
    perform set_config('ojs.tenant', request.names[1], true);
    response := ojs_http.admin_jobs(request);
    perform set_config('ojs.tenant', before, true);
    return response;
end $$;

create function ojs_http.set_tenant(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    known boolean := exists (select from ojs.tenants t where t.tenant = request.names[1] and t.changed_at is not null);
begin
    perform ojs.set_tenant(request.names[1], body - 'reason', ojs_http.text_field(body, 'reason'));
    return ojs_http.reply(case when known then 200 else 201 end, jsonb_build_object('tenant',
        ojs_http.tenant_json(ojs_http.tenant_named(request.names[1]))));
end $$;

create function ojs_http.set_tenant_limits(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
begin
    if body ? 'limits' or body ? 'fairness_weight' then
        perform ojs_http.raise('INVALID_PAYLOAD', 'only limits are set here',
            jsonb_build_object('field', case when body ? 'limits' then 'limits' else 'fairness_weight' end),
            'Name the limits at the top: {"max_concurrency": 5}.');
    end if;
    perform ojs.set_tenant(request.names[1], body - 'reason', ojs_http.text_field(body, 'reason'));
    return ojs_http.reply(200, jsonb_build_object('tenant',
        ojs_http.tenant_json(ojs_http.tenant_named(request.names[1]))));
end $$;

create function ojs_http.drop_tenant(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.tenant_named(request.names[1]);
    perform ojs.drop_tenant(request.names[1]);
    return ojs_http.reply(204, null);
end $$;
