-- lists.sql: pages of jobs. The tables of jobs have an index by job id, and ids grow with time: a list is read from the
-- end of such an index, and ojs_store.look() is asked only for what is returned. `ready` has no such index: where it is
-- large, the newest of all jobs are looked at first.

-- The ids of the jobs that a filter describes, in its order. Keys, all optional: queue, state, type (a * at its end
-- stands for whatever follows), since and until (of the push), dead_letters (true: those; since and until are then of
-- the end), error_type, args (contained in the job's), sort (created_at, scheduled_at, priority, none), ascending,
-- beyond (the id after which the list goes on). The text of the query is put together from what stands here alone.
create function ojs_store.listed_ids(filter jsonb, most int, skip bigint default 0) returns setof uuid
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    state text := filter ->> 'state';
    of_dead boolean := filter @> '{"dead_letters": true}';
    sort text := coalesce(filter ->> 'sort', 'created_at');
    way text := case when filter @> '{"ascending": true}' then 'asc' else 'desc' end;
    source text;
    newest text;
    conditions text[] := '{"ojs_store.may_use_queue(p.queue, ''read'')"}';
    query text;
    page uuid[];
begin
    if of_dead then
        source := 'select job_id, queue, null::smallint as npriority, died_at, error_type from ojs_store.dead_letter';
    elsif pg_is_in_recovery() then
        source := 'select id as job_id, ojs_store.queue_id(queue) as queue, -priority as npriority from ojs.jobs'
            || case when state is null then '' else ' where state = $1 ->> ''state''' end;
    elsif state is null and filter ->> 'queue' is null and sort <> 'priority' then
        source := 'select id as job_id, queue from ojs_store.job';
    else
        perform from ojs_store.queue_rows('{}'); -- builds the hot set where it is not
        if sort = 'created_at' and coalesce(state, 'available') = 'available' and most + skip <= 1000
            and pg_relation_size('ojs_store.ready') > 1000000 then
            newest := format('select job_id, queue from (select id as job_id, queue from ojs_store.job %s '
                'order by id %s limit 500 + 2 * ($2 + $3)) n %s',
                case when filter ->> 'beyond' is not null then format('where id %s ($1 ->> ''beyond'')::uuid',
                    case way when 'asc' then '>' else '<' end) end,
                way, case when state is not null then 'where (ojs_store.look(n.job_id)).state = ''available''' end);
        end if;
        select string_agg('select job_id, queue, ' || piece, ' union all ') into source
        from (values
            ('available', 'npriority from ojs_store.ready'),
            ('available', 'npriority from ojs_store.delayed where kind in (DelayedKind.released, DelayedKind.blocked) '
                'or kind <> DelayedKind.expiry and due_at <= ojs_store.now()'),
            ('active', 'npriority from ojs_store.lease'),
            ('scheduled', 'npriority from ojs_store.delayed where kind = DelayedKind.scheduled and due_at > '
                'ojs_store.now()'),
            ('retryable', 'npriority from ojs_store.delayed where kind = DelayedKind.retryable and due_at > '
                'ojs_store.now()'),
            ('pending', 'npriority from ojs_store.delayed where kind = DelayedKind.pending and due_at > '
                'ojs_store.now()'),
            ('completed', 'null::smallint from ojs_store.finished where state = State.completed'),
            ('cancelled', 'null::smallint from ojs_store.finished where state = State.cancelled'),
            ('discarded', 'null::smallint from ojs_store.finished where state = State.discarded')) as places(of_state,
                piece)
        where of_state = coalesce(state, of_state);
    end if;
    perform ojs_store.use_queue(filter ->> 'queue', 'read');
    if source is null then
        return; -- there is no such state
    end if;
    if filter ->> 'queue' is not null then
        conditions := conditions || 'p.queue = ojs_store.queue_id($1 ->> ''queue'')'::text;
    end if;
    if filter ->> 'type' is not null then
        conditions := conditions || case when filter ->> 'type' like '%*'
            then 'starts_with(e.type, left($1 ->> ''type'', -1))'
            else 'e.type = $1 ->> ''type''' end;
    end if;
    if filter ->> 'since' is not null then
        conditions := conditions || format('%s >= ($1 ->> ''since'')::timestamptz',
            case when of_dead then 'p.died_at' else 'e.created_at' end);
    end if;
    if filter ->> 'until' is not null then
        conditions := conditions || format('%s <= ($1 ->> ''until'')::timestamptz',
            case when of_dead then 'p.died_at' else 'e.created_at' end);
    end if;
    if filter ->> 'error_type' is not null then
        conditions := conditions || (case when of_dead then 'p.error_type'
            else '(select d.error ->> ''type'' from ojs_store.finished d where d.job_id = p.job_id)' end
            || ' = $1 ->> ''error_type''');
    end if;
    if filter -> 'args' is not null then
        conditions := conditions || 'e.args @> ($1 -> ''args'')'::text;
    end if;
    if filter ->> 'beyond' is not null then
        conditions := conditions || format('p.job_id %s ($1 ->> ''beyond'')::uuid',
            case way when 'asc' then '>' else '<' end);
    end if;
    query := format(' p%s where %s%s limit $2 offset $3',
        case when array_to_string(conditions, ' ') ~ e'\\me\\.' or sort in ('scheduled_at', 'priority')
            then ' join ojs_store.job e on e.id = p.job_id' else '' end,
        array_to_string(conditions, ' and '),
        case sort when 'created_at' then format(' order by p.job_id %s', way)
            when 'scheduled_at' then format(' order by e.scheduled_at %s nulls last, p.job_id %1$s', way)
            when 'priority' then format(' order by coalesce(-p.npriority, e.priority) %s, p.job_id %1$s', way)
            else '' end);
    if newest is not null then
        execute format('select array(select p.job_id from (%s)%s)', newest, query) into page using filter, most, skip;
        if cardinality(page) = most then
            return query select unnest(page);
            return;
        end if;
    end if;
    return query execute format('select p.job_id from (%s)%s', source, query) using filter, most, skip;
end $$;

-- How many dead letters this queue has, or each that the caller may read and that has some: from the counters, or by
-- counting.
create function ojs_store.dead_letters_of(only_id bigint, out queue bigint, out n bigint) returns setof record
language plpgsql stable parallel unsafe rows 10 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    counted boolean := false;
    ids bigint[];
begin
    with recursive of (queue) as (
        (select l.queue from ojs_store.dead_letter l order by l.queue limit 1)
        union all
        select (select l.queue from ojs_store.dead_letter l where l.queue > of.queue order by l.queue limit 1)
        from of where of.queue is not null
    )
    select array_agg(of.queue) into ids from of
    where of.queue = coalesce(only_id, of.queue) and ojs_store.may_use_queue(of.queue, 'read');
    if not pg_is_in_recovery() then
        return query select c.queue, c.dead_letters from ojs_store.counted_apart(ids, true) c where c.dead_letters > 0;
        counted := found;
    end if;
    if not counted then
        return query select l.queue, count(*) from ojs_store.dead_letter l where l.queue = any (ids) group by 1;
    end if;
end $$;

-- How many jobs such a filter describes: from the counters where queue and state say it all. Where only looking at the
-- jobs would tell, no more than 10,001 are counted.
create function ojs_store.count_listed(filter jsonb) returns bigint
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    if filter ?| '{type,since,until,error_type,args}' or pg_is_in_recovery() then
        return (select count(*) from ojs_store.listed_ids(filter || '{"sort": "none"}', 10001));
    end if;
    if filter @> '{"dead_letters": true}' then
        return (select coalesce(sum(d.n), 0) from ojs_store.dead_letters_of(ojs_store.queue_id(filter ->> 'queue')) d);
    end if;
    return (
        select coalesce(sum(case
            when filter ? 'state' then (to_jsonb(c) ->> (filter ->> 'state'))::bigint
            else c.available + c.active + c.scheduled + c.retryable + c.pending + c.completed + c.cancelled
                + c.discarded end), 0)
        from ojs_store.queue_counts(array( -- also those that were dropped
            select distinct q.id from ojs_store.queue q where q.name = coalesce(filter ->> 'queue', q.name)
            and ojs_store.may_use_queue(q.id, 'read'))) c);
end $$;

create function ojs.list_jobs(
    queue text default null, state text default null, type text default null, after text default null,
        max int default 100
) returns setof ojs.job
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    most_bytes constant bigint := 16 * 1024 * 1024;
    bytes bigint := 0;
    id uuid;
    job ojs.job;
begin
    if state <> all ('{available,scheduled,retryable,pending,active,completed,cancelled,discarded}') then
        perform ojs_store.raise('INVALID_PAYLOAD', 'state is none of the states of a job', '{"field": "state"}',
            'Give available, scheduled, retryable, pending, active, completed, cancelled, discarded, or null for all.');
    elsif max is null or max not between 1 and 1000 then
        perform ojs_store.raise('INVALID_PAYLOAD', 'max must be from 1 to 1000', '{"field": "max"}',
            'Read further pages with after.');
    elsif after collate "C" !~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'after is not the id of a job', '{"field": "after"}',
            'Give the id of the last job of the page before, or null for the first page.');
    elsif queue is not null then
        perform ojs_store.queue_found(queue);
    end if;
    for id in
        select * from ojs_store.listed_ids(jsonb_strip_nulls(jsonb_build_object('queue', queue, 'state', state, 'type',
            type, 'beyond', after)), max)
    loop
        job := ojs_store.look(id);
        continue when job.id is null or job.state <> state; -- removed or gone on meanwhile
        return next job;
        bytes := bytes + pg_column_size(job);
        exit when bytes > most_bytes;
    end loop;
end $$;
comment on function ojs.list_jobs(text, text, text, text, int) is 'A page of jobs, newest first, each as it stands';
