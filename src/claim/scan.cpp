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
 *
 * It marks the dead index entries that it meets (store::begin, kill_dead), and remembers where the first row that may
 * count was (scan_hints.h): so it does not wade through what vacuum cannot remove while an old snapshot lives.
 */
#include "ojs/claim/scan.h"

#include "ojs/shared/claim_window.h"
#include "ojs/state/dead_letter.h"
#include "ojs/counters/job_metrics.h"
#include "ojs/pg/settings.h"
#include "ojs/claim/scan_hints.h"
#include "ojs/job/hooks.h"
#include "ojs/state/lease_log.h"
#include "ojs/state/members.h"
#include "ojs/limits/rate_limits.h"
#include "ojs/state/transitions.h"
#include "ojs/pg/subtransaction.h"
#include "ojs/pg/uuid.h"
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
TimestampTz last_upkeep;

struct ClaimedJob {
    ReadyRow ready;
    LeaseRow lease;
    HeapTuple job;
    int queue_position;
    int64 seq;
};

struct Walk {
    Tables &tables;
    const Request &request;
    TimestampTz now;
    ClaimedJob *taken;
    int n;
    int most; /* n may come to this in the queue at hand */
    Limits limits;
    HeldBack held_back;             /* that this walk is in */
    Bitmapset *arriving;            /* positions of the queues where it met jobs of open transactions */
    const WorkerVersions *versions; /* that the worker takes; null: every one */
};

int64
lease_length(const Walk &walk, const Queue &queue, const JobRow &job)
{
    if (walk.request.lease_ms)
        return *walk.request.lease_ms;
    if (job.flags & job_own_lease)
        return clamp_lease(lease_ms_of(job));
    return clamp_lease(queue.lease_ms > 0 ? queue.lease_ms : settings.default_lease_ms);
}

/*
 * What must be known of a delivery although its lease is not logged. At most once (DLV-01): it must outlive a crash, so
 * it is logged and this commit is waited for; a rebuild discards the job unless the lease itself survives.
 */
void
mark_delivered(Walk &walk, LeaseRow &lease)
{
    if (lease.flags & (job_at_most_once | lease_durable))
        lease.flags |= job_has_history;
    if ((lease.flags & job_at_most_once) && !(lease.flags & lease_durable)) {
        HistoryRow event = {};
        event.job_id = lease.job_id;
        event.at = walk.now;
        event.kind = HistoryKind::claimed;
        event.attempt = lease.attempt;
        event.deliveries = lease.deliveries;
        event.worker = lease.worker;
        store::insert(walk.tables.job_history(), form(walk.tables.job_history().rel, event));
    }
    trace(walk.tables, lease, LeaseStep::claimed, walk.now);
    if (lease.flags & job_at_most_once) {
        store::note_write(true);
        ForceSyncCommit();
    }
}

/* The row in the slot of `ready` was taken: it becomes a lease, unless the job has expired. */
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
    lease.lease_ms = lease_length(walk, queue, job);
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
        mark_delivered(walk, lease);
}

/* The row in the slot of `ready`, whose job is under a limit: false if it stays where it is, or was put elsewhere. The
 * limits are asked before the row is taken, so that who may not have it leaves it to others. */
bool
within_limits(Walk &walk, int queue_position, const ReadyRow &ready, ItemPointer tid)
{
    const Queue &queue = walk.request.queues[queue_position];
    TimestampTz again_at;
    JobRow job;

    if (!try_read_job(walk.tables, ready.job_id, ready.job_tid, job))
        return true; /* whoever takes the row sees whether there is a job */
    LimitVerdict verdict = may_start(walk.limits, queue, job, &again_at);
    if (verdict == LimitVerdict::allowed)
        return true;
    if (verdict == LimitVerdict::wait || store::take(walk.tables.ready(), tid) != store::Outcome::ok)
        return false;
    if (verdict == LimitVerdict::drop)
        discard(walk.tables, job, ready, "rate_limited", "the job was dropped at its rate limit", walk.now);
    else
        put_off(walk.tables, ready, again_at);
    return false;
}

