/*
 * worker.cpp: the upkeep worker of one database, and the process that only rebuilds its hot set.
 *
 * One worker per database leads, by an advisory lock that no SQL function can name; another one ends with code 0. Each
 * pass is a few short transactions, so that nobody who wants to drop or change the extension waits for long, and it
 * begins with the lock on the extension that DROP EXTENSION wants. At least once a second the worker looks whether
 * somebody wants its database to itself, and then leaves it: DROP DATABASE and its like wait five seconds.
 *
 * Each duty is a transaction of its own: one that fails is rolled back, reported, and tried again a little later, while
 * the others go on. SIGTERM ends the worker at once, whatever it is doing or waiting for; that rolls one duty back.
 *
 * Its transactions commit asynchronously: what a crash takes back, the next pass does again.
 */
#include "ojs/counters/queue_counters.h"
#include "ojs/upkeep/cron.h"
#include "ojs/pg/error.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/queue/maintenance.h"
#include "ojs/queue/tenant.h"
#include "ojs/shared/shmem.h"
#include "ojs/store/store.h"
#include "ojs/shared/wakeup.h"
#include "ojs/hot_set/hot_set.h"
#include "ojs/upkeep/tick.h"
#include "ojs/pg/process.h"
#include "ojs/upkeep/duties.h"
#include "ojs/upkeep/first_due.h"

