-- hooks.sql: functions of one's own in the way of a push, a claim, or the end of an attempt. C++: src/job/hooks.cpp.

create function ojs_store.add_hook(name text, point text, function regprocedure, place text, other text, role name)
    returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    found_function record;
    at int;
begin
    if name is null or name !~ '^[A-Za-z0-9_.-]{1,64}$' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'name must have 1 to 64 letters, digits, _, - and dots',
            '{"field": "name"}', 'Give the hook a name of its own.');
    end if;
    if point is null or point not in ('enqueue', 'before_execute', 'after_execute') then
        perform ojs_store.raise('INVALID_PAYLOAD', 'point must be enqueue, before_execute or after_execute',
            '{"field": "point"}', 'Say when the hook runs.');
    end if;
    select n.nspname as in_schema, p.proname, p.prokind, p.proretset, p.pronargs, p.proargtypes[0] as takes,
        p.prorettype, pg_get_userbyid(p.proowner) as owner, has_function_privilege(role, p.oid, 'execute') as allowed
    into found_function from pg_proc p join pg_namespace n on n.oid = p.pronamespace where p.oid = function;
    if not found then
        perform ojs_store.raise('INVALID_PAYLOAD', 'function must be an existing function', '{"field": "function"}',
            'Name it as in ''public.add_trace(jsonb)''.');
    end if;
    if found_function.prokind <> 'f' or found_function.proretset or found_function.pronargs <> 1
        or found_function.takes <> 'jsonb'::regtype
        or not (found_function.prorettype = 'jsonb'::regtype
            or (point = 'after_execute' and found_function.prorettype = 'void'::regtype))
    then
        perform ojs_store.raise('INVALID_PAYLOAD', format('function must take one jsonb and return jsonb%s',
            case when point = 'after_execute' then ' or void' else '' end),
            '{"field": "function"}', 'Declare it as in create function add_trace(job jsonb) returns jsonb.');
    end if;
    if found_function.in_schema ~ '^pg_(toast_)?temp_' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'function must not be temporary', '{"field": "function"}',
            'Create it in a schema that stays.');
    end if;
    if not found_function.allowed then
        perform ojs_store.raise('PERMISSION_DENIED', format('role "%s" may not execute the function', role),
            '{"field": "function"}', 'Hooks run as the role that registers them: grant it EXECUTE.');
    end if;
    lock table ojs_store.hook in share row exclusive mode;
    if exists (select from ojs_store.hook h where h.name = add_hook.name) then
        perform ojs_store.raise('INVALID_PAYLOAD', format('name is taken: there is a hook "%s"', name),
            '{"field": "name"}', 'Remove that one first with ojs.unregister_hook(name).');
    end if;
    select case coalesce(place, 'last')
        when 'first' then coalesce(min(h.position), 1)
        when 'last' then coalesce(max(h.position), 0) + 1
        when 'before' then max(h.position) filter (where h.name = other)
        when 'after' then max(h.position) filter (where h.name = other) + 1
    end into at from ojs_store.hook h where h.point = add_hook.point;
    if place not in ('first', 'last', 'before', 'after') then
        perform ojs_store.raise('INVALID_PAYLOAD', 'place must be first, last, before or after', '{"field": "place"}',
            'Leave it out to run last.');
    end if;
    if (other is not null) <> (coalesce(place, 'last') in ('before', 'after')) then
        perform ojs_store.raise('INVALID_PAYLOAD', 'other belongs to the places before and after',
            '{"field": "other"}', 'Name the hook that this one stands beside.');
    end if;
    if at is null then
        perform ojs_store.raise('NOT_FOUND', format('other names no %s hook: "%s"', point, left(other, 64)),
            jsonb_build_object('field', 'other', 'hook', left(other, 64)), 'Look at the view ojs.hooks.');
    end if;
    update ojs_store.hook h set position = h.position + 1 where h.point = add_hook.point and h.position >= at;
    insert into ojs_store.hook (name, point, position, function_schema, function_name, role, registered_at,
        function_owner)
    values (name, point, at, found_function.in_schema, found_function.proname, role, ojs_store.now(),
        found_function.owner);
    delete from ojs_store.hook_failure f where f.hook = name;
    perform ojs_store.record_act('hook_registered', name,
        jsonb_build_object('hook', name, 'point', point, 'function', function::text, 'role', role));
end $$;

create function ojs.register_hook(name text, point text, function regprocedure, place text default 'last',
    other text default null)
returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_register_hook';
comment on function ojs.register_hook(text, text, regprocedure, text, text)
    is 'Has a function called at each enqueue, before_execute or after_execute; it runs as the role that registers it';

create function ojs.unregister_hook(name text) returns boolean
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    delete from ojs_store.hook h where h.name = unregister_hook.name;
    if not found then
        return false;
    end if;
    delete from ojs_store.hook_failure f where f.hook = unregister_hook.name;
    perform ojs_store.record_act('hook_removed', name, jsonb_build_object('hook', name));
    return true;
end $$;
comment on function ojs.unregister_hook(text) is 'Removes a hook; false if there was none of that name';

create view ojs.hooks as
select h.name, h.point, row_number() over (partition by h.point order by h.position) as position,
    format('%I.%I(jsonb)', h.function_schema, h.function_name) as function, h.role, h.registered_at,
    coalesce(f.failures, 0) as failures, f.last_failed_at, f.last_error
from ojs_store.hook h
left join lateral (
    select sum(failures) as failures, max(failed_at) as last_failed_at,
        (array_agg(error order by failed_at desc))[1] as last_error
    from ojs_store.hook_failure where hook = h.name
    having count(*) > 0
) f on true
order by array_position(array['enqueue', 'before_execute', 'after_execute'], h.point), h.position;
comment on view ojs.hooks
    is 'Hooks in the order of their chains, with how often each execution hook has failed and the SQLSTATE of the last '
       'time';
