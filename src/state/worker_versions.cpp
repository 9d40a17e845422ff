/*
 * worker_versions.cpp: see worker_versions.h.
 */
#include "ojs/state/worker_versions.h"

#include "ojs/job/version.h"
#include "ojs/state/status.h"
#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/session_cache.h"
#include "ojs/store/spi.h"

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

constinit Statement read_handlers = {R"sql(
    select w.name, w.info -> 'handlers' from ojs_store.worker w
    where jsonb_path_exists(w.info, '$.handlers[*].versions ? (@ != "*")') order by w.name
)sql",
                                     {},
                                     nullptr};

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
    with_spi([] {
        auto n = static_cast<int>(execute_latest(read_handlers));
        MemoryContext old = MemoryContextSwitchTo(context);
        workers = static_cast<WorkerVersions *>(palloc(sizeof(WorkerVersions) * static_cast<size_t>(std::max(n, 1))));
        for (int row = 0; row < n; row++) {
            bool null;
            std::string_view name = view(DatumGetTextPP(cell(static_cast<uint64>(row), 1, &null)));
            keep_worker(workers[row], name, DatumGetJsonbPCopy(cell(static_cast<uint64>(row), 2, &null)));
        }
        MemoryContextSwitchTo(old);
        n_workers = n;
    });
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
