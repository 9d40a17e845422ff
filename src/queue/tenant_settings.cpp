/*
 * tenant_settings.cpp: see tenant_settings.h. The rows are checked where they are written (sql/tenants.sql).
 */
#include "ojs/queue/tenant_settings.h"

#include "ojs/pg/args.h"
#include "ojs/pg/session_cache.h"
#include "ojs/store/store.h"

namespace ojs
{

namespace
{

enum { col_tenant, col_config, n_columns };

MemoryContext settings_context;
HTAB *by_tenant; /* TenantSettings */
SessionCache settings_cache;

/* The queues of all tenants whose pushes are bounded. */
struct Part {
    char tenant[max_tenant + 1];
    int64 queue;
};
MemoryContext parts_context;
Part *parts; /* in the order of the tenants */
int64 *part_ids;
int n_parts;
SessionCache parts_cache;

int64
number_in(const Jsonb *config, const char *name)
{
    JsonbValue value;
    int64 n;
    return find_member(root_of(config), name, value) && number_of(value, 0, n) ? n : -1;
}

TenantSettings
read_settings(std::string_view tenant, const Jsonb *config)
{
    TenantSettings result = {};
    JsonbValue rate;
    memcpy(result.tenant, tenant.data(), std::min(tenant.size(), max_tenant));
    result.max_queue_depth = number_in(config, "max_queue_depth");
    result.max_scheduled = number_in(config, "max_scheduled");
    if (find_member(root_of(config), "max_enqueue_rate", rate) && is_object(rate))
        result.enqueue_rate = read_limit(rate.val.binary.data).rate;
    result.max_concurrency = static_cast<int32>(number_in(config, "max_concurrency"));
    result.weight = static_cast<int32>(std::max<int64>(number_in(config, "fairness_weight"), 1));
    return result;
}

HTAB *
new_table()
{
    HASHCTL control = {};
    control.keysize = max_tenant + 1;
    control.entrysize = sizeof(TenantSettings);
    control.hcxt = settings_context;
    return hash_create("ojs tenant settings", 16, &control, HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
}

void
load_settings()
{
    if (settings_context == nullptr)
        settings_context = AllocSetContextCreate(TopMemoryContext, "ojs tenant settings", ALLOCSET_SMALL_SIZES);
    MemoryContextReset(settings_context);
    by_tenant = nullptr;
    by_tenant = new_table();
    store::Table table = store::open(store::Rel::tenant, AccessShareLock);
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    TableScanDesc scan = table_beginscan(table.rel, snapshot, 0, nullptr);
    while (table_scan_getnextslot(scan, ForwardScanDirection, table.slot)) {
        slot_getsomeattrs(table.slot, n_columns);
        TenantSettings read = read_settings(view(DatumGetTextPP(table.slot->tts_values[col_tenant])),
                                            DatumGetJsonbP(table.slot->tts_values[col_config]));
        *static_cast<TenantSettings *>(hash_search(by_tenant, read.tenant, HASH_ENTER, nullptr)) = read;
    }
    table_endscan(scan);
    UnregisterSnapshot(snapshot);
    store::close_and_unlock(table, AccessShareLock);
}

void
add_part(std::string_view tenant, int64 queue, int &room)
{
    if (n_parts == room)
        parts = static_cast<Part *>(repalloc_huge(parts, sizeof(Part) * (room *= 2)));
    Part &part = parts[n_parts++];
    part = {};
    memcpy(part.tenant, tenant.data(), tenant.size());
    part.queue = queue;
}

void
load_parts()
{
    enum { col_id, col_name };
    int room = 64;
    if (parts_context == nullptr)
        parts_context = AllocSetContextCreate(TopMemoryContext, "ojs queues of tenants", ALLOCSET_SMALL_SIZES);
    MemoryContextReset(parts_context);
    n_parts = 0;
    parts = static_cast<Part *>(MemoryContextAlloc(parts_context, sizeof(Part) * room));
    store::Table table = store::open(store::Rel::queue, AccessShareLock);
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    TableScanDesc scan = table_beginscan(table.rel, snapshot, 0, nullptr);
    while (table_scan_getnextslot(scan, ForwardScanDirection, table.slot)) {
        slot_getsomeattrs(table.slot, col_name + 1);
        std::string_view tenant = tenant_in(view(DatumGetTextPP(table.slot->tts_values[col_name])));
        const TenantSettings *set = tenant.empty() || tenant.size() > max_tenant ? nullptr : settings_of_tenant(tenant);
        if (set != nullptr && set->bounds_pushes())
            add_part(tenant, DatumGetInt64(table.slot->tts_values[col_id]), room);
    }
    table_endscan(scan);
    UnregisterSnapshot(snapshot);
    store::close_and_unlock(table, AccessShareLock);

    std::sort(parts, parts + n_parts, [](const Part &a, const Part &b) {
        int order = strcmp(a.tenant, b.tenant);
        return order != 0 ? order < 0 : a.queue < b.queue;
    });
    /* A queue that two sessions have made at once is there twice (sql/tables.sql). */
    n_parts = static_cast<int>(std::unique(parts, parts + n_parts,
                                           [](const Part &a, const Part &b) {
                                               return a.queue == b.queue && strcmp(a.tenant, b.tenant) == 0;
                                           }) -
                               parts);
    part_ids = static_cast<int64 *>(MemoryContextAllocHuge(parts_context, sizeof(int64) * std::max(n_parts, 1)));
    std::transform(parts, parts + n_parts, part_ids, [](const Part &part) { return part.queue; });
}

} // namespace

uint64
tenant_settings_generation()
{
    return store::catalog_generation(store::Rel::tenant);
}

const TenantSettings *
settings_of_tenant(std::string_view tenant)
{
    char key[max_tenant + 1] = {};
    if (tenant.empty() || tenant.size() > max_tenant)
        return nullptr;
    memcpy(key, tenant.data(), tenant.size());
    settings_cache.refresh(tenant_settings_generation(), load_settings);
    return static_cast<const TenantSettings *>(hash_search(by_tenant, key, HASH_FIND, nullptr));
}

TenantQueues
queues_of_tenant(std::string_view tenant)
{
    parts_cache.refresh(store::catalog_generation(store::Rel::queue) + tenant_settings_generation(), load_parts);
    const Part *end = parts + n_parts;
    const Part *first = std::partition_point(static_cast<const Part *>(parts), end,
                                             [tenant](const Part &one) { return one.tenant < tenant; });
    const Part *last = std::partition_point(first, end, [tenant](const Part &one) { return one.tenant == tenant; });
    return {part_ids + (first - parts), static_cast<int>(last - first)};
}

const char *
held_key(std::string_view tenant)
{
    return psprintf("+active@%.*s", static_cast<int>(tenant.size()), tenant.data());
}

const char *
pushes_key(std::string_view tenant)
{
    return psprintf("+push@%.*s", static_cast<int>(tenant.size()), tenant.data());
}

} // namespace ojs
