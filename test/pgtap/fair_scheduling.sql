-- fair_scheduling.sql: claims that share jobs out among queues, and pools: FS-01, FS-02, HTTP-12. Many sessions:
-- test/tap/fair_scheduling.pl.
begin;
select no_plan();
\ir helpers.psql
\ir http.psql

create function pg_temp.fill(n int, variadic queues text[]) returns bigint language sql as $$
    select count(*) from unnest(queues) q, generate_series(1, n) i,
        lateral ojs.push('test.job', jsonb_build_array(i), queue => q)
$$;
-- What one claim got: "fa fb fa".
create function pg_temp.got_by(queues text[], max int, strategy text, weights jsonb default null) returns text
    language sql as $$
    select coalesce(string_agg(queue, ' ' order by ordinality), '')
    from ojs.claim(queues, 'w', max, strategy => strategy, weights => weights) with ordinality
$$;
-- How many jobs of each queue so many claims get: "fa 5, fb 3".
create function pg_temp.shares(claims int, queues text[], max int, strategy text, weights jsonb default null)
returns text language plpgsql as $$
declare
    taken text[] := '{}';
begin
    for i in 1..claims loop
        taken := taken || array(select queue from ojs.claim(queues, 'w', max, strategy => strategy,
            weights => weights));
    end loop;
    return (select string_agg(format('%s %s', queue, n), ', ' order by queue)
        from (select queue, count(*) as n from unnest(taken) queue group by 1) c);
end $$;

-- Strategies ----------------------------------------------------------------------------------------------------------

select pg_temp.fill(40, 'fa', 'fb', 'fc') \g /dev/null
select is(pg_temp.got_by(array['fa', 'fb'], 4, 'strict'), 'fa fa fa fa', 'FS-01: strict: the first queue first');
select is((select string_agg(queue, ' ') from ojs.claim(array['fa', 'fb'], 'w', 2)), 'fa fa', 'FS-01: and by default');
select is((select string_agg(queue, ' ') from ojs.claim(array['fa', 'fb'], 'w', 2, strategy => null)), 'fa fa',
    'FS-01: null is strict');
select is(pg_temp.got_by(array['fa', 'fb'], 4, 'round-robin'), 'fa fb fa fb', 'FS-01: four of two equal queues: 2+2');
select is(pg_temp.got_by(array['fa', 'fb'], 4, 'round_robin'), 'fa fb fa fb', 'FS-01: however it is spelled');
select is(pg_temp.shares(6, array['fa', 'fb', 'fc'], 1, 'round-robin'), 'fa 2, fb 2, fc 2',
    'FS-01: a claim at a time goes round, too');
select is(pg_temp.shares(9, array['fa', 'fb', 'fc'], 1, 'weighted', '{"fa": 5, "fb": 3}'), 'fa 5, fb 3, fc 1',
    'FS-01: by weights; a queue without one has 1');
select is(pg_temp.shares(3, array['fa', 'fb', 'fc'], 4, 'weighted', '{"fa": 50, "fb": 25, "fc": 25}'),
    'fa 6, fb 3, fc 3', 'FS-01: weights count as they relate to each other');
select is(pg_temp.shares(2, array['fa', 'fb', 'fa'], 2, 'round-robin'), 'fa 2, fb 2',
    'FS-01: a queue that is named twice counts once');
select is((select array_agg(args order by ordinality) = array_agg(args order by args) from ojs.claim(array['fb', 'fc'],
    'w', 10, strategy => 'weighted', weights => '{"fb": 9}') with ordinality where queue = 'fb'), true,
    'FS-01: the jobs of a queue keep their order');

-- A queue that has little leaves its share to the others.
select pg_temp.fill(2, 'few'), pg_temp.fill(20, 'many', 'more') \g /dev/null
select is(pg_temp.refusal($$select ojs.claim(array['none', 'few'], 'w', strategy => 'weighted')$$),
    pg_temp.refusal($$select ojs.claim('none', 'w')$$), 'FS-01: a queue that is not there is refused, as ever');
select is((select string_agg(queue || ' ' || n, ', ' order by queue) from (select queue, count(*) as n
    from ojs.claim(array['none', 'few', 'many', 'more'], 'w', 12, missing_ok => true, strategy => 'weighted',
        weights => '{"none": 100, "few": 10}') group by 1) c), 'few 2, many 5, more 5',
    'FS-01: work-conserving: what a queue has too few jobs for goes to the others, by their weights');
