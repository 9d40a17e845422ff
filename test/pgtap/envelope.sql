-- envelope.sql: what a job may be when it is pushed, and what comes back: ENV, PAY and the rulings R-01 to R-16, R-57.
-- Runs once: nothing here asks whether ojs was preloaded.
begin;
create extension if not exists pgtap;
create extension if not exists ojs;
select plan(349);
\ir refusal.psql

-- The same for an envelope.
create function pg_temp.refused(job jsonb, expected text, name text) returns text language sql as
$$ select is(pg_temp.strict_refusal(format('select ojs.push_job(%L::jsonb)', job)), expected, name) $$;

-- A plain envelope with more attributes.
create function pg_temp.job(more jsonb default '{}') returns jsonb language sql as
$$ select '{"type": "email.send", "args": ["user@example.com", "welcome"]}'::jsonb || more $$;
create function pg_temp.options(options jsonb) returns jsonb language sql as
$$ select pg_temp.job(jsonb_build_object('options', options)) $$;
create function pg_temp.pushed(more jsonb) returns jsonb language sql as $$ select ojs.push_job(pg_temp.job(more)) $$;

-- A reply without what differs from job to job.
create function pg_temp.plain(job jsonb) returns jsonb language sql as
$$ select job - array['id', 'seq', 'created_at', 'enqueued_at'] $$;

-- ENV-01 -----------------------------------------------------------------------------------------------------------

create temp table minimal as select ojs.push_job(pg_temp.job()) as job;
select is(pg_temp.plain(job),
    '{"specversion": "1.0", "type": "email.send", "queue": "default", "state": "available", "priority": 0,
      "args": ["user@example.com", "welcome"], "meta": {}, "attempt": 0, "max_attempts": 3, "deliveries": 0,
      "retry": {"max_attempts": 3, "initial_interval": "PT1S", "backoff_coefficient": 2.0, "max_interval": "PT5M",
                "jitter": true, "non_retryable_errors": [], "on_exhaustion": "discard"},
      "deduplicated": false}'::jsonb,
    'ENV-01 OP-02: type and args are enough; the reply shows the defaults and leaves out what is absent')
from minimal;
select matches(job ->> 'id', '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$',
    'ENV-01: the id is a UUIDv7')
from minimal;
select is(job -> 'created_at', job -> 'enqueued_at', 'ENV-01 R-27: a plain job enters its queue when it is created')
    from minimal;
select is(pg_temp.plain(ojs.envelope(p)), pg_temp.plain(job),
    'ENV-01: ojs.push gives the same')
from minimal, ojs.push('email.send', '["user@example.com", "welcome"]') p;
select is(ojs.info((job ->> 'id')::uuid), job - 'deduplicated', 'ENV-01 OP-21: ojs.info gives the same') from minimal;
select is((p).args, '[]', 'R-02: the named form has [] for args') from ojs.push('email.send') p;

-- ENV-02 to ENV-04: ids --------------------------------------------------------------------------------------------

create temp table numbered as
select i, (ojs.push('email.send')).id from generate_series(1, 500) i;
select is((select count(distinct id) from numbered), 500::bigint, 'ENV-02: ids are unique');
select is((select count(*) from (select id < lag(id) over (order by i) as falls from numbered) n where falls),
    0::bigint,
    'ENV-02: ids do not fall within a session');
select is((select count(*) from numbered where substr(id::text, 15, 1) <> '7'), 0::bigint,
    'ENV-02: ids are of version 7');

select is(pg_temp.pushed('{"id": "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"}') ->> 'id',
    '019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f',
    'ENV-03: a client''s id is kept');
select pg_temp.refused(pg_temp.job(jsonb_build_object('id', id)), 'OJ100 INVALID_PAYLOAD id', 'ENV-03: refused as id: '
    || why)
from (values
    ('"550e8400-e29b-41d4-a716-446655440000"'::jsonb, 'version 4'), ('"not-a-uuid-at-all"', 'no uuid'), ('""', 'empty'),
    ('"019461A8-1A2B-7C3D-8E4F-5A6B7C8D9E0F"', 'upper case'), ('"019461a81a2b7c3d8e4f5a6b7c8d9e0f"', 'no hyphens'),
    ('"019461a8-1a2b-7c3d-ce4f-5a6b7c8d9e0f"', 'another variant'), ('"{019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f}"',
        'braces'),
    ('"019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f "', 'a blank'), ('42', 'a number')) bad (id, why);
select is(pg_temp.strict_refusal('select ojs.push(''a.b'', id => ''550e8400-e29b-41d4-a716-446655440000'')'),
    'OJ100 INVALID_PAYLOAD id', 'ENV-03: version 4 as a parameter');

select is(pg_temp.strict_refusal($$select ojs.push('other.type', '["other"]',
    id => '019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f')$$),
    'OJ301 DUPLICATE_JOB id', 'ENV-04 R-71: an id is pushed once');
select pg_temp.refused(pg_temp.job('{"id": "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"}'), 'OJ301 DUPLICATE_JOB id',
    'ENV-04 R-71: also with the same content');
select is(ojs.info('019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f') ->> 'type', 'email.send',
    'ENV-04: the first job stays as it was');
select is((ojs.cancel('019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f')).state, 'cancelled', 'ENV-04: (it ends)');
select pg_temp.refused(pg_temp.job('{"id": "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"}'), 'OJ301 DUPLICATE_JOB id',
    'ENV-04: also after it has ended');

