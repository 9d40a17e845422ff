-- event_stream.sql: events read with a cursor, and notices of new events.

-- A time as a number in a cursor.
create function ojs_store.micros(at timestamptz) returns bigint
language sql immutable strict parallel safe
begin atomic
    select (extract(epoch from at) * 1000000)::bigint;
end;

-- By days and the rest: one interval times a number is worked out in floating point, and can be a digit longer.
create function ojs_store.from_micros(n bigint) returns timestamptz
language sql immutable strict parallel safe
begin atomic
    select (timestamp '1970-01-01 00:00:00' + n / 86400000000 * interval '1 day'
        + n % 86400000000 * interval '1 microsecond') at time zone 'UTC';
end;

-- No row that a transaction may still store, or has stored since the last statement began, is older than this. Rows
-- bear times no earlier than the start of their transaction. `otherwise` where that cannot be known: a snapshot that
-- stays, a standby, a prepared transaction, a session whose activity is hidden.
create function ojs_store.oldest_open(otherwise timestamptz) returns timestamptz
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    unknown boolean;
    oldest timestamptz;
begin
    if pg_is_in_recovery() or current_setting('transaction_isolation') <> 'read committed'
        or exists (select from pg_prepared_xacts where database = current_database()) then
        return otherwise;
    end if;
    -- A transaction that began in the time to come has seen the clock being set back, and has rows from before and
    -- after that.
    select bool_or(a.state = 'disabled' or a.query = '<insufficient privilege>' or a.xact_start > clock_timestamp()),
        min(a.xact_start)
    into unknown, oldest
    from pg_stat_activity a
    where a.datname = current_database() and a.backend_type <> 'autovacuum worker';
    -- A session has started its transaction a moment before it says so.
    return case when unknown then otherwise else greatest(otherwise, oldest - interval '5 seconds') end;
end $$;

-- The cursor after which everything is read that is not committed yet.
create function ojs_store.cursor_now() returns text
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    since timestamptz := ojs_store.oldest_open(ojs_store.from_micros(0)); -- looked up before the snapshot below
begin
    return pg_snapshot_xmin(pg_current_snapshot()) || '.' || ojs_store.micros(since);
end $$;

-- The earliest time of a row, written at `since` or later, of a transaction that is not older than this.
create function ojs_store.first_written(since timestamptz, by bigint) returns timestamptz
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select min(w.at)
    from (select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as next offset 0) n, lateral (
        select j.created_at as at, j.xmin as xid from ojs_store.job j where j.created_at >= since
        union all select e.at, e.xmin from ojs_store.job_history e where e.at >= since
        union all select f.finished_at, f.xmin from ojs_store.finished f where f.finished_at >= since
        union all select r.written_at, r.xid from ojs_store.running() r where r.written_at >= since
        union all select s.at, s.xmin from ojs_store.stored_event s where s.at >= since
        union all select w.ended_at, w.xmin from ojs_store.workflow_end w where w.ended_at >= since
    ) w
    where (n.next & -4294967296) + w.xid::text::bigint - case when w.xid::text::bigint > (n.next & 4294967295)
        then 4294967296 else 0 end >= by
$$;

-- The earliest time of a row that tells of events and is not found by the id of its job.
create function ojs_store.first_other() returns timestamptz
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select least((select min(r.written_at) from ojs_store.running() r),
        (select min(s.at) from ojs_store.stored_event s),
        (select min(w.ended_at) from ojs_store.workflow_end w))
$$;

-- Whether a reader wants an event.
create function ojs_store.is_wanted(type text, queue text, job_type text, types text[], queues text[],
    job_types text[]) returns boolean
language sql immutable parallel safe
begin atomic
    select (types is null or ojs_store.matches(type, types)) and (queues is null or queue = any (queues))
        and (job_types is null or ojs_store.matches(job_type, job_types));
end;

-- Whether the caller may see an event: as its queue, or the queues of its workflow.
create function ojs_store.may_read_event(type text, queue text, subject text, queues jsonb) returns boolean
language sql stable parallel unsafe
begin atomic
    select case when queue is not null then ojs_store.may_use_queue(queue, 'read')
        when type ~ '^(workflow|cron)[.]' then ojs_store.may_see(type, subject, queues)
        else ojs_store.caller_tenant() is null end;
