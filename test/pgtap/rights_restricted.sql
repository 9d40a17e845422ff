-- rights_restricted.sql: what a call may do and show does not depend on where it stands. PostgreSQL evaluates
-- expressions of indexes, materialized views and hooks of other roles as another user, in a security-restricted
-- operation; none of that may do more than the plain call: SEC-01, MW-01.
-- Runs once: nothing here asks whether ojs was preloaded.
-- The calls are made of the catalog: every SECURITY DEFINER function is called, a new one too.
begin;
select no_plan();
\ir helpers.psql

create role insider in role ojs_producer, ojs_worker, ojs_observer, ojs_admin;
create role outsider in role ojs_producer, ojs_worker, ojs_observer, ojs_admin;
create role rr_producer in role ojs_producer;
create role rr_worker in role ojs_worker;
create role rr_observer in role ojs_observer;
create role rr_admin in role ojs_admin;
select ojs.create_queue('vault',
    '{"producers": ["insider"], "workers": ["insider"], "readers": ["insider"],
        "cancellers": ["insider"], "administrators": ["insider"]}') \g /dev/null
\ir matrix.psql
select ojs.schedule('vault-clock', '0 0 1 1 *', '{"type": "t.a", "args": ["SECRET"], "queue": "vault"}') \g /dev/null
select ojs.set_pool('vault-pool', '{"queues": ["vault"]}') \g /dev/null
-- Of the workflow and of the entry, events are left alone.
select ojs.schedule('vault-secret', '@daily', '{"type": "t.a", "args": ["SECRET"], "queue": "vault"}'),
    ojs_store.cron_event(c, 'cron.triggered', '{}') from ojs_store.cron c where c.name = 'vault-clock' \g /dev/null

-- THE CALLS ---------------------------------------------------------------------------------------------------------

-- Those of the matrix, and every definer function with values of its parameters' types that name what is in the queue.
create temp table tries as
select p.proname as name, c.call from calls c join pg_proc p on p.proname = c.name
where p.prosecdef and p.pronamespace = 'ojs'::regnamespace and c.call is not null
union
select p.proname, format('%I.%I(%s)', n.nspname, p.proname, (
    select coalesce(string_agg(case t.type
            when 'text'::regtype then case when p.proname ~ 'cron|schedule$' then '''vault-clock'''
                when p.proname ~ 'pool' then '''vault-pool''' when p.proname ~ 'worker' then '''vault-worker'''
                else '''vault''' end
            when 'name'::regtype then '''outsider'''
            when 'uuid'::regtype then format('''{%s}''', j.id)
            when 'jsonb'::regtype then case when p.proname ~ 'webhook'
                then '''{"url": "https://example.com/", "events": ["job.*"]}''' else
                '''{"queue": "vault", "type": "t.a", "args": [], "keys": ["args"], "rate_limit": {"rate": {"limit": 5,
                    "period": "PT1M"}}}''' end
            when 'text[]'::regtype then '''{vault}''' when 'interval'::regtype then '''1 hour'''
            when 'timestamptz'::regtype then '''2020-01-01''' when 'boolean'::regtype then 'true'
            when 'integer'::regtype then '1' else 'null' end || '::' || t.type::regtype, ', ' order by t.n), '')
    from unnest(p.proargtypes) with ordinality t (type, n) ))
from pg_proc p join pg_namespace n on n.oid = p.pronamespace,
    (values ('free'), ('held'), ('failed'), ('flow'), ('hook')) j (id)
where p.prosecdef and n.nspname in ('ojs', 'ojs_http')
    and (j.id = 'free' or 'uuid'::regtype = any (p.proargtypes::oid[]));
insert into tries select name, replace(replace(shown, 'ojs.leases', 'ojs.leases where queue = ''vault'''),
    'active_jobs > 0', 'worker = ''vault-worker''') from views where shown is not null;
select is((select string_agg(p.oid::regprocedure::text, ' ') from pg_proc p
    where p.prosecdef and p.pronamespace in ('ojs'::regnamespace, 'ojs_http'::regnamespace)
    and p.proname not in (select name from tries)), null, 'SEC-01: each definer function is called');

-- PLACES ------------------------------------------------------------------------------------------------------------

create schema rr;
grant all on schema rr to public;
create table rr.outcome (outcome text);
grant all on rr.outcome to public;
-- Makes the call that the setting names, and keeps what came of it.
create function rr.trial(int) returns int language plpgsql as $$
declare
    answer text; message text; detail text; hint text;
