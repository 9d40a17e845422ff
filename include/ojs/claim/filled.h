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

/*
 * Those of `ids`, which are in order, that have a row in `ready` which is not dead. Of those in `known`, which had jobs
 * at the last look, only jobs of a higher priority are looked for. Takes time and pages for the entries of queues with
 * a few of them, and a look or two for each with many, however many queues there are.
 */
int filled_queues(Tables &tables, const int64 *ids, int n, const FilledQueue *known, int n_known, FilledQueue *filled);

} // namespace ojs
