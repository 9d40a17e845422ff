-- schemas.sql: JSON Schemas of job types: SR-01, SR-02, ENV-17, INT-01.
-- Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();
\ir helpers.psql
set local client_min_messages = error;

-- Registering ---------------------------------------------------------------------------------------------------------

select is(ojs.create_schema('mail.send', '1', '{"type": "array"}') - 'created_at',
    '{"type": "mail.send", "version": 1, "uri": "urn:ojs:schema:mail.send:v1", "schema": {"type": "array"}}',
        'a schema is registered (SR-01)');
select is(pg_temp.refusal($$select ojs.create_schema('mail.send', '1.0', '{}')$$), 'OJ315 SCHEMA_EXISTS version',
    'not twice, however its version is written (SR-01)');
select is(pg_temp.refusal($$select ojs.create_schema('other', '1', '{}', 'urn:ojs:schema:mail.send:v1')$$),
    'OJ315 SCHEMA_EXISTS version', 'nor under the URI of another (SR-01)');
select ojs.create_schema('mail.send', v, '{}')
    from unnest('{2.0.0,2.0.0-rc.2,2.0.0-rc.10,10,2.1}'::text[]) v \g /dev/null
select is(array_agg(version order by ojs_store.version_key(version)), '{1,2.0.0-rc.2,2.0.0-rc.10,2.0.0,2.1,10}',
    'versions have the order of Semantic Versioning (SR-01)') from ojs.schemas;
select is(ojs_store.version_key(version), null, format('"%s" is no version (SR-01)', version))
from unnest('{"1+","1+a..b","1+.a","1+a.","1+a b","1.2.3+b.0, =2","1+é"}'::text[]) version;
select is(ojs_store.version_key('1.2.0+build-7.x'), ojs_store.version_key('1.2'), 'a build is of its version (SR-01)');
select is(version, '10', 'the newest is the latest (SR-01)') from ojs.schemas where is_latest;
select is(ojs.drop_schema('mail.send', '10.0'), true, 'a version is dropped (SR-01)');
select is(ojs.drop_schema('mail.send', '10'), false, 'once (SR-01)');
select is(version, '2.1', 'then the one before is the latest (SR-01)') from ojs.schemas where is_latest;
select is(pg_temp.refusal(format('select ojs.create_schema(%s)', call)), refused, 'refused: ' || call || ' (SR-01)')
    from (values
    ($$null, '1', '{}'$$, 'OJ100 INVALID_PAYLOAD type'), ($$'No Type', '1', '{}'$$, 'OJ100 INVALID_PAYLOAD type'),
    ($$'t', null, '{}'$$, 'OJ100 INVALID_PAYLOAD version'), ($$'t', 'v1', '{}'$$, 'OJ100 INVALID_PAYLOAD version'),
        ($$'t', '1.2.3.4', '{}'$$, 'OJ100 INVALID_PAYLOAD version'),
    ($$'t', '1', null$$, 'OJ100 INVALID_PAYLOAD schema'), ($$'t', '1', '[]'$$, 'OJ100 INVALID_PAYLOAD schema'),
        ($$'t', '1', '{"type": "text"}'$$, 'OJ100 INVALID_PAYLOAD schema'),
    ($$'t', '1', '{"properties": {"a": {"minimum": "1"}}}'$$, 'OJ100 INVALID_PAYLOAD schema'),
        ($$'t', '1', '{"pattern": "("}'$$, 'OJ100 INVALID_PAYLOAD schema'),
    ($$'t', '1', '{"pattern": "(a)\\1"}'$$, 'OJ700 UNSUPPORTED_FEATURE schema'),
        ($$'t', '1', '{"pattern": "(?i)a"}'$$, 'OJ700 UNSUPPORTED_FEATURE schema'),
    ($$'t', '1', '{"$schema": "http://json-schema.org/draft-07/schema#"}'$$, 'OJ100 INVALID_PAYLOAD schema'),
    ($$'t', '1', '{"$ref": "urn:nowhere"}'$$, 'OJ100 INVALID_PAYLOAD schema'),
        ($$'t', '1', '{"$ref": "#/$defs/a"}'$$, 'OJ100 INVALID_PAYLOAD schema'),
    ($$'t', '1', '{"unevaluatedItems": false}'$$, 'OJ700 UNSUPPORTED_FEATURE schema'),
        ($$'t', '1', '{"$dynamicRef": "#a"}'$$, 'OJ700 UNSUPPORTED_FEATURE schema'),
    ($$'t', '1', '{"items": {"$id": "urn:a:b"}}'$$, 'OJ700 UNSUPPORTED_FEATURE schema'),
        ($$'t', '1', '{}', 'no uri'$$, 'OJ100 INVALID_PAYLOAD uri'),
    ($$'t', '1', '{"$id": "urn:a:b"}', 'urn:a:c'$$, 'OJ100 INVALID_PAYLOAD uri'),
    ($$'t', '1', jsonb_build_object('const', repeat('x', 70000))$$, 'OJ109 PAYLOAD_TOO_LARGE schema'),
    ($$'t', '1', (repeat('{"not":', 70) || 'true' || repeat('}', 70))::jsonb$$,
        'OJ100 INVALID_PAYLOAD schema')) c (call, refused);

