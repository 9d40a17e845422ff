-- transactions.sql: calls inside a caller's transaction, savepoints and single statements: OP-13, OP-24, PGX-09,
-- PGX-16. Several sessions: test/specs and test/tap.
begin;
select no_plan();
\ir helpers.psql

-- Everything that can be read of a queue, and where its jobs are.
create function pg_temp.all_of(the_queue text) returns text language sql as $$
    select coalesce(string_agg(format('%s %s %s/%s %s', args, state, attempt, deliveries,
        (select string_agg(place, ',') from (
            select 'ready' from ojs_store.ready where job_id = j.id union all select 'lease' from ojs_store.lease
                where job_id = j.id
            union all select 'later' from ojs_store.delayed where job_id = j.id union all select 'done'
                from ojs_store.finished where job_id = j.id
            union all select 'history' from ojs_store.job_history where job_id = j.id) x (place))),
                '; ' order by seq), '')
    from ojs.jobs j where queue = the_queue $$;

-- Does something and undoes it; what can be read must be as it was, and what can be claimed, too.
create function pg_temp.undone(action text, queue text default 'undo') returns text language plpgsql as $$
declare
    before text; during text; after text; claimable uuid[]; still uuid[];
begin
    before := pg_temp.all_of(queue);
    begin
        select array_agg(id) into claimable from ojs.claim(queue, 'v', 100, missing_ok => true);
        raise exception using errcode = 'UNDO1';
    exception when sqlstate 'UNDO1' then null;
    end;
    begin
        execute action;
        during := pg_temp.all_of(queue);
        raise exception using errcode = 'UNDO1';
    exception when sqlstate 'UNDO1' then null;
    end;
    after := pg_temp.all_of(queue);
    begin
        select array_agg(id) into still from ojs.claim(queue, 'v', 100, missing_ok => true);
        raise exception using errcode = 'UNDO1';
    exception when sqlstate 'UNDO1' then null;
    end;
    return concat_ws(', ', case when before is not distinct from during then 'nothing was done' end,
        case when before is distinct from after then format('%s became %s', before, after) end,
        case when claimable is distinct from still then format('claimable %s became %s', claimable, still) end);
end $$;

select pg_temp.pushed('undo', jsonb_build_object('n', n)) as pushed from generate_series(1, 3) n \g /dev/null
select id as held from ojs.claim('undo', 'w') \gset
select is(pg_temp.undone(action), '', 'OP-13 OP-24: undone: ' || action) from unnest(array[
    $$select ojs.push('test.job', queue => 'undo')$$,
    $$select ojs.push('test.job', queue => 'undo', delay => '1 hour')$$,
    $$select ojs.push_many('[{"type": "t", "args": [], "queue": "undo"}, {"type": "t", "args": [], "queue": "undo", '
        '"priority": 9}]')$$,
    $$select ojs.claim('undo', 'w')$$,
    $$select ojs.claim('undo', 'w', 10)$$,
    $$select ojs.claim('undo', 'w'); select ojs.claim('undo', 'w')$$,
    format('select ojs.ack(%L)', :'held'),
    format('select ojs.fail(%L, %L)', :'held', '{"type": "t", "message": "m"}'),
    format('select ojs.fail(%L, %L)', :'held', '{"type": "t", "message": "m", "retryable": false}'),
    format('select ojs.nack(%L)', :'held'),
    format('select ojs.nack(%L, %L)', :'held', '1 hour'),
    format('select ojs.nack(%L); select ojs.claim(%L, %L, 3)', :'held', 'undo', 'v'),
    format('select ojs.cancel(%L)', :'held'),
    format('select ojs.ack_many(%L, array[%L]::uuid[])', 'w', :'held'),
    format('select ojs.ack_and_claim(%L, %L, array[%L]::uuid[], max => 5)', 'w', 'undo', :'held'),
    $$select pg_temp.clock('1 minute'); select ojs.tick()$$,
    $$select pg_temp.clock('1 minute'); select ojs.claim('undo', 'v', 3)$$]) action;
