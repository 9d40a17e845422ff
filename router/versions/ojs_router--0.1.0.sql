\echo Use "create extension ojs_router cascade" to load this file. \quit
set local search_path = pg_catalog, pg_temp;

-- ../sql/roles.sql

-- roles.sql: the roles that callers are granted.

-- Roles belong to the whole cluster: made where absent, and kept when the extension goes. One that is there already may
-- be that of another database, or have been made by somebody who means to own the queue later. It must be what we would
-- make: a role that cannot log in and has no power of its own. Members are left to the administrator, who is told of
-- them.
do $$
declare
    role text;
    found_role record;
begin
    foreach role in array array['ojs_producer', 'ojs_worker', 'ojs_observer', 'ojs_admin'] loop
        if not exists (select from pg_catalog.pg_roles where rolname = role) then
            begin
                execute pg_catalog.format('create role %I nologin', role);
            exception when duplicate_object or unique_violation then
                null; -- another database's CREATE EXTENSION was faster
            end;
        end if;
        select r.*, (
                select pg_catalog.string_agg(pg_catalog.quote_ident(u.rolname), ', ' order by u.rolname)
                from pg_catalog.pg_auth_members m join pg_catalog.pg_roles u on u.oid = m.member
                where m.roleid = r.oid and m.admin_option and not u.rolsuper
            ) as administrators
        into found_role from pg_catalog.pg_roles r where r.rolname = role;
        if found_role.rolcanlogin or found_role.rolsuper or found_role.rolcreaterole or found_role.rolcreatedb
            or found_role.rolreplication or found_role.rolbypassrls then
            raise exception 'role "%" exists already, and can log in or has attributes of its own',
                role using errcode = 'duplicate_object',
                hint = pg_catalog.format('Whoever made it would own the queue. If that is right: alter role %I nologin '
                    'nosuperuser nocreaterole '
                    'nocreatedb noreplication nobypassrls. If not, drop it.', role);
        elsif found_role.administrators is not null then
            raise exception 'role "%" exists already, and can be granted by %', role,
                found_role.administrators using errcode = 'duplicate_object',
                hint = pg_catalog.format('They could make anybody a member. Say: revoke admin option for %I from %s, '
                    'or drop the role.',
                    role, found_role.administrators);
        end if;
    end loop;
end
$$;

-- sql/schema.sql

-- schema.sql: the schemas, the role that all functions run as, the nodes and the slots.

do $$
begin
    if exists (select from pg_catalog.pg_extension where extname = 'ojs') then
        raise exception 'extension "ojs" is in this database' using errcode = 'duplicate_object',
            hint = 'A router is a database of its own: it has the functions of ojs, and no job.';
    end if;
end $$;

create schema ojs;
create schema ojs_router;
create schema ojs_http;
comment on schema ojs is
    'Open Job Spec job queue on many servers: functions and views of ojs, each routed to the node that it concerns';
comment on schema ojs_router is 'Nodes of the router; for administrators';
comment on schema ojs_http is 'Parts of ojs.http; not for callers';

-- All functions run as this role, and it is the one that the nodes know. Callers have no right on the foreign server:
-- whoever had one could make a user mapping of their own, and log in to a node as anybody.
do $$
declare
    found_role record;
begin
    if not exists (select from pg_catalog.pg_roles where rolname = 'ojs_router') then
        begin
            create role ojs_router nologin;
        exception when duplicate_object or unique_violation then
            null; -- another database's CREATE EXTENSION was faster
        end;
    end if;
    select r.*, exists (select from pg_catalog.pg_auth_members m join pg_catalog.pg_roles u on u.oid = m.member
        where m.roleid = r.oid and not u.rolsuper) as has_members
    into found_role from pg_catalog.pg_roles r where r.rolname = 'ojs_router';
    if found_role.rolsuper or found_role.rolcreaterole or found_role.rolcreatedb or found_role.rolreplication
        or found_role.rolbypassrls then
        raise exception 'role "ojs_router" exists already, and has attributes of its own'
            using errcode = 'duplicate_object',
            hint = 'Say: alter role ojs_router nosuperuser nocreaterole nocreatedb noreplication nobypassrls';
    elsif found_role.has_members then
        raise exception 'role "ojs_router" exists already, and has members' using errcode = 'duplicate_object',
            hint = 'They could log in to all nodes. Revoke the role from them.';
    end if;
end $$;

create table ojs_router.node (
    number int primary key check (number between 1 and 16383),
    conninfo text not null,
    state text not null default 'active' check (state in ('active', 'draining', 'removed')),
    joined_at timestamptz not null default now()
);
-- Which node holds the keys of a slot. Where a slot has moved, the node before it is asked as well, until it holds
-- none.
create table ojs_router.slot (
    slot int primary key check (slot between 0 and 4095),
    node int not null references ojs_router.node,
    previous int references ojs_router.node
);
select pg_catalog.pg_extension_config_dump('ojs_router.node', '');
select pg_catalog.pg_extension_config_dump('ojs_router.slot', '');

-- What a call of a node ended with.
create type ojs_router.failure as (state text, message text, detail text, hint text);
create type ojs_router.node_status as (watched boolean, missing int[]);
create type ojs_router.pushed_item as (index int, id uuid, status text, error jsonb);

-- The nodes, as constants: update_server() replaces these functions, which has sessions plan anew what is made of them.
create function ojs_router.present_nodes() returns int[] language sql stable parallel safe
begin atomic
    select '{}'::int[];
end;
create function ojs_router.active_nodes() returns int[] language sql stable parallel safe
begin atomic
    select '{}'::int[];
end;

-- What ojs_router.watch() has last seen: which nodes have jobs of a queue that claims could get, and which do not
-- answer.
create unlogged table ojs_router.work (
    queue text collate "C" primary key,
    nodes int[] not null,
    ready bigint[] not null
) with (fillfactor = 50);
create unlogged table ojs_router.watched (
    one boolean primary key default true check (one),
    at timestamptz not null,
    missing int[] not null,
    pid int -- whose look it was
) with (fillfactor = 50);

-- query_timeout ends a call only that is being cancelled, and whose node does not answer to that: without it the cancel
-- would wait without end.
create server ojs foreign data wrapper plproxy options (modular_mapping '1', query_timeout '30',
    p0 'host=/nonexistent');
create user mapping for ojs_router server ojs;

-- ../sql/types.sql

-- types.sql: the row types of the public functions. include/ojs/store/rows.h has the column numbers. At the end what
-- passes between ojs.http and its handlers.

create type ojs.job as (
    id uuid,
    seq bigint,
    specversion text,
    type text,
    queue text,
    state text,
    args jsonb,
    meta jsonb,
    priority int,
    attempt int,
    max_attempts int,
    deliveries int,
    created_at timestamptz,
    enqueued_at timestamptz,
    scheduled_at timestamptz,
    expires_at timestamptz,
    started_at timestamptz,
    completed_at timestamptz,
    cancelled_at timestamptz,
    discarded_at timestamptz,
    next_attempt_at timestamptz,
    timeout interval,
    retry jsonb,
    "unique" jsonb,
    schema text,
    tags text[],
    result jsonb,
    error jsonb,
    errors jsonb,
    worker text,
    extra jsonb,
    deduplicated boolean
);
comment on type ojs.job is 'A job: one column per attribute of the OJS envelope; extra holds every other attribute';

create type ojs.claimed_job as (
    id uuid,
    seq bigint,
    specversion text,
    type text,
    queue text,
    state text,
    args jsonb,
    meta jsonb,
    priority int,
    attempt int,
    max_attempts int,
    deliveries int,
    created_at timestamptz,
    enqueued_at timestamptz,
    scheduled_at timestamptz,
    expires_at timestamptz,
    started_at timestamptz,
    completed_at timestamptz,
    cancelled_at timestamptz,
    discarded_at timestamptz,
    next_attempt_at timestamptz,
    timeout interval,
    retry jsonb,
    "unique" jsonb,
    schema text,
    tags text[],
    result jsonb,
    error jsonb,
    errors jsonb,
    worker text,
    extra jsonb,
    deduplicated boolean,
    lease_id text,
    lease_expires_at timestamptz
);
comment on type ojs.claimed_job
    is 'A job as a claim hands it out: the columns of ojs.job, the lease''s id and its deadline';

create type ojs_http.request as (
    method text,
    path text,
    names text[],                       -- what the path has in place of the variable parts of the route, decoded
    query jsonb,                        -- strings by name
    headers jsonb,                      -- by name in lower case
    body jsonb                          -- null where there is none
);
comment on type ojs_http.request is 'A request to ojs.http as its handlers see it';

create type ojs_http.response as (
    status int,
    headers jsonb,
    body jsonb,
    content text                        -- a body that is no JSON
);
comment on type ojs_http.response is 'What a handler of ojs.http answers';

-- sql/errors.sql

-- errors.sql: errors of the router, and errors of nodes as if the caller had asked the node.

