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
grant execute on function ojs.key_held(text) to ojs_producer, ojs_admin;
grant execute on function ojs.waiting() to ojs_worker, ojs_observer, ojs_admin;
grant execute on function ojs.held_slots() to ojs_observer, ojs_admin;

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
    ojs_store.may_see(text, text), ojs_store.queue_of(jsonb), ojs_store.leases(), ojs_store.now(),
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
grant execute on function ojs_store.rate_limits(text) to ojs_observer, ojs_admin;
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

-- HTTP: what ojs.http is made of runs with the rights of its caller, so each role may call the parts of its own
-- requests; what these call checks the caller's rights again. ojs_admin may call all of them.
grant execute on function ojs.http(text, text, jsonb, text) to ojs_producer, ojs_worker, ojs_observer, ojs_admin;
grant execute on function ojs.reset() to ojs_admin;
grant usage on schema ojs_http to ojs_producer, ojs_worker, ojs_observer, ojs_admin;
grant usage on type ojs_http.request, ojs_http.response to ojs_producer, ojs_worker, ojs_observer, ojs_admin;
grant execute on function
    ojs_http.act_for, ojs_http.routes, ojs_http.handlers_by_path, ojs_http.find_route, ojs_http.check_headers,
        ojs_http.check_body, ojs_http.read_headers, ojs_http.read_query,
    ojs_http.decoded, ojs_http.request_id, ojs_http.reply, ojs_http.no_route, ojs_http.problem, ojs_http.status_of,
        ojs_http.error_body,
    ojs_http.headers_of, ojs_http.raise, ojs_http.now, ojs_http.time_value, ojs_http.duration_value,
    ojs_http.values_in, ojs_http.abridged, ojs_http.would_wait, ojs_http.may_wait, ojs_http.most_bytes,
        ojs_http.bytes_of,
    ojs_http.field_in, ojs_http.hint_of, ojs_http.rfc3339, ojs_http.upkeep,
    ojs_http.object, ojs_http.field, ojs_http.text_field, ojs_http.number_field, ojs_http.texts_field, ojs_http.job_id,
        ojs_http.job_named,
    ojs_http.query_number, ojs_http.query_word, ojs_http.query_list, ojs_http.no_such_job, ojs_http.only,
    ojs_http.manifest, ojs_http.extensions, ojs_http.health, ojs_http.ready, ojs_http.access
to ojs_producer, ojs_worker, ojs_observer, ojs_admin;
grant execute on function ojs_http.workflow, ojs_http.workflow_body, ojs_http.workflow_named to ojs_producer,
    ojs_observer, ojs_admin;
grant execute on function ojs_http.tick_without_worker to ojs_producer, ojs_worker, ojs_admin;

-- Producing
grant execute on function
    ojs_http.check_args, ojs_http.pressure, ojs_http.pressure_headers, ojs_http.limit_headers,
        ojs_http.set_block_timeout,
    ojs_http.push, ojs_http.push_batch, ojs_http.push_bulk, ojs_http.pushed_job, ojs_http.pushed_items,
        ojs_http.tried_items, ojs_http.item_error,
    ojs_http.nothing_done, ojs_http.record_push_bulk, ojs_http.is_atomic, ojs_http.idempotency_key,
    ojs_http.do_push_batch, ojs_http.do_push_bulk, ojs_http.push_once, ojs_http.batch_answer, ojs_http.may_push,
        ojs_http.batch_key, ojs_http.batch_ttl,
        ojs_http.batch_response,
    ojs_http.take_push_key, ojs_http.keep_push_answer, ojs_http.forget_push_key,
    ojs_http.create_workflow, ojs_http.workflow_of_steps, ojs_http.extend_workflow, ojs_http.cancel_workflow,
    ojs_http.cancel, ojs_http.activate, ojs_http.result, ojs_http.results, ojs_http.record_job, ojs_http.topic_produce
to ojs_producer, ojs_admin;

-- Looking at one job
grant execute on function ojs_http.info, ojs_http.lineage to ojs_producer, ojs_observer, ojs_admin;
grant execute on function ojs_http.progress, ojs_http.progress_json, ojs_http.progress_reply
to ojs_producer, ojs_worker, ojs_observer, ojs_admin;

