-- pools.sql: sets of queues that claims name, with how they are shared out (FS-02). C++: src/queue/pool.cpp,
-- src/claim/shares.cpp.

-- The weights of queues by a strategy, checked; null where they are served strictly one after the other.
create function ojs_store.weights_by(strategy text, weights jsonb, queues text[]) returns int[]
language c stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_weights_by';

-- What the claims of each pool, and the workers on its queues, hold now; nothing on a standby.
create function ojs_store.pool_use(out pool text, out places_taken bigint, out active_workers bigint,
    out active_jobs bigint) returns setof record
language plpgsql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    if pg_is_in_recovery() then
        return;
    end if;
    return query
        with held as materialized (
            select l.queue, l.worker, count(*) as jobs from ojs_store.lease l group by 1, 2
        ), of_pool as (
            select p.name, held.worker, held.jobs
            from ojs_store.pool p, unnest(p.queues) q join held on held.queue = ojs_store.queue_id(q)
            union all
            select w.info ->> 'pool', w.name, 0 from ojs_store.worker w where w.info ? 'pool' and w.died_at is null
        )
        select p.name,
            ojs_store.slots_taken(ojs_store.name_hash('pool:' || p.name)),
            count(distinct o.worker), coalesce(sum(o.jobs), 0)::bigint
        from ojs_store.pool p left join of_pool o on o.name = p.name
        group by p.name;
end $$;

create view ojs.pools with (security_barrier) as
select p.name, p.strategy, p.queues,
    case when p.strategy = 'weighted' then (
        select jsonb_object_agg(w.queue, w.weight) from unnest(p.queues, p.weights) w (queue, weight)) end as weights,
    p.concurrency, u.places_taken, u.active_workers, u.active_jobs, p.changed_at
from ojs_store.pool p left join ojs_store.pool_use() u on u.pool = p.name
where not exists (select from unnest(p.queues) q where not ojs_store.may_use_queue(q, 'read'));
comment on view ojs.pools
    is 'Sets of queues that ojs.claim_pool takes, how they are shared out, and what of them is being worked on';

create function ojs_store.pool_json(p ojs_store.pool) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_strip_nulls(jsonb_build_object('name', p.name, 'queues', p.queues, 'strategy', p.strategy,
        'weights', case when p.strategy = 'weighted' then (
            select jsonb_object_agg(w.queue, w.weight) from unnest(p.queues, p.weights) w (queue, weight)) end,
        'concurrency', p.concurrency))
$$;

-- A pool as it is asked for, checked.
create function ojs_store.wanted_pool(name text, config jsonb) returns ojs_store.pool
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    wanted ojs_store.pool;
    bad text;
    listed jsonb := config -> 'queues';
    weights jsonb := nullif(config -> 'weights', 'null');
