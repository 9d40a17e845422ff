/*
 * tick.h: one bounded pass of upkeep.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

/* Runs inside the caller's transaction. Returns true if there was more to do than `budget`. */
bool tick_once(int budget);

/* The current transaction's commit waits for the disk, whatever the process has set. */
void commit_durably();

} // namespace ojs
