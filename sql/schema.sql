-- schema.sql: the public schema, the private one, and that of the HTTP binding's parts. The roles: roles.sql.
-- No role gets USAGE on ojs_store: every way in is a function or a view of schema ojs. The parts of ojs.http run with
-- the rights of its caller, who must be able to name them: so they have a schema that may be entered, and no table in
-- it.

create schema ojs;
create schema ojs_store;
create schema ojs_http;

comment on schema ojs is 'Open Job Spec job queue: functions and views';
comment on schema ojs_store is 'Private tables of the extension ojs; use the functions and views of schema ojs';
comment on schema ojs_http is 'Parts of ojs.http; not for direct use';

do $$
begin
    if getdatabaseencoding() <> 'UTF8' then
        raise warning 'the encoding % of this database lacks characters that JSON may hold', getdatabaseencoding()
            using hint = 'Jobs that hold such a character are refused. Use a database with the encoding UTF8.';
    end if;
end $$;
