/*
 * wakeup.cpp: see wakeup.h.
 *
 * What a transaction has made claimable is kept as a stack of marks, those of inner subtransactions above those of
 * outer ones. The commit path reads two atomics when nobody waits. What happens to those who do: waiters.cpp.
 */
#include "ojs/shared/wakeup.h"

#include "ojs/shared/claim_window.h"
#include "ojs/pg/settings.h"
#include "ojs/pg/plant.h"
#include "ojs/shared/shmem.h"

namespace ojs
{

namespace
{

/* --- marks of the running transaction --- */

struct Made {
    int64 queue;
    const char *name;
    int name_length;
    int level;
    int64 jobs;
};

Made *made; /* in TopTransactionContext */
int n_made;
int room;
bool by_worker; /* decided before the commit, while a NOTIFY can still be added to it */
bool want_worker_at_commit;

/* Brings the marks from `from` on down to one per queue; all are of one level, or of levels that no longer matter. */
void
merge(int from)
{
    if (n_made - from < 2)
        return;
    std::sort(made + from, made + n_made, [](const Made &a, const Made &b) { return a.queue < b.queue; });
    int kept = from;
    for (int i = from + 1; i < n_made; i++) {
        if (made[i].queue == made[kept].queue)
            made[kept].jobs += made[i].jobs;
        else
            made[++kept] = made[i];
    }
    n_made = kept + 1;
}

void
make_room(int level)
{
    constexpr int first_room = 8;
    if (n_made < room)
        return;
    if (room > 0) {
        int from = n_made;
        while (from > 0 && made[from - 1].level == level)
            from--;
        merge(from);
        if (n_made <= room / 2)
            return;
    }
    int wider = room > 0 ? room * 2 : first_room;
    auto *array = static_cast<Made *>(MemoryContextAllocHuge(TopTransactionContext, sizeof(Made) * wider));
    if (n_made > 0)
        memcpy(array, made, sizeof(Made) * n_made);
    made = array;
    room = wider;
}

void
forget()
{
    made = nullptr;
    n_made = room = 0;
    by_worker = want_worker_at_commit = false;
}

void
tell_all()
{
    Database *database = my_database();
    bool send = false;

    if (database == nullptr)
        return;
    pg_memory_barrier(); /* the jobs are visible before we look who waits */
    if (pg_atomic_read_u32(&database->waiters) == 0 && pg_atomic_read_u32(&database->wanted) == 0)
        return;
    LWLockAcquire(shared->lock, LW_EXCLUSIVE);
    for (int i = 0; i < n_made; i++)
        send |= tell_queue(*database, made[i].queue, made[i].name, made[i].name_length, made[i].jobs,
                           by_worker && settings.notify);
    LWLockRelease(shared->lock);
    if (send)
        set_latch(pg_atomic_read_u32(&database->worker));
}

void
before_commit()
{
    if (n_made == 0)
        return;
    merge(0);
    Database *database = my_database();
    by_worker = worker_running() && pg_atomic_read_u32(&database->crowded) == 0;
    if (by_worker || !settings.notify)
        return;
    for (int i = 0; i < n_made; i++)
        notify_queue(made[i].name, made[i].name_length);
}

extern "C" void
wake_xact(XactEvent event, void *)
{
    switch (event) {
    case XACT_EVENT_PRE_COMMIT:
        before_commit();
        break;
    case XACT_EVENT_COMMIT:
        if (n_made > 0)
            tell_all();
        if (want_worker_at_commit) {
            Database *database = my_database();
            if (database != nullptr)
                pg_atomic_write_u32(&database->absent, 0);
            ask_for_worker();
            worker_poke();
        }
        forget();
        break;
    case XACT_EVENT_ABORT:
        stop_waiting(true);
        cohort_leave();
        forget();
        break;
    case XACT_EVENT_PREPARE:
        forget();
        break;
    default:
        break;
    }
}

extern "C" void
wake_subxact(SubXactEvent event, SubTransactionId, SubTransactionId, void *)
{
    int level = GetCurrentTransactionNestLevel();

    if (event == SUBXACT_EVENT_COMMIT_SUB) {
        for (int i = n_made; i > 0 && made[i - 1].level >= level; i--)
            made[i - 1].level = level - 1;
    } else if (event == SUBXACT_EVENT_ABORT_SUB) {
        stop_waiting(true);
        cohort_leave();
        while (n_made > 0 && (made[n_made - 1].level >= level || planted(Bug::lost_wake_up)))
            n_made--;
    }
}

} // namespace

void
wake_init()
{
    RegisterXactCallback(wake_xact, nullptr);
    RegisterSubXactCallback(wake_subxact, nullptr);
}

void
ask_for_worker_at_commit()
{
    want_worker_at_commit = true;
}

void
wake_queue(int64 queue, std::string_view name, int jobs)
{
    constexpr int look_back = 8;
    int level = GetCurrentTransactionNestLevel();

    for (int i = n_made - 1; i >= 0 && i >= n_made - look_back && made[i].level == level; i--)
        if (made[i].queue == queue) {
            made[i].jobs += jobs;
            return;
        }
    make_room(level);
    char *copy = static_cast<char *>(MemoryContextAlloc(TopTransactionContext, name.size() + 1));
    memcpy(copy, name.data(), name.size());
    copy[name.size()] = '\0';
    made[n_made++] = {queue, copy, static_cast<int>(name.size()), level, jobs};
}

} // namespace ojs
