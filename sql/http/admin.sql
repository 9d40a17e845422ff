-- admin.sql: what administrators look at: lists by pages and filters.

-- A page by number: its entries, and how many there are in all.
create function ojs_http.numbered_page(request ojs_http.request, entries jsonb[], total bigint,
    more jsonb default '{}') returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, jsonb_build_object('items', coalesce(to_jsonb(entries), '[]'), 'pagination',
        jsonb_build_object('total', total,
        'page', ojs_http.query_number(request, 'page', 1, 1, 1000000), 'per_page',
            ojs_http.query_number(request, 'per_page', 20, 1, 100))) || more)
$$;

create function ojs_http.page_start(request ojs_http.request) returns int
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select (ojs_http.query_number(request, 'page', 1, 1, 1000000) - 1) * ojs_http.query_number(request, 'per_page',
        20, 1, 100)
$$;

create function ojs_http.query_time(request ojs_http.request, name text) returns timestamptz
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.time_value(nullif(request.query ->> name, ''), name)
$$;

-- One of several words, or null.
create function ojs_http.query_word(request ojs_http.request, name text, variadic words text[]) returns text
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    given text := nullif(request.query ->> name, '');
begin
    if given <> all (words) then
        perform ojs_http.raise('INVALID_PAYLOAD', format('%s has no such value', name),
            jsonb_build_object('field', name),
            format('Give one of %s.', array_to_string(words, ', ')));
    end if;
    return given;
end $$;

-- JOBS -------------------------------------------------------------------------------------------------------------

-- What a list is to show, for ojs_store.listed_ids().
create function ojs_http.list_filter(request ojs_http.request, more jsonb) returns jsonb
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_strip_nulls(more || jsonb_build_object('queue', nullif(request.query ->> 'queue', ''), 'type',
        nullif(request.query ->> 'type', ''),
        'since', ojs_http.query_time(request, 'since'), 'until', ojs_http.query_time(request, 'until')))
$$;

-- A page of such jobs, sorted as the request asks. What does not fit is shown abridged.
create function ojs_http.job_page(request ojs_http.request, filter jsonb) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    sort text := coalesce(ojs_http.query_word(request, 'sort', 'created_at', 'scheduled_at', 'priority'), 'created_at');
    direction text := ojs_http.query_word(request, 'order', 'asc', 'desc');
    most int := ojs_http.query_number(request, 'per_page', 20, 1, 100);
    skipped int := ojs_http.page_start(request);
    entries jsonb[];
begin
    select array_agg(case when sized.bytes <= ojs_http.most_bytes() then sized.job else ojs_http.abridged(sized.job)
        end order by sized.n) into entries
    from (
        select page.job, page.n, sum(pg_column_size(page.job)) over (order by page.n) as bytes
        from (
            select listed.job, listed.place as n
            from ojs_http.listed_jobs(filter || jsonb_build_object('sort', sort, 'ascending',
                coalesce(direction = 'asc', false)), most, skipped) listed
        ) page
    ) sized;
    return ojs_http.numbered_page(request, entries,
        ojs_http.total_listed(filter, most, skipped, coalesce(cardinality(entries), 0)));
end $$;

