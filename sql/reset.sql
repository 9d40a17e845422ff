-- reset.sql: an empty server for the next conformance case.

-- A hook that validates: one case supposes that the server has such a one.
create function ojs_store.conformance_hook(job jsonb) returns jsonb
language plpgsql stable parallel safe set search_path = pg_catalog, pg_temp as $$
begin
    if job #> '{meta,ojs_validate}' = 'true' and job -> 'args' = '[]'
        and current_setting('ojs.conformance_mode')::boolean then
        raise exception 'a job with meta.ojs_validate needs arguments' using hint = 'Give it args.';
    end if;
    return job;
end $$;

create function ojs.reset() returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    tables regclass[] := array(
        select c.oid::regclass from pg_class c
        where c.relnamespace = 'ojs_store'::regnamespace and c.relkind in ('r', 'p')
            -- the hot set and the key of ids stand, and retention goes on where it is
            and c.relname not in ('hot_set_state', 'retention_cursor', 'name_key', 'audit')
        order by c.oid);
    one regclass;
begin
    perform ojs_store.now(); -- loads the library, and with it its settings: before that anybody may set any name
    if not current_setting('ojs.conformance_mode')::boolean then
        perform ojs_store.raise('UNSUPPORTED_FEATURE',
            'ojs.reset() removes all jobs, and is refused unless ojs.conformance_mode is on', null,
            'Switch it on for a server of tests: alter database ... set ojs.conformance_mode = on.');
    end if;
    -- Nobody may be in between, above all not the worker with a job that is about to go; and waiting for one table
    -- while having another could be a deadlock.
    for tried in 1 .. 500 loop
        begin
            foreach one in array tables loop
                execute format('lock table %s in share row exclusive mode nowait', one);
            end loop;
            exit;
        exception when lock_not_available then
            if tried = 500 then
                raise;
            end if;
            perform ojs_store.rest(0.01);
        end;
    end loop;
    foreach one in array tables loop
        execute format('delete from %s', one);
        perform ojs_store.changed(one);
    end loop;
    perform ojs.register_hook('conformance', 'enqueue', 'ojs_store.conformance_hook(jsonb)');
    delete from ojs_store.stored_event; -- also that this was done
end $$;
comment on function ojs.reset() is
    'Removes everything that clients can create: for conformance tests, and refused unless ojs.conformance_mode is on';
