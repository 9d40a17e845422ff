/*
 * limit_policy.cpp: see limit_policy.h.
 */
#include "ojs/job/limit_policy.h"

#include "ojs/job/attributes.h"
#include "ojs/pg/near_name.h"

namespace ojs
{

namespace
{

constexpr Code invalid = Code::invalid_payload;
constexpr size_t max_key = 255;

int32
count_of(const JsonbValue &value, const char *field, int32 least)
{
    int64 n;
    if (value.type != jbvNumeric)
        refuse(invalid, field, "a whole number", value);
    if (!number_of(value, 0, n) || n < least || n > PG_INT32_MAX)
        raise_field(invalid, field, "Give a whole number.", "%s must be a whole number from %d to %d", field, least,
                    PG_INT32_MAX);
    return static_cast<int32>(n);
}

int64
period_us(const JsonbValue &value, const char *field)
{
    struct Word {
        std::string_view word;
        int64 seconds;
    };
    constexpr Word words[] = {{"second", 1}, {"minute", 60}, {"hour", 3600}, {"day", 86400}};

    if (value.type != jbvString)
        refuse(invalid, field, "an ISO 8601 duration, or second, minute, hour or day", value);
    for (const Word &word : words)
        if (text_of(value) == word.word)
            return word.seconds * USECS_PER_SEC;
    int64 ms;
    if (!parse_short_duration_ms(text_of(value), ms)) {
        Duration duration = stored_duration(text_of(value), invalid, field);
        ms = duration.ms > max_duration_ms ? duration.ms : fixed_ms(duration);
    }
    if (ms <= 0)
        raise_field(invalid, field, "Give a duration such as PT1M.", "%s must be positive", field);
    return ms * 1000;
}

/* {"limit": 100, "period": "PT1M"} */
StartRate
start_rate(const JsonbValue &value, const char *field, int32 least)
{
    const char *limit_field = psprintf("%s.limit", field);
    const char *period_field = psprintf("%s.period", field);
    JsonbValue limit;
    JsonbValue period;

    if (value.type == jbvNull)
        return {0, 0};
    if (!is_object(value))
        refuse(invalid, field, "an object such as {\"limit\": 100, \"period\": \"PT1M\"}", value);
    if (!find_member(value.val.binary.data, "limit", limit))
        raise_field(invalid, limit_field, "Give the number of starts.", "%s is missing", limit_field);
    if (!find_member(value.val.binary.data, "period", period))
        raise_field(invalid, period_field, "Give a duration such as PT1M.", "%s is missing", period_field);
    return {count_of(limit, limit_field, least), period_us(period, period_field)};
}

OnLimit
on_limit_of(const JsonbValue &value)
{
    constexpr const char *field = "rate_limit.on_limit";
    std::string_view word = value.type == jbvNull ? std::string_view("wait") : text_value(value, invalid, field);
    if (word == "wait")
        return OnLimit::wait;
    if (word == "reschedule")
        return OnLimit::reschedule;
    if (word == "drop")
        return OnLimit::drop;
    raise_field(invalid, field, "Use wait, reschedule or drop.", "%s must be wait, reschedule or drop, not \"%s\"",
                field, clipped(word));
}

constexpr std::string_view members[] = {"key",   "concurrency", "rate",    "throttle", "max_per_second",
                                        "limit", "period",      "on_limit"};

bool
is_member(std::string_view name)
{
    return std::find(std::begin(members), std::end(members), name) != std::end(members);
}

void
refuse_near_member(std::string_view unknown)
{
    NearName near = near_name(unknown);
    for (std::string_view member : members)
        offer(near, member);
    if (near.known.empty())
        return;
    raise_field(invalid, psprintf("rate_limit.%s", clipped(unknown)),
                psprintf("Write %s, or leave it out.", near.known.data()), "rate_limit.%s is not known: is it %s?",
                clipped(unknown), near.known.data());
}

void
check_says_something(const JsonbContainer *limit)
{
    bool all_known = true;
    JsonbValue key;

    each_member(limit, [&all_known](std::string_view name, const JsonbValue &) {
        if (is_member(name))
            return;
        refuse_near_member(name);
        all_known = false;
    });
    if (!says_something(read_limit(limit)) && !(all_known && find_member(limit, "key", key)))
        raise_field(invalid, "rate_limit", "Give it a concurrency, rate or throttle, or leave it out.",
                    "rate_limit limits nothing");
}

} // namespace

void
check_limit_key(std::string_view key, const char *field)
{
    bool good = !key.empty() && key.size() <= max_key;
    for (size_t i = 0; good && i < key.size(); i++) {
        char c = key[i];
        bool alphanumeric = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        good = alphanumeric || (i > 0 && (c == '.' || c == '_' || c == ':' || c == '-'));
    }
    if (!good)
        raise_field(invalid, field, "Use letters, digits and . _ : - after a letter or digit, such as tenant:acme.",
                    "%s is no key of a rate limit: \"%s\"", field, clipped(key));
}

LimitPolicy
read_limit(const JsonbContainer *object, const LimitPolicy &base)
{
    LimitPolicy policy = base;
    JsonbValue value;
    JsonbValue period;

    if (find_member(object, "key", value)) {
        policy.key = text_value(value, invalid, "rate_limit.key");
        check_limit_key(policy.key, "rate_limit.key");
    }
    each_member(object, [&](std::string_view name, const JsonbValue &member) {
        if (name == "concurrency")
            policy.concurrency = member.type == jbvNull ? -1 : count_of(member, "rate_limit.concurrency", 0);
        else if (name == "throttle")
            policy.throttle = start_rate(member, "rate_limit.throttle", 1);
        else if (name == "on_limit")
            policy.on_limit = on_limit_of(member);
        else if (name == "max_per_second")
            policy.rate = {count_of(member, "rate_limit.max_per_second", 0), USECS_PER_SEC};
        else if (name == "rate" && member.type != jbvNumeric)
            policy.rate = start_rate(member, "rate_limit.rate", 0);
        else if (name == "rate") { /* {"rate": 1, "period": "second"} */
            if (!find_member(object, "period", period))
                raise_field(invalid, "rate_limit.period", "Give a duration such as PT1M.",
                            "rate_limit.period is missing");
            policy.rate = {count_of(member, "rate_limit.rate", 0), period_us(period, "rate_limit.period")};
        } else if (name == "limit" && member.type == jbvNull)
            policy.rate = {0, 0};
        else if (name == "limit") { /* {"limit": 100, "period": "PT1M"}, as the Admin API has it */
            if (find_member(object, "rate", period) || find_member(object, "max_per_second", period))
                raise_field(invalid, "rate_limit.limit", "Give the rate once.",
                            "rate_limit.limit and another rate exclude each other");
            if (!find_member(object, "period", period))
                raise_field(invalid, "rate_limit.period", "Give a duration such as PT1M.",
                            "rate_limit.period is missing");
            policy.rate = {count_of(member, "rate_limit.limit", 0), period_us(period, "rate_limit.period")};
        }
    });
    return policy;
}

void
check_limit_members(const JsonbContainer *object)
{
    each_member(object, [](std::string_view name, const JsonbValue &) {
        if (is_member(name))
            return;
        refuse_near_member(name);
        raise_field(invalid, clipped(name),
                    "Its members are concurrency, rate, throttle, max_per_second, limit, period and on_limit.",
                    "a rate limit has no member \"%s\"", clipped(name));
    });
    JsonbValue value;
    if (find_member(object, "period", value) && !find_member(object, "rate", value) &&
        !find_member(object, "limit", value))
        raise_field(invalid, "rate_limit.period", "Give the limit, too.", "rate_limit.period is given without a limit");
}

/* Reading takes longer ones, too: they were let in once. */
void
check_periods(const LimitPolicy &policy)
{
    (void)refuse_too_long(policy.rate.period_us / 1000, invalid, "rate_limit.rate.period");
    (void)refuse_too_long(policy.throttle.period_us / 1000, invalid, "rate_limit.throttle.period");
}

void
check_rate_limit(const JsonbValue &value)
{
    bool good = is_object(value) || (is_array(value) && JsonContainerSize(value.val.binary.data) <= max_limits);

    if (good && is_array(value))
        each_element(value.val.binary.data, [&good](const JsonbValue &limit) { good = good && is_object(limit); });
    if (!good)
        refuse(invalid, "rate_limit", psprintf("an object, or an array of at most %d objects", max_limits), value);
    each_limit(value, check_periods);
}

void
check_limits_something(const JsonbValue &value)
{
    if (is_array(value))
        each_element(value.val.binary.data,
                     [](const JsonbValue &limit) { check_says_something(limit.val.binary.data); });
    else
        check_says_something(value.val.binary.data);
}

} // namespace ojs
