-- fair_tenants.sql: FS-03: claims of all tenants' parts of a queue, in turns. What it costs: test/tap/fair_tenants.pl.
begin;
select no_plan();
\ir helpers.psql

set local ojs.tenancy = optional;
create role shared_worker in role ojs_worker;
create role acme_worker in role ojs_worker;
select ojs.bind_tenant('acme_worker', 'acme') \g /dev/null

create function pg_temp.fill(queue text, tenants text, n int, priority int default 0) returns void language sql as $$
    select ojs.push('t', queue => queue, priority => priority,
        meta => case when t = '-' then '{}' else jsonb_build_object('tenant_id', t) end)
    from string_to_table(tenants, ' ') t, generate_series(1, n)
$$;
-- How many jobs of each tenant n claims of so many give.
create function pg_temp.given(queue text, n int, max int) returns text language plpgsql as $$
declare
    given text[] := '{}';
begin
    for i in 1 .. n loop
        given := given || array(select coalesce(meta ->> 'tenant_id', '-') from ojs.claim(queue, 'w', max));
    end loop;
    return string_agg(t || ' ' || jobs, ', ' order by t)
        from (select t collate "C" as t, count(*) as jobs from unnest(given) t group by 1) by_tenant;
end $$;

select pg_temp.fill('even', 'a b c', 200), pg_temp.fill('even', 'flood', 2000), pg_temp.fill('even', '-', 200)
    \g /dev/null
select is(pg_temp.given('even@*', 1, 50), '- 10, a 10, b 10, c 10, flood 10',
    'FS-03: a claim gives each tenant the same, and those without one'),
    is(pg_temp.given('even@*', 10, 1), '- 2, a 2, b 2, c 2, flood 2', 'FS-03: so do claims of one job'),
    is(pg_temp.given('even@*', 10, 7), '- 14, a 14, b 14, c 14, flood 14', 'FS-03: and of odd numbers');
select is((select string_agg(distinct meta ->> 'tenant_id', ' ' order by meta ->> 'tenant_id') from (
    select meta from ojs.claim('even@*', 'w', 5)) c), 'a b c flood', 'FS-03: the jobs come in turns');
select is((select count(*) from ojs.claim(array['even@*'], 'w', 5)), 5::bigint, 'FS-03: by an array of one, too');
select is(pg_temp.given('even@a', 1, 5), 'a 5', 'FS-03: a part is named as before'),
    is(pg_temp.given('even', 1, 5), '- 5', 'FS-03: and the whole queue stands for those without a tenant');
select is(pg_temp.given('even@*', 1, 1000), '- 167, a 167, b 172, c 172, flood 322',
    'FS-03: what one tenant has too few jobs for goes to the others');

select pg_temp.fill('weighted', 'heavy light', 100), ojs.set_tenant('heavy', '{"fairness_weight": 3}'),
    ojs.set_tenant('light', '{"max_concurrency": 45}') \g /dev/null
select is(pg_temp.given('weighted@*', 1, 40), 'heavy 30, light 10', 'FS-03: by weight'),
    is(pg_temp.given('weighted@*', 8, 1), 'heavy 6, light 2', 'FS-03: over claims of one job, too');
select ojs.set_tenant('light', '{"fairness_weight": 9}') \g /dev/null
select is(pg_temp.given('weighted@*', 1, 40), 'heavy 10, light 30', 'FS-03: a change counts at once');
select is(pg_temp.given('weighted@*', 1, 20), 'heavy 17, light 3',
    'FS-03: what a tenant may not hold goes to the others');

select pg_temp.fill('urgent', 'a b', 10), pg_temp.fill('urgent', 'b c', 10, 5) \g /dev/null
select is((select string_agg(n || ' ' || priority || t, ', ' order by priority desc, t) from (
        select priority, meta ->> 'tenant_id' as t, count(*) as n from ojs.claim('urgent@*', 'w', 24) group by 1, 2) c),
    '10 5b, 10 5c, 2 0a, 2 0b', 'FS-03: priorities go first, and turns are within one');

