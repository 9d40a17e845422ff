/*
 * json_schema_keywords.cpp: the keywords of JSON Schema, references between schemas, and patterns.
 */
#include "ojs/job/json_schema.h"

namespace ojs
{

namespace
{

using enum Keyword;
using Shape = KeywordShape;

/* In the order of names. */
constexpr KeywordEntry keywords[] = {
    {"$anchor", anchor, Shape::anchor_name},
    {"$comment", annotation, Shape::any},
    {"$defs", definitions, Shape::schema_map},
    {"$dynamicAnchor", unsupported, Shape::any},
    {"$dynamicRef", unsupported, Shape::any},
    {"$id", id, Shape::uri},
    {"$recursiveAnchor", unsupported, Shape::any},
    {"$recursiveRef", unsupported, Shape::any},
    {"$ref", ref, Shape::reference},
    {"$schema", schema, Shape::dialect},
    {"$vocabulary", unsupported, Shape::any},
    {"additionalItems", unsupported, Shape::any},
    {"additionalProperties", additional_properties, Shape::schema},
    {"allOf", all_of, Shape::schemas},
    {"anyOf", any_of, Shape::schemas},
    {"const", constant, Shape::any},
    {"contains", contains, Shape::schema},
    {"contentEncoding", annotation, Shape::any},
    {"contentMediaType", annotation, Shape::any},
    {"contentSchema", annotation, Shape::any},
    {"default", annotation, Shape::any},
    {"dependencies", unsupported, Shape::any},
    {"dependentRequired", dependent_required, Shape::texts_map},
    {"dependentSchemas", dependent_schemas, Shape::schema_map},
    {"deprecated", annotation, Shape::any},
    {"description", annotation, Shape::any},
    {"else", else_schema, Shape::schema},
    {"enum", enumeration, Shape::values},
    {"examples", annotation, Shape::any},
    {"exclusiveMaximum", exclusive_maximum, Shape::number},
    {"exclusiveMinimum", exclusive_minimum, Shape::number},
    {"format", format, Shape::format_name},
    {"if", if_schema, Shape::schema},
    {"items", items, Shape::items},
    {"maxContains", max_contains, Shape::count},
    {"maxItems", max_items, Shape::count},
    {"maxLength", max_length, Shape::count},
    {"maxProperties", max_properties, Shape::count},
    {"maximum", maximum, Shape::number},
    {"minContains", min_contains, Shape::count},
    {"minItems", min_items, Shape::count},
    {"minLength", min_length, Shape::count},
    {"minProperties", min_properties, Shape::count},
    {"minimum", minimum, Shape::number},
    {"multipleOf", multiple_of, Shape::positive},
    {"not", not_schema, Shape::schema},
    {"oneOf", one_of, Shape::schemas},
    {"pattern", pattern, Shape::pattern},
    {"patternProperties", pattern_properties, Shape::pattern_map},
    {"prefixItems", prefix_items, Shape::schemas},
    {"properties", properties, Shape::schema_map},
    {"propertyNames", property_names, Shape::schema},
    {"readOnly", annotation, Shape::any},
    {"required", required, Shape::texts},
    {"then", then_schema, Shape::schema},
    {"title", annotation, Shape::any},
    {"type", type, Shape::types},
    {"unevaluatedItems", unsupported, Shape::any},
    {"unevaluatedProperties", unsupported, Shape::any},
    {"uniqueItems", unique_items, Shape::boolean},
    {"writeOnly", annotation, Shape::any},
};

constexpr bool
in_order()
{
    for (size_t i = 1; i < lengthof(keywords); i++)
        if (keywords[i - 1].name >= keywords[i].name)
            return false;
    return true;
}
static_assert(in_order());

int
hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = static_cast<char>(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* %XX in a fragment; what is no such stays. */
std::string_view
percent_decoded(std::string_view text)
{
    char *out = static_cast<char *>(palloc(text.size() + 1));
    size_t n = 0;
    for (size_t i = 0; i < text.size(); i++) {
        int high = i + 2 < text.size() && text[i] == '%' ? hex_digit(text[i + 1]) : -1;
        int low = high >= 0 ? hex_digit(text[i + 2]) : -1;
        if (low >= 0) {
            out[n++] = static_cast<char>(high * 16 + low);
            i += 2;
        } else
            out[n++] = text[i];
    }
    return {out, n};
}

/* ~1 stands for a slash, ~0 for a tilde. */
std::string_view
pointer_decoded(std::string_view part)
{
    char *out = static_cast<char *>(palloc(part.size() + 1));
    size_t n = 0;
    for (size_t i = 0; i < part.size(); i++) {
        bool escaped = part[i] == '~' && i + 1 < part.size() && (part[i + 1] == '0' || part[i + 1] == '1');
        out[n++] = !escaped ? part[i] : part[i + 1] == '0' ? '~' : '/';
        i += escaped;
    }
    return {out, n};
}

bool
follow_pointer(std::string_view pointer, JsonbValue &value)
{
    while (!pointer.empty()) {
        size_t end = std::min(pointer.find('/', 1), pointer.size());
        std::string_view part = pointer_decoded(pointer.substr(1, end - 1));
        pointer.remove_prefix(end);
        if (is_object(value)) {
            if (!find_any_member(value.val.binary.data, part, value))
                return false;
        } else if (is_array(value)) {
            uint32 index = 0;
            auto [at, error] = std::from_chars(part.data(), part.data() + part.size(), index);
            JsonbValue *element = nullptr;
            if (error == std::errc() && at == part.data() + part.size())
                element = getIthJsonbValueFromContainer(value.val.binary.data, index);
            if (element == nullptr)
                return false;
            value = *element;
        } else
            return false;
    }
    return true;
}

bool
find_anchor(const JsonbValue &from, std::string_view name, JsonbValue &found)
{
    JsonbValue value;
    check_stack_depth();
    if (!is_object(from))
        return false;
    if (find_any_member(from.val.binary.data, "$anchor", value) && value.type == jbvString && text_of(value) == name) {
        found = from;
        return true;
    }
    bool any = false;
    each_subschema(from.val.binary.data, [&](std::string_view, std::string_view, const JsonbValue &below) {
        any = any || find_anchor(below, name, found);
    });
    return any;
}

} // namespace

KeywordEntry
keyword_named(std::string_view name)
{
    const KeywordEntry *end = std::end(keywords);
    const KeywordEntry *entry =
        std::lower_bound(std::begin(keywords), end, name,
                         [](const KeywordEntry &e, std::string_view wanted) { return e.name < wanted; });
    return entry != end && entry->name == name ? *entry : KeywordEntry{name, unknown, Shape::any};
}

bool
find_any_member(const JsonbContainer *object, std::string_view key, JsonbValue &value)
{
    return getKeyJsonValueFromContainer(const_cast<JsonbContainer *>(object), key.data(), static_cast<int>(key.size()),
                                        &value) != nullptr;
}

JsonbValue
root_value(const Jsonb *json)
{
    if (JB_ROOT_IS_SCALAR(json))
        return *getIthJsonbValueFromContainer(const_cast<JsonbContainer *>(&json->root), 0);
    return json_of(json);
}

SchemaDocument
document_of(const Jsonb *schema)
{
    JsonbValue value;
    SchemaDocument document = {schema, {}};
    if (is_object(schema) && find_any_member(root_of(schema), "$id", value) && value.type == jbvString)
        document.uri = text_of(value);
    return document;
}

bool
follow_reference(const SchemaDocument &from, std::string_view reference, FindSchema find, SchemaDocument &document,
                 JsonbValue &schema)
{
    size_t hash = std::min(reference.find('#'), reference.size());
    std::string_view base = reference.substr(0, hash);
    std::string_view fragment = percent_decoded(reference.substr(std::min(hash + 1, reference.size())));

    document = from;
    if (!base.empty() && base != from.uri) {
        const Jsonb *other = find != nullptr ? find(base) : nullptr;
        if (other == nullptr)
            return false;
        document = {other, base};
    }
    schema = root_value(document.root);
    if (fragment.empty())
        return true;
    return fragment[0] == '/' ? follow_pointer(fragment, schema) : find_anchor(schema, fragment, schema);
}

bool
has_lookaround(std::string_view pattern)
{
    for (size_t at = 0; (at = pattern.find("(?", at)) != pattern.npos; at += 2)
        if (at + 2 < pattern.size() && pattern[at + 2] != ':')
            return true;
    return false;
}

bool
pattern_matches(std::string_view pattern, std::string_view text)
{
    return RE_compile_and_execute(cstring_to_text_with_len(pattern.data(), static_cast<int>(pattern.size())),
                                  const_cast<char *>(text.data()), static_cast<int>(text.size()), REG_ADVANCED,
                                  C_COLLATION_OID, 0, nullptr);
}

} // namespace ojs
