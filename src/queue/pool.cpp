/*
 * pool.cpp: see pool.h.
 */
#include "ojs/queue/pool.h"

#include "ojs/pg/args.h"
#include "ojs/pg/session_cache.h"
#include "ojs/store/store.h"

namespace ojs
{

namespace
{

/* The first columns of ojs_store.pool. */
enum { col_name, col_queues, col_weights, col_concurrency, n_columns };

MemoryContext pools_context;
Pool *pools;
int n_pools;
SessionCache pools_cache;

Datum *
elements_of(Datum array, Oid type, int16 length, bool by_value, int *n)
{
    Datum *elements;
    bool *nulls;
    deconstruct_array(DatumGetArrayTypePCopy(array), type, length, by_value, TYPALIGN_INT, &elements, &nulls, n);
    return elements;
}

Pool
read_pool(const Datum *values, const bool *nulls)
{
    Pool pool = {view(DatumGetTextPCopy(values[col_name])), nullptr, 0, nullptr,
                 nulls[col_concurrency] ? -1 : DatumGetInt32(values[col_concurrency])};
    Datum *names = elements_of(values[col_queues], TEXTOID, -1, false, &pool.n);
    pool.queues = static_cast<std::string_view *>(palloc(sizeof(std::string_view) * std::max(pool.n, 1)));
    std::transform(names, names + pool.n, pool.queues, [](Datum name) { return view(DatumGetTextPP(name)); });
    if (nulls[col_weights])
        return pool;
    int n;
    Datum *weights = elements_of(values[col_weights], INT4OID, sizeof(int32), true, &n);
    pool.weights = static_cast<int32 *>(palloc(sizeof(int32) * std::max(pool.n, 1)));
    for (int i = 0; i < pool.n; i++)
        pool.weights[i] = i < n ? std::max(DatumGetInt32(weights[i]), 1) : 1;
    return pool;
}

void
load_pools()
{
    if (pools_context == nullptr)
        pools_context = AllocSetContextCreate(TopMemoryContext, "ojs pools", ALLOCSET_SMALL_SIZES);
    MemoryContextReset(pools_context);
    n_pools = 0;
    int room = 8;
    pools = static_cast<Pool *>(MemoryContextAlloc(pools_context, sizeof(Pool) * room));

    store::Table table = store::open(store::Rel::pool, AccessShareLock);
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    TableScanDesc scan = table_beginscan(table.rel, snapshot, 0, nullptr);
    while (table_scan_getnextslot(scan, ForwardScanDirection, table.slot)) {
        slot_getsomeattrs(table.slot, n_columns);
        if (n_pools == room)
            pools = static_cast<Pool *>(repalloc(pools, sizeof(Pool) * (room *= 2)));
        MemoryContext old = MemoryContextSwitchTo(pools_context);
        pools[n_pools++] = read_pool(table.slot->tts_values, table.slot->tts_isnull);
        MemoryContextSwitchTo(old);
    }
    table_endscan(scan);
    UnregisterSnapshot(snapshot);
    store::close_and_unlock(table, AccessShareLock);
}

} // namespace

const Pool &
find_pool(std::string_view name)
{
    pools_cache.refresh(store::catalog_generation(store::Rel::pool), load_pools);
    const Pool *pool = std::find_if(pools, pools + n_pools, [name](const Pool &one) { return one.name == name; });
    if (pool == pools + n_pools) {
        const char *shown = pnstrdup(name.data(), pg_mbcliplen(name.data(), static_cast<int>(name.size()), 64));
        raise(Code::not_found, Details().add("resource_type", "pool").add("resource_id", shown),
              "Make it with ojs.set_pool(name, config), or look at the view ojs.pools.", "pool \"%s\" does not exist",
              shown);
    }
    return *pool;
}

} // namespace ojs
