/*
 * capacity.cpp: see capacity.h.
 *
 * With shared counters a push reserves its places there (reservation.cpp), and waits for nobody. Without them it locks
 * the queue until its transaction ends, and counts: then pushes to one bounded queue come one after another.
 */
#include "ojs/push/capacity.h"

#include "ojs/push/tenant_room.h"

#include "ojs/pg/args.h"
#include "ojs/counters/queue_counters.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/pg/json.h"
#include "ojs/limits/held_position.h"
#include "ojs/state/transitions.h"
#include "ojs/counters/pressure.h"
#include "ojs/shared/shmem.h"

namespace ojs
{

namespace
{

Pressure nearest;     /* of the last push */
int64 waits_until_us; /* the call that is under way, by the steady clock; 0: has not waited yet */

/* A bounded queue, and what of the call goes there. */
struct Wanted {
    Queue queue;
    Load load;
    std::string_view type; /* of the first of them */
};

struct WantedList {
    Wanted *wanted;
    int n;
};

int64
size_in(const Queue &queue, const Envelope &e)
{
    return queue.max_size_bytes > 0 ? size_of(e.type, {e.args, e.meta, e.retry, e.unique_policy, e.options}) : 0;
}

/* In the order in which their locks are taken. */
WantedList
wanted_by(const Envelope *envelopes, int n)
{
    WantedList list = {};
    int room = 0;
    for (int i = 0; i < n; i++) {
        const Queue *queue =
            settings.strict_queues ? find_queue(envelopes[i].queue) : queue_for_push(envelopes[i].queue);
        if (queue == nullptr || !queue->bounded || queue->state == QueueState::draining)
            continue; /* a queue that takes no jobs says so when they are stored */
        int at = list.n - 1;
        while (at >= 0 && list.wanted[at].queue.id != queue->id)
            at--;
        if (at >= 0) {
            list.wanted[at].load = list.wanted[at].load + Load{1, size_in(*queue, envelopes[i])};
            continue;
        }
        if (list.n == room) {
            room = std::max(4, room * 2);
            auto *wider = static_cast<Wanted *>(palloc(sizeof(Wanted) * room));
            std::copy(list.wanted, list.wanted + list.n, wider);
            list.wanted = wider;
        }
        list.wanted[list.n++] = {*queue, {1, size_in(*queue, envelopes[i])}, envelopes[i].type};
    }
    std::sort(list.wanted, list.wanted + list.n,
              [](const Wanted &a, const Wanted &b) { return a.queue.id < b.queue.id; });
    return list;
}

/* --- counting, where there are no counters --- */

void
count(Tables &tables, const pg_uuid_t &id, ItemPointerData tid, int32 flags, Load &load)
{
    load.jobs++;
    if (!(flags & job_sized))
        return;
    if (try_find_job(tables, id, tid))
        load.bytes += size_of_stored(tables.job().slot);
}

/* Not by a snapshot, which may need entries that claims have marked dead. Jobs of open pushes do not count: they hold
 * the lock on the bound. */
void
count_ready(Tables &tables, int64 queue, int64 most, Load &load)
{
    ScanKeyData key;
    store::Scan scan;
    store::Row seen;
    ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(queue));
    store::begin(scan, tables.ready(), store::Idx::ready_order, &key, 1, true);
    while (load.jobs < most && (seen = store::next(scan)) != store::Row::none) {
        ReadyRow row;
        if (seen == store::Row::arriving)
            continue;
        read(tables.ready().slot, row);
        count(tables, row.job_id, row.job_tid, row.flags, load);
    }
    store::end(scan);
}

/* No index of `delayed` knows queues: only where there is little in it is this cheap. */
void
count_delayed(Tables &tables, int64 queue, int64 most, Snapshot snapshot, Load &load)
{
    store::Table &table = tables.delayed();
    TableScanDesc scan = table_beginscan(table.rel, snapshot, 0, nullptr);
    while (load.jobs < most && table_scan_getnextslot(scan, ForwardScanDirection, table.slot)) {
        DelayedRow row;
        CHECK_FOR_INTERRUPTS();
        read(table.slot, row);
        if (row.queue == queue && row.kind != DelayedKind::expiry)
            count(tables, row.job_id, row.job_tid, row.flags, load);
    }
    table_endscan(scan);
    ExecClearTuple(table.slot);
}

/* What waits, as everybody and this transaction have left it by now; counted up to `most` jobs. */
Load
count_waiting(Tables &tables, int64 queue, int64 most)
{
    Load load = {};
    CommandCounterIncrement();
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    count_ready(tables, queue, most, load);
    count_delayed(tables, queue, most, snapshot, load);
    UnregisterSnapshot(snapshot);
    return load;
}

/* --- at the bound --- */

/* Takes places for the jobs, if there are any; `depth`: what waits without them. */
bool
fits(Tables &tables, const Wanted &wanted, Load *depth)
{
    const Queue &queue = wanted.queue;
    *depth = {};
    if (!queue.bounded)
        return true;
    switch (reserve(queue.id, wanted.load, bound_of(queue), queue.warning_threshold, depth)) {
    case Reservation::made:
        return true;
    case Reservation::full:
        return false;
    case Reservation::none:
        break;
    }
    lock_bound(queue.id, ExclusiveLock);
    bool all = queue.overflow == Overflow::drop_oldest || queue.max_size_bytes > 0;
    *depth = count_waiting(tables, queue.id, all ? PG_INT64_MAX : queue.max_size);
    return (*depth + wanted.load).within(bound_of(queue));
}

/* There is no room by size. */
[[noreturn]] void
raise_too_large(const Wanted &wanted, const Load &depth, Details details)
{
    const Queue &queue = wanted.queue;
    auto n = static_cast<long long>(wanted.load.bytes);
    auto bound = static_cast<long long>(queue.max_size_bytes);
    const char *what = wanted.load.jobs == 1 ? "a job" : "jobs";
    details.add("job_bytes", wanted.load.bytes);
    if (n > bound)
        raise(Code::queue_full, details,
              "Push less at once, or keep what is large elsewhere and give a reference to it.",
              "queue \"%s\" has no room for %s of %lld bytes: it has room for %lld", queue.name, what, n, bound);
    raise(Code::queue_full, details, "Try again when workers have made room.",
          "queue \"%s\" has no room for %s of %lld bytes: %lld of %lld bytes are taken", queue.name, what, n,
          static_cast<long long>(depth.bytes), bound);
}

[[noreturn]] void
raise_full(const Wanted &wanted, const Load &depth)
{
    constexpr std::string_view policies[] = {"reject", "drop_oldest", "block"};
    const Queue &queue = wanted.queue;
    auto n = static_cast<long long>(wanted.load.jobs);
    auto bound = static_cast<long long>(queue.max_size);
    Details details;
    note_refusal(queue, wanted.type, depth);
    details.add("queue", queue.name).add("depth", depth.jobs);
    if (queue.max_size > 0)
        details.add("bound", queue.max_size);
    if (queue.max_size_bytes > 0)
        details.add("depth_bytes", depth.bytes).add("bound_bytes", queue.max_size_bytes);
    details.add("strategy", policies[static_cast<int>(queue.overflow)])
        .add("jobs", wanted.load.jobs)
        .add("retry_after_seconds", 1);
    if (queue.overflow == Overflow::block && queue.block_ms > 0)
        details.add("block_timeout_ms", static_cast<int64>(queue.block_ms));
    if (depth.jobs + wanted.load.jobs <= bound_of(queue).jobs)
        raise_too_large(wanted, depth, details);
    if (n > bound)
        raise(Code::queue_full, details, psprintf("Push at most %lld jobs at once.", bound),
              "queue \"%s\" has no room for %lld jobs: it has %lld places", queue.name, n, bound);
    if (n > 1)
        raise(Code::queue_full, details, "Try again when workers have made room, or push fewer jobs at once.",
              "queue \"%s\" has no room for %lld jobs: %lld of %lld places are taken", queue.name, n,
              static_cast<long long>(depth.jobs), bound);
    raise(Code::queue_full, details, "Try again when workers have made room.",
          "queue \"%s\" is full: %lld of %lld places are taken", queue.name, static_cast<long long>(depth.jobs), bound);
}

/*
 * Sleeps a little, if the call has time left: true, look again. Not where this transaction alone fills the queue: what
 * it has pushed nobody can claim before it ends.
 */
bool
wait_for_room(Wanted &wanted)
{
    constexpr int64 look_every_ms = 10;
    static uint32 event;
    int64 ms = settings.block_timeout_ms >= 0 ? settings.block_timeout_ms : wanted.queue.block_ms;
    int64 at_us = steady_us();
    if (waits_until_us == 0)
        waits_until_us = at_us + ms * 1000;
    if (at_us >= waits_until_us || !(waiting_by_us(wanted.queue.id) + wanted.load).within(bound_of(wanted.queue)))
        return false;
    sleep_ms(std::min(look_every_ms, (waits_until_us - at_us) / 1000), "OjsQueueFull", &event);
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
            auto *wider =
                static_cast<Oldest *>(MemoryContextAllocHuge(CurrentMemoryContext, sizeof(Oldest) * line.room));
            std::copy(line.jobs, line.jobs + line.n, wider);
            line.jobs = wider;
        }
        Oldest &job = line.jobs[line.n++];
        JobRow row;
        read(tables.ready().slot, job.row);
        job.tid = scan.tid;
        job.seq = try_read_job(tables, job.row.job_id, job.row.job_tid, row) ? row.seq : 0;
        most--;
    }
    store::end(scan);
}

