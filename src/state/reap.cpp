/*
 * reap.cpp: reaping, promotion, expiry. Rows that another transaction is at are left to it.
 */
#include "ojs/state/reap.h"

#include "ojs/pg/settings.h"
#include "ojs/limits/slots.h"
#include "ojs/queue/maintenance.h"
#include "ojs/state/locate.h"
#include "ojs/state/ordering.h"

namespace ojs
{

namespace
{

/*
 * No live lease has a smaller reap_at, as far as this session knows: past acked leases, whose index entries stay until
 * vacuum, a scan need not look again. New leases come above it, since the shortest lease is 100 ms; what could come
 * below (a rollback that brings a lease back, a clock set back, an insert that took long) starts it anew.
 */
TimestampTz reap_hint = DT_NOBEGIN;
TimestampTz reap_hint_now; /* the time of the last scan */
uint64 reap_hint_clock;
TimestampTz reap_full_at; /* … of the last one from the start */
constexpr int64 reap_full_every_us = 60 * USECS_PER_SEC;

bool left_over; /* see upkeep_left_over() */

void
forget_passes()
{
    reap_hint = DT_NOBEGIN;
    left_over = true;
}

extern "C" void
upkeep_xact(XactEvent event, void *)
{
    if (event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE)
        forget_passes();
}

extern "C" void
upkeep_subxact(SubXactEvent event, SubTransactionId, SubTransactionId, void *)
{
    if (event == SUBXACT_EVENT_ABORT_SUB)
        forget_passes();
}

/* An attempt that a timeout ended fails, and is retried with a backoff. */
void
time_out(Tables &tables, const JobRow &job, const LeaseRow &lease, const char *type, const char *message,
         TimeoutFacts facts, TimestampTz now)
{
    ReportedError error = {};
    error.stored = server_error(type, message, lease.attempt, now, facts);
    error.type = type;
    error.retryable = true;
    (void)fail_attempt(tables, job, lease, error, std::nullopt, now);
}

/* What was over first counts, however late upkeep comes. */
void
end_lease(Tables &tables, const LeaseRow &lease, TimestampTz stalls_at, TimestampTz now)
{
    JobRow job;
    if (!read_taken_job(tables, lease.job_id, lease.job_tid, job) || end_if_timed_out(tables, job, lease, now))
        return;
    if (lease.stop_at <= now && lease.stop_at <= std::min(lease.deadline, stalls_at))
        time_out(tables, job, lease, "timeout", "the job ran longer than its timeout",
                 {"execution", execution_timeout_ms_of(job), (now - lease.claimed_at) / 1000}, now);
    else if (stalls_at <= now && stalls_at <= lease.deadline)
        time_out(tables, job, lease, "stalled", "no heartbeat came for the job within its heartbeat_timeout",
                 {"stalled", heartbeat_timeout_ms_of(job), (now - *lease.beat_at) / 1000}, now);
    else
        lapse(tables, job, lease, "visibility_timeout", "the lease ran out before the job was finished", now);
}

/* Leases that may have lapsed, for a scan by reap_at. */
void
lapsed_keys(ScanKey keys, TimestampTz now)
{
    if (now < reap_hint_now || now - reap_full_at > reap_full_every_us || reap_hint_clock != clock_generation) {
        reap_hint = DT_NOBEGIN;
        reap_full_at = now;
        reap_hint_clock = clock_generation;
    }
    reap_hint_now = now;
    ScanKeyInit(&keys[0], 1, BTGreaterEqualStrategyNumber, F_TIMESTAMPTZ_GE, TimestampTzGetDatum(reap_hint));
    ScanKeyInit(&keys[1], 1, BTLessEqualStrategyNumber, F_TIMESTAMPTZ_LE, TimestampTzGetDatum(now));
}

/* A lease that was extended since its index entry was made: look again when it may really end. */
void
look_again_later(Tables &tables, ItemPointer tid, TimestampTz now)
{
    store::Table &table = tables.lease();
    LeaseRow lease;
    if (store::lock(table, tid, false) != store::Outcome::ok)
        return;
    read(table.slot, lease);
    lease.reap_at = lapses_at(tables, lease);
    if (lease.reap_at > now) {
        HeapTuple tuple = form(table.rel, lease);
        store::replace(table, tid, tuple);
    }
}

struct DueJob {
    ItemPointerData tid;
    DelayedRow row;
};

/* Claim order: priority, those delivered before, then the order in which they fell due. */
bool
before(const DueJob &a, const DueJob &b)
{
    if (a.row.npriority != b.row.npriority)
        return a.row.npriority < b.row.npriority;
    if ((a.row.deliveries > 0) != (b.row.deliveries > 0))
        return a.row.deliveries > 0;
    return a.row.due_at < b.row.due_at;
}

/*
 * The reminder that a job may have expired fell due: discard the job, or ask again later. A reminder of a job that
 * another transaction has is put off for a second, so that it is not in the way of others. Returns false if that other
 * transaction has the reminder itself.
 */
bool
heed_reminder(Tables &tables, DueJob &reminder, TimestampTz now)
{
    const pg_uuid_t &id = reminder.row.job_id;
    store::Table &delayed = tables.delayed();
    std::optional<TimestampTz> ask_again = now + USECS_PER_SEC;
    JobRow job;
    LeaseRow lease;
    ItemPointerData tid;
    Status status;

    Location location = locate(tables, id);
    if (location.table != nullptr && location.seen == store::Row::live) {
        bool exists = try_read_job(tables, id, reminder.row.job_tid, job);
        std::optional<Expiry> expiry = exists ? expiry_of(job, location.row.deliveries) : std::nullopt;
        if (!expiry)
            ask_again = std::nullopt;
        else if (expiry->at > now)
            ask_again = expiry->at;
        else {
            CommandCounterIncrement(); /* this pass may have made it available */
            if (store::take(*location.table, &location.tid) == store::Outcome::ok) {
                (void)expire(tables, job, end_waiting(location.row, now), *expiry); /* the reminder goes with it */
                return true;
            }
        }
    } else if (location.table == nullptr &&
               store::find(tables.lease(), store::Idx::lease_job, id, &tid) != store::Row::none) {
        /* Active: it may finish, but it may also come back. */
        read(tables.lease().slot, lease);
        ask_again = std::max(lease.deadline, *ask_again);
        std::optional<Expiry> total;
        if (try_read_job(tables, id, reminder.row.job_tid, job))
            total = total_expiry_of(job);
        if (total && total->at > now)
            ask_again = std::min(*ask_again, total->at);
    } else if (location.table == nullptr &&
               (!read_current_status(tables, id, now, job, status) || terminal(status.state)))
        ask_again = std::nullopt;
    if (store::take(delayed, &reminder.tid) != store::Outcome::ok)
        return false;
    if (ask_again) {
        reminder.row.due_at = *ask_again;
        store::insert(delayed, form(delayed.rel, reminder.row));
    }
    return true;
}

/*
 * Rows of some queues only have no index of their own: a walk for them also meets the rows of all others, and so is
 * bounded. It remembers how far it came, and the next walk for the same queues goes on there.
 */
struct Walked {
    uint64 queues; /* their hash */
    TimestampTz upto;
};
Walked walked = {0, DT_NOBEGIN};
constexpr int most_of_others = 10 * upkeep_batch;

uint64
hash_of(Scope scope)
{
    return hash_bytes_extended(reinterpret_cast<const unsigned char *>(scope.queues),
                               static_cast<int>(sizeof(int64)) * scope.n, 0);
}

struct DueWalk {
    store::Scan scan;
    Scope scope;
    TimestampTz from;
    int of_others;
    std::optional<TimestampTz> cut; /* it ended here, before the end */
};

/* The next due rows, at most upkeep_batch. Reminders matter to nobody who wants jobs of some queues. */
int
next_due(DueWalk &walk, DueJob *due)
{
    int n = 0;
    store::Row seen;
    while (n < upkeep_batch && (seen = store::next(walk.scan)) != store::Row::none) {
        DueJob &next = due[n];
        read(walk.scan.table->slot, next.row);
        next.tid = walk.scan.tid;
        if (walk.scope.all() || (walk.scope.has(next.row.queue) && next.row.kind != DelayedKind::expiry))
            n += seen == store::Row::live;
        else if (++walk.of_others >= most_of_others && next.row.due_at > walk.from) {
            walk.cut = next.row.due_at;
            break;
        }
    }
    return n;
}

} // namespace

int
reap(Tables &tables, Scope scope, int limit, TimestampTz now)
{
    if (limit <= 0)
        return 0; /* who looks at nothing learns nothing of what there is */
    store::Table &table = tables.lease();
    ScanKeyData keys[2];
    lapsed_keys(keys, now);

    store::Scan scan;
    store::Row seen;
    TimestampTz first_live = now;
    int reaped = 0;
    store::begin(scan, table, store::Idx::lease_reap, keys, 2, true);
    while (reaped < limit && (seen = store::next(scan)) != store::Row::none) {
        LeaseRow lease;
        read(table.slot, lease);
        /* Whatever is met and not certainly gone when this transaction ends, the next scan must meet again. */
        first_live = std::min(first_live, lease.reap_at);
        if (seen != store::Row::live)
            continue;
        if (lapses_at(tables, lease) > now) {
            if (scope.all()) /* else its holder would have to wait for this transaction */
                look_again_later(tables, &scan.tid, now);
            continue;
        }
        if (!scope.has(lease.queue))
            continue;
        TimestampTz stalls_at = stall_at(tables, lease);
        if (store::take(table, &scan.tid) != store::Outcome::ok)
            continue;
        free_slots(tables, lease);
        end_lease(tables, lease, stalls_at, now);
        reaped++;
    }
    store::end(scan);
    reap_hint = first_live;
    left_over = reaped == limit;
    advance_lines();
    return reaped;
}

int
promote(Tables &tables, Scope scope, int limit, TimestampTz now)
{
    if (limit <= 0)
        return 0;
    store::Table &table = tables.delayed();
    auto *due = static_cast<DueJob *>(palloc(sizeof(DueJob) * upkeep_batch));
    ScanKeyData keys[2];
    DueWalk walk = {{}, scope, DT_NOBEGIN, 0, std::nullopt};
    uint64 queues = scope.all() ? 0 : hash_of(scope);
    int n;
    int done = advance_due_lines(tables, scope, limit);

    if (!scope.all() && walked.queues == queues)
        walk.from = walked.upto;
    ScanKeyInit(&keys[0], 1, BTLessEqualStrategyNumber, F_TIMESTAMPTZ_LE, TimestampTzGetDatum(promoted_to(now)));
    ScanKeyInit(&keys[1], 1, BTGreaterEqualStrategyNumber, F_TIMESTAMPTZ_GE, TimestampTzGetDatum(walk.from));
    store::begin(walk.scan, table, store::Idx::delayed_due, keys, scope.all() ? 1 : 2, true);
    do {
        n = next_due(walk, due);
        if (n > limit - done)
            std::sort(due, due + n, before);
        for (int i = 0; i < n && done < limit; i++) {
            CHECK_FOR_INTERRUPTS();
            if (due[i].row.kind == DelayedKind::expiry)
                done += heed_reminder(tables, due[i], now);
            else if (store::take(table, &due[i].tid) == store::Outcome::ok) {
                /*
                 * What has been delivered before lines up with the returned; the rest is fresh, and last among these.
                 */
                make_ready(tables, due[i].row, due[i].row.deliveries > 0 ? returned_position() : store::next_seq());
                done++;
            }
        }
    } while (n == upkeep_batch && done < limit); /* others may have all of a batch */
    store::end(walk.scan);
    if (!scope.all() && done < limit) /* else there may be more where it began */
        walked = {queues, walk.cut.value_or(DT_NOBEGIN)};
    else if (!scope.all())
        walked = {queues, walk.from};
    pfree(due);
    left_over = left_over || (!scope.all() && done >= limit);
    return done;
}

bool
upkeep_left_over()
{
    return left_over;
}

int64
count_due(Tables &tables, int64 queue, int64 most, TimestampTz now)
{
    store::Scan scan;
    store::Row seen;
    ScanKeyData keys[2];
    int64 n = 0;

    lapsed_keys(keys, now);
    store::begin(scan, tables.lease(), store::Idx::lease_reap, keys, 2, true);
    while (n < most && (seen = store::next(scan)) != store::Row::none) {
        LeaseRow lease;
        CHECK_FOR_INTERRUPTS();
        read_in_place(tables.lease().slot, lease);
        n += seen == store::Row::live && lease.queue == queue && lease.deadline <= now;
    }
    store::end(scan);
    store::begin(scan, tables.delayed(), store::Idx::delayed_due, &keys[1], 1, true);
    while (n < most && (seen = store::next(scan)) != store::Row::none) {
        DelayedRow row;
        CHECK_FOR_INTERRUPTS();
        read(tables.delayed().slot, row);
        n += seen == store::Row::live && row.queue == queue && row.kind != DelayedKind::expiry;
    }
    store::end(scan);
    return n;
}

TimestampTz
lapsed_since(Tables &tables, TimestampTz now)
{
    store::Scan scan;
    store::Row seen;
    ScanKeyData key;
    TimestampTz since = DT_NOEND;

    ScanKeyInit(&key, 1, BTLessEqualStrategyNumber, F_TIMESTAMPTZ_LE, TimestampTzGetDatum(now));
    store::begin(scan, tables.lease(), store::Idx::lease_reap, &key, 1, true);
    for (int n = 0; n < upkeep_batch && (seen = store::next(scan)) != store::Row::none;) {
        LeaseRow lease;
        CHECK_FOR_INTERRUPTS();
        if (seen != store::Row::live)
            continue;
        read(tables.lease().slot, lease);
        n++;
        TimestampTz at = lapses_at(tables, lease); /* it may have been extended */
        since = at <= now ? std::min(since, at) : since;
    }
    store::end(scan);
    return since;
}

TimestampTz
due_since(Tables &tables, TimestampTz now)
{
    store::Scan scan;
    store::Row seen;
    ScanKeyData key;
    TimestampTz since = DT_NOEND;

    ScanKeyInit(&key, 1, BTLessEqualStrategyNumber, F_TIMESTAMPTZ_LE, TimestampTzGetDatum(promoted_to(now)));
    store::begin(scan, tables.delayed(), store::Idx::delayed_due, &key, 1, true);
    while ((seen = store::next(scan)) != store::Row::none && seen != store::Row::live)
        CHECK_FOR_INTERRUPTS();
    if (seen == store::Row::live) {
        DelayedRow row;
        read(tables.delayed().slot, row);
        since = row.due_at;
    }
    store::end(scan);
    return since;
}

TimestampTz
no_lease_before(TimestampTz now)
{
    bool holds =
        now >= reap_hint_now && now - reap_full_at <= reap_full_every_us && reap_hint_clock == clock_generation;
    return holds ? reap_hint : DT_NOBEGIN;
}

void
upkeep_init()
{
    RegisterXactCallback(upkeep_xact, nullptr);
    RegisterSubXactCallback(upkeep_subxact, nullptr);
}

} // namespace ojs
