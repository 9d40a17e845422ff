-- scheduling.sql: SCH-01 to SCH-04, RET-14: nothing runs before its time by the database's clock, whatever the clock
-- does.
begin;
select no_plan();
\ir helpers.psql

create function pg_temp.due_in(queue text, wait interval, options jsonb default '{}') returns uuid language sql as
$$ select id from ojs.push('test.job', queue => queue, delay => wait, options => options) $$;
create function pg_temp.claimed(queue text, most int default 1000) returns uuid[] language sql as
$$ select coalesce(array_agg(id), '{}') from ojs.claim(queue, 'w', most, lease => '10 hours') $$;

-- One job -------------------------------------------------------------------------------------------------------------

select pg_temp.due_in('one', '10 s') as id \gset
select is(state, 'scheduled', 'SCH-01: a job of the future waits') from ojs.jobs where id = :'id';
select pg_temp.clock('9 s') \g /dev/null
select is(pg_temp.claimed('one'), '{}', 'SCH-01: not claimable a second before its time');
select pg_temp.clock('10050 ms') \g /dev/null
select is(pg_temp.claimed('one'), array[:'id']::uuid[], 'SCH-01: claimable 50 ms after it, without a tick');
select is(state, 'active', 'SCH-02: it runs'),
    isnt(scheduled_at, null,
    'SCH-02: and its envelope still says when it was due') from ojs.jobs where id = :'id';
select ojs.ack(:'id', worker => 'w') \g /dev/null
select isnt(scheduled_at, null, 'SCH-02: finished, too') from ojs.jobs where id = :'id';
select pg_temp.clock('0') \g /dev/null

-- The clock steps back ------------------------------------------------------------------------------------------------

select pg_temp.due_in('back', '10 s') as early, pg_temp.due_in('back', '1 hour') as late \gset
select pg_temp.clock('1 min') \g /dev/null
select ojs.tick() \g /dev/null
select pg_temp.clock('-1 hour') \g /dev/null
select is(pg_temp.claimed('back'), array[:'early']::uuid[],
    'SCH-04: what fell due stays due when the clock steps back');
select pg_temp.pushed('back') as new \gset
select is(pg_temp.claimed('back'), array[:'new']::uuid[], 'SCH-04: what is pushed then is claimable at once');
select ojs.ack_many('w', array[:'early', :'new']::uuid[]) \g /dev/null
select pg_temp.clock('50 min') \g /dev/null
select is(pg_temp.claimed('back'), '{}', 'SCH-04: and nothing comes early');
select pg_temp.clock('61 min') \g /dev/null
select is(pg_temp.claimed('back'), array[:'late']::uuid[], 'SCH-04: the rest at its time');
select pg_temp.clock('0') \g /dev/null

-- Any times, any clock ------------------------------------------------------------------------------------------------

-- 300 jobs due within ten minutes; the clock goes to and fro, sometimes with a tick. No claim gets a job that the clock
-- has never reached, and one that comes back short leaves none that is due by now.
create temp table plan (id uuid primary key, due interval, taken boolean default false);
create temp table steps (early bigint, missed bigint, got int);
create function pg_temp.run(jobs int, moves int) returns void language plpgsql as $$
declare
    base timestamptz := clock_timestamp();
    ahead interval;
    shown interval;
    highest interval := '0';
    most int;
    ids uuid[];
begin
    for i in 1 .. jobs loop
        insert into plan
        select p.id, p.scheduled_at - base
        from ojs.push('test.job', queue => 'any', priority => (i % 3) - 1,
            scheduled_at => base + (random() * 600 + 1) * interval '1 s') p;
    end loop;
    for i in 1 .. moves loop
        ahead := random() * 700 * i / moves * interval '1 s';
        most := 1 + random() * 8;
        perform pg_temp.clock(ahead);
        if random() < 0.3 then
            perform ojs.tick();
        end if;
        shown := ahead + (clock_timestamp() - base);
        ids := pg_temp.claimed('any', most);
        highest := greatest(highest, ahead + (clock_timestamp() - base));
        update plan set taken = true where id = any (ids);
        insert into steps values (
            (select count(*) from plan where id = any (ids) and due > highest),
            case when cardinality(ids) < most then (select count(*) from plan where not taken and due <= shown)
                else 0 end,
            cardinality(ids));
    end loop;
