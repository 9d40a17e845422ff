-- errors.sql: every error of docs/reference/errors.md can be provoked and is reported as that page says, and no other
-- code is raised anywhere: ERR-06, ERR-07, R-67. A new code needs a row on the page, one in src/pg/error.cpp, and one
-- in `provocation` below. Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();
\set page `cat ../../docs/reference/errors.md`
\set catalogue `cat ../../src/pg/error.cpp`
\set code `cat ../../src/*/*.cpp`
\set sql `cat ../../sql/[a-z_]*.sql ../../sql/http/*.sql`

-- The page's table: a row may stand for several codes. `reserved`: the page says that nothing raises it.
create temp table documented as
select trim(sqlstate) as sqlstate, trim(code) as code, fields[3] = 'yes' as retryable,
    fields[4] ~ '^reserved' as reserved
from regexp_matches(:'page', '^\| ([0-9A-Z, ]{5,}) \| ([A-Z_, ]+) \| (yes|no) \|(?: (.*))? ?\|$', 'gn') as fields,
    unnest(string_to_array(fields[1], ','), string_to_array(fields[2], ',')) as row (sqlstate, code);
create temp table catalogued as
select fields[2] as sqlstate, fields[1] as code, fields[3]::boolean as retryable
from regexp_matches(:'catalogue', '\{Code::\w+, "(\w+)", "(\w+)", (\w+)\}', 'g') as fields;
create temp table raised as
select distinct upper(found[1]) as code from regexp_matches(:'code', '[^{]Code::(\w+)', 'g') as found
union
select distinct found[1] from regexp_matches(:'sql', 'ojs_store\.raise\(''(\w+)''', 'g') as found;

select cmp_ok((select count(*) from documented), '>=', 28::bigint, 'the page can be read');
select set_eq('select sqlstate, code, retryable from documented', 'select * from catalogued',
    'ERR-06 ERR-07: docs/reference/errors.md says what src/pg/error.cpp says');
select set_eq('select code from documented where not reserved', 'select code from raised',
    'ERR-06: what the page lists is raised somewhere, and what is raised is listed');

