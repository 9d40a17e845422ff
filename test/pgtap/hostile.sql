-- hostile.sql: the values of test/hostile/values.json, put into every function that takes JSON, every HTTP route and
-- every
-- member that these read: success, or an error of the catalogue that says what is wrong where. The report of a failure
-- lands, whatever it holds.
-- Runs once
begin;
select no_plan();
\ir helpers.psql
\set file `cat ../hostile/values.json`

create temp table hostile as
select v ->> 'name' as name, coalesce(v -> 'jsonb' <> 'false', true) as is_jsonb, v ->> 'named' as named, v ->>
    'in_report' as in_report,
    coalesce(v ->> 'json', (select string_agg(repeat(p ->> 0, (p ->> 1)::int), '' order by n)
        from jsonb_array_elements(v -> 'repeat') with ordinality as r(p, n))) as json
from jsonb_array_elements(:'file'::jsonb -> 'values') v;
select cmp_ok(count(*), '>=', 45::bigint, 'there are hostile values') from hostile;

-- The table is true: what it says that jsonb cannot hold, jsonb refuses, and takes the rest.
create function pg_temp.cast_state(json text) returns text language plpgsql as $$
begin
    perform json::jsonb;
    return null;
exception when others then
    return sqlstate;
end $$;
select is((select string_agg(format('%s: %s', name, state), e'\n') from (select name, is_jsonb,
    pg_temp.cast_state(json) as state
    from hostile) h where is_jsonb <> (state is null) or state not in ('22P02', '22P05', '22003', '54001')), null,
    'what jsonb is said not to hold it refuses, and it takes the rest');
select is((select string_agg(format('%s: %s', name, ojs.storable(json)::text), e'\n') from hostile
    where in_report is not null and ojs.storable(json) <> in_report::jsonb), null,
        'ojs.storable replaces it as the table says');
select is((select string_agg(name, e'\n') from hostile where is_jsonb and json::jsonb <> ojs.storable(json)
    and name not like '%levels%'), null, 'and nothing else');
select is(ojs.storable(null), null, 'null is no document');
select is(pg_temp.cast_state((ojs.storable(repeat('{"a": [', 50000) || 'NaN' || repeat(']}', 50000)))::text), null,
    'it cuts what is too deep');

-- Calls a statement and takes back what it did. Returns what is wrong with its outcome, or null.
create function pg_temp.trouble(call text) returns text language plpgsql as $$
declare
    state text; message text; detail text;
begin
    begin
        execute call;
        raise exception using errcode = 'OJ0OK';
    exception when others then
        get stacked diagnostics state = returned_sqlstate, message = message_text, detail = pg_exception_detail;
    end;
    return case
        when state = 'OJ0OK' or state in ('42501', '57P03') then null
        when left(state, 2) <> 'OJ' then state || ' ' || message
        when detail::jsonb ->> 'code' is null then 'no code'
        when state ~ '^OJ(1|404|702)' and not detail::jsonb -> 'details' ?| '{field,reason,state,current_state}'
            then 'no field: ' || message
        when message ~ 'ojs_store|cache lookup' then 'names what is inside: ' || message end;
end $$;

select pg_temp.held('hostile', 'w') as held \gset
select set_config('hostile.held', :'held', true) \g /dev/null

-- FUNCTIONS --------------------------------------------------------------------------------------------------------

