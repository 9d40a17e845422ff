-- http_admin.sql: lists, queues, workers, rate limits and settings over HTTP, as administrators have them: ADM-01 to
-- ADM-04, QC-02 to QC-04, DLQ-03, DLQ-04, RL-06, WRK-05, HTTP-09, HTTP-12, INT-09. Runs once: nothing here asks whether
-- ojs was preloaded.
begin;
select no_plan();
\ir helpers.psql
\ir http.psql

-- JOBS -------------------------------------------------------------------------------------------------------------

create temp table j as select g as n,
    (ojs.push(case when g % 2 = 0 then 'list.even' else 'list.odd' end, queue => 'list', priority => g,
    delay => case when g > 4 then interval '1 hour' * g end)).id from generate_series(1, 6) g;
select id as active from ojs.claim('list', 'w') \gset
create function pg_temp.listed(query text) returns text language sql as $$
    select concat_ws(' ', r ->> 'status', r #>> '{body,pagination,total}',
        (select string_agg(j.n::text, ',' order by place)
        from jsonb_array_elements(r #> '{body,items}') with ordinality as e(i, place) left
            join j on j.id::text = i ->> 'id'))
    from pg_temp.http('GET', '/ojs/v1/admin/jobs?queue=list&' || query) r
$$;
select is(pg_temp.listed(''), '200 6 6,5,4,3,2,1', 'ADM-01: jobs, newest first');
select is(pg_temp.listed('order=asc'), '200 6 1,2,3,4,5,6', 'ADM-01: or oldest first');
select is(pg_temp.listed('state=scheduled'), '200 2 6,5', 'ADM-01: by state');
select is(pg_temp.listed('state=active'), '200 1 4', 'ADM-01: active');
select is(pg_temp.listed('type=list.even'), '200 3 6,4,2', 'ADM-01: by type');
select is(pg_temp.listed('type=list.*'), '200 6 6,5,4,3,2,1', 'ADM-01: by the beginning of the type');
select is(pg_temp.listed('type=list.*&state=available&sort=priority&order=asc'), '200 3 1,2,3',
    'ADM-01: sorted by priority');
select is(pg_temp.listed('sort=scheduled_at&order=asc&per_page=2'), '200 6 5,6',
    'ADM-01: by time, those without one at the end');
select is(pg_temp.listed('per_page=4&page=2'), '200 6 2,1', 'ADM-01: by pages');
select is(pg_temp.listed('per_page=4&page=9'), '200 6', 'ADM-01: past the last there is nothing');
select is(pg_temp.listed('since=2100-01-01T00:00:00Z'), '200 0', 'ADM-01: by time');
select is(pg_temp.listed('until=2100-01-01T00%3A00%3A00Z&since=2001-01-01T00:00:00%2B02:00&state=active'), '200 1 4',
    'ADM-01: from and to');
select is(pg_temp.http('GET', '/ojs/v1/admin/jobs?queue=list&per_page=1000') #>> '{body,pagination,per_page}', '100',
    'ADM-01: at most 100 at a time');
select ok(ojs.info(:'active') @> (pg_temp.http('GET',
    '/ojs/v1/admin/jobs?queue=list&state=active') #> '{body,items,0}'), 'ADM-01: each is its envelope');
select is(pg_temp.error('GET', '/ojs/v1/admin/jobs?' || q), '400 invalid_request', 'ADM-01: refused: ' || q)
    from unnest(array['state=asleep', 'sort=type', 'order=up', 'since=yesterdays', 'page=x', 'per_page=-1',
    'sort=id%3B--']) q;

-- By cursor: what is pushed meanwhile moves nothing.
select pg_temp.keep(pg_temp.http('GET', '/ojs/v1/admin/jobs?queue=list&limit=4')) \g /dev/null
select is(
    (select string_agg(j.n::text, ',' order by place)
        from jsonb_array_elements(pg_temp.got('body.items')::jsonb) with ordinality as e(i, place)
        join j on j.id::text = i ->> 'id')
        || ' ' || pg_temp.got('body.pagination.total'),
    '6,5,4,3 6', 'ADM-01: a page of jobs by cursor');
select id as later from ojs.push('list.even', queue => 'list') \gset
select pg_temp.keep(pg_temp.http('GET', '/ojs/v1/admin/jobs?queue=list&limit=4&cursor='
    || pg_temp.got('body.pagination.next_cursor'))) \g /dev/null
select is(
    (select string_agg(j.n::text, ',' order by place)
        from jsonb_array_elements(pg_temp.got('body.items')::jsonb) with ordinality as e(i, place)
        join j on j.id::text = i ->> 'id')
        || ' ' || pg_temp.got('body.pagination.has_more'),
    '2,1 false', 'ADM-01: and the next one');
select ojs.cancel(:'later') is null, ojs.delete_job(:'later') \g /dev/null
select is(
    pg_temp.error('GET', '/ojs/v1/admin/jobs?limit=4&' || q), '400 invalid_request',
    'ADM-01: with a cursor goes no ' || q) from unnest('{page=2,sort=priority,order=asc,cursor=x}'::text[]) q;

-- ONE JOB ----------------------------------------------------------------------------------------------------------

select id as told from ojs.push('told', queue => 'told', retry => '{"max_attempts": 1}') \gset
select is(
    pg_temp.http('GET', format('/ojs/v1/admin/jobs/%s/explain', :'told')) #>> '{body,explanation}',
    ojs.explain_job(:'told'), 'ADM-01: why a job is not running');
select id from ojs.claim('told', 'w') \g /dev/null
select state from ojs.fail(:'told', '{"type": "Broken", "message": "it broke"}') \g /dev/null
select pg_temp.keep(pg_temp.http('GET', format('/ojs/v1/admin/jobs/%s/history', :'told'))) \g /dev/null
select is(
    (select string_agg(e ->> 'type', ' ' order by place)
        from jsonb_array_elements(pg_temp.got('body.events')::jsonb) with ordinality as l(e, place))
        || ' ' || pg_temp.got('body.has_more'),
    'job.enqueued job.started job.failed job.discarded false', 'ADM-01: the events of a job, in their order');
select is(
    (select e from jsonb_array_elements(pg_temp.got('body.events')::jsonb) e where e ->> 'type' = 'job.failed'),
    (select jsonb_build_object('specversion', l.specversion, 'id', l.id, 'type', l.type, 'source', l.source,
        'time', ojs_http.rfc3339(l."time"), 'subject', l.subject, 'data', l.data)
        from ojs.events l where l.job_id = :'told' and l.type = 'job.failed'), 'EVT-01: each is the standard event');
select is(
    jsonb_array_length(
        pg_temp.http('GET', format('/ojs/v1/admin/jobs/%s/history?limit=1', :'told'))
            #> '{body,events}'), 1, 'ADM-01: at most so many');
select is(
    pg_temp.error('GET', '/ojs/v1/admin/jobs/00000000-0000-7000-8000-000000000000/' || what), '404 not_found',
    'ADM-01: of a job that is not there: ' || what) from unnest('{explain,history}'::text[]) what;

-- QUEUES -----------------------------------------------------------------------------------------------------------

select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/queues',
    '{"name": "made.here", "config": {"concurrency": 4, "retention": {"completed": "P3D"}, "backpressure": '
    '{"max_depth": 10, "strategy": "reject"}}}')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('headers.Location'), pg_temp.got('body.name'),
    pg_temp.got('body.state'), pg_temp.got('body.config.concurrency'), pg_temp.got('body.config.max_size'),
    pg_temp.got('body.queue.name')),
    '201 /ojs/v1/queues/made.here made.here active 4 10 made.here', 'QC-02: a queue is made');
select is(pg_temp.error('POST', '/ojs/v1/queues', '{"name": "made.here"}'), '200', 'QC-02: one that is there is kept');
select is(pg_temp.error('POST', '/ojs/v1/queues', body), '400 invalid_request', 'QC-02: refused: ' || body::text)
    from unnest(array['{}', '{"name": 1}', '{"name": "No Name"}', '{"name": "a", "config": 1}',
    '{"name": "a", "config": {"colour": 1}}', '{"name": "a", "config": {"backpressure": 1}}']::jsonb[]) body;
select pg_temp.keep(pg_temp.http('GET', '/ojs/v1/queues/list')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('body.queue.name'), pg_temp.got('body.name'), pg_temp.got('body.state'),
    pg_temp.got('body.stats.available'), pg_temp.got('body.stats.active'), pg_temp.got('body.config.type'),
    pg_temp.got('body.created_at') is not null), 'list list active 3 1 queue t',
    'HTTP-12: a queue, its settings and its jobs');
select pg_temp.keep(pg_temp.http('GET', '/ojs/v1/admin/queues/list')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('body.queue.name'), pg_temp.got('body.name'), pg_temp.got('body.state'),
    pg_temp.got('body.paused'), pg_temp.got('body.counts.scheduled'), pg_temp.got('body.configuration.type')),
    'list list active false 2 queue', 'ADM-01: for administrators');
