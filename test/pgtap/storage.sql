-- storage.sql: the tables as PostgreSQL sees them: replica identity (a publication must not stop anything), and what
-- may not be done to them because direct access passes it by.
begin;
select no_plan();
\ir helpers.psql

create function pg_temp.refusal_message(statement text) returns text language plpgsql as $$
begin
    execute statement;
    return 'accepted';
exception when others then
    return sqlerrm;
end $$;

-- Without one, whoever publishes all tables stops every update and delete.
create function pg_temp.identity_of(one regclass) returns text language sql as $$
    select case c.relreplident
        when 'f' then 'full'
        when 'i' then coalesce((select 'index' from pg_index i
            where i.indrelid = one and i.indisreplident and i.indisunique and i.indisvalid and i.indimmediate
                and i.indpred is null
                and not exists (select from pg_attribute a
                    where a.attrelid = one and a.attnum = any (i.indkey) and not a.attnotnull)), 'nothing')
        when 'd' then coalesce((select 'primary key' from pg_index i where i.indrelid = one and i.indisprimary),
            'nothing')
        else 'nothing'
    end
    from pg_class c where c.oid = one
$$;
create temp view logged as
    select oid::regclass as name, pg_temp.identity_of(oid) as identity from pg_class
    where relnamespace = 'ojs_store'::regnamespace and relkind = 'r' and relpersistence = 'p';

select is_empty($$ select name from logged where identity = 'nothing' $$, 'every logged table has a replica identity');
select isnt_empty($$ select from logged where identity = 'index' $$, 'some by a unique index');
select set_eq($$ select name::text from logged where identity = 'full' $$,
    array(select 'ojs_store.'
        || unnest('{name_key,queue,queue_count,job_history,unique_key,event_notify_cursor,rate_limit,'
            'maintenance,hook_failure,job_parent,workflow_due,workflow_check}'::text[])),
    'the whole row only where no unique index holds all rows');

-- Rows are written past triggers, and foreign keys are made of them: not silently.
create function pg_temp.noted() returns trigger language plpgsql as $$ begin return new; end $$;
create trigger noted after insert on ojs_store.job for each row execute function pg_temp.noted();
select is(pg_temp.refusal_detail($$ select ojs.push('test.job') $$) #>> '{details,trigger}', 'noted',
    'a row trigger on job is refused when it would be passed by');
select is((select count(*) from ojs.jobs), 0::bigint, 'and nothing is written');
drop trigger noted on ojs_store.job;
select isnt(pg_temp.pushed(), null, 'without it a push works again');
create trigger noted after insert on ojs_store.job for each statement execute function pg_temp.noted();
select isnt(pg_temp.pushed(), null, 'a statement trigger is none of them');
drop trigger noted on ojs_store.job;
create table public.detail_of_job (job_id uuid references ojs_store.job (id) on delete cascade);
select is(pg_temp.refusal_detail($$ select ojs.push('test.job') $$) ->> 'code', 'UNAVAILABLE',
    'a foreign key to job is refused, too');
select isnt_empty($$ select from ojs.jobs $$, 'reading goes on');
drop table public.detail_of_job;
select isnt(pg_temp.pushed(), null, 'without it a push works again');

-- Columns are read and formed by their types.
savepoint before_alter;
alter table ojs_store.lease alter deliveries type bigint;
select matches(pg_temp.refusal_message($$ select count(*) from ojs.claim('default', 'w') $$),
    'does not fit the library', 'a column of another type is noticed');
rollback to before_alter;
alter table ojs_store.lease add more int;
select matches(pg_temp.refusal_message($$ select count(*) from ojs.claim('default', 'w') $$),
    'does not fit the library', 'a column more is noticed');
rollback to before_alter;
alter table ojs_store.hot_set_state set logged;
select matches(pg_temp.refusal_message($$ select count(*) from ojs.claim('default', 'w') $$),
    'hot_set_state is logged', 'what tells of a crash must be lost in it');
rollback to before_alter;
select is(count(*), 1::bigint, 'as it was, it works') from ojs.claim('default', 'w');

-- What a session remembers of queues goes with a change of ours, not with every new type in the database.
create function pg_temp.look_ups() returns bigint language sql as $$
    select pg_stat_get_xact_numscans('ojs_store.queue_name'::regclass) $$;
