-- events.sql: what happened, in the standard vocabulary of OJS events.

-- Records an event that no other row tells of, in the caller's transaction. `data` holds what the vocabulary says of this
-- type beyond the subject; a key `queue` or `job_type` in it is what filters look at.
create function ojs_store.record_event(type text, subject text, data jsonb default '{}') returns void
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    insert into ojs_store.record (id, at, type, subject, data)
    values (gen_random_uuid(), ojs_store.now(), type, subject, coalesce(data, '{}'))
$$;
