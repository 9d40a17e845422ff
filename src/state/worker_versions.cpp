/*
 * worker_versions.cpp: see worker_versions.h.
 */
#include "ojs/state/worker_versions.h"

#include "ojs/job/version.h"
#include "ojs/state/status.h"
#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/session_cache.h"
#include "ojs/store/store.h"

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

/* Workers that name versions, sorted; read anew when the table says that it changed. */
MemoryContext context;
WorkerVersions *workers;
int n_workers;
SessionCache cache;

constexpr int col_name = 0;
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

void
keep_worker(WorkerVersions &worker, std::string_view name, const Jsonb *handlers)
{
    worker = {{pstrdup(pnstrdup(name.data(), name.size())), name.size()}, 0, 0, nullptr};
    worker.id = hash_bytes_extended(reinterpret_cast<const unsigned char *>(VARDATA_ANY(handlers)),
                                    static_cast<int>(VARSIZE_ANY_EXHDR(handlers)), 1) |
                1; /* 0 stands for no reason */
    if (!is_array(handlers))
        return;
    worker.handlers = static_cast<Handler *>(palloc(sizeof(Handler) * std::max<size_t>(JB_ROOT_COUNT(handlers), 1)));
    each_element(root_of(handlers), [&](const JsonbValue &json) {
        Handler &handler = worker.handlers[worker.n];
        if (read_handler(json, handler) && handler.range.n > 0)
            worker.n++;
    });
}

void
load()
{
    if (context == nullptr)
        context = AllocSetContextCreate(TopMemoryContext, "ojs versions of workers", ALLOCSET_SMALL_SIZES);
    MemoryContextReset(context);
    n_workers = 0;
    workers = nullptr;

    store::Table table = store::open(store::Rel::worker, AccessShareLock);
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    TableScanDesc scan = table_beginscan(table.rel, snapshot, 0, nullptr);
    int room = 0;
    while (table_scan_getnextslot(scan, ForwardScanDirection, table.slot)) {
        JsonbValue handlers;
        slot_getsomeattrs(table.slot, col_info + 1);
        if (table.slot->tts_isnull[col_info] ||
            !find_member(root_of(DatumGetJsonbP(table.slot->tts_values[col_info])), "handlers", handlers))
            continue;
        MemoryContext old = MemoryContextSwitchTo(context);
        if (n_workers == room) {
            room = std::max(8, room * 2);
            Size size = sizeof(WorkerVersions) * static_cast<size_t>(room);
            workers = static_cast<WorkerVersions *>(workers == nullptr ? palloc(size) : repalloc(workers, size));
        }
        std::string_view name = view(DatumGetTextPP(table.slot->tts_values[col_name]));
        keep_worker(workers[n_workers++], name, JsonbValueToJsonb(&handlers));
        MemoryContextSwitchTo(old);
    }
    table_endscan(scan);
    UnregisterSnapshot(snapshot);
    store::close_and_unlock(table, AccessShareLock); /* a claim that goes on to wait holds no lock */
    std::sort(workers, workers + n_workers,
              [](const WorkerVersions &a, const WorkerVersions &b) { return a.name < b.name; });
}

} // namespace

namespace
{

const WorkerVersions *
find_worker(const text *worker)
{
    cache.refresh(store::catalog_generation(store::Rel::worker), load);
    if (n_workers == 0)
        return nullptr;
    const WorkerVersions *end = workers + n_workers;
    const WorkerVersions *found =
        std::lower_bound(workers, workers + n_workers, view(worker),
                         [](const WorkerVersions &a, std::string_view b) { return a.name < b; });
    return found != end && found->name == view(worker) && found->n > 0 ? found : nullptr;
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
