-- event_stream.sql: events read with a cursor, and notices of new events.

-- A time as a number in a cursor.
create function ojs_store.micros(at timestamptz) returns bigint
language sql immutable strict parallel safe
begin atomic
    select (extract(epoch from at) * 1000000)::bigint;
end;

create function ojs_store.from_micros(n bigint) returns timestamptz
language sql immutable strict parallel safe
begin atomic
    select timestamptz '1970-01-01 00:00:00+00' + n * interval '1 microsecond';
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

/*
 * Rows are visible once they are committed; but a transaction that is still open may have stored rows before them. So a
 * reading ends below the oldest open transaction, `below`, and the next one begins there: it takes the events with
 * lowest <= settled_by < below, in the order of time. A page is a part of a reading.
 *
 * So that this need not look at all that is kept, a cursor knows a time that no row still to be read is older than,
 * `since`: the start of the oldest transaction that is open in this database (looked up before the snapshot that the
 * rows are read by), or the time of a row that this snapshot sees and that is not settled.
 *
 * A cursor is lowest.since, and in the middle of a reading .below.next_since and the last event's written_at.key.
 * deliveries.rank. Times are in microseconds.
 */
create function ojs_store.read_events(after text, types text[], queues text[], job_types text[], max int,
    ids_only boolean) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    most int := least(greatest(coalesce(max, 100), 1), 1000);
    most_bytes constant int := 8 * 1024 * 1024;
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
    event record;
    page jsonb[] := '{}';
    bytes bigint := 0;
    more boolean := false;
begin
    if after = 'now' then
        return jsonb_build_object('events', '[]'::jsonb, 'cursor', ojs_store.cursor_now(), 'has_more', false);
    end if;
    if after !~ ('^[0-9]{1,18}\.[0-9]{1,18}'
            '(\.[0-9]{1,18}\.[0-9]{1,18}\.[0-9]{1,18}\.[0-9a-f]{32}\.-?[0-9]{1,9}\.[0-9]{1,2})?$') then
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
    else
        -- A cursor of a time to come was given out before the clock was set back: what was stored since then bears
        -- earlier times.
        set_back := since > ojs_store.now();
        next_since := coalesce(ojs_store.oldest_open(case when not set_back then since end), since);
        below := pg_snapshot_xmin(pg_current_snapshot())::text;
        select min(e.written_at), least(next_since, min(e.written_at) filter (where e.settled_by >= below))
        into slice_from, next_since
        from ojs_store.all_events e
        where (e.written_at >= since or set_back) and e.settled_by >= lowest;
    end if;

    -- Slice by slice, so that a long past is not sorted as a whole for each page of it.
    while slice_from < 'infinity' and not more loop
        slice_to := case when slice_from + slice < ojs_store.now() then slice_from + slice else 'infinity' end;
        for event in
            select e.at, e.identity, e.type, e.source, e.subject, e.written_at, e.key, e.deliveries, e.rank,
                case when not ids_only then e.data end as data -- not read in vain: results may be large
            from ojs_store.all_events e
            where e.written_at >= slice_from and e.written_at < slice_to and e.settled_by >= lowest
                and e.settled_by < below
                and (e.written_at, e.key, e.deliveries, e.rank) > (last_at, last_key, last_deliveries, last_rank)
                and (types is null or ojs_store.matches(e.type, types))
                and (queues is null or e.queue = any (queues))
                and case when ids_only then true
                    when e.queue is not null then ojs_store.may_use_queue(e.queue, 'read')
                    when e.type ~ '^(workflow|cron)\.' then ojs_store.may_see(e.type, e.subject)
                    else true end
                and (job_types is null or ojs_store.matches(e.job_type, job_types))
            order by e.written_at, e.key, e.deliveries, e.rank
            limit most + 1 - cardinality(page)
        loop
            -- A page has a bound in bytes, too: jsonb holds no more than 256 MB.
            more := cardinality(page) = most or bytes > most_bytes;
            exit when more;
            bytes := bytes + coalesce(pg_column_size(event.data), 0);
            page := page || case when ids_only then jsonb_build_object('id',
                ojs_store.event_id(event.at, event.identity))
                else jsonb_build_object(
                    'specversion', '1.0', 'id', ojs_store.event_id(event.at, event.identity), 'type', event.type,
                    'source', 'ojs://' || ojs_store.uri_part(current_database()::text) || '/' || event.source,
                    'time', ojs_store.time_text(event.at), 'subject', event.subject, 'data', event.data) end;
            last_at := event.written_at;
            last_key := event.key;
            last_deliveries := event.deliveries;
            last_rank := event.rank;
        end loop;
        slice_from := slice_to;
        slice := slice * 4;
    end loop;

    return jsonb_build_object(
        'events', to_jsonb(page),
        'cursor', case when more then concat_ws('.', lowest, ojs_store.micros(since), below,
                ojs_store.micros(next_since), ojs_store.micros(last_at), replace(last_key::text, '-', ''),
                    last_deliveries, last_rank)
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

-- Has ticks send the id of each event to the channel ojs_events, from now on. Without a lock on the table, which ticks
-- write.
create function ojs.notify_events(enabled boolean default true) returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    cursor_now text := ojs_store.cursor_now();
begin
    if not enabled then
        delete from ojs_store.event_notify_cursor;
    elsif not exists (select from ojs_store.event_notify_cursor) then
        insert into ojs_store.event_notify_cursor (cursor) values (cursor_now) on conflict do nothing;
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
