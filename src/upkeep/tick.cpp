/*
 * tick.cpp: ojs.tick: one bounded pass of upkeep. Any number of sessions may run it at once: each takes what no other
 * is at.
 */
#include "ojs/upkeep/cron.h"
#include "ojs/pg/error.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/job/hooks.h"
#include "ojs/push/idempotency.h"
#include "ojs/limits/rate_limits.h"
#include "ojs/counters/pressure.h"
#include "ojs/queue/push_rules.h"
#include "ojs/upkeep/records.h"
#include "ojs/upkeep/replay.h"
#include "ojs/upkeep/retention.h"
#include "ojs/push/unique.h"
#include "ojs/state/reap.h"
#include "ojs/hot_set/hot_set.h"
#include "ojs/upkeep/tick.h"
#include "ojs/state/client_workers.h"

namespace ojs
{

namespace
{

struct Pass {
    int reaped;
    int dead; /* workers whose heartbeats stopped; their jobs count as reaped */
    int promoted;
    int markers; /* deduplication and idempotency keys whose time was over */
    int records; /* events with rows of their own, too old or too many */
    int jobs;    /* finished ones that are not kept any longer */
    int replayed; /* dead letters, by a rule */
    bool more;
};

Pass
pass(int budget)
{
    Tables tables;
    Pass result = {};
    TimestampTz at = now();
    while (result.reaped < budget) {
        int n = reap(tables, {nullptr, 0}, budget - result.reaped, at);
        result.reaped += n;
        if (n == 0)
            break;
        CommandCounterIncrement();
    }
    if (result.reaped < budget) {
        Recovered recovered = recover_from_dead(tables, budget - result.reaped, at);
        result.reaped += recovered.jobs;
        result.dead = recovered.workers;
        CommandCounterIncrement();
    }
    while (result.promoted < budget) {
        int n = promote(tables, {nullptr, 0}, std::min(budget - result.promoted, upkeep_batch), at);
        result.promoted += n;
        if (n == 0)
            break;
        CommandCounterIncrement();
    }
    result.markers = prune_markers(budget, at) + prune_idempotency_keys(budget, at);
    result.records = prune_records(budget, at);
    tell_pressure();
    tell_events(budget);
    result.jobs = prune_jobs(tables, budget, at);
    CommandCounterIncrement();
    prune_traces(at);
    tidy_queues(at);
    forget_workers(at);
    tidy_hooks(at);
    tidy_limits(at);
    tables.close();
    result.replayed = replay_dead_letters(budget, at);
    result.more = result.reaped >= budget || result.promoted >= budget || result.markers >= budget || result.records >= budget ||
                  result.jobs >= budget || result.replayed >= budget;
    return result;
}

} // namespace

bool
tick_once(int budget)
{
    Pass done = pass(budget);
    /* The worker commits without waiting for the disk. But a claim counts on from a lapse as soon as it sees it, and a
     * crash that lost both would forget more than the leases of its moment. */
    if (done.reaped > 0)
        commit_durably();
    return done.more;
}

void
commit_durably()
{
    (void)set_config_option("synchronous_commit", "on", PGC_SUSET, PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
}

} // namespace ojs

using namespace ojs;

/* ojs.tick(budget int default null) returns jsonb */
OJS_FUNCTION(ojs_tick)
{
    constexpr int default_budget = 10000;
    store::begin_write("ojs.tick()");
    ensure_hot_set();
    int budget = PG_ARGISNULL(0) ? default_budget : PG_GETARG_INT32(0);
    if (budget < 1)
        raise_field(Code::invalid_payload, "budget", "Give the number of rows that one duty may handle.",
                    "budget must be positive");
    Pass result = pass(budget);
    int crons = run_crons(now(), budget);
    reconcile_if_due();
    store::end_write();
    char *json = psprintf("{\"reaped\": %d, \"dead_workers\": %d, \"promoted\": %d, \"crons\": %d, \"keys_removed\": %d, "
                          "\"events_removed\": %d, \"jobs_removed\": %d, \"replayed\": %d, \"more\": %s}",
                          result.reaped, result.dead, result.promoted, crons, result.markers, result.records, result.jobs,
                          result.replayed, result.more || crons >= budget ? "true" : "false");
    return DirectFunctionCall1(jsonb_in, CStringGetDatum(json));
}
