/*
 * tenant.cpp: see tenant.h. Who is bound to what: ojs_store.tenant_role, written by sql/tenants.sql.
 */
#include "ojs/queue/tenant.h"

#include "ojs/queue/queue.h"
#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/json.h"
#include "ojs/pg/settings.h"
#include "ojs/queue/access.h"
#include "ojs/store/small_table.h"

namespace ojs
{

bool (*works_for_others)();
bool for_everybody;

namespace
{

constexpr const char *member = "tenant_id"; /* of meta */

struct Binding {
    NameData role;
    char tenant[max_tenant + 1];
};

store::SessionRows<Binding> bindings;

/* Of one pair of roles: the tenants of the calling one, or else of the session's. */
struct Allowed {
    Oid caller;
    Oid session;
    const Binding **to;
    int n;
};
Allowed allowed;
SessionCache allowed_cache;
uint64 role_changes;

extern "C" void
roles_changed(Datum, int, uint32)
{
    role_changes++;
}

bool
keep_binding(const Datum *values, const bool *, Binding &binding)
{
    std::string_view role = view(DatumGetTextPP(values[0]));
    std::string_view tenant = view(DatumGetTextPP(values[1]));
    binding = {};
    memcpy(NameStr(binding.role), role.data(), std::min<size_t>(role.size(), NAMEDATALEN - 1));
    memcpy(binding.tenant, tenant.data(), std::min(tenant.size(), max_tenant));
    return true;
}

/* Another look moves the rows: whom they allow what is found anew. */
void
read_bindings()
{
    if (bindings.refresh(store::Rel::tenant_role, 2, keep_binding))
        allowed_cache.valid = false;
}

bool
binds(const Binding &binding, Oid role)
{
    Oid bound = get_role_oid(NameStr(binding.role), true);
    return OidIsValid(bound) && is_member_of_role_nosuper(role, bound);
}

/* A member of a bound role is bound too: it may have its rights without SET ROLE. */
int
bound_to(Oid role, const Binding **to)
{
    int n = 0;
    if (superuser_arg(role))
        return 0;
    for (const Binding &binding : bindings)
        if (binds(binding, role))
            to[n++] = &binding;
    return n;
}

void
look_up_allowed()
{
    if (allowed.to != nullptr)
        pfree(allowed.to);
    allowed.to = nullptr;
    allowed.to = static_cast<const Binding **>(MemoryContextAlloc(TopMemoryContext, sizeof(Binding *) * bindings.n));
    allowed.n = bound_to(allowed.caller, allowed.to);
    if (allowed.n == 0) /* it may have taken on another role, which it is a member of too */
        allowed.n = bound_to(allowed.session, allowed.to);
}

const Allowed &
allowed_tenants()
{
    Oid caller = calling_role();
    Oid session = GetSessionUserId();
    if (caller != allowed.caller || session != allowed.session)
        allowed_cache.valid = false;
    allowed.caller = caller;
    allowed.session = session;
    allowed_cache.refresh(role_changes, look_up_allowed);
    return allowed;
}

[[noreturn]] void
raise_not_bound(std::string_view tenant)
{
    raise(Code::permission_denied, Details().add("tenant_id", tenant).add("reason", "tenant_not_allowed"),
          "Name a tenant that this role is bound to, or none if that is one only.",
          "this role may not act for tenant %s", pnstrdup(tenant.data(), tenant.size()));
}

Jsonb *
with_tenant(Jsonb *meta, std::string_view tenant)
{
    ObjectBuilder out;
    if (meta != nullptr)
        each_member(root_of(meta), [&out](std::string_view key, const JsonbValue &value) { out.add(key, value); });
    return out.add(member, tenant).finish();
}

/* What meta says; empty for nothing. */
std::string_view
stated_tenant(const Jsonb *meta)
{
    JsonbValue value;
    if (meta == nullptr || !is_object(meta) || !find_member(root_of(meta), member, value))
        return {};
    if (value.type != jbvString || !is_tenant(text_of(value)))
        raise_field(
            Code::invalid_metadata, "meta.tenant_id",
            "Give 1 to 63 letters, digits, dots, underscores, colons or hyphens, the first a letter or a digit.",
            "meta.tenant_id is no tenant");
    return text_of(value);
}

/* Says in meta whose job it is, if the caller acts for a tenant. */
std::string_view
name_tenant(Envelope &envelope)
{
    std::string_view mine = caller_tenant();
    std::string_view stated = stated_tenant(envelope.meta);
    if (mine.empty() || mine == stated)
        return stated;
    if (!stated.empty())
        raise(Code::invalid_payload, Details().add("field", "meta.tenant_id").add("reason", "tenant_conflict"),
              "Leave meta.tenant_id out, or act for that tenant.",
              "meta.tenant_id is not the tenant that this call acts for");
    mine = {pnstrdup(mine.data(), mine.size()), mine.size()};
    if (envelope.meta == nullptr || is_object(envelope.meta)) /* else it is refused soon */
        envelope.meta = with_tenant(envelope.meta, mine);
    return mine;
}

/* Puts a job that is pushed into its tenant's part of the queue. */
void
to_tenant(Envelope &envelope)
{
    std::string_view tenant = name_tenant(envelope);
    if (!tenant_in(envelope.queue).empty())
        raise_field(Code::invalid_queue, "queue", "Name the queue alone, and the tenant in meta.tenant_id.",
                    "queue must not name a tenant");
    if (tenant.empty() && *settings.default_tenant != '\0') {
        tenant = settings.default_tenant;
        if (envelope.meta == nullptr || is_object(envelope.meta))
            envelope.meta = with_tenant(envelope.meta, tenant);
    }
    if (tenant.empty() && settings.tenancy == tenancy_required && !for_everybody && !works_for_others())
        raise(Code::invalid_metadata, Details().add("field", "meta.tenant_id").add("reason", "tenant_missing"),
              "Set meta.tenant_id, ojs.tenant or the header X-OJS-Tenant.",
              "meta.tenant_id is missing: the job names no tenant");
    if (tenant.empty())
        return;
    if (envelope.queue.size() + 1 + tenant.size() > max_queue_name)
        raise(Code::queue_name_too_long,
              Details().add("field", "queue").add("maximum_bytes", static_cast<int64>(max_queue_name)),
              "Shorten the name of the queue, or that of the tenant.",
              "the names of queue and tenant are longer than %zu bytes together", max_queue_name - 1);
    envelope.queue = psprintf("%.*s@%.*s", static_cast<int>(envelope.queue.size()), envelope.queue.data(),
                              static_cast<int>(tenant.size()), tenant.data());
}

} // namespace

std::string_view
caller_tenant()
{
    if (!has_tenants() || for_everybody || works_for_others())
        return {};
    read_bindings();
    std::string_view wanted = settings.tenant;
    if (bindings.n == 0)
        return wanted;
    const Allowed &roles = allowed_tenants();
    if (roles.n == 0)
        return wanted;
    if (wanted.empty() && roles.n == 1)
        return roles.to[0]->tenant;
    if (wanted.empty())
        raise(Code::permission_denied, Details().add("reason", "tenant_not_allowed"),
              "Choose one with ojs.tenant, or the header X-OJS-Tenant.", "this role is bound to several tenants");
    for (int i = 0; i < roles.n; i++)
        if (wanted == roles.to[i]->tenant)
            return wanted;
    raise_not_bound(wanted);
}

bool
is_foreign(std::string_view stored)
{
    if (!has_tenants())
        return false;
    std::string_view mine = caller_tenant();
    return !mine.empty() && tenant_in(stored) != mine;
}

bool
is_foreign(const Queue &queue)
{
    return has_tenants() && is_foreign(std::string_view(queue.name));
}

bool
is_foreign(int64 queue)
{
    if (!has_tenants() || caller_tenant().empty())
        return false;
    const Queue *found = find_queue(queue);
    return found == nullptr || is_foreign(*found);
}

std::string_view
beside(std::string_view stored, std::string_view name)
{
    std::string_view tenant = tenant_in(stored);
    if (tenant.empty() || name.empty() || !tenant_in(name).empty())
        return name;
    return psprintf("%.*s@%.*s", static_cast<int>(name.size()), name.data(), static_cast<int>(tenant.size()),
                    tenant.data());
}

std::string_view
stored_queue(std::string_view name)
{
    if (!has_tenants() || name.find('@') != name.npos || name.empty() || name.front() == '_')
        return name;
    std::string_view mine = caller_tenant();
    return mine.empty() ? name
                        : psprintf("%.*s@%.*s", static_cast<int>(name.size()), name.data(),
                                   static_cast<int>(mine.size()), mine.data());
}

static const text *
of_tenant(const text *worker, std::string_view tenant)
{
    std::string_view name = view(worker);
    return tenant.empty() ? worker
                          : cstring_to_text(psprintf("%.*s@%.*s", static_cast<int>(name.size()), name.data(),
                                                     static_cast<int>(tenant.size()), tenant.data()));
}

const text *
stored_worker(const text *worker)
{
    return has_tenants() ? of_tenant(worker, caller_tenant()) : worker;
}

const text *
stored_worker(const text *worker, int64 queue)
{
    const Queue *found = has_tenants() ? find_queue(queue) : nullptr;
    return found != nullptr ? of_tenant(worker, tenant_in(found->name)) : worker;
}

bool
may_see_tenant(std::string_view tenant, Oid role)
{
    if (!has_tenants())
        return true;
    read_bindings();
    bool bound = false;
    for (const Binding &binding : bindings)
        if (!superuser_arg(role) && binds(binding, role)) {
            if (tenant == binding.tenant)
                return true;
            bound = true;
        }
    return !bound;
}

void
tenant_init()
{
    give_tenant = to_tenant;
    CacheRegisterSyscacheCallback(AUTHMEMROLEMEM, roles_changed, 0);
    CacheRegisterSyscacheCallback(AUTHOID, roles_changed, 0);
}

} // namespace ojs

