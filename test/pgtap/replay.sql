-- replay.sql: dead letters that rules try again: DLQ-10.
begin;
select no_plan();
\ir helpers.psql

-- A dead letter.
create function pg_temp.dead(queue text, error_type text default 'Net', options jsonb default '{}') returns uuid
    language sql as $$
    select pg_temp.pushed(queue, options);
    select (ojs.fail(id, jsonb_build_object('type', error_type, 'message', 'm', 'code', 'DEAD_LETTER'))).id
        from ojs.claim(queue, 'w') $$;
create function pg_temp.rules(queue text, variadic rules jsonb[]) returns void language sql as
$$ select ojs.configure_queue(queue, jsonb_build_object('replay_rules', to_jsonb(rules))) $$;
-- How many a tick replays at that time.
create function pg_temp.replayed(ahead interval, budget int default 1000) returns int language sql as
$$ select pg_temp.clock(ahead); select (ojs.tick(budget) ->> 'replayed')::int $$;

-- The setting ---------------------------------------------------------------------------------------------------------

select is(ojs.create_queue('q') #> '{config,replay_rules}', '[]', 'DLQ-10: by default there are none');
select is(ojs.configure_queue('q',
    '{"replay_rules": [{"name": "net", "filter": {"error_type": "Net"}, "delay": "PT1H", "max_replays": 2}]}')
    #> '{config,replay_rules,0}',
    '{"name": "net", "filter": {"error_type": "Net"}, "delay": "PT1H", "max_replays": 2}',
        'DLQ-10: a rule is kept as it came');
select is(pg_temp.refusal(format('select ojs.configure_queue(%L, %L)', 'q',
    jsonb_build_object('replay_rules', rules))), 'OJ100 INVALID_PAYLOAD ' || field,
    'DLQ-10: refused: ' || left(rules::text, 90))
from (values ('{}'::jsonb, 'replay_rules'), ('["net"]', 'replay_rules'),
    ('[{"delay": "PT1H", "max_replays": 1}]', 'replay_rules.name'),
    ('[{"name": "", "delay": "PT1H", "max_replays": 1}]', 'replay_rules.name'),
        ('[{"name": 1, "delay": "PT1H", "max_replays": 1}]', 'replay_rules.name'),
    (format('[{"name": "%s", "delay": "PT1H", "max_replays": 1}]', repeat('n', 65))::jsonb, 'replay_rules.name'),
    ('[{"name": "a", "delay": "PT1H", "max_replays": 1}, {"name": "a", "delay": "PT2H", "max_replays": 1}]',
        'replay_rules.name'),
    ('[{"name": "a", "max_replays": 1}]', 'replay_rules.delay'),
        ('[{"name": "a", "delay": 3600, "max_replays": 1}]', 'replay_rules.delay'),
    ('[{"name": "a", "delay": "1 hour", "max_replays": 1}]', 'replay_rules.delay'),
        ('[{"name": "a", "delay": "PT1H"}]', 'replay_rules.max_replays'),
    ('[{"name": "a", "delay": "PT1H", "max_replays": 0}]', 'replay_rules.max_replays'),
        ('[{"name": "a", "delay": "PT1H", "max_replays": 1.5}]', 'replay_rules.max_replays'),
    ('[{"name": "a", "delay": "PT1H", "max_replays": 2147483648}]', 'replay_rules.max_replays'),
        ('[{"name": "a", "delay": "PT1H", "max_replays": 1, "enabled": 1}]', 'replay_rules.enabled'),
    ('[{"name": "a", "delay": "PT1H", "max_replays": 1, "when": 1}]', 'replay_rules.when'),
        ('[{"name": "a", "delay": "PT1H", "max_replays": 1, "filter": []}]', 'replay_rules.filter'),
    ('[{"name": "a", "delay": "PT1H", "max_replays": 1, "filter": {"queue": "x"}}]', 'replay_rules.filter.queue'),
    ('[{"name": "a", "delay": "PT1H", "max_replays": 1, "filter": {"type": 1}}]', 'replay_rules.filter.type'),
    ('[{"name": "a", "delay": "PT1H", "max_replays": 1, "filter": {"error_type": null}}]',
        'replay_rules.filter.error_type'),
    ('[{"name": "a", "delay": "PT1H", "max_replays": 1, "filter": {"since": "monday"}}]', 'replay_rules.filter.since'),
    ('[{"name": "a", "delay": "PT1H", "max_replays": 1, "filter": {"priority": 0.5}}]', 'replay_rules.filter.priority'),
    ('[{"name": "a", "delay": "PT1H", "max_replays": 1, "filter": {"meta": "x"}}]', 'replay_rules.filter.meta'),
    ('[{"name": "a", "delay": "PT1H", "max_replays": 1, "filter": {"ended_workflows": "x"}}]',
        'replay_rules.filter.ended_workflows'),
    ((select jsonb_agg(jsonb_build_object('name', n::text, 'delay', 'PT1H', 'max_replays', 1))
        from generate_series(1, 33) n), 'replay_rules')) refused (rules, field);

-- When, which and how often -------------------------------------------------------------------------------------------

select pg_temp.dead('q') as net, pg_temp.dead('q', 'Disk') as disk, pg_temp.dead('other') as other \gset
select is(pg_temp.replayed('59 min'), 0, 'DLQ-10: nothing before its delay'),
    is(pg_temp.at(:'net'), 'discarded/1/1', 'DLQ-10: so it stays');
select ojs.set_maintenance(true) \g /dev/null
select is(pg_temp.replayed('61 min'), 0, 'DLQ-10 ADM-05: nothing in maintenance');
select ojs.set_maintenance(false) \g /dev/null
select is(pg_temp.replayed('61 min'), 1, 'DLQ-10: one after it');
select is(pg_temp.at(:'net'), 'available/0/1', 'DLQ-10 R-39: as by a manual retry'),
    is(pg_temp.at(:'disk'), 'discarded/1/1', 'DLQ-10: not what the filter leaves out'),
        is(pg_temp.at(:'other'), 'discarded/1/1', 'DLQ-10: nor what is in another queue');
select is(meta - 'ojs.last_replayed_at', '{"ojs.replay_count": 1, "ojs.replay_rule": "net"}',
    'DLQ-10: tracked in meta'),
    ok((meta ->> 'ojs.last_replayed_at')::timestamptz - now() between '60 min' and '62 min', 'DLQ-10: with the time'),
        is(jsonb_array_length(errors), 1, 'DLQ-10 R-39: its history is kept'),
    is(error, null, 'DLQ-10: its error is not') from ojs.jobs where id = :'net';
select is((select count(*) from ojs.dead_letters where id = :'net'), 0::bigint, 'DLQ-10: a dead letter no more');
select is(data, jsonb_build_object('job_id', :'net', 'job_type', 'test.job', 'queue', 'q', 'rule', 'net',
    'replay_count', 1), 'DLQ-10: an event tells of it'),
    is(subject, :'net', 'DLQ-10: by the job''s id')
from ojs.events where type = 'dead_letter.replayed';

select is((ojs.fail(id, '{"type": "Net", "message": "m", "code": "DEAD_LETTER"}')).state, 'discarded',
    'DLQ-10: it dies again') from ojs.claim('q', 'w');
select is(pg_temp.replayed('2 h'), 0, 'DLQ-10: the delay counts from the last death'),
    is(pg_temp.replayed('2 h 2 min'), 1, 'DLQ-10: then once more');
select is((select meta ->> 'ojs.replay_count' from ojs.jobs where id = :'net'), '2', 'DLQ-10: counted');
select is((ojs.fail(id, '{"type": "Net", "message": "m", "code": "DEAD_LETTER"}')).state, 'discarded',
    'DLQ-10: it dies for the last time') from ojs.claim('q', 'w');
select is(pg_temp.replayed('9 h'), 0, 'DLQ-10: max_replays bounds it');
select is((select count(*) from ojs.dead_letters where id = :'net'), 1::bigint, 'DLQ-10: a dead letter for good');
select is(meta - 'ojs.last_replayed_at', '{"ojs.replay_count": 3}',
    'DLQ-10 R-39: a retry by hand counts, and names no rule') from ojs.retry(:'net');
select pg_temp.clock('0') \g /dev/null

-- A producer's own ojs.replay_count is no number of ours.
select pg_temp.dead('odd', 'Net', jsonb_build_object('meta', jsonb_build_object('ojs.replay_count', c))) as id
    into temp odd from unnest('{"\"two\"",null,-5,1e300,[]}'::jsonb[]) c;
select is((select array_agg((ojs.retry(id)).meta -> 'ojs.replay_count' order by id) from odd), '{1,1,1,1000000001,1}',
    'DLQ-10: whatever stands there, a retry counts on');

-- Rules side by side --------------------------------------------------------------------------------------------------

select pg_temp.rules('pair', '{"name": "off", "delay": "PT1M", "max_replays": 9, "enabled": false}',
    '{"name": "first", "filter": {"type": "test.*", "priority": 5}, "delay": "PT1M", "max_replays": 1}',
    '{"name": "second", "filter": {"meta": {"k": 1}, "until": "2100-01-01T00:00:00Z"}, "delay": "PT2M", "max_replays": '
    '1}', '{"name": "never", "filter": {"since": "2100-01-01T00:00:00Z"}, "delay": "PT0S", "max_replays": 1}')
        \g /dev/null
select pg_temp.dead('pair', options => '{"priority": 5, "meta": {"k": 1}}') as both,
    pg_temp.dead('pair', options => '{"meta": {"k": 1, "l": 2}}') as second, pg_temp.dead('pair') as none \gset
select is(pg_temp.replayed('90 s'), 1, 'DLQ-10: a rule that is switched off does nothing');
select is((select meta ->> 'ojs.replay_rule' from ojs.jobs where id = :'both'), 'first',
    'DLQ-10: the first that fits takes it');
select is(pg_temp.replayed('3 min'), 1, 'DLQ-10: each rule has its delay');
select is((select meta ->> 'ojs.replay_rule' from ojs.jobs where id = :'second'), 'second', 'DLQ-10: by meta'),
    is(pg_temp.at(:'none'), 'discarded/1/1', 'DLQ-10: what fits none stays');
select pg_temp.clock('0') \g /dev/null
select pg_temp.rules('_default', '{"name": "all", "delay": "PT0S", "max_replays": 1}'),
    ojs.configure_queue('off', '{"replay_rules": []}') \g /dev/null
select pg_temp.dead('by-policy') as by_policy, pg_temp.dead('off') as off,
    pg_temp.dead('by-policy', options => '{"delivery": "at_most_once"}') as once \gset
select ok(pg_temp.replayed('1 s') > 0, 'DLQ-10 QC-03: the default policy''s rules hold');
select is(pg_temp.at(:'by_policy'), 'available/0/1', 'DLQ-10 QC-03: where a queue has none'),
    is(pg_temp.at(:'off'), 'discarded/1/1', 'DLQ-10: an empty list is none'),
        is(pg_temp.at(:'once'), 'discarded/1/1', 'DLQ-10 DLV-01: what may be delivered once is not brought back');

-- In small steps ------------------------------------------------------------------------------------------------------

select ojs.configure_queue('_default', '{"replay_rules": null}'),
    pg_temp.rules('many', '{"name": "all", "delay": "PT1H", "max_replays": 1}') \g /dev/null
select pg_temp.clock('0') \g /dev/null
select count(pg_temp.dead('many')) as n from generate_series(1, 5) \gset
select pg_temp.clock('2 h') \g /dev/null
select is(t ->> 'replayed', '2', 'DLQ-10 PGX-05: at most budget jobs'),
    is(t ->> 'more', 'true', 'DLQ-10: and it says that there are more') from ojs.tick(2) t;
select is(pg_temp.replayed('2 h', 2), 2, 'DLQ-10: the next follow at once'),
    is(pg_temp.replayed('2 h', 2), 1, 'DLQ-10: to the last');
select is((select array_agg(id order by id) from ojs.claim('many', 'w', 10)),
    (select array_agg(id) from (select id from ojs.jobs where queue = 'many' order by id) j),
    'DLQ-10: all of them are claimed');

-- Workflows that have ended -------------------------------------------------------------------------------------------

select pg_temp.clock('0') \g /dev/null
select pg_temp.rules('ended', '{"name": "all", "delay": "PT1H", "max_replays": 1}') \g /dev/null
select ojs.create_workflow('{"type": "chain", "steps": [{"type": "a.b", "args": [], "options": {"queue": "ended",
    "retry": {"max_attempts": 1, "on_exhaustion": "dead_letter"}}}, {"type": "a.c", "args": []}]}') is null \g /dev/null
