-- memory.sql: what a caller's JSON costs in memory: a small multiple of its own size, whatever numbers, strings and
-- nesting it holds. Judged by the backend's peak, which the system keeps (Linux; elsewhere there is nothing to see).
-- Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();
\ir helpers.psql

create function pg_temp.peak_mb() returns numeric language sql volatile as $$
    select round((regexp_match(pg_read_file('/proc/self/status', 0, 8192, true), 'VmHWM:\s+(\d+)'))[1]::numeric / 1024)
$$;
-- By how much a statement raises the peak, whether or not it is refused. Nothing it did stays.
create function pg_temp.cost_mb(statement text) returns numeric language plpgsql as $$
declare
    before numeric := pg_temp.peak_mb();
begin
    begin
        execute statement;
        raise exception 'done';
    exception when others then
    end;
    return coalesce(pg_temp.peak_mb() - before, 0);
end $$;

-- Numbers of nine bytes and 131,072 digits ----------------------------------------------------------------------------

create temp table bomb as
select '[' || string_agg('1e131071', ',') || ']' as large, '[' || string_agg('1e-16383', ',') || ']' as small
from generate_series(1, 3000);
select pg_temp.held('mem') as id \gset

create function pg_temp.bombs() returns table (name text, statement text) language sql as $$
    select v.name, format(v.statement, b.large, b.small)
    from bomb b, (values
        ('args', 'select ojs.push(''a.b'', %1$L)'),
        ('args of small numbers', 'select ojs.push(''a.b'', %2$L)'),
        ('meta', 'select ojs.push(''a.b'', meta => ''{"x": %1$s}'')'),
        ('retry', 'select ojs.push(''a.b'', retry => ''{"x": %1$s}'')'),
        ('unique', 'select ojs.push(''a.b'', "unique" => ''{"x": %1$s}'')'),
        ('options', 'select ojs.push(''a.b'', options => ''{"x": %1$s}'')'),
        ('the envelope', 'select ojs.push_job(''{"type": "a.b", "args": %1$s}'')'),
        ('the fingerprint', 'select ojs.fingerprint(''{"type": "a.b", "unique": {"keys": ["args"]}, "args": %2$s}'')'),
        ('a batch', 'select ojs.push_many(''[{"type": "a.b", "args": %1$s}]'', atomicity => ''partial'')'),
        ('a batch with an idempotency key',
            'select ojs.push_many(''[{"type": "a.b", "args": %1$s}]'', idempotency_key => ''k'')'),
        ('canonical JSON', 'select ojs.canonical_json(%2$L)'),
        ('a result', 'select ojs.ack(job_id, %1$L) from ojs.leases'),
        ('a checkpoint', 'select ojs.checkpoint(job_id, %1$L) from ojs.leases'),
        ('progress', 'select ojs.progress(job_id, 0.5, data => %1$L) from ojs.leases'),
        ('an error', 'select ojs.fail(job_id, ''{"type": "t", "message": "m", "details": %1$s}'') from ojs.leases'),
        ('overrides', 'select ojs.retry(job_id, ''{"args": %1$s}'') from ojs.leases'),
        ('a configuration', 'select ojs.create_queue(''memq'', ''{"default_retry": {"x": %1$s}}'')')
    ) as v(name, statement)
$$;
select cmp_ok(pg_temp.cost_mb(statement), '<', 20::numeric,
    name || ': 3,000 numbers of many digits take no memory to speak of')
from pg_temp.bombs();

select is(pg_temp.refusal($$ select ojs.push('a.b', '[1e399]') $$), 'accepted', 'a number may have 400 digits');
select is(pg_temp.refusal($$ select ojs.push('a.b', '[1e400]') $$), 'OJ103 INVALID_ARGS args', 'and not 401');
select is(pg_temp.refusal($$ select ojs.push('a.b', '[1e-400]') $$), 'OJ103 INVALID_ARGS args', 'nor 400 decimals');
select is(pg_temp.refusal($$ select ojs.push('a.b', meta => '{"x": {"y": 1e400}}') $$), 'OJ104 INVALID_METADATA meta',
    'in meta neither');
select is(pg_temp.refusal($$ select ojs.push('a.b', options => '{"x": 1e400}') $$), 'OJ100 INVALID_PAYLOAD options',
    'nor in an unknown attribute');
select is(pg_temp.refusal($$ select ojs.push('a.b', options => '{"priority": 1e131071}') $$),
    'OJ100 INVALID_PAYLOAD priority', 'nor as a known one');

