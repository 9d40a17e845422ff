/*
 * json_schema_check.cpp: whether a document is a JSON Schema that json_schema.cpp can apply as it is meant.
 *
 * A keyword that would be passed over although it says what is valid is refused, so no schema promises more than is
 * checked. Patterns are compiled, and references followed, when the schema is registered.
 */
#include "ojs/job/json_schema.h"

#include "ojs/job/attributes.h"
#include "ojs/job/envelope.h"
#include "ojs/pg/subtransaction.h"

namespace ojs
{

namespace
{

using Shape = KeywordShape;

constexpr int max_schema_depth = 64;
constexpr int64 max_schema_bytes = 65536;
constexpr size_t max_pattern = 1024;
constexpr std::string_view dialect = "https://json-schema.org/draft/2020-12/schema";

struct Check {
    SchemaDocument document;
    FindSchema find;
};

[[noreturn]] void
refuse(Code code, std::string_view keyword, const char *hint, const char *why)
{
    raise(code, Details().add("field", "schema").add("keyword", clipped(keyword)).add("schema_error", why), hint,
          "schema cannot be used: %s %s", clipped(keyword), why);
}

[[noreturn]] void
malformed(std::string_view keyword, const char *why)
{
    refuse(Code::invalid_payload, keyword, "See JSON Schema draft 2020-12.", why);
}

void
check_pattern(std::string_view keyword, std::string_view pattern)
{
    if (pattern.size() > max_pattern)
        malformed(keyword, "must not be longer than 1024 bytes");
    /* What only the server's own dialect has at the front of an expression. */
    if (pattern.starts_with("***") ||
        (pattern.starts_with("(?") && pattern.size() > 2 && pattern[2] >= 'a' && pattern[2] <= 'z'))
        refuse(Code::unsupported_feature, keyword, "Write the pattern without options at its front.",
               "begins with options of regular expressions");
    for (size_t i = 0; i + 1 < pattern.size(); i++)
        if (pattern[i] == '\\' && pattern[++i] >= '1' && pattern[i] <= '9')
            refuse(Code::unsupported_feature, keyword, "Write the pattern without back references.",
                   "holds a back reference, which can take any time");
    ErrorData *error = attempt([&] { (void)pattern_matches(pattern, ""); });
    if (error == nullptr)
        return;
    if (is_of_server(*error))
        ReThrowError(error);
    malformed(keyword, "holds a regular expression that cannot be read");
}

bool
is_type_name(const JsonbValue &value)
{
    constexpr std::string_view names[] = {"array", "boolean", "integer", "null", "number", "object", "string"};
    return value.type == jbvString && std::find(std::begin(names), std::end(names), text_of(value)) != std::end(names);
}

template <typename Good>
void
check_elements(std::string_view keyword, const JsonbValue &of, const char *why, Good good)
{
    if (!is_array(of))
        malformed(keyword, why);
    each_element(of.val.binary.data, [&](const JsonbValue &element) {
        if (!good(element))
            malformed(keyword, why);
    });
}

void
check_texts(std::string_view keyword, const JsonbValue &of)
{
    check_elements(keyword, of, "must be an array of strings", [](const JsonbValue &e) { return e.type == jbvString; });
}

void
check_number(std::string_view keyword, const JsonbValue &of, Shape shape)
{
    int64 n;
    if (of.type != jbvNumeric)
        malformed(keyword, "must be a number");
    if (shape == Shape::number)
        return;
    if (shape == Shape::count && (!number_of(of, 0, n) || n < 0))
        malformed(keyword, "must be a whole number from 0");
    if (shape == Shape::positive && !(double_of(of) > 0))
        malformed(keyword, "must be greater than 0");
}

void
check_identity(const Check &check, std::string_view keyword, const JsonbValue &of, bool at_root)
{
    if (of.type != jbvString)
        malformed(keyword, "must be a string");
    std::string_view text = text_of(of);
    if (!at_root)
        refuse(Code::unsupported_feature, keyword, "Give each schema that has a URI a registration of its own.",
               "may stand at the root of a schema only");
    if (text.find('#') != text.npos)
        malformed(keyword, "must be a URI without a fragment");
    check_schema(text);
    (void)check;
}

/* Whether what was found in a document stands where a schema does, so that it is checked as one. */
bool
holds_schema(const JsonbValue &from, const JsonbContainer *schema)
{
    if (!is_object(from))
        return false;
    bool found = from.val.binary.data == schema;
    check_stack_depth();
    each_subschema(from.val.binary.data, [&](std::string_view, std::string_view, const JsonbValue &below) {
        found = found || holds_schema(below, schema);
    });
    return found;
}

void
check_value(const Check &check, std::string_view key, Shape shape, const JsonbValue &of, bool at_root)
{
    SchemaDocument document;
    JsonbValue target;
    switch (shape) {
    case Shape::boolean:
        if (of.type != jbvBool)
            malformed(key, "must be true or false");
        break;
    case Shape::count:
    case Shape::number:
    case Shape::positive:
        check_number(key, of, shape);
        break;
    case Shape::pattern:
        if (of.type != jbvString)
            malformed(key, "must be a string");
        check_pattern(key, text_of(of));
        break;
    case Shape::format_name:
    case Shape::anchor_name:
        if (of.type != jbvString)
            malformed(key, "must be a string");
        break;
    case Shape::dialect:
        if (of.type != jbvString)
            malformed(key, "must be a string");
        if (text_of(of) != dialect && text_of(of) != "https://json-schema.org/draft/2020-12/schema#")
            malformed(key, "must reference draft 2020-12");
        break;
    case Shape::uri:
        check_identity(check, key, of, at_root);
        break;
    case Shape::reference:
        if (of.type != jbvString)
            malformed(key, "must be a string");
        if (!follow_reference(check.document, text_of(of), check.find, document, target) ||
            (target.type != jbvBool &&
             (!is_object(target) || !holds_schema(root_value(document.root), target.val.binary.data))))
            malformed(key, "leads to no schema of this document, and to none that is registered");
        break;
    case Shape::types:
        if (!is_type_name(of))
            check_elements(key, of, "must be a type of JSON Schema, or an array of such", is_type_name);
        break;
    case Shape::values:
        if (!is_array(of))
            malformed(key, "must be an array");
        break;
    case Shape::texts:
        check_texts(key, of);
        break;
    case Shape::texts_map:
        if (!is_object(of))
            malformed(key, "must be an object");
        each_member(of.val.binary.data, [&](std::string_view, const JsonbValue &names) { check_texts(key, names); });
        break;
    case Shape::schemas:
        if (!is_array(of) || JsonContainerSize(of.val.binary.data) == 0)
            malformed(key, "must be an array of schemas, and not empty");
        break;
    case Shape::pattern_map:
    case Shape::schema_map:
        if (!is_object(of))
            malformed(key, "must be an object of schemas");
        if (shape == Shape::pattern_map)
            each_member(of.val.binary.data,
                        [&](std::string_view pattern, const JsonbValue &) { check_pattern(key, pattern); });
        break;
    default:
        break;
    }
}

void
check_below(const Check &check, const JsonbValue &schema, std::string_view where, int depth)
{
    if (depth > max_schema_depth)
        malformed(where, "is nested too deep: 64 levels are allowed");
    if (schema.type == jbvBool)
        return;
    if (!is_object(schema))
        malformed(where, "must be an object, or true or false");
    const JsonbContainer *object = schema.val.binary.data;
    each_member(object, [&](std::string_view key, const JsonbValue &of) {
        KeywordEntry entry = keyword_named(key);
        if (entry.keyword == Keyword::unsupported)
            refuse(Code::unsupported_feature, key, "docs/how-to/schemas.md lists the keywords that are there.",
                   "is a keyword that ojs does not know how to apply");
        check_value(check, key, entry.shape, of, depth == 0);
    });
    each_subschema(object, [&](std::string_view key, std::string_view, const JsonbValue &below) {
        check_below(check, below, key, depth + 1);
    });
}

} // namespace

void
check_json_schema(const Jsonb *schema, FindSchema find)
{
    Extent extent = extent_of(root_of(schema));
    if (extent.text > max_schema_bytes)
        raise(Code::payload_too_large,
              Details().add("field", "schema").add("actual_bytes", extent.text).add("maximum_bytes", max_schema_bytes),
              "Split it into several schemas that refer to one another.",
              "schema has " INT64_FORMAT " bytes, and " INT64_FORMAT " are allowed", extent.text, max_schema_bytes);
    if (extent.depth > 2 * max_schema_depth || extent.number > longest_number)
        malformed("$schema", "is nested too deep, or holds a number of too many digits");
    Check check = {document_of(schema), find};
    check_below(check, root_value(schema), "the schema", 0);
}

} // namespace ojs
