/*
 * scan.cpp: the claim.
 *
 * Equivalent SQL, for one queue:
 *   with taken as (
 *       delete from ojs_store.ready where ctid = any (array(
 *           select ctid from ojs_store.ready where queue = $1 order by npriority, position limit $2
 *           for update skip locked))
 *       returning *)
 *   insert into ojs_store.lease select …, random token from taken returning …;
 * test/pgtap/claim_oracle.sql holds the two against each other.
 */
#include "ojs/claim/scan.h"

#include "ojs/claim/delivery.h"
#include "ojs/claim/fair.h"
#include "ojs/claim/shares.h"
#include "ojs/shared/claim_window.h"
#include "ojs/state/dead_letter.h"
#include "ojs/counters/job_metrics.h"
#include "ojs/pg/settings.h"
#include "ojs/claim/held_jobs.h"
#include "ojs/job/hooks.h"
#include "ojs/state/lease_log.h"
#include "ojs/state/transitions.h"
#include "ojs/pg/subtransaction.h"
#include "ojs/pg/row.h"
#include "ojs/state/reap.h"
#include "ojs/shared/shmem.h"
#include "ojs/shared/wakeup.h"
#include "ojs/state/client_workers.h"
#include "ojs/state/worker_versions.h"

namespace ojs
{

namespace
{

constexpr int64 upkeep_every_us = 100 * 1000;
constexpr int many_held = 100;
TimestampTz last_upkeep;

} // namespace

void
hand_over(Walk &walk, int queue_position, const ReadyRow &ready)
{
    const Queue &queue = walk.request.queues[queue_position];
    JobRow job;

    if (!read_taken_job(walk.tables, ready.job_id, ready.job_tid, job))
        return;
    if (job.flags & job_expires) {
        std::optional<Expiry> expiry = expiry_of(job, ready.deliveries);
        if (expiry && expiry->at <= walk.now) {
            store::note_write(true);
            (void)expire(walk.tables, job, end_waiting(ready, walk.now), *expiry);
            return;
        }
    }
    if (delivered_out(queue, ready)) {
        move_to_dead_letters(walk.tables, queue, job, ready, walk.now);
        return;
    }
    ClaimedJob &taken = walk.taken[walk.n++];
    LeaseRow &lease = taken.lease;
    taken.ready = ready;
    taken.queue_position = queue_position;
    taken.seq = job.seq;
    taken.job = ExecCopySlotHeapTuple(walk.tables.job().slot);

    lease = {};
    static_cast<HotRow &>(lease) = ready;
    lease.lease_ms = lease_length(walk.request, queue, job);
    lease.deadline = walk.now + lease.lease_ms * 1000;
    lease.stop_at = stop_at_of(job, walk.now);
    /* Upkeep looks for nothing below what it has passed, so no lease may come up sooner than the shortest one. */
    lease.reap_at = std::max(std::min(lease.deadline, lease.stop_at), walk.now + min_lease_ms * 1000);
    lease.token = static_cast<int64>(random64());
    lease.claimed_at = walk.now;
    lease.flags = (ready.flags & ~lease_flags) | queue.lease_flags;
    lease.attempt++;
    lease.deliveries++;
    lease.session = walk.request.session;
    lease.worker = walk.request.worker;
    count_started(job, lease);
    if (lease.flags & (job_at_most_once | lease_flags))
        mark_delivered(walk.tables, lease, walk.now);
}

int
most_with(const Walk &walk, int queue_position)
{
    const Request &request = walk.request;
    if (request.share.quota < 0 || request.queues[queue_position].id != request.share.queue)
        return walk.max;
    auto of_queue = [&](const ClaimedJob &taken) { return taken.queue_position == queue_position; };
    int had = static_cast<int>(std::count_if(walk.taken, walk.taken + walk.n, of_queue));
    return std::min(walk.max, walk.n + request.share.quota - had);
}

namespace
{

void
walk_queues(Walk &walk, bool from_start)
{
    walk.arriving = nullptr;
    if (walk.request.fair != nullptr) {
        walk_fairly(walk, from_start);
        return;
    }
    if (walk.request.weights != nullptr) {
        walk_by_weight(walk, from_start);
        return;
    }
    for (int i = 0; i < walk.request.n; i++) {
        walk.most = most_with(walk, i);
        if (walk.n < walk.most && walk.request.queues[i].state != QueueState::paused)
            walk_queue(walk, i, from_start);
    }
}

/* Whether the transaction ends with the statement that made this call. DO and CALL may go on for long after it, and so
 * may a pipeline, which shows itself from its second statement on. */
bool
is_whole_transaction()
{
    return !IsTransactionBlock() && !in_pipeline() && GetCurrentTransactionNestLevel() == 1 &&
           ActivePortal != nullptr && ActivePortal->strategy == PORTAL_ONE_SELECT && !ActivePortal->portalPinned;
}

/* Jobs that are just being committed: their transaction may have looked for listeners before this claim was one. A
 * short wait shows; a claim that may not sleep, or that has the turn of limits, has listeners, and itself, look again.
 */
void
mind_arriving(Walk &walk, bool may_sleep)
{
    static uint32 event;
    may_sleep = may_sleep && walk.limits.keys == nullptr;
    if (walk.n == walk.max || walk.arriving == nullptr || worker_running())
        return;
    for (int64 ms = 1; may_sleep && walk.n == 0 && walk.arriving != nullptr && ms <= 8; ms *= 2) {
        sleep_ms(ms, "OjsClaimArriving", &event);
        walk_queues(walk, true);
    }
    for (int i = -1; (walk.n > 0 || !may_sleep) && (i = bms_next_member(walk.arriving, i)) >= 0;)
        wake_queue(walk.request.queues[i].id, walk.request.queues[i].name, 1);
}

/*
 * Lapsed leases and due jobs. A call that is its own transaction and ends at once does whatever there is to do, for
 * everybody's good. One that may go on to wait, or that is part of a longer transaction, does only what it can use
 * itself: the rest would be hidden from others, or locked, until it ends. The same where others wait for their share:
 * `for_all` then comes when the last of them has its own.
 */
void
do_upkeep(Walk &walk, bool for_all)
{
    Request &request = walk.request;
    bool alone = for_all && !request.may_wait && is_whole_transaction();
    QueueIds queues = {nullptr, 0};
    int room = request.fair != nullptr ? walk.max - walk.n : 0;
    if (!alone && request.fair != nullptr)
        queues = all_queue_ids(request);
    else if (!alone)
        queues.ids = static_cast<int64 *>(palloc(sizeof(int64) * std::max(request.n, 1)));
    for (int i = 0; !alone && request.fair == nullptr && i < request.n; i++) {
        if (request.queues[i].state == QueueState::paused)
            continue;
        queues.ids[queues.n++] = request.queues[i].id;
        room = std::max(room, most_with(walk, i) - walk.n);
    }
    std::sort(queues.ids, queues.ids + queues.n);
    Scope scope = {queues.ids, queues.n};
    int limit = alone ? upkeep_batch : room;

    int moved = reap(walk.tables, scope, limit, walk.now);
    moved += promote(walk.tables, scope, for_all ? limit : limit - moved, walk.now);
    if (moved > 0)
        store::note_write(true); /* a claim counts on from a lapse as soon as it sees it */
    last_upkeep = walk.now;
    CommandCounterIncrement(); /* so that the walk finds them */
    if (moved > 0)
        count_anew(walk.limits);
    if (queues.ids != nullptr)
        pfree(queues.ids);
}

void
store_leases(Walk &walk)
{
    store::Table &table = walk.tables.lease();
    auto *tuples = static_cast<HeapTuple *>(palloc(sizeof(HeapTuple) * walk.n));
    for (int i = 0; i < walk.n; i++)
        tuples[i] = form(table.rel, walk.taken[i].lease);
    store::insert_many(table, tuples, walk.n);
    for (int i = 0; i < walk.n; i++)
        remember_lease(walk.taken[i].lease.job_id, tuples[i]->t_self);
}

/*
 * A job is being shown. Still set when a claim begins: this session's last claim failed on a job that cannot be shown.
 * This one then shows each in a subtransaction, and sets aside what cannot be shown, so that it blocks no others.
 */
bool showing;

/* Returns false if the job cannot be shown; then it is discarded. */
bool
show_or_discard(Walk &walk, const ClaimedJob &taken, const JobRow &job, Datum *values, bool *nulls)
{
    ErrorData *error = attempt([&] {
        Tables tables; /* of its own: what a slot holds ends with the subtransaction */
        show(tables, walk.request, taken, job, values, nulls);
        tables.close();
    });
    if (error == nullptr)
        return true;
    if (is_of_server(*error))
        ReThrowError(error);
    LeaseRow lease;
    if (take_lease(walk.tables, job.id, {}, lease)) {
        trace(walk.tables, lease, LeaseStep::failed, walk.now);
        discard(walk.tables, job, lease, "not_renderable", "the job cannot be shown to a worker", walk.now);
        ereport(WARNING,
                (errmsg("job %s cannot be shown to a worker and is discarded: %s",
                        DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&job.id))), error->message)));
    }
    return false;
}

