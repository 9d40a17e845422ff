-- http_lists.sql: what sql/http/node.sql is to a node: what the handlers of sql/http need, of all nodes.

create function ojs_http.raise(code text, message text, details jsonb default null, hint text default null) returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_router.raise(code, message, coalesce(details, '{}'), hint);
end $$;

create function ojs_http.now() returns timestamptz language sql volatile parallel restricted
begin atomic
    select clock_timestamp();
end;

-- Nodes see to themselves.
create function ojs_http.upkeep() returns void language sql immutable parallel safe begin atomic select; end;

create function ojs_http.extensions() returns jsonb
language sql stable parallel safe set search_path = pg_catalog, pg_temp as $$
    select ojs.manifest() -> 'extensions'
$$;

-- Before it is parsed. What the settings of a node allow, the node checks.
create function ojs_http.check_body(handler text, body text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    most_bytes constant int := 64 * 1024 * 1024;
    most_values constant int := 1000000;
begin
    if octet_length(body) > most_bytes or octet_length(body) > most_values
            and length(body) - length(translate(body, ',[{', '')) > most_values then
        perform ojs_http.raise('PAYLOAD_TOO_LARGE', format('the body has more than %s bytes or %s values', most_bytes,
            most_values), jsonb_build_object('field', 'body', 'maximum_bytes', most_bytes,
                'maximum_values', most_values), 'Send less at once.');
    end if;
end $$;

-- A node mends what the router could not read.
create function ojs_router.remote_mend(node int, handler text, content text, flat boolean, out mended text,
    out faults jsonb) returns record language plproxy as $$
    cluster 'ojs'; run on node;
    select m.mended, m.faults from ojs_http.mend_body($2, $3, $4) m;
$$;

create function ojs_http.mend_body(handler text, body text, flat boolean, out mended text, out faults jsonb)
    returns record
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    node constant int := ojs_router.any_node();
    failure ojs_router.failure;
begin
    select m.mended, m.faults into mended, faults from ojs_router.remote_mend(node, handler, body, flat) m;
exception when others or query_canceled then
    get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
        failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
    perform ojs_router.raise_failure(node, failure);
end $$;

create function ojs_http.check_atomic() returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_router.refuse('atomicity of this operation', 'it goes to all nodes, which commit by themselves',
        'Leave atomicity out: what could not be done is told for each job.');
end $$;

-- Idempotency keys of cancelling, retrying and deleting.
create function ojs_http.take_key(operation text, key text, request jsonb) returns jsonb
language plpgsql strict volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_router.refuse('idempotency keys of this operation', 'it goes to all nodes, which keep their own',
        'Leave the key out: what is done already is told for each job.');
    return null;
end $$;

create function ojs_http.keep_answer(operation text, key text, answer jsonb) returns void
language sql strict immutable parallel safe begin atomic select; end;

create function ojs_router.remote_listed_jobs(node int, filter jsonb, most int, skip bigint) returns setof jsonb
language plproxy as $$
    cluster 'ojs'; run on node;
    select l.job from ojs_http.listed_jobs($2, $3, $4) l;
$$;
create function ojs_router.listed_jobs_of(node int, filter jsonb, most int, skip bigint) returns setof jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    failure ojs_router.failure;
begin
    return query select j from ojs_router.remote_listed_jobs(node, filter, most, skip) j;
exception when others or query_canceled then
    get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
        failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
    perform ojs_router.raise_failure(node, failure);
end $$;

-- Pages of jobs, in the order of listed_ids() of a node. Of the jobs before the page, and of those that other nodes
-- would have on it, only the places are read. What a node has of the page is a stretch of its own list.
create function ojs_http.listed_jobs(filter jsonb, most int, skip bigint, out job jsonb, out place bigint)
    returns setof record
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    way text := case when filter @> '{"ascending": true}' then 'asc' else 'desc' end;
    ordered text := case filter ->> 'sort' when 'scheduled_at' then 'l.scheduled_at ' || way || ' nulls last, '
        when 'priority' then 'l.priority ' || way || ', ' else '' end || 'l.id ' || way;
begin
    if (most + skip <= 10000) is not true then
        perform ojs_router.raise('INVALID_PAYLOAD', 'a router lists no further than the 10000th job',
            '{"field": "page"}', 'Go on by cursor, which has no such bound.');
    end if;
    return query execute format($q$
        with page as materialized (
            select p.* from (
                select l.node, l.id, l.place, row_number() over (order by %s) as n
                from ojs_router.all_listed_places($1, $2) l) p
            where p.n > $4 and p.n <= $4 + $3
        )
        select j.job, p.n
        from (select node, min(place) as first, max(place) as last from page group by node) s
        cross join lateral ojs_router.listed_jobs_of(s.node, $1, (s.last - s.first + 1)::int, s.first - 1) j(job)
        join page p on p.id = (j.job ->> 'id')::uuid
    $q$, ordered) using filter, (most + skip)::int, most, skip;
end $$;

create function ojs_http.count_listed(filter jsonb) returns bigint
language sql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(sum(a.jobs), 0)::bigint from ojs_router.all_count_listed(filter) a
$$;

create function ojs_http.listed_limits(only_key text, most int, skip int, out rate_limit ojs.rate_limits,
    out total bigint) returns setof record
language sql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select r, count(*) over () from ojs.rate_limits r where only_key is null or r.key = only_key
    order by r.key limit most offset skip
$$;

create function ojs_http.listed_workflows(of_state text, after uuid, most int, skipped int, out id uuid,
    out workflow jsonb) returns setof record
language sql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select a.id, a.workflow from ojs_router.all_listed_workflows(of_state, after, most + skipped) a
    order by a.id desc limit most offset skipped
$$;

create function ojs_http.history_of(queue text, step interval, since timestamptz, until timestamptz) returns jsonb
language sql volatile parallel unsafe security definer set datestyle = 'ISO' set search_path = pg_catalog, pg_temp
as $$
    select coalesce(jsonb_agg(jsonb_strip_nulls(to_jsonb(h)) order by h."timestamp"), '[]')
    from (
        select p."timestamp", sum(p.processed) as processed, sum(p.failed) as failed, sum(p.enqueued) as enqueued,
            round(sum(p.avg_duration_ms * p.processed)
                / nullif(sum(p.processed) filter (where p.avg_duration_ms is not null), 0), 3) as avg_duration_ms,
            round(sum(p.avg_wait_ms * p.processed)
                / nullif(sum(p.processed) filter (where p.avg_wait_ms is not null), 0), 3) as avg_wait_ms
        from ojs_router.all_history_of(queue, step, since, until) a,
            jsonb_to_recordset(a.history) p("timestamp" text, processed bigint, failed bigint, enqueued bigint,
                avg_duration_ms numeric, avg_wait_ms numeric)
        group by 1) h
$$;

create function ojs_http.held_keys(most int, skipped int, out entries jsonb[], out total bigint) returns record
language sql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    with asked as materialized (select a.entries, a.total from ojs_router.all_held_keys(most + skipped) a)
    select array(select e from asked a, jsonb_array_elements(a.entries) e order by e ->> 'key'
        limit most offset skipped),
        (select sum(a.total)::bigint from asked a)
$$;

create function ojs_http.waiting_by_priority(queue text) returns jsonb
language sql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(jsonb_agg(to_jsonb(p) order by p.priority desc), '[]')
    from (select w.priority, sum(w.count) as count from ojs_router.all_waiting_by_priority(queue) a,
        jsonb_to_recordset(a.waiting) w(priority int, count bigint) group by 1) p
$$;

create function ojs_http.cron_job(name text) returns jsonb
language sql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select a.job from ojs_router.all_cron_jobs(name) a where a.job is not null limit 1
$$;

create function ojs_http.take_back_jobs(worker text) returns int
language sql strict volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select sum(a.jobs)::int from ojs_router.all_taken_back_jobs(worker) a
$$;

create function ojs_router.remote_end_of(node int, job jsonb) returns jsonb language plproxy as $$
    cluster 'ojs'; run on node;
    select pg_catalog.to_jsonb(ojs_http.end_of(job));
$$;
create function ojs_http.end_of(job jsonb) returns jsonb[]
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    node int := ojs_router.holding_node((job ->> 'id')::uuid);
    failure ojs_router.failure;
begin
    return (select array_agg(e) from jsonb_array_elements(ojs_router.remote_end_of(node, job)) e);
exception when others or query_canceled then
    get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
        failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
    perform ojs_router.raise_failure(node, failure);
end $$;

-- Of the lists and statistics that were read in this transaction.
create function ojs_http.missing_nodes() returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    return case when coalesce(current_setting('ojs_router.answered', true), '') <> ''
        then to_jsonb(nullif(ojs_router.not_answered(), '{}')) end;
end $$;
