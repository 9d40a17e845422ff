-- serve.sql: the HTTP binding: the routes, and how ojs.http serves a request. Reading is in read.sql, errors are in
-- errors.sql; the handlers stand in the other files of sql/http/, one function each in schema ojs_http, and call the
-- public functions with the rights of the caller; what else they need of the server is in node.sql.

-- ROUTES -----------------------------------------------------------------------------------------------------------

-- Every path there is. A name with a colon stands for one part of the path; a path has one at most, or two that are its
-- end.
create function ojs_http.routes(out method text, out pattern text, out handler text) returns setof record
language sql immutable parallel safe
begin atomic
    values
        ('GET', '/ojs/manifest', 'manifest'),
        ('GET', '/health', 'health'),
        ('GET', '/ready', 'ready'),
        ('GET', '/metrics', 'metrics'),
        ('GET', '/ojs/v1/health', 'health'),
        ('GET', '/ojs/v1/ready', 'ready'),
        ('GET', '/ojs/v1/metrics', 'metrics'),
        ('POST', '/ojs/v1/jobs', 'push'),
        ('POST', '/ojs/v1/jobs/batch', 'push_batch'),
        ('POST', '/ojs/v1/jobs/results', 'results'),
        ('POST', '/ojs/v1/jobs/bulk', 'push_bulk'),
        ('POST', '/ojs/v1/jobs/bulk/cancel', 'cancel_bulk'),
        ('POST', '/ojs/v1/jobs/bulk/retry', 'retry_bulk'),
        ('POST', '/ojs/v1/jobs/bulk/delete', 'delete_bulk'),
        ('GET', '/ojs/v1/jobs/:id', 'info'),
        ('GET', '/ojs/v1/jobs/:id/lineage', 'lineage'),
        ('PATCH', '/ojs/v1/jobs/:id', 'change_job'),
        ('DELETE', '/ojs/v1/jobs/:id', 'cancel'),
        ('POST', '/ojs/v1/jobs/:id/cancel', 'cancel'),
        ('POST', '/ojs/v1/jobs/:id/activate', 'activate'),
        ('POST', '/ojs/v1/jobs/:id/ack', 'ack'),
        ('POST', '/ojs/v1/jobs/:id/nack', 'nack'),
        ('GET', '/ojs/v1/jobs/:id/progress', 'progress'),
        ('PUT', '/ojs/v1/jobs/:id/progress', 'set_progress'),
        ('POST', '/ojs/v1/jobs/:id/progress', 'set_progress'),
        ('GET', '/ojs/v1/jobs/:id/checkpoint', 'checkpoint'),
        ('PUT', '/ojs/v1/jobs/:id/checkpoint', 'save_checkpoint'),
        ('POST', '/ojs/v1/jobs/:id/checkpoint', 'save_checkpoint'),
        ('DELETE', '/ojs/v1/jobs/:id/checkpoint', 'delete_checkpoint'),
        ('GET', '/ojs/v1/jobs/:id/result', 'result'),
        ('POST', '/ojs/v1/workers/fetch', 'fetch'),
        ('POST', '/ojs/v1/workers/ack', 'ack'),
        ('POST', '/ojs/v1/workers/nack', 'nack'),
        ('POST', '/ojs/v1/workers/heartbeat', 'heartbeat'),
        ('POST', '/ojs/v1/workers/beat', 'heartbeat'),
        ('POST', '/ojs/v1/workers/register', 'register_worker'),
        ('POST', '/ojs/v1/workers/deregister', 'deregister_worker'),
        ('GET', '/ojs/v1/workers/:id/health', 'worker_health'),
        ('GET', '/ojs/v1/queues', 'queues'),
        ('POST', '/ojs/v1/queues', 'create_queue'),
        ('GET', '/ojs/v1/queues/:name', 'queue'),
        ('PUT', '/ojs/v1/queues/:name', 'configure_queue'),
        ('DELETE', '/ojs/v1/queues/:name', 'drop_queue'),
        ('GET', '/ojs/v1/queues/:name/stats', 'queue_stats'),
        ('GET', '/ojs/v1/queues/:name/config', 'queue_config'),
        ('PUT', '/ojs/v1/queues/:name/config', 'configure_queue'),
        ('POST', '/ojs/v1/queues/:name/pause', 'pause_queue'),
        ('POST', '/ojs/v1/queues/:name/resume', 'resume_queue'),
        ('POST', '/ojs/v1/queues/:name/drain', 'drain_queue'),
        ('POST', '/ojs/v1/queues/:name/purge', 'purge_queue'),
        ('GET', '/ojs/v1/dead-letter', 'dead_letters'),
        ('DELETE', '/ojs/v1/dead-letter', 'purge_dead_letters'),
        ('POST', '/ojs/v1/dead-letter/retry', 'retry_dead_letters'),
        ('GET', '/ojs/v1/dead-letter/stats', 'dead_letter_stats'),
        ('GET', '/ojs/v1/dead-letter/:id', 'dead_letter'),
        ('DELETE', '/ojs/v1/dead-letter/:id', 'delete_dead_letter'),
        ('POST', '/ojs/v1/dead-letter/:id/retry', 'retry_dead_letter'),
        ('GET', '/ojs/v1/cron', 'crons'),
        ('POST', '/ojs/v1/cron', 'schedule'),
        ('GET', '/ojs/v1/cron/:name', 'cron'),
        ('PUT', '/ojs/v1/cron/:name', 'schedule'),
        ('PATCH', '/ojs/v1/cron/:name', 'schedule'),
        ('DELETE', '/ojs/v1/cron/:name', 'unschedule'),
        ('POST', '/ojs/v1/cron/:name/trigger', 'trigger_cron'),
        ('GET', '/ojs/v1/workflows', 'workflows'),
        ('POST', '/ojs/v1/workflows', 'create_workflow'),
        ('GET', '/ojs/v1/workflows/:id', 'workflow'),
        ('DELETE', '/ojs/v1/workflows/:id', 'cancel_workflow'),
        ('POST', '/ojs/v1/workflows/:id/extend', 'extend_workflow'),
        ('GET', '/ojs/v1/events', 'events'),
        ('GET', '/ojs/v1/events/stream', 'event_stream'),
        ('GET', '/ojs/v1/jobs/:id/events', 'event_stream'),
        ('GET', '/ojs/v1/queues/:name/events', 'event_stream'),
        ('GET', '/ojs/v1/rate-limits', 'rate_limits'),
        ('GET', '/ojs/v1/rate-limits/:key', 'rate_limit'),
        ('PUT', '/ojs/v1/rate-limits/:key', 'set_rate_limit'),
        ('DELETE', '/ojs/v1/rate-limits/:key', 'unset_rate_limit'),
        ('DELETE', '/ojs/v1/rate-limits/:key/override', 'unset_rate_limit'),
        ('GET', '/ojs/v1/admin/stats', 'admin_stats'),
        ('GET', '/ojs/v1/admin/stats/history', 'stats_history'),
        ('GET', '/ojs/v1/admin/queues', 'admin_queues'),
        ('GET', '/ojs/v1/admin/queues/:name', 'admin_queue'),
        ('DELETE', '/ojs/v1/admin/queues/:name', 'drop_queue'),
        ('GET', '/ojs/v1/admin/queues/:name/config', 'queue_config'),
        ('PUT', '/ojs/v1/admin/queues/:name/config', 'configure_queue'),
        ('POST', '/ojs/v1/admin/queues/:name/pause', 'pause_queue_flat'),
        ('POST', '/ojs/v1/admin/queues/:name/resume', 'resume_queue_flat'),
        ('DELETE', '/ojs/v1/admin/queues/:name/jobs', 'purge_queue'),
        ('PUT', '/ojs/v1/admin/queues/:name/rate-limit', 'set_queue_rate_limit'),
        ('GET', '/ojs/v1/admin/jobs', 'admin_jobs'),
        ('POST', '/ojs/v1/admin/jobs/bulk/cancel', 'admin_cancel_bulk'),
        ('POST', '/ojs/v1/admin/jobs/bulk/retry', 'admin_retry_bulk'),
        ('POST', '/ojs/v1/admin/jobs/bulk/delete', 'admin_delete_bulk'),
        ('GET', '/ojs/v1/admin/jobs/:id', 'admin_job'),
        ('PATCH', '/ojs/v1/admin/jobs/:id', 'change_job'),
        ('GET', '/ojs/v1/admin/jobs/:id/explain', 'explain'),
        ('GET', '/ojs/v1/admin/jobs/:id/history', 'job_history'),
        ('POST', '/ojs/v1/admin/jobs/:id/cancel', 'cancel'),
        ('POST', '/ojs/v1/admin/jobs/:id/retry', 'retry'),
        ('POST', '/ojs/v1/admin/jobs/:id/discard', 'discard'),
        ('DELETE', '/ojs/v1/admin/jobs/:id', 'delete_job'),
        ('GET', '/ojs/v1/admin/workers', 'admin_workers'),
        ('GET', '/ojs/v1/admin/workers/:id', 'worker'),
        ('DELETE', '/ojs/v1/admin/workers/:id', 'forget_worker'),
        ('POST', '/ojs/v1/admin/workers/:id/quiet', 'quiet_worker'),
        ('POST', '/ojs/v1/admin/workers/:id/resume', 'resume_worker'),
        ('POST', '/ojs/v1/admin/workers/:id/terminate', 'terminate_worker'),
        ('GET', '/ojs/v1/admin/dead-letter', 'admin_dead_letters'),
        ('DELETE', '/ojs/v1/admin/dead-letter', 'purge_dead_letters'),
        ('POST', '/ojs/v1/admin/dead-letter/retry', 'retry_dead_letters'),
        ('GET', '/ojs/v1/admin/dead-letter/stats', 'dead_letter_stats'),
        ('POST', '/ojs/v1/admin/dead-letter/:id/retry', 'retry_dead_letter'),
        ('DELETE', '/ojs/v1/admin/dead-letter/:id', 'delete_dead_letter_flat'),
        ('GET', '/ojs/v1/schemas', 'schemas'),
        ('POST', '/ojs/v1/schemas', 'register_schema'),
        ('GET', '/ojs/v1/schemas/:type', 'schema'),
        ('DELETE', '/ojs/v1/schemas/:type', 'drop_schema'),
        ('GET', '/ojs/v1/schemas/:type/versions', 'schema_versions'),
        ('GET', '/ojs/v1/schemas/:type/:version', 'schema'),
        ('DELETE', '/ojs/v1/schemas/:type/:version', 'drop_schema'),
        ('GET', '/ojs/v1/admin/schemas', 'schemas'),
        ('POST', '/ojs/v1/admin/schemas', 'admin_register_schema'),
        ('GET', '/ojs/v1/admin/schemas/:type', 'admin_schema'),
        ('DELETE', '/ojs/v1/admin/schemas/:type', 'drop_schema'),
        ('GET', '/ojs/v1/admin/schemas/:type/versions', 'schema_versions'),
        ('PUT', '/ojs/v1/admin/schemas/:type', 'set_schema_validation'),
        ('GET', '/ojs/v1/admin/schemas/:type/:version', 'admin_schema'),
        ('PUT', '/ojs/v1/admin/schemas/:type/:version', 'put_schema'),
        ('DELETE', '/ojs/v1/admin/schemas/:type/:version', 'drop_schema'),
        ('GET', '/ojs/v1/admin/pools', 'pools'),
        ('GET', '/ojs/v1/admin/pools/:name', 'pool'),
        ('PUT', '/ojs/v1/admin/pools/:name', 'set_pool'),
        ('DELETE', '/ojs/v1/admin/pools/:name', 'drop_pool'),
        ('GET', '/ojs/v1/admin/tenants', 'tenants'),
        ('GET', '/ojs/v1/admin/tenants/:name', 'tenant'),
        ('PUT', '/ojs/v1/admin/tenants/:name', 'set_tenant'),
        ('DELETE', '/ojs/v1/admin/tenants/:name', 'drop_tenant'),
        ('PUT', '/ojs/v1/admin/tenants/:name/limits', 'set_tenant_limits'),
        ('GET', '/ojs/v1/admin/tenants/:name/stats', 'tenant_stats'),
        ('GET', '/ojs/v1/admin/tenants/:name/jobs', 'tenant_jobs'),
        ('GET', '/ojs/v1/webhooks/subscriptions', 'webhooks'),
        ('POST', '/ojs/v1/webhooks/subscriptions', 'create_webhook'),
        ('GET', '/ojs/v1/webhooks/subscriptions/:id', 'webhook'),
        ('PATCH', '/ojs/v1/webhooks/subscriptions/:id', 'update_webhook'),
        ('DELETE', '/ojs/v1/webhooks/subscriptions/:id', 'drop_webhook'),
        ('POST', '/ojs/v1/webhooks/subscriptions/:id/test', 'test_webhook'),
        ('POST', '/ojs/v1/webhooks/subscriptions/:id/rotate-secret', 'rotate_webhook_secret'),
        ('GET', '/ojs/v1/webhooks/deliveries', 'webhook_deliveries'),
        ('GET', '/ojs/v1/webhooks/deliveries/:id', 'webhook_delivery'),
        ('POST', '/ojs/v1/webhooks/deliveries/:id/retry', 'retry_webhook_delivery'),
        ('GET', '/ojs/v1/admin/scheduling/stats', 'scheduling_stats'),
        ('GET', '/ojs/v1/admin/access', 'access'),
        ('GET', '/ojs/v1/admin/audit', 'audit'),
        ('GET', '/ojs/v1/admin/system/config', 'system_config'),
        ('GET', '/ojs/v1/admin/system/maintenance', 'maintenance'),
        ('POST', '/ojs/v1/admin/system/maintenance', 'set_maintenance'),
        ('POST', '/ojs/v1/admin/reset', 'reset'),
        ('PUT', '/v0/topics/:queue', 'create_topic'),
        ('GET', '/v0/topics/:queue', 'topic'),
        ('POST', '/v0/topics/:queue', 'topic_produce'),
        ('GET', '/v0/topics/:queue/work', 'topic_work'),
        ('POST', '/v0/topics/:queue/claim', 'topic_claim'),
        ('POST', '/v0/topics/:queue/ack', 'topic_ack'),
        ('POST', '/v0/topics/:queue/nack', 'topic_nack'),
        ('POST', '/v0/topics/:queue/extend', 'topic_extend'),
        -- Official clients ask for these; no document has them. The doubled paths are how two SDKs send them.
        ('POST', '/ojs/v1/workers/progress', 'worker_progress'),
        ('GET', '/ojs/v1/checkpoints/:id/resume', 'resume'),
        ('POST', '/ojs/v1/checkpoints/:id', 'save_step'),
        ('DELETE', '/ojs/v1/checkpoints/:id', 'delete_checkpoint'),
        ('GET', '/ojs/v1/ojs/v1/checkpoints/:id/resume', 'resume'),
        ('POST', '/ojs/v1/ojs/v1/checkpoints/:id', 'save_step'),
        ('DELETE', '/ojs/v1/ojs/v1/checkpoints/:id', 'delete_checkpoint'),
        ('GET', '/ojs/v1/unique-jobs', 'unique_jobs'),
        ('GET', '/ojs/v1/middleware', 'middleware'),
        ('GET', '/ojs/v1/queues/:name/priority-stats', 'priority_stats'),
        ('GET', '/ojs/v1/jobs/:id/progress/stream', 'event_stream'),
        ('GET', '/ojs/v1/crons', 'cron_page'),
        ('GET', '/ojs/v1/crons/:name', 'cron_flat'),
        ('PATCH', '/ojs/v1/crons/:name', 'change_cron'),
        ('DELETE', '/ojs/v1/crons/:name', 'unschedule');