begin
    if name is null or name !~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$' then
        perform ojs_store.raise('INVALID_PAYLOAD',
            'name must have 1 to 128 letters, digits, dots, _ and -, and begin with a letter or digit',
            '{"field": "name"}', 'Give the pool a name such as critical-workers.');
    elsif jsonb_typeof(config) is distinct from 'object' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'config must be an object', '{"field": "config"}',
            'Give an object such as {"queues": ["critical", "default"], "strategy": "round-robin"}.');
    end if;
    if coalesce(config -> 'isolated', 'false') not in ('false', 'null') then
        perform ojs_store.raise('UNSUPPORTED_FEATURE', 'isolated pools are not supported', '{"field": "isolated"}',
            'Keep others from a queue with its setting workers, a list of roles.');
    elsif coalesce(config #> '{starvation_prevention,enabled}', 'false') not in ('false', 'null') then
        perform ojs_store.raise('UNSUPPORTED_FEATURE', 'starvation_prevention is not supported',
            '{"field": "starvation_prevention"}', 'Use the strategy weighted: it starves no queue.');
    end if;
    select key into bad from jsonb_object_keys(config) key
    where key not in ('name', 'queues', 'strategy', 'weights', 'concurrency', 'isolated', 'starvation_prevention')
    limit 1;
    if found then
        perform ojs_store.raise('INVALID_PAYLOAD', format('%s is no setting of a pool', left(bad, 64)),
            jsonb_build_object('field', left(bad, 64)), 'It takes queues, strategy, weights and concurrency.');
    end if;
    wanted.name := name;
    wanted.strategy := replace(coalesce(config ->> 'strategy', 'round-robin'), '_', '-');
    -- {"critical": {"weight": 70}} says both. It has no order.
    if jsonb_typeof(listed) = 'object' and wanted.strategy <> 'strict' then
        select q.key into bad from jsonb_each(listed) q
        where case jsonb_typeof(q.value) when 'object' then q.value - 'weight' <> '{}' else true end limit 1;
        if found then
            perform ojs_store.raise('INVALID_PAYLOAD',
                format('queues.%s must be an object with a weight or nothing', left(bad, 64)),
                '{"field": "queues"}', 'Give {"critical": {"weight": 70}, "default": {}}, or an array of names.');
        end if;
        weights := coalesce(weights, (select jsonb_object_agg(q.key, q.value -> 'weight')
            from jsonb_each(listed) q where q.value -> 'weight' is not null));
        listed := (select jsonb_agg(q.key order by q.key) from jsonb_each(listed) q);
    end if;
    if jsonb_typeof(listed) is distinct from 'array' or jsonb_array_length(listed) not between 1 and 1000
        or jsonb_path_exists(listed, 'strict $[*] ? (@.type() != "string")') then
        perform ojs_store.raise('INVALID_PAYLOAD', 'queues must be an array of 1 to 1000 names', '{"field": "queues"}',
            'Name the queues of the pool, in their order.');
    end if;
    wanted.queues := array(select q.name from jsonb_array_elements_text(listed) with ordinality q (name, at)
        group by q.name order by min(q.at));
    select q into bad from unnest(wanted.queues) q where q !~ '^[a-z0-9][a-z0-9.-]{0,127}$' limit 1;
    if found then
        perform ojs_store.raise('INVALID_QUEUE', format('queues holds "%s", which is no name of a queue',
            left(bad, 64)), '{"field": "queues"}', 'Name queues by a-z, 0-9, "-" and ".".');
    end if;
    wanted.weights := ojs_store.weights_by(wanted.strategy, weights, wanted.queues);
    if coalesce(config -> 'concurrency', 'null') <> 'null' then
        if config ->> 'concurrency' !~ '^[0-9]{1,9}$' then
            perform ojs_store.raise('INVALID_PAYLOAD', 'concurrency must be a whole number below 1000000000',
                '{"field": "concurrency"}', 'Say how many jobs of the pool may be held at once.');
        end if;
        wanted.concurrency := (config ->> 'concurrency')::int;
    end if;
    return wanted;
end $$;

create function ojs.set_pool(name text, config jsonb) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    wanted ojs_store.pool := ojs_store.wanted_pool(name, config);
    before ojs_store.pool;
begin
    perform ojs_store.lock_setting('ojs_store.pool', name);
    select * into before from ojs_store.pool p where p.name = set_pool.name;
    perform ojs_store.use_queue(q, 'administer') from unnest(before.queues || wanted.queues) q;
    if before.name is null and (select count(*) from ojs_store.pool) >= 1000 then
        perform ojs_store.raise('UNAVAILABLE', 'there are 1000 pools already', '{"field": "name"}',
            'Drop pools that nobody claims from.');
    end if;
    -- Applications call this at each start: nothing to write.
    if ojs_store.pool_json(before) = ojs_store.pool_json(wanted) then
        return ojs_store.pool_json(wanted);
    end if;
    insert into ojs_store.pool as p (name, queues, weights, concurrency, strategy, changed_at)
    values (wanted.name, wanted.queues, wanted.weights, wanted.concurrency, wanted.strategy, ojs_store.now())
    on conflict on constraint pool_pkey do update set queues = excluded.queues, weights = excluded.weights,
        concurrency = excluded.concurrency, strategy = excluded.strategy, changed_at = excluded.changed_at;
    perform ojs_store.record_act('pool_set', wanted.name, jsonb_build_object('pool', wanted.name),
        case when before.name is not null then ojs_store.pool_json(before) end, ojs_store.pool_json(wanted));
    if before.strategy is not null then
        perform ojs_store.record_event('scheduling.rebalanced', wanted.name, jsonb_build_object('pool', wanted.name,
            'previous_strategy', before.strategy, 'new_strategy', wanted.strategy));
    end if;
    -- Who waits for the queues that were in it looks at what is in it now.
    perform ojs_store.wake(q.name) from (select distinct q.name from ojs.queues q
        where q.name = any (before.queues || wanted.queues) and q.state <> 'paused') q;
    return ojs_store.pool_json(wanted);
end $$;
comment on function ojs.set_pool(text, jsonb)
    is 'Makes a pool or changes it: a set of queues, how claims of it are shared out, and how many of its jobs may be '
       'held at once';

create function ojs.drop_pool(name text) returns boolean
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    before ojs_store.pool;
begin
    perform ojs_store.lock_setting('ojs_store.pool', name);
    select * into before from ojs_store.pool p where p.name = drop_pool.name;
    if before.name is null then
        return false;
    end if;
    perform ojs_store.use_queue(q, 'administer') from unnest(before.queues) q;
    delete from ojs_store.pool p where p.name = drop_pool.name;
    perform ojs_store.record_act('pool_dropped', name, jsonb_build_object('pool', name),
        ojs_store.pool_json(before));
    return true;
end $$;
comment on function ojs.drop_pool(text)
    is 'Removes a pool, not its queues and their jobs; false if there was none of that name';

-- Since when the jobs that are held are; none on a standby.
create function ojs_store.held_since(out queue bigint, out started_at timestamptz) returns setof record
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if not pg_is_in_recovery() then
        return query select l.queue, l.claimed_at from ojs_store.lease l;
    end if;
end $$;

-- What was handed out in the last minute, of each of these queues, and is held. Where nothing is shared, by what rows
-- are kept.
create function ojs_store.last_minute(
    ids bigint[], out queue bigint, out starts bigint, out avg_wait_ms float8, out active bigint
) returns setof record
language plpgsql stable parallel unsafe rows 10 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    since timestamptz := ojs_store.now() - interval '1 minute';
begin
    if ojs_store.metrics_kept() and not pg_is_in_recovery() then
        return query
            select m.queue, m.starts, m.avg_wait_ms, r.active
            from ojs_store.shared_minute(ids) m join ojs_store.queue_rows(ids) r on r.queue = m.queue;
        return;
    end if;
    return query
        with running as materialized (
            select * from ojs_store.held_since()
        ), started as (
            select d.queue from ojs_store.finished d where d.finished_at > since and d.started_at > since
            union all
            select r.queue from running r where r.started_at > since
            union all
            select j.queue from ojs_store.job_history e join ojs_store.job j on j.id = e.job_id
            where e.kind in (HistoryKind.failed, HistoryKind.released, HistoryKind.lapsed) and e.started_at > since
        ), counted as (
            select s.queue, count(*) as n from started s group by 1
        ), waits as (
            select s.queue, (avg(s.waited_us) / 1000)::float8 as ms from ojs_store.first_starts(since, ids) s group by 1
        ), held as (
            select r.queue, count(*) as n from running r group by 1
        )
        select q.id, coalesce(c.n, 0), w.ms, coalesce(h.n, 0)
        from unnest(ids) q (id)
        left join counted c on c.queue = q.id
        left join waits w on w.queue = q.id
        left join held h on h.queue = q.id;
end $$;

create function ojs.scheduling_stats(
    out queue text, out dispatch_count_1m bigint, out dispatch_ratio_1m numeric, out avg_wait_ms numeric,
    out active_jobs bigint
) returns setof record
language plpgsql stable parallel unsafe security definer rows 10 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    names text[] := array(select q.name from ojs.queues q);
    ids bigint[] := array(select ojs_store.queue_id(n) from unnest(names) n);
begin
    return query
        select ojs_store.shown_queue(q.name), m.starts,
            case when m.starts is not null then round(coalesce(m.starts / nullif(sum(m.starts) over (), 0), 0), 4) end,
            round(m.avg_wait_ms::numeric, 3), m.active
        from unnest(names, ids) q (name, id) join ojs_store.last_minute(ids) m on m.queue = q.id
        order by q.name;
end $$;
comment on function ojs.scheduling_stats()
    is 'How the jobs that were handed out in the last minute were shared among the queues';
