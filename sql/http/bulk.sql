-- bulk.sql: many jobs in one request: pushing, cancelling, retrying, deleting.

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

-- The key of a batch under either of its names, and how long it is held.
create function ojs_http.batch_key(body jsonb) returns text
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    key text := ojs_http.text_field(body, 'deduplication_key');
    also text := ojs_http.text_field(body, 'deduplicationKey');
begin
    if key <> also then
        perform ojs_http.raise('INVALID_PAYLOAD', 'deduplication_key comes twice with different values',
            '{"field": "deduplication_key"}', 'Give it once.');
    end if;
    return coalesce(key, also);
end $$;

create function ojs_http.batch_ttl(body jsonb) returns interval
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.duration_value(nullif(body -> 'deduplication_ttl', 'null'), 'deduplication_ttl')
$$;

-- Pushes, and says of each job what became of it. An object for args, which SQL takes for the only argument, is
-- refused here (R-01): it is handed on as a boolean, which SQL refuses, too.
create function ojs_http.pushed_items(jobs jsonb, atomicity text, deduplication_key text, deduplication_ttl interval)
    returns jsonb
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select coalesce(jsonb_agg(jsonb_build_object('index', r.index, 'status', r.status)
            || case when r.id is not null then jsonb_build_object('id', r.id) else '{}' end
            || case when r.error is not null then jsonb_build_object('error', ojs_http.item_error(case
                when jsonb_typeof(jobs -> r.index -> 'args') = 'object'
                then jsonb_set(r.error, '{message}', '"args must be an array, not an object"') else r.error end))
                    else '{}' end
        order by r.index), '[]')
    from ojs.push_many(
        case when jsonb_path_exists(jobs, '$[*] ? (@.args.type() == "object")')
            then (select jsonb_agg(case when jsonb_typeof(j.job -> 'args') = 'object'
                then jsonb_set(j.job, '{args}', 'false') else j.job end
                order by j.n) from jsonb_array_elements(jobs) with ordinality as j(job, n))
            else jobs end, -- as it is: a copy of a large batch costs
        deduplication_key, deduplication_ttl, atomicity) r
$$;

-- What a batch that came to nothing would have come to, job by job, without doing it. A job that one of the same batch
-- stands in the way of is told which, since that one never was.
create function ojs_http.tried_items(jobs jsonb, deduplication_key text, deduplication_ttl interval) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    items jsonb;
begin
    items := ojs_http.pushed_items(jobs, 'partial', deduplication_key, deduplication_ttl);
    raise exception using errcode = 'OJ0RB';
