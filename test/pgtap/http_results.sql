-- http_results.sql: ojs.http with hostile input, and its routes of progress, checkpoints and results: HTTP-10,
-- PRG, CHK, RES. Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();
\ir helpers.psql

\ir http.psql

-- HOSTILE INPUT ----------------------------------------------------------------------------------------------------

-- Random requests, half of them near something that is right: never an exception, never a 500, always an answer that
-- keeps the form.
create function pg_temp.one_of(variadic choices text[]) returns text language sql volatile as $$
    select choices[1 + floor(random() * cardinality(choices))::int] $$;
create function pg_temp.any_json(depth int) returns jsonb language plpgsql volatile as $$
declare
    kind int := floor(random() * case when depth > 3 then 6 else 9 end)::int;
begin
    return case kind
        when 0 then 'null' when 1 then to_jsonb(random() < 0.5)
        when 2 then pg_temp.one_of('0', '1', '-1', '1.5', '1e30', '9223372036854775808', '1000000', '5')::jsonb
        when 3 then to_jsonb(pg_temp.one_of('', 'x', 'default', 'reject', 'type', 'PT1S', '+PT1S',
            '2026-01-01T00:00:00Z', 'ä"\''', repeat('y', 300), 'a.b'))
        when 4 then to_jsonb(pg_temp.one_of('019539a4-0000-7000-8000-000000000000', 'queue', 'active', 'running', '*',
            'P1D', 'partial', 'atomic'))
        when 5 then to_jsonb(floor(random() * 100000)::int)
        when 6 then (select coalesce(jsonb_agg(pg_temp.any_json(depth + 1)), '[]')
            from generate_series(1, floor(random() * 4)::int))
        else (select coalesce(jsonb_object_agg(pg_temp.one_of('type', 'args', 'jobs', 'queues', 'queue', 'worker_id',
            'job_id', 'error', 'message', 'code', 'options', 'retry', 'unique', 'keys',
            'meta', 'id', 'count', 'node', 'seqs', 'lease_ms', 'max', 'confirm', 'states', 'filter', 'progress',
                'state', 'schedule', 'cron', 'name', 'key', 'expression', 'active_jobs', 'result',
            'max_attempts', 'period', 'on_conflict', 'backpressure', 'max_depth', 'job_template', 'timezone', 'config',
                'job_ids', 'atomicity', 'since', 'older_than', 'expires_at', 'strategy', 'override'),
                pg_temp.any_json(depth + 1)), '{}') from generate_series(1, floor(random() * 8)::int)) end;
end $$;
create function pg_temp.hostile(rounds int) returns text language plpgsql as $$
declare
    r record; asked text; verb text; target text; sent text; h jsonb; answer jsonb;
begin
    for i in 1 .. rounds loop
        select method, pattern into r from ojs_http.routes() where handler <> 'reset' order by random() limit 1;
        verb := case when random() < 0.9 then r.method
            else pg_temp.one_of('GET', 'POST', 'PUT', 'DELETE', 'HEAD', '', 'x', e'\n') end;
        target := regexp_replace(r.pattern, ':[a-z]+',
            pg_temp.one_of('default', 'x', 'told', '019539a4-0000-7000-8000-000000000000', '%27%3B--', '_default', '%',
            '%00', '..', 'A%20b', repeat('z', 300), 'email.send'), 'g')
            || pg_temp.one_of('', '', '', '?', '?limit=1', '?a=%', '?limit=99999999999999999999', '?cursor=00',
                '?types=job.*&queues=a', '/', '?after=x', '?queue=default&type=a', '?strategy=discard',
                '?page=0&per_page=x', '?page=2&per_page=1&sort=priority&order=asc', '?since=x',
                '?state=active&type=a*');
        if random() < 0.05 then
            target := pg_temp.one_of('/', '', '%', '/%/%', repeat('/', 500), e'/a\nb', '/ojs/v1/_',
                '/ojs/v1/jobs/' || repeat('%41', 100));
        end if;
        sent := case when random() < 0.8 then pg_temp.any_json(0)::text
            else pg_temp.one_of(null, '', '{', '[]', 'null', '"', '{"type":', '{"a":"\ud800"}', '{"a":"\u0000"}',
                repeat('{"a":', 2000), '{"type":"a","args":[]}', '{"queues":["default"]}') end;
        h := case when random() < 0.8 then '{}'
            else jsonb_build_object(pg_temp.one_of('Content-Type', 'OJS-Version', 'X-Request-Id', 'Idempotency-Key',
            ''), pg_temp.any_json(2)) end;
        asked := format('%s %s %s %s', verb, target, h, sent);
        begin
            select to_jsonb(a) into strict answer from ojs.http(verb, target, h, sent) a;
            if not (answer ->> 'status')::int between 200 and 599 or answer ->> 'status' = '500' then
                return asked || ' -> ' || answer::text;
            end if;
            if answer -> 'headers' ->> 'X-Request-Id' !~ '^[!-~]+$'
                or answer -> 'headers' ->> 'OJS-Version' <> '1.0' then
                return asked || ' -> headers: ' || answer::text;
            end if;
            if (answer ->> 'status')::int >= 400 and verb not ilike 'head' then
                if (answer ->> 'body')::jsonb -> 'error' ->> 'request_id' is distinct from answer -> 'headers'
                    ->> 'X-Request-Id'
                        and (answer ->> 'status') <> '503' then
                    return asked || ' -> error body: ' || answer::text;
                end if;
            end if;
        exception when others then
            return asked || ' -> raised ' || sqlstate || ': ' || sqlerrm;
        end;
    end loop;
    return null;
end $$;
select floor(random() * 1e9)::int as seed \gset
select setseed(:seed / 1e9) \g /dev/null
select is(pg_temp.hostile(1500), null, 'HTTP-10: 1500 hostile requests are answered (seed ' || :seed || ')');

-- PROGRESS AND CHECKPOINTS -------------------------------------------------------------------------------------------

select pg_temp.held('reports', 'w1') as id \gset
select '/ojs/v1/jobs/' || :'id' as job, '/ojs/v1/jobs/01a1fe98-d88c-7353-99b6-b56eba94d8eb' as no_job \gset
select pg_temp.keep(pg_temp.http('GET', :'job' || '/progress')) \g /dev/null
select is((select r -> 'body' from answer), jsonb_build_object('job_id', :'id', 'state', 'active', 'progress', null,
    'message', null, 'data', null, 'checkpoint', null, 'updated_at', null),
    'PRG-03: nulls before the first report'),
    is(pg_temp.got('headers.Cache-Control'), 'no-cache',
        'PRG-03: not to be cached');
select pg_temp.keep(pg_temp.http('PUT', :'job' || '/progress',
    '{"progress": 1.5, "message": "m", "data": {"rows": 3}, "checkpoint": {"row": 3}}')) \g /dev/null
select is((select (r -> 'body') - 'updated_at' from answer),
    jsonb_build_object('job_id', :'id', 'state', 'active', 'progress', 1, 'message', 'm', 'data', '{"rows": 3}'::jsonb,
    'checkpoint', '{"row": 3}'::jsonb), 'PRG-02 PRG-03: number, clamped, message, data and checkpoint'),
    is(pg_temp.got('headers.X-OJS-Progress'), '1', 'PRG-03: the number as a header'),
        matches(pg_temp.got('headers.Last-Modified'), '^\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT$',
        'PRG-03: and the time');
select is(pg_temp.http('GET', :'job' || '/progress') -> 'body', (select r -> 'body' from answer),
    'PRG-03: read as it was answered');
select is(pg_temp.error('POST', :'job' || '/progress', '{"progress": 0.2, "worker_id": "w2", "checkpoint": 9}'), '200',
    'R-22 PRG-01: who does not hold it is not told'),
    is(pg_temp.http('GET', :'job' || '/progress') -> 'body', (select r -> 'body' from answer),
        'R-22: and changes nothing');
select is(pg_temp.http('POST', :'job' || '/progress', jsonb_build_object('message', 'mine', 'worker_id', 'w1',
    'lease_id', pg_temp.token(:'id'))) #>> '{body,message}', 'mine', 'R-22: who holds it does');
select is(pg_temp.error(method, :'no_job' || '/progress', body), '404 not_found', 'PRG-01: no such job: ' || method)
    from (values ('GET', null::jsonb), ('PUT', '{"progress": 1}'), ('POST', '{"progress": 1}')) m (method, body);
select is(pg_temp.error('PUT', :'job' || '/progress', body), '400 invalid_request', 'PRG-03: ' || body::text)
    from (values ('{}'::jsonb), ('{"progress": "1"}'), ('{"progress": 1, "message": 2}'),
    ('{"checkpoint": 1}')) b (body);
select is(pg_temp.error('PUT', :'job' || '/progress'), '400 invalid_payload', 'HTTP-10: a body');
select is(pg_temp.error('PUT', :'job' || '/progress', jsonb_build_object('data',
    jsonb_build_object('x', repeat('x', 70000)))), '413 payload_too_large', 'PRG-03: too much');
select pg_temp.keep(pg_temp.http('GET', :'job' || '/checkpoint')) \g /dev/null
select is((select (r -> 'body') - 'created_at' from answer),
    jsonb_build_object('job_id', :'id', 'state', '{"row": 3}'::jsonb, 'sequence', 1), 'DUR-01: a checkpoint, flat');
select is(pg_temp.http('PUT', :'job' || '/checkpoint', '{"state": null}') #> '{body,sequence}', '2',
    'DUR-01: saved by PUT'),
    is(pg_temp.http('POST', :'job' || '/checkpoint', '{"state": [4]}') #> '{body,sequence}',
    '3', 'R-58: or POST');
select is(pg_temp.error('PUT', :'job' || '/checkpoint', '{}'), '400 invalid_request', 'DUR-01: a state must be given'),
    is(pg_temp.error('PUT', :'job' || '/checkpoint', jsonb_build_object('state', repeat('x', 1048577))),
    '413 payload_too_large', 'DUR-02: too large');
select ojs.nack(:'id') is null as given_back \gset
select is(pg_temp.http('POST', '/ojs/v1/workers/fetch', '{"queues": ["reports"]}') #> '{body,jobs,0,checkpoint}',
    '{"state": [4], "sequence": 3}', 'DUR-04: a fetch brings it');
select is(pg_temp.http('DELETE', :'job' || '/checkpoint') -> 'body',
    jsonb_build_object('deleted', true, 'job_id', :'id'), 'DUR-03: deleted'),
    is(pg_temp.error('DELETE', :'job' || '/checkpoint'), '200', 'DUR-03: and once more'),
    is(pg_temp.error('GET', :'job' || '/checkpoint'), '404 not_found', 'DUR-02: none');
select is(pg_temp.error(method, :'no_job' || '/checkpoint', '{"state": 1}'), '404 not_found',
    'DUR-02: no such job: ' || method) from unnest('{PUT,DELETE}'::text[]) method;
select ojs.cancel(:'id') is null as cancelled \gset
select is(pg_temp.error('PUT', :'job' || '/checkpoint', '{"state": 1}'), '409 conflict',
    'DUR-02: a job that has ended'),
    is(pg_temp.error('PUT', :'job' || '/progress', '{"progress": 1, "checkpoint": 1}'), '200',
    'PRG-01: of which a report is ignored');

-- RESULTS -------------------------------------------------------------------------------------------------------------

select pg_temp.held('http.results') as done, pg_temp.held('http.results', 'w', '{"result_ttl": 60}') as expired,
    pg_temp.held('http.results') as dead, pg_temp.pushed('http.results') as open \gset
select ojs.ack(:'done', '{"n": 1}') is null as a, ojs.ack(:'expired', '[2]') is null as b,
    ojs.fail(:'dead', '{"type": "E", "message": "m", "retryable": false}') is null as c \gset
select pg_temp.keep(pg_temp.http('GET', '/ojs/v1/jobs/' || :'done' || '/result')) \g /dev/null
select is(pg_temp.got('status') || pg_temp.got('body.state') || pg_temp.got('body.result.n')
    || pg_temp.got('body.result_size_bytes') || (pg_temp.got('body.job_id') = :'done'), '200completed18true',
    'RES-02: a result, and what is said of it');
select is(pg_temp.http('GET', '/ojs/v1/jobs/' || :'dead' || '/result') #>> '{body,error,type}', 'E',
    'RES-03: the error of a job that failed');
set track_functions = 'all';
select is(pg_temp.http('GET', '/ojs/v1/jobs/' || :'open' || '/result') -> 'body' -> 'result', 'null',
    'RES-03: none yet');
select is((select calls from pg_stat_xact_user_functions where funcname = 'wait_result' and schemaname = 'ojs'), null,
    'asking for a result does not wait for it (RES-03)');
select is(pg_temp.error('GET', '/ojs/v1/jobs/' || :'done' || '/result?wait'), '200', 'asking with ?wait does (RES-03)');
select is((select calls from pg_stat_xact_user_functions where funcname = 'wait_result' and schemaname = 'ojs'),
    1::bigint,
    'and that shows in the calls (RES-03)');
reset track_functions;
select is(pg_temp.error('GET', '/ojs/v1/jobs/' || :'open' || '/result?wait=true&timeout=0'), '408 x_wait_timeout',
    'RES-03: waited in vain'),
    is(pg_temp.error('GET', '/ojs/v1/jobs/' || :'done' || '/result?wait=true'), '200',
    'RES-03: no wait for one that has ended'),
    is(pg_temp.error('GET', '/ojs/v1/jobs/01a1fe98-d88c-7353-99b6-b56eba94d8eb/result'), '404 not_found',
        'RES-03: no such job');
select is(pg_temp.http('POST', '/ojs/v1/jobs/results',
    jsonb_build_object('ids', array[:'done', :'open', '01a1fe98-d88c-7353-99b6-b56eba94d8eb'])) #> '{body,results}',
    jsonb_build_object(:'done', '{"state": "completed", "result": {"n": 1}}'::jsonb, :'open',
        '{"state": "available", "result": null}'::jsonb, '01a1fe98-d88c-7353-99b6-b56eba94d8eb',
        '{"state": null, "result": null}'::jsonb),
    'RES-03: of many jobs'),
    is(pg_temp.http('POST', '/ojs/v1/jobs/results', '{"ids": []}') #> '{body,results}', '{}',
        'RES-03: of none'),
        is(pg_temp.error('POST', '/ojs/v1/jobs/results', '{"ids": ["x"]}'), '400 invalid_request',
        'RES-03: no id'),
    is(pg_temp.error('POST', '/ojs/v1/jobs/results', '{}'), '400 invalid_request', 'RES-03: no ids');
select pg_temp.clock('61 s') is null as moved \gset
select pg_temp.keep(pg_temp.http('GET', '/ojs/v1/jobs/' || :'expired' || '/result', null,
    '{"X-Request-Id": "mine"}')) \g /dev/null
select is(pg_temp.got('status') || pg_temp.got('body.error.code') || pg_temp.got('body.error.request_id'),
    '410x_result_prunedmine', 'RES-02: a result that has expired');
select pg_temp.clock('0') is null as moved \gset

select * from finish();
rollback;
