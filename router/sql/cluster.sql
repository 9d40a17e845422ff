-- cluster.sql: adding nodes, draining and removing them; keeping what claims look at.

-- Waits until no push with a key is under way, and keeps others from beginning until this transaction ends. It asks
-- again and
-- again instead of queueing, behind which pushes would wait.
create function ojs_router.change_slots() returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    for i in 1..600 loop
        if pg_try_advisory_xact_lock(1869771378, 0) then
            return;
        end if;
        perform pg_sleep(0.05);
    end loop;
    perform ojs_router.raise('UNAVAILABLE', 'pushes with keys are under way in open transactions', '{}',
        'A transaction that has pushed a job with a key through the router is open for 30 s. End it, and try again.');
end $$;

-- The queues of one node, on another.
create function ojs_router.copy_queues(source int, target int) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    q record;
begin
    for q in select r.name, r.state, r.config from ojs_router.remote_queues(array[source]) r order by r.name loop
        perform ojs_router.remote_create_queue(target, q.name, q.config);
        if q.state = 'paused' then
            perform ojs_router.remote_pause_queue(target, q.name);
        elsif q.state = 'draining' then
            perform ojs_router.remote_drain_queue(target, q.name);
        end if;
    end loop;
end $$;

-- Bounds of queues on all nodes together, shared out anew.
create function ojs_router.share_bounds() returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    nodes int[] := array(select number from ojs_router.node where state <> 'removed' order by number);
    bound record;
begin
    for bound in
        select r.name, k.key, sum((r.config ->> k.key)::bigint)::bigint as total
        from ojs_router.remote_queues(nodes) r, unnest(array['concurrency', 'max_size', 'max_size_bytes']) k(key)
        where (r.config ->> k.key)::bigint > 0 group by 1, 2
    loop
        for i in 1..cardinality(nodes) loop
            perform ojs_router.remote_configure_queue(nodes[i], bound.name,
                ojs_router.share(jsonb_build_object(bound.key, bound.total), i, cardinality(nodes)));
        end loop;
    end loop;
end $$;

-- Slots evenly among the active nodes, moving as few as need be. A slot that is moving already goes back or stays.
create function ojs_router.spread_slots() returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    nodes int[] := array(select number from ojs_router.node where state = 'active' order by number);
    most int := ceil(4096.0 / cardinality(nodes));
    target int;
begin
    if not exists (select from ojs_router.slot) then
        insert into ojs_router.slot (slot, node) select s, nodes[1] from generate_series(0, 4095) s;
        return;
    end if;
    foreach target in array nodes loop
        update ojs_router.slot s set node = target, previous = s.node
        where s.slot in (
            select r.slot
            from (
                select slot, node, previous, row_number() over (partition by node order by slot) as rank
                    from ojs_router.slot) r
            where r.node <> target and r.previous is null and (r.rank > most or r.node <> all (nodes))
            order by r.node = any (nodes), r.rank desc
            limit greatest(0, most - (select count(*) from ojs_router.slot c where c.node = target)));
    end loop;
end $$;

create function ojs_router.join_node(conninfo text) returns int
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    new_number int := (select coalesce(max(number), 0) + 1 from ojs_router.node);
    identity record;
    failure ojs_router.failure;
    first int := (select min(number) from ojs_router.node where state = 'active');
begin
    lock table ojs_router.node in share row exclusive mode;
    if exists (select from ojs_router.slot where previous is not null) then
        perform ojs_router.settle();
    end if;
    if exists (select from ojs_router.slot where previous is not null) then
        perform ojs_router.raise('UNAVAILABLE', 'slots are moving still', '{}',
            'Old nodes hold keys of them: see ojs_router.slots. Wait until ojs_router.settle() returns 0.');
    end if;
    insert into ojs_router.node (number, conninfo) values (new_number, join_node.conninfo);
    begin
        identity := ojs_router.remote_identity(new_number);
    exception when others then
        get stacked diagnostics failure.message = message_text;
        perform ojs_router.raise('UNAVAILABLE', format('the node cannot be reached: %s', failure.message), '{}',
            'Check conninfo and the user mapping of ojs_router: the node needs a login role ojs_router in '
                'ojs_producer, ojs_worker, ojs_observer and ojs_admin.');
    end;
    if identity.recovery then
        perform ojs_router.raise('INVALID_PAYLOAD', 'the server is a standby', '{"field": "conninfo"}',
            'Join its primary.');
    elsif not identity.may then
        perform ojs_router.raise('INVALID_PAYLOAD', 'the login role of the router is missing roles on the node',
            '{"field": "conninfo"}',
            'On the node: grant ojs_producer, ojs_worker, ojs_observer, ojs_admin to ojs_router');
    elsif identity.version <> ojs_router.version() then
        perform ojs_router.raise('INVALID_PAYLOAD', format('the node has ojs %s, the router is of %s', identity.version,
            ojs_router.version()),
            '{"field": "conninfo"}', 'Use the same version on all servers.');
    elsif identity.node_id <> new_number then
        perform ojs_router.raise('INVALID_PAYLOAD', format('ojs.node_id of the node is %s', identity.node_id),
            '{"field": "ojs.node_id"}',
            format('The next number is %s. On the node: alter database NAME set ojs.node_id = %s; then try again.',
                new_number, new_number));
    end if;
    if first is not null then
        perform ojs_router.copy_queues(first, new_number);
    end if;
    perform ojs_router.change_slots();
    perform ojs_router.spread_slots();
    if first is not null then
        perform ojs_router.share_bounds();
    end if;
    return new_number;
