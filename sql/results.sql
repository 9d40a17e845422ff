-- results.sql: what jobs have led to.

-- Returns the ids as they are; raises PERMISSION_DENIED for a job in a queue that is not for the caller.
-- Run with the caller's rights.
create function ojs_store.readable(job_ids uuid[]) returns uuid[]
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_readable';

create function ojs_store.results(job_ids uuid[], out id uuid, out state text, out result jsonb) returns setof record
language sql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select asked.id, job.state, job.result
    from unnest(job_ids) with ordinality as asked(id, n) left join lateral ojs_store.look(asked.id) job on true
    order by asked.n
$$;

-- The caller needs no right on schema ojs_store: the names in this body were looked up when it was made.
create function ojs.results(job_ids uuid[], out id uuid, out state text, out result jsonb) returns setof record
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp
begin atomic
    select r.id, r.state, r.result from ojs_store.results(ojs_store.readable(job_ids)) r;
end;
comment on function ojs.results(uuid[])
    is 'State and result of several jobs, in the order asked for; the state is null where there is no such job';

-- Looks, in growing intervals up to 100 ms, each time with a snapshot of its own; holds no row.
create function ojs_store.wait_result(job_id uuid, timeout interval) returns ojs.job
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    longest constant interval := '30 seconds';
    until_s double precision := ojs_store.steady_s() + extract(epoch
        from greatest(least(coalesce(timeout, longest), longest), '0'));
    pause double precision := 0.005;
    job ojs.job;
begin
    loop
        job := ojs_store.look(job_id);
        if job.id is null then
            perform ojs_store.raise('NOT_FOUND', format('job %s does not exist', coalesce(job_id::text, 'null')),
                jsonb_build_object('resource_type', 'job', 'resource_id', job_id, 'job_id', job_id),
                'Check the id; finished jobs are removed after their retention.');
        end if;
        if job.state in ('completed', 'cancelled', 'discarded') then
            return job;
        end if;
        if ojs_store.steady_s() >= until_s then
            return null;
        end if;
        perform ojs_store.rest(least(pause, until_s - ojs_store.steady_s()));
        pause := least(pause * 2, 0.1);
    end loop;
end $$;

create function ojs.wait_result(job_id uuid, timeout interval) returns ojs.job
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp
begin atomic
    select ojs_store.wait_result((ojs_store.readable(array[job_id]))[1], timeout);
end;
comment on function ojs.wait_result(uuid, interval)
    is 'Waits until a job has ended, at most 30 seconds; null if it has not by then';
