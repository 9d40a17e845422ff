-- deduplication.sql: looking at deduplication keys, and freeing them. C++: src/push/deduplication.cpp.

create view ojs.deduplication_keys with (security_barrier) as
select (select q.name from ojs_store.queue q where q.id = d.queue limit 1) as queue, d.key, d.job_id, d.expires_at
from ojs_store.deduplication d
where d.expires_at > ojs_store.now() and ojs_store.may_use_queue(d.queue, 'read');
comment on view ojs.deduplication_keys
    is 'The deduplication keys that are held: by the push of which job, and until when';

create function ojs.free_deduplication_key(queue text, key text) returns boolean
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    found_queue ojs_store.queue := ojs_store.queue_found(ojs_store.use_queue(queue, 'administer'));
    freed uuid;
begin
    if key is null then
        perform ojs_store.raise('INVALID_PAYLOAD', 'key must not be null', '{"field": "key"}',
            'Name the key; ojs.deduplication_keys shows them.');
    end if;
    delete from ojs_store.deduplication d where d.queue = found_queue.id and d.key = key
        and d.expires_at > ojs_store.now()
    returning d.job_id into freed;
    if freed is null then
        return false;
    end if;
    perform ojs_store.record_audit('deduplication_key_freed', queue, null, null,
        jsonb_build_object('queue', queue, 'key', key, 'job_id', freed));
    perform ojs_store.record_event('queue.deduplication_key_freed', queue,
        jsonb_build_object('queue', queue, 'key', key, 'job_id', freed, 'freed_by', session_user));
    return true;
end $$;
comment on function ojs.free_deduplication_key(text, text)
    is 'Frees a deduplication key before its time is over, so that the next push with it makes a job; false if nothing '
       'holds it';
