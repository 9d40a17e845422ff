-- queue.sql: administration of queues. C++: src/admin/queue_config.cpp, src/queue/queue.cpp, src/pg/error.cpp.
-- A queue is one row of ojs_store.queue, or for a while several of one name, of which the newest counts: so every
-- change is made to all rows of the name.

create function ojs_store.raise(code text, message text, details jsonb default null, hint text default null)
    returns void
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
        select q from ojs_store.queue q where q.name = ojs_store.stored_queue($1)
        order by q.revised_at desc, q.ctid desc limit 1
    ) as n(newest)
    where (newest).state <> 'deleted'
$$;

-- What holds for a queue: for a tenant's part its own settings above those of the queue (src/queue/queue.cpp).
create function ojs_store.in_force(queue ojs_store.queue) returns ojs_store.queue
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    base ojs_store.queue;
begin
    if strpos(queue.name, '@') > 0 then
        select * into base from ojs_store.queue q where q.name = split_part(queue.name, '@', 1)
        order by q.revised_at desc, q.ctid desc limit 1;
    end if;
    if base.id is not null then
        queue.config := ojs_store.merged_config(base.config, queue.config);
        if queue.state = 'active' and base.state <> 'deleted' then
            queue.state := base.state;
        end if;
    end if;
    return queue;
end $$;

-- INVALID_QUEUE for what cannot be a queue's name.
create function ojs_store.check_queue_name(name text) returns void
language c strict immutable parallel safe as 'MODULE_PATHNAME', 'ojs_check_queue_name';

-- Like queue_named(), but raises NOT_FOUND if there is none.
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
        if name ~ '^[{[]' then -- a list, written as text; any other name is just that of no queue, as HTTP has it
            perform ojs_store.check_queue_name(name);
        end if;
        perform ojs_store.raise('NOT_FOUND', format('queue "%s" does not exist', left(name, 64)),
            jsonb_build_object('resource_type', 'queue', 'resource_id', left(name, 128), 'queue', left(name, 128),
                'reason', 'topic_not_found'),
            'Push to the queue, or create it with ojs.create_queue(name).');
    end if;
    return found_queue;
end $$;

-- Calls that configure the same thing take turns, until the end of the transaction: each reads what the one before has
-- written. Pushes, claims and acks do not ask for this lock.
create function ojs_store.lock_setting(contents_of regclass, name text) returns void
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_lock_setting';

-- Gives the queue this configuration and state, and creates it if there is none. Null keeps what it has.
create function ojs_store.set_queue(name text, config jsonb, state text) returns ojs_store.queue
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    allowed text := ojs_store.use_queue(name, 'administer');
    before ojs_store.queue;
    wanted jsonb;
    at timestamptz;
begin
    perform ojs_store.lock_setting('ojs_store.queue', name);
    allowed := ojs_store.use_queue(name, 'administer'); -- whoever had the lock may have taken the caller off the list
    before := ojs_store.queue_named(name);
    if before.id is null and config is null then
        raise notice 'there was no queue "%": it is made, and is %', name, state
            using hint = 'If its name is misspelt, the queue that was meant is as it was; '
                'ojs.drop_queue removes this one.';
    end if;
    wanted := ojs_store.queue_config(name, before.config, config);
    -- Applications call this at each start: nothing to write, and no session has to look at its queues anew.
    if wanted = before.config and coalesce(state, before.state) = before.state then
        return before;
    end if;
    -- Always newer than what is there, and than what a push makes of a dropped queue (src/queue/queue.cpp), whatever
    -- clocks do.
    select greatest(clock_timestamp(), max(q.revised_at) + interval '2 microseconds') into at
    from ojs_store.queue q where q.name = set_queue.name;
    update ojs_store.queue q set
        config = wanted,
        state = coalesce(set_queue.state, before.state, 'active'),
        created_at = coalesce(before.created_at, ojs_store.now()),
        revised_at = at
    where q.name = set_queue.name;
    if not found then
        insert into ojs_store.queue (id, name, state, created_at, revised_at, config)
        values (ojs_store.new_queue_id(set_queue.name), set_queue.name, coalesce(set_queue.state, 'active'),
            ojs_store.now(), at, wanted);
    end if;
    perform ojs_store.changed('ojs_store.queue');
    if config is not null then
        perform ojs_store.record_act('queue_configured', name, jsonb_build_object('queue', name, 'config', config),
            before.config, wanted);
    end if;
    return ojs_store.queue_named(name);
