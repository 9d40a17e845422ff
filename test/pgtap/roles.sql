-- roles.sql: who may call what, and that nobody's search_path matters: PGX-11, PGX-12.
-- Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();
\ir helpers.psql

-- Before the library is loaded, anybody may set any name, and this must not count afterwards. So this comes first:
-- where ojs is not preloaded, nothing has loaded it yet.
create role early_admin in role ojs_admin;
set local role early_admin;
set local client_min_messages = error;
select pg_temp.refusal('set ojs.conformance_mode = on') \g /dev/null
select is(left(pg_temp.refusal('select ojs.reset()'), 5), 'OJ700',
    'PGX-12: and yet it is worth nothing: no administrator empties the queue');
reset role;
reset client_min_messages;

-- Who may call a function, by its name: p(roducer), w(orker), o(bserver); a(dmin) may call all of them. '*': it only
-- computes, so any of the four may have it. A function that is not listed here fails the test: say who may call it.
create temp table calls (name text, callers text);
insert into calls select unnest(string_to_array(names, ' ')), callers from (values
    ('push push_job push_many cancel activate wait_result results create_workflow extend_workflow cancel_workflow',
        'p'),
    ('info workflow lineage', 'po'),
    ('claim claim_pool ack ack_many ack_and_claim fail nack nack_many extend extend_many beat '
     'work_open work_next work_close progress checkpoint get_checkpoint '
        || 'delete_checkpoint lease_claim lease_ack lease_nack lease_extend once register_worker deregister_worker',
            'w'),
    ('ready', 'pwo'), ('waiting', 'wo'),
    ('health metrics queue_info queue_stats explain_job events dead_letter_stats list_jobs key_held held_slots '
     'scheduling_stats tenant_stats', 'o'),
    ('tick start_worker retry discard set_priority delete_job cancel_many retry_many delete_many create_queue '
     'configure_queue pause_queue resume_queue drain_queue '
        || 'purge_queue drop_queue free_deduplication_key set_maintenance set_worker_state index_events notify_events '
           'register_hook unregister_hook set_pool drop_pool bind_tenant unbind_tenant set_tenant drop_tenant '
           'set_rate_limit schedule unschedule '
        || 'create_webhook update_webhook drop_webhook rotate_webhook_secret test_webhook retry_webhook_delivery '
        || 'create_schema drop_schema set_schema_validation skip_ordering_key reset', ''),
    ('http', 'pwo'),
    ('claim_webhooks finish_webhooks', '*'), -- nobody: an administrator grants them to a sender
    ('version envelope canonical_json fingerprint fingerprint_input storable manifest capabilities key_slot node_of',
        '*')) list (names, callers);

