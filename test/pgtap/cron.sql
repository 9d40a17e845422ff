-- cron.sql: jobs by the clock: CRN-01 to CRN-12, R-53, R-54. Several tickers, restarts and crashes: test/tap/cron.pl.
-- Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();
\ir helpers.psql
set local timezone = 'UTC';

-- When an expression fires next; 'never'; or how it is refused.
create function pg_temp.next(expression text, zone text default 'UTC', after timestamptz default '2026-01-01 00:00Z')
    returns text language plpgsql as $$
begin
    return coalesce((select to_char(run_at, 'YYYY-MM-DD HH24:MI:SS')
        from ojs_store.cron_next(expression, zone, after, after)), 'never');
exception when others then
    return sqlstate;
end $$;

-- Syntax -------------------------------------------------------------------------------------------------------------

select is(pg_temp.next(expression), expected, 'CRN-03: ' || expression) from (values
    ('* * * * *', '2026-01-01 00:01:00'), ('*/15 * * * *', '2026-01-01 00:15:00'),
        ('5,10 * * * *', '2026-01-01 00:05:00'), ('0 9-17 * * *', '2026-01-01 09:00:00'),
    ('0 9-17/4 * * *', '2026-01-01 09:00:00'), ('7/20 * * * *', '2026-01-01 00:07:00'),
        ('30 9 * * MON-FRI', '2026-01-01 09:30:00'), ('0 0 * * 0', '2026-01-04 00:00:00'),
    ('0 0 * * 7', '2026-01-04 00:00:00'), ('0 0 * * sun', '2026-01-04 00:00:00'),
        ('0 0 * * 5-7', '2026-01-02 00:00:00'), ('0 0 * * SAT-SUN', '2026-01-03 00:00:00'),
    ('0 0 1 jan,Jul *', '2026-07-01 00:00:00'), ('0 0 1 MAR-MAY/2 *', '2026-03-01 00:00:00'),
        ('30 0 0 * * *', '2026-01-01 00:00:30'), ('*/10 * * * * *', '2026-01-01 00:00:10'),
    (E'  0\t12  * * *  ', '2026-01-01 12:00:00'), ('0 0 L * *', '2026-01-31 00:00:00'),
        ('0 0 L 2 *', '2026-02-28 00:00:00'), ('0 0 LW 5 *', '2026-05-29 00:00:00'),
    ('0 0 15W 8 *', '2026-08-14 00:00:00'), ('0 0 1W 8 *', '2026-08-03 00:00:00'),
        ('0 0 31W 5 *', '2026-05-29 00:00:00'), ('0 0 31W 4 *', 'never'),
    ('0 0 * * 5#3', '2026-01-16 00:00:00'), ('0 0 * * MON#1', '2026-01-05 00:00:00'),
        ('0 0 * * 5L', '2026-01-30 00:00:00'), ('0 0 * * fril', '2026-01-30 00:00:00'),
    ('0 0 * 2 SUN#5', '2032-02-29 00:00:00'), ('0 0 29 2 *', '2028-02-29 00:00:00'),
    ('@yearly', '2027-01-01 00:00:00'), ('@annually', '2027-01-01 00:00:00'), ('@monthly', '2026-02-01 00:00:00'),
        ('@weekly', '2026-01-04 00:00:00'),
    ('@daily', '2026-01-02 00:00:00'), ('@midnight', '2026-01-02 00:00:00'), ('@hourly', '2026-01-01 01:00:00'),
        ('@Hourly', '2026-01-01 01:00:00'),
    ('@every 1h30m', '2026-01-01 01:30:00'), ('@every 45s', '2026-01-01 00:00:45'),
        ('@every 2h45m30s', '2026-01-01 02:45:30'), ('@every 1.5h', '2026-01-01 01:30:00'),
    ('@every 500ms', '2026-01-01 00:00:01'), ('@every 90000ms', '2026-01-01 00:01:30'),
    ('0 0 31 2 *', 'never'), ('0 0 30 2 *', 'never'), ('0 0 31 4,6,9,11 *', 'never')) e (expression, expected);
select is(pg_temp.next(expression), 'OJ107', 'CRN-04: refused: ' || expression) from (values
    (''), ('   '), ('not a valid cron'), ('* * * *'), ('* * * * * * *'), ('99 25 32 13 8'), ('60 * * * *'),
        ('* 24 * * *'), ('* * 0 * *'), ('* * 32 * *'), ('* * * 0 *'), ('* * * 13 *'),
    ('* * * * 8'), ('60 * * * * *'), ('*/0 * * * *'), ('5/0 * * * *'), ('*/61 * * * *'), ('*/ * * * *'),
        ('5-1 * * * *'), ('5- * * * *'), ('-5 * * * *'), ('1-2-3 * * * *'), ('1, * * * *'),
    (',1 * * * *'), ('1,,2 * * * *'), ('* * * * FRI-MON'), ('* * * FOO *'), ('* * * * JAN'), ('* * * MON *'),
        ('MON * * * *'), ('1.5 * * * *'), ('?  * * * *'), ('* * ? * *'), ('L * * * *'),
    ('* * * * L'), ('* * W * *'), ('* * 15W-17W * *'), ('* * 32W * *'), ('* * * * 5#0'), ('* * * * 5#6'),
        ('* * * * 5#'), ('* * * * 5#1-2'), ('** * * * *'), ('*5 * * * *'), ('+5 * * * *'),
    ('@reboot'), ('@every'), ('@every 0s'), ('@every x'), ('@every 5'), ('@every 5d'), ('@every -5m'),
        ('@every 5m 3s'), ('@daily 1'), ('5x * * * *'), (repeat('1,', 600) || '1 * * * *')) e (expression);
select is(pg_temp.refusal($$ select ojs.schedule('a', '99 * * * *', '{"type": "t"}') $$),
    'OJ107 INVALID_CRON_EXPRESSION cron', 'CRN-04 INVALID_CRON_EXPRESSION: names the field');
select is(pg_temp.refusal($$ select ojs.schedule('a', E'9\n9 * * * *', '{"type": "t"}') $$),
    'OJ107 INVALID_CRON_EXPRESSION cron', 'CRN-04: in one line');

