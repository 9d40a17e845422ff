-- ordering_tables.sql: the unlogged tables of ordering keys. They belong to the hot set (tables.sql).

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