select is(pg_temp.http('GET', '/ojs/v1/queues/_default/config') #>> '{body,config,concurrency}', '0',
    'QC-03: the policy for all queues');
select is(pg_temp.http('PUT', '/ojs/v1/queues/_default/config', '{"concurrency": 7}') #>> '{body,config,concurrency}',
    '7', 'QC-03: is set');
select is(pg_temp.http('GET', '/ojs/v1/queues/_default/config') #>> '{body,config,concurrency}', '7',
    'QC-03: and read');
select is(pg_temp.error('DELETE', '/ojs/v1/queues/list'), '409 conflict', 'QC-04: a queue with jobs is not dropped');
select pg_temp.keep(pg_temp.http('DELETE', '/ojs/v1/queues/list',
    '{"strategy": "move", "target_queue": "made.here"}')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.queue'), pg_temp.got('body.strategy'),
    pg_temp.got('body.target_queue'), pg_temp.got('body.jobs_affected')), '200 list move made.here 6',
    'QC-04: unless its jobs move');
select is(pg_temp.http('GET', '/ojs/v1/queues/made.here') #>> '{body,stats,scheduled}', '2', 'QC-04: and they have');
select is(pg_temp.error('DELETE', '/ojs/v1/queues/made.here?strategy=burn'), '400 invalid_request',
    'QC-04: an unknown strategy');

-- WORKERS ----------------------------------------------------------------------------------------------------------

select is(pg_temp.error('POST', '/ojs/v1/workers/heartbeat',
    jsonb_build_object('worker_id', 'w', 'active_jobs', array[:'active'])), '200', 'WRK-01: a worker');
select pg_temp.keep(pg_temp.http('GET', '/ojs/v1/admin/workers/w')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('body.id'), pg_temp.got('body.state'),
    pg_temp.got('body.active_job_ids')::jsonb ->> 0 = :'active'), 'w running t', 'ADM-03: what it does');