-- Likewise for the parts of ojs.http.
create temp table http_calls (name text, callers text);
insert into http_calls select unnest(string_to_array(names, ' ')), callers from (values
    ('routes act_for handlers_by_path find_route check_headers check_body mend_body headers_of time_value '
     'duration_value values_in '
     'abridged would_wait may_wait most_bytes bytes_of field_in hint_of query_word read_headers read_query decoded '
     'request_id reply no_route problem status_of error_body raise now rfc3339 '
        || 'upkeep object field text_field number_field texts_field job_id job_named query_number query_list '
           'no_such_job only manifest extensions health ready access missing_nodes '
        || 'no_such_schema schema_json version_json schema_named version_key schemas schema admin_schema versions_of '
           'schema_versions', 'pwo'),
    ('tick_without_worker', 'pw'),
    ('check_args pressure pressure_headers limit_headers set_block_timeout pushed_job push push_batch push_bulk '
     'pushed_items tried_items item_error nothing_done '
        || 'do_push_batch do_push_bulk push_once batch_answer batch_key batch_ttl batch_response may_push '
           'take_push_key keep_push_answer forget_push_key '
        || 'record_push_bulk is_atomic idempotency_key cancel activate result results record_job topic_produce '
           'create_workflow check_workflow_args workflow_of_steps extend_workflow cancel_workflow '
           'schema_warnings batch_warnings', 'p'),
    ('info lineage workflow workflow_named workflow_body', 'po'), ('progress progress_json progress_reply', 'pwo'),
        ('no_such_worker', 'wo'),
    ('envelope fetch outcome ack nack heartbeat obey_test_directive register_worker deregister_worker '
     'progress_and_checkpoint report_progress set_progress worker_progress save_step resume '
        || 'checkpoint save_checkpoint delete_checkpoint topic_work still_held work_events '
           'topic_claim topic_ack topic_nack topic_extend', 'w'),
    ('metrics maintenance system_config events admin_job maintenance_json throughput stats_history history_of '
     'held_keys unique_jobs middleware waiting_by_priority priority_stats stream_of event_stream cron_page cron_flat '
     'cron_item cursor_of page_key page page_start numbered_page query_time query_args job_page listed_jobs '
     'count_listed total_listed list_filter '
        || 'admin_jobs admin_stats admin_queues admin_queue admin_workers queues queue queue_stats queue_config '
           'default_policy topic worker worker_health worker_json '
        || 'worker_named dead_letters dead_letter dead_letter_named dead_letter_filter admin_dead_letters '
           'dead_letter_stats crons cron cron_json no_such_cron '
        || 'rate_limits rate_limit rate_limit_json listed_limits pools pool pool_named pool_json scheduling_stats '
           'tenants tenant tenant_named tenant_json tenant_stats tenant_stats_json tenant_jobs '
           'job_list explain job_history events_of workflows listed_workflows end_of', 'o'),
    ('trigger_cron cron_job retry discard delete_job '
     'check_atomic selection filter_times changed_job change_job retry_ended change_cron take_back_jobs '
     'do_many do_bulk bulk take_key keep_answer free_key cancel_bulk retry_bulk delete_bulk must_confirm admin_bulk '
     'admin_cancel_bulk '
        || 'admin_retry_bulk admin_delete_bulk delete_all purge_asked purge_queue purge_dead_letters '
           'retry_dead_letters retry_dead_letter delete_dead_letter '
        || 'delete_dead_letter_flat create_queue configure_queue with_bound queue_is pause_queue resume_queue '
           'pause_queue_flat resume_queue_flat drain_queue '
        || 'drop_queue create_topic set_queue_rate_limit set_rate_limit unset_rate_limit direct_worker quiet_worker '
           'resume_worker terminate_worker forget_worker '
        || 'schedule unschedule set_maintenance reset audit register register_schema admin_register_schema put_schema '
           'set_schema_validation drop_schema set_pool drop_pool set_tenant set_tenant_limits drop_tenant '
        || 'prefixed_id webhook_json webhook_named webhook_reply webhooks create_webhook webhook update_webhook '
           'drop_webhook rotate_webhook_secret test_webhook webhook_delivery_json webhook_deliveries '
           'webhook_delivery retry_webhook_delivery', '')) list (names, callers);

create temp table functions as select p.oid, p.proname, p.oid::regprocedure as signature, n.nspname as schema,
    coalesce(calls.callers, http_calls.callers) as callers
from pg_proc p join pg_namespace n on n.oid = p.pronamespace left join calls on n.nspname = 'ojs'
    and calls.name = proname
    left join http_calls on n.nspname = 'ojs_http' and http_calls.name = proname
where n.nspname in ('ojs', 'ojs_store', 'ojs_http') and p.prorettype <> 'trigger'::regtype;
create temp table roles as select * from (values ('ojs_producer', 'p'), ('ojs_worker', 'w'),
    ('ojs_observer', 'o')) r (role, letter);

select is((select string_agg(signature::text, ' ') from functions where schema in ('ojs', 'ojs_http')
    and callers is null), null, 'PGX-12: it is laid down for each function who may call it');
select is((select string_agg(signature::text, ' ') from functions where callers <> '*'
    and has_function_privilege(role, oid, 'execute') <> (strpos(callers, letter) > 0)), null,
        'PGX-12: ' || role || ' may call its own functions and no others') from roles;
