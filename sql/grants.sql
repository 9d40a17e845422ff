-- grants.sql: who may do what. Nothing for PUBLIC, and nothing on ojs_store for anybody: its functions are called only
-- inside views, with the rights that the roles get here.

revoke all on all functions in schema ojs, ojs_store, ojs_http from public;
revoke all on schema ojs, ojs_store, ojs_http from public;
revoke all on type ojs_http.request, ojs_http.response from public;
revoke all on all tables in schema ojs, ojs_store from public;
revoke all on all sequences in schema ojs_store from public;

-- Default privileges of the role that owns our objects have been granted on each of them as it was made. Nobody is to
-- have them; and on ojs_store nobody but the four roles is to have anything. What somebody was granted by hand on the
-- other schemas stays, unless it is what default privileges give.
do $$
declare
    found_grant record;
begin
    for found_grant in
        with object as (
            select 'schema' as kind, 'n' as class, oid::regnamespace::text as name, oid as schema, nspowner as owner,
                nspacl as acl
            from pg_namespace
            union all
            select case relkind when 'S' then 'sequence' else 'table' end, case relkind when 'S' then 'S' else 'r' end,
                oid::regclass::text, relnamespace, relowner, relacl
            from pg_class where relkind in ('r', 'p', 'v', 'm', 'f', 'S')
            union all
            select 'routine', 'f', oid::regprocedure::text, pronamespace, proowner, proacl from pg_proc
            union all
            select 'type', 'T', oid::regtype::text, typnamespace, typowner, typacl from pg_type
        )
        select distinct o.kind, o.name, g.grantee::regrole::text as grantee
        from object o, aclexplode(o.acl) g
        where o.schema in ('ojs'::regnamespace, 'ojs_store'::regnamespace, 'ojs_http'::regnamespace)
            and g.grantee not in (0, o.owner)
            and (o.schema = 'ojs_store'::regnamespace and g.grantee::regrole::text
                    not in ('ojs_producer', 'ojs_worker', 'ojs_observer', 'ojs_admin')
                or exists (select from pg_default_acl d, aclexplode(d.defaclacl) e
                    where d.defaclrole = o.owner and d.defaclobjtype = o.class::"char"
                        and d.defaclnamespace in (0, o.schema)
                        and e.grantee = g.grantee and e.privilege_type = g.privilege_type))
    loop
        execute format('revoke all on %s %s from %s cascade', found_grant.kind, found_grant.name, found_grant.grantee);
    end loop;
end $$;

grant usage on schema ojs to ojs_producer, ojs_worker, ojs_observer, ojs_admin;
grant execute on function
    ojs.version(), ojs.manifest(), ojs.capabilities(),
    ojs.envelope(ojs.job), ojs.canonical_json(jsonb), ojs.fingerprint(jsonb), ojs.fingerprint_input(jsonb),
    ojs.storable(text)
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
    ojs.progress(uuid, double precision, text, jsonb),
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
    ojs_store.may_see(text, text, jsonb), ojs_store.workflow_queues(uuid),
    ojs_store.subject_queues(text), ojs_store.cron_template(text), ojs_store.may_use_queues(bigint[], text),
    ojs_store.calling_role(),
    ojs_store.queue_of(jsonb), ojs_store.leases(), ojs_store.holders(), ojs_store.now(),
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
