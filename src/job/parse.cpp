/*
 * parse.cpp: from an OJS envelope in JSON to an Envelope.
 *
 * An attribute may stand at the top level, under `options`, or under an alias. Each is read to its final value first
 * and compared then, so that "HIGH" and 10, or timeout and timeout_ms, may stand side by side if they agree.
 */
#include "ojs/job/attribute_names.h"
#include "ojs/job/attributes.h"
#include "ojs/job/limit_policy.h"
#include "ojs/pg/settings.h"
#include "ojs/pg/uuid.h"

namespace ojs
{

namespace
{

/* A member of the options that are kept. */
struct Kept {
    std::string_view key;
    JsonbValue value;
};

struct Parse {
    Envelope &envelope;
    TimestampTz now;
    const JsonbContainer *top;
    uint64 seen; /* bit per Attr that has a value */
    std::string_view specversion;
    Jsonb *metadata;
    JsonbValue max_attempts;
    int64 delay_ms;
    Kept known[16];
    int n_known;
    Kept *unknown; /* room for all members of both levels */
    int n_unknown;
};

[[noreturn]] void
conflict(const char *field)
{
    raise_field(Code::invalid_payload, field,
                "Give it once: as a parameter, at the top level or under options, by one of its names.",
                "%s comes twice with different values", field);
}

/* True the first time that this attribute gets a value. */
bool
first_time(Parse &p, Attr attr)
{
    uint64 bit = UINT64CONST(1) << static_cast<int>(attr);
    bool first = (p.seen & bit) == 0;
    p.seen |= bit;
    return first;
}

bool
has_value(const Parse &p, Attr attr)
{
    return (p.seen & (UINT64CONST(1) << static_cast<int>(attr))) != 0;
}

template <typename Slot, typename Value>
void
set_attribute(Parse &p, Attr attr, Slot &slot, const Value &value, const char *field)
{
    if (!first_time(p, attr) && !(slot == value))
        conflict(field);
    slot = value;
}

void
set_json_attribute(Parse &p, Attr attr, Jsonb *&slot, const JsonbValue &value, const char *field)
{
    Jsonb *json = jsonb_of(value);
    if (!first_time(p, attr) && compareJsonbContainers(&slot->root, &json->root) != 0)
        conflict(field);
    slot = json;
}

/* An attribute that is stored among the options. */
void
keep(Parse &p, const char *key, const JsonbValue &value)
{
    for (int i = 0; i < p.n_known; i++)
        if (p.known[i].key == key) {
            if (!same_json(p.known[i].value, value))
                conflict(key);
            return;
        }
    Assert(p.n_known < static_cast<int>(lengthof(p.known)));
    p.known[p.n_known++] = {key, value};
}

void
keep_unknown(Parse &p, std::string_view key, const JsonbValue &value, bool nested)
{
    JsonbValue above;

    if (!p.envelope.checked_before)
        refuse_near_name(key);
    if (nested && find_member(p.top, key, above)) {
        if (!same_json(above, value))
            conflict(clipped(key));
        return;
    }
    p.unknown[p.n_unknown++] = {key, value};
}

void read_members(Parse &p, const JsonbContainer *object, bool nested);

void
read_member(Parse &p, std::string_view name, const JsonbValue &value, bool nested)
{
    Envelope &e = p.envelope;
    Attr attr = attr_named(name);
    constexpr Code invalid = Code::invalid_payload;

    if (attr == Attr::unknown) {
        keep_unknown(p, name, value, nested);
        return;
    }
    if (value.type == jbvNull) /* as if absent (ENV-23) */
        return;
    switch (attr) {
    case Attr::unknown:
    case Attr::system:
        break;
    case Attr::args:
        set_json_attribute(p, attr, e.args, value, "args");
        break;
    case Attr::deduplication_fallback:
        check_one_of(text_value(value, invalid, "dedup_fallback"), "open", "closed", "dedup_fallback");
        break;
    case Attr::deduplication_key:
        set_attribute(p, attr, e.deduplication_key, text_value(value, invalid, "deduplication_key"),
                      "deduplication_key");
        break;
    case Attr::deduplication_ttl:
        set_attribute(p, attr, e.deduplication_ttl_ms,
                      refuse_zero(duration_from(p.now, value, name, "deduplication_ttl"), "deduplication_ttl"),
                      "deduplication_ttl");
        break;
    case Attr::delay:
        set_attribute(p, attr, p.delay_ms, duration_from(p.now, value, name, "delay"), "delay");
        break;
    case Attr::delivery:
        check_one_of(text_value(value, invalid, "delivery"), "at_least_once", "at_most_once", "delivery");
        keep(p, "delivery", value);
        break;
    case Attr::enqueue_ttl:
        keep(p, "enqueue_ttl", json_seconds(positive_duration(value, name, "enqueue_ttl")));
        break;
    case Attr::expires_at:
        set_attribute(p, attr, e.expires_at,
                      parse_timestamp(text_value(value, invalid, "expires_at"), p.now, "expires_at"), "expires_at");
        break;
    case Attr::grace_period:
        keep(p, "grace_period", json_seconds(duration_value(value, name, "grace_period")));
        break;
    case Attr::heartbeat_timeout:
        keep(p, "heartbeat_timeout", json_seconds(positive_duration(value, name, "heartbeat_timeout")));
        break;
    case Attr::id: {
        pg_uuid_t id = id_value(value);
        if (!first_time(p, attr) && !same(e.id, id))
            conflict("id");
        e.id = id;
        e.has_id = true;
        break;
    }
    case Attr::max_attempts:
        if (!first_time(p, attr) && !same_json(p.max_attempts, value))
            conflict("max_attempts");
        p.max_attempts = value;
        break;
    case Attr::meta:
        set_json_attribute(p, attr, e.meta, value, "meta");
        break;
    case Attr::metadata:
        if (!is_object(value))
            refuse(Code::invalid_metadata, "metadata", "an object", value);
        set_json_attribute(p, attr, p.metadata, value, "metadata");
        break;
    case Attr::options:
        if (nested)
            raise_field(invalid, "options", "Put its members one level up.", "options must not hold options");
        if (!is_object(value))
            refuse(invalid, "options", "an object", value);
        read_members(p, value.val.binary.data, true);
        break;
    case Attr::ordering:
        check_one_of(text_value(value, invalid, "ordering"), "strict", "relaxed", "ordering");
        keep(p, "ordering", value);
        break;
    case Attr::ordering_key:
        check_ordering_key(text_value(value, invalid, "ordering_key"));
        keep(p, "ordering_key", value);
        break;
    case Attr::parent_id:
        e.parent = id_value(value, "parent_id");
        keep(p, "parent_id", value);
        break;
    case Attr::pending:
        if (value.type != jbvBool)
            refuse(invalid, "pending", "a boolean", value);
        set_attribute(p, attr, e.pending, value.val.boolean, "pending");
        break;
    case Attr::priority:
        set_attribute(p, attr, e.priority, priority_value(value), "priority");
        break;
    case Attr::queue:
        set_attribute(p, attr, e.queue, text_value(value, Code::invalid_queue, "queue"), "queue");
        break;
    case Attr::rate_limit:
        check_rate_limit(value);
        if (!e.checked_before)
            check_limits_something(value);
        keep(p, "rate_limit", value);
        break;
    case Attr::result_ttl:
        keep(p, "result_ttl",
             same_json(value, json_number(-1)) ? value : json_seconds(duration_value(value, name, "result_ttl")));
        break;
    case Attr::retry:
        set_json_attribute(p, attr, e.retry, value, "retry");
        break;
    case Attr::root_id:
        (void)id_value(value, "root_id");
        keep(p, "root_id", value);
        break;
    case Attr::schema:
        check_schema(text_value(value, invalid, "schema"));
        keep(p, "schema", value);
        break;
    case Attr::scheduled_at:
        set_attribute(p, attr, e.scheduled_at,
                      parse_timestamp(text_value(value, invalid, "scheduled_at"), p.now, "scheduled_at"),
                      "scheduled_at");
        break;
    case Attr::specversion:
        set_attribute(p, attr, p.specversion, specversion_value(value), "specversion");
        break;
    case Attr::tag:
        (void)text_value(value, invalid, "tag");
        keep(p, "tag", value);
        break;
    case Attr::tags:
        check_tags(value);
        keep(p, "tags", value);
        break;
    case Attr::timeout:
        set_attribute(p, attr, e.timeout_ms, duration_value(value, name, "timeout"), "timeout");
        break;
    case Attr::total_timeout:
        keep(p, "total_timeout", json_seconds(positive_duration(value, name, "total_timeout")));
        break;
    case Attr::type:
        set_attribute(p, attr, e.type, text_value(value, Code::invalid_job_type, "type"), "type");
        break;
    case Attr::unique:
        set_json_attribute(p, attr, e.unique_policy, value, "unique");
        break;
    case Attr::version:
        if (!IsAJsonbScalar(&value))
            refuse(invalid, "version", "a string or a number", value);
        keep(p, "version", value);
        break;
    case Attr::visibility_timeout:
        keep(p, "visibility_timeout_ms", json_number(lease_value(value, name, "visibility_timeout")));
        break;
    }
}

void
read_members(Parse &p, const JsonbContainer *object, bool nested)
{
    each_member(object,
                [&p, nested](std::string_view name, const JsonbValue &value) { read_member(p, name, value, nested); });
}

/* options.metadata adds to meta. */
void
merge_metadata(Parse &p)
{
    Envelope &e = p.envelope;

    if (p.metadata == nullptr)
        return;
    if (e.meta == nullptr) {
        e.meta = p.metadata;
        return;
    }
    if (!is_object(e.meta))
        return; /* validate() says so */
    ObjectBuilder merged;
    each_member(root_of(e.meta), [&merged](std::string_view key, const JsonbValue &value) { merged.add(key, value); });
    each_member(root_of(p.metadata), [&](std::string_view key, const JsonbValue &value) {
        JsonbValue other;
        if (find_member(root_of(e.meta), key, other) && !same_json(other, value))
            conflict(psprintf("meta.%s", clipped(key)));
        merged.add(key, value);
    });
    e.meta = merged.finish();
}

/* max_attempts is another name of retry.max_attempts. */
void
merge_max_attempts(Parse &p)
{
    Envelope &e = p.envelope;
    JsonbValue other;

    if (!has_value(p, Attr::max_attempts) || (e.retry != nullptr && !is_object(e.retry)))
        return; /* validate() says what is wrong with retry */
    ObjectBuilder merged;
    if (e.retry != nullptr) {
        if (find_member(root_of(e.retry), "max_attempts", other) && !same_json(other, p.max_attempts))
            raise_field(Code::invalid_payload, "max_attempts", "Give one of the two.",
                        "max_attempts and retry.max_attempts say different things");
        each_member(root_of(e.retry),
                    [&merged](std::string_view key, const JsonbValue &value) { merged.add(key, value); });
    }
    merged.add("max_attempts", p.max_attempts);
    e.retry = merged.finish();
}

void
apply_delay(Parse &p)
{
    Envelope &e = p.envelope;
    if (!has_value(p, Attr::delay))
        return;
    if (e.scheduled_at)
        raise_field(Code::invalid_payload, "delay", "Give either scheduled_at or delay.",
                    "scheduled_at and delay exclude each other");
    e.scheduled_at = p.now + p.delay_ms * 1000;
}

/* What the parameters of ojs.push have said already. */
void
note_parameters(Parse &p)
{
    const Envelope &e = p.envelope;
    auto note = [&p](Attr attr, bool given) {
        if (given)
            (void)first_time(p, attr);
    };
    note(Attr::type, e.type.data() != nullptr);
    note(Attr::args, e.args != nullptr);
    note(Attr::queue, e.queue.data() != nullptr && e.queue != "default");
    note(Attr::priority, e.priority != 0);
    note(Attr::scheduled_at, e.scheduled_at.has_value());
    note(Attr::expires_at, e.expires_at.has_value());
    note(Attr::retry, e.retry != nullptr);
    note(Attr::unique, e.unique_policy != nullptr);
    note(Attr::meta, e.meta != nullptr);
    note(Attr::timeout, e.timeout_ms.has_value());
    note(Attr::deduplication_key, e.deduplication_key.data() != nullptr);
    note(Attr::deduplication_ttl, e.deduplication_ttl_ms.has_value());
    note(Attr::id, e.has_id);
    note(Attr::pending, e.pending);
}

Size
count_members(const JsonbContainer *object)
{
    JsonbValue options;
    Size n = JsonContainerSize(object);
    if (find_member(object, "options", options) && is_object(options))
        n += JsonContainerSize(options.val.binary.data);
    return n;
}

void
store_options(Parse &p)
{
    bool specversion = !p.specversion.empty() && p.specversion != "1.0";
    if (p.n_known + p.n_unknown == 0 && !specversion)
        return;

    ObjectBuilder options;
    for (int i = 0; i < p.n_unknown; i++)
        options.add(p.unknown[i].key, p.unknown[i].value);
    for (int i = 0; i < p.n_known; i++)
        options.add(p.known[i].key, p.known[i].value);
    if (specversion)
        options.add("specversion", p.specversion);
    p.envelope.options = options.finish();
}

} // namespace

Envelope
empty_envelope()
{
    Envelope envelope = {};
    envelope.item = -1;
    envelope.queue = "default";
    return envelope;
}

void
envelope_from_json(const Jsonb *json, TimestampTz now, bool parameters_only, Envelope &envelope)
{
    const char *what = parameters_only ? "options" : "job";

    if (!is_object(json))
        raise_field(Code::invalid_payload, what, "Give a job such as {\"type\": \"email.send\", \"args\": []}.",
                    "%s must be a JSON object, not %s", what, kind_of(json));
    envelope_from_object(json_of(json), now, parameters_only, envelope);
}

void
envelope_from_object(const JsonbValue &value, TimestampTz now, bool parameters_only, Envelope &envelope)
{
    const JsonbContainer *object = value.val.binary.data;

    /* A byte of it is at most six of text, but for numbers: those that are kept have to be short, and validate() counts
     * them. */
    if (!parameters_only && int64{value.val.binary.len} * 6 > settings.max_envelope_size) {
        check_envelope_size(object);
        envelope.measured = true;
    }
    if (JsonContainerSize(object) == 0)
        return;

    Parse p = {envelope, now, object, 0, {}, nullptr, {}, 0, {}, 0, nullptr, 0};
    p.unknown = static_cast<Kept *>(palloc(sizeof(Kept) * count_members(object)));
    if (parameters_only)
        note_parameters(p);
    read_members(p, object, false);
    merge_metadata(p);
    merge_max_attempts(p);
    apply_delay(p);
    store_options(p);
}

} // namespace ojs
