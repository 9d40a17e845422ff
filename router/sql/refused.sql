-- refused.sql: functions of a node that a router cannot have, so that whoever calls one is told why.

do $do$
declare
    f record;
begin
    for f in
        select v.name, v.parameters, v.result, g.what, g.why, g.hint
        from (values
            ('pools', 'set_pool', 'name text, config jsonb', 'jsonb'),
            ('pools', 'drop_pool', 'name text', 'boolean'),
            ('pools', 'claim_pool', 'pool text, worker text, max int default 1, lease interval default null, '
                'wait interval default ''0''', 'setof ojs.claimed_job'),
            ('tenants', 'set_tenant', 'tenant text, config jsonb, reason text default null', 'jsonb'),
            ('tenants', 'drop_tenant', 'tenant text', 'boolean'),
            ('tenants', 'bind_tenant', 'role name, tenant text', 'void'),
            ('tenants', 'unbind_tenant', 'role name, tenant text', 'boolean')
        ) v(what, name, parameters, result)
        join (values
            ('pools', 'each node counts its own claims only', 'Claim several queues in their order, or make the pool '
                'on each node and claim there.'),
            ('tenants', 'nodes see one role, whoever calls', 'Keep tenants on servers of their own, or connect to a '
                'node for what is a tenant''s.')
        ) g(what, why, hint) using (what)
    loop
        execute format($f$
            create function ojs.%I(%s) returns %s
            language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $p$
            begin
                perform ojs_router.raise('UNSUPPORTED_FEATURE', %L, %L, %L);
            end $p$
        $f$, f.name, f.parameters, f.result, format('a router has no %s, since %s', f.what, f.why),
            jsonb_build_object('feature', f.what), f.hint);
    end loop;
end $do$;
