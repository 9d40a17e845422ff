/*
 * shmem.h: what the processes of a cluster share when the library is preloaded: per database its worker and who
 * wants what, per queue whether somebody may be listening, the claims that wait, those that share a queue's jobs, and
 * how often workers claimed. All of it hints: the tables are what counts, and everything here is empty after a restart.
 * Without preload there is none of it, and nothing needs it.
 *
 * One LWLock (`lock`) guards everything but the atomics, and another the counters (counter_table.h). It is held for
 * look-ups in memory only.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

constexpr int max_databases = 1000;      /* one beyond works as if not preloaded */
constexpr int max_listener_flags = 4096; /* queues somebody may listen to; beyond, transactions notify themselves */
constexpr int max_waiter_queues = 16;    /* that a waiting claim names; of more it keeps a filter */
constexpr int waiter_filter_words = 16;
constexpr int max_flag_name = 128;
constexpr int overtaking_slots = 1024; /* queues share them by a hash */
constexpr int max_part_news = 1024;    /* see part_news.h */
constexpr int claim_floors = 1024;     /* queues share them by a hash */
constexpr int max_calls = 4096;        /* workers of queues with a claim_rate, in a second; beyond, sessions count */

enum : uint32 { prepared_open = 1, prepared_ended = 2 }; /* bits of Database::prepared */

/* Slots are taken at first use, and freed by the launcher once it finds that the database is gone. */
struct Database {
    Oid oid;
    pg_atomic_uint32 worker;           /* number of the upkeep worker's process, plus 1; 0: none runs */
    pg_atomic_uint32 waiters;          /* claims that wait here */
    pg_atomic_uint32 wanted;           /* flags of this database that are `wanted` */
    pg_atomic_uint32 pending;          /* … that are `pending` */
    pg_atomic_uint64 crowded_until_us; /* some flags found no room: until then, by the steady clock, transactions notify
                                        * themselves, since nobody knows who listens */
    pg_atomic_uint32 new_wishes;       /* … and no tick has told of the queues that have work yet */
    pg_atomic_uint32 asked;            /* a session wants a worker here */
    pg_atomic_uint32 absent;           /* the last worker found no extension, or that ojs.worker is off here */
    pg_atomic_uint32 poked;            /* something is due sooner than the worker thinks */
    pg_atomic_uint32 active;           /* a transaction has called ojs since the worker's last pass began */
    pg_atomic_uint64 active_us;        /* … and when the first one of them did, by the steady clock */
    pg_atomic_uint32 turn_over;        /* the last worker left to let another database have one */
    pg_atomic_uint64 visit_us;    /* where databases take turns: when the next worker is due, by the steady clock */
    pg_atomic_uint64 left_us;     /* … and when the last one left */
    pg_atomic_uint32 uncountable; /* some queues found no room among the counters: all are counted by their rows */
    pg_atomic_uint32 prepared;    /* prepared transactions have changed rows: see queue_counters.cpp */
    Oid counted[2];               /* by Part: the counters hold the rows of this table `ready`; under their lock */
    Oid metrics_of;            /* the table `ready` of the extension that job_metrics.cpp counts for; under its lock */
    TimestampTz metrics_since; /* … since when */
    bool hour_known;           /* … and knows what the hour before that was like */
    int64 recount_us;          /* when the worker counts again, by the steady clock */
    int worker_pid;
    TimestampTz worker_started_at;
};

struct QueueKey {
    int64 queue;
    Oid database;
    uint32 unused; /* zero: keys are compared as bytes */
};

/* A queue somebody may be listening to. */
struct ListenerFlag {
    QueueKey key;
    bool wanted;    /* a claim came back short since the last NOTIFY */
    bool pending;   /* a NOTIFY is due */
    uint64 changes; /* commits that met this flag */
    int64 sent_us;  /* the last NOTIFY, by the steady clock */
    int name_length;
    char name[max_flag_name]; /* known once pending */
};

/* A claim that waits; indexed by process number. */
struct Waiter {
    Oid database;
    int32 n; /* 0: none, or too many; those that the filter lets through */
    bool woken;
    int64 woken_for;
    int64 queues[max_waiter_queues];
    uint64 filter[waiter_filter_words]; /* a Bloom filter of queue ids, which are hashes */
};

enum class Turn : uint32 {
    gathers,    /* until its window closes */
    is_divided, /* the divider counts jobs */
    claims      /* has its quota */
};

/* A claim that shares a queue's jobs with others (claim_window.h); indexed by process number. */
struct Member {
    Oid database;
    Turn turn;
    int32 divider; /* process number */
    int32 max;
    int32 quota;
    int64 queue;
    int64 at; /* by the steady clock; gathers: when the window closes; claims: since when */
};

