-- admin.sql: jobs past their normal life: R-37, R-39, SM-12, SM-13, SM-15, DLQ-01, 02, 04, 05, 06, DLV-01,
-- INT-09.
begin;
select no_plan();
\ir helpers.psql

-- A job that has failed for good.
create function pg_temp.dead(queue text, on_exhaustion text default 'dead_letter') returns uuid language sql as $$
    select ojs.push('test.job', '[1]', queue => queue,
        retry => jsonb_build_object('max_attempts', 1, 'on_exhaustion', on_exhaustion));
    select (ojs.fail(id, '{"type": "Broken", "message": "m"}')).id from ojs.claim(queue, 'w') $$;

-- Dead letters -------------------------------------------------------------------------------------------------------

select pg_temp.dead('kept') as kept, pg_temp.dead('gone', 'discard') as gone \gset
select is((select array_agg(id) from ojs.dead_letters where queue in ('kept', 'gone')), array[:'kept'::uuid],
    'DLQ-01 DLQ-02 R-37: only on_exhaustion dead_letter lists a job');
select is((select error ->> 'type' from ojs.dead_letters where id = :'kept'), 'Broken', 'DLQ-01: with its error');
select is((select jsonb_array_length(errors) from ojs.dead_letters where id = :'kept'), 1, 'DLQ-01: and its history');

-- Retry --------------------------------------------------------------------------------------------------------------

create temp table revived as select * from ojs.retry(:'kept', '{"args": [2], "queue": "kept.again"}');
select is(pg_temp.at(:'kept'), 'available/0/1', 'R-39 SM-13 DLQ-04: available, attempt 0, the delivery kept');
select is(error, null, 'R-39: the error is cleared'),
    is(jsonb_array_length(errors), 1, 'R-39: its history is kept'),
    is(args, '[2]', 'DLQ-04: args overridden'),
    is(queue, 'kept.again', 'DLQ-04: queue overridden'),
    is(meta ->> 'ojs.replay_count', '1', 'R-39: the replay is counted'),
        is(discarded_at, null, 'SM-13: it is not discarded any more')
from revived;
select is((select count(*) from ojs.dead_letters where id = :'kept'), 0::bigint, 'DLQ-04: no dead letter any more');
select is((select count(*) from ojs.claim('kept', 'w')), 0::bigint, 'DLQ-04: its old queue has nothing');
select is((select (id, attempt, deliveries) from ojs.claim('kept.again', 'w')), (:'kept'::uuid, 1, 2),
    'DLQ-04: claimed as attempt 1');
select is((ojs.fail(:'kept', '{"type": "Again", "message": "m"}')).state, 'discarded',
    'DLQ-04: its policy stands: one attempt');
select is((select array_agg(e ->> 'type') from ojs.jobs, jsonb_array_elements(errors) e where id = :'kept'),
    '{Broken,Again}',
    'R-39: history grows');
select is(state, 'available', 'R-37: a job that is no dead letter can be retried too'),
    is(queue, was, 'R-39: in the queue that it was in')
from (select queue as was from ojs.jobs where id = :'gone') before, ojs.retry(:'gone');

select pg_temp.held('soon') as soon \gset
select is((ojs.fail(:'soon', '{"type": "t", "message": "m"}', delay => '1 hour')).state, 'retryable',
    'SM-12: a job waits for its retry');
select is((ojs.retry(:'soon')).state, 'available', 'SM-12: retried at once');
select pg_temp.dead('place') as place \gset
select (select queue from ojs.jobs where id = :'place') as home \gset
select is((ojs.retry(:'place')).queue, :'home', 'DLQ-04: a retry leaves a job in its queue');
select is((select id from ojs.claim(:'home', 'w') where id = :'place'), :'place', 'DLQ-04: where it is claimed');
select is(pg_temp.at(:'soon'), 'available/1/1', 'SM-12: within its budget');

select is(pg_temp.refusal(format('select ojs.retry(%L)', pg_temp.pushed('open'))), 'OJ105 INVALID_STATE_TRANSITION',
    'DLQ-05: not an available job');
select is(pg_temp.refusal(format('select ojs.retry(%L)', pg_temp.held('held'))), 'OJ105 INVALID_STATE_TRANSITION',
    'DLQ-05: not an active one');
