-- http_rules.sql: rules of the HTTP binding and its extensions, one by one: bodies and paths without bound, repeated
-- and duplicate pushes, times, cron, workers, lists, errors. Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();
\ir helpers.psql

\ir http.psql

-- BOUNDS -----------------------------------------------------------------------------------------------------------

set local statement_timeout = '20s';
select is(pg_temp.error('GET', path), '404 not_found', 'HTTP-10: a path of many parts is looked up in no time')
from unnest(array[repeat('/a', 15000), '/ojs/v1/jobs' || repeat('/', 30000),
    '/ojs/v1/jobs/' || repeat('a', 30000)]) path;
set local statement_timeout = 0;
select is(pg_temp.raw('POST', path, repeat('[', 200000)), '413 payload_too_large',
    'HTTP-10: of many values, refused before it is read: ' || path)
from unnest('{/ojs/v1/jobs,/ojs/v1/workers/ack,/ojs/v1/workers/fetch}'::text[]) path;
select is(pg_temp.raw('POST', path, repeat('[', 300000)), '413 payload_too_large',
    'HTTP-10: a batch may hold more, but not everything: ' || path)
from unnest('{/ojs/v1/jobs/batch,/ojs/v1/jobs/bulk}'::text[]) path;
select is(pg_temp.raw('POST', '/ojs/v1/jobs', '{' || repeat('x', 2 * 1024 * 1024)), '413 payload_too_large',
    'HTTP-10: of many bytes, refused before it is read');
select is(pg_temp.raw('POST', '/ojs/v1/jobs/batch', '{' || repeat('x', 2 * 1024 * 1024)), '400 invalid_payload',
    'HTTP-10: which a batch may have');
select is(ojs_http.values_in('{"a,[{\"": [1, {"b\\": null}], "c": ",,,"}'), 6::bigint,
    'HTTP-10: values are counted outside of strings');
select is(pg_temp.error('POST', '/ojs/v1/jobs', jsonb_build_object('type', 'a', 'args', array[repeat('x,', 400000)])),
    '201', 'HTTP-10: commas in a string are none');
select is(pg_temp.error('POST', '/ojs/v1/queues/q/' || path, body), '400 invalid_payload',
    format('HTTP-10: a body that is no object: %s %s', path, body))
from unnest('{pause,resume}'::text[]) path, unnest(array['[]', '1', '"x"', 'null']::jsonb[]) body;
select is(pg_temp.error('POST', '/ojs/v1/jobs', '{"type": "a", "args": []}',
    jsonb_build_object('Content-Encoding', encoding)), want, 'payload limits: Content-Encoding: ' || encoding)
from (values ('gzip', '415 unsupported'), ('identity', '201'), ('', '201')) e (encoding, want);
select is(pg_temp.error('POST', '/ojs/v1/jobs/01920000-0000-7000-8000-00000000000c/ack',
    '{"job_id": "01920000-0000-7000-8000-00000000000d"}'), '400 invalid_request',
    'HTTP-01: a body that names another job than the path');

-- DUPLICATES -------------------------------------------------------------------------------------------------------

create function pg_temp.batch(more jsonb, path text default 'batch') returns jsonb language sql as $$
    select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs/' || path,
        '{"jobs": [{"type": "a", "args": [], "queue": "twice"}, {"type": "b", "args": [], "queue": "twice"}]}' || more))
$$;
create function pg_temp.jobs_in(queue text) returns bigint language sql as $$ select count(*) from ojs.jobs j
    where j.queue = $1 $$;
select pg_temp.batch('{"deduplication_key": "k"}') \g /dev/null
select is(pg_temp.got('status'), '201', 'DDP-06: a batch with a key');
select pg_temp.batch('{"deduplication_key": "k"}') \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.count'), pg_temp.got('body.jobs.0.deduplicated'),
    pg_temp.got('body.jobs.1.deduplicated'), pg_temp.jobs_in('twice')),
    '200 2 true true 2', 'DDP-06: again: duplicates');
select pg_temp.batch('{"deduplicationKey": "k"}') \g /dev/null
select is(pg_temp.got('status'), '200', 'DDP-06: the key by its other name');
select pg_temp.batch('{"deduplicationKey": "k"}', 'bulk') \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.items.0.status')), '200 duplicate',
    'DDP-06: in bulk, too');
select pg_temp.batch('{"deduplication_key": "k", "deduplicationKey": "l"}') \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.error.details.field')), '400 deduplication_key',
    'DDP-06: two names and two keys');
