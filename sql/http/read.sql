-- read.sql: what the handlers of HTTP requests read, and how. What each request needs is PL/pgSQL: a session plans its
-- expressions once, and a function in SQL at each call.

-- A part of a path or a query with its %XX resolved. Fails as converting bytes that are no text does.
create function ojs_http.decoded(part text) returns text
language plpgsql immutable strict parallel safe set search_path = pg_catalog, pg_temp as $$
begin
    if strpos(part, '%') = 0 then
        return part;
    end if;
    if part ~ '%(?![0-9A-Fa-f]{2})' then
        raise invalid_text_representation using message = 'a percent sign without two hexadecimal digits';
    end if;
    return convert_from(decode(string_agg(
            case when left(piece, 1) = '%' then substr(piece, 2) else encode(convert_to(piece, 'UTF8'), 'hex') end,
                '' order by n), 'hex'), 'UTF8')
        from regexp_matches(part, '%..|[^%]+', 'g') with ordinality as m(pieces, n), unnest(pieces) as piece;
end $$;

-- The parameters of a query string; one that comes twice is a list of both.
create function ojs_http.read_query(query text) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select coalesce(jsonb_object_agg(name, value), '{}')
    from (
        select ojs_http.decoded(replace(split_part(pair, '=', 1), '+', ' ')) as name,
            string_agg(ojs_http.decoded(replace(substr(pair, strpos(pair || '=', '=') + 1), '+', ' ')),
                ',' order by n) as value
        from string_to_table(query, '&') with ordinality as p(pair, n)
        where pair <> ''
        group by 1
    ) parameters
$$;

