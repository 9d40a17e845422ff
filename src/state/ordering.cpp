/*
 * ordering.cpp: see ordering.h.
 *
 * A row of ordering_line is inserted when a job joins the line and deleted when it leaves, and never updated. Positions
 * are drawn under the lock of the key, so nobody comes in before a job that is in the line already: the order of push
 * is that of the pushes, whenever their transactions commit. What each does under that lock, and nothing more, is:
 *
 *   a job that joins    inserts its row, then looks whether a row is before it, and is blocked if so;
 *   a job that leaves   deletes its row; at the end of the call: looks who is first, and makes that one ready.
 *
 * Each writes before it looks, by dirty snapshots, and the lock is let go of at once: nobody waits for a transaction.
 * So of two that meet at least one sees the row of the other as that of an open transaction, whose end decides whose
 * turn it is. That one leaves a row in ordering_due, and upkeep looks again until it is decided.
 *
 * The row of the first job is there as long as it is not finished, so a rollback, or a crash of a session, brings
 * everything back as it was. A crash of the server empties both tables, and a rebuild lines the jobs up again.
 */
#include "ojs/state/ordering_line.h"

#include "ojs/pg/args.h"
#include "ojs/pg/uuid.h"
#include "ojs/queue/queue.h"
#include "ojs/shared/wakeup.h"
#include "ojs/state/transitions.h"

