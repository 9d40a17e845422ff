-- grants.sql: who may do what, as on a node. All functions belong to the role ojs_router, and those that callers may
-- call run as it.

do $$
declare
    o record;
begin
    for o in select p.oid::regprocedure as name, p.prokind from pg_proc p
        where p.pronamespace in ('ojs'::regnamespace, 'ojs_router'::regnamespace, 'ojs_http'::regnamespace)
    loop
        execute format('revoke all on %s %s from public', case o.prokind when 'p' then 'procedure'
            else 'function' end, o.name);
        execute format('alter %s %s owner to ojs_router', case o.prokind when 'p' then 'procedure'
            else 'function' end, o.name);
    end loop;
    for o in select c.oid::regclass as name, c.relkind from pg_class c
        where c.relnamespace in ('ojs'::regnamespace, 'ojs_router'::regnamespace) and c.relkind in ('r', 'v')
    loop
        execute format('alter %s %s owner to ojs_router', case o.relkind when 'v' then 'view' else 'table' end, o.name);
    end loop;
    -- PL/Proxy tells in a NOTICE that it leaves a connection after each error of a node.
    for o in select p.oid::regprocedure as name from pg_proc p
        where p.pronamespace in ('ojs'::regnamespace, 'ojs_http'::regnamespace) and p.prosecdef loop
        execute format('alter function %s set client_min_messages = warning', o.name);
    end loop;
    for o in
        select p.oid::regprocedure as name, r.role
        from (values
            ('{ojs_producer,ojs_worker,ojs_observer,ojs_admin}'::text[],
                '{version,manifest,capabilities,envelope,canonical_json,fingerprint,fingerprint_input,node_of,
                key_slot,ready}'::text[]),
            ('{ojs_producer,ojs_admin}',
                '{push,push_job,push_many,cancel,activate,wait_result,results,info,create_workflow,cancel_workflow,
                extend_workflow,workflow}'),
            ('{ojs_worker,ojs_admin}',
                '{claim,claim_pool,ack,ack_many,ack_and_claim,fail,nack,nack_many,extend,extend_many,beat,progress,
                checkpoint,get_checkpoint,delete_checkpoint,register_worker,deregister_worker}'),
            ('{ojs_observer,ojs_admin}',
                '{info,workflow,explain_job,queue_info,queue_stats,list_jobs,dead_letter_stats,metrics,health,events}'),
            ('{ojs_admin}',
                '{skip_ordering_key,create_schema,drop_schema,set_schema_validation,
                retry,discard,set_priority,delete_job,set_worker_state,create_queue,configure_queue,pause_queue,
                resume_queue,drain_queue,
                purge_queue,drop_queue,set_maintenance,set_rate_limit,cancel_many,retry_many,delete_many,
                free_deduplication_key,schedule,
                unschedule,index_events,notify_events,tick,set_pool,drop_pool,set_tenant,drop_tenant,bind_tenant,
                unbind_tenant}')
        ) g(roles, names), unnest(g.roles) r(role), unnest(g.names) n(name)
        join pg_proc p on p.proname = n.name and p.pronamespace = 'ojs'::regnamespace
    loop
        execute format('grant execute on function %s to %I', o.name, o.role);
    end loop;
end $$;

alter schema ojs owner to ojs_router;
alter schema ojs_router owner to ojs_router;
alter schema ojs_http owner to ojs_router;
alter server ojs owner to ojs_router;
alter type ojs.job owner to ojs_router;
alter type ojs.claimed_job owner to ojs_router;
alter type ojs_http.request owner to ojs_router;
alter type ojs_http.response owner to ojs_router;

grant usage on schema ojs to ojs_producer, ojs_worker, ojs_observer, ojs_admin;
grant select on ojs.queues, ojs.workers, ojs.crons, ojs.rate_limits to ojs_observer, ojs_admin;
grant execute on function ojs_router.all_queues(), ojs_router.all_workers(), ojs_router.all_crons(),
    ojs_router.all_rate_limits(), ojs_router.merged_config(jsonb[]) to ojs_observer, ojs_admin;

-- Connection strings are for superusers: whoever gives one has the server log in wherever it says.
grant usage on schema ojs_router to ojs_observer, ojs_admin;
grant select on ojs_router.nodes, ojs_router.slots to ojs_observer, ojs_admin;
grant execute on function ojs_router.drain_node(int), ojs_router.remove_node(int),
    ojs_router.settle(), ojs_router.refresh_work() to ojs_admin;
grant execute on procedure ojs_router.watch(int, interval) to ojs_admin;