-- What a parameter's members are called, by its name.
create temp table members_of as
select name, string_to_array(regexp_replace(members, '\s+', ' ', 'g'), ' ') as members from (values
    ('job', 'type args queue priority scheduled_at delay_until delay expires_at retry max_attempts unique meta '
        'metadata '
        'timeout timeout_ms deduplication_key deduplicationKey deduplication_ttl dedup_fallback id tags tag pending '
        'options schema specversion version visibility_timeout visibility_timeout_ms grace_period heartbeat_timeout '
        'enqueue_ttl '
        'total_timeout result_ttl delivery rate_limit ordering_key ordering parent_id x'),
    ('error', 'type code message retryable backtrace details rate_limit_until x'),
    ('config', 'type max_depth max_size_bytes dead_letter delete_on_ack durable leases_durable lease_log lease_ms '
        'max_deliveries concurrency claim_rate claim_jitter_ms priority_aging_s rate_limit retention default_retry '
        'replay_rules producers allowed_job_types warning_threshold block_timeout discard overflow strategy queues '
        'rate throttle key period'),
    ('retry',
        'max_attempts initial_interval max_interval backoff_coefficient jitter non_retryable_errors on_exhaustion '
        'strategy initial_interval_ms'),
    ('unique', 'keys key args_keys meta_keys period period_ms states on_conflict'),
    ('def', 'type id name steps jobs callbacks metadata'),
    ('filter', 'ids queue type state states since until tag dead_letter priority worker text'),
    ('request', 'node max lease_ms seqs lease_ids delay_ms'),
    ('info', 'queues concurrency hostname pid version handlers labels started_at'),
    ('schema', 'type properties required items enum pattern minimum maxLength format $ref allOf'),
    ('overrides', 'args meta retry queue priority scheduled_at'),
    ('limits', 'max_jobs max_queues rate x'), ('meta', 'tenant_id x'), ('args', 'x'), ('data', 'x'), ('state', 'x'),
    ('result', 'x'), ('weights', 'hostile x'), ('request_headers', 'x'), ('document', 'x'), ('request_body', 'x'),
    ('changes', 'url events event_types queues job_types secret enabled description timeout_ms')) m (name, members);
insert into members_of select 'options', members from members_of where name = 'job';
insert into members_of select 'jobs', members from members_of where name = 'job';
insert into members_of select 'results', members from members_of where name = 'result';

-- Each function of ours with a parameter of JSON, and that parameter.
create temp table takes_json as
select p.oid::regproc::text as function, p.oid, t.n, p.proargnames[t.n] as parameter, format_type(t.type, null) as type
from pg_proc p, unnest(p.proargtypes::oid[]) with ordinality as t(type, n)
where p.pronamespace = 'ojs'::regnamespace and t.type in ('jsonb'::regtype, 'json'::regtype, 'jsonb[]'::regtype);
select cmp_ok(count(distinct function), '>', 25::bigint, 'there are functions that take JSON') from takes_json;
select is((select string_agg(distinct format('%s(%s)', function, parameter), ', ') from takes_json
    where parameter not in (select name from members_of)), null,
        'of each parameter of JSON it is known what its members are');

-- A call with a value for one parameter; the others are what makes the call go through.
create function pg_temp.call_of(function oid, place bigint, value text) returns text language sql stable as $$
    select format('select * from %s(%s)', $1::regproc, string_agg(case
        when n = place then format('%L::%s', case when t.type = 'jsonb[]'::regtype then array[value]::text else value
            end,
            format_type(t.type, null))
        when v.value is not null then format('%L::%s', v.value, format_type(t.type, null))
        else 'null::' || format_type(t.type, null) end, ', ' order by n))
    from pg_proc p, unnest(p.proargtypes::oid[]) with ordinality as t(type, n)
    left join lateral (select case
        when p.proargnames[n] in ('job_id', 'id') and p.proname in ('create_webhook') then null
        when t.type = 'uuid'::regtype then case when p.proname = 'push' then null else current_setting('hostile.held')
            end
        when t.type = 'uuid[]'::regtype then '{' || current_setting('hostile.held') || '}'
        when p.proargnames[n] in ('queue', 'name', 'key', 'pool', 'tenant') then 'hostile'
        when p.proargnames[n] in ('type') then 'a.b' when p.proargnames[n] = 'worker' then 'w'
        when p.proargnames[n] = 'expression' then '* * * * *' when p.proargnames[n] = 'version' then '1'
        when p.proargnames[n] = 'queues' then '{hostile}' when p.proargnames[n] = 'atomicity' then 'atomic'
        when p.proargnames[n] = 'url' then 'https://example.org/' when p.proargnames[n] = 'method' then 'POST'
        when p.proargnames[n] = 'path' then '/ojs/v1/jobs'
        when p.proargnames[n] = 'job' and t.type = 'jsonb'::regtype then '{"type": "a.b", "args": []}'
        when p.proargnames[n] = 'confirm' then 'true' end as value) v on true
    where p.oid = $1
