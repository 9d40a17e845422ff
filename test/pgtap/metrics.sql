-- metrics.sql: what an operator looks at: OBS-01, OBS-02, OBS-03, QC-06, ADM-02. Concurrent commits, restarts, logs:
-- test/tap/metrics.pl.
begin;
select no_plan();
\ir helpers.psql

create function pg_temp.sample(name text) returns numeric language sql as $$
    select split_part(line, ' ', 2)::numeric from string_to_table(ojs.metrics(), e'\n') line
        where split_part(line, ' ', 1) = name
$$;
create function pg_temp.http(path text) returns jsonb language sql as $$ select body::jsonb
    from ojs.http('GET', path) $$;

-- A few jobs of a queue, with known times -----------------------------------------------------------------------------

-- The last hour is kept in parts of five minutes; all of this is to happen in one.
select pg_temp.clock(date_bin('5 min', clock_timestamp(),
    '2000-01-01') + interval '1 min' - clock_timestamp()) \g /dev/null
create temp table start as select ojs_store.now() as at;
create function pg_temp.after(moment interval) returns void language sql as $$
    select pg_temp.clock((select at from start) + moment - clock_timestamp()) $$;
create function pg_temp.claimed(queue text default 'met', more jsonb default null) returns uuid language sql as $$
    select id from ojs.claim(queue, 'w') $$;

select count(ojs.push('mail.send', queue => 'met')) from generate_series(1, 3) i \g /dev/null
select ojs.push('mail.read', queue => 'met', retry => '{"max_attempts": 1}') \g /dev/null
select is((select concat_ws('/', available, active, completed) from ojs.queue_stats('met')), '4/0/0',
    'QC-06: four jobs are pushed');
select pg_temp.after('20 s') \g /dev/null
create temp table first as select pg_temp.claimed() as id;
select is((select concat_ws('/', available, active, completed) from ojs.queue_stats('met')), '3/1/0',
    'QC-06: one is claimed');
select pg_temp.after('25 s') \g /dev/null
select ojs.ack((select id from first)) \g /dev/null
select is((select concat_ws('/', available, active, completed) from ojs.queue_stats('met')), '3/0/1',
    'QC-06: and finished');
select ok(completed_last_hour = 1 and failed_last_hour = 0 and avg_duration_ms between 190 and 20000
    and avg_wait_ms between 10000 and 30000
    and throughput_per_second = round(1 / 3600.0, 4) and computed_at between (select at from start)
        and ojs_store.now(), 'QC-06: its last hour') from ojs.queue_stats('met');
select pg_temp.after('40 s') \g /dev/null
create temp table second as select pg_temp.claimed() as id;
select ojs.fail((select id from second), '{"type": "e", "message": "m"}', delay => '1 hour') \g /dev/null
select ojs.cancel((select id from ojs.jobs where queue = 'met' and state = 'available'
    and type = 'mail.send')) \g /dev/null
select ojs.ack_many('w', array[]::uuid[]) \g /dev/null
select pg_temp.after('41 s') \g /dev/null
select ojs.fail(pg_temp.claimed(), '{"type": "e", "message": "m"}') \g /dev/null
select is((select concat_ws('/', completed_last_hour, failed_last_hour) from ojs.queue_stats('met')), '1/1',
    'QC-06: failed_last_hour counts discarded jobs');
select id is null from ojs.push('mail.late', queue => 'met',
    expires_at => ojs_store.now() + interval '1 s') \g /dev/null
select pg_temp.after('90 s') \g /dev/null
select ojs.tick() \g /dev/null

-- Metrics -------------------------------------------------------------------------------------------------------------

