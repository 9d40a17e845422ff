/*
 * access.cpp: see access.h.
 */
#include "ojs/queue/access.h"

#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/json.h"
#include "ojs/store/store.h"

namespace ojs
{

namespace
{

/* By Right. */
struct RightNames {
    const char *name;    /* in SQL */
    const char *setting; /* of the queue */
    const char *reason;  /* in the details of an error */
};
constexpr RightNames rights[n_rights] = {
    {"produce", "producers", "producer_not_allowed"},
    {"work", "workers", "worker_not_allowed"},
    {"read", "readers", "reader_not_allowed"},
    {"cancel", "cancellers", "canceller_not_allowed"},
    {"administer", "administrators", "administrator_not_allowed"},
};

const RightNames &
names_of(Right right)
{
    return rights[static_cast<int>(right)];
}

bool
has_role(Oid role, const char *name)
{
    Oid oid = get_role_oid(name, true);
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
            listed = listed || name == "*" || has_role(role, pnstrdup(name.data(), name.size()));
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

const char *
hint_for(Right right)
{
    return right == Right::produce
               ? "Push to another queue, or have an administrator add a role of yours to the queue's producers."
               : psprintf("Have an administrator add a role of yours to the queue's %s.", names_of(right).setting);
}

[[noreturn]] void
raise_queue_denied(const Queue &queue, Right right)
{
    raise(
        Code::permission_denied,
        Details().add("field", "queue").add("queue", queue.name).add("reason", names_of(right).reason), hint_for(right),
        right == Right::produce ? "queue \"%s\" does not take jobs of this role" : "queue \"%s\" is not for this role",
        queue.name);
}

} // namespace

void
raise_job_denied(const pg_uuid_t &job_id, Right right)
{
    raise(Code::permission_denied, Details().add("job_id", job_id).add("reason", names_of(right).reason),
          psprintf("Have an administrator add a role of yours to the %s of the job's queue.", names_of(right).setting),
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
    return !queue.restricted || may_use_queue(queue, right, GetUserId());
}

bool
may_use_queue(int64 queue, Right right)
{
    const Queue *found = find_queue(queue);
    return found == nullptr || may_use_queue(*found, right);
}

void
check_queue(const Queue &queue, Right right)
{
    if (!may_use_queue(queue, right))
        raise_queue_denied(queue, right);
}

void
check_use_of_job(const Queue &queue, const pg_uuid_t &job_id, Right right)
{
    if (!may_use_queue(queue, right))
        raise_job_denied(job_id, right);
}

void
check_use_of_job(int64 queue, const pg_uuid_t &job_id, Right right)
{
    if (const Queue *found = find_queue(queue))
        check_use_of_job(*found, job_id, right);
}

bool
may_know_state(int64 queue)
{
    const Queue *found = find_queue(queue);
    if (found == nullptr || !found->restricted)
        return true;
    for (Right right : {Right::read, Right::work, Right::cancel})
        if (may_use_queue(*found, right))
            return true;
    return false;
}

/* What runs for maintenance of an object, as for the expression of an index, runs for the object's owner. */
Oid
calling_role()
{
    bool in_our_function = InLocalUserIdChange() && GetUserId() == store::owner() && !InSecurityRestrictedOperation();
    return in_our_function ? GetOuterUserId() : GetUserId();
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
    const Queue *queue = find_queue(queue_id(view(PG_GETARG_TEXT_PP(0))));
    if (queue != nullptr && queue->restricted && !may_use_queue(*queue, right, calling_role()))
        raise_queue_denied(*queue, right);
    PG_RETURN_DATUM(PG_GETARG_DATUM(0));
}

/* ojs_store.may_use_queue(id bigint, right_name text) returns boolean */
OJS_FUNCTION(ojs_may_use_queue)
{
    PG_RETURN_BOOL(calling_role_may(PG_GETARG_INT64(0), right_named(PG_GETARG_TEXT_PP(1))));
}

/* ojs_store.may_use_queue(name text, right_name text) returns boolean */
OJS_FUNCTION(ojs_may_use_queue_named)
{
    PG_RETURN_BOOL(calling_role_may(queue_id(view(PG_GETARG_TEXT_PP(0))), right_named(PG_GETARG_TEXT_PP(1))));
}

/* ojs_store.calling_role() returns name */
OJS_FUNCTION(ojs_calling_role)
{
    PG_RETURN_DATUM(DirectFunctionCall1(namein, CStringGetDatum(GetUserNameFromId(calling_role(), false))));
}
