-- queues.sql: queues and dead letters over HTTP, and the topics of the Queues document.

-- PAGES ------------------------------------------------------------------------------------------------------------

-- A cursor names the last entry of a page; clients cannot read anything out of it, and need not.
create function ojs_http.cursor_of(key text) returns text
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select encode(convert_to(key, 'UTF8'), 'hex')
$$;

create function ojs_http.page_key(request ojs_http.request, pattern text default '') returns text
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    key text;
begin
    begin
        key := convert_from(decode(nullif(request.query ->> 'cursor', ''), 'hex'), 'UTF8');
    exception when data_exception then
        key := null;
    end;
    if coalesce(request.query ->> 'cursor', '') <> '' and (key is null or key !~ pattern) then
        perform ojs_http.raise('INVALID_PAYLOAD', 'cursor is none that this server gave out', '{"field": "cursor"}',
            'Begin without a cursor.');
    end if;
    return key;
end $$;

-- One page of a list, of which the caller has read one entry more than it shows, with the keys of all of them.
create function ojs_http.page(field text, entries jsonb[], keys text[], total bigint, most int, skipped int,
    shown int default null) returns ojs_http.response
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, jsonb_build_object(
        field, coalesce(to_jsonb(entries[:most]), '[]'),
        'pagination', jsonb_strip_nulls(jsonb_build_object('total', total, 'limit', most, 'offset', skipped,
            'has_more', coalesce(cardinality(keys), 0) > coalesce(shown, most),
            'next_cursor', ojs_http.cursor_of(case when cardinality(keys) > coalesce(shown, most)
                then keys[coalesce(shown, most)] end)))))
$$;

-- QUEUES -----------------------------------------------------------------------------------------------------------

