-- schema.sql: the public schema, the private one, that of the HTTP binding's parts, and the roles.
-- No role gets USAGE on ojs_store: every way in is a function or a view of schema ojs. The parts of ojs.http run with the
-- rights of its caller, who must be able to name them: so they have a schema that may be entered, and no table in it.

create schema ojs;
create schema ojs_store;
create schema ojs_http;

comment on schema ojs is 'Open Job Spec job queue: functions and views';
comment on schema ojs_store is 'Private tables of the extension ojs; use the functions and views of schema ojs';
comment on schema ojs_http is 'Parts of ojs.http; not for direct use';

-- Roles belong to the whole cluster: made where absent, and kept when the extension goes.
do $$
declare
    role text;
begin
    foreach role in array array['ojs_producer', 'ojs_worker', 'ojs_observer', 'ojs_admin'] loop
        if not exists (select from pg_catalog.pg_roles where rolname = role) then
            begin
                execute pg_catalog.format('create role %I nologin', role);
            exception when duplicate_object or unique_violation then
                null; -- another database's CREATE EXTENSION was faster
            end;
        end if;
    end loop;
end
$$;
