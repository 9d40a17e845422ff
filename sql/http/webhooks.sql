-- webhooks.sql: subscriptions to events and their deliveries over HTTP.

-- An id in a path, with or without its prefix; what is none is the id of nothing.
create function ojs_http.prefixed_id(given text, prefix text, what text) returns uuid
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    id text := case when starts_with(given, prefix) then substr(given, octet_length(prefix) + 1) else given end;
begin
    if id ~ '^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$' then
        return id;
    end if;
    perform ojs_http.raise('NOT_FOUND', format('%s %s does not exist', what, left(given, 64)),
        jsonb_build_object('resource_type', what, 'resource_id', left(given, 64)),
        format('GET /ojs/v1/webhooks/%s lists them.', case what when 'delivery' then 'deliveries'
            else 'subscriptions' end));
end $$;

create function ojs_http.webhook_json(w ojs.webhooks) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('id', 'sub_' || w.id, 'url', w.url, 'events', w.events, 'active', w.active,
        'metadata', w.metadata, 'timeout_seconds', extract(epoch from w.timeout)::int,
        'created_at', ojs_http.rfc3339(w.created_at), 'updated_at', ojs_http.rfc3339(w.changed_at),
        'deliveries', jsonb_build_object('pending', w.pending, 'delivered', w.delivered, 'retried', w.retried,
            'dead', w.dead, 'dropped', w.dropped, 'failures_in_a_row', w.failures))
        || case when w.queues is not null or w.job_types is not null then jsonb_build_object('filter',
            jsonb_strip_nulls(jsonb_build_object('queues', w.queues, 'job_types', w.job_types))) else '{}' end
$$;

create function ojs_http.webhook_named(request ojs_http.request) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    wanted uuid := ojs_http.prefixed_id(request.names[1], 'sub_', 'subscription');
    found_one jsonb := (select ojs_http.webhook_json(w) from ojs.webhooks w where w.id = wanted);
begin
    if found_one is null then
        perform ojs_http.raise('NOT_FOUND', format('subscription sub_%s does not exist', wanted),
            jsonb_build_object('resource_type', 'subscription', 'resource_id', 'sub_' || wanted),
            'GET /ojs/v1/webhooks/subscriptions lists them.');
    end if;
    return found_one;
end $$;

-- As the Webhooks document shows a subscription, and in the wrapper that the conformance suite reads.
create function ojs_http.webhook_reply(status int, subscription jsonb) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(status, subscription || jsonb_build_object('subscription', subscription))
$$;

create function ojs_http.webhooks(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, jsonb_build_object('subscriptions',
        coalesce(jsonb_agg(ojs_http.webhook_json(w) order by w.created_at, w.id), '[]'), 'total', count(*)))
    from ojs.webhooks w
$$;

