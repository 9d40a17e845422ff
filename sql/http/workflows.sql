-- workflows.sql: chains, groups and batches over HTTP.

-- The workflow that the path names.
create function ojs_http.workflow_named(request ojs_http.request) returns uuid
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if request.names[1] !~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then
        perform ojs_http.raise('WORKFLOW_NOT_FOUND', format('workflow %s does not exist', left(request.names[1], 64)),
            jsonb_build_object('resource_type', 'workflow', 'resource_id', left(request.names[1], 64)),
                'Check the id.');
    end if;
    return request.names[1];
end $$;

-- What a workflow is, and beside it what clients that expect no wrapper read.
create function ojs_http.workflow_body(workflow jsonb) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('workflow', workflow) || coalesce((
        select jsonb_object_agg(key, value) from jsonb_each(workflow)
            where key in ('id', 'type', 'name', 'state', 'metadata')), '{}')
$$;

create function ojs_http.create_workflow(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    workflow jsonb := ojs.create_workflow(ojs_http.object(request));
begin
    return ojs_http.reply(201, ojs_http.workflow_body(workflow),
        jsonb_build_object('Location', '/ojs/v1/workflows/' || (workflow ->> 'id')));
end $$;

create function ojs_http.workflow(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.upkeep();
    return ojs_http.reply(200, ojs_http.workflow_body(ojs.workflow(ojs_http.workflow_named(request))));
end $$;

create function ojs_http.cancel_workflow(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    return ojs_http.reply(200, ojs_http.workflow_body(ojs.cancel_workflow(ojs_http.workflow_named(request))));
end $$;
