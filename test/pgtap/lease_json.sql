-- lease_json.sql: the JSON face of leases: Q-11 to Q-44 as the Queues document writes them.
-- Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();
\ir helpers.psql

create function pg_temp.put(queue text, n int) returns bigint[] language sql as
$$ select array_agg((ojs.push('work.item', jsonb_build_array(i), queue => queue)).seq) from generate_series(1, n) i $$;
create function pg_temp.call(op text, queue text, request jsonb) returns text language sql as
$$ select pg_temp.refusal(format('select ojs.lease_%s(%L, %L)', op, queue, request)) $$;
create function pg_temp.keys(object jsonb) returns text language sql as $$ select string_agg(k, ' ' order by k)
    from jsonb_object_keys(object) k $$;
create function pg_temp.token_of(claim jsonb, n int default 0) returns text language sql as $$
    select claim -> 'claimed' -> n ->> 'lease_id' $$;
create function pg_temp.seqs_of(claim jsonb) returns jsonb language sql as $$
    select coalesce(jsonb_agg(c -> '$seq'), '[]') from jsonb_array_elements(claim -> 'claimed') c $$;

-- Claim --------------------------------------------------------------------------------------------------------------

select (ojs.push('transcode', '[{"src": "a.mov"}]', queue => 'transcode', meta => '{"trace": "z9"}',
    options => '{"tag": "clip-8800"}')).seq as s1 \gset
