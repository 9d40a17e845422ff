/*
 * waiters.cpp: those who want to hear that a queue has work: claims that wait, and clients that may be listening.
 *
 * A claim that comes back short marks its queues as wanted: whoever ran it may LISTEN and wait now, and there is no
 * other way to know. The first commit after that has the worker send a NOTIFY, and the flag is gone until the next
 * short claim. That no wake-up is lost rests on an order: a claim sets the flag and then looks at the queue a last
 * time; a commit makes its jobs visible and then reads the flag. What slips through all the same (COMMIT PREPARED) is
 * found by the worker, which looks at wanted queues each tick.
 */
#include "ojs/pg/settings.h"
#include "ojs/queue/maintenance.h"
#include "ojs/queue/queue.h"
#include "ojs/shared/listener_flags.h"
#include "ojs/shared/shmem.h"
#include "ojs/shared/waiter_filter.h"
#include "ojs/shared/wakeup.h"
#include "ojs/store/store.h"

namespace ojs
{

namespace
{

bool
fits_channel(int name_length)
{
    return static_cast<size_t>(name_length) + strlen("ojs.") < NAMEDATALEN;
}

/* --- waiting claims; under shared->lock --- */

bool waiting; /* this process is among the waiters */

/* What this transaction was woken for: whoever undoes what came of it wakes another. */
struct WakeUp {
    int64 queue;
    int level; /* of savepoints; 0: none */
    bool used;
} wake_up;

/* As many as there are jobs, those first who have waited longest. One that only may wait for this queue is woken
 * besides, so that it takes nobody's wake-up. */
void
wake_waiters(int64 queue, int64 jobs)
{
    for (int i = 0; i < shared->n_waiting && jobs > 0; i++) {
        Waiter &waiter = shared->waiters[shared->waiting[i]];
        if (waiter.database != MyDatabaseId || waiter.woken || !waits_for(waiter, queue))
            continue;
        waiter.woken = true;
        waiter.woken_for = queue;
        set_latch(static_cast<uint32>(shared->waiting[i]) + 1);
        jobs -= waiter.n > 0;
    }
}

ListenerFlag *
find_flag(int64 queue, HASHACTION action, bool *found)
{
    QueueKey key = {queue, MyDatabaseId, 0};
    return static_cast<ListenerFlag *>(hash_search(shared->listener_flags, &key, action, found));
}

/* --- what this session saw when it asked to be woken --- */

struct Observation {
    int64 queue;
    uint64 changes;
};
Observation *seen; /* of as many queues as a claim has named */
int n_seen;
int room_for_seen;

void
make_room_to_see(int n)
{
    if (n <= room_for_seen)
        return;
    if (seen != nullptr)
        pfree(seen);
    seen = nullptr;
    n_seen = room_for_seen = 0;
    seen = static_cast<Observation *>(MemoryContextAllocHuge(TopMemoryContext, sizeof(Observation) * n));
    room_for_seen = n;
}

} // namespace

bool
has_room_for_flags()
{
    if (hash_get_num_entries(shared->listener_flags) < max_listener_flags)
        return true;
    HASH_SEQ_STATUS scan;
    hash_seq_init(&scan, shared->listener_flags);
    while (auto *flag = static_cast<ListenerFlag *>(hash_seq_search(&scan)))
        if (!flag->wanted && !flag->pending)
            (void)hash_search(shared->listener_flags, &flag->key, HASH_REMOVE, nullptr);
    return hash_get_num_entries(shared->listener_flags) < max_listener_flags;
}

namespace
{

void
want(Database &database, int64 queue)
{
    bool found;
    ListenerFlag *flag = find_flag(queue, HASH_FIND, nullptr);
    if (flag == nullptr && has_room_for_flags()) {
        flag = find_flag(queue, HASH_ENTER_NULL, &found);
        if (flag != nullptr) {
            flag->wanted = flag->pending = false;
            flag->changes = 0;
            flag->sent_us = 0;
            flag->name_length = 0;
        }
    }
    if (flag == nullptr) {
        pg_atomic_write_u64(&database.crowded_until_us, static_cast<uint64>(steady_us() + 60 * USECS_PER_SEC));
        pg_atomic_write_u32(&database.new_wishes, 1);
        return;
    }
    if (!flag->wanted) {
        flag->wanted = true;
        pg_atomic_fetch_add_u32(&database.wanted, 1);
    }
    seen[n_seen++] = {queue, flag->changes};
}

/* Whether a commit came between wake_wanted() and now; asked once per change. */
bool
changed_since()
{
    bool changed = false;
    for (int i = 0; i < n_seen; i++) {
        ListenerFlag *flag = find_flag(seen[i].queue, HASH_FIND, nullptr);
        if (flag == nullptr) {
            changed = true;
            seen[i] = seen[--n_seen];
            i--;
        } else if (flag->changes != seen[i].changes) {
            changed = true;
            seen[i].changes = flag->changes;
        }
    }
    return changed;
}

uint32 wait_event_claim;

} // namespace

double
notify_queue_used()
{
    return RecoveryInProgress() ? 0 : DatumGetFloat8(DirectFunctionCall1(pg_notification_queue_usage, (Datum)0));
}

bool
notify_has_room()
{
    return notify_queue_used() < notify_queue_full;
}

void
notify_queue(const char *name, int name_length)
{
    char channel[NAMEDATALEN];
    char *payload = pnstrdup(name, name_length);
    Async_Notify("ojs", payload);
    if (fits_channel(name_length)) {
        snprintf(channel, sizeof channel, "ojs.%s", payload);
        Async_Notify(channel, "");
    }
}

void
stop_waiting(bool passing)
{
    if (!waiting) {
        if (passing)
            pass_wake_up_on();
        return;
    }
    int me = my_process_number();
    Waiter &waiter = shared->waiters[me];
    waiting = false;
    LWLockAcquire(shared->lock, LW_EXCLUSIVE);
    int *last = shared->waiting + shared->n_waiting;
    int *slot = std::find(shared->waiting, last, me);
    if (slot != last) {
        memmove(slot, slot + 1, sizeof(int) * (last - slot - 1));
        shared->n_waiting--;
        pg_atomic_fetch_sub_u32(&my_database()->waiters, 1);
    }
    if (waiter.woken && waiter.n > 0) {
        wake_up = {waiter.woken_for, GetCurrentTransactionNestLevel(), false};
    }
    waiter.woken = false;
    LWLockRelease(shared->lock);
    if (passing)
        pass_wake_up_on();
}

void
pass_wake_up_on()
{
    if (wake_up.level == 0)
        return;
    wake_up.level = 0;
    LWLockAcquire(shared->lock, LW_EXCLUSIVE);
    wake_waiters(wake_up.queue, 1);
    LWLockRelease(shared->lock);
}

void
used_wake_up(const int64 *queues, int n)
{
    if (wake_up.level == 0 || wake_up.used)
        return;
    wake_up.used = true;
    if (std::find(queues, queues + n, wake_up.queue) == queues + n)
        pass_wake_up_on();
}

void
hand_up_wake_up(int level)
{
    if (wake_up.level >= level)
        wake_up.level = level - 1;
}

void
undo_wake_up(int level)
{
    if (wake_up.level >= level)
        pass_wake_up_on();
}

void
forget_wake_up()
{
    wake_up.level = 0;
}

bool
is_wanted(int64 queue)
{
    LWLockAcquire(shared->lock, LW_SHARED);
    const ListenerFlag *flag = find_flag(queue, HASH_FIND, nullptr);
    bool wanted = flag != nullptr && flag->wanted;
    LWLockRelease(shared->lock);
    return wanted || is_crowded(*my_database());
}

bool
is_crowded(Database &database)
{
    uint64 until_us = pg_atomic_read_u64(&database.crowded_until_us);
    return until_us != 0 && static_cast<uint64>(steady_us()) < until_us;
}

bool
tell_queue(Database &database, int64 queue, const char *name, int name_length, int64 jobs, bool notified,
           bool by_worker)
{
    bool send = false;
    ListenerFlag *flag = find_flag(queue, HASH_FIND, nullptr);
    if (flag != nullptr) {
        flag->changes++;
        if (flag->wanted && notified && name_length <= max_flag_name) {
            flag->wanted = false;
            pg_atomic_fetch_sub_u32(&database.wanted, 1);
            if (by_worker && !flag->pending) {
                flag->pending = true;
                pg_atomic_fetch_add_u32(&database.pending, 1);
                send = true;
            }
            flag->name_length = name_length;
            memcpy(flag->name, name, name_length);
        }
    }
    wake_waiters(queue, jobs);
    return send;
}

void
wake_wanted(const int64 *queues, int n, bool waits)
{
    Database *database = my_database();
    if (database == nullptr) {
        if (!waits) /* who waits polls */
            raise_listener_flags(queues, n);
        return;
    }
    make_room_to_see(n);
    n_seen = 0;
    LWLockAcquire(shared->lock, LW_EXCLUSIVE);
    for (int i = 0; i < n; i++)
        want(*database, queues[i]);
    LWLockRelease(shared->lock);
    pg_memory_barrier(); /* the flag is set before the caller looks at the queue */
}

int
room_for_unmade_queues()
{
    if (Database *database = my_database(); database != nullptr)
        return few_flags - static_cast<int>(std::min<uint32>(pg_atomic_read_u32(&database->wanted), few_flags));
    return few_flags - count_listener_flags(few_flags);
}

void
forget_wish(int64 queue)
{
    Database *database = my_database();
    if (database == nullptr) {
        (void)lower_listener_flag(queue);
        return;
    }
    LWLockAcquire(shared->lock, LW_EXCLUSIVE);
    ListenerFlag *flag = find_flag(queue, HASH_FIND, nullptr);
    if (flag != nullptr && flag->wanted && !flag->pending) {
        pg_atomic_fetch_sub_u32(&database->wanted, 1);
        (void)find_flag(queue, HASH_REMOVE, nullptr);
    }
    LWLockRelease(shared->lock);
}

void
wake_wait(const int64 *queues, int n, bool picky, uint64 names, int64 until_us, int round)
{
    Database *database = my_database();
    int64 left_ms = (until_us - steady_us() + 999) / 1000;
    forget_wake_up(); /* nothing came of it: others have the job */
    if (left_ms <= 0)
        return;
    if (database == nullptr) {
        constexpr int64 shortest_ms = 5, longest_ms = 100;
        int64 poll_ms = std::min(longest_ms, shortest_ms << std::min(round, 5));
        sleep_ms(std::min(left_ms, poll_ms), "OjsClaimWait", &wait_event_claim);
        return;
    }

    /* Due jobs are the worker's to promote and to tell of; without it they are found by looking. */
    constexpr int64 longest_with_worker_ms = 1000, longest_without_ms = 100;
    int64 rest_ms = std::min(left_ms, worker_running() ? longest_with_worker_ms : longest_without_ms);
    int64 rest_until_us = steady_us() + rest_ms * 1000;

    int me = my_process_number();
    Waiter &waiter = shared->waiters[me];
    LWLockAcquire(shared->lock, LW_EXCLUSIVE);
    bool changed = changed_since();
    if (!changed) {
        waiter.database = MyDatabaseId;
        waiter.woken = false;
        wait_for_queues(waiter, queues, n, picky);
        shared->waiting[shared->n_waiting++] = me;
        pg_atomic_fetch_add_u32(&database->waiters, 1);
        waiting = true;
    }
    LWLockRelease(shared->lock);
    if (changed)
        return;

    AcceptInvalidationMessages(); /* those of a commit that came too early to wake us */
    while (store::queue_names_generation() == names) {
        int64 ms = (rest_until_us - steady_us() + 999) / 1000;
        if (waiter.woken || ms <= 0)
            break;
        sleep_ms(ms, "OjsClaimWait", &wait_event_claim);
    }
    stop_waiting(false);
}

/* A NOTIFY that is being sent. */
struct DueWakeup {
    int64 queue;
    int name_length;
    char name[max_flag_name];
};

/* Takes the flags whose NOTIFY is due; `next_us` is when the others' is. */
static int
take_due(Database &database, DueWakeup *due, int room, int64 *next_us)
{
    int n = 0;
    int64 at_us = steady_us();
    HASH_SEQ_STATUS scan;
    LWLockAcquire(shared->lock, LW_EXCLUSIVE);
    hash_seq_init(&scan, shared->listener_flags);
    while (auto *flag = static_cast<ListenerFlag *>(hash_seq_search(&scan))) {
        if (flag->key.database != MyDatabaseId || !flag->pending)
            continue;
        int64 due_us = flag->sent_us + settings.notify_interval_ms * static_cast<int64>(1000);
        if (due_us > at_us || n == room) {
            *next_us = std::min(*next_us, std::max(due_us, at_us));
            continue;
        }
        /* What commits from here on finds the queue's listeners about to be told, so it need not ask for it. */
        flag->pending = false;
        flag->sent_us = at_us;
        pg_atomic_fetch_sub_u32(&database.pending, 1);
        due[n].queue = flag->key.queue;
        due[n].name_length = flag->name_length;
        memcpy(due[n].name, flag->name, flag->name_length);
        n++;
    }
    LWLockRelease(shared->lock);
    return n;
}

struct Sending {
    Database &database;
    const DueWakeup *due;
    int n;
};

extern "C" void
give_back(int, Datum arg)
{
    auto &sending = *reinterpret_cast<Sending *>(DatumGetPointer(arg));
    LWLockAcquire(shared->lock, LW_EXCLUSIVE);
    for (int i = 0; i < sending.n; i++) {
        ListenerFlag *flag = find_flag(sending.due[i].queue, HASH_FIND, nullptr);
        if (flag != nullptr && !flag->pending) {
            flag->pending = true;
            pg_atomic_fetch_add_u32(&sending.database.pending, 1);
        }
    }
    LWLockRelease(shared->lock);
}

/* A function of its own, since it is jumped back into. Who is terminated gives back too. */
static pg_noinline void
send_or_give_back(Sending &sending)
{
    PG_ENSURE_ERROR_CLEANUP(give_back, PointerGetDatum(&sending));
    {
        StartTransactionCommand();
        for (int i = 0; i < sending.n; i++)
            notify_queue(sending.due[i].name, sending.due[i].name_length);
        CommitTransactionCommand();
    }
    PG_END_ENSURE_ERROR_CLEANUP(give_back, PointerGetDatum(&sending));
}

int64
wake_send_due()
{
    constexpr int batch = 64;
    Database *database = my_database();
    int64 next_us = PG_INT64_MAX;

    if (database == nullptr || pg_atomic_read_u32(&database->pending) == 0)
        return next_us;
    if (!notify_has_room())
        return steady_us() + USECS_PER_SEC;
    auto *due = static_cast<DueWakeup *>(palloc(sizeof(DueWakeup) * batch));
    int n = take_due(*database, due, batch, &next_us);
    if (n == 0) /* whoever noted them has ojs.notify on */
        return next_us;
    Sending sending = {*database, due, n};
    send_or_give_back(sending);
    return next_us;
}

bool
wake_anyone()
{
    Database *database = my_database();
    return database != nullptr &&
           (pg_atomic_read_u32(&database->waiters) > 0 || pg_atomic_read_u32(&database->wanted) > 0 ||
            pg_atomic_read_u32(&database->new_wishes) > 0);
}

} // namespace ojs
