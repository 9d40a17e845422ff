-- bulk.sql: many jobs in one request: results, cancelling, retrying, deleting.

-- The header goes before the field.
create function ojs_http.idempotency_key(request ojs_http.request, body jsonb) returns text
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select coalesce(request.headers ->> 'idempotency-key', ojs_http.text_field(body, 'idempotency_key'))
$$;

-- Returns true if the batch is all or none.
create function ojs_http.is_atomic(body jsonb, otherwise text) returns boolean
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    atomicity text := coalesce(ojs_http.text_field(body, 'atomicity'), otherwise);
begin
    if atomicity not in ('atomic', 'partial') then
        perform ojs_http.raise('INVALID_PAYLOAD', 'atomicity must be atomic or partial', '{"field": "atomicity"}',
            'Give atomic, partial, or nothing.');
    end if;
    return atomicity = 'atomic';
end $$;

-- An error of one item, in the words of HTTP.
create function ojs_http.item_error(error jsonb) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select error || jsonb_build_object('code', coalesce(s.name, 'x_rejected'))
    from ojs_http.status_of(error ->> 'code', coalesce(error -> 'details', '{}'), '') s
$$;

-- An item of a batch, or a job, without what the client has sent.
create function ojs_http.abridged(item jsonb) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select case when item ? 'job' then item || jsonb_build_object('job', ojs_http.abridged(item -> 'job'))
        when item ? 'id' then (select jsonb_object_agg(key, value) from jsonb_each(item)
            where key = any ('{id,type,queue,state,priority,attempt,created_at,scheduled_at,started_at,'
                'completed_at,discarded_at,cancelled_at,deduplicated}'))
            || '{"abridged": true}'
        else item end
$$;

-- A request of which nothing was done, with the reason of each item. It may be tried again if any item may.
create function ojs_http.nothing_done(request ojs_http.request, message text, body jsonb) returns ojs_http.response
language sql stable parallel safe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(422, body || ojs_http.error_body('invalid_request', 'INVALID_PAYLOAD', message,
        error is not null, '{}',
        'items says what is wrong with each.', request.headers ->> 'x-request-id'),
        jsonb_build_object('X-OJS-Batch-Size', jsonb_array_length(body -> 'items')::text)
            || case when error is not null then ojs_http.headers_of(429, error ->> 'code', error -> 'details')
                else '{}' end)
    from jsonb_path_query_first(body, '$.items[*].error ? (@.retryable == true)') as error
$$;

-- MANY JOBS BY ID OR BY WHAT THEY ARE ------------------------------------------------------------------------------

-- The times of a filter, read as those of a push are.
create function ojs_http.filter_times(filter jsonb) returns jsonb
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select filter || coalesce(jsonb_object_agg(name,
        ojs_http.rfc3339(ojs_http.time_value(ojs_http.text_field(filter, name), name))), '{}')
    from unnest('{since,until,enqueued_after,enqueued_before}'::text[]) name where filter ? name
$$;

-- What the body selects, as the functions of SQL have it.
create function ojs_http.selection(body jsonb) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    ids text[] := coalesce(ojs_http.texts_field(body, 'job_ids'), ojs_http.texts_field(body, 'ids'));
    filter jsonb := ojs_http.field(body, 'filter', 'object');
begin
    if (ids is null) = (filter is null) then
        perform ojs_http.raise('INVALID_PAYLOAD', 'either job_ids or filter must be given', '{"field": "job_ids"}',
            'Name jobs, or say which; not both.');
    elsif filter ? 'ids' then
        perform ojs_http.raise('INVALID_PAYLOAD', 'filter cannot hold ids', '{"field": "filter"}',
            'Name jobs by job_ids.');
    elsif ids is not null then
        return jsonb_build_object('ids', (select coalesce(jsonb_agg(lower(id collate "C")), '[]') from unnest(ids) id));
    end if;
    filter := ojs_http.filter_times(filter);
    return filter - '{enqueued_after,enqueued_before}'::text[] || jsonb_strip_nulls(jsonb_build_object(
        'since', coalesce(filter -> 'since', filter -> 'enqueued_after'), 'until',
            coalesce(filter -> 'until', filter -> 'enqueued_before')));
