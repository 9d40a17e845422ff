/*
 * look_again.cpp: what wake-ups have missed. Each tick looks whether queues have work that somebody wants to hear of.
 */
#include "ojs/queue/maintenance.h"
#include "ojs/queue/queue.h"
#include "ojs/shared/listener_flags.h"
#include "ojs/shared/shmem.h"
#include "ojs/shared/wakeup.h"
#include "ojs/store/store.h"

namespace ojs
{

/* Queues of this database that somebody wants to hear of; their number. */
static int
wanted_queues(int64 *queues, int most)
{
    int n = 0;
    HASH_SEQ_STATUS scan;
    LWLockAcquire(shared->lock, LW_SHARED);
    hash_seq_init(&scan, shared->listener_flags);
    while (auto *flag = static_cast<ListenerFlag *>(hash_seq_search(&scan)))
        if (flag->key.database == MyDatabaseId && flag->wanted && n < most)
            queues[n++] = flag->key.queue;
    for (int i = 0; i < shared->n_waiting; i++) {
        const Waiter &waiter = shared->waiters[shared->waiting[i]];
        for (int j = 0; waiter.database == MyDatabaseId && !waiter.woken && j < waiter.n && n < most; j++)
            queues[n++] = waiter.queues[j];
    }
    LWLockRelease(shared->lock);
    std::sort(queues, queues + n);
    return static_cast<int>(std::unique(queues, queues + n) - queues);
}

/* The queue after `after` that has entries in the index of `ready`. */
static bool
next_queue(store::Scan &scan, ScanKey key, int64 after, int64 *queue)
{
    Datum value;
    ScanKeyInit(key, 1, BTGreaterStrategyNumber, F_INT8GT, Int64GetDatum(after));
    if (!store::first_entry(scan, key, 1, 1, &value))
        return false;
    *queue = DatumGetInt64(value);
    return true;
}

void
wake_look_again()
{
    Database *database = my_database();
    constexpr int most = max_listener_flags * 2;

    if ((database != nullptr && !wake_anyone()) || in_maintenance())
        return;
    bool crowded = database != nullptr && pg_atomic_exchange_u32(&database->new_wishes, 0) != 0;
    auto *queues = static_cast<int64 *>(palloc(sizeof(int64) * most));
    int n = database != nullptr ? wanted_queues(queues, most) : flagged_queues(queues, most);
    ScanKeyData key;
    store::Table ready = store::open(store::Rel::ready, AccessShareLock);
    store::Scan scan;
    ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(0));
    store::begin(scan, ready, store::Idx::ready_order, &key, 1, true);
    if (crowded) { /* not all wishes found room: whatever queue has work, whoever wants it */
        int64 queue = PG_INT64_MIN;
        for (n = 0; n < most && next_queue(scan, &key, queue, &queue);)
            queues[n++] = queue;
    }
    for (int i = 0; i < n; i++) {
        CHECK_FOR_INTERRUPTS();
        ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(queues[i]));
        store::rescan(scan, &key, 1);
        store::Row row;
        while ((row = store::next(scan)) != store::Row::none && row != store::Row::live)
            ;
        if (row == store::Row::none && n <= few_flags / 2)
            continue;
        const Queue *queue = find_queue(queues[i]);
        if (row == store::Row::none) {
            if (queue == nullptr)
                forget_wish(queues[i]);
        } else if (queue != nullptr && queue->state != QueueState::paused)
            wake_queue(queue->id, queue->name, 1);
    }
    store::end(scan);
    store::close_and_unlock(ready, AccessShareLock);
    pfree(queues);
}

} // namespace ojs
