/*
 * health.cpp: ojs.health and ojs.ready: how the extension is doing, for people and for load balancers.
 */
#include "ojs/pg/error.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/job/envelope.h"
#include "ojs/shared/shmem.h"
#include "ojs/store/spi.h"
#include "ojs/store/store.h"
#include "ojs/hot_set/hot_set.h"
#include "ojs/pg/process.h"
#include "ojs/pg/subtransaction.h"
#include "ojs/queue/maintenance.h"
#include "ojs/state/reap.h"
#include "ojs/upkeep/cron.h"
#include "ojs/upkeep/duties.h"
#include "ojs/admin/health.h"
#include "ojs/admin/shared_use.h"

namespace ojs
{

namespace
{

constexpr char state_row_sql[] = R"sql(
    select
        to_jsonb((select rebuilt from (
            select ojs_store.time_text(rebuilt_at) as rebuilt_at, extract(epoch from took)::float8 * 1000 as took_ms,
                jobs, cause
            from ojs_store.hot_set_state where cause <> 'reconcile' and hot_set_state.rebuilt_at > '-infinity'
            order by hot_set_state.rebuilt_at desc limit 1) rebuilt))::text,
        to_jsonb((select pass from (
            select ojs_store.time_text(rebuilt_at) as at, extract(epoch from took)::float8 * 1000 as took_ms, jobs
            from ojs_store.hot_set_state where cause = 'reconcile') pass))::text
)sql";
constinit Statement state_row = {state_row_sql, {}, nullptr};

constexpr char queues_sql[] = R"sql(
    select jsonb_build_object('total', count(*), 'active', count(*) filter (where state = 'active'),
        'paused', count(*) filter (where state = 'paused'), 'draining',
            count(*) filter (where state = 'draining'))::text
    from ojs.queues
)sql";
constinit Statement queues = {queues_sql, {}, nullptr};

constexpr char workers_sql[] = R"sql(
    select jsonb_build_object('connected', count(*) filter (where seen_at >= $1 - interval '15 s'),
        'stale', count(*) filter (where seen_at < $1 - interval '15 s'))::text
    from ojs_store.worker where beats and died_at is null
)sql";
constinit Statement workers = {workers_sql, {TIMESTAMPTZOID}, nullptr};

constinit Statement maintenance = {
    "select nullif(ojs_store.maintenance_json() - 'maintenance', '{}')::text", {}, nullptr};

/* Workflows: as the last check found them, and those that could not go on when they should have. */
constexpr char workflows_sql[] = R"sql(
    select jsonb_build_object('last_check', (
            select jsonb_strip_nulls(jsonb_build_object('at', ojs_store.time_text(c.checked_at), 'running', c.running,
                'mended', c.mended, 'error', c.error)) from ojs_store.workflow_check c limit 1),
        'held_up', (select count(distinct d.workflow) from ojs_store.workflow_due d where d.failures > 0),
        'error', (select max(d.error) from ojs_store.workflow_due d where d.failures > 0))::text
)sql";
constinit Statement workflows = {workflows_sql, {}, nullptr};

/* Webhooks: what is on its way, what was lost, and since when nobody sends. */
constexpr char webhooks_sql[] = R"sql(
    select jsonb_build_object('subscriptions', (select count(*) from ojs_store.webhook),
        'pending', coalesce(sum(s.pending), 0), 'dead', coalesce(sum(s.dead), 0),
        'dropped', coalesce(sum(s.dropped), 0), 'failing', count(*) filter (where s.failures > 0),
        'missed', (select c.missed from ojs_store.webhook_cursor c),
        'due_since', (select ojs_store.time_text(min(greatest(d.due_at, d.created_at))) from ojs_store.webhook w
            cross join lateral (
                select p.due_at, p.created_at from ojs_store.webhook_delivery p
                where p.webhook = w.id and p.state = 'pending' order by p.due_at limit 1) d
            where w.active and d.due_at < $1))::text
    from ojs_store.webhook_status s
)sql";
constinit Statement webhooks = {webhooks_sql, {TIMESTAMPTZOID}, nullptr};

