-- push.sql: producing jobs. C++: src/push/push.cpp.

create function ojs.push(
    type text,
    args jsonb default '[]',
    queue text default 'default',
    priority int default 0,
    scheduled_at timestamptz default null,
    delay interval default null,
    expires_at timestamptz default null,
    retry jsonb default null,
    "unique" jsonb default null,
    meta jsonb default '{}',
    timeout interval default null,
    deduplication_key text default null,
    deduplication_ttl interval default null,
    id uuid default null,
    tags text[] default null,
    pending boolean default false,
    options jsonb default '{}'
) returns ojs.job
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_push';
comment on function ojs.push(text, jsonb, text, int, timestamptz, interval, timestamptz, jsonb, jsonb, jsonb, interval,
    text, interval, uuid, text[], boolean, jsonb)
    is 'Pushes one job in the caller''s transaction and returns it; options takes every other attribute of the OJS '
       'envelope';

create function ojs.push_job(job jsonb) returns jsonb
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_push_job';
comment on function ojs.push_job(jsonb) is 'Pushes one job given as an OJS envelope and returns its complete envelope';

create function ojs.push_many(
    jobs jsonb,
    deduplication_key text default null,
    deduplication_ttl interval default null,
    atomicity text default 'atomic',
    idempotency_key text default null,
    out index int, out id uuid, out status text, out error jsonb
) returns setof record
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_push_many';
comment on function ojs.push_many(jsonb, text, interval, text, text)
    is 'Pushes a JSON array of OJS envelopes in one step, all or none, or each for itself; one result row per job, in '
       'input order';
