-- workflow_read.sql: what workflows are told of, and what they tell the jobs in them.

create function ojs_store.error_facts(error jsonb) returns jsonb
language sql immutable parallel safe
begin atomic
    select case when error is not null then jsonb_build_object('code', coalesce(error ->> 'code', error ->> 'type'),
        'type', error ->> 'type',
        'message', left(error ->> 'message', 1000)) end;
end;

-- The results of members below a place, in an array, an inner workflow's in an array of their own. As many of the
-- newest as fit into `room` bytes, the first in any case if `one`; the others, and those of members that have none, are
-- null.
create function ojs_store.member_results(id uuid, below int, most int, one boolean, inout room bigint,
    out results jsonb, out truncated boolean) returns record
language plpgsql strict stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    elements jsonb[];
    done record;
    bytes bigint;
    inner_one record;
    n int := 0;
begin
    -- Mostly all are jobs, and there is room for all.
    select count(*), bool_and(e.is_job), sum(octet_length(e.result::text)),
        jsonb_agg(e.result order by e.position) as results
    into done from ojs_store.workflow_end e
    where e.workflow = id and e.position >= below - most and e.position < below;
    if done.count = least(below, most) and done.bool_and and coalesce(done.sum, 0) <= room then
        results := case when below > most
            then to_jsonb(array_fill(null::jsonb, array[below - most])) || done.results else done.results end;
        room := room - coalesce(done.sum, 0);
        truncated := below > most;
        return;
    end if;
    truncated := false;
    elements := array_fill(null::jsonb, array[below]);
    for done in
        select e.position, e.member, e.is_job, e.result, w.members
        from ojs_store.workflow_end e left join ojs_store.workflow w on not e.is_job and w.id = e.member
        where e.workflow = id and e.position < below order by e.position desc limit most
    loop
        n := n + 1;
        if not done.is_job then
            inner_one := ojs_store.member_results(done.member, done.members, done.members, one and n = 1, room);
            elements[done.position + 1] := inner_one.results;
            room := inner_one.room;
            truncated := truncated or inner_one.truncated;
        elsif done.result is not null then
            bytes := octet_length(done.result::text);
            if bytes <= room or one and n = 1 then
                elements[done.position + 1] := done.result;
                room := room - bytes;
            else
                truncated := true;
            end if;
        end if;
    end loop;
    truncated := truncated or below > most;
    results := coalesce(to_jsonb(elements), '[]');
end $$;

-- The members of a workflow that did not end well, and why; the first of them. Inner ones have members of their own.
create function ojs_store.member_errors(id uuid, below int) returns jsonb
language sql strict stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select coalesce(jsonb_agg(case when m.callback is null then jsonb_build_object('index', e.position)
        else jsonb_build_object('callback', m.callback) end
        || jsonb_build_object(case when e.is_job then 'job_id' else 'workflow_id' end, e.member, 'attempt', e.attempt,
            'state', e.state) || coalesce(ojs_store.error_facts(e.error),
            jsonb_build_object('code', e.state, 'message', 'the job was ' || e.state))
        order by e.position), '[]')
    from (
        select * from ojs_store.workflow_end f where f.workflow = id and f.position < below and f.state <> 'completed'
            order by f.position limit 100
    ) e
    left join ojs_store.workflow_member m on m.workflow = e.workflow and m.position = e.position
$$;

-- What a job is told of the members before it, when it is handed out: those of the nearest chain or batch around it.
create function ojs_store.parent_results(job_id uuid) returns jsonb
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    most_bytes constant bigint := 262144;
    w ojs_store.workflow;
    place int;
    found_results record;
