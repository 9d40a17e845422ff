-- queue.sql: administration of queues, and looking at them. C++: src/queue_config.cpp, src/queue.cpp, src/error.cpp.
-- A queue is one row of ojs_store.queue, or for a while several of one name, of which the newest counts: so every
-- change is made to all rows of the name.

create function ojs_store.raise(code text, message text, details jsonb default null, hint text default null) returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_raise';

create function ojs_store.queue_config(name text, base jsonb, given jsonb) returns jsonb
language c stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_queue_config';

create function ojs_store.effective_config(config jsonb, is_policy boolean) returns jsonb
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_effective_config';

create function ojs_store.wake(queue text) returns void
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_wake';

-- The row that counts; no row for a queue that was dropped.
create function ojs_store.queue_named(name text) returns ojs_store.queue
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select newest
    from (
        select q from ojs_store.queue q where q.name = $1 order by q.revised_at desc, q.ctid desc limit 1
    ) as n(newest)
    where (newest).state <> 'deleted'
$$;

-- The same, or NOT_FOUND.
create function ojs_store.queue_found(name text) returns ojs_store.queue
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    found_queue ojs_store.queue;
begin
    if name is null then
        perform ojs_store.raise('INVALID_QUEUE', 'name must not be null', '{"field": "name"}', 'Name a queue.');
    end if;
    found_queue := ojs_store.queue_named(name);
    if found_queue.id is null or name = '_default' then
        perform ojs_store.raise('NOT_FOUND', format('queue "%s" does not exist', left(name, 64)),
            jsonb_build_object('queue', left(name, 128), 'reason', 'topic_not_found'),
            'Push to the queue, or create it with ojs.create_queue(name).');
    end if;
    return found_queue;
end $$;

-- Makes the queue what it is to be, whether or not there is one: config null leaves it as it is, state null too.
create function ojs_store.set_queue(name text, config jsonb, state text) returns ojs_store.queue
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    before ojs_store.queue := ojs_store.queue_named(name);
    after ojs_store.queue;
    wanted jsonb := ojs_store.queue_config(name, before.config, config);
    at timestamptz;
begin
    -- Never older than what is there, whatever clocks do.
    select greatest(clock_timestamp(), max(q.revised_at) + interval '1 microsecond') into at
    from ojs_store.queue q where q.name = set_queue.name;
    update ojs_store.queue q set
        config = wanted,
        state = coalesce(set_queue.state, before.state, 'active'),
        created_at = coalesce(before.created_at, ojs_store.now()),
        revised_at = at
    where q.name = set_queue.name;
    if not found then
        insert into ojs_store.queue (id, name, state, created_at, revised_at, config)
        values (hashtextextended(set_queue.name, 0), set_queue.name, coalesce(set_queue.state, 'active'), ojs_store.now(), at, wanted);
    end if;
    perform ojs_store.changed('ojs_store.queue');
    return ojs_store.queue_named(name);
end $$;

