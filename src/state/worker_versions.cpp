/*
 * worker_versions.cpp: see worker_versions.h.
 */
#include "ojs/state/worker_versions.h"

#include "ojs/job/version.h"
#include "ojs/state/status.h"
#include "ojs/queue/tenant.h"
#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/session_cache.h"
#include "ojs/store/small_table.h"

namespace ojs
{

struct Handler {
    std::string_view type;
    VersionRange range;
};

struct WorkerVersions {
    std::string_view name;
    uint64 id;
    int n;
    Handler *handlers;
};

namespace
{

/* Whether any worker names versions; and those of the worker that was asked for last, whose name is empty where there
 * is none. Read anew when the table says that it changed. What all workers name is not kept: it has no bound. */
bool any;
constinit WorkerVersions last = {};
MemoryContext context; /* of what `last` points to */
SessionCache cache;

constexpr int col_info = 3;

/* Reads {"type", "versions"}. Returns false if it is none. */
bool
read_handler(const JsonbValue &json, Handler &handler)
{
    JsonbValue type;
    JsonbValue versions;
    handler.range.n = 0;
    if (!is_object(json) || !find_member(json.val.binary.data, "type", type) || type.type != jbvString)
        return false;
    handler.type = text_of(type);
    if (!find_member(json.val.binary.data, "versions", versions))
        return true;
    return versions.type == jbvString && read_range(text_of(versions), handler.range);
}

/* Of a row; returns false if it names none. */
bool
handlers_in(TupleTableSlot *slot, JsonbValue &handlers)
{
    slot_getsomeattrs(slot, col_info + 1);
    return !slot->tts_isnull[col_info] &&
           find_member(root_of(DatumGetJsonbP(slot->tts_values[col_info])), "handlers", handlers) && is_array(handlers);
}

void
look_for_any()
{
    JsonbValue handlers;
    any = false;
    last = {};
    if (context == nullptr)
        context = AllocSetContextCreate(TopMemoryContext, "ojs versions of a worker", ALLOCSET_SMALL_SIZES);
    MemoryContext work = AllocSetContextCreate(CurrentMemoryContext, "ojs workers", ALLOCSET_DEFAULT_SIZES);
    store::each_row(store::Rel::worker, [&](TupleTableSlot *slot) {
        MemoryContext caller = MemoryContextSwitchTo(work);
        any = handlers_in(slot, handlers);
        MemoryContextSwitchTo(caller);
        MemoryContextReset(work);
        return !any;
    });
    MemoryContextDelete(work);
}

void
keep_handlers(const Jsonb *handlers)
{
    last.id = hash_bytes_extended(reinterpret_cast<const unsigned char *>(VARDATA_ANY(handlers)),
                                  static_cast<int>(VARSIZE_ANY_EXHDR(handlers)), 1) |
              1; /* 0 stands for no reason */
    last.handlers = static_cast<Handler *>(palloc(sizeof(Handler) * std::max<size_t>(JB_ROOT_COUNT(handlers), 1)));
    each_element(root_of(handlers), [](const JsonbValue &json) {
        Handler &handler = last.handlers[last.n];
        if (read_handler(json, handler) && handler.range.n > 0)
            last.n++;
    });
}

void
read_worker(const text *worker)
{
    last = {};
    MemoryContextReset(context);
    store::Table table = store::open(store::Rel::worker, AccessShareLock);
    Relation index = index_open(store::index_oid(store::Idx::worker_pkey), AccessShareLock);
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    IndexScanDesc scan = index_begin(table.rel, index, snapshot, 1);
    ScanKeyData key;
    JsonbValue handlers;
    ScanKeyEntryInitialize(&key, 0, 1, BTEqualStrategyNumber, InvalidOid, C_COLLATION_OID, F_TEXTEQ,
                           PointerGetDatum(worker));
    index_rescan(scan, &key, 1, nullptr, 0);
    bool named = index_getnext_slot(scan, ForwardScanDirection, table.slot) && handlers_in(table.slot, handlers);
    MemoryContext caller = MemoryContextSwitchTo(context);
    if (named)
        keep_handlers(JsonbValueToJsonb(&handlers));
    std::string_view name = view(worker);
    last.name = {pnstrdup(name.data(), name.size()), name.size()};
    MemoryContextSwitchTo(caller);
    index_endscan(scan);
    UnregisterSnapshot(snapshot);
    index_close(index, AccessShareLock);
    store::close_and_unlock(table, AccessShareLock);
}

const WorkerVersions *
find_worker(const text *worker)
{
    cache.refresh(store::catalog_generation(store::Rel::worker), look_for_any);
    if (!any)
        return nullptr;
    worker = stored_worker(worker);
    if (last.name != view(worker))
        read_worker(worker);
    return last.n > 0 ? &last : nullptr;
}

} // namespace

bool
names_versions(const text *worker)
{
    return find_worker(worker) != nullptr;
}

const WorkerVersions *
versions_of_worker(const text *worker)
{
    const WorkerVersions *found = find_worker(worker);
    if (found == nullptr)
        return nullptr;
    auto *copy = static_cast<WorkerVersions *>(palloc(sizeof(WorkerVersions)));
    *copy = *found;
    copy->handlers = static_cast<Handler *>(palloc(sizeof(Handler) * static_cast<size_t>(found->n)));
    for (int i = 0; i < found->n; i++) {
        copy->handlers[i] = found->handlers[i];
        std::string_view type = found->handlers[i].type;
        copy->handlers[i].type = {pnstrdup(type.data(), type.size()), type.size()};
    }
    return copy;
}

bool
takes_job(Tables &tables, const WorkerVersions &versions, const ReadyRow &row)
{
    JobRow job;
    if (!try_read_job(tables, row.job_id, row.job_tid, job))
        return true; /* whoever takes the row sees whether there is a job */
    std::string_view type = view(job.type);
    for (int i = 0; i < versions.n; i++) {
        if (versions.handlers[i].type != type)
            continue;
        std::string_view version = version_in(job.options);
        return version.data() == nullptr || in_range(versions.handlers[i].range, version);
    }
    return true;
}

uint64
id_of(const WorkerVersions &versions)
{
    return versions.id;
}

void
check_handlers(const Jsonb *info)
{
    JsonbValue handlers;
    Handler handler;
    if (info == nullptr || !is_object(info) || !find_member(root_of(info), "handlers", handlers) || !is_array(handlers))
        return;
    each_element(handlers.val.binary.data, [&](const JsonbValue &json) {
        JsonbValue versions;
        if (is_object(json) && find_member(json.val.binary.data, "versions", versions) && !read_handler(json, handler))
            raise_field(Code::invalid_payload, "handlers",
                        "Give versions as \"*\", \"2.0\" or \">=1.0 <3.0\", with the type.",
                        "handlers must each have a type, and versions that are a range");
    });
}

} // namespace ojs

using namespace ojs;

/* ojs_store.check_handlers(info jsonb) returns void */
OJS_FUNCTION(ojs_check_handlers)
{
    check_handlers(PG_GETARG_JSONB_P(0));
    PG_RETURN_VOID();
}