select (ojs.push('thumbnail', '[{"src": "b.mov"}]', queue => 'transcode')).seq as s2 \gset
select (ojs.push('thumbnail', '[3]', queue => 'transcode', priority => 9)).seq as s3 \gset
select pg_temp.put('transcode', 2) is null as pushed \gset
select ojs.lease_claim('transcode', '{"node": "api-fra-1", "max": 3, "lease_ms": 30000}') as c \gset
select is(pg_temp.keys(c), 'claimed count performance ready topic', 'Q-17: the reply'),
    is(c -> 'topic', '"transcode"', 'Q-17: topic'),
    is(c -> 'count', '3', 'Q-17: count'),
    is(c -> 'ready', '2', 'Q-23: ready, after this claim'),
    is(pg_temp.keys(c -> 'performance'), 'server_total_ms throttle_wait_ms', 'Q-17: performance'),
        ok((c #>> '{performance,server_total_ms}')::numeric > 0, 'Q-17: a time'),
        is(c #> '{performance,throttle_wait_ms}', '0', 'Q-17: no wait'),
    is(pg_temp.seqs_of(c), jsonb_build_array(:s1, :s2, :s3), 'Q-18: ascending by $seq, whatever the priority')
from (select :'c'::jsonb as c) x;
select is(pg_temp.keys(e), '$seq $tag $ts data deadline deliveries id lease_id meta', 'Q-18: an entry'),
    is(e -> '$seq', to_jsonb(:s1), 'Q-12: $seq'),
    is(e -> '$tag', '"clip-8800"', 'Q-12: $tag'),
    is(e -> 'data', '{"type": "transcode", "args": [{"src": "a.mov"}]}', 'Q-18: data'),
        is(e -> 'meta', '{"trace": "z9"}', 'Q-18: meta'),
        is(e -> 'deliveries', '1', 'Q-21: the first delivery'),
    ok(e ->> 'lease_id' ~ '^lease_[0-9a-f]+$', 'Q-19: lease_id'),
        is((e ->> '$ts')::bigint,
        (select floor(extract(epoch from created_at) * 1000)::bigint from ojs.jobs where id = (e ->> 'id')::uuid),
        'Q-12: $ts is its creation'),
    is((e ->> 'deadline')::bigint,
        (select floor(extract(epoch from started_at) * 1000)::bigint + 30000 from ojs.jobs
        where id = (e ->> 'id')::uuid), 'Q-20: deadline = claim + lease, to the ms'),
    is(ojs.info((e ->> 'id')::uuid) ->> 'worker', 'api-fra-1',
        'Q-18: the envelope is reachable by id; the node is the worker')
from (select :'c'::jsonb #> '{claimed,0}' as e) x;
select is(pg_temp.keys(:'c'::jsonb #> '{claimed,1}'), '$seq $ts data deadline deliveries id lease_id',
    'Q-18: $tag and meta only where there are any');
select is((select count(distinct x -> 'deadline') from jsonb_array_elements(:'c'::jsonb -> 'claimed') x), 1::bigint,
    'Q-20: one deadline for one call');
select is(c -> 'count', '1', 'Q-14: max is 1 by default'),
    is(c -> 'ready', '1', 'Q-23: one left') from ojs.lease_claim('transcode', '{"node": "n"}') c;
select is(c -> 'count', '0', 'Q-14: max 0'),
    is(c -> 'claimed', '[]', 'Q-14: claims nothing'),
    is(c -> 'ready', '1', 'Q-14: and counts') from ojs.lease_claim('transcode', '{"node": "n", "max": 0}') c;
select is(c -> 'count', '1', 'Q-22: fewer than max: near empty')
    from ojs.lease_claim('transcode', '{"node": "n", "max": 10}') c;
select is(c -> 'count', '0', 'Q-22: empty, no error') from ojs.lease_claim('transcode', '{"node": "n", "max": 10}') c;

select pg_temp.put('many', 1100) is null as pushed \gset
select is(pg_temp.call('claim', 'many', '{}'), 'OJ100 INVALID_PAYLOAD node', 'Q-13: no node'),
    is(pg_temp.call('claim', 'many', '{"node": ""}'), 'OJ100 INVALID_PAYLOAD node', 'Q-13: an empty one'),
    is(pg_temp.call('claim', 'many', '{"node": 7}'), 'OJ100 INVALID_PAYLOAD node', 'Q-13: a number'),
        is(pg_temp.call('claim', 'many', '[]'), 'OJ100 INVALID_PAYLOAD request', 'Q-13: no object'),
    is(pg_temp.call('claim', 'many', '{"node": "n", "max": -1}'), 'OJ100 INVALID_PAYLOAD max', 'Q-14: a negative max'),
        is(pg_temp.call('claim', 'many', '{"node": "n", "max": 1.5}'), 'OJ100 INVALID_PAYLOAD max', 'Q-14: a fraction'),
    is(pg_temp.call('claim', 'many', '{"node": "n", "max": "3"}'), 'OJ100 INVALID_PAYLOAD max', 'Q-14: text'),
        is(pg_temp.call('claim', 'many', '{"node": "n", "lease_ms": "1s"}'), 'OJ100 INVALID_PAYLOAD lease_ms',
        'Q-15: a lease as text'),
    is(pg_temp.call('claim', 'many', '{"node": "n", "lease_ms": true}'), 'OJ100 INVALID_PAYLOAD lease_ms',
        'Q-15: or a boolean');
select is(pg_temp.call('claim', 'unheard-of', '{"node": "n"}'), 'OJ300 NOT_FOUND', 'Q-11: an unknown queue'),
    is(pg_temp.refusal_detail($$ select ojs.lease_claim('unheard-of', '{"node": "n"}') $$) #>> '{details,reason}',
    'topic_not_found', 'Q-11: topic_not_found'),
    is(pg_temp.call(op, 'unheard-of', '{"node": "n", "seqs": [1], "lease_ms": 1}'), 'OJ300 NOT_FOUND', 'Q-11: ' || op)
        from unnest('{ack,nack,extend}'::text[]) op;
select is((select count(*) from ojs.queues where name = 'unheard-of'), 0::bigint, 'Q-11: and none is made');
select ojs.create_queue('audit', '{"type": "log"}') is null as made \gset
select is(pg_temp.call(op, 'audit', request), 'OJ312 TOPIC_NOT_A_QUEUE', 'Q-03: a log: ' || op)
from (values ('claim', '{"node": "n"}'::jsonb), ('ack', '{"node": "n", "seqs": [1]}'),
    ('nack', '{"node": "n", "seqs": [1]}'), ('extend', '{"node": "n", "seqs": [1], "lease_ms": 1}')) r (op, request);
-- Members that do nothing.
select is(pg_temp.call(op, 'many', needed || jsonb_build_object(extra, 1)), 'OJ100 INVALID_PAYLOAD ' || extra,
    format('%s refuses %s, which it does not take: R-89', op, extra))
from (values ('claim', '{"node": "n", "max": 0}'::jsonb, '{nodes,seqs,delay_ms}'::text[]),
    ('ack', '{"node": "n", "seqs": [1]}', '{nodes,lease_ms,result}'),
    ('nack', '{"node": "n", "seqs": [1]}', '{nodes,lease_ms,error}'),
    ('extend', '{"node": "n", "seqs": [1], "lease_ms": 1}', '{nodes,delay_ms,max}')) r (op, needed, extras),
    unnest(extras) extra;
select throws_ok($$ select ojs.lease_claim('many', '{"node": "n", "nodes": 1}') $$, 'OJ100',
    'nodes is nothing that this request takes', 'the refusal names what it does not take: R-89');
select pg_temp.token_of(ojs.lease_claim('many', '{"node": "a", "lease_ms": 1}')) as t1,
    pg_temp.token_of(ojs.lease_claim('many', '{"node": "a", "lease_ms": 1e12}')) as t2,
    pg_temp.token_of(ojs.lease_claim('many', '{"node": "a"}')) as t3 \gset
select is((select lease_expires_at - claimed_at from ojs.leases where lease_id = :'t1'), '100 ms',
    'Q-15: clamped from below'),
    is((select lease_expires_at - claimed_at from ojs.leases where lease_id = :'t2'),
    '1 day', 'Q-15: and from above'),
    is((select lease_expires_at - claimed_at from ojs.leases where lease_id = :'t3'), '30 s',
        'Q-15: the queue''s by default');
select is(c -> 'count', '1000', 'Q-14: max 2000 is taken as 1000')
    from ojs.lease_claim('many', '{"node": "b", "max": 2000}') c;

-- Ack ----------------------------------------------------------------------------------------------------------------

select pg_temp.put('acks', 6) as s \gset
select (:'s'::bigint[])[1] as a1, (:'s'::bigint[])[2] as a2, (:'s'::bigint[])[3] as a3, (:'s'::bigint[])[4] as a4,
    (:'s'::bigint[])[5] as a5, (:'s'::bigint[])[6] as a6 \gset
select ojs.lease_claim('acks', '{"node": "x", "max": 3}') as cx, ojs.lease_claim('acks', '{"node": "y"}') as cy \gset
select is(pg_temp.call('ack', 'acks', '{"node": "x"}'), 'OJ100 INVALID_PAYLOAD seqs', 'Q-28: no seqs'),
    is(pg_temp.call('ack', 'acks', '{"seqs": [1]}'), 'OJ100 INVALID_PAYLOAD node', 'Q-28: no node'),
    is(pg_temp.call('ack', 'acks', '{"node": "x", "seqs": []}'), 'OJ100 INVALID_PAYLOAD seqs', 'Q-28: empty'),
    is(pg_temp.call('ack', 'acks', '{"node": "x", "seqs": ["1"]}'), 'OJ100 INVALID_PAYLOAD seqs', 'Q-28: text'),
        is(pg_temp.call('ack', 'acks', '{"node": "x", "seqs": [1.5]}'), 'OJ100 INVALID_PAYLOAD seqs',
        'Q-28: a fraction'),
        is(pg_temp.call('ack', 'acks', '{"node": "x", "seqs": [1e30]}'),
        'OJ100 INVALID_PAYLOAD seqs', 'Q-28: too large'),
    is(pg_temp.call('ack', 'acks', '{"node": "x", "seqs": 1}'), 'OJ100 INVALID_PAYLOAD seqs', 'Q-28: no array'),
    is(pg_temp.call('ack', 'acks', jsonb_build_object('node', 'x', 'seqs',
        (select jsonb_agg(i) from generate_series(1, 1001) i))), 'OJ118 BATCH_SIZE_EXCEEDED seqs', 'Q-28: 1001'),
    is(pg_temp.call('ack', 'acks', jsonb_build_object('node', 'x', 'seqs',
        (select jsonb_agg(i) from generate_series(1, 1000) i))), 'accepted', 'Q-28: 1000'),
    is(pg_temp.call('ack', 'acks', '{"node": "x", "seqs": [1, 2], "lease_ids": ["lease_0"]}'),
        'OJ100 INVALID_PAYLOAD lease_ids', 'Q-31: another length'),
        is(pg_temp.call('ack', 'acks', '{"node": "x", "seqs": [1], "lease_ids": [7]}'),
        'OJ100 INVALID_PAYLOAD lease_ids', 'Q-31: not texts'),
    is(pg_temp.call('ack', 'acks', '{"node": "x", "seqs": [1], "lease_ids": "lease_0"}'),
        'OJ100 INVALID_PAYLOAD lease_ids', 'Q-31: no array');
select ojs.lease_ack('acks', jsonb_build_object('node', 'x', 'seqs',
    jsonb_build_array(999999999, :a1, :a4, :a5, :a1, :a2))) as r \gset
select is(pg_temp.keys(r), 'acked in_flight performance ready skipped topic', 'Q-34: the reply'),
    is(r -> 'topic', '"acks"', 'Q-34: topic'),
    is(r -> 'acked', '2', 'Q-29: two were held'),
    is(r -> 'skipped', jsonb_build_array(999999999, :a4, :a5, :a1),
        'Q-29 Q-35: the unknown, another node''s, an unclaimed one and the second naming, in the order of the request'),
    is(r -> 'ready', '2', 'Q-34: ready'),
    is(r -> 'in_flight', '2', 'Q-34: in_flight'),
        is(pg_temp.keys(r -> 'performance'), 'fsync_ms server_total_ms', 'Q-34: performance'),
        is(r #> '{performance,fsync_ms}', '0', 'Q-34: fsync_ms is 0')
from (select :'r'::jsonb as r) x;
select is((select string_agg(state, ' ' order by seq) from ojs.jobs where queue = 'acks'),
    'completed completed active active available available', 'R-23: acked is completed');
select is(r -> 'acked', '0', 'Q-30: again'),
    is(r -> 'skipped', jsonb_build_array(:a1, :a2), 'Q-30: all skipped')
    from ojs.lease_ack('acks', jsonb_build_object('node', 'x', 'seqs', jsonb_build_array(:a1, :a2))) r;
select is(r -> 'skipped', jsonb_build_array(:a3), 'Q-31: a wrong token')
    from ojs.lease_ack('acks', jsonb_build_object('node', 'x', 'seqs', jsonb_build_array(:a3), 'lease_ids',
    jsonb_build_array(pg_temp.token_of(:'cy')))) r;
select is(r -> 'skipped', jsonb_build_array(:a4), 'Q-29: of another queue''s name too')
    from ojs.lease_ack('transcode', jsonb_build_object('node', 'y', 'seqs', jsonb_build_array(:a4))) r;
select is(r -> 'acked', '1', 'Q-31: the right one, among others'),
    is(r -> 'skipped', '[4]', 'Q-31: each its own') from ojs.lease_ack('acks',
    jsonb_build_object('node', 'x', 'seqs', jsonb_build_array(4, :a3), 'lease_ids',
    jsonb_build_array('lease_zz', pg_temp.token_of(:'cx', 2)))) r;

-- Fencing: A holds, its lease ends, B claims.
select pg_temp.put('fence', 1) as s \gset
select (:'s'::bigint[])[1] as f \gset
select ojs.lease_claim('fence', '{"node": "A"}') as ca \gset
select pg_temp.clock('1 minute') \g /dev/null
select ojs.lease_claim('fence', '{"node": "B"}') as cb \gset
select is(:'cb'::jsonb #> '{claimed,0,deliveries}', '2', 'Q-21: the second delivery'),
    isnt(pg_temp.token_of(:'cb'), pg_temp.token_of(:'ca'), 'Q-19: with a lease of its own');
select is(r -> 'skipped', jsonb_build_array(:f), 'Q-32: A''s token is stale')
    from ojs.lease_ack('fence', jsonb_build_object('node', 'A', 'seqs', jsonb_build_array(:f), 'lease_ids',
    jsonb_build_array(pg_temp.token_of(:'ca')))) r;
select is(r -> 'skipped', jsonb_build_array(:f), 'Q-32: without it, the node is checked')
    from ojs.lease_ack('fence', jsonb_build_object('node', 'A', 'seqs', jsonb_build_array(:f))) r;
select is(r -> 'skipped', jsonb_build_array(:f), 'Q-43: an extension too')
    from ojs.lease_extend('fence', jsonb_build_object('node', 'A', 'lease_ms', 1000, 'seqs', jsonb_build_array(:f))) r;
select is(worker, 'B', 'Q-32: B still holds it') from ojs.leases where queue = 'fence';
select pg_temp.clock('2 minutes') \g /dev/null
select ojs.lease_claim('fence', '{"node": "B"}') as cb2 \gset
select is(r -> 'skipped', jsonb_build_array(:f), 'Q-33: the same node''s older token is stale')
    from ojs.lease_ack('fence', jsonb_build_object('node', 'B', 'seqs', jsonb_build_array(:f), 'lease_ids',
    jsonb_build_array(pg_temp.token_of(:'cb')))) r;
select pg_temp.clock('170 seconds') \g /dev/null
select is(r -> 'acked', '1', 'Q-33 Q-36 R-21: the new one works, late but not yet reclaimed')
    from ojs.lease_ack('fence', jsonb_build_object('node', 'B', 'seqs', jsonb_build_array(:f), 'lease_ids',
    jsonb_build_array(pg_temp.token_of(:'cb2')))) r;
select pg_temp.clock('0') \g /dev/null
select pg_temp.put('late', 1) as s \gset
select ojs.lease_claim('late', '{"node": "A"}') is null as claimed \gset
select pg_temp.clock('1 minute') \g /dev/null
select ojs.tick() is null as ticked \gset
select is(ojs.lease_ack('late', jsonb_build_object('node', 'A', 'seqs', to_jsonb(:'s'::bigint[]))) -> 'skipped',
    to_jsonb(:'s'::bigint[]), 'Q-36 R-21: late, after a tick has taken it back: skipped');
select pg_temp.clock('0') \g /dev/null

-- Nack ---------------------------------------------------------------------------------------------------------------

select pg_temp.put('nacks', 3) as s \gset
select (:'s'::bigint[])[1] as n1, (:'s'::bigint[])[2] as n2, (:'s'::bigint[])[3] as n3 \gset
select ojs.lease_claim('nacks', '{"node": "x", "max": 3}') is null as claimed \gset
select ojs.lease_nack('nacks', jsonb_build_object('node', 'x', 'seqs', jsonb_build_array(:n1, 77))) as r \gset
select is(pg_temp.keys(r), 'in_flight nacked performance ready skipped topic', 'Q-40: the reply'),
    is(r -> 'nacked', '1', 'Q-38: one'),
    is(r -> 'skipped', '[77]', 'Q-38: the rest is skipped'),
    is(r -> 'ready', '1', 'Q-39: at once by default'),
    is(r -> 'in_flight', '2', 'Q-40: in_flight'),
    is(pg_temp.keys(r -> 'performance'), 'server_total_ms', 'Q-40: performance') from (select :'r'::jsonb as r) x;
select is(pg_temp.at(id), 'available/0/1', 'Q-39 R-19: no error, the attempt refunded, the delivery not'),
    is(errors, null, 'Q-39: no error') from ojs.jobs where seq = :n1;
select is(r -> 'ready', '1', 'Q-39: a delayed one is not ready')
    from ojs.lease_nack('nacks', jsonb_build_object('node', 'x', 'seqs', jsonb_build_array(:n2), 'delay_ms', 60000)) r;
select is(r -> 'nacked', '1', 'Q-38: a huge delay is clamped')
    from ojs.lease_nack('nacks', jsonb_build_object('node', 'x', 'seqs', jsonb_build_array(:n3), 'delay_ms', 1e15)) r;
select is(pg_temp.call('nack', 'nacks', '{"node": "x", "seqs": [1], "delay_ms": "1"}'),
    'OJ100 INVALID_PAYLOAD delay_ms', 'Q-38: a delay as text'),
    is(pg_temp.call('nack', 'nacks', '{"node": "x", "seqs": [1], "delay_ms": -5}'), 'accepted',
    'Q-38: a negative one is 0');
select pg_temp.clock('61 seconds') \g /dev/null
select is(pg_temp.seqs_of(c), jsonb_build_array(:n1, :n2), 'Q-39: after the delay, claimable'),
    is(c #> '{claimed,0,deliveries}', '2', 'Q-21: deliveries go on')
    from ojs.lease_claim('nacks', '{"node": "x", "max": 9}') c;
select pg_temp.clock('86500 seconds') \g /dev/null
select is(pg_temp.seqs_of(c), jsonb_build_array(:n1, :n2, :n3), 'Q-38: a day at most')
    from ojs.lease_claim('nacks', '{"node": "x", "max": 9}') c;
select pg_temp.clock('0') \g /dev/null

-- Extend -------------------------------------------------------------------------------------------------------------

select pg_temp.put('extends', 3) as s \gset
select (:'s'::bigint[])[1] as e1, (:'s'::bigint[])[2] as e2, (:'s'::bigint[])[3] as e3 \gset
select ojs.lease_claim('extends', '{"node": "x", "max": 2}') as c \gset
select is(pg_temp.call('extend', 'extends', '{"node": "x", "seqs": [1]}'), 'OJ100 INVALID_PAYLOAD lease_ms',
    'Q-41: no lease_ms'),
    is(pg_temp.call('extend', 'extends', '{"node": "x", "seqs": [1], "lease_ms": "9"}'),
    'OJ100 INVALID_PAYLOAD lease_ms', 'Q-41: as text');
select ojs.lease_extend('extends', jsonb_build_object('node', 'x', 'seqs', jsonb_build_array(:e3, :e1), 'lease_ms',
    90000)) as r \gset
select is(pg_temp.keys(r), 'deadlines extended performance skipped topic', 'Q-42: the reply'),
    is(r -> 'extended', '1', 'Q-42: one'),
    is(r -> 'skipped', jsonb_build_array(:e3), 'Q-43: what is not held'),
    is(pg_temp.keys(r -> 'deadlines'), :'e1', 'Q-42: its deadline by its number, as text'),
    is((r -> 'deadlines' ->> :'e1')::bigint,
        (select floor(extract(epoch from lease_expires_at) * 1000)::bigint from ojs.leases
        where lease_id = pg_temp.token_of(:'c')), 'Q-41: the lease''s new deadline, its token the same')
        from (select :'r'::jsonb as r) x;
select ok((r -> 'deadlines' ->> :'e1')::bigint < (:'r'::jsonb -> 'deadlines' ->> :'e1')::bigint,
    'Q-41: set, not added: it may shorten') from ojs.lease_extend('extends',
    jsonb_build_object('node', 'x', 'seqs', jsonb_build_array(:e1), 'lease_ms', 1)) r;
select is((select deliveries from ojs.jobs where seq = :e1), 1, 'Q-42: deliveries stay');
select (ojs.cancel(id)).state as s1 from ojs.jobs where seq = :e1 \gset
select is(ojs.lease_ack('extends', jsonb_build_object('node', 'x', 'seqs', jsonb_build_array(:e1))) -> 'skipped',
    jsonb_build_array(:e1), 'Q-44: a cancelled job: ack'),
    is(ojs.lease_nack('extends', jsonb_build_object('node', 'x', 'seqs', jsonb_build_array(:e1))) -> 'skipped',
        jsonb_build_array(:e1), 'Q-44: nack'),
    is(ojs.lease_extend('extends', jsonb_build_object('node', 'x', 'seqs', jsonb_build_array(:e1), 'lease_ms',
        100)) -> 'skipped', jsonb_build_array(:e1), 'Q-44: extend'),
    is(ojs.lease_extend('extends', jsonb_build_object('node', 'x', 'seqs', jsonb_build_array(:e1), 'lease_ms',
        100)) -> 'deadlines', '{}', 'Q-42: no deadlines then');
select is(c -> 'count', '1', 'Q-45: lazily, without a tick') from (select pg_temp.clock('1 minute') is null) t(x),
    lateral ojs.lease_claim('extends', '{"node": "z"}') c;
select pg_temp.clock('0') \g /dev/null

-- The order of a claim, and rights.
set local role ojs_worker;
select is(ojs.lease_claim('acks', '{"node": "w"}') -> 'count', '1', 'PGX-12: a worker claims');
set local role ojs_producer;
select throws_ok($$ select ojs.lease_claim('acks', '{"node": "w"}') $$, '42501', null, 'PGX-12: a producer does not');
reset role;

select * from finish();
rollback;
