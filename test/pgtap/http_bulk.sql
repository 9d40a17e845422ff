-- http_bulk.sql: many jobs in one request over HTTP: BLK-01 to BLK-04, ADM-04, DLQ-07, R-52.
-- Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();
\ir helpers.psql
\ir http.psql

-- PUSHING ----------------------------------------------------------------------------------------------------------

-- index, status, type of the job or code of the error of each item
create function pg_temp.items() returns text language sql as $$
    select string_agg(concat_ws(' ', i ->> 'index', i ->> 'status', i #>> '{job,type}', i #>> '{error,code}'),
        ', ' order by n)
    from answer, jsonb_array_elements(r #> '{body,items}') with ordinality as e(i, n)
$$;
create function pg_temp.totals() returns text language sql as $$
    select concat_ws(' ', r ->> 'status', r #>> '{body,total}', r #>> '{body,succeeded}', r #>> '{body,failed}',
        r #>> '{headers,X-OJS-Batch-Size}') from answer
$$;
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs/bulk',
    '{"jobs": [{"type": "a", "args": [1], "queue": "bulk"}, {"type": "b", "args": [{"c": null}], "queue": "bulk"}]}'))
    \g /dev/null
select is(pg_temp.totals(), '201 2 2 0 2', 'BLK-01: a batch that all goes well');
select is(pg_temp.items(), '0 created a, 1 created b', 'BLK-01: one item for each, in order');
select is(pg_temp.got('body.items.1.job.args'), '[{"c": null}]', 'BLK-01: with its job');
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs/bulk',
    '{"atomicity": "partial", "jobs": [{"type": "a", "args": [], "queue": "bulk"}, {"type": "", "args": []}, {"type": '
    '"a", "args": {}},
    {"args": []}, 7, {"type": "a", "args": "x"}, {"type": "z", "args": [], "queue": "bulk"}]}')) \g /dev/null
select is(pg_temp.totals(), '207 7 2 5 7', 'BLK-01: some go wrong: 207');
select is(pg_temp.items(),
    '0 created a, 1 failed invalid_request, 2 failed invalid_request, 3 failed invalid_request, 4 failed '
    'invalid_request, 5 failed invalid_request, 6 created z', 'BLK-01: and each says how');
select is(pg_temp.got('body.items.2.error.message'), 'args must be an array, not an object',
    'R-01: args must be an array here, too');
select is((select count(*)::int from ojs.jobs where queue = 'bulk'), 4, 'BLK-01: the good ones are there');
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs/bulk', '{"jobs": [{"type": "", "args": []}, {}]}')) \g /dev/null
select is(pg_temp.totals() || ' ' || pg_temp.got('body.error.code'), '422 2 0 2 2 invalid_request',
    'BLK-01: all go wrong: 422');
select is(pg_temp.got('body.error.request_id'), pg_temp.got('headers.X-Request-Id'),
    'HTTP-03: which is an error like others');
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs/bulk',
    '{"atomicity": "atomic", "jobs": [{"type": "a", "args": [], "queue": "atom"}, {"type": "B", "args": []}, {"type": '
    '"a", "args": {}}]}')) \g /dev/null
select is(pg_temp.totals(), '422 3 0 2 3', 'BLK-01: atomic: none, if one goes wrong');
select is(pg_temp.items(), '0 rolled_back, 1 failed invalid_request, 2 failed invalid_request',
    'BLK-01: with the reason of each that would');
select is((select count(*)::int from ojs.jobs where queue = 'atom'), 0, 'BLK-01: and none is there');
select is(pg_temp.error('POST', '/ojs/v1/jobs/bulk',
    '{"atomicity": "atomic", "jobs": [{"type": "a", "args": [], "queue": "atom"}]}'), '201',
    'BLK-01: atomic: all, if all go well');
select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/jobs/bulk',
    '{"jobs": [{"type": "u", "args": [], "unique": {"keys": ["type"], "on_conflict": "ignore"}}, {"type": "u", "args": '
    '[], "unique": {"keys": ["type"], "on_conflict": "ignore"}},
    {"type": "u", "args": [], "unique": {"keys": ["type"], "on_conflict": "reject"}}]}')) \g /dev/null
select is(pg_temp.totals() || ' ' || pg_temp.items(), '207 3 2 1 3 0 created u, 1 duplicate u, 2 failed duplicate',
    'BLK-01: duplicates');
select is(pg_temp.got('body.items.0.job.id'), pg_temp.got('body.items.1.job.id'),
    'BLK-01: which are the job that was there');