select pg_temp.batch('{"deduplication_key": "short", "deduplication_ttl": "PT1S"}') \g /dev/null
select pg_temp.clock('2 s') \g /dev/null
select pg_temp.batch('{"deduplication_key": "short", "deduplication_ttl": "PT1S"}') \g /dev/null
select pg_temp.clock('0') \g /dev/null
select is(pg_temp.got('status'), '201', 'DDP-03: the key of a batch is held for as long as it says');
select pg_temp.batch('{"deduplication_key": "m", "deduplication_ttl": "soon"}') \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.error.details.field')), '400 deduplication_ttl',
    'DDP-03: which must be a duration');
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs',
    '{"type": "a", "args": [], "queue": "twice", "deduplication_key": "k"}')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.deduplicated'),
    (select jsonb_typeof(coalesce(r -> 'headers' -> 'Location', '""')) from answer)), '200 true string',
    'DDP-02: a key that a batch holds: no header is null');
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs',
    '{"type": "a", "args": [], "queue": "once", "deduplication_key": "single"}')) \g /dev/null
select pg_temp.got('body.job.id') as id \gset
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs',
    '{"type": "a", "args": [], "queue": "once", "deduplication_key": "single"}')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('body.deduplicated'), pg_temp.got('body.job.deduplicated'),
    pg_temp.got('headers.Location') = '/ojs/v1/jobs/' || :'id'), 'true true t',
    'UNQ-05: an ignored duplicate says so beside the job');

-- A hook that drops an item.
create function public.no_b(job jsonb) returns jsonb language sql as $$ select case when job ->> 'type' <> 'b'
    then job end $$;
select ojs.register_hook('no-b', 'enqueue', 'public.no_b(jsonb)') is null as hooked \gset
select pg_temp.batch('{}') \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.jobs.0.type'), pg_temp.got('body.jobs.1.status')),
    '201 a dropped', 'MW-03: one that a hook drops leaves the others alone');
select ojs.unregister_hook('no-b') is null as unhooked \gset

-- REPEATED REQUESTS ------------------------------------------------------------------------------------------------

select ojs.create_queue('doa', '{"delete_on_ack": true}') \g /dev/null
create function pg_temp.repeated(path text, more jsonb) returns text language plpgsql as $$
declare
    request jsonb := '{"idempotency_key": "doa", "jobs": [{"type": "a", "args": [1], "queue": "doa"}, {"type": "a", '
                     '"args": [2], "queue": "doa"}]}' || more;
    first jsonb := pg_temp.http('POST', path, request);
    again jsonb;
begin
    perform ojs.ack(id) from ojs.claim('doa', 'w');
    again := pg_temp.http('POST', path, request);
    return concat_ws(' ', first -> 'status', again -> 'status', first -> 'body' = again -> 'body',
        pg_temp.jobs_in('doa'), ojs.purge_queue('doa', confirm => true));
end $$;
select is(pg_temp.repeated(path, more), '201 201 t 1 1',
    format('BLK-02: the first answer, whatever became of its jobs: %s %s', path, more))
from (values ('/ojs/v1/jobs/bulk', '{}'::jsonb), ('/ojs/v1/jobs/batch', '{}'),
    ('/ojs/v1/jobs/bulk', '{"atomicity": "atomic", "idempotency_key": "doa 2"}')) r (path, more);
select is((select count(*) from ojs.events where type = 'bulk.enqueue.completed' and data ->> 'total' = '2'
    and data ->> 'succeeded' = '2'), 3::bigint,
    'BLK-02: and an event for each of the two in bulk, and the one with a key above; none for a repetition');
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs/bulk',
    '{"idempotency_key": "doa", "jobs": [{"type": "a", "args": [1], "queue": "doa"}]}')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.error.code')), '409 conflict',
    'BLK-02: another request under the same key');
select ojs.create_queue('full', '{"max_size": 1}') \g /dev/null
select pg_temp.pushed('full') as id \gset
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs/bulk',
    '{"idempotency_key": "full", "jobs": [{"type": "a", "args": [], "queue": "full"}]}')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.error.retryable'),
    pg_temp.got('body.items.0.error.retryable'), pg_temp.got('headers.Retry-After') is not null,
    pg_temp.got('headers.X-OJS-Queue-Depth'), pg_temp.got('headers.X-OJS-Queue-Bound')), '422 true true t 1 1',
        'ERR-05: what came to nothing may be tried again if an item may');
