/*
 * capacity.cpp: see capacity.h.
 *
 * With shared counters a push reserves its places there (reservation.cpp), and waits for nobody. Without them it locks the
 * queue until its transaction ends, and counts: then pushes to one bounded queue come one after another.
 */
#include "ojs/capacity.h"

#include "ojs/args.h"
#include "ojs/counts.h"
#include "ojs/guard.h"
#include "ojs/guc.h"
#include "ojs/json.h"
#include "ojs/moves.h"
#include "ojs/shared.h"
#include "ojs/worker.h"

namespace ojs
{

namespace
{

Pressure nearest;         /* of the last push */
TimestampTz waits_until;  /* the call that is under way; 0: has not waited yet */

/* A bounded queue, and how many jobs of the call go there. */
struct Wanted {
    Queue queue;
    int64 n;
};

struct WantedList {
    Wanted *wanted;
    int n;
};

/* In the order in which their locks are taken. */
WantedList
wanted_by(const Envelope *envelopes, int n)
{
    WantedList list = {};
    int room = 0;
    for (int i = 0; i < n; i++) {
        const Queue *queue =
            settings.strict_queues ? find_queue(envelopes[i].queue) : queue_for_push(envelopes[i].queue);
        if (queue == nullptr || queue->max_size == 0 || queue->state == QueueState::draining)
            continue; /* a queue that takes no jobs says so when they are stored */
        int at = list.n - 1;
        while (at >= 0 && list.wanted[at].queue.id != queue->id)
            at--;
        if (at >= 0) {
            list.wanted[at].n++;
            continue;
        }
        if (list.n == room) {
            room = std::max(4, room * 2);
            auto *wider = static_cast<Wanted *>(palloc(sizeof(Wanted) * room));
            std::copy(list.wanted, list.wanted + list.n, wider);
            list.wanted = wider;
        }
        list.wanted[list.n++] = {*queue, 1};
    }
    std::sort(list.wanted, list.wanted + list.n,
              [](const Wanted &a, const Wanted &b) { return a.queue.id < b.queue.id; });
    return list;
}

/* --- counting, where there are no counters --- */

int64
count_ready(Tables &tables, int64 queue, int64 most, Snapshot snapshot)
{
    store::Table &table = tables.ready();
    Relation index = index_open(store::index_oid(store::Idx::ready_order), AccessShareLock);
    IndexScanDesc scan = index_begin(table.rel, index, snapshot, 1);
    ScanKeyData key;
    int64 n = 0;
    ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(queue));
    index_rescan(scan, &key, 1, nullptr, 0);
    while (n < most && index_getnext_slot(scan, ForwardScanDirection, table.slot)) {
        CHECK_FOR_INTERRUPTS();
        n++;
    }
    index_endscan(scan);
    index_close(index, NoLock);
    return n;
}

/* No index of `later` knows queues: only where there is little in it is this cheap. */
int64
count_later(Tables &tables, int64 queue, int64 most, Snapshot snapshot)
{
    store::Table &table = tables.later();
    TableScanDesc scan = table_beginscan(table.rel, snapshot, 0, nullptr);
    int64 n = 0;
    while (n < most && table_scan_getnextslot(scan, ForwardScanDirection, table.slot)) {
        LaterRow row;
        CHECK_FOR_INTERRUPTS();
        read(table.slot, row);
        n += row.queue == queue && row.kind != LaterKind::expiry;
    }
    table_endscan(scan);
    ExecClearTuple(table.slot);
    return n;
}

/* Those that wait, as everybody and this transaction have left them by now; counted up to `most`. */
int64
count_waiting(Tables &tables, int64 queue, int64 most)
{
    CommandCounterIncrement();
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    int64 n = count_ready(tables, queue, most, snapshot);
    n += count_later(tables, queue, most - n, snapshot);
    UnregisterSnapshot(snapshot);
    return n;
}

/* --- at the bound --- */

/* Takes places for the jobs, if there are any; `depth`: how many wait without them. */
bool
fits(Tables &tables, const Wanted &wanted, int64 *depth)
{
    const Queue &queue = wanted.queue;
    *depth = 0;
    if (queue.max_size == 0)
        return true;
    switch (reserve(queue.id, wanted.n, queue.max_size, depth)) {
    case Reservation::made:
        return true;
    case Reservation::full:
        return false;
    case Reservation::none:
        break;
    }
    lock_bound(queue.id, ExclusiveLock);
    *depth = count_waiting(tables, queue.id, queue.overflow == Overflow::drop_oldest ? PG_INT64_MAX : queue.max_size);
    return *depth + wanted.n <= queue.max_size;
}

[[noreturn]] void
raise_full(const Wanted &wanted, int64 depth)
{
    constexpr std::string_view policies[] = {"reject", "drop_oldest", "block"};
    const Queue &queue = wanted.queue;
    auto n = static_cast<long long>(wanted.n);
    auto bound = static_cast<long long>(queue.max_size);
    Details details;
    details.add("queue", queue.name).add("depth", depth).add("bound", queue.max_size);
    details.add("strategy", policies[static_cast<int>(queue.overflow)]).add("jobs", wanted.n).add("retry_after_seconds", 1);
    if (wanted.n > queue.max_size)
        raise(Code::queue_full, details, psprintf("Push at most %lld jobs at once.", bound),
              "queue \"%s\" has no room for %lld jobs: it has %lld places", queue.name, n, bound);
    if (wanted.n > 1)
        raise(Code::queue_full, details, "Try again when workers have made room, or push fewer jobs at once.",
              "queue \"%s\" has no room for %lld jobs: %lld of %lld places are taken", queue.name, n,
              static_cast<long long>(depth), bound);
    raise(Code::queue_full, details, "Try again when workers have made room.",
          "queue \"%s\" is full: %lld of %lld places are taken", queue.name, static_cast<long long>(depth), bound);
}

/*
 * Sleeps a little, if the call has time left: true, look again. Not where this transaction alone fills the queue: what it
 * has pushed nobody can claim before it ends.
 */
bool
wait_for_room(Wanted &wanted)
{
    constexpr int64 look_every_ms = 10;
    static uint32 event;
    int64 ms = settings.block_timeout_ms >= 0 ? settings.block_timeout_ms : wanted.queue.block_ms;
    TimestampTz at = GetCurrentTimestamp();
    if (waits_until == 0)
        waits_until = at + ms * 1000;
    if (at >= waits_until || waiting_by_us(wanted.queue.id) + wanted.n > wanted.queue.max_size)
        return false;
    sleep_ms(std::min(look_every_ms, (waits_until - at) / 1000), "OjsQueueFull", &event);
    AcceptInvalidationMessages();
    const Queue *queue = find_queue(wanted.queue.id); /* its bound may be another by now */
    if (queue != nullptr)
        wanted.queue = *queue;
    return true;
}

/* --- drop_oldest --- */

struct Oldest {
    int64 seq;
    ItemPointerData tid;
    ReadyRow row;
};

struct Line {
    Oldest *jobs;
    int n;
    int room;
};

/* The first `most` jobs in line of one priority: of those delivered before (places below 0), or of the others. */
void
first_in_line(Tables &tables, Line &line, int64 queue, int16 npriority, int64 from, int64 to, int64 most)
{
    ScanKeyData keys[4];
    store::Scan scan;
    store::Row seen;
    ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(queue));
    ScanKeyInit(&keys[1], 2, BTEqualStrategyNumber, F_INT2EQ, Int16GetDatum(npriority));
    ScanKeyInit(&keys[2], 3, BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(from));
    ScanKeyInit(&keys[3], 3, BTLessEqualStrategyNumber, F_INT8LE, Int64GetDatum(to));
    store::begin(scan, tables.ready(), store::Idx::ready_order, keys, 4, true);
    while (most > 0 && (seen = store::next(scan)) != store::Row::none) {
        if (seen != store::Row::live)
            continue;
        if (line.n == line.room) {
            line.room = std::max(64, line.room * 2);
            auto *wider = static_cast<Oldest *>(MemoryContextAllocHuge(CurrentMemoryContext, sizeof(Oldest) * line.room));
            std::copy(line.jobs, line.jobs + line.n, wider);
            line.jobs = wider;
        }
        Oldest &job = line.jobs[line.n++];
        JobRow row;
        read(tables.ready().slot, job.row);
        job.tid = scan.tid;
        read_job(tables, job.row.job_id, job.row.job_tid, row);
        job.seq = row.seq;
        most--;
    }
    store::end(scan);
}