create function pg_temp.told(path text) returns text language sql as $$
    select concat_ws(' ', r ->> 'status', r #>> '{body,directive}',
        (pg_temp.http('POST', '/ojs/v1/workers/heartbeat', '{"worker_id": "w"}')) #>> '{body,state}')
    from pg_temp.http('POST', '/ojs/v1/admin/workers/w/' || path) r
$$;
select is(pg_temp.told('quiet'), '200 quiet quiet', 'WRK-05: a worker is told to be quiet by its next heartbeat');
select is(pg_temp.told('resume'), '200 running running', 'WRK-05: to go on');
select is(pg_temp.told('terminate'), '200 terminate terminate', 'WRK-05: to end');
select is(pg_temp.told('resume'), '409 terminate', 'WRK-05: and never back');
select is(pg_temp.error('POST', '/ojs/v1/admin/workers/nobody/' || path), '404 not_found',
    'WRK-05: a worker that is not there: ' || path) from unnest('{quiet,resume,terminate}'::text[]) path;
select is(pg_temp.error('DELETE', '/ojs/v1/admin/workers/w'), '409 conflict', 'ADM-03: a live worker is not removed');
select pg_temp.clock('1 hour') \g /dev/null
select ojs.tick() is null \g /dev/null
select is(pg_temp.error('DELETE', '/ojs/v1/admin/workers/w') || ' ' || pg_temp.error('GET', '/ojs/v1/admin/workers/w'),
    '204 404 not_found', 'ADM-03: a dead one is');
select pg_temp.clock('0') \g /dev/null

-- RATE LIMITS ------------------------------------------------------------------------------------------------------

select pg_temp.keep(pg_temp.http('PUT', '/ojs/v1/rate-limits/stripe',
    '{"concurrency": 5, "rate": {"limit": 100, "period": "PT1M"}, "throttle": {"limit": 10, "period": "PT1S"}, '
    '"expires_at": "2100-01-01T00:00:00Z"}')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.key'), pg_temp.got('body.concurrency.limit'),
    pg_temp.got('body.concurrency.available'), pg_temp.got('body.rate.limit'), pg_temp.got('body.rate.period'),
    pg_temp.got('body.rate.current_count'),
    pg_temp.got('body.throttle.period'), pg_temp.got('body.waiting_count'),
        left(pg_temp.got('body.override_expires_at'), 4)), '200 stripe 5 5 100 PT1M 0 PT1S 0 2100',
        'R-59: a rate limit is set, until a time');
