-- capacity.sql: bounds of queues: BP-01 to BP-06, Q-09, QC-02, INT-06, HTTP-08. Many producers at once, crashes and
-- prepared transactions: test/tap/capacity.pl; two producers: test/specs/capacity.spec.
begin;
select no_plan();
\ir helpers.psql

create function pg_temp.bounded(queue text, max_size int, more jsonb default '{}') returns text language sql as
$$ select ojs.create_queue(queue, more || jsonb_build_object('max_size', max_size)) ->> 'name' $$;
-- How n pushes, one after the other, came out: the number of those taken, and the last refusal.
create function pg_temp.pushes(queue text, n int, priority int default 0) returns text language plpgsql as $$
declare
    taken int := 0;
    refused text;
begin
    for i in 1 .. n loop
        begin
            perform ojs.push('test.job', jsonb_build_array(i), queue => queue, priority => priority);
            taken := taken + 1;
        exception when sqlstate 'OJ601' then refused := 'QUEUE_FULL';
        end;
    end loop;
    return concat_ws(' ', taken, refused);
end $$;
create function pg_temp.batch(queues text) returns jsonb language sql as $$
    select jsonb_agg(jsonb_build_object('type', 'test.job', 'args', '[]'::jsonb, 'queue', q))
        from string_to_table(queues, ' ') q
$$;
create function pg_temp.states(queue text) returns text language sql stable as $$
    select string_agg(n || ' ' || state, ', ' order by state)
        from (select state, count(*) n from ojs.jobs j where j.queue = $1 group by state) s
