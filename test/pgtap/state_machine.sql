-- state_machine.sql: every state × every operation is either a legal edge or refused with the job left as it was:
-- SM-20.
begin;
select no_plan();
\ir helpers.psql

-- What each operation makes of a job in each state: the new state, with the attempt after a colon, or the error.
-- Where a call skips instead of raising, "skipped"; where it answers without a change, "unchanged".
create temp table matrix (op text, scheduled text, available text, pending text, active text, completed text,
    retryable text, cancelled text, discarded text, missing text);
insert into matrix values
('ack',              'INVALID', 'INVALID', 'INVALID', 'completed:1', 'COMPLETED', 'INVALID', 'CANCELLED', 'INVALID',
    'NOT_FOUND'),
('ack fenced',       'INVALID', 'INVALID', 'INVALID', 'NOT_HELD',    'COMPLETED', 'INVALID', 'CANCELLED', 'INVALID',
    'NOT_FOUND'),
('ack by another',   'INVALID', 'INVALID', 'INVALID', 'NOT_HELD',    'COMPLETED', 'INVALID', 'CANCELLED', 'INVALID',
    'NOT_FOUND'),
('fail',             'INVALID', 'INVALID', 'INVALID', 'retryable:1', 'COMPLETED', 'INVALID', 'CANCELLED', 'INVALID',
    'NOT_FOUND'),
('fail for good',    'INVALID', 'INVALID', 'INVALID', 'discarded:1', 'COMPLETED', 'INVALID', 'CANCELLED', 'INVALID',
    'NOT_FOUND'),
('fail and requeue', 'INVALID', 'INVALID', 'INVALID', 'available:0', 'COMPLETED', 'INVALID', 'CANCELLED', 'INVALID',
    'NOT_FOUND'),
('fail by another',  'INVALID', 'INVALID', 'INVALID', 'NOT_HELD',    'COMPLETED', 'INVALID', 'CANCELLED', 'INVALID',
    'NOT_FOUND'),
('nack',             'INVALID', 'INVALID', 'INVALID', 'available:0', 'COMPLETED', 'INVALID', 'CANCELLED', 'INVALID',
    'NOT_FOUND'),
('nack for later',   'INVALID', 'INVALID', 'INVALID', 'available:0', 'COMPLETED', 'INVALID', 'CANCELLED', 'INVALID',
    'NOT_FOUND'),
('nack by another',  'INVALID', 'INVALID', 'INVALID', 'NOT_HELD',    'COMPLETED', 'INVALID', 'CANCELLED', 'INVALID',
    'NOT_FOUND'),
('extend',           'INVALID', 'INVALID', 'INVALID', 'active:1',    'COMPLETED', 'INVALID', 'CANCELLED', 'INVALID',
    'NOT_FOUND'),
('extend by another','INVALID', 'INVALID', 'INVALID', 'NOT_HELD',    'COMPLETED', 'INVALID', 'CANCELLED', 'INVALID',
    'NOT_FOUND'),
('cancel',           'cancelled:0', 'cancelled:0', 'cancelled:0', 'cancelled:1', 'COMPLETED', 'cancelled:1',
    'CANCELLED', 'INVALID', 'NOT_FOUND'),
('cancel anyway',    'cancelled:0', 'cancelled:0', 'cancelled:0', 'cancelled:1', 'unchanged', 'cancelled:1',
    'unchanged', 'unchanged', 'NOT_FOUND'),
('activate',         'INVALID', 'INVALID', 'available:0', 'INVALID', 'INVALID', 'INVALID', 'INVALID', 'INVALID',
    'NOT_FOUND'),
('ack_many',         'skipped', 'skipped', 'skipped', 'completed:1', 'skipped', 'skipped', 'skipped', 'skipped',
    'skipped'),
('nack_many',        'skipped', 'skipped', 'skipped', 'available:0', 'skipped', 'skipped', 'skipped', 'skipped',
    'skipped'),
('extend_many',      'skipped', 'skipped', 'skipped', 'active:1',    'skipped', 'skipped', 'skipped', 'skipped',
    'skipped'),
('ack_and_claim',    'INVALID', 'INVALID', 'INVALID', 'completed:1', 'COMPLETED', 'INVALID', 'CANCELLED', 'INVALID',
    'NOT_FOUND'),
('beat',             'skipped', 'skipped', 'skipped', 'active:1',    'skipped', 'skipped', 'skipped', 'skipped',
    'skipped'),
