/*
 * workflow.cpp: ojs.create_workflow, ojs.workflow, ojs.cancel_workflow, and what sql/workflow.sql needs to have jobs
 * begin and members end. Whether the caller may do so is asked here, of the caller; the work is done by SQL as the
 * owner.
 */
#include "ojs/hot_set/hot_set.h"
#include "ojs/job/hooks.h"
#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/json.h"
#include "ojs/pg/settings.h"
#include "ojs/pg/uuid.h"
#include "ojs/push/capacity.h"
#include "ojs/push/unique.h"
#include "ojs/queue/access.h"
#include "ojs/queue/push_rules.h"
#include "ojs/queue/tenant.h"
#include "ojs/state/locate.h"
#include "ojs/state/members.h"
#include "ojs/store/spi.h"
#include "ojs/workflow/definition.h"

using namespace ojs;

namespace
{

constinit Statement create = {
    "select ojs_store.create_workflow($1, $2, $3)", {UUIDOID, JSONBOID, INT8ARRAYOID}, nullptr};
constinit Statement extend = {"select ojs_store.extend_workflow($1, $2, $3, $4, array[$5, $6, $7])",
                              {UUIDOID, JSONBOID, INT8ARRAYOID, INT4OID, INT4OID, INT4OID, INT4OID},
                              nullptr};
constinit Statement type_and_depth = {R"sql(
    with recursive up as (
        select w.type, w.parent, 1 as depth from ojs_store.workflow w where w.id = $1
        union all
        select up.type, w.parent, up.depth + 1 from up join ojs_store.workflow w on w.id = up.parent
    )
    select type, depth from up where parent is null
)sql",
                                      {UUIDOID},
                                      nullptr};
constinit Statement queues_of = {R"sql(
    select r.queues from ojs_store.workflow w join ojs_store.workflow r on r.id = w.root where w.id = $1
)sql",
                                 {UUIDOID},
                                 nullptr};
constinit Statement begun = {R"sql(
    select from ojs_store.workflow_open o where o.workflow = $1 and o.position >= $2
    union all
    select from ojs_store.workflow_end e where e.workflow = $1 and e.position >= $2
)sql",
                             {UUIDOID, INT4OID},
                             nullptr};
constinit Statement tell = {"select ojs_store.workflow_json($1)", {UUIDOID}, nullptr};
constinit Statement cancel = {"select ojs_store.cancel_workflow($1)", {UUIDOID}, nullptr};

[[noreturn]] void
raise_no_workflow(const pg_uuid_t &id)
{
    raise(Code::workflow_not_found,
          Details().add("resource_type", "workflow").add("resource_id", id).add("workflow_id", id),
          "Check the id; a workflow that has ended is removed after its retention.", "workflow %s does not exist",
          DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&id))));
}

const pg_uuid_t &
workflow_arg(FunctionCallInfo fcinfo)
{
    if (PG_ARGISNULL(0))
        raise_field(Code::invalid_payload, "id", "Give the id of a workflow.", "id must not be null");
    return *PG_GETARG_UUID_P(0);
}

constinit Statement lock_tables = {
    "lock table ojs_store.workflow, ojs_store.workflow_open in row exclusive mode", {}, nullptr};

/* At once what the call will take: who reads first and asks for more later can meet REINDEX in a deadlock. */
void
lock_workflows()
{
    with_spi([] { (void)execute(lock_tables); });
}

/* The caller must be allowed to use all queues that jobs of the workflow may go to. */
void
check_use(const pg_uuid_t &id, Right right)
{
    MemoryContext context = CurrentMemoryContext;
    ArrayType *queues = nullptr;
    with_spi([&] {
        bool null;
        if (execute_latest(queues_of, {UUIDPGetDatum(&id)}) == 0)
            return;
        MemoryContext old = MemoryContextSwitchTo(context);
        queues = DatumGetArrayTypePCopy(cell(0, 1, &null));
        MemoryContextSwitchTo(old);
    });
    if (queues == nullptr)
        raise_no_workflow(id);
    auto *at = reinterpret_cast<int64 *>(ARR_DATA_PTR(queues));
    int n = ArrayGetNItems(ARR_NDIM(queues), ARR_DIMS(queues));
    for (int i = 0; i < n; i++)
        if (is_foreign(at[i]))
            raise_no_workflow(id);
    for (int i = 0; i < n; i++)
        if (!may_use_queue(at[i], right))
            raise(Code::permission_denied, Details().add("workflow_id", id).add("reason", "producer_not_allowed"),
                  "Ask as one of the producers of all queues of the workflow, or as ojs_admin.",
                  "the workflow has jobs in a queue that is not for this role");
}