-- What breaks what was valid needs the next major version.
select ojs.create_schema('bill', '1.0',
    '{"type": "object", "properties": {"a": {"type": "integer", "maximum": 9}, "b": {}}, "required": ["a"]}')
    \g /dev/null
select is(pg_temp.refusal_detail(format('select ojs.create_schema(%L, %L, %L)', 'bill', '1.1',
    schema)) -> 'details' -> 'breaking_changes', to_jsonb(changes), 'a breaking change is refused: ' || changes[1])
from (values ('{"type": "object", "properties": {"a": {"type": "integer", "maximum": 9}, "b": {}}, "required": ["a", '
              '"b"]}'::jsonb, '{required property ''b'' was added}'::text[]),
    ('{"type": "object", "properties": {"a": {"type": "string", "maximum": 5}}, "additionalProperties": false, '
     '"required": ["a"]}',
        '{property ''b'' was removed,additionalProperties became false,a.the type was changed,a.maximum was '
        'narrowed}')) c (schema, changes);
select lives_ok($$select ojs.create_schema('bill', '1.1',
    '{"type": "object", "properties": {"a": {"type": ["integer", "null"], "maximum": 10}, "b": {}, "c": {}}, '
    '"required": ["a"]}')$$, 'what only widens is not');
select lives_ok($$select ojs.create_schema('bill', '2.0', '{"type": "array"}')$$,
    'nor what comes with a major version');

-- Validating ----------------------------------------------------------------------------------------------------------

select ojs.create_schema('pay', '1.0.0',
    '{"type": "object", "required": ["id", "amount"], "additionalProperties": false, "properties": {
    "id": {"type": "string", "maxLength": 3}, "amount": {"type": "integer", "minimum": 0}, "mail": {"format": "email"},
    "code": {"pattern": "^[A-Z]{3}$"}}}');
create function pg_temp.errors(args jsonb, options jsonb default '{}') returns jsonb language sql as
$$ select pg_temp.refusal_detail(format('select ojs.push(%L, %L, options => %L)', 'pay', args,
    options)) -> 'details' -> 'validation_errors' $$;
select is(ojs.push_job('{"type": "pay", "args": {"id": 1}}') -> 'warnings',
    '["Schema validation warning: args: required property ''amount'' is missing",
    "Schema validation warning: args.id must be string, not number"]',
        'by default a job that does not fit is pushed, with warnings (SR-02)');
select is(ojs.push_job('{"type": "pay", "args": {"id": "a", "amount": 1}}') ? 'warnings', false,
    'one that fits has none (SR-02)');
select ojs.set_schema_validation('pay', 'strict') \g /dev/null
select is(validation, 'strict', 'the view says what holds for a type (SR-02)') from ojs.schemas where type = 'pay';
select is(pg_temp.refusal($$select ojs.push('pay', '[]')$$), 'OJ108 SCHEMA_VALIDATION_FAILED args',
    'strict refuses it (SR-02)');
