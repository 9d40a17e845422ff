-- lists.sql: pages of jobs: ojs.list_jobs.
begin;
select no_plan();
\ir helpers.psql

create temp table j as select g as n,
    (ojs.push(case when g % 2 = 0 then 'list.even' else 'list.odd' end,
    queue => case when g < 7 then 'list' else 'other' end,
    delay => case when g in (5, 6) then interval '1 hour' * g end, pending => g = 4)).id from generate_series(1, 8) g;
create function pg_temp.listed(args text) returns text language plpgsql as $$
declare
    numbers text;
begin
    execute format('select string_agg(j.n::text, '','' order by l.ordinality) from ojs.list_jobs(%s) with ordinality l '
                   'join pg_temp.j on j.id = l.id', args)
    into numbers;
    return numbers;
end $$;

select is(pg_temp.listed(''), '8,7,6,5,4,3,2,1', 'all jobs are listed, newest first');
select is(pg_temp.listed('''list'''), '6,5,4,3,2,1', 'the jobs of a queue');
select is(pg_temp.listed('state => ''scheduled'''), '6,5', 'the jobs in a state');
select is(pg_temp.listed('''other'', ''available'''), '8,7', 'the jobs of a queue in a state');
select is(pg_temp.listed('type => ''list.even'''), '8,6,4,2', 'the jobs of a type');
select is(pg_temp.listed('type => ''list.*'', state => ''pending'''), '4', 'the jobs of types that begin so');
select is(pg_temp.listed('max => 3'), '8,7,6', 'a page');
select is(pg_temp.listed('max => 3, after => ' || quote_literal(id)), '5,4,3', 'the page after it') from j where n = 6;
select is(pg_temp.listed('after => ' || quote_literal(id)), null, 'after the last page there is nothing') from j
    where n = 1;

-- Each state from where its jobs are.
select ojs.claim('list', 'w', 1) \g /dev/null
select is(pg_temp.listed('state => ''active'''), '1', 'active: those that are held');
select ojs.ack(id) from j where n = 1 \g /dev/null
select is(pg_temp.listed('state => ''completed'''), '1', 'completed');
select ojs.claim('list', 'w', 1) \g /dev/null
select ojs.fail(id, '{"type": "x", "message": "y"}') from j where n = 2 \g /dev/null
select is(pg_temp.listed('state => ''retryable'''), '2', 'retryable');
select ojs.cancel(id) from j where n = 3 \g /dev/null
select ojs.discard(id) from j where n = 4 \g /dev/null
select is(pg_temp.listed('state => ''cancelled'''), '3', 'cancelled');
select is(pg_temp.listed('state => ''discarded'''), '4', 'discarded');
select is(pg_temp.listed('''list'''), '6,5,4,3,2,1', 'a queue''s jobs whatever their state');
select is(l::text, j::text, 'each job as it stands') from ojs.list_jobs('list') l join ojs.jobs j using (id);
set local ojs.clock_offset = '7d';
select is(pg_temp.listed('state => ''scheduled'''), null, 'what has fallen due is no longer scheduled');
select is(pg_temp.listed('''list'', ''available'''), '6,5,2', 'it is available');
reset ojs.clock_offset;

-- Refused.
select is(pg_temp.refusal(format('select ojs.list_jobs(%s)', args)), 'OJ100 INVALID_PAYLOAD ' || field,
    'refused: ' || args)
from (values ('state => ''asleep''', 'state'), ('max => 0', 'max'), ('max => 1001', 'max'), ('max => null', 'max'),
    ('after => ''x''', 'after'), ('after => ''1''', 'after')) bad(args, field);
select matches(pg_temp.refusal('select ojs.list_jobs(''nowhere'')'), 'NOT_FOUND', 'a queue that does not exist');

-- What is large comes on more pages.
select ojs.push('list.large', jsonb_build_array(repeat(md5(n::text), 28000)), queue => 'large')
    from generate_series(1, 20) n \g /dev/null
select cmp_ok(count(*), '<', 20::bigint, 'a page is bounded in bytes') from ojs.list_jobs('large');
with recursive pages as (
    select array(select id from ojs.list_jobs('large')) as ids
    union all
    select array(select id from ojs.list_jobs('large', after => ids[cardinality(ids)]::text)) from pages
        where cardinality(ids) > 0
)
select is((select count(*) from pages, unnest(ids)), 20::bigint, 'and the pages together have all');

select * from finish();
rollback;