void
emit(Walk &walk, ReturnSetInfo *set)
{
    Datum values[claimed_columns];
    bool nulls[claimed_columns];
    TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(walk.tables.job().rel), &TTSOpsHeapTuple);
    Hooks hooks = hooks_at(Point::before_execute);

    std::sort(walk.taken, walk.taken + walk.n, [](const ClaimedJob &a, const ClaimedJob &b) {
        return std::tie(a.queue_position, a.ready.npriority, a.seq) <
               std::tie(b.queue_position, b.ready.npriority, b.seq);
    });
    if (walk.request.weights != nullptr)
        take_turns(walk.taken, walk.n, walk.request.weights);
    if (walk.request.fair != nullptr)
        std::stable_sort(walk.taken, walk.taken + walk.n, [](const ClaimedJob &a, const ClaimedJob &b) {
            return a.ready.npriority < b.ready.npriority;
        });
    bool careful = showing;
    int shown = 0;
    if (careful)
        CommandCounterIncrement(); /* the leases have just been stored */
    for (int i = 0; i < walk.n; i++) {
        const ClaimedJob &taken = walk.taken[i];
        JobRow job;
        ExecStoreHeapTuple(taken.job, slot, false);
        read_in_place(slot, job);
        showing = true;
        if (!careful)
            show(walk.tables, walk.request, taken, job, values, nulls);
        bool can = !careful || show_or_discard(walk, taken, job, values, nulls);
        showing = false;
        if (!can)
            continue;
        if (hooks.n > 0)
            before_execute(hooks, values, nulls);
        put_row(set, values, nulls);
        walk.taken[shown++] = taken;
    }
    walk.n = shown;
    ExecDropSingleTupleTableSlot(slot);
    if (hooks.n > 0)
        report_failures(hooks, Point::before_execute);
}

} // namespace