using namespace ojs;

static Datum
text_or_nothing(FunctionCallInfo fcinfo, std::string_view value)
{
    if (value.empty())
        PG_RETURN_NULL();
    PG_RETURN_TEXT_P(cstring_to_text_with_len(value.data(), static_cast<int>(value.size())));
}

/* ojs_store.caller_tenant() returns text: null for none */
OJS_FUNCTION(ojs_caller_tenant)
{
    return text_or_nothing(fcinfo, caller_tenant());
}

/* ojs_store.queue_id(name text) returns bigint */
OJS_FUNCTION(ojs_queue_id)
{
    PG_RETURN_INT64(queue_id(view(PG_GETARG_TEXT_PP(0))));
}

/* ojs_store.stored_queue(name text) returns text */
OJS_FUNCTION(ojs_stored_queue)
{
    return text_or_nothing(fcinfo, stored_queue(view(PG_GETARG_TEXT_PP(0))));
}

/* ojs_store.shown_queue(stored text) returns text: the name without its tenant, for one who acts for a tenant */
OJS_FUNCTION(ojs_shown_queue)
{
    std::string_view stored = view(PG_GETARG_TEXT_PP(0));
    return text_or_nothing(fcinfo, has_tenants() && !caller_tenant().empty() ? shown_queue(stored) : stored);
}

/* ojs_store.stored_worker(name text) returns text */
OJS_FUNCTION(ojs_stored_worker)
{
    PG_RETURN_TEXT_P(stored_worker(PG_GETARG_TEXT_PP(0)));
}

/* ojs_store.is_tenant(name text) returns boolean */
OJS_FUNCTION(ojs_is_tenant)
{
    PG_RETURN_BOOL(is_tenant(view(PG_GETARG_TEXT_PP(0))));
}