select set_eq($$select
    jsonb_array_elements_text(pg_temp.errors('{"id": "abcd", "amount": -1.5, "mail": "x", "code": "abc", "more": '
    '1}'))$$,
    array['args: property ''more'' is not allowed', 'args.id must have at most 3 characters, not 4',
        'args.code does not match the pattern ^[A-Z]{3}$',
    'args.mail does not match format ''email''', 'args.amount must be at least 0',
        'args.amount must be integer, not number'], 'and says all that is wrong (SR-02)');
select is(pg_temp.errors('[{"id": "abc", "amount": 1}]'), null,
    'a schema of one object takes args of one object (SR-02)');
select is(pg_temp.errors('[{"id": "abc", "amount": 1}, 2]'), '["args must be object, not array"]',
    'and of nothing else (SR-02)');
select is(pg_temp.refusal($$select
    ojs.push_many('[{"type": "other.job", "args": []}, {"type": "pay", "args": []}]')$$),
    'OJ108 SCHEMA_VALIDATION_FAILED args', 'a batch is refused as a whole (SR-02)');
select results_eq($$select status, error -> 'details' -> 'validation_errors'
    from ojs.push_many('[{"type": "pay", "args": []}, {"type": "pay", "args": [{"id": "a", "amount": 1}]}]',
    atomicity => 'partial')$$,
    $$values ('failed', '["args must be object, not array"]'::jsonb), ('created', null)$$, 'or in part (SR-02)');

-- Which schema: that of the job's version or URI, or the latest.
select ojs.create_schema('pay', '2.0.0', '{"type": "array", "maxItems": 1}') \g /dev/null
select is(pg_temp.errors('[1]'), null, 'a job without a version goes by the latest schema (SR-02)');
select is(pg_temp.errors('[1]', '{"version": "1.0"}'), '["args must be object, not array"]',
    'one with a version by that of its version (SR-02)');
select is(pg_temp.errors('[1, 2]', '{"version": 3}'), null, 'a version without a schema is not validated (SR-02)');
select is(pg_temp.errors('[1]', '{"schema": "urn:ojs:schema:pay:v1.0.0"}'), '["args must be object, not array"]',
    'the URI that a job names goes first (ENV-17)');
select is(pg_temp.errors('[1]', '{"schema": "urn:unknown:it"}'), null,
    'one that is not registered counts for nothing (ENV-17)');
select is(pg_temp.refusal($$select ojs.push('pay@1.0.0', '[1]')$$), 'OJ108 SCHEMA_VALIDATION_FAILED args',
    'the version may stand in the type (SR-02)');
select ojs.set_schema_validation('pay', 'off') \g /dev/null
select is(ojs.push_job('{"type": "pay", "args": [1, 2]}') ? 'warnings', false, 'off: nothing is validated (SR-02)');
select ojs.set_schema_validation('pay', null) \g /dev/null
set local ojs.schema_validation = 'strict';
select is(pg_temp.refusal($$select ojs.push('pay', '[1, 2]')$$), 'OJ108 SCHEMA_VALIDATION_FAILED args',
    'the setting is for types without a mode of their own (SR-02)');
select is((select string_agg(distinct validation, ' ') from ojs.schemas where type = 'pay'), 'strict',
    'as ojs.schemas says (SR-02)');
savepoint before;
select ojs.drop_schema('pay', '2.0.0'), ojs.drop_schema('pay', '1.0.0') \g /dev/null
select is(pg_temp.refusal($$select ojs.push('pay', '[1, 2]')$$), 'accepted',
    'a type without schemas is not validated (SR-02)');
rollback to before;
select is(pg_temp.refusal($$select ojs.push('pay', '[1, 2]')$$), 'OJ108 SCHEMA_VALIDATION_FAILED args',
    'a rollback brings them back (SR-02)');