struct CallsKey {
    int64 queue;
    uint64 worker; /* hash of its name */
    Oid database;
    uint32 unused; /* zero: keys are compared as bytes */
};

/* A worker's claims on a queue with a claim_rate (claim_rate.h). */
struct Calls {
    CallsKey key;
    TimestampTz since; /* when its second began */
    int64 n;
};

struct FloorKey {
    int64 queue;
    Oid database;
    Oid table; /* `ready`, of the extension that is there now */
    int32 npriority;
    int32 klass;
};

/* Below which position a class of a queue's jobs has none (claim_floor.h). */
struct Floor {
    FloorKey key;
    pg_atomic_uint64 announced; /* no walk raises the floor above this position */
    pg_atomic_uint64 at;
    uint32 holds_at;       /* the floor counts as long as `late` is this */
    pg_atomic_uint32 late; /* jobs that came in below what is announced */
};

struct Shared {
    LWLock *lock;
    HTAB *listener_flags;        /* of ListenerFlag */
    HTAB *calls;                 /* of Calls */
    pg_atomic_uint32 launcher;   /* process number plus 1 */
    pg_atomic_uint32 take_turns; /* there are more databases than workers may be */
    pg_atomic_uint32 overtaking[overtaking_slots];
    pg_atomic_uint64 n_part_news;
    pg_atomic_uint64 part_news[max_part_news];
    Floor floors[claim_floors];
    int n_waiting;
    Database databases[max_databases];
    Waiter *waiters;
    int *waiting; /* process numbers of the waiters, the oldest first */
    int n_members;
    Member *members;
    int *arrived; /* process numbers of the members, the oldest first */
};

extern Shared *shared; /* null without preload */

/* This database's slot; null without preload or when there is no room. */
Database *my_database();
/* The slot of any database, made if need be; null when there is no room. */
Database *database_slot(Oid oid);
/* Frees the slot of a database that is gone, and what waits there. */
void free_database_slot(Oid oid);

int my_process_number();
void set_latch(uint32 process_number_plus_1); /* nothing for 0 */

/* Sleeps until this process's latch is set or the time is over; ends the session where its client is gone, which would
 * be given jobs else. `what` and `event`: for pg_stat_activity. */
void sleep_ms(int64 ms, const char *what, uint32 *event);

/* The session wants an upkeep worker in its database, now or once its transaction has committed; then one that runs
 * already looks at once. */
void ask_for_worker();
void note_activity();            /* the transaction may leave something for upkeep to do */
void ask_for_worker_at_commit(); /* wakeup.cpp */

/* --- waking (waiters.cpp) --- */

/* Whether flags of this database found no room within the last minute. */
bool is_crowded(Database &database);

/* Whether there is room for one more listener flag; those that nobody needs make room. Under the lock. */
bool has_room_for_flags();

/* Whether somebody may be listening to this queue. */
bool is_wanted(int64 queue);

/* A queue has work, as everybody can see by now; under the lock. `notified`: listeners are being told, by the worker
 * where `by_worker`. Returns true if the worker has a NOTIFY to send. */
bool tell_queue(Database &database, int64 queue, const char *name, int name_length, int64 jobs, bool notified,
                bool by_worker);

/* How much of the server's queue of notifications is used, 0 to 1. Where a listener stays in a transaction nothing
 * leaves it, and a NOTIFY that finds no room fails the commit. */
constexpr double notify_queue_full = 0.9;
double notify_queue_used();
bool notify_has_room();

/* Adds the NOTIFYs for a queue to the transaction. */
void notify_queue(const char *name, int name_length);

/* Leaves the waiters, if this process is one. `passing`: without looking for the job it was woken for. */
void stop_waiting(bool passing);
/* The job that this process was woken for is the next waiter's; so it is too if the claim took jobs, but none of that
 * queue, or is rolled back. */
void pass_wake_up_on();
void used_wake_up(const int64 *queues, int n);
void hand_up_wake_up(int level); /* the savepoint of this level was released */
void undo_wake_up(int level);    /* … or rolled back */
void forget_wake_up();           /* the claim has committed */

/* --- jobs that overtake others of their queue: of a priority above the default, or delivered before --- */

/* Such a job has come in, and can be found. */
void note_overtaking(int64 queue);
/* As long as this stays the same, none has come in since. Nothing without preload. */
std::optional<uint32> overtaking_in(int64 queue);

/* Whether the library was preloaded, so that there is shared memory. */
bool shared_memory();
/* Whether the upkeep worker of this database runs and will send notifications. */
bool worker_running();
/* Sets the worker's latch: something is due sooner than it thinks. Does nothing without a worker. */
void worker_poke();

/* For module.cpp: asks for shared memory, and lays it out under AddinShmemInitLock. Returns whether it was there
 * already. */
void shmem_request();
bool shmem_startup(LWLock *lock);

} // namespace ojs