select (ojs.fail(c.id, '{"type": "Net", "message": "m"}')).id as step from ojs.claim('ended', 'w') c \gset
select is(pg_temp.replayed('2 h'), 0, 'a rule leaves out the jobs of workflows that have ended: DLQ-10'),
    is(pg_temp.at(:'step'), 'discarded/1/1', 'they stay dead letters: DLQ-10');
select pg_temp.rules('ended',
    '{"name": "all", "delay": "PT1H", "max_replays": 1, "filter": {"ended_workflows": true}}') \g /dev/null
select is(pg_temp.replayed('2 h'), 1, 'unless it asks for them: DLQ-10');

-- A queue that was dropped --------------------------------------------------------------------------------------------

select pg_temp.clock('0') \g /dev/null
select pg_temp.rules('_default', '{"name": "all", "delay": "PT1H", "max_replays": 1}'),
    pg_temp.rules('own', '{"name": "own", "delay": "PT1H", "max_replays": 1}') \g /dev/null
select pg_temp.dead('own') as own, pg_temp.dead('gone') as gone \gset
select ojs.drop_queue('own'), ojs.drop_queue('gone') \g /dev/null
select is(pg_temp.replayed('2 h'), 0, 'dead letters of dropped queues stay what they are (DLQ-10)');
select is(pg_temp.at(:'gone'), 'discarded/1/1', 'whoever had the rule (DLQ-10)'),
    is(pg_temp.at(:'own'), 'discarded/1/1', 'the queue itself, too (DLQ-10)');