-- ENV-05, ENV-06: names --------------------------------------------------------------------------------------------

select is(pg_temp.pushed(jsonb_build_object('type', type)) ->> 'type', type, 'ENV-05 R-04: a type may be ' || type)
from unnest(array['a', 'email.send', 'dlq.test.list-first', 'a_b.c1-2.d', 'a-']) type;
select is(octet_length(pg_temp.pushed(jsonb_build_object('type', repeat('a', 255))) ->> 'type'), 255,
    'ENV-05: a type of 255 bytes');
select pg_temp.refused(pg_temp.job(jsonb_build_object('type', type)), 'OJ101 INVALID_JOB_TYPE type',
    'ENV-05: no type: ' || type::text)
from unnest(array['""', '"Email.Send"', '"email send"', '"1email.send"', '"email@send!"', '"a..b"', '".a"', '"a."',
    '"a.1b"', '"a._b"',
    '"-a"', '"émail.send"', '"a.b\n"', '"a@"', '"a@1."', '"a@.1"', '"a@1..2"', '"@1.0"', '42', '["a"]', '{}',
        'true']::jsonb[]) type;
select pg_temp.refused(pg_temp.job(jsonb_build_object('type', repeat('a', 256))), 'OJ115 JOB_TYPE_TOO_LONG type',
    'ENV-05: 256 bytes');
select pg_temp.refused('{"args": []}', 'OJ100 INVALID_PAYLOAD type', 'ENV-05 R-70: no type');
select is(pg_temp.strict_refusal('select ojs.push(null)'), 'OJ100 INVALID_PAYLOAD type',
    'ENV-05: null as the parameter');
select is(pg_temp.strict_refusal('select ojs.push(''Email.Send'')'), 'OJ101 INVALID_JOB_TYPE type',
    'ENV-05: as a parameter');

select is(pg_temp.pushed(jsonb_build_object('queue', queue)) ->> 'queue', queue, 'ENV-06 R-05: a queue may be '
    || queue)
from unnest(array['a', '0', 'email', 'email-high.eu', '1.2', 'a-', 'a..b']) queue;
select is(length(pg_temp.pushed(jsonb_build_object('queue', repeat('q', 128))) ->> 'queue'), 128,
    'ENV-06: a queue of 128 characters');
select pg_temp.refused(pg_temp.job(jsonb_build_object('queue', queue)), 'OJ102 INVALID_QUEUE queue',
    'ENV-06: no queue: ' || queue::text)
from unnest(array['""', '"Default"', '"my_queue!"', '"my_queue"', '"-invalid"', '".invalid"', '"my queue"', '"é"',
    '"a\n"', '5', '{}']::jsonb[]) queue;
select pg_temp.refused(pg_temp.job(jsonb_build_object('queue', repeat('q', 129))), 'OJ114 QUEUE_NAME_TOO_LONG queue',
    'ENV-06: 129 characters');
select is(pg_temp.strict_refusal('select ojs.push(''a.b'', queue => ''Default'')'), 'OJ102 INVALID_QUEUE queue',
    'ENV-06: as a parameter');

-- ENV-07 to ENV-09: args and meta ----------------------------------------------------------------------------------

create temp table sample as
    select '["text", 42, 3.14, -0.5, 1e20, 12345678901234567890.123456789, true, false, null, [], {},
    [1, "two", [3, [4, 5]]], {"nested": {"deeply": {"key": "value", "mixed": [null, true, "text",
        99.9]}}}]'::jsonb as args;
