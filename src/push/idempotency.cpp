/*
 * idempotency.cpp: see idempotency.h.
 */
#include "ojs/push/idempotency.h"

#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/queue/access.h"
#include "ojs/queue/tenant.h"
#include "ojs/store/spi.h"
#include "ojs/store/store.h"

namespace ojs
{

namespace
{

constexpr int longest_key = 256; /* characters */
constexpr int64 kept_us = USECS_PER_DAY;

/* Columns of ojs_store.idempotency. */
enum { col_operation, col_key, col_request, col_answer, col_expires_at };

/* Waits for a transaction that inserts the same key; takes over one whose day is over. */
constinit Statement insert_key = {
    "insert into ojs_store.idempotency as i (operation, key, request, answer, expires_at)"
    " values ($1, $2, $3, null, $4) on conflict (operation, key) do update"
    " set request = excluded.request, answer = null, expires_at = $4 where i.expires_at <= $5",
    {TEXTOID, TEXTOID, BYTEAOID, TIMESTAMPTZOID, TIMESTAMPTZOID},
    nullptr};

constinit Statement store_answer = {
    "update ojs_store.idempotency set answer = $3 where operation = $1 and key = $2 and answer is null",
    {TEXTOID, TEXTOID, JSONBOID},
    nullptr};

constinit Statement delete_key = {
    "delete from ojs_store.idempotency where operation = $1 and key = $2 and answer is null",
    {TEXTOID, TEXTOID},
    nullptr};

constinit Statement delete_keys = {"delete from ojs_store.idempotency where ctid = any (array("
                                   "select ctid from ojs_store.idempotency where expires_at <= $1 order by expires_at "
                                   "limit $2 for update skip locked))",
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
        raise_field(Code::invalid_payload, field, "Give a hash of the key instead.", "%s is longer than %d characters",
                    field, longest_key);
}

/* Each role has keys of its own: an answer is for who asked. Functions that run as their owner do not change who that
 * is; a hook of another role does, and is given no answer of the caller's. */
Datum
own_operation(const RequestKey &key)
{
    Oid role = InSecurityRestrictedOperation() ? calling_role() : GetOuterUserId();
    std::string_view tenant = caller_tenant();
    return CStringGetTextDatum(psprintf("%s of %s%s%.*s", key.operation, GetUserNameFromId(role, false),
                                        tenant.empty() ? "" : " for ", static_cast<int>(tenant.size()), tenant.data()));
}

/* A key that was used before. */
struct Used {
    bool same; /* for the same request */
    Jsonb *answer;
};

/* By the primary key and not by a saved plan: one that was made while the table was small would read all of it for
 * ever. */
bool
find_key(Datum operation, Datum name, Datum request, TimestampTz at, Used &used)
{
    store::Table table = store::open(store::Rel::idempotency, RowExclusiveLock);
    Datum *values = table.slot->tts_values;
    ScanKeyData keys[2];
    store::Scan scan;
    store::Row seen;
    bool found = false;

    ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_TEXTEQ, operation);
    ScanKeyInit(&keys[1], 2, BTEqualStrategyNumber, F_TEXTEQ, name);
    store::begin(scan, table, store::Idx::idempotency_pkey, keys, 2, false);
    while (!found && (seen = store::next(scan)) != store::Row::none) {
        if (seen == store::Row::arriving)
            continue; /* the insert waits for its transaction */
        slot_getallattrs(table.slot);
        found = DatumGetTimestampTz(values[col_expires_at]) > at;
        used.same = DatumGetBool(DirectFunctionCall2(byteaeq, values[col_request], request));
        used.answer = table.slot->tts_isnull[col_answer] ? nullptr : DatumGetJsonbPCopy(values[col_answer]);
    }
    store::end(scan);
    store::close(table);
    return found;
}

} // namespace

Jsonb *
take_idempotency_key(const RequestKey &key)
{
    Used used = {};
    Datum operation = own_operation(key);
    Datum request = DirectFunctionCall1(sha256_bytea, PointerGetDatum(key.request));

    check_key(key.key);
    for (;;) { /* between the two looks the key may go; each has its own time, since it may have waited */
        uint64 taken = 0;
        CHECK_FOR_INTERRUPTS();
        TimestampTz at = now();
        if (find_key(operation, PointerGetDatum(key.key), request, at, used))
            break;
        with_spi([&] {
            taken = execute_latest(insert_key, {operation, PointerGetDatum(key.key), request,
                                                TimestampTzGetDatum(at + kept_us), TimestampTzGetDatum(at)});
        });
        if (taken > 0)
            return nullptr;
    }
    if (!used.same || used.answer == nullptr) /* no answer: it is this call's own hooks, or a function around it */
        raise(Code::invalid_state_transition,
              Details().add("field", "idempotency_key").add("reason", "idempotency_key_reused"),
              "Use a new key for a new request; repeat a request only as it was.",
              "idempotency_key was used for another request");
    return used.answer;
}

void
keep_answer(const RequestKey &key, const Jsonb *answer)
{
    Datum operation = own_operation(key);
    with_spi([&] {
        set_for_body("enable_seqscan", "off"); /* plans are saved when the table may still be small */
        execute_latest(store_answer, {operation, PointerGetDatum(key.key), JsonbPGetDatum(answer)});
    });
}

void
free_idempotency_key(const RequestKey &key)
{
    Datum operation = own_operation(key);
    with_spi([&] {
        set_for_body("enable_seqscan", "off");
        execute_latest(delete_key, {operation, PointerGetDatum(key.key)});
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

/* ojs_http.free_key(operation text, key text) returns void */
OJS_FUNCTION(ojs_free_idempotency_key)
{
    free_idempotency_key({text_to_cstring(PG_GETARG_TEXT_PP(0)), PG_GETARG_TEXT_PP(1), nullptr});
    PG_RETURN_VOID();
}
