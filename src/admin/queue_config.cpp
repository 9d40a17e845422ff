/*
 * queue_config.cpp: checking what a caller wants a queue to be, for the SQL functions in sql/queue.sql. A configuration
 * is stored with one spelling per setting, clamped, and without what is left to the default.
 */
#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/near_name.h"
#include "ojs/pg/settings.h"
#include "ojs/job/attributes.h"
#include "ojs/job/limit_policy.h"
#include "ojs/queue/queue.h"
#include "ojs/upkeep/replay.h"
#include "ojs/job/retry_policy.h"
#include "ojs/shared/wakeup.h"

using namespace ojs;

namespace
{

constexpr Code invalid = Code::invalid_payload;

enum class Kind {
    flag,
    choice,
    lease,
    jitter,
    count,
    count32,
    level,
    fraction,
    block,
    seconds,
    duration,
    queue,
    retry,
    retention,
    rate,
    patterns,
    texts,
    replay
};

struct Setting {
    std::string_view name;
    const char *stored; /* under which name */
    Kind kind;
};

constexpr Setting known[] = {
    {"administrators", "administrators", Kind::texts},
    {"allowed_job_types", "allowed_job_types", Kind::patterns},
    {"block_timeout", "block_timeout", Kind::block},
    {"block_timeout_ms", "block_timeout", Kind::block},
    {"cancellers", "cancellers", Kind::texts},
    {"claim_jitter_ms", "claim_jitter_ms", Kind::jitter},
    {"claim_rate", "claim_rate", Kind::count32},
    {"concurrency", "concurrency", Kind::count32},
    {"dead_letter", "dead_letter", Kind::queue},
    {"dead_letter_max_size", "dead_letter_max_size", Kind::count},
    {"dead_letter_queue", "dead_letter", Kind::queue},
    {"dead_letter_ttl", "dead_letter_ttl", Kind::duration},
    {"default_retry", "default_retry", Kind::retry},
    {"default_timeout", "default_timeout", Kind::seconds},
    {"default_timeout_ms", "default_timeout", Kind::seconds},
    {"delete_on_ack", "delete_on_ack", Kind::flag},
    {"discard", "discard", Kind::choice},
    {"durable", "durable", Kind::flag},
    {"expiry_counts_attempt", "expiry_counts_attempt", Kind::flag},
    {"lease_log", "lease_log", Kind::flag},
    {"lease_ms", "lease_ms", Kind::lease},
    {"leases_durable", "leases_durable", Kind::flag},
    {"max_deliveries", "max_deliveries", Kind::count32},
    {"max_depth", "max_size", Kind::count},
    {"max_size", "max_size", Kind::count},
    {"max_size_bytes", "max_size_bytes", Kind::count},
    {"overflow_policy", "discard", Kind::choice},
    {"priority_aging_limit", "priority_aging_limit", Kind::level},
    {"priority_aging_s", "priority_aging_s", Kind::count32},
    {"producers", "producers", Kind::texts},
    {"rate_limit", "rate_limit", Kind::rate},
    {"readers", "readers", Kind::texts},
    {"replay_rules", "replay_rules", Kind::replay},
    {"retention", "retention", Kind::retention},
    {"type", "type", Kind::choice},
    {"visibility_timeout", "lease_ms", Kind::lease},
    {"visibility_timeout_ms", "lease_ms", Kind::lease},
    {"warning_threshold", "warning_threshold", Kind::fraction},
    {"workers", "workers", Kind::texts},
};

constexpr int64 max_jitter_ms = 5000;

const Setting *
setting_named(std::string_view name)
{
    for (const Setting &setting : known)
        if (setting.name == name)
            return &setting;
    return nullptr;
}

JsonbValue
count_value(const JsonbValue &value, int64 most, const char *field)
{
    int64 n;
    if (value.type != jbvNumeric)
        refuse(invalid, field, "a number", value);
    if (!number_of(value, 0, n) || n > most)
        raise_field(invalid, field, "Give a whole number; 0 means without bound.",
                    "%s must be a whole number up to %lld", field, static_cast<long long>(most));
    if (n < 0)
        raise_field(invalid, field, "Give a whole number; 0 means without bound.", "%s must not be negative", field);
    return json_number(n);
}

JsonbValue
jitter_value(const JsonbValue &value, const char *field)
{
    int64 n;
    if (value.type != jbvNumeric)
        refuse(invalid, field, "a number of milliseconds", value);
    if (!number_of(value, 0, n)) {
        double d = double_of(value);
        if (d != std::floor(d))
            raise_field(invalid, field, "The finest unit is a millisecond.", "%s has parts of a millisecond", field);
        n = d > 0 ? max_jitter_ms : 0;
    }
    return json_number(std::clamp<int64>(n, 0, max_jitter_ms));
}

JsonbValue
level_value(const JsonbValue &value, const char *field)
{
    int64 n;
    if (value.type != jbvNumeric)
        refuse(invalid, field, "a number", value);
    if (!number_of(value, 0, n) || n < min_priority || n > max_priority)
        raise_field(invalid, field, "Give a priority; higher is served first.",
                    "%s must be a whole number from -100 to 100", field);
    return value;
}

JsonbValue
fraction_value(const JsonbValue &value, const char *field)
{
    if (value.type != jbvNumeric)
        refuse(invalid, field, "a number", value);
    if (!(double_of(value) >= 0 && double_of(value) <= 1))
        raise_field(invalid, field, "Give a part of the bound, such as 0.8.", "%s must be from 0 to 1", field);
    return value;
}

JsonbValue
choice_value(const JsonbValue &value, const char *field, std::initializer_list<std::string_view> choices)
{
    std::string_view given = text_value(value, invalid, field);
    StringInfoData all;
    initStringInfo(&all);
    for (std::string_view choice : choices) {
        if (given == choice)
            return value;
        appendStringInfo(&all, "%s%.*s", all.len > 0 ? ", " : "", static_cast<int>(choice.size()), choice.data());
    }
    raise_field(invalid, field, psprintf("Give one of %s.", all.data), "%s must be one of %s, not \"%s\"", field,
                all.data, clipped(given));
}

/* As it came; zero in the one spelling that src/queue/queue.cpp looks for. */
JsonbValue
duration_text(const JsonbValue &value, const char *field)
{
    if (value.type != jbvString)
        refuse(invalid, field, "an ISO 8601 duration", value);
    return parse_duration_ms(text_of(value), invalid, field) == 0 ? json_text("PT0S") : value;
}

JsonbValue
queue_value(const JsonbValue &value, std::string_view own, const char *field)
{
    std::string_view target = text_value(value, Code::invalid_queue, field);
    validate_queue_name(target, field);
    if (target == own)
        raise_field(invalid, field, "Name another queue, or null for none.", "%s must not be the queue itself", field);
    return value;
}

/* Dashboards write 24h and 7d. */
JsonbValue
retention_text(const JsonbValue &value, const char *field)
{
    int64 ms;
    if (value.type != jbvString || !parse_short_duration_ms(text_of(value), ms))
        return duration_text(value, field);
    bool days = refuse_too_long(ms, invalid, field) % INT64CONST(86400000) == 0 && ms > 0;
    return json_text(days ? psprintf("P" INT64_FORMAT "D", ms / INT64CONST(86400000))
                          : psprintf("PT" INT64_FORMAT "S", ms / 1000));
}

[[noreturn]] void
refuse_retention(std::string_view key, const char *field)
{
    NearName near = near_name(key);
    for (std::string_view state : {"completed", "discarded", "cancelled"})
        offer(near, state);
    raise_field(invalid, field, "It has completed, discarded and cancelled.", "%s is no setting%s%s%s", field,
                near.known.empty() ? "" : ": is it retention.", near.known.empty() ? "" : near.known.data(),
                near.known.empty() ? "" : "?");
}

JsonbValue
retention_value(const JsonbValue &value, const char *field)
{
    ObjectBuilder out;
    if (!is_object(value))
        refuse(invalid, field, "an object", value);
    each_member(value.val.binary.data, [&](std::string_view key, const JsonbValue &member) {
        const char *name = psprintf("retention.%s", clipped(key));
        if (key != "completed" && key != "discarded" && key != "cancelled")
            refuse_retention(key, name);
        if (member.type != jbvNull)
            out.add(key, retention_text(member, name));
    });
    return json_of(out.finish());
}

JsonbValue
texts_value(const JsonbValue &value, bool patterns, const char *field)
{
    if (!is_array(value))
        refuse(invalid, field, "an array of strings", value);
    if (JsonContainerSize(value.val.binary.data) == 0)
        raise_field(invalid, field, "Leave it out to allow all.", "%s must not be empty", field);
    each_element(value.val.binary.data, [&](const JsonbValue &element) {
        if (element.type != jbvString || element.val.string.len == 0)
            raise_field(invalid, field, "Give an array such as [\"email.*\"].", "%s must hold non-empty strings only",
                        field);
        std::string_view text = text_of(element);
        size_t star = text.find('*');
        if (patterns && star != std::string_view::npos && text != "*" &&
            (star + 1 != text.size() || !text.ends_with(".*") || text.size() == 2))
            raise_field(invalid, field, "A pattern is a type, \"*\", or \"prefix.*\".",
                        "%s holds \"%s\", which is no pattern", field, clipped(text));
    });
    return value;
}

JsonbValue
setting_value(const Setting &setting, std::string_view own, const JsonbValue &value)
{
    const char *field = pnstrdup(setting.name.data(), setting.name.size());
    JsonbValue member;

    switch (setting.kind) {
    case Kind::flag:
        if (value.type != jbvBool)
            refuse(invalid, field, "a boolean", value);
        return value;
    case Kind::choice:
        return std::string_view(setting.stored) == "type"
                   ? choice_value(value, field, {"queue", "log"})
                   : choice_value(value, field, {"reject", "drop_oldest", "block"});
    case Kind::lease:
        return json_number(lease_value(value, setting.name, field));
    case Kind::jitter:
        return jitter_value(value, field);
    case Kind::count:
        return count_value(value, PG_INT64_MAX, field);
    case Kind::count32:
        return count_value(value, PG_INT32_MAX, field);
    case Kind::level:
        return level_value(value, field);
    case Kind::fraction:
        return fraction_value(value, field);
    case Kind::block:
        return json_seconds(std::min<int64>(duration_value(value, setting.name, field), max_block_ms));
    case Kind::seconds:
        return json_seconds(duration_value(value, setting.name, field));
    case Kind::duration:
        return duration_text(value, field);
    case Kind::queue:
        return queue_value(value, own, field);
    case Kind::retry:
        if (!is_object(value))
            refuse(Code::invalid_retry_policy, field, "an object", value);
        check_retry_names(jsonb_of(value));
        (void)read_retry_policy(jsonb_of(value));
        return value;
    case Kind::retention:
        return retention_value(value, field);
    case Kind::rate:
        if (!is_object(value))
            refuse(invalid, field, "an object", value);
        if (find_member(value.val.binary.data, "key", member))
            raise_field(invalid, "rate_limit.key", "Leave it out: the limits of a queue have the key queue:NAME.",
                        "rate_limit.key cannot be set for a queue");
        check_limit_members(value.val.binary.data);
        check_rate_limit(value);
        return value;
    case Kind::patterns:
    case Kind::texts:
        return texts_value(value, setting.kind == Kind::patterns, field);
    case Kind::replay:
        check_replay_rules(value);
        return value;
    }
    pg_unreachable();
}

/* A type is given with the queue's creation and stays; none in the configuration is "queue". */
void
check_type_stays(const Jsonb *base, const JsonbValue &wanted, std::string_view name)
{
    JsonbValue value;
    std::string_view is = find_member(root_of(base), "type", value) ? text_of(value) : std::string_view("queue");
    if (is != text_of(wanted))
        raise(Code::topic_exists_incompatible, Details().add("queue", name).add("field", "type").add("type", is),
              "Drop the queue first, or use another name.", "queue \"%.*s\" exists and its type is %.*s, not %s",
              static_cast<int>(name.size()), name.data(), static_cast<int>(is.size()), is.data(),
              clipped(text_of(wanted)));
}

struct GivenSetting {
    const char *stored;
    JsonbValue value; /* null: back to the default */
};

/* The names of all settings, without their aliases. */
const char *
setting_names()
{
    StringInfoData all;
    initStringInfo(&all);
    for (const Setting &setting : known)
        if (setting.name == setting.stored)
            appendStringInfo(&all, "%s%s", all.len > 0 ? ", " : "", setting.stored);
    return all.data;
}

[[noreturn]] void
refuse_unknown(std::string_view key)
{
    NearName near = near_name(key);
    for (const Setting &setting : known)
        offer(near, setting.name);
    if (near.known.empty())
        raise_field(invalid, clipped(key), psprintf("The settings are %s.", setting_names()),
                    "%s is no setting of a queue", clipped(key));
    raise_field(invalid, clipped(key), psprintf("Write %s, or leave it out.", near.known.data()),
                "%s is no setting of a queue: is it %s?", clipped(key), near.known.data());
}

/* The settings of the call, each once, in their stored form. */
int
read_settings(const Jsonb *given, std::string_view name, GivenSetting *out)
{
    int n = 0;
    each_member(root_of(given), [&](std::string_view key, const JsonbValue &value) {
        const Setting *setting = setting_named(key);
        if (setting == nullptr)
            refuse_unknown(key);
        GivenSetting one = {setting->stored, value};
        if (value.type != jbvNull)
            one.value = setting_value(*setting, name, value);
        for (int i = 0; i < n; i++)
            if (strcmp(out[i].stored, one.stored) == 0 && !same_json(out[i].value, one.value))
                raise_field(invalid, clipped(key), "Give it by one of its names.", "%s says something else than %s",
                            clipped(key), one.stored);
        out[n++] = one;
    });
    return n;
}

} // namespace

