-- rights.sql: what a queue's lists of roles let a caller do: SEC-01 to SEC-03.
-- Runs once: nothing here asks whether ojs was preloaded.
-- The matrix is made of the catalog: a function, view or route that has no line here fails the test.
begin;
select no_plan();
\ir helpers.psql

create role insider in role ojs_producer, ojs_worker, ojs_observer, ojs_admin;
create role outsider in role ojs_producer, ojs_worker, ojs_observer, ojs_admin;
select ojs.create_queue('vault',
    '{"producers": ["insider"], "workers": ["insider"], "readers": ["insider"],
        "cancellers": ["insider"], "administrators": ["insider"], "lease_log": true}') \g /dev/null

set local role outsider;
select ojs.create_workflow('{"type": "group", "jobs": [{"type": "own", "args": []}]}') \g /dev/null
reset role;
\ir matrix.psql
select ojs.schedule('vault-clock', '0 0 1 1 *', '{"type": "t.a", "args": ["SECRET"], "queue": "vault"}') \g /dev/null
select ojs.set_pool('vault-pool', '{"queues": ["vault"]}') \g /dev/null

-- FUNCTIONS ---------------------------------------------------------------------------------------------------------

select is((select string_agg(distinct proname, ' ') from pg_proc where pronamespace = 'ojs'::regnamespace
    and proname not in (select name from calls)), null, 'SEC-01: each function stands in the matrix');
select is(pg_temp.attempt('outsider', call) ~ 'SECRET|CHANGED', false,
    format('SEC-01: %s of another''s queue: %s', name, call)) from calls where call is not null;
select ok(pg_temp.attempt('insider', call) ~ 'SECRET|CHANGED', format('SEC-01: and of one''s own: %s', call))
    from calls where call is not null and name not in (select name from idle);

create function pg_temp.rate_of_vault() returns text language sql as $$
    select ojs_http.limit_headers('{"queue": "vault", "rate_limit": {"rate": {"limit": 5, "period": "PT1M"}}}')
        ->> 'X-RateLimit-Limit'
$$;
set local role outsider;
select is(pg_temp.rate_of_vault(), null, 'SEC-01: what the limit of another''s queue leaves is not said');
set local role insider;
select is(pg_temp.rate_of_vault(), '5', 'SEC-01: that of one''s own is');
reset role;

-- VIEWS -------------------------------------------------------------------------------------------------------------

select is((select string_agg(relname, ' ') from pg_class where relnamespace = 'ojs'::regnamespace and relkind = 'v'
    and relname not in (select name from views)), null, 'SEC-01: each view stands in the matrix');
select is(pg_temp.attempt('outsider', shown), 'answers', 'SEC-01: nothing of another''s queue in ojs.' || name)
    from views where shown is not null;
select is(pg_temp.attempt('insider', shown), 'answers SECRET', 'SEC-01: what is one''s own in ojs.' || name)
    from views where shown is not null;
select is(pg_temp.attempt('outsider', call), 'answers', 'SEC-01: not by a condition either: ' || call)
    from (values ($$1 from ojs.jobs where pg_temp.peek(type)$$), ($$1 from ojs.dead_letters where pg_temp.peek(type)$$),
    ($$1 from ojs.queues where pg_temp.peek(name) and name = 'vault'$$),
        ($$1 from ojs.crons where pg_temp.peek(job::text)$$),
        ($$1 from ojs.deduplication_keys where pg_temp.peek(key)$$),
        ($$1 from ojs.workflows where pg_temp.peek(name)$$)) c (call);

-- ROUTES ------------------------------------------------------------------------------------------------------------

select is((select count(distinct route) > 100 from tried), true, 'SEC-01: the routes of the binding');
select is((select string_agg(distinct route, ', ') from tried
    where pg_temp.attempt('outsider', call) ~ 'SECRET|CHANGED'), null,
        'SEC-01: no route shows or changes anything of another''s queue');
select cmp_ok((select count(distinct route) from tried where pg_temp.attempt('insider', call) ~ 'SECRET|CHANGED'),
    '>', 30::bigint, 'SEC-01: as routes do with one''s own');

-- EACH LIST BY ITSELF
-- --------------------------------------------------------------------------------------------------

