-- tenant_limits.sql: MT-04: what a tenant may push and hold, over all of its queues; what is told of tenants. Two
-- sessions at a bound: test/specs/tenant_limits.spec.
begin;
select no_plan();
\ir helpers.psql

set local ojs.tenancy = optional;
create role acme_app in role ojs_producer, ojs_worker, ojs_observer;
create role brown_app in role ojs_producer, ojs_worker, ojs_observer;
create role chief in role ojs_admin;
select ojs.bind_tenant('acme_app', 'acme'), ojs.bind_tenant('brown_app', 'brown') \g /dev/null

-- How n pushes of a tenant, one after the other, came out: how many were taken, and which limit refused the last.
create function pg_temp.pushes(tenant text, queue text, n int, delay interval default null) returns text
language plpgsql as $$
declare
    taken int := 0;
    refused text;
begin
    perform set_config('ojs.tenant', tenant, true);
    for i in 1 .. n loop
        begin
            perform ojs.push('t', queue => queue, delay => delay);
            taken := taken + 1;
        exception when sqlstate 'OJ604' then
            get stacked diagnostics refused = pg_exception_detail;
        end;
    end loop;
    perform set_config('ojs.tenant', '', true);
    return concat_ws(' ', taken, refused::jsonb #>> '{details,limit}', refused::jsonb #>> '{details,current}');
end $$;
create function pg_temp.claims(tenant text, n int, variadic queues text[]) returns bigint language plpgsql as $$
declare
    claimed bigint;
begin
    perform set_config('ojs.tenant', tenant, true);
    claimed := count(*) from ojs.claim(queues, 'w-' || tenant, n, missing_ok => true);
    perform set_config('ojs.tenant', '', true);
    return claimed;
end $$;

-- SETTINGS ----------------------------------------------------------------------------------------------------------

select is(ojs.set_tenant('set', '{"limits": {"max_concurrency": 20, "max_enqueue_rate": {"limit": 5, "period": "PT1M"}},
    "fairness_weight": 10}'), '{"tenant_id": "set", "fairness_weight": 10, "limits": {"max_concurrency": 20,
    "max_enqueue_rate": {"limit": 5, "period": "PT1M"}}}', 'MT-04: a tenant is set up as the document has it'),
    is(ojs.set_tenant('set', '{"max_queue_depth": 9, "max_concurrency": null}', 'why') -> 'limits',
    '{"max_queue_depth": 9, "max_enqueue_rate": {"limit": 5, "period": "PT1M"}}',
    'MT-04: what is not named stays, null lifts');
select is((select string_agg(act || ' ' || coalesce(detail ->> 'reason', '-'), ', ' order by id)
    from (select act, detail, row_number() over (order by after ->> 'max_queue_depth' nulls first) as id
    from ojs.audit where subject = 'set') a), 'tenant_set -, tenant_set why', 'MT-04: it is audited, with its reason');
select is((select count(*) from ojs.events where type = 'tenant.created' and subject = 'set'), 1::bigint,
    'MT-04: and an event is left');
select is(pg_temp.refusal(call), told, 'MT-04: ' || call) from (values
    ($$select ojs.set_tenant('a b', '{}')$$, 'OJ100 INVALID_PAYLOAD tenant'),
    ($$select ojs.set_tenant('set', '[]')$$, 'OJ100 INVALID_PAYLOAD config'),
    ($$select ojs.set_tenant('set', null)$$, 'OJ100 INVALID_PAYLOAD config'),
    ($$select ojs.set_tenant('set', '{"limits": 1}')$$, 'OJ100 INVALID_PAYLOAD config'),
    ($$select ojs.set_tenant('set', '{"tenant_id": "other"}')$$, 'OJ100 INVALID_PAYLOAD tenant_id'),
    ($$select ojs.set_tenant('set', '{"max_deptH": 1}')$$, 'OJ100 INVALID_PAYLOAD max_deptH'),
    ($$select ojs.set_tenant('set', '{"max_concurrency": -1}')$$, 'OJ100 INVALID_PAYLOAD max_concurrency'),
    ($$select ojs.set_tenant('set', '{"max_concurrency": 1.5}')$$, 'OJ100 INVALID_PAYLOAD max_concurrency'),
    ($$select ojs.set_tenant('set', '{"fairness_weight": 0}')$$, 'OJ100 INVALID_PAYLOAD fairness_weight'),
    ($$select ojs.set_tenant('set', '{"max_queue_depth": 10000000000}')$$, 'OJ100 INVALID_PAYLOAD max_queue_depth'),
    ($$select ojs.set_tenant('set', '{"max_enqueue_rate": 5}')$$, 'OJ100 INVALID_PAYLOAD max_enqueue_rate'),
    ($$select ojs.set_tenant('set', '{"max_enqueue_rate": {}}')$$, 'OJ100 INVALID_PAYLOAD max_enqueue_rate'),
    ($$select ojs.set_tenant('set', '{"max_enqueue_rate": {"limit": 1}}')$$,
        'OJ100 INVALID_PAYLOAD rate_limit.period'),
    ($$select ojs.set_tenant('set', '{"max_enqueue_rate": {"limit": 1, "period": "x"}}')$$,
        'OJ100 INVALID_PAYLOAD rate_limit.period'),
    ($$select ojs.set_tenant('set', '{"max_enqueue_rate": {"limit": 1, "period": "PT1M", "burst": 1}}')$$,
        'OJ100 INVALID_PAYLOAD max_enqueue_rate'),
    ($$select ojs.set_tenant('set', '{"priority_boost": 5}')$$, 'OJ700 UNSUPPORTED_FEATURE priority_boost'),
    ($$select ojs.set_tenant('set', '{"max_concurrency": 1}', repeat('x', 1001))$$, 'OJ100 INVALID_PAYLOAD reason'))
    c (call, told);
select is(ojs.drop_tenant('set'), true, 'MT-04: and taken back'), is(ojs.drop_tenant('set'), false, 'MT-04: once');
set local ojs.tenancy = off;
select is(pg_temp.refusal($$select ojs.set_tenant('set', '{}')$$), 'OJ700 UNSUPPORTED_FEATURE tenant',
    'MT-04: where there are tenants');
set local ojs.tenancy = optional;

-- AT A PUSH ---------------------------------------------------------------------------------------------------------

select ojs.set_tenant('deep', '{"max_queue_depth": 3}') \g /dev/null
select is(pg_temp.pushes('deep', 'd-one', 2), '2', 'MT-04: below the depth'),
    is(pg_temp.pushes('deep', 'd-two', 2, '1 hour'), '1 max_queue_depth 3',
    'MT-04: what waits in all queues counts, scheduled jobs too'),
    is(pg_temp.pushes('other', 'd-one', 2), '2', 'MT-04: another tenant is in nobody''s way');
select is(pg_temp.claims('deep', 1, 'd-one'), 1::bigint, 'MT-04: what is claimed waits no more'),
    is(pg_temp.pushes('deep', 'd-one', 2), '1 max_queue_depth 3', 'MT-04: and makes room for one');
select is(pg_temp.refusal($$select from ojs.push_many('[{"type": "t", "args": [], "meta": {"tenant_id": "deep"}},
    {"type": "t", "args": []}]')$$), 'OJ604 TENANT_LIMIT_EXCEEDED retryable', 'MT-04: a batch comes whole or not');
select is((select string_agg(status, ' ' order by index) from ojs.push_many('[{"type": "t", "args": []},
    {"type": "t", "args": [], "meta": {"tenant_id": "deep"}}]', atomicity => 'partial')), 'created failed',
    'MT-04: or, partial, without the jobs that cannot be');
savepoint taken_back;
select count(*) from ojs.claim('d-one@deep', 'w', 2) \g /dev/null
select is(pg_temp.pushes('deep', 'd-one', 3), '2 max_queue_depth 3', 'MT-04: places of a savepoint');
rollback to taken_back;
select is(pg_temp.pushes('deep', 'd-one', 1), '0 max_queue_depth 3', 'MT-04: are given back with it');
select is(ojs.set_tenant('deep', '{"max_queue_depth": null, "max_scheduled": 1}') -> 'limits', '{"max_scheduled": 1}',
    'MT-04: a bound is lifted'),
    is(pg_temp.pushes('deep', 'd-two', 1, '1 hour'), '0 max_scheduled 1', 'MT-04: max_scheduled'),
    is(pg_temp.pushes('deep', 'd-two', 5), '5', 'MT-04: is of scheduled jobs');
select ojs.set_tenant('rated', '{"max_enqueue_rate": {"limit": 5, "period": "PT1H"}}') \g /dev/null
select is(pg_temp.pushes('rated', 'r-one', 2), '2', 'MT-04: below the rate');
set local ojs.tenant = 'rated';
select count(*) from ojs.push_many('[{"type": "t", "args": []}, {"type": "t", "args": []}]') \g /dev/null
reset ojs.tenant;
select is(pg_temp.pushes('rated', 'r-two', 2), '1 max_enqueue_rate 5', 'MT-04: batches count by their jobs'),
    is(pg_temp.pushes('free', 'r-two', 9), '9', 'MT-04: a tenant without settings has no limit');
set local ojs.clock_offset = '50min';
select is(pg_temp.pushes('rated', 'r-one', 1), '0 max_enqueue_rate 5', 'MT-04: within the period');
set local ojs.clock_offset = '61min';
select is(pg_temp.pushes('rated', 'r-one', 6), '5 max_enqueue_rate 5', 'MT-04: and beyond it anew');
set local ojs.clock_offset = '0';
select ojs.set_tenant('shut', '{"max_enqueue_rate": {"limit": 0, "period": "PT1S"}, "max_queue_depth": 0}') \g /dev/null
select is(pg_temp.pushes('shut', 's', 1), '0 max_queue_depth 0', 'MT-04: 0 shuts a tenant out');
select is(status || ' ' || (headers ->> 'Retry-After') || ' ' || concat_ws(' ', body::jsonb #>> '{error,code}',
    body::jsonb #>> '{error,tenant_id}', body::jsonb #>> '{error,limit}', body::jsonb #>> '{error,current}',
    body::jsonb #>> '{error,maximum}'), '429 1 TENANT_LIMIT_EXCEEDED shut max_queue_depth 0 0',
    'MT-04: over HTTP as the document has it')
from ojs.http('POST', '/ojs/v1/jobs', '{"Content-Type": "application/json", "X-OJS-Tenant": "shut"}',
    '{"type": "t", "args": []}');

-- AT A CLAIM --------------------------------------------------------------------------------------------------------

select ojs.set_tenant('busy', '{"max_concurrency": 3}'), pg_temp.pushes('busy', 'b-one', 3),
    pg_temp.pushes('busy', 'b-two', 3), pg_temp.pushes('idle', 'b-one', 9) \g /dev/null
select is(pg_temp.claims('busy', 2, 'b-one'), 2::bigint, 'MT-04: below max_concurrency'),
    is(pg_temp.claims('busy', 5, 'b-two', 'b-one'), 1::bigint, 'MT-04: which holds for all queues together'),
    is(pg_temp.claims('idle', 9, 'b-one'), 9::bigint, 'MT-04: and for one tenant'),
    is((select count(*) from ojs.claim(array['b-one@busy', 'b-two@busy'], 'shared', 5)), 0::bigint,
        'MT-04: and whoever claims');
select alike(ojs.explain_job((select id from ojs.jobs where meta ->> 'tenant_id' = 'busy' and state = 'available'
    limit 1)), '%waits: its tenant holds as many jobs as it may (max_concurrency): 3 of 3 run.',
    'MT-04: explain_job says so');
select is((select count(*) from ojs.rate_limits where key ~ 'busy|rated'), 0::bigint, 'MT-04: no key of a rate limit');
select ojs.ack(id) from ojs.jobs where meta ->> 'tenant_id' = 'busy' and state = 'active' limit 1 \g /dev/null
select is(pg_temp.claims('busy', 5, 'b-two'), 1::bigint, 'MT-04: who ends gives its place back');
select is((select data from ojs.events where type = 'tenant.limit_exceeded' and subject = 'busy'),
    '{"tenant_id": "busy", "limit": "max_concurrency", "current": 3, "maximum": 3}', 'MT-04: an event tells');
select ojs.set_tenant('busy', '{"max_concurrency": 4}') \g /dev/null
select is(pg_temp.claims('busy', 5, 'b-one', 'b-two'), 1::bigint, 'MT-04: an administrator raises it');

-- A limit of a queue beside it, and jobs that state limits by the same words.
select ojs.create_queue('b-both', '{"concurrency": 1}'), ojs.set_tenant('both', '{"max_concurrency": 2}'),
    pg_temp.pushes('both', 'b-both', 3), pg_temp.pushes('both', 'b-one', 3) \g /dev/null
select is(pg_temp.claims('both', 5, 'b-both'), 1::bigint, 'MT-04: the limit of a queue holds, too'),
    is(pg_temp.claims('both', 5, 'b-one'), 1::bigint, 'MT-04: beside that of the tenant');

-- STATISTICS --------------------------------------------------------------------------------------------------------

select is((select row_to_json(s)::jsonb - 'enqueued_last_hour' - 'effective_share' from ojs.tenant_stats('busy') s),
    '{"tenant_id": "busy", "queues": 2, "waiting": 1, "available": 1, "active": 4, "scheduled": 0, "retryable": 0,
    "pending": 0, "completed_24h": 1, "failed_24h": 0, "processed_last_hour": 1, "fairness_weight": 1,
    "actual_share": 1.0000}', 'MT-04: what a tenant does');
select is((select round(sum(effective_share)) from ojs.tenant_stats()), 1::numeric, 'MT-04: shares make a whole'),
    is((select count(*) from ojs.tenants where tenant in ('acme', 'deep', 'free')), 3::bigint,
        'MT-04: there are tenants with a role, with settings, with jobs');
select is(pg_temp.refusal($$select ojs.tenant_stats('nobody')$$), 'OJ300 NOT_FOUND', 'MT-04: no such tenant');
set local ojs.tenant = 'busy';
select is((select string_agg(tenant, ' ') from ojs.tenants), 'busy', 'MT-04: a tenant sees itself alone'),
    is((select string_agg(concat_ws(' ', tenant_id, available, effective_share, actual_share), ',')
        from ojs.tenant_stats()), 'busy 1', 'MT-04: and not what part of the whole it is'),
    is(pg_temp.refusal($$select ojs.tenant_stats('deep')$$), 'OJ300 NOT_FOUND', 'MT-04: nor another one'),
    is(pg_temp.refusal($$select ojs.set_tenant('busy', '{"max_concurrency": 99}')$$),
        '42501 ojs.set_tenant() is not for one who acts for a tenant',
        'MT-04: nor does it set its own limits'),
    is(pg_temp.refusal($$select ojs.drop_tenant('busy')$$),
        '42501 ojs.drop_tenant() is not for one who acts for a tenant',
        'MT-04: or drop them');
reset ojs.tenant;
create function pg_temp.asked(method text, path text, body text default null, tenant text default null) returns text
language sql as $$
    select status || ' ' || coalesce(coalesce(b.json #>> '{error,code}', b.json #>> '{tenant,limits}',
        b.json #>> '{jobs,available}', b.json #>> '{pagination,total}'), '-')
    from ojs.http(method, path, jsonb_strip_nulls(jsonb_build_object('Content-Type', 'application/json',
        'X-OJS-Tenant', tenant)), body) r, lateral (select nullif(r.body, '')::jsonb) b (json)
$$;
select is(pg_temp.asked(method, '/ojs/v1/admin/tenants' || path, body, tenant), told,
    format('MT-04: %s %s for %s', method, path, tenant))
from (values (1, 'PUT', '/web', '{"tenant_id": "web", "limits": {"max_queue_depth": 5}}', null,
        '201 {"max_queue_depth": 5}'),
    (2, 'PUT', '/web/limits', '{"max_concurrency": 2, "reason": "incident"}', null,
        '200 {"max_concurrency": 2, "max_queue_depth": 5}'),
    (3, 'PUT', '/web/limits', '{"fairness_weight": 2}', null, '400 invalid_request'),
    (4, 'PUT', '/web', '{"fairness_weight": 2}', null, '200 {"max_concurrency": 2, "max_queue_depth": 5}'),
    (5, 'GET', '/web', null, null, '200 {"max_concurrency": 2, "max_queue_depth": 5}'),
    (6, 'GET', '/busy/stats', null, null, '200 1'), (7, 'GET', '/busy/jobs?state=active', null, null, '200 4'),
    (8, 'GET', '/busy/jobs', null, 'busy', '200 6'), (9, 'GET', '/busy/jobs', null, 'deep', '404 not_found'),
    (10, 'GET', '/busy', null, 'deep', '404 not_found'), (11, 'GET', '/busy/stats', null, 'deep', '404 not_found'),
    (12, 'PUT', '/deep', '{"max_concurrency": 2}', 'deep', '403 permission_denied'),
    (13, 'GET', '/nobody', null, null, '404 not_found'), (14, 'GET', '', null, 'deep', '200 1'),
    (15, 'DELETE', '/web', null, null, '204 -'), (16, 'DELETE', '/web', null, null, '404 not_found'))
    c (n, method, path, body, tenant, told) order by n;
select is((select r.body::jsonb -> 'total_jobs' from ojs.http('GET', '/ojs/v1/admin/tenants/busy/stats') r),
    (select to_jsonb(s.waiting + s.active) from ojs.tenant_stats('busy') s),
    'the statistics of a tenant begin with the number of its open jobs (R-104)');
select is(current_setting('ojs.tenant'), '', 'MT-04: nobody is left acting for a tenant');

-- WHAT ANOTHER TENANT MAY NOT DO ------------------------------------------------------------------------------------

-- The names of these two are alike as patterns are.
create role prying in role ojs_producer, ojs_worker, ojs_observer;
select ojs.bind_tenant('prying', 'x_y'), ojs.set_pool('narrow', '{"queues": ["p-one"], "concurrency": 1}') \g /dev/null
set local ojs.tenant = 'xzy';
select from ojs.push('t', queue => 'p-one', options => '{"rate_limit": {"key": "k", "concurrency": 5}}');
select count(*) from ojs.claim('p-one', 'w') \g /dev/null
reset ojs.tenant;
select is((select count(*) from ojs.rate_limits where key = 'k@xzy'), 1::bigint, 'MT-03: there is a key');
set local role prying;
select is((select count(*) from ojs.rate_limits where key ~ 'xzy'), 0::bigint, 'MT-03: not seen by a tenant alike'),
    is((select count(*) from ojs.events where data::text ~ 'xzy' or type ~ '^(tenant|admin)'), 0::bigint,
        'MT-03: nor are events of tenants'),
    is(pg_temp.refusal($$select ojs.push('t', options => '{"rate_limit": {"key": "+active@xzy", "concurrency": 1}}')$$),
        'OJ100 INVALID_PAYLOAD rate_limit.key', 'MT-03: no job states the limit of another tenant');
select from ojs.push('t', queue => 'p-one');
select is((select count(*) from ojs.claim_pool('narrow', 'w')), 1::bigint, 'MT-03: who takes the place of a pool');
reset role;
set local ojs.tenant = 'xzy';
select from ojs.push('t', queue => 'p-one');
select is((select count(*) from ojs.claim_pool('narrow', 'w')), 1::bigint, 'MT-03: takes it from no other tenant'),
    is((select count(*) from ojs.claim_pool('narrow', 'w')), 0::bigint, 'MT-03: of its own there is one');
reset ojs.tenant;

-- A job without a tenant, where there is a default one.
set local ojs.default_tenant = 'house';
select is((ojs.push('t', queue => 'homes', meta => '{"x": 1}')).meta, '{"x": 1, "tenant_id": "house"}',
    'MT-02: a default tenant'),
    is((select count(*) from ojs.claim('homes@house', 'w')), 1::bigint, 'MT-02: gets the job');
set local ojs.tenancy = required;
select is((ojs.push('t', queue => 'homes')).meta, '{"tenant_id": "house"}', 'MT-02: also where one is required');
reset ojs.default_tenant;

select * from finish();
rollback;