-- Headers by name in lower case; of several values the first.
create function ojs_http.read_headers(headers jsonb) returns jsonb
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
begin
    return (
        select coalesce(jsonb_object_agg(lower(name collate "C"), case jsonb_typeof(value) when 'array' then value ->> 0
            else value #>> '{}' end), '{}')
        from jsonb_each(case when jsonb_typeof(headers) = 'object' then headers else '{}' end) as h(name, value));
end $$;

-- The client's own, if it may stand in a header; else a new one. Not by the clock of ojs: an identity, not a time.
create function ojs_http.request_id(given text) returns text
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    ms text := lpad(to_hex(floor(extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0');
begin
    return case when given ~ '^[!-~]{1,128}$' then given
        else 'req_' || left(ms, 8) || '-' || substr(ms, 9) || '-7' || substr(gen_random_uuid()::text, 16) end;
end $$;

-- WHAT HANDLERS SHARE ----------------------------------------------------------------------------------------------

create function ojs_http.reply(status int, body jsonb, headers jsonb default '{}') returns ojs_http.response
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    response ojs_http.response;
begin
    response.status := status;
    response.headers := headers;
    response.body := body;
    return response;
end $$;

-- The body, where there must be one, as most often; a field that is null counts as absent.
create function ojs_http.object(request ojs_http.request, required boolean default true) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if request.body is null and not required then
        return '{}';
    elsif jsonb_typeof(request.body) is distinct from 'object' then
        perform ojs_http.raise('INVALID_PAYLOAD',
            case when request.body is null then 'the request has no body' else 'the body must be a JSON object' end,
            '{"reason": "malformed"}', 'Send a JSON object.');
    end if;
    return request.body;
end $$;

-- A field of the body; null if it is absent.
create function ojs_http.field(body jsonb, name text, type text, required boolean default false) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    value jsonb := body -> name;
    found_type text := coalesce(jsonb_typeof(value), 'null');
begin
    if found_type = 'null' and not required then
        return null;
    elsif found_type <> type then
        perform ojs_http.raise('INVALID_PAYLOAD',
            case when found_type = 'null' then format('%s is missing', name)
                else format('%s must be of type %s, not %s', name, type, found_type) end,
            jsonb_build_object('field', name, 'expected', type, 'received', found_type),
                format('Give %s as a JSON %s.', name, type));
    end if;
    return value;
end $$;

create function ojs_http.text_field(body jsonb, name text, required boolean default false) returns text
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    return ojs_http.field(body, name, 'string', required) #>> '{}';
end $$;

-- A whole number; beyond the bounds it is clamped.
create function ojs_http.number_field(body jsonb, name text, least_value bigint, greatest_value bigint) returns bigint
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    value numeric := ojs_http.field(body, name, 'number')::numeric;
begin
    if value <> trunc(value) then
        perform ojs_http.raise('INVALID_PAYLOAD', format('%s must be a whole number', name),
            jsonb_build_object('field', name), 'Give a whole number.');
    end if;
    return case when value is not null then least(greatest(value, least_value), greatest_value) end;
end $$;

create function ojs_http.texts_field(body jsonb, name text, required boolean default false) returns text[]
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    value jsonb := ojs_http.field(body, name, 'array', required);
begin
    if jsonb_path_exists(value, 'strict $[*] ? (@.type() != "string")') then
        perform ojs_http.raise('INVALID_PAYLOAD', format('%s must hold strings only', name),
            jsonb_build_object('field', name),
            format('Give %s as an array of strings.', name));
    end if;
    return case when value is not null then array(select jsonb_array_elements_text(value)) end;
end $$;

-- A job's id as a client writes it; in a path, what is no id is an id that no job has.
create function ojs_http.job_id(given text, in_path boolean) returns uuid
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if given ~ '^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$' then
        return given;
    elsif in_path then
        perform ojs_http.raise('NOT_FOUND', format('job %s does not exist', left(given, 64)),
            jsonb_build_object('resource_type', 'job',
            'resource_id', left(given, 64)), 'Check the id: it is a UUID.');
    end if;
    perform ojs_http.raise('INVALID_PAYLOAD', 'job_id must be a UUID', '{"field": "job_id"}',
        'Give the id of the job.');
end $$;

-- The job that a call is about: named by the path, or by the field job_id.
create function ojs_http.job_named(request ojs_http.request, body jsonb) returns uuid
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if cardinality(request.names) > 0 then
        if lower(request.body ->> 'job_id' collate "C") <> lower(request.names[1] collate "C") then
            perform ojs_http.raise('INVALID_PAYLOAD', 'job_id is not the one of the path', '{"field": "job_id"}',
                'Leave job_id out of the body.');
        end if;
        return ojs_http.job_id(request.names[1], true);
    end if;
    return ojs_http.job_id(ojs_http.text_field(body, 'job_id', true), false);
end $$;

-- What the HTTP binding asks of a job beyond the SQL functions: args must be an array as it is (R-01).
create function ojs_http.check_args(job jsonb, index int) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if jsonb_typeof(job) = 'object' and coalesce(jsonb_typeof(job -> 'args'), 'array') <> 'array' then
        perform ojs_http.raise('INVALID_ARGS',
            format('%sargs must be an array, not %s', 'jobs[' || index || ']: ', jsonb_typeof(job -> 'args')),
            jsonb_strip_nulls(jsonb_build_object('field', 'args', 'expected', 'array', 'received',
                jsonb_typeof(job -> 'args'), 'index', index)),
            'Give the arguments as a JSON array.');
    end if;
end $$;

-- A number in the query string; beyond the greatest it is clamped.
create function ojs_http.query_number(request ojs_http.request, name text, otherwise int, least_value int,
    greatest_value int) returns int
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    value text := request.query ->> name;
begin
    if value is null then
        return otherwise;
    elsif value !~ '^[0-9]{1,18}$' or value::bigint < least_value then
        perform ojs_http.raise('INVALID_PAYLOAD', format('%s must be a whole number of at least %s', name,
            least_value), jsonb_build_object('field', name),
            format('Give ?%s=%s.', name, otherwise));
    end if;
    return least(value::bigint, greatest_value);
end $$;

-- Refuses what a request says beyond what is read of it.
create function ojs_http.only(given jsonb, variadic names text[]) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    unknown text := (select key from jsonb_object_keys(given) key where key <> all (names) limit 1);
begin
    if unknown is not null then
        perform ojs_http.raise('INVALID_PAYLOAD', format('%s is nothing that this request takes', left(unknown, 64)),
            jsonb_build_object('field', left(unknown, 64)),
            format('It takes %s.', array_to_string(names, ', ')));
    end if;
end $$;

-- Whether the database is not to sleep for this request, since the pipe waits.
create function ojs_http.may_wait(request ojs_http.request) returns boolean
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select request.headers ->> 'ojs-do-not-wait' is distinct from '1'
$$;

-- How many bytes of jobs one answer holds; the next may bring the rest.
create function ojs_http.most_bytes() returns bigint
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select 32::bigint * 1024 * 1024
$$;

-- A list in the query string, or null.
create function ojs_http.query_list(request ojs_http.request, name text) returns text[]
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select string_to_array(nullif(request.query ->> name, ''), ',')
$$;

-- What a purge is asked for. DELETE has no body for many a client and proxy: then its query string says it, and what it
-- says besides is the filter.
create function ojs_http.purge_asked(request ojs_http.request) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if request.body is not null then
        return ojs_http.object(request);
    end if;
    return jsonb_strip_nulls(jsonb_build_object(
        'confirm', request.query ->> 'confirm' = 'true',
        'older_than', request.query -> 'older_than',
        'states', to_jsonb(ojs_http.query_list(request, 'states')),
        'filter', request.query - '{confirm,older_than,states}'::text[]));
end $$;

create function ojs_http.rfc3339(at timestamptz) returns text
language sql stable parallel safe set search_path = pg_catalog, pg_temp as $$
    select to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
$$;
