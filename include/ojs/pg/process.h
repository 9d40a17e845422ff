/*
 * process.h: background processes of ours, and the advisory locks by which they know of each other.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

/* A background process that runs `main`, an exported function, as `name`; the caller sets what differs. */
BackgroundWorker describe_process(const char *name, const char *main);

/* Starts one for a database. Returns null if max_worker_processes leaves no room. */
BackgroundWorkerHandle *start_process(const char *name, const char *main, Oid database, int notify_pid);

/* Advisory locks of a kind that no SQL function can name, one set per database. */
enum class ProcessLock : uint32 { leading = 1, present = 2, asking = 3 };
LOCKTAG process_lock(ProcessLock which);

/* `leading` is asked for by workers only, so one that does not get it knows that another leads. `present` is for those
 * who want to know: they ask for it without waiting and let go at once. */
bool become_leader();
void give_up_lead();

/* Whether an upkeep worker serves this database, by its lock: works without preload. */
bool worker_present();

/* Whether someone is dropping, renaming or copying the database, or waits to: then our processes must leave it. */
bool database_in_use_by_ddl(Oid database);

/* A hash of what ALTER DATABASE and ALTER ROLE have set for a session that begins as this one did; nothing while
 * somebody has that table. */
std::optional<uint64> hash_of_stored_settings();

} // namespace ojs