create function pg_temp.allowed(config text) returns text language plpgsql as $$
declare
    letters text := ''; letter text; call text;
begin
    perform ojs.drop_queue(name, 'discard') from ojs.queues where name = 'lists';
    perform ojs.create_queue('lists',
        '{"producers": ["*"], "workers": ["*"], "readers": ["*"],
        "cancellers": ["*"], "administrators": ["*"]}'::jsonb || config::jsonb);
    create temp table if not exists one (id uuid);
    truncate one;
    insert into one select id from ojs.push('t', queue => 'lists');
    for letter, call in values ('p', $c$ojs.push('t', queue => 'lists')$c$), ('w', $c$ojs.claim('lists', 'w')$c$),
        ('r', format($c$ojs.info(%L)$c$, (select id from one))),
            ('c', format($c$ojs.cancel(%L)$c$, (select id from one))), ('a', $c$ojs.pause_queue('lists')$c$) loop
        letters := letters || case when pg_temp.attempt('outsider', call) ~ '^42501' then '' else letter end;
    end loop;
    return letters;
end $$;
select is(pg_temp.allowed(config), letters, 'SEC-01: what is left with ' || config)
    from (values ('{}', 'pwrca'), ('{"producers": ["insider"]}', 'pwrca'),
    ('{"producers": ["insider"], "administrators": ["insider"]}', 'wrc'),
        ('{"workers": ["insider"], "administrators": ["insider"]}', 'prc'),
        ('{"readers": ["insider"], "administrators": ["insider"]}', 'pwc'),
    ('{"cancellers": ["insider"], "administrators": ["insider"]}', 'pwr'),
        ('{"administrators": ["insider"]}', 'pwrc'),
        ('{"producers": ["insider"], "cancellers": null, "administrators": ["insider"]}', 'wr'),
    ('{"producers": ["insider"], "readers": null, "administrators": ["insider"]}', 'wrc')) c (config, letters);
select is(pg_temp.refusal_detail($$ select ojs.create_queue('lists', '{"workers": [1]}') $$) #>> '{details,field}',
    'workers', 'SEC-01: lists are of names');

-- JOBS PUSHED FOR OTHERS --------------------------------------------------------------------------------------------

-- Workflows and cron entries push as the owner of the extension: what they replace is in their own queue.
create temp table seized as select id from ojs.push('t.seized', queue => 'vault', "unique" => '{"keys": ["type"]}');
grant select on seized to outsider;
create temp table replacement as
    select '{"type": "t.seized", "args": [], "queue": "mine",
        "unique": {"keys": ["type"], "on_conflict": "replace"}}'::jsonb as job;
grant select on replacement to outsider;
select is(pg_temp.as_role('outsider', $$ select ojs.push_job(job) from replacement $$), '42501',
    'SEC-01: a push replaces no job of another''s queue');
set local role outsider;
select ojs.create_workflow(jsonb_build_object('type', 'chain', 'steps',
    '[{"type": "t.first", "args": [], "queue": "first"}]' || job)) ->> 'id' as seizing from replacement \gset
select ojs.schedule('seizing', '* * * * *', job) from replacement \g /dev/null
reset role;
select ojs.ack(id) from ojs.claim('first', 'w') \g /dev/null
select is(ojs.workflow(:'seizing') ->> 'state', 'failed', 'SEC-01: nor does a workflow');
select pg_temp.clock('2 minutes');
select ojs.tick() \g /dev/null
select is(pg_temp.at(id), 'available/0/0', 'SEC-01: nor a cron entry') from seized;
select is((select string_agg(type, ' ') from ojs.events where subject = 'seizing' and type ~ 'trigger|fail|skip'),
    'cron.skipped', 'SEC-01: whose run says so');
select ojs.unschedule('seizing') \g /dev/null
select pg_temp.clock('0');

-- DROPPED QUEUES ----------------------------------------------------------------------------------------------------

select ojs.create_queue('attic', '{"producers": ["insider"], "readers": ["insider"],
    "administrators": ["insider"]}') \g /dev/null
