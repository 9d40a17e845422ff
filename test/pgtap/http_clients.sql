-- http_clients.sql: what official clients (the SDKs for JavaScript, Python and Go, the admin UI) ask for and read,
-- where the documents leave it open or have it otherwise: ADM-01 to ADM-05, R-59, RL-06, UNQ-27. Runs once: nothing
-- here asks whether ojs was preloaded.
begin;
select no_plan();
\ir helpers.psql
\ir http.psql

-- ANSWERS THAT A CLIENT TAKES FOR JSON -----------------------------------------------------------------------------

select is(pg_temp.http('GET', path, null, headers) #>> '{headers,Content-Type}', want,
    format('HTTP-02: the media type: %s %s', path, headers))
from (values ('/ojs/manifest', '{"OJS-Version": "1.0"}'::jsonb,
    'application/openjobspec+json; alias="application/json"'),
    ('/nothing', '{"OJS-Version": "1.0"}', 'application/openjobspec+json; alias="application/json"'),
    ('/ojs/manifest', '{"Accept": "application/openjobspec+json"}', 'application/openjobspec+json'),
    ('/metrics', '{"OJS-Version": "1.0"}', 'text/plain')) c (path, headers, want);

-- WORKING ----------------------------------------------------------------------------------------------------------

select id as timed from ojs.push('a.b', queue => 'timed', timeout => '30 s') \gset
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/workers/fetch',
    '{"queues": ["timed"], "worker_id": "w"}')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('body.jobs.0.id') = :'timed', pg_temp.got('body.jobs.0.timeout_ms'),
    (select r #> '{body,jobs,0}' ? 'timeout' from answer)), 't 30000 f',
    'a job that is fetched has its timeout in milliseconds alone, since an SDK takes the other for those');
select is(ojs.info(:'timed') ->> 'timeout', '30', 'elsewhere it has both');

select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/workers/progress',
    jsonb_build_object('job_id', :'timed', 'percentage', 40, 'message', 'going', 'data', '{"n": 1}'::jsonb)))
    \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.progress'), pg_temp.got('body.message'),
    pg_temp.got('body.data.n')), '200 0.4 going 1', 'PRG-01: progress in percent');
select is(pg_temp.error('POST', '/ojs/v1/workers/progress',
    jsonb_build_object('job_id', id, 'percentage', percentage)), want,
    format('PRG-01: progress of %s: %s', id, percentage))
from (values (:'timed', '"x"'::jsonb, '400 invalid_request'), ('x', '1', '400 invalid_request'),
    ('01920000-0000-7000-8000-00000000000c', '1', '404 not_found')) c (id, percentage, want);

