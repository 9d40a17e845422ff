-- admin.sql: administration of all nodes, one after the other. Refused before anything is changed where a node does
-- not answer.

-- The part of node i of n (from 1) of the bounds that a queue's settings or a limit lay on all nodes together. In sum
-- they are exact. A bound less than the number of nodes cannot be shared out.
create function ojs_router.share(config jsonb, i int, n int) returns jsonb
language plpgsql immutable parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    path text[];
    bound numeric;
begin
    foreach path slice 1 in array ojs_router.bounds() loop
        path := array_remove(path, '');
        continue when jsonb_typeof(config #> path) is distinct from 'number';
        bound := (config #>> path)::numeric;
        continue when bound <= 0 or bound <> trunc(bound);
        if bound < n then
            perform ojs_router.raise('INVALID_PAYLOAD', format('%s of %s cannot be shared out among %s nodes',
                array_to_string(path, '.'), bound, n),
                jsonb_build_object('field', array_to_string(path, '.')),
                'Each node gets its part of the bound, at least 1. Give more, or keep such jobs on one node by a '
                    'rate_limit of their own.');
        end if;
        config := jsonb_set(config, path, to_jsonb(div(bound, n) + case when i <= mod(bound, n) then 1 else 0 end));
    end loop;
    return config;
end $$;

-- What became of many jobs. Those that are named by ids are asked for on all nodes, and what counts is what the node
-- says that has them.
create function ojs_router.merged_items(answers jsonb[], named boolean) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    with items as (
        select i.item, a.n as node, i.n
        from unnest(answers) with ordinality a(answer, n),
            jsonb_array_elements(a.answer -> 'items') with ordinality i(item, n)
    ), chosen as (
        select distinct on (part, n) item, case when named then 0 else node end as part, n
        from items
        order by part, n, item ->> 'code' is not distinct from 'NOT_FOUND', node
    ), numbered as (
        select item || jsonb_build_object('index', row_number() over (order by part, n) - 1) as item,
            row_number() over (order by part, n) as n
        from chosen
    )
    select jsonb_build_object('matched', count(*), 'succeeded', count(*) - count(item -> 'code'),
        'failed', count(item -> 'code'), 'more', (select coalesce(bool_or((a ->> 'more')::boolean), false)
            from unnest(answers) a), 'items', coalesce(jsonb_agg(item order by n), '[]'))
        || coalesce((select jsonb_build_object('left_out', sum((a -> 'left_out')::int)) from unnest(answers) a
            having count(a -> 'left_out') > 0), '{}')
    from numbered
$$;

-- A limit of a queue is shared out. Any other one is the same on all nodes, and counts on that of its key.
create function ojs_router.merged_limit(nodes int[], answers jsonb[], key text) returns jsonb
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select case when key like 'queue:%' then ojs_router.merged(answers)
        else coalesce(answers[array_position(nodes, (select s.node from ojs_router.slot s
            where s.slot = ojs.key_slot('limit: ' || key)))], answers[1]) end
$$;

-- kind: what becomes of the answers. `share` names the parameter whose bounds are shared out.
do $do$
declare
    f record;
    names text[];
    types text[];
    parameter text;
begin
    for f in select * from (values
        ('create_queue', 'name text, config jsonb default ''{}''', 'jsonb', 'config', 'config'),
        ('configure_queue', 'name text, config jsonb', 'jsonb', 'config', 'config'),
        ('pause_queue', 'name text', 'void', 'void', null),
        ('resume_queue', 'name text', 'void', 'void', null),
        ('drain_queue', 'name text', 'void', 'void', null),
        ('purge_queue', 'name text, states text[] default null, confirm boolean default false', 'bigint', 'sum', null),
        ('drop_queue', 'name text, strategy text default ''reject'', target text default null', 'bigint', 'sum', null),
        ('set_maintenance', 'enabled boolean, reason text default null, estimated_duration interval default null',
            'jsonb', 'first', null),
        ('set_worker_state', 'worker text, state text', 'void', 'void', null),
        ('set_rate_limit', 'key text, config jsonb, until timestamptz default null', 'jsonb', 'limit', 'config'),
        ('cancel_many', 'filter jsonb, confirm boolean default false', 'jsonb', 'bulk', null),
        ('retry_many', 'filter jsonb, confirm boolean default false', 'jsonb', 'bulk', null),
        ('delete_many', 'filter jsonb, confirm boolean default false', 'jsonb', 'bulk', null),
        ('free_deduplication_key', 'queue text, key text', 'boolean', 'or', null),
        ('unschedule', 'name text', 'boolean', 'or', null),
        ('create_schema', 'type text, version text, schema jsonb, uri text default null', 'jsonb', 'first', null),
        ('drop_schema', 'type text, version text', 'boolean', 'or', null),
        ('set_schema_validation', 'type text, mode text', 'void', 'void', null),
        ('index_events', 'enabled boolean default true', 'void', 'void', null),
        ('notify_events', 'enabled boolean default true', 'void', 'void', null),
        ('tick', 'budget int default null', 'jsonb', 'json', null)
    ) v(name, parameters, result, kind, share) loop
        names := '{}'; types := '{}';
        foreach parameter in array string_to_array(f.parameters, ', ') loop
            names := names || split_part(parameter, ' ', 1);
            types := types || split_part(parameter, ' ', 2);
        end loop;
        execute format($f$
            create function ojs_router.remote_%1$s(node int, %2$s) returns %3$s language plproxy %5$s as $p$
                cluster 'ojs'; run on node;
                select ojs.%1$s(%4$s);
            $p$
        $f$, f.name, array_to_string(types, ', '), f.result, (select string_agg('$' || i + 1, ', ' order by i)
            from generate_subscripts(types, 1) i), case when 'timestamptz' = any (types)
            then $d$set datestyle = 'ISO'$d$ end);
        execute format($f$
            create function ojs.%1$s(%2$s) returns %3$s
            language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $p$
            #variable_conflict use_variable
            declare
                _nodes int[] := ojs_router.all_nodes();
                _answers jsonb[] := '{}';
                _failure ojs_router.failure;
                _done int[] := '{}';
                _part jsonb;
            begin
                for _i in 1..cardinality(_nodes) loop
                    %5$s
                    begin
                        _answers := _answers || to_jsonb(ojs_router.remote_%1$s(_nodes[_i], %4$s));
                        _done := _done || _nodes[_i];
                    exception when others or query_canceled then
                        get stacked diagnostics _failure.state = returned_sqlstate, _failure.message = message_text,
                            _failure.detail = pg_exception_detail, _failure.hint = pg_exception_hint;
                        -- A queue need not be on all nodes.
                        if _failure.state <> 'OJ300' or _i = cardinality(_nodes) and _done = '{}' then
                            perform ojs_router.raise_failure(_nodes[_i], _failure, _done);
                        end if;
                    end;
                end loop;
                return %6$s;
            end $p$
        $f$, f.name, f.parameters, f.result,
            array_to_string(array(select case when n = f.share then '_part' else n end from unnest(names) with
                ordinality u(n, o) order by o), ', '),
            case when f.share is null then ''
                when f.name = 'set_rate_limit' then
                    '_part := case when key like ''queue:%'' then ojs_router.share(config, _i, cardinality(_nodes)) '
                        'else config end;'
                else '_part := ojs_router.share(config, _i, cardinality(_nodes));' end,
            case f.kind when 'void' then '' when 'first' then '_answers[1]' when 'config' then
                    '_answers[1] || jsonb_build_object(''config'', ojs_router.merged_config(array(select a -> '
                        '''config'' from unnest(_answers) a)))'
                when 'json' then 'ojs_router.merged(_answers)'
                when 'bulk' then 'ojs_router.merged_items(_answers, filter ? ''ids'')'
                when 'limit' then 'ojs_router.merged_limit(_nodes, _answers, key)'
                when 'sum' then '(select coalesce(sum(a::bigint), 0)::bigint from unnest(_answers) a)'
                when 'or' then '(select coalesce(bool_or(a::boolean), false) from unnest(_answers) a)' end);
    end loop;
end $do$;

-- A cron entry is on one node, which pushes its jobs: the one that has it, or that of its name.
create function ojs_router.remote_schedule(node int, name text, cron text, job jsonb, options jsonb) returns jsonb
    language plproxy as $$
    cluster 'ojs'; run on node;
    select ojs.schedule($2, $3, $4, $5);
$$;
create function ojs.schedule(name text, cron text, job jsonb, options jsonb default '{}') returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    node int;
    nodes int[] := ojs_router.all_nodes();
    failure ojs_router.failure;
begin
    -- Not all_crons(), which leaves out a node that did not answer a moment ago.
    select c.node into node from ojs_router.remote_crons(nodes) c where c.name = schedule.name;
    if node is null then
        select s.node into node from ojs_router.slot s where s.slot = ojs.key_slot('cron: '
            || coalesce(schedule.name, ''));
    end if;
    return ojs_router.remote_schedule(node, name, cron, job, options);
exception when others or query_canceled then
    get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
        failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
    if failure.message like '%] REMOTE %' or failure.message like 'PL/Proxy function %' then
        perform ojs_router.raise_failure(coalesce(node, nodes[1]), failure);
    end if;
    raise;
end $$;

create function ojs_router.remote_skip_ordering_key(node int, queue text, ordering_key text) returns ojs.job
language plproxy as $$
    cluster 'ojs'; run on node;
    select * from ojs.skip_ordering_key($2, $3);
$$;
create function ojs.skip_ordering_key(queue text, ordering_key text) returns ojs.job
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    node int := ojs_router.key_node('order: ' || coalesce(queue, '') || ' ' || coalesce(ordering_key, ''));
    failure ojs_router.failure;
begin
    return ojs_router.remote_skip_ordering_key(node, queue, ordering_key);
exception when others or query_canceled then
    get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
        failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
    perform ojs_router.raise_failure(node, failure);
end $$;
