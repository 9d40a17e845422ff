-- node.sql: what the handlers need of the tables and the library of the node that serves. A router has these of its own
-- (router/sql/http.sql), beside the other files of sql/http that it shares (router/Makefile).

create function ojs_http.raise(code text, message text, details jsonb default null, hint text default null) returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_raise';

create function ojs_http.now() returns timestamptz
language c volatile parallel restricted as 'MODULE_PATHNAME', 'ojs_now';

-- A time and a duration as a push reads them; and how many values a JSON text may hold.
create function ojs_http.time_value(given text, field text) returns timestamptz
language c stable strict parallel restricted as 'MODULE_PATHNAME', 'ojs_time_value';

create function ojs_http.duration_value(given jsonb, field text) returns interval
language c immutable strict parallel safe as 'MODULE_PATHNAME', 'ojs_duration_value';

create function ojs_http.values_in(given text) returns bigint
language c immutable strict parallel safe as 'MODULE_PATHNAME', 'ojs_values_in';

-- Mends a body that could not be read. In the report of a failure, replaces what jsonb cannot hold, and with `flat` all
-- that is nested. In a batch, replaces each job that jsonb cannot hold by null, and says in faults, by index, what is
-- wrong with it. Refuses any other body, by the name of its member. mended is null where no fault is found.
create function ojs_http.mend_body(handler text, body text, flat boolean, out mended text, out faults jsonb)
    returns record
language c stable strict parallel safe as 'MODULE_PATHNAME', 'ojs_mend_body';

-- Where no background worker runs, a request does a pass of upkeep first, so that what it reads is true of this moment.
-- A role that may only look does none.
create function ojs_http.tick_without_worker() returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    if not ojs_store.worker_running() and not pg_is_in_recovery()
        and not current_setting('transaction_read_only')::boolean then
        perform ojs.tick(1000);
    end if;
end $$;

create function ojs_http.upkeep() returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if has_function_privilege('ojs_http.tick_without_worker()', 'execute') then
        perform ojs_http.tick_without_worker();
    end if;
end $$;

-- Refuses a body before it is parsed: one that is longer than the route can do with, or that holds so many values that
-- they would take far more memory than their text.
create function ojs_http.check_body(handler text, body text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    values_held constant bigint := ojs_http.values_in(body); -- also loads the library, and with it its settings
    -- where a statement names the body itself, each step of the planner copies it
    bytes constant int := octet_length(body);
    most_bytes bigint := 64 * 1024 * 1024;
    most_values bigint := 100000 + current_setting('ojs.max_args_elements')::bigint;
begin
    if handler in ('push_batch', 'push_bulk') then
        most_values := greatest(most_values, 20 * current_setting('ojs.max_batch_size')::bigint);
    elsif handler <> 'nack' then -- the report of a failure lands, however long it is: it is cut where it is stored
        -- Twice, since JSON may be written with spaces and escapes.
        most_bytes := 2 * greatest(ojs_http.bytes_of('ojs.max_envelope_size'),
            case when handler <> 'push' then ojs_http.bytes_of('ojs.max_result_size') end);
    end if;
    if handler = 'push' and bytes between most_bytes / 2 + 1 and most_bytes -- btrim takes twelve times its length
        and octet_length(btrim(body, e' \t\r\n')) > most_bytes / 2 then
        perform ojs_http.raise('PAYLOAD_TOO_LARGE', format('envelope has %s bytes, and %s are allowed', bytes,
            most_bytes / 2), jsonb_build_object('field', 'envelope', 'actual_bytes', bytes, 'maximum_bytes',
                most_bytes / 2), 'Keep large data elsewhere and push a reference to it.');
    elsif bytes > most_bytes then
        perform ojs_http.raise('PAYLOAD_TOO_LARGE', format('the body has %s bytes, and %s are allowed', bytes,
            most_bytes),
            jsonb_build_object('field', 'body', 'actual_bytes', bytes, 'maximum_bytes', most_bytes),
                'Send less at once.');
    elsif values_held > most_values then
        perform ojs_http.raise('PAYLOAD_TOO_LARGE', format('the body holds %s values, and %s are allowed', values_held,
            most_values),
            jsonb_build_object('field', 'body', 'actual_values', values_held, 'maximum_values', most_values),
                'Send less at once.');
    end if;
end $$;

-- Raises where many jobs cannot be changed all or none; here they can.
create function ojs_http.check_atomic() returns void language sql immutable parallel safe begin atomic select; end;

-- What was answered under this key before; null: it is this request's now, which ends with keep_answer(). For
-- ojs_admin, as what they guard is.
create function ojs_http.take_key(operation text, key text, request jsonb) returns jsonb
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_take_idempotency_key';

create function ojs_http.keep_answer(operation text, key text, answer jsonb) returns void
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_keep_answer';

create function ojs_http.free_key(operation text, key text) returns void
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_free_idempotency_key';

-- The jobs that such a filter describes, in its order, and how many there are. The caller needs no right on schema
-- ojs_store: the names in these bodies were looked up when they were made.
create function ojs_http.listed_jobs(filter jsonb, most int, skip bigint, out job jsonb, out place bigint)
    returns setof record
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp
begin atomic
    select ojs.envelope(looked.job), listed.place
    from ojs_store.listed_ids(filter, most, skip) with ordinality as listed(id, place)
    cross join lateral (select ojs_store.visible(listed.id) as job offset 0) looked
    where (looked.job).id is not null
    order by listed.place;
end;

create function ojs_http.count_listed(filter jsonb) returns bigint
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp
begin atomic
    select ojs_store.count_listed(filter);
end;

-- One key, or a page of those that the caller may see, and how many there are.
create function ojs_http.listed_limits(only_key text, most int, skip int, out rate_limit ojs.rate_limits,
    out total bigint) returns setof record
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp
begin atomic
    select (r.key, r.concurrency, r.active, r.rate, r.rate_period, r.started, r.window_resets_at, r.throttle,
        r.throttle_period, r.next_allowed_at, r.paused_until, r.waiting, r.override, r.override_until)::ojs.rate_limits,
        r.total
    from ojs_store.rate_limits(only_key, most, skip) r
    where ojs_store.may_read_limit(r.key);
end;

create function ojs_http.history_of(queue text, step interval, since timestamptz, until timestamptz) returns jsonb
language sql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object('timestamp', ojs_http.rfc3339(h.at), 'processed',
        h.completed, 'failed', h.failed,
        'enqueued', h.enqueued, 'avg_duration_ms', h.avg_run_ms, 'avg_wait_ms', h.avg_wait_ms)) order by h.at), '[]')
    from ojs_store.history(array(select ojs_store.queue_id(q.name) from ojs.queues q
        where queue is null or q.name = ojs_store.stored_queue(queue)), step, since, until) h
