-- bulk.sql: cancel, retry or delete many jobs, by id or by what they are; and what the dead letters are.

-- A filter that can be carried out, or an error that says what is wrong with it.
create function ojs_store.check_filter(filter jsonb, confirm boolean) returns void
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    wrong text;
begin
    if filter is null or jsonb_typeof(filter) <> 'object' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'filter must be an object', '{"field": "filter"}',
            'Give {"ids": [...]}, or some of queue, type, state, error_type, priority, meta, since, until.');
    end if;
    select k into wrong from jsonb_object_keys(filter) k
    where k not in ('ids', 'queue', 'type', 'state', 'error_type', 'priority', 'meta', 'since', 'until',
        'dead_letter', 'ended_workflows') limit 1;
    if found then
        perform ojs_store.raise('INVALID_PAYLOAD', format('filter cannot hold "%s"', left(wrong, 64)),
            '{"field": "filter"}',
            'Filter by ids, or by queue, type, state, error_type, priority, meta, since, until and dead_letter; '
            'a retry also by ended_workflows.');
    end if;
    if filter ? 'ids' and filter - 'ids' <> '{}' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'filter holds ids and more', '{"field": "filter"}',
            'Name jobs by their ids, or by what they are, not both.');
    end if;
    if filter ? 'ids' and (jsonb_typeof(filter -> 'ids') <> 'array' or exists (
        select from jsonb_array_elements(filter -> 'ids') as a(id)
        where jsonb_typeof(id) <> 'string' or id #>> '{}' !~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$')) then
        perform ojs_store.raise('INVALID_PAYLOAD', 'filter.ids must be an array of job ids', '{"field": "filter"}',
            'Give ids as ojs.push returned them.');
    end if;
    if filter ? 'ids' and jsonb_array_length(filter -> 'ids') > current_setting('ojs.max_batch_size')::int then
        perform ojs_store.raise('BATCH_SIZE_EXCEEDED',
            format('a call may name %s jobs, not %s', current_setting('ojs.max_batch_size'),
            jsonb_array_length(filter -> 'ids')),
            jsonb_build_object('field', 'filter', 'size', jsonb_array_length(filter -> 'ids'), 'maximum',
                current_setting('ojs.max_batch_size')::int), 'Split the call.');
    end if;
    select key into wrong from jsonb_each(filter) e
    where key in ('queue', 'type', 'error_type', 'since', 'until') and jsonb_typeof(value) <> 'string'
        or key in ('dead_letter', 'ended_workflows') and jsonb_typeof(value) <> 'boolean'
        or key = 'meta' and jsonb_typeof(value) <> 'object'
        or key = 'priority' and (jsonb_typeof(value) <> 'number' or value::numeric <> trunc(value::numeric))
            or key = 'state' and jsonb_typeof(value) not in ('string', 'array')
    limit 1;
    if found then
        perform ojs_store.raise('INVALID_PAYLOAD', format('filter.%s has the wrong type', wrong), '{"field": "filter"}',
            'Texts for queue, type, error_type, since and until; a text or an array for state; a boolean for '
            'dead_letter and ended_workflows; a whole number for priority; an object for meta.');
    end if;
    select s into wrong from unnest(ojs_store.states_of(filter, '{}')) s
    where s is null or s not in ('available', 'scheduled', 'retryable', 'pending', 'active', 'completed', 'cancelled',
        'discarded') limit 1;
    if found then
        perform ojs_store.raise('INVALID_PAYLOAD', format('filter.state holds "%s", which is no state',
            left(wrong, 64)), '{"field": "filter"}',
            'Name states such as available, scheduled, retryable, discarded.');
    end if;
    perform ojs_store.time_value(value #>> '{}', 'filter.' || key) from jsonb_each(filter)
        where key in ('since', 'until');
    if not filter ? 'ids' and confirm is not true then
        perform ojs_store.raise('INVALID_PAYLOAD', 'confirm must be true where filter does not name jobs by ids',
            '{"field": "confirm"}', 'Call it with confirm => true.');
    end if;
end $$;

-- The states that a filter asks for, or those given.
create function ojs_store.states_of(filter jsonb, otherwise text[]) returns text[]
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select case jsonb_typeof(filter -> 'state') when 'string' then array[filter ->> 'state']
        when 'array' then array(select jsonb_array_elements_text(filter -> 'state')) else otherwise end
$$;

-- A time with its zone, as a push reads it.
create function ojs_store.time_value(given text, field text) returns timestamptz
language c stable strict parallel restricted as 'MODULE_PATHNAME', 'ojs_time_value';

-- Whether a job is what a filter describes; `at`: its end, or its creation if it has not ended.
-- Called for each job: without SET, so that it can be part of the query.
create function ojs_store.fits(filter jsonb, type text, priority int, meta jsonb, error jsonb, at timestamptz)
    returns boolean
language sql stable parallel safe
begin atomic
    select (not filter ? 'type' or case when filter ->> 'type' like '%*'
        then starts_with(type, left(filter ->> 'type', -1))
            else type = filter ->> 'type' end)
        and (not filter ? 'error_type' or error ->> 'type' is not distinct from filter ->> 'error_type')
        and (not filter ? 'priority' or priority = (filter -> 'priority')::numeric)
        and (not filter ? 'meta' or coalesce(meta, '{}') @> (filter -> 'meta'))
        and at between coalesce(ojs_store.time_value(filter ->> 'since', 'since'), '-infinity')
            and coalesce(ojs_store.time_value(filter ->> 'until', 'until'), 'infinity');
end;

-- Whether the workflow of a job has ended, or has called its callbacks: what the job does now, it does alone. Called
-- for each job: without SET, so that it can be part of the query, and not by one EXISTS, which the planner may answer
-- by reading all workflows.
create function ojs_store.workflow_over(workflow uuid) returns setof boolean
language sql stable parallel safe rows 1
begin atomic
    select case when workflow_over.workflow is null then false else coalesce((
        select w.state <> 'running'
            or exists (select from ojs_store.workflow_open o where o.workflow = w.id and o.position >= w.members)
            or exists (select from ojs_store.workflow_end e where e.workflow = w.id and e.position >= w.members)
        from ojs_store.workflow w where w.id = workflow_over.workflow), true) end;
end;

-- At most `most` jobs in these states that a filter describes, by id; those that come first where there are more, the
-- active ones last: so that who takes many by little reads no more each time than it takes. For finished jobs since and
-- until speak of their end, for others of their creation. Numbers as in ojs_store.queue_counts().
-- If `leave_out`, without the jobs of workflows that have ended; left_out: how many of them it met on its way.
create function ojs_store.described(
    filter jsonb, states text[], most int, leave_out boolean, out ids uuid[], out left_out int
) returns record
language plpgsql stable parallel unsafe set plan_cache_mode = force_custom_plan
set enable_hashjoin = off set enable_mergejoin = off -- which read all jobs before they find the first
set cursor_tuple_fraction = 0.001
set search_path = pg_catalog, pg_temp as $$
declare
    due timestamptz := ojs_store.promoted_to();
    queue_id bigint := ojs_store.queue_id(filter ->> 'queue');
    fit cursor for
    with place as (
        select r.job_id, r.queue, 'available' as state, null::timestamptz as ended, null::jsonb as error,
            false as dead_letter
        from ojs_store.ready r where 'available' = any (states)
        union all
        select l.job_id, l.queue, case
            when l.kind in (DelayedKind.released, DelayedKind.blocked) or l.due_at <= due then 'available'
            when l.kind = DelayedKind.scheduled then 'scheduled'
            when l.kind = DelayedKind.retryable then 'retryable' else 'pending' end, null,
            case when filter ? 'error_type' then (select e.data from ojs_store.job_history e where e.job_id = l.job_id
                and e.kind in (HistoryKind.failed, HistoryKind.lapsed)
                order by e.deliveries desc, e.at desc limit 1) end, false
        from ojs_store.delayed l where l.kind <> DelayedKind.expiry
            and states && '{available,scheduled,retryable,pending}'
        union all
        select l.job_id, l.queue, 'active', null, null, false from ojs_store.lease l where 'active' = any (states)
        union all
        select d.job_id, d.queue, case d.state when State.completed then 'completed' when State.cancelled
            then 'cancelled' else 'discarded' end, d.finished_at,
            d.error, d.flags & finished_flag.finished_dead_letter <> 0
        from ojs_store.finished d where states && '{completed,cancelled,discarded}'
    )
    select place.job_id, leave_out and workflow_over as over
    from place join ojs_store.job on job.id = place.job_id,
        ojs_store.workflow_over((job.options ->> 'workflow_id')::uuid)
    where place.state = any (states)
        and (queue_id is null or place.queue = queue_id)
        and (ojs_store.may_use_queue(place.queue, 'administer') or ojs_store.may_use_queue(place.queue, 'cancel'))
        and (not filter ? 'dead_letter' or place.dead_letter = (filter -> 'dead_letter')::boolean)
        and ojs_store.fits(filter, job.type, job.priority, job.meta, place.error,
            coalesce(place.ended, job.created_at));
begin
    ids := '{}';
    left_out := 0;
    for one in fit loop
        if one.over then
            left_out := left_out + 1;
        else
            ids := ids || one.job_id;
            exit when cardinality(ids) >= most;
        end if;
    end loop;
    ids := array(select i from unnest(ids) i order by i);
end $$;

-- Cancels a job if it is in one of these states: bits by their numbers in rows.h. Looked at once the job is locked, so
-- a job that was claimed meanwhile stays with its worker.
create function ojs_store.cancel_in(job_id uuid, states int) returns boolean
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_cancel_in';

-- Locks a job if it is in one of these states. Returns false if another transaction has locked it and `wait` is false.
create function ojs_store.hold(job_id uuid, states int, wait boolean) returns boolean
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_hold';

-- As ojs.delete_job, but leaves no event, and returns false for a job that has not ended.
create function ojs_store.delete_finished(job_id uuid) returns boolean
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_delete_finished';

create function ojs_store.state_bits(states text[]) returns int
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select coalesce(bit_or(1
        << (array_position('{scheduled,available,pending,active,completed,retryable,cancelled,discarded}'::text[],
        s) - 1)), 0)
    from unnest(states) s
$$;

/*
 * Carries out one operation on each job in turn, in the order of ids: so two calls do not deadlock. What cannot be done
 * to a job is a reason to pass it over, not to fail. The state is judged by what carries it out, which has locked the
 * job. For jobs that other transactions have locked it waits two seconds in all: while it waits, it holds those that it
 * had before.
 */
create function ojs_store.do_many(operation text, filter jsonb, confirm boolean, states text[], eligible text[])
    returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp set lock_timeout = '2s' as $$
#variable_conflict use_variable
declare
    most int;
    ids uuid[];
    more boolean := false;
    id uuid;
    n bigint;
    state text;
    code text;
    reason text;
    message text;
    detail text;
    twin jsonb;
    done boolean;
    bits int := ojs_store.state_bits(eligible);
    right_name text := case operation when 'cancel' then 'cancel' else 'administer' end;
    waited_s double precision := 0;
    since_s double precision;
    items jsonb[];
    succeeded int := 0;
    left_out int;
begin
    perform ojs_store.now(); -- loads the library, and with it its settings
    perform ojs_store.refuse_read_only(format('ojs.%s_many()', operation));
    perform ojs_store.check_filter(filter, confirm);
    if operation <> 'retry' and filter ? 'ended_workflows' then
        perform ojs_store.raise('INVALID_PAYLOAD', format('a filter to %s by cannot hold "ended_workflows"', operation),
            '{"field": "filter"}', 'Only a retry leaves out jobs of workflows that have ended.');
    end if;
    -- At once what it will take: who reads first and asks for more later can meet REINDEX in a deadlock.
    lock table ojs_store.job, ojs_store.job_history, ojs_store.finished, ojs_store.ready, ojs_store.lease,
        ojs_store.delayed, ojs_store.progress, ojs_store.workflow, ojs_store.workflow_open, ojs_store.workflow_end
        in row exclusive mode;
    most := current_setting('ojs.max_batch_size')::int;
    if filter ? 'ids' then
        ids := array(select a.id::uuid from jsonb_array_elements_text(filter -> 'ids') with ordinality as a(id, n)
            order by a.n);
    else
        perform ojs_store.use_queue(filter ->> 'queue', right_name);
        select d.ids, d.left_out into ids, left_out
        from ojs_store.described(filter, states, most + 1,
            operation = 'retry' and (filter -> 'ended_workflows')::boolean is not true) d;
        more := cardinality(ids) > most;
        ids := ids[:most];
    end if;
    for id, n in select a.id, a.n from unnest(ids) with ordinality as a(id, n) order by a.id, a.n loop
        code := null;
        twin := '{}';
        done := false;
        if not ojs_store.may_use_job(id, right_name) then
            code := 'PERMISSION_DENIED';
            reason := 'the queue of the job is not for this role';
        elsif not ojs_store.hold(id, bits, false) then
            since_s := ojs_store.steady_s();
            begin
                perform set_config('lock_timeout', (greatest(2000 - waited_s * 1000, 1)::int)::text, true);
                perform ojs_store.hold(id, bits, true);
                perform set_config('lock_timeout', '2s', true);
            exception when lock_not_available then
                code := 'UNAVAILABLE';
                reason := 'another transaction has locked the job';
            end;
            waited_s := waited_s + ojs_store.steady_s() - since_s;
        end if;
        if code is null and operation = 'cancel' then
            done := ojs_store.cancel_in(id, bits);
        end if;
        state := case when code is null and not done then (ojs_store.look(id)).state end;
        if done or code is not null then
            null;
        elsif state is null then
            code := 'NOT_FOUND';
            reason := 'there is no such job';
        elsif operation = 'cancel' or state <> all (eligible) then
            code := 'INVALID_STATE_TRANSITION';
            reason := format('the job is %s', state);
        elsif operation = 'delete' then
            if not ojs_store.delete_finished(id) then
                code := 'INVALID_STATE_TRANSITION';
                reason := 'the job has changed meanwhile';
            end if;
        else
            begin
                -- An open job with the same uniqueness key does not stop it, and is named (INT-09).
                select jsonb_strip_nulls(jsonb_build_object('existing_job_id', r.extra -> 'existing_job_id',
                    'existing_job_state', r.extra -> 'existing_job_state')) into twin
                from ojs.retry(id) r;
            exception when others then
                get stacked diagnostics message = message_text, detail = pg_exception_detail;
                if left(sqlstate, 2) <> 'OJ' then
                    raise;
                end if;
                code := detail::jsonb ->> 'code';
                reason := message;
            end;
        end if;
        items[n] := jsonb_build_object('index', n - 1, 'job_id', id, 'status', case when code is not null then 'skipped'
            when operation = 'cancel' then 'cancelled' when operation = 'retry' then 'retried' else 'deleted' end)
            || case when code is not null then jsonb_build_object('code', code, 'reason', reason) else twin end;
        succeeded := succeeded + (code is null)::int;
    end loop;
    perform ojs_store.record_audit(format('jobs_%s', case operation when 'cancel' then 'cancelled' when 'retry'
        then 'retried' else 'deleted' end),
        operation, null, null, jsonb_build_object('filter', filter - '{args,ids}'::text[], 'matched', cardinality(ids),
            'succeeded', succeeded));
    perform ojs_store.record_event(format('bulk.%s.completed', operation), operation,
        jsonb_build_object('total', cardinality(ids),
        case operation when 'cancel' then 'cancelled' when 'retry' then 'retried' else 'deleted' end, succeeded,
        'skipped', cardinality(ids) - succeeded, 'by', session_user));
    return jsonb_build_object('matched', cardinality(ids), 'succeeded', succeeded, 'failed',
        cardinality(ids) - succeeded, 'more', more,
        'items', to_jsonb(coalesce(items, '{}')))
        || case when operation = 'retry' and not filter ? 'ids' then jsonb_build_object('left_out', left_out)
            else '{}' end;
end $$;

create function ojs.cancel_many(filter jsonb, confirm boolean default false) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    -- What somebody is working on is left alone, unless it is named or asked for.
    return ojs_store.do_many('cancel', filter, confirm,
        ojs_store.states_of(filter, '{available,scheduled,retryable,pending,active}'),
        case when filter ? 'ids' then '{available,scheduled,retryable,pending,active}'::text[]
            else ojs_store.states_of(filter, '{available,scheduled,retryable,pending}') end);
end $$;
comment on function ojs.cancel_many(jsonb, boolean)
    is 'Cancels open jobs, named by ids or described; a running one only where it is named or asked for by state';

create function ojs.retry_many(filter jsonb, confirm boolean default false) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    return ojs_store.do_many('retry', filter, confirm, ojs_store.states_of(filter, '{discarded,retryable}'),
        '{discarded,retryable}');
end $$;
comment on function ojs.retry_many(jsonb, boolean)
    is 'Makes discarded and retryable jobs, named by ids or described, available again; of workflows that have ended '
        'only those that are named or asked for';

create function ojs.delete_many(filter jsonb, confirm boolean default false) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    return ojs_store.do_many('delete', filter, confirm, ojs_store.states_of(filter, '{completed,cancelled,discarded}'),
        '{completed,cancelled,discarded}');
end $$;
comment on function ojs.delete_many(jsonb, boolean) is 'Removes finished jobs, named by ids or described';

create function ojs.dead_letter_stats(queue text default null) returns jsonb
language plpgsql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    only_id bigint := ojs_store.queue_id(ojs_store.use_queue(dead_letter_stats.queue, 'read'));
    ids bigint[]; -- those that have some; queues that were dropped among them
    stats jsonb;
begin
    select array_agg(d.queue), jsonb_build_object('total', coalesce(sum(d.n), 0),
        'by_queue', coalesce(jsonb_object_agg((select q.name from ojs_store.queue q where q.id = d.queue limit 1), d.n),
            '{}'),
        'oldest_at', ojs_store.time_text(min((select min(l.died_at) from ojs_store.dead_letter l
            where l.queue = d.queue))),
        'newest_at', ojs_store.time_text(max((select max(l.died_at) from ojs_store.dead_letter l
            where l.queue = d.queue))))
    into ids, stats
    from ojs_store.dead_letters_of(only_id) d;
    return stats || jsonb_build_object('by_error_type', coalesce((select jsonb_object_agg(e.error_type, e.n)
        from (select coalesce(l.error_type, 'unknown') as error_type, count(*) as n from ojs_store.dead_letter l
            where l.queue = any (ids) group by 1) e), '{}'));
end $$;
comment on function ojs.dead_letter_stats(text)
    is 'How many dead letters there are, of which queues and errors, and how old';
