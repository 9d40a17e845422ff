/*
 * json_schema_values.cpp: the keywords of JSON Schema that look at one value: its type, its size, numbers and texts.
 */
#include "ojs/job/json_schema_frame.h"

#include "ojs/job/envelope.h"

namespace ojs
{

namespace
{

void
append_path(StringInfo out, const Path &at)
{
    if (at.up != nullptr)
        append_path(out, *at.up);
    if (out->len > 512)
        return;
    if (at.index >= 0)
        appendStringInfo(out, "[" INT64_FORMAT "]", at.index);
    else
        appendStringInfo(out, at.up == nullptr ? "%s" : ".%s", clipped(at.key));
}

int
compare_numbers(const JsonbValue &a, const JsonbValue &b)
{
    return DatumGetInt32(
        DirectFunctionCall2(numeric_cmp, NumericGetDatum(a.val.numeric), NumericGetDatum(b.val.numeric)));
}

bool
is_whole(const JsonbValue &number)
{
    Datum whole = DirectFunctionCall2(numeric_trunc, NumericGetDatum(number.val.numeric), Int32GetDatum(0));
    return DatumGetBool(DirectFunctionCall2(numeric_eq, NumericGetDatum(number.val.numeric), whole));
}

bool
same(const JsonbValue &a, const JsonbValue &b)
{
    if (a.type != b.type)
        return false;
    switch (a.type) {
    case jbvNull:
        return true;
    case jbvBool:
        return a.val.boolean == b.val.boolean;
    case jbvString:
        return text_of(a) == text_of(b);
    case jbvNumeric:
        return compare_numbers(a, b) == 0;
    default:
        return is_array(a) == is_array(b) && compareJsonbContainers(a.val.binary.data, b.val.binary.data) == 0;
    }
}

bool
is_of_type(const JsonbValue &value, std::string_view type)
{
    if (type == "integer")
        return value.type == jbvNumeric && is_whole(value);
    if (type == "number")
        return value.type == jbvNumeric;
    if (type == "string")
        return value.type == jbvString;
    if (type == "boolean")
        return value.type == jbvBool;
    if (type == "null")
        return value.type == jbvNull;
    return type == "array" ? is_array(value) : type == "object" && is_object(value);
}

const char *
type_of(const JsonbValue &value)
{
    switch (value.type) {
    case jbvNull:
        return "null";
    case jbvBool:
        return "boolean";
    case jbvString:
        return "string";
    case jbvNumeric:
        return "number";
    default:
        return is_array(value) ? "array" : "object";
    }
}

bool
check_type(const Frame &frame, const JsonbValue &of)
{
    if (of.type == jbvString)
        return is_of_type(frame.value, text_of(of)) ||
               fault(frame, " must be %s, not %s", clipped(text_of(of)), type_of(frame.value));
    bool any = false;
    if (is_array(of))
        each_element(of.val.binary.data, [&](const JsonbValue &type) {
            any = any || (type.type == jbvString && is_of_type(frame.value, text_of(type)));
        });
    if (any || frame.v.quiet > 0)
        return any;
    StringInfoData names;
    initStringInfo(&names);
    if (is_array(of))
        each_element(of.val.binary.data, [&](const JsonbValue &type) {
            if (type.type == jbvString)
                appendStringInfo(&names, "%s%s", names.len > 0 ? " or " : "", clipped(text_of(type)));
        });
    return fault(frame, " must be %s, not %s", names.data, type_of(frame.value));
}

bool
check_enumeration(const Frame &frame, const JsonbValue &of)
{
    bool any = false;
    each_element(of.val.binary.data, [&](const JsonbValue &allowed) {
        if (!any && spend(frame.v, 1))
            any = same(allowed, frame.value);
    });
    return any || fault(frame, " is none of the values that the schema lists");
}

const char *
number_text(const JsonbValue &number)
{
    return DatumGetCString(DirectFunctionCall1(numeric_out, NumericGetDatum(number.val.numeric)));
}

bool
check_number(const Frame &frame, Keyword keyword, const JsonbValue &of)
{
    if (frame.value.type != jbvNumeric || of.type != jbvNumeric)
        return true;
    if (keyword == Keyword::multiple_of) {
        Datum rest =
            DirectFunctionCall2(numeric_mod, NumericGetDatum(frame.value.val.numeric), NumericGetDatum(of.val.numeric));
        return DatumGetBool(
                   DirectFunctionCall2(numeric_eq, rest, DirectFunctionCall1(int4_numeric, Int32GetDatum(0)))) ||
               fault(frame, " must be a multiple of %s", number_text(of));
    }
    int compared = compare_numbers(frame.value, of);
    switch (keyword) {
    case Keyword::maximum:
        return compared <= 0 || fault(frame, " must be at most %s", number_text(of));
    case Keyword::exclusive_maximum:
        return compared < 0 || fault(frame, " must be less than %s", number_text(of));
    case Keyword::minimum:
        return compared >= 0 || fault(frame, " must be at least %s", number_text(of));
    default:
        return compared > 0 || fault(frame, " must be greater than %s", number_text(of));
    }
}

bool
check_text(const Frame &frame, Keyword keyword, const JsonbValue &of)
{
    std::string_view text = text_of(frame.value);
    switch (keyword) {
    case Keyword::pattern:
        return of.type != jbvString || matches(frame.v, text_of(of), text) ||
               fault(frame, " does not match the pattern %s", clipped(text_of(of)));
    case Keyword::format:
        return of.type != jbvString || has_format(text_of(of), text) ||
               fault(frame, " does not match format '%s'", clipped(text_of(of)));
    default:
        return check_count(frame, pg_mbstrlen_with_len(text.data(), static_cast<int>(text.size())),
                           keyword == Keyword::max_length, of, "characters");
    }
}

} // namespace

bool
spend(Validation &v, int64 steps)
{
    v.steps += steps;
    v.exhausted = v.exhausted || v.steps > max_schema_steps ||
                  MemoryContextMemAllocated(CurrentMemoryContext, false) > max_schema_memory;
    return !v.exhausted;
}

/* "args[0].amount must be integer, not string". Returns false. */
bool
fault(const Frame &frame, const char *format, ...)
{
    Validation &v = frame.v;
    if (v.quiet > 0 || v.errors.n == max_schema_errors)
        return false;
    StringInfoData text;
    initStringInfo(&text);
    append_path(&text, frame.at);
    for (;;) {
        va_list args;
        va_start(args, format);
        int needed = appendStringInfoVA(&text, format, args);
        va_end(args);
        if (needed == 0)
            break;
        enlargeStringInfo(&text, needed);
    }
    v.errors.text[v.errors.n++] = text.data;
    return false;
}

/* A bound of a count: at least or at most so many. What is beyond all counts is as good as none. */
bool
check_count(const Frame &frame, int64 n, bool at_most, const JsonbValue &of, const char *things)
{
    int64 bound;
    if (of.type != jbvNumeric || !number_of(of, 0, bound))
        bound = PG_INT64_MAX;
    return (at_most ? n <= bound : n >= bound) ||
           fault(frame, " must have at %s " INT64_FORMAT " %s, not " INT64_FORMAT, at_most ? "most" : "least", bound,
                 things, n);
}

/*
 * Bytes that a pattern reads cost steps; one with lookaround may read them again at each. The server keeps 32 patterns
 * as it has compiled them: one that was not among the last costs its compilation.
 */
bool
matches(Validation &v, std::string_view pattern, std::string_view text)
{
    auto length = static_cast<int64>(text.size());
    const char **end = std::end(v.patterns);
    if (std::find(v.patterns, end, pattern.data()) == end) {
        v.patterns[v.n_patterns++ % lengthof(v.patterns)] = pattern.data();
        if (!spend(v, steps_of_compilation))
            return false;
    }
    return spend(v, 1 + length / 16 + (has_lookaround(pattern) ? length * length / 64 : 0)) &&
           pattern_matches(pattern, text);
}

bool
check_unique(const Frame &frame)
{
    int64 n = count_of(frame.value);
    int64 kept = 0;
    if (n < 2 || !spend(frame.v, n * 8))
        return true;
    auto *elements = static_cast<Jsonb **>(palloc(sizeof(Jsonb *) * n));
    each_element(frame.value.val.binary.data, [&](const JsonbValue &element) { elements[kept++] = jsonb_of(element); });
    std::sort(elements, elements + kept,
              [](Jsonb *a, Jsonb *b) { return compareJsonbContainers(&a->root, &b->root) < 0; });
    bool twice = false;
    for (int64 i = 1; i < kept; i++)
        twice = twice || compareJsonbContainers(&elements[i - 1]->root, &elements[i]->root) == 0;
    return !twice || fault(frame, " must not hold one value twice");
}

bool
check_scalar(const Frame &frame, Keyword keyword, const JsonbValue &of)
{
    switch (keyword) {
    case Keyword::type:
        return check_type(frame, of);
    case Keyword::enumeration:
        return !is_array(of) || check_enumeration(frame, of);
    case Keyword::constant:
        return same(of, frame.value) || fault(frame, " is not the value that the schema asks for");
    case Keyword::maximum:
    case Keyword::exclusive_maximum:
    case Keyword::minimum:
    case Keyword::exclusive_minimum:
    case Keyword::multiple_of:
        return check_number(frame, keyword, of);
    case Keyword::pattern:
    case Keyword::format:
    case Keyword::max_length:
    case Keyword::min_length:
        return frame.value.type != jbvString || check_text(frame, keyword, of);
    default:
        return true;
    }
}

} // namespace ojs
