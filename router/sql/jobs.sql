-- jobs.sql: calls about one job, which go to its node. All are made alike: ojs_router.remote_NAME is the call of the
-- node,
-- ojs.NAME finds the node. Signatures and results are those of ojs; test/router compares them.

do $do$
declare
    f record;
    parameter text;
    names text[];
    types text[];
begin
    for f in
        -- silent: the node does not complain of a job that it does not know, so it is asked first whether it does.
        select * from (values
            ('ack', 'job_id uuid, result jsonb default null, lease_id text default null, worker text default null',
                'ojs.job', false),
            ('fail', 'job_id uuid, error jsonb, lease_id text default null, worker text default null, requeue boolean '
                'default false, delay interval default null', 'ojs.job', false),
            ('nack', 'job_id uuid, delay interval default ''0'', lease_id text default null, worker text default null',
                'ojs.job', false),
            ('extend', 'job_id uuid, lease interval, lease_id text default null, worker text default null', 'ojs.job',
                false),
            ('cancel', 'job_id uuid, idempotent boolean default false', 'ojs.job', false),
            ('activate', 'job_id uuid', 'ojs.job', false),
            ('retry', 'job_id uuid, overrides jsonb default ''{}''', 'ojs.job', false),
            ('discard', 'job_id uuid, reason text default null', 'ojs.job', false),
            ('set_priority', 'job_id uuid, priority int', 'ojs.job', false),
            ('wait_result', 'job_id uuid, timeout interval', 'ojs.job', false),
            ('info', 'job_id uuid', 'jsonb', false),
            ('explain_job', 'job_id uuid', 'text', false),
            ('delete_job', 'job_id uuid', 'boolean', true),
            ('progress', 'job_id uuid, progress numeric, message text default null, data jsonb default null', 'void',
                true),
            ('checkpoint', 'job_id uuid, state jsonb', 'jsonb', false),
            ('get_checkpoint', 'job_id uuid', 'jsonb', true),
            ('delete_checkpoint', 'job_id uuid', 'void', true),
            ('workflow', 'id uuid', 'jsonb', false),
            ('cancel_workflow', 'id uuid', 'jsonb', false),
            ('extend_workflow', 'id uuid, def jsonb', 'jsonb', false)
        ) v(name, parameters, result, silent)
    loop
        names := '{}';
        types := '{}';
        foreach parameter in array string_to_array(f.parameters, ', ') loop
            names := names || split_part(parameter, ' ', 1);
            types := types || split_part(parameter, ' ', 2);
        end loop;
        execute format($f$
            create function ojs_router.remote_%1$s(node int, %2$s) returns %3$s language plproxy as $p$
                cluster 'ojs'; run on node;
                select ojs.%1$s(%4$s);
            $p$
        $f$, f.name, array_to_string(types, ', '), case f.result when 'ojs.job' then 'text' else f.result end,
            (select string_agg('$' || i + 1, ', ' order by i) from generate_subscripts(types, 1) i));
        execute format($f$
            create function ojs.%1$s(%2$s) returns %3$s
            language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $p$
            #variable_conflict use_variable
            declare
                _node int := ojs_router.%7$s(%5$s);
                _failure ojs_router.failure;%8$s
            begin
                loop
                    begin
                        %6$s
                    exception when others or query_canceled then
                        get stacked diagnostics _failure.state = returned_sqlstate, _failure.message = message_text,
                            _failure.detail = pg_exception_detail, _failure.hint = pg_exception_hint;
                        _node := ojs_router.other_home(%5$s, _node, _failure);
                    end;
                end loop;
            end $p$
        $f$, f.name, f.parameters, f.result, '', names[1],
            case when f.name = 'wait_result' then $w$
                        _answer := ojs_router.remote_wait_result(_node, job_id,
                            case when timeout > _slice then _slice else timeout end)::ojs.job;
                        if _answer.id is not null or _ends is null or clock_timestamp() >= _ends then
                            return _answer;
                        end if;
                        timeout := greatest(_ends - clock_timestamp(), interval '0');$w$
                when f.result = 'void' then format('perform ojs_router.remote_%s(_node, %s); return;', f.name,
                array_to_string(names, ', '))
                else format('return ojs_router.remote_%s(_node, %s)::%s;', f.name, array_to_string(names, ', '),
                    f.result) end,
            case when f.silent then 'holding_node' else 'home' end,
            -- A pooler before the node may bound how long a call takes, so one that waits is many calls.
            case f.name when 'wait_result' then $d$
                _answer ojs.job;
                _slice constant interval := '500 milliseconds';
                _ends timestamptz := clock_timestamp() + least(timeout, interval '30 seconds');$d$ else '' end);
    end loop;
end $do$;
