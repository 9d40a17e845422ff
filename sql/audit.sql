-- audit.sql: what administrators have done, and who, from where. Workers and producers write nothing here.

-- A value that is stored beside others has a bound.
create function ojs_store.bounded(value jsonb) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select case when octet_length(value::text) > 16384
        then jsonb_build_object('truncated', true, 'bytes', octet_length(value::text))
        else value end
$$;

-- In the caller's transaction: what is rolled back was not done.
create function ojs_store.record_audit(act text, subject text, before jsonb, after jsonb, detail jsonb) returns void
language sql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
    insert into ojs_store.audit (id, at, act, subject, session_role, role, address, application, before, after, detail)
    values (gen_random_uuid(), ojs_store.now(), left(act, 64), left(subject, 512), session_user,
        ojs_store.calling_role(), inet_client_addr(),
        left(current_setting('application_name'), 255), ojs_store.bounded(before), ojs_store.bounded(after),
            ojs_store.bounded(detail))
$$;

create view ojs.audit with (security_barrier) as
select a.at, a.act, a.subject, a.session_role, a.role, a.address, a.application, a.before, a.after, a.detail, a.id
from ojs_store.audit a
cross join lateral (select coalesce(a.detail ->> 'queue', a.detail #>> '{filter,queue}') as name offset 0) queue
where queue.name is null and ojs_store.caller_tenant() is null
    or ojs_store.may_use_queue(queue.name, 'administer')
    or ojs_store.may_use_queue(queue.name, 'read');
comment on view ojs.audit
    is 'What administrators have done: when, who, from where, and what was before and after; for ojs_admin';
