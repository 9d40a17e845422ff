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
