/*
 * access.cpp: see access.h.
 */
#include "ojs/queue/access.h"

#include "ojs/job/hooks.h"
#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/json.h"
#include "ojs/pg/session_cache.h"
#include "ojs/pg/settings.h"
#include "ojs/store/small_table.h"
#include "ojs/queue/tenant.h"

namespace ojs
{

namespace
{

/* By Right. */
struct RightNames {
    const char *name;   /* in SQL */
    const char *reason; /* in the details of an error */
};
constexpr RightNames rights[n_rights] = {
    {"produce", "producer_not_allowed"},
    {"work", "worker_not_allowed"},
    {"read", "reader_not_allowed"},
    {"cancel", "canceller_not_allowed"},
    {"administer", "administrator_not_allowed"},
};

const char *
reason_of(Right right)
{
    return rights[static_cast<int>(right)].reason;
}

const char *
setting_of(Right right)
{
    return role_settings[static_cast<int>(right)];
}

bool
has_role(Oid role, std::string_view name)
{
    NameData given = {};
    if (name.size() >= sizeof given.data)
        return false;
    memcpy(given.data, name.data(), name.size());
    Oid oid = get_role_oid(given.data, true);
    return OidIsValid(oid) && has_privs_of_role(role, oid);
}

/* Without a list, everybody is on it. */
bool
is_listed(const Jsonb *list, Oid role)
{
    bool listed = list == nullptr;
    if (list != nullptr)
        each_element(root_of(list), [&](const JsonbValue &element) {
            std::string_view name = text_of(element);
            listed = listed || name == "*" || has_role(role, name);
        });
    return listed;
}

/* Superusers, the extension's owner, and who administers the queue. */
bool
may_do_all(const Queue &queue, Oid role)
{
    if (superuser_arg(role) || role == store::owner())
        return true;
    const Jsonb *administrators = queue.roles[static_cast<int>(Right::administer)];
    return has_role(role, "ojs_admin") && is_listed(administrators, role);
}

/* --- whether any queue has lists --- */

bool lists_in_use;
SessionCache lists_known; /* of lists_in_use */

/* A revision that is outdated counts as well: it will be removed. */
void
look_for_lists()
{
    constexpr int config = 6; /* the column of ojs_store.queue */
    lists_in_use = false;
    store::each_row(store::Rel::queue, [](TupleTableSlot *slot) {
        bool null;
        JsonbValue list;
        Jsonb *json = DatumGetJsonbP(slot_getattr(slot, config, &null));
        for (const char *setting : role_settings)
            lists_in_use |= find_member(root_of(json), setting, list) && is_array(list);
        return !lists_in_use;
    });
}

const char *
hint_for(Right right)
{
    return right == Right::produce
               ? "Push to another queue, or have an administrator add a role of yours to the queue's producers."
               : psprintf("Have an administrator add a role of yours to the queue's %s.", setting_of(right));
}

[[noreturn]] void
raise_queue_denied(const Queue &queue, Right right)
{
    raise(Code::permission_denied,
          Details().add("field", "queue").add("queue", queue.name).add("reason", reason_of(right)), hint_for(right),
          right == Right::produce ? "queue \"%s\" does not take jobs of this role"
                                  : "queue \"%s\" is not for this role",
          queue.name);
}

} // namespace

void
raise_no_job(const pg_uuid_t &id)
{
    raise(Code::not_found, Details().add("resource_type", "job").add("resource_id", id).add("job_id", id),
          "Check the id; finished jobs are removed after their retention.", "job %s does not exist",
          DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&id))));
}

void
raise_no_queue(std::string_view shown)
{
    validate_queue_name(shown); /* what cannot be the name of a queue is a mistake of another kind */
    raise(Code::not_found,
          Details()
              .add("resource_type", "queue")
              .add("resource_id", shown)
              .add("queue", shown)
              .add("reason", "topic_not_found"),
          "Push to the queue, or create it with ojs.create_queue(name).", "queue \"%.*s\" does not exist",
          static_cast<int>(shown.size()), shown.data());
}

void
raise_job_denied(const pg_uuid_t &job_id, Right right)
{
    raise(Code::permission_denied, Details().add("job_id", job_id).add("reason", reason_of(right)),
          psprintf("Have an administrator add a role of yours to the %s of the job's queue.", setting_of(right)),
          "the queue of job %s is not for this role",
          DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&job_id))));
}

