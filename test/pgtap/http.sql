-- http.sql: ojs.http: routes, headers, media types, errors, rights, hostile input: HTTP-01 to HTTP-12, ERR-08, OP-17,
-- OP-20. Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();
\ir helpers.psql

\ir http.psql

-- ROUTES -----------------------------------------------------------------------------------------------------------

select is_empty($$
    select handler from ojs_http.routes()
    where to_regprocedure(format('ojs_http.%I(ojs_http.request)', handler)) is null
$$, 'HTTP-01: each route has its handler');
select is_empty($$ select method, pattern from ojs_http.routes() group by 1, 2 having count(*) > 1 $$,
    'HTTP-01: no route stands there twice');
select is_empty($$
    select p.proname from pg_proc p
    where pronamespace = 'ojs_http'::regnamespace and p.prorettype = 'ojs_http.response'::regtype
        and proargtypes[0] = 'ojs_http.request'::regtype
    and pronargs = 1 and proname not in (select handler from ojs_http.routes())
$$, 'HTTP-01: each handler has a route');
select is_empty($$ select pattern from ojs_http.routes() where pattern ~ ':.*:'
    and pattern !~ '/schemas/:type/:version$' $$,
    'HTTP-01: no path has two names but that of a version of a schema');
select is((select handler || names::text from ojs_http.find_route('GET', '/ojs/v1/workers/fetch/health')),
    'worker_health{fetch}', 'HTTP-01: a name may be what elsewhere is a path');
select is((select handler || names::text from ojs_http.find_route('GET', '/ojs/v1/queues/:')), 'queue{:}',
    'HTTP-01: or a colon');
select is(pg_temp.error('GET', path), '404 not_found', 'HTTP-10: no such path: ' || path)
from unnest(array['/', '', '/ojs', '/ojs/v1', '/ojs/v1/', '/ojs/v2/jobs', '/ojs/v1/job', '/ojs/v1/jobs/',
    '/ojs/v1/jobs/a/b', '//ojs/v1/jobs', '/ojs/v1/jobs//ack',
    'ojs/v1/jobs', '/ojs/v1/jobs/../jobs', '/OJS/v1/jobs', '/ojs/v1/jobs%2F', '?/ojs/v1/jobs', '/ojs/:',
        '/ojs/v1/jobs/:/ack/:']) path;
select is(pg_temp.error('PUT', '/ojs/v1/jobs'), '405 x_method_not_allowed', 'HTTP-10: another method');
select is(pg_temp.http('BREW', '/ojs/v1/jobs/1') -> 'headers' ->> 'Allow', 'DELETE, GET, HEAD, OPTIONS, PATCH',
    'HTTP-10: 405 says what is allowed');
select is((select concat_ws(' ', status, headers ->> 'Allow', body) from ojs.http('OPTIONS', '/ojs/v1/jobs')),
    '204 OPTIONS, POST ', 'HTTP-10: OPTIONS says it, too');
select is(pg_temp.error('OPTIONS', '/nothing'), '404 not_found', 'HTTP-10: but not of a path that is none');
select is(pg_temp.error('BREW', '/health'), '405 x_method_not_allowed', 'HTTP-10: a method that is none');
select is(pg_temp.error(null, null), '404 not_found', 'HTTP-10: nothing at all');
select is(pg_temp.error('get', '/ojs/manifest') || pg_temp.error('Post', '/ojs/v1/jobs', '{"type": "a", "args": []}'),
    '200201', 'HTTP-10: the case of the method does not matter');
select is((select status || body from ojs.http('HEAD', '/ojs/manifest')), '200',
    'HTTP-10: HEAD is GET without the body');

-- HEADERS ----------------------------------------------------------------------------------------------------------

select pg_temp.keep(pg_temp.http('GET', '/ojs/manifest')) \g /dev/null
select is(pg_temp.got('headers.OJS-Version'), '1.0', 'HTTP-03: OJS-Version');
select is(pg_temp.got('headers.Content-Type'), 'application/openjobspec+json', 'HTTP-03: Content-Type');
select matches(pg_temp.got('headers.X-Request-Id'),
    '^req_[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$', 'HTTP-03: a request id is made');
select isnt(pg_temp.http('GET', '/health') -> 'headers' -> 'X-Request-Id',
    pg_temp.http('GET', '/health') -> 'headers' -> 'X-Request-Id', 'HTTP-03: a new one each time');
select is(pg_temp.http('GET', '/health', null, jsonb_build_object(name, 'mine-1')) -> 'headers' ->> 'X-Request-Id',
    'mine-1', 'HTTP-03: the client''s is echoed: ' || name)
from unnest(array['X-Request-Id', 'x-request-id', 'X-REQUEST-ID']) name;
select pg_temp.keep(pg_temp.http('GET', '/ojs/v1/jobs/x', null, '{"X-Request-Id": ["two", "values"]}')) \g /dev/null
select is(pg_temp.got('headers.X-Request-Id') || pg_temp.got('body.error.request_id'), 'twotwo',
    'HTTP-03: errors repeat it, of several the first');
select matches(pg_temp.http('GET', '/health', null, jsonb_build_object('X-Request-Id',
    id)) -> 'headers' ->> 'X-Request-Id', '^req_', 'HTTP-03: one that cannot stand in a header is replaced')
from unnest(array[e'a\r\nSet-Cookie: x', '', 'ä', repeat('a', 129), 'a b']) id;
select is(pg_temp.error('POST', '/ojs/v1/jobs', '{"type": "a", "args": []}', jsonb_build_object('Content-Type', type)),
    '201', 'HTTP-02: accepted: ' || type)
from unnest(array['application/json', 'application/openjobspec+json', 'application/JSON; charset=utf-8',
    ' application/openjobspec+json ;q=1']) type;
select is(pg_temp.error('POST', '/ojs/v1/jobs', '{"type": "a", "args": []}', '{}'), '201',
    'HTTP-02: accepted: no media type at all');
