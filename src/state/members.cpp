/*
 * members.cpp: the ends of jobs that belong to workflows.
 *
 * An open member has a row in workflow_open. Who ends the member deletes that row, inserts one into workflow_end, and
 * then looks whether another member is open. Each deletes before it looks, so of several who end the last members at
 * once at least one sees that nobody is left. It never waits for the others: where their transactions are still open,
 * and may yet be rolled back, it leaves a row in workflow_due, and the next tick looks again. Where there are none, the
 * workflow goes on in this transaction (advance_workflows).
 */
#include "ojs/queue/tenant.h"
#include "ojs/state/members.h"

#include "ojs/pg/json.h"
#include "ojs/pg/subtransaction.h"
#include "ojs/pg/uuid.h"
#include "ojs/store/spi.h"

namespace ojs
{

namespace
{

/* Equivalent SQL, for the lot of it: ojs_store.end_member() would be delete from workflow_open … returning; insert into
 * workflow_end …; insert into workflow_due … where not exists (select from workflow_open …). */
struct Member {
    pg_uuid_t workflow;
    int32 position;
    bool is_job;
};

Member
read_member(TupleTableSlot *slot)
{
    bool null;
    return {*DatumGetUUIDP(slot_getattr(slot, 2, &null)), DatumGetInt32(slot_getattr(slot, 3, &null)),
            DatumGetBool(slot_getattr(slot, 4, &null))};
}

/* Takes the row of an open member; false: there is none. */
bool
take_member(Tables &tables, const pg_uuid_t &id, Member &member)
{
    store::Table &table = tables.get(store::Rel::workflow_open);
    for (;;) {
        ItemPointerData tid;
        store::Row seen = store::find(table, store::Idx::workflow_open_member, id, &tid);
        if (seen == store::Row::none || seen == store::Row::arriving)
            return false;
        member = read_member(table.slot);
        if (store::take_waiting(table, &tid) == store::Outcome::ok)
            return true;
        CHECK_FOR_INTERRUPTS();
    }
}

/* Where this session last saw an open member. A look begins there, so that it does not pass all that have ended. */
struct Hint {
    pg_uuid_t workflow;
    int32 position;
};
Hint hint;

/* The open members at places up to `upto`, from the last one on. */
MembersLeft
look_back(Tables &tables, const pg_uuid_t &workflow, int32 upto)
{
    store::Table &table = tables.get(store::Rel::workflow_open);
    ScanKeyData keys[2];
    store::Scan scan;
    store::Row seen;
    MembersLeft left = MembersLeft::none;

    ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(&workflow));
    ScanKeyInit(&keys[1], 2, BTLessEqualStrategyNumber, F_INT4LE, Int32GetDatum(upto));
    store::begin(scan, table, store::Idx::workflow_open_order, keys, 2, false);
    scan.direction = BackwardScanDirection;
    while (left != MembersLeft::some && (seen = store::next(scan)) != store::Row::none) {
        left = seen == store::Row::live ? MembersLeft::some : MembersLeft::unsure;
        if (left == MembersLeft::some)
            hint = {workflow, read_member(table.slot).position};
    }
    store::end(scan);
    return left;
}

/* Workflows that this call has left due. What does not fit is the tick's. */
constexpr int most_pending = 32;
pg_uuid_t pending[most_pending];
int n_pending;

/*
 * The transaction level of the call that has workflows begin or go on; 0: none. A hook that pushes in the middle of
 * that leaves alone what is half begun.
 */
int working_level;

extern "C" void
members_xact(XactEvent, void *)
{
    working_level = 0;
    n_pending = 0;
}

extern "C" void
members_subxact(SubXactEvent event, SubTransactionId, SubTransactionId, void *)
{
    if (event == SUBXACT_EVENT_ABORT_SUB && GetCurrentTransactionNestLevel() <= working_level)
        working_level = 0;
}

constinit Statement advance = {"select ojs_store.advance_workflow($1)", {UUIDOID}, nullptr};
constinit Statement parents = {"select ojs_store.parent_results($1)", {UUIDOID}, nullptr};

Jsonb *
merged(const Jsonb *a, const Jsonb *b)
{
    ObjectBuilder out;
    for (const Jsonb *object : {a, b})
        if (object != nullptr)
            each_member(root_of(object),
                        [&out](std::string_view key, const JsonbValue &value) { out.add(key, value); });
    return out.finish();
}

} // namespace

MembersLeft
members_left(Tables &tables, const pg_uuid_t &workflow)
{
    if (same(hint.workflow, workflow) && look_back(tables, workflow, hint.position) == MembersLeft::some)
        return MembersLeft::some;
    return look_back(tables, workflow, PG_INT32_MAX);
}

HeapTuple
open_member(Tables &tables, const pg_uuid_t &id, const pg_uuid_t &workflow, int32 position, bool is_job)
{
    Datum values[] = {UUIDPGetDatum(&id), UUIDPGetDatum(&workflow), Int32GetDatum(position), BoolGetDatum(is_job)};
    bool nulls[std::size(values)] = {};
    return heap_form_tuple(RelationGetDescr(tables.get(store::Rel::workflow_open).rel), values, nulls);
}

