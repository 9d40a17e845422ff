-- discarded_caches.sql: calls end although each look at a catalog hears that everything may have changed: what is
-- read anew meanwhile is read a bounded number of times. Only a server that is built with assertions can say so.
begin;
select no_plan();
\ir helpers.psql

select max_val::int > 0 as can_discard from pg_settings where name = 'debug_discard_caches' \gset
\if :can_discard
set local statement_timeout = '5 min';
select ojs.push('test.job', queue => 'known') is null as pushed \gset
set local debug_discard_caches = 1;
create temp table jobs as select (ojs.push('test.job', queue => 'discarded')).id from generate_series(1, 2);
create temp table held as select id from ojs.claim('discarded', 'w', 2);
create temp table ended as select (ojs.ack((select min(id::text)::uuid from held))).state
    union all select (ojs.fail((select max(id::text)::uuid from held), '{"type": "t", "message": "m"}')).state;
select ojs.tick() is null as ticked \gset
set local debug_discard_caches = 0;
select is((select string_agg(state, ' ' order by state) from ended), 'completed retryable',
    'push, claim, ack, fail and tick end while all caches are always dropped');
select is((select count(*) from held h join jobs using (id)), 2::bigint, 'with the jobs that were pushed');
\else
select skip('push, claim, ack, fail and tick while all caches are always dropped: the server has no assertions');
\endif

select * from finish();
rollback;
