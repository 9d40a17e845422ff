-- workflow.sql: chains, groups and batches of jobs. The tables are described in sql/tables.sql; how the end of a job
-- gets here is in src/state/members.cpp. These functions run as the owner: who may call them is asked in
-- src/workflow/workflow.cpp.

create function ojs.create_workflow(def jsonb) returns jsonb
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_create_workflow';
comment on function ojs.create_workflow(jsonb)
    is 'Makes a workflow of a chain, a group or a batch, begins it and returns it; nothing is stored unless all of it '
       'is valid';

create function ojs.workflow(id uuid) returns jsonb
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_workflow';
comment on function ojs.workflow(uuid) is 'A workflow as it stands: its state, and that of each step, job and callback';

create function ojs.cancel_workflow(id uuid) returns jsonb
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_cancel_workflow';
comment on function ojs.cancel_workflow(uuid)
    is 'Cancels a workflow that runs: jobs that wait are cancelled, active ones may end, nothing more begins; returns '
       'it';

-- PARTS ------------------------------------------------------------------------------------------------------------

create function ojs_store.new_uuid() returns uuid
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_new_uuid';

-- Has the jobs begin that stand at positions `first` and following, as far as hooks and uniqueness let them.
create function ojs_store.begin_jobs(workflow uuid, root uuid, first int, jobs jsonb, callback text,
    has_parents boolean) returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_begin_jobs';

create function ojs_store.open_inner(id uuid, workflow uuid, "position" int) returns void
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_open_inner';

-- Notes the end of an open member that is no job, or one of which there is no job any more; nothing if it is not open.
create function ojs_store.end_member(id uuid, state text, error jsonb, ended_at timestamptz) returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_end_member';

-- A member that could not begin has failed.
create function ojs_store.end_unbegun(workflow uuid, "position" int, error jsonb) returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_end_unbegun';

-- Whether members are open: 0 none, 1 only such as open transactions are ending, 2 some.
create function ojs_store.members_left(workflow uuid) returns int
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_members_left';

create function ojs_store.cancel_unless_busy(job_id uuid) returns boolean
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_cancel_unless_busy';

-- Not a job that is called so: those have args. The same in src/workflow/definition.cpp.
create function ojs_store.is_workflow(def jsonb) returns boolean
language sql immutable parallel safe
begin atomic
    select coalesce(def ->> 'type' in ('chain', 'group', 'batch'), false) and coalesce(def -> 'args', 'null') = 'null';
end;

create function ojs_store.members_of(def jsonb) returns jsonb
language sql immutable parallel safe
begin atomic
    select def -> case when def ->> 'type' = 'chain' then 'steps' else 'jobs' end;
end;

create function ojs_store.count_jobs(def jsonb) returns int
language plpgsql strict immutable parallel safe set search_path = pg_catalog, pg_temp as $$
begin
    return (select coalesce(sum(case when ojs_store.is_workflow(m) then ojs_store.count_jobs(m) else 1 end), 0)
        from jsonb_array_elements(ojs_store.members_of(def)) m);
end $$;

-- What workflow.* events say of their workflow.
create function ojs_store.tell_workflow(type text, w ojs_store.workflow, data jsonb default '{}') returns void
language sql strict volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_store.record_event('workflow.' || type, w.id::text,
        jsonb_build_object('workflow_id', w.id, 'workflow_name', coalesce(w.name, ''),
        'workflow_type', w.type, 'total_steps', w.members, 'queue_ids', ojs_store.workflow_queues(w.root)) || data
        || case when w.parent is not null then jsonb_build_object('workflow_root_id', w.root) else '{}' end)
$$;

-- BEGINNING --------------------------------------------------------------------------------------------------------

-- Stores a workflow and begins it: the first step of a chain, all jobs of a group or a batch.
create function ojs_store.begin_workflow(id uuid, def jsonb, root uuid, parent uuid, "position" int,
    has_parents boolean, queues bigint[]) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    members jsonb := ojs_store.members_of(def);
    chain boolean := def ->> 'type' = 'chain';
    w ojs_store.workflow;
