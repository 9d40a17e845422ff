-- work.sql: working on many jobs. Jobs of several nodes are told apart by their ids, and each node gets its own.

create function ojs_router.remote_ack_many(node int, worker text, job_ids uuid[], results jsonb[], lease_ids text[],
    out done int, out skipped uuid[])
returns record language plproxy as $$
    cluster 'ojs'; run on node;
    select a.done, a.skipped from ojs.ack_many(worker, job_ids, results, lease_ids) a;
$$;
create function ojs_router.remote_nack_many(node int, worker text, job_ids uuid[], delay interval, lease_ids text[],
    out done int, out skipped uuid[])
returns record language plproxy as $$
    cluster 'ojs'; run on node;
    select a.done, a.skipped from ojs.nack_many(worker, job_ids, delay, lease_ids) a;
$$;
create function ojs_router.remote_extend_many(
    node int, worker text, job_ids uuid[], lease interval, lease_ids text[], out done int, out skipped uuid[],
        out deadline timestamptz
) returns record language plproxy as $$
    cluster 'ojs'; run on node;
    select a.done, a.skipped, a.deadline from ojs.extend_many(worker, job_ids, lease, lease_ids) a;
$$;
create function ojs_router.remote_ack_and_claim(
    node int, worker text, queue text, job_ids uuid[], lease_ids text[], results jsonb[], max int, lease interval
) returns setof ojs.claimed_job language plproxy as $$
    cluster 'ojs'; run on node;
    select * from ojs.ack_and_claim($2, $3, $4, $5, $6, $7, $8);
$$;
create function ojs_router.remote_beat(
    node int, worker text, job_ids uuid[], state text, info jsonb, lease interval,
    out directive text, out extended uuid[], out cancelled uuid[], out lost uuid[]
) returns record language plproxy as $$
    cluster 'ojs'; run on node;
    select b.directive, b.extended, b.cancelled, b.lost from ojs.beat($2, $3, $4, $5, $6) b;
$$;
create function ojs_router.remote_register_worker(node int, worker text, info jsonb) returns jsonb
    language plproxy as $$
    cluster 'ojs'; run on node;
    select ojs.register_worker(worker, info);
$$;
create function ojs_router.remote_deregister_worker(nodes int[], worker text, release boolean) returns setof boolean
    language plproxy as $$
    cluster 'ojs'; run on unnest(nodes);
    select ojs.deregister_worker(worker, release);
$$;

-- Which nodes the jobs are on by their ids, or with `ask` by asking all nodes; null where none is known.
create function ojs_router.homes(ids uuid[], ask boolean default false) returns int[]
language plpgsql volatile parallel unsafe as $$
declare
    nodes int[];
    failure ojs_router.failure;
begin
    if ojs_router.acts_for_tenant() then
        perform ojs_router.check_tenant();
    end if;
    if not ask then
        return array(select ojs_router.named_node(id) from unnest(ids) id);
    end if;
    nodes := ojs_router.live_nodes();
    for attempt in 1..4 loop
        begin
            return (
                select array_agg(f.node order by i.n)
                from unnest(ids) with ordinality i(id, n)
                left join (select distinct on (r.id) r.id, r.node
                    from ojs_router.remote_has_jobs(nodes, ids) r) f on f.id = i.id);
        exception when others or query_canceled then
            get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
                failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
            nodes := ojs_router.answering_after(nodes, failure, attempt);
        end;
    end loop;
end $$;

