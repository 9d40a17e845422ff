/*
 * store.h: direct access to the extension's own tables.
 *
 * The verbs here know PostgreSQL and nothing of OJS. They do what the executor
 * would, without its start-up cost: which triggers, CHECKs, defaults and NOT
 * NULLs it would apply is the caller's business, and so are permissions.
 *
 * Rows are found with a dirty snapshot: what counts is what is there now, not
 * what was there when the caller's statement began. A row that another open
 * transaction inserted or deleted is `busy`.
 *
 * Every SQL function that writes begins with begin_write() and ends with
 * end_write(), so that two calls inside one statement see each other.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs::store
{

enum class Rel {
    job,
    job_history,
    finished,
    ready,
    lease,
    delayed,
    hot_set_state,
    queue,
    worker,
    unique_key,
    rate_limit,
    limit_use,
    lease_log,
    hook,
    checkpoint,
    progress,
    dead_letter,
    maintenance,
    pool,
    name_key,
    deduplication,
    idempotency,
    listener_flag,
    workflow_open,
    workflow_end,
    workflow_due,
    job_schema,
    ordering_line,
    ordering_due,
    tenant_role,
    tenant,
    job_parent,
    count
};

enum class Idx {
    job_id,
    job_history_job,
    finished_job,
    ready_order,
    ready_job,
    lease_job,
    lease_reap,
    delayed_job,
    delayed_due,
    queue_name,
    queue_id,
    unique_key_held,
    limit_use_key,
    checkpoint_job,
    progress_job,
    dead_letter_job,
    deduplication_pkey,
    deduplication_job,
    idempotency_pkey,
    listener_flag_queue,
    workflow_open_member,
    workflow_open_order,
    ordering_line_order,
    ordering_line_job,
    ordering_due_key,
    worker_pkey,
    job_parent_job,
    count
};

/*
 * Where a thing was made: its memory context, and who answers for what it holds. What is added to it later, inside SPI
 * or a subtransaction that ends earlier, must be made there as well. An error on the way needs no leave(): whoever
 * catches it sets both.
 */
struct Home {
    MemoryContext context;
    ResourceOwner owner;

    Home(MemoryContext its_context, ResourceOwner its_owner)
        : context(MemoryContextSwitchTo(its_context)), owner(CurrentResourceOwner)
    {
        CurrentResourceOwner = its_owner;
    }
    void leave() const
    {
        MemoryContextSwitchTo(context);
        CurrentResourceOwner = owner;
    }
};
static_assert(std::is_trivially_destructible_v<Home>);

/* An open table. Closed by close(), or by the abort of the transaction. */
struct Table {
    MemoryContext context; /* of the table, and of what is opened for it later */
    ResourceOwner owner;
    Relation rel;
    Rel which;
    TupleTableSlot *slot; /* what the last read left here */
    List *indexes;        /* open relations, from the first insert on */
    bool all_plain;       /* these need no executor (indexes.cpp) */
};
static_assert(std::is_trivially_destructible_v<Table>);

/* --- the extension's identity (catalog.cpp) --- */

Oid relation_oid(Rel rel);
const char *relation_name(Rel rel);
Oid index_oid(Idx index);
Oid seq_oid();
Oid owner();                      /* who owns the extension's objects */
Oid composite_type(bool claimed); /* ojs.job, ojs.claimed_job */
int64 next_seq();
bool installed();                   /* false: no such extension in this database */
void catalog_init();                /* once, at load: hears of changes to these relations */
uint64 catalog_generation(Rel rel); /* grows whenever that relation's cached description was dropped */

/* The same of the names of queues: a queue that a push has made counts (say_new_name), and any other change. */
uint64 queue_names_generation();
void say_new_name();

/* --- calls that write --- */

/* Refuses read-only transactions, recovery and parallel workers, as the executor would for `what`. */
void begin_write(const char *what);
void end_write();

/*
 * What the call that is under way has written: to be waited for at commit, or (`durable` false) such that a crash may
 * take it back. A call whose writes are all of that kind, in a transaction without other writes, commits without
 * waiting for the disk; one that notes nothing follows the caller's setting. async_commit.cpp.
 */
void note_write(bool durable);
void begin_noting_writes(); /* by begin_write and end_write */
void end_noting_writes();
void commit_init(); /* once, at load */