/* A part of a class, in the order of positions. */
void
walk_positions(Walk &walk, store::Scan &scan, int queue_position, Level &level, int klass, int64 from, int64 to,
               bool &hinted)
{
    store::Table &ready = walk.tables.ready();
    HeldBack &longest = level.held_back[klass];
    ScanKeyData keys[4];
    store::Row seen;

    ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(walk.request.queues[queue_position].id));
    ScanKeyInit(&keys[1], 2, BTEqualStrategyNumber, F_INT2EQ, Int16GetDatum(level.npriority));
    ScanKeyInit(&keys[2], 3, BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(from));
    ScanKeyInit(&keys[3], 3, BTLessEqualStrategyNumber, F_INT8LE, Int64GetDatum(to));
    store::rescan(scan, keys, 4);
    while (walk.n < walk.most && (seen = store::next(scan)) != store::Row::none) {
        ReadyRow row;
        read(ready.slot, row);
        /* Rows that this transaction has taken lie below the hint; should it roll back, all hints are forgotten. */
        if (!hinted)
            level.hint[klass] = row.position;
        hinted = true;
        if (seen == store::Row::arriving)
            walk.arriving = bms_add_member(walk.arriving, queue_position);
        if (walk.versions != nullptr && seen == store::Row::live && !takes_job(walk.tables, *walk.versions, row)) {
            pass_over(scan, keys, walk.held_back, longest, id_of(*walk.versions), row.position, walk.now);
            continue;
        }
        bool limited = (row.flags & job_limits) || walk.request.queues[queue_position].limited;
        if (limited) {
            walk.limits.closed = 0;
            if (seen != store::Row::live || !within_limits(walk, queue_position, row, &scan.tid)) {
                pass_over(scan, keys, walk.held_back, longest, walk.limits.closed, row.position, walk.now);
                continue;
            }
        }
        if (walk.held_back.limit != 0)
            end_stretch(walk.held_back, level.held_back[klass], walk.now);
        int before = walk.n;
        if (seen == store::Row::live && store::take(ready, &scan.tid) == store::Outcome::ok)
            hand_over(walk, queue_position, row);
        if (limited && walk.n > before)
            starts(walk.limits, walk.taken[before].lease);
    }
}

void
walk_class(Walk &walk, store::Scan &scan, int queue_position, Level &level, int klass)
{
    int64 from = level.hint[klass];
    int64 last = klass == returned ? -1 : PG_INT64_MAX;
    bool hinted = false;

    /* The index compares every entry of each page it reads; most often a few behind the hint will do. */
    if (klass == fresh && from > 0) {
        int64 near = from + 16 + 2 * (walk.most - walk.n);
        walk_positions(walk, scan, queue_position, level, klass, from, near, hinted);
        from = near + 1;
    }
    if (walk.n < walk.most)
        walk_positions(walk, scan, queue_position, level, klass, from, last, hinted);
    if (walk.held_back.limit != 0)
        end_stretch(walk.held_back, level.held_back[klass], walk.now);
}

void
walk_queue(Walk &walk, int queue_position, bool from_start)
{
    const Queue &queue = walk.request.queues[queue_position];
    Levels &levels = levels_of(queue.id);
    if (from_start || hints_are_old(levels, walk.now))
        start_anew(levels, walk.now);

    ScanKeyData keys[4];
    store::Scan scan;
    int16 above = PG_INT16_MIN;
    set_keys(keys, queue.id, BTGreaterStrategyNumber, F_INT2GT, above, BTLessStrategyNumber, F_INT2LT, PG_INT16_MAX);
    store::begin(scan, walk.tables.ready(), store::Idx::ready_order, keys, 4, true);
    for (int i = 0; walk.n < walk.most; i++) {
        int16 found;
        if (level_between(scan, queue.id, above, i < levels.n ? levels.level[i].npriority : PG_INT16_MAX, &found))
            add_level(levels, i, found);
        else if (i == levels.n)
            break;
        above = levels.level[i].npriority;
        walk_class(walk, scan, queue_position, levels.level[i], returned);
        if (walk.n < walk.most)
            walk_class(walk, scan, queue_position, levels.level[i], fresh);
    }
    store::end(scan);
}

