/*
 * replay.cpp: see replay.h. What a rule finds, and what is done about it: sql/replay.sql.
 */
#include "ojs/upkeep/replay.h"

#include "ojs/pg/settings.h"
#include "ojs/job/attributes.h"
#include "ojs/pg/json.h"
#include "ojs/queue/maintenance.h"
#include "ojs/store/spi.h"
#include "ojs/store/store.h"

namespace ojs
{

namespace
{

constexpr Code invalid = Code::invalid_payload;
constexpr size_t max_rules = 32;
constexpr size_t max_name = 64;
constexpr int64 look_every_us = 10 * USECS_PER_SEC;

constinit Statement replay = {"select ojs_store.replay_dead_letters($1, $2)", {TIMESTAMPTZOID, INT4OID}, nullptr};

void
check_member(const JsonbValue &value, bool right, const char *field, const char *must)
{
    if (!right)
        refuse(invalid, field, must, value);
}

/* As for ojs.retry_many, without what the queue and its dead letters are given by. */
void
check_filter(const JsonbValue &filter)
{
    check_member(filter, is_object(filter), "replay_rules.filter", "an object");
    each_member(filter.val.binary.data, [](std::string_view key, const JsonbValue &value) {
        const char *field = psprintf("replay_rules.filter.%s", clipped(key));
        int64 n;
        if (key == "type" || key == "error_type")
            (void)text_value(value, invalid, field);
        else if (key == "since" || key == "until")
            (void)parse_timestamp(text_value(value, invalid, field), now(), field);
        else if (key == "priority")
            check_member(value, number_of(value, 0, n), field, "a whole number");
        else if (key == "meta")
            check_member(value, is_object(value), field, "an object");
        else
            raise_field(invalid, field, "Filter by type, error_type, priority, meta, since and until.",
                        "%s is nothing to filter by", field);
    });
}

/* Its name. */
std::string_view
check_rule(const JsonbValue &rule)
{
    std::string_view name;
    bool delayed = false;
    bool bounded = false;

    check_member(rule, is_object(rule), "replay_rules", "an array of objects");
    each_member(rule.val.binary.data, [&](std::string_view key, const JsonbValue &value) {
        const char *field = psprintf("replay_rules.%s", clipped(key));
        int64 n;
        if (key == "name")
            name = text_value(value, invalid, field);
        else if (key == "filter")
            check_filter(value);
        else if (key == "delay") {
            delayed = true;
            if (parse_duration_ms(text_value(value, invalid, field), invalid, field) < 0)
                raise_field(invalid, field, "Give a duration such as PT1H.", "%s must not be negative", field);
        } else if (key == "max_replays") {
            bounded = true;
            check_member(value, number_of(value, 0, n) && n > 0 && n <= PG_INT32_MAX, field, "a positive whole number");
        } else if (key == "enabled")
            check_member(value, value.type == jbvBool, field, "a boolean");
        else
            raise_field(invalid, field, "A rule has name, filter, delay, max_replays and enabled.", "%s is no part of a rule", field);
    });
    if (name.empty() || name.size() > max_name)
        raise_field(invalid, "replay_rules.name", "Name each rule.", "replay_rules.name must have 1 to %zu bytes", max_name);
    if (!delayed || !bounded) {
        const char *field = delayed ? "replay_rules.max_replays" : "replay_rules.delay";
        raise_field(invalid, field, "Give {\"name\": …, \"delay\": \"PT1H\", \"max_replays\": 3}.", "%s is missing", field);
    }
    return name;
}

} // namespace

void
check_replay_rules(const JsonbValue &value)
{
    std::array<std::string_view, max_rules> names;
    size_t n = 0;

    check_member(value, is_array(value), "replay_rules", "an array of objects");
    if (JsonContainerSize(value.val.binary.data) > max_rules)
        raise_field(invalid, "replay_rules", "Let one rule stand for several.", "replay_rules holds more than %zu rules", max_rules);
    each_element(value.val.binary.data, [&](const JsonbValue &rule) {
        std::string_view name = check_rule(rule);
        if (std::find(names.begin(), names.begin() + n, name) != names.begin() + n)
            raise_field(invalid, "replay_rules.name", "Give each rule a name of its own.", "replay_rules.name is there twice: \"%s\"", clipped(name));
        names[n++] = name;
    });
}

int
replay_dead_letters(int limit, TimestampTz now)
{
    static TimestampTz looked_at;
    static uint64 queues;
    static uint64 clock;
    int replayed = 0;

    bool same = queues == store::catalog_generation(store::Rel::queue) && clock == clock_generation;
    if ((same && now >= looked_at && now - looked_at < look_every_us) || IsolationUsesXactSnapshot() || in_maintenance())
        return 0;
    with_spi([&] {
        bool null;
        (void)execute_latest(replay, {TimestampTzGetDatum(now), Int32GetDatum(limit)});
        replayed = DatumGetInt32(cell(0, 1, &null));
    });
    queues = store::catalog_generation(store::Rel::queue);
    clock = clock_generation;
    looked_at = replayed < limit ? now : now - look_every_us;
    return replayed;
}

} // namespace ojs
