-- http.sql: HTTP requests that one node serves, or several in turn: the router chooses, and passes them on to ojs.http
-- of the node. What is asked of all nodes is served here, by the files of sql/http on the functions and views of the
-- router.

create function ojs_router.remote_http(node int, method text, path text, given jsonb, content text,
    out status int, out headers jsonb, out body text) returns record language plproxy as $$
    cluster 'ojs'; run on node;
    select h.status, h.headers, h.body from ojs.http($2, $3, $4, $5) h;
$$;

-- A request with that body, of a node. Errors of the node are answers; what is raised is that it does not answer.
create function ojs_router.ask(node int, request ojs_http.request, body jsonb) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    -- every byte in percent notation
    query text := (select string_agg(regexp_replace(encode(convert_to(q.key, 'UTF8'), 'hex') || '='
            || encode(convert_to(q.value, 'UTF8'), 'hex'), '[0-9a-f]{2}', E'%\\&', 'g'), '&')
        from jsonb_each_text(request.query) q);
    answer record;
begin
    perform ojs_router.check_tenant();
    answer := ojs_router.remote_http(node, request.method, concat_ws('?', request.path, query), request.headers,
        body::text);
    return (answer.status, answer.headers, null, answer.body)::ojs_http.response;
end $$;

-- `anywhere`: another node may serve it as well, if it holds no key that is in the way; where the queue is full on one,
-- the others are asked.
create function ojs_router.forward(node int, request ojs_http.request, body jsonb, anywhere boolean default false,
    held text default null) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    failure ojs_router.failure;
    response ojs_http.response;
    others int[] := case when anywhere and held is null and coalesce(current_setting('ojs_router.node', true), '') = ''
        then ojs_router.without(ojs_router.active_nodes(), ojs_router.missing()) end;
begin
    loop
        begin
            response := ojs_router.ask(node, request, body);
            others := array_remove(others, node);
            if response.status <> 429 or coalesce(others, '{}') = '{}'
                or strpos(response.content, '"QUEUE_FULL"') = 0 then
                return response;
            end if;
            node := others[1];
        exception when others or query_canceled then
            get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
                failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
            if not anywhere then
                perform ojs_router.raise_failure(node, failure);
            end if;
            node := ojs_router.other_node(node, held, failure);
        end;
    end loop;
end $$;

-- To the node of the job, or the workflow, that the path names, or the body. silent: a node answers even if it does not
-- know the job.
create function ojs_router.forward_job(request ojs_http.request, silent boolean) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    named text := coalesce(request.names[1], request.body ->> 'job_id');
    id uuid := case when named collate "C" ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then named end;
    node int;
    other int;
    response ojs_http.response;
begin
    if id is null then -- the node says what is wrong
        return ojs_router.forward(ojs_router.random_node(), request, request.body);
    end if;
    node := case when silent then ojs_router.holding_node(id) else ojs_router.home(id) end;
    response := ojs_router.forward(node, request, request.body);
    if response.status = 404 then -- a client's own id may name another node than the one that has the job
        other := ojs_router.found_node(id);
        if other <> node then
            response := ojs_router.forward(other, request, request.body);
        end if;
    end if;
    return response;
end $$;

