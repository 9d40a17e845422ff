-- work.sql: working over HTTP: fetch, ack, nack (which reports a failure), and registering.

create function ojs_http.envelope(job ojs.claimed_job) returns jsonb
language c immutable strict parallel safe as 'MODULE_PATHNAME', 'ojs_envelope';

-- The length of leases that nobody gives is ojs.http_lease here. A fetch of many jobs claims them in portions, and ends
-- where the answer is full.
create function ojs_http.fetch(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    body jsonb := ojs_http.object(request);
    pool text := ojs_http.text_field(body, 'pool');
    queues text[] := ojs_http.texts_field(body, 'queues', pool is null);
    strategy text := ojs_http.text_field(body, 'strategy');
    weights jsonb := ojs_http.field(body, 'weights', 'object');
    worker text := coalesce(ojs_http.text_field(body, 'worker_id'), 'anonymous');
    wanted bigint := coalesce(ojs_http.number_field(body, 'count', -1, 1000), 1);
    lease interval := ojs_http.number_field(body, 'visibility_timeout_ms', 0, 86400000) * interval '1 millisecond';
    patience text := (regexp_match(request.headers ->> 'prefer', '(?:^|[,; ])wait=([0-9]{1,5})(?:$|[,; ])'))[1];
    bad text := (select q from unnest(queues) q where q !~ '^[a-z0-9][a-z0-9.-]*(@[*])?$' limit 1);
    lease_before text;
    portion bigint;
    more jsonb;
    bytes bigint;
    jobs jsonb := '[]';
begin
    if wanted < 0 then
        perform ojs_http.raise('INVALID_PAYLOAD', 'count must not be negative', '{"field": "count"}',
            'Give a number from 0 to 1000.');
    elsif bad is not null then
        perform ojs_http.raise('INVALID_QUEUE', format('queues holds "%s", which is no name of a queue',
            left(bad, 64)), '{"field": "queues"}',
            'Name queues by a-z, 0-9, "-" and ".".');
    end if;
    perform ojs_http.upkeep();
    lease_before := current_setting('ojs.default_lease', true);
    perform ojs_http.now(); -- loads the library, and with it its settings
    perform set_config('ojs.default_lease', current_setting('ojs.http_lease'), true);
    portion := least(wanted, greatest(1, 4 * ojs_http.most_bytes() / ojs_http.bytes_of('ojs.max_envelope_size')));
    loop
        begin
            select jsonb_agg(c.job), sum(pg_column_size(c.job)) into more, bytes
            -- Without `timeout`, which one SDK reads as milliseconds: timeout_ms says it.
            from (select case when claimed.timeout is null then ojs_http.envelope(claimed)
                else ojs_http.envelope(claimed) - 'timeout' end as job
                from ojs.claim(queues, worker, least(wanted, portion)::int, lease, missing_ok => true,
                    strategy => coalesce(strategy, 'strict'), weights => weights) claimed
                where pool is null
                union all
                select ojs_http.envelope(claimed) - 'timeout'
                from ojs.claim_pool(pool, worker, least(wanted, portion)::int, lease) claimed
                where pool is not null) c;
        exception when sqlstate 'OJ600' then
            exit when jobs <> '[]'; -- what was claimed counts, whatever the queue's claim_rate says of more
            raise;
        end;
        exit when more is null;
        jobs := jobs || more;
        wanted := wanted - portion;
        exit when wanted <= 0 or jsonb_array_length(more) < portion or pg_column_size(jobs) >= ojs_http.most_bytes();
    end loop;
    perform set_config('ojs.default_lease', lease_before, true);
    return ojs_http.reply(200, jsonb_build_object('jobs', jobs),
        case when jobs = '[]' and not ojs_http.may_wait(request) and patience::int > 0
            then jsonb_build_object('OJS-Would-Wait', patience) else '{}' end);
end $$;

-- The fields of a job that replies of ack and nack repeat at the top, so far as it has them.
create function ojs_http.outcome(job jsonb) returns jsonb
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
begin
    return (select jsonb_object_agg(name, job -> name)
            from unnest('{id,state,attempt,max_attempts,next_attempt_at,retry_delay_ms,'
                'completed_at,discarded_at}'::text[]) name
            where job ? name)
        || jsonb_build_object('job_id', job -> 'id', 'job', job);
end $$;

create function ojs_http.ack(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request, cardinality(request.names) = 0);
    job ojs.job := ojs.ack(ojs_http.job_named(request, body), body -> 'result', ojs_http.text_field(body, 'lease_id'),
        ojs_http.text_field(body, 'worker_id'));
begin
    return ojs_http.reply(200, ojs_http.outcome(ojs.envelope(job)) || '{"acknowledged": true}');
end $$;

-- The report of a failure lands: whose job it is must be right, and of the rest what cannot be read is left out.
create function ojs_http.nack(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    id uuid := ojs_http.job_named(request, body);
    error jsonb := nullif(body -> 'error', 'null');
    requeue boolean := coalesce(body ->> 'requeue' = 'true', false);
    delay interval := case jsonb_typeof(body -> 'delay_ms') when 'number'
        then least(greatest((body -> 'delay_ms')::numeric, 0), 3155760000000)::bigint * interval '1 millisecond' end;
    lease_id text := ojs_http.text_field(body, 'lease_id');
    worker text := ojs_http.text_field(body, 'worker_id');
    job ojs.job;
begin
    if requeue and error is null then
        job := ojs.nack(id, coalesce(delay, '0'), lease_id, worker);
    else
        if error is null then
            perform ojs_http.field(body, 'error', 'object', true);
        end if;
        -- Of a class of errors alone it is not said what kind of error it was.
        if jsonb_typeof(error) = 'object' and coalesce(error -> 'code', 'null') = 'null'
            and coalesce(error -> 'type', 'null') <> 'null' then
            error := error || '{"code": "handler_error"}';
        end if;
        job := ojs.fail(id, error, lease_id, worker, requeue, delay);
    end if;
    return ojs_http.reply(200, ojs_http.outcome(ojs.envelope(job)));
end $$;

-- Like the progress of a job by its path, but for SDKs that report in percent, of a job that the body names.
create function ojs_http.worker_progress(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
    percent numeric := ojs_http.field(body, 'percentage', 'number')::numeric;
begin
    request.names := array[ojs_http.job_named(request, body)::text];
    if percent is not null then
        request.body := body - 'percentage' || jsonb_build_object('progress', percent / 100);
    end if;
    return ojs_http.set_progress(request);
end $$;

create function ojs_http.register_worker(request ojs_http.request) returns ojs_http.response
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    body jsonb := ojs_http.object(request);
begin
    return ojs_http.reply(200, ojs.register_worker(ojs_http.text_field(body, 'worker_id', true), body - 'worker_id')
        || jsonb_build_object('visibility_timeout_default',
            trim_scale(extract(epoch from current_setting('ojs.http_lease')::interval)::numeric)));
end $$;
