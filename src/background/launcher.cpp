/*
 * launcher.cpp: keeps an upkeep worker in every database that has the extension.
 *
 * Runs when the library is preloaded, from the end of recovery on, so that a standby has none until it is promoted. It
 * is in no database and sees the shared catalogs only: which databases there are, but not which have the extension. So
 * it starts a worker in each to see, once; one that finds no extension ends, and is started again when a session with
 * the extension asks (CREATE EXTENSION does at its commit), or, as a net, after a while.
 */
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/shared/shmem.h"
#include "ojs/background/launcher.h"
#include "ojs/counters/job_metrics.h"
#include "ojs/counters/queue_counters.h"
#include "ojs/pg/process.h"

namespace ojs
{

namespace
{

constexpr int64 look_for_databases_us = 10 * USECS_PER_SEC;
constexpr int64 restart_us = 5 * USECS_PER_SEC; /* after a worker that failed */
constexpr int64 asked_us = USECS_PER_SEC;       /* … when a session asks */
constexpr int64 no_extension_us = 10 * SECS_PER_MINUTE * USECS_PER_SEC;

struct Served {
    Oid oid; /* key */
    BackgroundWorkerHandle *handle;
    TimestampTz started_at;
    TimestampTz try_at;
    bool exists;
};

HTAB *served;
bool said_full;

extern "C" void
launcher_leaves(int, Datum)
{
    pg_atomic_write_u32(&shared->launcher, 0);
}

/* What a database that is gone has in shared memory. */
void
give_back(Oid database)
{
    free_database_slot(database);
    free_counters(database);
    free_metrics(database);
}

/* Which databases there are that could have a worker. */
void
look_for_databases(MemoryContext context)
{
    HASH_SEQ_STATUS all;
    hash_seq_init(&all, served);
    while (auto *one = static_cast<Served *>(hash_seq_search(&all)))
        one->exists = false;

    /* A session takes a slot for a database that exists: if this snapshot, which is later, does not see it, it is gone. */
    int n_slots = 0;
    auto *slots = static_cast<Oid *>(palloc(sizeof(Oid) * max_databases));
    for (const Database &database : shared->databases)
        if (OidIsValid(database.oid))
            slots[n_slots++] = database.oid;

    StartTransactionCommand();
    (void)GetTransactionSnapshot();
    Relation rel = table_open(DatabaseRelationId, AccessShareLock);
    TableScanDesc scan = table_beginscan_catalog(rel, 0, nullptr);
    HeapTuple tuple;
    while ((tuple = heap_getnext(scan, ForwardScanDirection)) != nullptr) {
        auto *database = reinterpret_cast<Form_pg_database>(GETSTRUCT(tuple));
        constexpr int half_dropped = -2; /* since 15.4: a DROP DATABASE that did not end well */
        bool found;
        n_slots = static_cast<int>(std::remove(slots, slots + n_slots, database->oid) - slots);
        if (!database->datallowconn || database->datistemplate || database->datconnlimit == half_dropped)
            continue;
        auto *one = static_cast<Served *>(hash_search(served, &database->oid, HASH_ENTER, &found));
        if (!found)
            *one = {database->oid, nullptr, 0, 0, true};
        one->exists = true;
    }
    table_endscan(scan);
    table_close(rel, AccessShareLock);
    CommitTransactionCommand();
    MemoryContextSwitchTo(context);
    for (int i = 0; i < n_slots; i++)
        give_back(slots[i]);
    pfree(slots);

    hash_seq_init(&all, served);
    while (auto *one = static_cast<Served *>(hash_seq_search(&all)))
        if (!one->exists) {
            if (one->handle != nullptr)
                pfree(one->handle);
            (void)hash_search(served, &one->oid, HASH_REMOVE, nullptr);
        }
}

/* When to look at this database again. */
TimestampTz
serve(Served &one, TimestampTz at)
{
    Database *slot = database_slot(one.oid);
    if (one.handle != nullptr) {
        pid_t pid;
        if (GetBackgroundWorkerPid(one.handle, &pid) != BGWH_STOPPED)
            return DT_NOEND; /* its end wakes us */
        pfree(one.handle);
        one.handle = nullptr;
        bool absent = slot == nullptr || pg_atomic_read_u32(&slot->absent) != 0;
        one.try_at = one.started_at + (absent ? no_extension_us : restart_us);
    }
    if (slot != nullptr && pg_atomic_read_u32(&slot->worker) != 0) { /* one that ojs.start_worker() started */
        pg_atomic_write_u32(&slot->asked, 0);
        return at + restart_us;
    }
    bool asked = slot != nullptr && pg_atomic_read_u32(&slot->asked) != 0;
    TimestampTz try_at = asked ? std::min(one.try_at, one.started_at + asked_us) : one.try_at;
    if (try_at > at)
        return try_at;
    if (database_in_use_by_ddl(one.oid))
        return at + asked_us;

    if (slot != nullptr)
        pg_atomic_write_u32(&slot->asked, 0);
    one.started_at = at;
    one.handle = start_process("ojs worker", "ojs_worker_main", one.oid, MyProcPid);
    if (one.handle != nullptr)
        return DT_NOEND;
    if (!said_full)
        ereport(LOG, (errmsg("ojs could not start the worker of a database"),
                      errhint("Consider raising max_worker_processes.")));
    said_full = true;
    one.try_at = at + restart_us;
    return one.try_at;
}

void
launch(MemoryContext context)
{
    TimestampTz look_at = 0;
    static uint32 event;

    for (;;) {
        TimestampTz at = GetCurrentTimestamp();
        TimestampTz next = at + look_for_databases_us;

        CHECK_FOR_INTERRUPTS();
        if (ConfigReloadPending) {
            ConfigReloadPending = false;
            ProcessConfigFile(PGC_SIGHUP);
        }
        if (settings.worker) {
            HASH_SEQ_STATUS all;
            bool asked_by_new = false;
            for (const Database &database : shared->databases)
                if (OidIsValid(database.oid) && hash_search(served, &database.oid, HASH_FIND, nullptr) == nullptr)
                    asked_by_new |= pg_atomic_read_u32(const_cast<pg_atomic_uint32 *>(&database.asked)) != 0;
            if (at >= look_at || asked_by_new) {
                look_for_databases(context);
                look_at = at + look_for_databases_us;
            }
            hash_seq_init(&all, served);
            while (auto *one = static_cast<Served *>(hash_seq_search(&all)))
                next = std::min(next, serve(*one, at));
        }
        long ms = static_cast<long>((std::max<int64>(next - GetCurrentTimestamp(), 0) + 999) / 1000);
        (void)WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, std::max(ms, 10L),
                        wait_event("OjsLauncherMain", &event));
        ResetLatch(MyLatch);
    }
}

} // namespace