select pg_temp.clock('0') \g /dev/null
select is(lease_expires_at - claimed_at, interval '30 seconds', 'OP-24: and an extension too') from ojs.leases
where job_id = :'held' and pg_temp.undone(format('select ojs.extend(%L, %L)', :'held', '1 hour')) = 'nothing was done';
select is(pg_temp.undone($$select ojs.push('test.job', queue => 'brand-new')$$, 'brand-new'), '',
    'PGX-09: a push to a new queue');
select is((select count(*) from ojs.queues where name = 'brand-new'), 0::bigint, 'PGX-09: takes the queue with it');
select pg_temp.pushed('brand-new') is null as pushed \gset
select is((select count(*) from ojs.queues where name = 'brand-new'), 1::bigint, 'PGX-09: the next push makes it');

-- A queue that was made before a savepoint and pushed to after it was rolled back.
savepoint outermost;
select pg_temp.pushed('made-before') is null as pushed \gset
savepoint inner_one;
select pg_temp.pushed('made-inside') is null as pushed \gset
rollback to inner_one;
select pg_temp.pushed('made-before') is null as pushed \gset
rollback to outermost;
select pg_temp.pushed('made-before') is null as pushed \gset
select is((select count(*) from ojs.queues where name = 'made-before'), 1::bigint,
    'PGX-09: no session remembers a queue that was never committed');

-- Savepoints: claims in both halves.
select pg_temp.pushed('halves', jsonb_build_object('n', n)) as pushed from generate_series(1, 4) n \g /dev/null
create temp table halves as select array_agg(id order by seq) as ids from ojs.jobs where queue = 'halves';
select is((select id from ojs.claim('halves', 'w')), ids[1], 'OP-13: before the savepoint') from halves;
savepoint half;
select is((select id from ojs.claim('halves', 'w')), ids[2], 'OP-13: inside') from halves;
savepoint deeper;
select is((select id from ojs.claim('halves', 'w')), ids[3], 'OP-13: deeper') from halves;
rollback to deeper;
select is((select id from ojs.claim('halves', 'w')), ids[3], 'OP-13: again after a rollback to the inner') from halves;
rollback to half;
select is((select array_agg(id) from ojs.claim('halves', 'w', 9)), ids[2:4],
    'OP-13: all of them after one to the outer') from halves;
select is(pg_temp.at(ids[1]), 'active/1/1', 'OP-13: what was claimed before stays claimed') from halves;
select is((select array_agg(pg_temp.at(id)) from unnest(ids[2:4]) id), '{active/1/1,active/1/1,active/1/1}',
    'OP-13: undone claims count for nothing') from halves;

-- One statement -------------------------------------------------------------------------------------------------------

select is(c.id, p.id, 'OP-24: pushed and claimed in one statement') from ojs.push('test.job', queue => 'cte') p,
    lateral (select * from ojs.claim('cte', 'w') where p.id is not null) c;
select is(a.state, 'completed', 'OP-24: pushed, claimed and finished in one statement')
from ojs.push('test.job', queue => 'cte2') p, lateral (select * from ojs.claim('cte2', 'w') where p.id is not null) c,
    lateral ojs.ack(c.id) a;
with pushed as materialized (select id from generate_series(1, 3) n,
    lateral ojs.push('test.job', to_jsonb(array[n]), queue => 'cte3')),
    claimed as materialized (select c.id from (select count(*) as n from pushed) x,
        lateral ojs.claim('cte3', 'w', x.n::int) c),
    ended as materialized (select (ojs.fail(id, '{"type": "t", "message": "m"}')).state from claimed)
select is((select string_agg(state, ' ') from ended), 'retryable retryable retryable',
    'OP-24: CTEs: push, claim, fail');
select is((ojs.nack(c.id)).state || (select count(*) from ojs.claim('cte4', 'w') where c.id is not null), 'available1',
    'OP-24: given back and claimed again in one statement')