select is(pg_temp.refusal(format('select ojs.retry(%L)', (ojs.cancel(pg_temp.pushed('x'))).id)),
    'OJ105 INVALID_STATE_TRANSITION', 'R-28: not a cancelled one');
select is(pg_temp.refusal($$ select ojs.retry('01920000-0000-7000-8000-00000000000c') $$), 'OJ300 NOT_FOUND',
    'DLQ-05: an unknown id');
select is(pg_temp.refusal(format('select ojs.retry(%L, %L)', pg_temp.dead('o'), '{"priority": 3}')),
    'OJ100 INVALID_PAYLOAD overrides', 'DLQ-04: what cannot be overridden');
select is(pg_temp.refusal(format('select ojs.retry(%L, %L)', pg_temp.dead('o'), '{"queue": "No Queue"}')),
    'OJ102 INVALID_QUEUE queue', 'DLQ-04: a bad override');

-- A twin ------------------------------------------------------------------------------------------------------------

create function pg_temp.unique_job(args jsonb, more jsonb default '{}', queue text default 'twins') returns uuid
    language sql as $$
    select (ojs.push('twin.job', args, queue => queue, options => more,
        "unique" => '{"keys": ["type", "args"], "args_keys": ["n"], "on_conflict": "reject"}',
        retry => '{"max_attempts": 1, "on_exhaustion": "dead_letter"}')).id $$;
create function pg_temp.unique_dead(args jsonb, more jsonb default '{}') returns uuid language sql as $$
    select pg_temp.unique_job(args, more);
    select (ojs.fail(id, '{"type": "Broken", "message": "m"}')).id from ojs.claim('twins', 'w') $$;
-- The twin that an answer names, and its state.
create function pg_temp.twin(job ojs.job) returns text language sql as
$$ select concat_ws(' ', job.state, job.extra ->> 'existing_job_id', job.extra ->> 'existing_job_state') $$;
select pg_temp.unique_dead('{"n": 1}') as alone, pg_temp.unique_dead('{"n": 2}') as older \gset
select is(pg_temp.twin(ojs.retry(:'alone')), 'available', 'INT-09: no twin, nothing to report');
select pg_temp.unique_job('{"n": 2, "other": true}') as newer \gset
select is(pg_temp.twin(ojs.retry(:'older')), format('available %s available', :'newer'),
    'INT-09 UNQ-21: a retry beside a newer twin is done, and names it');
select is((ojs.info(:'older')) ? 'existing_job_id', false, 'INT-09: the answer only; the job is as it was');
select is((select count(*) from ojs.claim('twins', 'w', 9)), 3::bigint, 'INT-09: both are claimed');
select pg_temp.unique_dead('{"n": 3}') as third, pg_temp.unique_job('{"n": 3}') as held \gset
select id as held_now from ojs.claim('twins', 'w') \gset
select is(pg_temp.twin(ojs.retry(:'third', '{"args": [{"n": 99}]}')), format('available %s active', :'held'),
    'INT-09: a twin that is held, by the args before they are overridden');
select is((ojs.ack(:'held')).state, 'completed', 'the twin is done'),
    is((ojs.cancel(:'third')).state, 'cancelled', 'and the other goes');
select pg_temp.unique_dead('{"n": 4}') as fourth, pg_temp.unique_job('{"n": 4}') as done_twin \gset
select is((select (ojs.ack(id)).state from ojs.claim('twins', 'w')), 'completed', 'a twin that has finished');
select is(pg_temp.twin(ojs.retry(:'fourth')), 'available', 'INT-09: is none'),
    is((ojs.cancel(:'fourth')).state, 'cancelled', 'it goes');
select pg_temp.unique_dead('[]', '{"unique_key": "k"}') as own,
    pg_temp.unique_job('[1]', '{"unique_key": "k", "delay_until": "+PT1H"}') as own_twin \gset
select is(pg_temp.twin(ojs.retry(:'own')), format('available %s scheduled', :'own_twin'),
    'INT-09: by a key of the producer''s own, and a twin that is scheduled');
