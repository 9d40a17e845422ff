-- nodes.sql: which node a call goes to.
--
-- What every push, claim and ack calls here has no search_path of its own: to set one costs as much as the rest. Its
-- callers have pinned theirs, and nobody else may call it.

-- The foreign server has one option per node number, so that a partition of PL/Proxy is a node. Partition 0, and
-- numbers that are not used, lead nowhere.
create function ojs_router.update_server() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    present jsonb := (select coalesce(jsonb_object_agg(split_part(o, '=', 1), substr(o, strpos(o, '=') + 1)), '{}')
        from pg_foreign_server s, unnest(s.srvoptions) o where s.srvname = 'ojs');
    wanted jsonb;
    changes text;
    list record;
begin
    for list in
        select v.name, v.known, v.nodes
        from (
            select 'present_nodes', ojs_router.present_nodes(), array(
                select number from ojs_router.node where state <> 'removed' order by number)
            union all select 'active_nodes', ojs_router.active_nodes(), array(
                select number from ojs_router.node where state = 'active' order by number)) v(name, known, nodes)
        where v.known <> v.nodes
    loop
        execute format('create or replace function ojs_router.%I() returns int[] language sql stable parallel safe '
            'begin atomic select %L::int[]; end', list.name, list.nodes);
    end loop;
    select jsonb_object_agg('p' || i, coalesce(
        -- A server that is gone without a word is found out within seconds, by TCP.
        case when n.conninfo like '%tcp_user_timeout%' then '' else 'tcp_user_timeout=2000 ' end
        || case when n.conninfo like '%keepalives%' then '' else
            'keepalives_idle=2 keepalives_interval=1 keepalives_count=3 ' end
        || case when n.conninfo like '%application_name%' then '' else 'application_name=ojs_router ' end
            || n.conninfo, 'host=/nonexistent')) into wanted
    from generate_series(0, (select coalesce(max(number), 0) from ojs_router.node)) i
    left join ojs_router.node n on n.number = i and n.state <> 'removed';
    select string_agg(case when w.value is null then format('drop %I', p.key) when p.value is null
        then format('add %I %L', w.key, w.value)
        else format('set %I %L', w.key, w.value) end, ', ' order by substr(coalesce(w.key, p.key), 2)::int)
    into changes
    from (select * from jsonb_each_text(present) where key ~ '^p[0-9]+$') p full join jsonb_each_text(wanted) w
        using (key)
    where w.value is distinct from p.value;
    if changes is not null then
        execute 'alter server ojs options (' || changes || ')';
    end if;
    return null;
end $$;
create trigger update_server after insert or update or delete on ojs_router.node
    for each statement execute function ojs_router.update_server();
do $$
begin
    if (select tgenabled <> 'A' from pg_trigger where tgname = 'update_server') then -- an update locks nothing for it
        alter table ojs_router.node enable always trigger update_server;
    end if;
end $$;

-- A session remembers which nodes did not answer, and asks them again after this time.
create function ojs_router.retry_after() returns interval language sql immutable parallel safe begin atomic select
    interval '5 seconds'; end;

create function ojs_router.remember_missing(node int) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform set_config('ojs_router.missing', (coalesce(nullif(current_setting('ojs_router.missing', true), ''),
        '{}')::jsonb
        || jsonb_build_object(node, extract(epoch from clock_timestamp())))::text, false);
end $$;

create function ojs_router.missing_here() returns int[]
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    return array(select key::int
        from jsonb_each_text(coalesce(nullif(current_setting('ojs_router.missing', true), ''), '{}')::jsonb)
        where value::numeric between extract(epoch from clock_timestamp() - ojs_router.retry_after())
            and extract(epoch from clock_timestamp()));
end $$;

-- Whether ojs_router.watch() has looked within a second, and which nodes have not answered lately, to it or to this
-- session. What was seen later than now is from before the clock was set back.
create function ojs_router.status_of_nodes() returns ojs_router.node_status
language plpgsql volatile parallel unsafe as $$
declare
    status ojs_router.node_status;
begin
    if ojs_router.acts_for_tenant() then
        perform ojs_router.check_tenant();
    end if;
    select w.at > clock_timestamp() - interval '1 second', w.missing into status from ojs_router.watched w
    where w.at between clock_timestamp() - ojs_router.retry_after() and clock_timestamp();
    if status.watched is null then
        status := (false, '{}');
    end if;
    if current_setting('ojs_router.missing', true) <> '' then
        status.missing := status.missing || ojs_router.missing_here();
    end if;
    return status;
end $$;
create function ojs_router.missing() returns int[] language sql volatile parallel unsafe
begin atomic
    select (ojs_router.status_of_nodes()).missing;
end;
create function ojs_router.is_watched() returns boolean language sql volatile parallel unsafe
begin atomic
    select (ojs_router.status_of_nodes()).watched;
end;

create function ojs_router.without(nodes int[], missing int[]) returns int[]
language plpgsql immutable parallel safe as $$
begin
    if missing = '{}' then
        return nodes;
    end if;
    return array(select n from unnest(nodes) n where n <> all (missing));
