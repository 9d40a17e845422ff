-- events.sql: what happened, in the standard vocabulary of OJS events.
-- Most events are not stored: they follow from rows of job, event, done, lease, progress and workflow_end. Those that
-- no other row tells of are in ojs_store.stored_event.

-- Records such an event, in the caller's transaction. `data` holds what the vocabulary says of this type beyond the
-- subject; its keys queue and job_type are what filters look at. Whether somebody may see it goes by its queue, or by
-- queue_ids, which nobody is shown.
create function ojs_store.record_event(type text, subject text, data jsonb default '{}') returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    at timestamptz := ojs_store.now();
begin
    if octet_length(data::text) > 16384 then
        -- An event must stay readable for everybody: what is large in it goes.
        select jsonb_object_agg(key, value) || '{"truncated": true}' into data
        from (select key, value from jsonb_each(data) where octet_length(value::text) <= 512 order by key
            limit 16) small;
        data := coalesce(data, '{"truncated": true}');
    end if;
    if not ojs_store.matches(type, string_to_array(replace(current_setting('ojs.events_off'), ' ', ''), ',')) then
        insert into ojs_store.stored_event (id, at, type, subject, data)
            values (gen_random_uuid(), at, type, subject, coalesce(data, '{}'));
    end if;
end $$;

-- What an administrator has done, and who: `by` is the session's user, `as` the role that it has taken on.
create function ojs_store.record_act(type text, subject text, data jsonb, before jsonb default null,
    after jsonb default null) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.record_audit(type, subject, before, after, data);
    perform ojs_store.record_event('admin.' || type, subject,
        data || jsonb_strip_nulls(jsonb_build_object('by', session_user,
        'as', nullif(current_setting('role'), 'none'))));
end $$;

-- Events of administrators. They have a bound of their own, so that workers and clocks cannot push them out.
create function ojs_store.is_act(type text) returns boolean
language sql immutable strict parallel safe
begin atomic
    select type ~ '^(admin|queue|bulk[.](cancel|retry|delete))[.]';
end;

-- Functions that are called for each event have no SET, which costs more than they do: their bodies were parsed when
-- they were created, so the search_path of a caller means nothing to them.

-- Whether a name is one of these, of which job.* stands for job. and whatever follows.
create function ojs_store.matches(name text, patterns text[]) returns boolean
language sql immutable strict parallel safe
begin atomic
    select exists (
        select from unnest(patterns) as p(pattern)
        where case when pattern like '%*' then starts_with(name, left(pattern, -1)) else name = pattern end);
end;

-- A time as JSON has it.
create function ojs_store.time_text(at timestamptz) returns text
language sql immutable strict parallel safe
begin atomic
    select to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');
end;

-- A name as one part of a URI.
create function ojs_store.uri_part(name text) returns text
language sql immutable strict parallel safe
begin atomic
    select case when name ~ '^[A-Za-z0-9._~-]*$' then name else (
        select string_agg(case when c ~ '[A-Za-z0-9._~-]' then c
            else upper(regexp_replace(encode(convert_to(c, 'UTF8'), 'hex'), '(..)', e'%\\1', 'g') collate "C") end, ''
            order by n)
        from regexp_split_to_table(name, '') with ordinality as part(c, n)) end;
end;

-- A UUID of version 7 from a time and what else tells this event from all others: the same at each reading.
create function ojs_store.event_id(at timestamptz, key text) returns text
language sql immutable strict parallel safe
begin atomic
    select 'evt_' || (lpad(to_hex(floor(extract(epoch from at) * 1000)::bigint), 12, '0') || '7' || substr(h, 1, 3)
        || substr('89ab', 1 + get_byte(decode(substr(h, 4, 2), 'hex'), 0) % 4, 1) || substr(h, 6, 15))::uuid
    from md5(extract(epoch from at) || ' ' || key) as digest(h);
end;

