/*
 * part_news.h: tenants' parts of queues that have got jobs, as commits tell sessions that claim of all parts of a queue
 * (claim/fair.h). Such a session knows which parts have jobs and looks only now and then. What it misses here, because
 * it was told long ago or by a prepared transaction, it finds when it looks. A ring of queues for all databases, since
 * their ids are hashes; without preload there is none.
 */
#pragma once

#include "ojs/shared/shmem.h"

namespace ojs
{

/* Jobs of this part can be found, and are counted. */
void note_part_news(int64 queue);

/* How many there have been: a session hears what comes after that. */
uint64 part_news();

/* Calls body(queue) for what came since, and moves `upto` along; what has been overwritten is left out. */
template <typename Body>
void
each_part_news(uint64 &upto, Body body)
{
    uint64 end = part_news();
    if (end - upto > max_part_news)
        upto = end - max_part_news;
    for (; upto < end; upto++)
        body(static_cast<int64>(pg_atomic_read_u64(&shared->part_news[upto % max_part_news])));
}

} // namespace ojs
