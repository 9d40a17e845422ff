-- aging.sql: jobs that rise while they wait, in queues with priority_aging_s. C++: src/upkeep/aging.cpp.
-- A job's position in `ready` is a number of the sequence, drawn when it came to its priority there. So who has been
-- there for a step is told by the number that the sequence had a step ago. One tick at a time comes here: it has the
-- row `priority_aging` of ojs_store.retention_cursor.

-- How many tenths of a step have passed since the last look; at most all.
create function ojs_store.aging_tenths(known ojs_store.priority_aging, at timestamptz) returns int
language sql immutable parallel safe
begin atomic
    select least(floor(extract(epoch from at - known.at) * 10 / known.step_s), 10)::int;
end;

-- Jobs with a lower number have been at their priority for a step; null: none is due that was not a moment ago.
create function ojs_store.aging_number(queue bigint, step_s int, at timestamptz) returns bigint
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    known ojs_store.priority_aging;
    tenths int;
begin
    select a.* into known from ojs_store.priority_aging a where a.queue = queue;
    if not found or known.step_s <> step_s or known.at > at then
        insert into ojs_store.priority_aging as a (queue, step_s, at, numbers)
            select queue, step_s, at, array_fill(0::bigint, array[9]) || s.last_value + 1 from ojs_store.seq s
            on conflict on constraint priority_aging_pkey do update
                set step_s = excluded.step_s, at = excluded.at, numbers = excluded.numbers;
        return null;
    end if;
    tenths := ojs_store.aging_tenths(known, at);
    return case when tenths > 0 then known.numbers[tenths] end;
end $$;

-- All of these have risen. Where more than a tenth has passed, no number is known for what is between: the last one
-- stands for it, so that nobody rises too soon.
create function ojs_store.aging_done(queue bigint, at timestamptz) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    known ojs_store.priority_aging;
    tenths int;
    next bigint := (select s.last_value + 1 from ojs_store.seq s);
begin
    select a.* into known from ojs_store.priority_aging a where a.queue = queue;
    if not found then -- the queue has been dropped since
        return;
    end if;
    tenths := ojs_store.aging_tenths(known, at);
    update ojs_store.priority_aging a
        set at = at, numbers = (known.numbers || array_fill(known.numbers[10], array[tenths - 1]) || next)[tenths + 1:]
        where a.queue = queue;
end $$;
