-- server.sql: what a server says of itself over HTTP: its settings, hooks and audit trail; and a server of tests begins
-- anew.

create function ojs_http.system_config(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, jsonb_build_object('version', ojs.version(), 'limits',
        ojs.manifest() -> 'payload_limits',
        'config', jsonb_object_agg(s.name, current_setting(s.name) order by s.name)))
    from pg_settings s where s.name like 'ojs.%'
$$;

create function ojs_http.middleware(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, jsonb_build_object('enqueue',
        coalesce(jsonb_agg(entry order by place) filter (where enqueues), '[]'),
        'execution', coalesce(jsonb_agg(entry order by place) filter (where not enqueues), '[]')))
    from (
        select h.position as place, h.point = 'enqueue' as enqueues,
            jsonb_build_object('name', h.name, 'phase',
                case h.point when 'enqueue' then 'enqueue' else 'execution' end, 'order', h.position, 'description',
                h.point) as entry
        from ojs.hooks h
    ) hooks
$$;

create function ojs_http.audit(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    most int := ojs_http.query_number(request, 'limit', 50, 1, 100);
    since timestamptz := ojs_http.query_time(request, 'since');
    until timestamptz := ojs_http.query_time(request, 'until');
begin
    return ojs_http.reply(200, jsonb_build_object('entries', (
        select coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object('id', a.id, 'timestamp', ojs_http.rfc3339(a.at),
            'event_type', 'admin.' || a.act, 'subject', a.subject, 'principal', a.session_role, 'role', a.role,
            'source_ip', host(a.address), 'application', a.application, 'outcome', 'success',
            'before', a.before, 'after', a.after, 'detail', a.detail)) order by a.at desc, a.id), '[]')
        from (select * from ojs.audit where (since is null or at >= since) and (until is null or at < until)
            and (request.query ->> 'subject' is null or subject = request.query ->> 'subject')
            order by at desc, id limit most) a)));
end $$;

create function ojs_http.reset(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs.reset();
    return ojs_http.reply(200, '{"reset": true}');
end $$;
