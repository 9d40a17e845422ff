-- limit_events.sql: events of rate limits and of bulk operations: EVT-03, RL-02, RL-04, RL-06, BLK-01, BLK-03, R-61.
begin;
select no_plan();
\ir helpers.psql
\ir http.psql

create function pg_temp.limited(queue text, rate_limit jsonb, n int default 1) returns bigint language sql as $$
    select count(*) from generate_series(1, n) i, lateral ojs.push('test.job', jsonb_build_array(i), queue => queue,
        options => jsonb_build_object('rate_limit', rate_limit))
$$;
create function pg_temp.claims(queue text, max int default 10) returns bigint language sql as $$ select count(*)
    from ojs.claim(queue, 'w', max) $$;
-- What was told of a key, in short, in the order of time.
create function pg_temp.told(of_key text) returns text language sql as $$
    select string_agg(concat_ws(' ', split_part(type, '.', 2), data ->> 'strategy',
        (data ->> 'current') || '/' || (data ->> 'limit'),
        case when data ->> 'job_id' ~ '^[0-9a-f-]{36}$' then 'job' end), ', ' order by time, id)
    from ojs.events where type like 'rate\_limit.%' and data ->> 'key' = of_key
$$;
create function pg_temp.ended(queue text) returns bigint language sql as $$ select count(*) from ojs.leases l,
    ojs.ack(l.job_id) where l.queue = ended.queue $$;

-- Exceeded, released
select pg_temp.limited('e', '{"key": "api", "concurrency": 2}', 9) \g /dev/null
select pg_temp.clock('0 s') \g /dev/null
select is(pg_temp.claims('e', 1), 1::bigint, 'within the limit'),
    is(pg_temp.told('api'), null, 'EVT-03: a job that starts tells nothing of its limit');
select pg_temp.clock('1 s') \g /dev/null
select is(pg_temp.claims('e'), 1::bigint, 'the second'),
    is(pg_temp.told('api'), 'exceeded concurrency 2/2', 'EVT-03: a job that is passed over: rate_limit.exceeded');
select pg_temp.clock('2 s') \g /dev/null
select is(pg_temp.claims('e'), 0::bigint, 'no other'),
    is(pg_temp.told('api'), 'exceeded concurrency 2/2', 'EVT-03: once, however many claims pass it over');
select pg_temp.ended('e') \g /dev/null
select is(pg_temp.told('api'), 'exceeded concurrency 2/2', 'EVT-03: a place that becomes free is not told of');
select pg_temp.clock('3 s') \g /dev/null
select is(pg_temp.claims('e'), 2::bigint, 'two more'),
    is(pg_temp.told('api'), 'exceeded concurrency 2/2, released job',
    'EVT-03: but the next job that starts: rate_limit.released');
select is(source || ' ' || subject, 'ojs://' || current_database() || '/rate-limits/api api', 'EVT-01: of the key')
    from ojs.events where type = 'rate_limit.released';
select is(data ->> 'job_id' in (select job_id::text from ojs.leases where queue = 'e'), true,
    'EVT-03: it names the job') from ojs.events where type = 'rate_limit.released';
select pg_temp.ended('e') \g /dev/null
select pg_temp.clock('30 s') \g /dev/null
select is(pg_temp.claims('e'), 2::bigint, 'two more'),
    is(pg_temp.told('api'), 'exceeded concurrency 2/2, released job', 'EVT-03: within a minute no more is told');
select pg_temp.ended('e') \g /dev/null
select pg_temp.clock('60999 ms') \g /dev/null
select is(pg_temp.claims('e', 1), 1::bigint, 'one more'),
    is(pg_temp.told('api'), 'exceeded concurrency 2/2, released job', 'EVT-03: not even at its end');
select pg_temp.clock('61500 ms') \g /dev/null
select is(pg_temp.claims('e', 2), 1::bigint, 'another'),
    is(pg_temp.told('api'), 'exceeded concurrency 2/2, released job, exceeded concurrency 2/2',
    'EVT-03: after it, it is');
