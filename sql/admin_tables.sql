-- admin_tables.sql: more storage: what administrators have done, and what they have registered.

-- What administrators have done, and who: only inserted into, and removed by its own retention alone. No role has a
-- privilege on it but its owner.
create table ojs_store.audit (
    id uuid not null primary key,
    at timestamptz not null,
    act text not null,                  -- queue_configured, cron_set, ...
    subject text not null,              -- the queue, cron entry, worker, ... that it was done to
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
    config jsonb not null,              -- max_concurrency, max_queue_depth, max_scheduled, max_enqueue_rate, ...
    changed_at timestamptz not null
);

-- Who is told of events by HTTP (sql/webhooks.sql). No role but the owner reads the secrets.
create table ojs_store.webhook (
    id uuid not null primary key,
    tenant text collate "C",            -- whose events these are; null: everybody's
    role text not null,                 -- who gave the url: it gets no event that this role may not read
    url text not null,
    events text[] not null,             -- types, or beginnings with a star
    queues text[],                      -- null: all
    job_types text[],                   -- likewise
    active boolean not null,
    secret text not null,
    former_secret text,                 -- signs, too, until former_until
    former_until timestamptz,
    metadata jsonb not null,
    timeout_s int not null,
    created_at timestamptz not null,
    changed_at timestamptz not null
);

-- How each of them is doing: what senders and the tick write, while administrators may have the row above.
create table ojs_store.webhook_status (
    webhook uuid not null primary key,
    pending int not null default 0,     -- deliveries
    pending_bytes bigint not null default 0,
    delivered bigint not null default 0,
    retried bigint not null default 0,
    dead bigint not null default 0,
    dropped bigint not null default 0,  -- events that came while too many were pending, or were for another role
    failures int not null default 0,    -- attempts since the last one that succeeded
    attempted_at timestamptz
) with (fillfactor = 50);

-- Events on their way.
create table ojs_store.webhook_delivery (
    id uuid not null primary key,       -- made of the event and the subscription
    webhook uuid not null,
    event_id text not null,
    event_type text not null,
    state text not null,                -- pending, delivered, dead
    attempts int not null,
    created_at timestamptz not null,
    due_at timestamptz,                 -- of a pending one; with a lease, when that ends
    lease uuid,                         -- a sender is at it
    finished_at timestamptz,
    status_code int,                    -- of the last attempt, as what follows
    error text,
    response text,
    duration_ms int,
    body text                           -- null once it was delivered
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
create index webhook_delivery_due on ojs_store.webhook_delivery (webhook, due_at) where state = 'pending';
create index webhook_delivery_leased on ojs_store.webhook_delivery (webhook) where lease is not null;
create index webhook_delivery_finished on ojs_store.webhook_delivery (webhook, state, finished_at)
    where state <> 'pending';

-- One row as long as there are subscriptions: up to where events have become deliveries.
create table ojs_store.webhook_cursor (
    only_one boolean not null primary key check (only_one),
    cursor text not null,
    missed bigint not null default 0,   -- times that events were gone before they were read
    tidied_at timestamptz not null      -- when old deliveries were removed
);

-- Jobs that are pushed again and again, by a clock. See sql/cron.sql.
create table ojs_store.cron (
    name text collate "C" not null primary key,
    expression text not null,
    timezone text not null,
    enabled boolean not null,
    overlap_policy text not null,       -- skip, allow, cancel_previous, enqueue
    description text,
    job jsonb not null,                 -- the envelope to push, as it was given
    created_at timestamptz not null,
    anchor_at timestamptz not null,     -- since when this schedule holds: @every counts from here
    next_run_at timestamptz,            -- null: disabled, or never
    skip_at timestamptz,                -- before next_run_at clocks are put forward over due times
    -- when the tick looks at it: at the earlier of the two, or again after a hindrance
    due_at timestamptz,
    last_run_at timestamptz,
    run_count bigint not null default 0,
    planned_at timestamptz              -- by which clock next_run_at was worked out
) with (fillfactor = 70);
create index cron_due on ojs_store.cron (due_at);
create index cron_planned on ojs_store.cron (planned_at);

-- Jobs that cron entries have made, as far as the next run must know of them: those that may be open. They outlive
-- their entry while some wait.
create table ojs_store.cron_run (
    cron text collate "C" not null,
    job_id uuid not null primary key,
    scheduled_at timestamptz not null,
    waiting boolean not null            -- pending until those before it have finished
);
create index cron_run_order on ojs_store.cron_run (cron, scheduled_at);
create index cron_run_waiting on ojs_store.cron_run (cron, scheduled_at) where waiting;