select is((ojs.cancel(:'own')).state, 'cancelled', 'it goes');
select pg_temp.unique_job('{"n": 5}') as soon \gset
select is((ojs.fail(id, '{"type": "t", "message": "m", "code": "RETRY"}', delay => '1 hour')).state, 'discarded',
    'a budget of one') from ojs.claim('twins', 'w') where id = :'soon';
select pg_temp.unique_dead('{"n": 6}') as many, pg_temp.unique_job('{"n": 6}') as many_twin \gset
select is((ojs.retry_many(jsonb_build_object('ids', jsonb_build_array(:'many', :'soon'))))
    -> 'items' #- '{0,index}' #- '{1,index}',
    jsonb_build_array(jsonb_build_object('job_id', :'many', 'status', 'retried', 'existing_job_id', :'many_twin',
        'existing_job_state', 'available'),
        jsonb_build_object('job_id', :'soon', 'status', 'retried')), 'INT-09: retry_many names it with the job');
-- What a hook has made of the args may be nothing that a key can be made of.
create schema twin_hooks;
create function twin_hooks.hide(job jsonb) returns jsonb language sql as $$ select job || '{"args": ["secret"]}' $$;
select ojs.register_hook('hide', 'enqueue', 'twin_hooks.hide(jsonb)') is null \g /dev/null
select pg_temp.unique_dead('{"n": 7}') as hidden \gset
select is(pg_temp.twin(ojs.retry(:'hidden')), 'available', 'INT-09: a retry of a job whose args a hook has changed');
select ojs.unregister_hook('hide') \g /dev/null

-- What a job has been through goes with it, if its queue keeps nothing.
select ojs.create_queue('nothing', '{"delete_on_ack": true}') is null as made \gset
select pg_temp.dead('nothing') as gone \gset
select ojs.retry(:'gone') \g /dev/null
select ojs.ack(id) from ojs.claim('nothing', 'w') \g /dev/null
select is((select count(*) from ojs_store.job_history where job_id = :'gone') + (select count(*) from ojs_store.job
    where id = :'gone'), 0::bigint, 'R-39 R-23: a job that was retried leaves nothing behind');

-- Discard ------------------------------------------------------------------------------------------------------------

select state, (ojs.discard(id, 'not wanted')).state as now,
    (select error ->> 'message' from ojs.jobs j where j.id = w.id) as why
into temp discarded
from (values ('available', pg_temp.pushed('d')), ('scheduled', pg_temp.pushed('d', '{"delay_until": "+PT1H"}')),
    ('pending', pg_temp.pushed('d', '{"pending": true}'))) w (state, id);
select is(now, 'discarded', 'SM-15: discarded by hand, ' || state) from discarded;
select is((select count(*) from ojs.claim('d', 'w', 10)), 0::bigint, 'SM-15: none of them is claimed');
select is(pg_temp.refusal(format('select ojs.discard(%L)', pg_temp.held('held.too'))),
    'OJ105 INVALID_STATE_TRANSITION', 'SM-15: not while it is active');

-- Delete -------------------------------------------------------------------------------------------------------------

select pg_temp.dead('trash') as trash \gset
select ok(ojs.delete_job(:'trash'), 'DLQ-06: a finished job is deleted');
select is((select count(*) from ojs.dead_letters where id = :'trash'), 0::bigint, 'DLQ-06: gone from the dead letters');
select is(pg_temp.refusal(format('select ojs.info(%L)', :'trash')), 'OJ300 NOT_FOUND', 'DLQ-06: and from info');
select is((select count(*) from ojs_store.job_history where job_id = :'trash'), 0::bigint, 'DLQ-06: with its history');
select ok(not ojs.delete_job(:'trash'), 'DLQ-06: a second time there is nothing to delete');
select is(pg_temp.refusal(format('select ojs.delete_job(%L)', pg_temp.pushed('open'))),
    'OJ105 INVALID_STATE_TRANSITION', 'DLQ-06: an open job is not');

-- At most once -------------------------------------------------------------------------------------------------------

select pg_temp.held('once', 'w', '{"delivery": "at_most_once"}') as once \gset
select is((select count(*) from ojs_store.job_history where job_id = :'once' and kind = 7), 1::bigint,
    'DLV-01: the delivery is written down');