select is(pg_temp.error('POST', '/ojs/v1/jobs', '{"type": "a", "args": []}', jsonb_build_object('Content-Type', type)),
    '400 invalid_request', 'HTTP-02: refused: ' || type)
from unnest(array['text/plain', 'application/x-www-form-urlencoded', 'application/jsonx', '']) type;
select is(pg_temp.error('GET', '/ojs/manifest', null, '{"Accept": "text/html"}'), '200',
    'HTTP-02: Accept does not matter');
select is(pg_temp.error('GET', '/health', null, jsonb_build_object('OJS-Version', version)), '200',
    'HTTP-04: served: ' || version) from unnest(array['1', '1.0', '1.0.0', '1.0.0-rc.1']) version;
select is(pg_temp.error('GET', '/health', null, jsonb_build_object('ojs-version', version)), '422 unsupported',
    'HTTP-04: refused: ' || version) from unnest(array['2.0', '0.9', '1.1', 'one', '10']) version;
select is(pg_temp.error('GET', '/ojs/manifest', null, '{"OJS-Version": "2.0"}'), '200',
    'HTTP-04: the manifest tells any client');
select is(pg_temp.error('POST', '/ojs/v1/jobs', '{"type": "a", "args": []}', '{"X-OJS-Tenant": "acme"}'),
    '422 unsupported', 'a tenant, where there are none, is refused: nobody is to think that his jobs are kept apart');
select is(pg_temp.error('POST', '/ojs/v1/jobs', '{"type": "a", "args": []}',
    jsonb_build_object('OJS-Requires-Extension', uri)), want, 'MAN-01: an extension that a request needs: ' || uri)
from (values ('urn:ojs:ext:durable-execution', '201'), ('urn:ojs:ext:experimental:progress', '201'),
    ('urn:ojs:ext:progress', '201'), ('urn:ojs:ext:experimental:durable-execution', '422 unsupported'),
    ('urn:ojs:ext:multi-tenancy', '422 unsupported'), ('urn:ojs:ext:encryption', '422 unsupported'),
    ('urn:ojs:ext:durable-execution, urn:ojs:ext:experimental:progress', '201'),
    ('urn:ojs:ext:durable-execution,urn:ojs:ext:encryption', '422 unsupported'), ('', '201')) e (uri, want);
select is(ojs.manifest() - '{capabilities,payload_limits,extensions,unique_job_mechanism}'::text[],
    jsonb_build_object('specversion', '1.0', 'ojs_version', '1.0', 'implementation',
    jsonb_build_object('name', 'ojs', 'version', ojs.version(), 'language', 'c++'),
    'conformance_level', 4, 'conformance_tier', 'runtime', 'protocols', '["http"]'::jsonb, 'backend', 'postgres',
        'unique_job_strength', 'strong', 'endpoints', ojs.manifest() -> 'endpoints',
    'delivery', '{"guarantees": ["at-least-once", "at-most-once"], "default": "at-least-once", "events": '
                '"at-least-once"}'::jsonb || jsonb_build_object('ordering', ojs.manifest() #> '{delivery,ordering}')),
        'MAN-01: the manifest');
select is((select string_agg(e #>> '{}', ' ') from jsonb_path_query(ojs.manifest(), '$.extensions.*[*].uri') e
    where e #>> '{}' like '%:progress'), 'urn:ojs:ext:progress', 'the manifest names the URI of the document (R-102)');
set local ojs.tenancy = optional;
select is(pg_temp.error('POST', '/ojs/v1/jobs', '{"type": "a", "args": []}',
    '{"OJS-Requires-Extension": "urn:ojs:ext:multi-tenancy", "X-OJS-Tenant": "acme"}') || (select count(*)
    from jsonb_path_query(ojs.manifest(), '$.extensions.official[*] ? (@.name == "multi-tenancy")')), '2011',
    'multi-tenancy is claimed while it is on in this database (R-96)');
set local ojs.tenancy = off;
select is((select count(*) from jsonb_path_query(ojs.manifest(),
    '$.extensions.official[*] ? (@.name == "multi-tenancy")')), 0::bigint, 'and only then (R-96)');
select is_empty($$ select e from ojs.manifest() m, jsonb_path_query(m, '$.extensions.*[*]') e
    where e is distinct from m #> '{extensions,payload_limits}'
        and (not e ?& '{name,uri,version}' or e ->> 'uri' not like '%:' || (e ->> 'name')) $$,
    'MAN-01: extensions have a name, a URI and a version');
select is((select status from ojs.http('GET', '/health', headers)), 200,
    'HTTP-10: headers that are none: ' || coalesce(headers::text, 'null'))
from unnest(array[null, 'null', '[]', '"x"', '1', '{"a": {"b": 1}, "c": null, "d": []}']::jsonb[]) headers;

-- A LIFE -----------------------------------------------------------------------------------------------------------

select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs',
    '{"type": "http.job", "args": [1, {"a": null}], "meta": {"k": "v"}, "options": {"queue": "http", "priority": 3}}'))
    \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.job.state'), pg_temp.got('body.job.queue'),
    pg_temp.got('body.job.args')), '201 available http [1, {"a": null}]', 'HTTP-05: pushed');
select pg_temp.got('body.job.id') as id \gset
select is(pg_temp.got('headers.Location'), '/ojs/v1/jobs/' || :'id', 'HTTP-05: Location');
select is(pg_temp.http('GET', '/ojs/v1/jobs/' || :'id') -> 'body' -> 'job', ojs.info(:'id'),
    'HTTP-01: a job is its envelope');
select is(pg_temp.http('GET', '/ojs/v1/jobs/' || upper(:'id')) -> 'status', '200', 'HTTP-01: in any case of the id');
select ok((pg_temp.http('GET', '/ojs/v1/admin/jobs/' || :'id') -> 'body') @> ojs.info(:'id'),
    'HTTP-12: without a wrapper for administrators');
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/workers/fetch',
    '{"queues": ["nowhere", "http"], "worker_id": "w1", "visibility_timeout_ms": 60000}')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.jobs.0.id') = :'id',
    pg_temp.got('body.jobs.0.state'), pg_temp.got('body.jobs.0.attempt')), '200 t active 1', 'HTTP-06: fetched');
