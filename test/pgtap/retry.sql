-- retry.sql: retry policies and the errors of failed attempts: RET, ERR part A, R-16, R-35 to R-37, R-40, R-42 to R-44.
-- Runs once: nothing here asks whether ojs was preloaded.
begin;
create extension if not exists pgtap;
create extension if not exists ojs;
select no_plan();
\ir refusal.psql

create function pg_temp.effective(policy jsonb) returns jsonb language sql as
$$ select (ojs.push('a.b', retry => policy)).retry $$;

-- A job of its own queue, claimed once.
create sequence pg_temp.queues;
create function pg_temp.claimed(policy jsonb) returns ojs.claimed_job language plpgsql as $$
declare
    queue text := 'q' || nextval('pg_temp.queues');
    result ojs.claimed_job;
begin
    perform ojs.push('a.b', queue => queue, retry => policy);
    select * into strict result from ojs.claim(queue, 'w');
    return result;
end $$;

-- What becomes of a job that fails like this at its first attempt.
create function pg_temp.outcome(policy jsonb, error jsonb) returns text language plpgsql as $$
declare
    job ojs.job := ojs.fail((pg_temp.claimed(policy)).id, error);
begin
    return job.state || case when (select flags & 1 = 1
        from ojs_store.finished where job_id = job.id) then ' dead letter' else '' end;
end $$;

-- The delays before the retries of a job that always fails, in ms, until it ends or n are known. The clock moves on to
-- each retry.
create function pg_temp.delays(policy jsonb, n int) returns bigint[] language plpgsql as $$
declare
    held ojs.claimed_job := pg_temp.claimed(policy);
    failed ojs.job;
    delay bigint;
    result bigint[] := '{}';
begin
    for i in 1 .. n loop
        failed := ojs.fail(held.id, '{"type": "X", "message": "x"}');
        exit when failed.state <> 'retryable';
        delay := (extract(epoch
            from failed.next_attempt_at - (failed.error ->> 'occurred_at')::timestamptz) * 1000)::bigint;
        result := result || delay;
        perform set_config('ojs.clock_offset', (select sum(d) from unnest(result) d) || 'ms', true);
        select * into strict held from ojs.claim(held.queue, 'w');
    end loop;
    perform set_config('ojs.clock_offset', '0', true);
    return result;
end $$;

-- RET-01, R-44: what a policy is completed to ----------------------------------------------------------------------

select is((ojs.push('a.b')).retry,
    '{"max_attempts": 3, "initial_interval": "PT1S", "backoff_coefficient": 2.0, "max_interval": "PT5M",
    "jitter": true, "non_retryable_errors": [], "on_exhaustion": "discard"}', 'RET-01: the default policy');
select is(pg_temp.effective('{}'), (ojs.push('a.b')).retry, 'RET-01: {} is the default');
select is(pg_temp.effective('{"max_attempts": 10, "on_exhaustion": "dead_letter"}'), (ojs.push('a.b')).retry
    || '{"max_attempts": 10, "on_exhaustion": "dead_letter"}',
    'RET-01: a partial policy takes the rest from the default');
select is(pg_temp.effective('{"max_attempts": null, "jitter": null}'), (ojs.push('a.b')).retry,
    'RET-01 ENV-23: null is as if absent');
select is(pg_temp.effective('{"backoff_strategy": "linear", "x_other": {"a": [1.50]}}')::text,
    ((ojs.push('a.b')).retry || '{"backoff_strategy": "linear", "x_other": {"a": [1.50]}}')::text,
        'R-11: unknown members are kept');
select is(pg_temp.effective(given) ->> 'initial_interval', expected, 'R-08: ' || given::text)
from (values ('{"initial_interval": "PT90S"}'::jsonb, 'PT90S'), ('{"initial_interval_ms": 1500}', 'PT1.5S'),
    ('{"initial_delay_ms": 60000}', 'PT1M'),
    ('{"initial_interval": "PT1M", "initial_interval_ms": 60000}', 'PT1M')) i (given, expected);
select is(pg_temp.effective('{"max_interval_ms": 7200000}') ->> 'max_interval', 'PT2H', 'R-08: max_interval_ms');
select is(pg_temp.effective('{"initial_interval": "PT10M"}') ->> 'max_interval', 'PT10M',
    'R-44: an omitted max_interval is raised to initial_interval');