-- The leases, for events; none on a standby. kind 8: a delivery that goes on; 9: its last sign of life; 10: the last
-- report of its progress.
create function ojs_store.running(
    out written_at timestamptz, out xid xid, out job_id uuid, out deliveries int, out kind int, out attempt int,
    out started_at timestamptz, out deadline timestamptz, out worker text, out report jsonb
) returns setof record
language plpgsql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    if not pg_is_in_recovery() then
        return query
            select k.at, l.xmin, l.job_id, l.deliveries, k.kind, l.attempt, l.claimed_at, l.deadline, l.worker,
                null::jsonb
            from ojs_store.lease l, lateral (values (Origin.held, l.claimed_at),
                (Origin.beat, l.beat_at)) as k(kind, at)
            where k.at is not null
            union all
            select p.at, p.xmin, l.job_id, l.deliveries, Origin.progress, l.attempt, l.claimed_at, l.deadline, l.worker,
                jsonb_strip_nulls(jsonb_build_object('progress_percent', trim_scale(p.progress * 100),
                    'progress_message', p.message))
            from ojs_store.lease l join ojs_store.progress p on p.job_id = l.job_id and p.started_at = l.claimed_at
            where l.flags & job_flag.job_reported <> 0;
    end if;
end $$;

-- What one row after the other tells of. Kinds: those of HistoryKind up to claimed; else
-- enum Origin { pushed = 0, held = 8, beat = 9, progress = 10, completed = 14, cancelled = 16, discarded = 17 }
-- where the first is the envelope, the next three come from ojs_store.running(), and the last from the end: 10 and its
-- state. `logged` rows are found by the job's id; a query that asks for them alone does not call ojs_store.running().
create view ojs_store.recorded as
select created_at as written_at, xmin as xid, id as job_id, -1 as deliveries, Origin.pushed as kind, 0 as attempt,
    null::timestamptz as due_at, null::timestamptz as started_at, null::text as worker, null::jsonb as error,
    null::jsonb as result, queue, false as dead_letter, true as logged
from ojs_store.job
union all
select at, xmin, job_id, deliveries, kind, attempt, due_at, started_at, worker, data, null, null, false, true
from ojs_store.job_history
where kind <> HistoryKind.leased -- a durable lease: ojs_store.running() tells of it
union all
select finished_at, xmin, job_id, deliveries, 10 + state, attempt, null, started_at, worker, error, result, queue,
    flags & finished_flag.finished_dead_letter <> 0, true
from ojs_store.finished
union all
select written_at, xid, job_id, deliveries, kind, attempt, deadline, started_at, worker, null, report, null,
    false, false
from ojs_store.running();

-- All events of jobs, with what puts them in order. A job's transactions need not have ids in the order of its life
-- (one that began early may end the job that a later one pushed), so an event counts as written by the newest of those
-- that have led to it: `settled_by`, which for one job only grows.
create view ojs_store.job_events as
select
    recorded.written_at, recorded.job_id, recorded.deliveries, happened.rank, happened.at, happened.type,
    greatest(
        numbers.epoch + recorded.xid::text::bigint - case when recorded.xid::text::bigint > numbers.low then 4294967296
            else 0 end,
        case when recorded.kind <> Origin.pushed then
            numbers.epoch + job.xmin::text::bigint - case when job.xmin::text::bigint > numbers.low then 4294967296
                else 0 end
        end,
        case when recorded.kind <> Origin.pushed then (
            select max(numbers.epoch + e.xmin::text::bigint - case when e.xmin::text::bigint > numbers.low
                then 4294967296 else 0 end)
            from ojs_store.job_history e
            where e.job_id = recorded.job_id and e.deliveries <= recorded.deliveries and e.at <= recorded.written_at)
        end) as settled_by,
    (select q.name from ojs_store.queue q where q.id = coalesce(recorded.queue, job.queue) limit 1) as queue,
    job.type as job_type, job.meta ->> 'trace_id' as trace_id, job.created_at, job.scheduled_at, job.expires_at,
    job.max_attempts, job.options, recorded.kind, recorded.attempt, recorded.due_at, recorded.started_at,
        recorded.worker, recorded.error, recorded.result,
    numbers.read_at, recorded.logged, coalesce(recorded.queue, job.queue) as queue_id
