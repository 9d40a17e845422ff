/*
 * counter_table.cpp: the counters in shared memory: making them, and making room.
 */
#include "ojs/counters/counter_table.h"

namespace ojs
{

LWLock *counters_lock;
pg_atomic_uint32 *committing;
HTAB *counters;
Recount *recount;
Alarms *alarms;

namespace
{

bool
idle(const Counter &counter)
{
    for (int w = 0; w < n_where; w++)
        if (pg_atomic_read_u64(const_cast<pg_atomic_uint64 *>(&counter.n[w])) != 0 ||
            pg_atomic_read_u64(const_cast<pg_atomic_uint64 *>(&counter.since[w])) != 0)
            return false;
    for (const pg_atomic_uint64 *other :
         {&counter.reserved, &counter.bytes, &counter.reserved_bytes, &counter.bytes_since})
        if (pg_atomic_read_u64(const_cast<pg_atomic_uint64 *>(other)) != 0)
            return false;
    return counter.warned == Alarm::off && counter.refused == Alarm::off;
}

template <typename Unwanted>
void
remove_counters(Unwanted unwanted)
{
    HASH_SEQ_STATUS all;
    hash_seq_init(&all, counters);
    while (auto *counter = static_cast<Counter *>(hash_seq_search(&all)))
        if (unwanted(*counter))
            (void)hash_search(counters, &counter->key, HASH_REMOVE, nullptr);
}

/*
 * Under the lock, exclusively: what the counters of this database say holds no more, and its rows are counted instead.
 */
void
stop_counting(Database &database)
{
    pg_atomic_write_u32(&database.uncountable, 1);
    database.counted[0] = database.counted[1] = InvalidOid;
    if (recount->running && recount->database == database.oid)
        recount->spoilt = true;
}

bool
is_full()
{
    return hash_get_num_entries(counters) >= max_counters;
}

/*
 * The rows of the database with most counters are counted from now on, and what it had is the others'. Also at a
 * commit, so nothing is allocated.
 */
void
take_from_largest()
{
    int n[max_databases] = {};
    int largest = 0;
    HASH_SEQ_STATUS all;
    hash_seq_init(&all, counters);
    while (auto *counter = static_cast<Counter *>(hash_seq_search(&all))) {
        Oid oid = counter->key.database;
        auto *end = std::end(shared->databases);
        auto *database = std::find_if(shared->databases, end, [oid](const Database &one) { return one.oid == oid; });
        if (database == end) /* it is gone, and its slot with it */
            (void)hash_search(counters, &counter->key, HASH_REMOVE, nullptr);
        else if (auto d = database - shared->databases; ++n[d] > n[largest])
            largest = static_cast<int>(d);
    }
    if (!is_full())
        return;
    stop_counting(shared->databases[largest]);
    remove_counters([&](const Counter &counter) { return counter.key.database == shared->databases[largest].oid; });
}

/* Idle counters are looked for at most once a second: a walk over all, under the lock. Where the largest database gives
 * up its own, there is room for a while, or that database is this one and asks no more. */
void
make_room()
{
    TimestampTz now = GetCurrentTimestamp();
    if (now < recount->swept_at || now - recount->swept_at >= USECS_PER_SEC) {
        recount->swept_at = now;
        remove_counters(idle);
    }
    if (is_full())
        take_from_largest();
}

} // namespace

bool
room_for_counters()
{
    return hash_get_num_entries(counters) < max_counters * 3 / 4;
}

void
free_counters(Oid database)
{
    LWLockAcquire(counters_lock, LW_EXCLUSIVE);
    remove_counters([database](const Counter &counter) { return counter.key.database == database; });
    for (Refusal &refusal : alarms->refusals)
        if (refusal.database == database)
            refusal.database = InvalidOid;
    LWLockRelease(counters_lock);
}

Counter *
find_counter(int64 queue, Oid database)
{
    QueueKey key = {queue, database, 0};
    return static_cast<Counter *>(hash_search(counters, &key, HASH_FIND, nullptr));
}

Counter *
counter_of(int64 queue)
{
    QueueKey key = {queue, MyDatabaseId, 0};
    bool found;
    Counter *counter = find_counter(queue);
    if (counter != nullptr)
        return counter;
    Database *mine = my_database();
    if (pg_atomic_read_u32(&mine->uncountable) != 0)
        return nullptr;
    if (is_full())
        make_room();
    if (pg_atomic_read_u32(&mine->uncountable) != 0) /* its counters are the others' now */
        return nullptr;
    counter = static_cast<Counter *>(hash_search(counters, &key, HASH_ENTER_NULL, &found));
    if (counter == nullptr)
        stop_counting(*mine);
    if (counter != nullptr && !found) {
        for (pg_atomic_uint64 *other :
             {&counter->reserved, &counter->bytes, &counter->reserved_bytes, &counter->bytes_since})
            pg_atomic_init_u64(other, 0);
        counter->warned = counter->refused = Alarm::off;
        for (int w = 0; w < n_where; w++) {
            pg_atomic_init_u64(&counter->n[w], 0);
            pg_atomic_init_u64(&counter->since[w], 0);
        }
    }
    return counter;
}

static Size
recount_size()
{
    return add_size(offsetof(Recount, running_xids),
                    mul_size(most_backends() + max_prepared_xacts, sizeof(TransactionId)));
}

Size
counts_size()
{
    Size of_processes = mul_size(most_backends(), sizeof(pg_atomic_uint32));
    return add_size(MAXALIGN(recount_size()) + MAXALIGN(sizeof(Alarms)) + MAXALIGN(of_processes),
                    hash_estimate_size(max_counters, sizeof(Counter)));
}

void
counts_startup(LWLock *lock, bool found)
{
    bool found_recount;
    HASHCTL control = {};
    control.keysize = sizeof(QueueKey);
    control.entrysize = sizeof(Counter);
    counters = ShmemInitHash("ojs counters", max_counters, max_counters, &control, HASH_ELEM | HASH_BLOBS);
    recount = static_cast<Recount *>(ShmemInitStruct("ojs recount", recount_size(), &found_recount));
    committing = static_cast<pg_atomic_uint32 *>(
        ShmemInitStruct("ojs commits", mul_size(most_backends(), sizeof(pg_atomic_uint32)), &found_recount));
    counters_lock = lock;
    alarms = static_cast<Alarms *>(ShmemInitStruct("ojs alarms", sizeof(Alarms), &found_recount));
    if (!found) {
        memset(static_cast<void *>(recount), 0, recount_size());
        memset(static_cast<void *>(alarms), 0, sizeof(Alarms));
        pg_atomic_init_u32(&alarms->raised, 0);
        for (int i = 0; i < most_backends(); i++)
            pg_atomic_init_u32(&committing[i], InvalidTransactionId);
    }
}

} // namespace ojs