select is((ojs.push('a.b', retry => jsonb_build_object('max_attempts', n))).max_attempts, n, 'R-16: max_attempts '
    || n) from unnest(array[0, 1, 25]) n;

-- What a queue says for its jobs, and what a job says of it.
create function pg_temp.inherited(base jsonb, own jsonb) returns jsonb language plpgsql as $$
begin
    perform ojs.configure_queue('base', jsonb_build_object('default_retry', base));
    return (ojs.push('a.b', queue => 'base', retry => own)).retry;
end $$;
select is(pg_temp.inherited(base,
    own) - '{backoff_coefficient,jitter,non_retryable_errors,on_exhaustion,max_attempts}'::text[], expected,
    format('RET-01: %s and %s', base, own))
from (values
    ('{"initial_interval": "PT5S"}'::jsonb, '{"max_interval": "PT10S"}'::jsonb,
        '{"initial_interval": "PT5S", "max_interval": "PT10S"}'::jsonb),
    ('{"initial_interval": "PT5S"}', '{"initial_interval_ms": 2000}',
        '{"initial_interval": "PT2S", "initial_interval_ms": 2000, "max_interval": "PT5M"}'),
    ('{"initial_interval_ms": 5000}', '{"initial_interval": "PT2S"}',
        '{"initial_interval": "PT2S", "max_interval": "PT5M"}'),
    ('{"backoff_strategy": "linear"}', '{"strategy": "constant"}',
        '{"strategy": "constant", "initial_interval": "PT1S", "max_interval": "PT5M"}'),
    ('{"max_interval": "PT10S"}', '{"initial_interval": "PT1M"}',
        '{"initial_interval": "PT1M", "max_interval": "PT5M"}'),
    ('{"max_interval": "PT10S"}', '{"initial_interval": "PT10M"}',
        '{"initial_interval": "PT10M", "max_interval": "PT10M"}')) i (base, own, expected);

-- RET-11: what is refused ------------------------------------------------------------------------------------------

select is(pg_temp.strict_refusal(format('select ojs.push(''a.b'', retry => %L)', given)),
    'OJ106 INVALID_RETRY_POLICY retry.'
    || field, 'RET-11: ' || given)
from (values
    ('{"max_attempts": -1}', 'max_attempts'), ('{"max_attempts": 1.5}', 'max_attempts'), ('{"max_attempts": "3"}',
        'max_attempts'), ('{"max_attempts": 1e10}', 'max_attempts'),
    ('{"backoff_coefficient": 0.5}', 'backoff_coefficient'), ('{"backoff_coefficient": 0.999999999999}',
        'backoff_coefficient'), ('{"backoff_coefficient": "2"}', 'backoff_coefficient'),
    ('{"initial_interval": "1s"}', 'initial_interval'), ('{"initial_interval": "PT0S"}', 'initial_interval'),
        ('{"initial_interval": "-PT1S"}', 'initial_interval'),
    ('{"initial_interval": 1}', 'initial_interval'), ('{"initial_interval": ""}', 'initial_interval'),
        ('{"initial_interval_ms": 0}', 'initial_interval_ms'),
    ('{"initial_interval_ms": "PT1S"}', 'initial_interval_ms'),
        ('{"initial_interval": "PT1S", "initial_interval_ms": 2000}', 'initial_interval_ms'),
    ('{"max_interval": "P"}', 'max_interval'), ('{"max_interval": "PT0S"}', 'max_interval'), ('{"max_interval_ms": -5}',
        'max_interval_ms'),
    ('{"initial_interval": "PT10S", "max_interval": "PT5S"}', 'max_interval'), ('{"max_interval": "PT0.5S"}',
        'max_interval'),
    ('{"jitter": "yes"}', 'jitter'), ('{"jitter": 1}', 'jitter'),
    ('{"non_retryable_errors": "x"}', 'non_retryable_errors'), ('{"non_retryable_errors": [""]}',
        'non_retryable_errors'), ('{"non_retryable_errors": [1]}', 'non_retryable_errors'),
    ('{"non_retryable_errors": {}}', 'non_retryable_errors'),
    ('{"on_exhaustion": "drop"}', 'on_exhaustion'), ('{"on_exhaustion": true}', 'on_exhaustion'),
    ('{"backoff_strategy": "fibonacci"}', 'backoff_strategy'), ('{"strategy": 1}', 'strategy'),
        ('{"backoff_strategy": "linear", "strategy": "none"}', 'strategy')) p (given, field);