-- Hooks: what the producer gave counts, so that a hook may encrypt it.
create schema made; create function made.hidden(job jsonb) returns jsonb language sql as $$
    select jsonb_set(job, '{args}', '["hidden", "twice"]') $$;
select ojs.register_hook('hide', 'enqueue', 'made.hidden(jsonb)') \g /dev/null
select is(args, '["hidden", "twice"]', 'args are validated as they came, before hooks (INT-01)')
    from ojs.push('pay', '[1]');
select is(pg_temp.refusal($$select ojs.push('pay', '[1, 2]')$$), 'OJ108 SCHEMA_VALIDATION_FAILED args',
    'and refused as they came (INT-01)');
select ojs.unregister_hook('hide') \g /dev/null

-- References ----------------------------------------------------------------------------------------------------------

select ojs.create_schema('shared.address', '1',
    '{"$id": "https://example.com/address", "type": "object", "required": ["street"], "$defs": {"zip": {"$anchor": '
    '"zip", "type": "string", "minLength": 5}}}') \g /dev/null
select ojs.create_schema('ship', '1',
    '{"items": {"$ref": "https://example.com/address"}, "contains": {"properties": {"zip": {"$ref": '
    '"https://example.com/address#zip"}}}}') \g /dev/null
select is(pg_temp.refusal_detail($$select ojs.push('ship',
    '[{"zip": "12345"}]')$$) -> 'details' -> 'validation_errors',
    '["args[0]: required property ''street'' is missing"]', 'a $ref leads to a registered schema');
select is(pg_temp.refusal($$select ojs.push('ship', '[{"street": "a", "zip": "1"}]')$$),
    'OJ108 SCHEMA_VALIDATION_FAILED args', 'and to an anchor in it');
select is(pg_temp.refusal($$select ojs.drop_schema('shared.address', '1')$$), 'OJ100 INVALID_PAYLOAD version',
    'which is not dropped while it is referred to');

-- The keywords, each with a value that fits and one that does not. The bounds of work come last.
select is((ojs_store.schema_errors(schema, valid) = '[]', ojs_store.schema_errors(schema, invalid) = '[]'),
    (true, false), 'JSON Schema: ' || schema::text) from (values
    ('{"type": "integer"}'::jsonb, '1.0'::jsonb, '1.5'::jsonb), ('{"type": ["null", "array"]}', 'null', '{}'),
        ('{"enum": [[1], "a"]}', '[1.0]', '"b"'), ('{"const": {"a": 1, "b": null}}', '{"b": null, "a": 1}', '{"a": 1}'),
    ('{"multipleOf": 0.01}', '4.02', '4.023'), ('{"exclusiveMaximum": 3}', '2.9', '3'),
        ('{"exclusiveMinimum": 3}', '3.1', '3'), ('{"minLength": 2}', '"äö"', '"ä"'),
    ('{"pattern": "^a+$"}', '"aaa"', '"ab"'), ('{"prefixItems": [{"type": "string"}], "items": false}', '["a"]',
        '["a", 1]'), ('{"items": [{"type": "string"}]}', '["a", 1]', '[1]'),
    ('{"contains": {"const": 1}, "minContains": 2, "maxContains": 2}', '[1, 1, 2]', '[1, 1, 1]'),
        ('{"uniqueItems": true}', '[1, "1", [1], true]', '[{"a": 1, "b": 2}, {"b": 2, "a": 1.0}]'),
    ('{"patternProperties": {"^a": {"type": "null"}}, "additionalProperties": {"type": "string"}}',
        '{"a1": null, "b": "x"}', '{"b": 1}'), ('{"propertyNames": {"maxLength": 2}}', '{"ab": 1}', '{"abc": 1}'),
    ('{"dependentRequired": {"a": ["b"]}}', '{"b": 1}', '{"a": 1}'),
        ('{"dependentSchemas": {"a": {"minProperties": 2}}}', '{"a": 1, "b": 2}', '{"a": 1}'),
        ('{"maxProperties": 1}', '{"a": 1}', '{"a": 1, "b": 2}'),
    ('{"allOf": [{"minimum": 1}, {"maximum": 2}]}', '1', '3'),
        ('{"anyOf": [{"minimum": 5}, {"type": "string"}]}', '"a"', '1'),
        ('{"oneOf": [{"minimum": 1}, {"minimum": 3}]}', '2', '4'), ('{"not": {"type": "string"}}', '1', '"a"'),
    ('{"if": {"minimum": 10}, "then": {"multipleOf": 10}, "else": {"multipleOf": 2}}', '20', '3'),
        ('{"$defs": {"tree": {"items": {"$ref": "#/$defs/tree"}, "type": "array"}}, "$ref": "#/$defs/tree"}',
        '[[], [[]]]', '[[], [1]]'),
    ('{"format": "date-time"}', '"2026-02-28T23:59:60Z"', '"2026-02-29T00:00:00Z"'),
        ('{"format": "ipv6"}', '"::1"', '"1::2::3"'), ('{"format": "uuid"}', '"01920000-0000-7000-8000-0000000000fa"',
        '"x"'), ('{"format": "uri"}', '"http://a/b?c#d"', '"a b"')) c (schema, valid, invalid);