select is(ojs.schedule('object', '@daily', '{"type": "t", "args": {"a": 1}}') -> 'args', '[{"a": 1}]',
    'an entry shows an object for args as the only argument (R-01)');
select ojs.unschedule('object') \g /dev/null

-- CRN-05: both day fields restricted: either matches.
select is(array(select to_char(d, 'DD') from (select d
    from generate_series('2026-06-01'::timestamptz, '2026-06-30', '1 day') d
    where pg_temp.next(expression, after => d - interval '1 second') = to_char(d, 'YYYY-MM-DD 00:00:00')) days),
        expected, 'CRN-05: ' || expression) from (values
    ('0 0 13 * FRI', '{05,12,13,19,26}'::text[]), ('0 0 13 * *', '{13}'), ('0 0 * * FRI', '{05,12,19,26}'),
        ('0 0 13 * */1', '{13}'), ('0 0 L * MON#1', '{01,30}'),
        ('0 0 1-31 * FRI', (select array_agg(to_char(n, 'FM00')) from generate_series(1, 30) n))) e (expression,
        expected);

-- Time zones ---------------------------------------------------------------------------------------------------------

select is(left(pg_temp.next('* * * * *', zone), 2), 'OJ', 'CRN-06: refused: ' || zone)
from unnest('{EST,PST,CST,MST,CET,utc,localtime,posixrules,Factory,posix/UTC,posix/EST,POSIX/Europe/Berlin,right/UTC,'
    'right/Europe/Berlin,posix/posix/EST,+05:00,-08:00,UTC+5,UTC-5,Etc/GMT+5,EST5EDT,'
    'Foo/Bar,Foo/Bar3,../etc/passwd,/etc/passwd,Europe/../Europe/Berlin,Europe,"",<-03>3}'::text[]) zone;
select is(pg_temp.next('0 12 * * *', zone), expected, 'CRN-06: ' || zone)
    from (values ('UTC', '2026-01-01 12:00:00'), ('Europe/Berlin', '2026-01-01 11:00:00'),
    ('Asia/Kolkata', '2026-01-01 06:30:00'),
    ('America/Port-au-Prince', '2026-01-01 17:00:00'),
        ('America/Argentina/Buenos_Aires', '2026-01-01 15:00:00')) z (zone, expected);
-- A server without the old names of the IANA database has no such zone.
select is(left(pg_temp.next('* * * * *', zone), 2), case when exists (select from pg_timezone_names where name = zone)
    then '20' else 'OJ' end, 'accepted: the name ' || zone || ' of the IANA database (CRN-06)')
from unnest('{GMT,Japan,Zulu,Egypt,Eire,Cuba,GB,GB-Eire,Greenwich,Hongkong,Iceland,Iran,Israel,Jamaica,Kwajalein,Libya,'
    'NZ,NZ-CHAT,Navajo,PRC,Poland,Portugal,ROC,ROK,Singapore,Turkey,UCT,UTC,Universal,W-SU,'
    'Etc/GMT,Etc/UTC,US/Pacific}'::text[])
    zone;
select is_empty($$ select name from pg_timezone_names where name ~ '^[A-Za-z_-]+$'
    and name not in ('EST', 'MST', 'HST', 'EET', 'CET', 'MET', 'WET', 'Factory', 'localtime', 'posixrules')
    and pg_temp.next('* * * * *', name) like 'OJ%' $$,
    'a zone of one word is refused only as an abbreviation (CRN-06)');
select is(ojs_store.cron_zone('europe/berlin'), 'Europe/Berlin', 'CRN-06: as the database spells it');

-- A transition's two edges. New York 2026: 2:00 becomes 3:00 on 8 March (07:00Z); 2:00 becomes 1:00 on 1 November
-- (06:00Z).
select is(pg_temp.next('30 2 * * *', 'America/New_York', '2026-03-07 12:00Z'), '2026-03-09 06:30:00',
    'CRN-07: a time that does not exist is skipped');
select is(pg_temp.next('0 3 * * *', 'America/New_York', '2026-03-08 06:59Z'), '2026-03-08 07:00:00',
    'CRN-07: the first time after the hole is there');
select is(pg_temp.next('59 1 * * *', 'America/New_York', '2026-03-08 06:00Z'), '2026-03-08 06:59:00',
    'CRN-07: the last before it, too');
select is(pg_temp.next('30 1 * * *', 'America/New_York', '2026-11-01 05:00Z'), '2026-11-01 05:30:00',
    'CRN-07: a time that comes twice fires the first time');
select is(pg_temp.next('30 1 * * *', 'America/New_York', '2026-11-01 05:30Z'), '2026-11-02 06:30:00',
    'CRN-07: and once');
select is(pg_temp.next('* * * * *', 'America/New_York', '2026-11-01 05:59Z'), '2026-11-01 07:00:00',
    'CRN-07: each local minute once');
select is(pg_temp.next('0 0 * * *', 'America/Santiago', '2026-09-05 12:00Z'), '2026-09-07 03:00:00',
    'CRN-07: a midnight that does not exist');
select is(pg_temp.next('15 2 * * *', 'Australia/Lord_Howe', '2026-10-03 12:00Z'), '2026-10-04 15:15:00',
    'CRN-07: a hole of half an hour');
select is(pg_temp.next('0 12 30 12 *', 'Pacific/Apia', '2011-12-01 00:00Z'), '2012-12-29 22:00:00',
    'CRN-07: a day that does not exist');
select is(array[skip_at::text, skipped_local, skipped::text], '{2026-03-08 07:00:00+00,2026-03-08T02:00:00,4}',
    'CRN-07: which local times are skipped')
from ojs_store.cron_next('*/15 2 * * *', 'America/New_York', 'epoch', '2026-03-07 12:00Z');

-- Against a plain walk over all minutes: a minute fires if its local time fits, and did not come before. What fits is
-- drawn as sets and as sentences about days, beside the text, so the walk knows no expression.
create function pg_temp.one_of(choices text[]) returns text language sql volatile as $$
    select choices[1 + floor(random() * cardinality(choices))] $$;
create function pg_temp.between(low int, high int) returns int language sql volatile as $$
    select low + floor(random() * (high - low + 1))::int $$;