select is((select string_agg(signature::text, ' ') from functions where schema in ('ojs', 'ojs_http')
    and callers <> '*' and not has_function_privilege('ojs_admin', oid, 'execute')), null,
    'PGX-12: ojs_admin may call what the others may');
select is(has_function_privilege('ojs_admin', 'ojs.tick(int)', 'execute'), true, 'PGX-12: and tick');
create role nobody_special;
select is((select string_agg(signature::text, ' ') from functions
    where has_function_privilege('nobody_special', oid, 'execute')), null, 'PGX-12: PUBLIC may call nothing');
select is((select string_agg(c.oid::regclass::text, ' ') from pg_class c
    where relnamespace in ('ojs'::regnamespace, 'ojs_store'::regnamespace) and relkind in ('r', 'v', 'p', 'S')
    and case when relkind = 'S' then has_sequence_privilege('nobody_special', c.oid, 'usage, select, update')
        else has_table_privilege('nobody_special', c.oid,
            'select, insert, update, delete, truncate, references, trigger') end), null,
            'PGX-12: nor read or write anything');
select is((select string_agg(p.oid::regprocedure::text, ' ') from pg_proc p,
    (select role from roles union all select 'ojs_admin' union all select 'nobody_special') r
    where p.prorettype = 'trigger'::regtype and pronamespace = 'ojs_store'::regnamespace
        and has_function_privilege(role, p.oid, 'execute')), null,
        'PGX-12: nor put triggers of ours on tables of its own');
select is(has_schema_privilege('nobody_special', s, 'usage'), false, 'PGX-12: nor look into schema ' || s)
    from unnest('{ojs,ojs_store,ojs_http}'::text[]) s;
select is((select string_agg(format('%s on %s', role, c.oid::regclass), ', ') from pg_class c,
    (select role from roles union all select 'ojs_admin') r
    where relnamespace in ('ojs'::regnamespace, 'ojs_store'::regnamespace) and relkind in ('r', 'v', 'p')
    and has_table_privilege(role, c.oid, 'insert, update, delete, truncate')), null,
        'PGX-12: none of the four writes to a table or view');
select is((select string_agg(c.oid::regclass::text, ' ') from pg_class c,
    (select role from roles union all select 'ojs_admin') r where relnamespace = 'ojs_store'::regnamespace
    and relkind in ('r', 'p') and has_table_privilege(role, c.oid, 'select')), null,
        'PGX-12: nor reads a private table');
select is((select string_agg(role, ' ') from (select role from roles union all select 'ojs_admin') r
    where has_schema_privilege(role, 'ojs_store', 'usage, create')
    or has_schema_privilege(role, 'ojs', 'create') or has_schema_privilege(role, 'ojs_http', 'create')), null,
    'PGX-12: none of the four gets into ojs_store, or makes anything in the other schemas');
select is(has_table_privilege('ojs_worker', 'ojs.jobs', 'select')
    or has_table_privilege('ojs_producer', 'ojs.jobs', 'select'), false, 'PGX-12: the views are for observers');

-- And really so: a life of a job, each step as the role whose it is ---------------------------------------------------

create role test_producer in role ojs_producer;
create role test_worker in role ojs_worker;
create role test_observer in role ojs_observer;
create role test_admin in role ojs_admin;
grant select on roles, functions to test_worker;

select is(pg_temp.as_role('test_producer', $$ select state from ojs.push('test.job', queue => 'roles') $$),
    'available', 'PGX-12: a producer pushes, and makes the queue');
select is(pg_temp.as_role('test_producer',
    $$ select ojs.push_job('{"type": "t", "args": [], "queue": "roles"}') ->> 'state' $$), 'available',
    'PGX-12: an envelope');
select is(pg_temp.as_role('test_producer', $$ select status
    from ojs.push_many('[{"type": "t", "args": [], "queue": "roles"}]') $$), 'created', 'PGX-12: a batch');
select is(pg_temp.as_role('test_producer', format('select ojs.info(%L) ->> %L', id, 'state')), 'available',
    'PGX-12: looks at a job') from ojs.jobs where queue = 'roles' limit 1;
