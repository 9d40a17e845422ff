-- ack.sql: jobs that are done. C++: src/work/ack.cpp.

create function ojs.ack(job_id uuid, result jsonb default null, lease_id text default null, worker text default null)
returns ojs.job
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_ack';
comment on function ojs.ack(uuid, jsonb, text, text)
    is 'Completes a job that is held, in the caller''s transaction; raises if lease_id or worker is given and does not '
       'hold it';

create function ojs.ack_many(
    worker text, job_ids uuid[], results jsonb[] default null, lease_ids text[] default null,
    out done int, out skipped uuid[]
)
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_ack_many';
comment on function ojs.ack_many(text, uuid[], jsonb[], text[])
    is 'Completes those of the jobs that the worker holds and reports the others as skipped';

create function ojs.ack_and_claim(
    worker text,
    queue text,
    job_ids uuid[],
    lease_ids text[] default null,
    results jsonb[] default null,
    max int default 1,
    lease interval default null
) returns setof ojs.claimed_job
language c volatile parallel unsafe rows 10 as 'MODULE_PATHNAME', 'ojs_ack_and_claim';
comment on function ojs.ack_and_claim(text, text, uuid[], text[], jsonb[], int, interval)
    is 'Completes the jobs that the worker holds and claims the next ones, in one step; raises if one is not held';
