/*
 * tick.cpp: ojs.tick: one bounded pass of upkeep, duty by duty. Any number of sessions may run it at once: each takes
 * what no other is at.
 */
#include "ojs/upkeep/aging.h"
#include "ojs/upkeep/cron.h"
#include "ojs/pg/error.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/job/hooks.h"
#include "ojs/push/idempotency.h"
#include "ojs/limits/rate_limits.h"
#include "ojs/counters/pressure.h"
#include "ojs/queue/tenant.h"
#include "ojs/queue/tidy.h"
#include "ojs/upkeep/records.h"
#include "ojs/upkeep/replay.h"
#include "ojs/upkeep/retention.h"
#include "ojs/push/unique.h"
#include "ojs/shared/wakeup.h"
#include "ojs/store/spi.h"
#include "ojs/state/reap.h"
#include "ojs/hot_set/hot_set.h"
#include "ojs/upkeep/tick.h"
#include "ojs/state/client_workers.h"
#include "ojs/state/members.h"
#include "ojs/upkeep/duties.h"
#include "ojs/pg/subtransaction.h"

namespace ojs
{

namespace
{

/* A duty that works on the tables directly. `step` does at most so many, and says how many. */
template <typename Step>
int
in_batches(const Pass &pass, Step step)
{
    Tables tables;
    int done = 0;
    while (done < pass.budget) {
        int n = step(tables, pass.budget - done);
        done += n;
        if (n == 0)
            break;
        CommandCounterIncrement();
    }
    tables.close();
    return done;
}

void
take_from_dead_workers(Pass &pass)
{
    Tables tables;
    Recovered recovered = recover_from_dead(tables, pass.budget, pass.at);
    tables.close();
    CommandCounterIncrement();
    pass.reaped += recovered.jobs;
    pass.dead_workers = recovered.workers;
    pass.more |= recovered.jobs >= pass.budget;
}

void
add(Pass &pass, int &sum, int n)
{
    sum += n;
    pass.more |= n >= pass.budget;
}

constinit Statement tend = {"select ojs_store.tend_workflows($1)", {INT4OID}, nullptr};

/* What comes after the end of a job here, or was left to the tick (sql/workflow.sql). */
void
tend_workflows(Pass &pass)
{
    if (IsolationUsesXactSnapshot())
        return;
    constexpr int most = 60; /* as for cron entries below */
    bool first = begin_workflow_work();
    with_spi([&] {
        bool null;
        (void)execute(tend, {Int32GetDatum(pass.budget)});
        pass.more |= DatumGetInt32(cell(0, 1, &null)) >= std::min(pass.budget, most);
    });
    end_workflow_work(first);
}

/* Each entry takes a subtransaction: beyond 64 of them every other session's snapshots cost more. */
void
run_due_crons(Pass &pass)
{
    constexpr int most = 60;
    int n = std::min(pass.budget, most);
    pass.crons = run_crons(pass.at, n);
    pass.more |= pass.crons >= n;
}

/* In a subtransaction. Returns false if it failed; nothing of it stays. */
bool
perform(Duty duty, Pass &pass)
{
    Pass before = pass;
    for_everybody = true;
    ErrorData *error = attempt([&] {
        int level = NewGUCNestLevel();
        if (LockTimeout == 0 || LockTimeout > duty_lock_timeout_ms)
            (void)set_config_option("lock_timeout", psprintf("%d", duty_lock_timeout_ms), PGC_SUSET, PGC_S_SESSION,
                                    GUC_ACTION_SAVE, true, 0, false);
        run_duty(duty, pass);
        AtEOXact_GUC(true, level);
    });
    for_everybody = false;
    if (error == nullptr) {
        bool well = !pass.failed;
        pass.failed = false;
        if (well)
            duty_succeeded(duty, pass.more);
        return well;
    }
    if (ends_the_call(*error))
        ReThrowError(error);
    pass = before;
    duty_failed(duty, *error);
    FreeErrorData(error);
    return false;
}

} // namespace

void
run_duty(Duty duty, Pass &pass)
{
    constexpr Scope everywhere = {nullptr, 0};
    switch (duty) {
    case Duty::reap:
        return add(pass, pass.reaped,
                   in_batches(pass, [&](Tables &tables, int most) { return reap(tables, everywhere, most, pass.at); }));
    case Duty::dead_workers:
        return take_from_dead_workers(pass);
    case Duty::promote:
        return add(pass, pass.promoted, in_batches(pass, [&](Tables &tables, int most) {
                       return promote(tables, everywhere, std::min(most, upkeep_batch), pass.at);
                   }));
    case Duty::workflows:
        return tend_workflows(pass);
    case Duty::deduplication_keys:
        return add(pass, pass.keys, prune_deduplication_keys(pass.budget, pass.at));
    case Duty::idempotency_keys:
        return add(pass, pass.keys, prune_idempotency_keys(pass.budget, pass.at));
    case Duty::events:
        return add(pass, pass.records, prune_records(pass.budget, pass.at));
    case Duty::backpressure:
        return tell_pressure();
    case Duty::event_notices:
        return tell_events(pass.budget);
    case Duty::retention:
        return add(pass, pass.jobs, prune_jobs(pass.budget, pass.at));
    case Duty::dead_letters:
        return add(pass, pass.jobs, prune_dead_letters(pass.budget, pass.at));
    case Duty::unique_keys:
        return prune_unique_keys(pass.at);
    case Duty::lease_log:
        return prune_lease_log(pass.at);
    case Duty::queues:
        return tidy_queues(pass.at);
    case Duty::workers:
        return forget_workers(pass.at);
    case Duty::hooks:
        return tidy_hooks(pass.at);
    case Duty::rate_limits:
        return tidy_limits(pass.at);
    case Duty::replay:
        return replay_dead_letters(pass);
    case Duty::webhooks:
        pass.more |= tend_webhooks(pass.budget);
        return;
    case Duty::cron:
        return run_due_crons(pass);
    case Duty::priority_aging:
        pass.more |= raise_priorities(pass.budget, pass.at);
        return;
    case Duty::reconcile:
        return reconcile_if_due();
    case Duty::wake_up:
        return wake_look_again();
    default:
        elog(ERROR, "no duty of ojs.tick(): %s", duty_name(duty));
    }
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
    Pass pass = {};
    pass.at = now();
    pass.budget = PG_ARGISNULL(0) ? default_budget : PG_GETARG_INT32(0);
    if (pass.budget < 1)
        raise_field(Code::invalid_payload, "budget", "Give the number of rows that one duty may handle.",
                    "budget must be positive");
    StringInfoData failed;
    initStringInfo(&failed);
    for (int i = static_cast<int>(Duty::reap); i < static_cast<int>(Duty::recount); i++)
        if (!perform(static_cast<Duty>(i), pass))
            appendStringInfo(&failed, "%s\"%s\"", failed.len > 0 ? ", " : "", duty_name(static_cast<Duty>(i)));
    store::end_write();
    advance_lines();
    char *json =
        psprintf("{\"reaped\": %d, \"dead_workers\": %d, \"promoted\": %d, \"crons\": %d, \"keys_removed\": %d, "
                 "\"events_removed\": %d, \"jobs_removed\": %d, \"replayed\": %d, \"more\": %s, \"failed\": [%s]}",
                 pass.reaped, pass.dead_workers, pass.promoted, pass.crons, pass.keys, pass.records, pass.jobs,
                 pass.replayed, pass.more ? "true" : "false", failed.data);
    return DirectFunctionCall1(jsonb_in, CStringGetDatum(json));
}
