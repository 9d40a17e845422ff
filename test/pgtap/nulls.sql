-- nulls.sql: null for any parameter of any function of ours, of those that no role may call, too: an answer or an
-- error, never a crash.
begin;
select no_plan();

-- Calls a function with these arguments, in SQL, and takes back what it did. What it answers: nothing, or its SQLSTATE.
create function pg_temp.outcome(call text) returns text language plpgsql as $$
declare
    state text; message text;
begin
    begin
        execute call;
        raise exception using errcode = 'OJ0OK';
    exception when others then
        get stacked diagnostics state = returned_sqlstate, message = message_text;
    end;
    return case when state = 'XX000' then message end;
end $$;

-- One value of each type that is none of the others' business; null for a type that only null can stand for.
create temp table called as
select p.oid::regprocedure as signature, a.nulled, format('select * from %s(%s)', p.oid::regproc, (
    select string_agg(case when a.nulled in (0, n) or v.value is null then 'null' else quote_literal(v.value)
        end || '::' || format_type(type, null), ', ' order by n)
    from unnest(p.proargtypes::oid[]) with ordinality as t(type, n)
    left join (values ('text', 'x'), ('uuid', '01920000-0000-7000-8000-00000000000c'),
        ('uuid[]', '{01920000-0000-7000-8000-00000000000c}'), ('text[]', '{x}'),
        ('jsonb', '{}'), ('jsonb[]', '{"{}"}'), ('integer', '1'), ('bigint', '1'), ('numeric', '1'),
            ('boolean', 'true'), ('interval', '0'),
        ('timestamp with time zone', '2026-01-01 00:00Z'), ('regprocedure', 'now()'),
            ('anyelement', null)) v (name, value)
        on v.name = format_type(t.type, null))) as call
from pg_proc p, generate_series(0, p.pronargs) as a(nulled)
where p.pronamespace in ('ojs'::regnamespace, 'ojs_http'::regnamespace, 'ojs_store'::regnamespace) and p.prokind = 'f'
    and p.pronargs > 0;

select cmp_ok((select count(distinct signature) from called), '>', 200::bigint, 'functions are called');
select is((select string_agg(format('%s: %s', call, outcome), e'\n')
    from (select call, pg_temp.outcome(call) from called) c where outcome is not null), null,
    'with all arguments null, and with each of them null: no crash, and no internal error');

-- A function that does something says so where it does nothing: a driver may bind a variable that was never set.
select is((select string_agg(p.oid::regprocedure::text, ', ') from pg_proc p where p.pronamespace = 'ojs'::regnamespace
    and p.provolatile = 'v' and p.proisstrict and p.proname <> 'key_held'), null, 'no function is silent for null');
select throws_ok('select ojs.push_job(null)', 'OJ100', 'job must not be null',
    'ojs.push_job says that nothing was pushed');

select * from finish();
rollback;