end;

/*
 * Rows are visible once they are committed; but a transaction that is still open may have stored rows before them. So a
 * reading ends below the oldest open transaction, `below`, and the next one begins there: it takes the events with
 * lowest <= settled_by < below, in the order of time. A page is a part of a reading.
 *
 * The first reading, from the beginning, goes through the jobs in the order of their ids, by the indexes that there are
 * for ids; then it takes, in the order of time, what is left: leases, and events that no job has.
 *
 * So that the next one need not look at all that is kept, a cursor knows a time that no row still to be read is older
 * than, `since`: the start of the oldest transaction that is open in this database (looked up before the snapshot that
 * the rows are read by), or the time of a row that this snapshot sees and that is not settled.
 *
 * A cursor is lowest.since, and in the middle of a reading .below.next_since and the last event's written_at.key.
 * deliveries.rank, then .1 where the first reading has come to what is left. Times are in microseconds.
 */
create function ojs_store.read_events(after text, types text[], queues text[], job_types text[], max int,
    ids_only boolean, of_everybody boolean default false) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    most int := least(greatest(coalesce(max, 100), 1), 1000);
    most_bytes constant int := 8 * 1024 * 1024;
    most_jobs constant int := 10000; -- that one call looks at
    looked int := 0;
    batch int;
    ids uuid[];
    by_job boolean;
    parts text[] := string_to_array(after, '.');
    lowest bigint := 0;
    below bigint;
    since timestamptz := ojs_store.from_micros(0);
    set_back boolean := false;
    next_since timestamptz;
    last_at timestamptz := '-infinity';
    last_key uuid := '00000000-0000-0000-0000-000000000000';
    last_deliveries int := -2;
    last_rank int := 0;
    slice_from timestamptz;
    slice_to timestamptz;
    slice interval := '1 second';
    found_events refcursor;
    event record;
    page jsonb[] := '{}';
    bytes bigint := 0;
    more boolean := false;
