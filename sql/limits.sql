-- limits.sql: rate limits, as administrators set and read them. What claims make of them: src/limits/rate_limits.cpp.

-- What a rate limit says in numbers, that of `over` laid over it (src/job/limit_policy.cpp). Refuses what is none.
create function ojs_store.limit_numbers(
    config jsonb, over jsonb,
    out concurrency int, out rate int, out rate_period interval, out throttle int, out throttle_period interval
) returns record
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_limit_numbers';

create function ojs_store.check_limit(key text, config jsonb) returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_check_limit';

-- What a queue's settings, the default policy's among them, say of its own key.
create function ojs_store.queue_limit(config jsonb) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select coalesce(e.config -> 'rate_limit', '{}')
        || case when (e.config ->> 'concurrency')::int > 0
            then jsonb_build_object('concurrency', e.config -> 'concurrency') else '{}' end
    from (select ojs_store.effective_config(queue_limit.config, false)) e(config)
$$;

-- The limits that a job states, one row each.
create function ojs_store.job_limits(stated jsonb) returns setof jsonb
language sql immutable strict parallel safe rows 1 set search_path = pg_catalog, pg_temp as $$
    select jsonb_array_elements(case jsonb_typeof(stated) when 'array' then stated else jsonb_build_array(stated) end)
$$;

-- The key of a limit that a job in this queue states: a tenant's own.
create function ojs_store.limit_key(stated jsonb, queue text) returns text
language sql immutable parallel safe
begin atomic
    select coalesce((stated ->> 'key') || coalesce('@' || nullif(split_part(queue, '@', 2), ''), ''),
        'queue:' || queue);
end;

-- Queues with open jobs that state a limit. Null where rows would have to be counted: any may have some.
create function ojs_store.limited_queues() returns bigint[]
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select case when count(*) > 0 then coalesce(array_agg(c.queue) filter (where c.limited > 0), '{}') end
    from ojs_store.counted_apart(array(select distinct q.id from ojs_store.queue q), false) c
$$;

-- Every key of which something is known, or one of them, with what was said of it: by jobs that are not finished, by
-- queues, by administrators. Empty on a standby, where the hot set is not.
create function ojs_store.stated_limits(
    only_key text, out key text, out config jsonb, out over jsonb, out over_until timestamptz, out waiting bigint
) returns setof record
language plpgsql stable parallel unsafe
set plan_cache_mode = force_custom_plan -- which leaves out what a null or an empty array makes needless
set search_path = pg_catalog, pg_temp as $$
declare
    limited_ids bigint[];
begin
    if pg_is_in_recovery() then
        return;
    end if;
    limited_ids := ojs_store.limited_queues();
    return query
    with queues as materialized (
        select (newest.q).id, (newest.q).name, 'queue:' || (newest.q).name as key, newest.q
        from (select distinct on (q.id) q from ojs_store.queue q where q.name <> '_default' order by q.id,
            q.revised_at desc) newest
        where (newest.q).state <> 'deleted'
    ),
    -- Of very many queues few have a limit, and working out the settings of each takes long. A tenant's part has those
    -- of its queue, and all have those of the default policy.
    limiting as materialized (
        select q.name from ojs_store.queue q where q.config ?| array['rate_limit', 'concurrency']
    ),
    limited as materialized (
        select q.id, q.key, ojs_store.queue_limit((ojs_store.in_force(q.q)).config) as config from queues q
        where (only_key is null or only_key like 'queue:%' and q.key = only_key)
            and (q.name in (select l.name from limiting l)
                or split_part(q.name, '@', 1) in (select l.name from limiting l)
                or exists (select from limiting l where l.name = '_default'))
    ),
    by_job as (
        select ojs_store.limit_key(stated.config, queues.name) as key, stated.config, hot.ready, j.seq
        from (
            select r.job_id, r.queue, true as ready from ojs_store.ready r where r.flags & job_flag.job_limits <> 0
                and (limited_ids is null or r.queue = any (limited_ids))
            union all
            select l.job_id, l.queue, false from ojs_store.delayed l where l.flags & job_flag.job_limits <> 0
                and (limited_ids is null or l.queue = any (limited_ids))
                and l.kind <> DelayedKind.expiry
            union all
            select l.job_id, l.queue, false from ojs_store.lease l where l.flags & job_flag.job_limits <> 0
                and (limited_ids is null or l.queue = any (limited_ids))
        ) hot
        join ojs_store.job j on j.id = hot.job_id and limited_ids is distinct from '{}'
        join queues on queues.id = hot.queue
        cross join lateral ojs_store.job_limits(j.options -> 'rate_limit') stated (config)
        where only_key is null or ojs_store.limit_key(stated.config, queues.name) = only_key
    ),
    by_key as (
        select j.key, (array_agg(j.config order by j.seq desc))[1] as config, count(*) filter (where j.ready) as waiting
        from by_job j group by j.key
        union all
        select q.key, q.config, (ojs_store.ready_and_held(q.id)).ready
        from limited q where q.config <> '{}'
        union all
        select u.name, '{}', 0 from ojs_store.limit_use u where u.kind in (LimitUse.held, LimitUse.start)
            and u.name not like '+%' -- tenants' own (src/queue/tenant_settings.cpp)
            and (only_key is null or u.name = only_key)
        union all
        select r.key, '{}', 0 from ojs_store.rate_limit r
        where (r.until is null or r.until > ojs_store.now()) and (only_key is null or r.key = only_key)
    )
    select k.key, (array_agg(k.config order by k.config <> '{}' desc))[1],
        (array_agg(r.config order by r.set_at desc) filter (where r.config is not null))[1],
        (array_agg(r.until order by r.set_at desc) filter (where r.config is not null))[1],
        max(k.waiting)
    from by_key k
    left join ojs_store.rate_limit r on r.key = k.key and (r.until is null or r.until > ojs_store.now())
    group by k.key;
