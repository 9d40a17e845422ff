/*
 * module.cpp: the library's entry points: the magic block and _PG_init.
 */
#include "ojs/counters/queue_counters.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/pg/error.h"
#include "ojs/counters/job_metrics.h"
#include "ojs/claim/scan_hints.h"
#include "ojs/job/hooks.h"
#include "ojs/counters/pressure.h"
#include "ojs/queue/access.h"
#include "ojs/queue/tenant.h"
#include "ojs/queue/queue.h"
#include "ojs/store/store.h"
#include "ojs/state/reap.h"
#include "ojs/shared/shmem.h"
#include "ojs/shared/wakeup.h"
#include "ojs/upkeep/duties.h"
#include "ojs/background/launcher.h"
#include "ojs/state/members.h"
#include "ojs/state/ordering.h"

namespace
{

enum Lock { lock_shared, lock_counters, lock_metrics, n_locks };

ojs::RequestHook next_request_hook;
shmem_startup_hook_type next_startup_hook;

extern "C" void
on_request()
{
    if (next_request_hook != nullptr)
        next_request_hook();
    ojs::shmem_request();
    RequestAddinShmemSpace(
        add_size(MAXALIGN(ojs::counts_size()), add_size(MAXALIGN(ojs::job_metrics_size()), ojs::duties_size())));
    RequestNamedLWLockTranche("ojs", n_locks);
}

extern "C" void
on_startup()
{
    if (next_startup_hook != nullptr)
        next_startup_hook();
    LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
    LWLockPadded *locks = GetNamedLWLockTranche("ojs");
    bool found = ojs::shmem_startup(&locks[lock_shared].lock);
    ojs::counts_startup(&locks[lock_counters].lock, found);
    ojs::job_metrics_startup(&locks[lock_metrics].lock, found);
    ojs::duties_startup(found);
    LWLockRelease(AddinShmemInitLock);
}

/* Shared memory and the launcher, if the library is being preloaded. */
void
preload()
{
    if (!process_shared_preload_libraries_in_progress)
        return;
    next_request_hook = ojs::chain_request_hook(on_request);
    next_startup_hook = shmem_startup_hook;
    shmem_startup_hook = on_startup;
    ojs::register_launcher();
}

} // namespace

extern "C" {
#ifdef PG_MODULE_MAGIC_EXT /* 18 lets a module say who it is */
PG_MODULE_MAGIC_EXT(.name = "ojs", .version = OJS_VERSION);
#else
PG_MODULE_MAGIC;
#endif

PGDLLEXPORT void _PG_init(void);

void
_PG_init(void)
{
    ojs::guarded([] {
        ojs::guc_init();
        if (IsBinaryUpgrade)
            return;
        ojs::error_init();
        ojs::store::catalog_init();
        ojs::store::commit_init();
        ojs::queue_init();
        ojs::upkeep_init();
        ojs::hints_init();
        ojs::tenant_init();
        ojs::access_init();
        ojs::hooks_init();
        ojs::members_init();
        ojs::wake_init();
        ojs::job_metrics_init();
        ojs::pressure_init();
        ojs::counts_init();   /* after waking, so called before it: who is woken finds its job counted */
        ojs::ordering_init(); /* after those, so called before them: it makes jobs available */
        preload();
    });
}
}
