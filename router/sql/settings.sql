-- settings.sql: what holds on all nodes, for one that joins.

-- The settings of one node, on another: queues and their states, schemas, limits laid over others, maintenance. What is
-- there already is the same or is overwritten, so this can be repeated.
create function ojs_router.copy_settings(source int, target int) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    q record;
    s record;
    l record;
    maintenance jsonb := (select h.health -> 'maintenance' from ojs_router.remote_health(array[source]) h);
begin
    if coalesce((maintenance ->> 'maintenance')::boolean, jsonb_typeof(maintenance) = 'object', false) then
        perform ojs_router.remote_set_maintenance(target, true, maintenance ->> 'reason',
            case when (maintenance ->> 'estimated_end')::timestamptz > clock_timestamp()
                then (maintenance ->> 'estimated_end')::timestamptz - clock_timestamp() end);
    end if;
    for q in select r.name, r.state, r.config from ojs_router.remote_queues(array[source]) r order by r.name loop
        perform ojs_router.remote_create_queue(target, q.name, q.config);
        if q.state = 'paused' then
            perform ojs_router.remote_pause_queue(target, q.name);
        elsif q.state = 'draining' then
            perform ojs_router.remote_drain_queue(target, q.name);
        end if;
    end loop;
    for s in
        select r.type, r.version, r.uri, r.schema from ojs_router.remote_schemas(array[source]) r
        where not exists (select from ojs_router.remote_schemas(array[target]) t
            where t.type = r.type and t.version = r.version)
        order by r.created_at, r.type, r.version
    loop
        perform ojs_router.remote_create_schema(target, s.type, s.version, s.schema, s.uri);
    end loop;
    for s in
        select distinct r.type, r.validation from ojs_router.remote_schemas(array[source]) r
        except select t.type, t.validation from ojs_router.remote_schemas(array[target]) t
    loop
        perform ojs_router.remote_set_schema_validation(target, s.type, s.validation);
    end loop;
    for l in
        select r.key, r.override, r.override_until from ojs_router.remote_rate_limits(array[source]) r
        where r.override is not null and r.key not like 'queue:%'
    loop
        perform ojs_router.remote_set_rate_limit(target, l.key, l.override, l.override_until);
    end loop;
end $$;

-- Bounds that these nodes share, whole again. Raises where one cannot be shared among `most` nodes, before anything is
-- changed.
create function ojs_router.common_bounds(nodes int[], most int) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    bound jsonb;
    bounds jsonb := coalesce((select jsonb_agg(to_jsonb(b)) from (
        select r.name as queue, ojs_router.merged_config(array_agg(c.config order by r.node)) as config,
            null::text as key, null::timestamptz as until
        from ojs_router.remote_queues(nodes) r, lateral (
            select jsonb_object_agg(e.key, e.value) as config from jsonb_each(r.config) e
            where e.key in ('concurrency', 'max_size', 'max_size_bytes', 'rate_limit') and e.value > '0') c
        where c.config is not null group by r.name
        union all
        select substr(r.key, 7), ojs_router.merged_config(array_agg(r.override order by r.node)), r.key,
            max(r.override_until)
        from ojs_router.remote_rate_limits(nodes) r where r.key like 'queue:%' and r.override is not null
        group by r.key) b), '[]');
begin
    for bound in select b from jsonb_array_elements(bounds) b loop
        begin
            perform ojs_router.share(bound -> 'config', 1, most);
        exception when sqlstate 'OJ100' then
            perform ojs_router.raise('INVALID_PAYLOAD', format('queue %s: %s', bound ->> 'queue', sqlerrm),
                jsonb_build_object('queue', bound -> 'queue'),
                'Give the queue a bound of at least the number of nodes, or none, and try again.');
        end;
    end loop;
    return bounds;
end $$;

-- Each node gets its part. One after the other: the sum is never more than the whole.
create function ojs_router.share_bounds(nodes int[], bounds jsonb) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    bound jsonb;
    part jsonb;
begin
    for bound in select b from jsonb_array_elements(bounds) b loop
        for i in 1..cardinality(nodes) loop
            part := ojs_router.share(bound -> 'config', i, cardinality(nodes));
            if bound ->> 'key' is null then
                perform ojs_router.remote_configure_queue(nodes[i], bound ->> 'queue', part);
            else
                perform ojs_router.remote_set_rate_limit(nodes[i], bound ->> 'key', part,
                    (bound ->> 'until')::timestamptz);
            end if;
        end loop;
    end loop;
end $$;
