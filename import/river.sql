-- psql -1 -v schema=public -f river.sql: moves the waiting jobs of River (table river_job) into ojs. Jobs that run, are
-- pending or have ended stay.
\ir common.psql
select pg_temp.check_owner('river_job') \g /dev/null
create function pg_temp.take() returns setof jsonb language sql as $$
    with taken as (
        delete from river_job where id in (
            select id from river_job where state in ('available', 'scheduled', 'retryable')
            for update skip locked)
        returning *)
    select pg_temp.envelope(kind, args, queue,
        jsonb_build_object('from', 'river', 'id', id, 'metadata', metadata, 'created_at', created_at),
        1 - priority, scheduled_at, max_attempts - attempt, tags::text[])
    from taken order by scheduled_at, id
$$;
select pg_temp.import() as moved;