-- A field and the numbers that it means: single ones, ranges, steps; names where there are some, in any case.
create function pg_temp.drawn(low int, high int, names text[] default null, out field text, out means int[])
    language plpgsql volatile as $$
declare
    a int; b int; step int; form text;
begin
    means := '{}';
    for i in 1 .. pg_temp.between(1, 3) loop
        a := pg_temp.between(low, high); b := pg_temp.between(a, high); step := pg_temp.between(2, high - low + 1);
        form := pg_temp.one_of('{A,A,A-B,A-B/S,A/S,*/S}');
        means := means || array(select n from generate_series(case when form like '*%' then low else a end,
            case when form = 'A' then a when form like '%B%' then b else high end,
            case when form like '%S' then step else 1 end) n);
        form := replace(form, 'S', step::text);
        form := replace(form, 'A', coalesce(case when random() < 0.5 then names[a - low + 1] end, a::text));
        form := replace(form, 'B', coalesce(case when random() < 0.5 then names[b - low + 1] end, b::text));
        field := concat_ws(',', field, form);
    end loop;
end $$;
-- Days of a month by what they are, said another way than the code says it.
create function pg_temp.is_special(day date, what text) returns boolean language sql immutable as $$
    with month as (
        select d::date as d, extract(isodow from d)::int as dow
            from generate_series(date_trunc('month', day::timestamp),
            date_trunc('month', day::timestamp) + interval '1 month - 1 day', '1 day') d
    )
    select case
        when what = 'L' then day = (select max(d) from month)
        when what = 'LW' then day = (select max(d) from month where dow < 6)
        when what like '%W' then day = (select w.d from month w where w.dow < 6
            and exists (select from month n where extract(day from n.d) = rtrim(what, 'W')::int)
            order by abs(extract(day from w.d) - rtrim(what, 'W')::int) limit 1)
        when what like '_L' then extract(dow from day) = left(what, 1)::int % 7
            and day = (select max(d) from month where dow % 7 = extract(dow from day))
        else extract(dow from day) = left(what, 1)::int % 7
            and right(what, 1)::int = (select count(*) from month where dow % 7 = extract(dow from day) and d <= day)
    end
$$;
create function pg_temp.fits(l date, days int[], day_is text[], months int[], weekdays int[], weekday_is text[])
    returns boolean language sql immutable as $$
    select (months is null or extract(month from l)::int = any (months)) and case
        when days is null then weekdays is null or by_week when weekdays is null then by_month else by_month
            or by_week end
    from (select extract(day from l)::int = any (days)
        or exists (select from unnest(day_is) s where pg_temp.is_special(l, s)),
        extract(dow from l)::int = any (weekdays) or exists (select from unnest(weekday_is) s
            where pg_temp.is_special(l, s))) as f(by_month, by_week)
$$;
create function pg_temp.differences(seed float, runs int) returns setof text language plpgsql as $$
declare
    zones text[]; start timestamptz; zone text; sec record; minute record; hour record; day record; month record;
        weekday record;
    days text; weekdays text; day_is text[]; weekday_is text[]; dates date[];
    expression text; walked timestamptz[]; found timestamptz[]; at timestamptz;
begin
    perform setseed(seed);
    zones := array(select name from pg_timezone_names where name ~ '^[A-Za-z_-]+(/[A-Za-z_-]+)+$'
        and name !~ '^(posix|right|Etc|SystemV)/' order by name);
    for run in 1 .. runs loop
        zone := case when run % 2 = 0 then pg_temp.one_of(zones)
            else pg_temp.one_of('{America/New_York,Europe/Berlin,Australia/Lord_Howe,America/Santiago,'
                    'Africa/Casablanca,'
                    'Asia/Kolkata,UTC,Europe/Dublin,Pacific/Apia,Asia/Tehran}') end;
        start := timestamptz '2000-01-01' + random() * interval '60 years';
        -- One time of two near a change of the clock of that year, if there is one; one of four at the end of a month.
        if run % 4 < 2 then
            select d - interval '1 day' into start from generate_series(date_trunc('year', start),
                date_trunc('year', start) + interval '1 year', '1 day') d
            where (d at time zone zone) - (d at time zone 'UTC') <> ((d + interval '1 day') at time zone zone)
                - ((d + interval '1 day') at time zone 'UTC') order by random() limit 1;
            start := coalesce(start, timestamptz '2026-01-01') + random() * interval '1 day';
        elsif run % 4 = 2 then
            start := date_trunc('month', start) - random() * interval '3 days';
        end if;
        select * into sec from pg_temp.drawn(0, 59) where random() < 0.3;
        select * into minute from pg_temp.drawn(0, 59);
        if sec.field is not null then -- the walk must not become too long
            minute.means := minute.means[:1];
            minute.field := minute.means[1];
        end if;
        select * into hour from pg_temp.drawn(0, 23);
        select * into day from pg_temp.drawn(1, 31) where random() < 0.4;
        select * into month from pg_temp.drawn(1, 12, '{JAN,feb,Mar,APR,MAY,JUN,JUL,AUG,SEP,OCT,NOV,DEC}')
            where random() < 0.3;
        select * into weekday from pg_temp.drawn(0, 6, '{SUN,mon,Tue,WED,THU,FRI,SAT}') where random() < 0.4;
        day_is := array(select case k when 1 then 'L' when 2 then 'LW' else pg_temp.between(1, 31) || 'W' end
            from (select pg_temp.between(1, 4) as k from generate_series(1, 2) where random() < 0.3) s);
        weekday_is := array(select pg_temp.between(0, 7) || case k when 1 then 'L' else '#' || pg_temp.between(1, 5) end
            from (select pg_temp.between(1, 2) as k from generate_series(1, 2) where random() < 0.3) s);
        days := coalesce(nullif(array_to_string(day.field || day_is, ','), ''), '*');
        weekdays := coalesce(nullif(array_to_string(weekday.field || weekday_is, ','), ''), '*');
        expression := concat_ws(' ', sec.field, minute.field, hour.field, days, coalesce(month.field, '*'), weekdays);
        dates := array(select d::date from generate_series((start - interval '2 days')::date,
            (start + interval '6 days')::date, '1 day') d
            where pg_temp.fits(d::date, case when days <> '*' then coalesce(day.means, '{}') end, day_is, month.means,
                case when weekdays <> '*' then coalesce(weekday.means, '{}') end, weekday_is));
        select array_agg(f order by f) into walked from (
            select i, l, row_number() over (partition by l order by i) as nth
            from generate_series(date_trunc('minute', start) - interval '4 hours', start + interval '3 days',
                '1 minute') i, lateral (select i at time zone zone) local (l)) m,
            unnest(coalesce(sec.means, '{0}')) s, lateral (select i + make_interval(secs => s)) fires (f)
        where nth = 1 and f > start and f <= start + interval '3 days'
            and extract(minute from l)::int = any (minute.means) and extract(hour from l)::int = any (hour.means)
            and l::date = any (dates);
        found := null; at := start;
        loop
            at := (ojs_store.cron_next(expression, zone, at, at)).run_at;
            exit when at is null or at > start + interval '3 days';
            found := found || at;
        end loop;
        if (select array_agg(distinct w order by w) from unnest(walked) w) is distinct from found then
            return next format('seed %s run %s: %s %s after %s', seed, run, expression, zone, start);
        end if;
    end loop;