begin
    insert into ojs_store.workflow
    values (id, root, parent, position, def ->> 'type', nullif(def ->> 'name', ''), 'running',
        jsonb_array_length(members),
        ojs_store.count_jobs(def), has_parents, queues, ojs_store.now(), null)
    on conflict do nothing returning * into w;
    if not found then
        perform ojs_store.raise('DUPLICATE_JOB', format('a workflow with the id %s exists already', id),
            jsonb_build_object('field', 'id', 'workflow_id', id),
            'Leave the id out, or treat this call as done before.');
    end if;
    insert into ojs_store.workflow_member (workflow, position, type, definition)
    select id, m.n - 1, m.def ->> 'type', case when chain then m.def end
    from jsonb_array_elements(members) with ordinality m (def, n);
    insert into ojs_store.workflow_member (workflow, position, type, callback, definition)
    select id, w.members - 1 + row_number() over (order by c.n), def #>> array['callbacks', c.name, 'type'], c.name,
        def #> array['callbacks', c.name]
    from unnest('{on_complete,on_success,on_failure}'::text[]) with ordinality c (name, n)
    where w.type = 'batch' and def #> array['callbacks', c.name] <> 'null';
    if parent is not null then
        perform ojs_store.open_inner(id, parent, position);
    else
        perform ojs_store.tell_workflow('created', w);
    end if;
    perform ojs_store.tell_workflow('started', w);

    if chain then
        perform ojs_store.begin_member(w, 0, members -> 0, null);
        return;
    end if;
    perform ojs_store.begin_at_once(w, 0, members);
end $$;

-- Jobs in runs of neighbours, up to a thousand at once; then inner workflows.
create function ojs_store.begin_at_once(w ojs_store.workflow, first int, members jsonb) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    part record;
begin
    for part in
        select min(m.n) - 1 as at, jsonb_agg(m.def order by m.n) as jobs
        from (
            select e.n, e.def, e.n - row_number() over (order by e.n) as run
            from jsonb_array_elements(members) with ordinality e (def, n) where not ojs_store.is_workflow(e.def)
        ) m
        group by m.run, m.n / 1000 order by 1
    loop
        perform ojs_store.begin_jobs(w.id, w.root, first + part.at::int, part.jobs, null, w.has_parents);
    end loop;
    for part in
        select e.n - 1 as at, e.def from jsonb_array_elements(members) with ordinality e (def, n)
            where ojs_store.is_workflow(e.def) order by e.n
    loop
        perform ojs_store.begin_member(w, first + part.at::int, part.def, null);
    end loop;
end $$;

