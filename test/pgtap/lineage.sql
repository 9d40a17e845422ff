-- lineage.sql: which job has pushed which: HIS-02.
-- Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();
\ir helpers.psql
\ir http.psql

create function pg_temp.child(parent uuid, type text default 'l.child', more jsonb default '{}') returns uuid
language sql volatile as $$
    select id from ojs.push(type, queue => 'line', options => jsonb_build_object('parent_id', parent) || more) $$;
-- The types below or above a job, as text.
create function pg_temp.tree(children jsonb) returns text language sql volatile as $$
    select coalesce(string_agg(c ->> 'type' || case when c -> 'children' <> '[]'
        then '(' || pg_temp.tree(c -> 'children') || ')' else '' end, ' ' order by n), '')
    from jsonb_array_elements(children) with ordinality as j(c, n) $$;
create function pg_temp.below(job uuid) returns text language sql volatile as $$
    select pg_temp.tree(ojs.lineage(job) -> 'children') $$;
create function pg_temp.above(job uuid) returns text language sql volatile as $$
    select coalesce(string_agg(a ->> 'type', ' ' order by n), '')
    from jsonb_array_elements(ojs.lineage(job) -> 'ancestors') with ordinality as j(a, n) $$;
create function pg_temp.parents() returns bigint language sql volatile as $$
    select count(*) from ojs_store.job_parent $$;

-- WHAT IS TOLD -----------------------------------------------------------------------------------------------------

select id as root from ojs.push('l.root', queue => 'line') \gset
select is(ojs.lineage(:'root'), jsonb_build_object('job_id', :'root', 'parent_id', null, 'workflow_id', null,
    'root_id', null, 'ancestors', '[]'::jsonb, 'children', '[]'::jsonb, 'truncated', false),
    'HIS-02: a job alone has no lineage');
select is(pg_temp.parents(), 0::bigint, 'HIS-02: and nothing is stored for it');
select pg_temp.child(:'root', 'l.a') as a \gset
select pg_temp.child(:'root', 'l.b') as b \gset
select pg_temp.child(:'a', 'l.aa') as aa \gset
select pg_temp.child(:'aa', 'l.aaa') as aaa \gset
select is(pg_temp.below(:'root'), 'l.a(l.aa(l.aaa)) l.b', 'HIS-02: children, and theirs, in the order of their ids'),
    is(pg_temp.below(:'a'), 'l.aa(l.aaa)', 'HIS-02: from the middle'),
    is(pg_temp.below(:'aaa'), '', 'HIS-02: from the end'),
    is(pg_temp.above(:'aaa'), 'l.aa l.a l.root', 'HIS-02: ancestors, the nearest first'),
    is(pg_temp.above(:'root'), '', 'HIS-02: of the root, none');
select is(ojs.lineage(:'aaa') - 'ancestors', jsonb_build_object('job_id', :'aaa', 'parent_id', :'aa', 'workflow_id',
    null, 'root_id', :'root', 'children', '[]'::jsonb, 'truncated', false),
    'HIS-02: parent_id as it was given, root_id found');
select is(ojs.lineage(:'a') #> '{children,0}', jsonb_build_object('job_id', :'aa', 'type', 'l.aa', 'children',
    jsonb_build_array(jsonb_build_object('job_id', :'aaa', 'type', 'l.aaa', 'children', '[]'::jsonb))),
    'HIS-02: the form of a child');
select is(ojs.info(:'aa') ->> 'parent_id', :'a', 'HIS-02: parent_id is in the envelope');
select pg_temp.child(:'aaa', 'l.stated', '{"root_id": "01a1fe98-d88c-7353-99b6-b56eba94d8eb"}') as stated \gset
select is(ojs.lineage(:'stated') ->> 'root_id', '01a1fe98-d88c-7353-99b6-b56eba94d8eb',
    'HIS-02: a root_id that was given goes before the one that is found'),
    is(ojs.info(:'stated') ->> 'root_id', '01a1fe98-d88c-7353-99b6-b56eba94d8eb',
        'HIS-02: and is in the envelope');
