-- queue.sql: queues as far as push and claim know them: R-30 to R-32, Q-03, Q-11, Q-16. Settings: the queue API's
-- tests.
begin;
select no_plan();
\ir helpers.psql

select is((select count(*) from ojs.queues), 0::bigint, 'R-31: no queue is there before the first push')
    where not exists (select from ojs.queues where name = 'default');
select pg_temp.pushed(), pg_temp.pushed('mail'), pg_temp.pushed('mail'), pg_temp.pushed('a.b-c9') \g /dev/null
select is((select string_agg(name || ':' || state, ' ' order by name collate "C") from ojs.queues),
    'a.b-c9:active default:active mail:active', 'R-31: each queue once, active');
select is((select count(*) from ojs_store.queue), 3::bigint, 'R-31: and stored once');
select is(q.config, '{}', 'R-31: with default settings'),
    ok(q.created_at between now() and clock_timestamp(), 'R-31: and its time') from ojs.queues q where name = 'mail';
select is((select id from ojs_store.queue where name = 'mail'), ojs_store.name_hash('mail'),
    'a queue''s id is made from its name');
select isnt(ojs_store.name_hash('mail'), hashtextextended('mail', 0), 'with a secret: nobody can compute it');

-- The hash is SipHash-2-4; expected values are OpenSSL's. Queues that are there keep their ids under any key.
savepoint keyed;
select ojs_store.queue_id('mail') as mail \gset
update ojs_store.name_key set key = '00010203-0405-0607-0809-0a0b0c0d0e0f';
select is(to_hex(ojs_store.name_hash(name)), hash, format('SipHash-2-4 of "%s"', name))
from (values ('', '726fdb47dd0e0e31'), ('mail', 'bf4bbbabc2479bac'), ('aaaaaaa', '845cba832b135f68'),
    ('aaaaaaaa', 'f522ac1f5a297a11')) v(name, hash);
select is(ojs_store.queue_id('mail'), :mail, 'a queue keeps its id when the key changes');
select pg_temp.pushed('mail') \g /dev/null
select is((select count(distinct id) from ojs_store.queue where name = 'mail'), 1::bigint, 'and its one row');
insert into ojs_store.name_key values ('ffffffff-ffff-ffff-ffff-ffffffffffff', now() + interval '1 hour');
select is(to_hex(ojs_store.name_hash('mail')), 'bf4bbbabc2479bac', 'of several keys the oldest holds');
delete from ojs_store.name_key;
select alike(pg_temp.refusal($$ select ojs.push('test.job', queue => 'fresh') $$), '57P03 the key of this%',
    'without a key no queue is made');
rollback to keyed;
-- Dropped and made anew, it has the id that its finished jobs name, whatever the key is.
select ojs.drop_queue('a.b-c9', 'discard') \g /dev/null
update ojs_store.name_key set key = '00010203-0405-0607-0809-0a0b0c0d0e0f';
select pg_temp.pushed('a.b-c9') \g /dev/null
select is((select count(distinct id) from ojs_store.queue where name = 'a.b-c9'), 1::bigint,
    'a queue that is made anew keeps its id');
rollback to keyed;
-- A second name with the id of a queue is refused: here a row put in by hand takes the id of "thief".
insert into ojs_store.queue select ojs_store.name_hash('thief'), 'victim', 'active', now(), now(), '{}';
select ojs_store.changed('ojs_store.queue') \g /dev/null
select is(pg_temp.refusal($$ select ojs.push('test.job', queue => 'thief') $$), 'OJ102 INVALID_QUEUE queue',
    'a push makes no queue with the id of another'),
    is(pg_temp.refusal($$ select ojs.create_queue('thief') $$), 'OJ102 INVALID_QUEUE queue',
        'nor does ojs.create_queue');
rollback to keyed;

-- A pause hides jobs from claims; what is held is not touched.
select pg_temp.held('mail') as held \gset
select pg_temp.set_queue('mail', 'paused') \g /dev/null
select is((select state from ojs.queues where name = 'mail'), 'paused', 'Q-16: the view shows a pause');
select is((select count(*) from ojs.claim('mail', 'w')), 0::bigint, 'Q-16: a paused queue hands out nothing');
select is((select count(*) from ojs.ack_and_claim('w', 'mail', array[:'held'::uuid])), 0::bigint,
    'INT-05 Q-16: nor to who finishes a job, which works');
select is(pg_temp.at(:'held'), 'completed/1/1', 'INT-05: the job is done');
select pg_temp.pushed('mail') is null as pushed \gset
select pg_temp.set_queue('mail', 'active') \g /dev/null
select is((select count(*) from ojs.claim('mail', 'w', 5)), 3::bigint, 'R-32: when it is resumed, all is there');

-- Lapsed and due jobs of a paused queue are kept, too.
select id as due from ojs.push('test.job', queue => 'halt', delay => '1 minute') \gset
select pg_temp.held('halt') as held \gset
select pg_temp.set_queue('halt', 'paused') \g /dev/null
select pg_temp.clock('2 minutes') \g /dev/null
select is((select count(*) from ojs.claim('halt', 'w', 5)), 0::bigint,
    'Q-16: a pause covers what falls due and what lapses');
select ojs.tick() is null as ticked \gset
select is((select count(*) from ojs.claim('halt', 'w', 5)), 0::bigint, 'Q-16: after a tick, too');
select is((select string_agg(state, ' ') from ojs.jobs where queue = 'halt'), 'available available',
    'OP-22: which makes them available');
select pg_temp.set_queue('halt', 'active') \g /dev/null
select is((select array_agg(id order by ordinality) from ojs.claim('halt', 'w', 1) with ordinality),
    array[:'held'::uuid], 'Q-25: resumed, the lapsed goes first');
select pg_temp.clock('0') \g /dev/null

-- Q-03: a log.
select pg_temp.set_queue('ledger', 'active', '{"type": "log"}') \g /dev/null
select pg_temp.pushed('ledger') as entry \gset
select is(ojs.info(:'entry') ->> 'state', 'available', 'Q-03: a log''s job can be read');
select is(pg_temp.refusal($$ select ojs.ack_and_claim('w', 'ledger', '{}') $$), 'OJ312 TOPIC_NOT_A_QUEUE',
    'Q-03: but not claimed along with an ack');

-- Two rows of one name (two sessions that pushed first at the same time) are one queue.
insert into ojs_store.queue select id, name, 'active', created_at - interval '1 minute', '-infinity',
    config from ojs_store.queue where name = 'default';
select ojs_store.changed('ojs_store.queue') \g /dev/null
select is((select count(*) from ojs.queues where name = 'default'), 1::bigint,
    'R-31: a queue that was made twice is one');
select pg_temp.set_queue('default', 'paused') \g /dev/null
insert into ojs_store.queue select id, name, 'active', created_at, '-infinity',
    config from ojs_store.queue where name = 'default';
select ojs_store.changed('ojs_store.queue') \g /dev/null
select is((select count(*) from ojs.claim('default', 'w')), 0::bigint, 'R-31: and its deliberate setting counts');
select is((select state from ojs.queues where name = 'default'), 'paused', 'R-31: in the view as well');

select * from finish();
rollback;