$$;
create temp table call as
select t.function, t.parameter, h.name, m.member, pg_temp.call_of(t.oid, t.n, case
    when m.member is null then h.json
    when t.parameter in ('job', 'options') then format('{"type": "a.b", "args": [], %s: %s}', to_json(m.member), h.json)
    when t.parameter = 'jobs' then format('[{"type": "a.b", "args": [], %s: %s}]', to_json(m.member), h.json)
    when t.parameter = 'def' then format('{"type": "chain", "steps": [{"type": "a.b", "args": []}], %s: %s}',
        to_json(m.member), h.json)
    else format('{%s: %s}', to_json(m.member), h.json) end) as call
from takes_json t
join members_of on members_of.name = t.parameter
cross join lateral unnest(null::text || members_of.members) as m(member)
join hostile h on h.is_jsonb
where length(h.json) < 1000 or m.member is null or m.member in ('x', 'args', 'meta', 'message', 'details', 'type');
select cmp_ok(count(*), '>', 5000::bigint, 'many calls') from call;
select is((select string_agg(format('%s, %s of %s is %s: %s', function, coalesce(member, 'all'), parameter, name,
    trouble), e'\n')
    from (select * from (select *, pg_temp.trouble(call) as trouble from call) c where trouble is not null limit 20)
        f), null,
    'every function takes each value, or says what is wrong with which member');

-- REPORTS OF FAILURES ----------------------------------------------------------------------------------------------

-- What became of the job by a report, which is taken back. Null: it landed.
create function pg_temp.report_trouble(call text, expected jsonb default null) returns text language plpgsql as $$
declare
    outcome text; error jsonb; answer text;
begin
    begin
        execute call into answer;
        select j.state, j.error into outcome, error from ojs.jobs j where j.id = current_setting('hostile.held')::uuid;
        outcome := case when outcome = 'active' then 'still active: ' || left(answer, 300)
            when (error -> 'attempt') is distinct from '1' or error ->> 'type' is null or error ->> 'message' is null
                then 'no error: ' || left(error::text, 300)
            when expected is not null and error -> 'details' is distinct from expected
                then 'other details: ' || left(error::text, 300) end;
        raise exception using errcode = 'OJ0OK', message = coalesce(outcome, '');
    exception when others then
        return nullif(case when sqlstate = 'OJ0OK' then sqlerrm else sqlstate || ' ' || sqlerrm end, '');
    end;
end $$;
create temp table report as
select h.name, m.member, h.is_jsonb, h.json, h.in_report, case when m.member is null then h.json
    else format('{%s %s: %s}', case when m.member in ('type', 'message') then '' else '"type": "t", "message": "m",'
        end,
        to_json(m.member), h.json) end as error
from hostile h, lateral (select unnest(null::text || members) from members_of where name = 'error') m(member)
where h.name <> 'null' or m.member is not null;
select is((select string_agg(format('%s is %s: %s', coalesce(member, 'error'), name, trouble), e'\n')
    from (select *, pg_temp.report_trouble(format('select * from ojs.fail(%L, ojs.storable(%L))', :'held', error),
        case when member = 'details' then in_report::jsonb end) as trouble from report) r where trouble is not null),
    null, 'ojs.fail: a report of ojs.storable lands');
select is((select string_agg(format('%s is %s: %s', coalesce(member, 'error'), name, trouble), e'\n')
    from (select *, pg_temp.report_trouble(format('select * from ojs.fail(%L, %L)', :'held', error)) as trouble
        from report where is_jsonb) r where trouble is not null),
    null, 'ojs.fail: the report of a failure lands, whatever is in its error');