select is(pg_temp.http('GET', '/ojs/v1/rate-limits/stripe') -> 'body', (select r -> 'body' from answer),
    'R-59: and read');
select pg_temp.keep(pg_temp.http('GET', '/ojs/v1/rate-limits')) \g /dev/null
select ok((select r #> '{body,items}' @> '[{"key": "stripe"}]' and r #> '{body,items}' = r #> '{body,rate_limits}'
    and r #> '{body,pagination,total}' = to_jsonb(jsonb_array_length(r #> '{body,items}')) from answer),
    'HTTP-09: all of them');
select is(jsonb_array_length(pg_temp.http('GET', '/ojs/v1/rate-limits?per_page=1&page=99') #> '{body,items}'), 0,
    'HTTP-09: by pages');
select is(pg_temp.error('PUT', '/ojs/v1/rate-limits/stripe', body), '400 invalid_request',
    'R-59: refused: ' || body::text)
    from unnest(array['{"concurrency": "x"}', '{"expires_at": "soon"}', '{"expires_at": "2001-01-01T00:00:00Z"}',
    '{"rate": 1.5}']::jsonb[]) body;
select is(pg_temp.error('DELETE', '/ojs/v1/rate-limits/stripe') || ' ' || pg_temp.error('GET',
    '/ojs/v1/rate-limits/stripe') || ' ' || pg_temp.error('DELETE', '/ojs/v1/rate-limits/stripe'),
    '204 404 not_found 404 not_found', 'R-59: and taken back, once');
select pg_temp.keep(pg_temp.http('PUT', '/ojs/v1/admin/queues/made.here/rate-limit', '{"concurrency": 0}')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.key'), pg_temp.got('body.concurrency.limit')),
    '200 queue:made.here 0', 'RL-06: a limit of a queue');
select is(pg_temp.http('POST', '/ojs/v1/workers/fetch', '{"queues": ["made.here"]}') -> 'body', '{"jobs": []}',
    'RL-07: which holds');
select is(pg_temp.error('PUT', '/ojs/v1/admin/queues/nowhere/rate-limit', '{"concurrency": 1}'), '404 not_found',
    'RL-06: of a queue that is there');

-- DEAD LETTERS -----------------------------------------------------------------------------------------------------

create temp table d as select g as n,
    (ojs.push(case when g % 2 = 0 then 'dead.even' else 'dead.odd' end, queue => 'dead',
    retry => '{"max_attempts": 1, "on_exhaustion": "dead_letter"}')).id from generate_series(1, 4) g;
select id from ojs.claim('dead', 'w', 4) \g /dev/null
select ojs.fail(id, jsonb_build_object('type', case when n = 1 then 'One' else 'Other' end, 'message', 'm'))
    from d \g /dev/null
create function pg_temp.buried(path text) returns text language sql as $$
    select concat_ws(' ', r #>> '{body,pagination,total}', (select string_agg(d.n::text, ',' order by place)
        from jsonb_array_elements(coalesce(r #> '{body,jobs}', r #> '{body,items}')) with ordinality as e(i, place)
            join d on d.id::text = i ->> 'id'))
    from pg_temp.http('GET', path) r
$$;
select is(pg_temp.buried(prefix || query), want, format('DLQ-03: %s%s', prefix, query))
from unnest('{/ojs/v1/dead-letter?,/ojs/v1/admin/dead-letter?}'::text[]) prefix,
    (values ('queue=dead', '4 4,3,2,1'), ('type=dead.odd', '2 3,1'), ('type=dead.*', '4 4,3,2,1'),
    ('error_type=One', '1 1'), ('queue=dead&error_type=Other&type=dead.even', '2 4,2'),
    ('queue=none', '0'), ('queue=dead&since=2100-01-01T00:00:00Z', '0'),
        ('queue=dead&until=2100-01-01T00:00:00Z', '4 4,3,2,1')) q (query, want);
select is(pg_temp.error('GET', prefix || 'since=x'), '400 invalid_request', 'DLQ-03: a time that is none: ' || prefix)
    from unnest('{/ojs/v1/dead-letter?,/ojs/v1/admin/dead-letter?}'::text[]) prefix;
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/dead-letter/' || id || '/retry',
    '{"override": {"queue": "dead.again", "meta": {"k": "v"}, "retry": {"max_attempts": 2}}}')) from d
    where n = 1 \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.job.queue'), pg_temp.got('body.job.meta.k'),
    pg_temp.got('body.job.max_attempts'), pg_temp.got('body.job.attempt')), '200 dead.again v 2 0',
    'DLQ-04: a retry with changes');
