/*
 * queue_counters.h: how many jobs of each queue are where, without counting them.
 *
 * Every row that goes into or out of ready, lease, delayed and finished is noted with the running (sub)transaction; the
 * commit adds the notes up in shared memory, and a rollback forgets them. So a commit is counted before it is reported.
 * The rows remain what counts: they are counted once after a start (recount.cpp), while commits go on, and now and
 * then.
 *
 * Without preload there is nothing shared, and who asks counts the rows.
 */
#pragma once

#include "ojs/store/store.h"

namespace ojs
{

/*
 * Where a row is: the open ones by table and kind, reminders of expiry aside; then the finished ones that are kept.
 * Some count once more: those with a rate limit among the open ones, dead letters among the finished ones.
 */
enum class Where {
    ready,
    leased,
    scheduled,
    retryable,
    pending,
    released,
    limited,
    completed,
    cancelled,
    discarded,
    dead_letter,
    count
};
constexpr int n_where = static_cast<int>(Where::count);

/* Jobs there wait, and count towards the bound of their queue (BP-02). */
constexpr Where waiting_states[] = {Where::ready, Where::scheduled, Where::retryable, Where::pending, Where::released};

/* Counted apart: what is open is soon counted, what is kept may be much. */
enum class Part { open, ended };
constexpr int first_ended = static_cast<int>(Where::completed);

struct Counts {
    int64 queue; /* first: key of tables of these */
    int64 n[n_where];
    int64 bytes; /* of those that wait and whose size counts */

    int64 operator[](Where where) const { return n[static_cast<int>(where)]; }
};

void counts_init(); /* at load: transaction callbacks, and the watcher of the tables */

/* In shared memory (shmem.cpp asks). */
Size counts_size();
void counts_startup(LWLock *lock, bool found);

/* Rows went in or out of a part's tables unnoticed: once this transaction commits, they are counted anew. */
void counts_lost(Part part);

/* A row of ready, lease, delayed or finished, for those that write by SQL. */
void note_row(store::Rel rel, HeapTupleHeader row, int change);

/*
 * What is committed and what this transaction has changed, by queue. Without preload the open rows are counted at most
 * once in `max_age_us`; 0: now.
 */
void read_counts(const int64 *queues, int n, bool ended, int64 max_age_us, Counts *out);

/* The shared counters and what this transaction has changed. Returns false where rows would have to be counted. */
bool read_shared_counts(const int64 *queues, int n, bool ended, Counts *out);

/*
 * How many jobs of the queue are ready, as far as the shared counters know; -1 where they do not, or this transaction
 * has changed some. A commit may be a moment from being counted, so only for what may be wrong for a while.
 */
int64 ready_jobs(int64 queue);
inline bool
seems_empty(int64 queue)
{
    return ready_jobs(queue) == 0;
}

/* What waits in a queue, comes to it, or may wait there: jobs, and the bytes of those whose size counts. */
struct Load {
    int64 jobs;
    int64 bytes;

    Load operator+(const Load &more) const { return {jobs + more.jobs, bytes + more.bytes}; }
    bool within(const Load &bound) const { return jobs <= bound.jobs && bytes <= bound.bytes; }
    /* Of the bound that is nearer. */
    double part_of(const Load &bound) const
    {
        return std::max(static_cast<double>(jobs) / static_cast<double>(bound.jobs),
                        static_cast<double>(bytes) / static_cast<double>(bound.bytes));
    }
};
constexpr Load unbounded = {PG_INT64_MAX, PG_INT64_MAX};

/*
 * Slots for jobs that this transaction is about to push to a queue in which no more than `bound` may wait
 * (reservation.cpp). They are the transaction's until it ends; a rollback, of a savepoint too, gives them back.
 * `depth`: what waits now, that included which open transactions have places for. From the part `warn_at` of the bound
 * on it is told as an event (pressure.h). none: there are no shared counters to go by.
 */
enum class Reservation { made, full, none };
Reservation reserve(int64 queue, const Load &wanted, const Load &bound, double warn_at, Load *depth);
/* The same of what waits in several queues together, or of that which is not due yet; the bound has an id of its own,
 * which no queue has. */
Reservation reserve_among(int64 bound_id, const int64 *queues, int n, bool scheduled_only, int64 wanted, int64 bound,
                          int64 *depth);
/* Whether reserve() has shared counters to go by. */
bool reserves();
/* What waits in the queue by this transaction's own doing. */
Load waiting_by_us(int64 queue);
/* The lock of a bounded queue: who holds it exclusively is alone in pushing to the queue. */
void lock_bound(int64 queue, LOCKMODE mode);

/* The counters of a database that is gone. */
void free_counters(Oid database);

/* For the worker: counts the open rows after a start, and now and then, when a transaction may take that long. */
void recount_if_due();

} // namespace ojs
