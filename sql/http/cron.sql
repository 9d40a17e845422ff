-- cron.sql: cron entries and events over HTTP, events as streams too.

create function ojs_http.cron_json(c ojs.crons) returns jsonb
language sql stable parallel safe set search_path = pg_catalog, pg_temp as $$
    select to_jsonb(c) - 'job' || jsonb_build_object(
        'cron', c.expression, 'job_template', c.job, 'type', c.job -> 'type', 'args', coalesce(c.job -> 'args', '[]'),
        'options', c.job - '{type,args,options}'::text[] || coalesce(nullif(c.job -> 'options', 'null'), '{}'),
        'status', case when c.enabled then 'active' else 'disabled' end,
        'next_run_at', ojs_http.rfc3339(c.next_run_at), 'last_run_at', ojs_http.rfc3339(c.last_run_at), 'created_at',
            ojs_http.rfc3339(c.created_at))
$$;

create function ojs_http.no_such_cron(name text) returns void
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.raise('NOT_FOUND', format('cron entry %s does not exist', left(name, 64)),
        jsonb_build_object('resource_type', 'cron', 'resource_id', left(name, 64)), 'GET /ojs/v1/cron lists them.')
$$;

create function ojs_http.crons(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    most int := ojs_http.query_number(request, 'limit', 50, 1, 200);
    skipped int := ojs_http.query_number(request, 'offset', 0, 0, 1000000000);
    after text := ojs_http.page_key(request);
    running boolean := ojs_http.query_word(request, 'enabled', 'true', 'false')::boolean;
    entries jsonb[];
    keys text[];
    total bigint;
    page ojs_http.response;
begin
    select array_agg(ojs_http.cron_json(c.entry) order by c.name), array_agg(c.name order by c.name) into entries, keys
    from (
        select l as entry, l.name from ojs.crons l where (running is null or l.enabled = running)
            and (after is null or l.name > after)
        order by l.name limit most + 1 offset skipped
    ) c;
    select count(*) into total from ojs.crons l where running is null or l.enabled = running;
    page := ojs_http.page('crons', entries, keys, total, most, skipped);
    return ojs_http.reply(page.status, page.body || jsonb_build_object('cron_jobs', page.body -> 'crons', 'count',
        jsonb_array_length(page.body -> 'crons')));
end $$;

-- As the admin UI lists them.
create function ojs_http.cron_item(c ojs.crons) returns jsonb
language sql stable parallel safe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.cron_json(c) || jsonb_build_object('id', c.name, 'schedule', c.expression, 'meta',
        coalesce(c.job -> 'meta', '{}'),
        'queue', coalesce(c.job #> '{options,queue}', c.job -> 'queue', '"default"'))
$$;

create function ojs_http.cron_page(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    entries jsonb[];
begin
    select array_agg(ojs_http.cron_item(p.entry) order by p.name) into entries
    from (
        select c as entry, c.name from ojs.crons c order by c.name
        limit ojs_http.query_number(request, 'per_page', 20, 1, 100) offset ojs_http.page_start(request)
    ) p;
    return ojs_http.numbered_page(request, entries, (select count(*) from ojs.crons));
end $$;

create function ojs_http.cron_flat(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    entry jsonb;
begin
    select ojs_http.cron_item(c) into entry from ojs.crons c where c.name = request.names[1];
    if entry is null then
        perform ojs_http.no_such_cron(request.names[1]);
    end if;
    return ojs_http.reply(200, entry);
end $$;

create function ojs_http.change_cron(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.schedule(request);
    return ojs_http.cron_flat(request);
end $$;

create function ojs_http.cron(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    entry jsonb;
begin
    select ojs_http.cron_json(c) into entry from ojs.crons c where c.name = request.names[1];
    if entry is null then
        perform ojs_http.no_such_cron(request.names[1]);
    end if;
    return ojs_http.reply(200, jsonb_build_object('cron', entry, 'cron_job', entry));
end $$;

-- A job with some of its attributes changed, wherever either has them.
create function ojs_http.changed_job(job jsonb, changes jsonb) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select (job - 'options') - n.given || (changes - 'options') || jsonb_build_object('options',
        coalesce(nullif(job -> 'options', 'null'), '{}') - n.given || coalesce(nullif(changes -> 'options',
            'null'), '{}'))
    from (
        select array_agg(a.name) as given
        from (
            select jsonb_object_keys(changes - 'options') union
                select jsonb_object_keys(coalesce(nullif(changes -> 'options', 'null'), '{}'))
        ) k (name), lateral (values (k.name),
            (case k.name when 'meta' then 'metadata' when 'metadata' then 'meta' end)) a (name)
    ) n
$$;

-- The job is given as job_template, or by its attributes beside the entry's own. POST says what the entry is; PUT and
-- PATCH change what they name, and PUT also makes an entry.
create function ojs_http.schedule(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    whole jsonb := ojs_http.object(request);
    named text := coalesce(request.names[1], ojs_http.text_field(whole, 'name', true));
    expression text := coalesce(ojs_http.text_field(whole, 'cron'),
        ojs_http.text_field(whole, 'expression', cardinality(request.names) = 0));
    own text[] := '{timezone,enabled,overlap_policy,description}';
    job jsonb := coalesce(ojs_http.field(whole, 'job_template', 'object'), nullif(whole - own
        - '{name,cron,expression,job_template,status,next_run_at,last_run_at,run_count,created_at}'::text[], '{}'));
    options jsonb := (select coalesce(jsonb_object_agg(key, value), '{}') from jsonb_each(whole) where key = any (own)
        and value <> 'null');
    there ojs.crons;
    entry jsonb;
    created boolean;
begin
    perform ojs_http.check_args(j, null) from unnest(array[job, job -> 'options']) j where j -> 'args' <> 'null';
    if cardinality(request.names) > 0 then
        if whole ->> 'name' <> named then
            perform ojs_http.raise('INVALID_PAYLOAD', 'name is not the one of the path', '{"field": "name"}',
                'Leave name out of the body.');
        end if;
        select * into there from ojs.crons c where c.name = named;
        if there.name is null and (request.method = 'PATCH' or job is null or expression is null) then
            perform ojs_http.no_such_cron(named);
        end if;
        job := case when there.name is null then job when job is not null then ojs_http.changed_job(there.job, job) end;
        -- With both given it would be registered anew, and what is left out forgotten.
        if there.name is not null and job is not null and expression is not null then
            options := jsonb_strip_nulls(jsonb_build_object('timezone', there.timezone, 'overlap_policy',
                there.overlap_policy, 'description', there.description)) || options;
        end if;
    end if;
    created := (ojs.schedule(named, expression, case when cardinality(request.names) = 0 then coalesce(job, '{}')
        else job end, options) -> 'created')::boolean;
    select ojs_http.cron_json(c) || jsonb_build_object('created', created) into entry from ojs.crons c
        where c.name = named;
    return ojs_http.reply(case when created then 201 else 200 end, jsonb_build_object('cron', entry, 'cron_job', entry),
        case when created then jsonb_build_object('Location', '/ojs/v1/cron/' || named) else '{}' end);
end $$;

create function ojs_http.unschedule(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if not ojs.unschedule(request.names[1]) then
        perform ojs_http.no_such_cron(request.names[1]);
    end if;
    return ojs_http.reply(200, jsonb_build_object('deleted', true, 'name', request.names[1], 'cron',
        jsonb_build_object('name', request.names[1])));
end $$;

-- A run beside those of the clock: overlap_policy, last_run_at and run_count are of those alone.
create function ojs_http.trigger_cron(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    job jsonb := ojs_http.cron_job(request.names[1]);
begin
    if job is null then
        perform ojs_http.no_such_cron(request.names[1]);
    end if;
    if ojs_http.object(request, false) <> '{}' then
        perform ojs_http.raise('INVALID_PAYLOAD', 'a run of a cron entry takes nothing', '{"field": "body"}',
            'Send no body; PATCH changes the entry.');
    end if;
    job := ojs.push_job(job);
    return ojs_http.reply(case when job -> 'deduplicated' = 'true' or job ? 'dropped' then 200 else 201 end,
        jsonb_build_object('job', job, 'deduplicated', job -> 'deduplicated'),
        jsonb_strip_nulls(jsonb_build_object('Location', '/ojs/v1/jobs/' || (job ->> 'id'))));
end $$;

create function ojs_http.events(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.upkeep();
    return ojs_http.reply(200, ojs.events(coalesce(request.query ->> 'after', request.query ->> 'cursor'),
        ojs_http.query_list(request, 'types'),
        ojs_http.query_list(request, 'queues'), ojs_http.query_list(request, 'job_types'),
            ojs_http.query_number(request, 'limit', 100, 1, 1000)));
end $$;

-- STREAMS ----------------------------------------------------------------------------------------------------------

-- What a stream is of: all, one job or one queue, which must be there.
create function ojs_http.stream_of(request ojs_http.request, out job jsonb, out queues text[]) returns record
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    channel text := coalesce(case when cardinality(request.names) > 0
        then split_part(request.path, '/', 4) || ':' || request.names[1] end, request.query ->> 'channel', 'all');
    name text := substr(channel, strpos(channel, ':') + 1);
begin
    queues := ojs_http.query_list(request, 'queues');
    if channel ~ '^jobs?:' then
        job := ojs.info(ojs_http.job_id(name, true));
        queues := array[job ->> 'queue'];
    elsif channel ~ '^queues?:' then
        perform ojs.queue_info(name);
        queues := array[name];
    elsif channel not in ('all', '') then
        perform ojs_http.raise('INVALID_PAYLOAD', 'channel is none', '{"field": "channel"}',
            'Give job:ID, queue:NAME, or nothing for all.');
    end if;
end $$;

-- Events after the cursor that the client had last (Last-Event-ID), or from now on. The answer is complete: a client
-- that reads it from a plain pipe comes again, with the cursor that the last event bears as its id. A pipe that would
-- rather go on with the same answer says so by OJS-Do-Not-Wait, and reads OJS-Stream: more (at once), idle (nothing
-- happened), on, or end; then it sends OJS-Stream and the cursor OJS-Last-Event-ID with its next request.
create function ojs_http.event_stream(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    after text := nullif(request.headers ->> 'last-event-id', '');
    goes_on constant boolean := request.headers ? 'ojs-stream';
    of record;
    page jsonb;
    lost boolean;
    events jsonb[];
    over boolean;
    content text;
begin
    if not goes_on then
        perform ojs_http.upkeep();
    end if;
    of := ojs_http.stream_of(request);
    begin
        page := ojs.events(coalesce(after, 'now'), coalesce(ojs_http.query_list(request, 'event_types'),
            ojs_http.query_list(request, 'types')), of.queues,
            ojs_http.query_list(request, 'job_types'), 200);
    exception when sqlstate 'OJ100' then -- not a cursor of this server: on from here
        page := ojs.events('now');
        lost := true;
    end;
    events := array(select e from jsonb_array_elements(page -> 'events') with ordinality as l(e, place)
        where of.job is null or e ->> 'subject' = of.job ->> 'id' order by place);
    over := of.job is not null and exists (select from unnest(events) e
        where e ->> 'type' in ('job.completed', 'job.cancelled', 'job.discarded'));
    if of.job ->> 'state' in ('completed', 'cancelled', 'discarded') and not goes_on and not over then
        -- Nothing more will happen to it: its end once more.
        over := true;
        events := ojs_http.end_of(of.job);
    end if;
    lost := coalesce(lost, page ? 'missed');
    content := case when lost
        then e'event: system.gap\ndata: {"reason": "events were lost, or the cursor is not of this server"}\n\n'
        else '' end
        || coalesce((select string_agg(case when place = cardinality(events)
            then 'id: ' || (page ->> 'cursor') || e'\n' else '' end
            || 'event: ' || (e ->> 'type') || e'\ndata: ' || e::text || e'\n\n', '' order by place) from unnest(events)
                with ordinality as l(e, place)),
            e':heartbeat\nid: ' || (page ->> 'cursor') || e'\n\n');
    return row(200, jsonb_build_object('Content-Type', 'text/event-stream', 'Cache-Control', 'no-cache',
        'X-Accel-Buffering', 'no')
        || case when ojs_http.may_wait(request) then '{}'
            else jsonb_build_object('OJS-Last-Event-ID', page ->> 'cursor', 'OJS-Stream',
            case when over then 'end' when page -> 'has_more' = 'true' then 'more' when cardinality(events) > 0 or lost
                then 'on' else 'idle' end) end,
        null, case when ojs_http.may_wait(request) then e'retry: 1000\n' else '' end || content)::ojs_http.response;
end $$;