namespace ojs
{

int lines_left;

namespace
{

enum class Next { none, blocked, unsure };

/* The first of a line, if it is blocked: its row, and where that is. */
Next
blocked_first(Tables &tables, int64 key, DelayedRow &row, ItemPointer tid)
{
    ScanKeyData by_key;
    store::Scan scan;
    LineRow line;
    ScanKeyInit(&by_key, 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(key));
    store::begin(scan, tables.get(store::Rel::ordering_line), store::Idx::ordering_line_order, &by_key, 1, true);
    store::Row seen = store::next(scan);
    if (seen == store::Row::live)
        read(scan.table->slot, line);
    store::end(scan);
    if (seen != store::Row::live)
        return seen == store::Row::none ? Next::none : Next::unsure;

    Next next = Next::none;
    ScanKeyData by_job;
    store::key_uuid(&by_job, line.job_id);
    store::begin(scan, tables.delayed(), store::Idx::delayed_job, &by_job, 1, false);
    while (next == Next::none && (seen = store::next(scan)) != store::Row::none) {
        read(tables.delayed().slot, row);
        if (row.kind == DelayedKind::expiry)
            continue;
        *tid = scan.tid;
        next = seen != store::Row::live ? Next::unsure : row.kind == DelayedKind::blocked ? Next::blocked : Next::none;
    }
    store::end(scan);
    return next;
}

void
insert_ready(Tables &tables, const HotRow &row, int64 position)
{
    store::insert(tables.ready(), form(tables.ready().rel, moved_to(row, position)));
    wake_queue(row.queue, queue_name(row.queue), 1);
}

int64
position_in_queue(const HotRow &row)
{
    return row.deliveries > 0 ? returned_position() : store::next_seq();
}

/* Under the lock of the key. */
Next
advance(Tables &tables, int64 key)
{
    DelayedRow row;
    ItemPointerData tid;
    Next next = blocked_first(tables, key, row, &tid);
    if (next != Next::blocked)
        return next;
    if (store::take(tables.delayed(), &tid) != store::Outcome::ok)
        return Next::unsure;
    insert_ready(tables, row, position_in_queue(row));
    return next;
}

/* --- lines that jobs of this call have left --- */

DueLineRow *left; /* in TopMemoryContext */
int room;

} // namespace

void
note_left_line(int64 queue, int64 key)
{
    if (lines_left == room) {
        int wider = std::max(16, room * 2);
        Size size = sizeof(DueLineRow) * wider;
        left = static_cast<DueLineRow *>(left == nullptr ? MemoryContextAllocHuge(TopMemoryContext, size)
                                                         : repalloc_huge(left, size));
        room = wider;
    }
    left[lines_left++] = {queue, key};
}

namespace
{

/* A subtransaction that is rolled back leaves its lines here: to look at one too many does no harm. */
extern "C" void
ordering_xact(XactEvent event, void *)
{
    switch (event) {
    case XACT_EVENT_PRE_COMMIT:
    case XACT_EVENT_PRE_PREPARE:
        if (lines_left > 0 && store::installed())
            store::with_snapshot(advance_left_lines); /* of calls from SQL that are not made by OJS_CHANGE */
        break;
    case XACT_EVENT_COMMIT:
    case XACT_EVENT_PREPARE:
    case XACT_EVENT_ABORT:
        lines_left = 0;
        break;
    default:
        break;
    }
}

bool
by_key(const DueLineRow &a, const DueLineRow &b)
{
    return a.key < b.key;
}

} // namespace

bool
join_line(Tables &tables, JobRow &job, bool can_run)
{
    LineRow line = {stated_key(job.queue, job.options), 0, job.queue, job.id};
    bool first = true;
    if (!can_run && (job.flags & job_relaxed))
        return first;
    with_line(tables, line.key, [&] {
        line.position = job.seq = store::next_seq();
        insert_in_line(tables, line);
        first = is_first(tables, line);
    });
    return first;
}

void
make_ready_in_turn(Tables &tables, const HotRow &row, int64 position)
{
    LineRow line;
    bool joined = find_in_line(tables, row.job_id, line);
    if (!joined)
        line = {key_of_job(row), 0, row.queue, row.job_id};
    with_line(tables, line.key, [&] {
        if (!joined) {
            line.position = store::next_seq();
            insert_in_line(tables, line);
        }
        if (is_first(tables, line))
            insert_ready(tables, row, position);
        else
            store::insert(tables.delayed(),
                          form(tables.delayed().rel, DelayedRow{row, DT_NOEND, DelayedKind::blocked}));
    });
}

void
keep_in_line(Tables &tables, const HotRow &row)
{
    LineRow line;
    if (find_in_line(tables, row.job_id, line))
        return;
    line = {key_of_job(row), 0, row.queue, row.job_id};
    with_line(tables, line.key, [&] {
        line.position = store::next_seq();
        insert_in_line(tables, line);
    });
}

void
leave_line(Tables &tables, const pg_uuid_t &id)
{
    store::Table &table = tables.get(store::Rel::ordering_line);
    ScanKeyData key;
    store::Scan scan;
    store::Row seen;
    store::key_uuid(&key, id);
    store::begin(scan, table, store::Idx::ordering_line_job, &key, 1, true);
    while ((seen = store::next(scan)) != store::Row::none) {
        LineRow line;
        read(table.slot, line);
        if (seen == store::Row::live && store::take(table, &scan.tid) == store::Outcome::ok)
            note_left_line(line.queue, line.key);
    }
    store::end(scan);
}

void
advance_left_lines()
{
    CommandCounterIncrement();
    Tables tables;
    std::sort(left, left + lines_left, by_key);
    for (int i = 0; i < lines_left; i++) {
        if (i > 0 && left[i].key == left[i - 1].key)
            continue;
        CHECK_FOR_INTERRUPTS();
        with_line(tables, left[i].key, [&] {
            if (advance(tables, left[i].key) == Next::unsure)
                note_due(tables, left[i].queue, left[i].key);
        });
    }
    lines_left = 0;
    tables.close();
    CommandCounterIncrement();
}

namespace
{

struct DueLine {
    ItemPointerData tid;
    DueLineRow row;
};

/* Where the last look at all lines has ended; the next one goes on there. */
DueLineRow looked_upto = {PG_INT64_MIN, PG_INT64_MIN};

/* Rows that fit the keys of the scan, at most up to `most`, behind those that are there. */
int
more_due_lines(Tables &tables, ScanKey keys, int n_keys, DueLine *due, int n, int most)
{
    store::Table &table = tables.get(store::Rel::ordering_due);
    store::Scan scan;
    store::Row seen;
    store::begin(scan, table, store::Idx::ordering_due_key, keys, n_keys, true);
    while (n < most && (seen = store::next(scan)) != store::Row::none) {
        DueLine &one = due[n];
        read(table.slot, one.row);
        one.tid = scan.tid;
        n += seen == store::Row::live;
    }
    store::end(scan);
    return n;
}

/* Rows from a queue and key on, of that queue only or (`all`) of all; at most `most`. Two scans: one that begins at the
 * queue would pass all keys before that one each time. */
int
due_lines(Tables &tables, DueLineRow from, bool all, DueLine *due, int most)
{
    ScanKeyData keys[2];
    ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(from.queue));
    ScanKeyInit(&keys[1], 2, BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(from.key));
    int n = more_due_lines(tables, keys, 2, due, 0, most);
    ScanKeyInit(&keys[0], 1, BTGreaterStrategyNumber, F_INT8GT, Int64GetDatum(from.queue));
    return all && n < most ? more_due_lines(tables, keys, 1, due, n, most) : n;
}

/* Of some queues, which are in order: one look for each that has rows, not for each. */
int
due_lines_of(Tables &tables, Scope scope, DueLine *due, int most)
{
    store::Scan scan;
    ScanKeyData key;
    Datum queue;
    const int64 *at = scope.queues;
    const int64 *end = scope.queues + scope.n;
    int n = 0;
    ScanKeyInit(&key, 1, BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(0));
    store::begin(scan, tables.get(store::Rel::ordering_due), store::Idx::ordering_due_key, &key, 1, true);
    while (at < end && n < most) {
        ScanKeyInit(&key, 1, BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(*at));
        if (!store::first_entry(scan, &key, 1, 1, &queue))
            break;
        at = std::lower_bound(at, end, DatumGetInt64(queue));
        if (at < end && *at == DatumGetInt64(queue))
            n += due_lines(tables, {*at++, PG_INT64_MIN}, false, due + n, most - n);
    }
    store::end(scan);
    return n;
}

/* Under the lock of the key. What is still undecided stays as it is: a claim that waits has not written anything. */
bool
advance_due(Tables &tables, DueLine &due)
{
    DelayedRow row;
    ItemPointerData tid;
    if (blocked_first(tables, due.row.key, row, &tid) == Next::unsure ||
        store::take(tables.get(store::Rel::ordering_due), &due.tid) != store::Outcome::ok)
        return false;
    Next next = advance(tables, due.row.key);
    if (next == Next::unsure)
        note_due(tables, due.row.queue, due.row.key);
    return next == Next::blocked;
}

} // namespace

