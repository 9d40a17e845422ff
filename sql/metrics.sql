-- metrics.sql: what has happened to jobs, for whoever watches a server. C++: src/counters/job_metrics.cpp,
-- src/admin/metrics.cpp.

-- What shared memory says; nothing without preload, and on a standby what it has counted itself: nothing.
create function ojs_store.shared_metrics(out queue bigint, out type text, out cells bigint[], out sums bigint[])
    returns setof record
language c volatile parallel unsafe rows 100 as 'MODULE_PATHNAME', 'ojs_shared_metrics';

create function ojs_store.shared_hour(
    ids bigint[],
    out queue bigint, out completed bigint, out failed bigint, out avg_duration_ms float8, out avg_wait_ms float8
) returns setof record
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_shared_hour';

create function ojs_store.shared_minute(ids bigint[], out queue bigint, out starts bigint, out avg_wait_ms float8)
    returns setof record
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_shared_minute';

create function ojs_store.shared_parts(
    ids bigint[],
    out at timestamptz, out enqueued bigint, out completed bigint, out failed bigint, out run_us bigint,
        out waits bigint, out wait_us bigint
) returns setof record
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_shared_parts';

create function ojs_store.queue_seqs(id bigint, out earliest bigint, out head bigint) returns record
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_queue_seqs';

-- What of shared memory is in use, by all databases and by this one, and how much there is; nothing without preload.
create function ojs_store.shared_use(out what text, out used bigint, out own bigint, out most bigint)
    returns setof record
language c volatile parallel unsafe rows 7 as 'MODULE_PATHNAME', 'ojs_shared_use';

-- What a line says of its queue: a tenant's part of one names the tenant.
create function ojs_store.queue_labels(name text) returns text
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select format('queue="%s"', split_part(name, '@', 1)) || case when name like '%@%'
        then format(',tenant_id="%s"', split_part(name, '@', 2)) else '' end
$$;

-- Whether commits are counted here.
create function ojs_store.metrics_kept() returns boolean
language c stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_metrics_kept';

-- When a job, of these queues or (null) of all, was handed out for the first time, and how long it had waited, as far
-- as rows tell. A pending job does not say when it was activated.
create function ojs_store.first_starts(
    since timestamptz, queues bigint[],
    out queue bigint, out type text, out waited_us bigint
) returns setof record
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select j.queue, j.type,
        greatest((extract(epoch from started.at - greatest(j.created_at, j.scheduled_at)) * 1000000)::bigint, 0)
    from (
        select d.job_id, d.started_at as at from ojs_store.finished d where d.deliveries = 1 and d.started_at > since
            and (queues is null or d.queue = any (queues))
        union
        select r.job_id, r.started_at from ojs_store.running() r where r.kind = Origin.held and r.deliveries = 1
            and r.started_at > since
        union
        select e.job_id, e.started_at from ojs_store.job_history e
            where e.kind in (HistoryKind.failed, HistoryKind.released, HistoryKind.lapsed) and e.deliveries = 1
            and e.started_at > since
    ) started
    join ojs_store.job j on j.id = started.job_id
    where j.flags & job_flag.job_pending = 0 and (queues is null or j.queue = any (queues))
$$;

-- The last sixty minutes of some queues.
create function ojs_store.last_hour(
    ids bigint[],
    out queue bigint, out completed bigint, out failed bigint, out avg_duration_ms float8, out avg_wait_ms float8
) returns setof record
language plpgsql stable parallel unsafe rows 10 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    since timestamptz := ojs_store.now() - interval '1 hour';
    n bigint;
begin
    return query select * from ojs_store.shared_hour(ids);
    get diagnostics n = row_count;
    if n = cardinality(ids) then
        return;
    end if;
    return query
        select q.id, coalesce(ended.completed, 0), coalesce(ended.failed, 0), ended.took_ms, waits.waited_ms
        from (select unnest(ids) except select h.queue from ojs_store.shared_hour(ids) h) as q(id)
        left join (
            select d.queue, count(*) filter (where d.state = State.completed) as completed,
                count(*) filter (where d.state = State.discarded) as failed,
                avg(extract(epoch from d.finished_at - d.started_at) * 1000) filter
                    (where d.state = State.completed)::float8 as took_ms
            from ojs_store.finished d
            where d.finished_at > since and d.queue = any (ids)
            group by 1
        ) ended on ended.queue = q.id
        left join (
            select s.queue, (avg(s.waited_us) / 1000)::float8 as waited_ms from ojs_store.first_starts(since, ids) s
                group by 1
        ) waits on waits.queue = q.id;
end $$;

-- What happened in each stretch of `step` from `since` to `until`. The last hour by five minutes comes from shared
-- memory; all else is counted in the jobs that are kept. At most 1500 of them: a day by minutes, say.
create function ojs_store.history(ids bigint[], step interval, since timestamptz, until timestamptz)
returns table (at timestamptz, enqueued bigint, completed bigint, failed bigint, avg_run_ms numeric,
    avg_wait_ms numeric)