select is((select count(*) from ojs_store.limit_use where kind = 2 and until > ojs_store.now()), 1::bigint,
    'one row remembers it');
savepoint s;
select pg_temp.ended('e') \g /dev/null
select is(pg_temp.claims('e', 1), 1::bigint, 'one more'),
    is(pg_temp.told('api') ~ 'released.*released', true, 'EVT-01: told …');
rollback to s;
select is(pg_temp.told('api') ~ 'released.*released', false, 'EVT-01: … and taken back with the claim');
select is((select string_agg(key, ' ' order by key) from ojs.rate_limits), 'api',
    'RL-06: what is remembered makes no key');

-- Long exceeded, it is told again after a day.
select pg_temp.clock('1 day 61 s') \g /dev/null
select pg_temp.limited('d', '{"key": "day", "concurrency": 0}') \g /dev/null
select is(pg_temp.claims('d'), 0::bigint, 'a closed key'),
    is(pg_temp.told('day'), 'exceeded concurrency 0/0', 'EVT-03: exceeded');
select pg_temp.clock('2 days 30 s') \g /dev/null
select is(pg_temp.claims('d'), 0::bigint, 'still'),
    is(pg_temp.told('day'), 'exceeded concurrency 0/0',
    'EVT-03: once a day');
select pg_temp.clock('2 days 62 s') \g /dev/null
select is(pg_temp.claims('d'), 0::bigint, 'still'),
    is(pg_temp.told('day'),
    'exceeded concurrency 0/0, exceeded concurrency 0/0', 'EVT-03: then again');
select pg_temp.clock('0 s') \g /dev/null

select ojs.cancel(id) is null from ojs.jobs where queue = 'd' \g /dev/null
select is((select count(*) from ojs.rate_limits where key = 'day'), 0::bigint,
    'RL-06: what was told of a key does not keep it known');

-- The strategies
select pg_temp.limited('r', '{"key": "rate", "rate": {"limit": 3, "period": "PT1H"}}', 5),
    pg_temp.limited('t', '{"key": "thr", "throttle": {"limit": 4, "period": "PT1H"}}', 2) \g /dev/null
select is(pg_temp.claims('r'), 3::bigint, 'three'),
    is(pg_temp.told('rate'), 'exceeded rate 3/3',
    'EVT-03 RL-02: by its rate');
select is(pg_temp.claims('t'), 1::bigint, 'one'),
    is(pg_temp.told('thr') ~ '^exceeded throttle ./4$', true,
    'EVT-03 RL-02: by its throttle');
select ojs.create_queue('q', '{"concurrency": 1}'), pg_temp.limited('q',
    '[{"key": "wide", "concurrency": 9}, {"key": "narrow", "concurrency": 1}]', 2) \g /dev/null
select is(pg_temp.claims('q'), 1::bigint, 'one'),
    is(pg_temp.told('queue:q'), 'exceeded concurrency 1/1',
    'EVT-03 RL-05: of a queue'),
    is(pg_temp.told('narrow'), 'exceeded concurrency 1/1', 'EVT-03 RL-05: each limit that holds the job back'),
        is(pg_temp.told('wide'), null, 'EVT-03 RL-05: and no other');

-- Dropped, adjusted
select pg_temp.limited('x',
    '[{"key": "first", "concurrency": 9}, {"key": "lossy", "concurrency": 1, "on_limit": "drop"}]', 3) \g /dev/null
select is(pg_temp.claims('x'), 1::bigint, 'one'),
    is(pg_temp.told('lossy'),
    'dropped job, dropped job, exceeded concurrency 1/1', 'EVT-03 RL-04: rate_limit.dropped for each job that is');
select is(array_agg(type order by type), '{job.discarded,job.enqueued,rate_limit.dropped}',
    'EVT-04: beside job.discarded') from ojs.events
where job_id = (select job_id from ojs.events where type = 'rate_limit.dropped' limit 1);
select is(data - '{job_id,key}'::text[], '{"job_type": "test.job", "queue": "x", "state": "discarded"}',
    'EVT-02: rate_limit.dropped') from ojs.events where type = 'rate_limit.dropped' limit 1;
