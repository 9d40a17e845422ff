-- workflows.sql: one workflow over HTTP: a chain, a group or a batch.

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

-- What a workflow is, its steps with the names that an SDK asks for, and beside it what clients that expect no wrapper
-- read.
create function ojs_http.workflow_body(workflow jsonb) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('workflow', case when workflow ? 'steps' then workflow || jsonb_build_object('steps', (
            select jsonb_agg(step || jsonb_build_object('id', 'step-' || (step ->> 'index')) order by place)
            from jsonb_array_elements(workflow -> 'steps') with ordinality as s(step, place)))
        else workflow end) || coalesce((
        select jsonb_object_agg(key, value) from jsonb_each(workflow)
            where key in ('id', 'type', 'name', 'state', 'metadata')), '{}')
$$;

-- The HTTP binding writes a workflow as steps with names that depend on each other. Those that are a chain, a group or
-- a batch are read as one; any other graph stays as it is, and is refused.
create function ojs_http.workflow_of_steps(def jsonb) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    with step as (
        select s.place, s.step ->> 'id' as id, coalesce(s.step -> 'depends_on', '[]') as needs,
            s.step - '{id,depends_on}'::text[] || jsonb_build_object('options', coalesce(def -> 'options', '{}')
                || (coalesce(s.step -> 'options', '{}') - 'callback_type')) as job,
            coalesce(jsonb_build_array(lag(s.step -> 'id') over (order by s.place)), '[]') as one_before,
            substr(s.step ->> 'id', 4) as callback
        from jsonb_array_elements(def -> 'steps') with ordinality as s(step, place)
    ), root as (
        select jsonb_agg(id order by place) as ids, jsonb_agg(job order by place) as jobs, count(*) as n
        from step where needs = '[]'
    ), callback as (
        select jsonb_object_agg('on_' || s.callback, s.job) as jobs, count(distinct s.callback) as n
        from step s, root where s.needs = root.ids and s.id ~ '^on[-_](complete|success|failure)$'
    )
    select def - '{steps,options}'::text[] || case
        when root.n = of_all.n then jsonb_build_object('type', 'group', 'jobs', root.jobs)
        when root.n + callback.n = of_all.n
            then jsonb_build_object('type', 'batch', 'jobs', root.jobs, 'callbacks', callback.jobs)
        when of_all.in_line then jsonb_build_object('type', 'chain', 'steps', of_all.jobs)
        else def end
    from root, callback, (
        select count(*) as n, bool_and(needs = case place when 1 then '[]' else one_before end) as in_line,
            jsonb_agg(job order by place) as jobs
        from step
    ) of_all
$$;

-- The jobs of a definition, and of those within it, have arrays for args (R-01).
create function ojs_http.check_workflow_args(def jsonb) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    member jsonb;
begin
    for member in
        select m from unnest(array['$.steps[*]', '$.jobs[*]', '$.callbacks.*']::jsonpath[]) place,
            jsonb_path_query(def, place) m
        where jsonb_typeof(m) = 'object'
    loop
        if coalesce(member -> 'args', 'null') <> 'null' then
            perform ojs_http.check_args(member, null);
        else
            perform ojs_http.check_workflow_args(member);
        end if;
    end loop;
end $$;

create function ojs_http.create_workflow(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    def jsonb := ojs_http.object(request);
    workflow jsonb;
begin
    if not def ? 'type' and jsonb_path_match(def, '$.steps.type() == "array" && exists($.steps[*].depends_on)
        && !exists($.steps[*] ? (@.type() != "object" || @.depends_on.type() != "array"
            || exists(@.options ? (@.type() != "object"))))')
    then
        perform ojs_http.field(def, 'options', 'object');
        def := ojs_http.workflow_of_steps(def);
    end if;
    perform ojs_http.check_workflow_args(def);
    workflow := ojs.create_workflow(def);
    return ojs_http.reply(201, ojs_http.workflow_body(workflow),
        jsonb_build_object('Location', '/ojs/v1/workflows/' || (workflow ->> 'id')));
end $$;

create function ojs_http.workflow(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.upkeep();
    return ojs_http.reply(200, ojs_http.workflow_body(ojs.workflow(ojs_http.workflow_named(request))));
end $$;

create function ojs_http.extend_workflow(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.check_workflow_args(ojs_http.object(request));
    return ojs_http.reply(200, ojs_http.workflow_body(ojs.extend_workflow(ojs_http.workflow_named(request),
        ojs_http.object(request))));
end $$;

create function ojs_http.cancel_workflow(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    return ojs_http.reply(200, ojs_http.workflow_body(ojs.cancel_workflow(ojs_http.workflow_named(request))));
end $$;
