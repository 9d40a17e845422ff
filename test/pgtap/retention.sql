-- retention.sql: what is removed when, and what never is: QC-05, QC-02, QC-03, DLQ-08, UNQ-23, EVT-06, Q-24, R-74. At
-- once with retries and pushes: test/specs/retention.spec.
begin;
select no_plan();
\ir helpers.psql

create temp table named (name text, id uuid);
-- A job that ended so, under a name.
create function pg_temp.ended(name text, queue text, how text, options jsonb default '{}') returns void
    language plpgsql as $$
declare
    id uuid := pg_temp.pushed(queue, options);
begin
    case how
    when 'completed' then perform ojs.claim(queue, 'w', 100); perform ojs.ack(id);
    when 'cancelled' then perform ojs.cancel(id);
    when 'discarded' then perform ojs.discard(id);
    when 'dead' then perform ojs.claim(queue, 'w', 100);
        perform ojs.fail(id, '{"code": "DEAD_LETTER", "type": "t", "message": "m"}');
    when 'active' then perform ojs.claim(queue, 'w', 100, lease => '1 hour');
    else null;
    end case;
    insert into named values (name, id);
end $$;
-- The names of those that are there at that time, after a tick.
create function pg_temp.kept(ahead interval) returns text language sql as $$
    select pg_temp.clock(ahead);
    select ojs.tick();
    select coalesce(string_agg(name, ' ' order by name), '') from named n
        where exists (select from ojs_store.job j where j.id = n.id);
$$;
-- Back to now, where no sweep has been.
create function pg_temp.anew() returns void language sql as $$
    select pg_temp.clock('0');
    update ojs_store.retention_cursor set at = '-infinity';
    delete from named;
$$;
-- Rows of any table that name a job which is not there; these tables tell of such by intent.
create function pg_temp.orphans() returns text language plpgsql as $$
declare
    one regclass;
    n bigint;
    found text;
begin
    for one in select a.attrelid from pg_attribute a join pg_class c on c.oid = a.attrelid
        where c.relnamespace = 'ojs_store'::regnamespace and c.relkind = 'r' and a.attname = 'job_id'
            and c.relname not in ('lease_log', 'deduplication') order by c.relname loop
        execute format('select count(*) from %s t where not exists (select from ojs_store.job j where j.id = '
                       't.job_id)', one) into n;
        found := concat_ws(' ', found, case when n > 0 then one::text end);
    end loop;
    select count(*) into n from ojs_store.unique_key u,
        unnest(u.past) p where not exists (select from ojs_store.job j where j.id = p);
    return concat_ws(' ', found, case when n > 0 then 'past' end);
end $$;

-- By state and queue -------------------------------------------------------------------------------------------------

