/*
 * pressure.cpp: see pressure.h. The alarms are parts of the counters, under their lock. What a tick has emitted is
 * marked as emitted when it commits; only one tick emits at a time.
 */
#include "ojs/counters/pressure.h"

#include "ojs/counters/counter_table.h"
#include "ojs/store/spi.h"

namespace ojs
{

namespace
{

constexpr int most_at_once = 100;

/* Something that was found in a counter, and what becomes of it once its event is emitted. */
struct Finding {
    int64 queue;
    Load load;
    Alarm warned, refused;
    const char *job_type; /* of what was refused, with the metrics of then */
    Load depth, bound;
};

Finding *emitted; /* by this transaction, in its memory */
int n_emitted;
int passed; /* so many of the queues with events, in the order of the counters, did the last ticks of this session look
               at */

constinit Statement record = {"select ojs_store.record_event($1, $2, $3)", {TEXTOID, TEXTOID, JSONBOID}, nullptr};

/* Under the lock. */
Refusal *
refusal_of(int64 queue)
{
    for (Refusal &refusal : alarms->refusals)
        if (refusal.database == MyDatabaseId && refusal.queue == queue)
            return &refusal;
    return nullptr;
}

int
refusals_of(Oid database)
{
    auto of = [database](const Refusal &refusal) { return refusal.database == database; };
    return static_cast<int>(std::count_if(std::begin(alarms->refusals), std::end(alarms->refusals), of));
}

/*
 * Under the lock. Where there is none, the database with most refusals gives one up, which its next refusal notes
 * again: one in which nobody tells them takes nothing from the others. Returns null if this database has as many as it
 * may.
 */
Refusal *
room_for_refusal()
{
    Refusal *most = alarms->refusals;
    for (Refusal &refusal : alarms->refusals) {
        if (!OidIsValid(refusal.database))
            return &refusal;
        if (refusals_of(refusal.database) > refusals_of(most->database))
            most = &refusal;
    }
    if (refusals_of(most->database) <= refusals_of(MyDatabaseId) + 1)
        return nullptr;
    Counter *counter = find_counter(most->queue, most->database);
    if (counter != nullptr && counter->refused == Alarm::due)
        counter->refused = Alarm::off;
    return most;
}

/* Under the lock: those that have something to tell; or the others, which may have something to take back. */
void
add_alarms(Finding *findings, int &n, bool due)
{
    int seen = 0;
    HASH_SEQ_STATUS all;
    hash_seq_init(&all, counters);
    while (auto *counter = static_cast<Counter *>(hash_seq_search(&all))) {
        bool is_due = counter->warned == Alarm::due || counter->refused == Alarm::due;
        bool quiet = due ? !is_due : is_due || counter->warned == Alarm::off;
        if (quiet || counter->key.database != MyDatabaseId || (!due && seen++ < passed))
            continue;
        if (n == most_at_once) {
            hash_seq_term(&all);
            passed = due ? passed : seen - 1;
            return;
        }
        Finding &finding = findings[n++];
        finding = {counter->key.queue, load_of(*counter), counter->warned, counter->refused, nullptr, {}, {}};
        Refusal *refusal = counter->refused == Alarm::due ? refusal_of(finding.queue) : nullptr;
        if (refusal != nullptr) {
            finding.job_type = pstrdup(refusal->job_type);
            finding.depth = refusal->depth;
            finding.bound = refusal->bound;
        }
    }
    passed = due ? passed : 0;
}

/* Copies of the counters of this database that have something to tell or to take back; where there are many, the next
 * tick goes on with the others. */
int
find_alarms(Finding *findings)
{
    int n = 0;
    LWLockAcquire(counters_lock, LW_SHARED);
    add_alarms(findings, n, true);
    add_alarms(findings, n, false);
    LWLockRelease(counters_lock);
    return n;
}

void
write_event(const char *type, const Queue &queue, const Load &depth, const Load &bound, const char *job_type)
{
    ObjectBuilder data;
    data.add("queue", std::string_view(queue.name));
    add_load(data, depth, bound);
    if (job_type != nullptr)
        data.add("job_type", std::string_view(job_type));
    execute_latest(record, {CStringGetTextDatum(type), CStringGetTextDatum(queue.name), JsonbPGetDatum(data.finish())});
}

/* Tells what there is to tell of a queue, and turns the finding into what its counter will be. */
void
tell(Finding &finding)
{
    const Queue *found = find_queue(finding.queue);
    bool exists = found != nullptr && found->state != QueueState::deleted;
    Queue queue = exists ? *found : Queue{};
    Load bound = bound_of(queue);
    bool above = queue.bounded && finding.load.part_of(bound) >= queue.warning_threshold;

    if (finding.warned == Alarm::due) {
        if (above)
            write_event("backpressure.warning", queue, finding.load, bound, nullptr);
        finding.warned = above ? Alarm::emitted : Alarm::off;
    }
    if (exists && finding.job_type != nullptr)
        write_event("backpressure.rejected", queue, finding.depth, finding.bound, finding.job_type);
    if (finding.refused == Alarm::due)
        finding.refused = Alarm::emitted;
    if (finding.warned == Alarm::emitted && !above) {
        if (exists)
            write_event("backpressure.cleared", queue, finding.load, bound, nullptr);
        finding.warned = Alarm::off;
    }
}

bool
alone()
{
    LOCKTAG tag;
    SET_LOCKTAG_OBJECT(tag, MyDatabaseId, store::relation_oid(store::Rel::hot_set_state), 0, 1);
    return LockAcquire(&tag, ExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

/* Must not raise. */
void
mark_emitted()
{
    LWLockAcquire(counters_lock, LW_EXCLUSIVE);
    for (int i = 0; i < n_emitted; i++) {
        Counter *counter = find_counter(emitted[i].queue);
        Refusal *refusal = emitted[i].refused == Alarm::emitted ? refusal_of(emitted[i].queue) : nullptr;
        if (counter != nullptr) {
            counter->warned = emitted[i].warned;
            counter->refused = emitted[i].refused;
        }
        if (refusal != nullptr)
            refusal->database = InvalidOid;
    }
    LWLockRelease(counters_lock);
}

extern "C" void
pressure_xact(XactEvent event, void *)
{
    if (event == XACT_EVENT_COMMIT && n_emitted > 0)
        mark_emitted();
    if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE)
        n_emitted = 0;
}

/* What was emitted may be rolled back, and is emitted again. */
extern "C" void
pressure_subxact(SubXactEvent event, SubTransactionId, SubTransactionId, void *)
{
    if (event == SUBXACT_EVENT_ABORT_SUB)
        n_emitted = 0;
}

} // namespace

Load
bound_of(const Queue &queue)
{
    return {queue.max_size > 0 ? queue.max_size : unbounded.jobs,
            queue.max_size_bytes > 0 ? queue.max_size_bytes : unbounded.bytes};
}

void
add_load(ObjectBuilder &out, const Load &depth, const Load &bound)
{
    out.add("depth", depth.jobs);
    if (bound.jobs != unbounded.jobs)
        out.add("bound", bound.jobs);
    if (bound.bytes != unbounded.bytes)
        out.add("depth_bytes", depth.bytes).add("bound_bytes", bound.bytes);
}

void
note_refusal(const Queue &queue, std::string_view job_type, const Load &depth)
{
    if (!reserves())
        return;
    LWLockAcquire(counters_lock, LW_EXCLUSIVE);
    Counter *counter = counter_of(queue.id);
    Refusal *room = counter != nullptr && counter->refused == Alarm::off ? room_for_refusal() : nullptr;
    if (room != nullptr) {
        *room = {MyDatabaseId, queue.id, depth, bound_of(queue), {}};
        memcpy(room->job_type, job_type.data(), std::min(job_type.size(), sizeof room->job_type - 1));
        counter->refused = Alarm::due;
        pg_atomic_fetch_add_u32(&alarms->raised, 1);
    }
    LWLockRelease(counters_lock);
}

void
tell_pressure()
{
    static uint32 raised;
    static bool outstanding = true; /* there may be alarms to be taken back */
    if (counting_database() == nullptr || (!outstanding && pg_atomic_read_u32(&alarms->raised) == raised) || !alone())
        return;
    raised = pg_atomic_read_u32(&alarms->raised);
    emitted = static_cast<Finding *>(MemoryContextAlloc(TopTransactionContext, sizeof(Finding) * most_at_once));
    n_emitted = 0;
    bool from_first = passed == 0;
    int n = find_alarms(emitted);
    outstanding = n > 0 || !from_first;
    if (n > 0)
        with_spi([&] {
            for (int i = 0; i < n; i++)
                tell(emitted[i]);
        });
    n_emitted = n;
}

void
pressure_init()
{
    RegisterXactCallback(pressure_xact, nullptr);
    RegisterSubXactCallback(pressure_subxact, nullptr);
}

} // namespace ojs