language plpgsql volatile parallel unsafe rows 100 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    -- By numbers: the difference of two times may be more than an interval holds.
    if since > until or extract(epoch from until) - extract(epoch from since) > 1500 * extract(epoch from step) then
        perform ojs_store.raise('INVALID_PAYLOAD', 'since and until do not name a stretch of 1500 periods at most',
            '{"field": "since"}', 'Ask for less, or by longer periods.');
    end if;
    if step = interval '5 min' and since >= ojs_store.now() - interval '65 min' and ojs_store.metrics_kept()
        and not pg_is_in_recovery() then
        return query
            select s.at, coalesce(sum(p.enqueued), 0)::bigint, coalesce(sum(p.completed), 0)::bigint,
                coalesce(sum(p.failed), 0)::bigint,
                round(sum(p.run_us) / nullif(sum(p.completed), 0) / 1000, 3),
                    round(sum(p.wait_us) / nullif(sum(p.waits), 0) / 1000, 3)
            from generate_series(date_bin(step, since, timestamptz '2000-01-01 00:00:00+00'), until, step) s(at)
            left join ojs_store.shared_parts(ids) p on p.at = s.at
            group by s.at order by s.at;
        return;
    end if;
    return query
        with pushed as (
            select date_bin(step, j.created_at, timestamptz '2000-01-01 00:00:00+00') as at,
                count(*) as n from ojs_store.job j
            where j.created_at >= since and j.created_at <= until and j.queue = any (ids) group by 1
        ), ended as (
            select date_bin(step, d.finished_at, timestamptz '2000-01-01 00:00:00+00') as at,
                count(*) filter (where d.state = State.completed) as completed,
                count(*) filter (where d.state = State.discarded) as failed,
                    avg(extract(epoch from d.finished_at - d.started_at) * 1000) filter
                    (where d.state = State.completed) as ms
            from ojs_store.finished d where d.finished_at >= since and d.finished_at <= until and d.queue = any (ids)
                group by 1
        )
        select s.at, coalesce(p.n, 0), coalesce(e.completed, 0), coalesce(e.failed, 0), round(e.ms, 3), null::numeric
        from generate_series(date_bin(step, since, timestamptz '2000-01-01 00:00:00+00'), until, step) s(at)
        left join pushed p on p.at = s.at left join ended e on e.at = s.at
        order by s.at;
end $$;

-- METRICS ----------------------------------------------------------------------------------------------------------

-- What shared_metrics() would say of the jobs that are kept. Cells (see include/ojs/counters/job_metrics.h, there from
-- 0): 1 enqueued, 2 retried, 3 expired, 4 to 17 by the time waited, then three times 16 by the time run, and those that
-- never ran: from 18 completed, from 35 discarded, from 52 cancelled.
create function ojs_store.metrics_of_rows(out queue bigint, out type text, out cells bigint[], out sums bigint[])
    returns setof record
language plpgsql stable parallel unsafe rows 100 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    wait_bounds constant bigint[] := 'constant.wait_bounds';
    duration_bounds constant bigint[] := 'constant.duration_bounds';
    most_types constant int := 100;
begin
    return query
    with facts as (
        select j.queue, j.type, 1 as cell, 0 as sum, count(*) as n, 0::bigint as us from ojs_store.job j group by 1, 2
        union all
        select j.queue, j.type, 2, 0, count(*), 0 from ojs_store.job_history e join ojs_store.job j on j.id = e.job_id
        where e.kind = HistoryKind.failed and e.due_at is not null group by 1, 2
        union all
        select j.queue, j.type, 3, 0, count(*), 0 from ojs_store.finished d join ojs_store.job j on j.id = d.job_id
        where d.state = State.discarded and d.error ->> 'type' in ('expired', 'enqueue_ttl_expired', 'total_timeout')
            group by 1, 2
        union all
        select s.queue, s.type, 4 + width_bucket(s.waited_us - 1, wait_bounds), 1, count(*), sum(s.waited_us)::bigint
        from ojs_store.first_starts('-infinity', null) s group by 1, 2, 3
        union all
        select e.queue, j.type, case e.state when State.completed then 18 when State.discarded then 35 else 52 end
                + case when e.us is null then 16 else width_bucket(e.us - 1, duration_bounds) end,
            case e.state when State.completed then 2 when State.discarded then 3 else 4 end, count(*),
                coalesce(sum(e.us), 0)::bigint
        from (select d.*, case when d.started_at is not null
            then greatest((extract(epoch from d.finished_at - d.started_at) * 1000000)::bigint, 0) end as us
            from ojs_store.finished d) e
        join ojs_store.job j on j.id = e.job_id
        group by 1, 2, 3, 4
    ), labels as (
        select l.queue, l.type, case when row_number() over (partition by l.queue order by l.n desc,
            l.type) <= most_types then l.type else '_other' end as label
        from facts l where l.cell = 1
    ), counted as (
        select f.queue, coalesce(l.label, f.type) as type, f.cell, f.sum, sum(f.n) as n, sum(f.us) as us
        from facts f left join labels l on l.queue = f.queue and l.type = f.type
        group by 1, 2, 3, 4
    )
    select c.queue, c.type,
        array(select coalesce(sum(m.n), 0)::bigint from generate_series(1, 68) i left
            join unnest(array_agg(c.cell), array_agg(c.n)) as m(cell, n) on m.cell = i group by i order by i),
        array(select coalesce(sum(m.us), 0)::bigint from generate_series(1, 4) i left
            join unnest(array_agg(c.sum), array_agg(c.us)) as m(sum, us) on m.sum = i group by i order by i)
    from counted c
    group by 1, 2;
end $$;

create function ojs.metrics() returns text
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_metrics';
comment on function ojs.metrics()
    is 'Counters, histograms and gauges of jobs and queues in the text format of Prometheus';
