/*
 * pool.cpp: see pool.h.
 */
#include "ojs/queue/pool.h"

#include "ojs/pg/args.h"
#include "ojs/store/small_table.h"

namespace ojs
{

namespace
{

/* The first columns of ojs_store.pool. */
enum { col_name, col_queues, col_weights, col_concurrency, n_columns };

store::SessionRows<Pool> pools;

Datum *
elements_of(Datum array, Oid type, int16 length, bool by_value, int *n)
{
    Datum *elements;
    bool *nulls;
    deconstruct_array(DatumGetArrayTypePCopy(array), type, length, by_value, TYPALIGN_INT, &elements, &nulls, n);
    return elements;
}

bool
keep_pool(const Datum *values, const bool *nulls, Pool &pool)
{
    pool = {view(DatumGetTextPCopy(values[col_name])), nullptr, 0, nullptr,
            nulls[col_concurrency] ? -1 : DatumGetInt32(values[col_concurrency])};
    Datum *names = elements_of(values[col_queues], TEXTOID, -1, false, &pool.n);
    pool.queues = static_cast<std::string_view *>(palloc(sizeof(std::string_view) * std::max(pool.n, 1)));
    std::transform(names, names + pool.n, pool.queues, [](Datum name) { return view(DatumGetTextPP(name)); });
    if (nulls[col_weights])
        return true;
    int n;
    Datum *weights = elements_of(values[col_weights], INT4OID, sizeof(int32), true, &n);
    pool.weights = static_cast<int32 *>(palloc(sizeof(int32) * std::max(pool.n, 1)));
    for (int i = 0; i < pool.n; i++)
        pool.weights[i] = i < n ? std::max(DatumGetInt32(weights[i]), 1) : 1;
    return true;
}

} // namespace

const Pool &
find_pool(std::string_view name)
{
    pools.refresh(store::Rel::pool, n_columns, keep_pool);
    const Pool *pool = std::find_if(pools.begin(), pools.end(), [name](const Pool &one) { return one.name == name; });
    if (pool == pools.end()) {
        const char *shown = pnstrdup(name.data(), pg_mbcliplen(name.data(), static_cast<int>(name.size()), 64));
        raise(Code::not_found, Details().add("resource_type", "pool").add("resource_id", shown),
              "Make it with ojs.set_pool(name, config), or look at the view ojs.pools.", "pool \"%s\" does not exist",
              shown);
    }
    return *pool;
}

} // namespace ojs