create function ojs_store.queue_json(queue ojs_store.queue) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object(
        'name', (queue).name,
        'type', coalesce((queue).config ->> 'type', 'queue'),
        'state', (queue).state,
        'paused', (queue).state = 'paused',
        'created_at', to_char((queue).created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        'config', ojs_store.effective_config((queue).config, (queue).name = '_default'))
$$;

create function ojs.create_queue(name text, config jsonb default '{}') returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    return ojs_store.queue_json(ojs_store.set_queue(name, coalesce(config, '{}'), null));
end $$;
comment on function ojs.create_queue(text, jsonb) is 'Creates a queue, or gives an existing one of the same type these settings';

create function ojs.configure_queue(name text, config jsonb) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    return ojs_store.queue_json(ojs_store.set_queue(name, coalesce(config, '{}'), null));
end $$;
comment on function ojs.configure_queue(text, jsonb) is 'Changes settings of a queue, or of the policy _default for all queues; null sets one back to its default';

-- The default policy is no queue: it has settings and no state.
create function ojs_store.set_state(name text, state text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if name = '_default' then
        perform ojs_store.raise('INVALID_QUEUE', 'queue _default is a policy, and hands out nothing', '{"field": "queue"}',
            'Name a queue.');
    end if;
    perform ojs_store.set_queue(name, null, state);
end $$;

create function ojs.pause_queue(name text) returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.set_state(name, 'paused');
    perform ojs_store.record_event('queue.paused', name, jsonb_build_object('queue', name, 'paused_by', session_user));
end $$;
comment on function ojs.pause_queue(text) is 'Hides a queue''s jobs from claims; pushes go on, and what is held may be finished';

create function ojs.resume_queue(name text) returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.set_state(name, 'active');
    perform ojs_store.record_event('queue.resumed', name, jsonb_build_object('queue', name, 'resumed_by', session_user));
    perform ojs_store.wake(name);
end $$;
comment on function ojs.resume_queue(text) is 'Ends a pause or a drain';

create function ojs.drain_queue(name text) returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.set_state(name, 'draining');
    perform ojs_store.wake(name);
end $$;
comment on function ojs.drain_queue(text) is 'Refuses pushes to a queue, and hands out what is there';

-- Takes the jobs of a queue that are in one of the states out of their places, leaving alone those that another
-- transaction is at; their ids.
create function ojs_store.take_jobs(queue_id bigint, states text[]) returns setof uuid
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if 'active' = any (states) then
        return query
            with taken as (
                delete from ojs_store.lease where ctid = any (array(
                    select l.ctid from ojs_store.lease l where l.queue = queue_id for update skip locked))
                returning lease
            )
            select (t.lease).job_id from taken t, lateral ojs_store.log_lease(t.lease, 8::smallint);
    end if;
    if 'available' = any (states) then
        return query
            delete from ojs_store.ready where ctid = any (array(
                select r.ctid from ojs_store.ready r where r.queue = queue_id for update skip locked))
            returning job_id;
    end if;
    -- Kinds: 1 scheduled, 2 retryable, 3 pending, 4 released; what has fallen due reads available.
    return query
        delete from ojs_store.later where ctid = any (array(
            select l.ctid from ojs_store.later l
            where l.queue = queue_id and l.kind <> 5
                and case when l.kind = 4 or l.due_at <= ojs_store.now() then 'available'
                    when l.kind = 1 then 'scheduled' when l.kind = 2 then 'retryable' else 'pending' end = any (states)
            for update skip locked))
        returning job_id;
    -- Numbers of done.state: 4 completed, 6 cancelled, 7 discarded.
    if states && '{completed,cancelled,discarded}' then
        return query
            delete from ojs_store.done where ctid = any (array(
                select d.ctid from ojs_store.done d
                where d.queue = queue_id
                    and case d.state when 4 then 'completed' when 6 then 'cancelled' else 'discarded' end = any (states)
                for update skip locked))
            returning job_id;
    end if;
end $$;

create function ojs.purge_queue(name text, states text[] default null, confirm boolean default false) returns bigint
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    queue ojs_store.queue := ojs_store.queue_found(name);
    wanted text[] := coalesce(states, '{available,scheduled,retryable,pending}');
    unknown text;
begin
    select s into unknown from unnest(wanted) s
    where s is null or s not in ('available', 'scheduled', 'retryable', 'pending', 'active', 'completed', 'cancelled', 'discarded')
    limit 1;
    if found then
        perform ojs_store.raise('INVALID_PAYLOAD', format('states holds "%s", which is no state', left(unknown, 64)),
            '{"field": "states"}', 'Name states such as available, scheduled, retryable, pending, completed.');
    end if;
    if confirm is not true then
        perform ojs_store.raise('INVALID_PAYLOAD', 'confirm must be true, since a purge cannot be undone', '{"field": "confirm"}',
            'Call ojs.purge_queue(name, states, confirm => true).');
    end if;
    if 'active' = any (wanted) then
        perform ojs_store.wake(name); -- places in limits become free
    end if;
    return ojs_store.remove_jobs(array(select ojs_store.take_jobs(queue.id, wanted)));
end $$;
comment on function ojs.purge_queue(text, text[], boolean) is 'Removes a queue''s jobs for good: those that wait, or those in the states given; how many';

create function ojs.drop_queue(name text, strategy text default 'reject', target text default null) returns bigint
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    queue ojs_store.queue := ojs_store.queue_found(name);
    other ojs_store.queue;
    live bigint;
    own_limits text := 'queue:' || name;
    at timestamptz := ojs_store.now();
    n bigint := 0;
begin
    case coalesce(strategy, 'reject')
    when 'reject' then
        select (select count(*) from ojs_store.ready r where r.queue = queue.id)
            + (select count(*) from ojs_store.lease l where l.queue = queue.id)
            + (select count(*) from ojs_store.later l where l.queue = queue.id and l.kind <> 5) into live;
        if live > 0 then
            perform ojs_store.raise('INVALID_STATE_TRANSITION', format('queue "%s" still has %s jobs that are not finished', name, live),
                jsonb_build_object('queue', name, 'live', live, 'attempted', 'drop'),
                'Drop it with the strategy discard or move, or finish them first.');
        end if;
    when 'discard' then
        perform ojs_store.log_lease(l, 9::smallint) from ojs_store.lease l where l.queue = queue.id;
        -- The counts stay with each job; 7 is discarded.
        with taken as (
            delete from ojs_store.lease l where l.queue = queue.id returning job_id, attempt, deliveries, claimed_at as started_at
        ), waiting as (
            delete from ojs_store.ready r where r.queue = queue.id returning job_id, attempt, deliveries, null::timestamptz
        ), later as (
            delete from ojs_store.later l where l.queue = queue.id returning job_id, attempt, deliveries, null::timestamptz, kind
        ), ended as (
            select * from taken union all select * from waiting
            union all select job_id, attempt, deliveries, null from later where kind <> 5
        ), done as (
            insert into ojs_store.done (job_id, finished_at, queue, attempt, deliveries, started_at, state, flags, error)
            select job_id, at, queue.id, attempt, deliveries, started_at, 7, 0, jsonb_build_object(
                'code', 'queue_deleted', 'type', 'queue_deleted', 'message', 'the queue was dropped', 'attempt', attempt,
                'occurred_at', to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))
            from ended
            returning 1
        )
        select count(*) into n from done;
        perform ojs_store.count_discarded(queue.id, j.type, count(*))
        from ojs_store.done d join ojs_store.job j on j.id = d.job_id
        where n > 0 and d.queue = queue.id and d.finished_at = at and d.state = 7
        group by j.type;
    when 'move' then
        if target is null or target = name then
            perform ojs_store.raise('INVALID_QUEUE', 'target must be another queue', '{"field": "target"}', 'Name the queue that takes the jobs.');
        end if;
        other := ojs_store.queue_found(target);
        if other.config ->> 'type' = 'log' then
            perform ojs_store.raise('TOPIC_NOT_A_QUEUE', format('target "%s" is a log', target), jsonb_build_object('queue', target),
                'Name a queue of type queue.');
        end if;
        n := ojs_store.move_jobs(queue.id, other.id);
        -- Places that held jobs take in the queue's own limits; rows of limit_use are never updated.
        insert into ojs_store.limit_use (key, kind, at, number, until, job_id, token, name)
        select hashtextextended('queue:' || target, 0), u.kind, u.at, u.number, u.until, u.job_id, u.token, 'queue:' || target
        from ojs_store.limit_use u where u.key = hashtextextended(own_limits, 0) and u.kind = 0;
        perform ojs_store.wake(target);
    else
        perform ojs_store.raise('INVALID_PAYLOAD', format('strategy must be reject, discard or move, not "%s"', left(strategy, 64)),
            '{"field": "strategy"}', 'Say what becomes of the jobs that are not finished.');
    end case;
    perform ojs_store.wake(name); -- who waits for it is told
    update ojs_store.queue q set state = 'deleted', config = '{}',
        revised_at = greatest(clock_timestamp(), q.revised_at + interval '1 microsecond')
    where q.name = name;
    -- What is kept by the queue's name. What another transaction is at has a time of its own to go.
    delete from ojs_store.queue_count c where c.queue = queue.id;
    delete from ojs_store.deduplication where ctid = any (array(
        select d.ctid from ojs_store.deduplication d where d.queue = queue.id for update skip locked));
    delete from ojs_store.rate_limit where ctid = any (array(
        select r.ctid from ojs_store.rate_limit r where r.key = own_limits for update skip locked));
    delete from ojs_store.limit_use where ctid = any (array(
        select u.ctid from ojs_store.limit_use u where u.key = hashtextextended(own_limits, 0) for update skip locked));
    perform ojs_store.changed('ojs_store.rate_limit');
    perform ojs_store.changed('ojs_store.queue');
    return n;
end $$;
comment on function ojs.drop_queue(text, text, text) is 'Drops a queue; its unfinished jobs are a reason to refuse (reject), are discarded, or move to another queue; how many';

-- All unfinished jobs, held ones too, which their workers go on with. Those that wait line up at the end, in their order.
-- A hot row other than a lease is never updated, so these are taken and put in again.
create function ojs_store.move_jobs(source bigint, destination bigint) returns bigint
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    ids uuid[];
    n bigint;
begin
    with held as (
        update ojs_store.lease set queue = destination where queue = source returning job_id
    ), taken as (
        delete from ojs_store.ready where queue = source returning *
    ), waiting as (
        -- Places of jobs that were delivered before are negative, and grow by the same sequence (src/moves.cpp).
        insert into ojs_store.ready (job_id, queue, place, job_tid, npriority, flags, attempt, deliveries)
        select job_id, destination,
            case when place < 0 then -4611686018427387904 else 0 end + nextval('ojs_store.seq'),
            job_tid, npriority, flags, attempt, deliveries
        from (select * from taken order by place) in_order
        returning job_id
    ), let_go as (
        delete from ojs_store.later where queue = source returning *
    ), later as (
        insert into ojs_store.later (job_id, queue, due_at, job_tid, npriority, kind, flags, attempt, deliveries)
        select job_id, destination, due_at, job_tid, npriority, kind, flags, attempt, deliveries from let_go
        returning job_id, kind
    )
    select array_agg(job_id) into ids
    from (select job_id from held union all select job_id from waiting union all select job_id from later where kind <> 5) moved;
    update ojs_store.job set queue = destination where id = any (ids);
    get diagnostics n = row_count;
    return n;
end $$;

-- LOOKING ----------------------------------------------------------------------------------------------------------

-- Where a queue's jobs are: what is committed, and the caller's own changes. From the counters in shared memory, or where
-- there are none by counting the rows. C++: src/queue_stats.cpp.
create function ojs_store.queue_rows(
    ids bigint[],
    out queue bigint, out ready bigint, out in_flight bigint, out delayed bigint, out available bigint, out active bigint,
    out scheduled bigint, out retryable bigint, out pending bigint, out completed bigint, out cancelled bigint,
    out discarded bigint
) returns setof record
language c strict volatile parallel unsafe rows 10 as 'MODULE_PATHNAME', 'ojs_queue_rows';

create function ojs_store.ready_and_held(id bigint, out ready bigint, out in_flight bigint) returns record
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_ready_and_held';

-- Rows that change by SQL are counted by triggers; direct table access fires none. A row of ready or later is never
-- updated. Rows that come into done by SQL are a restore, and may be many: hot_set_lost() has them counted anew.
create function ojs_store.count_rows() returns trigger
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_count_rows';

create trigger rows_in after insert on ojs_store.ready
    referencing new table as came for each statement execute function ojs_store.count_rows();
create trigger rows_out after delete on ojs_store.ready
    referencing old table as went for each statement execute function ojs_store.count_rows();
create trigger rows_in after insert on ojs_store.later
    referencing new table as came for each statement execute function ojs_store.count_rows();
create trigger rows_out after delete on ojs_store.later
    referencing old table as went for each statement execute function ojs_store.count_rows();
create trigger rows_in after insert on ojs_store.lease
    referencing new table as came for each statement execute function ojs_store.count_rows();
create trigger rows_out after delete on ojs_store.lease
    referencing old table as went for each statement execute function ojs_store.count_rows();
create trigger rows_moved after update on ojs_store.lease
    referencing old table as went new table as came for each statement execute function ojs_store.count_rows();
create trigger rows_out after delete on ojs_store.done
    referencing old table as went for each statement execute function ojs_store.count_rows();
create trigger emptied after truncate on ojs_store.ready for each statement execute function ojs_store.count_rows();
create trigger emptied after truncate on ojs_store.later for each statement execute function ojs_store.count_rows();
create trigger emptied after truncate on ojs_store.lease for each statement execute function ojs_store.count_rows();
create trigger emptied after truncate on ojs_store.done for each statement execute function ojs_store.count_rows();

-- Counts by queue. On a standby the logged tables alone answer, by what the caller's statement sees.
create function ojs_store.queue_counts(
    ids bigint[],
    out queue bigint, out ready bigint, out in_flight bigint, out delayed bigint, out available bigint, out active bigint,
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
            select q.id, count(*) filter (where j.state = 'available'), count(*) filter (where false), count(*) filter (where false),
                count(*) filter (where j.state = 'available'), count(*) filter (where j.state = 'active'),
                count(*) filter (where j.state = 'scheduled'), count(*) filter (where j.state = 'retryable'),
                count(*) filter (where j.state = 'pending'), count(*) filter (where j.state = 'completed'),
                count(*) filter (where j.state = 'cancelled'), count(*) filter (where j.state = 'discarded'),
                coalesce((select sum(c.dead_lettered)::bigint from ojs_store.queue_count c where c.queue = q.id), 0)
            from (select distinct id, name from ojs_store.queue where id = any (ids)) q left join ojs.jobs j on j.queue = q.name
            group by q.id;
        return;
    end if;
    return query
        select c.*, coalesce((select sum(d.dead_lettered)::bigint from ojs_store.queue_count d where d.queue = c.queue), 0)
        from ojs_store.queue_rows(ids) c;
end $$;

create function ojs.queue_stats(
    name text default null,
    out queue text, out paused boolean, out ready bigint, out in_flight bigint, out delayed bigint, out available bigint,
    out active bigint, out scheduled bigint, out retryable bigint, out pending bigint, out completed bigint,
    out cancelled bigint, out discarded bigint, out dead_lettered bigint, out completed_last_hour bigint,
    out failed_last_hour bigint, out avg_duration_ms numeric, out avg_wait_ms numeric, out throughput_per_second numeric,
    out computed_at timestamptz
) returns setof record
language plpgsql stable parallel unsafe security definer rows 10 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    ids bigint[];
begin
    if queue_stats.name is not null then
        ids := array[(ojs_store.queue_found(queue_stats.name)).id];
    else
        ids := array(select hashtextextended(q.name, 0) from ojs.queues q);
    end if;
    return query
        select q.name, q.state = 'paused', c.ready, c.in_flight, c.delayed, c.available, c.active, c.scheduled, c.retryable,
            c.pending, c.completed, c.cancelled, c.discarded, c.dead_lettered, h.completed, h.failed,
            round(h.avg_duration_ms::numeric, 3), round(h.avg_wait_ms::numeric, 3), round(h.completed / 3600.0, 4), ojs_store.now()
        from ojs_store.queue_counts(ids) c
        join ojs_store.last_hour(ids) h on h.queue = c.queue
        join ojs.queues q on hashtextextended(q.name, 0) = c.queue
        order by q.name;
end $$;
comment on function ojs.queue_stats(text) is 'Jobs of a queue, or of each queue, by state; and its last hour';

-- How far a queue is from its bound; nothing for one that has none.
create function ojs_store.pressure_of(config jsonb, depth bigint) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select coalesce((
        select jsonb_build_object('bound', bound, 'pressure', trim_scale(trunc(depth / bound::numeric, 4)))
        from (select (ojs_store.effective_config(config, false) ->> 'max_size')::bigint) as b(bound)
        where bound > 0), '{}')
$$;

create function ojs.queue_info(name text) returns jsonb
language plpgsql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    started timestamptz := clock_timestamp();
    queue ojs_store.queue := ojs_store.queue_found(name);
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
            || ojs_store.pressure_of(queue.config, live - (stats ->> 'active')::bigint) || hour,
        'performance', jsonb_build_object('server_total_ms', ojs_store.ms_since(started)));
end $$;
comment on function ojs.queue_info(text) is 'A queue: its settings with all defaults, its state, and its jobs counted';

create function ojs_store.ms_since(started timestamptz) returns numeric
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select round((extract(epoch from clock_timestamp() - started) * 1000)::numeric, 3)
$$;

-- "in 3 minutes" and the like, for a sentence.
create function ojs_store.distance(at timestamptz) returns text
language sql stable parallel safe set search_path = pg_catalog, pg_temp as $$
    select case when at > ojs_store.now() then 'in ' || date_trunc('milliseconds', at - ojs_store.now())
        else date_trunc('milliseconds', ojs_store.now() - at) || ' ago' end
$$;

create function ojs.explain_job(job_id uuid) returns text
language plpgsql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    job ojs.job;
    queue ojs_store.queue;
    config jsonb;
    deadline timestamptz;
    due timestamptz;
    ahead bigint;
    at timestamptz := ojs_store.now();
    limit_says text;
    this text := format('Job %s', job_id);
begin
    job := ojs_store.look(job_id);
    if job.id is null then
        perform ojs_store.raise('NOT_FOUND', format('job %s does not exist', coalesce(job_id::text, 'null')), jsonb_build_object('job_id', job_id),
            'Check the id; finished jobs are removed after their retention.');
    end if;
    case job.state
    when 'completed' then
        return format('%s is completed: its worker finished it %s, at attempt %s.', this, ojs_store.distance(job.completed_at), job.attempt);
    when 'cancelled' then
        return format('%s was cancelled %s.', this, ojs_store.distance(job.cancelled_at));
    when 'discarded' then
        return format('%s was discarded %s after %s deliveries, because of the error %s%s; ojs.retry brings it back.', this,
            ojs_store.distance(job.discarded_at), job.deliveries, job.error ->> 'type',
            ', and a copy went to the queue "' || (job.error ->> 'dead_lettered_to') || '"');
    when 'active' then
        select l.lease_expires_at into deadline from ojs_store.leases() l where l.job_id = job_id;
        if deadline <= at then
            return format('%s was held by the worker "%s", whose lease ran out %s; the next claim or tick takes it back.', this,
                job.worker, ojs_store.distance(deadline));
        end if;
        return format('%s is running: the worker "%s" holds it, delivery %s, attempt %s of %s, and its lease runs out %s.', this,
            job.worker, job.deliveries, job.attempt, job.max_attempts, ojs_store.distance(deadline));
    when 'scheduled' then
        return format('%s is not due: it is scheduled for %s, %s.', this, job.scheduled_at, ojs_store.distance(job.scheduled_at));
    when 'retryable' then
        return format('%s failed at attempt %s of %s (%s) and is tried again %s, at %s.', this, job.attempt, job.max_attempts,
            job.error ->> 'type', ojs_store.distance(job.next_attempt_at), job.next_attempt_at);
    when 'pending' then
        return format('%s is pending: it waits for ojs.activate(job_id).', this);
    else
        null;
    end case;

    -- Available: what keeps it from being claimed?
    queue := ojs_store.queue_named(job.queue);
    config := ojs_store.effective_config(coalesce(queue.config, '{}'), false);
    if job.expires_at <= at then
        return format('%s expired %s: the next claim or tick discards it.', this, ojs_store.distance(job.expires_at));
    end if;
    if queue.state = 'paused' then
        return format('%s waits because its queue "%s" is paused; ojs.resume_queue ends that.', this, job.queue);
    end if;
    if config ->> 'type' = 'log' then
        return format('%s is an entry of the log "%s", which hands out nothing.', this, job.queue);
    end if;
    limit_says := ojs_store.explain_limit(job);
    if limit_says is not null then
        return format('%s waits: %s.', this, limit_says);
    end if;
    if pg_is_in_recovery() then
        return format('%s is available, as far as this standby knows, which does not see leases.', this);
    end if;
    select l.due_at into due from ojs_store.later l where l.job_id = job_id and l.kind <> 5;
    if due > at then
        return format('%s was given back with a delay and may be claimed again %s.', this, ojs_store.distance(due));
    end if;
    if (config ->> 'max_deliveries')::bigint between 1 and job.deliveries and config ->> 'dead_letter' is not null then
        return format('%s was delivered %s times, as often as its queue "%s" allows: the next claim moves it to the queue "%s".', this,
            job.deliveries, job.queue, config ->> 'dead_letter');
    end if;
    select count(*) into ahead from (
        select from ojs_store.ready r, ojs_store.ready mine
        where mine.job_id = job_id and r.queue = mine.queue and (r.npriority, r.place) < (mine.npriority, mine.place)
        limit 10000
    ) earlier;
    return format('%s may be claimed now: its queue "%s" is %s, and %s jobs are served before it.', this, job.queue, queue.state,
        case when ahead = 10000 then 'at least 10000' else ahead::text end);
end $$;
comment on function ojs.explain_job(uuid) is 'Why a job is not running, or that it is, in one sentence';
