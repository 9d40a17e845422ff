-- deduplication.sql: deduplication keys: DDP-01 to DDP-10, except what needs several sessions (test/tap/unique.pl).
begin;
select no_plan();
\ir helpers.psql

-- A push with a key: the job's id, marked if an earlier push had the key.
create function pg_temp.keyed(key text, queue text default 'd', ttl interval default null, policy jsonb default null)
    returns text language sql as
$$ select id || case when deduplicated then ' again' else '' end
   from ojs.push('ddp.job', queue => queue, deduplication_key => key, deduplication_ttl => ttl, "unique" => policy) $$;
create function pg_temp.marker(key text, queue text default 'd') returns ojs_store.deduplication language sql as
$$ select d from ojs_store.deduplication d where d.key = $1 and d.queue = ojs_store.queue_id($2) $$;
create temp table first (key text primary key, id text);

-- Taking a key ------------------------------------------------------------------------------------------------------

insert into first select 'a', pg_temp.keyed('a');
select is(pg_temp.keyed('a'), (select id from first where key = 'a') || ' again',
    'DDP-02: a second push is skipped and answers with the first job');
select is((select count(*) from ojs.jobs where type = 'ddp.job'), 1::bigint, 'DDP-02: and makes no job');
select isnt(pg_temp.keyed('b'), pg_temp.keyed('c'), 'DDP-02: other keys');
select unalike(pg_temp.keyed('a', 'other'), '%again', 'DDP-02: the same key in another queue');
select is((select state from ojs.push('ddp.job', queue => 'd', deduplication_key => 'a')), 'available',
    'DDP-02: the answer is the whole job');
select is(ojs.push_job('{"type": "ddp.x", "args": [], "queue": "d", "options": {"deduplicationKey": "a"}}') ->> 'id',
    (select id from first where key = 'a'),
    'DDP-01: deduplicationKey is an alias');
select is((ojs.push_job(jsonb_build_object('type', 'ddp.x', 'args', '[]'::jsonb, 'queue', 'd',
    'deduplication_key', name, name, 'PT90S')) ->> 'id')::uuid, (pg_temp.marker(name)).job_id,
    'DDP-01: ' || name || ' is taken'),
    is((pg_temp.marker(name)).expires_at between now() + '80 s' and now() + '1 hour', true,
        'DDP-01: ' || name || ' says how long a key is held')