-- The jobs of each node, of those at the positions `todo`, or of all; without those whose node is not known.
create function ojs_router.split_by_node(
    homes int[], todo int[], job_ids uuid[], lease_ids text[], results jsonb[],
    out node int, out ids uuid[], out leases text[], out answers jsonb[]
) returns setof record
language plpgsql volatile parallel unsafe rows 2 as $$
#variable_conflict use_column
begin
    if todo is null and homes[1] = all (homes) then
        node := homes[1]; ids := job_ids; leases := lease_ids; answers := results;
        return next;
        return;
    end if;
    return query
        select j.home, array_agg(j.id), case when lease_ids is not null then array_agg(j.lease) end,
            case when results is not null then array_agg(j.result) end
        from (
            select * from unnest(homes, job_ids, lease_ids, results) with ordinality u(home, id, lease, result, n)
            where u.home is not null and (todo is null or u.n = any (todo)) order by u.home, u.n) j
        group by j.home order by j.home;
end $$;

-- ack_many, nack_many and extend_many. A job that its node skips may be on another one, so skipped jobs are looked
-- for, once.
-- Jobs of a node that does not answer are skipped, and a WARNING says so.
do $do$
declare
    f record;
begin
    for f in select * from (values
        ('ack_many', 'worker text, job_ids uuid[], results jsonb[] default null, lease_ids text[] default null', '',
            'results'),
        ('nack_many', 'worker text, job_ids uuid[], delay interval default ''0'', lease_ids text[] default null', '',
            'delay'),
        ('extend_many', 'worker text, job_ids uuid[], lease interval, lease_ids text[] default null',
            ', out deadline timestamptz', 'lease')
    ) v(name, parameters, deadline, third) loop
        execute format($f$
            create function ojs.%1$s(%2$s, out done int, out skipped uuid[]%3$s) returns record
            language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $p$
            #variable_conflict use_variable
            declare
                _homes int[] := ojs_router.homes(job_ids);
                _todo int[]; -- positions
                _skipped int[] := '{}'; -- positions
                _part record;
                _answer record;
                _failed uuid[];
                _failure ojs_router.failure;
                _found int[];
            begin
                done := 0;
                if _homes = '{}' or cardinality(lease_ids) <> cardinality(job_ids) %7$s
                    then -- the node says what is wrong
                    _homes := array[ojs_router.random_node()];
                    _answer := ojs_router.remote_%1$s(_homes[1], worker, job_ids, %4$s, lease_ids);
                    done := _answer.done; skipped := _answer.skipped; %5$s
                    return;
                end if;
                for round in 1..2 loop
                    for _part in select * from ojs_router.split_by_node(_homes, _todo, job_ids, lease_ids, %8$s) loop
                        begin
                            _answer := ojs_router.remote_%1$s(_part.node, worker, _part.ids, %6$s, _part.leases);
                            done := done + _answer.done; %5$s
                            _failed := _answer.skipped;
                        exception when others or query_canceled then
                            get stacked diagnostics _failure.state = returned_sqlstate, _failure.message = message_text,
                                _failure.detail = pg_exception_detail, _failure.hint = pg_exception_hint;
                            if not ojs_router.is_down(_failure) then
                                perform ojs_router.raise_failure(_part.node, _failure);
                            end if;
                            perform ojs_router.remember_missing(_part.node);
                            raise warning 'node %% does not answer, so its jobs are skipped', _part.node using hint
                                = 'The call may have been carried out there. What came of it, ojs.info says later.';
                            _failed := _part.ids;
                        end;
                        if _failed <> '{}' then
                            _skipped := _skipped || array(
                                select n::int from unnest(_homes, job_ids) with ordinality j(home, id, n)
                                where home = _part.node and id = any (_failed) and (_todo is null or n = any (_todo)));
                        end if;
                    end loop;
                    exit when round = 2;
                    if array_position(_homes, null) > 0 then
                        _skipped := _skipped || array(
                            select n::int from unnest(_homes) with ordinality h(home, n) where home is null);
                    end if;
                    exit when _skipped = '{}';
                    _found := ojs_router.homes(array(select job_ids[n] from unnest(_skipped) with ordinality s(n, i)
                        order by i), true);
                    _todo := array(select n from unnest(_skipped) with ordinality s(n, i) where _found[i] <> _homes[n]
                        or _homes[n] is null and _found[i] is not null);
                    for i in 1..cardinality(_skipped) loop
                        _homes[_skipped[i]] := _found[i];
                    end loop;
                    _skipped := array(select n from unnest(_skipped) n where n <> all (_todo));
                end loop;
                skipped := case when _skipped = '{}' then '{}'
                    else array(select job_ids[n] from unnest(_skipped) n order by n) end;
            exception when others or query_canceled then
                get stacked diagnostics _failure.state = returned_sqlstate, _failure.message = message_text,
                    _failure.detail = pg_exception_detail, _failure.hint = pg_exception_hint;
                if _failure.message like '%%] REMOTE %%' or _failure.message like 'PL/Proxy function %%' then
                    perform ojs_router.raise_failure(_homes[1], _failure);
                end if;
                raise;
            end $p$
        $f$, f.name, f.parameters, f.deadline, f.third,
            case when f.deadline <> '' then 'deadline := least(deadline, _answer.deadline);' else '' end,
            case when f.third = 'results' then '_part.answers' else f.third end,
            case when f.third = 'results' then 'or cardinality(results) <> cardinality(job_ids)' else '' end,
            case when f.third = 'results' then 'results' else 'null' end);
    end loop;
