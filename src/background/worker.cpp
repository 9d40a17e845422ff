/*
 * worker.cpp: the upkeep worker of one database, and the process that only rebuilds its hot set.
 *
 * One worker per database leads, by an advisory lock that no SQL function can name; another one ends with code 0. Each
 * pass is a few short transactions, so that nobody who wants to drop or change the extension waits for long, and it
 * begins with the lock on the extension that DROP EXTENSION wants. At least once a second the worker looks whether
 * somebody wants its database to itself, and then leaves it: DROP DATABASE and its like wait five seconds.
 *
 * Its transactions commit asynchronously: what a crash takes back, the next pass does again.
 */
#include "ojs/counters/queue_counters.h"
#include "ojs/upkeep/cron.h"
#include "ojs/pg/error.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/queue/maintenance.h"
#include "ojs/shared/shmem.h"
#include "ojs/store/store.h"
#include "ojs/shared/wakeup.h"
#include "ojs/hot_set/hot_set.h"
#include "ojs/upkeep/tick.h"
#include "ojs/pg/process.h"

namespace ojs
{

namespace
{

constexpr int budget = 1000;
constexpr int64 longest_sleep_us = USECS_PER_SEC;
constexpr int64 longest_backoff_us = 30 * USECS_PER_SEC;

/* --- leadership --- */

/* `leading` is asked for by workers only, so one that does not get it knows that another leads. `present` is for those
 * who want to know: they ask for it without waiting and let go at once. */
bool
become_leader()
{
    LOCKTAG lead = process_lock(ProcessLock::leading);
    LOCKTAG here = process_lock(ProcessLock::present);
    if (LockAcquire(&lead, AccessExclusiveLock, true, true) == LOCKACQUIRE_NOT_AVAIL)
        return false;
    (void)LockAcquire(&here, AccessExclusiveLock, true, false);
    return true;
}

extern "C" void
worker_leaves(int, Datum)
{
    Database *database = my_database();
    if (database != nullptr && pg_atomic_read_u32(&database->worker) == static_cast<uint32>(my_process_number()) + 1) {
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
    pg_memory_barrier();
    pg_atomic_write_u32(&database->worker, static_cast<uint32>(my_process_number()) + 1);
}

/* --- duties, each in a transaction of its own --- */

bool gone; /* the extension is not there (any more) */
volatile sig_atomic_t finishing; /* a pass is under way, and is to be finished */
bool more; /* the tick had more to do */
TimestampTz next_due;
TimestampTz next_notify;

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
    if (hold_extension() && !read_feed().stands && !rebuild_under_way())
        (void)rebuild_hot_set(nullptr);
    commit();
}

/* When the first waiting job or cron entry falls due, by the server's clock. */
TimestampTz
first_due()
{
    TimestampTz due = DT_NOEND;
    ScanKeyData key;
    store::Scan scan;
    store::Row seen;
    if (in_maintenance())
        return due;
    store::Table table = store::open(store::Rel::later, AccessShareLock);
    ScanKeyInit(&key, 1, BTLessStrategyNumber, F_TIMESTAMPTZ_LT, TimestampTzGetDatum(DT_NOEND));
    store::begin(scan, table, store::Idx::later_due, &key, 1, true);
    while ((seen = store::next(scan)) != store::Row::none && seen != store::Row::live)
        ;
    if (seen == store::Row::live) {
        bool null;
        constexpr int col_due_at = 3;
        due = DatumGetTimestampTz(slot_getattr(table.slot, col_due_at, &null));
    }
    store::end(scan);
    store::close(table);
    due = std::min(due, first_cron());
    return due == DT_NOEND ? due : GetCurrentTimestamp() + (due - now());
}

/* Asked to end: at once, but after a pass that is under way, which takes milliseconds (GS-01). */
extern "C" void
asked_to_end(SIGNAL_ARGS)
{
    if (!finishing) {
        die(postgres_signal_arg);
        return;
    }
    int save_errno = errno;
    ShutdownRequestPending = true;
    SetLatch(MyLatch);
    errno = save_errno;
}

/* The commit may wait for a standby, so it is not part of what is finished. */
void
pass_is_done()
{
    finishing = false;
    if (ShutdownRequestPending)
        die(SIGTERM);
}

void
tick()
{
    begin();
    if (hold_extension() && read_feed().stands) {
        finishing = true;
        more = tick_once(budget);
        pass_is_done();
    }
    commit();
}

/* In a transaction of their own: they push, and so take locks that others may want. A crash must not forget a run that
 * somebody works on: it would be started again. */
void
run_cron_entries()
{
    constexpr int at_once = 100;
    int due = 0;

    begin();
    if (hold_extension() && read_feed().stands)
        due = run_crons(now(), at_once);
    if (due > 0)
        commit_durably();
    more |= due == at_once;
    commit();
}

void
look_again()
{
    begin();
    if (hold_extension() && read_feed().stands) {
        wake_look_again();
        reconcile_if_due();
        next_due = first_due();
    }
    commit();
}

void
recount()
{
    begin();
    if (hold_extension() && read_feed().stands)
        recount_if_due();
    commit();
}

void
send_notifications()
{
    next_notify = wake_send_due();
}

/* False: it failed, was reported and rolled back. */
bool
duty(void (*body)())
{
    volatile bool done = false;
    MemoryContext context = CurrentMemoryContext;
    PG_TRY();
    {
        body();
        done = true;
    }
    PG_CATCH();
    {
        MemoryContextSwitchTo(context);
        HOLD_INTERRUPTS();
        pass_is_done();
        EmitErrorReport();
        AbortCurrentTransaction();
        FlushErrorState();
        RESUME_INTERRUPTS();
    }
    PG_END_TRY();
    MemoryContextSwitchTo(context);
    return done;
}

/* --- the loop --- */

void
look_for_signals()
{
    CHECK_FOR_INTERRUPTS();
}

[[noreturn]] void
leave(const char *why)
{
    ereport(DEBUG1, (errmsg("ojs worker ends: %s", why)));
    proc_exit(0);
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
sleep_until(TimestampTz at)
{
    static uint32 event;
    int64 us = std::clamp<int64>(at - GetCurrentTimestamp(), 0, longest_sleep_us);
    pgstat_report_activity(STATE_IDLE, nullptr);
    (void)WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, static_cast<long>((us + 999) / 1000),
                    wait_event("OjsWorkerMain", &event));
    ResetLatch(MyLatch);
}

[[noreturn]] void
serve()
{
    MemoryContext pass_context = AllocSetContextCreate(TopMemoryContext, "ojs worker pass", ALLOCSET_DEFAULT_SIZES);
    TimestampTz tick_at = 0;
    int64 backoff_us = 0;

    for (;;) {
        MemoryContextReset(pass_context);
        MemoryContextSwitchTo(pass_context);
        (void)duty(look_for_signals); /* a cancel that comes while nothing is done cancels nothing */
        reload_if_asked();
        if (!settings.worker)
            leave("ojs.worker is off");
        if (database_in_use_by_ddl(MyDatabaseId))
            leave("somebody wants the database");

        bool well = duty(send_notifications);
        if (poked() || GetCurrentTimestamp() >= tick_at) {
            TimestampTz began_at = GetCurrentTimestamp();
            more = false;
            next_due = DT_NOEND;
            pgstat_report_activity(STATE_RUNNING, "ojs.tick()");
            well = duty(keep_hot_set) && !gone && duty(tick) && duty(recount) && duty(run_cron_entries) && duty(look_again) && well;
            if (gone)
                leave("the extension is not installed");
            (void)pgstat_report_stat(false);
            int64 interval_us = settings.tick_interval_ms * static_cast<int64>(1000);
            tick_at = more ? began_at : std::min(began_at + interval_us, std::max(next_due, began_at + 1000));
        }
        if (!well) {
            backoff_us = std::clamp<int64>(backoff_us * 2, USECS_PER_SEC, longest_backoff_us);
            tick_at = GetCurrentTimestamp() + backoff_us;
        } else
            backoff_us = 0;
        TimestampTz wake_at = std::min(tick_at, next_notify);
        if (!well || wake_at > GetCurrentTimestamp())
            sleep_until(well ? wake_at : tick_at);
    }
}

/* Upkeep must not depend on what an administrator has set for sessions. */
void
settle(const char *name)
{
    struct Setting {
        const char *name, *value;
    };
    constexpr Setting own[] = {{"search_path", "pg_catalog, pg_temp"},
                               {"default_transaction_isolation", "read committed"},
                               {"default_transaction_read_only", "off"},
                               {"synchronous_commit", "off"},
                               {"statement_timeout", "0"},
                               {"lock_timeout", "0"},
                               {"idle_in_transaction_session_timeout", "0"}};
    for (const Setting &setting : own)
        SetConfigOption(setting.name, setting.value, PGC_SUSET, PGC_S_OVERRIDE);
    SetConfigOption("application_name", name, PGC_SUSET, PGC_S_OVERRIDE);
}

void
connect(Datum database, const char *name)
{
    pqsignal(SIGTERM, asked_to_end);
    pqsignal(SIGHUP, SignalHandlerForConfigReload);
    BackgroundWorkerUnblockSignals();
    BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(database), InvalidOid, 0);
    settle(name);
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
        connect(database, "ojs worker");
        check_extension();
        if (gone) {
            Database *slot = my_database();
            if (slot != nullptr)
                pg_atomic_write_u32(&slot->absent, 1);
            leave("the extension is not installed");
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
        connect(database, "ojs rebuild");
        /* Whoever asked may hold what this needs; it gives up rather than waiting for them. */
        SetConfigOption("lock_timeout", "5s", PGC_SUSET, PGC_S_OVERRIDE);
        begin();
        if (OidIsValid(get_extension_oid("ojs", true)))
            (void)rebuild_hot_set(nullptr);
        commit();
        (void)pgstat_report_stat(true);
        proc_exit(0);
    });
}
}