select is(pg_temp.strict_refusal(format('select ojs.push(''a.b'', retry => %L)', given)),
    'OJ106 INVALID_RETRY_POLICY retry',
    'RET-11: ' || given)
from unnest(array['[]', '5', '"x"']) given;
select is(
    pg_temp.strict_refusal($$select ojs.push_job('{"type": "a.b", "args": [], "options": {"retry": {"jitter": 5}}}')$$),
    'OJ106 INVALID_RETRY_POLICY retry.jitter', 'RET-11 R-43: in an envelope, under options');

-- RET-02 to RET-06: delays -----------------------------------------------------------------------------------------

select is(pg_temp.delays(policy || '{"jitter": false, "max_attempts": 9}', array_length(expected, 1)), expected, name)
from (values
    ('{}'::jsonb, array[1000, 2000, 4000, 8000]::bigint[], 'RET-02: exponential is the default'),
    ('{"backoff_coefficient": 1}', array[1000, 1000, 1000], 'RET-04: coefficient 1 gives equal delays'),
    ('{"backoff_coefficient": 10, "max_interval": "PT2S"}', array[1000, 2000, 2000], 'RET-04: the cap'),
    ('{"backoff_strategy": "linear"}', array[1000, 2000, 3000], 'RET-02 R-42: linear'),
    ('{"strategy": "linear", "initial_interval_ms": 250}', array[250, 500, 750], 'RET-02 R-42: by the other name'),
    ('{"backoff_strategy": "constant", "backoff_coefficient": 3}', array[1000, 1000, 1000], 'RET-02 R-42: constant'),
    ('{"backoff_strategy": "none"}', array[1000, 1000], 'RET-02 R-42: none is constant'),
    ('{"backoff_strategy": "polynomial", "backoff_coefficient": 4}', array[1000, 16000, 81000, 256000, 300000],
        'RET-02 R-42: polynomial'),
    ('{"backoff_coefficient": 1.5, "initial_interval": "PT0.1S"}', array[100, 150, 225, 338],
        'RET-02: fractions of a second'),
    ('{"backoff_coefficient": 1e300}', array[1000, 300000, 300000], 'RET-05: no overflow'),
    ('{"backoff_coefficient": 1e399}', array[1000, 300000], 'RET-05: not of the coefficient either'),
    ('{"initial_interval": "P100Y"}', array[3153600000000, 3153600000000], 'RET-05: nor of an interval')) d (policy,
        expected, name);

select is(pg_temp.strict_refusal($$ select ojs.push('a.b', retry => '{"initial_interval": "P1000000Y"}') $$),
    'OJ106 INVALID_RETRY_POLICY retry.initial_interval', 'an interval of more than 100 years is refused: R-95');
select (pg_temp.claimed('{"jitter": false, "initial_interval": "P99Y"}')).id as ancient \gset
update ojs_store.job set retry = jsonb_set(retry, '{initial_interval}', '"P1000000Y"') where id = :'ancient';
select is(next_attempt_at - ojs_store.now() between interval '36524 days' and interval '36525 days', true,
    'a longer one that was stored before counts as 100 years: R-95')
from ojs.fail(:'ancient', '{"type": "t", "message": "m"}');

create temp table jittered as
select (pg_temp.delays('{"initial_interval": "PT2S", "backoff_coefficient": 1}', 1))[1] as delay from generate_series(1,
    300);
select ok(min(delay) between 1000 and 1300 and max(delay) between 2700 and 3000 and count(distinct delay) > 100,
    'RET-03: PT2S with jitter is anything from 1 to 3 s') from jittered;
select ok(max(delay) = 2000 and min(delay) < 1900, 'RET-03: never above max_interval')
from (select (pg_temp.delays('{"initial_interval": "PT2S", "max_interval": "PT2S"}', 1))[1] as delay
    from generate_series(1, 100)) d;

create temp table waiting as select (c).id, (c).queue
    from pg_temp.claimed('{"initial_interval": "PT100S", "jitter": false}') c;
select is((ojs.fail(id, '{"type": "X", "message": "x"}')).state, 'retryable', 'RET-06: (a job waits for its retry)')
    from waiting;
