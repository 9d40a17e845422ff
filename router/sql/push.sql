-- push.sql: producing jobs. A job with a key goes to the node of the key's slot, so that the key holds on all nodes
-- together;
-- any other goes to any node. A call of a node commits there, whatever becomes of the caller's transaction.

create function ojs_router.remote_push(
    node int, type text, args jsonb, queue text, priority int, scheduled_at timestamptz, delay interval,
        expires_at timestamptz, retry jsonb,
    "unique" jsonb, meta jsonb, timeout interval, deduplication_key text, deduplication_ttl interval, id uuid,
        tags text[], pending boolean,
    options jsonb
) returns text language plproxy set datestyle = 'ISO' as $$
    cluster 'ojs'; run on node;
    select ojs.push($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18);
$$;
-- What most jobs need: parameters cost, and default values cost more.
create function ojs_router.remote_push(node int, type text, args jsonb, queue text) returns text
    language plproxy as $$
    cluster 'ojs'; run on node;
    select ojs.push($2, $3, $4, 0, null, null, null, null, null, '{}', null, null, null, null, null, false,
        '{}');
$$;
create function ojs_router.remote_push_job(node int, job jsonb) returns jsonb language plproxy as $$
    cluster 'ojs'; run on node;
    select ojs.push_job(job);
$$;
create function ojs_router.remote_push_many(
    node int, jobs jsonb, deduplication_key text, deduplication_ttl interval, atomicity text, idempotency_key text,
    out index int, out id uuid, out status text, out error jsonb
) returns setof record language plproxy as $$
    cluster 'ojs'; run on node;
    select p.index, p.id, p.status, p.error from ojs.push_many($2, $3, $4, $5, $6) p;
$$;
create function ojs_router.remote_create_workflow(node int, def jsonb) returns jsonb language plproxy as $$
    cluster 'ojs'; run on node;
    select ojs.create_workflow(def);
$$;

-- Fingerprints of envelopes, by any node; null for those without a uniqueness policy. Raises what is wrong with an
-- envelope.
create function ojs_router.fingerprints(jobs jsonb) returns text[]
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    node int;
    failure ojs_router.failure;
begin
    for attempt in 1..4 loop
        select n into node from unnest(ojs_router.live_nodes()) n order by random() limit 1;
        perform ojs_router.check_any(array_remove(array[node], null));
        begin
            return ojs_router.remote_fingerprints(node, jobs);
        exception when others or query_canceled then
            get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
                failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
            if attempt = 4 or not ojs_router.is_down(failure) then
                perform ojs_router.raise_failure(node, failure);
            end if;
            perform ojs_router.remember_missing(node);
        end;
    end loop;
end $$;

-- The key that says where a job goes, by what else is to hold of it; null where any node will do.
create function ojs_router.job_key(
    deduplication text, fingerprint text, ordering_key text, limit_key text, id text, queue text
) returns text
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if num_nonnulls(deduplication, fingerprint, ordering_key) > 1 then
        perform ojs_router.raise('UNSUPPORTED_FEATURE',
            'through the router a job cannot be unique and have a deduplication key or an ordering key, nor both keys',
            '{"feature": "several keys"}',
            'Each of them names a node, and these may differ. Leave one out, or push the job on a node directly.');
    end if;
    return case when deduplication is not null then coalesce(queue, 'default') || ' ' || deduplication
        when fingerprint is not null then fingerprint
        when ordering_key is not null then 'order: ' || coalesce(queue, 'default') || ' ' || ordering_key
        when limit_key is not null then 'limit: ' || limit_key
        when id is not null then 'id: ' || id end;
end $$;

-- A member of an envelope, of this name or of another one that means the same; one that is null is not there.
create function ojs_router.member(job jsonb, name text, other text default null) returns text
language sql immutable parallel safe
begin atomic
    select coalesce(job ->> name, job ->> other, job -> 'options' ->> name, job -> 'options' ->> other);
end;

