-- api.sql: what holds for the whole surface, whatever functions there are. What there is: test/regress/api.sql.
-- Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();

create function pg_temp.called(oid) returns text language sql as $$ select $1::regprocedure::text $$;

-- Functions that may do without a pinned search_path: C functions of the hot path, which resolve no name; the clause
-- would cost more than their look-ups. A new one belongs here only after a look at its code.
create temp table resolves_no_name (name text);
insert into resolves_no_name values
    ('push'), ('push_job'), ('push_many'), ('claim'), ('claim_pool'), ('ack'), ('ack_many'), ('ack_and_claim'),
    ('fail'), ('nack'), ('nack_many'), ('extend'), ('extend_many'), ('beat'), ('progress'), ('checkpoint'),
    ('get_checkpoint'), ('cancel'), ('activate'), ('info'), ('create_workflow'), ('workflow'), ('cancel_workflow'),
    ('extend_workflow'), ('tick'), ('version'),
    ('canonical_json'), ('fingerprint'), ('fingerprint_input'), ('storable'), ('envelope'), ('health'),
    ('metrics'), ('ready'),
        ('start_worker'),
    ('retry'), ('set_priority'), ('discard'), ('delete_job'), ('work_open'), ('work_next'), ('work_close'),
        ('register_hook');

-- FUNCTIONS --------------------------------------------------------------------------------------------------------

create temp view functions as
select p.*, l.lanname from pg_proc p join pg_language l on l.oid = p.prolang
where p.pronamespace in ('ojs'::regnamespace, 'ojs_store'::regnamespace, 'ojs_http'::regnamespace);

select cmp_ok((select count(*)::int from functions where pronamespace = 'ojs'::regnamespace), '>', 15,
    'PGX-02: the extension has its functions');

select is_empty($$
    select pg_temp.called(oid) from functions
    where pronamespace = 'ojs'::regnamespace and coalesce(obj_description(oid, 'pg_proc'), '') = ''
$$, 'PGX-02: every public function has a comment');

select is_empty($$
    select pg_temp.called(f.oid) from functions f, aclexplode(coalesce(f.proacl, acldefault('f', f.proowner))) a
    where a.grantee = 0
$$, 'PGX-12: PUBLIC may call no function');

select is_empty($$
    select pg_temp.called(f.oid), a.grantee::regrole from functions f, aclexplode(f.proacl) a
    where a.grantee <> f.proowner and (a.is_grantable or a.grantee::regrole::text not in (
        'ojs_producer', 'ojs_worker', 'ojs_observer', 'ojs_admin'))
$$, 'PGX-12: functions are granted to the four roles only, and they cannot hand them on');

select is_empty($$
    select pg_temp.called(oid) from functions
    where pronamespace = 'ojs'::regnamespace and not has_function_privilege('ojs_admin', oid, 'execute')
        and proname not in ('claim_webhooks', 'finish_webhooks') -- a sender's, which see all queues
$$, 'PGX-12: the administrator may call every public function');

select is_empty($$
    select pg_temp.called(oid) from functions
    where (lanname <> 'c' or proname not in (select name from resolves_no_name) and pronamespace = 'ojs'::regnamespace)
    and coalesce(array_to_string(proconfig, ','), '') !~ 'search_path='
    and (lanname <> 'sql' or prosqlbody is null)
$$, 'PGX-11: every function pins search_path, except C functions that resolve no name');

select is_empty($$
    select pg_temp.called(oid) from functions
    where array_to_string(proconfig, ',') ~ 'search_path='
        and array_to_string(proconfig, ',') !~ 'search_path=pg_catalog\M'
$$, 'PGX-11: a pinned search_path begins with pg_catalog');

select is_empty($$
    select pg_temp.called(oid) from functions where prosecdef and lanname <> 'c'
    and coalesce(array_to_string(proconfig, ','), '') !~ 'search_path=.*pg_temp$'
$$, 'PGX-11: a function with its owner''s rights looks into pg_temp last');

select is_empty($$
    select pg_temp.called(oid) from functions where provolatile = 'v' and proparallel = 's'
$$, 'PGX-05: no volatile function claims to be parallel safe');

-- RELATIONS --------------------------------------------------------------------------------------------------------

select is_empty($$
    select c.oid::regclass from pg_class c
    where c.relnamespace in ('ojs'::regnamespace, 'ojs_http'::regnamespace) and c.relkind not in ('v', 'c')
$$, 'PGX-12: schemas ojs and ojs_http have no table of their own');

select is_empty($$
    select c.oid::regclass from pg_class c
    where c.relnamespace = 'ojs'::regnamespace
    and coalesce(obj_description(case when relkind = 'c' then reltype else oid end,
        case when relkind = 'c' then 'pg_type' else 'pg_class' end), '') = ''
$$, 'PGX-02: every view and type has a comment');

