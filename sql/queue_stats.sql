-- queue_stats.sql: looking at queues. C++: src/admin/queue_stats.cpp.

-- Where a queue's jobs are: what is committed, and the caller's own changes. From the counters in shared memory, or
-- where there are none by counting the rows.
create function ojs_store.queue_rows(
    ids bigint[],
    out queue bigint, out ready bigint, out in_flight bigint, out delayed bigint, out available bigint,
        out active bigint,
    out scheduled bigint, out retryable bigint, out pending bigint, out completed bigint, out cancelled bigint,
    out discarded bigint
) returns setof record
language c strict volatile parallel unsafe rows 10 as 'MODULE_PATHNAME', 'ojs_queue_rows';

-- Of these queues the open jobs with a rate limit, and with `ended` the dead letters. No rows without preload, or where
-- the counters do not hold: who asks looks at the rows.
create function ojs_store.counted_apart(
    ids bigint[], ended boolean, out queue bigint, out limited bigint, out dead_letters bigint
) returns setof record
language c strict volatile parallel unsafe rows 10 as 'MODULE_PATHNAME', 'ojs_counted_apart';

create function ojs_store.ready_and_held(id bigint, out ready bigint, out in_flight bigint) returns record
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_ready_and_held';

-- Rows that change by SQL are counted by triggers; direct table access fires none. ojs updates no row of ready or
-- delayed, but a superuser might. Rows that come into done by SQL are a restore, and may be many: hot_set_lost() has
-- them counted anew.
create function ojs_store.count_rows() returns trigger
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_count_rows';

create trigger rows_in after insert on ojs_store.ready
    referencing new table as came for each statement execute function ojs_store.count_rows();
create trigger rows_out after delete on ojs_store.ready
    referencing old table as went for each statement execute function ojs_store.count_rows();
create trigger rows_moved after update on ojs_store.ready
    referencing old table as went new table as came for each statement execute function ojs_store.count_rows();
create trigger rows_in after insert on ojs_store.delayed
    referencing new table as came for each statement execute function ojs_store.count_rows();
create trigger rows_out after delete on ojs_store.delayed
    referencing old table as went for each statement execute function ojs_store.count_rows();
create trigger rows_moved after update on ojs_store.delayed
    referencing old table as went new table as came for each statement execute function ojs_store.count_rows();
create trigger rows_in after insert on ojs_store.lease
    referencing new table as came for each statement execute function ojs_store.count_rows();
create trigger rows_out after delete on ojs_store.lease
    referencing old table as went for each statement execute function ojs_store.count_rows();
create trigger rows_moved after update on ojs_store.lease
    referencing old table as went new table as came for each statement execute function ojs_store.count_rows();
create trigger rows_out after delete on ojs_store.finished
    referencing old table as went for each statement execute function ojs_store.count_rows();
create trigger emptied after truncate on ojs_store.ready for each statement execute function ojs_store.count_rows();
create trigger emptied after truncate on ojs_store.delayed for each statement execute function ojs_store.count_rows();
create trigger emptied after truncate on ojs_store.lease for each statement execute function ojs_store.count_rows();
create trigger emptied after truncate on ojs_store.finished for each statement execute function ojs_store.count_rows();

-- Counts by queue. On a standby the logged tables alone answer, by what the caller's statement sees.
create function ojs_store.queue_counts(
    ids bigint[],
    out queue bigint, out ready bigint, out in_flight bigint, out delayed bigint, out available bigint,
        out active bigint,
    out scheduled bigint, out retryable bigint, out pending bigint, out completed bigint, out cancelled bigint,
    out discarded bigint, out dead_lettered bigint
) returns setof record
language plpgsql stable parallel unsafe rows 10 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    at timestamptz := ojs_store.now();
begin
    if pg_is_in_recovery() then
        return query
            select q.id, count(*) filter (where j.state = 'available'), count(*) filter (where false),
                count(*) filter (where false),
                count(*) filter (where j.state = 'available'), count(*) filter (where j.state = 'active'),
                count(*) filter (where j.state = 'scheduled'), count(*) filter (where j.state = 'retryable'),
                count(*) filter (where j.state = 'pending'), count(*) filter (where j.state = 'completed'),
                count(*) filter (where j.state = 'cancelled'), count(*) filter (where j.state = 'discarded'),
                coalesce(max(moved.n), 0)
            from (select distinct id from ojs_store.queue where id = any (ids)) q
            left join (
                select e.queue, (ojs_store.look(e.id)).state from ojs_store.job e where e.queue = any (ids)
            ) j on j.queue = q.id
            left join (
                select c.queue, sum(c.dead_lettered)::bigint as n from ojs_store.queue_count c
                    where c.queue = any (ids) group by 1
            ) moved on moved.queue = q.id
            group by q.id;
        return;
    end if;
    return query
        select c.*, coalesce(moved.n, 0)
        from ojs_store.queue_rows(ids) c
        left join (
            select d.queue, sum(d.dead_lettered)::bigint as n from ojs_store.queue_count d where d.queue = any (ids)
                group by 1
        ) moved on moved.queue = c.queue;
