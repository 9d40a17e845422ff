-- queues.sql: queues and the list of dead letters over HTTP.

-- PAGES ------------------------------------------------------------------------------------------------------------

-- A cursor names the last entry of a page; clients cannot read anything out of it, and need not.
create function ojs_http.cursor_of(key text) returns text
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select encode(convert_to(key, 'UTF8'), 'hex')
$$;

create function ojs_http.page_key(request ojs_http.request, pattern text default '') returns text
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    key text;
begin
    begin
        key := convert_from(decode(nullif(request.query ->> 'cursor', ''), 'hex'), 'UTF8');
    exception when data_exception then
        key := null;
    end;
    if coalesce(request.query ->> 'cursor', '') <> '' and (key is null or key !~ pattern) then
        perform ojs_http.raise('INVALID_PAYLOAD', 'cursor is none that this server gave out', '{"field": "cursor"}',
            'Begin without a cursor.');
    end if;
    return key;
end $$;

-- One page of a list, of which the caller has read one entry more than it shows, with the keys of all of them.
create function ojs_http.page(field text, entries jsonb[], keys text[], total bigint, most int, skipped int,
    shown int default null) returns ojs_http.response
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, jsonb_build_object(
        field, coalesce(to_jsonb(entries[:most]), '[]'),
        'pagination', jsonb_strip_nulls(jsonb_build_object('total', total, 'limit', most, 'offset', skipped,
            'has_more', coalesce(cardinality(keys), 0) > coalesce(shown, most),
            'next_cursor', ojs_http.cursor_of(case when cardinality(keys) > coalesce(shown, most)
                then keys[coalesce(shown, most)] end)))))
$$;

-- How many jobs a filter describes, where a page has `listed` of at most `most` after `skipped`: one that is not full
-- says it itself.
create function ojs_http.total_listed(filter jsonb, most int, skipped int, listed int) returns bigint
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select case when listed < most and (listed > 0 or skipped = 0) then skipped + listed
        else ojs_http.count_listed(filter) end
$$;

-- QUEUES -----------------------------------------------------------------------------------------------------------

