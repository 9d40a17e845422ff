-- manifest.sql: what this implementation of OJS can do. Only what works and is tested stands here.

create function ojs.capabilities() returns jsonb
language sql stable parallel safe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object(
        'batch_enqueue', true, 'atomic_enqueue_many', true,
        'native_deduplication', true, 'native_retrial', true,
        'unique_jobs', jsonb_build_object('strength', 'strong', 'mechanism',
            'a partial unique index over the SHA-256 of the key; its row is inserted or locked in the transaction of '
            'the push until that ends, and the states of the jobs it names are looked up under that lock'),
        'delayed_jobs', true, 'job_ttl', true, 'priority_queues', true, 'retry_policies', true,
        'cron_jobs', true, 'cron', true, 'dead_letter', true, 'pause_resume', true, 'rate_limiting', true,
        'schema_validation', true, 'workflows', true)
$$;
comment on function ojs.capabilities()
    is 'What this version can do: flags, and how strictly unique jobs are unique; part of ojs.manifest()';

-- A setting of ours that is a number of bytes. The server shows one in B, which pg_size_bytes() reads from 16 on.
create function ojs_http.bytes_of(setting text) returns bigint
language plpgsql stable parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    value text := current_setting(setting, true); -- null before the library is loaded
begin
    return case when value ~ '^[0-9]+B$' then left(value, -1)::bigint else pg_size_bytes(value) end;
end $$;

-- The extensions whose required capabilities are all there, and on in this database. The conformance tests fail for one
-- of which a case does not pass.
create function ojs_http.extensions() returns jsonb
language sql stable parallel safe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object(
        'official', jsonb_agg(jsonb_build_object('name', name, 'uri', 'urn:ojs:ext:' || name, 'version', '1.0.0')
            order by name) filter (where official),
        'experimental', jsonb_agg(jsonb_build_object('name', name, 'uri', 'urn:ojs:ext:experimental:' || name,
            'version', '1.0.0') order by name) filter (where not official))
    from (values ('admin-api', true), ('backpressure', true), ('bulk-operations', true), ('dead-letter', true),
        ('durable-execution', true), ('fair-scheduling', true), ('multi-tenancy', true), ('payload-limits', true),
        ('progress', true), ('rate-limiting', true), ('results', true), ('schema-registry', true), ('timeouts', true),
        ('webhooks', true), ('job-versioning', false)) e (name, official)
    where case name
        when 'multi-tenancy' then coalesce(current_setting('ojs.tenancy', true), 'off') <> 'off'
        when 'bulk-operations' then coalesce(current_setting('ojs.max_batch_size', true)::int >= 100, true)
        when 'payload-limits' then coalesce(ojs_http.bytes_of('ojs.max_envelope_size') >= 1048576
            and ojs_http.bytes_of('ojs.max_meta_size') <= 65536, true)
        else true end
$$;

create function ojs.manifest() returns jsonb
language sql stable parallel safe set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object(
        'specversion', '1.0', 'ojs_version', '1.0',
        'implementation', jsonb_build_object('name', 'ojs', 'version', ojs.version(), 'language', 'c++'),
        'conformance_level', 4, 'conformance_tier', 'runtime',
        'protocols', jsonb_build_array('http'), 'backend', 'postgres',
        'capabilities', ojs.capabilities(),
        'unique_job_strength', ojs.capabilities() #> '{unique_jobs,strength}',
        'unique_job_mechanism', ojs.capabilities() #> '{unique_jobs,mechanism}',
        'delivery', jsonb_build_object('guarantees', jsonb_build_array('at-least-once', 'at-most-once'), 'default',
            'at-least-once', 'events', 'at-least-once',
            'ordering', jsonb_build_object('fifo',
                'within a queue, among jobs of equal priority, for a single worker that takes one job at a time',
                'none', jsonb_build_array('across workers', 'across priorities', 'across retries and redeliveries'))),
        'extensions', ojs_http.extensions() || jsonb_build_object('payload_limits', limits), -- as its document has it
        'endpoints', '{"manifest": "/ojs/manifest", "health": "/ojs/v1/health"}'::jsonb,
        'payload_limits', limits)
    from (select jsonb_build_object(
            'max_envelope_bytes', ojs_http.bytes_of('ojs.max_envelope_size'),
            'max_meta_bytes', ojs_http.bytes_of('ojs.max_meta_size'),
            'max_queue_name_bytes', 128, 'max_job_type_bytes', 255,
            'external_references', true, 'chunking', false, 'per_queue_limits', false, 'supported_compression',
                '[]'::jsonb,
            'max_batch_size', current_setting('ojs.max_batch_size')::int,
            'max_args_depth', current_setting('ojs.max_args_depth')::int,
            'max_args_elements', current_setting('ojs.max_args_elements')::int)) as l (limits)
$$;
comment on function ojs.manifest()
    is 'The conformance manifest of OJS: what this implementation is, what it can do, and its limits';