exception when sqlstate 'OJ0RB' then
    return (
        with made as (
            select i ->> 'id' as id, i -> 'index' as index from jsonb_array_elements(items) i
                where i ->> 'status' = 'created'
        )
        select jsonb_agg(case when i ->> 'status' <> 'failed'
            then jsonb_build_object('index', i -> 'index', 'status', 'rolled_back')
            when made.id is null then i
            else jsonb_set(jsonb_set(i, '{error,details}',
                (i #> '{error,details}') - '{existing_job_id,existing_job_state}'::text[]
                || jsonb_build_object('index', i -> 'index', 'existing_index', made.index)), '{error,hint}',
                    '"Leave one of the two out."') end
            order by (i -> 'index')::int)
        from jsonb_array_elements(items) i left join made on made.id = i #>> '{error,details,existing_job_id}');
end $$;

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

-- The answer to a batch as text, since it is large, made item by item: whole ones, or their jobs alone. `limited` is a
-- job that was made and has a limit of its own.
create function ojs_http.batch_answer(items jsonb, jobs_only boolean, head text, tail text, out content text,
    out limited jsonb) returns record
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_batch_answer';

create function ojs_http.batch_response(status int, items jsonb, jobs_only boolean, head text, tail text)
    returns ojs_http.response
language plpgsql strict volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    answer record;
begin
    answer := ojs_http.batch_answer(items, jobs_only, head, tail); -- a query would hold it three times more
    return (status, jsonb_build_object('X-OJS-Batch-Size', jsonb_array_length(items)::text)
        || ojs_http.pressure_headers() || ojs_http.limit_headers(answer.limited), null,
        answer.content)::ojs_http.response;
end $$;

-- The first answer to a request under its idempotency key, whatever became of its jobs since. What came to nothing can
-- be tried again under the same key. Of an answer of more than 1 MB the jobs are kept without what the client knows.
create function ojs_http.take_push_key(operation text, key text, request jsonb) returns jsonb
language sql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select ojs_http.take_key(operation, key, request) where operation in ('push_batch', 'push_bulk')
$$;

create function ojs_http.keep_push_answer(operation text, key text, answer jsonb) returns void
language sql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select ojs_http.keep_answer(operation, key, answer)
    where operation in ('push_batch', 'push_bulk') and pg_column_size(answer) < 16 * 1024 * 1024
$$;

create function ojs_http.forget_push_key(operation text, key text) returns void
language sql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select ojs_http.free_key(operation, key) where operation in ('push_batch', 'push_bulk')
$$;

-- Raises PERMISSION_DENIED for a job in a queue that is not for the caller.
create function ojs_http.may_push(jobs jsonb) returns boolean
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp
begin atomic
    select bool_and(ojs_store.use_queue(queue, 'produce') is not null)
    from (select distinct ojs_store.queue_of(job) as queue
        from jsonb_array_elements(case jsonb_typeof(jobs) when 'array' then jobs else '[]' end) job) q;
end;

-- Jobs are large: a plan for these values alone would hold them several times.
create function ojs_http.push_once(request ojs_http.request, jobs jsonb, operation text) returns ojs_http.response
language plpgsql volatile parallel unsafe set plan_cache_mode = force_generic_plan set search_path = pg_catalog,
    pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    key text := ojs_http.idempotency_key(request, body);
    allowed boolean := key is null or ojs_http.may_push(jobs); -- before an answer that was kept is given
    kept jsonb;
    response ojs_http.response;
begin
    if operation = 'push_batch' and not ojs_http.is_atomic(body, 'atomic') then
        operation := 'push_bulk';
    end if;
    kept := case when key is not null then ojs_http.take_push_key(operation, key,
        body - 'idempotency_key' || jsonb_build_object('jobs', jobs)) end;
    if kept is not null then
        return jsonb_populate_record(response, kept);
    end if;
    response := case operation when 'push_batch' then ojs_http.do_push_batch(request, body, jobs)
        else ojs_http.do_push_bulk(request, body, jobs) end;
    if response.status = 422 then
        perform ojs_http.forget_push_key(operation, key);
    elsif key is not null then
        kept := coalesce(response.body, response.content::jsonb);
        if pg_column_size(kept) > 1024 * 1024 then
            kept := kept || coalesce((select jsonb_build_object(list.name, jsonb_agg(ojs_http.abridged(i) order by n))
                from unnest('{items,jobs}'::text[]) as list(name),
                    jsonb_array_elements(kept -> list.name) with ordinality as e(i, n) group by list.name), '{}');
        end if;
        perform ojs_http.keep_push_answer(operation, key,
            jsonb_build_object('status', response.status, 'headers', response.headers, 'body', kept));
    end if;
    return response;
end $$;

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

-- The event that a request was served; the functions of SQL leave none, since what they push tells of itself.
create function ojs_http.record_push_bulk(total int, succeeded int, failed int, atomic boolean) returns void
language sql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select ojs_store.record_event('bulk.enqueue.completed', 'enqueue',
        jsonb_build_object('total', total, 'succeeded', succeeded,
        'failed', failed, 'atomicity', case when atomic then 'atomic' else 'partial' end))
$$;

create function ojs_http.push_bulk(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.push_once(request, ojs_http.field(ojs_http.object(request), 'jobs', 'array', true), 'push_bulk')
$$;

create function ojs_http.do_push_bulk(request ojs_http.request, body jsonb, jobs jsonb) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    atomic boolean := ojs_http.is_atomic(body, 'partial');
    atomicity text := case when atomic then 'atomic' else 'partial' end;
    key text := ojs_http.batch_key(body);
    ttl interval := ojs_http.batch_ttl(body);
    detail text;
    items jsonb;
    failed int;
    succeeded int;
    before text := ojs_http.set_block_timeout(request);
begin
    begin
        items := ojs_http.pushed_items(jobs, atomicity, key, ttl);
    exception when others then
        get stacked diagnostics detail = pg_exception_detail;
        -- An error of one job fails the batch; any other is that of the whole request.
        if not atomic or left(sqlstate, 2) <> 'OJ' or detail !~ '"index":' then
            raise;
        end if;
        items := ojs_http.tried_items(jobs, key, ttl);
    end;
    perform set_config('ojs.block_timeout', before, true);
    failed := (select count(*) from jsonb_array_elements(items) i where i -> 'status' = '"failed"');
    succeeded := (select count(*) from jsonb_array_elements(items) i
        where i ->> 'status' not in ('failed', 'rolled_back'));
    perform ojs_http.record_push_bulk(jsonb_array_length(items), succeeded, failed, atomic);
    if failed > 0 and succeeded = 0 then
        return ojs_http.nothing_done(request, case when atomic then 'no job was pushed, since the batch is atomic'
            else 'no job could be pushed' end, jsonb_build_object('total', jsonb_array_length(items), 'failed', failed,
            'items', items, 'succeeded', succeeded) || ojs_http.batch_warnings());
    end if;
    return ojs_http.batch_response(case when failed > 0 then 207 when items @> '[{"status": "created"}]' then 201
        else 200 end, items, false, '{"items": ',
        format(', "total": %s, "failed": %s%s, "succeeded": %s}', jsonb_array_length(items), failed,
        ', "warnings": ' || (ojs_http.batch_warnings() ->> 'warnings'), succeeded));
end $$;

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
        return jsonb_build_object('ids', (select coalesce(jsonb_agg(lower(id)), '[]') from unnest(ids) id));
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

-- What was answered under this key before; null: it is this request's now, which ends with keep_answer(). For
-- ojs_admin, as what they guard is.
create function ojs_http.take_key(operation text, key text, request jsonb) returns jsonb
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_take_idempotency_key';

create function ojs_http.keep_answer(operation text, key text, answer jsonb) returns void
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_keep_answer';

create function ojs_http.free_key(operation text, key text) returns void
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_free_idempotency_key';

-- A filter says what it means; only one without any condition must be confirmed.
create function ojs_http.do_bulk(request ojs_http.request, operation text, verb text) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    filter jsonb := ojs_http.selection(body);
    atomic boolean := ojs_http.is_atomic(body, 'partial');
    confirm boolean := coalesce(ojs_http.field(body, 'confirm', 'boolean')::boolean, filter <> '{}');
    done jsonb;
    answer jsonb;
begin
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
        'more', done -> 'more', 'items', done -> 'items');
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
        || jsonb_strip_nulls(jsonb_build_object('duplicates', ( -- INT-09
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