Datum
workflow_json(const pg_uuid_t &id)
{
    MemoryContext context = CurrentMemoryContext;
    Jsonb *answer = nullptr;
    with_spi([&] {
        bool null;
        (void)execute_latest(tell, {UUIDPGetDatum(&id)});
        Datum value = cell(0, 1, &null);
        MemoryContext old = MemoryContextSwitchTo(context);
        answer = DatumGetJsonbPCopy(value);
        MemoryContextSwitchTo(old);
    });
    return JsonbPGetDatum(answer);
}

Datum
queue_array(const Definition &definition)
{
    auto *ids = static_cast<Datum *>(palloc(sizeof(Datum) * std::max(definition.n_queues, 1)));
    for (int i = 0; i < definition.n_queues; i++)
        ids[i] = Int64GetDatum(definition.queues[i]);
    return PointerGetDatum(
        construct_array(ids, definition.n_queues, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}

Definition
check_more(const pg_uuid_t &id, const Jsonb *json)
{
    char *type = nullptr;
    int depth = 0;
    MemoryContext context = CurrentMemoryContext;
    with_spi([&] {
        bool null;
        if (execute_latest(type_and_depth, {UUIDPGetDatum(&id)}) == 0)
            return;
        type = MemoryContextStrdup(context, TextDatumGetCString(cell(0, 1, &null)));
        depth = DatumGetInt32(cell(0, 2, &null));
    });
    if (type == nullptr)
        raise_no_workflow(id);
    return check_extension(json, type, depth, now());
}

/* --- beginning jobs --- */

/* The jobs of one workflow that begin together, at places one after the other. */
struct Beginning {
    Tables &tables;
    pg_uuid_t workflow;
    pg_uuid_t root;
    int32 first;
    text *callback; /* or null */
    bool has_parents;
    TimestampTz at;
    Envelope *envelopes;
    int32 *positions;
    Uniqueness *keys; /* of those with a policy */
    int n;
    bool any_unique;
};

std::string_view
text_of_id(const pg_uuid_t &id)
{
    return DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&id)));
}

Jsonb *
empty_array()
{
    JsonbParseState *array = nullptr;
    pushJsonbValue(&array, WJB_BEGIN_ARRAY, nullptr);
    return JsonbValueToJsonb(pushJsonbValue(&array, WJB_END_ARRAY, nullptr));
}

Jsonb *
with_position(const Beginning &beginning, const Jsonb *options, int32 position)
{
    ObjectBuilder out;
    if (options != nullptr)
        each_member(root_of(options), [&out](std::string_view key, const JsonbValue &value) { out.add(key, value); });
    out.add("workflow_id", text_of_id(beginning.workflow));
    if (!same(beginning.root, beginning.workflow))
        out.add("workflow_root_id", text_of_id(beginning.root));
    if (beginning.callback != nullptr)
        out.add("workflow_callback", view(beginning.callback));
    else
        out.add("workflow_step", static_cast<int64>(position));
    if (!beginning.has_parents) /* else a claim says them */
        out.add("parent_results", empty_array());
    return out.finish();
}

/* A member that is over before it has begun: a hook dropped it, or another job was in its way. */
void
not_begun(Beginning &beginning, int32 position, const char *type, const char *message)
{
    MemberEnd end = {"failed", beginning.at, 0, std::nullopt, nullptr, server_error(type, message, 0, beginning.at)};
    store_end(beginning.tables, new_uuid(), beginning.workflow, position, true, end);
}

