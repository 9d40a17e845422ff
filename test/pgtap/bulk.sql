-- bulk.sql: cancel, retry and delete many; dead letters by what they are: BLK-03, BLK-04, DLQ-03, DLQ-07, DLQ-09,
-- ADM-04. Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();
\ir helpers.psql

create function pg_temp.sum(reply jsonb) returns text language sql as $$
    select concat_ws('/', reply -> 'matched', reply -> 'succeeded', reply -> 'failed') $$;
create function pg_temp.why(reply jsonb) returns text language sql as
$$ select string_agg(concat_ws(' ', i ->> 'index', i ->> 'status', i ->> 'code'), ', ' order by n)
    from jsonb_array_elements(reply -> 'items') with ordinality as a(i, n) $$;
create function pg_temp.dead(queue text, error text, on_exhaustion text default 'dead_letter',
    type text default 'test.job') returns uuid language plpgsql as $$
declare
    job uuid := (select id from ojs.push(type, '[{"customer": 7}]', queue => queue,
        retry => jsonb_build_object('max_attempts', 1, 'on_exhaustion', on_exhaustion)));
begin
    perform ojs.claim(queue, 'w');
    perform ojs.fail(job, jsonb_build_object('type', error, 'message', 'm'));
    return job;
end $$;

-- Cancel --------------------------------------------------------------------------------------------------------------

select pg_temp.held('blk') as active, pg_temp.pushed('blk') as a, pg_temp.pushed('blk', '{"pending": true}') as p,
    pg_temp.pushed('other') as o \gset
select id as s from ojs.push('mail.send', queue => 'blk', delay => '1 hour') \gset
select is(pg_temp.refusal($$ select ojs.cancel_many('{"queue": "blk"}') $$), 'OJ100 INVALID_PAYLOAD confirm',
    'ADM-04: a filter needs confirm'),
    is(pg_temp.refusal($$ select ojs.cancel_many('{}') $$), 'OJ100 INVALID_PAYLOAD confirm',
        'ADM-04: an empty one too'),
    is(pg_temp.refusal($$ select ojs.cancel_many('{"ids": [], "queue": "blk"}', true) $$),
        'OJ100 INVALID_PAYLOAD filter', 'BLK-03: ids or a filter, not both'),
    is(pg_temp.refusal($$ select ojs.cancel_many('{"colour": "red"}', true) $$), 'OJ100 INVALID_PAYLOAD filter',
        'BLK-03: an unknown key'),
    is(pg_temp.refusal($$ select ojs.cancel_many('{"queue": 1}', true) $$), 'OJ100 INVALID_PAYLOAD filter',
        'BLK-03: a number for a queue'),
    is(pg_temp.refusal($$ select ojs.cancel_many('{"ids": ["x"]}') $$), 'OJ100 INVALID_PAYLOAD filter',
        'BLK-03: no id'),
    is(pg_temp.refusal($$ select ojs.cancel_many('{"since": "soon"}', true) $$), 'OJ100 INVALID_PAYLOAD filter.since',
        'BLK-03: no time'),
    is(pg_temp.refusal($$ select ojs.cancel_many('{"until": "2026-02-31T00:00:00Z"}', true) $$),
        'OJ100 INVALID_PAYLOAD filter.until', 'BLK-03: no day'),
    is(pg_temp.refusal($$ select ojs.cancel_many('{"state": ["gone"]}', true) $$), 'OJ100 INVALID_PAYLOAD filter',
        'BLK-03: no state'),
    is(pg_temp.refusal($$ select ojs.cancel_many(null) $$), 'OJ100 INVALID_PAYLOAD filter', 'BLK-03: null'),
        is(pg_temp.refusal($$ select ojs.cancel_many('[]') $$), 'OJ100 INVALID_PAYLOAD filter', 'BLK-03: an array');