-- Working
grant execute on function
    ojs_http.envelope, ojs_http.fetch, ojs_http.outcome, ojs_http.ack, ojs_http.nack, ojs_http.heartbeat,
        ojs_http.obey_test_directive,
    ojs_http.register_worker, ojs_http.deregister_worker,
    ojs_http.progress_and_checkpoint, ojs_http.report_progress, ojs_http.set_progress,
    ojs_http.worker_progress, ojs_http.save_step, ojs_http.resume,
    ojs_http.checkpoint, ojs_http.save_checkpoint, ojs_http.delete_checkpoint,
    ojs_http.topic_work, ojs_http.still_held, ojs_http.work_events,
    ojs_http.topic_claim, ojs_http.topic_ack, ojs_http.topic_nack, ojs_http.topic_extend
to ojs_worker, ojs_admin;
grant execute on function ojs_http.no_such_worker to ojs_worker, ojs_observer, ojs_admin;

-- Observing
grant execute on function
    ojs_http.metrics, ojs_http.maintenance, ojs_http.system_config, ojs_http.events, ojs_http.admin_job,
        ojs_http.maintenance_json, ojs_http.throughput,
    ojs_http.stats_history, ojs_http.history_of, ojs_http.held_keys, ojs_http.unique_jobs,
    ojs_http.middleware, ojs_http.waiting_by_priority, ojs_http.priority_stats, ojs_http.stream_of,
        ojs_http.event_stream, ojs_http.cron_page, ojs_http.cron_flat, ojs_http.cron_item,
    ojs_http.cursor_of, ojs_http.page_key, ojs_http.page, ojs_http.page_start, ojs_http.numbered_page,
        ojs_http.query_time,
    ojs_http.query_args, ojs_http.job_page, ojs_http.listed_jobs, ojs_http.count_listed, ojs_http.list_filter,
        ojs_http.dead_letter_filter,
    ojs_http.admin_jobs, ojs_http.admin_stats, ojs_http.admin_queues, ojs_http.admin_queue, ojs_http.admin_workers,
    ojs_http.queues, ojs_http.queue, ojs_http.queue_stats, ojs_http.queue_config, ojs_http.default_policy,
        ojs_http.topic,
    ojs_http.worker, ojs_http.worker_health, ojs_http.worker_json, ojs_http.worker_named,
    ojs_http.dead_letters, ojs_http.dead_letter, ojs_http.dead_letter_named, ojs_http.admin_dead_letters,
    ojs_http.dead_letter_stats, ojs_http.crons, ojs_http.cron, ojs_http.cron_json, ojs_http.no_such_cron,
    ojs_http.rate_limits, ojs_http.rate_limit, ojs_http.rate_limit_json, ojs_http.job_list,
        ojs_http.explain, ojs_http.job_history, ojs_http.events_of, ojs_http.workflows
to ojs_observer, ojs_admin;

-- Administration
grant execute on function
    ojs_http.retry, ojs_http.discard, ojs_http.delete_job,
    ojs_http.change_job, ojs_http.retry_ended, ojs_http.change_cron,
    ojs_http.selection, ojs_http.filter_times, ojs_http.changed_job, ojs_http.take_back_jobs, ojs_http.do_many,
        ojs_http.do_bulk, ojs_http.bulk, ojs_http.take_key, ojs_http.keep_answer, ojs_http.free_key,
    ojs_http.cancel_bulk, ojs_http.retry_bulk, ojs_http.delete_bulk, ojs_http.must_confirm, ojs_http.admin_bulk,
    ojs_http.admin_cancel_bulk, ojs_http.admin_retry_bulk, ojs_http.admin_delete_bulk,
    ojs_http.delete_all, ojs_http.purge_asked, ojs_http.purge_queue, ojs_http.purge_dead_letters,
        ojs_http.retry_dead_letters,
    ojs_http.retry_dead_letter, ojs_http.delete_dead_letter, ojs_http.delete_dead_letter_flat,
    ojs_http.create_queue, ojs_http.configure_queue, ojs_http.with_bound, ojs_http.queue_is, ojs_http.pause_queue,
        ojs_http.resume_queue,
    ojs_http.pause_queue_flat, ojs_http.resume_queue_flat, ojs_http.drain_queue, ojs_http.drop_queue,
        ojs_http.create_topic,
    ojs_http.set_queue_rate_limit, ojs_http.set_rate_limit, ojs_http.unset_rate_limit,
    ojs_http.direct_worker, ojs_http.quiet_worker, ojs_http.resume_worker, ojs_http.terminate_worker,
        ojs_http.forget_worker,
    ojs_http.schedule, ojs_http.unschedule, ojs_http.cron_job, ojs_http.trigger_cron,
        ojs_http.set_maintenance, ojs_http.reset