('claim',            'skipped', 'active:1', 'skipped', 'skipped',    'skipped', 'skipped', 'skipped', 'skipped',
    'skipped'),
('claim, when due',  'active:1', 'active:1', 'skipped', 'active:2',  'skipped', 'active:2', 'skipped', 'skipped',
    'skipped'),
('tick',             'skipped', 'skipped', 'skipped', 'skipped',     'skipped', 'skipped', 'skipped', 'skipped',
    'skipped'),
('tick, when due',   'available:0', 'skipped', 'skipped', 'available:1', 'skipped', 'available:1', 'skipped',
    'skipped', 'skipped');

create function pg_temp.command(op text) returns text language sql as $$ select case op
when 'ack' then 'select ojs.ack(%1$L)'
when 'ack fenced' then 'select ojs.ack(%1$L, lease_id => ''lease_0000000000000000'', worker => ''w'')'
when 'ack by another' then 'select ojs.ack(%1$L, worker => ''v'')'
when 'fail' then 'select ojs.fail(%1$L, ''{"type": "t", "message": "m"}'')'
when 'fail for good' then 'select ojs.fail(%1$L, ''{"type": "t", "message": "m", "retryable": false}'')'
when 'fail and requeue' then 'select ojs.fail(%1$L, ''{"type": "t", "message": "m"}'', requeue => true)'
when 'fail by another' then 'select ojs.fail(%1$L, ''{"type": "t", "message": "m"}'', worker => ''v'')'
when 'nack' then 'select ojs.nack(%1$L)'
when 'nack for later' then 'select ojs.nack(%1$L, ''1 hour'')'
when 'nack by another' then 'select ojs.nack(%1$L, worker => ''v'')'
when 'extend' then 'select ojs.extend(%1$L, ''1 hour'')'
when 'extend by another' then 'select ojs.extend(%1$L, ''1 hour'', worker => ''v'')'
when 'cancel' then 'select ojs.cancel(%1$L)'
when 'cancel anyway' then 'select ojs.cancel(%1$L, true)'
when 'activate' then 'select ojs.activate(%1$L)'
when 'ack_many' then 'select skipped from ojs.ack_many(''w'', array[%1$L]::uuid[])'
when 'nack_many' then 'select skipped from ojs.nack_many(''w'', array[%1$L]::uuid[])'
when 'extend_many' then 'select skipped from ojs.extend_many(''w'', array[%1$L]::uuid[], ''1 hour'')'
when 'ack_and_claim' then 'select ojs.ack_and_claim(''w'', ''other'', array[%1$L]::uuid[])'
when 'beat' then 'select cancelled || lost from ojs.beat(''w'', array[%1$L]::uuid[])'
when 'claim' then 'select count(*) from ojs.claim(''machine'', ''w'', 10)'
when 'claim, when due' then 'select pg_temp.clock(''2 hours''); select count(*) from ojs.claim(''machine'', ''w'', 10)'
when 'tick' then 'select ojs.tick()'
when 'tick, when due' then 'select pg_temp.clock(''2 hours''); select ojs.tick()'
end $$;

create function pg_temp.in_state(state text) returns uuid language plpgsql as $$
declare
    job uuid;
begin
    if state = 'missing' then
        return '01900000-0000-7000-8000-000000000000';
    end if;
    select id into job from ojs.push('test.job', queue => 'machine', pending => state = 'pending',
        delay => case when state = 'scheduled' then interval '1 hour' end);
    if state in ('active', 'completed', 'retryable', 'discarded') then
        perform from ojs.claim('machine', 'w', lease => '10 minutes');
    end if;
    case state
    when 'completed' then perform ojs.ack(job, '"done"');
    when 'retryable' then perform ojs.fail(job, '{"type": "t", "message": "m"}', delay => '1 hour');
    when 'discarded' then perform ojs.fail(job, '{"type": "t", "message": "m", "code": "DISCARD"}');
    when 'cancelled' then perform ojs.cancel(job);
    else null;
    end case;
    return job;
end $$;

-- Brings a job into the state, does the operation, and says what came of it; then undoes all of it.
create function pg_temp.outcome(state text, op text) returns text language plpgsql as $$
declare
    job uuid; before text; after text; jobs bigint; now_at text; refused jsonb; reply text; result text;
