-- durations.sql: every function, attribute and setting that takes a duration or a delay, each with seven lengths: what
-- is stored is what was asked for, or an error names the bound (R-94, R-95). Months and years count by the calendar of
-- UTC where there is a start, else as 30 and 365 days.
begin;
select no_plan();
\ir helpers.psql
set local timezone = 'Europe/Berlin'; -- months are those of UTC all the same

create temp table length (n int, asked interval, iso text, every text, fixed interval, too_long boolean);
insert into length values
    (1, '1 second', 'PT1S', '1s', '1 second', false),
    (2, '25 hours', 'PT25H', '25h', '25 hours', false),
    (3, '8 days', 'P8D', '192h', '8 days', false),
    (4, '1 month', 'P1M', '720h', '30 days', false),
    (5, '1 year', 'P1Y', '8760h', '365 days', false),
    (6, '99 years', 'P99Y', '867240h', '36135 days', false),
    (7, '101 years', 'P101Y', '884760h', '36865 days', true);

/*
 * A place that takes a duration: a statement that answers with what is stored. In it %1$L is the interval, %2$L the ISO
 * 8601 duration, %3$s the length in ms, %4$s that of @every. What is stored is a `length`, the `text` as it came, or a
 * time from now on: `until`, by the calendar, or `plain`, where the length was given in units that have none.
 */
create temp table place (name text, kind text, field text, statement text, at_most interval);

-- What a place stored: "as asked", "at most …" or the time that it got instead; or what it refused.
create function pg_temp.stored(place place, length length) returns text language plpgsql as $$
declare
    statement text := format(place.statement, length.asked, length.iso,
        (extract(epoch from length.fixed) * 1000)::bigint, length.every);
    before timestamptz := ojs_store.now();
    wanted interval := case when place.kind = 'until' then length.asked else length.fixed end;
    got interval;
    until timestamptz;
    answer text;
    message text;
    detail text;
begin
    if place.kind = 'length' then
        execute statement into got;
        return case extract(epoch from got) when extract(epoch from wanted) then 'as asked'
            when extract(epoch from place.at_most) then 'at most ' || place.at_most
            else coalesce(got::text, 'null') end;
    end if;
    if place.kind = 'text' then
        execute statement into answer;
        return case when answer = length.iso then 'as asked' else coalesce(answer, 'null') end;
    end if;
    execute statement into until;
    return case when until at time zone 'UTC' between (before at time zone 'UTC') + wanted - interval '1 ms'
            and (ojs_store.now() at time zone 'UTC') + wanted + interval '1 ms' then 'as asked'
        else coalesce((until - before)::text, 'null') end;
exception when others then
    get stacked diagnostics message = message_text, detail = pg_exception_detail;
    return case when message ~ '100 years|30 days' and detail::jsonb #>> '{details,field}' = place.field then 'refused'
        else message || coalesce(' ' || detail, '') end;
end $$;

