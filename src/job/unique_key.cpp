/*
 * unique_key.cpp: ojs.fingerprint, ojs.fingerprint_input: from a uniqueness policy to the hash that two duplicates
 * share.
 */
#include "ojs/job/canonical.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/pg/json.h"

#include <openssl/evp.h>

namespace ojs
{

namespace
{

constexpr Code invalid = Code::unique_key_invalid;
constexpr int n_states = static_cast<int>(State::discarded) + 1;

constexpr int
bit(State state)
{
    return 1 << static_cast<int>(state);
}
constexpr int live_states =
    bit(State::available) | bit(State::active) | bit(State::scheduled) | bit(State::retryable) | bit(State::pending);

/* For messages, a name that is canonical and so in UTF-8. */
const char *
shown(std::string_view name)
{
    const char *text = pg_any_to_server(name.data(), static_cast<int>(name.size()), PG_UTF8);
    return clipped(text == name.data() ? name : std::string_view(text));
}

/* --- reading a policy --- */

/* Calls take(string) for each element of an array of strings; null counts as an absent member. */
template <typename Take>
void
each_string(const JsonbValue &list, const char *field, Take take)
{
    constexpr const char *hint = "Give a JSON array of strings.";
    if (list.type == jbvNull)
        return;
    if (!is_array(list))
        raise_field(invalid, field, hint, "%s must be an array of strings", field);
    each_element(list.val.binary.data, [&](const JsonbValue &element) {
        if (element.type != jbvString)
            raise_field(invalid, field, hint, "%s must be an array of strings", field);
        take(text_of(element));
    });
}

[[noreturn]] void
raise_twice(const char *field, const char *entry)
{
    raise_field(invalid, field, "List each entry once.", "%s lists \"%s\" twice", field, entry);
}

Names
read_names(const JsonbValue &list, const char *field)
{
    size_t most = is_array(list) ? JsonContainerSize(list.val.binary.data) : 0;
    auto *names = static_cast<std::string_view *>(palloc(sizeof(std::string_view) * most));
    int n = 0;
    each_string(list, field, [&](std::string_view name) { names[n++] = canonical_text(name, invalid, field); });
    std::sort(names, names + n, canonical_less);
    for (int i = 1; i < n; i++)
        if (names[i] == names[i - 1])
            raise_twice(field, shown(names[i]));
    return {names, n};
}

void
read_keys(const JsonbValue &list, UniquePolicy &policy)
{
    constexpr const char *field = "unique.keys";
    bool by_type = false;
    each_string(list, field, [&](std::string_view name) {
        bool *dimension = name == "type"    ? &by_type
                          : name == "queue" ? &policy.by_queue
                          : name == "args"  ? &policy.by_args
                          : name == "meta"  ? &policy.by_meta
                                            : nullptr;
        if (dimension == nullptr)
            raise_field(invalid, field, "The dimensions are type, queue, args and meta.",
                        "%s names an unknown dimension \"%s\"", field, clipped(name));
        if (*dimension)
            raise_twice(field, clipped(name));
        *dimension = true;
    });
}

void
read_states(const JsonbValue &list, UniquePolicy &policy)
{
    constexpr const char *field = "unique.states";
    int states = 0;
    each_string(list, field, [&](std::string_view name) {
        int state = 0;
        while (state < n_states && name != state_name(static_cast<State>(state)))
            state++;
        if (state == n_states)
            raise_field(invalid, field, "Use the lower-case names of the eight job states.",
                        "%s names an unknown state \"%s\"", field, clipped(name));
        if (states & 1 << state)
            raise_twice(field, clipped(name));
        states |= 1 << state;
    });
    if (list.type == jbvNull)
        return;
    if (states == 0)
        raise_field(invalid, field, "Leave it out to check against the five live states.", "%s must not be empty",
                    field);
    policy.states = states;
}

void
read_period(const JsonbValue &value, UniquePolicy &policy)
{
    constexpr const char *field = "unique.period";
    constexpr const char *hint = "Give an ISO 8601 duration such as PT1H.";
    if (value.type == jbvNull)
        return;
    if (value.type != jbvString)
        raise_field(invalid, field, hint, "%s must be a string", field);
    policy.period = stored_duration(text_of(value), invalid, field);
    if (fixed_ms(*policy.period) <= 0)
        raise_field(invalid, field, hint, "%s must be longer than zero", field);
}

void
read_period_ms(const JsonbValue &value, UniquePolicy &policy)
{
    constexpr const char *field = "unique.period_ms";
    int64 ms = 0;
    if (value.type == jbvNull)
        return;
    if (policy.period)
        raise_field(invalid, field, "Give the period once.", "unique.period and %s exclude each other", field);
    if (value.type != jbvNumeric || !number_of(value, 0, ms) || ms <= 0 || ms > max_duration_ms)
        raise_field(invalid, field, "Give milliseconds.", "%s must be a positive whole number", field);
    policy.period = Duration{0, ms};
}

/* Whether an array holds nothing but names of dimensions, and something. */
bool
names_dimensions(const JsonbValue &value)
{
    bool all = is_array(value) && JsonContainerSize(value.val.binary.data) > 0;
    if (all)
        each_element(value.val.binary.data, [&all](const JsonbValue &element) {
            std::string_view name = element.type == jbvString ? text_of(element) : std::string_view();
            all = all && (name == "type" || name == "queue" || name == "args" || name == "meta");
        });
    return all;
}

void
read_on_conflict(const JsonbValue &value, UniquePolicy &policy)
{
    constexpr const char *field = "unique.on_conflict";
    constexpr const char *hint = "Use reject, ignore, replace, update or merge, or one of the last three with "
                                 "_except_schedule.";
    constexpr std::string_view names[] = {"reject",
                                          "replace",
                                          "replace_except_schedule",
                                          "ignore",
                                          "update",
                                          "update_except_schedule",
                                          "merge",
                                          "merge_except_schedule"}; /* in the order of OnConflict */
    if (value.type == jbvNull)
        return;
    if (value.type != jbvString)
        raise_field(invalid, field, hint, "%s must be a string", field);
    std::string_view name = text_of(value);
    const std::string_view *found = std::find(std::begin(names), std::end(names), name);
    if (found == std::end(names))
        raise_field(invalid, field, hint, "%s names an unknown strategy \"%s\"", field, clipped(name));
    policy.on_conflict = static_cast<OnConflict>(found - names);
}

/* --- the dimensions of a job --- */

/* The member of an object whose key is `name` in NFC. */
bool
find_named(const JsonbContainer *object, std::string_view name, const char *field, JsonbValue &found)
{
    bool ascii = std::all_of(name.begin(), name.end(), [](char c) { return static_cast<signed char>(c) >= 0; });
    if (ascii && getKeyJsonValueFromContainer(const_cast<JsonbContainer *>(object), name.data(),
                                              static_cast<int>(name.size()), &found) != nullptr)
        return true;

    /* Another spelling: a decomposed key, or one of the few signs, such as U+212A, that NFC makes ASCII. */
    int n = 0;
    each_member(object, [&](std::string_view key, const JsonbValue &value) {
        if (canonical_text(key, invalid, field) == name) {
            found = value;
            n++;
        }
    });
    if (n > 1)
        raise_field(invalid, field, "Keep one of the keys, and write keys in NFC.",
                    "%s has several keys that are \"%s\" in Unicode's form NFC", field, shown(name));
    return n == 1;
}

/* the first object among the elements of args that has the key gives the value. */
bool
find_in_args(const JsonbContainer *args, std::string_view name, JsonbValue &found)
{
    JsonbIterator *it = JsonbIteratorInit(const_cast<JsonbContainer *>(args));
    JsonbValue element;
    JsonbIteratorToken token;
    while ((token = JsonbIteratorNext(&it, &element, true)) != WJB_DONE) {
        CHECK_FOR_INTERRUPTS();
        if (token == WJB_ELEM && is_object(element) && find_named(element.val.binary.data, name, "args", found))
            return true;
    }
    return false;
}

/* {"a":…,"b":…} with the value that find(name, value) gives for each name; `names` are in canonical order. */
template <typename Find>
void
put_selected(StringInfo out, const Names &names, const char *field, Find find)
{
    appendStringInfoChar(out, '{');
    for (int i = 0; i < names.n; i++) {
        JsonbValue value;
        if (i > 0)
            appendStringInfoChar(out, ',');
        put_quoted(out, names.at[i]);
        appendStringInfoChar(out, ':');
        if (find(names.at[i], value))
            canonical_value(value, Numbers::exact, field, out);
        else
            appendBinaryStringInfo(out, "null", 4);
    }
    appendStringInfoChar(out, '}');
}

void
put_args(StringInfo out, const Envelope &envelope, const Names &names)
{
    const JsonbContainer *args = &envelope.args->root;
    if (names.n == 0) {
        canonical_json(args, Numbers::exact, "args", out);
        return;
    }
    put_selected(out, names, "args", [args](std::string_view name, JsonbValue &value) {
        if (!find_in_args(args, name, value))
            raise_field(invalid, "unique.args_keys", "Name keys of the objects in args.",
                        "unique.args_keys names \"%s\", which args does not have", shown(name));
        return true;
    });
}

void
put_meta(StringInfo out, const Envelope &envelope, const Names &names)
{
    Jsonb *meta = envelope.meta;
    put_selected(out, names, "meta", [meta](std::string_view name, JsonbValue &value) {
        return meta != nullptr && find_named(&meta->root, name, "meta", value); /* absent counts as null */
    });
}

} // namespace

UniquePolicy
read_unique_policy(const Jsonb *json)
{
    UniquePolicy policy = {};
    policy.states = live_states;
    policy.on_conflict = OnConflict::reject;
    if (!is_object(json))
        raise_field(invalid, "unique", "Give a JSON object such as {\"keys\": [\"type\", \"args\"]}.",
                    "unique must be an object");

    bool has_key = false, has_keys = false, key_names_args = false;
    each_member(&json->root, [&](std::string_view member, const JsonbValue &v) {
        if (member == "keys") {
            read_keys(v, policy);
            has_keys |= v.type != jbvNull;
        } else if (member == "args_keys") {
            policy.args_keys = read_names(v, "unique.args_keys");
            has_keys |= v.type != jbvNull;
        } else if (member == "key" && names_dimensions(v)) { /* as the Python SDK has it */
            read_keys(v, policy);
            has_key = true;
            key_names_args = policy.by_args;
        } else if (member == "key" && v.type != jbvNull) { /* the older spelling */
            policy.args_keys = read_names(v, "unique.key");
            has_key = key_names_args = true;
        } else if (member == "meta_keys") {
            policy.meta_keys = read_names(v, "unique.meta_keys");
        } else if (member == "period") {
            read_period(v, policy);
        } else if (member == "period_ms") { /* as the Go SDK has it */
            read_period_ms(v, policy);
        } else if (member == "states") {
            read_states(v, policy);
        } else if (member == "on_conflict") {
            read_on_conflict(v, policy);
        } else if (member != "key") {
            raise_field(invalid, "unique",
                        "Its members are keys, args_keys, meta_keys, period, states and on_conflict.",
                        "unique has an unknown member \"%s\"", clipped(member));
        }
    });

    if (has_key && has_keys)
        raise_field(invalid, "unique.key", "Use keys and args_keys alone.",
                    "unique.key stands for keys and args_keys, and excludes them");
    policy.by_args |= key_names_args;
    if (policy.by_meta && policy.meta_keys.n == 0)
        raise_field(invalid, "unique.meta_keys", "Name the members of meta that count.",
                    "unique.keys has \"meta\", so unique.meta_keys must not be empty");
    if (!policy.by_meta && policy.meta_keys.n > 0)
        raise_field(invalid, "unique.meta_keys", "Add \"meta\" to unique.keys, or leave meta_keys out.",
                    "unique.meta_keys is given, but unique.keys has no \"meta\"");
    if (!policy.by_args && policy.args_keys.n > 0)
        raise_field(invalid, "unique.args_keys", "Add \"args\" to unique.keys, or leave args_keys out.",
                    "unique.args_keys is given, but unique.keys has no \"args\"");
    return policy;
}

void
check_unique_period(const Jsonb *policy)
{
    JsonbValue period;
    if (find_member(root_of(policy), "period", period) && period.type == jbvString)
        (void)parse_duration(text_of(period), invalid, "unique.period");
}

/*
 * A key that the producer has worked out itself, as where it encrypts the args; it stands for all dimensions (INT-01).
 */
static bool
put_own_key(StringInfo out, const Envelope &envelope)
{
    constexpr const char *field = "unique_key";
    JsonbValue key;
    if (envelope.options == nullptr || !find_member(root_of(envelope.options), field, key))
        return false;
    if (key.type != jbvString || key.val.string.len == 0)
        raise_field(invalid, field, "Give a text, or leave it out.", "unique_key must be a text that is not empty");
    appendStringInfoString(out, "{\"unique_key\":");
    put_quoted(out, canonical_text(text_of(key), invalid, field));
    appendStringInfoChar(out, '}');
    return true;
}

/* Each tenant has keys of its own. */
static void
input_of_tenant(const Envelope &envelope, const UniquePolicy &policy, StringInfo out)
{
    Envelope plain = envelope;
    plain.queue = shown_queue(envelope.queue);
    appendStringInfoString(out, "{\"job\":");
    fingerprint_input(plain, policy, out);
    appendStringInfoString(out, ",\"tenant\":");
    put_quoted(out, tenant_in(envelope.queue));
    appendStringInfoChar(out, '}');
}

void
fingerprint_input(const Envelope &envelope, const UniquePolicy &policy, StringInfo out)
{
    if (has_tenants() && !tenant_in(envelope.queue).empty()) {
        input_of_tenant(envelope, policy, out);
        return;
    }
    if (put_own_key(out, envelope))
        return;
    /* The dimensions in canonical order. Each that counts shows, so different sets of keys never collide. */
    appendStringInfoChar(out, '{');
    if (policy.by_args) {
        appendStringInfoString(out, "\"args\":");
        put_args(out, envelope, policy.args_keys);
        appendStringInfoChar(out, ',');
    }
    if (policy.by_meta) {
        appendStringInfoString(out, "\"meta\":");
        put_meta(out, envelope, policy.meta_keys);
        appendStringInfoChar(out, ',');
    }
    if (policy.by_queue) {
        appendStringInfoString(out, "\"queue\":");
        put_quoted(out, envelope.queue);
        appendStringInfoChar(out, ',');
    }
    appendStringInfoString(out, "\"type\":");
    put_quoted(out, envelope.type);
    appendStringInfoChar(out, '}');
}

Fingerprint
fingerprint(const Envelope &envelope, const UniquePolicy &policy)
{
    StringInfoData input;
    Fingerprint result;
    unsigned int length = sizeof result.bytes;

    initStringInfo(&input);
    fingerprint_input(envelope, policy, &input);
    if (EVP_Digest(input.data, input.len, result.bytes, &length, EVP_sha256(), nullptr) != 1 ||
        length != sizeof result.bytes)
        raise(Code::unavailable, Details(), "Look at the server's OpenSSL configuration.",
              "OpenSSL could not compute a SHA-256");
    pfree(input.data);
    return result;
}

} // namespace ojs