-- The same of an envelope, without the fingerprint.
create function ojs_router.envelope_key(job jsonb, fingerprint text) returns text
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_router.job_key(ojs_router.member(job, 'deduplication_key', 'deduplicationKey'), fingerprint,
        ojs_router.member(job, 'ordering_key', 'orderingKey'),
        case when o.rate_limit is not null
            then coalesce(o.rate_limit ->> 'key', 'queue:' || coalesce(o.queue, 'default')) end,
        -- what is no id is for the node to refuse
        lower(substring(ojs_router.member(job, 'id') collate "C"
            from '^[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$')),
        o.queue)
    from (select coalesce(nullif(job -> 'rate_limit', 'null'), nullif(job -> 'options' -> 'rate_limit', 'null')),
        ojs_router.member(job, 'queue')) o(rate_limit, queue)
$$;

-- Whether a job may have a key of any kind.
create function ojs_router.may_have_key(job jsonb) returns boolean language sql immutable parallel safe
begin atomic
    select job ?| array['unique', 'deduplication_key', 'deduplicationKey', 'ordering_key', 'orderingKey', 'rate_limit',
        'id', 'options'];
end;

create function ojs_router.is_unique(job jsonb) returns boolean
language sql immutable parallel safe
begin atomic
    select coalesce(jsonb_typeof(job -> 'unique') <> 'null', false)
        or coalesce(jsonb_typeof(job -> 'options' -> 'unique') <> 'null', false);
end;

-- Holds off ojs_router.join_node and drain_node until the end of the transaction: a push that has looked at the slots
-- before they change must be over before another goes by the new ones.
create function ojs_router.node_for(key text) returns int
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
        perform ojs_router.raise('UNSUPPORTED_FEATURE',
            'through the router a job with a key cannot be pushed at this isolation level',
            '{"feature": "keys at repeatable read"}',
                'Use READ COMMITTED. The push is a transaction of its own on the node in any case.');
    end if;
    lock table ojs_router.slot in row share mode; -- see change_slots()
    return ojs_router.key_node(key);
end $$;

-- The nodes of many keys, as {"key": node}. In the order of slots, so that two calls do not wait for each other.
create function ojs_router.nodes_for(keys text[]) returns jsonb
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select coalesce(jsonb_object_agg(d.key, ojs_router.node_for(d.key)), '{}')
    from (select key from unnest(keys) key where key is not null group by key order by ojs.key_slot(key), key) d
$$;

-- After a push failed on a node: another node to try, where nothing can have happened and any node will do. Raises
-- otherwise.
create function ojs_router.other_node(node int, key text, failure ojs_router.failure) returns int
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if key is not null or not ojs_router.never_sent(failure) or current_setting('ojs_router.node', true) <> '' then
        perform ojs_router.raise_failure(node, failure);
    end if;
    perform ojs_router.remember_missing(node);
    return ojs_router.any_node();
end $$;

create function ojs.push(
    type text, args jsonb default '[]', queue text default 'default', priority int default 0,
        scheduled_at timestamptz default null,
    delay interval default null, expires_at timestamptz default null, retry jsonb default null,
        "unique" jsonb default null,
    meta jsonb default '{}', timeout interval default null, deduplication_key text default null,
        deduplication_ttl interval default null,
    id uuid default null, tags text[] default null, pending boolean default false, options jsonb default '{}'
) returns ojs.job
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    plain boolean := scheduled_at is null and delay is null and expires_at is null and retry is null
        and "unique" is null
        and timeout is null and deduplication_key is null and deduplication_ttl is null and id is null and tags is null
        and priority = 0 and not pending and meta = '{}' and options = '{}';
    key text;
    envelope jsonb;
    node int;
    failure ojs_router.failure;
begin
    if plain is not true and ("unique" is not null or deduplication_key is not null or id is not null
            or ojs_router.may_have_key(options)) then
        -- A parameter with the value of its default counts as not given.
        envelope := '{"args": []}'::jsonb || coalesce(options, '{}')
            || jsonb_strip_nulls(jsonb_build_object('type', type, 'queue', nullif(queue, 'default'),
                'unique', "unique", 'deduplication_key', deduplication_key, 'id', id))
            || case when args = '[]' then '{}' else jsonb_build_object('args', args) end
            || case when meta = '{}' then '{}' else jsonb_build_object('meta', meta) end;
        key := ojs_router.envelope_key(envelope, case when ojs_router.is_unique(envelope)
            then (ojs_router.fingerprints(jsonb_build_array(envelope - 'id')))[1] end);
    end if;
    node := case when key is null then ojs_router.any_node() else ojs_router.node_for(key) end;
    loop
        begin
            if plain then
                return ojs_router.remote_push(node, type, args, queue)::ojs.job;
            end if;
            return ojs_router.remote_push(node, type, args, queue, priority, scheduled_at, delay, expires_at, retry,
                "unique", meta, timeout, deduplication_key, deduplication_ttl, id, tags, pending, options)::ojs.job;
        exception when others or query_canceled then
            get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
                failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
            node := ojs_router.other_node(node, key, failure);
        end;
    end loop;
