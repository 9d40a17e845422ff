/*
 * attributes.cpp: the values of single attributes of an envelope, from JSON. Each raises where it cannot be one.
 */
#include "ojs/job/attributes.h"

#include "ojs/pg/json.h"
#include "ojs/pg/uuid.h"

namespace ojs
{

[[noreturn]] void
refuse(Code code, const char *field, const char *must, const JsonbValue &value)
{
    raise_field(code, field, psprintf("Give %s, or leave %s out.", must, field), "%s must be %s, not %s", field, must,
                kind_of(value));
}

namespace
{

bool
is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool
is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Semver, or just major.minor; all of major version 1 are understood. */
bool
is_version(std::string_view s)
{
    size_t end = std::min(s.find_first_of("-+"), s.size());
    std::string_view rest = s.substr(end);
    int parts = 1;
    bool digit_before = false;

    for (char c : s.substr(0, end)) {
        if (c == '.' && digit_before && parts < 3)
            parts++;
        else if (!is_digit(c))
            return false;
        digit_before = c != '.';
    }
    if (!digit_before || parts < 2 || rest.size() == 1)
        return false;
    for (char c : rest.substr(std::min<size_t>(rest.size(), 1)))
        if (!is_letter(c) && !is_digit(c) && c != '-' && c != '.' && c != '+')
            return false;
    return true;
}

constexpr int64 shortest_lease_ms = 100;
constexpr int64 longest_lease_ms = 86400000;

} // namespace

std::string_view
text_value(const JsonbValue &value, Code code, const char *field)
{
    if (value.type != jbvString)
        refuse(code, field, "a string", value);
    return text_of(value);
}

Duration
calendar_value(const JsonbValue &value, std::string_view name, const char *field)
{
    bool in_ms = name.ends_with("_ms");
    int64 ms;

    if (value.type == jbvString && !in_ms)
        return parse_duration(text_of(value), Code::invalid_payload, field);
    if (value.type != jbvNumeric)
        refuse(Code::invalid_payload, field,
               in_ms ? "a number of milliseconds" : "a number of seconds or an ISO 8601 duration", value);
    if (double_of(value) * (in_ms ? 1 : 1000) > static_cast<double>(max_duration_ms))
        (void)refuse_too_long(max_duration_ms + 1, Code::invalid_payload, field);
    if (!number_of(value, in_ms ? 0 : 3, ms))
        raise_field(Code::invalid_payload, field, "The finest unit is a millisecond.", "%s has parts of a millisecond",
                    field);
    if (ms < 0)
        raise_field(Code::invalid_payload, field, "Leave it out to have the default.", "%s must not be negative",
                    field);
    return {0, ms};
}

int64
duration_value(const JsonbValue &value, std::string_view name, const char *field)
{
    return fixed_ms(calendar_value(value, name, field));
}

int64
duration_from(TimestampTz start, const JsonbValue &value, std::string_view name, const char *field)
{
    return (time_after(start, calendar_value(value, name, field)) - start) / 1000;
}

int64
positive_duration(const JsonbValue &value, std::string_view name, const char *field)
{
    return refuse_zero(duration_value(value, name, field), field);
}

int64
refuse_zero(int64 ms, const char *field)
{
    if (ms == 0)
        raise_field(Code::invalid_payload, field, "Leave it out to have the default.", "%s must be longer than zero",
                    field);
    return ms;
}

int64
lease_value(const JsonbValue &value, std::string_view name, const char *field)
{
    bool in_ms = name.ends_with("_ms");
    int64 ms;

    if (value.type == jbvString && !in_ms)
        ms = fixed_ms(stored_duration(text_of(value), Code::invalid_payload, field));
    else if (value.type != jbvNumeric)
        refuse(Code::invalid_payload, field,
               in_ms ? "a number of milliseconds" : "a number of seconds or an ISO 8601 duration", value);
    else if (!number_of(value, in_ms ? 0 : 3, ms)) {
        double n = double_of(value);
        if (n != std::floor(n))
            raise_field(Code::invalid_payload, field, "The finest unit is a millisecond.",
                        "%s has parts of a millisecond", field);
        ms = n > 0 ? longest_lease_ms : shortest_lease_ms;
    }
    return std::clamp(ms, shortest_lease_ms, longest_lease_ms);
}

int
priority_value(const JsonbValue &value)
{
    struct Level {
        std::string_view name;
        int priority;
    };
    constexpr Level levels[] = {{"high", 10}, {"normal", 0}, {"low", -10}};
    int64 n;

    if (value.type == jbvNumeric && number_of(value, 0, n) && n >= min_priority && n <= max_priority)
        return static_cast<int>(n);
    if (value.type == jbvString)
        for (const Level &level : levels)
            if (text_of(value).size() == level.name.size() &&
                pg_strncasecmp(value.val.string.val, level.name.data(), level.name.size()) == 0)
                return level.priority;
    raise_field(Code::invalid_payload, "priority", "Higher is served first; the default is 0.",
                "priority must be a whole number from -100 to 100, or HIGH, NORMAL or LOW");
}

pg_uuid_t
id_value(const JsonbValue &value, const char *field)
{
    std::string_view s = text_value(value, Code::invalid_payload, field);
    pg_uuid_t id = {};
    int digits = 0;
    bool good = s.size() == 36;

    for (size_t i = 0; good && i < s.size(); i++) {
        char c = s[i];
        if (i == 8 || i == 13 || i == 18 || i == 23)
            good = c == '-';
        else if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')) {
            int digit = c <= '9' ? c - '0' : c - 'a' + 10;
            id.data[digits / 2] |= static_cast<unsigned char>(digits % 2 == 0 ? digit << 4 : digit);
            digits++;
        } else
            good = false;
    }
    if (!good || !is_uuid_v7(id))
        raise_bad_id(field);
    return id;
}

