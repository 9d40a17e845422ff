-- cron.sql: jobs by the clock. An entry is a row of ojs_store.cron; ticks run those that are due. C++:
-- src/upkeep/cron.cpp, src/upkeep/cron_expression.cpp.

create function ojs_store.cron_zone(name text) returns text
language c strict stable parallel safe as 'MODULE_PATHNAME', 'ojs_cron_zone';

-- The first run after a moment, and the local times before it that clocks are put forward over.
create function ojs_store.cron_next(
    expression text, timezone text, anchor timestamptz, after timestamptz,
    out run_at timestamptz, out skip_at timestamptz, out skipped_local text, out skipped int
) language c strict stable parallel safe as 'MODULE_PATHNAME', 'ojs_cron_next';

-- When the clocks of a zone are next set back, and by how much; null where they never are.
create function ojs_store.cron_set_back(timezone text, after timestamptz, out at timestamptz, out length interval)
language c strict stable parallel safe as 'MODULE_PATHNAME', 'ojs_cron_set_back';

-- When an entry next rests since clocks are set back: it runs before the hour that comes twice and after it, but not
-- while that hour comes again.
create function ojs_store.cron_rest(expression text, timezone text, after timestamptz, out at timestamptz,
    out length interval)
language plpgsql stable parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    back record := ojs_store.cron_set_back(timezone, after);
    blink constant interval := '1 us';
    run timestamptz := (ojs_store.cron_next(expression, timezone, after, back.at - back.length - blink)).run_at;
    later timestamptz := (ojs_store.cron_next(expression, timezone, after, back.at - blink)).run_at;
begin
    if run < back.at and later >= back.at + back.length and later < back.at + 2 * back.length then
        at := back.at;
        length := back.length;
    end if;
end $$;

-- REGISTRATION -----------------------------------------------------------------------------------------------------

-- What a run pushes: the job, with whose it is and when in its meta.
create function ojs_store.cron_envelope(entry ojs_store.cron, scheduled_at timestamptz, triggered_at timestamptz)
    returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select (entry).job #- '{options,meta}' || jsonb_build_object('meta',
        coalesce(nullif((entry).job -> 'meta', 'null'), nullif((entry).job #> '{options,meta}', 'null'),
            '{}') || jsonb_build_object(
            'cron_name', (entry).name, 'cron_triggered_at', ojs_store.cron_time(triggered_at),
            'cron_scheduled_at', ojs_store.cron_time(scheduled_at)))
$$;

create function ojs_store.cron_time(at timestamptz) returns text
language sql stable strict parallel safe set search_path = pg_catalog, pg_temp as $$
    select to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
$$;

-- An entry as JSON: by the names of the Cron document, and by those that clients of the HTTP binding use.
create function ojs_store.cron_json(entry ojs_store.cron) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object(
        'name', (entry).name,
        'cron', (entry).expression,
        'expression', (entry).expression,
        'timezone', (entry).timezone,
        'type', (entry).job -> 'type',
        'args', case jsonb_typeof((entry).job -> 'args') when 'object' then jsonb_build_array((entry).job -> 'args')
            when 'array' then (entry).job -> 'args' else '[]' end, -- as push reads it (R-01)
        'options', (entry).job - '{type,args,options}'::text[] || coalesce(nullif((entry).job -> 'options',
            'null'), '{}'),
        'job_template', (entry).job,
        'overlap_policy', (entry).overlap_policy,
        'enabled', (entry).enabled,
        'description', (entry).description,
        'next_run_at', ojs_store.cron_time((entry).next_run_at),
        'last_run_at', ojs_store.cron_time((entry).last_run_at),
        'run_count', (entry).run_count,
        'created_at', ojs_store.cron_time((entry).created_at))
$$;

