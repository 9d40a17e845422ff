/*
 * hot_set.cpp: whether the hot set stands, and having it rebuilt where it does not.
 */
#include "ojs/counters/queue_counters.h"
#include "ojs/pg/error.h"
#include "ojs/pg/guard.h"
#include "ojs/shared/shmem.h"
#include "ojs/store/store.h"
#include "ojs/hot_set/hot_set.h"
#include "ojs/pg/settings.h"
#include "ojs/pg/process.h"
#include "ojs/pg/session_cache.h"

namespace ojs
{

namespace
{

SessionCache checked;

uint32 rebuild_wait_event;

/*
 * Another process does it; in a caller's open transaction it would hold up everybody until that ends. The worker does,
 * or else one of those who need it starts a process for it. Gives up when for a while nobody has been at it.
 */
void
have_it_rebuilt()
{
    constexpr int64 patience_us = 5 * USECS_PER_SEC;
    constexpr int64 no_process_us = USECS_PER_SEC;
    LOCKTAG asking = process_lock(ProcessLock::asking);
    int64 idle_since_us = steady_us();

    worker_poke();
    while (!read_hot_set_state().valid) {
        bool by_worker = worker_running();
        if (rebuild_under_way())
            idle_since_us = steady_us();
        else if (steady_us() - idle_since_us > (by_worker ? patience_us : no_process_us))
            return;
        else if (!by_worker && LockAcquire(&asking, ExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL) {
            BackgroundWorkerHandle *handle = start_process("ojs rebuild", "ojs_rebuild_main", MyDatabaseId, MyProcPid);
            if (handle != nullptr)
                (void)WaitForBackgroundWorkerShutdown(handle);
            LockRelease(&asking, ExclusiveLock, false);
            if (handle != nullptr) { /* it has done what it can */
                if (!rebuild_under_way())
                    return;
                continue;
            }
        }
        sleep_ms(10, "OjsRebuildWait", &rebuild_wait_event);
    }
}

void
rebuild_in_place()
{
    PreventCommandIfReadOnly("rebuilding the hot set of ojs");
    PreventCommandIfParallelMode("rebuilding the hot set of ojs");
    if (rebuild_hot_set(nullptr))
        CommandCounterIncrement();
}

} // namespace

void
ensure_hot_set()
{
    note_activity();
    uint64 generation = store::catalog_generation(store::Rel::hot_set_state);
    if (checked.holds(generation))
        return;
    if (RecoveryInProgress())
        return;

    /* What our own transaction wrote can be rolled back: nothing to remember. */
    HotSetState state = read_hot_set_state();
    if (!state.valid && !state.ours) {
        have_it_rebuilt();
        state = read_hot_set_state();
    }
    if (!state.valid) {
        if (!state.ours)
            ereport(LOG, (errmsg("ojs rebuilds its hot set in the transaction of a caller"),
                          errdetail("No background process could be had for it."),
                          errhint("Consider raising max_worker_processes.")));
        rebuild_in_place();
        return;
    }
    if (state.ours)
        return;
    ask_for_worker();
    checked = {true, generation};
}

void
note_restore()
{
    counts_lost(Part::ended); /* it may be many rows */
    HotSetState state = read_hot_set_state();
    if (state.restored && state.ours)
        return;
    store::Table table = store::open(store::Rel::hot_set_state, RowExclusiveLock);
    Datum values[state_columns];
    bool nulls[state_columns] = {};
    Interval none = {};
    values[state_rebuilt_at] = TimestampTzGetDatum(DT_NOBEGIN);
    values[state_took] = IntervalPGetDatum(&none);
    values[state_jobs] = Int64GetDatum(0);
    values[state_cause] = CStringGetTextDatum("restore");
    store::insert(table, heap_form_tuple(RelationGetDescr(table.rel), values, nulls));
    CacheInvalidateRelcache(table.rel); /* all sessions look again once this commits */
    store::close(table);
}

} // namespace ojs

using namespace ojs;

/* Statement trigger on the logged tables: rows came by SQL, as in a restore; direct access fires no trigger. */
OJS_FUNCTION(ojs_hot_set_lost)
{
    if (!CALLED_AS_TRIGGER(fcinfo))
        ereport(ERROR,
                (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED), errmsg("ojs_store.hot_set_lost() is a trigger")));
    note_restore();
    return PointerGetDatum(nullptr);
}
