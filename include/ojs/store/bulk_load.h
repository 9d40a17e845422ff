/*
 * bulk_load.h: putting many rows into a table of the hot set, a thousand at a time.
 */
#pragma once

#include "ojs/store/rows.h"

namespace ojs
{

constexpr int sink_batch = 1000;

struct Sink {
    store::Table table;
    bool bulk; /* ours alone and empty: its indexes are made at the end */
    int n;
    HeapTuple tuples[sink_batch];
    TupleTableSlot *slots[sink_batch];
    BulkInsertState bulk_state;
    MemoryContext home;    /* of everything else: rows come while the executor is in a context of its own */
    MemoryContext context; /* of the tuples */
};
static_assert(std::is_trivially_destructible_v<Sink>);

/* With `may_be_bulk`, a table that is empty and used by nobody is taken for this transaction alone. */
Sink *open_sink(store::Rel rel, bool may_be_bulk);
void flush(Sink &sink);
/* Returns true if the indexes are still to be made. */
bool close_sink(Sink &sink);

template <typename Row>
void
put(Sink &sink, const Row &row)
{
    MemoryContext old = MemoryContextSwitchTo(sink.context);
    sink.tuples[sink.n++] = form(sink.table.rel, row);
    MemoryContextSwitchTo(old);
    if (sink.n == sink_batch)
        flush(sink);
}

} // namespace ojs