-- The entry with the options given; null counts as absent.
create function ojs_store.cron_with(entry ojs_store.cron, options jsonb) returns ojs_store.cron
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    policies constant jsonb
        := '{"skip": "skip", "allow": "allow", "cancel_previous": "cancel_previous", "enqueue": "enqueue",
        "queue": "enqueue", "replace": "cancel_previous"}';
    field text;
    value jsonb;
    wanted text;
begin
    if jsonb_typeof(options) <> 'object' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'options must be a JSON object', '{"field": "options"}',
            'Give options such as {"timezone": "Europe/Berlin"}.');
    end if;
    for field, value in select * from jsonb_each(options) loop
        wanted := case field when 'enabled' then 'boolean' else 'string' end;
        if field in ('name', 'next_run_at', 'last_run_at', 'run_count', 'created_at') then
            continue;
        elsif field not in ('timezone', 'enabled', 'overlap_policy', 'description') then
            perform ojs_store.raise('INVALID_PAYLOAD',
                format('options holds "%s", which is no option of a cron entry', left(field, 64)),
                jsonb_build_object('field', left(field, 64)),
                    'Options are timezone, enabled, overlap_policy and description.');
        elsif jsonb_typeof(value) not in ('null', wanted) then
            perform ojs_store.raise('INVALID_PAYLOAD', format('%s must be a %s', field, wanted),
                jsonb_build_object('field', field), format('Give a JSON %s, or leave it out.', wanted));
        end if;
    end loop;
    if options ->> 'timezone' is not null then
        entry.timezone := ojs_store.cron_zone(options ->> 'timezone');
    end if;
    entry.enabled := coalesce((options ->> 'enabled')::boolean, entry.enabled);
    entry.description := coalesce(options ->> 'description', entry.description);
    if options ->> 'overlap_policy' is not null then
        entry.overlap_policy := policies ->> (options ->> 'overlap_policy');
        if entry.overlap_policy is null then
            perform ojs_store.raise('INVALID_PAYLOAD',
                format('overlap_policy is not known: "%s"', left(options ->> 'overlap_policy', 64)),
                '{"field": "overlap_policy"}', 'Give skip, allow, cancel_previous or enqueue.');
        end if;
    end if;
    return entry;
end $$;