/* The lowest priority number above another that a job in line has. */
bool
next_priority(Tables &tables, int64 queue, int16 *npriority)
{
    ScanKeyData keys[2];
    store::Scan scan;
    ReadyRow row;
    ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(queue));
    ScanKeyInit(&keys[1], 2, BTGreaterStrategyNumber, F_INT2GT, Int16GetDatum(*npriority));
    store::begin(scan, tables.ready(), store::Idx::ready_order, keys, 2, true);
    bool found = store::next(scan) != store::Row::none;
    if (found) {
        read(tables.ready().slot, row);
        *npriority = row.npriority;
    }
    store::end(scan);
    return found;
}

/*
 * Discards `n` available jobs, those first that were pushed first, of all that stand foremost in their lines. What another
 * transaction is at is left to it. False: there are not as many.
 */
bool
drop_oldest(Tables &tables, int64 queue, int64 n, TimestampTz now)
{
    constexpr int64 spare = 16; /* for those that somebody has locked */
    Line line = {};
    int16 npriority = PG_INT16_MIN;
    while (next_priority(tables, queue, &npriority)) {
        first_in_line(tables, line, queue, npriority, PG_INT64_MIN, -1, n + spare);
        first_in_line(tables, line, queue, npriority, 0, PG_INT64_MAX, n + spare);
    }
    std::sort(line.jobs, line.jobs + line.n, [](const Oldest &a, const Oldest &b) { return a.seq < b.seq; });
    for (int i = 0; i < line.n && n > 0; i++) {
        Oldest &oldest = line.jobs[i];
        JobRow job;
        CHECK_FOR_INTERRUPTS();
        if (store::take(tables.ready(), &oldest.tid) != store::Outcome::ok)
            continue;
        read_job(tables, oldest.row.job_id, oldest.row.job_tid, job);
        discard(tables, job, queue, oldest.row.attempt, oldest.row.deliveries, "overflow",
                "the job was dropped to make room in its queue", now);
        n--;
    }
    if (line.jobs != nullptr)
        pfree(line.jobs);
    return n == 0;
}