select is(pg_temp.sample(name), value, 'OBS-02: ' || name) from (values
    ('ojs_job_enqueued_total{queue="met",type="mail.send"}', 3::numeric),
        ('ojs_job_enqueued_total{queue="met",type="mail.read"}', 1),
        ('ojs_job_enqueued_total{queue="met",type="mail.late"}', 1),
    ('ojs_job_completed_total{queue="met",type="mail.send"}', 1),
        ('ojs_job_completed_total{queue="met",type="mail.read"}', 0),
    ('ojs_job_failed_total{queue="met",type="mail.read"}', 1),
        ('ojs_job_failed_total{queue="met",type="mail.send"}', 0),
        ('ojs_job_failed_total{queue="met",type="mail.late"}', 1),
    ('ojs_job_retried_total{queue="met",type="mail.send"}', 1),
        ('ojs_job_cancelled_total{queue="met",type="mail.send"}', 1),
        ('ojs_job_expired_total{queue="met",type="mail.late"}', 1),
    ('ojs_job_duration_seconds_bucket{queue="met",type="mail.send",state="completed",le="0.1"}', 0),
        ('ojs_job_duration_seconds_bucket{queue="met",type="mail.send",state="completed",le="30"}', 1),
    ('ojs_job_duration_seconds_bucket{queue="met",type="mail.send",state="completed",le="+Inf"}', 1),
        ('ojs_job_duration_seconds_count{queue="met",type="mail.send",state="completed"}', 1),
    ('ojs_job_duration_seconds_count{queue="met",type="mail.read",state="discarded"}', 1),
        ('ojs_job_duration_seconds_count{queue="met",type="mail.late",state="discarded"}', null),
    ('ojs_job_queue_time_seconds_bucket{queue="met",type="mail.send",le="10"}', 0),
        ('ojs_job_queue_time_seconds_bucket{queue="met",type="mail.send",le="30"}', 1),
    ('ojs_job_queue_time_seconds_bucket{queue="met",type="mail.send",le="60"}', 2),
        ('ojs_job_queue_time_seconds_count{queue="met",type="mail.send"}', 2),
    ('ojs_queue_depth{queue="met",state="completed"}', 1), ('ojs_queue_depth{queue="met",state="discarded"}', 2),
        ('ojs_queue_depth{queue="met",state="retryable"}', 1),
    ('ojs_queue_depth{queue="met",state="available"}', 0), ('ojs_workers_busy{queue="met"}', 0),
        ('ojs_queue_paused{queue="met"}', 0)) expected (name, value);
select ok(pg_temp.sample('ojs_job_duration_seconds_sum{queue="met",type="mail.send",state="completed"}') between 0.19
    and 20, 'OBS-02: the sum of durations, in seconds');
select is((select count(*) from string_to_table(ojs.metrics(), e'\n') line
    where line ~ '^ojs_queue_depth\{queue="met"'), 8::bigint, 'OBS-02: the depth by each of the eight states');
select is_empty($$ select line from string_to_table(rtrim(ojs.metrics(), e'\n'), e'\n') line
    where line !~ '^# (HELP ojs_[a-z_]+ [^\n]+|TYPE ojs_[a-z_]+ (counter|gauge|histogram))$'
        and line !~ '^ojs_[a-z_]+(\{[a-z]+="[^"\\]*"(,[a-z]+="[^"\\]*")*\})? [0-9.e+-]+$' $$,
        'OBS-02: each line is of the text format');
select is_empty($$ select l[1] from regexp_matches(ojs.metrics(), '[{,]([a-z_]+)="', 'g') l where l[1]
    not in ('queue', 'type', 'state', 'le', 'duty', 'outcome', 'of') $$,
    'OBS-02: labels are queue, type, state, duty, outcome and of, and le of buckets');
select is_empty($$ select split_part(line, ' ', 1) from string_to_table(ojs.metrics(), e'\n') line where line <> ''
    and line !~ '^#' group by 1 having count(*) > 1 $$, 'OBS-02: no sample comes twice');
select is_empty($$ select family from (select substring(line from '^# TYPE (\S+)') as family
    from string_to_table(ojs.metrics(), e'\n') line) f where family is not null group by 1 having count(*) > 1 $$,
    'OBS-02: each family has its type once');
select is_empty($$
    select series from (
        select regexp_replace(split_part(line, ' ', 1), ',?le="[^"]*"', '') as series,
            split_part(line, ' ', 2)::numeric as n,
            lag(split_part(line, ' ', 2)::numeric) over (partition by regexp_replace(split_part(line, ' ', 1),
                ',?le="[^"]*"', '') order by place) as before
        from string_to_table(ojs.metrics(), e'\n') with ordinality as l(line, place) where line ~ '_bucket'
    ) b where n < before $$, 'OBS-02: buckets add up those below them');
select is(ojs.metrics() ~ '# TYPE ojs_job_enqueued_total counter', ojs_store.metrics_kept(),
    'OBS-02: a counter is called one where it never falls');

-- A tracker's own words about cardinality: a job's type from outside may be anything.
select count(ojs.push('noise.n' || i, queue => 'noise')) from generate_series(1, 120) i \g /dev/null
select is((select count(distinct l[1]) from regexp_matches(ojs.metrics(), 'queue="noise",type="([^"]*)"', 'g') l),
    101::bigint, 'OBS-02: a queue has at most 100 types, and others');
select is(pg_temp.sample('ojs_job_enqueued_total{queue="noise",type="_other"}'), 20::numeric,
    'OBS-02: later types are counted as _other');

