-- limits.sql: rate limits: RL-01 to RL-07, WRK-13, R-59, SM-16, INT-04, INT-07. Several claimers at once:
-- test/tap/limits.pl.
begin;
select no_plan();
\ir helpers.psql

create function pg_temp.limited(queue text, rate_limit jsonb, n int default 1, priority int default 0) returns bigint
    language sql as $$
    select count(*) from generate_series(1, n) i, lateral ojs.push('test.job', jsonb_build_array(i), queue => queue,
        priority => priority,
        options => jsonb_build_object('rate_limit', rate_limit))
$$;
create function pg_temp.claims(queue text, max int default 10) returns bigint language sql as $$ select count(*)
    from ojs.claim(queue, 'w', max) $$;
create function pg_temp.rate(queue text) returns text language sql as $$
    select concat_ws('/', concurrency, active, rate, started, throttle, waiting) from ojs.rate_limits where key = queue
$$;

-- Concurrency
select is(pg_temp.limited('con', '{"key": "api", "concurrency": 3}', 5), 5::bigint, 'RL-01: five jobs, three at once');
select is(pg_temp.claims('con', 2), 2::bigint, 'RL-01: two of three start');
select is(pg_temp.claims('con'), 1::bigint, 'RL-01: then exactly one more, though there is room for ten');
select is(pg_temp.claims('con'), 0::bigint, 'RL-01: and no other');
select is((select string_agg(state, ' ' order by state) from ojs.jobs where queue = 'con'),
    'active active active available available', 'RL-04: who waits stays available');
select is(pg_temp.rate('api'), '3/3/2', 'RL-06: the view says so');
select ojs.ack(job_id) is null from ojs.leases where queue = 'con' limit 1 \g /dev/null
select is(pg_temp.claims('con'), 1::bigint, 'RL-01: an ack makes room for one');
select ojs.fail(job_id, '{"type": "E", "message": "m"}') is null from ojs.leases where queue = 'con'
    limit 1 \g /dev/null
select is(pg_temp.claims('con'), 1::bigint, 'RL-01: a failure, too');
select ojs.cancel(job_id) is null from ojs.leases where queue = 'con' limit 1 \g /dev/null
select is(pg_temp.limited('con', '{"key": "api", "concurrency": 3}', 3), 3::bigint, 'three more come');
select is(pg_temp.claims('con'), 1::bigint, 'RL-01 INT-04: a cancelled job holds no place');
select ojs.nack(job_id) is null from ojs.leases where queue = 'con' limit 1 \g /dev/null
select is(pg_temp.claims('con'), 1::bigint, 'RL-01: nor one that was given back');
select pg_temp.clock('31 seconds') \g /dev/null
select is(pg_temp.claims('con'), 3::bigint, 'RL-01: leases that ran out hold none');
savepoint s;
select ojs.ack(job_id) is null from ojs.leases where queue = 'con' \g /dev/null
select is(pg_temp.claims('con'), 3::bigint, 'RL-01: within a transaction its own acks make room');
rollback to s;
select is((select count(*) from ojs.leases where queue = 'con'), 3::bigint, 'RL-01: a rollback …');
select is(pg_temp.claims('con'), 0::bigint, 'RL-01: … takes back what was freed and what was used');
select is((select count(*) from ojs_store.limit_use where kind = 0
    and not exists (select from ojs_store.lease l where l.job_id = limit_use.job_id)), 0::bigint,
    'who ends a lease clears away its slot');
select pg_temp.clock('0') \g /dev/null

select matches(ojs.explain_job(id), 'waits: the rate limit "api" is used up: 3 of 3 run\.$',
    'ojs.explain_job names the limit') from ojs.jobs where queue = 'con' and state = 'available' limit 1;

-- Others are not held up: RL-03, RL-05.
select pg_temp.limited('mix', '{"key": "slow", "concurrency": 1}', 3, 5), pg_temp.pushed('mix'),
    pg_temp.limited('mix', '{"key": "other", "concurrency": 1}', 2) \g /dev/null
select is((select string_agg(priority || coalesce(extra -> 'rate_limit' ->> 'key', 'free'), ' ' order by ordinality)
    from ojs.claim('mix', 'w', 10) with ordinality), '5slow 0free 0other',
    'RL-03 RL-05: what is limited is passed over, whatever its priority; keys are apart');