select is_empty($$
    select c.oid::regclass, a.privilege_type from pg_class c, aclexplode(c.relacl) a
    where c.relnamespace in ('ojs'::regnamespace, 'ojs_store'::regnamespace) and a.grantee = 0
$$, 'PGX-12: PUBLIC may read and write no relation');

select is_empty($$
    select c.oid::regclass, a.grantee::regrole, a.privilege_type from pg_class c, aclexplode(c.relacl) a
    where c.relnamespace in ('ojs'::regnamespace, 'ojs_store'::regnamespace) and a.grantee <> c.relowner
    and (c.relkind <> 'v' or a.privilege_type <> 'SELECT' or c.relnamespace = 'ojs_store'::regnamespace)
$$, 'PGX-12: roles may read views, and nothing else');

select is_empty($$
    select rolname, privilege from pg_roles, unnest(array['usage', 'create']) privilege
    where rolname in ('ojs_producer', 'ojs_worker', 'ojs_observer', 'ojs_admin')
    and has_schema_privilege(rolname, 'ojs_store', privilege)
$$, 'PGX-12: no role gets into the private schema');

select is_empty($$
    select rolname from pg_roles
    where rolname in ('ojs_producer', 'ojs_worker', 'ojs_observer', 'ojs_admin')
    and (not has_schema_privilege(rolname, 'ojs', 'usage') or has_schema_privilege(rolname, 'ojs', 'create')
        or rolsuper or rolcanlogin or rolcreaterole or rolcreatedb or rolbypassrls)
$$, 'PGX-12: the roles may use schema ojs, create nothing in it, and have no other rights');

select is_empty($$
    select n.nspname, a.privilege_type from pg_namespace n, aclexplode(n.nspacl) a
    where n.nspname in ('ojs', 'ojs_store', 'ojs_http') and a.grantee = 0
$$, 'PGX-12: PUBLIC has no right on the schemas');

select is_empty($$
    select c.oid::regclass from pg_class c
    where c.relnamespace = 'ojs_store'::regnamespace and c.relkind in ('r', 'S') and c.relpersistence = 'p'
    and c.relname <> 'retention_cursor' -- is about blocks of this database's tables
    and c.oid <> all (select unnest(extconfig) from pg_extension where extname = 'ojs')
$$, 'PGX-13: pg_dump carries every logged table and sequence');

-- COMING AND GOING -------------------------------------------------------------------------------------------------

select is_empty($$
    select pg_describe_object(classid, objid, 0) from (
        select 'pg_proc'::regclass as classid, oid as objid from pg_proc
        where pronamespace in ('ojs'::regnamespace, 'ojs_store'::regnamespace, 'ojs_http'::regnamespace)
        union all
        select 'pg_class', oid from pg_class
        where relnamespace in ('ojs'::regnamespace, 'ojs_store'::regnamespace) and relkind in ('r', 'v', 'S')
    ) o
    where not exists (
        select from pg_depend d
        where d.classid = o.classid and d.objid = o.objid and d.refclassid = 'pg_extension'::regclass
            and d.deptype = 'e')
$$, 'PGX-02: every object belongs to the extension');

-- The page of a job's columns.
\set page `cat ../../docs/reference/job.md`
create temp table documented as
select row[1] as name, row[2]::regtype as type, n, row[3] like '`ojs.claimed_job` only%' as claimed
from regexp_matches(:'page', '^\| `(\w+)` \| ([\w\[\]]+) \| (.*) \|$', 'gn') with ordinality as found (row, n);
create function pg_temp.columns(relation regclass) returns setof record language sql as $$
    select attname::text, atttypid::regtype from pg_attribute where attrelid = relation and attnum > 0 order by attnum
$$;
select results_eq('select name, type from documented order by n',
    $$ select * from pg_temp.columns('ojs.claimed_job') as c (name text, type regtype) $$,
    'docs/reference/job.md has the columns of ojs.claimed_job');
select results_eq('select name, type from documented where not claimed order by n',
    $$ select * from pg_temp.columns('ojs.job') as c (name text, type regtype) $$,
        'and says which of them ojs.job has');
select results_eq('select name, type from documented where not claimed order by n',
    $$ select * from pg_temp.columns('ojs.jobs') as c (name text, type regtype) $$, 'and the view ojs.jobs');

select lives_ok($$ select ojs.push('api.test', queue => 'api') $$, 'PGX-02: it can be used');
select lives_ok($$ drop extension ojs cascade $$, 'PGX-02: it can be dropped after use');
select hasnt_schema('ojs', 'PGX-02: schema ojs goes with it');
select hasnt_schema('ojs_store', 'PGX-02: schema ojs_store goes with it');
select hasnt_schema('ojs_http', 'PGX-02: schema ojs_http goes with it');
select lives_ok($$ create extension ojs $$, 'PGX-02: it can be created again');
select is((select count(*)::int from ojs.jobs), 0, 'PGX-02: and is empty then');
select lives_ok($$ select ojs.push('api.test', queue => 'api') $$, 'PGX-02: and can be used again');

select * from finish();
rollback;