int
advance_due_lines(Tables &tables, Scope scope, int limit)
{
    auto *due = static_cast<DueLine *>(palloc(sizeof(DueLine) * upkeep_batch));
    int most = std::min(limit, upkeep_batch);
    int done = 0;
    int n = 0;
    if (scope.all()) {
        n = due_lines(tables, looked_upto, true, due, most);
        looked_upto = n == most && n > 0 ? due[n - 1].row : DueLineRow{PG_INT64_MIN, PG_INT64_MIN};
    } else
        n = due_lines_of(tables, scope, due, most);
    for (int i = 0; i < n; i++) {
        CHECK_FOR_INTERRUPTS();
        with_line(tables, due[i].row.key, [&] { done += advance_due(tables, due[i]); });
    }
    pfree(due);
    return done;
}

bool
first_is_sure(Tables &tables, int64 key)
{
    DelayedRow row;
    ItemPointerData tid;
    return blocked_first(tables, key, row, &tid) != Next::unsure;
}

bool
advance_line(Tables &tables, int64 queue, int64 key)
{
    Next next = Next::none;
    with_line(tables, key, [&] {
        next = advance(tables, key);
        if (next == Next::unsure)
            note_due(tables, queue, key);
    });
    return next == Next::blocked;
}

void
ordering_init()
{
    RegisterXactCallback(ordering_xact, nullptr);
}

} // namespace ojs