-- What provokes each of them: statements of which the last fails, and the members that `details` must have.
create temp table provocation (code text, members text[], statements text);
insert into provocation values
    ('INVALID_PAYLOAD', '{field}', $$select ojs.claim('default', '')$$),
    ('INVALID_JOB_TYPE', '{field}', $$select ojs.push('Not A Type')$$),
    ('JOB_TYPE_TOO_LONG', '{field}', $$select ojs.push(repeat('a', 300))$$),
    ('INVALID_QUEUE', '{field}', $$select ojs.push('a.b', queue => 'No Queue')$$),
    ('QUEUE_NAME_TOO_LONG', '{field}', $$select ojs.push('a.b', queue => repeat('q', 300))$$),
    ('INVALID_ARGS', '{field}', $$select ojs.push('a.b', '3')$$),
    ('INVALID_METADATA', '{field}', $$select ojs.push('a.b', meta => '[]')$$),
    ('INVALID_STATE_TRANSITION', '{job_id,current_state,attempted}', $$select ojs.ack(id) from ojs.push('a.b')$$),
    ('INVALID_RETRY_POLICY', '{field}', $$select ojs.push('a.b', retry => '{"max_attempts": -1}')$$),
    ('INVALID_CRON_EXPRESSION', '{field}', $$select ojs.schedule('daily', 'at noon', '{"type": "a.b"}')$$),
    ('PAYLOAD_TOO_LARGE', '{field,actual_bytes,maximum_bytes}',
        $$select ojs.push('a.b', jsonb_build_array(repeat('a', 2000000)))$$),
    ('METADATA_TOO_LARGE', '{field,actual_bytes,maximum_bytes}',
        $$select ojs.push('a.b', meta => jsonb_build_object('a', repeat('a', 100000)))$$),
    ('BATCH_SIZE_EXCEEDED', '{}', $$set local ojs.max_batch_size = 1;
        select ojs.push_many('[{"type": "a.b"}, {"type": "a.b"}]')$$),
    ('NOT_FOUND', '{job_id}', $$select ojs.ack('01900000-0000-7000-8000-000000000000')$$),
    ('NOT_FOUND', '{queue,reason}', $$select ojs.claim('nowhere', 'w')$$),
    ('DUPLICATE_JOB', '{existing_job_id}', $$select ojs.push('a.b', id => id) from ojs.push('a.b')$$),
    ('JOB_ALREADY_COMPLETED', '{job_id}', $$select ojs.push('a.b'); select ojs.ack(id),
        ojs.ack(id) from ojs.claim('default', 'w')$$),
    ('JOB_ALREADY_CANCELLED', '{job_id}', $$select ojs.cancel(id), ojs.ack(id) from ojs.push('a.b')$$),
    ('QUEUE_PAUSED', '{queue}', $$select ojs.create_queue('q'), ojs.drain_queue('q');
        select ojs.push('a.b', queue => 'q')$$),
    ('LEASE_NOT_HELD', '{job_id}', $$select ojs.push('a.b');
        select ojs.ack(id, worker => 'another') from ojs.claim('default', 'w')$$),
    ('TOPIC_NOT_A_QUEUE', '{queue}', $$select ojs.create_queue('log', '{"type": "log"}');
        select ojs.claim('log', 'w')$$),
    ('TOPIC_EXISTS_INCOMPATIBLE', '{queue,type}', $$select ojs.create_queue('q'); select ojs.push('a.b', queue => 'q');
        select ojs.create_queue('q', '{"type": "log"}')$$),
    ('WORKFLOW_NOT_FOUND', '{workflow_id}', $$select ojs.workflow('01900000-0000-7000-8000-000000000000')$$),
    ('INVALID_WORKFLOW', '{field}', $$select ojs.create_workflow('{"type": "chain", "steps": []}')$$),
    ('WORKFLOW_ENDED', '{workflow_id,current_state}',
        $$select ojs.create_workflow('{"type": "chain", "id": "01920000-0000-7000-8000-0000000000fa", "steps": '
        '[{"type": "a.b", "args": []}]}'); select ojs.cancel_workflow('01920000-0000-7000-8000-0000000000fa');
        select ojs.cancel_workflow('01920000-0000-7000-8000-0000000000fa')$$),
    ('RESULT_TOO_LARGE', '{actual_bytes,maximum_bytes}', $$select ojs.push('a.b');
        select ojs.ack(id, to_jsonb(repeat('a', 2000000))) from ojs.claim('default', 'w')$$),
    ('RATE_LIMITED', '{queue,retry_after_ms}', $$select ojs.create_queue('q', '{"claim_rate": 1}');
        select ojs.claim('q', 'w'); select ojs.claim('q', 'w')$$),
    ('QUEUE_FULL', '{queue,depth,bound,strategy,retry_after_seconds}',
        $$select ojs.create_queue('q', '{"max_size": 1}'); select ojs.push('a.b', queue => 'q');
        select ojs.push('a.b', queue => 'q')$$),
    ('TENANT_LIMIT_EXCEEDED', '{tenant_id,limit,current,maximum,retry_after_seconds}',
        $$set local ojs.tenancy = optional; select ojs.set_tenant('t', '{"max_queue_depth": 0}');
        select ojs.push('a.b', meta => '{"tenant_id": "t"}')$$),
    ('SCHEMA_VALIDATION_FAILED', '{field,schema,validation_errors}',
        $$select ojs.create_schema('a.b', '1', '{"maxItems": 0}'), ojs.set_schema_validation('a.b', 'strict');
        select ojs.push('a.b', '[1]')$$),
    ('SCHEMA_EXISTS', '{field,schema}', $$select ojs.create_schema('a.b', '1', '{}');
        select ojs.create_schema('a.b', '1', '{}')$$),
    ('UNSUPPORTED_FEATURE', '{}', $$select ojs.reset()$$),
    ('UNIQUE_KEY_INVALID', '{field}', $$select ojs.push('a.b', "unique" => '{"keys": ["nothing"]}')$$),
    ('PERMISSION_DENIED', '{queue,field,reason}', $$select ojs.create_queue('q', '{"allowed_job_types": ["c.d"]}');
        select ojs.push('a.b', queue => 'q')$$),
    ('UNAVAILABLE', '{hook}', $$create function public.h(jsonb) returns jsonb language sql as 'select $1';
        select ojs.register_hook('h', 'enqueue', 'public.h(jsonb)');
        drop function public.h; select ojs.push('a.b')$$);

create temp table report (code text, members text[], state text, message text, detail jsonb, hint text);
do $$
declare
    p provocation;
    r report;
    detail text;
begin
    for p in table provocation loop
        r := null;
        begin
            execute p.statements;
        exception when others then
            get stacked diagnostics r.state = returned_sqlstate, r.message = message_text,
                detail = pg_exception_detail, r.hint = pg_exception_hint;
            r.detail := case when detail ~ '^\{' then detail::jsonb end;
        end;
        insert into report select p.code, p.members, r.state, r.message, r.detail, nullif(r.hint, '');
    end loop;
end $$;

select set_eq('select code from provocation', 'select code from documented where not reserved',
    'ERR-06: each code of the page is provoked, and no other');
select is(concat_ws(' ', r.state, r.detail ->> 'code', 'retryable', r.detail ->> 'retryable'),
    concat_ws(' ', d.sqlstate, d.code, 'retryable', d.retryable::text),
    'ERR-06 ERR-07: ' || d.code || ' is reported with its SQLSTATE, its code, and whether to try again') from report r
        join documented d using (code);
select is_empty($$
    select code, detail from report where (select array_agg(key order by key)
        from jsonb_object_keys(detail) key) is distinct from '{code,details,retryable}'
    or jsonb_typeof(detail -> 'details') <> 'object' or not detail -> 'details' ?& members
$$, 'ERR-06: DETAIL is an object of code, retryable and details, with the members that callers look for');
select is_empty($$
    select code, message from report where message is null or message ~ '[\n\r]' or message ~ '\.$'
        or length(message) > 300
    or strpos(message, coalesce(detail #>> '{details,field}', '')) = 0
        or strpos(message, coalesce(detail #>> '{details,job_id}', '')) = 0
$$, 'ERR-06: a message is one line and names the field or the job');
select is_empty($$select code, hint from report where hint !~ '^[A-Z].*\.$'$$, 'ERR-06: a hint is a sentence');
select is_empty($$select code, hint from report where hint is null$$, 'ERR-06: each has a hint');

select * from finish();
rollback;
