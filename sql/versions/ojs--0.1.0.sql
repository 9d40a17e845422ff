\echo Use "create extension ojs" to load this file. \quit
set local search_path = pg_catalog, pg_temp;

-- sql/schema.sql

-- schema.sql: the public schema, the private one, and that of the HTTP binding's parts. The roles: roles.sql.
-- No role gets USAGE on ojs_store: every way in is a function or a view of schema ojs. The parts of ojs.http run with
-- the rights of its caller, who must be able to name them: so they have a schema that may be entered, and no table in
-- it.

create schema ojs;
create schema ojs_store;
create schema ojs_http;

comment on schema ojs is 'Open Job Spec job queue: functions and views';
comment on schema ojs_store is 'Private tables of the extension ojs; use the functions and views of schema ojs';
comment on schema ojs_http is 'Parts of ojs.http; not for direct use';

-- sql/roles.sql

-- roles.sql: the roles that callers are granted.

-- Roles belong to the whole cluster: made where absent, and kept when the extension goes. One that is there already may
-- be that of another database, or have been made by somebody who means to own the queue later. It must be what we would
-- make: a role that cannot log in and has no power of its own. Members are left to the administrator, who is told of
-- them.
do $$
declare
    role text;
    found_role record;
begin
    foreach role in array array['ojs_producer', 'ojs_worker', 'ojs_observer', 'ojs_admin'] loop
        if not exists (select from pg_catalog.pg_roles where rolname = role) then
            begin
                execute pg_catalog.format('create role %I nologin', role);
            exception when duplicate_object or unique_violation then
                null; -- another database's CREATE EXTENSION was faster
            end;
        end if;
        select r.*, (
                select pg_catalog.string_agg(pg_catalog.quote_ident(u.rolname), ', ' order by u.rolname)
                from pg_catalog.pg_auth_members m join pg_catalog.pg_roles u on u.oid = m.member
                where m.roleid = r.oid and m.admin_option and not u.rolsuper
            ) as administrators
        into found_role from pg_catalog.pg_roles r where r.rolname = role;
        if found_role.rolcanlogin or found_role.rolsuper or found_role.rolcreaterole or found_role.rolcreatedb
            or found_role.rolreplication or found_role.rolbypassrls then
            raise exception 'role "%" exists already, and can log in or has attributes of its own',
                role using errcode = 'duplicate_object',
                hint = pg_catalog.format('Whoever made it would own the queue. If that is right: alter role %I nologin '
                    'nosuperuser nocreaterole '
                    'nocreatedb noreplication nobypassrls. If not, drop it.', role);
        elsif found_role.administrators is not null then
            raise exception 'role "%" exists already, and can be granted by %', role,
                found_role.administrators using errcode = 'duplicate_object',
                hint = pg_catalog.format('They could make anybody a member. Say: revoke admin option for %I from %s, '
                    'or drop the role.',
                    role, found_role.administrators);
        end if;
    end loop;
end
$$;

-- sql/types.sql

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

-- sql/tables.sql

-- tables.sql: storage. Logged tables that are only inserted into, and an unlogged hot set that can be rebuilt from it.
-- The hot path reaches these tables directly (src/store), past triggers, CHECKs, NOT NULLs, defaults and partial
-- indexes: so its tables have none that matter. Column order is fixed in include/ojs/store/rows.h.
--
-- Every logged table has a replica identity, so that a publication FOR ALL TABLES stops nothing: its primary key, the
-- unique index that it has anyhow, or the whole row where no unique index holds all rows.

create sequence ojs_store.seq;

-- The secret that ids of queues and keys of rate limits are made with (src/store/name_hash.cpp). The oldest row holds:
-- a restore adds the one of its dump. A queue keeps the id that its row has, whatever the key is.
create table ojs_store.name_key (
    key uuid not null,
    made_at timestamptz not null
);
alter table ojs_store.name_key replica identity full;
insert into ojs_store.name_key values (gen_random_uuid(), clock_timestamp());

-- Of what a queue's configuration says, in ms; null where it says nothing.
create function ojs_store.shortest_retention(config jsonb) returns bigint
language c strict immutable parallel safe as 'MODULE_PATHNAME', 'ojs_shortest_retention';

-- What queues there are. Two first pushes to a new queue do not wait for each other, so a name may stand here twice
-- for a while, with the same id (name_hash of the name); the newest revision counts, and the tick removes the other.
create table ojs_store.queue (
    id bigint not null,
    name text collate "C" not null,
    state text not null,                -- active, paused, draining; deleted: kept for the name of its finished jobs
    created_at timestamptz not null,
    revised_at timestamptz not null,
    config jsonb not null
);
create index queue_name on ojs_store.queue (name);
create index queue_id on ojs_store.queue (id);
alter table ojs_store.queue replica identity full;
-- For the tick, which must not read all of them: dropped ones, and how long the shortest retention is.
create index queue_dropped on ojs_store.queue (revised_at) where state = 'deleted';
create index queue_retention on ojs_store.queue (ojs_store.shortest_retention(config))
    where config ? 'retention' and state <> 'deleted';

-- How many jobs each queue has moved to its dead-letter queue. A move inserts a row, the tick adds them up.
create table ojs_store.queue_count (
    queue bigint not null,
    dead_lettered bigint not null
);
alter table ojs_store.queue_count replica identity full;
create index queue_count_queue on ojs_store.queue_count (queue);

-- LOGGED TRUTH -----------------------------------------------------------------------------------------------------

-- The envelope as it was pushed. What is rarely used is in options. Here and in `finished`, what is mostly null comes
-- last: a row does without its last nulls (src/store/rows.cpp).
create table ojs_store.job (
    id uuid not null,
    seq bigint not null,
    queue bigint not null,
    created_at timestamptz not null,
    flags int not null,                 -- job_flag in rows.h
    max_attempts int not null,
    priority smallint not null,
    type text not null,
    args jsonb not null,
    meta jsonb,                         -- null for {}
    scheduled_at timestamptz,
    expires_at timestamptz,
    timeout_ms bigint,
    retry jsonb,                        -- null for the system's default policy
    unique_policy jsonb,
    options jsonb                       -- specversion, schema, tags, own lease length, ..., and all unknown attributes
);
create unique index job_id on ojs_store.job (id);
alter table ojs_store.job replica identity using index job_id, alter meta set statistics 0, -- no plan goes by it
    alter retry set statistics 0, alter unique_policy set statistics 0, alter options set statistics 0;

-- Which job has pushed which; of jobs that say so, and gone with them. A parent may be gone before.
create table ojs_store.job_parent (
    job_id uuid not null,
    parent uuid not null
);
create index job_parent_job on ojs_store.job_parent (job_id);
create index job_parent_children on ojs_store.job_parent (parent, job_id);
alter table ojs_store.job_parent replica identity full;

-- What happened to an open job and a rebuild must know. Never on the plain path push, claim, ack.
create table ojs_store.job_history (
    job_id uuid not null,
    at timestamptz not null,
    due_at timestamptz,                 -- when it may be claimed again; null: at once
    kind smallint not null,             -- HistoryKind in rows.h
    attempt int not null,               -- counts after this event
    deliveries int not null,
    started_at timestamptz,             -- of the attempt that ended here
    worker text,
    data jsonb                          -- the error, in the form of ERR-A, or what was changed
);
create index job_history_job on ojs_store.job_history (job_id);
alter table ojs_store.job_history replica identity full;

-- What happened to the leases of queues with lease_log, in the order of numbers. Nothing but a look reads it.
create table ojs_store.lease_log (
    number bigint not null,
    job_id uuid not null,
    seq bigint not null,
    queue bigint not null,
    at timestamptz not null,
    deadline timestamptz not null,
    token bigint not null,
    step smallint not null,             -- LeaseStep in lease_log.h
    deliveries int not null,
    worker text not null
);
create unique index lease_log_seq on ojs_store.lease_log (seq, number);
alter table ojs_store.lease_log replica identity using index lease_log_seq;

-- Exactly one row per finished job.
create table ojs_store.finished (
    job_id uuid not null,
    finished_at timestamptz not null,
    queue bigint not null,
    attempt int not null,
    deliveries int not null,
    started_at timestamptz,             -- null: it never ran
    state smallint not null,            -- job_state in rows.h: completed, cancelled, discarded
    flags smallint not null,            -- finished_flag in rows.h
    worker text,                        -- of the delivery that ended so; null: none did, or a crash forgot it
    result jsonb,
    error jsonb
);
create unique index finished_job on ojs_store.finished (job_id);
alter table ojs_store.finished replica identity using index finished_job,
    alter result set statistics 0, alter error set statistics 0;

-- The dead letters among them, in the order in which retention lets them go.
create table ojs_store.dead_letter (
    job_id uuid not null,
    queue bigint not null,
    died_at timestamptz not null,
    error_type text                     -- of the error in `finished`, for lists and statistics
);
create unique index dead_letter_job on ojs_store.dead_letter (job_id);
alter table ojs_store.dead_letter replica identity using index dead_letter_job;
create index dead_letter_order on ojs_store.dead_letter (queue, died_at);

-- Who holds which fingerprint. Written at push only: what a claim of uniqueness is worth is looked up in the jobs'
-- states by the next push with that fingerprint, so ack, fail and reap never come here.
create table ojs_store.unique_key (
    fingerprint bytea not null,
    job_id uuid not null,               -- the newest job with this fingerprint
    -- older ones, in the order of their creation: all that still matter, which are the open ones and the newest of each
    -- final state, and some that no push has looked at since they ended
    past uuid[] not null,
    held boolean not null               -- false: retention has removed all of them, and the tick will remove the row
) with (fillfactor = 60);
create unique index unique_key_held on ojs_store.unique_key (fingerprint) where held;
alter table ojs_store.unique_key replica identity full;

-- Deduplication keys that producers chose. A key outlives its job until its time is over.
create table ojs_store.deduplication (
    queue bigint not null,
    key text collate "C" not null,
    job_id uuid not null,               -- the first one, of a batch
    expires_at timestamptz not null,
    primary key (queue, key)
);
create index deduplication_job on ojs_store.deduplication (job_id);
create index deduplication_expires on ojs_store.deduplication (expires_at);

-- What workers have reported of their jobs. Hot rows of such jobs bear a flag; a claim, an ack or a removal looks here
-- for no other. Gone with the job.
create table ojs_store.checkpoint (
    job_id uuid not null,
    sequence bigint not null,           -- how many saves since there was none
    created_at timestamptz not null,    -- of the last one
    state jsonb not null
) with (fillfactor = 70);
create unique index checkpoint_job on ojs_store.checkpoint (job_id);
alter table ojs_store.checkpoint replica identity using index checkpoint_job;

create table ojs_store.progress (
    job_id uuid not null,
    started_at timestamptz not null,    -- of the attempt that it belongs to
    deliveries int not null,            -- and of its delivery
    at timestamptz not null,
    progress numeric,                   -- 0 to 1
    message text,
    data jsonb
) with (fillfactor = 70);
create unique index progress_job on ojs_store.progress (job_id);
alter table ojs_store.progress replica identity using index progress_job;

-- UNLOGGED HOT SET -------------------------------------------------------------------------------------------------
-- Empty after a crash, a restore or a promotion, then rebuilt. A claim's rows live for seconds and die by the
-- thousand: vacuum by count, and never with the exclusive lock that giving back pages takes.

-- What may be claimed, in claim order: the queue, then priority (npriority is its negative), then position.
create unlogged table ojs_store.ready (
    job_id uuid not null,
    queue bigint not null,
    position bigint not null,           -- negative: delivered before, served first; else the order of entry
    job_tid tid not null,               -- where the envelope was last seen; the reader compares the id
    npriority smallint not null,
    flags int not null,
    attempt int not null,
    deliveries int not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, vacuum_truncate = off);
create index ready_order on ojs_store.ready (queue, npriority, position);
create index ready_job on ojs_store.ready (job_id) where flags & 65536 <> 0; -- see find_ready()

-- Who holds what until when. An extension moves deadline and leaves reap_at, so it stays a heap-only update.
create unlogged table ojs_store.lease (
    job_id uuid not null,
    reap_at timestamptz not null,       -- no later than the time at which upkeep must look at this lease
    deadline timestamptz not null,
    token bigint not null,
    queue bigint not null,
    claimed_at timestamptz not null,
    stop_at timestamptz not null,       -- when its execution timeout ends it, or infinity
    beat_at timestamptz,                -- the last sign of life
    lease_ms bigint not null,           -- its effective length, for beats
    job_tid tid not null,
    npriority smallint not null,
    flags int not null,
    attempt int not null,
    deliveries int not null,
    session int not null,               -- the work session it is bound to, or 0
    worker text not null
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, vacuum_truncate = off);
create unique index lease_job on ojs_store.lease (job_id);
create index lease_reap on ojs_store.lease (reap_at);

-- What waits for a time or a sign: scheduled, retryable, pending (due at infinity), released with a delay, blocked by
-- another job of its ordering key (due at infinity); and one row beside them or beside ready for each open job that
-- expires.
create unlogged table ojs_store.delayed (
    job_id uuid not null,
    queue bigint not null,
    due_at timestamptz not null,
    job_tid tid not null,
    npriority smallint not null,
    kind smallint not null,             -- DelayedKind in rows.h
    flags int not null,
    attempt int not null,
    deliveries int not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, vacuum_truncate = off);
create index delayed_job on ojs_store.delayed (job_id);
create index delayed_due on ojs_store.delayed (due_at);

-- What jobs that were handed out take of rate limits: starts, and slots while they are held (src/limits/slots.cpp).
create unlogged table ojs_store.limit_use (
    key bigint not null,                -- name_hash of the name; of a slot: from the job's id
    kind smallint not null,             -- LimitUse in rows.h
    at timestamptz not null,
    number bigint not null,             -- which start of its key; a slot's limit; slots taken, or freed
    until timestamptz not null,
    job_id uuid not null,
    token bigint not null,              -- of the lease
    name text collate "C" not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, vacuum_truncate = off);
create index limit_use_key on ojs_store.limit_use (key, kind, at, number);

-- Queues that somebody may be listening to, where no shared memory says so (src/shared/listener_flags.cpp). Vacuum
-- comes early, since pushes look at all rows, dead ones too; it cuts nothing off: who cannot lock it leaves no flag.
create unlogged table ojs_store.listener_flag (
    queue bigint not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 300, vacuum_truncate = off);
create index listener_flag_queue on ojs_store.listener_flag (queue);

-- A row with a time: the hot set stands. No such row, or one from the beginning of time beside it (rows came into the
-- logged tables by SQL, as in a restore): it must be rebuilt. The cause `reconcile` marks the row of the last pass.
create unlogged table ojs_store.hot_set_state (
    rebuilt_at timestamptz not null,
    took interval not null,
    jobs bigint not null,               -- put back by the rebuild
    cause text not null
);

-- RECORDS ----------------------------------------------------------------------------------------------------------

-- Events that no other row tells of. All the others are derived from job, job_history, finished and lease
-- (sql/events.sql).
create table ojs_store.stored_event (
    id uuid not null,
    at timestamptz not null,
    type text not null,                 -- queue.paused, worker.started, cron.triggered, ...
    subject text not null,              -- the queue, worker, cron entry or job it is about
    data jsonb not null
);
create unique index stored_event_at on ojs_store.stored_event (at, id);
alter table ojs_store.stored_event replica identity using index stored_event_at;

-- Up to where listeners were notified of events (ojs.notify_events). No row: nobody wants that.
create table ojs_store.event_notify_cursor (
    cursor text not null
);
alter table ojs_store.event_notify_cursor replica identity full;
create unique index event_notify_cursor_one on ojs_store.event_notify_cursor ((true)); -- one row at most

-- Tokens of what has been done once (ojs.once).
create table ojs_store.once_token (
    scope text collate "C" not null,
    token text collate "C" not null,
    at timestamptz not null,
    primary key (scope, token)
);
create index once_token_at on ojs_store.once_token (at);

-- How far retention has come in tables that it goes through block by block, round and round
-- (src/upkeep/block_scan.cpp). The rows stand from the beginning: whoever made them later could have to be waited for.
create table ojs_store.retention_cursor (
    what text collate "C" not null primary key,
    block bigint not null,              -- where it goes on
    at timestamptz not null,            -- when it got there
    -- the time of the newest row that was removed: a cursor of events may have missed it
    removed_to timestamptz
);
insert into ojs_store.retention_cursor (what, block, at)
select what, 0, '-infinity'
    from unnest('{finished,dead_letter,unique_key,lease_log,stored_event,workflow,priority_aging}'::text[]) what;

-- WORKFLOWS --------------------------------------------------------------------------------------------------------
-- See docs/how-to/workflows.md, and src/state/members.cpp for what happens when a member ends. A member is a job or an
-- inner workflow: a step of a chain, a job of a group or a batch, or a callback of a batch.

-- A chain, group or batch. One inside another has a row of its own, from the moment at which it begins.
create table ojs_store.workflow (
    id uuid not null primary key,
    root uuid not null,                 -- the outermost one, which was asked for; its own id there
    parent uuid,                        -- the workflow that it is a member of
    position int,                       -- and at which place
    type text not null,                 -- chain, group, batch
    name text,
    state text not null,                -- running, completed, failed, cancelled
    members int not null,               -- without callbacks
    jobs int not null,                  -- of it and all that is in it, without callbacks
    has_parents boolean not null,       -- its first jobs are given results of what was before it
    queues bigint[] not null,           -- all that its jobs may go to; of the outermost one only
    created_at timestamptz not null,
    ended_at timestamptz
) with (fillfactor = 70);
create index workflow_root on ojs_store.workflow (root);
create index workflow_ended on ojs_store.workflow (ended_at);

-- What it consists of. Members have places from 0; callbacks follow.
create table ojs_store.workflow_member (
    workflow uuid not null,
    position int not null,
    type text not null,                 -- of the job, or chain, group, batch
    callback text,                      -- on_complete, on_success, on_failure
    definition jsonb,                   -- as it was given; null for what began with its workflow
    primary key (workflow, position)
);

-- Members that have begun and not ended. Who deletes a row ends the member; there is one ending of each.
create table ojs_store.workflow_open (
    member uuid not null,               -- of the job or the inner workflow
    workflow uuid not null,
    position int not null,
    is_job boolean not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
create unique index workflow_open_member on ojs_store.workflow_open (member);
create index workflow_open_order on ojs_store.workflow_open (workflow, position);
alter table ojs_store.workflow_open replica identity using index workflow_open_member;

-- How members ended. Insert-only; a copy of the result, so that retention and a manual retry of the job mean nothing
-- here.
create table ojs_store.workflow_end (
    workflow uuid not null,
    position int not null,
    member uuid not null,
    ended_at timestamptz not null,
    attempt int not null,
    is_job boolean not null,
    state text not null,                -- completed, failed, cancelled
    started_at timestamptz,
    result jsonb,
    error jsonb
);
create unique index workflow_end_order on ojs_store.workflow_end (workflow, position);
alter table ojs_store.workflow_end replica identity using index workflow_end_order;

-- Workflows whose last open member has ended, or may have: to be looked at. Mostly gone in the same transaction.
create table ojs_store.workflow_due (
    workflow uuid not null,
    due_at timestamptz not null,
    failures int not null,
    error text                          -- why it could not go on so far
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
create index workflow_due_workflow on ojs_store.workflow_due (workflow);
create index workflow_due_order on ojs_store.workflow_due (due_at);
alter table ojs_store.workflow_due replica identity full;

-- One row: what the last check for workflows that were left open has found.
create table ojs_store.workflow_check (
    checked_at timestamptz not null,
    running bigint not null,
    mended bigint not null,             -- since the row was made
    error text                          -- why the last check, or the removal of old workflows after it, has failed
);
alter table ojs_store.workflow_check replica identity full;

-- ADMINISTRATION ---------------------------------------------------------------------------------------------------

-- What an administrator has set for the key of a rate limit, and pauses that workers were told to make (config null).
create table ojs_store.rate_limit (
    key text collate "C" not null,
    config jsonb,
    until timestamptz,                  -- null: for good
    set_at timestamptz not null
);
alter table ojs_store.rate_limit replica identity full;

-- One row while the server is in maintenance (src/queue/maintenance.cpp).
create table ojs_store.maintenance (
    since timestamptz not null,
    reason text,
    ends_at timestamptz,                -- when it is meant to be over; only a call ends it
    begun_by text not null              -- the role
);
alter table ojs_store.maintenance replica identity full;

-- Workers that have sent a beat, registered, or been told something.
create table ojs_store.worker (
    name text collate "C" not null primary key,
    -- what it was told: quiet, terminate, running (until it says that it is); or nothing
    directive text,
    state text not null default 'running',       -- what the worker said of itself
    info jsonb not null default '{}',
    registered_at timestamptz not null,
    -- its last sign of life; a claim is written here only where its heartbeat is missed
    seen_at timestamptz not null,
    beats boolean not null default false,        -- only those that beat can be missed
    died_at timestamptz,                -- when it was found dead; a beat brings it back
    -- a beat has named a job that it held: only then does silence cost it its jobs
    beats_for_jobs boolean not null default false,
    registered_by text                  -- the role that the name belongs to while the worker lives; null: nobody's yet
) with (fillfactor = 70);

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
    run_count bigint not null default 0
) with (fillfactor = 70);
create index cron_due on ojs_store.cron (due_at);

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

-- Functions that take part in pushes, claims and ends of attempts. By name, so that a dump can carry them.
create table ojs_store.hook (
    name text collate "C" not null primary key,
    point text not null,                -- enqueue, before_execute, after_execute
    position int not null,              -- in the chain of its point; neighbours need not be consecutive
    function_schema text not null,
    function_name text not null,        -- takes one jsonb
    role text not null,                 -- who registered it, and as whom it runs
    registered_at timestamptz not null,
    -- when it was registered: a function of the same name by somebody else does not run
    function_owner text not null
);

-- How often execution hooks have failed. A call inserts a row, the tick adds them up.
create table ojs_store.hook_failure (
    hook text collate "C" not null,
    failures bigint not null,
    failed_at timestamptz not null,
    error text not null                 -- the SQLSTATE: what else the error said may not be for everybody
);
alter table ojs_store.hook_failure replica identity full;

-- What a call answered that brought an idempotency key, for a day. No answer: the call is under way.
create table ojs_store.idempotency (
    operation text collate "C" not null, -- and whose it is: "push_many of ROLE"
    key text collate "C" not null,
    request bytea not null,             -- SHA-256 of what was asked
    answer jsonb,
    expires_at timestamptz not null,
    primary key (operation, key)
);
create index idempotency_expires on ojs_store.idempotency (expires_at);

-- sql/ordering_tables.sql

-- ordering_tables.sql: the unlogged tables of ordering keys and of priority aging. They belong to the hot set
-- (tables.sql).

-- Jobs with an ordering key (src/state/ordering.cpp): the lines they stand in, from their push to their end, and the
-- keys whose line somebody has to look at.
create unlogged table ojs_store.ordering_line (
    key bigint not null,                -- name_hash of the queue and the key
    position bigint not null,           -- the first is served first
    queue bigint not null,
    job_id uuid not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, vacuum_truncate = off);
create index ordering_line_order on ojs_store.ordering_line (key, position);
create index ordering_line_job on ojs_store.ordering_line (job_id);

create unlogged table ojs_store.ordering_due (
    queue bigint not null,
    key bigint not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, vacuum_truncate = off);
create index ordering_due_key on ojs_store.ordering_due (queue, key);

-- Queues whose waiting jobs rise (sql/aging.sql), and ten times a step the number that the next job would have had.
create unlogged table ojs_store.priority_aging (
    queue bigint not null primary key,
    step_s int not null,                -- priority_aging_s, as it was then
    at timestamptz not null,            -- of the last of the numbers
    numbers bigint[] not null
) with (fillfactor = 50);
create index queue_aging on ojs_store.queue (id) where config ? 'priority_aging_s' and state <> 'deleted';

-- sql/admin_tables.sql

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

-- sql/rights.sql

-- rights.sql: what a queue's lists of roles (producers, workers, readers, cancellers, administrators) let a caller do.
-- All of it is decided in src/queue/access.cpp. Inside a SECURITY DEFINER function the caller is the role that the
-- session has taken on.

-- The name, if the caller may do so with the queue, or there never was such a queue; else PERMISSION_DENIED. Rights:
-- produce, work, read, cancel, administer.
create function ojs_store.use_queue(name text, right_name text) returns text
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_use_queue';

create function ojs_store.may_use_queue(id bigint, right_name text) returns boolean
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_may_use_queue';

create function ojs_store.may_use_queue(name text, right_name text) returns boolean
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_may_use_queue_named';

-- Whether a role may, whoever asks; by the queue's stored name.
create function ojs_store.role_may_use_queue(role oid, name text, right_name text) returns boolean
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_role_may_use_queue';

-- Whether the caller may do so with all of these.
create function ojs_store.may_use_queues(ids bigint[], right_name text) returns boolean
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_may_use_queues';

-- Like use_queue(), but for the queue of a job.
create function ojs_store.use_job(job_id uuid, right_name text) returns uuid
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_use_job';

create function ojs_store.may_use_job(job_id uuid, right_name text) returns boolean
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_may_use_job';

/*
 * A view whose rows are found by an index cannot be a security barrier, which hides the order of its rows. Instead each
 * column that it takes from a table goes through if_allowed(): so a condition of the caller meets nulls in place of
 * what the caller may not see, whenever it is evaluated. The view then asks if_allowed(id, ...) = id, which drops those
 * rows, and lets the planner use the index on ids. Where no queue has lists, if_allowed() is planned as its first
 * argument, and `allowed` is not evaluated.
 */
create function ojs_store.if_allowed_support(internal) returns internal
language c strict immutable parallel safe as 'MODULE_PATHNAME', 'ojs_if_allowed_support';

create function ojs_store.if_allowed(value anyelement, allowed boolean) returns anyelement
language c strict stable parallel unsafe support ojs_store.if_allowed_support as 'MODULE_PATHNAME', 'ojs_if_allowed';

-- As ojs_store.look, but null if the caller may not read the job.
create function ojs_store.visible(job_id uuid) returns ojs.job
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_visible';

create function ojs_store.calling_role() returns name
language c stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_calling_role';

-- The queue that a job, as ojs.push_job takes it, goes to.
create function ojs_store.queue_of(job jsonb) returns text
language sql immutable parallel safe
begin atomic
    select coalesce(job #>> '{options,queue}', job ->> 'queue', 'default');
end;

-- Whether the caller may see a workflow, of which this is the outermost one.
create function ojs_store.may_read_workflow(root uuid) returns boolean
language sql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select ojs_store.may_use_queues(w.queues, 'read') from ojs_store.workflow w where w.id = $1
$$;

-- Whether the caller may see a cron entry of this job.
create function ojs_store.may_read_cron(job jsonb) returns boolean
language sql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select ojs_store.may_see_tenant(job #>> '{meta,tenant_id}')
        and ojs_store.may_use_queue(ojs_store.queue_of(job)
            || coalesce('@' || ojs_store.caller_tenant(), ''), 'read')
$$;

-- Whether the caller may see events of a workflow or a cron entry: those of queues that it may read.
create function ojs_store.may_see(type text, subject text) returns boolean
language sql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select case when type like 'cron.%'
        then exists (select from ojs_store.cron c where c.name = subject
            and ojs_store.may_read_cron(c.job))
            or ojs_store.caller_tenant() is null
                and not exists (select from ojs_store.cron c where c.name = subject)
        else (ojs_store.caller_tenant() is null or exists (select from ojs_store.workflow w where w.id::text = subject))
            and not exists (
            select from ojs_store.workflow w
            where w.id = case when subject ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then subject::uuid end
                and not ojs_store.may_read_workflow(w.root)) end
$$;

-- For what reads tables of the hot set, which a standby does not have, before it writes.
create function ojs_store.refuse_read_only(what text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if current_setting('transaction_read_only')::boolean then
        raise exception using errcode = 'read_only_sql_transaction',
            message = format('cannot execute %s in a read-only transaction', what);
    end if;
end $$;

-- sql/tenants.sql

-- tenants.sql: who acts for which tenant. What follows from it is decided in src/queue/tenant.cpp.

-- The tenant that the caller acts for; null for none.
create function ojs_store.caller_tenant() returns text
language c stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_caller_tenant';

-- What a queue that the caller names is called in ojs_store.queue: QUEUE@TENANT for one who acts for a tenant.
create function ojs_store.stored_queue(name text) returns text
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_stored_queue';

-- The way back. Who acts for no tenant sees the stored name.
create function ojs_store.shown_queue(stored text) returns text
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_shown_queue';

create function ojs_store.is_tenant(name text) returns boolean
language c strict immutable parallel safe as 'MODULE_PATHNAME', 'ojs_is_tenant';

-- Whether the caller may see what belongs to this tenant (null: to none).
create function ojs_store.may_see_tenant(tenant text) returns boolean
language sql stable parallel unsafe
begin atomic -- parsed already: views call it for those who may not enter the schema
    select coalesce(ojs_store.caller_tenant() = $1, ojs_store.caller_tenant() is null);
end;

-- For what is about the whole system, and shows or moves what may be anybody's.
create function ojs_store.refuse_tenant(what text) returns void
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if ojs_store.caller_tenant() is not null then
        perform ojs_store.raise('PERMISSION_DENIED', format('%s is not for one who acts for a tenant', what),
            jsonb_build_object('reason', 'tenant_not_allowed'),
            'Ask as a role that is bound to no tenant, without ojs.tenant and X-OJS-Tenant.');
    end if;
end $$;

-- A configuration with the members of another in place of its own; retry policies are merged.
create function ojs_store.merged_config(base jsonb, over jsonb) returns jsonb
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_merged_config';

create function ojs_store.check_binding(role name, tenant text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if role is null or not exists (select from pg_roles r where r.rolname = role) then
        perform ojs_store.raise('INVALID_PAYLOAD', format('role "%s" does not exist', role), '{"field": "role"}',
            'Create the role first.');
    elsif tenant is null or not ojs_store.is_tenant(tenant) then
        perform ojs_store.raise('INVALID_PAYLOAD', 'tenant is no tenant', '{"field": "tenant"}',
            'Give 1 to 63 letters, digits, dots, underscores, colons or hyphens, the first a letter or a digit.');
    elsif pg_has_role(role, 'ojs_admin', 'member') then
        perform ojs_store.raise('INVALID_PAYLOAD', format('role "%s" is a superuser or a member of ojs_admin', role),
            '{"field": "role"}', 'Bind a role that administers nothing: an administrator sees all tenants.');
    end if;
end $$;

create function ojs.bind_tenant(role name, tenant text) returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.refuse_tenant('ojs.bind_tenant()');
    perform ojs_store.check_binding(role, tenant);
    if current_setting('ojs.tenancy') = 'off' then
        perform ojs_store.raise('UNSUPPORTED_FEATURE', 'there are no tenants: ojs.tenancy is off',
            '{"field": "tenant"}', 'Set ojs.tenancy to optional or required for the database first, and connect anew.');
    end if;
    insert into ojs_store.tenant_role values (role, tenant) on conflict do nothing;
    perform ojs_store.record_audit('tenant_bound', role::text, null, null, jsonb_build_object('tenant', tenant));
end $$;
comment on function ojs.bind_tenant(name, text)
    is 'From now on a role, and its members, act for this tenant only, and for others that it is bound to';

create function ojs.unbind_tenant(role name, tenant text) returns boolean
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.refuse_tenant('ojs.unbind_tenant()');
    delete from ojs_store.tenant_role r where r.role = unbind_tenant.role::text and r.tenant = unbind_tenant.tenant;
    if not found then
        return false;
    end if;
    perform ojs_store.record_audit('tenant_unbound', role::text, null, jsonb_build_object('tenant', tenant), null);
    return true;
end $$;
comment on function ojs.unbind_tenant(name, text)
    is 'Takes a binding back; a role without any acts for whom it likes. False if there was none';

create view ojs.tenant_roles as
select r.role, r.tenant from ojs_store.tenant_role r where ojs_store.may_see_tenant(r.tenant);
comment on view ojs.tenant_roles is 'Which roles act for which tenants only';

-- sql/push.sql

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
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_push_job';
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

-- sql/claim.sql

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

-- sql/ack.sql

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

-- sql/fail.sql

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

-- sql/lease.sql

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

-- sql/progress.sql

-- progress.sql: how far jobs have come. C++: src/work/progress.cpp; reading: src/state/reported.cpp.

create function ojs.progress(job_id uuid, progress numeric, message text default null, data jsonb default null)
    returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_progress';
comment on function ojs.progress(uuid, numeric, text, jsonb)
    is 'Reports how far a job that runs has come, 0 to 1, and renews its lease as a heartbeat does; ignored for any '
       'other job';

-- sql/checkpoint.sql

-- checkpoint.sql: what a job goes on from in its next attempt. C++: src/work/checkpoint.cpp; the claim:
-- src/state/reported.cpp.

create function ojs.checkpoint(job_id uuid, state jsonb) returns jsonb
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_checkpoint';
comment on function ojs.checkpoint(uuid, jsonb)
    is 'Saves the state that the next attempt of a job is to go on from, in place of the last one; each claim brings '
       'it';

create function ojs.get_checkpoint(job_id uuid) returns jsonb
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_get_checkpoint';
comment on function ojs.get_checkpoint(uuid) is 'The last state saved for a job, also after its end';

create function ojs.delete_checkpoint(job_id uuid) returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.use_job(job_id, 'work');
    delete from ojs_store.checkpoint c where c.job_id = delete_checkpoint.job_id
        and ojs_store.may_use_job(c.job_id, 'work');
    if not found and not exists (select from ojs_store.job j where j.id = delete_checkpoint.job_id
            and ojs_store.may_use_job(j.id, 'work')) then
        perform ojs_store.raise('NOT_FOUND', format('job %s does not exist', coalesce(job_id::text, 'null')),
            jsonb_build_object('job_id', job_id),
            'Check the id; finished jobs are removed after their retention.');
    end if;
end $$;
comment on function ojs.delete_checkpoint(uuid)
    is 'Forgets what was saved for a job, so that its next attempt begins at the beginning; also where there is '
       'nothing';

-- sql/work.sql

-- work.sql: work bound to the session. C++: src/work/session.cpp.

create function ojs.work_open(queue text, worker text, max int default 1, lease interval default null) returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_work_open';
comment on function ojs.work_open(text, text, int, interval)
    is 'Begins push mode: ojs.work_next gives this session at most max unfinished jobs, which are given back when it '
       'ends';

create function ojs.work_next(wait interval default '0', worker text default null) returns setof ojs.claimed_job
language c volatile parallel unsafe rows 10 as 'MODULE_PATHNAME', 'ojs_work_next';
comment on function ojs.work_next(interval, text)
    is 'The next jobs of the work session, as many as it has finished since; waits up to wait (at most 30 s) for the '
       'first';

create function ojs.work_close() returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_work_close';
comment on function ojs.work_close() is 'Ends push mode and gives back what the session has not finished';

-- sql/control.sql

-- control.sql: what a producer may still do about its job. C++: src/push/cancel.cpp.

create function ojs.cancel(job_id uuid, idempotent boolean default false) returns ojs.job
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_cancel';
comment on function ojs.cancel(uuid, boolean)
    is 'Cancels an open job, an active one too; with idempotent a finished job is returned as it is instead of an '
       'error';

create function ojs.activate(job_id uuid) returns ojs.job
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_activate';
comment on function ojs.activate(uuid) is 'Makes a pending job available, or scheduled where its time is still to come';

-- sql/info.sql

-- info.sql: reading jobs, leases and queues. C++: src/admin/info.cpp.

create function ojs.info(job_id uuid) returns jsonb
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_info';
comment on function ojs.info(uuid) is 'The complete envelope of a job as it stands; changes and locks nothing';

create function ojs.version() returns text
language c immutable parallel safe as 'MODULE_PATHNAME', 'ojs_version';
comment on function ojs.version() is 'The version of the ojs library';

create function ojs_store.now() returns timestamptz
language c volatile parallel restricted as 'MODULE_PATHNAME', 'ojs_now';

-- For waits: seconds of a clock that nobody sets, of which only differences mean anything, and a sleep by that clock.
-- The server's pg_sleep() lasts for an hour longer if the system's clock is set back by an hour.
create function ojs_store.steady_s() returns double precision
language c volatile parallel restricted as 'MODULE_PATHNAME', 'ojs_steady_s';

create function ojs_store.rest(seconds double precision) returns void
language c strict volatile parallel restricted as 'MODULE_PATHNAME', 'ojs_rest';

create function ojs_store.changed(contents_of regclass) returns void
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_changed';

-- Keyed hash of a name that callers choose (src/store/name_hash.cpp).
create function ojs_store.name_hash(name text) returns bigint
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_name_hash';

-- The id of the queue of this name, or the one that it would get.
create function ojs_store.queue_id(name text) returns bigint
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_queue_id';

-- Like the function above, but for a name that has no row; refuses an id that another queue has.
create function ojs_store.new_queue_id(name text) returns bigint
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_new_queue_id';

create function ojs_store.look(job_id uuid) returns ojs.job
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_look';

create function ojs_store.leases(
    out job_id uuid, out queue text, out worker text, out lease_id text, out claimed_at timestamptz,
    out lease_expires_at timestamptz, out deliveries int
) returns setof record
language c stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_leases';

create function ojs_store.holders(out worker text, out ids uuid[], out claimed_at timestamptz) returns setof record
language c stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_holders';

-- What never changes comes from the envelope itself, so that a search by id, type or time uses its index.
create view ojs.jobs as
select
    ojs_store.if_allowed(envelope.id, readable) as id, ojs_store.if_allowed(envelope.seq, readable) as seq,
    job.specversion, ojs_store.if_allowed(envelope.type, readable) as type, job.queue, job.state, job.args, job.meta,
    job.priority, job.attempt, job.max_attempts, job.deliveries,
    ojs_store.if_allowed(envelope.created_at, readable) as created_at, job.enqueued_at,
    ojs_store.if_allowed(envelope.scheduled_at, readable) as scheduled_at,
    ojs_store.if_allowed(envelope.expires_at, readable) as expires_at, job.started_at, job.completed_at,
    job.cancelled_at, job.discarded_at, job.next_attempt_at, job.timeout, job.retry, job."unique", job.schema, job.tags,
    job.result, job.error, job.errors, job.worker, job.extra, job.deduplicated
from ojs_store.job envelope,
    lateral (select ojs_store.may_use_queue(envelope.queue, 'read') as readable) rights,
    lateral ojs_store.visible(envelope.id) job
where ojs_store.if_allowed(envelope.id, readable) = envelope.id and job.id is not null;
comment on view ojs.jobs is 'All jobs: the columns of ojs.job, each job as it stands';

create view ojs.leases as
select job_id, queue, worker, lease_id, claimed_at, lease_expires_at, deliveries from ojs_store.leases();
comment on view ojs.leases is 'Who holds which job until when; empty on a standby, where leases do not exist';

create view ojs.queues with (security_barrier) as
select name,
    case when state = 'active' and strpos(name, '@') > 0 then coalesce( -- a tenant's part is paused with its queue
        (select case base.state when 'deleted' then newest.state else base.state end from ojs_store.queue base
            where base.name = split_part(newest.name, '@', 1) order by base.revised_at desc limit 1), state)
        else state end as state, created_at, config
from (
    select distinct on (name) id, name, state, created_at, config
    from ojs_store.queue
    where name <> '_default'
    order by name, revised_at desc
) newest
where state <> 'deleted' and ojs_store.may_use_queue(id, 'read');
comment on view ojs.queues is 'All queues, with their state (active, paused, draining) and configuration';

-- sql/admin.sql

-- admin.sql: jobs past their normal life. C++: src/admin/job_admin.cpp.

create function ojs.retry(job_id uuid, overrides jsonb default '{}') returns ojs.job
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_retry';
comment on function ojs.retry(uuid, jsonb)
    is 'Makes a discarded job available again with a new budget of attempts, or a retryable one at once';

create function ojs_http.retry_ended(job_id uuid, overrides jsonb) returns ojs.job
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_retry_ended';

create function ojs.set_priority(job_id uuid, priority int) returns ojs.job
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_set_priority';
comment on function ojs.set_priority(uuid, int)
    is 'Gives a job that is available or scheduled another priority; among those of it, it lines up as if it came now';

create function ojs.discard(job_id uuid, reason text default null) returns ojs.job
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_discard';
comment on function ojs.discard(uuid, text) is 'Ends an open job that nobody holds as discarded';

create function ojs.delete_job(job_id uuid) returns boolean
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_delete_job';
comment on function ojs.delete_job(uuid) is 'Removes a finished job with its history; false if there is no such job';

-- The id is that of the table, so that a search by it uses the index.
create view ojs.dead_letters as
select
    ojs_store.if_allowed(dead_letter.job_id, readable) as id,
    job.seq, job.specversion, job.type, job.queue, job.state, job.args, job.meta,
    job.priority, job.attempt, job.max_attempts, job.deliveries, job.created_at, job.enqueued_at,
    job.scheduled_at, job.expires_at, job.started_at, job.completed_at, job.cancelled_at, job.discarded_at,
    job.next_attempt_at, job.timeout, job.retry, job."unique", job.schema, job.tags, job.result, job.error, job.errors,
    job.worker, job.extra, job.deduplicated
from ojs_store.dead_letter,
    lateral (select ojs_store.may_use_queue(dead_letter.queue, 'read') as readable) rights,
    lateral ojs_store.visible(dead_letter.job_id) job
where ojs_store.if_allowed(dead_letter.job_id, readable) = dead_letter.job_id and job.id is not null;
comment on view ojs.dead_letters is 'Discarded jobs that were kept as dead letters: the columns of ojs.job';

-- Removes jobs for good, and counts them. The rows that say where they stand have been taken by the caller.
create function ojs_store.remove_jobs(ids uuid[]) returns bigint
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_remove_jobs';

-- sql/lease_log.sql

-- lease_log.sql: what happened to the leases of queues that have lease_log on. C++: src/state/lease_log.cpp.

-- For what takes leases away by SQL.
create function ojs_store.log_lease(lease ojs_store.lease, step smallint) returns void
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    insert into ojs_store.lease_log (number, job_id, seq, queue, at, deadline, token, step, deliveries, worker)
    select nextval('ojs_store.seq'), j.id, j.seq, (lease).queue, ojs_store.now(), (lease).deadline, (lease).token, step,
        (lease).deliveries, (lease).worker
    from ojs_store.job j
    where j.id = (lease).job_id and (lease).flags & 131072 <> 0
$$;

create view ojs.lease_log with (security_barrier) as
select
    l.job_id, l.seq,
    (select q.name from ojs_store.queue q where q.id = l.queue order by q.revised_at desc limit 1) as queue,
    ('{claimed,extended,released,acked,failed,lapsed,cancelled,purged,discarded}'::text[])[l.step] as event,
    l.worker, 'lease_' || lpad(to_hex(l.token), 16, '0') as lease_id, l.at, l.deadline, l.deliveries, l.number
from ojs_store.lease_log l
where ojs_store.may_use_queue(l.queue, 'read');
comment on view ojs.lease_log
    is 'What happened to the leases of queues with lease_log, in the order of number: claimed, extended, released, '
       'acked, failed, lapsed, cancelled, purged, discarded';

-- sql/metrics.sql

-- metrics.sql: what has happened to jobs, for whoever watches a server. C++: src/counters/job_metrics.cpp,
-- src/admin/metrics.cpp.

-- What shared memory says; nothing without preload, and on a standby what it has counted itself: nothing.
create function ojs_store.shared_metrics(out queue bigint, out type text, out cells bigint[], out sums bigint[])
    returns setof record
language c volatile parallel unsafe rows 100 as 'MODULE_PATHNAME', 'ojs_shared_metrics';

create function ojs_store.shared_hour(
    ids bigint[],
    out queue bigint, out completed bigint, out failed bigint, out avg_duration_ms float8, out avg_wait_ms float8
) returns setof record
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_shared_hour';

create function ojs_store.shared_minute(ids bigint[], out queue bigint, out starts bigint, out avg_wait_ms float8)
    returns setof record
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_shared_minute';

create function ojs_store.shared_parts(
    ids bigint[],
    out at timestamptz, out enqueued bigint, out completed bigint, out failed bigint, out run_us bigint,
        out waits bigint, out wait_us bigint
) returns setof record
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_shared_parts';

create function ojs_store.queue_seqs(id bigint, out earliest bigint, out head bigint) returns record
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_queue_seqs';

-- What of shared memory is in use, by all databases and by this one, and how much there is; nothing without preload.
create function ojs_store.shared_use(out what text, out used bigint, out own bigint, out most bigint)
    returns setof record
language c volatile parallel unsafe rows 7 as 'MODULE_PATHNAME', 'ojs_shared_use';

-- What a line says of its queue: a tenant's part of one names the tenant.
create function ojs_store.queue_labels(name text) returns text
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select format('queue="%s"', split_part(name, '@', 1)) || case when name like '%@%'
        then format(',tenant_id="%s"', split_part(name, '@', 2)) else '' end
$$;

-- Whether commits are counted here.
create function ojs_store.metrics_kept() returns boolean
language c stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_metrics_kept';

-- When a job, of these queues or (null) of all, was handed out for the first time, and how long it had waited, as far
-- as rows tell. A pending job does not say when it was activated.
create function ojs_store.first_starts(
    since timestamptz, queues bigint[],
    out queue bigint, out type text, out waited_us bigint
) returns setof record
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select j.queue, j.type,
        greatest((extract(epoch from started.at - greatest(j.created_at, j.scheduled_at)) * 1000000)::bigint, 0)
    from (
        select d.job_id, d.started_at as at from ojs_store.finished d where d.deliveries = 1 and d.started_at > since
            and (queues is null or d.queue = any (queues))
        union
        select r.job_id, r.started_at from ojs_store.running() r where r.kind = 8 and r.deliveries = 1
            and r.started_at > since
        union
        select e.job_id, e.started_at from ojs_store.job_history e
            where e.kind in (1, 2, 3) and e.deliveries = 1
            and e.started_at > since
    ) started
    join ojs_store.job j on j.id = started.job_id
    where j.flags & 1 = 0 and (queues is null or j.queue = any (queues))
$$;

-- The last sixty minutes of some queues.
create function ojs_store.last_hour(
    ids bigint[],
    out queue bigint, out completed bigint, out failed bigint, out avg_duration_ms float8, out avg_wait_ms float8
) returns setof record
language plpgsql stable parallel unsafe rows 10 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    since timestamptz := ojs_store.now() - interval '1 hour';
    n bigint;
begin
    return query select * from ojs_store.shared_hour(ids);
    get diagnostics n = row_count;
    if n = cardinality(ids) then
        return;
    end if;
    return query
        select q.id, coalesce(ended.completed, 0), coalesce(ended.failed, 0), ended.took_ms, waits.waited_ms
        from (select unnest(ids) except select h.queue from ojs_store.shared_hour(ids) h) as q(id)
        left join (
            select d.queue, count(*) filter (where d.state = 4) as completed,
                count(*) filter (where d.state = 7) as failed,
                avg(extract(epoch from d.finished_at - d.started_at) * 1000) filter
                    (where d.state = 4)::float8 as took_ms
            from ojs_store.finished d
            where d.finished_at > since and d.queue = any (ids)
            group by 1
        ) ended on ended.queue = q.id
        left join (
            select s.queue, (avg(s.waited_us) / 1000)::float8 as waited_ms from ojs_store.first_starts(since, ids) s
                group by 1
        ) waits on waits.queue = q.id;
end $$;

-- What happened in each stretch of `step` from `since` to `until`. The last hour by five minutes comes from shared
-- memory; all else is counted in the jobs that are kept. At most 1500 of them: a day by minutes, say.
create function ojs_store.history(ids bigint[], step interval, since timestamptz, until timestamptz)
returns table (at timestamptz, enqueued bigint, completed bigint, failed bigint, avg_run_ms numeric,
    avg_wait_ms numeric)
language plpgsql volatile parallel unsafe rows 100 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    -- By numbers: the difference of two times may be more than an interval holds.
    if since > until or extract(epoch from until) - extract(epoch from since) > 1500 * extract(epoch from step) then
        perform ojs_store.raise('INVALID_PAYLOAD', 'since and until do not name a stretch of 1500 periods at most',
            '{"field": "since"}', 'Ask for less, or by longer periods.');
    end if;
    if step = interval '5 min' and since >= ojs_store.now() - interval '65 min' and ojs_store.metrics_kept()
        and not pg_is_in_recovery() then
        return query
            select s.at, coalesce(sum(p.enqueued), 0)::bigint, coalesce(sum(p.completed), 0)::bigint,
                coalesce(sum(p.failed), 0)::bigint,
                round(sum(p.run_us) / nullif(sum(p.completed), 0) / 1000, 3),
                    round(sum(p.wait_us) / nullif(sum(p.waits), 0) / 1000, 3)
            from generate_series(date_bin(step, since, timestamptz '2000-01-01 00:00:00+00'), until, step) s(at)
            left join ojs_store.shared_parts(ids) p on p.at = s.at
            group by s.at order by s.at;
        return;
    end if;
    return query
        with pushed as (
            select date_bin(step, j.created_at, timestamptz '2000-01-01 00:00:00+00') as at,
                count(*) as n from ojs_store.job j
            where j.created_at >= since and j.created_at <= until and j.queue = any (ids) group by 1
        ), ended as (
            select date_bin(step, d.finished_at, timestamptz '2000-01-01 00:00:00+00') as at,
                count(*) filter (where d.state = 4) as completed,
                count(*) filter (where d.state = 7) as failed,
                    avg(extract(epoch from d.finished_at - d.started_at) * 1000) filter
                    (where d.state = 4) as ms
            from ojs_store.finished d where d.finished_at >= since and d.finished_at <= until and d.queue = any (ids)
                group by 1
        )
        select s.at, coalesce(p.n, 0), coalesce(e.completed, 0), coalesce(e.failed, 0), round(e.ms, 3), null::numeric
        from generate_series(date_bin(step, since, timestamptz '2000-01-01 00:00:00+00'), until, step) s(at)
        left join pushed p on p.at = s.at left join ended e on e.at = s.at
        order by s.at;
end $$;

-- METRICS ----------------------------------------------------------------------------------------------------------

-- What shared_metrics() would say of the jobs that are kept. Cells (see include/ojs/counters/job_metrics.h, there from
-- 0): 1 enqueued, 2 retried, 3 expired, 4 to 17 by the time waited, then three times 16 by the time run, and those that
-- never ran: from 18 completed, from 35 discarded, from 52 cancelled.
create function ojs_store.metrics_of_rows(out queue bigint, out type text, out cells bigint[], out sums bigint[])
    returns setof record
language plpgsql stable parallel unsafe rows 100 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    wait_bounds constant bigint[] := '{10000,50000,100000,500000,1000000,5000000,10000000,30000000,60000000,300000000,600000000,1800000000,3600000000}';
    duration_bounds constant bigint[] := '{5000,10000,25000,50000,100000,250000,500000,1000000,2500000,5000000,10000000,30000000,60000000,120000000,300000000}';
    most_types constant int := 100;
begin
    return query
    with facts as (
        select j.queue, j.type, 1 as cell, 0 as sum, count(*) as n, 0::bigint as us from ojs_store.job j group by 1, 2
        union all
        select j.queue, j.type, 2, 0, count(*), 0 from ojs_store.job_history e join ojs_store.job j on j.id = e.job_id
        where e.kind = 1 and e.due_at is not null group by 1, 2
        union all
        select j.queue, j.type, 3, 0, count(*), 0 from ojs_store.finished d join ojs_store.job j on j.id = d.job_id
        where d.state = 7 and d.error ->> 'type' in ('expired', 'enqueue_ttl_expired', 'total_timeout')
            group by 1, 2
        union all
        select s.queue, s.type, 4 + width_bucket(s.waited_us - 1, wait_bounds), 1, count(*), sum(s.waited_us)::bigint
        from ojs_store.first_starts('-infinity', null) s group by 1, 2, 3
        union all
        select e.queue, j.type, case e.state when 4 then 18 when 7 then 35 else 52 end
                + case when e.us is null then 16 else width_bucket(e.us - 1, duration_bounds) end,
            case e.state when 4 then 2 when 7 then 3 else 4 end, count(*),
                coalesce(sum(e.us), 0)::bigint
        from (select d.*, case when d.started_at is not null
            then greatest((extract(epoch from d.finished_at - d.started_at) * 1000000)::bigint, 0) end as us
            from ojs_store.finished d) e
        join ojs_store.job j on j.id = e.job_id
        group by 1, 2, 3, 4
    ), labels as (
        select l.queue, l.type, case when row_number() over (partition by l.queue order by l.n desc,
            l.type) <= most_types then l.type else '_other' end as label
        from facts l where l.cell = 1
    ), counted as (
        select f.queue, coalesce(l.label, f.type) as type, f.cell, f.sum, sum(f.n) as n, sum(f.us) as us
        from facts f left join labels l on l.queue = f.queue and l.type = f.type
        group by 1, 2, 3, 4
    )
    select c.queue, c.type,
        array(select coalesce(sum(m.n), 0)::bigint from generate_series(1, 68) i left
            join unnest(array_agg(c.cell), array_agg(c.n)) as m(cell, n) on m.cell = i group by i order by i),
        array(select coalesce(sum(m.us), 0)::bigint from generate_series(1, 4) i left
            join unnest(array_agg(c.sum), array_agg(c.us)) as m(sum, us) on m.sum = i group by i order by i)
    from counted c
    group by 1, 2;
end $$;

create function ojs.metrics() returns text
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_metrics';
comment on function ojs.metrics()
    is 'Counters, histograms and gauges of jobs and queues in the text format of Prometheus';

-- sql/queue.sql

-- queue.sql: administration of queues. C++: src/admin/queue_config.cpp, src/queue/queue.cpp, src/pg/error.cpp.
-- A queue is one row of ojs_store.queue, or for a while several of one name, of which the newest counts: so every
-- change is made to all rows of the name.

create function ojs_store.raise(code text, message text, details jsonb default null, hint text default null)
    returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_raise';

create function ojs_store.queue_config(name text, base jsonb, given jsonb) returns jsonb
language c stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_queue_config';

create function ojs_store.effective_config(config jsonb, is_policy boolean) returns jsonb
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_effective_config';

create function ojs_store.wake(queue text) returns void
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_wake';

-- The row that counts; no row for a queue that was dropped.
create function ojs_store.queue_named(name text) returns ojs_store.queue
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select newest
    from (
        select q from ojs_store.queue q where q.name = ojs_store.stored_queue($1)
        order by q.revised_at desc, q.ctid desc limit 1
    ) as n(newest)
    where (newest).state <> 'deleted'
$$;

-- What holds for a queue: for a tenant's part its own settings above those of the queue (src/queue/queue.cpp).
create function ojs_store.in_force(queue ojs_store.queue) returns ojs_store.queue
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    base ojs_store.queue;
begin
    if strpos(queue.name, '@') > 0 then
        select * into base from ojs_store.queue q where q.name = split_part(queue.name, '@', 1)
        order by q.revised_at desc, q.ctid desc limit 1;
    end if;
    if base.id is not null then
        queue.config := ojs_store.merged_config(base.config, queue.config);
        if queue.state = 'active' and base.state <> 'deleted' then
            queue.state := base.state;
        end if;
    end if;
    return queue;
end $$;

-- INVALID_QUEUE for what cannot be a queue's name.
create function ojs_store.check_queue_name(name text) returns void
language c strict immutable parallel safe as 'MODULE_PATHNAME', 'ojs_check_queue_name';

-- Like queue_named(), but raises NOT_FOUND if there is none.
create function ojs_store.queue_found(name text) returns ojs_store.queue
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    found_queue ojs_store.queue;
begin
    if name is null then
        perform ojs_store.raise('INVALID_QUEUE', 'name must not be null', '{"field": "name"}', 'Name a queue.');
    end if;
    found_queue := ojs_store.queue_named(name);
    if found_queue.id is null or name = '_default' then
        if name ~ '^[{[]' then -- a list, written as text; any other name is just that of no queue, as HTTP has it
            perform ojs_store.check_queue_name(name);
        end if;
        perform ojs_store.raise('NOT_FOUND', format('queue "%s" does not exist', left(name, 64)),
            jsonb_build_object('resource_type', 'queue', 'resource_id', left(name, 128), 'queue', left(name, 128),
                'reason', 'topic_not_found'),
            'Push to the queue, or create it with ojs.create_queue(name).');
    end if;
    return found_queue;
end $$;

-- Calls that configure the same thing take turns, until the end of the transaction: each reads what the one before has
-- written. Pushes, claims and acks do not ask for this lock.
create function ojs_store.lock_setting(contents_of regclass, name text) returns void
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_lock_setting';

-- Gives the queue this configuration and state, and creates it if there is none. Null keeps what it has.
create function ojs_store.set_queue(name text, config jsonb, state text) returns ojs_store.queue
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    allowed text := ojs_store.use_queue(name, 'administer');
    before ojs_store.queue;
    wanted jsonb;
    at timestamptz;
begin
    perform ojs_store.lock_setting('ojs_store.queue', name);
    allowed := ojs_store.use_queue(name, 'administer'); -- whoever had the lock may have taken the caller off the list
    before := ojs_store.queue_named(name);
    wanted := ojs_store.queue_config(name, before.config, config);
    -- Applications call this at each start: nothing to write, and no session has to look at its queues anew.
    if wanted = before.config and coalesce(state, before.state) = before.state then
        return before;
    end if;
    -- Always newer than what is there, and than what a push makes of a dropped queue (src/queue/queue.cpp), whatever
    -- clocks do.
    select greatest(clock_timestamp(), max(q.revised_at) + interval '2 microseconds') into at
    from ojs_store.queue q where q.name = set_queue.name;
    update ojs_store.queue q set
        config = wanted,
        state = coalesce(set_queue.state, before.state, 'active'),
        created_at = coalesce(before.created_at, ojs_store.now()),
        revised_at = at
    where q.name = set_queue.name;
    if not found then
        insert into ojs_store.queue (id, name, state, created_at, revised_at, config)
        values (ojs_store.new_queue_id(set_queue.name), set_queue.name, coalesce(set_queue.state, 'active'),
            ojs_store.now(), at, wanted);
    end if;
    perform ojs_store.changed('ojs_store.queue');
    if config is not null then
        perform ojs_store.record_act('queue_configured', name, jsonb_build_object('queue', name, 'config', config),
            before.config, wanted);
    end if;
    return ojs_store.queue_named(name);
end $$;

create function ojs_store.queue_json(queue ojs_store.queue) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object(
        'name', ojs_store.shown_queue(q.name),
        'type', coalesce(q.config ->> 'type', 'queue'),
        'state', q.state,
        'paused', q.state = 'paused',
        'created_at', to_char(q.created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        'config', ojs_store.effective_config(q.config, q.name = '_default'))
    from ojs_store.in_force(queue) q
$$;

create function ojs.create_queue(name text, config jsonb default '{}') returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    return ojs_store.queue_json(ojs_store.set_queue(name, coalesce(config, '{}'), null));
end $$;
comment on function ojs.create_queue(text, jsonb)
    is 'Creates a queue, or gives an existing one of the same type these settings';

create function ojs.configure_queue(name text, config jsonb) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    return ojs_store.queue_json(ojs_store.set_queue(name, coalesce(config, '{}'), null));
end $$;
comment on function ojs.configure_queue(text, jsonb)
    is 'Changes settings of a queue, or of the policy _default for all queues; null sets one back to its default';

-- The default policy is no queue: it has settings and no state.
create function ojs_store.set_state(name text, state text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if name = '_default' then
        perform ojs_store.raise('INVALID_QUEUE', 'queue _default is a policy, and hands out nothing',
            '{"field": "queue"}',
            'Name a queue.');
    end if;
    perform ojs_store.set_queue(name, null, state);
end $$;

create function ojs.pause_queue(name text) returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.set_state(name, 'paused');
    perform ojs_store.record_audit('queue_paused', name, null, null, jsonb_build_object('queue', name));
    perform ojs_store.record_event('queue.paused', name, jsonb_build_object('queue', name, 'paused_by', session_user));
end $$;
comment on function ojs.pause_queue(text)
    is 'Hides a queue''s jobs from claims; pushes go on, and what is held may be finished';

create function ojs.resume_queue(name text) returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.set_state(name, 'active');
    perform ojs_store.record_audit('queue_resumed', name, null, null, jsonb_build_object('queue', name));
    perform ojs_store.record_event('queue.resumed', name,
        jsonb_build_object('queue', name, 'resumed_by', session_user));
    perform ojs_store.wake_parts(name);
end $$;
comment on function ojs.resume_queue(text) is 'Ends a pause or a drain';

create function ojs.drain_queue(name text) returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.set_state(name, 'draining');
    perform ojs_store.record_act('queue_drained', name, jsonb_build_object('queue', name));
    perform ojs_store.wake_parts(name);
end $$;
comment on function ojs.drain_queue(text) is 'Refuses pushes to a queue, and hands out what is there';

-- Takes the jobs of a queue that are in one of the states out of their places, leaving alone those that another
-- transaction is at; their ids.
create function ojs_store.take_jobs(queue_id bigint, states text[]) returns setof uuid
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if 'active' = any (states) then
        return query
            with taken as (
                delete from ojs_store.lease where ctid = any (array(
                    select l.ctid from ojs_store.lease l where l.queue = queue_id for update skip locked))
                returning lease
            )
            select (t.lease).job_id
            from taken t,
                ojs_store.free_slots((t.lease).job_id, (t.lease).token, (t.lease).queue, (t.lease).flags),
                ojs_store.log_lease(t.lease, 8::smallint);
    end if;
    if 'available' = any (states) then
        return query
            delete from ojs_store.ready where ctid = any (array(
                select r.ctid from ojs_store.ready r where r.queue = queue_id for update skip locked))
            returning job_id;
    end if;
    -- What has fallen due reads available.
    return query
        delete from ojs_store.delayed where ctid = any (array(
            select l.ctid from ojs_store.delayed l
            where l.queue = queue_id and l.kind <> 5
                and case
                    when l.kind in (4, 6) or l.due_at <= ojs_store.promoted_to()
                        then 'available'
                    when l.kind = 1 then 'scheduled' when l.kind = 2
                        then 'retryable' else 'pending' end = any (states)
            for update skip locked))
        returning job_id;
    if states && '{completed,cancelled,discarded}' then
        return query
            delete from ojs_store.finished where ctid = any (array(
                select d.ctid from ojs_store.finished d
                where d.queue = queue_id
                    and case d.state when 4 then 'completed' when 6 then 'cancelled'
                        else 'discarded' end = any (states)
                for update skip locked))
            returning job_id;
    end if;
end $$;

create function ojs.purge_queue(name text, states text[] default null, confirm boolean default false) returns bigint
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    queue ojs_store.queue := ojs_store.queue_found(ojs_store.use_queue(name, 'administer'));
    wanted text[] := coalesce(states, '{available,scheduled,retryable,pending}');
    unknown text;
    n bigint;
begin
    select s into unknown from unnest(wanted) s
    where s is null or s not in ('available', 'scheduled', 'retryable', 'pending', 'active', 'completed', 'cancelled',
        'discarded')
    limit 1;
    if found then
        perform ojs_store.raise('INVALID_PAYLOAD', format('states holds "%s", which is no state', left(unknown, 64)),
            '{"field": "states"}', 'Name states such as available, scheduled, retryable, pending, completed.');
    end if;
    if confirm is not true then
        perform ojs_store.raise('INVALID_PAYLOAD', 'confirm must be true, since a purge cannot be undone',
            '{"field": "confirm"}',
            'Call ojs.purge_queue(name, states, confirm => true).');
    end if;
    if 'active' = any (wanted) then
        perform ojs_store.wake(name); -- places in limits become free
    end if;
    n := ojs_store.remove_jobs(array(select ojs_store.take_jobs(queue.id, wanted)));
    perform ojs_store.record_act('queue_purged', name, jsonb_build_object('queue', name, 'states', wanted, 'count', n));
    return n;
end $$;
comment on function ojs.purge_queue(text, text[], boolean)
    is 'Removes a queue''s jobs for good: those that wait, or those in the states given; how many';

-- Jobs of a queue that are not finished. Not by an index: entries of rows that were just deleted may be gone from it
-- while an older snapshot still sees those rows, and a job that is being claimed would be in neither table.
create function ojs_store.unfinished(queue_id bigint) returns bigint
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp
set enable_indexscan = off set enable_indexonlyscan = off set enable_bitmapscan = off as $$
    select (select count(*) from ojs_store.ready r where r.queue = queue_id)
        + (select count(*) from ojs_store.lease l where l.queue = queue_id)
        + (select count(*) from ojs_store.delayed l where l.queue = queue_id and l.kind <> 5)
$$;

-- Ends a job as discarded, of which the caller has taken the row that said where it was. started_at and worker: of a
-- lease.
create function ojs_store.discard_dropped(
    job_id uuid, queue bigint, attempt int, deliveries int, flags int, started_at timestamptz default null,
        worker text default null
) returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_discard_dropped';

-- A lease that was moved to this queue takes its slots in the concurrency limits there, and no longer those of before.
create function ojs_store.count_moved(job_id uuid, token bigint, job_tid tid, queue bigint) returns void
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_count_moved';

-- These three take the jobs of a queue that no other transaction has locked, and return their number. Leases come last:
-- while they are locked, beats wait.
create function ojs_store.discard_jobs(queue_id bigint) returns bigint
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    waiting bigint;
    later bigint;
    held bigint;
begin
    with taken as (
        delete from ojs_store.ready where ctid = any (array(
            select r.ctid from ojs_store.ready r where r.queue = queue_id for update skip locked))
        returning *
    )
    select count(ojs_store.discard_dropped(t.job_id, t.queue, t.attempt, t.deliveries, t.flags)) into waiting
        from taken t;
    with taken as (
        delete from ojs_store.delayed where ctid = any (array(
            select l.ctid from ojs_store.delayed l where l.queue = queue_id and l.kind <> 5
                for update skip locked))
        returning *
    )
    select count(ojs_store.discard_dropped(t.job_id, t.queue, t.attempt, t.deliveries, t.flags)) into later
        from taken t;
    with taken as (
        delete from ojs_store.lease where ctid = any (array(
            select l.ctid from ojs_store.lease l where l.queue = queue_id for update skip locked))
        returning lease
    )
    select count(ojs_store.discard_dropped((t.lease).job_id, (t.lease).queue, (t.lease).attempt, (t.lease).deliveries,
        (t.lease).flags,
            (t.lease).claimed_at, (t.lease).worker)) into held
    from taken t, ojs_store.free_slots((t.lease).job_id, (t.lease).token, (t.lease).queue, (t.lease).flags),
        ojs_store.log_lease(t.lease, 9::smallint);
    return waiting + later + held;
end $$;

-- Jobs with an ordering key stand in the lines of their new queue, before any of them can go on there. None of them
-- counts.
create function ojs_store.move_lines(source bigint, destination bigint) returns bigint
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.move_in_line(l.job_id, destination)
    from (select o.job_id from ojs_store.ordering_line o where o.queue = source order by o.key, o.position) l;
    return 0;
end $$;

-- Where a job stands; also one that a rate limit holds back, in its line (include/ojs/limits/held_position.h).
create function ojs_store.own_position(at bigint) returns bigint
language sql immutable parallel safe
begin atomic
    select case when at < 4611686018427387904 then at
        when at & 17592186044416 <> 0 then at & 17592186044415
        else (at & 17592186044415) - 4611686018427387904 end;
end;

-- Those that wait line up at the end, in their order. A hot row other than a lease is never updated, so these are taken
-- and put in again.
create function ojs_store.move_waiting(source bigint, destination bigint) returns bigint
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    ids uuid[];
begin
    with taken as (
        delete from ojs_store.ready where ctid = any (array(
            select r.ctid from ojs_store.ready r where r.queue = source for update skip locked))
        returning *
    ), waiting as (
        -- Positions of jobs that were delivered before are negative, and grow by the same sequence
        -- (src/state/transitions.cpp).
        insert into ojs_store.ready (job_id, queue, position, job_tid, npriority, flags, attempt, deliveries)
        select job_id, destination,
            case when own_position < 0 then -4611686018427387904 else 0 end + nextval('ojs_store.seq'),
            job_tid, npriority, flags | 65536, attempt, deliveries
        from (select *, ojs_store.own_position(position) as own_position from taken order by own_position) in_order
        returning job_id
    ), let_go as (
        delete from ojs_store.delayed where ctid = any (array(
            select l.ctid from ojs_store.delayed l where l.queue = source for update skip locked))
        returning *
    ), later as (
        insert into ojs_store.delayed (job_id, queue, due_at, job_tid, npriority, kind, flags, attempt, deliveries)
        select job_id, destination, due_at, job_tid, npriority, kind, flags, attempt, deliveries from let_go
        returning job_id, kind
    )
    select array_agg(job_id) into ids
    from (select job_id from waiting union all select job_id from later where kind <> 5) moved;
    update ojs_store.job set queue = destination where id = any (ids);
    return coalesce(cardinality(ids), 0);
end $$;

-- Held jobs, which their workers go on with.
create function ojs_store.move_held(source bigint, destination bigint) returns bigint
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    held ojs_store.lease[];
begin
    with moved as (
        update ojs_store.lease set queue = destination, flags = flags | 4096 where ctid = any (array(
            select l.ctid from ojs_store.lease l where l.queue = source for update skip locked))
        returning lease
    )
    select array_agg(m.lease) into held from moved m;
    update ojs_store.job set queue = destination where id in (select h.job_id from unnest(held) h);
    -- What they take of limits is counted anew, for the queue's own limits and those of jobs that name no key.
    perform ojs_store.count_moved(h.job_id, h.token, h.job_tid, destination) from unnest(held) h;
    return coalesce(cardinality(held), 0);
end $$;

create function ojs.drop_queue(name text, strategy text default 'reject', target text default null) returns bigint
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    queue ojs_store.queue;
    other ojs_store.queue;
    own_limits text := 'queue:' || name;
    give_up_s double precision := ojs_store.steady_s() + 1;
    live bigint;
    n bigint := 0;
begin
    if coalesce(strategy, 'reject') not in ('reject', 'discard', 'move') then
        perform ojs_store.raise('INVALID_PAYLOAD', format('strategy must be reject, discard or move, not "%s"',
            left(strategy, 64)),
            '{"field": "strategy"}', 'Say what becomes of the jobs that are not finished.');
    elsif strategy = 'move' and (target is null or target = name) then
        perform ojs_store.raise('INVALID_QUEUE', 'target must be another queue', '{"field": "target"}',
            'Name the queue that takes the jobs.');
    end if;
    perform ojs_store.use_queue(name, 'administer'), ojs_store.use_queue(target, 'produce');
    -- In one order: two calls do not wait for each other crosswise.
    perform ojs_store.lock_setting('ojs_store.queue', least(name, target));
    perform ojs_store.lock_setting('ojs_store.queue', greatest(name, target));
    perform ojs_store.use_queue(name, 'administer');
    queue := ojs_store.queue_found(name);
    if strategy = 'move' then
        other := ojs_store.queue_found(target);
        if other.config ->> 'type' = 'log' then
            perform ojs_store.raise('TOPIC_NOT_A_QUEUE', format('target "%s" is a log', target),
                jsonb_build_object('queue', target),
                'Name a queue of type queue.');
        end if;
    end if;

    loop
        n := n + case strategy
            when 'discard' then ojs_store.discard_jobs(queue.id)
            when 'move'
                then ojs_store.move_lines(queue.id, other.id) + ojs_store.move_waiting(queue.id,
                other.id) + ojs_store.move_held(queue.id, other.id)
            else 0 end;
        live := ojs_store.unfinished(queue.id);
        exit when live = 0;
        if strategy is distinct from 'discard' and strategy is distinct from 'move' then
            perform ojs_store.raise('INVALID_STATE_TRANSITION',
                format('queue "%s" still has %s jobs that are not finished', name, live),
                jsonb_build_object('queue', name, 'live', live, 'attempted', 'drop'),
                'Drop it with the strategy discard or move, or finish them first.');
        elsif ojs_store.steady_s() >= give_up_s then
            -- A claim or a push whose transaction stays open could be waited for without end, with all the other jobs
            -- locked.
            perform ojs_store.raise('UNAVAILABLE', format('other transactions have locked %s jobs of queue "%s"',
                live, name),
                jsonb_build_object('queue', name, 'live', live, 'attempted', 'drop'),
                'Pause the queue, and drop it again when those transactions have ended.');
        end if;
        perform ojs_store.rest(0.01);
    end loop;

    perform ojs_store.wake(name); -- who waits for it is told, by the commit, which lowers the flags of listeners
    if strategy = 'move' then
        perform ojs_store.wake(target);
    end if;
    -- It keeps its settings: a push that comes too late brings it back as it was (src/queue/tidy.cpp).
    update ojs_store.queue q set state = 'deleted', revised_at = greatest(clock_timestamp(),
        q.revised_at + interval '1 microsecond')
    where q.name = name;
    -- What is kept by the queue's name. What another transaction has locked goes when its time is over; only the
    -- counts, which a tick may be adding up, are brought to 0.
    with gone as (
        delete from ojs_store.queue_count where ctid = any (array(
            select c.ctid from ojs_store.queue_count c where c.queue = queue.id for update skip locked))
        returning dead_lettered
    ), kept as (
        select sum(c.dead_lettered) - coalesce((select sum(g.dead_lettered) from gone g), 0) as n
        from ojs_store.queue_count c where c.queue = queue.id
    )
    insert into ojs_store.queue_count (queue, dead_lettered) select queue.id, -k.n from kept k where k.n <> 0;
    delete from ojs_store.deduplication where ctid = any (array(
        select d.ctid from ojs_store.deduplication d where d.queue = queue.id for update skip locked));
    delete from ojs_store.rate_limit where ctid = any (array(
        select r.ctid from ojs_store.rate_limit r where r.key = own_limits for update skip locked));
    delete from ojs_store.limit_use where ctid = any (array(
        select u.ctid from ojs_store.limit_use u where u.key = ojs_store.name_hash(own_limits)
            and u.kind in (1, 2) for update skip locked));
    perform ojs_store.merge_slots(own_limits);
    delete from ojs_store.priority_aging where ctid = any (array(
        select a.ctid from ojs_store.priority_aging a where a.queue = queue.id for update skip locked));
    perform ojs_store.changed('ojs_store.rate_limit');
    perform ojs_store.changed('ojs_store.queue');
    perform ojs_store.record_act('queue_dropped', name, jsonb_strip_nulls(jsonb_build_object('queue', name,
        'strategy', coalesce(strategy, 'reject'), 'target', target, 'count', n)));
    return n;
end $$;
comment on function ojs.drop_queue(text, text, text)
    is 'Drops a queue; its unfinished jobs are a reason to refuse (reject), are discarded, or move to another queue; '
       'how many';

-- sql/deduplication.sql

-- deduplication.sql: looking at deduplication keys, and freeing them. C++: src/push/deduplication.cpp.

create view ojs.deduplication_keys with (security_barrier) as
select (select q.name from ojs_store.queue q where q.id = d.queue limit 1) as queue, d.key, d.job_id, d.expires_at
from ojs_store.deduplication d
where d.expires_at > ojs_store.now() and ojs_store.may_use_queue(d.queue, 'read');
comment on view ojs.deduplication_keys
    is 'The deduplication keys that are held: by the push of which job, and until when';

create function ojs.free_deduplication_key(queue text, key text) returns boolean
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    found_queue ojs_store.queue := ojs_store.queue_found(ojs_store.use_queue(queue, 'administer'));
    freed uuid;
begin
    if key is null then
        perform ojs_store.raise('INVALID_PAYLOAD', 'key must not be null', '{"field": "key"}',
            'Name the key; ojs.deduplication_keys shows them.');
    end if;
    delete from ojs_store.deduplication d where d.queue = found_queue.id and d.key = key
        and d.expires_at > ojs_store.now()
    returning d.job_id into freed;
    if freed is null then
        return false;
    end if;
    perform ojs_store.record_audit('deduplication_key_freed', queue, null, null,
        jsonb_build_object('queue', queue, 'key', key, 'job_id', freed));
    perform ojs_store.record_event('queue.deduplication_key_freed', queue,
        jsonb_build_object('queue', queue, 'key', key, 'job_id', freed, 'freed_by', session_user));
    return true;
end $$;
comment on function ojs.free_deduplication_key(text, text)
    is 'Frees a deduplication key before its time is over, so that the next push with it makes a job; false if nothing '
       'holds it';

-- sql/queue_stats.sql

-- queue_stats.sql: looking at queues. C++: src/admin/queue_stats.cpp.

-- Where a queue's jobs are: what is committed, and the caller's own changes. From the counters in shared memory, or
-- where there are none by counting the rows.
create function ojs_store.queue_rows(
    ids bigint[],
    out queue bigint, out ready bigint, out in_flight bigint, out delayed bigint, out available bigint,
        out active bigint,
    out scheduled bigint, out retryable bigint, out pending bigint, out completed bigint, out cancelled bigint,
    out discarded bigint
) returns setof record
language c strict volatile parallel unsafe rows 10 as 'MODULE_PATHNAME', 'ojs_queue_rows';

-- Of these queues the open jobs with a rate limit, and with `ended` the dead letters. No rows without preload, or where
-- the counters do not hold: who asks looks at the rows.
create function ojs_store.counted_apart(
    ids bigint[], ended boolean, out queue bigint, out limited bigint, out dead_letters bigint
) returns setof record
language c strict volatile parallel unsafe rows 10 as 'MODULE_PATHNAME', 'ojs_counted_apart';

create function ojs_store.ready_and_held(id bigint, out ready bigint, out in_flight bigint) returns record
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_ready_and_held';

-- Rows that change by SQL are counted by triggers; direct table access fires none. ojs updates no row of ready or
-- delayed, but a superuser might. Rows that come into done by SQL are a restore, and may be many: hot_set_lost() has
-- them counted anew.
create function ojs_store.count_rows() returns trigger
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_count_rows';

create trigger rows_in after insert on ojs_store.ready
    referencing new table as came for each statement execute function ojs_store.count_rows();
create trigger rows_out after delete on ojs_store.ready
    referencing old table as went for each statement execute function ojs_store.count_rows();
create trigger rows_moved after update on ojs_store.ready
    referencing old table as went new table as came for each statement execute function ojs_store.count_rows();
create trigger rows_in after insert on ojs_store.delayed
    referencing new table as came for each statement execute function ojs_store.count_rows();
create trigger rows_out after delete on ojs_store.delayed
    referencing old table as went for each statement execute function ojs_store.count_rows();
create trigger rows_moved after update on ojs_store.delayed
    referencing old table as went new table as came for each statement execute function ojs_store.count_rows();
create trigger rows_in after insert on ojs_store.lease
    referencing new table as came for each statement execute function ojs_store.count_rows();
create trigger rows_out after delete on ojs_store.lease
    referencing old table as went for each statement execute function ojs_store.count_rows();
create trigger rows_moved after update on ojs_store.lease
    referencing old table as went new table as came for each statement execute function ojs_store.count_rows();
create trigger rows_out after delete on ojs_store.finished
    referencing old table as went for each statement execute function ojs_store.count_rows();
create trigger emptied after truncate on ojs_store.ready for each statement execute function ojs_store.count_rows();
create trigger emptied after truncate on ojs_store.delayed for each statement execute function ojs_store.count_rows();
create trigger emptied after truncate on ojs_store.lease for each statement execute function ojs_store.count_rows();
create trigger emptied after truncate on ojs_store.finished for each statement execute function ojs_store.count_rows();

-- Whoever changes rows: a session with session_replication_role = replica, too.
do $$
declare
    of_rows record;
begin
    for of_rows in select t.tgrelid::regclass as rel, t.tgname as name from pg_catalog.pg_trigger t
        where t.tgfoid = 'ojs_store.count_rows()'::regprocedure
    loop
        execute format('alter table %s enable always trigger %I', of_rows.rel, of_rows.name);
    end loop;
end $$;

-- Counts by queue. On a standby the logged tables alone answer, by what the caller's statement sees.
create function ojs_store.queue_counts(
    ids bigint[],
    out queue bigint, out ready bigint, out in_flight bigint, out delayed bigint, out available bigint,
        out active bigint,
    out scheduled bigint, out retryable bigint, out pending bigint, out completed bigint, out cancelled bigint,
    out discarded bigint, out dead_lettered bigint
) returns setof record
language plpgsql stable parallel unsafe rows 10 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    at timestamptz := ojs_store.now();
begin
    if pg_is_in_recovery() then
        return query
            select q.id, count(*) filter (where j.state = 'available'), count(*) filter (where false),
                count(*) filter (where false),
                count(*) filter (where j.state = 'available'), count(*) filter (where j.state = 'active'),
                count(*) filter (where j.state = 'scheduled'), count(*) filter (where j.state = 'retryable'),
                count(*) filter (where j.state = 'pending'), count(*) filter (where j.state = 'completed'),
                count(*) filter (where j.state = 'cancelled'), count(*) filter (where j.state = 'discarded'),
                coalesce(max(moved.n), 0)
            from (select distinct id from ojs_store.queue where id = any (ids)) q
            left join (
                select e.queue, (ojs_store.look(e.id)).state from ojs_store.job e where e.queue = any (ids)
            ) j on j.queue = q.id
            left join (
                select c.queue, sum(c.dead_lettered)::bigint as n from ojs_store.queue_count c
                    where c.queue = any (ids) group by 1
            ) moved on moved.queue = q.id
            group by q.id;
        return;
    end if;
    return query
        select c.*, coalesce(moved.n, 0)
        from ojs_store.queue_rows(ids) c
        left join (
            select d.queue, sum(d.dead_lettered)::bigint as n from ojs_store.queue_count d where d.queue = any (ids)
                group by 1
        ) moved on moved.queue = c.queue;
end $$;

create function ojs.queue_stats(
    name text default null,
    out queue text, out paused boolean, out ready bigint, out in_flight bigint, out delayed bigint,
        out available bigint,
    out active bigint, out scheduled bigint, out retryable bigint, out pending bigint, out completed bigint,
    out cancelled bigint, out discarded bigint, out dead_lettered bigint, out completed_last_hour bigint,
    out failed_last_hour bigint, out avg_duration_ms numeric, out avg_wait_ms numeric,
        out throughput_per_second numeric,
    out computed_at timestamptz
) returns setof record
language plpgsql stable parallel unsafe security definer rows 10 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    names text[];
    ids bigint[];
begin
    if queue_stats.name is not null then
        names := array[(ojs_store.queue_found(ojs_store.use_queue(queue_stats.name, 'read'))).name];
    else
        names := array(select q.name from ojs.queues q);
    end if;
    ids := array(select ojs_store.queue_id(n) from unnest(names) n);
    return query
        select ojs_store.shown_queue(q.name), q.state = 'paused',
            c.ready, c.in_flight, c.delayed, c.available, c.active, c.scheduled,
            c.retryable,
            c.pending, c.completed, c.cancelled, c.discarded, c.dead_lettered, h.completed, h.failed,
            round(h.avg_duration_ms::numeric, 3), round(h.avg_wait_ms::numeric, 3), round(h.completed / 3600.0, 4),
                ojs_store.now()
        from ojs_store.queue_counts(ids) c
        join ojs_store.last_hour(ids) h on h.queue = c.queue
        join ojs.queues q on ojs_store.queue_id(q.name) = c.queue
        where q.name = any (names) -- one name does not look at all queues
        order by q.name;
end $$;
comment on function ojs.queue_stats(text) is 'Jobs of a queue, or of each queue, by state; and its last hour';

-- How large the jobs are that wait in a queue and whose size counts.
create function ojs_store.waiting_bytes(queue bigint) returns bigint
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_waiting_bytes';

-- How far a queue is from its bounds; nothing for one that has none.
create function ojs_store.pressure_of(queue bigint, config jsonb, depth bigint) returns jsonb
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    effective jsonb := ojs_store.effective_config(config, false);
    bound bigint := nullif((effective ->> 'max_size')::bigint, 0);
    bound_bytes bigint := nullif((effective ->> 'max_size_bytes')::bigint, 0);
    depth_bytes bigint;
begin
    if bound_bytes is not null and not pg_is_in_recovery() then
        depth_bytes := ojs_store.waiting_bytes(queue);
    end if;
    return jsonb_strip_nulls(jsonb_build_object('bound', bound, 'depth_bytes', depth_bytes, 'bound_bytes', bound_bytes,
        'pressure', trim_scale(trunc(greatest(depth / bound::numeric, depth_bytes / bound_bytes::numeric), 4))));
end $$;

create function ojs_store.ms_since(started timestamptz) returns numeric
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select round((extract(epoch from clock_timestamp() - started) * 1000)::numeric, 3)
$$;

create function ojs.queue_info(name text) returns jsonb
language plpgsql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    started timestamptz := clock_timestamp();
    queue ojs_store.queue := ojs_store.in_force(ojs_store.queue_found(ojs_store.use_queue(name, 'read')));
    stats jsonb;
    hour jsonb;
    live bigint;
    seqs record;
begin
    select to_jsonb(c) - 'queue', c.available + c.active + c.scheduled + c.retryable + c.pending into stats, live
    from ojs_store.queue_counts(array[queue.id]) c;
    select jsonb_build_object('completed_last_hour', h.completed, 'failed_last_hour', h.failed,
        'avg_duration_ms', round(h.avg_duration_ms::numeric, 3), 'avg_wait_ms', round(h.avg_wait_ms::numeric, 3),
        'throughput_per_second', round(h.completed / 3600.0, 4), 'computed_at', ojs_store.time_text(ojs_store.now()))
    into hour from ojs_store.last_hour(array[queue.id]) h;
    select * into seqs from ojs_store.queue_seqs(queue.id);
    return ojs_store.queue_json(queue) || jsonb_build_object(
        'topic', name,
        'head_seq', seqs.head,
        'earliest_seq', seqs.earliest,
        'count', live,
        'queue', stats || jsonb_build_object('name', name, 'paused', queue.state = 'paused'),
        'stats', stats || jsonb_build_object('queue', name, 'depth', live - (stats ->> 'active')::bigint)
            || ojs_store.pressure_of(queue.id, queue.config, live - (stats ->> 'active')::bigint) || hour,
        'performance', jsonb_build_object('server_total_ms', ojs_store.ms_since(started)));
end $$;
comment on function ojs.queue_info(text) is 'A queue: its settings with all defaults, its state, and its jobs counted';

-- sql/explain.sql

-- explain.sql: why a job is where it is.

-- "in 3 minutes" and the like, for a sentence.
create function ojs_store.distance(at timestamptz) returns text
language sql stable parallel safe set search_path = pg_catalog, pg_temp as $$
    select case when at > ojs_store.now() then 'in ' || date_trunc('milliseconds', at - ojs_store.now())
        else date_trunc('milliseconds', ojs_store.now() - at) || ' ago' end
$$;

-- Why a version keeps a job waiting: all workers that are alive name other versions of its type.
create function ojs_store.explain_version(job ojs.job) returns text
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    version text := job.extra ->> 'version';
    workers int;
    taking int;
begin
    if version is null then
        return null;
    end if;
    select count(*), count(*) filter (where coalesce(ojs_store.in_range(h.versions, version), true))
        into workers, taking
    from ojs_store.worker w
    left join lateral (select e ->> 'versions' as versions
        from jsonb_array_elements(case jsonb_typeof(w.info -> 'handlers') when 'array' then w.info -> 'handlers' end) e
        where e ->> 'type' = job.type limit 1) h on true
    where w.died_at is null;
    if workers > 0 and taking = 0 then
        return format('its version is %s, and none of the %s workers that have registered takes that of %s', version,
            workers, job.type);
    end if;
    return null;
end $$;

-- The queue that a job is in, as it holds; nothing if it was dropped.
create function ojs_store.queue_of_job(job_id uuid) returns ojs_store.queue
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_store.in_force(ojs_store.queue_named(
        (select q.name from ojs_store.queue q where q.id = j.queue limit 1)))
    from ojs_store.job j where j.id = $1
$$;

-- The row of a job that can be claimed: where its push has put it, or in the index of those that have moved.
create function ojs_store.ready_of(job_id uuid) returns setof ojs_store.ready
language sql stable parallel unsafe rows 1 set search_path = pg_catalog, pg_temp as $$
    select r from ojs_store.job j join ojs_store.ready r on r.queue = j.queue and r.npriority = -j.priority
        and r.position = j.seq and r.job_id = j.id
    where j.id = $1
    union all
    select r from ojs_store.ready r where r.job_id = $1 and r.flags & 65536 <> 0
$$;

create function ojs.explain_job(job_id uuid) returns text
language plpgsql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    job ojs.job;
    queue ojs_store.queue;
    config jsonb;
    deadline timestamptz;
    due timestamptz;
    ahead bigint;
    at timestamptz := ojs_store.now();
    limit_says text;
    waits text;
    is_blocked boolean := false;
    blocker uuid;
    this text := format('Job %s', job_id);
begin
    job := ojs_store.look(ojs_store.use_job(job_id, 'read'));
    if job.id is null then
        perform ojs_store.raise('NOT_FOUND', format('job %s does not exist', coalesce(job_id::text, 'null')),
            jsonb_build_object('job_id', job_id),
            'Check the id; finished jobs are removed after their retention.');
    end if;
    select format('Job %s, which is %s of workflow %s,', job_id, coalesce(m.callback, 'member ' || m.position),
        o.workflow) into this
    from ojs_store.workflow_open o join ojs_store.workflow_member m on m.workflow = o.workflow
        and m.position = o.position where o.member = job_id;
    this := coalesce(this, format('Job %s', job_id));
    if (case job.state when 'available' then at when 'scheduled' then job.scheduled_at when 'retryable'
        then job.next_attempt_at end) <= at then
        select format('%s waits because the server has been in maintenance since %s%s; ojs.set_maintenance(false) ends '
                      'that.', this, m.since,
            ' (' || m.reason || ')') into waits from ojs_store.maintenance m order by m.since limit 1;
        if found then
            return waits;
        end if;
    end if;
    case job.state
    when 'completed' then
        return format('%s is completed: its worker finished it %s, at attempt %s.', this,
            ojs_store.distance(job.completed_at), job.attempt);
    when 'cancelled' then
        return format('%s was cancelled %s.', this, ojs_store.distance(job.cancelled_at));
    when 'discarded' then
        return format('%s was discarded %s after %s deliveries, because of the error %s%s; ojs.retry brings it back.',
            this,
            ojs_store.distance(job.discarded_at), job.deliveries, job.error ->> 'type',
            ', and a copy went to the queue "' || (job.error ->> 'dead_lettered_to') || '"');
    when 'active' then
        if not pg_is_in_recovery() then
            select l.deadline into deadline from ojs_store.lease l where l.job_id = job_id;
        end if;
        if deadline <= at then
            return format('%s was held by the worker "%s", whose lease ran out %s; the next claim or tick takes it '
                'back.', this,
                job.worker, ojs_store.distance(deadline));
        end if;
        return format('%s is running: the worker "%s" holds it, delivery %s, attempt %s of %s, and its lease runs out '
                      '%s.', this,
            job.worker, job.deliveries, job.attempt, job.max_attempts, ojs_store.distance(deadline));
    when 'scheduled' then
        return format('%s is not due: it is scheduled for %s, %s.', this, job.scheduled_at,
            ojs_store.distance(job.scheduled_at));
    when 'retryable' then
        return format('%s failed at attempt %s of %s (%s) and is tried again %s, at %s.', this, job.attempt,
            job.max_attempts,
            job.error ->> 'type', ojs_store.distance(job.next_attempt_at), job.next_attempt_at);
    when 'pending' then
        return format('%s is pending: it waits for ojs.activate(job_id).', this);
    else
        null;
    end case;

    -- Available: what keeps it from being claimed?
    queue := ojs_store.queue_of_job(job_id);
    config := ojs_store.effective_config(coalesce(queue.config, '{}'), false);
    if queue.id is null then
        return format('%s waits in the queue "%s", which was dropped; the next tick brings the queue back.', this,
            job.queue);
    end if;
    if job.expires_at <= at then
        return format('%s expired %s: the next claim or tick discards it.', this, ojs_store.distance(job.expires_at));
    end if;
    if queue.state = 'paused' then
        return format('%s waits because its queue "%s" is paused; ojs.resume_queue ends that.', this, job.queue);
    end if;
    if config ->> 'type' = 'log' then
        return format('%s is an entry of the log "%s", which hands out nothing.', this, job.queue);
    end if;
    if not pg_is_in_recovery() then -- a condition of its own: with the next it would be planned on a standby too
        is_blocked := exists (select from ojs_store.delayed l
            where l.job_id = job_id and l.kind = 6);
    end if;
    if is_blocked then
        select h.job_id into blocker from ojs_store.ordering_line mine
            join ojs_store.ordering_line h on h.key = mine.key and h.position < mine.position
        where mine.job_id = job_id order by h.position limit 1;
        if blocker is null then
            return format('%s is the next with its ordering key "%s": it can be claimed once the transactions have '
                'ended that push or finish such jobs.', this, job.extra ->> 'ordering_key');
        end if;
        select count(*) into ahead from (
            select from ojs_store.ordering_line mine join ojs_store.ordering_line h on h.key = mine.key
                and h.position < mine.position
            where mine.job_id = job_id limit 10000) earlier;
        return format('%s waits for job %s, which has the same ordering key "%s" and is %s; it is one of %s that are '
            'served before it.', this, blocker,
            job.extra ->> 'ordering_key', (ojs_store.look(blocker)).state, case when ahead = 10000
                then 'at least 10000' else ahead::text end);
    end if;
    limit_says := ojs_store.explain_limit(job, queue);
    if limit_says is not null then
        return format('%s waits: %s.', this, limit_says);
    end if;
    if pg_is_in_recovery() then
        return format('%s is available, as far as this standby knows, which does not see leases.', this);
    end if;
    select l.due_at into due from ojs_store.delayed l where l.job_id = job_id and l.kind <> 5;
    if due > at then
        return format('%s was given back with a delay and may be claimed again %s.', this, ojs_store.distance(due));
    end if;
    if (config ->> 'max_deliveries')::bigint between 1 and job.deliveries and config ->> 'dead_letter' is not null then
        return format('%s was delivered %s times, as often as its queue "%s" allows: the next claim moves it to the '
                      'queue "%s".', this,
            job.deliveries, job.queue, config ->> 'dead_letter');
    end if;
    waits := ojs_store.explain_version(job);
    if waits is not null then
        return format('%s waits: %s.', this, waits);
    end if;
    select count(*) into ahead from (
        select from ojs_store.ready r, ojs_store.ready_of(job_id) mine
        where r.queue = mine.queue and (r.npriority, r.position) < (mine.npriority, mine.position)
        limit 10000
    ) earlier;
    return format('%s may be claimed now: its queue "%s" is %s, and %s jobs are served before it.', this, job.queue,
        queue.state,
        case when ahead = 10000 then 'at least 10000' else ahead::text end);
end $$;
comment on function ojs.explain_job(uuid) is 'Why a job is not running, or that it is, in one sentence';

-- sql/limits.sql

-- limits.sql: rate limits, as administrators set and read them. What claims make of them: src/limits/rate_limits.cpp.

-- What a rate limit says in numbers, that of `over` laid over it (src/job/limit_policy.cpp). Refuses what is none.
create function ojs_store.limit_numbers(
    config jsonb, over jsonb,
    out concurrency int, out rate int, out rate_period interval, out throttle int, out throttle_period interval
) returns record
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_limit_numbers';

create function ojs_store.check_limit(key text, config jsonb) returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_check_limit';

-- What a queue's settings, the default policy's among them, say of its own key.
create function ojs_store.queue_limit(config jsonb) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select coalesce(e.config -> 'rate_limit', '{}')
        || case when (e.config ->> 'concurrency')::int > 0
            then jsonb_build_object('concurrency', e.config -> 'concurrency') else '{}' end
    from (select ojs_store.effective_config(queue_limit.config, false)) e(config)
$$;

-- The limits that a job states, one row each.
create function ojs_store.job_limits(stated jsonb) returns setof jsonb
language sql immutable strict parallel safe rows 1 set search_path = pg_catalog, pg_temp as $$
    select jsonb_array_elements(case jsonb_typeof(stated) when 'array' then stated else jsonb_build_array(stated) end)
$$;

-- The key of a limit that a job in this queue states: a tenant's own.
create function ojs_store.limit_key(stated jsonb, queue text) returns text
language sql immutable parallel safe
begin atomic
    select coalesce((stated ->> 'key') || coalesce('@' || nullif(split_part(queue, '@', 2), ''), ''),
        'queue:' || queue);
end;

-- Queues with open jobs that state a limit. Null where rows would have to be counted: any may have some.
create function ojs_store.limited_queues() returns bigint[]
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select case when count(*) > 0 then coalesce(array_agg(c.queue) filter (where c.limited > 0), '{}') end
    from ojs_store.counted_apart(array(select distinct q.id from ojs_store.queue q), false) c
$$;

-- Every key of which something is known, or one of them, with what was said of it: by jobs that are not finished, by
-- queues, by administrators. Empty on a standby, where the hot set is not.
create function ojs_store.stated_limits(
    only_key text, out key text, out config jsonb, out over jsonb, out over_until timestamptz, out waiting bigint
) returns setof record
language plpgsql stable parallel unsafe
set plan_cache_mode = force_custom_plan -- which leaves out what a null or an empty array makes needless
set search_path = pg_catalog, pg_temp as $$
declare
    limited_ids bigint[];
begin
    if pg_is_in_recovery() then
        return;
    end if;
    limited_ids := ojs_store.limited_queues();
    return query
    with queues as materialized (
        select (newest.q).id, (newest.q).name, 'queue:' || (newest.q).name as key, newest.q
        from (select distinct on (q.id) q from ojs_store.queue q where q.name <> '_default' order by q.id,
            q.revised_at desc) newest
        where (newest.q).state <> 'deleted'
    ),
    -- Of very many queues few have a limit, and working out the settings of each takes long. A tenant's part has those
    -- of its queue, and all have those of the default policy.
    limiting as materialized (
        select q.name from ojs_store.queue q where q.config ?| array['rate_limit', 'concurrency']
    ),
    limited as materialized (
        select q.id, q.key, ojs_store.queue_limit((ojs_store.in_force(q.q)).config) as config from queues q
        where (only_key is null or only_key like 'queue:%' and q.key = only_key)
            and (q.name in (select l.name from limiting l)
                or split_part(q.name, '@', 1) in (select l.name from limiting l)
                or exists (select from limiting l where l.name = '_default'))
    ),
    by_job as (
        select ojs_store.limit_key(stated.config, queues.name) as key, stated.config, hot.ready, j.seq
        from (
            select r.job_id, r.queue, true as ready from ojs_store.ready r where r.flags & 128 <> 0
                and (limited_ids is null or r.queue = any (limited_ids))
            union all
            select l.job_id, l.queue, false from ojs_store.delayed l where l.flags & 128 <> 0
                and (limited_ids is null or l.queue = any (limited_ids))
                and l.kind <> 5
            union all
            select l.job_id, l.queue, false from ojs_store.lease l where l.flags & 128 <> 0
                and (limited_ids is null or l.queue = any (limited_ids))
        ) hot
        join ojs_store.job j on j.id = hot.job_id and limited_ids is distinct from '{}'
        join queues on queues.id = hot.queue
        cross join lateral ojs_store.job_limits(j.options -> 'rate_limit') stated (config)
        where only_key is null or ojs_store.limit_key(stated.config, queues.name) = only_key
    ),
    by_key as (
        select j.key, (array_agg(j.config order by j.seq desc))[1] as config, count(*) filter (where j.ready) as waiting
        from by_job j group by j.key
        union all
        select q.key, q.config, (ojs_store.ready_and_held(q.id)).ready
        from limited q where q.config <> '{}'
        union all
        select u.name, '{}', 0 from ojs_store.limit_use u where u.kind in (0, 1)
            and u.name not like '+%' -- tenants' own (src/queue/tenant_settings.cpp)
            and (only_key is null or u.name = only_key)
        union all
        select r.key, '{}', 0 from ojs_store.rate_limit r
        where (r.until is null or r.until > ojs_store.now()) and (only_key is null or r.key = only_key)
    )
    select k.key, (array_agg(k.config order by k.config <> '{}' desc))[1],
        (array_agg(r.config order by r.set_at desc) filter (where r.config is not null))[1],
        (array_agg(r.until order by r.set_at desc) filter (where r.config is not null))[1],
        max(k.waiting)
    from by_key k
    left join ojs_store.rate_limit r on r.key = k.key and (r.until is null or r.until > ojs_store.now())
    group by k.key;
end $$;

-- How many slots of a concurrency limit are taken, as claims count them now (src/limits/slots.cpp). Not by SQL: claims
-- mark index entries dead that an older snapshot still needs.
create function ojs_store.slots_taken(key bigint) returns bigint
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_slots_taken';

-- For what takes leases away by SQL: frees what one took. And one row in the place of all changes of a key.
create function ojs_store.free_slots(job_id uuid, token bigint, queue bigint, flags int) returns void
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_free_slots';

create function ojs_store.merge_slots(name text) returns void
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_merge_slots';

-- What is used of one key, by what was said of it.
create function ojs_store.limit_state(
    key text, config jsonb, over jsonb,
    out concurrency int, out active bigint, out rate int, out rate_period interval, out started bigint,
    out window_resets_at timestamptz, out throttle int, out throttle_period interval, out next_allowed_at timestamptz,
    out paused_until timestamptz
) returns record
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select n.concurrency,
        ojs_store.slots_taken(h.key),
        n.rate, n.rate_period, case when n.rate is not null then window_.started end, window_.oldest + n.rate_period,
            n.throttle, n.throttle_period,
        (select max(u.at) from ojs_store.limit_use u where u.key = h.key
            and u.kind = 1) + n.throttle_period / n.throttle,
        -- As claims see it: a pause that was noted before the clock was set back no longer counts.
        (select max(r.until) from ojs_store.rate_limit r where r.key = limit_state.key and r.config is null
            and r.until > ojs_store.now() and r.set_at <= ojs_store.now() + interval '1 minute')
    from ojs_store.limit_numbers(config, over) n
    cross join lateral (select ojs_store.name_hash(limit_state.key) as key) h
    cross join lateral (
        select count(*) as started, min(u.at) as oldest from ojs_store.limit_use u
        where u.key = h.key and u.kind = 1 and u.at > ojs_store.now() - n.rate_period) window_
$$;

-- Whether the caller may see what is known of a key.
create function ojs_store.may_read_limit(key text) returns boolean
language sql stable parallel unsafe
begin atomic
    select case when key like 'queue:%' then ojs_store.may_use_queue(substr(key, 7), 'read')
        else ojs_store.caller_tenant() is null or split_part(key, '@', 2) = ojs_store.caller_tenant() end;
end;

-- The keys that the caller may see, or this one; what is used is looked up for those that are returned alone.
create function ojs_store.rate_limits(
    only_key text default null, most bigint default null, skip bigint default 0,
    out key text, out concurrency int, out active bigint, out rate int, out rate_period interval, out started bigint,
    out window_resets_at timestamptz, out throttle int, out throttle_period interval, out next_allowed_at timestamptz,
    out paused_until timestamptz, out waiting bigint, out override jsonb, out override_until timestamptz,
    out total bigint
) returns setof record
language plpgsql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    if pg_is_in_recovery() then
        return;
    end if;
    return query
    select s.key, u.concurrency, u.active, u.rate, u.rate_period, u.started, u.window_resets_at, u.throttle,
        u.throttle_period,
        u.next_allowed_at, u.paused_until, s.waiting, s.over, s.over_until, s.total
    from (
        select l.*, count(*) over () as total from ojs_store.stated_limits(only_key) l
        where only_key is not null or ojs_store.may_read_limit(l.key)
        order by l.key limit most offset skip
    ) s
    cross join lateral ojs_store.limit_state(s.key, s.config, s.over) u
    order by s.key;
end $$;

create view ojs.rate_limits with (security_barrier) as
select key, concurrency, active, rate, rate_period, started, window_resets_at, throttle, throttle_period,
    next_allowed_at,
    paused_until, waiting, override, override_until
from ojs_store.rate_limits();
comment on view ojs.rate_limits is
    'Keys of rate limits, what they allow, what of it is used, and how many available jobs have the key; empty on a '
    'standby';

-- One key as the HTTP binding shows it; null if nothing is known of it.
create function ojs_store.rate_limit_json(key text) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp set intervalstyle = iso_8601 as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'key', r.key,
        'concurrency', case when r.concurrency is not null then jsonb_build_object(
            'limit', r.concurrency, 'active', r.active, 'available', greatest(r.concurrency - r.active, 0)) end,
        'rate', case when r.rate is not null then jsonb_build_object(
            'limit', r.rate, 'period', r.rate_period::text, 'current_count', r.started, 'window_resets_at',
                r.window_resets_at) end,
        'throttle', case when r.throttle is not null then jsonb_build_object(
            'limit', r.throttle, 'period', r.throttle_period::text, 'next_allowed_at', r.next_allowed_at) end,
        'paused_until', r.paused_until,
        'override', r.override, 'override_expires_at', r.override_until,
        'waiting_count', r.waiting))
    from ojs_store.rate_limits(rate_limit_json.key) r
$$;

-- Why a job may not start now, as ojs.explain_job says it; null if no limit is in its way. Looks at the keys of this
-- job alone: that of its queue, and those that it states, each by what the job itself says; and what its
-- tenant may hold.
create function ojs_store.explain_limit(job ojs.job, queue ojs_store.queue) returns text
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    says text;
begin
    if pg_is_in_recovery() then
        return null;
    end if;
    select case when k.key like '+%' then 'its tenant holds as many jobs as it may (max_concurrency): '
            else format('the rate limit "%s" is used up: ', k.key) end || case
            when r.paused_until is not null then format('paused until %s', r.paused_until)
            when r.active >= r.concurrency then format('%s of %s run', r.active, r.concurrency)
            when r.started >= r.rate then format('%s of %s have started within %s, the next may at %s', r.started,
                r.rate, r.rate_period, r.window_resets_at)
            else format('the next may start at %s', r.next_allowed_at) end
    into says
    from (
        select 'queue:' || (queue).name as key, ojs_store.queue_limit((queue).config) as config
        union all
        select ojs_store.limit_key(l, (queue).name), l from ojs_store.job_limits((job).extra -> 'rate_limit') l
        union all
        select '+active@' || t.name, jsonb_build_object('concurrency', t.config -> 'max_concurrency')
        from ojs_store.tenant t where t.name = split_part((queue).name, '@', 2) and t.config ? 'max_concurrency'
    ) k
    cross join lateral (
        select (array_agg(o.config order by o.set_at desc) filter (where o.config is not null))[1] as config
        from ojs_store.rate_limit o where o.key = k.key and (o.until is null or o.until > ojs_store.now())
    ) over_
    cross join lateral ojs_store.limit_state(k.key, coalesce(k.config, '{}'), over_.config) r
    where r.paused_until is not null or r.active >= r.concurrency or r.started >= r.rate
        or r.next_allowed_at > ojs_store.now()
    order by k.key
    limit 1;
    return says;
end $$;

create function ojs.set_rate_limit(key text, config jsonb, until timestamptz default null) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    before jsonb;
    limited_ids bigint[];
begin
    perform ojs_store.refuse_tenant('ojs.set_rate_limit()');
    perform ojs_store.use_queue(substr(key, 7), 'administer') where key like 'queue:%';
    perform ojs_store.check_limit(key, config);
    perform ojs_store.limit_numbers(config, null);
    if until <= ojs_store.now() then
        perform ojs_store.raise('INVALID_PAYLOAD', 'until is in the past', '{"field": "until"}',
            'Give a time to come, or null for good.');
    end if;
    perform ojs_store.lock_setting('ojs_store.rate_limit', key);
    select jsonb_build_object('config', r.config, 'until', r.until) into before from ojs_store.rate_limit r
        where r.key = set_rate_limit.key and r.config is not null order by r.set_at desc limit 1;
    delete from ojs_store.rate_limit r where r.key = set_rate_limit.key;
    if config is not null then
        insert into ojs_store.rate_limit (key, config, until, set_at) values (key, config, until, clock_timestamp());
    end if;
    perform ojs_store.changed('ojs_store.rate_limit');
    perform ojs_store.record_act('rate_limit_set', key,
        jsonb_strip_nulls(jsonb_build_object('key', key, 'config', config, 'queue', substring(key from '^queue:(.*)'),
        'until', ojs_store.time_text(until))), before,
        case when config is not null then jsonb_build_object('config', config, 'until', until) end);
    -- Who waits for jobs that may start now looks again.
    limited_ids := ojs_store.limited_queues();
    perform ojs_store.wake(q.name) from (select distinct q.name from ojs_store.queue q where q.state = 'active'
        and (limited_ids is null or q.id = any (limited_ids) or key in ('queue:' || q.name, 'queue:_default')
            or key like 'pool:%')) q;
    return coalesce(ojs_store.rate_limit_json(key), jsonb_build_object('key', key));
end $$;
comment on function ojs.set_rate_limit(text, jsonb, timestamptz) is
    'Lays limits over those that jobs or a queue (key queue:NAME) state, until a time or for good; null takes them '
    'back, pauses too';

-- sql/ordering.sql

-- ordering.sql: ordering keys. C++: src/state/ordering.cpp, src/admin/ordering_admin.cpp.

create function ojs_store.skip_in_line(job_id uuid) returns ojs.job
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_skip_in_line';

create function ojs_store.move_in_line(job_id uuid, queue bigint) returns void
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_move_in_line';

create function ojs.skip_ordering_key(queue text, ordering_key text) returns ojs.job
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    found_queue ojs_store.queue := ojs_store.queue_found(ojs_store.use_queue(queue, 'administer'));
    first uuid;
    job ojs.job;
begin
    perform ojs_store.refuse_read_only('ojs.skip_ordering_key()');
    perform from ojs_store.queue_rows('{}'); -- builds the hot set where it is not
    select l.job_id into first from ojs_store.ordering_line l
    where l.key = ojs_store.name_hash(found_queue.id || ':' || ordering_key)
    order by l.position limit 1;
    if first is null then
        perform ojs_store.raise('NOT_FOUND', format('no open job of queue "%s" has this ordering_key', queue),
            jsonb_build_object('queue', queue, 'field', 'ordering_key'),
                'Look at ojs.explain_job(job_id) of a job that waits.');
    end if;
    job := ojs_store.skip_in_line(first);
    perform ojs_store.record_act('job_skipped', first::text, jsonb_build_object('job_id', first, 'queue', queue));
    return job;
end $$;
comment on function ojs.skip_ordering_key(text, text)
    is 'Lets the next job of an ordering key go past the first one, which then waits at the end of the line; that job';

-- sql/maintenance.sql

-- maintenance.sql: the whole server pauses (ADM-05). What that means to claims and upkeep:
-- include/ojs/queue/maintenance.h.

-- Up to when jobs that wait for a time have been let go.
create function ojs_store.promoted_to() returns timestamptz
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_promoted_to';

-- As the admin API answers it.
create function ojs_store.maintenance_json() returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select coalesce((
        select jsonb_strip_nulls(jsonb_build_object('maintenance', true, 'reason', m.reason,
            'enabled_at', ojs_store.time_text(m.since), 'enabled_by', m.begun_by, 'estimated_end',
                ojs_store.time_text(m.ends_at)))
        from ojs_store.maintenance m order by m.since limit 1), '{"maintenance": false}')
$$;

create function ojs.set_maintenance(enabled boolean, reason text default null,
    estimated_duration interval default null) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    at timestamptz := ojs_store.now();
    since timestamptz;
begin
    if enabled is null then
        perform ojs_store.raise('INVALID_PAYLOAD', 'enabled must not be null', '{"field": "enabled"}',
            'Say true or false.');
    elsif estimated_duration not between interval '0' and interval '100 years' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'estimated_duration must be between 0 and 100 years',
            '{"field": "estimated_duration"}',
            'Give an interval such as 30 minutes, or leave it out.');
    end if;
    lock table ojs_store.maintenance in share row exclusive mode; -- one at a time; who reads does not wait
    delete from ojs_store.maintenance m returning m.since into since;
    if enabled then
        insert into ojs_store.maintenance (since, reason, ends_at, begun_by)
        values (coalesce(since, at), reason, at + estimated_duration, session_user);
    elsif since is not null then
        perform ojs_store.wake(q.name) from ojs.queues q where q.state <> 'paused';
    end if;
    if enabled or since is not null then
        perform ojs_store.record_act('maintenance_set', 'maintenance', ojs_store.maintenance_json());
    end if;
    return ojs_store.maintenance_json();
end $$;
comment on function ojs.set_maintenance(boolean, text, interval) is
    'Begins or ends maintenance: claims come back empty, promotion and cron wait, pushes go on; until it is ended, '
    'past restarts too';

-- sql/events.sql

-- events.sql: what happened, in the standard vocabulary of OJS events.
-- Most events are not stored: they follow from rows of job, event, done, lease, progress and workflow_end. Those that
-- no other row tells of are in ojs_store.stored_event.

-- Records such an event, in the caller's transaction. `data` holds what the vocabulary says of this type beyond the
-- subject; its keys queue and job_type are what filters look at.
create function ojs_store.record_event(type text, subject text, data jsonb default '{}') returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    at timestamptz := ojs_store.now();
begin
    if octet_length(data::text) > 16384 then
        -- An event must stay readable for everybody: what is large in it goes.
        select jsonb_object_agg(key, value) || '{"truncated": true}' into data
        from (select key, value from jsonb_each(data) where octet_length(value::text) <= 512 order by key
            limit 16) small;
        data := coalesce(data, '{"truncated": true}');
    end if;
    if not ojs_store.matches(type, string_to_array(replace(current_setting('ojs.events_off'), ' ', ''), ',')) then
        insert into ojs_store.stored_event (id, at, type, subject, data)
            values (gen_random_uuid(), at, type, subject, coalesce(data, '{}'));
    end if;
end $$;

-- What an administrator has done, and who: `by` is the session's user, `as` the role that it has taken on.
create function ojs_store.record_act(type text, subject text, data jsonb, before jsonb default null,
    after jsonb default null) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.record_audit(type, subject, before, after, data);
    perform ojs_store.record_event('admin.' || type, subject,
        data || jsonb_strip_nulls(jsonb_build_object('by', session_user,
        'as', nullif(current_setting('role'), 'none'))));
end $$;

-- Events of administrators. They have a bound of their own, so that workers and clocks cannot push them out.
create function ojs_store.is_act(type text) returns boolean
language sql immutable strict parallel safe
begin atomic
    select type ~ '^(admin|queue|bulk[.](cancel|retry|delete))[.]';
end;

-- Functions that are called for each event have no SET, which costs more than they do: their bodies were parsed when
-- they were created, so the search_path of a caller means nothing to them.

-- Whether a name is one of these, of which job.* stands for job. and whatever follows.
create function ojs_store.matches(name text, patterns text[]) returns boolean
language sql immutable strict parallel safe
begin atomic
    select exists (
        select from unnest(patterns) as p(pattern)
        where case when pattern like '%*' then starts_with(name, left(pattern, -1)) else name = pattern end);
end;

-- A time as JSON has it.
create function ojs_store.time_text(at timestamptz) returns text
language sql immutable strict parallel safe
begin atomic
    select to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');
end;

-- A name as one part of a URI.
create function ojs_store.uri_part(name text) returns text
language sql immutable strict parallel safe
begin atomic
    select case when name ~ '^[A-Za-z0-9._~-]*$' then name else (
        select string_agg(case when c ~ '[A-Za-z0-9._~-]' then c
            else upper(regexp_replace(encode(convert_to(c, 'UTF8'), 'hex'), '(..)', e'%\\1', 'g')) end, '' order by n)
        from regexp_split_to_table(name, '') with ordinality as part(c, n)) end;
end;

-- A UUID of version 7 from a time and what else tells this event from all others: the same at each reading.
create function ojs_store.event_id(at timestamptz, key text) returns text
language sql immutable strict parallel safe
begin atomic
    select 'evt_' || (lpad(to_hex(floor(extract(epoch from at) * 1000)::bigint), 12, '0') || '7' || substr(h, 1, 3)
        || substr('89ab', 1 + get_byte(decode(substr(h, 4, 2), 'hex'), 0) % 4, 1) || substr(h, 6, 15))::uuid
    from md5(extract(epoch from at) || ' ' || key) as digest(h);
end;

-- The leases, for events; none on a standby. kind 8: a delivery that goes on; 9: its last sign of life; 10: the last
-- report of its progress.
create function ojs_store.running(
    out written_at timestamptz, out xid xid, out job_id uuid, out deliveries int, out kind int, out attempt int,
    out started_at timestamptz, out deadline timestamptz, out worker text, out report jsonb
) returns setof record
language plpgsql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    if not pg_is_in_recovery() then
        return query
            select k.at, l.xmin, l.job_id, l.deliveries, k.kind, l.attempt, l.claimed_at, l.deadline, l.worker,
                null::jsonb
            from ojs_store.lease l, lateral (values (8, l.claimed_at),
                (9, l.beat_at)) as k(kind, at)
            where k.at is not null
            union all
            select p.at, p.xmin, l.job_id, l.deliveries, 10, l.attempt, l.claimed_at, l.deadline, l.worker,
                jsonb_strip_nulls(jsonb_build_object('progress_percent', trim_scale(p.progress * 100),
                    'progress_message', p.message))
            from ojs_store.lease l join ojs_store.progress p on p.job_id = l.job_id and p.started_at = l.claimed_at
            where l.flags & 512 <> 0;
    end if;
end $$;

-- What one row after the other tells of. Kinds: those of HistoryKind up to claimed; else
-- enum Origin { pushed = 0, held = 8, beat = 9, progress = 10, completed = 14, cancelled = 16, discarded = 17 }
-- where the first is the envelope, the next three come from ojs_store.running(), and the last from the end: 10 and its
-- state. `logged` rows are found by the job's id; a query that asks for them alone does not call ojs_store.running().
create view ojs_store.recorded as
select created_at as written_at, xmin as xid, id as job_id, -1 as deliveries, 0 as kind, 0 as attempt,
    null::timestamptz as due_at, null::timestamptz as started_at, null::text as worker, null::jsonb as error,
    null::jsonb as result, queue, false as dead_letter, true as logged
from ojs_store.job
union all
select at, xmin, job_id, deliveries, kind, attempt, due_at, started_at, worker, data, null, null, false, true
from ojs_store.job_history
where kind <> 8 -- a durable lease: ojs_store.running() tells of it
union all
select finished_at, xmin, job_id, deliveries, 10 + state, attempt, null, started_at, worker, error, result, queue,
    flags & 1 <> 0, true
from ojs_store.finished
union all
select written_at, xid, job_id, deliveries, kind, attempt, deadline, started_at, worker, null, report, null,
    false, false
from ojs_store.running();

-- All events of jobs, with what puts them in order. A job's transactions need not have ids in the order of its life
-- (one that began early may end the job that a later one pushed), so an event counts as written by the newest of those
-- that have led to it: `settled_by`, which for one job only grows.
create view ojs_store.job_events as
select
    recorded.written_at, recorded.job_id, recorded.deliveries, happened.rank, happened.at, happened.type,
    greatest(
        numbers.epoch + recorded.xid::text::bigint - case when recorded.xid::text::bigint > numbers.low then 4294967296
            else 0 end,
        case when recorded.kind <> 0 then
            numbers.epoch + job.xmin::text::bigint - case when job.xmin::text::bigint > numbers.low then 4294967296
                else 0 end
        end,
        case when recorded.kind <> 0 then (
            select max(numbers.epoch + e.xmin::text::bigint - case when e.xmin::text::bigint > numbers.low
                then 4294967296 else 0 end)
            from ojs_store.job_history e
            where e.job_id = recorded.job_id and e.deliveries <= recorded.deliveries and e.at <= recorded.written_at)
        end) as settled_by,
    (select q.name from ojs_store.queue q where q.id = coalesce(recorded.queue, job.queue) limit 1) as queue,
    job.type as job_type, job.meta ->> 'trace_id' as trace_id, job.created_at, job.scheduled_at, job.expires_at,
    job.max_attempts, job.options, recorded.kind, recorded.attempt, recorded.due_at, recorded.started_at,
        recorded.worker, recorded.error, recorded.result,
    numbers.read_at, recorded.logged, coalesce(recorded.queue, job.queue) as queue_id
from (
    -- The next transaction id, in two parts: of a row, 32 bits are known. And the time: where the columns of the events
    -- call a volatile function, a query that does not ask for them computes them all the same.
    select next & -4294967296 as epoch, next & 4294967295 as low, ojs_store.now() as read_at
    from (select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as next offset 0) n
    offset 0
) numbers,
ojs_store.recorded
join ojs_store.job on job.id = recorded.job_id
-- The delivery of a job that may be delivered only once is an event of its own.
cross join lateral (
    select job.flags & 1 <> 0 as pending, job.flags & 2 <> 0 as once_only,
        coalesce(job.scheduled_at > job.created_at, false) as scheduled,
        recorded.error ->> 'type' as error_type,
        case recorded.error ->> 'timeout_kind' when 'execution' then 'job.timeout' when 'stalled' then 'job.stalled'
            when 'enqueue_ttl' then 'job.ttl_expired' when 'total' then 'job.total_timeout' end as timeout
) as fact
cross join lateral (values
    (1, 'job.scheduled', recorded.written_at, recorded.kind = 0 and not fact.pending and fact.scheduled
        or recorded.kind = 4 and recorded.due_at > recorded.written_at),
    -- Falling due writes nothing that lasts: the first delivery shows that it has been.
    (2, 'job.enqueued', job.scheduled_at, recorded.started_at is not null and recorded.kind
        not in (9, 10) and recorded.deliveries = 1 and fact.scheduled and not fact.pending),
    (3, 'job.started', recorded.started_at, recorded.started_at is not null and recorded.kind
        not in (7, 9, 10) and not fact.once_only),
    (3, 'job.started', recorded.written_at, recorded.kind = 7),
    (4, 'job.heartbeat', recorded.written_at, recorded.kind = 9),
    (5, 'job.progress', recorded.written_at, recorded.kind = 10),
    (6, fact.timeout, recorded.written_at, recorded.kind in (1, 3, 17)
        and fact.timeout is not null),
    (6, fact.timeout, (recorded.error ->> 'occurred_at')::timestamptz,
        recorded.kind = 6 and fact.timeout is not null),
    (7, 'job.failed', recorded.written_at, recorded.kind in (1, 3)
        or recorded.kind = 17 and recorded.started_at is not null),
    (7, 'job.failed', (recorded.error ->> 'occurred_at')::timestamptz,
        recorded.kind = 6 and recorded.started_at is not null),
    -- or no retry could fit into total_timeout
    (8, 'job.retrying', recorded.written_at, recorded.kind = 1 and recorded.due_at is not null),
    (8, 'backpressure.dropped', recorded.written_at, recorded.kind = 17 and fact.error_type = 'overflow'),
    (8, 'job.expired', recorded.written_at, recorded.kind = 17
        and fact.error_type in ('expired', 'enqueue_ttl_expired')),
    (8, 'rate_limit.dropped', recorded.written_at, recorded.kind = 17
        and recorded.started_at is null and fact.error_type = 'rate_limited'),
    (9, 'job.completed', recorded.written_at, recorded.kind = 14),
    (9, 'job.cancelled', recorded.written_at, recorded.kind = 16),
    (9, 'job.discarded', recorded.written_at, recorded.kind = 17),
    (9, 'job.discarded', (recorded.error ->> 'occurred_at')::timestamptz, recorded.kind = 6),
    (10, 'dead_letter.added', recorded.written_at, recorded.dead_letter),
    (11, 'job.enqueued', recorded.written_at, recorded.kind = 0 and not fact.pending and not fact.scheduled
        or recorded.kind in (2, 3, 6)
        or recorded.kind = 4 and (recorded.due_at > recorded.written_at) is not true)
) as happened(rank, type, at, so)
where happened.so;

-- All events, in the columns of the envelope and those that filters and cursors look at.
create view ojs_store.all_events as
select
    e.written_at, e.settled_by, e.job_id as key, e.deliveries, e.rank, e.at, e.type, e.job_id::text as subject,
    concat_ws(' ', e.type, e.job_id, e.deliveries) as identity, 'queues/' || e.queue as source, e.job_id, e.queue,
        e.job_type,
    jsonb_build_object('job_id', e.job_id, 'job_type', e.job_type, 'queue', e.queue, 'state', case e.type
        when 'job.scheduled' then 'scheduled' when 'job.enqueued' then 'available' when 'job.retrying' then 'retryable'
        when 'job.started' then 'active' when 'job.heartbeat' then 'active' when 'job.progress' then 'active'
        when 'job.completed' then 'completed' when 'job.cancelled' then 'cancelled'
        else case e.kind when 1 then 'retryable' when 3 then 'available'
            else 'discarded' end end)
    || case when e.trace_id is not null then jsonb_build_object('trace_id', e.trace_id) else '{}' end
    || case when e.type in ('job.started', 'job.heartbeat', 'job.progress')
        and e.worker is not null then jsonb_build_object('worker_id', e.worker) else '{}' end
    || case
        when e.type = 'job.scheduled' then jsonb_build_object('scheduled_at',
            ojs_store.time_text(coalesce(e.due_at, e.scheduled_at)))
        when e.type = 'job.started' then jsonb_build_object('attempt', n.attempt)
        when e.type = 'job.heartbeat' then jsonb_build_object('attempt', n.attempt, 'visible_until',
            ojs_store.time_text(e.due_at))
        when e.type = 'job.progress' then jsonb_build_object('attempt', n.attempt) || e.result
        when e.type in ('job.timeout', 'job.stalled', 'job.ttl_expired', 'job.total_timeout')
            then jsonb_build_object('attempt', n.attempt,
            'timeout_kind', e.error -> 'timeout_kind', 'limit_seconds', e.error -> 'limit_seconds', 'elapsed_seconds',
                e.error -> 'elapsed_seconds')
        when e.type = 'job.completed' then jsonb_build_object('attempt', n.attempt, 'duration_ms', n.duration_ms,
            -- A result is shown as long as its job asks for: result_ttl in seconds, -1 for ever, 7 days by default.
            'result', case when coalesce((e.options ->> 'result_ttl')::numeric, 604800) < 0
                or e.at + coalesce((e.options ->> 'result_ttl')::float8, 604800) * interval '1 second' > e.read_at
                    then e.result end)
        when e.type = 'job.failed' then jsonb_build_object('attempt', n.attempt, 'duration_ms', n.duration_ms,
            'error', n.error || jsonb_build_object('retryable',
                e.kind in (1, 3)) || n.stack_trace)
        when e.type = 'job.retrying' then jsonb_build_object('attempt', n.attempt, 'max_attempts', e.max_attempts,
            'next_retry_at', ojs_store.time_text(e.due_at), 'error', n.error)
        when e.type = 'job.cancelled' and e.error ->> 'type' = 'replaced'
            then jsonb_build_object('reason', e.error ->> 'message')
        when e.type = 'job.expired' then jsonb_build_object('created_at', ojs_store.time_text(e.created_at),
            'expired_at', ojs_store.time_text(e.at), 'ttl_ms', coalesce(
                case when e.error ->> 'type' = 'enqueue_ttl_expired'
                    then ((e.options ->> 'enqueue_ttl')::numeric * 1000)::bigint end,
                (extract(epoch from e.expires_at - e.created_at) * 1000)::bigint))
        when e.type = 'rate_limit.dropped' then jsonb_build_object('key', coalesce(
            jsonb_path_query_first(e.options, '$.rate_limit ? (@.on_limit == "drop").key') #>> '{}',
                'queue:' || e.queue))
        when e.type in ('job.discarded', 'dead_letter.added')
            then jsonb_build_object('total_attempts', n.attempt, 'last_error', n.error)
        else '{}' end as data, e.logged,
    -- What rights are asked by: by its id where there is one, since the name is looked up anew wherever it stands.
    e.queue_id, null::text as stated_queue
from ojs_store.job_events e
cross join lateral (
    select
        -- A release gives its attempt back, a lapse may, and a manual retry starts anew; the error knows which it was.
        case when e.kind = 2 then e.attempt + 1
            when e.kind in (3, 6)
            then coalesce((e.error ->> 'attempt')::int, e.attempt)
            else e.attempt end as attempt,
        (extract(epoch from e.at - e.started_at) * 1000)::bigint as duration_ms,
        jsonb_build_object('code', coalesce(e.error ->> 'code', e.error ->> 'type'), 'type', e.error ->> 'type',
            'message', e.error ->> 'message') as error,
        case when jsonb_typeof(e.error -> 'backtrace') = 'array' then jsonb_build_object('stack_trace', (
            select string_agg(line, chr(10) order by i) from jsonb_array_elements_text(e.error -> 'backtrace')
                with ordinality as b(line, i)))
            else '{}' end as stack_trace
) n
union all
select
    r.at, numbers.epoch + r.xmin::text::bigint - case when r.xmin::text::bigint > numbers.low then 4294967296
        else 0 end,
    r.id, 0, 0, r.at, r.type, r.subject, r.id::text,
    case split_part(r.type, '.', 1) when 'admin' then 'admin/' when 'worker' then 'workers/' when 'cron' then 'cron/'
        when 'workflow' then 'workflows/'
        when 'bulk' then 'api/' when 'rate_limit' then 'rate-limits/' when 'webhook' then 'webhooks/'
        else 'queues/' end
        || ojs_store.uri_part(coalesce(case when r.type !~ '^(admin|worker|cron|workflow|bulk|rate_limit|webhook)[.]'
            then r.data ->> 'queue' end, r.subject)),
    null, r.data ->> 'queue', r.data ->> 'job_type', r.data, false, null, r.data ->> 'queue'
from (
    select next & -4294967296 as epoch, next & 4294967295 as low
    from (select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as next offset 0) n
    offset 0
) numbers, ojs_store.stored_event r
union all
-- The steps, jobs and callbacks of workflows that have completed. What is still to come is told for chains, and counted
-- up to a thousand members.
select
    e.ended_at, numbers.epoch + e.xmin::text::bigint - case when e.xmin::text::bigint > numbers.low then 4294967296
        else 0 end,
    e.workflow, e.position, 0, e.ended_at, 'workflow.step_completed', e.workflow::text,
        concat_ws(' ', 'workflow.step_completed', e.workflow, e.position),
    'workflows/' || e.workflow, case when e.is_job then e.member end, null, m.type,
    jsonb_build_object('workflow_id', e.workflow, 'workflow_name', coalesce(w.name, ''), 'step_id', e.position::text,
        'step_type', m.type)
        || case when e.is_job then jsonb_build_object('job_id', e.member)
            else jsonb_build_object('inner_workflow_id', e.member) end
        || case when e.started_at is not null then jsonb_build_object('duration_ms',
            (extract(epoch from e.ended_at - e.started_at) * 1000)::bigint) else '{}' end
        || case when e.position >= w.members then jsonb_build_object('callback', m.callback)
            when w.type = 'chain' then jsonb_build_object('steps_remaining', w.members - e.position - 1)
            when w.members <= 1000 then jsonb_build_object('steps_remaining', w.members - (
                select count(*) from ojs_store.workflow_end f where f.workflow = e.workflow and f.position < w.members
                    and f.ended_at <= e.ended_at))
            else '{}' end, false, null, null
from (
    select next & -4294967296 as epoch, next & 4294967295 as low
    from (select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as next offset 0) n
    offset 0
) numbers, ojs_store.workflow_end e
join ojs_store.workflow w on w.id = e.workflow
join ojs_store.workflow_member m on m.workflow = e.workflow and m.position = e.position
where e.state = 'completed';

create view ojs.events with (security_barrier) as
select
    ojs_store.event_id(e.at, e.identity) as id, '1.0'::text as specversion, e.type,
    'ojs://' || ojs_store.uri_part(current_database()::text) || '/' || e.source as source,
    e.at as "time", e.subject, e.data, e.job_id, ojs_store.shown_queue(e.queue) as queue, e.job_type
from ojs_store.all_events e
where case
        when e.queue_id is not null then ojs_store.may_use_queue(e.queue_id, 'read')
        when e.stated_queue is not null then ojs_store.may_use_queue(e.stated_queue, 'read')
        when e.type ~ '^(workflow|cron)[.]' then ojs_store.may_see(e.type, e.subject)
        else ojs_store.caller_tenant() is null end;
comment on view ojs.events is 'What happened: the standard OJS events, one row each, in no order';

-- sql/event_stream.sql

-- event_stream.sql: events read with a cursor, and notices of new events.

-- A time as a number in a cursor.
create function ojs_store.micros(at timestamptz) returns bigint
language sql immutable strict parallel safe
begin atomic
    select (extract(epoch from at) * 1000000)::bigint;
end;

-- By days and the rest: one interval times a number is worked out in floating point, and can be a digit longer.
create function ojs_store.from_micros(n bigint) returns timestamptz
language sql immutable strict parallel safe
begin atomic
    select (timestamp '1970-01-01 00:00:00' + n / 86400000000 * interval '1 day'
        + n % 86400000000 * interval '1 microsecond') at time zone 'UTC';
end;

-- No row that a transaction may still store, or has stored since the last statement began, is older than this. Rows
-- bear times no earlier than the start of their transaction. `otherwise` where that cannot be known: a snapshot that
-- stays, a standby, a prepared transaction, a session whose activity is hidden.
create function ojs_store.oldest_open(otherwise timestamptz) returns timestamptz
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    unknown boolean;
    oldest timestamptz;
begin
    if pg_is_in_recovery() or current_setting('transaction_isolation') <> 'read committed'
        or exists (select from pg_prepared_xacts where database = current_database()) then
        return otherwise;
    end if;
    -- A transaction that began in the time to come has seen the clock being set back, and has rows from before and
    -- after that.
    select bool_or(a.state = 'disabled' or a.query = '<insufficient privilege>' or a.xact_start > clock_timestamp()),
        min(a.xact_start)
    into unknown, oldest
    from pg_stat_activity a
    where a.datname = current_database() and a.backend_type <> 'autovacuum worker';
    -- A session has started its transaction a moment before it says so.
    return case when unknown then otherwise else greatest(otherwise, oldest - interval '5 seconds') end;
end $$;

-- The cursor after which everything is read that is not committed yet.
create function ojs_store.cursor_now() returns text
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    since timestamptz := ojs_store.oldest_open(ojs_store.from_micros(0)); -- looked up before the snapshot below
begin
    return pg_snapshot_xmin(pg_current_snapshot()) || '.' || ojs_store.micros(since);
end $$;

-- The earliest time of a row, written at `since` or later, of a transaction that is not older than this.
create function ojs_store.first_written(since timestamptz, by bigint) returns timestamptz
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select min(w.at)
    from (select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as next offset 0) n, lateral (
        select j.created_at as at, j.xmin as xid from ojs_store.job j where j.created_at >= since
        union all select e.at, e.xmin from ojs_store.job_history e where e.at >= since
        union all select f.finished_at, f.xmin from ojs_store.finished f where f.finished_at >= since
        union all select r.written_at, r.xid from ojs_store.running() r where r.written_at >= since
        union all select s.at, s.xmin from ojs_store.stored_event s where s.at >= since
        union all select w.ended_at, w.xmin from ojs_store.workflow_end w where w.ended_at >= since
    ) w
    where (n.next & -4294967296) + w.xid::text::bigint - case when w.xid::text::bigint > (n.next & 4294967295)
        then 4294967296 else 0 end >= by
$$;

-- The earliest time of a row that tells of events and is not found by the id of its job.
create function ojs_store.first_other() returns timestamptz
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select least((select min(r.written_at) from ojs_store.running() r),
        (select min(s.at) from ojs_store.stored_event s),
        (select min(w.ended_at) from ojs_store.workflow_end w))
$$;

-- Whether a reader wants an event.
create function ojs_store.is_wanted(type text, queue text, job_type text, types text[], queues text[],
    job_types text[]) returns boolean
language sql immutable parallel safe
begin atomic
    select (types is null or ojs_store.matches(type, types)) and (queues is null or queue = any (queues))
        and (job_types is null or ojs_store.matches(job_type, job_types));
end;

-- Whether the caller may see an event: as its queue, its workflow or its cron entry.
create function ojs_store.may_read_event(type text, queue text, subject text) returns boolean
language sql stable parallel unsafe
begin atomic
    select case when queue is not null then ojs_store.may_use_queue(queue, 'read')
        when type ~ '^(workflow|cron)[.]' then ojs_store.may_see(type, subject)
        else ojs_store.caller_tenant() is null end;
end;

/*
 * Rows are visible once they are committed; but a transaction that is still open may have stored rows before them. So a
 * reading ends below the oldest open transaction, `below`, and the next one begins there: it takes the events with
 * lowest <= settled_by < below, in the order of time. A page is a part of a reading.
 *
 * The first reading, from the beginning, goes through the jobs in the order of their ids, by the indexes that there are
 * for ids; then it takes, in the order of time, what is left: leases, and events that no job has.
 *
 * So that the next one need not look at all that is kept, a cursor knows a time that no row still to be read is older
 * than, `since`: the start of the oldest transaction that is open in this database (looked up before the snapshot that
 * the rows are read by), or the time of a row that this snapshot sees and that is not settled.
 *
 * A cursor is lowest.since, and in the middle of a reading .below.next_since and the last event's written_at.key.
 * deliveries.rank, then .1 where the first reading has come to what is left. Times are in microseconds.
 */
create function ojs_store.read_events(after text, types text[], queues text[], job_types text[], max int,
    ids_only boolean, of_everybody boolean default false) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    most int := least(greatest(coalesce(max, 100), 1), 1000);
    most_bytes constant int := 8 * 1024 * 1024;
    most_jobs constant int := 10000; -- that one call looks at
    looked int := 0;
    batch int;
    ids uuid[];
    by_job boolean;
    parts text[] := string_to_array(after, '.');
    lowest bigint := 0;
    below bigint;
    since timestamptz := ojs_store.from_micros(0);
    set_back boolean := false;
    next_since timestamptz;
    last_at timestamptz := '-infinity';
    last_key uuid := '00000000-0000-0000-0000-000000000000';
    last_deliveries int := -2;
    last_rank int := 0;
    slice_from timestamptz;
    slice_to timestamptz;
    slice interval := '1 second';
    found_events refcursor;
    event record;
    page jsonb[] := '{}';
    bytes bigint := 0;
    more boolean := false;
begin
    queues := case when queues is not null then array(select ojs_store.stored_queue(q) from unnest(queues) q) end;
    if after = 'now' then
        return jsonb_build_object('events', '[]'::jsonb, 'cursor', ojs_store.cursor_now(), 'has_more', false);
    end if;
    if after !~ ('^[0-9]{1,18}[.][0-9]{1,18}'
            '([.][0-9]{1,18}[.][0-9]{1,18}[.][0-9]{1,18}[.][0-9a-f]{32}[.]-?[0-9]{1,9}[.][0-9]{1,2}([.]1)?)?$') then
        perform ojs_store.raise('INVALID_PAYLOAD', 'after is no cursor', '{"field": "after"}',
            'Give the cursor of an earlier answer of ojs.events, or null to read from the beginning.');
    end if;
    if after is not null then
        lowest := parts[1];
        since := ojs_store.from_micros(parts[2]::bigint);
        -- As after a failover to a server that had not yet received all of it: what lies between would be passed over
        -- in silence.
        if greatest(lowest, parts[3]::bigint) > pg_snapshot_xmax(pg_current_snapshot())::text::bigint then
            perform ojs_store.raise('INVALID_PAYLOAD',
                'after is a cursor of another server or of another history of this one', '{"field": "after"}',
                'Read from the beginning (null), or from now on (''now'').');
        end if;
    end if;
    slice_from := since;
    if cardinality(parts) > 2 then
        below := parts[3];
        next_since := ojs_store.from_micros(parts[4]::bigint);
        last_at := ojs_store.from_micros(parts[5]::bigint);
        last_key := parts[6];
        last_deliveries := parts[7];
        last_rank := parts[8];
        slice_from := last_at;
        slice := '10 milliseconds'; -- so much happens that a page was full
    else
        -- A cursor of a time to come was given out before the clock was set back: what was stored since then bears
        -- earlier times.
        set_back := since > ojs_store.now();
        next_since := coalesce(ojs_store.oldest_open(case when not set_back then since end), since);
        below := pg_snapshot_xmin(pg_current_snapshot())::text;
        if lowest > 0 then
            slice_from := ojs_store.first_written(case when set_back then '-infinity' else since end, lowest);
        end if;
    end if;
    by_job := lowest = 0 and parts[9] is null;
    batch := least(most, 100);

    loop
        if by_job then
            ids := array(select j.id from ojs_store.job j where j.id >= last_key order by j.id limit batch);
            looked := looked + cardinality(ids);
            open found_events for
                select e.at, e.identity, e.type, e.source, e.subject, e.written_at, e.key, e.deliveries, e.rank,
                    case when not ids_only then e.data end as data -- not read in vain: results may be large
                from ojs_store.all_events e
                where e.logged and e.job_id = any (ids) and e.settled_by < below
                    and (e.key, e.written_at, e.deliveries, e.rank) > (last_key, last_at, last_deliveries, last_rank)
                    and ojs_store.is_wanted(e.type, e.queue, e.job_type, types, queues, job_types)
                    and (ids_only or of_everybody or ojs_store.may_read_event(e.type, e.queue, e.subject))
                order by e.key, e.written_at, e.deliveries, e.rank
                limit most + 1 - cardinality(page);
        else
            -- Slice by slice, so that a long past is not sorted as a whole for each page of it.
            exit when slice_from = 'infinity' or slice_from is null;
            slice_to := case when slice_from + slice < ojs_store.now() then slice_from + slice else 'infinity' end;
        end if;
        if not by_job and lowest = 0 then
            open found_events for
                select e.at, e.identity, e.type, e.source, e.subject, e.written_at, e.key, e.deliveries, e.rank,
                    case when not ids_only then e.data end as data -- not read in vain: results may be large
                from ojs_store.all_events e
                where not e.logged and e.written_at >= slice_from and e.written_at < slice_to and e.settled_by < below
                    and (e.written_at, e.key, e.deliveries, e.rank) > (last_at, last_key, last_deliveries, last_rank)
                    and ojs_store.is_wanted(e.type, e.queue, e.job_type, types, queues, job_types)
                    and (ids_only or of_everybody or ojs_store.may_read_event(e.type, e.queue, e.subject))
                order by e.written_at, e.key, e.deliveries, e.rank
                limit most + 1 - cardinality(page);
        elsif not by_job then
            open found_events for
                select e.at, e.identity, e.type, e.source, e.subject, e.written_at, e.key, e.deliveries, e.rank,
                    case when not ids_only then e.data end as data -- not read in vain: results may be large
                from ojs_store.all_events e
                where e.written_at >= slice_from and e.written_at < slice_to and e.settled_by >= lowest
                    and e.settled_by < below
                    and (e.written_at, e.key, e.deliveries, e.rank) > (last_at, last_key, last_deliveries, last_rank)
                    and ojs_store.is_wanted(e.type, e.queue, e.job_type, types, queues, job_types)
                    and (ids_only or of_everybody or ojs_store.may_read_event(e.type, e.queue, e.subject))
                order by e.written_at, e.key, e.deliveries, e.rank
                limit most + 1 - cardinality(page);
        end if;
        loop
            fetch found_events into event;
            exit when not found;
            -- A page has a bound in bytes, too: jsonb holds no more than 256 MB.
            more := cardinality(page) = most or bytes > most_bytes;
            exit when more;
            bytes := bytes + coalesce(pg_column_size(event.data), 0);
            page := page || case when ids_only then jsonb_build_object('id',
                ojs_store.event_id(event.at, event.identity))
                else jsonb_build_object(
                    'specversion', '1.0', 'id', ojs_store.event_id(event.at, event.identity), 'type', event.type,
                    'source', 'ojs://' || ojs_store.uri_part(current_database()::text) || '/' || event.source,
                    'time', ojs_store.time_text(event.at), 'subject', event.subject, 'data', event.data) end;
            last_at := event.written_at;
            last_key := event.key;
            last_deliveries := event.deliveries;
            last_rank := event.rank;
        end loop;
        close found_events;
        exit when more;
        if not by_job then
            slice_from := slice_to;
            slice := slice * 4;
        elsif cardinality(ids) = batch then
            -- On with the jobs after these.
            last_key := ids[batch];
            last_at := ojs_store.from_micros(900000000000000000); -- later than any; its text goes into a cursor
            batch := least(batch * 2, 2000);
            more := looked >= most_jobs;
            exit when more;
        else
            by_job := false;
            slice_from := coalesce(ojs_store.first_other(), 'infinity');
            last_at := slice_from;
            last_key := '00000000-0000-0000-0000-000000000000';
            last_deliveries := -2;
        end if;
    end loop;
    if not more then
        next_since := least(next_since,
            ojs_store.first_written(case when set_back then '-infinity' else since end, below));
    end if;

    return jsonb_build_object(
        'events', to_jsonb(page),
        'cursor', case when more then concat_ws('.', lowest, ojs_store.micros(since), below,
                ojs_store.micros(next_since), ojs_store.micros(last_at), replace(last_key::text, '-', ''),
                    last_deliveries, last_rank,
                case when lowest = 0 and not by_job then 1 end)
            else below || '.' || ojs_store.micros(next_since) end,
        'has_more', more)
        || case when after is not null and exists (select from ojs_store.retention_cursor s
            where s.removed_to >= ojs_store.from_micros(parts[2]::bigint))
            then '{"missed": true}' else '{}' end::jsonb;
end $$;

create function ojs.events(
    after text default null, types text[] default null, queues text[] default null, job_types text[] default null,
    max int default 100
) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    return ojs_store.read_events(after, types, queues, job_types, max, false);
end $$;
comment on function ojs.events(text, text[], text[], text[], int)
    is 'Events after a cursor, in the lifecycle order of each job, and the cursor to go on with; none is passed over';

-- Has ticks send the id of each event to the channel ojs_events, from now on. Without a lock on the cursor's table,
-- which ticks write.
create function ojs.notify_events(enabled boolean default true) returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    cursor_now text := ojs_store.cursor_now();
begin
    lock table ojs_store.event_notify_cursor in row exclusive mode; -- not first to be read, as in bulk.sql
    if not enabled then
        delete from ojs_store.event_notify_cursor;
    elsif not exists (select from ojs_store.event_notify_cursor) then
        insert into ojs_store.event_notify_cursor (cursor) values (cursor_now) on conflict do nothing;
        perform ojs.index_events(); -- or each tick would look at every job that is kept
    end if;
end $$;
comment on function ojs.notify_events(boolean)
    is 'Has ticks notify the channel ojs_events of each event, with its id; or has them stop';

-- Returns the number of events sent; one session at a time.
create function ojs_store.tell_events(most int) returns int
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    notified_until text;
    page jsonb;
    n int;
begin
    select t.cursor into notified_until from ojs_store.event_notify_cursor t limit 1 for update skip locked;
    if not found then
        return 0;
    end if;
    page := ojs_store.read_events(notified_until, null, null, null, least(most, 1000), true);
    perform pg_notify('ojs_events', e ->> 'id') from jsonb_array_elements(page -> 'events') e;
    get diagnostics n = row_count;
    -- the clock was set back
    if n > 0 or ojs_store.from_micros(split_part(notified_until, '.', 2)::bigint) > ojs_store.now() then
        update ojs_store.event_notify_cursor set cursor = page ->> 'cursor';
    end if;
    return n;
end $$;

-- What ojs.events looks for by time. These indexes are no part of the plain installation, since every push and every
-- end of a job would pay for them.
create function ojs.index_events(enabled boolean default true) returns void
language plpgsql volatile parallel unsafe security definer set client_min_messages = warning
    set search_path = pg_catalog, pg_temp as $$
begin
    if enabled then
        create index if not exists job_created on ojs_store.job using brin (created_at)
            with (pages_per_range = 32, autosummarize = on);
        create index if not exists job_history_at on ojs_store.job_history using brin (at)
            with (pages_per_range = 32, autosummarize = on);
        create index if not exists finished_finished_at on ojs_store.finished using brin (finished_at)
            with (pages_per_range = 32, autosummarize = on);
    else
        drop index if exists ojs_store.job_created, ojs_store.job_history_at, ojs_store.finished_finished_at;
    end if;
end $$;
comment on function ojs.index_events(boolean)
    is 'Makes, or drops, the indexes with which ojs.events need not look at every job that is kept';

-- sql/workflow.sql

-- workflow.sql: chains, groups and batches of jobs. The tables are described in sql/tables.sql; how the end of a job
-- gets here is in src/state/members.cpp. These functions run as the owner: who may call them is asked in
-- src/workflow/workflow.cpp.

create function ojs.create_workflow(def jsonb) returns jsonb
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_create_workflow';
comment on function ojs.create_workflow(jsonb)
    is 'Makes a workflow of a chain, a group or a batch, begins it and returns it; nothing is stored unless all of it '
       'is valid';

create function ojs.workflow(id uuid) returns jsonb
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_workflow';
comment on function ojs.workflow(uuid) is 'A workflow as it stands: its state, and that of each step, job and callback';

create function ojs.cancel_workflow(id uuid) returns jsonb
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_cancel_workflow';
comment on function ojs.cancel_workflow(uuid)
    is 'Cancels a workflow that runs: jobs that wait are cancelled, active ones may end, nothing more begins; returns '
       'it';

-- PARTS ------------------------------------------------------------------------------------------------------------

create function ojs_store.new_uuid() returns uuid
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_new_uuid';

-- Has the jobs begin that stand at positions `first` and following, as far as hooks and uniqueness let them.
create function ojs_store.begin_jobs(workflow uuid, root uuid, first int, jobs jsonb, callback text,
    has_parents boolean) returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_begin_jobs';

create function ojs_store.open_inner(id uuid, workflow uuid, "position" int) returns void
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_open_inner';

-- Notes the end of an open member that is no job, or one of which there is no job any more; nothing if it is not open.
create function ojs_store.end_member(id uuid, state text, error jsonb, ended_at timestamptz) returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_end_member';

-- A member that could not begin has failed.
create function ojs_store.end_unbegun(workflow uuid, "position" int, error jsonb) returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_end_unbegun';

-- Whether members are open: 0 none, 1 only such as open transactions are ending, 2 some.
create function ojs_store.members_left(workflow uuid) returns int
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_members_left';

create function ojs_store.cancel_unless_busy(job_id uuid) returns boolean
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_cancel_unless_busy';

-- Not a job that is called so: those have args. The same in src/workflow/definition.cpp.
create function ojs_store.is_workflow(def jsonb) returns boolean
language sql immutable parallel safe
begin atomic
    select coalesce(def ->> 'type' in ('chain', 'group', 'batch'), false) and coalesce(def -> 'args', 'null') = 'null';
end;

create function ojs_store.members_of(def jsonb) returns jsonb
language sql immutable parallel safe
begin atomic
    select def -> case when def ->> 'type' = 'chain' then 'steps' else 'jobs' end;
end;

create function ojs_store.count_jobs(def jsonb) returns int
language plpgsql strict immutable parallel safe set search_path = pg_catalog, pg_temp as $$
begin
    return (select coalesce(sum(case when ojs_store.is_workflow(m) then ojs_store.count_jobs(m) else 1 end), 0)
        from jsonb_array_elements(ojs_store.members_of(def)) m);
end $$;

-- What workflow.* events say of their workflow.
create function ojs_store.tell_workflow(type text, w ojs_store.workflow, data jsonb default '{}') returns void
language sql strict volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_store.record_event('workflow.' || type, w.id::text,
        jsonb_build_object('workflow_id', w.id, 'workflow_name', coalesce(w.name, ''),
        'workflow_type', w.type, 'total_steps', w.members) || data
        || case when w.parent is not null then jsonb_build_object('workflow_root_id', w.root) else '{}' end)
$$;

-- BEGINNING --------------------------------------------------------------------------------------------------------

-- Stores a workflow and begins it: the first step of a chain, all jobs of a group or a batch.
create function ojs_store.begin_workflow(id uuid, def jsonb, root uuid, parent uuid, "position" int,
    has_parents boolean, queues bigint[]) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    members jsonb := ojs_store.members_of(def);
    chain boolean := def ->> 'type' = 'chain';
    w ojs_store.workflow;
begin
    insert into ojs_store.workflow
    values (id, root, parent, position, def ->> 'type', nullif(def ->> 'name', ''), 'running',
        jsonb_array_length(members),
        ojs_store.count_jobs(def), has_parents, queues, ojs_store.now(), null)
    on conflict do nothing returning * into w;
    if not found then
        perform ojs_store.raise('DUPLICATE_JOB', format('a workflow with the id %s exists already', id),
            jsonb_build_object('field', 'id', 'workflow_id', id),
            'Leave the id out, or treat this call as done before.');
    end if;
    insert into ojs_store.workflow_member (workflow, position, type, definition)
    select id, m.n - 1, m.def ->> 'type', case when chain then m.def end
    from jsonb_array_elements(members) with ordinality m (def, n);
    insert into ojs_store.workflow_member (workflow, position, type, callback, definition)
    select id, w.members - 1 + row_number() over (order by c.n), def #>> array['callbacks', c.name, 'type'], c.name,
        def #> array['callbacks', c.name]
    from unnest('{on_complete,on_success,on_failure}'::text[]) with ordinality c (name, n)
    where w.type = 'batch' and def #> array['callbacks', c.name] <> 'null';
    if parent is not null then
        perform ojs_store.open_inner(id, parent, position);
    else
        perform ojs_store.tell_workflow('created', w);
    end if;
    perform ojs_store.tell_workflow('started', w);

    if chain then
        perform ojs_store.begin_member(w, 0, members -> 0, null);
        return;
    end if;
    perform ojs_store.begin_at_once(w, 0, members);
end $$;

-- Jobs in runs of neighbours, up to a thousand at once; then inner workflows.
create function ojs_store.begin_at_once(w ojs_store.workflow, first int, members jsonb) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    part record;
begin
    for part in
        select min(m.n) - 1 as at, jsonb_agg(m.def order by m.n) as jobs
        from (
            select e.n, e.def, e.n - row_number() over (order by e.n) as run
            from jsonb_array_elements(members) with ordinality e (def, n) where not ojs_store.is_workflow(e.def)
        ) m
        group by m.run, m.n / 1000 order by 1
    loop
        perform ojs_store.begin_jobs(w.id, w.root, first + part.at::int, part.jobs, null, w.has_parents);
    end loop;
    for part in
        select e.n - 1 as at, e.def from jsonb_array_elements(members) with ordinality e (def, n)
            where ojs_store.is_workflow(e.def) order by e.n
    loop
        perform ojs_store.begin_member(w, first + part.at::int, part.def, null);
    end loop;
end $$;

-- One step, job or callback of a workflow that runs.
create function ojs_store.begin_member(w ojs_store.workflow, "position" int, def jsonb, callback text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    has_parents boolean := w.has_parents or callback is not null or w.type = 'chain' and position > 0;
begin
    if callback is null and ojs_store.is_workflow(def) then
        perform ojs_store.begin_workflow(ojs_store.new_uuid(), def, w.root, w.id, position, has_parents, '{}');
    else
        perform ojs_store.begin_jobs(w.id, w.root, position, jsonb_build_array(def), callback, has_parents);
    end if;
end $$;

create function ojs_store.create_workflow(id uuid, def jsonb, queues bigint[]) returns void
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_store.begin_workflow(id, def, id, null, null, false, queues)
$$;

-- GOING ON ---------------------------------------------------------------------------------------------------------

-- Has a member begin whose turn has come. What is wrong with the member itself is its failure; what may be better in a
-- while (a full queue, a lock) is an error of this call, which the tick repeats.
create function ojs_store.try_member(w ojs_store.workflow, "position" int, def jsonb, callback text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    perform ojs_store.begin_member(w, position, def, callback);
exception when others then
    if left(sqlstate, 2) in ('08', '25', '40', '53', '55', '57', '58', 'XX')
        or sqlstate in ('OJ304', 'OJ600', 'OJ601', 'OJ604') then
        raise;
    end if;
    perform ojs_store.end_unbegun(w.id, position, jsonb_build_object('code', 'not_begun', 'type', 'not_begun',
        'attempt', 0, 'sqlstate', sqlstate,
        'message', left(sqlerrm, 1000), 'occurred_at', ojs_store.time_text(ojs_store.now())));
end $$;

-- What comes after the members that have all ended: false, the workflow has ended as `outcome`; true, something has
-- begun, or has failed to.
create function ojs_store.next_of(w ojs_store.workflow, out goes_on boolean, out outcome text) returns record
language plpgsql strict volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    done ojs_store.workflow_end;
    member ojs_store.workflow_member;
    failed boolean;
begin
    goes_on := false;
    select * into done from ojs_store.workflow_end e where e.workflow = w.id order by e.position desc limit 1;
    if w.type = 'chain' then
        outcome := case when done.state = 'completed' then 'completed' else 'failed' end;
        if outcome = 'completed' and done.position + 1 < w.members then
            select * into member from ojs_store.workflow_member m where m.workflow = w.id
                and m.position = done.position + 1;
            perform ojs_store.try_member(w, member.position, member.definition, null);
            goes_on := true;
        end if;
        return;
    end if;
    failed := exists (select from ojs_store.workflow_end e where e.workflow = w.id and e.position < w.members
        and e.state <> 'completed');
    outcome := case when failed then 'failed' else 'completed' end;
    if w.type = 'group' then
        return;
    end if;
    outcome := 'completed';
    if done.position >= w.members then
        if exists (select from ojs_store.workflow_end e where e.workflow = w.id and e.position >= w.members
            and e.state <> 'completed') then
            outcome := 'failed';
        end if;
        return;
    end if;
    for member in
        select * from ojs_store.workflow_member m
        where m.workflow = w.id and (m.callback = 'on_complete' or m.callback = case when failed then 'on_failure'
            else 'on_success' end)
        order by m.position
    loop
        goes_on := true;
        perform ojs_store.try_member(w, member.position, member.definition, member.callback);
        perform ojs_store.tell_workflow('callback_fired', w,
            jsonb_build_object('callback', member.callback, 'step_type', member.type));
    end loop;
end $$;

-- Jobs and inner workflows of one that was cancelled: what waits is cancelled too. Waits for nobody: whoever has a job
-- or an inner workflow at the moment may go on with it; true: there are such.
create function ojs_store.cancel_members(id uuid) returns boolean
language plpgsql strict volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    member record;
    inner_one ojs_store.workflow;
begin
    for member in select o.member, o.is_job from ojs_store.workflow_open o where o.workflow = id loop
        if member.is_job then
            perform ojs_store.cancel_unless_busy(member.member);
        else
            select * into inner_one from ojs_store.workflow w where w.id = member.member and w.state = 'running'
                for update skip locked;
            if found then
                perform ojs_store.end_workflow(inner_one, 'cancelled');
            end if;
        end if;
    end loop;
    return ojs_store.members_left(id) > 0;
end $$;

-- Ends a workflow whose row is locked.
create function ojs_store.end_workflow(w ojs_store.workflow, outcome text) returns void
language plpgsql strict volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    at timestamptz := ojs_store.now();
    duration bigint := extract(epoch from at - w.created_at) * 1000;
    failure ojs_store.workflow_end;
begin
    update ojs_store.workflow set state = outcome, ended_at = at where workflow.id = w.id
        and workflow.state = 'running';
    if not found then
        return;
    end if;
    if outcome = 'cancelled' then
        if ojs_store.cancel_members(w.id) then
            insert into ojs_store.workflow_due values (w.id, at, 0, null);
        end if;
    end if;
    if outcome = 'failed' then
        select * into failure from ojs_store.workflow_end e where e.workflow = w.id and e.state <> 'completed'
            order by e.position desc limit 1;
    end if;
    perform ojs_store.tell_workflow(outcome, w, jsonb_strip_nulls(jsonb_build_object('duration_ms', duration,
        'failed_step_id', failure.position::text, 'failed_step_type',
        (select m.type from ojs_store.workflow_member m where m.workflow = w.id and m.position = failure.position),
        'error', ojs_store.error_facts(failure.error))));
    if w.parent is not null then
        perform ojs_store.end_member(w.id, outcome, case when outcome <> 'completed' then
            jsonb_build_object('code', 'workflow_' || outcome, 'type', 'workflow_' || outcome, 'message',
                'the inner workflow ' || outcome, 'attempt', 0) end, at);
    end if;
end $$;

-- Has a workflow go on of which nothing is open, and those that it is part of. Waits for nobody: whoever has the
-- workflow's row at the moment is at it, and a row of workflow_due that was there before is left to the tick. Nor does
-- it wait for room in a queue, or long for a uniqueness key: that would hold up the ack of the member before, and its
-- locks. Each step of a chain leaves dead entries in the index of notes, which an index scan marks, and a bitmap scan
-- passes again and again.
create function ojs_store.advance_workflow(id uuid) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog,
    pg_temp set lock_timeout = '100ms' set ojs.block_timeout = 0 set enable_bitmapscan = off as $$
#variable_conflict use_variable
declare
    w ojs_store.workflow;
    notes tid[];
    left_open int;
    next record;
begin
    while id is not null loop
        select * into w from ojs_store.workflow where workflow.id = id for update skip locked;
        if not found then
            delete from ojs_store.workflow_due d where d.workflow = id
                and not exists (select from ojs_store.workflow where workflow.id = id);
            return;
        end if;
        -- The notes that this look answers: one that is written after it is another's.
        notes := array(select d.ctid from ojs_store.workflow_due d where d.workflow = id for update skip locked);
        left_open := ojs_store.members_left(id);
        if w.state = 'cancelled' and left_open > 0 and cardinality(notes) > 0 then
            if ojs_store.cancel_members(id) then
                update ojs_store.workflow_due d set due_at = ojs_store.now() + interval '5 seconds'
                    where d.ctid = any (notes);
                return;
            end if;
        elsif left_open = 1 then
            return;
        end if;
        delete from ojs_store.workflow_due d where d.ctid = any (notes);
        exit when left_open = 2 or w.state <> 'running';
        next := ojs_store.next_of(w);
        if not next.goes_on then
            perform ojs_store.end_workflow(w, next.outcome);
            id := w.parent;
        end if;
        -- Else it looks again: what began may have failed at once.
    end loop;
end $$;

-- For the tick: advances at most so many workflows that are due, each for itself. Returns the number it has looked at,
-- or 0 if none could go on. In no order: many that wait for open transactions are not in the way of others.
create function ojs_store.advance_due(most int) returns int
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    due uuid;
    n int := 0;
    any_went_on boolean := false;
begin
    for due in
        select d.workflow from ojs_store.workflow_due d where d.due_at <= ojs_store.now() group by 1 order by random()
            limit most
    loop
        n := n + 1;
        begin
            perform ojs_store.advance_workflow(due);
            any_went_on := any_went_on or not exists (select from ojs_store.workflow_due d where d.workflow = due
                and d.due_at <= ojs_store.now());
        exception when others then
            update ojs_store.workflow_due d set failures = d.failures + 1, error = sqlstate,
                due_at = ojs_store.now() + least(power(2, least(d.failures, 10)), 60) * interval '1 second'
            where d.ctid = any (array(select l.ctid from ojs_store.workflow_due l where l.workflow = due
                for update skip locked));
        end;
    end loop;
    return case when any_went_on then n else 0 end;
end $$;

-- Looks for workflows that should have gone on, every few minutes: there should be none. How many there were.
create function ojs_store.check_workflows() returns int
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    n int := 0;
    lost record;
begin
    -- Jobs that have ended, or are gone, and did not say so: somebody has changed tables by hand.
    for lost in
        select o.member, d.state, j.id is null as gone from ojs_store.workflow_open o
        left join ojs_store.finished d on d.job_id = o.member left join ojs_store.job j on j.id = o.member
        where o.is_job and (d.job_id is not null or j.id is null)
    loop
        perform ojs_store.end_member(lost.member, case lost.state when 4 then 'completed'
            when 6 then 'cancelled' else 'failed' end,
            case when lost.state is distinct from 4
                then '{"code": "lost", "type": "lost", "message": "the job ended without its workflow", "attempt": '
                     '0}'::jsonb end,
            ojs_store.now());
        n := n + 1;
    end loop;
    for lost in
        select w.id from ojs_store.workflow w
        where w.state = 'running' and not exists (select from ojs_store.workflow_open o where o.workflow = w.id)
            and not exists (select from ojs_store.workflow_due d where d.workflow = w.id)
    loop
        insert into ojs_store.workflow_due values (lost.id, ojs_store.now(), 0, null);
        n := n + 1;
    end loop;
    if n > 0 then
        raise warning 'ojs has found % members or workflows that were left open, and has them go on', n;
    end if;
    update ojs_store.workflow_check set checked_at = ojs_store.now(), mended = mended + n, error = null,
        running = (select count(*) from ojs_store.workflow w where w.state = 'running');
    if not found then
        insert into ojs_store.workflow_check select ojs_store.now(), count(*), n,
            null from ojs_store.workflow w where w.state = 'running';
    end if;
    return n;
end $$;

-- Removes workflows whose time is over, as finished jobs are removed: completed and cancelled ones after 7 days, failed
-- ones after 30. Removes at most so many rows, and returns their number.
create function ojs_store.prune_workflows(most int) returns int
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    old record;
    n int := 0;
    removed int;
begin
    for old in
        select w.id, w.ended_at from ojs_store.workflow w
        where w.parent is null and w.ended_at <= ojs_store.now() - case when w.state = 'failed' then interval '30 days'
            else interval '7 days' end
            and w.ended_at <= ojs_store.now() - interval '7 days'
            and not exists (select from ojs_store.workflow i join ojs_store.workflow_open o on o.workflow = i.id
                where i.root = w.id)
        order by w.ended_at limit 100 for update skip locked
    loop
        exit when n >= most;
        delete from ojs_store.workflow_end where ctid = any (array(
            select e.ctid from ojs_store.workflow i join ojs_store.workflow_end e on e.workflow = i.id
                where i.root = old.id limit most - n));
        get diagnostics removed = row_count;
        n := n + removed;
        exit when n >= most;
        delete from ojs_store.workflow_member where ctid = any (array(
            select m.ctid from ojs_store.workflow i join ojs_store.workflow_member m on m.workflow = i.id
                where i.root = old.id limit most - n));
        get diagnostics removed = row_count;
        n := n + removed;
        exit when n >= most;
        delete from ojs_store.workflow w where w.root = old.id;
        update ojs_store.retention_cursor s set removed_to = greatest(s.removed_to, old.ended_at)
            where s.what = 'workflow';
        n := n + 1;
    end loop;
    return n;
end $$;

-- The tick's duty. Returns the number of rows it has handled.
create function ojs_store.tend_workflows(most int) returns int
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    n int := 0;
begin
    if exists (select from ojs_store.workflow_due d where d.due_at <= ojs_store.now()) then
        n := ojs_store.advance_due(least(most, 60)); -- each takes a subtransaction
    end if;
    if exists (select from ojs_store.workflow) and not exists (select from ojs_store.workflow_check c
        where c.checked_at between ojs_store.now() - interval '5 minutes' and ojs_store.now()) then
        -- One tick at a time; a row of ours, since anybody can take an advisory lock.
        perform from ojs_store.retention_cursor s where s.what = 'workflow' for update skip locked;
        if found then
            begin
                perform ojs_store.check_workflows();
                n := n + ojs_store.prune_workflows(most);
            exception when others then -- workflows go on all the same
                raise warning 'ojs could not check its workflows: %', sqlerrm;
                update ojs_store.workflow_check set checked_at = ojs_store.now(), error = left(sqlerrm, 1000);
                if not found then
                    insert into ojs_store.workflow_check values (ojs_store.now(), 0, 0, left(sqlerrm, 1000));
                end if;
            end;
        end if;
    end if;
    return n;
end $$;

-- CANCELLING -------------------------------------------------------------------------------------------------------

create function ojs_store.cancel_workflow(id uuid) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    w ojs_store.workflow;
begin
    w := ojs_store.lock_workflow(id);
    if w.state <> 'running' then
        perform ojs_store.raise('WORKFLOW_ENDED', format('workflow %s is already in terminal state ''%s''',
            id, w.state),
            jsonb_build_object('workflow_id', id, 'current_state', w.state),
                'It has ended; there is nothing to cancel.');
    end if;
    perform ojs_store.end_workflow(w, 'cancelled');
end $$;

-- sql/workflow_extend.sql

-- workflow_extend.sql: members that are added to a workflow while it runs.

create function ojs.extend_workflow(id uuid, def jsonb) returns jsonb
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_extend_workflow';
comment on function ojs.extend_workflow(uuid, jsonb)
    is 'Adds steps to a chain, or jobs to a group or a batch, that runs, and returns it; nothing is stored unless all '
       'of it is valid';

-- Whether a batch whose row is locked has got as far as its callbacks, whatever the caller's snapshot.
create function ojs_store.callbacks_begun(workflow uuid, members int) returns boolean
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_callbacks_begun';

-- A workflow that the caller has seen, its row locked.
create function ojs_store.lock_workflow(id uuid) returns ojs_store.workflow
language plpgsql strict volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    w ojs_store.workflow;
begin
    select * into w from ojs_store.workflow f where f.id = lock_workflow.id for update;
    if not found then
        raise exception using errcode = 'serialization_failure',
            message = format('could not serialize access: workflow %s is newer than the transaction''s snapshot', id),
            hint = 'Try the transaction again.';
    end if;
    return w;
end $$;

create function ojs_store.refuse_extension(w ojs_store.workflow, message text) returns void
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_store.raise('WORKFLOW_ENDED', message,
        jsonb_build_object('workflow_id', w.id, 'current_state', w.state),
            'Only a workflow that runs gets more members: make another one of them.')
$$;

-- Locks the rows of the workflow and of those around it, the outermost last. Whoever ends a last member meanwhile
-- leaves what follows to the tick.
create function ojs_store.lock_running(id uuid) returns ojs_store.workflow
language plpgsql strict volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    w ojs_store.workflow;
    around ojs_store.workflow;
begin
    w := ojs_store.lock_workflow(id);
    around := w;
    loop
        if around.state <> 'running' then
            perform ojs_store.refuse_extension(around,
                format('workflow %s is already in terminal state %L', around.id, around.state));
        end if;
        exit when around.parent is null;
        select * into around from ojs_store.workflow f where f.id = around.parent for update;
    end loop;
    return w;
end $$;

-- Adds members at the end of a workflow that runs; of a batch, before its callbacks. `jobs`: how many these are in all;
-- `most`: how many steps, jobs and queues there may be.
create function ojs_store.extend_workflow(id uuid, def jsonb, queues bigint[], jobs int, most int[]) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    w ojs_store.workflow := ojs_store.lock_running(id);
    root ojs_store.workflow;
    members jsonb := ojs_store.members_of(def || jsonb_build_object('type', w.type));
    more int := jsonb_array_length(members);
    all_queues bigint[];
begin
    select * into root from ojs_store.workflow f where f.id = w.root;
    if w.type = 'batch' and ojs_store.callbacks_begun(id, w.members) then
        perform ojs_store.refuse_extension(w, format('the callbacks of workflow %s have begun', id));
    end if;
    select array_agg(distinct q) into all_queues from unnest(root.queues || queues) q;
    if w.type = 'chain' and w.members + more > most[1] or root.jobs + jobs > most[2]
        or cardinality(all_queues) > most[3] then
        perform ojs_store.raise('INVALID_WORKFLOW', 'def would make the workflow too large',
            jsonb_build_object('field', 'def', 'workflow_id', id),
            format('A chain has up to %s steps, a workflow up to %s jobs in %s queues: make another one.', most[1],
                most[2], most[3]));
    end if;
    for place in reverse w.members + 2 .. w.members loop -- callbacks stand behind the members
        update ojs_store.workflow_member m set position = m.position + more
            where m.workflow = id and m.position = place;
    end loop;
    insert into ojs_store.workflow_member (workflow, position, type, definition)
    select id, w.members + m.n - 1, m.def ->> 'type', case when w.type = 'chain' then m.def end
    from jsonb_array_elements(members) with ordinality m (def, n);
    with recursive around as (
        select f.id, f.parent from ojs_store.workflow f where f.id = w.id
        union all
        select f.id, f.parent from around a join ojs_store.workflow f on f.id = a.parent
    )
    update ojs_store.workflow f
    set jobs = f.jobs + ojs_store.count_jobs(def || jsonb_build_object('type', w.type)),
        members = f.members + case when f.id = w.id then more else 0 end,
        queues = case when f.id = w.root then all_queues else f.queues end
    from around a where f.id = a.id;
    perform ojs_store.tell_workflow('extended', w, jsonb_build_object('added', more));
    if w.type <> 'chain' then
        perform ojs_store.begin_at_once(w, w.members, members);
    end if;
end $$;

-- sql/workflow_read.sql

-- workflow_read.sql: what workflows are told of, and what they tell the jobs in them.

create function ojs_store.error_facts(error jsonb) returns jsonb
language sql immutable parallel safe
begin atomic
    select case when error is not null then jsonb_build_object('code', coalesce(error ->> 'code', error ->> 'type'),
        'type', error ->> 'type',
        'message', left(error ->> 'message', 1000)) end;
end;

-- The results of members below a place, in an array, an inner workflow's in an array of their own. As many of the
-- newest as fit into `room` bytes, the first in any case if `one`; the others, and those of members that have none, are
-- null.
create function ojs_store.member_results(id uuid, below int, most int, one boolean, inout room bigint,
    out results jsonb, out truncated boolean) returns record
language plpgsql strict stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    elements jsonb[];
    done record;
    bytes bigint;
    inner_one record;
    n int := 0;
begin
    -- Mostly all are jobs, and there is room for all.
    select count(*), bool_and(e.is_job), sum(octet_length(e.result::text)),
        jsonb_agg(e.result order by e.position) as results
    into done from ojs_store.workflow_end e
    where e.workflow = id and e.position >= below - most and e.position < below;
    if done.count = least(below, most) and done.bool_and and coalesce(done.sum, 0) <= room then
        results := case when below > most
            then to_jsonb(array_fill(null::jsonb, array[below - most])) || done.results else done.results end;
        room := room - coalesce(done.sum, 0);
        truncated := below > most;
        return;
    end if;
    truncated := false;
    elements := array_fill(null::jsonb, array[below]);
    for done in
        select e.position, e.member, e.is_job, e.result, w.members
        from ojs_store.workflow_end e left join ojs_store.workflow w on not e.is_job and w.id = e.member
        where e.workflow = id and e.position < below order by e.position desc limit most
    loop
        n := n + 1;
        if not done.is_job then
            inner_one := ojs_store.member_results(done.member, done.members, done.members, one and n = 1, room);
            elements[done.position + 1] := inner_one.results;
            room := inner_one.room;
            truncated := truncated or inner_one.truncated;
        elsif done.result is not null then
            bytes := octet_length(done.result::text);
            if bytes <= room or one and n = 1 then
                elements[done.position + 1] := done.result;
                room := room - bytes;
            else
                truncated := true;
            end if;
        end if;
    end loop;
    truncated := truncated or below > most;
    results := coalesce(to_jsonb(elements), '[]');
end $$;

-- The members of a workflow that did not end well, and why; the first of them. Inner ones have members of their own.
create function ojs_store.member_errors(id uuid, below int) returns jsonb
language sql strict stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select coalesce(jsonb_agg(case when m.callback is null then jsonb_build_object('index', e.position)
        else jsonb_build_object('callback', m.callback) end
        || jsonb_build_object(case when e.is_job then 'job_id' else 'workflow_id' end, e.member, 'attempt', e.attempt,
            'state', e.state) || coalesce(ojs_store.error_facts(e.error),
            jsonb_build_object('code', e.state, 'message', 'the job was ' || e.state))
        order by e.position), '[]')
    from (
        select * from ojs_store.workflow_end f where f.workflow = id and f.position < below and f.state <> 'completed'
            order by f.position limit 100
    ) e
    left join ojs_store.workflow_member m on m.workflow = e.workflow and m.position = e.position
$$;

-- What a job is told of the members before it, when it is handed out: those of the nearest chain or batch around it.
create function ojs_store.parent_results(job_id uuid) returns jsonb
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    most_bytes constant bigint := 262144;
    w ojs_store.workflow;
    place int;
    found_results record;
begin
    select o.position into place from ojs_store.workflow_open o where o.member = job_id;
    select x.* into w from ojs_store.workflow_open o join ojs_store.workflow x on x.id = o.workflow
        where o.member = job_id;
    if w.id is null then -- one that is tried again by hand
        select x.* into w from ojs_store.job j join ojs_store.workflow x on x.id = (j.options ->> 'workflow_id')::uuid
            where j.id = job_id;
        select e.position into place from ojs_store.workflow_end e where e.workflow = w.id and e.member = job_id;
        if not found then
            return null;
        end if;
    end if;
    while w.id is not null loop
        if place >= w.members then
            found_results := ojs_store.member_results(w.id, w.members, w.members, false, most_bytes);
            return jsonb_build_object('parent_results', found_results.results, 'parent_errors',
                ojs_store.member_errors(w.id, w.members))
                || case when found_results.truncated then '{"parent_results_truncated": true}' else '{}' end::jsonb;
        elsif w.type = 'chain' and place > 0 then
            found_results := ojs_store.member_results(w.id, place, 1000, true, most_bytes);
            return jsonb_build_object('parent_results', found_results.results)
                || case when found_results.truncated then '{"parent_results_truncated": true}' else '{}' end::jsonb;
        end if;
        place := w.position;
        select * into w from ojs_store.workflow x where x.id = w.parent;
    end loop;
    return null;
end $$;

-- How many jobs have ended so, in it and all that is in it; callbacks apart.
create function ojs_store.count_ends(id uuid, out completed bigint, out failed bigint, out started_at timestamptz)
    returns record
language sql strict stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    with recursive tree as (
        select w.id, w.members from ojs_store.workflow w where w.id = count_ends.id
        union all
        select w.id, w.members from tree t
        join (
            select o.workflow, o.member from ojs_store.workflow_open o where not o.is_job
            union all
            select e.workflow, e.member from ojs_store.workflow_end e where not e.is_job
        ) i on i.workflow = t.id join ojs_store.workflow w on w.id = i.member
    )
    select count(*) filter (where e.state = 'completed'), count(*) filter (where e.state <> 'completed'),
        min(e.started_at)
    from tree t join ojs_store.workflow_end e on e.workflow = t.id and e.position < t.members and e.is_job
$$;

-- Steps, jobs or callbacks, each as it stands. Results as far as they fit into 1 MB, the first ones first.
create function ojs_store.workflow_members(w ojs_store.workflow, callbacks boolean) returns jsonb
language sql strict stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
            'index', case when not callbacks then m.position end, 'callback', m.callback, 'type', m.type,
                'state', m.state,
            case when m.is_job then 'job_id' else 'workflow_id' end, m.member,
            'started_at', ojs_store.time_text(m.started_at), 'completed_at', ojs_store.time_text(m.ended_at), 'error',
                ojs_store.error_facts(m.error)))
        || case when m.state = 'waiting' then '{"job_id": null}' else '{}' end::jsonb
        || case when m.result is not null and m.bytes <= 1048576 then jsonb_build_object('result', m.result)
            when m.result is not null then '{"result_omitted": true}' else '{}' end::jsonb
        order by m.position), '[]')
    from (
        select s.position, s.callback, s.type, coalesce(e.member, o.member) as member,
            coalesce(e.is_job, o.is_job, true) as is_job,
            coalesce(l.claimed_at, e.started_at) as started_at, e.ended_at, e.error, e.result,
            sum(octet_length(e.result::text)) over (order by s.position) as bytes,
            case when e.state is not null then e.state
                when o.member is null then case when w.state = 'running' then 'waiting' else 'cancelled' end
                when not o.is_job then case when i.state = 'running' then 'active' else i.state end
                when l.job_id is not null then 'active' else 'pending' end as state
        from ojs_store.workflow_member s
        left join ojs_store.workflow_end e on e.workflow = s.workflow and e.position = s.position
        left join ojs_store.workflow_open o on o.workflow = s.workflow and o.position = s.position
        left join ojs_store.workflow i on not o.is_job and i.id = o.member
        left join lateral (select h.job_id, h.claimed_at from ojs_store.leases_of(o.member) h where o.is_job) l on true
        where s.workflow = w.id and (s.position >= w.members) = callbacks
    ) m
$$;

-- The lease of one job; none on a standby, where the table of leases cannot even be named.
create function ojs_store.leases_of(id uuid, out job_id uuid, out claimed_at timestamptz) returns setof record
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    if id is not null and not pg_is_in_recovery() then
        return query select l.job_id, l.claimed_at from ojs_store.lease l where l.job_id = id;
    end if;
end $$;

create function ojs_store.workflow_json(id uuid) returns jsonb
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    w ojs_store.workflow;
    counted record;
    done bigint;
    word text;
    members jsonb;
    callbacks jsonb;
    errors jsonb;
    started timestamptz;
begin
    select * into w from ojs_store.workflow where workflow.id = id;
    if not found then
        return null;
    end if;
    counted := ojs_store.count_ends(id);
    select count(*) into done from ojs_store.workflow_end e where e.workflow = id and e.position < w.members
        and e.state = 'completed';
    members := ojs_store.workflow_members(w, false);
    errors := ojs_store.member_errors(id, 2147483647);
    word := case when w.type = 'chain' then 'steps' else 'jobs' end;
    select min((m ->> 'started_at')::timestamptz) into started from jsonb_array_elements(members) m
        where m ? 'started_at';
    if w.type = 'batch' then
        callbacks := jsonb_build_object('callbacks',
            (select jsonb_object_agg(c ->> 'callback', c - 'callback')
            from jsonb_array_elements(ojs_store.workflow_members(w, true)) c));
    end if;
    return jsonb_strip_nulls(jsonb_build_object('id', w.id, 'type', w.type, 'name', w.name, 'state', w.state,
            word || '_total', w.members, word || '_completed', done, 'job_count', w.jobs, 'completed_count',
                counted.completed, 'failed_count', counted.failed,
            'created_at', ojs_store.time_text(w.created_at), 'started_at',
                ojs_store.time_text(least(started, counted.started_at)),
            'completed_at', case when w.state <> 'cancelled' then ojs_store.time_text(w.ended_at) end,
            'cancelled_at', case when w.state = 'cancelled' then ojs_store.time_text(w.ended_at) end,
            'parent_workflow_id', w.parent, 'root_workflow_id', case when w.parent is not null then w.root end,
            'metadata', jsonb_build_object('created_at', ojs_store.time_text(w.created_at), 'started_at',
                ojs_store.time_text(least(started, counted.started_at)),
                'completed_at', ojs_store.time_text(w.ended_at), 'cancelled_at',
                    case when w.state = 'cancelled' then ojs_store.time_text(w.ended_at) end,
                'job_count', w.jobs, 'completed_count', counted.completed, 'failed_count', counted.failed)))
        || jsonb_build_object(word, members) || coalesce(callbacks, '{}')
        || case when errors <> '[]' then jsonb_build_object('errors', errors,
            'failed_job_ids', (select coalesce(jsonb_agg(e -> 'job_id'), '[]') from jsonb_array_elements(errors) e
                where e ? 'job_id'))
            || case when w.type = 'chain' then jsonb_build_object('failed_step_index', errors #> '{0,index}') else '{}'
                end else '{}' end;
end $$;

create view ojs.workflows as
select
    ojs_store.if_allowed(w.id, readable) as id, ojs_store.if_allowed(w.name, readable) as name,
    ojs_store.if_allowed(w.type, readable) as type, ojs_store.if_allowed(w.state, readable) as state,
    ojs_store.if_allowed(w.parent, readable) as parent_id, ojs_store.if_allowed(w.root, readable) as root_id,
    ojs_store.if_allowed(w.members, readable) as members, ojs_store.if_allowed(done.completed, readable) as completed,
    ojs_store.if_allowed(done.failed, readable) as failed, ojs_store.if_allowed(w.jobs, readable) as job_count,
    ojs_store.if_allowed(w.created_at, readable) as created_at, ojs_store.if_allowed(w.ended_at, readable) as ended_at
from ojs_store.workflow w
cross join lateral (select ojs_store.may_read_workflow(w.root) as readable) rights
cross join lateral (
    select count(*) filter (where e.state = 'completed') as completed,
        count(*) filter (where e.state <> 'completed') as failed
    from ojs_store.workflow_end e where e.workflow = w.id and e.position < w.members
) done
where ojs_store.if_allowed(w.id, readable) = w.id;
comment on view ojs.workflows
    is 'Workflows, inner ones too: their state, and how many of their members have completed or failed';

-- sql/results.sql

-- results.sql: what jobs have led to.

-- Returns the ids as they are; raises PERMISSION_DENIED for a job in a queue that is not for the caller.
-- Run with the caller's rights.
create function ojs_store.readable(job_ids uuid[]) returns uuid[]
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_readable';

create function ojs_store.results(job_ids uuid[], out id uuid, out state text, out result jsonb) returns setof record
language sql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select asked.id, job.state, job.result
    from unnest(job_ids) with ordinality as asked(id, n) left join lateral ojs_store.look(asked.id) job on true
    order by asked.n
$$;

-- The caller needs no right on schema ojs_store: the names in this body were looked up when it was made.
create function ojs.results(job_ids uuid[], out id uuid, out state text, out result jsonb) returns setof record
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp
begin atomic
    select r.id, r.state, r.result from ojs_store.results(ojs_store.readable(job_ids)) r;
end;
comment on function ojs.results(uuid[])
    is 'State and result of several jobs, in the order asked for; the state is null where there is no such job';

-- Looks, in growing intervals up to 100 ms, each time with a snapshot of its own; holds no row.
create function ojs_store.wait_result(job_id uuid, timeout interval) returns ojs.job
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    longest constant interval := '30 seconds';
    until_s double precision := ojs_store.steady_s() + extract(epoch
        from greatest(least(coalesce(timeout, longest), longest), '0'));
    pause double precision := 0.005;
    job ojs.job;
begin
    loop
        job := ojs_store.look(job_id);
        if job.id is null then
            perform ojs_store.raise('NOT_FOUND', format('job %s does not exist', coalesce(job_id::text, 'null')),
                jsonb_build_object('resource_type', 'job', 'resource_id', job_id, 'job_id', job_id),
                'Check the id; finished jobs are removed after their retention.');
        end if;
        if job.state in ('completed', 'cancelled', 'discarded') then
            return job;
        end if;
        if ojs_store.steady_s() >= until_s then
            return null;
        end if;
        perform ojs_store.rest(least(pause, until_s - ojs_store.steady_s()));
        pause := least(pause * 2, 0.1);
    end loop;
end $$;

create function ojs.wait_result(job_id uuid, timeout interval) returns ojs.job
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp
begin atomic
    select ojs_store.wait_result((ojs_store.readable(array[job_id]))[1], timeout);
end;
comment on function ojs.wait_result(uuid, interval)
    is 'Waits until a job has ended, at most 30 seconds; null if it has not by then';

-- sql/lineage.sql

-- lineage.sql: which job has pushed which (HIS-02). A job that names its parent has a row in ojs_store.job_parent
-- (src/state/lineage.cpp). Nobody looks whether that parent exists, so it may be gone, or name a descendant: who goes
-- up or down meets no job twice.

-- The jobs below one, level by level, as the spec nests them: [{job_id, type, children}]. `truncated`: there are more.
create function ojs_store.descendants(job_id uuid, out children jsonb, out truncated boolean) returns record
language plpgsql stable parallel unsafe security definer set enable_seqscan = off set enable_bitmapscan = off
set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    most_jobs constant int := 1000;
    most_levels constant int := 20;
    most_looked_at constant int := 10 * most_jobs;
    looked_at int := 0;
    front uuid[] := array[job_id];      -- the level that was found last
    ids uuid[] := '{}';                 -- of all levels, one after the other
    parents uuid[] := '{}';
    types text[] := '{}';
    ends int[] := '{0}';                -- where the levels end
    level record;
    below jsonb := '{}';                -- what is below each job of a level, by its id
begin
    truncated := false;
    loop
        -- A job has one parent, so the only one that could come again is that from which it went down. What the caller
        -- may not read is passed over, and bounded too: so nobody hides the children of others behind a few of his own.
        select count(*) as looked_at, array_agg(c.job_id order by c.n) filter (where j.id is not null) as ids,
            array_agg(c.parent order by c.n) filter (where j.id is not null) as parents,
            array_agg(j.type order by c.n) filter (where j.id is not null) as types
        into level
        from (
            select p.job_id, p.parent, row_number() over () as n
            from unnest(front) as f(id)
            cross join lateral (
                select p.job_id, p.parent from ojs_store.job_parent p where p.parent = f.id
                order by p.job_id limit most_looked_at
            ) p
            limit most_looked_at - looked_at
        ) c
        left join ojs_store.job j on j.id = c.job_id and c.job_id <> job_id
            and ojs_store.may_use_queue(j.queue, 'read');
        exit when level.looked_at = 0;
        if cardinality(ends) > most_levels then
            truncated := true;
            exit;
        end if;
        looked_at := looked_at + level.looked_at;
        truncated := truncated or looked_at = most_looked_at
            or cardinality(ids) + coalesce(cardinality(level.ids), 0) > most_jobs;
        front := level.ids[:most_jobs - cardinality(ids)];
        exit when cardinality(front) > 0 is not true;
        ids := ids || front;
        parents := parents || level.parents[:cardinality(front)];
        types := types || level.types[:cardinality(front)];
        ends := ends || cardinality(ids);
    end loop;
    for i in reverse cardinality(ends) .. 2 loop
        select jsonb_object_agg(n.parent, n.jobs) into below
        from (
            select c.parent, jsonb_agg(jsonb_build_object('job_id', c.id, 'type', c.type,
                'children', coalesce(below -> c.id::text, '[]')) order by c.id) as jobs
            from unnest(ids[ends[i - 1] + 1:ends[i]], parents[ends[i - 1] + 1:ends[i]],
                types[ends[i - 1] + 1:ends[i]]) as c(id, parent, type)
            group by c.parent
        ) n;
    end loop;
    children := coalesce(below -> job_id::text, '[]');
end $$;

-- The jobs above one, the nearest first, as far as they are there and the caller may read them; and the farthest one
-- that is named.
create function ojs_store.ancestors(job_id uuid, out ancestors jsonb, out farthest uuid, out truncated boolean)
    returns record
language plpgsql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    most_jobs constant int := 100;
    met uuid[] := array[job_id];
    type text;
    next uuid := job_id;
begin
    ancestors := '[]';
    truncated := false;
    loop
        next := (select p.parent from ojs_store.job_parent p where p.job_id = next limit 1);
        exit when next is null or next = any (met);
        if cardinality(met) > most_jobs then
            truncated := true;
            farthest := null;
            exit;
        end if;
        farthest := next;
        select j.type into type from ojs_store.job j
            where j.id = next and ojs_store.may_use_queue(j.queue, 'read');
        exit when not found;
        ancestors := ancestors || jsonb_build_object('job_id', next, 'type', type);
        met := met || next;
    end loop;
end $$;

create function ojs_store.lineage(job_id uuid) returns jsonb
language plpgsql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    options jsonb;
    above record;
    below record;
begin
    select coalesce(j.options, '{}') into options from ojs_store.job j
        where j.id = job_id and ojs_store.may_use_queue(j.queue, 'read');
    if not found then
        perform ojs_store.raise('NOT_FOUND', format('job %s does not exist', coalesce(job_id::text, 'null')),
            jsonb_build_object('resource_type', 'job', 'resource_id', job_id, 'job_id', job_id),
            'Check the id; finished jobs are removed after their retention.');
    end if;
    above := ojs_store.ancestors(job_id);
    below := ojs_store.descendants(job_id);
    return jsonb_build_object('job_id', job_id, 'parent_id', options -> 'parent_id',
        'workflow_id', options -> 'workflow_id', 'root_id', coalesce(options ->> 'root_id', above.farthest::text),
        'ancestors', above.ancestors, 'children', below.children, 'truncated', above.truncated or below.truncated);
end $$;

-- The caller needs no right on schema ojs_store: the names in this body were looked up when it was made.
create function ojs.lineage(job_id uuid) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp
begin atomic
    select ojs_store.lineage((ojs_store.readable(array[job_id]))[1]);
end;
comment on function ojs.lineage(uuid)
    is 'Which jobs have led to a job, and which it has led to, by the parents that jobs name';

-- sql/once.sql

-- once.sql: side effects that must not be repeated.

-- Waits for an open transaction that has stored the same token, and answers by how that ends.
create function ojs.once(token text, scope text default '') returns boolean
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    if coalesce(token, '') = '' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'token must not be empty', '{"field": "token"}',
            'Give what must not be done twice a name, such as the job''s id.');
    end if;
    if octet_length(token) + octet_length(coalesce(scope, '')) > 1024 then
        perform ojs_store.raise('INVALID_PAYLOAD', 'token and scope are longer than 1024 bytes', '{"field": "token"}',
            'Give a hash of the token instead.');
    end if;
    insert into ojs_store.once_token (scope, token, at)
        values (coalesce(ojs_store.caller_tenant() || e'\t', '') || coalesce(scope, ''), token, ojs_store.now())
        on conflict do nothing;
    return found;
end $$;
comment on function ojs.once(text, text)
    is 'True for one transaction only of all that commit with this token and scope; remembered for 30 days';

-- sql/lists.sql

-- lists.sql: pages of jobs. The tables of jobs have an index by job id, and ids grow with time: a list is read from the
-- end of such an index, and ojs_store.look() is asked only for what is returned. `ready` has no such index: where it is
-- large, the newest of all jobs are looked at first.

-- The ids of the jobs that a filter describes, in its order. Keys, all optional: queue, state, type (a * at its end
-- stands for whatever follows), since and until (of the push), dead_letters (true: those; since and until are then of
-- the end), error_type, args (contained in the job's), sort (created_at, scheduled_at, priority, none), ascending,
-- beyond (the id after which the list goes on). The text of the query is put together from what stands here alone.
create function ojs_store.listed_ids(filter jsonb, most int, skip bigint default 0) returns setof uuid
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    state text := filter ->> 'state';
    of_dead boolean := filter @> '{"dead_letters": true}';
    sort text := coalesce(filter ->> 'sort', 'created_at');
    way text := case when filter @> '{"ascending": true}' then 'asc' else 'desc' end;
    source text;
    newest text;
    conditions text[] := '{"ojs_store.may_use_queue(p.queue, ''read'')"}';
    query text;
    page uuid[];
begin
    if of_dead then
        source := 'select job_id, queue, null::smallint as npriority, died_at, error_type from ojs_store.dead_letter';
    elsif pg_is_in_recovery() then
        source := 'select id as job_id, ojs_store.queue_id(queue) as queue, -priority as npriority from ojs.jobs'
            || case when state is null then '' else ' where state = $1 ->> ''state''' end;
    elsif state is null and filter ->> 'queue' is null and sort <> 'priority' then
        source := 'select id as job_id, queue from ojs_store.job';
    else
        perform from ojs_store.queue_rows('{}'); -- builds the hot set where it is not
        if sort = 'created_at' and coalesce(state, 'available') = 'available' and most + skip <= 1000
            and pg_relation_size('ojs_store.ready') > 1000000 then
            newest := format('select job_id, queue from (select id as job_id, queue from ojs_store.job %s '
                'order by id %s limit 500 + 2 * ($2 + $3)) n %s',
                case when filter ->> 'beyond' is not null then format('where id %s ($1 ->> ''beyond'')::uuid',
                    case way when 'asc' then '>' else '<' end) end,
                way, case when state is not null then 'where (ojs_store.look(n.job_id)).state = ''available''' end);
        end if;
        select string_agg('select job_id, queue, ' || piece, ' union all ') into source
        from (values
            ('available', 'npriority from ojs_store.ready'),
            ('available', 'npriority from ojs_store.delayed where kind in (4, 6) '
                'or kind <> 5 and due_at <= ojs_store.now()'),
            ('active', 'npriority from ojs_store.lease'),
            ('scheduled', 'npriority from ojs_store.delayed where kind = 1 and due_at > '
                'ojs_store.now()'),
            ('retryable', 'npriority from ojs_store.delayed where kind = 2 and due_at > '
                'ojs_store.now()'),
            ('pending', 'npriority from ojs_store.delayed where kind = 3 and due_at > '
                'ojs_store.now()'),
            ('completed', 'null::smallint from ojs_store.finished where state = 4'),
            ('cancelled', 'null::smallint from ojs_store.finished where state = 6'),
            ('discarded', 'null::smallint from ojs_store.finished where state = 7')) as places(of_state,
                piece)
        where of_state = coalesce(state, of_state);
    end if;
    perform ojs_store.use_queue(filter ->> 'queue', 'read');
    if source is null then
        return; -- there is no such state
    end if;
    if filter ->> 'queue' is not null then
        conditions := conditions || 'p.queue = ojs_store.queue_id($1 ->> ''queue'')'::text;
    end if;
    if filter ->> 'type' is not null then
        conditions := conditions || case when filter ->> 'type' like '%*'
            then 'starts_with(e.type, left($1 ->> ''type'', -1))'
            else 'e.type = $1 ->> ''type''' end;
    end if;
    if filter ->> 'since' is not null then
        conditions := conditions || format('%s >= ($1 ->> ''since'')::timestamptz',
            case when of_dead then 'p.died_at' else 'e.created_at' end);
    end if;
    if filter ->> 'until' is not null then
        conditions := conditions || format('%s <= ($1 ->> ''until'')::timestamptz',
            case when of_dead then 'p.died_at' else 'e.created_at' end);
    end if;
    if filter ->> 'error_type' is not null then
        conditions := conditions || (case when of_dead then 'p.error_type'
            else '(select d.error ->> ''type'' from ojs_store.finished d where d.job_id = p.job_id)' end
            || ' = $1 ->> ''error_type''');
    end if;
    if filter -> 'args' is not null then
        conditions := conditions || 'e.args @> ($1 -> ''args'')'::text;
    end if;
    if filter ->> 'beyond' is not null then
        conditions := conditions || format('p.job_id %s ($1 ->> ''beyond'')::uuid',
            case way when 'asc' then '>' else '<' end);
    end if;
    query := format(' p%s where %s%s limit $2 offset $3',
        case when array_to_string(conditions, ' ') ~ e'\\me\\.' or sort in ('scheduled_at', 'priority')
            then ' join ojs_store.job e on e.id = p.job_id' else '' end,
        array_to_string(conditions, ' and '),
        case sort when 'created_at' then format(' order by p.job_id %s', way)
            when 'scheduled_at' then format(' order by e.scheduled_at %s nulls last, p.job_id %1$s', way)
            when 'priority' then format(' order by coalesce(-p.npriority, e.priority) %s, p.job_id %1$s', way)
            else '' end);
    if newest is not null then
        execute format('select array(select p.job_id from (%s)%s)', newest, query) into page using filter, most, skip;
        if cardinality(page) = most then
            return query select unnest(page);
            return;
        end if;
    end if;
    return query execute format('select p.job_id from (%s)%s', source, query) using filter, most, skip;
end $$;

-- How many dead letters this queue has, or each that the caller may read and that has some: from the counters, or by
-- counting.
create function ojs_store.dead_letters_of(only_id bigint, out queue bigint, out n bigint) returns setof record
language plpgsql stable parallel unsafe rows 10 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    counted boolean := false;
    ids bigint[];
begin
    with recursive of (queue) as (
        (select l.queue from ojs_store.dead_letter l order by l.queue limit 1)
        union all
        select (select l.queue from ojs_store.dead_letter l where l.queue > of.queue order by l.queue limit 1)
        from of where of.queue is not null
    )
    select array_agg(of.queue) into ids from of
    where of.queue = coalesce(only_id, of.queue) and ojs_store.may_use_queue(of.queue, 'read');
    if not pg_is_in_recovery() then
        return query select c.queue, c.dead_letters from ojs_store.counted_apart(ids, true) c where c.dead_letters > 0;
        counted := found;
    end if;
    if not counted then
        return query select l.queue, count(*) from ojs_store.dead_letter l where l.queue = any (ids) group by 1;
    end if;
end $$;

-- How many jobs such a filter describes: from the counters where queue and state say it all. Where only looking at the
-- jobs would tell, no more than 10,001 are counted.
create function ojs_store.count_listed(filter jsonb) returns bigint
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    if filter ?| '{type,since,until,error_type,args}' or pg_is_in_recovery() then
        return (select count(*) from ojs_store.listed_ids(filter || '{"sort": "none"}', 10001));
    end if;
    if filter @> '{"dead_letters": true}' then
        return (select coalesce(sum(d.n), 0) from ojs_store.dead_letters_of(ojs_store.queue_id(filter ->> 'queue')) d);
    end if;
    return (
        select coalesce(sum(case
            when filter ? 'state' then (to_jsonb(c) ->> (filter ->> 'state'))::bigint
            else c.available + c.active + c.scheduled + c.retryable + c.pending + c.completed + c.cancelled
                + c.discarded end), 0)
        from ojs_store.queue_counts(array( -- also those that were dropped
            select distinct q.id from ojs_store.queue q where q.name = coalesce(filter ->> 'queue', q.name)
            and ojs_store.may_use_queue(q.id, 'read'))) c);
end $$;

create function ojs.list_jobs(
    queue text default null, state text default null, type text default null, after text default null,
        max int default 100
) returns setof ojs.job
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    most_bytes constant bigint := 16 * 1024 * 1024;
    bytes bigint := 0;
    id uuid;
    job ojs.job;
begin
    if state <> all ('{available,scheduled,retryable,pending,active,completed,cancelled,discarded}') then
        perform ojs_store.raise('INVALID_PAYLOAD', 'state is none of the states of a job', '{"field": "state"}',
            'Give available, scheduled, retryable, pending, active, completed, cancelled, discarded, or null for all.');
    elsif max is null or max not between 1 and 1000 then
        perform ojs_store.raise('INVALID_PAYLOAD', 'max must be from 1 to 1000', '{"field": "max"}',
            'Read further pages with after.');
    elsif after !~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'after is not the id of a job', '{"field": "after"}',
            'Give the id of the last job of the page before, or null for the first page.');
    elsif queue is not null then
        perform ojs_store.queue_found(queue);
    end if;
    for id in
        select * from ojs_store.listed_ids(jsonb_strip_nulls(jsonb_build_object('queue', queue, 'state', state, 'type',
            type, 'beyond', after)), max)
    loop
        job := ojs_store.look(id);
        continue when job.id is null or job.state <> state; -- removed or gone on meanwhile
        return next job;
        bytes := bytes + pg_column_size(job);
        exit when bytes > most_bytes;
    end loop;
end $$;
comment on function ojs.list_jobs(text, text, text, text, int) is 'A page of jobs, newest first, each as it stands';

-- sql/bulk.sql

-- bulk.sql: cancel, retry or delete many jobs, by id or by what they are; and what the dead letters are.

-- A filter that can be carried out, or an error that says what is wrong with it.
create function ojs_store.check_filter(filter jsonb, confirm boolean) returns void
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    wrong text;
begin
    if filter is null or jsonb_typeof(filter) <> 'object' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'filter must be an object', '{"field": "filter"}',
            'Give {"ids": [...]}, or some of queue, type, state, error_type, priority, meta, since, until.');
    end if;
    select k into wrong from jsonb_object_keys(filter) k
    where k not in ('ids', 'queue', 'type', 'state', 'error_type', 'priority', 'meta', 'since', 'until',
        'dead_letter') limit 1;
    if found then
        perform ojs_store.raise('INVALID_PAYLOAD', format('filter cannot hold "%s"', left(wrong, 64)),
            '{"field": "filter"}',
            'Filter by ids, or by queue, type, state, error_type, priority, meta, since, until and dead_letter.');
    end if;
    if filter ? 'ids' and filter - 'ids' <> '{}' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'filter holds ids and more', '{"field": "filter"}',
            'Name jobs by their ids, or by what they are, not both.');
    end if;
    if filter ? 'ids' and (jsonb_typeof(filter -> 'ids') <> 'array' or exists (
        select from jsonb_array_elements(filter -> 'ids') as a(id)
        where jsonb_typeof(id) <> 'string' or id #>> '{}' !~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$')) then
        perform ojs_store.raise('INVALID_PAYLOAD', 'filter.ids must be an array of job ids', '{"field": "filter"}',
            'Give ids as ojs.push returned them.');
    end if;
    if filter ? 'ids' and jsonb_array_length(filter -> 'ids') > current_setting('ojs.max_batch_size')::int then
        perform ojs_store.raise('BATCH_SIZE_EXCEEDED',
            format('a call may name %s jobs, not %s', current_setting('ojs.max_batch_size'),
            jsonb_array_length(filter -> 'ids')),
            jsonb_build_object('field', 'filter', 'size', jsonb_array_length(filter -> 'ids'), 'maximum',
                current_setting('ojs.max_batch_size')::int), 'Split the call.');
    end if;
    select key into wrong from jsonb_each(filter) e
    where key in ('queue', 'type', 'error_type', 'since', 'until') and jsonb_typeof(value) <> 'string'
        or key = 'dead_letter' and jsonb_typeof(value) <> 'boolean' or key = 'meta' and jsonb_typeof(value) <> 'object'
        or key = 'priority' and (jsonb_typeof(value) <> 'number' or value::numeric <> trunc(value::numeric))
            or key = 'state' and jsonb_typeof(value) not in ('string', 'array')
    limit 1;
    if found then
        perform ojs_store.raise('INVALID_PAYLOAD', format('filter.%s has the wrong type', wrong), '{"field": "filter"}',
            'Texts for queue, type, error_type, since and until; a text or an array for state; a boolean for '
            'dead_letter; a whole number for priority; an object for meta.');
    end if;
    select s into wrong from unnest(ojs_store.states_of(filter, '{}')) s
    where s is null or s not in ('available', 'scheduled', 'retryable', 'pending', 'active', 'completed', 'cancelled',
        'discarded') limit 1;
    if found then
        perform ojs_store.raise('INVALID_PAYLOAD', format('filter.state holds "%s", which is no state',
            left(wrong, 64)), '{"field": "filter"}',
            'Name states such as available, scheduled, retryable, discarded.');
    end if;
    perform ojs_store.time_value(value #>> '{}', 'filter.' || key) from jsonb_each(filter)
        where key in ('since', 'until');
    if not filter ? 'ids' and confirm is not true then
        perform ojs_store.raise('INVALID_PAYLOAD', 'confirm must be true where filter does not name jobs by ids',
            '{"field": "confirm"}', 'Call it with confirm => true.');
    end if;
end $$;

-- The states that a filter asks for, or those given.
create function ojs_store.states_of(filter jsonb, otherwise text[]) returns text[]
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select case jsonb_typeof(filter -> 'state') when 'string' then array[filter ->> 'state']
        when 'array' then array(select jsonb_array_elements_text(filter -> 'state')) else otherwise end
$$;

-- A time with its zone, as a push reads it.
create function ojs_store.time_value(given text, field text) returns timestamptz
language c stable strict parallel restricted as 'MODULE_PATHNAME', 'ojs_time_value';

-- Whether a job is what a filter describes; `at`: its end, or its creation if it has not ended.
-- Called for each job: without SET, so that it can be part of the query.
create function ojs_store.fits(filter jsonb, type text, priority int, meta jsonb, error jsonb, at timestamptz)
    returns boolean
language sql stable parallel safe
begin atomic
    select (not filter ? 'type' or case when filter ->> 'type' like '%*'
        then starts_with(type, left(filter ->> 'type', -1))
            else type = filter ->> 'type' end)
        and (not filter ? 'error_type' or error ->> 'type' is not distinct from filter ->> 'error_type')
        and (not filter ? 'priority' or priority = (filter -> 'priority')::numeric)
        and (not filter ? 'meta' or coalesce(meta, '{}') @> (filter -> 'meta'))
        and at between coalesce(ojs_store.time_value(filter ->> 'since', 'since'), '-infinity')
            and coalesce(ojs_store.time_value(filter ->> 'until', 'until'), 'infinity');
end;

-- At most `most` jobs in these states that a filter describes, by id; those that come first where there are more, the
-- active ones last: so that who takes many by little reads no more each time than it takes. For finished jobs since and
-- until speak of their end, for others of their creation. Numbers as in ojs_store.queue_counts().
create function ojs_store.described(filter jsonb, states text[], most int) returns setof uuid
language plpgsql stable parallel unsafe set plan_cache_mode = force_custom_plan
set enable_hashjoin = off set enable_mergejoin = off -- which read all jobs before they find the first
set search_path = pg_catalog, pg_temp as $$
declare
    due timestamptz := ojs_store.promoted_to();
    queue_id bigint := ojs_store.queue_id(filter ->> 'queue');
begin
    return query
    with place as (
        select r.job_id, r.queue, 'available' as state, null::timestamptz as ended, null::jsonb as error,
            false as dead_letter
        from ojs_store.ready r where 'available' = any (states)
        union all
        select l.job_id, l.queue, case
            when l.kind in (4, 6) or l.due_at <= due then 'available'
            when l.kind = 1 then 'scheduled'
            when l.kind = 2 then 'retryable' else 'pending' end, null,
            case when filter ? 'error_type' then (select e.data from ojs_store.job_history e where e.job_id = l.job_id
                and e.kind in (1, 3)
                order by e.deliveries desc, e.at desc limit 1) end, false
        from ojs_store.delayed l where l.kind <> 5
            and states && '{available,scheduled,retryable,pending}'
        union all
        select l.job_id, l.queue, 'active', null, null, false from ojs_store.lease l where 'active' = any (states)
        union all
        select d.job_id, d.queue, case d.state when 4 then 'completed' when 6
            then 'cancelled' else 'discarded' end, d.finished_at,
            d.error, d.flags & 1 <> 0
        from ojs_store.finished d where states && '{completed,cancelled,discarded}'
    )
    select fit.job_id
    from (
        select place.job_id
        from place join ojs_store.job on job.id = place.job_id
        where place.state = any (states)
            and (queue_id is null or place.queue = queue_id)
            and (ojs_store.may_use_queue(place.queue, 'administer') or ojs_store.may_use_queue(place.queue, 'cancel'))
            and (not filter ? 'dead_letter' or place.dead_letter = (filter -> 'dead_letter')::boolean)
            and ojs_store.fits(filter, job.type, job.priority, job.meta, place.error,
                coalesce(place.ended, job.created_at))
        limit most
    ) fit
    order by fit.job_id;
end $$;

-- Cancels a job if it is in one of these states: bits by their numbers in rows.h. Looked at once the job is locked, so
-- a job that was claimed meanwhile stays with its worker.
create function ojs_store.cancel_in(job_id uuid, states int) returns boolean
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_cancel_in';

-- Locks a job if it is in one of these states. Returns false if another transaction has locked it and `wait` is false.
create function ojs_store.hold(job_id uuid, states int, wait boolean) returns boolean
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_hold';

-- As ojs.delete_job, but leaves no event, and returns false for a job that has not ended.
create function ojs_store.delete_finished(job_id uuid) returns boolean
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_delete_finished';

create function ojs_store.state_bits(states text[]) returns int
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select coalesce(bit_or(1
        << (array_position('{scheduled,available,pending,active,completed,retryable,cancelled,discarded}'::text[],
        s) - 1)), 0)
    from unnest(states) s
$$;

/*
 * Carries out one operation on each job in turn, in the order of ids: so two calls do not deadlock. What cannot be done
 * to a job is a reason to pass it over, not to fail. The state is judged by what carries it out, which has locked the
 * job. For jobs that other transactions have locked it waits two seconds in all: while it waits, it holds those that it
 * had before.
 */
create function ojs_store.do_many(operation text, filter jsonb, confirm boolean, states text[], eligible text[])
    returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp set lock_timeout = '2s' as $$
#variable_conflict use_variable
declare
    most int;
    ids uuid[];
    more boolean := false;
    id uuid;
    n bigint;
    state text;
    code text;
    reason text;
    message text;
    detail text;
    twin jsonb;
    done boolean;
    bits int := ojs_store.state_bits(eligible);
    right_name text := case operation when 'cancel' then 'cancel' else 'administer' end;
    waited_s double precision := 0;
    since_s double precision;
    items jsonb[];
    succeeded int := 0;
begin
    perform ojs_store.now(); -- loads the library, and with it its settings
    perform ojs_store.refuse_read_only(format('ojs.%s_many()', operation));
    perform ojs_store.check_filter(filter, confirm);
    -- At once what it will take: who reads first and asks for more later can meet REINDEX in a deadlock.
    lock table ojs_store.job, ojs_store.job_history, ojs_store.finished, ojs_store.ready, ojs_store.lease,
        ojs_store.delayed, ojs_store.progress in row exclusive mode;
    most := current_setting('ojs.max_batch_size')::int;
    if filter ? 'ids' then
        ids := array(select a.id::uuid from jsonb_array_elements_text(filter -> 'ids') with ordinality as a(id, n)
            order by a.n);
    else
        perform ojs_store.use_queue(filter ->> 'queue', right_name);
        ids := array(select ojs_store.described(filter, states, most + 1));
        more := cardinality(ids) > most;
        ids := ids[:most];
    end if;
    for id, n in select a.id, a.n from unnest(ids) with ordinality as a(id, n) order by a.id, a.n loop
        code := null;
        twin := '{}';
        done := false;
        if not ojs_store.may_use_job(id, right_name) then
            code := 'PERMISSION_DENIED';
            reason := 'the queue of the job is not for this role';
        elsif not ojs_store.hold(id, bits, false) then
            since_s := ojs_store.steady_s();
            begin
                perform set_config('lock_timeout', (greatest(2000 - waited_s * 1000, 1)::int)::text, true);
                perform ojs_store.hold(id, bits, true);
                perform set_config('lock_timeout', '2s', true);
            exception when lock_not_available then
                code := 'UNAVAILABLE';
                reason := 'another transaction has locked the job';
            end;
            waited_s := waited_s + ojs_store.steady_s() - since_s;
        end if;
        if code is null and operation = 'cancel' then
            done := ojs_store.cancel_in(id, bits);
        end if;
        state := case when code is null and not done then (ojs_store.look(id)).state end;
        if done or code is not null then
            null;
        elsif state is null then
            code := 'NOT_FOUND';
            reason := 'there is no such job';
        elsif operation = 'cancel' or state <> all (eligible) then
            code := 'INVALID_STATE_TRANSITION';
            reason := format('the job is %s', state);
        elsif operation = 'delete' then
            if not ojs_store.delete_finished(id) then
                code := 'INVALID_STATE_TRANSITION';
                reason := 'the job has changed meanwhile';
            end if;
        else
            begin
                -- An open job with the same uniqueness key does not stop it, and is named (INT-09).
                select jsonb_strip_nulls(jsonb_build_object('existing_job_id', r.extra -> 'existing_job_id',
                    'existing_job_state', r.extra -> 'existing_job_state')) into twin
                from ojs.retry(id) r;
            exception when others then
                get stacked diagnostics message = message_text, detail = pg_exception_detail;
                if left(sqlstate, 2) <> 'OJ' then
                    raise;
                end if;
                code := detail::jsonb ->> 'code';
                reason := message;
            end;
        end if;
        items[n] := jsonb_build_object('index', n - 1, 'job_id', id, 'status', case when code is not null then 'skipped'
            when operation = 'cancel' then 'cancelled' when operation = 'retry' then 'retried' else 'deleted' end)
            || case when code is not null then jsonb_build_object('code', code, 'reason', reason) else twin end;
        succeeded := succeeded + (code is null)::int;
    end loop;
    perform ojs_store.record_audit(format('jobs_%s', case operation when 'cancel' then 'cancelled' when 'retry'
        then 'retried' else 'deleted' end),
        operation, null, null, jsonb_build_object('filter', filter - '{args,ids}'::text[], 'matched', cardinality(ids),
            'succeeded', succeeded));
    perform ojs_store.record_event(format('bulk.%s.completed', operation), operation,
        jsonb_build_object('total', cardinality(ids),
        case operation when 'cancel' then 'cancelled' when 'retry' then 'retried' else 'deleted' end, succeeded,
        'skipped', cardinality(ids) - succeeded, 'by', session_user));
    return jsonb_build_object('matched', cardinality(ids), 'succeeded', succeeded, 'failed',
        cardinality(ids) - succeeded, 'more', more,
        'items', to_jsonb(coalesce(items, '{}')));
end $$;

create function ojs.cancel_many(filter jsonb, confirm boolean default false) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    -- What somebody is working on is left alone, unless it is named or asked for.
    return ojs_store.do_many('cancel', filter, confirm,
        ojs_store.states_of(filter, '{available,scheduled,retryable,pending,active}'),
        case when filter ? 'ids' then '{available,scheduled,retryable,pending,active}'::text[]
            else ojs_store.states_of(filter, '{available,scheduled,retryable,pending}') end);
end $$;
comment on function ojs.cancel_many(jsonb, boolean)
    is 'Cancels open jobs, named by ids or described; a running one only where it is named or asked for by state';

create function ojs.retry_many(filter jsonb, confirm boolean default false) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    return ojs_store.do_many('retry', filter, confirm, ojs_store.states_of(filter, '{discarded,retryable}'),
        '{discarded,retryable}');
end $$;
comment on function ojs.retry_many(jsonb, boolean)
    is 'Makes discarded and retryable jobs, named by ids or described, available again';

create function ojs.delete_many(filter jsonb, confirm boolean default false) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    return ojs_store.do_many('delete', filter, confirm, ojs_store.states_of(filter, '{completed,cancelled,discarded}'),
        '{completed,cancelled,discarded}');
end $$;
comment on function ojs.delete_many(jsonb, boolean) is 'Removes finished jobs, named by ids or described';

create function ojs.dead_letter_stats(queue text default null) returns jsonb
language plpgsql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    only_id bigint := ojs_store.queue_id(ojs_store.use_queue(dead_letter_stats.queue, 'read'));
    ids bigint[]; -- those that have some; queues that were dropped among them
    stats jsonb;
begin
    select array_agg(d.queue), jsonb_build_object('total', coalesce(sum(d.n), 0),
        'by_queue', coalesce(jsonb_object_agg((select q.name from ojs_store.queue q where q.id = d.queue limit 1), d.n),
            '{}'),
        'oldest_at', ojs_store.time_text(min((select min(l.died_at) from ojs_store.dead_letter l
            where l.queue = d.queue))),
        'newest_at', ojs_store.time_text(max((select max(l.died_at) from ojs_store.dead_letter l
            where l.queue = d.queue))))
    into ids, stats
    from ojs_store.dead_letters_of(only_id) d;
    return stats || jsonb_build_object('by_error_type', coalesce((select jsonb_object_agg(e.error_type, e.n)
        from (select coalesce(l.error_type, 'unknown') as error_type, count(*) as n from ojs_store.dead_letter l
            where l.queue = any (ids) group by 1) e), '{}'));
end $$;
comment on function ojs.dead_letter_stats(text)
    is 'How many dead letters there are, of which queues and errors, and how old';

-- sql/replay.sql

-- replay.sql: dead letters that a rule of their queue tries again. C++: src/upkeep/replay.cpp, src/admin/job_admin.cpp.

-- How often a job has come back from its end; whatever a producer has written in its place counts as never.
create function ojs_store.replay_count(meta jsonb) returns int
language sql immutable parallel safe
begin atomic
    select case when jsonb_typeof(meta -> 'ojs.replay_count') = 'number'
        then greatest(least((meta -> 'ojs.replay_count')::numeric, 1000000000), 0)::int else 0 end;
end;

create function ojs_store.replay(job_id uuid, rule text) returns ojs.job
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_replay';

-- For the tick: retries the dead letters of a queue that died in this time and that a rule means, at most `most`.
-- Returns their number. Whoever is at a job has its row of `finished` and is not waited for. A job that may be
-- delivered only once stays what it is.
create function ojs_store.replay_by_rule(
    queue_id bigint, rule text, filter jsonb, died_after timestamptz, died_before timestamptz, max_replays int, most int
) returns int
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    id uuid;
    n int := 0;
begin
    for id in
        select l.job_id
        from ojs_store.dead_letter l
        join ojs_store.finished d on d.job_id = l.job_id
        join ojs_store.job j on j.id = l.job_id
        where l.queue = queue_id and l.died_at > died_after and l.died_at <= died_before
            and j.flags & 2 = 0
            and ojs_store.replay_count(j.meta) < max_replays
            and ojs_store.fits(filter, j.type, j.priority, j.meta, d.error, d.finished_at)
        order by l.died_at
        limit most
        for update of d skip locked
    loop
        perform ojs_store.replay(id, rule);
        perform ojs_store.record_event('dead_letter.replayed', id::text,
            jsonb_build_object('job_id', id, 'job_type', j.type,
            'queue', (select q.name from ojs_store.queue q where q.id = queue_id order by q.revised_at desc limit 1),
            'rule', rule, 'replay_count', ojs_store.replay_count(j.meta)))
        from ojs_store.job j where j.id = id;
        n := n + 1;
    end loop;
    return n;
end $$;

-- sql/audit.sql

-- audit.sql: what administrators have done, and who, from where. Workers and producers write nothing here.

-- A value that is stored beside others has a bound.
create function ojs_store.bounded(value jsonb) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select case when octet_length(value::text) > 16384
        then jsonb_build_object('truncated', true, 'bytes', octet_length(value::text))
        else value end
$$;

-- In the caller's transaction: what is rolled back was not done.
create function ojs_store.record_audit(act text, subject text, before jsonb, after jsonb, detail jsonb) returns void
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    insert into ojs_store.audit (id, at, act, subject, session_role, role, address, application, before, after, detail)
    values (gen_random_uuid(), ojs_store.now(), left(act, 64), left(subject, 512), session_user,
        ojs_store.calling_role(), inet_client_addr(),
        left(current_setting('application_name'), 255), ojs_store.bounded(before), ojs_store.bounded(after),
            ojs_store.bounded(detail))
$$;

create view ojs.audit with (security_barrier) as
select a.at, a.act, a.subject, a.session_role, a.role, a.address, a.application, a.before, a.after, a.detail, a.id
from ojs_store.audit a
cross join lateral (select coalesce(a.detail ->> 'queue', a.detail #>> '{filter,queue}') as name offset 0) queue
where queue.name is null and ojs_store.caller_tenant() is null
    or ojs_store.may_use_queue(queue.name, 'administer')
    or ojs_store.may_use_queue(queue.name, 'read');
comment on view ojs.audit
    is 'What administrators have done: when, who, from where, and what was before and after; for ojs_admin';

-- sql/hooks.sql

-- hooks.sql: functions of one's own in the way of a push, a claim, or the end of an attempt. C++: src/job/hooks.cpp.

create function ojs_store.add_hook(name text, point text, function regprocedure, place text, other text, role name)
    returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    found_function record;
    at int;
begin
    if name is null or name !~ '^[A-Za-z0-9_.-]{1,64}$' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'name must have 1 to 64 letters, digits, _, - and dots',
            '{"field": "name"}', 'Give the hook a name of its own.');
    end if;
    if point is null or point not in ('enqueue', 'before_execute', 'after_execute') then
        perform ojs_store.raise('INVALID_PAYLOAD', 'point must be enqueue, before_execute or after_execute',
            '{"field": "point"}', 'Say when the hook runs.');
    end if;
    select n.nspname as in_schema, p.proname, p.prokind, p.proretset, p.pronargs, p.proargtypes[0] as takes,
        p.prorettype, pg_get_userbyid(p.proowner) as owner, has_function_privilege(role, p.oid, 'execute') as allowed
    into found_function from pg_proc p join pg_namespace n on n.oid = p.pronamespace where p.oid = function;
    if not found then
        perform ojs_store.raise('INVALID_PAYLOAD', 'function must be an existing function', '{"field": "function"}',
            'Name it as in ''public.add_trace(jsonb)''.');
    end if;
    if found_function.prokind <> 'f' or found_function.proretset or found_function.pronargs <> 1
        or found_function.takes <> 'jsonb'::regtype
        or not (found_function.prorettype = 'jsonb'::regtype
            or (point = 'after_execute' and found_function.prorettype = 'void'::regtype))
    then
        perform ojs_store.raise('INVALID_PAYLOAD', format('function must take one jsonb and return jsonb%s',
            case when point = 'after_execute' then ' or void' else '' end),
            '{"field": "function"}', 'Declare it as in create function add_trace(job jsonb) returns jsonb.');
    end if;
    if found_function.in_schema ~ '^pg_(toast_)?temp_' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'function must not be temporary', '{"field": "function"}',
            'Create it in a schema that stays.');
    end if;
    if not found_function.allowed then
        perform ojs_store.raise('PERMISSION_DENIED', format('role "%s" may not execute the function', role),
            '{"field": "function"}', 'Hooks run as the role that registers them: grant it EXECUTE.');
    end if;
    lock table ojs_store.hook in share row exclusive mode;
    if exists (select from ojs_store.hook h where h.name = add_hook.name) then
        perform ojs_store.raise('INVALID_PAYLOAD', format('name is taken: there is a hook "%s"', name),
            '{"field": "name"}', 'Remove that one first with ojs.unregister_hook(name).');
    end if;
    select case coalesce(place, 'last')
        when 'first' then coalesce(min(h.position), 1)
        when 'last' then coalesce(max(h.position), 0) + 1
        when 'before' then max(h.position) filter (where h.name = other)
        when 'after' then max(h.position) filter (where h.name = other) + 1
    end into at from ojs_store.hook h where h.point = add_hook.point;
    if place not in ('first', 'last', 'before', 'after') then
        perform ojs_store.raise('INVALID_PAYLOAD', 'place must be first, last, before or after', '{"field": "place"}',
            'Leave it out to run last.');
    end if;
    if (other is not null) <> (coalesce(place, 'last') in ('before', 'after')) then
        perform ojs_store.raise('INVALID_PAYLOAD', 'other belongs to the places before and after',
            '{"field": "other"}', 'Name the hook that this one stands beside.');
    end if;
    if at is null then
        perform ojs_store.raise('NOT_FOUND', format('other names no %s hook: "%s"', point, left(other, 64)),
            jsonb_build_object('field', 'other', 'hook', left(other, 64)), 'Look at the view ojs.hooks.');
    end if;
    update ojs_store.hook h set position = h.position + 1 where h.point = add_hook.point and h.position >= at;
    insert into ojs_store.hook (name, point, position, function_schema, function_name, role, registered_at,
        function_owner)
    values (name, point, at, found_function.in_schema, found_function.proname, role, ojs_store.now(),
        found_function.owner);
    delete from ojs_store.hook_failure f where f.hook = name;
    perform ojs_store.record_act('hook_registered', name,
        jsonb_build_object('hook', name, 'point', point, 'function', function::text, 'role', role));
end $$;

create function ojs.register_hook(name text, point text, function regprocedure, place text default 'last',
    other text default null)
returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_register_hook';
comment on function ojs.register_hook(text, text, regprocedure, text, text)
    is 'Has a function called at each enqueue, before_execute or after_execute; it runs as the role that registers it';

create function ojs.unregister_hook(name text) returns boolean
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    delete from ojs_store.hook h where h.name = unregister_hook.name;
    if not found then
        return false;
    end if;
    delete from ojs_store.hook_failure f where f.hook = unregister_hook.name;
    perform ojs_store.record_act('hook_removed', name, jsonb_build_object('hook', name));
    return true;
end $$;
comment on function ojs.unregister_hook(text) is 'Removes a hook; false if there was none of that name';

create view ojs.hooks as
select h.name, h.point, row_number() over (partition by h.point order by h.position) as position,
    format('%I.%I(jsonb)', h.function_schema, h.function_name) as function, h.role, h.registered_at,
    coalesce(f.failures, 0) as failures, f.last_failed_at, f.last_error
from ojs_store.hook h
left join lateral (
    select sum(failures) as failures, max(failed_at) as last_failed_at,
        (array_agg(error order by failed_at desc))[1] as last_error
    from ojs_store.hook_failure where hook = h.name
    having count(*) > 0
) f on true
order by array_position(array['enqueue', 'before_execute', 'after_execute'], h.point), h.position;
comment on view ojs.hooks
    is 'Hooks in the order of their chains, with how often each execution hook has failed and the SQLSTATE of the last '
       'time';

-- sql/pools.sql

-- pools.sql: sets of queues that claims name, with how they are shared out (FS-02). C++: src/queue/pool.cpp,
-- src/claim/shares.cpp.

-- The weights of queues by a strategy, checked; null where they are served strictly one after the other.
create function ojs_store.weights_by(strategy text, weights jsonb, queues text[]) returns int[]
language c stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_weights_by';

-- What the claims of each pool, and the workers on its queues, hold now; nothing on a standby.
create function ojs_store.pool_use(out pool text, out places_taken bigint, out active_workers bigint,
    out active_jobs bigint) returns setof record
language plpgsql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    if pg_is_in_recovery() then
        return;
    end if;
    return query
        with held as materialized (
            select l.queue, l.worker, count(*) as jobs from ojs_store.lease l group by 1, 2
        ), of_pool as (
            select p.name, held.worker, held.jobs
            from ojs_store.pool p, unnest(p.queues) q join held on held.queue = ojs_store.queue_id(q)
            union all
            select w.info ->> 'pool', w.name, 0 from ojs_store.worker w where w.info ? 'pool' and w.died_at is null
        )
        select p.name,
            ojs_store.slots_taken(ojs_store.name_hash('pool:' || p.name)),
            count(distinct o.worker), coalesce(sum(o.jobs), 0)::bigint
        from ojs_store.pool p left join of_pool o on o.name = p.name
        group by p.name;
end $$;

create view ojs.pools with (security_barrier) as
select p.name, p.strategy, p.queues,
    case when p.strategy = 'weighted' then (
        select jsonb_object_agg(w.queue, w.weight) from unnest(p.queues, p.weights) w (queue, weight)) end as weights,
    p.concurrency, u.places_taken, u.active_workers, u.active_jobs, p.changed_at
from ojs_store.pool p left join ojs_store.pool_use() u on u.pool = p.name
where not exists (select from unnest(p.queues) q where not ojs_store.may_use_queue(q, 'read'));
comment on view ojs.pools
    is 'Sets of queues that ojs.claim_pool takes, how they are shared out, and what of them is being worked on';

create function ojs_store.pool_json(p ojs_store.pool) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_strip_nulls(jsonb_build_object('name', p.name, 'queues', p.queues, 'strategy', p.strategy,
        'weights', case when p.strategy = 'weighted' then (
            select jsonb_object_agg(w.queue, w.weight) from unnest(p.queues, p.weights) w (queue, weight)) end,
        'concurrency', p.concurrency))
$$;

-- A pool as it is asked for, checked.
create function ojs_store.wanted_pool(name text, config jsonb) returns ojs_store.pool
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    wanted ojs_store.pool;
    bad text;
    listed jsonb := config -> 'queues';
    weights jsonb := nullif(config -> 'weights', 'null');
begin
    if name is null or name !~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$' then
        perform ojs_store.raise('INVALID_PAYLOAD',
            'name must have 1 to 128 letters, digits, dots, _ and -, and begin with a letter or digit',
            '{"field": "name"}', 'Give the pool a name such as critical-workers.');
    elsif jsonb_typeof(config) is distinct from 'object' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'config must be an object', '{"field": "config"}',
            'Give an object such as {"queues": ["critical", "default"], "strategy": "round-robin"}.');
    end if;
    if coalesce(config -> 'isolated', 'false') not in ('false', 'null') then
        perform ojs_store.raise('UNSUPPORTED_FEATURE', 'isolated pools are not supported', '{"field": "isolated"}',
            'Keep others from a queue with its setting workers, a list of roles.');
    elsif coalesce(config #> '{starvation_prevention,enabled}', 'false') not in ('false', 'null') then
        perform ojs_store.raise('UNSUPPORTED_FEATURE', 'starvation_prevention is not supported',
            '{"field": "starvation_prevention"}', 'Use the strategy weighted: it starves no queue.');
    end if;
    select key into bad from jsonb_object_keys(config) key
    where key not in ('name', 'queues', 'strategy', 'weights', 'concurrency', 'isolated', 'starvation_prevention')
    limit 1;
    if found then
        perform ojs_store.raise('INVALID_PAYLOAD', format('%s is no setting of a pool', left(bad, 64)),
            jsonb_build_object('field', left(bad, 64)), 'It takes queues, strategy, weights and concurrency.');
    end if;
    wanted.name := name;
    wanted.strategy := replace(coalesce(config ->> 'strategy', 'round-robin'), '_', '-');
    -- {"critical": {"weight": 70}} says both. It has no order.
    if jsonb_typeof(listed) = 'object' and wanted.strategy <> 'strict' then
        select q.key into bad from jsonb_each(listed) q
        where case jsonb_typeof(q.value) when 'object' then q.value - 'weight' <> '{}' else true end limit 1;
        if found then
            perform ojs_store.raise('INVALID_PAYLOAD',
                format('queues.%s must be an object with a weight or nothing', left(bad, 64)),
                '{"field": "queues"}', 'Give {"critical": {"weight": 70}, "default": {}}, or an array of names.');
        end if;
        weights := coalesce(weights, (select jsonb_object_agg(q.key, q.value -> 'weight')
            from jsonb_each(listed) q where q.value -> 'weight' is not null));
        listed := (select jsonb_agg(q.key order by q.key) from jsonb_each(listed) q);
    end if;
    if jsonb_typeof(listed) is distinct from 'array' or jsonb_array_length(listed) not between 1 and 1000
        or jsonb_path_exists(listed, 'strict $[*] ? (@.type() != "string")') then
        perform ojs_store.raise('INVALID_PAYLOAD', 'queues must be an array of 1 to 1000 names', '{"field": "queues"}',
            'Name the queues of the pool, in their order.');
    end if;
    wanted.queues := array(select q.name from jsonb_array_elements_text(listed) with ordinality q (name, at)
        group by q.name order by min(q.at));
    select q into bad from unnest(wanted.queues) q where q !~ '^[a-z0-9][a-z0-9.-]{0,127}$' limit 1;
    if found then
        perform ojs_store.raise('INVALID_QUEUE', format('queues holds "%s", which is no name of a queue',
            left(bad, 64)), '{"field": "queues"}', 'Name queues by a-z, 0-9, "-" and ".".');
    end if;
    wanted.weights := ojs_store.weights_by(wanted.strategy, weights, wanted.queues);
    if coalesce(config -> 'concurrency', 'null') <> 'null' then
        if config ->> 'concurrency' !~ '^[0-9]{1,9}$' then
            perform ojs_store.raise('INVALID_PAYLOAD', 'concurrency must be a whole number below 1000000000',
                '{"field": "concurrency"}', 'Say how many jobs of the pool may be held at once.');
        end if;
        wanted.concurrency := (config ->> 'concurrency')::int;
    end if;
    return wanted;
end $$;

create function ojs.set_pool(name text, config jsonb) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    wanted ojs_store.pool := ojs_store.wanted_pool(name, config);
    before ojs_store.pool;
begin
    perform ojs_store.lock_setting('ojs_store.pool', name);
    select * into before from ojs_store.pool p where p.name = set_pool.name;
    perform ojs_store.use_queue(q, 'administer') from unnest(before.queues || wanted.queues) q;
    if before.name is null and (select count(*) from ojs_store.pool) >= 1000 then
        perform ojs_store.raise('UNAVAILABLE', 'there are 1000 pools already', '{"field": "name"}',
            'Drop pools that nobody claims from.');
    end if;
    -- Applications call this at each start: nothing to write.
    if ojs_store.pool_json(before) = ojs_store.pool_json(wanted) then
        return ojs_store.pool_json(wanted);
    end if;
    insert into ojs_store.pool as p (name, queues, weights, concurrency, strategy, changed_at)
    values (wanted.name, wanted.queues, wanted.weights, wanted.concurrency, wanted.strategy, ojs_store.now())
    on conflict on constraint pool_pkey do update set queues = excluded.queues, weights = excluded.weights,
        concurrency = excluded.concurrency, strategy = excluded.strategy, changed_at = excluded.changed_at;
    perform ojs_store.record_act('pool_set', wanted.name, jsonb_build_object('pool', wanted.name),
        case when before.name is not null then ojs_store.pool_json(before) end, ojs_store.pool_json(wanted));
    if before.strategy is not null then
        perform ojs_store.record_event('scheduling.rebalanced', wanted.name, jsonb_build_object('pool', wanted.name,
            'previous_strategy', before.strategy, 'new_strategy', wanted.strategy));
    end if;
    -- Who waits for the queues that were in it looks at what is in it now.
    perform ojs_store.wake(q.name) from (select distinct q.name from ojs.queues q
        where q.name = any (before.queues || wanted.queues) and q.state <> 'paused') q;
    return ojs_store.pool_json(wanted);
end $$;
comment on function ojs.set_pool(text, jsonb)
    is 'Makes a pool or changes it: a set of queues, how claims of it are shared out, and how many of its jobs may be '
       'held at once';

create function ojs.drop_pool(name text) returns boolean
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    before ojs_store.pool;
begin
    perform ojs_store.lock_setting('ojs_store.pool', name);
    select * into before from ojs_store.pool p where p.name = drop_pool.name;
    if before.name is null then
        return false;
    end if;
    perform ojs_store.use_queue(q, 'administer') from unnest(before.queues) q;
    delete from ojs_store.pool p where p.name = drop_pool.name;
    perform ojs_store.record_act('pool_dropped', name, jsonb_build_object('pool', name),
        ojs_store.pool_json(before));
    return true;
end $$;
comment on function ojs.drop_pool(text)
    is 'Removes a pool, not its queues and their jobs; false if there was none of that name';

-- Since when the jobs that are held are; none on a standby.
create function ojs_store.held_since(out queue bigint, out started_at timestamptz) returns setof record
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if not pg_is_in_recovery() then
        return query select l.queue, l.claimed_at from ojs_store.lease l;
    end if;
end $$;

-- What was handed out in the last minute, of each of these queues, and is held. Where nothing is shared, by what rows
-- are kept.
create function ojs_store.last_minute(
    ids bigint[], out queue bigint, out starts bigint, out avg_wait_ms float8, out active bigint
) returns setof record
language plpgsql stable parallel unsafe rows 10 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    since timestamptz := ojs_store.now() - interval '1 minute';
begin
    if ojs_store.metrics_kept() and not pg_is_in_recovery() then
        return query
            select m.queue, m.starts, m.avg_wait_ms, r.active
            from ojs_store.shared_minute(ids) m join ojs_store.queue_rows(ids) r on r.queue = m.queue;
        return;
    end if;
    return query
        with running as materialized (
            select * from ojs_store.held_since()
        ), started as (
            select d.queue from ojs_store.finished d where d.finished_at > since and d.started_at > since
            union all
            select r.queue from running r where r.started_at > since
            union all
            select j.queue from ojs_store.job_history e join ojs_store.job j on j.id = e.job_id
            where e.kind in (1, 2, 3) and e.started_at > since
        ), counted as (
            select s.queue, count(*) as n from started s group by 1
        ), waits as (
            select s.queue, (avg(s.waited_us) / 1000)::float8 as ms from ojs_store.first_starts(since, ids) s group by 1
        ), held as (
            select r.queue, count(*) as n from running r group by 1
        )
        select q.id, coalesce(c.n, 0), w.ms, coalesce(h.n, 0)
        from unnest(ids) q (id)
        left join counted c on c.queue = q.id
        left join waits w on w.queue = q.id
        left join held h on h.queue = q.id;
end $$;

create function ojs.scheduling_stats(
    out queue text, out dispatch_count_1m bigint, out dispatch_ratio_1m numeric, out avg_wait_ms numeric,
    out active_jobs bigint
) returns setof record
language plpgsql stable parallel unsafe security definer rows 10 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    names text[] := array(select q.name from ojs.queues q);
    ids bigint[] := array(select ojs_store.queue_id(n) from unnest(names) n);
begin
    return query
        select ojs_store.shown_queue(q.name), m.starts,
            case when m.starts is not null then round(coalesce(m.starts / nullif(sum(m.starts) over (), 0), 0), 4) end,
            round(m.avg_wait_ms::numeric, 3), m.active
        from unnest(names, ids) q (name, id) join ojs_store.last_minute(ids) m on m.queue = q.id
        order by q.name;
end $$;
comment on function ojs.scheduling_stats()
    is 'How the jobs that were handed out in the last minute were shared among the queues';

-- sql/tenant_settings.sql

-- tenant_settings.sql: limits and weights of tenants, and what they do (MT-04). C++: src/queue/tenant_settings.cpp,
-- src/push/tenant_room.cpp.

-- Sessions hear of it, whoever changes the rows: a restore does so, too. What a queue is follows from them.
create function ojs_store.tenant_changed() returns trigger
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.changed('ojs_store.tenant'), ojs_store.changed('ojs_store.queue');
    return null;
end $$;
create trigger changed after insert or update or delete or truncate on ojs_store.tenant
    for each statement execute function ojs_store.tenant_changed();
alter table ojs_store.tenant enable always trigger changed;

create function ojs_store.check_tenant(tenant text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if current_setting('ojs.tenancy') = 'off' then
        perform ojs_store.raise('UNSUPPORTED_FEATURE', 'there are no tenants: ojs.tenancy is off',
            '{"field": "tenant"}', 'Set ojs.tenancy to optional or required for the database first.');
    elsif tenant is null or not ojs_store.is_tenant(tenant) then
        perform ojs_store.raise('INVALID_PAYLOAD', 'tenant is no tenant', '{"field": "tenant"}',
            'Give 1 to 63 letters, digits, dots, underscores, colons or hyphens, the first a letter or a digit.');
    end if;
end $$;

-- A whole number of a tenant's settings, or null to lift it.
create function ojs_store.tenant_number(config jsonb, field text, lowest int, highest int) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    value jsonb := config -> field;
begin
    if value = 'null' or (jsonb_typeof(value) = 'number' and value::text ~ '^[0-9]{1,10}$'
        and value::bigint between lowest and highest) then
        return value;
    end if;
    perform ojs_store.raise('INVALID_PAYLOAD',
        format('%s must be a whole number from %s to %s', field, lowest, highest),
        jsonb_build_object('field', field), 'Give a whole number, or null for none.');
end $$;

-- What is given of a tenant's settings, checked, each at the top: {"max_concurrency": 20, "fairness_weight": 10}.
create function ojs_store.given_tenant(tenant text, config jsonb) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    flat jsonb;
    bad text;
begin
    if jsonb_typeof(config) is distinct from 'object'
        or jsonb_typeof(coalesce(config -> 'limits', '{}')) <> 'object' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'config and its limits must be objects', '{"field": "config"}',
            'Give an object such as {"limits": {"max_concurrency": 20}, "fairness_weight": 10}.');
    end if;
    flat := config - 'limits' || coalesce(config -> 'limits', '{}');
    if coalesce(flat -> 'tenant_id', to_jsonb(tenant)) <> to_jsonb(tenant) then
        perform ojs_store.raise('INVALID_PAYLOAD', 'tenant_id is another tenant', '{"field": "tenant_id"}',
            'Leave it out.');
    elsif coalesce(flat -> 'priority_boost', '0') not in ('0', 'null') then
        perform ojs_store.raise('UNSUPPORTED_FEATURE', 'priority_boost is not supported',
            '{"field": "priority_boost"}', 'Give the tenant a fairness_weight.');
    end if;
    flat := flat - '{tenant_id,priority_boost}'::text[];
    select key into bad from jsonb_object_keys(flat) key where key not in ('max_concurrency', 'max_queue_depth',
        'max_scheduled', 'max_enqueue_rate', 'fairness_weight') limit 1;
    if found then
        perform ojs_store.raise('INVALID_PAYLOAD', format('%s is no setting of a tenant', left(bad, 64)),
            jsonb_build_object('field', left(bad, 64)), 'It takes limits (max_concurrency, max_queue_depth, '
            'max_scheduled, max_enqueue_rate) and fairness_weight.');
    end if;
    perform ojs_store.tenant_number(flat, field, f.lowest, 1000000000) from (values ('max_concurrency', 0),
        ('max_queue_depth', 0), ('max_scheduled', 0)) f (field, lowest) where flat ? field;
    perform ojs_store.tenant_number(flat, 'fairness_weight', 1, 1000000) where flat ? 'fairness_weight';
    if coalesce(flat -> 'max_enqueue_rate', 'null') <> 'null' then
        if jsonb_typeof(flat -> 'max_enqueue_rate') <> 'object' then
            perform ojs_store.raise('INVALID_PAYLOAD', 'max_enqueue_rate must be an object',
                '{"field": "max_enqueue_rate"}', 'Give an object such as {"limit": 1000, "period": "PT1M"}.');
        end if;
        select key into bad from jsonb_object_keys(flat -> 'max_enqueue_rate') key
            where key not in ('limit', 'period') limit 1;
        if found then
            perform ojs_store.raise('INVALID_PAYLOAD', format('max_enqueue_rate has no member %s', left(bad, 64)),
                '{"field": "max_enqueue_rate"}', 'It takes limit and period.');
        end if;
        perform ojs_store.tenant_number(flat -> 'max_enqueue_rate', 'limit', 0, 1000000000)
            where flat -> 'max_enqueue_rate' ? 'limit';
        perform ojs_store.check_limit(tenant, flat -> 'max_enqueue_rate');
        perform ojs_store.limit_numbers(flat -> 'max_enqueue_rate', null);
        if flat #> '{max_enqueue_rate,limit}' is null then
            perform ojs_store.raise('INVALID_PAYLOAD', 'max_enqueue_rate names no limit',
                '{"field": "max_enqueue_rate"}', 'Give an object such as {"limit": 1000, "period": "PT1M"}.');
        end if;
    end if;
    return flat;
end $$;

create function ojs_store.tenant_json(tenant text) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('tenant_id', tenant_json.tenant, 'limits', coalesce(t.config, '{}') - 'fairness_weight',
        'fairness_weight', coalesce(t.config -> 'fairness_weight', '1'))
    from (select) one left join ojs_store.tenant t on t.name = tenant_json.tenant
$$;

create function ojs.set_tenant(tenant text, config jsonb, reason text default null) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    given jsonb;
    before jsonb;
    wanted jsonb;
begin
    perform ojs_store.refuse_tenant('ojs.set_tenant()');
    perform ojs_store.check_tenant(tenant);
    given := ojs_store.given_tenant(tenant, config);
    if octet_length(reason) > 1000 then
        perform ojs_store.raise('INVALID_PAYLOAD', 'reason is longer than 1000 bytes', '{"field": "reason"}',
            'Shorten it.');
    end if;
    perform ojs_store.lock_setting('ojs_store.tenant', tenant);
    select t.config into before from ojs_store.tenant t where t.name = tenant;
    wanted := jsonb_strip_nulls(coalesce(before, '{}') || given);
    if before is null and (select count(*) from ojs_store.tenant) >= 100000 then
        perform ojs_store.raise('UNAVAILABLE', 'settings of 100000 tenants are kept already', '{"field": "tenant"}',
            'Drop those of tenants that are gone.');
    end if;
    -- Applications call this at each start: nothing to write.
    if before = wanted then
        return ojs_store.tenant_json(tenant);
    end if;
    insert into ojs_store.tenant as t (name, config, changed_at) values (tenant, wanted, ojs_store.now())
    on conflict on constraint tenant_pkey do update set config = excluded.config, changed_at = excluded.changed_at;
    perform ojs_store.record_act('tenant_set', tenant, jsonb_strip_nulls(jsonb_build_object('tenant_id', tenant,
        'reason', reason)), before, wanted);
    if before is null then
        perform ojs_store.record_event('tenant.created', tenant, jsonb_build_object('tenant_id', tenant));
    end if;
    -- Who waits for jobs that may start now looks again.
    perform ojs_store.wake(q.name) from ojs.queues q
        where q.state = 'active' and split_part(q.name, '@', 2) = tenant;
    return ojs_store.tenant_json(tenant);
end $$;
comment on function ojs.set_tenant(text, jsonb, text) is 'Sets limits of a tenant, over all of its queues, and its '
    'weight; what is not named stays as it is, and null lifts a limit';

-- Tells those who wait for a queue or its tenants' parts that these have work again.
create function ojs_store.wake_parts(queue text) returns void
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp
begin atomic
    select ojs_store.wake(q.name) from ojs.queues q
    where q.state <> 'paused' and (q.name = queue or starts_with(q.name, queue || '@'));
end;

create function ojs.drop_tenant(tenant text) returns boolean
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    before jsonb;
begin
    perform ojs_store.refuse_tenant('ojs.drop_tenant()');
    perform ojs_store.lock_setting('ojs_store.tenant', tenant);
    delete from ojs_store.tenant t where t.name = tenant returning t.config into before;
    if before is null then
        return false;
    end if;
    perform ojs_store.record_act('tenant_dropped', tenant, jsonb_build_object('tenant_id', tenant), before);
    return true;
end $$;
comment on function ojs.drop_tenant(text)
    is 'Takes back what was set for a tenant, not its jobs nor its bindings; false if nothing was set';

-- Who there is: tenants with settings, with roles, or with a queue that the caller may read.
create view ojs.tenants with (security_barrier) as
select n.name as tenant, (t.config ->> 'max_concurrency')::int as max_concurrency,
    (t.config ->> 'max_queue_depth')::int as max_queue_depth, (t.config ->> 'max_scheduled')::int as max_scheduled,
    t.config -> 'max_enqueue_rate' as max_enqueue_rate,
    coalesce((t.config ->> 'fairness_weight')::int, 1) as fairness_weight, t.changed_at
from (
    select s.name from ojs_store.tenant s union select r.tenant from ojs_store.tenant_role r
    union select split_part(q.name, '@', 2) collate "C" from ojs.queues q where q.name like '%@%'
) n left join ojs_store.tenant t on t.name = n.name
where ojs_store.may_see_tenant(n.name);
comment on view ojs.tenants is 'Tenants, and what is set for them';

create function ojs.tenant_stats(
    tenant text default null,
    out tenant_id text, out queues bigint, out waiting bigint, out available bigint, out active bigint,
    out scheduled bigint, out retryable bigint, out pending bigint, out completed_24h bigint, out failed_24h bigint,
    out enqueued_last_hour bigint, out processed_last_hour bigint, out fairness_weight int,
    out effective_share numeric, out actual_share numeric
) returns setof record
language plpgsql stable parallel unsafe security definer rows 10 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    day timestamptz := ojs_store.now() - interval '24 hours';
    hour timestamptz := ojs_store.now() - interval '1 hour';
    ids bigint[];
begin
    if tenant_stats.tenant is not null and not exists (select from ojs.tenants t
        where t.tenant = tenant_stats.tenant) then
        perform ojs_store.raise('NOT_FOUND', format('tenant "%s" does not exist', left(tenant_stats.tenant, 64)),
            jsonb_build_object('resource_type', 'tenant', 'resource_id', left(tenant_stats.tenant, 64)),
            'The view ojs.tenants lists them.');
    end if;
    ids := array(select ojs_store.queue_id(q.name) from ojs.queues q where q.name like '%@%'
        and ojs_store.may_see_tenant(split_part(q.name, '@', 2)));
    return query
        with part as materialized (
            select ojs_store.queue_id(q.name) as id, split_part(q.name, '@', 2) collate "C" as tenant
            from ojs.queues q where q.name like '%@%'
        ), ended as materialized (
            select f.queue, count(*) filter (where f.state = 4) as completed,
                count(*) filter (where f.state = 7) as failed,
                count(*) filter (where f.finished_at > hour and f.state <> 6) as processed
            from ojs_store.finished f where f.finished_at > day and f.queue = any (ids) group by 1
        ), pushed as materialized (
            select j.queue, count(*) as n from ojs_store.job j where j.created_at > hour and j.queue = any (ids)
            group by 1
        ), counted as materialized (
            select p.tenant, count(*) as queues, sum(c.available) as available, sum(c.active) as active,
                sum(c.scheduled) as scheduled, sum(c.retryable) as retryable, sum(c.pending) as pending,
                sum(coalesce(e.completed, 0)) as completed, sum(coalesce(e.failed, 0)) as failed,
                sum(coalesce(e.processed, 0)) as processed, sum(coalesce(u.n, 0)) as pushed
            from part p join ojs_store.queue_counts(ids) c on c.queue = p.id
            left join ended e on e.queue = p.id left join pushed u on u.queue = p.id
            group by 1
        ), shared as materialized (
            select t.tenant, t.fairness_weight, coalesce(c.queues, 0) as queues, coalesce(c.available, 0) as available,
                coalesce(c.active, 0) as active, coalesce(c.scheduled, 0) as scheduled,
                coalesce(c.retryable, 0) as retryable, coalesce(c.pending, 0) as pending,
                coalesce(c.completed, 0) as completed, coalesce(c.failed, 0) as failed,
                coalesce(c.pushed, 0) as pushed, coalesce(c.processed, 0) as processed,
                case when c.available + c.active > 0 then t.fairness_weight else 0 end as busy_weight
            from ojs.tenants t left join counted c on c.tenant = t.tenant
        ), whole as (
            select s.*, sum(s.busy_weight) over () as weights, sum(s.processed) over () as all_processed from shared s
        )
        select w.tenant, w.queues::bigint, (w.available + w.scheduled + w.retryable + w.pending)::bigint,
            w.available::bigint, w.active::bigint, w.scheduled::bigint, w.retryable::bigint, w.pending::bigint,
            w.completed::bigint, w.failed::bigint, w.pushed::bigint, w.processed::bigint, w.fairness_weight,
            -- Whoever acts for one tenant is not told what the others do.
            case when ojs_store.caller_tenant() is null
                then round(w.busy_weight / nullif(w.weights, 0)::numeric, 4) end,
            case when ojs_store.caller_tenant() is null then round(w.processed / nullif(w.all_processed, 0), 4) end
        from whole w
        where tenant_stats.tenant is null or w.tenant = tenant_stats.tenant
        order by w.tenant;
end $$;
comment on function ojs.tenant_stats(text)
    is 'Jobs of a tenant, or of each, by state; its last hour and day; and its share of what was worked on';

-- sql/schemas.sql

-- schemas.sql: JSON Schemas for the arguments of job types. C++: src/job/schema_registry.cpp, src/job/json_schema.cpp.

-- A version in the order of versions; null for what is none.
create function ojs_store.version_key(version text) returns bytea
language c strict immutable parallel safe as 'MODULE_PATHNAME', 'ojs_version_key';

create function ojs_store.check_schema(schema jsonb) returns void
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_check_schema';

-- What is wrong with a value by a schema: an array of sentences.
create function ojs_store.schema_errors(schema jsonb, value jsonb) returns jsonb
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_schema_errors';

-- A version as JSON has it: 2 as a number, 2.0 as a string.
create function ojs_store.version_json(version text) returns jsonb
language sql immutable strict parallel safe
begin atomic
    select case when version ~ '^(0|[1-9][0-9]{0,8})$' then to_jsonb(version::int) else to_jsonb(version) end;
end;

create function ojs_store.check_job_type(type text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if type is null or type !~ '^[a-z][a-z0-9_-]*([.][a-z][a-z0-9_-]*)*$' or octet_length(type) > 255 then
        perform ojs_store.raise('INVALID_PAYLOAD', 'type must be a job type', '{"field": "type"}',
            'Name it as jobs do, such as ''email.send''.');
    end if;
end $$;

-- What a schema refuses that the one before it took, as far as that shows in `properties`, `required`, types and
-- bounds.
create function ojs_store.breaking_changes(before jsonb, after jsonb, place text, depth int) returns setof text
language plpgsql stable parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    part record;
begin
    if depth > 16 or jsonb_typeof(before) <> 'object' or jsonb_typeof(after) <> 'object' then
        return;
    end if;
    return query select format('%srequired property ''%s'' was added', place, left(name, 64))
        from jsonb_array_elements_text(case jsonb_typeof(after -> 'required') when 'array'
            then after -> 'required' end) name
        where not coalesce(before -> 'required' ? name, false);
    return query select format('%sproperty ''%s'' was removed', place, left(name, 64))
        from jsonb_object_keys(case jsonb_typeof(before -> 'properties') when 'object'
            then before -> 'properties' end) name
        where not coalesce(after -> 'properties' ? name, false);
    if after ? 'type' and before -> 'type' is distinct from after -> 'type'
        and not (jsonb_typeof(after -> 'type') = 'array' and after -> 'type' @> (before -> 'type')) then
        return next format('%sthe type was changed', place);
    end if;
    if after -> 'additionalProperties' = 'false' and coalesce(before -> 'additionalProperties', 'true') <> 'false' then
        return next format('%sadditionalProperties became false', place);
    end if;
    if jsonb_typeof(after -> 'enum') = 'array' and not coalesce(after -> 'enum' @> (before -> 'enum'), false) then
        return next format('%senum lost a value', place);
    end if;
    return query select format('%s%s was narrowed', place, bound.name)
        from (values ('maxLength', 1), ('maxItems', 1), ('maximum', 1), ('exclusiveMaximum', 1), ('maxProperties', 1),
            ('minLength', -1), ('minItems', -1), ('minimum', -1), ('exclusiveMinimum', -1),
                ('minProperties', -1)) bound (name, sign)
        where jsonb_typeof(after -> bound.name) = 'number'
            and not coalesce(bound.sign * (after ->> bound.name)::numeric
                >= bound.sign * (case jsonb_typeof(before -> bound.name) when 'number' then before ->> bound.name
                    end)::numeric, false);
    for part in
        select key as name, format('%s%s.', place, left(key, 64)) as place, value as was,
            after -> 'properties' -> key as is_now
        from jsonb_each(case jsonb_typeof(before -> 'properties') when 'object' then before -> 'properties' end)
        union all
        select null, place || 'items.', before -> 'items', after -> 'items'
        union all
        select null, format('%s[%s].', place, n - 1), element,
            coalesce(after -> 'prefixItems', after -> 'items') -> (n - 1)::int
        from jsonb_array_elements(case
            when jsonb_typeof(before -> 'prefixItems') = 'array' then before -> 'prefixItems'
            when jsonb_typeof(before -> 'items') = 'array' then before -> 'items' end) with ordinality e (element, n)
    loop
        return query select * from ojs_store.breaking_changes(part.was, part.is_now, part.place, depth + 1);
    end loop;
end $$;

create function ojs_store.check_breaking(type text, version text, new_key bytea, schema jsonb) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    earlier record;
    changes text[];
begin
    -- The version just before, of the same major version: the first four bytes.
    select s.version, s.schema into earlier from ojs_store.job_schema s
    where s.type = type and s.key < new_key and substr(s.key, 1, 4) = substr(new_key, 1, 4) order by s.key desc limit 1;
    if found then
        changes := array(select c from ojs_store.breaking_changes(earlier.schema, schema, '', 0) c limit 20);
    end if;
    if cardinality(changes) > 0 then
        perform ojs_store.raise('INVALID_PAYLOAD',
            format('version %s introduces breaking changes compared to version %s', version, earlier.version),
            jsonb_build_object('field', 'version', 'breaking_changes', to_jsonb(changes)),
                'Give it the next major version.');
    end if;
end $$;

create function ojs.create_schema(type text, version text, schema jsonb, uri text default null) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    at timestamptz := ojs_store.now();
    new_key bytea := ojs_store.version_key(version);
    own_uri text := case when jsonb_typeof(schema) = 'object' then schema ->> '$id' end;
    existing text;
begin
    perform ojs_store.check_job_type(type);
    if new_key is null then
        perform ojs_store.raise('INVALID_PAYLOAD', 'version must be a version', '{"field": "version"}',
            'Give one such as 2, 2.0 or 2.0.0.');
    elsif schema is null or jsonb_typeof(schema) not in ('object', 'boolean') then
        perform ojs_store.raise('INVALID_PAYLOAD', 'schema must be a JSON Schema: an object', '{"field": "schema"}',
            'Give a JSON Schema of draft 2020-12.');
    elsif uri <> own_uri then
        perform ojs_store.raise('INVALID_PAYLOAD', 'uri differs from the $id of the schema', '{"field": "uri"}',
            'Leave one of them out.');
    end if;
    uri := coalesce(uri, own_uri, format('urn:ojs:schema:%s:v%s', type, version));
    if uri !~ '^[A-Za-z][A-Za-z0-9+.-]*:[!-~]+$' or uri ~ e'[#<>"{}|\\\\^`]' or octet_length(uri) > 400 then
        perform ojs_store.raise('INVALID_PAYLOAD', 'uri must be a URI of at most 400 bytes, without a fragment',
            '{"field": "uri"}', 'Give one such as urn:ojs:schema:email.send:v1.');
    end if;
    -- one registers after the other, so that each sees what there is
    lock table ojs_store.job_schema in share row exclusive mode;
    perform ojs_store.check_schema(schema);
    select s.type || '@' || s.version into existing from ojs_store.job_schema s where s.type = type and s.key = new_key
        or s.uri = uri;
    if found then
        perform ojs_store.raise('SCHEMA_EXISTS', format('version or uri is taken: the schema %s exists already',
            existing), jsonb_build_object('field', 'version', 'schema', existing),
            'Give it a version and a URI of its own, or drop the other first.');
    elsif (select count(*) from ojs_store.job_schema) >= 10000 then
        perform ojs_store.raise('UNAVAILABLE', 'there are 10000 schemas already', '{}',
            'Drop versions that no job has any more.');
    end if;
    perform ojs_store.check_breaking(type, version, new_key, schema);
    insert into ojs_store.job_schema (type, key, version, uri, schema, created_at)
        values (type, new_key, version, uri, schema, at);
    perform ojs_store.record_act('schema_created', type,
        jsonb_build_object('job_type', type, 'version', version, 'uri', uri));
    return jsonb_build_object('type', type, 'version', ojs_store.version_json(version), 'uri', uri, 'schema', schema,
        'created_at', ojs_store.time_text(at));
end $$;
comment on function ojs.create_schema(text, text, jsonb, text)
    is 'Registers a JSON Schema for the arguments of a job type, under a version of that type';

create function ojs.drop_schema(type text, version text) returns boolean
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    dropped ojs_store.job_schema;
    user_of_it text;
begin
    lock table ojs_store.job_schema in share row exclusive mode;
    delete from ojs_store.job_schema s where s.type = type and s.key = ojs_store.version_key(version) returning *
        into dropped;
    if not found then
        return false;
    end if;
    select s.type || '@' || s.version into user_of_it from ojs_store.job_schema s
    where jsonb_path_exists(s.schema, '$.**."$ref" ? (@ == $uri || @ starts with $with_fragment)',
        jsonb_build_object('uri', dropped.uri, 'with_fragment', dropped.uri || '#')) limit 1;
    if found then
        perform ojs_store.raise('INVALID_PAYLOAD', format('version %s is in use: the schema %s refers to it',
            dropped.version, user_of_it),
            jsonb_build_object('field', 'version', 'schema', user_of_it), 'Drop that one first.');
    end if;
    select w.name into user_of_it from ojs_store.worker w, jsonb_array_elements(
        case jsonb_typeof(w.info -> 'handlers') when 'array' then w.info -> 'handlers' end) h
    where w.died_at is null and h ->> 'type' = type and h ->> 'versions' <> '*'
        and ojs_store.in_range(h ->> 'versions', dropped.version) limit 1;
    if found then
        perform ojs_store.raise('INVALID_PAYLOAD', format('version %s is in use: the worker %s takes it',
            dropped.version, user_of_it),
            jsonb_build_object('field', 'version', 'worker', user_of_it),
            'Wait until no worker names it, or end those that do with ojs.deregister_worker in the same transaction.');
    end if;
    if not exists (select from ojs_store.job_schema s where s.type = type) then
        delete from ojs_store.schema_mode m where m.type = type;
    end if;
    perform ojs_store.record_act('schema_dropped', type,
        jsonb_build_object('job_type', type, 'version', dropped.version, 'uri', dropped.uri));
    return true;
end $$;
comment on function ojs.drop_schema(text, text)
    is 'Removes a version of the schema of a job type; false if there is none. Jobs that were pushed stay as they are';

create function ojs.set_schema_validation(type text, mode text) returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    before text;
begin
    perform ojs_store.check_job_type(type);
    if mode not in ('strict', 'warn', 'off') then
        perform ojs_store.raise('INVALID_PAYLOAD', 'mode must be strict, warn or off', '{"field": "mode"}',
            'Or null for what ojs.schema_validation says.');
    end if;
    lock table ojs_store.job_schema in share row exclusive mode;
    if not exists (select from ojs_store.job_schema s where s.type = type) then
        perform ojs_store.raise('NOT_FOUND', format('type %s has no schema', type),
            jsonb_build_object('field', 'type', 'resource_type', 'schema', 'resource_id', type),
            'Register one with ojs.create_schema.');
    end if;
    delete from ojs_store.schema_mode m where m.type = type returning m.mode into before;
    if mode is not null then
        insert into ojs_store.schema_mode (type, mode) values (type, mode);
    end if;
    perform ojs_store.record_act('schema_validation_set', type,
        jsonb_build_object('job_type', type), to_jsonb(before), to_jsonb(mode));
end $$;
comment on function ojs.set_schema_validation(text, text)
    is 'Says what becomes of jobs of a type whose arguments do not fit its schema: strict, warn, off; null for what '
       'ojs.schema_validation says';

-- The setting is known once the library is loaded.
create function ojs_store.default_schema_mode() returns text
language sql stable parallel safe
begin atomic
    select coalesce(current_setting('ojs.schema_validation', true), 'warn');
end;

create view ojs.schemas as
select s.type, s.version, s.uri, s.schema, s.created_at,
    not exists (select from ojs_store.job_schema later where later.type = s.type and later.key > s.key) as is_latest,
    coalesce(m.mode, ojs_store.default_schema_mode()) as validation
from ojs_store.job_schema s left join ojs_store.schema_mode m on m.type = s.type;
comment on view ojs.schemas
    is 'Schemas of the arguments of job types, each with its version, and what becomes of jobs that do not fit';

-- sql/lease_json.sql

-- lease_json.sql: claim, ack, nack and extend with the request and reply bodies of the Queues document; jobs are named
-- by their numbers. The same implementation as the typed functions. C++: src/work/lease_json.cpp.

create function ojs_store.held(queue text, worker text, seqs bigint[], out seq bigint, out job_id uuid)
    returns setof record
language c strict volatile parallel unsafe rows 10 as 'MODULE_PATHNAME', 'ojs_held';

-- This session knows now which job has this number, and need not look for it.
create function ojs_store.remember_number(seq bigint, job_id uuid) returns void
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_remember_number';

create function ojs_store.bad_request(field text, message text, hint text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.raise('INVALID_PAYLOAD', message, jsonb_build_object('field', field), hint);
end $$;

-- A whole number in a request; null where it is absent. Beyond the bounds it is clamped.
create function ojs_store.request_number(request jsonb, field text, least_value bigint, greatest_value bigint)
    returns bigint
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    value jsonb := request -> field;
    n numeric;
begin
    if value is null or value = 'null' then
        return null;
    end if;
    if jsonb_typeof(value) <> 'number' then
        perform ojs_store.bad_request(field, format('%s must be a number, not %s', field, jsonb_typeof(value)),
            'Give a whole number.');
    end if;
    n := value::numeric;
    if n <> trunc(n) then
        perform ojs_store.bad_request(field, format('%s must be a whole number', field), 'Give a whole number.');
    end if;
    return least(greatest(n, least_value), greatest_value);
end $$;

create function ojs_store.request_node(request jsonb) returns text
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if request is null or jsonb_typeof(request) <> 'object' then
        perform ojs_store.bad_request('request', 'request must be an object',
            'Give an object such as {"node": "api-1", "max": 10}.');
    end if;
    if jsonb_typeof(request -> 'node') is distinct from 'string' or request ->> 'node' = '' then
        perform ojs_store.bad_request('node', 'node must be a string that is not empty',
            'Name the worker, such as "api-1".');
    end if;
    return request ->> 'node';
end $$;

-- What a request names, entry by entry, and which job of the node's that is; the first of equal numbers counts (Q-35).
create function ojs_store.request_jobs(
    queue text, request jsonb, out place bigint, out seq bigint, out lease_id text, out job_id uuid
) returns setof record
language plpgsql volatile parallel unsafe rows 100 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    node text := ojs_store.request_node(request);
    seqs jsonb := request -> 'seqs';
    tokens jsonb := nullif(request -> 'lease_ids', 'null');
begin
    if jsonb_typeof(seqs) is distinct from 'array' then
        perform ojs_store.bad_request('seqs', 'seqs must be an array of numbers', 'Give the $seq of each job.');
    end if;
    if jsonb_array_length(seqs) = 0 then
        perform ojs_store.bad_request('seqs', 'seqs must not be empty', 'Give the $seq of each job.');
    end if;
    if jsonb_array_length(seqs) > 1000 then
        perform ojs_store.raise('BATCH_SIZE_EXCEEDED',
            format('a call may name 1000 jobs in seqs, not %s', jsonb_array_length(seqs)),
            jsonb_build_object('field', 'seqs', 'size', jsonb_array_length(seqs), 'maximum', 1000, 'reason',
                'batch_too_large'), 'Split the call.');
    end if;
    if exists (select from jsonb_array_elements(seqs) v where case when jsonb_typeof(v) = 'number'
            then v::numeric <> trunc(v::numeric) or v::numeric not between 0 and 9223372036854775807 else true end) then
        perform ojs_store.bad_request('seqs', 'seqs must hold whole numbers only', 'Give the $seq of each job.');
    end if;
    if tokens is not null then
        if jsonb_typeof(tokens) <> 'array' or exists (
                select from jsonb_array_elements(case when jsonb_typeof(tokens) = 'array' then tokens else '[]' end) v
                    where jsonb_typeof(v) <> 'string') then
            perform ojs_store.bad_request('lease_ids', 'lease_ids must be an array of strings',
                'Give the lease_id of each job, or leave it out.');
        end if;
        if jsonb_array_length(tokens) <> jsonb_array_length(seqs) then
            perform ojs_store.bad_request('lease_ids',
                format('lease_ids has %s elements and seqs has %s', jsonb_array_length(tokens),
                jsonb_array_length(seqs)), 'Give one lease_id per seq, in the same order, or none.');
        end if;
    end if;
    return query
        select named.place, named.seq, tokens ->> (named.place - 1)::int,
            case when row_number() over (partition by named.seq order by named.place) = 1 then held.job_id end
        from (select n, v::numeric::bigint from jsonb_array_elements(seqs)
            with ordinality as s(v, n)) as named(place, seq)
        left join ojs_store.held(queue, node,
            array(select distinct v::numeric::bigint from jsonb_array_elements(seqs) v)) held on held.seq = named.seq
        order by named.place;
end $$;

-- The jobs of a request, ready for a typed function: parallel arrays of its entries, and of those among them that are
-- held.
create function ojs_store.read_request(
    queue text, request jsonb, out node text, out seqs bigint[], out ids uuid[], out held uuid[], out lease_ids text[]
) returns record
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select request ->> 'node', array_agg(j.seq order by j.place), array_agg(j.job_id order by j.place),
        coalesce(array_agg(j.job_id order by j.place) filter (where j.job_id is not null), '{}'),
        case when jsonb_typeof(request -> 'lease_ids') = 'array'
            then coalesce(array_agg(j.lease_id order by j.place) filter (where j.job_id is not null), '{}') end
    from ojs_store.request_jobs(queue, request) j
$$;

-- The numbers that a call did not act on, in the order of the request.
create function ojs_store.skipped_seqs(seqs bigint[], ids uuid[], skipped uuid[]) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select coalesce(jsonb_agg(j.seq order by j.place) filter (where j.id is null or j.id = any (skipped)), '[]')
    from unnest(seqs, ids) with ordinality as j(seq, id, place)
$$;

-- What replies say of the queue afterwards.
create function ojs_store.reply_counts(queue text) returns jsonb
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('topic', queue, 'ready', c.ready, 'in_flight', c.in_flight)
    from ojs_store.ready_and_held(ojs_store.queue_id(queue)) c
$$;

create function ojs_store.ms_epoch(at timestamptz) returns bigint
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select floor(extract(epoch from at) * 1000)::bigint
$$;

create function ojs.lease_claim(queue text, request jsonb) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    started timestamptz := clock_timestamp();
    node text := ojs_store.request_node(request);
    wanted bigint := coalesce(ojs_store.request_number(request, 'max', -1, 1000), 1);
    lease_ms bigint := ojs_store.request_number(request, 'lease_ms', 100, 86400000);
    claimed jsonb;
    n int;
    waited_ms numeric;
begin
    perform ojs_store.use_queue(queue, 'work');
    if wanted < 0 then
        perform ojs_store.bad_request('max', 'max must not be negative', 'Give a number from 0 to 1000.');
    end if;
    perform ojs_store.claim_wait_ms();
    select jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
            '$seq', c.seq,
            'id', c.id,
            'lease_id', c.lease_id,
            'deadline', ojs_store.ms_epoch(c.lease_expires_at),
            '$ts', ojs_store.ms_epoch(c.created_at),
            '$tag', c.extra -> 'tag',
            'deliveries', c.deliveries))
        || jsonb_build_object('data', jsonb_build_object('type', c.type, 'args', c.args))
        || case when c.meta = '{}' then '{}' else jsonb_build_object('meta', c.meta) end
        order by c.seq), count(ojs_store.remember_number(c.seq, c.id))
    into claimed, n
    from ojs.claim(queue, node, wanted::int, lease_ms * interval '1 millisecond') c;
    waited_ms := trim_scale(round(ojs_store.claim_wait_ms()::numeric, 3));
    return ojs_store.reply_counts(queue) - 'in_flight' || jsonb_build_object(
        'claimed', coalesce(claimed, '[]'),
        'count', n,
        'performance', jsonb_build_object('server_total_ms', ojs_store.ms_since(started), 'throttle_wait_ms',
            waited_ms));
end $$;
comment on function ojs.lease_claim(text, jsonb)
    is 'Leases jobs to a worker: request and reply of POST /v0/topics/:queue/claim';

create function ojs.lease_ack(queue text, request jsonb) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    started timestamptz := clock_timestamp();
    named record;
    done int;
    skipped uuid[];
begin
    perform ojs_store.use_queue(queue, 'work');
    select * into named from ojs_store.read_request(queue, request);
    select a.done, a.skipped into done, skipped from ojs.ack_many(named.node, named.held, null, named.lease_ids) a;
    return ojs_store.reply_counts(queue) || jsonb_build_object(
        'acked', done,
        'skipped', ojs_store.skipped_seqs(named.seqs, named.ids, skipped),
        'performance', jsonb_build_object('server_total_ms', ojs_store.ms_since(started), 'fsync_ms', 0));
end $$;
comment on function ojs.lease_ack(text, jsonb)
    is 'Completes held jobs: request and reply of POST /v0/topics/:queue/ack';

create function ojs.lease_nack(queue text, request jsonb) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    started timestamptz := clock_timestamp();
    named record;
    delay_ms bigint := coalesce(ojs_store.request_number(request, 'delay_ms', 0, 86400000), 0);
    done int;
    skipped uuid[];
begin
    perform ojs_store.use_queue(queue, 'work');
    select * into named from ojs_store.read_request(queue, request);
    select n.done, n.skipped into done, skipped
    from ojs.nack_many(named.node, named.held, delay_ms * interval '1 millisecond', named.lease_ids) n;
    return ojs_store.reply_counts(queue) || jsonb_build_object(
        'nacked', done,
        'skipped', ojs_store.skipped_seqs(named.seqs, named.ids, skipped),
        'performance', jsonb_build_object('server_total_ms', ojs_store.ms_since(started)));
end $$;
comment on function ojs.lease_nack(text, jsonb)
    is 'Gives held jobs back: request and reply of POST /v0/topics/:queue/nack';

create function ojs.lease_extend(queue text, request jsonb) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    started timestamptz := clock_timestamp();
    named record;
    lease_ms bigint := ojs_store.request_number(request, 'lease_ms', 100, 86400000);
    done int;
    skipped uuid[];
    deadline timestamptz;
    deadlines jsonb;
begin
    perform ojs_store.use_queue(queue, 'work');
    select * into named from ojs_store.read_request(queue, request);
    if lease_ms is null then
        perform ojs_store.bad_request('lease_ms', 'lease_ms is missing',
            'Give the new length of the lease in milliseconds, counted from now.');
    end if;
    select e.done, e.skipped, e.deadline into done, skipped, deadline
    from ojs.extend_many(named.node, named.held, lease_ms * interval '1 millisecond', named.lease_ids) e;
    select jsonb_object_agg(seq::text, ojs_store.ms_epoch(deadline)) into deadlines
    from unnest(named.seqs, named.ids) as j(seq, id) where id is not null and id <> all (skipped);
    return jsonb_build_object(
        'topic', queue,
        'extended', done,
        'skipped', ojs_store.skipped_seqs(named.seqs, named.ids, skipped),
        'deadlines', coalesce(deadlines, '{}'),
        'performance', jsonb_build_object('server_total_ms', ojs_store.ms_since(started)));
end $$;
comment on function ojs.lease_extend(text, jsonb)
    is 'Gives held jobs a new deadline: request and reply of POST /v0/topics/:queue/extend';

-- sql/tick.sql

-- tick.sql: upkeep by whoever calls. C++: src/upkeep/tick.cpp, src/state/reap.cpp and src/upkeep/retention.cpp.

create function ojs.tick(budget int default null) returns jsonb
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_tick';
comment on function ojs.tick(int)
    is 'One pass of upkeep: reaps lapsed leases, promotes due jobs, discards expired ones, removes what is kept no '
       'longer; at most budget rows per duty';

-- Removes events that have rows of their own and are too old, and with `count` the oldest of too many. And tokens
-- of ojs.once after their 30 days. Returns the number of events removed.
create function ojs_store.prune_records(most int, count boolean) returns int
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp
set enable_seqscan = off -- plans are kept, and nothing may have counted the rows yet
set jit = off as $$
#variable_conflict use_variable
declare
    before timestamptz := ojs_store.now() - extract(epoch
        from current_setting('ojs.event_retention')::interval) * interval '1 second';
    acts_before timestamptz := before;
    audit_before timestamptz := ojs_store.now() - extract(epoch
        from current_setting('ojs.audit_retention')::interval) * interval '1 second';
    tokens_before timestamptz := ojs_store.now() - interval '30 days';
    newest timestamptz;
    n int := 0;
begin
    -- Only where there may be so many: a row and what points to it take 60 bytes and more.
    if count and pg_relation_size('ojs_store.stored_event') / 60 > current_setting('ojs.max_events')::int then
        before := greatest(before, (select r.at from ojs_store.stored_event r where not ojs_store.is_act(r.type)
            order by r.at desc offset current_setting('ojs.max_events')::int limit 1));
        acts_before := greatest(acts_before, (select r.at from ojs_store.stored_event r where ojs_store.is_act(r.type)
            order by r.at desc offset current_setting('ojs.max_events')::int limit 1));
    end if;
    if exists (select from ojs_store.stored_event r where r.at <= greatest(before, acts_before)
            and r.at <= case when ojs_store.is_act(r.type) then acts_before else before end) then
        perform from ojs_store.retention_cursor s where s.what = 'stored_event' for update skip locked;
        if found then
            with gone as (
                delete from ojs_store.stored_event where ctid = any (array(
                    select r.ctid from ojs_store.stored_event r
                    where r.at <= greatest(before, acts_before)
                        and r.at <= case when ojs_store.is_act(r.type) then acts_before else before end
                    order by r.at limit most for update skip locked))
                returning at
            )
            select count(*), max(gone.at) into n, newest from gone;
            update ojs_store.retention_cursor s set removed_to = greatest(s.removed_to, newest)
                where s.what = 'stored_event';
        end if;
    end if;
    delete from ojs_store.audit where ctid = any (array(
        select a.ctid from ojs_store.audit a where a.at <= audit_before
        order by a.at limit most for update skip locked));
    delete from ojs_store.once_token where ctid = any (array(
        select o.ctid from ojs_store.once_token o where o.at <= tokens_before order by o.at limit most
            for update skip locked));
    return n;
end $$;

-- sql/aging.sql

-- aging.sql: jobs that rise while they wait, in queues with priority_aging_s. C++: src/upkeep/aging.cpp.
-- A job's position in `ready` is a number of the sequence, drawn when it came to its priority there. So who has been
-- there for a step is told by the number that the sequence had a step ago. One tick at a time comes here: it has the
-- row `priority_aging` of ojs_store.retention_cursor.

-- How many tenths of a step have passed since the last look; at most all.
create function ojs_store.aging_tenths(known ojs_store.priority_aging, at timestamptz) returns int
language sql immutable parallel safe
begin atomic
    select least(floor(extract(epoch from at - known.at) * 10 / known.step_s), 10)::int;
end;

-- Jobs with a lower number have been at their priority for a step; null: none is due that was not a moment ago.
create function ojs_store.aging_number(queue bigint, step_s int, at timestamptz) returns bigint
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    known ojs_store.priority_aging;
    tenths int;
begin
    select a.* into known from ojs_store.priority_aging a where a.queue = queue;
    if not found or known.step_s <> step_s or known.at > at then
        insert into ojs_store.priority_aging as a (queue, step_s, at, numbers)
            select queue, step_s, at, array_fill(0::bigint, array[9]) || s.last_value + 1 from ojs_store.seq s
            on conflict on constraint priority_aging_pkey do update
                set step_s = excluded.step_s, at = excluded.at, numbers = excluded.numbers;
        return null;
    end if;
    tenths := ojs_store.aging_tenths(known, at);
    return case when tenths > 0 then known.numbers[tenths] end;
end $$;

-- All of these have risen. Where more than a tenth has passed, no number is known for what is between: the last one
-- stands for it, so that nobody rises too soon.
create function ojs_store.aging_done(queue bigint, at timestamptz) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    known ojs_store.priority_aging;
    tenths int;
    next bigint := (select s.last_value + 1 from ojs_store.seq s);
begin
    select a.* into known from ojs_store.priority_aging a where a.queue = queue;
    if not found then -- the queue has been dropped since
        return;
    end if;
    tenths := ojs_store.aging_tenths(known, at);
    update ojs_store.priority_aging a
        set at = at, numbers = (known.numbers || array_fill(known.numbers[10], array[tenths - 1]) || next)[tenths + 1:]
        where a.queue = queue;
end $$;

-- sql/cron.sql

-- cron.sql: jobs by the clock. An entry is a row of ojs_store.cron; ticks run those that are due. C++:
-- src/upkeep/cron.cpp, src/upkeep/cron_expression.cpp.

create function ojs_store.cron_zone(name text) returns text
language c strict stable parallel safe as 'MODULE_PATHNAME', 'ojs_cron_zone';

-- The first run after a moment, and the local times before it that clocks are put forward over.
create function ojs_store.cron_next(
    expression text, timezone text, anchor timestamptz, after timestamptz,
    out run_at timestamptz, out skip_at timestamptz, out skipped_local text, out skipped int
) language c strict stable parallel safe as 'MODULE_PATHNAME', 'ojs_cron_next';

-- REGISTRATION -----------------------------------------------------------------------------------------------------

-- What a run pushes: the job, with whose it is and when in its meta.
create function ojs_store.cron_envelope(entry ojs_store.cron, scheduled_at timestamptz, triggered_at timestamptz)
    returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select (entry).job #- '{options,meta}' || jsonb_build_object('meta',
        coalesce(nullif((entry).job -> 'meta', 'null'), nullif((entry).job #> '{options,meta}', 'null'),
            '{}') || jsonb_build_object(
            'cron_name', (entry).name, 'cron_triggered_at', ojs_store.cron_time(triggered_at),
            'cron_scheduled_at', ojs_store.cron_time(scheduled_at)))
$$;

create function ojs_store.cron_time(at timestamptz) returns text
language sql stable strict parallel safe set search_path = pg_catalog, pg_temp as $$
    select to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
$$;

-- An entry as JSON: by the names of the Cron document, and by those that clients of the HTTP binding use.
create function ojs_store.cron_json(entry ojs_store.cron) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object(
        'name', (entry).name,
        'cron', (entry).expression,
        'expression', (entry).expression,
        'timezone', (entry).timezone,
        'type', (entry).job -> 'type',
        'args', coalesce((entry).job -> 'args', '[]'),
        'options', (entry).job - '{type,args,options}'::text[] || coalesce(nullif((entry).job -> 'options',
            'null'), '{}'),
        'job_template', (entry).job,
        'overlap_policy', (entry).overlap_policy,
        'enabled', (entry).enabled,
        'description', (entry).description,
        'next_run_at', ojs_store.cron_time((entry).next_run_at),
        'last_run_at', ojs_store.cron_time((entry).last_run_at),
        'run_count', (entry).run_count,
        'created_at', ojs_store.cron_time((entry).created_at))
$$;

-- The entry with the options given; null counts as absent.
create function ojs_store.cron_with(entry ojs_store.cron, options jsonb) returns ojs_store.cron
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    policies constant jsonb
        := '{"skip": "skip", "allow": "allow", "cancel_previous": "cancel_previous", "enqueue": "enqueue",
        "queue": "enqueue", "replace": "cancel_previous"}';
    field text;
    value jsonb;
    wanted text;
begin
    if jsonb_typeof(options) <> 'object' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'options must be a JSON object', '{"field": "options"}',
            'Give options such as {"timezone": "Europe/Berlin"}.');
    end if;
    for field, value in select * from jsonb_each(options) loop
        wanted := case field when 'enabled' then 'boolean' else 'string' end;
        if field in ('name', 'next_run_at', 'last_run_at', 'run_count', 'created_at') then
            continue;
        elsif field not in ('timezone', 'enabled', 'overlap_policy', 'description') then
            perform ojs_store.raise('INVALID_PAYLOAD',
                format('options holds "%s", which is no option of a cron entry', left(field, 64)),
                jsonb_build_object('field', left(field, 64)),
                    'Options are timezone, enabled, overlap_policy and description.');
        elsif jsonb_typeof(value) not in ('null', wanted) then
            perform ojs_store.raise('INVALID_PAYLOAD', format('%s must be a %s', field, wanted),
                jsonb_build_object('field', field), format('Give a JSON %s, or leave it out.', wanted));
        end if;
    end loop;
    if options ->> 'timezone' is not null then
        entry.timezone := ojs_store.cron_zone(options ->> 'timezone');
    end if;
    entry.enabled := coalesce((options ->> 'enabled')::boolean, entry.enabled);
    entry.description := coalesce(options ->> 'description', entry.description);
    if options ->> 'overlap_policy' is not null then
        entry.overlap_policy := policies ->> (options ->> 'overlap_policy');
        if entry.overlap_policy is null then
            perform ojs_store.raise('INVALID_PAYLOAD',
                format('overlap_policy is not known: "%s"', left(options ->> 'overlap_policy', 64)),
                '{"field": "overlap_policy"}', 'Give skip, allow, cancel_previous or enqueue.');
        end if;
    end if;
    return entry;
end $$;

-- What an administrator says of an entry, without the arguments of its job, which are not for an audit.
create function ojs_store.cron_settings(entry ojs_store.cron) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('expression', entry.expression, 'timezone', entry.timezone, 'enabled', entry.enabled,
        'overlap_policy', entry.overlap_policy, 'description', entry.description, 'type', entry.job -> 'type',
        'queue', coalesce(entry.job #> '{options,queue}', entry.job -> 'queue'))
$$;

create function ojs.schedule(name text, cron text, job jsonb, options jsonb default '{}') returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    entry ojs_store.cron;
    before ojs_store.cron;
    next record;
    existed boolean;
    at timestamptz := ojs_store.now();
begin
    perform ojs_store.refuse_tenant('ojs.schedule()');
    if name is null or name !~ '^[a-z0-9][a-z0-9.-]{0,254}$' then
        perform ojs_store.raise('INVALID_PAYLOAD',
            'name must be 1 to 255 characters of a-z, 0-9, "-" and ".", and begin with a letter or a digit',
            '{"field": "name"}', 'Give a name such as daily-report.');
    end if;
    loop
        select * into entry from ojs_store.cron c where c.name = schedule.name for update;
        existed := found;
        perform ojs_store.use_queue(ojs_store.queue_of(entry.job), 'produce') where existed;
        if not existed then
            if cron is null and job is null then
                perform ojs_store.raise('NOT_FOUND', format('cron entry "%s" does not exist', left(name, 64)),
                    jsonb_build_object('cron', left(name, 128)), 'Register it with ojs.schedule(name, cron, job).');
            end if;
            entry := (name, null, 'UTC', true, 'skip', null, null, at, at, null, null, null, null, 0);
        end if;
        before := entry;
        if cron is not null and job is not null then -- registered anew: only `enabled` stays
            entry.timezone := 'UTC';
            entry.overlap_policy := 'skip';
            entry.description := null;
        end if;
        entry.expression := coalesce(cron, entry.expression);
        entry.job := coalesce(job, entry.job);
        if entry.expression is null then
            perform ojs_store.raise('INVALID_CRON_EXPRESSION', 'cron must not be null', '{"field": "cron"}',
                'Give an expression such as 0 9 * * *.');
        elsif entry.job is null then
            perform ojs_store.raise('INVALID_PAYLOAD', 'job must not be null', '{"field": "job"}',
                'Give a job such as {"type": "report.generate", "args": []}.');
        end if;
        entry := ojs_store.cron_with(entry, coalesce(options, '{}'));
        if job is not null then
            if jsonb_typeof(job) = 'object' and coalesce(job ->> 'args', job #>> '{options,args}') is null then
                entry.job := job || '{"args": []}';
            end if;
            -- As a push would see it; first as it was given, so that errors speak of what the caller knows.
            perform ojs_store.use_queue(ojs_store.queue_of(entry.job), 'produce');
            perform ojs.fingerprint(entry.job);
            if coalesce(entry.job ->> 'id', entry.job #>> '{options,id}') is not null then
                perform ojs_store.raise('INVALID_PAYLOAD',
                    'id cannot be chosen for a job that is pushed again and again', '{"field": "id"}', 'Leave it out.');
            end if;
            perform ojs.fingerprint(ojs_store.cron_envelope(entry, at, at));
        end if;
        next := ojs_store.cron_next(entry.expression, entry.timezone, at, at);
        -- Registered anew as it is, as an application does at each start, it keeps its time.
        if not existed or (entry.expression, entry.timezone, entry.enabled) is distinct from (before.expression,
            before.timezone, before.enabled) then
            entry.anchor_at := at;
            entry.next_run_at := case when entry.enabled then next.run_at end;
            entry.skip_at := case when entry.enabled then next.skip_at end;
            entry.due_at := least(entry.next_run_at, entry.skip_at);
        end if;
        if existed then
            update ojs_store.cron c set
                expression = entry.expression, timezone = entry.timezone, enabled = entry.enabled,
                overlap_policy = entry.overlap_policy, description = entry.description, job = entry.job,
                anchor_at = entry.anchor_at, next_run_at = entry.next_run_at, skip_at = entry.skip_at,
                    due_at = entry.due_at
            where c.name = schedule.name;
            exit;
        end if;
        insert into ojs_store.cron select entry.* on conflict do nothing;
        exit when found;
    end loop;
    if not existed or entry is distinct from before then
        perform ojs_store.record_act('cron_set', name,
            jsonb_build_object('cron_name', name, 'cron_expr', entry.expression, 'enabled', entry.enabled,
                'queue', ojs_store.queue_of(entry.job)),
            case when existed then ojs_store.cron_settings(before) end, ojs_store.cron_settings(entry));
    end if;
    perform ojs_store.ask_for_worker();
    return ojs_store.cron_json(entry) || jsonb_build_object('created', not existed);
end $$;
comment on function ojs.schedule(text, text, jsonb, jsonb)
    is 'Registers a job that is pushed by the clock, or with null for cron or job changes one: what is left out stays';

create function ojs.unschedule(name text) returns boolean
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    of_queue text;
begin
    perform ojs_store.refuse_tenant('ojs.unschedule()');
    delete from ojs_store.cron c where c.name = unschedule.name returning ojs_store.queue_of(c.job) into of_queue;
    if not found then
        return false;
    end if;
    perform ojs_store.use_queue(of_queue, 'produce');
    delete from ojs_store.cron_run r where r.cron = unschedule.name
        and not exists (select from ojs_store.cron_run w where w.cron = unschedule.name and w.waiting);
    perform ojs_store.record_act('cron_removed', name, jsonb_build_object('cron_name', name, 'queue', of_queue));
    return true;
end $$;
comment on function ojs.unschedule(text) is 'Removes a cron entry and leaves its jobs alone; false if there is none';

create view ojs.crons with (security_barrier) as
select name, expression, timezone, enabled, overlap_policy, description, job, next_run_at, last_run_at, run_count,
    created_at
from ojs_store.cron
where ojs_store.may_read_cron(job);
comment on view ojs.crons is 'Jobs by the clock: what is pushed when, and when it was last';

-- RUNS -------------------------------------------------------------------------------------------------------------

-- By the names of the Cron document, and by those of the catalog of events (R-61).
create function ojs_store.cron_event(entry ojs_store.cron, type text, data jsonb) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.record_event(type, entry.name, jsonb_build_object('cron_name', entry.name,
        'cron_expr', entry.expression, 'cron_expression', entry.expression, 'timezone', entry.timezone, 'job_type',
            entry.job -> 'type')
        || data || jsonb_strip_nulls(jsonb_build_object('scheduled_at', data -> 'scheduled_time', 'existing_job_id',
            data -> 'active_job_id')));
end $$;

create function ojs_store.is_open(job_id uuid) returns boolean
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select coalesce((ojs_store.look(job_id)).state not in ('completed', 'cancelled', 'discarded'), false)
$$;

-- One run: overlap first, then the push with all that belongs to it.
create function ojs_store.run_cron(entry ojs_store.cron, at timestamptz) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    scheduled constant jsonb := jsonb_build_object('scheduled_time', ojs_store.cron_time(entry.next_run_at));
    envelope jsonb := ojs_store.cron_envelope(entry, entry.next_run_at, at);
    open uuid[] := '{}';
    seen timestamptz := 'infinity'; -- runs were looked at up to here
    run ojs_store.cron_run;
    waits boolean := false;
    pushed jsonb;
begin
    if entry.overlap_policy <> 'allow' then
        for run in select * from ojs_store.cron_run r where r.cron = entry.name order by r.scheduled_at loop
            if ojs_store.is_open(run.job_id) then
                open := open || run.job_id;
                if entry.overlap_policy = 'enqueue' and cardinality(open) > 2 then
                    seen := run.scheduled_at;
                    exit;
                end if;
            end if;
        end loop;
    end if;
    if open <> '{}' then
        case entry.overlap_policy
        when 'skip' then
            perform ojs_store.cron_event(entry, 'cron.skipped',
                scheduled || jsonb_build_object('reason', 'overlap_skip', 'active_job_id', open[1]));
            return;
        when 'cancel_previous' then
            perform ojs.cancel(j, true) from unnest(open) j;
            open := '{}';
        else
            waits := true;
            envelope := envelope #- '{options,pending}' || '{"pending": true}';
            if cardinality(open) > 2 then
                raise warning 'cron entry "%" has more than two jobs that are not finished', entry.name;
            end if;
        end case;
    end if;

    pushed := ojs.push_job(envelope);
    if pushed is null or pushed -> 'dropped' = 'true' or pushed -> 'deduplicated' = 'true' then
        perform ojs_store.cron_event(entry, 'cron.skipped', scheduled || jsonb_strip_nulls(jsonb_build_object(
            'reason', case when pushed -> 'deduplicated' = 'true' then 'duplicate' else 'dropped' end, 'job_id',
                pushed -> 'id')));
        return;
    end if;
    delete from ojs_store.cron_run r
    where r.cron = entry.name and r.scheduled_at <= seen and r.job_id <> all (open)
        and not (r.waiting and entry.overlap_policy = 'allow');
    insert into ojs_store.cron_run (cron, job_id, scheduled_at, waiting)
    values (entry.name, (pushed ->> 'id')::uuid, entry.next_run_at, waits);
    update ojs_store.cron c set last_run_at = at, run_count = c.run_count + 1 where c.name = entry.name;
    perform ojs_store.cron_event(entry, 'cron.triggered', scheduled || jsonb_build_object('job_id', pushed -> 'id',
        'job_type', pushed -> 'type', 'run_count', entry.run_count + 1, 'actual_time', ojs_store.cron_time(at)));
end $$;

-- Lets go the first of the jobs that wait for the run before theirs. Whoever has its row is alone with the name.
create function ojs_store.release_cron_job(name text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    first uuid;
begin
    select r.job_id into first from ojs_store.cron_run r where r.cron = name and r.waiting
        order by r.scheduled_at limit 1;
    perform from ojs_store.cron_run r where r.job_id = first and r.waiting for update skip locked;
    if not found then
        return;
    end if;
    if exists (select from ojs_store.cron_run r where r.cron = name and not r.waiting and ojs_store.is_open(r.job_id))
        and not exists (select from ojs_store.cron c where c.name = release_cron_job.name
            and c.overlap_policy = 'allow') then
        return;
    end if;
    begin
        perform ojs.activate(first);
    exception when others then
        -- Somebody was faster: it is no longer pending. What is merely locked is tried again.
        if sqlstate not like 'OJ%' then
            return;
        end if;
    end;
    update ojs_store.cron_run r set waiting = false where r.job_id = first;
    delete from ojs_store.cron_run r where r.cron = name and r.job_id <> first and not r.waiting;
    delete from ojs_store.cron_run r where r.cron = name
        and not exists (select from ojs_store.cron c where c.name = release_cron_job.name)
        and not exists (select from ojs_store.cron_run w where w.cron = release_cron_job.name and w.waiting);
end $$;

/*
 * Runs entries that are due, each in a subtransaction: what one of them cannot do is no other's business. A run that
 * met a lock or a shortage of the server is tried again after a second. Whatever else fails in a run, that run is over.
 * An entry that cannot be read any more, since its time zone is gone, is disabled. Nobody waits here for long for a
 * lock that an open transaction has.
 */
create function ojs_store.run_crons(at timestamptz, budget int) returns int
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms' set ojs.block_timeout = 0 as $$
declare
    most_released constant int := 10;
    entry ojs_store.cron;
    next record;
    skipped record;
    readable boolean;
    failed boolean;
    n int := 0;
    name text;
    state text;
    message text;
    detail text;
begin
    for entry in
        select * from ojs_store.cron c where c.due_at <= at order by c.due_at limit budget for update skip locked
    loop
        n := n + 1;
        readable := false;
        failed := false;
        begin
            next := ojs_store.cron_next(entry.expression, entry.timezone, entry.anchor_at, at);
            skipped := ojs_store.cron_next(entry.expression, entry.timezone, entry.anchor_at,
                coalesce(entry.skip_at, at) - interval '1 microsecond');
            readable := true;
            if entry.next_run_at <= at then
                perform ojs_store.run_cron(entry, at);
            end if;
        exception when others then
            get stacked diagnostics state = returned_sqlstate, message = message_text, detail = pg_exception_detail;
            failed := true;
        end;
        if failed and state ~ '^(40|53|57|58|55P03)' then
            if state ~ '^5[378]' then
                raise warning 'cron entry "%" is tried again in a second: %', entry.name, message;
            end if;
            update ojs_store.cron c set due_at = at + interval '1 second' where c.name = entry.name;
            continue;
        end if;
        if entry.skip_at <= at and readable then
            perform ojs_store.cron_event(entry, 'cron.skipped', jsonb_build_object('reason', 'dst_skip',
                'scheduled_time', ojs_store.cron_time(entry.skip_at), 'local_time', skipped.skipped_local,
                    'occurrences', skipped.skipped));
        end if;
        if failed then
            if state !~ '^OJ[36]' then -- neither a duplicate nor a full queue: something is wrong
                raise warning 'cron entry "%" did not run: %', entry.name, message;
            end if;
            perform ojs_store.cron_event(entry, 'cron.skipped', jsonb_build_object(
                'reason', case when readable then 'push_failed' else 'disabled' end,
                'scheduled_time', ojs_store.cron_time(entry.next_run_at), 'message', message,
                'code', coalesce(case when state like 'OJ%' then substring(detail from '"code": *"([A-Z_]+)"')
                    end, state)));
        end if;
        if readable then
            update ojs_store.cron c set next_run_at = next.run_at, skip_at = next.skip_at,
                due_at = least(next.run_at, next.skip_at)
            where c.name = entry.name;
        else
            update ojs_store.cron c set enabled = false, next_run_at = null, skip_at = null,
                due_at = null where c.name = entry.name;
        end if;
    end loop;

    for name in
        with recursive waiting(cron) as (
            select min(r.cron) from ojs_store.cron_run r where r.waiting
            union all
            select (select min(r.cron) from ojs_store.cron_run r where r.waiting and r.cron > w.cron)
            from waiting w
            where w.cron is not null)
        select w.cron
        from waiting w
        where w.cron is not null
            and (exists (select from ojs_store.cron c where c.name = w.cron and c.overlap_policy = 'allow')
                or not exists (select from ojs_store.cron_run p where p.cron = w.cron and not p.waiting
                    and ojs_store.is_open(p.job_id)))
        limit most_released
    loop
        begin
            perform ojs_store.release_cron_job(name);
        exception when others then
            get stacked diagnostics message = message_text;
            raise warning 'cron entry "%" could not release its next job: %', name, message;
        end;
    end loop;
    return n;
end $$;

-- sql/webhooks.sql

-- webhooks.sql: subscriptions to events that are delivered by HTTP (WHK-01). Deliveries: webhook_deliveries.sql.

create view ojs.webhooks with (security_barrier) as
select w.id, w.url, w.events, w.queues, w.job_types, w.active, w.metadata,
    make_interval(secs => w.timeout_s) as timeout, w.tenant, w.role, s.pending, s.delivered, s.retried, s.dead,
    s.dropped, s.failures, s.attempted_at, w.created_at, w.changed_at
from ojs_store.webhook w join ojs_store.webhook_status s on s.webhook = w.id
where ojs_store.may_see_tenant(w.tenant);
comment on view ojs.webhooks
    is 'Who is told of events by HTTP, and how deliveries to them are doing; without the secrets. For ojs_admin';

-- A subscription as JSON, without its secret.
create function ojs_store.webhook_json(w ojs_store.webhook) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('id', w.id, 'url', w.url, 'events', to_jsonb(w.events), 'active', w.active,
        'metadata', w.metadata, 'timeout_seconds', w.timeout_s, 'created_at', ojs_store.time_text(w.created_at))
        || case when w.queues is not null or w.job_types is not null then jsonb_build_object('filter',
            jsonb_strip_nulls(jsonb_build_object('queues', to_jsonb(w.queues), 'job_types', to_jsonb(w.job_types))))
            else '{}' end
$$;

-- An array of one to a hundred texts that fit; null if there is none.
create function ojs_store.webhook_texts(given jsonb, field text, pattern text, hint text) returns text[]
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if coalesce(given, 'null') = 'null' then
        return null;
    elsif jsonb_typeof(given) <> 'array' or jsonb_array_length(given) not between 1 and 100
        or jsonb_path_exists(given, 'strict $[*] ? (@.type() != "string")')
        or exists (select from jsonb_array_elements_text(given) e where e !~ pattern or octet_length(e) > 255) then
        perform ojs_store.raise('INVALID_PAYLOAD', format('%s must be an array of 1 to 100 names', field),
            jsonb_build_object('field', field), hint);
    end if;
    return array(select distinct e from jsonb_array_elements_text(given) e order by 1);
end $$;

-- What docs/reference/events.md has, and what the documents of Open Job Spec have besides.
create function ojs_store.event_types() returns text[]
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select regexp_split_to_array(btrim('
        admin.cron_removed admin.cron_set admin.hook_registered admin.hook_removed admin.job_deleted
        admin.job_discarded admin.job_skipped admin.maintenance_set admin.pool_dropped admin.pool_set
        admin.queue_configured admin.queue_drained admin.queue_dropped admin.queue_purged admin.rate_limit_set
        admin.schema_created admin.schema_dropped admin.schema_validation_set admin.tenant_dropped
        admin.tenant_set backpressure.cleared backpressure.dropped backpressure.rejected backpressure.warning
        bulk.cancel.completed bulk.delete.completed bulk.enqueue.completed bulk.retry.completed cron.skipped
        cron.triggered dead_letter.added dead_letter.pruned dead_letter.replayed job.cancelled job.completed
        job.discarded job.enqueued job.expired job.failed job.heartbeat job.progress job.retrying job.scheduled
        job.stalled job.started job.timeout job.total_timeout job.ttl_expired job.updated
        queue.deduplication_key_freed queue.paused queue.resumed rate_limit.dropped rate_limit.dynamic_adjusted
        rate_limit.exceeded rate_limit.released scheduling.rebalanced tenant.created tenant.limit_exceeded
        webhook.dead webhook.delivered webhook.failed webhook.subscription.created webhook.subscription.deleted
        worker.heartbeat worker.quiet worker.started worker.stopped workflow.callback_fired workflow.cancelled
        workflow.completed workflow.created workflow.extended workflow.failed workflow.started
        workflow.step_completed', e' \n'), '[[:space:]]+')
$$;

-- Refuses types of which nothing would ever come: misspelt ones, and those that are delivered to nobody.
create function ojs_store.check_webhook_events(wanted text[]) returns void
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    known constant text[] := ojs_store.event_types();
    bad text := (select w from unnest(wanted) w
        where not exists (select from unnest(known) k where ojs_store.matches(k, array[w])) limit 1);
    alike text := (select string_agg(k, ', ') from unnest(known) k
        where split_part(k, '.', 1) = split_part(bad, '.', 1));
begin
    if bad is not null then
        perform ojs_store.raise('INVALID_PAYLOAD', format('there are no events of type %s', bad),
            '{"field": "events"}', coalesce('There are ' || alike || '.', format('Types begin with %s.',
                (select string_agg(distinct split_part(k, '.', 1), ', ') from unnest(known) k))));
    elsif wanted <@ '{webhook.delivered,webhook.failed,webhook.dead}' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'events about deliveries are not delivered',
            '{"field": "events"}', 'Read webhook.dead from ojs.events, and the rest from ojs.webhook_deliveries.');
    end if;
end $$;

-- A secret that is given, or a new one.
create function ojs_store.webhook_secret(given jsonb) returns text
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if coalesce(given, 'null') = 'null' then
        return 'whsec_' || encode(sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())), 'hex');
    elsif jsonb_typeof(given) <> 'string' or given #>> '{}' !~ '^[!-~]{8,255}$' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'secret must be 8 to 255 visible ASCII characters',
            '{"field": "secret"}', 'Leave it out to have one made.');
    end if;
    return given #>> '{}';
end $$;

-- The subscription with these settings, checked; what is not given stays.
create function ojs_store.webhook_with(w ojs_store.webhook, given jsonb) returns ojs_store.webhook
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    bad text;
    filter jsonb := nullif(given -> 'filter', 'null');
    allowed constant text[] := '{url,events,filter,active,secret,metadata,timeout_seconds}';
begin
    if jsonb_typeof(given) is distinct from 'object' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'def must be an object', '{"field": "def"}',
            'Give an object such as {"url": "https://example.com/hook", "events": ["job.failed"]}.');
    end if;
    select key into bad from jsonb_object_keys(given) key where key <> all (allowed) limit 1;
    if found then
        perform ojs_store.raise('INVALID_PAYLOAD', format('%s is no setting of a subscription', left(bad, 64)),
            jsonb_build_object('field', left(bad, 64)), format('It takes %s.', array_to_string(allowed, ', ')));
    end if;
    w.url := coalesce(given ->> 'url', w.url);
    -- Without a user and a password, which would be shown wherever the address is.
    if w.url is null or jsonb_typeof(given -> 'url') <> 'string' or octet_length(w.url) > 2048
        or w.url !~ ('^https?://([A-Za-z0-9_][A-Za-z0-9._-]{0,252}|[[][0-9A-Fa-f:.]+[]])(:[0-9]{1,5})?'
            '([/?][!"$-~]*)?$') then
        perform ojs_store.raise('INVALID_PAYLOAD',
            'url must be an https URL of at most 2048 bytes, without a user, a password and a fragment',
            '{"field": "url"}', 'Give one such as https://example.com/hook.');
    elsif coalesce(substring(w.url from '^https?://[^/?]*:([0-9]+)([/?]|$)'), '443')::int not between 1 and 65535 then
        perform ojs_store.raise('INVALID_PAYLOAD', 'the port of url must be from 1 to 65535', '{"field": "url"}',
            'Give one such as https://example.com:8443/hook.');
    elsif given ? 'url' and w.url like 'http:%' and not current_setting('ojs.webhooks_over_http')::boolean then
        perform ojs_store.raise('INVALID_PAYLOAD', 'url must begin with https://', '{"field": "url"}',
            'Give an https URL, or for tests set ojs.webhooks_over_http.');
    end if;
    w.events := coalesce(ojs_store.webhook_texts(given -> 'events', 'events',
        '^([*]|[a-z][a-z0-9_]*([.][a-z0-9_]+)*([.][*])?)$',
        'Give types of events such as ["job.completed", "workflow.*"], or ["*"].'), w.events);
    if w.events is null then
        perform ojs_store.raise('INVALID_PAYLOAD', 'events is missing', '{"field": "events"}',
            'Give types of events such as ["job.completed", "workflow.*"], or ["*"].');
    end if;
    if coalesce(given -> 'events', 'null') <> 'null' then
        perform ojs_store.check_webhook_events(w.events);
    end if;
    if given ? 'filter' then
        if jsonb_typeof(filter) <> 'object'
            or exists (select from jsonb_object_keys(filter) key where key not in ('queues', 'job_types')) then
            perform ojs_store.raise('INVALID_PAYLOAD', 'filter must be an object of queues and job_types',
                '{"field": "filter"}', 'Give an object such as {"queues": ["mail"], "job_types": ["email.*"]}.');
        end if;
        w.queues := ojs_store.webhook_texts(filter -> 'queues', 'filter.queues', '^[a-z0-9][a-z0-9.@_:A-Z-]*$',
            'Give names of queues.');
        w.job_types := ojs_store.webhook_texts(filter -> 'job_types', 'filter.job_types',
            '^([*]|[a-z][a-z0-9_-]*([.][a-z][a-z0-9_-]*)*([.][*])?)$', 'Give types of jobs, such as ["email.*"].');
    end if;
    if coalesce(jsonb_typeof(given -> 'active'), 'boolean') <> 'boolean' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'active must be a boolean', '{"field": "active"}',
            'Give true or false.');
    elsif coalesce(jsonb_typeof(given -> 'metadata'), 'object') <> 'object'
        or octet_length(given ->> 'metadata') > 8192 then
        perform ojs_store.raise('INVALID_PAYLOAD', 'metadata must be an object of at most 8192 bytes',
            '{"field": "metadata"}', 'Give an object such as {"owner": "platform-team"}.');
    elsif given ? 'timeout_seconds' and (given -> 'timeout_seconds')::text !~ '^([5-9]|[1-5][0-9]|60)$' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'timeout_seconds must be a whole number from 5 to 60',
            '{"field": "timeout_seconds"}', 'Leave it out for 30.');
    end if;
    w.active := coalesce((given -> 'active')::boolean, w.active, true);
    w.metadata := coalesce(given -> 'metadata', w.metadata, '{}');
    w.timeout_s := coalesce((given ->> 'timeout_seconds')::int, w.timeout_s, 30);
    return w;
end $$;

-- The subscription, for whoever may see it; null if there is none. Calls that change subscriptions take turns.
create function ojs_store.webhook_locked(id uuid) returns ojs_store.webhook
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    found_one ojs_store.webhook;
begin
    perform ojs_store.lock_setting('ojs_store.webhook', '');
    select * into found_one from ojs_store.webhook w
    where w.id = webhook_locked.id and ojs_store.may_see_tenant(w.tenant);
    return found_one;
end $$;

create function ojs_store.no_such_webhook(id uuid, what text) returns void
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_store.raise('INVALID_PAYLOAD', 'id is missing', '{"field": "id"}',
        'The views ojs.webhooks and ojs.webhook_deliveries list what is there.') where id is null;
    select ojs_store.raise('NOT_FOUND', format('%s %s does not exist', what, id),
        jsonb_build_object('resource_type', what, 'resource_id', id),
        'The views ojs.webhooks and ojs.webhook_deliveries list what is there.')
$$;

create function ojs.create_webhook(def jsonb) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    most constant int := 100;
    most_of_tenant constant int := 20;
    at timestamptz := ojs_store.now(); -- also loads the library, and with it its settings
    w ojs_store.webhook;
begin
    w := ojs_store.webhook_with(null, def);
    w.id := gen_random_uuid();
    w.tenant := ojs_store.caller_tenant();
    w.role := ojs_store.calling_role();
    w.secret := ojs_store.webhook_secret(def -> 'secret');
    w.created_at := at;
    w.changed_at := at;
    perform ojs_store.lock_setting('ojs_store.webhook', '');
    if (select count(*) from ojs_store.webhook) >= most then
        perform ojs_store.raise('UNAVAILABLE', format('there are %s subscriptions already', most), '{}',
            'Drop those that nobody needs.');
    elsif (select count(*) from ojs_store.webhook h where h.tenant = w.tenant) >= most_of_tenant then
        perform ojs_store.raise('UNAVAILABLE', format('the tenant has %s subscriptions already', most_of_tenant), '{}',
            'Drop those that nobody needs, or have one address get more types of events.');
    end if;
    -- With these a tick need not look at each job that is kept. To make them once more would lock the tables anyhow.
    if to_regclass('ojs_store.job_created') is null then
        perform ojs.index_events();
    end if;
    insert into ojs_store.webhook_cursor (only_one, cursor, tidied_at) values (true, ojs_store.cursor_now(), at)
        on conflict do nothing;
    insert into ojs_store.webhook select w.*;
    insert into ojs_store.webhook_status (webhook) values (w.id);
    perform ojs_store.record_audit('webhook_created', 'sub_' || w.id, null, ojs_store.webhook_json(w), null);
    perform ojs_store.record_event('webhook.subscription.created', 'sub_' || w.id,
        jsonb_build_object('subscription_id', 'sub_' || w.id));
    perform ojs_store.ask_for_worker();
    return ojs_store.webhook_json(w) || jsonb_build_object('secret', w.secret);
end $$;
comment on function ojs.create_webhook(jsonb)
    is 'Has events delivered to an HTTPS address from now on. The answer alone shows the secret that signs them';

create function ojs.update_webhook(id uuid, changes jsonb) returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    before ojs_store.webhook := ojs_store.webhook_locked(id);
    w ojs_store.webhook;
begin
    if before.id is null then
        perform ojs_store.no_such_webhook(id, 'subscription');
    elsif changes ? 'secret' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'secret cannot be changed here', '{"field": "secret"}',
            'Use ojs.rotate_webhook_secret, which lets the old one sign for a while.');
    end if;
    w := ojs_store.webhook_with(before, changes);
    -- Else who gives the address would get what another one may read. Who changes the rest gives nobody more to read.
    if changes ? 'url' then
        w.role := ojs_store.calling_role();
        if not coalesce(pg_has_role(w.role, to_regrole(quote_ident(before.role))::oid, 'member'), false) then
            -- What waits or is kept was for the other one. The status first, as for whoever writes deliveries.
            perform from ojs_store.webhook_status s where s.webhook = w.id for update;
            delete from ojs_store.webhook_delivery d where d.webhook = w.id;
            update ojs_store.webhook_status s set dropped = s.dropped + s.pending, pending = 0, pending_bytes = 0
            where s.webhook = w.id;
        end if;
    end if;
    update ojs_store.webhook o set url = w.url, events = w.events, queues = w.queues, job_types = w.job_types,
        active = w.active, metadata = w.metadata, timeout_s = w.timeout_s, role = w.role, changed_at = ojs_store.now()
    where o.id = w.id;
    perform ojs_store.record_audit('webhook_updated', 'sub_' || w.id, ojs_store.webhook_json(before),
        ojs_store.webhook_json(w), null);
    return ojs_store.webhook_json(w);
end $$;
comment on function ojs.update_webhook(uuid, jsonb)
    is 'Changes a subscription: what is not given stays. While active is false nothing new is delivered';

create function ojs.drop_webhook(id uuid) returns boolean
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    before ojs_store.webhook := ojs_store.webhook_locked(id);
begin
    if before.id is null then
        return false;
    end if;
    -- The status first: who has it is about to write deliveries.
    delete from ojs_store.webhook_status s where s.webhook = before.id;
    delete from ojs_store.webhook w where w.id = before.id;
    delete from ojs_store.webhook_delivery d where d.webhook = before.id;
    delete from ojs_store.webhook_cursor where not exists (select from ojs_store.webhook);
    perform ojs_store.record_audit('webhook_dropped', 'sub_' || before.id, ojs_store.webhook_json(before), null, null);
    perform ojs_store.record_event('webhook.subscription.deleted', 'sub_' || before.id,
        jsonb_build_object('subscription_id', 'sub_' || before.id));
    return true;
end $$;
comment on function ojs.drop_webhook(uuid)
    is 'Ends a subscription, with what is still to be delivered and what is known of deliveries; false if there is '
       'none';

create function ojs.rotate_webhook_secret(id uuid, secret text default null, overlap interval default '24 hours')
    returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    before ojs_store.webhook := ojs_store.webhook_locked(id);
    new_secret text := ojs_store.webhook_secret(to_jsonb(secret));
begin
    if before.id is null then
        perform ojs_store.no_such_webhook(id, 'subscription');
    elsif overlap is null or overlap not between '0' and interval '30 days' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'overlap must be from 0 to 30 days', '{"field": "overlap"}',
            'Give an interval such as 24 hours; 0 if the old secret is known to others.');
    end if;
    update ojs_store.webhook w set secret = new_secret, former_secret = before.secret,
        former_until = ojs_store.now() + overlap, changed_at = ojs_store.now()
    where w.id = before.id;
    perform ojs_store.record_audit('webhook_secret_rotated', 'sub_' || before.id, null, null, null);
    return ojs_store.webhook_json(before) || jsonb_build_object('secret', new_secret,
        'former_secret_until', ojs_store.time_text(ojs_store.now() + overlap));
end $$;
comment on function ojs.rotate_webhook_secret(uuid, text, interval)
    is 'Gives a subscription a new secret, which the answer shows. For a while the old one signs as well';

-- sql/webhook_deliveries.sql

-- webhook_deliveries.sql: events on their way to subscriptions (WHK-02). A duty of the tick makes events deliveries; a
-- sender outside of the database (gateway/sender.cpp) claims them, sends them, and says what came of it. C++:
-- src/admin/webhook.cpp.

create function ojs_store.hmac_sha256(key text, content text) returns text
language c immutable strict parallel safe as 'MODULE_PATHNAME', 'ojs_hmac_sha256';

create view ojs.webhook_deliveries with (security_barrier) as
select d.id, d.webhook, d.event_id, d.event_type, d.state, d.attempts, d.created_at,
    case when d.state = 'pending' then greatest(d.due_at, d.created_at) end as due_at, d.lease is not null as leased,
    d.finished_at, d.status_code, d.error, d.duration_ms,
    -- An administrator may not read all queues; who made the subscription was allowed to read this.
    case when mine.yes then d.response end as response, case when mine.yes then d.body end as body
from ojs_store.webhook_delivery d join ojs_store.webhook w on w.id = d.webhook
cross join lateral (select pg_has_role(to_regrole(quote_ident(w.role))::oid, 'member') as yes) mine
where ojs_store.may_see_tenant(w.tenant);
comment on view ojs.webhook_deliveries
    is 'Deliveries of events: those that are pending, and the last ones that were delivered or are dead. For ojs_admin';

-- Whether whoever made a subscription may read an event, and it is of the subscription's tenant.
create function ojs_store.webhook_may_read(role text, tenant text, type text, queue text, subject text) returns boolean
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    reader oid := to_regrole(quote_ident(role));
    queue_names text[];
begin
    if reader is null then
        return false;
    elsif queue is not null then
        queue_names := array[queue];
    elsif type like 'workflow.%' then
        -- All of its queues. One that is gone: who sees everything hears of it.
        select array(select q.name from ojs_store.queue q where q.id = any (root.queues)) into queue_names
        from ojs_store.workflow f join ojs_store.workflow root on root.id = f.root
        where f.id = case when subject ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then subject::uuid end;
    elsif type like 'cron.%' then
        select array[ojs_store.queue_of(c.job) || coalesce('@' || (c.job #>> '{meta,tenant_id}'), '')] into queue_names
        from ojs_store.cron c where c.name = subject;
    end if;
    if coalesce(cardinality(queue_names), 0) = 0 then
        return tenant is null;
    end if;
    return not exists (select from unnest(queue_names) name
        where tenant <> split_part(name, '@', 2)
            or not ojs_store.role_may_use_queue(reader, name, 'read'));
end $$;

-- What is sent: the event as ojs.events has it. A tenant hears of its queues by their plain names. Of an event that is
-- too large, what is small in it.
create function ojs_store.webhook_body(event jsonb, tenant text) returns text
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    most constant int := 65536;
    body text;
begin
    if tenant is not null and event #>> '{data,queue}' like '%@%' then
        event := jsonb_set(event, '{data,queue}', to_jsonb(split_part(event #>> '{data,queue}', '@', 1)));
        event := jsonb_set(event, '{source}', to_jsonb(regexp_replace(event ->> 'source', '(@|%40)[^/]*$', '')));
    end if;
    if octet_length(event::text) > most then
        event := jsonb_set(event, '{data}', coalesce((
            select jsonb_object_agg(small.key, small.value) from (
                select d.key, d.value from jsonb_each(event -> 'data') d where octet_length(d.value::text) <= 512
                order by d.key limit 32) small), '{}') || '{"truncated": true}');
    end if;
    body := event::text;
    -- One body that cannot be sent in UTF-8 would stop every sender. SQL_ASCII holds any bytes, and other encodings
    -- have characters that Unicode does not.
    if getdatabaseencoding() <> 'UTF8' and body ~ e'[^\\x01-\\x7f]' then
        begin
            perform convert_to(body, 'UTF8');
        exception when character_not_in_repertoire or untranslatable_character then
            body := regexp_replace(body, e'[^\\x01-\\x7f]', '?', 'g');
        end;
    end if;
    return body;
end $$;

-- For the tick: turns at most 1000 events into at most 10000 deliveries, and removes what is known of old ones. One
-- session at a time. In the transaction that moves the cursor: so no event is lost, and none is delivered anew. Returns
-- whether there is more to do.
create function ojs_store.tend_webhooks(most int) returns boolean
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $$
declare
    most_pending constant int := 10000;
    most_bytes constant bigint := 64 * 1024 * 1024;
    at timestamptz := ojs_store.now();
    read_to ojs_store.webhook_cursor;
    page jsonb;
    removed int := 0;
    more boolean := false;
begin
    select * into read_to from ojs_store.webhook_cursor c limit 1 for update skip locked;
    if not found then
        -- As after a restore: a cursor means nothing elsewhere.
        insert into ojs_store.webhook_cursor (only_one, cursor, missed, tidied_at)
            select true, ojs_store.cursor_now(), 1, at where exists (select from ojs_store.webhook)
            and not exists (select from ojs_store.webhook_cursor)
            on conflict do nothing;
        return false;
    end if;
    begin
        page := ojs_store.read_events(read_to.cursor,
            array(select distinct e from ojs_store.webhook w, unnest(w.events) e where w.active), null, null,
            -- Not more at once than takes a second: until it is done, no other duty goes on.
            least(most, 1000, greatest(10000 / greatest((select count(*) from ojs_store.webhook w where w.active), 1),
                1))::int, false, true);
    exception when sqlstate 'OJ100' then -- a cursor of another server
        page := jsonb_build_object('events', '[]'::jsonb, 'cursor', ojs_store.cursor_now(), 'missed', true);
    end;
    if page -> 'events' <> '[]' then
        perform from ojs_store.webhook_status s order by s.webhook for update;
        -- What costs something is done once, however many subscriptions want the same.
        with events as materialized (
            select e.n, e.value, e.value ->> 'id' as id, e.value ->> 'type' as type, e.value ->> 'subject' as subject,
                (e.value ->> 'time')::timestamptz as time, e.value #>> '{data,queue}' as queue,
                e.value #>> '{data,job_type}' as job_type
            from jsonb_array_elements(page -> 'events') with ordinality e (value, n)
            where e.value ->> 'type' not in ('webhook.delivered', 'webhook.failed', 'webhook.dead')
        ), wanted as materialized (
            select w.id as webhook, e.n, e.id as event_id, e.type, e.time, w.role, w.tenant, e.queue, s.subject,
                dense_rank() over (order by w.role, w.tenant, e.queue, s.type, s.subject) as reading, s.type as kind
            from events e join ojs_store.webhook w on w.active and e.time >= w.created_at
                and ojs_store.matches(e.type, w.events)
                and (w.queues is null or w.queues && array[e.queue, split_part(e.queue, '@', 1)])
                and (w.job_types is null or coalesce(ojs_store.matches(e.job_type, w.job_types), false))
            -- What a queue has is read by the queue alone.
            cross join lateral (select case when e.queue is null then e.type end as type,
                case when e.queue is null then e.subject end as subject) s
        ), readable as materialized (
            select r.reading
            from (select distinct on (w.reading) w.* from wanted w order by w.reading) r
            where ojs_store.webhook_may_read(r.role, r.tenant, r.kind, r.queue, r.subject)
        ), bodies as materialized (
            select e.n, t.tenant, ojs_store.webhook_body(e.value, t.tenant) as body
            from (select distinct w.n, w.tenant from wanted w join readable r on r.reading = w.reading) t
            join events e on e.n = t.n
        ), matched as (
            select w.webhook, w.event_id, w.type, w.n, b.body,
                substr(ojs_store.event_id(w.time, w.webhook || ' ' || w.event_id), 5)::uuid as id
            from wanted w join readable r on r.reading = w.reading
            join bodies b on b.n = w.n and coalesce(b.tenant, '') = coalesce(w.tenant, '')
        ), sized as (
            select m.*, s.pending + row_number() over so_far <= most_pending
                and s.pending_bytes + sum(octet_length(m.body)) over so_far <= most_bytes as fits
            from matched m join ojs_store.webhook_status s on s.webhook = m.webhook
            window so_far as (partition by m.webhook order by m.n)
        ), stored as (
            insert into ojs_store.webhook_delivery (id, webhook, event_id, event_type, state, attempts, created_at,
                due_at, body)
            select z.id, z.webhook, z.event_id, z.type, 'pending', 0, at, at, z.body
            from sized z where z.fits order by z.n
            on conflict (id) do nothing
            returning webhook, octet_length(body) as bytes
        )
        update ojs_store.webhook_status s set pending = s.pending + c.stored, dropped = s.dropped + c.dropped,
            pending_bytes = s.pending_bytes + c.bytes
        from (
            select e.webhook, sum(e.stored) as stored, sum(e.dropped) as dropped, sum(e.bytes) as bytes
            from (
                select o.webhook, 1 as stored, 0 as dropped, o.bytes from stored o
                union all
                select z.webhook, 0, 1, 0 from sized z where not z.fits) e
            group by 1
        ) c
        where s.webhook = c.webhook;
    end if;
    more := coalesce((page -> 'has_more')::boolean, false);
    -- Not for nothing: where nothing happens, nothing is written.
    if page -> 'events' <> '[]' or more or page ? 'missed'
        or abs(split_part(page ->> 'cursor', '.', 2)::bigint - split_part(read_to.cursor, '.', 2)::bigint) > 10000000
    then
        update ojs_store.webhook_cursor set cursor = page ->> 'cursor',
            missed = read_to.missed + (page ? 'missed')::int;
    end if;

    if read_to.tidied_at not between at - interval '1 minute' and at then
        delete from ojs_store.webhook_delivery where id = any (array(
            select old.id
            from ojs_store.webhook w cross join unnest('{delivered,dead}'::text[]) kept_state
            cross join lateral (
                select d.id from ojs_store.webhook_delivery d
                where d.webhook = w.id and d.state = kept_state and d.state <> 'pending'
                    and d.finished_at <= greatest(at - interval '30 days', (
                        select k.finished_at from ojs_store.webhook_delivery k
                        where k.webhook = w.id and k.state = kept_state and k.state <> 'pending'
                        order by k.finished_at desc offset 1000 limit 1))
                order by d.finished_at limit most) old
            limit most));
        get diagnostics removed = row_count;
        if removed < most then
            update ojs_store.webhook_cursor set tidied_at = at;
        end if;
    end if;
    return more or removed >= most;
end $$;

-- SENDING ----------------------------------------------------------------------------------------------------------

-- A sender has each delivery for its timeout and a minute. An address that fails gets one at a time, others four: so a
-- slow one keeps no sender from the others. Those that fail get half of what is under way and what the sender can take
-- together: so many of them do not either.
create function ojs.claim_webhooks(
    max int default 50,
    out id uuid, out lease_id uuid, out url text, out timeout_seconds int, out headers text[], out body text
) returns setof record
language plpgsql volatile parallel unsafe security definer rows 10
set enable_seqscan = off set jit = off set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    most constant int := least(greatest(coalesce(claim_webhooks.max, 50), 1), 1000);
    at constant timestamptz := ojs_store.now();
    -- Receivers compare it with their clocks.
    stamp constant text := floor(extract(epoch from clock_timestamp()))::text;
begin
    if not exists (select from ojs_store.webhook) then
        return;
    end if;
    return query
        with hooks as materialized (
            select w.id, s.failures > 0 as failing, busy.n as busy
            from ojs_store.webhook w join ojs_store.webhook_status s on s.webhook = w.id
            cross join lateral (
                select count(*) as n from (
                    select from ojs_store.webhook_delivery l
                    where l.webhook = w.id and l.lease is not null and l.due_at > at limit 4) few) busy
            where w.active
        ), failing as materialized (
            select h.id
            from hooks h
            where h.failing and h.busy = 0 and exists (select from ojs_store.webhook_delivery d
                where d.webhook = h.id and d.state = 'pending' and d.due_at <= at)
            order by random()
            limit (select greatest(ceil((most + sum(b.busy)) / 2) - coalesce(sum(b.busy) filter (where b.failing), 0),
                0) from hooks b)
        ), due as (
            select d.id
            from (select f.id, 1 as places from failing f
                union all select h.id, 4 - h.busy from hooks h where not h.failing) h
            cross join lateral (
                select d.id from ojs_store.webhook_delivery d
                where d.webhook = h.id and d.state = 'pending' and d.due_at <= at
                order by d.due_at limit h.places
                for update skip locked) d
            order by random() limit most
        ), claimed as (
            update ojs_store.webhook_delivery d
            set lease = gen_random_uuid(), due_at = at + make_interval(secs => w.timeout_s + 60)
            from due, ojs_store.webhook w
            where d.id = due.id and w.id = d.webhook
            returning d.id, d.lease, d.event_type, d.body, w.id as webhook, w.url, w.timeout_s, w.secret,
                case when w.former_until > at then w.former_secret end as former_secret
        )
        select c.id, c.lease, c.url, c.timeout_s,
            array['Content-Type: application/json', 'User-Agent: OJS-Webhook/1.0',
                'X-OJS-Event-Type: ' || c.event_type, 'X-OJS-Delivery-ID: del_' || c.id,
                'X-OJS-Subscription-ID: sub_' || c.webhook, 'X-OJS-Timestamp: ' || stamp,
                'X-OJS-Signature: sha256=' || ojs_store.hmac_sha256(c.secret, stamp || '.' || c.body)
                    || coalesce(',sha256=' || ojs_store.hmac_sha256(c.former_secret, stamp || '.' || c.body), '')],
            c.body
        from claimed c;
end $$;
comment on function ojs.claim_webhooks(int)
    is 'For a sender: deliveries that are due, each with its address, its signed headers and its body, for its timeout '
       'and a minute';

-- When a delivery is tried again that failed so many times; null: it is dead.
create function ojs_store.webhook_delay(attempts int) returns interval
language sql immutable strict parallel safe
begin atomic
    select make_interval(secs => ('{30,120,600,3600,14400,43200,86400}'::int[])[attempts]);
end;

-- Locks the status of subscriptions, and returns those that it has. In one order: two senders and the tick do not wait
-- for each other crosswise. These have one for a moment, but an open transaction may have it for hours: that one is
-- left out, so that it holds up no other.
create function ojs_store.lock_webhooks(hooks uuid[]) returns uuid[]
language plpgsql volatile parallel unsafe set lock_timeout = '100ms' set search_path = pg_catalog, pg_temp as $$
begin
    return array(select s.webhook from ojs_store.webhook_status s where s.webhook = any (hooks)
        order by s.webhook for update);
exception when lock_not_available then
    return array(select s.webhook from ojs_store.webhook_status s where s.webhook = any (hooks)
        order by s.webhook for update skip locked);
end $$;

create function ojs.finish_webhooks(results jsonb, out finished int, out busy uuid[]) returns record
language plpgsql volatile parallel unsafe security definer
set enable_seqscan = off set jit = off set search_path = pg_catalog, pg_temp as $$
declare
    at constant timestamptz := ojs_store.now();
    result record;
    taken uuid[];
begin
    finished := 0;
    if jsonb_typeof(results) is distinct from 'array' or jsonb_array_length(results) > 1000 then
        perform ojs_store.raise('INVALID_PAYLOAD', 'results must be an array of at most 1000 objects',
            '{"field": "results"}', 'Give what ojs.claim_webhooks gave, and what came of it.');
    end if;
    taken := ojs_store.lock_webhooks(array(select d.webhook from ojs_store.webhook_delivery d
        join jsonb_to_recordset(results) r (id uuid) on r.id = d.id));
    busy := array(select r.id from jsonb_to_recordset(results) r (id uuid, lease_id uuid)
        join ojs_store.webhook_delivery d on d.id = r.id and d.lease = r.lease_id and d.state = 'pending'
        where d.webhook <> all (taken));
    for result in
        select d.id, d.webhook, d.event_id, d.event_type, d.attempts + 1 as attempts, octet_length(d.body) as bytes,
            r.status_code, left(r.error, 500) as error, left(r.response, 1000) as response,
            least(greatest(r.duration_ms, 0), 1000000) as duration_ms, o.delivered,
            case when not o.delivered and d.event_type <> 'webhook.test'
                and (r.status_code not between 400 and 499 or r.status_code = 429 or r.status_code is null)
                -- as the receiver asks for it, as long as attempts are left
                then at + case when r.retry_after > 0 and r.status_code in (429, 503) and d.attempts < 7
                    then make_interval(secs => least(r.retry_after, 86400))
                    else ojs_store.webhook_delay(d.attempts + 1) end end as again_at
        from jsonb_to_recordset(results) r (id uuid, lease_id uuid, status_code int, error text, response text,
            duration_ms int, retry_after int)
        cross join lateral (select coalesce(r.status_code between 200 and 299, false) as delivered) o
        join ojs_store.webhook_delivery d on d.id = r.id and d.lease = r.lease_id and d.state = 'pending'
            and d.webhook = any (taken)
        order by d.id
        for update of d
    loop
        update ojs_store.webhook_delivery d set attempts = result.attempts, lease = null,
            state = case when result.delivered then 'delivered' when result.again_at is null then 'dead'
                else 'pending' end,
            due_at = result.again_at, finished_at = case when result.again_at is null then at end,
            status_code = result.status_code, error = result.error, response = result.response,
            duration_ms = result.duration_ms, body = case when not result.delivered then d.body end
        where d.id = result.id and d.lease is not null;
        continue when not found; -- named twice
        update ojs_store.webhook_status s set attempted_at = at,
            pending = s.pending - (result.again_at is null)::int,
            pending_bytes = s.pending_bytes - case when result.again_at is null then result.bytes else 0 end,
            delivered = s.delivered + result.delivered::int, retried = s.retried + (result.again_at is not null)::int,
            dead = s.dead + (not result.delivered and result.again_at is null)::int,
            failures = case when result.delivered then 0 else least(s.failures, 1000000) + 1 end
        where s.webhook = result.webhook;
        if not result.delivered and result.again_at is null and result.event_type <> 'webhook.test' then
            perform ojs_store.record_event('webhook.dead', 'del_' || result.id, jsonb_strip_nulls(jsonb_build_object(
                'delivery_id', 'del_' || result.id, 'subscription_id', 'sub_' || result.webhook,
                'event_id', result.event_id, 'event_type', result.event_type, 'attempts', result.attempts,
                'status_code', result.status_code)));
        end if;
        finished := finished + 1;
    end loop;
end $$;
comment on function ojs.finish_webhooks(jsonb)
    is 'For a sender: what came of deliveries that it claimed. Returns how many of them were still its own, and those '
       'to be told again, since an open transaction has their subscription';

create function ojs.retry_webhook_delivery(id uuid) returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    found_one record;
begin
    perform from ojs_store.webhook_status s join ojs_store.webhook_delivery d on d.webhook = s.webhook
    where d.id = retry_webhook_delivery.id for update of s;
    select d.state, d.webhook, octet_length(d.body) as bytes into found_one
    from ojs_store.webhook_delivery d join ojs_store.webhook w on w.id = d.webhook
    where d.id = retry_webhook_delivery.id and ojs_store.may_see_tenant(w.tenant) for update of d;
    if not found then
        perform ojs_store.no_such_webhook(id, 'delivery');
    elsif found_one.state = 'delivered' then
        perform ojs_store.raise('INVALID_STATE_TRANSITION', format('delivery %s was delivered', id),
            jsonb_build_object('delivery_id', id, 'current_state', 'delivered', 'attempted', 'retry'),
            'Retry those that are dead or pending.');
    end if;
    update ojs_store.webhook_delivery d set state = 'pending', attempts = 0, due_at = ojs_store.now(),
        finished_at = null
    where d.id = retry_webhook_delivery.id and d.lease is null;
    if found_one.state = 'dead' then
        update ojs_store.webhook_status s set pending = s.pending + 1, pending_bytes = s.pending_bytes + found_one.bytes
        where s.webhook = found_one.webhook;
    end if;
    perform ojs_store.record_audit('webhook_delivery_retried', 'del_' || id, null, null, null);
end $$;
comment on function ojs.retry_webhook_delivery(uuid)
    is 'Has a dead delivery, or a pending one that waits, sent at once, with all its attempts';

create function ojs.test_webhook(id uuid, delivery_id uuid default null) returns uuid
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    at constant timestamptz := ojs_store.now();
    new_id constant uuid := coalesce(delivery_id, gen_random_uuid());
    text_of_it text;
begin
    perform from ojs_store.webhook_status s join ojs_store.webhook w on w.id = s.webhook
    where s.webhook = test_webhook.id and ojs_store.may_see_tenant(w.tenant) for update of s;
    if not found then
        perform ojs_store.no_such_webhook(id, 'subscription');
    end if;
    if not (select w.active from ojs_store.webhook w where w.id = test_webhook.id) then
        perform ojs_store.raise('INVALID_STATE_TRANSITION', format('subscription %s is not active', id),
            jsonb_build_object('subscription_id', id, 'current_state', 'inactive', 'attempted', 'test'),
            'Set active to true first.');
    end if;
    text_of_it := jsonb_build_object('specversion', '1.0', 'id', 'evt_' || new_id, 'type', 'webhook.test',
        'source', 'ojs://' || ojs_store.uri_part(current_database()::text) || '/webhooks/sub_' || id,
        'time', ojs_store.time_text(at), 'subject', 'sub_' || id,
        'data', jsonb_build_object('subscription_id', 'sub_' || id))::text;
    insert into ojs_store.webhook_delivery (id, webhook, event_id, event_type, state, attempts, created_at, due_at,
        body)
    select new_id, test_webhook.id, 'evt_' || new_id, 'webhook.test', 'pending', 0, at, '-infinity', text_of_it
    on conflict do nothing;
    if found then
        update ojs_store.webhook_status s set pending = s.pending + 1,
            pending_bytes = s.pending_bytes + octet_length(text_of_it)
        where s.webhook = test_webhook.id;
    elsif not exists (select from ojs_store.webhook_delivery d where d.id = new_id and d.webhook = test_webhook.id) then
        perform ojs_store.raise('INVALID_PAYLOAD', 'delivery_id is taken', '{"field": "delivery_id"}',
            'Leave it out.');
    end if;
    return new_id;
end $$;
comment on function ojs.test_webhook(uuid, uuid)
    is 'Has an event webhook.test sent to a subscription, once; returns the id of that delivery';

-- sql/rebuild.sql

-- rebuild.sql: how the hot set learns that logged tables were changed by SQL, and the safety net under it.
-- C++: src/hot_set/rebuild.cpp.

-- Fires for COPY and INSERT, as in a restore; direct table access fires no trigger.
create function ojs_store.hot_set_lost() returns trigger
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_hot_set_lost';

create trigger hot_set_lost after insert on ojs_store.job for each statement execute function ojs_store.hot_set_lost();
create trigger hot_set_lost after insert on ojs_store.job_history for each statement execute function
    ojs_store.hot_set_lost();
create trigger hot_set_lost after insert on ojs_store.finished for each statement execute function
    ojs_store.hot_set_lost();
create trigger hot_set_lost after insert on ojs_store.checkpoint for each statement execute function
    ojs_store.hot_set_lost();
alter table ojs_store.job enable always trigger hot_set_lost;
alter table ojs_store.job_history enable always trigger hot_set_lost;
alter table ojs_store.finished enable always trigger hot_set_lost;
alter table ojs_store.checkpoint enable always trigger hot_set_lost;

-- Sessions that have cached these read them again, whoever changes the rows: a restore does so, too.
create function ojs_store.rows_changed() returns trigger
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.changed(case when tg_nargs = 0 then tg_relid::regclass else tg_argv[0]::regclass end);
    return null;
end $$;

create trigger changed after insert on ojs_store.queue -- ticks, too, remove what is over: that changes nothing
    for each statement execute function ojs_store.rows_changed();
create trigger changed after insert or update or delete or truncate on ojs_store.maintenance
    for each statement execute function ojs_store.rows_changed();
create trigger changed after insert or update or delete or truncate on ojs_store.pool
    for each statement execute function ojs_store.rows_changed();
create trigger changed after insert or update or delete or truncate on ojs_store.tenant_role
    for each statement execute function ojs_store.rows_changed();
create trigger changed after insert or update or delete or truncate on ojs_store.hook
    for each statement execute function ojs_store.rows_changed();
create trigger changed after insert or update or delete or truncate on ojs_store.job_schema
    for each statement execute function ojs_store.rows_changed();
create trigger changed after insert or update or delete or truncate on ojs_store.schema_mode
    for each statement execute function ojs_store.rows_changed('ojs_store.job_schema'); -- read together
create trigger changed after insert on ojs_store.rate_limit
    for each statement execute function ojs_store.rows_changed();
alter table ojs_store.queue enable always trigger changed;
alter table ojs_store.maintenance enable always trigger changed;
alter table ojs_store.pool enable always trigger changed;
alter table ojs_store.tenant_role enable always trigger changed;
alter table ojs_store.hook enable always trigger changed;
alter table ojs_store.job_schema enable always trigger changed;
alter table ojs_store.schema_mode enable always trigger changed;
alter table ojs_store.rate_limit enable always trigger changed;

-- Sessions that have cached the key of name_hash, and hashes made with it, read it again.
create function ojs_store.name_key_changed() returns trigger
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.changed('ojs_store.name_key');
    perform ojs_store.changed('ojs_store.rate_limit');
    return null;
end $$;

create trigger name_key_changed after insert or update or delete on ojs_store.name_key
for each row execute function ojs_store.name_key_changed();
alter table ojs_store.name_key enable always trigger name_key_changed;

-- Open jobs that are in none of ready, lease and delayed, by one snapshot, and where the newest event puts each: a kind
-- of `delayed`, null for one that can be claimed, or begun for one that may be delivered only once and was, held for
-- one under a durable lease. The order of events is that of read_history() in src/state/status.cpp, and the times of
-- expiry are those of src/job/deadlines.cpp; test/pgtap/upkeep.sql compares them.
create view ojs_store.lost_jobs as
with newest as materialized (
    select distinct on (job_history.job_id, job_history.kind = 5)
        job_history.job_id, job_history.kind, job_history.at, job_history.due_at, job_history.attempt,
            job_history.deliveries, job_history.started_at,
        job_history.worker, job_history.data
    from ojs_store.job_history
    where not exists (select from ojs_store.finished where finished.job_id = job_history.job_id)
    order by job_history.job_id, job_history.kind = 5, job_history.deliveries desc,
        job_history.kind in (7, 8),
        job_history.at desc, job_history.ctid desc
)
select
    job.id, job.ctid as tid, job.seq,
    coalesce((moved.data ->> 'queue')::bigint, job.queue) as queue,
    (-coalesce((moved.data ->> 'priority')::int, job.priority))::smallint as npriority,
    case when last.job_id is null and moved.job_id is null then job.flags else job.flags | 32 end
        | case when job.id in (select job_id from ojs_store.checkpoint)
            or job.id in (select job_id from ojs_store.progress)
            then 512 else 0 end as flags,
    coalesce(last.attempt, 0) as attempt, coalesce(last.deliveries, 0) as deliveries, last.at, last.started_at,
    (case
        when last.kind is null and job.flags & 1 <> 0 then 3
        when last.kind is null and job.scheduled_at > (select ojs_store.promoted_to()) then 1
        when last.kind = 7 then 0
        when last.kind = 8 then 7
        when last.due_at > (select ojs_store.promoted_to()) and last.kind = 1
            then 2
        when last.due_at > (select ojs_store.promoted_to())
            and last.kind in (4, 6) then 1
        when last.due_at > (select ojs_store.promoted_to()) then 4
    end)::smallint as kind,
    case
        when last.kind is not null then last.due_at
        when job.flags & 1 <> 0 then 'infinity'
        else job.scheduled_at
    end as due_at,
    case when job.flags & 4 <> 0 then least(
        job.expires_at,
        case when coalesce(last.deliveries, 0) = 0 and jsonb_typeof(job.options -> 'enqueue_ttl') = 'number'
            then job.created_at + (job.options ->> 'enqueue_ttl')::float8 * interval '1 second' end,
        case when jsonb_typeof(job.options -> 'total_timeout') = 'number'
            then job.created_at + (job.options ->> 'total_timeout')::float8 * interval '1 second' end
    ) end as expires_at,
    last.worker, last.data, job.created_at
from ojs_store.job
left join newest last on last.job_id = job.id and last.kind <> 5
left join newest moved on moved.job_id = job.id and moved.kind = 5
where not exists (select from ojs_store.finished where finished.job_id = job.id)
    and not exists (select from ojs_store.ready where ready.job_id = job.id)
    and not exists (select from ojs_store.lease where lease.job_id = job.id)
    and not exists (select from ojs_store.delayed where delayed.job_id = job.id and delayed.kind <> 5);

create function ojs_store.reconcile(older_than interval default '1 minute') returns bigint
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_reconcile';
comment on function ojs_store.reconcile(interval)
    is 'Puts back open jobs that are in no place of the hot set, and counts them; done by the tick now and then';

-- sql/worker.sql

-- worker.sql: the background worker, and how the extension is doing. C++: src/background/worker.cpp and
-- src/admin/health.cpp.

create function ojs.start_worker() returns boolean
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_start_worker';
comment on function ojs.start_worker()
    is 'Starts this database''s upkeep worker where the library is not preloaded; false if one runs already';

create function ojs.health() returns jsonb
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_health';
comment on function ojs.health()
    is 'How the extension is doing: version, worker, wake-up, the last rebuild of the hot set, queues';

create function ojs.ready() returns boolean
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_ready';
comment on function ojs.ready() is 'Whether calls that write can be served here; false on a standby';

create function ojs_store.worker_running() returns boolean
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_worker_running';

create function ojs_store.ask_for_worker() returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_ask_for_worker';

-- The launcher hears of the extension when this transaction commits.
select ojs_store.ask_for_worker();

-- sql/workers.sql

-- workers.sql: the processes that work: what they are told, and which there are. C++: src/state/client_workers.cpp
-- (beats, and who claims nothing), src/state/dead_workers.cpp (whose heartbeats stopped).

-- Refuses what a worker says of the versions that it takes, if that cannot be read.
create function ojs_store.check_handlers(info jsonb) returns void
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_check_handlers';

-- Whether a version is in a range; null for what is no range.
create function ojs_store.in_range(versions text, version text) returns boolean
language c strict immutable parallel safe as 'MODULE_PATHNAME', 'ojs_in_range';

-- What a worker of the caller's is called in ojs_store.worker: NAME@TENANT for one who acts for a tenant.
create function ojs_store.stored_worker(name text) returns text
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_stored_worker';

create function ojs_store.check_worker(worker text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if coalesce(worker, '') = '' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'worker must not be empty', '{"field": "worker"}',
            'Name the worker, such as ''mailer-1''.');
    elsif octet_length(worker) > 255 then
        perform ojs_store.raise('INVALID_PAYLOAD', 'worker must not be longer than 255 bytes', '{"field": "worker"}',
            'Name the worker, such as ''mailer-1''.');
    end if;
end $$;

-- Whether a role may speak for a worker: its name belongs to the role that registered it, or sent its first beat,
-- until it dies.
create function ojs_store.owns_worker(w ojs_store.worker, role text) returns boolean
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select case
        when w.registered_by is null or w.registered_by = role or w.died_at is not null then true
        when pg_has_role(role, 'ojs_admin', 'usage') then true
        else not exists (select from pg_roles r where r.rolname = w.registered_by
        and not pg_has_role(role, r.oid, 'usage')) end
$$;

-- PERMISSION_DENIED for a worker of another role; null if nobody knows the worker.
create function ojs_store.check_owner(worker text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform from ojs_store.worker w where w.name = check_owner.worker
        and not ojs_store.owns_worker(w, ojs_store.calling_role());
    if found then
        perform ojs_store.raise('PERMISSION_DENIED', format('worker "%s" belongs to another role', left(worker, 64)),
            jsonb_build_object('worker', left(worker, 128), 'reason', 'worker_of_another_role'),
            'Choose another name, or have the role that registered it deregister it.');
    end if;
end $$;

-- Events of workers. A heartbeat is none: there would be more of them than of all others.
create function ojs_store.record_started(worker text) returns void
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_store.record_event('worker.started', w.name, jsonb_strip_nulls(jsonb_build_object('worker_id', w.name,
        'queues', w.info -> 'queues', 'concurrency', w.info -> 'concurrency')))
    from ojs_store.worker w where w.name = worker
$$;

-- The catalog of events knows shutdown, signal and error; `cause` says what it was here.
create function ojs_store.record_stopped(worker text, cause text, since timestamptz) returns void
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_store.record_event('worker.stopped', worker, jsonb_build_object('worker_id', worker,
        'reason', case cause when 'deregistered' then 'shutdown' else 'error' end, 'cause', cause,
        'uptime_ms', greatest(0, floor(extract(epoch from ojs_store.now() - since) * 1000))))
$$;

create function ojs.set_worker_state(worker text, state text) returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    wanted text := case state when 'drain' then 'quiet' else state end;
    at timestamptz := ojs_store.now();
begin
    if wanted is null or wanted not in ('running', 'quiet', 'terminate') then
        perform ojs_store.raise('INVALID_PAYLOAD', format('state must be running, quiet or terminate, not %s',
            coalesce(quote_ident(left(wanted, 64)), 'null')),
            '{"field": "state"}', 'Use quiet (or drain) to stop claims, terminate to end the worker, running to end a '
                'quiet time.');
    end if;
    if set_worker_state.worker is not null then
        perform ojs_store.check_worker(set_worker_state.worker);
    end if;
    lock table ojs_store.worker in row exclusive mode; -- not first to be read, as in bulk.sql
    perform ojs_store.record_audit('worker_directed', coalesce(set_worker_state.worker, '*'), null, null,
        jsonb_build_object('state', wanted));
    -- In the order of their names: two calls for all workers do not wait for each other crosswise.
    perform from ojs_store.worker w where set_worker_state.worker is null or w.name = set_worker_state.worker
        order by w.name for update;
    if wanted <> 'terminate' and exists (select from ojs_store.worker w where w.name = set_worker_state.worker
            and w.died_at is null and 'terminate' in (w.directive, w.state)) then
        perform ojs_store.raise('INVALID_STATE_TRANSITION',
            'the worker was told to terminate, and there is no way back from that',
            jsonb_build_object('current_state', 'terminate', 'attempted', wanted),
                'Start a new process; it registers, or takes a new name.');
    end if;
    -- Workers that were never told anything and send no heartbeats have no row yet; a running one needs none.
    insert into ojs_store.worker as w (name, directive, registered_at, seen_at)
        select known.name, wanted, at, at
        from (select set_worker_state.worker where set_worker_state.worker is not null
            union select l.worker from ojs_store.holders() l where set_worker_state.worker is null
            union select e.name from ojs_store.worker e where set_worker_state.worker is null) known (name)
        where wanted <> 'running' or exists (select from ojs_store.worker e where e.name = known.name)
        order by known.name collate "C"
    on conflict (name) do update set directive = excluded.directive
        where excluded.directive = 'terminate' or w.died_at is not null or 'terminate'
            not in (coalesce(w.directive, ''), w.state);
    perform ojs_store.changed('ojs_store.worker');
end $$;
comment on function ojs.set_worker_state(text, text)
    is 'Tells a worker (null: all of them) with its next beat to be running, quiet or terminate; one that is not '
       'running claims nothing';

create function ojs.register_worker(worker text, info jsonb default '{}') returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    at timestamptz := ojs_store.now();
    stopped boolean;
begin
    lock table ojs_store.worker in row exclusive mode; -- not first to be read, as in bulk.sql
    perform ojs_store.check_worker(register_worker.worker);
    register_worker.worker := ojs_store.stored_worker(register_worker.worker);
    perform ojs_store.check_owner(register_worker.worker);
    if jsonb_typeof(register_worker.info) is distinct from 'object' then
        perform ojs_store.raise('INVALID_PAYLOAD', 'info must be an object', '{"field": "info"}',
            'Give an object such as {"hostname": "h1", "pid": 77}.');
    elsif octet_length(register_worker.info::text) > 16384 then
        perform ojs_store.raise('PAYLOAD_TOO_LARGE', 'info must not be longer than 16384 bytes',
            '{"field": "info", "maximum": 16384}',
            'Keep what is large elsewhere, and name the place.');
    end if;
    perform ojs_store.check_handlers(register_worker.info);
    select w.directive is not null or w.state <> 'running' or w.info ? 'handlers' into stopped from ojs_store.worker w
        where w.name = register_worker.worker for update;
    if not found and (select count(*) from (select from ojs_store.worker limit 50000) w) >= 50000 then
        perform ojs_store.raise('UNAVAILABLE', 'there are 50000 workers already', '{"field": "worker"}',
            'Deregister workers that have ended, and give each process one name.');
    end if;
    -- This is a new process: what one of that name was told before is over.
    insert into ojs_store.worker as w (name, info, registered_at, seen_at, registered_by)
    values (register_worker.worker, register_worker.info, at, at, ojs_store.calling_role())
    on conflict (name) do update set directive = null, registered_by = excluded.registered_by, state = 'running',
        info = excluded.info, registered_at = at,
        seen_at = at, died_at = null, beats_for_jobs = false
        where ojs_store.owns_worker(w, ojs_store.calling_role());
    perform ojs_store.check_owner(register_worker.worker) where not found; -- another role was first
    if stopped or register_worker.info ? 'handlers' then
        perform ojs_store.changed('ojs_store.worker');
    end if;
    perform ojs_store.record_started(register_worker.worker);
    return jsonb_build_object('ok', true, 'server_time',
        to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
        'heartbeat_interval', 5, 'heartbeat_timeout', 30000000 / 1000000,
        'visibility_timeout_default',
            trim_scale(extract(epoch from current_setting('ojs.default_lease')::interval)::numeric));
end $$;
comment on function ojs.register_worker(text, jsonb)
    is 'Optional: says that a worker process begins, and tells it how often to send heartbeats (seconds)';

create function ojs.deregister_worker(worker text, release boolean default false) returns boolean
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    stopped boolean;
    since timestamptz;
    known boolean;
    held uuid[];
    stored text := ojs_store.stored_worker(deregister_worker.worker);
begin
    lock table ojs_store.worker, ojs_store.lease in row exclusive mode; -- not first to be read, as in bulk.sql
    perform ojs_store.check_worker(deregister_worker.worker);
    perform ojs_store.check_owner(stored);
    delete from ojs_store.worker w where w.name = stored
        returning w.directive is not null or w.state <> 'running' or w.info ? 'handlers', w.registered_at
            into stopped, since;
    known := found;
    if known then
        perform ojs_store.record_stopped(stored, 'deregistered', since);
    end if;
    if stopped then
        perform ojs_store.changed('ojs_store.worker');
    end if;
    if release then
        held := array(select l.job_id from ojs_store.lease l where l.worker = deregister_worker.worker
            and ojs_store.may_use_queue(l.queue, 'work'));
        for i in 0 .. (cardinality(held) - 1) / 1000 loop
            perform from ojs.nack_many(deregister_worker.worker, held[i * 1000 + 1 : i * 1000 + 1000]);
        end loop;
    end if;
    return known or coalesce(cardinality(held) > 0, false);
end $$;
comment on function ojs.deregister_worker(text, boolean)
    is 'A worker process ends: forgets it, and with release gives back the jobs it still holds; false if there was '
       'none';

-- What a worker does, if the newest lease that it holds is of this time.
create function ojs_store.worker_status(w ojs_store.worker, claimed_at timestamptz) returns text
language sql volatile parallel unsafe
begin atomic
    select case
        when w.died_at >= coalesce(claimed_at, '-infinity') then 'dead'
        when w.beats and w.died_at is null and greatest(w.seen_at, claimed_at) < ojs_store.now() - interval '15 s'
            then 'stale'
        when 'terminate' in (w.directive, w.state) then 'terminate'
        when 'quiet' in (w.directive, w.state) then 'quiet'
        else 'running'
    end;
end;

create view ojs.workers with (security_barrier) as
select
    coalesce(w.name, held.worker) collate "C" as worker,
    ojs_store.worker_status(w.whole, held.claimed_at) as status,
    w.state, w.directive, w.registered_at, greatest(w.seen_at, held.claimed_at) as last_seen_at, w.died_at,
    w.info ->> 'hostname' as hostname,
    case when w.info ->> 'pid' ~ '^[0-9]{1,9}$' then (w.info ->> 'pid')::int end as pid,
    case when jsonb_typeof(w.info -> 'queues') = 'array'
        then array(select jsonb_array_elements_text(w.info -> 'queues')) end as queues,
    case when w.info ->> 'concurrency' ~ '^[0-9]{1,9}$' then (w.info ->> 'concurrency')::int end as concurrency,
    case when jsonb_typeof(w.info -> 'labels') = 'array'
        then array(select jsonb_array_elements_text(w.info -> 'labels')) end as labels,
    coalesce(cardinality(held.ids), 0) as active_jobs, coalesce(held.ids, '{}') as active_job_ids, w.info
from (
    select case when t.tenant is null then k.name else left(k.name, -1 - length(t.tenant)) end collate "C" as name,
        k.info, k.registered_at, k.seen_at, k.beats, k.directive, k.state, k.died_at, k as whole
    from ojs_store.worker k, ojs_store.caller_tenant() t (tenant)
    where t.tenant is null or right(k.name, length(t.tenant) + 1) = '@' || t.tenant
) w full join ojs_store.holders() held on held.worker = w.name;
comment on view ojs.workers
    is 'Workers that have registered, sent a heartbeat or been told something, and those that hold jobs';

-- sql/canonical.sql

-- canonical.sql: canonical JSON and fingerprints. C++: src/job/canonical.cpp, src/job/unique_key.cpp.

create function ojs.canonical_json(jsonb) returns text
language c strict immutable parallel safe as 'MODULE_PATHNAME', 'ojs_canonical_json';
comment on function ojs.canonical_json(jsonb)
    is 'The RFC 8785 canonical text of a JSON value, its strings and keys in Unicode''s form NFC; numbers are rounded '
       'to doubles';

-- Stable, not immutable: what a valid job is depends on settings. Unsafe, not safe: the caller's tenant may have to be
-- read, by a snapshot that a parallel query cannot take.
create function ojs.fingerprint_input(job jsonb) returns text
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_fingerprint_input';
comment on function ojs.fingerprint_input(jsonb)
    is 'The canonical JSON that the fingerprint of an OJS envelope is made of; null for a job without a uniqueness '
       'policy';

create function ojs.fingerprint(job jsonb) returns text
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_fingerprint';
comment on function ojs.fingerprint(jsonb)
    is 'The fingerprint of an OJS envelope: SHA-256, in hex, of ojs.fingerprint_input; null for a job without a '
       'uniqueness policy';

-- sql/envelope.sql

-- envelope.sql: a job in the JSON form of the Open Job Spec.

create function ojs.envelope(job ojs.job) returns jsonb
    language c immutable strict parallel safe
    as 'MODULE_PATHNAME', 'ojs_envelope';
comment on function ojs.envelope(ojs.job) is
    'The OJS JSON envelope of a job: what is absent is left out, unknown attributes stand at the top level';

-- sql/manifest.sql

-- manifest.sql: what this implementation of OJS can do. Only what works and is tested stands here.

create function ojs.capabilities() returns jsonb
language sql stable parallel safe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object(
        'batch_enqueue', true, 'atomic_enqueue_many', true,
        'native_deduplication', true, 'native_retrial', true,
        'unique_jobs', true,
        'delayed_jobs', true, 'job_ttl', true, 'priority_queues', true, 'retry_policies', true,
        'cron_jobs', true, 'cron', true, 'dead_letter', true, 'pause_resume', true, 'rate_limiting', true,
        'schema_validation', true, 'workflows', true)
$$;
comment on function ojs.capabilities() is 'What this version can do, as flags; part of ojs.manifest()';

-- The extensions whose required capabilities are all there. `make conformance` fails for one of which a case does not
-- pass.
create function ojs_http.extensions() returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object(
        'official', jsonb_agg(jsonb_build_object('name', name, 'uri', 'urn:ojs:ext:' || name, 'version', '1.0.0')
            order by name) filter (where official),
        'experimental', jsonb_agg(jsonb_build_object('name', name, 'uri', 'urn:ojs:ext:experimental:' || name,
            'version', '1.0.0') order by name) filter (where not official))
    from (values ('admin-api', true), ('dead-letter', true), ('durable-execution', true), ('fair-scheduling', true),
        ('multi-tenancy', true), ('rate-limiting', true),
        ('schema-registry', true), ('webhooks', true),
        ('job-versioning', false), ('progress', false)) e (name, official)
$$;

-- A setting of ours that is a number of bytes. The server shows one in B, which pg_size_bytes() reads from 16 on.
create function ojs_http.bytes_of(setting text) returns bigint
language plpgsql stable parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    value text := current_setting(setting);
begin
    return case when value ~ '^[0-9]+B$' then left(value, -1)::bigint else pg_size_bytes(value) end;
end $$;

create function ojs.manifest() returns jsonb
language sql stable parallel safe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object(
        'specversion', '1.0', 'ojs_version', '1.0',
        'implementation', jsonb_build_object('name', 'ojs', 'version', ojs.version(), 'language', 'c++'),
        'conformance_level', 4, 'conformance_tier', 'runtime',
        'protocols', jsonb_build_array('http'), 'backend', 'postgres',
        'capabilities', ojs.capabilities(), 'unique_job_strength', 'strong', 'unique_job_mechanism',
            'a partial unique index over the SHA-256 of the key; its row is inserted or locked in the transaction of '
            'the '
            'push until that ends, and the states of the jobs it names are looked up under that lock',
        'delivery', jsonb_build_object('guarantees', jsonb_build_array('at-least-once', 'at-most-once'), 'default',
            'at-least-once', 'events', 'at-least-once',
            'ordering', jsonb_build_object('fifo',
                'within a queue, among jobs of equal priority, for a single worker that takes one job at a time',
                'none', jsonb_build_array('across workers', 'across priorities', 'across retries and redeliveries'))),
        'extensions', ojs_http.extensions(),
        'endpoints', '{"manifest": "/ojs/manifest", "health": "/ojs/v1/health"}'::jsonb,
        'payload_limits', jsonb_build_object(
            'max_envelope_bytes', ojs_http.bytes_of('ojs.max_envelope_size'),
            'max_meta_bytes', ojs_http.bytes_of('ojs.max_meta_size'),
            'max_queue_name_bytes', 128, 'max_job_type_bytes', 255,
            'external_references', true, 'chunking', false, 'per_queue_limits', false, 'supported_compression',
                '[]'::jsonb,
            'max_batch_size', current_setting('ojs.max_batch_size')::int,
            'max_args_depth', current_setting('ojs.max_args_depth')::int,
            'max_args_elements', current_setting('ojs.max_args_elements')::int))
$$;
comment on function ojs.manifest()
    is 'The conformance manifest of OJS: what this implementation is, what it can do, and its limits';

-- sql/node.sql

-- node.sql: a node of several servers behind a router: its number in ids, the jobs that wait, the keys that it holds.
-- The router is an extension of its own (router/). C++: src/pg/uuid.cpp.

create function ojs.node_of(id uuid) returns int
language sql immutable strict parallel safe set search_path = pg_catalog, pg_temp as $$
    select case when get_byte(uuid_send(id), 6) >> 4 = 7
        then (get_byte(uuid_send(id), 8) & 63) << 8 | get_byte(uuid_send(id), 9) end
$$;
comment on function ojs.node_of(uuid)
    is 'The node number that an id carries; without meaning if the id was made elsewhere or with ojs.node_id = 0';

-- A queue in maintenance hands out nothing, and neither does a paused one.
create function ojs.waiting(out queue text, out ready bigint) returns setof record
language plpgsql volatile parallel unsafe security definer rows 10 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    if pg_is_in_recovery() or exists (select from ojs_store.maintenance) then
        return;
    end if;
    return query
        with q as materialized (
            select a.name, ojs_store.queue_id(a.name) as id from ojs.queues a where a.state <> 'paused'
        )
        select ojs_store.shown_queue(q.name), c.ready
        from ojs_store.queue_rows(array(select q.id from q)) c join q on q.id = c.queue
        where c.ready > 0;
end $$;
comment on function ojs.waiting() is 'How many jobs claims could get now, by queue; queues without one are left out';

create function ojs.key_slot(key text) returns int
language sql immutable strict parallel safe set search_path = pg_catalog, pg_temp as $$
    select (get_byte(h, 0) << 4) | (get_byte(h, 1) >> 4) from sha256(convert_to(key, 'UTF8')) h
$$;
comment on function ojs.key_slot(text)
    is 'The slot (0 to 4095) of a key by which a router chooses a node';

-- Lines of ordering keys are lost in a crash: without this a key would seem free until they are back.
create function ojs_store.need_hot_set() returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if not ojs.ready() then
        perform ojs_store.raise('UNAVAILABLE', 'this server cannot tell yet which keys it holds', null,
            'It is a standby, or has crashed a moment ago. Try again.');
    end if;
end $$;

create function ojs.key_held(key text) returns boolean
language plpgsql volatile strict parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.need_hot_set();
    return case when ojs_store.caller_tenant() is not null then false -- for the router, which acts for nobody
        when key ~ '^[0-9a-f]{64}$'
            then exists (select from ojs_store.unique_key u where u.fingerprint = decode(key, 'hex') and u.held)
        when key like 'order: %'
            then exists (
                select from ojs_store.ordering_line l
                where l.key = ojs_store.name_hash(ojs_store.queue_id(split_part($1, ' ', 2)) || ':'
                    || substr($1, 9 + length(split_part($1, ' ', 2)))))
        when key like 'idempotency: %'
            then exists (select from ojs_store.idempotency i where i.key = substr($1, 14)
                and i.expires_at > ojs_store.now())
        else exists (
            select from ojs.deduplication_keys d where d.queue = split_part($1, ' ', 1)
                and d.key = substr($1, strpos($1, ' ') + 1))
    end;
end $$;
comment on function ojs.key_held(text)
    is 'Whether this node holds a key, as the router writes it: a fingerprint, a deduplication key, an ordering key';

create function ojs.held_slots() returns setof int
language plpgsql volatile parallel unsafe security definer rows 4096 set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.need_hot_set();
    return query select s.slot from (
    select ojs.key_slot(encode(u.fingerprint, 'hex')) from ojs_store.unique_key u where u.held
    union
    select ojs.key_slot(d.queue || ' ' || d.key) from ojs.deduplication_keys d
    union
    select ojs.key_slot('order: ' || (ojs_store.look(l.job_id)).queue || ' '
        || ((ojs_store.look(l.job_id)).extra ->> 'ordering_key'))
    from (select distinct on (o.key) o.job_id from ojs_store.ordering_line o) l
    union
    select ojs.key_slot('idempotency: ' || i.key) from ojs_store.idempotency i where i.expires_at > ojs_store.now()
    ) s (slot) where ojs_store.caller_tenant() is null;
end $$;
comment on function ojs.held_slots() is 'The slots of all keys that this node holds; reads all of them';

-- sql/reset.sql

-- reset.sql: an empty server for the next conformance case.

-- A hook that validates: one case supposes that the server has such a one.
create function ojs_store.conformance_hook(job jsonb) returns jsonb
language plpgsql stable parallel safe set search_path = pg_catalog, pg_temp as $$
begin
    if job #> '{meta,ojs_validate}' = 'true' and job -> 'args' = '[]'
        and current_setting('ojs.conformance_mode')::boolean then
        raise exception 'a job with meta.ojs_validate needs arguments' using hint = 'Give it args.';
    end if;
    return job;
end $$;

create function ojs.reset() returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
declare
    tables regclass[] := array(
        select c.oid::regclass from pg_class c
        where c.relnamespace = 'ojs_store'::regnamespace and c.relkind in ('r', 'p')
            -- the hot set and the key of ids stand, and retention goes on where it is
            and c.relname not in ('hot_set_state', 'retention_cursor', 'name_key', 'audit')
        order by c.oid);
    one regclass;
begin
    perform ojs_store.now(); -- loads the library, and with it its settings: before that anybody may set any name
    if not current_setting('ojs.conformance_mode')::boolean then
        perform ojs_store.raise('UNSUPPORTED_FEATURE',
            'ojs.reset() removes all jobs, and is refused unless ojs.conformance_mode is on', null,
            'Switch it on for a server of tests: alter database ... set ojs.conformance_mode = on.');
    end if;
    -- Nobody may be in between, above all not the worker with a job that is about to go; and waiting for one table
    -- while having another could be a deadlock.
    for tried in 1 .. 500 loop
        begin
            foreach one in array tables loop
                execute format('lock table %s in share row exclusive mode nowait', one);
            end loop;
            exit;
        exception when lock_not_available then
            if tried = 500 then
                raise;
            end if;
            perform ojs_store.rest(0.01);
        end;
    end loop;
    foreach one in array tables loop
        execute format('delete from %s', one);
        perform ojs_store.changed(one);
    end loop;
    perform ojs.register_hook('conformance', 'enqueue', 'ojs_store.conformance_hook(jsonb)');
    delete from ojs_store.stored_event; -- also that this was done
end $$;
comment on function ojs.reset() is
    'Removes everything that clients can create: for conformance tests, and refused unless ojs.conformance_mode is on';

-- sql/http/node.sql

-- node.sql: what the handlers need of the tables and the library of the node that serves. A router has these of its own
-- (router/sql/http.sql), beside the other files of sql/http that it shares (router/Makefile).

create function ojs_http.raise(code text, message text, details jsonb default null, hint text default null) returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_raise';

create function ojs_http.now() returns timestamptz
language c volatile parallel restricted as 'MODULE_PATHNAME', 'ojs_now';

-- A time and a duration as a push reads them; and how many values a JSON text may hold.
create function ojs_http.time_value(given text, field text) returns timestamptz
language c stable strict parallel restricted as 'MODULE_PATHNAME', 'ojs_time_value';

create function ojs_http.duration_value(given jsonb, field text) returns interval
language c immutable strict parallel safe as 'MODULE_PATHNAME', 'ojs_duration_value';

create function ojs_http.values_in(given text) returns bigint
language c immutable strict parallel safe as 'MODULE_PATHNAME', 'ojs_values_in';

-- Where no background worker runs, a request does a pass of upkeep first, so that what it reads is true of this moment.
-- A role that may only look does none.
create function ojs_http.tick_without_worker() returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    if not ojs_store.worker_running() and not pg_is_in_recovery()
        and not current_setting('transaction_read_only')::boolean then
        perform ojs.tick(1000);
    end if;
end $$;

create function ojs_http.upkeep() returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if has_function_privilege('ojs_http.tick_without_worker()', 'execute') then
        perform ojs_http.tick_without_worker();
    end if;
end $$;

-- Refuses a body before it is parsed: one that is longer than the route can do with, or that holds so many values that
-- they would take far more memory than their text.
create function ojs_http.check_body(handler text, body text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    values_held constant bigint := ojs_http.values_in(body); -- also loads the library, and with it its settings
    -- where a statement names the body itself, each step of the planner copies it
    bytes constant int := octet_length(body);
    most_bytes bigint := 64 * 1024 * 1024;
    most_values bigint := 100000 + current_setting('ojs.max_args_elements')::bigint;
begin
    if handler in ('push_batch', 'push_bulk') then
        most_values := greatest(most_values, 20 * current_setting('ojs.max_batch_size')::bigint);
    else
        -- Twice, since JSON may be written with spaces and escapes.
        most_bytes := 2 * greatest(ojs_http.bytes_of('ojs.max_envelope_size'),
            case when handler <> 'push' then ojs_http.bytes_of('ojs.max_result_size') end);
    end if;
    if bytes > most_bytes then
        perform ojs_http.raise('PAYLOAD_TOO_LARGE', format('the body has %s bytes, and %s are allowed', bytes,
            most_bytes),
            jsonb_build_object('field', 'body', 'actual_bytes', bytes, 'maximum_bytes', most_bytes),
                'Send less at once.');
    elsif values_held > most_values then
        perform ojs_http.raise('PAYLOAD_TOO_LARGE', format('the body holds %s values, and %s are allowed', values_held,
            most_values),
            jsonb_build_object('field', 'body', 'actual_values', values_held, 'maximum_values', most_values),
                'Send less at once.');
    end if;
end $$;

-- Raises where many jobs cannot be changed all or none; here they can.
create function ojs_http.check_atomic() returns void language sql immutable parallel safe begin atomic select; end;

-- What was answered under this key before; null: it is this request's now, which ends with keep_answer(). For
-- ojs_admin, as what they guard is.
create function ojs_http.take_key(operation text, key text, request jsonb) returns jsonb
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_take_idempotency_key';

create function ojs_http.keep_answer(operation text, key text, answer jsonb) returns void
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_keep_answer';

create function ojs_http.free_key(operation text, key text) returns void
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_free_idempotency_key';

-- The jobs that such a filter describes, in its order, and how many there are. The caller needs no right on schema
-- ojs_store: the names in these bodies were looked up when they were made.
create function ojs_http.listed_jobs(filter jsonb, most int, skip bigint, out job jsonb, out place bigint)
    returns setof record
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp
begin atomic
    select ojs.envelope(looked.job), listed.place
    from ojs_store.listed_ids(filter, most, skip) with ordinality as listed(id, place)
    cross join lateral (select ojs_store.visible(listed.id) as job offset 0) looked
    where (looked.job).id is not null
    order by listed.place;
end;

create function ojs_http.count_listed(filter jsonb) returns bigint
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp
begin atomic
    select ojs_store.count_listed(filter);
end;

-- One key, or a page of those that the caller may see, and how many there are.
create function ojs_http.listed_limits(only_key text, most int, skip int, out rate_limit ojs.rate_limits,
    out total bigint) returns setof record
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp
begin atomic
    select (r.key, r.concurrency, r.active, r.rate, r.rate_period, r.started, r.window_resets_at, r.throttle,
        r.throttle_period, r.next_allowed_at, r.paused_until, r.waiting, r.override, r.override_until)::ojs.rate_limits,
        r.total
    from ojs_store.rate_limits(only_key, most, skip) r
    where ojs_store.may_read_limit(r.key);
end;

create function ojs_http.history_of(queue text, step interval, since timestamptz, until timestamptz) returns jsonb
language sql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object('timestamp', ojs_http.rfc3339(h.at), 'processed',
        h.completed, 'failed', h.failed,
        'enqueued', h.enqueued, 'avg_duration_ms', h.avg_run_ms, 'avg_wait_ms', h.avg_wait_ms)) order by h.at), '[]')
    from ojs_store.history(array(select ojs_store.queue_id(q.name) from ojs.queues q
        where queue is null or q.name = ojs_store.stored_queue(queue)), step, since, until) h
$$;

create function ojs_http.held_keys(most int, skipped int, out entries jsonb[], out total bigint) returns record
language plpgsql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    select array_agg(jsonb_build_object('key', encode(u.fingerprint, 'hex'), 'job_id', u.job_id, 'type', j.type,
        'queue', j.queue, 'state', j.state) order by u.fingerprint)
    into entries
    from (select h.fingerprint, h.job_id from ojs_store.unique_key h where h.held order by h.fingerprint
        limit most offset skipped) u, lateral ojs_store.visible(u.job_id) j
    where j.id is not null;
    select count(*) into total from ojs_store.unique_key h where h.held;
end $$;

create function ojs_http.waiting_by_priority(queue text) returns jsonb
language sql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(jsonb_agg(jsonb_build_object('priority', -r.npriority, 'count', r.n) order by r.npriority), '[]')
    from (select npriority, count(*) as n from ojs_store.ready
        where queue = ojs_store.queue_id(ojs_store.use_queue($1, 'read')) group by 1) r
$$;

-- The policy _default is no queue, but has settings like one.
create function ojs_http.default_policy() returns jsonb
language sql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select ojs_store.effective_config(coalesce((select q.config from ojs_store.queue q where q.name = '_default'
        order by q.revised_at desc limit 1), '{}'), true)
$$;

create function ojs_http.take_back_jobs(worker text) returns int
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_take_back_jobs';

-- What a run of an entry would push now; null if there is no such entry.
create function ojs_http.cron_job(name text) returns jsonb
language sql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select ojs_store.cron_envelope(c, ojs_http.now(), ojs_http.now()) from ojs_store.cron c
    where c.name = $1 and exists (select from ojs.crons v where v.name = c.name)
$$;

-- The newest first, without those that are members of another.
create function ojs_http.listed_workflows(of_state text, after uuid, most int, skipped int, out id uuid,
    out workflow jsonb) returns setof record
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select w.id, jsonb_strip_nulls(jsonb_build_object('id', w.id, 'name', w.name, 'type', w.type, 'state', w.state,
        'members', w.members, 'completed', w.completed, 'failed', w.failed, 'job_count', w.job_count,
        'created_at', ojs_http.rfc3339(w.created_at), 'ended_at', ojs_http.rfc3339(w.ended_at)))
    from ojs.workflows w
    where w.parent_id is null and (of_state is null or w.state = of_state) and (after is null or w.id < after)
    order by w.id desc limit most offset skipped
$$;

-- The event of a job's end.
create function ojs_http.end_of(job jsonb) returns jsonb[]
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select array_agg(jsonb_build_object('specversion', e.specversion, 'id', e.id, 'type', e.type, 'source', e.source,
        'time', ojs_http.rfc3339(e."time"), 'subject', e.subject, 'data', e.data))
    from (select * from ojs.events l where l.job_id = (job ->> 'id')::uuid and l.type = 'job.' || (job ->> 'state')
        order by l."time" desc limit 1) e
$$;

-- Which nodes the answer is without: null here, and then costs nothing.
create function ojs_http.missing_nodes() returns jsonb
language sql immutable parallel safe
begin atomic
    select null::jsonb;
end;

-- sql/http/read.sql

-- read.sql: what the handlers of HTTP requests read, and how. What each request needs is PL/pgSQL: a session plans its
-- expressions once, and a function in SQL at each call.

-- A part of a path or a query with its %XX resolved. Fails as converting bytes that are no text does.
create function ojs_http.decoded(part text) returns text
language plpgsql immutable strict parallel safe set search_path = pg_catalog, pg_temp as $$
begin
    if strpos(part, '%') = 0 then
        return part;
    end if;
    if part ~ '%(?![0-9A-Fa-f]{2})' then
        raise invalid_text_representation using message = 'a percent sign without two hexadecimal digits';
    end if;
    return convert_from(decode(string_agg(
            case when left(piece, 1) = '%' then substr(piece, 2) else encode(convert_to(piece, 'UTF8'), 'hex') end,
                '' order by n), 'hex'), 'UTF8')
        from regexp_matches(part, '%..|[^%]+', 'g') with ordinality as m(pieces, n), unnest(pieces) as piece;
end $$;

-- The parameters of a query string; one that comes twice is a list of both.
create function ojs_http.read_query(query text) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select coalesce(jsonb_object_agg(name, value), '{}')
    from (
        select ojs_http.decoded(replace(split_part(pair, '=', 1), '+', ' ')) as name,
            string_agg(ojs_http.decoded(replace(substr(pair, strpos(pair || '=', '=') + 1), '+', ' ')),
                ',' order by n) as value
        from string_to_table(query, '&') with ordinality as p(pair, n)
        where pair <> ''
        group by 1
    ) parameters
$$;

-- Headers by name in lower case; of several values the first.
create function ojs_http.read_headers(headers jsonb) returns jsonb
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
begin
    return (
        select coalesce(jsonb_object_agg(lower(name), case jsonb_typeof(value) when 'array' then value ->> 0
            else value #>> '{}' end), '{}')
        from jsonb_each(case when jsonb_typeof(headers) = 'object' then headers else '{}' end) as h(name, value));
end $$;

-- The client's own, if it may stand in a header; else a new one. Not by the clock of ojs: an identity, not a time.
create function ojs_http.request_id(given text) returns text
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    ms text := lpad(to_hex(floor(extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0');
begin
    return case when given ~ '^[!-~]{1,128}$' then given
        else 'req_' || left(ms, 8) || '-' || substr(ms, 9) || '-7' || substr(gen_random_uuid()::text, 16) end;
end $$;

-- WHAT HANDLERS SHARE ----------------------------------------------------------------------------------------------

create function ojs_http.reply(status int, body jsonb, headers jsonb default '{}') returns ojs_http.response
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    response ojs_http.response;
begin
    response.status := status;
    response.headers := headers;
    response.body := body;
    return response;
end $$;

-- The body, where there must be one, as most often; a field that is null counts as absent.
create function ojs_http.object(request ojs_http.request, required boolean default true) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if request.body is null and not required then
        return '{}';
    elsif jsonb_typeof(request.body) is distinct from 'object' then
        perform ojs_http.raise('INVALID_PAYLOAD',
            case when request.body is null then 'the request has no body' else 'the body must be a JSON object' end,
            '{"reason": "malformed"}', 'Send a JSON object.');
    end if;
    return request.body;
end $$;

-- A field of the body; null if it is absent.
create function ojs_http.field(body jsonb, name text, type text, required boolean default false) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    value jsonb := body -> name;
    found_type text := coalesce(jsonb_typeof(value), 'null');
begin
    if found_type = 'null' and not required then
        return null;
    elsif found_type <> type then
        perform ojs_http.raise('INVALID_PAYLOAD',
            case when found_type = 'null' then format('%s is missing', name)
                else format('%s must be of type %s, not %s', name, type, found_type) end,
            jsonb_build_object('field', name, 'expected', type, 'received', found_type),
                format('Give %s as a JSON %s.', name, type));
    end if;
    return value;
end $$;

create function ojs_http.text_field(body jsonb, name text, required boolean default false) returns text
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    return ojs_http.field(body, name, 'string', required) #>> '{}';
end $$;

-- A whole number; beyond the bounds it is clamped.
create function ojs_http.number_field(body jsonb, name text, least_value bigint, greatest_value bigint) returns bigint
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    value numeric := ojs_http.field(body, name, 'number')::numeric;
begin
    if value <> trunc(value) then
        perform ojs_http.raise('INVALID_PAYLOAD', format('%s must be a whole number', name),
            jsonb_build_object('field', name), 'Give a whole number.');
    end if;
    return case when value is not null then least(greatest(value, least_value), greatest_value) end;
end $$;

create function ojs_http.texts_field(body jsonb, name text, required boolean default false) returns text[]
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    value jsonb := ojs_http.field(body, name, 'array', required);
begin
    if jsonb_path_exists(value, 'strict $[*] ? (@.type() != "string")') then
        perform ojs_http.raise('INVALID_PAYLOAD', format('%s must hold strings only', name),
            jsonb_build_object('field', name),
            format('Give %s as an array of strings.', name));
    end if;
    return case when value is not null then array(select jsonb_array_elements_text(value)) end;
end $$;

-- A job's id as a client writes it; in a path, what is no id is an id that no job has.
create function ojs_http.job_id(given text, in_path boolean) returns uuid
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if given ~ '^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$' then
        return given;
    elsif in_path then
        perform ojs_http.raise('NOT_FOUND', format('job %s does not exist', left(given, 64)),
            jsonb_build_object('resource_type', 'job',
            'resource_id', left(given, 64)), 'Check the id: it is a UUID.');
    end if;
    perform ojs_http.raise('INVALID_PAYLOAD', 'job_id must be a UUID', '{"field": "job_id"}',
        'Give the id of the job.');
end $$;

-- The job that a call is about: named by the path, or by the field job_id.
create function ojs_http.job_named(request ojs_http.request, body jsonb) returns uuid
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if cardinality(request.names) > 0 then
        if lower(request.body ->> 'job_id') <> lower(request.names[1]) then
            perform ojs_http.raise('INVALID_PAYLOAD', 'job_id is not the one of the path', '{"field": "job_id"}',
                'Leave job_id out of the body.');
        end if;
        return ojs_http.job_id(request.names[1], true);
    end if;
    return ojs_http.job_id(ojs_http.text_field(body, 'job_id', true), false);
end $$;

-- What the HTTP binding asks of a job beyond the SQL functions: args must be an array as it is (R-01).
create function ojs_http.check_args(job jsonb, index int) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if jsonb_typeof(job) = 'object' and coalesce(jsonb_typeof(job -> 'args'), 'array') <> 'array' then
        perform ojs_http.raise('INVALID_ARGS',
            format('%sargs must be an array, not %s', 'jobs[' || index || ']: ', jsonb_typeof(job -> 'args')),
            jsonb_strip_nulls(jsonb_build_object('field', 'args', 'expected', 'array', 'received',
                jsonb_typeof(job -> 'args'), 'index', index)),
            'Give the arguments as a JSON array.');
    end if;
end $$;

-- A number in the query string; beyond the greatest it is clamped.
create function ojs_http.query_number(request ojs_http.request, name text, otherwise int, least_value int,
    greatest_value int) returns int
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    value text := request.query ->> name;
begin
    if value is null then
        return otherwise;
    elsif value !~ '^[0-9]{1,18}$' or value::bigint < least_value then
        perform ojs_http.raise('INVALID_PAYLOAD', format('%s must be a whole number of at least %s', name,
            least_value), jsonb_build_object('field', name),
            format('Give ?%s=%s.', name, otherwise));
    end if;
    return least(value::bigint, greatest_value);
end $$;

-- Refuses what a request says beyond what is read of it.
create function ojs_http.only(given jsonb, variadic names text[]) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    unknown text := (select key from jsonb_object_keys(given) key where key <> all (names) limit 1);
begin
    if unknown is not null then
        perform ojs_http.raise('INVALID_PAYLOAD', format('%s is nothing that this request takes', left(unknown, 64)),
            jsonb_build_object('field', left(unknown, 64)),
            format('It takes %s.', array_to_string(names, ', ')));
    end if;
end $$;

-- Whether the database is not to sleep for this request, since the pipe waits.
create function ojs_http.may_wait(request ojs_http.request) returns boolean
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select request.headers ->> 'ojs-do-not-wait' is distinct from '1'
$$;

-- How many bytes of jobs one answer holds; the next may bring the rest.
create function ojs_http.most_bytes() returns bigint
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select 32::bigint * 1024 * 1024
$$;

-- A list in the query string, or null.
create function ojs_http.query_list(request ojs_http.request, name text) returns text[]
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select string_to_array(nullif(request.query ->> name, ''), ',')
$$;

-- What a purge is asked for. DELETE has no body for many a client and proxy: then its query string says it, and what it
-- says besides is the filter.
create function ojs_http.purge_asked(request ojs_http.request) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if request.body is not null then
        return ojs_http.object(request);
    end if;
    return jsonb_strip_nulls(jsonb_build_object(
        'confirm', request.query ->> 'confirm' = 'true',
        'older_than', request.query -> 'older_than',
        'states', to_jsonb(ojs_http.query_list(request, 'states')),
        'filter', request.query - '{confirm,older_than,states}'::text[]));
end $$;

create function ojs_http.rfc3339(at timestamptz) returns text
language sql stable parallel safe set search_path = pg_catalog, pg_temp as $$
    select to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
$$;

-- sql/http/errors.sql

-- errors.sql: errors as HTTP answers.

-- The HTTP status of an OJS code, and its name in the HTTP binding. Null for a code that is none.
create function ojs_http.status_of(code text, details jsonb, path text, out status int, out name text) returns record
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    of_topic boolean := starts_with(path, '/v0/');
begin
    case code
    when 'INVALID_PAYLOAD' then
        status := 400; name := case when details ->> 'reason' = 'malformed' then 'invalid_payload'
            else 'invalid_request' end;
    when 'INVALID_JOB_TYPE', 'INVALID_QUEUE', 'INVALID_ARGS', 'INVALID_CRON_EXPRESSION',
        'QUEUE_NAME_TOO_LONG',
            'JOB_TYPE_TOO_LONG', 'UNIQUE_KEY_INVALID' then
        status := 400; name := 'invalid_request';
    when 'INVALID_METADATA' then
        status := case details ->> 'reason' when 'tenant_missing' then 422 else 400 end; name := 'invalid_request';
    when 'INVALID_RETRY_POLICY' then
        status := 422; name := 'invalid_request';
    when 'SCHEMA_VALIDATION_FAILED' then
        status := 422; name := 'schema_validation';
    when 'PAYLOAD_TOO_LARGE', 'METADATA_TOO_LARGE', 'RESULT_TOO_LARGE' then
        status := 413; name := lower(code);
    when 'BATCH_SIZE_EXCEEDED' then
        status := case when of_topic then 400 else 413 end;
            name := case when of_topic then 'batch_too_large' else 'x_batch_too_large' end;
    when 'NOT_FOUND' then
        status := 404; name := case when of_topic then coalesce(details ->> 'reason', 'not_found') else 'not_found' end;
    when 'WORKFLOW_NOT_FOUND' then
        status := 404; name := 'not_found';
    when 'INVALID_WORKFLOW' then
        status := 400; name := 'invalid_workflow';
    when 'WORKFLOW_ENDED' then
        status := 409; name := 'conflict';
    when 'DUPLICATE_JOB' then
        status := 409; name := 'duplicate';
    when 'INVALID_STATE_TRANSITION', 'JOB_ALREADY_COMPLETED', 'JOB_ALREADY_CANCELLED', 'LEASE_NOT_HELD' then
        status := 409; name := 'conflict';
    when 'TOPIC_NOT_A_QUEUE' then
        status := 409; name := 'not_a_queue';
    when 'SCHEMA_EXISTS' then
        status := 409; name := 'conflict';
    when 'TOPIC_EXISTS_INCOMPATIBLE' then
        status := 409; name := lower(code);
    when 'QUEUE_PAUSED' then
        status := 422; name := 'queue_paused';
    when 'UNSUPPORTED_FEATURE' then
        status := case details ->> 'field' when 'Content-Encoding' then 415 else 422 end; name := 'unsupported';
    when 'PERMISSION_DENIED' then
        status := 403; name := 'permission_denied';
    when 'RATE_LIMITED' then
        status := 429; name := case when of_topic then 'throttled' else 'rate_limited' end;
    when 'QUEUE_FULL' then
        status := 429; name := 'QUEUE_FULL';
    when 'TENANT_LIMIT_EXCEEDED' then
        status := 429; name := 'TENANT_LIMIT_EXCEEDED';
    when 'UNAVAILABLE' then
        status := 503; name := 'backend_error';
    when 'METHOD_NOT_ALLOWED' then
        status := 405; name := 'x_method_not_allowed';
    else
        null;
    end case;
end $$;

create function ojs_http.error_body(
    name text, code text, message text, retryable boolean, details jsonb, hint text, request_id text
) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('error', jsonb_strip_nulls(jsonb_build_object(
        'code', name,
        'type', case when code = 'INVALID_RETRY_POLICY' then 'validation_error' end,
        'message', message,
        'retryable', retryable,
        'details', details,
        'hint', nullif(hint, ''),
        'docs_url', 'https://openjobspec.org/errors/' || code,
        'doc_url', 'https://openjobspec.org/errors/' || code,
        'request_id', request_id))
        || case when code = 'TENANT_LIMIT_EXCEEDED' then details - '{jobs,retry_after_seconds}'::text[] else '{}' end)
$$;

-- What the headers of an error say: when to come again, and how far a bound is exceeded.
create function ojs_http.headers_of(status int, code text, details jsonb) returns jsonb
language plpgsql stable parallel restricted set search_path = pg_catalog, pg_temp as $$
declare
    seconds numeric := coalesce((details ->> 'retry_after_seconds')::numeric,
        (details ->> 'retry_after_ms')::numeric / 1000, 1);
begin
    return jsonb_strip_nulls(
        case when status in (429, 503) then jsonb_build_object('Retry-After', greatest(ceil(seconds), 1)::text)
            else '{}' end
        || case code
            when 'BATCH_SIZE_EXCEEDED' then jsonb_build_object('X-OJS-Max-Batch-Size', details ->> 'maximum')
            when 'QUEUE_FULL' then jsonb_build_object('X-OJS-Queue-Depth', details ->> 'depth', 'X-OJS-Queue-Bound',
                details ->> 'bound')
            when 'RATE_LIMITED' then jsonb_build_object('X-RateLimit-Limit', coalesce(details ->> 'claim_rate', '1'),
                'X-RateLimit-Remaining', '0',
                'X-RateLimit-Reset', ceil(extract(epoch from ojs_http.now()) + seconds)::text)
            else '{}' end);
end $$;

-- A field by the name that the request has for it, where SQL has another.
create function ojs_http.field_in(body jsonb, field text) returns text
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select coalesce((select a.theirs from (values ('timeout', 'timeout_ms'), ('scheduled_at', 'delay_until'),
        ('visibility_timeout', 'visibility_timeout_ms'),
            ('worker', 'worker_id'), ('filter', 'job_ids'), ('job_id', 'ids'), ('expression', 'cron'),
                ('overrides', 'override'), ('discard', 'strategy')) a (ours, theirs)
        where a.ours = field and not jsonb_path_exists(body, format('$.**.%I', a.ours)::jsonpath)
            and jsonb_path_exists(body, format('$.**.%I', a.theirs)::jsonpath)), field)
$$;

-- A hint in the words of HTTP; none where it names what only SQL has.
create function ojs_http.hint_of(hint text) returns text
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select case
        when hint !~ e'\\mojs[.]\\w+[(]|=>' then hint
        when hint ~ 'confirm => true' then 'Send "confirm": true once you are sure.'
        when hint ~ 'ojs[.]create_queue' then 'Push to the queue, or create it with POST /ojs/v1/queues.'
        when hint ~ 'ojs[.]info' then 'GET /ojs/v1/jobs/:id tells the state of the job.'
        when hint ~ 'ojs[.]schedule' then 'GET /ojs/v1/cron lists the entries.' end
$$;

-- The answer to a request that raised: an error of ojs speaks for itself; of any other only what can give nothing away.
-- `stage` is what was being done: reading the path, the body, or the work itself.
create function ojs_http.problem(
    stage text, path text, request_id text, state text, message text, detail text, hint text, context text,
        body jsonb default null
) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    said jsonb;
    field text;
    code text;
    details jsonb := '{}';
    status int;
    name text;
    headers jsonb;
    retryable boolean := false;
begin
    if stage <> 'work' and left(state, 2) in ('22', '54') then
        code := 'INVALID_PAYLOAD';
        details := '{"reason": "malformed"}';
        message := case stage when 'path' then 'the path or the query string cannot be decoded'
            else 'the body is not valid JSON' end;
        hint := case stage when 'path' then 'Encode it as UTF-8 in percent notation.'
            else 'Send one JSON document as UTF-8.' end;
    elsif left(state, 2) = 'OJ' or state in ('42501', '57P03') then
        begin
            said := detail::jsonb;
            code := said ->> 'code';
            details := coalesce(said -> 'details', '{}');
            retryable := coalesce(said -> 'retryable' = 'true', false);
        exception when data_exception then
            null; -- a hook's own detail
        end;
    end if;
    if details ? 'field' and body is not null then
        field := ojs_http.field_in(body, details ->> 'field');
        message := regexp_replace(message, e'\\mfilter[.]ids\\M|\\m' || (details ->> 'field') || e'\\M', field);
        details := details || jsonb_build_object('field', field);
    end if;
    if details ? 'maximum_bytes' then
        -- as the text of payload limits has it
        details := details || jsonb_build_object('max_bytes', details -> 'maximum_bytes');
    end if;
    if code = 'INVALID_WORKFLOW' then
        details := details || jsonb_build_object('validation_errors',
            jsonb_build_array(jsonb_build_object('path', details -> 'field', 'message', message)));
    end if;
    hint := ojs_http.hint_of(hint);
    select s.status, s.name into status, name from ojs_http.status_of(code, details, path) s;

    if status is null then
        details := '{}';
        case
        when state = '42501' then
            code := 'PERMISSION_DENIED'; status := 403; name := 'permission_denied';
            message := 'this connection''s role may not do that';
            hint := 'Connect as a member of ojs_producer, ojs_worker, ojs_observer or ojs_admin, as the request needs.';
        when left(state, 2) in ('08', '40', '53', '55', '57') or state = '25006' then
            code := 'UNAVAILABLE'; status := 503; name := 'backend_error'; retryable := true;
            message := case when state = '25006' then 'this server is read-only'
                else 'the database cannot serve this request at the moment' end;
            hint := case when state = '25006' then 'Ask the primary server.' else 'Try again.' end;
        when state = 'P0001' or left(state, 2) = 'OJ' then
            -- A hook says no, in its own words.
            code := 'REJECTED'; status := 422; name := 'x_rejected';
            hint := nullif(hint, '');
        when context ~ e'(^|\n)hook "' then
            -- One that failed says no, too; what it said is for those who look into the server.
            raise log 'ojs.http: a hook failed request % with %', request_id, state using detail = context;
            code := 'REJECTED'; status := 422; name := 'x_rejected';
            message := 'a hook of this server failed, so the job was not pushed';
            hint := 'The server''s log tells more under this request_id.';
        else
            raise log 'ojs.http: request % failed with %: %', request_id, state,
                case when left(state, 2) = '22' then 'the message may quote data' else message end
                    using detail = context;
            code := 'BACKEND_ERROR'; status := 500; name := 'backend_error'; retryable := true;
            message := 'the request failed inside the server';
            hint := 'The server''s log tells more under this request_id.';
        end case;
    end if;

    headers := ojs_http.headers_of(status, code, details);
    return ojs_http.reply(status, ojs_http.error_body(name, code, message, retryable, details, hint,
        request_id), headers);
end $$;

-- No handler for that path, or not for that method.
create function ojs_http.no_route(method text, path text, allowed text, request_id text) returns ojs_http.response
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select case when allowed is null then
        ojs_http.reply(404, ojs_http.error_body('not_found', 'NOT_FOUND', 'there is nothing at this path', false,
            '{"resource_type": "path"}', 'Jobs are at /ojs/v1/jobs; docs/reference/http.md lists all paths.',
                request_id))
    else
        ojs_http.reply(405, ojs_http.error_body('x_method_not_allowed', 'METHOD_NOT_ALLOWED',
            format('this path does not take the method %s', left(method, 16)), false,
                jsonb_build_object('allowed', allowed),
            format('It takes %s.', allowed), request_id), jsonb_build_object('Allow', allowed))
    end
$$;

-- sql/http/serve.sql

-- serve.sql: the HTTP binding: the routes, and how ojs.http serves a request. Reading is in read.sql, errors are in
-- errors.sql; the handlers stand in the other files of sql/http/, one function each in schema ojs_http, and call the
-- public functions with the rights of the caller; what else they need of the server is in node.sql.

-- ROUTES -----------------------------------------------------------------------------------------------------------

-- Every path there is. A name with a colon stands for one part of the path; a path has one at most, or two that are its
-- end.
create function ojs_http.routes(out method text, out pattern text, out handler text) returns setof record
language sql immutable parallel safe
begin atomic
    values
        ('GET', '/ojs/manifest', 'manifest'),
        ('GET', '/health', 'health'),
        ('GET', '/ready', 'ready'),
        ('GET', '/metrics', 'metrics'),
        ('GET', '/ojs/v1/health', 'health'),
        ('GET', '/ojs/v1/ready', 'ready'),
        ('GET', '/ojs/v1/metrics', 'metrics'),
        ('POST', '/ojs/v1/jobs', 'push'),
        ('POST', '/ojs/v1/jobs/batch', 'push_batch'),
        ('POST', '/ojs/v1/jobs/results', 'results'),
        ('POST', '/ojs/v1/jobs/bulk', 'push_bulk'),
        ('POST', '/ojs/v1/jobs/bulk/cancel', 'cancel_bulk'),
        ('POST', '/ojs/v1/jobs/bulk/retry', 'retry_bulk'),
        ('POST', '/ojs/v1/jobs/bulk/delete', 'delete_bulk'),
        ('GET', '/ojs/v1/jobs/:id', 'info'),
        ('GET', '/ojs/v1/jobs/:id/lineage', 'lineage'),
        ('PATCH', '/ojs/v1/jobs/:id', 'change_job'),
        ('DELETE', '/ojs/v1/jobs/:id', 'cancel'),
        ('POST', '/ojs/v1/jobs/:id/cancel', 'cancel'),
        ('POST', '/ojs/v1/jobs/:id/activate', 'activate'),
        ('POST', '/ojs/v1/jobs/:id/ack', 'ack'),
        ('POST', '/ojs/v1/jobs/:id/nack', 'nack'),
        ('GET', '/ojs/v1/jobs/:id/progress', 'progress'),
        ('PUT', '/ojs/v1/jobs/:id/progress', 'set_progress'),
        ('POST', '/ojs/v1/jobs/:id/progress', 'set_progress'),
        ('GET', '/ojs/v1/jobs/:id/checkpoint', 'checkpoint'),
        ('PUT', '/ojs/v1/jobs/:id/checkpoint', 'save_checkpoint'),
        ('POST', '/ojs/v1/jobs/:id/checkpoint', 'save_checkpoint'),
        ('DELETE', '/ojs/v1/jobs/:id/checkpoint', 'delete_checkpoint'),
        ('GET', '/ojs/v1/jobs/:id/result', 'result'),
        ('POST', '/ojs/v1/workers/fetch', 'fetch'),
        ('POST', '/ojs/v1/workers/ack', 'ack'),
        ('POST', '/ojs/v1/workers/nack', 'nack'),
        ('POST', '/ojs/v1/workers/heartbeat', 'heartbeat'),
        ('POST', '/ojs/v1/workers/beat', 'heartbeat'),
        ('POST', '/ojs/v1/workers/register', 'register_worker'),
        ('POST', '/ojs/v1/workers/deregister', 'deregister_worker'),
        ('GET', '/ojs/v1/workers/:id/health', 'worker_health'),
        ('GET', '/ojs/v1/queues', 'queues'),
        ('POST', '/ojs/v1/queues', 'create_queue'),
        ('GET', '/ojs/v1/queues/:name', 'queue'),
        ('PUT', '/ojs/v1/queues/:name', 'configure_queue'),
        ('DELETE', '/ojs/v1/queues/:name', 'drop_queue'),
        ('GET', '/ojs/v1/queues/:name/stats', 'queue_stats'),
        ('GET', '/ojs/v1/queues/:name/config', 'queue_config'),
        ('PUT', '/ojs/v1/queues/:name/config', 'configure_queue'),
        ('POST', '/ojs/v1/queues/:name/pause', 'pause_queue'),
        ('POST', '/ojs/v1/queues/:name/resume', 'resume_queue'),
        ('POST', '/ojs/v1/queues/:name/drain', 'drain_queue'),
        ('POST', '/ojs/v1/queues/:name/purge', 'purge_queue'),
        ('GET', '/ojs/v1/dead-letter', 'dead_letters'),
        ('DELETE', '/ojs/v1/dead-letter', 'purge_dead_letters'),
        ('POST', '/ojs/v1/dead-letter/retry', 'retry_dead_letters'),
        ('GET', '/ojs/v1/dead-letter/stats', 'dead_letter_stats'),
        ('GET', '/ojs/v1/dead-letter/:id', 'dead_letter'),
        ('DELETE', '/ojs/v1/dead-letter/:id', 'delete_dead_letter'),
        ('POST', '/ojs/v1/dead-letter/:id/retry', 'retry_dead_letter'),
        ('GET', '/ojs/v1/cron', 'crons'),
        ('POST', '/ojs/v1/cron', 'schedule'),
        ('GET', '/ojs/v1/cron/:name', 'cron'),
        ('PUT', '/ojs/v1/cron/:name', 'schedule'),
        ('PATCH', '/ojs/v1/cron/:name', 'schedule'),
        ('DELETE', '/ojs/v1/cron/:name', 'unschedule'),
        ('POST', '/ojs/v1/cron/:name/trigger', 'trigger_cron'),
        ('GET', '/ojs/v1/workflows', 'workflows'),
        ('POST', '/ojs/v1/workflows', 'create_workflow'),
        ('GET', '/ojs/v1/workflows/:id', 'workflow'),
        ('DELETE', '/ojs/v1/workflows/:id', 'cancel_workflow'),
        ('POST', '/ojs/v1/workflows/:id/extend', 'extend_workflow'),
        ('GET', '/ojs/v1/events', 'events'),
        ('GET', '/ojs/v1/events/stream', 'event_stream'),
        ('GET', '/ojs/v1/jobs/:id/events', 'event_stream'),
        ('GET', '/ojs/v1/queues/:name/events', 'event_stream'),
        ('GET', '/ojs/v1/rate-limits', 'rate_limits'),
        ('GET', '/ojs/v1/rate-limits/:key', 'rate_limit'),
        ('PUT', '/ojs/v1/rate-limits/:key', 'set_rate_limit'),
        ('DELETE', '/ojs/v1/rate-limits/:key', 'unset_rate_limit'),
        ('DELETE', '/ojs/v1/rate-limits/:key/override', 'unset_rate_limit'),
        ('GET', '/ojs/v1/admin/stats', 'admin_stats'),
        ('GET', '/ojs/v1/admin/stats/history', 'stats_history'),
        ('GET', '/ojs/v1/admin/queues', 'admin_queues'),
        ('GET', '/ojs/v1/admin/queues/:name', 'admin_queue'),
        ('DELETE', '/ojs/v1/admin/queues/:name', 'drop_queue'),
        ('GET', '/ojs/v1/admin/queues/:name/config', 'queue_config'),
        ('PUT', '/ojs/v1/admin/queues/:name/config', 'configure_queue'),
        ('POST', '/ojs/v1/admin/queues/:name/pause', 'pause_queue_flat'),
        ('POST', '/ojs/v1/admin/queues/:name/resume', 'resume_queue_flat'),
        ('DELETE', '/ojs/v1/admin/queues/:name/jobs', 'purge_queue'),
        ('PUT', '/ojs/v1/admin/queues/:name/rate-limit', 'set_queue_rate_limit'),
        ('GET', '/ojs/v1/admin/jobs', 'admin_jobs'),
        ('POST', '/ojs/v1/admin/jobs/bulk/cancel', 'admin_cancel_bulk'),
        ('POST', '/ojs/v1/admin/jobs/bulk/retry', 'admin_retry_bulk'),
        ('POST', '/ojs/v1/admin/jobs/bulk/delete', 'admin_delete_bulk'),
        ('GET', '/ojs/v1/admin/jobs/:id', 'admin_job'),
        ('PATCH', '/ojs/v1/admin/jobs/:id', 'change_job'),
        ('GET', '/ojs/v1/admin/jobs/:id/explain', 'explain'),
        ('GET', '/ojs/v1/admin/jobs/:id/history', 'job_history'),
        ('POST', '/ojs/v1/admin/jobs/:id/cancel', 'cancel'),
        ('POST', '/ojs/v1/admin/jobs/:id/retry', 'retry'),
        ('POST', '/ojs/v1/admin/jobs/:id/discard', 'discard'),
        ('DELETE', '/ojs/v1/admin/jobs/:id', 'delete_job'),
        ('GET', '/ojs/v1/admin/workers', 'admin_workers'),
        ('GET', '/ojs/v1/admin/workers/:id', 'worker'),
        ('DELETE', '/ojs/v1/admin/workers/:id', 'forget_worker'),
        ('POST', '/ojs/v1/admin/workers/:id/quiet', 'quiet_worker'),
        ('POST', '/ojs/v1/admin/workers/:id/resume', 'resume_worker'),
        ('POST', '/ojs/v1/admin/workers/:id/terminate', 'terminate_worker'),
        ('GET', '/ojs/v1/admin/dead-letter', 'admin_dead_letters'),
        ('DELETE', '/ojs/v1/admin/dead-letter', 'purge_dead_letters'),
        ('POST', '/ojs/v1/admin/dead-letter/retry', 'retry_dead_letters'),
        ('GET', '/ojs/v1/admin/dead-letter/stats', 'dead_letter_stats'),
        ('POST', '/ojs/v1/admin/dead-letter/:id/retry', 'retry_dead_letter'),
        ('DELETE', '/ojs/v1/admin/dead-letter/:id', 'delete_dead_letter_flat'),
        ('GET', '/ojs/v1/schemas', 'schemas'),
        ('POST', '/ojs/v1/schemas', 'register_schema'),
        ('GET', '/ojs/v1/schemas/:type', 'schema'),
        ('DELETE', '/ojs/v1/schemas/:type', 'drop_schema'),
        ('GET', '/ojs/v1/schemas/:type/versions', 'schema_versions'),
        ('GET', '/ojs/v1/schemas/:type/:version', 'schema'),
        ('DELETE', '/ojs/v1/schemas/:type/:version', 'drop_schema'),
        ('GET', '/ojs/v1/admin/schemas/:type', 'admin_schema'),
        ('PUT', '/ojs/v1/admin/schemas/:type', 'set_schema_validation'),
        ('GET', '/ojs/v1/admin/schemas/:type/:version', 'admin_schema'),
        ('PUT', '/ojs/v1/admin/schemas/:type/:version', 'put_schema'),
        ('DELETE', '/ojs/v1/admin/schemas/:type/:version', 'drop_schema'),
        ('GET', '/ojs/v1/admin/pools', 'pools'),
        ('GET', '/ojs/v1/admin/pools/:name', 'pool'),
        ('PUT', '/ojs/v1/admin/pools/:name', 'set_pool'),
        ('DELETE', '/ojs/v1/admin/pools/:name', 'drop_pool'),
        ('GET', '/ojs/v1/admin/tenants', 'tenants'),
        ('GET', '/ojs/v1/admin/tenants/:name', 'tenant'),
        ('PUT', '/ojs/v1/admin/tenants/:name', 'set_tenant'),
        ('DELETE', '/ojs/v1/admin/tenants/:name', 'drop_tenant'),
        ('PUT', '/ojs/v1/admin/tenants/:name/limits', 'set_tenant_limits'),
        ('GET', '/ojs/v1/admin/tenants/:name/stats', 'tenant_stats'),
        ('GET', '/ojs/v1/admin/tenants/:name/jobs', 'tenant_jobs'),
        ('GET', '/ojs/v1/webhooks/subscriptions', 'webhooks'),
        ('POST', '/ojs/v1/webhooks/subscriptions', 'create_webhook'),
        ('GET', '/ojs/v1/webhooks/subscriptions/:id', 'webhook'),
        ('PATCH', '/ojs/v1/webhooks/subscriptions/:id', 'update_webhook'),
        ('DELETE', '/ojs/v1/webhooks/subscriptions/:id', 'drop_webhook'),
        ('POST', '/ojs/v1/webhooks/subscriptions/:id/test', 'test_webhook'),
        ('POST', '/ojs/v1/webhooks/subscriptions/:id/rotate-secret', 'rotate_webhook_secret'),
        ('GET', '/ojs/v1/webhooks/deliveries', 'webhook_deliveries'),
        ('GET', '/ojs/v1/webhooks/deliveries/:id', 'webhook_delivery'),
        ('POST', '/ojs/v1/webhooks/deliveries/:id/retry', 'retry_webhook_delivery'),
        ('GET', '/ojs/v1/admin/scheduling/stats', 'scheduling_stats'),
        ('GET', '/ojs/v1/admin/access', 'access'),
        ('GET', '/ojs/v1/admin/audit', 'audit'),
        ('GET', '/ojs/v1/admin/system/config', 'system_config'),
        ('GET', '/ojs/v1/admin/system/maintenance', 'maintenance'),
        ('POST', '/ojs/v1/admin/system/maintenance', 'set_maintenance'),
        ('POST', '/ojs/v1/admin/reset', 'reset'),
        ('PUT', '/v0/topics/:queue', 'create_topic'),
        ('GET', '/v0/topics/:queue', 'topic'),
        ('POST', '/v0/topics/:queue', 'topic_produce'),
        ('GET', '/v0/topics/:queue/work', 'topic_work'),
        ('POST', '/v0/topics/:queue/claim', 'topic_claim'),
        ('POST', '/v0/topics/:queue/ack', 'topic_ack'),
        ('POST', '/v0/topics/:queue/nack', 'topic_nack'),
        ('POST', '/v0/topics/:queue/extend', 'topic_extend'),
        -- Official clients ask for these; no document has them. The doubled paths are how two SDKs send them.
        ('POST', '/ojs/v1/workers/progress', 'worker_progress'),
        ('GET', '/ojs/v1/checkpoints/:id/resume', 'resume'),
        ('POST', '/ojs/v1/checkpoints/:id', 'save_step'),
        ('DELETE', '/ojs/v1/checkpoints/:id', 'delete_checkpoint'),
        ('GET', '/ojs/v1/ojs/v1/checkpoints/:id/resume', 'resume'),
        ('POST', '/ojs/v1/ojs/v1/checkpoints/:id', 'save_step'),
        ('DELETE', '/ojs/v1/ojs/v1/checkpoints/:id', 'delete_checkpoint'),
        ('GET', '/ojs/v1/unique-jobs', 'unique_jobs'),
        ('GET', '/ojs/v1/middleware', 'middleware'),
        ('GET', '/ojs/v1/queues/:name/priority-stats', 'priority_stats'),
        ('GET', '/ojs/v1/jobs/:id/progress/stream', 'event_stream'),
        ('GET', '/ojs/v1/crons', 'cron_page'),
        ('GET', '/ojs/v1/crons/:name', 'cron_flat'),
        ('PATCH', '/ojs/v1/crons/:name', 'change_cron'),
        ('DELETE', '/ojs/v1/crons/:name', 'unschedule');
end;

-- SERVING ----------------------------------------------------------------------------------------------------------

-- The handlers by path, a colon for each name: {"/ojs/v1/jobs/:": {"GET": "info", ...}, ...}. Immutable: its callers
-- fold it into a constant.
create function ojs_http.handlers_by_path() returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select jsonb_object_agg(path, handlers)
    from (
        select regexp_replace(r.pattern, ':[a-z]+', ':', 'g') as path, jsonb_object_agg(r.method, r.handler) as handlers
        from ojs_http.routes() r group by 1
    ) p
$$;

-- Which handler a request is for, and what the path says in the places of the pattern's names; or what methods the path
-- would take. Looked up as it stands, then with one of its parts for a name: what stands there goes before a name. A
-- path of more parts than any pattern has is none, and costs nothing.
create function ojs_http.find_route(method text, path text, out handler text, out names text[], out allowed text)
    returns record
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    parts constant text[] := case when octet_length(path) <= 4096 then string_to_array(path, '/') end;
    with_name text[];
    handlers jsonb := case when ':' <> all (parts) then ojs_http.handlers_by_path() -> path end;
begin
    names := '{}';
    if parts is null or cardinality(parts) > 9 then
        return;
    end if;
    for i in reverse cardinality(parts) .. 2 loop
        exit when handlers is not null;
        continue when parts[i] = '';
        with_name := parts;
        with_name[i] := ':';
        handlers := ojs_http.handlers_by_path() -> array_to_string(with_name, '/');
        if handlers is not null then
            names := array[ojs_http.decoded(parts[i])];
        end if;
    end loop;
    if handlers is null and cardinality(parts) > 3 and '' <> all (parts[cardinality(parts) - 1:]) then
        with_name := parts[:cardinality(parts) - 2] || '{:,:}'::text[];
        handlers := ojs_http.handlers_by_path() -> array_to_string(with_name, '/');
        if handlers is not null then
            names := array[ojs_http.decoded(parts[cardinality(parts) - 1]),
                ojs_http.decoded(parts[cardinality(parts)])];
        end if;
    end if;
    handler := handlers ->> method;
    if handler is null and handlers is not null then
        allowed := (select string_agg(m, ', ' order by m) from (
            select * from jsonb_object_keys(handlers) union select 'HEAD' where handlers ? 'GET' union
                select 'OPTIONS') of_path (m));
    end if;
end $$;

-- Refuses a body that is no JSON by its own account, and a version of the protocol or an extension that is not ours.
create function ojs_http.check_headers(headers jsonb, path text, has_body boolean) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    media_type text := lower(btrim(split_part(headers ->> 'content-type', ';', 1)));
    version text := headers ->> 'ojs-version';
    missing text;
begin
    if has_body and media_type not in ('application/openjobspec+json', 'application/json') then
        perform ojs_http.raise('INVALID_PAYLOAD', 'the media type of the body is not supported',
            '{"field": "Content-Type"}',
            'Send application/openjobspec+json, or application/json.');
    end if;
    if nullif(version, '') !~ '^1([.]0)*(-[0-9A-Za-z.-]+)?$' and path <> '/ojs/manifest' then
        perform ojs_http.raise('UNSUPPORTED_FEATURE', 'the version of OJS that OJS-Version asks for is not supported',
            '{"field": "OJS-Version", "supported": ["1.0"]}', 'Ask for 1.0, or leave the header out.');
    end if;
    if headers ? 'x-ojs-tenant' and coalesce(current_setting('ojs.tenancy', true), 'off') = 'off' then
        perform ojs_http.raise('UNSUPPORTED_FEATURE', 'X-OJS-Tenant asks for a tenant, and there are none',
            '{"field": "X-OJS-Tenant"}', 'Leave the header out, or set ojs.tenancy.');
    elsif headers ->> 'x-ojs-tenant' !~ '^[a-zA-Z0-9][a-zA-Z0-9._:-]{0,62}$' then
        perform ojs_http.raise('INVALID_PAYLOAD', 'X-OJS-Tenant is no tenant', '{"field": "X-OJS-Tenant"}',
            'Give 1 to 63 letters, digits, dots, underscores, colons or hyphens, the first a letter or a digit.');
    end if;
    if has_body and lower(btrim(headers ->> 'content-encoding')) not in ('', 'identity') then
        perform ojs_http.raise('UNSUPPORTED_FEATURE', 'the encoding of the body is not supported',
            '{"field": "Content-Encoding", "supported": ["identity"]}',
            'Send the body as plain JSON.');
    end if;
    select uri into missing from unnest(string_to_array(headers ->> 'ojs-requires-extension', ',')) uri
    where not jsonb_path_exists(ojs_http.extensions(), '$.*[*] ? (@.uri == $uri)',
        jsonb_build_object('uri', btrim(uri))) limit 1;
    if found then
        perform ojs_http.raise('UNSUPPORTED_FEATURE',
            'the extension that OJS-Requires-Extension names is not supported',
            jsonb_build_object('field', 'OJS-Requires-Extension', 'extension', left(btrim(missing), 128)),
                'GET /ojs/manifest lists the extensions.');
    end if;
end $$;

-- Where a client of the pipe waits and the database is not to: how many seconds the request would have waited,
-- or null if not at all.
create function ojs_http.would_wait(headers jsonb, body jsonb) returns text
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    details jsonb := coalesce(body #> '{error,details}', '{}');
    seconds numeric;
begin
    if headers ->> 'ojs-do-not-wait' is distinct from '1' then
        return null;
    elsif not details ? 'strategy' then
        details := jsonb_path_query_first(body, '$.items[*].error.details ? (exists(@.strategy))');
    end if;
    if details ->> 'strategy' = 'block' then
        seconds := coalesce(case when headers ? 'ojs-block-timeout'
            then least((headers ->> 'ojs-block-timeout')::numeric, 30) end,
            (details ->> 'block_timeout_ms')::numeric / 1000);
    end if;
    return case when seconds > 0 then trim_scale(seconds)::text end;
end $$;

-- For the request alone. Who acts for a tenant already acts for no other.
create function ojs_http.act_for(tenant text, before text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if before not in ('', tenant) then
        perform ojs_http.raise('PERMISSION_DENIED', 'the session acts for another tenant than X-OJS-Tenant names',
            '{"field": "X-OJS-Tenant", "reason": "tenant_not_allowed"}', 'Leave the header out.');
    end if;
    perform set_config('ojs.tenant', tenant, true);
end $$;

-- The gateway sets plan_cache_mode for its call alone; what is called here plans as it does elsewhere.
create function ojs.http(
    method text, path text, request_headers jsonb default '{}', request_body text default null
) returns table (status int, headers jsonb, body text)
language plpgsql volatile parallel unsafe set plan_cache_mode = auto set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    given jsonb := ojs_http.read_headers(request_headers);
    request_id text := ojs_http.request_id(given ->> 'x-request-id');
    only_path text := coalesce(split_part(path, '?', 1), '');
    stage text := 'path';
    request ojs_http.request;
    response ojs_http.response;
    route record;
    tenant_before constant text := current_setting('ojs.tenant', true);
    jobs jsonb; -- of a batch: large, and not in request, which each call copies
    state text; message text; detail text; hint text; context text;
begin
    -- A large one is not copied; btrim takes twelve times its length.
    if octet_length(request_body) <= 1000 then
        request_body := nullif(btrim(request_body, e' \t\r\n'), '');
    end if;
    begin
        route := ojs_http.find_route(case when upper(method) = 'HEAD' then 'GET' else upper(method) end, only_path);
        if route.handler is null and upper(method) = 'OPTIONS' and route.allowed is not null then
            response := ojs_http.reply(204, null, jsonb_build_object('Allow', route.allowed));
        elsif route.handler is null then
            response := ojs_http.no_route(method, only_path, route.allowed, request_id);
        else
            request.method := upper(method);
            request.path := only_path;
            request.names := route.names;
            request.query := case when strpos(path, '?') > 0
                then ojs_http.read_query(substr(path, strpos(path, '?') + 1)) else '{}' end;
            request.headers := given || jsonb_build_object('x-request-id', request_id);
            if request.method not in ('GET', 'HEAD') then
                perform ojs_http.check_headers(given, only_path, request_body is not null);
                stage := 'body';
                if request_body is not null then
                    perform ojs_http.check_body(route.handler, request_body);
                    if route.handler in ('push_batch', 'push_bulk') then
                        jobs := request_body::jsonb;
                        if jsonb_typeof(jobs) = 'object' and jsonb_typeof(jobs -> 'jobs') = 'array' then
                            request.body := jobs - 'jobs';
                            jobs := jobs -> 'jobs';
                        else
                            request.body := jobs;
                            jobs := null;
                        end if;
                    else
                        request.body := request_body::jsonb;
                    end if;
                    if jsonb_typeof(request.body) <> 'object' then
                        perform ojs_http.raise('INVALID_PAYLOAD', 'the body must be a JSON object',
                            '{"reason": "malformed"}', 'Send a JSON object.');
                    end if;
                end if;
            else
                perform ojs_http.check_headers(given, only_path, false);
            end if;
            stage := 'work';
            if given ? 'x-ojs-tenant' then
                perform ojs_http.act_for(given ->> 'x-ojs-tenant', tenant_before);
            end if;
            if jobs is null then
                execute format('select * from ojs_http.%I($1)', route.handler) into response using request;
            else
                response := ojs_http.push_once(request, jobs, route.handler);
                jobs := null;
            end if;
        end if;
    exception when others or assert_failure then
        get stacked diagnostics state = returned_sqlstate, message = message_text, detail = pg_exception_detail,
            hint = pg_exception_hint, context = pg_exception_context;
        response := ojs_http.problem(stage, only_path, request_id, state, message, detail, hint, context,
            coalesce(jobs, request.body));
    end;
    if given ? 'x-ojs-tenant' and current_setting('ojs.tenant', true) <> tenant_before then
        perform set_config('ojs.tenant', tenant_before, true);
    end if;
    if response.status in (422, 429) and given ? 'ojs-do-not-wait' then
        response.headers := response.headers || jsonb_strip_nulls(jsonb_build_object('OJS-Would-Wait',
            ojs_http.would_wait(given, response.body)));
    end if;
    status := response.status;
    -- A client that names its version of OJS may be an SDK that takes only what names application/json for JSON.
    headers := jsonb_build_object('Content-Type', 'application/openjobspec+json' || case when given ? 'ojs-version'
        then '; alias="application/json"' else '' end, 'OJS-Version', '1.0', 'X-Request-Id', request_id)
        || coalesce(response.headers, '{}');
    body := case when upper(method) = 'HEAD' or status = 204 then ''
        when ojs_http.missing_nodes() is not null and jsonb_typeof(response.body) = 'object'
            then (response.body || jsonb_build_object('missing_nodes', ojs_http.missing_nodes()))::text
        else coalesce(response.content, response.body::text, '') end;
    response := null; -- large, and in body by now
    return next;
end $$;
comment on function ojs.http(text, text, jsonb, text) is
    'Serves one request of the OJS HTTP binding with the rights of the caller: path with its query string; errors are '
    'answers, not exceptions';

-- sql/http/jobs.sql

-- jobs.sql: one job over HTTP: pushing, looking, cancelling, activating; and what administrators may do to it.

-- What the last push of this session is to be warned of: depth, bound and pressure of a queue; null where nothing.
create function ojs_http.pressure() returns jsonb
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_push_pressure';

create function ojs_http.pressure_headers() returns jsonb
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_strip_nulls(jsonb_build_object('X-OJS-Queue-Depth', p ->> 'depth', 'X-OJS-Queue-Bound', p ->> 'bound',
        'X-OJS-Queue-Pressure', p ->> 'pressure'))
    from ojs_http.pressure() p
$$;

-- How long the push of a request may wait at the bound of a queue; what it was before comes back.
create function ojs_http.set_block_timeout(request ojs_http.request) returns text
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    before text := coalesce(current_setting('ojs.block_timeout', true), '-1'); -- unknown until the library is loaded
    seconds text := request.headers ->> 'ojs-block-timeout';
begin
    if seconds !~ '^[0-9]{1,9}([.][0-9]+)?$' then
        perform ojs_http.raise('INVALID_PAYLOAD', 'OJS-Block-Timeout is no number of seconds',
            '{"field": "OJS-Block-Timeout"}',
            'Send a number from 0 to 30.');
    end if;
    if not ojs_http.may_wait(request) then
        perform set_config('ojs.block_timeout', '0', true);
    elsif seconds is not null then
        perform set_config('ojs.block_timeout', least(seconds::numeric * 1000, 30000)::int::text, true);
    end if;
    return before;
end $$;

-- What a job's limits on starts leave at the moment: the one of which the least is left. A job that asks for more than
-- that is pushed all the same, and waits.
create function ojs_http.limit_headers(job jsonb) returns jsonb
language plpgsql volatile parallel unsafe security definer set enable_seqscan = off set enable_bitmapscan = off
set search_path = pg_catalog, pg_temp as $$
declare
    moment timestamptz := ojs_http.now();
    said jsonb;
begin
    if (job ? 'rate_limit') is not true then
        return '{}';
    end if;
    select jsonb_build_object('X-RateLimit-Limit', used.allowed::text, 'X-RateLimit-Remaining', used.remaining::text,
        'X-RateLimit-Reset', ceil(extract(epoch from case when used.remaining > 0 then moment else used.free_at
            end))::text)
    into said
    from jsonb_array_elements(case jsonb_typeof(job -> 'rate_limit') when 'array' then job -> 'rate_limit'
        else jsonb_build_array(job -> 'rate_limit') end) as stated(config)
    cross join lateral (select coalesce(stated.config ->> 'key', 'queue:' || (job ->> 'queue')) as name) as said
    cross join lateral (select said.name || case when current_setting('ojs.tenancy') = 'off' then ''
        else coalesce('@' || coalesce(ojs_store.caller_tenant(), job #>> '{meta,tenant_id}'), '') end as name) as key
    left join lateral (
        select r.config from ojs_store.rate_limit r
        where r.key = key.name and r.config is not null and (r.until is null or r.until > moment)
            order by r.set_at desc limit 1
    ) set_ on true
    cross join lateral ojs_store.limit_numbers(stated.config, set_.config) n
    -- Starts are numbered: two look-ups, however many there are.
    left join lateral (
        select u.at, u.number from ojs_store.limit_use u
        where u.key = ojs_store.name_hash(key.name) and u.kind = 1
            and u.at > moment - coalesce(n.rate_period, n.throttle_period)
        order by u.at, u.number limit 1
    ) oldest on true
    left join lateral (
        select u.at, u.number from ojs_store.limit_use u
        where u.key = ojs_store.name_hash(key.name) and u.kind = 1
            and u.at > moment - coalesce(n.rate_period, n.throttle_period)
        order by u.at desc, u.number desc limit 1
    ) newest on true
    cross join lateral (
        select coalesce(n.rate, n.throttle) as allowed,
            greatest(coalesce(n.rate, n.throttle)
                - coalesce(newest.number - oldest.number + 1, 0), 0) as remaining,
            case when n.rate is not null then oldest.at + n.rate_period
                else newest.at + n.throttle_period / greatest(n.throttle, 1) end as free_at
    ) used
    where used.allowed is not null
        -- a producer may ask about any job, also about one that never was
        and (said.name not like 'queue:%' or ojs_store.may_use_queue(substr(said.name, 7), 'produce'))
    order by used.remaining, used.free_at desc
    limit 1;
    return jsonb_strip_nulls(coalesce(said, '{}'));
end $$;

-- The job that a push has made or found; only its id, if its queue is not for the caller.
create function ojs_http.pushed_job(job_id uuid) returns jsonb
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_pushed_job';

-- What the pushes of this request were warned of.
create function ojs_http.schema_warnings() returns jsonb
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_schema_warnings';

create function ojs_http.batch_warnings() returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    warnings jsonb := ojs_http.schema_warnings();
begin
    return case when warnings is null then '{}' else jsonb_build_object('warnings', warnings) end;
end $$;

create function ojs_http.push(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    job jsonb := ojs_http.object(request);
    before text := ojs_http.set_block_timeout(request);
    warnings jsonb;
begin
    perform ojs_http.check_args(job, null);
    job := ojs.push_job(job);
    warnings := ojs_http.batch_warnings();
    perform set_config('ojs.block_timeout', before, true);
    if job -> 'dropped' = 'true' then
        return ojs_http.reply(200, job);
    end if;
    -- A key that a batch holds has no job to name.
    return ojs_http.reply(case when job -> 'deduplicated' = 'true' then 200 else 201 end,
        jsonb_build_object('job', case when warnings = '{}' then job else job - 'warnings' end, 'deduplicated',
            job -> 'deduplicated') || warnings,
        jsonb_strip_nulls(jsonb_build_object('Location',
            '/ojs/v1/jobs/' || (job ->> 'id'))) || ojs_http.pressure_headers()
            || ojs_http.limit_headers(job));
end $$;

create function ojs_http.info(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    id uuid := ojs_http.job_named(request, null);
    job jsonb;
begin
    perform ojs_http.upkeep();
    job := ojs.info(id);
    return ojs_http.reply(200, jsonb_build_object('job', job),
        case when job ->> 'state' not in ('completed', 'cancelled', 'discarded') then '{"Retry-After": "1"}' else '{}'
            end::jsonb);
end $$;

create function ojs_http.lineage(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    return ojs_http.reply(200, ojs.lineage(ojs_http.job_named(request, null)));
end $$;

-- As the Admin API shows a job: what it does not have is there, too.
create function ojs_http.admin_job(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    job jsonb := (ojs_http.info(request)).body -> 'job';
begin
    return ojs_http.reply(200, '{"errors": [], "result": null}' || job || jsonb_build_object('retry_policy',
        job -> 'retry', 'metadata', (select jsonb_object_agg(name, job -> name)
            from unnest('{created_at,enqueued_at,started_at,scheduled_at,'
                'completed_at,cancelled_at,discarded_at}'::text[]) name)));
end $$;

-- Of a job that waits the priority may change.
create function ojs_http.change_job(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    id uuid := ojs_http.job_named(request, null);
    priority numeric := ojs_http.field(body, 'priority', 'number', true)::numeric;
    job jsonb;
begin
    perform ojs_http.only(body, 'priority');
    if priority <> trunc(priority) or abs(priority) > 1000000 then
        perform ojs_http.raise('INVALID_PAYLOAD', 'priority must be a whole number', '{"field": "priority"}',
            'Give a number from -100 to 100.');
    end if;
    job := ojs.envelope(ojs.set_priority(id, priority::int));
    return ojs_http.reply(200, job || jsonb_build_object('job', job));
end $$;

create function ojs_http.cancel(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, jsonb_build_object('job', ojs.envelope(ojs.cancel(ojs_http.job_named(request, null)))))
$$;

create function ojs_http.activate(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, jsonb_build_object('job',
        ojs.envelope(ojs.activate(ojs_http.job_named(request, null))) || jsonb_build_object('previous_state',
            'pending')))
$$;

-- Under /admin a cancelled job, too, is tried again: the Admin API wants it so.
create function ojs_http.retry(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    id uuid := ojs_http.job_named(request, null);
    admin boolean := request.path ~ '^/ojs/v1/admin/jobs/';
    body jsonb := ojs_http.object(request, false);
    override jsonb := coalesce(ojs_http.field(body, 'override', 'object'), body - 'override');
    job jsonb;
begin
    perform ojs_http.check_args(override, null) where override -> 'args' <> 'null';
    job := ojs.envelope(case when admin then ojs_http.retry_ended(id, coalesce(override, '{}'))
        else ojs.retry(id, override) end);
    return ojs_http.reply(200, jsonb_build_object('job',
        job || jsonb_strip_nulls(jsonb_build_object('re_enqueued_at', job -> 'enqueued_at'))));
end $$;

create function ojs_http.discard(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, jsonb_build_object('job', ojs.envelope(
        ojs.discard(ojs_http.job_named(request, null),
            ojs_http.text_field(ojs_http.object(request, false), 'reason')))))
$$;

create function ojs_http.no_such_job(id uuid) returns void
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.raise('NOT_FOUND', format('job %s does not exist', id),
        jsonb_build_object('resource_type', 'job', 'resource_id', id, 'job_id', id),
        'Check the id; finished jobs are removed after their retention.')
$$;

create function ojs_http.delete_job(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    id uuid := ojs_http.job_named(request, null);
begin
    if not ojs.delete_job(id) then
        perform ojs_http.no_such_job(id);
    end if;
    return ojs_http.reply(204, null);
end $$;

create function ojs_http.explain(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    id uuid := ojs_http.job_named(request, null);
begin
    perform ojs_http.upkeep();
    return ojs_http.reply(200, jsonb_build_object('job_id', id, 'explanation', ojs.explain_job(id)));
end $$;

-- In the order of its life, in which the view has them not.
create function ojs_http.events_of(job_id uuid, most int) returns jsonb[]
language sql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select array(
        select jsonb_build_object('specversion', '1.0', 'id', ojs_store.event_id(e.at, e.identity), 'type', e.type,
            'source', 'ojs://' || ojs_store.uri_part(current_database()::text) || '/' || e.source,
            'time', ojs_http.rfc3339(e.at), 'subject', e.subject, 'data', e.data)
        from ojs_store.all_events e
        where e.job_id = $1 and ojs_store.may_use_queue(e.queue_id, 'read')
        order by e.written_at, e.deliveries, e.rank limit most)
$$;

-- The events of a job as far as they are kept, the oldest first.
create function ojs_http.job_history(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    wanted uuid := ojs_http.job_named(request, null);
    most int := ojs_http.query_number(request, 'limit', 100, 1, 200);
    events jsonb[];
begin
    perform ojs.info(wanted);
    events := ojs_http.events_of(wanted, most + 1);
    return ojs_http.reply(200, jsonb_build_object('job_id', wanted, 'events', to_jsonb(events[:most]),
        'has_more', cardinality(events) > most));
end $$;

-- DEAD LETTERS -----------------------------------------------------------------------------------------------------

-- The dead letter of the path; NOT_FOUND for any other job, too.
create function ojs_http.dead_letter_named(request ojs_http.request) returns ojs.job
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    wanted uuid := ojs_http.job_id(request.names[1], true);
    job ojs.job;
begin
    select * into job from ojs.dead_letters d where d.id = wanted;
    if not found then
        perform ojs_http.raise('NOT_FOUND', format('dead letter job %s does not exist', wanted),
            jsonb_build_object('resource_type', 'dead_letter_job', 'resource_id', wanted),
                'GET /ojs/v1/dead-letter lists them.');
    end if;
    return job;
end $$;

create function ojs_http.dead_letter(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, jsonb_build_object('job', ojs.envelope(ojs_http.dead_letter_named(request))))
$$;

create function ojs_http.retry_dead_letter(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.dead_letter_named(request);
    return ojs_http.retry(request);
end $$;

create function ojs_http.delete_dead_letter(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    job ojs.job := ojs_http.dead_letter_named(request);
begin
    perform ojs.delete_job(job.id);
    return ojs_http.reply(200, jsonb_build_object('deleted', true, 'job_id', job.id));
end $$;

create function ojs_http.delete_dead_letter_flat(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.delete_dead_letter(request);
    return ojs_http.reply(204, null);
end $$;

-- sql/http/batches.sql

-- batches.sql: many pushes in one request.

-- The key of a batch under either of its names, and how long it is held.
create function ojs_http.batch_key(body jsonb) returns text
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    key text := ojs_http.text_field(body, 'deduplication_key');
    also text := ojs_http.text_field(body, 'deduplicationKey');
begin
    if key <> also then
        perform ojs_http.raise('INVALID_PAYLOAD', 'deduplication_key comes twice with different values',
            '{"field": "deduplication_key"}', 'Give it once.');
    end if;
    return coalesce(key, also);
end $$;

create function ojs_http.batch_ttl(body jsonb) returns interval
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.duration_value(nullif(body -> 'deduplication_ttl', 'null'), 'deduplication_ttl')
$$;

-- Pushes, and says of each job what became of it. An object for args, which SQL takes for the only argument, is
-- refused here (R-01): it is handed on as a boolean, which SQL refuses, too.
create function ojs_http.pushed_items(jobs jsonb, atomicity text, deduplication_key text, deduplication_ttl interval)
    returns jsonb
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select coalesce(jsonb_agg(jsonb_build_object('index', r.index, 'status', r.status)
            || case when r.id is not null then jsonb_build_object('id', r.id) else '{}' end
            || case when r.error is not null then jsonb_build_object('error', ojs_http.item_error(case
                when jsonb_typeof(jobs -> r.index -> 'args') = 'object'
                then jsonb_set(r.error, '{message}', '"args must be an array, not an object"') else r.error end))
                    else '{}' end
        order by r.index), '[]')
    from ojs.push_many(
        case when jsonb_path_exists(jobs, '$[*] ? (@.args.type() == "object")')
            then (select jsonb_agg(case when jsonb_typeof(j.job -> 'args') = 'object'
                then jsonb_set(j.job, '{args}', 'false') else j.job end
                order by j.n) from jsonb_array_elements(jobs) with ordinality as j(job, n))
            else jobs end, -- as it is: a copy of a large batch costs
        deduplication_key, deduplication_ttl, atomicity) r
$$;

-- What a batch that came to nothing would have come to, job by job, without doing it. A job that one of the same batch
-- stands in the way of is told which, since that one never was.
create function ojs_http.tried_items(jobs jsonb, deduplication_key text, deduplication_ttl interval) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    items jsonb;
begin
    items := ojs_http.pushed_items(jobs, 'partial', deduplication_key, deduplication_ttl);
    raise exception using errcode = 'OJ0RB';
exception when sqlstate 'OJ0RB' then
    return (
        with made as (
            select i ->> 'id' as id, i -> 'index' as index from jsonb_array_elements(items) i
                where i ->> 'status' = 'created'
        )
        select jsonb_agg(case when i ->> 'status' <> 'failed'
            then jsonb_build_object('index', i -> 'index', 'status', 'rolled_back')
            when made.id is null then i
            else jsonb_set(jsonb_set(i, '{error,details}',
                (i #> '{error,details}') - '{existing_job_id,existing_job_state}'::text[]
                || jsonb_build_object('index', i -> 'index', 'existing_index', made.index)), '{error,hint}',
                    '"Leave one of the two out."') end
            order by (i -> 'index')::int)
        from jsonb_array_elements(items) i left join made on made.id = i #>> '{error,details,existing_job_id}');
end $$;

-- The answer to a batch as text, since it is large, made item by item: whole ones, or their jobs alone. `limited` is a
-- job that was made and has a limit of its own.
create function ojs_http.batch_answer(items jsonb, jobs_only boolean, head text, tail text, out content text,
    out limited jsonb) returns record
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_batch_answer';

create function ojs_http.batch_response(status int, items jsonb, jobs_only boolean, head text, tail text)
    returns ojs_http.response
language plpgsql strict volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    answer record;
begin
    answer := ojs_http.batch_answer(items, jobs_only, head, tail); -- a query would hold it three times more
    return (status, jsonb_build_object('X-OJS-Batch-Size', jsonb_array_length(items)::text)
        || ojs_http.pressure_headers() || ojs_http.limit_headers(answer.limited), null,
        answer.content)::ojs_http.response;
end $$;

-- The first answer to a request under its idempotency key, whatever became of its jobs since. What came to nothing can
-- be tried again under the same key. Of an answer of more than 1 MB the jobs are kept without what the client knows.
create function ojs_http.take_push_key(operation text, key text, request jsonb) returns jsonb
language sql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select ojs_http.take_key(operation, key, request) where operation in ('push_batch', 'push_bulk')
$$;

create function ojs_http.keep_push_answer(operation text, key text, answer jsonb) returns void
language sql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select ojs_http.keep_answer(operation, key, answer)
    where operation in ('push_batch', 'push_bulk') and pg_column_size(answer) < 16 * 1024 * 1024
$$;

create function ojs_http.forget_push_key(operation text, key text) returns void
language sql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select ojs_http.free_key(operation, key) where operation in ('push_batch', 'push_bulk')
$$;

-- Raises PERMISSION_DENIED for a job in a queue that is not for the caller.
create function ojs_http.may_push(jobs jsonb) returns boolean
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp
begin atomic
    select bool_and(ojs_store.use_queue(queue, 'produce') is not null)
    from (select distinct ojs_store.queue_of(job) as queue
        from jsonb_array_elements(case jsonb_typeof(jobs) when 'array' then jobs else '[]' end) job) q;
end;

-- Jobs are large: a plan for these values alone would hold them several times.
create function ojs_http.push_once(request ojs_http.request, jobs jsonb, operation text) returns ojs_http.response
language plpgsql volatile parallel unsafe set plan_cache_mode = force_generic_plan set search_path = pg_catalog,
    pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    key text := ojs_http.idempotency_key(request, body);
    allowed boolean := key is null or ojs_http.may_push(jobs); -- before an answer that was kept is given
    kept jsonb;
    response ojs_http.response;
begin
    if operation = 'push_batch' and not ojs_http.is_atomic(body, 'atomic') then
        operation := 'push_bulk';
    end if;
    kept := case when key is not null then ojs_http.take_push_key(operation, key,
        body - 'idempotency_key' || jsonb_build_object('jobs', jobs)) end;
    if kept is not null then
        return jsonb_populate_record(response, kept);
    end if;
    response := case operation when 'push_batch' then ojs_http.do_push_batch(request, body, jobs)
        else ojs_http.do_push_bulk(request, body, jobs) end;
    if response.status = 422 then
        perform ojs_http.forget_push_key(operation, key);
    elsif key is not null then
        kept := coalesce(response.body, response.content::jsonb);
        if pg_column_size(kept) > 1024 * 1024 then
            kept := kept || coalesce((select jsonb_build_object(list.name, jsonb_agg(ojs_http.abridged(i) order by n))
                from unnest('{items,jobs}'::text[]) as list(name),
                    jsonb_array_elements(kept -> list.name) with ordinality as e(i, n) group by list.name), '{}');
        end if;
        perform ojs_http.keep_push_answer(operation, key,
            jsonb_build_object('status', response.status, 'headers', response.headers, 'body', kept));
    end if;
    return response;
end $$;

-- The event that a request was served; the functions of SQL leave none, since what they push tells of itself.
create function ojs_http.record_push_bulk(total int, succeeded int, failed int, atomic boolean) returns void
language sql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select ojs_store.record_event('bulk.enqueue.completed', 'enqueue',
        jsonb_build_object('total', total, 'succeeded', succeeded,
        'failed', failed, 'atomicity', case when atomic then 'atomic' else 'partial' end))
$$;

create function ojs_http.push_bulk(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.push_once(request, ojs_http.field(ojs_http.object(request), 'jobs', 'array', true), 'push_bulk')
$$;

create function ojs_http.do_push_bulk(request ojs_http.request, body jsonb, jobs jsonb) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    atomic boolean := ojs_http.is_atomic(body, 'partial');
    atomicity text := case when atomic then 'atomic' else 'partial' end;
    key text := ojs_http.batch_key(body);
    ttl interval := ojs_http.batch_ttl(body);
    detail text;
    items jsonb;
    failed int;
    succeeded int;
    before text := ojs_http.set_block_timeout(request);
begin
    begin
        items := ojs_http.pushed_items(jobs, atomicity, key, ttl);
    exception when others then
        get stacked diagnostics detail = pg_exception_detail;
        -- An error of one job fails the batch; any other is that of the whole request.
        if not atomic or left(sqlstate, 2) <> 'OJ' or detail !~ '"index":' then
            raise;
        end if;
        items := ojs_http.tried_items(jobs, key, ttl);
    end;
    perform set_config('ojs.block_timeout', before, true);
    failed := (select count(*) from jsonb_array_elements(items) i where i -> 'status' = '"failed"');
    succeeded := (select count(*) from jsonb_array_elements(items) i
        where i ->> 'status' not in ('failed', 'rolled_back'));
    perform ojs_http.record_push_bulk(jsonb_array_length(items), succeeded, failed, atomic);
    if failed > 0 and succeeded = 0 then
        return ojs_http.nothing_done(request, case when atomic then 'no job was pushed, since the batch is atomic'
            else 'no job could be pushed' end, jsonb_build_object('total', jsonb_array_length(items), 'failed', failed,
            'items', items, 'succeeded', succeeded) || ojs_http.batch_warnings());
    end if;
    return ojs_http.batch_response(case when failed > 0 then 207 when items @> '[{"status": "created"}]' then 201
        else 200 end, items, false, '{"items": ',
        format(', "total": %s, "failed": %s%s, "succeeded": %s}', jsonb_array_length(items), failed,
        ', "warnings": ' || (ojs_http.batch_warnings() ->> 'warnings'), succeeded));
end $$;

-- All or none, unless the batch says otherwise.
create function ojs_http.push_batch(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.push_once(request, ojs_http.field(ojs_http.object(request), 'jobs', 'array', true), 'push_batch')
$$;

create function ojs_http.do_push_batch(request ojs_http.request, body jsonb, jobs jsonb) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    key text := ojs_http.batch_key(body);
    items jsonb;
    twin jsonb;
    before text := ojs_http.set_block_timeout(request);
begin
    if jobs = '[]' then
        perform ojs_http.raise('INVALID_PAYLOAD', 'jobs is empty', '{"field": "jobs"}', 'Give at least one job.');
    end if;
    perform ojs_http.check_args(j.job, (j.place - 1)::int) from jsonb_array_elements(jobs)
        with ordinality as j(job, place);
    begin
        items := ojs_http.pushed_items(jobs, 'atomic', key, ojs_http.batch_ttl(body));
    exception when sqlstate 'OJ301' then
        -- The job in the way may be one of this batch, which never was: then its place in the batch is said instead.
        select i -> 'error' into twin
            from jsonb_array_elements(ojs_http.tried_items(jobs, key, ojs_http.batch_ttl(body))) i
        where i #> '{error,details}' ? 'existing_index' limit 1;
        if twin is not null then
            perform ojs_http.raise('DUPLICATE_JOB', twin ->> 'message', twin -> 'details', twin ->> 'hint');
        end if;
        raise;
    end;
    perform set_config('ojs.block_timeout', before, true);
    return ojs_http.batch_response(case when items @> '[{"status": "created"}]' then 201 else 200 end, items, true,
        '{"jobs": ', format(', "count": %s%s}', jsonb_array_length(items),
        ', "warnings": ' || (ojs_http.batch_warnings() ->> 'warnings')));
end $$;

-- sql/http/bulk.sql

-- bulk.sql: many jobs in one request: results, cancelling, retrying, deleting.

-- The header goes before the field.
create function ojs_http.idempotency_key(request ojs_http.request, body jsonb) returns text
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select coalesce(request.headers ->> 'idempotency-key', ojs_http.text_field(body, 'idempotency_key'))
$$;

-- Returns true if the batch is all or none.
create function ojs_http.is_atomic(body jsonb, otherwise text) returns boolean
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    atomicity text := coalesce(ojs_http.text_field(body, 'atomicity'), otherwise);
begin
    if atomicity not in ('atomic', 'partial') then
        perform ojs_http.raise('INVALID_PAYLOAD', 'atomicity must be atomic or partial', '{"field": "atomicity"}',
            'Give atomic, partial, or nothing.');
    end if;
    return atomicity = 'atomic';
end $$;

-- An error of one item, in the words of HTTP.
create function ojs_http.item_error(error jsonb) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select error || jsonb_build_object('code', coalesce(s.name, 'x_rejected'))
    from ojs_http.status_of(error ->> 'code', coalesce(error -> 'details', '{}'), '') s
$$;

-- An item of a batch, or a job, without what the client has sent.
create function ojs_http.abridged(item jsonb) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select case when item ? 'job' then item || jsonb_build_object('job', ojs_http.abridged(item -> 'job'))
        when item ? 'id' then (select jsonb_object_agg(key, value) from jsonb_each(item)
            where key = any ('{id,type,queue,state,priority,attempt,created_at,scheduled_at,started_at,'
                'completed_at,discarded_at,cancelled_at,deduplicated}'))
            || '{"abridged": true}'
        else item end
$$;

-- A request of which nothing was done, with the reason of each item. It may be tried again if any item may.
create function ojs_http.nothing_done(request ojs_http.request, message text, body jsonb) returns ojs_http.response
language sql stable parallel safe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(422, body || ojs_http.error_body('invalid_request', 'INVALID_PAYLOAD', message,
        error is not null, '{}',
        'items says what is wrong with each.', request.headers ->> 'x-request-id'),
        jsonb_build_object('X-OJS-Batch-Size', jsonb_array_length(body -> 'items')::text)
            || case when error is not null then ojs_http.headers_of(429, error ->> 'code', error -> 'details')
                else '{}' end)
    from jsonb_path_query_first(body, '$.items[*].error ? (@.retryable == true)') as error
$$;

-- MANY JOBS BY ID OR BY WHAT THEY ARE ------------------------------------------------------------------------------

-- The times of a filter, read as those of a push are.
create function ojs_http.filter_times(filter jsonb) returns jsonb
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select filter || coalesce(jsonb_object_agg(name,
        ojs_http.rfc3339(ojs_http.time_value(ojs_http.text_field(filter, name), name))), '{}')
    from unnest('{since,until,enqueued_after,enqueued_before}'::text[]) name where filter ? name
$$;

-- What the body selects, as the functions of SQL have it.
create function ojs_http.selection(body jsonb) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    ids text[] := coalesce(ojs_http.texts_field(body, 'job_ids'), ojs_http.texts_field(body, 'ids'));
    filter jsonb := ojs_http.field(body, 'filter', 'object');
begin
    if (ids is null) = (filter is null) then
        perform ojs_http.raise('INVALID_PAYLOAD', 'either job_ids or filter must be given', '{"field": "job_ids"}',
            'Name jobs, or say which; not both.');
    elsif filter ? 'ids' then
        perform ojs_http.raise('INVALID_PAYLOAD', 'filter cannot hold ids', '{"field": "filter"}',
            'Name jobs by job_ids.');
    elsif ids is not null then
        return jsonb_build_object('ids', (select coalesce(jsonb_agg(lower(id)), '[]') from unnest(ids) id));
    end if;
    filter := ojs_http.filter_times(filter);
    return filter - '{enqueued_after,enqueued_before}'::text[] || jsonb_strip_nulls(jsonb_build_object(
        'since', coalesce(filter -> 'since', filter -> 'enqueued_after'), 'until',
            coalesce(filter -> 'until', filter -> 'enqueued_before')));
end $$;

create function ojs_http.do_many(operation text, filter jsonb, confirm boolean) returns jsonb
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select case operation
        when 'cancel' then ojs.cancel_many(filter, confirm)
        when 'retry' then ojs.retry_many(filter, confirm)
        else ojs.delete_many(filter, confirm) end
$$;

-- A filter says what it means; only one without any condition must be confirmed.
create function ojs_http.do_bulk(request ojs_http.request, operation text, verb text) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    filter jsonb := ojs_http.selection(body);
    atomic boolean := ojs_http.is_atomic(body, 'partial');
    confirm boolean := coalesce(ojs_http.field(body, 'confirm', 'boolean')::boolean, filter <> '{}');
    done jsonb;
    answer jsonb;
begin
    if atomic then
        perform ojs_http.check_atomic();
    end if;
    if operation = 'cancel' and not filter ?| '{ids,state}' then
        filter := filter || '{"state": ["available", "scheduled"]}';
    end if;
    begin
        done := ojs_http.do_many(operation, filter, confirm);
        if atomic and done -> 'failed' <> '0' then
            raise exception using errcode = 'OJ0RB';
        end if;
    exception when sqlstate 'OJ0RB' then
        done := done || jsonb_build_object('succeeded', 0, 'items',
            (select jsonb_agg(case when i ->> 'status' = 'skipped' then i
            else i || '{"status": "rolled_back"}' end order by (i -> 'index')::int)
                from jsonb_array_elements(done -> 'items') i));
    end;
    answer := jsonb_build_object('total_matched', done -> 'matched', verb, done -> 'succeeded', 'skipped',
        done -> 'failed',
        'more', done -> 'more', 'items', done -> 'items');
    if done -> 'failed' <> '0' and done -> 'succeeded' = '0' then
        return ojs_http.nothing_done(request, format('no job was %s', verb), answer);
    end if;
    return ojs_http.reply(case when done -> 'failed' <> '0' then 207 else 200 end, answer,
        jsonb_build_object('X-OJS-Batch-Size', done ->> 'matched'));
end $$;

create function ojs_http.bulk(request ojs_http.request, operation text, verb text) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    key text := ojs_http.idempotency_key(request, body);
    before jsonb := ojs_http.take_key(operation, key, body - 'idempotency_key');
    response ojs_http.response;
begin
    if before is not null then
        return jsonb_populate_record(response, before);
    end if;
    response := ojs_http.do_bulk(request, operation, verb);
    perform ojs_http.keep_answer(operation, key, to_jsonb(response));
    return response;
end $$;

create function ojs_http.cancel_bulk(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.bulk(request, 'cancel', 'cancelled')
$$;

create function ojs_http.retry_bulk(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.bulk(request, 'retry', 'retried')
$$;

create function ojs_http.delete_bulk(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.bulk(request, 'delete', 'deleted')
$$;

-- FOR ADMINISTRATORS: only what is confirmed is done ----------------------------------------------------------------

create function ojs_http.must_confirm(body jsonb) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if ojs_http.field(body, 'confirm', 'boolean') is distinct from 'true' then
        perform ojs_http.raise('INVALID_PAYLOAD', 'confirm must be true', '{"field": "confirm"}',
            'Send "confirm": true once you are sure.');
    end if;
end $$;

create function ojs_http.admin_bulk(request ojs_http.request, operation text, filter jsonb) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    done jsonb;
begin
    perform ojs_http.must_confirm(request.body);
    done := ojs_http.do_many(operation, filter, true);
    return ojs_http.reply(200, jsonb_build_object('action', operation, 'matched', done -> 'matched', 'succeeded',
        done -> 'succeeded',
        'failed', done -> 'failed', 'more', done -> 'more', 'errors', (
            select coalesce(jsonb_agg(jsonb_build_object('job_id', i -> 'job_id', 'code', i -> 'code', 'error',
                i -> 'reason') order by (i -> 'index')::int), '[]')
            from jsonb_array_elements(done -> 'items') i where i ->> 'status' = 'skipped'))
        || jsonb_strip_nulls(jsonb_build_object('duplicates', ( -- INT-09
            select jsonb_agg(jsonb_build_object('job_id', i -> 'job_id', 'existing_job_id', i -> 'existing_job_id',
                'existing_job_state', i -> 'existing_job_state') order by (i -> 'index')::int)
            from jsonb_array_elements(done -> 'items') i where i ? 'existing_job_id'))));
end $$;

create function ojs_http.admin_cancel_bulk(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.admin_bulk(request, 'cancel', ojs_http.selection(ojs_http.object(request)))
$$;

create function ojs_http.admin_retry_bulk(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.admin_bulk(request, 'retry', ojs_http.selection(ojs_http.object(request)))
$$;

create function ojs_http.admin_delete_bulk(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.admin_bulk(request, 'delete', ojs_http.selection(ojs_http.object(request)))
$$;

-- Dead letters: all of them, or those that the filter says.
create function ojs_http.retry_dead_letters(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.admin_bulk(request, 'retry',
        ojs_http.filter_times(coalesce(ojs_http.field(ojs_http.object(request), 'filter', 'object'), '{}'))
        || '{"state": "discarded", "dead_letter": true}')
$$;

-- Deletes what a filter says, in portions of a batch each. Returns the number of jobs deleted.
create function ojs_http.delete_all(filter jsonb) returns bigint
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    done jsonb;
    n bigint := 0;
begin
    loop
        done := ojs.delete_many(filter, true);
        n := n + (done ->> 'succeeded')::int;
        exit when done -> 'more' <> 'true' or done -> 'succeeded' = '0';
    end loop;
    return n;
end $$;

create function ojs_http.purge_dead_letters(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.purge_asked(request);
    before text := ojs_http.rfc3339(ojs_http.time_value(ojs_http.text_field(body, 'older_than'), 'older_than'));
begin
    perform ojs_http.must_confirm(body);
    return ojs_http.reply(200, jsonb_build_object('purged_count',
        ojs_http.delete_all(ojs_http.filter_times(coalesce(ojs_http.field(body, 'filter', 'object'), '{}'))
        || jsonb_strip_nulls(jsonb_build_object('until', before)) || '{"state": "discarded", "dead_letter": true}')));
end $$;

create function ojs_http.results(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    ids text[] := ojs_http.texts_field(ojs_http.object(request), 'ids', true);
begin
    if cardinality(ids) > 1000 then
        perform ojs_http.raise('BATCH_SIZE_EXCEEDED', format('a call may name 1000 jobs, not %s', cardinality(ids)),
            jsonb_build_object('field', 'ids', 'size', cardinality(ids), 'maximum', 1000), 'Split the call.');
    end if;
    perform ojs_http.upkeep();
    return (
        select ojs_http.reply(200, jsonb_build_object('results',
            coalesce(jsonb_object_agg(s.id, jsonb_build_object('state', s.state, 'result',
            s.result)) filter (where s.fits), '{}'))
            || case when bool_and(s.fits) then '{}' else jsonb_build_object('remaining',
                jsonb_agg(s.id) filter (where not s.fits)) end)
        from (
            select r.*, coalesce(sum(pg_column_size(r.result)) over (order by r.id rows between unbounded preceding
                and 1 preceding), 0) < ojs_http.most_bytes() as fits
            from ojs.results(array(select ojs_http.job_id(id, false) from unnest(ids) id)) r
        ) s);
end $$;

-- sql/http/work.sql

-- work.sql: working over HTTP: fetch, ack, nack (which reports a failure), and registering.

create function ojs_http.envelope(job ojs.claimed_job) returns jsonb
language c immutable strict parallel safe as 'MODULE_PATHNAME', 'ojs_envelope';

-- The length of leases that nobody gives is ojs.http_lease here. A fetch of many jobs claims them in portions, and ends
-- where the answer is full.
create function ojs_http.fetch(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    body jsonb := ojs_http.object(request);
    pool text := ojs_http.text_field(body, 'pool');
    queues text[] := ojs_http.texts_field(body, 'queues', pool is null);
    strategy text := ojs_http.text_field(body, 'strategy');
    weights jsonb := ojs_http.field(body, 'weights', 'object');
    worker text := coalesce(ojs_http.text_field(body, 'worker_id'), 'anonymous');
    wanted bigint := coalesce(ojs_http.number_field(body, 'count', 0, 1000), 1);
    lease interval := ojs_http.number_field(body, 'visibility_timeout_ms', 0, 86400000) * interval '1 millisecond';
    patience text := (regexp_match(request.headers ->> 'prefer', '(?:^|[,; ])wait=([0-9]{1,5})(?:$|[,; ])'))[1];
    bad text := (select q from unnest(queues) q where q !~ '^[a-z0-9][a-z0-9.-]*(@[*])?$' limit 1);
    lease_before text;
    portion bigint;
    more jsonb;
    bytes bigint;
    jobs jsonb := '[]';
begin
    if bad is not null then
        perform ojs_http.raise('INVALID_QUEUE', format('queues holds "%s", which is no name of a queue',
            left(bad, 64)), '{"field": "queues"}',
            'Name queues by a-z, 0-9, "-" and ".".');
    end if;
    perform ojs_http.upkeep();
    lease_before := current_setting('ojs.default_lease', true);
    perform ojs_http.now(); -- loads the library, and with it its settings
    perform set_config('ojs.default_lease', current_setting('ojs.http_lease'), true);
    portion := least(wanted, greatest(1, 4 * ojs_http.most_bytes() / ojs_http.bytes_of('ojs.max_envelope_size')));
    loop
        begin
            select jsonb_agg(c.job), sum(pg_column_size(c.job)) into more, bytes
            -- Without `timeout`, which one SDK reads as milliseconds: timeout_ms says it.
            from (select case when claimed.timeout is null then ojs_http.envelope(claimed)
                else ojs_http.envelope(claimed) - 'timeout' end as job
                from ojs.claim(queues, worker, least(wanted, portion)::int, lease, missing_ok => true,
                    strategy => coalesce(strategy, 'strict'), weights => weights) claimed
                where pool is null
                union all
                select ojs_http.envelope(claimed) - 'timeout'
                from ojs.claim_pool(pool, worker, least(wanted, portion)::int, lease) claimed
                where pool is not null) c;
        exception when sqlstate 'OJ600' then
            exit when jobs <> '[]'; -- what was claimed counts, whatever the queue's claim_rate says of more
            raise;
        end;
        exit when more is null;
        jobs := jobs || more;
        wanted := wanted - portion;
        exit when wanted <= 0 or jsonb_array_length(more) < portion or pg_column_size(jobs) >= ojs_http.most_bytes();
    end loop;
    perform set_config('ojs.default_lease', lease_before, true);
    return ojs_http.reply(200, jsonb_build_object('jobs', jobs),
        case when jobs = '[]' and not ojs_http.may_wait(request) and patience::int > 0
            then jsonb_build_object('OJS-Would-Wait', patience) else '{}' end);
end $$;

-- The fields of a job that replies of ack and nack repeat at the top, so far as it has them.
create function ojs_http.outcome(job jsonb) returns jsonb
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
begin
    return (select jsonb_object_agg(name, job -> name)
            from unnest('{id,state,attempt,max_attempts,next_attempt_at,retry_delay_ms,'
                'completed_at,discarded_at}'::text[]) name
            where job ? name)
        || jsonb_build_object('job_id', job -> 'id', 'job', job);
end $$;

create function ojs_http.ack(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request, cardinality(request.names) = 0);
    job ojs.job := ojs.ack(ojs_http.job_named(request, body), body -> 'result', ojs_http.text_field(body, 'lease_id'),
        ojs_http.text_field(body, 'worker_id'));
begin
    return ojs_http.reply(200, ojs_http.outcome(ojs.envelope(job)) || '{"acknowledged": true}');
end $$;

create function ojs_http.nack(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    id uuid := ojs_http.job_named(request, body);
    error jsonb := ojs_http.field(body, 'error', 'object');
    requeue boolean := coalesce(ojs_http.field(body, 'requeue', 'boolean')::boolean, false);
    delay interval := ojs_http.number_field(body, 'delay_ms', 0, 86400000) * interval '1 millisecond';
    lease_id text := ojs_http.text_field(body, 'lease_id');
    worker text := ojs_http.text_field(body, 'worker_id');
    job ojs.job;
begin
    if requeue and error is null then
        job := ojs.nack(id, coalesce(delay, '0'), lease_id, worker);
    else
        error := ojs_http.field(body, 'error', 'object', true);
        -- Of a class of errors alone it is not said what kind of error it was.
        if coalesce(error -> 'code', 'null') = 'null' and coalesce(error -> 'type', 'null') <> 'null' then
            error := error || '{"code": "handler_error"}';
        end if;
        job := ojs.fail(id, error, lease_id, worker, requeue, delay);
    end if;
    return ojs_http.reply(200, ojs_http.outcome(ojs.envelope(job)));
end $$;

-- Like the progress of a job by its path, but for SDKs that report in percent, of a job that the body names.
create function ojs_http.worker_progress(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    percent numeric := ojs_http.field(body, 'percentage', 'number')::numeric;
begin
    request.names := array[ojs_http.job_named(request, body)::text];
    if percent is not null then
        request.body := body - 'percentage' || jsonb_build_object('progress', percent / 100);
    end if;
    return ojs_http.set_progress(request);
end $$;

create function ojs_http.register_worker(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
begin
    return ojs_http.reply(200, ojs.register_worker(ojs_http.text_field(body, 'worker_id', true), body - 'worker_id')
        || jsonb_build_object('visibility_timeout_default',
            trim_scale(extract(epoch from current_setting('ojs.http_lease')::interval)::numeric)));
end $$;

-- sql/http/workers.sql

-- workers.sql: workers over HTTP: heartbeats, and what there is to see and say of them.

-- Conformance cases tell a worker to stop by the meta of a job it holds. Only on a server of tests (R-66).
create function ojs_http.obey_test_directive(worker text, ids uuid[]) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    directive text;
begin
    perform ojs_http.now(); -- loads the library, and with it its settings
    if current_setting('ojs.conformance_mode', true)::boolean then
        for directive in
            select ojs.info(id) -> 'meta' ->> 'test_directive' from unnest(ids) id
            where ojs.info(id) -> 'meta' ->> 'test_directive' in ('quiet', 'terminate')
        loop
            perform ojs.set_worker_state(worker, directive);
        end loop;
    end if;
end $$;

create function ojs_http.heartbeat(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    body jsonb := ojs_http.object(request);
    worker text := ojs_http.text_field(body, 'worker_id', true);
    -- active_jobs may be a mere number (R-34).
    named text[] := coalesce(
        case when jsonb_typeof(body -> 'active_jobs') = 'number'
            then null else ojs_http.texts_field(body, 'active_jobs') end,
        ojs_http.texts_field(body, 'active_job_ids'), '{}');
    ids uuid[] := array(select id::uuid from unnest(named) id
        where id ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$');
    no_ids text[] := array(select left(id, 64) from unnest(named) id
        where id !~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' limit 1000);
    state text := coalesce(ojs_http.text_field(body, 'state'), 'running');
    beat record;
begin
    perform ojs_http.obey_test_directive(worker, ids);
    select * into beat from ojs.beat(worker, ids, state,
        nullif(body - '{worker_id,active_jobs,active_job_ids,state,visibility_timeout_ms}'::text[], '{}'),
        ojs_http.number_field(body, 'visibility_timeout_ms', 0, 86400000) * interval '1 millisecond');
    return ojs_http.reply(200, jsonb_build_object(
        'state', beat.directive,
        'acknowledged', true,
        'jobs_extended', to_jsonb(beat.extended),
        'cancelled_jobs', to_jsonb(beat.cancelled),
        'lost_jobs', to_jsonb(beat.lost::text[] || no_ids),
        'server_time', ojs_http.rfc3339(ojs_http.now())));
end $$;

create function ojs_http.no_such_worker(worker text) returns void
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.raise('NOT_FOUND', format('worker %s does not exist', left(worker, 64)),
        jsonb_build_object('resource_type', 'worker', 'resource_id', left(worker, 64)),
            'GET /ojs/v1/admin/workers lists them.')
$$;

create function ojs_http.deregister_worker(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    worker text := ojs_http.text_field(body, 'worker_id', true);
begin
    if not ojs.deregister_worker(worker, coalesce(ojs_http.field(body, 'release', 'boolean')::boolean, false)) then
        perform ojs_http.no_such_worker(worker);
    end if;
    return ojs_http.reply(200, jsonb_build_object('deregistered', true, 'worker_id', worker));
end $$;

create function ojs_http.worker_json(w ojs.workers) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_strip_nulls(jsonb_build_object('id', w.worker, 'state',
        case w.status when 'dead' then 'stale' else w.status end, 'status', w.status, 'reported_state', w.state,
        'directive', w.directive,
        'hostname', w.hostname, 'pid', w.pid, 'version', w.info -> 'version', 'queues', coalesce(w.queues, '{}'),
            'concurrency', w.concurrency, 'active_jobs', w.active_jobs,
        'started_at', coalesce(w.info -> 'started_at', to_jsonb(ojs_http.rfc3339(w.registered_at))),
        'registered_at', ojs_http.rfc3339(w.registered_at), 'last_heartbeat_at', ojs_http.rfc3339(w.last_seen_at),
            'metadata', w.info))
$$;

create function ojs_http.worker_named(request ojs_http.request) returns ojs.workers
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    found_worker ojs.workers;
begin
    select * into found_worker from ojs.workers w where w.worker = request.names[1];
    if not found then
        perform ojs_http.no_such_worker(request.names[1]);
    end if;
    return found_worker;
end $$;

-- How a worker is by what it last said and was told: 503 once it takes no more jobs.
create function ojs_http.worker_health(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    worker ojs.workers := ojs_http.worker_named(request);
begin
    return ojs_http.reply(case when worker.status in ('dead', 'stale') then 503 else 200 end,
        ojs_http.worker_json(worker)
        || jsonb_build_object('worker_id', worker.worker, 'state',
            case worker.status when 'quiet' then 'draining' when 'terminate' then 'shutting_down'
            else worker.status end));
end $$;

create function ojs_http.worker(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    worker ojs.workers := ojs_http.worker_named(request);
begin
    return ojs_http.reply(200, ojs_http.worker_json(worker) || jsonb_build_object('active_job_ids',
        coalesce(to_jsonb(worker.active_job_ids), '[]')));
end $$;

-- What its next heartbeat will tell a worker.
create function ojs_http.direct_worker(request ojs_http.request, directive text) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.worker_named(request);
    perform ojs.set_worker_state(request.names[1], directive);
    return ojs_http.worker(request);
end $$;

create function ojs_http.quiet_worker(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog,
    pg_temp as $$ select ojs_http.direct_worker(request, 'quiet') $$;

create function ojs_http.resume_worker(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog,
    pg_temp as $$ select ojs_http.direct_worker(request, 'running') $$;

create function ojs_http.terminate_worker(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog,
    pg_temp as $$ select ojs_http.direct_worker(request, 'terminate') $$;

-- Only what no longer works may be forgotten from outside (ADM-03). Its jobs are given back as those of a dead worker:
-- with its row goes what its death would be noticed by.
create function ojs_http.forget_worker(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    worker ojs.workers := ojs_http.worker_named(request);
begin
    if worker.status not in ('dead', 'stale') then
        perform ojs_http.raise('INVALID_STATE_TRANSITION',
            format('worker %s is %s', left(worker.worker, 64), worker.status),
            jsonb_build_object('current_state', worker.status, 'attempted', 'deregister'),
                'Only a stale or dead worker can be removed.');
    end if;
    perform ojs_http.take_back_jobs(worker.worker);
    perform ojs.deregister_worker(worker.worker);
    return ojs_http.reply(204, null);
end $$;

-- sql/http/reports.sql

-- reports.sql: what workers report of their jobs, over HTTP: progress, checkpoints and the result.

-- As ojs.progress, for whoever holds the job by lease_id and worker, where these are given; whether it does.
create function ojs_http.report_progress(
    job_id uuid, progress numeric, message text, data jsonb, lease_id text, worker text
) returns boolean
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_progress';

-- Returns null if there is no such job. For workers: they may read checkpoints, and report on any job they know the id
-- of.
create function ojs_http.progress_and_checkpoint(id uuid) returns jsonb
language sql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('job_id', job.id, 'state', job.state, 'progress', job.extra -> 'progress',
        'message', job.extra -> 'progress_message', 'data', job.extra -> 'progress_data',
        'checkpoint', (select c.state from ojs_store.checkpoint c where c.job_id = job.id), 'updated_at',
            job.extra -> 'progress_updated_at')
    from ojs_store.look(ojs_store.use_job(id, 'work')) job
    where job.id is not null
$$;

-- Others do not see the checkpoint.
create function ojs_http.progress_json(id uuid) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    job jsonb;
begin
    if has_function_privilege('ojs_http.progress_and_checkpoint(uuid)', 'execute') then
        return ojs_http.progress_and_checkpoint(id);
    end if;
    job := ojs.info(id);
    return jsonb_build_object('job_id', id, 'state', job -> 'state', 'progress', job -> 'progress', 'message',
        job -> 'progress_message',
        'data', job -> 'progress_data', 'checkpoint', null, 'updated_at', job -> 'progress_updated_at');
end $$;

create function ojs_http.progress_reply(id uuid) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    progress jsonb := ojs_http.progress_json(id);
begin
    if progress is null then
        perform ojs_http.no_such_job(id);
    end if;
    return ojs_http.reply(200, progress,
        jsonb_strip_nulls(jsonb_build_object('Cache-Control', 'no-cache', 'X-OJS-Progress', progress ->> 'progress',
        'Last-Modified', to_char((progress ->> 'updated_at')::timestamptz at time zone 'UTC',
            'Dy, DD Mon YYYY HH24:MI:SS "GMT"'))));
end $$;

create function ojs_http.progress(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    id uuid := ojs_http.job_named(request, null);
begin
    perform ojs_http.upkeep();
    return ojs_http.progress_reply(id);
end $$;

create function ojs_http.set_progress(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    id uuid := ojs_http.job_named(request, null);
    body jsonb := ojs_http.object(request);
begin
    if ojs_http.report_progress(id, ojs_http.field(body, 'progress', 'number')::numeric,
        ojs_http.text_field(body, 'message'),
            ojs_http.field(body, 'data', 'object'), ojs_http.text_field(body, 'lease_id'),
                ojs_http.text_field(body, 'worker_id')) then
        perform ojs.checkpoint(id, body -> 'checkpoint') where coalesce(body -> 'checkpoint', 'null') <> 'null';
    end if;
    return ojs_http.progress_reply(id);
end $$;

create function ojs_http.checkpoint(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, ojs.get_checkpoint(ojs_http.job_named(request, null)))
$$;

create function ojs_http.save_checkpoint(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
begin
    if not body ? 'state' then
        perform ojs_http.raise('INVALID_PAYLOAD', 'state is missing', '{"field": "state"}',
            'Give any JSON value as state.');
    end if;
    return ojs_http.reply(200, ojs.checkpoint(ojs_http.job_named(request, null), body -> 'state'));
end $$;

-- As durable handlers of the SDKs save: a step with what it replays. All of it is the checkpoint.
create function ojs_http.save_step(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
begin
    perform ojs_http.only(body, 'state', 'step_index', 'metadata');
    return ojs_http.reply(200, ojs.checkpoint(ojs_http.job_named(request, null), body));
end $$;

-- And as they ask for it when they begin again. A checkpoint that was saved in the other form is the state of a step.
create function ojs_http.resume(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    id uuid := ojs_http.job_named(request, null);
    saved jsonb := ojs_http.progress_and_checkpoint(id);
begin
    if saved is null then
        perform ojs_http.no_such_job(id);
    end if;
    saved := nullif(saved -> 'checkpoint', 'null');
    return ojs_http.reply(200, jsonb_build_object('job_id', id, 'has_checkpoint', saved is not null) ||
        case when saved is null then '{}'
        else jsonb_build_object('checkpoint', case when saved ? 'step_index' then saved
            else jsonb_build_object('state', saved) end) end);
end $$;

create function ojs_http.delete_checkpoint(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    id uuid := ojs_http.job_named(request, null);
begin
    perform ojs.delete_checkpoint(id);
    return ojs_http.reply(200, jsonb_build_object('deleted', true, 'job_id', id));
end $$;

-- With ?wait=true the answer comes when the job has ended, or says 408 after `timeout` seconds.
create function ojs_http.result(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    id uuid := ojs_http.job_named(request, null);
    waits boolean := coalesce(request.query ->> 'wait' = ''
        or ojs_http.query_word(request, 'wait', 'true', 'false', '1', '0') in ('true', '1'), false);
    longest int := ojs_http.query_number(request, 'timeout', 30, 0, 30);
    job jsonb;
begin
    perform ojs_http.upkeep();
    if waits and (case when ojs_http.may_wait(request)
        then (ojs.wait_result(id, make_interval(secs => longest))).id is null
            else ojs.info(id) ->> 'state' not in ('completed', 'cancelled', 'discarded') end) then
        return ojs_http.reply(408, ojs_http.error_body('x_wait_timeout', 'TIMEOUT',
            format('job %s has not ended yet', id), true,
            jsonb_build_object('job_id', id, 'state', ojs.info(id) -> 'state'), 'Ask again.',
                request.headers ->> 'x-request-id'),
            case when ojs_http.may_wait(request) or longest = 0 then '{}'
                else jsonb_build_object('OJS-Would-Wait', longest::text) end);
    end if;
    job := ojs.info(id);
    if not job ? 'result' and (job ->> 'result_expires_at')::timestamptz <= ojs_http.now() then
        return ojs_http.reply(410, ojs_http.error_body('x_result_pruned', 'RESULT_PRUNED',
            format('the result of job %s expired at %s', id, job ->> 'result_expires_at'), false,
            jsonb_build_object('job_id', id, 'result_expires_at', job -> 'result_expires_at'),
                'Push with a longer result_ttl.', request.headers ->> 'x-request-id'));
    end if;
    return ojs_http.reply(200, jsonb_build_object('job_id', id, 'state', job -> 'state', 'result', job -> 'result',
        'error', job -> 'error')
        || jsonb_strip_nulls(jsonb_build_object('result_stored_at', job -> 'result_stored_at', 'result_expires_at',
            job -> 'result_expires_at',
            'result_size_bytes', job -> 'result_size_bytes')));
end $$;

-- sql/http/queues.sql

-- queues.sql: queues and the list of dead letters over HTTP.

-- PAGES ------------------------------------------------------------------------------------------------------------

-- A cursor names the last entry of a page; clients cannot read anything out of it, and need not.
create function ojs_http.cursor_of(key text) returns text
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select encode(convert_to(key, 'UTF8'), 'hex')
$$;

create function ojs_http.page_key(request ojs_http.request, pattern text default '') returns text
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    key text;
begin
    begin
        key := convert_from(decode(nullif(request.query ->> 'cursor', ''), 'hex'), 'UTF8');
    exception when data_exception then
        key := null;
    end;
    if coalesce(request.query ->> 'cursor', '') <> '' and (key is null or key !~ pattern) then
        perform ojs_http.raise('INVALID_PAYLOAD', 'cursor is none that this server gave out', '{"field": "cursor"}',
            'Begin without a cursor.');
    end if;
    return key;
end $$;

-- One page of a list, of which the caller has read one entry more than it shows, with the keys of all of them.
create function ojs_http.page(field text, entries jsonb[], keys text[], total bigint, most int, skipped int,
    shown int default null) returns ojs_http.response
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, jsonb_build_object(
        field, coalesce(to_jsonb(entries[:most]), '[]'),
        'pagination', jsonb_strip_nulls(jsonb_build_object('total', total, 'limit', most, 'offset', skipped,
            'has_more', coalesce(cardinality(keys), 0) > coalesce(shown, most),
            'next_cursor', ojs_http.cursor_of(case when cardinality(keys) > coalesce(shown, most)
                then keys[coalesce(shown, most)] end)))))
$$;

-- How many jobs a filter describes, where a page has `listed` of at most `most` after `skipped`: one that is not full
-- says it itself.
create function ojs_http.total_listed(filter jsonb, most int, skipped int, listed int) returns bigint
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select case when listed < most and (listed > 0 or skipped = 0) then skipped + listed
        else ojs_http.count_listed(filter) end
$$;

-- QUEUES -----------------------------------------------------------------------------------------------------------

create function ojs_http.queues(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    most int := ojs_http.query_number(request, 'limit', 50, 1, 200);
    skipped int := ojs_http.query_number(request, 'offset', 0, 0, 1000000000);
    after text := ojs_http.page_key(request);
    entries jsonb[];
    keys text[];
begin
    select array_agg(jsonb_build_object('name', q.name, 'status', q.state, 'paused', q.state = 'paused', 'created_at',
        ojs_http.rfc3339(q.created_at))
            order by q.name), array_agg(q.name order by q.name)
    into entries, keys
    from (select * from ojs.queues where after is null or name > after order by name limit most + 1 offset skipped) q;
    return ojs_http.page('queues', entries, keys, (select count(*) from ojs.queues), most, skipped);
end $$;

create function ojs_http.queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    info jsonb := ojs.queue_info(request.names[1]);
begin
    return ojs_http.reply(200,
        info - '{topic,count,performance,head_seq,earliest_seq}'::text[] || jsonb_build_object('queue',
        info -> 'queue' || jsonb_build_object('status', info -> 'state', 'type', info -> 'type', 'created_at',
            info -> 'created_at', 'config', info -> 'config')));
end $$;

-- Makes a queue, or gives one that is there these settings.
create function ojs_http.create_queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    named text := ojs_http.text_field(body, 'name', true);
    known boolean := exists (select from ojs.queues q where q.name = named);
    queue jsonb;
begin
    perform ojs_http.only(body, 'name', 'config');
    queue := ojs.create_queue(named, ojs_http.with_bound(coalesce(ojs_http.field(body, 'config', 'object'), '{}')));
    return ojs_http.reply(case when known then 200 else 201 end, queue || jsonb_build_object('queue', queue),
        jsonb_build_object('Location', '/ojs/v1/queues/' || named));
end $$;

create function ojs_http.queue_stats(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    info jsonb;
begin
    perform ojs_http.upkeep();
    info := ojs.queue_info(request.names[1]);
    return ojs_http.reply(200, (info -> 'stats') || jsonb_build_object('queue', info -> 'queue', 'status',
        info -> 'state', 'stats', info -> 'stats',
        'computed_at', info -> 'stats' -> 'computed_at'));
end $$;

create function ojs_http.queue_config(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    info jsonb;
begin
    if request.names[1] = '_default' then
        perform from ojs.queues limit 1; -- who may not look at queues may not look at this either
        return ojs_http.reply(200, jsonb_build_object('name', '_default', 'config', ojs_http.default_policy()));
    end if;
    info := ojs.queue_info(request.names[1]);
    return ojs_http.reply(200, jsonb_build_object('name', info -> 'name', 'config', info -> 'config'));
end $$;

-- The settings of a bound may come in an object of their own.
create function ojs_http.with_bound(config jsonb) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    bound jsonb := coalesce(ojs_http.field(config, 'backpressure', 'object'), '{}');
begin
    if bound ? 'strategy' then
        bound := bound - 'strategy' || jsonb_build_object('discard', bound -> 'strategy');
    end if;
    return config - 'backpressure' || bound;
end $$;

create function ojs_http.configure_queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    queue jsonb := ojs.configure_queue(request.names[1], ojs_http.with_bound(ojs_http.object(request)));
begin
    return ojs_http.reply(200, jsonb_build_object('queue', queue, 'name', queue -> 'name', 'config',
        queue -> 'config'));
end $$;

create function ojs_http.queue_is(name text, state text, at_field text) returns jsonb
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('queue', jsonb_build_object('name', name, 'status', state, 'paused', state = 'paused'),
        'status', state,
        at_field, ojs_http.rfc3339(ojs_http.now()))
$$;

create function ojs_http.pause_queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs.pause_queue(request.names[1]);
    return ojs_http.reply(200, ojs_http.queue_is(request.names[1], 'paused', 'paused_at'));
end $$;

create function ojs_http.resume_queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs.resume_queue(request.names[1]);
    return ojs_http.reply(200, ojs_http.queue_is(request.names[1], 'active', 'resumed_at'));
end $$;

create function ojs_http.drain_queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs.drain_queue(request.names[1]);
    return ojs_http.reply(200, ojs_http.queue_is(request.names[1], 'draining', 'draining_since'));
end $$;

-- Like pause_queue(), but without the wrapper, for administrators, and only of a queue that is there.
create function ojs_http.pause_queue_flat(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    answer jsonb;
begin
    perform ojs.queue_info(request.names[1]);
    answer := (ojs_http.pause_queue(request)).body;
    return ojs_http.reply(200, answer -> 'queue' || (answer - 'queue'));
end $$;

create function ojs_http.resume_queue_flat(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    answer jsonb;
begin
    perform ojs.queue_info(request.names[1]);
    answer := (ojs_http.resume_queue(request)).body;
    return ojs_http.reply(200, answer -> 'queue' || (answer - 'queue'));
end $$;

create function ojs_http.purge_queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.purge_asked(request);
    states text[] := ojs_http.texts_field(body, 'states');
    before text := ojs_http.rfc3339(ojs_http.time_value(ojs_http.text_field(body, 'older_than'), 'older_than'));
    n bigint;
begin
    perform ojs_http.only((body || coalesce(ojs_http.field(body, 'filter', 'object'), '{}')) - 'filter', 'states',
        'confirm', 'older_than');
    if states is null then
        perform ojs_http.raise('INVALID_PAYLOAD', 'states is missing', '{"field": "states"}',
            'Name states such as available, scheduled, completed.');
    elsif before is not null then
        -- By the time of their end, so only of what has ended.
        perform ojs_http.must_confirm(body);
        perform ojs.queue_info(request.names[1]);
        n := ojs_http.delete_all(jsonb_build_object('queue', request.names[1], 'until', before)
            || jsonb_build_object('state', states));
    else
        n := ojs.purge_queue(request.names[1], states,
            coalesce(ojs_http.field(body, 'confirm', 'boolean')::boolean, false));
    end if;
    return ojs_http.reply(200,
        jsonb_strip_nulls(jsonb_build_object('name', request.names[1], 'states', states, 'purged_count', n)));
end $$;

-- What becomes of its jobs is said in the query string or in the body.
create function ojs_http.drop_queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request, false);
    strategy text := coalesce(request.query ->> 'strategy', ojs_http.text_field(body, 'strategy'), 'reject');
    target text := coalesce(request.query ->> 'target', ojs_http.text_field(body, 'target_queue'),
        ojs_http.text_field(body, 'target'));
    n bigint := ojs.drop_queue(request.names[1], strategy, target);
begin
    return ojs_http.reply(200,
        jsonb_strip_nulls(jsonb_build_object('deleted', true, 'name', request.names[1], 'queue', request.names[1],
        'strategy', strategy, 'target_queue', target, 'jobs', n, 'jobs_affected', n, 'state', 'deleted')));
end $$;

-- DEAD LETTERS -----------------------------------------------------------------------------------------------------

-- A page of the jobs that a filter describes, the newest first, by cursor.
create function ojs_http.job_list(request ojs_http.request, field text, filter jsonb) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    most int := ojs_http.query_number(request, 'limit', 50, 1, 200);
    skipped int := ojs_http.query_number(request, 'offset', 0, 0, 1000000000);
    after uuid := ojs_http.page_key(request, '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$');
    entries jsonb[];
    keys text[];
    shown int;
begin
    with page as (
        select listed.job, listed.job ->> 'id' as id, listed.place
        from ojs_http.listed_jobs(filter || jsonb_strip_nulls(jsonb_build_object('beyond', after)), most + 1,
            skipped) listed
    ), fitting as (
        -- One is shown however large it is, and the one after the last says that there is more.
        select *, coalesce(sum(pg_column_size(job)) over (order by place rows between unbounded preceding
            and 1 preceding), 0) < ojs_http.most_bytes() as fits
        from page
    )
    select (select array_agg(f.job order by f.place) from fitting f where f.fits),
        (select array_agg(f.id order by f.place) from fitting f),
        least(most, (select count(*) from fitting f where f.fits))
    into entries, keys, shown;
    return ojs_http.page(field, entries[:shown], keys, ojs_http.total_listed(filter,
        case when after is null then most + 1 else 0 end, skipped, coalesce(cardinality(keys), 0)), most, skipped,
        shown);
end $$;

create function ojs_http.dead_letters(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.job_list(request, 'jobs', ojs_http.dead_letter_filter(request))
$$;

-- QUEUES AS TOPICS -------------------------------------------------------------------------------------------------

create function ojs_http.create_topic(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    queue jsonb := ojs.create_queue(request.names[1], ojs_http.object(request, false));
begin
    return ojs_http.reply(200, queue || jsonb_build_object('topic', queue -> 'name'));
end $$;

create function ojs_http.topic(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.upkeep();
    return ojs_http.reply(200, ojs.queue_info(request.names[1]));
end $$;

-- sql/http/topics.sql

-- topics.sql: the topics of the Queues document: producing, and work by leases.

-- A record is a job: its data is what a claim shows, the type and the arguments; an object of other members is the only
-- argument.
create function ojs_http.record_job(queue text, record jsonb, place bigint) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    data jsonb;
begin
    if jsonb_typeof(record) <> 'object' then
        perform ojs_http.raise('INVALID_PAYLOAD', format('records[%s] must be an object', place - 1),
            '{"field": "records"}', 'Give {"data": {"type": ..., "args": [...]}}.');
    end if;
    perform ojs_http.only(record, 'data', 'tag', 'meta');
    data := ojs_http.field(record, 'data', 'object', true);
    if not data ? 'args' then
        data := jsonb_build_object('type', data -> 'type', 'args',
            case when data - 'type' = '{}' then '[]' else jsonb_build_array(data - 'type') end);
    end if;
    perform ojs_http.only(data, 'type', 'args');
    perform ojs_http.check_args(data, (place - 1)::int);
    return data || jsonb_strip_nulls(jsonb_build_object('queue', queue, 'tag', ojs_http.text_field(record, 'tag'),
        'meta', ojs_http.field(record, 'meta', 'object')));
end $$;

create function ojs_http.topic_produce(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    records jsonb := ojs_http.field(body, 'records', 'array', true);
    before text;
    seqs jsonb;
begin
    perform ojs_http.only(body, 'records');
    if records = '[]' then
        perform ojs_http.raise('INVALID_PAYLOAD', 'records is empty', '{"field": "records"}',
            'Give at least one record.');
    end if;
    before := ojs_http.set_block_timeout(request);
    select jsonb_agg(ojs_http.pushed_job((i ->> 'id')::uuid) -> 'seq' order by (i ->> 'index')::int) into seqs
    from jsonb_array_elements(ojs_http.pushed_items((
        select jsonb_agg(ojs_http.record_job(request.names[1], r.record, r.place) order by r.place)
            from jsonb_array_elements(records) with ordinality as r(record, place)), 'atomic', null, null)) i
    where i ? 'id';
    perform set_config('ojs.block_timeout', before, true);
    return ojs_http.reply(200, jsonb_build_object('topic', request.names[1], 'count',
        coalesce(jsonb_array_length(seqs), 0), 'seqs', coalesce(seqs, '[]'),
        'first_seq', seqs -> 0, 'last_seq', seqs -> -1), ojs_http.pressure_headers());
end $$;

create function ojs_http.topic_claim(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, ojs.lease_claim(request.names[1], request.body))
$$;

create function ojs_http.topic_ack(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, ojs.lease_ack(request.names[1], request.body))
$$;

create function ojs_http.topic_nack(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, ojs.lease_nack(request.names[1], request.body))
$$;

create function ojs_http.topic_extend(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, ojs.lease_extend(request.names[1], request.body))
$$;

-- Which of these leases, JOB/LEASE, are there still.
create function ojs_http.still_held(held text[]) returns text[]
language sql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(array_agg(h.entry order by h.place), '{}')
    from unnest(held) with ordinality as h(entry, place)
    join ojs_store.lease l on l.job_id = split_part(h.entry, '/', 1)::uuid
    where split_part(h.entry, '/', 2) = 'lease_' || lpad(to_hex(l.token), 16, '0') and l.deadline > ojs_store.now()
$$;

create function ojs_http.work_events(topic text, claimed jsonb) returns text
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select coalesce(string_agg('id: ' || (c.job ->> '$seq') || e'\nevent: job\ndata: '
        || (c.job || jsonb_build_object('topic', topic))::text || e'\n\n', '' order by c.place), e': hb\n\n')
    from jsonb_array_elements(claimed) with ordinality as c(job, place)
$$;

-- Jobs that are leased to the one connection which this answer goes to, at most `max` at a time. Only a pipe that goes
-- on with the answer can do that: it brings OJS-Last-Event-ID, which holds the leases that the connection was given,
-- with its next look, and OJS-Stream: end once the connection is gone, for what is held still to be given back.
create function ojs_http.topic_work(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    topic text := request.names[1];
    stage text := request.headers ->> 'ojs-stream';
    node text := request.query ->> 'node';
    most int := ojs_http.query_number(request, 'max', 1, 1, 1000);
    lease_ms int := ojs_http.query_number(request, 'lease_ms', null, 1, 86400000);
    held text[] := case when stage is not null then string_to_array(request.headers ->> 'last-event-id', ',') end;
    claimed jsonb := '[]';
    content text;
    goes_on text := 'idle';
    problem ojs_http.response;
    state text; message text; detail text; hint text; context text;
begin
    if ojs_http.may_wait(request) or request.method <> 'GET' then
        perform ojs_http.raise('UNSUPPORTED_FEATURE', 'jobs come over a connection that stays, which this is not',
            jsonb_build_object('path', left(request.path, 128)), 'GET it from ojs-gateway, or POST to claim.');
    elsif coalesce(request.headers ->> 'accept', '') !~* 'text/event-stream' then
        return ojs_http.reply(406, ojs_http.error_body('not_acceptable', 'INVALID_PAYLOAD',
            'the answer is a stream of events',
            false, '{"field": "Accept"}', 'Send Accept: text/event-stream.', request.headers ->> 'x-request-id'));
    elsif stage = 'end' then
        perform ojs.nack_many(node, array_agg(split_part(h, '/', 1)::uuid), '0', array_agg(split_part(h, '/', 2)))
        from unnest(ojs_http.still_held(held)) h having count(*) > 0;
        return ojs_http.reply(204, null);
    end if;
    perform ojs_http.only(request.query, 'node', 'max', 'lease_ms');
    perform ojs_http.upkeep();
    held := ojs_http.still_held(held);
    begin
        if cardinality(held) < most then
            claimed := ojs.lease_claim(topic,
                jsonb_strip_nulls(jsonb_build_object('node', node, 'max', most - cardinality(held),
                'lease_ms', lease_ms))) -> 'claimed';
        end if;
        content := ojs_http.work_events(topic, claimed);
    exception when others then
        get stacked diagnostics state = returned_sqlstate, message = message_text, detail = pg_exception_detail,
            hint = pg_exception_hint, context = pg_exception_context;
        problem := ojs_http.problem('work', request.path, request.headers ->> 'x-request-id', state, message, detail,
            hint, context);
        if stage is null or problem.status >= 500 then
            raise;
        end if;
        goes_on := case when problem.status = 429 then 'slow' else 'end' end;
        content := e'event: error\ndata: ' || jsonb_build_object('code', problem.status, 'error',
            problem.body #> '{error,code}',
            'message', problem.body #> '{error,message}', 'retryable', problem.status = 429)::text || e'\n\n';
    end;
    held := held || array(select (c ->> 'id') || '/' || (c ->> 'lease_id') from jsonb_array_elements(claimed) c);
    return row(200, jsonb_build_object('Content-Type', 'text/event-stream', 'Cache-Control', 'no-store',
        'X-Accel-Buffering', 'no',
            'OJS-Stream-Queue', topic, 'OJS-Last-Event-ID', array_to_string(held, ','),
            'OJS-Stream', case when claimed <> '[]' then 'on' else goes_on end),
        null, case when stage is null then e'retry: 2000\n' else '' end || content)::ojs_http.response;
end $$;

-- sql/http/cron.sql

-- cron.sql: cron entries and events over HTTP, events as streams too.

create function ojs_http.cron_json(c ojs.crons) returns jsonb
language sql stable parallel safe set search_path = pg_catalog, pg_temp as $$
    select to_jsonb(c) - 'job' || jsonb_build_object(
        'cron', c.expression, 'job_template', c.job, 'type', c.job -> 'type', 'args', coalesce(c.job -> 'args', '[]'),
        'options', c.job - '{type,args,options}'::text[] || coalesce(nullif(c.job -> 'options', 'null'), '{}'),
        'status', case when c.enabled then 'active' else 'disabled' end,
        'next_run_at', ojs_http.rfc3339(c.next_run_at), 'last_run_at', ojs_http.rfc3339(c.last_run_at), 'created_at',
            ojs_http.rfc3339(c.created_at))
$$;

create function ojs_http.no_such_cron(name text) returns void
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.raise('NOT_FOUND', format('cron entry %s does not exist', left(name, 64)),
        jsonb_build_object('resource_type', 'cron', 'resource_id', left(name, 64)), 'GET /ojs/v1/cron lists them.')
$$;

create function ojs_http.crons(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    most int := ojs_http.query_number(request, 'limit', 50, 1, 200);
    skipped int := ojs_http.query_number(request, 'offset', 0, 0, 1000000000);
    after text := ojs_http.page_key(request);
    running boolean := ojs_http.query_word(request, 'enabled', 'true', 'false')::boolean;
    entries jsonb[];
    keys text[];
    total bigint;
    page ojs_http.response;
begin
    select array_agg(ojs_http.cron_json(c.entry) order by c.name), array_agg(c.name order by c.name) into entries, keys
    from (
        select l as entry, l.name from ojs.crons l where (running is null or l.enabled = running)
            and (after is null or l.name > after)
        order by l.name limit most + 1 offset skipped
    ) c;
    select count(*) into total from ojs.crons l where running is null or l.enabled = running;
    page := ojs_http.page('crons', entries, keys, total, most, skipped);
    return ojs_http.reply(page.status, page.body || jsonb_build_object('cron_jobs', page.body -> 'crons', 'count',
        jsonb_array_length(page.body -> 'crons')));
end $$;

-- As the admin UI lists them.
create function ojs_http.cron_item(c ojs.crons) returns jsonb
language sql stable parallel safe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.cron_json(c) || jsonb_build_object('id', c.name, 'schedule', c.expression, 'meta',
        coalesce(c.job -> 'meta', '{}'),
        'queue', coalesce(c.job #> '{options,queue}', c.job -> 'queue', '"default"'))
$$;

create function ojs_http.cron_page(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    entries jsonb[];
begin
    select array_agg(ojs_http.cron_item(p.entry) order by p.name) into entries
    from (
        select c as entry, c.name from ojs.crons c order by c.name
        limit ojs_http.query_number(request, 'per_page', 20, 1, 100) offset ojs_http.page_start(request)
    ) p;
    return ojs_http.numbered_page(request, entries, (select count(*) from ojs.crons));
end $$;

create function ojs_http.cron_flat(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    entry jsonb;
begin
    select ojs_http.cron_item(c) into entry from ojs.crons c where c.name = request.names[1];
    if entry is null then
        perform ojs_http.no_such_cron(request.names[1]);
    end if;
    return ojs_http.reply(200, entry);
end $$;

create function ojs_http.change_cron(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.schedule(request);
    return ojs_http.cron_flat(request);
end $$;

create function ojs_http.cron(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    entry jsonb;
begin
    select ojs_http.cron_json(c) into entry from ojs.crons c where c.name = request.names[1];
    if entry is null then
        perform ojs_http.no_such_cron(request.names[1]);
    end if;
    return ojs_http.reply(200, jsonb_build_object('cron', entry, 'cron_job', entry));
end $$;

-- A job with some of its attributes changed, wherever either has them.
create function ojs_http.changed_job(job jsonb, changes jsonb) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select (job - 'options') - n.given || (changes - 'options') || jsonb_build_object('options',
        coalesce(nullif(job -> 'options', 'null'), '{}') - n.given || coalesce(nullif(changes -> 'options',
            'null'), '{}'))
    from (
        select array_agg(a.name) as given
        from (
            select jsonb_object_keys(changes - 'options') union
                select jsonb_object_keys(coalesce(nullif(changes -> 'options', 'null'), '{}'))
        ) k (name), lateral (values (k.name),
            (case k.name when 'meta' then 'metadata' when 'metadata' then 'meta' end)) a (name)
    ) n
$$;

-- The job is given as job_template, or by its attributes beside the entry's own. POST says what the entry is; PUT and
-- PATCH change what they name, and PUT also makes an entry.
create function ojs_http.schedule(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    whole jsonb := ojs_http.object(request);
    named text := coalesce(request.names[1], ojs_http.text_field(whole, 'name', true));
    expression text := coalesce(ojs_http.text_field(whole, 'cron'),
        ojs_http.text_field(whole, 'expression', cardinality(request.names) = 0));
    own text[] := '{timezone,enabled,overlap_policy,description}';
    job jsonb := coalesce(ojs_http.field(whole, 'job_template', 'object'), nullif(whole - own
        - '{name,cron,expression,job_template,status,next_run_at,last_run_at,run_count,created_at}'::text[], '{}'));
    options jsonb := (select coalesce(jsonb_object_agg(key, value), '{}') from jsonb_each(whole) where key = any (own)
        and value <> 'null');
    there ojs.crons;
    entry jsonb;
    created boolean;
begin
    perform ojs_http.check_args(j, null) from unnest(array[job, job -> 'options']) j where j -> 'args' <> 'null';
    if cardinality(request.names) > 0 then
        if whole ->> 'name' <> named then
            perform ojs_http.raise('INVALID_PAYLOAD', 'name is not the one of the path', '{"field": "name"}',
                'Leave name out of the body.');
        end if;
        select * into there from ojs.crons c where c.name = named;
        if there.name is null and (request.method = 'PATCH' or job is null or expression is null) then
            perform ojs_http.no_such_cron(named);
        end if;
        job := case when there.name is null then job when job is not null then ojs_http.changed_job(there.job, job) end;
        -- With both given it would be registered anew, and what is left out forgotten.
        if there.name is not null and job is not null and expression is not null then
            options := jsonb_strip_nulls(jsonb_build_object('timezone', there.timezone, 'overlap_policy',
                there.overlap_policy, 'description', there.description)) || options;
        end if;
    end if;
    created := (ojs.schedule(named, expression, case when cardinality(request.names) = 0 then coalesce(job, '{}')
        else job end, options) -> 'created')::boolean;
    select ojs_http.cron_json(c) || jsonb_build_object('created', created) into entry from ojs.crons c
        where c.name = named;
    return ojs_http.reply(case when created then 201 else 200 end, jsonb_build_object('cron', entry, 'cron_job', entry),
        case when created then jsonb_build_object('Location', '/ojs/v1/cron/' || named) else '{}' end);
end $$;

create function ojs_http.unschedule(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if not ojs.unschedule(request.names[1]) then
        perform ojs_http.no_such_cron(request.names[1]);
    end if;
    return ojs_http.reply(200, jsonb_build_object('deleted', true, 'name', request.names[1], 'cron',
        jsonb_build_object('name', request.names[1])));
end $$;

-- A run beside those of the clock: overlap_policy, last_run_at and run_count are of those alone.
create function ojs_http.trigger_cron(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    job jsonb := ojs_http.cron_job(request.names[1]);
begin
    if job is null then
        perform ojs_http.no_such_cron(request.names[1]);
    end if;
    if ojs_http.object(request, false) <> '{}' then
        perform ojs_http.raise('INVALID_PAYLOAD', 'a run of a cron entry takes nothing', '{"field": "body"}',
            'Send no body; PATCH changes the entry.');
    end if;
    job := ojs.push_job(job);
    return ojs_http.reply(case when job -> 'deduplicated' = 'true' or job ? 'dropped' then 200 else 201 end,
        jsonb_build_object('job', job, 'deduplicated', job -> 'deduplicated'),
        jsonb_strip_nulls(jsonb_build_object('Location', '/ojs/v1/jobs/' || (job ->> 'id'))));
end $$;

create function ojs_http.events(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.upkeep();
    return ojs_http.reply(200, ojs.events(coalesce(request.query ->> 'after', request.query ->> 'cursor'),
        ojs_http.query_list(request, 'types'),
        ojs_http.query_list(request, 'queues'), ojs_http.query_list(request, 'job_types'),
            ojs_http.query_number(request, 'limit', 100, 1, 1000)));
end $$;

-- STREAMS ----------------------------------------------------------------------------------------------------------

-- What a stream is of: all, one job or one queue, which must be there.
create function ojs_http.stream_of(request ojs_http.request, out job jsonb, out queues text[]) returns record
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    channel text := coalesce(case when cardinality(request.names) > 0
        then split_part(request.path, '/', 4) || ':' || request.names[1] end, request.query ->> 'channel', 'all');
    name text := substr(channel, strpos(channel, ':') + 1);
begin
    queues := ojs_http.query_list(request, 'queues');
    if channel ~ '^jobs?:' then
        job := ojs.info(ojs_http.job_id(name, true));
        queues := array[job ->> 'queue'];
    elsif channel ~ '^queues?:' then
        perform ojs.queue_info(name);
        queues := array[name];
    elsif channel not in ('all', '') then
        perform ojs_http.raise('INVALID_PAYLOAD', 'channel is none', '{"field": "channel"}',
            'Give job:ID, queue:NAME, or nothing for all.');
    end if;
end $$;

-- Events after the cursor that the client had last (Last-Event-ID), or from now on. The answer is complete: a client
-- that reads it from a plain pipe comes again, with the cursor that the last event bears as its id. A pipe that would
-- rather go on with the same answer says so by OJS-Do-Not-Wait, and reads OJS-Stream: more (at once), idle (nothing
-- happened), on, or end; then it sends OJS-Stream and the cursor OJS-Last-Event-ID with its next request.
create function ojs_http.event_stream(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    after text := nullif(request.headers ->> 'last-event-id', '');
    goes_on constant boolean := request.headers ? 'ojs-stream';
    of record;
    page jsonb;
    lost boolean;
    events jsonb[];
    over boolean;
    content text;
begin
    if not goes_on then
        perform ojs_http.upkeep();
    end if;
    of := ojs_http.stream_of(request);
    begin
        page := ojs.events(coalesce(after, 'now'), coalesce(ojs_http.query_list(request, 'event_types'),
            ojs_http.query_list(request, 'types')), of.queues,
            ojs_http.query_list(request, 'job_types'), 200);
    exception when sqlstate 'OJ100' then -- not a cursor of this server: on from here
        page := ojs.events('now');
        lost := true;
    end;
    events := array(select e from jsonb_array_elements(page -> 'events') with ordinality as l(e, place)
        where of.job is null or e ->> 'subject' = of.job ->> 'id' order by place);
    over := of.job is not null and exists (select from unnest(events) e
        where e ->> 'type' in ('job.completed', 'job.cancelled', 'job.discarded'));
    if of.job ->> 'state' in ('completed', 'cancelled', 'discarded') and not goes_on and not over then
        -- Nothing more will happen to it: its end once more.
        over := true;
        events := ojs_http.end_of(of.job);
    end if;
    lost := coalesce(lost, page ? 'missed');
    content := case when lost
        then e'event: system.gap\ndata: {"reason": "events were lost, or the cursor is not of this server"}\n\n'
        else '' end
        || coalesce((select string_agg(case when place = cardinality(events)
            then 'id: ' || (page ->> 'cursor') || e'\n' else '' end
            || 'event: ' || (e ->> 'type') || e'\ndata: ' || e::text || e'\n\n', '' order by place) from unnest(events)
                with ordinality as l(e, place)),
            e':heartbeat\nid: ' || (page ->> 'cursor') || e'\n\n');
    return row(200, jsonb_build_object('Content-Type', 'text/event-stream', 'Cache-Control', 'no-cache',
        'X-Accel-Buffering', 'no')
        || case when ojs_http.may_wait(request) then '{}'
            else jsonb_build_object('OJS-Last-Event-ID', page ->> 'cursor', 'OJS-Stream',
            case when over then 'end' when page -> 'has_more' = 'true' then 'more' when cardinality(events) > 0 or lost
                then 'on' else 'idle' end) end,
        null, case when ojs_http.may_wait(request) then e'retry: 1000\n' else '' end || content)::ojs_http.response;
end $$;

-- sql/http/workflows.sql

-- workflows.sql: one workflow over HTTP: a chain, a group or a batch.

-- The workflow that the path names.
create function ojs_http.workflow_named(request ojs_http.request) returns uuid
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if request.names[1] !~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then
        perform ojs_http.raise('WORKFLOW_NOT_FOUND', format('workflow %s does not exist', left(request.names[1], 64)),
            jsonb_build_object('resource_type', 'workflow', 'resource_id', left(request.names[1], 64)),
                'Check the id.');
    end if;
    return request.names[1];
end $$;

-- What a workflow is, its steps with the names that an SDK asks for, and beside it what clients that expect no wrapper
-- read.
create function ojs_http.workflow_body(workflow jsonb) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('workflow', case when workflow ? 'steps' then workflow || jsonb_build_object('steps', (
            select jsonb_agg(step || jsonb_build_object('id', 'step-' || (step ->> 'index')) order by place)
            from jsonb_array_elements(workflow -> 'steps') with ordinality as s(step, place)))
        else workflow end) || coalesce((
        select jsonb_object_agg(key, value) from jsonb_each(workflow)
            where key in ('id', 'type', 'name', 'state', 'metadata')), '{}')
$$;

-- The HTTP binding writes a workflow as steps with names that depend on each other. Those that are a chain, a group or
-- a batch are read as one; any other graph stays as it is, and is refused.
create function ojs_http.workflow_of_steps(def jsonb) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    with step as (
        select s.place, s.step ->> 'id' as id, coalesce(s.step -> 'depends_on', '[]') as needs,
            s.step - '{id,depends_on}'::text[] || jsonb_build_object('options', coalesce(def -> 'options', '{}')
                || (coalesce(s.step -> 'options', '{}') - 'callback_type')) as job,
            coalesce(jsonb_build_array(lag(s.step -> 'id') over (order by s.place)), '[]') as one_before,
            substr(s.step ->> 'id', 4) as callback
        from jsonb_array_elements(def -> 'steps') with ordinality as s(step, place)
    ), root as (
        select jsonb_agg(id order by place) as ids, jsonb_agg(job order by place) as jobs, count(*) as n
        from step where needs = '[]'
    ), callback as (
        select jsonb_object_agg('on_' || s.callback, s.job) as jobs, count(distinct s.callback) as n
        from step s, root where s.needs = root.ids and s.id ~ '^on[-_](complete|success|failure)$'
    )
    select def - '{steps,options}'::text[] || case
        when root.n = of_all.n then jsonb_build_object('type', 'group', 'jobs', root.jobs)
        when root.n + callback.n = of_all.n
            then jsonb_build_object('type', 'batch', 'jobs', root.jobs, 'callbacks', callback.jobs)
        when of_all.in_line then jsonb_build_object('type', 'chain', 'steps', of_all.jobs)
        else def end
    from root, callback, (
        select count(*) as n, bool_and(needs = case place when 1 then '[]' else one_before end) as in_line,
            jsonb_agg(job order by place) as jobs
        from step
    ) of_all
$$;

create function ojs_http.create_workflow(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    def jsonb := ojs_http.object(request);
    workflow jsonb;
begin
    if not def ? 'type' and jsonb_path_match(def, '$.steps.type() == "array" && exists($.steps[*].depends_on)
        && !exists($.steps[*] ? (@.type() != "object" || @.depends_on.type() != "array"
            || exists(@.options ? (@.type() != "object"))))')
    then
        perform ojs_http.field(def, 'options', 'object');
        def := ojs_http.workflow_of_steps(def);
    end if;
    workflow := ojs.create_workflow(def);
    return ojs_http.reply(201, ojs_http.workflow_body(workflow),
        jsonb_build_object('Location', '/ojs/v1/workflows/' || (workflow ->> 'id')));
end $$;

create function ojs_http.workflow(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.upkeep();
    return ojs_http.reply(200, ojs_http.workflow_body(ojs.workflow(ojs_http.workflow_named(request))));
end $$;

create function ojs_http.extend_workflow(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    return ojs_http.reply(200, ojs_http.workflow_body(ojs.extend_workflow(ojs_http.workflow_named(request),
        ojs_http.object(request))));
end $$;

create function ojs_http.cancel_workflow(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    return ojs_http.reply(200, ojs_http.workflow_body(ojs.cancel_workflow(ojs_http.workflow_named(request))));
end $$;

-- sql/http/schemas.sql

-- schemas.sql: schemas of job types over HTTP: under /schemas as the HTTP binding and the registry have them, in a
-- wrapper, and under /admin/schemas as job versioning has them, without one.

create function ojs_http.version_key(version text) returns bytea
language c strict immutable parallel safe as 'MODULE_PATHNAME', 'ojs_version_key';

create function ojs_http.version_json(version text) returns jsonb
language sql immutable strict parallel safe set search_path = pg_catalog, pg_temp as $$
    select case when version ~ '^(0|[1-9][0-9]{0,8})$' then to_jsonb(version::int) else to_jsonb(version) end
$$;

create function ojs_http.no_such_schema(name text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.raise('NOT_FOUND', format('schema %s does not exist', left(name, 128)),
        jsonb_build_object('resource_type', 'schema', 'resource_id', left(name, 128)),
            'GET /ojs/v1/schemas lists those that are there.');
end $$;

create function ojs_http.schema_json(s ojs.schemas, whole boolean) returns jsonb
language sql stable parallel safe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('uri', s.uri, 'type', s.type, 'job_type', s.type, 'version',
        ojs_http.version_json(s.version),
            'created_at', ojs_http.rfc3339(s.created_at), 'is_latest', s.is_latest)
        || case when whole then jsonb_build_object('schema', s.schema, 'validation',
            jsonb_build_object('mode', s.validation)) else '{}' end
$$;

-- The schema of a URI, the latest of a type, or that of a version; raises where there is none.
create function ojs_http.schema_named(name text, version text default null) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    found_schema jsonb;
begin
    select ojs_http.schema_json(s, true) into found_schema from ojs.schemas s
    where case when strpos(name, ':') > 0 then s.uri = name
        when version is null then s.type = name and s.is_latest
        else s.type = name and ojs_http.version_key(s.version) = ojs_http.version_key(version) end;
    if not found then
        perform ojs_http.no_such_schema(concat_ws('@', name, version));
    end if;
    return found_schema;
end $$;

create function ojs_http.schemas(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    most int := ojs_http.query_number(request, 'limit', 50, 1, 100);
    skip int := ojs_http.query_number(request, 'offset', 0, 0, 1000000);
    total bigint := (select count(*) from ojs.schemas);
begin
    return ojs_http.reply(200, jsonb_build_object(
        'schemas', (select coalesce(jsonb_agg(ojs_http.schema_json(s, false) order by s.type,
            ojs_http.version_key(s.version) desc), '[]') from (
            select * from ojs.schemas order by type, ojs_http.version_key(version) desc offset skip limit most) s),
        'pagination', jsonb_build_object('total', total, 'limit', most, 'offset', skip, 'has_more',
            skip + most < total)));
end $$;

create function ojs_http.schema(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, jsonb_build_object('schema', ojs_http.schema_named(request.names[1], request.names[2])))
$$;

create function ojs_http.versions_of(type text) returns jsonb
language sql stable parallel safe set search_path = pg_catalog, pg_temp as $$
    select jsonb_agg(jsonb_build_object('version', ojs_http.version_json(s.version), 'created_at',
        ojs_http.rfc3339(s.created_at), 'is_latest', s.is_latest)
        order by ojs_http.version_key(s.version) desc)
    from ojs.schemas s where s.type = versions_of.type
$$;

-- Without the wrapper; of a type with all its versions.
create function ojs_http.admin_schema(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, ojs_http.schema_named(request.names[1], request.names[2])
        || case when cardinality(request.names) = 1 then jsonb_build_object('versions',
            ojs_http.versions_of(request.names[1])) else '{}' end)
$$;

create function ojs_http.schema_versions(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    versions jsonb := ojs_http.versions_of(request.names[1]);
begin
    if versions is null then
        perform ojs_http.no_such_schema(request.names[1]);
    end if;
    return ojs_http.reply(200, jsonb_build_object('versions', versions));
end $$;

create function ojs_http.register(type text, version text, body jsonb) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    schema jsonb := coalesce(body -> 'schema', body -> 'args_schema');
    mode text := case when jsonb_typeof(body -> 'validation') = 'object' then body #>> '{validation,mode}' end;
begin
    perform ojs_http.only(body, 'type', 'job_type', 'version', 'schema', 'args_schema', 'uri', 'validation',
        'compatible_with', 'description');
    if schema is null then
        perform ojs_http.raise('INVALID_PAYLOAD', 'schema is missing', '{"field": "schema"}',
            'Give the JSON Schema as an object.');
    end if;
    perform ojs.create_schema(type, version, schema, ojs_http.text_field(body, 'uri'));
    if mode is not null then
        perform ojs.set_schema_validation(type, mode);
    end if;
    return ojs_http.schema_named(type, version);
end $$;

create function ojs_http.register_schema(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
begin
    return ojs_http.reply(201, jsonb_build_object('schema',
        ojs_http.register(coalesce(body ->> 'type', body ->> 'job_type'), body ->> 'version', body)));
end $$;

create function ojs_http.put_schema(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
begin
    if coalesce(body ->> 'type', request.names[1]) <> request.names[1]
        or coalesce(body ->> 'version', request.names[2]) <> request.names[2] then
        perform ojs_http.raise('INVALID_PAYLOAD', 'version is not the one of the path', '{"field": "version"}',
            'Leave type and version out of the body.');
    end if;
    return ojs_http.reply(201, ojs_http.register(request.names[1], request.names[2], body));
end $$;

create function ojs_http.set_schema_validation(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
begin
    perform ojs_http.only(body, 'validation');
    perform ojs.set_schema_validation(request.names[1],
        ojs_http.text_field(ojs_http.field(body, 'validation', 'object', true), 'mode'));
    return ojs_http.reply(200, ojs_http.schema_named(request.names[1]));
end $$;

-- By its URI, or by type and version.
create function ojs_http.drop_schema(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    dropped jsonb;
begin
    if cardinality(request.names) = 1 and strpos(request.names[1], ':') = 0 then
        perform ojs_http.no_such_schema(request.names[1]);
    end if;
    dropped := ojs_http.schema_named(request.names[1], request.names[2]);
    perform ojs.drop_schema(dropped ->> 'type', dropped ->> 'version');
    return ojs_http.reply(200, jsonb_build_object('deleted', true, 'uri', dropped -> 'uri', 'type', dropped -> 'type',
        'version', dropped -> 'version'));
end $$;

-- sql/http/pools.sql

-- pools.sql: pools of queues over HTTP, and how jobs were shared out among queues.

create function ojs_http.pool_json(p ojs.pools) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_strip_nulls(jsonb_build_object('name', p.name, 'queues', p.queues, 'strategy', p.strategy,
        'weights', p.weights, 'concurrency', p.concurrency, 'active_workers', p.active_workers,
        'active_jobs', p.active_jobs, 'updated_at', ojs_http.rfc3339(p.changed_at)))
$$;

-- Null if there is none.
create function ojs_http.pool_named(name text) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.pool_json(p) from ojs.pools p where p.name = pool_named.name
$$;

create function ojs_http.pools(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    entries jsonb[] := array(select ojs_http.pool_json(p) from ojs.pools p order by p.name);
    page int := ojs_http.page_start(request);
begin
    return ojs_http.numbered_page(request, entries[page + 1 : page + ojs_http.query_number(request, 'per_page', 20, 1,
        100)], cardinality(entries));
end $$;

create function ojs_http.pool(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    found_pool jsonb := ojs_http.pool_named(request.names[1]);
begin
    if found_pool is null then
        perform ojs_http.raise('NOT_FOUND', format('pool %s does not exist', left(request.names[1], 64)),
            jsonb_build_object('resource_type', 'pool', 'resource_id', left(request.names[1], 64)),
            'GET /ojs/v1/admin/pools lists them.');
    end if;
    return ojs_http.reply(200, jsonb_build_object('pool', found_pool));
end $$;

create function ojs_http.set_pool(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    known boolean := ojs_http.pool_named(request.names[1]) is not null;
begin
    if coalesce(ojs_http.text_field(body, 'name'), request.names[1]) <> request.names[1] then
        perform ojs_http.raise('INVALID_PAYLOAD', 'name is not that of the path', '{"field": "name"}',
            'Leave it out.');
    end if;
    perform ojs.set_pool(request.names[1], body);
    return ojs_http.reply(case when known then 200 else 201 end,
        jsonb_build_object('pool', ojs_http.pool_named(request.names[1])));
end $$;

create function ojs_http.drop_pool(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.pool(request);
    perform ojs.drop_pool(request.names[1]);
    return ojs_http.reply(204, null);
end $$;

create function ojs_http.scheduling_stats(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    stats jsonb := jsonb_build_object('window', 'PT1M', 'queues', (
        select coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object('name', s.queue,
            'dispatch_count_1m', s.dispatch_count_1m, 'dispatch_ratio_1m', s.dispatch_ratio_1m,
            'avg_wait_ms', s.avg_wait_ms, 'active_jobs', s.active_jobs)) order by s.queue), '[]')
        from ojs.scheduling_stats() s));
begin
    return ojs_http.reply(200, stats || jsonb_build_object('stats', stats));
end $$;

-- sql/http/tenants.sql

-- tenants.sql: tenants over HTTP.

create function ojs_http.tenant_json(t ojs.tenants) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('tenant_id', t.tenant, 'limits', jsonb_strip_nulls(jsonb_build_object(
            'max_concurrency', t.max_concurrency, 'max_queue_depth', t.max_queue_depth,
            'max_scheduled', t.max_scheduled, 'max_enqueue_rate', t.max_enqueue_rate)),
        'fairness_weight', t.fairness_weight)
        || jsonb_strip_nulls(jsonb_build_object('updated_at', ojs_http.rfc3339(t.changed_at)))
$$;

-- The tenant that the path names, or NOT_FOUND; a tenant that the caller may not know of is none.
create function ojs_http.tenant_named(name text) returns ojs.tenants
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    found_tenant ojs.tenants;
begin
    select * into found_tenant from ojs.tenants t where t.tenant = name;
    if found_tenant.tenant is null then
        perform ojs_http.raise('NOT_FOUND', format('tenant %s does not exist', left(name, 64)),
            jsonb_build_object('resource_type', 'tenant', 'resource_id', left(name, 64)),
            'GET /ojs/v1/admin/tenants lists them.');
    end if;
    return found_tenant;
end $$;

-- What a tenant does, beside what it may do.
create function ojs_http.tenant_stats_json(tenant text) returns setof jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('tenant_id', s.tenant_id,
        'jobs', jsonb_build_object('available', s.available, 'active', s.active, 'scheduled', s.scheduled,
            'retryable', s.retryable, 'pending', s.pending, 'completed_24h', s.completed_24h,
            'failed_24h', s.failed_24h),
        'throughput', jsonb_build_object('processed_per_minute', round(s.processed_last_hour / 60.0, 2),
            'enqueued_per_minute', round(s.enqueued_last_hour / 60.0, 2)),
        'limits', jsonb_strip_nulls(jsonb_build_object(
            'max_concurrency', case when t.max_concurrency is not null then jsonb_build_object(
                'limit', t.max_concurrency, 'current', s.active) end,
            'max_queue_depth', case when t.max_queue_depth is not null then jsonb_build_object(
                'limit', t.max_queue_depth, 'current', s.waiting) end,
            'max_scheduled', case when t.max_scheduled is not null then jsonb_build_object(
                'limit', t.max_scheduled, 'current', s.scheduled) end,
            'max_enqueue_rate', t.max_enqueue_rate)),
        'fairness', jsonb_strip_nulls(jsonb_build_object('weight', s.fairness_weight,
            'effective_share', s.effective_share, 'actual_share', s.actual_share)))
    from ojs.tenant_stats(tenant_stats_json.tenant) s join ojs.tenants t on t.tenant = s.tenant_id
    order by s.tenant_id
$$;

create function ojs_http.tenants(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    entries jsonb[] := array(select s from ojs_http.tenant_stats_json(null) s);
    page int := ojs_http.page_start(request);
begin
    return ojs_http.numbered_page(request, entries[page + 1 : page + ojs_http.query_number(request, 'per_page', 20, 1,
        100)], cardinality(entries));
end $$;

create function ojs_http.tenant(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, jsonb_build_object('tenant', ojs_http.tenant_json(
        ojs_http.tenant_named(request.names[1]))))
$$;

create function ojs_http.tenant_stats(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.tenant_named(request.names[1]);
    return ojs_http.reply(200, (select s from ojs_http.tenant_stats_json(request.names[1]) s));
end $$;

-- For the time of this request the caller acts for the tenant; so it sees what this one may see.
create function ojs_http.tenant_jobs(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    before text := current_setting('ojs.tenant');
    response ojs_http.response;
begin
    perform ojs_http.tenant_named(request.names[1]);
    perform set_config('ojs.tenant', request.names[1], true);
    response := ojs_http.admin_jobs(request);
    perform set_config('ojs.tenant', before, true);
    return response;
end $$;

create function ojs_http.set_tenant(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    known boolean := exists (select from ojs.tenants t where t.tenant = request.names[1] and t.changed_at is not null);
begin
    perform ojs.set_tenant(request.names[1], body - 'reason', ojs_http.text_field(body, 'reason'));
    return ojs_http.reply(case when known then 200 else 201 end, jsonb_build_object('tenant',
        ojs_http.tenant_json(ojs_http.tenant_named(request.names[1]))));
end $$;

create function ojs_http.set_tenant_limits(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
begin
    if body ? 'limits' or body ? 'fairness_weight' then
        perform ojs_http.raise('INVALID_PAYLOAD', 'only limits are set here',
            jsonb_build_object('field', case when body ? 'limits' then 'limits' else 'fairness_weight' end),
            'Name the limits at the top: {"max_concurrency": 5}.');
    end if;
    perform ojs.set_tenant(request.names[1], body - 'reason', ojs_http.text_field(body, 'reason'));
    return ojs_http.reply(200, jsonb_build_object('tenant',
        ojs_http.tenant_json(ojs_http.tenant_named(request.names[1]))));
end $$;

create function ojs_http.drop_tenant(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.tenant_named(request.names[1]);
    perform ojs.drop_tenant(request.names[1]);
    return ojs_http.reply(204, null);
end $$;

-- sql/http/webhooks.sql

-- webhooks.sql: subscriptions to events and their deliveries over HTTP.

-- An id in a path, with or without its prefix; what is none is the id of nothing.
create function ojs_http.prefixed_id(given text, prefix text, what text) returns uuid
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    id text := case when starts_with(given, prefix) then substr(given, octet_length(prefix) + 1) else given end;
begin
    if id ~ '^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$' then
        return id;
    end if;
    perform ojs_http.raise('NOT_FOUND', format('%s %s does not exist', what, left(given, 64)),
        jsonb_build_object('resource_type', what, 'resource_id', left(given, 64)),
        format('GET /ojs/v1/webhooks/%s lists them.', case what when 'delivery' then 'deliveries'
            else 'subscriptions' end));
end $$;

create function ojs_http.webhook_json(w ojs.webhooks) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('id', 'sub_' || w.id, 'url', w.url, 'events', w.events, 'active', w.active,
        'metadata', w.metadata, 'timeout_seconds', extract(epoch from w.timeout)::int,
        'created_at', ojs_http.rfc3339(w.created_at), 'updated_at', ojs_http.rfc3339(w.changed_at),
        'deliveries', jsonb_build_object('pending', w.pending, 'delivered', w.delivered, 'retried', w.retried,
            'dead', w.dead, 'dropped', w.dropped, 'failures_in_a_row', w.failures))
        || case when w.queues is not null or w.job_types is not null then jsonb_build_object('filter',
            jsonb_strip_nulls(jsonb_build_object('queues', w.queues, 'job_types', w.job_types))) else '{}' end
$$;

create function ojs_http.webhook_named(request ojs_http.request) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    wanted uuid := ojs_http.prefixed_id(request.names[1], 'sub_', 'subscription');
    found_one jsonb := (select ojs_http.webhook_json(w) from ojs.webhooks w where w.id = wanted);
begin
    if found_one is null then
        perform ojs_http.raise('NOT_FOUND', format('subscription sub_%s does not exist', wanted),
            jsonb_build_object('resource_type', 'subscription', 'resource_id', 'sub_' || wanted),
            'GET /ojs/v1/webhooks/subscriptions lists them.');
    end if;
    return found_one;
end $$;

-- As the Webhooks document shows a subscription, and in the wrapper that the conformance suite reads.
create function ojs_http.webhook_reply(status int, subscription jsonb) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(status, subscription || jsonb_build_object('subscription', subscription))
$$;

create function ojs_http.webhooks(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, jsonb_build_object('subscriptions',
        coalesce(jsonb_agg(ojs_http.webhook_json(w) order by w.created_at, w.id), '[]'), 'total', count(*)))
    from ojs.webhooks w
$$;

create function ojs_http.create_webhook(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    made jsonb := ojs.create_webhook(ojs_http.object(request));
begin
    return ojs_http.webhook_reply(201, made || jsonb_build_object('id', 'sub_' || (made ->> 'id')));
end $$;

create function ojs_http.webhook(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.webhook_reply(200, ojs_http.webhook_named(request))
$$;

create function ojs_http.update_webhook(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs.update_webhook(ojs_http.prefixed_id(request.names[1], 'sub_', 'subscription'),
        ojs_http.object(request));
    return ojs_http.webhook_reply(200, ojs_http.webhook_named(request));
end $$;

create function ojs_http.drop_webhook(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.webhook_named(request);
    perform ojs.drop_webhook(ojs_http.prefixed_id(request.names[1], 'sub_', 'subscription'));
    return ojs_http.reply(204, null);
end $$;

create function ojs_http.rotate_webhook_secret(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request, false);
    rotated jsonb;
begin
    perform ojs_http.only(body, 'secret', 'overlap');
    rotated := ojs.rotate_webhook_secret(ojs_http.prefixed_id(request.names[1], 'sub_', 'subscription'),
        ojs_http.text_field(body, 'secret'),
        coalesce(ojs_http.duration_value(body -> 'overlap', 'overlap'), '24 hours'));
    return ojs_http.webhook_reply(200, rotated || jsonb_build_object('id', 'sub_' || (rotated ->> 'id')));
end $$;

-- Sends webhook.test and says what came of it. A repeated request asks for the same delivery: so the gateway, which
-- waits for us, asks until there is an answer.
create function ojs_http.test_webhook(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    delivery uuid := ojs.test_webhook(ojs_http.prefixed_id(request.names[1], 'sub_', 'subscription'),
        md5(concat_ws(' ', request.names[1], request.headers ->> 'x-request-id'))::uuid);
    d ojs.webhook_deliveries;
begin
    select * into d from ojs.webhook_deliveries o where o.id = delivery;
    if d.state = 'pending' then
        return ojs_http.reply(202, jsonb_build_object('success', null, 'delivery_id', 'del_' || delivery),
            case when ojs_http.may_wait(request) then '{}' else '{"OJS-Would-Wait": "30"}' end::jsonb);
    end if;
    return ojs_http.reply(200, jsonb_build_object('success', d.state = 'delivered', 'delivery_id', 'del_' || delivery)
        || jsonb_strip_nulls(jsonb_build_object('status_code', d.status_code, 'response_time_ms', d.duration_ms,
            'response_body', d.response, 'error', d.error)));
end $$;

create function ojs_http.webhook_delivery_json(d ojs.webhook_deliveries) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_strip_nulls(jsonb_build_object('id', 'del_' || d.id, 'subscription_id', 'sub_' || d.webhook,
        'event_id', d.event_id, 'event_type', d.event_type, 'status', d.state, 'attempts', d.attempts,
        'created_at', ojs_http.rfc3339(d.created_at), 'next_attempt_at', ojs_http.rfc3339(d.due_at),
        'finished_at', ojs_http.rfc3339(d.finished_at), 'status_code', d.status_code, 'error', d.error,
        'response_body', d.response, 'response_time_ms', d.duration_ms))
$$;

create function ojs_http.webhook_deliveries(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    most int := ojs_http.query_number(request, 'limit', 50, 1, 100);
    status text := ojs_http.query_word(request, 'status', 'pending', 'delivered', 'dead');
    subscription uuid := case when request.query ? 'subscription_id'
        then ojs_http.prefixed_id(request.query ->> 'subscription_id', 'sub_', 'subscription') end;
    after uuid := case when request.query ? 'after'
        then ojs_http.prefixed_id(request.query ->> 'after', 'del_', 'delivery') end;
    found_ones jsonb[];
begin
    found_ones := array(select ojs_http.webhook_delivery_json(d) from ojs.webhook_deliveries d
        where (status is null or d.state = status) and (subscription is null or d.webhook = subscription)
            and (after is null or d.id < after)
        order by d.id desc limit most + 1);
    return ojs_http.reply(200, jsonb_build_object('deliveries', to_jsonb(found_ones[:most]), 'has_more',
        cardinality(found_ones) > most));
end $$;

create function ojs_http.webhook_delivery(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    wanted uuid := ojs_http.prefixed_id(request.names[1], 'del_', 'delivery');
    found_one jsonb := (select ojs_http.webhook_delivery_json(d) || case when d.body is not null
        then jsonb_build_object('payload', d.body::jsonb) else '{}' end
        from ojs.webhook_deliveries d where d.id = wanted);
begin
    if found_one is null then
        perform ojs_http.raise('NOT_FOUND', format('delivery del_%s does not exist', wanted),
            jsonb_build_object('resource_type', 'delivery', 'resource_id', 'del_' || wanted),
            'GET /ojs/v1/webhooks/deliveries lists them.');
    end if;
    return ojs_http.reply(200, found_one || jsonb_build_object('delivery', found_one));
end $$;

create function ojs_http.retry_webhook_delivery(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs.retry_webhook_delivery(ojs_http.prefixed_id(request.names[1], 'del_', 'delivery'));
    return ojs_http.webhook_delivery(request);
end $$;

-- sql/http/admin.sql

-- admin.sql: what administrators look at: lists by pages and filters.

-- A page by number: its entries, and how many there are in all.
create function ojs_http.numbered_page(request ojs_http.request, entries jsonb[], total bigint,
    more jsonb default '{}') returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, jsonb_build_object('items', coalesce(to_jsonb(entries), '[]'), 'pagination',
        jsonb_build_object('total', total,
        'page', ojs_http.query_number(request, 'page', 1, 1, 1000000), 'per_page',
            ojs_http.query_number(request, 'per_page', 20, 1, 100))) || more)
$$;

create function ojs_http.page_start(request ojs_http.request) returns int
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select (ojs_http.query_number(request, 'page', 1, 1, 1000000) - 1) * ojs_http.query_number(request, 'per_page',
        20, 1, 100)
$$;

create function ojs_http.query_time(request ojs_http.request, name text) returns timestamptz
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.time_value(nullif(request.query ->> name, ''), name)
$$;

-- One of several words, or null.
create function ojs_http.query_word(request ojs_http.request, name text, variadic words text[]) returns text
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    given text := nullif(request.query ->> name, '');
begin
    if given <> all (words) then
        perform ojs_http.raise('INVALID_PAYLOAD', format('%s has no such value', name),
            jsonb_build_object('field', name),
            format('Give one of %s.', array_to_string(words, ', ')));
    end if;
    return given;
end $$;

-- JOBS -------------------------------------------------------------------------------------------------------------

-- What a list is to show, for ojs_store.listed_ids().
create function ojs_http.list_filter(request ojs_http.request, more jsonb) returns jsonb
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select jsonb_strip_nulls(more || jsonb_build_object('queue', nullif(request.query ->> 'queue', ''), 'type',
        nullif(request.query ->> 'type', ''),
        'since', ojs_http.query_time(request, 'since'), 'until', ojs_http.query_time(request, 'until')))
$$;

-- A page of such jobs, sorted as the request asks. What does not fit is shown abridged.
create function ojs_http.job_page(request ojs_http.request, filter jsonb) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    sort text := coalesce(ojs_http.query_word(request, 'sort', 'created_at', 'scheduled_at', 'priority'), 'created_at');
    direction text := ojs_http.query_word(request, 'order', 'asc', 'desc');
    most int := ojs_http.query_number(request, 'per_page', 20, 1, 100);
    skipped int := ojs_http.page_start(request);
    entries jsonb[];
begin
    select array_agg(case when sized.bytes <= ojs_http.most_bytes() then sized.job else ojs_http.abridged(sized.job)
        end order by sized.n) into entries
    from (
        select page.job, page.n, sum(pg_column_size(page.job)) over (order by page.n) as bytes
        from (
            select listed.job, listed.place as n
            from ojs_http.listed_jobs(filter || jsonb_build_object('sort', sort, 'ascending',
                coalesce(direction = 'asc', false)), most, skipped) listed
        ) page
    ) sized;
    return ojs_http.numbered_page(request, entries,
        ojs_http.total_listed(filter, most, skipped, coalesce(cardinality(entries), 0)));
end $$;

-- By pages in any order, or by cursor, the newest first.
create function ojs_http.admin_jobs(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    filter jsonb := ojs_http.list_filter(request, jsonb_build_object('state',
        ojs_http.query_word(request, 'state', 'available', 'scheduled', 'retryable', 'pending', 'active', 'completed',
            'cancelled', 'discarded')));
begin
    perform ojs_http.upkeep();
    if not request.query ?| '{cursor,limit}' then
        return ojs_http.job_page(request, filter);
    end if;
    perform ojs_http.only(request.query, 'cursor', 'limit', 'queue', 'state', 'type', 'since', 'until');
    return ojs_http.job_list(request, 'items', filter);
end $$;

-- ACCESS -----------------------------------------------------------------------------------------------------------

-- What the caller may do, so that a user interface offers nothing else.
create function ojs_http.access(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, jsonb_build_object('role', current_user, 'duties', coalesce(jsonb_agg(d.duty), '[]')))
    from (values
        ('produce', 'ojs.push_job(jsonb)'), ('work', 'ojs.ack(uuid, jsonb, text, text)'), ('observe', 'ojs.health()'),
        ('admin', 'ojs.delete_job(uuid)')) as d(duty, function)
    where has_function_privilege(d.function, 'execute')
$$;

-- QUEUES -----------------------------------------------------------------------------------------------------------

create function ojs_http.throughput(completed_last_hour numeric, failed_last_hour numeric) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('processed_per_minute', round(coalesce(completed_last_hour, 0) / 60, 3),
        'failed_per_minute', round(coalesce(failed_last_hour, 0) / 60, 3))
$$;

-- All queues together; rates are means over the last hour.
create function ojs_http.admin_stats(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    stats jsonb;
begin
    perform ojs_http.upkeep();
    select jsonb_build_object(
        'queues', count(*),
        'workers', (select count(*) from ojs.workers where status in ('running', 'quiet', 'terminate')),
        'jobs', jsonb_build_object('available', coalesce(sum(s.available), 0), 'active', coalesce(sum(s.active), 0),
            'scheduled', coalesce(sum(s.scheduled), 0), 'retryable', coalesce(sum(s.retryable), 0), 'pending',
                coalesce(sum(s.pending), 0),
            'completed', coalesce(sum(s.completed), 0), 'cancelled', coalesce(sum(s.cancelled), 0), 'discarded',
                coalesce(sum(s.discarded), 0)),
        'throughput', ojs_http.throughput(sum(s.completed_last_hour), sum(s.failed_last_hour)),
        'maintenance', ojs.health() -> 'maintenance' <> 'null',
        'uptime_seconds', floor(extract(epoch from clock_timestamp() - pg_postmaster_start_time())),
        'computed_at', ojs_http.rfc3339(ojs_http.now()))
    into stats from ojs.queue_stats() s;
    return ojs_http.reply(200, stats);
end $$;

create function ojs_http.stats_history(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    period text := coalesce(ojs_http.query_word(request, 'period', '1m', '5m', '1h', '1d'), '5m');
    step interval := case period when '1m' then '1 min' when '5m' then '5 min' when '1h' then '1 hour' else '1 day' end;
    of_queue text := nullif(request.query ->> 'queue', '');
    until timestamptz := coalesce(ojs_http.query_time(request, 'until'), ojs_http.now());
    since timestamptz := coalesce(ojs_http.query_time(request, 'since'), until - interval '1 hour');
begin
    if of_queue is not null then
        perform ojs.queue_info(of_queue);
    end if;
    perform ojs_http.upkeep();
    return ojs_http.reply(200, jsonb_build_object('period', period, 'data',
        ojs_http.history_of(of_queue, step, since, until)));
end $$;

create function ojs_http.admin_queues(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    entries jsonb[];
begin
    perform ojs_http.upkeep();
    select array_agg(jsonb_build_object('name', p.name, 'state', p.state, 'paused', p.state = 'paused', 'created_at',
        ojs_http.rfc3339(p.created_at),
        'counts', to_jsonb(s) - '{queue,paused,computed_at}'::text[], 'throughput',
            ojs_http.throughput(s.completed_last_hour, s.failed_last_hour)) order by p.name)
    into entries
    from (
        select * from ojs.queues order by name
        limit ojs_http.query_number(request, 'per_page', 20, 1, 100) offset ojs_http.page_start(request)
    ) p, ojs.queue_stats(p.name) s;
    return ojs_http.numbered_page(request, entries, (select count(*) from ojs.queues));
end $$;

create function ojs_http.admin_queue(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    found_queue ojs_http.response;
    queue jsonb;
begin
    perform ojs_http.upkeep();
    found_queue := ojs_http.queue(request);
    queue := found_queue.body;
    return ojs_http.reply(200, queue || jsonb_build_object('counts', (queue -> 'stats') - '{queue,depth}'::text[],
        'configuration', queue -> 'config',
        'throughput', ojs_http.throughput((queue #> '{stats,completed_last_hour}')::numeric,
            (queue #> '{stats,failed_last_hour}')::numeric),
        'paused', queue -> 'state' = '"paused"'));
end $$;

-- A limit on the queue as a whole lies over what its settings say.
create function ojs_http.set_queue_rate_limit(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs.queue_info(request.names[1]);
    request.names[1] := 'queue:' || request.names[1];
    return ojs_http.set_rate_limit(request);
end $$;

-- WORKERS ----------------------------------------------------------------------------------------------------------

create function ojs_http.admin_workers(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    entries jsonb[];
    summary jsonb;
begin
    with all_of_them as materialized (
        select w as entry, w.worker, w.status from ojs.workers w
    ), page as (
        select * from all_of_them order by worker
        limit ojs_http.query_number(request, 'per_page', 20, 1, 100) offset ojs_http.page_start(request)
    )
    select (select array_agg(ojs_http.worker_json(p.entry) order by p.worker) from page p),
        jsonb_build_object('total', count(*), 'running', count(*) filter (where status = 'running'),
            'quiet', count(*) filter (where status in ('quiet', 'terminate')), 'stale',
                count(*) filter (where status in ('stale', 'dead')))
    into entries, summary from all_of_them;
    return ojs_http.numbered_page(request, entries, (summary ->> 'total')::bigint,
        jsonb_build_object('summary', summary));
end $$;

-- UNIQUE JOBS ------------------------------------------------------------------------------------------------------

-- Uniqueness keys and the newest job of each, as the admin UI lists them.
create function ojs_http.unique_jobs(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    keys record := ojs_http.held_keys(ojs_http.query_number(request, 'per_page', 20, 1, 100),
        ojs_http.page_start(request));
begin
    return ojs_http.numbered_page(request, keys.entries, keys.total);
end $$;

-- OTHER PAGES OF THE ADMIN UI --------------------------------------------------------------------------------------

create function ojs_http.priority_stats(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    distribution jsonb;
begin
    perform ojs.queue_info(request.names[1]);
    if pg_is_in_recovery() then -- which has the logged tables only
        select coalesce(jsonb_agg(jsonb_build_object('priority', n.priority, 'count', n.jobs) order by n.priority desc),
            '[]') into distribution
        from (select j.priority, count(*) as jobs from ojs.jobs j
            where j.queue = request.names[1] and j.state = 'available' group by 1) n;
    else
        distribution := ojs_http.waiting_by_priority(request.names[1]);
    end if;
    return ojs_http.reply(200, jsonb_build_object('queue', request.names[1], 'distribution', distribution));
end $$;

-- DEAD LETTERS -----------------------------------------------------------------------------------------------------

-- What arguments must contain, as JSON: what is no array stands for one of them.
create function ojs_http.query_args(request ojs_http.request) returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    args jsonb;
begin
    args := nullif(request.query ->> 'args', '')::jsonb;
    return case when jsonb_typeof(args) = 'array' then args when args is not null then jsonb_build_array(args) end;
exception when data_exception then
    perform ojs_http.raise('INVALID_PAYLOAD', 'args must be JSON', '{"field": "args"}',
        'Give ?args={"customer":7}, encoded.');
end $$;

create function ojs_http.dead_letter_filter(request ojs_http.request) returns jsonb
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.list_filter(request, jsonb_build_object('dead_letters', true, 'error_type',
        nullif(request.query ->> 'error_type', ''),
        'args', ojs_http.query_args(request)))
$$;

create function ojs_http.admin_dead_letters(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.job_page(request, ojs_http.dead_letter_filter(request))
$$;

-- With how long they are kept: those of the queue, or of all queues that say nothing themselves.
create function ojs_http.dead_letter_stats(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    of_queue text := nullif(request.query ->> 'queue', '');
    stats jsonb := ojs.dead_letter_stats(of_queue);
    config jsonb := coalesce((select ojs.queue_info(q.name) -> 'config' from ojs.queues q where q.name = of_queue),
        ojs_http.default_policy());
begin
    return ojs_http.reply(200, stats || jsonb_build_object('retention', jsonb_build_object(
        'max_age', config -> 'dead_letter_ttl', 'max_count', config -> 'dead_letter_max_size')));
end $$;

-- RATE LIMITS ------------------------------------------------------------------------------------------------------

create function ojs_http.rate_limit_json(r ojs.rate_limits) returns jsonb
language sql stable parallel unsafe set search_path = pg_catalog, pg_temp set intervalstyle = iso_8601 as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'key', r.key,
        'concurrency', case when r.concurrency is not null then jsonb_build_object(
            'limit', r.concurrency, 'active', r.active, 'available', greatest(r.concurrency - r.active, 0)) end,
        'rate', case when r.rate is not null then jsonb_build_object('limit', r.rate, 'period', r.rate_period::text,
            'current_count', r.started, 'window_resets_at', ojs_http.rfc3339(r.window_resets_at)) end,
        'throttle', case when r.throttle is not null then jsonb_build_object('limit', r.throttle, 'period',
            r.throttle_period::text,
            'next_allowed_at', ojs_http.rfc3339(r.next_allowed_at)) end,
        'paused_until', ojs_http.rfc3339(r.paused_until), 'override', r.override, 'override_expires_at',
            ojs_http.rfc3339(r.override_until),
        'waiting_count', r.waiting,
        -- The narrowest in two words, as the admin UI shows it.
        'limit', coalesce(r.rate, r.throttle, r.concurrency), 'period',
            coalesce(r.rate_period, r.throttle_period)::text,
        'active', r.active, 'waiting', r.waiting))
$$;

create function ojs_http.rate_limits(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    entries jsonb[];
    total bigint;
begin
    select array_agg(ojs_http.rate_limit_json(l.rate_limit)), max(l.total) into entries, total
    from ojs_http.listed_limits(null, ojs_http.query_number(request, 'per_page', 20, 1, 100),
        ojs_http.page_start(request)) l;
    -- A page beyond the last one does not say how many there are.
    total := coalesce(total, (select l.total from ojs_http.listed_limits(null, 1, 0) l), 0);
    return ojs_http.numbered_page(request, entries, total,
        jsonb_build_object('rate_limits', coalesce(to_jsonb(entries), '[]')));
end $$;

create function ojs_http.rate_limit(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    found_limit ojs.rate_limits;
begin
    select (l.rate_limit).* into found_limit from ojs_http.listed_limits(request.names[1], 1, 0) l;
    if not found then
        perform ojs_http.raise('NOT_FOUND', format('rate limit %s does not exist', left(request.names[1], 64)),
            jsonb_build_object('resource_type', 'rate_limit', 'resource_id', left(request.names[1], 64)),
                'GET /ojs/v1/rate-limits lists them.');
    end if;
    return ojs_http.reply(200, ojs_http.rate_limit_json(found_limit));
end $$;

create function ojs_http.set_rate_limit(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    until timestamptz;
begin
    until := ojs_http.time_value(ojs_http.text_field(body, 'expires_at'), 'expires_at');
    if until <= ojs_http.now() then
        perform ojs_http.raise('INVALID_PAYLOAD', 'expires_at is in the past', '{"field": "expires_at"}',
            'Give a time to come, or leave it out.');
    end if;
    perform ojs.set_rate_limit(request.names[1], body - '{key,expires_at}'::text[], until);
    return ojs_http.rate_limit(request);
end $$;

-- Takes back what an administrator has set; what jobs and queues say counts again.
create function ojs_http.unset_rate_limit(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_http.rate_limit(request);
    perform ojs.set_rate_limit(request.names[1], null);
    return ojs_http.reply(204, null);
end $$;

-- WORKFLOWS --------------------------------------------------------------------------------------------------------

-- The newest first, without those that are members of another.
create function ojs_http.workflows(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    most int := ojs_http.query_number(request, 'limit', 50, 1, 200);
    skipped int := ojs_http.query_number(request, 'offset', 0, 0, 1000000000);
    after uuid := ojs_http.page_key(request, '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$');
    of_state text := ojs_http.query_word(request, 'state', 'running', 'completed', 'failed', 'cancelled');
    entries jsonb[];
    keys text[];
begin
    select array_agg(w.workflow order by w.id desc), array_agg(w.id::text order by w.id desc) into entries, keys
    from ojs_http.listed_workflows(of_state, after, most + 1, skipped) w;
    return ojs_http.page('workflows', entries, keys, null, most, skipped);
end $$;

-- sql/http/system.sql

-- system.sql: the server itself over HTTP: what it is, how it is, and what it has not.

create function ojs_http.manifest(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, ojs.manifest())
$$;

-- Producers and workers learn whether the server serves them, as a load balancer asks, and nothing else.
create function ojs_http.health(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    health jsonb;
begin
    if not has_function_privilege('ojs.health()', 'execute') then
        return case when ojs.ready() then ojs_http.reply(200, '{"status": "ok"}')
            else ojs_http.reply(503, '{"status": "unavailable"}', '{"Retry-After": "1"}') end;
    end if;
    health := ojs.health();
    health := jsonb_set(health, '{workers}', health -> 'workers' || jsonb_build_object('active',
        health #> '{workers,connected}',
        'total', (health #> '{workers,connected}')::int + (health #> '{workers,stale}')::int));
    return ojs_http.reply(case when health ->> 'status' = 'ok' then 200 else 503 end,
        health || jsonb_build_object('backend', health -> 'backend' || '{"type": "postgres"}', 'ojs_version', '1.0'),
        case when health ->> 'status' = 'ok' then '{}' else '{"Retry-After": "1"}' end::jsonb);
end $$;

create function ojs_http.ready(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select case when ojs.ready() then ojs_http.reply(200, '{"status": "ready"}')
        else ojs_http.reply(503, '{"status": "not_ready"}', '{"Retry-After": "1"}') end
$$;

create function ojs_http.metrics(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select row(200, '{"Content-Type": "text/plain"}', null, ojs.metrics())::ojs_http.response
$$;

-- Also in the words of the admin UI.
create function ojs_http.maintenance_json(answer jsonb) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select jsonb_strip_nulls(jsonb_build_object('enabled', answer -> 'maintenance', 'started_at',
        answer -> 'enabled_at', 'ends_at', answer -> 'estimated_end')) || answer
$$;

create function ojs_http.maintenance(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200,
        ojs_http.maintenance_json(case when answer = 'null' then '{"maintenance": false}'
        else answer || '{"maintenance": true}' end))
    from (select ojs.health() -> 'maintenance') as h (answer)
$$;

create function ojs_http.set_maintenance(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    length jsonb := coalesce(nullif(body -> 'estimated_duration', 'null'), nullif(body -> 'duration', 'null'));
begin
    perform ojs_http.only(body, 'enabled', 'reason', 'estimated_duration', 'duration');
    -- Dashboards write 30m and 2h.
    if length #>> '{}' ~ '^[0-9]{1,6}[mhd]$' then
        length := to_jsonb(case when right(length #>> '{}', 1) = 'd' then 'P' else 'PT' end || upper(length #>> '{}'));
    end if;
    return ojs_http.reply(200,
        ojs_http.maintenance_json(ojs.set_maintenance(ojs_http.field(body, 'enabled', 'boolean', true)::boolean,
        ojs_http.text_field(body, 'reason'), ojs_http.duration_value(length, 'estimated_duration'))));
end $$;

-- sql/http/server.sql

-- server.sql: what a server says of itself over HTTP: its settings, hooks and audit trail; and a server of tests begins
-- anew.

create function ojs_http.system_config(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, jsonb_build_object('version', ojs.version(), 'limits',
        ojs.manifest() -> 'payload_limits',
        'config', jsonb_object_agg(s.name, current_setting(s.name) order by s.name)))
    from pg_settings s where s.name like 'ojs.%'
$$;

create function ojs_http.middleware(request ojs_http.request) returns ojs_http.response
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    select ojs_http.reply(200, jsonb_build_object('enqueue',
        coalesce(jsonb_agg(entry order by place) filter (where enqueues), '[]'),
        'execution', coalesce(jsonb_agg(entry order by place) filter (where not enqueues), '[]')))
    from (
        select h.position as place, h.point = 'enqueue' as enqueues,
            jsonb_build_object('name', h.name, 'phase',
                case h.point when 'enqueue' then 'enqueue' else 'execution' end, 'order', h.position, 'description',
                h.point) as entry
        from ojs.hooks h
    ) hooks
$$;

create function ojs_http.audit(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    most int := ojs_http.query_number(request, 'limit', 50, 1, 100);
    since timestamptz := ojs_http.query_time(request, 'since');
    until timestamptz := ojs_http.query_time(request, 'until');
begin
    return ojs_http.reply(200, jsonb_build_object('entries', (
        select coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object('id', a.id, 'timestamp', ojs_http.rfc3339(a.at),
            'event_type', 'admin.' || a.act, 'subject', a.subject, 'principal', a.session_role, 'role', a.role,
            'source_ip', host(a.address), 'application', a.application, 'outcome', 'success',
            'before', a.before, 'after', a.after, 'detail', a.detail)) order by a.at desc, a.id), '[]')
        from (select * from ojs.audit where (since is null or at >= since) and (until is null or at < until)
            and (request.query ->> 'subject' is null or subject = request.query ->> 'subject')
            order by at desc, id limit most) a)));
end $$;

create function ojs_http.reset(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs.reset();
    return ojs_http.reply(200, '{"reset": true}');
end $$;

-- sql/grants.sql

-- grants.sql: who may do what. Nothing for PUBLIC, and nothing on ojs_store for anybody: its functions are called only
-- inside views, with the rights that the roles get here.

revoke all on all functions in schema ojs, ojs_store, ojs_http from public;
revoke all on schema ojs, ojs_store, ojs_http from public;
revoke all on type ojs_http.request, ojs_http.response from public;
revoke all on all tables in schema ojs, ojs_store from public;
revoke all on all sequences in schema ojs_store from public;

grant usage on schema ojs to ojs_producer, ojs_worker, ojs_observer, ojs_admin;
grant execute on function
    ojs.version(), ojs.manifest(), ojs.capabilities(),
    ojs.envelope(ojs.job), ojs.canonical_json(jsonb), ojs.fingerprint(jsonb), ojs.fingerprint_input(jsonb)
to ojs_producer, ojs_worker, ojs_observer, ojs_admin;

grant execute on function ojs.node_of(uuid), ojs.key_slot(text) to ojs_producer, ojs_worker, ojs_observer, ojs_admin;
grant execute on function ojs.waiting() to ojs_worker, ojs_observer, ojs_admin;
-- Not for producers: a queue that names its own tells nobody else which keys it holds.
grant execute on function ojs.key_held(text), ojs.held_slots() to ojs_observer, ojs_admin;

-- Producing
grant execute on function
    ojs.push(text, jsonb, text, int, timestamptz, interval, timestamptz, jsonb, jsonb, jsonb, interval, text, interval,
        uuid, text[], boolean, jsonb),
    ojs.push_job(jsonb),
    ojs.push_many(jsonb, text, interval, text, text),
    ojs.cancel(uuid, boolean),
    ojs.activate(uuid),
    ojs.wait_result(uuid, interval), ojs_store.wait_result(uuid, interval),
    ojs.results(uuid[]), ojs_store.results(uuid[]),
    ojs_store.use_queue(text, text), ojs_store.queue_of(jsonb),
    ojs.info(uuid)
to ojs_producer, ojs_admin;

grant execute on function ojs.create_workflow(jsonb), ojs.extend_workflow(uuid, jsonb), ojs.cancel_workflow(uuid)
    to ojs_producer, ojs_admin;
grant execute on function ojs.workflow(uuid) to ojs_producer, ojs_observer, ojs_admin;
grant execute on function ojs.lineage(uuid), ojs_store.lineage(uuid), ojs_store.readable(uuid[])
    to ojs_producer, ojs_observer, ojs_admin;
grant select on ojs.workflows to ojs_observer, ojs_admin;

-- Working
grant execute on function
    ojs.claim(text, text, int, interval, interval, boolean),
    ojs.claim(text[], text, int, interval, interval, boolean, text, jsonb),
    ojs.claim_pool(text, text, int, interval, interval),
    ojs.ack(uuid, jsonb, text, text),
    ojs.ack_many(text, uuid[], jsonb[], text[]),
    ojs.ack_and_claim(text, text, uuid[], text[], jsonb[], int, interval),
    ojs.fail(uuid, jsonb, text, text, boolean, interval),
    ojs.nack(uuid, interval, text, text),
    ojs.nack_many(text, uuid[], interval, text[]),
    ojs.extend(uuid, interval, text, text),
    ojs.extend_many(text, uuid[], interval, text[]),
    ojs.beat(text, uuid[], text, jsonb, interval),
    ojs.progress(uuid, numeric, text, jsonb),
    ojs.checkpoint(uuid, jsonb),
    ojs.get_checkpoint(uuid),
    ojs.delete_checkpoint(uuid),
    ojs.register_worker(text, jsonb),
    ojs.deregister_worker(text, boolean),
    ojs.work_open(text, text, int, interval),
    ojs.work_next(interval, text),
    ojs.work_close(),
    ojs.once(text, text),
    ojs.lease_claim(text, jsonb),
    ojs.lease_ack(text, jsonb),
    ojs.lease_nack(text, jsonb),
    ojs.lease_extend(text, jsonb)
to ojs_worker, ojs_admin;

-- Observing
grant select on ojs.jobs, ojs.leases, ojs.lease_log, ojs.queues, ojs.workers to ojs_observer, ojs_admin;
grant execute on function ojs_store.visible(uuid), ojs_store.if_allowed(anyelement, boolean),
    ojs_store.may_use_queue(bigint, text), ojs_store.may_use_queue(text, text),
    ojs_store.may_read_workflow(uuid),
    ojs_store.may_see(text, text), ojs_store.queue_of(jsonb), ojs_store.leases(), ojs_store.holders(), ojs_store.now(),
    ojs_store.worker_status(ojs_store.worker, timestamptz), ojs.info(uuid) to ojs_observer, ojs_admin;

grant select on ojs.events to ojs_observer, ojs_admin;
grant execute on function ojs.index_events(boolean), ojs.notify_events(boolean) to ojs_admin;
grant execute on function ojs.events(text, text[], text[], text[], int), ojs_store.running(),
    ojs_store.time_text(timestamptz),
    ojs_store.uri_part(text), ojs_store.event_id(timestamptz, text) to ojs_observer, ojs_admin;

-- Administration
grant execute on function
    ojs.retry(uuid, jsonb),
    ojs.discard(uuid, text),
    ojs.set_priority(uuid, int),
    ojs.skip_ordering_key(text, text),
    ojs.delete_job(uuid),
    ojs.set_worker_state(text, text)
to ojs_admin;
grant execute on function ojs.cancel_many(jsonb, boolean), ojs.retry_many(jsonb, boolean),
    ojs.delete_many(jsonb, boolean) to ojs_admin;
grant execute on function ojs.dead_letter_stats(text) to ojs_observer, ojs_admin;
grant execute on function ojs.list_jobs(text, text, text, text, int) to ojs_observer, ojs_admin;
grant execute on function ojs_store.listed_ids(jsonb, int, bigint), ojs_store.count_listed(jsonb) to ojs_observer,
    ojs_admin;
grant select on ojs.dead_letters to ojs_observer, ojs_admin;

-- Queues
grant execute on function ojs.queue_info(text), ojs.queue_stats(text), ojs.explain_job(uuid),
    ojs.metrics() to ojs_observer, ojs_admin;
grant execute on function
    ojs.create_queue(text, jsonb),
    ojs.configure_queue(text, jsonb),
    ojs.pause_queue(text),
    ojs.resume_queue(text),
    ojs.drain_queue(text),
    ojs.purge_queue(text, text[], boolean),
    ojs.drop_queue(text, text, text)
to ojs_admin;

-- Deduplication
grant select on ojs.deduplication_keys to ojs_observer, ojs_admin;
grant execute on function ojs.free_deduplication_key(text, text) to ojs_admin;

-- Cron
grant select on ojs.crons to ojs_observer, ojs_admin;
grant execute on function ojs.schedule(text, text, jsonb, jsonb), ojs.unschedule(text) to ojs_admin;

-- Rate limits
grant select on ojs.rate_limits to ojs_observer, ojs_admin;
grant execute on function ojs_store.rate_limits(text, bigint, bigint), ojs_store.may_read_limit(text)
    to ojs_observer, ojs_admin;
grant execute on function ojs.set_rate_limit(text, jsonb, timestamptz) to ojs_admin;

-- Pools
grant select on ojs.pools to ojs_observer, ojs_admin;
grant execute on function ojs.scheduling_stats() to ojs_observer, ojs_admin;
grant execute on function ojs_store.pool_use() to ojs_observer, ojs_admin;
grant execute on function ojs.set_pool(text, jsonb), ojs.drop_pool(text) to ojs_admin;

-- Upkeep
grant execute on function ojs.set_maintenance(boolean, text, interval) to ojs_admin;
grant execute on function ojs.ready() to ojs_producer, ojs_worker, ojs_observer, ojs_admin;
grant execute on function ojs.health() to ojs_observer, ojs_admin;
grant execute on function ojs.tick(int), ojs.start_worker() to ojs_admin;

grant execute on function ojs.reset() to ojs_admin;

-- Hooks
grant select on ojs.hooks to ojs_observer, ojs_admin;
grant execute on function ojs.register_hook(text, text, regprocedure, text, text),
    ojs.unregister_hook(text) to ojs_admin;

-- Schemas
grant select on ojs.schemas to ojs_producer, ojs_worker, ojs_observer, ojs_admin;
grant execute on function ojs_store.default_schema_mode() to ojs_producer, ojs_worker, ojs_observer, ojs_admin;
grant execute on function ojs.create_schema(text, text, jsonb, text), ojs.drop_schema(text, text),
    ojs.set_schema_validation(text, text) to ojs_admin;

-- Webhooks. What a sender calls shows all of them: it is granted to a role of its own (docs/how-to/webhooks.md).
grant select on ojs.webhooks, ojs.webhook_deliveries to ojs_admin;
grant execute on function ojs.create_webhook(jsonb), ojs.update_webhook(uuid, jsonb), ojs.drop_webhook(uuid),
    ojs.rotate_webhook_secret(uuid, text, interval), ojs.test_webhook(uuid, uuid), ojs.retry_webhook_delivery(uuid)
to ojs_admin;

-- Tenants
grant execute on function ojs.bind_tenant(name, text), ojs.unbind_tenant(name, text) to ojs_admin;
grant select on ojs.tenant_roles to ojs_admin;
grant execute on function ojs.set_tenant(text, jsonb, text), ojs.drop_tenant(text) to ojs_admin;
grant select on ojs.tenants to ojs_observer, ojs_admin;
grant execute on function ojs.tenant_stats(text) to ojs_observer, ojs_admin;
grant execute on function ojs_store.caller_tenant(), ojs_store.may_see_tenant(text), ojs_store.shown_queue(text),
    ojs_store.may_read_cron(jsonb), ojs_store.stored_queue(text) to ojs_producer, ojs_worker, ojs_observer, ojs_admin;

-- Audit
grant select on ojs.audit to ojs_admin;

-- sql/http/grants.sql

-- grants.sql: who may serve which requests. What ojs.http is made of runs with the rights of its caller, so each role
-- may call the parts of its own requests; what these call checks the caller's rights again. ojs_admin may call all of
-- them. A router has some of these functions, and grants them alike.

grant usage on schema ojs_http to ojs_producer, ojs_worker, ojs_observer, ojs_admin;
grant usage on type ojs_http.request, ojs_http.response to ojs_producer, ojs_worker, ojs_observer, ojs_admin;
grant execute on function ojs.http(text, text, jsonb, text) to ojs_producer, ojs_worker, ojs_observer, ojs_admin;

do $$
declare
    o record;
begin
    for o in
        select p.oid::regprocedure as name, r.role
        from (values
            ('{ojs_producer,ojs_worker,ojs_observer,ojs_admin}'::text[],
                '{act_for,routes,handlers_by_path,find_route,check_headers,check_body,read_headers,read_query,
                decoded,request_id,reply,no_route,problem,status_of,error_body,headers_of,raise,now,
                time_value,duration_value,values_in,abridged,would_wait,may_wait,most_bytes,bytes_of,
                field_in,hint_of,rfc3339,upkeep,object,field,text_field,number_field,texts_field,job_id,
                job_named,query_number,query_word,query_list,no_such_job,only,manifest,extensions,health,
                ready,access,progress,progress_json,progress_reply,no_such_schema,schema_json,version_json,
                schema_named,version_key,schemas,schema,admin_schema,versions_of,schema_versions,
                missing_nodes}'::text[]),
            ('{ojs_producer,ojs_observer,ojs_admin}',
                '{workflow,workflow_body,workflow_named,info,lineage}'),
            ('{ojs_producer,ojs_worker,ojs_admin}',
                '{tick_without_worker}'),
            ('{ojs_producer,ojs_admin}',
                '{check_args,pressure,pressure_headers,limit_headers,set_block_timeout,push,push_batch,
                push_bulk,pushed_job,pushed_items,tried_items,item_error,nothing_done,record_push_bulk,
                is_atomic,idempotency_key,do_push_batch,do_push_bulk,push_once,batch_answer,may_push,
                batch_key,batch_ttl,batch_response,take_push_key,keep_push_answer,forget_push_key,
                create_workflow,workflow_of_steps,extend_workflow,cancel_workflow,cancel,activate,result,
                results,record_job,topic_produce,schema_warnings,batch_warnings}'),
            ('{ojs_worker,ojs_admin}',
                '{envelope,fetch,outcome,ack,nack,heartbeat,obey_test_directive,register_worker,
                deregister_worker,progress_and_checkpoint,report_progress,set_progress,worker_progress,
                save_step,resume,checkpoint,save_checkpoint,delete_checkpoint,topic_work,still_held,
                work_events,topic_claim,topic_ack,topic_nack,topic_extend}'),
            ('{ojs_worker,ojs_observer,ojs_admin}',
                '{no_such_worker}'),
            ('{ojs_observer,ojs_admin}',
                '{metrics,maintenance,system_config,events,admin_job,maintenance_json,throughput,stats_history,
                history_of,held_keys,unique_jobs,middleware,waiting_by_priority,priority_stats,stream_of,
                event_stream,cron_page,cron_flat,cron_item,cursor_of,page_key,page,page_start,numbered_page,
                query_time,query_args,job_page,listed_jobs,count_listed,total_listed,list_filter,dead_letter_filter,
                admin_jobs,admin_stats,admin_queues,admin_queue,admin_workers,queues,queue,queue_stats,
                queue_config,default_policy,topic,worker,worker_health,worker_json,worker_named,dead_letters,
                dead_letter,dead_letter_named,admin_dead_letters,dead_letter_stats,crons,cron,cron_json,
                no_such_cron,rate_limits,rate_limit,rate_limit_json,listed_limits,job_list,explain,job_history,
                events_of,workflows,pool_json,pool_named,pools,pool,scheduling_stats,tenant_json,tenant_named,
                tenant_stats_json,tenants,tenant,tenant_stats,tenant_jobs,listed_workflows,end_of}'),
            ('{ojs_admin}',
                '{retry,discard,delete_job,change_job,retry_ended,change_cron,selection,filter_times,
                changed_job,take_back_jobs,do_many,do_bulk,bulk,take_key,keep_answer,free_key,cancel_bulk,
                retry_bulk,delete_bulk,must_confirm,admin_bulk,admin_cancel_bulk,admin_retry_bulk,
                admin_delete_bulk,check_atomic,delete_all,purge_asked,purge_queue,purge_dead_letters,retry_dead_letters,
                retry_dead_letter,delete_dead_letter,delete_dead_letter_flat,create_queue,configure_queue,
                with_bound,queue_is,pause_queue,resume_queue,pause_queue_flat,resume_queue_flat,drain_queue,
                drop_queue,create_topic,set_queue_rate_limit,set_rate_limit,unset_rate_limit,direct_worker,
                quiet_worker,resume_worker,terminate_worker,forget_worker,schedule,unschedule,cron_job,
                trigger_cron,set_maintenance,reset,register,register_schema,put_schema,set_schema_validation,
                drop_schema,set_pool,drop_pool,prefixed_id,webhook_json,webhook_named,webhook_reply,webhooks,
                create_webhook,webhook,update_webhook,drop_webhook,rotate_webhook_secret,test_webhook,
                webhook_delivery_json,webhook_deliveries,webhook_delivery,retry_webhook_delivery,set_tenant,
                set_tenant_limits,drop_tenant,audit}')
        ) g(roles, names), unnest(g.roles) r(role), unnest(g.names) n(name)
        join pg_proc p on p.proname = n.name and p.pronamespace = 'ojs_http'::regnamespace
    loop
        execute format('grant execute on function %s to %I', o.name, o.role);
    end loop;
end $$;

-- sql/dump.sql

-- dump.sql: what pg_dump carries: the logged tables. The hot set is rebuilt from it at first use after a restore.

select pg_catalog.pg_extension_config_dump('ojs_store.name_key', '');
select pg_catalog.pg_extension_config_dump('ojs_store.queue', '');
select pg_catalog.pg_extension_config_dump('ojs_store.queue_count', '');
select pg_catalog.pg_extension_config_dump('ojs_store.job', '');
select pg_catalog.pg_extension_config_dump('ojs_store.job_parent', '');
select pg_catalog.pg_extension_config_dump('ojs_store.job_history', '');
select pg_catalog.pg_extension_config_dump('ojs_store.finished', '');
select pg_catalog.pg_extension_config_dump('ojs_store.dead_letter', '');
select pg_catalog.pg_extension_config_dump('ojs_store.lease_log', '');
select pg_catalog.pg_extension_config_dump('ojs_store.unique_key', '');
select pg_catalog.pg_extension_config_dump('ojs_store.deduplication', '');
select pg_catalog.pg_extension_config_dump('ojs_store.checkpoint', '');
select pg_catalog.pg_extension_config_dump('ojs_store.progress', '');
select pg_catalog.pg_extension_config_dump('ojs_store.rate_limit', '');
select pg_catalog.pg_extension_config_dump('ojs_store.maintenance', '');
select pg_catalog.pg_extension_config_dump('ojs_store.worker', '');
select pg_catalog.pg_extension_config_dump('ojs_store.stored_event', '');
-- a cursor means nothing elsewhere
select pg_catalog.pg_extension_config_dump('ojs_store.event_notify_cursor', 'where false');
select pg_catalog.pg_extension_config_dump('ojs_store.once_token', '');
select pg_catalog.pg_extension_config_dump('ojs_store.cron', '');
select pg_catalog.pg_extension_config_dump('ojs_store.cron_run', '');
select pg_catalog.pg_extension_config_dump('ojs_store.workflow', '');
select pg_catalog.pg_extension_config_dump('ojs_store.workflow_member', '');
select pg_catalog.pg_extension_config_dump('ojs_store.workflow_open', '');
select pg_catalog.pg_extension_config_dump('ojs_store.workflow_end', '');
select pg_catalog.pg_extension_config_dump('ojs_store.workflow_due', '');
select pg_catalog.pg_extension_config_dump('ojs_store.workflow_check', '');
select pg_catalog.pg_extension_config_dump('ojs_store.audit', '');
select pg_catalog.pg_extension_config_dump('ojs_store.job_schema', '');
select pg_catalog.pg_extension_config_dump('ojs_store.schema_mode', '');
select pg_catalog.pg_extension_config_dump('ojs_store.pool', '');
select pg_catalog.pg_extension_config_dump('ojs_store.hook', '');
select pg_catalog.pg_extension_config_dump('ojs_store.hook_failure', '');
select pg_catalog.pg_extension_config_dump('ojs_store.idempotency', '');
select pg_catalog.pg_extension_config_dump('ojs_store.tenant_role', '');
select pg_catalog.pg_extension_config_dump('ojs_store.tenant', '');
select pg_catalog.pg_extension_config_dump('ojs_store.webhook', '');
select pg_catalog.pg_extension_config_dump('ojs_store.webhook_status', '');
select pg_catalog.pg_extension_config_dump('ojs_store.webhook_delivery', '');
select pg_catalog.pg_extension_config_dump('ojs_store.webhook_cursor', 'where false');
select pg_catalog.pg_extension_config_dump('ojs_store.seq', '');
