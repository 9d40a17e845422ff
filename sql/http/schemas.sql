-- schemas.sql: schemas of job types over HTTP: under /schemas as the HTTP binding and the registry have them, in a
-- wrapper, and under /admin/schemas as job versioning has them, without one.

create function ojs_http.version_key(version text) returns bytea
language c strict immutable parallel safe as 'MODULE_PATHNAME', 'ojs_version_key';

create function ojs_http.version_json(version text) returns jsonb
language sql immutable strict parallel safe set search_path = pg_catalog, pg_temp as $$
    select case when version ~ '^(0|[1-9][0-9]{0,8})$' then to_jsonb(version::int) else to_jsonb(version) end
$$;

create function ojs_http.no_such_schema(name text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.raise('NOT_FOUND', format('schema %s does not exist', left(name, 128)),
        jsonb_build_object('resource_type', 'schema', 'resource_id', left(name, 128)),
            'GET /ojs/v1/schemas lists those that are there.');
end $$;

create function ojs_http.schema_json(s ojs.schemas, whole boolean) returns jsonb
language sql stable parallel safe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('uri', s.uri, 'type', s.type, 'job_type', s.type, 'version',
        ojs_http.version_json(s.version),
            'created_at', ojs_http.rfc3339(s.created_at), 'is_latest', s.is_latest)
        || case when whole then jsonb_build_object('schema', s.schema, 'validation',
            jsonb_build_object('mode', s.validation)) else '{}' end
$$;

-- The schema of a URI, the latest of a type, or that of a version; raises where there is none.
create function ojs_http.schema_named(name text, version text default null) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    found_schema jsonb;
begin
    select ojs_http.schema_json(s, true) into found_schema from ojs.schemas s
    where case when strpos(name, ':') > 0 then s.uri = name
        when version is null then s.type = name and s.is_latest
        else s.type = name and ojs_http.version_key(s.version) = ojs_http.version_key(version) end;
    if not found then
        perform ojs_http.no_such_schema(concat_ws('@', name, version));
    end if;
    return found_schema;
end $$;

create function ojs_http.schemas(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    most int := ojs_http.query_number(request, 'limit', 50, 1, 100);
    skip int := ojs_http.query_number(request, 'offset', 0, 0, 1000000);
    total bigint := (select count(*) from ojs.schemas);
begin
    return ojs_http.reply(200, jsonb_build_object(
        'schemas', (select coalesce(jsonb_agg(ojs_http.schema_json(s, false) order by s.type,
            ojs_http.version_key(s.version) desc), '[]') from (
            select * from ojs.schemas order by type, ojs_http.version_key(version) desc offset skip limit most) s),
        'pagination', jsonb_build_object('total', total, 'limit', most, 'offset', skip, 'has_more',
            skip + most < total)));
end $$;

create function ojs_http.schema(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, jsonb_build_object('schema', ojs_http.schema_named(request.names[1], request.names[2])))
$$;

create function ojs_http.versions_of(type text) returns jsonb
language sql stable parallel safe set search_path = pg_catalog, pg_temp as $$
    select jsonb_agg(jsonb_build_object('version', ojs_http.version_json(s.version), 'created_at',
        ojs_http.rfc3339(s.created_at), 'is_latest', s.is_latest)
        order by ojs_http.version_key(s.version) desc)
    from ojs.schemas s where s.type = versions_of.type
$$;

-- Without the wrapper; of a type with all its versions.
create function ojs_http.admin_schema(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, ojs_http.schema_named(request.names[1], request.names[2])
        || case when cardinality(request.names) = 1 then jsonb_build_object('versions',
            ojs_http.versions_of(request.names[1])) else '{}' end)
$$;

create function ojs_http.schema_versions(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    versions jsonb := ojs_http.versions_of(request.names[1]);
begin
    if versions is null then
        perform ojs_http.no_such_schema(request.names[1]);
    end if;
    return ojs_http.reply(200, jsonb_build_object('versions', versions));
end $$;

create function ojs_http.register(type text, version text, body jsonb) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    schema jsonb := coalesce(body -> 'schema', body -> 'args_schema');
    mode text := case when jsonb_typeof(body -> 'validation') = 'object' then body #>> '{validation,mode}' end;
begin
    perform ojs_http.only(body, 'type', 'job_type', 'version', 'schema', 'args_schema', 'uri', 'validation',
        'compatible_with', 'description');
    if schema is null then
        perform ojs_http.raise('INVALID_PAYLOAD', 'schema is missing', '{"field": "schema"}',
            'Give the JSON Schema as an object.');
    end if;
    perform ojs.create_schema(type, version, schema, ojs_http.text_field(body, 'uri'));
    if mode is not null then
        perform ojs.set_schema_validation(type, mode);
    end if;
    return ojs_http.schema_named(type, version);
end $$;

create function ojs_http.register_schema(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
begin
    return ojs_http.reply(201, jsonb_build_object('schema',
        ojs_http.register(coalesce(body ->> 'type', body ->> 'job_type'), body ->> 'version', body)));
end $$;

-- Without the wrapper.
create function ojs_http.admin_register_schema(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
begin
    return ojs_http.reply(201, ojs_http.register(coalesce(body ->> 'type', body ->> 'job_type'), body ->> 'version',
        body));
end $$;

create function ojs_http.put_schema(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
begin
    if coalesce(body ->> 'type', request.names[1]) <> request.names[1]
        or coalesce(body ->> 'version', request.names[2]) <> request.names[2] then
        perform ojs_http.raise('INVALID_PAYLOAD', 'version is not the one of the path', '{"field": "version"}',
            'Leave type and version out of the body.');
    end if;
    return ojs_http.reply(201, ojs_http.register(request.names[1], request.names[2], body));
end $$;

create function ojs_http.set_schema_validation(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
begin
    perform ojs_http.only(body, 'validation');
    perform ojs.set_schema_validation(request.names[1],
        ojs_http.text_field(ojs_http.field(body, 'validation', 'object', true), 'mode'));
    return ojs_http.reply(200, ojs_http.schema_named(request.names[1]));
end $$;

-- By its URI, or by type and version.
create function ojs_http.drop_schema(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    dropped jsonb;
begin
    if cardinality(request.names) = 1 and strpos(request.names[1], ':') = 0 then
        perform ojs_http.no_such_schema(request.names[1]);
    end if;
    dropped := ojs_http.schema_named(request.names[1], request.names[2]);
    perform ojs.drop_schema(dropped ->> 'type', dropped ->> 'version');
    return ojs_http.reply(200, jsonb_build_object('deleted', true, 'uri', dropped -> 'uri', 'type', dropped -> 'type',
        'version', dropped -> 'version'));
end $$;