bool
first_ready(Tables &tables, ScanKeyData *keys, int n, ReadyRow &row)
{
    store::Scan scan;
    store::begin(scan, tables.ready(), store::Idx::ready_order, keys, n, true);
    bool found = store::next(scan) != store::Row::none;
    if (found)
        read(tables.ready().slot, row);
    store::end(scan);
    return found;
}

/* The lowest priority number above another that a job in line has. */
bool
next_priority(Tables &tables, int64 queue, int16 *npriority)
{
    ScanKeyData keys[2];
    ReadyRow row;
    ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(queue));
    ScanKeyInit(&keys[1], 2, BTGreaterStrategyNumber, F_INT2GT, Int16GetDatum(*npriority));
    if (!first_ready(tables, keys, 2, row))
        return false;
    *npriority = row.npriority;
    return true;
}

/* The line of jobs that a limit holds back at or behind `from`, where it begins. */
bool
next_line(Tables &tables, int64 queue, int16 npriority, int64 *from)
{
    ScanKeyData keys[3];
    ReadyRow row;
    ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(queue));
    ScanKeyInit(&keys[1], 2, BTEqualStrategyNumber, F_INT2EQ, Int16GetDatum(npriority));
    ScanKeyInit(&keys[2], 3, BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(*from));
    if (!first_ready(tables, keys, 3, row))
        return false;
    *from = line_at(row.position);
    return true;
}

