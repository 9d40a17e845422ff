-- events.sql: what happened: EVT-01 to EVT-07, R-61, R-62, INT-02. It commits: events are read once they are settled.
select no_plan();
\ir helpers.psql
set client_min_messages = warning;
\o /dev/null

-- Everything from here on.
select ojs.events(max => 1) is null as warmed;
create temp table page (n serial, event jsonb);
create temp table place (cursor text);
insert into place values (null);

-- Reads on from where the last reading ended, in pages of `max`, once no other session has anything older open.
create function pg_temp.read_on(max int default 1000, types text[] default null) returns void language plpgsql as $$
declare
    reply jsonb;
    newest xid8 := coalesce(pg_current_xact_id_if_assigned(), pg_snapshot_xmax(pg_current_snapshot()));
begin
    for i in 1..1000 loop
        exit when pg_snapshot_xmin(pg_current_snapshot()) >= newest;
        perform pg_sleep(0.01);
    end loop;
    loop
        reply := ojs.events((select cursor from place), types, max => max);
        insert into page (event) select e from jsonb_array_elements(reply -> 'events') with ordinality as a(e, i)
            order by i;
        update place set cursor = reply ->> 'cursor';
        exit when not (reply -> 'has_more')::boolean;
    end loop;
end $$;
-- The types of a job's events, in the order in which they were read first.
create function pg_temp.life(job uuid) returns text language sql as $$
    select string_agg(type, ' ' order by first) from (
        select event ->> 'type' as type, min(n) as first from page where event ->> 'subject' = job::text
            group by event ->> 'id', event ->> 'type') e
$$;
create function pg_temp.data(job uuid, type text) returns jsonb language sql as
$$ select event -> 'data' from page where event ->> 'subject' = job::text and event ->> 'type' = $2 order by n
    limit 1 $$;

select pg_temp.read_on();
truncate page;

-- A life of each kind -------------------------------------------------------------------------------------------------

select id as done from ojs.push('mail.send', '[1]', queue => 'ev', meta => '{"trace_id": "4bf9"}') \gset
select id from ojs.claim('ev', 'w1');
\o
select pg_temp.read_on() is null as read \gset
select is(pg_temp.life(:'done'), 'job.enqueued job.started', 'EVT-03: a job that runs');
select is(pg_temp.data(:'done', 'job.started'), jsonb_build_object('job_id', :'done', 'job_type', 'mail.send', 'queue',
    'ev', 'state', 'active', 'trace_id', '4bf9',
    'worker_id', 'w1', 'attempt', 1), 'EVT-02: job.started');
select is(pg_temp.data(:'done', 'job.enqueued'), jsonb_build_object('job_id', :'done', 'job_type', 'mail.send',
    'queue', 'ev', 'state', 'available', 'trace_id', '4bf9'), 'EVT-02: job.enqueued');
\o /dev/null
select * from ojs.beat('w1', array[:'done']::uuid[]);
\o
select pg_temp.read_on() is null as read \gset
select is(pg_temp.life(:'done'), 'job.enqueued job.started job.heartbeat', 'EVT-03: and whose worker beats');
select ok((d ->> 'visible_until')::timestamptz > now() and d ->> 'worker_id' = 'w1', 'EVT-02: job.heartbeat')
    from pg_temp.data(:'done', 'job.heartbeat') d;
\o /dev/null
select ojs.progress(:'done', 0.655, 'Row 655 of 1000', '{"secret": 1}');
\o
select pg_temp.read_on() is null as read \gset
select is(pg_temp.life(:'done'), 'job.enqueued job.started job.heartbeat job.heartbeat job.progress',
    'EVT-03 PRG-04: and reports progress, a heartbeat as well');
select is(pg_temp.data(:'done', 'job.progress'), jsonb_build_object('job_id', :'done', 'job_type', 'mail.send',
    'queue', 'ev', 'state', 'active', 'trace_id', '4bf9',
    'worker_id', 'w1', 'attempt', 1, 'progress_percent', 65.5, 'progress_message', 'Row 655 of 1000'),
        'EVT-02: job.progress');