select is(pg_temp.as_role('test_producer', format('select state from ojs.cancel(%L)', pg_temp.pushed('other'))),
    'cancelled', 'PGX-12: cancels one');
select is(pg_temp.as_role('test_producer', format('select state from ojs.activate(%L)',
    pg_temp.pushed('other', '{"pending": true}'))), 'available', 'PGX-12: activates one');
select is(pg_temp.as_role('test_worker', $$ select state from ojs.claim('roles', 'w1') $$), 'active',
    'PGX-12: a worker claims');
select is(pg_temp.as_role('test_worker', $$ select cardinality(extended)
    from ojs.beat('w1', (select array_agg(id) from ojs.claim('{roles}'::text[], 'w1'))) $$), '1', 'PGX-12: beats');
select is(pg_temp.as_role('test_worker', format('select ojs.progress(%L, 0.5)', job_id)), '',
    'PGX-12: reports progress') from ojs.leases order by job_id limit 1;
select is(pg_temp.as_role('test_worker', format('select ojs.checkpoint(%L, %L) -> %L', job_id, '[1]', 'state')), '[1]',
    'PGX-12: saves a checkpoint') from ojs.leases order by job_id limit 1;
select is(pg_temp.as_role('test_worker', format('select ojs.get_checkpoint(%L) -> %L', job_id, 'state')), '[1]',
    'PGX-12: reads it') from ojs.leases order by job_id limit 1;
select is(pg_temp.as_role('test_worker', format('select ojs.delete_checkpoint(%L)', job_id)), '', 'PGX-12: deletes it')
    from ojs.leases order by job_id limit 1;
select is(pg_temp.as_role('test_worker', format('select state from ojs.extend(%L, %L)', job_id, '1 min')), 'active',
    'PGX-12: extends') from ojs.leases limit 1;
select is(pg_temp.as_role('test_worker', format('select state from ojs.ack(%L)', job_id)), 'completed',
    'PGX-12: finishes') from ojs.leases limit 1;
select is(pg_temp.as_role('test_worker', format('select state from ojs.fail(%L, %L)', job_id,
    '{"type": "t", "message": "m"}')), 'retryable', 'PGX-12: fails') from ojs.leases limit 1;
select is(pg_temp.as_role('test_worker', $$ select id is not null from ojs.ack_and_claim('w1', 'roles', '{}') $$),
    'true', 'PGX-12: claims and finishes in one');
select is(pg_temp.as_role('test_worker', format('select state from ojs.nack(%L)', job_id)), 'available',
    'PGX-12: gives back') from ojs.leases limit 1;
select is(pg_temp.as_role('test_worker', $$ select done from ojs.ack_many('w1', '{}') $$), '0', 'PGX-12: many');
select is(pg_temp.as_role('test_worker', $$ select done from ojs.nack_many('w1', '{}') $$), '0', 'PGX-12: many');
select is(pg_temp.as_role('test_worker', $$ select done from ojs.extend_many('w1', '{}', '1 min') $$), '0',
    'PGX-12: many');
select is(pg_temp.as_role('test_observer', 'select count(*) > 0 from ojs.jobs'), 'true',
    'PGX-12: an observer reads jobs');
select is(pg_temp.as_role('test_observer', 'select count(*) from ojs.leases'), '0', 'PGX-12: leases');
select is(pg_temp.as_role('test_observer', 'select count(*) from ojs.lease_log'), '0', 'PGX-12: the lease log');
select is(pg_temp.as_role('test_observer', 'select count(*) > 0 from ojs.queues'), 'true', 'PGX-12: queues');
select is(pg_temp.as_role('test_observer', 'select count(*) from ojs.rate_limits'), '0', 'PGX-12: rate limits');
select is(pg_temp.as_role('test_admin', $$ select ojs.set_rate_limit('api', null) ->> 'key' $$), 'api',
    'PGX-12: which an administrator sets');
select is(pg_temp.as_role('test_admin', 'select ojs.tick() is not null'), 'true', 'PGX-12: an administrator ticks');
select is(pg_temp.as_role('test_admin', $$ select id is not null from ojs.push('test.job') $$), 'true',
    'PGX-12: and does what the others do');

