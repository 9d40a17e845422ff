-- checkpoints.sql: what jobs go on from: DUR-01 to DUR-04, R-58.
-- Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();
\ir helpers.psql

-- What a claim brings: the id's checkpoint and last_checkpoint, or a dash.
create function pg_temp.brought(queue text) returns text language sql volatile as
$$ select concat_ws(' ', coalesce(extra ->> 'checkpoint', '-'), coalesce(extra ->> 'last_checkpoint', '-'))
    from ojs.claim(queue, 'w') $$;
create function pg_temp.saved(job uuid, state jsonb) returns text language sql volatile as
$$ select concat_ws(' ', c -> 'sequence', c -> 'state') from ojs.checkpoint(job, state) c $$;

select pg_temp.held('c') as id \gset
select is(pg_temp.refusal(format('select ojs.get_checkpoint(%L)', :'id')), 'OJ300 NOT_FOUND',
    'DUR-02: nothing saved yet');
select ojs.checkpoint(:'id', '{"a": 1, "b": [2]}') as saved \gset
select is(:'saved'::jsonb - 'created_at', jsonb_build_object('job_id', :'id', 'state', '{"a": 1, "b": [2]}'::jsonb,
    'sequence', 1), 'DUR-01: job_id, state, sequence');
select is((:'saved'::jsonb ->> 'created_at')::timestamptz between now() and clock_timestamp(), true,
    'DUR-01: and created_at');
select is(ojs.get_checkpoint(:'id'), :'saved'::jsonb, 'DUR-01: read as it was saved');
select is(pg_temp.saved(:'id', '{"c": 3}'), '2 {"c": 3}', 'DUR-01: a save replaces the whole state; sequence + 1');
select is(ojs.get_checkpoint(:'id') -> 'state', '{"c": 3}', 'DUR-01: nothing of the old one stays');
select is(ojs.checkpoint(:'id', state) -> 'state', state, 'DUR-01: any JSON: ' || state::text)
from (values ('null'::jsonb), ('true'), ('"text"'), ('12345678901234567890.5'), ('[]'), ('{}'),
    ('[{"a": {"b": [null]}}]')) v (state);
select is(ojs.get_checkpoint(:'id') -> 'sequence', '9', 'DUR-01: each of them counts');
select is(ojs.checkpoint(:'id', to_jsonb(repeat('x', 1048574))) -> 'sequence', '10', 'DUR-02: 1 MiB of JSON text');
select is(pg_temp.refusal(format('select ojs.checkpoint(%L, to_jsonb(repeat(%L, 1048575)))', :'id', 'x')),
    'OJ109 PAYLOAD_TOO_LARGE state', 'DUR-02: and not a byte more');
select is(pg_temp.refusal_detail(format('select ojs.checkpoint(%L, to_jsonb(repeat(%L, 1048575)))', :'id',
    'x')) -> 'details' -> 'actual_bytes', '1048577', 'DUR-02: which is told');
select is(ojs.get_checkpoint(:'id') -> 'sequence', '10', 'DUR-02: what was saved stays');
select is(pg_temp.refusal(format('select ojs.checkpoint(%L, null)', :'id')), 'OJ100 INVALID_PAYLOAD state',
    'DUR-01: SQL''s null is no state');
select is(pg_temp.refusal($$ select ojs.checkpoint('01a1fe98-d88c-7353-99b6-b56eba94d8eb', '1') $$), 'OJ300 NOT_FOUND',
    'DUR-02: an unknown job'),
    is(pg_temp.refusal($$ select ojs.get_checkpoint('01a1fe98-d88c-7353-99b6-b56eba94d8eb') $$), 'OJ300 NOT_FOUND',
        'DUR-02: to read'),
    is(pg_temp.refusal($$ select ojs.delete_checkpoint('01a1fe98-d88c-7353-99b6-b56eba94d8eb') $$), 'OJ300 NOT_FOUND',
        'DUR-02: to delete from');

-- Any state -----------------------------------------------------------------------------------------------------------

select pg_temp.pushed('s') as available, pg_temp.pushed('s', '{"pending": true}') as pending,
    pg_temp.pushed('s', '{"delay_until": "+PT1H"}') as scheduled,
    pg_temp.held('s2') as completed, pg_temp.held('s3') as discarded, pg_temp.held('s4') as cancelled,
        pg_temp.held('s5') as retryable \gset
select ojs.checkpoint(:'completed', '1') is null as c \gset
select ojs.ack(:'completed') is null as a, ojs.fail(:'discarded',
    '{"type": "t", "message": "m", "retryable": false}') is null as f, ojs.cancel(:'cancelled') is null as c,
    ojs.fail(:'retryable', '{"type": "t", "message": "m"}', delay => '1 s') is null as r \gset
select is(pg_temp.saved(id, '[1]'), '1 [1]', 'R-58: saved for a job that is ' || state),
    is(pg_temp.at(id), concat_ws('/', state, attempt, deliveries), 'R-58: which stays as it is')
from ojs.jobs where queue in ('s', 's5') order by state;
select is(pg_temp.refusal(format('select ojs.checkpoint(%L, %L)', :'completed', '2')), 'OJ302 JOB_ALREADY_COMPLETED',
    'DUR-02: not once it is completed'),
    is(pg_temp.refusal(format('select ojs.checkpoint(%L, %L)', :'cancelled', '2')), 'OJ303 JOB_ALREADY_CANCELLED',
        'DUR-02: cancelled'),
    is(pg_temp.refusal(format('select ojs.checkpoint(%L, %L)', :'discarded', '2')), 'OJ105 INVALID_STATE_TRANSITION',
        'DUR-02: discarded');
