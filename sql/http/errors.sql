-- errors.sql: errors as HTTP answers.

-- The HTTP status of an OJS code, and its name in the HTTP binding. Null for a code that is none.
create function ojs_http.status_of(code text, details jsonb, path text, out status int, out name text) returns record
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    of_topic boolean := starts_with(path, '/v0/');
begin
    case code
    when 'INVALID_PAYLOAD' then
        status := 400; name := case when details ->> 'reason' = 'malformed' then 'invalid_payload'
            else 'invalid_request' end;
    when 'INVALID_JOB_TYPE', 'INVALID_QUEUE', 'INVALID_ARGS', 'INVALID_CRON_EXPRESSION',
        'QUEUE_NAME_TOO_LONG',
            'JOB_TYPE_TOO_LONG', 'UNIQUE_KEY_INVALID' then
        status := 400; name := 'invalid_request';
    when 'INVALID_METADATA' then
        status := case details ->> 'reason' when 'tenant_missing' then 422 else 400 end; name := 'invalid_request';
    when 'INVALID_RETRY_POLICY' then
        status := 422; name := 'invalid_request';
    when 'SCHEMA_VALIDATION_FAILED' then
        status := 422; name := 'schema_validation';
    when 'PAYLOAD_TOO_LARGE', 'METADATA_TOO_LARGE', 'RESULT_TOO_LARGE' then
        status := 413; name := lower(code collate "C");
    when 'BATCH_SIZE_EXCEEDED' then
        status := case when of_topic then 400 else 413 end;
            name := case when of_topic then 'batch_too_large' else 'x_batch_too_large' end;
    when 'NOT_FOUND' then
        status := 404; name := case when of_topic then coalesce(details ->> 'reason', 'not_found') else 'not_found' end;
    when 'WORKFLOW_NOT_FOUND' then
        status := 404; name := 'not_found';
    when 'INVALID_WORKFLOW' then
        status := 400; name := 'invalid_workflow';
    when 'WORKFLOW_ENDED' then
        status := 409; name := 'conflict';
    when 'DUPLICATE_JOB' then
        status := 409; name := 'duplicate';
    when 'INVALID_STATE_TRANSITION', 'JOB_ALREADY_COMPLETED', 'JOB_ALREADY_CANCELLED', 'LEASE_NOT_HELD' then
        status := 409; name := 'conflict';
    when 'TOPIC_NOT_A_QUEUE' then
        status := 409; name := 'not_a_queue';
    when 'SCHEMA_EXISTS' then
        status := 409; name := 'conflict';
    when 'TOPIC_EXISTS_INCOMPATIBLE' then
        status := 409; name := lower(code collate "C");
    when 'QUEUE_PAUSED' then
        status := 422; name := 'queue_paused';
    when 'UNSUPPORTED_FEATURE' then
        status := case details ->> 'field' when 'Content-Encoding' then 415 else 422 end; name := 'unsupported';
    when 'PERMISSION_DENIED' then
        status := 403; name := 'permission_denied';
    when 'RATE_LIMITED' then
        status := 429; name := case when of_topic then 'throttled' else 'rate_limited' end;
    when 'QUEUE_FULL' then
        status := 429; name := 'QUEUE_FULL';
    when 'TENANT_LIMIT_EXCEEDED' then
        status := 429; name := 'TENANT_LIMIT_EXCEEDED';
    when 'UNAVAILABLE' then
        status := 503; name := 'backend_error';
    when 'METHOD_NOT_ALLOWED' then
        status := 405; name := 'x_method_not_allowed';
    else
        null;
    end case;
end $$;

create function ojs_http.error_body(
    name text, code text, message text, retryable boolean, details jsonb, hint text, request_id text
) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('error', jsonb_strip_nulls(jsonb_build_object(
        'code', name,
        'type', case when code = 'INVALID_RETRY_POLICY' then 'validation_error' end,
        'message', message,
        'retryable', retryable,
        'details', details,
        'hint', nullif(hint, ''),
        'docs_url', 'https://openjobspec.org/errors/' || code,
        'doc_url', 'https://openjobspec.org/errors/' || code,
        'request_id', request_id))
        || case when code = 'TENANT_LIMIT_EXCEEDED' then details - '{jobs,retry_after_seconds}'::text[] else '{}' end)