-- One step, job or callback of a workflow that runs.
create function ojs_store.begin_member(w ojs_store.workflow, "position" int, def jsonb, callback text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    has_parents boolean := w.has_parents or callback is not null or w.type = 'chain' and position > 0;
begin
    if callback is null and ojs_store.is_workflow(def) then
        perform ojs_store.begin_workflow(ojs_store.new_uuid(), def, w.root, w.id, position, has_parents, '{}');
    else
        perform ojs_store.begin_jobs(w.id, w.root, position, jsonb_build_array(def), callback, has_parents);
    end if;
end $$;

create function ojs_store.create_workflow(id uuid, def jsonb, queues bigint[]) returns void
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_store.begin_workflow(id, def, id, null, null, false, queues)
$$;

-- GOING ON ---------------------------------------------------------------------------------------------------------

-- Has a member begin whose turn has come. What is wrong with the member itself is its failure; what may be better in a
-- while (a full queue, a lock) is an error of this call, which the tick repeats.
create function ojs_store.try_member(w ojs_store.workflow, "position" int, def jsonb, callback text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    perform ojs_store.begin_member(w, position, def, callback);
exception when others then
    if left(sqlstate, 2) in ('08', '25', '40', '53', '55', '57', '58', 'XX')
        or sqlstate in ('OJ304', 'OJ600', 'OJ601', 'OJ604') then
        raise;
    end if;
    perform ojs_store.end_unbegun(w.id, position, jsonb_build_object('code', 'not_begun', 'type', 'not_begun',
        'attempt', 0, 'sqlstate', sqlstate,
        'message', left(sqlerrm, 1000), 'occurred_at', ojs_store.time_text(ojs_store.now())));
end $$;

-- What comes after the members that have all ended: false, the workflow has ended as `outcome`; true, something has
-- begun, or has failed to.
create function ojs_store.next_of(w ojs_store.workflow, out goes_on boolean, out outcome text) returns record
language plpgsql strict volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    done ojs_store.workflow_end;
    member ojs_store.workflow_member;
    failed boolean;
begin
    goes_on := false;
    select * into done from ojs_store.workflow_end e where e.workflow = w.id order by e.position desc limit 1;
    if w.type = 'chain' then
        outcome := case when done.state = 'completed' then 'completed' else 'failed' end;
        if outcome = 'completed' and done.position + 1 < w.members then
            select * into member from ojs_store.workflow_member m where m.workflow = w.id
                and m.position = done.position + 1;
            perform ojs_store.try_member(w, member.position, member.definition, null);
            goes_on := true;
        end if;
        return;
    end if;
    failed := exists (select from ojs_store.workflow_end e where e.workflow = w.id and e.position < w.members
        and e.state <> 'completed');
    outcome := case when failed then 'failed' else 'completed' end;
    if w.type = 'group' then
        return;
    end if;
    outcome := 'completed';
    if done.position >= w.members then
        if exists (select from ojs_store.workflow_end e where e.workflow = w.id and e.position >= w.members
            and e.state <> 'completed') then
            outcome := 'failed';
        end if;
        return;
    end if;
    for member in
        select * from ojs_store.workflow_member m
        where m.workflow = w.id and (m.callback = 'on_complete' or m.callback = case when failed then 'on_failure'
            else 'on_success' end)
        order by m.position
    loop
        goes_on := true;
        perform ojs_store.try_member(w, member.position, member.definition, member.callback);
        perform ojs_store.tell_workflow('callback_fired', w,
            jsonb_build_object('callback', member.callback, 'step_type', member.type));
    end loop;
end $$;

-- Jobs and inner workflows of one that was cancelled: what waits is cancelled too. Waits for nobody: whoever has a job
-- or an inner workflow at the moment may go on with it; true: there are such.
create function ojs_store.cancel_members(id uuid) returns boolean
language plpgsql strict volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    member record;
    inner_one ojs_store.workflow;
begin
    for member in select o.member, o.is_job from ojs_store.workflow_open o where o.workflow = id loop
        if member.is_job then
            perform ojs_store.cancel_unless_busy(member.member);
        else
            select * into inner_one from ojs_store.workflow w where w.id = member.member and w.state = 'running'
                for update skip locked;
            if found then
                perform ojs_store.end_workflow(inner_one, 'cancelled');
            end if;
        end if;
    end loop;
    return ojs_store.members_left(id) > 0;
end $$;

-- Ends a workflow whose row is locked.
create function ojs_store.end_workflow(w ojs_store.workflow, outcome text) returns void
language plpgsql strict volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    at timestamptz := ojs_store.now();
    duration bigint := extract(epoch from at - w.created_at) * 1000;
    failure ojs_store.workflow_end;
begin
    update ojs_store.workflow set state = outcome, ended_at = at,
        remove_at = case when w.parent is null then at + case when outcome = 'failed' then interval '30 days'
            else interval '7 days' end end
    where workflow.id = w.id and workflow.state = 'running';
    if not found then
        return;
    end if;
    if outcome = 'cancelled' then
        if ojs_store.cancel_members(w.id) then
            insert into ojs_store.workflow_due values (w.id, at, 0, null);
        end if;
    end if;
    if outcome = 'failed' then
        select * into failure from ojs_store.workflow_end e where e.workflow = w.id and e.state <> 'completed'
            order by e.position desc limit 1;
    end if;
    perform ojs_store.tell_workflow(outcome, w, jsonb_strip_nulls(jsonb_build_object('duration_ms', duration,
        'failed_step_id', failure.position::text, 'failed_step_type',
        (select m.type from ojs_store.workflow_member m where m.workflow = w.id and m.position = failure.position),
        'error', ojs_store.error_facts(failure.error))));
    if w.parent is not null then
        perform ojs_store.end_member(w.id, outcome, case when outcome <> 'completed' then
            jsonb_build_object('code', 'workflow_' || outcome, 'type', 'workflow_' || outcome, 'message',
                'the inner workflow ' || outcome, 'attempt', 0) end, at);
    end if;
end $$;

-- Has a workflow go on of which nothing is open, and those that it is part of. Waits for nobody: whoever has the
-- workflow's row at the moment is at it, and a row of workflow_due that was there before is left to the tick. Nor does
-- it wait for room in a queue, or long for a uniqueness key: that would hold up the ack of the member before, and its
-- locks. Each step of a chain leaves dead entries in the index of notes, which an index scan marks, and a bitmap scan
-- passes again and again.
create function ojs_store.advance_workflow(id uuid) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog,
    pg_temp set lock_timeout = '100ms' set ojs.block_timeout = 0 set enable_bitmapscan = off as $$
#variable_conflict use_variable
declare
    w ojs_store.workflow;
    notes tid[];
    left_open int;
    next record;
begin
    while id is not null loop
        select * into w from ojs_store.workflow where workflow.id = id for update skip locked;
        if not found then
            delete from ojs_store.workflow_due d where d.workflow = id
                and not exists (select from ojs_store.workflow where workflow.id = id);
            return;
        end if;
        -- The notes that this look answers: one that is written after it is another's.
        notes := array(select d.ctid from ojs_store.workflow_due d where d.workflow = id for update skip locked);
        left_open := ojs_store.members_left(id);
        if w.state = 'cancelled' and left_open > 0 and cardinality(notes) > 0 then
            if ojs_store.cancel_members(id) then
                update ojs_store.workflow_due d set due_at = ojs_store.now() + interval '5 seconds'
                    where d.ctid = any (notes);
                return;
            end if;
        elsif left_open = 1 then
            return;
        end if;
        delete from ojs_store.workflow_due d where d.ctid = any (notes);
        exit when left_open = 2 or w.state <> 'running';
        next := ojs_store.next_of(w);
        if not next.goes_on then
            perform ojs_store.end_workflow(w, next.outcome);
            id := w.parent;
        end if;
        -- Else it looks again: what began may have failed at once.
    end loop;
end $$;

-- For the tick: advances at most so many workflows that are due, each for itself. Returns the number it has looked at,
-- or 0 if none could go on. In no order: many that wait for open transactions are not in the way of others.
create function ojs_store.advance_due(most int) returns int
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    due uuid;
    n int := 0;
    any_went_on boolean := false;
begin
    for due in
        select d.workflow from ojs_store.workflow_due d where d.due_at <= ojs_store.now() group by 1 order by random()
            limit most
    loop
        n := n + 1;
        begin
            perform ojs_store.advance_workflow(due);
            any_went_on := any_went_on or not exists (select from ojs_store.workflow_due d where d.workflow = due
                and d.due_at <= ojs_store.now());
        exception when others then
            update ojs_store.workflow_due d set failures = d.failures + 1, error = sqlstate,
                due_at = ojs_store.now() + least(power(2, least(d.failures, 10)), 60) * interval '1 second'
            where d.ctid = any (array(select l.ctid from ojs_store.workflow_due l where l.workflow = due
                for update skip locked));
        end;
    end loop;
    return case when any_went_on then n else 0 end;
end $$;

-- Looks for workflows that should have gone on, every few minutes: there should be none. How many there were.
create function ojs_store.check_workflows() returns int
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    n int := 0;
    lost record;
begin
    -- Jobs that have ended, or are gone, and did not say so: somebody has changed tables by hand.
    for lost in
        select o.member, d.state, j.id is null as gone from ojs_store.workflow_open o
        left join ojs_store.finished d on d.job_id = o.member left join ojs_store.job j on j.id = o.member
        where o.is_job and (d.job_id is not null or j.id is null)
    loop
        perform ojs_store.end_member(lost.member, case lost.state when State.completed then 'completed'
            when State.cancelled then 'cancelled' else 'failed' end,
            case when lost.state is distinct from State.completed
                then '{"code": "lost", "type": "lost", "message": "the job ended without its workflow", "attempt": '
                     '0}'::jsonb end,
            ojs_store.now());
        n := n + 1;
    end loop;
    for lost in
        select w.id from ojs_store.workflow w
        where w.state = 'running' and not exists (select from ojs_store.workflow_open o where o.workflow = w.id)
            and not exists (select from ojs_store.workflow_due d where d.workflow = w.id)
    loop
        insert into ojs_store.workflow_due values (lost.id, ojs_store.now(), 0, null);
        n := n + 1;
    end loop;
    if n > 0 then
        raise warning 'ojs has found % members or workflows that were left open, and has them go on', n;
    end if;
    -- Restored from a dump of a version that did not say so.
    update ojs_store.workflow w set remove_at = ojs_store.now()
        where w.parent is null and w.state <> 'running' and w.remove_at is null;
    update ojs_store.workflow_check set checked_at = ojs_store.now(), mended = mended + n, error = null,
        running = (select count(*) from ojs_store.workflow w where w.state = 'running');
    if not found then
        insert into ojs_store.workflow_check select ojs_store.now(), count(*), n,
            null from ojs_store.workflow w where w.state = 'running';
    end if;
    return n;
end $$;

-- The tick's duty. Returns the number of rows it has handled.
create function ojs_store.tend_workflows(most int) returns int
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    at timestamptz := ojs_store.now();
    n int := 0;
    removed int := 0;
begin
    if exists (select from ojs_store.workflow_due d where d.due_at <= ojs_store.now()) then
        n := ojs_store.advance_due(least(most, 60)); -- each takes a subtransaction
    end if;
    if exists (select from ojs_store.workflow) and not exists (select from ojs_store.workflow_check c
        where c.checked_at between ojs_store.now() - interval '5 minutes' and ojs_store.now()) then
        -- One tick at a time; a row of ours, since anybody can take an advisory lock.
        perform from ojs_store.retention_cursor s where s.what = 'workflow' for update skip locked;
        if found then
            begin
                perform ojs_store.check_workflows();
            exception when others then -- workflows go on all the same
                raise warning 'ojs could not check its workflows: %', sqlerrm;
                update ojs_store.workflow_check set checked_at = ojs_store.now(), error = left(sqlerrm, 1000);
                if not found then
                    insert into ojs_store.workflow_check values (ojs_store.now(), 0, 0, left(sqlerrm, 1000));
                end if;
            end;
        end if;
    end if;
    if exists (select from ojs_store.workflow w where w.remove_at <= at) then
        perform from ojs_store.retention_cursor s where s.what = 'workflow' for update skip locked;
        if found then
            begin
                removed := ojs_store.prune_workflows(most);
            exception when others then
                raise warning 'ojs could not remove old workflows: %', sqlerrm;
                update ojs_store.workflow_check set error = left(sqlerrm, 1000);
            end;
        end if;
    end if;
    return n + removed;
end $$;

-- CANCELLING -------------------------------------------------------------------------------------------------------

create function ojs_store.cancel_workflow(id uuid) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    w ojs_store.workflow;
begin
    w := ojs_store.lock_workflow(id);
    if w.state <> 'running' then
        perform ojs_store.raise('WORKFLOW_ENDED', format('workflow %s is already in terminal state ''%s''',
            id, w.state),
            jsonb_build_object('workflow_id', id, 'current_state', w.state),
                'It has ended; there is nothing to cancel.');
    end if;
    perform ojs_store.end_workflow(w, 'cancelled');
end $$;
