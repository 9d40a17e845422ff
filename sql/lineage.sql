-- lineage.sql: which job has pushed which (HIS-02). A job that names its parent has a row in ojs_store.job_parent
-- (src/state/lineage.cpp). Nobody looks whether that parent exists, so it may be gone, or name a descendant: who goes
-- up or down meets no job twice.

-- The jobs below one, level by level, as the spec nests them: [{job_id, type, children}]. `truncated`: there are more.
create function ojs_store.descendants(job_id uuid, out children jsonb, out truncated boolean) returns record
language plpgsql stable parallel unsafe security definer set enable_seqscan = off set enable_bitmapscan = off
set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    most_jobs constant int := 1000;
    most_levels constant int := 20;
    most_looked_at constant int := 10 * most_jobs;
    looked_at int := 0;
    front uuid[] := array[job_id];      -- the level that was found last
    ids uuid[] := '{}';                 -- of all levels, one after the other
    parents uuid[] := '{}';
    types text[] := '{}';
    ends int[] := '{0}';                -- where the levels end
    level record;
    below jsonb := '{}';                -- what is below each job of a level, by its id
begin
    truncated := false;
    loop
        -- A job has one parent, so the only one that could come again is that from which it went down. What the caller
        -- may not read is passed over, and bounded too: so nobody hides the children of others behind a few of his own.
        select count(*) as looked_at, array_agg(c.job_id order by c.n) filter (where j.id is not null) as ids,
            array_agg(c.parent order by c.n) filter (where j.id is not null) as parents,
            array_agg(j.type order by c.n) filter (where j.id is not null) as types
        into level
        from (
            select p.job_id, p.parent, row_number() over () as n
            from unnest(front) as f(id)
            cross join lateral (
                select p.job_id, p.parent from ojs_store.job_parent p where p.parent = f.id
                order by p.job_id limit most_looked_at
            ) p
            limit most_looked_at - looked_at
        ) c
        left join ojs_store.job j on j.id = c.job_id and c.job_id <> job_id
            and ojs_store.may_use_queue(j.queue, 'read');
        exit when level.looked_at = 0;
        if cardinality(ends) > most_levels then
            truncated := true;
            exit;
        end if;
        looked_at := looked_at + level.looked_at;
        truncated := truncated or looked_at = most_looked_at
            or cardinality(ids) + coalesce(cardinality(level.ids), 0) > most_jobs;
        front := level.ids[:most_jobs - cardinality(ids)];
        exit when cardinality(front) > 0 is not true;
        ids := ids || front;
        parents := parents || level.parents[:cardinality(front)];
        types := types || level.types[:cardinality(front)];
        ends := ends || cardinality(ids);
    end loop;
    for i in reverse cardinality(ends) .. 2 loop
        select jsonb_object_agg(n.parent, n.jobs) into below
        from (
            select c.parent, jsonb_agg(jsonb_build_object('job_id', c.id, 'type', c.type,
                'children', coalesce(below -> c.id::text, '[]')) order by c.id) as jobs
            from unnest(ids[ends[i - 1] + 1:ends[i]], parents[ends[i - 1] + 1:ends[i]],
                types[ends[i - 1] + 1:ends[i]]) as c(id, parent, type)
            group by c.parent
        ) n;
    end loop;
    children := coalesce(below -> job_id::text, '[]');
end $$;

-- The jobs above one, the nearest first, as far as they are there and the caller may read them; and the farthest one
-- that is named.
create function ojs_store.ancestors(job_id uuid, out ancestors jsonb, out farthest uuid, out truncated boolean)
    returns record
language plpgsql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    most_jobs constant int := 100;
    met uuid[] := array[job_id];
    type text;
    next uuid := job_id;
begin
    ancestors := '[]';
    truncated := false;
    loop
        next := (select p.parent from ojs_store.job_parent p where p.job_id = next limit 1);
        exit when next is null or next = any (met);
        if cardinality(met) > most_jobs then
            truncated := true;
            farthest := null;
            exit;
        end if;
        farthest := next;
        select j.type into type from ojs_store.job j
            where j.id = next and ojs_store.may_use_queue(j.queue, 'read');
        exit when not found;
        ancestors := ancestors || jsonb_build_object('job_id', next, 'type', type);
        met := met || next;
    end loop;
end $$;

create function ojs_store.lineage(job_id uuid) returns jsonb
language plpgsql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    options jsonb;
    above record;
    below record;
begin
    select coalesce(j.options, '{}') into options from ojs_store.job j
        where j.id = job_id and ojs_store.may_use_queue(j.queue, 'read');
    if not found then
        perform ojs_store.raise('NOT_FOUND', format('job %s does not exist', coalesce(job_id::text, 'null')),
            jsonb_build_object('resource_type', 'job', 'resource_id', job_id, 'job_id', job_id),
            'Check the id; finished jobs are removed after their retention.');
    end if;
    above := ojs_store.ancestors(job_id);
    below := ojs_store.descendants(job_id);
    return jsonb_build_object('job_id', job_id, 'parent_id', options -> 'parent_id',
        'workflow_id', options -> 'workflow_id', 'root_id', coalesce(options ->> 'root_id', above.farthest::text),
        'ancestors', above.ancestors, 'children', below.children, 'truncated', above.truncated or below.truncated);
end $$;

-- The caller needs no right on schema ojs_store: the names in this body were looked up when it was made.
create function ojs.lineage(job_id uuid) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp
begin atomic
    select ojs_store.lineage((ojs_store.readable(array[job_id]))[1]);
end;
comment on function ojs.lineage(uuid)
    is 'Which jobs have led to a job, and which it has led to, by the parents that jobs name';