begin
    select o.position into place from ojs_store.workflow_open o where o.member = job_id;
    select x.* into w from ojs_store.workflow_open o join ojs_store.workflow x on x.id = o.workflow
        where o.member = job_id;
    if w.id is null then -- one that is tried again by hand
        select x.* into w from ojs_store.job j join ojs_store.workflow x on x.id = (j.options ->> 'workflow_id')::uuid
            where j.id = job_id;
        select e.position into place from ojs_store.workflow_end e where e.workflow = w.id and e.member = job_id;
        if not found then
            return null;
        end if;
    end if;
    while w.id is not null loop
        if place >= w.members then
            found_results := ojs_store.member_results(w.id, w.members, w.members, false, most_bytes);
            return jsonb_build_object('parent_results', found_results.results, 'parent_errors',
                ojs_store.member_errors(w.id, w.members))
                || case when found_results.truncated then '{"parent_results_truncated": true}' else '{}' end::jsonb;
        elsif w.type = 'chain' and place > 0 then
            found_results := ojs_store.member_results(w.id, place, 1000, true, most_bytes);
            return jsonb_build_object('parent_results', found_results.results)
                || case when found_results.truncated then '{"parent_results_truncated": true}' else '{}' end::jsonb;
        end if;
        place := w.position;
        select * into w from ojs_store.workflow x where x.id = w.parent;
    end loop;
    return null;
end $$;

-- How many jobs have ended so, in it and all that is in it; callbacks apart.
create function ojs_store.count_ends(id uuid, out completed bigint, out failed bigint, out started_at timestamptz)
    returns record
language sql strict stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    with recursive tree as (
        select w.id, w.members from ojs_store.workflow w where w.id = count_ends.id
        union all
        select w.id, w.members from tree t
        join (
            select o.workflow, o.member from ojs_store.workflow_open o where not o.is_job
            union all
            select e.workflow, e.member from ojs_store.workflow_end e where not e.is_job
        ) i on i.workflow = t.id join ojs_store.workflow w on w.id = i.member
    )
    select count(*) filter (where e.state = 'completed'), count(*) filter (where e.state <> 'completed'),
        min(e.started_at)
    from tree t join ojs_store.workflow_end e on e.workflow = t.id and e.position < t.members and e.is_job
$$;

-- Steps, jobs or callbacks, each as it stands. Results as far as they fit into 1 MB, the first ones first.
create function ojs_store.workflow_members(w ojs_store.workflow, callbacks boolean) returns jsonb
language sql strict stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
            'index', case when not callbacks then m.position end, 'callback', m.callback, 'type', m.type,
                'state', m.state,
            case when m.is_job then 'job_id' else 'workflow_id' end, m.member,
            'started_at', ojs_store.time_text(m.started_at), 'completed_at', ojs_store.time_text(m.ended_at), 'error',
                ojs_store.error_facts(m.error)))
        || case when m.state = 'waiting' then '{"job_id": null}' else '{}' end::jsonb
        || case when m.result is not null and m.bytes <= 1048576 then jsonb_build_object('result', m.result)
            when m.result is not null then '{"result_omitted": true}' else '{}' end::jsonb
        order by m.position), '[]')
    from (
        select s.position, s.callback, s.type, coalesce(e.member, o.member) as member,
            coalesce(e.is_job, o.is_job, true) as is_job,
            coalesce(l.claimed_at, e.started_at) as started_at, e.ended_at, e.error, e.result,
            sum(octet_length(e.result::text)) over (order by s.position) as bytes,
            case when e.state is not null then e.state
                when o.member is null then case when w.state = 'running' then 'waiting' else 'cancelled' end
                when not o.is_job then case when i.state = 'running' then 'active' else i.state end
                when l.job_id is not null then 'active' else 'pending' end as state
        from ojs_store.workflow_member s
        left join ojs_store.workflow_end e on e.workflow = s.workflow and e.position = s.position
        left join ojs_store.workflow_open o on o.workflow = s.workflow and o.position = s.position
        left join ojs_store.workflow i on not o.is_job and i.id = o.member
        left join lateral (select h.job_id, h.claimed_at from ojs_store.leases_of(o.member) h where o.is_job) l on true
        where s.workflow = w.id and (s.position >= w.members) = callbacks
    ) m
$$;

-- The lease of one job; none on a standby, where the table of leases cannot even be named.
create function ojs_store.leases_of(id uuid, out job_id uuid, out claimed_at timestamptz) returns setof record
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    if id is not null and not pg_is_in_recovery() then
        return query select l.job_id, l.claimed_at from ojs_store.lease l where l.job_id = id;
    end if;