\o /dev/null
truncate page;
select ojs.progress(:'done', 0.7);
\o
select pg_temp.read_on() is null as read \gset
select is(pg_temp.data(:'done', 'job.progress') -> 'progress_percent', '70',
    'EVT-03: each report that is the last one at a reading');
\o /dev/null
truncate page;
select ojs.ack(:'done', '{"n": null}');
select id as dead from ojs.push('test.dead', '[2]', queue => 'ev',
    retry => '{"max_attempts": 2, "initial_interval": "PT1S", "jitter": false, "on_exhaustion": "dead_letter"}') \gset
select id from ojs.claim('ev', 'w1');
select ojs.fail(:'dead', '{"type": "Net", "message": "no answer", "backtrace": ["a:1", "b:2"]}');
set ojs.clock_offset = '3s';
select id from ojs.claim('ev', 'w1');
select ojs.fail(:'dead', '{"type": "Net", "message": "again"}');
reset ojs.clock_offset;
select id as cancelled from ojs.push('t', queue => 'ev', delay => '1 hour') \gset
select ojs.cancel(:'cancelled');
select id as expired from ojs.push('t', queue => 'ev.old', expires_at => now() + interval '2 s') \gset
set ojs.clock_offset = '3s';
select ojs.tick();
reset ojs.clock_offset;
select id as given_back from ojs.push('t', queue => 'ev.back') \gset
select ojs.nack(id) from ojs.claim('ev.back', 'w1');
select id as lapsed from ojs.push('t', queue => 'ev.lapse') \gset
select id from ojs.claim('ev.lapse', 'w1', lease => '1 s');
set ojs.clock_offset = '3s';
select ojs.tick();
reset ojs.clock_offset;
select id as pending from ojs.push('t', queue => 'ev.pending', pending => true) \gset
select ojs.activate(:'pending');
select id as later from ojs.push('t', queue => 'ev.later', delay => '1 s') \gset
set ojs.clock_offset = '3s';
select ojs.ack(id) from ojs.claim('ev.later', 'w1');
reset ojs.clock_offset;
select id as single from ojs.push('t', queue => 'ev.single', options => '{"delivery": "at_most_once"}') \gset
select ojs.fail(id, '{"type": "E", "message": "m"}') from ojs.claim('ev.single', 'w2');
select id as revived from ojs.push('t', queue => 'ev.revived', retry => '{"max_attempts": 1}') \gset
select ojs.fail(id, '{"type": "E", "message": "m"}') from ojs.claim('ev.revived', 'w2');
select ojs.retry(:'revived');
-- Timeouts: an attempt, silence, waiting, all in all; the second in the last attempt.
select id as timed_out from ojs.push('t', queue => 'ev.timeout', timeout => '5 s', retry => '{"jitter": false}') \gset
select id from ojs.claim('ev.timeout', 'w3', lease => '1 hour');
select id as stalled from ojs.push('t', queue => 'ev.stalled', retry => '{"max_attempts": 1}',
    options => '{"heartbeat_timeout": 4}') \gset
select id from ojs.claim('ev.stalled', 'w3', lease => '1 hour');
select ojs.beat('w3', array[:'stalled'::uuid]);
select id as unstarted from ojs.push('t', queue => 'ev.ttl', options => '{"enqueue_ttl": 3}') \gset
select id as too_long from ojs.push('t', queue => 'ev.total', options => '{"total_timeout": 3}') \gset
select id as own_words from ojs.push('t', queue => 'ev.own') \gset
select ojs.fail(id, '{"type": "timeout", "message": "its own"}') from ojs.claim('ev.own', 'w3');
set ojs.clock_offset = '6s';
select ojs.tick();
reset ojs.clock_offset;
select ojs.pause_queue('ev');
select ojs.resume_queue('ev');
\o
select pg_temp.read_on(3) is null as read \gset
select is(pg_temp.life(:'done'), 'job.started job.completed', 'EVT-04: completed; started once more, by the same id');
select is(pg_temp.data(:'done', 'job.started') ->> 'worker_id', 'w1',
    'EVT-02: job.started says by whom, after the end too');