from ojs.push('test.job', queue => 'cte4') p, lateral (select * from ojs.claim('cte4', 'v') where p.id is not null) c;
select is(x.state, 'cancelled', 'OP-24: pushed and cancelled in one statement')
    from ojs.push('test.job', queue => 'cte5') p, lateral ojs.cancel(p.id) x;

-- In functions with handlers of their own, as callers write them.
create function pg_temp.worker_loop(queue text) returns text language plpgsql as $$
declare
    job ojs.claimed_job; log text := '';
begin
    loop
        select * into job from ojs.claim(queue, 'loop');
        exit when job.id is null;
        begin
            perform 1 / (job.args ->> 0)::int;
            perform ojs.ack(job.id, to_jsonb('ok'::text), job.lease_id);
            log := log || '+';
        exception when division_by_zero then
            perform ojs.fail(job.id, jsonb_build_object('type', sqlstate, 'message', sqlerrm, 'retryable', false),
                job.lease_id);
            log := log || '-';
        end;
    end loop;
    return log;
end $$;
select p.id as pushed from unnest('{1,0,2,0}'::int[]) n,
    lateral ojs.push('test.job', to_jsonb(array[n]), queue => 'looped') p \g /dev/null
select is(pg_temp.worker_loop('looped'), '+-+-', 'OP-24: a worker''s loop with exception handlers');
select is((select string_agg(state, ' ' order by seq) from ojs.jobs where queue = 'looped'),
    'completed discarded completed discarded', 'OP-24: each job as it went');

-- Read-only: nothing is written, reading goes on ----------------------------------------------------------------------

create function pg_temp.read_only(statement text) returns text language plpgsql as $$
begin
    begin
        perform set_config('transaction_read_only', 'on', true);
        execute statement;
        raise exception using errcode = 'UNDO1', message = 'accepted';
    exception when others then
        return case when sqlstate = 'UNDO1' then sqlerrm else sqlstate end;
    end;
end $$;
select is(pg_temp.read_only(statement), '25006', 'PGX-17: refused in a read-only transaction: ' || statement)
    from unnest(array[
    $$select ojs.push('test.job')$$, $$select ojs.push_job('{"type": "t", "args": []}')$$,
        $$select ojs.push_many('[{"type": "t", "args": []}]')$$,
    $$select ojs.claim('cte', 'w')$$, $$select ojs.ack('01920000-0000-7000-8000-00000000000c')$$,
        $$select ojs.nack('01920000-0000-7000-8000-00000000000c')$$,
    $$select ojs.fail('01920000-0000-7000-8000-00000000000c', '{"type": "t", "message": "m"}')$$,
        $$select ojs.cancel('01920000-0000-7000-8000-00000000000c')$$,
    $$select ojs.extend('01920000-0000-7000-8000-00000000000c', '1 min')$$,
        $$select ojs.activate('01920000-0000-7000-8000-00000000000c')$$,
    $$select ojs.beat('w')$$, $$select ojs.tick()$$, $$select ojs.ack_many('w', '{}')$$,
        $$select ojs.nack_many('w', '{}')$$,
    $$select ojs.extend_many('w', '{}', '1 min')$$, $$select ojs.ack_and_claim('w', 'cte', '{}')$$]) statement;
select is(pg_temp.read_only(statement), 'accepted', 'PGX-17 OP-21: reading: ' || statement) from unnest(array[
    format('select ojs.info(%L)', :'held'), 'select * from ojs.jobs', 'select * from ojs.leases',
        'select * from ojs.queues']) statement;

-- Parallel plans never reach a function that writes.
select is((select string_agg(proname, ' ') from pg_proc where pronamespace = 'ojs'::regnamespace and provolatile = 'v'
    and proparallel = 's'), null,
    'PGX-16: no volatile function is parallel safe');

select * from finish();
rollback;
