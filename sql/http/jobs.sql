-- jobs.sql: one job over HTTP: pushing, looking, cancelling, activating; and what administrators may do to it.

-- What the last push of this session is to be warned of: depth, bound and pressure of a queue; null where nothing.
create function ojs_http.pressure() returns jsonb
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_push_pressure';

create function ojs_http.pressure_headers() returns jsonb
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_strip_nulls(jsonb_build_object('X-OJS-Queue-Depth', p ->> 'depth', 'X-OJS-Queue-Bound', p ->> 'bound',
        'X-OJS-Queue-Pressure', p ->> 'pressure'))
    from ojs_http.pressure() p
$$;

-- How long the push of a request may wait at the bound of a queue; what it was before comes back.
create function ojs_http.set_block_timeout(request ojs_http.request) returns text
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    before text := coalesce(current_setting('ojs.block_timeout', true), '-1'); -- unknown until the library is loaded
    seconds text := request.headers ->> 'ojs-block-timeout';
begin
    if seconds !~ '^[0-9]{1,9}([.][0-9]+)?$' then
        perform ojs_http.raise('INVALID_PAYLOAD', 'OJS-Block-Timeout is no number of seconds',
            '{"field": "OJS-Block-Timeout"}',
            'Send a number from 0 to 30.');
    end if;
    if not ojs_http.may_wait(request) then
        perform set_config('ojs.block_timeout', '0', true);
    elsif seconds is not null then
        perform set_config('ojs.block_timeout', least(seconds::numeric * 1000, 30000)::int::text, true);
    end if;
    return before;
end $$;

-- What a job's limits on starts leave at the moment: the one of which the least is left. A job that asks for more than
-- that is pushed all the same, and waits.
create function ojs_http.limit_headers(job jsonb) returns jsonb
language plpgsql volatile parallel unsafe security definer set enable_seqscan = off set enable_bitmapscan = off
set search_path = pg_catalog, pg_temp as $$
declare
    moment timestamptz := ojs_http.now();
    said jsonb;