end $$;

-- The key of an envelope; null where any node will do.
create function ojs_router.key_of(job jsonb) returns text
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    return case when ojs_router.may_have_key(job) then ojs_router.envelope_key(job, case when ojs_router.is_unique(job)
            then (ojs_router.fingerprints(jsonb_build_array(job)))[1] end) end;
end $$;

create function ojs.push_job(job jsonb) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    key text := ojs_router.key_of(job);
    node int;
    failure ojs_router.failure;
begin
    node := case when key is null then ojs_router.any_node() else ojs_router.node_for(key) end;
    loop
        begin
            return ojs_router.remote_push_job(node, job);
        exception when others or query_canceled then
            get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
                failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
            node := ojs_router.other_node(node, key, failure);
        end;
    end loop;
end $$;

-- Where each job is for itself, one with a wrong policy has no fingerprint; its node says what is wrong.
create function ojs_router.batch_fingerprints(jobs jsonb, atomicity text) returns text[]
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    job jsonb;
    fingerprints text[] := '{}';
    fingerprint text;
begin
    if not exists (select from jsonb_array_elements(jobs) j where jsonb_typeof(j) = 'object'
        and ojs_router.is_unique(j)) then
        return array_fill(null::text, array[jsonb_array_length(jobs)]);
    end if;
    begin
        return ojs_router.fingerprints(jobs);
    exception when others then
        if atomicity is distinct from 'partial' or sqlstate = '57P03' then
            raise;
        end if;
    end;
    for job in select j from jsonb_array_elements(jobs) with ordinality e(j, n) order by n loop
        fingerprint := null;
        begin
            fingerprint := (ojs_router.fingerprints(jsonb_build_array(job)))[1];
        exception when others then
            if sqlstate = '57P03' then
                raise;
            end if;
        end;
        fingerprints := fingerprints || fingerprint;
    end loop;
    return fingerprints;
end $$;

-- The role that calls, also where a function that runs as its owner is on the way.
create function ojs_router.caller() returns name language sql stable parallel safe
begin atomic
    select coalesce(nullif(current_setting('role'), 'none')::name, session_user);
end;

-- A caller's own idempotency key: to the node all callers are one role. What is no key is left for the node to refuse.
create function ojs_router.own_key(key text) returns text
language sql stable parallel safe set search_path = pg_catalog, pg_temp as $$
    select case when length(key) between 1 and 256 then encode(sha256(convert_to(quote_literal(
        ojs_router.caller()) || ' ' || key, 'UTF8')), 'hex') else key end
$$;

-- The node of each job of a batch. All of it goes to one node, except where each job is for itself and some have keys.
-- `held` is a key of them; null where any node will do.
create function ojs_router.batch_nodes(jobs jsonb, deduplication_key text, idempotency_key text, atomicity text,
    out nodes int[], out held text) returns record
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    keys text[] := '{}';
    homes jsonb;
    key text;
    node int;
