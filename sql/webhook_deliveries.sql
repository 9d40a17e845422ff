-- webhook_deliveries.sql: events on their way to subscriptions (WHK-02). A duty of the tick makes events deliveries; a
-- sender outside of the database (gateway/sender.cpp) claims them, sends them, and says what came of it. C++:
-- src/admin/webhook.cpp.

create function ojs_store.hmac_sha256(key text, content text) returns text
language c immutable strict parallel safe as 'MODULE_PATHNAME', 'ojs_hmac_sha256';

create view ojs.webhook_deliveries with (security_barrier) as
select d.id, d.webhook, d.event_id, d.event_type, d.state, d.attempts, d.created_at,
    case when d.state = 'pending' then greatest(d.due_at, d.created_at) end as due_at, d.lease is not null as leased,
    d.finished_at, d.status_code, d.error, d.duration_ms,
    -- An administrator may not read all queues; who made the subscription was allowed to read this.
    case when mine.yes then d.response end as response, case when mine.yes then d.body end as body
from ojs_store.webhook_delivery d join ojs_store.webhook w on w.id = d.webhook
cross join lateral (select pg_has_role(to_regrole(quote_ident(w.role))::oid, 'member') as yes) mine
where ojs_store.may_see_tenant(w.tenant);
comment on view ojs.webhook_deliveries
    is 'Deliveries of events: those that are pending, and the last ones that were delivered or are dead. For ojs_admin';

-- Whether whoever made a subscription may read an event, and it is of the subscription's tenant.
create function ojs_store.webhook_may_read(role text, tenant text, type text, queue text, subject text, queues jsonb)
    returns boolean
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    reader oid := to_regrole(quote_ident(role));
    queue_names text[];