select is((select string_agg(format('%s: %s is %s: %s', path, coalesce(member, 'error'), name, trouble), e'\n')
    from (select *, pg_temp.report_trouble(format('select status || body from ojs.http(%L, %L, %L, %L)', 'POST', path,
            '{"content-type": "application/json"}', format('{"job_id": "%s", "error": %s}', :'held', error)),
            case when member = 'details' then in_report::jsonb end) as trouble
        from report, unnest(array['/ojs/v1/workers/nack', '/ojs/v1/jobs/' || :'held' || '/nack']) path
        where length(json) < 200000 or path like '%workers%') r where trouble is not null),
    null, 'nack: the report of a failure lands, whatever is in its error');
select is((select string_agg(format('%s is %s: %s', member, name, trouble), e'\n')
    from (select *, pg_temp.report_trouble(format('select status || body from ojs.http(%L, %L, %L, %L)', 'POST',
            '/ojs/v1/workers/nack', '{"content-type": "application/json"}',
            format('{"job_id": "%s", "error": {"type": "t", "message": "m"}, %s: %s}', :'held', to_json(member),
                json))) as trouble
        from hostile, unnest('{delay_ms,x}'::text[]) member
        union all
        select *, pg_temp.report_trouble(format('select status || body from ojs.http(%L, %L, %L, %L)', 'POST',
            '/ojs/v1/workers/nack', '{"content-type": "application/json"}',
            format('{"job_id": "%s", "error": {"type": "t", "message": "m"}, "requeue": %s}', :'held', json)))
        from hostile, unnest('{requeue}'::text[]) member where json <> 'true') r where trouble is not null),
    null, 'nack: it lands, whatever is in the members beside its error');
select is(pg_temp.report_trouble(format('select status || body from ojs.http(%L, %L, %L, %L)', 'POST',
    '/ojs/v1/workers/nack', '{"content-type": "application/json"}',
        format('{"job_id": "%s", "error": {"type": "t", "message": "m", "details": %s}}',
    :'held', body))), null, 'nack: it lands, ' || title)
from (values ('with 5 MB of text', to_json(repeat('x', 5000000))::text), ('with 200000 values', '[0' || repeat(',0',
    200000) || ']')) b (title, body);

-- What of it counts.
create function pg_temp.error_by(error jsonb) returns jsonb language sql as $$
    select jsonb_build_object('state', f.state, 'error', f.error - '{attempt,occurred_at}'::text[])
    from ojs.fail(pg_temp.held('counts', 'w'), error) f $$;
select is(pg_temp.error_by(error), expected, 'a report counts as it is meant: ' || error::text)
from (values
    ('{"type": "t", "message": "m", "retryable": "no"}'::jsonb,
        '{"state": "discarded", "error": {"code": "t", "type": "t", "message": "m", "retryable": "no"}}'::jsonb),
    ('{"type": "t", "message": "m", "retryable": 0}',
        '{"state": "discarded", "error": {"code": "t", "type": "t", "message": "m", "retryable": 0}}'),
    ('{"type": "t", "message": "m", "retryable": "maybe", "rate_limit_until": "soon"}', '{"state": "retryable", "error":
        {"code": "t", "type": "t", "message": "m", "retryable": "maybe", "rate_limit_until": "soon",
        "ignored": ["retryable", "rate_limit_until"]}}'),
    ('{"type": 5, "message": {"a": 1}}',
        '{"state": "retryable", "error": {"code": "5", "type": "5", "message": "{\"a\": 1}"}}'),
    ('{"type": "", "code": ""}', '{"state": "retryable", "error":
        {"code": "unknown_error", "type": "unknown_error", "message": "unknown_error"}}'),
    ('"boom"',
        '{"state": "retryable", "error": {"code": "unknown_error", "type": "unknown_error", "message": "boom"}}'),
    ('{"type": "t", "message": "m", "backtrace": [1, "f", null]}',
        '{"state": "retryable", "error": {"code": "t", "type": "t", "message": "m", "backtrace": ["1", "f", "null"]}}'),
    ('{"type": "t", "message": "m", "ignored": ["x"]}',
        '{"state": "retryable", "error": {"code": "t", "type": "t", "message": "m"}}')) e (error, expected);
