-- node.sql: a node of several servers behind a router: its number in ids, the jobs that wait, the keys that it holds.
-- The router is an extension of its own (router/). C++: src/pg/uuid.cpp.

create function ojs.node_of(id uuid) returns int
language sql immutable strict parallel safe set search_path = pg_catalog, pg_temp as $$
    select case when get_byte(uuid_send(id), 6) >> 4 = 7
        then (get_byte(uuid_send(id), 8) & 63) << 8 | get_byte(uuid_send(id), 9) end
$$;
comment on function ojs.node_of(uuid)
    is 'The node number that an id carries; without meaning if the id was made elsewhere or with ojs.node_id = 0';

-- A queue in maintenance hands out nothing, and neither does a paused one.
create function ojs.waiting(out queue text, out ready bigint) returns setof record
language plpgsql volatile parallel unsafe security definer rows 10 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    if pg_is_in_recovery() or exists (select from ojs_store.maintenance) then
        return;
    end if;
    return query
        with q as materialized (
            select a.name, ojs_store.queue_id(a.name) as id from ojs.queues a where a.state <> 'paused'
        )
        select ojs_store.shown_queue(q.name), c.ready
        from ojs_store.queue_rows(array(select q.id from q)) c join q on q.id = c.queue
        where c.ready > 0;
end $$;
comment on function ojs.waiting() is 'How many jobs claims could get now, by queue; queues without one are left out';

create function ojs.key_slot(key text) returns int
language sql immutable strict parallel safe set search_path = pg_catalog, pg_temp as $$
    select (get_byte(h, 0) << 4) | (get_byte(h, 1) >> 4) from sha256(convert_to(key, 'UTF8')) h
$$;
comment on function ojs.key_slot(text)
    is 'The slot (0 to 4095) of a key by which a router chooses a node';

-- Lines of ordering keys are lost in a crash: without this a key would seem free until they are back.
create function ojs_store.need_hot_set() returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if not ojs.ready() then
        perform ojs_store.raise('UNAVAILABLE', 'this server cannot tell yet which keys it holds', null,
            'It is a standby, or has crashed a moment ago. Try again.');
    end if;
end $$;

create function ojs.key_held(key text) returns boolean
language plpgsql volatile strict parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.need_hot_set();
    return case when ojs_store.caller_tenant() is not null then false -- for the router, which acts for nobody
        when key ~ '^[0-9a-f]{64}$'
            then exists (select from ojs_store.unique_key u where u.fingerprint = decode(key, 'hex') and u.held)
        when key like 'order: %'
            then ojs_store.first_in_line(ojs_store.name_hash(ojs_store.queue_id(split_part($1, ' ', 2)) || ':'
                || substr($1, 9 + length(split_part($1, ' ', 2))))) is not null
        when key like 'idempotency: %'
            then exists (select from ojs_store.idempotency i where i.key = substr($1, 14)
                and i.expires_at > ojs_store.now())
        else exists (
            select from ojs.deduplication_keys d where d.queue = split_part($1, ' ', 1)
                and d.key = substr($1, strpos($1, ' ') + 1))
    end;
end $$;
comment on function ojs.key_held(text)
    is 'Whether this node holds a key, as the router writes it: a fingerprint, a deduplication key, an ordering key';

create function ojs.held_slots() returns setof int
language plpgsql volatile parallel unsafe security definer rows 4096 set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.need_hot_set();
    return query select s.slot from (
    select ojs.key_slot(encode(u.fingerprint, 'hex')) from ojs_store.unique_key u where u.held
    union
    select ojs.key_slot(d.queue || ' ' || d.key) from ojs.deduplication_keys d
    union
    select ojs.key_slot('order: ' || (ojs_store.look(l.job_id)).queue || ' '
        || ((ojs_store.look(l.job_id)).extra ->> 'ordering_key'))
    from (select distinct on (o.key) o.job_id from ojs_store.ordering_line o) l
    union
    select ojs.key_slot('idempotency: ' || i.key) from ojs_store.idempotency i where i.expires_at > ojs_store.now()
    ) s (slot) where ojs_store.caller_tenant() is null;
end $$;
comment on function ojs.held_slots() is 'The slots of all keys that this node holds; reads all of them';