from unnest('{deduplicationTtl,taskDeduplicationTtl}'::text[]) name;
select is(pg_temp.refusal($$ select ojs.push_job('{"type": "a", "args": [], "deduplication_key": "b",
    "deduplication_ttl": "PT1S", "taskDeduplicationTtl": "PT2S"}') $$), 'OJ100 INVALID_PAYLOAD deduplication_ttl',
    'DDP-01: but not together with another time');
select is(pg_temp.refusal(format($$ select ojs.push_job('{"type": "a", "args": [], "%s": "maybe"}') $$, name)),
    'OJ100 INVALID_PAYLOAD dedup_fallback', 'DDP-08: ' || name || ' must be open or closed')
from unnest('{deduplicationFallback,taskDeduplicationFallback}'::text[]) name;
select is(ojs.push_job('{"type": "ddp.x", "args": [], "queue": "d", "deduplication_key": "a"}') -> 'deduplicated',
    'true', 'DDP-01: deduplication_key in an envelope');
select is((select deduplicated from ojs.push('ddp.job', queue => 'd', options => '{"deduplication_key": "a"}')), true,
    'DDP-01: and in options');
select is(pg_temp.refusal($$ select ojs.push('ddp.job', deduplication_key => '') $$),
    'OJ100 INVALID_PAYLOAD deduplication_key', 'DDP-01: an empty key is refused');
select is(pg_temp.refusal($$ select ojs.push('ddp.job', deduplication_key => repeat('k', 1025)) $$),
    'OJ100 INVALID_PAYLOAD deduplication_key', 'DDP-01: so is one of 1,025 bytes');
select lives_ok($$ select ojs.push('ddp.job',
    deduplication_key => (select string_agg(md5(i::text), '') from generate_series(1, 32) i)) $$,
    'DDP-01: 1,024 bytes are a key');
select is(pg_temp.refusal($$ select ojs.push('ddp.job', deduplication_key => 'k', deduplication_ttl => '0') $$),
    'OJ100 INVALID_PAYLOAD deduplication_ttl', 'DDP-01: a TTL is longer than zero');
select is(pg_temp.refusal($$ select ojs.push('ddp.job', deduplication_key => 'k', deduplication_ttl => '-1 s') $$),
    'OJ100 INVALID_PAYLOAD deduplication_ttl', 'DDP-01: and never negative');

-- Time --------------------------------------------------------------------------------------------------------------

select is((pg_temp.marker('a')).expires_at - (select created_at from ojs.jobs
    where id = (select id from first where key = 'a')::uuid) between '59 min 59 s' and '1 hour 1 s', true,
    'DDP-01: an hour by default');
set local ojs.deduplication_ttl = '10 s';
insert into first select 'e', pg_temp.keyed('e');
select is((pg_temp.marker('e')).expires_at - now() between '9 s' and '30 s', true,
    'DDP-01: or what ojs.deduplication_ttl says');
reset ojs.deduplication_ttl;
insert into first select 'f', pg_temp.keyed('f', ttl => '1 min');
select pg_temp.clock('59 s');
select is(pg_temp.keyed('f', ttl => '1 hour'), (select id from first where key = 'f') || ' again',
    'DDP-02: a key holds until its TTL ends');
select pg_temp.clock('60 s');
select unalike(pg_temp.keyed('f', ttl => '1 min'), '%again',
    'DDP-03: then it is accepted again, and a skipped push has not moved its end');
select is(pg_temp.keyed('f') like '%again', true, 'DDP-03: with a new time of its own');
select is((select count(*) from ojs_store.deduplication where key = 'f'), 1::bigint,
    'DDP-03: the old marker was replaced');
select pg_temp.clock('0');

-- What becomes of the job does not matter -----------------------------------------------------------------------------

create function pg_temp.finish(how text, job uuid) returns void language plpgsql as $$
begin
    perform ojs.claim('gone', 'w');
    case how
        when 'completed' then perform ojs.ack(job);
        when 'cancelled' then perform ojs.cancel(job);
        when 'discarded' then perform ojs.fail(job, '{"type": "t", "message": "m", "retryable": false}');
        when 'retryable' then perform ojs.fail(job, '{"type": "t", "message": "m"}');
        when 'removed' then
            perform ojs.ack(job);
            delete from ojs_store.finished where job_id = job;
            delete from ojs_store.job j where j.id = job;
    end case;
end $$;
create temp table fate as select how, pg_temp.keyed(how, 'gone')::uuid as id from unnest('{completed}'::text[]) as how;
select lives_ok($$ select pg_temp.finish(how, id) from fate $$, 'completed');
insert into fate select 'cancelled', pg_temp.keyed('cancelled', 'gone')::uuid;
select lives_ok($$ select pg_temp.finish(how, id) from fate where how = 'cancelled' $$, 'cancelled');
insert into fate select 'discarded', pg_temp.keyed('discarded', 'gone')::uuid;
select lives_ok($$ select pg_temp.finish(how, id) from fate where how = 'discarded' $$, 'discarded');
insert into fate select 'retryable', pg_temp.keyed('retryable', 'gone')::uuid;
select lives_ok($$ select pg_temp.finish(how, id) from fate where how = 'retryable' $$, 'retryable');
insert into fate select 'removed', pg_temp.keyed('removed', 'gone')::uuid;
select lives_ok($$ select pg_temp.finish(how, id) from fate where how = 'removed' $$, 'removed');
select is(pg_temp.keyed(how, 'gone'), id || ' again', format('DDP-04: the job is %s, and the key still holds', how))
    from fate;
select is((select state from ojs.push('ddp.job', queue => 'gone', deduplication_key => 'completed')), 'completed',
    'DDP-04: the answer says how the job stands');
select is((select (type, state)::text from ojs.push('ddp.job', queue => 'gone', deduplication_key => 'removed')),
    '(,)', 'DDP-04: of a removed one only the id is left');
select is(ojs.push_job('{"type": "t", "args": [], "queue": "gone", "deduplication_key": "removed"}'),
    jsonb_build_object('id', (select id from fate where how = 'removed'), 'deduplicated', true), 'DDP-04: as JSON');
select pg_temp.clock('2 hours');
select is((ojs.tick() -> 'keys_removed')::int >= 5, true, 'DDP-04: the tick removes markers whose time is over');
select is((select count(*) from ojs_store.deduplication where expires_at < clock_timestamp() + '2 hours'), 0::bigint,
    'DDP-04: all of them');
select pg_temp.clock('0');

-- Rollback ----------------------------------------------------------------------------------------------------------

savepoint before;
select unalike(pg_temp.keyed('r'), '%again', 'DDP-05: a key');
rollback to savepoint before;
select unalike(pg_temp.keyed('r'), '%again', 'DDP-05: is free again after a rollback');
select is((select count(*) from ojs.jobs j where j.id = (pg_temp.marker('r')).job_id), 1::bigint,
    'DDP-05: marker and job belong together');
select is(pg_temp.refusal($$ select ojs.push('ddp.job', 'null', queue => 'd', deduplication_key => 's') $$) like 'OJ%',
    true, 'DDP-05: a refused push');
select is((select count(*) from ojs_store.deduplication where key = 's'), 0::bigint, 'DDP-05: takes no key');

-- Batches -----------------------------------------------------------------------------------------------------------

create function pg_temp.batch(key text,
    jobs jsonb default '[{"type": "ddp.b", "args": []}, {"type": "ddp.b", "args": []}]', ttl interval default null)
    returns text language sql as
$$ select string_agg(index || ' ' || status || case when id is null then '' else ' id' end, ', ' order by index)
    from ojs.push_many(jobs, deduplication_key => key, deduplication_ttl => ttl) $$;
select is(pg_temp.batch('m'), '0 created id, 1 created id', 'DDP-06: one key for a batch');
select is(pg_temp.batch('m'), '0 duplicate, 1 duplicate', 'DDP-06: whose second push is skipped as a whole');
select is((select count(*) from ojs.jobs where type = 'ddp.b'), 2::bigint, 'DDP-06: it makes no job');
select is((select (id, deduplicated)::text from ojs.push('ddp.b', deduplication_key => 'm')),
    (select (id, true)::text from ojs.jobs where type = 'ddp.b' order by seq limit 1),
        'a single push under the batch''s key answers with the first job of the batch (DDP-02)');
select is((ojs.push_job('{"type": "t", "args": [], "deduplication_key": "m"}') ->> 'id')::uuid,
    (select id from ojs.jobs where type = 'ddp.b' order by seq limit 1), 'as JSON too');
select is(pg_temp.batch('n', ttl => '1 s'), '0 created id, 1 created id', 'DDP-06: with a TTL');
select pg_temp.clock('1 s');
select is(pg_temp.batch('n'), '0 created id, 1 created id', 'DDP-06: until it ends');
select pg_temp.clock('0');
select is(pg_temp.batch('o', '[]'), null, 'DDP-06: an empty batch takes no key');
select is(pg_temp.refusal($$ select ojs.push_many('[{"type": "a", "args": [], "deduplication_key": "x"}]') $$),
    'OJ100 INVALID_PAYLOAD deduplication_key', 'DDP-06: keys of single jobs are refused');
select is(pg_temp.refusal($$
    select ojs.push_many('[{"type": "a", "args": []}, {"type": "a", "args": [], "queue": "q"}]',
    deduplication_key => 'x') $$),
    'OJ100 INVALID_PAYLOAD deduplication_key', 'DDP-06: so is a batch for several queues');
select is(pg_temp.refusal($$ select ojs.push_many('[{"type": "a", "args": []}]', deduplication_key => '') $$),
    'OJ100 INVALID_PAYLOAD deduplication_key', 'DDP-06: and an empty key');
select is(pg_temp.refusal(format($$ select ojs.push_many('[{"type": "a", "args": []}]', deduplication_key => %L) $$,
    repeat('x', 3000))), 'OJ100 INVALID_PAYLOAD deduplication_key', 'DDP-06: and a long one');
select is(pg_temp.refusal($$ select ojs.push_many('[{"type": "a", "args": []}]', deduplication_key => 'x',
    deduplication_ttl => '0') $$), 'OJ100 INVALID_PAYLOAD deduplication_ttl', 'DDP-06: and no time');

-- A partial batch of which jobs failed -------------------------------------------------------------------------------

create function pg_temp.partial(jobs jsonb, key text default null, idempotency text default null) returns text
    language sql as
$$ select string_agg(status || coalesce(' ' || (error ->> 'code'), ''), ', ' order by index)
   from ojs.push_many(jobs, deduplication_key => key, atomicity => 'partial', idempotency_key => idempotency) $$;
select ojs.create_queue('full', '{"max_size": 1}') \g /dev/null
select ojs.push('ddp.p', queue => 'full') \g /dev/null
select is(pg_temp.partial('[{"type": "ddp.p", "args": [1], "queue": "full"}, {"type": "ddp.p", "args": [2], "queue": '
    '"full"}]', 'P', 'I'),
    'failed QUEUE_FULL, failed QUEUE_FULL', 'a batch finds its queue full');
select ojs.purge_queue('full', confirm => true) \g /dev/null
select is(pg_temp.partial('[{"type": "ddp.p", "args": [1], "queue": "full"}, {"type": "ddp.p", "args": [2], "queue": '
    '"full"}]', 'P', 'I'),
    'created, failed QUEUE_FULL', 'nothing was stored, so both keys are free: a retry stores what it can');
select is(pg_temp.partial('[{"type": "ddp.p", "args": [1], "queue": "full"}, {"type": "ddp.p", "args": [2], "queue": '
    '"full"}]', 'P', 'I'),
    'created, failed QUEUE_FULL', 'something was stored, so the idempotency key keeps the answer');
select is((select count(*) from ojs.jobs where queue = 'full' and state = 'available'), 1::bigint,
    'and nothing is stored twice');
select ojs.configure_queue('full', '{"max_size": 9}') \g /dev/null
select is(pg_temp.partial('[{"type": "ddp.p", "args": [2], "queue": "full"}]', 'P'), 'created',
    'what failed can be sent again under the deduplication key');
select is(pg_temp.partial('[{"type": "ddp.p", "args": [2], "queue": "full"}]', 'P'), 'duplicate',
    'all of which is stored: now the key is kept');
select is(pg_temp.partial('[{"type": "ddp.p", "args": []}, {"type": "", "args": []}]', 'R'),
    'created, failed INVALID_JOB_TYPE', 'a job that cannot be read');
select is(pg_temp.partial('[{"type": "ddp.p", "args": []}]', 'R'), 'created', 'leaves the key free as well');
insert into first select 'pu', pg_temp.keyed(null, 'pu', policy => '{"keys": ["type", "queue"]}');
select is(pg_temp.partial('[{"type": "ddp.job", "args": [], "queue": "pu", "unique": {"keys": ["type", "queue"]}}]',
    'U'), 'failed DUPLICATE_JOB', 'a rejected duplicate');
select is(pg_temp.partial('[{"type": "ddp.job", "args": [1], "queue": "pu"}]', 'U'), 'created', 'does so too');
select is(pg_temp.partial('[{"type": "ddp.job", "args": [], "queue": "pu", "unique": {"keys": ["type", "queue"], '
    '"on_conflict": "ignore"}}]', 'V'), 'duplicate', 'an ignored duplicate is no failure');
select is((pg_temp.marker('V', 'pu')).job_id::text, (select id from first where key = 'pu'),
    'the key names the job in whose favour it was dropped');

-- Looking at keys, and freeing them -----------------------------------------------------------------------------------

insert into first select 'seen', pg_temp.keyed('seen', ttl => '10 min');
select is((select (k.queue, k.job_id, k.expires_at = (pg_temp.marker('seen')).expires_at)::text
    from ojs.deduplication_keys k where k.key = 'seen'),
    (select format('(d,%s,t)', id) from first where key = 'seen'),
        'ojs.deduplication_keys shows a key, its job and its end');
select is(i - 'deduplication_expires_at' ->> 'deduplication_key', 'seen', 'ojs.info shows the key'),
    is((i ->> 'deduplication_expires_at')::timestamptz, (pg_temp.marker('seen')).expires_at, 'and its end')
from first, ojs.info(id::uuid) i where key = 'seen';
select is(ojs.push_job(ojs.info(id::uuid)) ->> 'id', id,
    'an envelope that is shown can be pushed again: its key is held') from first where key = 'seen';
select is(ojs.free_deduplication_key('d', 'seen'), true, 'an administrator frees a key');
select is((select data - 'freed_by' from ojs.events where type = 'queue.deduplication_key_freed'),
    (select jsonb_build_object('queue', 'd', 'key', 'seen', 'job_id', id) from first where key = 'seen'),
        'and there is an event of it');
select is(ojs.info(id::uuid) ? 'deduplication_key', false, 'it is no longer shown') from first where key = 'seen';
select unalike(pg_temp.keyed('seen'), '%again', 'the next push makes a job');
select is(ojs.free_deduplication_key('d', 'no such key'), false, 'nothing holds it: false');
select is(pg_temp.refusal($$ select ojs.free_deduplication_key('none', 'x') $$), 'OJ300 NOT_FOUND', 'no such queue');
select is(pg_temp.refusal($$ select ojs.free_deduplication_key('d', null) $$), 'OJ100 INVALID_PAYLOAD key', 'no key');
select pg_temp.keyed('past', ttl => '1 s') \g /dev/null
select pg_temp.clock('2 s');
select is(ojs.free_deduplication_key('d', 'past'), false, 'its time is over: nothing holds it');
select is((select count(*) from ojs.deduplication_keys where key = 'past'), 0::bigint, 'nor is it shown');
select pg_temp.clock('0');

-- Keys are found by their index, also where their table was small when the session began.
create function pg_temp.read_of(tab regclass) returns bigint language sql as $$
    select pg_stat_get_xact_tuples_returned(tab) $$;
analyze ojs_store.deduplication;
analyze ojs_store.idempotency;
select pg_temp.read_of('ojs_store.deduplication') as keys, pg_temp.read_of('ojs_store.idempotency') as answers \gset
select count(pg_temp.keyed('grow' || i)) + count(pg_temp.keyed('grow' || i)) from generate_series(1, 50) i \g /dev/null
select count(pg_temp.partial('[{"type": "a.b", "args": []}]', null, 'grow' || i))
    from generate_series(1, 50) i \g /dev/null
select is(pg_temp.read_of('ojs_store.deduplication') - :keys, 0::bigint,
    'no push reads the whole table of deduplication keys');
select is(pg_temp.read_of('ojs_store.idempotency') - :answers, 0::bigint, 'nor that of idempotency keys');

-- With uniqueness ---------------------------------------------------------------------------------------------------

insert into first select 'u', pg_temp.keyed(null, 'u', policy => '{}');
select is(pg_temp.keyed('u', 'u', policy => '{"on_conflict": "ignore"}'),
    (select id from first where key = 'u') || ' again', 'R-50: the key is free, the fingerprint is not');
select is(pg_temp.keyed('u', 'u'), (select id from first where key = 'u') || ' again',
    'R-50: the key then stands for the job that is there');
select lives_ok($$ select ojs.cancel(id::uuid) from first where key = 'u' $$, 'which ends');
select is(pg_temp.keyed('u', 'u', policy => '{}'), (select id from first where key = 'u') || ' again',
    'R-50: the deduplication key is asked first');
select is(left(pg_temp.refusal($$ select pg_temp.keyed(null, 'u', policy => '{}'),
    pg_temp.keyed('v', 'u', policy => '{}') $$), 19), 'OJ301 DUPLICATE_JOB', 'R-50: a rejected push');
select is((select count(*) from ojs_store.deduplication where key = 'v'), 0::bigint, 'R-50: takes no key');
select is((select count(*) from ojs_store.deduplication d,
    ojs_store.unique_key u where d.key = encode(u.fingerprint, 'hex')), 0::bigint,
    'DDP-09: markers and fingerprints live apart');
insert into first select 'w', ojs.fingerprint('{"type": "ddp.job", "args": [], "queue": "u", "unique": {}}');
select unalike(pg_temp.keyed((select id from first where key = 'w'), 'u2'), '%again',
    'DDP-09: a key that looks like a fingerprint is just a key');

-- The rest ------------------------------------------------------------------------------------------------------------

select is((select ojs.capabilities()
    @> '{"native_deduplication": true, "native_retrial": true, "atomic_enqueue_many": true}'), true,
    'DDP-07: capabilities');
select is((ojs.manifest() -> 'capabilities')
    @> '{"native_deduplication": true, "native_retrial": true, "atomic_enqueue_many": true}', true,
    'DDP-07: in the manifest too');
select is(pg_temp.refusal(format($$ select ojs.push('ddp.f', options => '{"dedup_fallback": "%s"}') $$, v)),
    'accepted', format('DDP-08: dedup_fallback %s is accepted', v))
from unnest('{open,closed}'::text[]) as v;
select is(left(pg_temp.refusal($$ select ojs.push('ddp.f', options => '{"dedup_fallback": "ajar"}') $$), 21),
    'OJ100 INVALID_PAYLOAD', 'DDP-08: nothing else is');
select unalike(pg_temp.keyed('open'), '%again', 'DDP-08: a key');
select is((select deduplicated from ojs.push('ddp.job', queue => 'd', deduplication_key => 'open',
    options => '{"dedup_fallback": "closed"}')), true, 'DDP-08: and it changes nothing');
select is(left(pg_temp.refusal($$ select ojs.push('ddp.f', delay => '-1 s') $$), 21), 'OJ100 INVALID_PAYLOAD',
    'DDP-10: a negative delay is refused');

select * from finish();
rollback;
