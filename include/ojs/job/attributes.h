/*
 * attributes.h: the values of single attributes of an envelope, from JSON. Each raises where it cannot be one.
 */
#pragma once

#include "ojs/job/envelope.h"

namespace ojs
{

/* "FIELD must be MUST, not a string" */
[[noreturn]] void refuse(Code code, const char *field, const char *must, const JsonbValue &value);

std::string_view text_value(const JsonbValue &value, Code code, const char *field);

/* In ms: a number of seconds (of milliseconds if the attribute's name says so), or an ISO 8601 duration. */
int64 duration_value(const JsonbValue &value, std::string_view name, const char *field);
int64 duration_from(TimestampTz start, const JsonbValue &value, std::string_view name, const char *field); /* months by
                                                                                                    the calendar */
Duration calendar_value(const JsonbValue &value, std::string_view name, const char *field); /* as it was given */
int64 refuse_zero(int64 ms, const char *field);
int64 positive_duration(const JsonbValue &value, std::string_view name, const char *field);
int64 lease_value(const JsonbValue &value, std::string_view name, const char *field); /* clamped, not refused */

int priority_value(const JsonbValue &value);
pg_uuid_t id_value(const JsonbValue &value, const char *field = "id"); /* lower case only */
std::string_view specversion_value(const JsonbValue &value);

void check_ordering_key(std::string_view key);
void check_tags(const JsonbValue &value);
void check_one_of(std::string_view given, const char *a, const char *b, const char *field); /* `a` is the default */

/* A URI has a scheme, a colon and more, and no character that would have to be escaped (ENV-17). */
void check_schema(std::string_view s);

} // namespace ojs
