-- webhooks.sql: subscriptions to events that are delivered by HTTP (WHK-01). Deliveries: webhook_deliveries.sql.

create view ojs.webhooks with (security_barrier) as
select w.id, w.url, w.events, w.queues, w.job_types, w.active, w.metadata,
    make_interval(secs => w.timeout_s) as timeout, w.tenant, w.role, s.pending, s.delivered, s.retried, s.dead,
    s.dropped, s.failures, s.attempted_at, w.created_at, w.changed_at
from ojs_store.webhook w join ojs_store.webhook_status s on s.webhook = w.id
where ojs_store.may_see_tenant(w.tenant);
comment on view ojs.webhooks
    is 'Who is told of events by HTTP, and how deliveries to them are doing; without the secrets. For ojs_admin';

-- A subscription as JSON, without its secret.
create function ojs_store.webhook_json(w ojs_store.webhook) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('id', w.id, 'url', w.url, 'events', to_jsonb(w.events), 'active', w.active,
        'metadata', w.metadata, 'timeout_seconds', w.timeout_s, 'created_at', ojs_store.time_text(w.created_at))
        || case when w.queues is not null or w.job_types is not null then jsonb_build_object('filter',
            jsonb_strip_nulls(jsonb_build_object('queues', to_jsonb(w.queues), 'job_types', to_jsonb(w.job_types))))
            else '{}' end
$$;

-- An array of one to a hundred texts that fit; null if there is none.
create function ojs_store.webhook_texts(given jsonb, field text, pattern text, hint text) returns text[]
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if coalesce(given, 'null') = 'null' then
        return null;
    elsif jsonb_typeof(given) <> 'array' or jsonb_array_length(given) not between 1 and 100
        or jsonb_path_exists(given, 'strict $[*] ? (@.type() != "string")')
        or exists (select from jsonb_array_elements_text(given) e where e !~ pattern or octet_length(e) > 255) then
        perform ojs_store.raise('INVALID_PAYLOAD', format('%s must be an array of 1 to 100 names', field),
            jsonb_build_object('field', field), hint);
    end if;
    return array(select distinct e from jsonb_array_elements_text(given) e order by 1);
end $$;

-- What docs/reference/events.md has, and what the documents of Open Job Spec have besides.
create function ojs_store.event_types() returns text[]
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select regexp_split_to_array(btrim('
        admin.cron_removed admin.cron_set admin.hook_registered admin.hook_removed admin.job_deleted
        admin.job_discarded admin.job_skipped admin.maintenance_set admin.pool_dropped admin.pool_set
        admin.queue_configured admin.queue_drained admin.queue_dropped admin.queue_purged admin.rate_limit_set
        admin.schema_created admin.schema_dropped admin.schema_validation_set admin.tenant_dropped
        admin.tenant_set backpressure.cleared backpressure.dropped backpressure.rejected backpressure.warning
        bulk.cancel.completed bulk.delete.completed bulk.enqueue.completed bulk.retry.completed cron.skipped
        cron.triggered dead_letter.added dead_letter.pruned dead_letter.replayed job.cancelled job.completed
        job.discarded job.enqueued job.expired job.failed job.heartbeat job.progress job.retrying job.scheduled
        job.stalled job.started job.timeout job.total_timeout job.ttl_expired job.updated
        queue.deduplication_key_freed queue.paused queue.resumed rate_limit.dropped rate_limit.dynamic_adjusted
        rate_limit.exceeded rate_limit.released scheduling.rebalanced tenant.created tenant.limit_exceeded
        webhook.dead webhook.delivered webhook.failed webhook.subscription.created webhook.subscription.deleted
        worker.heartbeat worker.quiet worker.started worker.stopped workflow.callback_fired workflow.cancelled
        workflow.completed workflow.created workflow.extended workflow.failed workflow.started
        workflow.step_completed', e' \n'), '[[:space:]]+')
$$;

-- Refuses types of which nothing would ever come: misspelt ones, and those that are delivered to nobody.
create function ojs_store.check_webhook_events(wanted text[]) returns void
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    known constant text[] := ojs_store.event_types();
    bad text := (select w from unnest(wanted) w
        where not exists (select from unnest(known) k where ojs_store.matches(k, array[w])) limit 1);
    alike text := (select string_agg(k, ', ') from unnest(known) k
        where split_part(k, '.', 1) = split_part(bad, '.', 1));
begin
    if bad is not null then
        perform ojs_store.raise('INVALID_PAYLOAD', format('there are no events of type %s', bad),
            '{"field": "events"}', coalesce('There are ' || alike || '.', format('Types begin with %s.',
                (select string_agg(distinct split_part(k, '.', 1), ', ') from unnest(known) k))));
    elsif wanted <@ '{webhook.delivered,webhook.failed,webhook.dead}' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'events about deliveries are not delivered',
            '{"field": "events"}', 'Read webhook.dead from ojs.events, and the rest from ojs.webhook_deliveries.');
    end if;
end $$;

-- A secret that is given, or a new one.
create function ojs_store.webhook_secret(given jsonb) returns text
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if coalesce(given, 'null') = 'null' then
        return 'whsec_' || encode(sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())), 'hex');
    elsif jsonb_typeof(given) <> 'string' or given #>> '{}' !~ '^[!-~]{8,255}$' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'secret must be 8 to 255 visible ASCII characters',
            '{"field": "secret"}', 'Leave it out to have one made.');
    end if;
    return given #>> '{}';