select pg_temp.limited('both', '[{"key": "a", "concurrency": 5}, {"key": "b", "concurrency": 2}]', 4),
    pg_temp.limited('both', '{"key": "b", "concurrency": 2}', 1) \g /dev/null
select is(pg_temp.claims('both'), 2::bigint, 'RL-05: of several limits on a job the narrowest counts');
select pg_temp.limited('none', '{"key": "stop", "concurrency": 0}') \g /dev/null
select is(pg_temp.claims('none'), 0::bigint, 'RL-07: concurrency 0 pauses a key');

-- Several queues
select pg_temp.set_queue('paused', 'paused'), pg_temp.pushed('paused'),
    pg_temp.limited('limit', '{"key": "stop", "concurrency": 0}'), pg_temp.pushed('plenty') \g /dev/null
select is((select string_agg(queue, ' ') from ojs.claim(array['paused', 'limit', 'unknown', 'plenty'], 'w', 10,
    missing_ok => true)), 'plenty', 'INT-07: one paused, one limited, one unknown: the rest is handed out');

-- Within a time
select pg_temp.limited('rate', '{"key": "hourly", "rate": {"limit": 3, "period": "PT1H"}}', 10) \g /dev/null
select is(pg_temp.claims('rate', 2), 2::bigint, 'RL-02: two of three'),
    is(pg_temp.claims('rate'), 1::bigint, 'RL-02: the third') ;
select is(pg_temp.claims('rate'), 0::bigint, 'RL-02: no more in this hour');
select ojs.ack(job_id) is null from ojs.leases where queue = 'rate' limit 2 \g /dev/null
select is(pg_temp.claims('rate'), 0::bigint, 'RL-02: that jobs end changes nothing');
select pg_temp.clock('59 minutes') \g /dev/null
select is((select count(*) from ojs.claim('rate', 'w', 10)), 0::bigint,
    'RL-02: nor do 59 minutes, and the retry of a lapsed lease counts');
select pg_temp.clock('61 minutes') \g /dev/null
select is(pg_temp.claims('rate'), 3::bigint, 'RL-02: after an hour three more');
select pg_temp.clock('0') \g /dev/null
select pg_temp.limited('second', '{"max_per_second": 1}', 2) \g /dev/null
select is(pg_temp.claims('second'), 1::bigint, 'R-59 RL-02: max_per_second'),
    is(pg_temp.rate('queue:second'), '0/1/1/1', 'R-59: without a key it is the queue''s');
select pg_temp.clock('1.1 seconds') \g /dev/null
select is(pg_temp.claims('second'), 1::bigint, 'RL-02: a second later the next');
select pg_temp.clock('0') \g /dev/null
select pg_temp.limited('word', '{"key": "word", "rate": 2, "period": "minute"}', 3) \g /dev/null
select is(pg_temp.claims('word'), 2::bigint, 'R-59: a rate as a number and a word');

-- The clock is set back: starts of the future count no more, those from then on do.
select pg_temp.limited('back', '{"key": "back", "rate": {"limit": 2, "period": "PT1H"}}', 6),
    pg_temp.limited('back-even', '{"key": "back-even", "throttle": {"limit": 1, "period": "PT1M"}}', 3) \g /dev/null
select pg_temp.clock('1 day') \g /dev/null
select is(pg_temp.claims('back') || ' ' || pg_temp.claims('back-even'), '2 1', 'RL-02: before the clock is set back');
select pg_temp.clock('0') \g /dev/null
select is(pg_temp.claims('back') || ' ' || pg_temp.claims('back-even'), '2 1',
    'RL-02: a limit does not stay shut until the clock is there again'),
    is(pg_temp.claims('back') || ' ' || pg_temp.claims('back-even'), '0 0', 'RL-02: nor is it open');

-- At a distance
select pg_temp.limited('even', '{"key": "even", "throttle": {"limit": 10, "period": "PT1M"}}', 5) \g /dev/null
select is(pg_temp.claims('even'), 1::bigint, 'RL-02: a throttle lets one go, however many could');
select pg_temp.clock('1 s') \g /dev/null
select is(pg_temp.claims('even'), 0::bigint, 'RL-02: the next not before a tenth of the period');
select pg_temp.clock('30 s') \g /dev/null
select is(pg_temp.claims('even'), 1::bigint, 'RL-02: and later no two at once either');
select pg_temp.clock('0') \g /dev/null