select ojs.pause_queue('many') \g /dev/null
select is(pg_temp.shares(1, array['many', 'more'], 4, 'round-robin'), 'more 4', 'FS-01: so does what a paused one has');
select ojs.resume_queue('many') \g /dev/null
select is(pg_temp.shares(1, array['many', 'more'], 100, 'round-robin'), 'many 15, more 11',
    'FS-01: and a claim takes all there is');

-- Work-conserving, whatever the queues hold and weigh; and over a cycle of claims the shares are exact.
do $$
declare
    seed double precision := random();
    names text[];
    weights jsonb;
    had bigint;
    wanted int;
    got bigint;
    bad text;
begin
    perform setseed(seed);
    for round in 1..60 loop
        names := array(select format('p%s-%s', round, i) from generate_series(1, 1 + (random() * 7)::int) i);
        select jsonb_object_agg(n, 1 + (random() * 9)::int) into weights from unnest(names) n where random() < 0.8;
        perform ojs.push('test.job', queue => n) from unnest(names) n, generate_series(1, (random() * 12)::int);
        for i in 1..4 loop
            select count(*) into had from ojs.jobs where queue = any (names) and state = 'available';
            wanted := 1 + (random() * 30)::int;
            select count(*) into got from ojs.claim(names, 'w', wanted, missing_ok => true, strategy => 'weighted',
                weights => coalesce(weights, '{}'));
            if got <> least(wanted, had) then
                bad := concat_ws('; ', bad, format('seed %s: %s of %s, asked for %s', seed, got, had, wanted));
            end if;
        end loop;
    end loop;
    perform set_config('test.bad', coalesce(bad, ''), true);
end $$;
select is(current_setting('test.bad'), '', 'FS-01: no claim comes back short while a queue of it has jobs');

select is(pg_temp.refusal(format($$select ojs.claim(array['fa', 'fb'], 'w', strategy => %L, weights => %L)$$, s, w))
    ~ says, true, 'FS-01: refused: ' || s || ' ' || coalesce(w, ''))
from (values ('fair', null, 'INVALID_PAYLOAD strategy'), ('least-loaded', null, 'UNSUPPORTED_FEATURE strategy'),
    ('strict', '{"fa": 1}', 'INVALID_PAYLOAD weights'), ('weighted', '[1]', 'INVALID_PAYLOAD weights'),
    ('weighted', '{"fa": 0}', 'INVALID_PAYLOAD weights'), ('weighted', '{"fa": 1.5}', 'INVALID_PAYLOAD weights'),
    ('weighted', '{"fa": "1"}', 'INVALID_PAYLOAD weights'), ('weighted', '{"fa": 1000001}', 'INVALID_PAYLOAD weights'),
    ('weighted', '{"f": 1}', 'INVALID_PAYLOAD weights')) v (s, w, says);

-- Pools ---------------------------------------------------------------------------------------------------------------

select pg_temp.fill(30, 'pa', 'pb') \g /dev/null
select is(ojs.set_pool('general', '{"queues": ["pa", "pb", "later"], "weights": {"pa": 3}, "strategy": "weighted"}'),
    '{"name": "general", "queues": ["pa", "pb", "later"], "strategy": "weighted",
      "weights": {"pa": 3, "pb": 1, "later": 1}}', 'FS-02: a pool is made; its queues need not be there');
select is((select string_agg(queue, ' ' order by queue) from ojs.claim_pool('general', 'w', 8)),
    'pa pa pa pa pa pa pb pb',
    'FS-02: a claim of it is shared out by its weights');
select is(pg_temp.refusal($$select ojs.claim_pool('nobody', 'w')$$) ~ 'NOT_FOUND', true, 'FS-02: no such pool');
select ojs.set_pool('general', '{"queues": ["pb", "pa"], "strategy": "strict"}') \g /dev/null
select is((select string_agg(queue, ' ') from ojs.claim_pool('general', 'w', 2)), 'pb pb',
    'FS-02: a change counts from the next claim on');
select is((select string_agg(concat_ws(' ', queue, strategy, queues, places_taken, active_workers, active_jobs), '')
    from (select null as queue, * from ojs.pools where name = 'general') p), 'strict {pb,pa} 0 1 10',
    'FS-02: ojs.pools shows it');
select is(ojs.set_pool('general', '{"queues": ["pb", "pa"], "strategy": "strict"}') is not null
    and (select count(*) = 2 from ojs.audit where act = 'pool_set' and subject = 'general'), true,
    'FS-02: what is set again as it is leaves no entry in the audit');
select is((select concat_ws(' ', a.before ->> 'strategy', a.after ->> 'strategy') from ojs.audit a
    where act = 'pool_set' and a.before is not null), 'weighted strict', 'FS-02: the audit says what was before');
