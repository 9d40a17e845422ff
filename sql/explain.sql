-- explain.sql: why a job is where it is.

-- "in 3 minutes" and the like, for a sentence.
create function ojs_store.distance(at timestamptz) returns text
language sql stable parallel safe set search_path = pg_catalog, pg_temp as $$
    select case when at > ojs_store.now() then 'in ' || date_trunc('milliseconds', at - ojs_store.now())
        else date_trunc('milliseconds', ojs_store.now() - at) || ' ago' end
$$;

-- Why a version keeps a job waiting: all workers that are alive name other versions of its type.
create function ojs_store.explain_version(job ojs.job) returns text
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    version text := job.extra ->> 'version';
    workers int;
    taking int;
begin
    if version is null then
        return null;
    end if;
    select count(*), count(*) filter (where coalesce(ojs_store.in_range(h.versions, version), true))
        into workers, taking
    from ojs_store.worker w
    cross join ojs_store.caller_tenant() t (tenant)
    left join lateral (select e ->> 'versions' as versions
        from jsonb_array_elements(case jsonb_typeof(w.info -> 'handlers') when 'array' then w.info -> 'handlers' end) e
        where e ->> 'type' = job.type limit 1) h on true
    where w.died_at is null and (t.tenant is null or right(w.name, length(t.tenant) + 1) = '@' || t.tenant);
    if workers > 0 and taking = 0 then
        return format('its version is %s, and none of the %s workers that have registered takes that of %s', version,
            workers, job.type);
    end if;
    return null;
end $$;

-- The queue that a job is in, as it holds; nothing if it was dropped.
create function ojs_store.queue_of_job(job_id uuid) returns ojs_store.queue
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_store.in_force(ojs_store.queue_named(
        (select q.name from ojs_store.queue q where q.id = j.queue limit 1)))
    from ojs_store.job j where j.id = $1
$$;

-- How many jobs of its queue are served before one that can be claimed, counted up to `most`.
create function ojs_store.ready_before(job_id uuid, most int) returns bigint
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_ready_before';

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
    waits text;
    is_blocked boolean := false;
    earlier uuid[];
    blocker uuid;
    this text := format('Job %s', job_id);
