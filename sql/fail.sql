-- fail.sql: jobs that were not done. C++: src/work/fail.cpp.

create function ojs.fail(
    job_id uuid,
    error jsonb,
    lease_id text default null,
    worker text default null,
    requeue boolean default false,
    delay interval default null
) returns ojs.job
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_fail';
comment on function ojs.fail(uuid, jsonb, text, text, boolean, interval)
    is 'Reports that an attempt failed; the job''s retry policy decides whether it becomes retryable or discarded';

create function ojs.nack(
    job_id uuid, delay interval default '0', lease_id text default null, worker text default null
) returns ojs.job
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_nack';
comment on function ojs.nack(uuid, interval, text, text)
    is 'Gives a held job back without an error: available again after delay, the attempt not counted';

create function ojs.nack_many(
    worker text, job_ids uuid[], delay interval default '0', lease_ids text[] default null,
    out done int, out skipped uuid[]
)
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_nack_many';
comment on function ojs.nack_many(text, uuid[], interval, text[])
    is 'Gives back those of the jobs that the worker holds and reports the others as skipped';

create function ojs.storable(document text) returns jsonb
language c stable strict parallel safe as 'MODULE_PATHNAME', 'ojs_storable';
comment on function ojs.storable(text)
    is 'JSON text as jsonb, with what jsonb cannot hold replaced: U+0000 and half a surrogate pair by U+FFFD, NaN, '
       'infinities and numbers that are too long by strings; for the error of ojs.fail';
