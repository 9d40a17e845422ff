-- The whole public surface. Whoever changes it sees so in a diff of expected/api.out.
\set QUIET on
\pset format unaligned
\pset tuples_only on
set client_min_messages = warning;
create extension ojs;

-- Grantees of an object, but for its owner.
create function pg_temp.grants(acl aclitem[], owner oid) returns text language sql as $$
    select coalesce(string_agg(grantee || case when privileges = array['EXECUTE'] then ''
        else ' (' || lower(array_to_string(privileges, ', ')) || ')' end, ', ' order by grantee collate "C"), 'nobody')
    from (
        select case when a.grantee = 0 then 'PUBLIC' else a.grantee::regrole::text end as grantee,
            array_agg(a.privilege_type order by a.privilege_type) as privileges
        from aclexplode(acl) a where a.grantee <> owner group by a.grantee
    ) g
$$;

\echo FUNCTIONS
select format(E'\nojs.%s(%s)\n    returns %s\n    %s%s%s, parallel %s%s; granted to %s\n    %s',
    p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid),
    case p.provolatile when 'i' then 'immutable' when 's' then 'stable' else 'volatile' end,
    case when p.proisstrict then ', strict' else '' end,
    case when p.prosecdef then ', security definer' else '' end,
    case p.proparallel when 's' then 'safe' when 'r' then 'restricted' else 'unsafe' end,
    coalesce(', ' || array_to_string(p.proconfig, ', '), ''),
    pg_temp.grants(coalesce(p.proacl, acldefault('f', p.proowner)), p.proowner),
    coalesce(obj_description(p.oid, 'pg_proc'), 'no comment'))
from pg_proc p where p.pronamespace = 'ojs'::regnamespace
order by p.proname, pg_get_function_arguments(p.oid) collate "C";

\echo
\echo VIEWS AND TYPES
select format(E'\n%s ojs.%s%s\n    %s\n    %s', case c.relkind when 'v' then 'view' when 'c' then 'type'
    else 'relation ' || c.relkind::text end,
    c.relname,
    case when c.relkind = 'c' then ''
        else '; granted to ' || pg_temp.grants(coalesce(c.relacl, acldefault('r', c.relowner)), c.relowner) end,
    coalesce(obj_description(case when c.relkind = 'c' then c.reltype else c.oid end,
        case when c.relkind = 'c' then 'pg_type' else 'pg_class' end), 'no comment'),
    (select string_agg(format('%I %s', attname, format_type(atttypid, atttypmod)), ', ' order by attnum)
     from pg_attribute where attrelid = c.oid and attnum > 0 and not attisdropped))
from pg_class c where c.relnamespace = 'ojs'::regnamespace
order by c.relkind, c.relname;

\echo
\echo SETTINGS
select format('%s = %s%s (%s; %s)', name, boot_val, coalesce(' ' || unit, ''),
    coalesce(array_to_string(enumvals, ', '), min_val || ' to ' || max_val, vartype), context)
from pg_settings where name like 'ojs.%' order by name collate "C";

\echo
\echo ROLES
select rolname || coalesce(', member of ' || (
    select string_agg(m.roleid::regrole::text, ', ' order by m.roleid::regrole::text collate "C")
        from pg_auth_members m where m.member = r.oid), '')
from pg_roles r where rolname like 'ojs\_%' order by rolname;