begin
    if jsonb_typeof(jobs) = 'array' and (jobs @? '$[*].unique' or jobs @? '$[*].id' or jobs @? '$[*].ordering_key'
            or jobs @? '$[*].orderingKey' or jobs @? '$[*].rate_limit' or jobs @? '$[*].options') then
        select array_agg(ojs_router.envelope_key(j, f) order by n) into keys
        from rows from (jsonb_array_elements(jobs), unnest(ojs_router.batch_fingerprints(jobs, atomicity))) with
            ordinality b(j, f, n);
    end if;
    if idempotency_key is not null then
        key := 'idempotency: ' || idempotency_key;
    elsif deduplication_key is not null then
        key := coalesce(jobs -> 0 ->> 'queue', jobs -> 0 -> 'options' ->> 'queue', 'default') || ' '
            || deduplication_key;
    end if;
    held := coalesce(key, (select k from unnest(keys) k where k is not null limit 1));
    if array_remove(keys, null) = '{}' then
        nodes := array[case when key is null then ojs_router.any_node() else ojs_router.node_for(key) end];
        return;
    end if;
    homes := ojs_router.nodes_for(keys || key);
    nodes := array(select (homes ->> k)::int from unnest(keys) with ordinality u(k, n) order by n);
    node := coalesce((homes ->> key)::int, (select n from unnest(nodes) n where n is not null limit 1));
    nodes := array(select coalesce(n, node) from unnest(nodes) with ordinality u(n, i) order by i);
    if (node <> any (nodes)) and (atomicity is distinct from 'partial' or key is not null) then
        perform ojs_router.raise('UNSUPPORTED_FEATURE',
            'the keys of the jobs name several nodes, so the batch cannot be pushed as a whole',
            '{"feature": "atomic batch on several nodes"}',
            'Say atomicity => ''partial'' without a key of the batch, or push jobs with keys by themselves.');
    end if;
end $$;

-- An error of a job of a part of a batch, by the job's place in the whole.
create function ojs_router.placed_error(error jsonb, place int) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select error || jsonb_build_object(
        'message', regexp_replace(error ->> 'message', '^jobs[[][0-9]+[]]', format('jobs[%s]', place)),
        'details', case when error -> 'details' ? 'index' then jsonb_set(error -> 'details', '{index}', to_jsonb(place))
            else error -> 'details' end)
$$;

-- The error of each job whose node does not answer.
create function ojs_router.node_missing(node int, place int) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('code', 'UNAVAILABLE', 'message',
        format('jobs[%s]: node %s does not answer', place, node), 'retryable', true,
        'details', jsonb_build_object('index', place, 'node', node))
$$;

-- The parts of a batch by node: the places of the jobs in the whole, and the jobs.
create function ojs_router.parts_of(jobs jsonb, nodes int[], out node int, out places int[], out part jsonb)
    returns setof record
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select n, array_agg((i - 1)::int order by i), jsonb_agg(jobs -> (i - 1)::int order by i)
    from unnest(nodes) with ordinality u(n, i) group by n
$$;

create function ojs.push_many(
    jobs jsonb, deduplication_key text default null, deduplication_ttl interval default null,
        atomicity text default 'atomic',
    idempotency_key text default null, out index int, out id uuid, out status text, out error jsonb
) returns setof record
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    request text := ojs_router.own_key(idempotency_key);
    place record := ojs_router.batch_nodes(jobs, deduplication_key, request, atomicity);
    batch record;
    pushed ojs_router.pushed_item[] := '{}';
    node int := place.nodes[1];
    failure ojs_router.failure;
begin
    if node = all (place.nodes) then
        loop
            begin
                return query select p.index, p.id, p.status, p.error
                    from ojs_router.remote_push_many(node, jobs, deduplication_key, deduplication_ttl, atomicity,
                        request) p;
                return;
            exception when others or query_canceled then
                get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
                    failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
                node := ojs_router.other_node(node, place.held, failure);
            end;
        end loop;
    end if;
    for batch in select * from ojs_router.parts_of(jobs, place.nodes) loop
        begin
            pushed := pushed || array(
                select (batch.places[p.index + 1], p.id, p.status,
                    ojs_router.placed_error(p.error, batch.places[p.index + 1]))::ojs_router.pushed_item
                from ojs_router.remote_push_many(batch.node, batch.part, null, null, atomicity, null) p);
        exception when others or query_canceled then
            get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
                failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
            if not ojs_router.is_down(failure) then
                perform ojs_router.raise_failure(batch.node, failure);
            end if;
            perform ojs_router.remember_missing(batch.node);
            pushed := pushed || array(
                select (i, null, 'failed', ojs_router.node_missing(batch.node, i))::ojs_router.pushed_item
                from unnest(batch.places) i);
        end;
    end loop;
    return query select p.* from unnest(pushed) p order by p.index;
end $$;

create function ojs.create_workflow(def jsonb) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    node int := ojs_router.any_node();
    failure ojs_router.failure;
begin
    loop
        begin
            return ojs_router.remote_create_workflow(node, def);
        exception when others or query_canceled then
            get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
                failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
            node := ojs_router.other_node(node, null, failure);
        end;
    end loop;
end $$;
