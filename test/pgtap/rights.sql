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

-- Jobs in all states; whatever they say is secret.
create temp table jobs (name text primary key, id uuid, lease text);
insert into jobs select 'held', id
    from ojs.push('t.a', '["SECRET"]', queue => 'vault', options => '{"heartbeat_timeout": 86400}');
insert into jobs select 'ended', id from ojs.push('t.a', '["SECRET"]', queue => 'vault');
insert into jobs select 'failed',
    id from ojs.push('t.a', '["SECRET"]', queue => 'vault',
        retry => '{"max_attempts": 1, "on_exhaustion": "dead_letter"}');
update jobs set lease = c.lease_id from ojs.claim('vault', 'vault-worker', 3, '1 day') c where c.id = jobs.id;
select ojs.checkpoint(id, '"SECRET"') from jobs where name = 'held' \g /dev/null
select ojs.progress(id, 0.5, 'SECRET') from jobs where name = 'held' \g /dev/null
select ojs.ack(id, '"SECRET"') from jobs where name = 'ended' \g /dev/null
select ojs.fail(id, '{"type": "SECRET", "message": "SECRET"}') from jobs where name = 'failed' \g /dev/null
insert into jobs select 'free', id from ojs.push('t.a', '["SECRET"]', meta => '{"SECRET": 1}', queue => 'vault',
    deduplication_key => 'SECRET-key', "unique" => '{"keys": ["args"]}');
select ojs.push('t.a', '["SECRET"]', queue => 'vault', options => '{"ordering_key": "line"}')
    from generate_series(1, 2) \g /dev/null
