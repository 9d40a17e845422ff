/*
 * replay.cpp: see replay.h. What a rule finds, and what is done about it: sql/replay.sql.
 */
#include "ojs/upkeep/replay.h"

#include "ojs/pg/settings.h"
#include "ojs/job/attributes.h"
#include "ojs/pg/json.h"
#include "ojs/queue/id_walk.h"
#include "ojs/queue/maintenance.h"
#include "ojs/store/spi.h"
#include "ojs/store/store.h"
#include "ojs/pg/subtransaction.h"

namespace ojs
{

namespace
{

constexpr Code invalid = Code::invalid_payload;
constexpr size_t max_rules = 32;
constexpr size_t max_name = 64;

/* Where nothing changes, only letters whose delay has passed since the last look are looked at. Transactions that took
 * longer than the overlap to bury a letter, and letters that somebody was at, wait for the next full look. */
constexpr int64 overlap_us = 60 * USECS_PER_SEC;
constexpr int64 look_at_all_every_us = 10 * 60 * USECS_PER_SEC;
constexpr int most_subtransactions = 50; /* that write, in one pass: with more than 64, snapshots cost everybody more */

constinit Statement policy_rules = {R"sql(
    select q.config -> 'replay_rules' from ojs_store.queue q
    where q.name = '_default' and q.state <> 'deleted' and q.config ? 'replay_rules' order by q.revised_at desc limit 1
)sql",
                                    {},
                                    nullptr};

/* Queues with dead letters, each once. Others cost nothing. */
constinit IdWalk queues_with_letters = {{R"sql(
    with recursive of(queue) as (
        (select queue from ojs_store.dead_letter where queue >= $1 order by queue limit 1)
        union all
        select (select d.queue from ojs_store.dead_letter d where d.queue > of.queue order by d.queue limit 1)
        from of where of.queue is not null
    )
    select queue from of where queue is not null limit $2
)sql",
                                         {INT8OID, INT4OID},
                                         nullptr},
                                        100,
                                        10 * USECS_PER_SEC,
                                        false,
                                        0,
                                        0,
                                        0,
                                        0};

/* Those of them ($2) that have rules, of their own or ($1) of the policy. */
constinit Statement queues_with_rules = {R"sql(
    select q.id, coalesce(q.config -> 'replay_rules', $1)
    from unnest($2) as of(queue) cross join lateral (
        select any_row from ojs_store.queue any_row where any_row.id = of.queue order by any_row.revised_at desc
            limit 1
    ) newest cross join lateral ojs_store.in_force(any_row) q
    where q.state <> 'deleted' and coalesce(q.config -> 'replay_rules', $1) is not null
    order by q.name
)sql",
                                         {JSONBOID, INT8ARRAYOID},
                                         nullptr};

constinit Statement replay_by_rule = {"select ojs_store.replay_by_rule($1, $2, $3, $4, $5, $6, $7)",
                                      {INT8OID, TEXTOID, JSONBOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT4OID, INT4OID},
                                      nullptr};

/* What was read of a rule: SQL gets values, and parses nothing again. */
struct Rule {
    std::string_view name;
    int64 delay_ms;
    int max_replays;
    bool enabled;
    const Jsonb *filter;
};
static_assert(std::is_trivially_destructible_v<Rule>);

void
check_member(const JsonbValue &value, bool right, const char *field, const char *must)
{
    if (!right)
        refuse(invalid, field, must, value);
}

