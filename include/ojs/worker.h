/*
 * worker.h: the launcher, the background worker of a database, and what they share with sessions.
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

/*
 * The hot set stands before anything reads or writes it: checked once per session, and again after whatever empties
 * `feed`. Where it does not, has it rebuilt by a process of its own and waits for that; in the transaction that
 * created the extension, or where no process can be had, rebuilds in place.
 */
void ensure_hot_set();

/* The rebuild itself, inside a transaction of the caller's (rebuild.cpp). False: it stood already. */
bool rebuild_hot_set(const char *cause);

/* One bounded pass of upkeep inside the caller's transaction (tick.cpp); true: there was more to do than `budget`. */
bool tick_once(int budget);

} // namespace ojs