std::string_view
specversion_value(const JsonbValue &value)
{
    std::string_view s = text_value(value, Code::invalid_payload, "specversion");
    if (!is_version(s))
        raise_field(Code::invalid_payload, "specversion", "Give \"1.0\", or leave it out.",
                    "specversion is not a version: \"%s\"", clipped(s));
    if (!s.starts_with("1."))
        raise_field(Code::unsupported_feature, "specversion", "Give \"1.0\", or leave it out.",
                    "specversion \"%s\" is not supported", clipped(s));
    return s;
}

void
check_tags(const JsonbValue &value)
{
    if (!is_array(value))
        refuse(Code::invalid_payload, "tags", "an array of strings", value);
    each_element(value.val.binary.data, [](const JsonbValue &tag) {
        if (tag.type != jbvString)
            refuse(Code::invalid_payload, "tags", "an array of strings", tag);
    });
}

void
check_ordering_key(std::string_view key)
{
    if (key.empty())
        raise_field(Code::invalid_payload, "ordering_key", "Leave it out where jobs may run side by side.",
                    "ordering_key must not be empty");
    if (key.size() > max_ordering_key)
        raise(Code::invalid_payload,
              Details()
                  .add("field", "ordering_key")
                  .add("actual_bytes", static_cast<int64>(key.size()))
                  .add("maximum_bytes", static_cast<int64>(max_ordering_key)),
              "Give a hash of what is longer.", "ordering_key is longer than %d bytes",
              static_cast<int>(max_ordering_key));
}

void
check_schema(std::string_view s)
{
    size_t colon = s.find(':');
    bool good = colon != s.npos && colon > 0 && colon + 1 < s.size() && is_letter(s[0]);

    for (size_t i = 0; good && i < s.size(); i++) {
        char c = s[i];
        if (i < colon)
            good = is_letter(c) || is_digit(c) || c == '+' || c == '-' || c == '.';
        else
            good = static_cast<unsigned char>(c) > 0x20 && c != 0x7f && strchr("<>\"{}|\\^`", c) == nullptr;
    }
    if (!good)
        raise_field(Code::invalid_payload, "schema", "Give a URI such as urn:ojs:schema:email.send:v1.",
                    "schema is not a URI: \"%s\"", clipped(s));
}

void
check_one_of(std::string_view given, const char *a, const char *b, const char *field)
{
    if (given != a && given != b)
        raise_field(Code::invalid_payload, field, psprintf("Leave it out for %s.", a),
                    "%s must be %s or %s, not \"%s\"", field, a, b, clipped(given));
}

} // namespace ojs