select is(pg_temp.life(:'dead'),
    'job.enqueued job.started job.failed job.retrying job.started job.failed job.discarded dead_letter.added',
    'INT-02: exhaustion: failed, discarded, dead_letter.added; and EVT-04: failed before retrying');
select is(pg_temp.life(:'cancelled'), 'job.scheduled job.cancelled', 'EVT-03: scheduled, cancelled');
select is(pg_temp.life(:'expired'), 'job.enqueued job.expired job.discarded',
    'EVT-03: expired; R-61: discarded as well');
select is(pg_temp.life(:'given_back'), 'job.enqueued job.started job.enqueued', 'EVT-04: given back');
select is(pg_temp.life(:'lapsed'), 'job.enqueued job.started job.failed job.enqueued',
    'EVT-04: a lapsed lease is a failed attempt');
select is(pg_temp.life(:'pending'), 'job.enqueued', 'EVT-03: pending, activated');
select is(pg_temp.life(:'later'), 'job.scheduled job.enqueued job.started job.completed',
    'EVT-03: scheduled; its turn shows with the first delivery');
select is(pg_temp.life(:'single'), 'job.enqueued job.started job.failed job.discarded', 'EVT-04: at most once');
select is(pg_temp.life(:'revived'), 'job.enqueued job.started job.failed job.discarded job.enqueued',
    'EVT-04: retried by hand: its first end is still told of');
select is(pg_temp.data(:'revived', 'job.started') ->> 'worker_id', 'w2', 'EVT-02: and by whom it was begun');
select is(pg_temp.life(:'timed_out'), 'job.enqueued job.started job.timeout job.failed job.retrying',
    'TMO-07: job.timeout'),
    is(pg_temp.life(:'stalled'), 'job.enqueued job.started job.stalled job.failed job.discarded',
        'TMO-07: job.stalled'),
    is(pg_temp.life(:'unstarted'), 'job.enqueued job.ttl_expired job.expired job.discarded', 'TMO-07: job.ttl_expired'),
    is(pg_temp.life(:'too_long'), 'job.enqueued job.total_timeout job.discarded', 'TMO-07: job.total_timeout'),
    is(pg_temp.life(:'own_words'), 'job.enqueued job.started job.failed job.retrying',
        'TMO-07: what a worker calls a timeout is a failure');
select is((pg_temp.data(:'timed_out', 'job.timeout') - '{job_id,elapsed_seconds}'::text[]),
    '{"job_type": "t", "queue": "ev.timeout", "state": "retryable", "timeout_kind": "execution", "limit_seconds": 5, '
    '"attempt": 1}', 'TMO-07: kind, limit and attempt'),
    is((pg_temp.data(:'timed_out', 'job.timeout') ->> 'elapsed_seconds')::numeric::int, 6,
        'TMO-07: and how long it was'),
    is(pg_temp.data(:'stalled', 'job.stalled') ->> 'state', 'discarded', 'TMO-07: and what became of it');
select is((select string_agg(event ->> 'type', ' ' order by n) from page where event ->> 'subject' = 'ev'),
    'queue.paused queue.resumed', 'EVT-03: queue events');

-- The data of each type -----------------------------------------------------------------------------------------------

create function pg_temp.keys(o jsonb) returns text language sql as
$$ select string_agg(k, ' ' order by k)
    from jsonb_object_keys(o - '{job_id,job_type,queue,state,trace_id}'::text[]) k $$;
select is((select string_agg(distinct event ->> 'type', ' ') from page where event ->> 'type' like 'job.%'
    and not event -> 'data' ?& '{job_id,job_type,queue,state}'), null,
    'EVT-02: each event of a job has job_id, job_type, queue and state');
