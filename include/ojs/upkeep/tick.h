/*
 * tick.h: what a pass of upkeep needs besides its duties (duties.h).
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

/* The current transaction's commit waits for the disk, whatever the process has set. */
void commit_durably();

} // namespace ojs
