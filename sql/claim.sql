-- claim.sql: taking jobs. C++: src/claim/claim.cpp, src/claim/request.cpp, src/claim/scan.cpp and
-- src/claim/shares.cpp.

create function ojs.claim(
    queue text,
    worker text,
    max int default 1,
    lease interval default null,
    wait interval default '0',
    missing_ok boolean default false
) returns setof ojs.claimed_job
language c volatile parallel unsafe rows 10 as 'MODULE_PATHNAME', 'ojs_claim';
comment on function ojs.claim(text, text, int, interval, interval, boolean)
    is 'Leases up to max jobs of a queue to a worker, in claim order; waits up to wait (at most 30 s) for the first';

create function ojs.claim(
    queues text[],
    worker text,
    max int default 1,
    lease interval default null,
    wait interval default '0',
    missing_ok boolean default false,
    strategy text default 'strict',
    weights jsonb default null
) returns setof ojs.claimed_job
language c volatile parallel unsafe rows 10 as 'MODULE_PATHNAME', 'ojs_claim_queues';
comment on function ojs.claim(text[], text, int, interval, interval, boolean, text, jsonb)
    is 'Leases up to max jobs of several queues to a worker: the first queue''s jobs first, or shared out '
       '(round-robin, weighted)';

create function ojs.claim_pool(
    pool text,
    worker text,
    max int default 1,
    lease interval default null,
    wait interval default '0'
) returns setof ojs.claimed_job
language c volatile parallel unsafe rows 10 as 'MODULE_PATHNAME', 'ojs_claim_pool';
comment on function ojs.claim_pool(text, text, int, interval, interval)
    is 'Leases up to max jobs of the queues of a pool to a worker, as the pool shares them out';

-- How long the claims of this session were made to wait by the rules of their queues, since this was last asked.
create function ojs_store.claim_wait_ms() returns float8
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_claim_wait_ms';