end $do$;

-- All of it on one node is one step there. Jobs of several nodes are completed one by one, and what was completed stays
-- so where a later one is refused. So does a claim that fails once jobs are completed and others claimed.
create function ojs.ack_and_claim(
    worker text, queue text, job_ids uuid[], lease_ids text[] default null, results jsonb[] default null,
        max int default 1, lease interval default null
) returns setof ojs.claimed_job
language plpgsql volatile parallel unsafe security definer rows 10 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    homes int[] := ojs_router.homes(job_ids);
    failure ojs_router.failure;
    node int;
    one_step boolean := cardinality(lease_ids) is distinct from cardinality(job_ids) and lease_ids is not null
        or cardinality(results) is distinct from cardinality(job_ids) and results is not null
        or homes[1] = all (homes) and homes <> '{}';
    got int := 0;
begin
    if one_step then
        node := coalesce(homes[1], ojs_router.random_node());
        begin
            return query select * from ojs_router.remote_ack_and_claim(node, worker, queue, job_ids, lease_ids, results,
                max, lease);
            get diagnostics got = row_count;
        exception when others or query_canceled then
            get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
                failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
            one_step := false;
            if failure.state = 'OJ300' and failure.detail like '%topic_not_found%' then
                perform ojs_router.check_queues(array[queue]); -- it may be on other nodes
            else
                -- A client's own id may name another node than the one that has the job.
                if failure.state = 'OJ300' then
                    homes := ojs_router.homes(job_ids, true);
                end if;
                if failure.state <> 'OJ300' or array_position(homes, null) > 0
                    or not exists (select from unnest(homes) h where h <> node) then
                    perform ojs_router.raise_failure(node, failure);
                end if;
            end if;
        end;
    end if;
    if one_step is not true then
        for i in 1..coalesce(cardinality(job_ids), 0) loop
            perform ojs.ack(job_ids[i], results[i], lease_ids[i], worker);
        end loop;
    end if;
    if (got >= max) is not true then
        begin
            return query select * from ojs.claim(queue, worker, max - got, lease);
        exception when others then
            if got = 0 and sqlstate <> '57P03' then
                raise;
            end if;
            raise warning 'jobs were completed, and no more claimed: %', sqlerrm;
        end;
    end if;
end $$;

-- A worker's registration is on the node of its name; its beats go there, and to the nodes of its jobs.
create function ojs_router.worker_node(worker text) returns int
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    nodes int[] := ojs_router.live_nodes();
begin
    perform ojs_router.check_any(nodes);
    return nodes[1 + (hashtextextended(coalesce(worker, ''), 0) & 2147483647) % cardinality(nodes)];
end $$;