end $$;
select setseed(0.42) \g /dev/null
select pg_temp.run(300, 150) \g /dev/null
select is(sum(early), 0::numeric, 'SCH-01: no claim gets a job before the clock has reached its time') from steps;
select is(sum(missed), 0::numeric, 'SCH-01: none that comes back short leaves one that is due') from steps;
select cmp_ok(sum(got), '>', 200::bigint, 'SCH-01: most jobs on the way') from steps;
select is((select count(*) from ojs.jobs where queue = 'any' and deliveries > 1), 0::bigint, 'SCH-01: each once');
select pg_temp.clock('0') \g /dev/null

-- What expires in two ways expires by the sooner; it ran out of time, not of attempts, so it is no dead letter.
create temp table two as select name, pg_temp.pushed('two',
    options || jsonb_build_object('retry', '{"on_exhaustion": "dead_letter"}'::jsonb, 'expires_at',
    now() + expires)) as id
from (values ('expired', '{"enqueue_ttl": 60}'::jsonb, '10 s'::interval),
    ('enqueue_ttl_expired', '{"enqueue_ttl": 10}', '60 s'),
    ('total_timeout', '{"enqueue_ttl": 60, "total_timeout": 10}', '60 s')) t (name, options, expires);
select pg_temp.clock('11 s') \g /dev/null
select ojs.tick() \g /dev/null
select is(state || ' ' || (error ->> 'type'), 'discarded ' || name,
    'SCH-03 TMO-04 TMO-05: the sooner counts: ' || name) from two join ojs.jobs using (id);
select is((select array_agg(name) from two join ojs.dead_letters using (id)), '{total_timeout}',
    'DLQ-01 TMO-05: only a total timeout is the end of all attempts');
select pg_temp.clock('0') \g /dev/null

-- Expiry --------------------------------------------------------------------------------------------------------------

select pg_temp.pushed('exp', jsonb_build_object('expires_at',
    to_char(now() at time zone 'UTC' + interval '10 s', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))) as waits,
    pg_temp.held('exp2', 'w', jsonb_build_object('expires_at',
        to_char(now() at time zone 'UTC' + interval '10 s', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))) as runs \gset
select pg_temp.clock('11 s') \g /dev/null
select is(pg_temp.claimed('exp'), '{}', 'SCH-03: an expired job is never delivered');
select ojs.tick() \g /dev/null
select is(state, 'discarded', 'SCH-03: it is discarded') from ojs.jobs where id = :'waits';
select is(state, 'active', 'SCH-03: one that runs is not') from ojs.jobs where id = :'runs';
select is((ojs.ack(:'runs', worker => 'w')).state, 'completed', 'SCH-03: and may finish');
select pg_temp.clock('0') \g /dev/null

-- One statement, one now ----------------------------------------------------------------------------------------------

select count(*) as n from ojs.push_many((select jsonb_agg('{"type": "test.job", "args": [], "queue": "now"}'::jsonb)
    from generate_series(1, 200))) \gset
select is((select count(distinct created_at) from ojs.jobs where queue = 'now'), 1::bigint,
    'SCH-04: the jobs of one push have one time');
select is((select count(distinct started_at) from ojs.claim('now', 'w', 200)), 1::bigint,
    'SCH-04: and those of one claim');

-- A retry changes nothing of what was asked ---------------------------------------------------------------------------

select id from ojs.push('test.job', '[1, {"a": "b"}]', queue => 'ret', priority => 7, "unique" => '{"keys": ["type"]}',
    retry => '{"initial_interval": "PT1S", "jitter": false}') \gset
select id is not null as held from ojs.claim('ret', 'w') \gset
select is((ojs.fail(:'id', '{"type": "T", "message": "m"}', worker => 'w')).state, 'retryable',
    'RET-14: a failure is retried');
select pg_temp.clock('2 s') \g /dev/null
select is((select array[id::text, args::text, priority::text] from ojs.claim('ret', 'w')),
    array[:'id', '[1, {"a": "b"}]', '7'], 'RET-14: with its id, arguments and priority');
select pg_temp.clock('0') \g /dev/null

select * from finish();
rollback;
