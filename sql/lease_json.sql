-- lease_json.sql: claim, ack, nack and extend with the request and reply bodies of the Queues document; jobs are named
-- by their numbers. The same implementation as the typed functions. C++: src/work/lease_json.cpp.

create function ojs_store.held(queue text, worker text, seqs bigint[], out seq bigint, out job_id uuid)
    returns setof record
language c strict volatile parallel unsafe rows 10 as 'MODULE_PATHNAME', 'ojs_held';

-- This session knows now which job has this number, and need not look for it.
create function ojs_store.remember_number(seq bigint, job_id uuid) returns void
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_remember_number';

create function ojs_store.bad_request(field text, message text, hint text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.raise('INVALID_PAYLOAD', message, jsonb_build_object('field', field), hint);
end $$;

-- A whole number in a request; null where it is absent. Beyond the bounds it is clamped.
create function ojs_store.request_number(request jsonb, field text, least_value bigint, greatest_value bigint)
    returns bigint
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    value jsonb := request -> field;
    n numeric;
begin
    if value is null or value = 'null' then
        return null;
    end if;
    if jsonb_typeof(value) <> 'number' then
        perform ojs_store.bad_request(field, format('%s must be a number, not %s', field, jsonb_typeof(value)),
            'Give a whole number.');
    end if;
    n := value::numeric;
    if n <> trunc(n) then
        perform ojs_store.bad_request(field, format('%s must be a whole number', field), 'Give a whole number.');
    end if;
    return least(greatest(n, least_value), greatest_value);
end $$;

create function ojs_store.request_node(request jsonb) returns text
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if request is null or jsonb_typeof(request) <> 'object' then
        perform ojs_store.bad_request('request', 'request must be an object',
            'Give an object such as {"node": "api-1", "max": 10}.');
    end if;
    if jsonb_typeof(request -> 'node') is distinct from 'string' or request ->> 'node' = '' then
        perform ojs_store.bad_request('node', 'node must be a string that is not empty',
            'Name the worker, such as "api-1".');
    end if;
    return request ->> 'node';
end $$;

-- Refuses what a request holds beside the members that it takes.
create function ojs_store.request_only(request jsonb, variadic names text[]) returns void
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    unknown text;
begin
    if request - names <> '{}' then
        select left(key, 64) into unknown from jsonb_object_keys(request - names) key limit 1;
        perform ojs_store.bad_request(unknown, format('%s is nothing that this request takes', unknown),
            format('It takes %s.', array_to_string(names, ', ')));
    end if;
end $$;

-- What a request names, entry by entry, and which job of the node's that is; the first of equal numbers counts (Q-35).
create function ojs_store.request_jobs(
    queue text, request jsonb, out place bigint, out seq bigint, out lease_id text, out job_id uuid
) returns setof record
language plpgsql volatile parallel unsafe rows 100 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    node text := ojs_store.request_node(request);
    seqs jsonb := request -> 'seqs';
    tokens jsonb := nullif(request -> 'lease_ids', 'null');
begin
    if jsonb_typeof(seqs) is distinct from 'array' then
        perform ojs_store.bad_request('seqs', 'seqs must be an array of numbers', 'Give the $seq of each job.');
    end if;
    if jsonb_array_length(seqs) = 0 then
        perform ojs_store.bad_request('seqs', 'seqs must not be empty', 'Give the $seq of each job.');
    end if;
    if jsonb_array_length(seqs) > 1000 then
        perform ojs_store.raise('BATCH_SIZE_EXCEEDED',
            format('a call may name 1000 jobs in seqs, not %s', jsonb_array_length(seqs)),
            jsonb_build_object('field', 'seqs', 'size', jsonb_array_length(seqs), 'maximum', 1000, 'reason',
                'batch_too_large'), 'Split the call.');
    end if;
    if exists (select from jsonb_array_elements(seqs) v where case when jsonb_typeof(v) = 'number'
            then v::numeric <> trunc(v::numeric) or v::numeric not between 0 and 9223372036854775807 else true end) then
        perform ojs_store.bad_request('seqs', 'seqs must hold whole numbers only', 'Give the $seq of each job.');
    end if;
    if tokens is not null then
        if jsonb_typeof(tokens) <> 'array' or exists (
                select from jsonb_array_elements(case when jsonb_typeof(tokens) = 'array' then tokens else '[]' end) v
                    where jsonb_typeof(v) <> 'string') then
            perform ojs_store.bad_request('lease_ids', 'lease_ids must be an array of strings',
                'Give the lease_id of each job, or leave it out.');
        end if;
        if jsonb_array_length(tokens) <> jsonb_array_length(seqs) then
            perform ojs_store.bad_request('lease_ids',
                format('lease_ids has %s elements and seqs has %s', jsonb_array_length(tokens),
                jsonb_array_length(seqs)), 'Give one lease_id per seq, in the same order, or none.');
        end if;
    end if;
    return query
        select named.place, named.seq, tokens ->> (named.place - 1)::int,
            case when row_number() over (partition by named.seq order by named.place) = 1 then held.job_id end
        from (select n, v::numeric::bigint from jsonb_array_elements(seqs)
            with ordinality as s(v, n)) as named(place, seq)
        left join ojs_store.held(queue, node,
            array(select distinct v::numeric::bigint from jsonb_array_elements(seqs) v)) held on held.seq = named.seq
        order by named.place;
end $$;

-- The jobs of a request, ready for a typed function: parallel arrays of its entries, and of those among them that are
-- held.
create function ojs_store.read_request(
    queue text, request jsonb, out node text, out seqs bigint[], out ids uuid[], out held uuid[], out lease_ids text[]
) returns record
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select request ->> 'node', array_agg(j.seq order by j.place), array_agg(j.job_id order by j.place),
        coalesce(array_agg(j.job_id order by j.place) filter (where j.job_id is not null), '{}'),
        case when jsonb_typeof(request -> 'lease_ids') = 'array'
            then coalesce(array_agg(j.lease_id order by j.place) filter (where j.job_id is not null), '{}') end
    from ojs_store.request_jobs(queue, request) j
$$;

-- The numbers that a call did not act on, in the order of the request.
create function ojs_store.skipped_seqs(seqs bigint[], ids uuid[], skipped uuid[]) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select coalesce(jsonb_agg(j.seq order by j.place) filter (where j.id is null or j.id = any (skipped)), '[]')
    from unnest(seqs, ids) with ordinality as j(seq, id, place)
$$;

-- What replies say of the queue afterwards.
create function ojs_store.reply_counts(queue text) returns jsonb
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('topic', queue, 'ready', c.ready, 'in_flight', c.in_flight)
    from ojs_store.ready_and_held(ojs_store.queue_id(queue)) c
$$;

create function ojs_store.ms_epoch(at timestamptz) returns bigint
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select floor(extract(epoch from at) * 1000)::bigint
$$;

-- The record that a job was produced as: the members that producing folded into the only argument are members again.
create function ojs_store.record_data(type text, args jsonb, extra jsonb) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select case
        when extra ->> 'data_form' = 'flat' and args = '[]' then jsonb_build_object('type', type)
        when extra ->> 'data_form' = 'flat' and jsonb_array_length(args) = 1 and jsonb_typeof(args -> 0) = 'object'
            and not args -> 0 ?| '{type,args}' then args -> 0 || jsonb_build_object('type', type)
        else jsonb_build_object('type', type, 'args', args) end
$$;

create function ojs.lease_claim(queue text, request jsonb) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    started timestamptz := clock_timestamp();
    node text := ojs_store.request_node(request);
    wanted bigint := coalesce(ojs_store.request_number(request, 'max', -1, 1000), 1);
    lease_ms bigint := ojs_store.request_number(request, 'lease_ms', 100, 86400000);
    claimed jsonb;
    n int;
    waited_ms numeric;
begin
    perform ojs_store.use_queue(queue, 'work');
    perform ojs_store.request_only(request, 'node', 'max', 'lease_ms');
    if wanted < 0 then
        perform ojs_store.bad_request('max', 'max must not be negative', 'Give a number from 0 to 1000.');
    end if;
    perform ojs_store.claim_wait_ms();
    select jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
            '$seq', c.seq,
            'id', c.id,
            'lease_id', c.lease_id,
            'deadline', ojs_store.ms_epoch(c.lease_expires_at),
            '$ts', ojs_store.ms_epoch(c.created_at),
            '$tag', c.extra -> 'tag',
            'deliveries', c.deliveries))
        || jsonb_build_object('data', ojs_store.record_data(c.type, c.args, c.extra))
        || case when c.meta = '{}' then '{}' else jsonb_build_object('meta', c.meta) end
        order by c.seq), count(ojs_store.remember_number(c.seq, c.id))
    into claimed, n
    from ojs.claim(queue, node, wanted::int, lease_ms * interval '1 millisecond') c;
    waited_ms := trim_scale(round(ojs_store.claim_wait_ms()::numeric, 3));
    return ojs_store.reply_counts(queue) - 'in_flight' || jsonb_build_object(
        'claimed', coalesce(claimed, '[]'),
        'count', n,
        'performance', jsonb_build_object('server_total_ms', ojs_store.ms_since(started), 'throttle_wait_ms',
            waited_ms));
