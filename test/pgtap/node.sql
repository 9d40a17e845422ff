-- node.sql: the number of a node in the ids that it makes, and what a router asks a node.
-- Runs once: nothing here asks whether ojs was preloaded.
begin;
create extension if not exists pgtap;
create extension if not exists ojs;
select plan(21);

create temp table plain as select (ojs.push('a.b')).id from generate_series(1, 200);
select cmp_ok((select count(distinct ojs.node_of(id)) from plain), '>', 100::bigint,
    'without a number, those bits are random');

set ojs.node_id = 3;
create temp table three as select (ojs.push('a.b')).id from generate_series(1, 200);
select is((select array_agg(distinct ojs.node_of(id)) from three), array[3], 'ids carry the number of the node');
select is((select count(distinct id) from three), 200::bigint, 'and differ all the same');
select is((select count(*) from three where id::text !~ '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-8003-[0-9a-f]{12}$'),
    0::bigint,
    'they are UUIDv7, and the number can be read in their text');
select cmp_ok((select min(id::text) from three), '>', (select max(id::text) from plain), 'and they grow');
select is((select count(distinct right(id::text, 12)) from three), 200::bigint, 'the other random bits stay random');
set ojs.node_id = 16383;
select is(ojs.node_of((ojs.push('a.b')).id), 16383, 'the largest number');
select throws_ok('set ojs.node_id = 16384', '22023', null, 'a larger one is refused');
set ojs.node_id = 0;
select is(ojs.node_of('0194f2a5-0000-7000-8000-000000000000'), 0, 'number 0 is none');
select is(ojs.node_of('f47ac10b-58cc-4372-a567-0e02b2c3d479'), null, 'an id that is no UUIDv7 carries none');
select is((select id from ojs.push('a.b', id => '0194f2a5-0000-7000-8005-000000000000')),
    '0194f2a5-0000-7000-8005-000000000000',
    'an id of the client is left as it is');

-- What waits
select results_eq('select * from ojs.waiting()', $$values ('default', 402::bigint)$$, 'the jobs that wait, by queue');
do $$ begin perform ojs.create_queue('quiet'), ojs.push('a.b', queue => 'quiet'), ojs.pause_queue('quiet'); end $$;
select results_eq('select queue from ojs.waiting()', $$values ('default')$$, 'a paused queue has none for claims');
do $$ begin perform ojs.set_maintenance(true); end $$;
select is((select count(*) from ojs.waiting()), 0::bigint, 'nor has any in maintenance');
do $$ begin perform ojs.set_maintenance(false); end $$;

-- Keys
select is(ojs.key_held(ojs.fingerprint('{"type": "u.v", "args": [], "unique": {"keys": ["type"]}}')), false,
    'a fingerprint that is new');
do $$ begin perform ojs.push('u.v', "unique" => '{"keys": ["type"]}'),
    ojs.push('a.b', queue => 'mail', deduplication_key => 'k 1'); end $$;
select is(ojs.key_held(ojs.fingerprint('{"type": "u.v", "args": [], "unique": {"keys": ["type"]}}')), true,
    'and one that is held');
select is(array[ojs.key_held('mail k 1'), ojs.key_held('mail k'), ojs.key_held('default k 1')],
    array[true, false, false],
    'a deduplication key is held in its queue');
do $$ begin perform ojs.push_many('[{"type": "a.b", "args": []}]', idempotency_key => 'once'); end $$;
select is(array[ojs.key_held('idempotency: once'), ojs.key_held('idempotency: twice')], array[true, false],
    'an idempotency key is held');
do $$ begin perform ojs.push('a.b', queue => 'mail', options => '{"ordering_key": "account 7"}'); end $$;
select is(array[ojs.key_held('order: mail account 7'), ojs.key_held('order: mail account'),
    ojs.key_held('order: post account 7')], array[true, false, false], 'an ordering key is held in its queue');
select results_eq('select * from ojs.held_slots() order by 1', $$
    select s from unnest(array[ojs.key_slot('mail k 1'), ojs.key_slot('order: mail account 7'),
        ojs.key_slot('idempotency: once'),
        ojs.key_slot(ojs.fingerprint('{"type": "u.v", "args": [], "unique": {"keys": ["type"]}}'))]) s
    order by 1$$, 'the slots of all are held');
select cmp_ok((select count(distinct ojs.key_slot(i::text)) from generate_series(1, 4096) i), '>', 2000::bigint,
    'keys use all slots');
select * from finish();
rollback;