select is(ojs.create_queue('brief',
    '{"retention": {"completed": "PT1H", "discarded": "PT2H", "cancelled": "PT3H"}}') #>> '{config,retention}',
    '{"cancelled": "PT3H", "completed": "PT1H", "discarded": "PT2H"}', 'QC-02: stored'),
    is(ojs.create_queue('std') #>> '{config,dead_letter_ttl}', 'P180D', 'DLQ-08: the default is shown'),
    is(ojs.create_queue('std') #> '{config,dead_letter_max_size}', '10000', 'DLQ-08: and that of the number');
select pg_temp.ended('b-' || how, 'brief', how), pg_temp.ended('s-' || how, 'std', how),
    pg_temp.ended('z-' || how, 'brief', how)
from unnest('{completed,cancelled,discarded,available}'::text[]) how \g /dev/null
select pg_temp.ended('s-active', 'std', 'active'), pg_temp.ended('s-dead', 'std', 'dead') \g /dev/null
select pg_temp.held('std') as reported \gset
select ojs.progress(:'reported', 0.5), ojs.checkpoint(:'reported', '1'), ojs.ack(:'reported') \g /dev/null
delete from named where name like 'z-%';
select is(pg_temp.kept('59 min'),
    'b-available b-cancelled b-completed b-discarded s-active s-available s-cancelled s-completed s-dead s-discarded',
    'QC-05: nothing before its time'),
    is(pg_temp.kept('63 min'),
        'b-available b-cancelled b-discarded s-active s-available s-cancelled s-completed s-dead s-discarded',
        'QC-02: completed jobs of a queue that keeps them for an hour'),
    is(pg_temp.kept('124 min'),
        'b-available b-cancelled s-active s-available s-cancelled s-completed s-dead s-discarded',
        'QC-02: discarded ones'),
    is(pg_temp.kept('184 min'), 'b-available s-active s-available s-cancelled s-completed s-dead s-discarded',
        'QC-02: cancelled ones'),
    is(pg_temp.kept('6 days 23 h'), 'b-available s-active s-available s-cancelled s-completed s-dead s-discarded',
        'R-74: by default all are kept for days'),
    is(pg_temp.kept('7 days 1 min'), 'b-available s-active s-available s-dead s-discarded',
        'R-74: completed and cancelled ones for 7'),
    is(pg_temp.kept('29 days 23 h'), 'b-available s-active s-available s-dead s-discarded',
        'R-74: discarded ones longer'),
    is(pg_temp.kept('30 days 1 min'), 'b-available s-active s-available s-dead',
        'R-74: for 30; dead letters are none of these'),
    is(pg_temp.kept('179 days'), 'b-available s-active s-available s-dead', 'DLQ-08: they stay'),
    is(pg_temp.kept('180 days 1 min'), 'b-available s-active s-available', 'DLQ-08: for 180 days');
select is((select data from ojs_store.stored_event where type = 'dead_letter.pruned'), '{"queue": "std", "count": 1}',
    'DLQ-08: an event says how many');
select is(pg_temp.kept('10000 days'), 'b-available s-active s-available',
    'QC-05: what is not finished is never touched');
select is(pg_temp.orphans(), '', 'QC-05: nothing of them is left'),
    is((select count(*) from ojs_store.finished) + (select count(*) from ojs_store.dead_letter), 0::bigint,
    'QC-05: nothing at all');
select is((select completed + cancelled + discarded from ojs.queue_stats('brief')), 0::bigint,
    'QC-05: the counts know');
select is(pg_temp.refusal(format('select ojs.info(%L)', id)), 'OJ300 NOT_FOUND', 'QC-05: a removed job is unknown')
    from named where name = 's-dead';
select pg_temp.anew() \g /dev/null

-- Where it is said ---------------------------------------------------------------------------------------------------

select ojs.configure_queue('_default', '{"retention": {"completed": "PT10M"}}') is null as set,
    ojs.configure_queue('brief', '{"retention": {"cancelled": "PT1H"}}') is null as set \gset
select pg_temp.ended('b-completed', 'brief', 'completed'), pg_temp.ended('b-cancelled', 'brief', 'cancelled'),
    pg_temp.ended('n-completed', 'new', 'completed'), pg_temp.ended('n-cancelled', 'new', 'cancelled') \g /dev/null
select is(pg_temp.kept('11 min'), 'b-cancelled n-cancelled',
    'QC-03: the default policy holds where a queue does not say'),
    is(pg_temp.kept('61 min'), 'n-cancelled', 'QC-03: member by member'),
        is(pg_temp.kept('8 days'), '', 'QC-03: the system''s behind both');
select ojs.configure_queue('_default', '{"retention": null}') is null as set \gset
select pg_temp.anew() \g /dev/null
select pg_temp.ended('later', 'brief', 'completed') \g /dev/null
select is(pg_temp.kept('11 min'), 'later', 'QC-03: set back')
    where ojs.configure_queue('brief', '{"retention": null}') is not null;
select is(pg_temp.kept('12 min'), '', 'QC-03: a change holds for what is there')
    where ojs.configure_queue('brief', '{"retention": {"completed": "PT1M"}}') is not null;
select pg_temp.anew() \g /dev/null
select pg_temp.ended('completed', 'none', 'completed'),
    pg_temp.ended('discarded', 'none', 'discarded') where ojs.create_queue('none',
    '{"retention": {"completed": "PT0S", "discarded": "PT0S"}}') is not null \g /dev/null
select is((select string_agg(name, ' ') from named n join ojs_store.job using (id)), 'discarded',
    'R-23: a completed job that is not kept goes with its ack'),
    is(pg_temp.kept('0'), '', 'QC-02: others with the next tick');
select pg_temp.anew() \g /dev/null

-- Dead letters -------------------------------------------------------------------------------------------------------

select ojs.create_queue('few', '{"dead_letter_max_size": 2}') is null as made,
    ojs.create_queue('short', '{"dead_letter_ttl": "PT1H", "dead_letter_max_size": 0}') is null as made \gset
do $$ begin
    for i in 1 .. 4 loop
        perform pg_temp.clock(i * interval '1 second');
        perform pg_temp.ended('few' || i, 'few', 'dead'), pg_temp.ended('short' || i, 'short', 'dead');
    end loop;
end $$;
select is((select count(*) from ojs.dead_letters), 8::bigint, 'DLQ-03: listed');
select is(pg_temp.kept('2 min'), 'few3 few4 short1 short2 short3 short4', 'DLQ-08: beyond the number the oldest go');
select is((select data ->> 'count' from ojs_store.stored_event where type = 'dead_letter.pruned' and subject = 'few'),
    '2', 'DLQ-08: as an event says');
select is(state, 'available', 'DLQ-04: one is retried') from ojs.retry((select id from named where name = 'few3'));
select is(pg_temp.kept('61 min'), 'few3 few4', 'DLQ-08: after their time');
select is((select string_agg(name, ' ') from ojs.dead_letters join named using (id)), 'few4',
    'DLQ-05: a retried job is none any more');
select is(pg_temp.kept('8 days'), 'few3 few4', 'DLQ-08: each by its own queue''s settings'),
    is(pg_temp.orphans(), '', 'DLQ-08: nothing is left of the others');
select ok(ojs.delete_job(id), 'DLQ-06: deleted') from named where name = 'few4';
select is((select count(*) from ojs_store.dead_letter), 0::bigint, 'DLQ-06: and listed no more');
select pg_temp.anew() \g /dev/null

-- Uniqueness ---------------------------------------------------------------------------------------------------------

create function pg_temp.unique_job(name text, how text, policy jsonb) returns void language sql as
$$ select pg_temp.ended(name, 'unique-' || name, how, jsonb_build_object('unique',
    '{"keys": ["type", "queue"]}' || policy)) $$;
select pg_temp.unique_job('days', 'completed', '{"states": ["available", "completed"], "period": "P10D"}'),
    pg_temp.unique_job('ever', 'completed', '{"states": ["available", "completed"]}'),
    pg_temp.unique_job('live', 'completed', '{"period": "P10D"}'),
    pg_temp.unique_job('ended', 'cancelled', '{"states": ["available", "completed"]}'),
    pg_temp.unique_job('dead', 'dead', '{"states": ["available", "discarded"], "period": "P200D"}') \g /dev/null
select is(pg_temp.kept('8 days'), 'days dead ever', 'UNQ-23: what a job''s own policy counts is kept while it does'),
    alike(pg_temp.refusal($$ select pg_temp.unique_job('days', 'available',
        '{"states": ["available", "completed"], "period": "P10D"}') $$), 'OJ%DUPLICATE_JOB%',
        'UNQ-23: and is in the way'),
    is(pg_temp.kept('10 days 1 min'), 'dead ever', 'UNQ-23: until its period is over'),
    is(pg_temp.kept('190 days'), 'dead ever', 'UNQ-23: a dead letter, too'),
        is(pg_temp.kept('201 days'), 'ever', 'UNQ-23: then it goes'),
    is(pg_temp.kept('10000 days'), 'ever', 'UNQ-23: without a period for good');
select is(pg_temp.orphans(), '', 'UNQ-23: no key names a job that is gone'),
    is((select count(*) from ojs_store.unique_key), 1::bigint, 'UNQ-23: keys of none are gone');
-- One of several jobs of a key.
select pg_temp.anew() \g /dev/null
select pg_temp.unique_job('key', how, '{}') from unnest('{completed,cancelled,available}'::text[]) how \g /dev/null
select is((select cardinality(past) from ojs_store.unique_key u join named n on u.job_id = n.id), 2,
    'UNQ-23: a key with a past');
select is(pg_temp.kept('8 days'), 'key', 'UNQ-23: which goes');
select is((select past from ojs_store.unique_key u join ojs_store.job j on j.id = u.job_id
    join named n on n.id = j.id), '{}', 'UNQ-23: from the key, too');
select ojs.cancel(id) is null as cancelled from ojs.jobs where queue = 'unique-key' and state = 'available' \g /dev/null
select is(pg_temp.kept('16 days'), '', 'UNQ-23: the last one');
select is((select count(*) from ojs_store.unique_key), 1::bigint, 'UNQ-23: and the key with it');
select pg_temp.anew() \g /dev/null
select pg_temp.ended('gone', 'at-once', 'completed', '{"unique": {"keys": ["type", "queue"]}}')
    where ojs.create_queue('at-once', '{"delete_on_ack": true}') is not null \g /dev/null
select is(pg_temp.kept('1 hour'), '', 'R-23: deleted by its ack');
select is((select count(*) from ojs_store.unique_key), 1::bigint, 'UNQ-23: its key by a tick');

-- In small steps -----------------------------------------------------------------------------------------------------

select pg_temp.anew() \g /dev/null
select count(pg_temp.ended('many', 'many', 'cancelled')) as made from generate_series(1, 25) \gset
select pg_temp.clock('8 days') \g /dev/null
select is(t ->> 'jobs_removed', '10', 'PGX-05: at most budget jobs'),
    is(t ->> 'more', 'true', 'PGX-05: and it says that there are more') from ojs.tick(10) t;
select is((select sum((ojs.tick(10) ->> 'jobs_removed')::int) from generate_series(1, 3)), 15::bigint,
    'PGX-05: the rest'),
    is(pg_temp.orphans(), '', 'QC-05: nothing is left');
select is(ojs.tick() ->> 'jobs_removed', '0', 'QC-05: nothing to do');

-- What it costs ------------------------------------------------------------------------------------------------------

select pg_temp.anew() \g /dev/null
create function pg_temp.cost_of_tick(out records int, out pages int) language plpgsql as $$
declare
    plan json;
begin
    execute 'explain (analyze, buffers, wal, format json) select ojs.tick()' into plan;
    records := plan #>> '{0,Plan,WAL Records}';
    pages := plan #>> '{0,Plan,Shared Hit Blocks}';
end $$;
select count(*) as pushed from ojs.push_many((select jsonb_agg('{"type": "t", "queue": "plain", "args": []}'::jsonb)
    from generate_series(1, 500))) \gset
select done from ojs.ack_many('w', array(select id from ojs.claim('plain', 'w', 500))) \g /dev/null
select records as idle_records, pages as idle_pages from pg_temp.cost_of_tick() \gset
select pg_temp.clock('8 days') \g /dev/null
select records, pages from pg_temp.cost_of_tick() \gset
select is((select count(*) from ojs_store.job j join ojs_store.queue q on q.id = j.queue where q.name = 'plain'),
    0::bigint, 'PGX-05: 500 jobs go in one tick');
select cmp_ok(:records - :idle_records, '<=', 2 * 500 + 50, 'PGX-05: by two records of the log for a job');
select cmp_ok(:pages - :idle_pages, '<=', 12 * 500, 'PGX-05: and by few pages');

-- One that was tried twice, and reported, takes its history and its reports with it.
select pg_temp.anew() \g /dev/null
select pg_temp.held('tried') as tried \gset
select ojs.progress(:'tried', 0.5), ojs.fail(:'tried', '{"type": "t", "message": "m"}') \g /dev/null
select pg_temp.clock('1 hour'), ojs.tick() \g /dev/null
select ojs.ack(id) from ojs.claim('tried', 'w') \g /dev/null
select is((select count(*) from ojs_store.job_history where job_id = :'tried'), 1::bigint, 'QC-05: a job with a past');
-- And one whose first failure is its last, since a retry would not fit (RET-15).
select pg_temp.held('late',
    options => '{"total_timeout": 100, "retry": {"initial_interval": "PT1H", "max_interval": "PT1H"}}') as late \gset
select ojs.fail(:'late', '{"type": "t", "message": "m"}') \g /dev/null
select is((select count(*) from ojs_store.job_history where job_id = :'late'), 1::bigint,
    'QC-05: so has one that had no time for a retry');
select pg_temp.clock('40 days'), ojs.tick() \g /dev/null
select is(pg_temp.orphans(), '', 'QC-05: goes with it'),
    is((select count(*) from ojs_store.job where id in (:'tried', :'late')), 0::bigint, 'QC-05: both are gone');

-- What tells of jobs -------------------------------------------------------------------------------------------------

select pg_temp.anew() \g /dev/null
update ojs_store.retention_cursor set removed_to = null;
select ojs.events(max => 1000) ->> 'cursor' as cursor \gset
select pg_temp.ended('told', 'told', 'completed') \g /dev/null
select is(ojs.events(:'cursor') -> 'missed', null, 'EVT-06: nothing has been removed since');
select is(pg_temp.kept('8 days'), '', 'EVT-06: a job goes');
select is(ojs.events(:'cursor') -> 'missed', 'true',
    'EVT-06 EVT-05: a cursor that may have passed over its events says so'),
    is(ojs.events() -> 'missed', null, 'EVT-06: who begins has missed nothing');
update ojs_store.retention_cursor set removed_to = removed_to - interval '1 day';
select is(ojs.events(:'cursor') -> 'missed', null, 'EVT-06: nor who had read on');
update ojs_store.retention_cursor set removed_to = null;
select pg_temp.anew() \g /dev/null
select ojs.events() ->> 'cursor' as cursor, ojs.pause_queue('told') \gset
select pg_temp.clock('8 days') \g /dev/null
select ok((ojs.tick() ->> 'events_removed')::int > 0, 'EVT-06: an event with a row of its own goes');
select is(ojs.events(:'cursor') -> 'missed', 'true', 'EVT-06: the same');

select pg_temp.anew() \g /dev/null
select ojs.create_queue('logged', '{"lease_log": true}') is null as made \gset
select pg_temp.ended('logged', 'logged', 'completed') \g /dev/null
select pg_temp.kept('6 days') \g /dev/null
select is((select count(*) from ojs.lease_log), 2::bigint, 'Q-24: the lease log is kept as long as events');
select pg_temp.kept('7 days 9 h') \g /dev/null
select is((select count(*) from ojs.lease_log), 0::bigint, 'Q-24: and no longer');

-- A queue's name goes when nothing is left that bears it.
select pg_temp.anew() \g /dev/null
select pg_temp.ended('last', 'dropped', 'completed'), pg_temp.ended('other', 'staying', 'completed') \g /dev/null
select ojs.drop_queue('dropped') \g /dev/null
select is(pg_temp.kept('6 days'), 'last other', 'QC-04: the jobs of a dropped queue are kept');
select is((select count(*) from ojs_store.queue where name = 'dropped'), 1::bigint, 'QC-04: and so is its name');
select is(pg_temp.kept('8 days'), '', 'QC-05: which go by the default');
select pg_temp.ended('again', 'staying', 'completed') \g /dev/null
select pg_temp.kept('16 days') \g /dev/null
select is((select count(*) from ojs_store.queue where name = 'dropped'), 0::bigint, 'QC-04: then it goes');
select pg_temp.anew() \g /dev/null

-- A standby or a long transaction aside, nobody need be privileged for it.
select is((select count(*) from pg_proc where pronamespace = 'ojs_store'::regnamespace
    and has_function_privilege('public', oid, 'execute')), 0::bigint, 'PGX-12: nobody else removes jobs');

-- A clock that is set back does not stop it.
select ojs.create_queue('set.back', '{"retention": {"completed": "PT1S"}}') is null \g /dev/null
select pg_temp.clock('30 days') \g /dev/null
select ojs.tick() is null \g /dev/null
select pg_temp.clock('1 day') \g /dev/null
select pg_temp.held('set.back') as before \gset
select is((select state from ojs.ack(:'before')), 'completed', 'a job ends');
select pg_temp.clock('1 day 1 minute') \g /dev/null
select ojs.tick() is null \g /dev/null
select is((select count(*) from ojs.jobs where id = :'before'), 0::bigint, 'QC-05: after the clock was set back, too');

-- The names of many dropped queues go, and none that a finished job still bears.
select pg_temp.anew() \g /dev/null
select pg_temp.ended('kept', 'bearing', 'dead') \g /dev/null
select ojs.create_queue('empty-' || n) is null from generate_series(1, 150) n \g /dev/null
select ojs.drop_queue(name) from (select 'bearing' union all select 'empty-' || n
    from generate_series(1, 150) n) q(name) \g /dev/null
select pg_temp.clock(make_interval(days => 30 + n)), pg_temp.ended('e' || n, 'staying', 'completed'),
    ojs.tick() from generate_series(1, 3) n \g /dev/null
select is((select string_agg(name, ' ') from ojs_store.queue where name ~ '^(empty-|bearing)'), 'bearing',
    'QC-04: names of dropped queues go, a hundred in a round');
select pg_temp.anew() \g /dev/null

select * from finish();
rollback;
