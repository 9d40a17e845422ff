-- discarded_caches.sql: calls end although each look at a catalog hears that everything may have changed: what is
-- read anew meanwhile is read a bounded number of times. Only a server that is built with assertions can say so.
begin;
select no_plan();
\ir helpers.psql

select max_val::int > 0 as can_discard from pg_settings where name = 'debug_discard_caches' \gset
\if :can_discard
set local statement_timeout = '15 min'; -- each call looks up some hundred catalog rows, each of them anew
select ojs.push('test.job', queue => 'known') is null as pushed \gset
set local debug_discard_caches = 1;
create temp table pushed as select (ojs.push('test.job', queue => 'discarded')).id;
create temp table held as select id from ojs.claim('discarded', 'w');
set local debug_discard_caches = 0;
select is((select count(*) from held join pushed using (id)), 1::bigint,
    'push and claim end while all caches are always dropped');
\else
select skip('push and claim while all caches are always dropped: the server has no assertions');
\endif

select * from finish();
rollback;
