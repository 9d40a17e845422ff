-- next.sql: what the next version changes in the tables and types of the previous one, and drops of functions and views
-- that are gone or cannot be replaced in place. `make freeze` keeps it as part of the update script and empties it.

drop function ojs_http.pushed_items(jsonb, text, text, interval);
drop function ojs_http.tried_items(jsonb, text, interval);
drop function ojs_http.push_once(ojs_http.request, jsonb, text);
drop function ojs_http.do_push_bulk(ojs_http.request, jsonb, jsonb);
drop function ojs_http.do_push_batch(ojs_http.request, jsonb, jsonb);

-- Indexes that no statement is planned by.
drop index ojs_store.ready_order;
create index ready_order on ojs_store.ready (queue, npriority, position) where queue % 1 = 0;
drop index ojs_store.lease_reap;
create index lease_reap on ojs_store.lease (reap_at) where queue % 1 = 0;
drop index ojs_store.delayed_due;
create index delayed_due on ojs_store.delayed (due_at) where queue % 1 = 0;
drop index ojs_store.limit_use_key;
create index limit_use_key on ojs_store.limit_use (key, kind, at, number) where key % 1 = 0;
drop index ojs_store.listener_flag_queue;
create index listener_flag_queue on ojs_store.listener_flag (queue) where queue % 1 = 0;
drop index ojs_store.ordering_line_order;
create index ordering_line_order on ojs_store.ordering_line (key, position) where key % 1 = 0;
drop index ojs_store.ordering_line_job;
create index ordering_line_job on ojs_store.ordering_line (job_id) where key % 1 = 0;
drop index ojs_store.ordering_due_key;
create index ordering_due_key on ojs_store.ordering_due (queue, key) where key % 1 = 0;

drop function ojs_store.ready_of(uuid);

-- Who may see an event is asked with the queues that it bears. The view calls what is dropped here, and is not dropped,
-- or the privileges on it would go: it is replaced below once more.
create or replace view ojs.events with (security_barrier) as
select null::text as id, null::text as specversion, null::text as type, null::text collate "C" as source,
    null::timestamptz as "time", null::text as subject, null::jsonb as data, null::uuid as job_id,
    null::text collate "C" as queue, null::text as job_type;
drop function ojs_store.may_read_event(text, text, text);
drop function ojs_store.may_see(text, text);
drop function ojs_store.webhook_may_read(text, text, text, text, text);

-- By which clock the next run of a cron entry was worked out.
alter table ojs_store.cron add column planned_at timestamptz;
create index cron_planned on ojs_store.cron (planned_at);

-- How long a discarded job may be retried by hand.
create function ojs_store.longest_retry(config jsonb) returns bigint
language c strict immutable parallel safe as 'MODULE_PATHNAME', 'ojs_longest_retry';
create index queue_retried on ojs_store.queue (ojs_store.longest_retry(config))
    where config ?| '{retention,dead_letter_ttl}' and state <> 'deleted';

-- When retention looks at a workflow.
alter table ojs_store.workflow add column remove_at timestamptz;
update ojs_store.workflow set remove_at = ended_at + case when state = 'failed' then interval '30 days'
    else interval '7 days' end where parent is null and ended_at is not null;
drop index ojs_store.workflow_ended;
create index workflow_removal on ojs_store.workflow (remove_at);

-- Says also how many jobs it leaves out.
drop function ojs_store.described(jsonb, text[], int);