from (
    -- The next transaction id, in two parts: of a row, 32 bits are known. And the time: where the columns of the events
    -- call a volatile function, a query that does not ask for them computes them all the same.
    select next & -4294967296 as epoch, next & 4294967295 as low, ojs_store.now() as read_at
    from (select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as next offset 0) n
    offset 0
) numbers,
ojs_store.recorded
join ojs_store.job on job.id = recorded.job_id
-- The delivery of a job that may be delivered only once is an event of its own.
cross join lateral (
    select job.flags & job_flag.job_pending <> 0 as pending, job.flags & job_flag.job_at_most_once <> 0 as once_only,
        coalesce(job.scheduled_at > job.created_at, false) as scheduled,
        recorded.error ->> 'type' as error_type,
        case recorded.error ->> 'timeout_kind' when 'execution' then 'job.timeout' when 'stalled' then 'job.stalled'
            when 'enqueue_ttl' then 'job.ttl_expired' when 'total' then 'job.total_timeout' end as timeout
) as fact
cross join lateral (values
    (1, 'job.scheduled', recorded.written_at, recorded.kind = Origin.pushed and not fact.pending and fact.scheduled
        or recorded.kind = HistoryKind.activated and recorded.due_at > recorded.written_at),
    -- Falling due writes nothing that lasts: the first delivery shows that it has been.
    (2, 'job.enqueued', job.scheduled_at, recorded.started_at is not null and recorded.kind
        not in (Origin.beat, Origin.progress) and recorded.deliveries = 1 and fact.scheduled and not fact.pending),
    (3, 'job.started', recorded.started_at, recorded.started_at is not null and recorded.kind
        not in (HistoryKind.claimed, Origin.beat, Origin.progress) and not fact.once_only),
    (3, 'job.started', recorded.written_at, recorded.kind = HistoryKind.claimed),
    (4, 'job.heartbeat', recorded.written_at, recorded.kind = Origin.beat),
    (5, 'job.progress', recorded.written_at, recorded.kind = Origin.progress),
    (6, fact.timeout, recorded.written_at, recorded.kind in (HistoryKind.failed, HistoryKind.lapsed, Origin.discarded)
        and fact.timeout is not null),
    (6, fact.timeout, (recorded.error ->> 'occurred_at')::timestamptz,
        recorded.kind = HistoryKind.revived and fact.timeout is not null),
    (7, 'job.failed', recorded.written_at, recorded.kind in (HistoryKind.failed, HistoryKind.lapsed)
        or recorded.kind = Origin.discarded and recorded.started_at is not null),
    (7, 'job.failed', (recorded.error ->> 'occurred_at')::timestamptz,
        recorded.kind = HistoryKind.revived and recorded.started_at is not null),
    -- or no retry could fit into total_timeout
    (8, 'job.retrying', recorded.written_at, recorded.kind = HistoryKind.failed and recorded.due_at is not null),
    (8, 'backpressure.dropped', recorded.written_at, recorded.kind = Origin.discarded and fact.error_type = 'overflow'),
    (8, 'job.expired', recorded.written_at, recorded.kind = Origin.discarded
        and fact.error_type in ('expired', 'enqueue_ttl_expired')),
    (8, 'rate_limit.dropped', recorded.written_at, recorded.kind = Origin.discarded
        and recorded.started_at is null and fact.error_type = 'rate_limited'),
    (9, 'job.completed', recorded.written_at, recorded.kind = Origin.completed),
    (9, 'job.cancelled', recorded.written_at, recorded.kind = Origin.cancelled),
    (9, 'job.discarded', recorded.written_at, recorded.kind = Origin.discarded),
    (9, 'job.discarded', (recorded.error ->> 'occurred_at')::timestamptz, recorded.kind = HistoryKind.revived),
    (10, 'dead_letter.added', recorded.written_at, recorded.dead_letter),
    (11, 'job.enqueued', recorded.written_at, recorded.kind = Origin.pushed and not fact.pending and not fact.scheduled
        or recorded.kind in (HistoryKind.released, HistoryKind.lapsed, HistoryKind.revived)
        or recorded.kind = HistoryKind.activated and (recorded.due_at > recorded.written_at) is not true)
) as happened(rank, type, at, so)
where happened.so;