select pg_temp.clock('1 hour') \g /dev/null
select is((select count(*) from ojs.claim('once', 'w2')), 0::bigint, 'DLV-01: a lapsed lease is not delivered again');
select is((select state || ' ' || (error ->> 'type') from ojs.jobs where id = :'once'), 'discarded visibility_timeout',
    'DLV-01: but discarded');
select pg_temp.held('once', 'w', '{"delivery": "at_most_once"}') as twice \gset
select is((ojs.nack(:'twice')).state, 'discarded', 'DLV-01: nor is one that was given back');
select pg_temp.held('once', 'w', '{"delivery": "at_most_once", "retry": {"max_attempts": 5}}') as thrice \gset
select is((ojs.fail(:'thrice', '{"type": "t", "message": "m"}')).state, 'discarded',
    'DLV-01: nor one that failed, whatever its policy');
select is((ojs.fail(pg_temp.held('once', 'w',
    '{"delivery": "at_most_once", "retry": {"on_exhaustion": "dead_letter"}}'), error)).state, 'discarded',
    'DLV-01: whatever it reports')
from unnest('{"{\"type\": \"t\", \"message\": \"m\"}","{\"code\": \"DEAD_LETTER\", \"message\": \"m\"}"}'::jsonb[])
    error;
select pg_temp.held('once', 'w',
    '{"delivery": "at_most_once", "retry": {"on_exhaustion": "dead_letter"}}') as lapsed \gset
select pg_temp.clock('2 hours') \g /dev/null
select ojs.tick() \g /dev/null
select is(pg_temp.at(:'lapsed'), 'discarded/1/1', 'DLV-01: one whose lease runs out');
select is((select count(*) from ojs.dead_letters where queue = 'once'), 0::bigint,
    'DLV-01: none is kept for another try');
select is(pg_temp.refusal(format('select ojs.retry(%L)', :'thrice')), 'OJ105 INVALID_STATE_TRANSITION',
    'DLV-01: nor by hand'),
    is(pg_temp.at(:'thrice'), 'discarded/1/1', 'DLV-01: it stays discarded');
select is(ojs.retry_many(jsonb_build_object('ids', array[:'thrice'])) #>> '{items,0,code}', 'INVALID_STATE_TRANSITION',
    'DLV-01: nor with many');
select pg_temp.pushed('unrun', '{"delivery": "at_most_once"}') as unrun \gset
select ojs.discard(:'unrun') \g /dev/null
select is((ojs.retry(:'unrun')).state, 'available', 'DLV-01: one that was never delivered can be retried');

select ojs.create_queue('once.more', '{"expiry_counts_attempt": false}') is null as made \gset
select pg_temp.held('once.more', 'w', '{"delivery": "at_most_once"}') as again \gset
select pg_temp.clock('3 hours') \g /dev/null
select is((select count(*) from ojs.claim('once.more', 'w2')), 0::bigint,
    'DLV-01: nor one whose lapse costs no attempt');
select is((select state from ojs.jobs where id = :'again'), 'discarded', 'DLV-01: it is discarded, too');
select pg_temp.clock('0') \g /dev/null

-- Overrides: stored as they were checked, merged over what the job has ------------------------------------------------

create function pg_temp.rich() returns uuid language sql as $$
    select ojs.cancel(id) from ojs.jobs where queue = 'rich' and state = 'available';
    select ojs.push('test.job', '[1]', queue => 'rich', meta => '{"a": 1, "b": 2}',
        retry => '{"max_attempts": 1, "on_exhaustion": "dead_letter", "initial_interval": "PT9S"}');
    select (ojs.fail(id, '{"type": "Broken", "message": "m"}')).id from ojs.claim('rich', 'w') $$;
create function pg_temp.retried(overrides jsonb) returns jsonb language sql as $$
    select ojs.envelope(ojs.retry(pg_temp.rich(), overrides)) $$;
select is(pg_temp.retried(overrides) -> member, value, format('overrides %s: %s', overrides, member)) from (values
    ('{"args": {"a": 1}}'::jsonb, 'args', '[{"a": 1}]'::jsonb), ('{"args": null}', 'args', '[1]'),
        ('{"queue": null}', 'queue', '"rich"'),
    ('{"retry": null}', 'max_attempts', '1'), ('{"retry": {"max_attempts": null}}', 'max_attempts', '1'),
        ('{"retry": {"max_attempts": 3}}', 'max_attempts', '3')) v(overrides, member, value);