create temp table kept as select ojs.push_job(jsonb_build_object('type', 'a.b', 'queue', 'kept', 'args', args,
    'meta', '{"trace_id": "4bf9", "n": 1.50, "tags": ["x"], "deep": {"a": [null, {}]}, "": "empty",
              "ojs.codec.v": 1}'::jsonb)) as job
from sample;
select is((job -> 'args')::text, args::text, 'ENV-07 R-13: args come back as they were, with order, types and digits')
    from kept, sample;
select is((ojs.info((job ->> 'id')::uuid) -> 'args')::text, args::text, 'ENV-08: from info') from kept, sample;
select is(c.args::text, sample.args::text, 'ENV-08: from claim') from sample, ojs.claim('kept', 'w') c;
select is(f.args::text, sample.args::text, 'ENV-08: from fail')
from sample, kept, ojs.fail((job ->> 'id')::uuid, '{"type": "X", "message": "x"}') f;
select is((c.meta)::text, (job -> 'meta')::text, 'ENV-09: meta is never modified, after fail and cancel')
from kept, ojs.cancel((job ->> 'id')::uuid) c;
select is(ojs.push_job('{"type": "a.b", "args": []}') -> 'args', '[]', 'ENV-07: [] is allowed');
select is(ojs.push_job('{"type": "a.b", "args": {"user_id": 42}}') -> 'args', '[{"user_id": 42}]',
    'R-01: a bare object is wrapped');
select is((p).args, '[{"user_id": 42}]', 'R-01: as a parameter too') from ojs.push('a.b', '{"user_id": 42}') p;
select pg_temp.refused(jsonb_build_object('type', 'a.b', 'args', args), 'OJ103 INVALID_ARGS args',
    'ENV-07 R-01: no args: ' || args::text)
from unnest(array['"user@example.com"', '42', 'true']::jsonb[]) args;
select pg_temp.refused('{"type": "a.b", "args": null}', 'OJ100 INVALID_PAYLOAD args', 'ENV-07 R-01: null is none');
select pg_temp.refused('{"type": "a.b"}', 'OJ100 INVALID_PAYLOAD args', 'ENV-07 R-02: an envelope must have args');
select is(pg_temp.strict_refusal('select ojs.push(''a.b'', ''"x"'')'), 'OJ103 INVALID_ARGS args',
    'ENV-07: as a parameter');
select pg_temp.refused(pg_temp.job(jsonb_build_object('meta', meta)), 'OJ104 INVALID_METADATA meta',
    'ENV-09: no meta: ' || meta::text)
from unnest(array['[]', '"x"', '5', 'true']::jsonb[]) meta;
select is(pg_temp.pushed('{"meta": {}}') -> 'meta', '{}', 'ENV-09: {} is none');
select is(pg_temp.strict_refusal('select ojs.push_job(' || quote_literal(json) || ')'), 'OJ100 INVALID_PAYLOAD job',
    'ENV-07: no envelope: ' || json)
from unnest(array['[]', '5', '"x"', 'null']) json;

-- ENV-10, PAY-01: sizes --------------------------------------------------------------------------------------------

-- Documents of so many bytes, as a client writes them: an envelope and a meta.
create function pg_temp.sized(document text, bytes int) returns text language sql as
$$ select replace(document, '""', '"' || repeat('x', bytes - octet_length(document)) || '"') $$;
create function pg_temp.sized_job(bytes int) returns jsonb language sql as
$$ select pg_temp.sized('{"type":"a.b","args":[""]}', bytes)::jsonb $$;
create function pg_temp.sized_meta(bytes int) returns jsonb language sql as
$$ select pg_temp.sized('{"k":""}', bytes)::jsonb $$;
create function pg_temp.push_quietly(job jsonb) returns text language sql as $$ select ojs.push_job(job) ->> 'state' $$;

select is(octet_length(pg_temp.sized('{"type":"a.b","args":[""]}', 1048576)), 1048576,
    'PAY-01: (the sample has 1 MiB)');
select is(pg_temp.push_quietly(pg_temp.sized('{ "type" : "a.b" , "args" : [ 1, 2,3, "" ] }', 1048576 + 12)::jsonb),
    'available', 'R-93: blanks between tokens do not count');
select is(pg_temp.push_quietly(('{"type":"a.b","args":[' || string_agg('"' || repeat('x', 110) || '"', ',') ||
    ']}')::jsonb),
    'available', 'R-93: of many values, too') from generate_series(1, 9200);
select is(pg_temp.push_quietly(('{"type":"a.b","args":[],"meta":{'
    || string_agg('"k' || to_char(n, 'FM0000') || '":1', ',') || '}}')::jsonb), 'available',
    'R-93: nor in meta') from generate_series(1, 6500) n;
select is(pg_temp.push_quietly(pg_temp.sized_job(1048576)), 'available', 'PAY-01: exactly 1 MiB is accepted');
select pg_temp.refused(pg_temp.sized_job(1048577), 'OJ109 PAYLOAD_TOO_LARGE envelope',
    'ENV-10 PAY-01: one byte more is not');
select throws_like($$select ojs.push_job(pg_temp.sized_job(1048577))$$, '%1048577%1048576%',
    'ENV-10: the message has both sizes');
select pg_temp.refused(jsonb_build_object('type', 'a.b', 'args', jsonb_build_array(repeat(e'\n', 600000))),
    'OJ109 PAYLOAD_TOO_LARGE envelope', 'ENV-10: escapes count');
select pg_temp.refused(jsonb_build_object('type', 'a.b', 'args', jsonb_build_array(repeat('é', 600000))),
    'OJ109 PAYLOAD_TOO_LARGE envelope', 'ENV-10: bytes count, not characters');
select pg_temp.refused(jsonb_build_object('type', 'a.b', 'args', array(select 1e399 from generate_series(1, 3000))),
    'OJ109 PAYLOAD_TOO_LARGE envelope', 'ENV-10: a number counts with all its digits');
select is(pg_temp.strict_refusal('select ojs.push(''a.b'', jsonb_build_array(repeat(''x'', 1048576)))'),
    'OJ109 PAYLOAD_TOO_LARGE envelope',
    'ENV-10: as a parameter');
select is((select status from ojs.http('POST', '/ojs/v1/jobs', '{"content-type": "application/json"}',
    pg_temp.sized(document, bytes))), answer, format('R-93 PAY-01: over HTTP the body counts as sent: %s', bytes))
from (values ('{"type":"a.b","args":[""]}', 1048576, 201), ('{"type": "a.b", "args": [""]}', 1048577, 413)) b
    (document, bytes, answer);
set local ojs.max_envelope_size = '10MB';
select is(pg_temp.push_quietly(pg_temp.sized_job(1048577)), 'available', 'PAY-01: the limit can be raised');
select pg_temp.refused(pg_temp.sized_job(10485761), 'OJ109 PAYLOAD_TOO_LARGE envelope', 'PAY-01: to 10 MiB');
reset ojs.max_envelope_size;
select is(pg_temp.push_quietly(pg_temp.job(jsonb_build_object('meta', pg_temp.sized_meta(65536)))), 'available',
    'ENV-10 R-14: 64 KiB of meta');
select pg_temp.refused(pg_temp.job(jsonb_build_object('meta', pg_temp.sized_meta(65537))),
    'OJ110 METADATA_TOO_LARGE meta', 'ENV-10: one byte more');

-- ENV-11: priority -------------------------------------------------------------------------------------------------

select is(pg_temp.pushed(jsonb_build_object('priority', given)) -> 'priority', expected, 'ENV-11 R-07: priority '
    || given::text)
from (values ('-100'::jsonb, '-100'::jsonb), ('100', '100'), ('0', '0'), ('3.0', '3'), ('"HIGH"', '10'), ('"normal"',
    '0'), ('"Low"', '-10')) p (given, expected);
select pg_temp.refused(pg_temp.job(jsonb_build_object('priority', given)), 'OJ100 INVALID_PAYLOAD priority',
    'ENV-11: no priority: ' || given::text)
from unnest(array['101', '-101', '1.5', '"x"', '"5"', '""', 'true', '[1]', '1e30']::jsonb[]) given;
select is(pg_temp.strict_refusal('select ojs.push(''a.b'', priority => 101)'), 'OJ100 INVALID_PAYLOAD priority',
    'ENV-11: as a parameter');

-- ENV-12: timeout --------------------------------------------------------------------------------------------------

select is(array[job -> 'timeout', job -> 'timeout_ms'], array[seconds, ms], 'ENV-12 R-09: ' || given::text)
from (values
    ('{"timeout": 60}'::jsonb, '60'::jsonb, '60000'::jsonb), ('{"timeout_ms": 1500}', '1.5', '1500'), ('{"timeout": 0}',
        '0', '0'),
    ('{"timeout": 60, "timeout_ms": 60000}', '60', '60000'), ('{"options": {"timeout_ms": 60000}}', '60', '60000'),
    ('{"timeout": "PT1M"}', '60', '60000')) t (given, seconds, ms), pg_temp.pushed(given) job;
select is((p).timeout, '90 seconds'::interval, 'ENV-12: as a parameter') from ojs.push('a.b',
    timeout => '1 min 30 s') p;
select pg_temp.refused(pg_temp.job(given), 'OJ100 INVALID_PAYLOAD timeout', 'ENV-12: no timeout: ' || given::text)
from unnest(array['{"timeout": -1}', '{"timeout_ms": -1}', '{"timeout_ms": 1.5}', '{"timeout": "30s"}',
    '{"timeout": "x"}', '{"timeout_ms": "PT1S"}',
    '{"timeout": true}', '{"timeout": 1e30}', '{"timeout": 60, "timeout_ms": 60001}',
        '{"timeout": 60, "options": {"timeout": 61}}']::jsonb[]) given;
select is(pg_temp.strict_refusal('select ojs.push(''a.b'', timeout => ''-1 second'')'), 'OJ100 INVALID_PAYLOAD timeout',
    'ENV-12: negative as a parameter');

-- ENV-13 to ENV-15: timestamps -------------------------------------------------------------------------------------

select is(pg_temp.pushed(jsonb_build_object('expires_at', given)) ->> 'expires_at', expected, 'ENV-13 ENV-14: '
    || given)
from (values
    ('2099-12-31T23:59:59Z', '2099-12-31T23:59:59Z'), ('2099-12-31T23:59:59+02:00', '2099-12-31T21:59:59Z'),
    ('2099-12-31t23:59:59.5z', '2099-12-31T23:59:59.500Z'), ('2099-12-31T23:59:59.000001-00:30',
        '2100-01-01T00:29:59.000001Z'),
    ('2096-02-29T00:00:00Z', '2096-02-29T00:00:00Z')) t (given, expected);
select is(ojs.push_job(pg_temp.options('{"delay_until": "2099-12-31T23:59:59Z"}')) ->> 'scheduled_at',
    '2099-12-31T23:59:59Z',
    'ENV-13 R-10: delay_until is scheduled_at');
select is(date_trunc('second', (job ->> 'scheduled_at')::timestamptz - (job ->> 'created_at')::timestamptz),
    '5 s'::interval, 'ENV-13 R-08: +PT5S is from now')
from pg_temp.pushed('{"scheduled_at": "+PT5S"}') job;
select is((job ->> 'expires_at')::timestamptz - (job ->> 'created_at')::timestamptz, '2 days'::interval,
    'ENV-13 R-08: for expires_at too')
from pg_temp.pushed('{"options": {"expires_at": "+P2D"}}') job;
select pg_temp.refused(pg_temp.job(jsonb_build_object(field, given)), 'OJ100 INVALID_PAYLOAD ' || shown, 'ENV-13: no '
    || field || ': ' || given::text)
from (values ('scheduled_at', 'scheduled_at'), ('expires_at', 'expires_at'), ('delay_until', 'scheduled_at')) f (field,
    shown),
    unnest(array['"2030-01-01T00:00:00"', '"2030-01-01 00:00:00Z"', '"2030-01-01"', '"2030-02-30T00:00:00Z"',
        '"2030-13-01T00:00:00Z"', '"tomorrow"',
        '"+5s"', '"2030-01-01T00:00:00+0100"', '"PT5S"', '"-PT5S"', '"infinity"', '""', '1700000000']::jsonb[]) given;
select is(pg_temp.strict_refusal('select ojs.push(''a.b'', scheduled_at => ''infinity'')'),
    'OJ100 INVALID_PAYLOAD scheduled_at', 'ENV-13: infinity as a parameter');
select matches(pg_temp.pushed('{}') ->> field, '^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3,6}Z$', 'ENV-14: ' || field
    || ' is UTC with milliseconds')
from unnest(array['created_at', 'enqueued_at']) field;
set local timezone = 'Asia/Kolkata';
select is(pg_temp.pushed('{"expires_at": "2099-12-31T23:59:59Z"}') ->> 'expires_at', '2099-12-31T23:59:59Z',
    'ENV-14: whatever the session''s time zone');
reset timezone;
select is(pg_temp.pushed('{"scheduled_at": "2099-01-02T00:00:00Z", "expires_at": "2099-01-01T00:00:00Z"}') ->> 'state',
    'scheduled',
    'ENV-15: expires_at before scheduled_at');

-- ENV-16 to ENV-20 -------------------------------------------------------------------------------------------------

select pg_temp.refused(pg_temp.job('{"retry": {"max_attempts": -1}}'), 'OJ106 INVALID_RETRY_POLICY retry.max_attempts',
    'ENV-16: retry');
select pg_temp.refused(pg_temp.job('{"retry": 5}'), 'OJ106 INVALID_RETRY_POLICY retry',
    'ENV-16: retry must be an object');
select pg_temp.refused(pg_temp.job('{"unique": true}'), 'OJ702 UNIQUE_KEY_INVALID unique',
    'ENV-16: unique must be an object');

select is(pg_temp.pushed(jsonb_build_object('schema', uri)) ->> 'schema', uri,
    'ENV-17: a schema nobody knows is kept: ' || uri)
from unnest(array['urn:ojs:schema:email.send:v1', 'https://example.com/schemas/a?b=c#d', 'x:y']) uri;
select pg_temp.refused(pg_temp.job(jsonb_build_object('schema', uri)), 'OJ100 INVALID_PAYLOAD schema',
    'ENV-17: no URI: ' || uri::text)
from unnest(array['"not a uri"', '"email.send"', '":x"', '"x:"', '"1x:y"', '"a:b c"', '""', '5']::jsonb[]) uri;

select is(pg_temp.pushed(given) -> 'visibility_timeout_ms', expected, 'ENV-18 R-33: ' || given::text)
from (values ('{"visibility_timeout": 30}'::jsonb, '30000'::jsonb), ('{"visibility_timeout_ms": 3000}', '3000'),
    ('{"options": {"visibility_timeout_ms": 3000}}', '3000'),
    ('{"visibility_timeout": "PT2M"}', '120000'), ('{"visibility_timeout_ms": 5}', '100'),
        ('{"visibility_timeout_ms": 1e12}', '86400000'),
    ('{"visibility_timeout_ms": 1e300}', '86400000'), ('{"visibility_timeout": 30, "visibility_timeout_ms": 30000}',
        '30000')) v (given, expected);
select is(pg_temp.pushed('{"queue": "own-lease", "visibility_timeout_ms": 7000}') ->> 'state', 'available',
    'ENV-18: (a job of its own lease length)');
select is(lease_expires_at - started_at, '7 seconds'::interval, 'ENV-18: the claim uses it') from ojs.claim('own-lease',
    'w');
select pg_temp.refused(pg_temp.job(given), 'OJ100 INVALID_PAYLOAD visibility_timeout', 'ENV-18: no length: '
    || given::text)
from unnest(array['{"visibility_timeout_ms": "5"}', '{"visibility_timeout": true}', '{"visibility_timeout": "5s"}',
    '{"visibility_timeout_ms": 1.5}']::jsonb[]) given;
select pg_temp.refused(pg_temp.job('{"visibility_timeout": 30, "visibility_timeout_ms": 40000}'),
    'OJ100 INVALID_PAYLOAD visibility_timeout_ms',
    'ENV-18: two lengths');

select is(pg_temp.pushed(given) -> 'tags', '["a", "b", "a"]', 'ENV-19: ' || given::text)
from unnest(array['{"tags": ["a", "b", "a"]}', '{"options": {"tags": ["a", "b", "a"]}}',
    '{"tags": ["a", "b", "a"], "options": {"tags": ["a", "b", "a"]}}']::jsonb[]) given;
select is((p).tags, array['a', 'b'], 'ENV-19: as a parameter') from ojs.push('a.b', tags => array['a', 'b']) p;
select pg_temp.refused(pg_temp.job(given), 'OJ100 INVALID_PAYLOAD tags', 'ENV-19: no tags: ' || given::text)
from unnest(array['{"tags": "a"}', '{"tags": [1]}', '{"tags": [null]}',
    '{"tags": ["a"], "options": {"tags": ["b"]}}']::jsonb[]) given;
select is(pg_temp.strict_refusal('select ojs.push(''a.b'', tags => array[null])'), 'OJ100 INVALID_PAYLOAD tags',
    'ENV-19: null as a parameter');

select is(pg_temp.pushed(given) ->> 'state', 'pending', 'ENV-20 SM-03: ' || given::text)
from unnest(array['{"pending": true}', '{"options": {"pending": true}}',
    '{"pending": true, "scheduled_at": "2099-01-01T00:00:00Z"}']::jsonb[]) given;
select is(pg_temp.pushed('{"pending": true}') ? 'enqueued_at', false,
    'ENV-20 R-27: a pending job has not been enqueued');
select is(pg_temp.pushed('{"pending": false}') ->> 'state', 'available', 'ENV-20: false is none');
select pg_temp.refused(pg_temp.job('{"pending": "yes"}'), 'OJ100 INVALID_PAYLOAD pending', 'ENV-20: must be a boolean');

-- ENV-21 to ENV-25: attributes that are the system's, unknown, null or absent --------------------------------------

create temp table forged as
    select pg_temp.pushed('{"state": "completed", "attempt": 7, "deliveries": 9, "created_at": "1999-01-01T00:00:00Z",
    "enqueued_at": 5, "started_at": "x", "completed_at": "x", "cancelled_at": "x", "discarded_at": "x",
        "next_attempt_at": "x", "error": 1, "errors": 2,
    "result": 3, "seq": 4, "lease_id": "x", "lease_expires_at": "x", "worker": "w", "deduplicated": true,
        "retry_delay_ms": 5}') as job;
select is(pg_temp.plain(forged.job), pg_temp.plain(minimal.job),
    'ENV-21 R-12: system attributes are ignored') from forged, minimal;
select ok((forged.job ->> 'created_at')::timestamptz > '2000-01-01', 'ENV-21: and keep their own values') from forged;
select is(ojs.push_job(pg_temp.options('{"state": "completed", "result": 1}')) ->> 'state', 'available',
    'ENV-21: under options too');

create temp table extended as
    select '{"x_text": "a", "x_number": 1.50, "x_object": {"a": [1, null, {"b": null}]}, "x_list": [], "x_true": true,
    "ext_agent_id": "a1", "ext_ml_gpu": {"count": 2}, "extra": {"x": 1}, "lease": 5, "parent": "job"}'::jsonb as more;