select is(pg_temp.http('POST', '/ojs/v1/admin/dead-letter/' || id || '/retry') #>> '{body,job,queue}', 'dead',
    'DLQ-04: and one without') from d where n = 2;
select is(pg_temp.error('POST', '/ojs/v1/dead-letter/' || id || '/retry', '{"override": {"type": "x"}}'),
    '400 invalid_request', 'DLQ-04: what cannot be changed') from d where n = 3;
select is(pg_temp.error('POST', '/ojs/v1/dead-letter/' || id || '/retry', '{"override": {"args": {"a": 1}}}'),
    '400 invalid_request', 'R-01: args of an override are an array') from d where n = 3;
savepoint retried;
select is(pg_temp.http('POST', '/ojs/v1/dead-letter/' || id || '/retry', '{"override": null}') #>> '{body,job,queue}',
    'dead', 'a null override is none') from d where n = 3;
rollback to retried;
select is(pg_temp.http('POST', '/ojs/v1/dead-letter/' || id || '/retry',
    '{"override": {"args": null, "meta": null, "retry": null}}') ->> 'status', '200', 'nor are null members') from d
    where n = 3;
rollback to retried;

create temp table twin as select (ojs.push('twin.job', '[]', queue => 'twin', "unique" => '{}',
    retry => '{"max_attempts": 1, "on_exhaustion": "dead_letter"}')).id;
select ojs.fail(id, '{"type": "E", "message": "m"}') is null from ojs.claim('twin', 'w') \g /dev/null
select (ojs.push('twin.job', '[]', queue => 'twin', "unique" => '{}')).id as newer \gset
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/dead-letter/' || id || '/retry')) from twin \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.job.state'), pg_temp.got('body.job.existing_job_id'),
    pg_temp.got('body.job.existing_job_state')),
    format('200 available %s available', :'newer'), 'INT-09: a retry beside a newer twin is done, and names it');
select is((select count(*) from ojs.claim('twin', 'w', 2)), 2::bigint, 'INT-09: both are there'),
    is((select state from ojs.fail((select id from twin), '{"type": "E", "message": "m"}')), 'discarded',
    'it fails again');
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/dead-letter/retry',
    '{"confirm": true, "filter": {"queue": "twin"}}')) \g /dev/null
select is(pg_temp.got('body.duplicates')::jsonb,
    (select jsonb_build_array(jsonb_build_object('job_id', id, 'existing_job_id', :'newer', 'existing_job_state',
    'active')) from twin), 'INT-09: of many, too');
select is(pg_temp.http('POST', '/ojs/v1/dead-letter/retry',
    '{"confirm": true, "filter": {"queue": "twin"}}') -> 'body' ? 'duplicates', false,
    'INT-09: nothing where nothing was retried');

-- SETTINGS ---------------------------------------------------------------------------------------------------------

select is(pg_temp.http('GET', '/ojs/v1/admin/system/config') #>> '{body,config,ojs.max_batch_size}',
    current_setting('ojs.max_batch_size'), 'HTTP-01: the settings of the server');

