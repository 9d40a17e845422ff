-- ordering_keys.sql: one job of an ordering key at a time, in the order of push: DDP-11, R-88.
begin;
select no_plan();
\ir helpers.psql

-- A job of type t.NAME in queue k, by default with the key K.
create function pg_temp.put(name text, key text default 'K', options jsonb default '{}', queue text default 'k')
    returns uuid language sql as
$$ select id from ojs.push('t.' || name, queue => queue, options => options || case when key is null
    then '{}' else jsonb_build_object('ordering_key', key) end) $$;
-- What a worker gets, in order, without the "t.".
create function pg_temp.claimed(max int default 100, queue text default 'k') returns text language sql as
$$ select coalesce(string_agg(substr(type, 3), ' '), '') from ojs.claim(queue, 'w', max) $$;
create function pg_temp.named(name text) returns uuid language sql as
$$ select id from ojs_store.job where type = 't.' || name order by seq desc limit 1 $$;
create function pg_temp.acked(name text) returns text language sql as $$ select (ojs.ack(pg_temp.named(name))).state $$;
create function pg_temp.failed(name text) returns text language sql as
$$ select (ojs.fail(pg_temp.named(name), '{"type": "Net", "message": "broken"}')).state $$;
create function pg_temp.stands(name text) returns text language sql as $$ select state from ojs.jobs
    where id = pg_temp.named(name) $$;
-- Everything of the queue goes, and is known to have left no line behind.
create function pg_temp.emptied(queue text default 'k') returns text language sql as $$
    select ojs.purge_queue(queue, '{available,scheduled,retryable,pending,active,completed,cancelled,discarded}', true);
    select concat_ws('/', (select count(*) from ojs_store.ordering_line), (select count(*) from ojs_store.ordering_due),
        (select count(*) from ojs_store.ready r where r.queue = ojs_store.queue_id($1)));
$$;
select ojs.create_queue('k',
    '{"default_retry": {"max_attempts": 3, "initial_interval": "PT10S", "jitter": false}}') \g /dev/null

-- In order, one at a time
select is(count(pg_temp.put(n)), 3::bigint, 'three jobs of a key are pushed (DDP-11)') from unnest('{a,b,c}'::text[]) n;
select pg_temp.put('x', 'L'), pg_temp.put('y', null) \g /dev/null
select is(string_agg(pg_temp.stands(n), ' '), 'available available available', 'all of them are available')
    from unnest('{a,b,c}'::text[]) n;
select is((select available from ojs.queue_stats('k')), 5::bigint, 'and counted as such');
select is(pg_temp.claimed(), 'a x y', 'a claim gets the first of each key, and what has none (DDP-11)');
select is(pg_temp.claimed(), '', 'nothing more while these are held');
select is(pg_temp.acked('a'), 'completed', 'its ack …');
select is(pg_temp.claimed(), 'b', '… lets the second go');
select is(pg_temp.acked('x') || pg_temp.acked('y'), 'completedcompleted', 'the end of others …');
select is(pg_temp.claimed(), '', '… means nothing to it');
select is((select string_agg(substr(type, 3), ' ') from ojs.ack_and_claim('w', 'k', array[pg_temp.named('b')])), 'c',
    'ack_and_claim goes on with the next');
select is(pg_temp.acked('c'), 'completed', 'the last ends');
select is(pg_temp.put('d') is not null, true, 'a key whose jobs have ended is free');
select is(pg_temp.claimed(), 'd', 'again');
select is(pg_temp.emptied(), '0/0/0', 'no line is left');