void
read_beginning(Beginning &beginning, const Jsonb *jobs)
{
    Hooks hooks = hooks_at(Point::enqueue);
    int size = static_cast<int>(JB_ROOT_COUNT(jobs));
    int32 position = beginning.first;

    beginning.envelopes = static_cast<Envelope *>(palloc(sizeof(Envelope) * size));
    beginning.positions = static_cast<int32 *>(palloc(sizeof(int32) * size));
    beginning.keys = static_cast<Uniqueness *>(palloc0(sizeof(Uniqueness) * size));
    each_element(root_of(jobs), [&](const JsonbValue &job) {
        Envelope envelope = empty_envelope();
        int32 at = position++;
        envelope.checked_before = true;
        envelope_from_json(jsonb_of(job), beginning.at, false, envelope);
        if (!admit_envelope(hooks, envelope, beginning.at)) {
            not_begun(beginning, at, "dropped", "an enqueue hook dropped the job");
            return;
        }
        if (envelope.unique_policy != nullptr) {
            beginning.keys[beginning.n] = uniqueness_of(envelope);
            beginning.any_unique = true;
        }
        envelope.options = with_position(beginning, envelope.options, at);
        envelope.flags |= job_in_workflow | (beginning.has_parents ? job_has_parents : 0);
        beginning.positions[beginning.n] = at;
        beginning.envelopes[beginning.n++] = envelope;
    });
}

/* In the order in which push_many takes them. */
bool *
lock_unique(Beginning &beginning)
{
    int n = 0;
    auto *keys = static_cast<Uniqueness *>(palloc(sizeof(Uniqueness) * beginning.n));
    auto *ids = static_cast<pg_uuid_t *>(palloc(sizeof(pg_uuid_t) * beginning.n));
    auto *of = static_cast<int *>(palloc(sizeof(int) * beginning.n));
    auto *were_free = static_cast<bool *>(palloc0(sizeof(bool) * beginning.n));
    auto *fresh = static_cast<bool *>(palloc0(sizeof(bool) * beginning.n));
    for (int i = 0; i < beginning.n; i++) {
        if (beginning.envelopes[i].unique_policy == nullptr)
            continue;
        keys[n] = beginning.keys[i];
        ids[n] = beginning.envelopes[i].id;
        of[n++] = i;
    }
    lock_keys(beginning.tables, keys, ids, n, false, were_free);
    beginning.at = now();
    hold_replaceable(beginning.tables, keys, were_free, n, beginning.at);
    for (int i = 0; i < n; i++)
        fresh[of[i]] = were_free[i];
    return fresh;
}

/* The rows of the open members come first: a job that replaces an earlier one of the same call ends a member. */
void
store_members(Beginning &beginning, int first, int n)
{
    store::Table &open = beginning.tables.get(store::Rel::workflow_open);
    auto *rows = static_cast<HeapTuple *>(palloc(sizeof(HeapTuple) * n));
    auto *pushed = static_cast<Pushed *>(palloc(sizeof(Pushed) * n));
    for (int i = 0; i < n; i++)
        rows[i] = open_member(beginning.tables, beginning.envelopes[first + i].id, beginning.workflow,
                              beginning.positions[first + i], true);
    store::insert_many(open, rows, n);
    enqueue(beginning.tables, beginning.envelopes + first, n, beginning.at, pushed);
    CommandCounterIncrement();
}

void
begin(Beginning &beginning)
{
    if (beginning.n == 0)
        return;
    begin_push();
    assign_ids(beginning.envelopes, beginning.n);
    if (!beginning.any_unique) {
        store_members(beginning, 0, beginning.n);
        return;
    }
    bool *fresh = lock_unique(beginning);
    hold_bounds(beginning.envelopes, beginning.n);
    for (int i = 0; i < beginning.n; i++) {
        Envelope &envelope = beginning.envelopes[i];
        Pushed existing;
        CHECK_FOR_INTERRUPTS();
        if (envelope.unique_policy == nullptr || fresh[i] ||
            admit(beginning.tables, envelope, beginning.keys[i], beginning.at, existing))
            store_members(beginning, i, 1);
        else
            not_begun(beginning, beginning.positions[i], "duplicate", "another job has its uniqueness key");
    }
}