/* ojs_store.check_queue_name(name text) returns void */
OJS_FUNCTION(ojs_check_queue_name)
{
    validate_queue_name(view(PG_GETARG_TEXT_PP(0)));
    PG_RETURN_VOID();
}

/* ojs_store.queue_config(name text, base jsonb, given jsonb) returns jsonb: the configuration to store; base is null
 * for a queue that does not exist */
OJS_FUNCTION(ojs_queue_config)
{
    enum { p_name, p_base, p_given };
    if (PG_ARGISNULL(p_name))
        raise_field(Code::invalid_queue, "name", "Name a queue.", "name must not be null");
    std::string_view name = view(PG_GETARG_TEXT_PP(p_name));
    bool is_policy = name == default_policy_name;
    if (!is_policy)
        validate_queue_name(name);
    Jsonb *base = jsonb_or_null(fcinfo, p_base);
    Jsonb *given = jsonb_or_null(fcinfo, p_given);
    if (given != nullptr && !is_object(given))
        raise_field(invalid, "config", "Give an object such as {\"lease_ms\": 60000}.",
                    "config must be an object, not %s", kind_of(given));
    if (given != nullptr) {
        constexpr int64 longest_config = 65536;
        Extent extent = extent_of(root_of(given));
        if (extent.text > longest_config || extent.number > longest_number)
            raise_field(invalid, "config", "Give the settings alone.",
                        "config has " INT64_FORMAT " bytes as JSON, or a number of more than %d digits: " INT64_FORMAT
                        " bytes are allowed",
                        extent.text, static_cast<int>(longest_number), longest_config);
    }

    GivenSetting *settings_given = nullptr;
    int n = 0;
    if (given != nullptr) {
        settings_given =
            static_cast<GivenSetting *>(palloc(sizeof(GivenSetting) * std::max<uint32>(JB_ROOT_COUNT(given), 1)));
        n = read_settings(given, name, settings_given);
    }

    ObjectBuilder out;
    if (base != nullptr)
        each_member(root_of(base), [&](std::string_view key, const JsonbValue &value) {
            for (int i = 0; i < n; i++)
                if (key == settings_given[i].stored && key != "type")
                    return;
            out.add(key, value);
        });
    for (int i = 0; i < n; i++) {
        const GivenSetting &one = settings_given[i];
        if (one.value.type == jbvNull)
            continue;
        if (strcmp(one.stored, "type") == 0) {
            if (is_policy)
                raise_field(invalid, "type", "Give each queue its type.", "type cannot be part of the default policy");
            if (base != nullptr) {
                check_type_stays(base, one.value, name);
                continue;
            }
            if (text_of(one.value) == "queue")
                continue;
        }
        if (is_policy && strncmp(one.stored, "priority_aging", strlen("priority_aging")) == 0)
            raise_field(invalid, one.stored, "Give it to each queue.", "%s is each queue's own", one.stored);
        out.add(one.stored, one.value);
    }
    return JsonbPGetDatum(out.finish());
}

