/*
 * shmem.cpp: shared memory; see shmem.h.
 */
#include "ojs/shared/shmem.h"

#include "ojs/pg/settings.h"
#include "ojs/shared/claim_floor.h"
#include "ojs/shared/part_news.h"

namespace ojs
{

Shared *shared;

namespace
{

Database *my_slot;
Oid my_slot_of;

Size
arrays_size()
{
    return mul_size(most_backends(), sizeof(Waiter) + sizeof(Member) + 2 * sizeof(int));
}

void
prepare(Database &database, Oid oid)
{
    pg_atomic_init_u32(&database.worker, 0);
    pg_atomic_init_u32(&database.waiters, 0);
    pg_atomic_init_u32(&database.wanted, 0);
    pg_atomic_init_u32(&database.pending, 0);
    pg_atomic_init_u64(&database.crowded_until_us, 0);
    pg_atomic_init_u32(&database.new_wishes, 0);
    pg_atomic_init_u32(&database.asked, 0);
    pg_atomic_init_u32(&database.absent, 0);
    pg_atomic_init_u32(&database.poked, 0);
    pg_atomic_init_u32(&database.active, 0);
    pg_atomic_init_u64(&database.active_us, 0);
    pg_atomic_init_u32(&database.turn_over, 0);
    pg_atomic_init_u64(&database.visit_us, static_cast<uint64>(steady_us()));
    pg_atomic_init_u64(&database.left_us, static_cast<uint64>(steady_us()));
    pg_atomic_init_u32(&database.uncountable, 0);
    database.counted[0] = database.counted[1] = database.metrics_of = InvalidOid;
    database.hour_known = false;
    database.worker_pid = 0;
    database.recount_us = 0;
    /* Of before this start: the first counting looks whether there are any. */
    pg_atomic_init_u32(&database.prepared, prepared_open | prepared_ended);
    database.oid = oid;
}

} // namespace

void
shmem_request()
{
    RequestAddinShmemSpace(add_size(add_size(MAXALIGN(sizeof(Shared)), MAXALIGN(arrays_size())),
                                    add_size(hash_estimate_size(max_listener_flags, sizeof(ListenerFlag)),
                                             hash_estimate_size(max_calls, sizeof(Calls)))));
}

bool
shmem_startup(LWLock *lock)
{
    bool found;
    HASHCTL control = {};

    shared = static_cast<Shared *>(ShmemInitStruct("ojs", sizeof(Shared), &found));
    bool found_arrays;
    auto *waiters = static_cast<Waiter *>(ShmemInitStruct("ojs claims", arrays_size(), &found_arrays));
    control.keysize = sizeof(QueueKey);
    control.entrysize = sizeof(ListenerFlag);
    HTAB *listener_flags =
        ShmemInitHash("ojs queues", max_listener_flags, max_listener_flags, &control, HASH_ELEM | HASH_BLOBS);
    control.keysize = sizeof(CallsKey);
    control.entrysize = sizeof(Calls);
    HTAB *calls = ShmemInitHash("ojs calls", max_calls, max_calls, &control, HASH_ELEM | HASH_BLOBS);
    if (!found) {
        memset(static_cast<void *>(shared), 0, sizeof(Shared));
        memset(static_cast<void *>(waiters), 0, arrays_size());
        shared->lock = lock;
        shared->waiters = waiters;
        shared->members = reinterpret_cast<Member *>(waiters + most_backends());
        shared->waiting = reinterpret_cast<int *>(shared->members + most_backends());
        shared->arrived = shared->waiting + most_backends();
        pg_atomic_init_u32(&shared->launcher, 0);
        pg_atomic_init_u32(&shared->take_turns, 0);
        for (pg_atomic_uint32 &slot : shared->overtaking)
            pg_atomic_init_u32(&slot, 0);
        pg_atomic_init_u64(&shared->n_part_news, 0);
        for (pg_atomic_uint64 &slot : shared->part_news)
            pg_atomic_init_u64(&slot, 0);
        init_floors();
    }
    shared->listener_flags = listener_flags;
    shared->calls = calls;
    return found;
}

static pg_atomic_uint32 &
overtaking_slot(int64 queue)
{
    return shared->overtaking[hash_combine(murmurhash32(static_cast<uint32>(queue)), MyDatabaseId) % overtaking_slots];
}

void
note_overtaking(int64 queue)
{
    if (shared != nullptr)
        pg_atomic_fetch_add_u32(&overtaking_slot(queue), 1);
}

std::optional<uint32>
overtaking_in(int64 queue)
{
    if (shared == nullptr)
        return std::nullopt;
    uint32 n = pg_atomic_read_u32(&overtaking_slot(queue));
    pg_read_barrier(); /* whoever asks looks at the table only then */
    return n;
}

void
note_part_news(int64 queue)
{
    uint64 at = pg_atomic_fetch_add_u64(&shared->n_part_news, 1);
    pg_atomic_write_u64(&shared->part_news[at % max_part_news], static_cast<uint64>(queue));
}

uint64
part_news()
{
    if (shared == nullptr)
        return 0;
    uint64 n = pg_atomic_read_u64(&shared->n_part_news);
    pg_read_barrier();
    return n;
}

bool
shared_memory()
{
    return shared != nullptr;
}

Database *
database_slot(Oid oid)
{
    Database *slot = nullptr;
    if (shared == nullptr || !OidIsValid(oid))
        return nullptr;
    LWLockAcquire(shared->lock, LW_EXCLUSIVE);
    auto *end = std::end(shared->databases);
    auto named = [](Oid name) { return [name](const Database &database) { return database.oid == name; }; };
    slot = std::find_if(shared->databases, end, named(oid));
    if (slot == end) {
        slot = std::find_if(shared->databases, end, named(InvalidOid));
        if (slot != end)
            prepare(*slot, oid);
    }
    slot = slot == end ? nullptr : slot;
    LWLockRelease(shared->lock);
    return slot;
}

template <typename Entry>
static void
remove_of(HTAB *table, Oid database)
{
    HASH_SEQ_STATUS all;
    hash_seq_init(&all, table);
    while (auto *entry = static_cast<Entry *>(hash_seq_search(&all)))
        if (entry->key.database == database)
            (void)hash_search(table, &entry->key, HASH_REMOVE, nullptr);
}

void
free_database_slot(Oid oid)
{
    LWLockAcquire(shared->lock, LW_EXCLUSIVE);
    remove_of<ListenerFlag>(shared->listener_flags, oid);
    remove_of<Calls>(shared->calls, oid);
    forget_floors(oid);
    for (Database &database : shared->databases)
        if (database.oid == oid)
            database.oid = InvalidOid;
    LWLockRelease(shared->lock);
}

Database *
my_database()
{
    if (my_slot_of != MyDatabaseId || my_slot == nullptr) { /* where there was no room, there may be by now */
        my_slot = database_slot(MyDatabaseId);
        my_slot_of = MyDatabaseId;
    }
    return my_slot;
}

int
my_process_number()
{
    return static_cast<int>(MyProc - &ProcGlobal->allProcs[0]);
}

void
set_latch(uint32 process_number_plus_1)
{
    /* The process may have ended and its place be another's by now: that one wakes up once for nothing. */
    if (process_number_plus_1 != 0)
        SetLatch(&ProcGlobal->allProcs[process_number_plus_1 - 1].procLatch);
}

void
sleep_ms(int64 ms, const char *what, uint32 *event)
{
    (void)WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, std::max<int64>(ms, 1),
                    wait_event(what, event));
    ResetLatch(MyLatch);
    if (MyProcPort != nullptr && !pq_check_connection()) {
        ClientConnectionLost = true;
        InterruptPending = true;
    }
    CHECK_FOR_INTERRUPTS();
}

bool
worker_running()
{
    Database *database = my_database();
    return database != nullptr && pg_atomic_read_u32(&database->worker) != 0;
}

void
worker_poke()
{
    Database *database = my_database();
    if (database == nullptr)
        return;
    pg_atomic_write_u32(&database->poked, 1);
    pg_memory_barrier();
    set_latch(pg_atomic_read_u32(&database->worker));
}

void
ask_for_worker()
{
    Database *database = my_database();
    if (database == nullptr || pg_atomic_read_u32(&database->worker) != 0)
        return;
    pg_atomic_write_u32(&database->asked, 1);
    pg_write_barrier();
    set_latch(pg_atomic_read_u32(&shared->launcher));
}

} // namespace ojs