/* Up to how many jobs the claim may have when it has walked this queue. */
int
most_with(const Walk &walk, int queue_position)
{
    const Request &request = walk.request;
    if (request.share.quota < 0 || request.queues[queue_position].id != request.share.queue)
        return request.max;
    auto of_queue = [&](const ClaimedJob &taken) { return taken.queue_position == queue_position; };
    int had = static_cast<int>(std::count_if(walk.taken, walk.taken + walk.n, of_queue));
    return std::min(request.max, walk.n + request.share.quota - had);
}

void
walk_queues(Walk &walk, bool from_start)
{
    walk.arriving = nullptr;
    for (int i = 0; i < walk.request.n; i++) {
        walk.most = most_with(walk, i);
        if (walk.n < walk.most && walk.request.queues[i].state != QueueState::paused)
            walk_queue(walk, i, from_start);
    }
}

/* Whether the transaction ends with the statement that made this call. DO and CALL may go on for long after it. */
bool
is_whole_transaction()
{
    return !IsTransactionBlock() && GetCurrentTransactionNestLevel() == 1 && ActivePortal != nullptr &&
           ActivePortal->strategy == PORTAL_ONE_SELECT && !ActivePortal->portalPinned;
}

/*
 * Jobs that are just being committed: their transaction may have looked for listeners before this claim was one. A
 * short wait shows; a claim that may not sleep has listeners, and itself, look again.
 */
void
mind_arriving(Walk &walk, bool may_sleep)
{
    static uint32 event;
    if (walk.n == walk.request.max || walk.arriving == nullptr || worker_running())
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
    const Request &request = walk.request;
    auto *queues = static_cast<int64 *>(palloc(sizeof(int64) * request.n));
    int n = 0;
    int room = 0;
    for (int i = 0; i < request.n; i++) {
        if (request.queues[i].state == QueueState::paused)
            continue;
        queues[n++] = request.queues[i].id;
        room = std::max(room, most_with(walk, i) - walk.n);
    }
    bool alone = for_all && !request.may_wait && is_whole_transaction();
    Scope scope = alone ? Scope{nullptr, 0} : Scope{queues, n};
    int limit = alone ? upkeep_batch : room;

    int moved = reap(walk.tables, scope, limit, walk.now);
    moved += promote(walk.tables, scope, for_all ? limit : limit - moved, walk.now);
    if (moved > 0)
        store::note_write(true); /* a claim counts on from a lapse as soon as it sees it */
    last_upkeep = walk.now;
    CommandCounterIncrement(); /* so that the walk finds them */
    pfree(queues);
}

void
store_leases(Walk &walk)
{
    store::Table &table = walk.tables.lease();
    auto *tuples = static_cast<HeapTuple *>(palloc(sizeof(HeapTuple) * walk.n));
    for (int i = 0; i < walk.n; i++)
        tuples[i] = form(table.rel, walk.taken[i].lease);
    store::insert_many(table, tuples, walk.n);
}

/*
 * A job is being shown. Still set when a claim begins: this session's last claim failed on a job that cannot be shown.
 * This one then shows each in a subtransaction, and sets aside what cannot be shown, so that it blocks no others.
 */
bool showing;

void
show(Walk &walk, Tables &tables, const ClaimedJob &taken, const JobRow &job, Datum *values, bool *nulls)
{
    Status status = {};
    status.state = State::active;
    status.queue = taken.ready.queue;
    status.attempt = taken.lease.attempt;
    status.deliveries = taken.lease.deliveries;
    status.enqueued_at = std::max(job.created_at, job.scheduled_at.value_or(job.created_at));
    status.started_at = walk.now;
    status.worker = walk.request.worker;
    status.token = taken.lease.token;
    status.lease_expires_at = taken.lease.deadline;
    if (taken.ready.flags & (job_has_history | job_reported))
        read_past(tables, job.id, taken.ready.flags, status);
    if (taken.ready.flags & job_has_parents)
        read_parents(job.id, status);
    render(job, status, walk.request.queues[taken.queue_position].name, true, values, nulls);
}

