-- http_rules.sql: rules of the HTTP binding and its extensions, one by one: bodies and paths without bound, repeated and
-- duplicate pushes, times, cron, workers, lists, errors.
begin;
select no_plan();
\ir helpers.psql

\ir http.psql

-- BOUNDS -----------------------------------------------------------------------------------------------------------

savepoint bounds;
set local statement_timeout = '20s';
select is(pg_temp.error('GET', path), '404 not_found', 'HTTP-10: a path of many parts is looked up in no time')
from unnest(array[repeat('/a', 15000), '/ojs/v1/jobs' || repeat('/', 30000), '/ojs/v1/jobs/' || repeat('a', 30000)]) path;
rollback to bounds;
select is(pg_temp.raw('POST', path, repeat('[', 200000)), '413 payload_too_large', 'HTTP-10: of many values, refused before it is read: ' || path)
from unnest('{/ojs/v1/jobs,/ojs/v1/workers/ack,/ojs/v1/workers/fetch}'::text[]) path;
select is(pg_temp.raw('POST', path, repeat('[', 300000)), '413 payload_too_large', 'HTTP-10: a batch may hold more, but not everything: ' || path)
from unnest('{/ojs/v1/jobs/batch,/ojs/v1/jobs/bulk}'::text[]) path;
select is(pg_temp.raw('POST', '/ojs/v1/jobs', '{' || repeat('x', 2 * 1024 * 1024)), '413 payload_too_large', 'HTTP-10: of many bytes, refused before it is read');
select is(pg_temp.raw('POST', '/ojs/v1/jobs/batch', '{' || repeat('x', 2 * 1024 * 1024)), '400 invalid_payload', 'HTTP-10: which a batch may have');
select is(ojs_http.values_in('{"a,[{\"": [1, {"b\\": null}], "c": ",,,"}'), 6::bigint, 'HTTP-10: values are counted outside of strings');
select is(pg_temp.error('POST', '/ojs/v1/jobs', jsonb_build_object('type', 'a', 'args', array[repeat('x,', 400000)])), '201', 'HTTP-10: commas in a string are none');
select is(pg_temp.error('POST', '/ojs/v1/queues/q/' || path, body), '400 invalid_payload', format('HTTP-10: a body that is no object: %s %s', path, body))
from unnest('{pause,resume}'::text[]) path, unnest(array['[]', '1', '"x"', 'null']::jsonb[]) body;
select is(pg_temp.error('POST', '/ojs/v1/jobs', '{"type": "a", "args": []}', jsonb_build_object('Content-Encoding', encoding)), want, 'PLD-05: Content-Encoding: ' || encoding)
from (values ('gzip', '415 unsupported'), ('identity', '201'), ('', '201')) e (encoding, want);
select is(pg_temp.error('POST', '/ojs/v1/jobs/01920000-0000-7000-8000-00000000000c/ack', '{"job_id": "01920000-0000-7000-8000-00000000000d"}'), '400 invalid_request', 'HTTP-01: a body that names another job than the path');

-- DUPLICATES -------------------------------------------------------------------------------------------------------

create function pg_temp.batch(more jsonb, path text default 'batch') returns jsonb language sql as $$
    select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs/' || path, '{"jobs": [{"type": "a", "args": [], "queue": "twice"}, {"type": "b", "args": [], "queue": "twice"}]}' || more))
$$;
create function pg_temp.jobs_in(queue text) returns bigint language sql as $$ select count(*) from ojs.jobs j where j.queue = $1 $$;
select pg_temp.batch('{"deduplication_key": "k"}') \g /dev/null
select is(pg_temp.got('status'), '201', 'DDP-06: a batch with a key');
select pg_temp.batch('{"deduplication_key": "k"}') \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.count'), pg_temp.got('body.jobs.0.deduplicated'), pg_temp.got('body.jobs.1.deduplicated'), pg_temp.jobs_in('twice')),
    '200 2 true true 2', 'DDP-06: again: duplicates');