end $$;
comment on function ojs.lease_claim(text, jsonb)
    is 'Leases jobs to a worker: request and reply of POST /v0/topics/:queue/claim';

create function ojs.lease_ack(queue text, request jsonb) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    started timestamptz := clock_timestamp();
    named record;
    done int;
    skipped uuid[];
begin
    perform ojs_store.use_queue(queue, 'work');
    select * into named from ojs_store.read_request(queue, request);
    perform ojs_store.request_only(request, 'node', 'seqs', 'lease_ids');
    select a.done, a.skipped into done, skipped from ojs.ack_many(named.node, named.held, null, named.lease_ids) a;
    return ojs_store.reply_counts(queue) || jsonb_build_object(
        'acked', done,
        'skipped', ojs_store.skipped_seqs(named.seqs, named.ids, skipped),
        'performance', jsonb_build_object('server_total_ms', ojs_store.ms_since(started), 'fsync_ms', 0));
end $$;
comment on function ojs.lease_ack(text, jsonb)
    is 'Completes held jobs: request and reply of POST /v0/topics/:queue/ack';

create function ojs.lease_nack(queue text, request jsonb) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    started timestamptz := clock_timestamp();
    named record;
    delay_ms bigint := coalesce(ojs_store.request_number(request, 'delay_ms', 0, 86400000), 0);
    done int;
    skipped uuid[];