HandedOut
hand_out(Tables &tables, Request &request, TimestampTz now, ReturnSetInfo *set)
{
    Walk walk = {.tables = tables,
                 .request = request,
                 .now = now,
                 .limits = {tables, now},
                 .versions = versions_of_worker(request.worker)};
    bool shares = request.share.quota >= 0;
    if (request.max == 0 || worker_stopped(request.worker)) {
        claim_window_leave();
        pass_wake_up_on();
        return {};
    }
    walk.taken = static_cast<ClaimedJob *>(palloc(sizeof(ClaimedJob) * request.max));
    walk.max = request.max;

    bool upkeep_due = now - last_upkeep > upkeep_every_us || now < last_upkeep || upkeep_left_over();
    bool upkept = upkeep_due && !shares;
    store::WriteMark before = store::write_mark();
    if (upkept)
        do_upkeep(walk, true);
    LimitOnJob place = {};
    if (!request.pool_limit.key.empty() && request.n > 0)
        walk.max = std::min(walk.max, places_left(walk.limits, request.queues[0], request.pool_limit, &place));
    walk_queues(walk, false);
    if (walk.n < request.max) {
        bool waits = request.may_wait && walk.n == 0;
        bool wrote = !(store::write_mark() == before);
        QueueIds queues = notified_ids(request);
        wake_wanted(queues.ids, queues.n, waits);
        before = store::write_mark();           /* nobody waits for a flag */
        if (!upkept || request.fair != nullptr) /* it did so without queues */
            do_upkeep(walk, !shares);
        walk_queues(walk, true);
        if (waits && walk.n > 0 && walk.n < request.max) { /* it does not go on to wait, so it may listen */
            wake_wanted(queues.ids, queues.n, false);
            walk_queues(walk, true);
        }
        if (!request.may_wait || walk.n > 0)
            mind_arriving(walk, walk.n == 0 && !wrote && store::write_mark() == before);
    }
    if (shares && upkeep_due && walk.n > 0 && claim_window_is_over())
        do_upkeep(walk, true);
    if (shares)
        claim_window_leave();
    auto *deliveries = static_cast<Delivery *>(palloc(sizeof(Delivery) * std::max(walk.n, 1)));
    HandedOut out = {0, deliveries, walk.max == 0, std::nullopt};
    if (out.no_places)
        pass_wake_up_on();
    if (walk.limits.free_at != DT_NOEND)
        out.free_in_us = std::max<int64>(walk.limits.free_at - now, 0);
    if (request.fair != nullptr) /* nobody wakes it for a part that is new */
        out.free_in_us = std::min(out.free_in_us.value_or(USECS_PER_SEC), USECS_PER_SEC);
    for (int i = 0; place.used != nullptr && i < walk.n; i++)
        take_place(walk.limits, place, walk.taken[i].lease);
    if (walk.n > 0)
        store_leases(walk);
    /* A claim that waits writes only if that is worth coming back for. */
    if (is_whole_transaction() && (walk.n > 0 || !request.may_wait || walk.n_held >= many_held))
        store_held(walk);
    store_limit_uses(walk.limits, walk.n > 0 || !request.may_wait);
    if (walk.n > 0)
        emit(walk, set);
    else
        pfree(walk.taken); /* a claim that waits comes here many times */
    if (walk.n > 0) {
        auto *from = static_cast<int64 *>(palloc(sizeof(int64) * walk.n));
        std::transform(walk.taken, walk.taken + walk.n, from, [](const ClaimedJob &job) { return job.ready.queue; });
        used_wake_up(from, walk.n);
    }
    out.jobs = walk.n;
    for (int i = 0; i < walk.n; i++)
        out.deliveries[i] = {walk.taken[i].lease.job_id, walk.taken[i].lease.token};
    return out;
}

} // namespace ojs
