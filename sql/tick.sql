-- tick.sql: upkeep by whoever calls. C++: src/upkeep/tick.cpp, src/state/reap.cpp and src/upkeep/retention.cpp.

create function ojs.tick(budget int default null) returns jsonb
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_tick';
comment on function ojs.tick(int)
    is 'One pass of upkeep: reaps lapsed leases, promotes due jobs, discards expired ones, removes what is kept no '
       'longer; at most budget rows per duty';

-- The longest time for which a queue keeps jobs that can be retried by hand; null where none says so.
create function ojs_store.longest_retry() returns interval
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select max(ojs_store.longest_retry(q.config)) * interval '1 ms' from ojs_store.queue q
    where q.config ?| '{retention,dead_letter_ttl}' and q.state <> 'deleted'
$$;

-- The job that a token of ojs.once begins with.
create function ojs_store.job_in_token(token text) returns uuid
language sql immutable strict parallel safe set search_path = pg_catalog, pg_temp as $$
    select substring(token from '^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}')::uuid
$$;

-- Removes tokens of ojs.once that are older than any job can be that is tried again by hand: a dead letter that is
-- replayed must not repeat what it has done. Those of a job that is still kept begin anew.
create function ojs_store.prune_tokens(most int) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp set enable_seqscan = off
set jit = off as $$
declare
    now_at timestamptz := ojs_store.now();
    before timestamptz := now_at - interval '180 days';
    old tid[];
    kept tid[];
begin
    if not exists (select from ojs_store.once_token o where o.at <= before) then
        return;
    end if;
    before := least(before, now_at - ojs_store.longest_retry());
    old := array(select o.ctid from ojs_store.once_token o where o.at <= before order by o.at limit most
        for update skip locked);
    kept := array(select o.ctid from ojs_store.once_token o join ojs_store.job j
        on j.id = ojs_store.job_in_token(o.token) where o.ctid = any (old));
    delete from ojs_store.once_token o where o.ctid = any (old) and o.ctid <> all (kept);
    update ojs_store.once_token o set at = now_at where o.ctid = any (kept);
end $$;

-- Removes events that have rows of their own and are too old, and with `count` the oldest of too many. Returns the
-- number of events removed.
create function ojs_store.prune_records(most int, count boolean) returns int
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp
set enable_seqscan = off -- plans are kept, and nothing may have counted the rows yet
set jit = off as $$
#variable_conflict use_variable
declare
    before timestamptz := ojs_store.now() - extract(epoch
        from current_setting('ojs.event_retention')::interval) * interval '1 second';
    acts_before timestamptz := before;
    audit_before timestamptz := ojs_store.now() - extract(epoch
        from current_setting('ojs.audit_retention')::interval) * interval '1 second';
    newest timestamptz;
    n int := 0;
begin
    -- Only where there may be so many: a row and what points to it take 60 bytes and more.
    if count and pg_relation_size('ojs_store.stored_event') / 60 > current_setting('ojs.max_events')::int then
        before := greatest(before, (select r.at from ojs_store.stored_event r where not ojs_store.is_act(r.type)
            order by r.at desc offset current_setting('ojs.max_events')::int limit 1));
        acts_before := greatest(acts_before, (select r.at from ojs_store.stored_event r where ojs_store.is_act(r.type)
            order by r.at desc offset current_setting('ojs.max_events')::int limit 1));
    end if;
    if exists (select from ojs_store.stored_event r where r.at <= greatest(before, acts_before)
            and r.at <= case when ojs_store.is_act(r.type) then acts_before else before end) then
        perform from ojs_store.retention_cursor s where s.what = 'stored_event' for update skip locked;
        if found then
            with gone as (
                delete from ojs_store.stored_event where ctid = any (array(
                    select r.ctid from ojs_store.stored_event r
                    where r.at <= greatest(before, acts_before)
                        and r.at <= case when ojs_store.is_act(r.type) then acts_before else before end
                    order by r.at limit most for update skip locked))
                returning at
            )
            select count(*), max(gone.at) into n, newest from gone;
            update ojs_store.retention_cursor s set removed_to = greatest(s.removed_to, newest)
                where s.what = 'stored_event';
        end if;
    end if;
    delete from ojs_store.audit where ctid = any (array(
        select a.ctid from ojs_store.audit a where a.at <= audit_before
        order by a.at limit most for update skip locked));
    perform ojs_store.prune_tokens(most);
    return n;
end $$;
