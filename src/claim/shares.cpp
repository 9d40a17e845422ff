/*
 * shares.cpp: see shares.h.
 */
#include "ojs/claim/shares.h"

#include "ojs/claim/fair.h"
#include "ojs/claim/walk.h"
#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"

namespace ojs
{

namespace
{

struct Turn {
    uint64 set; /* of queues and weights */
    int64 at;
};
constexpr int n_turns = 256; /* sets whose turns a session knows; another set in the place of one begins by chance */
Turn turns[n_turns];

int64
common_divisor(int64 a, int64 b)
{
    return b == 0 ? a : common_divisor(b, a % b);
}

int64
next_turn(uint64 set, int64 weight, int n, int jobs)
{
    Turn &turn = turns[set % n_turns];
    if (turn.set != set || turn.at >= weight)
        turn = {set, static_cast<int64>(random64() % static_cast<uint64>(weight))};
    int64 at = turn.at;
    turn.at = (at + step_of(weight, n, jobs)) % weight;
    return at;
}

bool
is_strategy(std::string_view given, std::string_view name)
{
    return given.size() == name.size() && std::equal(given.begin(), given.end(), name.begin(),
                                                     [](char a, char b) { return a == b || (a == '_' && b == '-'); });
}

} // namespace

int64
step_of(int64 weight, int n, int jobs)
{
    int64 step = weight == n ? jobs % weight /* of equal queues, one after the other */
                             : static_cast<int64>(static_cast<double>(weight) * 0.6180339887);
    for (step = std::max<int64>(step, 1); common_divisor(step, weight) != 1;)
        step++;
    return step;
}

int32 *
weights_by(const text *strategy, const Jsonb *weights, const std::string_view *queues, int n)
{
    std::string_view given = strategy != nullptr ? view(strategy) : "strict";
    bool weighted = is_strategy(given, "weighted");
    bool strict = is_strategy(given, "strict");

    if (is_strategy(given, "least-loaded"))
        raise(Code::unsupported_feature, Details().add("field", "strategy"), "Use strict, round-robin or weighted.",
              "the strategy least-loaded is not supported");
    if (!weighted && !strict && !is_strategy(given, "round-robin"))
        raise_field(Code::invalid_payload, "strategy", "Use strict, round-robin or weighted.",
                    "strategy must be strict, round-robin or weighted");
    if (weights != nullptr && (!weighted || !is_object(weights)))
        raise_field(Code::invalid_payload, "weights",
                    "Give an object such as {\"critical\": 5, \"default\": 2} with the strategy weighted.",
                    weighted ? "weights must be an object" : "weights belong to the strategy weighted");
    if (strict)
        return nullptr;
    if (n > most_shared)
        raise_field(Code::invalid_queue, "queues", "Name fewer queues, or let them be served strictly in their order.",
                    "a claim by weights takes at most %d queues", most_shared);
    auto *result = static_cast<int32 *>(palloc(sizeof(int32) * std::max(n, 1)));
    std::fill(result, result + n, 1);
    if (weights == nullptr)
        return result;
    each_member(root_of(weights), [&](std::string_view name, const JsonbValue &value) {
        int64 weight;
        const std::string_view *queue = std::find(queues, queues + n, name);
        if (queue == queues + n)
            raise_field(Code::invalid_payload, "weights", "Give weights to the queues that are named.",
                        "weights names a queue that is not among the queues: \"%s\"",
                        pnstrdup(name.data(), pg_mbcliplen(name.data(), static_cast<int>(name.size()), 64)));
        if (!number_of(value, 0, weight) || weight < 1 || weight > most_weight)
            raise_field(Code::invalid_payload, "weights", "Give whole numbers; leave out a queue for 1.",
                        "each of weights must be a number from 1 to %d", most_weight);
        for (const std::string_view *same = queue; same < queues + n; same++)
            if (*same == name)
                result[same - queues] = static_cast<int32>(weight);
    });
    return result;
}

Shares
shares_of(const Request &request)
{
    auto alloc = [&request](size_t size) { return palloc(size * std::max(request.n, 1)); };
    Shares shares = {0, static_cast<int *>(alloc(sizeof(int))), static_cast<int64 *>(alloc(sizeof(int64))),
                     static_cast<int *>(alloc(sizeof(int)))};
    int64 common = 0;
    for (int i = 0; i < request.n; i++) {
        if (request.queues[i].state == QueueState::paused)
            continue;
        shares.queue[shares.n] = i;
        shares.weight[shares.n++] = request.weights[i];
        common = common_divisor(common, request.weights[i]);
    }
    for (int i = 0; i < shares.n; i++)
        shares.weight[i] /= common;
    return shares;
}

bool
share_out(Shares &shares, const Request &request, int jobs)
{
    int n = 0;
    int64 weight = 0;
    uint64 set = 0;
    for (int i = 0; i < shares.n; i++) {
        if (shares.weight[i] == 0)
            continue;
        shares.queue[n] = shares.queue[i];
        shares.weight[n] = shares.weight[i];
        weight += shares.weight[n];
        set += hash_combine64(static_cast<uint64>(request.queues[shares.queue[n]].id) * UINT64CONST(0x9E3779B97F4A7C15),
                              static_cast<uint64>(shares.weight[n]));
        n++;
    }
    shares.n = n;
    if (n == 0)
        return false;
    int64 turn = next_turn(set, weight, n, jobs);
    int64 end = 0;
    int64 before = 0;
    /* A queue has a stretch of jobs * its weight; it gets a job for each of turn, turn + weight, … that lies in it. */
    for (int i = 0; i < n; i++) {
        end += jobs * shares.weight[i];
        int64 upto = end <= turn ? 0 : (end - turn + weight - 1) / weight;
        shares.part[i] = static_cast<int>(upto - before);
        before = upto;
    }
    return true;
}

/*
 * Each queue gives its part of what the claim may still have. What a queue has too few jobs for is divided again among
 * the others, until the claim is full or none has more: each round but the last ends a queue.
 */
void
walk_by_weight(Walk &walk, bool from_start)
{
    Shares shares = shares_of(walk.request);
    while (walk.n < walk.max && share_out(shares, walk.request, walk.max - walk.n))
        for (int i = 0; i < shares.n; i++) {
            int wanted = walk.n + shares.part[i];
            walk.most = std::min(wanted, most_with(walk, shares.queue[i]));
            if (walk.n < walk.most)
                walk_queue(walk, shares.queue[i], from_start);
            if (walk.n < wanted)
                shares.weight[i] = 0;
        }
}

void
take_turns(ClaimedJob *taken, int n, const int32 *weights)
{
    int rank = 0;
    for (int i = 0; i < n; i++) {
        rank = i > 0 && taken[i].queue_position == taken[i - 1].queue_position ? rank + 1 : 0;
        taken[i].rank = rank;
    }
    std::sort(taken, taken + n, [weights](const ClaimedJob &a, const ClaimedJob &b) {
        int64 at = (2 * a.rank + 1) * static_cast<int64>(weights[b.queue_position]);
        int64 other = (2 * b.rank + 1) * static_cast<int64>(weights[a.queue_position]);
        return at != other                            ? at < other
               : a.queue_position != b.queue_position ? a.queue_position < b.queue_position
                                                      : a.rank < b.rank;
    });
}

} // namespace ojs

using namespace ojs;

/* ojs_store.weights_by(strategy text, weights jsonb, queues text[]) returns int[]: checked; null for strict */
OJS_FUNCTION(ojs_weights_by)
{
    Texts names = texts_arg(fcinfo, 2, "queues");
    auto *queues = static_cast<std::string_view *>(palloc(sizeof(std::string_view) * std::max(names.n, 1)));
    for (int i = 0; i < names.n; i++)
        queues[i] = view(names.texts[i]);
    int32 *weights = weights_by(text_or_null(fcinfo, 0), jsonb_or_null(fcinfo, 1), queues, names.n);
    if (weights == nullptr)
        PG_RETURN_NULL();
    auto *datums = static_cast<Datum *>(palloc(sizeof(Datum) * std::max(names.n, 1)));
    std::transform(weights, weights + names.n, datums, [](int32 weight) { return Int32GetDatum(weight); });
    PG_RETURN_ARRAYTYPE_P(construct_array(datums, names.n, INT4OID, sizeof(int32), true, TYPALIGN_INT));
}