begin
    perform ojs_store.use_queue(queue, 'work');
    select * into named from ojs_store.read_request(queue, request);
    perform ojs_store.request_only(request, 'node', 'seqs', 'lease_ids', 'delay_ms');
    select n.done, n.skipped into done, skipped
    from ojs.nack_many(named.node, named.held, delay_ms * interval '1 millisecond', named.lease_ids) n;
    return ojs_store.reply_counts(queue) || jsonb_build_object(
        'nacked', done,
        'skipped', ojs_store.skipped_seqs(named.seqs, named.ids, skipped),
        'performance', jsonb_build_object('server_total_ms', ojs_store.ms_since(started)));
end $$;
comment on function ojs.lease_nack(text, jsonb)
    is 'Gives held jobs back: request and reply of POST /v0/topics/:queue/nack';

create function ojs.lease_extend(queue text, request jsonb) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    started timestamptz := clock_timestamp();
    named record;
    lease_ms bigint := ojs_store.request_number(request, 'lease_ms', 100, 86400000);
    done int;
    skipped uuid[];
    deadline timestamptz;
    deadlines jsonb;
begin
    perform ojs_store.use_queue(queue, 'work');
    select * into named from ojs_store.read_request(queue, request);
    perform ojs_store.request_only(request, 'node', 'seqs', 'lease_ids', 'lease_ms');
    if lease_ms is null then
        perform ojs_store.bad_request('lease_ms', 'lease_ms is missing',
            'Give the new length of the lease in milliseconds, counted from now.');
    end if;
    select e.done, e.skipped, e.deadline into done, skipped, deadline
    from ojs.extend_many(named.node, named.held, lease_ms * interval '1 millisecond', named.lease_ids) e;
    select jsonb_object_agg(seq::text, ojs_store.ms_epoch(deadline)) into deadlines
    from unnest(named.seqs, named.ids) as j(seq, id) where id is not null and id <> all (skipped);
    return jsonb_build_object(
        'topic', queue,
        'extended', done,
        'skipped', ojs_store.skipped_seqs(named.seqs, named.ids, skipped),
        'deadlines', coalesce(deadlines, '{}'),
        'performance', jsonb_build_object('server_total_ms', ojs_store.ms_since(started)));
end $$;
comment on function ojs.lease_extend(text, jsonb)
    is 'Gives held jobs a new deadline: request and reply of POST /v0/topics/:queue/extend';