-- By pages in any order, or by cursor, the newest first.
create function ojs_http.admin_jobs(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    filter jsonb := ojs_http.list_filter(request, jsonb_build_object('state',
        ojs_http.query_word(request, 'state', 'available', 'scheduled', 'retryable', 'pending', 'active', 'completed',
            'cancelled', 'discarded')));
begin
    perform ojs_http.upkeep();
    if not request.query ?| '{cursor,limit}' then
        return ojs_http.job_page(request, filter);
    end if;
    perform ojs_http.only(request.query, 'cursor', 'limit', 'queue', 'state', 'type', 'since', 'until');
    return ojs_http.job_list(request, 'items', filter);
end $$;

-- ACCESS -----------------------------------------------------------------------------------------------------------

-- What the caller may do, so that a user interface offers nothing else.
create function ojs_http.access(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, jsonb_build_object('role', current_user, 'duties', coalesce(jsonb_agg(d.duty), '[]')))
    from (values
        ('produce', 'ojs.push_job(jsonb)'), ('work', 'ojs.ack(uuid, jsonb, text, text)'), ('observe', 'ojs.health()'),
        ('admin', 'ojs.delete_job(uuid)')) as d(duty, function)
    where has_function_privilege(d.function, 'execute')
$$;

-- QUEUES -----------------------------------------------------------------------------------------------------------

create function ojs_http.throughput(completed_last_hour numeric, failed_last_hour numeric) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('processed_per_minute', round(coalesce(completed_last_hour, 0) / 60, 3),
        'failed_per_minute', round(coalesce(failed_last_hour, 0) / 60, 3))
$$;

-- All queues together; rates are means over the last hour.
create function ojs_http.admin_stats(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    stats jsonb;
begin
    perform ojs_http.upkeep();
    select jsonb_build_object(
        'queues', count(*),
        'workers', (select count(*) from ojs.workers where status in ('running', 'quiet', 'terminate')),
        'jobs', jsonb_build_object('available', coalesce(sum(s.available), 0), 'active', coalesce(sum(s.active), 0),
            'scheduled', coalesce(sum(s.scheduled), 0), 'retryable', coalesce(sum(s.retryable), 0), 'pending',
                coalesce(sum(s.pending), 0),
            'completed', coalesce(sum(s.completed), 0), 'cancelled', coalesce(sum(s.cancelled), 0), 'discarded',
                coalesce(sum(s.discarded), 0)),
        'throughput', ojs_http.throughput(sum(s.completed_last_hour), sum(s.failed_last_hour)),
        'maintenance', ojs.health() -> 'maintenance' <> 'null',
        'uptime_seconds', floor(extract(epoch from clock_timestamp() - pg_postmaster_start_time())),
        'computed_at', ojs_http.rfc3339(ojs_http.now()))
    into stats from ojs.queue_stats() s;
    return ojs_http.reply(200, stats);
end $$;

create function ojs_http.stats_history(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    period text := coalesce(ojs_http.query_word(request, 'period', '1m', '5m', '1h', '1d'), '5m');
    step interval := case period when '1m' then '1 min' when '5m' then '5 min' when '1h' then '1 hour' else '1 day' end;
    of_queue text := nullif(request.query ->> 'queue', '');
    until timestamptz := coalesce(ojs_http.query_time(request, 'until'), ojs_http.now());
    since timestamptz := coalesce(ojs_http.query_time(request, 'since'), until - interval '1 hour');
begin
    if of_queue is not null then
        perform ojs.queue_info(of_queue);
    end if;
    perform ojs_http.upkeep();
    return ojs_http.reply(200, jsonb_build_object('period', period, 'data',
        ojs_http.history_of(of_queue, step, since, until)));
end $$;

create function ojs_http.admin_queues(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    entries jsonb[];
begin
    perform ojs_http.upkeep();
    select array_agg(jsonb_build_object('name', p.name, 'state', p.state, 'paused', p.state = 'paused', 'created_at',
        ojs_http.rfc3339(p.created_at),
        'counts', to_jsonb(s) - '{queue,paused,computed_at}'::text[], 'throughput',
            ojs_http.throughput(s.completed_last_hour, s.failed_last_hour)) order by p.name)
    into entries
    from (
        select * from ojs.queues order by name
        limit ojs_http.query_number(request, 'per_page', 20, 1, 100) offset ojs_http.page_start(request)
    ) p, ojs.queue_stats(p.name) s;
    return ojs_http.numbered_page(request, entries, (select count(*) from ojs.queues));
end $$;

create function ojs_http.admin_queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    found_queue ojs_http.response;
    queue jsonb;
begin
    perform ojs_http.upkeep();
    found_queue := ojs_http.queue(request);
    queue := found_queue.body;
    return ojs_http.reply(200, queue || jsonb_build_object('counts', (queue -> 'stats') - '{queue,depth}'::text[],
        'configuration', queue -> 'config',
        'throughput', ojs_http.throughput((queue #> '{stats,completed_last_hour}')::numeric,
            (queue #> '{stats,failed_last_hour}')::numeric),
        'paused', queue -> 'state' = '"paused"'));
end $$;

-- A limit on the queue as a whole lies over what its settings say.
create function ojs_http.set_queue_rate_limit(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs.queue_info(request.names[1]);
    request.names[1] := 'queue:' || request.names[1];
    return ojs_http.set_rate_limit(request);
end $$;

-- WORKERS ----------------------------------------------------------------------------------------------------------

create function ojs_http.admin_workers(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    entries jsonb[];
    summary jsonb;
begin
    with all_of_them as materialized (
        select w as entry, w.worker, w.status from ojs.workers w
    ), page as (
        select * from all_of_them order by worker
        limit ojs_http.query_number(request, 'per_page', 20, 1, 100) offset ojs_http.page_start(request)
    )
    select (select array_agg(ojs_http.worker_json(p.entry) order by p.worker) from page p),
        jsonb_build_object('total', count(*), 'running', count(*) filter (where status = 'running'),
            'quiet', count(*) filter (where status in ('quiet', 'terminate')), 'stale',
                count(*) filter (where status in ('stale', 'dead')))
    into entries, summary from all_of_them;
    return ojs_http.numbered_page(request, entries, (summary ->> 'total')::bigint,
        jsonb_build_object('summary', summary));
end $$;

-- UNIQUE JOBS ------------------------------------------------------------------------------------------------------

-- Uniqueness keys and the newest job of each, as the admin UI lists them.
create function ojs_http.unique_jobs(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    keys record := ojs_http.held_keys(ojs_http.query_number(request, 'per_page', 20, 1, 100),
        ojs_http.page_start(request));
begin
    return ojs_http.numbered_page(request, keys.entries, keys.total);
end $$;

-- OTHER PAGES OF THE ADMIN UI --------------------------------------------------------------------------------------

create function ojs_http.priority_stats(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    distribution jsonb;
begin
    perform ojs.queue_info(request.names[1]);
    if pg_is_in_recovery() then -- which has the logged tables only
        select coalesce(jsonb_agg(jsonb_build_object('priority', n.priority, 'count', n.jobs) order by n.priority desc),
            '[]') into distribution
        from (select j.priority, count(*) as jobs from ojs.jobs j
            where j.queue = request.names[1] and j.state = 'available' group by 1) n;
    else
        distribution := ojs_http.waiting_by_priority(request.names[1]);
    end if;
    return ojs_http.reply(200, jsonb_build_object('queue', request.names[1], 'distribution', distribution));
end $$;

-- DEAD LETTERS -----------------------------------------------------------------------------------------------------

-- What arguments must contain, as JSON: what is no array stands for one of them.
create function ojs_http.query_args(request ojs_http.request) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    args jsonb;
begin
    args := nullif(request.query ->> 'args', '')::jsonb;
    return case when jsonb_typeof(args) = 'array' then args when args is not null then jsonb_build_array(args) end;
exception when data_exception then
    perform ojs_http.raise('INVALID_PAYLOAD', 'args must be JSON', '{"field": "args"}',
        'Give ?args={"customer":7}, encoded.');
end $$;

create function ojs_http.dead_letter_filter(request ojs_http.request) returns jsonb
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.list_filter(request, jsonb_build_object('dead_letters', true, 'error_type',
        nullif(request.query ->> 'error_type', ''),
        'args', ojs_http.query_args(request)))
$$;

create function ojs_http.admin_dead_letters(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.job_page(request, ojs_http.dead_letter_filter(request))
$$;

-- With how long they are kept: those of the queue, or of all queues that say nothing themselves.
create function ojs_http.dead_letter_stats(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    of_queue text := nullif(request.query ->> 'queue', '');
    stats jsonb := ojs.dead_letter_stats(of_queue);
    config jsonb := coalesce((select ojs.queue_info(q.name) -> 'config' from ojs.queues q where q.name = of_queue),
        ojs_http.default_policy());
begin
    return ojs_http.reply(200, stats || jsonb_build_object('retention', jsonb_build_object(
        'max_age', config -> 'dead_letter_ttl', 'max_count', config -> 'dead_letter_max_size')));
end $$;

-- RATE LIMITS ------------------------------------------------------------------------------------------------------

create function ojs_http.rate_limit_json(r ojs.rate_limits) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp set intervalstyle = iso_8601 as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'key', r.key,
        'concurrency', case when r.concurrency is not null then jsonb_build_object(
            'limit', r.concurrency, 'active', r.active, 'available', greatest(r.concurrency - r.active, 0)) end,
        'rate', case when r.rate is not null then jsonb_build_object('limit', r.rate, 'period', r.rate_period::text,
            'current_count', r.started, 'window_resets_at', ojs_http.rfc3339(r.window_resets_at)) end,
        'throttle', case when r.throttle is not null then jsonb_build_object('limit', r.throttle, 'period',
            r.throttle_period::text,
            'next_allowed_at', ojs_http.rfc3339(r.next_allowed_at)) end,
        'paused_until', ojs_http.rfc3339(r.paused_until), 'override', r.override, 'override_expires_at',
            ojs_http.rfc3339(r.override_until),
        'waiting_count', r.waiting,
        -- The narrowest in two words, as the admin UI shows it.
        'limit', coalesce(r.rate, r.throttle, r.concurrency), 'period',
            coalesce(r.rate_period, r.throttle_period)::text,
        'active', r.active, 'waiting', r.waiting))
$$;

create function ojs_http.rate_limits(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    entries jsonb[];
    total bigint;
begin
    select array_agg(ojs_http.rate_limit_json(l.rate_limit)), max(l.total) into entries, total
    from ojs_http.listed_limits(null, ojs_http.query_number(request, 'per_page', 20, 1, 100),
        ojs_http.page_start(request)) l;
    -- A page beyond the last one does not say how many there are.
    total := coalesce(total, (select l.total from ojs_http.listed_limits(null, 1, 0) l), 0);
    return ojs_http.numbered_page(request, entries, total,
        jsonb_build_object('rate_limits', coalesce(to_jsonb(entries), '[]')));
end $$;

create function ojs_http.rate_limit(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    found_limit ojs.rate_limits;
begin
    select (l.rate_limit).* into found_limit from ojs_http.listed_limits(request.names[1], 1, 0) l;
    if not found then
        perform ojs_http.raise('NOT_FOUND', format('rate limit %s does not exist', left(request.names[1], 64)),
            jsonb_build_object('resource_type', 'rate_limit', 'resource_id', left(request.names[1], 64)),
                'GET /ojs/v1/rate-limits lists them.');
    end if;
    return ojs_http.reply(200, ojs_http.rate_limit_json(found_limit));
end $$;

create function ojs_http.set_rate_limit(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    until timestamptz;
begin
    until := ojs_http.time_value(ojs_http.text_field(body, 'expires_at'), 'expires_at');
    if until <= ojs_http.now() then
        perform ojs_http.raise('INVALID_PAYLOAD', 'expires_at is in the past', '{"field": "expires_at"}',
            'Give a time to come, or leave it out.');
    end if;
    perform ojs.set_rate_limit(request.names[1], body - '{key,expires_at}'::text[], until);
    return ojs_http.rate_limit(request);
end $$;

-- Takes back what an administrator has set; what jobs and queues say counts again.
create function ojs_http.unset_rate_limit(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.rate_limit(request);
    perform ojs.set_rate_limit(request.names[1], null);
    return ojs_http.reply(204, null);
end $$;

-- WORKFLOWS --------------------------------------------------------------------------------------------------------

-- The newest first, without those that are members of another.
create function ojs_http.workflows(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    most int := ojs_http.query_number(request, 'limit', 50, 1, 200);
    skipped int := ojs_http.query_number(request, 'offset', 0, 0, 1000000000);
    after uuid := ojs_http.page_key(request, '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$');
    of_state text := ojs_http.query_word(request, 'state', 'running', 'completed', 'failed', 'cancelled');
    entries jsonb[];
    keys text[];
begin
    select array_agg(w.workflow order by w.id desc), array_agg(w.id::text order by w.id desc) into entries, keys
    from ojs_http.listed_workflows(of_state, after, most + 1, skipped) w;
    return ojs_http.page('workflows', entries, keys, null, most, skipped);
end $$;
