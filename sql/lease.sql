-- lease.sql: keeping jobs. C++: src/work/extend.cpp.

create function ojs.extend(job_id uuid, lease interval, lease_id text default null, worker text default null)
returns ojs.job
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_extend';
comment on function ojs.extend(uuid, interval, text, text)
    is 'Sets the deadline of a held job to now + lease (100 ms to 24 h)';

create function ojs.extend_many(
    worker text, job_ids uuid[], lease interval, lease_ids text[] default null,
    out done int, out skipped uuid[], out deadline timestamptz
)
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_extend_many';
comment on function ojs.extend_many(text, uuid[], interval, text[])
    is 'Sets the deadline of those of the jobs that the worker holds and reports the others as skipped';

create function ojs.beat(
    worker text, job_ids uuid[] default '{}', state text default 'running', info jsonb default '{}',
    lease interval default null,
    out directive text, out extended uuid[], out cancelled uuid[], out lost uuid[]
)
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_beat';
comment on function ojs.beat(text, uuid[], text, jsonb, interval)
    is 'A worker''s sign of life: extends the jobs it holds, tells which were cancelled or lost, and what it is to do';