select ojs.fail(pg_temp.held('own', options => '{"retry": {"max_attempts": 1}}'),
    '{"type": "rate_limited", "message": "no"}') \g /dev/null
select is((select count(*) from ojs.events where type = 'rate_limit.dropped' and queue = 'own'), 0::bigint,
    'EVT-03: a failure that only calls itself so is none');
select pg_temp.limited('p', '{"key": "slow", "concurrency": 5}', 2) \g /dev/null
select id as slow from ojs.claim('p', 'w') \gset
select ojs.fail(:'slow', jsonb_build_object('type', 'Http429', 'message', 'secret', 'rate_limit_until',
    now() + interval '10 minutes')) is null \g /dev/null
select is(pg_temp.told('slow'), 'dynamic_adjusted', 'EVT-03 RL-06: rate_limit.dynamic_adjusted'),
    is(data - 'until', '{"key": "slow", "reason": "Http429"}', 'EVT-03 RL-06: with the type of the error'),
        ok((data ->> 'until')::timestamptz > now(), 'and until when')
from ojs.events where type = 'rate_limit.dynamic_adjusted';
select is(pg_temp.claims('p'), 0::bigint, 'none'),
    is(pg_temp.told('slow') ~ 'exceeded pause', true,
    'EVT-03 RL-06: which holds jobs back');

-- Bulk operations
create function pg_temp.bulk(what text) returns text language sql as $$
    select string_agg((data - 'by')::text, ' ' order by time) from ojs.events
        where type = 'bulk.' || what || '.completed'
$$;
select ojs.cancel_many(jsonb_build_object('ids', jsonb_build_array(pg_temp.pushed('b'), pg_temp.pushed('b'),
    gen_random_uuid()))) is null \g /dev/null
select is(pg_temp.bulk('cancel'), '{"total": 3, "skipped": 1, "cancelled": 2}', 'BLK-03 EVT-03: bulk.cancel.completed');
select ojs.retry_many('{"queue": "x"}', true) is null, ojs.delete_many('{"queue": "b"}', true) is null \g /dev/null
select is(pg_temp.bulk('retry'), '{"total": 2, "retried": 2, "skipped": 0}', 'BLK-03 EVT-03: bulk.retry.completed'),
    is(pg_temp.bulk('delete'), '{"total": 2, "deleted": 2, "skipped": 0}', 'BLK-03 EVT-03: bulk.delete.completed');
select is(source || ' ' || subject, 'ojs://' || current_database() || '/api/cancel cancel', 'EVT-01: by the API')
    from ojs.events where type = 'bulk.cancel.completed';
select pg_temp.http('POST', '/ojs/v1/jobs/bulk',
    '{"jobs": [{"type": "a.b", "args": []}, {"type": "", "args": []}]}') is null \g /dev/null
select is(pg_temp.bulk('enqueue'), '{"total": 2, "failed": 1, "atomicity": "partial", "succeeded": 1}',
    'BLK-01 EVT-03: bulk.enqueue.completed');
select pg_temp.http('POST', '/ojs/v1/jobs/bulk',
    '{"atomicity": "atomic", "jobs": [{"type": "a.b", "args": []}, {"type": "", "args": []}]}') is null \g /dev/null
select is(pg_temp.bulk('enqueue'),
    '{"total": 2, "failed": 1, "atomicity": "partial", "succeeded": 1} {"total": 2, "failed": 1, "atomicity": '
    '"atomic", "succeeded": 0}', 'BLK-01 EVT-03: of which nothing was done, too');
select ojs.push_many('[{"type": "a.b", "args": []}]') is null \g /dev/null
select is((select count(*) from ojs.events where type = 'bulk.enqueue.completed'), 2::bigint,
    'EVT-03: pushes by SQL tell of themselves');
set local ojs.events_off = 'bulk.*, rate_limit.exceeded';
select ojs.cancel_many('{"queue": "b"}', true) is null \g /dev/null
select is((select count(*) from ojs.events where type = 'bulk.cancel.completed'), 1::bigint,
    'EVT-06: they can be switched off');

select * from finish();
rollback;
