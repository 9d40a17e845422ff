-- claim.sql: claims, one node after the other. A claim of several nodes at once would lose the jobs of all of them
-- where one fails.

create function ojs_router.remote_claim(node int, queues text[], worker text, max int, lease interval, wait interval)
    returns setof ojs.claimed_job
language plproxy as $$
    cluster 'ojs'; run on node;
    select * from ojs.claim(queues::text[], worker, max, lease, wait, true);
$$;
create function ojs_router.remote_claim_one(node int, queues text[], worker text, lease interval, wait interval)
    returns text
language plproxy as $$
    cluster 'ojs'; run on node;
    select (select ojs.claim(queues::text[], worker, 1, lease, wait, true));
$$;

-- Jobs that wait, as this session saw them last: {"queue": {"node": jobs}}.
create function ojs_router.seen_work() returns jsonb language sql stable parallel safe
begin atomic
    select coalesce(nullif(current_setting('ojs_router.work', true), ''), '{}')::jsonb;
end;

-- For a claim that has got jobs already, one that a node refuses is no error, which would leave these to nobody.
create function ojs_router.look_for_work(has_jobs boolean default false, nodes int[] default ojs_router.live_nodes())
    returns jsonb
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    failure ojs_router.failure;
    work jsonb;
begin
    for attempt in 1..4 loop
        begin
            select jsonb_object_agg(w.queue, w.counts) into work
            from (select r.queue, jsonb_object_agg(r.node, r.ready) as counts from ojs_router.remote_waiting(nodes) r
                group by 1) w;
            exit;
        exception when others or query_canceled then
            get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
                failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
            exit when has_jobs and (attempt = 4 or not ojs_router.is_down(failure))
                and (failure.state <> '57014' or ojs_router.cancelled_there(failure));
            nodes := ojs_router.answering_after(nodes, failure, attempt);
            exit when nodes = '{}';
        end;
    end loop;
    perform set_config('ojs_router.work', coalesce(work, '{}')::text, false);
    return coalesce(work, '{}');
end $$;

-- Which nodes to ask for jobs of a queue, in which order: a random one of those with jobs first, by how many claims
-- like this one they have jobs for. Drawn by how many jobs, nodes with few would be left over
-- (bench/router_simulation.py). What ojs_router.watch() saw within a second counts more than what this session saw.
create function ojs_router.nodes_with_work(queue text, seen jsonb, wanted int) returns int[]
language plpgsql volatile parallel unsafe as $$
declare
    status ojs_router.node_status := ojs_router.status_of_nodes();
    size bigint := greatest(wanted, 1);
begin
    -- Sampling without replacement by weight: the largest of random() ^ (1 / weight).
    if status.watched then
        return array(
            select n from ojs_router.work w, unnest(w.nodes, w.ready) u(n, r)
            where w.queue = nodes_with_work.queue and n <> all (status.missing)
            order by ln(random() + 1e-300) / ((r + size - 1) / size) desc limit 40);
    elsif seen -> queue is null then
        return '{}';
    end if;
    return array(
        select s.key::int from jsonb_each_text(seen -> queue) s
        where s.key::int = any (ojs_router.present_nodes()) and s.key::int <> all (status.missing)
        order by ln(random() + 1e-300) / ((greatest(s.value::bigint, 1) + size - 1) / size) desc);
end $$;

-- Waits for the next look of ojs_router.watch(): what the last one saw has been asked for.
create function ojs_router.await_look(ends timestamptz) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    last timestamptz := (select w.at from ojs_router.watched w);
begin
    loop
        perform pg_sleep(0.02);
        exit when clock_timestamp() >= ends or not ojs_router.is_watched()
            or (select w.at from ojs_router.watched w) is distinct from last;
    end loop;
end $$;

-- After a claim failed on a node: where the node does not answer, the others go on. Where it refuses, and others have
-- given jobs already, these are for the caller: an error would leave them to nobody until their leases lapse.
create function ojs_router.claim_failed(node int, failure ojs_router.failure, has_jobs boolean) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if ojs_router.timed_out(failure) then
        perform ojs_router.remember_missing(node); -- asking again would wait again
    elsif ojs_router.is_down(failure) then
        perform ojs_router.answering(array[node]);
    elsif has_jobs and (failure.state <> '57014' or ojs_router.cancelled_there(failure)) then
        raise warning 'node % gave no jobs: %', node, regexp_replace(failure.message, '^.*?] REMOTE [^:]*: ', '');
    else
        perform ojs_router.raise_failure(node, failure);
    end if;
end $$;

create function ojs_router.check_queues(queues text[]) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    nodes int[];
    queue text;
    known boolean;
    failure ojs_router.failure;
begin
    foreach queue in array coalesce(queues, '{}') loop
        continue when queue is null or strpos(current_setting('ojs_router.known', true), ' ' || queue || ' ') > 0;
        nodes := ojs_router.live_nodes();
        known := null;
        for attempt in 1..4 loop
            begin
                known := exists (select from ojs_router.remote_has_queue(nodes, queue));
                exit;
            exception when others or query_canceled then
                get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
                    failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
                nodes := ojs_router.answering_after(nodes, failure, attempt);
            end;
        end loop;
        if not known and cardinality(nodes) = (select count(*) from ojs_router.node where state <> 'removed') then
            perform ojs_router.raise('NOT_FOUND', format('there is no queue %s', to_json(left(queue, 255))),
                jsonb_build_object('reason', 'topic_not_found', 'queue', left(queue, 255)),
                    'Create it, push to it, or say missing_ok => true.');
        elsif known then
            perform set_config('ojs_router.known', ' ' || queue
                || left(coalesce(current_setting('ojs_router.known', true), ' '), 10000), false);
        end if;
    end loop;
