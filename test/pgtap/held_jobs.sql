-- held_jobs.sql: jobs whose limit is used up wait in lines, and a claim looks at the head of each: RL-01, RL-05, OP-25.
select no_plan();
\ir helpers.psql

-- A job with a key, one of which may be held.
create function pg_temp.limited(queue text, n int, variadic keys text[]) returns void language sql as $$
    select ojs.push('test.job', jsonb_build_array(n), queue => queue, options => jsonb_build_object('rate_limit',
        (select jsonb_agg(jsonb_build_object('key', k, 'concurrency', 1)) from unnest(keys) k))) $$;
-- The numbers of the jobs that claims of one job each get, one after the other, until there is none.
create function pg_temp.number_of(queue text) returns int language sql as $$
    select (args ->> 0)::int from ojs.claim(queue, 'w', lease => '1 h') $$;
create function pg_temp.done(queue text, n int) returns void language sql as $$
    select ojs.ack(l.job_id) from ojs.leases l join ojs.jobs j on j.id = l.job_id where l.queue = $1
        and j.args = jsonb_build_array(n) $$;
create function pg_temp.in_lines(queue text) returns bigint language sql as $$
    select count(*) from ojs_store.ready r where r.queue = ojs_store.queue_id($1)
        and r.position >= 4611686018427387904 $$;

-- Jobs leave the head of the queue, and come in their order -----------------------------------------------------------

select pg_temp.limited('turns', n, 'k' || n % 20) from generate_series(0, 99) n \g /dev/null
select array_agg((args ->> 0)::int order by (args ->> 0)::int) as first_jobs
    from ojs.claim('turns', 'w', 1000, '1 h') \gset
select is(:'first_jobs'::int[], array(select generate_series(0, 19)), 'one job of each key starts (RL-01)');
select is(pg_temp.in_lines('turns'), 80::bigint, 'the others wait in lines (OP-25)');
select is(pg_temp.number_of('turns'), null, 'no claim gets one of them');
select ojs.push('test.job', '[200]', queue => 'turns') \g /dev/null
select is(pg_temp.number_of('turns'), 200, 'a job behind them that has no limit starts');
select pg_temp.done('turns', 7), pg_temp.done('turns', 3), pg_temp.done('turns', 15) \g /dev/null
select is(pg_temp.number_of('turns'), 23, 'of the keys that are free the oldest job comes first (RL-05)');
select is(pg_temp.number_of('turns'), 27, 'then the next');
select is(pg_temp.number_of('turns'), 35, 'and the last');
select is(pg_temp.number_of('turns'), null, 'and no more');
select pg_temp.done('turns', 23) \g /dev/null
select is(pg_temp.number_of('turns'), 43, 'and those of one key in their order');
select is((select count(*) from ojs.jobs where queue = 'turns' and state = 'available'), 76::bigint,
    'all of them are available');