$$;

create function ojs_http.held_keys(most int, skipped int, out entries jsonb[], out total bigint) returns record
language plpgsql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    select array_agg(jsonb_build_object('key', encode(u.fingerprint, 'hex'), 'job_id', u.job_id, 'type', j.type,
        'queue', j.queue, 'state', j.state) order by u.fingerprint)
    into entries
    from (select h.fingerprint, h.job_id from ojs_store.unique_key h
        where h.held and ojs_store.if_allowed(h.job_id, ojs_store.may_use_queue(
            (select k.queue from ojs_store.job k where k.id = h.job_id), 'read')) = h.job_id
        order by h.fingerprint limit most offset skipped) u, lateral ojs_store.visible(u.job_id) j
    where j.id is not null;
    select count(*) into total from ojs_store.unique_key h
    where h.held and ojs_store.if_allowed(h.job_id, ojs_store.may_use_queue(
        (select k.queue from ojs_store.job k where k.id = h.job_id), 'read')) = h.job_id;
end $$;

create function ojs_http.waiting_by_priority(queue text) returns jsonb
language sql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(jsonb_agg(jsonb_build_object('priority', -r.npriority, 'count', r.n) order by r.npriority), '[]')
    from (select npriority, count(*) as n from ojs_store.ready
        where queue = (select ojs_store.queue_id(ojs_store.use_queue($1, 'read'))) group by 1) r
$$;

-- The policy _default is no queue, but has settings like one.
create function ojs_http.default_policy() returns jsonb
language sql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select ojs_store.effective_config(coalesce((select q.config from ojs_store.queue q where q.name = '_default'
        order by q.revised_at desc limit 1), '{}'), true)
$$;

create function ojs_http.take_back_jobs(worker text) returns int
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_take_back_jobs';

-- What a run of an entry would push now; null if there is no such entry.
create function ojs_http.cron_job(name text) returns jsonb
language sql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select ojs_store.cron_envelope(c, ojs_http.now(), ojs_http.now()) from ojs_store.cron c
    where c.name = $1 and exists (select from ojs.crons v where v.name = c.name)
$$;

-- The newest first, without those that are members of another.
create function ojs_http.listed_workflows(of_state text, after uuid, most int, skipped int, out id uuid,
    out workflow jsonb) returns setof record
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select w.id, jsonb_strip_nulls(jsonb_build_object('id', w.id, 'name', w.name, 'type', w.type, 'state', w.state,
        'members', w.members, 'completed', w.completed, 'failed', w.failed, 'job_count', w.job_count,
        'created_at', ojs_http.rfc3339(w.created_at), 'ended_at', ojs_http.rfc3339(w.ended_at)))
    from ojs.workflows w
    where w.parent_id is null and (of_state is null or w.state = of_state) and (after is null or w.id < after)
    order by w.id desc limit most offset skipped
$$;

-- The event of a job's end.
create function ojs_http.end_of(job jsonb) returns jsonb[]
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select array_agg(jsonb_build_object('specversion', e.specversion, 'id', e.id, 'type', e.type, 'source', e.source,
        'time', ojs_http.rfc3339(e."time"), 'subject', e.subject, 'data', e.data))
    from (select * from ojs.events l where l.job_id = (job ->> 'id')::uuid and l.type = 'job.' || (job ->> 'state')
        order by l."time" desc limit 1) e
$$;

-- Which nodes the answer is without: null here, and then costs nothing.
create function ojs_http.missing_nodes() returns jsonb
language sql immutable parallel safe
begin atomic
    select null::jsonb;
end;