begin
    if (job ? 'rate_limit') is not true then
        return '{}';
    end if;
    select jsonb_build_object('X-RateLimit-Limit', used.allowed::text, 'X-RateLimit-Remaining', used.remaining::text,
        'X-RateLimit-Reset', ceil(extract(epoch from case when used.remaining > 0 then moment else used.free_at
            end))::text)
    into said
    from jsonb_array_elements(case jsonb_typeof(job -> 'rate_limit') when 'array' then job -> 'rate_limit'
        else jsonb_build_array(job -> 'rate_limit') end) as stated(config)
    cross join lateral (select coalesce(stated.config ->> 'key', 'queue:' || (job ->> 'queue')) as name) as said
    cross join lateral (select said.name || case when current_setting('ojs.tenancy') = 'off' then ''
        else coalesce('@' || coalesce(ojs_store.caller_tenant(), job #>> '{meta,tenant_id}'), '') end as name) as key
    left join lateral (
        select r.config from ojs_store.rate_limit r
        where r.key = key.name and r.config is not null and (r.until is null or r.until > moment)
            order by r.set_at desc limit 1
    ) set_ on true
    cross join lateral ojs_store.limit_numbers(stated.config, set_.config) n
    cross join lateral ojs_store.starts_since(ojs_store.name_hash(key.name),
        moment - coalesce(n.rate_period, n.throttle_period)) starts
    cross join lateral (
        select coalesce(n.rate, n.throttle) as allowed,
            greatest(coalesce(n.rate, n.throttle) - coalesce(starts.n, 0), 0) as remaining,
            case when n.rate is not null then starts.oldest + n.rate_period
                else starts.newest + n.throttle_period / greatest(n.throttle, 1) end as free_at
    ) used
    where used.allowed is not null
        -- a producer may ask about any job, also about one that never was
        and (said.name not like 'queue:%' or ojs_store.may_use_queue(substr(said.name, 7), 'produce'))
    order by used.remaining, used.free_at desc
    limit 1;
    return jsonb_strip_nulls(coalesce(said, '{}'));
end $$;

-- The job that a push has made or found; only its id, if its queue is not for the caller.
create function ojs_http.pushed_job(job_id uuid) returns jsonb
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_pushed_job';

-- What the pushes of this request were warned of.
create function ojs_http.schema_warnings() returns jsonb
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_schema_warnings';

create function ojs_http.batch_warnings() returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    warnings jsonb := ojs_http.schema_warnings();
begin
    return case when warnings is null then '{}' else jsonb_build_object('warnings', warnings) end;
end $$;

create function ojs_http.push(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    job jsonb := ojs_http.object(request);
    before text := ojs_http.set_block_timeout(request);
    warnings jsonb;
begin
    perform ojs_http.check_args(job, null);
    job := ojs.push_job(job);
    warnings := ojs_http.batch_warnings();
    perform set_config('ojs.block_timeout', before, true);
    if job -> 'dropped' = 'true' then
        return ojs_http.reply(200, job);
    end if;
    -- A key that a batch holds has no job to name.
    return ojs_http.reply(case when job -> 'deduplicated' = 'true' then 200 else 201 end,
        jsonb_build_object('job', case when warnings = '{}' then job else job - 'warnings' end, 'deduplicated',
            job -> 'deduplicated') || warnings,
        jsonb_strip_nulls(jsonb_build_object('Location',
            '/ojs/v1/jobs/' || (job ->> 'id'))) || ojs_http.pressure_headers()
            || ojs_http.limit_headers(job));
end $$;

create function ojs_http.info(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    id uuid := ojs_http.job_named(request, null);
    job jsonb;
begin
    perform ojs_http.upkeep();
    job := ojs.info(id);
    return ojs_http.reply(200, jsonb_build_object('job', job),
        case when job ->> 'state' not in ('completed', 'cancelled', 'discarded') then '{"Retry-After": "1"}' else '{}'
            end::jsonb);
end $$;

create function ojs_http.lineage(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    return ojs_http.reply(200, ojs.lineage(ojs_http.job_named(request, null)));
end $$;

-- As the Admin API shows a job: what it does not have is there, too.
create function ojs_http.admin_job(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    job jsonb := (ojs_http.info(request)).body -> 'job';
begin
    return ojs_http.reply(200, '{"errors": [], "result": null}' || job || jsonb_build_object('retry_policy',
        job -> 'retry', 'metadata', (select jsonb_object_agg(name, job -> name)
            from unnest('{created_at,enqueued_at,started_at,scheduled_at,'
                'completed_at,cancelled_at,discarded_at}'::text[]) name)));
end $$;

-- Of a job that waits the priority may change.
create function ojs_http.change_job(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    id uuid := ojs_http.job_named(request, null);
    priority numeric := ojs_http.field(body, 'priority', 'number', true)::numeric;
    job jsonb;
begin
    perform ojs_http.only(body, 'priority');
    if priority <> trunc(priority) or abs(priority) > 1000000 then
        perform ojs_http.raise('INVALID_PAYLOAD', 'priority must be a whole number', '{"field": "priority"}',
            'Give a number from -100 to 100.');
    end if;
    job := ojs.envelope(ojs.set_priority(id, priority::int));
    return ojs_http.reply(200, job || jsonb_build_object('job', job));
end $$;

create function ojs_http.cancel(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, jsonb_build_object('job', ojs.envelope(ojs.cancel(ojs_http.job_named(request, null)))))
$$;

create function ojs_http.activate(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, jsonb_build_object('job',
        ojs.envelope(ojs.activate(ojs_http.job_named(request, null))) || jsonb_build_object('previous_state',
            'pending')))
$$;

-- Under /admin a cancelled job, too, is tried again: the Admin API wants it so.
create function ojs_http.retry(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    id uuid := ojs_http.job_named(request, null);
    admin boolean := request.path ~ '^/ojs/v1/admin/jobs/';
    body jsonb := ojs_http.object(request, false);
    override jsonb := coalesce(ojs_http.field(body, 'override', 'object'), body - 'override');
    job jsonb;
begin
    perform ojs_http.check_args(override, null) where override -> 'args' <> 'null';
    job := ojs.envelope(case when admin then ojs_http.retry_ended(id, coalesce(override, '{}'))
        else ojs.retry(id, override) end);
    return ojs_http.reply(200, jsonb_build_object('job',
        job || jsonb_strip_nulls(jsonb_build_object('re_enqueued_at', job -> 'enqueued_at'))));
end $$;

create function ojs_http.discard(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, jsonb_build_object('job', ojs.envelope(
        ojs.discard(ojs_http.job_named(request, null),
            ojs_http.text_field(ojs_http.object(request, false), 'reason')))))
$$;

create function ojs_http.no_such_job(id uuid) returns void
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.raise('NOT_FOUND', format('job %s does not exist', id),
        jsonb_build_object('resource_type', 'job', 'resource_id', id, 'job_id', id),
        'Check the id; finished jobs are removed after their retention.')
$$;

create function ojs_http.delete_job(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    id uuid := ojs_http.job_named(request, null);
begin
    if not ojs.delete_job(id) then
        perform ojs_http.no_such_job(id);
    end if;
    return ojs_http.reply(204, null);
end $$;

create function ojs_http.explain(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    id uuid := ojs_http.job_named(request, null);
begin
    perform ojs_http.upkeep();
    return ojs_http.reply(200, jsonb_build_object('job_id', id, 'explanation', ojs.explain_job(id)));
end $$;

-- In the order of its life, in which the view has them not.
create function ojs_http.events_of(job_id uuid, most int) returns jsonb[]
language sql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select array(
        select jsonb_build_object('specversion', '1.0', 'id', ojs_store.event_id(e.at, e.identity), 'type', e.type,
            'source', 'ojs://' || ojs_store.uri_part(current_database()::text) || '/' || e.source,
            'time', ojs_http.rfc3339(e.at), 'subject', e.subject, 'data', e.data)
        from ojs_store.all_events e
        where e.job_id = $1 and ojs_store.may_use_queue(e.queue_id, 'read')
        order by e.written_at, e.deliveries, e.rank limit most)
$$;

-- The events of a job as far as they are kept, the oldest first.
create function ojs_http.job_history(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    wanted uuid := ojs_http.job_named(request, null);
    most int := ojs_http.query_number(request, 'limit', 100, 1, 200);
    events jsonb[];
begin
    perform ojs.info(wanted);
    events := ojs_http.events_of(wanted, most + 1);
    return ojs_http.reply(200, jsonb_build_object('job_id', wanted, 'events', to_jsonb(events[:most]),
        'has_more', cardinality(events) > most));
end $$;

-- DEAD LETTERS -----------------------------------------------------------------------------------------------------

-- The dead letter of the path; NOT_FOUND for any other job, too.
create function ojs_http.dead_letter_named(request ojs_http.request) returns ojs.job
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    wanted uuid := ojs_http.job_id(request.names[1], true);
    job ojs.job;
begin
    select * into job from ojs.dead_letters d where d.id = wanted;
    if not found then
        perform ojs_http.raise('NOT_FOUND', format('dead letter job %s does not exist', wanted),
            jsonb_build_object('resource_type', 'dead_letter_job', 'resource_id', wanted),
                'GET /ojs/v1/dead-letter lists them.');
    end if;
    return job;
end $$;

create function ojs_http.dead_letter(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, jsonb_build_object('job', ojs.envelope(ojs_http.dead_letter_named(request))))
$$;

create function ojs_http.retry_dead_letter(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.dead_letter_named(request);
    return ojs_http.retry(request);
end $$;

create function ojs_http.delete_dead_letter(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    job ojs.job := ojs_http.dead_letter_named(request);
begin
    perform ojs.delete_job(job.id);
    return ojs_http.reply(200, jsonb_build_object('deleted', true, 'job_id', job.id));
end $$;

create function ojs_http.delete_dead_letter_flat(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.delete_dead_letter(request);
    return ojs_http.reply(204, null);
end $$;