-- The length of a number is worked out without making its text: compared with the server's own text of it.
create temp table numbers as
select n, pg_temp.held('numbers') as id
from (
    select unnest('{0, -0.0, 0.00, 7, -7, 42, 999, 9999, 10000, 12345, 99999999, 100000000, 0.5, -0.05, 0.00001, '
                  '123.4500, 1e20, 1.5e63, -1e64, 1e65,
        1e-70, 9.99e255, 1e256, 1e257, -12345678901234567890.12345678901234567890,
        1e-63, 1e-64, 10000.0001, 1e131071, 1e-16383}'::numeric[])
    union all
    select (random() - 0.5)::numeric * ('1e' || (random() * 300 - 150)::int)::numeric from generate_series(1, 100)
) as given(n);
select ojs.ack(id, to_jsonb(n)) from numbers \g /dev/null
select is(string_agg(n::text,
    ' ') filter (where ojs.info(id) -> 'result_size_bytes' is distinct from to_jsonb(length(to_jsonb(n)::text))), null,
    'the length of a number is that of its text')
from numbers;

-- So is that of any other value, whatever has to be escaped in it and wherever that stands.
select random() as seed \gset
select setseed(:seed);
create function pg_temp.any_text() returns text language sql as $$
    select coalesce(string_agg((array['a', 'é', '😀', '"', e'\\', '/', ' ', '!', '#', '[', e'\x7f', chr(1 + n % 32)])
        [1 + (random() * 80)::int % greatest(12 - 11 * (n % 2), 1)], ''), '')
    from generate_series(1, (random() * 40)::int) n
$$;
create temp table texts as
select j, pg_temp.held('texts') as id
from (
    select case n % 5
        when 0 then to_jsonb(pg_temp.any_text())
        when 1 then jsonb_build_array(pg_temp.any_text(), true, pg_temp.any_text(), null, n, '[]'::jsonb)
        when 2 then jsonb_build_object('k' || pg_temp.any_text(), pg_temp.any_text(), 'b', false, 'o', '{}'::jsonb)
        when 3 then jsonb_build_array(jsonb_build_object('k', array[n, -n], 'm', pg_temp.any_text()), n / 7.0, 1.50)
        else (array['{}', '[]', '[[]]', 'true', 'false', 'null', '""', '[null]', '{"a": [{}]}'])[1 + n / 5 % 9]::jsonb
    end
    from generate_series(1, 500) n) as given(j);
select ojs.ack(id, j) from texts where j <> 'null' \g /dev/null
select is(string_agg(j::text, ' ') filter (where ojs.info(id) -> 'result_size_bytes'
        is distinct from to_jsonb(octet_length(j::text))), null,
    format('the length of a value is that of its text (seed %s)', :'seed'))
from texts where j <> 'null';

-- Whatever it is ----------------------------------------------------------------------------------------------------

-- Random JSON of some `size` values: numbers of all sizes, strings that are not normalised, keys that nearly agree,
-- nesting.
create function pg_temp.nasty(size int) returns text language plpgsql as $$
declare
    parts text[] := '{}';
    kind int;
begin
    for i in 1..size loop
        kind := (random() * 6)::int;
        parts := parts || case kind
            when 0 then format('1e%s', (random() * 131071)::int)
            when 1 then format('-%se-%s', (random() * 99999)::int, (random() * 16000)::int)
            when 2 then to_json(repeat(U&'e\0301', (random() * 3)::int) || chr(1 + (random() * 30)::int))::text
            when 3 then repeat('[', 1 + (random() * 40)::int)
            when 4 then format('{"%s": null, "%s": true}', repeat('k', (random() * 3)::int), U&'o\0308' || i)
            else to_json(random())::text end;
        if kind = 3 then
            parts[i] := parts[i] || repeat(']', length(parts[i]));
        end if;
    end loop;
    return format('[%s]', array_to_string(parts, ','));
end $$;

select random() as seed \gset
select setseed(:seed);
create temp table nasty as select pg_temp.nasty(1000) as json from generate_series(1, 4);
select cmp_ok(sum(pg_temp.cost_mb(format(v.statement, n.json))), '<', 40::numeric,
    format('nasty JSON takes no memory to speak of: %s (seed %s)', v.statement, :'seed'))
from nasty n, (values
    ('select ojs.push(''a.b'', %L)'),
        ('select ojs.push_many(jsonb_build_array(jsonb_build_object(''type'', ''a.b'', ''args'', %L::jsonb)), '
         'atomicity => ''partial'')'),
    ('select ojs.canonical_json(%L)'),
        ('select ojs.push(''a.b'', jsonb_build_array(%L::jsonb), "unique" => ''{"keys": ["args"]}'')'),
    ('select ojs.ack(job_id, %L) from ojs.leases'),
        ('select ojs.checkpoint(job_id, %L) from ojs.leases')) as v(statement)
group by v.statement;
select cmp_ok(sum(pg_temp.cost_mb(format('select ojs.canonical_json(%L)', j))), '<', 40::numeric,
    'nor 20,000 short strings to be normalised')
from (select jsonb_agg(U&'e\0301' || i) as j from generate_series(1, 20000) i) as strings;

select * from finish();
rollback;
