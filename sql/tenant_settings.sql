-- tenant_settings.sql: limits and weights of tenants, and what they do (MT-04). C++: src/queue/tenant_settings.cpp,
-- src/push/tenant_room.cpp.

-- Sessions hear of it, whoever changes the rows: a restore does so, too. What a queue is follows from them.
create function ojs_store.tenant_changed() returns trigger
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.changed('ojs_store.tenant'), ojs_store.changed('ojs_store.queue');
    return null;
end $$;
create trigger changed after insert or update or delete or truncate on ojs_store.tenant
    for each statement execute function ojs_store.tenant_changed();

create function ojs_store.check_tenant(tenant text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if current_setting('ojs.tenancy') = 'off' then
        perform ojs_store.raise('UNSUPPORTED_FEATURE', 'there are no tenants: ojs.tenancy is off',
            '{"field": "tenant"}', 'Set ojs.tenancy to optional or required for the database first.');
    elsif tenant is null or not ojs_store.is_tenant(tenant) then
        perform ojs_store.raise('INVALID_PAYLOAD', 'tenant is no tenant', '{"field": "tenant"}',
            'Give 1 to 63 letters, digits, dots, underscores, colons or hyphens, the first a letter or a digit.');
    end if;
end $$;

-- A whole number of a tenant's settings, or null to lift it.
create function ojs_store.tenant_number(config jsonb, field text, lowest int, highest int) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    value jsonb := config -> field;
begin
    if value = 'null' or (jsonb_typeof(value) = 'number' and value::text ~ '^[0-9]{1,10}$'
        and value::bigint between lowest and highest) then
        return value;
    end if;
    perform ojs_store.raise('INVALID_PAYLOAD',
        format('%s must be a whole number from %s to %s', field, lowest, highest),
        jsonb_build_object('field', field), 'Give a whole number, or null for none.');
end $$;

-- What is given of a tenant's settings, checked, each at the top: {"max_concurrency": 20, "fairness_weight": 10}.
create function ojs_store.given_tenant(tenant text, config jsonb) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    flat jsonb;
    bad text;
begin
    if jsonb_typeof(config) is distinct from 'object'
        or jsonb_typeof(coalesce(config -> 'limits', '{}')) <> 'object' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'config and its limits must be objects', '{"field": "config"}',
            'Give an object such as {"limits": {"max_concurrency": 20}, "fairness_weight": 10}.');
    end if;
    flat := config - 'limits' || coalesce(config -> 'limits', '{}');
    if coalesce(flat -> 'tenant_id', to_jsonb(tenant)) <> to_jsonb(tenant) then
        perform ojs_store.raise('INVALID_PAYLOAD', 'tenant_id is another tenant', '{"field": "tenant_id"}',
            'Leave it out.');
    elsif coalesce(flat -> 'priority_boost', '0') not in ('0', 'null') then
        perform ojs_store.raise('UNSUPPORTED_FEATURE', 'priority_boost is not supported',
            '{"field": "priority_boost"}', 'Give the tenant a fairness_weight.');
    end if;
    flat := flat - '{tenant_id,priority_boost}'::text[];
    select key into bad from jsonb_object_keys(flat) key where key not in ('max_concurrency', 'max_queue_depth',
        'max_scheduled', 'max_enqueue_rate', 'fairness_weight') limit 1;
    if found then
        perform ojs_store.raise('INVALID_PAYLOAD', format('%s is no setting of a tenant', left(bad, 64)),
            jsonb_build_object('field', left(bad, 64)), 'It takes limits (max_concurrency, max_queue_depth, '
            'max_scheduled, max_enqueue_rate) and fairness_weight.');
    end if;
    perform ojs_store.tenant_number(flat, field, f.lowest, 1000000000) from (values ('max_concurrency', 0),
        ('max_queue_depth', 0), ('max_scheduled', 0)) f (field, lowest) where flat ? field;
    perform ojs_store.tenant_number(flat, 'fairness_weight', 1, 1000000) where flat ? 'fairness_weight';
    if coalesce(flat -> 'max_enqueue_rate', 'null') <> 'null' then
        if jsonb_typeof(flat -> 'max_enqueue_rate') <> 'object' then
            perform ojs_store.raise('INVALID_PAYLOAD', 'max_enqueue_rate must be an object',
                '{"field": "max_enqueue_rate"}', 'Give an object such as {"limit": 1000, "period": "PT1M"}.');
        end if;
        select key into bad from jsonb_object_keys(flat -> 'max_enqueue_rate') key
            where key not in ('limit', 'period') limit 1;
        if found then
            perform ojs_store.raise('INVALID_PAYLOAD', format('max_enqueue_rate has no member %s', left(bad, 64)),
                '{"field": "max_enqueue_rate"}', 'It takes limit and period.');
        end if;
        perform ojs_store.tenant_number(flat -> 'max_enqueue_rate', 'limit', 0, 1000000000)
            where flat -> 'max_enqueue_rate' ? 'limit';
        perform ojs_store.check_limit(tenant, flat -> 'max_enqueue_rate');
        perform ojs_store.limit_numbers(flat -> 'max_enqueue_rate', null);
        if flat #> '{max_enqueue_rate,limit}' is null then
            perform ojs_store.raise('INVALID_PAYLOAD', 'max_enqueue_rate names no limit',
                '{"field": "max_enqueue_rate"}', 'Give an object such as {"limit": 1000, "period": "PT1M"}.');
        end if;
    end if;
    return flat;
