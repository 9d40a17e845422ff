/*
 * args.h: reading the parameters of SQL functions.
 */
#pragma once

#include "ojs/pg/error.h"

namespace ojs
{

/* A text parameter, or null. */
inline text *
text_or_null(FunctionCallInfo fcinfo, int n)
{
    return PG_ARGISNULL(n) ? nullptr : PG_GETARG_TEXT_PP(n);
}

inline std::string_view
view(const text *t)
{
    return {VARDATA_ANY(t), static_cast<size_t>(VARSIZE_ANY_EXHDR(t))};
}

inline Jsonb *
jsonb_or_null(FunctionCallInfo fcinfo, int n)
{
    return PG_ARGISNULL(n) ? nullptr : PG_GETARG_JSONB_P(n);
}

inline Interval *
interval_or_null(FunctionCallInfo fcinfo, int n)
{
    return PG_ARGISNULL(n) ? nullptr : PG_GETARG_INTERVAL_P(n);
}

/* A job's id, which every call about one job needs. */
inline const pg_uuid_t &
job_id_arg(FunctionCallInfo fcinfo, int n)
{
    if (PG_ARGISNULL(n))
        raise_field(Code::invalid_payload, "job_id", "Give the id of a job.", "job_id must not be null");
    return *PG_GETARG_UUID_P(n);
}

/* A worker's name. It is the key of a row, among other things. */
void require_worker(const text *worker, const char *hint);

/* One-dimensional arrays without holes; elements stay where the array has them. */
struct Ids {
    const pg_uuid_t **ids;
    int n;
};
Ids ids_arg(FunctionCallInfo fcinfo, int n, const char *field);
/* For functions of ours that SQL of ours calls: an array of bigint. */
struct Bigints {
    int64 *values;
    int n;
};
Bigints bigints_arg(FunctionCallInfo fcinfo, int n);
struct Texts {
    text **texts; /* null where the element is */
    int n;
};
Texts texts_arg(FunctionCallInfo fcinfo, int n, const char *field);
struct Jsons {
    Jsonb **values; /* null where the element is */
    int n;
};
Jsons jsons_arg(FunctionCallInfo fcinfo, int n, const char *field);

Datum uuid_array(const pg_uuid_t *ids, int n);

} // namespace ojs
