-- advice.sql: an error says what is wrong with this call, and its hint is for who made it: ERR-06.
-- Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();
\ir helpers.psql

-- The error of a statement: SQLSTATE, message without its beginning, hint.
create function pg_temp.words(statement text) returns text language plpgsql as $$
declare
    state text; message text; hint text;
begin
    execute statement;
    return 'accepted';
exception when others then
    get stacked diagnostics state = returned_sqlstate, message = message_text, hint = pg_exception_hint;
    return concat_ws(' ', state, regexp_replace(message, '^cannot (.*) job [-0-9a-f]{36}: ', '\1: '), hint);
end $$;

-- A call by who does not hold the job: which part of what it gave is wrong ------------------------------------------

select pg_temp.held('held', 'w1') as job \gset
select pg_temp.token(:'job') as token, pg_temp.held('other', 'w1') as other \gset
select pg_temp.token(:'other') as others_token \gset
create temp table calls (verb text, call text);
insert into calls values ('ack', 'select ojs.ack(%L, %s)'),
    ('fail', $$select ojs.fail(%L, '{"type": "t", "message": "m"}', %s)$$), ('nack', 'select ojs.nack(%L, %s)'),
    ('extend', $$select ojs.extend(%L, '1 min', %s)$$);
select is(pg_temp.words(format(call, :'job', format('lease_id => %L', 'foo'))),
    'OJ311 ' || verb || ': "foo" is no lease_id of a claim Give the lease_id that the claim returned.',
    verb || ' with a text that is no lease_id (ERR-06)') from calls;
select is(pg_temp.words(format(call, :'job', format('lease_id => %L', :'others_token'))), 'OJ311 ' || verb
    || ': the lease_id given is not that of the delivery that holds it (worker "w1") Give the lease_id that the claim '
    'returned. If it is that, its lease ran out or was given back: stop working on the job.',
    verb || ' with the lease_id of another job (ERR-06)') from calls;
select is(pg_temp.words(format(call, :'job', format('lease_id => %L, worker => %L', lease_id, 'w2'))), 'OJ311 ' || verb
    || ': worker "w2" does not hold it, "w1" does Give the name that claimed it. If that was this worker, its lease '
    'ran out or was given back: stop working on the job.',
    format('%s by another worker, %s (ERR-06)', verb, coalesce('with the right lease_id', 'without a lease_id')))
from calls, unnest(array[:'token', null]) lease_id;
select is(pg_temp.words(format('select ojs.ack_and_claim(%L, %L, array[%L]::uuid[])', 'w2', 'held', :'job')),
    'OJ311 ack: worker "w2" does not hold it, "w1" does Give the name that claimed it. If that was this worker, its '
    'lease ran out or was given back: stop working on the job.', 'ack_and_claim by another worker (ERR-06)');
select is(pg_temp.at(:'job'), 'active/1/1', 'none of it changes the job');
select ojs.nack(:'job') is null as n, ojs.ack(:'other') is null as a \gset
select id as again from ojs.claim('held', 'w1') \gset
select matches(pg_temp.words(format('select ojs.ack(%L, lease_id => %L)', :'again', :'token')),
    'the lease_id given is not that of the delivery that holds it .* ran out or was given back',
    'an earlier delivery''s');

-- Jobs in other states ----------------------------------------------------------------------------------------------

select pg_temp.pushed('ends') as cancelled, pg_temp.held('ends2') as completed, pg_temp.pushed('waits') as waits,
    pg_temp.held('runs') as runs \gset
select ojs.cancel(:'cancelled') is null as c, ojs.ack(:'completed') is null as a \gset
select is(pg_temp.words(format('select ojs.cancel(%L)', id)), code || ' cancel: it is ' || state
    || ' The job has ended. ojs.cancel(job_id, idempotent => true) accepts that.', 'cancelling a ' || state || ' job')
from (values (:'cancelled'::uuid, 'OJ303', 'cancelled'), (:'completed', 'OJ302', 'completed')) j (id, code, state);
select is(pg_temp.words(format('select ojs.cancel(%L, idempotent => true)', :'cancelled')), 'accepted', 'and it does');
select is(pg_temp.words(format('select ojs.retry(%L)', id)), 'OJ105 retry: it is ' || state
    || ' Only discarded and retryable jobs can be retried.', 'retrying one that is ' || state)
from (values (:'waits'::uuid, 'available'), (:'runs', 'active')) j (id, state);
select matches(pg_temp.words(format('select ojs.retry(%L)', id)), 'retry: it is ' || state
    || ' Only discarded and retryable jobs can be retried\.$', 'and one that is ' || state)
from (values (:'cancelled'::uuid, 'cancelled'), (:'completed', 'completed')) j (id, state);
select is(pg_temp.words(format('select ojs.activate(%L)', :'waits')),
    'OJ105 activate: it is available Only pending jobs can be activated.', 'activating one that waits');
select is(pg_temp.words(format('select ojs.ack(%L)', :'cancelled')),
    'OJ303 ack: it is cancelled A cancelled job never changes; stop working on it.', 'a worker is told to stop');

-- Values that a parameter cannot take are not offered ---------------------------------------------------------------

select is(pg_temp.words(format(call, 1000)),
    'OJ100 priority must be a whole number from -100 to 100 Higher is served first; the default is 0.',
    'a number as priority: ' || call)
from unnest(array['select ojs.push(''a.b'', priority => %s)',
    format('select ojs.set_priority(%L, %%s)', :'waits')]) call;
select matches(pg_temp.words(call), 'from -100 to 100, or HIGH, NORMAL or LOW', 'in JSON, names too: ' || call)
from unnest(array['select ojs.push(''a.b'', options => ''{"priority": 1000}'')',
    'select ojs.push_job(''{"type": "a.b", "args": [], "priority": "urgent"}'')']) call;

select * from finish();
rollback;
