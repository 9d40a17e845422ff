-- priority_aging.sql: jobs that rise while they wait (Q-71).
begin;
select no_plan();
\ir helpers.psql

-- A queue's waiting jobs in the order in which a claim would take them: type and priority. From the rows of the hot
-- set, since the envelope keeps its priority.
create function pg_temp.line(queue text) returns text language sql volatile as $$
    select string_agg(j.type || ':' || -r.npriority, ' ' order by r.npriority,
        r.position >= (1::bigint << 62), r.position)
    from ojs_store.ready r join ojs_store.job j on j.id = r.job_id where r.queue = ojs_store.queue_id(line.queue) $$;
create function pg_temp.push(queue text, type text, priority int default 0, options jsonb default '{}') returns uuid
language sql volatile as $$ select id from ojs.push(type, queue => queue, priority => priority, options => options) $$;
-- Time passes, with a tick in each while, which is ten minutes: the test itself takes less.
create temp table passed as select 0 as whiles;
create function pg_temp.pass(n int, step int default 1) returns void language plpgsql as $$
begin
    for i in 1 .. n / step loop
        update passed set whiles = whiles + step;
        perform pg_temp.clock(whiles * interval '10 minutes') from passed;
        perform ojs.tick();
    end loop;
end $$;

-- CONFIGURATION ----------------------------------------------------------------------------------------------------