$$;
create function pg_temp.waiting(queue text) returns bigint language sql as
$$ select (ojs.queue_info(queue) #>> '{stats,depth}')::bigint $$;
create function pg_temp.http_push(queue text, headers jsonb default '{}') returns text language sql as $$
    select concat_ws(' ', h.status, h.headers ->> 'X-OJS-Queue-Depth', h.headers ->> 'X-OJS-Queue-Bound',
        h.headers ->> 'X-OJS-Queue-Pressure', h.headers ->> 'Retry-After', h.body::jsonb #>> '{error,code}')
    from ojs.http('POST', '/ojs/v1/jobs', headers || '{"Content-Type": "application/json"}',
        jsonb_build_object('type', 'test.job', 'args', '[]'::jsonb, 'queue', queue)::text) h
$$;

-- Settings -----------------------------------------------------------------------------------------------------------

create function pg_temp.set_to(setting text, value text) returns jsonb language sql as
$$ select ojs.configure_queue('set', format('{"%s": %s}', setting, value)::jsonb) #> array['config', setting] $$;
create function pg_temp.refused(setting text, value text) returns text language sql as
$$ select pg_temp.refusal(format($f$ select ojs.configure_queue('set', '{"%s": %s}') $f$, setting, value)) $$;
select is(pg_temp.set_to('warning_threshold', '0.5'), '0.5', 'BP-05: warning_threshold'),
    is(pg_temp.set_to('warning_threshold', 'null'), '0.8', 'BP-05: 0.8 by default'),
    is(pg_temp.set_to('warning_threshold', '1'), '1', 'BP-05: up to 1'),
        is(pg_temp.set_to('warning_threshold', '0'), '0', 'BP-05: from 0'),
    is(pg_temp.refused('warning_threshold', '1.01'), 'OJ100 INVALID_PAYLOAD warning_threshold', 'BP-05: not above 1'),
    is(pg_temp.refused('warning_threshold', '-0.1'), 'OJ100 INVALID_PAYLOAD warning_threshold', 'BP-05: not below 0'),
    is(pg_temp.refused('warning_threshold', '"high"'), 'OJ100 INVALID_PAYLOAD warning_threshold', 'BP-05: a number');
select is(pg_temp.set_to('block_timeout', '2.5'), '2.5', 'BP-03: block_timeout in seconds'),
    is(pg_temp.set_to('block_timeout', '"PT3S"'), '3', 'BP-03: or ISO 8601'),
    is(ojs.configure_queue('set', '{"block_timeout_ms": 150}') #> '{config,block_timeout}', '0.15',
        'BP-03: or milliseconds'),
    is(pg_temp.set_to('block_timeout', '3600'), '30', 'BP-03: at most 30 seconds'),
        is(pg_temp.set_to('block_timeout', 'null'), '0', 'BP-03: none by default'),
    is(pg_temp.refused('block_timeout', '-1'), 'OJ100 INVALID_PAYLOAD block_timeout', 'BP-03: not negative');

-- reject -------------------------------------------------------------------------------------------------------------

select is(pg_temp.bounded('three', 3), 'three', 'a queue for three');
select is(pg_temp.pushes('three', 5), '3 QUEUE_FULL', 'BP-01 Q-09: three jobs find a place, the fourth does not');
select is(pg_temp.states('three'), '3 available', 'Q-09: nothing is stored of it');
select is(pg_temp.refusal($$ select ojs.push('test.job', queue => 'three') $$), 'OJ601 QUEUE_FULL retryable',
    'BP-01: QUEUE_FULL says that it may be tried again');
select is(pg_temp.refusal_detail($$ select ojs.push('test.job', queue => 'three') $$) -> 'details',
    '{"queue": "three", "depth": 3, "bound": 3, "strategy": "reject", "jobs": 1, "retry_after_seconds": 1}',
        'BP-01: with depth, bound and when to try again');
select is(pg_temp.refusal($$ select ojs.push_job('{"type": "test.job", "args": [], "queue": "three"}') $$),
    'OJ601 QUEUE_FULL retryable', 'BP-01: push_job too');
select is((select count(*) from ojs.claim('three', 'w', 2)), 2::bigint, 'two are claimed');
select is(pg_temp.pushes('three', 5), '2 QUEUE_FULL', 'BP-02: what is held takes no place');
select is((select count(*) from (select ojs.ack(job_id) from ojs.leases where queue = 'three') a), 2::bigint,
    'they are finished');
select is(pg_temp.pushes('three', 1), '0 QUEUE_FULL', 'BP-02: which makes no more room');
select is((select state
    from ojs.cancel((select id from ojs.jobs where queue = 'three' and state = 'available' limit 1))), 'cancelled',
    'one is cancelled');
select is(pg_temp.pushes('three', 2), '1 QUEUE_FULL', 'BP-02: a cancelled job makes room');
select is(ojs.purge_queue('three', confirm => true), 3::bigint, 'the queue is purged');
select is(pg_temp.pushes('three', 4), '3 QUEUE_FULL', 'BP-02: a purge does');
set local session_replication_role = replica;
select is(ojs.purge_queue('three', confirm => true), 3::bigint, 'it is purged by a session that acts as a replica');
reset session_replication_role;
select is(pg_temp.pushes('three', 4), '3 QUEUE_FULL', 'BP-02: that purge does, too');
select is((select string_agg(format('%s of %s', tgname, tgrelid::regclass), ', ') from pg_trigger
    where tgrelid::regclass::text like 'ojs_store.%' and not tgisinternal and tgenabled <> 'A'), null,
    'no trigger of ojs depends on what the session acts as');

select is(pg_temp.bounded('kinds', 5), 'kinds', 'a queue for five');
select ojs.push('test.job', queue => 'kinds', delay => '1 hour') is null,
    ojs.push('test.job', queue => 'kinds', pending => true) is null \g /dev/null
select is((select state from ojs.fail(pg_temp.held('kinds'), '{"type": "E", "message": "m"}', delay => '1 hour')),
    'retryable', 'one retryable');
select is((select state from ojs.nack(pg_temp.held('kinds'), '1 hour')), 'available', 'one given back with a delay');
select is(pg_temp.waiting('kinds'), 4::bigint, 'BP-02: scheduled, pending, retryable and delayed jobs wait');
select is(pg_temp.pushes('kinds', 3), '1 QUEUE_FULL', 'BP-02: and take places');

select is(ojs.configure_queue('three', '{"max_size": 0}') #> '{config,max_size}', '0', 'no bound'),
    is(pg_temp.pushes('three', 5), '5', 'BP-02: 0 is no bound');
select is(ojs.configure_queue('three', '{"max_size": 4}') #> '{config,max_size}', '4', 'a bound below what waits'),
    is(pg_temp.pushes('three', 1), '0 QUEUE_FULL', 'BP-02: nothing new');
select is(ojs.configure_queue('three', '{"max_size": null}') #> '{config,max_size}', '0', 'none again'),
    is(pg_temp.pushes('three', 5), '5', 'BP-02: null is no bound');
select ojs.configure_queue('_default', '{"max_size": 2}') is null \g /dev/null
select is(pg_temp.pushes('brand-new', 3), '2 QUEUE_FULL',
    'QC-03: the default policy bounds queues that are made by their first push');
select is(pg_temp.bounded('own-bound', 3), 'own-bound', 'a bound of its own'),
    is(pg_temp.pushes('own-bound', 4), '3 QUEUE_FULL', 'QC-03: which goes first');
select ojs.configure_queue('_default', '{"max_size": null}') is null \g /dev/null

-- Savepoints: a place goes back with what took it.
select is(pg_temp.bounded('saved', 2), 'saved', 'a queue for two');
savepoint a;
select is(pg_temp.pushes('saved', 3), '2 QUEUE_FULL', 'BP-01: full inside a savepoint');
rollback to a;
select is(pg_temp.pushes('saved', 1), '1', 'BP-01: a rolled back push gives its place back at once');
savepoint a;
select is((select count(*) from ojs.claim('saved', 'w')), 1::bigint, 'a claim'),
    is(pg_temp.pushes('saved', 3), '2 QUEUE_FULL', 'BP-01: the transaction''s own claim makes room for it');
rollback to a;
select is(pg_temp.pushes('saved', 3), '1 QUEUE_FULL', 'BP-01: and takes it with it');
select is(pg_temp.states('saved'), '2 available', 'BP-01: two in all');

-- A log is never claimed: its bound is its end, or with drop_oldest a ring.
select is(pg_temp.bounded('ring', 3, '{"type": "log", "discard": "drop_oldest"}'), 'ring', 'a log for three'),
    is(pg_temp.pushes('ring', 5), '5', 'BP-03: a ring');
select is((select array_agg(args ->> 0 order by seq) from ojs.jobs where queue = 'ring' and state = 'available'),
    '{3,4,5}', 'BP-03: of the last three');

-- Batches ------------------------------------------------------------------------------------------------------------

select is(pg_temp.bounded('batch', 3), 'batch', 'a queue for three'),
    is(pg_temp.bounded('batch2', 1), 'batch2', 'and one for one');
select is(pg_temp.refusal_detail($$ select ojs.push_many(pg_temp.batch('batch batch batch batch')) $$)
    #> '{details,jobs}', '4', 'BP-04: a batch that does not fit');
select is(pg_temp.states('batch'), null, 'BP-04: is refused whole');
select is((select count(*) from ojs.push_many(pg_temp.batch('batch batch'))), 2::bigint,
    'BP-04: one that fits is stored');
select is(pg_temp.refusal($$ select ojs.push_many(pg_temp.batch('batch batch')) $$), 'OJ601 QUEUE_FULL retryable',
    'BP-04: two do not find two places in one');
select is(pg_temp.refusal($$ select ojs.push_many(pg_temp.batch('free batch2 batch batch2')) $$),
    'OJ601 QUEUE_FULL retryable', 'BP-04: over several queues, one is too full');
select is(pg_temp.waiting('batch'), 2::bigint, 'BP-04: nothing in the others'),
    is(pg_temp.refusal($$ select ojs.queue_info('free') $$) like '%NOT_FOUND%', true, 'BP-04: not even a new queue');
select is((select string_agg(status, ' ' order by index)
    from ojs.push_many(pg_temp.batch('batch batch batch2 free batch2'), atomicity => 'partial')),
    'created failed created created failed', 'BP-04: a partial batch stores what finds a place');
select is((select error ->> 'code' from ojs.push_many(pg_temp.batch('batch'), atomicity => 'partial')), 'QUEUE_FULL',
    'BP-04: and says why not');
select is(pg_temp.waiting('batch'), 3::bigint, 'BP-04: three'),
    is(pg_temp.waiting('batch2'), 1::bigint, 'BP-04: and one');

-- What takes no place (INT-06) ---------------------------------------------------------------------------------------

select is(pg_temp.bounded('uniq', 2), 'uniq', 'a queue for two');
select is((select deduplicated from ojs.push('test.job', '[1]', queue => 'uniq',
    "unique" => '{"keys": ["type", "args"], "on_conflict": "ignore"}')), false, 'a unique job');
select is((select deduplicated from ojs.push('test.job', '[2]', queue => 'uniq', deduplication_key => 'k')), false,
    'one with a key');
select is((select deduplicated from ojs.push('test.job', '[1]', queue => 'uniq',
    "unique" => '{"keys": ["type", "args"], "on_conflict": "ignore"}')), true,
    'INT-06: an ignored duplicate needs no place');
select is((select deduplicated from ojs.push('test.job', '[2]', queue => 'uniq', deduplication_key => 'k')), true,
    'INT-06: nor a deduplicated push');
select is(pg_temp.refusal($$ select ojs.push('test.job', '[1]', queue => 'uniq',
    "unique" => '{"keys": ["type", "args"], "on_conflict": "reject"}') $$) like 'OJ301 DUPLICATE_JOB%', true,
    'OP-01: uniqueness is asked first');
select is((select state from ojs.push('test.job', '[1]', queue => 'uniq',
    "unique" => '{"keys": ["type", "args"], "on_conflict": "replace"}')), 'available',
    'BP-01: a replacement takes the place of what it replaces');
select is(pg_temp.states('uniq'), '2 available, 1 cancelled', 'BP-01: two wait');
select is(pg_temp.refusal($$ select ojs.push('test.job', '[3]', queue => 'uniq', deduplication_key => 'other') $$),
    'OJ601 QUEUE_FULL retryable', 'BP-01: another does not fit');
select is((select count(*) from ojs.claim('uniq', 'w')), 1::bigint, 'one place'),
    is((select deduplicated from ojs.push('test.job', '[3]', queue => 'uniq', deduplication_key => 'other')), false,
    'DDP-06: a refused push has not used its key');
select is((select string_agg(status, ' ' order by index)
    from ojs.push_many(jsonb_build_array(u, u), atomicity => 'partial')), 'failed failed',
    'BP-04: unique jobs of a batch are refused one by one')
from (select '{"type": "test.job", "args": [9], "queue": "uniq", "unique": {"keys": ["type", "args"], "on_conflict": '
             '"ignore"}}'::jsonb) x(u);
select is((select count(*) from ojs.claim('uniq', 'w')), 1::bigint, 'one place');
select is((select string_agg(status, ' ' order by index) from ojs.push_many(jsonb_build_array(u, u))),
    'created duplicate', 'INT-06: a duplicate within a batch needs no place')
from (select '{"type": "test.job", "args": [9], "queue": "uniq", "unique": {"keys": ["type", "args"], "on_conflict": '
             '"ignore"}}'::jsonb) x(u);
create schema capacity_hooks;
create function capacity_hooks.drop_it(job jsonb) returns jsonb language sql as $$
    select case when job -> 'args' <> '["drop me"]' then job end $$;
select ojs.register_hook('drop', 'enqueue', 'capacity_hooks.drop_it(jsonb)') is null \g /dev/null
select is((select id from ojs.push('test.job', '["drop me"]', queue => 'uniq')), null,
    'INT-06: nor a job that a hook drops');
select ojs.unregister_hook('drop') \g /dev/null

-- What comes back (BP-06) --------------------------------------------------------------------------------------------

select is(pg_temp.bounded('back', 1, '{"max_deliveries": 9, "dead_letter": "back.dlq"}'), 'back', 'a queue for one'),
    is(pg_temp.bounded('back.dlq', 1), 'back.dlq', 'and its dead letters');
create temp table mine as select i as n, pg_temp.held('back') as id from generate_series(1, 5) i;
select is(pg_temp.pushes('back', 1), '1', 'five are held, one waits');
select is((select state from ojs.nack(id)), 'available', 'BP-06: a job that is given back finds its place') from mine
    where n = 1;
select is((select state from ojs.fail(id, '{"type": "E", "message": "m"}')), 'retryable', 'BP-06: so does a retry')
    from mine where n = 2;
select is((select state from ojs.fail(id, '{"type": "E", "message": "m"}', requeue => true)), 'available',
    'BP-06: a requeue') from mine where n = 3;
select pg_temp.clock('1 hour');
select ojs.tick() is null \g /dev/null
select is(pg_temp.waiting('back'), 6::bigint, 'BP-06: leases ran out, too, and six wait where one may'),
    is(pg_temp.pushes('back', 1), '0 QUEUE_FULL', 'BP-06: nothing new before they are gone');
select pg_temp.clock('0');
select is((select count(*) from ojs.claim('back', 'w', 5)), 5::bigint, 'five go'),
    is(pg_temp.pushes('back', 1), '0 QUEUE_FULL', 'BP-02: one still waits');
select is((select count(*) from ojs.claim('back', 'w', 5)), 1::bigint, 'the last goes'),
    is(pg_temp.pushes('back', 2), '1 QUEUE_FULL', 'BP-02: one place');
select is((select state from ojs.discard(j.id)), 'discarded', 'one is discarded') from ojs.jobs j where queue = 'back'
    and state = 'available';
select is(pg_temp.pushes('back', 1), '1', 'another takes its place');
select is((select state from ojs.retry(j.id)), 'available', 'BP-06: and it is retried all the same') from ojs.jobs j
    where queue = 'back' and state = 'discarded';
select is(pg_temp.pushes('back.dlq', 2), '1 QUEUE_FULL', 'the dead letters are at their bound');
select ojs.configure_queue('back', '{"max_deliveries": 1, "max_size": null}') is null \g /dev/null
select is((select count(*) from (select ojs.nack(job_id) from ojs.leases where queue = 'back') n), 6::bigint,
    'all are given back'),
    is((select count(*) from ojs.claim('back', 'w', 9) where deliveries > 1), 0::bigint,
    'BP-06: and go to the dead letters');
select is(pg_temp.waiting('back.dlq') > 5, true, 'BP-06: which never drop any');

-- drop_oldest --------------------------------------------------------------------------------------------------------

select is(pg_temp.bounded('drop', 3, '{"overflow_policy": "drop_oldest"}'), 'drop', 'a queue that drops');
create function pg_temp.left_in(queue text) returns text language sql as
$$ select string_agg(args ->> 0, ' ' order by seq) from ojs.jobs j where j.queue = $1 and state
    not in ('discarded', 'active') $$;
select is(pg_temp.pushes('drop', 5), '5', 'BP-03: every push is taken');
select is(pg_temp.left_in('drop'), '3 4 5', 'BP-03: the oldest go');
select is((select string_agg(distinct concat_ws(' ', state, error ->> 'type', error ->> 'code', attempt), '')
    from ojs.jobs where queue = 'drop' and state = 'discarded'),
    'discarded overflow overflow 0', 'BP-03 ERR-05: discarded, with the error overflow');
select is((select count(*) from ojs.events where type = 'job.discarded' and data ->> 'queue' = 'drop'), 2::bigint,
    'EVT-03: job.discarded says so');
select is((select args ->> 0 from ojs.claim('drop', 'w')), '3', 'one is claimed'),
    is(pg_temp.pushes('drop', 1, 5), '1', 'one of a higher priority comes');
select is(pg_temp.pushes('drop', 2), '2', 'two more');
select is(pg_temp.states('drop'), '1 active, 3 available, 4 discarded', 'BP-03: a job that is held is never dropped');
select is((select array_agg(priority order by seq) from ojs.jobs where queue = 'drop' and state = 'available'),
    '{5,0,0}', 'BP-03: the oldest is so whatever its priority');
select ojs.nack(job_id) is null from ojs.leases where queue = 'drop' \g /dev/null
select is(pg_temp.waiting('drop'), 4::bigint, 'one comes back'),
    is(pg_temp.pushes('drop', 1), '1', 'the next push'),
    is(pg_temp.waiting('drop'), 3::bigint, 'BP-03: drops what is too many');
select is((select state from ojs.jobs where queue = 'drop' and args ->> 0 = '3'), 'discarded',
    'BP-03: also what was delivered before, if it is the oldest');
select is((select count(*) from ojs.push_many(pg_temp.batch('drop drop drop'))), 3::bigint,
    'BP-03: a batch drops as many as it needs'),
    is(pg_temp.waiting('drop'), 3::bigint, 'BP-03: three wait');
select is(pg_temp.refusal($$ select ojs.push_many(pg_temp.batch('drop drop drop drop')) $$),
    'OJ601 QUEUE_FULL retryable', 'BP-03: a batch that never fits is refused'),
    is(pg_temp.waiting('drop'), 3::bigint, 'BP-03: and drops nothing');
select is(pg_temp.bounded('drop-none', 2, '{"discard": "drop_oldest"}'), 'drop-none', 'another');
select ojs.push('test.job', queue => 'drop-none', delay => '1 hour') is null,
    ojs.push('test.job', queue => 'drop-none', pending => true) is null \g /dev/null
select is(pg_temp.pushes('drop-none', 1), '0 QUEUE_FULL', 'BP-03: scheduled and pending jobs are not dropped');
select is(pg_temp.states('drop-none'), '1 pending, 1 scheduled', 'BP-03: they stay');

-- block --------------------------------------------------------------------------------------------------------------

create function pg_temp.waits(queue text) returns text language plpgsql as $$
declare
    since timestamptz := clock_timestamp();
    came text := pg_temp.pushes(queue, 1);
begin
    return came || case when clock_timestamp() - since < '10 s' then ' at once' else ' late' end;
end $$;
select is(pg_temp.bounded('block', 2, '{"discard": "block", "block_timeout": 30}'), 'block',
    'a queue that lets producers wait');
select is(pg_temp.waits('block'), '1 at once', 'BP-03: not while there is room'),
    is(pg_temp.waits('block'), '1 at once', 'BP-03: nor for the last place');
select is(pg_temp.waits('block'), '0 QUEUE_FULL at once',
    'BP-03: nor where the transaction itself fills the queue, and nobody could make room');
select is(pg_temp.refusal_detail($$ select ojs.push('test.job', queue => 'block') $$) #>> '{details,strategy}',
    'block', 'BP-03: the refusal says what the queue does');

-- Warning ------------------------------------------------------------------------------------------------------------

select is(pg_temp.bounded('warn', 10, '{"warning_threshold": 0.5}'), 'warn',
    'a queue for ten, with a warning at five'),
    is(pg_temp.pushes('warn', 3), '3', 'three');
select is(ojs.push_job('{"type": "test.job", "args": [], "queue": "warn"}') -> 'backpressure',
    '{"depth": 4, "bound": 10, "pressure": 0.4}', 'BP-05: push_job answers with depth, bound and pressure');
select is(ojs.push_job('{"type": "test.job", "args": [], "queue": "three"}') ? 'backpressure', false,
    'BP-05: not for a queue without a bound');
select is(ojs.queue_info('warn') -> 'stats' @> '{"depth": 4, "bound": 10, "pressure": 0.4}', true,
    'BP-05: queue_info shows them'),
    is(ojs.queue_info('three') -> 'stats' ? 'bound', false,
    'BP-05: where there is a bound');
select is(pg_temp.http_push('warn'), '201 5 10 0.5', 'HTTP-08 BP-05: headers from the threshold on');
select ojs.configure_queue('warn', '{"warning_threshold": 0.65}') is null \g /dev/null
select is(pg_temp.http_push('warn'), '201', 'HTTP-08 BP-05: not below it'),
    is(pg_temp.http_push('warn'), '201 7 10 0.7', 'HTTP-08 BP-05: above it');
select is(pg_temp.http_push('three'), '201', 'HTTP-08: none for a queue without a bound');
select is(pg_temp.pushes('warn', 9), '3 QUEUE_FULL', 'it is full'),
    is(pg_temp.http_push('warn'), '429 10 10 1 QUEUE_FULL', 'HTTP-08: 429 with Retry-After, depth and bound');
select is(status, 201, 'a batch over HTTP'),
    is(headers ->> 'X-OJS-Queue-Pressure', '1',
    'HTTP-08: of several queues, the one nearest to its bound')
from ojs.http('POST', '/ojs/v1/jobs/batch', '{"Content-Type": "application/json"}',
    jsonb_build_object('jobs', pg_temp.batch('three own three') )::text)
where (select ojs.create_queue('own', '{"max_size": 1}') is not null);
select is(status, 429, 'HTTP-08: a batch that does not fit'),
    is(headers ->> 'X-OJS-Queue-Bound', '1', 'HTTP-08: with the bound')
from ojs.http('POST', '/ojs/v1/jobs/batch', '{"Content-Type": "application/json"}',
    jsonb_build_object('jobs', pg_temp.batch('three own'))::text);
select is(status, 207, 'BP-04: of a partial batch over HTTP'),
    is(body::jsonb #>> '{items,1,error,code}', 'QUEUE_FULL', 'BP-04: what finds no place says so')
from ojs.http('POST', '/ojs/v1/jobs/bulk', '{"Content-Type": "application/json"}',
    jsonb_build_object('jobs', pg_temp.batch('three own'))::text);
select is(status, 200, 'BP-01: bounds over HTTP'),
    is(body::jsonb -> 'config' @> '{"max_size": 1, "discard": "block", "warning_threshold": 0.5, "block_timeout": 2}',
    true, 'BP-01: in an object of their own')
from ojs.http('PUT', '/ojs/v1/admin/queues/own/config', '{"Content-Type": "application/json"}',
    '{"backpressure": {"max_depth": 1, "strategy": "block", "warning_threshold": 0.5, "block_timeout": 2}}');
select is(pg_temp.http_push('own', '{"OJS-Block-Timeout": "soon"}'), '400 invalid_request',
    'BP-03: OJS-Block-Timeout is a number');
select is(pg_temp.http_push('own', '{"OJS-Block-Timeout": "0"}'), '429 1 1 1 QUEUE_FULL',
    'BP-03: 0 waits for nothing'),
    is(current_setting('ojs.block_timeout'), '-1', 'BP-03: and only in its request');

-- The nearest of two bounds, whichever comes last in the order of locks.
select is(pg_temp.bounded('near.a', 5), 'near.a', 'two queues'),
    is(pg_temp.bounded('near.b', 5), 'near.b', 'for five each'),
    is(pg_temp.pushes('near.a', 4), '4', 'one is nearly full');
select is(headers ->> 'X-OJS-Queue-Pressure', '1', 'HTTP-08: the pressure of one')
    from ojs.http('POST', '/ojs/v1/jobs/batch', '{"Content-Type": "application/json"}',
    jsonb_build_object('jobs', pg_temp.batch('near.a near.b'))::text);
select is(ojs.purge_queue('near.a', confirm => true), 5::bigint, 'it is emptied'),
    is(pg_temp.pushes('near.b', 3), '3', 'the other fills');
select is(headers ->> 'X-OJS-Queue-Pressure', '1', 'HTTP-08: and of the other')
    from ojs.http('POST', '/ojs/v1/jobs/batch', '{"Content-Type": "application/json"}',
    jsonb_build_object('jobs', pg_temp.batch('near.a near.b'))::text);

-- Size ---------------------------------------------------------------------------------------------------------------

-- What docs/how-to/backpressure.md says that the size of a job is.
-- A value that was built by an expression is neither compressed nor short.
create function pg_temp.size_of(value jsonb) returns int language plpgsql as $$
declare
    built jsonb := value::text::jsonb;
begin
    return pg_column_size(built) - 4;
end $$;
create function pg_temp.bytes(queue text) returns bigint language sql as
$$ select (ojs.queue_info(queue) #>> '{stats,depth_bytes}')::bigint $$;
create function pg_temp.expected_bytes(queue text) returns bigint language sql as $$
    select coalesce(sum(100 + octet_length(j.type) + pg_temp.size_of(j.args) + coalesce(pg_temp.size_of(j.meta),
        0) + coalesce(pg_temp.size_of(j.retry), 0)
        + coalesce(pg_temp.size_of(j.unique_policy), 0) + coalesce(pg_temp.size_of(j.options), 0)), 0)
    from ojs_store.job j
    where j.id in (select job_id from ojs_store.ready r where r.queue = ojs_store.queue_id($1)
        union all select job_id from ojs_store.delayed l where l.queue = ojs_store.queue_id($1) and l.kind <> 5)
$$;
create function pg_temp.sized(queue text, bytes bigint, more jsonb default '{}') returns text language sql as
$$ select ojs.create_queue(queue, more || jsonb_build_object('max_size_bytes', bytes)) ->> 'name' $$;
create function pg_temp.push_sized(queue text, args jsonb default '[]') returns text language plpgsql as $$
begin
    return (ojs.push('test.job', args, queue => queue)).state;
exception when sqlstate 'OJ601' then return 'QUEUE_FULL';
end $$;
-- A job of type test.job without arguments has 112 bytes.
select is(pg_temp.sized('bytes', 336), 'bytes', 'a queue for 336 bytes');
select is(pg_temp.bytes('bytes'), 0::bigint, 'BP-02: nothing waits');
select is(pg_temp.push_sized('bytes'), 'available', 'BP-02: a job of 112 bytes');
select is(pg_temp.bytes('bytes'), 112::bigint, 'BP-02: has that size');
select is(pg_temp.push_sized('bytes') || pg_temp.push_sized('bytes'), 'availableavailable',
    'BP-02: three fill it to the byte');
select is(pg_temp.push_sized('bytes'), 'QUEUE_FULL', 'BP-02: and there is no room for another');
select is(pg_temp.refusal_detail($$ select ojs.push('test.job', queue => 'bytes') $$) -> 'details',
    '{"queue": "bytes", "depth": 3, "depth_bytes": 336, "bound_bytes": 336, "strategy": "reject", "jobs": 1, '
    '"job_bytes": 112, "retry_after_seconds": 1}', 'BP-02: the refusal says so in bytes');
select is(ojs.queue_info('bytes') -> 'stats' @> '{"depth": 3, "depth_bytes": 336, "bound_bytes": 336, "pressure": 1}',
    true, 'BP-05: so does queue_info');
select is(ojs.queue_info('bytes') -> 'stats' ? 'bound', false, 'BP-05: without a bound on their number');
select is(pg_temp.http_push('bytes'), '429 3 1 QUEUE_FULL', 'HTTP-08: 429 over HTTP');
select is((select count(*) from ojs.claim('bytes', 'w')), 1::bigint, 'one is claimed');
select is(pg_temp.bytes('bytes'), 224::bigint, 'BP-02: what is held does not count');
select is(pg_temp.push_sized('bytes', '["a longer one"]'), 'QUEUE_FULL',
    'BP-02: a larger job does not fit in its place');
select is(pg_temp.push_sized('bytes'), 'available', 'BP-02: one of its size does');
select is((select (ojs.nack(job_id, '1 hour')).state from ojs.leases where queue = 'bytes'), 'available',
    'it comes back with a delay');
select is(pg_temp.bytes('bytes'), 448::bigint, 'BP-06: beyond the bound');
select is((select (ojs.fail(id, '{"type": "t", "message": "m"}', delay => '1 hour')).state
    from ojs.claim('bytes', 'w')), 'retryable', 'one is tried again later');
select is((select (ojs.cancel(id)).state from ojs.claim('bytes', 'w')), 'cancelled', 'one is cancelled');
select is(pg_temp.bytes('bytes'), 336::bigint, 'BP-02: retryable jobs count');
select is((select count(*) from ojs.claim('bytes', 'w')), 1::bigint, 'one is claimed');
select ojs.push('test.job', queue => 'bytes', delay => '1 hour') is null \g /dev/null
select is(pg_temp.bytes('bytes'), 336::bigint, 'BP-02: scheduled ones too');
select is(pg_temp.expected_bytes('bytes'), 336::bigint, 'BP-02: by the rows');
select is(pg_temp.push_sized('bytes'), 'QUEUE_FULL', 'BP-02: full');
select is(ojs.purge_queue('bytes', confirm => true), 3::bigint, 'a purge');
select is(pg_temp.bytes('bytes'), 0::bigint, 'BP-02: empties it');
savepoint a;
select is(pg_temp.push_sized('bytes') || pg_temp.push_sized('bytes') || pg_temp.push_sized('bytes')
    || pg_temp.push_sized('bytes'), 'availableavailableavailableQUEUE_FULL', 'BP-02: full inside a savepoint');
rollback to a;
select is(pg_temp.push_sized('bytes', '["abcdefgh", "ijklmnop", "qrstuvwx"]'), 'available',
    'BP-02: a rolled back push gives its room back');
select is(pg_temp.bytes('bytes'), pg_temp.expected_bytes('bytes'), 'BP-02: JSON counts as it is stored');
select is(pg_temp.refusal_detail(format($$ select ojs.push('test.job', '["%s"]', queue => 'bytes') $$,
    repeat('x', 300))) #> '{details,bound_bytes}', '336', 'BP-02: a job that would never fit');
select is((select error -> 'code' from ojs.push_many(pg_temp.batch('bytes bytes bytes'), atomicity => 'partial')
    where status = 'failed' limit 1), '"QUEUE_FULL"', 'BP-04: of a partial batch what fits');
select is(pg_temp.bytes('bytes') <= 336, true, 'BP-04: no more');

select is(pg_temp.sized('large', 1000000), 'large', 'a queue for a million bytes');
select ojs.push('test.job', jsonb_build_array(repeat('x', 200000)), queue => 'large',
    meta => jsonb_build_object('k', repeat('y', 5000)), tags => '{t}', "unique" => '{}',
    retry => '{"max_attempts": 7}') is null \g /dev/null
select is(pg_temp.bytes('large') between 205000 and 207000, true, 'BP-02: not compressed, all parts of it');
select is(pg_temp.bytes('large'), pg_temp.expected_bytes('large'), 'BP-02: as the page says');
select is((select (ojs.nack(id)).state from ojs.claim('large', 'w')), 'available', 'given back');
select is(pg_temp.bytes('large'), pg_temp.expected_bytes('large'), 'BP-02: the same when it comes back');
select is((select count(*) from ojs.claim('large', 'w')), 1::bigint, 'claimed');
select is(pg_temp.bytes('large'), 0::bigint, 'BP-02: and nothing is left of it');

-- What the queue gives to its jobs counts, for each job of a batch.
select is(pg_temp.sized('ruled', 100000, '{"default_retry": {"max_attempts": 9, "initial_interval": "PT7S"}}'),
    'ruled', 'a queue with a retry policy');
select is((select count(*) from ojs.push_many(pg_temp.batch('ruled ruled'))), 2::bigint, 'two jobs');
select is(pg_temp.bytes('ruled'), pg_temp.expected_bytes('ruled'), 'BP-02: their policy counts');
select is(ojs.configure_queue('ruled', jsonb_build_object('max_size_bytes', pg_temp.bytes('ruled') * 2 - 1)) is null,
    false, 'room for one more, and a byte less than for two');
select is(pg_temp.refusal($$ select ojs.push_many(pg_temp.batch('ruled ruled')) $$), 'OJ601 QUEUE_FULL retryable',
    'BP-04: two do not fit');
select is((select count(*) from ojs.push_many(pg_temp.batch('ruled'))), 1::bigint, 'BP-04: one does');

-- Both bounds: the nearer one counts.
select is(pg_temp.sized('both', 100000, '{"max_size": 2}'), 'both', 'a queue for two jobs');
select is(pg_temp.pushes('both', 3), '2 QUEUE_FULL', 'BP-02: full by number');
select is(pg_temp.refusal_detail($$ select ojs.push('test.job', queue => 'both') $$) -> 'details' ? 'job_bytes', false,
    'BP-02: which the refusal says');
select is(ojs.configure_queue('both', '{"max_size": 10, "max_size_bytes": 472, "warning_threshold": 0.7}') is null,
    false, 'for ten, or 472 bytes');
select is(ojs.push_job('{"type": "test.job", "args": [], "queue": "both"}') -> 'backpressure',
    '{"depth": 3, "bound": 10, "depth_bytes": 360, "bound_bytes": 472, "pressure": 0.7627}',
    'BP-05: pressure is that of the bound that is nearer');
select is(pg_temp.http_push('both'), '201 4 10 1', 'HTTP-08: so are the headers');

-- A bound counts what was pushed while there was one.
select is(pg_temp.pushes('old', 5), '5', 'five jobs in a queue without a bound');
select is(ojs.configure_queue('old', '{"max_size_bytes": 120}') is null, false, 'which gets one');
select is(pg_temp.push_sized('old') || ' ' || pg_temp.push_sized('old'), 'available QUEUE_FULL',
    'BP-02: what was there before has no size');
select is(ojs.configure_queue('old', '{"max_size_bytes": null}') is null, false, 'it loses it');
select is(pg_temp.push_sized('old'), 'available', 'BP-02: and takes all again');

-- drop_oldest and block.
select is(pg_temp.sized('drops', 560, '{"discard": "drop_oldest"}'), 'drops', 'a queue that drops, for five');
select is(pg_temp.pushes('drops', 5), '5', 'five jobs with an argument do not fit, and are taken');
select is(pg_temp.bytes('drops') <= 560 and pg_temp.left_in('drops') = '3 4 5' or pg_temp.left_in('drops') = '2 3 4 5',
    true, 'BP-03: the oldest go');
select is(pg_temp.push_sized('drops', jsonb_build_array(repeat('x', 400))), 'available', 'BP-03: one large job');
select is(pg_temp.left_in('drops'), repeat('x', 400), 'BP-03: drops as many as it needs');
select is(pg_temp.push_sized('drops', jsonb_build_array(repeat('x', 500))), 'QUEUE_FULL', 'BP-03: one that never fits');
select is(pg_temp.left_in('drops'), repeat('x', 400), 'BP-03: drops nothing');
select is(pg_temp.sized('many', 112 * 300, '{"discard": "drop_oldest"}'), 'many', 'a queue for three hundred');
select is((select count(*) from generate_series(1, 300) i,
    lateral ojs.push('test.job', queue => 'many', priority => i * 0)), 300::bigint, 'three hundred');
select is(pg_temp.push_sized('many', jsonb_build_array(repeat('x', 112 * 299 - 120))), 'available',
    'BP-03: one that needs the room of nearly all');
select is(pg_temp.waiting('many') between 1 and 2, true, 'BP-03: gets it');
select is(pg_temp.sized('waits', 224, '{"discard": "block", "block_timeout_ms": 250}'), 'waits',
    'a queue that lets producers wait');
select is(pg_temp.waits('waits'), '1 at once', 'BP-03: not while there is room');
select is(pg_temp.waits('waits'), '0 QUEUE_FULL at once', 'BP-03: nor where the transaction itself fills the queue');

-- Dead letters are sized by their own queue, and never refused.
select is(pg_temp.sized('poison.dlq', 1), 'poison.dlq', 'a queue for one byte');
select is(ojs.create_queue('poison', '{"max_deliveries": 1, "dead_letter": "poison.dlq"}') is null, false,
    'whose dead letters these are');
select is((select (ojs.nack(pg_temp.held('poison'))).state), 'available', 'one delivery');
select is((select count(*) from ojs.claim('poison', 'w')), 0::bigint, 'it is moved');
select is(pg_temp.bytes('poison.dlq'), pg_temp.expected_bytes('poison.dlq'),
    'BP-06: the copy is there, and its size counts');
select is(pg_temp.bytes('poison.dlq') > 112, true, 'BP-06: with where it came from');

-- cron ---------------------------------------------------------------------------------------------------------------

select ojs.schedule('full', '* * * * *', '{"type": "test.job", "args": [], "queue": "own"}') is null \g /dev/null
select pg_temp.clock('90 seconds');
select is(ojs.tick() is null, false, 'a tick with an entry for a full queue');
select is((select data ->> 'code' from ojs.events where type = 'cron.skipped' limit 1), 'QUEUE_FULL',
    'BP-01 CRN-08: its run is skipped, at once');

select * from finish();
rollback;