/* ojs.start_worker() returns boolean: true if one was started */
OJS_FUNCTION(ojs_start_worker)
{
    static uint32 event;
    constexpr int64 patience_us = 10 * USECS_PER_SEC;

    PreventCommandDuringRecovery("ojs.start_worker()");
    if (worker_present())
        PG_RETURN_BOOL(false);
    if (!settings.worker) {
        ereport(WARNING, (errmsg("no worker is started while ojs.worker is off")));
        PG_RETURN_BOOL(false);
    }
    BackgroundWorkerHandle *handle = start_process("ojs worker", "ojs_worker_main", MyDatabaseId, MyProcPid);
    if (handle == nullptr)
        raise(Code::unavailable, Details(), "Raise max_worker_processes.",
              "no background process is free for a worker");
    TimestampTz until = GetCurrentTimestamp() + patience_us;
    while (GetCurrentTimestamp() < until) {
        constexpr long poll_ms = 10;
        pid_t pid;
        if (worker_present())
            PG_RETURN_BOOL(true);
        if (GetBackgroundWorkerPid(handle, &pid) == BGWH_STOPPED)
            break;
        (void)WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, poll_ms,
                        wait_event("OjsWorkerStart", &event));
        ResetLatch(MyLatch);
        CHECK_FOR_INTERRUPTS();
    }
    PG_RETURN_BOOL(false);
}