-- CRON: its history is that of its events ---------------------------------------------------------------------------

select is(pg_temp.error('POST', '/ojs/v1/cron',
    '{"name": "each-second", "cron": "* * * * * *", "type": "cron.job", "args": [], "options": {"queue": "cron"}}'),
    '201', 'CRN-01: an entry');
select is(pg_temp.http('GET', '/ojs/v1/cron/each-second') #>> '{body,cron,run_count}', '0', 'CRN-01: that has not run');
select pg_temp.clock('5 seconds') \g /dev/null
select ojs.tick() is null \g /dev/null
select pg_temp.keep(pg_temp.http('GET', '/ojs/v1/cron/each-second')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('body.cron.run_count'), pg_temp.got('body.cron.last_run_at') is not null), '1 t',
    'CRN-08: and has run once');
select pg_temp.clock('0') \g /dev/null

-- A run by hand.
select is(
    pg_temp.error('POST', '/ojs/v1/cron', '{"name": "by-hand", "cron": "@yearly", "type": "cron.hand", "args": [1]}'),
    '201', 'CRN-01: an entry whose time is far off');
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/cron/by-hand/trigger')) \g /dev/null
select is(
    concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.job.type'), pg_temp.got('body.job.args'),
        pg_temp.got('body.job.meta.cron_name'),
        pg_temp.got('headers.Location') = '/ojs/v1/jobs/' || pg_temp.got('body.job.id')),
    '201 cron.hand [1] by-hand t', 'CRN-11: is run by hand');
select is(
    pg_temp.http('GET', '/ojs/v1/cron/by-hand') #>> '{body,cron,run_count}', '0',
    'CRN-01: beside the runs of the clock');
select is(pg_temp.error('POST', '/ojs/v1/cron/nothing/trigger'), '404 not_found', 'CRN-01: one that is not there');
select is(
    pg_temp.error('POST', '/ojs/v1/cron/by-hand/trigger', '{"args": [2]}'), '400 invalid_request',
    'CRN-01: a run by hand takes nothing');

-- WORKFLOWS --------------------------------------------------------------------------------------------------------

select ojs.create_workflow(format('{"type": "chain", "name": "flow-%s", "steps": [{"type": "a", "args": []},
    {"type": "group", "jobs": [{"type": "b", "args": []}, {"type": "c", "args": []}]}]}', n)::jsonb) is null
from generate_series(1, 3) n \g /dev/null
select pg_temp.keep(pg_temp.http('GET', '/ojs/v1/workflows?state=running&limit=2')) \g /dev/null
select is(
    concat_ws(' ', pg_temp.got('body.workflows.0.name'), pg_temp.got('body.workflows.0.members'),
        pg_temp.got('body.workflows.0.job_count'), pg_temp.got('body.workflows.1.name'),
        pg_temp.got('body.pagination.has_more')),
    'flow-3 2 3 flow-2 true', 'WF-01: workflows, newest first');
select pg_temp.keep(pg_temp.http('GET', '/ojs/v1/workflows?state=running&limit=2&cursor='
    || pg_temp.got('body.pagination.next_cursor'))) \g /dev/null