set local ojs.clock_offset = '95s';
select is((select count(*) from waiting, ojs.claim(queue, 'w')), 0::bigint, 'RET-06: not claimable before its time');
set local ojs.clock_offset = '100100ms';
create temp table again as select c.* from waiting, ojs.claim(waiting.queue, 'w') c;
select is((select attempt from again), 2, 'RET-06 OP-09: but 100 ms after it');
select is((select extra ->> 'retry_delay_ms' from again), '100000', 'RET-13: the claim tells the delay');
reset ojs.clock_offset;

-- RET-07 to RET-10: verdicts ---------------------------------------------------------------------------------------

select is(array_length(pg_temp.delays('{"max_attempts": 3, "jitter": false}', 9), 1), 2,
    'RET-07 R-16: three attempts, two retries');
select is(coalesce(array_length(pg_temp.delays(jsonb_build_object('max_attempts', n), 9), 1), 0), 0,
    'R-16: none with max_attempts ' || n) from unnest(array[0, 1]) n;

select is(pg_temp.outcome(policy, error), expected, name)
from (values
    ('{"max_attempts": 1}'::jsonb, '{"type": "X", "message": "x"}'::jsonb, 'discarded',
        'RET-07 R-37: exhausted, discard is the default'),
    ('{"max_attempts": 1, "on_exhaustion": "dead_letter"}', '{"type": "X", "message": "x"}', 'discarded dead letter',
        'RET-07 R-37: exhausted, to the dead letters'),
    ('{"non_retryable_errors": ["X"]}', '{"type": "X", "message": "x"}', 'discarded',
        'RET-08: a type that is not retried'),
    ('{"non_retryable_errors": ["X"], "on_exhaustion": "dead_letter"}', '{"type": "X", "message": "x"}',
        'discarded dead letter', 'RET-08: by on_exhaustion'),
    ('{"non_retryable_errors": ["X"]}', '{"type": "Xy", "message": "x"}', 'retryable', 'RET-08: exact'),
    ('{"non_retryable_errors": ["x"]}', '{"type": "X", "message": "x"}', 'retryable', 'RET-08: case counts'),
    ('{"non_retryable_errors": ["auth.*"]}', '{"type": "auth.token_expired", "message": "x"}', 'discarded',
        'RET-08: prefix'),
    ('{"non_retryable_errors": ["auth.*"]}', '{"type": "auth", "message": "x"}', 'retryable',
        'RET-08 R-36: auth.* is not auth'),
    ('{"non_retryable_errors": ["auth.*"]}', '{"type": "external.auth.x", "message": "x"}', 'retryable',
        'RET-08 R-36: a prefix begins at the start'),
    ('{"non_retryable_errors": ["auth*", "*"]}', '{"type": "authx", "message": "x"}', 'retryable',
        'RET-08 R-36: only .* is a wildcard'),
    ('{"non_retryable_errors": ["FatalError"]}',
        '{"code": "handler_error", "message": "x", "details": {"error_class": "FatalError"}}', 'discarded',
        'RET-08 R-35: on the normalised type'),
    ('{"non_retryable_errors": ["handler_error"]}', '{"code": "handler_error", "message": "x"}', 'discarded',
        'RET-08 R-35: the code, where that is the type'),
    ('{"non_retryable_errors": ["A", "B", "X"]}', '{"type": "X", "message": "x"}', 'discarded',
        'RET-08: anywhere in the list'),
    ('{}', '{"type": "X", "message": "x", "retryable": false}', 'discarded', 'RET-09: retryable false'),
    ('{"on_exhaustion": "dead_letter"}', '{"type": "X", "message": "x", "retryable": false}', 'discarded dead letter',
        'RET-09: by on_exhaustion'),
    ('{}', '{"type": "X", "message": "x", "retryable": true}', 'retryable', 'RET-09: retryable true is the default'),
    ('{"max_attempts": 1}', '{"type": "X", "message": "x", "retryable": true}', 'discarded',
        'RET-09: and no more than that'),
    ('{}', '{"type": "X", "message": "x", "code": "RETRY", "retryable": false}', 'retryable',
        'RET-10 R-77: RETRY overrides retryable false'),
    ('{"non_retryable_errors": ["X"]}', '{"type": "X", "message": "x", "code": "RETRY"}', 'discarded',
        'RET-10 R-77: but not the list'),
    ('{"max_attempts": 1}', '{"type": "X", "message": "x", "code": "RETRY"}', 'discarded',
        'RET-10 R-77: nor the budget'),
    ('{"on_exhaustion": "dead_letter"}', '{"type": "X", "message": "x", "code": "DISCARD"}', 'discarded',
        'RET-10: DISCARD'),
    ('{"on_exhaustion": "dead_letter"}', '{"type": "X", "message": "x", "code": "FAIL"}', 'discarded', 'RET-10: FAIL'),
    ('{}', '{"type": "X", "message": "x", "code": "DEAD_LETTER"}', 'discarded dead letter', 'RET-10: DEAD_LETTER'),
    ('{}', '{"type": "X", "message": "x", "code": "discard"}', 'retryable',
        'RET-10 R-35: a directive is in upper case'),
    ('{"non_retryable_errors": ["shutdown", "ShutdownError"]}',
        '{"type": "ShutdownError", "message": "x", "retryable": false}', 'retryable',
        'WRK-12: a shutdown is always retryable'),
    ('{"max_attempts": 1}', '{"type": "shutdown", "message": "x"}', 'discarded',
        'WRK-12: within the budget')) v (policy, error, expected, name);

