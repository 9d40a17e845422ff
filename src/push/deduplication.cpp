/*
 * deduplication.cpp: deduplication keys: at most one push per queue and key until the key's time is over, whatever
 * becomes of the job (DDP-01 to DDP-06).
 */
#include "ojs/pg/args.h"
#include "ojs/pg/settings.h"
#include "ojs/store/spi.h"
#include "ojs/store/store.h"
#include "ojs/push/unique.h"

namespace ojs
{

namespace
{

constexpr int64 longest_insert_us = 10000; /* of one that need not wait for another transaction */

/* Columns of ojs_store.deduplication. */
enum { col_queue, col_key, col_job_id, col_expires_at };

/*
 * The job whose push has the key. Without a lock: most repeated pushes end here and write nothing. By the primary key
 * and not by a saved plan: one that was made while the table was small would read all of it for ever.
 */
bool
find_key(int64 queue, Datum key, TimestampTz at, pg_uuid_t &job_id)
{
    store::Table table = store::open(store::Rel::deduplication, RowExclusiveLock);
    ScanKeyData keys[2];
    store::Scan scan;
    store::Row seen;
    bool found = false;

    ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(queue));
    ScanKeyInit(&keys[1], 2, BTEqualStrategyNumber, F_TEXTEQ, key);
    store::begin(scan, table, store::Idx::deduplication_pkey, keys, 2, false);
    while (!found && (seen = store::next(scan)) != store::Row::none) {
        if (seen == store::Row::arriving)
            continue; /* the insert waits for its transaction */
        slot_getallattrs(table.slot);
        found = DatumGetTimestampTz(table.slot->tts_values[col_expires_at]) > at;
        job_id = *DatumGetUUIDP(table.slot->tts_values[col_job_id]);
    }
    store::end(scan);
    store::close(table);
    return found;
}

/* Waits for a transaction that inserts the same key; takes over a key whose time is over. */
constinit Statement insert_key = {
    "insert into ojs_store.deduplication as d (queue, key, job_id, expires_at) values ($1, $2, $3, $4)"
    " on conflict (queue, key) do update set job_id = $3, expires_at = $4 where d.expires_at <= $5",
    {INT8OID, TEXTOID, UUIDOID, TIMESTAMPTZOID, TIMESTAMPTZOID},
    nullptr};

constinit Statement update_key = {"update ojs_store.deduplication set job_id = $3 where queue = $1 and key = $2",
                                  {INT8OID, TEXTOID, UUIDOID},
                                  nullptr};

constinit Statement lengthen_key = {"update ojs_store.deduplication set expires_at = $3 where queue = $1 and key = $2",
                                    {INT8OID, TEXTOID, TIMESTAMPTZOID},
                                    nullptr};

constinit Statement delete_key = {
    "delete from ojs_store.deduplication where queue = $1 and key = $2", {INT8OID, TEXTOID}, nullptr};

constinit Statement delete_keys = {"delete from ojs_store.deduplication where ctid = any (array("
                                   "select ctid from ojs_store.deduplication where expires_at <= $1 order by "
                                   "expires_at limit $2 for update skip locked))",
                                   {TIMESTAMPTZOID, INT4OID},
                                   nullptr};

Datum
text_datum(std::string_view text)
{
    return PointerGetDatum(cstring_to_text_with_len(text.data(), static_cast<int>(text.size())));
}

/* A row of this call's own. Plans are saved when the table may still be small. */
void
change_own(Statement &statement, std::initializer_list<SpiArg> args)
{
    with_spi([&] {
        set_for_body("enable_seqscan", "off");
        (void)execute_latest(statement, args);
    });
}

} // namespace

void
check_deduplication_key(std::string_view key)
{
    constexpr const char *field = "deduplication_key";
    constexpr size_t longest = 1024; /* bytes: an index entry must hold it */
    if (key.empty())
        raise_field(Code::invalid_payload, field, "Give a key, or none.", "%s must not be empty", field);
    if (key.size() > longest)
        raise_field(Code::invalid_payload, field, "Give a hash of the key instead.", "%s is longer than %d bytes",
                    field, static_cast<int>(longest));
}

int64
deduplication_ttl(std::optional<int64> ttl_ms)
{
    return ttl_ms.value_or(static_cast<int64>(settings.deduplication_ttl_s) * 1000);
}

DeduplicationKey
take_deduplication_key(int64 queue, std::string_view key, const pg_uuid_t &job_id, int64 ttl_ms)
{
    DeduplicationKey deduplication = {};
    check_deduplication_key(key);
    Datum key_text = text_datum(key);

    /* Between the two looks the key may go; then it is free again. Each look has its own time: a wait for another
     * transaction may outlast a key. */
    for (;;) {
        CHECK_FOR_INTERRUPTS();
        TimestampTz at = now();
        if (find_key(queue, key_text, at, deduplication.job_id))
            return deduplication;
        with_spi([&] {
            deduplication.taken =
                execute_latest(insert_key, {Int64GetDatum(queue), key_text, UUIDPGetDatum(&job_id),
                                            TimestampTzGetDatum(at + ttl_ms * 1000), TimestampTzGetDatum(at)}) > 0;
        });
        if (!deduplication.taken)
            continue;
        TimestampTz taken_at = now();
        if (taken_at - at > longest_insert_us) /* it has waited: a key's time begins when it is taken */
            change_own(lengthen_key, {Int64GetDatum(queue), key_text, TimestampTzGetDatum(taken_at + ttl_ms * 1000)});
        return deduplication;
    }
}

void
point_deduplication_key(int64 queue, std::string_view key, const pg_uuid_t &job_id)
{
    change_own(update_key, {Int64GetDatum(queue), text_datum(key), UUIDPGetDatum(&job_id)});
}

void
free_deduplication_key(int64 queue, std::string_view key)
{
    change_own(delete_key, {Int64GetDatum(queue), text_datum(key)});
}

int
prune_deduplication_keys(int limit, TimestampTz now)
{
    uint64 n = 0;
    with_spi([&] { n = execute(delete_keys, {TimestampTzGetDatum(now), Int32GetDatum(limit)}); });
    return static_cast<int>(n);
}

} // namespace ojs