$$;

-- What the headers of an error say: when to come again, and how far a bound is exceeded.
create function ojs_http.headers_of(status int, code text, details jsonb) returns jsonb
language plpgsql stable parallel restricted set search_path = pg_catalog, pg_temp as $$
declare
    seconds numeric := coalesce((details ->> 'retry_after_seconds')::numeric,
        (details ->> 'retry_after_ms')::numeric / 1000, 1);
begin
    return jsonb_strip_nulls(
        case when status in (429, 503) then jsonb_build_object('Retry-After', greatest(ceil(seconds), 1)::text)
            else '{}' end
        || case code
            when 'BATCH_SIZE_EXCEEDED' then jsonb_build_object('X-OJS-Max-Batch-Size', details ->> 'maximum')
            when 'QUEUE_FULL' then jsonb_build_object('X-OJS-Queue-Depth', details ->> 'depth', 'X-OJS-Queue-Bound',
                details ->> 'bound')
            when 'RATE_LIMITED' then jsonb_build_object('X-RateLimit-Limit', coalesce(details ->> 'claim_rate', '1'),
                'X-RateLimit-Remaining', '0',
                'X-RateLimit-Reset', ceil(extract(epoch from ojs_http.now()) + seconds)::text)
            else '{}' end);
end $$;

-- A field by the name that the request has for it, where SQL has another.
create function ojs_http.field_in(body jsonb, field text) returns text
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select coalesce((select a.theirs from (values ('timeout', 'timeout_ms'), ('scheduled_at', 'delay_until'),
        ('visibility_timeout', 'visibility_timeout_ms'),
            ('worker', 'worker_id'), ('filter', 'job_ids'), ('job_id', 'ids'), ('expression', 'cron'),
                ('overrides', 'override'), ('discard', 'strategy')) a (ours, theirs)
        where a.ours = field and not jsonb_path_exists(body, format('$.**.%I', a.ours)::jsonpath)
            and jsonb_path_exists(body, format('$.**.%I', a.theirs)::jsonpath)), field)
$$;

-- A hint in the words of HTTP; none where it names what only SQL has.
create function ojs_http.hint_of(hint text) returns text
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select case
        when hint !~ e'\\mojs[.]\\w+[(]|=>' then hint
        when hint ~ 'confirm => true' then 'Send "confirm": true once you are sure.'
        when hint ~ 'ojs[.]create_queue' then 'Push to the queue, or create it with POST /ojs/v1/queues.'
        when hint ~ 'ojs[.]info' then 'GET /ojs/v1/jobs/:id tells the state of the job.'
        when hint ~ 'ojs[.]schedule' then 'GET /ojs/v1/cron lists the entries.' end
$$;

-- The answer to a request that raised: an error of ojs speaks for itself; of any other only what can give nothing away.
-- `stage` is what was being done: reading the path, the body, or the work itself.
create function ojs_http.problem(
    stage text, path text, request_id text, state text, message text, detail text, hint text, context text,
        body jsonb default null
) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    said jsonb;
    field text;
    place constant text := substring(context from 'the job at ([$][^ ]*) of the workflow');
    code text;
    details jsonb := '{}';
    status int;
    name text;
    headers jsonb;
    retryable boolean := false;