end $$;
select is((select string_agg(d, '; ') from pg_temp.differences(s, 60) d), null,
    'CRN-03 CRN-05 CRN-07: as a walk over all minutes finds them, in any zone, seed ' || s)
    from (select round((random() * 2 - 1)::numeric, 6)::float as s) seed;

-- Registration -------------------------------------------------------------------------------------------------------

create function pg_temp.clock_at(at timestamptz) returns void language sql as $$
    select pg_temp.clock(at - clock_timestamp()) $$;
create function pg_temp.told(name text) returns text language sql as
$$ select string_agg(concat_ws(':', replace(type, 'cron.', ''), data ->> 'reason'), ' ' order by at, ctid)
    from ojs_store.stored_event where subject = name and type like 'cron.%' $$;
create function pg_temp.made(name text) returns text language sql as
$$ select string_agg(state, ' ' order by seq) from ojs.jobs where meta ->> 'cron_name' = name $$;

select ojs.schedule('report', '30 9 * * MON-FRI', '{"type": "report.make"}') as first \gset
select is(:'first'::jsonb - '{created_at,next_run_at}'::text[],
    '{"name": "report", "cron": "30 9 * * MON-FRI", "expression": "30 9 * * MON-FRI", "timezone": "UTC", "type": '
    '"report.make", "args": [], "options": {},
    "job_template": {"type": "report.make", "args": []}, "overlap_policy": "skip", "enabled": true, "description": null,
     "last_run_at": null, "run_count": 0, "created": true}'::jsonb,
    'CRN-01 CRN-02 R-53: a new entry, with its defaults');
select is((select next_run_at from ojs.crons where name = 'report'),
    (select run_at from ojs_store.cron_next('30 9 * * MON-FRI', 'UTC', now(), now())), 'CRN-08: it knows when it runs');
select is(ojs.schedule('report', null, null,
    '{"enabled": false, "run_count": 99, "created_at": "2000-01-01T00:00:00Z", "next_run_at": "2000-01-01T00:00:00Z", '
    '"last_run_at": "x", "name": "other"}') ->> 'next_run_at', null, 'CRN-08: none when disabled');
select is(array[run_count::text, enabled::text, (created_at > '2020-01-01')::text], '{0,false,true}',
    'CRN-02: what the system keeps is ignored on input') from ojs.crons where name = 'report';
select is(ojs.schedule('report', '0 8 * * *', '{"type": "report.make", "args": [1]}') -> 'enabled', 'false',
    'CRN-01: registered anew, a disabled entry stays so');
select is(ojs.schedule('report', null, null,
    '{"enabled": null, "timezone": "asia/tokyo", "description": "d", "overlap_policy": "queue"}')
    - '{created_at,next_run_at,options,job_template,expression}'::text[],
    '{"name": "report", "cron": "0 8 * * *", "timezone": "Asia/Tokyo", "type": "report.make", "args": [1], '
    '"overlap_policy": "enqueue", "enabled": false, "description": "d", "last_run_at": null, "run_count": 0, '
    '"created": false}'::jsonb,
    'CRN-01 R-54: options are changed, null is as absent');
select is(ojs.schedule('report', '0 8 * * *',
    '{"type": "report.make", "args": [1]}')
    - '{created_at,next_run_at,options,job_template,expression,args,type,name,cron,run_count,'
        'last_run_at,created}'::text[],
    '{"timezone": "UTC", "overlap_policy": "skip", "enabled": false, "description": null}'::jsonb,
        'CRN-01: registered anew, only enabled stays');
select is(ojs.schedule('report', null, null, '{"overlap_policy": "replace"}') ->> 'overlap_policy', 'cancel_previous',
    'R-54: replace');
