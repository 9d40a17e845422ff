-- events.sql: events of all nodes by one cursor.

-- One cursor per node, as JSON. Each node gives its part of a page, so what it gives is read.
create function ojs_router.remote_events(node int, after text, types text[], queues text[], job_types text[], max int)
    returns jsonb language plproxy as $$
    cluster 'ojs'; run on node;
    select ojs.events($2, $3, $4, $5, $6);
$$;
create function ojs.events(
    after text default null, types text[] default null, queues text[] default null, job_types text[] default null,
        max int default 100
) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    cursors jsonb := '{}';
    nodes int[] := ojs_router.live_nodes();
    asked int[] := array(select n from unnest(nodes) n order by random()); -- so that no node is left for last
    behind int[] := '{}'; -- those that have more
    node int;
    answer jsonb;
    events jsonb := '{}'; -- by node
    room int := coalesce(max, 100);
    failure ojs_router.failure;
    answered int[] := '{}';
begin
    perform ojs_router.check_any(nodes);
    if after is not null and after <> 'now' then
        begin
            cursors := convert_from(decode(after, 'base64'), 'UTF8')::jsonb;
            if jsonb_typeof(cursors) <> 'object' then
                raise exception 'no object';
            end if;
        exception when others then
            perform ojs_router.raise('INVALID_PAYLOAD', 'after is not a cursor', '{"field": "after"}',
                'Give the cursor of the last answer, or now.');
        end;
    end if;
    loop
        foreach node in array asked loop
            exit when room <= 0 and answered <> '{}';
            begin
                answer := ojs_router.remote_events(node, coalesce(cursors ->> node::text, case when after = 'now'
                    then 'now' end), types, queues, job_types,
                    case when max >= 1
                        then least(greatest(room, 1), greatest(1, ceil(max::numeric / cardinality(asked))::int))
                        else max end); -- the node says what is wrong with it
                events := events || jsonb_build_object(node,
                    coalesce(events -> node::text, '[]') || (answer -> 'events'));
                cursors := cursors || jsonb_build_object(node, answer -> 'cursor');
                room := room - jsonb_array_length(answer -> 'events');
                behind := array_remove(behind, node) || case when (answer ->> 'has_more')::boolean then array[node]
                    else '{}' end;
                if answer -> 'events' = '[]' then
                    asked := array_remove(asked, node);
                end if;
                answered := answered || node;
            exception when others or query_canceled then
                get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
                    failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
                if not ojs_router.is_down(failure) then
                    perform ojs_router.raise_failure(node, failure);
                end if;
                perform ojs_router.remember_missing(node);
            end;
        end loop;
        -- Who has more and gave events is asked again.
        asked := array(select n from unnest(asked) n where n = any (behind));
        exit when room <= 0 or asked = '{}' or pg_column_size(events) > 8 * 1024 * 1024;
    end loop;
    perform set_config('ojs_router.answered', nodes::text, true);
    return ojs_router.with_missing(jsonb_build_object(
        -- by their time, but those of a node in its order, which is that of each job's life
        'events', (select coalesce(jsonb_agg(e.event order by e.at, e.node, e.n), '[]') from (
            select l.event, p.node, l.n, max(l.event ->> 'time') over (partition by p.node order by l.n) as at
            from jsonb_each(events) p(node, list), jsonb_array_elements(p.list) with ordinality l(event, n)) e),
        'cursor', translate(encode(convert_to(cursors::text, 'UTF8'), 'base64'), E'\n', ''),
        'has_more', behind <> '{}' or exists (select from unnest(nodes) n where n <> all (answered))));
end $$;