-- To all nodes in turn, until one refuses; what there is to change need not be on all of them.
create function ojs_router.forward_all(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    node int;
    answer ojs_http.response;
    first ojs_http.response;
begin
    foreach node in array ojs_router.all_nodes() loop
        answer := ojs_router.forward(node, request, request.body);
        if answer.status >= 400 and answer.status <> 404 then
            return answer;
        elsif first.status is null or first.status = 404 then
            first := answer;
        end if;
    end loop;
    return first;
end $$;

-- A handler runs as ojs_router, which may do everything on nodes. So it passes on its own requests only, and the node
-- is to find the same path: what follows a ? would be no part of it there.
create function ojs_router.check_route(request ojs_http.request, handler text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if (ojs_http.find_route(case request.method when 'HEAD' then 'GET' else request.method end, request.path)).handler
        is distinct from handler or strpos(request.path, '?') > 0 then
        raise insufficient_privilege using message = format('that is no request for ojs_http.%s', handler);
    end if;
end $$;

-- Others than workers do not see the checkpoint, as on a node.
create function ojs_router.without_checkpoint(response ojs_http.response) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if response.status = 200 and response.content <> ''
        and not has_function_privilege(ojs_router.caller(), 'ojs.get_checkpoint(uuid)', 'execute') then
        response.content := (response.content::jsonb || '{"checkpoint": null}')::text;
    end if;
    return response;
end $$;

-- The handlers of requests that are passed on as they are, or that a router cannot serve.
do $do$
declare
    f record;
begin
    for f in
        select v.handler, v.way
        from (
            select unnest(p.handlers) as handler, p.way
            from (values
                ('{info,lineage,change_job,cancel,activate,ack,nack,set_progress,save_checkpoint,result,
                admin_job,explain,job_history,retry,discard,delete_job,dead_letter,delete_dead_letter,
                delete_dead_letter_flat,retry_dead_letter,worker_progress,resume,save_step,workflow,cancel_workflow,
                extend_workflow}'::text[],
                    'ojs_router.forward_job(request, false)'),
                ('{checkpoint,delete_checkpoint}', 'ojs_router.forward_job(request, true)'),
                ('{progress}', 'ojs_router.without_checkpoint(ojs_router.forward_job(request, false))'),
                ('{create_workflow}', 'ojs_router.forward(ojs_router.any_node(), request, request.body, true)'),
                ('{schemas,schema,admin_schema,schema_versions,system_config}',
                    'ojs_router.forward(ojs_router.random_node(), request, request.body)'),
                ('{register_schema,admin_register_schema,put_schema,set_schema_validation,drop_schema,reset}',
                    'ojs_router.forward_all(request)'),
                ('{register_worker}',
                    $w$ojs_router.forward(ojs_router.worker_node(request.body ->> 'worker_id'), request,
                        request.body)$w$)
            ) p(handlers, way)
            union all
            select unnest(r.handlers), format('ojs_router.refuse(%L, %L, %L)', r.feature, r.why, r.hint)
            from (values
                ('{pools,pool,set_pool,drop_pool,scheduling_stats}'::text[], 'pools',
                    'each node counts its own claims only',
                    'Fetch from several queues in their order, or make the pool on each node and fetch there.'),
                ('{tenants,tenant,set_tenant,drop_tenant,set_tenant_limits,tenant_stats,tenant_jobs}', 'tenants',
                    'nodes see one role, whoever calls', 'Keep tenants on servers of their own.'),
                ('{webhooks,create_webhook,webhook,update_webhook,drop_webhook,test_webhook,rotate_webhook_secret,
                webhook_deliveries,webhook_delivery,retry_webhook_delivery}', 'webhooks',
                    'each node delivers its own events', 'Subscribe on each node, whose gateway sends.'),
                ('{topic_produce,topic_work,topic_claim,topic_ack,topic_nack,topic_extend}', 'numbers of jobs',
                    'each node counts its own', 'Name jobs by their ids: use the paths below /ojs/v1.'),
                ('{middleware}', 'hooks', 'each node has its own', 'Ask the nodes.'),
                ('{audit}', 'audit trail', 'each node keeps its own, where all that comes from here is by one role',
                    'Ask the nodes, and log on the router who calls what.')
            ) r(handlers, feature, why, hint)
        ) v
    loop
        execute format($f$
            create function ojs_http.%I(request ojs_http.request) returns ojs_http.response
            language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $p$
            begin
                perform ojs_router.check_route(request, %L);
                return %s;
            end $p$
        $f$, f.handler, f.handler, f.way);
    end loop;
end $do$;

create function ojs_router.refuse(feature text, why text, hint text) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_router.raise('UNSUPPORTED_FEATURE', format('a router has no %s, since %s', feature, why),
        jsonb_build_object('feature', feature), hint);
end $$;

-- PUSHES -----------------------------------------------------------------------------------------------------------