select is(pg_temp.refusal(statement), expected, 'CRN-01 CRN-02: ' || statement) from (values
    ($$ select ojs.schedule('none', null, null, '{"enabled": true}') $$, 'OJ300 NOT_FOUND'),
        ($$ select ojs.schedule('none', null, '{"type": "t"}') $$, 'OJ107 INVALID_CRON_EXPRESSION cron'),
    ($$ select ojs.schedule('none', '@daily', null) $$, 'OJ100 INVALID_PAYLOAD job'),
        ($$ select ojs.schedule(null, '@daily', '{"type": "t"}') $$, 'OJ100 INVALID_PAYLOAD name'),
    ($$ select ojs.schedule('', '@daily', '{"type": "t"}') $$, 'OJ100 INVALID_PAYLOAD name'),
        ($$ select ojs.schedule('A', '@daily', '{"type": "t"}') $$, 'OJ100 INVALID_PAYLOAD name'),
    ($$ select ojs.schedule('-a', '@daily', '{"type": "t"}') $$, 'OJ100 INVALID_PAYLOAD name'),
        ($$ select ojs.schedule('a_b', '@daily', '{"type": "t"}') $$, 'OJ100 INVALID_PAYLOAD name'),
    ($$ select ojs.schedule(repeat('a', 256), '@daily', '{"type": "t"}') $$, 'OJ100 INVALID_PAYLOAD name'),
        ($$ select ojs.schedule('a.b-1', '@daily', '{"type": "t"}') $$, 'accepted'),
    ($$ select ojs.schedule(repeat('a', 255), '@daily', '{"type": "t"}') $$, 'accepted'),
        ($$ select ojs.schedule(E'a\n', '@daily', '{"type": "t"}') $$, 'OJ100 INVALID_PAYLOAD name'),
    ($$ select ojs.schedule('a', '@daily', '[]') $$, 'OJ100 INVALID_PAYLOAD job'),
        ($$ select ojs.schedule('a', '@daily', '{}') $$, 'OJ100 INVALID_PAYLOAD type'),
    ($$ select ojs.schedule('a', '@daily', '{"type": "Bad Type"}') $$, 'OJ101 INVALID_JOB_TYPE type'),
        ($$ select ojs.schedule('a', '@daily', '{"type": "t", "args": 5}') $$, 'OJ103 INVALID_ARGS args'),
    ($$ select ojs.schedule('a', '@daily', '{"type": "t", "options": {"args": [1], "queue": "q"}}') $$, 'accepted'),
        ($$ select ojs.schedule('a', '@daily', '{"type": "t", "queue": "BAD"}') $$, 'OJ102 INVALID_QUEUE queue'),
    ($$ select ojs.schedule('a', '@daily', '{"type": "t", "meta": 5}') $$, 'OJ104 INVALID_METADATA meta'),
        ($$ select ojs.schedule('a', '@daily', '{"type": "t", "retry": {"max_attempts": -1}}') $$,
        'OJ106 INVALID_RETRY_POLICY retry.max_attempts'),
    ($$ select ojs.schedule('a', '@daily', '{"type": "t", "unique": {"keys": 1}}') $$,
        'OJ702 UNIQUE_KEY_INVALID unique.keys'),
        ($$ select ojs.schedule('a', '@daily', '{"type": "t", "id": "01920000-0000-7000-8000-00000000000c"}') $$,
        'OJ100 INVALID_PAYLOAD id'),
    ($$ select ojs.schedule('a', '@daily', '{"type": "t"}', '[]') $$, 'OJ100 INVALID_PAYLOAD options'),
        ($$ select ojs.schedule('a', '@daily', '{"type": "t"}', '{"enabled": "yes"}') $$,
        'OJ100 INVALID_PAYLOAD enabled'),
    ($$ select ojs.schedule('a', '@daily', '{"type": "t"}', '{"overlap_policy": "never"}') $$,
        'OJ100 INVALID_PAYLOAD overlap_policy'),
        ($$ select ojs.schedule('a', '@daily', '{"type": "t"}', '{"timezone": "EST"}') $$,
        'OJ100 INVALID_PAYLOAD timezone'),
    ($$ select ojs.schedule('a', '@daily', '{"type": "t"}', '{"timzone": "UTC"}') $$, 'OJ100 INVALID_PAYLOAD timzone'),
        ($$ select ojs.schedule('a', '@daily', '{"type": "t"}', null) $$, 'accepted')) r (statement, expected);
select is(ojs.schedule('never', '0 0 31 2 *', '{"type": "t"}') ->> 'next_run_at', null,
    'CRN-04: 31 February is accepted, and never comes');
select is(ojs.unschedule('nothing'), false, 'CRN-01: nothing to remove');
select is(ojs.unschedule('report'), true, 'CRN-01: removed') union all
    select is(ojs.unschedule('never'), true, 'CRN-01: removed');
select is((select string_agg(name, ' ' order by length(name)) from ojs.crons), 'a a.b-1 ' || repeat('a', 255),
    'CRN-01: the view shows the others');
select ojs.unschedule(name) from ojs.crons \g /dev/null

-- Runs ---------------------------------------------------------------------------------------------------------------

select pg_temp.clock_at('2100-03-01 08:00Z') \g /dev/null
select ojs.schedule('run', '0 9 * * *',
    '{"type": "r.n", "args": [1], "options": {"queue": "runs", "priority": 7, "meta": {"mine": 1}}}')
    is null as made \gset
select is((ojs.tick() ->> 'crons')::int, 0, 'CRN-09: not before its time');
select pg_temp.clock_at('2100-03-01 09:00:00.5Z') \g /dev/null
select is((ojs.tick() ->> 'crons')::int, 1, 'CRN-09: due: it runs') union all
    select is((ojs.tick() ->> 'crons')::int, 0, 'CRN-09: once');
select is(array[type, state, queue, priority::text, args::text, meta ->> 'mine', meta ->> 'cron_name',
    left(meta ->> 'cron_triggered_at', 16), meta ->> 'cron_scheduled_at'],
    '{r.n,available,runs,7,[1],1,run,2100-03-01T09:00,2100-03-01T09:00:00.000Z}'::text[],
        'CRN-11: the job, and whose it is') from ojs.jobs where meta ->> 'cron_name' = 'run';
select is(array[next_run_at::text, date_trunc('second', last_run_at)::text, run_count::text],
    '{2100-03-02 09:00:00+00,2100-03-01 09:00:00+00,1}', 'CRN-08: the entry has moved on') from ojs.crons
    where name = 'run';
select is(data - '{job_id,actual_time}'::text[],
    '{"cron_name": "run", "queue": "runs", "cron_expression": "0 9 * * *", "timezone": "UTC", "job_type": "r.n", '
        '"run_count": 1, '
    '"scheduled_time": "2100-03-01T09:00:00.000Z", "scheduled_at": "2100-03-01T09:00:00.000Z", "cron_expr": "0 9 * * '
    '*"}'::jsonb,
    'EVT-03, R-61: cron.triggered, by the names of both documents') from ojs_store.stored_event
        where type = 'cron.triggered' and subject = 'run';

-- After a pause of ten days: once.
select ojs.configure_queue('runs', '{"retention": {"completed": "P1Y"}}') is null as kept,
    ojs.ack(id) is null as acked from ojs.claim('runs', 'w') \gset
