/*
 * aging.h: jobs that rise while they wait, in queues with priority_aging_s.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

/*
 * Raises jobs that have been at their priority for a step, by one. Only what a claim goes by changes: the envelope
 * keeps its priority, so a crash begins anew from that. Returns whether there is more to do at once.
 */
bool raise_priorities(int limit, TimestampTz now);

} // namespace ojs
