
-- locks.sql: locks what this update changes, all of it or nothing. It never waits long while it holds one of
-- these locks: so no call meets it in a deadlock, and none waits behind it for longer than a try takes.
do $$
declare
    given constant text := current_setting('lock_timeout');
    bound constant interval := case when given::interval > interval '0' then given else '10 s' end;
    until constant timestamptz := clock_timestamp() + bound;
    wanted record;
begin
    loop
        begin
            perform set_config('lock_timeout', '100ms', true);
            for wanted in select c.oid::regclass as name, c.relowner::regrole as owner, w.mode from (values
                WANTED
            ) w (name, mode) join pg_class c on c.oid = to_regclass(w.name)
            loop
                if wanted.mode = 'view' then -- LOCK TABLE would lock what the view reads, too
                    execute format('alter view %s owner to %s', wanted.name, wanted.owner);
                else
                    execute format('lock table %s in %s mode', wanted.name, wanted.mode);
                end if;
            end loop;
            perform set_config('lock_timeout', given, true);
            exit;
        exception when lock_not_available or deadlock_detected then
            if clock_timestamp() > until then
                raise lock_not_available using
                    message = format('could not lock "%s" within %s', wanted.name, bound),
                    detail = 'An open transaction uses it. Nothing has changed.',
                    hint = 'End long transactions that have called ojs, or set lock_timeout to how long to try, and '
                        'update again.';
            end if;
        end;
        perform pg_sleep(0.1); -- calls that wait go first
    end loop;
end $$;