select (ojs.push_job(jsonb_build_object('type', 'l.top', 'args', '[]'::jsonb, 'queue', 'line', 'parent_id',
    :'b')) ->> 'id')::uuid as top \gset
select id as batched from ojs.push_many(jsonb_build_array(jsonb_build_object('type', 'l.batch', 'args', '[]'::jsonb,
    'queue', 'line', 'parent_id', :'b'), '{"type": "l.other", "args": [], "queue": "line"}'::jsonb)) limit 1 \gset
select is(pg_temp.below(:'b'), 'l.top l.batch', 'HIS-02: a push_job and a push_many name parents too');

-- A parent that is not there ----------------------------------------------------------------------------------------

select pg_temp.child('01a1fe98-d88c-7353-99b6-b56eba94d8eb', 'l.orphan') as orphan \gset
select is(ojs.lineage(:'orphan') ->> 'root_id', '01a1fe98-d88c-7353-99b6-b56eba94d8eb',
    'HIS-02: a parent that is not there is named all the same'),
    is(pg_temp.above(:'orphan'), '', 'HIS-02: but is no ancestor');

-- What is refused ---------------------------------------------------------------------------------------------------

select is(pg_temp.refusal(format($$ select ojs.push('l', options => %L) $$, options)),
    'OJ100 INVALID_PAYLOAD ' || field, 'HIS-02: refused: ' || options)
from (values ('{"parent_id": "x"}', 'parent_id'), ('{"parent_id": 1}', 'parent_id'),
    ('{"parent_id": "01A1FE98-D88C-7353-99B6-B56EBA94D8EB"}', 'parent_id'),
    ('{"parent_id": "3f2504e0-4f89-41d3-9a0c-0305e82c3301"}', 'parent_id'), ('{"root_id": "x"}', 'root_id'),
    ('{"root_id": {}}', 'root_id'),
    ('{"id": "01a1fe98-d88c-7353-99b6-b56eba94d8eb", "parent_id": "01a1fe98-d88c-7353-99b6-b56eba94d8eb"}',
        'parent_id')) c (options, field);
select is(ojs.push_job('{"type": "l", "args": [], "parent_id": null, "root_id": null}') ?| '{parent_id,root_id}', false,
    'HIS-02: null is as if absent');
select is(pg_temp.refusal($$ select ojs.lineage('01a1fe98-d88c-7353-99b6-b56eba94d8ec') $$), 'OJ300 NOT_FOUND',
    'HIS-02: an unknown job');
select is(pg_temp.refusal($$ select ojs.lineage(null) $$), 'OJ300 NOT_FOUND', 'HIS-02: no job at all');

-- BOUNDS -----------------------------------------------------------------------------------------------------------

-- Jobs may name each other: each with an id of its own, and the other for a parent.
select ojs.push('l.x', queue => 'line', options => '{"id": "01a1fe98-d88c-7353-99b6-b56eba94d001",
    "parent_id": "01a1fe98-d88c-7353-99b6-b56eba94d002"}') is null as x,
    ojs.push('l.y', queue => 'line', options => '{"id": "01a1fe98-d88c-7353-99b6-b56eba94d002",
    "parent_id": "01a1fe98-d88c-7353-99b6-b56eba94d001"}') is null as y \gset
select pg_temp.child('01a1fe98-d88c-7353-99b6-b56eba94d002', 'l.z') as z \gset
select is(pg_temp.below('01a1fe98-d88c-7353-99b6-b56eba94d001'), 'l.y(l.z)', 'HIS-02: in a circle nobody comes twice'),
    is(pg_temp.above('01a1fe98-d88c-7353-99b6-b56eba94d001'), 'l.y', 'HIS-02: upwards neither'),
    is(pg_temp.above(:'z'), 'l.y l.x', 'HIS-02: nor from beside it');

