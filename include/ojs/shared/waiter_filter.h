/*
 * waiter_filter.h: which queues a waiter waits for.
 */
#pragma once

#include "ojs/shared/shmem.h"

namespace ojs
{

/* Returns whether the waiter may wait for this queue; where it has a filter, other queues may pass it, too. */
bool waits_for(const Waiter &waiter, int64 queue);

/* Notes the queues of a waiter. A picky one has a filter however few they are. */
void wait_for_queues(Waiter &waiter, const int64 *queues, int n, bool picky);

} // namespace ojs
