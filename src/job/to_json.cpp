/*
 * to_json.cpp: ojs.envelope(), from ojs.job to the OJS JSON form.
 */
#include "ojs/pg/guard.h"
#include "ojs/job/envelope.h"
#include "ojs/pg/json.h"

namespace ojs
{

namespace
{

/* How a column is shown. */
enum class Kind { uuid, int4, int8, string, json, instant, given_instant, interval, strings, boolean, extra };

struct Column {
    std::string_view name;
    Kind kind;
};

/* In the order of sql/types.sql. */
constexpr Column columns[claimed_columns] = {
    {"id", Kind::uuid},
    {"seq", Kind::int8},
    {"specversion", Kind::string},
    {"type", Kind::string},
    {"queue", Kind::string},
    {"state", Kind::string},
    {"args", Kind::json},
    {"meta", Kind::json},
    {"priority", Kind::int4},
    {"attempt", Kind::int4},
    {"max_attempts", Kind::int4},
    {"deliveries", Kind::int4},
    {"created_at", Kind::instant},
    {"enqueued_at", Kind::instant},
    {"scheduled_at", Kind::given_instant},
    {"expires_at", Kind::given_instant},
    {"started_at", Kind::instant},
    {"completed_at", Kind::instant},
    {"cancelled_at", Kind::instant},
    {"discarded_at", Kind::instant},
    {"next_attempt_at", Kind::instant},
    {"timeout", Kind::interval},
    {"retry", Kind::json},
    {"unique", Kind::json},
    {"schema", Kind::string},
    {"tags", Kind::strings},
    {"result", Kind::json},
    {"error", Kind::json},
    {"errors", Kind::json},
    {"worker", Kind::string},
    {"extra", Kind::extra},
    {"deduplicated", Kind::boolean},
    {"lease_id", Kind::string},
    {"lease_expires_at", Kind::instant},
};

constexpr int
column_number(std::string_view name)
{
    for (int i = 0; i < claimed_columns; i++)
        if (columns[i].name == name)
            return i;
    return -1;
}

constexpr std::string_view timeout_ms = "timeout_ms";
constexpr int args_column = column_number("args");
constexpr int meta_column = column_number("meta");
constexpr int extra_column = column_number("extra");
static_assert(columns[job_columns].name == "lease_id");

/* Whether an attribute has a column, so that `extra` has no say in it (ENV-25). */
bool
has_column(std::string_view name)
{
    return name == timeout_ms || (column_number(name) >= 0 && column_number(name) != extra_column);
}

void
add_extra(ObjectBuilder &out, const Jsonb *extra)
{
    if (is_object(extra))
        each_member(root_of(extra), [&out](std::string_view name, const JsonbValue &value) {
            if (!has_column(name))
                out.add(name, value);
        });
}

void
add_time(ObjectBuilder &out, std::string_view name, TimestampTz at, bool plain)
{
    TimeText buffer;
    std::string_view text = format_timestamp(at, plain, buffer);

    if (!text.empty())
        out.add(name, std::string_view(pnstrdup(text.data(), text.size()), text.size()));
}

void
add_strings(ObjectBuilder &out, std::string_view name, ArrayType *array)
{
    Datum *values;
    bool *nulls;
    int n;
    JsonbParseState *list = nullptr;

    deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &values, &nulls, &n);
    pushJsonbValue(&list, WJB_BEGIN_ARRAY, nullptr);
    for (int i = 0; i < n; i++) {
        if (nulls[i])
            continue;
        text *item = DatumGetTextPP(values[i]);
        JsonbValue value = json_text({VARDATA_ANY(item), static_cast<size_t>(VARSIZE_ANY_EXHDR(item))});
        pushJsonbValue(&list, WJB_ELEM, &value);
    }
    out.add(name, *pushJsonbValue(&list, WJB_END_ARRAY, nullptr));
}

void
add_column(ObjectBuilder &out, const Column &column, Datum value)
{
    switch (column.kind) {
    case Kind::uuid:
        out.add(column.name, std::string_view(DatumGetCString(DirectFunctionCall1(uuid_out, value))));
        break;
    case Kind::int4:
        out.add(column.name, static_cast<int64>(DatumGetInt32(value)));
        break;
    case Kind::int8:
        out.add(column.name, DatumGetInt64(value));
        break;
    case Kind::string: {
        text *string = DatumGetTextPP(value);
        out.add(column.name, std::string_view(VARDATA_ANY(string), VARSIZE_ANY_EXHDR(string)));
        break;
    }
    case Kind::json:
        out.add(column.name, DatumGetJsonbP(value));
        break;
    case Kind::instant:
    case Kind::given_instant:
        add_time(out, column.name, DatumGetTimestampTz(value), column.kind == Kind::given_instant);
        break;
    case Kind::interval: {
        int64 ms = interval_ms(DatumGetIntervalP(value));
        out.add(column.name, json_seconds(ms)).add(timeout_ms, ms);
        break;
    }
    case Kind::strings:
        add_strings(out, column.name, DatumGetArrayTypeP(value));
        break;
    case Kind::boolean:
        out.add(column.name, json_bool(DatumGetBool(value)));
        break;
    case Kind::extra:
        break;
    }
}

} // namespace

Jsonb *
envelope_json(const Datum *values, const bool *nulls, bool claimed)
{
    ObjectBuilder out;

    if (!nulls[extra_column])
        add_extra(out, DatumGetJsonbP(values[extra_column]));
    for (int i = 0; i < (claimed ? claimed_columns : job_columns); i++)
        if (!nulls[i])
            add_column(out, columns[i], values[i]);
    return out.finish();
}

Jsonb *
envelope_json(HeapTupleHeader row)
{
    TupleDesc desc = lookup_rowtype_tupdesc(HeapTupleHeaderGetTypeId(row), HeapTupleHeaderGetTypMod(row));
    Datum values[claimed_columns];
    bool nulls[claimed_columns];
    HeapTupleData tuple = {};
    bool claimed = desc->natts == claimed_columns;

    if (!claimed && desc->natts != job_columns)
        elog(ERROR, "a row of %d columns is no job", desc->natts);
    tuple.t_len = HeapTupleHeaderGetDatumLength(row);
    tuple.t_data = row;
    heap_deform_tuple(&tuple, desc, values, nulls);
    ReleaseTupleDesc(desc);
    return envelope_json(values, nulls, claimed);
}

bool
take_changes(const Jsonb *envelope, Datum *values, bool *nulls)
{
    JsonbValue args;
    JsonbValue meta;
    ObjectBuilder extra;

    if (!is_object(envelope) || !find_member(root_of(envelope), "args", args) || !is_array(args) ||
        !find_member(root_of(envelope), "meta", meta) || !is_object(meta))
        return false;
    each_member(root_of(envelope), [&extra](std::string_view name, const JsonbValue &value) {
        if (!has_column(name))
            extra.add(name, value);
    });
    Jsonb *rest = extra.finish();
    values[args_column] = JsonbPGetDatum(jsonb_of(args));
    values[meta_column] = JsonbPGetDatum(jsonb_of(meta));
    values[extra_column] = JsonbPGetDatum(rest);
    nulls[extra_column] = JB_ROOT_COUNT(rest) == 0;
    return true;
}

} // namespace ojs

OJS_FUNCTION(ojs_envelope)
{
    PG_RETURN_JSONB_P(ojs::envelope_json(PG_GETARG_HEAPTUPLEHEADER(0)));
}
