-- psql -1 -v schema=public -f oban.sql: moves the waiting jobs of Oban (table oban_jobs) into ojs. Jobs that run,
-- are suspended or have ended stay.
\ir common.psql
select pg_temp.check_owner('oban_jobs') \g /dev/null
create function pg_temp.take() returns setof jsonb language sql as $$
    with taken as (
        delete from oban_jobs where id in (
            select id from oban_jobs where state in ('available', 'scheduled', 'retryable')
            for update skip locked)
        returning *)
    select pg_temp.envelope(worker, args, queue,
        jsonb_build_object('from', 'oban', 'id', id, 'meta', meta, 'created_at', inserted_at at time zone 'UTC'),
        -priority, scheduled_at at time zone 'UTC', max_attempts - attempt, tags::text[])
    from taken order by scheduled_at, id
$$;
select pg_temp.import() as moved;