-- What an administrator says of an entry, without the arguments of its job, which are not for an audit.
create function ojs_store.cron_settings(entry ojs_store.cron) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('expression', entry.expression, 'timezone', entry.timezone, 'enabled', entry.enabled,
        'overlap_policy', entry.overlap_policy, 'description', entry.description, 'type', entry.job -> 'type',
        'queue', coalesce(entry.job #> '{options,queue}', entry.job -> 'queue'))
$$;

/*
 * Works out anew when an entry is run next, where that lies more than one period ahead: a clock that was wrong said so.
 * The next time itself may have been used already, by a clock that was ahead by a little.
 */
create function ojs_store.plan_cron(entry ojs_store.cron, at timestamptz) returns ojs_store.cron
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    next record := ojs_store.cron_next(entry.expression, entry.timezone, entry.anchor_at, at);
begin
    if entry.next_run_at > (ojs_store.cron_next(entry.expression, entry.timezone, entry.anchor_at, next.run_at)).run_at
    then
        entry.next_run_at := next.run_at;
        entry.skip_at := next.skip_at;
        entry.planned_at := at;
        entry.due_at := least(entry.next_run_at, entry.skip_at);
    elsif entry.planned_at > at then
        entry.planned_at := at;
        entry.due_at := least(entry.next_run_at, entry.skip_at);
    end if;
    return entry;
end $$;

create function ojs.schedule(name text, cron text, job jsonb, options jsonb default '{}') returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    entry ojs_store.cron;
    before ojs_store.cron;
    next record;
    rest record;
    existed boolean;
    at timestamptz := ojs_store.now();
begin
    perform ojs_store.refuse_tenant('ojs.schedule()');
    if name is null or name !~ '^[a-z0-9][a-z0-9.-]{0,254}$' then
        perform ojs_store.raise('INVALID_PAYLOAD',
            'name must be 1 to 255 characters of a-z, 0-9, "-" and ".", and begin with a letter or a digit',
            '{"field": "name"}', 'Give a name such as daily-report.');
    end if;
    loop
        select * into entry from ojs_store.cron c where c.name = schedule.name for update;
        existed := found;
        perform ojs_store.use_queue(ojs_store.queue_of(entry.job), 'produce') where existed;
        if not existed then
            if cron is null and job is null then
                perform ojs_store.raise('NOT_FOUND', format('cron entry "%s" does not exist', left(name, 64)),
                    jsonb_build_object('cron', left(name, 128)), 'Register it with ojs.schedule(name, cron, job).');
            end if;
            entry := (name, null, 'UTC', true, 'skip', null, null, at, at, null, null, null, null, 0, at);
        end if;
        before := entry;
        if cron is not null and job is not null then -- registered anew: only `enabled` stays
            entry.timezone := 'UTC';
            entry.overlap_policy := 'skip';
            entry.description := null;
        end if;
        entry.expression := coalesce(cron, entry.expression);
        entry.job := coalesce(job, entry.job);
        if entry.expression is null then
            perform ojs_store.raise('INVALID_CRON_EXPRESSION', 'cron must not be null', '{"field": "cron"}',
                'Give an expression such as 0 9 * * *.');
        elsif entry.job is null then
            perform ojs_store.raise('INVALID_PAYLOAD', 'job must not be null', '{"field": "job"}',
                'Give a job such as {"type": "report.generate", "args": []}.');
        end if;
        entry := ojs_store.cron_with(entry, coalesce(options, '{}'));
        if job is not null then
            if jsonb_typeof(job) = 'object' and coalesce(job ->> 'args', job #>> '{options,args}') is null then
                entry.job := job || '{"args": []}';
            end if;
            -- As a push would see it; first as it was given, so that errors speak of what the caller knows.
            perform ojs_store.use_queue(ojs_store.queue_of(entry.job), 'produce');
            perform ojs.fingerprint(entry.job);
            if coalesce(entry.job ->> 'id', entry.job #>> '{options,id}') is not null then
                perform ojs_store.raise('INVALID_PAYLOAD',
                    'id cannot be chosen for a job that is pushed again and again', '{"field": "id"}', 'Leave it out.');
            end if;
            perform ojs.fingerprint(ojs_store.cron_envelope(entry, at, at));
        end if;
        next := ojs_store.cron_next(entry.expression, entry.timezone, at, at);
        -- Registered anew as it is, as an application does at each start, it keeps its time, if the clock agrees.
        if not existed or (entry.expression, entry.timezone, entry.enabled) is distinct from (before.expression,
            before.timezone, before.enabled) then
            entry.anchor_at := at;
            entry.next_run_at := case when entry.enabled then next.run_at end;
            entry.skip_at := case when entry.enabled then next.skip_at end;
            entry.due_at := least(entry.next_run_at, entry.skip_at);
            entry.planned_at := at;
        else
            entry := ojs_store.plan_cron(entry, at);
        end if;
        if existed then
            update ojs_store.cron c set
                expression = entry.expression, timezone = entry.timezone, enabled = entry.enabled,
                overlap_policy = entry.overlap_policy, description = entry.description, job = entry.job,
                anchor_at = entry.anchor_at, next_run_at = entry.next_run_at, skip_at = entry.skip_at,
                    due_at = entry.due_at, planned_at = entry.planned_at
            where c.name = schedule.name;
            exit;
        end if;
        insert into ojs_store.cron select entry.* on conflict do nothing;
        exit when found;
    end loop;
    if not existed or entry is distinct from before then
        perform ojs_store.record_act('cron_set', name,
            jsonb_build_object('cron_name', name, 'cron_expr', entry.expression, 'enabled', entry.enabled,
                'queue', ojs_store.queue_of(entry.job)),
            case when existed then ojs_store.cron_settings(before) end, ojs_store.cron_settings(entry));
        rest := ojs_store.cron_rest(entry.expression, entry.timezone, at);
        if rest.at is not null and ((entry.expression, entry.timezone)
            is distinct from (before.expression, before.timezone) or not existed) then
            raise notice 'cron entry "%" pauses for % when clocks are set back, next at %', name, rest.length,
                ojs_store.cron_time(rest.at)
                using hint = 'An hour that comes twice counts once. Use the time zone UTC, or @every, where no run may '
                    'be left out.';
        end if;
    end if;
    perform ojs_store.ask_for_worker();
    return ojs_store.cron_json(entry) || jsonb_build_object('created', not existed);
end $$;
comment on function ojs.schedule(text, text, jsonb, jsonb)
    is 'Registers a job that is pushed by the clock, or with null for cron or job changes one: what is left out stays';

create function ojs.unschedule(name text) returns boolean
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    of_queue text;
begin
    perform ojs_store.refuse_tenant('ojs.unschedule()');
    delete from ojs_store.cron c where c.name = unschedule.name returning ojs_store.queue_of(c.job) into of_queue;
    if not found then
        return false;
    end if;
    perform ojs_store.use_queue(of_queue, 'produce');
    delete from ojs_store.cron_run r where r.cron = unschedule.name
        and not exists (select from ojs_store.cron_run w where w.cron = unschedule.name and w.waiting);
    perform ojs_store.record_act('cron_removed', name, jsonb_build_object('cron_name', name, 'queue', of_queue));
    return true;
end $$;
comment on function ojs.unschedule(text) is 'Removes a cron entry and leaves its jobs alone; false if there is none';

create view ojs.crons with (security_barrier) as
select name, expression, timezone, enabled, overlap_policy, description, job, next_run_at, last_run_at, run_count,
    created_at
from ojs_store.cron
where ojs_store.may_read_cron(job);
comment on view ojs.crons is 'Jobs by the clock: what is pushed when, and when it was last';

-- RUNS -------------------------------------------------------------------------------------------------------------

-- By the names of the Cron document, and by those of the catalog of events (R-61).
create function ojs_store.cron_event(entry ojs_store.cron, type text, data jsonb) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.record_event(type, entry.name, jsonb_build_object('cron_name', entry.name,
        'cron_expr', entry.expression, 'cron_expression', entry.expression, 'timezone', entry.timezone, 'job_type',
            entry.job -> 'type',
        'queue', ojs_store.queue_of(entry.job) || coalesce('@' || (entry.job #>> '{meta,tenant_id}'), ''))
        || data || jsonb_strip_nulls(jsonb_build_object('scheduled_at', data -> 'scheduled_time', 'existing_job_id',
            data -> 'active_job_id')));
end $$;

create function ojs_store.is_open(job_id uuid) returns boolean
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select coalesce((ojs_store.look(job_id)).state not in ('completed', 'cancelled', 'discarded'), false)
$$;

-- As ojs.push_job, of a job whose names were checked when it was registered, by the rules of then: one that has run
-- every night goes on after an update that refuses more.
create function ojs_store.push_stored(job jsonb) returns jsonb
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_push_stored';

-- One run: overlap first, then the push with all that belongs to it.
create function ojs_store.run_cron(entry ojs_store.cron, at timestamptz) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    scheduled constant jsonb := jsonb_build_object('scheduled_time', ojs_store.cron_time(entry.next_run_at));
    envelope jsonb := ojs_store.cron_envelope(entry, entry.next_run_at, at);
    open uuid[] := '{}';
    seen timestamptz := 'infinity'; -- runs were looked at up to here
    run ojs_store.cron_run;
    waits boolean := false;
    pushed jsonb;
begin
    if entry.overlap_policy <> 'allow' then
        for run in select * from ojs_store.cron_run r where r.cron = entry.name order by r.scheduled_at loop
            if ojs_store.is_open(run.job_id) then
                open := open || run.job_id;
                if entry.overlap_policy = 'enqueue' and cardinality(open) > 2 then
                    seen := run.scheduled_at;
                    exit;
                end if;
            end if;
        end loop;
    end if;
    if open <> '{}' then
        case entry.overlap_policy
        when 'skip' then
            perform ojs_store.cron_event(entry, 'cron.skipped',
                scheduled || jsonb_build_object('reason', 'overlap_skip', 'active_job_id', open[1]));
            return;
        when 'cancel_previous' then
            perform ojs.cancel(j, true) from unnest(open) j;
            open := '{}';
        else
            waits := true;
            envelope := envelope #- '{options,pending}' || '{"pending": true}';
            if cardinality(open) > 2 then
                raise warning 'cron entry "%" has more than two jobs that are not finished', entry.name;
            end if;
        end case;
    end if;

    pushed := ojs_store.push_stored(envelope);
    if pushed is null or pushed -> 'dropped' = 'true' or pushed -> 'deduplicated' = 'true' then
        perform ojs_store.cron_event(entry, 'cron.skipped', scheduled || jsonb_strip_nulls(jsonb_build_object(
            'reason', case when pushed -> 'deduplicated' = 'true' then 'duplicate' else 'dropped' end, 'job_id',
                pushed -> 'id')));
        return;
    end if;
    delete from ojs_store.cron_run r
    where r.cron = entry.name and r.scheduled_at <= seen and r.job_id <> all (open)
        and not (r.waiting and entry.overlap_policy = 'allow');
    insert into ojs_store.cron_run (cron, job_id, scheduled_at, waiting)
    values (entry.name, (pushed ->> 'id')::uuid, entry.next_run_at, waits);
    update ojs_store.cron c set last_run_at = at, run_count = c.run_count + 1 where c.name = entry.name;
    perform ojs_store.cron_event(entry, 'cron.triggered', scheduled || jsonb_build_object('job_id', pushed -> 'id',
        'job_type', pushed -> 'type', 'run_count', entry.run_count + 1, 'actual_time', ojs_store.cron_time(at)));
end $$;

-- Lets go the first of the jobs that wait for the run before theirs. Whoever has its row is alone with the name.
create function ojs_store.release_cron_job(name text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    first uuid;
begin
    select r.job_id into first from ojs_store.cron_run r where r.cron = name and r.waiting
        order by r.scheduled_at limit 1;
    perform from ojs_store.cron_run r where r.job_id = first and r.waiting for update skip locked;
    if not found then
        return;
    end if;
    if exists (select from ojs_store.cron_run r where r.cron = name and not r.waiting and ojs_store.is_open(r.job_id))
        and not exists (select from ojs_store.cron c where c.name = release_cron_job.name
            and c.overlap_policy = 'allow') then
        return;
    end if;
    begin
        perform ojs.activate(first);
    exception when others then
        -- Somebody was faster: it is no longer pending. What is merely locked is tried again.
        if sqlstate not like 'OJ%' then
            return;
        end if;
    end;
    update ojs_store.cron_run r set waiting = false where r.job_id = first;
    delete from ojs_store.cron_run r where r.cron = name and r.job_id <> first and not r.waiting;
    delete from ojs_store.cron_run r where r.cron = name
        and not exists (select from ojs_store.cron c where c.name = release_cron_job.name)
        and not exists (select from ojs_store.cron_run w where w.cron = release_cron_job.name and w.waiting);
end $$;

/*
 * Puts right what a clock that was ahead has worked out, and runs entries that are due, each in a subtransaction: what
 * one of them cannot do is no other's business. A run that met a lock or a shortage of the server is tried again after
 * a second. Whatever else fails in a run, that run is over. An entry that cannot be read any more, since its time zone
 * is gone, is disabled. Nobody waits here for long for a lock that an open transaction has.
 */
create function ojs_store.run_crons(at timestamptz, budget int) returns int
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms' set ojs.block_timeout = 0 as $$
declare
    most_released constant int := 10;
    entry ojs_store.cron;
    next record;
    skipped record;
    readable boolean;
    failed boolean;
    n int := 0;
    name text;
    state text;
    message text;
    detail text;
begin
    for entry in
        select * from ojs_store.cron c where c.planned_at > at order by c.planned_at desc limit budget
            for update skip locked
    loop
        begin
            entry := ojs_store.plan_cron(entry, at);
        exception when others then -- its run says what is wrong with it
            entry.planned_at := at;
            entry.due_at := least(entry.due_at, at);
        end;
        update ojs_store.cron c set next_run_at = entry.next_run_at, skip_at = entry.skip_at, due_at = entry.due_at,
            planned_at = entry.planned_at
        where c.name = entry.name;
    end loop;

    for entry in
        select * from ojs_store.cron c where c.due_at <= at order by c.due_at limit budget for update skip locked
    loop
        n := n + 1;
        readable := false;
        failed := false;
        begin
            next := ojs_store.cron_next(entry.expression, entry.timezone, entry.anchor_at, at);
            skipped := ojs_store.cron_next(entry.expression, entry.timezone, entry.anchor_at,
                coalesce(entry.skip_at, at) - interval '1 microsecond');
            readable := true;
            if entry.next_run_at <= at then
                perform ojs_store.run_cron(entry, at);
            end if;
        exception when others then
            get stacked diagnostics state = returned_sqlstate, message = message_text, detail = pg_exception_detail;
            failed := true;
        end;
        if failed and state ~ '^(40|53|57|58|55P03)' then
            if state ~ '^5[378]' then
                raise warning 'cron entry "%" is tried again in a second: %', entry.name, message;
            end if;
            update ojs_store.cron c set due_at = at + interval '1 second', planned_at = at where c.name = entry.name;
            continue;
        end if;
        if entry.skip_at <= at and readable then
            perform ojs_store.cron_event(entry, 'cron.skipped', jsonb_build_object('reason', 'dst_skip',
                'scheduled_time', ojs_store.cron_time(entry.skip_at), 'local_time', skipped.skipped_local,
                    'occurrences', skipped.skipped));
        end if;
        if failed then
            if state !~ '^OJ[36]' then -- neither a duplicate nor a full queue: something is wrong
                raise warning 'cron entry "%" did not run: %', entry.name, message;
            end if;
            perform ojs_store.cron_event(entry, 'cron.skipped', jsonb_build_object(
                'reason', case when readable then 'push_failed' else 'disabled' end,
                'scheduled_time', ojs_store.cron_time(entry.next_run_at), 'message', message,
                'code', coalesce(case when state like 'OJ%' then substring(detail from '"code": *"([A-Z_]+)"')
                    end, state)));
        end if;
        if readable then
            update ojs_store.cron c set next_run_at = next.run_at, skip_at = next.skip_at,
                due_at = least(next.run_at, next.skip_at), planned_at = at
            where c.name = entry.name;
        else
            update ojs_store.cron c set enabled = false, next_run_at = null, skip_at = null,
                due_at = null, planned_at = at where c.name = entry.name;
        end if;
    end loop;

    for name in
        with recursive waiting(cron) as (
            select min(r.cron) from ojs_store.cron_run r where r.waiting
            union all
            select (select min(r.cron) from ojs_store.cron_run r where r.waiting and r.cron > w.cron)
            from waiting w
            where w.cron is not null)
        select w.cron
        from waiting w
        where w.cron is not null
            and (exists (select from ojs_store.cron c where c.name = w.cron and c.overlap_policy = 'allow')
                or not exists (select from ojs_store.cron_run p where p.cron = w.cron and not p.waiting
                    and ojs_store.is_open(p.job_id)))
        limit most_released
    loop
        begin
            perform ojs_store.release_cron_job(name);
        exception when others then
            get stacked diagnostics message = message_text;
            raise warning 'cron entry "%" could not release its next job: %', name, message;
        end;
    end loop;
    return n;
end $$;
