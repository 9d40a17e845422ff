/*
 * args.cpp: array parameters.
 */
#include "ojs/pg/args.h"

namespace ojs
{

namespace
{

struct Elements {
    Datum *values;
    bool *nulls;
    int n;
};

Elements
elements(ArrayType *array, Oid type, int length, bool by_value, char align, const char *field)
{
    Elements e = {};
    if (ARR_NDIM(array) > 1)
        raise_field(Code::invalid_payload, field, "Give a one-dimensional array.", "%s must have one dimension", field);
    deconstruct_array(array, type, length, by_value, align, &e.values, &e.nulls, &e.n);
    return e;
}

} // namespace

void
require_worker(const text *worker, const char *hint)
{
    constexpr int longest = 255;

    if (worker == nullptr || VARSIZE_ANY_EXHDR(worker) == 0)
        raise_field(Code::invalid_payload, "worker", hint, "worker must not be empty");
    if (VARSIZE_ANY_EXHDR(worker) > longest)
        raise_field(Code::invalid_payload, "worker", hint, "worker must not be longer than %d bytes", longest);
}

Ids
ids_arg(FunctionCallInfo fcinfo, int n, const char *field)
{
    if (PG_ARGISNULL(n))
        raise_field(Code::invalid_payload, field, "Give an array of job ids.", "%s must not be null", field);
    Elements e = elements(PG_GETARG_ARRAYTYPE_P(n), UUIDOID, UUID_LEN, false, TYPALIGN_CHAR, field);
    Ids ids = {static_cast<const pg_uuid_t **>(palloc(sizeof(pg_uuid_t *) * std::max(e.n, 1))), e.n};
    for (int i = 0; i < e.n; i++) {
        if (e.nulls[i])
            raise_field(Code::invalid_payload, field, "Leave out null elements.", "%s must not hold nulls", field);
        ids.ids[i] = DatumGetUUIDP(e.values[i]);
    }
    return ids;
}

Bigints
bigints_arg(FunctionCallInfo fcinfo, int n)
{
    Elements e = elements(PG_GETARG_ARRAYTYPE_P(n), INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE, "ids");
    auto *values = static_cast<int64 *>(palloc(sizeof(int64) * std::max(e.n, 1)));
    for (int i = 0; i < e.n; i++)
        values[i] = DatumGetInt64(e.values[i]);
    return {values, e.n};
}

Texts
texts_arg(FunctionCallInfo fcinfo, int n, const char *field)
{
    if (PG_ARGISNULL(n))
        return {nullptr, 0};
    Elements e = elements(PG_GETARG_ARRAYTYPE_P(n), TEXTOID, -1, false, TYPALIGN_INT, field);
    Texts texts = {static_cast<text **>(palloc(sizeof(text *) * std::max(e.n, 1))), e.n};
    for (int i = 0; i < e.n; i++)
        texts.texts[i] = e.nulls[i] ? nullptr : DatumGetTextPP(e.values[i]);
    return texts;
}

Jsons
jsons_arg(FunctionCallInfo fcinfo, int n, const char *field)
{
    if (PG_ARGISNULL(n))
        return {nullptr, 0};
    Elements e = elements(PG_GETARG_ARRAYTYPE_P(n), JSONBOID, -1, false, TYPALIGN_INT, field);
    Jsons jsons = {static_cast<Jsonb **>(palloc(sizeof(Jsonb *) * std::max(e.n, 1))), e.n};
    for (int i = 0; i < e.n; i++)
        jsons.values[i] = e.nulls[i] ? nullptr : DatumGetJsonbP(e.values[i]);
    return jsons;
}

Datum
uuid_array(const pg_uuid_t *ids, int n)
{
    auto *values = static_cast<Datum *>(palloc(sizeof(Datum) * std::max(n, 1)));
    for (int i = 0; i < n; i++)
        values[i] = UUIDPGetDatum(&ids[i]);
    return PointerGetDatum(construct_array(values, n, UUIDOID, UUID_LEN, false, TYPALIGN_CHAR));
}

} // namespace ojs