insert into jobs select 'asleep', id from ojs.push('t.a', '["SECRET"]', queue => 'vault', delay => '1 hour');
insert into jobs select 'pending', id from ojs.push('t.a', '["SECRET"]', queue => 'vault', pending => true);
select ojs.schedule('vault-clock', '0 0 1 1 *', '{"type": "t.a", "args": ["SECRET"], "queue": "vault"}') \g /dev/null
select ojs.set_pool('vault-pool', '{"queues": ["vault"]}') \g /dev/null
insert into jobs select 'flow',
    (ojs.create_workflow('{"type": "chain", "name": "SECRET",
        "steps": [{"type": "t.a", "args": ["SECRET"], "queue": "vault"}]}') ->> 'id')::uuid;
grant select on jobs to insider, outsider;

-- All that the database has of the queue.
create function pg_temp.vault() returns text language sql as $$
    select md5(concat((select string_agg(x::text, '' order by x::text) from ojs_store.ready x where queue = q),
        (select string_agg(x::text, '' order by x::text) from ojs_store.lease x where queue = q),
        (select string_agg(x::text, '' order by x::text) from ojs_store.delayed x where queue = q),
        (select string_agg(x::text, '' order by x::text) from ojs_store.finished x where queue = q),
        (select string_agg(x::text, '' order by x::text) from ojs_store.job x where queue = q),
        (select string_agg(x::text, '' order by x::text) from ojs_store.queue x where id = q),
        (select string_agg(x::text, '' order by x::text) from ojs_store.deduplication x where queue = q),
        (select string_agg(x::text, '' order by x::text) from ojs_store.checkpoint x),
        (select string_agg(x::text, '' order by x::text) from ojs_store.cron x),
        (select string_agg(x::text, '' order by x::text) from ojs_store.workflow x),
        (select string_agg(x::text, '' order by x::text) from ojs_store.rate_limit x),
        (select string_agg(x::text, '' order by x::text) from ojs_store.pool x), null))
    from ojs_store.queue_id('vault') q
$$;

-- What a role makes of a call: SECRET if the answer or the error shows one,
-- CHANGED if the queue is not as it was. Undone.
create function pg_temp.attempt(role name, call text) returns text language plpgsql as $$
declare
    before text := pg_temp.vault(); answer text; message text; detail text; hint text;
begin
    for answer, detail in select name, id::text from jobs loop
        call := replace(call, '{' || answer || '}', detail);
    end loop;
    call := replace(call, '{lease}', (select lease from jobs where name = 'held'));
    begin
        begin
            execute format('set local role %I', role);
            execute format('select string_agg(r::text, '' '') from (select %s) r', call) into answer;
            answer := coalesce('answers ' || case when answer ~ 'SECRET' then 'SECRET' end, 'answers');
        exception when others then
            get stacked diagnostics message = message_text, detail = pg_exception_detail, hint = pg_exception_hint;
            answer := sqlstate || case when concat(message, detail, hint) ~ 'SECRET' then ' SECRET' else '' end;
        end;
        reset role;
        raise exception using errcode = 'ZZ000', message = answer || case when pg_temp.vault() <> before
        then ' CHANGED' else '' end;
    exception when sqlstate 'ZZ000' then
        return sqlerrm;
    end;
end $$;

-- FUNCTIONS ---------------------------------------------------------------------------------------------------------

-- What each function does to the queue if its caller may: shows a SECRET or changes something. Null: it is of no queue.
create temp table calls (name text, call text);
insert into calls values
    ('push', $$ojs.push('t.a', queue => 'vault')$$),
        ('push', $$ojs.push('t.a', queue => 'vault', deduplication_key => 'SECRET-key')$$),
    ('push_job', $$ojs.push_job('{"type": "t.a", "args": [], "queue": "vault"}')$$),
        ('push_many', $$ojs.push_many('[{"type": "t.a", "args": [], "queue": "vault"}]')$$),
    ('cancel', $$ojs.cancel('{free}')$$), ('cancel', $$ojs.cancel('{held}')$$),
        ('activate', $$ojs.activate('{pending}')$$),
    ('wait_result', $$ojs.wait_result('{ended}', '0')$$), ('results', $$ojs.results('{ {ended} }')$$),
        ('info', $$ojs.info('{free}')$$),
    ('create_workflow',
        $$ojs.create_workflow('{"type": "chain", "steps": [{"type": "t.a", "args": [], "queue": "vault"}]}')$$),
    ('extend_workflow', $$ojs.extend_workflow('{flow}', '{"steps": [{"type": "t.a", "args": []}]}')$$),
    ('workflow', $$ojs.workflow('{flow}')$$), ('cancel_workflow', $$ojs.cancel_workflow('{flow}')$$),
    ('claim', $$ojs.claim('vault', 'w')$$), ('claim', $$ojs.claim('{vault}'::text[], 'w')$$),
        ('ack', $$ojs.ack('{held}')$$), ('ack', $$ojs.ack('{held}', null, '{lease}', 'vault-worker')$$),
    ('ack_many', $$ojs.ack_many('vault-worker', '{ {held} }')$$),
        ('ack_and_claim', $$ojs.ack_and_claim('vault-worker', 'vault', '{ {held} }')$$),
    ('fail', $$ojs.fail('{held}', '{"type": "e", "message": "m"}')$$), ('nack', $$ojs.nack('{held}')$$),
        ('nack_many', $$ojs.nack_many('vault-worker', '{ {held} }')$$),
    ('extend', $$ojs.extend('{held}', '1 hour')$$),
        ('extend_many', $$ojs.extend_many('vault-worker', '{ {held} }', '1 hour')$$),
    ('beat', $$ojs.beat('vault-worker', '{ {held} }')$$), ('progress', $$ojs.progress('{held}', 0.9)$$),
        ('checkpoint', $$ojs.checkpoint('{held}', '1')$$),
    ('get_checkpoint', $$ojs.get_checkpoint('{held}')$$), ('delete_checkpoint', $$ojs.delete_checkpoint('{held}')$$),
    ('work_open', $$w.* from ojs.work_open('vault', 'w') o, lateral ojs.work_next() w$$), ('work_next', null),
        ('work_close', null), ('once', null),
    ('lease_claim', $$ojs.lease_claim('vault', '{"node": "w"}')$$),
    ('lease_ack', $$ojs.lease_ack('vault',
        jsonb_build_object('node', 'vault-worker', 'seqs',
        array[(select seq from ojs_store.job where id = '{held}')]))$$),
    ('lease_nack', $$ojs.lease_nack('vault', '{"node": "vault-worker", "seqs": [1]}')$$),
        ('lease_extend', $$ojs.lease_extend('vault', '{"node": "vault-worker", "seqs": [1], "lease_ms": 1000}')$$),
    ('register_worker', null), ('deregister_worker', $$ojs.deregister_worker('vault-worker', true)$$),
        ('set_worker_state', null),
    ('queue_info', $$(ojs.queue_info('vault') #>> '{name}') || 'SECRET'$$),
        ('queue_stats', $$queue || 'SECRET' from ojs.queue_stats('vault')$$),
    ('queue_stats', $$'SECRET' from ojs.queue_stats() where queue = 'vault'$$),
        ('explain_job', $$ojs.explain_job('{failed}')$$),
    ('dead_letter_stats', $$ojs.dead_letter_stats()$$), ('dead_letter_stats', $$ojs.dead_letter_stats('vault')$$),
        ('list_jobs', $$ojs.list_jobs()$$), ('list_jobs', $$ojs.list_jobs('vault', 'available')$$),
    ('events', $$ojs.events()$$), ('health', null), ('ready', null), ('tick', null),
        ('metrics', $$replace(ojs.metrics(), 'queue="vault"', 'SECRET')$$), ('start_worker', null),
        ('index_events', null), ('notify_events', null),
    ('retry', $$ojs.retry('{failed}')$$), ('discard', $$ojs.discard('{free}')$$),
        ('set_priority', $$ojs.set_priority('{free}', 5)$$), ('delete_job', $$ojs.delete_job('{ended}')$$),
    ('cancel_many', $$ojs.cancel_many('{"ids": ["{free}"]}', true)$$),
        ('cancel_many', $$ojs.cancel_many('{"queue": "vault"}', true)$$),
        ('cancel_many', $$ojs.cancel_many('{"type": "t.a"}', true)$$),
    ('retry_many', $$ojs.retry_many('{"ids": ["{failed}"]}', true)$$),
        ('retry_many', $$ojs.retry_many('{"type": "t.a"}', true)$$),
        ('delete_many', $$ojs.delete_many('{"type": "t.a"}', true)$$),
    ('create_queue', $$ojs.create_queue('vault', '{"max_size": 5}')$$),
        ('configure_queue', $$ojs.configure_queue('vault', '{"readers": ["*"]}')$$),
        ('pause_queue', $$ojs.pause_queue('vault')$$),
    ('resume_queue', $$ojs.resume_queue('vault')$$), ('drain_queue', $$ojs.drain_queue('vault')$$),
        ('purge_queue', $$ojs.purge_queue('vault', confirm => true)$$),
    ('drop_queue', $$ojs.drop_queue('vault', 'discard')$$),
        ('free_deduplication_key', $$ojs.free_deduplication_key('vault', 'SECRET-key')$$),
    ('skip_ordering_key', $$ojs.skip_ordering_key('vault', 'line')$$), ('waiting', $$'SECRET' from ojs.waiting() where
        queue = 'vault'$$), ('key_held', null), ('held_slots', null), ('key_slot', null), ('node_of', null),
    ('create_schema', null), ('drop_schema', null), ('set_schema_validation', null), ('set_maintenance', null),
        ('register_hook', null), ('unregister_hook', null),
        ('set_rate_limit', $$ojs.set_rate_limit('queue:vault', '{"concurrency": 1}')$$),
    ('claim_pool', $$ojs.claim_pool('vault-pool', 'w')$$), ('drop_pool', $$ojs.drop_pool('vault-pool')$$),
        ('set_pool', $$ojs.set_pool('vault-pool', '{"queues": ["other"]}')$$),
        ('set_pool', $$ojs.set_pool('other', '{"queues": ["vault"]}')$$),
        ('scheduling_stats', $$'SECRET' from ojs.scheduling_stats() where queue = 'vault'$$),
    ('schedule', $$ojs.schedule('vault-clock', '@daily', null)$$),
        ('schedule', $$ojs.schedule('other', '@daily', '{"type": "t.a", "queue": "vault"}')$$),
        ('unschedule', $$ojs.unschedule('vault-clock')$$),
    ('reset', null), ('http', $$body from ojs.http('GET', '/ojs/v1/jobs/{free}')$$), ('version', null),
        ('manifest', null), ('capabilities', null), ('envelope', null), ('canonical_json', null),
    ('fingerprint', null), ('fingerprint_input', null);
select is((select string_agg(distinct proname, ' ') from pg_proc where pronamespace = 'ojs'::regnamespace
    and proname not in (select name from calls)), null, 'SEC-01: each function stands in the matrix');
-- Some only show that the queue is as it was.
create temp table idle as select unnest('{resume_queue,lease_ack,lease_nack,lease_extend,events,beat}'::text[]) as name;
select is(pg_temp.attempt('outsider', call) ~ 'SECRET|CHANGED', false,
    format('SEC-01: %s of another''s queue: %s', name, call)) from calls where call is not null;
select ok(pg_temp.attempt('insider', call) ~ 'SECRET|CHANGED', format('SEC-01: and of one''s own: %s', call))
    from calls where call is not null and name not in (select name from idle);

-- VIEWS -------------------------------------------------------------------------------------------------------------

create temp table views (name text, shown text);
insert into views values ('jobs', $$v from ojs.jobs v$$), ('dead_letters', $$v from ojs.dead_letters v$$),
    ('leases', $$'SECRET' from ojs.leases$$), ('lease_log', $$'SECRET' from ojs.lease_log$$),
    ('queues', $$'SECRET' from ojs.queues where name = 'vault'$$),
        ('workers', $$'SECRET' from ojs.workers where active_jobs > 0$$), ('events', $$v from ojs.events v$$),
        ('crons', $$v from ojs.crons v$$),
    ('workflows', $$v from ojs.workflows v$$), ('deduplication_keys', $$v from ojs.deduplication_keys v$$),
        ('hooks', null), ('rate_limits', null), ('schemas', null), ('audit', null),
    ('pools', $$'SECRET' from ojs.pools where name = 'vault-pool'$$);
select is((select string_agg(relname, ' ') from pg_class where relnamespace = 'ojs'::regnamespace and relkind = 'v'
    and relname not in (select name from views)), null, 'SEC-01: each view stands in the matrix');
select is(pg_temp.attempt('outsider', shown), 'answers', 'SEC-01: nothing of another''s queue in ojs.' || name)
    from views where shown is not null;
select is(pg_temp.attempt('insider', shown), 'answers SECRET', 'SEC-01: what is one''s own in ojs.' || name)
    from views where shown is not null;
-- A function of the caller in a condition sees no row that the view hides.
create function pg_temp.peek(value text) returns boolean language plpgsql cost 0.0001 as
    $$ begin if value ~ 'SECRET|vault|t\.a' then raise exception 'SECRET'; end if; return true; end $$;
select is(pg_temp.attempt('outsider', call), 'answers', 'SEC-01: not by a condition either: ' || call)
    from (values ($$1 from ojs.jobs where pg_temp.peek(type)$$), ($$1 from ojs.dead_letters where pg_temp.peek(type)$$),
    ($$1 from ojs.queues where pg_temp.peek(name) and name = 'vault'$$),
        ($$1 from ojs.crons where pg_temp.peek(job::text)$$),
        ($$1 from ojs.deduplication_keys where pg_temp.peek(key)$$),
        ($$1 from ojs.workflows where pg_temp.peek(name)$$)) c (call);

-- ROUTES ------------------------------------------------------------------------------------------------------------

-- Every route, with the names and ids of the queue in its path, by a request with all that routes ask for,
-- and one with nothing.
create temp table tried as
select format('%s %s', method, pattern) as route, id,
    format($$status || coalesce(body, '') from ojs.http(%L, %L, '{"Content-Type": "application/json"}', %L)$$, method,
    replace(regexp_replace(regexp_replace(pattern, ':(id|job_id)\M', '{' || id || '}', 'g'), ':[a-z_]+',
        case when pattern ~ 'cron' then 'vault-clock' when pattern ~ 'worker' then 'vault-worker'
        when pattern ~ 'rate-limit' then 'queue:vault' else 'vault' end, 'g'), '*', '')
        || case when method = 'GET' then '?queue=vault&queues=vault' else '' end, body) as call
from ojs_http.routes() r (method, pattern),
    (values ('free'), ('held'), ('failed'), ('flow')) j (id),
    (values (null), ('{"queue": "vault", "queues": ["vault"], "worker_id": "vault-worker",
        "job_id": "{held}", "type": "t.a", "args": [], "options": {"queue": "vault"}, "confirm": true}'),
        ('{"confirm": true}'), ('{"state": 1}'), ('{"job_id": "{held}"}'),
        ('{"queues": ["vault"], "worker_id": "w"}'),
        ('{"jobs": [{"type": "t.a", "args": [], "options": {"queue": "vault"}}]}')) b (body)
where (method <> 'GET' or body is null) and (pattern ~ ':(id|job_id)' or id = 'free')
    and pattern !~ 'reset|events/stream|maintenance';
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

select * from finish();
rollback;