select pg_temp.clock_at('2100-03-11 12:00Z') \g /dev/null
select is((ojs.tick() ->> 'crons')::int, 1, 'CRN-09: runs that were missed are made up for by one') union all
    select is((ojs.tick() ->> 'crons')::int, 0, 'CRN-09: not by more');
select is(pg_temp.made('run'), 'completed available', 'CRN-09: one more job');
select is((select next_run_at from ojs.crons where name = 'run'), '2100-03-12 09:00Z', 'CRN-09: and on from now');

-- Registering what is there already keeps the time; a change begins anew.
select ojs.schedule('beat', '@every 1h', '{"type": "t"}') is null as made,
    next_run_at as first_beat from ojs.crons where name = 'run' \gset
select next_run_at as beat_at from ojs.crons where name = 'beat' \gset
select pg_temp.clock_at('2100-03-11 12:30Z') \g /dev/null
select is((ojs.schedule('beat', '@every 1h', '{"type": "t2"}', '{"timezone": "UTC"}') ->> 'next_run_at')::timestamptz,
    date_trunc('milliseconds', :'beat_at'::timestamptz), 'CRN-01: the same schedule registered anew keeps its beat');
select pg_temp.clock_at('2100-03-11 15:10Z') \g /dev/null
select ojs.tick() is null as ticked \gset
select is((select next_run_at from ojs.crons where name = 'beat'), :'beat_at'::timestamptz + interval '3 hours',
    'CRN-03: @every counts from its registration, and does not drift');
select ok((ojs.schedule('beat', '@every 30m', null) ->> 'next_run_at')::timestamptz between '2100-03-11 15:39Z'
    and '2100-03-11 15:41Z', 'CRN-01: another schedule counts from now');
select next_run_at as new_beat from ojs.crons where name = 'beat' \gset
select pg_temp.clock_at('2100-03-11 15:50Z'), ojs.tick() \g /dev/null
select is((select next_run_at from ojs.crons where name = 'beat'), :'new_beat'::timestamptz + interval '30 minutes',
    'CRN-03: and beats on from there');
select is(ojs.unschedule('beat'), true, 'CRN-12: removed');
select is(pg_temp.made('beat'), 'available', 'CRN-12: its job stays');
select pg_temp.clock_at('2100-03-11 18:00Z') \g /dev/null
select is((ojs.tick() ->> 'crons')::int, 0, 'CRN-12: and no more come');

-- Disabled.
select ojs.schedule('run', null, null, '{"enabled": false}') is null as toggled,
    pg_temp.clock_at('2100-03-20 12:00Z') is null as later \gset
select is((ojs.tick() ->> 'crons')::int, 0, 'CRN-08: a disabled entry does not run');
select is((ojs.schedule('run', null, null, '{"enabled": true}') ->> 'next_run_at'), '2100-03-21T09:00:00.000Z',
    'CRN-08: enabled, it goes on from now, and makes up for nothing');
select ojs.unschedule('run') is null as gone \gset

-- The hole: told when it comes.
select pg_temp.clock_at('2026-03-08 05:00Z') \g /dev/null
select ojs.schedule('hole', '*/30 2 * * *', '{"type": "t"}',
    '{"timezone": "America/New_York", "overlap_policy": "allow"}') ->> 'next_run_at' as next_run \gset
select is(:'next_run'::text, '2026-03-09T06:00:00.000Z', 'CRN-07 CRN-08: next_run_at is a time that exists');
select pg_temp.clock_at('2026-03-08 06:59:59Z') \g /dev/null
select is((ojs.tick() ->> 'crons')::int, 0, 'CRN-07: nothing yet');
select pg_temp.clock_at('2026-03-08 07:00Z') \g /dev/null
select ojs.tick() is null as ticked, ojs.tick() is null as again \gset
select is(pg_temp.made('hole'), null, 'CRN-07: no job'),
    is(pg_temp.told('hole'), 'skipped:dst_skip', 'CRN-07: told of when it would have run, not later');
select is(data, '{"cron_name": "hole", "queue": "default", "cron_expression": "*/30 2 * * *", '
    '"timezone": "America/New_York", '
            '"reason": '
                '"dst_skip", "scheduled_time": "2026-03-08T07:00:00.000Z", "scheduled_at": "2026-03-08T07:00:00.000Z", '
                '"cron_expr": "*/30 2 * * *", "job_type": "t", "local_time": "2026-03-08T02:00:00", "occurrences": '
                '2}'::jsonb,
    'CRN-07: cron.skipped with dst_skip') from ojs_store.stored_event where subject = 'hole' and type like 'cron.%';
select pg_temp.clock_at('2026-03-09 06:00:10Z') \g /dev/null
select ojs.tick() is null as ticked \gset
select is(pg_temp.made('hole'), 'available', 'CRN-07: the day after it runs');
select is(pg_temp.told('hole'), 'skipped:dst_skip triggered', 'CRN-07: one event each');
select ojs.unschedule('hole') is null as gone \gset

-- Overlap ------------------------------------------------------------------------------------------------------------

select pg_temp.clock_at('2101-01-01 00:00Z') \g /dev/null
select ojs.schedule('o-' || replace(policy, '_', '-'), '@every 1h',
    jsonb_build_object('type', 't', 'timeout', 86400, 'queue', 'o-' || replace(policy, '_', '-')),
    jsonb_build_object('overlap_policy', policy)) is null as made
    from unnest('{skip,allow,cancel_previous,enqueue}'::text[]) policy \g /dev/null
create function pg_temp.hours_later(n int) returns void language sql as $$
    select pg_temp.clock_at(timestamptz '2101-01-01 00:01Z' + make_interval(hours => n)); select ojs.tick() $$;
select pg_temp.hours_later(1) \g /dev/null
select pg_temp.hours_later(2) \g /dev/null
select is(pg_temp.made('o-skip'), 'available',
    'CRN-10 R-54 skip: nothing new while the last job is not finished, claimed or not');