select ojs.purge_queue('full', confirm => true) \g /dev/null
select is(pg_temp.error('POST', '/ojs/v1/jobs/bulk',
    '{"idempotency_key": "full", "jobs": [{"type": "a", "args": [], "queue": "full"}]}'), '201',
    'ERR-05: under the same key');
-- An answer that is too large to keep whole.
select pg_temp.http('POST', '/ojs/v1/jobs/bulk', request) #>> '{body,items,1,job,id}' as first,
    pg_temp.http('POST', '/ojs/v1/jobs/bulk', request) #> '{body,items,1,job}' as second
from (select jsonb_build_object('idempotency_key', 'large', 'jobs', jsonb_build_array(job, job, job)) as request
    from (select jsonb_build_object('type', 'a', 'queue', 'large', 'args',
        array[repeat('x', 500000)]) as job) j) r \gset
select is(concat_ws(' ', :'second'::jsonb ->> 'id' = :'first', :'second'::jsonb ->> 'state',
    :'second'::jsonb ->> 'abridged', :'second'::jsonb ? 'args', pg_temp.jobs_in('large')),
    't available true f 3', 'BLK-02: of a large answer the jobs are kept without args');

-- Duplicates inside of a batch.
create function pg_temp.twins(path text, more jsonb) returns jsonb language sql as $$
    select pg_temp.keep(pg_temp.http('POST', path,
        '{"jobs": [{"type": "x", "args": []}, {"type": "twin", "args": [], "unique": {"keys": ["type"]}}, {"type": '
        '"twin", "args": [], "unique": {"keys": ["type"]}}]}' || more))
$$;
select pg_temp.twins('/ojs/v1/jobs/batch', '{}') \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.error.code'),
    pg_temp.got('body.error.details.index'), pg_temp.got('body.error.details.existing_index'),
    pg_temp.got('body.error.details.existing_job_id') is null),
    '409 duplicate 2 1 t', 'UNQ-05: a twin in the same batch is named by its place');
select pg_temp.twins('/ojs/v1/jobs/bulk', '{"atomicity": "atomic"}') \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.items.2.error.code'),
    pg_temp.got('body.items.2.error.details.existing_index'),
    pg_temp.got('body.items.2.error.details.existing_job_id') is null),
    '422 duplicate 1 t', 'UNQ-05: in bulk, too');
select pg_temp.pushed('twins', '{"unique": {"keys": ["type"], "on_conflict": "reject"}}') as id \gset
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs/batch',
    '{"jobs": [{"type": "test.job", "args": [], "unique": {"keys": ["type"]}}]}')) \g /dev/null
select is(pg_temp.got('body.error.details.existing_job_id'), :'id', 'UNQ-05: and any other by its id');

-- The limits of a batch, and of fetching.
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs/batch',
    '{"jobs": [{"type": "a", "args": [], "rate_limit": {"key": "batched", "rate": {"limit": 5, "period": "PT1M"}}}]}'))
    \g /dev/null
select is(concat_ws(' ', pg_temp.got('headers.X-RateLimit-Limit'), pg_temp.got('headers.X-RateLimit-Remaining')),
    '5 5', 'HTTP-08: a batch tells of limits');
select ojs.create_queue('slow', '{"claim_rate": 1}') \g /dev/null
select pg_temp.http('POST', '/ojs/v1/workers/fetch', '{"queues": ["slow"], "worker_id": "w"}') \g /dev/null
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/workers/fetch',
    '{"queues": ["slow"], "worker_id": "w"}')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('headers.X-RateLimit-Limit'),
    pg_temp.got('headers.X-RateLimit-Remaining'), pg_temp.got('headers.X-RateLimit-Reset') is not null), '429 1 0 t',
    'HTTP-08: a fetch that comes too soon is told the limit');
select is(pg_temp.http('GET', '/ojs/v1/jobs/' || :'id') #>> '{headers,Retry-After}', '1',
    'RES-01: an open job may be asked for again');

-- TIMES ------------------------------------------------------------------------------------------------------------

select is(pg_temp.error(method, path, body), '400 invalid_request',
    format('core 5.5: no time with a zone: %s %s', path, body))
