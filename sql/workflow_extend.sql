-- workflow_extend.sql: members that are added to a workflow while it runs.

create function ojs.extend_workflow(id uuid, def jsonb) returns jsonb
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_extend_workflow';
comment on function ojs.extend_workflow(uuid, jsonb)
    is 'Adds steps to a chain, or jobs to a group or a batch, that runs, and returns it; nothing is stored unless all '
       'of it is valid';

-- Whether a batch whose row is locked has got as far as its callbacks, whatever the caller's snapshot.
create function ojs_store.callbacks_begun(workflow uuid, members int) returns boolean
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_callbacks_begun';

-- A workflow that the caller has seen, its row locked.
create function ojs_store.lock_workflow(id uuid) returns ojs_store.workflow
language plpgsql strict volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    w ojs_store.workflow;
begin
    select * into w from ojs_store.workflow f where f.id = lock_workflow.id for update;
    if not found then
        raise exception using errcode = 'serialization_failure',
            message = format('could not serialize access: workflow %s is newer than the transaction''s snapshot', id),
            hint = 'Try the transaction again.';
    end if;
    return w;
end $$;

create function ojs_store.refuse_extension(w ojs_store.workflow, message text) returns void
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_store.raise('WORKFLOW_ENDED', message,
        jsonb_build_object('workflow_id', w.id, 'current_state', w.state),
            'Only a workflow that runs gets more members: make another one of them.')
$$;

-- Locks the rows of the workflow and of those around it, the outermost last. Whoever ends a last member meanwhile
-- leaves what follows to the tick.
create function ojs_store.lock_running(id uuid) returns ojs_store.workflow
language plpgsql strict volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    w ojs_store.workflow;
    around ojs_store.workflow;
begin
    w := ojs_store.lock_workflow(id);
    around := w;
    loop
        if around.state <> 'running' then
            perform ojs_store.refuse_extension(around,
                format('workflow %s is already in terminal state %L', around.id, around.state));
        end if;
        exit when around.parent is null;
        select * into around from ojs_store.workflow f where f.id = around.parent for update;
    end loop;
    return w;
end $$;

-- Adds members at the end of a workflow that runs; of a batch, before its callbacks. `jobs`: how many these are in all;
-- `most`: how many steps, jobs and queues there may be.
create function ojs_store.extend_workflow(id uuid, def jsonb, queues bigint[], jobs int, most int[]) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    w ojs_store.workflow := ojs_store.lock_running(id);
    root ojs_store.workflow;
    members jsonb := ojs_store.members_of(def || jsonb_build_object('type', w.type));
    more int := jsonb_array_length(members);
    all_queues bigint[];
begin
    select * into root from ojs_store.workflow f where f.id = w.root;
    if w.type = 'batch' and ojs_store.callbacks_begun(id, w.members) then
        perform ojs_store.refuse_extension(w, format('the callbacks of workflow %s have begun', id));
    end if;
    select array_agg(distinct q) into all_queues from unnest(root.queues || queues) q;
    if w.type = 'chain' and w.members + more > most[1] or root.jobs + jobs > most[2]
        or cardinality(all_queues) > most[3] then
        perform ojs_store.raise('INVALID_WORKFLOW', 'def would make the workflow too large',
            jsonb_build_object('field', 'def', 'workflow_id', id),
            format('A chain has up to %s steps, a workflow up to %s jobs in %s queues: make another one.', most[1],
                most[2], most[3]));
    end if;
    for place in reverse w.members + 2 .. w.members loop -- callbacks stand behind the members
        update ojs_store.workflow_member m set position = m.position + more
            where m.workflow = id and m.position = place;
    end loop;
    insert into ojs_store.workflow_member (workflow, position, type, definition)
    select id, w.members + m.n - 1, m.def ->> 'type', case when w.type = 'chain' then m.def end
    from jsonb_array_elements(members) with ordinality m (def, n);
    with recursive around as (
        select f.id, f.parent from ojs_store.workflow f where f.id = w.id
        union all
        select f.id, f.parent from around a join ojs_store.workflow f on f.id = a.parent
    )
    update ojs_store.workflow f
    set jobs = f.jobs + ojs_store.count_jobs(def || jsonb_build_object('type', w.type)),
        members = f.members + case when f.id = w.id then more else 0 end,
        queues = case when f.id = w.root then all_queues else f.queues end
    from around a where f.id = a.id;
    perform ojs_store.tell_workflow('extended', w, jsonb_build_object('added', more));
    if w.type <> 'chain' then
        perform ojs_store.begin_at_once(w, w.members, members);
    end if;
end $$;
