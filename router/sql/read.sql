-- read.sql: looking at all nodes. Where some do not answer, the answer is that of the others, and says so: JSON in a
-- member
-- "missing_nodes", rows by a WARNING.

-- The paths of the bounds that nodes share (admin.sql), under each name that they have.
create function ojs_router.bounds() returns text[] language sql immutable parallel safe begin atomic
    select array[['concurrency', '', ''], ['max_size', '', ''], ['max_depth', '', ''], ['max_size_bytes', '', ''],
        ['limit', '', ''], ['rate', 'limit', ''], ['throttle', 'limit', ''],
        ['rate_limit', 'concurrency', ''], ['rate_limit', 'limit', ''], ['rate_limit', 'rate', 'limit'],
        ['rate_limit', 'throttle', 'limit']]; end;

-- Settings of a queue or a limit on all nodes: those of the first, with the bounds that are shared out added up.
create function ojs_router.merged_config(configs jsonb[]) returns jsonb
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    config jsonb := configs[1];
    path text[];
begin
    foreach path slice 1 in array ojs_router.bounds() loop
        path := array_remove(path, '');
        if jsonb_typeof(config #> path) = 'number' then
            config := jsonb_set(config, path, to_jsonb((select sum((c #>> path)::numeric) from unnest(configs) c)));
        end if;
    end loop;
    return config;
end $$;

-- Answers of several nodes as one: numbers are added, lists joined; of what can only be told apart, the first.
create function ojs_router.merged(answers jsonb[]) returns jsonb
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    first jsonb := answers[1];
    merged jsonb := '{}';
    key text;
    parts jsonb[];
begin
    if coalesce(cardinality(answers), 0) < 2 then
        return first;
    end if;
    if jsonb_typeof(first) = 'number' then
        return to_jsonb((select sum(a::numeric) from unnest(answers) a where jsonb_typeof(a) = 'number'));
    elsif jsonb_typeof(first) = 'boolean' then
        return to_jsonb((select bool_or(a::boolean) from unnest(answers) a where jsonb_typeof(a) = 'boolean'));
    elsif jsonb_typeof(first) = 'array' then
        return (select jsonb_agg(e) from unnest(answers) with ordinality u(a, n), jsonb_array_elements(a) e
            where jsonb_typeof(a) = 'array');
    elsif jsonb_typeof(first) <> 'object' then
        return first;
    end if;
    for key in select distinct k from unnest(answers) a, jsonb_object_keys(a) k where jsonb_typeof(a) = 'object' loop
        parts := array(select a -> key from unnest(answers) with ordinality u(a, n) where a ? key
            and jsonb_typeof(a -> key) <> 'null' order by n);
        merged := merged || jsonb_build_object(key, case
            when key = 'config' then ojs_router.merged_config(parts)
            when key = 'paused' then parts[1]
            when starts_with(key, 'avg_') then to_jsonb((select round(avg(p::numeric), 3) from unnest(parts) p))
            when starts_with(key, 'newest_') or key = 'computed_at'
                then to_jsonb((select max(p #>> '{}') from unnest(parts) p))
            when starts_with(key, 'oldest_') then to_jsonb((select min(p #>> '{}') from unnest(parts) p))
            else ojs_router.merged(parts) end);
    end loop;
    return merged;
end $$;

create function ojs_router.not_answered() returns int[]
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select array(select number from ojs_router.node where state <> 'removed'
        and number <> all (current_setting('ojs_router.answered')::int[]) order by number)
$$;

create function ojs_router.with_missing(answer jsonb) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    missing int[] := ojs_router.not_answered();
begin
    return case when missing = '{}' then answer else coalesce(answer, '{}')
        || jsonb_build_object('missing_nodes', to_jsonb(missing)) end;
end $$;

-- Rows of all nodes. ojs_router.remote_NAME asks them, ojs_router.all_NAME asks again those that are left where
-- one fails, and leaves in ojs_router.answered who answered.
do $do$
declare
    f record;
begin
    for f in select * from (values
        ('results', 'ids uuid[]', 'id uuid, state text, result jsonb', 'ojs.results(ids) x where x.state is not null',
            'x.id, x.state, x.result'),
        ('queue_stats', 'name text',
            'queue text, paused boolean, ready bigint, in_flight bigint, delayed bigint, available bigint, active '
            'bigint, '
            'scheduled bigint, retryable bigint, pending bigint, completed bigint, cancelled bigint, discarded bigint, '
                'dead_lettered bigint, '
            'completed_last_hour bigint, failed_last_hour bigint, avg_duration_ms numeric, avg_wait_ms numeric, '
                'throughput_per_second numeric, '
            'computed_at timestamptz', 'ojs.queue_stats() x where name is null or x.queue = name', 'x.*'),
        ('queue_infos', 'name text', 'info jsonb', 'ojs.queues x where x.name = $2', 'ojs.queue_info(x.name) as info'),
        ('queues', '', 'name text, state text, created_at timestamptz, config jsonb', 'ojs.queues x', 'x.*'),
        ('workers', '',
            'worker text, status text, state text, directive text, registered_at timestamptz, last_seen_at '
            'timestamptz, '
            'died_at timestamptz, hostname text, pid int, queues text[], concurrency int, labels text[], active_jobs '
                'int, active_job_ids uuid[], '
            'info jsonb', 'ojs.workers x', 'x.*'),
        ('crons', '',
            'name text, expression text, timezone text, enabled boolean, overlap_policy text, description text, job '
            'jsonb, '
            'next_run_at timestamptz, last_run_at timestamptz, run_count bigint, created_at timestamptz', 'ojs.crons x',
                'x.*'),
        ('rate_limits', '',
            'key text, concurrency int, active bigint, rate int, rate_period interval, started bigint, '
            'window_resets_at timestamptz, '
            'throttle int, throttle_period interval, next_allowed_at timestamptz, paused_until timestamptz, waiting '
                'bigint, override jsonb, '
            'override_until timestamptz', 'ojs.rate_limits x', 'x.*'),
        ('schemas', '',
            'type text, version text, uri text, schema jsonb, created_at timestamptz, validation text', 'ojs.schemas x',
            'x.type, x.version, x.uri, x.schema, x.created_at, x.validation'),
        ('list_jobs', 'in_queue text, in_state text, in_type text, after text, most int',
            (select string_agg(quote_ident(attname) || ' ' || format_type(atttypid, null), ', ' order by attnum)
             from pg_attribute where attrelid = 'ojs.job'::regclass and attnum > 0),
            -- a queue need not be on all nodes
            '(select $2::text as name where $2 is null or exists (select from ojs.queues q where q.name = $2)) y, '
            'lateral ojs.list_jobs(y.name, $3, $4, $5, $6) x', 'x.*'),
        ('listed_places', 'filter jsonb, most int', 'id uuid, priority int, scheduled_at timestamptz, place bigint',
            'ojs_http.listed_jobs($2, $3, 0) x', '(x.job ->> ''id'')::uuid as id, (x.job ->> ''priority'')::int as '
            'priority, (x.job ->> ''scheduled_at'')::timestamptz as scheduled_at, x.place'),
        ('count_listed', 'filter jsonb', 'jobs bigint', '(select 1) y', 'ojs_http.count_listed($2) as jobs'),
        ('listed_workflows', 'of_state text, after uuid, most int', 'id uuid, workflow jsonb',
            'ojs_http.listed_workflows($2, $3, $4, 0) x', 'x.*'),
        ('history_of', 'queue text, step interval, since timestamptz, until timestamptz', 'history jsonb',
            '(select 1) y', 'ojs_http.history_of($2, $3, $4, $5) as history'),
        ('held_keys', 'most int', 'entries jsonb, total bigint', 'ojs_http.held_keys($2, 0) x',
            'pg_catalog.to_jsonb(x.entries) as entries, x.total'),
        ('waiting_by_priority', 'queue text', 'waiting jsonb', 'ojs.queues x where x.name = $2',
            'ojs_http.waiting_by_priority(x.name) as waiting'),
        ('cron_jobs', 'name text', 'job jsonb', '(select 1) y', 'ojs_http.cron_job($2) as job'),
        ('taken_back_jobs', 'worker text', 'jobs int', '(select 1) y', 'ojs_http.take_back_jobs($2) as jobs'),
        ('health', '', 'health jsonb', 'ojs.health() x', 'x as health'),
        ('metrics', '', 'metrics text', 'ojs.metrics() x', 'x as metrics'),
        ('dead_letter_stats', 'queue text', 'stats jsonb', '(select 1) y',
            'ojs.dead_letter_stats(case when exists (select from ojs.queues q where q.name = queue) or queue is null '
            'then queue end) as stats')
    ) v(name, parameters, columns, source, list) loop
        execute format($f$
            create function ojs_router.remote_%1$s(nodes int[]%2$s, out node int, %3$s) returns setof record
                language plproxy as $p$
                cluster 'ojs'; run on unnest(nodes);
                select pg_catalog.current_setting('ojs.node_id')::int4 as node, %4$s from %5$s;
            $p$
        $f$, f.name, case when f.parameters <> '' then ', ' || f.parameters else '' end,
            (select string_agg('out ' || c, ', ') from regexp_split_to_table(f.columns, ', ') c), f.list, f.source);
        execute format($f$
            create function ojs_router.all_%1$s(%2$sout node int, %3$s) returns setof record
            language plpgsql volatile parallel unsafe %5$s set search_path = pg_catalog, pg_temp as $p$
            #variable_conflict use_column
            declare
                _nodes int[] := ojs_router.live_nodes();
                _failure ojs_router.failure;
            begin
                for _attempt in 1..4 loop
                    begin
                        return query select x.* from ojs_router.remote_%1$s(_nodes%4$s) x;
                        exit;
                    exception when others or query_canceled then
                        get stacked diagnostics _failure.state = returned_sqlstate, _failure.message = message_text,
                            _failure.detail = pg_exception_detail, _failure.hint = pg_exception_hint;
                        _nodes := ojs_router.answering_after(_nodes, _failure, _attempt);
                    end;
                end loop;
                perform ojs_router.check_any(_nodes);
                perform set_config('ojs_router.answered', _nodes::text, true);
                %6$s
            end $p$
        $f$, f.name, case when f.parameters <> '' then f.parameters || ', '
            else '' end, (select string_agg('out ' || c, ', ') from regexp_split_to_table(f.columns, ', ') c),
            (select string_agg(', $' || i, '' order by i) from generate_series(1, case when f.parameters = '' then 0
                else
                cardinality(regexp_split_to_array(f.parameters, ', ')) end) i),
            -- What views call runs with the rights of who reads them.
            case when f.name in ('queues', 'workers', 'crons', 'rate_limits') then 'security definer' end,
            case when f.name in ('queues', 'workers', 'crons', 'rate_limits')
                then 'perform ojs_router.warn_missing();' end);
    end loop;
end $do$;

create function ojs_router.warn_missing() returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    missing int[] := ojs_router.not_answered();
begin
    if missing <> '{}' then
        raise warning 'the answer is partial: no answer of node %', array_to_string(missing, ', ')
            using hint = 'What is on that node is missing in it. Ask again when the node is back.';
    end if;
end $$;

create function ojs.results(job_ids uuid[], out id uuid, out state text, out result jsonb) returns setof record
language plpgsql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    return query
        select i.id, r.state, r.result
        from unnest(job_ids) with ordinality i(id, n)
        left join (select distinct on (a.id) a.* from ojs_router.all_results(job_ids) a) r on r.id = i.id
        order by i.n;
    perform ojs_router.warn_missing();
end $$;

create function ojs_router.queue_missing(name text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if ojs_router.not_answered() = '{}' then
        perform ojs_router.raise('NOT_FOUND', format('there is no queue %s', to_json(left(name, 255))),
            jsonb_build_object('reason', 'topic_not_found', 'queue', left(name, 255)), 'Create it, or push to it.');
    end if;
end $$;

create function ojs.queue_stats(
    name text default null,
    out queue text, out paused boolean, out ready bigint, out in_flight bigint, out delayed bigint,
        out available bigint, out active bigint,
    out scheduled bigint, out retryable bigint, out pending bigint, out completed bigint, out cancelled bigint,
        out discarded bigint,
    out dead_lettered bigint, out completed_last_hour bigint, out failed_last_hour bigint, out avg_duration_ms numeric,
    out avg_wait_ms numeric, out throughput_per_second numeric, out computed_at timestamptz
) returns setof record
language plpgsql stable parallel unsafe security definer rows 10 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    return query
        select a.queue, bool_and(a.paused), sum(a.ready)::bigint, sum(a.in_flight)::bigint, sum(a.delayed)::bigint,
            sum(a.available)::bigint,
            sum(a.active)::bigint, sum(a.scheduled)::bigint, sum(a.retryable)::bigint, sum(a.pending)::bigint,
                sum(a.completed)::bigint,
            sum(a.cancelled)::bigint, sum(a.discarded)::bigint, sum(a.dead_lettered)::bigint,
                sum(a.completed_last_hour)::bigint,
            sum(a.failed_last_hour)::bigint,
            round(sum(a.avg_duration_ms * a.completed_last_hour) /
                nullif(sum(a.completed_last_hour) filter (where a.avg_duration_ms is not null), 0), 3),
            round(sum(a.avg_wait_ms * a.completed_last_hour) /
                nullif(sum(a.completed_last_hour) filter (where a.avg_wait_ms is not null), 0), 3),
            sum(a.throughput_per_second), max(a.computed_at)
        from ojs_router.all_queue_stats(queue_stats.name) a group by a.queue order by a.queue;
    if not found and queue_stats.name is not null then
        perform ojs_router.queue_missing(queue_stats.name);
    end if;
    perform ojs_router.warn_missing();
end $$;

create function ojs.queue_info(name text) returns jsonb
language plpgsql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    answer jsonb := ojs_router.merged(array(select a.info from ojs_router.all_queue_infos(name) a order by a.node));
begin
    if answer is null then
        perform ojs_router.queue_missing(name);
    end if;
    return ojs_router.with_missing(answer);
end $$;

create function ojs.list_jobs(queue text default null, state text default null, type text default null,
    after text default null, max int default 100)
returns setof ojs.job
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    if list_jobs.queue is not null then
        perform ojs_router.check_queues(array[list_jobs.queue]);
    end if;
    return query
        with listed as materialized (
            select a.* from ojs_router.all_list_jobs(list_jobs.queue, list_jobs.state, list_jobs.type, list_jobs.after,
                list_jobs.max) a
        ), cut as (
            -- A node may end its page early because of its size; what others have of older jobs is then for the next
            -- page.
            select max(c.last::text)::uuid as at
            from (select min(l.id::text) as last, count(*) as n, sum(octet_length(l.args::text)) as size from listed l
                group by l.node) c
            where c.n < list_jobs.max and c.size > 4000000
        )
        select l.id, l.seq, l.specversion, l.type, l.queue, l.state, l.args, l.meta, l.priority, l.attempt,
            l.max_attempts, l.deliveries, l.created_at,
            l.enqueued_at, l.scheduled_at, l.expires_at, l.started_at, l.completed_at, l.cancelled_at, l.discarded_at,
                l.next_attempt_at,
            l.timeout, l.retry, l."unique", l.schema, l.tags, l.result, l.error, l.errors, l.worker, l.extra,
                l.deduplicated
        from listed l where l.id >= (select at from cut) or (select at from cut) is null
        order by l.id desc limit list_jobs.max;
    perform ojs_router.warn_missing();
end $$;

create function ojs.dead_letter_stats(queue text default null) returns jsonb
language plpgsql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    if queue is not null then
        perform ojs_router.check_queues(array[queue]);
    end if;
    return ojs_router.with_missing(ojs_router.merged(array(select a.stats from ojs_router.all_dead_letter_stats(queue) a
        order by a.node)));
end $$;

-- A sample of a node gets its number as a label.
create function ojs.metrics() returns text
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    answer text;
begin
    with lines as (
        select a.node, l.line, l.n,
            -- The family of a sample: the last comment before it.
            count(*) filter (where l.line like '# HELP %') over (partition by a.node order by l.n) as family
        from ojs_router.all_metrics() a, unnest(string_to_array(a.metrics, E'\n')) with ordinality l(line, n)
        where l.line <> ''
    ), named as (
        select *, first_value(split_part(line, ' ', 3)) over (partition by node, family order by n) as name from lines
    ), first as (
        select name, min(node) as node from named group by name
    )
    select string_agg(case when n.line like '#%' then n.line
            when n.line ~ '^[^ ]*[{]' then regexp_replace(n.line, '[{]', format('{node="%s",', n.node))
            else regexp_replace(n.line, ' ', format('{node="%s"} ', n.node)) end, E'\n'
                order by n.name, n.line not like '#%', n.node, n.n) || E'\n'
    into answer
    from named n join first f using (name)
    where n.line not like '#%' or n.node = f.node;
    return coalesce(answer, '')
        || E'# HELP ojs_router_node_up Whether a node answers.\n# TYPE ojs_router_node_up gauge\n'
        || (select string_agg(format('ojs_router_node_up{node="%s"} %s', number, case
            when number = any (ojs_router.not_answered()) then 0 else 1 end), E'\n' order by number)
            from ojs_router.node where state <> 'removed') || E'\n';
end $$;

create function ojs.health() returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    nodes jsonb;
    missing int[];
begin
    select jsonb_object_agg(a.node, a.health) into nodes from ojs_router.all_health() a;
    missing := ojs_router.not_answered();
    return jsonb_build_object(
        'status', case when missing <> '{}' or exists (select from jsonb_each(nodes) n
            where n.value ->> 'status' <> 'ok') then 'degraded' else 'ok' end,
        'version', ojs_router.version(), 'backend', '{"status": "healthy"}'::jsonb,
        'uptime_seconds', floor(extract(epoch from clock_timestamp() - pg_postmaster_start_time())),
        'timestamp', ojs_http.rfc3339(clock_timestamp()),
        'workers', (select ojs_router.merged(array_agg(n.value -> 'workers')) from jsonb_each(nodes) n),
        'maintenance', (select n.value -> 'maintenance' from jsonb_each(nodes) n
            order by n.value -> 'maintenance' = 'null' limit 1),
        'nodes', coalesce(nodes, '{}'), 'missing_nodes', to_jsonb(missing),
        'draining_nodes', (select coalesce(jsonb_agg(number order by number), '[]') from ojs_router.node
            where state = 'draining'),
        'moving_slots', (select count(*) from ojs_router.slot where previous is not null),
        'watched', ojs_router.is_watched());
end $$;

create function ojs.ready() returns boolean
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    return ojs_router.answering(ojs_router.live_nodes()) <> '{}';
end $$;

-- What any node knows.
do $do$
declare
    f record;
begin
    for f in select * from (values
        ('ojs', 'canonical_json', 'json jsonb', 'text', 'ojs.canonical_json($2)'),
        ('ojs', 'fingerprint', 'job jsonb', 'text', 'ojs.fingerprint($2)'),
        ('ojs', 'fingerprint_input', 'job jsonb', 'text', 'ojs.fingerprint_input($2)'),
        -- without the extensions that a router does not have
        ('ojs', 'manifest', '', 'jsonb', $m$pg_catalog.jsonb_set(pg_catalog.jsonb_insert(ojs.manifest(),
            '{delivery,ordering,none,0}', '"across nodes"'), '{extensions,official}', (
            select pg_catalog.jsonb_agg(e) from pg_catalog.jsonb_array_elements(
                ojs.manifest() #> '{extensions,official}') e
            where e ->> 'name' not in ('backpressure', 'fair-scheduling', 'multi-tenancy', 'webhooks')))$m$),
        ('ojs', 'capabilities', '', 'jsonb', 'ojs.capabilities()'),
        ('ojs', 'envelope', 'job ojs.job', 'jsonb', 'ojs.envelope($2::ojs.job)'),
        ('ojs_http', 'time_value', 'given text, field text', 'timestamptz', 'ojs_http.time_value($2, $3)'),
        ('ojs_http', 'duration_value', 'given jsonb, field text', 'interval', 'ojs_http.duration_value($2, $3)'),
        ('ojs_http', 'default_policy', '', 'jsonb', 'ojs_http.default_policy()')
    ) v(schema, name, parameter, result, call) loop
        execute format($f$
            create function ojs_router.remote_%1$s(node int%2$s) returns %3$s language plproxy as $p$
                cluster 'ojs'; run on node;
                select %4$s;
            $p$
        $f$, f.name, case when f.parameter <> '' then ', ' || f.parameter else '' end, f.result, f.call);
        execute format($f$
            create function %6$s.%1$s(%2$s) returns %3$s
            language plpgsql %4$s stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $p$
            declare
                _node int;
                _failure ojs_router.failure;
            begin
                loop
                    _node := ojs_router.random_node();
                    begin
                        return ojs_router.remote_%1$s(_node%5$s);
                    exception when others or query_canceled then
                        get stacked diagnostics _failure.state = returned_sqlstate, _failure.message = message_text,
                            _failure.detail = pg_exception_detail, _failure.hint = pg_exception_hint;
                        if not ojs_router.is_down(_failure) then
                            perform ojs_router.raise_failure(_node, _failure);
                        end if;
                        perform ojs_router.remember_missing(_node);
                    end;
                end loop;
            end $p$
        $f$, f.name, case when f.name = 'canonical_json' then 'jsonb' else f.parameter end, f.result,
            case when f.parameter <> '' then 'strict' else '' end,
            case when f.parameter like '%,%' then ', $1, $2' when f.parameter <> '' then ', $1' else '' end, f.schema);
    end loop;
end $do$;

create function ojs_router.version() returns text language sql immutable parallel safe
begin atomic select 'ROUTER_VERSION'; end;
create function ojs.version() returns text language sql immutable parallel safe
begin atomic select 'ROUTER_VERSION'; end;
create function ojs.node_of(id uuid) returns int
language sql immutable strict parallel safe set search_path = pg_catalog, pg_temp as $$
    select case when get_byte(uuid_send(id), 6) >> 4 = 7
        then (get_byte(uuid_send(id), 8) & 63) << 8 | get_byte(uuid_send(id), 9) end
$$;
create function ojs.key_slot(key text) returns int
language sql immutable strict parallel safe set search_path = pg_catalog, pg_temp as $$
    select (get_byte(h, 0) << 4) | (get_byte(h, 1) >> 4) from sha256(convert_to(key, 'UTF8')) h
$$;
