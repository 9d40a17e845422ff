/*
 * reservation.cpp: places in bounded queues for jobs that open transactions have pushed.
 *
 * A queue has room if what waits by the counters, the places of open transactions and the jobs that come do not exceed
 * its bound. Asking and taking is one step under counters_lock; the commit turns places into jobs under the same lock,
 * so nobody sees a job twice or not at all, and no producer waits for another's transaction. What this transaction
 * itself has taken out of the queue makes room for it, and for nobody else before its commit.
 *
 * Nobody hears when a prepared transaction ends. So a transaction with places is prepared under a lock that lives as
 * long as it does, and who wants a slot waits for that.
 */
#include "ojs/counters/counter_table.h"

#include "ojs/pg/error.h"
#include "ojs/pg/settings.h"

namespace ojs
{

namespace
{

struct Own {
    Load waiting; /* what more waits once this transaction has committed */
    Load reserved;
};

int64
scheduled_in(Counter &counter)
{
    return static_cast<int64>(pg_atomic_read_u64(&counter.n[static_cast<int>(Where::scheduled)]));
}

int64
waiting_of(const int32 *n, bool scheduled_only)
{
    if (scheduled_only)
        return n[static_cast<int>(Where::scheduled)];
    int64 waiting = 0;
    for (Where where : waiting_states)
        waiting += n[static_cast<int>(where)];
    return waiting;
}

Own
own_in(int64 queue)
{
    Own own = {};
    for (int i = 0; i < changes.n; i++) {
        if (changes.all[i].queue != queue)
            continue;
        own.waiting.jobs += waiting_of(changes.all[i].n, false);
        own.waiting.bytes += changes.all[i].bytes;
        own.reserved.jobs += changes.all[i].reserved;
        own.reserved.bytes += changes.all[i].reserved_bytes;
    }
    return own;
}

int64
waiting_in(Counter &counter)
{
    int64 n = 0;
    for (Where where : waiting_states)
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

/* What waits, and what others have places for. */
int64
taken(int64 waiting, pg_atomic_uint64 &reserved, int64 own_reserved, int64 own_waiting)
{
    return std::max<int64>(waiting + static_cast<int64>(pg_atomic_read_u64(&reserved)) - own_reserved + own_waiting, 0);
}

/* Under the lock. */
Reservation
reserve_slots(Counter &counter, Change &note, const Own &own, const Load &wanted, const Load &bound, double warn_at,
              Load *depth)
{
    auto bytes = static_cast<int64>(pg_atomic_read_u64(&counter.bytes));
    depth->jobs = taken(waiting_in(counter), counter.reserved, own.reserved.jobs, own.waiting.jobs);
    depth->bytes = taken(bytes, counter.reserved_bytes, own.reserved.bytes, own.waiting.bytes);
    if (!(*depth + wanted).within(bound))
        return Reservation::full;
    int64 jobs = std::max<int64>(own.waiting.jobs + wanted.jobs - own.reserved.jobs, 0);
    int64 more_bytes = std::max<int64>(own.waiting.bytes + wanted.bytes - own.reserved.bytes, 0);
    pg_atomic_fetch_add_u64(&counter.reserved, jobs);
    pg_atomic_fetch_add_u64(&counter.reserved_bytes, more_bytes);
    note.reserved += static_cast<int32>(jobs);
    note.reserved_bytes += more_bytes;
    if (counter.refused == Alarm::emitted)
        counter.refused = Alarm::off;
    if (counter.warned == Alarm::off && (*depth + wanted).part_of(bound) >= warn_at) {
        counter.warned = Alarm::due;
        pg_atomic_fetch_add_u32(&alarms->raised, 1);
    }
    return Reservation::made;
}

} // namespace

Load
load_of(Counter &counter)
{
    return {taken(waiting_in(counter), counter.reserved, 0, 0),
            taken(static_cast<int64>(pg_atomic_read_u64(&counter.bytes)), counter.reserved_bytes, 0, 0)};
}

bool
reserves()
{
    return !lost_here[static_cast<int>(Part::open)] && counting_database() != nullptr;
}

Load
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

/* Who has prepared a transaction may take days to end it. */
static void
lock_to_reserve(int64 queue)
{
    constexpr int64 patience_us = USECS_PER_SEC;
    constexpr int64 poll_ms = 10;
    static uint32 event;
    LOCKTAG tag = bound_lock(queue);
    int64 since_us = steady_us();
    while (LockAcquire(&tag, reserving_mode, false, true) == LOCKACQUIRE_NOT_AVAIL) {
        if (steady_us() - since_us > patience_us)
            raise(Code::unavailable, Details(),
                  "Commit or roll back the transactions in pg_prepared_xacts, or try again.",
                  "a prepared transaction has jobs in this bounded queue, and nobody knows yet whether they count");
        sleep_ms(poll_ms, "OjsPreparedWait", &event);
    }
}

Reservation
reserve(int64 queue, const Load &wanted, const Load &bound, double warn_at, Load *depth)
{
    Oid table = store::relation_oid(store::Rel::ready);
    if (!reserves())
        return Reservation::none;
    Database &database = *counting_database();
    Change &note = change_of(queue); /* here, since it may raise */
    Own own = own_in(queue);
    if (max_prepared_xacts > 0)
        lock_to_reserve(queue);
    bool right = settled(database, Part::open);

    Reservation reservation = Reservation::none;
    LWLockAcquire(counters_lock, LW_EXCLUSIVE);
    right = right && database.counted[static_cast<int>(Part::open)] == table;
    Counter *counter = right ? counter_of(queue) : nullptr;
    if (counter != nullptr)
        reservation = reserve_slots(*counter, note, own, wanted, bound, warn_at, depth);
    LWLockRelease(counters_lock);

    if (!right)
        raise(Code::unavailable, Details(), "Try again.", "the jobs of a bounded queue are still being counted");
    if (max_prepared_xacts > 0) {
        LOCKTAG tag = bound_lock(queue);
        (void)LockRelease(&tag, reserving_mode, false);
    }
    return reservation;
}

Reservation
reserve_among(int64 bound_id, const int64 *queues, int n, bool scheduled_only, int64 wanted, int64 bound, int64 *depth)
{
    Oid table = store::relation_oid(store::Rel::ready);
    if (!reserves())
        return Reservation::none;
    Database &database = *counting_database();
    Change &note = change_of(bound_id); /* here, since it may raise */
    int64 own_reserved = own_in(bound_id).reserved.jobs;
    int64 own_waiting = 0;
    for (int i = 0; i < changes.n; i++)
        if (std::find(queues, queues + n, changes.all[i].queue) != queues + n)
            own_waiting += waiting_of(changes.all[i].n, scheduled_only);
    if (max_prepared_xacts > 0)
        lock_to_reserve(bound_id);
    bool right = settled(database, Part::open);

    Reservation reservation = Reservation::none;
    LWLockAcquire(counters_lock, LW_EXCLUSIVE);
    right = right && database.counted[static_cast<int>(Part::open)] == table;
    Counter *counter = right ? counter_of(bound_id) : nullptr;
    if (counter != nullptr) {
        int64 waiting = 0;
        for (int i = 0; i < n; i++)
            if (Counter *of_queue = find_counter(queues[i]))
                waiting += scheduled_only ? scheduled_in(*of_queue) : waiting_in(*of_queue);
        *depth = taken(waiting, counter->reserved, own_reserved, own_waiting);
        reservation = *depth + wanted <= bound ? Reservation::made : Reservation::full;
        if (reservation == Reservation::made) {
            int64 more = std::max<int64>(own_waiting + wanted - own_reserved, 0);
            pg_atomic_fetch_add_u64(&counter->reserved, more);
            note.reserved += static_cast<int32>(more);
        }
    }
    LWLockRelease(counters_lock);

    if (!right)
        raise(Code::unavailable, Details(), "Try again.", "the jobs of a tenant are still being counted");
    if (max_prepared_xacts > 0) {
        LOCKTAG tag = bound_lock(bound_id);
        (void)LockRelease(&tag, reserving_mode, false);
    }
    return reservation;
}

void
give_back(const Change &change)
{
    LWLockAcquire(counters_lock, LW_SHARED);
    Counter *counter = find_counter(change.queue);
    if (counter != nullptr) {
        subtract(counter->reserved, change.reserved);
        subtract(counter->reserved_bytes, change.reserved_bytes);
    }
    LWLockRelease(counters_lock);
}

void
keep_while_prepared()
{
    for (int i = 0; i < changes.n; i++)
        if (changes.all[i].reserved != 0 || changes.all[i].reserved_bytes != 0)
            lock_bound(changes.all[i].queue, prepared_mode);
}

} // namespace ojs