begin
    if reader is null then
        return false;
    elsif queue is not null then
        queue_names := array[queue];
    elsif jsonb_typeof(queues) = 'array' then
        -- One that was never made has no lists.
        queue_names := array(
            select n.name from jsonb_array_elements_text(queues) as a(id), lateral (
                select q.name from ojs_store.queue q where q.id = a.id::bigint limit 1) n);
    elsif type like 'workflow.%' then
        select array(select q.name from ojs_store.queue q where q.id = any (root.queues)) into queue_names
        from ojs_store.workflow f join ojs_store.workflow root on root.id = f.root
        where f.id = case when subject ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then subject::uuid end;
    elsif type like 'cron.%' then
        select array[ojs_store.queue_of(c.job) || coalesce('@' || (c.job #>> '{meta,tenant_id}'), '')] into queue_names
        from ojs_store.cron c where c.name = subject;
    end if;
    if coalesce(cardinality(queue_names), 0) = 0 then
        return tenant is null and (queue_names is not null or type !~ '^(workflow|cron)[.]'
            or (select r.rolsuper from pg_roles r where r.oid = reader));
    end if;
    return not exists (select from unnest(queue_names) name
        where tenant <> split_part(name, '@', 2)
            or not ojs_store.role_may_use_queue(reader, name, 'read'));
end $$;

-- What is sent: the event as ojs.events has it. A tenant hears of its queues by their plain names. Of an event that is
-- too large, what is small in it.
create function ojs_store.webhook_body(event jsonb, tenant text) returns text
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    most constant int := 65536;
    body text;
begin
    if tenant is not null and event #>> '{data,queue}' like '%@%' then
        event := jsonb_set(event, '{data,queue}', to_jsonb(split_part(event #>> '{data,queue}', '@', 1)));
        event := jsonb_set(event, '{source}', to_jsonb(regexp_replace(event ->> 'source', '(@|%40)[^/]*$', '')));
    end if;
    if octet_length(event::text) > most then
        event := jsonb_set(event, '{data}', coalesce((
            select jsonb_object_agg(small.key, small.value) from (
                select d.key, d.value from jsonb_each(event -> 'data') d where octet_length(d.value::text) <= 512
                order by d.key limit 32) small), '{}') || '{"truncated": true}');
    end if;
    body := event::text;
    -- One body that cannot be sent in UTF-8 would stop every sender. SQL_ASCII holds any bytes, and other encodings
    -- have characters that Unicode does not.
    if getdatabaseencoding() <> 'UTF8' and body ~ e'[^\\x01-\\x7f]' then
        begin
            perform convert_to(body, 'UTF8');
        exception when character_not_in_repertoire or untranslatable_character then
            body := regexp_replace(body, e'[^\\x01-\\x7f]', '?', 'g');
        end;
    end if;
    return body;
end $$;

-- For the tick: turns at most 1000 events into at most 10000 deliveries, and removes what is known of old ones. One
-- session at a time. In the transaction that moves the cursor: so no event is lost, and none is delivered anew. Returns
-- whether there is more to do.
create function ojs_store.tend_webhooks(most int) returns boolean
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $$
declare
    most_pending constant int := 10000;
    most_bytes constant bigint := 64 * 1024 * 1024;
    at timestamptz := ojs_store.now();
    read_to ojs_store.webhook_cursor;
    page jsonb;
    removed int := 0;
    more boolean := false;
begin
    select * into read_to from ojs_store.webhook_cursor c limit 1 for update skip locked;
    if not found then
        -- As after a restore: a cursor means nothing elsewhere.
        insert into ojs_store.webhook_cursor (only_one, cursor, missed, tidied_at)
            select true, ojs_store.cursor_now(), 1, at where exists (select from ojs_store.webhook)
            and not exists (select from ojs_store.webhook_cursor)
            on conflict do nothing;
        return false;
    end if;
    begin
        page := ojs_store.read_events(read_to.cursor,
            array(select distinct e from ojs_store.webhook w, unnest(w.events) e where w.active), null, null,
            -- Not more at once than takes a second: until it is done, no other duty goes on.
            least(most, 1000, greatest(10000 / greatest((select count(*) from ojs_store.webhook w where w.active), 1),
                1))::int, false, true);
    exception when sqlstate 'OJ100' then -- a cursor of another server
        page := jsonb_build_object('events', '[]'::jsonb, 'cursor', ojs_store.cursor_now(), 'missed', true);
    end;
    if page -> 'events' <> '[]' then
        perform from ojs_store.webhook_status s order by s.webhook for update;
        -- What costs something is done once, however many subscriptions want the same.
        with events as materialized (
            select e.n, e.value ->> 'id' as id, e.value ->> 'type' as type, e.value ->> 'subject' as subject,
                (e.value ->> 'time')::timestamptz as time, e.value #>> '{data,queue}' as queue,
                e.value #>> '{data,job_type}' as job_type,
                e.value - 'queue_ids' as value, e.value -> 'queue_ids' as queues
            from jsonb_array_elements(page -> 'events') with ordinality e (value, n)
            where e.value ->> 'type' not in ('webhook.delivered', 'webhook.failed', 'webhook.dead')
        ), wanted as materialized (
            select w.id as webhook, e.n, e.id as event_id, e.type, e.time, w.role, w.tenant, e.queue, s.subject,
                s.queues, s.type as kind,
                dense_rank() over (order by w.role, w.tenant, e.queue, s.type, s.subject, s.queues) as reading
            from events e join ojs_store.webhook w on w.active and e.time >= w.created_at
                and ojs_store.matches(e.type, w.events)
                and (w.queues is null or w.queues && array[e.queue, split_part(e.queue, '@', 1)])
                and (w.job_types is null or coalesce(ojs_store.matches(e.job_type, w.job_types), false))
            -- What a queue has is read by the queue alone.
            cross join lateral (select case when e.queue is null then e.type end as type,
                case when e.queue is null then e.subject end as subject,
                case when e.queue is null then e.queues end as queues) s
        ), readable as materialized (
            select r.reading
            from (select distinct on (w.reading) w.* from wanted w order by w.reading) r
            where ojs_store.webhook_may_read(r.role, r.tenant, r.kind, r.queue, r.subject, r.queues)
        ), bodies as materialized (
            select e.n, t.tenant, ojs_store.webhook_body(e.value, t.tenant) as body
            from (select distinct w.n, w.tenant from wanted w join readable r on r.reading = w.reading) t
            join events e on e.n = t.n
        ), matched as (
            select w.webhook, w.event_id, w.type, w.n, b.body,
                substr(ojs_store.event_id(w.time, w.webhook || ' ' || w.event_id), 5)::uuid as id
            from wanted w join readable r on r.reading = w.reading
            join bodies b on b.n = w.n and coalesce(b.tenant, '') = coalesce(w.tenant, '')
        ), sized as (
            select m.*, s.pending + row_number() over so_far <= most_pending
                and s.pending_bytes + sum(octet_length(m.body)) over so_far <= most_bytes as fits
            from matched m join ojs_store.webhook_status s on s.webhook = m.webhook
            window so_far as (partition by m.webhook order by m.n)
        ), stored as (
            insert into ojs_store.webhook_delivery (id, webhook, event_id, event_type, state, attempts, created_at,
                due_at, body)
            select z.id, z.webhook, z.event_id, z.type, 'pending', 0, at, at, z.body
            from sized z where z.fits order by z.n
            on conflict (id) do nothing
            returning webhook, octet_length(body) as bytes
        )
        update ojs_store.webhook_status s set pending = s.pending + c.stored, dropped = s.dropped + c.dropped,
            pending_bytes = s.pending_bytes + c.bytes
        from (
            select e.webhook, sum(e.stored) as stored, sum(e.dropped) as dropped, sum(e.bytes) as bytes
            from (
                select o.webhook, 1 as stored, 0 as dropped, o.bytes from stored o
                union all
                select z.webhook, 0, 1, 0 from sized z where not z.fits) e
            group by 1
        ) c
        where s.webhook = c.webhook;
    end if;
    more := coalesce((page -> 'has_more')::boolean, false);
    -- Not for nothing: where nothing happens, nothing is written.
    if page -> 'events' <> '[]' or more or page ? 'missed'
        or abs(split_part(page ->> 'cursor', '.', 2)::bigint - split_part(read_to.cursor, '.', 2)::bigint) > 10000000
    then
        update ojs_store.webhook_cursor set cursor = page ->> 'cursor',
            missed = read_to.missed + (page ? 'missed')::int;
    end if;

    if read_to.tidied_at not between at - interval '1 minute' and at then
        delete from ojs_store.webhook_delivery where id = any (array(
            select old.id
            from ojs_store.webhook w cross join unnest('{delivered,dead}'::text[]) kept_state
            cross join lateral (
                select d.id from ojs_store.webhook_delivery d
                where d.webhook = w.id and d.state = kept_state and d.state <> 'pending'
                    and d.finished_at <= greatest(at - interval '30 days', (
                        select k.finished_at from ojs_store.webhook_delivery k
                        where k.webhook = w.id and k.state = kept_state and k.state <> 'pending'
                        order by k.finished_at desc offset 1000 limit 1))
                order by d.finished_at limit most) old
            limit most));
        get diagnostics removed = row_count;
        if removed < most then
            update ojs_store.webhook_cursor set tidied_at = at;
        end if;
    end if;
    return more or removed >= most;
end $$;

-- SENDING ----------------------------------------------------------------------------------------------------------

-- A sender has each delivery for its timeout and a minute. An address that fails gets one at a time, others four: so a
-- slow one keeps no sender from the others. Those that fail get half of what is under way and what the sender can take
-- together: so many of them do not either.
create function ojs.claim_webhooks(
    max int default 50,
    out id uuid, out lease_id uuid, out url text, out timeout_seconds int, out headers text[], out body text
) returns setof record
language plpgsql volatile parallel unsafe security definer rows 10
set enable_seqscan = off set jit = off set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    most constant int := least(greatest(coalesce(claim_webhooks.max, 50), 1), 1000);
    at constant timestamptz := ojs_store.now();
    -- Receivers compare it with their clocks.
    stamp constant text := floor(extract(epoch from clock_timestamp()))::text;
begin
    if not exists (select from ojs_store.webhook) then
        return;
    end if;
    return query
        with hooks as materialized (
            select w.id, s.failures > 0 as failing, busy.n as busy
            from ojs_store.webhook w join ojs_store.webhook_status s on s.webhook = w.id
            cross join lateral (
                select count(*) as n from (
                    select from ojs_store.webhook_delivery l
                    where l.webhook = w.id and l.lease is not null and l.due_at > at limit 4) few) busy
            where w.active
        ), failing as materialized (
            select h.id
            from hooks h
            where h.failing and h.busy = 0 and exists (select from ojs_store.webhook_delivery d
                where d.webhook = h.id and d.state = 'pending' and d.due_at <= at)
            order by random()
            limit (select greatest(ceil((most + sum(b.busy)) / 2) - coalesce(sum(b.busy) filter (where b.failing), 0),
                0) from hooks b)
        ), due as (
            select d.id
            from (select f.id, 1 as places from failing f
                union all select h.id, 4 - h.busy from hooks h where not h.failing) h
            cross join lateral (
                select d.id from ojs_store.webhook_delivery d
                where d.webhook = h.id and d.state = 'pending' and d.due_at <= at
                order by d.due_at limit h.places
                for update skip locked) d
            order by random() limit most
        ), claimed as (
            update ojs_store.webhook_delivery d
            set lease = gen_random_uuid(), due_at = at + make_interval(secs => w.timeout_s + 60)
            from due, ojs_store.webhook w
            where d.id = due.id and w.id = d.webhook
            returning d.id, d.lease, d.event_type, d.body, w.id as webhook, w.url, w.timeout_s, w.secret,
                case when w.former_until > at then w.former_secret end as former_secret
        )
        select c.id, c.lease, c.url, c.timeout_s,
            array['Content-Type: application/json', 'User-Agent: OJS-Webhook/1.0',
                'X-OJS-Event-Type: ' || c.event_type, 'X-OJS-Delivery-ID: del_' || c.id,
                'X-OJS-Subscription-ID: sub_' || c.webhook, 'X-OJS-Timestamp: ' || stamp,
                'X-OJS-Signature: sha256=' || ojs_store.hmac_sha256(c.secret, stamp || '.' || c.body)
                    || coalesce(',sha256=' || ojs_store.hmac_sha256(c.former_secret, stamp || '.' || c.body), '')],
            c.body
        from claimed c;
end $$;
comment on function ojs.claim_webhooks(int)
    is 'For a sender: deliveries that are due, each with its address, its signed headers and its body, for its timeout '
       'and a minute';

-- When a delivery is tried again that failed so many times; null: it is dead.
create function ojs_store.webhook_delay(attempts int) returns interval
language sql immutable strict parallel safe
begin atomic
    select make_interval(secs => ('{30,120,600,3600,14400,43200,86400}'::int[])[attempts]);
end;

-- Locks the status of subscriptions, and returns those that it has. In one order: two senders and the tick do not wait
-- for each other crosswise. These have one for a moment, but an open transaction may have it for hours: that one is
-- left out, so that it holds up no other.
create function ojs_store.lock_webhooks(hooks uuid[]) returns uuid[]
language plpgsql volatile parallel unsafe set lock_timeout = '100ms' set search_path = pg_catalog, pg_temp as $$
begin
    return array(select s.webhook from ojs_store.webhook_status s where s.webhook = any (hooks)
        order by s.webhook for update);
exception when lock_not_available then
    return array(select s.webhook from ojs_store.webhook_status s where s.webhook = any (hooks)
        order by s.webhook for update skip locked);
end $$;

create function ojs.finish_webhooks(results jsonb, out finished int, out busy uuid[]) returns record
language plpgsql volatile parallel unsafe security definer
set enable_seqscan = off set jit = off set search_path = pg_catalog, pg_temp as $$
declare
    at constant timestamptz := ojs_store.now();
    result record;
    taken uuid[];
begin
    finished := 0;
    if jsonb_typeof(results) is distinct from 'array' or jsonb_array_length(results) > 1000 then
        perform ojs_store.raise('INVALID_PAYLOAD', 'results must be an array of at most 1000 objects',
            '{"field": "results"}', 'Give what ojs.claim_webhooks gave, and what came of it.');
    end if;
    taken := ojs_store.lock_webhooks(array(select d.webhook from ojs_store.webhook_delivery d
        join jsonb_to_recordset(results) r (id uuid) on r.id = d.id));
    busy := array(select r.id from jsonb_to_recordset(results) r (id uuid, lease_id uuid)
        join ojs_store.webhook_delivery d on d.id = r.id and d.lease = r.lease_id and d.state = 'pending'
        where d.webhook <> all (taken));
    for result in
        select d.id, d.webhook, d.event_id, d.event_type, d.attempts + 1 as attempts, octet_length(d.body) as bytes,
            r.status_code, left(r.error, 500) as error, left(r.response, 1000) as response,
            least(greatest(r.duration_ms, 0), 1000000) as duration_ms, o.delivered,
            case when not o.delivered and d.event_type <> 'webhook.test'
                and (r.status_code not between 400 and 499 or r.status_code = 429 or r.status_code is null)
                -- as the receiver asks for it, as long as attempts are left
                then at + case when r.retry_after > 0 and r.status_code in (429, 503) and d.attempts < 7
                    then make_interval(secs => least(r.retry_after, 86400))
                    else ojs_store.webhook_delay(d.attempts + 1) end end as again_at
        from jsonb_to_recordset(results) r (id uuid, lease_id uuid, status_code int, error text, response text,
            duration_ms int, retry_after int)
        cross join lateral (select coalesce(r.status_code between 200 and 299, false) as delivered) o
        join ojs_store.webhook_delivery d on d.id = r.id and d.lease = r.lease_id and d.state = 'pending'
            and d.webhook = any (taken)
        order by d.id
        for update of d
    loop
        update ojs_store.webhook_delivery d set attempts = result.attempts, lease = null,
            state = case when result.delivered then 'delivered' when result.again_at is null then 'dead'
                else 'pending' end,
            due_at = result.again_at, finished_at = case when result.again_at is null then at end,
            status_code = result.status_code, error = result.error, response = result.response,
            duration_ms = result.duration_ms, body = case when not result.delivered then d.body end
        where d.id = result.id and d.lease is not null;
        continue when not found; -- named twice
        update ojs_store.webhook_status s set attempted_at = at,
            pending = s.pending - (result.again_at is null)::int,
            pending_bytes = s.pending_bytes - case when result.again_at is null then result.bytes else 0 end,
            delivered = s.delivered + result.delivered::int, retried = s.retried + (result.again_at is not null)::int,
            dead = s.dead + (not result.delivered and result.again_at is null)::int,
            failures = case when result.delivered then 0 else least(s.failures, 1000000) + 1 end
        where s.webhook = result.webhook;
        if not result.delivered and result.again_at is null and result.event_type <> 'webhook.test' then
            perform ojs_store.record_event('webhook.dead', 'del_' || result.id, jsonb_strip_nulls(jsonb_build_object(
                'delivery_id', 'del_' || result.id, 'subscription_id', 'sub_' || result.webhook,
                'event_id', result.event_id, 'event_type', result.event_type, 'attempts', result.attempts,
                'status_code', result.status_code)));
        end if;
        finished := finished + 1;
    end loop;
end $$;
comment on function ojs.finish_webhooks(jsonb)
    is 'For a sender: what came of deliveries that it claimed. Returns how many of them were still its own, and those '
       'to be told again, since an open transaction has their subscription';

create function ojs.retry_webhook_delivery(id uuid) returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    found_one record;
begin
    perform from ojs_store.webhook_status s join ojs_store.webhook_delivery d on d.webhook = s.webhook
    where d.id = retry_webhook_delivery.id for update of s;
    select d.state, d.webhook, octet_length(d.body) as bytes into found_one
    from ojs_store.webhook_delivery d join ojs_store.webhook w on w.id = d.webhook
    where d.id = retry_webhook_delivery.id and ojs_store.may_see_tenant(w.tenant) for update of d;
    if not found then
        perform ojs_store.no_such_webhook(id, 'delivery');
    elsif found_one.state = 'delivered' then
        perform ojs_store.raise('INVALID_STATE_TRANSITION', format('delivery %s was delivered', id),
            jsonb_build_object('delivery_id', id, 'current_state', 'delivered', 'attempted', 'retry'),
            'Retry those that are dead or pending.');
    end if;
    update ojs_store.webhook_delivery d set state = 'pending', attempts = 0, due_at = ojs_store.now(),
        finished_at = null
    where d.id = retry_webhook_delivery.id and d.lease is null;
    if found_one.state = 'dead' then
        update ojs_store.webhook_status s set pending = s.pending + 1, pending_bytes = s.pending_bytes + found_one.bytes
        where s.webhook = found_one.webhook;
    end if;
    perform ojs_store.record_audit('webhook_delivery_retried', 'del_' || id, null, null, null);
end $$;
comment on function ojs.retry_webhook_delivery(uuid)
    is 'Has a dead delivery, or a pending one that waits, sent at once, with all its attempts';

create function ojs.test_webhook(id uuid, delivery_id uuid default null) returns uuid
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    at constant timestamptz := ojs_store.now();
    new_id constant uuid := coalesce(delivery_id, gen_random_uuid());
    text_of_it text;
begin
    perform from ojs_store.webhook_status s join ojs_store.webhook w on w.id = s.webhook
    where s.webhook = test_webhook.id and ojs_store.may_see_tenant(w.tenant) for update of s;
    if not found then
        perform ojs_store.no_such_webhook(id, 'subscription');
    end if;
    if not (select w.active from ojs_store.webhook w where w.id = test_webhook.id) then
        perform ojs_store.raise('INVALID_STATE_TRANSITION', format('subscription %s is not active', id),
            jsonb_build_object('subscription_id', id, 'current_state', 'inactive', 'attempted', 'test'),
            'Set active to true first.');
    end if;
    text_of_it := jsonb_build_object('specversion', '1.0', 'id', 'evt_' || new_id, 'type', 'webhook.test',
        'source', 'ojs://' || ojs_store.uri_part(current_database()::text) || '/webhooks/sub_' || id,
        'time', ojs_store.time_text(at), 'subject', 'sub_' || id,
        'data', jsonb_build_object('subscription_id', 'sub_' || id))::text;
    insert into ojs_store.webhook_delivery (id, webhook, event_id, event_type, state, attempts, created_at, due_at,
        body)
    select new_id, test_webhook.id, 'evt_' || new_id, 'webhook.test', 'pending', 0, at, '-infinity', text_of_it
    on conflict do nothing;
    if found then
        update ojs_store.webhook_status s set pending = s.pending + 1,
            pending_bytes = s.pending_bytes + octet_length(text_of_it)
        where s.webhook = test_webhook.id;
    elsif not exists (select from ojs_store.webhook_delivery d where d.id = new_id and d.webhook = test_webhook.id) then
        perform ojs_store.raise('INVALID_PAYLOAD', 'delivery_id is taken', '{"field": "delivery_id"}',
            'Leave it out.');
    end if;
    return new_id;
end $$;
comment on function ojs.test_webhook(uuid, uuid)
    is 'Has an event webhook.test sent to a subscription, once; returns the id of that delivery';