-- OP-16, OP-17, ERR-01 to ERR-04, R-35, R-40: errors ---------------------------------------------------------------

create function pg_temp.error(error jsonb) returns jsonb language sql as
$$ select (ojs.fail((pg_temp.claimed('{}')).id, error)).error $$;

select is(pg_temp.error(given) - 'occurred_at', expected, 'ERR-03 R-35 R-40: ' || given::text)
from (values
    ('{"type": "SmtpError", "message": "refused"}'::jsonb,
        '{"code": "SmtpError", "type": "SmtpError", "message": "refused", "attempt": 1}'::jsonb),
    ('{"code": "handler_error", "message": "m"}',
        '{"code": "handler_error", "type": "handler_error", "message": "m", "attempt": 1}'),
    ('{"code": "handler_error", "message": "m", "details": {"error_class": "A.B", "host": "h"}, "retryable": true}',
        '{"code": "handler_error", "type": "A.B", "message": "m", "attempt": 1,
          "details": {"error_class": "A.B", "host": "h"}, "retryable": true}'),
    ('{"type": "T", "code": "c", "message": "", "details": {"error_class": "A.B"}}',
        '{"code": "c", "type": "T", "message": "", "attempt": 1, "details": {"error_class": "A.B"}}'),
    ('{"type": "T", "message": "m", "attempt": 9, "occurred_at": "x", "code": null, "backtrace": null, "x_null": null, '
     '"x_more": [1]}',
        '{"code": "T", "type": "T", "message": "m", "attempt": 1, "x_more": [1]}'),
    ('{"type": "T", "message": "m", "backtrace": ["at a", "at b"]}',
        '{"code": "T", "type": "T", "message": "m", "attempt": 1, "backtrace": ["at a", "at b"]}'),
    ('{"type": "T", "message": "m", "backtrace": "at a\nat b\r\n\nat c\n"}',
        '{"code": "T", "type": "T", "message": "m", "attempt": 1, "backtrace": ["at a", "at b", "at c"]}')) e (given,
        expected);
select matches(pg_temp.error('{"type": "T", "message": "m"}') ->> 'occurred_at',
    '^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3,6}Z$', 'R-40: occurred_at');

create temp table traced as
select pg_temp.error(jsonb_build_object('type', 'T', 'message', 'm', 'backtrace', frames)) -> 'backtrace' as frames,
    name
from (values ((select jsonb_agg('frame ' || i) from generate_series(1, 80) i), 'many'), ((select jsonb_agg(repeat('ä',
    3001)) from generate_series(1, 80)), 'long'),
    (to_jsonb(repeat(e'line\n', 100000)), 'text')) t (frames, name);
select is(jsonb_array_length(frames), 50, 'ERR-02: at most 50 frames, ' || name) from traced where name <> 'long';
select is((select sum(length(f)) from jsonb_array_elements_text(frames) f), 10000::bigint,
    'ERR-02: at most 10,000 characters') from traced where name = 'long';