end $$;

create function ojs_http.do_many(operation text, filter jsonb, confirm boolean) returns jsonb
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select case operation
        when 'cancel' then ojs.cancel_many(filter, confirm)
        when 'retry' then ojs.retry_many(filter, confirm)
        else ojs.delete_many(filter, confirm) end
$$;

-- A filter says what it means; only one without any condition must be confirmed.
create function ojs_http.do_bulk(request ojs_http.request, operation text, verb text) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    filter jsonb := ojs_http.selection(body);
    atomic boolean := ojs_http.is_atomic(body, 'partial');
    confirm boolean := coalesce(ojs_http.field(body, 'confirm', 'boolean')::boolean,
        filter - 'ended_workflows' <> '{}');
    done jsonb;
    answer jsonb;
begin
    if atomic then
        perform ojs_http.check_atomic();
    end if;
    if operation = 'cancel' and not filter ?| '{ids,state}' then
        filter := filter || '{"state": ["available", "scheduled"]}';
    end if;
    begin
        done := ojs_http.do_many(operation, filter, confirm);
        if atomic and done -> 'failed' <> '0' then
            raise exception using errcode = 'OJ0RB';
        end if;
    exception when sqlstate 'OJ0RB' then
        done := done || jsonb_build_object('succeeded', 0, 'items',
            (select jsonb_agg(case when i ->> 'status' = 'skipped' then i
            else i || '{"status": "rolled_back"}' end order by (i -> 'index')::int)
                from jsonb_array_elements(done -> 'items') i));
    end;
    answer := jsonb_build_object('total_matched', done -> 'matched', verb, done -> 'succeeded', 'skipped',
        done -> 'failed',
        'more', done -> 'more', 'items', done -> 'items')
        || case when done ? 'left_out' then jsonb_build_object('left_out', done -> 'left_out') else '{}' end;
    if done -> 'failed' <> '0' and done -> 'succeeded' = '0' then
        return ojs_http.nothing_done(request, format('no job was %s', verb), answer);
    end if;
    return ojs_http.reply(case when done -> 'failed' <> '0' then 207 else 200 end, answer,
        jsonb_build_object('X-OJS-Batch-Size', done ->> 'matched'));
end $$;

create function ojs_http.bulk(request ojs_http.request, operation text, verb text) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    key text := ojs_http.idempotency_key(request, body);
    before jsonb := ojs_http.take_key(operation, key, body - 'idempotency_key');
    response ojs_http.response;
begin
    if before is not null then
        return jsonb_populate_record(response, before);
    end if;
    response := ojs_http.do_bulk(request, operation, verb);
    perform ojs_http.keep_answer(operation, key, to_jsonb(response));
    return response;
end $$;