/* ojs_store.effective_config(config jsonb, is_policy boolean) returns jsonb: with all defaults filled in */
OJS_FUNCTION(ojs_effective_config)
{
    Jsonb *config = PG_GETARG_JSONB_P(0);
    char *text = psprintf(
        "{\"type\": \"queue\", \"durable\": true, \"discard\": \"reject\", \"lease_ms\": %d,"
        " \"claim_jitter_ms\": 0, \"claim_rate\": 0, \"max_deliveries\": 0, \"dead_letter\": null,"
        " \"leases_durable\": false, \"lease_log\": false, \"delete_on_ack\": false,"
        " \"max_size\": 0, \"max_size_bytes\": 0, \"block_timeout\": 0, \"warning_threshold\": 0.8,"
        " \"concurrency\": 0, \"default_timeout\": 1800, \"priority_aging_s\": 0, \"priority_aging_limit\": 100,"
        " \"retention\": {\"completed\": \"P7D\", \"discarded\": \"P30D\", \"cancelled\": \"P7D\"},"
        " \"dead_letter_ttl\": \"P180D\", \"dead_letter_max_size\": 10000, \"replay_rules\": [],"
        " \"allowed_job_types\": [\"*\"], \"producers\": [\"*\"], \"workers\": [\"*\"]}",
        settings.default_lease_ms);
    Jsonb *system = DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(text)));
    Jsonb *given = PG_GETARG_BOOL(1) ? config : merge_queue_config(default_policy(), config);
    JsonbValue value;
    bool bounded = find_member(root_of(given), "dead_letter", value) &&
                   find_member(root_of(given), "max_deliveries", value) && double_of(value) > 0;

    ObjectBuilder out;
    each_member(root_of(system), [&out](std::string_view key, const JsonbValue &member) { out.add(key, member); });
    out.add("expiry_counts_attempt", json_bool(!bounded));
    out.add("default_retry", effective_retry_policy(nullptr));
    each_member(root_of(given), [&](std::string_view key, const JsonbValue &member) {
        if (key == "default_retry")
            out.add(key, effective_retry_policy(jsonb_of(member)));
        else if (key == "retention") {
            JsonbValue standard;
            (void)find_member(root_of(system), "retention", standard);
            out.add(key, merge_queue_config(jsonb_of(standard), jsonb_of(member)));
        } else
            out.add(key, member);
    });
    return JsonbPGetDatum(out.finish());
}

/* ojs_store.merged_config(base jsonb, over jsonb) returns jsonb */
OJS_FUNCTION(ojs_merged_config)
{
    PG_RETURN_JSONB_P(merge_queue_config(PG_GETARG_JSONB_P(0), PG_GETARG_JSONB_P(1)));
}

/* ojs_store.wake(queue text): all who wait for this queue look again once this transaction has committed */
OJS_FUNCTION(ojs_wake)
{
    const Queue *found = find_queue(view(PG_GETARG_TEXT_PP(0)));
    if (found == nullptr)
        PG_RETURN_VOID();
    Queue queue = *found;
    wake_queue(queue.id, queue.name, PG_INT32_MAX);
    PG_RETURN_VOID();
}
