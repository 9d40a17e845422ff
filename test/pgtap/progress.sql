-- progress.sql: how far jobs have come: PRG-01 to PRG-04.
-- Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();
\ir helpers.psql

-- What a job's envelope says of its progress: number, message, data.
create function pg_temp.shown(job uuid) returns text language sql volatile as
$$ select concat_ws('/', coalesce(j ->> 'progress', '-'), coalesce(j ->> 'progress_message', '-'),
    coalesce(j ->> 'progress_data', '-')) from ojs.info(job) j $$;
create function pg_temp.said(job uuid, progress numeric, message text default null, data jsonb default null)
    returns text language sql volatile as
$$ select ojs.progress(job, progress, message, data); select pg_temp.shown(job) $$;
create function pg_temp.lease(job uuid) returns interval language sql volatile as $$
    select lease_expires_at - ojs_store.now() from ojs.leases where job_id = job $$;

select pg_temp.held('p') as id \gset
select is(pg_temp.shown(:'id'), '-/-/-', 'PRG-03: nothing before the first report');
select is(ojs.info(:'id') ? 'progress_updated_at', false, 'PRG-03: nor a time');
select is(pg_temp.said(:'id', 0.25, 'halfway to half', '{"rows": 10}'), '0.25/halfway to half/{"rows": 10}',
    'PRG-03: number, message and data are kept');
select is((ojs.info(:'id') ->> 'progress_updated_at')::timestamptz between now() and clock_timestamp(), true,
    'PRG-03: and the time');
select is(pg_temp.said(:'id', 0.5), '0.5/halfway to half/{"rows": 10}', 'PRG-03: what a report leaves out stays');
select is(pg_temp.said(:'id', 0.4, 'again', '[1]'), '0.5/again/[1]',
    'PRG-02: within an attempt the number never decreases');
select is(pg_temp.said(:'id', null, 'text only'), '0.5/text only/[1]', 'PRG-03: a report without a number');
select is(pg_temp.said(:'id', 0.123456789123), '0.5/text only/[1]', 'PRG-02: however it is written');
select is(pg_temp.said(:'id', 0.98765432109), '0.987654321/text only/[1]', 'PRG-02: nine digits');
select is(pg_temp.said(:'id', 1.3), '1/text only/[1]', 'PRG-02: clamped to 1'),
    is(pg_temp.shown(:'id'), '1/text only/[1]', 'PRG-02: and kept so');
select is(pg_temp.said(job, number), shown, 'PRG-02: ' || number || ' counts as ' || shown)
from (values (-5, '0/-/-'), (0, '0/-/-'), (1, '1/-/-'), (1e300, '1/-/-'), ('Infinity', '1/-/-'),
    ('-Infinity', '0/-/-')) v (number, shown), lateral (select pg_temp.held('p' || length(number::text))) h (job);
select is(pg_temp.said(pg_temp.held('nan'), 'NaN', 'm'), '-/m/-', 'PRG-02: what is no number says nothing');

-- One report by each type that drivers send, with the function that PostgreSQL chooses.
prepare untyped as select ojs.progress($1, $2);
create function pg_temp.reported(number text) returns text language plpgsql volatile as $$
declare
    job uuid := pg_temp.held('types');
begin
    execute format('select ojs.progress(%L, %s)', job, number);
    return pg_temp.shown(job);
end $$;
select is(pg_temp.reported(number), shown, 'PRG-02: a report of ' || number)
from (values ('0.25', '0.25/-/-'), ($v$'0.25'$v$, '0.25/-/-'), ('0.25::float8', '0.25/-/-'),
    ('0.25::float4', '0.25/-/-'), ('0.1::float8', '0.1/-/-'), ('1', '1/-/-'), ('1::smallint', '1/-/-'),
    ('1::bigint', '1/-/-'),
    ('0.25::numeric', '0.25/-/-'), ($v$'Infinity'::float8$v$, '1/-/-'), ('progress => 0.25::float8', '0.25/-/-'),
    ($v$'NaN'::float8, 'm'$v$, '-/m/-'), ($v$null, 'm'$v$, '-/m/-'), ($v$null::float8, 'm'$v$, '-/m/-'))
    v (number, shown);
