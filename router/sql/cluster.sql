-- cluster.sql: adding nodes, draining and removing them; keeping what claims look at.

-- Waits until no push with a key is under way, and keeps others from beginning until this transaction ends. Pushes wait
-- behind it, without which it would never have its turn among many, but for a moment only: one may be in an open
-- transaction.
create function ojs_router.change_slots() returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp set lock_timeout = '200ms' as $$
begin
    for i in 1..30 loop
        begin
            lock table ojs_router.slot in exclusive mode;
            return;
        exception when lock_not_available then
            perform pg_sleep(0.8);
        end;
    end loop;
    perform ojs_router.raise('UNAVAILABLE', 'pushes with keys are under way in open transactions', '{}',
        'A transaction that has pushed a job with a key through the router is open for 30 s. End it, and try again.');
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

-- Raises unless the server of a node can be it.
create function ojs_router.check_identity(node int) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    identity record;
    failure ojs_router.failure;
begin
    begin
        identity := ojs_router.remote_identity(node);
    exception when others then
        get stacked diagnostics failure.message = message_text;
        perform ojs_router.raise('UNAVAILABLE', format('the node cannot be reached: %s', failure.message), '{}',
            'Check conninfo and the user mapping of ojs_router: the node needs a login role ojs_router in '
                'ojs_producer, ojs_worker, ojs_observer and ojs_admin.');
    end;
    if identity.recovery then
        perform ojs_router.raise('INVALID_PAYLOAD', 'the server is a standby', '{"field": "conninfo"}',
            'Name its primary, or promote it.');
    elsif not identity.may then
        perform ojs_router.raise('INVALID_PAYLOAD', 'the login role of the router is missing roles on the node',
            '{"field": "conninfo"}',
            'On the node: grant ojs_producer, ojs_worker, ojs_observer, ojs_admin to ojs_router');
    elsif identity.version <> ojs_router.version() then
        perform ojs_router.raise('INVALID_PAYLOAD', format('the node has ojs %s, the router is of %s', identity.version,
            ojs_router.version()),
            '{"field": "conninfo"}', 'Use the same version on all servers.');
    elsif identity.datestyle not like 'ISO,%' then
        perform ojs_router.raise('INVALID_PAYLOAD', format('datestyle of the node is %s', identity.datestyle),
            '{"field": "datestyle"}', 'Moments would be misread. On the node: alter role ojs_router in database NAME '
                'set datestyle = ''ISO''; then try again.');
    elsif identity.tenancy <> 'off' then
        perform ojs_router.raise('UNSUPPORTED_FEATURE', 'the node has tenants, and a router acts for none',
            '{"feature": "tenants", "field": "ojs.tenancy"}',
            'The node sees one role, so each caller of the router would act for all tenants. Set ojs.tenancy to off '
                'there, or leave the node out.');
    elsif identity.node_id <> node then
        perform ojs_router.raise('INVALID_PAYLOAD', format('ojs.node_id of the node is %s', identity.node_id),
            '{"field": "ojs.node_id"}',
            format('It is to be %s. On a new node: alter database NAME set ojs.node_id = %s; then try again.',
                node, node));
    end if;
end $$;