-- strict: who is retried, released or lapsed holds back the others
select pg_temp.put('a'), pg_temp.put('b') \g /dev/null
select is(pg_temp.claimed(), 'a', 'the first is held');
select is(pg_temp.failed('a'), 'retryable', 'it fails');
select is(pg_temp.claimed(), '', 'a retryable job holds back the next (R-88)');
select pg_temp.clock('11s') \g /dev/null
select is(pg_temp.claimed(), 'a', 'it is retried first');
select is((ojs.nack(pg_temp.named('a'))).state, 'available', 'it is released');
select is(pg_temp.claimed(), 'a', 'a released job comes first (R-88)');
select is((ojs.nack(pg_temp.named('a'), interval '5s')).state, 'available', 'it is released with a delay');
select is(pg_temp.claimed(), '', 'and holds back the next for as long');
select pg_temp.clock('17s') \g /dev/null
select is(pg_temp.claimed(), 'a', 'then it comes first');
select pg_temp.clock('10min') \g /dev/null
select is(pg_temp.claimed(), 'a', 'a job whose lease ran out comes first (R-88)');
select pg_temp.clock('20min') \g /dev/null
select is(pg_temp.claimed(), 'b', 'when it is discarded, the next goes on (R-88)');
select is(pg_temp.stands('a'), 'discarded', 'since its attempts are spent');
select is((ojs.retry(pg_temp.named('a'))).state, 'available', 'it is brought back by hand');
select pg_temp.put('c') \g /dev/null
select is(pg_temp.claimed(), '', 'it is held back by the one that runs');
select is(pg_temp.acked('b'), 'completed', 'when that ends …');
select is(pg_temp.claimed(), 'a', '… it goes on, before those that came after it was brought back');
select is(pg_temp.acked('a') || pg_temp.claimed(), 'completedc', 'then those');
select is(pg_temp.emptied(), '0/0/0', 'no line is left');
select pg_temp.clock('0') \g /dev/null

-- Scheduled and pending jobs have their place, too
select pg_temp.put('a', options => '{"delay": "PT1H"}'), pg_temp.put('b') \g /dev/null
select is(pg_temp.claimed(), '', 'a scheduled job holds back the next (R-88)');
select pg_temp.clock('61min') \g /dev/null
select is(pg_temp.claimed(), 'a', 'until it has run');
select pg_temp.put('p', options => '{"pending": true}'), pg_temp.put('d') \g /dev/null
select is(pg_temp.acked('a') || pg_temp.claimed(), 'completedb', 'the second');
select is(pg_temp.acked('b') || pg_temp.claimed(), 'completed', 'a pending job holds back the next');
select is((ojs.activate(pg_temp.named('p'))).state, 'available', 'it is activated');
select is(pg_temp.claimed(), 'p', 'and its turn has come');
select pg_temp.put('q', options => '{"pending": true}') \g /dev/null
select is((ojs.activate(pg_temp.named('q'))).state, 'available', 'one that is activated while others are before it …');
select is(pg_temp.claimed(), '', '… is blocked');
select is(pg_temp.acked('p') || pg_temp.claimed() || pg_temp.acked('d') || pg_temp.claimed(), 'completeddcompletedq',
    'until its turn');
select is(pg_temp.emptied(), '0/0/0', 'no line is left');
select pg_temp.clock('0') \g /dev/null

-- Any end lets the next go
select count(pg_temp.put('j' || n)) from generate_series(1, 12) n \g /dev/null
select pg_temp.put('j13', options => jsonb_build_object('expires_at', now() + interval '1 hour')),
    pg_temp.put('j14') \g /dev/null
select is((ojs.cancel(pg_temp.named('j1'))).state || pg_temp.claimed(), 'cancelledj2',
    'a cancel of the first lets the next go');
select is((ojs.cancel(pg_temp.named('j2'))).state || pg_temp.claimed(), 'cancelledj3', 'also while it is held');
select is((ojs.cancel(pg_temp.named('j5'))).state || pg_temp.claimed(), 'cancelled',
    'a cancel of one that is blocked lets nobody go');
select is((ojs.fail(pg_temp.named('j3'), '{"code": "X", "type": "x", "message": "x", "retryable": false}')).state
    || pg_temp.claimed(), 'discardedj4', 'a discard lets the next go');
select is((ojs.nack(pg_temp.named('j4'))).state || (ojs.discard(pg_temp.named('j4'))).state || pg_temp.claimed(),
    'availablediscardedj6', 'also by hand, and past one that was cancelled');
select is((ojs.ack_many('w', array[pg_temp.named('j6')])).done || pg_temp.claimed(), '1j7',
    'ack_many lets the next go');
select is((ojs.cancel_many(jsonb_build_object('ids', jsonb_build_array(pg_temp.named('j7'), pg_temp.named('j8'))),
    true) ->> 'succeeded') || pg_temp.claimed(), '2j9', 'cancel_many of two at once');
