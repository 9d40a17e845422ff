-- maintenance.sql: the whole server pauses (ADM-05). What that means to claims and upkeep:
-- include/ojs/queue/maintenance.h.

-- Up to when jobs that wait for a time have been let go.
create function ojs_store.promoted_to() returns timestamptz
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_promoted_to';

-- As the admin API answers it.
create function ojs_store.maintenance_json() returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select coalesce((
        select jsonb_strip_nulls(jsonb_build_object('maintenance', true, 'reason', m.reason,
            'enabled_at', ojs_store.time_text(m.since), 'enabled_by', m.begun_by, 'estimated_end',
                ojs_store.time_text(m.ends_at)))
        from ojs_store.maintenance m order by m.since limit 1), '{"maintenance": false}')
$$;

create function ojs.set_maintenance(enabled boolean, reason text default null,
    estimated_duration interval default null) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    at timestamptz := ojs_store.now();
    since timestamptz;
begin
    if enabled is null then
        perform ojs_store.raise('INVALID_PAYLOAD', 'enabled must not be null', '{"field": "enabled"}',
            'Say true or false.');
    elsif estimated_duration not between interval '0' and interval '100 years' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'estimated_duration must be between 0 and 100 years',
            '{"field": "estimated_duration"}',
            'Give an interval such as 30 minutes, or leave it out.');
    end if;
    lock table ojs_store.maintenance in share row exclusive mode; -- one at a time; who reads does not wait
    delete from ojs_store.maintenance m returning m.since into since;
    if enabled then
        insert into ojs_store.maintenance (since, reason, ends_at, begun_by)
        values (coalesce(since, at), reason, at + estimated_duration, session_user);
    elsif since is not null then
        perform ojs_store.wake(q.name) from ojs.queues q where q.state <> 'paused';
    end if;
    if enabled or since is not null then
        perform ojs_store.record_act('maintenance_set', 'maintenance', ojs_store.maintenance_json());
    end if;
    return ojs_store.maintenance_json();
end $$;
comment on function ojs.set_maintenance(boolean, text, interval) is
    'Begins or ends maintenance: claims come back empty, promotion and cron wait, pushes go on; until it is ended, '
    'past restarts too';
