/*
 * session.cpp: ojs.work_open, ojs.work_next, ojs.work_close: work bound to the session.
 *
 * The session remembers what it was given. When it ends in whatever way, what it still holds of that, and nothing else,
 * is given back at once; should its process be killed, the server restarts and knows no such leases, and should the
 * giving back fail, the leases run out.
 */
#include "ojs/claim/request.h"
#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/pg/row.h"
#include "ojs/limits/slots.h"
#include "ojs/shared/wakeup.h"
#include "ojs/state/transitions.h"
#include "ojs/hot_set/hot_set.h"
#include "ojs/state/members.h"
#include "ojs/store/index_locks.h"

using namespace ojs;

namespace
{

constexpr int64 longest_wait_ms = 30000;

struct WorkSession {
    bool open;
    char queue[max_queue_name + 1];
    text *worker;             /* in TopMemoryContext, as is `given` */
    char client[NAMEDATALEN]; /* the application_name that opened it */
    int max;
    std::optional<int64> lease_ms;
    Delivery *given; /* max_claim of them; some may be finished meanwhile */
    int n;
};
constinit WorkSession work = {};
bool hooked; /* into the ends of transactions and of the session */

/* Forgets deliveries that are finished, were lost, or never came to be because their claim rolled back; and those whose
 * lease has run out, which are anybody's, and so this session's again. */
void
forget_finished(Tables &tables)
{
    TimestampTz at = now();
    int kept = 0;
    for (int i = 0; i < work.n; i++) {
        ItemPointerData tid;
        LeaseRow lease;
        store::Row seen = store::find(tables.lease(), store::Idx::lease_job, work.given[i].job_id, &tid);
        if (seen == store::Row::none)
            continue;
        read(tables.lease().slot, lease);
        if (lease.token == work.given[i].token && lapses_at(tables, lease) > at)
            work.given[kept++] = work.given[i];
    }
    work.n = kept;
}

void
release_all(Tables &tables, TimestampTz at)
{
    for (int i = 0; i < work.n; i++) {
        LeaseRow lease;
        Holder holder = {nullptr, lease_id(work.given[i].token)};
        if (take_lease(tables, work.given[i].job_id, holder, lease))
            (void)release(tables, lease, 0, at);
    }
}

/* Like the function above, but at the end of the session, which nothing can interrupt any more: rows that another
 * transaction has locked are left to it. So is a member of a workflow that ends here: its workflow is not asked to wait
 * for whoever ends it too. */
void
release_free(Tables &tables, TimestampTz at)
{
    store::Table &leases = tables.lease();
    for (int i = 0; i < work.n; i++) {
        ItemPointerData tid;
        LeaseRow lease;
        if (store::find(leases, store::Idx::lease_job, work.given[i].job_id, &tid) != store::Row::live)
            continue;
        read(leases.slot, lease);
        bool ends_member = (lease.flags & job_at_most_once) && (lease.flags & job_in_workflow);
        if (lease.token != work.given[i].token || ends_member || store::take(leases, &tid) != store::Outcome::ok)
            continue;
        free_slots(tables, lease);
        (void)release(tables, lease, 0, at);
    }
}

/* Locks all tables and indexes of ours and their sequence, whichever of them are needed; false: another session has
 * locked one. */
bool
lock_tables_at_once()
{
    for (int i = 0; i < static_cast<int>(store::Rel::count); i++)
        if (!ConditionalLockRelationOid(store::relation_oid(static_cast<store::Rel>(i)), RowExclusiveLock))
            return false;
    for (int i = 0; i < static_cast<int>(store::Idx::count); i++)
        if (!ConditionalLockRelationOid(store::index_oid(static_cast<store::Idx>(i)), RowExclusiveLock))
            return false;
    return ConditionalLockRelationOid(store::seq_oid(), RowExclusiveLock);
}

/*
 * Begins a transaction in which nothing waits, its commit included: neither for a standby or the disk, whatever
 * synchronous_commit says (what it writes may be lost: the leases run out), nor for a snapshot that is safe for a
 * deferrable transaction, nor for the server's lock on notifications. SIGTERM no longer ends this process, and a fast
 * shutdown waits for it.
 */
void
begin_last_transaction()
{
    AbortOutOfAnyTransaction();
    StartTransactionCommand();
    XactIsoLevel = XACT_READ_COMMITTED;
    XactReadOnly = false;
    XactDeferrable = false;
    (void)set_config_option("synchronous_commit", "off", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
    stop_notifying();
    PushActiveSnapshot(GetTransactionSnapshot());
}

extern "C" void
session_ends(int, Datum)
{
    if (work.n == 0)
        return;
    PG_TRY();
    {
        begin_last_transaction();
        guarded([] {
            Tables tables;
            if (lock_tables_at_once()) /* else the leases run out */
                release_free(tables, now());
            tables.close();
            return 0;
        });
        PopActiveSnapshot();
        CommitTransactionCommand();
    }
    PG_CATCH();
    {
        EmitErrorReport(); /* the leases run out */
        FlushErrorState();
    }
    PG_END_TRY();
    work.n = 0;
}

/* A work session that was opened in a transaction that rolls back was never opened. */
int opened_at_level; /* of the transaction; 0: not in this one */

extern "C" void
work_xact(XactEvent event, void *)
{
    if (event == XACT_EVENT_ABORT && opened_at_level > 0)
        work.open = false;
    if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE)
        opened_at_level = 0;
}

extern "C" void
work_subxact(SubXactEvent event, SubTransactionId, SubTransactionId, void *)
{
    int level = GetCurrentTransactionNestLevel();
    if (opened_at_level < level)
        return;
    if (event == SUBXACT_EVENT_ABORT_SUB) {
        work.open = false;
        opened_at_level = 0;
    } else if (event == SUBXACT_EVENT_COMMIT_SUB)
        opened_at_level = level - 1;
}

/* A pooler in transaction mode hands the server's session to one client after the other, and says so by
 * application_name if these differ. Else it goes unnoticed, unless the caller names its worker. */
bool
is_of_another(const text *worker)
{
    return strcmp(work.client, application_name) != 0 || (worker != nullptr && view(worker) != view(work.worker));
}

constexpr const char *pooler_hint =
    "A pooler in transaction mode hands sessions from client to client: connect directly, or use ojs.claim.";

void
need_open(const text *worker = nullptr)
{
    if (!work.open)
        raise(Code::invalid_payload, Details().add("reason", "no_work_session"),
              "Call ojs.work_open(queue, worker) first. Behind a pooler in transaction mode the next call may come to "
              "another session.",
              "this session has no work session");
    if (is_of_another(worker))
        raise(Code::invalid_payload, Details().add("reason", "other_client"), pooler_hint,
              "the work session of this session was opened by another client");
}

} // namespace