end $$;

-- The subscription with these settings, checked; what is not given stays.
create function ojs_store.webhook_with(w ojs_store.webhook, given jsonb) returns ojs_store.webhook
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    bad text;
    filter jsonb := nullif(given -> 'filter', 'null');
    allowed constant text[] := '{url,events,filter,active,secret,metadata,timeout_seconds}';
begin
    if jsonb_typeof(given) is distinct from 'object' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'def must be an object', '{"field": "def"}',
            'Give an object such as {"url": "https://example.com/hook", "events": ["job.failed"]}.');
    end if;
    select key into bad from jsonb_object_keys(given) key where key <> all (allowed) limit 1;
    if found then
        perform ojs_store.raise('INVALID_PAYLOAD', format('%s is no setting of a subscription', left(bad, 64)),
            jsonb_build_object('field', left(bad, 64)), format('It takes %s.', array_to_string(allowed, ', ')));
    end if;
    w.url := coalesce(given ->> 'url', w.url);
    -- Without a user and a password, which would be shown wherever the address is.
    if w.url is null or jsonb_typeof(given -> 'url') <> 'string' or octet_length(w.url) > 2048
        or w.url !~ ('^https?://([A-Za-z0-9_][A-Za-z0-9._-]{0,252}|[[][0-9A-Fa-f:.]+[]])(:[0-9]{1,5})?'
            '([/?][!"$-~]*)?$') then
        perform ojs_store.raise('INVALID_PAYLOAD',
            'url must be an https URL of at most 2048 bytes, without a user, a password and a fragment',
            '{"field": "url"}', 'Give one such as https://example.com/hook.');
    elsif coalesce(substring(w.url from '^https?://[^/?]*:([0-9]+)([/?]|$)'), '443')::int not between 1 and 65535 then
        perform ojs_store.raise('INVALID_PAYLOAD', 'the port of url must be from 1 to 65535', '{"field": "url"}',
            'Give one such as https://example.com:8443/hook.');
    elsif given ? 'url' and w.url like 'http:%' and not current_setting('ojs.webhooks_over_http')::boolean then
        perform ojs_store.raise('INVALID_PAYLOAD', 'url must begin with https://', '{"field": "url"}',
            'Give an https URL, or for tests set ojs.webhooks_over_http.');
    end if;
    w.events := coalesce(ojs_store.webhook_texts(given -> 'events', 'events',
        '^([*]|[a-z][a-z0-9_]*([.][a-z0-9_]+)*([.][*])?)$',
        'Give types of events such as ["job.completed", "workflow.*"], or ["*"].'), w.events);
    if w.events is null then
        perform ojs_store.raise('INVALID_PAYLOAD', 'events is missing', '{"field": "events"}',
            'Give types of events such as ["job.completed", "workflow.*"], or ["*"].');
    end if;
    if coalesce(given -> 'events', 'null') <> 'null' then
        perform ojs_store.check_webhook_events(w.events);
    end if;
    if given ? 'filter' then
        if jsonb_typeof(filter) <> 'object'
            or exists (select from jsonb_object_keys(filter) key where key not in ('queues', 'job_types')) then
            perform ojs_store.raise('INVALID_PAYLOAD', 'filter must be an object of queues and job_types',
                '{"field": "filter"}', 'Give an object such as {"queues": ["mail"], "job_types": ["email.*"]}.');
        end if;
        w.queues := ojs_store.webhook_texts(filter -> 'queues', 'filter.queues', '^[a-z0-9][a-z0-9.@_:A-Z-]*$',
            'Give names of queues.');
        w.job_types := ojs_store.webhook_texts(filter -> 'job_types', 'filter.job_types',
            '^([*]|[a-z][a-z0-9_-]*([.][a-z][a-z0-9_-]*)*([.][*])?)$', 'Give types of jobs, such as ["email.*"].');
    end if;
    if coalesce(jsonb_typeof(given -> 'active'), 'boolean') <> 'boolean' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'active must be a boolean', '{"field": "active"}',
            'Give true or false.');
    elsif coalesce(jsonb_typeof(given -> 'metadata'), 'object') <> 'object'
        or octet_length(given ->> 'metadata') > 8192 then
        perform ojs_store.raise('INVALID_PAYLOAD', 'metadata must be an object of at most 8192 bytes',
            '{"field": "metadata"}', 'Give an object such as {"owner": "platform-team"}.');
    elsif given ? 'timeout_seconds' and (given -> 'timeout_seconds')::text !~ '^([5-9]|[1-5][0-9]|60)$' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'timeout_seconds must be a whole number from 5 to 60',
            '{"field": "timeout_seconds"}', 'Leave it out for 30.');
    end if;
    w.active := coalesce((given -> 'active')::boolean, w.active, true);
    w.metadata := coalesce(given -> 'metadata', w.metadata, '{}');
    w.timeout_s := coalesce((given ->> 'timeout_seconds')::int, w.timeout_s, 30);
    return w;
