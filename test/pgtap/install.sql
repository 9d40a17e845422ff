-- install.sql: what CREATE EXTENSION says of roles that exist already: PGX-12.
-- Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();

drop extension ojs;
create function pg_temp.installs() returns text language plpgsql as $$
begin
    execute 'create extension ojs';
    execute 'drop extension ojs';
    return 'yes';
exception when others then
    return sqlstate || ' ' || sqlerrm;
end $$;
create role ojs_test_member;
create role ojs_test_owner createrole;

grant ojs_admin to ojs_test_member;
select is(pg_temp.installs(), 'yes', 'roles of another database, with members, are taken as they are');
alter role ojs_admin login;
select is(pg_temp.installs(), '42710 role "ojs_admin" exists already, and can log in or has attributes of its own',
    'a role that can log in is refused');
alter role ojs_admin nologin createrole;
select alike(pg_temp.installs(), '42710 role "ojs_admin" %', 'and one with CREATEROLE');
alter role ojs_admin nocreaterole bypassrls;
select alike(pg_temp.installs(), '42710 role "ojs_admin" %', 'and one with BYPASSRLS');
alter role ojs_admin nobypassrls;
grant ojs_worker to ojs_test_owner with admin option;
select is(pg_temp.installs(), '42710 role "ojs_worker" exists already, and can be granted by ojs_test_owner',
    'and one that somebody else may grant');
revoke admin option for ojs_worker from ojs_test_owner;
select is(pg_temp.installs(), 'yes', 'mended as the hint says, it is taken');

select * from finish();
rollback;
