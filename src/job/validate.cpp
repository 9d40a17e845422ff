/*
 * validate.cpp: what an envelope must be before it is stored, wherever it came from. On the hot path of push: the
 * patterns are checked by hand, and JSON is measured without being made into text.
 */
#include "ojs/pg/settings.h"
#include "ojs/job/envelope.h"
#include "ojs/pg/json.h"
#include "ojs/job/canonical.h"
#include "ojs/job/retry_policy.h"
#include "ojs/pg/uuid.h"

namespace ojs
{

namespace
{

constexpr size_t max_type_length = 255;
constexpr size_t max_version_length = 32;

bool
is_lower(char c)
{
    return c >= 'a' && c <= 'z';
}

bool
is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* ^[a-z][a-z0-9_-]*(\.[a-z][a-z0-9_-]*)*$ */
bool
is_type(std::string_view s)
{
    bool segment_start = true;

    for (char c : s) {
        if (segment_start ? !is_lower(c) : !(is_lower(c) || is_digit(c) || c == '_' || c == '-' || c == '.'))
            return false;
        segment_start = c == '.';
    }
    return !segment_start;
}

/* ^[a-z0-9][a-z0-9\-.]*$ */
bool
is_queue(std::string_view s)
{
    for (size_t i = 0; i < s.size(); i++)
        if (!is_lower(s[i]) && !is_digit(s[i]) && (i == 0 || (s[i] != '-' && s[i] != '.')))
            return false;
    return !s.empty();
}

/* ^[0-9]+(\.[0-9]+)*$ */
bool
is_type_version(std::string_view s)
{
    bool digit_before = false;

    for (char c : s) {
        if (!is_digit(c) && !(c == '.' && digit_before))
            return false;
        digit_before = c != '.';
    }
    return digit_before && s.size() <= max_version_length;
}

/* An option of its own, unless there is one of that name already. */
void
add_option(Envelope &e, const char *key, const JsonbValue &value)
{
    ObjectBuilder options;

    options.add(key, value);
    if (e.options != nullptr)
        each_member(root_of(e.options),
                    [&options](std::string_view name, const JsonbValue &member) { options.add(name, member); });
    e.options = options.finish();
}

void
check_type(Envelope &e)
{
    if (e.type.data() == nullptr)
        raise_field(Code::invalid_payload, "type", "Say what kind of job it is, such as email.send.",
                    "type is missing");

    std::string_view type = e.type.substr(0, e.type.find('@'));
    std::string_view version = e.type.substr(std::min(type.size() + 1, e.type.size()));
    bool versioned = type.size() < e.type.size();

    if (type.size() > max_type_length)
        raise(Code::job_type_too_long,
              Details()
                  .add("field", "type")
                  .add("actual_bytes", static_cast<int64>(type.size()))
                  .add("maximum_bytes", static_cast<int64>(max_type_length)),
              "Shorten it to 255 bytes.", "type is longer than %zu bytes", max_type_length);
    if (!is_type(type) || (versioned && !is_type_version(version)))
        raise_field(Code::invalid_job_type, "type",
                    "Use segments of a-z, 0-9, _ and - that begin with a letter, joined by dots, such as email.send.",
                    "type is not a job type: \"%s\"", clipped(e.type));
    if (versioned) {
        add_option(e, "version", json_text(version));
        e.type = type;
    }
}

int64
json_length(const Jsonb *json)
{
    return json == nullptr ? 0 : extent_of(root_of(json)).text;
}

[[noreturn]] void
too_large(Code code, const char *field, int64 size, int maximum)
{
    raise(code,
          Details().add("field", field).add("actual_bytes", size).add("maximum_bytes", static_cast<int64>(maximum)),
          "Keep large data elsewhere and push a reference to it.",
          "%s has " INT64_FORMAT " bytes as JSON, and %d are allowed", field, size, maximum);
}

/* Depth, number of values and length of numbers, for any JSON of a caller's that is stored (ENV-27). Returns the length
 * of its text. */
int64
check_complexity(const Jsonb *json, Code code, const char *field)
{
    if (json == nullptr)
        return 0;
    Extent extent = extent_of(root_of(json));
    if (extent.depth > settings.max_args_depth)
        raise_field(code, field, "Flatten it, or have ojs.max_args_depth raised.",
                    "%s is nested %d levels deep, and %d are allowed", field, extent.depth, settings.max_args_depth);
    if (extent.values > settings.max_args_elements)
        raise_field(code, field, "Split the job, or have ojs.max_args_elements raised.",
                    "%s holds " INT64_FORMAT " values, and %d are allowed", field, extent.values,
                    settings.max_args_elements);
    if (extent.number > longest_number)
        raise_field(code, field, "Write the number as a string.",
                    "%s holds a number of " INT64_FORMAT " digits, and %d are allowed", field, extent.number,
                    static_cast<int>(longest_number));
    return extent.text;
}

int64
check_args(Envelope &e)
{
    if (e.args == nullptr)
        raise_field(Code::invalid_payload, "args", "Give an array, [] for none.", "args is missing");
    if (!is_array(e.args)) {
        if (is_object(e.args) && JB_ROOT_COUNT(e.args) == 0)
            raise_field(Code::invalid_args, "args",
                        "Give [] for no arguments, which some drivers send as {}, or [{}] for one empty object.",
                        "args is an empty object");
        if (!is_object(e.args))
            raise_field(Code::invalid_args, "args", "Wrap it in an array.", "args must be an array, not %s",
                        kind_of(e.args));
        JsonbParseState *array = nullptr;
        JsonbValue only = json_of(e.args);
        pushJsonbValue(&array, WJB_BEGIN_ARRAY, nullptr);
        pushJsonbValue(&array, WJB_ELEM, &only);
        e.args = JsonbValueToJsonb(pushJsonbValue(&array, WJB_END_ARRAY, nullptr));
        e.flags |= job_bare_object;
    }
    return check_complexity(e.args, Code::invalid_args, "args");
}

int64
check_meta(Envelope &e)
{
    if (e.meta == nullptr)
        return 0;
    if (!is_object(e.meta))
        raise_field(Code::invalid_metadata, "meta", "Give an object, or leave it out.",
                    "meta must be an object, not %s", kind_of(e.meta));
    if (JB_ROOT_COUNT(e.meta) == 0) {
        e.meta = nullptr;
        return 0;
    }
    int64 size = check_complexity(e.meta, Code::invalid_metadata, "meta");
    if (size > settings.max_meta_size)
        too_large(Code::metadata_too_large, "meta", size, settings.max_meta_size);
    return size;
}

/* A parameter may be JSON's null as well as SQL's (ENV-23). */
void
forget_null(Jsonb *&json)
{
    if (json != nullptr && JB_ROOT_IS_SCALAR(json) && JBE_ISNULL(json->root.children[0]))
        json = nullptr;
}

/* The text of {"type": …, "args": …} with whatever else was given, as if it had come as JSON. */
int64
envelope_length(const Envelope &e)
{
    int64 length = 2;
    auto member = [&length](std::string_view key, int64 value) {
        if (value > 0)
            length += static_cast<int64>(key.size()) + 3 + value + (length > 2 ? 1 : 0); /* quotes, colon, comma */
    };

    member("type", text_length(e.type));
    member("args", json_length(e.args));
    member("queue", e.queue == "default" ? 0 : text_length(e.queue));
    member("meta", json_length(e.meta));
    member("retry", json_length(e.retry));
    member("unique", json_length(e.unique_policy));
    if (e.options != nullptr)
        length += json_length(e.options) - 1; /* without its braces, with a comma */
    return length;
}

void
check_size(const Envelope &e, int64 bound)
{
    constexpr int64 frame = 1024; /* names, queue and type at their longest */

    if (e.measured || bound + frame <= settings.max_envelope_size)
        return;
    int64 size = envelope_length(e);
    if (size > settings.max_envelope_size)
        too_large(Code::payload_too_large, "envelope", size, settings.max_envelope_size);
}

void
check_finite(const std::optional<TimestampTz> &at, const char *field)
{
    if (at && !IS_VALID_TIMESTAMP(*at))
        raise_field(Code::invalid_payload, field, "Leave it out instead.", "%s must not be infinite", field);
}

void
check_times(const Envelope &e)
{
    check_finite(e.scheduled_at, "scheduled_at");
    check_finite(e.expires_at, "expires_at");
    if (e.timeout_ms && *e.timeout_ms < 0)
        raise_field(Code::invalid_payload, "timeout", "Leave it out to have the default.",
                    "timeout must not be negative");
}

void
check_deduplication(const Envelope &e)
{
    if (e.deduplication_key.data() != nullptr && e.deduplication_key.empty())
        raise_field(Code::invalid_payload, "deduplication_key", "Leave it out for no deduplication.",
                    "deduplication_key must not be empty");
    if (e.deduplication_ttl_ms && *e.deduplication_ttl_ms <= 0)
        raise_field(Code::invalid_payload, "deduplication_ttl", "Leave it out to have the default.",
                    "deduplication_ttl must be longer than zero");
    if (e.deduplication_ttl_ms && e.deduplication_key.data() == nullptr)
        raise_field(Code::invalid_payload, "deduplication_ttl", "Give a deduplication_key too, or leave it out.",
                    "deduplication_ttl means nothing without a deduplication_key");
}

/* What the options ask of those who handle the job; total_timeout against timeout (TMO-06). */
void
read_option_flags(Envelope &e)
{
    const JsonbContainer *options = root_of(e.options);
    JsonbValue value;
    int64 total_ms;

    auto has = [&](const char *key) { return find_member(options, key, value); };
    if (has("enqueue_ttl"))
        e.flags |= job_expires;
    if (has("visibility_timeout_ms"))
        e.flags |= job_own_lease;
    if (has("grace_period") || has("heartbeat_timeout"))
        e.flags |= job_timeouts;
    if (has("result_ttl"))
        e.flags |= job_result_ttl;
    if (has("rate_limit"))
        e.flags |= job_limits;
    if (has("ordering_key"))
        e.flags |= job_ordered;
    if (has("ordering")) {
        if (!(e.flags & job_ordered))
            raise_field(Code::invalid_payload, "ordering", "Give an ordering_key too, or leave it out.",
                        "ordering means nothing without an ordering_key");
        if (text_of(value) == "relaxed")
            e.flags |= job_relaxed;
    }
    if (has("delivery") && text_of(value) == "at_most_once")
        e.flags |= job_at_most_once;
    if (has("total_timeout")) {
        e.flags |= job_timeouts | job_expires;
        if (e.timeout_ms && number_of(value, 3, total_ms) && total_ms < *e.timeout_ms)
            raise_field(Code::invalid_payload, "total_timeout", "It counts all attempts; timeout counts one.",
                        "total_timeout must not be shorter than timeout");
    }
}

void
check_parent(Envelope &e)
{
    if (e.has_id && same(e.id, *e.parent))
        raise_field(Code::invalid_payload, "parent_id", "Give the id of the job that pushes it, or leave it out.",
                    "parent_id must not be the id of the job itself");
    e.flags |= job_spawned;
}

void
check_retry(Envelope &e)
{
    if (e.retry != nullptr && is_object(e.retry) && JB_ROOT_COUNT(e.retry) == 0)
        e.retry = nullptr;
    if (!e.checked_before)
        check_retry_names(e.retry);
    if (e.flags & job_at_most_once) { /* never delivered twice, so never retried (DLV-01) */
        (void)read_retry_policy(e.retry);
        ObjectBuilder once;
        once.add("max_attempts", static_cast<int64>(1));
        e.retry = merge_retry_policy(e.retry, once.finish());
    }
    e.max_attempts = read_retry_policy(e.retry).max_attempts;
}

} // namespace

void
raise_bad_id(const char *field)
{
    raise_field(Code::invalid_payload, field,
                strcmp(field, "id") == 0 ? "Leave it out to have one made." : "Give the id of a job, or leave it out.",
                "%s must be a UUID of version 7, in lower case with hyphens", field);
}

void
check_envelope_size(const JsonbContainer *job)
{
    int64 size = extent_of(job).text;
    if (size > settings.max_envelope_size)
        too_large(Code::payload_too_large, "envelope", size, settings.max_envelope_size);
}

void (*give_tenant)(Envelope &envelope);

void
validate_queue_name(std::string_view name, const char *field)
{
    if (name.size() > max_queue_name)
        raise(Code::queue_name_too_long,
              Details()
                  .add("field", field)
                  .add("actual_bytes", static_cast<int64>(name.size()))
                  .add("maximum_bytes", static_cast<int64>(max_queue_name)),
              "Shorten it to 128 characters.", "%s is longer than %zu characters", field, max_queue_name);
    std::string_view tenant = has_tenants() ? tenant_in(name) : std::string_view();
    if (!is_queue(tenant.empty() ? name : shown_queue(name)) || (!tenant.empty() && !is_tenant(tenant))) {
        bool list =
            name.starts_with('{') || name.starts_with('['); /* as a driver writes one where it takes us for text */
        raise_field(Code::invalid_queue, field,
                    list ? "Name one queue, or pass a list as an array: queues => $1, or $1::text[]."
                         : "Use a-z, 0-9, - and dots, beginning with a letter or a digit.",
                    "%s is not a queue name: \"%s\"", field, clipped(name));
    }
}

void
set_tags(Envelope &e, ArrayType *tags)
{
    Datum *values;
    bool *nulls;
    int n;
    JsonbParseState *array = nullptr;
    JsonbValue given;

    deconstruct_array(tags, TEXTOID, -1, false, TYPALIGN_INT, &values, &nulls, &n);
    pushJsonbValue(&array, WJB_BEGIN_ARRAY, nullptr);
    for (int i = 0; i < n; i++) {
        if (nulls[i])
            raise_field(Code::invalid_payload, "tags", "Leave it out of the array.", "tags must not hold null");
        text *tag = DatumGetTextPP(values[i]);
        JsonbValue value = json_text({VARDATA_ANY(tag), static_cast<size_t>(VARSIZE_ANY_EXHDR(tag))});
        pushJsonbValue(&array, WJB_ELEM, &value);
    }
    JsonbValue all = json_of(JsonbValueToJsonb(pushJsonbValue(&array, WJB_END_ARRAY, nullptr)));
    if (e.options != nullptr && find_member(root_of(e.options), "tags", given) && !same_json(given, all))
        raise_field(Code::invalid_payload, "tags", "Give them once.", "tags comes twice with different values");
    add_option(e, "tags", all);
}

void
validate_priority(int priority)
{
    if (priority < min_priority || priority > max_priority)
        raise_field(Code::invalid_payload, "priority", "Higher is served first; the default is 0.",
                    "priority must be a whole number from -100 to 100");
}

void
validate(Envelope &e)
{
    for (Jsonb **json : {&e.args, &e.meta, &e.retry, &e.unique_policy})
        forget_null(*json);
    e.flags = (e.flags & job_bare_object) | (e.pending ? job_pending : 0);
    if (e.has_id && !is_uuid_v7(e.id))
        raise_bad_id();
    if (e.parent)
        check_parent(e);
    check_type(e);
    validate_queue_name(e.queue);
    validate_priority(e.priority);

    if (has_tenants())
        give_tenant(e);
    int64 bound = check_args(e) + check_meta(e);
    check_times(e);
    check_deduplication(e);
    if (e.expires_at)
        e.flags |= job_expires;
    if (e.options != nullptr) {
        bound += check_complexity(e.options, Code::invalid_payload, "options");
        read_option_flags(e);
    }
    check_retry(e);
    if (e.retry != nullptr)
        bound += check_complexity(e.retry, Code::invalid_retry_policy, "retry");
    if (e.unique_policy != nullptr) {
        if (!is_object(e.unique_policy))
            raise_field(Code::unique_key_invalid, "unique",
                        "Give a policy such as {\"keys\": [\"type\", \"args\"]}, or leave it out.",
                        "unique must be an object, not %s", kind_of(e.unique_policy));
        bound += check_complexity(e.unique_policy, Code::unique_key_invalid, "unique");
        check_unique_period(e.unique_policy);
        e.flags |= job_unique;
    }
    check_size(e, bound);
}

void
assign_ids(Envelope *envelopes, int n)
{
    for (int i = 0; i < n; i++)
        if (!is_uuid_v7(envelopes[i].id))
            envelopes[i].id = new_uuid();
}

const char *
clipped(std::string_view text)
{
    constexpr int most = 64;
    auto length = static_cast<int>(std::min<size_t>(text.size(), INT_MAX));
    int kept = length <= most ? length : pg_mbcliplen(text.data(), length, most);
    char *out = psprintf("%.*s%s", kept, text.data(), kept < length ? "..." : "");

    for (char *c = out; *c != '\0'; c++)
        if (static_cast<unsigned char>(*c) < 0x20 || *c == 0x7f)
            *c = '?';
    return out;
}

} // namespace ojs