to ojs_admin;

-- Hooks
grant select on ojs.hooks to ojs_observer, ojs_admin;
grant execute on function ojs.register_hook(text, text, regprocedure, text, text),
    ojs.unregister_hook(text) to ojs_admin;

-- Schemas
grant select on ojs.schemas to ojs_producer, ojs_worker, ojs_observer, ojs_admin;
grant execute on function ojs_store.default_schema_mode(), ojs_http.no_such_schema, ojs_http.schema_json,
    ojs_http.version_json, ojs_http.schema_named,
    ojs_http.version_key, ojs_http.schemas, ojs_http.schema, ojs_http.admin_schema, ojs_http.versions_of,
        ojs_http.schema_versions
to ojs_producer, ojs_worker, ojs_observer, ojs_admin;
grant execute on function ojs_http.schema_warnings, ojs_http.batch_warnings to ojs_producer, ojs_admin;
grant execute on function ojs.create_schema(text, text, jsonb, text), ojs.drop_schema(text, text),
    ojs.set_schema_validation(text, text),
    ojs_http.register, ojs_http.register_schema, ojs_http.put_schema, ojs_http.set_schema_validation,
        ojs_http.drop_schema
to ojs_admin;

-- Pools
grant execute on function ojs_http.pool_json, ojs_http.pool_named, ojs_http.pools, ojs_http.pool,
    ojs_http.scheduling_stats to ojs_observer, ojs_admin;
grant execute on function ojs_http.set_pool, ojs_http.drop_pool to ojs_admin;

-- Webhooks. What a sender calls shows all of them: it is granted to a role of its own (docs/how-to/webhooks.md).
grant select on ojs.webhooks, ojs.webhook_deliveries to ojs_admin;
grant execute on function ojs.create_webhook(jsonb), ojs.update_webhook(uuid, jsonb), ojs.drop_webhook(uuid),
    ojs.rotate_webhook_secret(uuid, text, interval), ojs.test_webhook(uuid, uuid), ojs.retry_webhook_delivery(uuid),
    ojs_http.prefixed_id, ojs_http.webhook_json, ojs_http.webhook_named, ojs_http.webhook_reply,
    ojs_http.webhooks, ojs_http.create_webhook, ojs_http.webhook, ojs_http.update_webhook, ojs_http.drop_webhook,
    ojs_http.rotate_webhook_secret, ojs_http.test_webhook, ojs_http.webhook_delivery_json,
    ojs_http.webhook_deliveries, ojs_http.webhook_delivery, ojs_http.retry_webhook_delivery
to ojs_admin;

-- Tenants
grant execute on function ojs.bind_tenant(name, text), ojs.unbind_tenant(name, text) to ojs_admin;
grant select on ojs.tenant_roles to ojs_admin;
grant execute on function ojs.set_tenant(text, jsonb, text), ojs.drop_tenant(text) to ojs_admin;
grant select on ojs.tenants to ojs_observer, ojs_admin;
grant execute on function ojs.tenant_stats(text) to ojs_observer, ojs_admin;
grant execute on function ojs_http.tenant_json, ojs_http.tenant_named, ojs_http.tenant_stats_json, ojs_http.tenants,
    ojs_http.tenant, ojs_http.tenant_stats, ojs_http.tenant_jobs to ojs_observer, ojs_admin;
grant execute on function ojs_http.set_tenant, ojs_http.set_tenant_limits, ojs_http.drop_tenant to ojs_admin;
grant execute on function ojs_store.caller_tenant(), ojs_store.may_see_tenant(text), ojs_store.shown_queue(text),
    ojs_store.may_read_cron(jsonb), ojs_store.stored_queue(text) to ojs_producer, ojs_worker, ojs_observer, ojs_admin;

-- Audit
grant select on ojs.audit to ojs_admin;
grant execute on function ojs_http.audit to ojs_admin;