select is(pg_temp.got('body.jobs.0.lease_id'), pg_temp.token(:'id'), 'HTTP-06: with the id of its lease');
select is((pg_temp.got('body.jobs.0.lease_expires_at')::timestamptz
    - pg_temp.got('body.jobs.0.started_at')::timestamptz)::text, '00:01:00', 'HTTP-06: and its length');
select is(pg_temp.http('POST', '/ojs/v1/workers/fetch', '{"queues": ["http"]}') -> 'body', '{"jobs": []}',
    'HTTP-06: nothing left');
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/workers/heartbeat',
    jsonb_build_object('worker_id', 'w1', 'active_jobs',
    array[:'id', 'no id', 'ffffffff-0000-7000-8000-000000000000']))) \g /dev/null
select is(concat_ws(' ', pg_temp.got('body.state'), pg_temp.got('body.acknowledged'),
    pg_temp.got('body.jobs_extended') = to_jsonb(array[:'id'])::text), 'running true t', 'HTTP-01: a heartbeat');
select ok(pg_temp.got('body.server_time')::timestamptz - clock_timestamp() between '-1 min' and '1 min',
    'HTTP-01: with the server''s time');
select is(pg_temp.error('POST', '/ojs/v1/workers/beat', '{"worker_id": "w2", "active_jobs": 2, "state": "drain"}'),
    '200', 'HTTP-01: a number of jobs will do');
select is(pg_temp.error('POST', '/ojs/v1/workers/ack', jsonb_build_object('job_id', :'id', 'worker_id', 'w2')),
    '409 conflict', 'HTTP-06: another worker cannot finish it');
select is(pg_temp.error('POST', '/ojs/v1/workers/ack',
    jsonb_build_object('job_id', :'id', 'lease_id', 'lease_0000000000000000')), '409 conflict',
    'HTTP-06: nor another lease');
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/workers/ack',
    jsonb_build_object('job_id', :'id', 'worker_id', 'w1', 'result', '{"n": [1, null]}'::jsonb))) \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.acknowledged'), pg_temp.got('body.id') = :'id',
    pg_temp.got('body.job_id') = :'id', pg_temp.got('body.state'),
    pg_temp.got('body.completed_at') is not null, pg_temp.got('body.job.result')),
        '200 true t t completed t {"n": [1, null]}', 'HTTP-06: finished');
select is(pg_temp.error('POST', '/ojs/v1/workers/ack', jsonb_build_object('job_id', :'id')), '409 conflict',
    'HTTP-06: once');
select pg_temp.held('http') as id \gset
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/workers/nack',
    jsonb_build_object('job_id', :'id', 'error', '{"code": "handler_error", "message": "no"}'::jsonb))) \g /dev/null
select is(concat_ws(' ', pg_temp.got('body.id') = :'id', pg_temp.got('body.state'), pg_temp.got('body.attempt'),
    pg_temp.got('body.max_attempts'), pg_temp.got('body.next_attempt_at') is not null,
    pg_temp.got('body.retry_delay_ms')::int > 0, pg_temp.got('body.discarded_at') is null), 't retryable 1 3 t t t',
        'OP-17, HTTP-06: failed, to be tried again');
select pg_temp.held('http', 'w', '{"retry": {"max_attempts": 1, "on_exhaustion": "dead_letter"}}') as id \gset
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs/' || :'id' || '/nack',
    '{"error": {"type": "t", "message": "no"}}')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('body.state'), pg_temp.got('body.discarded_at') is not null,
    pg_temp.got('body.completed_at') is not null, pg_temp.got('body.next_attempt_at') is null), 'discarded t t t',
    'OP-17, HTTP-06: failed for good');
select pg_temp.held('http') as released \gset
select is(pg_temp.http('POST', '/ojs/v1/workers/nack',
    jsonb_build_object('job_id', :'released', 'requeue', true)) -> 'body' ->> 'state', 'available',
    'R-19: given back without an error');
select is(pg_temp.error('POST', '/ojs/v1/workers/nack', jsonb_build_object('job_id', :'released')),
    '400 invalid_request', 'HTTP-06: a failure needs an error');
select pg_temp.keep(pg_temp.http('DELETE', '/ojs/v1/jobs/' || :'released')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.job.id') = :'released',
    pg_temp.got('body.job.state'), pg_temp.got('body.job.previous_state'),
    pg_temp.got('body.job.cancelled_at') is not null),
    '200 t cancelled available t', 'OP-20, HTTP-07: cancelled');
select is(pg_temp.error('POST', '/ojs/v1/jobs/' || :'released' || '/cancel', '{}'), '409 conflict', 'HTTP-07: once');
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs', '{"type": "a", "args": [], "pending": true}')) \g /dev/null
select is(pg_temp.http('POST',
    '/ojs/v1/jobs/' || pg_temp.got('body.job.id') || '/activate') -> 'body' -> 'job' ->> 'state', 'available',
    'HTTP-01: activated');
select is(pg_temp.error('POST', '/ojs/v1/jobs/' || pg_temp.got('body.job.id') || '/activate'), '409 conflict',
    'HTTP-01: once');

-- Dead letters: :id is one.
select pg_temp.keep(pg_temp.http('GET', '/ojs/v1/dead-letter?queue=http')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('body.jobs.0.id') = :'id', pg_temp.got('body.jobs.1'),
    pg_temp.got('body.jobs.0.errors.0.type'), pg_temp.got('body.pagination')::jsonb - 'limit'),
    't t {"total": 1, "offset": 0, "has_more": false}', 'HTTP-12: dead letters');
select is(pg_temp.error('GET', '/ojs/v1/dead-letter/' || :'released'), '404 not_found',
    'HTTP-12: a cancelled job is none');
