-- queues_drop.sql: queues that are dropped, and rules for claims: QC-04, Q-68, Q-69, R-31, R-38.
begin;
select no_plan();
\ir helpers.psql

create function pg_temp.counts(queue text) returns text language sql as
$$ select concat_ws('/', ready, in_flight, delayed, scheduled, retryable, pending) from ojs.queue_stats(queue) $$;
create function pg_temp.claim_ids(queue text, n int default 1, worker text default 'w') returns uuid[] language sql as
$$ select coalesce(array_agg(id), '{}') from ojs.claim(queue, worker, n) $$;

-- Drop ---------------------------------------------------------------------------------------------------------------

select pg_temp.held('old') as held, pg_temp.pushed('old') as waiting,
    pg_temp.pushed('old', '{"pending": true}') as pending,
    pg_temp.pushed('old', '{"expires_at": "2099-01-01T00:00:00Z"}') as expiring \gset
select is(pg_temp.refusal($$ select ojs.drop_queue('old') $$), 'OJ105 INVALID_STATE_TRANSITION',
    'QC-04: refused with unfinished jobs'),
    is(pg_temp.refusal_detail($$ select ojs.drop_queue('old') $$) #>> '{details,live}', '4', 'QC-04: how many'),
    is(pg_temp.refusal($$ select ojs.drop_queue('old', 'burn') $$), 'OJ100 INVALID_PAYLOAD strategy',
        'QC-04: an unknown strategy'),
        is(pg_temp.refusal($$ select ojs.drop_queue('old', 'move') $$),
        'OJ102 INVALID_QUEUE target', 'QC-04: no target'),
    is(pg_temp.refusal($$ select ojs.drop_queue('old', 'move', 'old') $$), 'OJ102 INVALID_QUEUE target',
        'QC-04: onto itself'),
        is(pg_temp.refusal($$ select ojs.drop_queue('old', 'move', 'unheard-of') $$),
        'OJ300 NOT_FOUND', 'QC-04: to no queue'),
    is(pg_temp.refusal($$ select ojs.drop_queue('unheard-of') $$), 'OJ300 NOT_FOUND', 'Q-69: no queue');
select ojs.create_queue('heir') is null as made \gset
select pg_temp.pushed('heir') as heirs \gset
select is(ojs.drop_queue('old', 'move', 'heir'), 4::bigint, 'QC-04: move');
select is(pg_temp.counts('heir'), '3/1/0/0/0/1', 'QC-04: all are there');
select is((select string_agg(state || queue, ' ' order by seq) from ojs.jobs
    where id in (:'held', :'waiting', :'pending', :'expiring')), 'activeheir availableheir pendingheir availableheir',
    'QC-04: in their states');
select is(state, 'completed', 'QC-04: their workers go on') from ojs.ack(:'held', worker => 'w');
select is((select string_agg((id = :'heirs')::text || (id = :'waiting')::text, ' ')
    from (select pg_temp.claim_ids('heir') from generate_series(1, 1)) c(ids), unnest(ids) id), 'truefalse',
    'QC-04: what was there first goes first');
select is((select count(*) from ojs.claim('heir', 'w', 9)), 2::bigint, 'QC-04: and the rest is handed out');
select is((select count(*) from ojs.queues where name = 'old'), 0::bigint, 'Q-69: the queue is gone'),
    is(pg_temp.refusal($$ select ojs.claim('old', 'w') $$), 'OJ300 NOT_FOUND', 'Q-69: a claim finds none'),
    is(pg_temp.refusal($$ select ojs.queue_info('old') $$), 'OJ300 NOT_FOUND', 'Q-69: info neither'),
        is(pg_temp.refusal($$ select ojs.lease_ack('old', '{"node": "w", "seqs": [1]}') $$), 'OJ300 NOT_FOUND',
        'Q-69: nor an ack');
select is((select count(*) from ojs_store.delayed where queue = ojs_store.queue_id('old')), 0::bigint,
    'Q-69: nothing is left behind');

select pg_temp.held('doomed') as held, pg_temp.pushed('doomed') as waiting,
    pg_temp.pushed('doomed', '{"expires_at": "2099-01-01T00:00:00Z"}') as expiring,
    (ojs.push('test.job', queue => 'doomed', delay => '1 hour')).id as scheduled \gset
select is(ojs.drop_queue('doomed', 'discard'), 4::bigint, 'QC-04: discard');
select is((select string_agg(distinct state || '/' || (error ->> 'type') || '/' || queue, ' ') from ojs.jobs
    where id in (:'held', :'waiting', :'expiring', :'scheduled')), 'discarded/queue_deleted/doomed',
    'QC-04 SM-15: discarded, as queue_deleted, of a queue whose name is still known'),
    is(pg_temp.at(:'held'), 'discarded/1/1', 'QC-04: with its counts'),
        is(pg_temp.refusal(format('select ojs.ack(%L)', :'held')), 'OJ105 INVALID_STATE_TRANSITION',
        'Q-69: its lease is gone');
select matches(ojs.explain_job(:'waiting'), 'because of the error queue_deleted; ojs\.retry brings it back\.$',
    'QC-04: and ojs.explain_job tells why');
select is((select count(*) from ojs_store.hot_set_state where rebuilt_at = '-infinity'), 0::bigint,
    'leaves the hot set valid: nobody waits for a rebuild (QC-04)');
select is(ojs.drop_queue('empty-handed'), 0::bigint, 'QC-04: reject drops an empty one')
    from ojs.create_queue('empty-handed', '{"type": "log"}');
select is(ojs.create_queue('empty-handed') ->> 'type', 'queue', 'Q-02: made anew, with another type');
select is(ojs.drop_queue('empty-handed'), 0::bigint, 'QC-04: dropped again');
-- What a dropped queue leaves behind: its finished jobs and what was written down of them, and a row with its name.
-- Nothing else in any table holds its id or its name.
create function pg_temp.rows_that_name(queue text) returns text language plpgsql as $$
declare
    one regclass;
    n bigint;
    found text[];
begin
    for one in select c.oid from pg_class c where c.relnamespace = 'ojs_store'::regnamespace and c.relkind = 'r'
        order by c.relname loop
        execute format('select count(*) from %s t where strpos(to_jsonb(t)::text, %L) > 0 or strpos(to_jsonb(t)::text, '
                       '%L) > 0', one, queue, ojs_store.queue_id(queue)) into n;
        if n > 0 then
            found := found || regexp_replace(one::text, '.*\.', '');
        end if;
    end loop;
    return array_to_string(found, ' ');
end $$;
create function pg_temp.well_used(queue text) returns void language plpgsql as $$
begin
    perform ojs.create_queue(queue,
        '{"leases_durable": true, "lease_log": true, "concurrency": 5, "rate_limit": {"rate": {"limit": 50, "period": '
        '"PT1M"}},
        "max_deliveries": 1, "dead_letter": "elsewhere"}');
    perform ojs.set_rate_limit('queue:' || queue, '{"concurrency": 4}');
    perform pg_temp.pushed(queue, '{"expires_at": "2099-01-01T00:00:00Z", "unique": {"keys": ["type", "queue"]}}');
    perform pg_temp.pushed(queue, '{"pending": true}');
    perform ojs.push('test.job', queue => queue, delay => '1 hour');
    perform ojs.push('test.job', queue => queue, deduplication_key => 'once');
    perform ojs.nack(id) from ojs.claim(queue, 'w');
    perform ojs.ack(id) from ojs.claim(queue, 'w', 2) limit 1;
    perform pg_temp.held(queue), pg_temp.pushed(queue);
    perform ojs.pause_queue(queue), ojs.resume_queue(queue);
end $$;
select pg_temp.well_used('well-used') \g /dev/null
select is(replace(pg_temp.rows_that_name('well-used'), ' listener_flag', ''),
    'audit deduplication delayed finished job lease lease_log limit_use queue queue_count rate_limit ready '
    'stored_event',
    'QC-04: a queue that has used everything');
select ojs.drop_queue('well-used', 'discard') > 0 as dropped \gset
select is(replace(pg_temp.rows_that_name('well-used'), ' listener_flag', ''),
    'audit finished job lease_log queue stored_event',
    'QC-04: dropped, it leaves its finished jobs, what is on record, and its name');
select is((select count(*) from ojs_store.limit_use), 0::bigint, 'QC-04: and no use of a limit');
select pg_temp.well_used('well-moved') \g /dev/null
select ojs.create_queue('mover', '{"concurrency": 9}') is null as made \gset
select ojs.drop_queue('well-moved', 'move', 'mover') > 0 as dropped \gset
select is(replace(pg_temp.rows_that_name('well-moved'), ' listener_flag', ''),
    'audit finished job lease_log queue stored_event',
    'QC-04: the same where its jobs have moved');
select is((select string_agg(distinct name, ' ') from ojs_store.limit_use), 'queue:mover',
    'QC-04: a held job takes its place in the other queue''s limit');
select ojs.purge_queue('mover', '{available,scheduled,retryable,pending,active,completed,cancelled,discarded}',
    true) > 0 as purged \gset
select is(pg_temp.rows_that_name('mover'), 'audit lease_log limit_use queue stored_event',
    'QC-01: a purge of all states leaves nothing but the queue, the log and what is on record; the use of a limit '
    'counts no more');

-- A held job that is moved counts in the limit of its new queue.
select ojs.create_queue('narrow', '{"concurrency": 1}') is null as made, pg_temp.held('wide') as moved,
    pg_temp.pushed('narrow') as waiting \gset
select is(ojs.drop_queue('wide', 'move', 'narrow'), 1::bigint, 'moves a held job to a queue with a limit (QC-04)');
select is(cardinality(pg_temp.claim_ids('narrow')), 0, 'which hands out no other (RL-02)');
select is((select active from ojs.rate_limits where key = 'queue:narrow'), 1::bigint, 'and counts it (RL-02)');
select ojs.ack(:'moved') \g /dev/null
select is(pg_temp.claim_ids('narrow'), array[:'waiting']::uuid[], 'until it has ended (RL-02)');

-- And in that of the pool whose claim has it.
select ojs.create_queue('pooled', '{}'), ojs.create_queue('other', '{}'),
    ojs.set_pool('pool', '{"queues": ["pooled", "other"], "concurrency": 1}'), pg_temp.pushed('pooled') \g /dev/null
select is((select count(*) from ojs.claim_pool('pool', 'w')), 1::bigint, 'FS-02: a pool holds a job');
select is(ojs.drop_queue('pooled', 'move', 'other'), 1::bigint, 'which is moved (QC-04)');
select is((select places_taken from ojs.pools where name = 'pool'), 1::bigint, 'the pool has it still (FS-02)');
select ojs.ack(job_id) is null from ojs.leases where queue = 'other' \g /dev/null
select is((select places_taken from ojs.pools where name = 'pool'), 0::bigint, 'until it has ended (FS-02)');

-- A push that looked the queue up before it was dropped.
update ojs_store.queue set state = 'deleted' where name = 'heir';
select ojs_store.changed('ojs_store.queue') \g /dev/null
select is(pg_temp.refusal($$ select ojs.claim('heir', 'w') $$), 'OJ300 NOT_FOUND', 'QC-04: dropped');
insert into ojs_store.ready (job_id, queue, position, job_tid, npriority, flags, attempt, deliveries)
select id, queue, seq, ctid, 0, 0, 0, 0 from ojs_store.job where id = :'heirs';
select pg_temp.clock('10 minutes') \g /dev/null
select ojs.tick() is null as ticked \gset
select is((select state from ojs.queues where name = 'heir'), 'active',
    'DLV-03: a dropped queue that has jobs is revived by a tick');
select pg_temp.clock('0') \g /dev/null

-- Rules for claims ---------------------------------------------------------------------------------------------------

select ojs.create_queue('slow', '{"claim_rate": 2}') is null as made \gset
select pg_temp.pushed('slow'), pg_temp.pushed('slow'), pg_temp.pushed('slow') \g /dev/null
create temporary table answers as select n,
    pg_temp.refusal_detail($$ select * from ojs.claim('slow', 'w') $$) as detail from generate_series(1, 3) n;
select is(array_agg(n order by n) filter (where detail is null), '{1,2}',
    'Q-68: so many claims in a second go through'),
    is(max(detail ->> 'code'), 'RATE_LIMITED', 'Q-68: the next is refused'),
        ok(bool_and((detail -> 'retryable')::boolean), 'Q-68: for now'),
    is(max(detail #>> '{details,queue}'), 'slow', 'Q-68: it says where'),
        is(max((detail #> '{details,claim_rate}')::int), 2, 'Q-68: and how many it may be'),
    ok(bool_and((detail #> '{details,retry_after_ms}')::int between 1 and 1000), 'Q-68: and when to try again')
from answers;
select is((select count(*) from ojs.claim('slow', 'other', 5)), 1::bigint, 'Q-68: each worker has a count of its own');
select is((select count(*) from ojs.claim('mail', 'w', missing_ok => true)), 0::bigint, 'Q-68: and each queue');
select ojs.work_open('slow', 'worker') is null as opened \gset
select is((select count(*) from ojs.work_next()), 0::bigint, 'Q-68: work mode within its rate: ' || n)
    from generate_series(1, 2) n;
set client_min_messages = warning;
select is((select count(*) from ojs.work_next()), 0::bigint, 'Q-66: and over it no error');
reset client_min_messages;
select ojs.work_close() is null as closed \gset

select ojs.create_queue('window', '{"claim_jitter_ms": 100}') is null as made \gset
select pg_temp.pushed('window'), pg_temp.pushed('window'), pg_temp.pushed('window'),
    pg_temp.pushed('window') \g /dev/null
set client_min_messages = warning;
select is((select count(*) from ojs.claim('window', 'w', 2)), 2::bigint, 'Q-48: a cohort of one gets what it asks for');
select is(c -> 'count', '1', 'Q-49: no more than its max'),
    ok((c #>> '{performance,throttle_wait_ms}')::numeric >= case when (ojs.health() -> 'coalescing')::boolean then 90
        else 0 end, 'Q-17: and says how long it waited')
from ojs.lease_claim('window', '{"node": "w"}') c;
select is((select count(*) from ojs.claim('{window,slow}'::text[], 'listed', 5)), 1::bigint,
    'Q-50: a list of queues is served too');
select pg_temp.pushed('window') is null as pushed \gset
select is((select count(*) from ojs.ack_and_claim('w', 'window', array[job_id], max => 5)), 1::bigint,
    'Q-50: and an ack with a claim') from (select job_id from ojs.leases where queue = 'window' and worker = 'w'
    limit 1) held;
select is((select count(*) from ojs.claim('window', 'w', 0)), 0::bigint, 'Q-14: a max of 0 is not a member');
-- A worker that is told to stop gets nothing, and a paused queue has no window.
select pg_temp.pushed('window') is null as pushed \gset
select ojs.pause_queue('window') \g /dev/null
select is((select count(*) from ojs.claim('window', 'w')), 0::bigint, 'Q-16: a paused queue hands out nothing');
reset client_min_messages;

-- A copy among the dead letters begins anew: neither its time nor its end is that of the first job.
select ojs.create_queue('timed', '{"max_deliveries": 1, "dead_letter": "timed.dlq"}') is null as made \gset
select ojs.push('test.job', queue => 'timed', delay => '1 minute',
    expires_at => now() + interval '2 minutes') is null as pushed \gset
select pg_temp.clock('90 seconds') \g /dev/null
select is(pg_temp.hand_back('timed'), 1, 'Q-52: delivered once'),
    is(pg_temp.hand_back('timed'), 0, 'Q-52: and moved');
select is(concat_ws(' ', state, scheduled_at, expires_at), 'available',
    'R-38: the copy has no time of its own, and no expiry') from ojs.jobs where queue = 'timed.dlq';
select pg_temp.clock('1 hour') \g /dev/null
select ojs.tick() is null as ticked \gset
select is(cardinality(pg_temp.claim_ids('timed.dlq')), 1, 'R-38: it is there when the first job would have expired');
select pg_temp.clock('0') \g /dev/null

select * from finish();
rollback;
