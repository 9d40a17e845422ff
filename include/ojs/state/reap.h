/*
 * reap.h: what time does to jobs: leases lapse, waiting jobs fall due, jobs expire. Claims do it for what they need,
 * the tick for everything.
 */
#pragma once

#include "ojs/store/tables.h"

namespace ojs
{

/* Which jobs: all, or those of some queues only. */
struct Scope {
    const int64 *queues; /* in order; null: all */
    int n;

    bool all() const { return queues == nullptr; }
    bool has(int64 queue) const { return all() || std::binary_search(queues, queues + n, queue); }
};

/*
 * Ends leases that are past their deadline or their execution timeout, at most `limit`, and returns their number. With
 * all queues in scope it also makes the index entries of extended leases agree with their deadlines, which locks leases
 * that are held: so only for a caller whose transaction ends at once.
 */
int reap(Tables &tables, Scope scope, int limit, TimestampTz now);

/*
 * Makes jobs claimable that fell due, and such whose turn with their ordering key has come, at most `limit`, the first
 * in claim order first (of the earliest `upkeep_batch` due), and returns their number. With all queues in scope it also
 * discards those that expired. With some queues in scope it may stop before their jobs where very many of other queues
 * are due; the next call goes on there.
 */
int promote(Tables &tables, Scope scope, int limit, TimestampTz now);

/* Returns whether this session's last pass of these two reached its limit or was rolled back: more may be due. */
bool upkeep_left_over();

/* How many jobs of a queue these two would make available, counted up to `most`. */
int64 count_due(Tables &tables, int64 queue, int64 most, TimestampTz now);

/*
 * Since when a lease has been over that nobody has ended, or a waiting job due that nobody has made available; DT_NOEND
 * if there is none. What another transaction has locked does not count. Looks at a bounded number of rows.
 */
TimestampTz lapsed_since(Tables &tables, TimestampTz now);
TimestampTz due_since(Tables &tables, TimestampTz now);

/*
 * Finds the workers that sent heartbeats and then none for heartbeat_timeout_us, and takes their jobs back, at most
 * `limit`, before the leases end (WRK-07).
 */
struct Recovered {
    int workers;
    int jobs;
};
Recovered recover_from_dead(Tables &tables, int limit, TimestampTz now);

/* Takes back the jobs of one worker as of a dead one, whenever it was last heard of. Returns their number. */
int take_back_from(Tables &tables, text *worker, TimestampTz now);

constexpr int upkeep_batch = 1000;

/* No lease runs out before this, as far as this session knows; for who looks for such without reaping. */
TimestampTz no_lease_before(TimestampTz now);

void upkeep_init(); /* once, at load */

} // namespace ojs