select is(ojs.get_checkpoint(:'completed') -> 'state', '1', 'R-58: what was saved can be read after the end');
select is(pg_temp.brought('s'), '{"state": [1], "sequence": 1} [1]',
    'DUR-04: the first claim of a job that was given one before');
select ojs.activate(:'pending') is null as a \gset
select is(pg_temp.brought('s'), '{"state": [1], "sequence": 1} [1]', 'DUR-04: one that was pending then');
select pg_temp.clock('2 hours') is null as moved, ojs.tick() is null as ticked \gset
select is(pg_temp.brought('s5'), '{"state": [1], "sequence": 1} [1]', 'DUR-04: retryable');
select is((select count(*) from ojs.claim('s', 'w', 5) where extra ->> 'last_checkpoint' = '[1]'), 3::bigint,
    'DUR-04: scheduled; and each one whose lease ran out');
select pg_temp.clock('0') is null as moved \gset

-- The next attempt ----------------------------------------------------------------------------------------------------

select pg_temp.pushed('n') as id \gset
select is(pg_temp.brought('n'), '- -', 'DUR-04: nothing where there is nothing');
select is((select flags & 512 from ojs_store.lease where job_id = :'id'), 0, 'DUR-04: nor a flag to look');
select is(pg_temp.saved(:'id', '{"row": 500}'), '1 {"row": 500}', 'DUR-01: an attempt saves');
select is((select flags & 512 from ojs_store.lease where job_id = :'id'), 512, 'DUR-04: which a flag tells');
select is(ojs.info(:'id') ? 'checkpoint', false, 'DUR-04: only a claim brings it');
select ojs.nack(:'id') is null as n \gset
select is(pg_temp.brought('n'), '{"state": {"row": 500}, "sequence": 1} {"row": 500}', 'DUR-04: after a release');
select ojs.fail(:'id', '{"type": "t", "message": "m"}', delay => '0') is null as f \gset
select is(pg_temp.brought('n'), '{"state": {"row": 500}, "sequence": 1} {"row": 500}', 'DUR-04: after a failure');
select is(pg_temp.saved(:'id', '{"row": 700}'), '2 {"row": 700}', 'DUR-01: the sequence goes on');
select ojs.fail(:'id', '{"type": "t", "message": "m", "retryable": false}') is null as f,
    ojs.retry(:'id') is null as r \gset
select is(pg_temp.brought('n'), '{"state": {"row": 700}, "sequence": 2} {"row": 700}', 'DUR-04: after a retry by hand');
select ojs.delete_checkpoint(:'id') \g /dev/null
select is(pg_temp.refusal(format('select ojs.get_checkpoint(%L)', :'id')), 'OJ300 NOT_FOUND', 'DUR-03: deleted');
select lives_ok(format('select ojs.delete_checkpoint(%L)', :'id'), 'DUR-03: and once more');
select ojs.nack(:'id') is null as n \gset
select is(pg_temp.brought('n'), '- -', 'DUR-03: nothing is brought then');
select is(pg_temp.saved(:'id', '8'), '1 8', 'DUR-03: and counting begins anew');
select ojs.ack(:'id') is null as n \gset
select ojs.delete_checkpoint(:'id') \g /dev/null
select is((select count(*) from ojs_store.checkpoint where job_id = :'id'), 0::bigint, 'DUR-03: also after the end');

-- Order, counts and limits stay what they are where a job that waits is given one.
select pg_temp.pushed('order') as a, pg_temp.pushed('order') as b, pg_temp.pushed('order') as c \gset
select pg_temp.saved(:'b', '1') as b1, pg_temp.saved(:'a', '1') as a1, pg_temp.saved(:'a', '2') as a2 \gset
select is((select ready from ojs.queue_stats('order')), 3::bigint, 'DUR-04: the counts of the queue stay');
select is((select array_agg(id order by n) from ojs.claim('order', 'w', 3) with ordinality as c(id)
    join lateral (select c.ordinality as n) o on true), array[:'a', :'b', :'c']::uuid[],
    'OP-06: and the order of claims');

-- A claim takes what is newest, in one transaction or one statement.
select pg_temp.held('one') as id \gset
select is((select c -> 'sequence' from ojs.checkpoint(:'id', '1') c), '1', 'DUR-01: first'),
    is((select c -> 'sequence' from ojs.checkpoint(:'id', '2') c), '2', 'DUR-01: and second in one statement');

-- Gone with the job ---------------------------------------------------------------------------------------------------

select ojs.create_queue('brief', '{"delete_on_ack": true}') is null as made \gset
select pg_temp.held('brief') as id, pg_temp.held('gone') as deleted, pg_temp.held('purged') as purged \gset
select ojs.checkpoint(id, '1') is null as c from unnest(array[:'id', :'deleted', :'purged']::uuid[]) id \g /dev/null
select ojs.ack(id) is null as done from unnest(array[:'id', :'deleted', :'purged']::uuid[]) id \g /dev/null
select is((select count(*) from ojs_store.checkpoint where job_id = :'id'), 0::bigint,
    'DUR-04: gone with a job that its ack removes');
select ojs.delete_job(:'deleted') as d, ojs.purge_queue('purged', '{completed}', true) as p \gset
select is((select count(*) from ojs_store.checkpoint where job_id in (:'deleted', :'purged')), 0::bigint,
    'DUR-04: deleted or purged');

select * from finish();
rollback;