-- What else may happen at a limit
select pg_temp.limited('put', '{"key": "put", "rate": {"limit": 1, "period": "PT1M"}, "on_limit": "reschedule"}',
    2) \g /dev/null
select is(pg_temp.claims('put'), 1::bigint, 'RL-04: reschedule: one starts');
select is((select string_agg(state, ' ' order by state) from ojs.jobs where queue = 'put'), 'active scheduled',
    'RL-04 SM-16: the other is scheduled');
select pg_temp.clock('61 seconds') \g /dev/null
select is(pg_temp.claims('put', 2), 1::bigint, 'RL-04: and one starts when the limit lets it');
select pg_temp.clock('0') \g /dev/null
select pg_temp.limited('drop', '{"key": "drop", "concurrency": 1, "on_limit": "drop"}', 2) \g /dev/null
select is(pg_temp.claims('drop'), 1::bigint, 'RL-04: drop: one starts');
select is((select string_agg(state || coalesce(error ->> 'type', ''), ' ' order by state) from ojs.jobs
    where queue = 'drop'), 'active discardedrate_limited', 'RL-04 ERR-05: the other ends');

-- Queues
select ojs.configure_queue('q', '{"concurrency": 2}') is null, pg_temp.pushed('q'), pg_temp.pushed('q'),
    pg_temp.pushed('q') \g /dev/null
select is(pg_temp.claims('q'), 2::bigint, 'WRK-13: a queue''s concurrency caps all workers'),
    is((select count(*) from ojs.claim('q', 'another')), 0::bigint, 'WRK-13: whoever asks');
select is(pg_temp.rate('queue:q'), '2/2/1', 'WRK-13: shown under the queue''s key');
select ojs.configure_queue('q', '{"concurrency": 3}') is null \g /dev/null
select is(pg_temp.claims('q'), 1::bigint, 'QC-03: a change counts from then on');
select ojs.configure_queue('t', '{"rate_limit": {"rate": {"limit": 1, "period": "PT1H"}}}') is null,
    pg_temp.limited('t', '{"key": "wide", "concurrency": 100}', 2) \g /dev/null
select is(pg_temp.claims('t'), 1::bigint, 'RL-05: a queue''s limit and a job''s own both count');

-- Administrators and workers
select is(ojs.set_rate_limit('api2', '{"concurrency": 1}') -> 'concurrency',
    '{"limit": 1, "active": 0, "available": 1}', 'RL-06: an override, before any job has the key');
select pg_temp.limited('o', '{"key": "api2", "concurrency": 5}', 3) \g /dev/null
select is(pg_temp.claims('o'), 1::bigint, 'RL-06: it counts instead of what jobs say');
select ojs.set_rate_limit('api2', '{"concurrency": 2}', now() + interval '1 hour') is null \g /dev/null
select is(pg_temp.claims('o'), 1::bigint, 'RL-06: the newest');
select pg_temp.clock('20 seconds') \g /dev/null
select is(pg_temp.claims('o'), 0::bigint, 'RL-06: …');
select ojs.set_rate_limit('api2', null) is null \g /dev/null
select is(pg_temp.claims('o'), 1::bigint, 'RL-06: taken back, the job''s own counts again');
select pg_temp.clock('0') \g /dev/null
select pg_temp.limited('back', '{"key": "back", "concurrency": 5}', 3) \g /dev/null
select id as told from ojs.claim('back', 'w') \gset
select ojs.fail(:'told', jsonb_build_object('type', 'Http429', 'message', 'slow down', 'rate_limit_until',
    now() + interval '10 minutes')) is null \g /dev/null
select is(pg_temp.claims('back'), 0::bigint, 'RL-06: rate_limit_until in a report pauses the key');
select ok(paused_until > now() + interval '9 minutes', 'RL-06: and the view says until when') from ojs.rate_limits
    where key = 'back';
select pg_temp.clock('11 minutes') \g /dev/null
select is(pg_temp.claims('back'), 3::bigint, 'RL-06: until then');
select pg_temp.clock('0') \g /dev/null
select pg_temp.limited('back2', '{"key": "back2", "concurrency": 5}', 2) \g /dev/null
select ojs.fail(id, jsonb_build_object('type', 'Http429', 'message', 'slow down', 'rate_limit_until',
    now() + interval '10 minutes'), delay => '1 hour') is null from ojs.claim('back2', 'w') \g /dev/null
