-- schemas.sql: JSON Schemas for the arguments of job types. C++: src/job/schema_registry.cpp, src/job/json_schema.cpp.

-- A version in the order of versions; null for what is none.
create function ojs_store.version_key(version text) returns bytea
language c strict immutable parallel safe as 'MODULE_PATHNAME', 'ojs_version_key';

create function ojs_store.check_schema(schema jsonb) returns void
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_check_schema';

-- What is wrong with a value by a schema: an array of sentences.
create function ojs_store.schema_errors(schema jsonb, value jsonb) returns jsonb
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_schema_errors';

-- A version as JSON has it: 2 as a number, 2.0 as a string.
create function ojs_store.version_json(version text) returns jsonb
language sql immutable strict parallel safe
begin atomic
    select case when version ~ '^(0|[1-9][0-9]{0,8})$' then to_jsonb(version::int) else to_jsonb(version) end;
end;

create function ojs_store.check_job_type(type text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if type is null or type !~ '^[a-z][a-z0-9_-]*([.][a-z][a-z0-9_-]*)*$' or octet_length(type) > 255 then
        perform ojs_store.raise('INVALID_PAYLOAD', 'type must be a job type', '{"field": "type"}',
            'Name it as jobs do, such as ''email.send''.');
    end if;
end $$;

-- What a schema refuses that the one before it took, as far as that shows in `properties`, `required`, types and
-- bounds.
create function ojs_store.breaking_changes(before jsonb, after jsonb, place text, depth int) returns setof text
language plpgsql stable parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    part record;
begin
    if depth > 16 or jsonb_typeof(before) <> 'object' or jsonb_typeof(after) <> 'object' then
        return;
    end if;
    return query select format('%srequired property ''%s'' was added', place, left(name, 64))
        from jsonb_array_elements_text(case jsonb_typeof(after -> 'required') when 'array'
            then after -> 'required' end) name
        where not coalesce(before -> 'required' ? name, false);
    return query select format('%sproperty ''%s'' was removed', place, left(name, 64))
        from jsonb_object_keys(case jsonb_typeof(before -> 'properties') when 'object'
            then before -> 'properties' end) name
        where not coalesce(after -> 'properties' ? name, false);
    if after ? 'type' and before -> 'type' is distinct from after -> 'type'
        and not (jsonb_typeof(after -> 'type') = 'array' and after -> 'type' @> (before -> 'type')) then
        return next format('%sthe type was changed', place);
    end if;
    if after -> 'additionalProperties' = 'false' and coalesce(before -> 'additionalProperties', 'true') <> 'false' then
        return next format('%sadditionalProperties became false', place);
    end if;
    if jsonb_typeof(after -> 'enum') = 'array' and not coalesce(after -> 'enum' @> (before -> 'enum'), false) then
        return next format('%senum lost a value', place);
    end if;
    return query select format('%s%s was narrowed', place, bound.name)
        from (values ('maxLength', 1), ('maxItems', 1), ('maximum', 1), ('exclusiveMaximum', 1), ('maxProperties', 1),
            ('minLength', -1), ('minItems', -1), ('minimum', -1), ('exclusiveMinimum', -1),
                ('minProperties', -1)) bound (name, sign)
        where jsonb_typeof(after -> bound.name) = 'number'
            and not coalesce(bound.sign * (after ->> bound.name)::numeric
                >= bound.sign * (case jsonb_typeof(before -> bound.name) when 'number' then before ->> bound.name
                    end)::numeric, false);
    for part in
        select key as name, format('%s%s.', place, left(key, 64)) as place, value as was,
            after -> 'properties' -> key as is_now
        from jsonb_each(case jsonb_typeof(before -> 'properties') when 'object' then before -> 'properties' end)
        union all
        select null, place || 'items.', before -> 'items', after -> 'items'
        union all
        select null, format('%s[%s].', place, n - 1), element,
            coalesce(after -> 'prefixItems', after -> 'items') -> (n - 1)::int
        from jsonb_array_elements(case
            when jsonb_typeof(before -> 'prefixItems') = 'array' then before -> 'prefixItems'
            when jsonb_typeof(before -> 'items') = 'array' then before -> 'items' end) with ordinality e (element, n)
    loop
        return query select * from ojs_store.breaking_changes(part.was, part.is_now, part.place, depth + 1);
    end loop;
end $$;

create function ojs_store.check_breaking(type text, version text, new_key bytea, schema jsonb) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    earlier record;
    changes text[];
begin
    -- The version just before, of the same major version: the first four bytes.
    select s.version, s.schema into earlier from ojs_store.job_schema s
    where s.type = type and s.key < new_key and substr(s.key, 1, 4) = substr(new_key, 1, 4) order by s.key desc limit 1;
    if found then
        changes := array(select c from ojs_store.breaking_changes(earlier.schema, schema, '', 0) c limit 20);
    end if;
    if cardinality(changes) > 0 then
        perform ojs_store.raise('INVALID_PAYLOAD',
            format('version %s introduces breaking changes compared to version %s', version, earlier.version),
            jsonb_build_object('field', 'version', 'breaking_changes', to_jsonb(changes)),
                'Give it the next major version.');
    end if;
end $$;

create function ojs.create_schema(type text, version text, schema jsonb, uri text default null) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    at timestamptz := ojs_store.now();
    new_key bytea := ojs_store.version_key(version);
    own_uri text := case when jsonb_typeof(schema) = 'object' then schema ->> '$id' end;
    existing text;
begin
    perform ojs_store.check_job_type(type);
    if new_key is null then
        perform ojs_store.raise('INVALID_PAYLOAD', 'version must be a version', '{"field": "version"}',
            'Give one such as 2, 2.0 or 2.0.0.');
    elsif schema is null or jsonb_typeof(schema) not in ('object', 'boolean') then
        perform ojs_store.raise('INVALID_PAYLOAD', 'schema must be a JSON Schema: an object', '{"field": "schema"}',
            'Give a JSON Schema of draft 2020-12.');
    elsif uri <> own_uri then
        perform ojs_store.raise('INVALID_PAYLOAD', 'uri differs from the $id of the schema', '{"field": "uri"}',
            'Leave one of them out.');
    end if;
    uri := coalesce(uri, own_uri, format('urn:ojs:schema:%s:v%s', type, version));
    if uri !~ '^[A-Za-z][A-Za-z0-9+.-]*:[!-~]+$' or uri ~ e'[#<>"{}|\\\\^`]' or octet_length(uri) > 400 then
        perform ojs_store.raise('INVALID_PAYLOAD', 'uri must be a URI of at most 400 bytes, without a fragment',
            '{"field": "uri"}', 'Give one such as urn:ojs:schema:email.send:v1.');
    end if;
    -- one registers after the other, so that each sees what there is
    lock table ojs_store.job_schema in share row exclusive mode;
    perform ojs_store.check_schema(schema);
    select s.type || '@' || s.version into existing from ojs_store.job_schema s where s.type = type and s.key = new_key
        or s.uri = uri;
    if found then
        perform ojs_store.raise('SCHEMA_EXISTS', format('version or uri is taken: the schema %s exists already',
            existing), jsonb_build_object('field', 'version', 'schema', existing),
            'Give it a version and a URI of its own, or drop the other first.');
    elsif (select count(*) from ojs_store.job_schema) >= 10000 then
        perform ojs_store.raise('UNAVAILABLE', 'there are 10000 schemas already', '{}',
            'Drop versions that no job has any more.');
    end if;
    perform ojs_store.check_breaking(type, version, new_key, schema);
    insert into ojs_store.job_schema (type, key, version, uri, schema, created_at)
        values (type, new_key, version, uri, schema, at);
    perform ojs_store.record_act('schema_created', type,
        jsonb_build_object('job_type', type, 'version', version, 'uri', uri));
    return jsonb_build_object('type', type, 'version', ojs_store.version_json(version), 'uri', uri, 'schema', schema,
        'created_at', ojs_store.time_text(at));
end $$;
comment on function ojs.create_schema(text, text, jsonb, text)
    is 'Registers a JSON Schema for the arguments of a job type, under a version of that type';

create function ojs.drop_schema(type text, version text) returns boolean
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    dropped ojs_store.job_schema;
    user_of_it text;
begin
    lock table ojs_store.job_schema in share row exclusive mode;
    delete from ojs_store.job_schema s where s.type = type and s.key = ojs_store.version_key(version) returning *
        into dropped;
    if not found then
        return false;
    end if;
    select s.type || '@' || s.version into user_of_it from ojs_store.job_schema s
    where jsonb_path_exists(s.schema, '$.**."$ref" ? (@ == $uri || @ starts with $with_fragment)',
        jsonb_build_object('uri', dropped.uri, 'with_fragment', dropped.uri || '#')) limit 1;
    if found then
        perform ojs_store.raise('INVALID_PAYLOAD', format('version %s is in use: the schema %s refers to it',
            dropped.version, user_of_it),
            jsonb_build_object('field', 'version', 'schema', user_of_it), 'Drop that one first.');
    end if;
    select w.name into user_of_it from ojs_store.worker w, jsonb_array_elements(
        case jsonb_typeof(w.info -> 'handlers') when 'array' then w.info -> 'handlers' end) h
    where w.died_at is null and h ->> 'type' = type and h ->> 'versions' <> '*'
        and ojs_store.in_range(h ->> 'versions', dropped.version) limit 1;
    if found then
        perform ojs_store.raise('INVALID_PAYLOAD', format('version %s is in use: the worker %s takes it',
            dropped.version, user_of_it),
            jsonb_build_object('field', 'version', 'worker', user_of_it),
            'Wait until no worker names it, or end those that do with ojs.deregister_worker in the same transaction.');
    end if;
    if not exists (select from ojs_store.job_schema s where s.type = type) then
        delete from ojs_store.schema_mode m where m.type = type;
    end if;
    perform ojs_store.record_act('schema_dropped', type,
        jsonb_build_object('job_type', type, 'version', dropped.version, 'uri', dropped.uri));
    return true;
end $$;
comment on function ojs.drop_schema(text, text)
    is 'Removes a version of the schema of a job type; false if there is none. Jobs that were pushed stay as they are';

create function ojs.set_schema_validation(type text, mode text) returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    before text;
begin
    perform ojs_store.check_job_type(type);
    if mode not in ('strict', 'warn', 'off') then
        perform ojs_store.raise('INVALID_PAYLOAD', 'mode must be strict, warn or off', '{"field": "mode"}',
            'Or null for what ojs.schema_validation says.');
    end if;
    lock table ojs_store.job_schema in share row exclusive mode;
    if not exists (select from ojs_store.job_schema s where s.type = type) then
        perform ojs_store.raise('NOT_FOUND', format('type %s has no schema', type),
            jsonb_build_object('field', 'type', 'resource_type', 'schema', 'resource_id', type),
            'Register one with ojs.create_schema.');
    end if;
    delete from ojs_store.schema_mode m where m.type = type returning m.mode into before;
    if mode is not null then
        insert into ojs_store.schema_mode (type, mode) values (type, mode);
    end if;
    perform ojs_store.record_act('schema_validation_set', type,
        jsonb_build_object('job_type', type), to_jsonb(before), to_jsonb(mode));
end $$;
comment on function ojs.set_schema_validation(text, text)
    is 'Says what becomes of jobs of a type whose arguments do not fit its schema: strict, warn, off; null for what '
       'ojs.schema_validation says';

-- The setting is known once the library is loaded.
create function ojs_store.default_schema_mode() returns text
language sql stable parallel safe
begin atomic
    select coalesce(current_setting('ojs.schema_validation', true), 'warn');
end;

create view ojs.schemas as
select s.type, s.version, s.uri, s.schema, s.created_at,
    not exists (select from ojs_store.job_schema later where later.type = s.type and later.key > s.key) as is_latest,
    coalesce(m.mode, ojs_store.default_schema_mode()) as validation
from ojs_store.job_schema s left join ojs_store.schema_mode m on m.type = s.type;
comment on view ojs.schemas
    is 'Schemas of the arguments of job types, each with its version, and what becomes of jobs that do not fit';
