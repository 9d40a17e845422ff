/*
 * launcher.cpp: keeps an upkeep worker in every database that has the extension, or lets them take turns.
 *
 * Runs when the library is preloaded, from the end of recovery on, so that a standby has none until it is promoted. It
 * is in no database and sees the shared catalogs only: which databases there are, but not which have the extension. So
 * it starts a worker in each to see, once; one that finds no extension ends, and is started again when a session with
 * the extension asks (CREATE EXTENSION does at its commit), or, as a net, after a while.
 *
 * Where there are more databases than workers may be, `take_turns` is set: a worker then leaves as soon as it has
 * nothing to do, and says until when (Database::visit_us). Databases get the next worker in the order in which they are
 * due. One in which something has been done since its worker left is due a second after that.
 */
#include "ojs/pg/error.h"
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

/* By the steady clock, as are all times here. */
constexpr int64 look_for_databases_us = 10 * USECS_PER_SEC;
constexpr int64 restart_us = 5 * USECS_PER_SEC; /* after a worker that failed */
constexpr int64 asked_us = USECS_PER_SEC;       /* … when a session asks, or has done something */
constexpr int64 no_extension_us = 10 * SECS_PER_MINUTE * USECS_PER_SEC;
constexpr int64 fresh_us = USECS_PER_SEC / 50; /* before a worker is started */
constexpr int64 say_full_every_us = 10 * SECS_PER_MINUTE * USECS_PER_SEC;

struct Served {
    Oid oid; /* key */
    BackgroundWorkerHandle *handle;
    Database *slot; /* null: there is no room for one */
    int64 started_us;
    int64 ended_us;
    int64 try_us; /* not before, unless a session asks */
    int64 due_us; /* as far as is known in this round */
    bool exists;
    bool runs;
};

HTAB *served;
int64 looked_us;
int64 full_us; /* no background process was to be had then, */
int most_then; /* … when so many ran */
int64 said_full_us;

extern "C" void
launcher_leaves(int, Datum)
{
    pg_atomic_write_u32(&shared->launcher, 0);
}

/* What a database that is gone has in shared memory; the slot last, by which the rest is known. */
void
give_back(Oid database)
{
    free_counters(database);
    free_metrics(database);
    free_database_slot(database);
}

/* Which databases there are that could have a worker. */
void
look_for_databases(MemoryContext context)
{
    HASH_SEQ_STATUS all;
    hash_seq_init(&all, served);
    while (auto *one = static_cast<Served *>(hash_seq_search(&all)))
        one->exists = false;

    /*
     * A session takes a slot for a database that exists: if this snapshot, which is later, does not see it, it is gone.
     */
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
            *one = {database->oid, nullptr, nullptr, 0, 0, 0, 0, true, false};
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
    looked_us = steady_us();
}

/* --- one database --- */

bool
is_set(pg_atomic_uint32 Database::*flag, const Served &one)
{
    return one.slot != nullptr && pg_atomic_read_u32(&(one.slot->*flag)) != 0;
}

/* Whether a worker is there, and when one that was has ended. */
void
look_at(Served &one, int64 at)
{
    pid_t pid;
    one.slot = database_slot(one.oid);
    one.runs = false;
    if (one.handle != nullptr) {
        if (GetBackgroundWorkerPid(one.handle, &pid) != BGWH_STOPPED) {
            one.runs = true; /* its end wakes us */
            return;
        }
        pfree(one.handle);
        one.handle = nullptr;
        one.ended_us = at;
        /* One that left to let others have a turn says when it is to come back; any other has failed, or was ended. */
        if (one.slot == nullptr || is_set(&Database::absent, one))
            one.try_us = one.started_us + no_extension_us;
        else if (!is_set(&Database::turn_over, one))
            one.try_us = one.started_us + restart_us;
        else
            one.try_us = 0;
    }
    if (is_set(&Database::worker, one)) { /* one that ojs.start_worker() started */
        pg_atomic_write_u32(&one.slot->asked, 0);
        one.runs = true;
        one.ended_us = at;
    }
}

/* When it is to have a worker, if there is one for it. */
int64
due_us(const Served &one, bool take_turns)
{
    int64 due = one.try_us;
    if (is_set(&Database::asked, one))
        due = std::min(due, one.started_us + asked_us);
    if (!take_turns || one.slot == nullptr)
        return due;
    auto visit = static_cast<int64>(pg_atomic_read_u64(&one.slot->visit_us));
    if (is_set(&Database::active, one))
        visit = std::min(visit, one.ended_us + asked_us);
    return std::max(due, visit);
}

void
say_full(int64 at)
{
    if (said_full_us == 0 || at - said_full_us >= say_full_every_us)
        ereport(LOG, (errmsg("ojs could not start the worker of a database"),
                      errdetail("No background process was free. Databases take turns with those that run."),
                      errhint("Consider raising max_worker_processes.")));
    said_full_us = at;
}