from unnest(array['2026-02-13T11:00:00', '20261122', '2099-01-01', 'yesterday', 'infinity', 'epoch', '']) as t(at),
    lateral (values
    ('DELETE', '/ojs/v1/dead-letter', jsonb_build_object('older_than', at, 'confirm', true)),
    ('DELETE', '/ojs/v1/dead-letter', jsonb_build_object('filter', jsonb_build_object('until', at), 'confirm', true)),
    ('POST', '/ojs/v1/dead-letter/retry', jsonb_build_object('filter', jsonb_build_object('since', at),
        'confirm', true)),
    ('POST', '/ojs/v1/jobs/bulk/cancel', jsonb_build_object('filter', jsonb_build_object('enqueued_before', at))),
    ('POST', '/ojs/v1/queues/twice/purge', jsonb_build_object('older_than', at, 'states', '["completed"]'::jsonb,
        'confirm', true)),
    ('PUT', '/ojs/v1/rate-limits/timed', jsonb_build_object('concurrency', 1, 'expires_at', at))) r (method,
        path, body);
select is(pg_temp.error('GET', path || '?since=' || at), '400 invalid_request',
    format('core 5.5: no time with a zone: %s?since=%s', path, at))
from unnest(array['2026-02-13T11:00:00', 'yesterday', 'infinity']) at,
    unnest(array['/ojs/v1/dead-letter', '/ojs/v1/admin/jobs', '/ojs/v1/admin/dead-letter']) path;
select is(left(pg_temp.refusal(format($$ select ojs.delete_many('{"until": "%s"}', true) $$, at)), 21),
    'OJ100 INVALID_PAYLOAD', 'core 5.5: nor in SQL: ' || at)
    from unnest(array['2026-02-13T11:00:00', 'infinity', '20261122']) at;
select is(pg_temp.error('POST', '/ojs/v1/admin/system/maintenance', '{"enabled": false, "estimated_duration": "P1"}'),
    '400 invalid_request', 'core 5.5: a duration');

-- PURGES AND CURSORS -----------------------------------------------------------------------------------------------

select pg_temp.pushed('purge') from generate_series(1, 2) \g /dev/null
select is(pg_temp.error(method, path, body), '400 invalid_request',
    format('ADM-04: a purge says which states: %s %s', path, body)) from (values
    ('DELETE', '/ojs/v1/admin/queues/purge/jobs', '{"confirm": true}'::jsonb),
        ('DELETE', '/ojs/v1/admin/queues/purge/jobs', '{"confirm": true, "state": ["completed"]}'),
    ('DELETE', '/ojs/v1/admin/queues/purge/jobs',
        '{"confirm": true, "states": ["completed"], "filter": {}, "queue": "x"}'),
    ('DELETE', '/ojs/v1/admin/queues/purge/jobs?confirm=true&state=completed', null),
        ('DELETE', '/ojs/v1/admin/queues/purge/jobs?confirm=true&states=completed&colour=red', null),
    ('POST', '/ojs/v1/queues/purge/purge', '{"confirm": true, "older_than": "2030-01-01T00:00:00Z"}')) p (method,
        path, body);
select is(pg_temp.jobs_in('purge'), 2::bigint, 'ADM-04: and until then does nothing');
select is(pg_temp.error('GET', '/ojs/v1/dead-letter?cursor=' || cursor), '400 invalid_request',
    'HTTP-09: a cursor of another list, or none: ' || cursor) from unnest('{6162,646c,zz,f}'::text[]) cursor;
select is(pg_temp.error('POST', '/ojs/v1/queues', '{"name": "made", "concurrency": 5}'), '400 invalid_request',
    'R-89: a setting where no setting is read');

-- LISTS ------------------------------------------------------------------------------------------------------------

select ojs.fail(pg_temp.held('dl', 'w', jsonb_build_object('priority', n, 'retry',
    '{"max_attempts": 1, "on_exhaustion": "dead_letter"}'::jsonb)), '{"type": "t", "message": "m"}')
