/*
 * wakeup.cpp: see wakeup.h.
 *
 * What a transaction has made claimable is a stack of notes (xact_notes.h). The commit path reads two atomics when
 * nobody waits. What happens to those who do: waiters.cpp.
 */
#include "ojs/shared/wakeup.h"

#include "ojs/shared/claim_window.h"
#include "ojs/shared/listener_flags.h"
#include "ojs/shared/part_news.h"
#include "ojs/pg/settings.h"
#include "ojs/pg/xact_notes.h"
#include "ojs/shared/shmem.h"

namespace ojs
{

namespace
{

/* --- queued wake-ups of the running transaction --- */

struct QueuedWakeup {
    int64 queue;
    int level;
    int name_length;
    int64 jobs;
    bool notified; /* by this transaction itself */
    bool is_part;  /* a tenant's, of a queue */
    char name[max_flag_name];

    bool same(const QueuedWakeup &o) const { return queue == o.queue; }
    bool before(const QueuedWakeup &o) const { return queue < o.queue; }
    void add(const QueuedWakeup &o) { jobs += o.jobs; }
};

constinit Notes<QueuedWakeup> made = {};
bool by_worker; /* decided before the commit, while a NOTIFY can still be added to it */
bool want_worker_at_commit;
bool active_here; /* note_activity() was called */
bool committed;
bool quiet; /* this session sends no NOTIFY any more */

void
forget()
{
    made.forget();
    by_worker = want_worker_at_commit = active_here = committed = false;
}

void
tell_all()
{
    Database *database = my_database();
    bool send = false;

    if (database == nullptr)
        return;
    for (int i = 0; i < made.n; i++)
        if (made.all[i].is_part)
            note_part_news(made.all[i].queue);
    pg_memory_barrier(); /* the jobs are visible before we look who waits */
    if (pg_atomic_read_u32(&database->waiters) == 0 && pg_atomic_read_u32(&database->wanted) == 0)
        return;
    LWLockAcquire(shared->lock, LW_EXCLUSIVE);
    for (int i = 0; i < made.n; i++)
        send |= tell_queue(*database, made.all[i].queue, made.all[i].name, made.all[i].name_length, made.all[i].jobs,
                           by_worker ? settings.notify : made.all[i].notified, by_worker);
    LWLockRelease(shared->lock);
    if (send)
        set_latch(pg_atomic_read_u32(&database->worker));
}

void
before_commit()
{
    if (made.n == 0)
        return;
    made.merge();
    Database *database = my_database();
    by_worker = worker_running() && !is_crowded(*database);
    if (by_worker || !settings.notify || quiet)
        return;
    bool has_room = notify_has_room();
    for (int i = 0; i < made.n; i++) {
        QueuedWakeup &wakeup = made.all[i];
        if (!(database != nullptr ? is_wanted(wakeup.queue) : lower_listener_flag(wakeup.queue)))
            continue;
        if (has_room) {
            notify_queue(wakeup.name, wakeup.name_length);
            wakeup.notified = true;
        } else if (database == nullptr)
            raise_listener_flags(&wakeup.queue, 1); /* for a commit after this one, or a tick */
    }
}

/* Where databases take turns with workers, this one is to have one soon. */
void
publish_activity()
{
    Database *database = active_here ? my_database() : nullptr;
    if (database == nullptr || pg_atomic_read_u32(&database->active) != 0)
        return;
    pg_atomic_write_u64(&database->active_us, static_cast<uint64>(steady_us()));
    pg_write_barrier();
    pg_atomic_write_u32(&database->active, 1);
    if (pg_atomic_read_u32(&shared->take_turns) != 0 && pg_atomic_read_u32(&database->worker) == 0)
        set_latch(pg_atomic_read_u32(&shared->launcher));
}

/* Once the transaction has committed, and sessions have been told what it changed: whoever is woken must not find a
 * queue paused that this transaction has resumed. */
void
after_commit()
{
    if (made.n > 0)
        tell_all();
    if (want_worker_at_commit) {
        Database *database = my_database();
        if (database != nullptr)
            pg_atomic_write_u32(&database->absent, 0);
        ask_for_worker();
        worker_poke();
    }
    publish_activity();
    forget_wake_up();
    forget();
}

extern "C" void
wake_release(ResourceReleasePhase phase, bool, bool, void *)
{
    if (committed && phase == RESOURCE_RELEASE_AFTER_LOCKS)
        after_commit();
}

extern "C" void
wake_xact(XactEvent event, void *)
{
    switch (event) {
    case XACT_EVENT_PRE_COMMIT:
        before_commit();
        break;
    case XACT_EVENT_COMMIT:
        committed = true;
        break;
    case XACT_EVENT_ABORT:
        stop_waiting(true);
        claim_window_leave();
        forget();
        break;
    case XACT_EVENT_PREPARE:
        publish_activity();
        forget_wake_up();
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
        made.hand_up(level);
        hand_up_wake_up(level);
    } else if (event == SUBXACT_EVENT_ABORT_SUB) {
        stop_waiting(false);
        undo_wake_up(level);
        claim_window_leave();
        made.drop(level);
    }
}

} // namespace

void
wake_init()
{
    RegisterXactCallback(wake_xact, nullptr);
    RegisterResourceReleaseCallback(wake_release, nullptr);
    RegisterSubXactCallback(wake_subxact, nullptr);
}

void
note_activity()
{
    active_here = true;
}

void
stop_notifying()
{
    quiet = true;
}

void
ask_for_worker_at_commit()
{
    want_worker_at_commit = true;
}

void
wake_queue(int64 queue, std::string_view name, int jobs)
{
    size_t stored_size = name.size();
    name = shown_queue(name); /* whoever listens may belong to another tenant */
    QueuedWakeup wakeup = {queue,
                           GetCurrentTransactionNestLevel(),
                           static_cast<int>(std::min<size_t>(name.size(), max_flag_name)),
                           jobs,
                           false,
                           name.size() != stored_size,
                           {}};
    memcpy(wakeup.name, name.data(), wakeup.name_length);
    (void)made.add(wakeup);
}

} // namespace ojs
