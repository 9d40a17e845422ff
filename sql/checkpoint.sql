-- checkpoint.sql: what a job goes on from in its next attempt. C++: src/work/checkpoint.cpp; the claim:
-- src/state/reported.cpp.

create function ojs.checkpoint(job_id uuid, state jsonb) returns jsonb
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_checkpoint';
comment on function ojs.checkpoint(uuid, jsonb)
    is 'Saves the state that the next attempt of a job is to go on from, in place of the last one; each claim brings '
       'it';

create function ojs.get_checkpoint(job_id uuid) returns jsonb
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_get_checkpoint';
comment on function ojs.get_checkpoint(uuid) is 'The last state saved for a job, also after its end';

create function ojs.delete_checkpoint(job_id uuid) returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.use_job(job_id, 'work');
    delete from ojs_store.checkpoint c where c.job_id = delete_checkpoint.job_id
        and ojs_store.may_use_job(c.job_id, 'work');
    if not found and not exists (select from ojs_store.job j where j.id = delete_checkpoint.job_id
            and ojs_store.may_use_job(j.id, 'work')) then
        perform ojs_store.raise('NOT_FOUND', format('job %s does not exist', coalesce(job_id::text, 'null')),
            jsonb_build_object('job_id', job_id),
            'Check the id; finished jobs are removed after their retention.');
    end if;
end $$;
comment on function ojs.delete_checkpoint(uuid)
    is 'Forgets what was saved for a job, so that its next attempt begins at the beginning; also where there is '
       'nothing';