select pg_temp.held('types') as typed \gset
execute untyped(:'typed', '0.75') \g /dev/null
select is(pg_temp.shown(:'typed'), '0.75/-/-', 'PRG-02: and a parameter without a type');

select is(pg_temp.refusal(format('select ojs.progress(%L, null)', :'id')), 'OJ100 INVALID_PAYLOAD progress',
    'PRG-03: a report must say something');
select is(pg_temp.refusal(format('select ojs.progress(%L, 1, repeat(%L, 65537))', :'id', 'x')),
    'OJ109 PAYLOAD_TOO_LARGE data', 'PRG-03: not too much');
select is(pg_temp.refusal(format('select ojs.progress(%L, 1, null, to_jsonb(repeat(%L, 65535)))', :'id', 'x')),
    'OJ109 PAYLOAD_TOO_LARGE data', 'PRG-03: nor of data');
select is(pg_temp.refusal(format('select ojs.progress(%L, 1, repeat(%L, 40000), to_jsonb(repeat(%L, 40000)))', :'id',
    'x', 'x')), 'OJ109 PAYLOAD_TOO_LARGE data', 'PRG-03: nor of both together');
select is(length(pg_temp.said(:'id', 1, repeat('x', 65000))), 65006, 'PRG-03: 64 KiB are not too much');
select is(pg_temp.refusal($$ select ojs.progress('01a1fe98-d88c-7353-99b6-b56eba94d8eb', 0.5) $$), 'OJ300 NOT_FOUND',
    'PRG-01: an unknown job');
select is(pg_temp.refusal('select ojs.progress(null, 0.5)'), 'OJ100 INVALID_PAYLOAD job_id', 'PRG-01: no job at all');

-- Other states: nothing is said, nothing is kept ----------------------------------------------------------------------

select pg_temp.pushed('idle') as available, pg_temp.pushed('idle', '{"pending": true}') as pending,
    pg_temp.pushed('idle', '{"delay_until": "+PT1H"}') as scheduled,
    pg_temp.held('ended') as completed, pg_temp.held('ended2') as discarded, pg_temp.held('ended3') as cancelled,
        pg_temp.held('ended4') as retryable \gset
select ojs.ack(:'completed') is null as a, ojs.fail(:'discarded',
    '{"type": "t", "message": "m", "retryable": false}') is null as f, ojs.cancel(:'cancelled') is null as c,
    ojs.fail(:'retryable', '{"type": "t", "message": "m"}') is null as r \gset
select is(pg_temp.said(id, 0.5, 'late', '{}'), '-/-/-', 'PRG-01: ignored for a job that is ' || state) from ojs.jobs
    where queue ~ '^(idle|ended)';
select is((select count(*) from ojs_store.progress p where p.job_id in (select id from ojs.jobs
    where queue ~ '^(idle|ended)')), 0::bigint, 'PRG-01: and leaves no row');

-- The end of an attempt -----------------------------------------------------------------------------------------------

select pg_temp.held('end') as id \gset
select is(pg_temp.said(:'id', 0.73), '0.73/-/-', 'PRG-02: an attempt');
select state as failed from ojs.fail(:'id', '{"type": "t", "message": "m"}', delay => '1 s') \gset
select is(pg_temp.shown(:'id'), '0.73/-/-', 'PRG-02: kept on failure, while the retry waits');
select pg_temp.clock('2 s') is null as moved, ojs.tick() is null as ticked \gset
select is(pg_temp.shown(:'id'), '0.73/-/-', 'PRG-02: and when it is due');
select id is null as claimed from ojs.claim('end', 'w2') \gset
select is(pg_temp.shown(:'id'), '-/-/-', 'PRG-02: cleared when the next attempt begins');
select is(pg_temp.said(:'id', 0.1, 'anew'), '0.1/anew/-', 'PRG-02: which begins below');
select ojs.nack(:'id') is null as given_back \gset
select is(pg_temp.shown(:'id'), '0.1/anew/-', 'PRG-02: kept when a job is given back');
select id is null as claimed from ojs.claim('end', 'w2') \gset
select is(ojs.ack(:'id') is null, false, 'PRG-02: an attempt that reported nothing ends');
select is(pg_temp.shown(:'id'), '-/-/-', 'PRG-02: and shows nothing');