/* True: the call had to wait. */
bool
find_room_in(Tables &tables, Wanted &wanted, TimestampTz now)
{
    int64 depth;
    bool waited = false;
    while (!fits(tables, wanted, &depth)) {
        const Queue &queue = wanted.queue;
        if (wanted.n > queue.max_size)
            raise_full(wanted, depth);
        if (queue.overflow == Overflow::drop_oldest &&
            drop_oldest(tables, queue.id, depth + wanted.n - queue.max_size, now))
            continue;
        if (queue.overflow != Overflow::block || !wait_for_room(wanted))
            raise_full(wanted, depth);
        waited = true;
    }
    depth += wanted.n;
    int64 bound = wanted.queue.max_size;
    if (bound > 0 && (nearest.bound == 0 || static_cast<double>(depth) / bound >
                                                static_cast<double>(nearest.depth) / nearest.bound))
        nearest = {depth, bound, wanted.queue.warning_threshold};
    return waited;
}

} // namespace

void
begin_push()
{
    nearest = {};
    waits_until = 0;
}

TimestampTz
find_room(Tables &tables, const Envelope *envelopes, int n, TimestampTz at)
{
    WantedList list = wanted_by(envelopes, n);
    bool waited = false;
    if (!reserves())
        for (int i = 0; i < list.n; i++)
            lock_bound(list.wanted[i].queue.id, ExclusiveLock);
    for (int i = 0; i < list.n; i++)
        waited |= find_room_in(tables, list.wanted[i], at);
    return waited ? now() : at;
}

void
hold_bounds(const Envelope *envelopes, int n)
{
    if (reserves())
        return;
    WantedList list = wanted_by(envelopes, n);
    for (int i = 0; i < list.n; i++)
        lock_bound(list.wanted[i].queue.id, ExclusiveLock);
}

Pressure
pressure_of_push()
{
    return nearest;
}

static JsonbValue
pressure_value(const Pressure &pressure)
{
    constexpr int decimals = 4;
    return json_decimal(static_cast<int64>(static_cast<double>(pressure.depth) / pressure.bound * 10000), decimals);
}

Jsonb *
with_pressure(Jsonb *reply)
{
    if (nearest.bound == 0)
        return reply;
    ObjectBuilder pressure;
    pressure.add("depth", nearest.depth).add("bound", nearest.bound).add("pressure", pressure_value(nearest));
    ObjectBuilder out;
    each_member(root_of(reply), [&out](std::string_view key, const JsonbValue &value) { out.add(key, value); });
    out.add("backpressure", pressure.finish());
    return out.finish();
}

} // namespace ojs

using namespace ojs;

/* ojs_http.pressure() returns jsonb: depth, bound and pressure of the last push of this session, if it is to be warned */
OJS_FUNCTION(ojs_push_pressure)
{
    Pressure pressure = pressure_of_push();
    if (pressure.bound == 0 || static_cast<double>(pressure.depth) < pressure.warning_threshold * pressure.bound)
        PG_RETURN_NULL();
    ObjectBuilder out;
    out.add("depth", pressure.depth).add("bound", pressure.bound).add("pressure", pressure_value(pressure));
    return JsonbPGetDatum(out.finish());
}
