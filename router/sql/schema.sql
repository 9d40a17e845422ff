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
