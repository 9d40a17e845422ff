/*
 * worker.h: the launcher, the background worker of a database, and the hot set that stands or must be rebuilt.
 */
#pragma once

#include "ojs/pg.h"

namespace ojs
{

void shared_init(); /* from _PG_init, while preloading: shared memory and the launcher */

/* Whether the library was preloaded, so that there is shared memory. */
bool shared_memory();
/* Whether the upkeep worker of this database runs and will send notifications. */
bool worker_running();
/* Sets the worker's latch: something is due sooner than it thinks. Nothing without one. */
void worker_poke();

/* --- the hot set (hot_set.cpp, rebuild.cpp) --- */

/*
 * The hot set stands before anything reads or writes it: checked once per session, and again after whatever empties
 * `feed`. Where it does not, has it rebuilt by a process of its own and waits for that; in the transaction that
 * created the extension, or where no process can be had, rebuilds in place.
 */
void ensure_hot_set();

/* What `feed` says at this moment, whatever the caller's snapshot. */
struct Feed {
    bool stands;   /* the hot set holds every open job */
    bool restored; /* it did, but rows came into the truth past it */
    bool ours;     /* what is said so was written by this very transaction, or the tables were made by it */
};
Feed read_feed();

/* The rebuild itself, inside a transaction of the caller's (rebuild.cpp). False: it stood already. `cause` may be null:
 * found out. */
bool rebuild_hot_set(const char *cause);

/* Whether a rebuild or a reconcile pass is under way in another process. */
bool rebuild_under_way();

/*
 * The net under it all: open jobs, created before `created_before`, that are in no place of the hot set are put back,
 * and reported with a WARNING. How many; -1: another process is at it.
 */
int64 reconcile_hot_set(TimestampTz created_before);
/* The same now and then: every five minutes, or more rarely where a pass takes long. For every tick. */
void reconcile_if_due();

/* One bounded pass of upkeep inside the caller's transaction (tick.cpp); true: there was more to do than `budget`. */
bool tick_once(int budget);

/* The current transaction's commit waits for the disk, whatever the process has set. */
void commit_durably();

/* --- processes (launcher.cpp, worker.cpp) --- */

void register_launcher();

/* Registers a worker for a database; `main` is the exported function. Null: no room in max_worker_processes. */
BackgroundWorkerHandle *start_process(const char *name, const char *main, Oid database, int notify_pid);

/* Advisory locks of a kind that no SQL function can name, one set per database. */
enum class ProcessLock : uint32 { leading = 1, present = 2, asking = 3 };
LOCKTAG process_lock(ProcessLock which);

/* Whether an upkeep worker serves this database, by its lock: works without preload. */
bool worker_present();

/* Whether someone is dropping, renaming or copying the database, or waits to: then our processes must leave it. */
bool database_in_use_by_ddl(Oid database);

} // namespace ojs
