-- admin_tables.sql: more storage: what administrators have done, and what they have registered.

-- What administrators have done, and who: only inserted into, and removed by its own retention alone. No role has a
-- privilege on it but its owner.
create table ojs_store.audit (
    id uuid not null primary key,
    at timestamptz not null,
    act text not null,                  -- queue_configured, cron_set, …
    subject text not null,              -- the queue, cron entry, worker, … that it was done to
    session_role text not null,         -- who logged in
    role text not null,                 -- as whom the call was made
    address inet,                       -- null: over a socket of the machine, or by the server itself
    application text not null,
    before jsonb,                       -- what changed, where it is settings
    after jsonb,
    detail jsonb
);
create index audit_at on ojs_store.audit (at);

-- Schemas of the arguments of job types (src/job/schema_registry.cpp). What changes a mode says that this table has
-- changed.
create table ojs_store.job_schema (
    type text collate "C" not null,
    key bytea not null,                 -- the version, in the order of versions
    version text collate "C" not null,  -- as it was given
    uri text collate "C" not null,
    schema jsonb not null,
    created_at timestamptz not null,
    primary key (type, key)
);
create unique index job_schema_uri on ojs_store.job_schema (uri);

-- Job types whose mode of validation is not that of the setting ojs.schema_validation.
create table ojs_store.schema_mode (
    type text collate "C" not null primary key,
    mode text not null                  -- strict, warn, off
);

-- Sets of queues that claims name (src/queue/pool.cpp reads the first four columns).
create table ojs_store.pool (
    name text collate "C" not null primary key,
    queues text[] not null,
    weights int[],                      -- by queue; null: strictly one after the other
    concurrency int,                    -- jobs that its claims may hold at once; null: no limit
    strategy text not null,             -- strict, round-robin, weighted
    changed_at timestamptz not null
);

-- Roles that act for some tenants only, and their members. Read by src/queue/tenant.cpp.
create table ojs_store.tenant_role (
    role text collate "C" not null,
    tenant text collate "C" not null,
    primary key (role, tenant)
);

-- What administrators have set for a tenant, checked; src/queue/tenant_settings.cpp reads the first two columns.
create table ojs_store.tenant (
    name text collate "C" not null primary key,
    config jsonb not null,              -- max_concurrency, max_queue_depth, max_scheduled, max_enqueue_rate, …
    changed_at timestamptz not null
);