select pg_temp.fill('paused', 'a b', 5), ojs.pause_queue('paused@a') \g /dev/null
select is(pg_temp.given('paused@*', 1, 10), 'b 5', 'FS-03: a part that is paused is left out');
select ojs.resume_queue('paused@a'), ojs.pause_queue('paused') \g /dev/null
select is(pg_temp.given('paused@*', 1, 10), null, 'FS-03: and so are all of a queue that is');
select ojs.resume_queue('paused') \g /dev/null
select ojs.set_maintenance(true) \g /dev/null
select is(pg_temp.given('paused@*', 1, 10), null, 'FS-03: nothing is handed out in maintenance');
select ojs.set_maintenance(false) \g /dev/null
select ojs.configure_queue('paused@a', '{"workers": ["acme_worker"]}') \g /dev/null
set local role shared_worker;
select is((select count(*) from ojs.claim('paused@*', 'w', 10)), 0::bigint, 'SEC-01: a part of others is left out');
reset role;
select is(pg_temp.given('paused@*', 1, 10), 'a 5', 'FS-03: for them alone');

-- What falls due is found, whoever it belongs to; so is a tenant that is new.
select ojs.push('t', queue => 'later', delay => '10 s', meta => jsonb_build_object('tenant_id', t))
    from string_to_table('a b', ' ') t \g /dev/null
select is(pg_temp.given('later@*', 1, 10), null, 'FS-03: not yet due');
set local ojs.clock_offset = '11s';
select is(pg_temp.given('later@*', 1, 10), 'a 1, b 1', 'FS-03: due');
reset ojs.clock_offset;
select pg_temp.fill('later', 'new', 1) \g /dev/null
select is(pg_temp.given('later@*', 1, 10), 'new 1', 'FS-03: of a tenant that is new');

select is(pg_temp.refusal(call), told, 'FS-03: ' || call) from (values
    ($$select ojs.claim('none@*', 'w')$$, 'OJ300 NOT_FOUND'),
    ($$select ojs.claim('@*', 'w')$$, 'OJ102 INVALID_QUEUE queue'),
    ($$select ojs.claim('a b@*', 'w')$$, 'OJ102 INVALID_QUEUE queue'),
    ($$select ojs.claim(array['even@*', 'urgent'], 'w')$$, 'OJ102 INVALID_QUEUE queue'),
    ($$select ojs.claim('even@*', '')$$, 'OJ100 INVALID_PAYLOAD worker'),
    ($$select ojs.push('t', queue => 'even@*')$$, 'OJ102 INVALID_QUEUE queue')) c (call, told);
select is((select count(*) from ojs.claim('none@*', 'w', missing_ok => true)), 0::bigint, 'FS-03: or nothing');
select pg_temp.fill('even', 'a b', 3) \g /dev/null
select is(pg_temp.as_role('acme_worker', $$select count(*) from ojs.claim('even@*', 'w', 10)$$), '42501',
    'MT-03: not for one who acts for a tenant');
set local ojs.tenant = 'a';
select is(pg_temp.refusal($$select ojs.claim('even@*', 'w')$$), '42501 who acts for a tenant claims no jobs of others',
    'MT-03: whoever that is');
reset ojs.tenant;
set local ojs.tenancy = off;
select is(pg_temp.refusal($$select ojs.claim('even@*', 'w')$$), 'OJ102 INVALID_QUEUE queue',
    'FS-03: where there are tenants');
set local ojs.tenancy = optional;
select is((select status || ' ' || jsonb_array_length(body::jsonb -> 'jobs') from ojs.http('POST',
    '/ojs/v1/workers/fetch', '{"Content-Type": "application/json"}',
    '{"queues": ["even@*"], "worker_id": "w", "count": 4}')), '200 4', 'FS-03: over HTTP');

-- Names that are no queues do not grow a session.
do $$ begin perform ojs.claim('q' || i || '@*', 'w', missing_ok => true) from generate_series(1, 2000) i; end $$;
select cmp_ok((select sum(total_bytes) from pg_backend_memory_contexts where name = 'ojs fair claims'), '<',
    400000::numeric, 'FS-03: what a session remembers is bounded');

select * from finish();
rollback;
