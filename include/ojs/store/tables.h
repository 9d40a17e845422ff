/*
 * tables.h: the tables that one call works on, each opened when it is first asked for. They live as long as this
 * struct's maker, even where they are first asked for inside SPI or a subtransaction.
 */
#pragma once

#include "ojs/store/store.h"

namespace ojs
{

struct Tables {
    store::Table tables[static_cast<int>(store::Rel::count)] = {};
    LOCKMODE mode;
    MemoryContext context = CurrentMemoryContext;
    ResourceOwner owner = CurrentResourceOwner;

    explicit Tables(LOCKMODE lock_mode = RowExclusiveLock) : mode(lock_mode) {}

    store::Table &get(store::Rel rel)
    {
        store::Table &table = tables[static_cast<int>(rel)];
        if (table.rel == nullptr) {
            store::Home home(context, owner);
            table = store::open(rel, mode);
            home.leave();
        }
        return table;
    }
    store::Table &job() { return get(store::Rel::job); }
    store::Table &job_history() { return get(store::Rel::job_history); }
    store::Table &finished() { return get(store::Rel::finished); }
    store::Table &ready() { return get(store::Rel::ready); }
    store::Table &lease() { return get(store::Rel::lease); }
    store::Table &delayed() { return get(store::Rel::delayed); }
    store::Table &limit_use() { return get(store::Rel::limit_use); }
    store::Table &checkpoint() { return get(store::Rel::checkpoint); }
    store::Table &progress() { return get(store::Rel::progress); }

    /* Locks stay until the transaction ends. */
    void close()
    {
        for (store::Table &table : tables)
            if (table.rel != nullptr)
                store::close(table);
    }
    /* For a call that has written nothing, before it waits. */
    void close_and_unlock()
    {
        for (store::Table &table : tables)
            if (table.rel != nullptr)
                store::close_and_unlock(table, mode);
    }
};
static_assert(std::is_trivially_destructible_v<Tables>);

} // namespace ojs