select pg_temp.held('silent') as id \gset
select is(pg_temp.said(:'id', 0.3), '0.3/-/-', 'PRG-02: an attempt reports');
select ojs.nack(:'id') is null as given_back \gset
select id is null as claimed from ojs.claim('silent', 'w2') \gset
select ojs.nack(:'id') is null as given_back \gset
select is(pg_temp.shown(:'id'), '-/-/-', 'PRG-02: the next one does not, so there is nothing to show');
-- A crash forgets a delivery, and its number comes again.
select id is null as claimed from ojs.claim('silent', 'w2') \gset
select is(pg_temp.said(:'id', 0.4), '0.4/-/-', 'PRG-02: a third one does');
update ojs_store.progress set started_at = started_at - interval '1 minute' where job_id = :'id';
select is(pg_temp.shown(:'id'), '-/-/-', 'PRG-02: an attempt is told by the moment at which it began');

select pg_temp.held('ack') as id \gset
select is(pg_temp.said(:'id', 0.87, 'nearly', '[7]'), '0.87/nearly/[7]', 'PRG-02: a job that reports');
select ojs.ack(:'id') is null as done \gset
select is(pg_temp.shown(:'id'), '1/nearly/[7]', 'PRG-02: has come to 1.0 when it is done');
select is((select extra ->> 'progress' from ojs.jobs where id = :'id'), '1', 'PRG-02: in the view, too');
select pg_temp.held('ack') as id \gset
select is(pg_temp.said(:'id', null, 'm'), '-/m/-', 'PRG-02: also one that told no number');
select ojs.ack(:'id') is null as done \gset
select is(pg_temp.shown(:'id'), '1/m/-', 'PRG-02: when it is done');
select pg_temp.held('gone') as id \gset
select is(pg_temp.said(:'id', 0.6), '0.6/-/-', 'PRG-02: a job that is discarded');
select ojs.fail(:'id', '{"type": "t", "message": "m", "retryable": false}') is null as failed \gset
select is(pg_temp.shown(:'id'), '0.6/-/-', 'PRG-02: keeps what it had');
select ojs.retry(:'id') is null as revived \gset
select is(pg_temp.shown(:'id'), '0.6/-/-', 'PRG-02: when it is retried by hand');
select id is null as claimed from ojs.claim('gone', 'w') \gset
select is(pg_temp.shown(:'id'), '-/-/-', 'PRG-02: until its new attempt');
select pg_temp.held('lapse') as id \gset
select is(pg_temp.said(:'id', 0.2), '0.2/-/-', 'PRG-02: a job whose worker is lost');
select pg_temp.clock('2 min') is null as moved, ojs.tick() is null as ticked \gset
select is(pg_temp.at(:'id'), 'available/1/1', 'PRG-02: is taken back'),
    is(pg_temp.shown(:'id'), '0.2/-/-', 'PRG-02: and keeps what it had');
select pg_temp.clock('0') is null as moved \gset

-- A sign of life ------------------------------------------------------------------------------------------------------