select is(pg_temp.sum(r), '1/1/0', 'BLK-03: by type'),
    is(pg_temp.why(r), '0 cancelled', 'BLK-03: each job is answered for')
    from ojs.cancel_many('{"queue": "blk", "type": "mail.*"}', true) r;
select is(pg_temp.sum(r), '3/2/1', 'BLK-03: by queue: all but the active one'),
    is(pg_temp.why(r) ~ 'skipped INVALID_STATE_TRANSITION', true, 'BLK-03: which is passed over, with a reason')
    from ojs.cancel_many('{"queue": "blk"}', true) r;
select is(pg_temp.at(:'active'), 'active/1/1', 'BLK-03: it goes on'),
    is(pg_temp.at(:'a'), 'cancelled/0/0', 'BLK-03: cancelled'),
    is(pg_temp.at(:'p'), 'cancelled/0/0', 'BLK-03: pending'),
    is(pg_temp.at(:'o'), 'available/0/0', 'BLK-03: another queue');
select is(pg_temp.sum(ojs.cancel_many('{"queue": "blk", "state": ["active"]}', true)), '1/1/0',
    'BLK-03: active where it is asked for');
select is(pg_temp.sum(r), '3/1/2', 'BLK-03: by ids'),
    is(pg_temp.why(r),
    '0 skipped INVALID_STATE_TRANSITION, 1 cancelled, 2 skipped NOT_FOUND',
    'BLK-03: in the order of the ids, without confirm')