select is(pg_temp.retried(overrides) -> 'meta' ->> member, value, format('overrides %s: meta %s', overrides, member))
    from (values
    ('{"meta": null}'::jsonb, 'a', '1'), ('{"meta": {"b": 3, "c": 4}}', 'a', '1'),
        ('{"meta": {"b": 3, "c": 4}}', 'b', '3'), ('{"meta": {"b": 3, "c": 4}}', 'c', '4')) v(overrides, member, value);
select is(retry - 'max_attempts' @> '{"on_exhaustion": "dead_letter", "initial_interval": "PT9S"}', true,
    'a retry policy is merged, not replaced')
from ojs.retry(pg_temp.rich(), '{"retry": {"max_attempts": 1}}');
select is(pg_temp.refusal(format('select ojs.retry(%L, %L)', pg_temp.rich(), overrides)), refused,
    'overrides refused: ' || overrides) from (values
    ('{"meta": [1]}', 'OJ104 INVALID_METADATA meta'), ('{"retry": {"max_attempts": -1}}',
        'OJ106 INVALID_RETRY_POLICY retry.max_attempts'),
        ('[]', 'OJ100 INVALID_PAYLOAD overrides')) v(overrides, refused);
select is(left(pg_temp.refusal(format('select ojs.retry(%L, %L)', pg_temp.rich(),
    jsonb_build_object('meta', jsonb_build_object('big', repeat('x', 65530))))), 5), 'OJ110',
    'meta is bounded as it becomes');

-- A retryable job takes them too, and moves as a whole.
select pg_temp.held('from') as moved \gset
select ojs.fail(:'moved', '{"type": "t", "message": "m"}', delay => '1 hour') \g /dev/null
select is(concat_ws(' ', queue, args, meta, max_attempts, attempt, state), 'to [2] {"x": 1} 9 1 available',
    'overrides of a retryable job')
from ojs.retry(:'moved', '{"queue": "to", "args": [2], "meta": {"x": 1}, "retry": {"max_attempts": 9}}');
select is((select queue from ojs.jobs where id = :'moved'), 'to', 'the envelope names the queue'),
    is(array[(ojs.queue_info('from') -> 'count')::int, (ojs.queue_info('to') -> 'count')::int], '{0,1}',
        'the counters follow'),
    is((select count(*) from ojs.claim('from', 'w')), 0::bigint, 'the old queue hands it out no more');
select is((select concat_ws(' ', id, queue, args) from ojs.claim('to', 'w')), :'moved' || ' to [2]',
    'the new one does');

-- A dropped queue is made anew; under strict_queues the retry is refused, as a push is.
select pg_temp.dead('dropped') as orphan \gset
select ojs.drop_queue('dropped', 'discard') \g /dev/null
set local ojs.strict_queues = on;
select is(left(pg_temp.refusal(format('select ojs.retry(%L)', :'orphan')), 15), 'OJ300 NOT_FOUND',
    'strict: no retry into a queue that is gone');
set local ojs.strict_queues = off;
select is((ojs.retry(:'orphan')).state, 'available', 'a retry makes a dropped queue anew');
select is((select id from ojs.claim('dropped', 'w')), :'orphan', 'which hands the job out');
select ojs.push('test.job', queue => 'dropped') from generate_series(1, 2) \g /dev/null
select is((select count(*) from ojs_store.queue where name = 'dropped'), 2::bigint, 'and was made anew only once');

-- A job whose time is over is not brought back to be discarded by the next claim.
select id as expired from ojs.push('test.job', queue => 'timed', expires_at => ojs_store.now() + interval '1 hour',
    retry => '{"max_attempts": 1}') \gset
select (ojs.fail(id, '{"type": "t", "message": "m"}')).state from ojs.claim('timed', 'w') \g /dev/null
select id as spent from ojs.push('test.job', queue => 'timed', retry => '{"max_attempts": 1}',
    options => '{"total_timeout": 3600}') \gset