select pg_temp.pushed('life') as id \gset
select lease_id as token from ojs.claim('life', 'w', lease => '30 s') \gset
select pg_temp.clock('20 s') is null as moved \gset
select is(pg_temp.said(:'id', 0.1), '0.1/-/-', 'PRG-04: a report');
select is(pg_temp.lease(:'id') between '29 s' and '30 s', true, 'PRG-04: renews the lease by its own length');
select pg_temp.clock('81 s') is null as moved, ojs.extend(:'id', '1 hour') is null as e \gset
select pg_temp.clock('79 s') is null as moved, ojs.tick() is null as ticked \gset
select pg_temp.clock('10 min') is null as moved, ojs.tick() is null as ticked \gset
select is(pg_temp.at(:'id'), 'active/1/1', 'a report starts no stall clock: the job goes on in silence: R-103 TMO-03');
select pg_temp.clock('0') is null as moved, pg_temp.pushed('beats') as id \gset
select lease_id as token from ojs.claim('beats', 'w', lease => '1 hour') \gset
select ojs.beat('w', array[:'id'::uuid]) is null as b, pg_temp.clock('50 s') is null as moved \gset
select pg_temp.said(:'id', 0.2) is null as said, pg_temp.clock('100 s') is null as moved, ojs.beat('w') is null as b,
    ojs.tick() is null as ticked \gset
select is(pg_temp.at(:'id'), 'active/1/1', 'a report renews the stall clock that a beat has started: R-103 TMO-03');
select pg_temp.clock('111 s') is null as moved, ojs.beat('w') is null as b, ojs.tick() is null as ticked \gset
select is((select state || (error ->> 'type') from ojs.jobs where id = :'id'), 'retryablestalled',
    'a minute after the last report the job counts as stalled: TMO-03');
select pg_temp.clock('0') is null as moved \gset
-- Whoever says who it is (over HTTP) must be the holder.
select pg_temp.held('fence', 'w1') as id \gset
select is(ojs_http.report_progress(:'id', 0.5, null, null, null, 'w2'), false,
    'R-22: another worker''s report does not count');
select is(ojs_http.report_progress(:'id', 0.5, null, null, 'lease_0000000000000000', null), false,
    'R-22: nor one by another lease');
select is(pg_temp.shown(:'id'), '-/-/-', 'R-22: and is not kept');
select is(ojs_http.report_progress(:'id', 0.5, null, null, pg_temp.token(:'id'), 'w1'), true, 'R-22: the holder''s is');

-- What it costs: a second report changes one row, and no index entry of a lease up to 60 s ----------------------------

select is((select count(*) from ojs_store.progress where job_id = :'id'), 1::bigint, 'PRG-03: one row per job');
select ojs.progress(:'id', 0.6) is null as p, ojs.progress(:'id', 0.7) is null as q \gset
select is((select count(*) from ojs_store.progress where job_id = :'id'), 1::bigint, 'PRG-03: however many reports');
select is((select count(*) from ojs_store.job where flags & 512 <> 0), 0::bigint,
    'PRG-03: the envelope is not rewritten');

-- It goes with the job ------------------------------------------------------------------------------------------------

select ojs.ack(:'id') is null as done, ojs.delete_job(:'id') as deleted \gset
select is((select count(*) from ojs_store.progress where job_id = :'id'), 0::bigint,
    'PRG-03: gone with a job that is deleted');
select ojs.create_queue('brief', '{"delete_on_ack": true}') is null as made \gset
select pg_temp.held('brief') as id \gset
select ojs.progress(:'id', 0.6) is null as p, ojs.ack(:'id') is null as done \gset
select is((select count(*) from ojs_store.progress where job_id = :'id') + (select count(*) from ojs_store.job
    where id = :'id'), 0::bigint, 'PRG-03: and with one that is removed by its ack');
select pg_temp.held('purged') as id \gset
select ojs.progress(:'id', 0.6) is null as p, ojs.ack(:'id') is null as done,
    ojs.purge_queue('purged', '{completed}', true) \gset
select is((select count(*) from ojs_store.progress where job_id = :'id'), 0::bigint, 'PRG-03: and with a purge');

-- A producer cannot say how far a job has come.
select is(ojs.push_job('{"type": "t", "args": [], "progress": 0.5, "progress_data": {}, "checkpoint": {}, '
                       '"last_checkpoint": 1, "own": 1}') ?| '{progress,progress_data,checkpoint,last_checkpoint}',
    false,
    'R-12: what the server sets is ignored in a push');

select * from finish();
rollback;