/* For functions that SQL of ours calls, and nobody else. */
bool
any_null(FunctionCallInfo fcinfo, std::initializer_list<int> needed)
{
    return std::any_of(needed.begin(), needed.end(), [fcinfo](int n) { return PG_ARGISNULL(n); });
}

} // namespace

/* ojs.create_workflow(def jsonb) returns jsonb */
OJS_FUNCTION(ojs_create_workflow)
{
    store::begin_write("ojs.create_workflow()");
    ensure_hot_set();
    if (PG_ARGISNULL(0))
        raise_field(Code::invalid_workflow, "def", "Give a chain, a group or a batch.", "def must not be null");
    Jsonb *json = definition_of_caller(PG_GETARG_JSONB_P(0));
    Definition definition = check_definition(json, now());
    pg_uuid_t id = definition.has_id ? definition.id : new_uuid();
    store::end_write();
    bool first = begin_workflow_work();
    with_spi([&] { (void)execute(create, {UUIDPGetDatum(&id), JsonbPGetDatum(json), queue_array(definition)}); });
    end_workflow_work(first);
    advance_after_ends();
    return workflow_json(id);
}

/* ojs.workflow(id uuid) returns jsonb */
OJS_FUNCTION(ojs_workflow)
{
    const pg_uuid_t &id = workflow_arg(fcinfo);
    check_use(id, Right::read);
    return workflow_json(id);
}

/* ojs.cancel_workflow(id uuid) returns jsonb */
OJS_FUNCTION(ojs_cancel_workflow)
{
    store::begin_write("ojs.cancel_workflow()");
    ensure_hot_set();
    lock_workflows();
    const pg_uuid_t &id = workflow_arg(fcinfo);
    check_use(id, Right::cancel);
    store::end_write();
    bool first = begin_workflow_work();
    with_spi([&] { (void)execute(cancel, {UUIDPGetDatum(&id)}); });
    end_workflow_work(first);
    advance_after_ends();
    return workflow_json(id);
}

/* ojs.extend_workflow(id uuid, def jsonb) returns jsonb */
OJS_FUNCTION(ojs_extend_workflow)
{
    store::begin_write("ojs.extend_workflow()");
    ensure_hot_set();
    lock_workflows();
    const pg_uuid_t &id = workflow_arg(fcinfo);
    if (PG_ARGISNULL(1))
        raise_field(Code::invalid_workflow, "def", "Give the new steps or jobs.", "def must not be null");
    Jsonb *json = definition_of_caller(PG_GETARG_JSONB_P(1));
    check_use(id, Right::produce);
    Definition more = check_more(id, json);
    store::end_write();
    bool first = begin_workflow_work();
    with_spi([&] {
        (void)execute(extend, {UUIDPGetDatum(&id), JsonbPGetDatum(json), queue_array(more), Int32GetDatum(more.jobs),
                               Int32GetDatum(max_workflow_steps), Int32GetDatum(max_workflow_jobs),
                               Int32GetDatum(max_workflow_queues)});
    });
    end_workflow_work(first);
    advance_after_ends();
    return workflow_json(id);
}

/* ojs_store.begin_jobs(workflow uuid, root uuid, first int, jobs jsonb, callback text, has_parents boolean) returns
 * void */
OJS_FUNCTION(ojs_begin_jobs)
{
    enum { p_workflow, p_root, p_first, p_jobs, p_callback, p_has_parents };
    if (any_null(fcinfo, {p_workflow, p_root, p_first, p_jobs, p_has_parents}))
        PG_RETURN_NULL();
    store::begin_write("ojs.create_workflow()");
    ensure_hot_set();
    Tables tables;
    Beginning beginning = {tables,
                           *PG_GETARG_UUID_P(p_workflow),
                           *PG_GETARG_UUID_P(p_root),
                           PG_GETARG_INT32(p_first),
                           text_or_null(fcinfo, p_callback),
                           PG_GETARG_BOOL(p_has_parents),
                           now(),
                           nullptr,
                           nullptr,
                           nullptr,
                           0,
                           false};
    read_beginning(beginning, PG_GETARG_JSONB_P(p_jobs));
    begin(beginning);
    if (members_left(tables, beginning.workflow) != MembersLeft::some)
        workflow_due(tables, beginning.workflow, beginning.at);
    tables.close();
    store::end_write();
    PG_RETURN_VOID();
}