select matches(ojs_store.schema_errors(schema, value) ->> 0, '^value cannot be validated',
    'the work of a validation has a bound: ' || what) from (values
    ('a loop', '{"$ref": "#"}'::jsonb, '1'::jsonb),
    ('doubling', (select jsonb_build_object('$ref', '#/$defs/d0', '$defs',
        jsonb_object_agg('d' || n, case when n < 40 then jsonb_build_object('anyOf',
        jsonb_build_array(jsonb_build_object('$ref', '#/$defs/d' || n + 1),
        jsonb_build_object('$ref', '#/$defs/d' || n + 1))) else 'false' end)) from generate_series(0, 40) n), '1'),
    ('a pattern that looks around', '{"pattern": "(?=a*b)c"}', to_jsonb(repeat('a', 100000)))) c (what, schema, value);
select is(jsonb_array_length(ojs_store.schema_errors('{"items": {"type": "string"}}',
    (select jsonb_agg(n) from generate_series(1, 100) n))), 20, 'and what it says has one');

-- Rights --------------------------------------------------------------------------------------------------------------

create role schema_producer in role ojs_producer;
set local role schema_producer;
select is(count(*) > 0, true, 'a producer reads the schemas (SR-01)') from ojs.schemas;
select is(left(pg_temp.refusal(call), 5), '42501', 'and changes none: ' || call || ' (SR-01)') from unnest(array[
    $$select ojs.create_schema('t', '1', '{}')$$, $$select ojs.drop_schema('pay', '1.0.0')$$,
        $$select ojs.set_schema_validation('pay', 'off')$$, $$set ojs.schema_validation = 'off'$$]) call;
reset role;

-- HTTP ----------------------------------------------------------------------------------------------------------------

