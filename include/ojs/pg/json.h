/*
 * json.h: reading values out of jsonb and putting new objects together.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

/* --- reading --- */

/* The member `key` of an object; false where it is missing or JSON null. `value` points into the object. */
bool find_member(const JsonbContainer *object, std::string_view key, JsonbValue &value);

inline const JsonbContainer *
root_of(const Jsonb *json)
{
    return &json->root;
}

inline bool
is_object(const JsonbValue &value)
{
    return value.type == jbvBinary && JsonContainerIsObject(value.val.binary.data);
}

inline bool
is_array(const JsonbValue &value)
{
    return value.type == jbvBinary && JsonContainerIsArray(value.val.binary.data);
}

inline bool
is_object(const Jsonb *json)
{
    return JB_ROOT_IS_OBJECT(json);
}

inline bool
is_array(const Jsonb *json)
{
    return JB_ROOT_IS_ARRAY(json) && !JB_ROOT_IS_SCALAR(json);
}

inline std::string_view
text_of(const JsonbValue &value)
{
    return {value.val.string.val, static_cast<size_t>(value.val.string.len)};
}

/* "an object", "a string" …, for messages. */
const char *kind_of(const JsonbValue &value);
const char *kind_of(const Jsonb *json);

/* A number times 10^scale as an integer; false if it is no number, not whole by then, or too large. */
bool number_of(const JsonbValue &value, int scale, int64 &out);
/* Infinity where it is too large. The value must be a number. */
double double_of(const JsonbValue &value);

/* Equal as JSON: 1 equals 1.0. */
bool same_json(const JsonbValue &a, const JsonbValue &b);

/*
 * How large a value is: its nesting, the values in it at all levels, and the lengths of its text and of the longest
 * number in it. Makes no text: a jsonb of nine bytes may hold a number of 131,072 digits.
 */
struct Extent {
    int depth; /* 1 for [] and {} */
    int64 values;
    int64 text;   /* without insignificant blanks */
    int64 blanks; /* that the server shows beside it, after commas and colons */
    int64 number;
};
Extent extent_of(const JsonbContainer *json);
int64 text_bytes(const Jsonb *json); /* the length of a value's text as the server shows it */
int64 number_length(Numeric number);
constexpr int64 longest_number =
    400; /* of text, for numbers that are read or stored in a job: more than any double has */
/* The length of a string's JSON text, quotes included. */
int64 text_length(std::string_view text);

/* --- building --- */

inline JsonbValue
json_text(std::string_view text)
{
    JsonbValue value;
    value.type = jbvString;
    value.val.string.val = const_cast<char *>(text.data());
    value.val.string.len = static_cast<int>(text.size());
    return value;
}

inline JsonbValue
json_bool(bool b)
{
    JsonbValue value;
    value.type = jbvBool;
    value.val.boolean = b;
    return value;
}

JsonbValue json_number(int64 n);
JsonbValue json_decimal(int64 n, int decimals); /* n / 10^decimals, with a fraction only where needed */
inline JsonbValue
json_seconds(int64 ms)
{
    return json_decimal(ms, 3);
}

inline JsonbValue
json_of(const Jsonb *json)
{
    JsonbValue value;
    value.type = jbvBinary;
    value.val.binary.data = const_cast<JsonbContainer *>(&json->root);
    value.val.binary.len = static_cast<int>(VARSIZE(json) - VARHDRSZ);
    return value;
}

/* A value on its own. What it points to is copied. */
Jsonb *jsonb_of(const JsonbValue &value);

/* An object under construction. Of two members of one name the later counts. */
struct ObjectBuilder {
    JsonbParseState *state = nullptr;

    ObjectBuilder() { pushJsonbValue(&state, WJB_BEGIN_OBJECT, nullptr); }
    ObjectBuilder &add(std::string_view key, const JsonbValue &value);
    ObjectBuilder &add(std::string_view key, std::string_view text) { return add(key, json_text(text)); }
    ObjectBuilder &add(std::string_view key, int64 n) { return add(key, json_number(n)); }
    ObjectBuilder &add(std::string_view key, const Jsonb *json) { return add(key, json_of(json)); }
    Jsonb *finish() { return JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, nullptr)); }
};
static_assert(std::is_trivially_destructible_v<ObjectBuilder>);

/* Calls visit(key, value) for each member of an object. */
template <typename Visit>
void
each_member(const JsonbContainer *object, Visit visit)
{
    JsonbIterator *it = JsonbIteratorInit(const_cast<JsonbContainer *>(object));
    JsonbIteratorToken token;
    JsonbValue key;
    JsonbValue value;

    while ((token = JsonbIteratorNext(&it, &key, true)) != WJB_DONE) {
        if (token != WJB_KEY)
            continue;
        (void)JsonbIteratorNext(&it, &value, true);
        visit(text_of(key), value);
        CHECK_FOR_INTERRUPTS();
    }
}

/* Calls visit(value) for each element of an array. */
template <typename Visit>
void
each_element(const JsonbContainer *array, Visit visit)
{
    JsonbIterator *it = JsonbIteratorInit(const_cast<JsonbContainer *>(array));
    JsonbIteratorToken token;
    JsonbValue value;

    while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE) {
        if (token == WJB_ELEM)
            visit(value);
        CHECK_FOR_INTERRUPTS();
    }
}

} // namespace ojs
