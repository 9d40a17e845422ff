/*
 * retry_policy.cpp: retry policies: reading and completing them, and what they say of a failed attempt.
 */
#include "ojs/job/retry_policy.h"

#include "ojs/pg/json.h"
#include "ojs/pg/near_name.h"

namespace ojs
{

namespace
{

constexpr RetryPolicy system_default = {3, 1000, 2.0, 300000, true, false, Backoff::exponential, nullptr};

/* The names of one field; all but the first are aliases. */
struct Field {
    const char *names[3];
};
constexpr Field field_max_attempts = {{"max_attempts"}};
constexpr Field field_initial = {{"initial_interval", "initial_interval_ms", "initial_delay_ms"}};
constexpr Field field_coefficient = {{"backoff_coefficient"}};
constexpr Field field_max = {{"max_interval", "max_interval_ms"}};
constexpr Field field_jitter = {{"jitter"}};
constexpr Field field_non_retryable = {{"non_retryable_errors"}};
constexpr Field field_exhaustion = {{"on_exhaustion"}};
constexpr Field field_strategy = {{"backoff_strategy", "strategy"}};
constexpr const Field *fields[] = {&field_max_attempts, &field_initial,       &field_coefficient, &field_max,
                                   &field_jitter,       &field_non_retryable, &field_exhaustion,  &field_strategy};

const char *
qualified(const char *name)
{
    return psprintf("retry.%s", name);
}

[[noreturn]] void
refuse(const char *name, const char *must, const JsonbValue &value)
{
    raise_field(Code::invalid_retry_policy, qualified(name),
                "Correct the retry policy, or leave the field out for its default.", "retry.%s must be %s, not %s",
                name, must, kind_of(value));
}

[[noreturn]] void
refuse_value(const char *name, const char *must)
{
    raise_field(Code::invalid_retry_policy, qualified(name),
                "Correct the retry policy, or leave the field out for its default.", "retry.%s must be %s", name, must);
}

bool
has(const JsonbContainer *policy, const Field &field)
{
    JsonbValue value;
    for (const char *name : field.names)
        if (name != nullptr && find_member(policy, name, value))
            return true;
    return false;
}

const Field *
field_named(std::string_view name)
{
    for (const Field *field : fields)
        for (const char *known : field->names)
            if (known != nullptr && name == known)
                return field;
    return nullptr;
}

/* One spelling of an interval: text is ISO 8601, "…_ms" a number. */
bool
read_interval(const JsonbContainer *policy, const char *name, int64 &ms)
{
    JsonbValue value;

    if (!find_member(policy, name, value))
        return false;
    if (std::string_view(name).ends_with("_ms")) {
        if (value.type != jbvNumeric)
            refuse(name, "a number of milliseconds", value);
        if (!number_of(value, 0, ms) || ms > max_duration_ms)
            refuse_value(name, "a whole number of milliseconds, at most 100 years");
    } else {
        if (value.type != jbvString)
            refuse(name, "an ISO 8601 duration", value);
        ms = fixed_ms(stored_duration(text_of(value), Code::invalid_retry_policy, qualified(name)));
    }
    if (ms <= 0)
        refuse_value(name, "longer than zero");
    return true;
}

bool
read_interval(const JsonbContainer *policy, const Field &field, int64 &ms)
{
    const char *given = nullptr;

    for (const char *name : field.names) {
        int64 found;
        if (name == nullptr || !read_interval(policy, name, found))
            continue;
        if (given != nullptr && found != ms)
            raise_field(Code::invalid_retry_policy, qualified(name), "Give one of the two.",
                        "retry.%s and retry.%s say different things", given, name);
        given = name;
        ms = found;
    }
    return given != nullptr;
}

Backoff
strategy_named(std::string_view name, const char *field)
{
    if (name == "exponential")
        return Backoff::exponential;
    if (name == "linear")
        return Backoff::linear;
    if (name == "constant" || name == "none")
        return Backoff::constant;
    if (name == "polynomial")
        return Backoff::polynomial;
    refuse_value(field, "exponential, linear, constant, none or polynomial");
}

void
read_strategy(const JsonbContainer *policy, RetryPolicy &out)
{
    const char *given = nullptr;
    JsonbValue value;

    for (const char *name : {"backoff_strategy", "strategy"}) {
        if (!find_member(policy, name, value))
            continue;
        if (value.type != jbvString)
            refuse(name, "the name of a strategy", value);
        Backoff found = strategy_named(text_of(value), name);
        if (given != nullptr && found != out.backoff)
            raise_field(Code::invalid_retry_policy, qualified(name), "Give one of the two.",
                        "retry.%s and retry.%s say different things", given, name);
        given = name;
        out.backoff = found;
    }
}

const JsonbContainer *
read_error_types(const JsonbContainer *policy)
{
    constexpr const char *name = "non_retryable_errors";
    JsonbValue value;

    if (!find_member(policy, name, value))
        return nullptr;
    if (!is_array(value))
        refuse(name, "an array of error types", value);
    each_element(value.val.binary.data, [](const JsonbValue &element) {
        if (element.type != jbvString || element.val.string.len == 0)
            refuse_value(name, "an array of non-empty strings");
    });
    return value.val.binary.data;
}

bool
matches(const JsonbContainer *types, std::string_view type)
{
    uint32 n = types != nullptr ? JsonContainerSize(types) : 0;

    for (uint32 i = 0; i < n; i++) {
        JsonbValue *element = getIthJsonbValueFromContainer(const_cast<JsonbContainer *>(types), i);
        std::string_view entry = text_of(*element);
        if (entry == type || (entry.ends_with(".*") && type.starts_with(entry.substr(0, entry.size() - 1))))
            return true;
    }
    return false;
}

void
add_missing(ObjectBuilder &out, const JsonbContainer *given, const RetryPolicy &policy)
{
    auto missing = [given](const Field &field) { return given == nullptr || !has(given, field); };
    auto canonical = [given](const char *name) {
        JsonbValue value;
        return given != nullptr && find_member(given, name, value);
    };
    TimeText buffer;

    if (missing(field_max_attempts))
        out.add("max_attempts", static_cast<int64>(policy.max_attempts));
    if (!canonical("initial_interval"))
        out.add("initial_interval", pstrdup(format_duration(policy.initial_ms, buffer).data()));
    if (missing(field_coefficient))
        out.add("backoff_coefficient", static_cast<int64>(policy.coefficient));
    if (!canonical("max_interval"))
        out.add("max_interval", pstrdup(format_duration(policy.max_ms, buffer).data()));
    if (missing(field_jitter))
        out.add("jitter", json_bool(policy.jitter));
    if (missing(field_non_retryable)) {
        JsonbParseState *array = nullptr;
        pushJsonbValue(&array, WJB_BEGIN_ARRAY, nullptr);
        out.add("non_retryable_errors", *pushJsonbValue(&array, WJB_END_ARRAY, nullptr));
    }
    if (missing(field_exhaustion))
        out.add("on_exhaustion", policy.to_dead_letter ? "dead_letter" : "discard");
}

Jsonb *
complete(const JsonbContainer *given, const RetryPolicy &policy)
{
    ObjectBuilder out;

    if (given != nullptr)
        each_member(given, [&out](std::string_view key, const JsonbValue &value) {
            if (value.type != jbvNull)
                out.add(key, value);
        });
    add_missing(out, given, policy);
    return out.finish();
}

/* Whether a policy says everything already, so that it can be shown as it is. */
bool
is_complete(const JsonbContainer *given)
{
    JsonbValue value;
    bool complete = true;

    for (const char *name : {"max_attempts", "initial_interval", "backoff_coefficient", "max_interval", "jitter",
                             "non_retryable_errors", "on_exhaustion"})
        if (!find_member(given, name, value))
            return false;
    each_member(given, [&complete](std::string_view, const JsonbValue &member) {
        complete = complete && member.type != jbvNull;
    });
    return complete;
}

Jsonb *system_default_json; /* made at first need, in TopMemoryContext */

void
require_object(const Jsonb *policy)
{
    if (!is_object(policy))
        raise_field(Code::invalid_retry_policy, "retry",
                    "Give a policy such as {\"max_attempts\": 5}, or leave it out.", "retry must be an object, not %s",
                    kind_of(policy));
}

/* What other libraries call max_attempts. */
constexpr std::string_view other_words[] = {"attempts",   "retries",   "tries",   "max_retries",
                                            "maxRetries", "max_tries", "maxTries"};

[[noreturn]] void
refuse_unknown(std::string_view given, const char *known, const char *hint)
{
    raise_field(Code::invalid_retry_policy, qualified(clipped(given)), hint, "retry.%s is not known: is it %s?",
                clipped(given), known);
}

} // namespace

void
check_retry_names(const Jsonb *policy)
{
    if (policy == nullptr || !is_object(policy))
        return;
    each_member(root_of(policy), [](std::string_view given, const JsonbValue &value) {
        const Field *found = field_named(given);
        if ((found == &field_initial || found == &field_max) && value.type == jbvString && !given.ends_with("_ms"))
            (void)parse_duration(text_of(value), Code::invalid_retry_policy, qualified(clipped(given)));
        if (found != nullptr)
            return;
        if (std::find(std::begin(other_words), std::end(other_words), given) != std::end(other_words))
            refuse_unknown(given, "max_attempts", "Write max_attempts, which counts the first attempt, too.");
        NearName near = near_name(given);
        for (const Field *field : fields)
            for (const char *known : field->names)
                if (known != nullptr)
                    offer(near, known);
        if (!near.known.empty())
            refuse_unknown(given, near.known.data(), psprintf("Write %s, or leave it out.", near.known.data()));
    });
}

RetryPolicy
read_retry_policy(const Jsonb *json)
{
    RetryPolicy policy = system_default;
    JsonbValue value;
    int64 n;

    if (json == nullptr)
        return policy;
    require_object(json);
    const JsonbContainer *given = root_of(json);

    if (find_member(given, "max_attempts", value)) {
        if (value.type != jbvNumeric)
            refuse("max_attempts", "a number", value);
        if (!number_of(value, 0, n) || n < 0 || n > PG_INT32_MAX)
            refuse_value("max_attempts", "a whole number, not negative");
        policy.max_attempts = static_cast<int>(n);
    }
    if (find_member(given, "backoff_coefficient", value)) {
        if (value.type != jbvNumeric)
            refuse("backoff_coefficient", "a number", value);
        policy.coefficient = double_of(value);
        if (policy.coefficient < 1.0)
            refuse_value("backoff_coefficient", "at least 1.0");
    }
    (void)read_interval(given, field_initial, policy.initial_ms);
    if (!read_interval(given, field_max, policy.max_ms))
        policy.max_ms = std::max(policy.max_ms, policy.initial_ms); /* */
    else if (policy.max_ms < policy.initial_ms)
        refuse_value("max_interval", "no shorter than retry.initial_interval");
    if (find_member(given, "jitter", value)) {
        if (value.type != jbvBool)
            refuse("jitter", "a boolean", value);
        policy.jitter = value.val.boolean;
    }
    policy.non_retryable = read_error_types(given);
    if (find_member(given, "on_exhaustion", value)) {
        if (value.type != jbvString)
            refuse("on_exhaustion", "discard or dead_letter", value);
        if (text_of(value) != "discard" && text_of(value) != "dead_letter")
            refuse_value("on_exhaustion", "discard or dead_letter");
        policy.to_dead_letter = text_of(value) == "dead_letter";
    }
    read_strategy(given, policy);
    return policy;
}

Jsonb *
effective_retry_policy(const Jsonb *json)
{
    if (json != nullptr)
        return is_complete(root_of(json)) ? const_cast<Jsonb *>(json)
                                          : complete(root_of(json), read_retry_policy(json));
    if (system_default_json == nullptr) {
        Jsonb *made = complete(nullptr, system_default);
        void *kept = MemoryContextAlloc(TopMemoryContext, VARSIZE(made));
        system_default_json = static_cast<Jsonb *>(memcpy(kept, made, VARSIZE(made)));
    }
    return system_default_json;
}

Jsonb *
merge_retry_policy(const Jsonb *base, const Jsonb *policy)
{
    if (base == nullptr || policy == nullptr)
        return const_cast<Jsonb *>(base == nullptr ? policy : base);
    require_object(policy);

    const JsonbContainer *given = root_of(policy);
    RetryPolicy inherited = read_retry_policy(base);
    int64 initial_ms = 0;
    bool drop_max = read_interval(given, field_initial, initial_ms) && inherited.max_ms < initial_ms;
    ObjectBuilder out;

    each_member(root_of(base), [&](std::string_view key, const JsonbValue &value) {
        const Field *field = field_named(key);
        bool replaced = field != nullptr && (has(given, *field) || (field == &field_max && drop_max));
        if (value.type != jbvNull && !replaced)
            out.add(key, value);
    });
    each_member(given, [&](std::string_view key, const JsonbValue &value) {
        if (value.type != jbvNull)
            out.add(key, value);
    });
    return out.finish();
}

Verdict
retry_verdict(const RetryPolicy &policy, const ReportedError &error, int attempt)
{
    Verdict end = policy.to_dead_letter ? Verdict::dead_letter : Verdict::discard;

    if (error.directive == "DEAD_LETTER")
        return Verdict::dead_letter;
    if (error.directive == "DISCARD" || error.directive == "FAIL")
        return Verdict::discard;
    if (attempt >= policy.max_attempts)
        return end;
    if (error.type == "shutdown" || error.type == "ShutdownError")
        return Verdict::retry; /* nothing was wrong with the job */
    if (!error.retryable && error.directive != "RETRY")
        return end;
    return matches(policy.non_retryable, error.type) ? end : Verdict::retry;
}

int64
retry_delay_ms(const RetryPolicy &policy, int n)
{
    auto initial = static_cast<double>(policy.initial_ms);
    auto most = static_cast<double>(policy.max_ms);
    double delay = initial;

    n = std::max(n, 1);
    switch (policy.backoff) {
    case Backoff::exponential:
        delay = initial * std::pow(policy.coefficient, n - 1);
        break;
    case Backoff::linear:
        delay = initial * n;
        break;
    case Backoff::constant:
        break;
    case Backoff::polynomial:
        delay = initial * std::pow(n, policy.coefficient);
        break;
    }
    delay = std::min(delay, most); /* an overflow is infinity, and ends here */
    if (policy.jitter) {
        double random = static_cast<double>(random64() >> 11) * 0x1.0p-53;
        delay = std::min(delay * (0.5 + random), most);
    }
    return std::llround(delay); /* 1 ms at least: half of that is rounded up */
}

} // namespace ojs