bool
may_use_queue(const Queue &queue, Right right, Oid role)
{
    if (!queue.restricted || may_do_all(queue, role))
        return true;
    const Jsonb *producers = queue.roles[static_cast<int>(Right::produce)];
    const Jsonb *list = queue.roles[static_cast<int>(right)];
    switch (right) {
    case Right::administer:
        return list == nullptr; /* whoever was granted the function */
    case Right::cancel:
        return is_listed(list != nullptr ? list : producers, role);
    case Right::read: /* observers see, and workers are given, all jobs anyway */
        if (list == nullptr && (has_role(role, "ojs_observer") || has_role(role, "ojs_worker")))
            return true;
        return is_listed(list != nullptr ? list : producers, role);
    default:
        return is_listed(list, role);
    }
}

bool
may_use_queue(const Queue &queue, Right right)
{
    return !is_foreign(queue) && (!queue.restricted || may_use_queue(queue, right, GetUserId()));
}

bool
may_use_queue(int64 queue, Right right)
{
    const Queue *found = find_queue(queue);
    return found == nullptr ? !is_foreign(queue) : may_use_queue(*found, right);
}

void
check_queue(const Queue &queue, Right right)
{
    if (is_foreign(queue))
        raise_no_queue(shown_queue(queue.name));
    if (!may_use_queue(queue, right))
        raise_queue_denied(queue, right);
}

void
check_use_of_job(const Queue &queue, const pg_uuid_t &job_id, Right right)
{
    if (is_foreign(queue))
        raise_no_job(job_id);
    if (!may_use_queue(queue, right))
        raise_job_denied(job_id, right);
}

void
check_use_of_job(int64 queue, const pg_uuid_t &job_id, Right right)
{
    if (is_foreign(queue))
        raise_no_job(job_id);
    if (const Queue *found = find_queue(queue))
        check_use_of_job(*found, job_id, right);
}

bool
may_know_state(int64 queue)
{
    if (is_foreign(queue))
        return false;
    const Queue *found = find_queue(queue);
    if (found == nullptr || !found->restricted)
        return true;
    for (Right right : {Right::read, Right::work, Right::cancel})
        if (may_use_queue(*found, right))
            return true;
    return false;
}

/* A hook may read, and at a push also change, what it is given. */
static bool
role_may_see(const JsonbContainer *job, bool at_push, Oid role)
{
    JsonbValue options, name;
    bool is_named = find_member(job, "queue", name) || (find_member(job, "options", options) && is_object(options) &&
                                                        find_member(options.val.binary.data, "queue", name));
    JsonbValue meta, tenant;
    bool has_tenant = find_member(job, "meta", meta) && is_object(meta) &&
                      find_member(meta.val.binary.data, "tenant_id", tenant) && tenant.type == jbvString;
    if (!may_see_tenant(has_tenant ? text_of(tenant) : std::string_view(), role))
        return false;
    const Queue *queue = find_queue(queue_id(is_named && name.type == jbvString ? text_of(name) : "default"));
    return queue == nullptr ||
           (may_use_queue(*queue, Right::read, role) && (!at_push || may_use_queue(*queue, Right::produce, role)));
}

void
access_init()
{
    hook_may_see = role_may_see;
}

/*
 * In a security-restricted operation (an expression of an index, a materialized view, a hook of another role)
 * PostgreSQL has changed the user, too, so the role that the session has taken on is not who calls. Nothing tells who
 * does.
 */
Oid
calling_role()
{
    bool in_our_function = InLocalUserIdChange() && GetUserId() == store::owner();
    if (!in_our_function)
        return GetUserId();
    if (InSecurityRestrictedOperation())
        raise(Code::permission_denied, Details().add("reason", "restricted_operation"),
              "Call the function in a statement of its own: not in a hook, nor in an index or a materialized view.",
              "cannot tell whose rights count within a security-restricted operation");
    return GetOuterUserId();
}

Right
right_named(const text *name)
{
    for (int i = 0; i < n_rights; i++)
        if (view(name) == rights[i].name)
            return static_cast<Right>(i);
    elog(ERROR, "there is no such right");
}

bool
calling_role_may(int64 queue, Right right)
{
    if (is_foreign(queue))
        return false;
    const Queue *found = find_queue(queue);
    return found == nullptr || !found->restricted || may_use_queue(*found, right, calling_role());
}

} // namespace ojs