using namespace ojs;

namespace
{

/* The job as a push would see it; false for one without a policy. */
bool
read_job(FunctionCallInfo fcinfo, Envelope &envelope, UniquePolicy &policy)
{
    envelope = empty_envelope();
    envelope_from_json(PG_GETARG_JSONB_P(0), now(), false, envelope);
    validate(envelope);
    if (envelope.unique_policy == nullptr)
        return false;
    policy = read_unique_policy(envelope.unique_policy);
    return true;
}

} // namespace

OJS_FUNCTION(ojs_fingerprint_input)
{
    Envelope envelope;
    UniquePolicy policy;
    if (!read_job(fcinfo, envelope, policy))
        PG_RETURN_NULL();

    StringInfoData out;
    initStringInfo(&out);
    fingerprint_input(envelope, policy, &out);
    char *text = pg_any_to_server(out.data, out.len, PG_UTF8);
    return PointerGetDatum(cstring_to_text_with_len(text, text == out.data ? out.len : static_cast<int>(strlen(text))));
}

OJS_FUNCTION(ojs_fingerprint)
{
    Envelope envelope;
    UniquePolicy policy;
    if (!read_job(fcinfo, envelope, policy))
        PG_RETURN_NULL();

    Fingerprint hash = fingerprint(envelope, policy);
    char hex[2 * sizeof hash.bytes];
    hex_encode(reinterpret_cast<const char *>(hash.bytes), sizeof hash.bytes, hex);
    return PointerGetDatum(cstring_to_text_with_len(hex, sizeof hex));
}
