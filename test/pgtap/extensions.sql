-- extensions.sql: what the documents of the extensions that the manifest claims require, a test for each requirement:
-- MAN-02. Those of backpressure, bulk-operations, payload-limits, results and timeouts are here; the others have cases
-- of the official suite and files of their own. Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();
\ir helpers.psql
\ir http.psql

create function pg_temp.claims(extension text) returns bigint language sql as $$
    select count(*) from jsonb_path_query(ojs.manifest(), '$.extensions.official[*] ? (@.name == $name)',
        jsonb_build_object('name', extension))
$$;
create function pg_temp.push(queue text, more jsonb default '{}') returns uuid language sql as $$
    select (pg_temp.http('POST', '/ojs/v1/jobs', '{"type": "order.ship", "args": [1]}' || more
        || jsonb_build_object('options', jsonb_build_object('queue', queue))) #>> '{body,job,id}')::uuid
$$;
create function pg_temp.fetched(queue text) returns bigint language sql as $$
    select jsonb_array_length(pg_temp.http('POST', '/ojs/v1/workers/fetch', jsonb_build_object('queues',
        jsonb_build_array(queue), 'worker_id', 'w', 'visibility_timeout_ms', 36000000)) #> '{body,jobs}')
$$;
create function pg_temp.job(id uuid) returns jsonb language sql as $$
    select pg_temp.http('GET', '/ojs/v1/jobs/' || id) #> '{body,job}'
$$;
create function pg_temp.event(type text, job uuid) returns jsonb language sql as $$
    select e.data from ojs.events e where e.type = $1 and (job is null or e.job_id = job) limit 1
$$;
select is(pg_temp.claims(name), 1::bigint, name || ' is claimed (MAN-02)')
from unnest('{backpressure,bulk-operations,payload-limits,results,timeouts}'::text[]) name;
select is(pg_temp.claims('queue-config'), 0::bigint,
    'queue-config is not: an exhausted job stays in its queue (MAN-02)');

-- BACKPRESSURE -----------------------------------------------------------------------------------------------------

select is(pg_temp.http('PUT', '/ojs/v1/admin/queues/narrow/config', '{"backpressure": {"max_depth": 2}}')
    #> '{body,config,max_size}', '2', 'backpressure BP.003: the Admin API bounds a queue');
select is(pg_temp.http('GET', '/ojs/v1/admin/queues/narrow/config') #> '{body,config,max_size}', '2',
    'backpressure BP.003: and shows the bound');
select pg_temp.push('narrow') as first, pg_temp.push('narrow') as second \gset
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs', '{"type": "order.ship", "args": [], "queue": "narrow"}'))
    \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('body.error.code')), '429 QUEUE_FULL',
    'backpressure BP.001, BP.002: a job beyond the bound is rejected');
select cmp_ok(pg_temp.got('headers.Retry-After')::int, '>=', 1, 'backpressure BP.002: with Retry-After');
select is(concat_ws(' ', pg_temp.got('headers.X-OJS-Queue-Depth'), pg_temp.got('headers.X-OJS-Queue-Bound')), '2 2',
    'backpressure BP.005: with the depth and the bound');
select is((select array_agg(id order by seq) from ojs.jobs where queue = 'narrow' and state = 'available'),
    array[:'first', :'second']::uuid[], 'backpressure 5.3: nothing is dropped unless a queue says so');
-- Its event, backpressure.rejected (BP.004), comes with the commit: test/conformance/cases/ext-backpressure.
select is(pg_temp.http('PUT', '/ojs/v1/admin/queues/narrow/config', '{"backpressure": {"max_depth": 3}}') -> 'status',
    '200', 'backpressure BP.003: the bound is changed');
select is(pg_temp.error('POST', '/ojs/v1/jobs/batch', '{"jobs": [{"type": "a", "args": [], "queue": "narrow"}, '
    '{"type": "a", "args": [], "queue": "narrow"}]}') || ' ' || (select count(*) from ojs.jobs
    where queue = 'narrow'), '429 QUEUE_FULL 2', 'backpressure 9.3: a batch is not accepted in part');
select is(pg_temp.http('PUT', '/ojs/v1/admin/queues/narrow/config', '{"backpressure": {"max_depth": 0}}') -> 'status',
    '200', 'backpressure 6.2: 0 is no bound');
select isnt(pg_temp.push('narrow'), null, 'backpressure 6.2: to a queue without a bound one can push');

-- BULK OPERATIONS --------------------------------------------------------------------------------------------------

create function pg_temp.items() returns text language sql as $$
    select pg_temp.got('status') || ': ' || string_agg(concat_ws(' ', i -> 'index', i ->> 'status',
        i #>> '{error,code}'), ', ' order by n)
    from answer, jsonb_array_elements(r #> '{body,items}') with ordinality as e(i, n)
$$;
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs/bulk', '{"jobs": [{"type": "a", "args": [], "queue": "bulk"}, '
    '{"type": "Bad", "args": [], "queue": "bulk"}, {"type": "b", "args": [], "queue": "bulk"}]}')) \g /dev/null
select is(pg_temp.items(), '207: 0 created, 1 failed invalid_request, 2 created',
    'bulk-operations BLK.001, BLK.002, BLK.004: partial by default, an entry for each job in its order');
select is(concat_ws(' ', pg_temp.got('body.total'), pg_temp.got('body.succeeded'), pg_temp.got('body.failed')), '3 2 1',
    'bulk-operations BLK.001: with the sums');
select is(pg_temp.fetched('bulk') + pg_temp.fetched('bulk') + pg_temp.fetched('bulk'), 2::bigint,
    'bulk-operations 5.4: what succeeded is there for workers, what failed is not');
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs/bulk', '{"jobs": [{"type": "Bad", "args": []}]}')) \g /dev/null
select is(pg_temp.items(), '422: 0 failed invalid_request', 'bulk-operations 5.3: 422 where all fail');
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs/bulk', '{"jobs": [{"type": "a", "args": []}]}')) \g /dev/null
select is(pg_temp.items(), '201: 0 created', 'bulk-operations 11.2: 201 where none fails');
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs/bulk', '{"atomicity": "atomic", "jobs": [{"type": "a", "args": '
    '[], "queue": "whole"}, {"type": "Bad", "args": []}]}')) \g /dev/null
select is(pg_temp.items() || ' ' || (select count(*) from ojs.jobs where queue = 'whole'),
    '422: 0 rolled_back, 1 failed invalid_request 0', 'bulk-operations 5.3: an atomic one is refused as a whole');
set local ojs.max_batch_size = 100;
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs/bulk', jsonb_build_object('jobs', (select
    jsonb_agg('{"type": "a", "args": [], "queue": "many"}'::jsonb) from generate_series(1, 101))))) \g /dev/null
select is(concat_ws(' ', pg_temp.got('status'), pg_temp.got('headers.X-OJS-Max-Batch-Size'),
    (select count(*) from ojs.jobs where queue = 'many')), '413 100 0',
    'bulk-operations BLK.003: too large a batch is refused as a whole, with the maximum');
select is(pg_temp.http('POST', '/ojs/v1/jobs/bulk', jsonb_build_object('jobs', (select
    jsonb_agg('{"type": "a", "args": [], "queue": "many"}'::jsonb) from generate_series(1, 100)))) -> 'status', '201',
    'bulk-operations BLK.005: a hundred jobs are no large batch');
set local ojs.max_batch_size = 99;
select is(pg_temp.claims('bulk-operations'), 0::bigint,
    'bulk-operations BLK.005: where a hundred are too many, it is not claimed (R-96)');
reset ojs.max_batch_size;
select pg_temp.push('ends') as job \gset
select is(pg_temp.error('POST', '/ojs/v1/jobs/bulk/' || verb, body::jsonb), '400 invalid_request',
    format('bulk-operations 6 to 8: either ids or a filter: %s %s', verb, body))
from unnest('{cancel,retry,delete}'::text[]) verb,
    unnest(array['{}', format('{"job_ids": ["%s"], "filter": {"queue": "ends"}}', :'job')]) body;
create function pg_temp.tried(verb text, job uuid) returns text language plpgsql as $$
declare
    item jsonb := pg_temp.http('POST', '/ojs/v1/jobs/bulk/' || verb, jsonb_build_object('job_ids',
        jsonb_build_array(job))) #> '{body,items,0}';
begin
    return concat_ws(' ', item ->> 'status', item ->> 'code', length(item ->> 'reason') > 10,
        pg_temp.job(job) ->> 'state');
end $$;
select is(pg_temp.tried('retry', :'job'), 'skipped INVALID_STATE_TRANSITION t available',
    'bulk-operations 7: a job that waits cannot be retried');
select is(pg_temp.tried('delete', :'job'), 'skipped INVALID_STATE_TRANSITION t available',
    'bulk-operations 8: nor deleted');
select is(pg_temp.tried('cancel', :'job'), 'cancelled cancelled', 'bulk-operations 6: it is cancelled');
select is(pg_temp.tried('retry', :'job'), 'skipped INVALID_STATE_TRANSITION t cancelled',
    'bulk-operations 7: and cannot be retried then, either');
select is(pg_temp.http('POST', '/ojs/v1/jobs/bulk/delete', jsonb_build_object('job_ids', jsonb_build_array(:'job')))
    #>> '{body,items,0,status}', 'deleted', 'bulk-operations 8: a job that has ended is deleted');
select is(pg_temp.error('POST', '/ojs/v1/jobs/bulk', jsonb_build_object('idempotency_key', repeat('k', size), 'jobs',
    '[{"type": "a", "args": []}]'::jsonb)), want, 'bulk-operations 10.2: a key of ' || size || ' characters')
from (values (256, '201'), (257, '400 invalid_request')) k (size, want);
select is(pg_temp.http('POST', '/ojs/v1/jobs/bulk', jsonb_build_object('idempotency_key', repeat('k', 256), 'jobs',
    '[{"type": "a", "args": []}]'::jsonb)) #> '{body,items,0,job,id}', (select to_jsonb(id) from ojs.jobs
    order by seq desc limit 1), 'bulk-operations 10.1: the same key has the same answer, and makes no job');
select is((select array_agg(key order by key) from jsonb_object_keys(pg_temp.event(type, null)) key where key <> 'by'),
    fields::text[], 'bulk-operations 12.1: ' || type)
from (values ('bulk.enqueue.completed', '{atomicity,failed,succeeded,total}'),
    ('bulk.cancel.completed', '{cancelled,skipped,total}'), ('bulk.retry.completed', '{retried,skipped,total}'),
    ('bulk.delete.completed', '{deleted,skipped,total}')) e (type, fields);

-- PAYLOAD LIMITS ---------------------------------------------------------------------------------------------------

-- A job whose document has so many bytes, and one whose meta has; many small values, or one large one.
create function pg_temp.envelope(bytes int, member text) returns text language plpgsql as $$
declare
    body text := case member when 'args' then '{"type":"pay.a","args":["%s"]}'
        when 'many args' then '{"type":"pay.a","args":[1,2,{"a":1,"b":[2,3]},"%s"]}'
        when 'meta' then '{"x":"%s"}' else '{"k1":1,"k2":[1,2],"x":"%s"}' end;
begin
    body := replace(body, '%s', repeat('x', bytes - length(body) + 2));
    return case when member like '%meta' then '{"type":"pay.a","args":[],"meta":' || body || '}' else body end;
end $$;
select is(pg_temp.raw('POST', '/ojs/v1/jobs', pg_temp.envelope(bytes, member),
    '{"content-type": "application/json"}'), want, format('payload-limits %s: %s bytes of %s', id, bytes, member))
from (values ('PL.001', 1048576, 'args', '201'), ('PL.001', 1048576, 'many args', '201'),
    ('PL.006', 1048577, 'args', '413 payload_too_large'), ('PL.006', 1048577, 'many args', '413 payload_too_large'),
    ('PL.002', 65536, 'meta', '201'), ('PL.002', 65536, 'more meta', '201'),
    ('PL.002', 65537, 'meta', '413 metadata_too_large'), ('PL.002', 65537, 'more meta', '413 metadata_too_large'))
    e (id, bytes, member, want);
select is(pg_temp.error('POST', '/ojs/v1/jobs', jsonb_build_object('type', 'a', 'args', '[]'::jsonb, 'queue',
    repeat('q', 256))), '400 invalid_request', 'payload-limits PL.003: a name of a queue of 256 bytes is refused');
select is(pg_temp.error('POST', '/ojs/v1/jobs', jsonb_build_object('type', repeat('a', bytes), 'args', '[]'::jsonb)),
    want, format('payload-limits PL.004: a type of %s bytes', bytes))
from (values (255, '201'), (256, '400 invalid_request')) t (bytes, want);
select is(ojs.manifest() #> '{extensions,payload_limits}', ojs.manifest() -> 'payload_limits',
    'payload-limits PL.005: the manifest has the limits where the document has them');
select is(ojs.manifest() #> '{extensions,payload_limits}' @> '{"max_envelope_bytes": 1048576, "max_meta_bytes": 65536,
    "max_queue_name_bytes": 128, "max_job_type_bytes": 255, "supported_compression": [], "external_references": true,
    "chunking": false, "per_queue_limits": false}', true, 'payload-limits PL.005: all of them');
select is((pg_temp.http('POST', '/ojs/v1/jobs', jsonb_build_object('type', 'a', 'args', args)) #> '{body,job,args}'),
    args, 'payload-limits PL.007: a reference stays as it is')
from (select '[{"__ojs_ref": "s3://bucket/a.json", "size": 1, "checksum": "sha256:abc"}]'::jsonb) r (args);
set local ojs.max_envelope_size = '1023kB';
select is(pg_temp.claims('payload-limits'), 0::bigint,
    'payload-limits PL.001: where less than 1 MB is allowed, it is not claimed (R-96)');
reset ojs.max_envelope_size;
set local ojs.max_meta_size = '65kB';
select is(pg_temp.claims('payload-limits'), 0::bigint,
    'payload-limits PL.002: nor where more than 64 KB of meta are (R-96)');
reset ojs.max_meta_size;

-- RESULTS ----------------------------------------------------------------------------------------------------------

-- A job that has ended: acknowledged with a result.
create function pg_temp.done(result jsonb, more jsonb default '{}') returns uuid language plpgsql as $$
declare
    job uuid := pg_temp.push('results', more);
begin
    perform pg_temp.fetched('results'), pg_temp.http('POST', '/ojs/v1/workers/ack', jsonb_build_object('job_id', job,
        'result', result));
    return job;
end $$;
select is(pg_temp.job(pg_temp.done(result)) -> 'result', result, 'results 12.1, 5.2: INFO gives a result as it was: '
    || result::text)
from unnest(array['true', '42', '5.50', '"x"', '[1, null]', '{"a": {"b": 1.0}}',
    '{"$ref": "ojs://results/external", "uri": "s3://b/r.json", "size_bytes": 5}']::jsonb[]) result;
select pg_temp.done('{"sum": 7}') as job, pg_temp.done('1', '{"result_ttl": 0}') as unkept,
    pg_temp.done('1', '{"result_ttl": 60}') as brief, pg_temp.done('1', '{"result_ttl": -1}') as kept \gset
select is((pg_temp.job(:'job') ->> 'result_expires_at')::timestamptz
    - (pg_temp.job(:'job') ->> 'result_stored_at')::timestamptz, interval '7 days',
    'results 6.2: stored when, and until when');
select is(pg_temp.job(:'job') -> 'result_size_bytes', '10', 'results 6.2: how large');
select is(pg_temp.job(:'unkept') -> 'result', null, 'results 7.1: a result_ttl of 0 keeps none');
select is(pg_temp.http('POST', '/ojs/v1/jobs/results', jsonb_build_object('ids', jsonb_build_array(:'job', :'unkept',
    open))) #> '{body,results}', jsonb_build_object(:'job', '{"state": "completed", "result": {"sum": 7}}'::jsonb,
    :'unkept', '{"state": "completed", "result": null}'::jsonb, open, '{"state": "available", "result": null}'::jsonb),
    'results 9.3: those of many jobs, null where there is none')
from (select pg_temp.push('unfinished')::text) o (open);
select pg_temp.clock('2 minutes') \g /dev/null
select is(pg_temp.http('GET', format('/ojs/v1/jobs/%s/result', :'brief')) -> 'status', '410',
    'results 12.1: after its result_ttl a result is gone');
select is(pg_temp.job(:'kept') -> 'result', '1', 'results 7.1: one of -1 stays');
select pg_temp.clock('0') \g /dev/null
select pg_temp.push('large') as job, pg_temp.fetched('large') \gset
select is(pg_temp.error('POST', '/ojs/v1/workers/ack', jsonb_build_object('job_id', :'job', 'result',
    repeat('x', 1048576)), '{"content-type": "application/json"}') || ' ' || (pg_temp.job(:'job') ->> 'state'),
    '413 result_too_large active', 'results 7.2: too large a result is refused, and the job stays active');
select pg_temp.push('failing', '{"retry": {"max_attempts": 1}}') as job, pg_temp.fetched('failing') \gset
select pg_temp.http('POST', '/ojs/v1/workers/nack', jsonb_build_object('job_id', :'job', 'error',
    '{"code": "boom", "message": "broken"}'::jsonb)) \g /dev/null
select is(concat_ws(' ', j ->> 'state', j #>> '{error,message}'), 'discarded broken',
    'results 12.1: the error of a job that was discarded is stored') from pg_temp.job(:'job') j;
select is(pg_temp.http('GET', format('/ojs/v1/jobs/%s/result', :'job')) #>> '{body,error,message}', 'broken',
    'results 5.1: and retrieved as a result is');
select ojs.create_workflow('{"type": "chain", "steps": [{"type": "a", "args": [], "options": {"queue": "steps",
    "result_ttl": 1}}, {"type": "b", "args": [], "options": {"queue": "steps"}}]}') ->> 'id' as workflow \gset