/* Returns false if the job cannot be shown; then it is discarded. */
bool
show_or_discard(Walk &walk, const ClaimedJob &taken, const JobRow &job, Datum *values, bool *nulls)
{
    ErrorData *error = attempt([&] {
        Tables tables; /* of its own: what a slot holds ends with the subtransaction */
        show(walk, tables, taken, job, values, nulls);
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
        if (a.queue_position != b.queue_position)
            return a.queue_position < b.queue_position;
        return a.ready.npriority != b.ready.npriority ? a.ready.npriority < b.ready.npriority : a.seq < b.seq;
    });
    bool careful = showing;
    int shown = 0;
    if (careful)
        CommandCounterIncrement(); /* the leases have just been stored */
    for (int i = 0; i < walk.n; i++) {
        const ClaimedJob &taken = walk.taken[i];
        JobRow job;
        ExecStoreHeapTuple(taken.job, slot, false);
        read(slot, job);
        showing = true;
        if (!careful)
            show(walk, walk.tables, taken, job, values, nulls);
        bool can = !careful || show_or_discard(walk, taken, job, values, nulls);
        showing = false;
        if (!can)
            continue;
        if (hooks.n > 0)
            before_execute(hooks, values, nulls);
        tuplestore_putvalues(set->setResult, set->setDesc, values, nulls);
        walk.taken[shown++] = taken;
    }
    walk.n = shown;
    ExecDropSingleTupleTableSlot(slot);
    if (hooks.n > 0)
        report_failures(hooks, Point::before_execute);
}

} // namespace

HandedOut
hand_out(Tables &tables, const Request &request, TimestampTz now, ReturnSetInfo *set)
{
    Walk walk = {tables, request, now, nullptr, 0, 0, {tables, now}, {}, nullptr, versions_of_worker(request.worker)};
    bool shares = request.share.quota >= 0;
    if (request.max == 0 || worker_stopped(request.worker)) {
        claim_window_leave();
        return {};
    }
    walk.taken = static_cast<ClaimedJob *>(palloc(sizeof(ClaimedJob) * request.max));

    bool upkeep_due = now - last_upkeep > upkeep_every_us || now < last_upkeep;
    bool upkept = upkeep_due && !shares;
    store::WriteMark before = store::write_mark();
    if (upkept)
        do_upkeep(walk, true);
    walk_queues(walk, false);
    if (walk.n < request.max) {
        bool waits = request.may_wait && walk.n == 0;
        bool wrote = !(store::write_mark() == before);
        wake_wanted(queue_ids(request), request.n, waits);
        before = store::write_mark(); /* nobody waits for a flag */
        if (!upkept)
            do_upkeep(walk, !shares);
        walk_queues(walk, true);
        if (waits && walk.n > 0 && walk.n < request.max) { /* it does not go on to wait, so it may listen */
            wake_wanted(queue_ids(request), request.n, false);
            walk_queues(walk, true);
        }
        if (!request.may_wait || walk.n > 0)
            mind_arriving(walk, walk.n == 0 && !wrote && store::write_mark() == before);
    }
    if (shares && upkeep_due && walk.n > 0 && claim_window_is_over())
        do_upkeep(walk, true);
    if (shares)
        claim_window_leave();
    HandedOut out = {0, static_cast<Delivery *>(palloc(sizeof(Delivery) * std::max(walk.n, 1))), std::nullopt};
    if (walk.limits.free_at != DT_NOEND)
        out.free_in_us = std::max<int64>(walk.limits.free_at - now, 0);
    if (walk.n > 0)
        store_leases(walk);
    store_limit_uses(walk.limits, walk.n > 0 || !request.may_wait);
    if (walk.n > 0)
        emit(walk, set);
    else
        pfree(walk.taken); /* a claim that waits comes here many times */
    out.jobs = walk.n;
    for (int i = 0; i < walk.n; i++)
        out.deliveries[i] = {walk.taken[i].lease.job_id, walk.taken[i].lease.token};
    return out;
}

} // namespace ojs