select is(pg_temp.claims('back2'), 0::bigint, 'RL-06: a pause'),
    is(ojs.set_rate_limit('back2', null) ->> 'paused_until', null, 'RL-06: that an administrator takes back'),
    is(pg_temp.claims('back2'), 1::bigint, 'RL-06: is over');
select pg_temp.limited('back3', '{"key": "back3", "concurrency": 5}', 1) \g /dev/null
select ojs.fail(id, '{"type": "Http429", "message": "slow down", "rate_limit_until": "9999-12-31T00:00:00Z"}')
    is null from ojs.claim('back3', 'w') \g /dev/null
select ok(paused_until between now() + interval '23 hours' and now() + interval '25 hours',
    'a worker pauses a key for a day at most') from ojs.rate_limits where key = 'back3';
select ojs.set_rate_limit('back3', null) is null \g /dev/null
select pg_temp.limited('slow', '{"key": "slow.start", "throttle": {"limit": 1, "period": "PT1H"}}', 2),
    pg_temp.claims('slow') \g /dev/null
select matches(ojs.explain_job(id), 'the rate limit "slow.start" is used up: the next may start at ',
    'ojs.explain_job knows throttles') from ojs.jobs where queue = 'slow' and state = 'available';
select is(ojs_store.rate_limit_json('never heard of'), null, 'RL-06: of an unknown key nothing is known');

-- What the view shows of keys: also those of jobs that wait for a time; no start that is too old, and nothing whose
-- time is over.
select pg_temp.pushed('view',
    '{"delay_until": "+PT2H", "rate_limit": {"key": "view", "rate": {"limit": 3, "period": "PT1H"}}}') \g /dev/null
select is(pg_temp.rate('view'), '0/3/0/0', 'RL-06: a key of which jobs are scheduled only');
select pg_temp.limited('view', '{"key": "view", "rate": {"limit": 3, "period": "PT1H"}}', 2),
    pg_temp.claims('view') \g /dev/null
select is(pg_temp.rate('view'), '0/3/2/0', 'RL-06: two have started');
select ojs.set_rate_limit('view', '{"rate": {"limit": 9, "period": "PT1H"}}',
    ojs_store.now() + interval '10 minutes') is null,
    ojs.set_rate_limit('unheard', '{"concurrency": 1}', ojs_store.now() + interval '10 minutes') is null \g /dev/null
select is(pg_temp.rate('view'), '0/9/2/0', 'RL-06: what was laid over it'),
    is(pg_temp.rate('unheard'), '1/0/0', 'RL-06: a key that was only set');
select pg_temp.clock('61 minutes') \g /dev/null
select is(pg_temp.rate('view'), '0/3/0/0', 'RL-06: an hour later none has, and what was laid over it is over'),
    is(pg_temp.rate('unheard'), null, 'RL-06: nor is the other known'),
    is((select format('%s %s', override, override_until) from ojs.rate_limits where key = 'view'), ' ',
        'RL-06: nor does the view show it');
select pg_temp.clock('0') \g /dev/null