select is(pg_temp.told('o-skip'), 'triggered skipped:overlap_skip', 'CRN-10: cron.skipped with overlap_skip');
select is((select data - '{active_job_id,scheduled_at,scheduled_time}'::text[] from ojs_store.stored_event
    where type = 'cron.skipped' and subject = 'o-skip'),
    jsonb_build_object('cron_name', 'o-skip', 'queue', 'o-skip', 'cron_expression', '@every 1h',
    'cron_expr', '@every 1h', 'timezone', 'UTC', 'job_type', 't', 'reason', 'overlap_skip', 'existing_job_id',
        (select id from ojs.jobs where queue = 'o-skip')), 'EVT-02: cron.skipped, in the words of both texts');
select is((select data ->> 'active_job_id' from ojs_store.stored_event where type = 'cron.skipped'
    and subject = 'o-skip'), (select id::text from ojs.jobs where queue = 'o-skip'), 'CRN-10: it names the job');
select is((select run_count from ojs.crons where name = 'o-skip'), 1::bigint, 'CRN-10: what was skipped is no run');
select is(pg_temp.made('o-allow'), 'available available', 'CRN-10 allow: one more');
select is(pg_temp.made('o-cancel-previous'), 'cancelled available',
    'CRN-10 cancel_previous: the newer instead of the older');
select is(pg_temp.made('o-enqueue'), 'available pending', 'CRN-10 enqueue: the newer waits');
select ojs.claim('o-cancel-previous', 'w', lease => '20 hours') is null as claimed,
    ojs.claim('o-skip', 'w', lease => '20 hours') is null as also \gset
select pg_temp.hours_later(3) \g /dev/null
select is(pg_temp.made('o-cancel-previous'), 'cancelled cancelled available',
    'CRN-10: an active job is cancelled, too');
select is(pg_temp.made('o-skip'), 'active', 'CRN-10: skip while it is active');
select is(pg_temp.made('o-enqueue'), 'available pending pending', 'CRN-10 enqueue: no run is lost');
select ojs.fail(id, '{"type": "t", "message": "m"}', delay => '10 minutes') is null as failed
    from ojs.claim('o-enqueue', 'w') \gset
select ojs.tick() is null as ticked \gset
select is(pg_temp.made('o-enqueue'), 'retryable pending pending', 'CRN-10 R-54: a job to be retried is not finished');
select ojs.cancel(id) is null as cancelled from ojs.jobs where queue = 'o-enqueue' and state = 'retryable' \gset
select ojs.tick() is null as ticked \gset
select is(pg_temp.made('o-enqueue'), 'cancelled available pending', 'CRN-10: the next is let go, and one only');
select ojs.tick() is null as ticked \gset
select is(pg_temp.made('o-enqueue'), 'cancelled available pending', 'CRN-10: not two at once');
select is((select count(*) from ojs_store.cron_run where cron = 'o-enqueue'), 2::bigint,
    'CRN-10: and only those that the next run must know of are kept');
select ojs.unschedule('o-enqueue') is null as gone \gset
select ojs.ack(id) is null as acked from ojs.claim('o-enqueue', 'w') \gset
select ojs.tick() is null as ticked \gset
select is(pg_temp.made('o-enqueue'), 'cancelled completed available',
    'CRN-12: those that wait are let go without the entry, too');
select is((select count(*) from ojs_store.cron_run where cron = 'o-enqueue'), 0::bigint,
    'CRN-12: and nothing is kept of it');
select ojs.ack(id) is null as acked from ojs.jobs where queue = 'o-skip' \gset
select pg_temp.hours_later(4) \g /dev/null
select is(pg_temp.made('o-skip'), 'completed available', 'CRN-10 skip: after its end, the next');
select ojs.discard(id) is null as discarded from ojs.jobs where queue = 'o-skip' and state = 'available' \gset
select pg_temp.hours_later(5) \g /dev/null
select is(pg_temp.made('o-skip'), 'completed discarded available', 'CRN-10 skip: a discarded job is finished');
select ojs.ack(id) is null as acked, ojs.delete_job(id) as removed from ojs.claim('o-skip', 'w') \gset
select pg_temp.hours_later(6) \g /dev/null
select is(pg_temp.made('o-skip'), 'completed discarded available', 'CRN-10 skip: and so is one that was removed');
select ojs.unschedule(name) is null as gone from ojs.crons \g /dev/null

-- A policy that changes finds what the one before has left.
select pg_temp.clock_at('2101-01-01 06:31Z') \g /dev/null
select ojs.schedule('c-many', '@every 1h', '{"type": "t", "queue": "c", "timeout": 864000}',
    '{"overlap_policy": "enqueue"}') is null,
    ojs.schedule('c-wait', '@every 1h',
        '{"type": "t", "queue": "c", "timeout": 864000, "options": {"pending": false}}',
        '{"overlap_policy": "enqueue"}') is null \g /dev/null
select pg_temp.hours_later(n) from generate_series(8, 10) n \g /dev/null
select is(pg_temp.made('c-many'), 'available pending pending', 'CRN-10: two wait'),
    is(pg_temp.made('c-wait'), 'available pending pending', 'CRN-10: two wait, whatever the job says of pending');
select ojs.schedule('c-many', null, null, '{"overlap_policy": "cancel_previous"}') is null,
    ojs.schedule('c-wait', null, null, '{"overlap_policy": "allow"}') is null \g /dev/null
select pg_temp.hours_later(11) \g /dev/null
select is(pg_temp.made('c-many'), 'cancelled cancelled cancelled available',
    'CRN-10 cancel_previous: all that are not finished');
select ojs.tick() from generate_series(1, 2) \g /dev/null
select is(pg_temp.made('c-wait'), 'available available available available',
    'CRN-10 allow: those that waited are let go');
select ojs.unschedule(name) is null as gone from ojs.crons \g /dev/null

-- The normal push -----------------------------------------------------------------------------------------------------

select ojs.schedule('u-reject', '@every 1h',
    '{"type": "u", "queue": "u", "unique": {"keys": ["type"], "on_conflict": "reject"}}',
    '{"overlap_policy": "allow"}') is null,
    ojs.schedule('u-ignore', '@every 1h',
        '{"type": "u", "queue": "u", "unique": {"keys": ["type"], "on_conflict": "ignore"}}',
        '{"overlap_policy": "allow"}') is null,
    ojs.schedule('u-drained', '@every 1h', '{"type": "u", "queue": "u-drained"}') is null,
        ojs.schedule('u-well', '@every 1h', '{"type": "u2", "queue": "u"}') is null,
    ojs.schedule('u-both', '@every 1h',
        '{"type": "u3", "queue": "u", "unique": {"keys": ["type"], "on_conflict": "reject"}}',
        '{"overlap_policy": "cancel_previous"}') is null, ojs.drain_queue('u-drained') \g /dev/null