from ojs.cancel_many(jsonb_build_object('ids', array[:'a', :'o', '01a1fe98-d88c-7353-99b6-b56eba94d8eb'])) r;
select is(pg_temp.sum(ojs.cancel_many('{"ids": []}')), '0/0/0', 'BLK-03: no ids');
set local ojs.max_batch_size = 2;
select is(pg_temp.refusal_detail(format($$ select ojs.cancel_many(%L) $$,
    jsonb_build_object('ids', array[:'a', :'o', :'p']))) #>> '{details,maximum}', '2', 'BLK-04: too many ids');
select is((select count(pg_temp.pushed('bounded')) from generate_series(1, 3)), 3::bigint,
    'BLK-03: a filter for three');
select is(pg_temp.sum(r), '2/2/0', 'BLK-03: takes two at a time'),
    is(r -> 'more', 'true', 'BLK-03: and says that there are more')
    from ojs.cancel_many('{"queue": "bounded"}', true) r;
select is(pg_temp.sum(r), '1/1/0', 'BLK-03: the last one'),
    is(r -> 'more', 'false', 'BLK-03: no more') from ojs.cancel_many('{"queue": "bounded"}', true) r;
reset ojs.max_batch_size;

-- Dead letters, retry, delete -----------------------------------------------------------------------------------------

select pg_temp.dead('dlq', 'Net') as n1, pg_temp.dead('dlq', 'Net', type => 'mail.send') as n2,
    pg_temp.dead('dlq', 'Disk') as d, pg_temp.dead('dlq', 'Net', 'discard') as plain \gset
select is(s - '{oldest_at,newest_at}'::text[],
    '{"total": 3, "by_queue": {"dlq": 3}, "by_error_type": {"Net": 2, "Disk": 1}}', 'DLQ-09: statistics'),
    ok((s ->> 'oldest_at')::timestamptz <= (s ->> 'newest_at')::timestamptz, 'DLQ-09: and how old')
        from ojs.dead_letter_stats('dlq') s;
select is(ojs.dead_letter_stats('none') - '{oldest_at,newest_at}'::text[],
    '{"total": 0, "by_queue": {}, "by_error_type": {}}', 'DLQ-09: of none');
select is((select array_agg(id order by id) from ojs.dead_letters where queue = 'dlq'),
    array[:'n1', :'n2', :'d']::uuid[], 'DLQ-03: by queue'),
    is((select array_agg(id) from ojs.dead_letters where queue = 'dlq' and type like 'mail.%'), array[:'n2']::uuid[],
        'DLQ-03: by type'),
    is((select array_agg(id) from ojs.dead_letters where error ->> 'type' = 'Disk'), array[:'d']::uuid[],
        'DLQ-03: by error'),
    is((select count(*) from ojs.dead_letters where queue = 'dlq' and args @> '[{"customer": 7}]'
        and discarded_at > now() - interval '1 hour'), 3::bigint, 'DLQ-03: by args and time');
select is(pg_temp.refusal($$ select ojs.retry_many('{"queue": "dlq"}') $$), 'OJ100 INVALID_PAYLOAD confirm',
    'DLQ-07: confirm'),
    is(pg_temp.refusal($$ select ojs.delete_many('{"queue": "dlq"}') $$),
    'OJ100 INVALID_PAYLOAD confirm', 'ADM-04: confirm');
select is(pg_temp.sum(ojs.retry_many('{"queue": "dlq", "error_type": "Net", "dead_letter": true, "since": '
    '"2020-01-01T00:00:00Z"}', true)), '2/2/0', 'DLQ-07: retry by error');
select is(pg_temp.at(:'n1'), 'available/0/1', 'DLQ-07: available again'),
    is(pg_temp.at(:'plain'), 'discarded/1/1', 'DLQ-07: what is no dead letter stays'),
    is(pg_temp.at(:'d'), 'discarded/1/1', 'DLQ-07: and another error');
select is(pg_temp.sum(ojs.retry_many('{"queue": "dlq", "until": "2020-01-01T00:00:00Z"}', true)), '0/0/0',
    'DLQ-07: none that old');
select is(pg_temp.why(ojs.delete_many(jsonb_build_object('ids', array[:'n1', :'d']))),
    '0 skipped INVALID_STATE_TRANSITION, 1 deleted', 'BLK-03: finished jobs only are deleted');
select is(pg_temp.sum(ojs.delete_many('{"queue": "dlq"}', true)), '1/1/0', 'BLK-03: delete by queue');
select is((select count(*) from ojs.jobs where id in (:'d', :'plain')), 0::bigint, 'BLK-03: gone');
select is(pg_temp.why(ojs.retry_many(jsonb_build_object('ids', array[:'a']))), '0 skipped INVALID_STATE_TRANSITION',
    'BLK-03: a cancelled job is not retried');

-- The edges of filters.
select pg_temp.pushed('edge.given', '{"meta": {"a": 1}}') as with_meta, pg_temp.pushed('edge.given') as without \gset
select is(pg_temp.refusal($$ select ojs.cancel_many('{"queue": "edge.given"}', null) $$),
    'OJ100 INVALID_PAYLOAD confirm', 'ADM-04: null is no confirmation');
select is((ojs.cancel_many('{"queue": "edge.given", "meta": {}, "state": "discarded"}', true)) -> 'matched', '0',
    'BLK-03: none of that state');
select is(pg_temp.sum(ojs.cancel_many('{"queue": "edge.given", "meta": {}}', true)), '2/2/0',
    'BLK-03: empty metadata are part of any, of none too');
select id as back from ojs.nack(pg_temp.held('edge.back'), '1 hour') \gset
select is(pg_temp.sum(ojs.cancel_many('{"queue": "edge.back", "state": "available"}', true)), '1/1/0',
    'BLK-03: a job that was given back with a delay is available');
select pg_temp.pushed('edge.due', '{"delay_until": "+PT1H"}') as due, pg_temp.clock('2 hours') is null as later \gset
select is(pg_temp.sum(ojs.cancel_many('{"queue": "edge.due", "state": "scheduled"}', true)), '0/0/0',
    'BLK-03: a job that has fallen due is scheduled no more'),
    is(pg_temp.sum(ojs.cancel_many('{"queue": "edge.due", "state": "available"}', true)), '1/1/0',
        'BLK-03: but available, before any tick');
select pg_temp.clock('0') \g /dev/null
-- Its last error counts, also when it was given back since.
select pg_temp.held('edge.err') as err \gset
select ojs.fail(:'err', '{"type": "First", "message": "m"}', delay => '0 s') is null \g /dev/null
select ojs.fail(id, '{"type": "Second", "message": "m"}', delay => '1 hour') is null from ojs.claim('edge.err',
    'w') \g /dev/null
select is(ojs.cancel_many('{"queue": "edge.err", "error_type": "First"}', true) -> 'matched', '0',
    'BLK-03: not by an earlier error');
select pg_temp.clock('2 hours') \g /dev/null
select ojs.nack(id, '1 hour') is null from ojs.claim('edge.err', 'w') \g /dev/null
select is(ojs.cancel_many('{"queue": "edge.err", "error_type": "Second"}', true) -> 'matched', '1',
    'BLK-03: by its last one, though it was given back since');
select pg_temp.clock('0') \g /dev/null
-- Finished jobs by their end.
select pg_temp.pushed('edge.end') as ended, pg_temp.clock('3 hours') is null as later \gset
select ojs.ack(id) is null from ojs.claim('edge.end', 'w') \g /dev/null
select is(ojs.delete_many(jsonb_build_object('queue', 'edge.end', 'until', now() + interval '1 hour'),
    true) -> 'matched', '0', 'BLK-03: a job that ended later'),
    is(ojs.delete_many(jsonb_build_object('queue', 'edge.end', 'since', now() + interval '2 hours'),
        true) -> 'matched', '1', 'BLK-03: is found by its end');
select pg_temp.clock('0') \g /dev/null
select ojs.fail(pg_temp.held('edge.retry'), '{"type": "t", "message": "m"}', delay => '1 hour') is null \g /dev/null
select is(pg_temp.sum(ojs.retry_many('{"queue": "edge.retry"}', true)), '1/1/0',
    'BLK-03: jobs that wait for their retry are retried, too');
-- Exactly as many as a call may have.
set local ojs.max_batch_size = 2;
select is(pg_temp.sum(ojs.cancel_many(jsonb_build_object('ids',
    array[pg_temp.pushed('edge.two'), pg_temp.pushed('edge.two')]))), '2/2/0',
    'BLK-04: as many ids as a call may have');
select pg_temp.pushed('edge.two'), pg_temp.pushed('edge.two') \g /dev/null
select is(ojs.cancel_many('{"queue": "edge.two"}', true) -> 'more', 'false',
    'BLK-03: no more than a call may have is no reason for another');
reset ojs.max_batch_size;
select pg_temp.dead('edge.dead', 'E'), pg_temp.clock('1 hour') \g /dev/null
select pg_temp.dead('edge.dead', 'E') \g /dev/null
select ok(s ->> 'oldest_at' < s ->> 'newest_at', 'DLQ-09: from the oldest to the newest')
    from ojs.dead_letter_stats('edge.dead') s;
select pg_temp.clock('0') \g /dev/null

-- Jobs of workflows that have ended -----------------------------------------------------------------------------------

-- An order: check and charge are done, and what comes after them fails, in a queue of its own.
create function pg_temp.order_made(q text, out batch uuid, out ship uuid, out refund uuid) language plpgsql as $$
declare
    step jsonb := jsonb_build_object('args', '[]'::jsonb, 'options', jsonb_build_object('queue', q, 'retry',
        '{"max_attempts": 1, "on_exhaustion": "dead_letter"}'::jsonb));
begin
    batch := ojs.create_workflow(jsonb_build_object('type', 'batch', 'callbacks',
        jsonb_build_object('on_failure', step || '{"type": "order.refund"}'),
        'jobs', jsonb_build_array(jsonb_build_object('type', 'chain', 'steps', jsonb_build_array(
            step || '{"type": "order.charge"}', step || '{"type": "order.ship"}'))))) ->> 'id';
    perform ojs.ack(c.id) from ojs.claim(q, 'w') c;
    select (ojs.fail(c.id, '{"type": "Carrier", "message": "m"}')).id into ship from ojs.claim(q, 'w') c;
    select c.id into refund from ojs.claim(q, 'w') c;
end $$;

select * from pg_temp.order_made('orders') \gset
select is(ojs.workflow(:'batch') ->> 'state', 'running', 'the refund of an order is under way'),
    is(pg_temp.sum(r) || ' ' || (r -> 'left_out'), '0/0/0 1',
        'a retry by filter leaves out a step whose batch has called its callbacks: DLQ-07')
from ojs.retry_many('{"queue": "orders", "dead_letter": true}', true) r;
select ojs.ack(:'refund') is null \g /dev/null
select pg_temp.dead('orders', 'Carrier') as plain \gset
select is(pg_temp.sum(r) || ' ' || (r -> 'left_out') || ' ' || (r -> 'more'), '1/1/0 1 false',
    'a retry by filter says how many jobs of workflows that have ended it leaves out: DLQ-07')
from ojs.retry_many('{"dead_letter": true, "queue": "orders"}', true) r;
select is(pg_temp.at(:'ship'), 'discarded/1/1', 'an order that was refunded is not shipped: DLQ-07'),
    is(pg_temp.at(:'plain'), 'available/0/1', 'a job without a workflow is retried beside it: DLQ-07');
select is(pg_temp.sum(r) || ' ' || (r -> 'left_out'), '1/1/0 0',
    'jobs of workflows that have ended are retried where the filter asks for them: DLQ-07')
from ojs.retry_many('{"queue": "orders", "dead_letter": true, "ended_workflows": true}', true) r;
select is(pg_temp.at(:'ship'), 'available/0/1', 'and run: DLQ-07');
select batch as other_batch, ship as other_ship from pg_temp.order_made('orders.id') \gset
select is(pg_temp.sum(r), '1/1/0', 'a job that is named by its id is retried whatever its workflow: DLQ-07'),
    ok(not r ? 'left_out', 'nothing is left out of ids: DLQ-07')
from ojs.retry_many(jsonb_build_object('ids', array[:'other_ship'])) r;
-- They take no room from others.
select count(pg_temp.order_made('orders.many')) from generate_series(1, 3) \g /dev/null
select pg_temp.dead('orders.many', 'Carrier') from generate_series(1, 2) \g /dev/null
set local ojs.max_batch_size = 2;
select is(pg_temp.sum(r) || ' ' || (r -> 'more'), '2/2/0 false',
    'what is left out takes no room from what a call may retry: BLK-04')
from ojs.retry_many('{"queue": "orders.many", "dead_letter": true}', true) r;
reset ojs.max_batch_size;
-- A workflow that runs still.
select ojs.create_workflow('{"type": "group", "jobs": [
    {"type": "a.b", "args": [], "options": {"queue": "orders.open",
        "retry": {"max_attempts": 1, "on_exhaustion": "dead_letter"}}},
    {"type": "a.c", "args": [], "options": {"queue": "orders.open"}}]}') is null \g /dev/null
select ojs.fail(c.id, '{"type": "E", "message": "m"}') is null from ojs.claim('orders.open', 'w') c \g /dev/null
select is(pg_temp.sum(r) || ' ' || (r -> 'left_out'), '1/1/0 0',
    'a job whose workflow runs is retried by filter: DLQ-07')
from ojs.retry_many('{"queue": "orders.open", "dead_letter": true}', true) r;
select is(pg_temp.refusal($$ select ojs.retry_many('{"queue": "orders", "ended_workflows": 1}', true) $$),
    'OJ100 INVALID_PAYLOAD filter', 'ended_workflows is a boolean: BLK-03'),
    is(pg_temp.refusal(format('select ojs.%s_many(%L, true)', operation, '{"queue": "none", "ended_workflows": true}')),
        'OJ100 INVALID_PAYLOAD filter', 'only a retry asks for workflows that have ended, not ' || operation
        || ': BLK-03')
from unnest('{cancel,delete}'::text[]) operation;

select * from finish();
rollback;