-- All events, in the columns of the envelope and those that filters and cursors look at.
create view ojs_store.all_events as
select
    e.written_at, e.settled_by, e.job_id as key, e.deliveries, e.rank, e.at, e.type, e.job_id::text as subject,
    concat_ws(' ', e.type, e.job_id, e.deliveries) as identity, 'queues/' || e.queue as source, e.job_id, e.queue,
        e.job_type,
    jsonb_build_object('job_id', e.job_id, 'job_type', e.job_type, 'queue', e.queue, 'state', case e.type
        when 'job.scheduled' then 'scheduled' when 'job.enqueued' then 'available' when 'job.retrying' then 'retryable'
        when 'job.started' then 'active' when 'job.heartbeat' then 'active' when 'job.progress' then 'active'
        when 'job.completed' then 'completed' when 'job.cancelled' then 'cancelled'
        else case e.kind when HistoryKind.failed then 'retryable' when HistoryKind.lapsed then 'available'
            else 'discarded' end end)
    || case when e.trace_id is not null then jsonb_build_object('trace_id', e.trace_id) else '{}' end
    || case when e.type in ('job.started', 'job.heartbeat', 'job.progress')
        and e.worker is not null then jsonb_build_object('worker_id', e.worker) else '{}' end
    || case
        when e.type = 'job.scheduled' then jsonb_build_object('scheduled_at',
            ojs_store.time_text(coalesce(e.due_at, e.scheduled_at)))
        when e.type = 'job.started' then jsonb_build_object('attempt', n.attempt)
        when e.type = 'job.heartbeat' then jsonb_build_object('attempt', n.attempt, 'visible_until',
            ojs_store.time_text(e.due_at))
        when e.type = 'job.progress' then jsonb_build_object('attempt', n.attempt) || e.result
        when e.type in ('job.timeout', 'job.stalled', 'job.ttl_expired', 'job.total_timeout')
            then jsonb_build_object('attempt', n.attempt,
            'timeout_kind', e.error -> 'timeout_kind', 'limit_seconds', e.error -> 'limit_seconds', 'elapsed_seconds',
                e.error -> 'elapsed_seconds')
        when e.type = 'job.completed' then jsonb_build_object('attempt', n.attempt, 'duration_ms', n.duration_ms,
            -- A result is shown as long as its job asks for: result_ttl in seconds, -1 for ever, 7 days by default.
            'result', case when coalesce((e.options ->> 'result_ttl')::numeric, 604800) < 0
                or e.at + coalesce((e.options ->> 'result_ttl')::float8, 604800) * interval '1 second' > e.read_at
                    then e.result end)
        when e.type = 'job.failed' then jsonb_build_object('attempt', n.attempt, 'duration_ms', n.duration_ms,
            'error', n.error || jsonb_build_object('retryable',
                e.kind in (HistoryKind.failed, HistoryKind.lapsed)) || n.stack_trace)
        when e.type = 'job.retrying' then jsonb_build_object('attempt', n.attempt, 'max_attempts', e.max_attempts,
            'next_retry_at', ojs_store.time_text(e.due_at), 'error', n.error)
        when e.type = 'job.cancelled' and e.error ->> 'type' = 'replaced'
            then jsonb_build_object('reason', e.error ->> 'message')
        when e.type = 'job.expired' then jsonb_build_object('created_at', ojs_store.time_text(e.created_at),
            'expired_at', ojs_store.time_text(e.at), 'ttl_ms', coalesce(
                case when e.error ->> 'type' = 'enqueue_ttl_expired'
                    then ((e.options ->> 'enqueue_ttl')::numeric * 1000)::bigint end,
                (extract(epoch from e.expires_at - e.created_at) * 1000)::bigint))
        when e.type = 'rate_limit.dropped' then jsonb_build_object('key', coalesce(
            jsonb_path_query_first(e.options, '$.rate_limit ? (@.on_limit == "drop").key') #>> '{}',
                'queue:' || e.queue))
        when e.type in ('job.discarded', 'dead_letter.added')
            then jsonb_build_object('total_attempts', n.attempt, 'last_error', n.error)
        else '{}' end as data, e.logged,
    -- What rights are asked by: by its id where there is one, since the name is looked up anew wherever it stands.
    e.queue_id, null::text as stated_queue, null::jsonb as queues