create function ojs_http.queues(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    most int := ojs_http.query_number(request, 'limit', 50, 1, 200);
    skipped int := ojs_http.query_number(request, 'offset', 0, 0, 1000000000);
    after text := ojs_http.page_key(request);
    entries jsonb[];
    keys text[];
begin
    select array_agg(jsonb_build_object('name', q.name, 'status', q.state, 'paused', q.state = 'paused', 'created_at',
        ojs_http.rfc3339(q.created_at))
            order by q.name), array_agg(q.name order by q.name)
    into entries, keys
    from (select * from ojs.queues where after is null or name > after order by name limit most + 1 offset skipped) q;
    return ojs_http.page('queues', entries, keys, (select count(*) from ojs.queues), most, skipped);
end $$;

create function ojs_http.queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    info jsonb := ojs.queue_info(request.names[1]);
begin
    return ojs_http.reply(200,
        info - '{topic,count,performance,head_seq,earliest_seq}'::text[] || jsonb_build_object('queue',
        info -> 'queue' || jsonb_build_object('status', info -> 'state', 'type', info -> 'type', 'created_at',
            info -> 'created_at', 'config', info -> 'config')));
end $$;

-- Makes a queue, or gives one that is there these settings.
create function ojs_http.create_queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    named text := ojs_http.text_field(body, 'name', true);
    known boolean := exists (select from ojs.queues q where q.name = named);
    queue jsonb;
begin
    perform ojs_http.only(body, 'name', 'config');
    queue := ojs.create_queue(named, ojs_http.with_bound(coalesce(ojs_http.field(body, 'config', 'object'), '{}')));
    return ojs_http.reply(case when known then 200 else 201 end, queue || jsonb_build_object('queue', queue),
        jsonb_build_object('Location', '/ojs/v1/queues/' || named));
end $$;

create function ojs_http.queue_stats(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    info jsonb;
begin
    perform ojs_http.upkeep();
    info := ojs.queue_info(request.names[1]);
    return ojs_http.reply(200, (info -> 'stats') || jsonb_build_object('queue', info -> 'queue', 'status',
        info -> 'state', 'stats', info -> 'stats',
        'computed_at', info -> 'stats' -> 'computed_at'));
end $$;

create function ojs_http.queue_config(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    info jsonb;
begin
    if request.names[1] = '_default' then
        perform from ojs.queues limit 1; -- who may not look at queues may not look at this either
        return ojs_http.reply(200, jsonb_build_object('name', '_default', 'config', ojs_http.default_policy()));
    end if;
    info := ojs.queue_info(request.names[1]);
    return ojs_http.reply(200, jsonb_build_object('name', info -> 'name', 'config', info -> 'config'));
end $$;

-- The settings of a bound may come in an object of their own.
create function ojs_http.with_bound(config jsonb) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    bound jsonb := coalesce(ojs_http.field(config, 'backpressure', 'object'), '{}');
begin
    if bound ? 'strategy' then
        bound := bound - 'strategy' || jsonb_build_object('discard', bound -> 'strategy');
    end if;
    return config - 'backpressure' || bound;
end $$;

create function ojs_http.configure_queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    queue jsonb := ojs.configure_queue(request.names[1], ojs_http.with_bound(ojs_http.object(request)));
begin
    return ojs_http.reply(200, jsonb_build_object('queue', queue, 'name', queue -> 'name', 'config',
        queue -> 'config'));
end $$;

create function ojs_http.queue_is(name text, state text, at_field text) returns jsonb
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('queue', jsonb_build_object('name', name, 'status', state, 'paused', state = 'paused'),
        'status', state,
        at_field, ojs_http.rfc3339(ojs_http.now()))
$$;

create function ojs_http.pause_queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs.pause_queue(request.names[1]);
    return ojs_http.reply(200, ojs_http.queue_is(request.names[1], 'paused', 'paused_at'));
end $$;

create function ojs_http.resume_queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs.resume_queue(request.names[1]);
    return ojs_http.reply(200, ojs_http.queue_is(request.names[1], 'active', 'resumed_at'));
end $$;

create function ojs_http.drain_queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs.drain_queue(request.names[1]);
    return ojs_http.reply(200, ojs_http.queue_is(request.names[1], 'draining', 'draining_since'));
end $$;

-- Like pause_queue(), but without the wrapper, for administrators, and only of a queue that is there.
create function ojs_http.pause_queue_flat(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    answer jsonb;
begin
    perform ojs.queue_info(request.names[1]);
    answer := (ojs_http.pause_queue(request)).body;
    return ojs_http.reply(200, answer -> 'queue' || (answer - 'queue'));
end $$;

create function ojs_http.resume_queue_flat(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    answer jsonb;
begin
    perform ojs.queue_info(request.names[1]);
    answer := (ojs_http.resume_queue(request)).body;
    return ojs_http.reply(200, answer -> 'queue' || (answer - 'queue'));
end $$;

create function ojs_http.purge_queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.purge_asked(request);
    states text[] := ojs_http.texts_field(body, 'states');
    before text := ojs_http.rfc3339(ojs_http.time_value(ojs_http.text_field(body, 'older_than'), 'older_than'));
    n bigint;
begin
    perform ojs_http.only((body || coalesce(ojs_http.field(body, 'filter', 'object'), '{}')) - 'filter', 'states',
        'confirm', 'older_than');
    if states is null then
        perform ojs_http.raise('INVALID_PAYLOAD', 'states is missing', '{"field": "states"}',
            'Name states such as available, scheduled, completed.');
    elsif before is not null then
        -- By the time of their end, so only of what has ended.
        perform ojs_http.must_confirm(body);
        perform ojs.queue_info(request.names[1]);
        n := ojs_http.delete_all(jsonb_build_object('queue', request.names[1], 'until', before)
            || jsonb_build_object('state', states));
    else
        n := ojs.purge_queue(request.names[1], states,
            coalesce(ojs_http.field(body, 'confirm', 'boolean')::boolean, false));
    end if;
    return ojs_http.reply(200,
        jsonb_strip_nulls(jsonb_build_object('name', request.names[1], 'states', states, 'purged_count', n)));
end $$;

-- What becomes of its jobs is said in the query string or in the body.
create function ojs_http.drop_queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request, false);
    strategy text := coalesce(request.query ->> 'strategy', ojs_http.text_field(body, 'strategy'), 'reject');
    target text := coalesce(request.query ->> 'target', ojs_http.text_field(body, 'target_queue'),
        ojs_http.text_field(body, 'target'));
    n bigint := ojs.drop_queue(request.names[1], strategy, target);
begin
    return ojs_http.reply(200,
        jsonb_strip_nulls(jsonb_build_object('deleted', true, 'name', request.names[1], 'queue', request.names[1],
        'strategy', strategy, 'target_queue', target, 'jobs', n, 'jobs_affected', n, 'state', 'deleted')));
end $$;

-- DEAD LETTERS -----------------------------------------------------------------------------------------------------

-- A page of the jobs that a filter describes, the newest first, by cursor.
create function ojs_http.job_list(request ojs_http.request, field text, filter jsonb) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    most int := ojs_http.query_number(request, 'limit', 50, 1, 200);
    skipped int := ojs_http.query_number(request, 'offset', 0, 0, 1000000000);
    after uuid := ojs_http.page_key(request, '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$');
    entries jsonb[];
    keys text[];
    shown int;
begin
    with page as (
        select listed.job, listed.job ->> 'id' as id, listed.place
        from ojs_http.listed_jobs(filter || jsonb_strip_nulls(jsonb_build_object('beyond', after)), most + 1,
            skipped) listed
    ), fitting as (
        -- One is shown however large it is, and the one after the last says that there is more.
        select *, coalesce(sum(pg_column_size(job)) over (order by place rows between unbounded preceding
            and 1 preceding), 0) < ojs_http.most_bytes() as fits
        from page
    )
    select (select array_agg(f.job order by f.place) from fitting f where f.fits),
        (select array_agg(f.id order by f.place) from fitting f),
        least(most, (select count(*) from fitting f where f.fits))
    into entries, keys, shown;
    return ojs_http.page(field, entries[:shown], keys, ojs_http.total_listed(filter,
        case when after is null then most + 1 else 0 end, skipped, coalesce(cardinality(keys), 0)), most, skipped,
        shown);
end $$;

create function ojs_http.dead_letters(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.job_list(request, 'jobs', ojs_http.dead_letter_filter(request))
$$;

-- QUEUES AS TOPICS -------------------------------------------------------------------------------------------------

create function ojs_http.create_topic(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    queue jsonb := ojs.create_queue(request.names[1], ojs_http.object(request, false));
begin
    return ojs_http.reply(200, queue || jsonb_build_object('topic', queue -> 'name'));
end $$;

create function ojs_http.topic(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.upkeep();
    return ojs_http.reply(200, ojs.queue_info(request.names[1]));
end $$;