/* As for ojs.retry_many, without what the queue and its dead letters are given by. Times are absolute: a rule stays. */
const Jsonb *
read_filter(const JsonbValue *filter)
{
    ObjectBuilder out;
    if (filter == nullptr)
        return out.finish();
    check_member(*filter, is_object(*filter), "replay_rules.filter", "an object");
    each_member(filter->val.binary.data, [&](std::string_view key, const JsonbValue &value) {
        const char *field = psprintf("replay_rules.filter.%s", clipped(key));
        int64 n;
        if (key == "type" || key == "error_type")
            (void)text_value(value, invalid, field);
        else if (key == "since" || key == "until") {
            std::string_view given = text_value(value, invalid, field);
            TimeText text;
            if (given.starts_with('+'))
                raise_field(invalid, field, "Give an RFC 3339 timestamp with its zone, such as 2030-01-31T09:30:00Z.",
                            "%s must be an absolute time", field);
            std::string_view at = format_timestamp(parse_timestamp(given, now(), field), false, text);
            out.add(key,
                    std::string_view(pnstrdup(at.data(), at.size()), at.size())); /* kept by reference until finish() */
            return;
        } else if (key == "priority")
            check_member(value, number_of(value, 0, n), field, "a whole number");
        else if (key == "meta")
            check_member(value, is_object(value), field, "an object");
        else if (key == "ended_workflows")
            check_member(value, value.type == jbvBool, field, "a boolean");
        else
            raise_field(invalid, field, "Filter by type, error_type, priority, meta, since, until and ended_workflows.",
                        "%s is nothing to filter by", field);
        out.add(key, value);
    });
    return out.finish();
}

Rule
read_rule(const JsonbValue &rule)
{
    Rule result = {{}, -1, 0, true, nullptr};

    check_member(rule, is_object(rule), "replay_rules", "an array of objects");
    each_member(rule.val.binary.data, [&](std::string_view key, const JsonbValue &value) {
        const char *field = psprintf("replay_rules.%s", clipped(key));
        int64 n;
        if (key == "name")
            result.name = text_value(value, invalid, field);
        else if (key == "filter")
            result.filter = read_filter(&value);
        else if (key == "delay") {
            result.delay_ms = parse_duration_ms(text_value(value, invalid, field), invalid, field);
            if (result.delay_ms < 0)
                raise_field(invalid, field, "Give a duration such as PT1H.", "%s must not be negative", field);
        } else if (key == "max_replays") {
            check_member(value, number_of(value, 0, n) && n > 0 && n <= PG_INT32_MAX, field, "a positive whole number");
            result.max_replays = static_cast<int>(n);
        } else if (key == "enabled") {
            check_member(value, value.type == jbvBool, field, "a boolean");
            result.enabled = value.val.boolean;
        } else
            raise_field(invalid, field, "A rule has name, filter, delay, max_replays and enabled.",
                        "%s is no part of a rule", field);
    });
    if (result.name.empty() || result.name.size() > max_name)
        raise_field(invalid, "replay_rules.name", "Name each rule.", "replay_rules.name must have 1 to %zu bytes",
                    max_name);
    if (result.delay_ms < 0 || result.max_replays == 0) {
        const char *field = result.delay_ms < 0 ? "replay_rules.delay" : "replay_rules.max_replays";
        raise_field(invalid, field, "Give {\"name\": ..., \"delay\": \"PT1H\", \"max_replays\": 3}.", "%s is missing",
                    field);
    }
    if (result.filter == nullptr)
        result.filter = read_filter(nullptr);
    return result;
}

struct QueueRules {
    int64 queue;
    const Jsonb *rules;
};

struct AllRules {
    QueueRules *of;
    uint64 n;
};

AllRules
find_rules(TimestampTz now)
{
    AllRules all = {};
    Ids ids(queues_with_letters.most);
    MemoryContext caller = CurrentMemoryContext;
    with_spi([&] {
        bool none = true;
        plan_by_index();
        next_ids(queues_with_letters, now, ids);
        if (ids.n == 0)
            return;
        Datum policy = execute_latest(policy_rules) > 0 ? cell(0, 1, &none) : 0;
        all.n = execute_latest(queues_with_rules, {none ? SpiArg(nullptr) : SpiArg(policy), ids.array()});
        MemoryContext inner = MemoryContextSwitchTo(caller);
        all.of = static_cast<QueueRules *>(palloc(sizeof(QueueRules) * std::max<uint64>(all.n, 1)));
        for (uint64 i = 0; i < all.n; i++) {
            bool null;
            all.of[i].queue = DatumGetInt64(cell(i, 1, &null));
            all.of[i].rules = DatumGetJsonbPCopy(cell(i, 2, &null));
        }
        MemoryContextSwitchTo(inner);
    });
    return all;
}