select is(concat_ws(' ', r.status, r.body::jsonb #> '{schema,version}'), '201 2', 'HTTP registers in a wrapper (SR-01)')
from ojs.http('POST', '/ojs/v1/schemas', '{"content-type": "application/json"}',
    '{"job_type": "web.hit", "version": 2, "schema": {"maxItems": 1}, "validation": {"mode": "strict"}}') r;
select is(concat_ws(' ', r.status, r.body::jsonb #>> '{error,code}',
    r.body::jsonb #> '{error,details,validation_errors}'),
    '422 schema_validation ["args must have at most 1 elements, not 2"]', 'and refuses a job with 422 (SR-02)')
from ojs.http('POST', '/ojs/v1/jobs', '{"content-type": "application/json"}', '{"type": "web.hit", "args": [1, 2]}') r;
select is(r.body::jsonb #>> '{schema,validation,mode}', 'strict', 'shows what it is (SR-01)')
    from ojs.http('GET', '/ojs/v1/schemas/web.hit') r;
select is(r.body::jsonb #>> '{schema,uri}', 'urn:ojs:schema:web.hit:v2', 'also by its URI (SR-01)')
    from ojs.http('GET', '/ojs/v1/schemas/urn%3Aojs%3Aschema%3Aweb.hit%3Av2') r;
select is(r.body::jsonb #> '{versions,0,version}', '2', 'lists versions (SR-01)')
    from ojs.http('GET', '/ojs/v1/schemas/web.hit/versions') r;
select is(r.status, s.status, s.method || ' ' || s.path || ' (SR-01)') from (values
    ('PUT', '/ojs/v1/admin/schemas/web.hit', '{"validation": {"mode": "warn"}}', 200),
        ('PUT', '/ojs/v1/admin/schemas/web.hit/2', '{"schema": {}}', 409),
        ('PUT', '/ojs/v1/admin/schemas/web.hit/3', '{}', 400),
    ('POST', '/ojs/v1/jobs', '{"type": "web.hit", "args": [1, 2]}', 201),
        ('DELETE', '/ojs/v1/schemas/web.hit', null, 404), ('GET', '/ojs/v1/schemas/web.hit/9', null, 404),
    ('DELETE', '/ojs/v1/schemas/web.hit/2', null, 200), ('DELETE', '/ojs/v1/schemas/web.hit/2', null, 404),
        ('GET', '/ojs/v1/schemas', null, 200), ('GET', '/ojs/v1/admin/schemas/web.hit', null, 404)) s (method, path,
        body, status),
    ojs.http(s.method, s.path, '{"content-type": "application/json"}', s.body) r;
-- Each route of schemas has its form under /ojs/v1/admin, without a wrapper (R-104).
select is_empty($$ select method, replace(pattern, '/v1/', '/v1/admin/') from ojs_http.routes()
    where pattern like '/ojs/v1/schemas%' except select method, pattern from ojs_http.routes() $$,
    'each schema route has its form under /ojs/v1/admin (R-104)');
select is(concat_ws(' ', r.status, jsonb_path_query_array(nullif(r.body, '')::jsonb, s.shown::jsonpath)), s.want,
    s.method || ' ' || s.path || ' (R-104)')
from (values ('POST', '', '{"type": "web.hit", "version": "4", "schema": {"maxItems": 4}}', '$.version', '201 [4]'),
    ('POST', '', '{"type": "web.hit", "version": "4", "schema": {"maxItems": 4}}', '$.error.code',
        '409 ["conflict"]'),
    ('POST', '', '{"type": "web.hit", "version": "5", "schema": {"maxItems": 5}}', '$.schema.maxItems', '201 [5]'),
    ('GET', '/web.hit/versions', null, '$.versions[*].version', '200 [5, 4]'),
    ('GET', '/none/versions', null, '$.error.code', '404 ["not_found"]'),
    ('GET', '', null, '$.schemas[*] ? (@.type == "web.hit").version', '200 [5, 4]'),
    ('DELETE', '/urn%3Aojs%3Aschema%3Aweb.hit%3Av4', null, '$.version', '200 [4]'),
    ('DELETE', '/web.hit', null, '$.error.code', '404 ["not_found"]'),
    ('DELETE', '/web.hit/5', null, '$.deleted', '200 [true]')) s (method, path, body, shown, want),
    ojs.http(s.method, '/ojs/v1/admin/schemas' || s.path, '{"content-type": "application/json"}', s.body) r;
select ojs.create_schema('web.hit', '2', '{"maxItems": 1}'), ojs.set_schema_validation('web.hit', 'warn') \g /dev/null
select is(r.body::jsonb -> 'warnings', '["Schema validation warning: args must have at most 1 elements, not 2"]',
    'HTTP answers warnings beside the job (SR-02)')
from ojs.http('POST', '/ojs/v1/jobs', '{"content-type": "application/json"}', '{"type": "web.hit", "args": [1, 2]}') r;
select is(r.body::jsonb -> 'warnings',
    '["Schema validation warning: jobs[1]: args must have at most 1 elements, not 2"]', 'and beside a batch (SR-02)')
from ojs.http('POST', '/ojs/v1/jobs/batch', '{"content-type": "application/json"}',
    '{"jobs": [{"type": "web.hit", "args": []}, {"type": "web.hit", "args": [1, 2]}]}') r;
select is(r.body::jsonb ? 'warnings', false, 'but not those of another request (SR-02)')
from ojs.http('POST', '/ojs/v1/jobs', '{"content-type": "application/json"}', '{"type": "web.hit", "args": [1]}') r;

-- No way around, and no way to take all ------------------------------------------------------------------------------

select ojs.create_schema('strict.one', '1', '{"items": {"type": "integer"}}') \g /dev/null
select ojs.set_schema_validation('strict.one', 'strict') \g /dev/null
select ojs.create_schema('lax.one', '1', 'true') \g /dev/null
select is(pg_temp.refusal(format('select ojs.push_job(%L)', '{"type": "strict.one", "args": ["x"]}'::jsonb || more)),
    refused, 'strict: not pushed with ' || more::text || ' (SR-02)')
from (values ('{}'::jsonb, 'OJ108 SCHEMA_VALIDATION_FAILED args'),
    ('{"schema": "urn:ojs:schema:lax.one:v1"}', 'OJ108 SCHEMA_VALIDATION_FAILED args'),
    ('{"schema": "urn:nowhere"}', 'OJ108 SCHEMA_VALIDATION_FAILED args'),
    ('{"version": 9}', 'OJ108 SCHEMA_VALIDATION_FAILED version'),
    ('{"version": "no version"}', 'OJ108 SCHEMA_VALIDATION_FAILED version')) m (more, refused);
select is(ojs.push_job('{"type": "none.one", "args": ["x"], "schema": "urn:ojs:schema:lax.one:v1"}') ->> 'state',
    'available', 'a type without a schema may name one (ENV-17)');

-- What a $ref leads to is checked as a schema is.
select is(pg_temp.refusal(format('select ojs.create_schema(%L, %L, %L)', 't', '1', schema)),
    'OJ100 INVALID_PAYLOAD schema', 'no $ref to what is no schema: ' || schema || ' (SR-01)')
from (values ('{"default": {"multipleOf": 0}, "items": {"$ref": "#/default"}}'),
    ('{"examples": [{"pattern": "(("}], "items": {"$ref": "#/examples/0"}}'),
    ('{"const": {"pattern": "(a+)\\1"}, "items": {"$ref": "#/const"}}')) c (schema);

-- (schema, args) that would take a gigabyte or minutes end soon; long texts and groups that do not capture are no such.
select is(ojs_store.schema_errors(schema, args) ->> 0, said, 'a validation has a bound: ' || what || ' (SR-02)')
from (values ('numbers', jsonb_build_object('items', jsonb_build_object('anyOf',
        (select jsonb_agg(jsonb_build_object('maximum', -repeat('9', 390)::numeric)) from generate_series(1, 60)))),
        (select jsonb_agg(1) from generate_series(1, 10000)),
        'value cannot be validated: that takes more than 1000000 steps, 256 levels, or 64 MB'),
    ('keywords', jsonb_build_object('items', (select jsonb_object_agg('k' || n, 1) from generate_series(1, 5000) n)),
        (select jsonb_agg(n) from generate_series(1, 10000) n),
        'value cannot be validated: that takes more than 1000000 steps, 256 levels, or 64 MB'),
    ('patterns', jsonb_build_object('items', jsonb_build_object('anyOf',
        (select jsonb_agg(jsonb_build_object('pattern', format('x{1,%s}y', n))) from generate_series(1, 60) n))),
        (select jsonb_agg('aaaa'::text) from generate_series(1, 10000)),
        'value cannot be validated: that takes more than 1000000 steps, 256 levels, or 64 MB'),
    ('groups', '{"pattern": "^(?:[a-z]+)$"}', to_jsonb(repeat('a', 20000)), null)) c (what, schema, args, said);

select * from finish();
rollback;