end;

-- SERVING ----------------------------------------------------------------------------------------------------------

-- The handlers by path, a colon for each name: {"/ojs/v1/jobs/:": {"GET": "info", ...}, ...}. Immutable: its callers
-- fold it into a constant.
create function ojs_http.handlers_by_path() returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select jsonb_object_agg(path, handlers)
    from (
        select regexp_replace(r.pattern, ':[a-z]+', ':', 'g') as path, jsonb_object_agg(r.method, r.handler) as handlers
        from ojs_http.routes() r group by 1
    ) p
$$;

-- Which handler a request is for, and what the path says in the places of the pattern's names; or what methods the path
-- would take. Looked up as it stands, then with one of its parts for a name: what stands there goes before a name. A
-- path of more parts than any pattern has is none, and costs nothing.
create function ojs_http.find_route(method text, path text, out handler text, out names text[], out allowed text)
    returns record
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    parts constant text[] := case when octet_length(path) <= 4096 then string_to_array(path, '/') end;
    with_name text[];
    handlers jsonb := case when ':' <> all (parts) then ojs_http.handlers_by_path() -> path end;
begin
    names := '{}';
    if parts is null or cardinality(parts) > 9 then
        return;
    end if;
    for i in reverse cardinality(parts) .. 2 loop
        exit when handlers is not null;
        continue when parts[i] = '';
        with_name := parts;
        with_name[i] := ':';
        handlers := ojs_http.handlers_by_path() -> array_to_string(with_name, '/');
        if handlers is not null then
            names := array[ojs_http.decoded(parts[i])];
        end if;
    end loop;
    if handlers is null and cardinality(parts) > 3 and '' <> all (parts[cardinality(parts) - 1:]) then
        with_name := parts[:cardinality(parts) - 2] || '{:,:}'::text[];
        handlers := ojs_http.handlers_by_path() -> array_to_string(with_name, '/');
        if handlers is not null then
            names := array[ojs_http.decoded(parts[cardinality(parts) - 1]),
                ojs_http.decoded(parts[cardinality(parts)])];
        end if;
    end if;
    handler := handlers ->> method;
    if handler is null and handlers is not null then
        allowed := (select string_agg(m, ', ' order by m) from (
            select * from jsonb_object_keys(handlers) union select 'HEAD' where handlers ? 'GET' union
                select 'OPTIONS') of_path (m));
    end if;
