/*
 * queue_counters.cpp: noting what a transaction changes, and adding it up at its commit; see queue_counters.h.
 *
 * The notes are a stack (xact_notes.h). A transaction becomes
 * visible a moment before its notes are added, so another session may for that moment see a job that is not counted
 * yet; whoever committed it does not.
 *
 * A prepared transaction is resolved by any session, or after a restart, without a word to us: while there is one, the
 * rows are counted whenever somebody asks.
 */
#include "ojs/counters/counter_table.h"
#include "ojs/shared/claim_floor.h"

#include "ojs/store/rows.h"
#include "ojs/pg/uuid.h"

namespace ojs
{

constinit Notes<Change> changes = {};
bool lost_here[2];

namespace
{

/* A column at one of two constant offsets. */
template <typename Row, auto member>
auto
column(HeapTupleHeader row)
{
    constexpr int nullable = nullable_before<Row>(member);
    constexpr int offset = offset_of<Row>(member, false);
    constexpr int offset_after_null = offset_of<Row>(member, true);
    bool null = nullable >= 0 && (row->t_infomask & HEAP_HASNULL) && att_isnull(nullable, row->t_bits);
    std::remove_cvref_t<decltype(std::declval<Row>().*member)> value;
    memcpy(&value, reinterpret_cast<const char *>(row) + row->t_hoff + (null ? offset_after_null : offset),
           sizeof value);
    return value;
}

template <typename Row>
Where
limited_or(Where where, HeapTupleHeader row)
{
    return (column<Row, &Row::flags>(row) & job_limits) != 0 ? Where::limited : where;
}

/* --- the end of a transaction --- */

/* Drops the notes of subtransactions from `level` on, and gives back the places that they have. */
void
drop_notes(int level)
{
    for (int i = changes.n; i > 0 && changes.all[i - 1].level >= level; i--)
        if (changes.all[i - 1].reserved != 0 || changes.all[i - 1].reserved_bytes != 0)
            give_back(changes.all[i - 1]);
    changes.drop(level);
}

void
forget()
{
    changes.forget();
    lost_here[0] = lost_here[1] = false;
}

void
add(Counter &counter, const Change &change, bool since)
{
    for (int w = 0; w < n_where; w++) {
        if (change.n[w] == 0)
            continue;
        pg_atomic_fetch_add_u64(&counter.n[w], change.n[w]);
        if (since)
            pg_atomic_fetch_add_u64(&counter.since[w], change.n[w]);
    }
    subtract(counter.reserved, change.reserved);
    subtract(counter.reserved_bytes, change.reserved_bytes);
    if (change.bytes == 0)
        return;
    pg_atomic_fetch_add_u64(&counter.bytes, change.bytes);
    if (since)
        pg_atomic_fetch_add_u64(&counter.bytes_since, change.bytes);
}

/* Returns true if some of the counters are missing; the lock must be held exclusively to make them. */
bool
add_all(bool exclusive)
{
    TransactionId xid = GetTopTransactionIdIfAny();
    bool since = recount->running && recount->database == MyDatabaseId && !counted_by_recount(xid);
    int left = 0;
    for (int i = 0; i < changes.n; i++) {
        int64 queue = changes.all[i].queue;
        Counter *counter = exclusive ? counter_of(queue) : find_counter(queue);
        if (counter != nullptr)
            add(*counter, changes.all[i], since);
        else if (!exclusive)
            changes.all[left++] = changes.all[i];
    }
    changes.n = left;
    return left > 0;
}

/* Must not raise. */
void
committed()
{
    Database *database = counters != nullptr ? my_database() : nullptr;
    if (database == nullptr)
        return;
    LWLockAcquire(counters_lock, LW_SHARED);
    bool missing = add_all(false);
    LWLockRelease(counters_lock);
    if (pg_atomic_read_u32(&database->uncountable) != 0) /* nobody reads them */
        missing = false;
    if (!missing && !lost_here[0] && !lost_here[1])
        return;
    LWLockAcquire(counters_lock, LW_EXCLUSIVE);
    if (missing)
        (void)add_all(true);
    for (int part = 0; part < 2; part++)
        if (lost_here[part]) {
            database->counted[part] = InvalidOid;
            if (recount->running && recount->database == MyDatabaseId && recount->part == static_cast<Part>(part))
                recount->spoilt = true;
        }
    LWLockRelease(counters_lock);
}

/* Said before anybody can see that it has committed, and until it is added. */
void
say_committing(TransactionId xid)
{
    if (committing != nullptr)
        pg_atomic_write_u32(&committing[my_process_number()], xid);
}

void
prepared()
{
    Database *database = my_database();
    if (database != nullptr && (changes.n > 0 || lost_here[0] || lost_here[1]))
        pg_atomic_fetch_or_u32(&database->prepared, prepared_open | prepared_ended);
}

extern "C" void
counts_xact(XactEvent event, void *)
{
    switch (event) {
    case XACT_EVENT_PRE_COMMIT:
        if (changes.n > 0) {
            prepare_to_remember();
            say_committing(GetTopTransactionIdIfAny());
        }
        break;
    case XACT_EVENT_COMMIT:
        if (changes.n > 0 || lost_here[0] || lost_here[1]) {
            remember_changes();
            committed();
            say_committing(InvalidTransactionId);
        }
        forget(); /* also the memory of what was rolled back */
        break;
    case XACT_EVENT_PRE_PREPARE:
        keep_while_prepared();
        break;
    case XACT_EVENT_PREPARE:
        prepared();
        drop_notes(0);
        forget();
        break;
    case XACT_EVENT_ABORT:
        if (changes.n > 0)
            say_committing(InvalidTransactionId); /* it may have been about to */
        drop_notes(0);
        forget();
        recount_given_up();
        break;
    default:
        break;
    }
}

extern "C" void
counts_subxact(SubXactEvent event, SubTransactionId, SubTransactionId, void *)
{
    int level = GetCurrentTransactionNestLevel();

    if (event == SUBXACT_EVENT_COMMIT_SUB) {
        changes.hand_up(level);
    } else if (event == SUBXACT_EVENT_ABORT_SUB) {
        recount_given_up();
        drop_notes(level);
    }
}

} // namespace

Change &
change_of(int64 queue)
{
    return changes.add({queue, GetCurrentTransactionNestLevel(), {}, 0, 0, 0});
}

void
subtract(pg_atomic_uint64 &places, int64 n)
{
    uint64 there = pg_atomic_read_u64(&places);
    while (n != 0 && !pg_atomic_compare_exchange_u64(&places, &there, there - std::min(there, static_cast<uint64>(n))))
        ;
}

bool
counted_by_recount(TransactionId xid)
{
    if (TransactionIdFollowsOrEquals(xid, recount->xmax))
        return false;
    for (int i = 0; i < recount->n_running; i++)
        if (TransactionIdEquals(xid, recount->running_xids[i]))
            return false;
    return true;
}

static bool
where_of_delayed(DelayedKind kind, Where &where)
{
    switch (kind) {
    case DelayedKind::scheduled:
        where = Where::scheduled;
        return true;
    case DelayedKind::retryable:
        where = Where::retryable;
        return true;
    case DelayedKind::pending:
        where = Where::pending;
        return true;
    case DelayedKind::released:
    case DelayedKind::blocked:
        where = Where::released;
        return true;
    default:
        return false;
    }
}

bool
where_of(store::Rel rel, HeapTupleHeader row, int64 &queue, Where &where, Where &also)
{
    switch (rel) {
    case store::Rel::ready:
        queue = column<ReadyRow, &ReadyRow::queue>(row);
        where = Where::ready;
        also = limited_or<ReadyRow>(where, row);
        return true;
    case store::Rel::lease:
        queue = column<LeaseRow, &LeaseRow::queue>(row);
        where = Where::leased;
        also = limited_or<LeaseRow>(where, row);
        return true;
    case store::Rel::delayed:
        queue = column<DelayedRow, &DelayedRow::queue>(row);
        if (!where_of_delayed(column<DelayedRow, &DelayedRow::kind>(row), where))
            return false;
        also = limited_or<DelayedRow>(where, row);
        return true;
    default: {
        queue = column<FinishedRow, &FinishedRow::queue>(row);
        State state = column<FinishedRow, &FinishedRow::state>(row);
        where = state == State::completed   ? Where::completed
                : state == State::cancelled ? Where::cancelled
                                            : Where::discarded;
        also = (column<FinishedRow, &FinishedRow::flags>(row) & finished_dead_letter) != 0 ? Where::dead_letter : where;
        return true;
    }
    }
}

bool
sized(store::Rel rel, HeapTupleHeader row, SizedJob &job)
{
    auto sized_in = [&]<typename Row>(const Row *) {
        job = {column<Row, &Row::job_id>(row), column<Row, &Row::job_tid>(row)};
        return (column<Row, &Row::flags>(row) & job_sized) != 0;
    };
    if (rel == store::Rel::ready)
        return sized_in(static_cast<ReadyRow *>(nullptr));
    return rel == store::Rel::delayed && sized_in(static_cast<DelayedRow *>(nullptr));
}

/* By tables of its own: callers hold on to what is in theirs. */
static int64
size_now(const SizedJob &job)
{
    store::Table jobs = store::open(store::Rel::job, RowExclusiveLock);
    ItemPointerData tid = job.tid;
    int64 size = 0;
    bool null;
    bool there = store::read_at(jobs, &tid) && same(*DatumGetUUIDP(slot_getattr(jobs.slot, 1, &null)), job.id);
    if (there || store::find(jobs, store::Idx::job_id, job.id, &tid) != store::Row::none)
        size = size_of_stored(jobs.slot);
    store::close(jobs);
    return size;
}

/* A row of `ready`, which can be found by now. */
static void
note_ready(int64 queue, HeapTupleHeader row)
{
    int64 position = column<ReadyRow, &ReadyRow::position>(row);
    int16 npriority = column<ReadyRow, &ReadyRow::npriority>(row);
    if (position < 0 || npriority < 0) /* before fresh jobs of the default priority */
        note_overtaking(queue);
    note_late(queue, npriority, position);
}

void
note_row(store::Rel rel, HeapTupleHeader row, int change)
{
    int64 queue;
    Where where, also;
    SizedJob job;
    if (!where_of(rel, row, queue, where, also))
        return;
    if (where == Where::ready && change > 0)
        note_ready(queue, row);
    int64 bytes = sized(rel, row, job) ? size_now(job) : 0;
    Change &note = change_of(queue);
    note.n[static_cast<int>(where)] += change;
    if (also != where)
        note.n[static_cast<int>(also)] += change;
    note.bytes += change * bytes;
}

void
counts_lost(Part part)
{
    lost_here[static_cast<int>(part)] = true;
}

Database *
counting_database()
{
    Database *database = counters != nullptr ? my_database() : nullptr;
    return database != nullptr && pg_atomic_read_u32(&database->uncountable) == 0 ? database : nullptr;
}

void
counts_init()
{
    store::watcher = note_row;
    RegisterXactCallback(counts_xact, nullptr);
    RegisterSubXactCallback(counts_subxact, nullptr);
}

} // namespace ojs