/* Returns false if no process could be started. */
bool
start(Served &one, int64 at)
{
    if (database_in_use_by_ddl(one.oid)) {
        one.try_us = at + asked_us;
        return true;
    }
    if (one.slot != nullptr) {
        pg_atomic_write_u32(&one.slot->asked, 0);
        pg_atomic_write_u32(&one.slot->turn_over, 0); /* one that fails before it is there has not left by itself */
    }
    one.started_us = at;
    one.handle = start_process("ojs worker", "ojs_worker_main", one.oid, MyProcPid);
    one.runs = one.handle != nullptr;
    if (!one.runs)
        say_full(at);
    return one.runs;
}

/* --- all of them --- */

/* By default half of the background processes of the server: parallel query and replication want some, too. */
int
most_workers()
{
    return settings.max_workers >= 0 ? settings.max_workers : std::max(1, max_worker_processes / 2);
}

/* Starts what is due; when to look again. */
int64
serve(Served **all, int n, MemoryContext context)
{
    int64 at = steady_us();
    int running = 0;
    int wanted = 0; /* databases that have the extension, or may have it */
    for (int i = 0; i < n; i++) {
        look_at(*all[i], at);
        running += all[i]->runs;
        wanted += all[i]->runs || all[i]->slot == nullptr || pg_atomic_read_u32(&all[i]->slot->absent) == 0;
    }
    bool full = full_us != 0 && at - full_us < look_for_databases_us;
    int most = full ? std::min(most_workers(), std::max(most_then, 1)) : most_workers();
    bool take_turns = wanted > most;
    if (take_turns != (pg_atomic_exchange_u32(&shared->take_turns, take_turns) != 0) && take_turns)
        for (int i = 0; i < n; i++)
            if (all[i]->slot != nullptr)
                set_latch(pg_atomic_read_u32(&all[i]->slot->worker));

    for (int i = 0; i < n; i++) /* once: sessions change it meanwhile */
        all[i]->due_us = due_us(*all[i], take_turns);
    std::sort(all, all + n, [](const Served *a, const Served *b) { return a->due_us < b->due_us; });
    int64 next = at + look_for_databases_us;
    for (int i = 0; i < n; i++) {
        Served &one = *all[i];
        if (one.runs)
            continue;
        if (one.due_us > at)
            return std::min(next, one.due_us);
        if (running >= most)
            return next;                 /* the end of a worker wakes us */
        if (at - looked_us > fresh_us) { /* it may have been dropped meanwhile */
            look_for_databases(context);
            return at;
        }
        if (!start(one, at)) {
            full_us = at;
            most_then = running;
            return at + asked_us;
        }
        running += one.runs;
        if (!one.runs)
            next = std::min(next, one.try_us);
    }
    return next;
}

Served **
all_served(int *n)
{
    HASH_SEQ_STATUS scan;
    auto **all = static_cast<Served **>(palloc(sizeof(Served *) * (hash_get_num_entries(served) + 1)));
    *n = 0;
    hash_seq_init(&scan, served);
    while (auto *one = static_cast<Served *>(hash_seq_search(&scan)))
        all[(*n)++] = one;
    return all;
}

bool
asked_by_new()
{
    for (Database &database : shared->databases)
        if (OidIsValid(database.oid) && pg_atomic_read_u32(&database.asked) != 0 &&
            hash_search(served, &database.oid, HASH_FIND, nullptr) == nullptr)
            return true;
    return false;
}

void
launch(MemoryContext context)
{
    static uint32 event;
    look_for_databases(context);

    for (;;) {
        int64 next = steady_us() + look_for_databases_us;

        CHECK_FOR_INTERRUPTS();
        if (ConfigReloadPending) {
            ConfigReloadPending = false;
            ProcessConfigFile(PGC_SIGHUP);
        }
        if (steady_us() - looked_us >= look_for_databases_us ||
            (settings.worker && asked_by_new() && steady_us() - looked_us > fresh_us))
            look_for_databases(context); /* what is gone gives back what it had, workers or not */
        if (settings.worker) {
            int n;
            Served **all = all_served(&n);
            next = serve(all, n, context);
            pfree(all);
        }
        int64 ms = (std::clamp<int64>(next - steady_us(), 0, look_for_databases_us) + 999) / 1000;
        (void)WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, std::max<int64>(ms, 10),
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
    int64 until_us = steady_us() + patience_us;
    while (steady_us() < until_us) {
        pid_t pid;
        if (worker_present())
            PG_RETURN_BOOL(true);
        if (GetBackgroundWorkerPid(handle, &pid) == BGWH_STOPPED)
            break;
        sleep_ms(10, "OjsWorkerStart", &event);
    }
    PG_RETURN_BOOL(false);
}