select is(jsonb_array_length(frames), 4, 'ERR-02: and no empty frames after them') from traced where name = 'long';
set local ojs.redact_backtrace = on;
select is(pg_temp.error('{"type": "T", "message": "m", "backtrace": ["at a"]}') ? 'backtrace', false,
    'ERR-04: ojs.redact_backtrace');
reset ojs.redact_backtrace;

create temp table held as select (c).id from pg_temp.claimed('{}') c;
select is(pg_temp.strict_refusal(format('select ojs.fail(%L, %L)', id, given)), 'OJ100 INVALID_PAYLOAD error',
    'OP-16: no error is no report: ' || coalesce(given, 'null'))
from held, unnest(array['null', null]) given;
select is(ojs.info(id) ->> 'state', 'active', 'OP-16: the job stays active') from held;
select is((e ->> 'type') || ': ' || (e ->> 'message'), told, 'OP-16 ERR-01: any other lands: ' || given::text)
from (values ('{"type": "X"}'::jsonb, 'X: X'), ('{"message": "x"}', 'unknown_error: x'),
    ('{"message": "x", "type": null, "code": null}', 'unknown_error: x'), ('{"type": "X", "message": null}', 'X: X'),
    ('{"type": "X", "message": 5}', 'X: 5'), ('{"type": "", "message": ""}', 'unknown_error: '),
    ('{"type": {}, "message": "x"}', '{}: x'), ('{"code": 500, "message": "x"}', '500: x'),
    ('{"details": {"error_class": 5}, "message": "x"}', '5: x'), ('[]', 'unknown_error: []'),
    ('"x"', 'unknown_error: x'),
    ('{}', 'unknown_error: unknown_error')) r (given, told), pg_temp.error(given) e;

select is(ojs.envelope(f) @> '{"state": "retryable", "attempt": 1, "max_attempts": 3, "retry_delay_ms": 1000}', true,
    'OP-17 RET-13: a retryable job tells its delay')
from ojs.fail((pg_temp.claimed('{"jitter": false}')).id, '{"type": "X", "message": "x"}') f;
create temp table ended as select f.* from ojs.fail((pg_temp.claimed('{"max_attempts": 1}')).id,
    '{"type": "X", "message": "x"}') f;
select is(array[next_attempt_at is null, discarded_at = completed_at, cancelled_at is null,
    ojs.info(id) ? 'retry_delay_ms'],
    array[true, true, true, false], 'OP-17 R-26: a discarded one tells when it ended') from ended;
select is(errors -> 0, error, 'OP-18 RET-12: its only error is in errors too') from ended;
select is(ojs.info(id) -> 'errors' -> 0, error, 'OP-18 RET-12: from info') from ended;
select is(ojs.info(f.id) @> '{"retry_delay_ms": 1000, "error": {"type": "X"}, "errors": [{"type": "X", "attempt": 1}]}',
    true, 'RET-13 OP-18: info shows it too')
from ojs.fail((pg_temp.claimed('{"jitter": false}')).id, '{"type": "X", "message": "x"}') f;

create temp table persistent as select (c).id, (c).queue
    from pg_temp.claimed('{"max_attempts": 26, "jitter": false, "strategy": "none", "initial_interval": "PT0.001S"}') c;
create function pg_temp.fail_again(n int) returns void language plpgsql as $$
begin
    for i in 1 .. n loop
        perform ojs.fail(id, jsonb_build_object('type', 'E' || i, 'message', 'x')) from persistent;
        perform set_config('ojs.clock_offset', (i * 10) || 'ms', true);
        perform ojs.claim(queue, 'w') from persistent;
    end loop;
end $$;
select pg_temp.fail_again(25);
select ok(jsonb_array_length(job -> 'errors') between 10 and 25 and job -> 'errors' -> -1 ->> 'type' = 'E25'
    and (job -> 'attempt')::int = 26,
    'RET-12 R-40: at least the ten newest of 25 errors, oldest first') from persistent, ojs.info(id) job;
select is((select count(*) from jsonb_array_elements(job -> 'errors') e where not e ?& array['code', 'type', 'message',
    'attempt', 'occurred_at']), 0::bigint,
    'RET-12 R-40: each with its code, type, message, attempt and time') from persistent, ojs.info(id) job;
select is((a.error is null)::text || jsonb_array_length(a.errors) ::text, 'true25',
    'OP-15: completion clears error and keeps errors') from persistent, ojs.ack(id) a;

select * from finish();
rollback;
