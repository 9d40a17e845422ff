-- batches.sql: many pushes in one request.

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
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    ttls interval[] := array(select ojs_http.duration_value(body -> name, 'deduplication_ttl')
        from unnest('{deduplication_ttl,deduplicationTtl,taskDeduplicationTtl}'::text[]) name
        where body -> name <> 'null');
begin
    if (select count(distinct ttl) from unnest(ttls) ttl) > 1 then
        perform ojs_http.raise('INVALID_PAYLOAD', 'deduplication_ttl comes twice with different values',
            '{"field": "deduplication_ttl"}', 'Give it once.');
    end if;
    return ttls[1];
end $$;

-- Pushes, and says of each job what became of it. An object for args, which SQL takes for the only argument, is
-- refused here (R-01): it is handed on as a boolean, which SQL refuses, too. A job that could not be read is null, and
-- faults has its error.
create function ojs_http.pushed_items(jobs jsonb, atomicity text, deduplication_key text, deduplication_ttl interval,
    faults jsonb default null) returns jsonb
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select coalesce(jsonb_agg(jsonb_build_object('index', r.index, 'status', r.status)
            || case when r.id is not null then jsonb_build_object('id', r.id) else '{}' end
            || case when r.error is not null then jsonb_build_object('error', ojs_http.item_error(case
                when jsonb_typeof(jobs -> r.index -> 'args') = 'object'
                then jsonb_set(r.error, '{message}', '"args must be an array, not an object"')
                else r.error || coalesce(faults -> r.index::text, '{}') end))
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
create function ojs_http.tried_items(jobs jsonb, deduplication_key text, deduplication_ttl interval,
    faults jsonb default null) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    items jsonb;
begin
    items := ojs_http.pushed_items(jobs, 'partial', deduplication_key, deduplication_ttl, faults);
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
create function ojs_http.push_once(request ojs_http.request, jobs jsonb, operation text, faults jsonb default null)
    returns ojs_http.response
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
    response := case operation when 'push_batch' then ojs_http.do_push_batch(request, body, jobs, faults)
        else ojs_http.do_push_bulk(request, body, jobs, faults) end;
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

create function ojs_http.do_push_bulk(request ojs_http.request, body jsonb, jobs jsonb, faults jsonb)
    returns ojs_http.response
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
        items := ojs_http.pushed_items(jobs, atomicity, key, ttl, faults);
    exception when others then
        get stacked diagnostics detail = pg_exception_detail;
        -- An error of one job fails the batch; any other is that of the whole request.
        if not atomic or left(sqlstate, 2) <> 'OJ' or detail !~ '"index":' then
            raise;
        end if;
        items := ojs_http.tried_items(jobs, key, ttl, faults);
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

-- All or none, unless the batch says otherwise.
create function ojs_http.push_batch(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.push_once(request, ojs_http.field(ojs_http.object(request), 'jobs', 'array', true), 'push_batch')
$$;

create function ojs_http.do_push_batch(request ojs_http.request, body jsonb, jobs jsonb, faults jsonb)
    returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    key text := ojs_http.batch_key(body);
    items jsonb;
    twin jsonb;
    before text := ojs_http.set_block_timeout(request);
begin
    if jobs = '[]' then
        perform ojs_http.raise('INVALID_PAYLOAD', 'jobs is empty', '{"field": "jobs"}', 'Give at least one job.');
    end if;
    perform ojs_http.raise('INVALID_PAYLOAD', format('jobs[%s]: %s', f.key, f.value ->> 'message'),
        f.value -> 'details' || jsonb_build_object('index', f.key::int), f.value ->> 'hint')
    from jsonb_each(faults) f order by f.key::int limit 1;
    perform ojs_http.check_args(j.job, (j.place - 1)::int) from jsonb_array_elements(jobs)
        with ordinality as j(job, place);
    begin
        items := ojs_http.pushed_items(jobs, 'atomic', key, ojs_http.batch_ttl(body));
    exception when sqlstate 'OJ301' then
        -- The job in the way may be one of this batch, which never was: then its place in the batch is said instead.
        select i -> 'error' into twin
            from jsonb_array_elements(ojs_http.tried_items(jobs, key, ojs_http.batch_ttl(body))) i
        where i #> '{error,details}' ? 'existing_index' limit 1;
        if twin is not null then
            perform ojs_http.raise('DUPLICATE_JOB', twin ->> 'message', twin -> 'details', twin ->> 'hint');
        end if;
        raise;
    end;
    perform set_config('ojs.block_timeout', before, true);
    return ojs_http.batch_response(case when items @> '[{"status": "created"}]' then 201 else 200 end, items, true,
        '{"jobs": ', format(', "count": %s%s}', jsonb_array_length(items),
        ', "warnings": ' || (ojs_http.batch_warnings() ->> 'warnings')));
end $$;
