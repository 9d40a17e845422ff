-- remote.sql: what is asked of several nodes at once, or of a node about a key. PL/Proxy sends the text after select
-- with the arguments as parameters; run on takes node numbers, which are partitions (nodes.sql). Those about one job:
-- jobs.sql. Functions are named with their schema: whose they are must not depend on a node's search_path. A node
-- parses and plans the text each time: one row costs less as one column, which is its text, than as its columns.
-- Moments come as the node writes them (check_identity in cluster.sql), and parameters go as the caller's session
-- does: a function with moments for parameters sets datestyle.

create function ojs_router.remote_ping(nodes int[]) returns setof int language plproxy as $$
    cluster 'ojs'; run on unnest(nodes);
    select 1;
$$;

-- What join_node checks.
create function ojs_router.remote_identity(node int, out node_id int, out version text, out recovery boolean,
    out may boolean, out tenancy text, out datestyle text) returns record
language plproxy as $$
    cluster 'ojs'; run on node;
    select pg_catalog.current_setting('ojs.node_id')::int4 as node_id, ojs.version() as version,
        pg_catalog.pg_is_in_recovery() as recovery,
        pg_catalog.pg_has_role('ojs_producer', 'usage') and pg_catalog.pg_has_role('ojs_worker', 'usage')
            and pg_catalog.pg_has_role('ojs_observer', 'usage') as may,
        pg_catalog.current_setting('ojs.tenancy') as tenancy,
        pg_catalog.current_setting('datestyle') as datestyle;
$$;

create function ojs_router.remote_has_job(nodes int[], id uuid) returns setof int language plproxy as $$
    cluster 'ojs'; run on unnest(nodes);
    select pg_catalog.current_setting('ojs.node_id')::int4
    from ojs.results(array[id]::uuid[]) r where r.state is not null;
$$;
create function ojs_router.remote_has_jobs(nodes int[], ids uuid[], out node int, out id uuid) returns setof record
    language plproxy as $$
    cluster 'ojs'; run on unnest(nodes);
    select pg_catalog.current_setting('ojs.node_id')::int4 as node, r.id
    from ojs.results(ids) r where r.state is not null;
$$;

create function ojs_router.remote_key_held(node int, key text) returns boolean language plproxy as $$
    cluster 'ojs'; run on node;
    select ojs.key_held(key);
$$;
-- The transactions of routers' calls under way that may make a job with a key.
create function ojs_router.remote_pushes(node int) returns text[] language plproxy as $$
    cluster 'ojs'; run on node;
    select array(
        select pg_catalog.concat_ws(' ', a.pid, a.xact_start) from pg_catalog.pg_stat_activity a
        where a.datname = pg_catalog.current_database() and a.usename = current_user and a.xact_start is not null
            and a.query ~ 'ojs[.](push|http)');
$$;
create function ojs_router.remote_held_slots(nodes int[], out node int, out slot int) returns setof record
    language plproxy as $$
    cluster 'ojs'; run on unnest(nodes);
    select pg_catalog.current_setting('ojs.node_id')::int4 as node, h as slot from ojs.held_slots() h;
$$;
create function ojs_router.remote_fingerprints(node int, jobs jsonb) returns text[] language plproxy as $$
    cluster 'ojs'; run on node;
    select array(
        select ojs.fingerprint(j) from pg_catalog.jsonb_array_elements(jobs) with ordinality e(j, n) order by n);
$$;

create function ojs_router.remote_waiting(nodes int[], out node int, out queue text, out ready bigint)
    returns setof record language plproxy as $$
    cluster 'ojs'; run on unnest(nodes);
    select pg_catalog.current_setting('ojs.node_id')::int4 as node, w.queue, w.ready from ojs.waiting() w;
$$;
create function ojs_router.remote_has_queue(nodes int[], queue text) returns setof int language plproxy as $$
    cluster 'ojs'; run on unnest(nodes);
    select 1 from ojs.queues q where q.name = queue;
$$;