/*
 * Discards available jobs until `more` is gone, or some of it: those first that were pushed first, of all that stand
 * foremost in their lines. What another transaction is at is left to it. Returns false if there was none to discard.
 */
bool
drop_oldest(Tables &tables, int64 queue, Load more, TimestampTz now)
{
    constexpr int64 spare = 16;      /* for those that somebody has locked */
    constexpr int64 for_bytes = 100; /* how many make room, their sizes will show */
    Line line = {};
    int64 n = std::max(more.jobs, more.bytes > 0 ? for_bytes : 0);
    int64 dropped = 0;
    int16 npriority = PG_INT16_MIN;
    while (next_priority(tables, queue, &npriority)) {
        first_in_line(tables, line, queue, npriority, PG_INT64_MIN, -1, n + spare);
        first_in_line(tables, line, queue, npriority, 0, first_held - 1, n + spare);
        for (int64 from = first_held; next_line(tables, queue, npriority, &from); from = end_of_line(from) + 1) {
            first_in_line(tables, line, queue, npriority, from, end_of_line(from), n + spare);
            if (end_of_line(from) == PG_INT64_MAX)
                break;
        }
    }
    std::sort(line.jobs, line.jobs + line.n, [](const Oldest &a, const Oldest &b) { return a.seq < b.seq; });
    for (int i = 0; i < line.n && dropped < n && (more.jobs > dropped || more.bytes > 0); i++) {
        Oldest &oldest = line.jobs[i];
        JobRow job;
        CHECK_FOR_INTERRUPTS();
        if (store::take(tables.ready(), &oldest.tid) != store::Outcome::ok)
            continue;
        dropped++;
        if (!read_taken_job(tables, oldest.row.job_id, oldest.row.job_tid, job))
            continue;
        int64 size = size_of_stored(tables.job().slot);
        discard(tables, job, oldest.row, "overflow", "the job was dropped to make room in its queue", now);
        if (job.flags & job_sized)
            more.bytes -= size;
    }
    if (line.jobs != nullptr)
        pfree(line.jobs);
    return dropped > 0;
}

