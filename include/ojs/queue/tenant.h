/*
 * tenant.h: whom a call acts for. Beside access.h the only place that decides; nothing of it counts with ojs.tenancy
 * off.
 *
 * A tenant's jobs of a queue are in a queue of their own, whose stored name is QUEUE@TENANT (settings.h): so claims,
 * counts, keys and limits of one tenant meet no other's rows. It has the settings of the queue without a tenant, and
 * its own above them. What is left to see to is which queue a name stands for, and whether a caller may know of one.
 */
#pragma once

#include "ojs/job/envelope.h"
#include "ojs/queue/queue.h"

namespace ojs
{

/*
 * The tenant that the caller acts for; empty for none. The setting ojs.tenant, unless the calling role or the role of
 * the session is bound. PERMISSION_DENIED where a bound role names another tenant, or none although it has several.
 * Empty in what a session does for everybody: jobs of the clock, and workflows that go on. Good until the next call.
 */
std::string_view caller_tenant();

/* Whether the caller acts for a tenant, and this is not its own. */
bool is_foreign(std::string_view stored_queue);
bool is_foreign(const Queue &queue);
bool is_foreign(int64 queue);

/* The stored name of the queue that the caller means. Points to `name`, or to memory of the call. */
std::string_view stored_queue(std::string_view name);

/* Likewise for a job that stays with the tenant of the queue that it was in. */
std::string_view beside(std::string_view stored, std::string_view name);

/* Whether a role that is bound may see what belongs to this tenant; true for any other. */
bool may_see_tenant(std::string_view tenant, Oid role);

/* The name of a worker in ojs_store.worker: two tenants may have workers of one name. Of the caller's, and of one that
 * holds a job of this queue. */
const text *stored_worker(const text *worker);
const text *stored_worker(const text *worker, int64 queue);

/* Upkeep is under way: what it does is for everybody, whoever called it. */
extern bool for_everybody;

/* Set by what does work for everybody (state/members.cpp). */
extern bool (*works_for_others)();

void tenant_init(); /* once, at load */

} // namespace ojs