void
store_end(Tables &tables, const pg_uuid_t &id, const pg_uuid_t &workflow, int32 position, bool is_job,
          const MemberEnd &end)
{
    store::Table &table = tables.get(store::Rel::workflow_end);
    Datum values[] = {UUIDPGetDatum(&workflow),
                      Int32GetDatum(position),
                      UUIDPGetDatum(&id),
                      TimestampTzGetDatum(end.ended_at),
                      Int32GetDatum(end.attempt),
                      BoolGetDatum(is_job),
                      CStringGetTextDatum(end.state),
                      TimestampTzGetDatum(end.started_at.value_or(0)),
                      PointerGetDatum(end.result),
                      PointerGetDatum(end.error)};
    bool nulls[std::size(values)] = {};
    nulls[7] = !end.started_at;
    nulls[8] = end.result == nullptr;
    nulls[9] = end.error == nullptr;
    store::insert(table, heap_form_tuple(RelationGetDescr(table.rel), values, nulls));
}

void
workflow_due(Tables &tables, const pg_uuid_t &workflow, TimestampTz now)
{
    store::Table &table = tables.get(store::Rel::workflow_due);
    Datum values[] = {UUIDPGetDatum(&workflow), TimestampTzGetDatum(now), Int32GetDatum(0), 0};
    bool nulls[] = {false, false, false, true};
    store::insert(table, heap_form_tuple(RelationGetDescr(table.rel), values, nulls));
    bool known = std::any_of(pending, pending + n_pending, [&](const pg_uuid_t &id) { return same(id, workflow); });
    if (!known && n_pending < most_pending)
        pending[n_pending++] = workflow;
}

void
member_ended(Tables &tables, const pg_uuid_t &id, const MemberEnd &end)
{
    Member member;
    if (!take_member(tables, id, member))
        return;
    store_end(tables, id, member.workflow, member.position, member.is_job, end);
    if (members_left(tables, member.workflow) != MembersLeft::some)
        workflow_due(tables, member.workflow, end.ended_at);
}

void
job_ended(Tables &tables, const FinishedRow &row)
{
    const char *state = row.state == State::completed   ? "completed"
                        : row.state == State::cancelled ? "cancelled"
                                                        : "failed";
    member_ended(tables, row.job_id, {state, row.finished_at, row.attempt, row.started_at, row.result, row.error});
}

void
member_removed(Tables &tables, const pg_uuid_t &id, TimestampTz now)
{
    member_ended(tables, id,
                 {"cancelled", now, 0, std::nullopt, nullptr,
                  server_error("removed", "the job was removed before its end", 0, now)});
}

bool
begin_workflow_work()
{
    if (working_level != 0)
        return false;
    working_level = GetCurrentTransactionNestLevel();
    return true;
}

void
end_workflow_work(bool begun)
{
    if (begun)
        working_level = 0;
}

bool
pushes_for_others()
{
    return working_level != 0;
}

/* False, and the note of it stays: it cannot go on now. */
static bool
advance_now(const pg_uuid_t &id)
{
    ErrorData *error = attempt([&] { with_spi([&] { (void)execute(advance, {UUIDPGetDatum(&id)}); }); });
    if (error == nullptr)
        return true;
    if (error->sqlerrcode == ERRCODE_QUERY_CANCELED ||
        ERRCODE_TO_CATEGORY(error->sqlerrcode) == ERRCODE_OPERATOR_INTERVENTION) {
        working_level = 0;
        ReThrowError(error);
    }
    FreeErrorData(error); /* the tick tries again, and health says so if it fails, too */
    return false;
}

void
advance_workflows()
{
    if (n_pending == 0 || !begin_workflow_work())
        return;
    if (IsolationUsesXactSnapshot()) /* it may not see what others have committed */
        n_pending = 0;
    CommandCounterIncrement();
    while (n_pending > 0) {
        pg_uuid_t id = pending[--n_pending];
        if (!advance_now(id))
            n_pending = 0;
    }
    end_workflow_work(true);
}

void
members_init()
{
    works_for_others = pushes_for_others;
    RegisterXactCallback(members_xact, nullptr);
    RegisterSubXactCallback(members_subxact, nullptr);
}

void
read_parents(const pg_uuid_t &id, Status &status)
{
    MemoryContext context = CurrentMemoryContext;
    Jsonb *found = nullptr;
    with_spi([&] {
        bool null;
        (void)execute_latest(parents, {UUIDPGetDatum(&id)});
        Datum value = cell(0, 1, &null);
        if (null)
            return;
        MemoryContext old = MemoryContextSwitchTo(context);
        found = DatumGetJsonbPCopy(value);
        MemoryContextSwitchTo(old);
    });
    if (found != nullptr)
        status.reported = merged(status.reported, found);
}

} // namespace ojs
