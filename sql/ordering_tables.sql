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
create index ordering_line_order on ojs_store.ordering_line (key, position) where key % 1 = 0;
create index ordering_line_job on ojs_store.ordering_line (job_id) where key % 1 = 0;

create unlogged table ojs_store.ordering_due (
    queue bigint not null,
    key bigint not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, vacuum_truncate = off);
create index ordering_due_key on ojs_store.ordering_due (queue, key) where key % 1 = 0;

-- Queues whose waiting jobs rise (sql/aging.sql), and ten times a step the number that the next job would have had.
create unlogged table ojs_store.priority_aging (
    queue bigint not null primary key,
    step_s int not null,                -- priority_aging_s, as it was then
    at timestamptz not null,            -- of the last of the numbers
    numbers bigint[] not null
) with (fillfactor = 50);
create index queue_aging on ojs_store.queue (id) where config ? 'priority_aging_s' and state <> 'deleted';
