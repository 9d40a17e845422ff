/*
 * request_values.cpp: times and durations of a request, read as a push reads them; and how much there is in its body.
 */
#include "ojs/job/attributes.h"
#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
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
    PG_RETURN_INTERVAL_P(interval_of(duration_value(*value, field, field)));
}

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