namespace ojs
{

namespace
{

constexpr int budget = 1000;
constexpr int64 longest_sleep_us = USECS_PER_SEC;
constexpr int64 shortest_backoff_us = USECS_PER_SEC;
constexpr int64 longest_backoff_us = 30 * USECS_PER_SEC;

extern "C" void
worker_leaves(int, Datum)
{
    Database *database = my_database();
    if (database != nullptr && pg_atomic_read_u32(&database->worker) == static_cast<uint32>(my_process_number()) + 1) {
        if (pg_atomic_read_u32(&database->turn_over) == 0) { /* it was ended: due at once */
            pg_atomic_write_u64(&database->visit_us, static_cast<uint64>(steady_us()));
            pg_atomic_write_u64(&database->left_us, static_cast<uint64>(steady_us()));
        }
        pg_atomic_write_u32(&database->worker, 0);
        database->worker_pid = 0;
    }
}

void
come_forward()
{
    Database *database = my_database();
    if (database == nullptr)
        return;
    before_shmem_exit(worker_leaves, 0);
    database->worker_pid = MyProcPid;
    database->worker_started_at = GetCurrentTimestamp();
    pg_atomic_write_u32(&database->absent, 0);
    pg_atomic_write_u32(&database->turn_over, 0);
    pg_memory_barrier();
    pg_atomic_write_u32(&database->worker, static_cast<uint32>(my_process_number()) + 1);
}

/* Whether there are more databases than workers may be. */
bool
has_turn_only()
{
    return shared_memory() && pg_atomic_read_u32(&shared->take_turns) != 0;
}

/* --- duties, each in a transaction of its own --- */

bool gone; /* the extension is not there (any more) */
bool more; /* the last pass had more to do */
TimestampTz next_due;
TimestampTz next_lapse;
int64 next_notify_us; /* by the steady clock */
bool next_known; /* the last pass has looked for these, the lapse too, which it does only where databases take turns */

void
begin()
{
    SetCurrentStatementStartTimestamp();
    StartTransactionCommand();
    PushActiveSnapshot(GetTransactionSnapshot());
}

void
commit()
{
    PopActiveSnapshot();
    CommitTransactionCommand();
}

/* The extension exists, and whoever drops it waits until this transaction ends. */
bool
hold_extension()
{
    LOCKTAG tag;
    Oid extension = get_extension_oid("ojs", true);
    if (OidIsValid(extension)) {
        SET_LOCKTAG_OBJECT(tag, MyDatabaseId, ExtensionRelationId, extension, 0);
        if (LockAcquire(&tag, AccessShareLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
            return false; /* being dropped: the next pass sees how that ended */
        AcceptInvalidationMessages();
    }
    gone = !OidIsValid(get_extension_oid("ojs", true));
    return !gone;
}

void
keep_hot_set()
{
    begin();
    if (hold_extension() && !read_hot_set_state().valid && !rebuild_under_way())
        (void)rebuild_hot_set(nullptr);
    commit();
}

/* Whether the worker looks into a duty in every pass: what jobs wait for, and what knows itself that nothing is to be
 * done. The others can wait for a second. */
bool
is_urgent(Duty duty)
{
    switch (duty) {
    case Duty::hot_set:
    case Duty::reap:
    case Duty::dead_workers:
    case Duty::promote:
    case Duty::backpressure:
    case Duty::event_notices:
    case Duty::cron:
    case Duty::wake_up:
    case Duty::notifications:
        return true;
    default:
        return false;
    }
}

/* How often at least a duty that fails is tried again. */
int64
backoff_us_of(Duty duty)
{
    bool waited_for = duty <= Duty::promote || duty == Duty::wake_up || duty == Duty::notifications;
    return waited_for ? shortest_backoff_us : longest_backoff_us;
}

void
do_duty(Duty duty, Pass &pass)
{
    if (duty == Duty::hot_set) {
        keep_hot_set();
        return;
    }
    if (duty == Duty::notifications) {
        next_notify_us = wake_send_due();
        return;
    }
    begin();
    if (hold_extension() && read_hot_set_state().valid) {
        if (duty == Duty::recount)
            recount_if_due();
        else if (duty == Duty::wake_up) {
            wake_look_again();
            next_due = first_due();
            if (has_turn_only()) {
                next_lapse = first_lapse();
                next_known = true;
            }
        } else
            run_duty(duty, pass);
        /* A claim counts on from a lapse as soon as it sees it, and a crash that lost both would forget more than the
         * leases of its moment. A run of a cron entry that a crash forgets would be started again. */
        if ((duty == Duty::reap || duty == Duty::dead_workers) ? pass.reaped > 0 : duty == Duty::cron && pass.crons > 0)
            commit_durably();
    }
    commit();
}

/* Returns false if the duty failed; the failure is counted, and its work rolled back. */
bool
attempt_duty(Duty duty, Pass &pass)
{
    volatile bool done = false;
    MemoryContext context = CurrentMemoryContext;
    PG_TRY();
    {
        do_duty(duty, pass);
        done = true;
    }
    PG_CATCH();
    {
        MemoryContextSwitchTo(context);
        HOLD_INTERRUPTS();
        ErrorData *error = CopyErrorData();
        FlushErrorState();
        AbortCurrentTransaction();
        MemoryContextSwitchTo(context);
        duty_failed(duty, *error);
        RESUME_INTERRUPTS();
    }
    PG_END_TRY();
    MemoryContextSwitchTo(context);
    return done;
}

/* A time of day by the steady clock: a moment from now that is neither past nor further than `most_us`. */
int64
steady(TimestampTz at, int64 most_us)
{
    return at == DT_NOEND ? steady_us() + most_us
                          : steady_us() + std::clamp<int64>(at - GetCurrentTimestamp(), 0, most_us);
}

struct Schedule {
    int64 next_us; /* by the steady clock; 0: with the next pass */
    int64 backoff_us;
};
Schedule schedules[n_duties];

/* Where databases take turns a worker goes on where the last one has left: what can wait need not be looked into each
 * time. */
void
go_on_with_schedules()
{
    constexpr int64 rest_us = 10 * USECS_PER_SEC;
    DutyState states[n_duties];
    read_duty_states(states);
    for (int i = 0; i < n_duties; i++)
        if (!is_urgent(static_cast<Duty>(i)) && !states[i].more && states[i].failing_since == 0)
            schedules[i].next_us = steady(states[i].good_at + rest_us, rest_us);
}

/* Returns true if there is more to do at once. */
bool
do_when_due(Duty duty)
{
    Schedule &schedule = schedules[static_cast<int>(duty)];
    if (steady_us() < schedule.next_us)
        return false;
    constexpr int cron_entries = 20; /* at once: they hold what their pushes have locked */
    Pass pass = {};
    pass.at = now();
    pass.budget = duty == Duty::cron ? cron_entries : budget;
    if (attempt_duty(duty, pass)) {
        if (!pass.failed)
            duty_succeeded(duty, pass.more);
        schedule.backoff_us = 0;
        schedule.next_us = pass.more || is_urgent(duty) ? 0 : steady_us() + USECS_PER_SEC;
        return pass.more;
    }
    schedule.backoff_us = std::clamp(schedule.backoff_us * 2, shortest_backoff_us, backoff_us_of(duty));
    schedule.next_us = steady_us() + schedule.backoff_us;
    return false;
}

/* --- the loop --- */

/* A cancel that comes while nothing is done cancels nothing. */
void
heed_signals()
{
    QueryCancelPending = false;
    CHECK_FOR_INTERRUPTS();
}

[[noreturn]] void
leave(const char *why)
{
    ereport(DEBUG1, (errmsg("ojs worker ends: %s", why)));
    proc_exit(0);
}

/* Whether ALTER DATABASE has set something since: what this process began with is not what sessions begin with. */
bool
settings_outdated()
{
    static std::optional<uint64> begun_with;
    static int64 next_us;
    if (steady_us() < next_us)
        return false;
    next_us = steady_us() + USECS_PER_SEC;
    begin();
    std::optional<uint64> stored = hash_of_stored_settings();
    commit();
    if (!begun_with)
        begun_with = stored;
    return stored && *stored != *begun_with;
}

/* Where no launcher starts another worker, this one does. */
void
leave_to_another()
{
    if (!shared_memory()) {
        give_up_lead();
        if (start_process("ojs worker", "ojs_worker_main", MyDatabaseId, 0) == nullptr && become_leader())
            return;
    }
    leave("the settings of the database have changed");
}

void
reload_if_asked()
{
    if (!ConfigReloadPending)
        return;
    ConfigReloadPending = false;
    ProcessConfigFile(PGC_SIGHUP);
}

bool
poked()
{
    Database *database = my_database();
    return database != nullptr && pg_atomic_exchange_u32(&database->poked, 0) != 0;
}

void
sleep_until(int64 at_us)
{
    static uint32 event;
    int64 us = std::clamp<int64>(at_us - steady_us(), 0, longest_sleep_us);
    pgstat_report_activity(STATE_IDLE, nullptr);
    (void)WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, static_cast<long>((us + 999) / 1000),
                    wait_event("OjsWorkerMain", &event));
    ResetLatch(MyLatch);
}

/* One pass; when the next one is due, by the steady clock. */
int64
tick()
{
    int64 began_us = steady_us();
    more = next_known = false;
    next_due = next_lapse = DT_NOEND;
    if (Database *database = my_database())
        (void)pg_atomic_exchange_u32(&database->active,
                                     0); /* a barrier, too: what comes later is seen, or sets it again */
    pgstat_report_activity(STATE_RUNNING, "ojs.tick()");
    for (int i = 0; i < static_cast<int>(Duty::notifications) && !gone; i++)
        more |= do_when_due(static_cast<Duty>(i));
    (void)pgstat_report_stat(false);
    int64 interval_us = settings.tick_interval_ms * static_cast<int64>(1000);
    return more ? began_us : std::min(began_us + interval_us, std::max(steady(next_due, interval_us), began_us + 1000));
}

/* Another database waits for a worker: leaves, and says when to come back. A database with much to do keeps its worker
 * for a second. */
void
give_way_if_asked(int64 began_us)
{
    constexpr int64 longest_turn_us = USECS_PER_SEC;
    constexpr int64 worth_waiting_us = 50 * 1000;
    constexpr int64 longest_absence_us = 60 * USECS_PER_SEC;
    constexpr int64 while_leased_us = 5 * USECS_PER_SEC; /* a worker may die long before its leases end */
    Database *database = my_database();
    int64 at = steady_us();
    if (database == nullptr || !has_turn_only())
        return;
    bool busy = more || !next_known || steady(next_due, longest_absence_us) - at < worth_waiting_us ||
                pg_atomic_read_u32(&database->pending) != 0;
    if (busy && at - began_us < longest_turn_us)
        return;
    int64 next = more || !next_known
                     ? at
                     : std::min({steady(next_due, longest_absence_us), at + longest_absence_us, next_notify_us});
    if (next_lapse != DT_NOEND)
        next = std::min(next, steady(next_lapse, while_leased_us));
    pg_atomic_write_u64(&database->visit_us, static_cast<uint64>(next));
    pg_atomic_write_u64(&database->left_us, static_cast<uint64>(at));
    pg_atomic_write_u32(&database->turn_over, 1);
    leave("another database has its turn");
}

[[noreturn]] void
serve()
{
    MemoryContext pass_context = AllocSetContextCreate(TopMemoryContext, "ojs worker pass", ALLOCSET_DEFAULT_SIZES);
    int64 tick_at = 0;
    int64 began_us = steady_us();

    if (has_turn_only())
        go_on_with_schedules();
    for (;;) {
        MemoryContextReset(pass_context);
        MemoryContextSwitchTo(pass_context);
        heed_signals();
        reload_if_asked();
        if (!settings.worker)
            leave("ojs.worker is off");
        if (database_in_use_by_ddl(MyDatabaseId))
            leave("somebody wants the database");
        if (settings_outdated())
            leave_to_another();

        next_notify_us = PG_INT64_MAX;
        (void)do_when_due(Duty::notifications);
        if (poked() || steady_us() >= tick_at)
            tick_at = tick();
        if (gone)
            leave("the extension is not installed");
        give_way_if_asked(began_us);
        int64 wake_at = std::min(tick_at, next_notify_us);
        if (wake_at > steady_us())
            sleep_until(wake_at);
    }
}

/* Upkeep must not depend on what an administrator has set for sessions. */
void
apply_worker_settings(const char *name, int lock_timeout_ms)
{
    constexpr const char *own[][2] = {{"search_path", "pg_catalog, pg_temp"},
                                      {"default_transaction_isolation", "read committed"},
                                      {"default_transaction_read_only", "off"},
                                      {"synchronous_commit", "off"},
                                      {"statement_timeout", "0"},
                                      {"idle_in_transaction_session_timeout", "0"},
                                      {"temp_file_limit", "-1"},
                                      {"transaction_timeout", "0"}}; /* since 17 */
    for (auto [setting, value] : own)
        if (GetConfigOption(setting, true, false) != nullptr)
            SetConfigOption(setting, value, PGC_SUSET, PGC_S_OVERRIDE);
    SetConfigOption("lock_timeout", psprintf("%d", lock_timeout_ms), PGC_SUSET, PGC_S_OVERRIDE);
    SetConfigOption("application_name", name, PGC_SUSET, PGC_S_OVERRIDE);
}

void
connect(Datum database, const char *name, int lock_timeout_ms)
{
    pqsignal(SIGTERM, die);
    pqsignal(SIGHUP, SignalHandlerForConfigReload);
    BackgroundWorkerUnblockSignals();
    BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(database), InvalidOid, 0);
    apply_worker_settings(name, lock_timeout_ms);
    for_everybody = true;
}

void
check_extension()
{
    begin();
    gone = !OidIsValid(get_extension_oid("ojs", true));
    commit();
}

} // namespace

} // namespace ojs

using namespace ojs;

extern "C" {
PGDLLEXPORT void ojs_worker_main(Datum);
PGDLLEXPORT void ojs_rebuild_main(Datum);

void
ojs_worker_main(Datum database)
{
    guarded([database] {
        connect(database, "ojs worker", duty_lock_timeout_ms);
        check_extension();
        if (gone || !settings.worker) { /* off for this database, or no worker had been started */
            Database *slot = my_database();
            if (slot != nullptr)
                pg_atomic_write_u32(&slot->absent, 1);
            leave(gone ? "the extension is not installed" : "ojs.worker is off");
        }
        if (!become_leader())
            leave("another one serves this database");
        come_forward();
        serve();
    });
}

void
ojs_rebuild_main(Datum database)
{
    guarded([database] {
        constexpr int patience_ms =
            5000; /* whoever asked may hold what this needs: it gives up rather than waiting for them */
        connect(database, "ojs rebuild", patience_ms);
        begin();
        if (OidIsValid(get_extension_oid("ojs", true)))
            (void)rebuild_hot_set(nullptr);
        commit();
        (void)pgstat_report_stat(true);
        proc_exit(0);
    });
}
}
