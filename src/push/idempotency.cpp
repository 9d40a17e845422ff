/*
 * idempotency.cpp: see idempotency.h.
 */
#include "ojs/push/idempotency.h"

#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/store/spi.h"

namespace ojs
{

namespace
{

constexpr int longest_key = 256; /* characters */
constexpr int64 kept_us = USECS_PER_DAY;

constinit Statement find_key = {
    "select request = sha256($3), answer from ojs_store.idempotency"
    " where operation = $1 and key = $2 and expires_at > $4",
    {TEXTOID, TEXTOID, BYTEAOID, TIMESTAMPTZOID},
    nullptr};

/* Waits for a transaction that inserts the same key; takes over one whose day is over. */
constinit Statement insert_key = {
    "insert into ojs_store.idempotency as i (operation, key, request, answer, expires_at)"
    " values ($1, $2, sha256($3), null, $4) on conflict (operation, key) do update"
    " set request = excluded.request, answer = null, expires_at = $4 where i.expires_at <= $5",
    {TEXTOID, TEXTOID, BYTEAOID, TIMESTAMPTZOID, TIMESTAMPTZOID},
    nullptr};

constinit Statement store_answer = {
    "update ojs_store.idempotency set answer = $3 where operation = $1 and key = $2", {TEXTOID, TEXTOID, JSONBOID}, nullptr};

constinit Statement delete_keys = {
    "delete from ojs_store.idempotency where ctid = any (array("
    "select ctid from ojs_store.idempotency where expires_at <= $1 order by expires_at limit $2 for update skip locked))",
    {TIMESTAMPTZOID, INT4OID},
    nullptr};

void
check_key(const text *key)
{
    constexpr const char *field = "idempotency_key";
    std::string_view text = view(key);
    if (text.empty())
        raise_field(Code::invalid_payload, field, "Give a key, or none.", "%s must not be empty", field);
    if (pg_mbstrlen_with_len(text.data(), static_cast<int>(text.size())) > longest_key)
        raise_field(Code::invalid_payload, field, "Give a hash of the key instead.", "%s is longer than %d characters", field,
                    longest_key);
}

} // namespace

Jsonb *
take_idempotency_key(const RequestKey &key)
{
    Jsonb *answer = nullptr;
    bool same = true;
    MemoryContext caller = CurrentMemoryContext;
    Datum operation = CStringGetTextDatum(key.operation);
    Datum name = PointerGetDatum(key.key);
    Datum request = PointerGetDatum(key.request);

    check_key(key.key);
    with_spi([&] {
        for (;;) { /* between the two looks the key may go; each has its own time, since it may have waited */
            CHECK_FOR_INTERRUPTS();
            TimestampTz at = now();
            if (execute_latest(find_key, {operation, name, request, TimestampTzGetDatum(at)}) > 0) {
                bool null;
                same = DatumGetBool(cell(0, 1, &null));
                Datum kept = cell(0, 2, &null);
                if (null) /* by this call's own hooks, or a function around it */
                    same = false;
                MemoryContext inner = MemoryContextSwitchTo(caller);
                answer = null ? nullptr : DatumGetJsonbPCopy(kept);
                MemoryContextSwitchTo(inner);
                return;
            }
            if (execute_latest(insert_key, {operation, name, request, TimestampTzGetDatum(at + kept_us),
                                            TimestampTzGetDatum(at)}) > 0)
                return;
        }
    });
    if (!same)
        raise(Code::invalid_state_transition, Details().add("field", "idempotency_key").add("reason", "idempotency_key_reused"),
              "Use a new key for a new request; repeat a request only as it was.",
              "idempotency_key was used for another request");
    return answer;
}

void
keep_answer(const RequestKey &key, const Jsonb *answer)
{
    with_spi([&] {
        execute_latest(store_answer, {CStringGetTextDatum(key.operation), PointerGetDatum(key.key), JsonbPGetDatum(answer)});
    });
}

int
prune_idempotency_keys(int limit, TimestampTz now)
{
    uint64 n = 0;
    with_spi([&] { n = execute(delete_keys, {TimestampTzGetDatum(now), Int32GetDatum(limit)}); });
    return static_cast<int>(n);
}

} // namespace ojs

using namespace ojs;

/* ojs_http.take_key(operation text, key text, request jsonb) returns jsonb */
OJS_FUNCTION(ojs_take_idempotency_key)
{
    RequestKey key = {text_to_cstring(PG_GETARG_TEXT_PP(0)), PG_GETARG_TEXT_PP(1), PG_GETARG_BYTEA_PP(2)};
    Jsonb *answer = take_idempotency_key(key);
    if (answer == nullptr)
        PG_RETURN_NULL();
    PG_RETURN_JSONB_P(answer);
}

/* ojs_http.keep_answer(operation text, key text, answer jsonb) returns void */
OJS_FUNCTION(ojs_keep_answer)
{
    keep_answer({text_to_cstring(PG_GETARG_TEXT_PP(0)), PG_GETARG_TEXT_PP(1), nullptr}, PG_GETARG_JSONB_P(2));
    PG_RETURN_VOID();
}
