-- plans.sql: the views of jobs, dead letters and workflows: their newest rows by an index, and nothing of a row that
-- they hide: SEC-01, OP-25.
-- Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();
\ir helpers.psql

create role insider in role ojs_producer, ojs_worker, ojs_observer, ojs_admin;
create role outsider in role ojs_producer, ojs_worker, ojs_observer, ojs_admin;

create function pg_temp.plan(query text) returns text language plpgsql as $$
declare
    line text; plan text := '';
begin
    for line in execute 'explain (costs off) ' || query loop
        plan := plan || line || e'\n';
    end loop;
    return plan;
end $$;

-- All that there is, is in one queue.
select ojs.push('t.a', queue => 'vault', delay => '1 hour', expires_at => ojs_store.now() + interval '1 day')
    from generate_series(1, 20) \g /dev/null
select ojs.push('t.a', queue => 'vault', deduplication_key => 'k',
    retry => '{"max_attempts": 1, "on_exhaustion": "dead_letter"}') \g /dev/null
select ojs.push('t.a', queue => 'vault') from generate_series(1, 2) \g /dev/null
select ojs.configure_queue('vault', '{"lease_log": true}') \g /dev/null
select ojs.fail(id, '{"type": "t", "message": "m"}') from ojs.claim('vault', 'w') \g /dev/null
select ojs.claim('vault', 'w') \g /dev/null
select ojs.create_workflow('{"type": "group", "name": "w", "jobs": [{"type": "t.a", "args": [], "queue": "vault"}]}')
    \g /dev/null
select ojs.schedule('clock', '0 0 1 1 *', '{"type": "t.a", "args": [], "queue": "vault"}') \g /dev/null
select id as some from ojs.jobs limit 1 \gset

-- WITHOUT LISTS -----------------------------------------------------------------------------------------------------

create temp table newest (query text, index text);
insert into newest values ('select * from ojs.jobs order by id desc limit 1', 'job_id'),
    ('select * from ojs.dead_letters order by id desc limit 1', 'dead_letter_job'),
    ('select * from ojs.workflows where parent_id is null order by id desc limit 1', 'workflow_pkey');
select set_config('enable_' || what, 'off', true) from unnest('{sort,seqscan,bitmapscan}'::text[]) what \g /dev/null
select matches(pg_temp.plan(query), 'Index.* Scan Backward using ' || index, 'OP-25: the newest by an index: ' || query)
    from newest;
select doesnt_match(pg_temp.plan(query), 'if_allowed|may_use', 'SEC-01: as if there were no rights: ' || query)
    from newest;
select matches(pg_temp.plan($$select * from ojs.jobs where id < '01a20440-0375-7217-a9e0-5b1fd08c5d26'$$),
    'Index Cond: .*id < ', 'OP-25: a page of jobs by the index, too');
prepare seen as select (select count(*) from ojs.jobs where type = 't.a') + (select count(*) from ojs.dead_letters)
    + (select count(*) from ojs.workflows);
set local plan_cache_mode = force_generic_plan;
set local role outsider;
prepare seen_outside as select count(*) from ojs.jobs where type = 't.a';
execute seen_outside \gset
select cmp_ok(:count, '>', 20, 'SEC-01: without lists all observers see all jobs');
reset role;

-- WITH LISTS --------------------------------------------------------------------------------------------------------

savepoint lists;
select ojs.configure_queue('vault', '{"producers": ["insider"], "workers": ["insider"], "readers": ["insider"],
    "cancellers": ["insider"], "administrators": ["insider"]}') \g /dev/null
select matches(pg_temp.plan(query), 'Index Scan Backward using ' || index,
    'OP-25: with lists also by an index: ' || query) from newest;
select matches(pg_temp.plan(format('select * from ojs.jobs where id = %L', :'some')), 'Index Cond: \(id = ',
    'OP-25: and one job by its id');
set local role outsider;
execute seen_outside \gset
select is(:count, 0, 'SEC-01: a plan that was made before there were lists is made anew');
set local role insider;
execute seen_outside \gset
select cmp_ok(:count, '>', 20, 'SEC-01: who is on the list sees the jobs');
reset role;

select set_config('enable_' || what, 'on', true) from unnest('{sort,seqscan,bitmapscan}'::text[]) what \g /dev/null

-- A condition of the caller meets no value of a row that a view hides, in whichever order conditions are evaluated.
create function pg_temp.peek(value anyelement) returns boolean language plpgsql cost 0.0001 as $$
begin
    if value is not null then
        raise exception 'a value is seen';
    end if;
    return true;
end $$;
create function pg_temp.peeked(role name, view text, attribute name) returns text language plpgsql as $$
declare
    n bigint;
begin
    execute format('set local role %I', role);
    begin
        execute format('select count(*) from ojs.%I where pg_temp.peek(%I)', view, attribute) into n;
        reset role;
        return 'nothing';
    exception when raise_exception then
        reset role;
        return 'a value';
    end;
end $$;
create temp table columns as
    select c.relname::text as view, a.attname as attribute from pg_class c join pg_attribute a on a.attrelid = c.oid
    where c.relnamespace = 'ojs'::regnamespace and c.relkind = 'v' and a.attnum > 0 and c.relname <> 'audit'
        -- administrators' acts are of no queue
        and (c.relname <> 'events' or a.attname in ('job_id', 'queue', 'job_type'));
select is(pg_temp.peeked('outsider', view, attribute), 'nothing',
    format('SEC-01: no condition sees ojs.%s.%s of another''s queue', view, attribute)) from columns;
select is((select string_agg(distinct view, ' ' order by view) from columns
    where pg_temp.peeked('insider', view, attribute) = 'a value'),
    'crons dead_letters deduplication_keys events jobs lease_log leases queues workers workflows',
    'SEC-01: where one''s own queue shows values');
rollback to lists;

select doesnt_match(pg_temp.plan(query), 'if_allowed|may_use', 'SEC-01: lists that were rolled back cost nothing: '
    || query) from newest;
select ojs.configure_queue('_default', '{"readers": ["insider"]}') \g /dev/null
select matches(pg_temp.plan(query), 'if_allowed', 'SEC-01: lists of the default policy are lists: ' || query)
    from newest;

select * from finish();
rollback;
