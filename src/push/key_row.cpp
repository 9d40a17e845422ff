/*
 * key_row.cpp: see key_row.h.
 *
 * Equivalent SQL: insert into ojs_store.unique_key values (key, id, '{}', true) on conflict (fingerprint) where held do
 * nothing; where that inserted nothing, select … for update; then update … set job_id = id, past = ….
 */
#include "ojs/push/key_row.h"

#include "ojs/pg/args.h"
#include "ojs/pg/uuid.h"

namespace ojs
{

namespace
{

/* Columns of ojs_store.unique_key. */
enum { col_fingerprint, col_job_id, col_past, col_held, n_cols };

Datum
key_datum(const Fingerprint &key)
{
    auto *bytes = static_cast<bytea *>(palloc(VARHDRSZ + sizeof key.bytes));
    SET_VARSIZE(bytes, VARHDRSZ + sizeof key.bytes);
    memcpy(VARDATA(bytes), key.bytes, sizeof key.bytes);
    return PointerGetDatum(bytes);
}

/* `past`: the oldest first. */
HeapTuple
form_key(store::Table &table, const Fingerprint &key, const pg_uuid_t &id, const pg_uuid_t *past, int n)
{
    Datum values[n_cols] = {key_datum(key), UUIDPGetDatum(&id), uuid_array(past, n), BoolGetDatum(true)};
    bool nulls[n_cols] = {};
    return heap_form_tuple(RelationGetDescr(table.rel), values, nulls);
}

KeyJobs
key_jobs(TupleTableSlot *slot)
{
    slot_getallattrs(slot);
    Datum *past;
    int n;
    deconstruct_array(DatumGetArrayTypeP(slot->tts_values[col_past]), UUIDOID, UUID_LEN, false, TYPALIGN_CHAR, &past,
                      nullptr, &n);
    KeyJobs result = {static_cast<pg_uuid_t *>(palloc(sizeof(pg_uuid_t) * (n + 1))), n + 1};
    result.ids[0] = *DatumGetUUIDP(slot->tts_values[col_job_id]);
    for (int i = 0; i < n; i++)
        result.ids[n - i] = *DatumGetUUIDP(past[i]);
    return result;
}

void
begin_key(store::Scan &scan, store::Table &table, ScanKey scan_key, const Fingerprint &key)
{
    ScanKeyInit(scan_key, 1, BTEqualStrategyNumber, F_BYTEAEQ, key_datum(key));
    store::begin(scan, table, store::Idx::unique_key_held, scan_key, 1, false);
    /* The newest version of a row that changes often lies last. */
    scan.direction = BackwardScanDirection;
}

} // namespace

KeyJobs
read_key(store::Table &table, const Fingerprint &key, ItemPointer tid, bool *arriving)
{
    ScanKeyData scan_key;
    store::Scan scan;
    store::Row seen;
    *arriving = false;
    begin_key(scan, table, &scan_key, key);
    while ((seen = store::next(scan)) == store::Row::arriving)
        *arriving = true;
    *tid = scan.tid;
    KeyJobs result = seen != store::Row::none ? key_jobs(table.slot) : KeyJobs{nullptr, 0};
    store::end(scan);
    return result;
}

KeyJobs
read_locked(store::Table &table, const Fingerprint &key, ItemPointer tid)
{
    bool arriving;
    KeyJobs jobs = read_key(table, key, tid, &arriving);
    if (jobs.n == 0)
        elog(ERROR, "a locked uniqueness key has gone");
    return jobs;
}

bool
lock_key(store::Table &table, const Fingerprint &key, const pg_uuid_t &id, bool likely_free)
{
    for (bool look = !likely_free;; look = true) {
        store::Row seen = store::Row::none;
        bool locked = false;
        CHECK_FOR_INTERRUPTS();
        if (look) {
            ScanKeyData scan_key;
            store::Scan scan;
            begin_key(scan, table, &scan_key, key);
            seen = store::next(scan);
            store::end(scan); /* who waits keeps no page of the index */
            if (seen == store::Row::arriving)
                store::wait_for(scan);
            else if (seen != store::Row::none)
                locked = store::lock(table, &scan.tid, true) == store::Outcome::ok;
        }
        if (locked)
            return false;
        if (seen == store::Row::none &&
            store::insert_unless_there(table, store::Idx::unique_key_held, form_key(table, key, id, nullptr, 0))) {
            CommandCounterIncrement();
            return true;
        }
    }
}

void
replace_key(store::Table &table, const Fingerprint &key, ItemPointer tid, const pg_uuid_t *ids, int n)
{
    store::replace_keyed(table, store::Idx::unique_key_held, tid, form_key(table, key, ids[n - 1], ids, n - 1));
}

} // namespace ojs