from generate_series(1, 3) n \g /dev/null
create function pg_temp.priorities(query text) returns text language sql as $$
    select string_agg(j ->> 'priority', ' ' order by n)
        from jsonb_array_elements(pg_temp.http('GET',
        '/ojs/v1/admin/dead-letter?queue=dl&' || query) #> '{body,items}') with ordinality as i(j, n)
$$;
select is(pg_temp.priorities(query), want, 'DLQ-03: dead letters are sorted: ' || query)
    from (values ('sort=priority&order=asc', '1 2 3'), ('sort=priority&order=desc', '3 2 1'), ('order=asc', '1 2 3'),
    ('', '3 2 1')) q (query, want);
select is(pg_temp.error('GET', '/ojs/v1/admin/dead-letter?' || query), '400 invalid_request', 'DLQ-03: ' || query)
    from unnest('{order=bogus,sort=bogus}'::text[]) query;
select is(pg_temp.error('GET', path), '400 invalid_request', 'HTTP-09: ' || path)
    from unnest(array['/ojs/v1/cron?enabled=bogus',
    '/ojs/v1/jobs/01920000-0000-7000-8000-00000000000c/result?wait=bogus']) path;
select ojs.set_rate_limit('limit-' || n, '{"concurrency": 1}') from generate_series(1, 3) n \g /dev/null
select is((select concat_ws(' ', jsonb_array_length(r #> '{body,items}'),
    jsonb_array_length(r #> '{body,rate_limits}')) from pg_temp.http('GET', '/ojs/v1/rate-limits?per_page=1') r),
    '1 1', 'HTTP-09: no list beside the page');

-- Answers have a bound: what does not fit comes later, or without what is large.
create or replace function ojs_http.most_bytes() returns bigint language sql immutable as $$ select 2000::bigint $$;
set local ojs.max_envelope_size = 4000;
select ojs.push('big', jsonb_build_array(repeat('x', 900)), queue => 'big') from generate_series(1, 6) \g /dev/null
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/workers/fetch', '{"queues": ["big"], "count": 6}')) \g /dev/null
select ok(jsonb_array_length(pg_temp.got('body.jobs')::jsonb) between 2 and 3, 'OP-03: a fetch gives as many as fit');
select is((select count(*) from ojs.jobs where queue = 'big' and state = 'active'),
    jsonb_array_length(pg_temp.got('body.jobs')::jsonb)::bigint, 'OP-03: and claims no more');
select is((select count(*) from jsonb_path_query(pg_temp.http('GET', '/ojs/v1/admin/jobs?queue=big') #> '{body,items}',
    '$[*] ? (@.abridged == true)')), 5::bigint, 'ADM-01: a list shows the rest abridged');
select ojs.fail(pg_temp.held('dlb', 'w', jsonb_build_object('meta', jsonb_build_object('x', repeat('x', 900)), 'retry',
    '{"max_attempts": 1, "on_exhaustion": "dead_letter"}'::jsonb)), '{"type": "t", "message": "m"}')
from generate_series(1, 4) n \g /dev/null
create function pg_temp.all_pages() returns text language plpgsql as $$
declare
    cursor text := ''; pages int := 0; ids text[] := '{}'; r jsonb;
begin
    loop
        r := pg_temp.http('GET', '/ojs/v1/dead-letter?queue=dlb&cursor=' || cursor) -> 'body';
        pages := pages + 1;
        ids := ids || array(select j ->> 'id' from jsonb_array_elements(r -> 'jobs') j);
        cursor := r #>> '{pagination,next_cursor}';
        exit when cursor is null or pages > 9;
    end loop;
    return concat_ws(' ', pages > 1, cardinality(ids), (select count(distinct i) from unnest(ids) i));
end $$;
select is(pg_temp.all_pages(), 't 4 4', 'DLQ-03: a list by cursor goes on with it');
create temp table done as select (ojs.ack(pg_temp.held('res'), to_jsonb(repeat('x', 1500)))).id as id
    from generate_series(1, 3);
select is((select concat_ws(' ', (select count(*) from jsonb_object_keys(r #> '{body,results}')),
    jsonb_array_length(r #> '{body,remaining}'))
    from (select pg_temp.http('POST', '/ojs/v1/jobs/results', jsonb_build_object('ids', jsonb_agg(id))) as r
    from done) d),
    '2 1', 'RES-03: results that do not fit are named');
create or replace function ojs_http.most_bytes() returns bigint language sql immutable as $$
    select 32::bigint * 1024 * 1024 $$;
reset ojs.max_envelope_size;

-- WORKERS ----------------------------------------------------------------------------------------------------------

select is((pg_temp.http('POST', '/ojs/v1/workers/register',
    '{"worker_id": "rg", "hostname": "h", "pid": 7, "queues": ["q"], "concurrency": 2, "labels": ["l"], "version": '
    '"1.2", "started_at": "2026-01-01T00:00:00Z"}') #>> '{body,visibility_timeout_default}'),
    '1800', 'R-83: a worker is told how long its leases are');
select pg_temp.http('POST', '/ojs/v1/workers/heartbeat',
    '{"worker_id": "rg", "active_jobs": [], "visibility_timeout_ms": 5000}') \g /dev/null
select pg_temp.http('POST', '/ojs/v1/workers/heartbeat',
    '{"worker_id": "rg", "active_jobs": [], "concurrency": 3}') \g /dev/null
select pg_temp.keep(pg_temp.http('GET', '/ojs/v1/admin/workers/rg')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('body.hostname'), pg_temp.got('body.pid'), pg_temp.got('body.queues'),
    pg_temp.got('body.concurrency'), pg_temp.got('body.version'), pg_temp.got('body.started_at')),
    'h 7 ["q"] 3 1.2 2026-01-01T00:00:00Z', 'WRK-02: a heartbeat changes only what it says');
select pg_temp.http('POST', '/ojs/v1/workers/heartbeat', '{"worker_id": "plain"}') \g /dev/null
select is(pg_temp.http('GET', '/ojs/v1/admin/workers/plain') #> '{body,queues}', '[]',
    'HTTP-12: a worker that says nothing of queues');
select pg_temp.pushed('leased') \g /dev/null
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/workers/fetch',
    '{"queues": ["leased"], "worker_id": "up"}')) \g /dev/null
select is(pg_temp.got('body.jobs.0.lease_expires_at')::timestamptz
    - pg_temp.got('body.jobs.0.started_at')::timestamptz, interval '30 min',
    'R-83: over HTTP a lease lasts half an hour');
select is((select lease_expires_at - started_at from ojs.claim((select queue from ojs.push('a', queue => 'leased')),
    'w')), interval '30 s', 'R-83: in SQL it does not');
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/workers/heartbeat',
    jsonb_build_object('worker_id', 'up', 'active_jobs', array[upper(pg_temp.got('body.jobs.0.id')), 'no id'])))
    \g /dev/null
select is(concat_ws(' ', jsonb_array_length(pg_temp.got('body.jobs_extended')::jsonb), pg_temp.got('body.lost_jobs')),
    '1 ["no id"]', 'R-34: ids in capitals count, and what is no id is lost');
select is(pg_temp.error('POST', '/ojs/v1/workers/fetch', jsonb_build_object('queues', array[name])),
    '400 invalid_request', 'R-87: no name of a queue: ' || name) from unnest('{NOPE!,*,""}'::text[]) name;
select pg_temp.held('leased', 'typed') as id \gset
select is(pg_temp.http('POST', '/ojs/v1/workers/nack',
    jsonb_build_object('job_id', :'id', 'error', '{"type": "IOError", "message": "no"}'::jsonb))
    #>> '{body,job,errors,0,code}', 'handler_error', 'ERR-01: the code of an error that has a type alone');
select is(pg_temp.error('PUT', '/ojs/v1/jobs/' || :'id' || '/progress', jsonb_build_object('data', data)),
    '400 invalid_request', 'PRG-01: data is an object, not ' || data::text)
    from unnest(array['"x"', '[1]']::jsonb[]) data;

-- One that is stale is removed, and its jobs come back as a dead worker's do.
select pg_temp.pushed('st') \g /dev/null
select pg_temp.http('POST', '/ojs/v1/workers/fetch',
    '{"queues": ["st"], "worker_id": "st2", "visibility_timeout_ms": 3600000}') \g /dev/null
select pg_temp.http('POST', '/ojs/v1/workers/heartbeat', '{"worker_id": "st2"}') \g /dev/null
select id from ojs.jobs where queue = 'st' \gset
select pg_temp.clock('17 s') \g /dev/null
select is(pg_temp.error('DELETE', '/ojs/v1/admin/workers/st2'), '204', 'ADM-03: a stale worker is removed');
select is(concat_ws(' ', j ->> 'state', j ->> 'attempt', j #>> '{errors,0,type}'), 'available 1 worker_death',
    'ADM-03: its jobs are given back') from ojs.info(:'id') j;
select pg_temp.clock('0') \g /dev/null

-- CRON -------------------------------------------------------------------------------------------------------------

create function pg_temp.entry(method text, path text, body jsonb) returns text language sql as $$
    select concat_ws(' ', r ->> 'status', r #>> '{body,cron,timezone}', r #>> '{body,cron,overlap_policy}',
        r #>> '{body,cron,enabled}', r #>> '{body,cron,description}', r #>> '{body,error,details,field}')
    from pg_temp.http(method, '/ojs/v1/cron' || path, body) r
$$;
select is(pg_temp.entry('POST', '', '{"name": "c", "cron": "* * * * * *", "type": "cr.on", "args": {"a": 1}}'),
    '400 args', 'CRN-05: args is an array');
select is(pg_temp.entry('POST', '',
    '{"name": "c", "cron": "0 1 * * *", "type": "cr.on", "args": [1], "meta": {"k": 1}, "timezone": '
    '"America/New_York", "overlap_policy": "allow", "enabled": false, "description": "d"}'),
    '201 America/New_York allow false d', 'CRN-01: registered');
select is(pg_temp.entry('PATCH', '/c',
    '{"description": "x", "enabled": null, "timezone": null, "overlap_policy": null}'),
    '200 America/New_York allow false x', 'ENV-23: null is as absent');
select is(pg_temp.entry('PATCH', '/c', '{"cron": "0 2 * * *", "type": "cr.two", "options": {"queue": "q2"}}'),
    '200 America/New_York allow false x', 'CRN-01: a change leaves the rest');
select is((select job - 'specversion' from ojs.crons where name = 'c'),
    '{"type": "cr.two", "args": [1], "meta": {"k": 1}, "options": {"queue": "q2"}}', 'CRN-01: of the job, too');
select is(pg_temp.entry('PATCH', '/c', '{"queue": "q3", "options": {"meta": {"k": 2}}}'),
    '200 America/New_York allow false x', 'CRN-01: and wherever an attribute stands');
select is((select job - 'specversion' from ojs.crons where name = 'c'),
    '{"type": "cr.two", "args": [1], "queue": "q3", "options": {"meta": {"k": 2}}}', 'CRN-01: it is there once');
select is(pg_temp.entry('PATCH', '/c', '{"name": "d", "enabled": true}'), '400 name',
    'CRN-01: another name than the path''s');
select is(pg_temp.entry('POST', '', '{"name": "c", "cron": "0 1 * * *", "type": "cr.on", "args": [1]}'),
    '200 UTC skip false', 'CRN-01: registered again, what is left out is the default, but for enabled');
select is(pg_temp.error('PATCH', '/ojs/v1/cron/nosuch', body), '404 not_found',
    'CRN-01: a change makes no entry: ' || body::text)
    from unnest(array['{"enabled": false}', '{"cron": "* * * * *", "type": "a", "args": []}']::jsonb[]) body;
select is(pg_temp.http('PATCH', '/ojs/v1/cron/nosuch', '{"enabled": false}') #>> '{body,error,details,resource_id}',
    'nosuch', 'CRN-01: and says which');
select is(pg_temp.http('POST', '/ojs/v1/cron',
    '{"name": "c", "cron": "0 1 * * *", "type": "cr.on", "args": [1]}') #> '{body,cron}' #- '{created}',
    pg_temp.http('GET', '/ojs/v1/cron/c') #> '{body,cron}', 'CRN-02: an entry has one shape');
select is((select concat_ws(' ', r #> '{body,count}', r #> '{body,crons,0,options}')
    from pg_temp.http('GET', '/ojs/v1/cron') r), '1 {}', 'CRN-02: in lists, too');

-- THE WORDS OF ERRORS ----------------------------------------------------------------------------------------------

select is(pg_temp.http(method, path, body) #>> '{body,error,details,field}', field,
    format('ERR-08: a field by its name in HTTP: %s %s', path, body)) from (values
    ('POST', '/ojs/v1/jobs', '{"type": "a", "args": [], "options": {"timeout_ms": "x"}}'::jsonb, 'timeout_ms'),
        ('POST', '/ojs/v1/jobs', '{"type": "a", "args": [], "options": {"delay_until": "x"}}', 'delay_until'),
    ('POST', '/ojs/v1/jobs', '{"type": "a", "args": [], "visibility_timeout_ms": "x"}', 'visibility_timeout_ms'),
        ('POST', '/ojs/v1/workers/heartbeat', '{"worker_id": ""}', 'worker_id'),
    ('POST', '/ojs/v1/jobs/bulk/cancel', '{"job_ids": ["x"]}', 'job_ids'),
        ('POST', '/ojs/v1/jobs/results', '{"ids": ["x"]}', 'ids'),
    ('PUT', '/ojs/v1/queues/q/config', '{"backpressure": {"strategy": "x"}}', 'strategy')) e (method, path,
        body, field);
select is(pg_temp.http('POST', '/ojs/v1/jobs/bulk/cancel', '{"job_ids": ["x"]}') #>> '{body,error,message}',
    'job_ids must be an array of job ids', 'ERR-08: in the message, too');
select is(ojs_http.hint_of(hint), want, 'ERR-08: a hint says nothing of SQL: ' || hint)
    from (values ('Call ojs.purge_queue(name, states, confirm => true).', 'Send "confirm": true once you are sure.'),
    ('Call it with confirm => true.', 'Send "confirm": true once you are sure.'),
        ('Look at the job''s state with ojs.info(job_id).', 'GET /ojs/v1/jobs/:id tells the state of the job.'),
    ('Call ojs.work_open(queue, worker) first.', null),
        ('Raise ojs.max_args_depth.', 'Raise ojs.max_args_depth.')) h (hint, want);
select is((select r #> '{body,error,details,max_bytes}'
    from pg_temp.http('POST', '/ojs/v1/jobs', jsonb_build_object('type', 'a', 'args', '[]'::jsonb, 'meta',
    jsonb_build_object('x', repeat('x', 70000)))) r), '65536', 'payload limits: the bound by its name in the text');
select is(pg_temp.error('POST', '/ojs/v1/admin/jobs/01920000-0000-7000-8000-00000000000c/retry', body), want,
    'ADM-05: overrides of a retry: ' || body::text)
from (values ('{"override": null}'::jsonb, '404 not_found'),
    ('{"override": {"args": {"a": 1}}}', '400 invalid_request'), ('{"args": 1}', '400 invalid_request')) o (body, want);

-- NOT TO WAIT ------------------------------------------------------------------------------------------------------

create function pg_temp.at_once(method text, path text, body jsonb, headers jsonb) returns text language sql as $$
    select concat_ws(' ', r ->> 'status', r #>> '{headers,OJS-Would-Wait}')
        from pg_temp.http(method, path, body, '{"OJS-Do-Not-Wait": "1"}' || headers) r
$$;
select ojs.create_queue('blocked', '{"max_size": 1, "discard": "block", "block_timeout": "PT20S"}') \g /dev/null
select pg_temp.pushed('blocked') as id \gset
set local statement_timeout = '15s';
select is(pg_temp.at_once(method, path, body, headers), want, format('not to wait: %s %s', path, headers)) from (values
    ('GET', '/ojs/v1/jobs/' || :'id' || '/result?wait=true&timeout=25', null::jsonb, '{}'::jsonb, '408 25'),
        ('GET', '/ojs/v1/jobs/' || :'id' || '/result?wait', null, '{}', '408 30'),
    ('HEAD', '/ojs/v1/jobs/' || :'id' || '/result?wait=1', null, '{}', '408 30'),
        ('GET', '/ojs/v1/jobs/' || :'id' || '/result?wait=true&timeout=0', null, '{}', '408'),
    ('GET', '/ojs/v1/jobs/' || :'id' || '/result', null, '{}', '200'),
    ('POST', '/ojs/v1/workers/fetch', '{"queues": ["empty"]}', '{"Prefer": "respond-async, wait=7"}', '200 7'),
        ('POST', '/ojs/v1/workers/fetch', '{"queues": ["empty"]}', '{}', '200'),
    ('POST', '/ojs/v1/jobs', '{"type": "a", "args": [], "queue": "blocked"}', '{}', '429 20'),
        ('POST', '/ojs/v1/jobs', '{"type": "a", "args": [], "queue": "blocked"}', '{"OJS-Block-Timeout": "25"}',
        '429 25'),
    ('POST', '/ojs/v1/jobs', '{"type": "a", "args": [], "queue": "blocked"}', '{"OJS-Block-Timeout": "0"}', '429'),
    ('POST', '/ojs/v1/jobs/batch', '{"jobs": [{"type": "a", "args": [], "queue": "blocked"}]}', '{}', '429 20'),
        ('POST', '/ojs/v1/jobs/bulk', '{"jobs": [{"type": "a", "args": [], "queue": "blocked"}]}', '{}', '422 20'),
    ('POST', '/ojs/v1/jobs', '{"type": "a", "args": [], "queue": "full"}', '{}', '429')) r (method, path, body,
        headers, want);
set local statement_timeout = 0;

select * from finish();
rollback;
