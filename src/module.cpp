/*
 * module.cpp: the library's entry points: the magic block and _PG_init.
 */
#include "ojs/counts.h"
#include "ojs/guard.h"
#include "ojs/guc.h"
#include "ojs/error.h"
#include "ojs/figures.h"
#include "ojs/hints.h"
#include "ojs/hooks.h"
#include "ojs/pressure.h"
#include "ojs/queue.h"
#include "ojs/store.h"
#include "ojs/upkeep.h"
#include "ojs/wake.h"
#include "ojs/worker.h"

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
        ojs::hooks_init();
        ojs::wake_init();
        ojs::figures_init();
        ojs::pressure_init();
        ojs::counts_init(); /* after waking, so called before it: who is woken finds its job counted */
        ojs::shared_init();
    });
}
}
