-- progress.sql: how far jobs have come. C++: src/work/progress.cpp; reading: src/state/reported.cpp.

create function ojs.progress(job_id uuid, progress numeric, message text default null, data jsonb default null)
    returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_progress';
comment on function ojs.progress(uuid, numeric, text, jsonb)
    is 'Reports how far a job that runs has come, 0 to 1, and renews its lease as a heartbeat does; ignored for any '
       'other job';