/* Bindings to tenants, and their roles that are gone or have another name now: who has it is bound no more. */
constexpr char tenants_sql[] = R"sql(
    select jsonb_build_object('bindings', count(*), 'bindings_without_role', count(*) filter (where not b.there),
        'roles_missing', coalesce((array_agg(distinct b.role) filter (where not b.there))[1:20], '{}'))::text
    from (
        select r.role, exists (select from pg_catalog.pg_roles p where p.rolname = r.role) as there
        from ojs_store.tenant_role r where ojs_store.may_see_tenant(r.tenant)) b
)sql";
constinit Statement tenants = {tenants_sql, {}, nullptr};

struct Report {
    StringInfoData hot_set, reconciled, queues, workers, maintenance, workflows, webhooks, tenants;
};

void
copy(StringInfo to, int column)
{
    bool null;
    Datum value = cell(0, column, &null);
    appendStringInfoString(to, null ? "null" : TextDatumGetCString(value));
}

constexpr int64 late_us = 10 * USECS_PER_SEC;

/* How long the database has been waiting for a worker that it ought to have, or 0. A turn that is asked for is due a
 * second after the last one, and not before somebody asked for it. */
int64
waiting_us()
{
    Database *database = my_database();
    if (database == nullptr || !settings.worker || RecoveryInProgress() || pg_atomic_read_u32(&database->worker) != 0)
        return 0;
    auto since = static_cast<int64>(pg_atomic_read_u64(&database->visit_us));
    if (pg_atomic_read_u32(&database->active) != 0) {
        pg_read_barrier();
        since = std::min(since, std::max(static_cast<int64>(pg_atomic_read_u64(&database->left_us)) + USECS_PER_SEC,
                                         static_cast<int64>(pg_atomic_read_u64(&database->active_us))));
    }
    return std::max<int64>(steady_us() - since, 0);
}

const char *
worker_state(bool runs, bool late)
{
    Database *database = my_database();
    return runs                                                                   ? "running"
           : RecoveryInProgress()                                                 ? "in recovery"
           : !settings.worker                                                     ? "off"
           : !shared_memory()                                                     ? "not started"
           : late                                                                 ? "waiting"
           : database != nullptr && pg_atomic_read_u32(&database->turn_over) != 0 ? "between turns"
                                                                                  : "starting";
}

struct Overdue {
    Duty duty;
    TimestampTz since;
};

