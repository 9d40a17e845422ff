-- topics.sql: the topics of the Queues document: producing, and work by leases.

-- A record is a job: its data is what a claim shows, the type and the arguments; an object of other members is the only
-- argument, and the job says so, for a claim to show the record again.
create function ojs_http.record_job(queue text, record jsonb, place bigint) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    data jsonb;
    form text;
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
        form := 'flat';
    end if;
    perform ojs_http.only(data, 'type', 'args');
    perform ojs_http.check_args(data, (place - 1)::int);
    return data || jsonb_strip_nulls(jsonb_build_object('queue', queue, 'data_form', form,
        'tag', ojs_http.text_field(record, 'tag'), 'meta', ojs_http.field(record, 'meta', 'object')));
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
    elsif coalesce(request.headers ->> 'accept', '') collate "C" !~* 'text/event-stream' then
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
        null, case when stage is null and content <> e': hb\n\n' then e'retry: 2000\n: hb\n\n'
            when stage is null then e'retry: 2000\n' else '' end || content)::ojs_http.response;
end $$;