select is(ojs.purge_queue('k', '{active}', true) || pg_temp.claimed(), '1j10', 'a purge of the first');
select is((ojs.set_priority(pg_temp.named('j12'), 50)).priority || pg_temp.acked('j10') || pg_temp.claimed(),
    '50completedj11', 'priorities mean nothing within a key (R-88)');
select is(pg_temp.acked('j11') || pg_temp.claimed() || pg_temp.acked('j12'), 'completedj12completed', 'but are kept');
select pg_temp.clock('2 hours') \g /dev/null
select is(pg_temp.claimed(), '', 'one that expires meanwhile …');
select is(pg_temp.claimed() || pg_temp.stands('j13'), 'j14discarded', '… is discarded, and the next goes on');
select is(pg_temp.emptied(), '0/0/0', 'no line is left');
select pg_temp.clock('0') \g /dev/null

-- relaxed
select count(pg_temp.put(n, options => '{"ordering": "relaxed"}')) from unnest('{a,b,c}'::text[]) n \g /dev/null
select is(pg_temp.claimed(), 'a', 'one at a time (R-88)');
select is(pg_temp.failed('a') || pg_temp.claimed(), 'retryableb', 'relaxed: a retryable job frees its key (R-88)');
select pg_temp.clock('11s') \g /dev/null
select is(pg_temp.claimed(), '', 'when it is due, another of its key may run');
select is(pg_temp.stands('a'), 'available', 'it is available, and blocked');
select is((ojs.nack(pg_temp.named('b'))).state || pg_temp.claimed(), 'availablec',
    'a released one goes to the end of the line (R-88)');
select is(pg_temp.acked('c') || pg_temp.claimed() || pg_temp.acked('a') || pg_temp.claimed(), 'completedacompletedb',
    'all come to their turn');
select pg_temp.put('d', options => '{"ordering": "relaxed", "delay": "PT1H"}'),
    pg_temp.put('e', options => '{"ordering": "relaxed"}') \g /dev/null
select is(pg_temp.acked('b') || pg_temp.claimed(), 'completede', 'a scheduled relaxed job holds back nobody');
select pg_temp.put('f', options => '{"ordering": "relaxed"}') \g /dev/null
select pg_temp.clock('10 min') \g /dev/null
select is(pg_temp.claimed(), 'f', 'one whose lease ran out goes to the end of the line (R-88)');
select is(pg_temp.acked('f') || pg_temp.claimed(), 'completede', 'and comes to its turn');
select is(pg_temp.emptied(), '0/0/0', 'no line is left');
select pg_temp.clock('0') \g /dev/null

-- Rollbacks bring everything back
select pg_temp.put('a'), pg_temp.put('b') \g /dev/null
select is(pg_temp.claimed(), 'a', 'the first is held');
savepoint s;
select is(pg_temp.acked('a') || pg_temp.claimed(), 'completedb', 'the second runs');
rollback to s;
select is(pg_temp.claimed(), '', 'the rollback of an ack takes back what followed from it');
select is(pg_temp.acked('a') || pg_temp.claimed(), 'completedb', 'and it can be done again');
savepoint s;
select pg_temp.put('c') \g /dev/null
rollback to s;
select pg_temp.put('d') \g /dev/null
select is(pg_temp.acked('b') || pg_temp.claimed(), 'completedd', 'the rollback of a push leaves no gap');
select is(pg_temp.emptied(), '0/0/0', 'no line is left');

-- Keys and queues
select pg_temp.put('a', 'https://example.org/users/1?x=ü'), pg_temp.put('b', 'https://example.org/users/1?x=ü'),
    pg_temp.put('c', 'https://example.org/users/2'),
    pg_temp.put('d', 'https://example.org/users/1?x=ü', queue => 'k2') \g /dev/null
select is(pg_temp.claimed() || pg_temp.claimed(queue => 'k2'), 'a cd',
    'any text is a key, and a key belongs to a queue (DDP-11)');
select is(ojs.push_job('{"type": "t.e", "args": [], "queue": "k2", "orderingKey": "x"}') ->> 'ordering_key', 'x',
    'orderingKey is another name of it (DDP-10)');
select is(info ->> 'ordering_key', 'x', 'the key is shown with the job') from ojs.info(pg_temp.named('e')) info;
select is(pg_temp.refusal(format('select ojs.push(''t.e'', options => %L)', o)), 'OJ100 INVALID_PAYLOAD ' || field,
    'refused: ' || left(o::text, 60) || ' (DDP-11)')