select pg_temp.batch('{"deduplicationKey": "k"}') \g /dev/null
select is(pg_temp.got('status'), '200', 'DDP-06: the key by its other name');
select pg_temp.batch('{"deduplicationKey": "k"}', 'bulk') \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.items.0.status')), '200 duplicate', 'DDP-06: in bulk, too');
select pg_temp.batch('{"deduplication_key": "k", "deduplicationKey": "l"}') \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.error.details.field')), '400 deduplication_key', 'DDP-06: two names and two keys');
select pg_temp.batch('{"deduplication_key": "short", "deduplication_ttl": "PT1S"}') \g /dev/null
select pg_temp.clock('2 s') \g /dev/null
select pg_temp.batch('{"deduplication_key": "short", "deduplication_ttl": "PT1S"}') \g /dev/null
select pg_temp.clock('0') \g /dev/null
select is(pg_temp.got('status'), '201', 'DDP-03: the key of a batch is held for as long as it says');
select pg_temp.batch('{"deduplication_key": "m", "deduplication_ttl": "soon"}') \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.error.details.field')), '400 deduplication_ttl', 'DDP-03: which must be a duration');
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs', '{"type": "a", "args": [], "queue": "twice", "deduplication_key": "k"}')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.deduplicated'), (select r -> 'headers' ? 'Location' from answer)), '200 true f', 'DDP-02: a key that a batch holds names no job');
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs', '{"type": "a", "args": [], "queue": "once", "deduplication_key": "single"}')) \g /dev/null
select pg_temp.got('body.job.id') as id \gset
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs', '{"type": "a", "args": [], "queue": "once", "deduplication_key": "single"}')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('body.deduplicated'), pg_temp.got('body.job.deduplicated'), pg_temp.got('headers.Location') = '/ojs/v1/jobs/' || :'id'), 'true true t', 'UNQ-05: an ignored duplicate says so beside the job');

-- A hook that drops an item.
create function public.no_b(job jsonb) returns jsonb language sql as $$ select case when job ->> 'type' <> 'b' then job end $$;
select ojs.register_hook('no-b', 'enqueue', 'public.no_b(jsonb)') is null as hooked \gset
select pg_temp.batch('{}') \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.jobs.0.type'), pg_temp.got('body.jobs.1.status')), '201 a dropped', 'MW-03: one that a hook drops leaves the others alone');
select ojs.unregister_hook('no-b') is null as unhooked \gset

-- REPEATED REQUESTS ------------------------------------------------------------------------------------------------

select ojs.create_queue('doa', '{"delete_on_ack": true}') \g /dev/null
create function pg_temp.repeated(path text, more jsonb) returns text language plpgsql as $$
declare
    request jsonb := '{"idempotency_key": "doa", "jobs": [{"type": "a", "args": [1], "queue": "doa"}, {"type": "a", "args": [2], "queue": "doa"}]}' || more;
    first jsonb := pg_temp.http('POST', path, request);
    again jsonb;
begin
    perform ojs.ack(id) from ojs.claim('doa', 'w');
    again := pg_temp.http('POST', path, request);
    return concat_ws(' ', first -> 'status', again -> 'status', first -> 'body' = again -> 'body', pg_temp.jobs_in('doa'), ojs.purge_queue('doa', confirm => true));
end $$;
select is(pg_temp.repeated(path, more), '201 201 t 1 1', format('BLK-02: the first answer, whatever became of its jobs: %s %s', path, more))
from (values ('/ojs/v1/jobs/bulk', '{}'::jsonb), ('/ojs/v1/jobs/batch', '{}'), ('/ojs/v1/jobs/bulk', '{"atomicity": "atomic", "idempotency_key": "doa 2"}')) r (path, more);
select is((select count(*) from ojs.events where type = 'bulk.enqueue.completed' and data ->> 'total' = '2' and data ->> 'succeeded' = '2'), 3::bigint,
    'BLK-02: and an event for each of the two in bulk, and the one with a key above; none for a repetition');
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs/bulk', '{"idempotency_key": "doa", "jobs": [{"type": "a", "args": [1], "queue": "doa"}]}')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.error.code')), '409 conflict', 'BLK-02: another request under the same key');
select ojs.create_queue('full', '{"max_size": 1}') \g /dev/null
select pg_temp.pushed('full') as id \gset
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs/bulk', '{"idempotency_key": "full", "jobs": [{"type": "a", "args": [], "queue": "full"}]}')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.error.retryable'), pg_temp.got('body.items.0.error.retryable'), pg_temp.got('headers.Retry-After') is not null,
    pg_temp.got('headers.X-OJS-Queue-Depth'), pg_temp.got('headers.X-OJS-Queue-Bound')), '422 true true t 1 1', 'ERR-05: what came to nothing may be tried again if an item may');