create function pg_temp.chain(n int) returns uuid language plpgsql as $$
declare
    id uuid;
begin
    for i in 1 .. n loop
        id := pg_temp.child(id, 'l.c' || i);
    end loop;
    return id;
end $$;
select pg_temp.chain(115) as last \gset
select is(jsonb_array_length(l -> 'ancestors'), 100, 'HIS-02: at most 100 ancestors'),
    is(l -> 'truncated', 'true', 'HIS-02: and it is said'), is(l -> 'root_id', 'null', 'HIS-02: the root is not known')
    from ojs.lineage(:'last') l;
select is(l -> 'truncated', 'false', 'HIS-02: 100 exactly are all'),
    is(jsonb_array_length(l -> 'ancestors'), 100, 'HIS-02: of 101 jobs'),
    is(ojs.info((l ->> 'root_id')::uuid) ->> 'type', 'l.c1', 'HIS-02: with their root')
    from ojs.lineage((select id from ojs.jobs where type = 'l.c101')) l;
select is(array_length(string_to_array(pg_temp.tree(l -> 'children'), '('), 1) - 1, 19,
        'HIS-02: at most 20 levels down'),
    is(l -> 'truncated', 'true', 'HIS-02: and it is said') from ojs.lineage((select id from ojs.jobs
        where type = 'l.c1')) l;
select is(l -> 'truncated', 'false', 'HIS-02: 20 exactly are all') from ojs.lineage((select id from ojs.jobs
    where type = 'l.c95')) l;

select id as many from ojs.push('l.many', queue => 'line') \gset
select count(*) as pushed from ojs.push_many((select jsonb_agg(jsonb_build_object('type', 'l.one', 'args', '[]'::jsonb,
    'queue', 'line', 'parent_id', :'many')) from generate_series(1, 999))) \gset
select pg_temp.child(ojs_store.job.id, 'l.grandchild') as under from ojs_store.job where type = 'l.one'
    order by id limit 1 \gset
select is(l -> 'truncated', 'false', 'HIS-02: 1000 descendants are all'),
    is((select count(*) from jsonb_path_query(l, 'strict $.children.**.job_id')), 1000::bigint, 'HIS-02: and are there')
    from ojs.lineage(:'many') l;