create temp table extended_job as
select ojs.push_job(pg_temp.job(more || '{"queue": "extended", "options": {"x_option": [1], "x_text": "a"}}')) as job,
    more || '{"x_option": [1]}' as more from extended;
select is((job @> more)::text || (job ? 'options')::text, 'truefalse',
    'ENV-22 R-11: unknown attributes come back at the top level') from extended_job;
select is((select jsonb_object_agg(k, ojs.info((job ->> 'id')::uuid) -> k) from jsonb_object_keys(more) k)::text,
    more::text, 'ENV-22: from info, digit by digit')
from extended_job;
select is(c.extra::text, more::text, 'ENV-22: from claim, in extra') from extended_job, ojs.claim('extended', 'w') c;
select pg_temp.refused(pg_temp.job('{"x_text": "a", "options": {"x_text": "b"}}'), 'OJ100 INVALID_PAYLOAD x_text',
    'R-10: an unknown one cannot come twice');
select pg_temp.refused(pg_temp.options('{"options": {}}'), 'OJ100 INVALID_PAYLOAD options',
    'R-10: options within options');
select pg_temp.refused(pg_temp.job('{"options": [1]}'), 'OJ100 INVALID_PAYLOAD options',
    'R-10: options must be an object');

select is(pg_temp.plain(ojs.push_job(pg_temp.job(jsonb_object_agg(k, null)))), (select pg_temp.plain(job) from minimal),
    'ENV-23: null is as if absent')
