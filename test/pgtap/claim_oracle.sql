-- claim_oracle.sql: ojs.claim against SELECT … FOR UPDATE SKIP LOCKED over the same rows, on random data: OP-05, OP-06.
begin;
select no_plan();
\set seed `awk 'BEGIN { srand(); print rand() }'`
\ir helpers.psql
set local ojs.default_lease = '1 h'; -- no lease of a claim lapses here, however slow the machine

-- What a claim must take, as SQL would choose it: queue by queue, then priority, the returned, the order of entry.
create function pg_temp.oracle(queues text[], max int) returns uuid[] language plpgsql as $$
declare
    taken uuid[] := '{}'; name text; here uuid;
begin
    foreach name in array queues loop
        for here in
            select job_id from ojs_store.ready where queue = ojs_store.queue_id(name)
            order by npriority, position limit max - cardinality(taken) for update skip locked
        loop
            taken := taken || here;
        end loop;
    end loop;
    return taken;
end $$;

-- The order of the reply (R-29): queue, priority, seq.
create function pg_temp.shown(taken uuid[], queues text[]) returns uuid[] language sql as $$
    select coalesce(array_agg(j.id order by array_position(queues, j.queue), j.priority desc, j.seq), '{}')
    from unnest(taken) id join ojs.jobs j using (id) $$;

-- One random step; a claim is checked against the oracle and says what differs, or null.
create function pg_temp.step() returns text language plpgsql as $$
declare
    names text[] := '{red,green,blue}';
    chosen text[]; most int; expected uuid[]; got uuid[]; job uuid;
    die float := random();
begin
    if die < 0.45 then
        perform ojs.push('test.job', queue => names[1 + floor(random() * 3)::int],
            priority => (array[0, 0, 0, 5, -5, 100, -100])[1 + floor(random() * 7)::int]);
    elsif die < 0.55 then
        perform count(*) from ojs.push_many((select jsonb_agg(jsonb_build_object('type', 't', 'args', '[]'::jsonb,
            'queue', names[1 + floor(random() * 3)::int], 'priority', floor(random() * 5)::int - 2))
                from generate_series(1, 8)));
    elsif die < 0.85 then
        select array_agg(n order by random()) into chosen from unnest(names) n where random() < 0.6;
        chosen := coalesce(chosen, '{red}');
        most := floor(random() * 8);
        expected := pg_temp.oracle(chosen, most);
        expected := pg_temp.shown(expected, chosen);
        select coalesce(array_agg(c.id order by ordinality), '{}') into got from ojs.claim(chosen, 'w', most)
            with ordinality c;
        if got is distinct from expected then
            return format('claim(%s, %s): %s instead of %s', chosen, most, got, expected);
        end if;
    else
        select job_id into job from ojs.leases order by random() limit 1;
        if job is not null then
            if die < 0.92 then
                perform ojs.nack(job);
            elsif die < 0.95 then
                perform ojs.cancel(job);
            else
                perform ojs.ack(job);
            end if;
        end if;
    end if;
    return null;
end $$;

-- The same, and half of it undone again: hints and dead entries must not outlive a rollback.
create function pg_temp.steps(n int) returns setof text language plpgsql as $$
declare
    difference text;
begin
    for i in 1..n loop
        begin
            for k in 1..1 + floor(random() * 6)::int loop
                difference := pg_temp.step();
                if difference is not null then
                    return next difference;
                end if;
            end loop;
            if random() < 0.4 then
                raise exception using errcode = 'UNDO1';
            end if;
        exception when sqlstate 'UNDO1' then
            null;
        end;
    end loop;
end $$;

select ojs_store.queue_id('red') as expected_id \gset
select pg_temp.pushed('red'), pg_temp.pushed('green'), pg_temp.pushed('blue') \g /dev/null
select is((select distinct queue from ojs_store.ready where queue = :expected_id), :expected_id,
    'the oracle knows the id of a queue');
select setseed(:seed) from (values (1)) x \g /dev/null
select is((select string_agg(difference, e'\n') from pg_temp.steps(700) difference), null,
    'OP-05 OP-06 Q-25 R-29: random claims take what FOR UPDATE SKIP LOCKED takes, in the same order');
select diag('the seed was ' || :'seed');
select cmp_ok((select count(*) from ojs.leases) + (select count(*) from ojs.jobs where state = 'completed'), '>',
    100::bigint,
    'OP-05: and jobs were claimed');

-- Each job is in one place, whatever was undone.
select is((select count(*) from ojs_store.job j where (select count(*) from (
    select job_id from ojs_store.ready union all select job_id from ojs_store.lease union all select job_id
        from ojs_store.finished) x
    where job_id = j.id) <> 1), 0::bigint, 'OP-13: every job is in exactly one place');

-- What is left comes out to the last.
create temp table left_over as select pg_temp.shown(pg_temp.oracle('{blue,red,green}', 1000),
    '{blue,red,green}') as ids;
select is((select array_agg(id order by ordinality) from ojs.claim('{blue,red,green}'::text[], 'w', 1000)
    with ordinality), ids,
    'OP-06: all that is left, in order') from left_over;
select is((select count(*) from ojs_store.ready), 0::bigint, 'OP-06: then nothing is ready');

select * from finish();
rollback;