-- A type may be longer than what is kept of it.
select count(ojs.push(rpad('a', n, 'x'), queue => 'long')) from unnest('{255,128,127}'::int[]) n \g /dev/null
select is((select sum(substring(line from ' (\d+)$')::numeric) from string_to_table(ojs.metrics(), e'\n') line
    where line ~ '^ojs_job_enqueued_total.queue="long"'), 3::numeric,
    'OBS-02: types of any length are counted once each');
select is_empty($$ select line from string_to_table(ojs.metrics(), e'\n') line where line ~ 'queue="long"'
    and length(substring(line from ' (\S+)$')) > 6 $$, 'and write over nothing');

savepoint a;
select ojs.push('mail.send', queue => 'met') \g /dev/null
rollback to a;
select is(pg_temp.sample('ojs_job_enqueued_total{queue="met",type="mail.send"}'), 3::numeric,
    'OBS-02: what is rolled back does not count');
savepoint b;
select ojs.push('mail.send', queue => 'met') \g /dev/null
release b;
select is(pg_temp.sample('ojs_job_enqueued_total{queue="met",type="mail.send"}'), 4::numeric,
    'OBS-02: a subtransaction counts');
select ojs.create_queue('gone', '{"delete_on_ack": true}') \g /dev/null
select ojs.push('mail.send', queue => 'gone') \g /dev/null
select ojs.ack(pg_temp.claimed('gone')) \g /dev/null
select is(pg_temp.sample('ojs_job_completed_total{queue="gone",type="mail.send"}'),
    case when ojs_store.metrics_kept() then 1::numeric end, 'OBS-02: a job that leaves no trace counts, with preload');
select ojs.push('mail.send', queue => 'dropped') \g /dev/null
select ojs.drop_queue('dropped', 'discard') \g /dev/null
select is(coalesce(pg_temp.sample('ojs_job_failed_total{queue="dropped",type="mail.send"}'), 1), 1::numeric,
    'OBS-02: what a dropped queue discards counts as failed');
select ojs.delete_job((select id from first)) \g /dev/null
select is(pg_temp.sample('ojs_job_completed_total{queue="met",type="mail.send"}'),
    ojs_store.metrics_kept()::int::numeric, 'OBS-02: with preload a counter does not fall when a job is removed');
select ojs.pause_queue('met') \g /dev/null
select is(pg_temp.sample('ojs_queue_paused{queue="met"}'), 1::numeric, 'OBS-02: a paused queue');
create temp table running as select pg_temp.sample('ojs_workers_active') as n;
select ojs.register_worker(w) from unnest('{m1,m2,m3}'::text[]) w \g /dev/null
select ojs.set_worker_state('m2', 'quiet') \g /dev/null
update ojs_store.worker set beats = true, seen_at = seen_at - interval '16 s' where name = 'm3';
select is(pg_temp.sample('ojs_workers_active'), (select n + 1 from running),
    'OBS-02: workers that run, not one that was told to stop or whose heartbeats are missed');

-- Statistics ----------------------------------------------------------------------------------------------------------

select is((select array_agg(k order by k) from jsonb_object_keys(ojs.queue_info('met') -> 'stats') k
    where k ~ 'hour|avg|throughput|computed|depth'),
    '{avg_duration_ms,avg_wait_ms,completed_last_hour,computed_at,depth,failed_last_hour,throughput_per_second}',
        'QC-06: the same in JSON');
select is(pg_temp.http('/ojs/v1/queues/met/stats') -> 'stats' ->> 'failed_last_hour', '2', 'QC-06: over HTTP');
select ok((i ->> 'head_seq')::bigint > (i ->> 'earliest_seq')::bigint
    and (i ->> 'earliest_seq')::bigint = (select min(seq) from ojs.jobs where queue = 'met'),
    'Q-57: first and last number')
from ojs.queue_info('met') i;
select pg_temp.after('30 min') \g /dev/null
select is((select failed_last_hour from ojs.queue_stats('met')), 2::bigint, 'QC-06: half an hour later they count');
select pg_temp.after('2 hours') \g /dev/null
select is((select concat_ws('/', completed_last_hour, failed_last_hour, throughput_per_second,
    coalesce(avg_duration_ms::text, 'none')) from ojs.queue_stats('met')), '0/0/0.0000/none',
    'QC-06: two hours later no more');
select is((select array_agg(k order by k) from jsonb_object_keys(pg_temp.http('/ojs/v1/admin/stats')) k),
    '{computed_at,jobs,maintenance,queues,throughput,uptime_seconds,workers}', 'ADM-02: aggregate statistics');
select is((s -> 'jobs' ->> 'discarded')::bigint, (select sum(discarded)::bigint from ojs.queue_stats()),
    'ADM-02: jobs by state') from pg_temp.http('/ojs/v1/admin/stats') s;