create function pg_temp.resumed(id uuid) returns text language sql as $$
    select concat_ws(' ', r ->> 'status', r #>> '{body,has_checkpoint}', r #>> '{body,checkpoint,state,n}',
        r #>> '{body,checkpoint,step_index}', r #>> '{body,checkpoint,metadata,_replay_log}')
    from pg_temp.http('GET', '/ojs/v1/ojs/v1/checkpoints/' || id || '/resume') r
$$;
select is(pg_temp.resumed(:'timed'), '200 false', 'DUR-01: a durable handler begins anew');
select is(pg_temp.error('POST', '/ojs/v1/ojs/v1/checkpoints/' || :'timed',
    '{"state": {"n": 7}, "step_index": 2, "metadata": {"_replay_log": "[1]", "attempt": "1"}}'), '200',
    'DUR-01: saves a step, with the prefix twice as SDKs send it');
select is(pg_temp.resumed(:'timed'), '200 true 7 2 [1]', 'DUR-01: and goes on from there');
select is(pg_temp.error('POST', '/ojs/v1/checkpoints/' || :'timed',
    '{"state": {"n": 8}, "step_index": 3}') || ' ' || pg_temp.resumed(:'timed'), '200 200 true 8 3',
    'DUR-01: with the prefix once, too');
select is(pg_temp.error('POST', '/ojs/v1/checkpoints/' || :'timed', '{"states": 1}'), '400 invalid_request',
    'DUR-01: nothing else');
select is(pg_temp.error('DELETE', '/ojs/v1/ojs/v1/checkpoints/' || :'timed') || ' ' || pg_temp.resumed(:'timed'),
    '200 200 false', 'DUR-01: and forgets it');
select ojs.checkpoint(:'timed', '{"n": 9}') is null \g /dev/null
select is(pg_temp.resumed(:'timed'), '200 true 9', 'DUR-01: a checkpoint of the other form is the state of a step');
select is(pg_temp.as_role('ojs_worker', 'POST', '/ojs/v1/checkpoints/' || :'timed',
    '{"state": 1}') || pg_temp.as_role('ojs_worker', 'GET', '/ojs/v1/checkpoints/' || :'timed' || '/resume', null)
    || pg_temp.as_role('ojs_worker', 'POST', '/ojs/v1/workers/progress',
        format('{"job_id": "%s", "percentage": 50}', :'timed')), '200200200', 'PGX-12: workers may');

-- UNIQUE JOBS ------------------------------------------------------------------------------------------------------

create function pg_temp.pushed_twice(policy jsonb, first jsonb, second jsonb) returns text language sql as $$
    select pg_temp.error('POST', '/ojs/v1/jobs', jsonb_build_object('type', 'same.job', 'args', first, 'unique',
        policy)) || ', '
        || pg_temp.error('POST', '/ojs/v1/jobs', jsonb_build_object('type', 'same.job', 'args', second,
            'unique', policy))
$$;
select is(pg_temp.pushed_twice(policy, first, second), want, format('R-45: %s: %s, %s', policy, first, second))
from (values ('{"key": ["type", "args"]}'::jsonb, '[1]'::jsonb, '[1]'::jsonb, '201, 409 duplicate'),
    ('{"key": ["args"]}', '[2]', '[3]', '201, 201'),
    ('{"key": ["type"], "period_ms": 60000}', '[4]', '[5]', '201, 409 duplicate'),
    ('{"key": ["id"]}', '[{"id": 1, "n": 1}]', '[{"id": 1, "n": 2}]', '201, 409 duplicate'),
    ('{"keys": ["type", "args"], "period_ms": 0}', '[6]', '[6]', '400 invalid_request, 400 invalid_request'),
    ('{"keys": ["type", "args"], "period_ms": 1, "period": "PT1S"}', '[6]', '[6]',
        '400 invalid_request, 400 invalid_request'),
    ('{"key": ["type"], "keys": ["type"]}', '[6]', '[6]', '400 invalid_request, 400 invalid_request')) c (policy,
        first, second, want);
select pg_temp.http('POST', '/ojs/v1/jobs',
    '{"type": "brief", "args": [], "unique": {"key": ["type"], "period_ms": 2000}}') is null \g /dev/null
select pg_temp.clock('3 seconds') \g /dev/null
select is(pg_temp.error('POST', '/ojs/v1/jobs',
    '{"type": "brief", "args": [], "unique": {"key": ["type"], "period_ms": 2000}}'), '201', 'period_ms is that long');
select pg_temp.clock('0') \g /dev/null
select pg_temp.keep(pg_temp.http('GET', '/ojs/v1/unique-jobs?per_page=100')) \g /dev/null
select is((select jsonb_path_query_first(r,
    '$.body.items[*] ? (@.type == "brief")') - 'job_id' - 'key' || jsonb_build_object('total',
    r #> '{body,pagination,total}') = jsonb_build_object('type', 'brief', 'queue', 'default', 'state', 'available',
    'total', jsonb_array_length(r #> '{body,items}')) from answer), true,
    'UNQ-01: keys and their jobs, as the admin UI lists them');
select is(pg_temp.as_role('ojs_producer', 'GET', '/ojs/v1/unique-jobs', null) || ' ' || pg_temp.as_role('ojs_observer',
    'GET', '/ojs/v1/unique-jobs', null), '403 permission_denied 200', 'UNQ-28: for those who may read jobs');
select is((select string_agg(distinct jsonb_typeof(value), ' ') from jsonb_each(ojs.capabilities() - 'unique_jobs')),
    'boolean', 'MAN-01: capabilities are flags, but for unique_jobs (R-92)');

-- ONE JOB, AS ADMINISTRATORS HAVE IT -------------------------------------------------------------------------------

select (ojs.push('shown.job', queue => 'shown')).id as shown \gset
create function pg_temp.members(id uuid) returns jsonb language sql as $$
    select jsonb_object_agg(name, b -> name) from pg_temp.http('GET', '/ojs/v1/admin/jobs/' || id) r,
        lateral (select r -> 'body') as body(b), unnest('{errors,result,retry_policy}'::text[]) name
$$;
select is(pg_temp.members(:'shown') #- '{retry_policy}' || jsonb_build_object('policy',
    pg_temp.members(:'shown') -> 'retry_policy' = ojs.info(:'shown') -> 'retry'),
    '{"errors": [], "result": null, "policy": true}', 'ADM-01: a job that never failed has no errors, and says so');
select is((pg_temp.http('GET', '/ojs/v1/admin/jobs/' || :'shown') #> '{body,metadata}')
    - '{created_at,enqueued_at}'::text[],
    '{"started_at": null, "scheduled_at": null, "completed_at": null, "cancelled_at": null, "discarded_at": null}',
        'ADM-01: and all times');
select id as failed from ojs.push('shown.job', queue => 'failed', retry => '{"max_attempts": 1}') \gset
select ojs.fail(id, '{"type": "E", "message": "m"}') is null from ojs.claim('failed', 'w') \g /dev/null
select is(concat_ws(' ', pg_temp.members(:'failed') #>> '{errors,0,type}',
    pg_temp.members(:'failed') #>> '{retry_policy,max_attempts}'), 'E 1', 'ADM-01: one that failed has them');

create function pg_temp.prioritised(path text, priority jsonb) returns text language sql as $$
    select concat_ws(' ', r ->> 'status', r #>> '{body,error,code}', r #>> '{body,priority}')
        from pg_temp.http('PATCH', path, jsonb_build_object('priority', priority)) r
$$;
create temp table p as select g as n, (ojs.push('p', queue => 'p')).id from generate_series(1, 4) g;
select is(pg_temp.prioritised('/ojs/v1/admin/jobs/' || id, '5'), '200 5',
    'a priority that changes: a priority is changed') from p where n = 3;
select is(pg_temp.prioritised('/ojs/v1/jobs/' || id, '-5'), '200 -5', 'a priority that changes: by either path') from p
    where n = 1;
create temp table claimed as select row_number() over () as place, c.id from ojs.claim('p', 'w', 4) c;
select is((select string_agg(p.n::text, ' ' order by c.place) from claimed c join p using (id)), '3 2 4 1',
    'a priority that changes: and heeded');
select is(pg_temp.prioritised('/ojs/v1/jobs/' || id, '1'), '409 conflict',
    'a priority that changes: not of an active job') from p where n = 1;
select id as put_off from ojs.push('p', queue => 'put.off', delay => '1 hour') \gset
select is(pg_temp.prioritised('/ojs/v1/jobs/' || :'put_off', '9') || (ojs.info(:'put_off') ->> 'state'),
    '200 9scheduled', 'a priority that changes: of a scheduled one');
select is(pg_temp.prioritised('/ojs/v1/jobs/' || :'put_off', priority), '400 invalid_request',
    format('a priority that changes: refused: %s', priority))
    from unnest(array['101', '1.5', '"high"', 'null', '1e9']::jsonb[]) priority;
select is(pg_temp.error('PATCH', '/ojs/v1/jobs/' || :'put_off', '{"priority": 1, "queue": "x"}'),
    '400 invalid_request', 'a priority that changes: nothing else can be changed so');
select is(pg_temp.prioritised('/ojs/v1/jobs/01920000-0000-7000-8000-00000000000c', '1'), '404 not_found',
    'a priority that changes: a job that is not there');
select is(pg_temp.as_role('ojs_producer', 'PATCH', '/ojs/v1/jobs/' || :'put_off', '{"priority": 1}'),
    '403 permission_denied', 'PGX-12: administrators alone');

select id as called_off from ojs.push('off', queue => 'off') \gset
select ojs.cancel(:'called_off') is null \g /dev/null
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/admin/jobs/' || :'called_off' || '/retry')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.job.state'), pg_temp.got('body.job.attempt'),
    pg_temp.got('body.job.cancelled_at')), '200 available 0', 'ADM-01: a cancelled job is tried again under /admin');
select is((select string_agg(type, ' ' order by "time", type) from ojs.events where job_id = :'called_off'),
    'job.enqueued job.enqueued', 'EVT-01: its events say so');
select is((select id from ojs.claim('off', 'w')), :'called_off', 'ADM-01: and is handed out');
select ojs.fail(:'called_off', '{"type": "E", "message": "m"}') is null \g /dev/null
select ojs.cancel(:'called_off') is null \g /dev/null
select is(pg_temp.error('POST', '/ojs/v1/admin/jobs/' || :'called_off' || '/retry'), '200',
    'ADM-01: also one that has failed before');
select is(concat_ws(' ', j ->> 'state', j ->> 'attempt', j #>> '{errors,0,type}', j -> 'error'), 'available 0 E',
    'ADM-01: its history stays') from (select ojs.info(:'called_off') - 'error' as j) i;
select id as over from ojs.push('off', queue => 'over') \gset
select ojs.cancel(:'over') is null \g /dev/null
select is(pg_temp.refusal(format('select ojs.retry(%L)', :'over')), 'OJ105 INVALID_STATE_TRANSITION',
    'R-28: ojs.retry does not');
select ojs.ack(id) is null from (select pg_temp.held('acked') as id) h \g /dev/null
select is(pg_temp.error('POST', '/ojs/v1/admin/jobs/' || id || '/retry'), '409 conflict',
    'ADM-01: nor is a completed one') from ojs.jobs where queue = 'acked';

-- QUEUES -----------------------------------------------------------------------------------------------------------

select is(pg_temp.error('POST', '/ojs/v1/admin/queues/misspelt/' || act), '404 not_found',
    format('ADM-02: no queue is made by a %s', act)) from unnest('{pause,resume}'::text[]) act;
select is((select count(*) from ojs.queues where name = 'misspelt'), 0::bigint, 'ADM-02: it is not there');
select pg_temp.keep(pg_temp.http('GET', '/ojs/v1/queues/p/stats')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('body.queue.name'), pg_temp.got('body.active'), pg_temp.got('body.stats.active'),
    pg_temp.got('body.available')), 'p 4 4 0', 'R-60: numbers of a queue also without a wrapper');
select pg_temp.keep(pg_temp.http('GET', '/ojs/v1/admin/queues?per_page=100')) \g /dev/null
select is((select count(*) from answer, jsonb_array_elements(r #> '{body,items}') i
    where jsonb_typeof(i #> '{throughput,failed_per_minute}') = 'number'), (select count(*) from ojs.queues),
    'ADM-01: each has its throughput');

create function pg_temp.configured(config jsonb) returns text language sql as $$
    select concat_ws(' ', r ->> 'status', r #>> '{body,error,details,field}', r #> '{body,config,rate_limit}',
        r #> '{body,config,retention}') from pg_temp.http('PUT', '/ojs/v1/admin/queues/limited/config', config) r
$$;
select is(pg_temp.configured('{"rate_limit": {"limit": 1, "period": "PT1H"}}') like
    '200 {"limit": 1, "period": "PT1H"} %', true, 'RL-06: a limit as the Admin API has it');
select pg_temp.pushed('limited') from generate_series(1, 3) \g /dev/null
select is((select count(*) from ojs.claim('limited', 'w', 5)), 1::bigint, 'RL-06: and it limits');
select is(pg_temp.configured(config), want, format('RL-06: refused: %s', config)) from (values
    ('{"rate_limit": {"bogus": 1}}'::jsonb, '400 bogus'), ('{"rate_limit": {"limit": 1}}', '400 rate_limit.period'),
        ('{"rate_limit": {"limit": 1, "period": "often"}}', '400 rate_limit.period'),
    ('{"rate_limit": {"period": "1h"}}', '400 rate_limit.period'),
        ('{"rate_limit": {"limit": 1, "period": "1h", "rate": {"limit": 1, "period": "PT1H"}}}',
        '400 rate_limit.limit'),
    ('{"retention": {"completed": "24x"}}', '400 retention.completed'),
        ('{"retention": {"completed": "h"}}', '400 retention.completed')) c (config, want);
select is(pg_temp.http('PUT', '/ojs/v1/admin/queues/limited/config',
    jsonb_build_object('rate_limit', jsonb_build_object('limit', 1, 'period', period))) ->> 'status', '200',
    'R-59: a period as people write it: ' || period)
from unnest('{1s,1m,24h,7d,2w}'::text[]) period;
select is(pg_temp.http('PUT', '/ojs/v1/admin/queues/limited/config',
    jsonb_build_object('retention', jsonb_build_object('completed', given))) #>> '{body,config,retention,completed}',
    want, 'QC-02: kept for ' || given)
from (values ('24h', 'P1D'), ('7d', 'P7D'), ('90m', 'PT5400S'), ('P3D', 'P3D'), ('0d', 'PT0S'),
    ('2w', 'P14D')) c (given, want);
select is(pg_temp.http('PUT', '/ojs/v1/admin/queues/limited/config',
    '{"retention": {"completed": "99999999999d"}}') ->> 'status', '400',
    'no queue keeps jobs for more than 100 years: QC-02 R-95');

-- RATE LIMITS ------------------------------------------------------------------------------------------------------

select is(pg_temp.error('PUT', '/ojs/v1/rate-limits/api', body), want, format('R-59: an override %s', body))
from (values ('{"limit": 2, "period": "1m", "expires_at": null}'::jsonb, '200'),
    ('{"limit": 2}', '400 invalid_request'), ('{"bogus": 2}', '400 invalid_request'),
    ('{"period": "1m"}', '400 invalid_request')) c (body, want);
select pg_temp.keep(pg_temp.http('GET', '/ojs/v1/rate-limits')) \g /dev/null
select is((select jsonb_path_query_array(r,
    '$.body.items[*] ? (@.key == "api").keyvalue() ? (@.key == "limit" || @.key == "period" || @.key == "active" || '
    '@.key == "waiting" || @.key == "override").value') from answer),
    '[2, 0, "PT1M", 0, {"limit": 2, "period": "1m"}]', 'R-59: in the words of the admin UI');
select is(pg_temp.error('DELETE', '/ojs/v1/rate-limits/api/override') || ' ' || pg_temp.error('DELETE',
    '/ojs/v1/rate-limits/api/override'), '204 404 not_found', 'R-59: taken back by either path');

-- WORKERS, HEALTH, MAINTENANCE -------------------------------------------------------------------------------------

select ojs.beat('plain') is null \g /dev/null
select pg_temp.clock('10 minutes') \g /dev/null
select ojs.tick() is null \g /dev/null
select pg_temp.keep(pg_temp.http('GET', '/ojs/v1/admin/workers/plain')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('body.state'), pg_temp.got('body.status'), pg_temp.got('body.queues'),
    pg_temp.got('body.started_at') is not null), 'stale dead [] t',
    'ADM-03: a dead worker is stale to administrators, and has all members');
select is(pg_temp.http('GET', '/ojs/v1/workers/plain/health') #>> '{body,state}', 'dead',
    'WRK-05: to others it is dead');
select is((select (w ->> 'total')::int = (w ->> 'active')::int + (w ->> 'stale')::int
    and w -> 'active' = w -> 'connected' from (select pg_temp.http('GET', '/health') #> '{body,workers}') h (w)), true,
    'ADM-02: workers in the words of the admin UI');
select pg_temp.clock('0') \g /dev/null

create function pg_temp.paused(body jsonb) returns text language sql as $$
    select concat_ws(' ', r ->> 'status', r #>> '{body,error,details,field}', r #>> '{body,maintenance}',
        r #>> '{body,enabled}', r #>> '{body,started_at}' = r #>> '{body,enabled_at}',
        r #>> '{body,ends_at}' = r #>> '{body,estimated_end}')
    from (select case when body is null then pg_temp.http('GET', '/ojs/v1/admin/system/maintenance')
        else pg_temp.http('POST', '/ojs/v1/admin/system/maintenance', body) end) c (r)
$$;
select is(pg_temp.paused(null), '200 false false', 'ADM-05: no maintenance');
select is(pg_temp.paused('{"enabled": true, "reason": "r", "duration": "30m"}'), '200 true true t t',
    'ADM-05: maintenance in the words of the admin UI');
select is(pg_temp.paused(null), '200 true true t t', 'ADM-05: also when it is asked for');
select is(pg_temp.paused('{"enabled": true, "until": "x"}') || pg_temp.paused('{"enabled": true, "duration": "long"}'),
    '400 until400 estimated_duration', 'ADM-05: what means nothing is refused');
select is(pg_temp.paused('{"enabled": false}'), '200 false false', 'ADM-05: and over');

-- CRON -------------------------------------------------------------------------------------------------------------

select ojs.schedule('nightly', '@daily',
    '{"type": "t", "args": [1], "options": {"queue": "night", "priority": 3}}') is null \g /dev/null
select pg_temp.keep(pg_temp.http('GET', '/ojs/v1/crons?per_page=100')) \g /dev/null
select is((select jsonb_path_query_array(r,
    '$.body.items[*] ? (@.id == "nightly").keyvalue() ? (@.key == "schedule" || @.key == "queue" || @.key == "type" || '
    '@.key == "enabled").value') from answer), '["t", "night", true, "@daily"]',
    'CRN-01: entries as the admin UI lists them');
select is(pg_temp.http('PATCH', '/ojs/v1/crons/nightly', '{"enabled": false}') #>> '{body,enabled}', 'false',
    'CRN-01: disabled there');
select is(pg_temp.http('PATCH', '/ojs/v1/cron/nightly',
    '{"job_template": {"options": {"queue": "other"}}}') #> '{body,cron,job_template}',
    '{"type": "t", "args": [1], "options": {"queue": "other", "priority": 3}}',
    'CRN-01: a partial template changes what it names');
select is(pg_temp.error('DELETE', '/ojs/v1/crons/nightly') || ' ' || pg_temp.error('GET', '/ojs/v1/crons/nightly'),
    '200 404 not_found', 'CRN-01: and removed');

-- EVENTS AS A STREAM -----------------------------------------------------------------------------------------------

create function pg_temp.stream(path text, headers jsonb default '{}') returns text language sql as $$
    select concat_ws(' ', status, r.headers ->> 'Content-Type', r.headers ->> 'OJS-Stream',
        (select string_agg(m[1], ',') from regexp_matches(body, '^event: (.*)$', 'gn') m))
    from ojs.http('GET', path, headers) r
$$;
select (ojs.push('streamed', queue => 'streamed')).id as streamed \gset
select ojs.cancel(:'streamed') is null \g /dev/null
select is(pg_temp.stream('/ojs/v1/events/stream'), '200 text/event-stream', 'EVT-05: a stream begins now');
select is(pg_temp.stream('/ojs/v1/jobs/' || :'streamed' || '/events'), '200 text/event-stream job.cancelled',
    'EVT-05: that of a job that has ended is its end');
select is(pg_temp.stream(path, '{"OJS-Do-Not-Wait": "1"}'), want, 'EVT-05: a pipe that goes on is told how: ' || path)
from (values ('/ojs/v1/events/stream?channel=queue:streamed', '200 text/event-stream idle'),
    ('/ojs/v1/events/stream?channel=job:' || :'streamed', '200 text/event-stream end job.cancelled')) c (path, want);
select is(pg_temp.stream('/ojs/v1/queues/streamed/events', '{"OJS-Do-Not-Wait": "1", "Last-Event-ID": "x"}'),
    '200 text/event-stream on system.gap', 'EVT-05: an id that is none is told');
select is(pg_temp.stream('/ojs/v1/events/stream?channel=' || channel), want, 'EVT-05: refused: ' || channel)
from (values ('x', '400 application/openjobspec+json'), ('job:x', '404 application/openjobspec+json'),
    ('queue:nowhere', '404 application/openjobspec+json')) c (channel, want);
select is(pg_temp.as_role('ojs_observer', 'GET', '/ojs/v1/jobs/x/events',
    null) || ' ' || pg_temp.as_role('ojs_producer', 'GET', '/ojs/v1/queues/streamed/events', null),
    '404 not_found 403 permission_denied', 'PGX-12: observers listen, producers do not');

-- OTHER PAGES OF THE ADMIN UI -----------------------------------------------------------------------------------------

select ojs.push('prioritised', queue => 'by.priority',
    priority => p) is null from unnest('{5,5,-1}'::int[]) p \g /dev/null
select is(pg_temp.http('GET', '/ojs/v1/queues/by.priority/priority-stats') -> 'body',
    '{"queue": "by.priority", "distribution": [{"priority": 5, "count": 2}, {"priority": -1, "count": 1}]}',
    'ADM-01: available jobs by priority');
select is(pg_temp.error('GET', '/ojs/v1/queues/nowhere/priority-stats'), '404 not_found',
    'ADM-01: of a queue that is there');
create function public.passes(job jsonb) returns jsonb language sql as $$ select job $$;
select ojs.register_hook('passes', 'enqueue', 'public.passes(jsonb)') is null as hooked \gset
select is((pg_temp.http('GET', '/ojs/v1/middleware') #> '{body,enqueue,0}') - 'order',
    '{"name": "passes", "phase": "enqueue", "description": "enqueue"}', 'MW-03: hooks');
select ojs.unregister_hook('passes') is null as unhooked \gset
select is(pg_temp.http('GET', '/ojs/v1/middleware') -> 'body', '{"enqueue": [], "execution": []}', 'MW-03: none');
select is(pg_temp.stream('/ojs/v1/jobs/' || :'streamed' || '/progress/stream'), '200 text/event-stream job.cancelled',
    'EVT-05: a job''s progress as a stream');

-- TOPICS -----------------------------------------------------------------------------------------------------------

create temp table records (n int generated always as identity, data jsonb);
insert into records (data) values ('{"type": "a"}'), ('{"type": "a", "a": null}'),
    ('{"type": "a", "options": {"queue": "x"}, "meta": 1}'), ('{"type": "a", "args": []}'),
    ('{"type": "a", "args": [{"src": 1}]}'), ('{"type": "a", "data_form": 1}'),
    ('{"type": "a", "args": [1, {"a": 2}]}');
select pg_temp.keep(pg_temp.http('POST', '/v0/topics/transcode',
    '{"records": [{"data": {"type": "transcode", "src": "a.mov", "preset": 1}, "tag": "clip-1"}, {"data": {"type": '
    '"transcode", "args": [1, 2]}, "meta": {"k": 1}}, {"data": {"type": "transcode"}}]}')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.topic'), pg_temp.got('body.count'),
    pg_temp.got('body.last_seq')::bigint - pg_temp.got('body.first_seq')::bigint,
    pg_temp.got('body.seqs.2') = pg_temp.got('body.last_seq')), '200 transcode 3 2 t',
    'Q-11: records are produced, and the topic made');
select is((select jsonb_agg((c - '{$seq,id,lease_id,deadline,$ts,deliveries}'::text[]) order by c -> '$seq')
    from jsonb_array_elements(pg_temp.http('POST', '/v0/topics/transcode/claim',
    '{"node": "n", "max": 9}') #> '{body,claimed}') c),
    '[{"data": {"type": "transcode", "src": "a.mov", "preset": 1}, "$tag": "clip-1"}, {"data": {"type": '
    '"transcode", "args": [1, 2]}, "meta": {"k": 1}}, {"data": {"type": "transcode"}}]',
        'Q-11: a claim gives the data of each record as it was produced (R-100)');
select pg_temp.http('POST', '/v0/topics/again', jsonb_build_object('records',
    (select jsonb_agg(jsonb_build_object('data', data) order by n) from records))) \g /dev/null
select is((select jsonb_agg(c -> 'data' order by c -> '$seq') from jsonb_array_elements(
    pg_temp.http('POST', '/v0/topics/again/claim', '{"node": "n", "max": 99}') #> '{body,claimed}') c),
    (select jsonb_agg(data order by n) from records),
    'a claim gives the data of any record as it was produced (R-100)');
select is((select jsonb_agg(args order by seq) from ojs.jobs where queue = 'again'),
    '[[], [{"a": null}], [{"options": {"queue": "x"}, "meta": 1}], [], [{"src": 1}], [{"data_form": 1}], '
    '[1, {"a": 2}]]',
    'while workers of jobs have the members as the only argument (R-100)');
select is(pg_temp.error('POST', '/v0/topics/transcode', body), '400 invalid_request', 'Q-11: refused: ' || body::text)
    from unnest(array['{}', '{"records": []}', '{"records": [1]}', '{"records": [{"data": 1}]}',
    '{"records": [{"data": {"src": "a"}}]}',
    '{"records": [{"data": {"type": "a", "args": {}}}]}',
        '{"records": [{"data": {"type": "a", "args": [], "src": 1}}]}',
        '{"records": [{"data": {"type": "a", "args": [], "data_form": "flat"}}]}',
        '{"records": [{"data": {"type": "a"}, "node": "x"}]}',
        '{"records": [{"data": {"type": "a"}}], "x": 1}']::jsonb[]) body;
select is((select count(*) from ojs.jobs where queue = 'transcode'), 3::bigint, 'Q-11: nothing of that is there');
select is(pg_temp.as_role('ojs_producer', 'POST', '/v0/topics/transcode',
    '{"records": [{"data": {"type": "a"}}]}') || pg_temp.as_role('ojs_worker', 'POST', '/v0/topics/transcode',
    '{"records": [{"data": {"type": "a"}}]}'), '200403 permission_denied', 'PGX-12: producers may');

-- STATISTICS -------------------------------------------------------------------------------------------------------

select pg_temp.keep(pg_temp.http('GET', '/ojs/v1/admin/stats/history')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.period'),
    (select jsonb_array_length(r #> '{body,data}') from answer)), '200 5m 13', 'ADM-02: the last hour by five minutes');
select is((select bool_and(d ? 'timestamp' and d ? 'processed' and d ? 'failed' and d ? 'enqueued') from answer,
    jsonb_array_elements(r #> '{body,data}') d), true, 'ADM-02: what happened in each');
create function pg_temp.history(query text) returns text language sql as $$
    select concat_ws(' ', r ->> 'status', r #>> '{body,error,details,field}', r #>> '{body,period}',
        (select nullif(concat_ws(' ', sum((d ->> 'enqueued')::int), sum((d ->> 'processed')::int),
        sum((d ->> 'failed')::int)), '') from jsonb_array_elements(r #> '{body,data}') d))
    from pg_temp.http('GET', '/ojs/v1/admin/stats/history?' || query) r
$$;
select is(pg_temp.history('period=1m&queue=failed'), '200 1m 1 0 1', 'ADM-02: by minutes, of one queue');
select is(pg_temp.history('period=1d&queue=acked&since=' || to_char(now() - interval '30 days',
    'YYYY-MM-DD"T"00:00:00"Z"')), '200 1d 1 1 0', 'ADM-02: a month by days');
select is(pg_temp.history(query), want, 'ADM-02: refused: ' || query)
    from (values ('period=2m', '400 period'), ('period=1m&since=2001-01-01T00:00:00Z', '400 since'),
    ('since=2100-01-01T00:00:00Z', '400 since'), ('since=x', '400 since')) q (query, want);
select is(pg_temp.history('queue=nowhere'), '404', 'ADM-02: of a queue that is not there');
set role ojs_observer;
select throws_ok(format('select ojs_http.history_of(null, %L, %L, %L)', step, since, until), 'OJ100', null,
    format('ADM-02: a stretch that is too long: %s to %s by %s', since, until, step))
from (values ('1 s', '2030-01-01Z', '294276-12-31Z'), ('10 ms', '4713-01-01 00:00Z BC', '294276-12-31 00:00Z'),
    ('1 day', '-infinity', 'infinity'), ('0', '2030-01-01Z', '2030-01-02Z'), ('-1 day', '2030-01-01Z', '2030-01-02Z'))
    h (step, since, until);
reset role;
select is(pg_temp.as_role('ojs_observer', 'GET', '/ojs/v1/admin/stats/history',
    null) || pg_temp.as_role('ojs_observer', 'GET', '/ojs/v1/crons', null), '200200', 'PGX-12: observers may look');

-- WORKFLOWS AS STEPS -----------------------------------------------------------------------------------------------

create function pg_temp.graph(steps text, more jsonb default '{}') returns text language plpgsql as $$
declare
    r jsonb := pg_temp.http('POST', '/ojs/v1/workflows', more || jsonb_build_object('steps', (
        select jsonb_agg(jsonb_build_object('id', s[1], 'type', 't.' || replace(s[1], '-', '_'), 'args', '[]'::jsonb)
            || case when s[2] is null then '{}' else jsonb_build_object('depends_on',
                to_jsonb(string_to_array(s[2], '+'))) end
            || case when s[3] is null then '{}' else jsonb_build_object('options',
                jsonb_build_object('queue', s[3], 'callback_type', s[1])) end order by place)
        from regexp_split_to_table(steps, ' ') with ordinality as t(step, place),
            string_to_array(step, '/') s)));
begin
    return coalesce(r #>> '{body,error,code}', concat_ws(' ', r ->> 'status', r #>> '{body,workflow,type}',
        r #>> '{body,workflow,name}', (select string_agg(queue || ':' || type, ',' order by seq) from ojs.jobs
            where extra ->> 'workflow_id' = r #>> '{body,workflow,id}')));
end $$;
select is(pg_temp.graph('a/ b/a c/b', '{"name": "n"}'), '201 chain n default:t.a',
    'R-56: steps of which each needs the one before it are a chain');
select is(pg_temp.graph('a//one b/', '{"options": {"queue": "two"}}'), '201 group one:t.a,two:t.b',
    'R-56: steps that need nothing are a group, each with its options and those of all');
select is(pg_temp.graph('a/ b/ on-success/a+b on_failure/a+b/three'), '201 batch default:t.a,default:t.b',
    'R-56: what needs all others and is named after a callback is one of a batch');
select is((select string_agg(key || ':' || (value ->> 'type'), ' ' order by key) from ojs.jobs j,
        jsonb_each(ojs.workflow((j.extra ->> 'workflow_id')::uuid) -> 'callbacks')
    where j.id = (select id from ojs.jobs where type = 't.b' order by seq desc limit 1)),
    'on_failure:t.on_failure on_success:t.on_success', 'R-56: which it keeps');
-- A job of a workflow has an array for args, too, wherever it stands.
select is(pg_temp.error('POST', '/ojs/v1/workflows', body::jsonb), '400 invalid_request',
    'R-01: not an array: ' || regexp_replace(body, '\s+', ' ', 'g'))
from unnest(array['{"type": "chain", "steps": [{"type": "a", "args": []}, {"type": "a", "args": {"x": 1}}]}',
    '{"type": "group", "jobs": [{"type": "a", "args": {}}]}',
    '{"type": "chain", "steps": [{"type": "group", "jobs": [{"type": "a", "args": {"x": 1}}]}]}',
    '{"type": "batch", "jobs": [{"type": "a", "args": []}], "callbacks":
        {"on_success": {"type": "b", "args": {"x": 1}}}}',
    '{"steps": [{"id": "one", "type": "a", "args": {"x": 1}, "depends_on": []}]}']) body;
select is(pg_temp.error('POST', '/ojs/v1/workflows', '{"type": "chain", "steps": [{"type": "a", "args": [{"args": {"x":
    1}, "steps": [{"args": {"x": 1}}]}]}]}'), '201', 'R-01: what the arguments hold is free');
select is(pg_temp.error('POST', format('/ojs/v1/workflows/%s/extend', (ojs.create_workflow('{"type": "group",
    "jobs": [{"type": "a", "args": []}]}') ->> 'id')), '{"jobs": [{"type": "a", "args": {"x": 1}}]}'),
    '400 invalid_request',
    'R-01: nor when a workflow is extended');
select is(pg_temp.graph(steps), 'unsupported', format('R-56: any other graph is refused: %s', steps))
from unnest(array['a/ b/a c/a', 'a/ b/ c/a+b', 'a/ b/a c/b+a', 'a/b b/a', 'a/a', 'a/ on_complete/b',
    'a/ on-complete/a on_complete/a', 'a/ b/a on-finish/a+b']) steps;
select is(pg_temp.error('POST', '/ojs/v1/workflows', body::jsonb), want, format('R-56: no graph at all: %s', body))
from (values ('{"steps": [{"type": "a.b", "args": [], "depends_on": []}, 1]}', '422 unsupported'),
    ('{"steps": [{"type": "a.b", "args": [], "depends_on": [], "options": 1}]}', '422 unsupported'),
    ('{"steps": [{"type": "a.b", "args": [], "depends_on": []}], "options": 1}', '400 invalid_request'),
    ('{"steps": {"type": "a.b", "args": [], "depends_on": []}}', '400 invalid_workflow')) c (body, want);

select * from finish();
rollback;