select (ojs.fail(id, '{"type": "t", "message": "m"}')).state from ojs.claim('timed', 'w') \g /dev/null
savepoint in_time;
select is((ojs.retry(:'expired')).state, 'available', 'in time an expiring job can be retried'),
    is((ojs.retry(:'spent')).state, 'available', 'and one with a total_timeout');
rollback to in_time;
select pg_temp.clock('2 hours') \g /dev/null
select is(pg_temp.refusal(format('select ojs.retry(%L)', id)), 'OJ105 INVALID_STATE_TRANSITION',
    'no retry of a job whose time is over'),
    is(pg_temp.at(id), 'discarded/1/1', 'it stays as it is') from unnest(array[:'expired', :'spent']::uuid[]) id;
select pg_temp.clock('0') \g /dev/null

-- What administrators do is on record, with who did it, and apart from what workers leave.
select ojs.create_queue('acts', '{"max_size": 5}'), ojs.drain_queue('acts'), ojs.purge_queue('acts', confirm => true),
    ojs.set_rate_limit('acts', '{"concurrency": 1}'),
    ojs.schedule('acts', '@daily', '{"type": "a.b", "args": []}'), ojs.unschedule('acts'),
        ojs.set_maintenance(true, 'acts'), ojs.set_maintenance(false), ojs.drop_queue('acts') \g /dev/null
select is((select string_agg(type, ' ' order by type) from ojs_store.stored_event where type like 'admin.%'
    and subject in ('acts', 'maintenance') and data ->> 'by' = session_user),
    'admin.cron_removed admin.cron_set admin.maintenance_set admin.maintenance_set admin.queue_configured '
    'admin.queue_drained admin.queue_dropped admin.queue_purged admin.rate_limit_set',
    'administrative acts leave events that say who (EVT-01)');
select pg_temp.pushed('acted') as acted, pg_temp.pushed('acted') as bulked \gset
select ojs.discard(:'acted', 'not wanted'), ojs.discard(:'bulked') \g /dev/null
select ojs.delete_job(:'acted'), ojs.delete_job(:'acted'),
    ojs.delete_many(jsonb_build_object('ids', array[:'bulked'])) \g /dev/null
select results_eq(format($$ select type, data - 'by' - 'as' from ojs_store.stored_event where subject in (%L, %L)
    and data ->> 'by' = session_user order by type, subject = %1$L desc $$, :'acted', :'bulked'),
    format($$ values ('admin.job_deleted', '{"queue": "acted", "job_id": "%1$s"}'::jsonb),
        ('admin.job_discarded', '{"queue": "acted", "job_id": "%1$s", "reason": "not wanted"}'),
        ('admin.job_discarded', '{"queue": "acted", "job_id": "%2$s", "reason": "discarded by an administrator"}') $$,
            :'acted', :'bulked'),
    'discarding and deleting a job leave events, a bulk operation one for all (EVT-01)');
select ojs_store.record_event('worker.started', 'w' || i) from generate_series(1, 20) i \g /dev/null
set local ojs.max_events = 5;
select ojs_store.prune_records(1000, true) > 0 as pruned \gset
select is((select count(*) from ojs_store.stored_event where type like 'worker.%'), 5::bigint,
    'events of workers have a bound (EVT-07)');
select count(*) as acts from ojs_store.stored_event where type like 'admin.%' \gset
select cmp_ok(:acts, '>', 1, 'those of administrators have one of their own (EVT-07)');
set local ojs.max_events = 20;
select ojs_store.record_event('worker.started', 'w' || i) from generate_series(1, 40) i \g /dev/null
select ojs_store.prune_records(1000, true) > 0 as pruned \gset
select is((select count(*) from ojs_store.stored_event where type like 'admin.%'), :acts::bigint,
    'workers do not push those of administrators out (EVT-07)');

-- A dead letter is found by its id.
create function pg_temp.plan_of(query text) returns text language plpgsql as $$
declare
    line text;
    plan text := '';
begin
    for line in execute 'explain ' || query loop
        plan := plan || line;
    end loop;
    return plan;
end $$;
set local enable_seqscan = off;
select alike(pg_temp.plan_of(format('select * from ojs.dead_letters where id = %L', gen_random_uuid())),
    '%dead_letter_job%', 'ojs.dead_letters by id uses its index (DLQ-03)');

select * from finish();
rollback;
