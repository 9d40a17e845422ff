-- psql -1 -f pg-boss.sql: moves the waiting jobs of pg-boss 12 (schema pgboss) into ojs. Jobs that run or wait for
-- others stay.
\ir common.psql
select pg_temp.check_owner('pgboss.job') \g /dev/null
create function pg_temp.take() returns setof jsonb language sql as $$
    with taken as (
        delete from pgboss.job where (name, id) in (
            select name, id from pgboss.job peer
            where state in ('created', 'retry') and name not like '\_\_pgboss\_\_%' and not blocked
            for update skip locked)
        returning *)
    select pg_temp.envelope(name, coalesce(data, '{}'), name,
        jsonb_build_object('from', 'pg-boss', 'id', id, 'singleton_key', singleton_key, 'created_at', created_on),
        priority, start_after, retry_limit + 1 - retry_count, expires_at => keep_until)
    from taken order by created_on, id
$$;
select pg_temp.import() as moved;