select is(pg_temp.http(path) -> 'total', '0', 'DLQ-09: over HTTP: ' || path)
    from unnest(array['/ojs/v1/dead-letter/stats', '/ojs/v1/admin/dead-letter/stats']) path;
select is(headers ->> 'Content-Type', 'text/plain', 'OBS-02: media type at ' || path)
    from unnest(array['/metrics', '/ojs/v1/metrics']) path, ojs.http('GET', path);
select matches(body, '^# HELP ojs_', 'OBS-02: the text as it is') from ojs.http('GET', '/metrics');

-- Rate limits at push
create function pg_temp.limit_headers(rate_limit jsonb) returns text language sql as $$
    select concat_ws('/', headers ->> 'X-RateLimit-Limit', headers ->> 'X-RateLimit-Remaining',
        (headers ->> 'X-RateLimit-Reset')::numeric - ceil(extract(epoch from (select ojs_store.now()))))
    from ojs.http('POST', '/ojs/v1/jobs', '{}', jsonb_build_object('type', 'a.b', 'args', '[]'::jsonb, 'options',
        jsonb_build_object('queue', 'lim', 'rate_limit', rate_limit))::text)
$$;
-- A second may begin between the call and the look at the clock.
select matches(pg_temp.limit_headers('{"key": "lim", "rate": {"limit": 2, "period": "PT1M"}}'), '^2/2/(0|-\d)$',
    'HTTP-08: a push says what its limit leaves');
select pg_temp.claimed('lim') \g /dev/null
select matches(pg_temp.limit_headers('{"key": "lim", "rate": {"limit": 2, "period": "PT1M"}}'), '^2/1/(0|-\d)$',
    'HTTP-08: less after a start');
select pg_temp.claimed('lim') \g /dev/null
select matches(pg_temp.limit_headers('[{"key": "other", "rate": {"limit": 9, "period": "PT1M"}}, {"key": "lim", '
    '"rate": {"limit": 2, "period": "PT1M"}}]'), '^2/0/(5\d|60)$',
    'HTTP-08: nothing, and when the next may start; of several the tightest');
select is(pg_temp.limit_headers('{"key": "lim", "concurrency": 3}'), '',
    'HTTP-08: no headers without a limit on starts');
select ojs.set_rate_limit('lim', '{"rate": {"limit": 5, "period": "PT1M"}}') \g /dev/null
select matches(pg_temp.limit_headers('{"key": "lim", "rate": {"limit": 2, "period": "PT1M"}}'), '^5/3/',
    'HTTP-08: by what an administrator has set');

-- Health --------------------------------------------------------------------------------------------------------------

select ojs.tick() \g /dev/null -- no worker sees what this transaction has left overdue
select ok(h ->> 'status' = 'ok' and h #>> '{backend,status}' = 'healthy' and h ->> 'version' = ojs.version()
    and (h ->> 'uptime_seconds')::bigint >= 0 and h #>> '{worker,state}' is not null
    and (h #>> '{queues,total}')::bigint = (select count(*) from ojs.queues) and (h #>> '{queues,paused}')::bigint = 1,
        'OBS-01 R-63: health') from ojs.health() h;
select is(ojs.ready(), true, 'OBS-01: ready');
create temp table trace
    as select '{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": '
              '"a=1,b=2"}'::jsonb as meta;
select is((select p.meta from trace, ojs.push('a.b', queue => 'traced', meta => trace.meta) p), (table trace),
    'OBS-03: trace context is kept at push');
select is((select meta from ojs.claim('traced', 'w')), (table trace), 'OBS-03: and handed out');
select is((select ojs.info(id) -> 'meta' from ojs.jobs where queue = 'traced'), (table trace), 'OBS-03: and kept');

-- Health, as a dashboard reads it (OBS-01).
set local datestyle = 'SQL, DMY';
select pg_temp.clock('0 s') \g /dev/null
delete from ojs_store.worker; -- those of above lived at another time
select ojs.beat('health.1'), ojs.beat('health.2') \g /dev/null
select ok(h ->> 'timestamp' ~ '^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$',
    'OBS-01: times are those of JSON, whatever the session''s DateStyle'),
    ok(h #>> '{worker,started_at}' ~ '^\d{4}-\d\d-\d\dT.*Z$' or not h -> 'worker' ? 'started_at',
        'OBS-01: all of them'),
    is(h -> 'workers', '{"connected": 2, "stale": 0}', 'OBS-01: workers that have been heard of')
from ojs.health() h;
select pg_temp.clock('20 s') \g /dev/null
select is(h -> 'workers', '{"connected": 0, "stale": 2}', 'OBS-01: a silent worker is stale') from ojs.health() h;
select pg_temp.clock('0 s') \g /dev/null

select * from finish();
rollback;