-- Thousands that wait are looked at now and then, not by each claim: those whom the same limit keeps back, together.
create function pg_temp.blocks(query text) returns bigint language plpgsql as $$
declare plan jsonb;
begin
    execute 'explain (analyze, buffers, format json) ' || query into plan;
    return (plan #>> '{0,Plan,Shared Hit Blocks}')::bigint + (plan #>> '{0,Plan,Shared Read Blocks}')::bigint;
end $$;
select pg_temp.limited('long', '{"key": "long", "concurrency": 2}', 2000) \g /dev/null
select pg_temp.claims('long') as n, pg_temp.blocks($$select ojs.claim('long', 'w', 10)$$) as blocks \gset long_
select is(:long_n::bigint, 2::bigint, 'RL-01: two of two thousand start');
select cmp_ok(:long_blocks::bigint, '<', 500::bigint,
    'RL-01: a claim that finds the places taken does not read two thousand jobs each time');
select is(pg_temp.limited('long', '{"key": "longer", "concurrency": 1}', 2), 2::bigint, 'others come behind them');
select is(pg_temp.claims('long'), 1::bigint, 'RL-04: and are found there');
select ojs.ack(job_id) is null from ojs.leases where queue = 'long'
    and job_id in (select id from ojs.jobs where queue = 'long' order by seq limit 1) \g /dev/null
select is((select jsonb_agg(args) from ojs.claim('long', 'w', 10)), '[[3]]',
    'RL-01: a place that is free goes to the first who waits');

-- Claims and acks cost the same however many slots are taken; what says so stays few rows, and is right.
select pg_temp.limited('fill', '{"key": "slots", "concurrency": 1100}', 1000),
    pg_temp.limited('slots', '{"key": "slots", "concurrency": 1100}', 200), pg_temp.claims('slots', 2) \g /dev/null
select pg_temp.blocks($$select ojs.claim('slots', 'w')$$) as few, pg_temp.claims('fill', 1000),
    pg_temp.blocks($$select ojs.claim('slots', 'w')$$) as many \gset slots_
select cmp_ok(:slots_many::bigint, '<', :slots_few + 100::bigint,
    'RL-01 OP-25: a claim reads no more for a thousand slots that are taken');
select is(pg_temp.claims('slots', 1000), 96::bigint, 'RL-01: and hands out what is left of 1,100');
select is(pg_temp.claims('slots'), 0::bigint, 'RL-01: and no more');
select ojs.ack(job_id) is null from ojs.leases where queue = 'slots' limit 50 \g /dev/null
select is(pg_temp.claims('slots', 100), 50::bigint, 'RL-01: fifty that have ended make room for fifty');
select cmp_ok((select count(*) from ojs_store.limit_use where name = 'slots' and kind in (3, 4)), '<', 5::bigint,
    'RL-01 OP-25: one row stands for their changes');
create function pg_temp.wrong_slots() returns text language sql as $$
    select coalesce(string_agg(key || ': ' || wrong, ', '), 'none') from (
        select name as key, sum(n) as wrong from (
            select name, 1 as n from ojs_store.limit_use where kind = 0
            union all select name, -number from ojs_store.limit_use where kind in (3, 4)) all_ group by 1
        union all select 'without a lease', count(*) from ojs_store.limit_use u where kind = 0
            and not exists (select from ojs_store.lease l where l.job_id = u.job_id and l.token = u.token)
    ) t where wrong <> 0
$$;
select is(pg_temp.wrong_slots(), 'none', 'RL-01: what is counted is what is taken');
select ojs.purge_queue('fill', '{active}', true) is null, ojs.purge_queue('slots', '{active}', true) is null
    \g /dev/null
select is(pg_temp.wrong_slots(), 'none', 'RL-01: a purge frees slots, too');
select is(pg_temp.rate('slots'), '1100/0/50', 'RL-06: as the view says');

-- Any mixture of keys: a claim that comes short has left nothing that might start.
do $$
declare
    seed float8 := random();
    keys text[] := '{a,b,c,free}';
    key text;
    got int;
    short int := 0;
    wrong int := 0;
begin
    perform setseed(seed);
    -- none may lapse between a claim and the look at it, on a slow machine
    perform set_config('ojs.default_lease', '1h', true);
    for step in 1 .. 250 loop
        if step = 1 or random() < 0.1 then
            for stretch in 1 .. 4 loop
                key := keys[1 + floor(random() * 4)];
                perform ojs.push('test.job', jsonb_build_array(key), queue => 'mixed',
                    priority => floor(random() * 2)::int,
                    options => case when key <> 'free'
                        then jsonb_build_object('rate_limit',
                        jsonb_build_object('key', 'mixed-' || key, 'concurrency', ascii(key) - 96)) else '{}' end)
                from generate_series(1, (random() * 20)::int);
            end loop;
        end if;
        if random() < 0.5 then
            perform ojs.ack(job_id) from (select job_id from ojs.leases where queue = 'mixed' order by random()
                limit 2) l;
        elsif random() < 0.1 then
            perform ojs.nack(job_id) from (select job_id from ojs.leases where queue = 'mixed' order by random()
                limit 1) l;
        end if;
        got := (random() * 4)::int;
        if pg_temp.claims('mixed', got) < got then
            short := short + 1;
            wrong := wrong + (select count(*) from (select args ->> 0 as key,
                count(*) filter (where state = 'active') held from ojs.jobs where queue = 'mixed' group by 1
                having count(*) filter (where state = 'available') > 0) k where k.key = 'free'
                    or held <> ascii(k.key) - 96);
        end if;
    end loop;
    perform set_config('ojs.default_lease', '30s', true);
    perform set_config('test.wrong', short || ' short, ' || wrong || ' wrong, seed ' || seed, true);
end $$;
select matches(current_setting('test.wrong'), '^[1-9][0-9]+ short, 0 wrong,',
    'RL-01 RL-04: in a mixture of keys a claim leaves nothing that might start');
select is(pg_temp.wrong_slots(), 'none', 'RL-01: and what is counted is what is taken, again');

-- A lease that somebody has deleted by hand.
select pg_temp.limited('hand', '{"key": "hand", "concurrency": 1}', 2), pg_temp.claims('hand') \g /dev/null
delete from ojs_store.lease l using ojs_store.limit_use u where u.name = 'hand' and l.job_id = u.job_id;

-- A tick clears away what counts no more.
select pg_temp.clock('3 hours') \g /dev/null
select ojs.tick() is null \g /dev/null
select is((select count(*) from ojs_store.limit_use where kind <> 2), 0::bigint,
    'a tick removes uses that count no more');
select is(pg_temp.claims('hand'), 1::bigint, 'and gives back the slot of a lease that is not there');
select is((select count(*) from ojs_store.rate_limit where until is not null), 0::bigint,
    'and settings whose time is over');
select pg_temp.clock('0') \g /dev/null

-- Bad ones
select is(pg_temp.refusal(format('select ojs.push(''a.b'', options => %L)',
    jsonb_build_object('rate_limit', bad::jsonb))), 'OJ100 INVALID_PAYLOAD ' || field, 'RL-07 R-59: refused: ' || bad)
from (values
    ('{"key": ""}', 'rate_limit.key'), ('{"key": "-a"}', 'rate_limit.key'), ('{"key": "a b"}', 'rate_limit.key'),
        ('{"key": 1}', 'rate_limit.key'),
    ('{"concurrency": -1}', 'rate_limit.concurrency'), ('{"concurrency": 1.5}', 'rate_limit.concurrency'),
        ('{"concurrency": "3"}', 'rate_limit.concurrency'),
    ('{"rate": {"limit": 1}}', 'rate_limit.rate.period'), ('{"rate": {"period": "PT1S"}}', 'rate_limit.rate.limit'),
        ('{"rate": 1}', 'rate_limit.period'),
    ('{"rate": {"limit": 1, "period": "1 s"}}', 'rate_limit.rate.period'),
        ('{"rate": {"limit": 1, "period": "PT0S"}}', 'rate_limit.rate.period'),
    ('{"throttle": {"limit": 0, "period": "PT1S"}}', 'rate_limit.throttle.limit'),
        ('{"on_limit": "explode"}', 'rate_limit.on_limit'), ('3', 'rate_limit'), ('[3]', 'rate_limit'),
    ('{"max_per_second": -1}', 'rate_limit.max_per_second')
) t (bad, field);
select is(pg_temp.refusal($$select ojs.configure_queue('q', '{"rate_limit": {"key": "x", "concurrency": 1}}')$$),
    'OJ100 INVALID_PAYLOAD rate_limit.key', 'a queue''s limit has no key of its own');
select is(pg_temp.refusal($$select ojs.set_rate_limit('a b', '{}')$$), 'OJ100 INVALID_PAYLOAD key',
    'RL-07: nor has an override a bad one');
select is(pg_temp.refusal($$select ojs.set_rate_limit('a', '{"concurrency": -1}')$$),
    'OJ100 INVALID_PAYLOAD rate_limit.concurrency', 'RL-06: an override is checked');
select is(pg_temp.refusal($$select ojs.set_rate_limit('a', '{}', now() - interval '1 s')$$),
    'OJ100 INVALID_PAYLOAD until', 'RL-06: and not over already');

-- Starts of one time stand anywhere on disk: what is counted follows their numbers, not their places.
select pg_temp.limited('places', '{"key": "places", "rate": {"limit": 5, "period": "PT1H"}}', 10) \g /dev/null
insert into ojs_store.limit_use (key, kind, at, number, until, job_id, token, name)
    select ojs_store.name_hash('places'), 1, at, n, at + interval '1 hour', gen_random_uuid(), 0, 'places'
    from generate_series(4, 1, -1) n, (select ojs_store.now() as at offset 0) clock;
select is(pg_temp.claims('places'), 1::bigint, 'RL-02: four of five have started at one time: one more');
select is(pg_temp.claims('places'), 0::bigint, 'RL-02: and no other');
select is((select array_agg(number order by number) from ojs_store.limit_use
    where key = ojs_store.name_hash('places') and kind = 1), array[1, 2, 3, 4, 5]::bigint[],
    'RL-02: no number is given twice');

-- Two jobs of one key that state different periods, in one claim.
select pg_temp.limited('periods', '{"key": "periods", "rate": {"limit": 5, "period": "PT1H"}}') \g /dev/null
select is(pg_temp.claims('periods'), 1::bigint, 'RL-02: one has started');
select ojs.ack(job_id) is null from ojs.leases where queue = 'periods' \g /dev/null
select pg_temp.clock('10 minutes') \g /dev/null
select pg_temp.limited('periods', '{"key": "periods", "rate": {"limit": 5, "period": "PT1H"}}'),
    pg_temp.limited('periods', '{"key": "periods", "rate": {"limit": 1, "period": "PT1M"}}') \g /dev/null
select is(pg_temp.claims('periods'), 1::bigint,
    'RL-02: what the same claim has started counts for the job with the shorter period, too');
select pg_temp.clock('0') \g /dev/null

-- A claim that ends a lease itself can take the slot that this frees, though it has seen before that none was free.
select pg_temp.limited('lapsed', '{"key": "lapsed", "concurrency": 1}', 2) \g /dev/null
select is(pg_temp.claims('lapsed'), 1::bigint, 'RL-01: one of two is held');
update ojs_store.lease set deadline = ojs_store.now(), reap_at = ojs_store.now()
    where queue = ojs_store.queue_id('lapsed');
select is(pg_temp.claims('lapsed'), 1::bigint, 'RL-01: the claim that takes it back hands it out again');

-- A queue's limit and those of its jobs that name no key have one key, for which a job counts once.
select ojs.create_queue('once', '{"concurrency": 3, "rate_limit": {"rate": {"limit": 5, "period": "PT1H"}}}'),
    pg_temp.limited('once', '[{"concurrency": 3}, {"rate": {"limit": 5, "period": "PT2H"}}]', 9) \g /dev/null
select is(pg_temp.claims('once'), 3::bigint, 'R-59: three start, as the queue and each of them says');
select is((select active from ojs.rate_limits where key = 'queue:once'), 3::bigint, 'R-59: and are shown as three');
select ojs.ack(job_id) is null from ojs.leases where queue = 'once' \g /dev/null
select is(pg_temp.claims('once'), 2::bigint, 'R-59: and then the fourth and fifth of the hour');
select is((select max(until - at) from ojs_store.limit_use where name = 'queue:once' and kind = 1), interval '2 hours',
    'R-59: which count as long as any of the limits asks');

-- The default policy limits every queue that says nothing else.
select ojs.configure_queue('_default', '{"concurrency": 1}') is null as made \gset
select pg_temp.pushed('by-policy') as first, pg_temp.pushed('by-policy') as second \gset
select is(pg_temp.claims('by-policy'), 1::bigint, 'a limit of the default policy holds (RL-02)');
select is((select concat_ws('/', concurrency, active) from ojs.rate_limits where key = 'queue:by-policy'), '1/1',
    'and is shown (RL-06)');
select is((select count(*) from ojs.rate_limits where key = 'queue:_default'), 0::bigint,
    'for queues, not for the policy itself (RL-06)');
select alike(ojs.explain_job(:'second'), '%the rate limit "queue:by-policy" is used up: 1 of 1 run.',
    'explain_job knows it (ADM-02)');
select is(ojs_store.rate_limit_json('queue:by-policy') -> 'concurrency' -> 'limit', '1',
    'and so does the look at one key (RL-06)');
select ojs.configure_queue('_default', '{"concurrency": null}') is null as made \gset

select * from finish();
rollback;
