-- unique.sql: unique jobs: UNQ-01 to UNQ-28, except what needs several sessions (test/tap/unique.pl) and the
-- canonical form (canonical.sql).
-- Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();
\ir helpers.psql

-- What a push answers, in short: "new", "old <id>", or how it was refused.
create function pg_temp.try(type text, policy jsonb, args jsonb default '[]', queue text default 'default',
    meta jsonb default '{}', options jsonb default '{}') returns text language plpgsql as $$
declare
    job ojs.job; code text; detail jsonb;
begin
    job := ojs.push(type, args, queue => queue, meta => meta, "unique" => policy, options => options);
    return case when job.deduplicated then 'old ' || job.id else 'new' end;
exception when others then
    get stacked diagnostics code = returned_sqlstate, detail = pg_exception_detail;
    return concat_ws(' ', code, detail ->> 'code', detail #>> '{details,existing_job_id}',
        detail #>> '{details,existing_job_state}');
end $$;

-- The policy --------------------------------------------------------------------------------------------------------

select is(pg_temp.try('unq.a', '{}'), 'new', 'UNQ-01: a policy may be empty');
select is(pg_temp.try('unq.a', '{}'),
    'OJ301 DUPLICATE_JOB ' || (select id from ojs.jobs where type = 'unq.a') || ' available',
    'UNQ-01: then the type alone counts, and a duplicate is rejected');
select is(pg_temp.try('unq.a',
    '{"keys": null, "args_keys": null, "meta_keys": null, "period": null, "states": null, "on_conflict": null}')
    like 'OJ301 %', true, 'UNQ-01: null counts as absent');
select is(pg_temp.try('unq.a', '{}', '[1]', 'other', '{"a": 1}') like 'OJ301 %', true,
    'UNQ-01: args, queue and meta do not count by default');

create temp table bad (policy jsonb);
insert into bad values
    ('{"kyes": ["type"]}'), ('{"keys": ["type", "priority"]}'), ('{"keys": ["Type"]}'), ('{"states": ["Available"]}'),
    ('{"states": ["running"]}'), ('{"on_conflict": "REJECT"}'), ('{"on_conflict": "drop"}'), ('{"period": "1 hour"}'),
    ('{"period": "PT0S"}'), ('{"period": "3600s"}'), ('{"period": 3600}'), ('{"keys": ["args", "args"]}'),
    ('{"states": ["active", "active"]}'), ('{"keys": ["args"], "args_keys": ["a", "a"]}'), ('{"states": []}'),
    ('{"keys": ["meta"]}'), ('{"keys": ["meta"], "meta_keys": []}'), ('{"args_keys": ["a"]}'), ('{"meta_keys": ["a"]}'),
    ('{"keys": ["args"], "args_keys": ["absent"]}'), ('[]'), ('"type"');
select is(left(pg_temp.refusal(format('select ojs.push(%L, ''[{"a": 1}]'', "unique" => %L)', type, policy)), 24),
    'OJ702 UNIQUE_KEY_INVALID', format('UNQ-02, UNQ-04, UNQ-05: %s is refused, %s', policy, why))
from bad, (values ('unq.a', 'with a duplicate'), ('unq.none', 'without one')) as v(type, why);
select is(left(pg_temp.refusal(format('select ojs.push(''unq.none'', ''[1, "a", []]'', "unique" => %L)',
    '{"keys": ["args"], "args_keys": ["a"]}')), 24), 'OJ702 UNIQUE_KEY_INVALID',
        'UNQ-05: args without an object has no keys');
select is(left(pg_temp.refusal('select * from ojs.push_many(''[{"type": "unq.b", "args": [], "unique": {"x": 1}}]'')'),
    24),
    'OJ702 UNIQUE_KEY_INVALID', 'UNQ-02: in a batch too');
select is(left(pg_temp.refusal('select ojs.push(''unq.k'', deduplication_key => ''unq.k''); ' ||
    'select ojs.push(''unq.k'', deduplication_key => ''unq.k'', "unique" => ''{"x": 1}'')'), 24),
    'OJ702 UNIQUE_KEY_INVALID', 'UNQ-02: a bad policy is refused even where a deduplication key would skip the job');

-- Dimensions --------------------------------------------------------------------------------------------------------

select is(pg_temp.try('unq.c', '{"keys": ["args"]}', '[1]'), 'new', 'UNQ-03: a key of args');
select is(pg_temp.try('unq.d', '{"keys": ["args"]}', '[1]'), 'new',
    'UNQ-03: the type counts although keys does not name it');
select is(pg_temp.try('unq.c', '{"keys": ["args"]}', '[2]'), 'new', 'UNQ-03: other args');
select is(pg_temp.try('unq.c', '{"keys": ["args"]}', '[1.0]') like 'OJ301 %', true, 'UNQ-09: 1.0 is 1');
select is(pg_temp.try('unq.c', '{"keys": ["type", "args"]}', '[1]') like 'OJ301 %', true,
    'UNQ-03: naming the type changes nothing');
select is(pg_temp.try('unq.e', '{"keys": ["queue"]}', queue => 'one'), 'new', 'UNQ-06: one queue');
select is(pg_temp.try('unq.e', '{"keys": ["queue"]}', queue => 'two'), 'new', 'UNQ-06: another');
select is(pg_temp.try('unq.e', '{"keys": ["queue"]}', queue => 'one') like 'OJ301 %', true, 'UNQ-06: the same queue');
select is(pg_temp.try('unq.e', '{}', queue => 'three'), 'new', 'UNQ-06: keys of other dimensions are other keys');
select is(pg_temp.try('unq.e', '{}', queue => 'four') like 'OJ301 %', true, 'UNQ-06: without queue, unique across all');
select is(pg_temp.try('unq.f', '{"keys": ["args"], "args_keys": ["user_id"]}', '[{"user_id": 1, "locale": "de"}]'),
    'new', 'UNQ-07');
select is(pg_temp.try('unq.f', '{"keys": ["args"], "args_keys": ["user_id"]}',
    '[{"user_id": 1, "locale": "en"}]') like 'OJ301 %',
    true, 'UNQ-07: what args_keys does not name does not count');
select is(pg_temp.try('unq.f', '{"keys": ["args"], "args_keys": ["user_id"]}', '{"user_id": 2}'), 'new',
    'UNQ-07: another user, as a bare object');
select is(pg_temp.try('unq.g', '{"keys": ["args", "meta"], "meta_keys": ["tenant"]}', '[1]',
    meta => '{"tenant": "a", "trace": 1}'), 'new', 'UNQ-08');
select is(pg_temp.try('unq.g', '{"keys": ["args", "meta"], "meta_keys": ["tenant"]}', '[1]',
    meta => '{"tenant": "b", "trace": 1}'), 'new', 'UNQ-08: another tenant');
select is(pg_temp.try('unq.g', '{"keys": ["args", "meta"], "meta_keys": ["tenant"]}', '[1]',
    meta => '{"tenant": "a", "trace": 2}') like 'OJ301 %',
    true, 'UNQ-08: the same tenant');
select is(pg_temp.try('unq.h', '{"keys": ["args"]}', '[{"a": 1, "é": [1, 2]}]'), 'new', 'UNQ-11');
select is(pg_temp.try('unq.h', '{"keys": ["args"]}', '[{"é": [1, 2], "a": 1}]') like 'OJ301 %', true,
    'UNQ-11: key order and composition do not count');
select is(pg_temp.try('unq.h', '{"keys": ["args"]}', '[{"é": [2, 1], "a": 1}]'), 'new',
    'UNQ-11: the order of an array does');
select is(ojs.fingerprint('{"type": "unq.i", "args": [], "unique": {}}'),
    encode(sha256(convert_to('{"type":"unq.i"}', 'UTF8')), 'hex'),
        'UNQ-10, UNQ-12: the fingerprint is the SHA-256 of its text');

-- The index ---------------------------------------------------------------------------------------------------------

select is((select (i.indisunique, pg_get_expr(i.indpred, i.indrelid), pg_get_indexdef(i.indexrelid, 1, true))::text
    from pg_index i
    where i.indexrelid = 'ojs_store.unique_key_held'::regclass and i.indisvalid and i.indisready),
        '(t,held,fingerprint)',
    'UNQ-14: a partial unique index over the fingerprint');
select is((select relpersistence from pg_class where oid = 'ojs_store.unique_key'::regclass), 'p'::"char",
    'UNQ-14: of a logged table');
select is((select count(*) from ojs_store.unique_key where length(fingerprint) = 32) > 0, true,
    'UNQ-14: which holds hashes');

-- Every state, states list, period and strategy against the rule ----------------------------------------------------

-- How to bring a job into a state; due: when time itself will have changed it.
create temp table kind (kind text primary key, state text, state_later text);
insert into kind values
    ('scheduled', 'scheduled', null), ('scheduled, due', 'scheduled', 'available'), ('available', 'available', null),
    ('released with a delay', 'available', null), ('lapsed', 'available', null), ('pending', 'pending', null),
    ('active', 'active', null), ('active, lease past', 'active', 'active'), ('completed', 'completed', null),
    ('retryable', 'retryable', null), ('retryable, due', 'retryable', 'available'),
    ('cancelled', 'cancelled', null), ('cancelled, active before', 'cancelled', null), ('discarded', 'discarded', null);

create function pg_temp.make(kind text, type text) returns uuid language plpgsql as $$
declare
    job uuid;
    error constant jsonb := '{"type": "t", "message": "m"}';
begin
    job := (ojs.push(type, queue => 'making', "unique" => '{}', pending => kind = 'pending',
        delay => case kind when 'scheduled' then interval '100 days' when 'scheduled, due' then '10 s' end)).id;
    if kind in ('released with a delay', 'lapsed', 'active', 'active, lease past', 'completed', 'retryable',
        'retryable, due',
        'cancelled, active before', 'discarded')
    then
        perform ojs.claim('making', 'w', lease => case when kind in ('active, lease past', 'lapsed')
            then interval '5 s' else '24 h' end);
    end if;
    case kind
        when 'released with a delay' then perform ojs.nack(job, '20 h');
        when 'lapsed' then
            perform ojs.tick(); -- upkeep hears that the clock was set back
            perform pg_temp.clock('6 s');
            perform ojs.tick();
            perform pg_temp.clock('0');
        when 'completed' then perform ojs.ack(job);
        when 'retryable' then perform ojs.fail(job, error, delay => '20 h');
        when 'retryable, due' then perform ojs.fail(job, error, delay => '10 s');
        when 'discarded' then perform ojs.fail(job, error || '{"retryable": false}');
        when 'cancelled', 'cancelled, active before' then perform ojs.cancel(job);
        else null;
    end case;
    return job;
end $$;

create temp table list (states text[]);
insert into list values (null), ('{completed,cancelled,discarded}'),
    ('{scheduled,available,pending,active,completed,retryable,cancelled,discarded}'), ('{scheduled,retryable}'),
        ('{available,completed}');
insert into list select array[state] from (select distinct state from kind) as k;

-- The job is 30 s old when the clock is read at "young", and an hour at "old": the very end of a period of PT1H.
create temp table age (age text, ahead interval);
insert into age values ('young', '30 s'), ('old', '1 hour');
create temp table period (period text);
insert into period values (null), ('PT1H'), ('PT20S'), ('P2D');

create temp table matrix as
select row_number() over () as n, k.kind, coalesce(k.state_later, k.state) as state, l.states, p.period, a.age,
    a.ahead, s.strategy
from kind k, list l, period p, age a, unnest('{reject,ignore,replace,replace_except_schedule}'::text[]) as s(strategy)
-- every pair of dimensions with every strategy; the periods that say nothing new only once per state and strategy
where p.period is null or l.states is null or array_length(l.states, 1) = 8
    or l.states = array[coalesce(k.state_later, k.state)];

-- The rule, as the seed has it: a duplicate iff the state is listed and created_at + period is not over.
create function pg_temp.expected(m matrix) returns text language sql as $$
    select case
        when not duplicate then 'new, old stays ' || m.state
        when m.strategy = 'reject' then 'DUPLICATE_JOB ' || m.state || ', old stays ' || m.state
        when m.strategy = 'ignore' then 'old one ' || m.state || ', old stays ' || m.state
        else 'new' || case when m.strategy = 'replace_except_schedule' and m.state = 'scheduled' then ' at its time'
            else '' end
            || ', old stays ' || case when m.state in ('completed', 'cancelled', 'discarded') then m.state
                else 'cancelled' end
        end
    from (select m.state = any (coalesce(m.states, '{available,active,scheduled,retryable,pending}'))
        and (m.period is null or m.ahead < m.period::interval)) as d(duplicate)
$$;

create function pg_temp.observed(m matrix) returns text language plpgsql as $$
declare
    old uuid; old_time timestamptz; job ojs.job; answer text; detail jsonb; state text;
    type constant text := 'm.m' || m.n;
begin
    perform pg_temp.clock('0');
    old := pg_temp.make(m.kind, type);
    old_time := scheduled_at from ojs.jobs where id = old;
    if (select j.state from ojs.jobs j where id = old) <> (select k.state from kind k where k.kind = m.kind) then
        return 'the test could not make it so';
    end if;
    perform pg_temp.clock(m.ahead);
    begin
        job := ojs.push(type, queue => 'pushed', "unique" => jsonb_strip_nulls(jsonb_build_object(
            'states', m.states, 'period', m.period, 'on_conflict', m.strategy)));
        answer := case when job.deduplicated then case when job.id = old then 'old one ' || job.state
            else 'another one' end
            when job.id = old then 'the same' else 'new' end;
        if not job.deduplicated and job.scheduled_at = old_time and job.state = 'scheduled' then
            answer := answer || ' at its time';
        end if;
        if not job.deduplicated and (select job_id from ojs_store.unique_key u where fingerprint =
            sha256(convert_to(format('{"type":"%s"}', type), 'UTF8'))) is distinct from job.id
        then
            answer := answer || ' without its key';
        end if;
    exception when others then
        get stacked diagnostics detail = pg_exception_detail;
        answer := concat_ws(' ', detail ->> 'code', detail #>> '{details,existing_job_state}',
            case when detail #>> '{details,existing_job_id}' <> old::text then 'of another' end,
            case when detail #>> '{details,unique_key}'
                <> encode(sha256(convert_to(format('{"type":"%s"}', type), 'UTF8')), 'hex')
                then 'with another key' end);
    end;
    state := j.state from ojs.jobs j where id = old;
    perform ojs.cancel(old, true); -- nothing may be left for the next one to claim
    return answer || ', old stays ' || state;
end $$;

create temp table outcome as
select m.*, pg_temp.expected(m) as expected, pg_temp.observed(m) as observed from matrix m order by n;
select pg_temp.clock('0');
select is_empty($$ select * from outcome where expected is distinct from observed $$,
    'UNQ-15 to UNQ-20, UNQ-22, UNQ-24: every state, states list, period and strategy does what the rule says');
select is((select count(distinct (kind, states, period, age, strategy)) from outcome) > 2000, true,
    'and these are all of them');
select is((select count(distinct expected) from outcome) >= 25, true, 'with all kinds of outcomes');

-- Replacing ---------------------------------------------------------------------------------------------------------

create temp table active as select id, lease_id from (select ojs.push('unq.r', queue => 'r', "unique" => '{}')) as p,
    lateral ojs.claim('r', 'w');
select is(pg_temp.try('unq.r', '{"on_conflict": "replace"}', queue => 'r'), 'new', 'UNQ-16: an active job is replaced');
select is((select (cancelled, extended, lost)::text from ojs.beat('w', array[(select id from active)])),
    format('({%s},{},{})', (select id from active)), 'UNQ-16, R-48: its worker learns it by its next beat');
select is((select pg_temp.refusal(format('select ojs.ack(%L, lease_id => %L)', id, lease_id)) from active),
    'OJ303 JOB_ALREADY_CANCELLED', 'UNQ-16: and its late ack is refused');
select is((select count(*) from ojs.leases where job_id = (select id from active)), 0::bigint,
    'UNQ-16: the lease is gone');
select is((select array_agg(state order by seq) from ojs.jobs where type = 'unq.r'), '{cancelled,available}',
    'UNQ-16: one is open');
select is((select count(*) from ojs.claim('r', 'w', 10)), 1::bigint, 'UNQ-16: and can be claimed once');

select lives_ok($$ select ojs.push('unq.s', queue => 's', "unique" => '{"states": ["completed"]}')
    from generate_series(1, 3) $$, 'three live twins');
select is(pg_temp.try('unq.s', '{"on_conflict": "replace"}', queue => 's'), 'new', 'UNQ-25: several are in the way');
select is((select array_agg(state order by seq) from ojs.jobs where type = 'unq.s'),
    '{cancelled,cancelled,cancelled,available}', 'UNQ-25: all are replaced');

select lives_ok($$ select ojs.push('unq.t', "unique" => '{"states": ["completed"]}',
    delay => make_interval(hours => h)) from generate_series(1, 2) h $$,
    'two scheduled twins');
select is(pg_temp.try('unq.t', '{"on_conflict": "replace_except_schedule", "states": ["scheduled"]}'), 'new',
    'UNQ-17, UNQ-25');
select is((select array_agg(state || ' ' || round(extract(epoch from scheduled_at - now()) / 3600) order by seq)
    from ojs.jobs where type = 'unq.t'),
    '{cancelled 1,cancelled 2,scheduled 2}', 'UNQ-17: the newest one lends its time');
select lives_ok($$ select ojs.push('unq.u', "unique" => '{}') $$, 'an available twin');
select is((select scheduled_at from ojs.push('unq.u', "unique" => '{"on_conflict": "replace_except_schedule"}',
    delay => '1 day')) > now() + interval '23 h',
    true, 'UNQ-17: nothing to inherit: the new job''s own time counts');

-- Time and states ---------------------------------------------------------------------------------------------------

select lives_ok($$ select ojs.push('unq.v', "unique" => '{"period": "PT2S"}') $$, 'a job with a period');
select pg_temp.clock('1 s');
select is(pg_temp.try('unq.v', '{"period": "PT2S"}') like 'OJ301 %', true, 'UNQ-20: rejected within the period');
select pg_temp.clock('2 s');
select is(pg_temp.try('unq.v', '{"period": "PT2S"}'), 'new', 'UNQ-20: a rejected attempt does not move its end');
select is((select array_agg(state) from ojs.jobs where type = 'unq.v'), '{available,available}',
    'UNQ-20: both are there');
select is(pg_temp.try('unq.v', '{"period": "PT1H"}') like 'OJ301 %', true,
    'R-47: the period of the one who asks counts');
select pg_temp.clock('0');

select is(pg_temp.try('unq.w', '{}', queue => 'w',
    options => '{"retry": {"max_attempts": 2, "initial_interval": "PT1S", "jitter": false}}'), 'new', 'UNQ-22: a job');
select lives_ok($$ select ojs.fail(id, '{"type": "t", "message": "m"}') from ojs.claim('w', 'w') $$, 'fails');
select is(pg_temp.try('unq.w', '{}') like 'OJ301 % retryable', true, 'UNQ-22: waiting for its retry it still blocks');
select pg_temp.clock('2 s');
select is(pg_temp.try('unq.w', '{}') like 'OJ301 % available', true, 'UNQ-22: so it does when it is due');
select is(pg_temp.try('unq.w', '{"states": ["completed"]}', queue => 'w2'), 'new', 'UNQ-21: a newer twin');
select is((select attempt from ojs.claim('w', 'w')), 2, 'UNQ-21: does not stop the retry');
select lives_ok($$ select ojs.fail(job_id, '{"type": "t", "message": "m"}') from ojs.leases where queue = 'w' $$,
    'which fails for good');
select lives_ok($$ select ojs.ack(id) from ojs.claim('w2', 'w') $$, 'and the twin is done');
select is(pg_temp.try('unq.w', '{}'), 'new', 'UNQ-22: discarded and completed release the key');
select pg_temp.clock('0');

select lives_ok($$ select ojs.push('unq.x', queue => 'x', "unique" => '{"states": ["completed"]}')
    from generate_series(1, 2);
    select ojs.ack(id) from ojs.claim('x', 'w', 2) $$, 'two completed jobs of one key');
select pg_temp.clock('6 days');
select is(pg_temp.try('unq.x', '{"states": ["completed", "available"], "period": "P7D", "on_conflict": "ignore"}'),
    'old ' || (select id from ojs.jobs where type = 'unq.x' order by seq desc limit 1),
        'UNQ-23: a completed job counts for seven days');
select pg_temp.clock('7 days');
select is(pg_temp.try('unq.x', '{"states": ["completed", "available"], "period": "P7D", "on_conflict": "ignore"}'),
    'new', 'UNQ-23: and no longer');
select pg_temp.clock('0');
select is((select cardinality(past) from ojs_store.unique_key
    where fingerprint = decode(ojs.fingerprint('{"type": "unq.x", "args": [], "unique": {}}'), 'hex')),
    1, 'a key names the newest job of each final state and forgets the older ones');
select is((select count(*) from ojs_store.unique_key
    where fingerprint = decode(ojs.fingerprint('{"type": "unq.none", "args": []}'), 'hex')), 0::bigint,
    'R-47: a job without a policy has no key');
select is(pg_temp.try('unq.y', null), 'new', 'R-47: a job without a policy');
select is(pg_temp.try('unq.y', '{}'), 'new', 'R-47: is in nobody''s way');
select is(pg_temp.try('unq.y', null), 'new', 'R-47: and nobody is in its way');

-- Answers -----------------------------------------------------------------------------------------------------------

select is((select deduplicated from ojs.push('unq.z', '["first"]')), false,
    'UNQ-18: a plain push says deduplicated false');
select is((select (deduplicated, type, state, args)::text from ojs.push('unq.z2', '["first"]', "unique" => '{}')),
    '(f,unq.z2,available,"[""first""]")', 'UNQ-18');
select is((select (deduplicated, type, state, args)::text
    from ojs.push('unq.z2', '["second"]', "unique" => '{"on_conflict": "ignore"}')),
    '(t,unq.z2,available,"[""first""]")', 'UNQ-18: ignore answers with the job that is there');
select is(ojs.push_job('{"type": "unq.z2", "args": [], "unique": {"on_conflict": "ignore"}}')
    @> '{"deduplicated": true, "state": "available", "args": ["first"]}',
    true, 'UNQ-18: as JSON too');
select is(ojs.push_job('{"type": "unq.z2", "args": []}') -> 'deduplicated', 'false', 'UNQ-18: a plain push as JSON');
select is((select count(*) from ojs.jobs where type = 'unq.z2'), 2::bigint,
    'UNQ-18: nothing was inserted for the ignored ones');
select is(pg_temp.refusal_detail($$ select ojs.push('unq.z2', "unique" => '{}') $$) -> 'details', jsonb_build_object(
        'existing_job_id', (select id from ojs.jobs where type = 'unq.z2' and "unique" is not null),
            'existing_job_state', 'available',
        'unique_key', ojs.fingerprint('{"type": "unq.z2", "args": [], "unique": {}}')),
            'UNQ-15: what a rejection says');

-- Batches -----------------------------------------------------------------------------------------------------------

create function pg_temp.batch(type text, variadic strategies text[]) returns text language sql as $$
    with r as (select * from ojs.push_many((select jsonb_agg(jsonb_build_object('type', type, 'args',
        '[]'::jsonb, 'unique',
            jsonb_build_object('on_conflict', s)) order by n) from unnest(strategies) with ordinality as s(s, n))))
    select string_agg(index || ' ' || status || ' ' || (select min(index) from r as first where first.id = r.id),
        ', ' order by index) from r
$$;
select is(pg_temp.batch('unq.b1', 'reject', 'ignore', 'ignore'), '0 created 0, 1 duplicate 0, 2 duplicate 0',
    'UNQ-26: a batch that ignores its own duplicates');
select is(pg_temp.batch('unq.b2', 'ignore', 'replace', 'ignore', 'replace'),
    '0 created 0, 1 created 1, 2 duplicate 1, 3 created 3', 'UNQ-26: in order');
select is((select array_agg(state order by seq) from ojs.jobs where type = 'unq.b2'),
    '{cancelled,cancelled,available}', 'UNQ-26: what was replaced is cancelled');
select is(pg_temp.batch('unq.b2', 'replace', 'ignore'), '0 created 0, 1 duplicate 0', 'UNQ-26: against jobs of before');
select is(left(pg_temp.refusal($$ select pg_temp.batch('unq.b3', 'reject', 'reject') $$), 19), 'OJ301 DUPLICATE_JOB',
    'UNQ-26: a rejected one fails the batch');
select is((pg_temp.refusal_detail($$ select pg_temp.batch('unq.b3', 'reject', 'reject') $$) #>> '{details,index}'),
    '1', 'UNQ-26: and is named');
select is((select count(*) from ojs.jobs where type = 'unq.b3'), 0::bigint, 'UNQ-26: all or none');
select is((select string_agg(status, ',' order by index)
    from ojs.push_many('[{"type": "unq.b4", "args": [1], "unique": {"keys": ["args"]}},
    {"type": "unq.b4", "args": [1]}, {"type": "unq.b4", "args": [2], "unique": {"keys": ["args"]}}]')),
        'created,created,created', 'UNQ-26: unique and plain ones');

-- A key with many jobs ----------------------------------------------------------------------------------------------

select is((select count(*) filter (where pg_temp.try('unq.many', '{"period": "PT1S"}') = 'new')
    from generate_series(1, 60) i, pg_temp.clock(i * interval '2 s')), 60::bigint, 'UNQ-15: each after the period');
select is((select cardinality(k.past) from ojs_store.unique_key k
    where job_id in (select id from ojs.jobs where type = 'unq.many')), 59, 'a key names all its open jobs');
select count(ojs.cancel(id)) from ojs.jobs where type = 'unq.many' \g /dev/null
select is((select count(*) filter (where pg_temp.try('unq.many', '{"period": "PT1S", "on_conflict": "ignore"}') = 'new')
    from generate_series(61, 110) i, pg_temp.clock(i * interval '2 s')), 50::bigint,
    'UNQ-15: and so beside ended ones');
select cmp_ok((select cardinality(k.past) from ojs_store.unique_key k
    where job_id in (select id from ojs.jobs where type = 'unq.many')), '<', 90, 'of ended ones it forgets most');
select is(pg_temp.try('unq.many', '{"on_conflict": "replace"}'), 'new', 'a policy without a period sees them all');
select is((select count(*) from ojs.jobs where type = 'unq.many' and state = 'available'), 1::bigint,
    'and replaces all that are open');
select pg_temp.clock('100 s');
select is(pg_temp.try('unq.back', '{}'), 'new', 'a job');
select pg_temp.clock('50 s');
select is(pg_temp.try('unq.back', '{"states": ["completed"]}'), 'new', 'one after it, when the clock was set back');
select pg_temp.clock('101 s');
select is(pg_temp.try('unq.back', '{"period": "PT10S"}') like 'OJ301 %', true,
    'the first one is within a period that the second one is not in');
select pg_temp.clock('0');

-- Transactions ------------------------------------------------------------------------------------------------------

savepoint before;
select is(pg_temp.try('unq.sp', '{}'), 'new', 'a key taken in a savepoint');
rollback to savepoint before;
select is(pg_temp.try('unq.sp', '{}'), 'new', 'is free again after its rollback');
savepoint before;
select is(pg_temp.try('unq.sp', '{"on_conflict": "replace"}'), 'new', 'a job replaced in a savepoint');
rollback to savepoint before;
select is(pg_temp.try('unq.sp', '{}') like 'OJ301 % available', true, 'is there again after its rollback');
select is((select count(*) from ojs.jobs where type = 'unq.sp'), 1::bigint, 'alone');
select is((select count(distinct id) from (select (ojs.push('unq.one', "unique" => '{"on_conflict": "ignore"}')).id
    from generate_series(1, 3)) as p),
    1::bigint, 'calls in one statement see each other');
select is((select count(*) from ojs.jobs where type = 'unq.one'), 1::bigint, 'so there is one job');
select lives_ok($$ select ojs.ack(c.id) from (select ojs.push('unq.cycle', queue => 'cycle', "unique" => '{}')) p,
    lateral ojs.claim('cycle', 'w') c;
    select ojs.push('unq.cycle', queue => 'cycle', "unique" => '{}') $$,
        'ack and push the same key in one transaction');

-- Secrecy and the manifest ------------------------------------------------------------------------------------------

select is((select count(*) from information_schema.role_table_grants where table_schema = 'ojs_store'
    and table_name in ('unique_key', 'deduplication')
    and grantee in ('PUBLIC', 'ojs_producer', 'ojs_worker', 'ojs_observer', 'ojs_admin')), 0::bigint,
        'UNQ-28: nobody may read the keys');
select is((select count(*) from information_schema.columns where table_schema = 'ojs'
    and (column_name like '%fingerprint%' or column_name like '%unique_key%')),
    0::bigint, 'UNQ-28: and no view shows them');
select is(ojs.manifest() #> '{capabilities,unique_jobs}', jsonb_build_object('strength',
    ojs.manifest() -> 'unique_job_strength', 'mechanism', ojs.manifest() -> 'unique_job_mechanism'),
    'the manifest declares how strictly unique jobs are unique, and by which means (UNQ-27, R-92)');
select is(length(ojs.manifest() ->> 'unique_job_mechanism') > 20, true, 'UNQ-27: mechanism');
select is(ojs.manifest() ->> 'unique_job_strength', 'strong', 'UNQ-27: strength');
select is(ojs.manifest() ->> 'specversion', '1.0', 'MAN-01, R-64');

-- A replaced job says by which.
select id as old from ojs.push('unq.by', "unique" => '{"on_conflict": "replace"}') \gset
select id as new from ojs.push('unq.by', "unique" => '{"on_conflict": "replace"}') \gset
select is((error ->> 'type', error ->> 'message')::text, format('(replaced,"replaced by job %s")', :'new'),
    'a replaced job names the one in its place') from ojs.jobs where id = :'old';
select is((select data ->> 'reason' from ojs.events where job_id = :'old' and type = 'job.cancelled'),
    'replaced by job ' || :'new', 'so does the event');
select is((select error from ojs.cancel(:'new')), null, 'a job that somebody cancelled has no error');

select * from finish();
rollback;