select is((select count(*) from ojs.queues where name in ('own', 'gone')), 0::bigint,
    'and the queues stay dropped (QC-04)');

-- A rule is read once: what the setting takes, the tick can do --------------------------------------------------------

select pg_temp.clock('0') \g /dev/null
select is(pg_temp.refusal($$select ojs.configure_queue('many',
    '{"replay_rules": [{"name": "a", "delay": "PT1H", "max_replays": 1, "filter": {"since": "+PT1H"}}]}')$$),
    'OJ100 INVALID_PAYLOAD replay_rules.filter.since', 'DLQ-10: a rule stays, so its times are absolute');
select ojs.create_queue('odd-' || n, jsonb_build_object('replay_rules',
    jsonb_build_array(jsonb_build_object('name', 'r', 'max_replays', 1) || rule))) is null as made,
    pg_temp.dead('odd-' || n) is null as dead
from unnest(array['{"delay": "P100Y"}', '{"delay": "P99Y"}',
    '{"delay": "PT0S", "filter": {"since": "0001-01-01T00:00:00Z", "until": "9999-12-31T23:59:59Z"}}',
    '{"delay": "PT0.0004S", "filter": {"priority": 0e10}}']::jsonb[]) with ordinality r(rule, n) \g /dev/null
select pg_temp.clock('1 hour') \g /dev/null
select is(ojs.tick() -> 'failed', '[]', 'DLQ-10: absurd delays and times do not stop a tick');
select is((select string_agg(pg_temp.at(j.id), ' ' order by j.queue) from ojs.jobs j where j.queue like 'odd-%'),
    'discarded/1/1 discarded/1/1 available/0/1 available/0/1', 'DLQ-10: and mean what they say');

-- A rule that was spoilt behind our back stops no other one.
select pg_temp.clock('0') \g /dev/null
select pg_temp.rules('spoilt', '{"name": "r", "delay": "PT0S", "max_replays": 1}'),
    pg_temp.rules('well', '{"name": "r", "delay": "PT0S", "max_replays": 1}') \g /dev/null
update ojs_store.queue set config = jsonb_set(config, '{replay_rules,0,delay}', '"soon"') where name = 'spoilt';
select pg_temp.dead('spoilt') as spoilt, pg_temp.dead('well') as well \gset
set local client_min_messages = error;
select pg_temp.clock('1 minute') \g /dev/null
select is(ojs.tick() -> 'failed', '["replay"]', 'DLQ-10: a rule that cannot be read is told of');
reset client_min_messages;
select is(pg_temp.at(:'well'), 'available/0/1', 'DLQ-10: and the others hold'),
    is(pg_temp.at(:'spoilt'), 'discarded/1/1', 'DLQ-10: its own letters stay');

select * from finish();
rollback;