end $$;
comment on function ojs_router.join_node(text) is
    'Adds a server with ojs as a node, by its connection string; returns its number';

-- After a failover to another address. The number stays.
create function ojs_router.set_conninfo(node int, conninfo text) returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    update ojs_router.node n set conninfo = set_conninfo.conninfo where n.number = node and state <> 'removed';
    if not found then
        perform ojs_router.raise('NOT_FOUND', format('there is no node %s', node), '{}', 'See ojs_router.nodes.');
    end if;
    perform set_config('ojs_router.missing', '', false);
end $$;
comment on function ojs_router.set_conninfo(int,
    text) is 'Where a node is now, after a failover; the number and the jobs stay';

-- A node that takes no new jobs: its keys move to others as they become free; claims go on.
create function ojs_router.drain_node(node int) returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    lock table ojs_router.node in share row exclusive mode;
    if (select count(*) from ojs_router.node where state = 'active' and number <> node) = 0 then
        perform ojs_router.raise('INVALID_PAYLOAD', 'the last active node cannot be drained', '{"field": "node"}',
            'Join another node first.');
    end if;
    perform ojs_router.settle();
    if exists (select from ojs_router.slot where previous is not null) then
        perform ojs_router.raise('UNAVAILABLE', 'slots are moving still', '{}',
            'Wait until ojs_router.settle() returns 0.');
    end if;
    perform ojs_router.change_slots();
    update ojs_router.node set state = 'draining' where number = node and state = 'active';
    if not found then
        perform ojs_router.raise('NOT_FOUND', format('there is no active node %s', node), '{}',
            'See ojs_router.nodes.');
    end if;
    perform ojs_router.spread_slots();
end $$;
comment on function ojs_router.drain_node(int) is 'Has a node take no new jobs; those that it has go on';

create function ojs_router.settle() returns int
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    nodes int[] := array(select distinct previous from ojs_router.slot where previous is not null);
begin
    update ojs_router.slot s set previous = null
    where s.previous is not null
        and not exists (select from ojs_router.remote_held_slots(nodes) h where h.node = s.previous
            and h.slot = s.slot);
    return (select count(*) from ojs_router.slot where previous is not null);
end $$;
comment on function ojs_router.settle() is
    'Ends the move of slots of which the node before holds no key any more; returns how many are moving still';

-- Looks at all nodes and writes down which have work and which do not answer, for claims of all sessions.
create function ojs_router.refresh_work() returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    seen jsonb;
begin
    if not pg_try_advisory_xact_lock(1869771378, 1) then
        return; -- another session watches
    end if;
    -- A node that did not answer is asked again now and then; whoever watches goes by what this session knows.
    update ojs_router.watched set missing = '{}';
    seen := ojs_router.look_for_work();
    delete from ojs_router.work w where not seen ? w.queue;
    insert into ojs_router.work as w
    select q.key, array_agg(c.key::int order by c.key::int), array_agg(c.value::bigint order by c.key::int)
    from jsonb_each(seen) q, jsonb_each_text(q.value) c group by q.key
    on conflict (queue) do update set nodes = excluded.nodes, ready = excluded.ready
    where (w.nodes, w.ready) is distinct from (excluded.nodes, excluded.ready);
    insert into ojs_router.watched as w (at, missing) values (clock_timestamp(), ojs_router.missing())
    on conflict (one) do update set at = excluded.at, missing = excluded.missing;
end $$;

-- For a session of its own. With it, claims of all sessions know where work is without asking the nodes themselves.
create procedure ojs_router.watch(interval_ms int default 100, duration interval default null)
language plpgsql as $$
declare
    ends timestamptz := pg_catalog.clock_timestamp() operator(pg_catalog.+) duration;
begin
    loop
        perform ojs_router.refresh_work();
        commit;
        exit when pg_catalog.clock_timestamp() operator(pg_catalog.>) ends;
        perform pg_catalog.pg_sleep(interval_ms operator(pg_catalog./) 1000.0);
    end loop;
end $$;
comment on procedure ojs_router.watch(int,
    interval) is 'Keeps what claims go by: which nodes have work, and which do not answer; runs until it is ended';

create view ojs_router.nodes as
select n.number, n.state, n.joined_at, n.successor, count(s.slot) as slots, count(s.previous) as moving_slots
from ojs_router.node n left join ojs_router.slot s on s.node = n.number group by n.number;
comment on view ojs_router.nodes is 'The nodes, and how many slots of keys each has';
create view ojs_router.slots as select slot, node, previous from ojs_router.slot;
comment on view ojs_router.slots is 'Which node has the keys of a slot, and which had them before';