select pg_temp.child(:'many', 'l.last') as one_more \gset
select is(l -> 'truncated', 'true', 'HIS-02: of more it is said'),
    is((select count(*) from jsonb_path_query(l, 'strict $.children.**.job_id')), 1000::bigint,
        'HIS-02: the nearest 1000 are there'),
    is(pg_temp.tree(l #> '{children}') ~ 'grandchild', false, 'HIS-02: children before grandchildren')
    from ojs.lineage(:'many') l;

-- WHO MAY ASK ------------------------------------------------------------------------------------------------------

create role reader in role ojs_observer;
create role stranger in role ojs_observer;
create role pusher in role ojs_producer, ojs_observer;
select ojs.create_queue('closed', '{"readers": ["reader"]}') is null as made \gset
select id as hidden from ojs.push('l.hidden', queue => 'closed', options => jsonb_build_object('parent_id', :'b')) \gset
select pg_temp.child(:'hidden', 'l.shown') as shown \gset
select is(pg_temp.as_role('reader', format('select pg_temp.tree(ojs.lineage(%L) -> ''children'')', :'b')),
    'l.top l.batch l.hidden(l.shown)', 'HIS-02: who may read a queue sees its jobs'),
    is(pg_temp.as_role('stranger', format('select pg_temp.tree(ojs.lineage(%L) -> ''children'')', :'b')),
        'l.top l.batch', 'HIS-02: who may not, sees neither them nor what is below'),
    is(pg_temp.as_role('stranger', format('select ojs.lineage(%L) -> ''ancestors''', :'shown')), '[]',
        'HIS-02: nor what is above'),
    is(pg_temp.as_role('stranger', format('select ojs.lineage(%L)', :'hidden')),
        pg_temp.as_role('stranger', format('select ojs.info(%L)', :'hidden')), 'HIS-02: and is refused as by ojs.info'),
    is(pg_temp.as_role('stranger', format('select ojs.lineage(%L)', :'hidden')), '42501', 'HIS-02: that is');
-- Nobody hides the children of others behind his own.
select ojs.create_queue('crowd', '{"readers": ["reader"]}') is null as made \gset
select pg_temp.child(:'root', 'l.crowded') as crowded \gset
select jsonb_agg(jsonb_build_object('type', 'l.crowd', 'args', '[]'::jsonb, 'queue', 'crowd', 'parent_id', :'crowded'))
    as crowd from generate_series(1, 1000) \gset
select count(*) as pushed from ojs.push_many(:'crowd') \gset
select count(*) as pushed from ojs.push_many(:'crowd') \gset
select pg_temp.child(:'crowded', 'l.mine') as mine \gset
select is(pg_temp.as_role('stranger', format('select pg_temp.tree(ojs.lineage(%L) -> ''children'')', :'crowded')),
    'l.mine', 'HIS-02: jobs that the caller may not read hide none that he may');
select ojs.cancel(:'crowded') is null as cancelled, ojs.delete_job(:'crowded') as deleted \gset
set local ojs.tenancy = optional;
create role of_a in role ojs_producer, ojs_observer;
create role of_b in role ojs_producer, ojs_observer;
select ojs.bind_tenant('of_a', 'a'), ojs.bind_tenant('of_b', 'b') \g /dev/null
select id as job_a from ojs.push('l.a', queue => 'line', meta => '{"tenant_id": "a"}') \gset
select id as job_b from ojs.push('l.b', queue => 'line', meta => '{"tenant_id": "b"}',
    options => jsonb_build_object('parent_id', :'job_a')) \gset
select is(pg_temp.as_role('of_a', format('select ojs.lineage(%L) -> ''children''', :'job_a')), '[]',
    'HIS-02, MT-03: another tenant''s child is not there'),
    is(pg_temp.as_role('of_a', format('select ojs.lineage(%L)', :'job_b')), 'OJ300',
        'HIS-02, MT-03: nor is another tenant''s job'),
    is(pg_temp.as_role('of_b', format('select ojs.lineage(%L) -> ''ancestors''', :'job_b')), '[]',
        'HIS-02, MT-03: nor its parent'),
    is(pg_temp.below(:'job_a'), 'l.b', 'HIS-02: who is of no tenant sees both');
reset ojs.tenancy;

-- IT GOES WITH THE JOB ---------------------------------------------------------------------------------------------

create function pg_temp.named(job uuid) returns bigint language sql volatile as $$
    select count(*) from ojs_store.job_parent where job_id = job $$;
select ojs.cancel(:'b') is null as cancelled, ojs.delete_job(:'b') as deleted \gset
select is(pg_temp.named(:'b'), 0::bigint, 'HIS-02: gone with a job that is deleted'),
    is(pg_temp.below(:'root'), 'l.a(l.aa(l.aaa(l.stated)))', 'HIS-02: it is no child any more'),
    is(ojs.lineage(:'top') ->> 'root_id', :'b', 'HIS-02: and the root of its children');
select ojs.create_queue('brief', '{"delete_on_ack": true, "dead_letter": "brief.dlq", "max_deliveries": 1}') is null
    as made \gset
select pg_temp.held('brief', 'w', jsonb_build_object('parent_id', :'a')) as id \gset
select is(pg_temp.named(:'id'), 1::bigint, 'HIS-02: as long as the job is there');
select ojs.ack(:'id') is null as done \gset
select is(pg_temp.named(:'id'), 0::bigint, 'HIS-02: and with one that is removed by its ack');
select pg_temp.held('brief', 'w', jsonb_build_object('parent_id', :'a')) as id \gset
select ojs.nack(:'id') is null as back \gset
select count(*) as none from ojs.claim('brief', 'w') \gset
select id as copy from ojs.claim('brief.dlq', 'w') \gset
select is(pg_temp.named(:'id'), 0::bigint, 'HIS-02: a poison job leaves with its row'),
    is(pg_temp.above(:'copy'), 'l.a l.root', 'HIS-02: and its copy has it');
select pg_temp.held('old', 'w', jsonb_build_object('parent_id', :'a')) as id \gset
select ojs.ack(:'id') is null as done \gset
select pg_temp.clock('30 days') \g /dev/null
create function pg_temp.retained() returns text language plpgsql as $$
begin
    for i in 1 .. 20 loop
        perform ojs.tick();
        exit when not exists (select from ojs_store.job where queue = ojs_store.queue_id('old'));
    end loop;
    return (select count(*) from ojs_store.job where queue = ojs_store.queue_id('old'));
end $$;
select is(pg_temp.retained(), '0', 'HIS-02: retention removes a job'),
    is(pg_temp.named(:'id'), 0::bigint, 'HIS-02: and what it names');
reset ojs.clock_offset;
-- A job that is replaced in its place by a push with its key.
select id as waits from ojs.push('l.u', queue => 'u', options => jsonb_build_object('parent_id', :'a'),
    "unique" => '{"keys": ["type"], "on_conflict": "update"}') \gset
select id as again from ojs.push('l.u', queue => 'u', options => jsonb_build_object('parent_id', :'aa'),
    "unique" => '{"keys": ["type"], "on_conflict": "update"}') \gset
select is(:'again'::uuid, :'waits', 'HIS-02: an update keeps the job'), is(pg_temp.above(:'waits'), 'l.aa l.a l.root',
    'HIS-02: which is now the new parent''s'), is(pg_temp.named(:'waits'), 1::bigint, 'HIS-02: and no other''s');

-- HTTP AND WORKFLOWS -----------------------------------------------------------------------------------------------

select is(pg_temp.http('GET', '/ojs/v1/jobs/' || :'aa' || '/lineage') -> 'body', ojs.lineage(:'aa'),
    'HIS-02, HTTP: the same over HTTP');
select is(pg_temp.error('GET', '/ojs/v1/jobs/01a1fe98-d88c-7353-99b6-b56eba94d8ec/lineage'), '404 not_found',
    'HIS-02, HTTP: 404');
select (pg_temp.http('POST', '/ojs/v1/jobs', jsonb_build_object('type', 'l.http', 'args', '[]'::jsonb, 'parent_id',
    :'aaa')) #>> '{body,job,id}')::uuid as over_http \gset
select is(pg_temp.above(:'over_http'), 'l.aaa l.aa l.a l.root', 'HIS-02, HTTP: pushed with a parent');
select ojs.create_workflow(jsonb_build_object('type', 'chain', 'steps', jsonb_build_array(
    jsonb_build_object('type', 'l.step', 'args', '[]'::jsonb, 'queue', 'line', 'parent_id', :'aa')))) ->> 'id' as flow
    \gset
select is(l ->> 'workflow_id', :'flow', 'HIS-02: the workflow of a job'),
    is(l ->> 'parent_id', :'aa', 'HIS-02: and its parent')
    from ojs.jobs j, ojs.lineage(j.id) l where j.type = 'l.step';

-- Hooks see it, and a job keeps it.
create function public.keeper(job jsonb) returns jsonb language sql as $$
    select job || jsonb_build_object('meta', jsonb_build_object('saw', job ->> 'parent_id')) $$;
select ojs.register_hook('keeper', 'enqueue', 'public.keeper(jsonb)') is null as registered \gset
select pg_temp.child(:'aa', 'l.hooked') as hooked \gset
select is(ojs.info(:'hooked') #>> '{meta,saw}', :'aa', 'HIS-02: a hook sees the parent'),
    is(pg_temp.above(:'hooked'), 'l.aa l.a l.root', 'HIS-02: and it stays');

select * from finish();
rollback;
