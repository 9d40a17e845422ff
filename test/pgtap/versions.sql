-- versions.sql: which versions of a job type a worker is given: VER-01, VER-02.
begin;
select no_plan();
\ir helpers.psql

create function pg_temp.push(versions text[], type text default 'bill.make') returns void language sql as $$
    select from unnest(versions) with ordinality u (version, n), lateral ojs.push(type, jsonb_build_array(version),
        queue => 'v', options => case when version <> '' then jsonb_build_object('version', version) else '{}' end) p
    where p.id is not null
$$;
-- What a worker gets of the queue, and gives back.
create function pg_temp.given(worker text, most int default 100) returns text language plpgsql as $$
declare
    given text;
    ids uuid[];
begin
    select string_agg(args ->> 0, ' ' order by args ->> 0), array_agg(id) into given, ids
    from ojs.claim('v', worker, max => most);
    perform ojs.nack_many(worker, ids);
    return given;
end $$;
create function pg_temp.register(worker text, versions text) returns void language sql as $$
    select from ojs.register_worker(worker, jsonb_build_object('handlers',
        jsonb_build_array(jsonb_build_object('type', 'bill.make', 'versions', versions)))) r where r is null
$$;

select pg_temp.push('{1.0,1.5,2.0,2.1.0,3,"",beta}') \g /dev/null
select pg_temp.register(v, v)
from unnest('{*,2.0,>=1.0 <3.0,">=1.5, <2.1",>=2.0,<=1.5,>2.0,=3,9}'::text[]) v \g /dev/null
select is(pg_temp.given(worker), expected,
    format('a worker that takes %s gets only such, and all without a version (VER-02)', worker))
from (values ('*', ' 1.0 1.5 2.0 2.1.0 3 beta'), ('2.0', ' 2.0'), ('>=1.0 <3.0', ' 1.0 1.5 2.0 2.1.0'),
    ('>=1.5, <2.1', ' 1.5 2.0'), ('>=2.0', ' 2.0 2.1.0 3'), ('<=1.5', ' 1.0 1.5'), ('>2.0', ' 2.1.0 3'), ('=3', ' 3'),
    ('9', ''), ('somebody', ' 1.0 1.5 2.0 2.1.0 3 beta')) w (worker, expected);
select is(pg_temp.given('9', 1), '', 'one job at a time, it gets what it may have, behind what it may not (VER-02)');

-- What is passed over stays where it is, for others.
select is(ojs.queue_info('v') #>> '{stats,available}', '7', 'what a worker does not take stays available (VER-02)');
select pg_temp.push('{1.0}', 'other.type') \g /dev/null
select is(pg_temp.given('9'), ' 1.0', 'a type that the worker does not name is for it in every version (VER-02)');
select pg_temp.register('mover', '1.0') \g /dev/null
select is(pg_temp.given('mover'), ' 1.0 1.0', 'a worker registers (VER-02)');
select ojs.beat('mover', info => '{"handlers": [{"type": "bill.make", "versions": "3"}]}') \g /dev/null
select is(pg_temp.given('mover'), ' 1.0 3', 'a heartbeat says otherwise (VER-02)');
select ojs.beat('mover') \g /dev/null
select is(pg_temp.given('mover'), ' 1.0 3', 'one that says nothing changes nothing (VER-02)');
select ojs.deregister_worker('mover') \g /dev/null
select is(pg_temp.given('mover'), ' 1.0 1.0 1.5 2.0 2.1.0 3 beta', 'it is forgotten with the worker (VER-02)');
select ojs.beat('late', info => '{"handlers": [{"type": "bill.make", "versions": "2.0"}]}') \g /dev/null
select is(pg_temp.given('late'), ' 1.0 2.0', 'a first heartbeat counts as well (VER-02)');
savepoint before;
select pg_temp.register('late', '*') \g /dev/null
rollback to before;
select is(pg_temp.given('late'), ' 1.0 2.0', 'a rollback takes it back (VER-02)');
select pg_temp.push(array_agg('1.0'::text)) from generate_series(1, 300) \g /dev/null
select pg_temp.push('{7}') \g /dev/null
select pg_temp.register('seven', '7') \g /dev/null
select is(pg_temp.given('seven'), ' 1.0 7', 'it finds its job behind 300 others (VER-02)');
select is(pg_temp.given('seven'), ' 1.0 7', 'again');
select pg_temp.push('{7.0}') \g /dev/null
select is(pg_temp.given('seven'), ' 1.0 7 7.0', 'and one that comes later (VER-02)');

select is(pg_temp.refusal(format('select ojs.register_worker(%L, %L)', 'w', info)), 'OJ100 INVALID_PAYLOAD handlers',
    'refused: ' || info || ' (VER-02)')
from unnest(array['{"handlers": [{"type": "a", "versions": "^1"}]}', '{"handlers": [{"type": "a", "versions": ""}]}',
    '{"handlers": [{"type": "a", "versions": 2}]}', '{"handlers": [{"versions": "2"}]}',
    '{"handlers": [{"type": "a", "versions": "1 2 3 4 5"}]}']) info;
select is(pg_temp.refusal($$select ojs.beat('w', info => '{"handlers": [{"type": "a", "versions": "~1"}]}')$$),
    'OJ100 INVALID_PAYLOAD handlers', 'by a heartbeat as well (VER-02)');

-- A session keeps what the worker names that claims, and not what all do.
select ojs.register_worker('many' || i, jsonb_build_object('handlers', (
    select jsonb_agg(jsonb_build_object('type', 't' || h, 'versions', '1')) from generate_series(1, 300) h)))
from generate_series(1, 20) i \g /dev/null
select pg_temp.given('many' || i) from generate_series(1, 20) i \g /dev/null
select cmp_ok((select sum(total_bytes) from pg_backend_memory_contexts where name ~ 'ojs.*versions'), '<',
    3000000::numeric, 'a session keeps the versions of one worker at a time (VER-02)');
select is(pg_temp.given('seven'), ' 1.0 7 7.0', 'whichever that is (VER-02)');

select ojs.deregister_worker(worker) from ojs.workers \g /dev/null
select pg_temp.register('nine', '9') \g /dev/null
select matches(ojs.explain_job(id), 'its version is 1.5, and none of the 1 workers', 'ojs.explain_job says so (VER-02)')
from ojs.jobs where args = '["1.5"]';
select ojs.create_schema('bill.make', '9.0', '{}') \g /dev/null
select is(pg_temp.refusal($$select ojs.drop_schema('bill.make', '9.0')$$), 'OJ100 INVALID_PAYLOAD version',
    'a schema is not dropped while a worker names its version');
set local role ojs_worker;
select ojs.register_worker('hostage', '{"handlers": [{"type": "bill.make", "versions": ">=0"}]}') \g /dev/null
set local role ojs_admin;
select ojs.deregister_worker(worker) from ojs.workers where info -> 'handlers' @> '[{"type": "bill.make"}]' \g /dev/null
select is(ojs.drop_schema('bill.make', '9.0'), true, 'an administrator has the last word: workers are ended with it');
reset role;

select * from finish();
rollback;
