-- psql -1 -v queue=NAME -v type=TYPE -f pgmq.sql: moves the waiting messages of a queue of pgmq into ojs, as jobs of
-- that type in the queue of that name. Messages that somebody has read and may still delete (their vt is to come) stay:
-- run it again when the readers have gone.
\ir common.psql
select :{?queue} and :{?type} as named \gset
\if :named
\else
do $$ begin raise 'which queue, and what type do its jobs get? psql -v queue=NAME -v type=TYPE'; end $$;
\endif
select pg_temp.check_owner(format('pgmq.%I', 'q_' || lower(:'queue'))::regclass) \g /dev/null
select format('create temp view peer as select * from pgmq.%I', 'q_' || lower(:'queue')) \gexec
create temp table wanted as select :'queue'::text as queue, :'type'::text as type;
create function pg_temp.take() returns setof jsonb language sql as $$
    with taken as (
        delete from pg_temp.peer where msg_id in (
            select msg_id from pg_temp.peer where vt <= clock_timestamp() or read_ct = 0
            for update skip locked)
        returning *)
    select pg_temp.envelope(wanted.type, message, wanted.queue,
        jsonb_build_object('from', 'pgmq', 'id', msg_id, 'read_ct', read_ct, 'created_at', enqueued_at,
            'headers', to_jsonb(taken) -> 'headers'),
        scheduled_at => vt)
    from taken, pg_temp.wanted order by msg_id
$$;
select pg_temp.import() as moved;
drop view pg_temp.peer;