select is(pg_temp.error('DELETE', '/ojs/v1/dead-letter/' || :'released'), '404 not_found',
    'HTTP-07: and is not removed as one');
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/dead-letter/' || :'id' || '/retry')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.job.state'), pg_temp.got('body.job.attempt'),
    pg_temp.got('body.job.re_enqueued_at') is not null), '200 available 0 t', 'HTTP-01: a dead letter is tried again');
create temp table dead as select pg_temp.held('dead', 'w',
    '{"retry": {"max_attempts": 1, "on_exhaustion": "dead_letter"}}') as id from generate_series(1, 5);
select ojs.fail(id, '{"type": "t", "message": "m"}') from dead \g /dev/null
select pg_temp.keep(pg_temp.http('GET', '/ojs/v1/dead-letter?queue=dead&limit=2')) \g /dev/null
create temp table pages as select 1 as n, r from answer;
insert into pages select 2,
    pg_temp.http('GET', '/ojs/v1/dead-letter?queue=dead&limit=2&cursor=' || (r #>> '{body,pagination,next_cursor}'))
    from pages where n = 1;
insert into pages select 3,
    pg_temp.http('GET', '/ojs/v1/dead-letter?queue=dead&limit=2&cursor=' || (r #>> '{body,pagination,next_cursor}'))
    from pages where n = 2;
select is((select string_agg(concat(jsonb_array_length(r #> '{body,jobs}'), r #>> '{body,pagination,has_more}',
    r #>> '{body,pagination,total}', r #> '{body,pagination}' ? 'next_cursor'), ' ' order by n) from pages),
    '2true5t 2true5t 1false5f', 'HTTP-09: pages by cursor');
select is((select count(distinct j ->> 'id')::int from pages, jsonb_array_elements(r #> '{body,jobs}') j), 5,
    'HTTP-09: which together hold all');
select is(jsonb_array_length(pg_temp.http('GET',
    '/ojs/v1/dead-letter?queue=dead&limit=1000&offset=4') #> '{body,jobs}'), 1,
    'HTTP-09: an offset is tolerated, and a limit clamped');
select is(pg_temp.error('GET', '/ojs/v1/dead-letter?' || q), '400 invalid_request', 'HTTP-09: refused: ' || q)
    from unnest(array['limit=x', 'limit=-1', 'limit=1&limit=2', 'cursor=zz', 'cursor=ff', 'offset=1.5']) q;
select is(pg_temp.http('DELETE', '/ojs/v1/dead-letter/' || id) -> 'body',
    jsonb_build_object('deleted', true, 'job_id', id), 'HTTP-07: a dead letter is removed') from dead limit 1;
select is(pg_temp.error('GET', '/ojs/v1/jobs/' || id), '404 not_found', 'DLQ-06: for good') from dead limit 1;
select is((select status || body from ojs.http('DELETE', '/ojs/v1/admin/dead-letter/' || id)), '204',
    'HTTP-07: administrators get no body') from (select id from dead offset 1 limit 1) d;

-- Batches.
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs/batch',
    '{"jobs": [{"type": "a", "args": [1], "queue": "batch"}, {"type": "b", "args": [2], "queue": "batch"}]}'))
    \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.count'), pg_temp.got('body.jobs.0.type'),
    pg_temp.got('body.jobs.1.args')), '201 2 a [2]', 'HTTP-05: a batch, in order');
select is(pg_temp.error('POST', '/ojs/v1/jobs/batch',
    '{"jobs": [{"type": "a", "args": [], "queue": "batch"}, {"args": []}]}'), '400 invalid_request',
    'HTTP-05: with a bad job it is refused');
select is(pg_temp.http('POST', '/ojs/v1/jobs/batch',
    '{"jobs": [{"type": "a", "args": []}, {"type": "a", "args": {}}]}') #>> '{body,error,details,index}', '1',
    'OP-04: and the job is named');
select is((pg_temp.http('GET', '/ojs/v1/queues/batch/stats') #> '{body,queue,available}'), '2',
    'HTTP-05: and nothing of it is there');
select is(pg_temp.error('POST', '/ojs/v1/jobs/batch', body), '400 invalid_request',
    'HTTP-05: no batch: ' || body::text)
    from unnest(array['{}', '{"jobs": 1}', '{"jobs": null}', '{"jobs": [1]}']::jsonb[]) body;

-- Queues.
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/queues/paused/pause', '{}')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('body.queue.name'), pg_temp.got('body.queue.paused'), pg_temp.got('body.status'),
    pg_temp.got('body.paused_at') is not null), 'paused true paused t', 'HTTP-07: a queue is paused');
select is(pg_temp.http('POST', '/ojs/v1/admin/queues/paused/resume') -> 'body' -> 'paused', 'false',
    'HTTP-07: and resumed, without a wrapper for administrators');
select pg_temp.keep(pg_temp.http('GET', '/ojs/v1/queues?limit=2')) \g /dev/null
select is(concat_ws(' ', jsonb_array_length(pg_temp.got('body.queues')::jsonb),
    pg_temp.got('body.pagination.has_more'), pg_temp.got('body.queues.0.status')), '2 true active',
    'HTTP-09: queues by pages');
select is(pg_temp.http('GET', '/ojs/v1/queues?limit=200') #> '{body,pagination,total}',
    to_jsonb((select count(*) from ojs.queues)), 'HTTP-09: all of them');
select is(pg_temp.http('GET', '/ojs/v1/queues/batch') #>> '{body,queue,name}', 'batch', 'HTTP-12: a queue');
select pg_temp.keep(pg_temp.http('GET', '/ojs/v1/queues/batch/stats')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('body.queue.name'), pg_temp.got('body.queue.active'),
    pg_temp.got('body.stats.queue'), pg_temp.got('body.stats.depth'), pg_temp.got('body.computed_at') is not null),
    'batch 0 batch 2 t', 'R-60: its statistics');
select is(pg_temp.error('GET', '/ojs/v1/queues/' || name), '404 not_found', 'HTTP-10: no such queue: ' || name)
    from unnest(array['nowhere', 'No%20Name', '%C3%A4', '_default']) name;
select is(pg_temp.http('PUT', '/ojs/v1/queues/made/config', '{"lease_ms": 5000}') #>> '{body,config,lease_ms}', '5000',
    'HTTP-01: a queue is configured');
select is(pg_temp.http('GET', '/ojs/v1/admin/queues/made/config') #>> '{body,config,lease_ms}', '5000',
    'HTTP-01: and says so');
select is(pg_temp.error('PUT', '/ojs/v1/admin/queues/made/config', '{"unknown": 1}'), '400 invalid_request',
    'HTTP-01: an unknown setting is refused');
select is(pg_temp.error('POST', '/ojs/v1/queues/batch/purge', '{"states": ["available"]}'), '400 invalid_request',
    'ADM-04: a purge must be confirmed');
select is(pg_temp.http('POST', '/ojs/v1/queues/batch/purge',
    '{"confirm": true, "states": ["available"]}') -> 'body' -> 'purged_count', '2', 'HTTP-01: and is done');
select is(pg_temp.error('DELETE', '/ojs/v1/queues/http'), '409 conflict', 'QC-04: a queue with jobs is not dropped');
select is(pg_temp.http('DELETE', '/ojs/v1/queues/http?strategy=discard') -> 'body' -> 'deleted', 'true',
    'QC-04: unless it is said what becomes of them');

-- The topics of the Queues document.
select is(pg_temp.http('PUT', '/v0/topics/transcode',
    '{"type": "queue", "lease_ms": 1000, "max_deliveries": 5}') #>> '{body,config,max_deliveries}', '5',
    'Q-01: a topic is made');
select is(pg_temp.error('PUT', '/v0/topics/transcode', '{"type": "log"}'), '409 topic_exists_incompatible',
    'Q-02: its type stays');
select id from ojs.push('clip', '[7]', queue => 'transcode') \g /dev/null
select pg_temp.keep(pg_temp.http('POST', '/v0/topics/transcode/claim', '{"node": "n1", "max": 4}')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.count'), pg_temp.got('body.ready'),
    pg_temp.got('body.claimed.0.data.args')), '200 1 0 [7]', 'Q-20: claimed by its face');
select is(pg_temp.http('POST', '/v0/topics/transcode/extend',
    jsonb_build_object('node', 'n1', 'seqs', array[pg_temp.got('body.claimed.0.$seq')::bigint], 'lease_ms',
    500)) -> 'body' -> 'extended', '1', 'Q-20: extended');
select is(pg_temp.http('POST', '/v0/topics/transcode/nack',
    jsonb_build_object('node', 'n2', 'seqs', array[pg_temp.got('body.claimed.0.$seq')::bigint])) -> 'body' -> 'nacked',
    '0', 'Q-20: not given back by another');
select is(pg_temp.http('POST', '/v0/topics/transcode/ack',
    jsonb_build_object('node', 'n1', 'seqs', array[pg_temp.got('body.claimed.0.$seq')::bigint])) -> 'body' -> 'acked',
    '1', 'Q-20: finished');
select is(pg_temp.http('GET', '/v0/topics/transcode') #>> '{body,type}', 'queue', 'Q-20: looked at');
select is(pg_temp.error('POST', '/v0/topics/nowhere/claim', '{"node": "n"}'), '404 topic_not_found',
    'R-30: never made by a claim');
select is(pg_temp.error('POST', '/v0/topics/transcode/claim', '{}'), '400 invalid_request',
    'Q-20: a claim names its node');
select is(pg_temp.error('POST', '/v0/topics/transcode/claim'), '400 invalid_request', 'Q-20: and has a body');
select is(pg_temp.error('POST', '/v0/topics/transcode/ack',
    jsonb_build_object('node', 'n', 'seqs', (select jsonb_agg(n) from generate_series(1, 1001) n))),
    '400 batch_too_large', 'Q-20: at most 1000');
select ojs.create_queue('entries', '{"type": "log"}') \g /dev/null
select is(pg_temp.error('POST', '/v0/topics/entries/claim', '{"node": "n"}') || ', ' || pg_temp.error('POST',
    '/ojs/v1/workers/fetch', '{"queues": ["entries"]}'), '409 not_a_queue, 409 not_a_queue',
    'Q-03: a log hands out nothing');

-- Cron entries and events.
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/cron',
    '{"name": "tick-tock", "expression": "*/5 * * * *", "timezone": "Europe/Berlin", "job_template": {"type": '
    '"cron.job", "args": [1], "options": {"queue": "cron"}}}')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.cron.name'), pg_temp.got('body.cron.expression'),
    pg_temp.got('body.cron.timezone'), pg_temp.got('body.cron.enabled'),
    pg_temp.got('body.cron_job.next_run_at') is not null), '201 tick-tock */5 * * * * Europe/Berlin true t',
        'R-53: a cron entry is registered');
select is(pg_temp.error('POST', '/ojs/v1/cron',
    '{"name": "tick-tock", "cron": "0 9 * * *", "type": "cron.job", "args": []}'), '200',
    'R-53: again, in the other spelling');
select is(pg_temp.http('PATCH', '/ojs/v1/cron/tick-tock', '{"enabled": false}') #>> '{body,cron,enabled}', 'false',
    'CRN-01: switched off');
select pg_temp.keep(pg_temp.http('GET', '/ojs/v1/cron')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('body.crons.0.name'), pg_temp.got('body.cron_jobs.0.expression'),
    pg_temp.got('body.crons.0.enabled'), pg_temp.got('body.pagination.total')), 'tick-tock 0 9 * * * false 1',
    'CRN-01, HTTP-12: listed');
select is(pg_temp.http('GET', '/ojs/v1/cron?enabled=true') #> '{body,crons}', '[]', 'CRN-01: those that run');
select is(pg_temp.http('GET', '/ojs/v1/cron/tick-tock') #>> '{body,cron,type}', 'cron.job', 'CRN-01: looked at');
select is(pg_temp.error('POST', '/ojs/v1/cron', body), '400 invalid_request', 'CRN-04: refused: ' || body::text)
    from unnest(array['{}', '{"name": "x"}', '{"name": "x", "cron": "not a valid cron", "type": "a"}',
    '{"name": "x", "cron": "* * * * *"}', '{"name": "X Y", "cron": "* * * * *", "type": "a"}',
        '{"name": "x", "cron": "* * * * *", "job_template": 1}']::jsonb[]) body;
select is(pg_temp.http('DELETE', '/ojs/v1/cron/tick-tock') #>> '{body,cron,name}', 'tick-tock', 'CRN-01: removed');
select is(pg_temp.error('DELETE', '/ojs/v1/cron/tick-tock') || ' ' || pg_temp.error('GET', '/ojs/v1/cron/tick-tock'),
    '404 not_found 404 not_found', 'CRN-01: once');
select is(pg_temp.http('GET', '/ojs/v1/events?limit=1') -> 'status', '200', 'HTTP-01: events');
select is(pg_temp.error('GET', '/ojs/v1/events?after=x'), '400 invalid_request', 'HTTP-01: a cursor that is none');

-- TIME -------------------------------------------------------------------------------------------------------------

select pg_temp.pushed('later', '{"delay_until": "+PT1H"}') as id \gset
select pg_temp.held('later', 'w', '{"visibility_timeout_ms": 1000}') as held \gset
select is(pg_temp.http('GET', '/ojs/v1/jobs/' || :'id') #>> '{body,job,state}', 'scheduled', 'OP-22: a scheduled job');
select pg_temp.clock('2 hours') \g /dev/null
select is(pg_temp.http('GET', '/ojs/v1/jobs/' || :'id') #>> '{body,job,state}', 'available',
    'OP-22: is available in its time');
select is((select ojs_store.worker_running()) or pg_temp.http('GET',
    '/ojs/v1/jobs/' || :'held') #>> '{body,job,state}' = 'available', true,
    'OP-22: so is one whose lease has run out, where no worker sees to it');
select pg_temp.clock('0') \g /dev/null

-- ERRORS -----------------------------------------------------------------------------------------------------------

select is(pg_temp.raw('POST', '/ojs/v1/jobs', body), '400 invalid_payload',
    'R-70: malformed: ' || coalesce(left(body, 20), 'null'))
from unnest(array['{', 'not json', '{"type": "a" "args": []}', '{"type":"\u0000"}', e'\x01', '{"a": 1e999999}', '[]',
    '"x"', '1', '', '   ', null, repeat('[', 100000)]) body;
select is(pg_temp.error('POST', '/ojs/v1/jobs', '{"args": []}'), '400 invalid_request', 'R-70: type is missing');
select is(pg_temp.error('POST', '/ojs/v1/jobs', jsonb_build_object('type', 'a', 'args', args)), '400 invalid_request',
    'R-01: no args: ' || args::text) from unnest(array['{}', '"x"', '1', 'true', 'null']::jsonb[]) args;
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs',
    '{"type": "a", "args": [], "retry": {"backoff_coefficient": 0.5}}')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.error.type'),
    strpos(pg_temp.got('body.error.message'), 'backoff_coefficient') > 0), '422 validation_error t',
    'R-43: a retry policy');
select pg_temp.keep(pg_temp.http('GET', '/ojs/v1/jobs/019539a4-0000-7000-8000-000000000000')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.error.code'), pg_temp.got('body.error.retryable')),
    '404 not_found false', 'HTTP-10: no such job');
select is((select count(*)::int from answer, jsonb_each(r #> '{body,error}')
    where key in ('hint', 'docs_url', 'doc_url', 'message', 'request_id', 'details') and value not in ('null', '""')),
    6, 'R-68: errors tell what is to be known');
select is(pg_temp.error('GET', '/ojs/v1/jobs/' || repeat('x', 10000)), '404 not_found', 'HTTP-10: an id of any length');
select cmp_ok(length(pg_temp.http('GET', '/ojs/v1/jobs/' || repeat('x', 10000))::text), '<', 2000,
    'HTTP-10: and the answer stays short');
select is(pg_temp.error('POST', '/ojs/v1/jobs', jsonb_build_object('type', 'a', 'args', '[]'::jsonb, 'id',
    '019539a4-aaaa-7000-8000-111111111111')) || pg_temp.error('POST', '/ojs/v1/jobs',
    jsonb_build_object('type', 'a', 'args', '[1]'::jsonb, 'id', '019539a4-aaaa-7000-8000-111111111111')),
    '201409 duplicate', 'R-71: an id that is taken');
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs',
    '{"type": "u", "args": [], "unique": {"keys": ["type"], "on_conflict": "ignore"}}')) \g /dev/null
select is(pg_temp.got('status') || (pg_temp.http('POST', '/ojs/v1/jobs',
    '{"type": "u", "args": [], "unique": {"keys": ["type"], "on_conflict": "ignore"}}') ->> 'status'), '201200',
    'HTTP-05: a duplicate that is ignored');
select is(pg_temp.error('POST', '/ojs/v1/jobs', jsonb_build_object('type', 'a', 'args',
    jsonb_build_array(repeat('x', 1100000)))), '413 payload_too_large', 'HTTP-01: too large');
select is(pg_temp.error('POST', '/ojs/v1/jobs', jsonb_build_object('type', 'a', 'args', '[]'::jsonb, 'meta',
    jsonb_build_object('x', repeat('x', 70000)))), '413 metadata_too_large', 'HTTP-01: too much meta');
select ojs.drain_queue('draining') \g /dev/null
select is(pg_temp.error('POST', '/ojs/v1/jobs', '{"type": "a", "args": [], "queue": "draining"}'), '422 queue_paused',
    'R-32: a queue that drains');
select is(pg_temp.error('POST', '/ojs/v1/workers/' || path, body), '400 invalid_request',
    format('HTTP-10: refused: %s %s', path, body)) from (values
    ('fetch', '{"queues": "a"}'), ('fetch', '{}'), ('fetch', '{"queues": [1]}'),
        ('fetch', '{"queues": ["a"], "count": "1"}'), ('fetch', '{"queues": ["a"], "count": -1}'), ('fetch',
            '{"queues": ["a"], "count": 1.5}'),
        ('fetch', '{"queues": ["a"], "worker_id": 1}'),
    ('fetch', '{"queues": ["a"], "visibility_timeout_ms": "x"}'), ('fetch', '{"queues": []}'), ('ack', '{}'),
        ('ack', '{"job_id": 1}'), ('ack', '{"job_id": "x"}'), ('nack', '{"job_id": null}'),
    ('nack', '{"job_id": "019539a4-0000-7000-8000-000000000000"}'),
        ('nack', '{"job_id": "019539a4-0000-7000-8000-000000000000", "error": null, "requeue": 1}'),
    ('heartbeat', '{}'), ('heartbeat', '{"worker_id": ""}'), ('heartbeat', '{"worker_id": "w", "active_jobs": {}}'),
        ('heartbeat', '{"worker_id": "w", "state": "asleep"}')) bad (path, body_text),
        lateral (select body_text::jsonb) b (body);
select is(pg_temp.http('POST', '/ojs/v1/workflows', body) #> '{body,error}' @> jsonb_build_object('code',
    'invalid_workflow', 'details', jsonb_build_object('validation_errors', jsonb_build_array(
    jsonb_build_object('path', path, 'message', path || ': ' || message)))), true,
        'WF-01: a refused job is named by its path: ' || path)
from (values
    ('{"type": "chain", "steps": [{"type": "a", "args": []}, {"type": "Bad", "args": []}]}'::jsonb, '$.steps[1].type',
        'type is not a job type: "Bad"'),
    ('{"type": "group", "jobs": [{"type": "a"}]}', '$.jobs[0].args', 'args is missing'),
    ('{"type": "chain", "jobs": [{"type": "a"}]}', '$.steps', 'a chain has steps, not jobs')) w (body, path, message);
select is((select status from ojs.http('GET', path)), 400, 'HTTP-10: a path that cannot be decoded: ' || path)
from unnest(array['/ojs/v1/jobs/%', '/ojs/v1/jobs/%zz', '/ojs/v1/jobs/%FF', '/ojs/v1/queues/%00',
    '/ojs/v1/queues?limit=%F', '/ojs/v1/queues?%C3=1']) path;
select is(ojs_http.decoded('a%20b%2Fc%C3%A4%E2%82%AC+'), 'a b/cä€+', 'HTTP-01: percent notation');
select is(ojs_http.read_query('a=1&b=x%26y&a=2&c&=d&d=+e%2B&&f=='),
    '{"a": "1,2", "b": "x&y", "c": "", "": "d", "d": " e+", "f": "="}', 'HTTP-01: a query string');

-- What ojs did not foresee gives nothing away, and changes nothing.
savepoint broken;
alter function ojs.push_many(jsonb, text, interval, text, text) rename to pushed_aside;
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs/batch',
    '{"jobs": [{"type": "a", "args": ["secret"]}]}')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.error.code'), pg_temp.got('body.error.retryable')),
    '500 backend_error true', 'ERR-08: an error inside');
