/*
 * tenant_settings.h: what administrators have set for a tenant (ojs_store.tenant): its limits, over all of its queues,
 * and its weight. Most tenants have none.
 *
 * Who keeps the limits: push/tenant_room.cpp at a push, limits/rate_limits.cpp at a claim. A queue says whether its
 * tenant has any (Queue), so a job without a tenant costs nothing.
 */
#pragma once

#include "ojs/job/limit_policy.h"
#include "ojs/pg/settings.h"

namespace ojs
{

struct TenantSettings {
    char tenant[max_tenant + 1];
    int64 max_queue_depth; /* jobs that may wait; -1: no limit */
    int64 max_scheduled;   /* and of them such as are not due; -1: no limit */
    StartRate enqueue_rate;
    int32 max_concurrency; /* jobs that may be held at once; -1: no limit */
    int32 weight;          /* 1 where nothing is set */

    bool bounds_pushes() const { return max_queue_depth >= 0 || max_scheduled >= 0 || enqueue_rate.period_us > 0; }
};
static_assert(std::is_trivially_destructible_v<TenantSettings>);

/* Null where nothing is set. Good until the next call that may find the settings changed. */
const TenantSettings *settings_of_tenant(std::string_view tenant);

uint64 tenant_settings_generation(); /* grows when any of them changes */

/* The queues of a tenant, as ids: for one whose pushes are bounded. */
struct TenantQueues {
    const int64 *ids;
    int n;
};
TenantQueues queues_of_tenant(std::string_view tenant);

/* Names of limits that no job can state: of jobs that a tenant may hold, and of its pushes. */
const char *held_key(std::string_view tenant);
const char *pushes_key(std::string_view tenant);

} // namespace ojs
