/*
 * reservation.cpp: places in bounded queues for jobs that open transactions have pushed.
 *
 * A queue has room if what waits by the counters, the places of open transactions and the jobs that come do not exceed
 * its bound. Asking and taking is one step under counters_lock; the commit turns places into jobs under the same lock,
 * so nobody sees a job twice or not at all, and no producer waits for another's transaction. What this transaction itself
 * has taken out of the queue makes room for it, and for nobody else before its commit.
 *
 * Nobody hears when a prepared transaction ends. So a transaction with places is prepared under a lock that lives as long
 * as it does, and who wants a place waits for that.
 */
#include "ojs/counters.h"

#include "ojs/error.h"

namespace ojs
{

namespace
{

struct Own {
    int64 waiting; /* how many more jobs wait once this transaction has committed */
    int64 reserved;
};

Own
own_in(int64 queue)
{
    Own own = {};
    for (int i = 0; i < n_changes; i++) {
        if (changes[i].queue != queue)
            continue;
        for (Where where : waiting_places)
            own.waiting += changes[i].n[static_cast<int>(where)];
        own.reserved += changes[i].reserved;
    }
    return own;
}

int64
waiting_in(Counter &counter)
{
    int64 n = 0;
    for (Where where : waiting_places)
        n += static_cast<int64>(pg_atomic_read_u64(&counter.n[static_cast<int>(where)]));
    return n;
}

LOCKTAG
bound_lock(int64 queue)
{
    LOCKTAG tag;
    auto id = static_cast<uint64>(queue); /* the id is a hash: 48 bits of it are enough */
    SET_LOCKTAG_OBJECT(tag, MyDatabaseId, store::relation_oid(store::Rel::queue), static_cast<uint32>(id),
                       static_cast<uint16>(id >> 32));
    return tag;
}

/* Prepared transactions hold it, those that reserve do while they look. Neither waits for its own kind. */
constexpr LOCKMODE prepared_mode = RowExclusiveLock;
constexpr LOCKMODE reserving_mode = ShareLock;

/* Under the lock. */
Reservation
take_places(Counter &counter, Change &note, const Own &own, int64 n, int64 bound, int64 *depth)
{
    auto reserved = static_cast<int64>(pg_atomic_read_u64(&counter.reserved));
    *depth = std::max<int64>(waiting_in(counter) + reserved - own.reserved + own.waiting, 0);
    if (*depth + n > bound)
        return Reservation::full;
    int64 more = std::max<int64>(own.waiting + n - own.reserved, 0);
    pg_atomic_fetch_add_u64(&counter.reserved, more);
    note.reserved += static_cast<int32>(more);
    return Reservation::made;
}

} // namespace

bool
reserves()
{
    return !lost_here[static_cast<int>(Part::open)] && counting_database() != nullptr;
}

int64
waiting_by_us(int64 queue)
{
    return own_in(queue).waiting;
}

void
lock_bound(int64 queue, LOCKMODE mode)
{
    LOCKTAG tag = bound_lock(queue);
    (void)LockAcquire(&tag, mode, false, false);
}

Reservation
reserve(int64 queue, int64 n, int64 bound, int64 *depth)
{
    Oid table = store::relation_oid(store::Rel::ready);
    if (!reserves())
        return Reservation::none;
    Database &database = *counting_database();
    Change &note = change_of(queue); /* here, since it may raise */
    Own own = own_in(queue);
    if (max_prepared_xacts > 0)
        lock_bound(queue, reserving_mode);
    bool right = settled(database, Part::open);

    Reservation reservation = Reservation::none;
    LWLockAcquire(counters_lock, LW_EXCLUSIVE);
    right = right && database.counted[static_cast<int>(Part::open)] == table;
    Counter *counter = right ? counter_of(MyDatabaseId, queue) : nullptr;
    if (counter != nullptr)
        reservation = take_places(*counter, note, own, n, bound, depth);
    else if (right)
        pg_atomic_write_u32(&database.uncountable, 1);
    LWLockRelease(counters_lock);

    if (!right)
        raise(Code::unavailable, Details(), "Try again.", "the jobs of a bounded queue are still being counted");
    if (max_prepared_xacts > 0) {
        LOCKTAG tag = bound_lock(queue);
        (void)LockRelease(&tag, reserving_mode, false);
    }
    return reservation;
}

void
give_back(int64 queue, int32 reserved)
{
    MarkKey key = {queue, MyDatabaseId, 0};
    LWLockAcquire(counters_lock, LW_SHARED);
    auto *counter = static_cast<Counter *>(hash_search(counters, &key, HASH_FIND, nullptr));
    if (counter != nullptr)
        pg_atomic_fetch_sub_u64(&counter->reserved, reserved);
    LWLockRelease(counters_lock);
}

void
keep_while_prepared()
{
    for (int i = 0; i < n_changes; i++)
        if (changes[i].reserved != 0)
            lock_bound(changes[i].queue, prepared_mode);
}

} // namespace ojs