/*
 * How far this transaction has come with writing. Two marks are equal only if it has neither written nor locked a row
 * between them; a row that was busy or gone does not count. So a call that must not sleep with a lock compares marks,
 * and nothing that it calls can forget to say that it wrote.
 */
struct WriteMark {
    TransactionId xid;
    CommandId command;

    bool operator==(const WriteMark &other) const { return xid == other.xid && command == other.command; }
};
WriteMark write_mark();

/* --- tables --- */

/*
 * Refuses a table whose columns are not those of this library, and to write to one with row triggers or foreign keys,
 * which these verbs would pass by.
 */
Relation open_relation(Rel rel, LOCKMODE mode);
Table open(Rel rel, LOCKMODE mode);
void close(Table &table);                           /* keeps the lock until the transaction ends */
void close_and_unlock(Table &table, LOCKMODE mode); /* for a caller that has written nothing */

/* --- writing --- */

/* Inserts `tuple` (its t_self says where) and its index entries. */
void insert(Table &table, HeapTuple tuple);
void insert_many(Table &table, HeapTuple *tuples, int n);

/*
 * Runs `body` under a snapshot: of the statement that is under way, or, where there is none (before a commit), one of
 * now. Without one a row that was seen may be pruned, and its address be given to another, before it is taken.
 */
template <typename Body>
void
with_snapshot(Body body)
{
    bool push = !ActiveSnapshotSet();
    if (push)
        PushActiveSnapshot(GetTransactionSnapshot());
    body();
    if (push)
        PopActiveSnapshot();
}

enum class Outcome { ok, busy, gone };

/* Called for each row of ready, lease, delayed and finished that is inserted (1) or deleted (-1) here. */
using Watcher = void (*)(Rel rel, HeapTupleHeader row, int change);
extern Watcher watcher;
void watch(const Table &table, HeapTuple tuple, int change); /* for a caller that writes past these verbs */

/*
 * Deletes the row at tid as FOR UPDATE SKIP LOCKED would: lock it if that needs
 * no waiting, recheck, delete. The row was seen under a snapshot that is still held, or the slot pins its block; this
 * and the verbs below raise an error where neither is so. One caller only gets `ok`. With `at_once`, a row that the
 * slot shows to be free is deleted without being locked before, which is cheaper; if another one is faster, this
 * command has written all the same.
 */
Outcome take(Table &table, ItemPointer tid, bool at_once = false);
/* Like take(), for a row that a snapshot of this command shows: deleted without being locked before, which would be one
 * more record in the log. */
Outcome take_seen(Table &table, ItemPointer tid);
/* Like take(), but waits for a transaction that has the row; `gone` when that one took or moved it. */
Outcome take_waiting(Table &table, ItemPointer tid);
/* Locks the row at tid, waiting if need be, so that replace() cannot fail; leaves the row in the slot. */
Outcome lock(Table &table, ItemPointer tid, bool wait);
void replace(Table &table, ItemPointer tid, HeapTuple tuple);

/* By the verbs that take: new rows of ready or lease may go where this one was (reuse.cpp). */
void note_taken(const Table &table, ItemPointer tid);

/*
 * For a table of which our only index is unique, on its first column, and may be partial, as long as all rows written
 * here are ones that it holds. insert_unless_there() is INSERT … ON CONFLICT DO NOTHING without the wait: false, and
 * nothing is there, if a row with that key is there, or arriving. replace_keyed() leaves the key as it is, in a row
 * locked before.
 */
bool insert_unless_there(Table &table, Idx index, HeapTuple tuple);
void replace_keyed(Table &table, Idx index, ItemPointer tid, HeapTuple tuple);

/* For these verbs (indexes.cpp): whether the table has only the index that we made; the entries of a row in all indexes
 * of the table; and the same for any kind of index, by the executor: returns false if, `unless_there`, a row with the
 * same first column may be there in a unique one. */
bool only_ours(Relation rel);
void insert_entries(Table &table, HeapTuple tuple, ItemPointer tid);
bool insert_any_entries(Relation rel, TupleTableSlot *slot, bool unless_there, NewEntries which = NewEntries::all);
void close_indexes(Table &table); /* keeps their locks until the transaction ends */

/* --- reading --- */

/*
 * Indexes that are out of plans: no statement is planned by them, so no snapshot misses a row whose entry was marked
 * dead early. Each is partial, with a predicate that every row fulfils (`key % 1 = 0`) and no condition of a statement
 * implies. Nor does CLUSTER copy a table by one, since it refuses partial indexes. Everything else treats them as if
 * they had no predicate.
 */