from unnest(array['id', 'queue', 'meta', 'priority', 'timeout', 'timeout_ms', 'scheduled_at', 'delay_until',
    'expires_at',
    'retry', 'unique', 'schema', 'specversion', 'tags', 'pending', 'options', 'visibility_timeout',
        'visibility_timeout_ms',
    'grace_period', 'heartbeat_timeout', 'enqueue_ttl', 'total_timeout', 'delivery', 'rate_limit', 'version', 'tag',
    'deduplication_key', 'deduplication_ttl', 'dedup_fallback', 'state']) k;
select is(jsonb_strip_nulls(job), job, 'ENV-24: no nulls in the reply') from minimal;
select is(ojs.envelope(p), jsonb_strip_nulls(ojs.envelope(p)), 'ENV-24: nor in that of a scheduled job')
    from ojs.push('a.b', delay => '1 hour') p;
select is(ojs.envelope(jsonb_populate_record(p,
    '{"extra": {"state": "completed", "result": 1, "timeout": 5, "timeout_ms": 5, "lease_id": "x", "x": 1}}')),
    ojs.envelope(p) || '{"x": 1}', 'ENV-25: extra cannot shadow a column, even one that is null')
        from ojs.push('a.b') p;
select is(pg_temp.plain(ojs.envelope(p)), (select pg_temp.plain(job) || '{"args": []}' from minimal),
    'ENV-23: nor is JSON''s null as a parameter')