select is((ojs.queue_info('turns') #>> '{stats,available}')::int, 76, 'and counted so');

-- What is done to a job in a line -------------------------------------------------------------------------------------

select is((ojs.cancel(id)).state, 'cancelled', 'a job in a line can be cancelled') from ojs.jobs where queue = 'turns'
    and args = '[24]';
select pg_temp.done('turns', 4) \g /dev/null
select is(pg_temp.number_of('turns'), 44, 'the one behind it takes its turn');
select (ojs.set_priority(id, 5)).priority from ojs.jobs where queue = 'turns' and args = '[65]' \g /dev/null
select pg_temp.done('turns', 5) \g /dev/null
select is(pg_temp.number_of('turns'), 65, 'one with a higher priority comes before those in its line');
select ojs.set_rate_limit('k1', '{"concurrency": 3}') \g /dev/null
select is(array[pg_temp.number_of('turns'), pg_temp.number_of('turns'), pg_temp.number_of('turns')],
    array[21, 41, null],
    'a higher limit lets more of a line start');
select ojs.set_rate_limit('k1', null) \g /dev/null
select is(pg_temp.number_of('turns'), null, 'and once it is taken back, none');
select ojs.create_queue('other') \g /dev/null
select is(ojs.drop_queue('turns', 'move', 'other') > 60, true, 'a queue with lines can be moved');
select is((select bool_and(ordered) from (select n > lag(n) over (order by position) is not false as ordered from (
    select (j.args ->> 0)::int as n, r.position from ojs_store.ready r join ojs_store.job j on j.id = r.job_id
    where r.queue = ojs_store.queue_id('other')) x where n between 20 and 99) y), true, 'in the order of its jobs');

select ojs.register_worker('nine', '{"handlers": [{"type": "old.job", "versions": "9"}]}') \g /dev/null
select ojs.push('old.job', queue => 'passed', options => '{"version": "1.0"}') \g /dev/null
select pg_temp.limited('passed', n, 'p' || n % 2) from generate_series(0, 9) n \g /dev/null
select is((select count(*) from ojs.claim('passed', 'nine', 1000, '1 h')), 2::bigint,
    'one job of each key starts (RL-01)');
select is(pg_temp.in_lines('passed'), 8::bigint,
    'the others wait in lines, behind one that the worker passes over (OP-25)');

-- Several limits on a job ---------------------------------------------------------------------------------------------

select pg_temp.limited('two', 1, 'a'), pg_temp.limited('two', 2, 'b') \g /dev/null
select is((select count(*) from ojs.claim('two', 'w', 10, '1 h')), 2::bigint, 'two keys are used up');
select pg_temp.limited('two', 3, 'a', 'b'), pg_temp.limited('two', 4, 'a') \g /dev/null
select is(pg_temp.number_of('two'), null, 'a job with both waits, and one with the first');
select pg_temp.done('two', 1) \g /dev/null
select is(pg_temp.number_of('two'), 4, 'when the first is free, the other still waits for the second (RL-01)');
select pg_temp.done('two', 2) \g /dev/null
select is(pg_temp.number_of('two'), null, 'and now for the first');
select pg_temp.done('two', 4) \g /dev/null
select is(pg_temp.number_of('two'), 3, 'then it starts');

-- Delivered before ----------------------------------------------------------------------------------------------------

select pg_temp.limited('back', n, 'c') from generate_series(1, 3) n \g /dev/null
select is(pg_temp.number_of('back'), 1, 'one starts');
select is(pg_temp.number_of('back'), null, 'and no other');
select ojs.nack(job_id) from ojs.leases where queue = 'back' \g /dev/null
select pg_temp.limited('back', 4, 'c') \g /dev/null
select is(pg_temp.number_of('back'), 1, 'what was given back comes before those in the line');
select ojs.nack(job_id) from ojs.leases where queue = 'back' \g /dev/null
select ojs.set_rate_limit('c', '{"concurrency": 0}') \g /dev/null
select is(pg_temp.number_of('back'), null, 'also where it waited in the line in the meantime');
select is(pg_temp.in_lines('back'), 4::bigint, 'with all others');
select ojs.set_rate_limit('c', '{"concurrency": 4}') \g /dev/null
select is(array[pg_temp.number_of('back'), pg_temp.number_of('back'), pg_temp.number_of('back'),
    pg_temp.number_of('back')], array[1, 2, 3, 4], 'in their order');

-- The oldest are dropped ----------------------------------------------------------------------------------------------

select ojs.create_queue('drops', '{"max_size": 4, "discard": "drop_oldest"}') \g /dev/null
select pg_temp.limited('drops', n, 'd' || n % 2) from generate_series(1, 4) n \g /dev/null
select is((select count(*) from ojs.claim('drops', 'w', 10, '1 h')), 2::bigint, 'two start');
select pg_temp.limited('drops', n, 'd' || n % 2) from generate_series(5, 6) n \g /dev/null
select is(pg_temp.number_of('drops'), null, 'four wait in lines');
select is(pg_temp.in_lines('drops'), 4::bigint, 'four wait in lines');
select ojs.push('test.job', '[7]', queue => 'drops') \g /dev/null
select is((select array_agg((args ->> 0)::int order by id) from ojs.jobs where queue = 'drops'
    and state = 'available'), array[4, 5, 6, 7], 'the oldest job in a line makes room');

-- Within a longer transaction nothing is moved: it would be hidden from others until that ends.
select pg_temp.limited('long', n, 'e') from generate_series(1, 3) n \g /dev/null
begin;
select count(*) as claimed from ojs.claim('long', 'w', 10, '1 h') \gset
select is(pg_temp.in_lines('long'), 0::bigint, 'a claim in a longer transaction moves nothing');
commit;

-- A job in a line that another push takes the place of is out of the line if it has no limit any more.
create function pg_temp.put(n int, options jsonb) returns ojs.job language sql as $$
    select ojs.push('put.n' || n, jsonb_build_array(n), 'anew', "unique" => '{"on_conflict": "update"}',
        options => options) $$;
select pg_temp.put(n, '{"rate_limit": {"key": "anew", "concurrency": 1}}') from generate_series(0, 99) n \g /dev/null
select is(pg_temp.number_of('anew'), 0, 'the first job of a limit starts');
select is(pg_temp.number_of('anew'), null, 'and no other');
select cmp_ok(pg_temp.in_lines('anew'), '>', 50::bigint, 'they wait in a line (OP-25)');
select is((pg_temp.put(70, '{}')).deduplicated, true, 'a push without the limit takes the place of one of them');
select is(pg_temp.number_of('anew'), 70, 'which starts then (UNQ-29)');
select * from finish();
