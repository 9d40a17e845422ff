/*
 * filled.h: which of many queues have jobs to hand out.
 */
#pragma once

#include "ojs/store/tables.h"

namespace ojs
{

struct FilledQueue {
    int64 queue;
    int16 npriority; /* of the first of its jobs */
};

/* Among some in the order of their ids; null: not there. */
inline const FilledQueue *
known_as(const FilledQueue *known, int n, int64 queue)
{
    const FilledQueue *at = std::lower_bound(known, known + n, queue,
                                             [](const FilledQueue &one, int64 wanted) { return one.queue < wanted; });
    return at != known + n && at->queue == queue ? at : nullptr;
}

/*
 * Those of `ids`, which are in order, that have a row in `ready` which is not dead. Of those in `known`, which had jobs
 * at the last look, only jobs of a higher priority are looked for. Takes time and pages for the entries of queues with
 * a few of them, and a look or two for each with many, however many queues there are.
 */
int filled_queues(Tables &tables, const int64 *ids, int n, const FilledQueue *known, int n_known, FilledQueue *filled);

} // namespace ojs