from ojs_store.job_events e
cross join lateral (
    select
        -- A release gives its attempt back, a lapse may, and a manual retry starts anew; the error knows which it was.
        case when e.kind = HistoryKind.released then e.attempt + 1
            when e.kind in (HistoryKind.lapsed, HistoryKind.revived)
            then coalesce((e.error ->> 'attempt')::int, e.attempt)
            else e.attempt end as attempt,
        (extract(epoch from e.at - e.started_at) * 1000)::bigint as duration_ms,
        jsonb_build_object('code', coalesce(e.error ->> 'code', e.error ->> 'type'), 'type', e.error ->> 'type',
            'message', e.error ->> 'message') as error,
        case when jsonb_typeof(e.error -> 'backtrace') = 'array' then jsonb_build_object('stack_trace', (
            select string_agg(line, chr(10) order by i) from jsonb_array_elements_text(e.error -> 'backtrace')
                with ordinality as b(line, i)))
            else '{}' end as stack_trace
) n
union all
select
    r.at, numbers.epoch + r.xmin::text::bigint - case when r.xmin::text::bigint > numbers.low then 4294967296
        else 0 end,
    r.id, 0, 0, r.at, r.type, r.subject, r.id::text,
    case split_part(r.type, '.', 1) when 'admin' then 'admin/' when 'worker' then 'workers/' when 'cron' then 'cron/'
        when 'workflow' then 'workflows/'
        when 'bulk' then 'api/' when 'rate_limit' then 'rate-limits/' when 'webhook' then 'webhooks/'
        else 'queues/' end
        || ojs_store.uri_part(coalesce(case when r.type !~ '^(admin|worker|cron|workflow|bulk|rate_limit|webhook)[.]'
            then r.data ->> 'queue' end, r.subject)),
    null, r.data ->> 'queue', r.data ->> 'job_type',
    case when r.data ? 'queue_ids' then r.data - 'queue_ids' else r.data end, false, null,
    r.data ->> 'queue', r.data -> 'queue_ids'
from (
    select next & -4294967296 as epoch, next & 4294967295 as low
    from (select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as next offset 0) n
    offset 0
) numbers, ojs_store.stored_event r
union all
-- The steps, jobs and callbacks of workflows that have completed. What is still to come is told for chains, and counted
-- up to a thousand members.
select
    e.ended_at, numbers.epoch + e.xmin::text::bigint - case when e.xmin::text::bigint > numbers.low then 4294967296
        else 0 end,
    e.workflow, e.position, 0, e.ended_at, 'workflow.step_completed', e.workflow::text,
        concat_ws(' ', 'workflow.step_completed', e.workflow, e.position),
    'workflows/' || e.workflow, case when e.is_job then e.member end, null, m.type,
    jsonb_build_object('workflow_id', e.workflow, 'workflow_name', coalesce(w.name, ''), 'step_id', e.position::text,
        'step_type', m.type)
        || case when e.is_job then jsonb_build_object('job_id', e.member)
            else jsonb_build_object('inner_workflow_id', e.member) end
        || case when e.started_at is not null then jsonb_build_object('duration_ms',
            (extract(epoch from e.ended_at - e.started_at) * 1000)::bigint) else '{}' end
        || case when e.position >= w.members then jsonb_build_object('callback', m.callback)
            when w.type = 'chain' then jsonb_build_object('steps_remaining', w.members - e.position - 1)
            when w.members <= 1000 then jsonb_build_object('steps_remaining', w.members - (
                select count(*) from ojs_store.workflow_end f where f.workflow = e.workflow and f.position < w.members
                    and f.ended_at <= e.ended_at))
            else '{}' end, false, null, null, null
from (
    select next & -4294967296 as epoch, next & 4294967295 as low
    from (select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as next offset 0) n
    offset 0
) numbers, ojs_store.workflow_end e
join ojs_store.workflow w on w.id = e.workflow
join ojs_store.workflow_member m on m.workflow = e.workflow and m.position = e.position
where e.state = 'completed';

create view ojs.events with (security_barrier) as
select
    ojs_store.event_id(e.at, e.identity) as id, '1.0'::text as specversion, e.type,
    'ojs://' || ojs_store.uri_part(current_database()::text) || '/' || e.source as source,
    e.at as "time", e.subject, e.data, e.job_id, ojs_store.shown_queue(e.queue) as queue, e.job_type
from ojs_store.all_events e
where case
        when e.queue_id is not null then ojs_store.may_use_queue(e.queue_id, 'read')
        when e.stated_queue is not null then ojs_store.may_use_queue(e.stated_queue, 'read')
        when e.type ~ '^(workflow|cron)[.]' then ojs_store.may_see(e.type, e.subject, e.queues)
        else ojs_store.caller_tenant() is null end;
comment on view ojs.events is 'What happened: the standard OJS events, one row each, in no order';