end $$;

create function ojs_store.tenant_json(tenant text) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('tenant_id', tenant_json.tenant, 'limits', coalesce(t.config, '{}') - 'fairness_weight',
        'fairness_weight', coalesce(t.config -> 'fairness_weight', '1'))
    from (select) one left join ojs_store.tenant t on t.name = tenant_json.tenant
$$;

create function ojs.set_tenant(tenant text, config jsonb, reason text default null) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    given jsonb;
    before jsonb;
    wanted jsonb;
begin
    perform ojs_store.refuse_tenant('ojs.set_tenant()');
    perform ojs_store.check_tenant(tenant);
    given := ojs_store.given_tenant(tenant, config);
    if octet_length(reason) > 1000 then
        perform ojs_store.raise('INVALID_PAYLOAD', 'reason is longer than 1000 bytes', '{"field": "reason"}',
            'Shorten it.');
    end if;
    perform ojs_store.lock_setting('ojs_store.tenant', tenant);
    select t.config into before from ojs_store.tenant t where t.name = tenant;
    wanted := jsonb_strip_nulls(coalesce(before, '{}') || given);
    if before is null and (select count(*) from ojs_store.tenant) >= 100000 then
        perform ojs_store.raise('UNAVAILABLE', 'settings of 100000 tenants are kept already', '{"field": "tenant"}',
            'Drop those of tenants that are gone.');
    end if;
    -- Applications call this at each start: nothing to write.
    if before = wanted then
        return ojs_store.tenant_json(tenant);
    end if;
    insert into ojs_store.tenant as t (name, config, changed_at) values (tenant, wanted, ojs_store.now())
    on conflict on constraint tenant_pkey do update set config = excluded.config, changed_at = excluded.changed_at;
    perform ojs_store.record_act('tenant_set', tenant, jsonb_strip_nulls(jsonb_build_object('tenant_id', tenant,
        'reason', reason)), before, wanted);
    if before is null then
        perform ojs_store.record_event('tenant.created', tenant, jsonb_build_object('tenant_id', tenant));
    end if;
    -- Who waits for jobs that may start now looks again.
    perform ojs_store.wake(q.name) from ojs.queues q
        where q.state = 'active' and split_part(q.name, '@', 2) = tenant;
    return ojs_store.tenant_json(tenant);
end $$;
comment on function ojs.set_tenant(text, jsonb, text) is 'Sets limits of a tenant, over all of its queues, and its '
    'weight; what is not named stays as it is, and null lifts a limit';

-- Tells those who wait for a queue or its tenants' parts that these have work again.
create function ojs_store.wake_parts(queue text) returns void
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp
begin atomic
    select ojs_store.wake(q.name) from ojs.queues q
    where q.state <> 'paused' and (q.name = queue or starts_with(q.name, queue || '@'));
end;

create function ojs.drop_tenant(tenant text) returns boolean
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    before jsonb;
begin
    perform ojs_store.refuse_tenant('ojs.drop_tenant()');
    perform ojs_store.lock_setting('ojs_store.tenant', tenant);
    delete from ojs_store.tenant t where t.name = tenant returning t.config into before;
    if before is null then
        return false;
    end if;
    perform ojs_store.record_act('tenant_dropped', tenant, jsonb_build_object('tenant_id', tenant), before);
    return true;
end $$;
comment on function ojs.drop_tenant(text)
    is 'Takes back what was set for a tenant, not its jobs nor its bindings; false if nothing was set';

-- Who there is: tenants with settings, with roles, or with a queue that the caller may read.
create view ojs.tenants with (security_barrier) as
select n.name as tenant, (t.config ->> 'max_concurrency')::int as max_concurrency,
    (t.config ->> 'max_queue_depth')::int as max_queue_depth, (t.config ->> 'max_scheduled')::int as max_scheduled,
    t.config -> 'max_enqueue_rate' as max_enqueue_rate,
    coalesce((t.config ->> 'fairness_weight')::int, 1) as fairness_weight, t.changed_at
