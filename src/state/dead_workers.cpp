/*
 * dead_workers.cpp: workers whose heartbeats stopped, and the jobs they held.
 *
 * Leases have no index on their worker: every claim would pay for what is needed when a process dies. So the table is
 * scanned, and only where a worker has been silent for too long. A claim writes no row for its worker, but it is a sign
 * of life as good as a beat, and it stands in the lease: the scan tells the dead from those that are only late.
 */
#include "ojs/pg/args.h"
#include "ojs/queue/tenant.h"
#include "ojs/limits/slots.h"
#include "ojs/state/transitions.h"
#include "ojs/store/spi.h"
#include "ojs/state/reap.h"
#include "ojs/state/client_workers.h"

namespace ojs
{

namespace
{

/* Locked, so that of several ticks only one has them; a beat that comes meanwhile does not wait. */
constinit Statement find_silent = {
    "select name, seen_at, beats_for_jobs from ojs_store.worker"
    " where beats and died_at is null and seen_at < $1 order by name for update skip locked",
    {TIMESTAMPTZOID},
    nullptr};
constinit Statement note_life = {
    "update ojs_store.worker set seen_at = $2 where name = $1", {TEXTOID, TIMESTAMPTZOID}, nullptr};
/* It never said so itself: somebody has sent a beat in its name, or its beats name no jobs. Its leases run out as they
 * do. */
constinit Statement note_no_beats = {"update ojs_store.worker set beats = false where name = $1", {TEXTOID}, nullptr};
constexpr char note_death_sql[] = R"sql(
    with dead as (update ojs_store.worker set died_at = $2 where name = $1 returning name, registered_at)
    select ojs_store.record_stopped(name, 'heartbeat_timeout', registered_at) from dead
)sql";
constinit Statement note_death = {note_death_sql, {TEXTOID, TIMESTAMPTZOID}, nullptr};

struct SilentWorker {
    text *name;
    TimestampTz seen_at; /* its last sign of life that is known */
    int held;
    bool for_jobs; /* it may lose them */
};

struct HeldLease {
    pg_uuid_t job_id;
    int worker;
};

struct Look {
    SilentWorker *silent; /* by name */
    int n;
    HeldLease *held;
    int64 n_held, room;
};

bool
comes_before(const text *a, const text *b)
{
    return view(a) < view(b);
}

void
find(Look &look, TimestampTz last_seen)
{
    MemoryContext context = CurrentMemoryContext;
    with_spi([&] {
        look.n = static_cast<int>(execute_latest(find_silent, {TimestampTzGetDatum(last_seen)}));
        if (look.n == 0)
            return;
        MemoryContext spi = MemoryContextSwitchTo(context);
        look.silent = static_cast<SilentWorker *>(MemoryContextAllocHuge(context, sizeof(SilentWorker) * look.n));
        for (int i = 0; i < look.n; i++) {
            bool null;
            look.silent[i].name = DatumGetTextPCopy(cell(i, 1, &null));
            look.silent[i].seen_at = DatumGetTimestampTz(cell(i, 2, &null));
            look.silent[i].held = 0;
            look.silent[i].for_jobs = DatumGetBool(cell(i, 3, &null));
        }
        MemoryContextSwitchTo(spi);
    });
}

/* A time to come was noted before the clock was set back: it says nothing of how long the worker has been silent. */
TimestampTz
sign_of_life(const LeaseRow &lease, TimestampTz now)
{
    TimestampTz at = lease.beat_at.value_or(lease.claimed_at);
    return at <= now + heartbeat_timeout_us ? at : DT_NOBEGIN;
}

void
scan_leases(Look &look, Tables &tables, TimestampTz now)
{
    store::Table &table = tables.lease();
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    TableScanDesc scan = table_beginscan(table.rel, snapshot, 0, nullptr);
    while (table_scan_getnextslot(scan, ForwardScanDirection, table.slot)) {
        LeaseRow lease;
        CHECK_FOR_INTERRUPTS();
        read_in_place(table.slot, lease);
        const text *name = stored_worker(lease.worker, lease.queue);
        SilentWorker *at =
            std::lower_bound(look.silent, look.silent + look.n, name,
                             [](const SilentWorker &a, const text *b) { return comes_before(a.name, b); });
        if (at == look.silent + look.n || comes_before(name, at->name))
            continue;
        if (look.n_held == look.room) {
            look.room = std::max<int64>(64, look.room * 2);
            Size size = sizeof(HeldLease) * look.room;
            look.held =
                static_cast<HeldLease *>(look.held == nullptr ? MemoryContextAllocHuge(CurrentMemoryContext, size)
                                                              : repalloc_huge(look.held, size));
        }
        look.held[look.n_held++] = {lease.job_id, static_cast<int>(at - look.silent)};
        at->seen_at = std::max(at->seen_at, sign_of_life(lease, now));
        at->held++;
    }
    table_endscan(scan);
    UnregisterSnapshot(snapshot);
}

/* Leaves alone what another transaction is at, such as the ack of a worker that was thought dead. */
bool
take_back(Tables &tables, const HeldLease &held, const SilentWorker &worker, TimestampTz last_seen, TimestampTz now)
{
    store::Table &table = tables.lease();
    ItemPointerData tid;
    LeaseRow lease;
    JobRow job;

    if (store::find(table, store::Idx::lease_job, held.job_id, &tid) != store::Row::live)
        return false;
    read(table.slot, lease);
    if (view(stored_worker(lease.worker, lease.queue)) != view(worker.name) || sign_of_life(lease, now) >= last_seen)
        return false;
    if (store::take(table, &tid) != store::Outcome::ok)
        return false;
    free_slots(tables, lease);
    if (read_taken_job(tables, lease.job_id, lease.job_tid, job) && !end_if_timed_out(tables, job, lease, now))
        lapse(tables, job, lease, "worker_death", "the worker stopped sending heartbeats", now);
    return true;
}

} // namespace

