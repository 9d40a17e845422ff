-- dump.sql: what pg_dump carries: the logged tables. The hot set is rebuilt from it at first use after a restore.

select pg_catalog.pg_extension_config_dump('ojs_store.name_key', '');
select pg_catalog.pg_extension_config_dump('ojs_store.queue', '');
select pg_catalog.pg_extension_config_dump('ojs_store.queue_count', '');
select pg_catalog.pg_extension_config_dump('ojs_store.job', '');
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
select pg_catalog.pg_extension_config_dump('ojs_store.seq', '');