end $$;

-- Both forms of ojs.claim, and how a fetch over HTTP claims, with the same body: what returns rows is not called by
-- another, which would copy them.
do $do$
declare
    form record;
    -- A claim on one node.
    claiming text := $c$
            if %2$s = 1 then
                _job := ojs_router.remote_claim_one(_node, %1$s, worker, lease, %3$s)::ojs.claimed_job;
                if _job.id is not null then
                    return next _job;
                    _got := 1;
                end if;
            else
                return query select * from ojs_router.remote_claim(_node, %1$s, worker, %2$s, lease, %3$s);
                get diagnostics _got = row_count;
            end if;$c$;
    -- A request for jobs, whose answers are returned. One that refuses, or is large, ends it.
    fetching text := $c$
            _job := ojs_router.ask(_node, request, request.body
                || jsonb_build_object('queues', %1$s, 'count', %2$s));
            _job.body := _job.content::jsonb;
            _got := case when _job.status <> 200 or octet_length(_job.content) > ojs_http.most_bytes() / 2 then %2$s
                else jsonb_array_length(_job.body -> 'jobs') end;
            return next _job;$c$;
    call text := $c$
        _got := 0;
        _failed := false;
        begin%s
        exception when others or query_canceled then
            get stacked diagnostics _failure.state = returned_sqlstate, _failure.message = message_text,
                _failure.detail = pg_exception_detail, _failure.hint = pg_exception_hint;
            perform ojs_router.claim_failed(_node, _failure, coalesce(_wanted < max, false));
            _failed := true;
            _failures := _failures + 1;
        end;
    $c$;
begin
    for form in select f.*, format(call, case f.name when 'ojs.claim' then claiming else fetching end) as call
    from (values
        ('ojs.claim', 'ojs.claimed_job', 'queue text', 'array[queue]', '', ''),
        ('ojs_router.fetch', 'ojs_http.response', 'request ojs_http.request, queues text[]', 'queues', '', ''),
        ('ojs.claim', 'ojs.claimed_job', 'queues text[]', 'queues',
            $f$, strategy text default 'strict', weights jsonb default null$f$, $f$
                if strategy is distinct from 'strict' or weights is not null then
                    perform ojs_router.raise('UNSUPPORTED_FEATURE',
                        'a router does not share claims out among queues, since each node counts its own claims only',
                        '{"feature": "strategies", "field": "strategy"}',
                        'Leave strategy and weights out, or claim on the nodes themselves.');
                end if;$f$)) f(name, row_type, parameter, queues, sharing, check_sharing) loop
        execute format($f$
            create function %8$s(
                %1$s, worker text, max int default 1, lease interval default null, wait interval default '0',
                    missing_ok boolean default false%6$s
            ) returns setof %9$s
            language plpgsql volatile parallel unsafe security definer rows 10
                set search_path = pg_catalog, pg_temp as $p$
            #variable_conflict use_variable
            declare
                _queues text[] := %2$s;
                _wait_ends timestamptz := clock_timestamp() + least(wait, interval '30 seconds'); -- as on a node
                _slice interval := '50 milliseconds';
                _work jsonb := ojs_router.seen_work();
                _wanted int := max;
                _called boolean := false;
                _looked boolean := false;
                _queue text;
                _nodes int[];
                _node int;
                _got int;
                _failed boolean;
                _failures int := 0;
                _failure ojs_router.failure;
                _job %9$s;
            begin%7$s
                if max is null or wait is null or wait < interval '0' or array_position(_queues, null) > 0
                        or coalesce(cardinality(_queues), 0) = 0 then
                    _node := ojs_router.random_node();
                    %3$s
                    return;
                end if;
                loop
                    foreach _queue in array _queues loop
                        _nodes := ojs_router.nodes_with_work(_queue, _work, _wanted);
                        if _nodes = '{}' and not _called then
                            -- the node says what is wrong with the call, and does its upkeep
                            _nodes := array[ojs_router.random_node()];
                        end if;
                        foreach _node in array _nodes loop
                            %4$s
                            _called := _called or not _failed;
                            if _got < _wanted and _work -> _queue ? _node::text then
                                _work := _work #- array[_queue, _node::text];
                                perform set_config('ojs_router.work', _work::text, false);
                            end if;
                            _wanted := _wanted - _got;
                            exit when _wanted = 0;
                        end loop;
                        exit when _wanted = 0;
                    end loop;
                    exit when _wanted = 0;
                    continue when not _called and _failures between 1 and 3; -- another node at random
                    if not _looked and not ojs_router.is_watched() then
                        _looked := true;
                        _work := ojs_router.look_for_work(_wanted < max);
                        continue when _work ?| _queues;
                    end if;
                    exit when _wanted < max;
                    if not missing_ok then
                        perform ojs_router.check_queues(_queues);
                        missing_ok := true;
                    end if;
                    exit when clock_timestamp() >= _wait_ends;
                    if ojs_router.is_watched() then
                        perform ojs_router.await_look(_wait_ends);
                    else
                        -- Work that comes to this node wakes us at once; what comes to others is seen after the slice.
                        _node := ojs_router.random_node();
                        %5$s
                        exit when _got > 0;
                        _slice := least(_slice * 2, interval '500 milliseconds');
                        _looked := false;
                    end if;
                end loop;
            end $p$
        $f$, form.parameter, form.queues, format(form.call, '_queues', 'max', 'wait'),
            format(form.call, 'array[_queue]', '_wanted', $w$interval '0'$w$),
            format(form.call, '_queues', '_wanted', $w$greatest(least(_slice, _wait_ends - clock_timestamp()),
                interval '0')$w$), form.sharing, form.check_sharing, form.name, form.row_type);
    end loop;
end $do$;