/* A look at the dead letters by all rules. */
struct Look {
    TimestampTz at;
    TimestampTz last; /* letters whose delay had passed by then have been looked at */
    int limit;
    int replayed;
    int wrote; /* subtransactions */
    bool failed;

    bool full() const { return replayed >= limit || wrote >= most_subtransactions; }
};

void
replay(Look &look, int64 queue, const JsonbValue &stored)
{
    int n = 0;
    ErrorData *error = attempt([&] {
        Rule rule = read_rule(stored);
        int64 delay_us = rule.delay_ms * 1000;
        if (!rule.enabled)
            return;
        with_spi([&] {
            bool null;
            TimestampTz after = look.last == DT_NOBEGIN ? look.last : look.last - delay_us - overlap_us;
            (void)execute_latest(
                replay_by_rule,
                {Int64GetDatum(queue), PointerGetDatum(cstring_to_text_with_len(rule.name.data(), rule.name.size())),
                 JsonbPGetDatum(rule.filter), TimestampTzGetDatum(after), TimestampTzGetDatum(look.at - delay_us),
                 Int32GetDatum(rule.max_replays), Int32GetDatum(look.limit - look.replayed)});
            n = DatumGetInt32(cell(0, 1, &null));
        });
    });
    if (error != nullptr) {
        if (ends_the_call(*error))
            ReThrowError(error);
        duty_failed(Duty::replay, *error);
        look.failed = true;
        return;
    }
    look.replayed += n;
    look.wrote += n > 0;
}

} // namespace

void
check_replay_rules(const JsonbValue &value)
{
    std::array<std::string_view, max_rules> names;
    size_t n = 0;

    check_member(value, is_array(value), "replay_rules", "an array of objects");
    if (JsonContainerSize(value.val.binary.data) > max_rules)
        raise_field(invalid, "replay_rules", "Let one rule stand for several.",
                    "replay_rules holds more than %zu rules", max_rules);
    each_element(value.val.binary.data, [&](const JsonbValue &rule) {
        std::string_view name = read_rule(rule).name;
        if (std::find(names.begin(), names.begin() + n, name) != names.begin() + n)
            raise_field(invalid, "replay_rules.name", "Give each rule a name of its own.",
                        "replay_rules.name is there twice: \"%s\"", clipped(name));
        names[n++] = name;
    });
}

void
replay_dead_letters(Pass &pass)
{
    static TimestampTz round_at = DT_NOBEGIN, last_round_at = DT_NOBEGIN, all_at;
    static uint64 queues;
    static uint64 clock;
    static bool failed; /* of the last look: until the next one nothing has succeeded since */
    IdWalk &walk = queues_with_letters;
    uint64 generation = store::catalog_generation(store::Rel::queue);
    bool same = queues == generation && clock == clock_generation && pass.at >= walk.looked_at;

    if ((same && !is_due(walk, pass.at)) || IsolationUsesXactSnapshot() || in_maintenance()) {
        pass.failed = failed;
        return;
    }
    if (!same || round_done(walk)) {
        bool all = !same || pass.at - all_at >= look_at_all_every_us;
        last_round_at = all ? DT_NOBEGIN : round_at;
        all_at = all ? pass.at : all_at;
        round_at = pass.at;
        walk.seen = 0;
    }
    int64 next = walk.next;
    Look look = {pass.at, last_round_at, pass.budget, 0, 0, false};
    AllRules rules = find_rules(pass.at);
    for (uint64 i = 0; i < rules.n && !look.full(); i++)
        each_element(root_of(rules.of[i].rules), [&](const JsonbValue &rule) {
            CHECK_FOR_INTERRUPTS();
            if (!look.full())
                replay(look, rules.of[i].queue, rule);
        });
    pass.replayed = look.replayed;
    pass.more |= look.full();
    pass.failed = failed = look.failed;
    queues = look.full() ? PG_UINT64_MAX : generation; /* the next pass looks at these again, at all of their letters */
    clock = clock_generation;
    if (look.full())
        walk.next = next;
}

} // namespace ojs
