-- privileges.sql: default privileges of who installs or updates the extension give nobody anything on its objects:
-- SEC-01, PGX-12.
-- Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();
set local client_min_messages = error;
set local check_function_bodies = off;

-- Who but its owner may do what with each object. Null stands for the privileges that such an object has by default.
create function pg_temp.grantees() returns setof text language sql as $$
    with space as (
        select oid from pg_namespace where nspname in ('ojs', 'ojs_store', 'ojs_http')
    ), object as (
        select 'schema ' || nspname as name, nspowner as owner, coalesce(nspacl, acldefault('n', nspowner)) as acl
        from pg_namespace where oid in (table space)
        union all
        select 'relation ' || oid::regclass, relowner,
            coalesce(relacl, acldefault(case relkind when 'S' then 's'::"char" else 'r' end, relowner))
        from pg_class where relnamespace in (table space) and relkind in ('r', 'v', 'm', 'p', 'S')
        union all
        select format('column %s.%s', attrelid::regclass, attname), relowner, attacl
        from pg_attribute join pg_class c on c.oid = attrelid
        where relnamespace in (table space) and attacl is not null
        union all
        select 'routine ' || oid::regprocedure, proowner, coalesce(proacl, acldefault('f', proowner))
        from pg_proc where pronamespace in (table space)
        union all
        select 'type ' || oid::regtype, typowner, coalesce(typacl, acldefault('T', typowner))
        from pg_type where typnamespace in (table space) and typelem = 0
    )
    select format('%s: %s to %s', o.name, g.privilege_type,
        case g.grantee when 0 then 'public' else g.grantee::regrole::text end)
    from object o, aclexplode(o.acl) g where g.grantee <> o.owner
$$;
create function pg_temp.strangers() returns text language sql as $$
    select string_agg(g, e'\n') from (select g from pg_temp.grantees() g except table clean order by 1) more
$$;
create function pg_temp.missing() returns text language sql as $$
    select string_agg(g, e'\n') from (table clean except select g from pg_temp.grantees() g order by 1) less
$$;

drop extension ojs;
create extension ojs;
create temp table clean as select g from pg_temp.grantees() g;
select ok(count(*) > 100, 'the roles have what they are granted') from clean;
drop extension ojs;

create role dp_reader;
create role dp_sender;
alter default privileges grant usage, create on schemas to dp_reader, ojs_producer;
alter default privileges grant all on tables to dp_reader, ojs_producer;
alter default privileges grant all on tables to public;
alter default privileges grant usage on sequences to dp_reader, ojs_producer;
alter default privileges grant execute on functions to dp_reader with grant option;
alter default privileges grant execute on functions to ojs_producer;
alter default privileges grant usage on types to dp_reader, ojs_producer;
create extension ojs;
select is(pg_temp.strangers(), null, 'an installation gives nobody what default privileges say');
select is(pg_temp.missing(), null, 'and the roles what they are to have');
select is(has_function_privilege('dp_reader', 'ojs.set_maintenance(boolean, text, interval)', 'execute'), false,
    'a stranger calls no function');
select is(has_function_privilege('ojs_producer', 'ojs.set_maintenance(boolean, text, interval)', 'execute'), false,
    'a producer administers nothing');
drop extension ojs;

-- What 0.1.0 gave is taken back, and what somebody was granted by hand stays, but on ojs_store.
create extension ojs version '0.1.0';
select ok(pg_temp.strangers() ~ 'ojs_store', 'version 0.1.0 gave them all of it');
grant usage on schema ojs, ojs_store to dp_sender;
grant select on ojs_store.webhook to dp_sender;
grant execute on function ojs.claim_webhooks(int), ojs.finish_webhooks(jsonb) to dp_sender;
grant select on ojs.queues, ojs.events to dp_sender;
alter extension ojs update;
select is(pg_temp.strangers(), 'relation ojs.events: SELECT to dp_sender
relation ojs.queues: SELECT to dp_sender
routine ojs.claim_webhooks(integer): EXECUTE to dp_sender
routine ojs.finish_webhooks(jsonb): EXECUTE to dp_sender
schema ojs: USAGE to dp_sender',
    'an update takes back what default privileges say, and leaves what was granted by hand');
select is(pg_temp.missing(), null, 'the roles have what they are to have');

select * from finish();
rollback;
