\echo Use "create extension ojs_test" to load this file. \quit
-- ojs_test: what tests of programs that use ojs need. docs/how-to/testing.md explains it.

set local search_path = pg_catalog, pg_temp;

create schema ojs_test;
comment on schema ojs_test is 'Test kit for programs that use ojs: never for production';

-- Raises unless a superuser has declared this a database of tests. Every function that changes anything begins with it.
create function ojs_test.check_mode() returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs.version(); -- loads the library, and with it its settings: before that anybody may set any name
    if not current_setting('ojs.conformance_mode')::boolean then
        raise exception 'ojs_test works only in a database of tests: ojs.conformance_mode is off'
            using errcode = 'object_not_in_prerequisite_state',
            hint = 'A superuser declares one, never in production: alter database ... set ojs.conformance_mode = on.';
    end if;
end $$;
comment on function ojs_test.check_mode() is 'Raises unless ojs.conformance_mode is on';

do $$ begin
    perform ojs_test.check_mode();
    if exists (select from ojs.jobs) then
        raise exception 'ojs_test is created before the first job: this database has jobs'
            using errcode = 'object_not_in_prerequisite_state', hint = 'Use an empty database for tests.';
    end if;
end $$;

-- Sets the clock of ojs in this session, from the machine's. It goes back with the transaction, if that is rolled back.
create function ojs_test.set_offset(ahead interval) returns timestamptz
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_test.check_mode();
    perform set_config('ojs.clock_offset', (extract(epoch from ahead) * 1000)::text, false);
    return ojs_store.now();
end $$;
comment on function ojs_test.set_offset(interval)
    is 'Sets how far the clock of ojs is ahead of the machine''s, in this session';

create function ojs_test.now() returns timestamptz
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$ select ojs_store.now() $$;
comment on function ojs_test.now() is 'What the clock of ojs shows in this session';

create function ojs_test.travel(by interval) returns timestamptz
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_test.set_offset(ojs_store.now() + by - clock_timestamp());
    perform ojs.tick();
    return ojs_store.now();
end $$;
comment on function ojs_test.travel(interval)
    is 'Moves the clock of ojs on in this session and does the upkeep that falls due; returns the new time';

create function ojs_test.travel_back() returns timestamptz
language sql volatile set search_path = pg_catalog, pg_temp as $$ select ojs_test.set_offset('0') $$;
comment on function ojs_test.travel_back() is 'Sets the clock of ojs in this session to the machine''s again';

-- With the rights of its caller: the lease may be of a queue that is not for everybody.
create function ojs_test.lapse(job_id uuid) returns text
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    ahead interval := ojs_test.now() - clock_timestamp();
begin
    perform ojs_test.check_mode();
    perform ojs.extend(job_id, '100 ms');
    -- Only what is due within these milliseconds happens as well.
    perform ojs_test.set_offset(ahead + interval '110 ms');
    perform ojs.tick();
    perform ojs_test.set_offset(ahead);
    return (select state from ojs.jobs where id = job_id);
end $$;
comment on function ojs_test.lapse(uuid)
    is 'Makes the lease of a held job lapse, as if its worker had died; returns the state of the job then';

create function ojs_test.pushed(
    type text default null, args jsonb default null, queue text default null
) returns setof ojs.jobs
language sql stable set search_path = pg_catalog, pg_temp as $$
    select job from ojs.jobs job
    where (pushed.type is null or job.type = pushed.type) and (pushed.queue is null or job.queue = pushed.queue)
        and (pushed.args is null or job.args @> pushed.args)
    order by job.seq
$$;
comment on function ojs_test.pushed(text, jsonb, text)
    is 'The jobs of a type whose arguments contain args, in a queue, in the order of their push; null is any';

create function ojs_test.assert_pushed(
    type text, args jsonb default null, queue text default null, times int default null
) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    found int := (select count(*) from ojs_test.pushed(type, args, queue));
begin
    if found <> times or times is null and found = 0 then
        raise exception 'pushed % times, and not %: type %, args %, queue %', found,
            coalesce(times::text, 'at least once'), type, coalesce(args::text, 'any'), coalesce(queue, 'any')
            using detail = 'There are: ' || coalesce((
                select string_agg(format('%s %s in %s', job.type, left(job.args::text, 200), job.queue), '; ')
                from (select * from ojs_test.pushed() limit 10) job), 'no jobs');
    end if;
end $$;
comment on function ojs_test.assert_pushed(text, jsonb, text, int)
    is 'Raises unless such jobs were pushed: at least one, or so many times';

-- Without a search_path of its own: the handler is to find what it finds where it is called.
create function ojs_test.work(queue text, handler regprocedure, max int default 1000, out done int, out failed int)
language plpgsql volatile as $$
#variable_conflict use_variable
declare
    job ojs.claimed_job;
    result jsonb;
    code text;
    message text;
begin
    perform ojs_test.check_mode();
    done := 0;
    failed := 0;
    while done + failed < max loop
        select * into job from ojs.claim(queue, 'ojs_test', missing_ok => true);
        exit when job.id is null;
        begin
            execute format('select %s($1)', handler::oid::regproc) into result using job;
            perform ojs.ack(job.id, result, job.lease_id);
            done := done + 1;
        exception when others then
            get stacked diagnostics code = returned_sqlstate, message = message_text;
            perform ojs.fail(job.id, jsonb_build_object('type', code, 'message', message), job.lease_id);
            failed := failed + 1;
        end;
    end loop;
end $$;
comment on function ojs_test.work(text, regprocedure, int)
    is 'Works off a queue: handler(ojs.claimed_job) returns a result as jsonb; if it raises, the attempt has failed';

revoke all on all functions in schema ojs_test from public;
grant usage on schema ojs_test to ojs_admin;
grant execute on all functions in schema ojs_test to ojs_admin;
