-- test_kit.sql: ojs_test, the kit for tests of programs that use ojs (docs/how-to/testing.md).
-- Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();
\ir helpers.psql

select matches(pg_temp.refusal('create extension ojs_test'), '^55000 .*ojs.conformance_mode is off',
    'a database that nobody has declared one for tests cannot have the kit');
set local ojs.conformance_mode = on;
savepoint before;
select pg_temp.pushed() \g /dev/null
select matches(pg_temp.refusal('create extension ojs_test'), '^55000 .*this database has jobs',
    'nor a database that has jobs');
rollback to before;
create extension ojs_test;

set local ojs.conformance_mode = off;
select matches(pg_temp.refusal($$select ojs_test.travel('1 hour')$$), '^55000 ',
    'without the declaration no clock moves');
select matches(pg_temp.refusal($$select ojs_test.lapse(gen_random_uuid())$$), '^55000 ', 'no lease lapses');
select matches(pg_temp.refusal($$select ojs_test.work('kit', 'pg_temp.at(uuid)')$$), '^55000 ',
    'and no queue is worked off');
set local ojs.conformance_mode = on;

-- Assertions
select id as mail from ojs.push('email.send', '[{"to": "ada", "n": 1}]', queue => 'kit') \gset
select id as later from ojs.push('email.send', '[{"to": "bob"}]', queue => 'kit', delay => '1 hour') \gset
select is((select count(*)::int from ojs_test.pushed('email.send')), 2, 'pushed() has the jobs of a type');
select is((select id from ojs_test.pushed(args => '[{"to": "ada"}]')), :'mail',
    'pushed() has those whose arguments contain some');
select is((select count(*)::int from ojs_test.pushed(queue => 'other')), 0, 'pushed() has those of a queue');
select lives_ok($$select ojs_test.assert_pushed('email.send', '[{"to": "ada"}]', 'kit', times => 1)$$,
    'assert_pushed() is content with what was pushed');
select throws_like($$select ojs_test.assert_pushed('email.send', times => 3)$$,
    'pushed 2 times, and not 3: type email.send%',
    'assert_pushed() raises for another number');
select throws_like($$select ojs_test.assert_pushed('sms.send')$$, 'pushed 0 times, and not at least once%',
    'assert_pushed() raises for what was not pushed');
select lives_ok($$select ojs_test.assert_pushed('sms.send', times => 0)$$, 'times => 0 is: not pushed');

-- Working
create function pg_temp.handler(job ojs.claimed_job) returns jsonb language plpgsql as $$
begin
    if job.args @> '[{"to": "bob"}]' then
        raise exception 'no mailbox' using errcode = 'P0BOB';
    end if;
    return jsonb_build_object('sent', job.args -> 0 -> 'to');
end $$;
select results_eq($$select done, failed from ojs_test.work('kit', 'pg_temp.handler(ojs.claimed_job)')$$,
    'values (1, 0)', 'work() hands each available job to the handler');
select is((select result from ojs.jobs where id = :'mail'), '{"sent": "ada"}',
    'what the handler returns is the result');
select is(pg_temp.at(:'later'), 'scheduled/0/0', 'a job that is not due is left alone');

-- The clock
select ojs_test.now() as before \gset
select cmp_ok(ojs_test.travel('1 hour'), '>=', :'before'::timestamptz + interval '1 hour',
    'travel() moves the clock on');
select is(pg_temp.at(:'later'), 'available/0/0', 'and what falls due meanwhile happens');
select results_eq($$select done, failed from ojs_test.work('kit', 'pg_temp.handler(ojs.claimed_job)')$$,
    'values (0, 1)', 'work() fails a job whose handler raises');
select is((select error ->> 'type' from ojs.jobs where id = :'later'), 'P0BOB',
    'with the SQLSTATE as the type of the error');
select cmp_ok(ojs_test.travel_back(), '<', :'before'::timestamptz + interval '1 hour',
    'travel_back() returns to the machine''s time');

-- Leases
select pg_temp.held('kit2', 'w', '{"lease": "PT1H"}') as held \gset
select pg_temp.held('kit2', 'other') as other \gset
select is(ojs_test.lapse(:'held'), 'available', 'lapse() takes a held job from its worker');
select is(pg_temp.at(:'other'), 'active/1/1', 'and no other job');
select matches(pg_temp.refusal(format('select ojs.ack(%L, worker => ''w'')', :'held')), '^OJ',
    'whose ack comes too late');
select pg_temp.held('kit3', 'w', '{"lease": "PT1H"}') as closed \gset
select ojs.configure_queue('kit3', '{"workers": ["ojs_worker"], "administrators": ["ojs_observer"]}') \g /dev/null
set local role ojs_admin;
select throws_ok(format('select ojs_test.lapse(%L)', :'closed'), '42501', null,
    'no lease of a queue lapses whose work is not for the caller');
select is(ojs_test.lapse(:'other'), 'available', 'one of another does');
reset role;

select * from finish();
rollback;