OJS_FUNCTION(ojs_work_open)
{
    enum { p_queue, p_worker, p_max, p_lease };
    /* What another client has left behind: its leases run out. */
    if (work.open && is_of_another(text_or_null(fcinfo, p_worker))) {
        work.open = false;
        work.n = 0;
    }
    if (work.open)
        raise(Code::invalid_payload, Details().add("reason", "work_session_open"), "Call ojs.work_close() first.",
              "this session has a work session already");
    if (PG_ARGISNULL(p_queue))
        raise_field(Code::invalid_queue, "queue", "Name a queue.", "queue must not be null");
    std::string_view queue = view(PG_GETARG_TEXT_PP(p_queue));
    int max = PG_ARGISNULL(p_max) ? 1 : PG_GETARG_INT32(p_max);
    if (max < 1)
        raise_field(Code::invalid_payload, "max", "Give a number from 1 to 1000.", "max must be positive");
    Request request =
        read_request(&queue, 1, text_or_null(fcinfo, p_worker), max, interval_or_null(fcinfo, p_lease), false);

    if (work.given == nullptr)
        work.given = static_cast<Delivery *>(MemoryContextAlloc(TopMemoryContext, sizeof(Delivery) * max_claim));
    if (work.worker != nullptr)
        pfree(work.worker);
    MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
    work.worker = DatumGetTextPCopy(PointerGetDatum(request.worker));
    MemoryContextSwitchTo(old);
    strlcpy(work.queue, request.queues[0].name, sizeof work.queue);
    work.max = request.max;
    work.lease_ms = request.lease_ms;
    strlcpy(work.client, application_name, sizeof work.client);
    if (!hooked) {
        before_shmem_exit(session_ends, 0);
        RegisterXactCallback(work_xact, nullptr);
        RegisterSubXactCallback(work_subxact, nullptr);
    }
    hooked = true;
    opened_at_level = GetCurrentTransactionNestLevel();
    work.open = true;
    PG_RETURN_VOID();
}

OJS_FUNCTION(ojs_work_next)
{
    ReturnSetInfo *set = begin_set(fcinfo);
    need_open(text_or_null(fcinfo, 1));
    store::begin_write("ojs.work_next()");
    store::WriteMark before = store::write_mark();
    store::forget_index_locks();
    ensure_hot_set();
    Interval *wait = interval_or_null(fcinfo, 0);
    int64 wait_ms = wait != nullptr ? std::min(interval_ms(wait), longest_wait_ms) : 0;
    int64 until_us = steady_us() + wait_ms * 1000;
    std::string_view name(work.queue);

    const Queue *found = find_queue(name);
    if (found != nullptr && found->claim_rate > 0) {
        Queue queue = *found;
        if (!admit_or_tell(queue, work.worker, until_us)) {
            store::end_write();
            return (Datum)0;
        }
    }
    auto read = [&](Tables &tables) {
        Request again = read_request(&name, 1, work.worker, work.max, nullptr, false);
        again.lease_ms = work.lease_ms;
        again.session = MyProcPid;
        forget_finished(tables);
        again.max = std::max(work.max - work.n, 0); /* a close that was rolled back may have left more */
        return again;
    };
    hand_out_until(until_us, true, before, set, read, [](const HandedOut &out) {
        for (int i = 0; i < out.jobs; i++)
            work.given[work.n++] = out.deliveries[i];
    });
    return (Datum)0;
}

OJS_CHANGE(ojs_work_close, "ojs.work_close()")
{
    need_open();
    release_all(tables, now());
    /* What was given stays remembered: should this transaction roll back, the session's end gives it back. */
    work.open = false;
    PG_RETURN_VOID();
}