using namespace ojs;

/* ojs_store.use_queue(name text, right_name text) returns text: the name, if the caller may do so with this queue */
OJS_FUNCTION(ojs_use_queue)
{
    Right right = right_named(PG_GETARG_TEXT_PP(1));
    /* By its id: the lists of a queue that was dropped go on for its jobs, and for who makes it anew. */
    std::string_view name = view(PG_GETARG_TEXT_PP(0));
    if (is_foreign(stored_queue(name)))
        raise_no_queue(name);
    if (right == Right::administer && has_tenants() && !caller_tenant().empty())
        raise(Code::permission_denied, Details().add("field", "queue").add("reason", "tenant_not_allowed"),
              "Ask as a role that is bound to no tenant, without ojs.tenant and X-OJS-Tenant.",
              "who acts for a tenant administers no queue");
    const Queue *queue = find_queue(queue_id(name));
    if (queue != nullptr && queue->restricted && !may_use_queue(*queue, right, calling_role()))
        raise_queue_denied(*queue, right);
    PG_RETURN_DATUM(PG_GETARG_DATUM(0));
}

/* ojs_store.may_use_queue(id bigint, right_name text) returns boolean */
OJS_FUNCTION(ojs_may_use_queue)
{
    PG_RETURN_BOOL(calling_role_may(PG_GETARG_INT64(0), right_named(PG_GETARG_TEXT_PP(1))));
}

/* ojs_store.may_use_queue(name text, right_name text) returns boolean: by its stored name */
OJS_FUNCTION(ojs_may_use_queue_named)
{
    std::string_view name = view(PG_GETARG_TEXT_PP(0));
    PG_RETURN_BOOL(!is_foreign(name) && calling_role_may(stored_queue_id(name), right_named(PG_GETARG_TEXT_PP(1))));
}

/* ojs_store.role_may_use_queue(role oid, name text, right_name text) returns boolean */
OJS_FUNCTION(ojs_role_may_use_queue)
{
    const Queue *queue = find_queue(stored_queue_id(view(PG_GETARG_TEXT_PP(1))));
    PG_RETURN_BOOL(queue == nullptr || may_use_queue(*queue, right_named(PG_GETARG_TEXT_PP(2)), PG_GETARG_OID(0)));
}

/* ojs_store.may_use_queues(ids bigint[], right_name text) returns boolean: all of them */
OJS_FUNCTION(ojs_may_use_queues)
{
    Bigints ids = bigints_arg(fcinfo, 0);
    Right right = right_named(PG_GETARG_TEXT_PP(1));
    PG_RETURN_BOOL(
        std::all_of(ids.values, ids.values + ids.n, [right](int64 id) { return calling_role_may(id, right); }));
}

/* ojs_store.calling_role() returns name */
OJS_FUNCTION(ojs_calling_role)
{
    PG_RETURN_DATUM(DirectFunctionCall1(namein, CStringGetDatum(GetUserNameFromId(calling_role(), false))));
}

/* ojs_store.if_allowed(value anyelement, allowed boolean) returns anyelement: null unless it is allowed */
OJS_FUNCTION(ojs_if_allowed)
{
    if (!PG_GETARG_BOOL(1))
        PG_RETURN_NULL();
    PG_RETURN_DATUM(PG_GETARG_DATUM(0));
}

/*
 * Support for the planner: as long as no queue has lists and there are no tenants, the value is all that there is to
 * it, and what is wanted of a view is planned as if it knew no rights. Such a plan depends on the table of queues, as
 * one that names it does: a change of a queue's settings ends it.
 */
OJS_FUNCTION(ojs_if_allowed_support)
{
    auto *request = reinterpret_cast<SupportRequestSimplify *>(PG_GETARG_POINTER(0));
    if (!IsA(request, SupportRequestSimplify) || request->root == nullptr)
        PG_RETURN_POINTER(nullptr);
    PlannerGlobal *plan = request->root->glob;
    plan->relationOids = list_append_unique_oid(plan->relationOids, store::relation_oid(store::Rel::queue));
    lists_known.refresh(store::catalog_generation(store::Rel::queue), look_for_lists);
    PG_RETURN_POINTER(lists_in_use || has_tenants() ? nullptr : linitial(request->fcall->args));
}
