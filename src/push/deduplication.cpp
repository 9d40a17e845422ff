/*
 * deduplication.cpp: deduplication keys: at most one push per queue and key until the key's time is over, whatever becomes of
 * the job (DDP-01 to DDP-06).
 */
#include "ojs/pg/args.h"
#include "ojs/pg/settings.h"
#include "ojs/store/spi.h"
#include "ojs/push/unique.h"

namespace ojs
{

namespace
{

/* Without a lock: most repeated pushes end here and write nothing. */
constinit Statement find_marker = {
    "select job_id from ojs_store.deduplication where queue = $1 and key = $2 and expires_at > $3",
    {INT8OID, TEXTOID, TIMESTAMPTZOID},
    nullptr};

/* Waits for a transaction that inserts the same key; takes over a marker whose time is over. */
constinit Statement insert_marker = {
    "insert into ojs_store.deduplication as d (queue, key, job_id, expires_at) values ($1, $2, $3, $4)"
    " on conflict (queue, key) do update set job_id = $3, expires_at = $4 where d.expires_at <= $5",
    {INT8OID, TEXTOID, UUIDOID, TIMESTAMPTZOID, TIMESTAMPTZOID},
    nullptr};

constinit Statement update_marker = {
    "update ojs_store.deduplication set job_id = $3 where queue = $1 and key = $2", {INT8OID, TEXTOID, UUIDOID}, nullptr};

constinit Statement delete_markers = {
    "delete from ojs_store.deduplication where ctid = any (array("
    "select ctid from ojs_store.deduplication where expires_at <= $1 order by expires_at limit $2 for update skip locked))",
    {TIMESTAMPTZOID, INT4OID},
    nullptr};

} // namespace

void
check_deduplication_key(std::string_view key)
{
    constexpr const char *field = "deduplication_key";
    constexpr size_t longest = 1024; /* bytes: an index entry must hold it */
    if (key.empty())
        raise_field(Code::invalid_payload, field, "Give a key, or none.", "%s must not be empty", field);
    if (key.size() > longest)
        raise_field(Code::invalid_payload, field, "Give a hash of the key instead.", "%s is longer than %d bytes", field,
                    static_cast<int>(longest));
}

int64
marker_ttl(std::optional<int64> ttl_ms)
{
    return ttl_ms.value_or(static_cast<int64>(settings.deduplication_ttl_s) * 1000);
}

Marker
take_marker(int64 queue, std::string_view key, const pg_uuid_t *job_id, int64 ttl_ms)
{
    Marker marker = {};
    check_deduplication_key(key);
    Datum key_text = PointerGetDatum(cstring_to_text_with_len(key.data(), static_cast<int>(key.size())));
    SpiArg job = job_id != nullptr ? SpiArg(UUIDPGetDatum(job_id)) : nullptr;

    with_spi([&] {
        /* Between the two looks the marker may go; then the key is free again. Each look has its own time: a wait for
         * another transaction may outlast a marker. */
        for (;;) {
            CHECK_FOR_INTERRUPTS();
            TimestampTz at = now();
            if (execute_latest(find_marker, {Int64GetDatum(queue), key_text, TimestampTzGetDatum(at)}) > 0) {
                bool is_null;
                Datum id = cell(0, 1, &is_null);
                marker.has_job = !is_null;
                if (marker.has_job)
                    marker.job_id = *DatumGetUUIDP(id);
                return;
            }
            marker.taken = execute_latest(insert_marker, {Int64GetDatum(queue), key_text, job,
                                                          TimestampTzGetDatum(at + ttl_ms * 1000),
                                                          TimestampTzGetDatum(at)}) > 0;
            if (marker.taken)
                return;
        }
    });
    return marker;
}

void
point_marker(int64 queue, std::string_view key, const pg_uuid_t &job_id)
{
    Datum key_text = PointerGetDatum(cstring_to_text_with_len(key.data(), static_cast<int>(key.size())));
    with_spi([&] { execute_latest(update_marker, {Int64GetDatum(queue), key_text, UUIDPGetDatum(&job_id)}); });
}

int
prune_markers(int limit, TimestampTz now)
{
    uint64 n = 0;
    with_spi([&] { n = execute(delete_markers, {TimestampTzGetDatum(now), Int32GetDatum(limit)}); });
    return static_cast<int>(n);
}

} // namespace ojs