create function ojs_http.create_webhook(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    made jsonb := ojs.create_webhook(ojs_http.object(request));
begin
    return ojs_http.webhook_reply(201, made || jsonb_build_object('id', 'sub_' || (made ->> 'id')));
end $$;

create function ojs_http.webhook(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.webhook_reply(200, ojs_http.webhook_named(request))
$$;

create function ojs_http.update_webhook(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs.update_webhook(ojs_http.prefixed_id(request.names[1], 'sub_', 'subscription'),
        ojs_http.object(request));
    return ojs_http.webhook_reply(200, ojs_http.webhook_named(request));
end $$;

create function ojs_http.drop_webhook(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.webhook_named(request);
    perform ojs.drop_webhook(ojs_http.prefixed_id(request.names[1], 'sub_', 'subscription'));
    return ojs_http.reply(204, null);
end $$;

create function ojs_http.rotate_webhook_secret(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request, false);
    rotated jsonb;
begin
    perform ojs_http.only(body, 'secret', 'overlap');
    rotated := ojs.rotate_webhook_secret(ojs_http.prefixed_id(request.names[1], 'sub_', 'subscription'),
        ojs_http.text_field(body, 'secret'),
        coalesce(ojs_http.duration_value(body -> 'overlap', 'overlap'), '24 hours'));
    return ojs_http.webhook_reply(200, rotated || jsonb_build_object('id', 'sub_' || (rotated ->> 'id')));
end $$;

-- Sends webhook.test and says what came of it. A repeated request asks for the same delivery: so the gateway, which
-- waits for us, asks until there is an answer.
create function ojs_http.test_webhook(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    delivery uuid := ojs.test_webhook(ojs_http.prefixed_id(request.names[1], 'sub_', 'subscription'),
        md5(concat_ws(' ', request.names[1], request.headers ->> 'x-request-id'))::uuid);
    d ojs.webhook_deliveries;
begin
    select * into d from ojs.webhook_deliveries o where o.id = delivery;
    if d.state = 'pending' then
        return ojs_http.reply(202, jsonb_build_object('success', null, 'delivery_id', 'del_' || delivery),
            case when ojs_http.may_wait(request) then '{}' else '{"OJS-Would-Wait": "30"}' end::jsonb);
    end if;
    return ojs_http.reply(200, jsonb_build_object('success', d.state = 'delivered', 'delivery_id', 'del_' || delivery)
        || jsonb_strip_nulls(jsonb_build_object('status_code', d.status_code, 'response_time_ms', d.duration_ms,
            'response_body', d.response, 'error', d.error)));
end $$;

create function ojs_http.webhook_delivery_json(d ojs.webhook_deliveries) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_strip_nulls(jsonb_build_object('id', 'del_' || d.id, 'subscription_id', 'sub_' || d.webhook,
        'event_id', d.event_id, 'event_type', d.event_type, 'status', d.state, 'attempts', d.attempts,
        'created_at', ojs_http.rfc3339(d.created_at), 'next_attempt_at', ojs_http.rfc3339(d.due_at),
        'finished_at', ojs_http.rfc3339(d.finished_at), 'status_code', d.status_code, 'error', d.error,
        'response_body', d.response, 'response_time_ms', d.duration_ms))
$$;

create function ojs_http.webhook_deliveries(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    most int := ojs_http.query_number(request, 'limit', 50, 1, 100);
    status text := ojs_http.query_word(request, 'status', 'pending', 'delivered', 'dead');
    subscription uuid := case when request.query ? 'subscription_id'
        then ojs_http.prefixed_id(request.query ->> 'subscription_id', 'sub_', 'subscription') end;
    after uuid := case when request.query ? 'after'
        then ojs_http.prefixed_id(request.query ->> 'after', 'del_', 'delivery') end;
    found_ones jsonb[];
begin
    found_ones := array(select ojs_http.webhook_delivery_json(d) from ojs.webhook_deliveries d
        where (status is null or d.state = status) and (subscription is null or d.webhook = subscription)
            and (after is null or d.id < after)
        order by d.id desc limit most + 1);
    return ojs_http.reply(200, jsonb_build_object('deliveries', to_jsonb(found_ones[:most]), 'has_more',
        cardinality(found_ones) > most));
end $$;

create function ojs_http.webhook_delivery(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    wanted uuid := ojs_http.prefixed_id(request.names[1], 'del_', 'delivery');
    found_one jsonb := (select ojs_http.webhook_delivery_json(d) || case when d.body is not null
        then jsonb_build_object('payload', d.body::jsonb) else '{}' end
        from ojs.webhook_deliveries d where d.id = wanted);
begin
    if found_one is null then
        perform ojs_http.raise('NOT_FOUND', format('delivery del_%s does not exist', wanted),
            jsonb_build_object('resource_type', 'delivery', 'resource_id', 'del_' || wanted),
            'GET /ojs/v1/webhooks/deliveries lists them.');
    end if;
    return ojs_http.reply(200, found_one || jsonb_build_object('delivery', found_one));
end $$;

create function ojs_http.retry_webhook_delivery(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs.retry_webhook_delivery(ojs_http.prefixed_id(request.names[1], 'del_', 'delivery'));
    return ojs_http.webhook_delivery(request);
end $$;