begin
    queues := case when queues is not null then array(select ojs_store.stored_queue(q) from unnest(queues) q) end;
    if after = 'now' then
        return jsonb_build_object('events', '[]'::jsonb, 'cursor', ojs_store.cursor_now(), 'has_more', false);
    end if;
    if after !~ ('^[0-9]{1,18}[.][0-9]{1,18}'
            '([.][0-9]{1,18}[.][0-9]{1,18}[.][0-9]{1,18}[.][0-9a-f]{32}[.]-?[0-9]{1,9}[.][0-9]{1,2}([.]1)?)?$') then
        perform ojs_store.raise('INVALID_PAYLOAD', 'after is no cursor', '{"field": "after"}',
            'Give the cursor of an earlier answer of ojs.events, or null to read from the beginning.');
    end if;
    if after is not null then
        lowest := parts[1];
        since := ojs_store.from_micros(parts[2]::bigint);
        -- As after a failover to a server that had not yet received all of it: what lies between would be passed over
        -- in silence.
        if greatest(lowest, parts[3]::bigint) > pg_snapshot_xmax(pg_current_snapshot())::text::bigint then
            perform ojs_store.raise('INVALID_PAYLOAD',
                'after is a cursor of another server or of another history of this one', '{"field": "after"}',
                'Read from the beginning (null), or from now on (''now'').');
        end if;
    end if;
    slice_from := since;
    if cardinality(parts) > 2 then
        below := parts[3];
        next_since := ojs_store.from_micros(parts[4]::bigint);
        last_at := ojs_store.from_micros(parts[5]::bigint);
        last_key := parts[6];
        last_deliveries := parts[7];
        last_rank := parts[8];
        slice_from := last_at;
        slice := '10 milliseconds'; -- so much happens that a page was full
    else
        -- A cursor of a time to come was given out before the clock was set back: what was stored since then bears
        -- earlier times.
        set_back := since > ojs_store.now();
        next_since := coalesce(ojs_store.oldest_open(case when not set_back then since end), since);
        below := pg_snapshot_xmin(pg_current_snapshot())::text;
        if lowest > 0 then
            slice_from := ojs_store.first_written(case when set_back then '-infinity' else since end, lowest);
        end if;
    end if;
    by_job := lowest = 0 and parts[9] is null;
    batch := least(most, 100);

    loop
        if by_job then
            ids := array(select j.id from ojs_store.job j where j.id >= last_key order by j.id limit batch);
            looked := looked + cardinality(ids);
            open found_events for
                select e.at, e.identity, e.type, e.source, e.subject, e.written_at, e.key, e.deliveries, e.rank,
                    case when not ids_only then e.data end as data, -- not read in vain: results may be large
                    case when of_everybody then e.queues end as queues
                from ojs_store.all_events e
                where e.logged and e.job_id = any (ids) and e.settled_by < below
                    and (e.key, e.written_at, e.deliveries, e.rank) > (last_key, last_at, last_deliveries, last_rank)
                    and ojs_store.is_wanted(e.type, e.queue, e.job_type, types, queues, job_types)
                    and (ids_only or of_everybody or ojs_store.may_read_event(e.type, e.queue, e.subject, e.queues))
                order by e.key, e.written_at, e.deliveries, e.rank
                limit most + 1 - cardinality(page);
        else
            -- Slice by slice, so that a long past is not sorted as a whole for each page of it.
            exit when slice_from = 'infinity' or slice_from is null;
            slice_to := case when slice_from + slice < ojs_store.now() then slice_from + slice else 'infinity' end;
        end if;
        if not by_job and lowest = 0 then
            open found_events for
                select e.at, e.identity, e.type, e.source, e.subject, e.written_at, e.key, e.deliveries, e.rank,
                    case when not ids_only then e.data end as data, -- not read in vain: results may be large
                    case when of_everybody then e.queues end as queues
                from ojs_store.all_events e
                where not e.logged and e.written_at >= slice_from and e.written_at < slice_to and e.settled_by < below
                    and (e.written_at, e.key, e.deliveries, e.rank) > (last_at, last_key, last_deliveries, last_rank)
                    and ojs_store.is_wanted(e.type, e.queue, e.job_type, types, queues, job_types)
                    and (ids_only or of_everybody or ojs_store.may_read_event(e.type, e.queue, e.subject, e.queues))
                order by e.written_at, e.key, e.deliveries, e.rank
                limit most + 1 - cardinality(page);
        elsif not by_job then
            open found_events for
                select e.at, e.identity, e.type, e.source, e.subject, e.written_at, e.key, e.deliveries, e.rank,
                    case when not ids_only then e.data end as data, -- not read in vain: results may be large
                    case when of_everybody then e.queues end as queues
                from ojs_store.all_events e
                where e.written_at >= slice_from and e.written_at < slice_to and e.settled_by >= lowest
                    and e.settled_by < below
                    and (e.written_at, e.key, e.deliveries, e.rank) > (last_at, last_key, last_deliveries, last_rank)
                    and ojs_store.is_wanted(e.type, e.queue, e.job_type, types, queues, job_types)
                    and (ids_only or of_everybody or ojs_store.may_read_event(e.type, e.queue, e.subject, e.queues))
                order by e.written_at, e.key, e.deliveries, e.rank
                limit most + 1 - cardinality(page);
        end if;
        loop
            fetch found_events into event;
            exit when not found;
            -- A page has a bound in bytes, too: jsonb holds no more than 256 MB.
            more := cardinality(page) = most or bytes > most_bytes;
            exit when more;
            bytes := bytes + coalesce(pg_column_size(event.data), 0);
            page := page || case when ids_only then jsonb_build_object('id',
                ojs_store.event_id(event.at, event.identity))
                else jsonb_build_object(
                    'specversion', '1.0', 'id', ojs_store.event_id(event.at, event.identity), 'type', event.type,
                    'source', 'ojs://' || ojs_store.uri_part(current_database()::text) || '/' || event.source,
                    'time', ojs_store.time_text(event.at), 'subject', event.subject, 'data', event.data)
                || case when of_everybody then jsonb_build_object('queue_ids', event.queues) else '{}' end end;
            last_at := event.written_at;
            last_key := event.key;
            last_deliveries := event.deliveries;
            last_rank := event.rank;
        end loop;
        close found_events;
        exit when more;
        if not by_job then
            slice_from := slice_to;
            slice := slice * 4;
        elsif cardinality(ids) = batch then
            -- On with the jobs after these.
            last_key := ids[batch];
            last_at := ojs_store.from_micros(900000000000000000); -- later than any; its text goes into a cursor
            batch := least(batch * 2, 2000);
            more := looked >= most_jobs;
            exit when more;
        else
            by_job := false;
            slice_from := coalesce(ojs_store.first_other(), 'infinity');
            last_at := slice_from;
            last_key := '00000000-0000-0000-0000-000000000000';
            last_deliveries := -2;
        end if;
    end loop;
    if not more then
        next_since := least(next_since,
            ojs_store.first_written(case when set_back then '-infinity' else since end, below));
    end if;

    return jsonb_build_object(
        'events', to_jsonb(page),
        'cursor', case when more then concat_ws('.', lowest, ojs_store.micros(since), below,
                ojs_store.micros(next_since), ojs_store.micros(last_at), replace(last_key::text, '-', ''),
                    last_deliveries, last_rank,
                case when lowest = 0 and not by_job then 1 end)
            else below || '.' || ojs_store.micros(next_since) end,
        'has_more', more)
        || case when after is not null and exists (select from ojs_store.retention_cursor s
            where s.removed_to >= ojs_store.from_micros(parts[2]::bigint))
            then '{"missed": true}' else '{}' end::jsonb;
