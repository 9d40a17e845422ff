/*
 * recount.cpp: counting the rows, and setting the shared counters right while others commit.
 *
 * A recount takes its snapshot while nobody can add to the counters (counters_lock), and leaves what the snapshot sees
 * in shared memory. What was added before is visible to the snapshot; a commit that comes to add later knows from it
 * whether its rows will be counted, and if they will not, it also adds to `since`. However long the counting takes, in
 * the end
 *
 *     rows that the snapshot sees, less what this transaction itself has changed and not committed, plus `since`
 *
 * is exactly what has been committed and added, once those have added that the snapshot saw between the two: a commit
 * says so before it can be seen (`committing`), and the recount waits for it at its end. No session waits for a recount
 * but those that want the metrics.
 */
#include "ojs/counters/counter_table.h"

#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/store/rows.h"

namespace ojs
{

namespace
{

bool my_recount;     /* the running one is ours */
bool may_correct_it; /* … and expected to find more than was added: what was prepared */

/* Without preload: what was committed when this session last counted, and what it has committed since. */
MemoryContext remembered_context;
HTAB *remembered; /* of Counts */
TimestampTz remembered_at;
Oid remembered_of;

/* --- counting rows --- */

HTAB *
new_tally(MemoryContext context)
{
    HASHCTL control = {};
    control.keysize = sizeof(int64);
    control.entrysize = sizeof(Counts);
    control.hcxt = context;
    return hash_create("ojs counts", 64, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

Counts &
counts_in(HTAB *table, int64 queue)
{
    bool found;
    auto *counts = static_cast<Counts *>(hash_search(table, &queue, HASH_ENTER, &found));
    if (!found)
        *counts = {queue, {}, 0};
    return *counts;
}

void
add_rows(HTAB *to, store::Rel rel, Snapshot snapshot)
{
    Relation table = store::open_relation(rel, AccessShareLock);
    TableScanDesc scan = table_beginscan(table, snapshot, 0, nullptr);
    HeapTuple tuple;
    Counts *last = nullptr;
    store::Table jobs = {}; /* opened for jobs whose size counts */
    while ((tuple = heap_getnext(scan, ForwardScanDirection)) != nullptr) {
        int64 queue;
        Where where, also;
        CHECK_FOR_INTERRUPTS();
        if (!where_of(rel, tuple->t_data, queue, where, also))
            continue;
        if (last == nullptr || last->queue != queue)
            last = &counts_in(to, queue);
        last->n[static_cast<int>(where)]++;
        if (also != where)
            last->n[static_cast<int>(also)]++;
        SizedJob job;
        if (!sized(rel, tuple->t_data, job))
            continue;
        if (jobs.rel == nullptr)
            jobs = store::open(store::Rel::job, AccessShareLock);
        if (store::read(jobs, store::Idx::job_id, job.id, snapshot))
            last->bytes += size_of_stored(jobs.slot);
    }
    if (jobs.rel != nullptr)
        store::close(jobs);
    table_endscan(scan);
    table_close(table, AccessShareLock);
}

void
add_part(HTAB *to, Part part, Snapshot snapshot)
{
    if (part == Part::ended) {
        add_rows(to, store::Rel::finished, snapshot);
        return;
    }
    add_rows(to, store::Rel::ready, snapshot);
    add_rows(to, store::Rel::lease, snapshot);
    add_rows(to, store::Rel::delayed, snapshot);
}

void
range_of(Part part, int &from, int &to)
{
    from = part == Part::open ? 0 : first_ended;
    to = part == Part::open ? first_ended : n_where;
}

void
add_changes(HTAB *to, int sign)
{
    for (int i = 0; i < changes.n; i++) {
        Counts &counts = counts_in(to, changes.all[i].queue);
        for (int w = 0; w < n_where; w++)
            counts.n[w] += sign * changes.all[i].n[w];
        counts.bytes += sign * changes.all[i].bytes;
    }
}

/* --- the shared counters --- */

void
rest()
{
    static uint32 event;
    sleep_ms(2, "OjsRecountWait", &event);
}

template <typename Body>
void
each_counter(Body body)
{
    HASH_SEQ_STATUS all;
    hash_seq_init(&all, counters);
    while (auto *counter = static_cast<Counter *>(hash_seq_search(&all)))
        if (counter->key.database == MyDatabaseId)
            body(*counter);
}

uint32
prepared_bit(Part part)
{
    return part == Part::open ? prepared_open : prepared_ended;
}

/* A transaction that is prepared in this database will be committed, if so, after the snapshot of the recount. Places
 * of those that have ended keep their numbers. */
bool
prepared_and_open()
{
    for (int i = 0; i < max_prepared_xacts; i++)
        if (PreparedXactProcs[i].databaseId == MyDatabaseId && !counted_by_recount(PreparedXactProcs[i].xid))
            return true;
    return false;
}

/* Under the lock. */
Snapshot
start(Database &database, Part part)
{
    recount->running = my_recount = true;
    recount->spoilt = false;
    recount->database = MyDatabaseId;
    recount->part = part;
    each_counter([](Counter &counter) {
        for (pg_atomic_uint64 &since : counter.since)
            pg_atomic_write_u64(&since, 0);
        pg_atomic_write_u64(&counter.bytes_since, 0);
    });
    uint32 prepared = pg_atomic_fetch_and_u32(&database.prepared, ~prepared_bit(part));
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    recount->xmax = snapshot->xmax;
    recount->n_running = static_cast<int>(snapshot->xcnt);
    std::copy_n(snapshot->xip, snapshot->xcnt, recount->running_xids);
    may_correct_it = (prepared & prepared_bit(part)) != 0;
    if (may_correct_it && prepared_and_open())
        pg_atomic_fetch_or_u32(&database.prepared, prepared_bit(part));
    return snapshot;
}

/* Under the lock. Returns true if the counters had other values before. */
bool
put_right(HTAB *counted, Part part)
{
    bool drifted = false;
    int from, to;
    range_of(part, from, to);
    each_counter([&](Counter &counter) { (void)counts_in(counted, counter.key.queue); });

    HASH_SEQ_STATUS all;
    hash_seq_init(&all, counted);
    while (auto *counts = static_cast<Counts *>(hash_seq_search(&all))) {
        Counter *counter = counter_of(counts->queue);
        if (counter == nullptr) { /* which has spoilt the recount */
            hash_seq_term(&all);
            return false;
        }
        for (int w = from; w < to; w++) {
            uint64 right = counts->n[w] + pg_atomic_read_u64(&counter->since[w]);
            drifted |= pg_atomic_read_u64(&counter->n[w]) != right;
            pg_atomic_write_u64(&counter->n[w], right);
        }
        if (part == Part::open) {
            uint64 right = counts->bytes + pg_atomic_read_u64(&counter->bytes_since);
            drifted |= pg_atomic_read_u64(&counter->bytes) != right;
            pg_atomic_write_u64(&counter->bytes, right);
        }
    }
    return drifted;
}

/* Under the lock: somebody's rows were counted, and he has not added them yet. */
bool
to_be_added()
{
    for (int i = 0; i < most_backends(); i++) {
        TransactionId xid = pg_atomic_read_u32(&committing[i]);
        if (TransactionIdIsValid(xid) && counted_by_recount(xid))
            return true;
    }
    return false;
}

void
finish(Database &database, HTAB *counted, Part part)
{
    int g = static_cast<int>(part);
    Oid table = store::relation_oid(store::Rel::ready);
    LWLockAcquire(counters_lock, LW_EXCLUSIVE);
    while (to_be_added()) { /* what is added from here on would be counted twice */
        LWLockRelease(counters_lock);
        rest();
        LWLockAcquire(counters_lock, LW_EXCLUSIVE);
    }
    bool before = database.counted[g] == table;
    bool drifted = put_right(counted, part);
    bool spoilt = recount->spoilt;
    if (!spoilt)
        database.counted[g] = table;
    recount->running = my_recount = false;
    LWLockRelease(counters_lock);
    if (drifted && before && !spoilt && !may_correct_it)
        ereport(LOG, (errmsg("ojs has corrected its counters of jobs"),
                      errdetail("The rows are the truth; what is counted is only reported, and bounds queues.")));
}

bool
known(const Database &database, Part part)
{
    return database.counted[static_cast<int>(part)] == store::relation_oid(store::Rel::ready) &&
           (pg_atomic_read_u32(const_cast<pg_atomic_uint32 *>(&database.prepared)) & prepared_bit(part)) == 0;
}

/* The rows of this moment, our own changes among them. */
HTAB *
count_now(bool ended)
{
    HTAB *counted = new_tally(CurrentMemoryContext);
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    add_part(counted, Part::open, snapshot);
    if (ended)
        add_part(counted, Part::ended, snapshot);
    UnregisterSnapshot(snapshot);
    return counted;
}

void
add_own(Counts *counts, int n)
{
    for (int i = 0; i < n; i++)
        for (int c = 0; c < changes.n; c++) {
            if (changes.all[c].queue != counts[i].queue)
                continue;
            for (int w = 0; w < n_where; w++)
                counts[i].n[w] += changes.all[c].n[w];
            counts[i].bytes += changes.all[c].bytes;
        }
}

void
copy_from(HTAB *table, const int64 *queues, int n, Counts *out)
{
    for (int i = 0; i < n; i++) {
        auto *counts = static_cast<Counts *>(hash_search(table, &queues[i], HASH_FIND, nullptr));
        out[i] = counts != nullptr ? *counts : Counts{queues[i], {}, 0};
    }
}

} // namespace

void
recount_given_up()
{
    if (!my_recount)
        return;
    LWLockAcquire(counters_lock, LW_EXCLUSIVE);
    recount->running = my_recount = false;
    LWLockRelease(counters_lock);
}

bool
recount_rows(Part part, bool again)
{
    constexpr int64 patience_us = USECS_PER_SEC;
    Database &database = *my_database();
    int64 since_us = steady_us();
    Snapshot snapshot = nullptr;
    (void)store::relation_oid(store::Rel::ready); /* looked up before the lock */

    while (snapshot == nullptr) {
        LWLockAcquire(counters_lock, LW_EXCLUSIVE);
        if (!recount->running)
            snapshot = start(database, part);
        LWLockRelease(counters_lock);
        if (snapshot != nullptr)
            break;
        /* Whoever counts may wait for a lock, and its holder for us. */
        if (steady_us() - since_us > patience_us)
            return false;
        rest();
        if (!again && known(database, part))
            return true;
    }
    HTAB *counted = new_tally(CurrentMemoryContext);
    add_part(counted, part, snapshot);
    UnregisterSnapshot(snapshot);
    add_changes(counted, -1);
    finish(database, counted, part);
    hash_destroy(counted);
    return true;
}

bool
settled(Database &database, Part part)
{
    return known(database, part) || recount_rows(part, false);
}

/* There was no room for the counters of this database, and what they said is of before. */
static void
try_counters_again(Database &database)
{
    LWLockAcquire(counters_lock, LW_EXCLUSIVE);
    if (pg_atomic_read_u32(&database.uncountable) != 0 && room_for_counters()) {
        database.counted[0] = database.counted[1] = InvalidOid;
        pg_atomic_write_u32(&database.uncountable, 0);
    }
    LWLockRelease(counters_lock);
}

void
recount_if_due()
{
    constexpr int64 every_us = SECS_PER_MINUTE * USECS_PER_SEC;
    constexpr int64 most_of_the_time = 200; /* one part in so many */
    int64 began_us = steady_us();
    Database *mine = counters != nullptr ? my_database() : nullptr;
    if (mine != nullptr && began_us >= mine->recount_us)
        try_counters_again(*mine);
    Database *database = counting_database();
    if (database == nullptr || (known(*database, Part::open) && began_us < database->recount_us))
        return;
    (void)recount_rows(Part::open, true);
    int64 end_us = steady_us();
    database->recount_us = end_us + std::max(every_us, (end_us - began_us) * most_of_the_time);
}

/* --- without shared counters --- */

void
prepare_to_remember()
{
    for (int i = 0; remembered != nullptr && i < changes.n; i++)
        (void)counts_in(remembered, changes.all[i].queue);
}

/* Must not raise: nothing is allocated here. */
void
remember_changes()
{
    if (remembered == nullptr)
        return;
    bool complete = !lost_here[0];
    for (int i = 0; i < changes.n && complete; i++) /* another library may have pushed after there was made room */
        complete = hash_search(remembered, &changes.all[i].queue, HASH_FIND, nullptr) != nullptr;
    if (complete)
        add_changes(remembered, 1);
    else
        remembered_at = DT_NOBEGIN;
}

static void
read_rows(const int64 *queues, int n, bool ended, int64 max_age_us, Counts *out)
{
    TimestampTz at = GetCurrentTimestamp();
    Oid table = store::relation_oid(store::Rel::ready);
    bool rememberable = max_age_us > 0 && !ended && !lost_here[0];
    if (rememberable && remembered != nullptr && remembered_of == table && at - remembered_at <= max_age_us &&
        at >= remembered_at) {
        copy_from(remembered, queues, n, out);
        add_own(out, n);
        return;
    }
    HTAB *counted = count_now(ended);
    copy_from(counted, queues, n, out);
    if (rememberable) {
        if (remembered_context == nullptr)
            remembered_context = AllocSetContextCreate(TopMemoryContext, "ojs counts", ALLOCSET_DEFAULT_SIZES);
        remembered = nullptr;
        MemoryContextReset(remembered_context);
        HTAB *copy = new_tally(remembered_context);
        add_changes(counted, -1);
        HASH_SEQ_STATUS all;
        hash_seq_init(&all, counted);
        while (auto *counts = static_cast<Counts *>(hash_seq_search(&all)))
            counts_in(copy, counts->queue) = *counts;
        remembered = copy;
        remembered_at = at;
        remembered_of = table;
    }
    hash_destroy(counted);
}

int64
ready_jobs(int64 queue)
{
    Database *database = changes.n == 0 && !lost_here[0] ? counting_database() : nullptr;
    if (database == nullptr || !known(*database, Part::open))
        return -1;
    LWLockAcquire(counters_lock, LW_SHARED);
    Counter *counter = find_counter(queue);
    int64 n =
        counter == nullptr ? 0 : static_cast<int64>(pg_atomic_read_u64(&counter->n[static_cast<int>(Where::ready)]));
    LWLockRelease(counters_lock);
    return n;
}

bool
read_shared_counts(const int64 *queues, int n, bool ended, Counts *out)
{
    Database *database = lost_here[0] || lost_here[1] ? nullptr : counting_database();
    bool right = database != nullptr;
    Oid table = store::relation_oid(store::Rel::ready);
    for (Part part : {Part::open, Part::ended})
        if (right && (part == Part::open || ended))
            right = settled(*database, part);
    if (right) {
        LWLockAcquire(counters_lock, LW_EXCLUSIVE);
        right = database->counted[0] == table && (!ended || database->counted[1] == table);
        for (int i = 0; i < n; i++) {
            Counter *counter = find_counter(queues[i]);
            out[i] = {queues[i], {}, 0};
            for (int w = 0; w < n_where && counter != nullptr; w++)
                out[i].n[w] = static_cast<int64>(pg_atomic_read_u64(&counter->n[w]));
            if (counter != nullptr)
                out[i].bytes = static_cast<int64>(pg_atomic_read_u64(&counter->bytes));
        }
        LWLockRelease(counters_lock);
    }
    if (right)
        add_own(out, n);
    return right;
}

void
read_counts(const int64 *queues, int n, bool ended, int64 max_age_us, Counts *out)
{
    if (!read_shared_counts(queues, n, ended, out))
        read_rows(queues, n, ended, max_age_us, out);
}

} // namespace ojs