select ojs.ack(id, '{"rows": 3}') from ojs.claim('steps', 'w') \g /dev/null
select pg_temp.clock('1 hour') \g /dev/null
select ojs.tick() is null \g /dev/null
select is((select c.extra -> 'parent_results' from ojs.claim('steps', 'w') c), '[{"rows": 3}]',
    'results 9.1: a workflow that runs keeps the results of its steps, whatever their result_ttl');
select pg_temp.clock('0') \g /dev/null

-- TIMEOUTS ---------------------------------------------------------------------------------------------------------

-- A job that is worked on, and then nobody says anything for so long but that the worker lives.
create function pg_temp.after(silence interval, more jsonb) returns uuid language plpgsql as $$
declare
    job uuid;
begin
    perform pg_temp.clock('0');
    job := pg_temp.push('slow', more);
    perform pg_temp.fetched('slow');
    perform ojs.beat('w', array[job], lease => '10 hours');
    perform pg_temp.clock(silence);
    perform ojs.beat('w');
    perform ojs.tick();
    return job;
end $$;
create function pg_temp.how(job uuid) returns text language sql as $$
    select concat_ws(' ', j ->> 'state', j #>> '{error,type}', j #>> '{error,timeout_kind}',
        j #>> '{error,limit_seconds}',
        (j #>> '{error,elapsed_seconds}')::numeric between 90 and 1000, length(j #>> '{error,message}') > 10)
    from pg_temp.job(job) j
$$;
select pg_temp.after('100 s', '{"timeout": 60, "grace_period": 0}') as slow,
    pg_temp.after('100 s', '{"timeout": 60, "grace_period": 0, "retry": {"max_attempts": 1}}') as last,
    pg_temp.after('100 s', '{"heartbeat_timeout": 60}') as stalled,
    pg_temp.after('100 s', '{"heartbeat_timeout": 60, "retry": {"max_attempts": 1}}') as last_stalled,
    pg_temp.after('100 s', '{"timeout": 30, "grace_period": 500, "total_timeout": 60}') as total,
    pg_temp.after('100 s', '{"timeout": 60, "grace_period": 50, "heartbeat_timeout": 500}') as graceful,
    pg_temp.after('100 s', '{}') as ordinary \gset
select is(pg_temp.how(:'slow'), 'retryable timeout execution 60 t t',
    'timeouts 12.1, 8: the server ends an attempt that takes too long, with all that the error must say');
select is(pg_temp.how(:'last'), 'discarded timeout execution 60 t t',
    'timeouts 8: discarded where it was the last one');
select is(pg_temp.how(:'stalled'), 'retryable stalled stalled 60 t t',
    'timeouts 12.1, 7.3: a job of which no heartbeat comes any more is stalled');
select is(pg_temp.how(:'last_stalled'), 'discarded stalled stalled 60 t t',
    'timeouts 5.5: discarded at its last attempt');
select is(pg_temp.how(:'total'), 'discarded total_timeout total 60 t t',
    'timeouts 5.2: the total timeout goes before the attempts that are left');
select is(pg_temp.how(:'graceful'), 'active', 'timeouts 5.4: not before the grace period is over');
select isnt(pg_temp.job(:'ordinary') ->> 'state', 'active',
    'timeouts 5.5: a job that says nothing of heartbeats has a default');
select pg_temp.clock('0') \g /dev/null
select pg_temp.push('waits', '{"enqueue_ttl": 60}') as waiting \gset
select pg_temp.clock('100 s') \g /dev/null
select ojs.tick() is null \g /dev/null
select is(pg_temp.how(:'waiting'), 'discarded enqueue_ttl_expired enqueue_ttl 60 t t',
    'timeouts 5.3: a job that nobody began in time is discarded');
select is((select array_agg(key order by key) from jsonb_object_keys(pg_temp.event(type, job)) key
    where key = any ('{attempt,elapsed_seconds,job_id,job_type,limit_seconds,queue,timeout_kind}'::text[])),
    '{attempt,elapsed_seconds,job_id,job_type,limit_seconds,queue,timeout_kind}'::text[], 'timeouts 11.1: ' || type)
from (values ('job.timeout', :'slow'::uuid), ('job.stalled', :'stalled'), ('job.total_timeout', :'total'),
    ('job.ttl_expired', :'waiting')) e (type, job);
select pg_temp.clock('0') \g /dev/null
select is(ojs.queue_info('slow') #> '{config,default_timeout}', '1800',
    'timeouts 5.1: there is a default execution timeout');
select is(pg_temp.error('POST', '/ojs/v1/jobs', '{"type": "a", "args": []}' || given), want,
    'timeouts 6: ' || given::text)
from (values ('{"timeout": -1}'::jsonb, '400 invalid_request'), ('{"timeout": "1"}', '400 invalid_request'),
    ('{"total_timeout": 59, "timeout": 60}', '400 invalid_request'), ('{"total_timeout": 60, "timeout": 60}', '201'),
    ('{"grace_period": -1}', '400 invalid_request'), ('{"grace_period": 0}', '201'),
    ('{"heartbeat_timeout": 0}', '400 invalid_request'), ('{"heartbeat_timeout": -1}', '400 invalid_request'),
    ('{"enqueue_ttl": 0}', '400 invalid_request'), ('{"enqueue_ttl": -1}', '400 invalid_request')) v (given, want);
select ojs.create_workflow('{"type": "chain", "steps": [{"type": "a", "args": [], "options": {"queue": "halts",
    "timeout": 1, "grace_period": 0, "retry": {"max_attempts": 1}}}, {"type": "b", "args": []}]}') ->> 'id'
    as chain \gset
select id as step from ojs.claim('halts', 'w', lease => '10 hours') \gset
select ojs.checkpoint(:'stalled', '{"row": 7}') is null \g /dev/null
select pg_temp.clock('1 hour') \g /dev/null
select ojs.tick() is null \g /dev/null
select is(ojs.workflow(:'chain') ->> 'state', 'failed', 'timeouts 9.2: a step that is discarded halts its chain');
select is((select c.extra -> 'last_checkpoint' from ojs.claim('slow', 'w2', 100) c where c.id = :'stalled'),
    '{"row": 7}', 'timeouts 9.3: the next attempt has the last checkpoint');

select * from finish();
rollback;
