-- progress.sql: how far jobs have come. C++: src/work/progress.cpp; reading: src/state/reported.cpp.

create function ojs.progress(job_id uuid, progress numeric, message text default null, data jsonb default null)
    returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_progress';
comment on function ojs.progress(uuid, numeric, text, jsonb)
    is 'Reports how far a job that runs has come, 0 to 1, and renews its lease; ignored for any other job';

-- For drivers that pass numbers as double precision. A literal or parameter of unknown type, and an integer, come here,
-- too.
create function ojs.progress(job_id uuid, progress double precision, message text default null,
    data jsonb default null) returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_progress_double';
comment on function ojs.progress(uuid, double precision, text, jsonb)
    is 'Reports how far a job that runs has come, 0 to 1, and renews its lease; ignored for any other job';