end $$;

create function ojs.events(
    after text default null, types text[] default null, queues text[] default null, job_types text[] default null,
    max int default 100
) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    return ojs_store.read_events(after, types, queues, job_types, max, false);
end $$;
comment on function ojs.events(text, text[], text[], text[], int)
    is 'Events after a cursor, in the lifecycle order of each job, and the cursor to go on with; none is passed over';

-- Has ticks send the id of each event to the channel ojs_events, from now on. Without a lock on the cursor's table,
-- which ticks write.
create function ojs.notify_events(enabled boolean default true) returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    cursor_now text := ojs_store.cursor_now();
begin
    lock table ojs_store.event_notify_cursor in row exclusive mode; -- not first to be read, as in bulk.sql
    if not enabled then
        delete from ojs_store.event_notify_cursor;
    elsif not exists (select from ojs_store.event_notify_cursor) then
        insert into ojs_store.event_notify_cursor (cursor) values (cursor_now) on conflict do nothing;
        perform ojs.index_events(); -- or each tick would look at every job that is kept
    end if;
end $$;
comment on function ojs.notify_events(boolean)
    is 'Has ticks notify the channel ojs_events of each event, with its id; or has them stop';

-- Returns the number of events sent; one session at a time.
create function ojs_store.tell_events(most int) returns int
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    notified_until text;
    page jsonb;
    n int;
begin
    select t.cursor into notified_until from ojs_store.event_notify_cursor t limit 1 for update skip locked;
    if not found then
        return 0;
    end if;
    page := ojs_store.read_events(notified_until, null, null, null, least(most, 1000), true);
    perform pg_notify('ojs_events', e ->> 'id') from jsonb_array_elements(page -> 'events') e;
    get diagnostics n = row_count;
    -- the clock was set back
    if n > 0 or ojs_store.from_micros(split_part(notified_until, '.', 2)::bigint) > ojs_store.now() then
        update ojs_store.event_notify_cursor set cursor = page ->> 'cursor';
    end if;
    return n;
end $$;

-- What ojs.events looks for by time. These indexes are no part of the plain installation, since every push and every
-- end of a job would pay for them.
create function ojs.index_events(enabled boolean default true) returns void
language plpgsql volatile parallel unsafe security definer set client_min_messages = warning
    set search_path = pg_catalog, pg_temp as $$
begin
    if enabled then
        create index if not exists job_created on ojs_store.job using brin (created_at)
            with (pages_per_range = 32, autosummarize = on);
        create index if not exists job_history_at on ojs_store.job_history using brin (at)
            with (pages_per_range = 32, autosummarize = on);
        create index if not exists finished_finished_at on ojs_store.finished using brin (finished_at)
            with (pages_per_range = 32, autosummarize = on);
    else
        drop index if exists ojs_store.job_created, ojs_store.job_history_at, ojs_store.finished_finished_at;
    end if;
end $$;
comment on function ojs.index_events(boolean)
    is 'Makes, or drops, the indexes with which ojs.events need not look at every job that is kept';