select ojs.create_queue('plain') is null as made \gset
create function pg_temp.config(given jsonb) returns text language sql volatile as $$
    select concat_ws('/', c #>> '{config,priority_aging_s}', c #>> '{config,priority_aging_limit}')
    from ojs.configure_queue('plain', given) c $$;
select is(pg_temp.config('{}'), '0/100', 'Q-71: no aging by default'),
    is(pg_temp.config('{"priority_aging_s": 60, "priority_aging_limit": -5}'), '60/-5', 'Q-71: as given'),
    is(pg_temp.config('{"priority_aging_s": null, "priority_aging_limit": null}'), '0/100', 'Q-71: null takes it back');
select is(pg_temp.refusal(format($$ select ojs.configure_queue('plain', %L) $$, given)),
    'OJ100 INVALID_PAYLOAD ' || field, 'Q-71: refused: ' || given)
from (values ('{"priority_aging_s": -1}', 'priority_aging_s'), ('{"priority_aging_s": 0.5}', 'priority_aging_s'),
    ('{"priority_aging_s": "60"}', 'priority_aging_s'), ('{"priority_aging_limit": 101}', 'priority_aging_limit'),
    ('{"priority_aging_limit": -101}', 'priority_aging_limit'),
    ('{"priority_aging_limit": "high"}', 'priority_aging_limit')) c (given, field);
select is(pg_temp.refusal($$ select ojs.configure_queue('_default', '{"priority_aging_s": 60}') $$),
    'OJ100 INVALID_PAYLOAD priority_aging_s', 'Q-71: each queue says it for itself');

-- HOW JOBS RISE ----------------------------------------------------------------------------------------------------

select ojs.create_queue('a', '{"priority_aging_s": 36000, "priority_aging_limit": 5}') is null as made \gset
select pg_temp.clock('0') \g /dev/null
select pg_temp.push('a', 't.old', 0) as old, pg_temp.push('a', 't.low', -2) as low,
    pg_temp.push('a', 't.top', 7) as top, pg_temp.push('plain', 't.plain', 0) as plain \gset
select ojs.tick() is null as ticked, pg_temp.pass(59) \gset
select is(pg_temp.line('a'), 't.top:7 t.old:0 t.low:-2', 'Q-71: nobody rises before a step has passed');
select pg_temp.push('a', 't.new', 1) as new, pg_temp.pass(8) \gset
select is(pg_temp.line('a'), 't.top:7 t.new:1 t.old:1 t.low:-1',
        'Q-71: each waiting job rises by one, behind those there'),
    is(pg_temp.line('plain'), 't.plain:0', 'Q-71: in this queue alone'),
    is((ojs.info(:'old') ->> 'priority')::int, 0, 'Q-71: its envelope keeps its priority');
select pg_temp.pass(67) \gset
select is(pg_temp.line('a'), 't.top:7 t.new:2 t.old:2 t.low:0', 'Q-71: step by step, in the order in which they came');
select pg_temp.pass(600, 3) \gset
select is(pg_temp.line('a'), 't.top:7 t.new:5 t.old:5 t.low:5', 'Q-71: up to the limit; who is above stays there');
select id as first from ojs.claim('a', 'w') \gset
select id as second from ojs.claim('a', 'w') \gset
select is(:'first'::uuid, :'top'::uuid, 'Q-71: a claim takes the highest'),
    is(:'second'::uuid, :'new'::uuid, 'Q-71: then those that rose, in their order');

-- A job that waits does not starve, however many of a higher priority come.
select ojs.create_queue('busy', '{"priority_aging_s": 6000}') is null as made, ojs.tick() is null as ticked \gset
select pg_temp.push('busy', 't.patient', 0) as patient \gset
create function pg_temp.served_after(patient uuid) returns int language plpgsql as $$
declare
    got uuid;
begin
    for i in 1 .. 100 loop
        perform pg_temp.push('busy', 't.rush', 3), pg_temp.push('busy', 't.rush', 3);
        perform pg_temp.pass(1);
        select id into got from ojs.claim('busy', 'w');
        perform ojs.ack(got);
        if got = patient then
            return i;
        end if;
    end loop;
    return null;
end $$;
select cmp_ok(pg_temp.served_after(:'patient'), '<=', 90, 'Q-71: a patient job is served');

-- What comes back waits anew at the priority that it had reached.
select ojs.create_queue('back', '{"priority_aging_s": 6000}') is null as made, ojs.tick() is null as ticked \gset
select pg_temp.push('back', 't.x') as x, pg_temp.push('back', 't.y') as y, pg_temp.pass(12) \gset
select id as held from ojs.claim('back', 'w') \gset
select ojs.nack(:'held') is null as returned \gset
select is(pg_temp.line('back'), 't.x:1 t.y:1', 'Q-71: a job that is given back keeps what it had');
select pg_temp.pass(12) \gset
select is(pg_temp.line('back'), 't.x:2 t.y:2', 'Q-71: and rises on, before those that were never delivered');

-- Jobs that a limit keeps back, which claims put into lines of their own.
select ojs.create_queue('tight', '{"priority_aging_s": 6000}') is null as made, ojs.tick() is null as ticked \gset
select count(pg_temp.push('tight', 't.l' || n, 0, '{"timeout": 86400,
    "rate_limit": {"key": "one", "concurrency": 1}}')) as pushed from generate_series(1, 4) n \gset
select count(*) as claimed from ojs.claim('tight', 'w', max => 4, lease => '10 hours') \gset
select is((select count(*) from ojs_store.ready where queue = ojs_store.queue_id('tight')), 3::bigint,
    'Q-71: three wait for the limit');
update ojs_store.ready set position = 4611686018427387904 + (1::bigint << 45) * 5 + (1::bigint << 44) + position
    where queue = ojs_store.queue_id('tight') and position < 4611686018427387904 and position > 0;
select pg_temp.pass(12) \gset
select is(pg_temp.line('tight'), 't.l2:1 t.l3:1 t.l4:1', 'Q-71: jobs in a line rise too');
select is((select bool_and(position < 4611686018427387904) from ojs_store.ready
    where queue = ojs_store.queue_id('tight')), true, 'Q-71: and stand outside of it, until a claim looks');

-- The last of the lines has two parts as well: jobs that were delivered before, which are not due, and the others.
select ojs.create_queue('last', '{"priority_aging_s": 6000}') is null as made, ojs.tick() is null as ticked,
    pg_temp.push('last', 't.due') as due, pg_temp.pass(12) \gset
select pg_temp.push('last', 't.due') as due, pg_temp.pass(9) is null as waited, pg_temp.push('last', 't.late') as late
    \gset
update ojs_store.ready set npriority = 0, position = (4611686018427387904 - (1::bigint << 45)) + 4611686018427387904
    + case when job_id = :'late' then position else (1::bigint << 44) + position end
    where job_id in (:'due', :'late');
select pg_temp.pass(3) \gset
select is((select -npriority::int from ojs_store.ready where job_id = :'due'), 1,
    'Q-71: who is not due in the last line hides nobody behind');

-- Without it nothing is looked at.
select ojs.configure_queue(q, '{"priority_aging_s": 0}') is null as off
    from unnest('{a,busy,back,tight,last}'::text[]) q \g /dev/null
select pg_temp.push('back', 't.off') as off, pg_temp.pass(30) \gset
select is(substring(pg_temp.line('back') from 't.off:\d+'), 't.off:0', 'Q-71: switched off');
select is((select (c.config ->> 'priority_aging_s') from ojs.queues c where name = 'back'), '0', 'Q-71: 0 is off');

-- MANY, AND WHERE IT STANDS ----------------------------------------------------------------------------------------

select ojs.create_queue('many', '{"priority_aging_s": 6000, "priority_aging_limit": 1}') is null as made,
    ojs.tick() is null as ticked \gset
select count(*) as pushed from ojs.push_many((select jsonb_agg(jsonb_build_object('type', 't.m', 'args', '[]'::jsonb,
    'queue', 'many')) from generate_series(1, 450))) \gset
create function pg_temp.risen() returns bigint language sql volatile as $$
    select count(*) filter (where npriority = -1) from ojs_store.ready where queue = ojs_store.queue_id('many') $$;
select pg_temp.pass(10, 10) \gset
select pg_temp.pass(11, 11) \gset
select is(pg_temp.risen(), 200::bigint, 'Q-71: 200 in one pass');
select ojs.tick() -> 'more' as more \gset
select is(:'more'::text, 'true', 'Q-71: which says that there is more'),
    is(pg_temp.risen(), 400::bigint, 'Q-71: the next pass goes on');
select ojs.tick() -> 'more' as more \gset
select is(:'more'::text, 'false', 'Q-71: until all have'), is(pg_temp.risen(), 450::bigint, 'Q-71: risen');
select is((select count(distinct position) from ojs_store.ready where queue = ojs_store.queue_id('many')), 450::bigint,
    'Q-71: each in a place of its own');

-- Queues take turns, pass by pass.
select ojs.configure_queue('many', '{"priority_aging_limit": 9}') is null as higher, ojs.tick() is null as ticked,
    count(ojs.create_queue('few' || n, '{"priority_aging_s": 6000}')) as made from generate_series(1, 6) n \gset
select ojs.tick() is null as ticked, count(pg_temp.push('few' || n, 't.few')) as pushed from generate_series(1, 6) n
    \gset
select pg_temp.pass(10, 10) \gset
select count(ojs.tick()) as ticks from generate_series(1, 6) \gset
select pg_temp.pass(11, 11) \gset
select ojs.tick() is null as ticked \gset
select is((select string_agg(distinct (-r.npriority)::text, ' ') from ojs_store.ready r
    join ojs_store.job j on j.id = r.job_id where j.type = 't.few'), '1',
    'Q-71: 450 jobs of a queue keep none of another from rising');
select count(ojs.drop_queue('few' || n, 'discard')) as gone from generate_series(1, 6) n \gset
select is((select count(*) from ojs_store.priority_aging a, generate_series(1, 6) n
    where a.queue = ojs_store.queue_id('few' || n)), 0::bigint, 'Q-71: what is known of a queue goes with it');
select ojs.drop_queue('many', 'discard') as gone \gset

-- A tenant's part of a queue goes with the queue.
set local ojs.tenancy = optional;
select ojs.create_queue('shared', '{"priority_aging_s": 6000}') is null as made \gset
select id as of_tenant from ojs.push('t.part', queue => 'shared', meta => '{"tenant_id": "acme"}') \gset
select ojs.tick() is null as ticked, pg_temp.pass(12) \gset
select is((select -npriority::int from ojs_store.ready where job_id = :'of_tenant'), 1,
    'Q-71: a tenant''s jobs rise too');

-- A clock that is set back begins anew.
update passed set whiles = 0;
select pg_temp.pass(5) \gset
select is((select -npriority::int from ojs_store.ready where job_id = :'of_tenant'), 1,
    'Q-71: nobody rises by a clock that was set back');
select pg_temp.pass(8) \gset
select is((select -npriority::int from ojs_store.ready where job_id = :'of_tenant'), 2, 'Q-71: but a step later');

-- A queue may be dropped while a tick is at it.
select lives_ok('select ojs_store.aging_done(0, now())', 'Q-71: a tick loses nothing by a queue that has just gone');

select * from finish();
rollback;
