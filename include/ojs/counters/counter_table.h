/*
 * counter_table.h: the counters in shared memory, and this transaction's changes.
 */
#pragma once

#include "ojs/counters/queue_counters.h"
#include "ojs/pg/xact_notes.h"
#include "ojs/shared/shmem.h"

namespace ojs
{

constexpr int max_counters = 16384; /* queues with jobs, in all databases; beyond, everybody counts the rows */

/* Which event of a bounded queue is to be emitted: see pressure.h. */
enum class Alarm : uint8 { off, due, emitted };

/* A queue's counters. One that is not there counts as zeros, so an idle one may be removed. */
struct Counter {
    QueueKey key;
    pg_atomic_uint64 n[n_where];
    pg_atomic_uint64 reserved;       /* slots of open transactions (reservation.cpp); not part of n */
    pg_atomic_uint64 since[n_where]; /* by commits that the snapshot of the running recount does not see */
    pg_atomic_uint64 bytes, reserved_bytes, bytes_since; /* the same of sizes, where the queue bounds them */
    Alarm warned, refused;                               /* under the lock, exclusively */
};

/* The recount that runs; one at a time. */
struct Recount {
    TimestampTz swept_at; /* when idle counters were last looked for because there was no room */
    bool running;
    bool spoilt; /* rows of the part changed unnoticed meanwhile */
    Oid database;
    Part part;
    TransactionId xmax; /* its snapshot */
    int n_running;
    TransactionId running_xids[FLEXIBLE_ARRAY_MEMBER];
};

/*
 * Held in shared mode to add to counters that exist; exclusively for everything else, so that who reads or begins a
 * recount sees none in between. Only look-ups in memory and the taking of a snapshot happen under it.
 */
extern LWLock *counters_lock;
/* By process number: the transaction that is about to commit, until its changes have been added; 0: none. */
extern pg_atomic_uint32 *committing;
extern HTAB *counters; /* of Counter; null without preload */
extern Recount *recount;

/* Pushes that were refused, until the event is emitted: the first of each queue. */
struct Refusal {
    Oid database; /* invalid: free */
    int64 queue;
    Load depth;
    Load bound;
    char job_type[256]; /* ends in a zero */
};
struct Alarms {
    pg_atomic_uint32 raised; /* how often an event became due */
    Refusal refusals[64];
};
extern Alarms *alarms;

/*
 * The counter of a queue of this database, which has a slot, made if need be; under the lock, exclusively. Where there
 * is no room, the database with most counters gives its own up, and its rows are counted from now on. If that is this
 * one, returns null.
 */
Counter *counter_of(int64 queue);
/* Under the lock, in any mode; null: there is none. */
Counter *find_counter(int64 queue, Oid database = MyDatabaseId);

/* Which queue a row belongs to and what it counts as; `also` is the same as `where` unless it counts once more. Returns
 * false for a reminder, which is no job. */
bool where_of(store::Rel rel, HeapTupleHeader row, int64 &queue, Where &where, Where &also);

/* Whether a row of ready or delayed, which is no reminder, is one of a job whose size counts; and that job. */
struct SizedJob {
    pg_uuid_t id;
    ItemPointerData tid;
};
bool sized(store::Rel rel, HeapTupleHeader row, SizedJob &job);

/* Whether a transaction that has ended is one whose rows the running recount counts. */
bool counted_by_recount(TransactionId xid);

/* What this transaction has changed and not committed yet. */
struct Change {
    int64 queue;
    int level; /* of the subtransaction */
    int32 n[n_where];
    int32 reserved;
    int64 bytes;
    int64 reserved_bytes;

    bool same(const Change &o) const { return queue == o.queue; }
    bool before(const Change &o) const { return queue < o.queue; }
    void add(const Change &o)
    {
        for (int w = 0; w < n_where; w++)
            n[w] += o.n[w];
        reserved += o.reserved;
        bytes += o.bytes;
        reserved_bytes += o.reserved_bytes;
    }
};
extern Notes<Change> changes;
/* The note of the running subtransaction about a queue; good until the next note. */
Change &change_of(int64 queue);

/* This transaction has changed rows unnoticed. */
extern bool lost_here[2];

/* Whether there is room for the counters of a database that has none for lack of it. */
bool room_for_counters();

/* Whether these shared counters can be used at all; null: count. */
Database *counting_database();

/* --- reservation.cpp --- */

/* Takes reserved slots away; never more than there are, since a counter may have been lost with some meanwhile. */
void subtract(pg_atomic_uint64 &places, int64 n);
void give_back(const Change &change);
Load load_of(Counter &counter); /* what waits, and what open transactions have reserved */
/* A transaction that is being prepared: its slots are kept by locks, since nobody hears when it ends. */
void keep_while_prepared();

/* --- recount.cpp --- */

/* Whether the counters of a part can be read, under the lock, as right; counts the rows first where that is needed. */
bool settled(Database &database, Part part);

/* Makes the shared counters of this database right; `again`: even if somebody else has just done so. Returns
 * false if another recount takes too long to be waited for. */
bool recount_rows(Part part, bool again);
/* At the end of a transaction: a recount that it has not finished. */
void recount_given_up();
/* What is being committed, for the counts that this session remembers without preload: room for it, while a failure may
 * still end the transaction, and the counts once it has committed. */
void prepare_to_remember();
void remember_changes();

} // namespace ojs