end $$;

create function ojs_store.workflow_json(id uuid) returns jsonb
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    w ojs_store.workflow;
    counted record;
    done bigint;
    word text;
    members jsonb;
    callbacks jsonb;
    errors jsonb;
    started timestamptz;
begin
    select * into w from ojs_store.workflow where workflow.id = id;
    if not found then
        return null;
    end if;
    counted := ojs_store.count_ends(id);
    select count(*) into done from ojs_store.workflow_end e where e.workflow = id and e.position < w.members
        and e.state = 'completed';
    members := ojs_store.workflow_members(w, false);
    errors := ojs_store.member_errors(id, 2147483647);
    word := case when w.type = 'chain' then 'steps' else 'jobs' end;
    select min((m ->> 'started_at')::timestamptz) into started from jsonb_array_elements(members) m
        where m ? 'started_at';
    if w.type = 'batch' then
        callbacks := jsonb_build_object('callbacks',
            (select jsonb_object_agg(c ->> 'callback', c - 'callback')
            from jsonb_array_elements(ojs_store.workflow_members(w, true)) c));
    end if;
    return jsonb_strip_nulls(jsonb_build_object('id', w.id, 'type', w.type, 'name', w.name, 'state', w.state,
            word || '_total', w.members, word || '_completed', done, 'job_count', w.jobs, 'completed_count',
                counted.completed, 'failed_count', counted.failed,
            'created_at', ojs_store.time_text(w.created_at), 'started_at',
                ojs_store.time_text(least(started, counted.started_at)),
            'completed_at', case when w.state <> 'cancelled' then ojs_store.time_text(w.ended_at) end,
            'cancelled_at', case when w.state = 'cancelled' then ojs_store.time_text(w.ended_at) end,
            'parent_workflow_id', w.parent, 'root_workflow_id', case when w.parent is not null then w.root end,
            'metadata', jsonb_build_object('created_at', ojs_store.time_text(w.created_at), 'started_at',
                ojs_store.time_text(least(started, counted.started_at)),
                'completed_at', ojs_store.time_text(w.ended_at), 'cancelled_at',
                    case when w.state = 'cancelled' then ojs_store.time_text(w.ended_at) end,
                'job_count', w.jobs, 'completed_count', counted.completed, 'failed_count', counted.failed)))
        || jsonb_build_object(word, members) || coalesce(callbacks, '{}')
        || case when errors <> '[]' then jsonb_build_object('errors', errors,
            'failed_job_ids', (select coalesce(jsonb_agg(e -> 'job_id'), '[]') from jsonb_array_elements(errors) e
                where e ? 'job_id'))
            || case when w.type = 'chain' then jsonb_build_object('failed_step_index', errors #> '{0,index}') else '{}'
                end else '{}' end;
end $$;

create view ojs.workflows as
select
    ojs_store.if_allowed(w.id, readable) as id, ojs_store.if_allowed(w.name, readable) as name,
    ojs_store.if_allowed(w.type, readable) as type, ojs_store.if_allowed(w.state, readable) as state,
    ojs_store.if_allowed(w.parent, readable) as parent_id, ojs_store.if_allowed(w.root, readable) as root_id,
    ojs_store.if_allowed(w.members, readable) as members, ojs_store.if_allowed(done.completed, readable) as completed,
    ojs_store.if_allowed(done.failed, readable) as failed, ojs_store.if_allowed(w.jobs, readable) as job_count,
    ojs_store.if_allowed(w.created_at, readable) as created_at, ojs_store.if_allowed(w.ended_at, readable) as ended_at
from ojs_store.workflow w
cross join lateral (select ojs_store.may_read_workflow(w.root) as readable) rights
cross join lateral (
    select count(*) filter (where e.state = 'completed') as completed,
        count(*) filter (where e.state <> 'completed') as failed
    from ojs_store.workflow_end e where e.workflow = w.id and e.position < w.members
) done
where ojs_store.if_allowed(w.id, readable) = w.id;
comment on view ojs.workflows
    is 'Workflows, inner ones too: their state, and how many of their members have completed or failed';