-- And so over HTTP: what is called on the way asks for no right on ojs_store, which none of the four has.
select is((select string_agg(format('%s %s', role, pattern), ', ')
    from (select role from roles union all select 'ojs_admin') r, ojs_http.routes()
    where method = 'GET' and has_function_privilege(role, format('ojs_http.%I(ojs_http.request)', handler), 'execute')
        and pg_temp.as_role(role, format('select status from ojs.http(%L, %L)', 'GET',
            regexp_replace(pattern, ':[a-z_]+', '01920000-0000-7000-8000-00000000000c', 'g'))) = '403'),
    null, 'PGX-12: each role may read over HTTP what it may call');
select is((select string_agg(f.signature::text, ' ') from functions f join pg_proc p using (oid)
    where f.schema <> 'ojs_store' and not p.prosecdef and p.prosqlbody is null and p.prosrc ~ '\mojs_store\.'), null,
    'PGX-12: no function that runs with the rights of its caller looks up a name in ojs_store');
select is(pg_temp.as_role(role, $$ select (body::jsonb #>> '{pagination,total}')::int > 0
    from ojs.http('GET', '/ojs/v1/admin/jobs?queue=roles') $$), 'true',
    'PGX-12: jobs are listed for ' || role) from unnest('{test_observer,test_admin}'::name[]) role;
select is(pg_temp.as_role('test_observer', $$ select count(*)
    from ojs_http.listed_jobs('{"state": "none such", "queue": "roles"}', 10, 0) $$), '0',
    'a filter with a state that there is not describes nothing');

-- QC-02: producers ----------------------------------------------------------------------------------------------------

create role billing in role ojs_producer;
create role invoices in role billing;
select ojs.create_queue('bills', '{"producers": ["billing", "no such role"]}') is null as made \gset
select is(pg_temp.as_role(role, format($$ select %s $$, call)), result,
    format('QC-02: producers of a queue: %s: %s', role, call)) from (values
    ('billing', $$state from ojs.push('t', queue => 'bills')$$, 'available'),
        ('invoices', $$state from ojs.push('t', queue => 'bills')$$, 'available'),
    ('test_admin', $$state from ojs.push('t', queue => 'bills')$$, 'available'),
        ('test_producer', $$state from ojs.push('t', queue => 'bills')$$, '42501'),
    ('test_producer', $$state from ojs.push('t', queue => 'roles')$$, 'available'),
        ('test_producer', $$ojs.push_job('{"type": "t", "args": [], "queue": "bills"}')$$, '42501'),
    ('test_producer', $$error ->> 'code' from ojs.push_many('[{"type": "t", "args": [], "queue": "bills"}]',
        atomicity => 'partial')$$, 'PERMISSION_DENIED'),
    ('test_producer', $$status from ojs.http('POST', '/ojs/v1/jobs', '{"Content-Type": "application/json"}',
        '{"type": "t", "args": [], "options": {"queue": "bills"}}')$$, '403')
) as p(role, call, result);
set local role test_producer;
select is(pg_temp.refusal($$ select ojs.push('t', queue => 'bills') $$),
    '42501 queue "bills" does not take jobs of this role', 'QC-02: what is said'),
    is(pg_temp.refusal_detail($$ select ojs.push('t', queue => 'bills') $$) -> 'details',
        '{"field": "queue", "queue": "bills", "reason": "producer_not_allowed"}', 'QC-02: why');
reset role;

-- Nor does anybody else learn of the jobs that are there, or end them: by a duplicate, a replacement, a kept answer, an
-- id.
select set_config('roles.bill', id::text, true) as bill
    from ojs.push('t', '[{"iban": "SECRET"}]', queue => 'bills', deduplication_key => 'bill-42',
    "unique" => '{"keys": ["type", "args"]}') \gset
select pg_temp.as_role('billing',
    $$ select count(*) from ojs.push_many('[{"type": "t", "args": [], "queue": "bills"}]',
    idempotency_key => 'bill-key') $$) \g /dev/null
select pg_temp.as_role('billing',
    $$ select count(*) from ojs.push_many('[{"type": "t", "args": [], "options": {"queue": "bills"}}]',
    idempotency_key => 'bill-key-2') $$) \g /dev/null
select set_config('roles.waiting', id::text, true) as waiting
    from ojs.push('t', queue => 'bills', pending => true) \gset
create function pg_temp.bill() returns uuid language sql as $$ select current_setting('roles.bill')::uuid $$;
create function pg_temp.double(conflict text, queue text default 'roles') returns ojs.job language sql as
$$ select ojs.push('t', '[{"iban": "SECRET"}]', queue => queue,
    "unique" => jsonb_build_object('keys', '["type", "args"]'::jsonb, 'on_conflict', conflict)) $$;
select is(pg_temp.as_role('test_producer', format('select %s', call)), coalesce(result, '42501'),
    format('producers of a queue: another one calls %s', call)) from (values
    ($$ojs.push('t', queue => 'bills', deduplication_key => 'bill-42')$$, null),
        ($$pg_temp.double('ignore', 'bills')$$, null), ($$pg_temp.double('reject', 'bills')$$, null),
    ($$concat_ws(' ', d.id, d.type, d.args, d.state, d.deduplicated) from pg_temp.double('ignore') d$$,
        :'bill' || ' t'), ($$pg_temp.double('reject')$$, 'OJ301'),
    ($$pg_temp.refusal_detail('select pg_temp.double(''reject'')') -> 'details' ?| '{existing_job_state}'$$, 'false'),
        ($$pg_temp.double('replace')$$, null),
    ($$ojs.push_job('{"type": "t", "args": [{"iban": "SECRET"}], "queue": "roles", "unique": {"keys": ["type", '
                    '"args"], "on_conflict": "ignore"}}')$$,
        jsonb_build_object('id', :'bill', 'deduplicated', true)::text),
    ($$error ->> 'code' from
        ojs.push_many('[{"type": "t", "args": [{"iban": "SECRET"}], "queue": "bills", "unique": {"keys": ["type", '
                      '"args"], "on_conflict": "ignore"}}]', atomicity => 'partial')$$, 'PERMISSION_DENIED'),
    ($$ojs.push_many('[{"type": "t", "args": [], "queue": "bills"}]', 'bill-42')$$, null),
        ($$ojs.push_many('[{"type": "t", "args": [], "queue": "bills"}]', idempotency_key => 'bill-key')$$, null),
    ($$ojs.push_many('[{"type": "t", "args": [], "options": {"queue": "bills"}}]',
        idempotency_key => 'bill-key-2')$$, null),
    ($$ojs.activate(pg_temp.bill())$$, null),
    ($$ojs.info(pg_temp.bill())$$, null), ($$ojs.cancel(pg_temp.bill())$$, null),
        ($$ojs.cancel(pg_temp.bill(), true)$$, null), ($$ojs.results(array[pg_temp.bill()])$$, null),
    ($$ojs.wait_result(pg_temp.bill(), '0')$$, null), ($$ojs.activate(current_setting('roles.waiting')::uuid)$$, null),
    ($$body::jsonb -> 'jobs' -> 0 from ojs.http('POST', '/ojs/v1/jobs/batch', '{"Content-Type": "application/json"}',
        '{"jobs": [{"type": "t", "args": [{"iban": "SECRET"}], "options": {"queue": "roles", "unique": {"keys": '
        '["type", "args"], "on_conflict": "ignore"}}}]}')$$,
            jsonb_build_object('id', :'bill', 'deduplicated', true)::text)
) as p(call, result);
select is(pg_temp.at(:'bill'), 'available/0/0', 'producers of a queue: nothing has happened to the job');
select is(pg_temp.as_role(role, format('select %s', call)), result,
    format('producers of a queue: %s calls %s', role, call)) from (values
    ('billing', $$ojs.info(pg_temp.bill()) ->> 'state'$$, 'available'),
        ('billing', $$state from ojs.results(array[pg_temp.bill()])$$, 'available'),
    ('billing', $$ojs.wait_result(pg_temp.bill(), '0') is null$$, 'true'),
        ('billing', $$state from pg_temp.double('ignore')$$, 'available'),
    ('billing', $$count(*) from ojs.push_many('[{"type": "t", "args": [], "queue": "bills"}]',
        idempotency_key => 'bill-key')$$, '1'),
    ('test_observer', $$ojs.info(pg_temp.bill()) ->> 'state'$$, 'available'),
        ('billing', $$state from ojs.activate(current_setting('roles.waiting')::uuid)$$, 'available'),
    ('test_producer', $$state from ojs.results(array[null, '01920000-0000-7000-8000-00000000000c']::uuid[])$$, 'null'),
        ('billing', $$state from ojs.cancel(pg_temp.bill())$$, 'cancelled')
) as p(role, call, result);
-- Nor by making the queue anew once it is dropped: its jobs are still there.
select ojs.drop_queue('bills', 'discard') \g /dev/null
select is(pg_temp.as_role('test_producer', $$ select ojs.push('t', queue => 'bills') $$), '42501',
    'QC-02: a queue that was dropped is not made anew by others'),
    is(pg_temp.as_role('billing', $$ select state from ojs.push('t', queue => 'bills') $$), 'available',
        'QC-02: by its producers'),
    is(pg_temp.as_role('test_producer', $$ select ojs.info(pg_temp.bill()) $$), '42501',
        'QC-02: and its jobs are for nobody else');
select ojs.configure_queue('bills', '{"producers": ["*"]}') is null as opened \gset
select is(pg_temp.as_role('test_producer', $$ select state from ojs.push('t', queue => 'bills') $$), 'available',
    'QC-02: anybody');

select is(pg_temp.as_role(role, statement), '42501', format('PGX-12: %s may not: %s', role, statement)) from (values
    ('test_worker', $$select ojs.push('test.job')$$), ('test_observer', $$select ojs.set_rate_limit('api', '{}')$$),
        ('test_worker', 'select * from ojs.jobs'), ('test_worker', 'select * from ojs_store.job'),
    ('test_worker', $$select ojs.cancel('01920000-0000-7000-8000-00000000000c')$$),
        ('test_worker', 'select ojs.tick()'),
    ('test_worker', 'delete from ojs_store.lease'), ('test_worker', $$select nextval('ojs_store.seq')$$),
        ('test_worker', $$select ojs_store.changed('ojs_store.queue')$$),
    ('test_producer', $$select ojs.claim('roles', 'w')$$), ('test_producer', 'select * from ojs.leases'),
        ('test_worker', 'select * from ojs.lease_log'), ('test_producer', 'insert into ojs_store.job default values'),
    ('test_producer', $$select ojs.progress('01920000-0000-7000-8000-00000000000c', 1)$$),
        ('test_observer', $$select ojs.get_checkpoint('01920000-0000-7000-8000-00000000000c')$$),
    ('test_observer', $$select ojs_http.report_progress('01920000-0000-7000-8000-00000000000c', 1, null, null,
        null, null)$$),
    ('test_observer', $$select ojs.push('test.job')$$),
        ('test_observer', $$select ojs.ack('01920000-0000-7000-8000-00000000000c')$$),
    ('test_observer', 'update ojs_store.queue set state = state'), ('test_observer', 'select * from ojs_store.queue'),
        ('test_observer', $$select ojs_store.leases()$$),
    ('nobody_special', $$select ojs.push('test.job')$$), ('nobody_special', 'select ojs.version()'),
        ('nobody_special', 'select * from ojs.jobs')) denied (role, statement);
select is(pg_temp.as_role('test_worker', $$set ojs.clock_offset = '1h'$$), '42501', 'PGX-18: nor moves the clock');

-- PGX-11: search_path -------------------------------------------------------------------------------------------------

-- C functions that resolve no name but by oid pin nothing; all others do.
select is((select string_agg(f.signature::text, ' ') from functions f join pg_proc p using (oid)
    join pg_language l on l.oid = p.prolang
    where l.lanname <> 'c' and p.prosqlbody is null and not coalesce(p.proconfig::text ~ 'search_path=(pg_catalog|"")',
        false)), null, 'PGX-11: functions in SQL and PL/pgSQL pin search_path');
select is((select string_agg(distinct l.lanname, ' ') from functions f join pg_proc p using (oid)
    join pg_language l on l.oid = p.prolang where f.signature::text ~ '^ojs.(push|claim|ack|nack|fail|extend)'
        and f.signature::text !~ 'webhook'),
    'c', 'PGX-11: the hot path is in C');
select is((select string_agg(signature::text, ' ') from functions f join pg_proc p using (oid) where prosecdef
    and not coalesce(p.proconfig::text ~ 'search_path=', false)), null,
    'PGX-11: no security definer without one');

-- A schema in front of all others that has everything the extension could stumble upon.
create schema evil;
create function evil.trap() returns trigger language plpgsql as $$ begin raise exception 'evil trigger'; end $$;
do $$
declare
    made text;
begin
    foreach made in array array['uuid', 'text', 'bigint', 'int', 'smallint', 'jsonb', 'timestamptz', 'interval',
        'boolean', 'tid'] loop
        execute format('create function evil.hijack(%1$s, %1$s) returns boolean language plpgsql as %2$L', made,
            'begin raise exception ''evil operator''; end');
        execute format('create operator evil.= (leftarg = %1$s, rightarg = %1$s, function = evil.hijack)', made);
        execute format('create operator evil.< (leftarg = %1$s, rightarg = %1$s, function = evil.hijack)', made);
        execute format('create operator evil.>= (leftarg = %1$s, rightarg = %1$s, function = evil.hijack)', made);
    end loop;
    foreach made in array array['job', 'job_history', 'finished', 'ready', 'lease', 'delayed', 'hot_set_state',
        'queue', 'worker', 'jobs'] loop
        execute format('create table evil.%I (x int)', made);
        execute format('create temp table %I (x int)', made);
    end loop;
end $$;
create function evil.now() returns timestamptz language plpgsql as $$ begin raise exception 'evil now'; end $$;
create function evil.nextval(regclass) returns bigint language plpgsql as $$ begin
    raise exception 'evil nextval'; end $$;
create function evil.hashtextextended(text, bigint) returns bigint language plpgsql as $$ begin
    raise exception 'evil hash'; end $$;
create function evil.pushed(n int) returns text language plpgsql as $$
declare
    one pg_catalog.uuid; reply text := ''; held ojs.claimed_job;
begin
    select id into one from ojs.push('test.job', queue => 'evil',
        options => '{"tags": ["a"], "expires_at": "2099-01-01T00:00:00Z"}');
    select id into one from ojs.push('test.job', queue => 'evil', delay => '1 hour');
    select * into held from ojs.claim('evil', 'w', lease => '1 min');
    reply := reply || (ojs.beat('w', array[held.id])).directive || (ojs.extend(held.id, '1 min',
        held.lease_id)).state || (ojs.fail(held.id, '{"type": "t", "message": "m"}')).state
        || (ojs.cancel(one)).state || (ojs.info(held.id) ->> 'state') || (ojs.tick() is not null);
    return reply || (select count(*) from ojs.jobs) || (select count(*) from ojs.leases) || (select count(*)
        from ojs.queues);
end $$;
select pg_temp.set_queue('evil') \g /dev/null
savepoint straight;
select evil.pushed(1) as straight \gset
rollback to straight;
set local search_path = evil, pg_catalog, public;
select pg_catalog.set_config('test.reply', evil.pushed(1), true) \g /dev/null
reset search_path;
select is(current_setting('test.reply'), :'straight', 'PGX-11: a schema of traps in front changes nothing');
set local search_path = pg_temp, pg_catalog;
select evil.pushed(2) as temps \gset
reset search_path;
select is(left(:'temps', 20), left(:'straight', 20), 'PGX-11: nor do temporary tables with the names of ours');

select * from finish();
rollback;