select unalike((select r::text from answer), '%push_many%', 'ERR-08: without SQL') union all
    select unalike((select r::text from answer), '%secret%', 'ERR-08: and without args');
rollback to broken;
-- For one statement: psql sets a savepoint around each here, and its end brings writing back.
create function pg_temp.reading(method text, path text, body jsonb default null) returns jsonb language plpgsql as $$
begin
    perform set_config('transaction_read_only', 'on', true);
    return pg_temp.http(method, path, body);
end $$;
select is(concat_ws(' ', r -> 'status', r #>> '{body,error,code}', r #>> '{body,error,retryable}',
    r #>> '{headers,Retry-After}'), '503 backend_error true 1',
    'HTTP-08: a server that cannot write says when to come again')
from pg_temp.reading('POST', '/ojs/v1/jobs', '{"type": "a", "args": []}') r;
select is(pg_temp.reading('GET', '/ojs/v1/queues') -> 'status', '200', 'PGX-17: but reads');

-- RIGHTS -----------------------------------------------------------------------------------------------------------

select is(pg_temp.as_role(role, 'GET', path, null), want, format('PGX-12: %s: GET %s', role, path)) from (values
    ('ojs_producer', '/health', '200'), ('ojs_worker', '/health', '200'), ('ojs_worker', '/ready', '200'),
        ('ojs_worker', '/metrics', '403 permission_denied'),
    ('ojs_producer', '/ojs/v1/admin/system/config', '403 permission_denied'),
        ('ojs_worker', '/ojs/v1/queues/_default/config', '403 permission_denied'),
    ('ojs_observer', '/ojs/v1/admin/system/config', '200')) r (role, path, want);
select pg_temp.held('checkpointed') as id \gset
select ojs.checkpoint(:'id', '"secret"') \g /dev/null
create function pg_temp.progress_as(role name, id uuid) returns text language plpgsql as $$
declare
    reply text;
begin
    perform set_config('role', role, true);
    select concat_ws(' ', status, body::jsonb ->> 'state', body::jsonb ->> 'checkpoint') into reply
        from ojs.http('GET', format('/ojs/v1/jobs/%s/progress', id));
    perform set_config('role', 'none', true);
    return reply;
end $$;
select is(pg_temp.progress_as(role, :'id'), want,
    'PGX-12: progress, and the checkpoint for those who may read it: ' || role)
from (values ('ojs_producer', '200 active'), ('ojs_observer', '200 active'),
    ('ojs_worker', '200 active secret')) r (role, want);
select is(pg_temp.as_role('ojs_producer', 'POST', '/ojs/v1/jobs', '{"type": "a", "args": [], "queue": "roles"}'),
    '201', 'PGX-12: a producer pushes');
select is(pg_temp.as_role('ojs_producer', 'POST', '/ojs/v1/jobs/batch',
    '{"jobs": [{"type": "a", "args": [], "queue": "roles"}]}'), '201', 'PGX-12: batches too');
select is(pg_temp.as_role(role, 'POST', path,
    '{"idempotency_key": "whose", "jobs": [{"type": "a", "args": [], "queue": "whose"}]}'), '201',
    format('PGX-12: an idempotency key of %s: %s', role, path))
from unnest('{/ojs/v1/jobs/batch,/ojs/v1/jobs/bulk}'::text[]) path,
    unnest('{ojs_producer,ojs_admin,ojs_producer}'::text[]) role;
select is((select count(*) from ojs.jobs where queue = 'whose'), 4::bigint, 'PGX-12: which is not another role''s');
select is(pg_temp.as_role('ojs_producer', 'POST', '/ojs/v1/workers/fetch', '{"queues": ["roles"]}'),
    '403 permission_denied', 'PGX-12: and does not fetch');
select is(pg_temp.as_role('ojs_producer', 'POST', '/ojs/v1/admin/reset', null), '403 permission_denied',
    'PGX-12: nor reset');
select is(pg_temp.as_role('ojs_worker', 'POST', '/ojs/v1/workers/fetch', '{"queues": ["roles"], "worker_id": "w"}'),
    '200', 'PGX-12: a worker fetches');
select is(pg_temp.as_role('ojs_worker', 'POST', '/ojs/v1/workers/heartbeat', '{"worker_id": "w"}'), '200',
    'PGX-12: beats');
select is(pg_temp.as_role('ojs_worker', 'POST', '/ojs/v1/workers/ack', jsonb_build_object('job_id', job_id)::text),
    '200', 'PGX-12: acknowledges') from ojs.leases where queue = 'roles';
select is(pg_temp.as_role('ojs_worker', 'POST', '/ojs/v1/jobs', '{"type": "a", "args": []}'), '403 permission_denied',
    'PGX-12: and does not push');
select is(pg_temp.as_role('ojs_worker', 'GET', '/ojs/v1/queues', null), '403 permission_denied',
    'PGX-12: nor looks around');
select is(pg_temp.as_role('ojs_observer', 'GET', path, null), '200', 'PGX-12: an observer looks: ' || path)
    from unnest(array['/ojs/v1/queues', '/ojs/v1/queues/roles', '/ojs/v1/dead-letter', '/health', '/ready']) path;
select is(pg_temp.as_role('ojs_observer', 'POST', '/ojs/v1/queues/roles/pause', null), '403 permission_denied',
    'PGX-12: and changes nothing');
select is(pg_temp.as_role('ojs_admin', 'POST', '/ojs/v1/queues/roles/pause', null), '200',
    'PGX-12: an administrator does');

-- RESET ------------------------------------------------------------------------------------------------------------

select is(pg_temp.error('POST', '/ojs/v1/admin/reset'), '422 unsupported', 'R-66: reset is refused');
select throws_ok('select ojs.reset()', 'OJ700', null, 'R-66: in SQL too');
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs',
    '{"type": "a", "args": [], "options": {"queue": "told", "metadata": {"test_directive": "quiet"}}}')) \g /dev/null