end $$;

-- Refuses a body that is no JSON by its own account, and a version of the protocol or an extension that is not ours.
create function ojs_http.check_headers(headers jsonb, path text, has_body boolean) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    media_type text := lower(btrim(split_part(headers ->> 'content-type', ';', 1)) collate "C");
    version text := headers ->> 'ojs-version';
    missing text;
begin
    if has_body and media_type not in ('application/openjobspec+json', 'application/json') then
        perform ojs_http.raise('INVALID_PAYLOAD', 'the media type of the body is not supported',
            '{"field": "Content-Type"}',
            'Send application/openjobspec+json, or application/json.');
    end if;
    if nullif(version, '') !~ '^1([.]0)*(-[0-9A-Za-z.-]+)?$' and path <> '/ojs/manifest' then
        perform ojs_http.raise('UNSUPPORTED_FEATURE', 'the version of OJS that OJS-Version asks for is not supported',
            '{"field": "OJS-Version", "supported": ["1.0"]}', 'Ask for 1.0, or leave the header out.');
    end if;
    if headers ? 'x-ojs-tenant' and coalesce(current_setting('ojs.tenancy', true), 'off') = 'off' then
        perform ojs_http.raise('UNSUPPORTED_FEATURE', 'X-OJS-Tenant asks for a tenant, and there are none',
            '{"field": "X-OJS-Tenant"}', 'Leave the header out, or set ojs.tenancy.');
    elsif headers ->> 'x-ojs-tenant' !~ '^[a-zA-Z0-9][a-zA-Z0-9._:-]{0,62}$' then
        perform ojs_http.raise('INVALID_PAYLOAD', 'X-OJS-Tenant is no tenant', '{"field": "X-OJS-Tenant"}',
            'Give 1 to 63 letters, digits, dots, underscores, colons or hyphens, the first a letter or a digit.');
    end if;
    if has_body and lower(btrim(headers ->> 'content-encoding') collate "C") not in ('', 'identity') then
        perform ojs_http.raise('UNSUPPORTED_FEATURE', 'the encoding of the body is not supported',
            '{"field": "Content-Encoding", "supported": ["identity"]}',
            'Send the body as plain JSON.');
    end if;
    -- Progress had the URI of an experimental extension here, too (R-102).
    select uri into missing from unnest(string_to_array(headers ->> 'ojs-requires-extension', ',')) uri
    where not jsonb_path_exists(ojs_http.extensions(), '$.*[*] ? (@.uri == $uri)',
        jsonb_build_object('uri', case btrim(uri) when 'urn:ojs:ext:experimental:progress' then 'urn:ojs:ext:progress'
            else btrim(uri) end)) limit 1;
    if found then
        perform ojs_http.raise('UNSUPPORTED_FEATURE',
            'the extension that OJS-Requires-Extension names is not supported',
            jsonb_build_object('field', 'OJS-Requires-Extension', 'extension', left(btrim(missing), 128)),
                'GET /ojs/manifest lists the extensions.');
    end if;