begin
    begin
        execute format('select string_agg(r::text, '' '') from (select %s) r', current_setting('rr.call')) into answer;
        answer := case when answer ~ 'SECRET' then 'answers SECRET' else 'answers' end;
    exception when others then
        get stacked diagnostics message = message_text, detail = pg_exception_detail, hint = pg_exception_hint;
        answer := sqlstate || case when concat(message, detail, hint) ~ 'SECRET' then ' SECRET' else '' end;
    end;
    insert into rr.outcome values (answer);
    return 1;
end $$;
create function rr.indexed(a int) returns int language plpgsql immutable as
    $$ begin return rr.trial(a); end $$;
create function rr.fired() returns trigger language plpgsql as $$ begin perform rr.trial(1); return null; end $$;
create function rr.hook(job jsonb) returns jsonb language plpgsql as
    $$ begin
        if current_setting('rr.inside', true) is distinct from 'yes' then -- a call may push, too
            perform set_config('rr.inside', 'yes', true), rr.trial(1);
        end if;
        return job;
    end $$;
create view rr.view with (security_barrier) as select rr.trial(1);
create table rr.policed (a int);
insert into rr.policed values (1);
alter table rr.policed enable row level security;
create policy p on rr.policed using (rr.trial(a) = 1);
create table rr.late (a int);
create constraint trigger late after insert on rr.late deferrable initially deferred
    for each row execute function rr.fired();
grant all on rr.view, rr.policed, rr.late to public;

-- A hook of a role, whether or not it may register one.
create function pg_temp.hooked(point text) returns void language sql as $$
    insert into ojs_store.hook (name, point, position, function_schema, function_name, role, registered_at,
        function_owner)
        values ('rr', point, 1, 'rr', 'hook', current_setting('rr.role'), now(), session_user);
    select ojs_store.changed('ojs_store.hook');
$$;