select id as told from ojs.claim('told', 'w9') \gset
select is(pg_temp.http('POST', '/ojs/v1/workers/heartbeat',
    jsonb_build_object('worker_id', 'w9', 'active_jobs', array[:'told'])) #>> '{body,state}', 'running',
    'R-66: a test_directive says nothing');
set local ojs.conformance_mode = on;
select is(pg_temp.http('POST', '/ojs/v1/workers/heartbeat',
    jsonb_build_object('worker_id', 'w9', 'active_jobs', array[:'told'])) #>> '{body,state}', 'quiet',
    'R-66: unless conformance_mode is on');
select is(pg_temp.error('POST', '/ojs/v1/admin/reset'), '200', 'R-66: then reset is done');
select is((select string_agg(name, ' ') from ojs.hooks), 'conformance', 'R-66: with a hook that validates');
select is(pg_temp.error('POST', '/ojs/v1/jobs', '{"type": "a", "args": [], "meta": {"ojs_validate": true}}'),
    '422 x_rejected', 'MW-04: an exception of a hook refuses the job');
select ojs.unregister_hook('conformance') \g /dev/null
create function public.failing_hook(job jsonb) returns jsonb language sql as $$
    select to_jsonb((job ->> 'type')::int) $$;
select ojs.register_hook('failing', 'enqueue', 'public.failing_hook(jsonb)') \g /dev/null
select is(pg_temp.http('POST', '/ojs/v1/jobs', '{"type": "secret.type", "args": []}') #>> '{body,error,message}',
    'a hook of this server failed, so the job was not pushed',
    'MW-04: one that fails, too, without telling what it stumbled on');
select ojs.unregister_hook('failing') \g /dev/null
select is((select count(*) from ojs.jobs), 0::bigint, 'MW-04: nothing was pushed');
create temp table left_over (name text, n bigint);
do $$
declare
    one regclass;
begin
    -- the hooks since then are recorded
    for one in select oid from pg_class where relnamespace = 'ojs_store'::regnamespace and relkind in ('r', 'p')
        and relname not in ('hot_set_state', 'retention_cursor', 'name_key', 'hook', 'stored_event', 'audit') loop
        execute format('insert into left_over select %L, count(*) from %s', one, one);
    end loop;
end $$;
select is_empty('select * from left_over where n > 0', 'R-66: nothing is left');
select is(pg_temp.error('GET', '/ojs/v1/jobs/' || :'told'), '404 not_found', 'R-66: no job either');
select is(pg_temp.error('POST', '/ojs/v1/jobs', '{"type": "a", "args": [], "queue": "told"}') || (pg_temp.http('POST',
    '/ojs/v1/workers/fetch', '{"queues": ["told"]}') #>> '{body,jobs,0,type}'), '201a', 'R-66: and all works');
set local ojs.conformance_mode = off;

select * from finish();
rollback;
