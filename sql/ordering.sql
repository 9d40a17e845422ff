-- ordering.sql: ordering keys. C++: src/state/ordering.cpp, src/admin/ordering_admin.cpp.

create function ojs_store.skip_in_line(job_id uuid) returns ojs.job
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_skip_in_line';

-- The first job with an ordering key, and those that stand before one. Not by SQL: see ojs_store.slots_taken.
create function ojs_store.first_in_line(key bigint) returns uuid
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_first_in_line';

create function ojs_store.line_before(job_id uuid, most int) returns uuid[]
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_line_before';

create function ojs_store.move_in_line(job_id uuid, queue bigint) returns void
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_move_in_line';

create function ojs.skip_ordering_key(queue text, ordering_key text) returns ojs.job
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    found_queue ojs_store.queue := ojs_store.queue_found(ojs_store.use_queue(queue, 'administer'));
    first uuid;
    job ojs.job;
begin
    perform ojs_store.refuse_read_only('ojs.skip_ordering_key()');
    perform from ojs_store.queue_rows('{}'); -- builds the hot set where it is not
    first := ojs_store.first_in_line(ojs_store.name_hash(found_queue.id || ':' || ordering_key));
    if first is null then
        perform ojs_store.raise('NOT_FOUND', format('no open job of queue "%s" has this ordering_key', queue),
            jsonb_build_object('queue', queue, 'field', 'ordering_key'),
                'Look at ojs.explain_job(job_id) of a job that waits.');
    end if;
    job := ojs_store.skip_in_line(first);
    perform ojs_store.record_act('job_skipped', first::text, jsonb_build_object('job_id', first, 'queue', queue));
    return job;
end $$;
comment on function ojs.skip_ordering_key(text, text)
    is 'Lets the next job of an ordering key go past the first one, which then waits at the end of the line; that job';