select is(pg_temp.keys(pg_temp.data(:'done', 'job.completed')), 'attempt duration_ms result', 'EVT-02: job.completed'),
    is(pg_temp.data(:'done', 'job.completed') -> 'result', '{"n": null}', 'EVT-02: with the result as it is'),
    is(pg_temp.keys(pg_temp.data(:'dead', 'job.failed')), 'attempt duration_ms error', 'EVT-02: job.failed'),
    is(pg_temp.data(:'dead', 'job.failed') -> 'error',
        '{"code": "Net", "type": "Net", "message": "no answer", "retryable": true, "stack_trace": "a:1\nb:2"}',
        'EVT-02: its error'),
    is(pg_temp.keys(pg_temp.data(:'dead', 'job.retrying')), 'attempt error max_attempts next_retry_at',
        'EVT-02: job.retrying'),
    is(pg_temp.keys(pg_temp.data(:'dead', 'job.discarded')), 'last_error total_attempts', 'EVT-02: job.discarded'),
    is(pg_temp.data(:'dead', 'job.discarded') -> 'total_attempts', '2', 'EVT-02: attempts in total'),
    is(pg_temp.data(:'dead', 'job.discarded') #>> '{last_error,message}', 'again', 'EVT-02: the last error'),
    is(pg_temp.keys(pg_temp.data(:'expired', 'job.expired')), 'created_at expired_at ttl_ms', 'EVT-02: job.expired'),
    is(pg_temp.keys(pg_temp.data(:'cancelled', 'job.scheduled')), 'scheduled_at', 'EVT-02: job.scheduled'),
    is(pg_temp.data(:'given_back', 'job.started') -> 'attempt', '1',
        'EVT-02: an attempt that was given back was the first'),
    is(pg_temp.data(:'revived', 'job.failed') -> 'attempt', '1', 'EVT-02: an attempt before a manual retry too'),
    is(pg_temp.data(:'lapsed', 'job.failed') #>> '{error,code}', 'visibility_timeout', 'EVT-02: the error of a lapse');
select is((select array_agg(event ->> 'state' order by n)
    from (select event -> 'data' as event, n from page where event ->> 'subject' = :'dead') d),
    '{available,active,retryable,retryable,active,discarded,discarded,discarded}', 'EVT-02: state');

-- The envelope --------------------------------------------------------------------------------------------------------

select is((select string_agg(event ->> 'type', ' ') from page where event ->> 'specversion' <> '1.0'
    or event ->> 'id' !~ '^evt_[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$'
        or event ->> 'source' !~ '^ojs://[A-Za-z0-9._~%-]+/queues/[a-z0-9.-]+$'
            and event ->> 'type' <> 'worker.started' -- of the beat
    or event ->> 'time' !~ '^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$'), null, 'EVT-01: envelopes');
select is((select count(*) - count(distinct event ->> 'id') from page), 0::bigint, 'EVT-01: no id twice');
select is((select string_agg(event ->> 'type', ' ') from page
    where ('x' || translate(substr(event ->> 'id', 5, 13), '-', ''))::bit(48)::bigint
    <> floor(extract(epoch from (event ->> 'time')::timestamptz) * 1000)), null, 'EVT-01: ids begin with their time');
create temp table first_reading as select * from page;
truncate page;
update place set cursor = null;
select pg_temp.read_on(7) is null as read \gset
select is((select string_agg(f.event::text, ' ') from first_reading f where f.event ->> 'type' <> 'job.heartbeat'
    and f.event not in (select event from page)), null,
    'EVT-01: an event reads the same each time');
select is((select string_agg(event ->> 'id', ' ') from page where event ->> 'id' not in (select id from ojs.events)),
    null, 'EVT-01: and in the view');
select is((select jsonb_build_object('specversion', v.specversion, 'id', v.id, 'type', v.type, 'source', v.source,
    'time', event -> 'time', 'subject', v.subject, 'data', v.data) from ojs.events v
    where v.id = event ->> 'id' and v.time = (event ->> 'time')::timestamptz), event,
        'EVT-01: which has the same envelope: ' || (event ->> 'type')) from page where event ->> 'subject' = :'dead';

-- Cursors and filters -------------------------------------------------------------------------------------------------

select is(ojs.events((select cursor from place)) -> 'events', '[]', 'EVT-05: nothing after the end');
select is(ojs.events((select cursor from place)) -> 'has_more', 'false', 'EVT-05: and no more');
select is((select string_agg(n::text, ' ') from (select n, event = lag(event) over (order by n) as same from page) p
    where same), null, 'EVT-05: pages do not overlap');
select is((select count(*) from jsonb_array_elements(ojs.events(max => 5000) -> 'events')),
    least(1000, (select count(*) from page)), 'EVT-05: at most 1000'),
    is(jsonb_array_length(ojs.events(max => 0) -> 'events'), 1, 'EVT-05: at least 1'),
    is(jsonb_array_length(ojs.events(max => null) -> 'events'), least(100, (select count(*)::int from page)),
        'EVT-05: 100 by default');
create function pg_temp.types_of(reply jsonb) returns text language sql as
$$ select string_agg(distinct e ->> 'type', ' ') from jsonb_array_elements(reply -> 'events') e $$;
select is(pg_temp.types_of(ojs.events(types => '{job.completed,job.failed}', max => 1000)), 'job.completed job.failed',
    'EVT-05: types'),
    is(pg_temp.types_of(ojs.events(types => '{queue.*}', max => 1000)), 'queue.paused queue.resumed',
        'EVT-05: types by prefix'),
    is(pg_temp.types_of(ojs.events(types => '{job.c*}', queues => '{ev}', max => 1000)), 'job.cancelled job.completed',
        'EVT-05: types and queues'),
    is(pg_temp.types_of(ojs.events(types => '{nothing}', max => 1000)), null, 'EVT-05: an unknown type'),
    is(pg_temp.types_of(ojs.events(job_types => '{mail.*}', types => '{job.started}', max => 1000)), 'job.started',
        'EVT-05: job types'),
    is(pg_temp.types_of(ojs.events(queues => '{ev.single}', max => 1000)),
        'job.discarded job.enqueued job.failed job.started', 'EVT-05: queues'),
    is(ojs.events(types => '{nothing}') ->> 'cursor' <> '', true, 'EVT-05: a cursor even so');
select is(pg_temp.refusal(format('select ojs.events(%L)', c)), 'OJ100 INVALID_PAYLOAD after',
    'EVT-05: no cursor: ' || c)
from unnest('{x,1,1.2.3,"",evt_01a1fe99-be16-74cd-a499-38f1dce3eadd}'::text[]) c;

-- What is open is not passed over -------------------------------------------------------------------------------------

begin;
select id as mine from ojs.push('t', queue => 'ev.open') \gset
truncate page;
select pg_temp.read_on() is null as read \gset
select is(pg_temp.life(:'mine'), null, 'EVT-01: not before it is committed');
select is((select count(*) from ojs.events where job_id = :'mine'), 1::bigint,
    'EVT-01: the view shows what the statement sees');
commit;
select pg_temp.read_on() is null as read \gset
select is(pg_temp.life(:'mine'), 'job.enqueued', 'EVT-01: and then');
begin;
select ojs.push('t', queue => 'ev.never') is null as pushed \gset
rollback;
select is(pg_temp.types_of(ojs.events(queues => '{ev.never}')), null, 'EVT-01: never what was rolled back');

-- A savepoint has a transaction id of its own.
begin;
savepoint s;
select id as inside from ojs.push('t', queue => 'ev.open') \gset
release s;
commit;
select pg_temp.read_on() is null as read \gset
select is(pg_temp.life(:'inside'), 'job.enqueued', 'EVT-05: from a savepoint');

-- From the beginning, in small pages, job by job: every event once.
create temp table from_start (n serial, event jsonb);
select clock_timestamp() as begun \gset
do $$
declare
    reply jsonb := '{"has_more": true}';
begin
    while (reply ->> 'has_more')::boolean loop
        reply := ojs.events(reply ->> 'cursor', max => 7);
        insert into from_start (event) select e from jsonb_array_elements(reply -> 'events') e;
    end loop;
end $$;
select is((select count(*) from from_start), (select count(distinct event) from from_start),
    'a first reading in pages of 7 has each event once (EVT-05)');
select set_eq(format($$ select event ->> 'id' from from_start where event ->> 'type' <> 'job.heartbeat'
        and (event ->> 'time')::timestamptz < %L $$, :'begun'),
    format($$ select id from ojs.events where type <> 'job.heartbeat' and time < %L $$, :'begun'),
        'and all of them (EVT-05)');

-- Pages that are full where the jobs looked at together end, too.
select count(ojs.push('test.job', queue => 'single')) from generate_series(1, 5) \g /dev/null
select pg_temp.read_on() \g /dev/null
create temp table single (event text);
do $$
declare
    reply jsonb := '{"has_more": true}';
begin
    while (reply ->> 'has_more')::boolean loop
        reply := ojs.events(reply ->> 'cursor', queues => '{single}', max => 1);
        insert into single select e ->> 'id' from jsonb_array_elements(reply -> 'events') e;
    end loop;
end $$;
select is((select count(*) || ' ' || count(distinct event) from single), '5 5',
    'a first reading one by one has each event once (EVT-05)');

-- Indexes for those who read much -------------------------------------------------------------------------------------

create temp view event_indexes as
select string_agg(c.relname, ' ' order by c.relname) as names from pg_class c join pg_am a on a.oid = c.relam
where a.amname = 'brin' and c.relnamespace = 'ojs_store'::regnamespace;
select is(names, null, 'EVT-05: no job pays for indexes that only readers of events need') from event_indexes;
select ojs.events(max => 1000) -> 'events' as events_before \gset
select ojs.index_events(), ojs.index_events() \gset
select is(names, 'finished_finished_at job_created job_history_at', 'EVT-05: an administrator may have them')
    from event_indexes;
select is(ojs.events(max => 1000) -> 'events', :'events_before', 'EVT-05: and the events are the same');
select ojs.index_events(false) \gset
select is(names, null, 'EVT-05: and drops them again') from event_indexes;

-- Switched off, and retention -----------------------------------------------------------------------------------------

create function pg_temp.recorded() returns bigint language sql as $$ select count(*) from ojs.events
    where type like 'queue.%' $$;
select is(pg_temp.recorded(), 2::bigint, 'EVT-06: two events have rows of their own');
set ojs.max_events = 1;
select ojs.tick() is null as ticked \gset
select is((select string_agg(type, ' ') from ojs.events where type like 'queue.%'), 'queue.resumed',
    'EVT-06: the oldest goes where there are too many');
reset ojs.max_events;
set ojs.clock_offset = '6 d';
select ojs.tick() is null as ticked \gset
select is(pg_temp.recorded(), 1::bigint, 'EVT-06: kept for 6 days');
set ojs.clock_offset = '8 d';
select ojs.tick() ->> 'events_removed' as removed \gset
reset ojs.clock_offset;
select is(pg_temp.recorded(), 0::bigint, 'EVT-06: gone after 7 days');

set ojs.events_off = 'queue.*, worker.started';
select ojs.pause_queue('ev.open') is null as paused \gset
reset ojs.events_off;
select is(pg_temp.recorded(), 0::bigint, 'EVT-06: a type that is switched off gets no row');
\o /dev/null
select ojs.purge_queue(name, '{available,active,scheduled,completed,cancelled,discarded}', true) from ojs.queues
    where name like 'ev%';
-- From now on, and cursors of another history.
select ojs.events('now') ->> 'cursor' as from_now \gset
select ojs.push('now.job', queue => 'ev-now') is null as pushed \gset
\o
select is((select string_agg(e ->> 'type', ' ')
    from jsonb_array_elements(ojs.events(:'from_now', queues => '{ev-now}') -> 'events') e), 'job.enqueued',
    'now begins with what comes after (EVT-02)');
select is(jsonb_array_length(ojs.events('now') -> 'events'), 0, 'and has nothing yet (EVT-02)');
select is(pg_temp.refusal($$ select ojs.events('999999999999.1') $$), 'OJ100 INVALID_PAYLOAD after',
    'a cursor from the future is refused (EVT-02)');
begin isolation level repeatable read; -- which cannot know how old other transactions are, and keeps what it was given
select is(split_part(ojs.events('1.999999999999999999') ->> 'cursor', '.', 2), '999999999999999999',
    'the longest time in a cursor comes back as it was, so that it can be read again (EVT-02)');
commit;
select is(pg_temp.refusal($$ select ojs.events('٣.٣') $$), 'OJ100 INVALID_PAYLOAD after',
    'and one in other digits (EVT-02)');
\o /dev/null
select ojs.purge_queue('ev-now', confirm => true) is null as purged;
-- A page is bounded by bytes.
do $$
begin
    for i in 1 .. 12 loop
        perform ojs.push('now.big', queue => 'ev-big');
        perform ojs.ack(id, jsonb_build_object('blob',
            (select string_agg(md5(i || ' ' || j), '') from generate_series(1, 28000) j)))
            from ojs.claim('ev-big', 'w');
    end loop;
end $$;
\o
with recursive pages as (
    select 1 as n, ojs.events(:'from_now', types => '{job.completed}', queues => '{ev-big}', max => 1000) as page
    union all
    select n + 1, ojs.events(page ->> 'cursor', types => '{job.completed}', queues => '{ev-big}', max => 1000)
        from pages where (page ->> 'has_more')::boolean
)
select ok(count(*) > 1, 'large events come in several pages (EVT-02)'),
    is(sum(jsonb_array_length(page -> 'events')), 12::bigint, 'all of them (EVT-02)') from pages;
\o /dev/null

select ojs.drop_queue(name) from ojs.queues where name like 'ev%';
\o

-- Listeners are told of ids, so nothing else is read for them.
select is((select array_agg(distinct key)
    from jsonb_array_elements(ojs_store.read_events(null, null, null, null, 1000, true) -> 'events') e,
    jsonb_object_keys(e) key), '{id}',
    'EVT-07: a page for notices has ids only');
select is(ojs_store.read_events(null, null, null, null, 1000, true) #>> '{events,0,id}',
    ojs.events(max => 1000) #>> '{events,0,id}', 'EVT-07: those of ojs.events()');

-- A page of a dense second looks at a part of it, not at all of it for each page.
do $$ begin
    for i in 1 .. 3000 loop
        perform ojs.push('t', queue => 'ev.dense');
        commit;
    end loop;
end $$;
create function pg_temp.blocks(query text) returns bigint language plpgsql as $$
declare
    plan jsonb;
begin
    execute 'explain (analyze, buffers, format json) ' || query into plan;
    return (plan #>> '{0,Plan,Shared Hit Blocks}')::bigint + (plan #>> '{0,Plan,Shared Read Blocks}')::bigint;
end $$;
select ojs.index_events() \g /dev/null
select min(settled_by) || '.' || ojs_store.micros(min(written_at)) as first from ojs_store.all_events
    where queue = 'ev.dense' \gset
select ojs.events(:'first', queues => '{ev.dense}', max => 10) ->> 'cursor' as inside \gset
select is(jsonb_array_length(ojs.events(:'inside', queues => '{ev.dense}', max => 10) -> 'events'), 10,
    'EVT-05: a page of many events');
select cmp_ok(pg_temp.blocks(format('select ojs.events(%L, queues => ''{ev.dense}'', max => 10)', :'inside')) * 2, '<',
    pg_temp.blocks(format('select ojs.events(%L, queues => ''{ev.dense}'', max => 10)', :'first')),
    'EVT-05: after a full one does not look at all that happened about then');
select ojs.index_events(false) \g /dev/null

-- Nor are the data of all events made where only their times are asked for: a column that calls a volatile function
-- always is.
create function pg_temp.plan(query text) returns text language plpgsql as $$
declare
    line text;
    plan text := '';
begin
    for line in execute 'explain (verbose, costs off) ' || query loop
        plan := plan || line;
    end loop;
    return plan;
end $$;
select unalike(pg_temp.plan('select max(written_at) from ojs_store.all_events where settled_by > 0'),
    '%jsonb_build_object%',
    'EVT-02: what a reading begins with makes no data of events');

select * from finish();
