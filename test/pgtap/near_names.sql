-- near_names.sql: names that are nearly known ones are refused; none is kept in silence and means nothing: R-84.
-- Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();
\ir helpers.psql

-- The error of a statement: SQLSTATE, message, hint.
create function pg_temp.words(statement text) returns text language plpgsql as $$
declare
    state text; message text; hint text;
begin
    execute statement;
    return 'accepted';
exception when others then
    get stacked diagnostics state = returned_sqlstate, message = message_text, hint = pg_exception_hint;
    return concat_ws(' ', state, message, hint);
end $$;

create temp table ways (way text, statement text);
insert into ways values
    ('the options of push', $$select ojs.push('a.b', options => jsonb_build_object(%L, %L))$$),
    ('push_job', $$select ojs.push_job('{"type": "a.b", "args": []}'::jsonb || jsonb_build_object(%L, %L))$$),
    ('options within push_job',
        $$select ojs.push_job('{"type": "a.b", "args": []}'::jsonb
            || jsonb_build_object('options', jsonb_build_object(%L, %L)))$$),
    ('push_many',
        $$select ojs.push_many(jsonb_build_array('{"type": "a.b", "args": []}'::jsonb
            || jsonb_build_object(%L, %L)))$$),
    ('a cron job',
        $$select ojs.schedule('near', '0 3 * * *', '{"type": "a.b"}'::jsonb || jsonb_build_object(%L, %L))$$),
    ('a workflow''s job',
        $$select ojs.create_workflow(jsonb_build_object('type', 'chain', 'steps',
            jsonb_build_array('{"type": "a.b", "args": []}'::jsonb || jsonb_build_object(%L, %L))))$$);
create temp table near_misses (given text, meant text);
insert into near_misses values ('scheduledAt', 'scheduled_at'), ('maxAttempts', 'max_attempts'),
    ('prioritty', 'priority'), ('priorty', 'priority'), ('prioirty', 'priority'), ('queu', 'queue'),
    ('Queue', 'queue'), ('delayMs', 'delay_ms'), ('delayUntil', 'delay_until'), ('expiresAt', 'expires_at'),
    ('rate-limit', 'rate_limit'), ('ratelimit', 'rate_limit'), ('metaData', 'metadata'), ('tagss', 'tags'),
    ('uniqe', 'unique'), ('time_out', 'timeout'), ('timeoutMs', 'timeout_ms'), ('Deduplication_Key',
    'deduplication_key'), ('ID', 'id'), ('parentId', 'parent_id'), ('visibilityTimeout', 'visibility_timeout');

select matches(pg_temp.words(format(statement, given, 'x')),
    '^OJ100 (jobs\[0\]: )?' || given || ' is not known: is it ' || meant || '\? Write ' || meant || ', .*\.$',
    format('%s is refused by %s, which asks whether it is %s (R-84)', given, way, meant))
from ways, near_misses;
select matches(pg_temp.words($$select ojs.push_many('[{"type": "a.b", "args": []}, {"type": "a.b", "queu": "x"}]')$$),
    'queu is not known: is it queue\?', 'the second job of a batch likewise (R-84)');
select is(pg_temp.refusal($$select ojs.push('a.b', options => '{"queu": null}')$$), 'OJ100 INVALID_PAYLOAD queu',
    'a misspelt name is refused whatever stands behind it (R-84)');
select is((select count(*) from ojs.jobs), 0::bigint, 'and no job is stored (R-84)');

-- Aliases, what the server sets, and all names of one's own stay (R-11) ---------------------------------------------

select is(pg_temp.refusal(format(statement, given, 'x')), 'accepted', format('%s is kept by %s (R-11)', given, way))
from ways, unnest('{x_queue,priority_class,customer,trace_id,ext_ml_priority,custom_field,tenant,lease,ip,tax,"",'
    'stat,resuit,created,startedAt,createdAt}'::text[]) given
where way <> 'a cron job' or given <> '';
select is(ojs.push_job(pg_temp_job || given) ->> shown is not null, true,
    format('%s stays another name of %s (R-84)', given, shown))
from (values ('{"type": "a.b", "args": []}'::jsonb)) p (pg_temp_job), (values
    ('{"deduplicationKey": "k"}'::jsonb, 'id'), ('{"orderingKey": "o"}', 'ordering_key'),
    ('{"delay_until": "2099-01-01T00:00:00Z"}', 'scheduled_at'), ('{"timeout_ms": 5000}', 'timeout'),
    ('{"max_attempts": 4}', 'retry'), ('{"visibility_timeout_ms": 5000}', 'visibility_timeout_ms')) v (given, shown);

-- Words of other libraries in a retry policy ------------------------------------------------------------------------