create function ojs_http.cancel_bulk(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.bulk(request, 'cancel', 'cancelled')
$$;

create function ojs_http.retry_bulk(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.bulk(request, 'retry', 'retried')
$$;

create function ojs_http.delete_bulk(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.bulk(request, 'delete', 'deleted')
$$;

-- FOR ADMINISTRATORS: only what is confirmed is done ----------------------------------------------------------------

create function ojs_http.must_confirm(body jsonb) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if ojs_http.field(body, 'confirm', 'boolean') is distinct from 'true' then
        perform ojs_http.raise('INVALID_PAYLOAD', 'confirm must be true', '{"field": "confirm"}',
            'Send "confirm": true once you are sure.');
    end if;
end $$;

create function ojs_http.admin_bulk(request ojs_http.request, operation text, filter jsonb) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    done jsonb;
begin
    perform ojs_http.must_confirm(request.body);
    done := ojs_http.do_many(operation, filter, true);
    return ojs_http.reply(200, jsonb_build_object('action', operation, 'matched', done -> 'matched', 'succeeded',
        done -> 'succeeded',
        'failed', done -> 'failed', 'more', done -> 'more', 'errors', (
            select coalesce(jsonb_agg(jsonb_build_object('job_id', i -> 'job_id', 'code', i -> 'code', 'error',
                i -> 'reason') order by (i -> 'index')::int), '[]')
            from jsonb_array_elements(done -> 'items') i where i ->> 'status' = 'skipped'))
        || jsonb_strip_nulls(jsonb_build_object('left_out', done -> 'left_out', 'duplicates', ( -- INT-09
            select jsonb_agg(jsonb_build_object('job_id', i -> 'job_id', 'existing_job_id', i -> 'existing_job_id',
                'existing_job_state', i -> 'existing_job_state') order by (i -> 'index')::int)
            from jsonb_array_elements(done -> 'items') i where i ? 'existing_job_id'))));
end $$;

create function ojs_http.admin_cancel_bulk(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.admin_bulk(request, 'cancel', ojs_http.selection(ojs_http.object(request)))
$$;

create function ojs_http.admin_retry_bulk(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.admin_bulk(request, 'retry', ojs_http.selection(ojs_http.object(request)))
$$;

create function ojs_http.admin_delete_bulk(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.admin_bulk(request, 'delete', ojs_http.selection(ojs_http.object(request)))
$$;

-- Dead letters: all of them, or those that the filter says.
create function ojs_http.retry_dead_letters(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.admin_bulk(request, 'retry',
        ojs_http.filter_times(coalesce(ojs_http.field(ojs_http.object(request), 'filter', 'object'), '{}'))
        || '{"state": "discarded", "dead_letter": true}')
$$;

-- Deletes what a filter says, in portions of a batch each. Returns the number of jobs deleted.
create function ojs_http.delete_all(filter jsonb) returns bigint
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    done jsonb;
    n bigint := 0;
begin
    loop
        done := ojs.delete_many(filter, true);
        n := n + (done ->> 'succeeded')::int;
        exit when done -> 'more' <> 'true' or done -> 'succeeded' = '0';
    end loop;
    return n;
end $$;

create function ojs_http.purge_dead_letters(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.purge_asked(request);
    before text := ojs_http.rfc3339(ojs_http.time_value(ojs_http.text_field(body, 'older_than'), 'older_than'));
begin
    perform ojs_http.must_confirm(body);
    return ojs_http.reply(200, jsonb_build_object('purged_count',
        ojs_http.delete_all(ojs_http.filter_times(coalesce(ojs_http.field(body, 'filter', 'object'), '{}'))
        || jsonb_strip_nulls(jsonb_build_object('until', before)) || '{"state": "discarded", "dead_letter": true}')));
end $$;

create function ojs_http.results(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    ids text[] := ojs_http.texts_field(ojs_http.object(request), 'ids', true);
begin
    if cardinality(ids) > 1000 then
        perform ojs_http.raise('BATCH_SIZE_EXCEEDED', format('a call may name 1000 jobs, not %s', cardinality(ids)),
            jsonb_build_object('field', 'ids', 'size', cardinality(ids), 'maximum', 1000), 'Split the call.');
    end if;
    perform ojs_http.upkeep();
    return (
        select ojs_http.reply(200, jsonb_build_object('results',
            coalesce(jsonb_object_agg(s.id, jsonb_build_object('state', s.state, 'result',
            s.result)) filter (where s.fits), '{}'))
            || case when bool_and(s.fits) then '{}' else jsonb_build_object('remaining',
                jsonb_agg(s.id) filter (where not s.fits)) end)
        from (
            select r.*, coalesce(sum(pg_column_size(r.result)) over (order by r.id rows between unbounded preceding
                and 1 preceding), 0) < ojs_http.most_bytes() as fits
            from ojs.results(array(select ojs_http.job_id(id, false) from unnest(ids) id)) r
        ) s);
end $$;