select state from ojs.push('u', queue => 'u', "unique" => '{"keys": ["type"]}') \g /dev/null
select pg_temp.hours_later(16) \g /dev/null
select is(pg_temp.told('u-reject'), 'skipped:push_failed', 'CRN-11: a unique policy may refuse') union all
    select is(pg_temp.told('u-ignore'), 'skipped:duplicate', 'CRN-11: or keep the job that is there')
union all select is(pg_temp.told('u-drained'), 'skipped:push_failed', 'CRN-11: a queue may refuse') union all
    select is(pg_temp.told('u-well'), 'triggered', 'CRN-09: what fails is no other''s business');
select is(array_agg(data ->> 'code' order by subject), '{QUEUE_PAUSED,DUPLICATE_JOB}', 'CRN-11: the event says why')
    from ojs_store.stored_event where data ->> 'reason' = 'push_failed';
select is((select array_agg(run_count order by name) from ojs.crons where name in ('u-reject', 'u-well')), '{0,1}',
    'CRN-11: what was not pushed is no run');
select is((select min(next_run_at) > '2101-01-01 16:01Z' from ojs.crons), true, 'CRN-09: each goes on');
select pg_temp.hours_later(17) \g /dev/null
select is(pg_temp.made('u-both'), 'cancelled available', 'CRN-10: overlap is decided before uniqueness');

-- A transaction with one snapshot leaves entries to others; nothing is due: nothing is planned. Budget.
select pg_temp.hours_later(19) \g /dev/null
select pg_temp.clock_at('2101-01-01 21:00Z') \g /dev/null
select is(t -> 'more', 'true', 'PGX-05: at most budget entries in a tick'),
    is(t -> 'crons', '2', 'PGX-05: not one more') from ojs.tick(2) t where (select count(*) > 3 from ojs.crons);
select is(ojs.health() is not null, true, 'PGX-05: all is well');


-- An entry that cannot run is no other's business ---------------------------------------------------------------------

select pg_temp.clock_at('2102-01-01 00:30Z') \g /dev/null
select ojs.schedule('b-zone', '@every 1h', '{"type": "t", "queue": "b-zone"}'),
    ojs.schedule('b-hook', '@every 1h', '{"type": "b.hook", "queue": "b-hook"}'),
    ojs.schedule('b-full', '@every 1h', '{"type": "b.full", "queue": "b-full"}'),
        ojs.schedule('b-well', '@every 1h', '{"type": "t", "queue": "b-well"}') \g /dev/null
update ojs_store.cron set timezone = 'US/Vanished', expression = '0 * * * *' where name = 'b-zone';
create function public.broken_hook(job jsonb) returns jsonb language plpgsql as $$
begin
    if job ->> 'type' = 'b.hook' then
        raise exception using errcode = 'OJ100', message = 'no', detail = 'this is no JSON';
    elsif job ->> 'type' = 'b.full' and current_setting('ojs_test.disk', true) = 'on' then
        raise exception using errcode = 'disk_full', message = 'the disk is full';
    end if;
    return job;
end $$;
select ojs.register_hook('broken', 'enqueue', 'public.broken_hook(jsonb)') is null \g /dev/null
set local ojs_test.disk = on;
set local client_min_messages = error;
select pg_temp.clock_at('2102-01-01 01:31Z') \g /dev/null
select is(ojs.tick() -> 'failed', '[]', 'CRN: entries that cannot run do not stop the tick');
select is(pg_temp.made('b-well'), 'available', 'CRN-09: nor other entries');
select is((select enabled || ' ' || (next_run_at is null) from ojs_store.cron where name = 'b-zone'), 'false true',
    'CRN: an entry whose time zone is gone is disabled'),
    is((select data ->> 'reason' from ojs_store.stored_event where type = 'cron.skipped' and subject = 'b-zone'),
        'disabled', 'CRN: an event says so');
select is((select data ->> 'reason' || ' ' || (data ->> 'code') from ojs_store.stored_event where type = 'cron.skipped'
    and subject = 'b-hook'), 'push_failed OJ100', 'CRN: a hook may say what it wants'),
    ok((select next_run_at > ojs_store.now() from ojs_store.cron where name = 'b-hook'), 'CRN: and its entry moves on');
select is((select count(*) from ojs_store.stored_event where subject = 'b-full' and type like 'cron.%'), 0::bigint,
    'CRN: a run that met a full disk is not over'),
    ok((select next_run_at < ojs_store.now() and due_at > ojs_store.now() from ojs_store.cron where name = 'b-full'),
        'CRN: it comes again in a second');
set local ojs_test.disk = off;
select pg_temp.clock_at('2102-01-01 01:31:02Z') \g /dev/null
select ojs.tick() \g /dev/null
select is(pg_temp.made('b-full'), 'available', 'CRN: and then runs');
reset client_min_messages;
select ojs.unregister_hook('broken') \g /dev/null
select ojs.unschedule(name) is null as gone from ojs.crons \g /dev/null

select pg_temp.clock_at('2101-03-01 00:31Z') \g /dev/null
select ojs.schedule('c-cut', '@every 1h', '{"type": "t", "queue": "cut", "timeout": 864000}',
    '{"overlap_policy": "enqueue"}') is null as made \gset
select pg_temp.hours_later(n) from generate_series(1418, 1422) n \g /dev/null
select ojs.cancel(id) is null as cancelled from
    (select id from ojs.jobs where queue = 'cut' and state = 'pending' order by seq limit 2) waiting \g /dev/null
select ojs.ack(id) is null as acked from ojs.claim('cut', 'w') \gset
select ojs.tick() from generate_series(1, 4) \g /dev/null
select is(pg_temp.made('c-cut'), 'completed cancelled cancelled available pending',
    'CRN-10 enqueue: of many that wait none is lost, and cancelled ones are passed over');

select * from finish();
rollback;