from (
    select s.name from ojs_store.tenant s union select r.tenant from ojs_store.tenant_role r
    union select split_part(q.name, '@', 2) collate "C" from ojs.queues q where q.name like '%@%'
) n left join ojs_store.tenant t on t.name = n.name
where ojs_store.may_see_tenant(n.name);
comment on view ojs.tenants is 'Tenants, and what is set for them';

create function ojs.tenant_stats(
    tenant text default null,
    out tenant_id text, out queues bigint, out waiting bigint, out available bigint, out active bigint,
    out scheduled bigint, out retryable bigint, out pending bigint, out completed_24h bigint, out failed_24h bigint,
    out enqueued_last_hour bigint, out processed_last_hour bigint, out fairness_weight int,
    out effective_share numeric, out actual_share numeric
) returns setof record
language plpgsql stable parallel unsafe security definer rows 10 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    day timestamptz := ojs_store.now() - interval '24 hours';
    hour timestamptz := ojs_store.now() - interval '1 hour';
    ids bigint[];
begin
    if tenant_stats.tenant is not null and not exists (select from ojs.tenants t
        where t.tenant = tenant_stats.tenant) then
        perform ojs_store.raise('NOT_FOUND', format('tenant "%s" does not exist', left(tenant_stats.tenant, 64)),
            jsonb_build_object('resource_type', 'tenant', 'resource_id', left(tenant_stats.tenant, 64)),
            'The view ojs.tenants lists them.');
    end if;
    ids := array(select ojs_store.queue_id(q.name) from ojs.queues q where q.name like '%@%'
        and ojs_store.may_see_tenant(split_part(q.name, '@', 2)));
    return query
        with part as materialized (
            select ojs_store.queue_id(q.name) as id, split_part(q.name, '@', 2) collate "C" as tenant
            from ojs.queues q where q.name like '%@%'
        ), ended as materialized (
            select f.queue, count(*) filter (where f.state = State.completed) as completed,
                count(*) filter (where f.state = State.discarded) as failed,
                count(*) filter (where f.finished_at > hour and f.state <> State.cancelled) as processed
            from ojs_store.finished f where f.finished_at > day and f.queue = any (ids) group by 1
        ), pushed as materialized (
            select j.queue, count(*) as n from ojs_store.job j where j.created_at > hour and j.queue = any (ids)
            group by 1
        ), counted as materialized (
            select p.tenant, count(*) as queues, sum(c.available) as available, sum(c.active) as active,
                sum(c.scheduled) as scheduled, sum(c.retryable) as retryable, sum(c.pending) as pending,
                sum(coalesce(e.completed, 0)) as completed, sum(coalesce(e.failed, 0)) as failed,
                sum(coalesce(e.processed, 0)) as processed, sum(coalesce(u.n, 0)) as pushed
            from part p join ojs_store.queue_counts(ids) c on c.queue = p.id
            left join ended e on e.queue = p.id left join pushed u on u.queue = p.id
            group by 1
        ), shared as materialized (
            select t.tenant, t.fairness_weight, coalesce(c.queues, 0) as queues, coalesce(c.available, 0) as available,
                coalesce(c.active, 0) as active, coalesce(c.scheduled, 0) as scheduled,
                coalesce(c.retryable, 0) as retryable, coalesce(c.pending, 0) as pending,
                coalesce(c.completed, 0) as completed, coalesce(c.failed, 0) as failed,
                coalesce(c.pushed, 0) as pushed, coalesce(c.processed, 0) as processed,
                case when c.available + c.active > 0 then t.fairness_weight else 0 end as busy_weight
            from ojs.tenants t left join counted c on c.tenant = t.tenant
        ), whole as (
            select s.*, sum(s.busy_weight) over () as weights, sum(s.processed) over () as all_processed from shared s
        )
        select w.tenant, w.queues::bigint, (w.available + w.scheduled + w.retryable + w.pending)::bigint,
            w.available::bigint, w.active::bigint, w.scheduled::bigint, w.retryable::bigint, w.pending::bigint,
            w.completed::bigint, w.failed::bigint, w.pushed::bigint, w.processed::bigint, w.fairness_weight,
            -- Whoever acts for one tenant is not told what the others do.
            case when ojs_store.caller_tenant() is null
                then round(w.busy_weight / nullif(w.weights, 0)::numeric, 4) end,
            case when ojs_store.caller_tenant() is null then round(w.processed / nullif(w.all_processed, 0), 4) end
        from whole w
        where tenant_stats.tenant is null or w.tenant = tenant_stats.tenant
        order by w.tenant;
end $$;
comment on function ojs.tenant_stats(text)
    is 'Jobs of a tenant, or of each, by state; its last hour and day; and its share of what was worked on';