select matches(pg_temp.words(format($$select ojs.push('a.b', retry => jsonb_build_object(%L, 5))$$, word)),
    'OJ106 retry.' || word || ' is not known: is it max_attempts\? .*first', word || ' is not kept in silence (R-84)')
from unnest('{attempts,max_retries,maxRetries,retries,tries,max_tries}'::text[]) word;

-- Rate limits that limit nothing ------------------------------------------------------------------------------------

create function pg_temp.limited(rate_limit jsonb) returns text language sql as
$$ select pg_temp.words(format('select ojs.push(''a.b'', options => %L)',
    jsonb_build_object('rate_limit', rate_limit))) $$;
select matches(pg_temp.limited(given), '^OJ100 rate_limit limits nothing .*concurrency, rate or throttle',
    format('%s limits nothing, and is refused (R-89)', given))
from unnest(array['{}', '{"on_limit": "drop"}', '{"concurrency": null}', '{"key": "x", "max": 5, "duration": 1000}',
    '[{"key": "x", "concurrency": 1}, {}]']::jsonb[]) given;
select matches(pg_temp.limited(given), '^OJ100 rate_limit\.' || name || ' is not known: is it ' || meant || '\?',
    format('%s is no limit (R-84)', given))
from (values ('{"key": "x", "concurency": 5}'::jsonb, 'concurency', 'concurrency'),
    ('{"key": "x", "concurrency": 5, "onLimit": "drop"}', 'onLimit', 'on_limit'),
    ('{"key": "x", "maxPerSecond": 5}', 'maxPerSecond', 'max_per_second'),
    ('{"key": "x", "throtle": {"limit": 1, "period": "PT1S"}}', 'throtle', 'throttle')) v (given, name, meant);
select is(pg_temp.limited(given), 'accepted', format('%s says something (RL-06)', given))
from unnest(array['{"key": "x"}', '{"key": "x", "on_limit": "drop"}', '{"key": "x", "concurrency": 0}',
    '{"key": "x", "concurrency": 1, "note": "ours"}', '{"max_per_second": 1}', '{"limit": 5, "period": "1s"}',
    '[]']::jsonb[]) given;

-- Settings of queues and of rate limits -----------------------------------------------------------------------------

select is(pg_temp.words(format($$select ojs.configure_queue('near', %L)$$, given)), answer,
    format('the settings of a queue: %s', given))
from (values
    ('{"concurency": 5}', 'OJ100 concurency is no setting of a queue: is it concurrency? '
        'Write concurrency, or leave it out.'),
    ('{"leaseMs": 5000}', 'OJ100 leaseMs is no setting of a queue: is it lease_ms? '
        'Write lease_ms, or leave it out.'),
    ('{"retention": {"complete": "P1D"}}', 'OJ100 retention.complete is no setting: is it retention.completed? '
        'It has completed, discarded and cancelled.'),
    ('{"rate_limit": {"concurency": 5}}',
        'OJ100 rate_limit.concurency is not known: is it concurrency? Write concurrency, or leave it out.')
) v (given, answer);
select matches(pg_temp.words($$select ojs.configure_queue('near', '{"colour": 5}')$$),
    '^OJ100 colour is no setting of a queue .*concurrency.*warning_threshold', 'any other: the settings are named');
select is(pg_temp.words($$select ojs.set_rate_limit('near', '{"concurency": 5}')$$),
    'OJ100 rate_limit.concurency is not known: is it concurrency? Write concurrency, or leave it out.',
    'what an administrator lays over a key likewise');
select is((select count(*) from ojs.queues where name = 'near'), 0::bigint, 'none of it has made the queue');

-- What was registered before names were checked goes on -------------------------------------------------------------

select ojs.schedule('old', '* * * * *', '{"type": "old.cron", "queue": "old"}') \g /dev/null
update ojs_store.cron set job = job || '{"queu": "mail", "retry": {"attempts": 5}, "rate_limit": {}}'
where name = 'old';
select pg_temp.clock('2 minutes') \g /dev/null
select ojs.tick() is null \g /dev/null
select is((select count(*) > 0 from ojs.jobs where type = 'old.cron' and extra ->> 'queu' = 'mail'), true,
    'a cron job that is stored with a misspelt name still runs');
select ojs.create_workflow('{"type": "chain", "steps": [{"type": "old.first", "args": []},
    {"type": "old.second", "args": []}]}') \g /dev/null
update ojs_store.workflow_member set definition = definition || '{"queu": "mail"}' where type = 'old.second';
select count(ojs.ack(c.id)) from ojs.claim('default', 'w', 100) c \g /dev/null
select is((select count(*) from ojs.jobs where type = 'old.second' and extra ->> 'queu' = 'mail'), 1::bigint,
    'and so does the next step of a workflow');

select * from finish();
rollback;