-- Each place, as the role whose code stands in it; `as` is who has it run.
create temp table places (place text, runs_as text, statement text);
insert into places values
    ('an index', 'owner', 'create temp table t1 as select 1 a; create index on t1 (rr.indexed(a))'),
    ('an index that a superuser makes anew', 'superuser',
        'create table rr.t1 as select 1 a; create index t1_a on rr.t1 (rr.indexed(a)); reset role; truncate rr.outcome;
            reindex table rr.t1'),
    ('a materialized view', 'owner', 'create materialized view rr.m as select rr.trial(1)'),
    ('a view', 'owner', 'select * from rr.view'),
    ('a row security policy', 'owner', 'select * from rr.policed'),
    ('a deferred trigger', 'owner', 'insert into rr.late values (1); set constraints all immediate'),
    ('an enqueue hook', 'insider', 'reset role; select pg_temp.hooked(''enqueue''); set local role insider;
        select ojs.push(''t'', queue => ''open'')'),
    ('an execution hook', 'insider', 'reset role; select ojs.push(''t'', queue => ''open'');
        select pg_temp.hooked(''before_execute''); set local role insider; select ojs.claim(''open'', ''w'')');

-- Where a row says whose it is.
create function pg_temp.owned() returns bigint language sql as $$
    select (select count(*) from ojs_store.audit where role = session_user)
        + (select count(*) from ojs_store.webhook where role = session_user)
        + (select count(*) from ojs_store.worker where registered_by = session_user)
$$;

-- What comes of a call in a place; plainly, without one. Undone.
create function pg_temp.attempt_in(role name, call text, statement text) returns text language plpgsql as $$
declare
    before text := pg_temp.vault(); owned bigint := pg_temp.owned(); answer text; id text;
begin
    for answer, id in select j.name, j.id::text from jobs j loop
        call := replace(call, '{' || answer || '}', id);
    end loop;
    call := replace(call, '{lease}', (select lease from jobs where name = 'held'));
    perform set_config('rr.call', call, true), set_config('rr.role', role, true);
    begin
        begin
            execute format('set local role %I', role);
            execute coalesce(statement, 'select rr.trial(1)');
            reset role;
            answer := (select string_agg(o.outcome, ', ') from rr.outcome o);
        exception when others then
            answer := 'refused ' || sqlerrm;
        end;
        reset role;
        raise exception using errcode = 'ZZ000', message = concat_ws(' ', coalesce(answer, 'not called'),
            case when pg_temp.vault() <> before then 'CHANGED' end,
            case when pg_temp.owned() <> owned then 'FORGED' end);
    exception when sqlstate 'ZZ000' then
        return sqlerrm;
    end;
end $$;
set local client_min_messages = error;

create temp table roles as select unnest('{outsider,rr_producer,rr_worker,rr_observer,rr_admin}'::text[]) as role;
create temp table plainly as
select r.role, t.name, t.call, pg_temp.attempt_in(r.role, t.call, null) as outcome from roles r, tries t;
-- Of what is refused plainly, and of who has one duty only, one call of a function is enough.
create temp table outcomes as
select p.role, p.name, p.call, l.place, p.outcome as plain, pg_temp.attempt_in(p.role, p.call, l.statement) as outcome
from (
    select * from plainly where role = 'outsider' and outcome <> '42501'
    union
    select distinct on (role, name) * from plainly where role = 'outsider' or outcome <> '42501'
    order by role, name, call
) p, places l;

select is((select string_agg(distinct outcome, '; ') from plainly where outcome ~ 'FORGED'), null,
    'SEC-01: a plain call names who made it');
select is((select string_agg(format('%s as %s: %s', call, role, outcome), e'\n' order by call)
    from (select distinct on (name, place) * from outcomes
        where outcome ~ 'SECRET' and plain !~ 'SECRET' or outcome ~ 'CHANGED' and plain !~ 'CHANGED') o
    where o.place = l.place), null, format('SEC-01: %s sees and changes no more than the plain call', place))
from places l;
select is((select string_agg(format('%s as %s: %s', call, role, outcome), e'\n' order by call)
    from (select distinct on (name, place) * from outcomes where outcome ~ 'FORGED') o
    where o.place = l.place), null, format('PGX-12: what %s does is nobody else''s act', place))
from places l;
-- That all of this has been called, and that what is not restricted goes on as it did.
select is((select count(*) from outcomes where place = l.place and outcome ~ 'not called|refused'), 0::bigint,
    format('SEC-01: %s makes the calls', place)) from places l;
select is((select string_agg(format('%s as %s: %s', call, role, outcome), e'\n') from outcomes
    where place in ('a view', 'a row security policy', 'a deferred trigger')
    and plain not in ('SECRET') and outcome <> plain), null,
    'SEC-01: views, policies and triggers answer as the plain call');
select is(pg_temp.attempt_in('insider', call, null), 'answers SECRET', 'SEC-01: who may, sees ' || call)
from (values ($$ojs.list_jobs('vault')$$), ($$v from ojs.events v where type ~ 'workflow'$$)) c (call);
select is(pg_temp.attempt_in('insider', call, statement), 'answers SECRET',
    format('SEC-01: in %s too: %s', place, call))
from places, (values ($$v from ojs.jobs v$$), ($$v from ojs.workflows v$$), ($$'SECRET' from ojs.crons$$)) c (call)
where place in ('a materialized view', 'an index');

-- What a hook is for goes on: to push, and to write elsewhere.
select is(pg_temp.attempt_in('outsider', $$ojs.push('t', queue => 'other')$$, statement), 'answers',
    'MW-01: a hook pushes')
from places where place = 'an execution hook';
select is(pg_temp.attempt_in('outsider', $$ojs.pause_queue('vault')$$, statement), '42501',
    'SEC-01: but administers nothing') from places where place = 'an execution hook';

-- Nor leaves it anything for who has the session next: its role was taken on, as in a pool.
create function rr.leaves(statement text) returns text language plpgsql as
    $$ begin execute statement; return 'SECRET'; end $$;
select is(pg_temp.attempt_in('insider', format('rr.leaves(%L)', left_behind), statement), '42501',
    format('SEC-01: %s of the role taken on leaves nothing behind: %s', place, left_behind))
from places, (values ('prepare later as select 1'), ('create temp table later (a int)'), ('listen ojs'),
    ('set role outsider')) v (left_behind)
where place = 'an enqueue hook';

set local role insider;
create temp table kept as select r.id from ojs.push_many('[{"type": "t", "args": [1]}]', idempotency_key => 'k') r;
reset role;
grant select on kept to public;
select is(pg_temp.attempt_in(role, $$case when r.id = (select id from kept) then 'SECRET' end
    from ojs.push_many('[{"type": "t", "args": [1]}]', idempotency_key => 'k') r$$, statement), answer,
    format('SEC-01: %s of %s has the answers kept for its own role', place, role))
from places, (values ('outsider', 'answers'), ('insider', 'answers SECRET')) r (role, answer)
where place = 'an execution hook';

select * from finish();
rollback;