select ojs.purge_queue('full', confirm => true) \g /dev/null
select is(pg_temp.error('POST', '/ojs/v1/jobs/bulk', '{"idempotency_key": "full", "jobs": [{"type": "a", "args": [], "queue": "full"}]}'), '201', 'ERR-05: under the same key');
-- An answer that is too large to keep whole.
select pg_temp.http('POST', '/ojs/v1/jobs/bulk', request) #>> '{body,items,1,job,id}' as first, pg_temp.http('POST', '/ojs/v1/jobs/bulk', request) #> '{body,items,1,job}' as second
from (select jsonb_build_object('idempotency_key', 'large', 'jobs', jsonb_build_array(job, job, job)) as request
    from (select jsonb_build_object('type', 'a', 'queue', 'large', 'args', array[repeat('x', 500000)]) as job) j) r \gset
select is(concat_ws(' ', :'second'::jsonb ->> 'id' = :'first', :'second'::jsonb ->> 'state', :'second'::jsonb ->> 'abridged', :'second'::jsonb ? 'args', pg_temp.jobs_in('large')),
    't available true f 3', 'BLK-02: of a large answer the jobs are kept without args');

-- Duplicates inside of a batch.
create function pg_temp.twins(path text, more jsonb) returns jsonb language sql as $$
    select pg_temp.keep(pg_temp.http('POST', path, '{"jobs": [{"type": "x", "args": []}, {"type": "twin", "args": [], "unique": {"keys": ["type"]}}, {"type": "twin", "args": [], "unique": {"keys": ["type"]}}]}' || more))
$$;
select pg_temp.twins('/ojs/v1/jobs/batch', '{}') \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.error.code'), pg_temp.got('body.error.details.index'), pg_temp.got('body.error.details.existing_index'), pg_temp.got('body.error.details.existing_job_id') is null),
    '409 duplicate 2 1 t', 'UNQ-05: a twin in the same batch is named by its place');
select pg_temp.twins('/ojs/v1/jobs/bulk', '{"atomicity": "atomic"}') \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.items.2.error.code'), pg_temp.got('body.items.2.error.details.existing_index'), pg_temp.got('body.items.2.error.details.existing_job_id') is null),
    '422 duplicate 1 t', 'UNQ-05: in bulk, too');
select pg_temp.pushed('twins', '{"unique": {"keys": ["type"], "on_conflict": "reject"}}') as id \gset
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs/batch', '{"jobs": [{"type": "test.job", "args": [], "unique": {"keys": ["type"]}}]}')) \g /dev/null
select is(pg_temp.got('body.error.details.existing_job_id'), :'id', 'UNQ-05: and any other by its id');

-- The limits of a batch, and of fetching.
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs/batch', '{"jobs": [{"type": "a", "args": [], "rate_limit": {"key": "batched", "rate": {"limit": 5, "period": "PT1M"}}}]}')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('headers.X-RateLimit-Limit'), pg_temp.got('headers.X-RateLimit-Remaining')), '5 5', 'HTTP-08: a batch tells of limits');
select ojs.create_queue('slow', '{"claim_rate": 1}') \g /dev/null
select pg_temp.http('POST', '/ojs/v1/workers/fetch', '{"queues": ["slow"], "worker_id": "w"}') \g /dev/null
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/workers/fetch', '{"queues": ["slow"], "worker_id": "w"}')) \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('headers.X-RateLimit-Limit'), pg_temp.got('headers.X-RateLimit-Remaining'), pg_temp.got('headers.X-RateLimit-Reset') is not null), '429 1 0 t', 'HTTP-08: a fetch that comes too soon is told the limit');
select is(pg_temp.http('GET', '/ojs/v1/jobs/' || :'id') #>> '{headers,Retry-After}', '1', 'RES-01: an open job may be asked for again');

select * from finish();
rollback;