/* Returns false where somebody has locked a table that this looks at: health must not wait for that. */
template <typename Look>
bool
unless_locked(Look look)
{
    ErrorData *error = attempt([&] {
        int level = NewGUCNestLevel();
        (void)set_config_option("lock_timeout", "50", PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
        look();
        AtEOXact_GUC(true, level);
    });
    if (error != nullptr && error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
        ReThrowError(error);
    return error == nullptr;
}

TimestampTz
first_workflow()
{
    static constinit Statement next_due = {"select min(due_at) from ojs_store.workflow_due", {}, nullptr};
    TimestampTz due = DT_NOEND;
    with_spi([&due] {
        bool null;
        (void)execute(next_due);
        Datum at = cell(0, 1, &null);
        if (!null)
            due = DatumGetTimestampTz(at);
    });
    return due;
}

/*
 * What upkeep ought to have done long ago, as JSON: nobody does it, or it cannot be done. Null where somebody has
 * locked a table. Returns whether there is any.
 */
bool
write_overdue(StringInfo json, TimestampTz at)
{
    constexpr int64 patience_us = 90 * USECS_PER_SEC; /* pg_cron ticks once a minute */
    Overdue all[] = {
        {Duty::reap, DT_NOEND}, {Duty::promote, DT_NOEND}, {Duty::cron, DT_NOEND}, {Duty::workflows, DT_NOEND}};
    bool any = false;
    TimeText text;
    bool known = unless_locked([&] {
        Tables tables(AccessShareLock);
        all[0].since = lapsed_since(tables, at);
        all[1].since = due_since(tables, at);
        all[2].since = in_maintenance() ? DT_NOEND : first_cron();
        all[3].since = first_workflow();
        tables.close_and_unlock();
    });
    appendStringInfoString(json, ", \"overdue\": ");
    if (!known) {
        appendStringInfoString(json, "null");
        return false;
    }
    for (const Overdue &one : all) {
        if (one.since > at - patience_us)
            continue;
        appendStringInfo(json, "%s{\"duty\": \"%s\", \"since\": \"%s\"}", any ? ", " : "[", duty_name(one.duty),
                         format_timestamp(one.since, false, text).data());
        any = true;
    }
    appendStringInfoString(json, any ? "]" : "[]");
    return any;
}

/* The duties of upkeep that fail, as JSON, the time of the last pass in which a duty succeeded, and where `hot_set`
 * what is overdue. Returns whether any fails or is. */
bool
write_upkeep(StringInfo json, bool hot_set, TimestampTz at)
{
    DutyState states[n_duties];
    TimestampTz good_at = 0;
    bool failing = false;
    TimeText text;

    read_duty_states(states);
    appendStringInfoString(json, ", \"upkeep\": {\"failing\": [");
    for (int i = 0; i < n_duties; i++) {
        const DutyState &state = states[i];
        good_at = std::max(good_at, state.good_at);
        if (state.failing_since == 0)
            continue;
        appendStringInfo(json,
                         "%s{\"duty\": \"%s\", \"since\": \"%s\", \"failures\": " INT64_FORMAT
                         ", \"sqlstate\": \"%s\", \"message\": ",
                         failing ? ", " : "", duty_name(static_cast<Duty>(i)),
                         format_timestamp(state.failing_since, false, text).data(), state.failures,
                         unpack_sql_state(state.sqlstate));
        escape_json(json, state.message);
        appendStringInfoChar(json, '}');
        failing = true;
    }
    appendStringInfoString(json, "], \"last_pass\": ");
    if (good_at == 0)
        appendStringInfoString(json, "null");
    else
        appendStringInfo(json, "\"%s\"", format_timestamp(good_at, false, text).data());
    bool overdue = hot_set && write_overdue(json, at);
    appendStringInfoChar(json, '}');
    return failing || overdue;
}

/* How jobs are counted, and what of shared memory is in use. */
void
write_shared_memory(StringInfo json)
{
    appendStringInfo(json, ", \"counting\": \"%s\", \"shared_memory\": ", has_counters() ? "shared memory" : "rows");
    if (!shared_memory()) {
        appendStringInfoString(json, "null");
        return;
    }
    SharedUse uses[n_shared_uses];
    read_shared_uses(uses);
    for (const SharedUse &use : uses)
        appendStringInfo(
            json, "%s\"%s\": {\"used\": " INT64_FORMAT ", \"own\": " INT64_FORMAT ", \"most\": " INT64_FORMAT "}",
            &use == uses ? "{" : ", ", use.what, use.used, use.own, use.most);
    appendStringInfoChar(json, '}');
}

const char *
wake_up()
{
    return worker_running()  ? "latch and NOTIFY by the worker"
           : shared_memory() ? (settings.notify ? "latch and NOTIFY by each transaction" : "latch")
           : settings.notify ? "NOTIFY by each transaction"
                             : "polling";
}

} // namespace

bool
upkeep_served()
{
    return worker_present() || (shared_memory() && settings.worker && !RecoveryInProgress() && waiting_us() <= late_us);
}

} // namespace ojs

using namespace ojs;

