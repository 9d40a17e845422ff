-- tenants.sql: MT-01 to MT-03, R-78: whose jobs are whose, and that nobody sees another tenant's.
-- Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();
\ir helpers.psql

set local ojs.tenancy = optional;
create role insider in role ojs_producer, ojs_worker, ojs_observer;
create role outsider in role ojs_producer, ojs_worker, ojs_observer;
create role clerk in role ojs_producer, ojs_worker, ojs_observer, ojs_admin;
select ojs.bind_tenant('insider', 'b'), ojs.bind_tenant('outsider', 'a') \g /dev/null

-- NAMING A TENANT ---------------------------------------------------------------------------------------------------

create function pg_temp.told(call text) returns text language plpgsql as $$
declare
    told text;
begin
    execute 'select ' || call into told;
    return told;
exception when others then
    return pg_temp.refusal('select ' || call);
end $$;
select is(pg_temp.told(call), told, 'MT-01: ' || call) from (values
    ($$(ojs.push('t')).meta$$, '{}'),
    ($$(ojs.push('t', meta => '{"tenant_id": "acme"}')).meta$$, '{"tenant_id": "acme"}'),
    ($$(ojs.push('t', meta => '{"tenant_id": "A-1._:x"}')).queue$$, 'default'),
    ($$(ojs.push('t', meta => '{"tenant_id": ""}')).queue$$, 'OJ104 INVALID_METADATA meta.tenant_id'),
    ($$(ojs.push('t', meta => '{"tenant_id": 7}')).queue$$, 'OJ104 INVALID_METADATA meta.tenant_id'),
    ($$(ojs.push('t', meta => '{"tenant_id": "-a"}')).queue$$, 'OJ104 INVALID_METADATA meta.tenant_id'),
    ($$(ojs.push('t', queue => 'q@acme')).queue$$, 'OJ102 INVALID_QUEUE queue'),
    ($$(ojs.push('t', queue => repeat('q', 125), meta => '{"tenant_id": "acme"}')).queue$$,
        'OJ114 QUEUE_NAME_TOO_LONG queue')) c (call, told);