/* Returns true if the call had to wait. */
bool
find_room_in(Tables &tables, Wanted &wanted, TimestampTz now)
{
    Load depth;
    bool waited = false;
    while (!fits(tables, wanted, &depth)) {
        const Queue &queue = wanted.queue;
        Load bound = bound_of(queue);
        if (!wanted.load.within(bound))
            raise_full(wanted, depth);
        Load with = depth + wanted.load;
        if (queue.overflow == Overflow::drop_oldest &&
            drop_oldest(tables, queue.id, {with.jobs - bound.jobs, with.bytes - bound.bytes}, now))
            continue;
        if (queue.overflow != Overflow::block || !wait_for_room(wanted))
            raise_full(wanted, depth);
        waited = true;
    }
    const Queue &queue = wanted.queue;
    Pressure pressure = {depth + wanted.load, bound_of(queue), queue.warning_threshold};
    if (queue.bounded &&
        (!nearest.any() || pressure.depth.part_of(pressure.bound) > nearest.depth.part_of(nearest.bound)))
        nearest = pressure;
    return waited;
}

} // namespace

void
begin_push()
{
    nearest = {};
    waits_until_us = 0;
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
    hold_tenant_limits(envelopes, n);
    WantedList list = wanted_by(envelopes, n);
    for (int i = 0; i < list.n; i++)
        lock_bound(list.wanted[i].queue.id, ExclusiveLock);
}

Pressure
pressure_of_push()
{
    return nearest;
}

static Jsonb *
pressure_json(const Pressure &pressure)
{
    constexpr int decimals = 4;
    ObjectBuilder out;
    add_load(out, pressure.depth, pressure.bound);
    out.add("pressure", json_decimal(static_cast<int64>(pressure.depth.part_of(pressure.bound) * 10000), decimals));
    return out.finish();
}

Jsonb *
with_pressure(Jsonb *reply)
{
    if (!nearest.any())
        return reply;
    ObjectBuilder out;
    each_member(root_of(reply), [&out](std::string_view key, const JsonbValue &value) { out.add(key, value); });
    out.add("backpressure", pressure_json(nearest));
    return out.finish();
}

} // namespace ojs

using namespace ojs;

/*
 * ojs_http.pressure() returns jsonb: how near the last push of this session has come to a bound, if it is to be warned
 */
OJS_FUNCTION(ojs_push_pressure)
{
    Pressure pressure = pressure_of_push();
    if (!pressure.any() || pressure.depth.part_of(pressure.bound) < pressure.warning_threshold)
        PG_RETURN_NULL();
    return JsonbPGetDatum(pressure_json(pressure));
}
