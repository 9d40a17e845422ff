/*
 * request_values.cpp: times and durations of a request, read as a push reads them; how much there is in its body, and
 * what of it jsonb cannot hold.
 */
#include "ojs/job/attributes.h"
#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/json.h"
#include "ojs/pg/json_text.h"
#include "ojs/pg/settings.h"

using namespace ojs;

/* ojs_http.time_value(given text, field text) returns timestamptz */
OJS_FUNCTION(ojs_time_value)
{
    const char *field = text_to_cstring(PG_GETARG_TEXT_PP(1));
    PG_RETURN_TIMESTAMPTZ(parse_timestamp(view(PG_GETARG_TEXT_PP(0)), now(), field));
}

/* ojs_http.duration_value(given jsonb, field text) returns interval: a number of seconds, or an ISO 8601 duration */
OJS_FUNCTION(ojs_duration_value)
{
    Jsonb *given = PG_GETARG_JSONB_P(0);
    const char *field = text_to_cstring(PG_GETARG_TEXT_PP(1));
    if (!JB_ROOT_IS_SCALAR(given))
        raise_field(Code::invalid_payload, field, "Give an ISO 8601 duration, such as PT30S.",
                    "%s must be a number of seconds or an ISO 8601 duration", field);
    const JsonbValue *value = getIthJsonbValueFromContainer(&given->root, 0);
    PG_RETURN_INTERVAL_P(interval_of(calendar_value(*value, field, field)));
}

namespace
{

Details
details_of(const JsonFault &fault)
{
    Details details;
    details.add("reason", "malformed"); /* */
    if (*fault.field != '\0')
        details.add("field", fault.field);
    if (fault.found != nullptr)
        details.add("found", fault.found);
    return details;
}

} // namespace

/*
 * ojs_http.values_in(given text) returns bigint: how many values a JSON text holds, at most, without parsing it: a
 * parsed value takes up to 400 bytes, whatever its length.
 */
OJS_FUNCTION(ojs_values_in)
{
    int64 n = 1;
    bool quoted = false, escaped = false;
    for (char c : view(PG_GETARG_TEXT_PP(0))) {
        if (escaped)
            escaped = false;
        else if (quoted) {
            escaped = c == '\\';
            quoted = c != '"';
        } else if (c == '"')
            quoted = true;
        else
            n += c == ',' || c == '[' || c == '{';
    }
    PG_RETURN_INT64(n);
}

/*
 * ojs_http.mend_body(handler text, body text, flat boolean, out mended text, out faults jsonb): see sql/http/node.sql
 */
OJS_FUNCTION(ojs_mend_body)
{
    std::string_view handler = view(PG_GETARG_TEXT_PP(0));
    std::string_view body = view(PG_GETARG_TEXT_PP(1));
    TupleDesc desc;
    Datum values[2] = {};
    bool nulls[2] = {true, true};
    ObjectBuilder faults;

    if (get_call_result_type(fcinfo, nullptr, &desc) != TYPEFUNC_COMPOSITE)
        elog(ERROR, "return type must be a row type");
    if (handler == "nack") {
        constexpr int levels_to_error = 2; /* the body and the error in it */
        int levels = levels_to_error + (PG_GETARG_BOOL(2) ? 0 : most_error_levels);
        values[0] = PointerGetDatum(without_faults(body, levels));
        nulls[0] = false;
        return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
    }
    JsonFault fault;
    if (handler == "push_batch" || handler == "push_bulk") {
        StringInfoData mended;
        initStringInfo(&mended);
        auto note = [](int64 index, const JsonFault &of_job, void *out) {
            ObjectBuilder said;
            said.add("message", std::string_view(of_job.message)).add("hint", std::string_view(of_job.hint));
            Details details = details_of(of_job);
            Datum json = DirectFunctionCall1(jsonb_in, CStringGetDatum(psprintf("{%s}", details.json.data)));
            said.add("details", DatumGetJsonbP(json));
            static_cast<ObjectBuilder *>(out)->add(psprintf(INT64_FORMAT, index), said.finish());
        };
        fault = without_faulty_jobs(body, &mended, note, &faults);
        values[0] = PointerGetDatum(cstring_to_text_with_len(mended.data, mended.len));
        values[1] = PointerGetDatum(faults.finish());
        nulls[0] = nulls[1] = JB_ROOT_COUNT(DatumGetJsonbP(values[1])) == 0;
    } else
        fault = find_fault(body);
    if (fault.message != nullptr)
        raise(Code::invalid_payload, details_of(fault), fault.hint, "%s", fault.message);
    return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
}

/* ojs.storable(json text) returns jsonb */
OJS_FUNCTION(ojs_storable)
{
    text *json = without_faults(view(PG_GETARG_TEXT_PP(0)), most_error_levels);
    return DirectFunctionCall1(jsonb_in, CStringGetDatum(text_to_cstring(json)));
}
