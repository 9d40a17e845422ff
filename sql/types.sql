-- types.sql: the row types of the public functions. include/ojs/store/rows.h has the column numbers. At the end what
-- passes between ojs.http and its handlers.

create type ojs.job as (
    id uuid,
    seq bigint,
    specversion text,
    type text,
    queue text,
    state text,
    args jsonb,
    meta jsonb,
    priority int,
    attempt int,
    max_attempts int,
    deliveries int,
    created_at timestamptz,
    enqueued_at timestamptz,
    scheduled_at timestamptz,
    expires_at timestamptz,
    started_at timestamptz,
    completed_at timestamptz,
    cancelled_at timestamptz,
    discarded_at timestamptz,
    next_attempt_at timestamptz,
    timeout interval,
    retry jsonb,
    "unique" jsonb,
    schema text,
    tags text[],
    result jsonb,
    error jsonb,
    errors jsonb,
    worker text,
    extra jsonb,
    deduplicated boolean
);
comment on type ojs.job is 'A job: one column per attribute of the OJS envelope; extra holds every other attribute';

create type ojs.claimed_job as (
    id uuid,
    seq bigint,
    specversion text,
    type text,
    queue text,
    state text,
    args jsonb,
    meta jsonb,
    priority int,
    attempt int,
    max_attempts int,
    deliveries int,
    created_at timestamptz,
    enqueued_at timestamptz,
    scheduled_at timestamptz,
    expires_at timestamptz,
    started_at timestamptz,
    completed_at timestamptz,
    cancelled_at timestamptz,
    discarded_at timestamptz,
    next_attempt_at timestamptz,
    timeout interval,
    retry jsonb,
    "unique" jsonb,
    schema text,
    tags text[],
    result jsonb,
    error jsonb,
    errors jsonb,
    worker text,
    extra jsonb,
    deduplicated boolean,
    lease_id text,
    lease_expires_at timestamptz
);
comment on type ojs.claimed_job
    is 'A job as a claim hands it out: the columns of ojs.job, the lease''s id and its deadline';

create type ojs_http.request as (
    method text,
    path text,
    names text[],                       -- what the path has in place of the variable parts of the route, decoded
    query jsonb,                        -- strings by name
    headers jsonb,                      -- by name in lower case
    body jsonb                          -- null where there is none
);
comment on type ojs_http.request is 'A request to ojs.http as its handlers see it';

create type ojs_http.response as (
    status int,
    headers jsonb,
    body jsonb,
    content text                        -- a body that is no JSON
);
comment on type ojs_http.response is 'What a handler of ojs.http answers';