select is(pg_temp.error('POST', '/ojs/v1/jobs/bulk',
    '{"jobs": [{"type": "u", "args": [], "unique": {"keys": ["type"], "on_conflict": "ignore"}}]}'), '200',
    'BLK-01: nothing but duplicates creates nothing');
select is(pg_temp.error('POST', '/ojs/v1/jobs/bulk', '{"jobs": []}'), '200', 'BLK-01: nothing at all');
select is(pg_temp.error('POST', '/ojs/v1/jobs/bulk', body), '400 invalid_request', 'HTTP-10: no batch: ' || body::text)
from unnest(array['{}', '{"jobs": {}}', '{"jobs": null}', '{"jobs": [], "atomicity": "some"}',
    '{"jobs": [], "atomicity": 1}', '{"jobs": [], "idempotency_key": 1}',
    '{"jobs": [], "idempotency_key": ""}']::jsonb[]) body;
select is(pg_temp.raw('POST', '/ojs/v1/jobs/bulk', '[]'), '400 invalid_payload', 'R-70: nor is a mere array');
select is(pg_temp.error('POST', '/ojs/v1/jobs/batch',
    '{"atomicity": "partial", "jobs": [{"type": "a", "args": []}, {}]}'), '207',
    'R-52: /jobs/batch is partial where it is asked to be');