select is(pg_temp.got('body.workflows.0.name'), 'flow-1', 'WF-01: and the next page');
select is(
    jsonb_array_length(pg_temp.http('GET', '/ojs/v1/workflows?state=failed') #> '{body,workflows}'), 0,
    'WF-01: by state');
select is(pg_temp.error('GET', '/ojs/v1/workflows?state=asleep'), '400 invalid_request', 'WF-01: a state that is none');

-- ROLES ------------------------------------------------------------------------------------------------------------

select is(pg_temp.as_role('ojs_producer', 'POST', '/ojs/v1/jobs/bulk', '{"jobs": [{"type": "a", "args": []}]}'), '201',
    'PGX-12: a producer pushes in bulk');
select is(pg_temp.as_role('ojs_producer', 'POST', '/ojs/v1/jobs/bulk/cancel', '{"filter": {"queue": "none"}}'),
    '403 permission_denied', 'PGX-12: and does not cancel in bulk');
select is(pg_temp.as_role(role, 'GET', path, null), want, format('PGX-12: %s: %s', role, path))
    from (values ('ojs_observer', '200'), ('ojs_admin', '200'),
    ('ojs_producer', '403 permission_denied')) r (role, want),
    unnest('{/ojs/v1/admin/jobs,/ojs/v1/admin/queues,/ojs/v1/admin/workers,/ojs/v1/admin/dead-letter,'
        '/ojs/v1/dead-letter/stats,/ojs/v1/rate-limits,/ojs/v1/queues/_default/config}'::text[]) path;
select is(pg_temp.as_role('ojs_observer', method, path, body), '403 permission_denied',
    'PGX-12: an observer changes nothing: ' || path) from (values
    ('POST', '/ojs/v1/queues', '{"name": "x"}'), ('DELETE', '/ojs/v1/dead-letter', '{"confirm": true}'),
        ('POST', '/ojs/v1/dead-letter/retry', '{"confirm": true}'),
    ('PUT', '/ojs/v1/rate-limits/x', '{"concurrency": 1}'),
        ('POST', '/ojs/v1/admin/jobs/bulk/retry', '{"filter": {}, "confirm": true}')) c (method, path, body);

select is(pg_temp.http('PUT', '/ojs/v1/rate-limits/past',
    '{"concurrency": 0, "expires_at": "2001-01-01T00:00:00Z"}') #>> '{body,error,details,field}', 'expires_at',
    'RL-06: an end in the past is refused by the name that the client gave it');

select is(pg_temp.http('GET', '/ojs/v1/admin/jobs?queue=&state=&per_page=1') #> '{body,pagination,total}',
    pg_temp.http('GET', '/ojs/v1/admin/jobs?per_page=1') #> '{body,pagination,total}',
    'ADM-01: an empty filter is none');
select ojs.schedule('0page-' || n, '@daily', '{"type": "t"}') is null from generate_series(1, 3) n \g /dev/null
select pg_temp.keep(pg_temp.http('GET', '/ojs/v1/cron?limit=2')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('body.crons.0.name'), pg_temp.got('body.crons.1.name'),
    pg_temp.got('body.pagination.has_more')), '0page-1 0page-2 true', 'HTTP-09 CRN-01: entries by pages');
select pg_temp.keep(pg_temp.http('GET', '/ojs/v1/cron?limit=2&cursor=' || pg_temp.got('body.pagination.next_cursor')))
    \g /dev/null
select is(pg_temp.got('body.crons.0.name'), '0page-3', 'HTTP-09 CRN-01: and on');
select is(pg_temp.error('GET', '/ojs/v1/events?cursor=x'), '400 invalid_request',
    'HTTP-01: cursor is another name of after');

-- What a role may do, for a user interface.
create function pg_temp.duties_of(role name) returns text language plpgsql as $$
declare
    reply text;
begin
    perform set_config('role', role, true);
    select concat_ws(' ', body::jsonb ->> 'role', body::jsonb -> 'duties') into reply
    from ojs.http('GET', '/ojs/v1/admin/access');
    perform set_config('role', 'none', true);
    return reply;
end $$;
select is(pg_temp.duties_of('ojs_observer'), 'ojs_observer ["observe"]', 'PGX-12: an observer looks');
select is(pg_temp.duties_of('ojs_producer'), 'ojs_producer ["produce"]', 'PGX-12: a producer pushes');
select is(
    pg_temp.duties_of('ojs_admin'), 'ojs_admin ["produce", "work", "observe", "admin"]',
    'PGX-12: an administrator does all');
select is(
    pg_temp.as_role('ojs_observer', 'POST', '/ojs/v1/cron/by-hand/trigger', null), '403 permission_denied',
    'PGX-12: an observer runs no entry');
select is(
    pg_temp.as_role(role, 'GET', path, null), want, format('PGX-12: %s: %s', role, path))
from (values ('ojs_observer', '200'), ('ojs_producer', '403 permission_denied')) r (role, want),
    unnest(array['/ojs/v1/workflows', '/ojs/v1/admin/jobs?limit=1', format('/ojs/v1/admin/jobs/%s/explain', :'told'),
        format('/ojs/v1/admin/jobs/%s/history', :'told')]) path;

select * from finish();
rollback;
