/*
 * key_row.h: the row of ojs_store.unique_key that says which jobs have a fingerprint.
 */
#pragma once

#include "ojs/job/canonical.h"
#include "ojs/store/tables.h"

namespace ojs
{

/* The jobs that a key's row names, the one that was created last first. */
struct KeyJobs {
    pg_uuid_t *ids;
    int n;
};

/*
 * The jobs of the key's committed row, or of our own; none where there is no such row. `arriving` says that another
 * transaction is about to make one. Beside a committed row that only means that it tries.
 */
KeyJobs read_key(store::Table &table, const Fingerprint &key, ItemPointer tid, bool *arriving);
KeyJobs read_locked(store::Table &table, const Fingerprint &key, ItemPointer tid);

/* Returns true if the key was free, and this transaction has it now; false if it has a row, which is now locked. */
bool lock_key(store::Table &table, const Fingerprint &key, const pg_uuid_t &id, bool likely_free);

/* Has the locked row at `tid` name these jobs, the oldest first. */
void replace_key(store::Table &table, const Fingerprint &key, ItemPointer tid, const pg_uuid_t *ids, int n);

} // namespace ojs