insert into jobs select 'left', id from ojs.push('t.a', '["SECRET"]', queue => 'attic');
select ojs.cancel(id) from jobs where name = 'left' \g /dev/null
select ojs.drop_queue('attic', 'discard') \g /dev/null
select is(pg_temp.attempt('outsider', call), '42501', 'SEC-01: its lists outlive a queue: ' || call)
    from (values ($$ojs.info('{left}')$$), ($$ojs.create_queue('attic', '{"readers": ["*"]}')$$),
        ($$ojs.push('t.a', queue => 'attic')$$),
        ($$ojs.schedule('to-attic', '@daily', '{"type": "t.a", "queue": "attic"}')$$)) c (call);
select is(pg_temp.as_role('insider', $$ select ojs.create_queue('attic') ->> 'name' $$), 'attic',
    'SEC-01: who administers it makes it anew');

-- WORKERS' NAMES ----------------------------------------------------------------------------------------------------

create role mill in role ojs_worker;
create role other in role ojs_worker;
select is(pg_temp.as_role('mill', $$ select ojs.register_worker('mill-1') ->> 'ok' $$), 'true',
    'SEC-02: a role registers a name');
select is(pg_temp.as_role('other', call), '42501', 'SEC-02: which is its own: ' || call)
    from (values ($$ select ojs.register_worker('mill-1') $$), ($$ select ojs.deregister_worker('mill-1', true) $$),
    ($$ select ojs.beat('mill-1') $$), ($$ select ojs.beat('mill-1', state => 'terminate') $$)) c (call);
select is(pg_temp.as_role('mill', $$ select (ojs.beat('mill-1')).directive $$), 'running',
    'SEC-02: the role itself goes on'),
    is(pg_temp.as_role('outsider', $$ select (ojs.beat('mill-1')).directive $$), 'running',
        'SEC-02: and an administrator may'),
    is(pg_temp.as_role('other', $$ select (ojs.beat('other-1')).directive $$), 'running',
        'SEC-02: a first beat registers, too'),
    is(pg_temp.as_role('mill', $$ select ojs.beat('other-1') $$), '42501', 'SEC-02: for the role that sent it');
update ojs_store.worker set died_at = now() where name = 'mill-1';
select is(pg_temp.as_role('other', $$ select (ojs.beat('mill-1')).directive $$), 'running',
    'SEC-02: the name of a dead worker is free');
select is(pg_temp.as_role('mill', $$ select ojs.beat('mill-1') $$), '42501', 'SEC-02: for who takes it first');

-- ojs.require_lease_id
-- ---------------------------------------------------------------------------------------------------

select ojs.push('t', queue => 'fenced') \g /dev/null
select id as fenced, lease_id as fence from ojs.claim('fenced', 'f') \gset
set local ojs.require_lease_id = on;
select is(left(pg_temp.refusal(format(call, :'fenced')), 5), 'OJ100', 'SEC-03: not without the lease id: ' || call)
    from (values ('select ojs.ack(%L)'), ('select ojs.ack(%L, worker => ''f'')'), ('select ojs.fail(%L, ''{}'')'),
        ('select ojs.nack(%L)'),
    ('select ojs.extend(%L, ''1 min'')'), ('select ojs.ack_many(''f'', array[%L]::uuid[])'),
        ('select ojs.nack_many(''f'', array[%L]::uuid[])'),
        ('select ojs.extend_many(''f'', array[%L]::uuid[], ''1 min'')'),
    ('select ojs.ack_and_claim(''f'', ''fenced'', array[%L]::uuid[])')) c (call);
select is((ojs.ack(:'fenced', lease_id => :'fence')).state, 'completed', 'SEC-03: but with it');
select is(pg_temp.as_role('insider', 'set ojs.require_lease_id = off'), '42501', 'SEC-03: only a superuser sets it');

-- Locks that anybody who may connect can take, and keep
select is((select string_agg(p.oid::regprocedure::text, ', ') from pg_proc p
    where pronamespace in ('ojs'::regnamespace, 'ojs_http'::regnamespace, 'ojs_store'::regnamespace)
        and (prosrc ~ 'pg_(try_)?advisory' or pg_get_function_sqlbody(p.oid) ~ 'pg_(try_)?advisory')), null,
    'SEC-01: no function waits for, or passes something over by, a lock that is open to all');

select * from finish();
rollback;