select is(pg_temp.refusal(format('select ojs.fail(%L, %L)', :'held', error)), 'OJ100 INVALID_PAYLOAD error',
    'without an error there is no report') from unnest(array[null, 'null']::jsonb[]) error;

-- HTTP -------------------------------------------------------------------------------------------------------------

-- The members that a handler reads, by the source of it and of what it calls.
create temp table reads as
with recursive source as (
    select p.proname::text as handler, p.proname::text as name, p.prosrc from pg_proc p
    where p.pronamespace = 'ojs_http'::regnamespace and p.proname in (select r.handler from ojs_http.routes() r)
    union
    select s.handler, p.proname, p.prosrc from source s
    join pg_proc p on p.pronamespace = 'ojs_http'::regnamespace and s.prosrc ~ ('ojs_http\.' || p.proname || '\(')
    where p.prosrc not like '%ojs_http.routes%'
)
select distinct handler, m[1] as member
from source, regexp_matches(prosrc, $$(?:field\([\w.() ]+, |body ->>? |def -> |whole -> |request ->>? )'(\w+)'$$, 'g')
    m;
create temp table request as
select r.method, replace(replace(replace(replace(replace(r.pattern, ':id', :'held'), ':name', 'hostile'), ':queue',
    'hostile'),
    ':type', 'a.b'), ':version', '1') as path, r.handler, m.member
from ojs_http.routes() r, lateral (select null as member union select reads.member from reads where reads.handler =
    r.handler) m
where r.method not in ('GET', 'DELETE');
select cmp_ok(count(*), '>', 150::bigint, 'there are requests with bodies') from request;

create function pg_temp.answer_trouble(method text, path text, body text, named text) returns text language plpgsql as
    $$
declare
    r record; error jsonb; outcome text;
begin
    begin
        select * into strict r from ojs.http(method, path, '{"content-type": "application/json"}', body);
        error := case when r.status >= 400 and r.status <> 422 then r.body::jsonb -> 'error' end;
        outcome := case
            when r.status >= 500 then r.status || ' ' || r.body
            when r.status >= 400 and r.status <> 422 and (error ->> 'code' is null or error ->> 'message' is null)
                then 'no error: ' || r.body
            when r.body ~ 'ojs_store|cache lookup' then 'names what is inside: ' || left(r.body, 300)
            when named is null then null
            when r.status < 400 then 'accepted'
            when r.status <> 400 then 'not 400: ' || left(r.body, 300)
            when strpos(error ->> 'message', named) = 0 then 'does not name it: ' || left(r.body, 300) end;
        raise exception using errcode = 'OJ0OK', message = coalesce(outcome, '');
    exception when others then
        return nullif(case when sqlstate = 'OJ0OK' then sqlerrm else 'raised ' || sqlstate || ' ' || sqlerrm end, '');
    end;
end $$;
create temp table answered as
select q.method, q.path, q.member, h.name, pg_temp.answer_trouble(q.method, q.path, case when q.member is null then
    h.json
    else format('{%s: %s}', to_json(q.member), h.json) end,
    case when not h.is_jsonb and q.handler not in ('nack', 'push_batch', 'push_bulk') then coalesce(h.named, '') end)
        as trouble
from request q, hostile h
where length(h.json) < 1000 or q.member is null and q.path ~ '(jobs|nack|ack|fetch|bulk|workflows|cron|queues)$';
select cmp_ok(count(*), '>', 5000::bigint, 'many requests') from answered;
select is((select string_agg(format('%s %s, %s is %s: %s', method, path, coalesce(member, 'the body'), name, trouble),
    e'\n')
    from (select * from answered where trouble is not null limit 20) a), null,
    'every route answers each value, and what cannot be stored is named');

select * from finish();
rollback;