begin
    job := ojs_store.look(ojs_store.use_job(job_id, 'read'));
    if job.id is null then
        perform ojs_store.raise('NOT_FOUND', format('job %s does not exist', coalesce(job_id::text, 'null')),
            jsonb_build_object('job_id', job_id),
            'Check the id; finished jobs are removed after their retention.');
    end if;
    select format('Job %s, which is %s of workflow %s,', job_id, coalesce(m.callback, 'member ' || m.position),
        o.workflow) into this
    from ojs_store.workflow_open o join ojs_store.workflow_member m on m.workflow = o.workflow
        and m.position = o.position where o.member = job_id;
    this := coalesce(this, format('Job %s', job_id));
    if (case job.state when 'available' then at when 'scheduled' then job.scheduled_at when 'retryable'
        then job.next_attempt_at end) <= at then
        select format('%s waits because the server has been in maintenance since %s%s; ojs.set_maintenance(false) ends '
                      'that.', this, m.since,
            ' (' || m.reason || ')') into waits from ojs_store.maintenance m order by m.since limit 1;
        if found then
            return waits;
        end if;
    end if;
    case job.state
    when 'completed' then
        return format('%s is completed: its worker finished it %s, at attempt %s.', this,
            ojs_store.distance(job.completed_at), job.attempt);
    when 'cancelled' then
        return format('%s was cancelled %s.', this, ojs_store.distance(job.cancelled_at));
    when 'discarded' then
        return format('%s was discarded %s after %s deliveries, because of the error %s%s; ojs.retry brings it back.',
            this,
            ojs_store.distance(job.discarded_at), job.deliveries, job.error ->> 'type',
            ', and a copy went to the queue "' || (job.error ->> 'dead_lettered_to') || '"');
    when 'active' then
        if not pg_is_in_recovery() then
            select l.deadline into deadline from ojs_store.lease l where l.job_id = job_id;
        end if;
        if deadline <= at then
            return format('%s was held by the worker "%s", whose lease ran out %s; the next claim or tick takes it '
                'back.', this,
                job.worker, ojs_store.distance(deadline));
        end if;
        return format('%s is running: the worker "%s" holds it, delivery %s, attempt %s of %s, and its lease runs out '
                      '%s.', this,
            job.worker, job.deliveries, job.attempt, job.max_attempts, ojs_store.distance(deadline));
    when 'scheduled' then
        return format('%s is not due: it is scheduled for %s, %s.', this, job.scheduled_at,
            ojs_store.distance(job.scheduled_at));
    when 'retryable' then
        return format('%s failed at attempt %s of %s (%s) and is tried again %s, at %s.', this, job.attempt,
            job.max_attempts,
            job.error ->> 'type', ojs_store.distance(job.next_attempt_at), job.next_attempt_at);
    when 'pending' then
        return format('%s is pending: it waits for ojs.activate(job_id).', this);
    else
        null;
    end case;

    -- Available: what keeps it from being claimed?
    queue := ojs_store.queue_of_job(job_id);
    config := ojs_store.effective_config(coalesce(queue.config, '{}'), false);
    if queue.id is null then
        return format('%s waits in the queue "%s", which was dropped; the next tick brings the queue back.', this,
            job.queue);
    end if;
    if job.expires_at <= at then
        return format('%s expired %s: the next claim or tick discards it.', this, ojs_store.distance(job.expires_at));
    end if;
    if queue.state = 'paused' then
        return format('%s waits because its queue "%s" is paused; ojs.resume_queue ends that.', this, job.queue);
    end if;
    if config ->> 'type' = 'log' then
        return format('%s is an entry of the log "%s", which hands out nothing.', this, job.queue);
    end if;
    if not pg_is_in_recovery() then -- a condition of its own: with the next it would be planned on a standby too
        is_blocked := exists (select from ojs_store.delayed l
            where l.job_id = job_id and l.kind = DelayedKind.blocked);
    end if;
    if is_blocked then
        earlier := ojs_store.line_before(job_id, 10000);
        ahead := cardinality(earlier);
        blocker := earlier[1];
        if blocker is null then
            return format('%s is the next with its ordering key "%s": it can be claimed once the transactions have '
                'ended that push or finish such jobs.', this, job.extra ->> 'ordering_key');
        end if;
        return format('%s waits for job %s, which has the same ordering key "%s" and is %s; it is one of %s that are '
            'served before it.', this, blocker,
            job.extra ->> 'ordering_key', (ojs_store.look(blocker)).state, case when ahead = 10000
                then 'at least 10000' else ahead::text end);
    end if;
    limit_says := ojs_store.explain_limit(job, queue);
    if limit_says is not null then
        return format('%s waits: %s.', this, limit_says);
    end if;
    if pg_is_in_recovery() then
        return format('%s is available, as far as this standby knows, which does not see leases.', this);
    end if;
    select l.due_at into due from ojs_store.delayed l where l.job_id = job_id and l.kind <> DelayedKind.expiry;
    if due > at then
        return format('%s was given back with a delay and may be claimed again %s.', this, ojs_store.distance(due));
    end if;
    if (config ->> 'max_deliveries')::bigint between 1 and job.deliveries and config ->> 'dead_letter' is not null then
        return format('%s was delivered %s times, as often as its queue "%s" allows: the next claim moves it to the '
                      'queue "%s".', this,
            job.deliveries, job.queue, config ->> 'dead_letter');
    end if;
    waits := ojs_store.explain_version(job);
    if waits is not null then
        return format('%s waits: %s.', this, waits);
    end if;
    ahead := ojs_store.ready_before(job_id, 10000);
    return format('%s may be claimed now: its queue "%s" is %s, and %s jobs are served before it.', this, job.queue,
        queue.state,
        case when ahead = 10000 then 'at least 10000' else ahead::text end);
end $$;
comment on function ojs.explain_job(uuid) is 'Why a job is not running, or that it is, in one sentence';