int
take_back_from(Tables &tables, text *worker, TimestampTz now)
{
    constexpr TimestampTz whatever_it_said = PG_INT64_MAX;
    SilentWorker silent = {worker, 0, 0, true};
    Look look = {&silent, 1, nullptr, 0, 0};
    int jobs = 0;

    scan_leases(look, tables, now);
    for (int64 i = 0; i < look.n_held; i++) {
        CHECK_FOR_INTERRUPTS();
        jobs += take_back(tables, look.held[i], silent, whatever_it_said, now);
    }
    return jobs;
}

Recovered
recover_from_dead(Tables &tables, int limit, TimestampTz now)
{
    TimestampTz last_seen = now - heartbeat_timeout_us;
    Look look = {};
    Recovered recovered = {};

    find(look, last_seen);
    if (look.n == 0)
        return recovered;
    scan_leases(look, tables, now);
    for (int64 i = 0; i < look.n_held && recovered.jobs < limit; i++) {
        SilentWorker &worker = look.silent[look.held[i].worker];
        if (worker.seen_at >= last_seen || !worker.for_jobs)
            continue;
        CHECK_FOR_INTERRUPTS();
        recovered.jobs += take_back(tables, look.held[i], worker, last_seen, now);
        worker.held--;
    }
    with_spi([&] {
        for (int i = 0; i < look.n; i++) {
            const SilentWorker &worker = look.silent[i];
            if (worker.seen_at >= last_seen)
                (void)execute_latest(note_life, {PointerGetDatum(worker.name), TimestampTzGetDatum(worker.seen_at)});
            else if (worker.held > 0 && !worker.for_jobs)
                (void)execute_latest(note_no_beats, {PointerGetDatum(worker.name)});
            else if (worker.held == 0) { /* or the next tick goes on with the rest of its jobs */
                (void)execute_latest(note_death, {PointerGetDatum(worker.name), TimestampTzGetDatum(now)});
                recovered.workers++;
            }
        }
    });
    return recovered;
}

} // namespace ojs