create function pg_temp.held_by(worker text) returns uuid language sql as
$$ select id from ojs.push('test.job', queue => 'lengths'); select id from ojs.claim('lengths', worker) $$;
create function pg_temp.push_with(envelope jsonb) returns jsonb language sql as
$$ select ojs.push_job('{"type": "test.job", "args": []}' || envelope) $$;
create function pg_temp.due(job uuid) returns timestamptz language sql as
$$ select due_at from ojs_store.delayed where job_id = job $$;
create function pg_temp.key_until(of_key text) returns timestamptz language sql as
$$ select expires_at from ojs_store.deduplication where key = of_key $$;
create function pg_temp.backoff_of(retry jsonb) returns timestamptz language plpgsql as $$
declare
    job uuid := pg_temp.push_with(jsonb_build_object('queue', 'backoff', 'retry', '{"jitter": false, "backoff_strategy":
        "constant"}'::jsonb || retry)) ->> 'id';
begin
    perform from ojs.claim('backoff', 'w');
    return next_attempt_at from ojs.fail(job, '{"type": "t", "message": "m"}');
end $$;

-- Parameters of functions
insert into place values
    ('ojs.push(delay)', 'until', 'delay', $$ select scheduled_at from ojs.push('a.b', delay => %1$L) $$),
    ('ojs.push(timeout)', 'length', 'timeout', $$ select timeout from ojs.push('a.b', timeout => %1$L) $$),
    ('ojs.push(deduplication_ttl)', 'until', 'deduplication_ttl',
        $$ select pg_temp.key_until('p' || %2$L)
           from ojs.push('a.b', deduplication_key => 'p' || %2$L, deduplication_ttl => %1$L) $$),
    ('ojs.push_many(deduplication_ttl)', 'until', 'deduplication_ttl',
        $$ select pg_temp.key_until('m' || %2$L) from ojs.push_many('[{"type": "a.b", "args": []}]',
               deduplication_key => 'm' || %2$L, deduplication_ttl => %1$L) $$),
    ('ojs.fail(delay)', 'until', 'delay',
        $$ select next_attempt_at
           from ojs.fail(pg_temp.held_by('w'), '{"type": "t", "message": "m"}', delay => %1$L) $$),
    ('ojs.fail(requeue, delay)', 'until', 'delay',
        $$ select pg_temp.due(id) from ojs.fail(pg_temp.held_by('w'), null, requeue => true, delay => %1$L) $$),
    ('ojs.nack(delay)', 'until', 'delay', $$ select pg_temp.due(id) from ojs.nack(pg_temp.held_by('w'), %1$L) $$),
    ('ojs.nack_many(delay)', 'until', 'delay',
        $$ with held as materialized (select pg_temp.held_by('w') as id)
           select pg_temp.due(h.id) from held h, ojs.nack_many('w', array[h.id], %1$L) n where n.done = 1 $$),
    ('ojs.set_maintenance(estimated_duration)', 'until', 'estimated_duration',
        $$ with begun as materialized (select ojs.set_maintenance(true, 'test', %1$L) as m),
           ended as materialized (select m, ojs.set_maintenance(false) as off from begun)
           select (m ->> 'estimated_end')::timestamptz from ended where off is not null $$);
insert into place values
    ('ojs.claim(lease)', 'length', 'lease',
        $$ select l.lease_expires_at - l.started_at
           from pg_temp.pushed('held'), ojs.claim('held', 'w', lease => %1$L) l $$, '24 hours');

-- Attributes of envelopes
insert into place values
    ('delay', 'until', 'delay',
        $$ select (pg_temp.push_with(jsonb_build_object('delay', %2$L)) ->> 'scheduled_at')::timestamptz $$),
    ('delay_ms', 'plain', 'delay',
        $$ select (pg_temp.push_with(jsonb_build_object('delay_ms', %3$s)) ->> 'scheduled_at')::timestamptz $$),
    ('scheduled_at', 'until', 'scheduled_at',
        $$ select (pg_temp.push_with(jsonb_build_object('scheduled_at', '+' || %2$L))
               ->> 'scheduled_at')::timestamptz $$),
    ('expires_at', 'until', 'expires_at',
        $$ select (pg_temp.push_with(jsonb_build_object('expires_at', '+' || %2$L)) ->> 'expires_at')::timestamptz $$),
    ('deduplication_ttl', 'until', 'deduplication_ttl',
        $$ select pg_temp.key_until('j' || %2$L) from pg_temp.push_with(
               jsonb_build_object('deduplication_key', 'j' || %2$L, 'deduplication_ttl', %2$L)) $$),
    ('the delay of a step', 'until', 'delay',
        $$ select j.scheduled_at from ojs.create_workflow(jsonb_build_object('type', 'chain', 'steps',
               jsonb_build_array(jsonb_build_object('type', 'a.b', 'args', '[]'::jsonb, 'delay', %2$L)))) w,
               lateral (select (ojs.info((w #>> '{steps,0,job_id}')::uuid) ->> 'scheduled_at')::timestamptz
                   as scheduled_at) j $$),
    ('retry.initial_interval', 'plain', 'retry.initial_interval',
        $$ select pg_temp.backoff_of(jsonb_build_object('initial_interval', %2$L)) $$),
    ('retry.max_interval', 'text', 'retry.max_interval',
        $$ select pg_temp.push_with(jsonb_build_object('retry', jsonb_build_object('max_interval', %2$L))) #>>
               '{retry,max_interval}' $$);
insert into place
select name, 'length', name,
    format($$ select make_interval(secs => (pg_temp.push_with(jsonb_build_object(%1$L, %%2$L) || %2$L) -> %1$L)::float)
        $$, name, more)
from (values ('timeout', '{}'), ('result_ttl', '{}'), ('enqueue_ttl', '{}'), ('grace_period', '{}'),
    ('heartbeat_timeout', '{}'), ('total_timeout', '{"timeout": 1}')) a (name, more);
insert into place values
    ('visibility_timeout', 'length', 'visibility_timeout',
        $$ select make_interval(secs => (pg_temp.push_with(jsonb_build_object('visibility_timeout', %2$L))
               -> 'visibility_timeout_ms')::float / 1000) $$, '24 hours');

-- Settings and entries
insert into place
select 'the setting ' || name, 'text', name,
    format($$ select ojs.configure_queue('set', %1$s) #>> %2$L $$,
        case when name like 'retention.%'
            then format($$jsonb_build_object('retention', jsonb_build_object(%L, %%2$L))$$,
            split_part(name, '.', 2)) else format($$jsonb_build_object(%L, %%2$L)$$, name) end,
        '{config,' || replace(name, '.', ',') || '}')
from unnest(array['dead_letter_ttl', 'retention.completed', 'retention.discarded', 'retention.cancelled']) name;
insert into place values
    ('@every', 'plain', 'cron',
        $$ select (ojs.schedule('every', '@every %4$s', '{"type": "a.b", "args": []}') ->> 'next_run_at')::timestamptz
        $$),
    ('the period of a rate limit', 'length', 'rate_limit.rate.period',
        $$ select ojs.set_rate_limit('lengths', jsonb_build_object('rate', jsonb_build_object('limit', 1, 'period',
               %2$L))) #>> '{rate,period}' $$);

select is(pg_temp.stored(p, l), case when p.at_most < l.fixed then 'at most ' || p.at_most
        when l.too_long then 'refused' else 'as asked' end,
    format('%s of %s is stored as asked for, or the error names the bound: R-94 R-95', p.name, l.asked))
from place p, length l order by p.name, l.n;

-- The period of a uniqueness policy begins with the job.
create function pg_temp.push_unique(length length, after interval) returns text language plpgsql as $$
begin
    perform pg_temp.clock(after);
    return pg_temp.refusal(format('select pg_temp.push_with(%L)', jsonb_build_object('queue', 'unique' || length.n,
        'unique', jsonb_build_object('keys', '["type", "queue"]'::jsonb, 'period', length.iso))));
end $$;
create function pg_temp.calendar(length interval) returns interval language sql as
$$ select ((now() at time zone 'UTC') + length) - (now() at time zone 'UTC') $$;
select is(pg_temp.push_unique(l, '0'), 'accepted',
        format('the first job of a period of %s is pushed: UNQ-17', l.asked)),
    is(left(pg_temp.push_unique(l, pg_temp.calendar(l.asked) - interval '20 s'), 19), 'OJ301 DUPLICATE_JOB',
        format('its twin is a duplicate until %s are over by the calendar: R-94', l.asked)),
    is(pg_temp.push_unique(l, pg_temp.calendar(l.asked) + interval '60 s'), 'accepted',
        format('its twin is pushed after %s by the calendar: R-94', l.asked))
from length l where l.n between 2 and 6 order by l.n;
select is(pg_temp.push_unique(l, '0'), 'OJ702 UNIQUE_KEY_INVALID unique.period',
    'a period of 101 years is refused by name: R-94') from length l where l.n = 7;
select pg_temp.clock('0') \g /dev/null

-- The calendar is that of UTC, as the server adds an interval; a fraction of a month is so much of 30 days.
select is(ojs_http.time_value('+' || given, 'at') - ojs_store.now() between wanted - interval '2 s' and wanted, true,
    format('+%s is so much from now: R-94', given))
from (values ('P1W', interval '7 days'), ('P0.5M', interval '15 days'), ('PT36H', interval '36 hours'),
    ('P1DT0.5S', interval '1 day 500 ms')) d (given, wanted);

select finish();
rollback;