end $$;

-- How many slots of a concurrency limit are taken, as claims count them now (src/limits/slots.cpp). Not by SQL: claims
-- mark index entries dead that an older snapshot still needs.
create function ojs_store.slots_taken(key bigint) returns bigint
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_slots_taken';

-- How many jobs with a key have started since, as claims count them.
create function ojs_store.starts_since(key bigint, since timestamptz, out n bigint, out oldest timestamptz,
    out newest timestamptz) returns record
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_starts_since';

-- For what takes leases away by SQL: frees what one took. And one row in the place of all changes of a key.
create function ojs_store.free_slots(job_id uuid, token bigint, queue bigint, flags int) returns void
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_free_slots';

create function ojs_store.merge_slots(name text) returns void
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_merge_slots';

-- What is used of one key, by what was said of it.
create function ojs_store.limit_state(
    key text, config jsonb, over jsonb,
    out concurrency int, out active bigint, out rate int, out rate_period interval, out started bigint,
    out window_resets_at timestamptz, out throttle int, out throttle_period interval, out next_allowed_at timestamptz,
    out paused_until timestamptz
) returns record
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select n.concurrency,
        ojs_store.slots_taken(h.key),
        n.rate, n.rate_period, case when n.rate is not null then window_.n end, window_.oldest + n.rate_period,
            n.throttle, n.throttle_period,
        (ojs_store.starts_since(h.key, '-infinity')).newest + n.throttle_period / n.throttle,
        -- As claims see it: a pause that was noted before the clock was set back no longer counts.
        (select max(r.until) from ojs_store.rate_limit r where r.key = limit_state.key and r.config is null
            and r.until > ojs_store.now() and r.set_at <= ojs_store.now() + interval '1 minute')
    from ojs_store.limit_numbers(config, over) n
    cross join lateral (select ojs_store.name_hash(limit_state.key) as key) h
    cross join lateral ojs_store.starts_since(h.key, ojs_store.now() - n.rate_period) window_
$$;

-- Whether the caller may see what is known of a key.
create function ojs_store.may_read_limit(key text) returns boolean
language sql stable parallel unsafe
begin atomic
    select case when key like 'queue:%' then ojs_store.may_use_queue(substr(key, 7), 'read')
        else ojs_store.caller_tenant() is null or split_part(key, '@', 2) = ojs_store.caller_tenant() end;
end;

-- The keys that the caller may see, or this one; what is used is looked up for those that are returned alone.
create function ojs_store.rate_limits(
    only_key text default null, most bigint default null, skip bigint default 0,
    out key text, out concurrency int, out active bigint, out rate int, out rate_period interval, out started bigint,
    out window_resets_at timestamptz, out throttle int, out throttle_period interval, out next_allowed_at timestamptz,
    out paused_until timestamptz, out waiting bigint, out override jsonb, out override_until timestamptz,
    out total bigint
) returns setof record
language plpgsql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    if pg_is_in_recovery() then
        return;
    end if;
    return query
    select s.key, u.concurrency, u.active, u.rate, u.rate_period, u.started, u.window_resets_at, u.throttle,
        u.throttle_period,
        u.next_allowed_at, u.paused_until, s.waiting, s.over, s.over_until, s.total
    from (
        select l.*, count(*) over () as total from ojs_store.stated_limits(only_key) l
        where only_key is not null or ojs_store.may_read_limit(l.key)
        order by l.key limit most offset skip
    ) s
    cross join lateral ojs_store.limit_state(s.key, s.config, s.over) u
    order by s.key;
end $$;

create view ojs.rate_limits with (security_barrier) as
select key, concurrency, active, rate, rate_period, started, window_resets_at, throttle, throttle_period,
    next_allowed_at,
    paused_until, waiting, override, override_until
from ojs_store.rate_limits();
comment on view ojs.rate_limits is
    'Keys of rate limits, what they allow, what of it is used, and how many available jobs have the key; empty on a '
    'standby';

