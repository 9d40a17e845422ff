/*
 * json_schema.cpp: applies a JSON Schema to a value.
 *
 * A schema comes from an administrator and the value from any producer, so the work has a bound: each schema that is
 * applied, each element of a list that is compared and each text that a pattern reads costs steps. A validation that
 * runs out of them, or goes too deep, fails and says so.
 */
#include "ojs/job/json_schema_frame.h"

#include "ojs/job/envelope.h"

namespace ojs
{

namespace
{

constexpr int max_depth = 256;

bool apply(Validation &v, const SchemaDocument &document, const JsonbValue &schema, const JsonbValue &value,
           const Path &at, int depth);

/* With the value of a schema below the one at hand, at the same place or in a part of it. */
bool
apply_here(const Frame &frame, const JsonbValue &schema)
{
    return apply(frame.v, frame.document, schema, frame.value, frame.at, frame.depth + 1);
}

bool
apply_quietly(const Frame &frame, const JsonbValue &schema, const JsonbValue &value, const Path &at)
{
    frame.v.quiet++;
    bool valid = apply(frame.v, frame.document, schema, value, at, frame.depth + 1);
    frame.v.quiet--;
    return valid;
}

bool
apply_member(const Frame &frame, const JsonbValue &schema, std::string_view name, const JsonbValue &member)
{
    Path at = {&frame.at, name, -1};
    return apply(frame.v, frame.document, schema, member, at, frame.depth + 1);
}

/* Elements from the first on, each by the schema of its position. Returns how many there are schemas for. */
bool
check_prefix(const Frame &frame, const JsonbValue &schemas)
{
    uint32 i = 0;
    bool valid = true;
    auto n = static_cast<uint32>(count_of(frame.value));
    each_element(schemas.val.binary.data, [&](const JsonbValue &schema) {
        if (i < n && !frame.v.exhausted) {
            Path at = {&frame.at, {}, i};
            JsonbValue *element = getIthJsonbValueFromContainer(frame.value.val.binary.data, i);
            valid = apply(frame.v, frame.document, schema, *element, at, frame.depth + 1) && valid;
        }
        i++;
    });
    return valid;
}

bool
check_items(const Frame &frame, const JsonbValue &of)
{
    JsonbValue prefix;
    if (is_array(of))
        return check_prefix(frame, of); /* as prefixItems was called before 2020-12 */
    int64 skip = find_any_member(frame.schema, "prefixItems", prefix) && is_array(prefix) ? count_of(prefix) : 0;
    int64 i = 0;
    bool valid = true;
    each_element(frame.value.val.binary.data, [&](const JsonbValue &element) {
        if (i >= skip && !frame.v.exhausted) {
            Path at = {&frame.at, {}, i};
            valid = apply(frame.v, frame.document, of, element, at, frame.depth + 1) && valid;
        }
        i++;
    });
    return valid;
}

bool
check_contains(const Frame &frame, const JsonbValue &of)
{
    JsonbValue bound;
    int64 least = 1;
    int64 most = PG_INT64_MAX;
    int64 n = 0;
    if (find_any_member(frame.schema, "minContains", bound) && bound.type == jbvNumeric && !number_of(bound, 0, least))
        least = PG_INT64_MAX;
    if (find_any_member(frame.schema, "maxContains", bound) && bound.type == jbvNumeric && !number_of(bound, 0, most))
        most = PG_INT64_MAX;
    each_element(frame.value.val.binary.data, [&](const JsonbValue &element) {
        if (!frame.v.exhausted)
            n += apply_quietly(frame, of, element, frame.at);
    });
    return (n >= least && n <= most) ||
           fault(frame, " holds " INT64_FORMAT " elements of the kind that `contains` asks for", n);
}

bool
check_properties(const Frame &frame, const JsonbValue &schemas)
{
    bool valid = true;
    each_member(schemas.val.binary.data, [&](std::string_view name, const JsonbValue &schema) {
        JsonbValue member;
        if (spend(frame.v, 1) && find_any_member(frame.value.val.binary.data, name, member))
            valid = apply_member(frame, schema, name, member) && valid;
    });
    return valid;
}

bool
check_pattern_properties(const Frame &frame, const JsonbValue &schemas)
{
    bool valid = true;
    each_member(schemas.val.binary.data, [&](std::string_view pattern, const JsonbValue &schema) {
        each_member(frame.value.val.binary.data, [&](std::string_view name, const JsonbValue &member) {
            if (matches(frame.v, pattern, name))
                valid = apply_member(frame, schema, name, member) && valid;
        });
    });
    return valid;
}

bool
is_named(const Frame &frame, std::string_view name)
{
    JsonbValue siblings;
    JsonbValue found;
    if (find_any_member(frame.schema, "properties", siblings) && is_object(siblings) &&
        find_any_member(siblings.val.binary.data, name, found))
        return true;
    bool named = false;
    if (find_any_member(frame.schema, "patternProperties", siblings) && is_object(siblings))
        each_member(siblings.val.binary.data, [&](std::string_view pattern, const JsonbValue &) {
            named = named || matches(frame.v, pattern, name);
        });
    return named;
}

bool
check_additional(const Frame &frame, const JsonbValue &schema)
{
    bool valid = true;
    bool none = schema.type == jbvBool && !schema.val.boolean;
    each_member(frame.value.val.binary.data, [&](std::string_view name, const JsonbValue &member) {
        if (!spend(frame.v, 1) || is_named(frame, name))
            return;
        valid = (none ? fault(frame, ": property '%s' is not allowed", clipped(name))
                      : apply_member(frame, schema, name, member)) &&
                valid;
    });
    return valid;
}

bool
check_required(const Frame &frame, const JsonbValue &names, std::string_view because)
{
    bool valid = true;
    each_element(names.val.binary.data, [&](const JsonbValue &name) {
        JsonbValue member;
        if (!spend(frame.v, 1) || name.type != jbvString ||
            find_any_member(frame.value.val.binary.data, text_of(name), member))
            return;
        valid = because.empty() ? fault(frame, ": required property '%s' is missing", clipped(text_of(name)))
                                : fault(frame, ": property '%s' is missing, which '%s' requires",
                                        clipped(text_of(name)), clipped(because));
    });
    return valid;
}

bool
check_dependent(const Frame &frame, const JsonbValue &of, bool schemas)
{
    bool valid = true;
    each_member(of.val.binary.data, [&](std::string_view name, const JsonbValue &dependent) {
        JsonbValue member;
        if (!spend(frame.v, 1) || !find_any_member(frame.value.val.binary.data, name, member))
            return;
        if (schemas)
            valid = apply_here(frame, dependent) && valid;
        else if (is_array(dependent))
            valid = check_required(frame, dependent, name) && valid;
    });
    return valid;
}

bool
check_combination(const Frame &frame, Keyword keyword, const JsonbValue &of)
{
    int64 n = 0;
    bool valid = true;
    each_element(of.val.binary.data, [&](const JsonbValue &schema) {
        if (keyword == Keyword::all_of)
            valid = apply_here(frame, schema) && valid;
        else if (keyword == Keyword::one_of || n == 0)
            n += apply_quietly(frame, schema, frame.value, frame.at);
    });
    if (keyword == Keyword::all_of)
        return valid;
    if (n == 0)
        return fault(frame, " fits none of the schemas that `%s` lists",
                     keyword == Keyword::any_of ? "anyOf" : "oneOf");
    return keyword == Keyword::any_of || n == 1 ||
           fault(frame, " fits " INT64_FORMAT " of the schemas that `oneOf` lists, and must fit one", n);
}

bool
check_condition(const Frame &frame, const JsonbValue &of)
{
    JsonbValue branch;
    bool holds = apply_quietly(frame, of, frame.value, frame.at);
    return !find_any_member(frame.schema, holds ? "then" : "else", branch) || apply_here(frame, branch);
}

bool
check_reference(const Frame &frame, const JsonbValue &of)
{
    SchemaDocument document;
    JsonbValue schema;
    if (of.type != jbvString || !follow_reference(frame.document, text_of(of), frame.v.find, document, schema))
        return fault(frame, " cannot be validated: a $ref of the schema leads nowhere");
    return apply(frame.v, document, schema, frame.value, frame.at, frame.depth + 1);
}

bool
check_array(const Frame &frame, Keyword keyword, const JsonbValue &of)
{
    switch (keyword) {
    case Keyword::max_items:
    case Keyword::min_items:
        return check_count(frame, count_of(frame.value), keyword == Keyword::max_items, of, "elements");
    case Keyword::unique_items:
        return of.type != jbvBool || !of.val.boolean || check_unique(frame);
    case Keyword::prefix_items:
        return !is_array(of) || check_prefix(frame, of);
    case Keyword::items:
        return check_items(frame, of);
    default:
        return check_contains(frame, of);
    }
}

bool
check_object(const Frame &frame, Keyword keyword, const JsonbValue &of)
{
    switch (keyword) {
    case Keyword::max_properties:
    case Keyword::min_properties:
        return check_count(frame, count_of(frame.value), keyword == Keyword::max_properties, of, "properties");
    case Keyword::required:
        return !is_array(of) || check_required(frame, of, {});
    case Keyword::additional_properties:
        return check_additional(frame, of);
    case Keyword::property_names: {
        bool valid = true;
        each_member(frame.value.val.binary.data, [&](std::string_view name, const JsonbValue &) {
            if (!apply_quietly(frame, of, json_text(name), frame.at))
                valid = fault(frame, ": a property must not be called '%s'", clipped(name));
        });
        return valid;
    }
    default:
        break;
    }
    if (!is_object(of))
        return true;
    switch (keyword) {
    case Keyword::properties:
        return check_properties(frame, of);
    case Keyword::pattern_properties:
        return check_pattern_properties(frame, of);
    default:
        return check_dependent(frame, of, keyword == Keyword::dependent_schemas);
    }
}

bool
check_keyword(const Frame &frame, Keyword keyword, const JsonbValue &of)
{
    switch (keyword) {
    case Keyword::max_items:
    case Keyword::min_items:
    case Keyword::unique_items:
    case Keyword::prefix_items:
    case Keyword::items:
    case Keyword::contains:
        return !is_array(frame.value) || check_array(frame, keyword, of);
    case Keyword::max_properties:
    case Keyword::min_properties:
    case Keyword::required:
    case Keyword::additional_properties:
    case Keyword::property_names:
    case Keyword::properties:
    case Keyword::pattern_properties:
    case Keyword::dependent_required:
    case Keyword::dependent_schemas:
        return !is_object(frame.value) || check_object(frame, keyword, of);
    case Keyword::all_of:
    case Keyword::any_of:
    case Keyword::one_of:
        return !is_array(of) || check_combination(frame, keyword, of);
    case Keyword::not_schema:
        return !apply_quietly(frame, of, frame.value, frame.at) ||
               fault(frame, " fits what the schema excludes by `not`");
    case Keyword::if_schema:
        return check_condition(frame, of);
    case Keyword::ref:
        return check_reference(frame, of);
    default:
        return check_scalar(frame, keyword, of);
    }
}

bool
apply(Validation &v, const SchemaDocument &document, const JsonbValue &schema, const JsonbValue &value, const Path &at,
      int depth)
{
    v.exhausted = v.exhausted || depth > max_depth;
    if (!spend(v, 1 + (is_object(schema) ? count_of(schema) / 4 : 0)))
        return false;
    check_stack_depth();
    Frame frame = {v, document, is_object(schema) ? schema.val.binary.data : nullptr, value, at, depth};
    if (schema.type == jbvBool)
        return schema.val.boolean || fault(frame, " is not allowed");
    if (frame.schema == nullptr)
        return true;
    bool valid = true;
    each_member(frame.schema, [&](std::string_view key, const JsonbValue &of) {
        if (!v.exhausted && (valid || v.quiet == 0))
            valid = check_keyword(frame, keyword_named(key).keyword, of) && valid;
    });
    return valid && !v.exhausted;
}

} // namespace

SchemaErrors
validate_json(const Jsonb *schema, const JsonbValue &value, const char *name, FindSchema find)
{
    Validation v = {find, {}, 0, 0, false, 0, {}};
    MemoryContext caller = CurrentMemoryContext;
    MemoryContext work = AllocSetContextCreate(caller, "ojs schema", ALLOCSET_DEFAULT_SIZES);
    MemoryContextSwitchTo(work);
    Path root = {nullptr, name, -1};
    (void)apply(v, document_of(schema), root_value(schema), value, root, 0);
    MemoryContextSwitchTo(caller);
    SchemaErrors errors = v.errors;
    if (v.exhausted) {
        errors.n = 1;
        errors.text[0] =
            psprintf("%s cannot be validated: that takes more than " INT64_FORMAT " steps, %d levels, or %d MB", name,
                     max_schema_steps, max_depth, static_cast<int>(max_schema_memory / 1024 / 1024));
    } else
        for (int i = 0; i < errors.n; i++)
            errors.text[i] = pstrdup(errors.text[i]);
    MemoryContextDelete(work);
    return errors;
}

} // namespace ojs