end $$;

create function ojs_store.queue_json(queue ojs_store.queue) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object(
        'name', ojs_store.shown_queue(q.name),
        'type', coalesce(q.config ->> 'type', 'queue'),
        'state', q.state,
        'paused', q.state = 'paused',
        'created_at', to_char(q.created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        'config', ojs_store.effective_config(q.config, q.name = '_default'))
    from ojs_store.in_force(queue) q
$$;

create function ojs.create_queue(name text, config jsonb default '{}') returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    return ojs_store.queue_json(ojs_store.set_queue(name, coalesce(config, '{}'), null));
end $$;
comment on function ojs.create_queue(text, jsonb)
    is 'Creates a queue, or gives an existing one of the same type these settings';

create function ojs.configure_queue(name text, config jsonb) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    return ojs_store.queue_json(ojs_store.set_queue(name, coalesce(config, '{}'), null));
end $$;
comment on function ojs.configure_queue(text, jsonb)
    is 'Changes settings of a queue, or of the policy _default for all queues; null sets one back to its default';

-- The default policy is no queue: it has settings and no state. A queue that is not there is made (R-31), and whoever
-- misspelt its name is told.
create function ojs_store.set_state(name text, state text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if name = '_default' then
        perform ojs_store.raise('INVALID_QUEUE', 'queue _default is a policy, and hands out nothing',
            '{"field": "queue"}', 'Name a queue.');
    end if;
    perform ojs_store.set_queue(name, null, state);
end $$;

create function ojs.pause_queue(name text) returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.set_state(name, 'paused');
    perform ojs_store.record_audit('queue_paused', name, null, null, jsonb_build_object('queue', name));
    perform ojs_store.record_event('queue.paused', name, jsonb_build_object('queue', name, 'paused_by', session_user));
end $$;
comment on function ojs.pause_queue(text)
    is 'Hides a queue''s jobs from claims; pushes go on, and what is held may be finished';

create function ojs.resume_queue(name text) returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.set_state(name, 'active');
    perform ojs_store.record_audit('queue_resumed', name, null, null, jsonb_build_object('queue', name));
    perform ojs_store.record_event('queue.resumed', name,
        jsonb_build_object('queue', name, 'resumed_by', session_user));
    perform ojs_store.wake_parts(name);
end $$;
comment on function ojs.resume_queue(text) is 'Ends a pause or a drain';

create function ojs.drain_queue(name text) returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.set_state(name, 'draining');
    perform ojs_store.record_act('queue_drained', name, jsonb_build_object('queue', name));
    perform ojs_store.wake_parts(name);
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
            select (t.lease).job_id
            from taken t,
                ojs_store.free_slots((t.lease).job_id, (t.lease).token, (t.lease).queue, (t.lease).flags),
                ojs_store.log_lease(t.lease, LeaseStep.purged::smallint);
    end if;
    if 'available' = any (states) then
        return query
            delete from ojs_store.ready where ctid = any (array(
                select r.ctid from ojs_store.ready r where r.queue = queue_id for update skip locked))
            returning job_id;
    end if;
    -- What has fallen due reads available.
    return query
        delete from ojs_store.delayed where ctid = any (array(
            select l.ctid from ojs_store.delayed l
            where l.queue = queue_id and l.kind <> DelayedKind.expiry
                and case
                    when l.kind in (DelayedKind.released, DelayedKind.blocked) or l.due_at <= ojs_store.promoted_to()
                        then 'available'
                    when l.kind = DelayedKind.scheduled then 'scheduled' when l.kind = DelayedKind.retryable
                        then 'retryable' else 'pending' end = any (states)
            for update skip locked))
        returning job_id;
    if states && '{completed,cancelled,discarded}' then
        return query
            delete from ojs_store.finished where ctid = any (array(
                select d.ctid from ojs_store.finished d
                where d.queue = queue_id
                    and case d.state when State.completed then 'completed' when State.cancelled then 'cancelled'
                        else 'discarded' end = any (states)
                for update skip locked))
            returning job_id;
    end if;
end $$;

create function ojs.purge_queue(name text, states text[] default null, confirm boolean default false) returns bigint
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    queue ojs_store.queue := ojs_store.queue_found(ojs_store.use_queue(name, 'administer'));
    wanted text[] := coalesce(states, '{available,scheduled,retryable,pending}');
    unknown text;
    n bigint;
begin
    select s into unknown from unnest(wanted) s
    where s is null or s not in ('available', 'scheduled', 'retryable', 'pending', 'active', 'completed', 'cancelled',
        'discarded')
    limit 1;
    if found then
        perform ojs_store.raise('INVALID_PAYLOAD', format('states holds "%s", which is no state', left(unknown, 64)),
            '{"field": "states"}', 'Name states such as available, scheduled, retryable, pending, completed.');
    end if;
    if confirm is not true then
        perform ojs_store.raise('INVALID_PAYLOAD', 'confirm must be true, since a purge cannot be undone',
            '{"field": "confirm"}',
            'Call ojs.purge_queue(name, states, confirm => true).');
    end if;
    if 'active' = any (wanted) then
        perform ojs_store.wake(name); -- places in limits become free
    end if;
    n := ojs_store.remove_jobs(array(select ojs_store.take_jobs(queue.id, wanted)));
    perform ojs_store.record_act('queue_purged', name, jsonb_build_object('queue', name, 'states', wanted, 'count', n));
    return n;
end $$;
comment on function ojs.purge_queue(text, text[], boolean)
    is 'Removes a queue''s jobs for good: those that wait, or those in the states given; how many';

-- Jobs of a queue that are not finished. Not by an index: entries of rows that were just deleted may be gone from it
-- while an older snapshot still sees those rows, and a job that is being claimed would be in neither table.
create function ojs_store.unfinished(queue_id bigint) returns bigint
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp
set enable_indexscan = off set enable_indexonlyscan = off set enable_bitmapscan = off as $$
    select (select count(*) from ojs_store.ready r where r.queue = queue_id)
        + (select count(*) from ojs_store.lease l where l.queue = queue_id)
        + (select count(*) from ojs_store.delayed l where l.queue = queue_id and l.kind <> DelayedKind.expiry)
$$;

-- Ends a job as discarded, of which the caller has taken the row that said where it was. started_at and worker: of a
-- lease.
create function ojs_store.discard_dropped(
    job_id uuid, queue bigint, attempt int, deliveries int, flags int, started_at timestamptz default null,
        worker text default null
) returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_discard_dropped';

-- A lease that was moved to this queue takes its slots in the concurrency limits there, and no longer those of before.
create function ojs_store.count_moved(job_id uuid, token bigint, job_tid tid, queue bigint) returns void
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_count_moved';

-- These three take the jobs of a queue that no other transaction has locked, and return their number. Leases come last:
-- while they are locked, beats wait.
create function ojs_store.discard_jobs(queue_id bigint) returns bigint
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    waiting bigint;
    later bigint;
    held bigint;
begin
    with taken as (
        delete from ojs_store.ready where ctid = any (array(
            select r.ctid from ojs_store.ready r where r.queue = queue_id for update skip locked))
        returning *
    )
    select count(ojs_store.discard_dropped(t.job_id, t.queue, t.attempt, t.deliveries, t.flags)) into waiting
        from taken t;
    with taken as (
        delete from ojs_store.delayed where ctid = any (array(
            select l.ctid from ojs_store.delayed l where l.queue = queue_id and l.kind <> DelayedKind.expiry
                for update skip locked))
        returning *
    )
    select count(ojs_store.discard_dropped(t.job_id, t.queue, t.attempt, t.deliveries, t.flags)) into later
        from taken t;
    with taken as (
        delete from ojs_store.lease where ctid = any (array(
            select l.ctid from ojs_store.lease l where l.queue = queue_id for update skip locked))
        returning lease
    )
    select count(ojs_store.discard_dropped((t.lease).job_id, (t.lease).queue, (t.lease).attempt, (t.lease).deliveries,
        (t.lease).flags,
            (t.lease).claimed_at, (t.lease).worker)) into held
    from taken t, ojs_store.free_slots((t.lease).job_id, (t.lease).token, (t.lease).queue, (t.lease).flags),
        ojs_store.log_lease(t.lease, LeaseStep.discarded::smallint);
    return waiting + later + held;
end $$;

-- Jobs with an ordering key stand in the lines of their new queue, before any of them can go on there. None of them
-- counts.
create function ojs_store.move_lines(source bigint, destination bigint) returns bigint
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.move_in_line(l.job_id, destination)
    from (select o.job_id from ojs_store.ordering_line o where o.queue = source order by o.key, o.position) l;
    return 0;
end $$;

-- Where a job stands; also one that a rate limit holds back, in its line (include/ojs/limits/held_position.h).
create function ojs_store.own_position(at bigint) returns bigint
language sql immutable parallel safe
begin atomic
    select case when at < constant.first_held then at
        when at & constant.fresh_bit <> 0 then at & constant.number_bits
        else (at & constant.number_bits) - constant.first_held end;
end;

-- Those that wait line up at the end, in their order. A hot row other than a lease is never updated, so these are taken
-- and put in again.
create function ojs_store.move_waiting(source bigint, destination bigint) returns bigint
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    ids uuid[];
begin
    with taken as (
        delete from ojs_store.ready where ctid = any (array(
            select r.ctid from ojs_store.ready r where r.queue = source for update skip locked))
        returning *
    ), waiting as (
        -- Positions of jobs that were delivered before are negative, and grow by the same sequence
        -- (src/state/transitions.cpp).
        insert into ojs_store.ready (job_id, queue, position, job_tid, npriority, flags, attempt, deliveries)
        select job_id, destination,
            case when own_position < 0 then -constant.first_held else 0 end + nextval('ojs_store.seq'),
            job_tid, npriority, flags | job_flag.ready_moved, attempt, deliveries
        from (select *, ojs_store.own_position(position) as own_position from taken order by own_position) in_order
        returning job_id
    ), let_go as (
        delete from ojs_store.delayed where ctid = any (array(
            select l.ctid from ojs_store.delayed l where l.queue = source for update skip locked))
        returning *
    ), later as (
        insert into ojs_store.delayed (job_id, queue, due_at, job_tid, npriority, kind, flags, attempt, deliveries)
        select job_id, destination, due_at, job_tid, npriority, kind, flags, attempt, deliveries from let_go
        returning job_id, kind
    )
    select array_agg(job_id) into ids
    from (select job_id from waiting union all select job_id from later where kind <> DelayedKind.expiry) moved;
    update ojs_store.job set queue = destination where id = any (ids);
    return coalesce(cardinality(ids), 0);
end $$;

-- Held jobs, which their workers go on with.
create function ojs_store.move_held(source bigint, destination bigint) returns bigint
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    held ojs_store.lease[];
begin
    with moved as (
        update ojs_store.lease set queue = destination, flags = flags | job_flag.job_counted where ctid = any (array(
            select l.ctid from ojs_store.lease l where l.queue = source for update skip locked))
        returning lease
    )
    select array_agg(m.lease) into held from moved m;
    update ojs_store.job set queue = destination where id in (select h.job_id from unnest(held) h);
    -- What they take of limits is counted anew, for the queue's own limits and those of jobs that name no key.
    perform ojs_store.count_moved(h.job_id, h.token, h.job_tid, destination) from unnest(held) h;
    return coalesce(cardinality(held), 0);
end $$;

create function ojs.drop_queue(name text, strategy text default 'reject', target text default null) returns bigint
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    queue ojs_store.queue;
    other ojs_store.queue;
    own_limits text := 'queue:' || name;
    give_up_s double precision := ojs_store.steady_s() + 1;
    live bigint;
    n bigint := 0;
begin
    if coalesce(strategy, 'reject') not in ('reject', 'discard', 'move') then
        perform ojs_store.raise('INVALID_PAYLOAD', format('strategy must be reject, discard or move, not "%s"',
            left(strategy, 64)),
            '{"field": "strategy"}', 'Say what becomes of the jobs that are not finished.');
    elsif strategy = 'move' and (target is null or target = name) then
        perform ojs_store.raise('INVALID_QUEUE', 'target must be another queue', '{"field": "target"}',
            'Name the queue that takes the jobs.');
    end if;
    perform ojs_store.use_queue(name, 'administer'), ojs_store.use_queue(target, 'produce');
    -- In one order: two calls do not wait for each other crosswise.
    perform ojs_store.lock_setting('ojs_store.queue', least(name, target));
    perform ojs_store.lock_setting('ojs_store.queue', greatest(name, target));
    perform ojs_store.use_queue(name, 'administer');
    queue := ojs_store.queue_found(name);
    if strategy = 'move' then
        other := ojs_store.queue_found(target);
        if other.config ->> 'type' = 'log' then
            perform ojs_store.raise('TOPIC_NOT_A_QUEUE', format('target "%s" is a log', target),
                jsonb_build_object('queue', target), 'Name a queue of type queue.');
        end if;
    end if;

    loop
        n := n + case strategy
            when 'discard' then ojs_store.discard_jobs(queue.id)
            when 'move'
                then ojs_store.move_lines(queue.id, other.id) + ojs_store.move_waiting(queue.id,
                other.id) + ojs_store.move_held(queue.id, other.id)
            else 0 end;
        live := ojs_store.unfinished(queue.id);
        exit when live = 0;
        if strategy is distinct from 'discard' and strategy is distinct from 'move' then
            perform ojs_store.raise('INVALID_STATE_TRANSITION',
                format('queue "%s" still has %s jobs that are not finished', name, live),
                jsonb_build_object('queue', name, 'live', live, 'attempted', 'drop'),
                'Drop it with the strategy discard or move, or finish them first.');
        elsif ojs_store.steady_s() >= give_up_s then
            -- A claim or a push whose transaction stays open could be waited for without end, with all the other jobs
            -- locked.
            perform ojs_store.raise('UNAVAILABLE', format('other transactions have locked %s jobs of queue "%s"',
                live, name),
                jsonb_build_object('queue', name, 'live', live, 'attempted', 'drop'),
                'Pause the queue, and drop it again when those transactions have ended.');
        end if;
        perform ojs_store.rest(0.01);
    end loop;

    perform ojs_store.wake(name); -- who waits for it is told, by the commit, which lowers the flags of listeners
    perform ojs_store.wake(target) where strategy = 'move';
    -- It keeps its settings: a push that comes too late brings it back as it was (src/queue/tidy.cpp).
    update ojs_store.queue q set state = 'deleted', revised_at = greatest(clock_timestamp(),
        q.revised_at + interval '1 microsecond')
    where q.name = name;
    -- What is kept by the queue's name. What another transaction has locked goes when its time is over; only the
    -- counts, which a tick may be adding up, are brought to 0.
    with gone as (
        delete from ojs_store.queue_count where ctid = any (array(
            select c.ctid from ojs_store.queue_count c where c.queue = queue.id for update skip locked))
        returning dead_lettered
    ), kept as (
        select sum(c.dead_lettered) - coalesce((select sum(g.dead_lettered) from gone g), 0) as n
        from ojs_store.queue_count c where c.queue = queue.id
    )
    insert into ojs_store.queue_count (queue, dead_lettered) select queue.id, -k.n from kept k where k.n <> 0;
    delete from ojs_store.deduplication where ctid = any (array(
        select d.ctid from ojs_store.deduplication d where d.queue = queue.id for update skip locked));
    delete from ojs_store.rate_limit where ctid = any (array(
        select r.ctid from ojs_store.rate_limit r where r.key = own_limits for update skip locked));
    delete from ojs_store.limit_use where ctid = any (array(
        select u.ctid from ojs_store.limit_use u where u.key = ojs_store.name_hash(own_limits)
            and u.kind in (LimitUse.start, LimitUse.event) for update skip locked));
    perform ojs_store.merge_slots(own_limits);
    delete from ojs_store.priority_aging where ctid = any (array(
        select a.ctid from ojs_store.priority_aging a where a.queue = queue.id for update skip locked));
    perform ojs_store.changed('ojs_store.rate_limit');
    perform ojs_store.changed('ojs_store.queue');
    perform ojs_store.record_act('queue_dropped', name, jsonb_strip_nulls(jsonb_build_object('queue', name,
        'strategy', coalesce(strategy, 'reject'), 'target', target, 'count', n)));
    return n;
end $$;
comment on function ojs.drop_queue(text, text, text)
    is 'Drops a queue; its unfinished jobs are a reason to refuse (reject), are discarded, or move to another queue; '
       'how many';
