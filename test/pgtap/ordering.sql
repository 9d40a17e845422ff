-- ordering.sql: what is promised of the order in which jobs run, and of their delivery, and where that is said: DLV-08,
-- DLV-09.
begin;
select no_plan();
\ir helpers.psql
\set page `cat ../../docs/explanation/delivery-guarantees.md`

-- Said ----------------------------------------------------------------------------------------------------------------

select is(d -> 'guarantees', '["at-least-once", "at-most-once"]',
    'DLV-08: the manifest says which guarantees there are'),
    is(d ->> 'default', 'at-least-once', 'DLV-08: which is the default'),
    is(d #>> '{ordering,fifo}',
        'within a queue, among jobs of equal priority, for a single worker that takes one job at a time',
        'DLV-08: and where jobs run in their order'),
    is(d #> '{ordering,none}', '["across workers", "across priorities", "across retries and redeliveries"]',
        'DLV-08 DLV-09: and where there is no promise')
from ojs.manifest() m, lateral (select m -> 'delivery') as x(d);
select matches(regexp_replace(:'page', '\s+', ' ', 'g'), 'with a single worker that takes one at a time they run in it',
    'DLV-09: the page says what is promised'),
    matches(:'page'::text, 'There is no promise across workers, priorities, retries or redeliveries',
        'DLV-09: and what is not');

-- True ----------------------------------------------------------------------------------------------------------------

-- The numbers that a worker gets who takes one at a time, and does with each what `how` says.
create function pg_temp.run(queue text, how text default 'ack') returns text language plpgsql as $$
declare
    job record;
    done text;
begin
    loop
        select * into job from ojs.claim(queue, 'w');
        exit when not found;
        done := concat_ws(' ', done, job.args ->> 0);
        if how = 'nack' and job.deliveries = 1 then
            perform ojs.nack(job.id);
        else
            perform ojs.ack(job.id);
        end if;
    end loop;
    return done;
end $$;
create function pg_temp.fill(queue text) returns void language sql as $$
    select ojs.push('test.job', jsonb_build_array(n), queue => queue,
        priority => case when queue = 'mixed' then n % 2 else 0 end) from generate_series(1, 3) n;
    select id from ojs.push_many((select jsonb_agg(jsonb_build_object('type', 'test.job', 'queue', queue, 'args',
        jsonb_build_array(n), 'priority', case when queue = 'mixed' then n % 2 else 0 end) order by n)
        from generate_series(4, 6) n)) $$;
select pg_temp.fill(queue) from unnest('{plain,mixed,retried,returned,shared}'::text[]) queue \g /dev/null
select is(pg_temp.run('plain'), '1 2 3 4 5 6',
    'DLV-08 DLV-09: a single worker runs jobs of equal priority in their order');
select is(pg_temp.run('mixed'), '1 3 5 2 4 6', 'DLV-09: priorities come before it');
select is(pg_temp.run('returned', 'nack'), '1 1 2 2 3 3 4 4 5 5 6 6',
    'DLV-09: a job that comes back is served before those that wait');
select is((ojs.fail(id, '{"type": "t", "message": "m"}', delay => '1 hour')).state, 'retryable',
    'DLV-09: one that waits for its retry') from ojs.claim('retried', 'w');
select is(pg_temp.run('retried'), '2 3 4 5 6', 'DLV-09: is passed by those behind it');
-- Two workers: the first holds its job while the second goes on.
select is((select args ->> 0 from ojs.claim('shared', 'slow')), '1', 'DLV-09: with a second worker');
select is(pg_temp.run('shared'), '2 3 4 5 6', 'DLV-09: later jobs end before an earlier one');

select * from finish();
rollback;