void
register_launcher()
{
    constexpr int restart_s = 5;
    BackgroundWorker process = describe_process("ojs launcher", "ojs_launcher_main");
    process.bgw_restart_time = restart_s;
    RegisterBackgroundWorker(&process);
}

} // namespace ojs

using namespace ojs;

extern "C" {
PGDLLEXPORT void ojs_launcher_main(Datum);

void
ojs_launcher_main(Datum)
{
    guarded([] {
        pqsignal(SIGTERM, die);
        pqsignal(SIGHUP, SignalHandlerForConfigReload);
        BackgroundWorkerUnblockSignals();
        BackgroundWorkerInitializeConnection(nullptr, nullptr, 0);
        SetConfigOption("application_name", "ojs launcher", PGC_USERSET, PGC_S_OVERRIDE);
        if (shared == nullptr)
            proc_exit(0);

        MemoryContext context = AllocSetContextCreate(TopMemoryContext, "ojs launcher", ALLOCSET_DEFAULT_SIZES);
        MemoryContextSwitchTo(context);
        HASHCTL control = {};
        control.keysize = sizeof(Oid);
        control.entrysize = sizeof(Served);
        control.hcxt = context;
        served = hash_create("ojs databases", 64, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
        before_shmem_exit(launcher_leaves, 0);
        pg_atomic_write_u32(&shared->launcher, static_cast<uint32>(my_process_number()) + 1);
        launch(context);
    });
}
}