create function ojs_http.push(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    key text;
begin
    perform ojs_router.check_route(request, 'push');
    key := ojs_router.key_of(request.body);
    return ojs_router.forward(case when key is null then ojs_router.any_node() else ojs_router.node_for(key) end,
        request, request.body, true, key);
end $$;

-- The answer to a batch with jobs that could not be read: its node has seen null in their place.
create function ojs_router.with_faults(answer ojs_http.response, faults jsonb) returns ojs_http.response
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := coalesce(answer.body, answer.content::jsonb);
begin
    if faults is null or jsonb_typeof(body -> 'items') is distinct from 'array' then
        return answer;
    end if;
    answer.content := null;
    answer.body := body || jsonb_build_object('items', (
        select jsonb_agg(case when i ? 'error' and faults ? (i ->> 'index')
            then i || jsonb_build_object('error', (i -> 'error') || (faults -> (i ->> 'index'))) else i end order by n)
        from jsonb_array_elements(body -> 'items') with ordinality as e(i, n)));
    return answer;
end $$;

-- A batch. Where each job is for itself and their keys name several nodes, each node gets its part, and the answers are
-- one: a part that is refused as a whole is an error of each of its jobs.
create function ojs_http.push_once(request ojs_http.request, jobs jsonb, operation text, faults jsonb default null)
    returns ojs_http.response
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    body jsonb := ojs_http.object(request);
    request_key text;
    atomic boolean := ojs_http.is_atomic(body, case operation when 'push_batch' then 'atomic' else 'partial' end);
    place record;
    batch record;
    answer ojs_http.response;
    part jsonb;
    first jsonb;
    items jsonb := '[]';
    statuses int[] := '{}';
begin
    perform ojs_router.check_route(request, case operation when 'push_batch' then operation else 'push_bulk' end);
    perform ojs_http.raise('INVALID_PAYLOAD', format('jobs[%s]: %s', f.key, f.value ->> 'message'),
        f.value -> 'details' || jsonb_build_object('index', f.key::int), f.value ->> 'hint')
    from jsonb_each(faults) f where atomic order by f.key::int limit 1;
    request.headers := ojs_http.read_headers(request.headers); -- as the node will, whoever calls
    request_key := ojs_router.own_key(ojs_http.idempotency_key(request, body));
    place := ojs_router.batch_nodes(jobs, coalesce(body ->> 'deduplication_key', body ->> 'deduplicationKey'),
        request_key, case when atomic then 'atomic' else 'partial' end);
    request.headers := request.headers - 'idempotency-key';
    body := body || jsonb_strip_nulls(jsonb_build_object('idempotency_key', request_key));
    if place.nodes[1] = all (place.nodes) then
        return ojs_router.with_faults(ojs_router.forward(place.nodes[1], request,
            body || jsonb_build_object('jobs', jobs), true, place.held), faults);
    end if;
    for batch in select * from ojs_router.parts_of(jobs, place.nodes) loop
        begin
            answer := ojs_router.forward(batch.node, request, body || jsonb_build_object('jobs', batch.part));
            part := answer.content::jsonb;
        exception when sqlstate '57P03' then
            perform ojs_router.remember_missing(batch.node);
            answer.status := 503;
            part := jsonb_build_object('error', ojs_http.item_error(ojs_router.node_missing(batch.node,
                batch.places[1])));
        end;
        statuses := statuses || answer.status;
        first := coalesce(first, part);
        items := items || coalesce((
            select jsonb_agg(i || jsonb_build_object('index', at) || case when i ? 'error'
                then jsonb_build_object('error', ojs_router.placed_error(i -> 'error', at)) else '{}' end)
            from jsonb_array_elements(part -> 'items') i, lateral (select batch.places[(i -> 'index')::int + 1]) p(at)),
            (select jsonb_agg(jsonb_build_object('index', at, 'status', 'failed', 'error',
                ojs_router.placed_error(part -> 'error', at))) from unnest(batch.places) at));
        first := first || jsonb_strip_nulls(jsonb_build_object('warnings',
            coalesce(first -> 'warnings', '[]') || (part -> 'warnings')));
    end loop;
    answer.status := case when statuses[1] = all (statuses) then statuses[1] when 201 < any (statuses) then 207
        else 201 end;
    answer.headers := coalesce(answer.headers, '{}')
        || jsonb_build_object('X-OJS-Batch-Size', jsonb_array_length(jobs)::text);
    answer.body := case when answer.status < 400 then first - 'error' else first end || (
        select jsonb_build_object('items', jsonb_agg(i order by (i -> 'index')::int), 'total', count(*),
            'failed', count(*) filter (where i ->> 'status' = 'failed'),
            'succeeded', count(*) filter (where i ->> 'status' <> 'failed'))
        from jsonb_array_elements(items) i);
    answer.content := null;
    return ojs_router.with_faults(answer, faults);
end $$;

create function ojs_http.push_batch(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.push_once(request, ojs_http.field(ojs_http.object(request), 'jobs', 'array', true), 'push_batch')
$$;

create function ojs_http.push_bulk(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.push_once(request, ojs_http.field(ojs_http.object(request), 'jobs', 'array', true), 'push_bulk')
$$;

-- FETCHES ----------------------------------------------------------------------------------------------------------

create function ojs_http.fetch(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    body jsonb := ojs_http.object(request);
    queues text[] := ojs_http.texts_field(body, 'queues');
    wanted numeric := coalesce(ojs_http.field(body, 'count', 'number')::numeric, 1);
    answer ojs_http.response;
    answers ojs_http.response[] := '{}';
    jobs jsonb;
begin
    perform ojs_router.check_route(request, 'fetch');
    if body ? 'pool' then
        perform ojs_router.refuse('pools', 'each node counts its own claims only', 'Name queues.');
    elsif body ?| '{strategy,weights}' and body ->> 'strategy' is distinct from 'strict' then
        perform ojs_router.refuse('strategies', 'each node counts its own claims only',
            'Leave strategy and weights out, or fetch from the nodes themselves.');
    elsif coalesce(queues, '{}') = '{}' or wanted <> trunc(wanted) or wanted < 1 then -- the node says what is wrong
        return ojs_router.forward(ojs_router.random_node(), request, body);
    end if;
    for answer in
        select f.* from ojs_router.fetch(request, queues, null, least(wanted, 1000)::int, missing_ok => true) f
    loop
        answers := answers || answer;
    end loop;
    -- What comes from several nodes is put in order.
    select coalesce(jsonb_agg(j order by array_position(queues, j ->> 'queue'), (j -> 'priority')::int desc,
        j ->> 'id'), '[]') into jobs
    from unnest(answers) a, jsonb_array_elements(a.body -> 'jobs') j;
    if jobs <> '[]' then
        return ojs_http.reply(200, jsonb_build_object('jobs', jobs));
    elsif answers = '{}' then
        perform ojs_router.raise('UNAVAILABLE', 'no node answers', '{}', 'Try again later.');
    end if;
    return answers[cardinality(answers)]; -- with how long the gateway may wait, or what is wrong
end $$;