end $$;

create function ojs.queue_stats(
    name text default null,
    out queue text, out paused boolean, out ready bigint, out in_flight bigint, out delayed bigint,
        out available bigint,
    out active bigint, out scheduled bigint, out retryable bigint, out pending bigint, out completed bigint,
    out cancelled bigint, out discarded bigint, out dead_lettered bigint, out completed_last_hour bigint,
    out failed_last_hour bigint, out avg_duration_ms numeric, out avg_wait_ms numeric,
        out throughput_per_second numeric,
    out computed_at timestamptz
) returns setof record
language plpgsql stable parallel unsafe security definer rows 10 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    names text[];
    ids bigint[];
begin
    if queue_stats.name is not null then
        names := array[(ojs_store.queue_found(ojs_store.use_queue(queue_stats.name, 'read'))).name];
    else
        names := array(select q.name from ojs.queues q);
    end if;
    ids := array(select ojs_store.queue_id(n) from unnest(names) n);
    return query
        select ojs_store.shown_queue(q.name), q.state = 'paused',
            c.ready, c.in_flight, c.delayed, c.available, c.active, c.scheduled,
            c.retryable,
            c.pending, c.completed, c.cancelled, c.discarded, c.dead_lettered, h.completed, h.failed,
            round(h.avg_duration_ms::numeric, 3), round(h.avg_wait_ms::numeric, 3), round(h.completed / 3600.0, 4),
                ojs_store.now()
        from ojs_store.queue_counts(ids) c
        join ojs_store.last_hour(ids) h on h.queue = c.queue
        join ojs.queues q on ojs_store.queue_id(q.name) = c.queue
        where q.name = any (names) -- one name does not look at all queues
        order by q.name;
end $$;
comment on function ojs.queue_stats(text) is 'Jobs of a queue, or of each queue, by state; and its last hour';

-- How large the jobs are that wait in a queue and whose size counts.
create function ojs_store.waiting_bytes(queue bigint) returns bigint
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_waiting_bytes';

-- How far a queue is from its bounds; nothing for one that has none.
create function ojs_store.pressure_of(queue bigint, config jsonb, depth bigint) returns jsonb
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    effective jsonb := ojs_store.effective_config(config, false);
    bound bigint := nullif((effective ->> 'max_size')::bigint, 0);
    bound_bytes bigint := nullif((effective ->> 'max_size_bytes')::bigint, 0);
    depth_bytes bigint;
begin
    if bound_bytes is not null and not pg_is_in_recovery() then
        depth_bytes := ojs_store.waiting_bytes(queue);
    end if;
    return jsonb_strip_nulls(jsonb_build_object('bound', bound, 'depth_bytes', depth_bytes, 'bound_bytes', bound_bytes,
        'pressure', trim_scale(trunc(greatest(depth / bound::numeric, depth_bytes / bound_bytes::numeric), 4))));
end $$;

create function ojs_store.ms_since(started timestamptz) returns numeric
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select round((extract(epoch from clock_timestamp() - started) * 1000)::numeric, 3)
$$;

create function ojs.queue_info(name text) returns jsonb
language plpgsql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    started timestamptz := clock_timestamp();
    queue ojs_store.queue := ojs_store.in_force(ojs_store.queue_found(ojs_store.use_queue(name, 'read')));
    stats jsonb;
    hour jsonb;
    live bigint;
    seqs record;
begin
    select to_jsonb(c) - 'queue', c.available + c.active + c.scheduled + c.retryable + c.pending into stats, live
    from ojs_store.queue_counts(array[queue.id]) c;
    select jsonb_build_object('completed_last_hour', h.completed, 'failed_last_hour', h.failed,
        'avg_duration_ms', round(h.avg_duration_ms::numeric, 3), 'avg_wait_ms', round(h.avg_wait_ms::numeric, 3),
        'throughput_per_second', round(h.completed / 3600.0, 4), 'computed_at', ojs_store.time_text(ojs_store.now()))
    into hour from ojs_store.last_hour(array[queue.id]) h;
    select * into seqs from ojs_store.queue_seqs(queue.id);
    return ojs_store.queue_json(queue) || jsonb_build_object(
        'topic', name,
        'head_seq', seqs.head,
        'earliest_seq', seqs.earliest,
        'count', live,
        'queue', stats || jsonb_build_object('name', name, 'paused', queue.state = 'paused'),
        'stats', stats || jsonb_build_object('queue', name, 'depth', live - (stats ->> 'active')::bigint)
            || ojs_store.pressure_of(queue.id, queue.config, live - (stats ->> 'active')::bigint) || hour,
        'performance', jsonb_build_object('server_total_ms', ojs_store.ms_since(started)));
end $$;
comment on function ojs.queue_info(text) is 'A queue: its settings with all defaults, its state, and its jobs counted';