constexpr Idx out_of_plans[] = {Idx::ready_order,       Idx::lease_reap,          Idx::delayed_due,
                                Idx::limit_use_key,     Idx::listener_flag_queue, Idx::ordering_line_order,
                                Idx::ordering_line_job, Idx::ordering_due_key};
bool is_out_of_plans(Relation index); /* as it is in the database */

/* arriving: inserted by a transaction that is still open; leaving: deleted by one. */
enum class Row { none, live, arriving, leaving };

/* A walk along an index, dirty. */
struct Scan {
    Table *table;
    Relation index;
    IndexScanDesc desc;
    SnapshotData dirty;
    ItemPointerData tid;     /* of the row in the table's slot */
    ScanDirection direction; /* forward unless changed before the first next() */
    bool kill_dead;
    bool saw_dead; /* an entry that led nowhere was passed */
    bool saw_ours; /* … whose row this transaction may have deleted, in this rescan or before; with kill_dead */
};

/*
 * `scan` must not move afterwards: its snapshot is pointed at.
 *
 * With kill_dead, entries that lead nowhere (their deleter has committed, or their inserter aborted) are marked dead
 * now, and not only when no snapshot could see the row any more: that is what keeps claims flat under a long-running
 * snapshot. It has an effect only on an index that is out of plans (see below) of an unlogged table, of which no
 * standby hears.
 */
void begin(Scan &scan, Table &table, Idx index, ScanKey keys, int n, bool kill_dead);
void rescan(Scan &scan, ScanKey keys, int n);
Row next(Scan &scan);
void end(Scan &scan);

/*
 * For a scan that looks at index entries before it looks at their rows, from its next rescan() on; those that are
 * marked dead too, or without them. The values of the first columns of the next entry, and the row of that one: none if
 * it is dead.
 */
void keep_entries(Scan &scan, bool dead_too);
bool next_entry(Scan &scan, int columns, Datum *values);
Row row_of_entry(Scan &scan);

/* Whether another transaction that is open has locked, updated or deleted the row in the table's slot. */
bool held_by_another(const Table &table);

/*
 * The value of one column of the first index entry that fits, whether or not its row still exists; false: no entry
 * does. Leaves the scan to be begun anew with rescan().
 */
bool first_entry(Scan &scan, ScanKey keys, int n, int column, Datum *value);

/* The row of job `id` along an index on job_id, as it is now; `none` only when it is certainly not there. The other one
 * goes along any index, by n keys; null: every row that they find will do. */
Row find(Table &table, Idx index, const pg_uuid_t &id, ItemPointer tid);
Row find(Table &table, Idx index, ScanKey keys, int n, const pg_uuid_t *id, ItemPointer tid);

/* The same where the row was once inserted at tid, as long as it is live and there: without a look at the index, which
 * is right also where the row has had heap-only updates. Its first column is the id. */
bool find_at(Table &table, const pg_uuid_t &id, ItemPointer tid);

/* False: no row of a table whose first column is a bigint, and never null, has that value there. By a look at the pages
 * of a small table, which costs a quarter of a look at its index; a larger one may hold it. */
bool may_hold(Relation rel, int64 value);

/* All rows of job `id`, for tables that may hold several: begin/next with this key. */
void key_uuid(ScanKey key, const pg_uuid_t &id);

/* The row of job `id` as `snapshot` sees it, in the slot. */
bool read(Table &table, Idx index, const pg_uuid_t &id, Snapshot snapshot);

bool has_block(Relation rel, BlockNumber block);

/* The committed (or own) row at tid, in the slot. The caller compares the id: rows of a table move, and where it is
 * written anew there may be no such block any more. */
bool read_at(Table &table, ItemPointer tid);

/* A walk through a stretch of a table's blocks, by a snapshot of its beginning. */
struct BlockWalk {
    Table *table;
    TableScanDesc desc;
    Snapshot snapshot;
};
BlockNumber blocks_of(Table &table);
void begin(BlockWalk &walk, Table &table, BlockNumber first, BlockNumber n);
bool next(BlockWalk &walk);
void end(BlockWalk &walk);

/* The open transaction that made the row in the slot busy ends before this returns. */
void wait_for(const Scan &scan);

} // namespace ojs::store