create function ojs.beat(
    worker text, job_ids uuid[] default '{}', state text default 'running', info jsonb default '{}',
        lease interval default null,
    out directive text, out extended uuid[], out cancelled uuid[], out lost uuid[]
) returns record
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    own int := ojs_router.worker_node(worker);
    todo uuid[] := coalesce(job_ids, '{}');
    homes int[] := ojs_router.homes(todo);
    strays uuid[] := array(select j.id from unnest(todo, homes) j(id, home) where j.home is null);
    found int[];
    directives text[] := '{}';
    part record;
    answer record;
    failure ojs_router.failure;
begin
    if strays <> '{}' then -- ids of a client's own
        found := ojs_router.homes(strays, true);
        homes := array(select coalesce(j.home, found[array_position(strays, j.id)])
            from unnest(todo, homes) with ordinality j(id, home, n) order by j.n);
        if cardinality(ojs_router.live_nodes()) = (select count(*) from ojs_router.node where state <> 'removed') then
            homes := array(select coalesce(home, own) from unnest(homes) with ordinality h(home, n) order by n);
        end if;
    end if;
    extended := '{}'; cancelled := '{}'; lost := '{}';
    for round in 1..2 loop
        for part in
            select p.node, coalesce(array_agg(p.id order by p.n) filter (where p.n > 0), '{}') as ids
            from (
                select home as node, id, n from unnest(todo, homes) with ordinality j(id, home, n)
                union all select own, null, 0 where round = 1) p
            where p.node is not null group by 1 order by 1
        loop
            begin
                select * into answer from ojs_router.remote_beat(part.node, worker, part.ids, state, info, lease);
                directives := directives || answer.directive;
                extended := extended || answer.extended;
                cancelled := cancelled || answer.cancelled;
                lost := lost || answer.lost;
            exception when others or query_canceled then
                get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
                    failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
                if not ojs_router.is_down(failure) then
                    perform ojs_router.raise_failure(part.node, failure);
                end if;
                -- Its jobs are in none of the lists: they may be held still.
                perform ojs_router.remember_missing(part.node);
            end;
        end loop;
        exit when round = 2 or lost = '{}';
        -- A client's own id may name another node than the one that has the job.
        found := ojs_router.homes(lost, true);
        strays := array(select l.id from unnest(lost, found) l(id, node)
            where l.node <> homes[array_position(todo, l.id)]);
        exit when strays = '{}';
        homes := array(select found[array_position(lost, id)] from unnest(strays) with ordinality s(id, n) order by n);
        lost := array(select id from unnest(lost) with ordinality l(id, n) where id <> all (strays) order by n);
        todo := strays;
    end loop;
    directive := coalesce((select d from unnest(directives) d
        order by array_position(array['terminate', 'quiet', 'running'], d) limit 1), 'running');
end $$;

create function ojs.register_worker(worker text, info jsonb default '{}') returns jsonb
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    node int := ojs_router.worker_node(worker);
    failure ojs_router.failure;
begin
    return ojs_router.remote_register_worker(node, worker, info);
exception when others or query_canceled then
    get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
        failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
    perform ojs_router.raise_failure(node, failure);
end $$;

create function ojs.deregister_worker(worker text, release boolean default false) returns boolean
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    nodes int[] := ojs_router.live_nodes();
    failure ojs_router.failure;
begin
    perform ojs_router.check_any(nodes);
    for attempt in 1..4 loop
        begin
            return (select bool_or(r) from ojs_router.remote_deregister_worker(nodes, worker, release) r);
        exception when others or query_canceled then
            get stacked diagnostics failure.state = returned_sqlstate, failure.message = message_text,
                failure.detail = pg_exception_detail, failure.hint = pg_exception_hint;
            nodes := ojs_router.answering_after(nodes, failure, attempt);
            perform ojs_router.check_any(nodes);
        end;
    end loop;
end $$;