select is((select data from ojs.events where type = 'scheduling.rebalanced'),
    '{"pool": "general", "previous_strategy": "weighted", "new_strategy": "strict"}', 'FS-02: and an event says so');

-- How many jobs of a pool are held at once.
select ojs.set_pool('small', '{"queues": ["pa", "pb"], "concurrency": 3}') \g /dev/null
select is((select count(*) from ojs.claim_pool('small', 'w', 10)), 3::bigint, 'FS-02: a pool holds so many jobs');
select is((select count(*) from ojs.claim_pool('small', 'v', 10)), 0::bigint, 'FS-02: and no more');
select is((select count(*) from ojs.claim(array['pa', 'pb'], 'w', 2)), 2::bigint,
    'FS-02: which bounds claims by the pool alone');
select is((select places_taken from ojs.pools where name = 'small'), 3::bigint, 'FS-02: ojs.pools counts its places');
select ojs.ack(u.job_id) from ojs_store.limit_use u join ojs_store.lease using (job_id)
    where u.name = 'pool:small' limit 1 \g /dev/null
select is((select count(*) from ojs.claim_pool('small', 'w', 10)), 1::bigint, 'FS-02: an ack makes room');
select pg_temp.clock('31 seconds') \g /dev/null
select is((select count(*) from ojs.claim_pool('small', 'w', 100)), 3::bigint, 'FS-02: leases that ran out hold none');
select pg_temp.clock('0') \g /dev/null
select ojs.set_pool('small', '{"queues": ["pa", "pb"], "concurrency": 0}') \g /dev/null
select is((select count(*) from ojs.claim_pool('small', 'w', 10)), 0::bigint, 'FS-02: none at all');

select is(pg_temp.refusal(format('select ojs.set_pool(%L, %L)', name, config)) ~ says, true,
    'FS-02: refused: ' || name || config)
from (values ('', '{"queues": ["a"]}', 'INVALID_PAYLOAD name'), ('a/b', '{"queues": ["a"]}', 'INVALID_PAYLOAD name'),
    ('p', '[]', 'INVALID_PAYLOAD config'), ('p', '{}', 'INVALID_PAYLOAD queues'),
    ('p', '{"queues": []}', 'INVALID_PAYLOAD queues'), ('p', '{"queues": [1]}', 'INVALID_PAYLOAD queues'),
    ('p', '{"queues": ["A b"]}', 'INVALID_QUEUE queues'),
    ('p', '{"queues": {"a": {"weight": 1}}, "strategy": "strict"}', 'INVALID_PAYLOAD queues'),
    ('p', '{"queues": {"a": 70, "b": 30}, "strategy": "weighted"}', 'INVALID_PAYLOAD queues'),
    ('p', '{"queues": {"a": {"wieght": 70}}, "strategy": "weighted"}', 'INVALID_PAYLOAD queues'),
    ('p', '{"queues": ["a"], "strategy": "fast"}', 'INVALID_PAYLOAD strategy'),
    ('p', '{"queues": ["a"], "weights": {"a": 2}}', 'INVALID_PAYLOAD weights'),
    ('p', '{"queues": ["a"], "concurrency": -1}', 'INVALID_PAYLOAD concurrency'),
    ('p', '{"queues": ["a"], "concurrency": "x"}', 'INVALID_PAYLOAD concurrency'),
    ('p', '{"queues": ["a"], "isolated": true}', 'UNSUPPORTED_FEATURE isolated'),
    ('p', '{"queues": ["a"], "starvation_prevention": {"enabled": true}}',
        'UNSUPPORTED_FEATURE starvation_prevention'),
    ('p', '{"queues": ["a"], "colour": 1}', 'INVALID_PAYLOAD colour')) v (name, config, says);

-- Rights: a pool lends nobody a queue.
create role fair_worker in role ojs_worker;
create role fair_observer in role ojs_observer;
create role fair_admin in role ojs_admin;
select ojs.configure_queue('pb', '{"workers": ["nobody"], "readers": ["nobody"], "administrators": ["nobody"]}')
    \g /dev/null
select is(pg_temp.as_role('fair_worker', $$select count(*) from ojs.claim_pool('general', 'fair')$$),
    pg_temp.as_role('fair_worker', $$select count(*) from ojs.claim('pb', 'fair')$$),
    'FS-02: who may not work on a queue may not by a pool either');
select isnt(pg_temp.as_role('fair_worker', $$select count(*) from ojs.claim('pb', 'fair')$$), '1', 'as it is');
select is(pg_temp.as_role('fair_observer', $$select count(*) from ojs.pools$$), '0',
    'FS-02: who may not read a queue sees no pool of it');