from (values ('{"ordering_key": ""}'::jsonb, 'ordering_key'),
    (jsonb_build_object('ordering_key', repeat('ü', 128)), 'ordering_key'), ('{"ordering_key": 7}', 'ordering_key'),
    ('{"ordering": "strict"}', 'ordering'), ('{"ordering_key": "x", "ordering": "fifo"}', 'ordering'),
        ('{"ordering_key": "x", "orderingKey": "y"}', 'ordering_key')) r (o, field);
select is(pg_temp.put('f', repeat('x', 255)) is not null, true, '255 bytes are a key');
select is(pg_temp.emptied('k2'), '4/0/0', 'the lines of the other queue stay');
select is(pg_temp.emptied(), '0/0/0', 'no line is left');

-- Batches, and many keys at once
select is((select count(*)
    from ojs.push_many((select jsonb_agg(jsonb_build_object('type', 't.m' || n, 'args', '[]'::jsonb, 'queue', 'k',
    'ordering_key', 'm' || n % 3)) from generate_series(1, 9) n)) where status = 'created'),
    9::bigint, 'push_many takes ordering keys');
select is(pg_temp.claimed(), 'm1 m2 m3', 'the first of each');
select is((ojs.ack_many('w', array[pg_temp.named('m1'), pg_temp.named('m2'), pg_temp.named('m3')])).done
    || pg_temp.claimed(), '3m4 m5 m6', 'then the second of each');
select is(pg_temp.emptied(), '0/0/0', 'no line is left');

-- What an administrator sees and does
select count(pg_temp.put(n)) from unnest('{a,b,c}'::text[]) n \g /dev/null
select is(pg_temp.claimed() || pg_temp.failed('a'), 'aretryable', 'the first fails');
select is(ojs.explain_job(pg_temp.named('c')),
    format('Job %s waits for job %s, which has the same ordering key "K" and is retryable; it is one of 2 that are '
        'served before it.',
    pg_temp.named('c'), pg_temp.named('a')), 'explain_job names the job that is first (DDP-11)');
select is((ojs.skip_ordering_key('k', 'K')).state, 'retryable', 'the first is skipped (DDP-11)');
select is(pg_temp.claimed(), 'b', 'and the next goes on');
select is(pg_temp.refusal($$ select ojs.skip_ordering_key('k', 'K') $$), 'OJ105 INVALID_STATE_TRANSITION',
    'one that is held is not skipped');
select pg_temp.clock('11s') \g /dev/null
select is(pg_temp.claimed() || pg_temp.acked('b') || pg_temp.claimed() || pg_temp.acked('c') || pg_temp.claimed(),
    'completedccompleteda', 'who was skipped waits at the end of the line');
select pg_temp.put('d') \g /dev/null
select is(pg_temp.acked('a') || (ojs.skip_ordering_key('k', 'K')).type || pg_temp.claimed(), 'completedt.dd',
    'one that is alone stays first');
select is(left(pg_temp.refusal($$ select ojs.skip_ordering_key('k', 'M') $$), 15), 'OJ300 NOT_FOUND',
    'a key without open jobs');
select is(pg_temp.emptied(), '0/0/0', 'no line is left');
select pg_temp.clock('0') \g /dev/null