create function ojs_http.queues(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    most int := ojs_http.query_number(request, 'limit', 50, 1, 200);
    skipped int := ojs_http.query_number(request, 'offset', 0, 0, 1000000000);
    after text := ojs_http.page_key(request);
    entries jsonb[];
    keys text[];
begin
    select array_agg(jsonb_build_object('name', q.name, 'status', q.state, 'paused', q.state = 'paused', 'created_at',
        ojs_http.rfc3339(q.created_at))
            order by q.name), array_agg(q.name order by q.name)
    into entries, keys
    from (select * from ojs.queues where after is null or name > after order by name limit most + 1 offset skipped) q;
    return ojs_http.page('queues', entries, keys, (select count(*) from ojs.queues), most, skipped);
end $$;

create function ojs_http.queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    info jsonb := ojs.queue_info(request.names[1]);
begin
    return ojs_http.reply(200,
        info - '{topic,count,performance,head_seq,earliest_seq}'::text[] || jsonb_build_object('queue',
        info -> 'queue' || jsonb_build_object('status', info -> 'state', 'type', info -> 'type', 'created_at',
            info -> 'created_at', 'config', info -> 'config')));
end $$;

-- Makes a queue, or gives one that is there these settings.
create function ojs_http.create_queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    named text := ojs_http.text_field(body, 'name', true);
    known boolean := exists (select from ojs.queues q where q.name = named);
    queue jsonb;
begin
    perform ojs_http.only(body, 'name', 'config');
    queue := ojs.create_queue(named, ojs_http.with_bound(coalesce(ojs_http.field(body, 'config', 'object'), '{}')));
    return ojs_http.reply(case when known then 200 else 201 end, queue || jsonb_build_object('queue', queue),
        jsonb_build_object('Location', '/ojs/v1/queues/' || named));
end $$;

create function ojs_http.queue_stats(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    info jsonb;
begin
    perform ojs_http.upkeep();
    info := ojs.queue_info(request.names[1]);
    return ojs_http.reply(200, (info -> 'stats') || jsonb_build_object('queue', info -> 'queue', 'status',
        info -> 'state', 'stats', info -> 'stats',
        'computed_at', info -> 'stats' -> 'computed_at'));
end $$;

-- The policy _default is no queue, but has settings like one.
create function ojs_http.default_policy() returns jsonb
language sql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select ojs_store.effective_config(coalesce((select q.config from ojs_store.queue q where q.name = '_default'
        order by q.revised_at desc limit 1), '{}'), true)
$$;

create function ojs_http.queue_config(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    info jsonb;
begin
    if request.names[1] = '_default' then
        perform from ojs.queues limit 1; -- who may not look at queues may not look at this either
        return ojs_http.reply(200, jsonb_build_object('name', '_default', 'config', ojs_http.default_policy()));
    end if;
    info := ojs.queue_info(request.names[1]);
    return ojs_http.reply(200, jsonb_build_object('name', info -> 'name', 'config', info -> 'config'));
end $$;

-- The settings of a bound may come in an object of their own.
create function ojs_http.with_bound(config jsonb) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    bound jsonb := coalesce(ojs_http.field(config, 'backpressure', 'object'), '{}');
begin
    if bound ? 'strategy' then
        bound := bound - 'strategy' || jsonb_build_object('discard', bound -> 'strategy');
    end if;
    return config - 'backpressure' || bound;
end $$;

create function ojs_http.configure_queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    queue jsonb := ojs.configure_queue(request.names[1], ojs_http.with_bound(ojs_http.object(request)));
begin
    return ojs_http.reply(200, jsonb_build_object('queue', queue, 'name', queue -> 'name', 'config',
        queue -> 'config'));
end $$;

create function ojs_http.queue_is(name text, state text, at_field text) returns jsonb
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('queue', jsonb_build_object('name', name, 'status', state, 'paused', state = 'paused'),
        'status', state,
        at_field, ojs_http.rfc3339(ojs_http.now()))
$$;

create function ojs_http.pause_queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs.pause_queue(request.names[1]);
    return ojs_http.reply(200, ojs_http.queue_is(request.names[1], 'paused', 'paused_at'));
end $$;

create function ojs_http.resume_queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs.resume_queue(request.names[1]);
    return ojs_http.reply(200, ojs_http.queue_is(request.names[1], 'active', 'resumed_at'));
end $$;

create function ojs_http.drain_queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs.drain_queue(request.names[1]);
    return ojs_http.reply(200, ojs_http.queue_is(request.names[1], 'draining', 'draining_since'));
end $$;

-- Like pause_queue(), but without the wrapper, for administrators, and only of a queue that is there.
create function ojs_http.pause_queue_flat(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    answer jsonb;
begin
    perform ojs.queue_info(request.names[1]);
    answer := (ojs_http.pause_queue(request)).body;
    return ojs_http.reply(200, answer -> 'queue' || (answer - 'queue'));
end $$;

create function ojs_http.resume_queue_flat(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    answer jsonb;
begin
    perform ojs.queue_info(request.names[1]);
    answer := (ojs_http.resume_queue(request)).body;
    return ojs_http.reply(200, answer -> 'queue' || (answer - 'queue'));
end $$;

create function ojs_http.purge_queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.purge_asked(request);
    states text[] := ojs_http.texts_field(body, 'states');
    before text := ojs_http.rfc3339(ojs_http.time_value(ojs_http.text_field(body, 'older_than'), 'older_than'));
    n bigint;
begin
    perform ojs_http.only((body || coalesce(ojs_http.field(body, 'filter', 'object'), '{}')) - 'filter', 'states',
        'confirm', 'older_than');
    if states is null then
        perform ojs_http.raise('INVALID_PAYLOAD', 'states is missing', '{"field": "states"}',
            'Name states such as available, scheduled, completed.');
    elsif before is not null then
        -- By the time of their end, so only of what has ended.
        perform ojs_http.must_confirm(body);
        perform ojs.queue_info(request.names[1]);
        n := ojs_http.delete_all(jsonb_build_object('queue', request.names[1], 'until', before)
            || jsonb_build_object('state', states));
    else
        n := ojs.purge_queue(request.names[1], states,
            coalesce(ojs_http.field(body, 'confirm', 'boolean')::boolean, false));
    end if;
    return ojs_http.reply(200,
        jsonb_strip_nulls(jsonb_build_object('name', request.names[1], 'states', states, 'purged_count', n)));
end $$;

-- What becomes of its jobs is said in the query string or in the body.
create function ojs_http.drop_queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request, false);
    strategy text := coalesce(request.query ->> 'strategy', ojs_http.text_field(body, 'strategy'), 'reject');
    target text := coalesce(request.query ->> 'target', ojs_http.text_field(body, 'target_queue'),
        ojs_http.text_field(body, 'target'));
    n bigint := ojs.drop_queue(request.names[1], strategy, target);
begin
    return ojs_http.reply(200,
        jsonb_strip_nulls(jsonb_build_object('deleted', true, 'name', request.names[1], 'queue', request.names[1],
        'strategy', strategy, 'target_queue', target, 'jobs', n, 'jobs_affected', n, 'state', 'deleted')));
end $$;

-- DEAD LETTERS -----------------------------------------------------------------------------------------------------

-- A page of the jobs that a filter describes, the newest first, by cursor.
create function ojs_http.job_list(request ojs_http.request, field text, filter jsonb) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    most int := ojs_http.query_number(request, 'limit', 50, 1, 200);
    skipped int := ojs_http.query_number(request, 'offset', 0, 0, 1000000000);
    after uuid := ojs_http.page_key(request, '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$');
    entries jsonb[];
    keys text[];
    shown int;
begin
    with page as (
        select ojs.envelope(listed.job) as job, (listed.job).id, listed.place
        from ojs_http.listed_jobs(filter || jsonb_strip_nulls(jsonb_build_object('beyond', after)), most + 1,
            skipped) listed
    ), fitting as (
        -- One is shown however large it is, and the one after the last says that there is more.
        select *, coalesce(sum(pg_column_size(job)) over (order by place rows between unbounded preceding
            and 1 preceding), 0) < ojs_http.most_bytes() as fits
        from page
    )
    select (select array_agg(f.job order by f.place) from fitting f where f.fits),
        (select array_agg(f.id::text order by f.place) from fitting f),
        least(most, (select count(*) from fitting f where f.fits))
    into entries, keys, shown;
    return ojs_http.page(field, entries[:shown], keys, ojs_http.count_listed(filter), most, skipped, shown);
end $$;

create function ojs_http.dead_letters(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.job_list(request, 'jobs', ojs_http.dead_letter_filter(request))
$$;

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

-- TOPICS -----------------------------------------------------------------------------------------------------------

create function ojs_http.create_topic(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    queue jsonb := ojs.create_queue(request.names[1], ojs_http.object(request, false));
begin
    return ojs_http.reply(200, queue || jsonb_build_object('topic', queue -> 'name'));
end $$;

create function ojs_http.topic(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.upkeep();
    return ojs_http.reply(200, ojs.queue_info(request.names[1]));
end $$;

-- A record is a job: its data is what a claim shows, the type and the arguments; an object of other members is the only
-- argument.
create function ojs_http.record_job(queue text, record jsonb, place bigint) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    data jsonb;
begin
    if jsonb_typeof(record) <> 'object' then
        perform ojs_http.raise('INVALID_PAYLOAD', format('records[%s] must be an object', place - 1),
            '{"field": "records"}', 'Give {"data": {"type": ..., "args": [...]}}.');
    end if;
    perform ojs_http.only(record, 'data', 'tag', 'meta');
    data := ojs_http.field(record, 'data', 'object', true);
    if not data ? 'args' then
        data := jsonb_build_object('type', data -> 'type', 'args',
            case when data - 'type' = '{}' then '[]' else jsonb_build_array(data - 'type') end);
    end if;
    perform ojs_http.only(data, 'type', 'args');
    perform ojs_http.check_args(data, (place - 1)::int);
    return data || jsonb_strip_nulls(jsonb_build_object('queue', queue, 'tag', ojs_http.text_field(record, 'tag'),
        'meta', ojs_http.field(record, 'meta', 'object')));
end $$;

create function ojs_http.topic_produce(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    records jsonb := ojs_http.field(body, 'records', 'array', true);
    before text;
    seqs jsonb;
begin
    perform ojs_http.only(body, 'records');
    if records = '[]' then
        perform ojs_http.raise('INVALID_PAYLOAD', 'records is empty', '{"field": "records"}',
            'Give at least one record.');
    end if;
    before := ojs_http.set_block_timeout(request);
    select jsonb_agg(ojs_http.pushed_job((i ->> 'id')::uuid) -> 'seq' order by (i ->> 'index')::int) into seqs
    from jsonb_array_elements(ojs_http.pushed_items((
        select jsonb_agg(ojs_http.record_job(request.names[1], r.record, r.place) order by r.place)
            from jsonb_array_elements(records) with ordinality as r(record, place)), 'atomic', null, null)) i
    where i ? 'id';
    perform set_config('ojs.block_timeout', before, true);
    return ojs_http.reply(200, jsonb_build_object('topic', request.names[1], 'count',
        coalesce(jsonb_array_length(seqs), 0), 'seqs', coalesce(seqs, '[]'),
        'first_seq', seqs -> 0, 'last_seq', seqs -> -1), ojs_http.pressure_headers());
end $$;

create function ojs_http.topic_claim(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, ojs.lease_claim(request.names[1], request.body))
$$;

create function ojs_http.topic_ack(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, ojs.lease_ack(request.names[1], request.body))
$$;

create function ojs_http.topic_nack(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, ojs.lease_nack(request.names[1], request.body))
$$;

create function ojs_http.topic_extend(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, ojs.lease_extend(request.names[1], request.body))
$$;

-- Which of these leases, JOB/LEASE, are there still.
create function ojs_http.still_held(held text[]) returns text[]
language sql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(array_agg(h.entry order by h.place), '{}')
    from unnest(held) with ordinality as h(entry, place)
    join ojs_store.lease l on l.job_id = split_part(h.entry, '/', 1)::uuid
    where split_part(h.entry, '/', 2) = 'lease_' || lpad(to_hex(l.token), 16, '0') and l.deadline > ojs_store.now()
$$;

create function ojs_http.work_events(topic text, claimed jsonb) returns text
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select coalesce(string_agg('id: ' || (c.job ->> '$seq') || e'\nevent: job\ndata: '
        || (c.job || jsonb_build_object('topic', topic))::text || e'\n\n', '' order by c.place), e': hb\n\n')
    from jsonb_array_elements(claimed) with ordinality as c(job, place)
$$;

-- Jobs that are leased to the one connection which this answer goes to, at most `max` at a time. Only a pipe that goes
-- on with the answer can do that: it brings OJS-Last-Event-ID, which holds the leases that the connection was given,
-- with its next look, and OJS-Stream: end once the connection is gone, for what is held still to be given back.
create function ojs_http.topic_work(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    topic text := request.names[1];
    stage text := request.headers ->> 'ojs-stream';
    node text := request.query ->> 'node';
    most int := ojs_http.query_number(request, 'max', 1, 1, 1000);
    lease_ms int := ojs_http.query_number(request, 'lease_ms', null, 1, 86400000);
    held text[] := case when stage is not null then string_to_array(request.headers ->> 'last-event-id', ',') end;
    claimed jsonb := '[]';
    content text;
    goes_on text := 'idle';
    problem ojs_http.response;
    state text; message text; detail text; hint text; context text;
begin
    if ojs_http.may_wait(request) or request.method <> 'GET' then
        perform ojs_http.raise('UNSUPPORTED_FEATURE', 'jobs come over a connection that stays, which this is not',
            jsonb_build_object('path', left(request.path, 128)), 'GET it from ojs-gateway, or POST to claim.');
    elsif coalesce(request.headers ->> 'accept', '') !~* 'text/event-stream' then
        return ojs_http.reply(406, ojs_http.error_body('not_acceptable', 'INVALID_PAYLOAD',
            'the answer is a stream of events',
            false, '{"field": "Accept"}', 'Send Accept: text/event-stream.', request.headers ->> 'x-request-id'));
    elsif stage = 'end' then
        perform ojs.nack_many(node, array_agg(split_part(h, '/', 1)::uuid), '0', array_agg(split_part(h, '/', 2)))
        from unnest(ojs_http.still_held(held)) h having count(*) > 0;
        return ojs_http.reply(204, null);
    end if;
    perform ojs_http.only(request.query, 'node', 'max', 'lease_ms');
    perform ojs_http.upkeep();
    held := ojs_http.still_held(held);
    begin
        if cardinality(held) < most then
            claimed := ojs.lease_claim(topic,
                jsonb_strip_nulls(jsonb_build_object('node', node, 'max', most - cardinality(held),
                'lease_ms', lease_ms))) -> 'claimed';
        end if;
        content := ojs_http.work_events(topic, claimed);
    exception when others then
        get stacked diagnostics state = returned_sqlstate, message = message_text, detail = pg_exception_detail,
            hint = pg_exception_hint, context = pg_exception_context;
        problem := ojs_http.problem('work', request.path, request.headers ->> 'x-request-id', state, message, detail,
            hint, context);
        if stage is null or problem.status >= 500 then
            raise;
        end if;
        goes_on := case when problem.status = 429 then 'slow' else 'end' end;
        content := e'event: error\ndata: ' || jsonb_build_object('code', problem.status, 'error',
            problem.body #> '{error,code}',
            'message', problem.body #> '{error,message}', 'retryable', problem.status = 429)::text || e'\n\n';
    end;
    held := held || array(select (c ->> 'id') || '/' || (c ->> 'lease_id') from jsonb_array_elements(claimed) c);
    return row(200, jsonb_build_object('Content-Type', 'text/event-stream', 'Cache-Control', 'no-store',
        'X-Accel-Buffering', 'no',
            'OJS-Stream-Queue', topic, 'OJS-Last-Event-ID', array_to_string(held, ','),
            'OJS-Stream', case when claimed <> '[]' then 'on' else goes_on end),
        null, case when stage is null then e'retry: 2000\n' else '' end || content)::ojs_http.response;
end $$;