end $$;

-- Nodes that are asked: all but those that are removed, and those that are missing.
create function ojs_router.live_nodes() returns int[] language sql volatile parallel unsafe
begin atomic
    select ojs_router.without(ojs_router.present_nodes(), ojs_router.missing());
end;

-- Of these nodes those that answer. They are asked at once; where that fails, each half by itself. A single one is
-- asked again: its connection may be one that the failure of another node has spoilt. Not so where a pooler waited for
-- the node in vain.
create function ojs_router.answering(nodes int[], again boolean default true) returns int[]
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    n int := cardinality(nodes);
    failure ojs_router.failure;
begin
    if n = 0 then
        return nodes;
    end if;
    perform from ojs_router.remote_ping(nodes);
    return nodes;
exception when others or query_canceled then
    get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text;
    if n > 1 and failure.state <> '57014' then
        return ojs_router.answering(nodes[:n / 2]) || ojs_router.answering(nodes[n / 2 + 1:]);
    elsif not ojs_router.is_down(failure) then
        perform ojs_router.raise_failure(nodes[1], failure);
    elsif again and not ojs_router.timed_out(failure) then
        return ojs_router.answering(nodes, false);
    end if;
    raise log 'ojs_router: node % does not answer: %', nodes[1], failure.message;
    perform ojs_router.remember_missing(nodes[1]);
    return '{}';
end $$;

-- After a call of several nodes failed: those with which to try again. Raises where that would not help.
create function ojs_router.answering_after(nodes int[], failure ojs_router.failure, attempt int) returns int[]
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if not ojs_router.is_down(failure) or attempt > 3 then
        perform ojs_router.raise_failure(nodes[1], failure);
    end if;
    return ojs_router.answering(nodes);
end $$;

-- Says which nodes are missing in an answer.
create function ojs_router.warn_partial(asked int[]) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    missing int[] := array(select number from ojs_router.node where state <> 'removed' and number <> all (asked)
        order by number);
begin
    if missing <> '{}' then
        raise warning 'the answer is partial: no answer of node %', array_to_string(missing, ', ')
            using hint = 'What is on that node is missing in it. Ask again when the node is back.';
    end if;
end $$;

-- All nodes; raises where one does not answer, since what is to hold everywhere must reach all of them.
create function ojs_router.all_nodes() returns int[]
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    nodes int[];
    live int[];
    missing int[];
begin
    perform ojs_router.check_tenant();
    -- A node that joins is to have what is set meanwhile: one after the other.
    lock table ojs_router.node in row exclusive mode;
    nodes := array(select number from ojs_router.node where state <> 'removed' order by number);
    perform ojs_router.check_any(nodes);
    live := ojs_router.answering(nodes);
    missing := array(select n from unnest(nodes) n where n <> all (live));
    if missing <> '{}' and coalesce(current_setting('ojs_router.allow_partial', true), '') not in ('on', 'true', '1')
        then
        perform ojs_router.raise('UNAVAILABLE', format('node %s does not answer', array_to_string(missing, ', ')),
            jsonb_build_object('nodes', to_jsonb(missing)),
            'Nothing was changed, on no node. With ojs_router.allow_partial = on the others are changed, and the call '
                'is to be repeated later.');
    end if;
    return live;
end $$;

create function ojs_router.check_any(nodes int[]) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if nodes = '{}' then
        perform ojs_router.raise('UNAVAILABLE', case when exists (select from ojs_router.node where state <> 'removed')
            then 'no node answers' else 'the router has no node' end, '{}',
                'An administrator adds nodes with ojs_router.join_node.');
    end if;
end $$;

-- A node for what may be anywhere: the caller's choice, or any that takes new jobs.
create function ojs_router.any_node() returns int
language plpgsql volatile parallel unsafe as $$
declare
    chosen text := current_setting('ojs_router.node', true);
    missing int[] := ojs_router.missing();
    nodes int[] := ojs_router.active_nodes();
begin
    if chosen <> '' then
        if chosen <> all (ojs_router.active_nodes()::text[]) then
            perform ojs_router.raise('INVALID_PAYLOAD', format('ojs_router.node: there is no active node %s',
                left(chosen, 20)),
                '{"field": "ojs_router.node"}',
                    'Set it to the number of an active node (ojs_router.nodes), or reset it.');
        end if;
        return chosen;
    end if;
    if missing <> '{}' then
        nodes := ojs_router.without(nodes, missing);
    end if;
    if nodes = '{}' then
        perform ojs_router.check_any(ojs_router.present_nodes());
        perform ojs_router.raise('UNAVAILABLE', 'no node takes new jobs', '{}',
            'All are draining or do not answer. Try again later.');
    end if;
    return nodes[1 + floor(random() * cardinality(nodes))];
end $$;

-- A node that answers, for what any of them can do.
create function ojs_router.random_node() returns int
language plpgsql volatile parallel unsafe as $$
declare
    nodes int[] := ojs_router.live_nodes();