-- One key as the HTTP binding shows it; null if nothing is known of it.
create function ojs_store.rate_limit_json(key text) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp set intervalstyle = iso_8601 as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'key', r.key,
        'concurrency', case when r.concurrency is not null then jsonb_build_object(
            'limit', r.concurrency, 'active', r.active, 'available', greatest(r.concurrency - r.active, 0)) end,
        'rate', case when r.rate is not null then jsonb_build_object(
            'limit', r.rate, 'period', r.rate_period::text, 'current_count', r.started, 'window_resets_at',
                r.window_resets_at) end,
        'throttle', case when r.throttle is not null then jsonb_build_object(
            'limit', r.throttle, 'period', r.throttle_period::text, 'next_allowed_at', r.next_allowed_at) end,
        'paused_until', r.paused_until,
        'override', r.override, 'override_expires_at', r.override_until,
        'waiting_count', r.waiting))
    from ojs_store.rate_limits(rate_limit_json.key) r
$$;

-- Why a job may not start now, as ojs.explain_job says it; null if no limit is in its way. Looks at the keys of this
-- job alone: that of its queue, and those that it states, each by what the job itself says; and what its
-- tenant may hold.
create function ojs_store.explain_limit(job ojs.job, queue ojs_store.queue) returns text
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    says text;
begin
    if pg_is_in_recovery() then
        return null;
    end if;
    select case when k.key like '+%' then 'its tenant holds as many jobs as it may (max_concurrency): '
            else format('the rate limit "%s" is used up: ', k.key) end || case
            when r.paused_until is not null then format('paused until %s', r.paused_until)
            when r.active >= r.concurrency then format('%s of %s run', r.active, r.concurrency)
            when r.started >= r.rate then format('%s of %s have started within %s, the next may at %s', r.started,
                r.rate, r.rate_period, r.window_resets_at)
            else format('the next may start at %s', r.next_allowed_at) end
    into says
    from (
        select 'queue:' || (queue).name as key, ojs_store.queue_limit((queue).config) as config
        union all
        select ojs_store.limit_key(l, (queue).name), l from ojs_store.job_limits((job).extra -> 'rate_limit') l
        union all
        select '+active@' || t.name, jsonb_build_object('concurrency', t.config -> 'max_concurrency')
        from ojs_store.tenant t where t.name = split_part((queue).name, '@', 2) and t.config ? 'max_concurrency'
    ) k
    cross join lateral (
        select (array_agg(o.config order by o.set_at desc) filter (where o.config is not null))[1] as config
        from ojs_store.rate_limit o where o.key = k.key and (o.until is null or o.until > ojs_store.now())
    ) over_
    cross join lateral ojs_store.limit_state(k.key, coalesce(k.config, '{}'), over_.config) r
    where r.paused_until is not null or r.active >= r.concurrency or r.started >= r.rate
        or r.next_allowed_at > ojs_store.now()
    order by k.key
    limit 1;
    return says;
end $$;

create function ojs.set_rate_limit(key text, config jsonb, until timestamptz default null) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    before jsonb;
    limited_ids bigint[];
begin
    perform ojs_store.refuse_tenant('ojs.set_rate_limit()');
    perform ojs_store.use_queue(substr(key, 7), 'administer') where key like 'queue:%';
    perform ojs_store.check_limit(key, config);
    perform ojs_store.limit_numbers(config, null);
    if until <= ojs_store.now() then
        perform ojs_store.raise('INVALID_PAYLOAD', 'until is in the past', '{"field": "until"}',
            'Give a time to come, or null for good.');
    end if;
    perform ojs_store.lock_setting('ojs_store.rate_limit', key);
    select jsonb_build_object('config', r.config, 'until', r.until) into before from ojs_store.rate_limit r
        where r.key = set_rate_limit.key and r.config is not null order by r.set_at desc limit 1;
    delete from ojs_store.rate_limit r where r.key = set_rate_limit.key;
    if config is not null then
        insert into ojs_store.rate_limit (key, config, until, set_at) values (key, config, until, clock_timestamp());
    end if;
    perform ojs_store.changed('ojs_store.rate_limit');
    perform ojs_store.record_act('rate_limit_set', key,
        jsonb_strip_nulls(jsonb_build_object('key', key, 'config', config, 'queue', substring(key from '^queue:(.*)'),
        'until', ojs_store.time_text(until))), before,
        case when config is not null then jsonb_build_object('config', config, 'until', until) end);
    -- Who waits for jobs that may start now looks again.
    limited_ids := ojs_store.limited_queues();
    perform ojs_store.wake(q.name) from (select distinct q.name from ojs_store.queue q where q.state = 'active'
        and (limited_ids is null or q.id = any (limited_ids) or key in ('queue:' || q.name, 'queue:_default')
            or key like 'pool:%')) q;
    return coalesce(ojs_store.rate_limit_json(key), jsonb_build_object('key', key));
end $$;
comment on function ojs.set_rate_limit(text, jsonb, timestamptz) is
    'Lays limits over those that jobs or a queue (key queue:NAME) state, until a time or for good; null takes them '
    'back, pauses too';
