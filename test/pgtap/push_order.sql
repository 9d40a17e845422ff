-- push_order.sql: what a push does in which order: MW-07, OP-01, INT-06. A call with two faults meets the earlier step,
-- whichever function it goes through; and a step that ends the push without an error (a dropped job, a duplicate) comes
-- in its place, too. Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();
\ir helpers.psql

-- The steps, each with what makes a push end there. Rights come before all of them: test/pgtap/roles.sql.
create temp table step (n int, name text, ends text, fault jsonb);
insert into step values
    (1, 'size', 'OJ109 PAYLOAD_TOO_LARGE envelope', jsonb_build_object('padding', repeat('x', 1100000))),
    (2, 'reading', 'OJ100 INVALID_PAYLOAD tags', '{"tags": "none"}'),
    (3, 'trace', 'P0042 not traced', '{"meta": {"refuse": true}}'),
    (4, 'tenant', 'dropped', '{"meta": {"drop": true}}'),
    (5, 'validation', 'OJ106 INVALID_RETRY_POLICY retry.max_attempts', '{"retry": {"max_attempts": -1}}'),
    (6, 'deduplication', 'duplicate', '{"deduplication_key": "taken"}'),
    (7, 'unique', 'OJ301 DUPLICATE_JOB', '{"unique": {"keys": ["queue"]}}'),
    (8, 'draining', 'OJ304 QUEUE_PAUSED', '{"draining": true}'),
    (9, 'allowed types', '42501 PERMISSION_DENIED type', '{"type": "not.allowed"}'),
    (10, 'bound', 'OJ601 QUEUE_FULL', '{"full": true}'),
    (11, 'storing', 'OJ301 DUPLICATE_JOB id', '{"id": "01920000-0000-7000-8000-00000000000a"}');

-- Two hooks, as one would add them for traces and tenants.
create schema hooks;
create function hooks.trace(job jsonb) returns jsonb language plpgsql as $$
begin
    if job #> '{meta,refuse}' = 'true' then
        raise exception 'not traced' using errcode = 'P0042';
    end if;
    return jsonb_set(job, '{meta,trace_id}', '"t1"');
end $$;
create function hooks.tenant(job jsonb) returns jsonb language sql as $$
    select case when job #> '{meta,drop}' = 'true' then null else jsonb_set(job, '{meta,seen}',
        job #> '{meta,trace_id}') end
$$;

-- A queue for each combination of the faults that are a queue's; with a unique job of either type, and a key that is
-- taken.
do $$
declare
    queue text;
begin
    perform ojs.push('allowed', id => '01920000-0000-7000-8000-00000000000a');
    foreach queue in array '{plain,draining,full,draining-full}'::text[] loop
        perform ojs.push(type, queue => queue, "unique" => '{"keys": ["queue"]}')
            from unnest('{allowed,not.allowed}'::text[]) type;
        perform ojs.push('allowed', queue => queue, deduplication_key => 'taken');
        perform ojs.configure_queue(queue, '{"allowed_job_types": ["allowed"]}');
        if queue like '%full' then
            perform ojs.configure_queue(queue, '{"max_size": 3}');
        end if;
        if queue like 'draining%' then
            perform ojs.drain_queue(queue);
        end if;
    end loop;
end $$;
select ojs.register_hook('trace', 'enqueue', 'hooks.trace(jsonb)'),
    ojs.register_hook('tenant', 'enqueue', 'hooks.tenant(jsonb)') \g /dev/null

-- A job with these faults.
create function pg_temp.job(faults jsonb[]) returns jsonb language plpgsql as $$
declare
    fault jsonb;
    job jsonb := '{"type": "allowed", "args": []}';
    meta jsonb := '{}';
begin
    foreach fault in array faults loop
        meta := meta || coalesce(fault -> 'meta', '{}');
        job := job || fault || jsonb_build_object('meta', meta);
    end loop;
    return job - '{draining,full}'::text[] || jsonb_build_object('queue',
        concat_ws('-', case when job ? 'draining' then 'draining' end,
        case when job ? 'full' then 'full' end, case when not job ?| '{draining,full}' then 'plain' end));
end $$;
-- How a push of it ends, as a word or a refusal.
create function pg_temp.ending(way text, job jsonb) returns text language plpgsql as $$
declare
    statement text := format(case way
        when 'push' then 'select case when p is null then %3$L when p.deduplicated then %4$L else p.state end from '
            'ojs.push(null, options => %1$L) p'
        when 'push_job' then 'select case when p ? %3$L then %3$L when p -> %5$L = %6$L then %4$L else p ->> %7$L end '
            'from ojs.push_job(%1$L) p'
        when 'push_many' then 'select status from ojs.push_many(jsonb_build_array(%8$L::jsonb), %2$L)'
        else 'select concat_ws(%9$L, coalesce(error ->> %10$L, status), error #>> %11$L) from '
             'ojs.push_many(jsonb_build_array(%8$L::jsonb), %2$L, atomicity => %12$L)'
        end, job, job ->> 'deduplication_key', 'dropped', 'duplicate', 'deduplicated', 'true', 'state',
            job - 'deduplication_key', ' ', 'code', '{details,field}', 'partial');
    answer text;
    detail text;
begin
    execute statement into answer;
    return answer;
exception when others then
    get stacked diagnostics detail = pg_exception_detail;
    return concat_ws(' ', sqlstate, case detail when '' then sqlerrm else detail::jsonb ->> 'code' end,
        nullif(detail, '')::jsonb #>> '{details,field}');
end $$;
-- What is left of a refusal in the answer of a partial batch.
create function pg_temp.expected(way text, ends text) returns text language sql as
$$ select case when way <> 'partial' then ends when ends like 'P0042%' then 'HOOK_ERROR'
    else regexp_replace(ends, '^(OJ...|42501) ', '') end $$;

create temp table came as
select way, a.n, a.name as first, b.name as second, a.ends,
    pg_temp.ending(way, pg_temp.job(array[a.fault, b.fault])) as ending
from unnest('{push,push_job,push_many,partial}'::text[]) way, step a join step b on b.n >= a.n
order by 1, 2, b.n;
select is(count(*), 264::bigint, 'MW-07: 66 pairs, by four ways') from came;
-- The parameters of ojs.push are a job only once they have been read.
update came set ends = 'OJ100 INVALID_PAYLOAD tags' where way = 'push' and first = 'size' and second = 'reading';
select is(string_agg(format('%s: %s', second, ending),
    ', ') filter (where ending is distinct from pg_temp.expected(way, ends)), null,
    format('MW-07 OP-01: %s: %s before what follows', way, first))
from came group by way, n, first order by way, n;

select is(p.meta, '{"trace_id": "t1", "seen": "t1"}',
    'MW-07: what the first hook adds, the next sees, and the job keeps') from ojs.push('allowed', queue => 'plain') p;
select is((select count(*) from ojs.jobs where queue = 'full'), 3::bigint,
    'INT-06: nothing came in by a push that ended early');

select * from finish();
rollback;