begin
    if nodes = '{}' then
        perform ojs_router.check_any(nodes);
    end if;
    return nodes[1 + floor(random() * cardinality(nodes))];
end $$;

-- Where a job is: on the node that its id names. Null where that is none, and for a tenant, whom what is called next
-- refuses.
create function ojs_router.named_node(id uuid) returns int language sql stable parallel safe
begin atomic
    select case when not ojs_router.acts_for_tenant()
        and ((get_byte(uuid_send(id), 8) & 63) << 8 | get_byte(uuid_send(id), 9)) = any (ojs_router.present_nodes())
        then (get_byte(uuid_send(id), 8) & 63) << 8 | get_byte(uuid_send(id), 9) end;
end;

-- A job whose id does not name its node: all are asked. Null if it is on none.
create function ojs_router.found_node(id uuid) returns int
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    nodes int[] := ojs_router.live_nodes();
    node int;
    failure ojs_router.failure;
begin
    for attempt in 1..4 loop
        begin
            select f into node from ojs_router.remote_has_job(nodes, id) f limit 1;
            exit;
        exception when others or query_canceled then
            get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
                failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
            nodes := ojs_router.answering_after(nodes, failure, attempt);
        end;
    end loop;
    if node is null and cardinality(nodes) < (select count(*) from ojs_router.node where state <> 'removed') then
        perform ojs_router.raise('UNAVAILABLE', format('job %s is on no node that answers', id),
            jsonb_build_object('job_id', id),
            'Not all nodes answer, and it may be on another one. Try again later.');
    end if;
    return node;
end $$;

create function ojs_router.home(id uuid) returns int language sql volatile parallel unsafe
begin atomic
    -- The last one says that there is no such job.
    select coalesce(ojs_router.named_node(id), ojs_router.found_node(id), ojs_router.any_node());
end;

-- Like home(), but for calls that a node answers even if it does not know the job.
create function ojs_router.holding_node(id uuid) returns int
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    node int := ojs_router.named_node(id);
    failure ojs_router.failure;
begin
    begin
        if node is not null and exists (select from ojs_router.remote_has_job(array[node], id)) then
            return node;
        end if;
    exception when others or query_canceled then
        get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
            failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
        perform ojs_router.raise_failure(node, failure);
    end;
    return coalesce(ojs_router.found_node(id), node, ojs_router.any_node());
end $$;

-- After a call about a job failed on a node: another node on which the job is. Raises where there is none.
create function ojs_router.other_home(id uuid, node int, failure ojs_router.failure) returns int
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    other int;
begin
    if failure.state = 'OJ300' and id is not null then
        other := ojs_router.found_node(id);
    end if;
    if other is null or other = node then
        perform ojs_router.raise_failure(node, failure);
    end if;
    return other;
end $$;

-- Waits for the pushes that are under way on a node, before it is asked what keys it holds: one may be of a session
-- that has ended, and with it its locks here.
create function ojs_router.await_pushes(node int) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    ends timestamptz := clock_timestamp() + interval '30 seconds';
    pushes text[] := ojs_router.remote_pushes(node);
begin
    while pushes <> '{}' loop
        if clock_timestamp() > ends then
            perform ojs_router.raise('UNAVAILABLE', format('pushes are under way on node %s for 30 s', node),
                jsonb_build_object('node', node), 'Slots are moving from it, and it cannot tell yet which keys it '
                    'holds. Try again later.');
        end if;
        perform pg_sleep(0.01);
        pushes := array(select unnest(pushes) intersect select unnest(ojs_router.remote_pushes(node)));
    end loop;
end $$;

-- The node that holds a key. Where its slot has moved and the node before still holds the key, that one.
create function ojs_router.key_node(key text) returns int
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    h bytea := sha256(convert_to(key, 'UTF8'));
    s ojs_router.slot;
    failure ojs_router.failure;
    held boolean;
begin
    perform ojs_router.check_tenant();
    select * into s from ojs_router.slot where slot = (get_byte(h, 0) << 4) | (get_byte(h, 1) >> 4);
    if s.node is null then
        perform ojs_router.check_any('{}');
    end if;
    if s.previous is null then
        return s.node;
    end if;
    -- One at a time per slot, until the end of the transaction: who finds the key free on the old node makes it on the
    -- new one before anybody else looks; and settle() passes over a slot while a push of it is under way.
    select * into s from ojs_router.slot where slot = s.slot for update;
    if s.previous is null then
        return s.node;
    end if;
    begin
        perform ojs_router.await_pushes(s.previous);
        if key like 'id: %' then
            held := exists (select from ojs_router.remote_has_job(array[s.previous], substr(key, 5)::uuid));
        else
            held := ojs_router.remote_key_held(s.previous, key);
        end if;
    exception when others or query_canceled then
        get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
            failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
        perform ojs_router.raise_failure(s.previous, failure);
    end;
    return case when held then s.previous else s.node end;
end $$;
