/*
 * json_schema.h: JSON Schema draft 2020-12 over jsonb, as far as docs/how-to/schemas.md lists it.
 *
 * A schema is read as it is stored; nothing is compiled but patterns, by the server's own regular expressions. The work
 * that one validation may do has a bound, and so has what it says.
 */
#pragma once

#include "ojs/pg/json.h"

namespace ojs
{

/* The schema with this URI, or null. */
using FindSchema = const Jsonb *(*)(std::string_view uri);

constexpr int max_schema_errors = 20;

/* What is wrong with a value, in sentences that name its parts: property names of the value, and none of its values. */
struct SchemaErrors {
    int n;
    const char *text[max_schema_errors];
};
static_assert(std::is_trivially_destructible_v<SchemaErrors>);

/* Applies a schema, checked already, to a value that sentences call `name`. Valid if there are no errors. */
SchemaErrors validate_json(const Jsonb *schema, const JsonbValue &value, const char *name, FindSchema find);

/* The root of a JSON value. */
JsonbValue root_value(const Jsonb *json);

/* Raises INVALID_PAYLOAD for what is no JSON Schema, and UNSUPPORTED_FEATURE for what validate_json() cannot apply. */
void check_json_schema(const Jsonb *schema, FindSchema find);

/* --- what both sides know of keywords (json_schema_keywords.cpp) --- */

enum class Keyword : uint8 {
    additional_properties,
    all_of,
    anchor,
    annotation, /* says nothing of validity */
    any_of,
    constant,
    contains,
    definitions,
    dependent_required,
    dependent_schemas,
    else_schema,
    enumeration,
    exclusive_maximum,
    exclusive_minimum,
    format,
    id,
    if_schema,
    items,
    max_contains,
    max_items,
    max_length,
    max_properties,
    maximum,
    min_contains,
    min_items,
    min_length,
    min_properties,
    minimum,
    multiple_of,
    not_schema,
    one_of,
    pattern,
    pattern_properties,
    prefix_items,
    properties,
    property_names,
    ref,
    required,
    schema, /* $schema */
    then_schema,
    type,
    unique_items,
    unknown,
    unsupported
};

/* What the value of a keyword must be. */
enum class KeywordShape : uint8 {
    any,
    boolean,
    count,
    format_name,
    number,
    pattern,
    positive,
    schema,
    schemas,
    schema_map,
    pattern_map,
    items,
    texts,
    texts_map,
    types,
    values,
    uri,
    dialect,
    anchor_name,
    reference
};

struct KeywordEntry {
    std::string_view name;
    Keyword keyword;
    KeywordShape shape;
};
KeywordEntry keyword_named(std::string_view name);

/* Calls visit(key of the keyword, name or position in it, schema) for each schema right below this one. */
template <typename Visit>
void
each_subschema(const JsonbContainer *schema, Visit visit)
{
    each_member(schema, [&](std::string_view key, const JsonbValue &of) {
        KeywordShape shape = keyword_named(key).shape;
        if (shape == KeywordShape::schema || (shape == KeywordShape::items && !is_array(of)))
            visit(key, std::string_view(), of);
        else if ((shape == KeywordShape::schemas || shape == KeywordShape::items) && is_array(of))
            each_element(of.val.binary.data,
                         [&](const JsonbValue &element) { visit(key, std::string_view(), element); });
        else if ((shape == KeywordShape::schema_map || shape == KeywordShape::pattern_map) && is_object(of))
            each_member(of.val.binary.data,
                        [&](std::string_view name, const JsonbValue &member) { visit(key, name, member); });
    });
}

/* A schema document, and the URI it is known by. */
struct SchemaDocument {
    const Jsonb *root;
    std::string_view uri; /* of its $id; empty: none */
};
SchemaDocument document_of(const Jsonb *schema);

/* Where a $ref leads to. Returns false if it leads nowhere. */
bool follow_reference(const SchemaDocument &from, std::string_view reference, FindSchema find, SchemaDocument &document,
                      JsonbValue &schema);

/* The member `key` of an object, whatever its value, JSON's null too. */
bool find_any_member(const JsonbContainer *object, std::string_view key, JsonbValue &value);

bool has_lookaround(std::string_view pattern);
bool pattern_matches(std::string_view pattern, std::string_view text); /* raises for what is no pattern */

/* Whether a text has a format that is checked; formats that are not have every text. */
bool has_format(std::string_view format, std::string_view text);

} // namespace ojs
