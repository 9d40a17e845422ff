-- http_binding.sql: what clients of the HTTP binding rely on, request by request: envelopes, states, errors: ENV, SM,
-- OP, RET, SCH, R-66. Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();
\ir helpers.psql
\ir http.psql

-- Nothing has loaded the library yet, where it is not preloaded.
select is((select status from ojs.http('POST', '/ojs/v1/workers/heartbeat', '{}', '{"worker_id": "first"}')), 200,
    'WRK: a heartbeat may be the first request of a session');

-- What is pushed: the body, the status and code of the answer, and what its job holds.
create function pg_temp.pushes(body jsonb) returns text language sql as $$
    select concat_ws(' ', r ->> 'status', r #>> '{body,error,code}')
        from pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs', body)) r
$$;
create temp table p (title text, body jsonb, want text, holds jsonb default '{}');
insert into p values
    ('the least there can be', '{"type": "a.b", "args": []}', '201',
        '{"type": "a.b", "args": [], "queue": "default", "state": "available", "specversion": "1.0", "attempt": 0, '
        '"priority": 0}'),
    ('options beside type and args',
        '{"type": "a.b", "args": [], "options": {"queue": "opt", "priority": 7, "tags": ["x"], "timeout_ms": 1000}}',
        '201', '{"queue": "opt", "priority": 7, "tags": ["x"]}'),
    ('attributes at the top', '{"type": "a.b", "args": [], "queue": "top", "priority": -3}', '201',
        '{"queue": "top", "priority": -3}'),
    ('any JSON as arguments', '{"type": "a.b", "args": [null, true, 1.5, -0, 1e10, "ä😀\\u0001", [[]], {"": {}}]}',
        '201', '{"args": [null, true, 1.5, 0, 1e10, "ä😀\\u0001", [[]], {"": {}}]}'),
    ('an id of the client', '{"type": "a.b", "args": [], "id": "01912345-6789-7abc-8def-0123456789ab"}', '201',
        '{"id": "01912345-6789-7abc-8def-0123456789ab"}'),
    ('that id again', '{"type": "a.b", "args": [], "id": "01912345-6789-7abc-8def-0123456789ab"}',
        '409 duplicate', '{}'),
    ('an id that is no UUIDv7', '{"type": "a.b", "args": [], "id": "3d1e1a2c-9c5b-4c8e-a8a1-2f4f6e7d8c9b"}',
        '400 invalid_request', '{}'),
    ('an id in capitals', '{"type": "a.b", "args": [], "id": "01912345-6789-7ABC-8DEF-0123456789AC"}',
        '400 invalid_request', '{}'),
    ('no id at all', '{"type": "a.b", "args": [], "id": ""}', '400 invalid_request', '{}'),
    ('an unknown attribute', '{"type": "a.b", "args": [], "x_mine": {"a": [1, null]}, "ext_ml_gpu": 2}', '201',
        '{"x_mine": {"a": [1, null]}, "ext_ml_gpu": 2}'),
    ('meta', '{"type": "a.b", "args": [], "meta": {"traceparent": '
             '"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "n": {"deep": [1]}}}', '201',
        '{"meta": {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "n": {"deep": [1]}}}'),
    ('meta that is none', '{"type": "a.b", "args": [], "meta": []}', '400 invalid_request', '{}'),
    ('a version of the job', '{"type": "a.b", "args": [], "version": 3}', '201', '{"version": 3}'),
    ('another specversion', '{"type": "a.b", "args": [], "specversion": "2.0"}', '422 unsupported', '{}'),
    ('what only the server says',
        '{"type": "a.b", "args": [], "state": "completed", "attempt": 9, "completed_at": "2020-01-01T00:00:00Z", '
        '"result": 1}', '201', '{"state": "available", "attempt": 0}'),
    ('a schedule in the past', '{"type": "a.b", "args": [], "scheduled_at": "2020-01-01T00:00:00Z"}', '201',
        '{"state": "available"}'),
    ('a schedule to come', '{"type": "a.b", "args": [], "options": {"delay_until": "2100-01-01T00:00:00Z"}}', '201',
        '{"state": "scheduled"}'),
    ('a schedule that is none', '{"type": "a.b", "args": [], "scheduled_at": "tomorrow"}', '400 invalid_request', '{}'),
    ('to be activated', '{"type": "a.b", "args": [], "options": {"pending": true}}', '201', '{"state": "pending"}'),
    ('no retry', '{"type": "a.b", "args": [], "options": {"retry": {"max_attempts": 0}}}', '201', '{}'),
    ('a negative number of attempts', '{"type": "a.b", "args": [], "retry": {"max_attempts": -1}}',
        '422 invalid_request', '{}'),
    ('a retry in words', '{"type": "a.b", "args": [], "retry": {"max_attempts": "3"}}', '422 invalid_request', '{}'),
    ('an interval that is none', '{"type": "a.b", "args": [], "retry": {"initial_interval": "soon"}}',
        '422 invalid_request', '{}'),
    ('args are missing', '{"type": "a.b"}', '400 invalid_request', '{}'),
    ('type is missing', '{"args": []}', '400 invalid_request', '{}'),
    ('type is no string', '{"type": 1, "args": []}', '400 invalid_request', '{}'),
    ('queue is no string', '{"type": "a.b", "args": [], "queue": 1}', '400 invalid_request', '{}'),
    ('options are no object', '{"type": "a.b", "args": [], "options": []}', '400 invalid_request', '{}'),
    ('nothing', '{}', '400 invalid_request', '{}');
insert into p select 'a type that is none: ' || type, jsonb_build_object('type', type, 'args', '[]'::jsonb),
    '400 invalid_request', '{}' from unnest(array['', 'Email.Send', 'email..send', '.email', 'email.', '1email',
        'email send', 'ä.b', repeat('a', 256)]) type;
insert into p select 'a queue that is none: ' || left(queue, 20),
    jsonb_build_object('type', 'a', 'args', '[]'::jsonb, 'queue', queue), '400 invalid_request',
    '{}' from unnest(array['', 'Default', 'my_queue!', '-invalid', 'my queue', 'a/b', repeat('q', 129)]) queue;
insert into p select 'a priority: ' || given, jsonb_build_object('type', 'a', 'args', '[]'::jsonb, 'options',
    jsonb_build_object('priority', priority)), want, '{}'
    from (values ('100', '201'), ('-100', '201'), ('101', '400 invalid_request'), ('-101', '400 invalid_request'),
    ('1.5', '400 invalid_request'), ('"x"', '400 invalid_request')) v (given, want),
    lateral (select given::jsonb as priority) j;
do $$
declare
    row record; got text; job jsonb; r jsonb;
begin
    create temp table outcome (title text, got text, want text, lacking jsonb);
    for row in select * from p loop
        got := pg_temp.pushes(row.body);
        select a.r into r from answer a;
        job := r #> '{body,job}';
        insert into outcome values (row.title, got, row.want,
            case when row.want = '201' and not job @> row.holds then job end);
        if row.want <> '201' and (r #>> '{body,error,message}' is null or r #>> '{body,error,hint}' is null or r
            #>> '{body,error,docs_url}' is null) then
            insert into outcome values (row.title || ': says why', 'no', 'yes', r);
        end if;
    end loop;
end $$;
select is(concat_ws(' ', got, lacking), want, 'ENV: ' || title) from outcome;

-- STATES: what may be done to a job in each, and what cannot ---------------------------------------------------------

create function pg_temp.in_state(state text) returns uuid language plpgsql as $$
declare
    id uuid := (pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs',
        jsonb_build_object('type', 'in.state', 'args', '[1]'::jsonb, 'options',
        jsonb_build_object('queue', 'in-' || state, 'retry', '{"max_attempts": 2, "initial_interval": "PT1H"}'::jsonb,
            'pending', state = 'pending') || case when state = 'scheduled'
            then '{"delay_until": "2100-01-01T00:00:00Z"}'::jsonb else '{}' end))) #>> '{body,job,id}');
begin
    if state in ('active', 'completed', 'retryable', 'discarded') then
        perform pg_temp.http('POST', '/ojs/v1/workers/fetch',
            jsonb_build_object('queues', array['in-' || state], 'worker_id', 'w'));
    end if;
    case state
    when 'completed' then perform pg_temp.http('POST', '/ojs/v1/workers/ack', jsonb_build_object('job_id', id));
    when 'retryable' then perform pg_temp.http('POST', '/ojs/v1/workers/nack',
        jsonb_build_object('job_id', id, 'error', '{"code": "handler_error", "message": "m"}'::jsonb));
    when 'discarded' then perform pg_temp.http('POST', '/ojs/v1/workers/nack',
        jsonb_build_object('job_id', id, 'error',
        '{"code": "handler_error", "message": "m", "retryable": false}'::jsonb));
    when 'cancelled' then perform pg_temp.http('DELETE', '/ojs/v1/jobs/' || id);
    else null;
    end case;
    return id;
end $$;
create temp table s as select state, operation, ok, pg_temp.in_state(state) as id
    from unnest('{available,scheduled,pending,active,retryable,completed,cancelled,discarded}'::text[]) state,
    (values ('ack', '{active}'::text[]), ('nack', '{active}'),
        ('cancel', '{available,scheduled,pending,active,retryable}'), ('activate', '{pending}')) o (operation,
        allowed), lateral (select state = any (allowed) as ok) x;
create temp table done as select s.*, (select i -> 'attempt' from ojs.info(id) i) as attempt, case operation
    when 'ack' then pg_temp.http('POST', '/ojs/v1/workers/ack', jsonb_build_object('job_id', id))
    when 'nack' then pg_temp.http('POST', '/ojs/v1/workers/nack',
        jsonb_build_object('job_id', id, 'error', '{"code": "handler_error", "message": "m"}'::jsonb))
    when 'cancel' then pg_temp.http('DELETE', '/ojs/v1/jobs/' || id)
    else pg_temp.http('POST', '/ojs/v1/jobs/' || id || '/activate') end as r from s;
select is((select state from ojs.jobs j where j.id = done.id), state, 'SM-21: a job begins in its state: ' || state)
    from done where operation = 'activate' and not ok;
select is(concat_ws(' ', r ->> 'status', r #>> '{body,error,code}', r #>> '{body,error,details,current_state}',
    r #>> '{body,error,details,job_id}' = id::text,
    (select concat_ws(' ', i ->> 'state', i -> 'attempt' = attempt) from ojs.info(id) i)),
    case when ok then '200' else '409 conflict ' || state || ' t ' || state || ' t' end,
        format('SM-21, SM-22, SM-23: %s of a job that is %s', operation, state)) from done where not ok
union all
select is(r ->> 'status', '200', format('SM-21: %s of a job that is %s', operation, state)) from done where ok;
select is(r #>> '{body,job,previous_state}', state, 'OP-20: a cancellation tells what the job was: ' || state)
    from done where operation = 'cancel' and ok;

-- Ids that are not there, and none at all.
select is(pg_temp.error(method, path, body), want, format('HTTP-10: %s %s %s', method, path, coalesce(body::text, '')))
    from (values
    ('GET', '/ojs/v1/jobs/01912345-6789-7abc-8def-000000000000', null, '404 not_found'),
        ('DELETE', '/ojs/v1/jobs/01912345-6789-7abc-8def-000000000000', null, '404 not_found'),
    ('GET', '/ojs/v1/jobs/not-an-id', null, '404 not_found'),
        ('POST', '/ojs/v1/jobs/not-an-id/activate', null, '404 not_found'),
    ('POST', '/ojs/v1/workers/ack', '{"job_id": "01912345-6789-7abc-8def-000000000000"}', '404 not_found'),
        ('POST', '/ojs/v1/workers/nack',
        '{"job_id": "01912345-6789-7abc-8def-000000000000", "error": {"code": "a", "message": "m"}}', '404 not_found'),
    ('POST', '/ojs/v1/dead-letter/01912345-6789-7abc-8def-000000000000/retry', null, '404 not_found'),
        ('DELETE', '/ojs/v1/dead-letter/01912345-6789-7abc-8def-000000000000', null, '404 not_found'),
    ('GET', '/ojs/v1/dead-letter/not-an-id', null, '404 not_found'),
        ('DELETE', '/ojs/v1/admin/dead-letter/01912345-6789-7abc-8def-000000000000', null, '404 not_found'),
    ('GET', '/ojs/v1/admin/jobs/01912345-6789-7abc-8def-000000000000', null, '404 not_found'),
        ('POST', '/ojs/v1/admin/jobs/01912345-6789-7abc-8def-000000000000/retry', null, '404 not_found'),
    ('GET', '/ojs/v1/queues/no-queue/stats', null, '404 not_found'),
        ('GET', '/ojs/v1/admin/queues/no-queue', null, '404 not_found'),
        ('GET', '/ojs/v1/rate-limits/no-key', null, '404 not_found'),
    ('GET', '/ojs/v1/cron/no-entry', null, '404 not_found'),
        ('DELETE', '/ojs/v1/cron/no-entry', null, '404 not_found'),
        ('PATCH', '/ojs/v1/cron/no-entry', '{"enabled": false}', '404 not_found'),
    ('GET', '/ojs/v1/workers/nobody/health', null, '404 not_found'),
        ('GET', '/ojs/v1/admin/workers/nobody', null, '404 not_found'),
    ('POST', '/ojs/v1/workers/fetch', '{"queues": ["no-queue"]}', '200'),
        ('POST', '/ojs/v1/workers/fetch', '{"queues": ["no-queue"], "count": 0}', '200'),
        ('POST', '/ojs/v1/workers/fetch', '{"queues": ["no-queue"], "count": 5000}', '200'),
    ('POST', '/ojs/v1/workers/fetch', '{"queues": ["Not A Queue"]}', '400 invalid_request')) c (method, path,
        body_text, want), lateral (select body_text::jsonb) b (body);

-- WORK -------------------------------------------------------------------------------------------------------------

-- Priorities, and the order within each.
select pg_temp.pushes(jsonb_build_object('type', 'o', 'args', jsonb_build_array(n), 'options',
    jsonb_build_object('queue', 'order', 'priority', priority)))
from (values (1, -10), (2, 0), (3, 10), (4, 0), (5, 10)) v (n, priority) \g /dev/null
select is((select string_agg(j #>> '{args,0}', ',' order by n)
    from pg_temp.http('POST', '/ojs/v1/workers/fetch', '{"queues": ["order"], "count": 10}') r,
    jsonb_array_elements(r #> '{body,jobs}') with ordinality e(j, n)), '3,5,2,4,1', 'R-29: by priority, and in order');
select is(pg_temp.pushes('{"type": "o", "args": [2], "options": {"queue": "second"}}')
    || pg_temp.pushes('{"type": "o", "args": [1], "options": {"queue": "first"}}'), '201201', 'OP-06: two queues');
select is((select string_agg(pg_temp.http('POST', '/ojs/v1/workers/fetch',
    '{"queues": ["first", "second"]}') #>> '{body,jobs,0,queue}', ',') from generate_series(1, 2)), 'first,second',
    'OP-06: the first that is named is served first');

-- Results of any type, and what an ack says.
select pg_temp.pushes(jsonb_build_object('type', 'r', 'args', '[]'::jsonb, 'options', '{"queue": "results"}'::jsonb))
    from generate_series(1, 7) \g /dev/null
create temp table w as select row_number() over () as n,
    j from pg_temp.http('POST', '/ojs/v1/workers/fetch', '{"queues": ["results"], "count": 10}') r,
    jsonb_array_elements(r #> '{body,jobs}') j;
select is(concat_ws(' ', a ->> 'status', a #>> '{body,acknowledged}', a #>> '{body,state}',
    a #>> '{body,id}' = j ->> 'id', a #>> '{body,job_id}' = j ->> 'id', a #>> '{body,completed_at}' is not null,
    a #> '{body,job,result}' = result),
    '200 true completed t t t t', 'OP-14: a result: ' || result::text)
from (values (1, '{"a": [1]}'), (2, '[1, null]'), (3, '"text"'), (4, '42'), (5, 'false')) v (n, given) join w
    using (n), lateral (select given::jsonb) g (result),
    lateral pg_temp.http('POST', '/ojs/v1/workers/ack', jsonb_build_object('job_id', j ->> 'id', 'result', result)) a;
select is(pg_temp.error('POST', '/ojs/v1/workers/ack', jsonb_build_object('job_id', j ->> 'id')), '200',
    'OP-14: and none') from w where n = 6;

-- Failures: the delays of a policy, and the history.
select pg_temp.pushes('{"type": "f", "args": [], "options": {"queue": "fails", "retry": {"max_attempts": 4, '
                      '"initial_interval_ms": 1000, "backoff_coefficient": 2.0, "max_interval_ms": 3000, "jitter": '
                      'false}}}') \g /dev/null
create function pg_temp.fails() returns text language plpgsql as $$
declare
    r jsonb := pg_temp.http('POST', '/ojs/v1/workers/fetch', '{"queues": ["fails"], "worker_id": "w"}');
begin
    r := pg_temp.keep(pg_temp.http('POST', '/ojs/v1/workers/nack',
        jsonb_build_object('job_id', r #>> '{body,jobs,0,id}', 'error',
        '{"code": "handler_error", "type": "Boom", "message": "m", "details": {"k": 1}}'::jsonb)));
    perform pg_temp.clock(interval '4 s' * (r #>> '{body,attempt}')::int);
    return concat_ws(' ', r ->> 'status', r #>> '{body,state}', r #>> '{body,attempt}', r #>> '{body,max_attempts}',
        r #>> '{body,retry_delay_ms}', r #>> '{body,next_attempt_at}' is not null,
        r #>> '{body,discarded_at}' is not null);
end $$;
select is(pg_temp.fails(), '200 retryable 1 4 1000 t f', 'RET-04, OP-17: the first failure');
select is(pg_temp.fails(), '200 retryable 2 4 2000 t f', 'RET-04: the second');
select is(pg_temp.fails(), '200 retryable 3 4 3000 t f', 'RET-04: the third, capped');
select is(pg_temp.fails(), '200 discarded 4 4 f t', 'OP-17: the last');
select is((select string_agg(concat_ws(' ', e ->> 'code', e ->> 'type', e ->> 'message', e ->> 'attempt',
    e ->> 'occurred_at' is not null, e #>> '{details,k}'), ', ' order by n)
    from pg_temp.http('GET', '/ojs/v1/jobs/' || pg_temp.got('body.job_id')) r,
        jsonb_array_elements(r #> '{body,job,errors}') with ordinality x(e, n)),
    'handler_error Boom m 1 t 1, handler_error Boom m 2 t 1, handler_error Boom m 3 t 1, handler_error Boom m 4 t 1',
        'R-40: the history of errors');
select pg_temp.clock('0') \g /dev/null

-- A heartbeat keeps a job past its lease; without one it comes back.
select pg_temp.pushes('{"type": "h", "args": [], "options": {"queue": "beats", "visibility_timeout_ms": 2000}}')
    \g /dev/null
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/workers/fetch',
    '{"queues": ["beats"], "worker_id": "b"}')) \g /dev/null
select pg_temp.got('body.jobs.0.id') as beating \gset
select pg_temp.clock('1500 ms') \g /dev/null
select is(pg_temp.http('POST', '/ojs/v1/workers/heartbeat',
    jsonb_build_object('worker_id', 'b', 'active_jobs', array[:'beating'])) #>> '{body,jobs_extended,0}', :'beating',
    'WRK-02: a heartbeat extends');
select pg_temp.clock('3 s') \g /dev/null
select ojs.tick() is null \g /dev/null
select is(pg_temp.http('GET', '/ojs/v1/jobs/' || :'beating') #>> '{body,job,state}', 'active',
    'WRK-02: past the first lease');
select pg_temp.clock('10 s') \g /dev/null
select ojs.tick() is null \g /dev/null
select is(pg_temp.http('GET', '/ojs/v1/jobs/' || :'beating') #>> '{body,job,state}', 'available',
    'SM-11: not past the last');
select is(pg_temp.http('POST', '/ojs/v1/workers/heartbeat',
    jsonb_build_object('worker_id', 'b', 'active_jobs', array[:'beating'])) #> '{body,lost_jobs}',
    jsonb_build_array(:'beating'::text), 'WRK-03: and the worker is told');
select pg_temp.clock('0') \g /dev/null

-- A job that expires before it is begun.
select pg_temp.pushes(jsonb_build_object('type', 'e', 'args', '[]'::jsonb, 'options',
    jsonb_build_object('queue', 'expires', 'expires_at', clock_timestamp() + interval '1 s'))) \g /dev/null
select pg_temp.got('body.job.id') as expiring \gset
select pg_temp.clock('2 s') \g /dev/null
select is(pg_temp.http('POST', '/ojs/v1/workers/fetch', '{"queues": ["expires"]}') #> '{body,jobs}', '[]',
    'SCH-03: is not handed out');
select ojs.tick() is null \g /dev/null
select pg_temp.keep(pg_temp.http('GET', '/ojs/v1/jobs/' || :'expiring')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('body.job.state'), pg_temp.got('body.job.completed_at') is null), 'discarded t',
    'SCH-03, R-26: but discarded');
select pg_temp.clock('0') \g /dev/null

-- A batch of a hundred, in order; unique jobs within one.
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs/batch',
    jsonb_build_object('jobs',
    (select jsonb_agg(jsonb_build_object('type', 'n', 'args', jsonb_build_array(n), 'options',
    '{"queue": "hundred"}'::jsonb) order by n) from generate_series(1, 100) n)))) \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.count'),
    (select count(distinct j ->> 'id') from answer, jsonb_array_elements(r #> '{body,jobs}') j),
    (select bool_and(j #>> '{args,0}' = n::text) from answer,
    jsonb_array_elements(r #> '{body,jobs}') with ordinality e(j, n))), '201 100 100 t', 'OP-03: a hundred jobs');
select is(pg_temp.http('GET', '/ojs/v1/queues/hundred/stats') #>> '{body,stats,available}', '100',
    'QC-06: are counted');

-- WHAT THE TEXTS ASK FOR BESIDES -----------------------------------------------------------------------------------

select is(pg_temp.http('GET', path) #> '{body,error,details}' @> details, true,
    'HTTP-10: a 404 names what is not there: ' || path) from (values
    ('/ojs/v1/jobs/01912345-6789-7abc-8def-000000000000',
        '{"resource_type": "job", "resource_id": "01912345-6789-7abc-8def-000000000000"}'::jsonb),
    ('/ojs/v1/jobs/01912345-6789-7abc-8def-000000000000/checkpoint',
        '{"resource_type": "job", "resource_id": "01912345-6789-7abc-8def-000000000000"}'),
    ('/ojs/v1/queues/no-queue/stats', '{"resource_type": "queue", "resource_id": "no-queue"}'),
    ('/ojs/v1/dead-letter/01912345-6789-7abc-8def-000000000000',
        '{"resource_type": "dead_letter_job", "resource_id": "01912345-6789-7abc-8def-000000000000"}'),
    ('/ojs/v1/cron/no-entry', '{"resource_type": "cron", "resource_id": "no-entry"}'),
        ('/ojs/v1/admin/workers/nobody', '{"resource_type": "worker", "resource_id": "nobody"}'),
    ('/ojs/v1/rate-limits/no-key', '{"resource_type": "rate_limit", "resource_id": "no-key"}')) c (path, details);
select is(pg_temp.error('GET', path), '400 invalid_request',
    'HTTP-09: never more than the limit, so not a limit of nothing: ' || path)
from unnest('{/ojs/v1/queues?limit=0,/ojs/v1/dead-letter?limit=0,/ojs/v1/cron?limit=0,/ojs/v1/events?limit=0,'
    '/ojs/v1/admin/jobs?per_page=0,/ojs/v1/admin/jobs?page=0}'::text[]) path;
select is(pg_temp.error('POST', '/ojs/v1/jobs/batch', '{"jobs": []}'), '400 invalid_request',
    'HTTP-05: a batch holds at least one job');
select is(pg_temp.http('POST', '/ojs/v1/cron', jsonb_build_object('name', 'says.status', 'cron', '@daily', 'type',
    'a.b', 'args', '[]'::jsonb, 'enabled', enabled)) #>> '{body,cron_job,status}', status,
    'R-53: a new entry says its status: ' || status)
from (values (true, 'active'), (false, 'disabled')) v (enabled, status);
select is(m @> '{"external_references": true, "chunking": false, "max_queue_name_bytes": 128, "max_job_type_bytes": '
               '255, "max_envelope_bytes": 1048576, "max_meta_bytes": 65536}', true,
    'PAY-01: the manifest states the limits') from (select ojs.manifest() -> 'payload_limits') l (m);
set local ojs.max_meta_size = '1000B';
select is(ojs.manifest() #>> '{payload_limits,max_meta_bytes}', '1000', 'PAY-01: one that is no number of kB, too');
set local ojs.max_meta_size to default;
select is(pg_temp.pushes(jsonb_build_object('type', repeat('t', n), 'args', '[]'::jsonb, 'queue', repeat('q', q))),
    want, format('PAY-01: which hold: a type of %s bytes, a queue of %s', n, q))
    from (values (255, 128, '201'), (256, 128, '400 invalid_request'),
    (255, 129, '400 invalid_request')) v (n, q, want);
set local timezone = 'Asia/Kolkata';
select is(at ~ '^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z$', true, 'ENV-14: health tells times in UTC: ' || path)
    from (values ('{body,timestamp}'::text[]), ('{body,hot_set,last_rebuild,rebuilt_at}')) p (path_),
    lateral (select path_::text, pg_temp.http('GET', '/health') #>> path_) h (path, at);

select pg_temp.pushes(jsonb_build_object('type', 'd.a', 'args', args, 'queue', 'by.args', 'retry',
    '{"max_attempts": 1, "on_exhaustion": "dead_letter"}'::jsonb))
    from unnest(array['[{"customer": "c1", "n": 1}]', '["x", {"customer": "c2"}]']::jsonb[]) args \g /dev/null
select pg_temp.http('POST', '/ojs/v1/workers/nack', jsonb_build_object('job_id', j ->> 'id', 'error',
    '{"code": "c", "message": "m"}'::jsonb)) from pg_temp.http('POST', '/ojs/v1/workers/fetch',
    '{"queues": ["by.args"], "count": 2}') r, jsonb_array_elements(r #> '{body,jobs}') j \g /dev/null
select is(pg_temp.http('GET',
    '/ojs/v1/' || face || 'dead-letter?queue=by.args&args=' || args) #>> '{body,pagination,total}', n,
    'DLQ-03: by arguments: ' || face || args) from unnest('{"",admin/}'::text[]) face,
    (values ('%7B%22customer%22:%22c1%22%7D', '1'), ('[%22x%22]', '1'), ('"x"', '1'), ('7', '0'), ('%7B%7D', '2'),
        ('', '2')) c (args, n);
select is(pg_temp.error('GET', '/ojs/v1/dead-letter?args=%7B'), '400 invalid_request',
    'DLQ-03: arguments that are no JSON');

-- A purge by DELETE, all in the query string.
select pg_temp.pushes('{"type": "p.u", "args": [], "queue": "purged", "retry": {"max_attempts": 1, "on_exhaustion": '
                      '"dead_letter"}}') from generate_series(1, 3) \g /dev/null
select pg_temp.http('POST', '/ojs/v1/workers/nack', jsonb_build_object('job_id', j ->> 'id', 'error',
    '{"code": "c", "message": "m"}'::jsonb)) from pg_temp.http('POST', '/ojs/v1/workers/fetch',
    '{"queues": ["purged"], "count": 2}') r, jsonb_array_elements(r #> '{body,jobs}') j \g /dev/null
select is(pg_temp.error('DELETE', path), want, 'ADM-04: ' || path)
    from (values ('/ojs/v1/dead-letter', '400 invalid_request'),
    ('/ojs/v1/dead-letter?queue=purged', '400 invalid_request'),
    ('/ojs/v1/dead-letter?queue=purged&confirm=yes', '400 invalid_request'),
    ('/ojs/v1/dead-letter?colour=red&confirm=true', '400 invalid_request'),
    ('/ojs/v1/admin/queues/purged/jobs?states=available', '400 invalid_request')) c (path, want);
select is(pg_temp.http('DELETE', path) #> '{body,purged_count}', n, 'DLQ-07, HTTP-01: ' || path)
    from (values ('/ojs/v1/dead-letter?queue=purged&older_than=2001-01-01T00:00:00Z&confirm=true', '0'::jsonb),
    ('/ojs/v1/dead-letter?queue=another&confirm=true', '0'),
    ('/ojs/v1/dead-letter?queue=purged&type=p.*&confirm=true', '2'),
    ('/ojs/v1/admin/queues/purged/jobs?states=completed,available&confirm=true', '1')) c (path, n);

select * from finish();
rollback;