-- BLK-04
set local ojs.max_batch_size = 2;
select is(concat_ws(' ', r ->> 'status', r #>> '{body,error,code}', r #>> '{body,error,details,maximum}',
    r #>> '{headers,X-OJS-Max-Batch-Size}'), '413 x_batch_too_large 2 2', 'BLK-04: too many: ' || atomicity)
from unnest('{atomic,partial}'::text[]) atomicity, pg_temp.http('POST', '/ojs/v1/jobs/bulk',
    jsonb_build_object('atomicity', atomicity, 'jobs', '[{}, {}, {}]'::jsonb)) r;
select is(pg_temp.http('POST', '/ojs/v1/jobs/batch',
    '{"jobs": [{"type": "a", "args": []}, {"type": "a", "args": []}, {"type": "a", "args": []}]}')
    #>> '{headers,X-OJS-Max-Batch-Size}', '2', 'BLK-04: /jobs/batch says it, too');
select is(pg_temp.error('POST', '/ojs/v1/jobs/bulk/cancel',
    jsonb_build_object('job_ids', (select jsonb_agg(gen_random_uuid()) from generate_series(1, 3)))),
    '413 x_batch_too_large', 'BLK-04: so are too many ids');
reset ojs.max_batch_size;

-- BLK-02
create function pg_temp.bulk_ids(path text, body jsonb, key text) returns text language sql as $$
    select coalesce(string_agg(coalesce(i #>> '{job,id}', i ->> 'id'), ' '), r ->> 'status')
        from pg_temp.http('POST', path, body, jsonb_strip_nulls(jsonb_build_object('Idempotency-Key', key))) r
    left join lateral jsonb_array_elements(coalesce(r #> '{body,items}', r #> '{body,jobs}')) i on true group by r
$$;
create temp table keyed as select path, pg_temp.bulk_ids(path,
    '{"jobs": [{"type": "i", "args": [1]}, {"type": "i", "args": [2]}]}', path) as ids
    from unnest('{/ojs/v1/jobs/bulk,/ojs/v1/jobs/batch}'::text[]) path;
select is(pg_temp.bulk_ids(path, '{"jobs": [{"type": "i", "args": [1]}, {"type": "i", "args": [2]}]}', path), ids,
    'BLK-02: the same request under the same key has the same answer: ' || path) from keyed;
select is(pg_temp.bulk_ids(path, jsonb_build_object('jobs',
    '[{"type": "i", "args": [1]}, {"type": "i", "args": [2]}]'::jsonb, 'idempotency_key', path), null), ids,
    'BLK-02: the key may stand in the body: ' || path) from keyed;
select is(pg_temp.bulk_ids(path, jsonb_build_object('jobs',
    '[{"type": "i", "args": [1]}, {"type": "i", "args": [2]}]'::jsonb, 'idempotency_key', 'other'), path), ids,
    'BLK-02: the header counts: ' || path) from keyed;
select is(pg_temp.error('POST', path, '{"jobs": [{"type": "i", "args": [3]}]}',
    jsonb_build_object('Idempotency-Key', path)), '409 conflict',
    'BLK-02: another request under the same key: ' || path) from keyed;
select is(pg_temp.error('POST', path, '{"jobs": []}', jsonb_build_object('Idempotency-Key', repeat('k', 257))),
    '400 invalid_request', 'BLK-02: a key that is too long: ' || path) from keyed;
select is((select count(*)::int from ojs.jobs where type = 'i'), 4, 'BLK-02: each was pushed once');

-- CANCELLING, RETRYING, DELETING -----------------------------------------------------------------------------------

create temp table b as select row_number() over () as n,
    pg_temp.pushed('many', jsonb_build_object('meta', jsonb_build_object('n', g), 'priority', g)) as id
    from generate_series(1, 6) g;
select id as active from ojs.claim('many', 'w') \gset
create function pg_temp.ids(variadic numbers int[]) returns jsonb language sql as $$
    select jsonb_build_object('job_ids', jsonb_agg(id order by n)) from b where n = any (numbers) $$;
create function pg_temp.many(path text, body jsonb) returns text language sql as $$
    select concat_ws(' ', r ->> 'status', r #>> '{body,total_matched}',
        coalesce(r #>> '{body,cancelled}', r #>> '{body,retried}', r #>> '{body,deleted}'), r #>> '{body,skipped}',
        (select string_agg(i ->> 'status', ',' order by n) from jsonb_array_elements(r #> '{body,items}')
            with ordinality as e(i, n)))
    from pg_temp.keep(pg_temp.http('POST', path, body)) r
$$;
select is(pg_temp.many('/ojs/v1/jobs/bulk/cancel', '{"filter": {"queue": "many", "meta": {"n": 1}}}'),
    '200 1 1 0 cancelled', 'BLK-03: cancel by meta');
select is(pg_temp.many('/ojs/v1/jobs/bulk/cancel', '{"filter": {"queue": "many", "priority": 2}}'),
    '200 1 1 0 cancelled', 'BLK-03: by priority');
select is(pg_temp.many('/ojs/v1/jobs/bulk/cancel', pg_temp.ids(1, 3)), '207 2 1 1 skipped,cancelled',
    'BLK-03: by ids, in their order: 207 if some could not be');
select is(pg_temp.got('body.items.0.code'), 'INVALID_STATE_TRANSITION', 'BLK-03: with the reason');
select is(pg_temp.many('/ojs/v1/jobs/bulk/cancel', pg_temp.ids(1, 3)), '422 2 0 2 skipped,skipped',
    'BLK-03: 422 if none could be');
select is(pg_temp.many('/ojs/v1/jobs/bulk/cancel', pg_temp.ids(3, 4) || '{"atomicity": "atomic"}'),
    '422 2 0 1 skipped,rolled_back', 'BLK-03: atomic: all or none');
select is((select state from ojs.jobs join b using (id) where n = 4), 'available', 'BLK-03: none, here');
select is(pg_temp.many('/ojs/v1/jobs/bulk/cancel', '{"filter": {"queue": "many"}}'), '200 2 2 0 cancelled,cancelled',
    'BLK-03: by default what is available or scheduled');
select is((select state from ojs.jobs where id = :'active'), 'active', 'BLK-03: and not what is active');
select is(pg_temp.many('/ojs/v1/jobs/bulk/cancel',
    '{"filter": {"queue": "many", "enqueued_before": "2001-01-01T00:00:00Z"}}'), '200 0 0 0',
    'BLK-03: nothing to do is no error');
select is(pg_temp.many('/ojs/v1/jobs/bulk/cancel', '{"filter": {"queue": "many", "state": ["active"]}}'),
    '200 1 1 0 cancelled', 'BLK-03: an active one where it is asked for');
select pg_temp.held('many') as dead \gset
select ojs.fail(:'dead', '{"type": "Boom", "message": "m", "retryable": false}') \g /dev/null
select is(pg_temp.many('/ojs/v1/jobs/bulk/retry', jsonb_build_object('job_ids', jsonb_build_array(upper(:'dead')))),
    '200 1 1 0 retried', 'BLK-03: retry');
select is(pg_temp.many('/ojs/v1/jobs/bulk/retry', '{"filter": {"queue": "many"}}'), '200 0 0 0',
    'BLK-03: only what has failed');
select is(pg_temp.many('/ojs/v1/jobs/bulk/delete', jsonb_build_object('job_ids',
    jsonb_build_array(:'dead', :'active'))), '207 2 1 1 skipped,deleted', 'BLK-03: delete: only what has ended');
select is(pg_temp.many('/ojs/v1/jobs/bulk/delete', '{"filter": {"queue": "many"}}'),
    '200 5 5 0 deleted,deleted,deleted,deleted,deleted', 'BLK-03: by what they are');
select is(pg_temp.error('POST', '/ojs/v1/jobs/bulk/' || operation, body), '400 invalid_request',
    format('BLK-03: refused: %s %s', operation, body))
from unnest('{cancel,retry,delete}'::text[]) operation,
    unnest(array['{}', '{"job_ids": [], "filter": {}}', '{"filter": {}}', '{"filter": {"ids": []}, "confirm": true}',
    '{"filter": {"colour": "red"}}', '{"job_ids": ["x"]}', '{"job_ids": [1]}',
    '{"filter": {"priority": "x"}}', '{"filter": {"priority": 1.5}}', '{"filter": {"meta": 1}}',
        '{"filter": {"queue": "a", "enqueued_after": "x"}}', '{"filter": {"state": "asleep"}}',
        '{"job_ids": [], "atomicity": "x"}']::jsonb[]) body;
select is(pg_temp.error('GET', '/ojs/v1/jobs/bulk/cancel'), '405 x_method_not_allowed', 'HTTP-10: only by POST');

-- FOR ADMINISTRATORS -----------------------------------------------------------------------------------------------

select pg_temp.pushed('adm') from generate_series(1, 3) \g /dev/null
select is(pg_temp.error('POST', '/ojs/v1/admin/jobs/bulk/' || operation, '{"filter": {"queue": "adm"}}'),
    '400 invalid_request', 'ADM-04: not without confirmation: ' || operation)
    from unnest('{cancel,retry,delete}'::text[]) operation;
select is(pg_temp.error('POST', '/ojs/v1/admin/jobs/bulk/cancel', '{"filter": {"queue": "adm"}, "confirm": false}'),
    '400 invalid_request', 'ADM-04: nor with a refusal of it');
select is(pg_temp.http('POST', '/ojs/v1/admin/jobs/bulk/cancel',
    '{"filter": {"queue": "adm"}, "confirm": true}') -> 'body',
    '{"action": "cancel", "matched": 3, "succeeded": 3, "failed": 0, "more": false, "errors": []}', 'ADM-04: cancel');
select is((pg_temp.http('POST', '/ojs/v1/admin/jobs/bulk/retry',
    jsonb_build_object('job_ids', jsonb_build_array(:'active'), 'confirm', true)) #> '{body,errors,0}') ->> 'code',
    'NOT_FOUND', 'ADM-04: errors are told');
select is(pg_temp.http('POST', '/ojs/v1/admin/jobs/bulk/delete',
    '{"filter": {"queue": "adm", "state": "cancelled"}, "confirm": true}') #>> '{body,succeeded}', '3',
    'ADM-04: delete');

create temp table dead as select pg_temp.held('graves', 'w',
    '{"retry": {"max_attempts": 1, "on_exhaustion": "dead_letter"}}') as id from generate_series(1, 4);
select ojs.fail(id, '{"type": "Boom", "message": "m"}') from dead \g /dev/null
select is(concat_ws(' ', r ->> 'status', r #>> '{body,total}', r #>> '{body,by_queue,graves}',
    r #>> '{body,by_error_type,Boom}'), '200 4 4 4', 'DLQ-09: ' || path)
from unnest('{/ojs/v1/dead-letter/stats,/ojs/v1/admin/dead-letter/stats?queue=graves}'::text[]) path,
    pg_temp.http('GET', path) r;
select is(pg_temp.http('GET', '/ojs/v1/dead-letter/stats?queue=none') #>> '{body,total}', '0', 'DLQ-09: of one queue');
select is(pg_temp.http('GET', '/ojs/v1/dead-letter/stats') #> '{body,retention}',
    '{"max_age": "P180D", "max_count": 10000}', 'DLQ-09: with how long they are kept');
select ojs.configure_queue('graves', '{"dead_letter_ttl": "P1D", "dead_letter_max_size": 5}') is null \g /dev/null
select is(pg_temp.http('GET', '/ojs/v1/dead-letter/stats?queue=graves') #> '{body,retention}',
    '{"max_age": "P1D", "max_count": 5}', 'DLQ-09: in one queue');
select is(pg_temp.error('POST', '/ojs/v1/dead-letter/retry', '{"filter": {"queue": "graves"}}'), '400 invalid_request',
    'DLQ-07: not without confirmation');
select is(pg_temp.http('POST', '/ojs/v1/dead-letter/retry',
    '{"filter": {"queue": "graves", "error_type": "Other"}, "confirm": true}') #>> '{body,matched}', '0',
    'DLQ-07: by error');
select is(pg_temp.http('POST', path, jsonb_build_object('filter', '{"queue": "graves"}'::jsonb, 'confirm',
    true)) #>> '{body,succeeded}', n, 'DLQ-07: dead letters are tried again: ' || path)
from (values ('/ojs/v1/dead-letter/retry', '4'), ('/ojs/v1/admin/dead-letter/retry', '0')) p (path, n);
select ojs.fail(c.id, '{"type": "Boom", "message": "m"}') from ojs.claim('graves', 'w', 4) c \g /dev/null
select is(pg_temp.error('DELETE', '/ojs/v1/dead-letter', '{}'), '400 invalid_request',
    'ADM-04: a purge, not without confirmation');
select is(pg_temp.http('DELETE', '/ojs/v1/dead-letter',
    '{"confirm": true, "older_than": "2001-01-01T00:00:00Z"}') -> 'body', '{"purged_count": 0}',
    'DLQ-07: of what is old');
set local ojs.max_batch_size = 3;
select is(pg_temp.http('DELETE', '/ojs/v1/admin/dead-letter', '{"confirm": true}') -> 'body', '{"purged_count": 4}',
    'DLQ-07: of all, however many');
reset ojs.max_batch_size;

-- Jobs of workflows that have ended.
select ojs.create_workflow(jsonb_build_object('type', 'chain', 'steps', (select jsonb_agg(jsonb_build_object('type', t,
    'args', '[]'::jsonb, 'options', '{"queue": "ended", "retry": {"max_attempts": 1, "on_exhaustion": "dead_letter"}}'
    ::jsonb)) from unnest('{a.b,a.c}'::text[]) t))) is null from generate_series(1, 2) \g /dev/null
select ojs.fail(c.id, '{"type": "Boom", "message": "m"}') is null from ojs.claim('ended', 'w', 2) c \g /dev/null
select is(concat_ws(' ', r ->> 'status', coalesce(r #>> '{body,total_matched}', r #>> '{body,matched}'),
    r #>> '{body,left_out}'), '200 0 2', 'jobs of workflows that have ended are left out of ' || path || ': DLQ-07')
from unnest('{/ojs/v1/dead-letter/retry,/ojs/v1/admin/jobs/bulk/retry,/ojs/v1/jobs/bulk/retry}'::text[]) path,
    pg_temp.http('POST', path, '{"filter": {"queue": "ended"}, "confirm": true}') r;
select is(pg_temp.error('POST', '/ojs/v1/jobs/bulk/retry', '{"filter": {"ended_workflows": true}}'),
    '400 invalid_request', 'to ask for them is no condition, and is confirmed: BLK-03');
select is(concat_ws(' ', r ->> 'status', r #>> '{body,succeeded}', r #>> '{body,left_out}'), '200 2 0',
    'they are retried where the filter asks for them: DLQ-07')
from pg_temp.http('POST', '/ojs/v1/dead-letter/retry',
    '{"filter": {"queue": "ended", "ended_workflows": true}, "confirm": true}') r;

-- A purge of a queue by age.
select pg_temp.held('aged') as id \gset
select ojs.ack(:'id') \g /dev/null
select is(pg_temp.error('DELETE', '/ojs/v1/admin/queues/aged/jobs',
    '{"states": ["completed"], "older_than": "2030-01-01T00:00:00Z"}'), '400 invalid_request',
    'ADM-04: a purge of a queue, not without confirmation');
select is(pg_temp.http('DELETE', '/ojs/v1/admin/queues/aged/jobs',
    '{"states": ["completed"], "older_than": "2001-01-01T00:00:00Z", "confirm": true}') #>> '{body,purged_count}', '0',
    'ADM-04: of what is old');
select is(pg_temp.http('DELETE', '/ojs/v1/admin/queues/aged/jobs',
    jsonb_build_object('states', '["completed"]'::jsonb, 'older_than', now() + interval '1 day', 'confirm',
    true)) #>> '{body,purged_count}', '1', 'ADM-04: and what is');
select is(pg_temp.error('DELETE', '/ojs/v1/admin/queues/nowhere/jobs',
    '{"states": ["completed"], "older_than": "2001-01-01T00:00:00Z", "confirm": true}'), '404 not_found',
    'ADM-04: of a queue that is there');

-- IDEMPOTENCY KEYS of all bulk operations (BLK-02)
create function pg_temp.once(operation text, body jsonb) returns text language sql as $$
    select concat_ws(' ', r ->> 'status', r #>> '{body,total_matched}', r #>> '{body,error,details,reason}')
        from pg_temp.http('POST', '/ojs/v1/jobs/bulk/' || operation, body) r
$$;
select pg_temp.pushed('once') as once \gset
select is(pg_temp.once('cancel', '{"filter": {"queue": "once"}, "idempotency_key": "k"}'), '200 1',
    'BLK-02: a job is cancelled');
select pg_temp.pushed('once') as spared \gset
select is(pg_temp.once('cancel', '{"filter": {"queue": "once"}, "idempotency_key": "k"}'), '200 1',
    'BLK-02: the same request again gets the first answer');
select is(pg_temp.at(:'spared'), 'available/0/0', 'BLK-02: and does nothing');
select is(pg_temp.once('cancel', '{"filter": {"queue": "other"}, "idempotency_key": "k"}'),
    '409 idempotency_key_reused', 'BLK-02: another request under the key is refused');
select is(pg_temp.once('delete', '{"filter": {"queue": "once"}, "idempotency_key": "k"}'), '200 1',
    'BLK-02: keys are those of their operation');
select is(pg_temp.once('delete', '{"filter": {"queue": "once"}, "idempotency_key": "k"}'), '200 1', 'BLK-02: each');
select is(pg_temp.once('retry', jsonb_build_object('job_ids', array[:'spared'], 'idempotency_key', 'k')), '422 1',
    'BLK-02: an answer that says no …');
select is(pg_temp.once('retry', jsonb_build_object('job_ids', array[:'spared'], 'idempotency_key', 'k')), '422 1',
    'BLK-02: … is kept, too');
select is(pg_temp.once('cancel', '{"filter": {"colour": 1}, "idempotency_key": "bad"}'), '400',
    'BLK-02: a bad request …');
select is(pg_temp.once('cancel', '{"filter": {"queue": "once"}, "idempotency_key": "bad"}'), '200 1',
    'BLK-02: … keeps no key');
select is(pg_temp.once('cancel', jsonb_build_object('filter', '{"queue": "once"}'::jsonb, 'idempotency_key',
    repeat('k', 257))), '400', 'BLK-02: a key that is too long');

select is(pg_temp.http('POST', '/ojs/v1/jobs/bulk/delete', '{"filter": {"queue": "once"}}',
    '{"content-type": "application/json", "idempotency-key": "both"}') ->> 'status', '200',
    'BLK-02: a key in the header …');
select is(pg_temp.once('delete', '{"filter": {"queue": "once"}, "idempotency_key": "both"}'), '200 1',
    'BLK-02: … is the same in the body');
select is(pg_temp.error('POST', '/ojs/v1/jobs/bulk',
    '{"atomicity": "atomic", "jobs": [{"type": "a.b", "args": []}], "idempotency_key": "whole"}',
    '{"content-type": "application/json"}'), '201', 'BLK-02: an atomic batch');
select is(pg_temp.error('POST', '/ojs/v1/jobs/bulk',
    '{"atomicity": "atomic", "jobs": [{"type": "a.c", "args": []}], "idempotency_key": "whole"}',
    '{"content-type": "application/json"}'), '409 conflict',
    'BLK-02: what is wrong with the whole request is no item''s fault');
select pg_temp.http('POST', '/ojs/v1/jobs/bulk', '{"jobs": [{"type": "a.b", "args": []}]}',
    '{"content-type": "application/json", "ojs-block-timeout": "7"}') is null \g /dev/null
select is(current_setting('ojs.block_timeout'), '-1', 'BP-03: what one request may wait is no other''s');
select ojs.fail(pg_temp.held('plain.end', options => '{"retry": {"max_attempts": 1, "on_exhaustion": "discard"}}'),
    '{"type": "E", "message": "m"}') is null \g /dev/null
select pg_temp.http('DELETE', '/ojs/v1/admin/dead-letter', '{"confirm": true}') is null \g /dev/null
select is((select count(*) from ojs.jobs where queue = 'plain.end'), 1::bigint,
    'DLQ-07: a purge of dead letters leaves jobs that were merely discarded');

select is(ojs_http.batch_response(201, null, true, '[', ']')::text, null, 'BLK-01: of no items there is no answer');

select * from finish();
rollback;