-- The safety net: what was left by changes of tables by hand
select count(pg_temp.put(n)) from unnest('{a,b,c}'::text[]) n \g /dev/null
delete from ojs_store.ordering_line where job_id = pg_temp.named('a');
delete from ojs_store.ready where job_id = pg_temp.named('a');
delete from ojs_store.job where id = pg_temp.named('a');
set local client_min_messages = error;
select is(ojs_store.reconcile('0'), 1::bigint, 'a reconcile pass finds the job that is first and blocked');
select is(pg_temp.claimed(), 'b', 'and lets it go');
select is(ojs_store.reconcile('0'), 0::bigint, 'nothing more');
select is(ojs.health() #>> '{hot_set,last_reconcile,jobs}', '1', 'health counts it');
reset client_min_messages;
select is(pg_temp.emptied(), '0/0/0', 'no line is left');

-- Queues that are dropped
select count(pg_temp.put(n)) from unnest('{a,b,c}'::text[]) n \g /dev/null
select is(count(pg_temp.put(n, queue => 'k3')), 2::bigint, 'the same key in another queue')
    from unnest('{d,e}'::text[]) n;
select is(pg_temp.claimed(), 'a', 'the first is held');
select is(ojs.drop_queue('k', 'move', 'k3'), 3::bigint, 'the queue is dropped, and its jobs go to the other one');
select is(pg_temp.claimed(queue => 'k3'), '', 'what could be claimed there waits for the one that is held');
create function pg_temp.all_in_turn(queue text) returns text language plpgsql as $$
declare
    n text;
    found text := '';
begin
    loop
        n := pg_temp.claimed(queue => queue);
        exit when n = '';
        found := concat_ws(' ', nullif(found, ''), n);
        perform pg_temp.acked(n);
    end loop;
    return found;
end $$;
select is(pg_temp.acked('a') || ' ' || pg_temp.all_in_turn('k3'), 'completed b c d e',
    'all of the key follow, one at a time, in order of push');
select ojs.tick() \g /dev/null
select is(pg_temp.emptied('k3'), '0/0/0', 'no line is left');

select ojs.create_queue('k') \g /dev/null
select pg_temp.put('a', queue => 'k3'), pg_temp.put('b'), pg_temp.put('c', queue => 'k3'), pg_temp.put('d') \g /dev/null
select ojs.drop_queue('k', 'move', 'k3') \g /dev/null
select is(pg_temp.all_in_turn('k3'), 'a b c d', 'lines that could both go on become one in order of push');
select ojs.create_queue('k') \g /dev/null
select pg_temp.put('a'), pg_temp.put('b', queue => 'k3'), pg_temp.put('c'), pg_temp.put('d', queue => 'k3') \g /dev/null
select ojs.drop_queue('k', 'move', 'k3') \g /dev/null
select is(pg_temp.all_in_turn('k3'), 'a b c d', 'also where the first of them moves');
select ojs.create_queue('k') \g /dev/null
select pg_temp.put('a'), pg_temp.put('b', queue => 'k3'), pg_temp.put('c') \g /dev/null
select is(pg_temp.claimed(queue => 'k3'), 'b', 'one is held there');
select ojs.drop_queue('k', 'move', 'k3') \g /dev/null
select is(pg_temp.claimed(queue => 'k3'), '', 'what moves waits for it');
select is((ojs.nack(pg_temp.named('b'))).state || ' ' || pg_temp.all_in_turn('k3'), 'available b a c',
    'it stands before all others until its end');
select ojs.create_queue('k') \g /dev/null
select pg_temp.put('a', options => '{"scheduled_at": "2200-01-01T00:00:00Z"}'),
    pg_temp.put('b', queue => 'k3') \g /dev/null
select ojs.drop_queue('k', 'move', 'k3') \g /dev/null
select is(pg_temp.claimed(queue => 'k3'), '', 'a scheduled job that moves holds back what was pushed after it');
select is((ojs.cancel(pg_temp.named('a'))).state || ' ' || pg_temp.all_in_turn('k3'), 'cancelled b', 'until its end');
select ojs.create_queue('k') \g /dev/null
select pg_temp.put('a'), pg_temp.put('b', queue => 'k3'), pg_temp.put('c', 'L') \g /dev/null
select is(pg_temp.claimed() || ' ' || pg_temp.claimed(queue => 'k3'), 'a c b', 'one is held in each');
select throws_like($$ select ojs.drop_queue('k', 'move', 'k3') $$, 'jobs % are held, and would have the same%',
    'two that are held do not become one line');
select is(pg_temp.acked('a') || ojs.drop_queue('k', 'move', 'k3'), 'completed1', 'they do when one has ended');
select is(pg_temp.acked('b') || pg_temp.acked('c'), 'completedcompleted', 'and go on where they are');
select ojs.tick() \g /dev/null
select is(pg_temp.emptied('k3'), '0/0/0', 'no line is left');
select ojs.create_queue('k') \g /dev/null
select pg_temp.put('a'), pg_temp.put('b') \g /dev/null
select is(pg_temp.claimed() || ojs.drop_queue('k', 'discard'), 'a2', 'a queue is dropped with its jobs');
select is((select count(*) from ojs_store.ordering_line), 0::bigint, 'no line is left');

select * from finish();
rollback;
