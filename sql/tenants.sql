-- tenants.sql: who acts for which tenant. What follows from it is decided in src/queue/tenant.cpp.

-- The tenant that the caller acts for; null for none.
create function ojs_store.caller_tenant() returns text
language c stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_caller_tenant';

-- What a queue that the caller names is called in ojs_store.queue: QUEUE@TENANT for one who acts for a tenant.
create function ojs_store.stored_queue(name text) returns text
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_stored_queue';

-- The way back. Who acts for no tenant sees the stored name.
create function ojs_store.shown_queue(stored text) returns text
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_shown_queue';

create function ojs_store.is_tenant(name text) returns boolean
language c strict immutable parallel safe as 'MODULE_PATHNAME', 'ojs_is_tenant';

-- Whether the caller may see what belongs to this tenant (null: to none).
create function ojs_store.may_see_tenant(tenant text) returns boolean
language sql stable parallel unsafe
begin atomic -- parsed already: views call it for those who may not enter the schema
    select coalesce(ojs_store.caller_tenant() = $1, ojs_store.caller_tenant() is null);
end;

-- For what is about the whole system, and shows or moves what may be anybody's.
create function ojs_store.refuse_tenant(what text) returns void
language plpgsql stable parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if ojs_store.caller_tenant() is not null then
        perform ojs_store.raise('PERMISSION_DENIED', format('%s is not for one who acts for a tenant', what),
            jsonb_build_object('reason', 'tenant_not_allowed'),
            'Ask as a role that is bound to no tenant, without ojs.tenant and X-OJS-Tenant.');
    end if;
end $$;

-- A configuration with the members of another in place of its own; retry policies are merged.
create function ojs_store.merged_config(base jsonb, over jsonb) returns jsonb
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_merged_config';

create function ojs_store.check_binding(role name, tenant text) returns void
language plpgsql volatile parallel unsafe set search_path = pg_catalog, pg_temp as $$
begin
    if role is null or not exists (select from pg_roles r where r.rolname = role) then
        perform ojs_store.raise('INVALID_PAYLOAD', format('role "%s" does not exist', role), '{"field": "role"}',
            'Create the role first.');
    elsif tenant is null or not ojs_store.is_tenant(tenant) then
        perform ojs_store.raise('INVALID_PAYLOAD', 'tenant is no tenant', '{"field": "tenant"}',
            'Give 1 to 63 letters, digits, dots, underscores, colons or hyphens, the first a letter or a digit.');
    elsif pg_has_role(role, 'ojs_admin', 'member') then
        perform ojs_store.raise('INVALID_PAYLOAD', format('role "%s" is a superuser or a member of ojs_admin', role),
            '{"field": "role"}', 'Bind a role that administers nothing: an administrator sees all tenants.');
    end if;
end $$;

create function ojs.bind_tenant(role name, tenant text) returns void
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.refuse_tenant('ojs.bind_tenant()');
    perform ojs_store.check_binding(role, tenant);
    if current_setting('ojs.tenancy') = 'off' then
        perform ojs_store.raise('UNSUPPORTED_FEATURE', 'there are no tenants: ojs.tenancy is off',
            '{"field": "tenant"}', 'Set ojs.tenancy to optional or required for the database first, and connect anew.');
    end if;
    insert into ojs_store.tenant_role values (role, tenant) on conflict do nothing;
    perform ojs_store.record_audit('tenant_bound', role::text, null, null, jsonb_build_object('tenant', tenant));
end $$;
comment on function ojs.bind_tenant(name, text)
    is 'From now on a role, and its members, act for this tenant only, and for others that it is bound to';

create function ojs.unbind_tenant(role name, tenant text) returns boolean
language plpgsql volatile parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform ojs_store.refuse_tenant('ojs.unbind_tenant()');
    delete from ojs_store.tenant_role r where r.role = unbind_tenant.role::text and r.tenant = unbind_tenant.tenant;
    if not found then
        return false;
    end if;
    perform ojs_store.record_audit('tenant_unbound', role::text, null, jsonb_build_object('tenant', tenant), null);
    return true;
end $$;
comment on function ojs.unbind_tenant(name, text)
    is 'Takes a binding back; a role without any acts for whom it likes. False if there was none';

create view ojs.tenant_roles as
select r.role, r.tenant from ojs_store.tenant_role r where ojs_store.may_see_tenant(r.tenant);
comment on view ojs.tenant_roles is 'Which roles act for which tenants only';

-- What views ask by runs as the caller, so that it is the caller's rights that count wherever a view is read: in an
-- index and a materialized view, too. Only what reads tables runs as their owner, and that asks no rights.

-- The queues of a workflow, of which this is the outermost one.
create function ojs_store.workflow_queues(root uuid) returns bigint[]
language sql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select w.queues from ojs_store.workflow w where w.id = $1
$$;

-- Likewise of any workflow that an event names.
create function ojs_store.subject_queues(subject text) returns bigint[]
language sql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select ojs_store.workflow_queues(w.root) from ojs_store.workflow w
    where w.id = case when subject ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then subject::uuid end
$$;

create function ojs_store.cron_template(name text) returns jsonb
language sql stable parallel unsafe security definer set search_path = pg_catalog, pg_temp as $$
    select c.job from ojs_store.cron c where c.name = $1
$$;

-- Whether the caller may see a workflow, of which this is the outermost one.
create function ojs_store.may_read_workflow(root uuid) returns boolean
language sql stable parallel unsafe
begin atomic
    select ojs_store.may_use_queues(ojs_store.workflow_queues(root), 'read');
end;

-- Whether the caller may see a cron entry of this job.
create function ojs_store.may_read_cron(job jsonb) returns boolean
language sql stable parallel unsafe
begin atomic
    select ojs_store.may_see_tenant(job #>> '{meta,tenant_id}')
        and ojs_store.may_use_queue(ojs_store.queue_of(job)
            || coalesce('@' || ojs_store.caller_tenant(), ''), 'read');
end;

-- Whether the caller may see events of a workflow or a cron entry: those of queues that it may read. An event that has
-- no queues is older than 0.2.0, or has too many for one event: its workflow or entry is asked, and where that is gone
-- nothing tells whose it was.
create function ojs_store.may_see(type text, subject text, queues jsonb) returns boolean
language sql stable parallel unsafe
begin atomic
    select case
        when queues is not null then not exists (select from jsonb_array_elements_text(queues) as q(id)
            where not ojs_store.may_use_queue(q.id::bigint, 'read'))
        else coalesce(case when type like 'cron.%' then (select ojs_store.may_read_cron(c.template)
                    from ojs_store.cron_template(subject) as c (template) where c.template is not null)
                else ojs_store.may_use_queues(ojs_store.subject_queues(subject), 'read') end,
            ojs_store.caller_tenant() is null
                and (select r.rolsuper from pg_roles r where r.rolname = ojs_store.calling_role()))
        end;
end;