end $$;

-- Where a client of the pipe waits and the database is not to: how many seconds the request would have waited,
-- or null if not at all.
create function ojs_http.would_wait(headers jsonb, body jsonb) returns text
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    details jsonb := coalesce(body #> '{error,details}', '{}');
    seconds numeric;
begin
    if headers ->> 'ojs-do-not-wait' is distinct from '1' then
        return null;
    elsif not details ? 'strategy' then
        details := jsonb_path_query_first(body, '$.items[*].error.details ? (exists(@.strategy))');
    end if;
    if details ->> 'strategy' = 'block' then
        seconds := coalesce(case when headers ? 'ojs-block-timeout'
            then least((headers ->> 'ojs-block-timeout')::numeric, 30) end,
            (details ->> 'block_timeout_ms')::numeric / 1000);
    end if;
    return case when seconds > 0 then trim_scale(seconds)::text end;
end $$;

-- For the request alone. Who acts for a tenant already acts for no other.
create function ojs_http.act_for(tenant text, before text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if before not in ('', tenant) then
        perform ojs_http.raise('PERMISSION_DENIED', 'the session acts for another tenant than X-OJS-Tenant names',
            '{"field": "X-OJS-Tenant", "reason": "tenant_not_allowed"}', 'Leave the header out.');
    end if;
    perform set_config('ojs.tenant', tenant, true);
end $$;

-- The gateway sets plan_cache_mode for its call alone; what is called here plans as it does elsewhere.
create function ojs.http(
    method text, path text, request_headers jsonb default '{}', request_body text default null
) returns table (status int, headers jsonb, body text)
language plpgsql volatile parallel unsafe set plan_cache_mode = auto set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    given jsonb := ojs_http.read_headers(request_headers);
    request_id text := ojs_http.request_id(given ->> 'x-request-id');
    only_path text := coalesce(split_part(path, '?', 1), '');
    stage text := 'path';
    request ojs_http.request;
    response ojs_http.response;
    route record;
    handler text;
    tenant_before constant text := current_setting('ojs.tenant', true);
    jobs jsonb; -- of a batch: large, and not in request, which each call copies
    mended text;
    faults jsonb; -- of jobs of a batch that cannot be read
    state text; message text; detail text; hint text; context text;
begin
    -- A large one is not copied; btrim takes twelve times its length.
    if octet_length(request_body) <= 1000 then
        request_body := nullif(btrim(request_body, e' \t\r\n'), '');
    end if;
    loop
        begin
            route := ojs_http.find_route(case when upper(method collate "C") = 'HEAD' then 'GET'
                else upper(method collate "C") end, only_path);
            handler := route.handler;
            if handler is null and upper(method collate "C") = 'OPTIONS' and route.allowed is not null then
                response := ojs_http.reply(204, null, jsonb_build_object('Allow', route.allowed));
            elsif handler is null then
                response := ojs_http.no_route(method, only_path, route.allowed, request_id);
            else
                request.method := upper(method collate "C");
                request.path := only_path;
                request.names := route.names;
                request.query := case when strpos(path, '?') > 0
                    then ojs_http.read_query(substr(path, strpos(path, '?') + 1)) else '{}' end;
                request.headers := given || jsonb_build_object('x-request-id', request_id);
                if request.method not in ('GET', 'HEAD') then
                    perform ojs_http.check_headers(given, only_path, request_body is not null);
                    stage := 'body';
                    if request_body is not null then
                        perform ojs_http.check_body(handler, request_body);
                        if handler in ('push_batch', 'push_bulk') then
                            jobs := request_body::jsonb;
                            if jsonb_typeof(jobs) = 'object' and jsonb_typeof(jobs -> 'jobs') = 'array' then
                                request.body := jobs - 'jobs';
                                jobs := jobs -> 'jobs';
                            else
                                request.body := jobs;
                                jobs := null;
                            end if;
                        else
                            request.body := request_body::jsonb;
                        end if;
                        if jsonb_typeof(request.body) <> 'object' then
                            perform ojs_http.raise('INVALID_PAYLOAD', 'the body must be a JSON object',
                                '{"reason": "malformed"}', 'Send a JSON object.');
                        end if;
                    end if;
                else
                    perform ojs_http.check_headers(given, only_path, false);
                end if;
                stage := 'work';
                if given ? 'x-ojs-tenant' then
                    perform ojs_http.act_for(given ->> 'x-ojs-tenant', tenant_before);
                end if;
                if jobs is null then
                    execute format('select * from ojs_http.%I($1)', handler) into response using request;
                else
                    response := ojs_http.push_once(request, jobs, handler, faults);
                    jobs := null;
                end if;
            end if;
            exit;
        exception when others or assert_failure then
            get stacked diagnostics state = returned_sqlstate, message = message_text, detail = pg_exception_detail,
                hint = pg_exception_hint, context = pg_exception_context;
            -- Only a body that could not be read is looked at for what is wrong with it.
            if stage = 'body' and mended is null and (left(state, 2) in ('22', '54') or state = '0A000'
                or state = 'OJ109' and handler = 'nack') then
                begin
                    select m.mended, m.faults into mended, faults
                    from ojs_http.mend_body(handler, request_body, state = 'OJ109') m;
                    if mended <> request_body then
                        request_body := mended;
                        continue;
                    end if;
                exception when others then
                    get stacked diagnostics state = returned_sqlstate, message = message_text,
                        detail = pg_exception_detail, hint = pg_exception_hint, context = pg_exception_context;
                end;
            end if;
            response := ojs_http.problem(stage, only_path, request_id, state, message, detail, hint, context,
                coalesce(jobs, request.body));
            exit;
        end;
    end loop;
    if given ? 'x-ojs-tenant' and current_setting('ojs.tenant', true) <> tenant_before then
        perform set_config('ojs.tenant', tenant_before, true);
    end if;
    if response.status in (422, 429) and given ? 'ojs-do-not-wait' then
        response.headers := response.headers || jsonb_strip_nulls(jsonb_build_object('OJS-Would-Wait',
            ojs_http.would_wait(given, response.body)));
    end if;
    status := response.status;
    -- A client that names its version of OJS may be an SDK that takes only what names application/json for JSON.
    headers := jsonb_build_object('Content-Type', 'application/openjobspec+json' || case when given ? 'ojs-version'
        then '; alias="application/json"' else '' end, 'OJS-Version', '1.0', 'X-Request-Id', request_id)
        || coalesce(response.headers, '{}');
    body := case when upper(method collate "C") = 'HEAD' or status = 204 then ''
        when ojs_http.missing_nodes() is not null and jsonb_typeof(response.body) = 'object'
            then (response.body || jsonb_build_object('missing_nodes', ojs_http.missing_nodes()))::text
        else coalesce(response.content, response.body::text, '') end;
    response := null; -- large, and in body by now
    return next;
end $$;
comment on function ojs.http(text, text, jsonb, text) is
    'Serves one request of the OJS HTTP binding with the rights of the caller: path with its query string; errors are '
    'answers, not exceptions';