/* ojs_store.open_inner(id uuid, workflow uuid, position int) returns void */
OJS_FUNCTION(ojs_open_inner)
{
    store::begin_write("ojs.create_workflow()");
    Tables tables;
    store::insert(tables.get(store::Rel::workflow_open),
                  open_member(tables, *PG_GETARG_UUID_P(0), *PG_GETARG_UUID_P(1), PG_GETARG_INT32(2), false));
    tables.close();
    store::end_write();
    PG_RETURN_VOID();
}

/* ojs_store.end_member(id uuid, state text, error jsonb, ended_at timestamptz) returns void: an inner workflow, or what
 * was lost */
OJS_FUNCTION(ojs_end_member)
{
    if (any_null(fcinfo, {0, 1, 3}))
        PG_RETURN_NULL();
    store::begin_write("ojs_store.end_member()");
    Tables tables;
    MemberEnd end = {text_to_cstring(PG_GETARG_TEXT_PP(1)),
                     PG_GETARG_TIMESTAMPTZ(3),
                     0,
                     std::nullopt,
                     nullptr,
                     jsonb_or_null(fcinfo, 2)};
    member_ended(tables, *PG_GETARG_UUID_P(0), end);
    tables.close();
    store::end_write();
    PG_RETURN_VOID();
}

/* ojs_store.end_unbegun(workflow uuid, position int, error jsonb) returns void */
OJS_FUNCTION(ojs_end_unbegun)
{
    if (any_null(fcinfo, {0, 1}))
        PG_RETURN_NULL();
    store::begin_write("ojs_store.end_unbegun()");
    Tables tables;
    MemberEnd end = {"failed", now(), 0, std::nullopt, nullptr, jsonb_or_null(fcinfo, 2)};
    store_end(tables, new_uuid(), *PG_GETARG_UUID_P(0), PG_GETARG_INT32(1), true, end);
    tables.close();
    store::end_write();
    PG_RETURN_VOID();
}

/* ojs_store.members_left(workflow uuid) returns int: 0 none, 1 unsure, 2 some */
OJS_FUNCTION(ojs_members_left)
{
    store::begin_write("ojs_store.members_left()");
    Tables tables;
    MembersLeft left = members_left(tables, *PG_GETARG_UUID_P(0));
    tables.close();
    store::end_write();
    PG_RETURN_INT32(static_cast<int32>(left));
}

/* ojs_store.callbacks_begun(workflow uuid, members int) returns boolean */
OJS_FUNCTION(ojs_callbacks_begun)
{
    bool any = false;
    with_spi([&] { any = execute_latest(begun, {PG_GETARG_DATUM(0), PG_GETARG_DATUM(1)}) > 0; });
    PG_RETURN_BOOL(any);
}

/* ojs_store.cancel_unless_busy(job_id uuid) returns boolean: true if it waits no more; false if somebody has it at the
 * moment */
OJS_FUNCTION(ojs_cancel_unless_busy)
{
    store::begin_write("ojs.cancel_workflow()");
    ensure_hot_set();
    Tables tables;
    bool cancelled = cancel_unless_busy(tables, *PG_GETARG_UUID_P(0), now());
    tables.close();
    store::end_write();
    PG_RETURN_BOOL(cancelled);
}

/* ojs_store.new_uuid() returns uuid */
OJS_FUNCTION(ojs_new_uuid)
{
    auto *id = static_cast<pg_uuid_t *>(palloc(sizeof(pg_uuid_t)));
    *id = new_uuid();
    PG_RETURN_UUID_P(id);
}
