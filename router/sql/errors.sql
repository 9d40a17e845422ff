-- errors.sql: errors of the router, and errors of nodes as if the caller had asked the node.

-- As ojs raises them: the code, whether to try again and the details as JSON.
create function ojs_router.raise(code text, message text, details jsonb, hint text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    raise exception '%', message using hint = hint,
        errcode = case code when 'NOT_FOUND' then 'OJ300' when 'UNSUPPORTED_FEATURE' then 'OJ700'
            when 'UNAVAILABLE' then '57P03' else 'OJ100' end,
        detail = format('{"code":%s,"retryable":%s,"details":%s}', to_json(code), to_json(code = 'UNAVAILABLE'),
            details);
end $$;

create function ojs_router.acts_for_tenant() returns boolean language sql stable parallel safe
begin atomic
    select coalesce(current_setting('ojs.tenant', true), '') <> '';
end;

-- A tenant that the session acts for is known to no node, so who says one is refused: the call would be for everybody.
create function ojs_router.check_tenant() returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if ojs_router.acts_for_tenant() then
        perform ojs_router.raise('UNSUPPORTED_FEATURE', 'a router acts for no tenant, and ojs.tenant is set',
            '{"feature": "tenants", "field": "ojs.tenant"}',
            'Nodes see one role, whoever calls. Reset ojs.tenant, or connect to a node for what is a tenant''s.');
    end if;
end $$;

-- Whether a failure means that the node cannot be reached, is starting, ending or a standby. What PL/Proxy itself
-- complains of has a prefix of its own and XX000; a connection that breaks has neither severity nor text.
create function ojs_router.is_down(failure ojs_router.failure) returns boolean
language sql immutable parallel safe
begin atomic
    select (failure).state in ('53300', '25006') or (failure).state like '57P%' or (failure).state like '08%'
        or (failure).state = 'XX000' and ((failure).message like 'PL/Proxy function %'
            or (failure).message like '%] REMOTE (null): %');
end;

-- Whether a pooler gave up on the node: it waited for as long as it was told to, or had just done so for somebody else.
-- Or PL/Proxy did, for a call that was cancelled.
create function ojs_router.timed_out(failure ojs_router.failure) returns boolean
language sql immutable parallel safe
begin atomic
    select (failure).message like 'PL/Proxy function %: query timeout' or (failure).state like '08%'
        and (failure).message ~ ('] REMOTE FATAL: '
            '(query.timeout|query_wait_timeout|server login has been failing|.*cannot connect to server)');
end;

-- Whether the node has cancelled the call, of its own accord; else a cancel is for the caller's session.
create function ojs_router.cancelled_there(failure ojs_router.failure) returns boolean
language sql immutable parallel safe
begin atomic
    select (failure).state = '57014' and (failure).message like '%] REMOTE %';
end;

-- Whether nothing can have happened: it failed before the call was sent, or the node writes nothing.
create function ojs_router.never_sent(failure ojs_router.failure) returns boolean
language sql immutable parallel safe
begin atomic
    select (failure).state = 'XX000'
        and ((failure).message ~ '^PL/Proxy function [^:]*: [[][^]]*[]] PQconnect(Poll|Start): '
            or (failure).message like '%: connect timeout to: %')
        or (failure).state = '25006'
        or ojs_router.timed_out(failure) and (failure).message !~ ': query.timeout';
end;

-- Raises it again: an error of the node as the node worded it, and for a node that is down, UNAVAILABLE. The address
-- of a node is not for callers. `done`: the nodes on which the same call has been carried out before.
create function ojs_router.raise_failure(node int, failure ojs_router.failure, done int[] default '{}') returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
declare
    repeat text := case when done <> '{}' then format(' It is done on node %s: repeat the call for the others.',
        array_to_string(done, ', ')) else '' end;
begin
    if ojs_router.is_down(failure) then
        raise log 'ojs_router: node % does not answer: %', node, failure.message;
        perform ojs_router.raise('UNAVAILABLE', format('node %s does not answer', node),
            jsonb_build_object('node', node) || case when done <> '{}' then jsonb_build_object('done', done)
                else '{}' end,
            case when repeat <> '' then ltrim(repeat)
                when ojs_router.never_sent(failure) then 'Nothing was done. Try again later.'
                else 'The call may have been carried out. Try again later; a push with an id of its own can be '
                    'repeated.' end);
    elsif ojs_router.cancelled_there(failure) then
        raise log 'ojs_router: %', failure.message;
        perform ojs_router.raise('UNAVAILABLE', format('a node has cancelled the call: %s',
            regexp_replace(failure.message, '^.*?] REMOTE [^:]*: ', '')), '{}',
            'Nothing is done there. On nodes: alter role ojs_router set statement_timeout = 0.' || repeat);
    end if;
    raise exception '%', regexp_replace(failure.message, '^.*?] REMOTE [^:]*: ', '') using errcode = failure.state,
        detail = regexp_replace(coalesce(failure.detail, ''), '^Remote detail: ', ''),
        hint = ltrim(regexp_replace(coalesce(failure.hint, ''), '^Remote hint: ', '') || repeat);
end $$;
