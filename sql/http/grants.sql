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
                '{act_for,routes,handlers_by_path,find_route,check_headers,check_body,mend_body,read_headers,read_query,
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
                create_workflow,check_workflow_args,workflow_of_steps,extend_workflow,cancel_workflow,cancel,activate,
                result,results,record_job,topic_produce,schema_warnings,batch_warnings}'),
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
                trigger_cron,set_maintenance,reset,register,register_schema,admin_register_schema,put_schema,
                set_schema_validation,drop_schema,set_pool,drop_pool,prefixed_id,webhook_json,webhook_named,
                webhook_reply,webhooks,
                create_webhook,webhook,update_webhook,drop_webhook,rotate_webhook_secret,test_webhook,
                webhook_delivery_json,webhook_deliveries,webhook_delivery,retry_webhook_delivery,set_tenant,
                set_tenant_limits,drop_tenant,audit}')
        ) g(roles, names), unnest(g.roles) r(role), unnest(g.names) n(name)
        join pg_proc p on p.proname = n.name and p.pronamespace = 'ojs_http'::regnamespace
    loop
        execute format('grant execute on function %s to %I', o.name, o.role);
    end loop;
end $$;