select is(pg_temp.as_role('fair_admin', $$select ojs.drop_pool('general')$$),
    pg_temp.as_role('fair_admin', $$select ojs.pause_queue('pb')$$), 'FS-02: nor may change it');
select ojs.configure_queue('pb', '{"workers": null, "readers": null, "administrators": null}') \g /dev/null
select is(pg_temp.as_role('fair_observer', $$select count(*) from ojs.pools$$), '2', 'FS-02: else an observer does');
select is(pg_temp.as_role('fair_worker', $$select ojs.set_pool('x', '{"queues": ["a"]}')$$), '42501',
    'FS-02: workers make none');
select is(array[ojs.drop_pool('small'), ojs.drop_pool('small')], '{t,f}', 'FS-02: a pool is dropped, once');

-- Statistics ----------------------------------------------------------------------------------------------------------

select pg_temp.fill(4, 'sa', 'sb') \g /dev/null
select ojs.ack(id) from ojs.claim('sa', 'w', 3) \g /dev/null
select count(*) from ojs.claim('sb', 'w', 1) \g /dev/null
select is((select string_agg(concat_ws(' ', queue, dispatch_count_1m, active_jobs), ', ' order by queue)
    from ojs.scheduling_stats() where queue in ('sa', 'sb')), 'sa 3 0, sb 1 1',
    'FS-02: how many jobs were handed out within the last minute, and are held');
select is((select round(sum(dispatch_ratio_1m), 1) from ojs.scheduling_stats()), 1.0, 'FS-02: parts of one whole');
select pg_temp.clock('2 minutes') \g /dev/null
select ojs.ack(job_id) is null from ojs.leases where queue = 'sb' \g /dev/null
select is((select sum(dispatch_count_1m) from ojs.scheduling_stats()), 0::numeric,
    'FS-02: and no longer, whenever they end');
select pg_temp.clock('0') \g /dev/null

-- HTTP ----------------------------------------------------------------------------------------------------------------

select pg_temp.keep(pg_temp.http('PUT', '/ojs/v1/admin/pools/web',
    '{"queues": {"ha": {"weight": 70}, "hb": {"weight": 30}}, "strategy": "weighted", "concurrency": 20}')) \g /dev/null
select is(pg_temp.got('status') || ' ' || pg_temp.got('body.pool.weights'), '201 {"ha": 70, "hb": 30}',
    'HTTP-12: a pool is made, by weights beside its queues');
select is((pg_temp.http('PUT', '/ojs/v1/admin/pools/web', '{"queues": ["ha", "hb"]}')) -> 'status', '200',
    'HTTP-12: and changed');
select is(pg_temp.http('GET', '/ojs/v1/admin/pools/web') #>> '{body,pool,strategy}', 'round-robin', 'HTTP-12: {pool}');
select is(pg_temp.http('GET', '/ojs/v1/admin/pools') #>> '{body,items,1,name}', 'web', 'FS-02: {items}');
select pg_temp.fill(5, 'ha', 'hb') \g /dev/null
select is((select string_agg(j ->> 'queue', ' ' order by o) from jsonb_array_elements(pg_temp.http('POST',
    '/ojs/v1/workers/fetch', asked) #> '{body,jobs}') with ordinality x (j, o)), 'ha hb ha hb',
    'FS-01: a fetch: ' || asked::text)
from (values ('{"queues": ["ha", "hb"], "strategy": "round-robin", "count": 4}'::jsonb),
    ('{"pool": "web", "count": 4}')) v (asked);
select is(jsonb_array_length(pg_temp.http('POST', '/ojs/v1/workers/fetch', '{"queues": ["ha", "hb"], "count": 3,
    "strategy": "weighted", "weights": {"ha": 2}}') #> '{body,jobs}'), 2,
    'FS-01: a fetch takes what is left, weighted');
select is(pg_temp.error('POST', '/ojs/v1/workers/fetch', '{"pool": "nobody"}'), '404 not_found', 'FS-02: no such pool');
select is(pg_temp.error('POST', '/ojs/v1/workers/fetch', '{"queues": ["ha"], "strategy": "fair"}'),
    '400 invalid_request', 'FS-01: no such strategy');
select is(pg_temp.http('GET', '/ojs/v1/admin/scheduling/stats') #>> '{body,stats,window}', 'PT1M', 'HTTP-12: {stats}');
select is(pg_temp.http('DELETE', '/ojs/v1/admin/pools/web') -> 'status', '204', 'FS-02: a pool is dropped');
select is(pg_temp.error('GET', '/ojs/v1/admin/pools/web'), '404 not_found', 'FS-02: and gone');

select finish();
rollback;
