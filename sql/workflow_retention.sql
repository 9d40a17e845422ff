-- workflow_retention.sql: how long workflows are kept (R-97). The tick's duty is in sql/workflow.sql.

-- Whether a job of a workflow, or of one in it, is kept that did not end well: it can be retried, by hand or by a rule,
-- and is given then what the others have left.
create function ojs_store.may_be_retried(root uuid) returns boolean
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select exists (
        select from ojs_store.workflow w join ojs_store.workflow_end e on e.workflow = w.id
        join ojs_store.job j on j.id = e.member left join ojs_store.finished f on f.job_id = j.id
        where w.root = may_be_retried.root and e.is_job and e.state <> 'completed'
            and coalesce(f.state <> State.completed, true))
$$;

-- Removes workflows whose time is over: completed and cancelled ones after 7 days, failed ones after 30, but none while
-- a job of it can still be retried. That is looked at again after a day, or after an eighth of its age if that is more.
-- Removes at most so many rows, and returns their number.
create function ojs_store.prune_workflows(most int) returns int
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp
set enable_seqscan = off -- plans are kept, and nothing may have counted the rows yet
as $$
declare
    at timestamptz := ojs_store.now();
    old record;
    n int := 0;
    removed int;
begin
    for old in
        select w.id, w.ended_at from ojs_store.workflow w
        where w.remove_at <= at
            and not exists (select from ojs_store.workflow i join ojs_store.workflow_open o on o.workflow = i.id
                where i.root = w.id)
        order by w.remove_at limit 100 for update skip locked
    loop
        exit when n >= most;
        if ojs_store.may_be_retried(old.id) then
            update ojs_store.workflow w set remove_at = at + greatest(interval '1 day', (at - old.ended_at) / 8)
                where w.id = old.id;
            n := n + 1;
            continue;
        end if;
        delete from ojs_store.workflow_end where ctid = any (array(
            select e.ctid from ojs_store.workflow i join ojs_store.workflow_end e on e.workflow = i.id
                where i.root = old.id limit most - n));
        get diagnostics removed = row_count;
        n := n + removed;
        exit when n >= most;
        delete from ojs_store.workflow_member where ctid = any (array(
            select m.ctid from ojs_store.workflow i join ojs_store.workflow_member m on m.workflow = i.id
                where i.root = old.id limit most - n));
        get diagnostics removed = row_count;
        n := n + removed;
        exit when n >= most;
        delete from ojs_store.workflow w where w.root = old.id;
        update ojs_store.retention_cursor s set removed_to = greatest(s.removed_to, old.ended_at)
            where s.what = 'workflow';
        n := n + 1;
    end loop;
    return n;
end $$;