select pg_temp.pushed('remembered');
select pg_temp.pushed('remembered');
create temp table looked_up as select pg_temp.look_ups() as before;
create temp table another (a int);
select pg_temp.pushed('remembered');
select is(pg_temp.look_ups(), before, 'a temporary table has nothing looked up again') from looked_up;
select ojs_store.changed('ojs_store.queue');
select pg_temp.pushed('remembered');
select cmp_ok(pg_temp.look_ups(), '>', before, 'a change of a queue has') from looked_up;

-- An extension is a heap-only update where the server can: what summarizes the column must hear of it.
create index lease_deadline on ojs_store.lease using brin (deadline);
select pg_temp.pushed('summarized');
select count(*) as claimed from ojs.claim('summarized', 'w', lease => '1 h') \gset
select brin_summarize_new_values('ojs_store.lease_deadline') as summarized \gset
select ojs.extend(job_id, '20 h') is not null as extended
from ojs_store.lease l join ojs_store.queue q on q.id = l.queue where q.name = 'summarized' \gset
set local enable_seqscan = off;
select is((select count(*) from ojs_store.lease where deadline > ojs_store.now() + interval '19 h'), 1::bigint,
    'a BRIN index finds an extended lease');
reset enable_seqscan;

-- Claims mark index entries dead while a snapshot may still need them: no statement may be planned by such an index,
-- and no table be copied in its order, whoever writes the statement. Each is asked for what it could answer best.
create temp view hot_index as
    select c.relname::text as name, t.relname::text as of_table, i.indexrelid as id,
        pg_get_expr(i.indpred, i.indrelid) ~ ' % ' as out_of_plans,
        (select string_agg(quote_ident(a.attname), ', ' order by a.attnum) from pg_attribute a
            where a.attrelid = i.indexrelid) as columns,
        (select quote_ident(a.attname) from pg_attribute a where a.attrelid = i.indexrelid and a.attnum = 1) as first
    from pg_index i join pg_class c on c.oid = i.indexrelid join pg_class t on t.oid = i.indrelid
    where t.relnamespace = 'ojs_store'::regnamespace and t.relpersistence = 'u' and c.relname <> 'another';
create function pg_temp.plan_of(of_table text, first text, columns text) returns text language plpgsql as $$
declare
    line text; plan text := '';
begin
    for line in execute format('explain (costs off) select %1$s from ojs_store.%2$s where %3$s ='
            ' (select %3$s from ojs_store.%2$s limit 1) order by %1$s', columns, of_table, first) loop
        plan := plan || line || e'\n';
    end loop;
    return plan;
end $$;
select set_eq($$ select name from hot_index where out_of_plans $$,
    '{ready_order,lease_reap,delayed_due,limit_use_key,listener_flag_queue,ordering_line_order,ordering_line_job,'
        'ordering_due_key}'::text[], 'eight indexes of the hot set are out of plans');
select set_config('enable_' || what, 'off', true) from unnest('{sort,seqscan}'::text[]) what \g /dev/null
select doesnt_match(pg_temp.plan_of(of_table, first, columns), name, format('no statement is planned by %s', name))
    from hot_index where out_of_plans;
create index another on ojs_store.ready (queue, npriority, position);
select matches(pg_temp.plan_of('ready', 'queue', 'queue, npriority, position'), 'another',
    'an index without such a predicate would be used');
drop index ojs_store.another;
select set_config('enable_' || what, 'on', true) from unnest('{sort,seqscan}'::text[]) what \g /dev/null
select matches(pg_temp.refusal_message(format('cluster ojs_store.%I using %I', of_table, name)),
    'cannot cluster on partial', format('CLUSTER does not copy %s by %s', of_table, name))
    from hot_index where out_of_plans;

-- What may be large and no plan goes by is not read by ANALYZE.
select ojs.ack(id, result => '{"n": 1}') is null as acked from ojs.claim('analyzed', 'w') where (
    select count(ojs.push('test.job', '[1]', queue => 'analyzed', meta => '{"a": 1}')) from generate_series(1, 3)) = 3
    \gset
analyze ojs_store.job, ojs_store.finished;
select is((select string_agg(s.attname, ' ' order by s.attname) from pg_stats s join pg_attribute a
        on a.attrelid = format('ojs_store.%I', s.tablename)::regclass and a.attname = s.attname
        and a.atttypid = 'jsonb'::regtype
    where s.schemaname = 'ojs_store' and s.tablename in ('job', 'finished')), 'args',
    'OP-25: of JSON columns ANALYZE reads only the one that lists go by');

select * from finish();
rollback;