end $$;

-- The subscription, for whoever may see it; null if there is none. Calls that change subscriptions take turns.
create function ojs_store.webhook_locked(id uuid) returns ojs_store.webhook
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    found_one ojs_store.webhook;
begin
    perform ojs_store.lock_setting('ojs_store.webhook', '');
    select * into found_one from ojs_store.webhook w
    where w.id = webhook_locked.id and ojs_store.may_see_tenant(w.tenant);
    return found_one;
end $$;

create function ojs_store.no_such_webhook(id uuid, what text) returns void
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_store.raise('INVALID_PAYLOAD', 'id is missing', '{"field": "id"}',
        'The views ojs.webhooks and ojs.webhook_deliveries list what is there.') where id is null;
    select ojs_store.raise('NOT_FOUND', format('%s %s does not exist', what, id),
        jsonb_build_object('resource_type', what, 'resource_id', id),
        'The views ojs.webhooks and ojs.webhook_deliveries list what is there.')
$$;

create function ojs.create_webhook(def jsonb) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    most constant int := 100;
    most_of_tenant constant int := 20;
    at timestamptz := ojs_store.now(); -- also loads the library, and with it its settings
    w ojs_store.webhook;
begin
    w := ojs_store.webhook_with(null, def);
    w.id := gen_random_uuid();
    w.tenant := ojs_store.caller_tenant();
    w.role := ojs_store.calling_role();
    w.secret := ojs_store.webhook_secret(def -> 'secret');
    w.created_at := at;
    w.changed_at := at;
    perform ojs_store.lock_setting('ojs_store.webhook', '');
    if (select count(*) from ojs_store.webhook) >= most then
        perform ojs_store.raise('UNAVAILABLE', format('there are %s subscriptions already', most), '{}',
            'Drop those that nobody needs.');
    elsif (select count(*) from ojs_store.webhook h where h.tenant = w.tenant) >= most_of_tenant then
        perform ojs_store.raise('UNAVAILABLE', format('the tenant has %s subscriptions already', most_of_tenant), '{}',
            'Drop those that nobody needs, or have one address get more types of events.');
    end if;
    -- With these a tick need not look at each job that is kept. To make them once more would lock the tables anyhow.
    if to_regclass('ojs_store.job_created') is null then
        perform ojs.index_events();
    end if;
    insert into ojs_store.webhook_cursor (only_one, cursor, tidied_at) values (true, ojs_store.cursor_now(), at)
        on conflict do nothing;
    insert into ojs_store.webhook select w.*;
    insert into ojs_store.webhook_status (webhook) values (w.id);
    perform ojs_store.record_audit('webhook_created', 'sub_' || w.id, null, ojs_store.webhook_json(w), null);
    perform ojs_store.record_event('webhook.subscription.created', 'sub_' || w.id,
        jsonb_build_object('subscription_id', 'sub_' || w.id));
    perform ojs_store.ask_for_worker();
    return ojs_store.webhook_json(w) || jsonb_build_object('secret', w.secret);