/* ojs.health() returns jsonb */
OJS_FUNCTION(ojs_health)
{
    bool recovery = RecoveryInProgress();
    bool present = worker_present();
    bool valid = !recovery && read_hot_set_state().valid && restores_noticed();
    Database *database = my_database();
    TimestampTz at = now();
    StringInfoData json;
    Report report;

    initStringInfo(&json);
    initStringInfo(&report.hot_set);
    initStringInfo(&report.reconciled);
    initStringInfo(&report.queues);
    initStringInfo(&report.workers);
    initStringInfo(&report.maintenance);
    initStringInfo(&report.workflows);
    initStringInfo(&report.webhooks);
    initStringInfo(&report.tenants);
    with_spi([&] {
        if (!recovery) {
            (void)execute_latest(state_row);
            copy(&report.hot_set, 1);
            copy(&report.reconciled, 2);
        }
        (void)execute(queues);
        copy(&report.queues, 1);
        (void)execute(workers, {TimestampTzGetDatum(at)});
        copy(&report.workers, 1);
        (void)execute(workflows);
        copy(&report.workflows, 1);
        (void)execute(tenants);
        copy(&report.tenants, 1);
        (void)execute(maintenance);
        copy(&report.maintenance, 1);
    });
    if (!unless_locked([&] {
            with_spi([&] {
                (void)execute(webhooks, {TimestampTzGetDatum(at)});
                copy(&report.webhooks, 1);
            });
        }))
        appendStringInfoString(&report.webhooks, "null");
    StringInfoData upkeep;
    initStringInfo(&upkeep);
    bool late = !present && waiting_us() > late_us;
    double notify_used = notify_queue_used();
    bool degraded = late || notify_used >= notify_queue_full;
    degraded |= write_upkeep(&upkeep, valid, at) || (!valid && !recovery && rebuild_under_way());
    appendStringInfo(&json, "{\"status\": \"%s\", \"version\": \"%s\", \"backend\": {\"status\": \"%s\"}",
                     degraded ? "degraded" : "ok", OJS_VERSION, "healthy");
    appendStringInfo(&json, ", \"in_recovery\": %s, \"preloaded\": %s, \"uptime_seconds\": " INT64_FORMAT,
                     recovery ? "true" : "false", shared_memory() ? "true" : "false",
                     (GetCurrentTimestamp() - PgStartTime) / USECS_PER_SEC);
    TimeText text;
    appendStringInfo(&json, ", \"timestamp\": \"%s\"", format_timestamp(at, false, text).data());
    appendStringInfo(&json, ", \"worker\": {\"state\": \"%s\"", worker_state(present, late));
    if (present && database != nullptr && pg_atomic_read_u32(&database->worker) != 0)
        appendStringInfo(&json, ", \"pid\": %d, \"started_at\": \"%s\"", database->worker_pid,
                         format_timestamp(database->worker_started_at, false, text).data());
    if (late)
        appendStringInfo(&json, ", \"waiting_seconds\": " INT64_FORMAT, waiting_us() / USECS_PER_SEC);
    appendStringInfo(&json, "}, \"wake_up\": \"%s\", \"notify_queue_used\": %.4f, \"coalescing\": %s%s", wake_up(),
                     notify_used, shared_memory() ? "true" : "false", upkeep.data);
    write_shared_memory(&json);
    if (recovery)
        appendStringInfoString(&json, ", \"hot_set\": {\"state\": \"not on a standby\"}");
    else
        appendStringInfo(&json, ", \"hot_set\": {\"state\": \"%s\", \"last_rebuild\": %s, \"last_reconcile\": %s}",
                         valid ? "standing" : "to be rebuilt", report.hot_set.data, report.reconciled.data);
    appendStringInfo(&json,
                     ", \"queues\": %s, \"workers\": %s, \"workflows\": %s, \"webhooks\": %s, "
                     "\"tenants\": %s, \"maintenance\": %s}",
                     report.queues.data, report.workers.data, report.workflows.data, report.webhooks.data,
                     report.tenants.data, report.maintenance.data);
    return DirectFunctionCall1(jsonb_in, CStringGetDatum(json.data));
}

/* ojs.ready() returns boolean: whether calls that write can be served; has the hot set rebuilt if need be */
OJS_FUNCTION(ojs_ready)
{
    if (RecoveryInProgress())
        PG_RETURN_BOOL(false);
    ensure_hot_set();
    PG_RETURN_BOOL(read_hot_set_state().valid);
}

/* ojs_store.worker_running() returns boolean */
OJS_FUNCTION(ojs_worker_running)
{
    PG_RETURN_BOOL(worker_running() || worker_present());
}

/* ojs_store.ask_for_worker() returns void */
OJS_FUNCTION(ojs_ask_for_worker)
{
    ask_for_worker_at_commit();
    PG_RETURN_VOID();
}
