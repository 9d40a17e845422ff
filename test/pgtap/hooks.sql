-- hooks.sql: enqueue and execution hooks: MW-01 to MW-08, OP-01, INT-01, INT-06.
-- Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();
\ir helpers.psql

create schema hooks;
create table hooks.seen (n serial, hook text, job jsonb);
create function hooks.unchanged(job jsonb) returns jsonb language sql as $$ select $1 $$;
create function hooks.note(hook text, job jsonb) returns void language sql as $$ insert into hooks.seen (hook, job)
    values ($1, $2) $$;
do $$
declare
    hook text;
begin
    foreach hook in array array['a', 'b', 'c'] loop
        execute format('create function hooks.%1$s(job jsonb) returns jsonb language plpgsql as %2$L', hook,
            format('begin perform hooks.note(%1$L, job); return jsonb_set(job, ''{meta,path}'', coalesce(job #> '
                   '''{meta,path}'', ''[]'') || ''"%1$s"''); end', hook));
    end loop;
end $$;
create function pg_temp.path(job jsonb) returns text language sql as
    $$ select coalesce((select string_agg(p, '' order by o) from jsonb_array_elements_text($1 #> '{meta,path}')
        with ordinality x (p, o)), '') $$;
create function pg_temp.order_now() returns text language sql as $$ select string_agg(name, ' ' order by position)
    from ojs.hooks where point = 'enqueue' $$;

-- The chain -----------------------------------------------------------------------------------------------------------

select is(pg_temp.path(ojs.push_job('{"type": "t", "args": []}')), '', 'MW-05: an empty chain changes nothing');
select ojs.register_hook('b', 'enqueue', 'hooks.b(jsonb)');
select ojs.register_hook('c', 'enqueue', 'hooks.c(jsonb)', 'last');
select is(pg_temp.order_now(), 'b c', 'MW-05: a hook is added to the end');
select ojs.register_hook('a', 'enqueue', 'hooks.a(jsonb)', 'first');
select is(pg_temp.order_now(), 'a b c', 'MW-05: or put first');
select ojs.register_hook('before-c', 'enqueue', 'hooks.a(jsonb)', 'before', 'c');
select ojs.register_hook('after-a', 'enqueue', 'hooks.c(jsonb)', 'after', 'a');
select is(pg_temp.order_now(), 'a after-a b before-c c',
    'MW-05: before and after another; a function may stand there twice');
select is(pg_temp.path(ojs.push_job('{"type": "t", "args": []}')), 'acbac',
    'MW-01 MW-02: push_job runs them in order, and each sees what the last one made');
select is(pg_temp.path(to_jsonb(p)), 'acbac', 'MW-01: push') from ojs.push('t') p;
select is(pg_temp.path(to_jsonb(j)), 'acbac', 'MW-01: push_many') from ojs.push_many('[{"type": "t", "args": []}]') p
    join ojs.jobs j using (id);
select is(ojs.unregister_hook('after-a'), true, 'MW-05: a hook is removed');
select is(ojs.unregister_hook('after-a'), false, 'MW-05: once');
select ojs.unregister_hook('before-c');
select is(pg_temp.path(ojs.push_job('{"type": "t", "args": []}')), 'abc', 'MW-05: and runs no more');
savepoint s;
select ojs.unregister_hook('b');
select is(pg_temp.path(ojs.push_job('{"type": "t", "args": []}')), 'ac',
    'MW-05: at once in the transaction that removed it');
rollback to s;
select is(pg_temp.path(ojs.push_job('{"type": "t", "args": []}')), 'abc', 'MW-05: and a rollback brings it back');
select is((select array_agg(position) || array_agg(failures) from ojs.hooks), '{1,2,3,0,0,0}',
    'MW-05: the view counts positions from 1');
select is(concat_ws(' ', name, point, function, role), 'a enqueue hooks.a(jsonb) ' || current_user,
    'MW-05: the view shows what runs, and as whom')
from ojs.hooks where name = 'a';

create function hooks.two(a jsonb, b jsonb) returns jsonb language sql as 'select $1';
create function hooks.many(a jsonb) returns setof jsonb language sql as 'select $1';
create function hooks.none(a jsonb) returns void language sql as '';
create function hooks.texts(a jsonb) returns text language sql as 'select $1::text';
create function pg_temp.mine(a jsonb) returns jsonb language sql as 'select $1';
select is(pg_temp.refusal(format('select ojs.register_hook(%s)', call)), refused, 'MW-05 MW-08: ' || call) from (values
    ($$'a', 'enqueue', 'hooks.a(jsonb)'$$, 'OJ100 INVALID_PAYLOAD name'),
        ($$null, 'enqueue', 'hooks.a(jsonb)'$$, 'OJ100 INVALID_PAYLOAD name'),
    ($$'two words', 'enqueue', 'hooks.a(jsonb)'$$, 'OJ100 INVALID_PAYLOAD name'),
        ($$'x', 'later', 'hooks.a(jsonb)'$$, 'OJ100 INVALID_PAYLOAD point'),
    ($$'x', null, 'hooks.a(jsonb)'$$, 'OJ100 INVALID_PAYLOAD point'),
        ($$'x', 'enqueue', null$$, 'OJ100 INVALID_PAYLOAD function'),
    ($$'x', 'enqueue', 'hooks.two(jsonb, jsonb)'$$, 'OJ100 INVALID_PAYLOAD function'),
        ($$'x', 'enqueue', 'hooks.many(jsonb)'$$, 'OJ100 INVALID_PAYLOAD function'),
    ($$'x', 'enqueue', 'hooks.none(jsonb)'$$, 'OJ100 INVALID_PAYLOAD function'),
        ($$'x', 'enqueue', 'hooks.texts(jsonb)'$$, 'OJ100 INVALID_PAYLOAD function'),
    ($$'x', 'enqueue', 'pg_temp.mine(jsonb)'$$, 'OJ100 INVALID_PAYLOAD function'),
        ($$'x', 'enqueue', 'hooks.a(jsonb)', 'middle'$$, 'OJ100 INVALID_PAYLOAD place'),
    ($$'x', 'enqueue', 'hooks.a(jsonb)', 'before'$$, 'OJ100 INVALID_PAYLOAD other'),
        ($$'x', 'enqueue', 'hooks.a(jsonb)', 'last', 'a'$$, 'OJ100 INVALID_PAYLOAD other'),
    ($$'x', 'enqueue', 'hooks.a(jsonb)', 'before', 'z'$$, 'OJ300 NOT_FOUND other'),
        ($$'x', 'before_execute', 'hooks.a(jsonb)', 'after', 'a'$$, 'OJ300 NOT_FOUND other')) c (call, refused);
select ojs.unregister_hook(name) from ojs.hooks;

-- What a hook sees and may do -----------------------------------------------------------------------------------------

create function hooks.see(job jsonb) returns jsonb language plpgsql as $$ begin perform hooks.note('see', job);
    return job; end $$;
select ojs.register_hook('see', 'enqueue', 'hooks.see(jsonb)');
select id as mine from ojs.push('t.full', '{"a": 1}', queue => 'q', priority => 3, delay => '1 hour',
    expires_at => now() + '2 hours', retry => '{"max_attempts": 9}',
    "unique" => '{"keys": ["type"]}', meta => '{"m": 1}', timeout => '90 s', deduplication_key => 'k',
        deduplication_ttl => '1 min', tags => '{x,y}', pending => true,
    options => '{"x_own": [1], "schema": "urn:a:b", "visibility_timeout": "PT10S", "specversion": "1.1", '
               '"grace_period": 2}') \gset
select is((select string_agg(k, ' ' order by k) from jsonb_object_keys(job) k),
    'args deduplication_key deduplication_ttl expires_at grace_period id meta pending priority queue retry '
    'scheduled_at schema specversion tags timeout type unique visibility_timeout_ms x_own',
    'MW-02: a hook sees the whole job, each attribute once') from hooks.seen where hook = 'see';
select is(job ->> 'id', :'mine', 'MW-02: its id too'),
    is(job -> 'timeout', '90', 'MW-02: durations in seconds') from hooks.seen where hook = 'see';
select ojs.unregister_hook('see');

-- Round trip: what a hook that returns its argument sees is stored as without it.
create temp table shapes (job jsonb);
insert into shapes values ('{"type": "a", "args": []}'),
    ('{"type": "a@1.2", "args": [1.50, null, {"b": []}], "meta": {"k": "v"}, "priority": "HIGH"}'),
    ('{"type": "a", "args": [], "timeout": "PT1.5S", "scheduled_at": "2040-01-01T00:00:00.123456Z", "expires_at": '
     '"2041-01-01T00:00:00Z"}'),
    ('{"type": "a", "args": [], "options": {"delay_until": "2040-01-01T00:00:00+02:00", "tags": ["t"], "rate_limit": '
     '{"key": "k", "concurrency": 1}}, "x": null}'),
    ('{"type": "a", "args": [], "enqueue_ttl": 60, "total_timeout": "PT1H", "heartbeat_timeout": 5, "grace_period": '
     '"PT0.5S", "visibility_timeout_ms": 5000, "delivery": "at_most_once"}'),
    ('{"type": "a", "args": [], "retry": {"max_attempts": 2}, "unique": {"keys": ["args"], "on_conflict": "ignore", '
     '"states": ["active"]}, "specversion": "1.3", "version": "2", "tag": "x", "schema": "urn:x:y"}'),
    ('{"type": "a", "args": [], "metadata": {"k": 1}, "meta": {"l": 2}, "state": "completed", "attempt": 4, "pending": '
     'false}');
create function pg_temp.stored(job jsonb) returns jsonb language sql as
    $$ select ojs.push_job(job) - '{id,seq,created_at,enqueued_at}'::text[] $$;
create temp table without as select job, pg_temp.stored(job) as result from shapes;
select ojs.register_hook('unchanged', 'enqueue', 'hooks.unchanged(jsonb)');
select is(pg_temp.stored(job), result, 'MW-02: a hook that changes nothing changes nothing: ' || left(job::text, 60))
    from without;
select is(pg_temp.refusal($$select ojs.push('t', scheduled_at => 'infinity')$$), 'OJ100 INVALID_PAYLOAD scheduled_at',
    'MW-02: nor lets pass what is refused without it');
select is(pg_temp.refusal($$select ojs.push('T T')$$), 'OJ101 INVALID_JOB_TYPE type',
    'OP-01: validation comes after the hooks');
select is(pg_temp.refusal(format('select ojs.push_job(%L)',
    '{"type": "t", "args": ["' || repeat('x', 1048576) || '"]}')), 'OJ109 PAYLOAD_TOO_LARGE envelope',
    'OP-01: the size check before them');
select ojs.unregister_hook('unchanged');

create function hooks.rewrite(job jsonb) returns jsonb language sql as
    $$ select jsonb_strip_nulls(job || (job -> 'meta' -> 'put')) || '{"meta": {}}' $$;
select ojs.register_hook('rewrite', 'enqueue', 'hooks.rewrite(jsonb)');
create function pg_temp.rewritten(put jsonb) returns jsonb language sql as
    $$ select ojs.push_job(jsonb_build_object('type', 't', 'args', jsonb_build_array(1), 'meta',
        jsonb_build_object('put', put))) $$;
select is(pg_temp.rewritten(jsonb_build_object(field, value)) -> field, value, 'MW-02: a hook may change ' || field)
    from (values
    ('type', '"other.type"'::jsonb), ('queue', '"elsewhere"'), ('args', '[2]'), ('priority', '7'), ('timeout', '5'),
        ('x_new', '{"a": 1}'), ('tags', '["a"]'),
    ('scheduled_at', '"2040-01-01T00:00:00Z"'), ('unique',
        '{"keys": ["type", "args"], "states": ["pending"]}')) c (field, value);
select is(pg_temp.refusal(format('select pg_temp.rewritten(%L)', put)), refused,
    'MW-02: and what it makes is validated: ' || put) from (values
    ('{"id": "01920000-0000-7000-8000-00000000000a"}', 'OJ100 INVALID_PAYLOAD id'),
        ('{"id": null}', 'OJ100 INVALID_PAYLOAD id'), ('{"args": null}', 'OJ100 INVALID_PAYLOAD args'),
    ('{"args": 7}', 'OJ103 INVALID_ARGS args'), ('{"type": "A B"}', 'OJ101 INVALID_JOB_TYPE type'),
        ('{"priority": 1000}', 'OJ100 INVALID_PAYLOAD priority'),
    ('{"retry": {"max_attempts": -1}}', 'OJ106 INVALID_RETRY_POLICY retry.max_attempts')) c (put, refused);
select is(pg_temp.refusal_detail($$select
    ojs.push_many('[{"type": "t", "args": [], "meta": {"put": {}}}, {"type": "t", "args": [], "meta": {"put": {"args": '
                  '7}}}]')$$) #>> '{details,index}',
    '1', 'MW-02: a batch says which of its jobs');
create function hooks.nothing(job jsonb) returns jsonb language sql as $$ select '[]'::jsonb $$;
select ojs.unregister_hook('rewrite'), ojs.register_hook('nothing', 'enqueue', 'hooks.nothing(jsonb)');
select is(pg_temp.refusal($$select ojs.push('t')$$), 'OJ100 INVALID_PAYLOAD job', 'MW-02: a hook must return a job');
select ojs.unregister_hook('nothing');

-- Dropping and refusing -----------------------------------------------------------------------------------------------

create function hooks.judge(job jsonb) returns jsonb language plpgsql as $$
begin
    case job ->> 'type'
        when 'drop.it' then return null;
        when 'refuse.it' then raise exception 'not today' using errcode = 'P0042', hint = 'tomorrow';
        else return job;
    end case;
end $$;
select ojs.register_hook('judge', 'enqueue', 'hooks.judge(jsonb)'),
    ojs.register_hook('see', 'enqueue', 'hooks.see(jsonb)');
truncate hooks.seen;
select is(p is null, true, 'MW-03: push answers null for a job that a hook dropped')
    from ojs.push('drop.it', queue => 'dropped') p;
select is(ojs.push_job('{"type": "drop.it", "args": [], "queue": "dropped"}'), '{"dropped": true}',
    'MW-03: push_job says so');
select is((select array_agg(concat_ws(' ', index, status, id is not null) order by index)
    from ojs.push_many('[{"type": "drop.it", "args": [], "queue": "dropped"}, {"type": "t", "args": []},
    {"type": "drop.it", "args": []}]')), '{"0 dropped f","1 created t","2 dropped f"}',
        'MW-03: push_many, for each job');
select is((select array_agg(status) from ojs.push_many('[{"type": "drop.it", "args": []}]')), '{dropped}',
    'MW-03: a batch of nothing else');
select is((select count(*) from ojs.jobs where type = 'drop.it'), 0::bigint,
    'MW-03 INT-06: nothing is stored, so there is nothing to tell of');
select is((select count(*) from ojs.queues where name = 'dropped'), 0::bigint, 'MW-03 INT-06: nor is a queue made');
select is((select count(*) from hooks.seen where job ->> 'type' = 'drop.it'), 0::bigint,
    'MW-03: later hooks are not run');
select is(p is null, true, 'MW-03: a dropped job takes no deduplication key')
    from ojs.push('drop.it', deduplication_key => 'dropped-key') p;
select is(deduplicated, false, 'MW-03: the key is free afterwards')
    from ojs.push('t', deduplication_key => 'dropped-key');

create function pg_temp.caught(statement text) returns text language plpgsql as $$
declare
    state text; message text; context text; hint text;
begin
    execute statement;
    return 'accepted';
exception when others then
    get stacked diagnostics state = returned_sqlstate, message = message_text, context = pg_exception_context,
        hint = pg_exception_hint;
    return concat_ws(' ', state, message, hint, substring(context from 'hook "[^"]*"'));
end $$;
select is(pg_temp.caught($$select ojs.push('refuse.it')$$), 'P0042 not today tomorrow hook "judge"',
    'MW-04: a hook that raises refuses the push, with its own error');
select is(pg_temp.caught($$select
    ojs.push_many('[{"type": "t", "args": [], "queue": "refused"}, {"type": "refuse.it", "args": []}]')$$),
    'P0042 not today tomorrow hook "judge"', 'MW-04: or the batch');
select is((select count(*) from ojs.jobs where queue = 'refused' or type = 'refuse.it'), 0::bigint,
    'MW-04: nothing is stored');
select ojs.unregister_hook(name) from ojs.hooks;

-- INT-01: uniqueness and hooks ----------------------------------------------------------------------------------------

create function hooks.encrypt(job jsonb) returns jsonb language sql as
    $$ select jsonb_set(job, '{args}', jsonb_build_array(md5(random()::text))) $$;
select ojs.register_hook('encrypt', 'enqueue', 'hooks.encrypt(jsonb)');
select id as first from ojs.push('int.one', '["a"]',
    "unique" => '{"keys": ["type", "args"], "on_conflict": "ignore"}') \gset
select is(id, :'first', 'INT-01: the key is made of the args as they came, though a hook encrypts them')
    from ojs.push('int.one', '["a"]', "unique" => '{"keys": ["type", "args"], "on_conflict": "ignore"}');
select isnt(id, :'first', 'INT-01: other args are another job')
    from ojs.push('int.one', '["b"]', "unique" => '{"keys": ["type", "args"], "on_conflict": "ignore"}');
select is((select array_agg(status order by index)
    from ojs.push_many('[{"type": "int.one", "args": ["a"], "unique": {"keys": ["type", "args"], "on_conflict": '
                       '"ignore"}},
    {"type": "int.one", "args": ["c"], "unique": {"keys": ["type", "args"], "on_conflict": "ignore"}},
    {"type": "int.one", "args": ["c"], "unique": {"keys": ["type", "args"], "on_conflict": "ignore"}}]')),
    '{duplicate,created,duplicate}', 'INT-01: in a batch');
select isnt(args, '["a"]', 'INT-01: what is stored is what the hook made') from ojs.jobs where id = :'first';
select is(status, 'duplicate', 'INT-01: a bare object is the array that it becomes')
    from ojs.push('int.bare', '{"k": 1}',
    "unique" => '{"keys": ["args"], "args_keys": ["k"], "on_conflict": "ignore"}') p,
    lateral (select case when q.deduplicated then 'duplicate' else 'created' end as status
        from ojs.push('int.bare', '[{"k": 1}]',
            "unique" => '{"keys": ["args"], "args_keys": ["k"], "on_conflict": "ignore"}') q where p.id is not null) s;
select ojs.unregister_hook('encrypt');
select is(ojs.fingerprint('{"type": "a", "args": [1], "unique": {"keys": ["args"]}, "unique_key": "mine"}'),
    ojs.fingerprint('{"type": "b", "args": [2], "unique": {"keys": ["type"]}, "unique_key": "mine"}'),
    'INT-01: a key that the producer worked out stands for all dimensions');
select isnt(ojs.fingerprint('{"type": "a", "args": [1], "unique": {}, "unique_key": "mine"}'),
    ojs.fingerprint('{"type": "a", "args": [1], "unique": {}, "unique_key": "other"}'),
    'INT-01: another key, another job');
select is(pg_temp.refusal($$select ojs.push('t', "unique" => '{}', options => '{"unique_key": 7}')$$),
    'OJ702 UNIQUE_KEY_INVALID unique_key', 'INT-01: it must be a text');
select is(extra ->> 'unique_key', '7', 'INT-01: without a policy it is an attribute like any other')
    from ojs.push('t', options => '{"unique_key": 7}');

-- Execution -----------------------------------------------------------------------------------------------------------

set local client_min_messages = error;
truncate hooks.seen;
create function hooks.outer(job jsonb) returns jsonb language plpgsql as $$ begin perform hooks.note('outer', job);
    return job; end $$;
create function hooks.inner(job jsonb) returns jsonb language plpgsql as $$ begin perform hooks.note('inner', job);
    return job; end $$;
select ojs.register_hook(h || '-' || p, p, ('hooks.' || h || '(jsonb)')::regprocedure)
    from unnest('{outer,inner}'::text[]) h, unnest('{before_execute,after_execute}'::text[]) p;
create function pg_temp.calls() returns text language plpgsql as $$
declare
    said text;
begin
    select string_agg(format('%s %s %s', hook, job ->> 'state', job ->> 'attempt'), ', ' order by n) into said
        from hooks.seen;
    truncate hooks.seen;
    return coalesce(said, '');
end $$;
select pg_temp.held('run') as job \gset
select is(pg_temp.calls(), 'outer active 1, inner active 1',
    'MW-06: before_execute runs at the claim, the first that was added first');
select is((ojs.fail(:'job', '{"type": "e", "message": "m"}', delay => '1 day')).state, 'retryable', 'MW-06: a failure');
select is(pg_temp.calls(), 'inner retryable 1, outer retryable 1',
    'MW-06: after_execute runs the other way round, and sees the outcome');
select pg_temp.held('run') as job \gset
select pg_temp.calls();
select (ojs.ack(:'job', '{"r": 1}')).state;
select is((select job #>> '{result,r}' from hooks.seen where hook = 'outer'), '1', 'MW-06: with the result');
select is(pg_temp.calls(), 'inner completed 1, outer completed 1', 'MW-06: after an ack');
select pg_temp.held('run') as job \gset
select pg_temp.calls();
select (ojs.nack(:'job')).state;
select is(pg_temp.calls(), 'inner available 0, outer available 0', 'MW-06: after a nack');
select ojs.fail(id, null, requeue => true) is null from ojs.claim('run', 'w');
select is(pg_temp.calls(), 'outer active 1, inner active 1, inner available 0, outer available 0',
    'MW-06: after a fail that gives back');
select is((select (ojs.nack_many('w', array_agg(id))).done from ojs.claim('run', 'w')), 1, 'MW-06: many');
select is(pg_temp.calls(), 'outer active 1, inner active 1, inner available 0, outer available 0',
    'MW-06: after nack_many');
select pg_temp.pushed('run');
select is((select count(*) from ojs.ack_and_claim('w', 'run', (select array_agg(id) from ojs.claim('run', 'w')))),
    1::bigint, 'MW-06: ack_and_claim');
select is(pg_temp.calls(),
    'outer active 1, inner active 1, inner completed 1, outer completed 1, outer active 1, inner active 1',
    'MW-06: after its acks, and at its claim');
select is((ojs.ack_many('w', (select array_agg(job_id) from ojs.leases where queue = 'run'))).done, 1,
    'MW-06: ack_many');
select is(pg_temp.calls(), 'inner completed 1, outer completed 1', 'MW-06: after ack_many');
select ojs.configure_queue('vanish', '{"delete_on_ack": true}') is null;
select ojs.ack(pg_temp.held('vanish')) is null, (ojs.ack_many('w', array[pg_temp.held('vanish')])).done;
select is(pg_temp.calls(),
    'outer active 1, inner active 1, inner completed 1, outer completed 1, outer active 1, inner active 1, inner '
    'completed 1, outer completed 1',
    'MW-06: of jobs that vanish at their end');
select ojs.cancel(id) is null from ojs.jobs where queue = 'run' and state = 'available';
select is(pg_temp.calls(), '', 'MW-06: not of jobs that never ran');
select ojs.unregister_hook(name) from ojs.hooks;

create function hooks.decrypt(job jsonb) returns jsonb language sql as
    $$ select job || '{"args": ["plain"], "trace": "t1", "state": "lost", "lease_id": "mine", "attempt": 9}'
        || jsonb_build_object('meta', job -> 'meta' || '{"span": 1}') $$;
select ojs.register_hook('decrypt', 'before_execute', 'hooks.decrypt(jsonb)');
select id as job from ojs.push('t', '["secret"]', queue => 'context', meta => '{"k": "v"}', options => '{"x": 1}') \gset
select is(args, '["plain"]', 'MW-06: before_execute may change the args that the worker gets'),
    is(meta, '{"k": "v", "span": 1}', 'MW-06: and the metadata'),
    is(extra, '{"x": 1, "trace": "t1"}', 'MW-06: and add context'),
        is(concat(state, attempt), 'active1', 'MW-06: but not what the server says of the job'),
    isnt(lease_id, 'mine', 'MW-06: nor the lease') from ojs.claim('context', 'w');
select is(args::text || meta, '["secret"]{"k": "v"}', 'MW-06: for this delivery only') from ojs.jobs where id = :'job';
select ojs.unregister_hook('decrypt');

-- A hook that fails costs nobody a job.
create function hooks.broken(job jsonb) returns jsonb language plpgsql as $$
begin
    perform hooks.note('broken', job);
    raise exception 'secret %', job -> 'args' using errcode = 'P0077';
end $$;
create function hooks.text(job jsonb) returns jsonb language sql as $$ select '"no job"'::jsonb $$;
create function hooks.no_args(job jsonb) returns jsonb language sql as $$ select job - 'args' $$;
select ojs.register_hook('broken', 'before_execute', 'hooks.broken(jsonb)'),
    ojs.register_hook('text', 'before_execute', 'hooks.text(jsonb)'),
    ojs.register_hook('no-args', 'before_execute', 'hooks.no_args(jsonb)'),
        ojs.register_hook('inner', 'before_execute', 'hooks.inner(jsonb)'),
    ojs.register_hook('broken-after', 'after_execute', 'hooks.broken(jsonb)');
truncate hooks.seen;
select ojs.push('t', '["x"]', queue => 'fails') is null from generate_series(1, 3);
select is((select count(*) from ojs.claim('fails', 'w', 2) c where args = '["x"]' and state = 'active'), 2::bigint,
    'MW-06: a hook that fails loses no claimed job');
select is(pg_temp.calls(), 'inner active 1, inner active 1', 'MW-06: what it did is undone, and the other hooks run');
select is((select array_agg(format('%s %s %s', name, failures, last_error) order by position) from ojs.hooks
    where point = 'before_execute'),
    '{"broken 2 P0077","text 2 OJ100","no-args 2 22023","inner 0 "}', 'MW-06: it is counted');
select is((ojs.ack_many('w', (select array_agg(job_id) from ojs.leases where queue = 'fails'))).done, 2,
    'MW-06: nor does it keep one from being finished');
select is(failures, 2::numeric, 'MW-06: which is counted too') from ojs.hooks where name = 'broken-after';
select ojs.ack(id) is null from ojs.claim('fails', 'w');
select ojs.tick() is null;
select is((select array_agg(failures order by name) from ojs.hooks where failures > 0), '{3,3,3,3}',
    'MW-06: the tick adds up');
select is((select count(*) from ojs_store.hook_failure), 4::bigint, 'MW-06: into one row each');
select is((select string_agg(error, ' ') from ojs_store.hook_failure where error ~ 'secret|x'), null,
    'MW-06: and what the error said is kept nowhere');
create temp table told (message text);
set local client_min_messages = warning;
select ojs.unregister_hook(name) from ojs.hooks;
-- Who cancels the call does not mean the hook only.
create function hooks.cancelled(job jsonb) returns jsonb language plpgsql as $$ begin raise exception 'stop'
    using errcode = '57014'; end $$;
select ojs.push('t', queue => 'stops') is null;
select ojs.register_hook('cancelled', 'before_execute', 'hooks.cancelled(jsonb)');
create function pg_temp.cancelled(statement text) returns boolean language plpgsql as $$ begin execute statement;
    return false; exception when query_canceled then return true; end $$;
select ok(pg_temp.cancelled($$select ojs.claim('stops', 'w')$$), 'MW-06: a cancelled claim ends with its hook');
select is((select count(*) from ojs.leases where queue = 'stops'), 0::bigint, 'MW-06: and has claimed nothing');
select ojs.unregister_hook('cancelled');
-- The jobs of a batch keep their numbers through the hooks.
select ojs.register_hook('unchanged', 'enqueue', 'hooks.unchanged(jsonb)'), ojs.drain_queue('draining');
select is(pg_temp.refusal_detail($$select
    ojs.push_many('[{"type": "t", "args": []}, {"type": "t", "args": [], "queue": "draining"}]')$$)
    #>> '{details,index}', '1', 'MW-02 OP-04: an error behind the hooks names the job, too');
select ojs.unregister_hook('unchanged');

-- Whose rights --------------------------------------------------------------------------------------------------------

create role hook_admin in role ojs_admin;
create role hook_producer in role ojs_producer;
grant usage on schema hooks to hook_admin, hook_producer;
create table hooks.private (who text, path text, session text);
grant insert on hooks.private to hook_admin;
create function hooks.who(job jsonb) returns jsonb language plpgsql as $$
begin
    insert into hooks.private values (current_user, current_setting('search_path'), session_user);
    return job;
end $$;
create schema trap;
grant usage on schema trap to hook_producer;
create function trap.jsonb_set(jsonb, text[], jsonb) returns jsonb language plpgsql as $$ begin raise 'trapped'; end $$;
set local role hook_producer;
select is(pg_temp.caught($$select ojs.register_hook('who', 'enqueue', 'hooks.who(jsonb)')$$) ~ '^42501', true,
    'MW-08: a producer may not register hooks');
select is(pg_temp.caught($$select ojs.unregister_hook('who')$$) ~ '^42501', true, 'MW-08: nor remove them');
select is(pg_temp.caught($$select * from ojs.hooks$$) ~ '^42501', true, 'MW-08: nor see them');
set local role hook_admin;
select ojs.register_hook('who', 'enqueue', 'hooks.who(jsonb)'),
    ojs.register_hook('who-runs', 'before_execute', 'hooks.who(jsonb)');
reset role;
revoke execute on function hooks.unchanged(jsonb) from public;
set local role hook_admin;
select is(pg_temp.caught($$select ojs.register_hook('x', 'enqueue',
    'hooks.unchanged(jsonb)')$$) ~ '^42501.*hook_admin', true,
    'MW-08: the function must be one that the registering role may call');
set local role hook_producer;
set local search_path = trap, pg_catalog, hooks, public;
select public.is((ojs.push('t', queue => 'who')).state, 'available', 'MW-08: anybody''s push runs the hook');
reset search_path;
reset role;
select is((select who from hooks.private), 'hook_admin', 'MW-08: as the role that registered it'),
    is((select path from hooks.private), 'pg_catalog, pg_temp', 'MW-08: on a search path that no caller can change');
select is((select count(*) from ojs.claim('who', 'w')), 1::bigint, 'MW-08: so does a claim');
select is((select array_agg(distinct who) from hooks.private), '{hook_admin}', 'MW-08: as that role');

-- What would go on as the caller after the hook is refused or undone: an administrator of queues must not become a
-- superuser who pushes.
create function hooks.deferred() returns trigger language plpgsql as $$ begin return null; end $$;
create table hooks.later (x int);
create constraint trigger deferred after insert on hooks.later deferrable initially deferred for each row execute
    function hooks.deferred();
grant insert on hooks.later to hook_admin;
grant temporary on database :"DBNAME" to hook_admin;
create function hooks.stay(job jsonb) returns jsonb language plpgsql as $$
begin
    case job ->> 'type'
        when 'deferred' then insert into hooks.later values (1);
        when 'temporary' then create temp table mine (x int);
        when 'role' then set role none;
        when 'listen' then listen mine;
        when 'setting' then
            perform set_config('search_path', 'hooks', false), set_config('work_mem', '77MB', true);
        else null;
    end case;
    return job;
end $$;
set local role hook_admin;
select ojs.register_hook('stay', 'enqueue', 'hooks.stay(jsonb)'),
    ojs.register_hook('stay-runs', 'before_execute', 'hooks.stay(jsonb)');
reset role;
select is(left(pg_temp.caught(format('select ojs.push(%L)', type)), 5), '42501',
    'MW-08: a hook of another role leaves nothing to run as who pushes: ' || type)
from unnest('{deferred,temporary,role,listen}'::text[]) type;
select is(pg_temp.caught($$select ojs.push('setting')$$), 'accepted', 'MW-08: it may change settings');
select is(current_setting('search_path') ~ 'hooks' or current_setting('work_mem') = '77MB', false, 'MW-08: for itself');
select is((select array_agg(type) from ojs.claim('default', 'w', 100) where type in ('setting', 'deferred')),
    '{setting}', 'MW-08: at a claim, too');
select is(current_setting('search_path') ~ 'hooks' or current_setting('work_mem') = '77MB', false, 'MW-08: for itself');
select ojs.unregister_hook('stay'), ojs.unregister_hook('stay-runs');
select ojs.register_hook('stay', 'enqueue', 'hooks.stay(jsonb)');
select is(pg_temp.caught($$select ojs.push('deferred')$$), 'accepted',
    'MW-08: a hook of who pushes, or of a superuser, may do what they may');
select ojs.unregister_hook('stay');

revoke execute on function hooks.who(jsonb) from public;
select is(pg_temp.caught($$select ojs.push('t')$$),
    '57P03 hook "who" cannot run: the role "hook_admin" may not execute hooks.who(jsonb) Mend that, or remove the '
    'hook: ojs.unregister_hook(''who'').',
    'MW-08: and only as long as that role may call the function');
grant execute on function hooks.who(jsonb) to hook_admin;
select is((ojs.push('t', queue => 'who')).state, 'available', 'MW-08: it may again');

drop function hooks.who(jsonb);
select is(pg_temp.caught($$select ojs.push('t')$$),
    '57P03 hook "who" cannot run: the function hooks.who(jsonb) does not exist Mend that, or remove the hook: '
    'ojs.unregister_hook(''who'').',
    'MW-08: a hook whose function was dropped refuses pushes');
-- Nor does a function run that somebody else has made of the same name: it would have the rights of the role that
-- registered.
create role hook_stranger;
create function hooks.who(job jsonb) returns jsonb language sql as $$ select $1 $$;
alter function hooks.who(jsonb) owner to hook_stranger;
select is(pg_temp.caught($$select ojs.push('t')$$),
    '57P03 hook "who" cannot run: the function hooks.who(jsonb) now belongs to the role "hook_stranger" Mend that, or '
    'remove the hook: ojs.unregister_hook(''who'').',
    'MW-08: a function of that name that belongs to somebody else does not run');
drop function hooks.who(jsonb);
set local client_min_messages = error;
select is((select count(*) from ojs.claim('who', 'w')), 1::bigint, 'MW-06: and a claim goes on without it');
set local client_min_messages = warning;
select is(last_error, '57P03', 'MW-06: the view says that it failed') from ojs.hooks where name = 'who-runs';
create schema stranger authorization hook_stranger;
create function stranger.who(job jsonb) returns jsonb language sql as $$ select $1 $$;
alter function stranger.who(jsonb) owner to hook_stranger;
create function hooks.who(job jsonb) returns jsonb language sql as $$ select job $$;
select is((ojs.push('t', queue => 'who')).state, 'available', 'MW-08: the function may be made anew');
alter schema hooks rename to hooks_away;
alter schema stranger rename to hooks;
select is(left(pg_temp.caught($$select ojs.push('t')$$), 5), '57P03',
    'MW-08: nor one whose schema has got the name of the other');
alter schema hooks rename to stranger;
alter schema hooks_away rename to hooks;
select is((ojs.push('t', queue => 'who')).state, 'available', 'MW-08: it is as before once the names are');
reassign owned by hook_admin to current_user;
drop owned by hook_admin;
drop role hook_admin;
select is(pg_temp.caught($$select ojs.push('t')$$),
    '57P03 hook "who" cannot run: the role "hook_admin" does not exist Mend that, or remove the hook: '
    'ojs.unregister_hook(''who'').',
    'MW-08: a hook whose role was dropped, too');
select ojs.unregister_hook(name) from ojs.hooks;

-- A hook that pushes, in a push of a batch, disturbs neither.
create function hooks.audit(job jsonb) returns jsonb language plpgsql as $$
begin
    if job ->> 'type' <> 'audit' then
        perform ojs.push_many('[{"type": "audit", "args": [], "queue": "audit"}, {"type": "audit", "args": [], '
            '"queue": "audit"}]');
    end if;
    return job;
end $$;
select ojs.register_hook('audit', 'enqueue', 'hooks.audit(jsonb)');
select is((select array_agg(status order by index)
    from ojs.push_many('[{"type": "t", "args": []}, {"type": "t", "args": []}]')), '{created,created}',
    'MW-01: a hook may push jobs');
select is((select count(*) from ojs.jobs where queue = 'audit'), 4::bigint, 'MW-01: which are pushed');
select is(pg_temp.refusal_detail($$select ojs.push_many('[{"type": "t", "args": []}, {"type": "t", "args": 7}]')$$)
    #>> '{details,index}', '1', 'MW-01: an error still names the right job');

select * from finish();
rollback;