end $$;
comment on function ojs.create_webhook(jsonb)
    is 'Has events delivered to an HTTPS address from now on. The answer alone shows the secret that signs them';

create function ojs.update_webhook(id uuid, changes jsonb) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    before ojs_store.webhook := ojs_store.webhook_locked(id);
    w ojs_store.webhook;
begin
    if before.id is null then
        perform ojs_store.no_such_webhook(id, 'subscription');
    elsif changes ? 'secret' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'secret cannot be changed here', '{"field": "secret"}',
            'Use ojs.rotate_webhook_secret, which lets the old one sign for a while.');
    end if;
    w := ojs_store.webhook_with(before, changes);
    -- Else who gives the address would get what another one may read. Who changes the rest gives nobody more to read.
    if changes ? 'url' then
        w.role := ojs_store.calling_role();
        if not coalesce(pg_has_role(w.role, to_regrole(quote_ident(before.role))::oid, 'member'), false) then
            -- What waits or is kept was for the other one. The status first, as for whoever writes deliveries.
            perform from ojs_store.webhook_status s where s.webhook = w.id for update;
            delete from ojs_store.webhook_delivery d where d.webhook = w.id;
            update ojs_store.webhook_status s set dropped = s.dropped + s.pending, pending = 0, pending_bytes = 0
            where s.webhook = w.id;
        end if;
    end if;
    update ojs_store.webhook o set url = w.url, events = w.events, queues = w.queues, job_types = w.job_types,
        active = w.active, metadata = w.metadata, timeout_s = w.timeout_s, role = w.role, changed_at = ojs_store.now()
    where o.id = w.id;
    perform ojs_store.record_audit('webhook_updated', 'sub_' || w.id, ojs_store.webhook_json(before),
        ojs_store.webhook_json(w), null);
    return ojs_store.webhook_json(w);
end $$;
comment on function ojs.update_webhook(uuid, jsonb)
    is 'Changes a subscription: what is not given stays. While active is false nothing new is delivered';

create function ojs.drop_webhook(id uuid) returns boolean
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    before ojs_store.webhook := ojs_store.webhook_locked(id);
begin
    if before.id is null then
        return false;
    end if;
    -- The status first: who has it is about to write deliveries.
    delete from ojs_store.webhook_status s where s.webhook = before.id;
    delete from ojs_store.webhook w where w.id = before.id;
    delete from ojs_store.webhook_delivery d where d.webhook = before.id;
    delete from ojs_store.webhook_cursor where not exists (select from ojs_store.webhook);
    perform ojs_store.record_audit('webhook_dropped', 'sub_' || before.id, ojs_store.webhook_json(before), null, null);
    perform ojs_store.record_event('webhook.subscription.deleted', 'sub_' || before.id,
        jsonb_build_object('subscription_id', 'sub_' || before.id));
    return true;
end $$;
comment on function ojs.drop_webhook(uuid)
    is 'Ends a subscription, with what is still to be delivered and what is known of deliveries; false if there is '
       'none';

create function ojs.rotate_webhook_secret(id uuid, secret text default null, overlap interval default '24 hours')
    returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    before ojs_store.webhook := ojs_store.webhook_locked(id);
    new_secret text := ojs_store.webhook_secret(to_jsonb(secret));
begin
    if before.id is null then
        perform ojs_store.no_such_webhook(id, 'subscription');
    elsif overlap is null or overlap not between '0' and interval '30 days' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'overlap must be from 0 to 30 days', '{"field": "overlap"}',
            'Give an interval such as 24 hours; 0 if the old secret is known to others.');
    end if;
    update ojs_store.webhook w set secret = new_secret, former_secret = before.secret,
        former_until = ojs_store.now() + overlap, changed_at = ojs_store.now()
    where w.id = before.id;
    perform ojs_store.record_audit('webhook_secret_rotated', 'sub_' || before.id, null, null, null);
    return ojs_store.webhook_json(before) || jsonb_build_object('secret', new_secret,
        'former_secret_until', ojs_store.time_text(ojs_store.now() + overlap));
end $$;
comment on function ojs.rotate_webhook_secret(uuid, text, interval)
    is 'Gives a subscription a new secret, which the answer shows. For a while the old one signs as well';