begin
    if stage <> 'work' and left(state, 2) in ('22', '54') then
        code := 'INVALID_PAYLOAD';
        details := '{"reason": "malformed"}';
        message := case when stage = 'path' then 'the path or the query string cannot be decoded'
            when state = '22P02' then 'the body is not valid JSON'
            when state = '54001' then 'the body is nested too deep'
            else 'the body holds what the database cannot store' end;
        hint := case when stage = 'path' then 'Encode it as UTF-8 in percent notation.'
            when state = '22P02' then 'Send one JSON document as UTF-8.'
            when state = '54001' then 'Flatten it.' end;
    elsif left(state, 2) = 'OJ' or state in ('42501', '57P03') then
        begin
            said := detail::jsonb;
            code := said ->> 'code';
            details := coalesce(said -> 'details', '{}');
            retryable := coalesce(said -> 'retryable' = 'true', false);
        exception when data_exception then
            null; -- a hook's own detail
        end;
    end if;
    -- The job of a definition that is refused is named by its path.
    if place is not null and (left(state, 3) = 'OJ1' or state = 'OJ702') then
        field := concat_ws('.', place, details ->> 'field');
        message := format('%s: %s', field, message);
        details := details || jsonb_build_object('field', field, 'cause', code);
        code := 'INVALID_WORKFLOW';
    end if;
    if details ? 'field' and body is not null then
        field := ojs_http.field_in(body, details ->> 'field');
        if field <> details ->> 'field' then
            message := regexp_replace(message, e'\\mfilter[.]ids\\M|\\m' || (details ->> 'field') || e'\\M', field);
            details := details || jsonb_build_object('field', field);
        end if;
    end if;
    if details ? 'maximum_bytes' then
        -- as the text of payload limits has it
        details := details || jsonb_build_object('max_bytes', details -> 'maximum_bytes');
    end if;
    if code = 'INVALID_WORKFLOW' then
        details := details || jsonb_build_object('validation_errors',
            jsonb_build_array(jsonb_build_object('path', details -> 'field', 'message', message)));
    end if;
    hint := ojs_http.hint_of(hint);
    select s.status, s.name into status, name from ojs_http.status_of(code, details, path) s;

    if status is null then
        details := '{}';
        case
        when state = '42501' then
            code := 'PERMISSION_DENIED'; status := 403; name := 'permission_denied';
            message := 'this connection''s role may not do that';
            hint := 'Connect as a member of ojs_producer, ojs_worker, ojs_observer or ojs_admin, as the request needs.';
        when left(state, 2) in ('08', '40', '53', '55', '57') or state = '25006' then
            code := 'UNAVAILABLE'; status := 503; name := 'backend_error'; retryable := true;
            message := case when state = '25006' then 'this server is read-only'
                else 'the database cannot serve this request at the moment' end;
            hint := case when state = '25006' then 'Ask the primary server.' else 'Try again.' end;
        when state = 'P0001' or left(state, 2) = 'OJ' then
            -- A hook says no, in its own words.
            code := 'REJECTED'; status := 422; name := 'x_rejected';
            hint := nullif(hint, '');
        when context ~ e'(^|\n)hook "' then
            -- One that failed says no, too; what it said is for those who look into the server.
            raise log 'ojs.http: a hook failed request % with %', request_id, state using detail = context;
            code := 'REJECTED'; status := 422; name := 'x_rejected';
            message := 'a hook of this server failed, so the job was not pushed';
            hint := 'The server''s log tells more under this request_id.';
        else
            raise log 'ojs.http: request % failed with %: %', request_id, state,
                case when left(state, 2) = '22' then 'the message may quote data' else message end
                    using detail = context;
            code := 'BACKEND_ERROR'; status := 500; name := 'backend_error'; retryable := true;
            message := 'the request failed inside the server';
            hint := 'The server''s log tells more under this request_id.';
        end case;
    end if;

    headers := ojs_http.headers_of(status, code, details);
    return ojs_http.reply(status, ojs_http.error_body(name, code, message, retryable, details, hint,
        request_id), headers);
end $$;

-- No handler for that path, or not for that method.
create function ojs_http.no_route(method text, path text, allowed text, request_id text) returns ojs_http.response
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select case when allowed is null then
        ojs_http.reply(404, ojs_http.error_body('not_found', 'NOT_FOUND', 'there is nothing at this path', false,
            '{"resource_type": "path"}', 'Jobs are at /ojs/v1/jobs; docs/reference/http.md lists all paths.',
                request_id))
    else
        ojs_http.reply(405, ojs_http.error_body('x_method_not_allowed', 'METHOD_NOT_ALLOWED',
            format('this path does not take the method %s', left(method, 16)), false,
                jsonb_build_object('allowed', allowed),
            format('It takes %s.', allowed), request_id), jsonb_build_object('Allow', allowed))
    end
$$;