begin
    begin
        perform pg_temp.set_queue('other'), pg_temp.set_queue('machine');
        job := pg_temp.in_state(state);
        if state <> 'missing' and pg_temp.at(job) not like state || '/%' then
            raise exception 'the job is %', pg_temp.at(job);
        end if;
        before := (select j::text from ojs.jobs j where id = job);
        begin
            execute format(pg_temp.command(op), job) into reply;
        exception when others then
            get stacked diagnostics reply = pg_exception_detail;
            refused := reply::jsonb;
        end;
        after := (select j::text from ojs.jobs j where id = job);
        select j.state || ':' || j.attempt into now_at from ojs.jobs j where id = job;
        select count(*) into jobs from (
            select job_id from ojs_store.ready union all select job_id from ojs_store.lease
            union all select job_id from ojs_store.delayed union all select job_id from ojs_store.finished) place
        where job_id = job;
        result := case
        when jobs <> (state <> 'missing')::int then 'is in ' || jobs || ' places'
        when refused is not null then
            replace(replace(replace(replace(refused ->> 'code', 'JOB_ALREADY_', ''), 'INVALID_STATE_TRANSITION',
                'INVALID'),
                'LEASE_', ''), 'is', '')
            || case when before is distinct from after then ', changed' else '' end
            || case when refused -> 'details' ->> 'job_id' <> job::text then ', names no job' else '' end
            || case when refused ->> 'code' <> 'NOT_FOUND'
                and (refused -> 'details' ->> 'current_state' <> state
                    or coalesce(refused -> 'details' ->> 'attempted', '') = '') then ', names no state' else '' end
        when op = 'cancel anyway' and before = after then 'unchanged'
        when before is not distinct from after and (reply = array[job]::text or op like 'claim%' or op like 'tick%')
        then 'skipped'
        else now_at end;
        raise exception using errcode = 'UNDO1', message = result;
    exception when sqlstate 'UNDO1' then
        result := sqlerrm;
    end;
    perform pg_temp.clock('0');
    return result;
end $$;

select is(pg_temp.outcome(state, op), expected, format('SM-20 SM-21 SM-22 SM-23: %s, %s: %s', state, op, expected))
from matrix, lateral (values ('scheduled', scheduled), ('available', available), ('pending', pending),
    ('active', active),
    ('completed', completed), ('retryable', retryable), ('cancelled', cancelled), ('discarded', discarded),
    ('missing', missing)) expectation (state, expected);
select is(count(*), 24::bigint, 'SM-20: 24 operations are tried') from matrix;

-- SQLSTATEs of the refusals.
create temp table done as select pg_temp.in_state(state) as id,
    state from unnest('{completed,cancelled,discarded}'::text[]) state;
select is(pg_temp.refusal(format('select ojs.ack(%L)', id)), expected, 'SM-22: an ack of a job that is ' || state)
from done join (values ('completed', 'OJ302 JOB_ALREADY_COMPLETED'), ('cancelled', 'OJ303 JOB_ALREADY_CANCELLED'),
    ('discarded', 'OJ105 INVALID_STATE_TRANSITION')) expectation (state, expected) using (state);

-- SM-24: what is claimed straight from a due place has passed through available, which its time of entry shows.
select id as due from ojs.push('test.job', queue => 'inline', delay => '1 hour') \gset
select pg_temp.clock('2 hours');
select ok(c.enqueued_at = c.scheduled_at and c.started_at >= c.enqueued_at,
    'SM-24: a scheduled job was available before it was active')
from ojs.claim('inline', 'w') c;
select pg_temp.clock('0');

-- SM-25 and SM-27.
select throws_ok($$ update ojs.jobs set state = 'available' $$, '55000', null, 'SM-25: the state cannot be updated');
select throws_ok($$ delete from ojs.jobs $$, '55000', null, 'SM-25: nor can a job be deleted');
select throws_ok($$ insert into ojs.jobs (state) values ('available') $$, '55000', null, 'SM-25: nor made up');
select throws_ok($$ update ojs.leases set worker = 'x' $$, '55000', null, 'SM-25: nor can a lease be changed');
select is((select count(*) from ojs.jobs where state not in ('scheduled', 'available', 'pending', 'active', 'completed',
    'retryable', 'cancelled', 'discarded') or state is null), 0::bigint, 'SM-27: there are eight states');

-- SM-28.
create temp table ended as select ojs.info(id) as info, id from done;
select pg_temp.clock('2 hours');
select ojs.tick() is null as ticked \gset
select is((select count(*) from ojs.claim('machine', 'w', 100) c join done using (id)), 0::bigint,
    'SM-28: a finished job is not claimed');
select is(ojs.info(id), info, 'SM-28: upkeep leaves a finished job as it was') from ended;

select * from finish();
rollback;
