-- storage.sql: the tables as PostgreSQL sees them: replica identity (a publication must not stop anything), and what may
-- not be done to them because direct access passes it by.
begin;
select no_plan();
\ir helpers.psql

-- Without one, whoever publishes all tables stops every update and delete.
create function pg_temp.identity_of(one regclass) returns text language sql as $$
    select case c.relreplident
        when 'f' then 'full'
        when 'i' then coalesce((select 'index' from pg_index i
            where i.indrelid = one and i.indisreplident and i.indisunique and i.indisvalid and i.indimmediate and i.indpred is null
                and not exists (select from pg_attribute a
                    where a.attrelid = one and a.attnum = any (i.indkey) and not a.attnotnull)), 'nothing')
        when 'd' then coalesce((select 'primary key' from pg_index i where i.indrelid = one and i.indisprimary), 'nothing')
        else 'nothing'
    end
    from pg_class c where c.oid = one
$$;
create temp view logged as
    select oid::regclass as name, pg_temp.identity_of(oid) as identity from pg_class
    where relnamespace = 'ojs_store'::regnamespace and relkind = 'r' and relpersistence = 'p';

select is_empty($$ select name from logged where identity = 'nothing' $$, 'every logged table has a replica identity');
select isnt_empty($$ select from logged where identity = 'index' $$, 'some by a unique index');
select set_eq($$ select name::text from logged where identity = 'full' $$,
    array(select 'ojs_store.' || unnest('{name_key,queue,queue_count,event,uniq,told_until,rate_limit,maintenance,hook_failure}'::text[])),
    'the whole row only where no unique index holds all rows');

select * from finish();
rollback;
