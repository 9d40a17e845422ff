/*
 * shared_use.h: how much of shared memory is in use, for ojs.health and ojs.metrics.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

struct SharedUse {
    const char *what;
    int64 used; /* by all databases */
    int64 own;  /* by this one */
    int64 most;
};
constexpr int n_shared_uses = 7;

/* Only where there is shared memory. */
void read_shared_uses(SharedUse (&uses)[n_shared_uses]);

/*
 * Whether this database has its jobs counted as they come and go; else their rows are counted whenever somebody asks.
 */
bool has_counters();

} // namespace ojs
