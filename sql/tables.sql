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
create function ojs_store.longest_retry(config jsonb) returns bigint
language c strict immutable parallel safe as 'MODULE_PATHNAME', 'ojs_longest_retry';

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
-- For the tick, which must not read all of them: dropped ones, how long the shortest retention is, and the longest of
-- jobs that can be retried by hand.
create index queue_dropped on ojs_store.queue (revised_at) where state = 'deleted';
create index queue_retried on ojs_store.queue (ojs_store.longest_retry(config))
    where config ?| '{retention,dead_letter_ttl}' and state <> 'deleted';
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
-- thousand: vacuum by count, and never with the exclusive lock that giving back pages takes. No statement is planned by
-- indexes with `% 1 = 0`, which holds for every row (out_of_plans in store.h).

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
create index ready_order on ojs_store.ready (queue, npriority, position) where queue % 1 = 0;
create index ready_job on ojs_store.ready (job_id) where flags & job_flag.ready_moved <> 0; -- see find_ready()

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
create index lease_reap on ojs_store.lease (reap_at) where queue % 1 = 0;

-- What waits for a time or a sign: scheduled, retryable, pending (due at infinity), released with a delay, blocked by
-- its ordering key (due at infinity); and one row beside them or beside ready for each open job that expires.
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
create index delayed_due on ojs_store.delayed (due_at) where queue % 1 = 0;

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
create index limit_use_key on ojs_store.limit_use (key, kind, at, number) where key % 1 = 0;

-- Queues that somebody may be listening to, where no shared memory says so (src/shared/listener_flags.cpp). Vacuum
-- comes early, since pushes look at all rows, dead ones too; it cuts nothing off: who cannot lock it leaves no flag.
create unlogged table ojs_store.listener_flag (
    queue bigint not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 300, vacuum_truncate = off);
create index listener_flag_queue on ojs_store.listener_flag (queue) where queue % 1 = 0;

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
    ended_at timestamptz,
    remove_at timestamptz               -- when retention looks at it; of the outermost one only, once it has ended
) with (fillfactor = 70);
create index workflow_root on ojs_store.workflow (root);
create index workflow_removal on ojs_store.workflow (remove_at);

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