from ojs.push('email.send', meta => 'null', retry => 'null', "unique" => 'null') p;
select is(ojs.envelope(null::ojs.job), null, 'ENV-24: no job, no envelope');

-- What comes back can be pushed again.
create temp table rich as
select ojs.push_job(pg_temp.job('{"queue": "reports", "priority": 5, "meta": {"a": 1}, "timeout_ms": 1500,
    "tags": ["t"], "x_y": [1.50],
    "scheduled_at": "2099-01-01T00:00:00.123456Z", "expires_at": "2099-02-01T00:00:00Z", "specversion": "1.2",
        "schema": "urn:x:y",
    "retry": {"max_attempts": 5, "initial_interval_ms": 1500, "strategy": "linear"}, "visibility_timeout": 7,
        "grace_period": 0.5,
    "total_timeout": "P1D", "enqueue_ttl": 60, "version": 2, "rate_limit": {"key": "k"}}')) as job;
select is(pg_temp.plain(ojs.push_job(job - 'id')), pg_temp.plain(job),
    'ENV-22 R-10: an envelope that came back can be pushed again')
from rich;

-- ENV-26 to ENV-28 -------------------------------------------------------------------------------------------------

select is(ojs.push_job(jsonb_build_object('type', 'a.b', 'args', jsonb_build_array(text), 'meta',
    jsonb_build_object(text, text))) -> 'args' ->> 0, text,
    'ENV-26: round trip of ' || to_jsonb(text)::text)
from unnest(array['''; drop table x; --', '\', '"', e'\b\f\n\r\t\x01\x7f', '%s %n', '$1', '𝄞 ü ́', '{{steps.x}}',
    '<script>']) text;
select throws_ok($$select ojs.push_job('{"type": "a.b", "args": ["a\u0000b"]}')$$, '22P05', null,
    'ENV-26: \u0000 is refused, by the server');

select is(jsonb_array_length(ojs.push_job(jsonb_build_object('type', 'a.b', 'args', jsonb_agg(i))) -> 'args'), 10000,
    'ENV-27: 10000 values') from generate_series(1, 10000) i;
select pg_temp.refused(jsonb_build_object('type', 'a.b', 'args', jsonb_agg(i)), 'OJ103 INVALID_ARGS args',
    'ENV-27: 10001 values')
from generate_series(1, 10001) i;
select is(ojs.push_job(jsonb_build_object('type', 'a.b', 'args', (repeat('[', 32) || repeat(']',
    32))::jsonb)) ->> 'state', 'available', 'ENV-27: 32 levels');
select pg_temp.refused(jsonb_build_object('type', 'a.b', 'args', (repeat('[', 33) || repeat(']', 33))::jsonb),
    'OJ103 INVALID_ARGS args', 'ENV-27: 33 levels');
select pg_temp.refused(jsonb_build_object('type', 'a.b', 'args', (repeat('[', 3000) || repeat(']', 3000))::jsonb),
    'OJ103 INVALID_ARGS args', 'ENV-27: 3000 levels');
select pg_temp.refused(pg_temp.job(jsonb_build_object('meta', (repeat('{"a":', 33) || '1' || repeat('}', 33))::jsonb)),
    'OJ104 INVALID_METADATA meta', 'ENV-27: meta too');
set local ojs.max_args_depth = 3;
set local ojs.max_args_elements = 4;
select is(ojs.push_job('{"type": "a.b", "args": [[[]], 2]}') ->> 'state', 'available', 'ENV-27: limits are settings');
select pg_temp.refused('{"type": "a.b", "args": [[[[]]]]}', 'OJ103 INVALID_ARGS args', 'ENV-27: (depth)');
select pg_temp.refused('{"type": "a.b", "args": [1, [2, 3], 4]}', 'OJ103 INVALID_ARGS args',
    'ENV-27: (values at all levels)');
reset ojs.max_args_depth;
reset ojs.max_args_elements;
select is(ojs.push_job(jsonb_build_object('type', 'a.b', 'args', ref)) -> 'args', ref,
    'ENV-28: a reference is stored as it is')
from (values ('[{"__ojs_ref": "s3://bucket/key.json", "size": 52428800, "checksum": "sha256:abc"}]'::jsonb)) r (ref);

-- R-03, R-10, R-57 and the attributes of other chapters ------------------------------------------------------------

select is(pg_temp.pushed(jsonb_build_object('specversion', given)) ->> 'specversion', given, 'R-03: specversion '
    || given)
from unnest(array['1.0', '1.0.0-rc.1', '1.2', '1.0.0+build.5', '1.9.3']) given;
select pg_temp.refused(pg_temp.job(jsonb_build_object('specversion', given)), 'OJ700 UNSUPPORTED_FEATURE specversion',
    'R-03: not supported: ' || given)
from unnest(array['2.0', '0.2', '10.0']) given;
select pg_temp.refused(pg_temp.job(jsonb_build_object('specversion', given)), 'OJ100 INVALID_PAYLOAD specversion',
    'R-03: no version: ' || given::text)
from unnest(array['""', '"1"', '"1."', '"1.x"', '"v1.0"', '"1.0.0.0"', '"1.0-"', '1.0']::jsonb[]) given;

select is(ojs.push_job(pg_temp.job(given)) @> expected, true, 'R-10: ' || given::text)
from (values
    ('{"queue": "a", "options": {"queue": "a"}}'::jsonb, '{"queue": "a"}'::jsonb),
        ('{"priority": 10, "options": {"priority": "HIGH"}}', '{"priority": 10}'),
    ('{"scheduled_at": "2099-01-01T00:00:00Z", "options": {"delay_until": "2099-01-01T01:00:00+01:00"}}',
        '{"scheduled_at": "2099-01-01T00:00:00Z"}'),
    ('{"meta": {"a": 1}, "options": {"metadata": {"b": 2, "a": 1.0}}}', '{"meta": {"a": 1, "b": 2}}'),
        ('{"options": {"metadata": {"b": 2}}}', '{"meta": {"b": 2}}'),
    ('{"options": {"retry": {"max_attempts": 5}}}', '{"max_attempts": 5}')) r (given, expected);
select pg_temp.refused(pg_temp.job(given), 'OJ100 INVALID_PAYLOAD ' || field, 'R-10: ' || given::text)
from (values
    ('{"queue": "a", "options": {"queue": "b"}}'::jsonb, 'queue'), ('{"priority": 9, "options": {"priority": "HIGH"}}',
        'priority'),
    ('{"scheduled_at": "2099-01-01T00:00:00Z", "delay_until": "2099-01-01T00:00:01Z"}', 'scheduled_at'),
        ('{"options": {"type": "x.y"}}', 'type'),
    ('{"meta": {"a": 1}, "options": {"metadata": {"a": 2}}}', 'meta.a'),
        ('{"meta": {"a": 1}, "options": {"meta": {"a": 2}}}', 'meta'),
    ('{"retry": {"max_attempts": 5}, "options": {"retry": {"max_attempts": 6}}}', 'retry'),
        ('{"version": 1, "options": {"version": "1"}}', 'version'),
    ('{"id": "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e01", "options": {"id": "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e02"}}',
        'id')) r (given, field);

select is(jsonb_build_array(job -> 'type', job -> 'version'), expected, 'R-57 VER-01: ' || given::text)
from (values
    ('{"version": 2}'::jsonb, '["email.send", 2]'::jsonb), ('{"version": "2.0"}', '["email.send", "2.0"]'),
        ('{"type": "a.b@2.0"}', '["a.b", "2.0"]'),
    ('{"type": "a.b@3"}', '["a.b", "3"]'), ('{"type": "a.b@2.0", "version": 3}', '["a.b", 3]'),
        ('{"type": "a.b@2.0", "options": {"version": "1.2.3"}}', '["a.b", "1.2.3"]'),
    ('{}', '["email.send", null]')) v (given, expected), pg_temp.pushed(given) job;
select is(pg_temp.strict_refusal($$select ojs.push_job('{"type": "a.b", "args": [], "version": {"major": 1}}')$$),
    'OJ100 INVALID_PAYLOAD version', 'R-57: must be a scalar');

select is(pg_temp.pushed('{"grace_period": 2.5, "heartbeat_timeout": "PT1M", "enqueue_ttl": 60, "total_timeout": "P1D",
    "timeout": 30, "delivery": "at_least_once", "rate_limit": {"key": "k", "concurrency": 5}, "tag": "t"}')
    @> '{"grace_period": 2.5,
        "heartbeat_timeout": 60, "enqueue_ttl": 60, "total_timeout": 86400,
    "delivery": "at_least_once", "rate_limit": {"key": "k", "concurrency": 5},
        "tag": "t"}', true, 'TMO-06: other time limits and options are kept');
select pg_temp.refused(pg_temp.job(given), 'OJ100 INVALID_PAYLOAD ' || field, 'TMO-06: ' || given::text)
from (values ('{"total_timeout": 10, "timeout": 11}'::jsonb, 'total_timeout'), ('{"total_timeout": 0}',
    'total_timeout'), ('{"grace_period": -1}', 'grace_period'),
    ('{"enqueue_ttl": 0}', 'enqueue_ttl'), ('{"heartbeat_timeout": 0}', 'heartbeat_timeout'),
        ('{"heartbeat_timeout": "60s"}', 'heartbeat_timeout'),
    ('{"rate_limit": 5}', 'rate_limit'), ('{"tag": 5}', 'tag'), ('{"delivery": "twice"}', 'delivery'),
        ('{"delivery": 1}', 'delivery')) t (given, field);
select is(pg_temp.pushed('{"total_timeout": 10, "timeout": 10, "grace_period": 0}') ->> 'state', 'available',
    'TMO-06: total_timeout may equal timeout, grace may be 0');
select is(jsonb_build_array(job -> 'max_attempts', job -> 'retry' -> 'max_attempts', job -> 'retry' -> 'jitter'),
    '[1, 1, false]', 'DLV-01: at most once is never retried')
from pg_temp.pushed('{"delivery": "at_most_once", "retry": {"max_attempts": 5, "jitter": false}}') job;

select pg_temp.refused(pg_temp.job(given), 'OJ100 INVALID_PAYLOAD ' || field, 'DDP-01 DDP-08: ' || given::text)
from (values ('{"deduplication_key": ""}'::jsonb, 'deduplication_key'), ('{"deduplicationKey": 5}',
    'deduplication_key'), ('{"deduplication_key": "a", "deduplicationKey": "b"}', 'deduplication_key'),
    ('{"deduplication_key": "a", "deduplication_ttl": "1h"}', 'deduplication_ttl'),
        ('{"deduplication_key": "a", "deduplication_ttl": "PT0S"}', 'deduplication_ttl'),
    ('{"dedup_fallback": "ajar"}', 'dedup_fallback')) d (given, field);
select is(pg_temp.strict_refusal('select ojs.push(''a.b'', deduplication_key => '''')'),
    'OJ100 INVALID_PAYLOAD deduplication_key', 'DDP-01: empty as a parameter');
select is(pg_temp.pushed(jsonb_build_object('dedup_fallback', given)) ->> 'state', 'available',
    'DDP-08 R-51: dedup_fallback ' || given) from unnest(array['open', 'closed']) given;

-- ojs.push: what its options say, and its parameters.
select is(ojs.envelope(p) @> '{"queue": "reports", "priority": 7, "meta": {"a": 1}, "x_y": [1],
    "visibility_timeout_ms": 5000, "version": "2.0", "type": "a.b"}', true,
    'R-10: options of ojs.push take every attribute')
from ojs.push('a.b',
    options => '{"queue": "reports", "priority": 7, "metadata": {"a": 1}, "x_y": [1], "visibility_timeout": 5,
    "version": "2.0"}') p;
select is(pg_temp.strict_refusal($$select ojs.push('a.b', options => '[]')$$), 'OJ100 INVALID_PAYLOAD options',
    'R-10: options must be an object');
select is((p).tags, array['a'], 'ENV-19: tags in options') from ojs.push('a.b', options => '{"tags": ["a"]}') p;

select * from finish();
rollback;