-- Everybody who may connect to the router can read the options of a foreign server.
create function ojs_router.check_conninfo(conninfo text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if conninfo collate "C" ~* 'password[[:space:]]*=' then
        perform ojs_router.raise('INVALID_PAYLOAD', 'conninfo must not hold a password', '{"field": "conninfo"}',
            'Others could read it. Say: alter user mapping for ojs_router server ojs options (add password ''...'')');
    end if;
end $$;

create function ojs_router.join_node(conninfo text) returns int
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    nodes int[];
    new_number int;
    bounds jsonb;
begin
    perform ojs_router.check_conninfo(conninfo);
    lock table ojs_router.node in share row exclusive mode;
    nodes := array(select number from ojs_router.node where state <> 'removed' order by state, number);
    new_number := (select coalesce(max(number), 0) + 1 from ojs_router.node);
    insert into ojs_router.node (number, conninfo) values (new_number, join_node.conninfo);
    perform ojs_router.check_identity(new_number);
    if nodes <> '{}' then
        bounds := ojs_router.common_bounds(nodes, cardinality(nodes) + 1);
        perform ojs_router.copy_settings(nodes[1], new_number);
    end if;
    -- From here on pushes with keys wait. Before settle(): its rows locked, a push would wait and be waited for.
    perform ojs_router.change_slots();
    if exists (select from ojs_router.slot where previous is not null) and ojs_router.settle() > 0 then
        perform ojs_router.raise('UNAVAILABLE', 'slots are moving still', '{}',
            'Old nodes hold keys of them: see ojs_router.slots. Wait until ojs_router.settle() returns 0.');
    end if;
    perform ojs_router.spread_slots();
    perform ojs_router.share_bounds(nodes || new_number, bounds);
    return new_number;
end $$;
comment on function ojs_router.join_node(text) is
    'Adds a server with ojs as a node, by its connection string; returns its number';

-- After a failover to another address. The number stays.
create function ojs_router.set_conninfo(node int, conninfo text) returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    perform ojs_router.check_conninfo(conninfo);
    update ojs_router.node n set conninfo = set_conninfo.conninfo where n.number = node and state <> 'removed';
    if not found then
        perform ojs_router.raise('NOT_FOUND', format('there is no node %s', node), '{}', 'See ojs_router.nodes.');
    end if;
    perform set_config('ojs_router.missing', '', false);
    begin
        perform ojs_router.check_identity(node);
    exception when sqlstate '57P03' then
        raise warning 'node % does not answer there', node using hint = 'Calls about its jobs go there from now on.';
    end;
end $$;
comment on function ojs_router.set_conninfo(int, text)
    is 'Where a node is now, after a failover; the number and the jobs stay';

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
    perform ojs_router.change_slots(); -- before settle(), as in join_node
    perform ojs_router.settle();
    if exists (select from ojs_router.slot where previous is not null) then
        perform ojs_router.raise('UNAVAILABLE', 'slots are moving still', '{}',
            'Wait until ojs_router.settle() returns 0.');
    end if;
    update ojs_router.node set state = 'draining' where number = node and state = 'active';
    if not found then
        perform ojs_router.raise('NOT_FOUND', format('there is no active node %s', node), '{}',
            'See ojs_router.nodes.');
    end if;
    perform ojs_router.spread_slots();
    begin
        perform ojs_router.move_crons(node);
    exception when sqlstate '57P03' then
        raise warning 'cron entries of node % may be there still: %', node, sqlerrm
            using hint = 'ojs_router.remove_node moves them.';
    end;
end $$;
comment on function ojs_router.drain_node(int) is 'Has a node take no new jobs; those that it has go on';

-- Cron entries go to the nodes of their names. None is ever enabled on two nodes; one whose move is interrupted stays
-- disabled.
create function ojs_router.move_crons(source int) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    c record;
    target int := source;
    failure ojs_router.failure;
begin
    for c in select * from ojs_router.remote_crons(array[source]) loop
        select s.node into target from ojs_router.slot s where s.slot = ojs.key_slot('cron: ' || c.name);
        perform ojs_router.remote_schedule(target, c.name, c.expression, c.job, jsonb_build_object('timezone',
            c.timezone, 'overlap_policy', c.overlap_policy, 'description', c.description, 'enabled', false));
        perform ojs_router.remote_unschedule(source, c.name);
        if c.enabled then
            perform ojs_router.remote_schedule(target, c.name, null, null, '{"enabled": true}');
        end if;
    end loop;
exception when others or query_canceled then
    get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
        failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
    perform ojs_router.raise_failure(target, failure);
end $$;

-- Waits until every transaction that is under way now has ended: its calls may have chosen a node that has been drained
-- since.
create function ojs_router.await_older_transactions() returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    older text[] := array(select l.virtualtransaction from pg_locks l
        where l.locktype = 'virtualxid' and l.pid <> pg_backend_pid());
begin
    for i in 1..1200 loop
        if not exists (select from pg_locks l
            where l.locktype = 'virtualxid' and l.virtualtransaction = any (older)) then
            return;
        end if;
        perform pg_sleep(0.05);
    end loop;
    perform ojs_router.raise('UNAVAILABLE', 'transactions from before this call have been open for a minute', '{}',
        'They may have called the node. End them, and try again.');
end $$;

create function ojs_router.remove_node(node int) returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    state text := (select n.state from ojs_router.node n where n.number = node);
    open_jobs bigint;
    failure ojs_router.failure;
begin
    if state is distinct from 'draining' then
        perform ojs_router.raise(case when state = 'active' then 'INVALID_PAYLOAD' else 'NOT_FOUND' end,
            format('there is no draining node %s', node), '{"field": "node"}',
            'See ojs_router.nodes. A node is drained first: ojs_router.drain_node.');
    end if;
    perform ojs_router.await_older_transactions();
    lock table ojs_router.node in share row exclusive mode;
    if ojs_router.settle() > 0 and exists (select from ojs_router.slot s where s.previous = node) then
        perform ojs_router.raise('UNAVAILABLE', format('node %s holds keys still', node), '{}',
            'See ojs_router.slots. Wait until ojs_router.settle() returns 0.');
    end if;
    begin
        perform ojs_router.move_crons(node);
        select sum(q.available + q.active + q.scheduled + q.retryable + q.pending) into open_jobs
            from ojs_router.remote_queue_stats(array[node], null) q;
    exception when others or query_canceled then
        get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
            failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
        perform ojs_router.raise_failure(node, failure);
    end;
    if open_jobs > 0 then
        perform ojs_router.raise('UNAVAILABLE', format('node %s has %s open jobs', node, open_jobs),
            jsonb_build_object('node', node, 'open_jobs', open_jobs),
            'Wait until they are done, or move its database to another server (docs/how-to/scaling-out.md).');
    end if;
    update ojs_router.node n set state = 'removed' where n.number = node;
end $$;
comment on function ojs_router.remove_node(int)
    is 'Takes a drained node out for good; refused while it has open jobs or holds keys';

create function ojs_router.settle() returns int
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    -- Locked before the nodes are asked: what a push that is under way may still make there would not be seen.
    slots int[] := array(select l.slot from (
        select s.slot from ojs_router.slot s where s.previous is not null order by s.slot for update skip locked) l);
    asked int;
    held int[];
    failure ojs_router.failure;
begin
    for asked in select distinct s.previous from ojs_router.slot s where s.slot = any (slots) order by 1 loop
        begin
            perform ojs_router.await_pushes(asked);
            held := array(select h.slot from ojs_router.remote_held_slots(array[asked]) h);
        exception when others or query_canceled then
            get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
                failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
            perform ojs_router.raise_failure(asked, failure);
        end;
        update ojs_router.slot s set previous = null
        where s.previous = asked and s.slot = any (slots) and s.slot <> all (held);
    end loop;
    return (select count(*) from ojs_router.slot where previous is not null);
end $$;
comment on function ojs_router.settle() is
    'Ends the move of slots of which the node before holds no key any more; returns how many are moving still';

-- Looks at all nodes and writes down which have work and which do not answer, for claims of all sessions. While nodes
-- are asked, nothing is locked or written: one that does not answer may take long.
create function ojs_router.refresh_work() returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    seen jsonb;
begin
    if exists (select from ojs_router.watched w where w.pid <> pg_backend_pid()
        and w.at between clock_timestamp() - interval '1 second' and clock_timestamp()) then
        return; -- another session watches
    end if;
    -- By what this session knows: what it wrote is of nodes that are asked again now and then.
    seen := ojs_router.look_for_work(nodes => ojs_router.without(ojs_router.present_nodes(),
        ojs_router.missing_here()));
    perform from ojs_router.watched for update skip locked;
    if not found and exists (select from ojs_router.watched) then
        return; -- another session has looked as well, and writes
    end if;
    -- As a node tells of work, whoever listens: the gateway, and workers.
    perform pg_notify('ojs', q.key) from jsonb_each(seen) q left join ojs_router.work w on w.queue = q.key
    where (select sum(c.value::bigint) from jsonb_each_text(q.value) c)
        > coalesce((select sum(r) from unnest(w.ready) r), 0);
    delete from ojs_router.work w where not seen ? w.queue;
    insert into ojs_router.work as w
    select q.key, array_agg(c.key::int order by c.key::int), array_agg(c.value::bigint order by c.key::int)
    from jsonb_each(seen) q, jsonb_each_text(q.value) c group by q.key
    on conflict (queue) do update set nodes = excluded.nodes, ready = excluded.ready
    where (w.nodes, w.ready) is distinct from (excluded.nodes, excluded.ready);
    insert into ojs_router.watched as w (at, missing, pid)
    values (clock_timestamp(), ojs_router.missing_here(), pg_backend_pid())
    on conflict (one) do update set at = excluded.at, missing = excluded.missing, pid = excluded.pid;
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
comment on procedure ojs_router.watch(int, interval)
    is 'Keeps what claims go by: which nodes have work, and which do not answer; runs until it is ended';

create view ojs_router.nodes as
select n.number, n.state, n.joined_at, count(s.slot) as slots, count(s.previous) as moving_slots
from ojs_router.node n left join ojs_router.slot s on s.node = n.number group by n.number;
comment on view ojs_router.nodes is 'The nodes, and how many slots of keys each has';
create view ojs_router.slots as select slot, node, previous from ojs_router.slot;
comment on view ojs_router.slots is 'Which node has the keys of a slot, and which had them before';