set local ojs.tenant = 'acme';
select is(pg_temp.told(call), told, 'MT-01: for ojs.tenant: ' || call) from (values
    ($$(ojs.push('t', meta => '{"x": 1}')).meta$$, '{"x": 1, "tenant_id": "acme"}'),
    ($$ojs.push_job('{"type": "t", "args": []}') #>> '{meta,tenant_id}'$$, 'acme'),
    ($$count(*) from ojs.push_many('[{"type": "t", "args": []},
        {"type": "t", "args": [], "meta": {"tenant_id": "acme"}}]')$$, '2'),
    ($$(ojs.push('t', meta => '{"tenant_id": "acme"}')).meta$$, '{"tenant_id": "acme"}'),
    ($$(ojs.push('t', meta => '{"tenant_id": "other"}')).meta$$, 'OJ100 INVALID_PAYLOAD meta.tenant_id'))
    c (call, told);
select is(pg_temp.refusal('set local ojs.tenant = ''a b'''), '22023 invalid value for parameter "ojs.tenant": "a b"',
    'MT-01: ojs.tenant names a tenant');
reset ojs.tenant;
select is(status || ' ' || coalesce(body::jsonb #>> '{job,meta,tenant_id}', body::jsonb #>> '{error,code}'), told,
    'MT-01: over HTTP, X-OJS-Tenant: ' || tenant || ' ' || given)
from (values ('acme', '{}', '201 acme'), ('acme', '{"tenant_id": "acme"}', '201 acme'),
    ('acme', '{"tenant_id": "other"}', '400 invalid_request'), ('no tenant', '{}', '400 invalid_request'))
    c (tenant, given, told),
    ojs.http('POST', '/ojs/v1/jobs', jsonb_build_object('Content-Type', 'application/json', 'X-OJS-Tenant', tenant),
        format('{"type": "t", "args": [], "meta": %s}', given));
select is(current_setting('ojs.tenant'), '', 'MT-01: the header is for its request alone');
set local ojs.tenancy = required;
select is(pg_temp.told($$(ojs.push('t')).queue$$), 'OJ104 INVALID_METADATA meta.tenant_id',
    'MT-02: a tenant is required'),
    is((select status from ojs.http('POST', '/ojs/v1/jobs', '{"Content-Type": "application/json"}',
        '{"type": "t", "args": []}')), 422, 'MT-02, R-78: 422'),
    is(pg_temp.told($$(ojs.push('t', meta => '{"tenant_id": "acme"}')).queue$$), 'default', 'MT-02: and given');
set local ojs.tenancy = off;
select is((ojs.push('t', queue => 'plain', meta => '{"tenant_id": 7}')).meta, '{"tenant_id": 7}',
    'R-78: off, it is metadata'),
    is((select status from ojs.http('POST', '/ojs/v1/jobs', '{"Content-Type": "application/json",
        "X-OJS-Tenant": "acme"}', '{"type": "t", "args": []}')), 422, 'R-78: and the header refused');
set local ojs.tenancy = optional;

create schema hooked;
create function hooked.passes(job jsonb) returns jsonb language sql as 'select job';
select ojs.register_hook('passes', 'enqueue', 'hooked.passes(jsonb)') \g /dev/null
select is(pg_temp.told($$(ojs.push('hooked', queue => 'h', "unique" => '{"keys": ["args"]}',
    meta => '{"tenant_id": "acme"}')).queue$$), 'h', 'MT-01: a hook sees the job of a tenant, a unique one too');
select ojs.unregister_hook('passes') \g /dev/null

-- BINDINGS ----------------------------------------------------------------------------------------------------------

select is(pg_temp.refusal(call), told, 'MT-01: ' || call) from (values
    ($$select ojs.bind_tenant('nobody-there', 'a')$$, 'OJ100 INVALID_PAYLOAD role'),
    ($$select ojs.bind_tenant('clerk', 'a')$$, 'OJ100 INVALID_PAYLOAD role'),
    ($$select ojs.bind_tenant('insider', 'a b')$$, 'OJ100 INVALID_PAYLOAD tenant')) c (call, told);
select is(pg_temp.as_role('clerk', $$select string_agg(role || ' ' || tenant, ', ' order by role) from ojs.tenant_roles
    where role in ('insider', 'outsider')$$), 'insider b, outsider a', 'MT-01: an administrator sees the bindings');
create role pair in role ojs_producer;
create role member in role insider;
select ojs.bind_tenant('pair', 'a'), ojs.bind_tenant('pair', 'c') \g /dev/null
create function pg_temp.pushes(role name, tenant text) returns text language plpgsql as $$
begin
    perform set_config('ojs.tenant', tenant, true);
    return pg_temp.as_role(role, $q$select (ojs.push('t')).meta ->> 'tenant_id'$q$);
end $$;
select is(pg_temp.pushes(role, tenant), told, format('MT-01: %s as %s', role, tenant)) from (values
    ('insider', '', 'b'), ('insider', 'b', 'b'), ('insider', 'a', '42501'), ('member', '', 'b'),
    ('member', 'a', '42501'),
    ('pair', '', '42501'), ('pair', 'a', 'a'), ('pair', 'c', 'c'), ('pair', 'b', '42501'), ('clerk', 'z', 'z'))
    c (role, tenant, told);
select set_config('ojs.tenant', '', true) \g /dev/null
set session authorization insider;
set role ojs_producer;
select (ojs.push('t')).meta ->> 'tenant_id' as by_set_role \gset
reset session authorization;
select is(:'by_set_role'::text, 'b', 'MT-01: a bound session stays bound, whichever role it takes on');
select ojs.unbind_tenant('pair', 'a') \g /dev/null
select is(pg_temp.pushes('pair', ''), 'c', 'MT-01: a binding is taken back');
select set_config('ojs.tenant', '', true) \g /dev/null
select is((select string_agg(act || ' ' || subject, ', ' order by act)
    from ojs.audit where act ~ 'tenant' and subject = 'pair'),
    'tenant_bound pair, tenant_bound pair, tenant_unbound pair', 'MT-01: bindings are audited');

-- A connection of a pool serves one role after another.
do $$
begin
    for i in 1 .. 2000 loop
        set local role insider;
        perform from ojs.queues;
        set local role outsider;
        perform from ojs.queues;
    end loop;
end $$;
reset role;
select cmp_ok((select sum(total_bytes) from pg_backend_memory_contexts where ident = 'tenant_role'), '<',
    20000::numeric, 'MT-01: what a session knows of tenants does not grow with the roles it serves');

-- WHAT ANOTHER TENANT HAS -------------------------------------------------------------------------------------------

select ojs.create_queue('vault', '{"lease_log": true}') \g /dev/null
set local role outsider;
select ojs.create_workflow('{"type": "group", "jobs": [{"type": "own", "args": []}]}') \g /dev/null
reset role;
set local ojs.tenant = 'b';
\ir matrix.psql
reset ojs.tenant;
set local role insider;
select ojs.register_worker('vault-worker', '{"hostname": "SECRET"}') \g /dev/null
reset role;
select ojs.schedule('vault-clock', '0 0 1 1 *',
    '{"type": "t.a", "args": ["SECRET"], "queue": "vault", "meta": {"tenant_id": "b"}}') \g /dev/null
select ojs.set_pool('vault-pool', '{"queues": ["vault"]}') \g /dev/null
create temp table strangers as
    select * from (values ('outsider', ''), ('clerk', 'a')) s (role, tenant);
select ojs.set_tenant('b', '{"max_scheduled": 1000}') \g /dev/null
insert into calls values ('set_tenant', $$ojs.set_tenant('b', '{"max_concurrency": 0}')$$),
    ('drop_tenant', $$ojs.drop_tenant('b')$$),
    ('tenant_stats', $$'SECRET' from ojs.tenant_stats() where tenant_id = 'b'$$),
    ('update_webhook', $$ojs.update_webhook('{hook}', '{"active": false}')$$),
    ('drop_webhook', $$ojs.drop_webhook('{hook}')$$),
    ('rotate_webhook_secret', $$ojs.rotate_webhook_secret('{hook}')$$),
    ('test_webhook', $$ojs.test_webhook('{hook}')$$),
    ('retry_webhook_delivery', $$ojs.retry_webhook_delivery('{sent}')$$);
update views set shown = $$'SECRET' from ojs.tenants where tenant = 'b'$$ where name = 'tenants';
update views set shown = null where name ~ 'webhook'; -- these are for administrators: see below
select is(count(*), 4::bigint, 'MT-03: there is what may be seen') from ojs.list_jobs('vault@b', 'available');

select is((select string_agg(distinct proname, ' ') from pg_proc where pronamespace = 'ojs'::regnamespace
    and proname not in (select name from calls)), null, 'MT-03: each function stands in the matrix');
select is(pg_temp.attempt(role, call, tenant) ~ 'SECRET|CHANGED', false,
    format('MT-03: %s: nothing of another tenant: %s', role, call))
from strangers, (select call from calls where call is not null
    union select replace(call, 'vault''', 'vault@b''') from calls where call ~ 'vault''') c;
select ok(pg_temp.attempt('insider', call) ~ 'SECRET|CHANGED', format('MT-03: and of one''s own: %s', call))
from calls where call is not null and name not in (select name from idle)
    and exists (select from pg_proc p where p.pronamespace = 'ojs'::regnamespace and p.proname = calls.name
        and has_function_privilege('insider', p.oid, 'execute'));

select is((select string_agg(relname, ' ') from pg_class where relnamespace = 'ojs'::regnamespace and relkind = 'v'
    and relname not in (select name from views)), null, 'MT-03: each view stands in the matrix');
select is(pg_temp.attempt(role, shown, tenant), 'answers',
    format('MT-03: %s: nothing of another tenant in ojs.%s', role, name))
from views, strangers where shown is not null;
select is(pg_temp.attempt('insider', shown), 'answers SECRET', 'MT-03: what is one''s own in ojs.' || name)
from views where shown is not null and name <> 'pools'; -- these are the operator's
select is(pg_temp.attempt(role, call, tenant), found, format('MT-01: what %s sees of a tenant''s: %s', role, call))
from (values ('clerk'::name, 'a', 'answers'), (current_user, 'b', 'answers SECRET')) s (role, tenant, found),
    (values ('w from ojs.webhooks w'), ('d from ojs.webhook_deliveries d')) c (call);
select is(pg_temp.attempt(current_user, call, 'b') ~ 'SECRET|CHANGED', true, 'MT-01: and does with it: ' || call)
from calls where name ~ 'webhook' and call is not null;
select is(pg_temp.attempt('outsider', call), 'answers', 'MT-03: not by a condition either: ' || call)
from (values ($$1 from ojs.jobs where pg_temp.peek(type)$$), ($$1 from ojs.dead_letters where pg_temp.peek(type)$$),
    ($$1 from ojs.queues where pg_temp.peek(name)$$), ($$1 from ojs.crons where pg_temp.peek(job::text)$$),
    ($$1 from ojs.workers where pg_temp.peek(hostname)$$), ($$1 from ojs.lease_log where pg_temp.peek(queue)$$),
    ($$1 from ojs.events where pg_temp.peek(data::text)$$),
    ($$1 from ojs.deduplication_keys where pg_temp.peek(key)$$), ($$1 from ojs.workflows where pg_temp.peek(name)$$))
    c (call);
select is((select string_agg(distinct role || ' ' || route, ', ') from tried, strangers
    where pg_temp.attempt(role, call, tenant) ~ 'SECRET|CHANGED'), null,
    'MT-03: no route shows or changes anything of another tenant''s');

-- A foreign id is one that does not exist: the same answer, but for the id.
create function pg_temp.answer(call text, id uuid, role name) returns text language plpgsql as $$
declare
    answer text; message text; detail text; hint text;
begin
    begin
        execute format('set local role %I', role);
        execute format('select string_agg(r::text, '' '') from (select %s) r',
            replace(call, '{id}', id::text)) into answer;
        raise exception using errcode = 'ZZ000', message = coalesce(answer, 'null');
    exception when sqlstate 'ZZ000' then
        answer := sqlerrm;
    when others then
        get stacked diagnostics message = message_text, detail = pg_exception_detail, hint = pg_exception_hint;
        answer := concat_ws('|', sqlstate, message, detail, hint);
    end;
    return regexp_replace(replace(answer, id::text, 'ID'), 'req_[-0-9a-f]*|[-0-9]+[T ][0-9]+:[0-9]+:[0-9.]+', '', 'g');
end $$;
select is(pg_temp.answer(call, jobs.id, 'outsider'),
    pg_temp.answer(call, '01920000-0000-7000-8000-000000000000', 'outsider'),
    format('MT-03: %s is as good as none: %s', jobs.name, call))
from jobs, (select distinct regexp_replace(replace(call, '{lease}', lease),
        '\{ ?\{?(free|held|ended|failed|pending|flow|asleep|hook|sent)\}? ?\}',
        case when call ~ '\{ \{' then '{ {id} }' else '{id}' end, 'g')
    from calls, jobs where jobs.name = 'held' and call ~ '\{(free|held|ended|failed|pending|flow|hook|sent)\}'
        and call !~ 'seqs|_many\(.\{|filter') c (call)
where not (call ~ 'workflow' and jobs.name <> 'flow');
select is(pg_temp.answer(call, jobs.id, 'outsider'),
    pg_temp.answer(call, '01920000-0000-7000-8000-000000000000', 'outsider'),
    'MT-03: over HTTP, too: ' || c.call)
from jobs, (select format($$status || body from ojs.http(%L, %L, '{"Content-Type": "application/json"}', %L)$$, method,
        replace(pattern, ':id', '{id}'), case when method in ('POST', 'PUT', 'PATCH') then '{}' end)
    from ojs_http.routes() where pattern ~ ':id' and pattern !~ 'workers|stream|events') c (call)
where jobs.name in ('held', 'failed', 'flow');

-- KEYS, COUNTS AND EVENTS ARE ONE TENANT'S --------------------------------------------------------------------------

create function pg_temp.each(call text) returns text language plpgsql as $$
declare
    told text[]; answer text;
begin
    foreach answer in array array['a', 'b', ''] loop
        perform set_config('ojs.tenant', answer, true);
        execute 'select ' || call into answer;
        told := told || answer;
    end loop;
    perform set_config('ojs.tenant', '', true);
    return array_to_string(told, ' ', '-');
end $$;
select is(pg_temp.each(call), told, 'MT-03: one for each tenant: ' || call) from (values
    ($$coalesce((ojs.push('k', queue => 'keys', "unique" => '{"keys": ["type"]}')).deduplicated, false)$$,
        'false false false'),
    ($$coalesce((ojs.push('k', queue => 'keys',
        "unique" => '{"keys": ["type"], "on_conflict": "ignore"}')).deduplicated, false)$$,
        'true true true'),
    ($$coalesce((ojs.push('d', queue => 'keys', deduplication_key => 'k')).deduplicated, false)$$, 'false false false'),
    ($$coalesce((ojs.push('d', queue => 'keys', deduplication_key => 'k')).deduplicated, false)$$, 'true true true'),
    ($$string_agg(status, ',') from ojs.push_many('[{"type": "i", "args": []}]', idempotency_key => 'k')$$,
        'created created created'),
    ($$ojs.once('token')$$, 'true true true'), ($$ojs.once('token')$$, 'false false false'),
    ($$ojs.register_worker('same') ->> 'ok'$$, 'true true true'),
    ($$count(*) from ojs.workers where worker = 'same'$$, '1 1 1'),
    ($$ojs.deregister_worker('same')$$, 'true true true'),
    ($$(ojs.push('l', queue => 'limits', options => '{"rate_limit": {"key": "k", "concurrency": 1}}')).state$$,
        'available available available'),
    ($$count(*) from ojs.claim('limits', 'w')$$, '1 1 1'),
    ($$string_agg(worker, ',' order by worker) from ojs.workers where active_jobs > 0 and worker ~ '^w(@|$)'$$,
        'w w w,w@a,w@b'),
    ($$available from ojs.queue_stats('keys')$$, '2 2 2'),
    ($$count(*) from ojs.queues where name ~ '^keys'$$, '1 1 3'),
    ($$count(*) from ojs.events where job_type = 'k' and type = 'job.enqueued'$$, '1 1 3')) c (call, told);

-- Workflows: their steps are the tenant's, whoever acks the step before.
set local ojs.tenant = 'a';
select ojs.create_workflow('{"type": "batch", "jobs": [{"type": "w.one", "args": [], "queue": "flow"},
    {"type": "w.two", "args": [], "options": {"queue": "flow", "meta": {"x": 1}}}],
    "callbacks": {"on_complete": {"type": "w.three", "args": [], "queue": "flow-done"}}}') ->> 'id' as flow \gset
reset ojs.tenant;
select is((select string_agg(type || ' ' || (meta ->> 'tenant_id'), ', ' order by type)
    from ojs.jobs where type ~ '^w\.'),
    'w.one a, w.two a', 'MT-03: the jobs of a workflow are its tenant''s');
select ojs.ack(id) from ojs.claim('flow@a', 'w', 5) \g /dev/null
select is((select string_agg(queue || ' ' || (meta ->> 'tenant_id'), ', ') from ojs.jobs where type = 'w.three'),
    'flow-done a', 'MT-03: and what comes after them');
select is(pg_temp.refusal($$select ojs.create_workflow('{"type": "group", "jobs": [{"type": "w", "args": []},
    {"type": "w", "args": [], "meta": {"tenant_id": "a"}}]}')$$), 'OJ404 INVALID_WORKFLOW $.jobs[1].meta.tenant_id',
    'MT-03: no workflow has jobs of two tenants');

-- A tenant's part of a queue has the queue's settings, and its own above them.
select ojs.create_queue('parts', '{"max_size": 1, "dead_letter": "parts-dead", "max_deliveries": 1}') \g /dev/null
select is(pg_temp.each($$(ojs.push('p', queue => 'parts')).state$$), 'available available available',
    'MT-03: a bound holds for each tenant');
set local ojs.tenant = 'a';
select is(left(pg_temp.refusal($$select ojs.push('p', queue => 'parts')$$), 5), 'OJ601', 'MT-03: of its own');
select id as moved from ojs.claim('parts', 'w') \gset
select ojs.nack(:'moved') \g /dev/null
select count(*) from ojs.claim('parts', 'w') \g /dev/null
reset ojs.tenant;
select is((select string_agg(name, ' ' order by name) from ojs.queues where name ~ '^parts-dead'), 'parts-dead@a',
    'MT-03: and so are the dead letters');
select ojs.configure_queue('parts@a', '{"max_size": 3}'), ojs.pause_queue('parts') \g /dev/null
set local ojs.tenant = 'a';
select is((select count(*) from (select ojs.push('p', queue => 'parts') from generate_series(1, 3)) p), 3::bigint,
    'MT-03: an administrator gives one tenant another bound'),
    is((select count(*) from ojs.claim('parts', 'w')), 0::bigint, 'MT-03: and pauses all parts of a queue');
reset ojs.tenant;

-- What a part has of its queue counts in what is said of it, too.
select ojs.create_queue('said', '{"concurrency": 1, "replay_rules": [{"name": "all", "delay": "PT0S",
    "max_replays": 1}]}') \g /dev/null
set local ojs.tenant = 'a';
select count(ojs.push('said.job', queue => 'said', retry => '{"on_exhaustion": "dead_letter"}',
    options => '{"rate_limit": {"key": "said", "rate": 9, "period": "PT1H"}}')) from generate_series(1, 2) \g /dev/null
select id as held from ojs.claim('said', 'w') \gset
select id as waits from ojs.jobs where type = 'said.job' and state = 'available' \gset
create function pg_temp.twice(call text) returns text language sql as $$
    select string_agg(pg_temp.told(call), ' | ' order by n) from unnest(array['a', '']) with ordinality t (tenant, n),
        lateral (select set_config('ojs.tenant', tenant, true)) acting
$$;
select is(pg_temp.twice(format(call, :'waits')), told || ' | ' || told, 'MT-03: both sides are told: ' || call)
from (values
    ($$substring(ojs.explain_job('%s') from 'the rate limit.*')$$,
        'the rate limit "queue:said@a" is used up: 1 of 1 run.'),
    ($$concurrency || ' ' || active || ' ' || waiting from ojs.rate_limits where key = 'queue:said@a'$$, '1 1 1'),
    ($$rate || ' ' || started || ' ' || waiting from ojs.rate_limits where key = 'said@a'$$, '9 1 1'),
    ($$count(*) from ojs.rate_limits where key = 'said'$$, '0'),
    ($$ojs.queue_info('said@a') #>> '{config,concurrency}'$$, '1')) c (call, told);
reset ojs.tenant;
set local ojs.tenancy = off;
select ojs_store.changed('ojs_store.queue') \g /dev/null
select is((select count(*) from ojs.claim('said@a', 'w', 2)), 0::bigint, 'MT-03: its limit holds where there are none');
set local ojs.tenancy = optional;
select ojs.pause_queue('said') \g /dev/null
select is(pg_temp.twice(format(call, :'waits')), told || ' | ' || told, 'MT-03: of a pause, too: ' || call) from (values
    ($$ojs.explain_job('%s') ~ 'its queue "said" is paused'$$, 'true'),
    ($$paused from ojs.queue_stats('said@a')$$, 'true'), ($$ojs.queue_info('said@a') ->> 'state'$$, 'paused'),
    ($$state from ojs.queues where name = 'said@a'$$, 'paused')) c (call, told);
select set_config('ojs.tenant', '', true) \g /dev/null
select ojs.resume_queue('said') \g /dev/null
select ojs.fail(:'held', '{"type": "E", "message": "no", "retryable": false}') \g /dev/null
select is((ojs.tick() ->> 'replayed') || ' ' || (ojs.info(:'held') ->> 'state'), '1 available',
    'MT-03: a tenant''s dead letter is tried again by the rules of its queue');

-- Without ojs.tenant a worker serves itself, and by name a tenant.
select is((select string_agg(distinct meta ->> 'tenant_id', ' ') from ojs.claim('keys@b', 'w', 9)), 'b',
    'MT-03: an operator claims for one tenant');

-- Parallel queries.
create role printer in role ojs_producer;
select ojs.bind_tenant('printer', 'a') \g /dev/null
set local role printer;
select set_config(case when current_setting('server_version_num')::int < 160000 then 'force_parallel_mode'
    else 'debug_parallel_query' end, 'on', true) \g /dev/null
select is(ojs.fingerprint_input('{"type": "t", "args": [], "unique": {"keys": ["type"]}}')::jsonb ->> 'tenant', 'a',
    'MT-03: whose fingerprint it is can be told in a parallel query');
reset role;
select set_config(case when current_setting('server_version_num')::int < 160000 then 'force_parallel_mode'
    else 'debug_parallel_query' end, 'off', true) \g /dev/null

-- Bindings whose roles are gone.
create role first_name;
create role second_gone;
create role watcher in role ojs_observer;
select ojs.bind_tenant('first_name', 'a'), ojs.bind_tenant('second_gone', 'b'), ojs.bind_tenant('second_gone', 'c'),
    ojs.bind_tenant('watcher', 'a') \g /dev/null
select is(ojs.health() #>> '{tenants,bindings_without_role}', '0', 'OBS-01: each binding has its role');
alter role first_name rename to later_name;
drop role second_gone;
select is((ojs.health() -> 'tenants') - 'bindings',
    '{"bindings_without_role": 3, "roles_missing": ["first_name", "second_gone"]}',
    'OBS-01: health names roles of bindings that are gone'),
    is(ojs.health() ->> 'status', 'ok', 'OBS-01: which hold nothing up');
set local role watcher;
select is(ojs.health() #> '{tenants,roles_missing}', '["first_name"]', 'MT-03: a tenant is told of its own');
reset role;
select ojs.unbind_tenant(role, tenant) from ojs.tenant_roles where role in ('first_name', 'second_gone') \g /dev/null
select is(ojs.health() #>> '{tenants,bindings_without_role}', '0', 'OBS-01: until they are taken back');

-- LIMITS OF ANOTHER TENANT -----------------------------------------------------------------------------------------

create function pg_temp.remaining_of_b() returns text language sql as $$
    select ojs_http.limit_headers('{"queue": "q", "meta": {"tenant_id": "b"},
        "rate_limit": {"key": "shared", "rate": {"limit": 7, "period": "PT1M"}}}') ->> 'X-RateLimit-Remaining'
$$;
set local role insider;
select ojs.push('t', queue => 'shared', options => '{"rate_limit": {"key": "shared", "rate": {"limit": 7,
    "period": "PT1M"}}}') \g /dev/null
select ojs.claim('shared', 'w') \g /dev/null
select is(pg_temp.remaining_of_b(), '6', 'MT-01: a tenant is told what its limit leaves');
set local role outsider;
select is(pg_temp.remaining_of_b(), '7', 'MT-01: and not what the limit of another one does');
reset role;

select * from finish();
rollback;