-- As ojs raises them: the code, whether to try again and the details as JSON.
create function ojs_router.raise(code text, message text, details jsonb, hint text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    raise exception '%', message using hint = hint,
        errcode = case code when 'NOT_FOUND' then 'OJ300' when 'UNSUPPORTED_FEATURE' then 'OJ700'
            when 'UNAVAILABLE' then '57P03' else 'OJ100' end,
        detail = format('{"code":%s,"retryable":%s,"details":%s}', to_json(code), to_json(code = 'UNAVAILABLE'),
            details);
end $$;

create function ojs_router.acts_for_tenant() returns boolean language sql stable parallel safe
begin atomic
    select coalesce(current_setting('ojs.tenant', true), '') <> '';
end;

-- A tenant that the session acts for is known to no node, so who says one is refused: the call would be for everybody.
create function ojs_router.check_tenant() returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if ojs_router.acts_for_tenant() then
        perform ojs_router.raise('UNSUPPORTED_FEATURE', 'a router acts for no tenant, and ojs.tenant is set',
            '{"feature": "tenants", "field": "ojs.tenant"}',
            'Nodes see one role, whoever calls. Reset ojs.tenant, or connect to a node for what is a tenant''s.');
    end if;
end $$;

-- Whether a failure means that the node cannot be reached, is starting, ending or a standby. What PL/Proxy itself
-- complains of has a prefix of its own and XX000; a connection that breaks has neither severity nor text.
create function ojs_router.is_down(failure ojs_router.failure) returns boolean
language sql immutable parallel safe
begin atomic
    select (failure).state in ('53300', '25006') or (failure).state like '57P%' or (failure).state like '08%'
        or (failure).state = 'XX000' and ((failure).message like 'PL/Proxy function %'
            or (failure).message like '%] REMOTE (null): %');
end;

-- Whether a pooler gave up on the node: it waited for as long as it was told to, or had just done so for somebody else.
-- Or PL/Proxy did, for a call that was cancelled.
create function ojs_router.timed_out(failure ojs_router.failure) returns boolean
language sql immutable parallel safe
begin atomic
    select (failure).message like 'PL/Proxy function %: query timeout' or (failure).state like '08%'
        and (failure).message ~ ('] REMOTE FATAL: '
            '(query.timeout|query_wait_timeout|server login has been failing|.*cannot connect to server)');
end;

-- Whether the node has cancelled the call, of its own accord; else a cancel is for the caller's session.
create function ojs_router.cancelled_there(failure ojs_router.failure) returns boolean
language sql immutable parallel safe
begin atomic
    select (failure).state = '57014' and (failure).message like '%] REMOTE %';
end;

-- Whether nothing can have happened: it failed before the call was sent, or the node writes nothing.
create function ojs_router.never_sent(failure ojs_router.failure) returns boolean
language sql immutable parallel safe
begin atomic
    select (failure).state = 'XX000'
        and ((failure).message ~ '^PL/Proxy function [^:]*: [[][^]]*[]] PQconnect(Poll|Start): '
            or (failure).message like '%: connect timeout to: %')
        or (failure).state = '25006'
        or ojs_router.timed_out(failure) and (failure).message !~ ': query.timeout';
end;

-- Raises it again: an error of the node as the node worded it, and for a node that is down, UNAVAILABLE. The address
-- of a node is not for callers. `done`: the nodes on which the same call has been carried out before.
create function ojs_router.raise_failure(node int, failure ojs_router.failure, done int[] default '{}') returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    repeat text := case when done <> '{}' then format(' It is done on node %s: repeat the call for the others.',
        array_to_string(done, ', ')) else '' end;
begin
    if ojs_router.is_down(failure) then
        raise log 'ojs_router: node % does not answer: %', node, failure.message;
        perform ojs_router.raise('UNAVAILABLE', format('node %s does not answer', node),
            jsonb_build_object('node', node) || case when done <> '{}' then jsonb_build_object('done', done)
                else '{}' end,
            case when repeat <> '' then ltrim(repeat)
                when ojs_router.never_sent(failure) then 'Nothing was done. Try again later.'
                else 'The call may have been carried out. Try again later; a push with an id of its own can be '
                    'repeated.' end);
    elsif ojs_router.cancelled_there(failure) then
        raise log 'ojs_router: %', failure.message;
        perform ojs_router.raise('UNAVAILABLE', format('a node has cancelled the call: %s',
            regexp_replace(failure.message, '^.*?] REMOTE [^:]*: ', '')), '{}',
            'Nothing is done there. On nodes: alter role ojs_router set statement_timeout = 0.' || repeat);
    end if;
    raise exception '%', regexp_replace(failure.message, '^.*?] REMOTE [^:]*: ', '') using errcode = failure.state,
        detail = regexp_replace(coalesce(failure.detail, ''), '^Remote detail: ', ''),
        hint = ltrim(regexp_replace(coalesce(failure.hint, ''), '^Remote hint: ', '') || repeat);
end $$;

-- sql/nodes.sql

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
alter table ojs_router.node enable always trigger update_server;

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

-- sql/remote.sql

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

-- sql/jobs.sql

-- jobs.sql: calls about one job, which go to its node. All are made alike: ojs_router.remote_NAME is the call of the
-- node,
-- ojs.NAME finds the node. Signatures and results are those of ojs; test/router compares them.

do $do$
declare
    f record;
    parameter text;
    names text[];
    types text[];
begin
    for f in
        -- silent: the node does not complain of a job that it does not know, so it is asked first whether it does.
        select * from (values
            ('ack', 'job_id uuid, result jsonb default null, lease_id text default null, worker text default null',
                'ojs.job', false),
            ('fail', 'job_id uuid, error jsonb, lease_id text default null, worker text default null, requeue boolean '
                'default false, delay interval default null', 'ojs.job', false),
            ('nack', 'job_id uuid, delay interval default ''0'', lease_id text default null, worker text default null',
                'ojs.job', false),
            ('extend', 'job_id uuid, lease interval, lease_id text default null, worker text default null', 'ojs.job',
                false),
            ('cancel', 'job_id uuid, idempotent boolean default false', 'ojs.job', false),
            ('activate', 'job_id uuid', 'ojs.job', false),
            ('retry', 'job_id uuid, overrides jsonb default ''{}''', 'ojs.job', false),
            ('discard', 'job_id uuid, reason text default null', 'ojs.job', false),
            ('set_priority', 'job_id uuid, priority int', 'ojs.job', false),
            ('wait_result', 'job_id uuid, timeout interval', 'ojs.job', false),
            ('info', 'job_id uuid', 'jsonb', false),
            ('explain_job', 'job_id uuid', 'text', false),
            ('delete_job', 'job_id uuid', 'boolean', true),
            ('progress', 'job_id uuid, progress numeric, message text default null, data jsonb default null', 'void',
                true),
            ('checkpoint', 'job_id uuid, state jsonb', 'jsonb', false),
            ('get_checkpoint', 'job_id uuid', 'jsonb', true),
            ('delete_checkpoint', 'job_id uuid', 'void', true),
            ('workflow', 'id uuid', 'jsonb', false),
            ('cancel_workflow', 'id uuid', 'jsonb', false),
            ('extend_workflow', 'id uuid, def jsonb', 'jsonb', false)
        ) v(name, parameters, result, silent)
    loop
        names := '{}';
        types := '{}';
        foreach parameter in array string_to_array(f.parameters, ', ') loop
            names := names || split_part(parameter, ' ', 1);
            types := types || split_part(parameter, ' ', 2);
        end loop;
        execute format($f$
            create function ojs_router.remote_%1$s(node int, %2$s) returns %3$s language plproxy as $p$
                cluster 'ojs'; run on node;
                select ojs.%1$s(%4$s);
            $p$
        $f$, f.name, array_to_string(types, ', '), case f.result when 'ojs.job' then 'text' else f.result end,
            (select string_agg('$' || i + 1, ', ' order by i) from generate_subscripts(types, 1) i));
        execute format($f$
            create function ojs.%1$s(%2$s) returns %3$s
            language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $p$
            #variable_conflict use_variable
            declare
                _node int := ojs_router.%7$s(%5$s);
                _failure ojs_router.failure;%8$s
            begin
                loop
                    begin
                        %6$s
                    exception when others or query_canceled then
                        get stacked diagnostics _failure.state = returned_sqlstate, _failure.message = message_text,
                            _failure.detail = pg_exception_detail, _failure.hint = pg_exception_hint;
                        _node := ojs_router.other_home(%5$s, _node, _failure);
                    end;
                end loop;
            end $p$
        $f$, f.name, f.parameters, f.result, '', names[1],
            case when f.name = 'wait_result' then $w$
                        _answer := ojs_router.remote_wait_result(_node, job_id,
                            case when timeout > _slice then _slice else timeout end)::ojs.job;
                        if _answer.id is not null or _ends is null or clock_timestamp() >= _ends then
                            return _answer;
                        end if;
                        timeout := greatest(_ends - clock_timestamp(), interval '0');$w$
                when f.result = 'void' then format('perform ojs_router.remote_%s(_node, %s); return;', f.name,
                array_to_string(names, ', '))
                else format('return ojs_router.remote_%s(_node, %s)::%s;', f.name, array_to_string(names, ', '),
                    f.result) end,
            case when f.silent then 'holding_node' else 'home' end,
            -- A pooler before the node may bound how long a call takes, so one that waits is many calls.
            case f.name when 'wait_result' then $d$
                _answer ojs.job;
                _slice constant interval := '500 milliseconds';
                _ends timestamptz := clock_timestamp() + least(timeout, interval '30 seconds');$d$ else '' end);
    end loop;
end $do$;

-- sql/push.sql

-- push.sql: producing jobs. A job with a key goes to the node of the key's slot, so that the key holds on all nodes
-- together;
-- any other goes to any node. A call of a node commits there, whatever becomes of the caller's transaction.

create function ojs_router.remote_push(
    node int, type text, args jsonb, queue text, priority int, scheduled_at timestamptz, delay interval,
        expires_at timestamptz, retry jsonb,
    "unique" jsonb, meta jsonb, timeout interval, deduplication_key text, deduplication_ttl interval, id uuid,
        tags text[], pending boolean,
    options jsonb
) returns text language plproxy set datestyle = 'ISO' as $$
    cluster 'ojs'; run on node;
    select ojs.push($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18);
$$;
-- What most jobs need: parameters cost, and default values cost more.
create function ojs_router.remote_push(node int, type text, args jsonb, queue text) returns text
    language plproxy as $$
    cluster 'ojs'; run on node;
    select ojs.push($2, $3, $4, 0, null, null, null, null, null, '{}', null, null, null, null, null, false,
        '{}');
$$;
create function ojs_router.remote_push_job(node int, job jsonb) returns jsonb language plproxy as $$
    cluster 'ojs'; run on node;
    select ojs.push_job(job);
$$;
create function ojs_router.remote_push_many(
    node int, jobs jsonb, deduplication_key text, deduplication_ttl interval, atomicity text, idempotency_key text,
    out index int, out id uuid, out status text, out error jsonb
) returns setof record language plproxy as $$
    cluster 'ojs'; run on node;
    select p.index, p.id, p.status, p.error from ojs.push_many($2, $3, $4, $5, $6) p;
$$;
create function ojs_router.remote_create_workflow(node int, def jsonb) returns jsonb language plproxy as $$
    cluster 'ojs'; run on node;
    select ojs.create_workflow(def);
$$;

-- Fingerprints of envelopes, by any node; null for those without a uniqueness policy. Raises what is wrong with an
-- envelope.
create function ojs_router.fingerprints(jobs jsonb) returns text[]
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    node int;
    failure ojs_router.failure;
begin
    for attempt in 1..4 loop
        select n into node from unnest(ojs_router.live_nodes()) n order by random() limit 1;
        perform ojs_router.check_any(array_remove(array[node], null));
        begin
            return ojs_router.remote_fingerprints(node, jobs);
        exception when others or query_canceled then
            get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
                failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
            if attempt = 4 or not ojs_router.is_down(failure) then
                perform ojs_router.raise_failure(node, failure);
            end if;
            perform ojs_router.remember_missing(node);
        end;
    end loop;
end $$;

-- The key that says where a job goes, by what else is to hold of it; null where any node will do.
create function ojs_router.job_key(
    deduplication text, fingerprint text, ordering_key text, limit_key text, id text, queue text
) returns text
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if num_nonnulls(deduplication, fingerprint, ordering_key) > 1 then
        perform ojs_router.raise('UNSUPPORTED_FEATURE',
            'through the router a job cannot be unique and have a deduplication key or an ordering key, nor both keys',
            '{"feature": "several keys"}',
            'Each of them names a node, and these may differ. Leave one out, or push the job on a node directly.');
    end if;
    return case when deduplication is not null then coalesce(queue, 'default') || ' ' || deduplication
        when fingerprint is not null then fingerprint
        when ordering_key is not null then 'order: ' || coalesce(queue, 'default') || ' ' || ordering_key
        when limit_key is not null then 'limit: ' || limit_key
        when id is not null then 'id: ' || id end;
end $$;

-- A member of an envelope, of this name or of another one that means the same; one that is null is not there.
create function ojs_router.member(job jsonb, name text, other text default null) returns text
language sql immutable parallel safe
begin atomic
    select coalesce(job ->> name, job ->> other, job -> 'options' ->> name, job -> 'options' ->> other);
end;

-- The same of an envelope, without the fingerprint.
create function ojs_router.envelope_key(job jsonb, fingerprint text) returns text
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_router.job_key(ojs_router.member(job, 'deduplication_key', 'deduplicationKey'), fingerprint,
        ojs_router.member(job, 'ordering_key', 'orderingKey'),
        case when o.rate_limit is not null
            then coalesce(o.rate_limit ->> 'key', 'queue:' || coalesce(o.queue, 'default')) end,
        -- what is no id is for the node to refuse
        lower(substring(ojs_router.member(job, 'id') from '^[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$')),
        o.queue)
    from (select coalesce(nullif(job -> 'rate_limit', 'null'), nullif(job -> 'options' -> 'rate_limit', 'null')),
        ojs_router.member(job, 'queue')) o(rate_limit, queue)
$$;

-- Whether a job may have a key of any kind.
create function ojs_router.may_have_key(job jsonb) returns boolean language sql immutable parallel safe
begin atomic
    select job ?| array['unique', 'deduplication_key', 'deduplicationKey', 'ordering_key', 'orderingKey', 'rate_limit',
        'id', 'options'];
end;

create function ojs_router.is_unique(job jsonb) returns boolean
language sql immutable parallel safe
begin atomic
    select coalesce(jsonb_typeof(job -> 'unique') <> 'null', false)
        or coalesce(jsonb_typeof(job -> 'options' -> 'unique') <> 'null', false);
end;

-- Holds off ojs_router.join_node and drain_node until the end of the transaction: a push that has looked at the slots
-- before they change must be over before another goes by the new ones.
create function ojs_router.node_for(key text) returns int
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
        perform ojs_router.raise('UNSUPPORTED_FEATURE',
            'through the router a job with a key cannot be pushed at this isolation level',
            '{"feature": "keys at repeatable read"}',
                'Use READ COMMITTED. The push is a transaction of its own on the node in any case.');
    end if;
    lock table ojs_router.slot in row share mode; -- see change_slots()
    return ojs_router.key_node(key);
end $$;

-- The nodes of many keys, as {"key": node}. In the order of slots, so that two calls do not wait for each other.
create function ojs_router.nodes_for(keys text[]) returns jsonb
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select coalesce(jsonb_object_agg(d.key, ojs_router.node_for(d.key)), '{}')
    from (select key from unnest(keys) key where key is not null group by key order by ojs.key_slot(key), key) d
$$;

-- After a push failed on a node: another node to try, where nothing can have happened and any node will do. Raises
-- otherwise.
create function ojs_router.other_node(node int, key text, failure ojs_router.failure) returns int
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if key is not null or not ojs_router.never_sent(failure) or current_setting('ojs_router.node', true) <> '' then
        perform ojs_router.raise_failure(node, failure);
    end if;
    perform ojs_router.remember_missing(node);
    return ojs_router.any_node();
end $$;

create function ojs.push(
    type text, args jsonb default '[]', queue text default 'default', priority int default 0,
        scheduled_at timestamptz default null,
    delay interval default null, expires_at timestamptz default null, retry jsonb default null,
        "unique" jsonb default null,
    meta jsonb default '{}', timeout interval default null, deduplication_key text default null,
        deduplication_ttl interval default null,
    id uuid default null, tags text[] default null, pending boolean default false, options jsonb default '{}'
) returns ojs.job
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    plain boolean := scheduled_at is null and delay is null and expires_at is null and retry is null
        and "unique" is null
        and timeout is null and deduplication_key is null and deduplication_ttl is null and id is null and tags is null
        and priority = 0 and not pending and meta = '{}' and options = '{}';
    key text;
    envelope jsonb;
    node int;
    failure ojs_router.failure;
begin
    if plain is not true and ("unique" is not null or deduplication_key is not null or id is not null
            or ojs_router.may_have_key(options)) then
        -- A parameter with the value of its default counts as not given.
        envelope := '{"args": []}'::jsonb || coalesce(options, '{}')
            || jsonb_strip_nulls(jsonb_build_object('type', type, 'queue', nullif(queue, 'default'),
                'unique', "unique", 'deduplication_key', deduplication_key, 'id', id))
            || case when args = '[]' then '{}' else jsonb_build_object('args', args) end
            || case when meta = '{}' then '{}' else jsonb_build_object('meta', meta) end;
        key := ojs_router.envelope_key(envelope, case when ojs_router.is_unique(envelope)
            then (ojs_router.fingerprints(jsonb_build_array(envelope - 'id')))[1] end);
    end if;
    node := case when key is null then ojs_router.any_node() else ojs_router.node_for(key) end;
    loop
        begin
            if plain then
                return ojs_router.remote_push(node, type, args, queue)::ojs.job;
            end if;
            return ojs_router.remote_push(node, type, args, queue, priority, scheduled_at, delay, expires_at, retry,
                "unique", meta, timeout, deduplication_key, deduplication_ttl, id, tags, pending, options)::ojs.job;
        exception when others or query_canceled then
            get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
                failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
            node := ojs_router.other_node(node, key, failure);
        end;
    end loop;
end $$;

-- The key of an envelope; null where any node will do.
create function ojs_router.key_of(job jsonb) returns text
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    return case when ojs_router.may_have_key(job) then ojs_router.envelope_key(job, case when ojs_router.is_unique(job)
            then (ojs_router.fingerprints(jsonb_build_array(job)))[1] end) end;
end $$;

create function ojs.push_job(job jsonb) returns jsonb
language plpgsql strict volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    key text := ojs_router.key_of(job);
    node int;
    failure ojs_router.failure;
begin
    node := case when key is null then ojs_router.any_node() else ojs_router.node_for(key) end;
    loop
        begin
            return ojs_router.remote_push_job(node, job);
        exception when others or query_canceled then
            get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
                failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
            node := ojs_router.other_node(node, key, failure);
        end;
    end loop;
end $$;

-- Where each job is for itself, one with a wrong policy has no fingerprint; its node says what is wrong.
create function ojs_router.batch_fingerprints(jobs jsonb, atomicity text) returns text[]
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    job jsonb;
    fingerprints text[] := '{}';
    fingerprint text;
begin
    if not exists (select from jsonb_array_elements(jobs) j where jsonb_typeof(j) = 'object'
        and ojs_router.is_unique(j)) then
        return array_fill(null::text, array[jsonb_array_length(jobs)]);
    end if;
    begin
        return ojs_router.fingerprints(jobs);
    exception when others then
        if atomicity is distinct from 'partial' or sqlstate = '57P03' then
            raise;
        end if;
    end;
    for job in select j from jsonb_array_elements(jobs) with ordinality e(j, n) order by n loop
        fingerprint := null;
        begin
            fingerprint := (ojs_router.fingerprints(jsonb_build_array(job)))[1];
        exception when others then
            if sqlstate = '57P03' then
                raise;
            end if;
        end;
        fingerprints := fingerprints || fingerprint;
    end loop;
    return fingerprints;
end $$;

-- The role that calls, also where a function that runs as its owner is on the way.
create function ojs_router.caller() returns name language sql stable parallel safe
begin atomic
    select coalesce(nullif(current_setting('role'), 'none')::name, session_user);
end;

-- A caller's own idempotency key: to the node all callers are one role. What is no key is left for the node to refuse.
create function ojs_router.own_key(key text) returns text
language sql stable parallel safe set search_path = pg_catalog, pg_temp as $$
    select case when length(key) between 1 and 256 then encode(sha256(convert_to(quote_literal(
        ojs_router.caller()) || ' ' || key, 'UTF8')), 'hex') else key end
$$;

-- The node of each job of a batch. All of it goes to one node, except where each job is for itself and some have keys.
-- `held` is a key of them; null where any node will do.
create function ojs_router.batch_nodes(jobs jsonb, deduplication_key text, idempotency_key text, atomicity text,
    out nodes int[], out held text) returns record
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    keys text[] := '{}';
    homes jsonb;
    key text;
    node int;
begin
    if jsonb_typeof(jobs) = 'array' and (jobs @? '$[*].unique' or jobs @? '$[*].id' or jobs @? '$[*].ordering_key'
            or jobs @? '$[*].orderingKey' or jobs @? '$[*].rate_limit' or jobs @? '$[*].options') then
        select array_agg(ojs_router.envelope_key(j, f) order by n) into keys
        from rows from (jsonb_array_elements(jobs), unnest(ojs_router.batch_fingerprints(jobs, atomicity))) with
            ordinality b(j, f, n);
    end if;
    if idempotency_key is not null then
        key := 'idempotency: ' || idempotency_key;
    elsif deduplication_key is not null then
        key := coalesce(jobs -> 0 ->> 'queue', jobs -> 0 -> 'options' ->> 'queue', 'default') || ' '
            || deduplication_key;
    end if;
    held := coalesce(key, (select k from unnest(keys) k where k is not null limit 1));
    if array_remove(keys, null) = '{}' then
        nodes := array[case when key is null then ojs_router.any_node() else ojs_router.node_for(key) end];
        return;
    end if;
    homes := ojs_router.nodes_for(keys || key);
    nodes := array(select (homes ->> k)::int from unnest(keys) with ordinality u(k, n) order by n);
    node := coalesce((homes ->> key)::int, (select n from unnest(nodes) n where n is not null limit 1));
    nodes := array(select coalesce(n, node) from unnest(nodes) with ordinality u(n, i) order by i);
    if (node <> any (nodes)) and (atomicity is distinct from 'partial' or key is not null) then
        perform ojs_router.raise('UNSUPPORTED_FEATURE',
            'the keys of the jobs name several nodes, so the batch cannot be pushed as a whole',
            '{"feature": "atomic batch on several nodes"}',
            'Say atomicity => ''partial'' without a key of the batch, or push jobs with keys by themselves.');
    end if;
end $$;

-- An error of a job of a part of a batch, by the job's place in the whole.
create function ojs_router.placed_error(error jsonb, place int) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select error || jsonb_build_object(
        'message', regexp_replace(error ->> 'message', '^jobs[[][0-9]+[]]', format('jobs[%s]', place)),
        'details', case when error -> 'details' ? 'index' then jsonb_set(error -> 'details', '{index}', to_jsonb(place))
            else error -> 'details' end)
$$;

-- The error of each job whose node does not answer.
create function ojs_router.node_missing(node int, place int) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('code', 'UNAVAILABLE', 'message',
        format('jobs[%s]: node %s does not answer', place, node), 'retryable', true,
        'details', jsonb_build_object('index', place, 'node', node))
$$;

-- The parts of a batch by node: the places of the jobs in the whole, and the jobs.
create function ojs_router.parts_of(jobs jsonb, nodes int[], out node int, out places int[], out part jsonb)
    returns setof record
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select n, array_agg((i - 1)::int order by i), jsonb_agg(jobs -> (i - 1)::int order by i)
    from unnest(nodes) with ordinality u(n, i) group by n
$$;

create function ojs.push_many(
    jobs jsonb, deduplication_key text default null, deduplication_ttl interval default null,
        atomicity text default 'atomic',
    idempotency_key text default null, out index int, out id uuid, out status text, out error jsonb
) returns setof record
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    request text := ojs_router.own_key(idempotency_key);
    place record := ojs_router.batch_nodes(jobs, deduplication_key, request, atomicity);
    batch record;
    pushed ojs_router.pushed_item[] := '{}';
    node int := place.nodes[1];
    failure ojs_router.failure;
begin
    if node = all (place.nodes) then
        loop
            begin
                return query select p.index, p.id, p.status, p.error
                    from ojs_router.remote_push_many(node, jobs, deduplication_key, deduplication_ttl, atomicity,
                        request) p;
                return;
            exception when others or query_canceled then
                get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
                    failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
                node := ojs_router.other_node(node, place.held, failure);
            end;
        end loop;
    end if;
    for batch in select * from ojs_router.parts_of(jobs, place.nodes) loop
        begin
            pushed := pushed || array(
                select (batch.places[p.index + 1], p.id, p.status,
                    ojs_router.placed_error(p.error, batch.places[p.index + 1]))::ojs_router.pushed_item
                from ojs_router.remote_push_many(batch.node, batch.part, null, null, atomicity, null) p);
        exception when others or query_canceled then
            get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
                failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
            if not ojs_router.is_down(failure) then
                perform ojs_router.raise_failure(batch.node, failure);
            end if;
            perform ojs_router.remember_missing(batch.node);
            pushed := pushed || array(
                select (i, null, 'failed', ojs_router.node_missing(batch.node, i))::ojs_router.pushed_item
                from unnest(batch.places) i);
        end;
    end loop;
    return query select p.* from unnest(pushed) p order by p.index;
end $$;

create function ojs.create_workflow(def jsonb) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    node int := ojs_router.any_node();
    failure ojs_router.failure;
begin
    loop
        begin
            return ojs_router.remote_create_workflow(node, def);
        exception when others or query_canceled then
            get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
                failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
            node := ojs_router.other_node(node, null, failure);
        end;
    end loop;
end $$;

-- sql/claim.sql

-- claim.sql: claims, one node after the other. A claim of several nodes at once would lose the jobs of all of them
-- where one fails.

create function ojs_router.remote_claim(node int, queues text[], worker text, max int, lease interval, wait interval)
    returns setof ojs.claimed_job
language plproxy as $$
    cluster 'ojs'; run on node;
    select * from ojs.claim(queues::text[], worker, max, lease, wait, true);
$$;
create function ojs_router.remote_claim_one(node int, queues text[], worker text, lease interval, wait interval)
    returns text
language plproxy as $$
    cluster 'ojs'; run on node;
    select (select ojs.claim(queues::text[], worker, 1, lease, wait, true));
$$;

-- Jobs that wait, as this session saw them last: {"queue": {"node": jobs}}.
create function ojs_router.seen_work() returns jsonb language sql stable parallel safe
begin atomic
    select coalesce(nullif(current_setting('ojs_router.work', true), ''), '{}')::jsonb;
end;

-- For a claim that has got jobs already, one that a node refuses is no error, which would leave these to nobody.
create function ojs_router.look_for_work(has_jobs boolean default false, nodes int[] default ojs_router.live_nodes())
    returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    failure ojs_router.failure;
    work jsonb;
begin
    for attempt in 1..4 loop
        begin
            select jsonb_object_agg(w.queue, w.counts) into work
            from (select r.queue, jsonb_object_agg(r.node, r.ready) as counts from ojs_router.remote_waiting(nodes) r
                group by 1) w;
            exit;
        exception when others or query_canceled then
            get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
                failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
            exit when has_jobs and (attempt = 4 or not ojs_router.is_down(failure))
                and (failure.state <> '57014' or ojs_router.cancelled_there(failure));
            nodes := ojs_router.answering_after(nodes, failure, attempt);
            exit when nodes = '{}';
        end;
    end loop;
    perform set_config('ojs_router.work', coalesce(work, '{}')::text, false);
    return coalesce(work, '{}');
end $$;

-- Which nodes to ask for jobs of a queue, in which order: a random one of those with jobs first, by how many claims
-- like this one they have jobs for. Drawn by how many jobs, nodes with few would be left over
-- (bench/router_simulation.py). What ojs_router.watch() saw within a second counts more than what this session saw.
create function ojs_router.nodes_with_work(queue text, seen jsonb, wanted int) returns int[]
language plpgsql volatile parallel unsafe as $$
declare
    status ojs_router.node_status := ojs_router.status_of_nodes();
    size bigint := greatest(wanted, 1);
begin
    -- Sampling without replacement by weight: the largest of random() ^ (1 / weight).
    if status.watched then
        return array(
            select n from ojs_router.work w, unnest(w.nodes, w.ready) u(n, r)
            where w.queue = nodes_with_work.queue and n <> all (status.missing)
            order by ln(random() + 1e-300) / ((r + size - 1) / size) desc limit 40);
    elsif seen -> queue is null then
        return '{}';
    end if;
    return array(
        select s.key::int from jsonb_each_text(seen -> queue) s
        where s.key::int = any (ojs_router.present_nodes()) and s.key::int <> all (status.missing)
        order by ln(random() + 1e-300) / ((greatest(s.value::bigint, 1) + size - 1) / size) desc);
end $$;

-- Waits for the next look of ojs_router.watch(): what the last one saw has been asked for.
create function ojs_router.await_look(ends timestamptz) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    last timestamptz := (select w.at from ojs_router.watched w);
begin
    loop
        perform pg_sleep(0.02);
        exit when clock_timestamp() >= ends or not ojs_router.is_watched()
            or (select w.at from ojs_router.watched w) is distinct from last;
    end loop;
end $$;

-- After a claim failed on a node: where the node does not answer, the others go on. Where it refuses, and others have
-- given jobs already, these are for the caller: an error would leave them to nobody until their leases lapse.
create function ojs_router.claim_failed(node int, failure ojs_router.failure, has_jobs boolean) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if ojs_router.timed_out(failure) then
        perform ojs_router.remember_missing(node); -- asking again would wait again
    elsif ojs_router.is_down(failure) then
        perform ojs_router.answering(array[node]);
    elsif has_jobs and (failure.state <> '57014' or ojs_router.cancelled_there(failure)) then
        raise warning 'node % gave no jobs: %', node, regexp_replace(failure.message, '^.*?] REMOTE [^:]*: ', '');
    else
        perform ojs_router.raise_failure(node, failure);
    end if;
end $$;

create function ojs_router.check_queues(queues text[]) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    nodes int[];
    queue text;
    known boolean;
    failure ojs_router.failure;
begin
    foreach queue in array coalesce(queues, '{}') loop
        continue when queue is null or strpos(current_setting('ojs_router.known', true), ' ' || queue || ' ') > 0;
        nodes := ojs_router.live_nodes();
        known := null;
        for attempt in 1..4 loop
            begin
                known := exists (select from ojs_router.remote_has_queue(nodes, queue));
                exit;
            exception when others or query_canceled then
                get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
                    failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
                nodes := ojs_router.answering_after(nodes, failure, attempt);
            end;
        end loop;
        if not known and cardinality(nodes) = (select count(*) from ojs_router.node where state <> 'removed') then
            perform ojs_router.raise('NOT_FOUND', format('there is no queue %s', to_json(left(queue, 255))),
                jsonb_build_object('reason', 'topic_not_found', 'queue', left(queue, 255)),
                    'Create it, push to it, or say missing_ok => true.');
        elsif known then
            perform set_config('ojs_router.known', ' ' || queue
                || left(coalesce(current_setting('ojs_router.known', true), ' '), 10000), false);
        end if;
    end loop;
end $$;

-- Both forms of ojs.claim, and how a fetch over HTTP claims, with the same body: what returns rows is not called by
-- another, which would copy them.
do $do$
declare
    form record;
    -- A claim on one node.
    claiming text := $c$
            if %2$s = 1 then
                _job := ojs_router.remote_claim_one(_node, %1$s, worker, lease, %3$s)::ojs.claimed_job;
                if _job.id is not null then
                    return next _job;
                    _got := 1;
                end if;
            else
                return query select * from ojs_router.remote_claim(_node, %1$s, worker, %2$s, lease, %3$s);
                get diagnostics _got = row_count;
            end if;$c$;
    -- A request for jobs, whose answers are returned. One that refuses, or is large, ends it.
    fetching text := $c$
            _job := ojs_router.ask(_node, request, request.body
                || jsonb_build_object('queues', %1$s, 'count', %2$s));
            _job.body := _job.content::jsonb;
            _got := case when _job.status <> 200 or octet_length(_job.content) > ojs_http.most_bytes() / 2 then %2$s
                else jsonb_array_length(_job.body -> 'jobs') end;
            return next _job;$c$;
    call text := $c$
        _got := 0;
        _failed := false;
        begin%s
        exception when others or query_canceled then
            get stacked diagnostics _failure.state = returned_sqlstate, _failure.message = message_text,
                _failure.detail = pg_exception_detail, _failure.hint = pg_exception_hint;
            perform ojs_router.claim_failed(_node, _failure, coalesce(_wanted < max, false));
            _failed := true;
            _failures := _failures + 1;
        end;
    $c$;
begin
    for form in select f.*, format(call, case f.name when 'ojs.claim' then claiming else fetching end) as call
    from (values
        ('ojs.claim', 'ojs.claimed_job', 'queue text', 'array[queue]', '', ''),
        ('ojs_router.fetch', 'ojs_http.response', 'request ojs_http.request, queues text[]', 'queues', '', ''),
        ('ojs.claim', 'ojs.claimed_job', 'queues text[]', 'queues',
            $f$, strategy text default 'strict', weights jsonb default null$f$, $f$
                if strategy is distinct from 'strict' or weights is not null then
                    perform ojs_router.raise('UNSUPPORTED_FEATURE',
                        'a router does not share claims out among queues, since each node counts its own claims only',
                        '{"feature": "strategies", "field": "strategy"}',
                        'Leave strategy and weights out, or claim on the nodes themselves.');
                end if;$f$)) f(name, row_type, parameter, queues, sharing, check_sharing) loop
        execute format($f$
            create function %8$s(
                %1$s, worker text, max int default 1, lease interval default null, wait interval default '0',
                    missing_ok boolean default false%6$s
            ) returns setof %9$s
            language plpgsql volatile parallel unsafe security definer rows 10
                set search_path = pg_catalog, pg_temp as $p$
            #variable_conflict use_variable
            declare
                _queues text[] := %2$s;
                _wait_ends timestamptz := clock_timestamp() + least(wait, interval '30 seconds'); -- as on a node
                _slice interval := '50 milliseconds';
                _work jsonb := ojs_router.seen_work();
                _wanted int := max;
                _called boolean := false;
                _looked boolean := false;
                _queue text;
                _nodes int[];
                _node int;
                _got int;
                _failed boolean;
                _failures int := 0;
                _failure ojs_router.failure;
                _job %9$s;
            begin%7$s
                if max is null or wait is null or wait < interval '0' or array_position(_queues, null) > 0
                        or coalesce(cardinality(_queues), 0) = 0 then
                    _node := ojs_router.random_node();
                    %3$s
                    return;
                end if;
                loop
                    foreach _queue in array _queues loop
                        _nodes := ojs_router.nodes_with_work(_queue, _work, _wanted);
                        if _nodes = '{}' and not _called then
                            -- the node says what is wrong with the call, and does its upkeep
                            _nodes := array[ojs_router.random_node()];
                        end if;
                        foreach _node in array _nodes loop
                            %4$s
                            _called := _called or not _failed;
                            if _got < _wanted and _work -> _queue ? _node::text then
                                _work := _work #- array[_queue, _node::text];
                                perform set_config('ojs_router.work', _work::text, false);
                            end if;
                            _wanted := _wanted - _got;
                            exit when _wanted = 0;
                        end loop;
                        exit when _wanted = 0;
                    end loop;
                    exit when _wanted = 0;
                    continue when not _called and _failures between 1 and 3; -- another node at random
                    if not _looked and not ojs_router.is_watched() then
                        _looked := true;
                        _work := ojs_router.look_for_work(_wanted < max);
                        continue when _work ?| _queues;
                    end if;
                    exit when _wanted < max;
                    if not missing_ok then
                        perform ojs_router.check_queues(_queues);
                        missing_ok := true;
                    end if;
                    exit when clock_timestamp() >= _wait_ends;
                    if ojs_router.is_watched() then
                        perform ojs_router.await_look(_wait_ends);
                    else
                        -- Work that comes to this node wakes us at once; what comes to others is seen after the slice.
                        _node := ojs_router.random_node();
                        %5$s
                        exit when _got > 0;
                        _slice := least(_slice * 2, interval '500 milliseconds');
                        _looked := false;
                    end if;
                end loop;
            end $p$
        $f$, form.parameter, form.queues, format(form.call, '_queues', 'max', 'wait'),
            format(form.call, 'array[_queue]', '_wanted', $w$interval '0'$w$),
            format(form.call, '_queues', '_wanted', $w$greatest(least(_slice, _wait_ends - clock_timestamp()),
                interval '0')$w$), form.sharing, form.check_sharing, form.name, form.row_type);
    end loop;
end $do$;

-- sql/work.sql

-- work.sql: working on many jobs. Jobs of several nodes are told apart by their ids, and each node gets its own.

create function ojs_router.remote_ack_many(node int, worker text, job_ids uuid[], results jsonb[], lease_ids text[],
    out done int, out skipped uuid[])
returns record language plproxy as $$
    cluster 'ojs'; run on node;
    select a.done, a.skipped from ojs.ack_many(worker, job_ids, results, lease_ids) a;
$$;
create function ojs_router.remote_nack_many(node int, worker text, job_ids uuid[], delay interval, lease_ids text[],
    out done int, out skipped uuid[])
returns record language plproxy as $$
    cluster 'ojs'; run on node;
    select a.done, a.skipped from ojs.nack_many(worker, job_ids, delay, lease_ids) a;
$$;
create function ojs_router.remote_extend_many(
    node int, worker text, job_ids uuid[], lease interval, lease_ids text[], out done int, out skipped uuid[],
        out deadline timestamptz
) returns record language plproxy as $$
    cluster 'ojs'; run on node;
    select a.done, a.skipped, a.deadline from ojs.extend_many(worker, job_ids, lease, lease_ids) a;
$$;
create function ojs_router.remote_ack_and_claim(
    node int, worker text, queue text, job_ids uuid[], lease_ids text[], results jsonb[], max int, lease interval
) returns setof ojs.claimed_job language plproxy as $$
    cluster 'ojs'; run on node;
    select * from ojs.ack_and_claim($2, $3, $4, $5, $6, $7, $8);
$$;
create function ojs_router.remote_beat(
    node int, worker text, job_ids uuid[], state text, info jsonb, lease interval,
    out directive text, out extended uuid[], out cancelled uuid[], out lost uuid[]
) returns record language plproxy as $$
    cluster 'ojs'; run on node;
    select b.directive, b.extended, b.cancelled, b.lost from ojs.beat($2, $3, $4, $5, $6) b;
$$;
create function ojs_router.remote_register_worker(node int, worker text, info jsonb) returns jsonb
    language plproxy as $$
    cluster 'ojs'; run on node;
    select ojs.register_worker(worker, info);
$$;
create function ojs_router.remote_deregister_worker(nodes int[], worker text, release boolean) returns setof boolean
    language plproxy as $$
    cluster 'ojs'; run on unnest(nodes);
    select ojs.deregister_worker(worker, release);
$$;

-- Which nodes the jobs are on by their ids, or with `ask` by asking all nodes; null where none is known.
create function ojs_router.homes(ids uuid[], ask boolean default false) returns int[]
language plpgsql volatile parallel unsafe as $$
declare
    nodes int[];
    failure ojs_router.failure;
begin
    if ojs_router.acts_for_tenant() then
        perform ojs_router.check_tenant();
    end if;
    if not ask then
        return array(select ojs_router.named_node(id) from unnest(ids) id);
    end if;
    nodes := ojs_router.live_nodes();
    for attempt in 1..4 loop
        begin
            return (
                select array_agg(f.node order by i.n)
                from unnest(ids) with ordinality i(id, n)
                left join (select distinct on (r.id) r.id, r.node
                    from ojs_router.remote_has_jobs(nodes, ids) r) f on f.id = i.id);
        exception when others or query_canceled then
            get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
                failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
            nodes := ojs_router.answering_after(nodes, failure, attempt);
        end;
    end loop;
end $$;

-- The jobs of each node, of those at the positions `todo`, or of all; without those whose node is not known.
create function ojs_router.split_by_node(
    homes int[], todo int[], job_ids uuid[], lease_ids text[], results jsonb[],
    out node int, out ids uuid[], out leases text[], out answers jsonb[]
) returns setof record
language plpgsql volatile parallel unsafe rows 2 as $$
#variable_conflict use_column
begin
    if todo is null and homes[1] = all (homes) then
        node := homes[1]; ids := job_ids; leases := lease_ids; answers := results;
        return next;
        return;
    end if;
    return query
        select j.home, array_agg(j.id), case when lease_ids is not null then array_agg(j.lease) end,
            case when results is not null then array_agg(j.result) end
        from (
            select * from unnest(homes, job_ids, lease_ids, results) with ordinality u(home, id, lease, result, n)
            where u.home is not null and (todo is null or u.n = any (todo)) order by u.home, u.n) j
        group by j.home order by j.home;
end $$;

-- ack_many, nack_many and extend_many. A job that its node skips may be on another one, so skipped jobs are looked
-- for, once.
-- Jobs of a node that does not answer are skipped, and a WARNING says so.
do $do$
declare
    f record;
begin
    for f in select * from (values
        ('ack_many', 'worker text, job_ids uuid[], results jsonb[] default null, lease_ids text[] default null', '',
            'results'),
        ('nack_many', 'worker text, job_ids uuid[], delay interval default ''0'', lease_ids text[] default null', '',
            'delay'),
        ('extend_many', 'worker text, job_ids uuid[], lease interval, lease_ids text[] default null',
            ', out deadline timestamptz', 'lease')
    ) v(name, parameters, deadline, third) loop
        execute format($f$
            create function ojs.%1$s(%2$s, out done int, out skipped uuid[]%3$s) returns record
            language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $p$
            #variable_conflict use_variable
            declare
                _homes int[] := ojs_router.homes(job_ids);
                _todo int[]; -- positions
                _skipped int[] := '{}'; -- positions
                _part record;
                _answer record;
                _failed uuid[];
                _failure ojs_router.failure;
                _found int[];
            begin
                done := 0;
                if _homes = '{}' or cardinality(lease_ids) <> cardinality(job_ids) %7$s
                    then -- the node says what is wrong
                    _homes := array[ojs_router.random_node()];
                    _answer := ojs_router.remote_%1$s(_homes[1], worker, job_ids, %4$s, lease_ids);
                    done := _answer.done; skipped := _answer.skipped; %5$s
                    return;
                end if;
                for round in 1..2 loop
                    for _part in select * from ojs_router.split_by_node(_homes, _todo, job_ids, lease_ids, %8$s) loop
                        begin
                            _answer := ojs_router.remote_%1$s(_part.node, worker, _part.ids, %6$s, _part.leases);
                            done := done + _answer.done; %5$s
                            _failed := _answer.skipped;
                        exception when others or query_canceled then
                            get stacked diagnostics _failure.state = returned_sqlstate, _failure.message = message_text,
                                _failure.detail = pg_exception_detail, _failure.hint = pg_exception_hint;
                            if not ojs_router.is_down(_failure) then
                                perform ojs_router.raise_failure(_part.node, _failure);
                            end if;
                            perform ojs_router.remember_missing(_part.node);
                            raise warning 'node %% does not answer, so its jobs are skipped', _part.node using hint
                                = 'The call may have been carried out there. What came of it, ojs.info says later.';
                            _failed := _part.ids;
                        end;
                        if _failed <> '{}' then
                            _skipped := _skipped || array(
                                select n::int from unnest(_homes, job_ids) with ordinality j(home, id, n)
                                where home = _part.node and id = any (_failed) and (_todo is null or n = any (_todo)));
                        end if;
                    end loop;
                    exit when round = 2;
                    if array_position(_homes, null) > 0 then
                        _skipped := _skipped || array(
                            select n::int from unnest(_homes) with ordinality h(home, n) where home is null);
                    end if;
                    exit when _skipped = '{}';
                    _found := ojs_router.homes(array(select job_ids[n] from unnest(_skipped) with ordinality s(n, i)
                        order by i), true);
                    _todo := array(select n from unnest(_skipped) with ordinality s(n, i) where _found[i] <> _homes[n]
                        or _homes[n] is null and _found[i] is not null);
                    for i in 1..cardinality(_skipped) loop
                        _homes[_skipped[i]] := _found[i];
                    end loop;
                    _skipped := array(select n from unnest(_skipped) n where n <> all (_todo));
                end loop;
                skipped := case when _skipped = '{}' then '{}'
                    else array(select job_ids[n] from unnest(_skipped) n order by n) end;
            exception when others or query_canceled then
                get stacked diagnostics _failure.state = returned_sqlstate, _failure.message = message_text,
                    _failure.detail = pg_exception_detail, _failure.hint = pg_exception_hint;
                if _failure.message like '%%] REMOTE %%' or _failure.message like 'PL/Proxy function %%' then
                    perform ojs_router.raise_failure(_homes[1], _failure);
                end if;
                raise;
            end $p$
        $f$, f.name, f.parameters, f.deadline, f.third,
            case when f.deadline <> '' then 'deadline := least(deadline, _answer.deadline);' else '' end,
            case when f.third = 'results' then '_part.answers' else f.third end,
            case when f.third = 'results' then 'or cardinality(results) <> cardinality(job_ids)' else '' end,
            case when f.third = 'results' then 'results' else 'null' end);
    end loop;
end $do$;

-- All of it on one node is one step there. Jobs of several nodes are completed one by one, and what was completed stays
-- so where a later one is refused. So does a claim that fails once jobs are completed and others claimed.
create function ojs.ack_and_claim(
    worker text, queue text, job_ids uuid[], lease_ids text[] default null, results jsonb[] default null,
        max int default 1, lease interval default null
) returns setof ojs.claimed_job
language plpgsql volatile parallel unsafe security definer rows 10 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    homes int[] := ojs_router.homes(job_ids);
    failure ojs_router.failure;
    node int;
    one_step boolean := cardinality(lease_ids) is distinct from cardinality(job_ids) and lease_ids is not null
        or cardinality(results) is distinct from cardinality(job_ids) and results is not null
        or homes[1] = all (homes) and homes <> '{}';
    got int := 0;
begin
    if one_step then
        node := coalesce(homes[1], ojs_router.random_node());
        begin
            return query select * from ojs_router.remote_ack_and_claim(node, worker, queue, job_ids, lease_ids, results,
                max, lease);
            get diagnostics got = row_count;
        exception when others or query_canceled then
            get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
                failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
            one_step := false;
            if failure.state = 'OJ300' and failure.detail like '%topic_not_found%' then
                perform ojs_router.check_queues(array[queue]); -- it may be on other nodes
            else
                -- A client's own id may name another node than the one that has the job.
                if failure.state = 'OJ300' then
                    homes := ojs_router.homes(job_ids, true);
                end if;
                if failure.state <> 'OJ300' or array_position(homes, null) > 0
                    or not exists (select from unnest(homes) h where h <> node) then
                    perform ojs_router.raise_failure(node, failure);
                end if;
            end if;
        end;
    end if;
    if one_step is not true then
        for i in 1..coalesce(cardinality(job_ids), 0) loop
            perform ojs.ack(job_ids[i], results[i], lease_ids[i], worker);
        end loop;
    end if;
    if (got >= max) is not true then
        begin
            return query select * from ojs.claim(queue, worker, max - got, lease);
        exception when others then
            if got = 0 and sqlstate <> '57P03' then
                raise;
            end if;
            raise warning 'jobs were completed, and no more claimed: %', sqlerrm;
        end;
    end if;
end $$;

-- A worker's registration is on the node of its name; its beats go there, and to the nodes of its jobs.
create function ojs_router.worker_node(worker text) returns int
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    nodes int[] := ojs_router.live_nodes();
begin
    perform ojs_router.check_any(nodes);
    return nodes[1 + (hashtextextended(coalesce(worker, ''), 0) & 2147483647) % cardinality(nodes)];
end $$;

create function ojs.beat(
    worker text, job_ids uuid[] default '{}', state text default 'running', info jsonb default '{}',
        lease interval default null,
    out directive text, out extended uuid[], out cancelled uuid[], out lost uuid[]
) returns record
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    own int := ojs_router.worker_node(worker);
    todo uuid[] := coalesce(job_ids, '{}');
    homes int[] := ojs_router.homes(todo);
    strays uuid[] := array(select j.id from unnest(todo, homes) j(id, home) where j.home is null);
    found int[];
    directives text[] := '{}';
    part record;
    answer record;
    failure ojs_router.failure;
begin
    if strays <> '{}' then -- ids of a client's own
        found := ojs_router.homes(strays, true);
        homes := array(select coalesce(j.home, found[array_position(strays, j.id)])
            from unnest(todo, homes) with ordinality j(id, home, n) order by j.n);
        if cardinality(ojs_router.live_nodes()) = (select count(*) from ojs_router.node where state <> 'removed') then
            homes := array(select coalesce(home, own) from unnest(homes) with ordinality h(home, n) order by n);
        end if;
    end if;
    extended := '{}'; cancelled := '{}'; lost := '{}';
    for round in 1..2 loop
        for part in
            select p.node, coalesce(array_agg(p.id order by p.n) filter (where p.n > 0), '{}') as ids
            from (
                select home as node, id, n from unnest(todo, homes) with ordinality j(id, home, n)
                union all select own, null, 0 where round = 1) p
            where p.node is not null group by 1 order by 1
        loop
            begin
                select * into answer from ojs_router.remote_beat(part.node, worker, part.ids, state, info, lease);
                directives := directives || answer.directive;
                extended := extended || answer.extended;
                cancelled := cancelled || answer.cancelled;
                lost := lost || answer.lost;
            exception when others or query_canceled then
                get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
                    failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
                if not ojs_router.is_down(failure) then
                    perform ojs_router.raise_failure(part.node, failure);
                end if;
                -- Its jobs are in none of the lists: they may be held still.
                perform ojs_router.remember_missing(part.node);
            end;
        end loop;
        exit when round = 2 or lost = '{}';
        -- A client's own id may name another node than the one that has the job.
        found := ojs_router.homes(lost, true);
        strays := array(select l.id from unnest(lost, found) l(id, node)
            where l.node <> homes[array_position(todo, l.id)]);
        exit when strays = '{}';
        homes := array(select found[array_position(lost, id)] from unnest(strays) with ordinality s(id, n) order by n);
        lost := array(select id from unnest(lost) with ordinality l(id, n) where id <> all (strays) order by n);
        todo := strays;
    end loop;
    directive := coalesce((select d from unnest(directives) d
        order by array_position(array['terminate', 'quiet', 'running'], d) limit 1), 'running');
end $$;

create function ojs.register_worker(worker text, info jsonb default '{}') returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    node int := ojs_router.worker_node(worker);
    failure ojs_router.failure;
begin
    return ojs_router.remote_register_worker(node, worker, info);
exception when others or query_canceled then
    get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
        failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
    perform ojs_router.raise_failure(node, failure);
end $$;

create function ojs.deregister_worker(worker text, release boolean default false) returns boolean
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    nodes int[] := ojs_router.live_nodes();
    failure ojs_router.failure;
begin
    perform ojs_router.check_any(nodes);
    for attempt in 1..4 loop
        begin
            return (select bool_or(r) from ojs_router.remote_deregister_worker(nodes, worker, release) r);
        exception when others or query_canceled then
            get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
                failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
            nodes := ojs_router.answering_after(nodes, failure, attempt);
            perform ojs_router.check_any(nodes);
        end;
    end loop;
end $$;

-- sql/read.sql

-- read.sql: looking at all nodes. Where some do not answer, the answer is that of the others, and says so: JSON in a
-- member
-- "missing_nodes", rows by a WARNING.

-- The paths of the bounds that nodes share (admin.sql), under each name that they have.
create function ojs_router.bounds() returns text[] language sql immutable parallel safe begin atomic
    select array[['concurrency', '', ''], ['max_size', '', ''], ['max_depth', '', ''], ['max_size_bytes', '', ''],
        ['limit', '', ''], ['rate', 'limit', ''], ['throttle', 'limit', ''],
        ['rate_limit', 'concurrency', ''], ['rate_limit', 'limit', ''], ['rate_limit', 'rate', 'limit'],
        ['rate_limit', 'throttle', 'limit']]; end;

-- Settings of a queue or a limit on all nodes: those of the first, with the bounds that are shared out added up.
create function ojs_router.merged_config(configs jsonb[]) returns jsonb
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    config jsonb := configs[1];
    path text[];
begin
    foreach path slice 1 in array ojs_router.bounds() loop
        path := array_remove(path, '');
        if jsonb_typeof(config #> path) = 'number' then
            config := jsonb_set(config, path, to_jsonb((select sum((c #>> path)::numeric) from unnest(configs) c)));
        end if;
    end loop;
    return config;
end $$;

-- Answers of several nodes as one: numbers are added, lists joined; of what can only be told apart, the first.
create function ojs_router.merged(answers jsonb[]) returns jsonb
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    first jsonb := answers[1];
    merged jsonb := '{}';
    key text;
    parts jsonb[];
begin
    if coalesce(cardinality(answers), 0) < 2 then
        return first;
    end if;
    if jsonb_typeof(first) = 'number' then
        return to_jsonb((select sum(a::numeric) from unnest(answers) a where jsonb_typeof(a) = 'number'));
    elsif jsonb_typeof(first) = 'boolean' then
        return to_jsonb((select bool_or(a::boolean) from unnest(answers) a where jsonb_typeof(a) = 'boolean'));
    elsif jsonb_typeof(first) = 'array' then
        return (select jsonb_agg(e) from unnest(answers) with ordinality u(a, n), jsonb_array_elements(a) e
            where jsonb_typeof(a) = 'array');
    elsif jsonb_typeof(first) <> 'object' then
        return first;
    end if;
    for key in select distinct k from unnest(answers) a, jsonb_object_keys(a) k where jsonb_typeof(a) = 'object' loop
        parts := array(select a -> key from unnest(answers) with ordinality u(a, n) where a ? key
            and jsonb_typeof(a -> key) <> 'null' order by n);
        merged := merged || jsonb_build_object(key, case
            when key = 'config' then ojs_router.merged_config(parts)
            when key = 'paused' then parts[1]
            when starts_with(key, 'avg_') then to_jsonb((select round(avg(p::numeric), 3) from unnest(parts) p))
            when starts_with(key, 'newest_') or key = 'computed_at'
                then to_jsonb((select max(p #>> '{}') from unnest(parts) p))
            when starts_with(key, 'oldest_') then to_jsonb((select min(p #>> '{}') from unnest(parts) p))
            else ojs_router.merged(parts) end);
    end loop;
    return merged;
end $$;

create function ojs_router.not_answered() returns int[]
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select array(select number from ojs_router.node where state <> 'removed'
        and number <> all (current_setting('ojs_router.answered')::int[]) order by number)
$$;

create function ojs_router.with_missing(answer jsonb) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    missing int[] := ojs_router.not_answered();
begin
    return case when missing = '{}' then answer else coalesce(answer, '{}')
        || jsonb_build_object('missing_nodes', to_jsonb(missing)) end;
end $$;

-- Rows of all nodes. ojs_router.remote_NAME asks them, ojs_router.all_NAME asks again those that are left where
-- one fails, and leaves in ojs_router.answered who answered.
do $do$
declare
    f record;
begin
    for f in select * from (values
        ('results', 'ids uuid[]', 'id uuid, state text, result jsonb', 'ojs.results(ids) x where x.state is not null',
            'x.id, x.state, x.result'),
        ('queue_stats', 'name text',
            'queue text, paused boolean, ready bigint, in_flight bigint, delayed bigint, available bigint, active '
            'bigint, '
            'scheduled bigint, retryable bigint, pending bigint, completed bigint, cancelled bigint, discarded bigint, '
                'dead_lettered bigint, '
            'completed_last_hour bigint, failed_last_hour bigint, avg_duration_ms numeric, avg_wait_ms numeric, '
                'throughput_per_second numeric, '
            'computed_at timestamptz', 'ojs.queue_stats() x where name is null or x.queue = name', 'x.*'),
        ('queue_infos', 'name text', 'info jsonb', 'ojs.queues x where x.name = $2', 'ojs.queue_info(x.name) as info'),
        ('queues', '', 'name text, state text, created_at timestamptz, config jsonb', 'ojs.queues x', 'x.*'),
        ('workers', '',
            'worker text, status text, state text, directive text, registered_at timestamptz, last_seen_at '
            'timestamptz, '
            'died_at timestamptz, hostname text, pid int, queues text[], concurrency int, labels text[], active_jobs '
                'int, active_job_ids uuid[], '
            'info jsonb', 'ojs.workers x', 'x.*'),
        ('crons', '',
            'name text, expression text, timezone text, enabled boolean, overlap_policy text, description text, job '
            'jsonb, '
            'next_run_at timestamptz, last_run_at timestamptz, run_count bigint, created_at timestamptz', 'ojs.crons x',
                'x.*'),
        ('rate_limits', '',
            'key text, concurrency int, active bigint, rate int, rate_period interval, started bigint, '
            'window_resets_at timestamptz, '
            'throttle int, throttle_period interval, next_allowed_at timestamptz, paused_until timestamptz, waiting '
                'bigint, override jsonb, '
            'override_until timestamptz', 'ojs.rate_limits x', 'x.*'),
        ('schemas', '',
            'type text, version text, uri text, schema jsonb, created_at timestamptz, validation text', 'ojs.schemas x',
            'x.type, x.version, x.uri, x.schema, x.created_at, x.validation'),
        ('list_jobs', 'in_queue text, in_state text, in_type text, after text, most int',
            (select string_agg(quote_ident(attname) || ' ' || format_type(atttypid, null), ', ' order by attnum)
             from pg_attribute where attrelid = 'ojs.job'::regclass and attnum > 0),
            -- a queue need not be on all nodes
            '(select $2::text as name where $2 is null or exists (select from ojs.queues q where q.name = $2)) y, '
            'lateral ojs.list_jobs(y.name, $3, $4, $5, $6) x', 'x.*'),
        ('listed_places', 'filter jsonb, most int', 'id uuid, priority int, scheduled_at timestamptz, place bigint',
            'ojs_http.listed_jobs($2, $3, 0) x', '(x.job ->> ''id'')::uuid as id, (x.job ->> ''priority'')::int as '
            'priority, (x.job ->> ''scheduled_at'')::timestamptz as scheduled_at, x.place'),
        ('count_listed', 'filter jsonb', 'jobs bigint', '(select 1) y', 'ojs_http.count_listed($2) as jobs'),
        ('listed_workflows', 'of_state text, after uuid, most int', 'id uuid, workflow jsonb',
            'ojs_http.listed_workflows($2, $3, $4, 0) x', 'x.*'),
        ('history_of', 'queue text, step interval, since timestamptz, until timestamptz', 'history jsonb',
            '(select 1) y', 'ojs_http.history_of($2, $3, $4, $5) as history'),
        ('held_keys', 'most int', 'entries jsonb, total bigint', 'ojs_http.held_keys($2, 0) x',
            'pg_catalog.to_jsonb(x.entries) as entries, x.total'),
        ('waiting_by_priority', 'queue text', 'waiting jsonb', 'ojs.queues x where x.name = $2',
            'ojs_http.waiting_by_priority(x.name) as waiting'),
        ('cron_jobs', 'name text', 'job jsonb', '(select 1) y', 'ojs_http.cron_job($2) as job'),
        ('taken_back_jobs', 'worker text', 'jobs int', '(select 1) y', 'ojs_http.take_back_jobs($2) as jobs'),
        ('health', '', 'health jsonb', 'ojs.health() x', 'x as health'),
        ('metrics', '', 'metrics text', 'ojs.metrics() x', 'x as metrics'),
        ('dead_letter_stats', 'queue text', 'stats jsonb', '(select 1) y',
            'ojs.dead_letter_stats(case when exists (select from ojs.queues q where q.name = queue) or queue is null '
            'then queue end) as stats')
    ) v(name, parameters, columns, source, list) loop
        execute format($f$
            create function ojs_router.remote_%1$s(nodes int[]%2$s, out node int, %3$s) returns setof record
                language plproxy as $p$
                cluster 'ojs'; run on unnest(nodes);
                select pg_catalog.current_setting('ojs.node_id')::int4 as node, %4$s from %5$s;
            $p$
        $f$, f.name, case when f.parameters <> '' then ', ' || f.parameters else '' end,
            (select string_agg('out ' || c, ', ') from regexp_split_to_table(f.columns, ', ') c), f.list, f.source);
        execute format($f$
            create function ojs_router.all_%1$s(%2$sout node int, %3$s) returns setof record
            language plpgsql volatile parallel unsafe %5$s set search_path = pg_catalog, pg_temp as $p$
            #variable_conflict use_column
            declare
                _nodes int[] := ojs_router.live_nodes();
                _failure ojs_router.failure;
            begin
                for _attempt in 1..4 loop
                    begin
                        return query select x.* from ojs_router.remote_%1$s(_nodes%4$s) x;
                        exit;
                    exception when others or query_canceled then
                        get stacked diagnostics _failure.state = returned_sqlstate, _failure.message = message_text,
                            _failure.detail = pg_exception_detail, _failure.hint = pg_exception_hint;
                        _nodes := ojs_router.answering_after(_nodes, _failure, _attempt);
                    end;
                end loop;
                perform ojs_router.check_any(_nodes);
                perform set_config('ojs_router.answered', _nodes::text, true);
                %6$s
            end $p$
        $f$, f.name, case when f.parameters <> '' then f.parameters || ', '
            else '' end, (select string_agg('out ' || c, ', ') from regexp_split_to_table(f.columns, ', ') c),
            (select string_agg(', $' || i, '' order by i) from generate_series(1, case when f.parameters = '' then 0
                else
                cardinality(regexp_split_to_array(f.parameters, ', ')) end) i),
            -- What views call runs with the rights of who reads them.
            case when f.name in ('queues', 'workers', 'crons', 'rate_limits') then 'security definer' end,
            case when f.name in ('queues', 'workers', 'crons', 'rate_limits')
                then 'perform ojs_router.warn_missing();' end);
    end loop;
end $do$;

create function ojs_router.warn_missing() returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    missing int[] := ojs_router.not_answered();
begin
    if missing <> '{}' then
        raise warning 'the answer is partial: no answer of node %', array_to_string(missing, ', ')
            using hint = 'What is on that node is missing in it. Ask again when the node is back.';
    end if;
end $$;

create function ojs.results(job_ids uuid[], out id uuid, out state text, out result jsonb) returns setof record
language plpgsql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    return query
        select i.id, r.state, r.result
        from unnest(job_ids) with ordinality i(id, n)
        left join (select distinct on (a.id) a.* from ojs_router.all_results(job_ids) a) r on r.id = i.id
        order by i.n;
    perform ojs_router.warn_missing();
end $$;

create function ojs_router.queue_missing(name text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if ojs_router.not_answered() = '{}' then
        perform ojs_router.raise('NOT_FOUND', format('there is no queue %s', to_json(left(name, 255))),
            jsonb_build_object('reason', 'topic_not_found', 'queue', left(name, 255)), 'Create it, or push to it.');
    end if;
end $$;

create function ojs.queue_stats(
    name text default null,
    out queue text, out paused boolean, out ready bigint, out in_flight bigint, out delayed bigint,
        out available bigint, out active bigint,
    out scheduled bigint, out retryable bigint, out pending bigint, out completed bigint, out cancelled bigint,
        out discarded bigint,
    out dead_lettered bigint, out completed_last_hour bigint, out failed_last_hour bigint, out avg_duration_ms numeric,
    out avg_wait_ms numeric, out throughput_per_second numeric, out computed_at timestamptz
) returns setof record
language plpgsql stable parallel unsafe security definer rows 10 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    return query
        select a.queue, bool_and(a.paused), sum(a.ready)::bigint, sum(a.in_flight)::bigint, sum(a.delayed)::bigint,
            sum(a.available)::bigint,
            sum(a.active)::bigint, sum(a.scheduled)::bigint, sum(a.retryable)::bigint, sum(a.pending)::bigint,
                sum(a.completed)::bigint,
            sum(a.cancelled)::bigint, sum(a.discarded)::bigint, sum(a.dead_lettered)::bigint,
                sum(a.completed_last_hour)::bigint,
            sum(a.failed_last_hour)::bigint,
            round(sum(a.avg_duration_ms * a.completed_last_hour) /
                nullif(sum(a.completed_last_hour) filter (where a.avg_duration_ms is not null), 0), 3),
            round(sum(a.avg_wait_ms * a.completed_last_hour) /
                nullif(sum(a.completed_last_hour) filter (where a.avg_wait_ms is not null), 0), 3),
            sum(a.throughput_per_second), max(a.computed_at)
        from ojs_router.all_queue_stats(queue_stats.name) a group by a.queue order by a.queue;
    if not found and queue_stats.name is not null then
        perform ojs_router.queue_missing(queue_stats.name);
    end if;
    perform ojs_router.warn_missing();
end $$;

create function ojs.queue_info(name text) returns jsonb
language plpgsql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    answer jsonb := ojs_router.merged(array(select a.info from ojs_router.all_queue_infos(name) a order by a.node));
begin
    if answer is null then
        perform ojs_router.queue_missing(name);
    end if;
    return ojs_router.with_missing(answer);
end $$;

create function ojs.list_jobs(queue text default null, state text default null, type text default null,
    after text default null, max int default 100)
returns setof ojs.job
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    if list_jobs.queue is not null then
        perform ojs_router.check_queues(array[list_jobs.queue]);
    end if;
    return query
        with listed as materialized (
            select a.* from ojs_router.all_list_jobs(list_jobs.queue, list_jobs.state, list_jobs.type, list_jobs.after,
                list_jobs.max) a
        ), cut as (
            -- A node may end its page early because of its size; what others have of older jobs is then for the next
            -- page.
            select max(c.last::text)::uuid as at
            from (select min(l.id::text) as last, count(*) as n, sum(octet_length(l.args::text)) as size from listed l
                group by l.node) c
            where c.n < list_jobs.max and c.size > 4000000
        )
        select l.id, l.seq, l.specversion, l.type, l.queue, l.state, l.args, l.meta, l.priority, l.attempt,
            l.max_attempts, l.deliveries, l.created_at,
            l.enqueued_at, l.scheduled_at, l.expires_at, l.started_at, l.completed_at, l.cancelled_at, l.discarded_at,
                l.next_attempt_at,
            l.timeout, l.retry, l."unique", l.schema, l.tags, l.result, l.error, l.errors, l.worker, l.extra,
                l.deduplicated
        from listed l where l.id >= (select at from cut) or (select at from cut) is null
        order by l.id desc limit list_jobs.max;
    perform ojs_router.warn_missing();
end $$;

create function ojs.dead_letter_stats(queue text default null) returns jsonb
language plpgsql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    if queue is not null then
        perform ojs_router.check_queues(array[queue]);
    end if;
    return ojs_router.with_missing(ojs_router.merged(array(select a.stats from ojs_router.all_dead_letter_stats(queue) a
        order by a.node)));
end $$;

-- A sample of a node gets its number as a label.
create function ojs.metrics() returns text
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    answer text;
begin
    with lines as (
        select a.node, l.line, l.n,
            -- The family of a sample: the last comment before it.
            count(*) filter (where l.line like '# HELP %') over (partition by a.node order by l.n) as family
        from ojs_router.all_metrics() a, unnest(string_to_array(a.metrics, E'\n')) with ordinality l(line, n)
        where l.line <> ''
    ), named as (
        select *, first_value(split_part(line, ' ', 3)) over (partition by node, family order by n) as name from lines
    ), first as (
        select name, min(node) as node from named group by name
    )
    select string_agg(case when n.line like '#%' then n.line
            when n.line ~ '^[^ ]*[{]' then regexp_replace(n.line, '[{]', format('{node="%s",', n.node))
            else regexp_replace(n.line, ' ', format('{node="%s"} ', n.node)) end, E'\n'
                order by n.name, n.line not like '#%', n.node, n.n) || E'\n'
    into answer
    from named n join first f using (name)
    where n.line not like '#%' or n.node = f.node;
    return coalesce(answer, '')
        || E'# HELP ojs_router_node_up Whether a node answers.\n# TYPE ojs_router_node_up gauge\n'
        || (select string_agg(format('ojs_router_node_up{node="%s"} %s', number, case
            when number = any (ojs_router.not_answered()) then 0 else 1 end), E'\n' order by number)
            from ojs_router.node where state <> 'removed') || E'\n';
end $$;

create function ojs.health() returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    nodes jsonb;
    missing int[];
begin
    select jsonb_object_agg(a.node, a.health) into nodes from ojs_router.all_health() a;
    missing := ojs_router.not_answered();
    return jsonb_build_object(
        'status', case when missing <> '{}' or exists (select from jsonb_each(nodes) n
            where n.value ->> 'status' <> 'ok') then 'degraded' else 'ok' end,
        'version', ojs_router.version(), 'backend', '{"status": "healthy"}'::jsonb,
        'uptime_seconds', floor(extract(epoch from clock_timestamp() - pg_postmaster_start_time())),
        'timestamp', ojs_http.rfc3339(clock_timestamp()),
        'workers', (select ojs_router.merged(array_agg(n.value -> 'workers')) from jsonb_each(nodes) n),
        'maintenance', (select n.value -> 'maintenance' from jsonb_each(nodes) n
            order by n.value -> 'maintenance' = 'null' limit 1),
        'nodes', coalesce(nodes, '{}'), 'missing_nodes', to_jsonb(missing),
        'draining_nodes', (select coalesce(jsonb_agg(number order by number), '[]') from ojs_router.node
            where state = 'draining'),
        'moving_slots', (select count(*) from ojs_router.slot where previous is not null),
        'watched', ojs_router.is_watched());
end $$;

create function ojs.ready() returns boolean
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    return ojs_router.answering(ojs_router.live_nodes()) <> '{}';
end $$;

-- What any node knows.
do $do$
declare
    f record;
begin
    for f in select * from (values
        ('ojs', 'canonical_json', 'json jsonb', 'text', 'ojs.canonical_json($2)'),
        ('ojs', 'fingerprint', 'job jsonb', 'text', 'ojs.fingerprint($2)'),
        ('ojs', 'fingerprint_input', 'job jsonb', 'text', 'ojs.fingerprint_input($2)'),
        -- without the extensions that a router does not have
        ('ojs', 'manifest', '', 'jsonb', $m$pg_catalog.jsonb_set(pg_catalog.jsonb_insert(ojs.manifest(),
            '{delivery,ordering,none,0}', '"across nodes"'), '{extensions,official}', (
            select pg_catalog.jsonb_agg(e) from pg_catalog.jsonb_array_elements(
                ojs.manifest() #> '{extensions,official}') e
            where e ->> 'name' not in ('fair-scheduling', 'multi-tenancy', 'webhooks')))$m$),
        ('ojs', 'capabilities', '', 'jsonb', 'ojs.capabilities()'),
        ('ojs', 'envelope', 'job ojs.job', 'jsonb', 'ojs.envelope($2::ojs.job)'),
        ('ojs_http', 'time_value', 'given text, field text', 'timestamptz', 'ojs_http.time_value($2, $3)'),
        ('ojs_http', 'duration_value', 'given jsonb, field text', 'interval', 'ojs_http.duration_value($2, $3)'),
        ('ojs_http', 'default_policy', '', 'jsonb', 'ojs_http.default_policy()')
    ) v(schema, name, parameter, result, call) loop
        execute format($f$
            create function ojs_router.remote_%1$s(node int%2$s) returns %3$s language plproxy as $p$
                cluster 'ojs'; run on node;
                select %4$s;
            $p$
        $f$, f.name, case when f.parameter <> '' then ', ' || f.parameter else '' end, f.result, f.call);
        execute format($f$
            create function %6$s.%1$s(%2$s) returns %3$s
            language plpgsql %4$s stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $p$
            declare
                _node int;
                _failure ojs_router.failure;
            begin
                loop
                    _node := ojs_router.random_node();
                    begin
                        return ojs_router.remote_%1$s(_node%5$s);
                    exception when others or query_canceled then
                        get stacked diagnostics _failure.state = returned_sqlstate, _failure.message = message_text,
                            _failure.detail = pg_exception_detail, _failure.hint = pg_exception_hint;
                        if not ojs_router.is_down(_failure) then
                            perform ojs_router.raise_failure(_node, _failure);
                        end if;
                        perform ojs_router.remember_missing(_node);
                    end;
                end loop;
            end $p$
        $f$, f.name, case when f.name = 'canonical_json' then 'jsonb' else f.parameter end, f.result,
            case when f.parameter <> '' then 'strict' else '' end,
            case when f.parameter like '%,%' then ', $1, $2' when f.parameter <> '' then ', $1' else '' end, f.schema);
    end loop;
end $do$;

create function ojs_router.version() returns text language sql immutable parallel safe
begin atomic select '0.1.0'; end;
create function ojs.version() returns text language sql immutable parallel safe
begin atomic select '0.1.0'; end;
create function ojs.node_of(id uuid) returns int
language sql immutable strict parallel safe set search_path = pg_catalog, pg_temp as $$
    select case when get_byte(uuid_send(id), 6) >> 4 = 7
        then (get_byte(uuid_send(id), 8) & 63) << 8 | get_byte(uuid_send(id), 9) end
$$;
create function ojs.key_slot(key text) returns int
language sql immutable strict parallel safe set search_path = pg_catalog, pg_temp as $$
    select (get_byte(h, 0) << 4) | (get_byte(h, 1) >> 4) from sha256(convert_to(key, 'UTF8')) h
$$;

-- sql/events.sql

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

-- sql/views.sql

-- views.sql: what all nodes have, as the views of a node show it.

create view ojs.queues as
select a.name, case when count(distinct a.state) = 1 then min(a.state)
    else 'mixed' end as state, min(a.created_at) as created_at,
    ojs_router.merged_config(array_agg(a.config order by a.node)) as config
from ojs_router.all_queues() a group by a.name;
create view ojs.workers as
select a.worker, (array_agg(a.status order by a.last_seen_at desc nulls last))[1] as status,
    (array_agg(a.state order by a.last_seen_at desc nulls last))[1] as state, min(a.directive) as directive,
        min(a.registered_at) as registered_at,
    max(a.last_seen_at) as last_seen_at, max(a.died_at) as died_at, min(a.hostname) as hostname, min(a.pid) as pid,
    (array_agg(a.queues::text) filter (where a.queues is not null))[1]::text[] as queues,
        max(a.concurrency) as concurrency,
    (array_agg(a.labels::text) filter (where a.labels is not null))[1]::text[] as labels,
        sum(a.active_jobs)::int as active_jobs,
    array(select j from unnest(array_agg(a.active_job_ids::text)) t(ids), unnest(ids::uuid[]) j) as active_job_ids,
    (array_agg(a.info order by a.registered_at nulls last))[1] as info
from ojs_router.all_workers() a group by a.worker;
create view ojs.crons as
select a.name, a.expression, a.timezone, a.enabled, a.overlap_policy, a.description, a.job, a.next_run_at,
    a.last_run_at, a.run_count, a.created_at
from ojs_router.all_crons() a;
-- A limit of a queue is shared out. Any other one counts on the node of its key, as in merged_limit().
create view ojs.rate_limits as
select r.key, sum(r.concurrency)::int as concurrency, sum(r.active)::bigint as active, sum(r.rate)::int as rate,
    max(r.rate_period) as rate_period, sum(r.started)::bigint as started, max(r.window_resets_at) as window_resets_at,
    sum(r.throttle)::int as throttle, max(r.throttle_period) as throttle_period,
    min(r.next_allowed_at) as next_allowed_at, max(r.paused_until) as paused_until, sum(r.waiting)::bigint as waiting,
    ojs_router.merged_config(array_agg(r.override order by r.node)) as override, max(r.override_until) as override_until
from (
    select distinct on (a.key, case when a.key like 'queue:%' then a.node end) a.*
    from ojs_router.all_rate_limits() a
    order by a.key, case when a.key like 'queue:%' then a.node end,
        a.node <> (select s.node from ojs_router.slot s where s.slot = ojs.key_slot('limit: ' || a.key)), a.node) r
group by r.key;

-- sql/admin.sql

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

-- sql/settings.sql

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

-- sql/cluster.sql

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
    if conninfo ~* 'password[[:space:]]*=' then
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

-- sql/refused.sql

-- refused.sql: functions of a node that a router cannot have, so that whoever calls one is told why.

do $do$
declare
    f record;
begin
    for f in
        select v.name, v.parameters, v.result, g.what, g.why, g.hint
        from (values
            ('pools', 'set_pool', 'name text, config jsonb', 'jsonb'),
            ('pools', 'drop_pool', 'name text', 'boolean'),
            ('pools', 'claim_pool', 'pool text, worker text, max int default 1, lease interval default null, '
                'wait interval default ''0''', 'setof ojs.claimed_job'),
            ('tenants', 'set_tenant', 'tenant text, config jsonb, reason text default null', 'jsonb'),
            ('tenants', 'drop_tenant', 'tenant text', 'boolean'),
            ('tenants', 'bind_tenant', 'role name, tenant text', 'void'),
            ('tenants', 'unbind_tenant', 'role name, tenant text', 'boolean')
        ) v(what, name, parameters, result)
        join (values
            ('pools', 'each node counts its own claims only', 'Claim several queues in their order, or make the pool '
                'on each node and claim there.'),
            ('tenants', 'nodes see one role, whoever calls', 'Keep tenants on servers of their own, or connect to a '
                'node for what is a tenant''s.')
        ) g(what, why, hint) using (what)
    loop
        execute format($f$
            create function ojs.%I(%s) returns %s
            language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $p$
            begin
                perform ojs_router.raise('UNSUPPORTED_FEATURE', %L, %L, %L);
            end $p$
        $f$, f.name, f.parameters, f.result, format('a router has no %s, since %s', f.what, f.why),
            jsonb_build_object('feature', f.what), f.hint);
    end loop;
end $do$;

-- ../sql/http/read.sql

-- read.sql: what the handlers of HTTP requests read, and how. What each request needs is PL/pgSQL: a session plans its
-- expressions once, and a function in SQL at each call.

-- A part of a path or a query with its %XX resolved. Fails as converting bytes that are no text does.
create function ojs_http.decoded(part text) returns text
language plpgsql immutable strict parallel safe set search_path = pg_catalog, pg_temp as $$
begin
    if strpos(part, '%') = 0 then
        return part;
    end if;
    if part ~ '%(?![0-9A-Fa-f]{2})' then
        raise invalid_text_representation using message = 'a percent sign without two hexadecimal digits';
    end if;
    return convert_from(decode(string_agg(
            case when left(piece, 1) = '%' then substr(piece, 2) else encode(convert_to(piece, 'UTF8'), 'hex') end,
                '' order by n), 'hex'), 'UTF8')
        from regexp_matches(part, '%..|[^%]+', 'g') with ordinality as m(pieces, n), unnest(pieces) as piece;
end $$;

-- The parameters of a query string; one that comes twice is a list of both.
create function ojs_http.read_query(query text) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select coalesce(jsonb_object_agg(name, value), '{}')
    from (
        select ojs_http.decoded(replace(split_part(pair, '=', 1), '+', ' ')) as name,
            string_agg(ojs_http.decoded(replace(substr(pair, strpos(pair || '=', '=') + 1), '+', ' ')),
                ',' order by n) as value
        from string_to_table(query, '&') with ordinality as p(pair, n)
        where pair <> ''
        group by 1
    ) parameters
$$;

-- Headers by name in lower case; of several values the first.
create function ojs_http.read_headers(headers jsonb) returns jsonb
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
begin
    return (
        select coalesce(jsonb_object_agg(lower(name), case jsonb_typeof(value) when 'array' then value ->> 0
            else value #>> '{}' end), '{}')
        from jsonb_each(case when jsonb_typeof(headers) = 'object' then headers else '{}' end) as h(name, value));
end $$;

-- The client's own, if it may stand in a header; else a new one. Not by the clock of ojs: an identity, not a time.
create function ojs_http.request_id(given text) returns text
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    ms text := lpad(to_hex(floor(extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0');
begin
    return case when given ~ '^[!-~]{1,128}$' then given
        else 'req_' || left(ms, 8) || '-' || substr(ms, 9) || '-7' || substr(gen_random_uuid()::text, 16) end;
end $$;

-- WHAT HANDLERS SHARE ----------------------------------------------------------------------------------------------

create function ojs_http.reply(status int, body jsonb, headers jsonb default '{}') returns ojs_http.response
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    response ojs_http.response;
begin
    response.status := status;
    response.headers := headers;
    response.body := body;
    return response;
end $$;

-- The body, where there must be one, as most often; a field that is null counts as absent.
create function ojs_http.object(request ojs_http.request, required boolean default true) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if request.body is null and not required then
        return '{}';
    elsif jsonb_typeof(request.body) is distinct from 'object' then
        perform ojs_http.raise('INVALID_PAYLOAD',
            case when request.body is null then 'the request has no body' else 'the body must be a JSON object' end,
            '{"reason": "malformed"}', 'Send a JSON object.');
    end if;
    return request.body;
end $$;

-- A field of the body; null if it is absent.
create function ojs_http.field(body jsonb, name text, type text, required boolean default false) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    value jsonb := body -> name;
    found_type text := coalesce(jsonb_typeof(value), 'null');
begin
    if found_type = 'null' and not required then
        return null;
    elsif found_type <> type then
        perform ojs_http.raise('INVALID_PAYLOAD',
            case when found_type = 'null' then format('%s is missing', name)
                else format('%s must be of type %s, not %s', name, type, found_type) end,
            jsonb_build_object('field', name, 'expected', type, 'received', found_type),
                format('Give %s as a JSON %s.', name, type));
    end if;
    return value;
end $$;

create function ojs_http.text_field(body jsonb, name text, required boolean default false) returns text
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    return ojs_http.field(body, name, 'string', required) #>> '{}';
end $$;

-- A whole number; beyond the bounds it is clamped.
create function ojs_http.number_field(body jsonb, name text, least_value bigint, greatest_value bigint) returns bigint
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    value numeric := ojs_http.field(body, name, 'number')::numeric;
begin
    if value <> trunc(value) then
        perform ojs_http.raise('INVALID_PAYLOAD', format('%s must be a whole number', name),
            jsonb_build_object('field', name), 'Give a whole number.');
    end if;
    return case when value is not null then least(greatest(value, least_value), greatest_value) end;
end $$;

create function ojs_http.texts_field(body jsonb, name text, required boolean default false) returns text[]
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    value jsonb := ojs_http.field(body, name, 'array', required);
begin
    if jsonb_path_exists(value, 'strict $[*] ? (@.type() != "string")') then
        perform ojs_http.raise('INVALID_PAYLOAD', format('%s must hold strings only', name),
            jsonb_build_object('field', name),
            format('Give %s as an array of strings.', name));
    end if;
    return case when value is not null then array(select jsonb_array_elements_text(value)) end;
end $$;

-- A job's id as a client writes it; in a path, what is no id is an id that no job has.
create function ojs_http.job_id(given text, in_path boolean) returns uuid
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if given ~ '^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$' then
        return given;
    elsif in_path then
        perform ojs_http.raise('NOT_FOUND', format('job %s does not exist', left(given, 64)),
            jsonb_build_object('resource_type', 'job',
            'resource_id', left(given, 64)), 'Check the id: it is a UUID.');
    end if;
    perform ojs_http.raise('INVALID_PAYLOAD', 'job_id must be a UUID', '{"field": "job_id"}',
        'Give the id of the job.');
end $$;

-- The job that a call is about: named by the path, or by the field job_id.
create function ojs_http.job_named(request ojs_http.request, body jsonb) returns uuid
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if cardinality(request.names) > 0 then
        if lower(request.body ->> 'job_id') <> lower(request.names[1]) then
            perform ojs_http.raise('INVALID_PAYLOAD', 'job_id is not the one of the path', '{"field": "job_id"}',
                'Leave job_id out of the body.');
        end if;
        return ojs_http.job_id(request.names[1], true);
    end if;
    return ojs_http.job_id(ojs_http.text_field(body, 'job_id', true), false);
end $$;

-- What the HTTP binding asks of a job beyond the SQL functions: args must be an array as it is (R-01).
create function ojs_http.check_args(job jsonb, index int) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if jsonb_typeof(job) = 'object' and coalesce(jsonb_typeof(job -> 'args'), 'array') <> 'array' then
        perform ojs_http.raise('INVALID_ARGS',
            format('%sargs must be an array, not %s', 'jobs[' || index || ']: ', jsonb_typeof(job -> 'args')),
            jsonb_strip_nulls(jsonb_build_object('field', 'args', 'expected', 'array', 'received',
                jsonb_typeof(job -> 'args'), 'index', index)),
            'Give the arguments as a JSON array.');
    end if;
end $$;

-- A number in the query string; beyond the greatest it is clamped.
create function ojs_http.query_number(request ojs_http.request, name text, otherwise int, least_value int,
    greatest_value int) returns int
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    value text := request.query ->> name;
begin
    if value is null then
        return otherwise;
    elsif value !~ '^[0-9]{1,18}$' or value::bigint < least_value then
        perform ojs_http.raise('INVALID_PAYLOAD', format('%s must be a whole number of at least %s', name,
            least_value), jsonb_build_object('field', name),
            format('Give ?%s=%s.', name, otherwise));
    end if;
    return least(value::bigint, greatest_value);
end $$;

-- Refuses what a request says beyond what is read of it.
create function ojs_http.only(given jsonb, variadic names text[]) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    unknown text := (select key from jsonb_object_keys(given) key where key <> all (names) limit 1);
begin
    if unknown is not null then
        perform ojs_http.raise('INVALID_PAYLOAD', format('%s is nothing that this request takes', left(unknown, 64)),
            jsonb_build_object('field', left(unknown, 64)),
            format('It takes %s.', array_to_string(names, ', ')));
    end if;
end $$;

-- Whether the database is not to sleep for this request, since the pipe waits.
create function ojs_http.may_wait(request ojs_http.request) returns boolean
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select request.headers ->> 'ojs-do-not-wait' is distinct from '1'
$$;

-- How many bytes of jobs one answer holds; the next may bring the rest.
create function ojs_http.most_bytes() returns bigint
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select 32::bigint * 1024 * 1024
$$;

-- A list in the query string, or null.
create function ojs_http.query_list(request ojs_http.request, name text) returns text[]
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select string_to_array(nullif(request.query ->> name, ''), ',')
$$;

-- What a purge is asked for. DELETE has no body for many a client and proxy: then its query string says it, and what it
-- says besides is the filter.
create function ojs_http.purge_asked(request ojs_http.request) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if request.body is not null then
        return ojs_http.object(request);
    end if;
    return jsonb_strip_nulls(jsonb_build_object(
        'confirm', request.query ->> 'confirm' = 'true',
        'older_than', request.query -> 'older_than',
        'states', to_jsonb(ojs_http.query_list(request, 'states')),
        'filter', request.query - '{confirm,older_than,states}'::text[]));
end $$;

create function ojs_http.rfc3339(at timestamptz) returns text
language sql stable parallel safe set search_path = pg_catalog, pg_temp as $$
    select to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
$$;

-- ../sql/http/errors.sql

-- errors.sql: errors as HTTP answers.

-- The HTTP status of an OJS code, and its name in the HTTP binding. Null for a code that is none.
create function ojs_http.status_of(code text, details jsonb, path text, out status int, out name text) returns record
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    of_topic boolean := starts_with(path, '/v0/');
begin
    case code
    when 'INVALID_PAYLOAD' then
        status := 400; name := case when details ->> 'reason' = 'malformed' then 'invalid_payload'
            else 'invalid_request' end;
    when 'INVALID_JOB_TYPE', 'INVALID_QUEUE', 'INVALID_ARGS', 'INVALID_CRON_EXPRESSION',
        'QUEUE_NAME_TOO_LONG',
            'JOB_TYPE_TOO_LONG', 'UNIQUE_KEY_INVALID' then
        status := 400; name := 'invalid_request';
    when 'INVALID_METADATA' then
        status := case details ->> 'reason' when 'tenant_missing' then 422 else 400 end; name := 'invalid_request';
    when 'INVALID_RETRY_POLICY' then
        status := 422; name := 'invalid_request';
    when 'SCHEMA_VALIDATION_FAILED' then
        status := 422; name := 'schema_validation';
    when 'PAYLOAD_TOO_LARGE', 'METADATA_TOO_LARGE', 'RESULT_TOO_LARGE' then
        status := 413; name := lower(code);
    when 'BATCH_SIZE_EXCEEDED' then
        status := case when of_topic then 400 else 413 end;
            name := case when of_topic then 'batch_too_large' else 'x_batch_too_large' end;
    when 'NOT_FOUND' then
        status := 404; name := case when of_topic then coalesce(details ->> 'reason', 'not_found') else 'not_found' end;
    when 'WORKFLOW_NOT_FOUND' then
        status := 404; name := 'not_found';
    when 'INVALID_WORKFLOW' then
        status := 400; name := 'invalid_workflow';
    when 'WORKFLOW_ENDED' then
        status := 409; name := 'conflict';
    when 'DUPLICATE_JOB' then
        status := 409; name := 'duplicate';
    when 'INVALID_STATE_TRANSITION', 'JOB_ALREADY_COMPLETED', 'JOB_ALREADY_CANCELLED', 'LEASE_NOT_HELD' then
        status := 409; name := 'conflict';
    when 'TOPIC_NOT_A_QUEUE' then
        status := 409; name := 'not_a_queue';
    when 'SCHEMA_EXISTS' then
        status := 409; name := 'conflict';
    when 'TOPIC_EXISTS_INCOMPATIBLE' then
        status := 409; name := lower(code);
    when 'QUEUE_PAUSED' then
        status := 422; name := 'queue_paused';
    when 'UNSUPPORTED_FEATURE' then
        status := case details ->> 'field' when 'Content-Encoding' then 415 else 422 end; name := 'unsupported';
    when 'PERMISSION_DENIED' then
        status := 403; name := 'permission_denied';
    when 'RATE_LIMITED' then
        status := 429; name := case when of_topic then 'throttled' else 'rate_limited' end;
    when 'QUEUE_FULL' then
        status := 429; name := 'QUEUE_FULL';
    when 'TENANT_LIMIT_EXCEEDED' then
        status := 429; name := 'TENANT_LIMIT_EXCEEDED';
    when 'UNAVAILABLE' then
        status := 503; name := 'backend_error';
    when 'METHOD_NOT_ALLOWED' then
        status := 405; name := 'x_method_not_allowed';
    else
        null;
    end case;
end $$;

create function ojs_http.error_body(
    name text, code text, message text, retryable boolean, details jsonb, hint text, request_id text
) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('error', jsonb_strip_nulls(jsonb_build_object(
        'code', name,
        'type', case when code = 'INVALID_RETRY_POLICY' then 'validation_error' end,
        'message', message,
        'retryable', retryable,
        'details', details,
        'hint', nullif(hint, ''),
        'docs_url', 'https://openjobspec.org/errors/' || code,
        'doc_url', 'https://openjobspec.org/errors/' || code,
        'request_id', request_id))
        || case when code = 'TENANT_LIMIT_EXCEEDED' then details - '{jobs,retry_after_seconds}'::text[] else '{}' end)
$$;

-- What the headers of an error say: when to come again, and how far a bound is exceeded.
create function ojs_http.headers_of(status int, code text, details jsonb) returns jsonb
language plpgsql stable parallel restricted set search_path = pg_catalog, pg_temp as $$
declare
    seconds numeric := coalesce((details ->> 'retry_after_seconds')::numeric,
        (details ->> 'retry_after_ms')::numeric / 1000, 1);
begin
    return jsonb_strip_nulls(
        case when status in (429, 503) then jsonb_build_object('Retry-After', greatest(ceil(seconds), 1)::text)
            else '{}' end
        || case code
            when 'BATCH_SIZE_EXCEEDED' then jsonb_build_object('X-OJS-Max-Batch-Size', details ->> 'maximum')
            when 'QUEUE_FULL' then jsonb_build_object('X-OJS-Queue-Depth', details ->> 'depth', 'X-OJS-Queue-Bound',
                details ->> 'bound')
            when 'RATE_LIMITED' then jsonb_build_object('X-RateLimit-Limit', coalesce(details ->> 'claim_rate', '1'),
                'X-RateLimit-Remaining', '0',
                'X-RateLimit-Reset', ceil(extract(epoch from ojs_http.now()) + seconds)::text)
            else '{}' end);
end $$;

-- A field by the name that the request has for it, where SQL has another.
create function ojs_http.field_in(body jsonb, field text) returns text
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select coalesce((select a.theirs from (values ('timeout', 'timeout_ms'), ('scheduled_at', 'delay_until'),
        ('visibility_timeout', 'visibility_timeout_ms'),
            ('worker', 'worker_id'), ('filter', 'job_ids'), ('job_id', 'ids'), ('expression', 'cron'),
                ('overrides', 'override'), ('discard', 'strategy')) a (ours, theirs)
        where a.ours = field and not jsonb_path_exists(body, format('$.**.%I', a.ours)::jsonpath)
            and jsonb_path_exists(body, format('$.**.%I', a.theirs)::jsonpath)), field)
$$;

-- A hint in the words of HTTP; none where it names what only SQL has.
create function ojs_http.hint_of(hint text) returns text
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select case
        when hint !~ e'\\mojs[.]\\w+[(]|=>' then hint
        when hint ~ 'confirm => true' then 'Send "confirm": true once you are sure.'
        when hint ~ 'ojs[.]create_queue' then 'Push to the queue, or create it with POST /ojs/v1/queues.'
        when hint ~ 'ojs[.]info' then 'GET /ojs/v1/jobs/:id tells the state of the job.'
        when hint ~ 'ojs[.]schedule' then 'GET /ojs/v1/cron lists the entries.' end
$$;

-- The answer to a request that raised: an error of ojs speaks for itself; of any other only what can give nothing away.
-- `stage` is what was being done: reading the path, the body, or the work itself.
create function ojs_http.problem(
    stage text, path text, request_id text, state text, message text, detail text, hint text, context text,
        body jsonb default null
) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    said jsonb;
    field text;
    code text;
    details jsonb := '{}';
    status int;
    name text;
    headers jsonb;
    retryable boolean := false;
begin
    if stage <> 'work' and left(state, 2) in ('22', '54') then
        code := 'INVALID_PAYLOAD';
        details := '{"reason": "malformed"}';
        message := case stage when 'path' then 'the path or the query string cannot be decoded'
            else 'the body is not valid JSON' end;
        hint := case stage when 'path' then 'Encode it as UTF-8 in percent notation.'
            else 'Send one JSON document as UTF-8.' end;
    elsif left(state, 2) = 'OJ' or state in ('42501', '57P03') then
        begin
            said := detail::jsonb;
            code := said ->> 'code';
            details := coalesce(said -> 'details', '{}');
            retryable := coalesce(said -> 'retryable' = 'true', false);
        exception when data_exception then
            null; -- a hook's own detail
        end;
    end if;
    if details ? 'field' and body is not null then
        field := ojs_http.field_in(body, details ->> 'field');
        message := regexp_replace(message, e'\\mfilter[.]ids\\M|\\m' || (details ->> 'field') || e'\\M', field);
        details := details || jsonb_build_object('field', field);
    end if;
    if details ? 'maximum_bytes' then
        -- as the text of payload limits has it
        details := details || jsonb_build_object('max_bytes', details -> 'maximum_bytes');
    end if;
    if code = 'INVALID_WORKFLOW' then
        details := details || jsonb_build_object('validation_errors',
            jsonb_build_array(jsonb_build_object('path', details -> 'field', 'message', message)));
    end if;
    hint := ojs_http.hint_of(hint);
    select s.status, s.name into status, name from ojs_http.status_of(code, details, path) s;

    if status is null then
        details := '{}';
        case
        when state = '42501' then
            code := 'PERMISSION_DENIED'; status := 403; name := 'permission_denied';
            message := 'this connection''s role may not do that';
            hint := 'Connect as a member of ojs_producer, ojs_worker, ojs_observer or ojs_admin, as the request needs.';
        when left(state, 2) in ('08', '40', '53', '55', '57') or state = '25006' then
            code := 'UNAVAILABLE'; status := 503; name := 'backend_error'; retryable := true;
            message := case when state = '25006' then 'this server is read-only'
                else 'the database cannot serve this request at the moment' end;
            hint := case when state = '25006' then 'Ask the primary server.' else 'Try again.' end;
        when state = 'P0001' or left(state, 2) = 'OJ' then
            -- A hook says no, in its own words.
            code := 'REJECTED'; status := 422; name := 'x_rejected';
            hint := nullif(hint, '');
        when context ~ e'(^|\n)hook "' then
            -- One that failed says no, too; what it said is for those who look into the server.
            raise log 'ojs.http: a hook failed request % with %', request_id, state using detail = context;
            code := 'REJECTED'; status := 422; name := 'x_rejected';
            message := 'a hook of this server failed, so the job was not pushed';
            hint := 'The server''s log tells more under this request_id.';
        else
            raise log 'ojs.http: request % failed with %: %', request_id, state,
                case when left(state, 2) = '22' then 'the message may quote data' else message end
                    using detail = context;
            code := 'BACKEND_ERROR'; status := 500; name := 'backend_error'; retryable := true;
            message := 'the request failed inside the server';
            hint := 'The server''s log tells more under this request_id.';
        end case;
    end if;

    headers := ojs_http.headers_of(status, code, details);
    return ojs_http.reply(status, ojs_http.error_body(name, code, message, retryable, details, hint,
        request_id), headers);
end $$;

-- No handler for that path, or not for that method.
create function ojs_http.no_route(method text, path text, allowed text, request_id text) returns ojs_http.response
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select case when allowed is null then
        ojs_http.reply(404, ojs_http.error_body('not_found', 'NOT_FOUND', 'there is nothing at this path', false,
            '{"resource_type": "path"}', 'Jobs are at /ojs/v1/jobs; docs/reference/http.md lists all paths.',
                request_id))
    else
        ojs_http.reply(405, ojs_http.error_body('x_method_not_allowed', 'METHOD_NOT_ALLOWED',
            format('this path does not take the method %s', left(method, 16)), false,
                jsonb_build_object('allowed', allowed),
            format('It takes %s.', allowed), request_id), jsonb_build_object('Allow', allowed))
    end
$$;

-- ../sql/http/serve.sql

-- serve.sql: the HTTP binding: the routes, and how ojs.http serves a request. Reading is in read.sql, errors are in
-- errors.sql; the handlers stand in the other files of sql/http/, one function each in schema ojs_http, and call the
-- public functions with the rights of the caller; what else they need of the server is in node.sql.

-- ROUTES -----------------------------------------------------------------------------------------------------------

-- Every path there is. A name with a colon stands for one part of the path; a path has one at most, or two that are its
-- end.
create function ojs_http.routes(out method text, out pattern text, out handler text) returns setof record
language sql immutable parallel safe
begin atomic
    values
        ('GET', '/ojs/manifest', 'manifest'),
        ('GET', '/health', 'health'),
        ('GET', '/ready', 'ready'),
        ('GET', '/metrics', 'metrics'),
        ('GET', '/ojs/v1/health', 'health'),
        ('GET', '/ojs/v1/ready', 'ready'),
        ('GET', '/ojs/v1/metrics', 'metrics'),
        ('POST', '/ojs/v1/jobs', 'push'),
        ('POST', '/ojs/v1/jobs/batch', 'push_batch'),
        ('POST', '/ojs/v1/jobs/results', 'results'),
        ('POST', '/ojs/v1/jobs/bulk', 'push_bulk'),
        ('POST', '/ojs/v1/jobs/bulk/cancel', 'cancel_bulk'),
        ('POST', '/ojs/v1/jobs/bulk/retry', 'retry_bulk'),
        ('POST', '/ojs/v1/jobs/bulk/delete', 'delete_bulk'),
        ('GET', '/ojs/v1/jobs/:id', 'info'),
        ('GET', '/ojs/v1/jobs/:id/lineage', 'lineage'),
        ('PATCH', '/ojs/v1/jobs/:id', 'change_job'),
        ('DELETE', '/ojs/v1/jobs/:id', 'cancel'),
        ('POST', '/ojs/v1/jobs/:id/cancel', 'cancel'),
        ('POST', '/ojs/v1/jobs/:id/activate', 'activate'),
        ('POST', '/ojs/v1/jobs/:id/ack', 'ack'),
        ('POST', '/ojs/v1/jobs/:id/nack', 'nack'),
        ('GET', '/ojs/v1/jobs/:id/progress', 'progress'),
        ('PUT', '/ojs/v1/jobs/:id/progress', 'set_progress'),
        ('POST', '/ojs/v1/jobs/:id/progress', 'set_progress'),
        ('GET', '/ojs/v1/jobs/:id/checkpoint', 'checkpoint'),
        ('PUT', '/ojs/v1/jobs/:id/checkpoint', 'save_checkpoint'),
        ('POST', '/ojs/v1/jobs/:id/checkpoint', 'save_checkpoint'),
        ('DELETE', '/ojs/v1/jobs/:id/checkpoint', 'delete_checkpoint'),
        ('GET', '/ojs/v1/jobs/:id/result', 'result'),
        ('POST', '/ojs/v1/workers/fetch', 'fetch'),
        ('POST', '/ojs/v1/workers/ack', 'ack'),
        ('POST', '/ojs/v1/workers/nack', 'nack'),
        ('POST', '/ojs/v1/workers/heartbeat', 'heartbeat'),
        ('POST', '/ojs/v1/workers/beat', 'heartbeat'),
        ('POST', '/ojs/v1/workers/register', 'register_worker'),
        ('POST', '/ojs/v1/workers/deregister', 'deregister_worker'),
        ('GET', '/ojs/v1/workers/:id/health', 'worker_health'),
        ('GET', '/ojs/v1/queues', 'queues'),
        ('POST', '/ojs/v1/queues', 'create_queue'),
        ('GET', '/ojs/v1/queues/:name', 'queue'),
        ('PUT', '/ojs/v1/queues/:name', 'configure_queue'),
        ('DELETE', '/ojs/v1/queues/:name', 'drop_queue'),
        ('GET', '/ojs/v1/queues/:name/stats', 'queue_stats'),
        ('GET', '/ojs/v1/queues/:name/config', 'queue_config'),
        ('PUT', '/ojs/v1/queues/:name/config', 'configure_queue'),
        ('POST', '/ojs/v1/queues/:name/pause', 'pause_queue'),
        ('POST', '/ojs/v1/queues/:name/resume', 'resume_queue'),
        ('POST', '/ojs/v1/queues/:name/drain', 'drain_queue'),
        ('POST', '/ojs/v1/queues/:name/purge', 'purge_queue'),
        ('GET', '/ojs/v1/dead-letter', 'dead_letters'),
        ('DELETE', '/ojs/v1/dead-letter', 'purge_dead_letters'),
        ('POST', '/ojs/v1/dead-letter/retry', 'retry_dead_letters'),
        ('GET', '/ojs/v1/dead-letter/stats', 'dead_letter_stats'),
        ('GET', '/ojs/v1/dead-letter/:id', 'dead_letter'),
        ('DELETE', '/ojs/v1/dead-letter/:id', 'delete_dead_letter'),
        ('POST', '/ojs/v1/dead-letter/:id/retry', 'retry_dead_letter'),
        ('GET', '/ojs/v1/cron', 'crons'),
        ('POST', '/ojs/v1/cron', 'schedule'),
        ('GET', '/ojs/v1/cron/:name', 'cron'),
        ('PUT', '/ojs/v1/cron/:name', 'schedule'),
        ('PATCH', '/ojs/v1/cron/:name', 'schedule'),
        ('DELETE', '/ojs/v1/cron/:name', 'unschedule'),
        ('POST', '/ojs/v1/cron/:name/trigger', 'trigger_cron'),
        ('GET', '/ojs/v1/workflows', 'workflows'),
        ('POST', '/ojs/v1/workflows', 'create_workflow'),
        ('GET', '/ojs/v1/workflows/:id', 'workflow'),
        ('DELETE', '/ojs/v1/workflows/:id', 'cancel_workflow'),
        ('POST', '/ojs/v1/workflows/:id/extend', 'extend_workflow'),
        ('GET', '/ojs/v1/events', 'events'),
        ('GET', '/ojs/v1/events/stream', 'event_stream'),
        ('GET', '/ojs/v1/jobs/:id/events', 'event_stream'),
        ('GET', '/ojs/v1/queues/:name/events', 'event_stream'),
        ('GET', '/ojs/v1/rate-limits', 'rate_limits'),
        ('GET', '/ojs/v1/rate-limits/:key', 'rate_limit'),
        ('PUT', '/ojs/v1/rate-limits/:key', 'set_rate_limit'),
        ('DELETE', '/ojs/v1/rate-limits/:key', 'unset_rate_limit'),
        ('DELETE', '/ojs/v1/rate-limits/:key/override', 'unset_rate_limit'),
        ('GET', '/ojs/v1/admin/stats', 'admin_stats'),
        ('GET', '/ojs/v1/admin/stats/history', 'stats_history'),
        ('GET', '/ojs/v1/admin/queues', 'admin_queues'),
        ('GET', '/ojs/v1/admin/queues/:name', 'admin_queue'),
        ('DELETE', '/ojs/v1/admin/queues/:name', 'drop_queue'),
        ('GET', '/ojs/v1/admin/queues/:name/config', 'queue_config'),
        ('PUT', '/ojs/v1/admin/queues/:name/config', 'configure_queue'),
        ('POST', '/ojs/v1/admin/queues/:name/pause', 'pause_queue_flat'),
        ('POST', '/ojs/v1/admin/queues/:name/resume', 'resume_queue_flat'),
        ('DELETE', '/ojs/v1/admin/queues/:name/jobs', 'purge_queue'),
        ('PUT', '/ojs/v1/admin/queues/:name/rate-limit', 'set_queue_rate_limit'),
        ('GET', '/ojs/v1/admin/jobs', 'admin_jobs'),
        ('POST', '/ojs/v1/admin/jobs/bulk/cancel', 'admin_cancel_bulk'),
        ('POST', '/ojs/v1/admin/jobs/bulk/retry', 'admin_retry_bulk'),
        ('POST', '/ojs/v1/admin/jobs/bulk/delete', 'admin_delete_bulk'),
        ('GET', '/ojs/v1/admin/jobs/:id', 'admin_job'),
        ('PATCH', '/ojs/v1/admin/jobs/:id', 'change_job'),
        ('GET', '/ojs/v1/admin/jobs/:id/explain', 'explain'),
        ('GET', '/ojs/v1/admin/jobs/:id/history', 'job_history'),
        ('POST', '/ojs/v1/admin/jobs/:id/cancel', 'cancel'),
        ('POST', '/ojs/v1/admin/jobs/:id/retry', 'retry'),
        ('POST', '/ojs/v1/admin/jobs/:id/discard', 'discard'),
        ('DELETE', '/ojs/v1/admin/jobs/:id', 'delete_job'),
        ('GET', '/ojs/v1/admin/workers', 'admin_workers'),
        ('GET', '/ojs/v1/admin/workers/:id', 'worker'),
        ('DELETE', '/ojs/v1/admin/workers/:id', 'forget_worker'),
        ('POST', '/ojs/v1/admin/workers/:id/quiet', 'quiet_worker'),
        ('POST', '/ojs/v1/admin/workers/:id/resume', 'resume_worker'),
        ('POST', '/ojs/v1/admin/workers/:id/terminate', 'terminate_worker'),
        ('GET', '/ojs/v1/admin/dead-letter', 'admin_dead_letters'),
        ('DELETE', '/ojs/v1/admin/dead-letter', 'purge_dead_letters'),
        ('POST', '/ojs/v1/admin/dead-letter/retry', 'retry_dead_letters'),
        ('GET', '/ojs/v1/admin/dead-letter/stats', 'dead_letter_stats'),
        ('POST', '/ojs/v1/admin/dead-letter/:id/retry', 'retry_dead_letter'),
        ('DELETE', '/ojs/v1/admin/dead-letter/:id', 'delete_dead_letter_flat'),
        ('GET', '/ojs/v1/schemas', 'schemas'),
        ('POST', '/ojs/v1/schemas', 'register_schema'),
        ('GET', '/ojs/v1/schemas/:type', 'schema'),
        ('DELETE', '/ojs/v1/schemas/:type', 'drop_schema'),
        ('GET', '/ojs/v1/schemas/:type/versions', 'schema_versions'),
        ('GET', '/ojs/v1/schemas/:type/:version', 'schema'),
        ('DELETE', '/ojs/v1/schemas/:type/:version', 'drop_schema'),
        ('GET', '/ojs/v1/admin/schemas/:type', 'admin_schema'),
        ('PUT', '/ojs/v1/admin/schemas/:type', 'set_schema_validation'),
        ('GET', '/ojs/v1/admin/schemas/:type/:version', 'admin_schema'),
        ('PUT', '/ojs/v1/admin/schemas/:type/:version', 'put_schema'),
        ('DELETE', '/ojs/v1/admin/schemas/:type/:version', 'drop_schema'),
        ('GET', '/ojs/v1/admin/pools', 'pools'),
        ('GET', '/ojs/v1/admin/pools/:name', 'pool'),
        ('PUT', '/ojs/v1/admin/pools/:name', 'set_pool'),
        ('DELETE', '/ojs/v1/admin/pools/:name', 'drop_pool'),
        ('GET', '/ojs/v1/admin/tenants', 'tenants'),
        ('GET', '/ojs/v1/admin/tenants/:name', 'tenant'),
        ('PUT', '/ojs/v1/admin/tenants/:name', 'set_tenant'),
        ('DELETE', '/ojs/v1/admin/tenants/:name', 'drop_tenant'),
        ('PUT', '/ojs/v1/admin/tenants/:name/limits', 'set_tenant_limits'),
        ('GET', '/ojs/v1/admin/tenants/:name/stats', 'tenant_stats'),
        ('GET', '/ojs/v1/admin/tenants/:name/jobs', 'tenant_jobs'),
        ('GET', '/ojs/v1/webhooks/subscriptions', 'webhooks'),
        ('POST', '/ojs/v1/webhooks/subscriptions', 'create_webhook'),
        ('GET', '/ojs/v1/webhooks/subscriptions/:id', 'webhook'),
        ('PATCH', '/ojs/v1/webhooks/subscriptions/:id', 'update_webhook'),
        ('DELETE', '/ojs/v1/webhooks/subscriptions/:id', 'drop_webhook'),
        ('POST', '/ojs/v1/webhooks/subscriptions/:id/test', 'test_webhook'),
        ('POST', '/ojs/v1/webhooks/subscriptions/:id/rotate-secret', 'rotate_webhook_secret'),
        ('GET', '/ojs/v1/webhooks/deliveries', 'webhook_deliveries'),
        ('GET', '/ojs/v1/webhooks/deliveries/:id', 'webhook_delivery'),
        ('POST', '/ojs/v1/webhooks/deliveries/:id/retry', 'retry_webhook_delivery'),
        ('GET', '/ojs/v1/admin/scheduling/stats', 'scheduling_stats'),
        ('GET', '/ojs/v1/admin/access', 'access'),
        ('GET', '/ojs/v1/admin/audit', 'audit'),
        ('GET', '/ojs/v1/admin/system/config', 'system_config'),
        ('GET', '/ojs/v1/admin/system/maintenance', 'maintenance'),
        ('POST', '/ojs/v1/admin/system/maintenance', 'set_maintenance'),
        ('POST', '/ojs/v1/admin/reset', 'reset'),
        ('PUT', '/v0/topics/:queue', 'create_topic'),
        ('GET', '/v0/topics/:queue', 'topic'),
        ('POST', '/v0/topics/:queue', 'topic_produce'),
        ('GET', '/v0/topics/:queue/work', 'topic_work'),
        ('POST', '/v0/topics/:queue/claim', 'topic_claim'),
        ('POST', '/v0/topics/:queue/ack', 'topic_ack'),
        ('POST', '/v0/topics/:queue/nack', 'topic_nack'),
        ('POST', '/v0/topics/:queue/extend', 'topic_extend'),
        -- Official clients ask for these; no document has them. The doubled paths are how two SDKs send them.
        ('POST', '/ojs/v1/workers/progress', 'worker_progress'),
        ('GET', '/ojs/v1/checkpoints/:id/resume', 'resume'),
        ('POST', '/ojs/v1/checkpoints/:id', 'save_step'),
        ('DELETE', '/ojs/v1/checkpoints/:id', 'delete_checkpoint'),
        ('GET', '/ojs/v1/ojs/v1/checkpoints/:id/resume', 'resume'),
        ('POST', '/ojs/v1/ojs/v1/checkpoints/:id', 'save_step'),
        ('DELETE', '/ojs/v1/ojs/v1/checkpoints/:id', 'delete_checkpoint'),
        ('GET', '/ojs/v1/unique-jobs', 'unique_jobs'),
        ('GET', '/ojs/v1/middleware', 'middleware'),
        ('GET', '/ojs/v1/queues/:name/priority-stats', 'priority_stats'),
        ('GET', '/ojs/v1/jobs/:id/progress/stream', 'event_stream'),
        ('GET', '/ojs/v1/crons', 'cron_page'),
        ('GET', '/ojs/v1/crons/:name', 'cron_flat'),
        ('PATCH', '/ojs/v1/crons/:name', 'change_cron'),
        ('DELETE', '/ojs/v1/crons/:name', 'unschedule');
end;

-- SERVING ----------------------------------------------------------------------------------------------------------

-- The handlers by path, a colon for each name: {"/ojs/v1/jobs/:": {"GET": "info", ...}, ...}. Immutable: its callers
-- fold it into a constant.
create function ojs_http.handlers_by_path() returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select jsonb_object_agg(path, handlers)
    from (
        select regexp_replace(r.pattern, ':[a-z]+', ':', 'g') as path, jsonb_object_agg(r.method, r.handler) as handlers
        from ojs_http.routes() r group by 1
    ) p
$$;

-- Which handler a request is for, and what the path says in the places of the pattern's names; or what methods the path
-- would take. Looked up as it stands, then with one of its parts for a name: what stands there goes before a name. A
-- path of more parts than any pattern has is none, and costs nothing.
create function ojs_http.find_route(method text, path text, out handler text, out names text[], out allowed text)
    returns record
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    parts constant text[] := case when octet_length(path) <= 4096 then string_to_array(path, '/') end;
    with_name text[];
    handlers jsonb := case when ':' <> all (parts) then ojs_http.handlers_by_path() -> path end;
begin
    names := '{}';
    if parts is null or cardinality(parts) > 9 then
        return;
    end if;
    for i in reverse cardinality(parts) .. 2 loop
        exit when handlers is not null;
        continue when parts[i] = '';
        with_name := parts;
        with_name[i] := ':';
        handlers := ojs_http.handlers_by_path() -> array_to_string(with_name, '/');
        if handlers is not null then
            names := array[ojs_http.decoded(parts[i])];
        end if;
    end loop;
    if handlers is null and cardinality(parts) > 3 and '' <> all (parts[cardinality(parts) - 1:]) then
        with_name := parts[:cardinality(parts) - 2] || '{:,:}'::text[];
        handlers := ojs_http.handlers_by_path() -> array_to_string(with_name, '/');
        if handlers is not null then
            names := array[ojs_http.decoded(parts[cardinality(parts) - 1]),
                ojs_http.decoded(parts[cardinality(parts)])];
        end if;
    end if;
    handler := handlers ->> method;
    if handler is null and handlers is not null then
        allowed := (select string_agg(m, ', ' order by m) from (
            select * from jsonb_object_keys(handlers) union select 'HEAD' where handlers ? 'GET' union
                select 'OPTIONS') of_path (m));
    end if;
end $$;

-- Refuses a body that is no JSON by its own account, and a version of the protocol or an extension that is not ours.
create function ojs_http.check_headers(headers jsonb, path text, has_body boolean) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    media_type text := lower(btrim(split_part(headers ->> 'content-type', ';', 1)));
    version text := headers ->> 'ojs-version';
    missing text;
begin
    if has_body and media_type not in ('application/openjobspec+json', 'application/json') then
        perform ojs_http.raise('INVALID_PAYLOAD', 'the media type of the body is not supported',
            '{"field": "Content-Type"}',
            'Send application/openjobspec+json, or application/json.');
    end if;
    if nullif(version, '') !~ '^1([.]0)*(-[0-9A-Za-z.-]+)?$' and path <> '/ojs/manifest' then
        perform ojs_http.raise('UNSUPPORTED_FEATURE', 'the version of OJS that OJS-Version asks for is not supported',
            '{"field": "OJS-Version", "supported": ["1.0"]}', 'Ask for 1.0, or leave the header out.');
    end if;
    if headers ? 'x-ojs-tenant' and coalesce(current_setting('ojs.tenancy', true), 'off') = 'off' then
        perform ojs_http.raise('UNSUPPORTED_FEATURE', 'X-OJS-Tenant asks for a tenant, and there are none',
            '{"field": "X-OJS-Tenant"}', 'Leave the header out, or set ojs.tenancy.');
    elsif headers ->> 'x-ojs-tenant' !~ '^[a-zA-Z0-9][a-zA-Z0-9._:-]{0,62}$' then
        perform ojs_http.raise('INVALID_PAYLOAD', 'X-OJS-Tenant is no tenant', '{"field": "X-OJS-Tenant"}',
            'Give 1 to 63 letters, digits, dots, underscores, colons or hyphens, the first a letter or a digit.');
    end if;
    if has_body and lower(btrim(headers ->> 'content-encoding')) not in ('', 'identity') then
        perform ojs_http.raise('UNSUPPORTED_FEATURE', 'the encoding of the body is not supported',
            '{"field": "Content-Encoding", "supported": ["identity"]}',
            'Send the body as plain JSON.');
    end if;
    select uri into missing from unnest(string_to_array(headers ->> 'ojs-requires-extension', ',')) uri
    where not jsonb_path_exists(ojs_http.extensions(), '$.*[*] ? (@.uri == $uri)',
        jsonb_build_object('uri', btrim(uri))) limit 1;
    if found then
        perform ojs_http.raise('UNSUPPORTED_FEATURE',
            'the extension that OJS-Requires-Extension names is not supported',
            jsonb_build_object('field', 'OJS-Requires-Extension', 'extension', left(btrim(missing), 128)),
                'GET /ojs/manifest lists the extensions.');
    end if;
end $$;

-- Where a client of the pipe waits and the database is not to: how many seconds the request would have waited,
-- or null if not at all.
create function ojs_http.would_wait(headers jsonb, body jsonb) returns text
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    details jsonb := coalesce(body #> '{error,details}', '{}');
    seconds numeric;
begin
    if headers ->> 'ojs-do-not-wait' is distinct from '1' then
        return null;
    elsif not details ? 'strategy' then
        details := jsonb_path_query_first(body, '$.items[*].error.details ? (exists(@.strategy))');
    end if;
    if details ->> 'strategy' = 'block' then
        seconds := coalesce(case when headers ? 'ojs-block-timeout'
            then least((headers ->> 'ojs-block-timeout')::numeric, 30) end,
            (details ->> 'block_timeout_ms')::numeric / 1000);
    end if;
    return case when seconds > 0 then trim_scale(seconds)::text end;
end $$;

-- For the request alone. Who acts for a tenant already acts for no other.
create function ojs_http.act_for(tenant text, before text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if before not in ('', tenant) then
        perform ojs_http.raise('PERMISSION_DENIED', 'the session acts for another tenant than X-OJS-Tenant names',
            '{"field": "X-OJS-Tenant", "reason": "tenant_not_allowed"}', 'Leave the header out.');
    end if;
    perform set_config('ojs.tenant', tenant, true);
end $$;

-- The gateway sets plan_cache_mode for its call alone; what is called here plans as it does elsewhere.
create function ojs.http(
    method text, path text, request_headers jsonb default '{}', request_body text default null
) returns table (status int, headers jsonb, body text)
language plpgsql volatile parallel unsafe set plan_cache_mode = auto set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    given jsonb := ojs_http.read_headers(request_headers);
    request_id text := ojs_http.request_id(given ->> 'x-request-id');
    only_path text := coalesce(split_part(path, '?', 1), '');
    stage text := 'path';
    request ojs_http.request;
    response ojs_http.response;
    route record;
    tenant_before constant text := current_setting('ojs.tenant', true);
    jobs jsonb; -- of a batch: large, and not in request, which each call copies
    state text; message text; detail text; hint text; context text;
begin
    -- A large one is not copied; btrim takes twelve times its length.
    if octet_length(request_body) <= 1000 then
        request_body := nullif(btrim(request_body, e' \t\r\n'), '');
    end if;
    begin
        route := ojs_http.find_route(case when upper(method) = 'HEAD' then 'GET' else upper(method) end, only_path);
        if route.handler is null and upper(method) = 'OPTIONS' and route.allowed is not null then
            response := ojs_http.reply(204, null, jsonb_build_object('Allow', route.allowed));
        elsif route.handler is null then
            response := ojs_http.no_route(method, only_path, route.allowed, request_id);
        else
            request.method := upper(method);
            request.path := only_path;
            request.names := route.names;
            request.query := case when strpos(path, '?') > 0
                then ojs_http.read_query(substr(path, strpos(path, '?') + 1)) else '{}' end;
            request.headers := given || jsonb_build_object('x-request-id', request_id);
            if request.method not in ('GET', 'HEAD') then
                perform ojs_http.check_headers(given, only_path, request_body is not null);
                stage := 'body';
                if request_body is not null then
                    perform ojs_http.check_body(route.handler, request_body);
                    if route.handler in ('push_batch', 'push_bulk') then
                        jobs := request_body::jsonb;
                        if jsonb_typeof(jobs) = 'object' and jsonb_typeof(jobs -> 'jobs') = 'array' then
                            request.body := jobs - 'jobs';
                            jobs := jobs -> 'jobs';
                        else
                            request.body := jobs;
                            jobs := null;
                        end if;
                    else
                        request.body := request_body::jsonb;
                    end if;
                    if jsonb_typeof(request.body) <> 'object' then
                        perform ojs_http.raise('INVALID_PAYLOAD', 'the body must be a JSON object',
                            '{"reason": "malformed"}', 'Send a JSON object.');
                    end if;
                end if;
            else
                perform ojs_http.check_headers(given, only_path, false);
            end if;
            stage := 'work';
            if given ? 'x-ojs-tenant' then
                perform ojs_http.act_for(given ->> 'x-ojs-tenant', tenant_before);
            end if;
            if jobs is null then
                execute format('select * from ojs_http.%I($1)', route.handler) into response using request;
            else
                response := ojs_http.push_once(request, jobs, route.handler);
                jobs := null;
            end if;
        end if;
    exception when others or assert_failure then
        get stacked diagnostics state = returned_sqlstate, message = message_text, detail = pg_exception_detail,
            hint = pg_exception_hint, context = pg_exception_context;
        response := ojs_http.problem(stage, only_path, request_id, state, message, detail, hint, context,
            coalesce(jobs, request.body));
    end;
    if given ? 'x-ojs-tenant' and current_setting('ojs.tenant', true) <> tenant_before then
        perform set_config('ojs.tenant', tenant_before, true);
    end if;
    if response.status in (422, 429) and given ? 'ojs-do-not-wait' then
        response.headers := response.headers || jsonb_strip_nulls(jsonb_build_object('OJS-Would-Wait',
            ojs_http.would_wait(given, response.body)));
    end if;
    status := response.status;
    -- A client that names its version of OJS may be an SDK that takes only what names application/json for JSON.
    headers := jsonb_build_object('Content-Type', 'application/openjobspec+json' || case when given ? 'ojs-version'
        then '; alias="application/json"' else '' end, 'OJS-Version', '1.0', 'X-Request-Id', request_id)
        || coalesce(response.headers, '{}');
    body := case when upper(method) = 'HEAD' or status = 204 then ''
        when ojs_http.missing_nodes() is not null and jsonb_typeof(response.body) = 'object'
            then (response.body || jsonb_build_object('missing_nodes', ojs_http.missing_nodes()))::text
        else coalesce(response.content, response.body::text, '') end;
    response := null; -- large, and in body by now
    return next;
end $$;
comment on function ojs.http(text, text, jsonb, text) is
    'Serves one request of the OJS HTTP binding with the rights of the caller: path with its query string; errors are '
    'answers, not exceptions';

-- ../sql/http/bulk.sql

-- bulk.sql: many jobs in one request: results, cancelling, retrying, deleting.

-- The header goes before the field.
create function ojs_http.idempotency_key(request ojs_http.request, body jsonb) returns text
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select coalesce(request.headers ->> 'idempotency-key', ojs_http.text_field(body, 'idempotency_key'))
$$;

-- Returns true if the batch is all or none.
create function ojs_http.is_atomic(body jsonb, otherwise text) returns boolean
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    atomicity text := coalesce(ojs_http.text_field(body, 'atomicity'), otherwise);
begin
    if atomicity not in ('atomic', 'partial') then
        perform ojs_http.raise('INVALID_PAYLOAD', 'atomicity must be atomic or partial', '{"field": "atomicity"}',
            'Give atomic, partial, or nothing.');
    end if;
    return atomicity = 'atomic';
end $$;

-- An error of one item, in the words of HTTP.
create function ojs_http.item_error(error jsonb) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select error || jsonb_build_object('code', coalesce(s.name, 'x_rejected'))
    from ojs_http.status_of(error ->> 'code', coalesce(error -> 'details', '{}'), '') s
$$;

-- An item of a batch, or a job, without what the client has sent.
create function ojs_http.abridged(item jsonb) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select case when item ? 'job' then item || jsonb_build_object('job', ojs_http.abridged(item -> 'job'))
        when item ? 'id' then (select jsonb_object_agg(key, value) from jsonb_each(item)
            where key = any ('{id,type,queue,state,priority,attempt,created_at,scheduled_at,started_at,'
                'completed_at,discarded_at,cancelled_at,deduplicated}'))
            || '{"abridged": true}'
        else item end
$$;

-- A request of which nothing was done, with the reason of each item. It may be tried again if any item may.
create function ojs_http.nothing_done(request ojs_http.request, message text, body jsonb) returns ojs_http.response
language sql stable parallel safe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(422, body || ojs_http.error_body('invalid_request', 'INVALID_PAYLOAD', message,
        error is not null, '{}',
        'items says what is wrong with each.', request.headers ->> 'x-request-id'),
        jsonb_build_object('X-OJS-Batch-Size', jsonb_array_length(body -> 'items')::text)
            || case when error is not null then ojs_http.headers_of(429, error ->> 'code', error -> 'details')
                else '{}' end)
    from jsonb_path_query_first(body, '$.items[*].error ? (@.retryable == true)') as error
$$;

-- MANY JOBS BY ID OR BY WHAT THEY ARE ------------------------------------------------------------------------------

-- The times of a filter, read as those of a push are.
create function ojs_http.filter_times(filter jsonb) returns jsonb
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select filter || coalesce(jsonb_object_agg(name,
        ojs_http.rfc3339(ojs_http.time_value(ojs_http.text_field(filter, name), name))), '{}')
    from unnest('{since,until,enqueued_after,enqueued_before}'::text[]) name where filter ? name
$$;

-- What the body selects, as the functions of SQL have it.
create function ojs_http.selection(body jsonb) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    ids text[] := coalesce(ojs_http.texts_field(body, 'job_ids'), ojs_http.texts_field(body, 'ids'));
    filter jsonb := ojs_http.field(body, 'filter', 'object');
begin
    if (ids is null) = (filter is null) then
        perform ojs_http.raise('INVALID_PAYLOAD', 'either job_ids or filter must be given', '{"field": "job_ids"}',
            'Name jobs, or say which; not both.');
    elsif filter ? 'ids' then
        perform ojs_http.raise('INVALID_PAYLOAD', 'filter cannot hold ids', '{"field": "filter"}',
            'Name jobs by job_ids.');
    elsif ids is not null then
        return jsonb_build_object('ids', (select coalesce(jsonb_agg(lower(id)), '[]') from unnest(ids) id));
    end if;
    filter := ojs_http.filter_times(filter);
    return filter - '{enqueued_after,enqueued_before}'::text[] || jsonb_strip_nulls(jsonb_build_object(
        'since', coalesce(filter -> 'since', filter -> 'enqueued_after'), 'until',
            coalesce(filter -> 'until', filter -> 'enqueued_before')));
end $$;

create function ojs_http.do_many(operation text, filter jsonb, confirm boolean) returns jsonb
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select case operation
        when 'cancel' then ojs.cancel_many(filter, confirm)
        when 'retry' then ojs.retry_many(filter, confirm)
        else ojs.delete_many(filter, confirm) end
$$;

-- A filter says what it means; only one without any condition must be confirmed.
create function ojs_http.do_bulk(request ojs_http.request, operation text, verb text) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    filter jsonb := ojs_http.selection(body);
    atomic boolean := ojs_http.is_atomic(body, 'partial');
    confirm boolean := coalesce(ojs_http.field(body, 'confirm', 'boolean')::boolean, filter <> '{}');
    done jsonb;
    answer jsonb;
begin
    if atomic then
        perform ojs_http.check_atomic();
    end if;
    if operation = 'cancel' and not filter ?| '{ids,state}' then
        filter := filter || '{"state": ["available", "scheduled"]}';
    end if;
    begin
        done := ojs_http.do_many(operation, filter, confirm);
        if atomic and done -> 'failed' <> '0' then
            raise exception using errcode = 'OJ0RB';
        end if;
    exception when sqlstate 'OJ0RB' then
        done := done || jsonb_build_object('succeeded', 0, 'items',
            (select jsonb_agg(case when i ->> 'status' = 'skipped' then i
            else i || '{"status": "rolled_back"}' end order by (i -> 'index')::int)
                from jsonb_array_elements(done -> 'items') i));
    end;
    answer := jsonb_build_object('total_matched', done -> 'matched', verb, done -> 'succeeded', 'skipped',
        done -> 'failed',
        'more', done -> 'more', 'items', done -> 'items');
    if done -> 'failed' <> '0' and done -> 'succeeded' = '0' then
        return ojs_http.nothing_done(request, format('no job was %s', verb), answer);
    end if;
    return ojs_http.reply(case when done -> 'failed' <> '0' then 207 else 200 end, answer,
        jsonb_build_object('X-OJS-Batch-Size', done ->> 'matched'));
end $$;

create function ojs_http.bulk(request ojs_http.request, operation text, verb text) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    key text := ojs_http.idempotency_key(request, body);
    before jsonb := ojs_http.take_key(operation, key, body - 'idempotency_key');
    response ojs_http.response;
begin
    if before is not null then
        return jsonb_populate_record(response, before);
    end if;
    response := ojs_http.do_bulk(request, operation, verb);
    perform ojs_http.keep_answer(operation, key, to_jsonb(response));
    return response;
end $$;

create function ojs_http.cancel_bulk(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.bulk(request, 'cancel', 'cancelled')
$$;

create function ojs_http.retry_bulk(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.bulk(request, 'retry', 'retried')
$$;

create function ojs_http.delete_bulk(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.bulk(request, 'delete', 'deleted')
$$;

-- FOR ADMINISTRATORS: only what is confirmed is done ----------------------------------------------------------------

create function ojs_http.must_confirm(body jsonb) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if ojs_http.field(body, 'confirm', 'boolean') is distinct from 'true' then
        perform ojs_http.raise('INVALID_PAYLOAD', 'confirm must be true', '{"field": "confirm"}',
            'Send "confirm": true once you are sure.');
    end if;
end $$;

create function ojs_http.admin_bulk(request ojs_http.request, operation text, filter jsonb) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    done jsonb;
begin
    perform ojs_http.must_confirm(request.body);
    done := ojs_http.do_many(operation, filter, true);
    return ojs_http.reply(200, jsonb_build_object('action', operation, 'matched', done -> 'matched', 'succeeded',
        done -> 'succeeded',
        'failed', done -> 'failed', 'more', done -> 'more', 'errors', (
            select coalesce(jsonb_agg(jsonb_build_object('job_id', i -> 'job_id', 'code', i -> 'code', 'error',
                i -> 'reason') order by (i -> 'index')::int), '[]')
            from jsonb_array_elements(done -> 'items') i where i ->> 'status' = 'skipped'))
        || jsonb_strip_nulls(jsonb_build_object('duplicates', ( -- INT-09
            select jsonb_agg(jsonb_build_object('job_id', i -> 'job_id', 'existing_job_id', i -> 'existing_job_id',
                'existing_job_state', i -> 'existing_job_state') order by (i -> 'index')::int)
            from jsonb_array_elements(done -> 'items') i where i ? 'existing_job_id'))));
end $$;

create function ojs_http.admin_cancel_bulk(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.admin_bulk(request, 'cancel', ojs_http.selection(ojs_http.object(request)))
$$;

create function ojs_http.admin_retry_bulk(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.admin_bulk(request, 'retry', ojs_http.selection(ojs_http.object(request)))
$$;

create function ojs_http.admin_delete_bulk(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.admin_bulk(request, 'delete', ojs_http.selection(ojs_http.object(request)))
$$;

-- Dead letters: all of them, or those that the filter says.
create function ojs_http.retry_dead_letters(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.admin_bulk(request, 'retry',
        ojs_http.filter_times(coalesce(ojs_http.field(ojs_http.object(request), 'filter', 'object'), '{}'))
        || '{"state": "discarded", "dead_letter": true}')
$$;

-- Deletes what a filter says, in portions of a batch each. Returns the number of jobs deleted.
create function ojs_http.delete_all(filter jsonb) returns bigint
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    done jsonb;
    n bigint := 0;
begin
    loop
        done := ojs.delete_many(filter, true);
        n := n + (done ->> 'succeeded')::int;
        exit when done -> 'more' <> 'true' or done -> 'succeeded' = '0';
    end loop;
    return n;
end $$;

create function ojs_http.purge_dead_letters(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.purge_asked(request);
    before text := ojs_http.rfc3339(ojs_http.time_value(ojs_http.text_field(body, 'older_than'), 'older_than'));
begin
    perform ojs_http.must_confirm(body);
    return ojs_http.reply(200, jsonb_build_object('purged_count',
        ojs_http.delete_all(ojs_http.filter_times(coalesce(ojs_http.field(body, 'filter', 'object'), '{}'))
        || jsonb_strip_nulls(jsonb_build_object('until', before)) || '{"state": "discarded", "dead_letter": true}')));
end $$;

create function ojs_http.results(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    ids text[] := ojs_http.texts_field(ojs_http.object(request), 'ids', true);
begin
    if cardinality(ids) > 1000 then
        perform ojs_http.raise('BATCH_SIZE_EXCEEDED', format('a call may name 1000 jobs, not %s', cardinality(ids)),
            jsonb_build_object('field', 'ids', 'size', cardinality(ids), 'maximum', 1000), 'Split the call.');
    end if;
    perform ojs_http.upkeep();
    return (
        select ojs_http.reply(200, jsonb_build_object('results',
            coalesce(jsonb_object_agg(s.id, jsonb_build_object('state', s.state, 'result',
            s.result)) filter (where s.fits), '{}'))
            || case when bool_and(s.fits) then '{}' else jsonb_build_object('remaining',
                jsonb_agg(s.id) filter (where not s.fits)) end)
        from (
            select r.*, coalesce(sum(pg_column_size(r.result)) over (order by r.id rows between unbounded preceding
                and 1 preceding), 0) < ojs_http.most_bytes() as fits
            from ojs.results(array(select ojs_http.job_id(id, false) from unnest(ids) id)) r
        ) s);
end $$;

-- ../sql/http/workers.sql

-- workers.sql: workers over HTTP: heartbeats, and what there is to see and say of them.

-- Conformance cases tell a worker to stop by the meta of a job it holds. Only on a server of tests (R-66).
create function ojs_http.obey_test_directive(worker text, ids uuid[]) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    directive text;
begin
    perform ojs_http.now(); -- loads the library, and with it its settings
    if current_setting('ojs.conformance_mode', true)::boolean then
        for directive in
            select ojs.info(id) -> 'meta' ->> 'test_directive' from unnest(ids) id
            where ojs.info(id) -> 'meta' ->> 'test_directive' in ('quiet', 'terminate')
        loop
            perform ojs.set_worker_state(worker, directive);
        end loop;
    end if;
end $$;

create function ojs_http.heartbeat(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    body jsonb := ojs_http.object(request);
    worker text := ojs_http.text_field(body, 'worker_id', true);
    -- active_jobs may be a mere number (R-34).
    named text[] := coalesce(
        case when jsonb_typeof(body -> 'active_jobs') = 'number'
            then null else ojs_http.texts_field(body, 'active_jobs') end,
        ojs_http.texts_field(body, 'active_job_ids'), '{}');
    ids uuid[] := array(select id::uuid from unnest(named) id
        where id ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$');
    no_ids text[] := array(select left(id, 64) from unnest(named) id
        where id !~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' limit 1000);
    state text := coalesce(ojs_http.text_field(body, 'state'), 'running');
    beat record;
begin
    perform ojs_http.obey_test_directive(worker, ids);
    select * into beat from ojs.beat(worker, ids, state,
        nullif(body - '{worker_id,active_jobs,active_job_ids,state,visibility_timeout_ms}'::text[], '{}'),
        ojs_http.number_field(body, 'visibility_timeout_ms', 0, 86400000) * interval '1 millisecond');
    return ojs_http.reply(200, jsonb_build_object(
        'state', beat.directive,
        'acknowledged', true,
        'jobs_extended', to_jsonb(beat.extended),
        'cancelled_jobs', to_jsonb(beat.cancelled),
        'lost_jobs', to_jsonb(beat.lost::text[] || no_ids),
        'server_time', ojs_http.rfc3339(ojs_http.now())));
end $$;

create function ojs_http.no_such_worker(worker text) returns void
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.raise('NOT_FOUND', format('worker %s does not exist', left(worker, 64)),
        jsonb_build_object('resource_type', 'worker', 'resource_id', left(worker, 64)),
            'GET /ojs/v1/admin/workers lists them.')
$$;

create function ojs_http.deregister_worker(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    worker text := ojs_http.text_field(body, 'worker_id', true);
begin
    if not ojs.deregister_worker(worker, coalesce(ojs_http.field(body, 'release', 'boolean')::boolean, false)) then
        perform ojs_http.no_such_worker(worker);
    end if;
    return ojs_http.reply(200, jsonb_build_object('deregistered', true, 'worker_id', worker));
end $$;

create function ojs_http.worker_json(w ojs.workers) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_strip_nulls(jsonb_build_object('id', w.worker, 'state',
        case w.status when 'dead' then 'stale' else w.status end, 'status', w.status, 'reported_state', w.state,
        'directive', w.directive,
        'hostname', w.hostname, 'pid', w.pid, 'version', w.info -> 'version', 'queues', coalesce(w.queues, '{}'),
            'concurrency', w.concurrency, 'active_jobs', w.active_jobs,
        'started_at', coalesce(w.info -> 'started_at', to_jsonb(ojs_http.rfc3339(w.registered_at))),
        'registered_at', ojs_http.rfc3339(w.registered_at), 'last_heartbeat_at', ojs_http.rfc3339(w.last_seen_at),
            'metadata', w.info))
$$;

create function ojs_http.worker_named(request ojs_http.request) returns ojs.workers
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    found_worker ojs.workers;
begin
    select * into found_worker from ojs.workers w where w.worker = request.names[1];
    if not found then
        perform ojs_http.no_such_worker(request.names[1]);
    end if;
    return found_worker;
end $$;

-- How a worker is by what it last said and was told: 503 once it takes no more jobs.
create function ojs_http.worker_health(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    worker ojs.workers := ojs_http.worker_named(request);
begin
    return ojs_http.reply(case when worker.status in ('dead', 'stale') then 503 else 200 end,
        ojs_http.worker_json(worker)
        || jsonb_build_object('worker_id', worker.worker, 'state',
            case worker.status when 'quiet' then 'draining' when 'terminate' then 'shutting_down'
            else worker.status end));
end $$;

create function ojs_http.worker(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    worker ojs.workers := ojs_http.worker_named(request);
begin
    return ojs_http.reply(200, ojs_http.worker_json(worker) || jsonb_build_object('active_job_ids',
        coalesce(to_jsonb(worker.active_job_ids), '[]')));
end $$;

-- What its next heartbeat will tell a worker.
create function ojs_http.direct_worker(request ojs_http.request, directive text) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.worker_named(request);
    perform ojs.set_worker_state(request.names[1], directive);
    return ojs_http.worker(request);
end $$;

create function ojs_http.quiet_worker(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog,
    pg_temp as $$ select ojs_http.direct_worker(request, 'quiet') $$;

create function ojs_http.resume_worker(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog,
    pg_temp as $$ select ojs_http.direct_worker(request, 'running') $$;

create function ojs_http.terminate_worker(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog,
    pg_temp as $$ select ojs_http.direct_worker(request, 'terminate') $$;

-- Only what no longer works may be forgotten from outside (ADM-03). Its jobs are given back as those of a dead worker:
-- with its row goes what its death would be noticed by.
create function ojs_http.forget_worker(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    worker ojs.workers := ojs_http.worker_named(request);
begin
    if worker.status not in ('dead', 'stale') then
        perform ojs_http.raise('INVALID_STATE_TRANSITION',
            format('worker %s is %s', left(worker.worker, 64), worker.status),
            jsonb_build_object('current_state', worker.status, 'attempted', 'deregister'),
                'Only a stale or dead worker can be removed.');
    end if;
    perform ojs_http.take_back_jobs(worker.worker);
    perform ojs.deregister_worker(worker.worker);
    return ojs_http.reply(204, null);
end $$;

-- ../sql/http/queues.sql

-- queues.sql: queues and the list of dead letters over HTTP.

-- PAGES ------------------------------------------------------------------------------------------------------------

-- A cursor names the last entry of a page; clients cannot read anything out of it, and need not.
create function ojs_http.cursor_of(key text) returns text
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select encode(convert_to(key, 'UTF8'), 'hex')
$$;

create function ojs_http.page_key(request ojs_http.request, pattern text default '') returns text
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    key text;
begin
    begin
        key := convert_from(decode(nullif(request.query ->> 'cursor', ''), 'hex'), 'UTF8');
    exception when data_exception then
        key := null;
    end;
    if coalesce(request.query ->> 'cursor', '') <> '' and (key is null or key !~ pattern) then
        perform ojs_http.raise('INVALID_PAYLOAD', 'cursor is none that this server gave out', '{"field": "cursor"}',
            'Begin without a cursor.');
    end if;
    return key;
end $$;

-- One page of a list, of which the caller has read one entry more than it shows, with the keys of all of them.
create function ojs_http.page(field text, entries jsonb[], keys text[], total bigint, most int, skipped int,
    shown int default null) returns ojs_http.response
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, jsonb_build_object(
        field, coalesce(to_jsonb(entries[:most]), '[]'),
        'pagination', jsonb_strip_nulls(jsonb_build_object('total', total, 'limit', most, 'offset', skipped,
            'has_more', coalesce(cardinality(keys), 0) > coalesce(shown, most),
            'next_cursor', ojs_http.cursor_of(case when cardinality(keys) > coalesce(shown, most)
                then keys[coalesce(shown, most)] end)))))
$$;

-- How many jobs a filter describes, where a page has `listed` of at most `most` after `skipped`: one that is not full
-- says it itself.
create function ojs_http.total_listed(filter jsonb, most int, skipped int, listed int) returns bigint
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select case when listed < most and (listed > 0 or skipped = 0) then skipped + listed
        else ojs_http.count_listed(filter) end
$$;

-- QUEUES -----------------------------------------------------------------------------------------------------------

create function ojs_http.queues(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    most int := ojs_http.query_number(request, 'limit', 50, 1, 200);
    skipped int := ojs_http.query_number(request, 'offset', 0, 0, 1000000000);
    after text := ojs_http.page_key(request);
    entries jsonb[];
    keys text[];
begin
    select array_agg(jsonb_build_object('name', q.name, 'status', q.state, 'paused', q.state = 'paused', 'created_at',
        ojs_http.rfc3339(q.created_at))
            order by q.name), array_agg(q.name order by q.name)
    into entries, keys
    from (select * from ojs.queues where after is null or name > after order by name limit most + 1 offset skipped) q;
    return ojs_http.page('queues', entries, keys, (select count(*) from ojs.queues), most, skipped);
end $$;

create function ojs_http.queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    info jsonb := ojs.queue_info(request.names[1]);
begin
    return ojs_http.reply(200,
        info - '{topic,count,performance,head_seq,earliest_seq}'::text[] || jsonb_build_object('queue',
        info -> 'queue' || jsonb_build_object('status', info -> 'state', 'type', info -> 'type', 'created_at',
            info -> 'created_at', 'config', info -> 'config')));
end $$;

-- Makes a queue, or gives one that is there these settings.
create function ojs_http.create_queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    named text := ojs_http.text_field(body, 'name', true);
    known boolean := exists (select from ojs.queues q where q.name = named);
    queue jsonb;
begin
    perform ojs_http.only(body, 'name', 'config');
    queue := ojs.create_queue(named, ojs_http.with_bound(coalesce(ojs_http.field(body, 'config', 'object'), '{}')));
    return ojs_http.reply(case when known then 200 else 201 end, queue || jsonb_build_object('queue', queue),
        jsonb_build_object('Location', '/ojs/v1/queues/' || named));
end $$;

create function ojs_http.queue_stats(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    info jsonb;
begin
    perform ojs_http.upkeep();
    info := ojs.queue_info(request.names[1]);
    return ojs_http.reply(200, (info -> 'stats') || jsonb_build_object('queue', info -> 'queue', 'status',
        info -> 'state', 'stats', info -> 'stats',
        'computed_at', info -> 'stats' -> 'computed_at'));
end $$;

create function ojs_http.queue_config(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    info jsonb;
begin
    if request.names[1] = '_default' then
        perform from ojs.queues limit 1; -- who may not look at queues may not look at this either
        return ojs_http.reply(200, jsonb_build_object('name', '_default', 'config', ojs_http.default_policy()));
    end if;
    info := ojs.queue_info(request.names[1]);
    return ojs_http.reply(200, jsonb_build_object('name', info -> 'name', 'config', info -> 'config'));
end $$;

-- The settings of a bound may come in an object of their own.
create function ojs_http.with_bound(config jsonb) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    bound jsonb := coalesce(ojs_http.field(config, 'backpressure', 'object'), '{}');
begin
    if bound ? 'strategy' then
        bound := bound - 'strategy' || jsonb_build_object('discard', bound -> 'strategy');
    end if;
    return config - 'backpressure' || bound;
end $$;

create function ojs_http.configure_queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    queue jsonb := ojs.configure_queue(request.names[1], ojs_http.with_bound(ojs_http.object(request)));
begin
    return ojs_http.reply(200, jsonb_build_object('queue', queue, 'name', queue -> 'name', 'config',
        queue -> 'config'));
end $$;

create function ojs_http.queue_is(name text, state text, at_field text) returns jsonb
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('queue', jsonb_build_object('name', name, 'status', state, 'paused', state = 'paused'),
        'status', state,
        at_field, ojs_http.rfc3339(ojs_http.now()))
$$;

create function ojs_http.pause_queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs.pause_queue(request.names[1]);
    return ojs_http.reply(200, ojs_http.queue_is(request.names[1], 'paused', 'paused_at'));
end $$;

create function ojs_http.resume_queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs.resume_queue(request.names[1]);
    return ojs_http.reply(200, ojs_http.queue_is(request.names[1], 'active', 'resumed_at'));
end $$;

create function ojs_http.drain_queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs.drain_queue(request.names[1]);
    return ojs_http.reply(200, ojs_http.queue_is(request.names[1], 'draining', 'draining_since'));
end $$;

-- Like pause_queue(), but without the wrapper, for administrators, and only of a queue that is there.
create function ojs_http.pause_queue_flat(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    answer jsonb;
begin
    perform ojs.queue_info(request.names[1]);
    answer := (ojs_http.pause_queue(request)).body;
    return ojs_http.reply(200, answer -> 'queue' || (answer - 'queue'));
end $$;

create function ojs_http.resume_queue_flat(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    answer jsonb;
begin
    perform ojs.queue_info(request.names[1]);
    answer := (ojs_http.resume_queue(request)).body;
    return ojs_http.reply(200, answer -> 'queue' || (answer - 'queue'));
end $$;

create function ojs_http.purge_queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.purge_asked(request);
    states text[] := ojs_http.texts_field(body, 'states');
    before text := ojs_http.rfc3339(ojs_http.time_value(ojs_http.text_field(body, 'older_than'), 'older_than'));
    n bigint;
begin
    perform ojs_http.only((body || coalesce(ojs_http.field(body, 'filter', 'object'), '{}')) - 'filter', 'states',
        'confirm', 'older_than');
    if states is null then
        perform ojs_http.raise('INVALID_PAYLOAD', 'states is missing', '{"field": "states"}',
            'Name states such as available, scheduled, completed.');
    elsif before is not null then
        -- By the time of their end, so only of what has ended.
        perform ojs_http.must_confirm(body);
        perform ojs.queue_info(request.names[1]);
        n := ojs_http.delete_all(jsonb_build_object('queue', request.names[1], 'until', before)
            || jsonb_build_object('state', states));
    else
        n := ojs.purge_queue(request.names[1], states,
            coalesce(ojs_http.field(body, 'confirm', 'boolean')::boolean, false));
    end if;
    return ojs_http.reply(200,
        jsonb_strip_nulls(jsonb_build_object('name', request.names[1], 'states', states, 'purged_count', n)));
end $$;

-- What becomes of its jobs is said in the query string or in the body.
create function ojs_http.drop_queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request, false);
    strategy text := coalesce(request.query ->> 'strategy', ojs_http.text_field(body, 'strategy'), 'reject');
    target text := coalesce(request.query ->> 'target', ojs_http.text_field(body, 'target_queue'),
        ojs_http.text_field(body, 'target'));
    n bigint := ojs.drop_queue(request.names[1], strategy, target);
begin
    return ojs_http.reply(200,
        jsonb_strip_nulls(jsonb_build_object('deleted', true, 'name', request.names[1], 'queue', request.names[1],
        'strategy', strategy, 'target_queue', target, 'jobs', n, 'jobs_affected', n, 'state', 'deleted')));
end $$;

-- DEAD LETTERS -----------------------------------------------------------------------------------------------------

-- A page of the jobs that a filter describes, the newest first, by cursor.
create function ojs_http.job_list(request ojs_http.request, field text, filter jsonb) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    most int := ojs_http.query_number(request, 'limit', 50, 1, 200);
    skipped int := ojs_http.query_number(request, 'offset', 0, 0, 1000000000);
    after uuid := ojs_http.page_key(request, '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$');
    entries jsonb[];
    keys text[];
    shown int;
begin
    with page as (
        select listed.job, listed.job ->> 'id' as id, listed.place
        from ojs_http.listed_jobs(filter || jsonb_strip_nulls(jsonb_build_object('beyond', after)), most + 1,
            skipped) listed
    ), fitting as (
        -- One is shown however large it is, and the one after the last says that there is more.
        select *, coalesce(sum(pg_column_size(job)) over (order by place rows between unbounded preceding
            and 1 preceding), 0) < ojs_http.most_bytes() as fits
        from page
    )
    select (select array_agg(f.job order by f.place) from fitting f where f.fits),
        (select array_agg(f.id order by f.place) from fitting f),
        least(most, (select count(*) from fitting f where f.fits))
    into entries, keys, shown;
    return ojs_http.page(field, entries[:shown], keys, ojs_http.total_listed(filter,
        case when after is null then most + 1 else 0 end, skipped, coalesce(cardinality(keys), 0)), most, skipped,
        shown);
end $$;

create function ojs_http.dead_letters(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.job_list(request, 'jobs', ojs_http.dead_letter_filter(request))
$$;

-- QUEUES AS TOPICS -------------------------------------------------------------------------------------------------

create function ojs_http.create_topic(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    queue jsonb := ojs.create_queue(request.names[1], ojs_http.object(request, false));
begin
    return ojs_http.reply(200, queue || jsonb_build_object('topic', queue -> 'name'));
end $$;

create function ojs_http.topic(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.upkeep();
    return ojs_http.reply(200, ojs.queue_info(request.names[1]));
end $$;

-- ../sql/http/cron.sql

-- cron.sql: cron entries and events over HTTP, events as streams too.

create function ojs_http.cron_json(c ojs.crons) returns jsonb
language sql stable parallel safe set search_path = pg_catalog, pg_temp as $$
    select to_jsonb(c) - 'job' || jsonb_build_object(
        'cron', c.expression, 'job_template', c.job, 'type', c.job -> 'type', 'args', coalesce(c.job -> 'args', '[]'),
        'options', c.job - '{type,args,options}'::text[] || coalesce(nullif(c.job -> 'options', 'null'), '{}'),
        'status', case when c.enabled then 'active' else 'disabled' end,
        'next_run_at', ojs_http.rfc3339(c.next_run_at), 'last_run_at', ojs_http.rfc3339(c.last_run_at), 'created_at',
            ojs_http.rfc3339(c.created_at))
$$;

create function ojs_http.no_such_cron(name text) returns void
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.raise('NOT_FOUND', format('cron entry %s does not exist', left(name, 64)),
        jsonb_build_object('resource_type', 'cron', 'resource_id', left(name, 64)), 'GET /ojs/v1/cron lists them.')
$$;

create function ojs_http.crons(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    most int := ojs_http.query_number(request, 'limit', 50, 1, 200);
    skipped int := ojs_http.query_number(request, 'offset', 0, 0, 1000000000);
    after text := ojs_http.page_key(request);
    running boolean := ojs_http.query_word(request, 'enabled', 'true', 'false')::boolean;
    entries jsonb[];
    keys text[];
    total bigint;
    page ojs_http.response;
begin
    select array_agg(ojs_http.cron_json(c.entry) order by c.name), array_agg(c.name order by c.name) into entries, keys
    from (
        select l as entry, l.name from ojs.crons l where (running is null or l.enabled = running)
            and (after is null or l.name > after)
        order by l.name limit most + 1 offset skipped
    ) c;
    select count(*) into total from ojs.crons l where running is null or l.enabled = running;
    page := ojs_http.page('crons', entries, keys, total, most, skipped);
    return ojs_http.reply(page.status, page.body || jsonb_build_object('cron_jobs', page.body -> 'crons', 'count',
        jsonb_array_length(page.body -> 'crons')));
end $$;

-- As the admin UI lists them.
create function ojs_http.cron_item(c ojs.crons) returns jsonb
language sql stable parallel safe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.cron_json(c) || jsonb_build_object('id', c.name, 'schedule', c.expression, 'meta',
        coalesce(c.job -> 'meta', '{}'),
        'queue', coalesce(c.job #> '{options,queue}', c.job -> 'queue', '"default"'))
$$;

create function ojs_http.cron_page(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    entries jsonb[];
begin
    select array_agg(ojs_http.cron_item(p.entry) order by p.name) into entries
    from (
        select c as entry, c.name from ojs.crons c order by c.name
        limit ojs_http.query_number(request, 'per_page', 20, 1, 100) offset ojs_http.page_start(request)
    ) p;
    return ojs_http.numbered_page(request, entries, (select count(*) from ojs.crons));
end $$;

create function ojs_http.cron_flat(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    entry jsonb;
begin
    select ojs_http.cron_item(c) into entry from ojs.crons c where c.name = request.names[1];
    if entry is null then
        perform ojs_http.no_such_cron(request.names[1]);
    end if;
    return ojs_http.reply(200, entry);
end $$;

create function ojs_http.change_cron(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.schedule(request);
    return ojs_http.cron_flat(request);
end $$;

create function ojs_http.cron(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    entry jsonb;
begin
    select ojs_http.cron_json(c) into entry from ojs.crons c where c.name = request.names[1];
    if entry is null then
        perform ojs_http.no_such_cron(request.names[1]);
    end if;
    return ojs_http.reply(200, jsonb_build_object('cron', entry, 'cron_job', entry));
end $$;

-- A job with some of its attributes changed, wherever either has them.
create function ojs_http.changed_job(job jsonb, changes jsonb) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select (job - 'options') - n.given || (changes - 'options') || jsonb_build_object('options',
        coalesce(nullif(job -> 'options', 'null'), '{}') - n.given || coalesce(nullif(changes -> 'options',
            'null'), '{}'))
    from (
        select array_agg(a.name) as given
        from (
            select jsonb_object_keys(changes - 'options') union
                select jsonb_object_keys(coalesce(nullif(changes -> 'options', 'null'), '{}'))
        ) k (name), lateral (values (k.name),
            (case k.name when 'meta' then 'metadata' when 'metadata' then 'meta' end)) a (name)
    ) n
$$;

-- The job is given as job_template, or by its attributes beside the entry's own. POST says what the entry is; PUT and
-- PATCH change what they name, and PUT also makes an entry.
create function ojs_http.schedule(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    whole jsonb := ojs_http.object(request);
    named text := coalesce(request.names[1], ojs_http.text_field(whole, 'name', true));
    expression text := coalesce(ojs_http.text_field(whole, 'cron'),
        ojs_http.text_field(whole, 'expression', cardinality(request.names) = 0));
    own text[] := '{timezone,enabled,overlap_policy,description}';
    job jsonb := coalesce(ojs_http.field(whole, 'job_template', 'object'), nullif(whole - own
        - '{name,cron,expression,job_template,status,next_run_at,last_run_at,run_count,created_at}'::text[], '{}'));
    options jsonb := (select coalesce(jsonb_object_agg(key, value), '{}') from jsonb_each(whole) where key = any (own)
        and value <> 'null');
    there ojs.crons;
    entry jsonb;
    created boolean;
begin
    perform ojs_http.check_args(j, null) from unnest(array[job, job -> 'options']) j where j -> 'args' <> 'null';
    if cardinality(request.names) > 0 then
        if whole ->> 'name' <> named then
            perform ojs_http.raise('INVALID_PAYLOAD', 'name is not the one of the path', '{"field": "name"}',
                'Leave name out of the body.');
        end if;
        select * into there from ojs.crons c where c.name = named;
        if there.name is null and (request.method = 'PATCH' or job is null or expression is null) then
            perform ojs_http.no_such_cron(named);
        end if;
        job := case when there.name is null then job when job is not null then ojs_http.changed_job(there.job, job) end;
        -- With both given it would be registered anew, and what is left out forgotten.
        if there.name is not null and job is not null and expression is not null then
            options := jsonb_strip_nulls(jsonb_build_object('timezone', there.timezone, 'overlap_policy',
                there.overlap_policy, 'description', there.description)) || options;
        end if;
    end if;
    created := (ojs.schedule(named, expression, case when cardinality(request.names) = 0 then coalesce(job, '{}')
        else job end, options) -> 'created')::boolean;
    select ojs_http.cron_json(c) || jsonb_build_object('created', created) into entry from ojs.crons c
        where c.name = named;
    return ojs_http.reply(case when created then 201 else 200 end, jsonb_build_object('cron', entry, 'cron_job', entry),
        case when created then jsonb_build_object('Location', '/ojs/v1/cron/' || named) else '{}' end);
end $$;

create function ojs_http.unschedule(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if not ojs.unschedule(request.names[1]) then
        perform ojs_http.no_such_cron(request.names[1]);
    end if;
    return ojs_http.reply(200, jsonb_build_object('deleted', true, 'name', request.names[1], 'cron',
        jsonb_build_object('name', request.names[1])));
end $$;

-- A run beside those of the clock: overlap_policy, last_run_at and run_count are of those alone.
create function ojs_http.trigger_cron(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    job jsonb := ojs_http.cron_job(request.names[1]);
begin
    if job is null then
        perform ojs_http.no_such_cron(request.names[1]);
    end if;
    if ojs_http.object(request, false) <> '{}' then
        perform ojs_http.raise('INVALID_PAYLOAD', 'a run of a cron entry takes nothing', '{"field": "body"}',
            'Send no body; PATCH changes the entry.');
    end if;
    job := ojs.push_job(job);
    return ojs_http.reply(case when job -> 'deduplicated' = 'true' or job ? 'dropped' then 200 else 201 end,
        jsonb_build_object('job', job, 'deduplicated', job -> 'deduplicated'),
        jsonb_strip_nulls(jsonb_build_object('Location', '/ojs/v1/jobs/' || (job ->> 'id'))));
end $$;

create function ojs_http.events(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.upkeep();
    return ojs_http.reply(200, ojs.events(coalesce(request.query ->> 'after', request.query ->> 'cursor'),
        ojs_http.query_list(request, 'types'),
        ojs_http.query_list(request, 'queues'), ojs_http.query_list(request, 'job_types'),
            ojs_http.query_number(request, 'limit', 100, 1, 1000)));
end $$;

-- STREAMS ----------------------------------------------------------------------------------------------------------

-- What a stream is of: all, one job or one queue, which must be there.
create function ojs_http.stream_of(request ojs_http.request, out job jsonb, out queues text[]) returns record
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    channel text := coalesce(case when cardinality(request.names) > 0
        then split_part(request.path, '/', 4) || ':' || request.names[1] end, request.query ->> 'channel', 'all');
    name text := substr(channel, strpos(channel, ':') + 1);
begin
    queues := ojs_http.query_list(request, 'queues');
    if channel ~ '^jobs?:' then
        job := ojs.info(ojs_http.job_id(name, true));
        queues := array[job ->> 'queue'];
    elsif channel ~ '^queues?:' then
        perform ojs.queue_info(name);
        queues := array[name];
    elsif channel not in ('all', '') then
        perform ojs_http.raise('INVALID_PAYLOAD', 'channel is none', '{"field": "channel"}',
            'Give job:ID, queue:NAME, or nothing for all.');
    end if;
end $$;

-- Events after the cursor that the client had last (Last-Event-ID), or from now on. The answer is complete: a client
-- that reads it from a plain pipe comes again, with the cursor that the last event bears as its id. A pipe that would
-- rather go on with the same answer says so by OJS-Do-Not-Wait, and reads OJS-Stream: more (at once), idle (nothing
-- happened), on, or end; then it sends OJS-Stream and the cursor OJS-Last-Event-ID with its next request.
create function ojs_http.event_stream(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    after text := nullif(request.headers ->> 'last-event-id', '');
    goes_on constant boolean := request.headers ? 'ojs-stream';
    of record;
    page jsonb;
    lost boolean;
    events jsonb[];
    over boolean;
    content text;
begin
    if not goes_on then
        perform ojs_http.upkeep();
    end if;
    of := ojs_http.stream_of(request);
    begin
        page := ojs.events(coalesce(after, 'now'), coalesce(ojs_http.query_list(request, 'event_types'),
            ojs_http.query_list(request, 'types')), of.queues,
            ojs_http.query_list(request, 'job_types'), 200);
    exception when sqlstate 'OJ100' then -- not a cursor of this server: on from here
        page := ojs.events('now');
        lost := true;
    end;
    events := array(select e from jsonb_array_elements(page -> 'events') with ordinality as l(e, place)
        where of.job is null or e ->> 'subject' = of.job ->> 'id' order by place);
    over := of.job is not null and exists (select from unnest(events) e
        where e ->> 'type' in ('job.completed', 'job.cancelled', 'job.discarded'));
    if of.job ->> 'state' in ('completed', 'cancelled', 'discarded') and not goes_on and not over then
        -- Nothing more will happen to it: its end once more.
        over := true;
        events := ojs_http.end_of(of.job);
    end if;
    lost := coalesce(lost, page ? 'missed');
    content := case when lost
        then e'event: system.gap\ndata: {"reason": "events were lost, or the cursor is not of this server"}\n\n'
        else '' end
        || coalesce((select string_agg(case when place = cardinality(events)
            then 'id: ' || (page ->> 'cursor') || e'\n' else '' end
            || 'event: ' || (e ->> 'type') || e'\ndata: ' || e::text || e'\n\n', '' order by place) from unnest(events)
                with ordinality as l(e, place)),
            e':heartbeat\nid: ' || (page ->> 'cursor') || e'\n\n');
    return row(200, jsonb_build_object('Content-Type', 'text/event-stream', 'Cache-Control', 'no-cache',
        'X-Accel-Buffering', 'no')
        || case when ojs_http.may_wait(request) then '{}'
            else jsonb_build_object('OJS-Last-Event-ID', page ->> 'cursor', 'OJS-Stream',
            case when over then 'end' when page -> 'has_more' = 'true' then 'more' when cardinality(events) > 0 or lost
                then 'on' else 'idle' end) end,
        null, case when ojs_http.may_wait(request) then e'retry: 1000\n' else '' end || content)::ojs_http.response;
end $$;

-- ../sql/http/admin.sql

-- admin.sql: what administrators look at: lists by pages and filters.

-- A page by number: its entries, and how many there are in all.
create function ojs_http.numbered_page(request ojs_http.request, entries jsonb[], total bigint,
    more jsonb default '{}') returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, jsonb_build_object('items', coalesce(to_jsonb(entries), '[]'), 'pagination',
        jsonb_build_object('total', total,
        'page', ojs_http.query_number(request, 'page', 1, 1, 1000000), 'per_page',
            ojs_http.query_number(request, 'per_page', 20, 1, 100))) || more)
$$;

create function ojs_http.page_start(request ojs_http.request) returns int
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select (ojs_http.query_number(request, 'page', 1, 1, 1000000) - 1) * ojs_http.query_number(request, 'per_page',
        20, 1, 100)
$$;

create function ojs_http.query_time(request ojs_http.request, name text) returns timestamptz
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.time_value(nullif(request.query ->> name, ''), name)
$$;

-- One of several words, or null.
create function ojs_http.query_word(request ojs_http.request, name text, variadic words text[]) returns text
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    given text := nullif(request.query ->> name, '');
begin
    if given <> all (words) then
        perform ojs_http.raise('INVALID_PAYLOAD', format('%s has no such value', name),
            jsonb_build_object('field', name),
            format('Give one of %s.', array_to_string(words, ', ')));
    end if;
    return given;
end $$;

-- JOBS -------------------------------------------------------------------------------------------------------------

-- What a list is to show, for ojs_store.listed_ids().
create function ojs_http.list_filter(request ojs_http.request, more jsonb) returns jsonb
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_strip_nulls(more || jsonb_build_object('queue', nullif(request.query ->> 'queue', ''), 'type',
        nullif(request.query ->> 'type', ''),
        'since', ojs_http.query_time(request, 'since'), 'until', ojs_http.query_time(request, 'until')))
$$;

-- A page of such jobs, sorted as the request asks. What does not fit is shown abridged.
create function ojs_http.job_page(request ojs_http.request, filter jsonb) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    sort text := coalesce(ojs_http.query_word(request, 'sort', 'created_at', 'scheduled_at', 'priority'), 'created_at');
    direction text := ojs_http.query_word(request, 'order', 'asc', 'desc');
    most int := ojs_http.query_number(request, 'per_page', 20, 1, 100);
    skipped int := ojs_http.page_start(request);
    entries jsonb[];
begin
    select array_agg(case when sized.bytes <= ojs_http.most_bytes() then sized.job else ojs_http.abridged(sized.job)
        end order by sized.n) into entries
    from (
        select page.job, page.n, sum(pg_column_size(page.job)) over (order by page.n) as bytes
        from (
            select listed.job, listed.place as n
            from ojs_http.listed_jobs(filter || jsonb_build_object('sort', sort, 'ascending',
                coalesce(direction = 'asc', false)), most, skipped) listed
        ) page
    ) sized;
    return ojs_http.numbered_page(request, entries,
        ojs_http.total_listed(filter, most, skipped, coalesce(cardinality(entries), 0)));
end $$;

-- By pages in any order, or by cursor, the newest first.
create function ojs_http.admin_jobs(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    filter jsonb := ojs_http.list_filter(request, jsonb_build_object('state',
        ojs_http.query_word(request, 'state', 'available', 'scheduled', 'retryable', 'pending', 'active', 'completed',
            'cancelled', 'discarded')));
begin
    perform ojs_http.upkeep();
    if not request.query ?| '{cursor,limit}' then
        return ojs_http.job_page(request, filter);
    end if;
    perform ojs_http.only(request.query, 'cursor', 'limit', 'queue', 'state', 'type', 'since', 'until');
    return ojs_http.job_list(request, 'items', filter);
end $$;

-- ACCESS -----------------------------------------------------------------------------------------------------------

-- What the caller may do, so that a user interface offers nothing else.
create function ojs_http.access(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, jsonb_build_object('role', current_user, 'duties', coalesce(jsonb_agg(d.duty), '[]')))
    from (values
        ('produce', 'ojs.push_job(jsonb)'), ('work', 'ojs.ack(uuid, jsonb, text, text)'), ('observe', 'ojs.health()'),
        ('admin', 'ojs.delete_job(uuid)')) as d(duty, function)
    where has_function_privilege(d.function, 'execute')
$$;

-- QUEUES -----------------------------------------------------------------------------------------------------------

create function ojs_http.throughput(completed_last_hour numeric, failed_last_hour numeric) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('processed_per_minute', round(coalesce(completed_last_hour, 0) / 60, 3),
        'failed_per_minute', round(coalesce(failed_last_hour, 0) / 60, 3))
$$;

-- All queues together; rates are means over the last hour.
create function ojs_http.admin_stats(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    stats jsonb;
begin
    perform ojs_http.upkeep();
    select jsonb_build_object(
        'queues', count(*),
        'workers', (select count(*) from ojs.workers where status in ('running', 'quiet', 'terminate')),
        'jobs', jsonb_build_object('available', coalesce(sum(s.available), 0), 'active', coalesce(sum(s.active), 0),
            'scheduled', coalesce(sum(s.scheduled), 0), 'retryable', coalesce(sum(s.retryable), 0), 'pending',
                coalesce(sum(s.pending), 0),
            'completed', coalesce(sum(s.completed), 0), 'cancelled', coalesce(sum(s.cancelled), 0), 'discarded',
                coalesce(sum(s.discarded), 0)),
        'throughput', ojs_http.throughput(sum(s.completed_last_hour), sum(s.failed_last_hour)),
        'maintenance', ojs.health() -> 'maintenance' <> 'null',
        'uptime_seconds', floor(extract(epoch from clock_timestamp() - pg_postmaster_start_time())),
        'computed_at', ojs_http.rfc3339(ojs_http.now()))
    into stats from ojs.queue_stats() s;
    return ojs_http.reply(200, stats);
end $$;

create function ojs_http.stats_history(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    period text := coalesce(ojs_http.query_word(request, 'period', '1m', '5m', '1h', '1d'), '5m');
    step interval := case period when '1m' then '1 min' when '5m' then '5 min' when '1h' then '1 hour' else '1 day' end;
    of_queue text := nullif(request.query ->> 'queue', '');
    until timestamptz := coalesce(ojs_http.query_time(request, 'until'), ojs_http.now());
    since timestamptz := coalesce(ojs_http.query_time(request, 'since'), until - interval '1 hour');
begin
    if of_queue is not null then
        perform ojs.queue_info(of_queue);
    end if;
    perform ojs_http.upkeep();
    return ojs_http.reply(200, jsonb_build_object('period', period, 'data',
        ojs_http.history_of(of_queue, step, since, until)));
end $$;

create function ojs_http.admin_queues(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    entries jsonb[];
begin
    perform ojs_http.upkeep();
    select array_agg(jsonb_build_object('name', p.name, 'state', p.state, 'paused', p.state = 'paused', 'created_at',
        ojs_http.rfc3339(p.created_at),
        'counts', to_jsonb(s) - '{queue,paused,computed_at}'::text[], 'throughput',
            ojs_http.throughput(s.completed_last_hour, s.failed_last_hour)) order by p.name)
    into entries
    from (
        select * from ojs.queues order by name
        limit ojs_http.query_number(request, 'per_page', 20, 1, 100) offset ojs_http.page_start(request)
    ) p, ojs.queue_stats(p.name) s;
    return ojs_http.numbered_page(request, entries, (select count(*) from ojs.queues));
end $$;

create function ojs_http.admin_queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    found_queue ojs_http.response;
    queue jsonb;
begin
    perform ojs_http.upkeep();
    found_queue := ojs_http.queue(request);
    queue := found_queue.body;
    return ojs_http.reply(200, queue || jsonb_build_object('counts', (queue -> 'stats') - '{queue,depth}'::text[],
        'configuration', queue -> 'config',
        'throughput', ojs_http.throughput((queue #> '{stats,completed_last_hour}')::numeric,
            (queue #> '{stats,failed_last_hour}')::numeric),
        'paused', queue -> 'state' = '"paused"'));
end $$;

-- A limit on the queue as a whole lies over what its settings say.
create function ojs_http.set_queue_rate_limit(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs.queue_info(request.names[1]);
    request.names[1] := 'queue:' || request.names[1];
    return ojs_http.set_rate_limit(request);
end $$;

-- WORKERS ----------------------------------------------------------------------------------------------------------

create function ojs_http.admin_workers(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    entries jsonb[];
    summary jsonb;
begin
    with all_of_them as materialized (
        select w as entry, w.worker, w.status from ojs.workers w
    ), page as (
        select * from all_of_them order by worker
        limit ojs_http.query_number(request, 'per_page', 20, 1, 100) offset ojs_http.page_start(request)
    )
    select (select array_agg(ojs_http.worker_json(p.entry) order by p.worker) from page p),
        jsonb_build_object('total', count(*), 'running', count(*) filter (where status = 'running'),
            'quiet', count(*) filter (where status in ('quiet', 'terminate')), 'stale',
                count(*) filter (where status in ('stale', 'dead')))
    into entries, summary from all_of_them;
    return ojs_http.numbered_page(request, entries, (summary ->> 'total')::bigint,
        jsonb_build_object('summary', summary));
end $$;

-- UNIQUE JOBS ------------------------------------------------------------------------------------------------------

-- Uniqueness keys and the newest job of each, as the admin UI lists them.
create function ojs_http.unique_jobs(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    keys record := ojs_http.held_keys(ojs_http.query_number(request, 'per_page', 20, 1, 100),
        ojs_http.page_start(request));
begin
    return ojs_http.numbered_page(request, keys.entries, keys.total);
end $$;

-- OTHER PAGES OF THE ADMIN UI --------------------------------------------------------------------------------------

create function ojs_http.priority_stats(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    distribution jsonb;
begin
    perform ojs.queue_info(request.names[1]);
    if pg_is_in_recovery() then -- which has the logged tables only
        select coalesce(jsonb_agg(jsonb_build_object('priority', n.priority, 'count', n.jobs) order by n.priority desc),
            '[]') into distribution
        from (select j.priority, count(*) as jobs from ojs.jobs j
            where j.queue = request.names[1] and j.state = 'available' group by 1) n;
    else
        distribution := ojs_http.waiting_by_priority(request.names[1]);
    end if;
    return ojs_http.reply(200, jsonb_build_object('queue', request.names[1], 'distribution', distribution));
end $$;

-- DEAD LETTERS -----------------------------------------------------------------------------------------------------

-- What arguments must contain, as JSON: what is no array stands for one of them.
create function ojs_http.query_args(request ojs_http.request) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    args jsonb;
begin
    args := nullif(request.query ->> 'args', '')::jsonb;
    return case when jsonb_typeof(args) = 'array' then args when args is not null then jsonb_build_array(args) end;
exception when data_exception then
    perform ojs_http.raise('INVALID_PAYLOAD', 'args must be JSON', '{"field": "args"}',
        'Give ?args={"customer":7}, encoded.');
end $$;

create function ojs_http.dead_letter_filter(request ojs_http.request) returns jsonb
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.list_filter(request, jsonb_build_object('dead_letters', true, 'error_type',
        nullif(request.query ->> 'error_type', ''),
        'args', ojs_http.query_args(request)))
$$;

create function ojs_http.admin_dead_letters(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.job_page(request, ojs_http.dead_letter_filter(request))
$$;

-- With how long they are kept: those of the queue, or of all queues that say nothing themselves.
create function ojs_http.dead_letter_stats(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    of_queue text := nullif(request.query ->> 'queue', '');
    stats jsonb := ojs.dead_letter_stats(of_queue);
    config jsonb := coalesce((select ojs.queue_info(q.name) -> 'config' from ojs.queues q where q.name = of_queue),
        ojs_http.default_policy());
begin
    return ojs_http.reply(200, stats || jsonb_build_object('retention', jsonb_build_object(
        'max_age', config -> 'dead_letter_ttl', 'max_count', config -> 'dead_letter_max_size')));
end $$;

-- RATE LIMITS ------------------------------------------------------------------------------------------------------

create function ojs_http.rate_limit_json(r ojs.rate_limits) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp set intervalstyle = iso_8601 as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'key', r.key,
        'concurrency', case when r.concurrency is not null then jsonb_build_object(
            'limit', r.concurrency, 'active', r.active, 'available', greatest(r.concurrency - r.active, 0)) end,
        'rate', case when r.rate is not null then jsonb_build_object('limit', r.rate, 'period', r.rate_period::text,
            'current_count', r.started, 'window_resets_at', ojs_http.rfc3339(r.window_resets_at)) end,
        'throttle', case when r.throttle is not null then jsonb_build_object('limit', r.throttle, 'period',
            r.throttle_period::text,
            'next_allowed_at', ojs_http.rfc3339(r.next_allowed_at)) end,
        'paused_until', ojs_http.rfc3339(r.paused_until), 'override', r.override, 'override_expires_at',
            ojs_http.rfc3339(r.override_until),
        'waiting_count', r.waiting,
        -- The narrowest in two words, as the admin UI shows it.
        'limit', coalesce(r.rate, r.throttle, r.concurrency), 'period',
            coalesce(r.rate_period, r.throttle_period)::text,
        'active', r.active, 'waiting', r.waiting))
$$;

create function ojs_http.rate_limits(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    entries jsonb[];
    total bigint;
begin
    select array_agg(ojs_http.rate_limit_json(l.rate_limit)), max(l.total) into entries, total
    from ojs_http.listed_limits(null, ojs_http.query_number(request, 'per_page', 20, 1, 100),
        ojs_http.page_start(request)) l;
    -- A page beyond the last one does not say how many there are.
    total := coalesce(total, (select l.total from ojs_http.listed_limits(null, 1, 0) l), 0);
    return ojs_http.numbered_page(request, entries, total,
        jsonb_build_object('rate_limits', coalesce(to_jsonb(entries), '[]')));
end $$;

create function ojs_http.rate_limit(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    found_limit ojs.rate_limits;
begin
    select (l.rate_limit).* into found_limit from ojs_http.listed_limits(request.names[1], 1, 0) l;
    if not found then
        perform ojs_http.raise('NOT_FOUND', format('rate limit %s does not exist', left(request.names[1], 64)),
            jsonb_build_object('resource_type', 'rate_limit', 'resource_id', left(request.names[1], 64)),
                'GET /ojs/v1/rate-limits lists them.');
    end if;
    return ojs_http.reply(200, ojs_http.rate_limit_json(found_limit));
end $$;

create function ojs_http.set_rate_limit(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    until timestamptz;
begin
    until := ojs_http.time_value(ojs_http.text_field(body, 'expires_at'), 'expires_at');
    if until <= ojs_http.now() then
        perform ojs_http.raise('INVALID_PAYLOAD', 'expires_at is in the past', '{"field": "expires_at"}',
            'Give a time to come, or leave it out.');
    end if;
    perform ojs.set_rate_limit(request.names[1], body - '{key,expires_at}'::text[], until);
    return ojs_http.rate_limit(request);
end $$;

-- Takes back what an administrator has set; what jobs and queues say counts again.
create function ojs_http.unset_rate_limit(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.rate_limit(request);
    perform ojs.set_rate_limit(request.names[1], null);
    return ojs_http.reply(204, null);
end $$;

-- WORKFLOWS --------------------------------------------------------------------------------------------------------

-- The newest first, without those that are members of another.
create function ojs_http.workflows(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    most int := ojs_http.query_number(request, 'limit', 50, 1, 200);
    skipped int := ojs_http.query_number(request, 'offset', 0, 0, 1000000000);
    after uuid := ojs_http.page_key(request, '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$');
    of_state text := ojs_http.query_word(request, 'state', 'running', 'completed', 'failed', 'cancelled');
    entries jsonb[];
    keys text[];
begin
    select array_agg(w.workflow order by w.id desc), array_agg(w.id::text order by w.id desc) into entries, keys
    from ojs_http.listed_workflows(of_state, after, most + 1, skipped) w;
    return ojs_http.page('workflows', entries, keys, null, most, skipped);
end $$;

-- ../sql/http/system.sql

-- system.sql: the server itself over HTTP: what it is, how it is, and what it has not.

create function ojs_http.manifest(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, ojs.manifest())
$$;

-- Producers and workers learn whether the server serves them, as a load balancer asks, and nothing else.
create function ojs_http.health(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    health jsonb;
begin
    if not has_function_privilege('ojs.health()', 'execute') then
        return case when ojs.ready() then ojs_http.reply(200, '{"status": "ok"}')
            else ojs_http.reply(503, '{"status": "unavailable"}', '{"Retry-After": "1"}') end;
    end if;
    health := ojs.health();
    health := jsonb_set(health, '{workers}', health -> 'workers' || jsonb_build_object('active',
        health #> '{workers,connected}',
        'total', (health #> '{workers,connected}')::int + (health #> '{workers,stale}')::int));
    return ojs_http.reply(case when health ->> 'status' = 'ok' then 200 else 503 end,
        health || jsonb_build_object('backend', health -> 'backend' || '{"type": "postgres"}', 'ojs_version', '1.0'),
        case when health ->> 'status' = 'ok' then '{}' else '{"Retry-After": "1"}' end::jsonb);
end $$;

create function ojs_http.ready(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select case when ojs.ready() then ojs_http.reply(200, '{"status": "ready"}')
        else ojs_http.reply(503, '{"status": "not_ready"}', '{"Retry-After": "1"}') end
$$;

create function ojs_http.metrics(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select row(200, '{"Content-Type": "text/plain"}', null, ojs.metrics())::ojs_http.response
$$;

-- Also in the words of the admin UI.
create function ojs_http.maintenance_json(answer jsonb) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select jsonb_strip_nulls(jsonb_build_object('enabled', answer -> 'maintenance', 'started_at',
        answer -> 'enabled_at', 'ends_at', answer -> 'estimated_end')) || answer
$$;

create function ojs_http.maintenance(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200,
        ojs_http.maintenance_json(case when answer = 'null' then '{"maintenance": false}'
        else answer || '{"maintenance": true}' end))
    from (select ojs.health() -> 'maintenance') as h (answer)
$$;

create function ojs_http.set_maintenance(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    length jsonb := coalesce(nullif(body -> 'estimated_duration', 'null'), nullif(body -> 'duration', 'null'));
begin
    perform ojs_http.only(body, 'enabled', 'reason', 'estimated_duration', 'duration');
    -- Dashboards write 30m and 2h.
    if length #>> '{}' ~ '^[0-9]{1,6}[mhd]$' then
        length := to_jsonb(case when right(length #>> '{}', 1) = 'd' then 'P' else 'PT' end || upper(length #>> '{}'));
    end if;
    return ojs_http.reply(200,
        ojs_http.maintenance_json(ojs.set_maintenance(ojs_http.field(body, 'enabled', 'boolean', true)::boolean,
        ojs_http.text_field(body, 'reason'), ojs_http.duration_value(length, 'estimated_duration'))));
end $$;

-- sql/http.sql

-- http.sql: HTTP requests that one node serves, or several in turn: the router chooses, and passes them on to ojs.http
-- of the node. What is asked of all nodes is served here, by the files of sql/http on the functions and views of the
-- router.

create function ojs_router.remote_http(node int, method text, path text, given jsonb, content text,
    out status int, out headers jsonb, out body text) returns record language plproxy as $$
    cluster 'ojs'; run on node;
    select h.status, h.headers, h.body from ojs.http($2, $3, $4, $5) h;
$$;

-- A request with that body, of a node. Errors of the node are answers; what is raised is that it does not answer.
create function ojs_router.ask(node int, request ojs_http.request, body jsonb) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    -- every byte in percent notation
    query text := (select string_agg(regexp_replace(encode(convert_to(q.key, 'UTF8'), 'hex') || '='
            || encode(convert_to(q.value, 'UTF8'), 'hex'), '[0-9a-f]{2}', E'%\\&', 'g'), '&')
        from jsonb_each_text(request.query) q);
    answer record;
begin
    perform ojs_router.check_tenant();
    answer := ojs_router.remote_http(node, request.method, concat_ws('?', request.path, query), request.headers,
        body::text);
    return (answer.status, answer.headers, null, answer.body)::ojs_http.response;
end $$;

-- `anywhere`: another node may serve it as well, if it holds no key that is in the way; where the queue is full on one,
-- the others are asked.
create function ojs_router.forward(node int, request ojs_http.request, body jsonb, anywhere boolean default false,
    held text default null) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    failure ojs_router.failure;
    response ojs_http.response;
    others int[] := case when anywhere and held is null and coalesce(current_setting('ojs_router.node', true), '') = ''
        then ojs_router.without(ojs_router.active_nodes(), ojs_router.missing()) end;
begin
    loop
        begin
            response := ojs_router.ask(node, request, body);
            others := array_remove(others, node);
            if response.status <> 429 or coalesce(others, '{}') = '{}'
                or strpos(response.content, '"QUEUE_FULL"') = 0 then
                return response;
            end if;
            node := others[1];
        exception when others or query_canceled then
            get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
                failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
            if not anywhere then
                perform ojs_router.raise_failure(node, failure);
            end if;
            node := ojs_router.other_node(node, held, failure);
        end;
    end loop;
end $$;

-- To the node of the job, or the workflow, that the path names, or the body. silent: a node answers even if it does not
-- know the job.
create function ojs_router.forward_job(request ojs_http.request, silent boolean) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    named text := coalesce(request.names[1], request.body ->> 'job_id');
    id uuid := case when named ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then named end;
    node int;
    other int;
    response ojs_http.response;
begin
    if id is null then -- the node says what is wrong
        return ojs_router.forward(ojs_router.random_node(), request, request.body);
    end if;
    node := case when silent then ojs_router.holding_node(id) else ojs_router.home(id) end;
    response := ojs_router.forward(node, request, request.body);
    if response.status = 404 then -- a client's own id may name another node than the one that has the job
        other := ojs_router.found_node(id);
        if other <> node then
            response := ojs_router.forward(other, request, request.body);
        end if;
    end if;
    return response;
end $$;

-- To all nodes in turn, until one refuses; what there is to change need not be on all of them.
create function ojs_router.forward_all(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    node int;
    answer ojs_http.response;
    first ojs_http.response;
begin
    foreach node in array ojs_router.all_nodes() loop
        answer := ojs_router.forward(node, request, request.body);
        if answer.status >= 400 and answer.status <> 404 then
            return answer;
        elsif first.status is null or first.status = 404 then
            first := answer;
        end if;
    end loop;
    return first;
end $$;

-- A handler runs as ojs_router, which may do everything on nodes. So it passes on its own requests only, and the node
-- is to find the same path: what follows a ? would be no part of it there.
create function ojs_router.check_route(request ojs_http.request, handler text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if (ojs_http.find_route(case request.method when 'HEAD' then 'GET' else request.method end, request.path)).handler
        is distinct from handler or strpos(request.path, '?') > 0 then
        raise insufficient_privilege using message = format('that is no request for ojs_http.%s', handler);
    end if;
end $$;

-- Others than workers do not see the checkpoint, as on a node.
create function ojs_router.without_checkpoint(response ojs_http.response) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if response.status = 200 and response.content <> ''
        and not has_function_privilege(ojs_router.caller(), 'ojs.get_checkpoint(uuid)', 'execute') then
        response.content := (response.content::jsonb || '{"checkpoint": null}')::text;
    end if;
    return response;
end $$;

-- The handlers of requests that are passed on as they are, or that a router cannot serve.
do $do$
declare
    f record;
begin
    for f in
        select v.handler, v.way
        from (
            select unnest(p.handlers) as handler, p.way
            from (values
                ('{info,lineage,change_job,cancel,activate,ack,nack,set_progress,save_checkpoint,result,
                admin_job,explain,job_history,retry,discard,delete_job,dead_letter,delete_dead_letter,
                delete_dead_letter_flat,retry_dead_letter,worker_progress,resume,save_step,workflow,cancel_workflow,
                extend_workflow}'::text[],
                    'ojs_router.forward_job(request, false)'),
                ('{checkpoint,delete_checkpoint}', 'ojs_router.forward_job(request, true)'),
                ('{progress}', 'ojs_router.without_checkpoint(ojs_router.forward_job(request, false))'),
                ('{create_workflow}', 'ojs_router.forward(ojs_router.any_node(), request, request.body, true)'),
                ('{schemas,schema,admin_schema,schema_versions,system_config}',
                    'ojs_router.forward(ojs_router.random_node(), request, request.body)'),
                ('{register_schema,put_schema,set_schema_validation,drop_schema,reset}',
                    'ojs_router.forward_all(request)'),
                ('{register_worker}',
                    $w$ojs_router.forward(ojs_router.worker_node(request.body ->> 'worker_id'), request,
                        request.body)$w$)
            ) p(handlers, way)
            union all
            select unnest(r.handlers), format('ojs_router.refuse(%L, %L, %L)', r.feature, r.why, r.hint)
            from (values
                ('{pools,pool,set_pool,drop_pool,scheduling_stats}'::text[], 'pools',
                    'each node counts its own claims only',
                    'Fetch from several queues in their order, or make the pool on each node and fetch there.'),
                ('{tenants,tenant,set_tenant,drop_tenant,set_tenant_limits,tenant_stats,tenant_jobs}', 'tenants',
                    'nodes see one role, whoever calls', 'Keep tenants on servers of their own.'),
                ('{webhooks,create_webhook,webhook,update_webhook,drop_webhook,test_webhook,rotate_webhook_secret,
                webhook_deliveries,webhook_delivery,retry_webhook_delivery}', 'webhooks',
                    'each node delivers its own events', 'Subscribe on each node, whose gateway sends.'),
                ('{topic_produce,topic_work,topic_claim,topic_ack,topic_nack,topic_extend}', 'numbers of jobs',
                    'each node counts its own', 'Name jobs by their ids: use the paths below /ojs/v1.'),
                ('{middleware}', 'hooks', 'each node has its own', 'Ask the nodes.'),
                ('{audit}', 'audit trail', 'each node keeps its own, where all that comes from here is by one role',
                    'Ask the nodes, and log on the router who calls what.')
            ) r(handlers, feature, why, hint)
        ) v
    loop
        execute format($f$
            create function ojs_http.%I(request ojs_http.request) returns ojs_http.response
            language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $p$
            begin
                perform ojs_router.check_route(request, %L);
                return %s;
            end $p$
        $f$, f.handler, f.handler, f.way);
    end loop;
end $do$;

create function ojs_router.refuse(feature text, why text, hint text) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_router.raise('UNSUPPORTED_FEATURE', format('a router has no %s, since %s', feature, why),
        jsonb_build_object('feature', feature), hint);
end $$;

-- PUSHES -----------------------------------------------------------------------------------------------------------

create function ojs_http.push(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    key text;
begin
    perform ojs_router.check_route(request, 'push');
    key := ojs_router.key_of(request.body);
    return ojs_router.forward(case when key is null then ojs_router.any_node() else ojs_router.node_for(key) end,
        request, request.body, true, key);
end $$;

-- A batch. Where each job is for itself and their keys name several nodes, each node gets its part, and the answers are
-- one: a part that is refused as a whole is an error of each of its jobs.
create function ojs_http.push_once(request ojs_http.request, jobs jsonb, operation text) returns ojs_http.response
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    body jsonb := ojs_http.object(request);
    request_key text;
    atomic boolean := ojs_http.is_atomic(body, case operation when 'push_batch' then 'atomic' else 'partial' end);
    place record;
    batch record;
    answer ojs_http.response;
    part jsonb;
    first jsonb;
    items jsonb := '[]';
    statuses int[] := '{}';
begin
    perform ojs_router.check_route(request, case operation when 'push_batch' then operation else 'push_bulk' end);
    request.headers := ojs_http.read_headers(request.headers); -- as the node will, whoever calls
    request_key := ojs_router.own_key(ojs_http.idempotency_key(request, body));
    place := ojs_router.batch_nodes(jobs, coalesce(body ->> 'deduplication_key', body ->> 'deduplicationKey'),
        request_key, case when atomic then 'atomic' else 'partial' end);
    request.headers := request.headers - 'idempotency-key';
    body := body || jsonb_strip_nulls(jsonb_build_object('idempotency_key', request_key));
    if place.nodes[1] = all (place.nodes) then
        return ojs_router.forward(place.nodes[1], request, body || jsonb_build_object('jobs', jobs), true, place.held);
    end if;
    for batch in select * from ojs_router.parts_of(jobs, place.nodes) loop
        begin
            answer := ojs_router.forward(batch.node, request, body || jsonb_build_object('jobs', batch.part));
            part := answer.content::jsonb;
        exception when sqlstate '57P03' then
            perform ojs_router.remember_missing(batch.node);
            answer.status := 503;
            part := jsonb_build_object('error', ojs_http.item_error(ojs_router.node_missing(batch.node,
                batch.places[1])));
        end;
        statuses := statuses || answer.status;
        first := coalesce(first, part);
        items := items || coalesce((
            select jsonb_agg(i || jsonb_build_object('index', at) || case when i ? 'error'
                then jsonb_build_object('error', ojs_router.placed_error(i -> 'error', at)) else '{}' end)
            from jsonb_array_elements(part -> 'items') i, lateral (select batch.places[(i -> 'index')::int + 1]) p(at)),
            (select jsonb_agg(jsonb_build_object('index', at, 'status', 'failed', 'error',
                ojs_router.placed_error(part -> 'error', at))) from unnest(batch.places) at));
        first := first || jsonb_strip_nulls(jsonb_build_object('warnings',
            coalesce(first -> 'warnings', '[]') || (part -> 'warnings')));
    end loop;
    answer.status := case when statuses[1] = all (statuses) then statuses[1] when 201 < any (statuses) then 207
        else 201 end;
    answer.headers := coalesce(answer.headers, '{}')
        || jsonb_build_object('X-OJS-Batch-Size', jsonb_array_length(jobs)::text);
    answer.body := case when answer.status < 400 then first - 'error' else first end || (
        select jsonb_build_object('items', jsonb_agg(i order by (i -> 'index')::int), 'total', count(*),
            'failed', count(*) filter (where i ->> 'status' = 'failed'),
            'succeeded', count(*) filter (where i ->> 'status' <> 'failed'))
        from jsonb_array_elements(items) i);
    answer.content := null;
    return answer;
end $$;

create function ojs_http.push_batch(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.push_once(request, ojs_http.field(ojs_http.object(request), 'jobs', 'array', true), 'push_batch')
$$;

create function ojs_http.push_bulk(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.push_once(request, ojs_http.field(ojs_http.object(request), 'jobs', 'array', true), 'push_bulk')
$$;

-- FETCHES ----------------------------------------------------------------------------------------------------------

create function ojs_http.fetch(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    body jsonb := ojs_http.object(request);
    queues text[] := ojs_http.texts_field(body, 'queues');
    wanted numeric := coalesce(ojs_http.field(body, 'count', 'number')::numeric, 1);
    answer ojs_http.response;
    answers ojs_http.response[] := '{}';
    jobs jsonb;
begin
    perform ojs_router.check_route(request, 'fetch');
    if body ? 'pool' then
        perform ojs_router.refuse('pools', 'each node counts its own claims only', 'Name queues.');
    elsif body ?| '{strategy,weights}' and body ->> 'strategy' is distinct from 'strict' then
        perform ojs_router.refuse('strategies', 'each node counts its own claims only',
            'Leave strategy and weights out, or fetch from the nodes themselves.');
    elsif coalesce(queues, '{}') = '{}' or wanted <> trunc(wanted) or wanted < 1 then -- the node says what is wrong
        return ojs_router.forward(ojs_router.random_node(), request, body);
    end if;
    for answer in
        select f.* from ojs_router.fetch(request, queues, null, least(wanted, 1000)::int, missing_ok => true) f
    loop
        answers := answers || answer;
    end loop;
    -- What comes from several nodes is put in order.
    select coalesce(jsonb_agg(j order by array_position(queues, j ->> 'queue'), (j -> 'priority')::int desc,
        j ->> 'id'), '[]') into jobs
    from unnest(answers) a, jsonb_array_elements(a.body -> 'jobs') j;
    if jobs <> '[]' then
        return ojs_http.reply(200, jsonb_build_object('jobs', jobs));
    elsif answers = '{}' then
        perform ojs_router.raise('UNAVAILABLE', 'no node answers', '{}', 'Try again later.');
    end if;
    return answers[cardinality(answers)]; -- with how long the gateway may wait, or what is wrong
end $$;

-- sql/http_lists.sql

-- http_lists.sql: what sql/http/node.sql is to a node: what the handlers of sql/http need, of all nodes.

create function ojs_http.raise(code text, message text, details jsonb default null, hint text default null) returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_router.raise(code, message, coalesce(details, '{}'), hint);
end $$;

create function ojs_http.now() returns timestamptz language sql volatile parallel restricted
begin atomic
    select clock_timestamp();
end;

-- Nodes see to themselves.
create function ojs_http.upkeep() returns void language sql immutable parallel safe begin atomic select; end;

create function ojs_http.extensions() returns jsonb
language sql stable parallel safe set search_path = pg_catalog, pg_temp as $$
    select ojs.manifest() -> 'extensions'
$$;

-- Before it is parsed. What the settings of a node allow, the node checks.
create function ojs_http.check_body(handler text, body text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    most_bytes constant int := 64 * 1024 * 1024;
    most_values constant int := 1000000;
begin
    if octet_length(body) > most_bytes or octet_length(body) > most_values
            and length(body) - length(translate(body, ',[{', '')) > most_values then
        perform ojs_http.raise('PAYLOAD_TOO_LARGE', format('the body has more than %s bytes or %s values', most_bytes,
            most_values), jsonb_build_object('field', 'body', 'maximum_bytes', most_bytes,
                'maximum_values', most_values), 'Send less at once.');
    end if;
end $$;

create function ojs_http.check_atomic() returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_router.refuse('atomicity of this operation', 'it goes to all nodes, which commit by themselves',
        'Leave atomicity out: what could not be done is told for each job.');
end $$;

-- Idempotency keys of cancelling, retrying and deleting.
create function ojs_http.take_key(operation text, key text, request jsonb) returns jsonb
language plpgsql strict volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_router.refuse('idempotency keys of this operation', 'it goes to all nodes, which keep their own',
        'Leave the key out: what is done already is told for each job.');
    return null;
end $$;

create function ojs_http.keep_answer(operation text, key text, answer jsonb) returns void
language sql strict immutable parallel safe begin atomic select; end;

create function ojs_router.remote_listed_jobs(node int, filter jsonb, most int, skip bigint) returns setof jsonb
language plproxy as $$
    cluster 'ojs'; run on node;
    select l.job from ojs_http.listed_jobs($2, $3, $4) l;
$$;
create function ojs_router.listed_jobs_of(node int, filter jsonb, most int, skip bigint) returns setof jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    failure ojs_router.failure;
begin
    return query select j from ojs_router.remote_listed_jobs(node, filter, most, skip) j;
exception when others or query_canceled then
    get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
        failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
    perform ojs_router.raise_failure(node, failure);
end $$;

-- Pages of jobs, in the order of listed_ids() of a node. Of the jobs before the page, and of those that other nodes
-- would have on it, only the places are read. What a node has of the page is a stretch of its own list.
create function ojs_http.listed_jobs(filter jsonb, most int, skip bigint, out job jsonb, out place bigint)
    returns setof record
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    way text := case when filter @> '{"ascending": true}' then 'asc' else 'desc' end;
    ordered text := case filter ->> 'sort' when 'scheduled_at' then 'l.scheduled_at ' || way || ' nulls last, '
        when 'priority' then 'l.priority ' || way || ', ' else '' end || 'l.id ' || way;
begin
    if (most + skip <= 10000) is not true then
        perform ojs_router.raise('INVALID_PAYLOAD', 'a router lists no further than the 10000th job',
            '{"field": "page"}', 'Go on by cursor, which has no such bound.');
    end if;
    return query execute format($q$
        with page as materialized (
            select p.* from (
                select l.node, l.id, l.place, row_number() over (order by %s) as n
                from ojs_router.all_listed_places($1, $2) l) p
            where p.n > $4 and p.n <= $4 + $3
        )
        select j.job, p.n
        from (select node, min(place) as first, max(place) as last from page group by node) s
        cross join lateral ojs_router.listed_jobs_of(s.node, $1, (s.last - s.first + 1)::int, s.first - 1) j(job)
        join page p on p.id = (j.job ->> 'id')::uuid
    $q$, ordered) using filter, (most + skip)::int, most, skip;
end $$;

create function ojs_http.count_listed(filter jsonb) returns bigint
language sql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(sum(a.jobs), 0)::bigint from ojs_router.all_count_listed(filter) a
$$;

create function ojs_http.listed_limits(only_key text, most int, skip int, out rate_limit ojs.rate_limits,
    out total bigint) returns setof record
language sql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select r, count(*) over () from ojs.rate_limits r where only_key is null or r.key = only_key
    order by r.key limit most offset skip
$$;

create function ojs_http.listed_workflows(of_state text, after uuid, most int, skipped int, out id uuid,
    out workflow jsonb) returns setof record
language sql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select a.id, a.workflow from ojs_router.all_listed_workflows(of_state, after, most + skipped) a
    order by a.id desc limit most offset skipped
$$;

create function ojs_http.history_of(queue text, step interval, since timestamptz, until timestamptz) returns jsonb
language sql volatile parallel unsafe security definer set datestyle = 'ISO' set search_path = pg_catalog, pg_temp
as $$
    select coalesce(jsonb_agg(jsonb_strip_nulls(to_jsonb(h)) order by h."timestamp"), '[]')
    from (
        select p."timestamp", sum(p.processed) as processed, sum(p.failed) as failed, sum(p.enqueued) as enqueued,
            round(sum(p.avg_duration_ms * p.processed)
                / nullif(sum(p.processed) filter (where p.avg_duration_ms is not null), 0), 3) as avg_duration_ms,
            round(sum(p.avg_wait_ms * p.processed)
                / nullif(sum(p.processed) filter (where p.avg_wait_ms is not null), 0), 3) as avg_wait_ms
        from ojs_router.all_history_of(queue, step, since, until) a,
            jsonb_to_recordset(a.history) p("timestamp" text, processed bigint, failed bigint, enqueued bigint,
                avg_duration_ms numeric, avg_wait_ms numeric)
        group by 1) h
$$;

create function ojs_http.held_keys(most int, skipped int, out entries jsonb[], out total bigint) returns record
language sql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    with asked as materialized (select a.entries, a.total from ojs_router.all_held_keys(most + skipped) a)
    select array(select e from asked a, jsonb_array_elements(a.entries) e order by e ->> 'key'
        limit most offset skipped),
        (select sum(a.total)::bigint from asked a)
$$;

create function ojs_http.waiting_by_priority(queue text) returns jsonb
language sql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(jsonb_agg(to_jsonb(p) order by p.priority desc), '[]')
    from (select w.priority, sum(w.count) as count from ojs_router.all_waiting_by_priority(queue) a,
        jsonb_to_recordset(a.waiting) w(priority int, count bigint) group by 1) p
$$;

create function ojs_http.cron_job(name text) returns jsonb
language sql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select a.job from ojs_router.all_cron_jobs(name) a where a.job is not null limit 1
$$;

create function ojs_http.take_back_jobs(worker text) returns int
language sql strict volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select sum(a.jobs)::int from ojs_router.all_taken_back_jobs(worker) a
$$;

create function ojs_router.remote_end_of(node int, job jsonb) returns jsonb language plproxy as $$
    cluster 'ojs'; run on node;
    select pg_catalog.to_jsonb(ojs_http.end_of(job));
$$;
create function ojs_http.end_of(job jsonb) returns jsonb[]
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    node int := ojs_router.holding_node((job ->> 'id')::uuid);
    failure ojs_router.failure;
begin
    return (select array_agg(e) from jsonb_array_elements(ojs_router.remote_end_of(node, job)) e);
exception when others or query_canceled then
    get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
        failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
    perform ojs_router.raise_failure(node, failure);
end $$;

-- Of the lists and statistics that were read in this transaction.
create function ojs_http.missing_nodes() returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    return case when coalesce(current_setting('ojs_router.answered', true), '') <> ''
        then to_jsonb(nullif(ojs_router.not_answered(), '{}')) end;
end $$;

-- sql/grants.sql

-- grants.sql: who may do what, as on a node. All functions belong to the role ojs_router, and those that callers may
-- call run as it.

do $$
declare
    o record;
begin
    for o in select p.oid::regprocedure as name, p.prokind from pg_proc p
        where p.pronamespace in ('ojs'::regnamespace, 'ojs_router'::regnamespace, 'ojs_http'::regnamespace)
    loop
        execute format('revoke all on %s %s from public', case o.prokind when 'p' then 'procedure'
            else 'function' end, o.name);
        execute format('alter %s %s owner to ojs_router', case o.prokind when 'p' then 'procedure'
            else 'function' end, o.name);
    end loop;
    for o in select c.oid::regclass as name, c.relkind from pg_class c
        where c.relnamespace in ('ojs'::regnamespace, 'ojs_router'::regnamespace) and c.relkind in ('r', 'v')
    loop
        execute format('alter %s %s owner to ojs_router', case o.relkind when 'v' then 'view' else 'table' end, o.name);
    end loop;
    -- PL/Proxy tells in a NOTICE that it leaves a connection after each error of a node.
    for o in select p.oid::regprocedure as name from pg_proc p
        where p.pronamespace in ('ojs'::regnamespace, 'ojs_http'::regnamespace) and p.prosecdef loop
        execute format('alter function %s set client_min_messages = warning', o.name);
    end loop;
    for o in
        select p.oid::regprocedure as name, r.role
        from (values
            ('{ojs_producer,ojs_worker,ojs_observer,ojs_admin}'::text[],
                '{version,manifest,capabilities,envelope,canonical_json,fingerprint,fingerprint_input,node_of,
                key_slot,ready}'::text[]),
            ('{ojs_producer,ojs_admin}',
                '{push,push_job,push_many,cancel,activate,wait_result,results,info,create_workflow,cancel_workflow,
                extend_workflow,workflow}'),
            ('{ojs_worker,ojs_admin}',
                '{claim,claim_pool,ack,ack_many,ack_and_claim,fail,nack,nack_many,extend,extend_many,beat,progress,
                checkpoint,get_checkpoint,delete_checkpoint,register_worker,deregister_worker}'),
            ('{ojs_observer,ojs_admin}',
                '{info,workflow,explain_job,queue_info,queue_stats,list_jobs,dead_letter_stats,metrics,health,events}'),
            ('{ojs_admin}',
                '{skip_ordering_key,create_schema,drop_schema,set_schema_validation,
                retry,discard,set_priority,delete_job,set_worker_state,create_queue,configure_queue,pause_queue,
                resume_queue,drain_queue,
                purge_queue,drop_queue,set_maintenance,set_rate_limit,cancel_many,retry_many,delete_many,
                free_deduplication_key,schedule,
                unschedule,index_events,notify_events,tick,set_pool,drop_pool,set_tenant,drop_tenant,bind_tenant,
                unbind_tenant}')
        ) g(roles, names), unnest(g.roles) r(role), unnest(g.names) n(name)
        join pg_proc p on p.proname = n.name and p.pronamespace = 'ojs'::regnamespace
    loop
        execute format('grant execute on function %s to %I', o.name, o.role);
    end loop;
end $$;

alter schema ojs owner to ojs_router;
alter schema ojs_router owner to ojs_router;
alter schema ojs_http owner to ojs_router;
alter server ojs owner to ojs_router;
alter type ojs.job owner to ojs_router;
alter type ojs.claimed_job owner to ojs_router;
alter type ojs_http.request owner to ojs_router;
alter type ojs_http.response owner to ojs_router;

grant usage on schema ojs to ojs_producer, ojs_worker, ojs_observer, ojs_admin;
grant select on ojs.queues, ojs.workers, ojs.crons, ojs.rate_limits to ojs_observer, ojs_admin;
grant execute on function ojs_router.all_queues(), ojs_router.all_workers(), ojs_router.all_crons(),
    ojs_router.all_rate_limits(), ojs_router.merged_config(jsonb[]) to ojs_observer, ojs_admin;

-- Connection strings are for superusers: whoever gives one has the server log in wherever it says.
grant usage on schema ojs_router to ojs_observer, ojs_admin;
grant select on ojs_router.nodes, ojs_router.slots to ojs_observer, ojs_admin;
grant execute on function ojs_router.drain_node(int), ojs_router.remove_node(int),
    ojs_router.settle(), ojs_router.refresh_work() to ojs_admin;
grant execute on procedure ojs_router.watch(int, interval) to ojs_admin;

-- ../sql/http/grants.sql

-- grants.sql: who may serve which requests. What ojs.http is made of runs with the rights of its caller, so each role
-- may call the parts of its own requests; what these call checks the caller's rights again. ojs_admin may call all of
-- them. A router has some of these functions, and grants them alike.

grant usage on schema ojs_http to ojs_producer, ojs_worker, ojs_observer, ojs_admin;
grant usage on type ojs_http.request, ojs_http.response to ojs_producer, ojs_worker, ojs_observer, ojs_admin;
grant execute on function ojs.http(text, text, jsonb, text) to ojs_producer, ojs_worker, ojs_observer, ojs_admin;

do $$
declare
    o record;
begin
    for o in
        select p.oid::regprocedure as name, r.role
        from (values
            ('{ojs_producer,ojs_worker,ojs_observer,ojs_admin}'::text[],
                '{act_for,routes,handlers_by_path,find_route,check_headers,check_body,read_headers,read_query,
                decoded,request_id,reply,no_route,problem,status_of,error_body,headers_of,raise,now,
                time_value,duration_value,values_in,abridged,would_wait,may_wait,most_bytes,bytes_of,
                field_in,hint_of,rfc3339,upkeep,object,field,text_field,number_field,texts_field,job_id,
                job_named,query_number,query_word,query_list,no_such_job,only,manifest,extensions,health,
                ready,access,progress,progress_json,progress_reply,no_such_schema,schema_json,version_json,
                schema_named,version_key,schemas,schema,admin_schema,versions_of,schema_versions,
                missing_nodes}'::text[]),
            ('{ojs_producer,ojs_observer,ojs_admin}',
                '{workflow,workflow_body,workflow_named,info,lineage}'),
            ('{ojs_producer,ojs_worker,ojs_admin}',
                '{tick_without_worker}'),
            ('{ojs_producer,ojs_admin}',
                '{check_args,pressure,pressure_headers,limit_headers,set_block_timeout,push,push_batch,
                push_bulk,pushed_job,pushed_items,tried_items,item_error,nothing_done,record_push_bulk,
                is_atomic,idempotency_key,do_push_batch,do_push_bulk,push_once,batch_answer,may_push,
                batch_key,batch_ttl,batch_response,take_push_key,keep_push_answer,forget_push_key,
                create_workflow,workflow_of_steps,extend_workflow,cancel_workflow,cancel,activate,result,
                results,record_job,topic_produce,schema_warnings,batch_warnings}'),
            ('{ojs_worker,ojs_admin}',
                '{envelope,fetch,outcome,ack,nack,heartbeat,obey_test_directive,register_worker,
                deregister_worker,progress_and_checkpoint,report_progress,set_progress,worker_progress,
                save_step,resume,checkpoint,save_checkpoint,delete_checkpoint,topic_work,still_held,
                work_events,topic_claim,topic_ack,topic_nack,topic_extend}'),
            ('{ojs_worker,ojs_observer,ojs_admin}',
                '{no_such_worker}'),
            ('{ojs_observer,ojs_admin}',
                '{metrics,maintenance,system_config,events,admin_job,maintenance_json,throughput,stats_history,
                history_of,held_keys,unique_jobs,middleware,waiting_by_priority,priority_stats,stream_of,
                event_stream,cron_page,cron_flat,cron_item,cursor_of,page_key,page,page_start,numbered_page,
                query_time,query_args,job_page,listed_jobs,count_listed,total_listed,list_filter,dead_letter_filter,
                admin_jobs,admin_stats,admin_queues,admin_queue,admin_workers,queues,queue,queue_stats,
                queue_config,default_policy,topic,worker,worker_health,worker_json,worker_named,dead_letters,
                dead_letter,dead_letter_named,admin_dead_letters,dead_letter_stats,crons,cron,cron_json,
                no_such_cron,rate_limits,rate_limit,rate_limit_json,listed_limits,job_list,explain,job_history,
                events_of,workflows,pool_json,pool_named,pools,pool,scheduling_stats,tenant_json,tenant_named,
                tenant_stats_json,tenants,tenant,tenant_stats,tenant_jobs,listed_workflows,end_of}'),
            ('{ojs_admin}',
                '{retry,discard,delete_job,change_job,retry_ended,change_cron,selection,filter_times,
                changed_job,take_back_jobs,do_many,do_bulk,bulk,take_key,keep_answer,free_key,cancel_bulk,
                retry_bulk,delete_bulk,must_confirm,admin_bulk,admin_cancel_bulk,admin_retry_bulk,
                admin_delete_bulk,check_atomic,delete_all,purge_asked,purge_queue,purge_dead_letters,retry_dead_letters,
                retry_dead_letter,delete_dead_letter,delete_dead_letter_flat,create_queue,configure_queue,
                with_bound,queue_is,pause_queue,resume_queue,pause_queue_flat,resume_queue_flat,drain_queue,
                drop_queue,create_topic,set_queue_rate_limit,set_rate_limit,unset_rate_limit,direct_worker,
                quiet_worker,resume_worker,terminate_worker,forget_worker,schedule,unschedule,cron_job,
                trigger_cron,set_maintenance,reset,register,register_schema,put_schema,set_schema_validation,
                drop_schema,set_pool,drop_pool,prefixed_id,webhook_json,webhook_named,webhook_reply,webhooks,
                create_webhook,webhook,update_webhook,drop_webhook,rotate_webhook_secret,test_webhook,
                webhook_delivery_json,webhook_deliveries,webhook_delivery,retry_webhook_delivery,set_tenant,
                set_tenant_limits,drop_tenant,audit}')
        ) g(roles, names), unnest(g.roles) r(role), unnest(g.names) n(name)
        join pg_proc p on p.proname = n.name and p.pronamespace = 'ojs_http'::regnamespace
    loop
        execute format('grant execute on function %s to %I', o.name, o.role);
    end loop;
end $$;
