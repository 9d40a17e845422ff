/*
 * fair.cpp: see fair.h.
 */
#include "ojs/claim/fair.h"

#include "ojs/claim/fair_look.h"
#include "ojs/claim/filled.h"
#include "ojs/claim/shares.h"
#include "ojs/counters/queue_counters.h"
#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/session_cache.h"
#include "ojs/pg/settings.h"
#include "ojs/queue/access.h"
#include "ojs/queue/tenant.h"
#include "ojs/queue/tenant_settings.h"
#include "ojs/shared/part_news.h"
#include "ojs/shared/wakeup.h"

namespace ojs
{

namespace
{

constexpr std::string_view all_parts = "@*";
std::string_view
whole_queue(std::string_view name)
{
    return name.substr(0, name.size() - all_parts.size());
}

/* Goes on to the highest priority of which a part may still have jobs. Returns the sum of the weights; 0: none has. */
int64
sum_up(FairLook &look)
{
    while (!look.summed) {
        int64 sum = 0;
        look.end = look.first;
        while (look.end < look.n && look.parts[look.end].npriority == look.parts[look.first].npriority) {
            sum += look.parts[look.end].weight;
            look.upto[look.end++] = sum;
        }
        look.summed = sum > 0 || look.end == look.n;
        if (!look.summed)
            look.first = look.end;
    }
    return look.end > look.first ? look.upto[look.end - 1] : 0;
}

int64
next_turn(FairLook &look, int64 weight, int jobs)
{
    if (look.turns != weight)
        look.turn = static_cast<int64>(random64() % static_cast<uint64>(weight));
    look.turns = weight;
    int64 turn = look.turn;
    look.turn = (turn + step_of(weight, look.end - look.first, jobs)) % weight;
    return turn;
}

int
position_in(Request &request, int64 id)
{
    for (int i = 0; i < request.n; i++)
        if (request.queues[i].id == id)
            return i;
    const Queue *queue = find_queue(id);
    return queue != nullptr && may_claim_part(*queue) ? add_queue(request, *queue, weight_of(*queue)) : -1;
}

struct FairShare {
    int queue_position;
    int jobs;
};
struct FairShares {
    int n;
    FairShare *of;
};

/* Whose turn it is. Returns false if no part is known to have more. */
bool
fair_shares(Request &request, int jobs, FairShares &shares)
{
    FairLook &look = *request.fair;
    int64 weight = sum_up(look);
    if (weight == 0)
        return false;
    int fresh = fresh_part(look);
    int64 turn = fresh < 0 ? next_turn(look, weight, jobs)
                           : (look.upto[fresh] - look.parts[fresh].weight) * static_cast<int64>(jobs) % weight;
    shares.of = static_cast<FairShare *>(palloc(sizeof(FairShare) * jobs));
    shares.n = 0;
    int at = look.first;
    /* A part has a stretch of jobs * its weight; it gets a job for each of turn, turn + weight, … that lies in it. */
    for (int i = 0; i < jobs; i++) {
        int64 place = turn + i * weight;
        at = static_cast<int>(
            std::upper_bound(look.upto + at, look.upto + look.end, place,
                             [jobs](int64 at_job, int64 upto) { return at_job < upto * static_cast<int64>(jobs); }) -
            look.upto);
        int position = position_in(request, look.parts[at].queue);
        if (position < 0) {
            look.parts[at].weight = 0;
            look.summed = false;
        } else if (shares.n > 0 && shares.of[shares.n - 1].queue_position == position)
            shares.of[shares.n - 1].jobs++;
        else
            shares.of[shares.n++] = {position, 1};
    }
    return true;
}

/* The queue gave less than its share: from now on its jobs of the next priority count, if it has any. */
void
note_short(Walk &walk, int queue_position)
{
    FairLook &look = *walk.request.fair;
    int64 queue = walk.request.queues[queue_position].id;
    FairPart *end = look.parts + look.n;
    FairPart *part =
        std::find_if(look.parts + look.first, end, [queue](const FairPart &one) { return one.queue == queue; });
    look.summed = false;
    if (part == end)
        return;
    if (seems_empty(queue)) {
        part->weight = 0;
        return;
    }
    ScanKeyData keys[4];
    store::Scan scan;
    int16 next;
    FairPart moved = *part;
    set_keys(keys, queue, BTGreaterStrategyNumber, F_INT2GT, part->npriority, BTLessStrategyNumber, F_INT2LT,
             PG_INT16_MAX);
    store::begin(scan, walk.tables.ready(), store::Idx::ready_order, keys, 4, true);
    bool more = level_between(scan, queue, part->npriority, PG_INT16_MAX, &next);
    store::end(scan);
    part->weight = 0;
    if (!more)
        return;
    moved.npriority = next;
    FairPart *to = std::find_if(part, end, [next](const FairPart &one) { return one.npriority > next; });
    std::copy(part + 1, to, part);
    to[-1] = moved;
}

/* The next priority behind `above` of which a queue of the claim has an entry. */
bool
next_priority(Walk &walk, store::Scan &scan, int16 above, int16 *found)
{
    bool any = false;
    for (int i = 0; i < walk.request.n; i++) {
        int16 here;
        if (walk.request.queues[i].state == QueueState::paused ||
            !level_between(scan, walk.request.queues[i].id, above, any ? *found : PG_INT16_MAX, &here))
            continue;
        *found = here;
        any = true;
    }
    return any;
}

/* Adds the parts that have jobs and are not there yet. */
void
add_filled(Walk &walk)
{
    const FairLook &look = *walk.request.fair;
    QueueIds had = queue_ids(walk.request);
    auto *filled =
        static_cast<FilledQueue *>(MemoryContextAllocHuge(CurrentMemoryContext, sizeof(FilledQueue) * look.n_ids));
    int n = filled_queues(walk.tables, look.ids, look.n_ids, nullptr, 0, filled);
    std::sort(had.ids, had.ids + had.n);
    for (int i = 0; i < n; i++) {
        if (std::binary_search(had.ids, had.ids + had.n, filled[i].queue))
            continue;
        const Queue *queue = find_queue(filled[i].queue);
        if (queue != nullptr && may_claim_part(*queue))
            add_queue(walk.request, *queue, weight_of(*queue));
    }
    pfree(filled);
    pfree(had.ids);
}

void
walk_all(Walk &walk)
{
    ScanKeyData keys[4];
    store::Scan scan;
    int16 above = PG_INT16_MIN;
    add_filled(walk);
    set_keys(keys, 0, BTGreaterStrategyNumber, F_INT2GT, above, BTLessStrategyNumber, F_INT2LT, PG_INT16_MAX);
    for (;;) {
        store::begin(scan, walk.tables.ready(), store::Idx::ready_order, keys, 4, true);
        bool more = walk.n < walk.max && next_priority(walk, scan, above, &walk.deepest);
        store::end(scan);
        if (!more)
            return;
        above = walk.deepest;
        walk_by_weight(walk, true);
    }
}

} // namespace

bool
names_all_parts(std::string_view name)
{
    return has_tenants() && name.size() > all_parts.size() && name.ends_with(all_parts);
}

Request
fair_request(std::string_view name, text *worker, int max, Interval *lease, bool missing_ok)
{
    std::string_view whole = whole_queue(name);
    validate_queue_name(whole);
    if (!caller_tenant().empty())
        raise(Code::permission_denied, Details().add("field", "queue").add("reason", "tenant_not_allowed"),
              "Name the queue alone.", "who acts for a tenant claims no jobs of others");
    Request request = read_request(nullptr, 0, worker, max, lease, missing_ok);
    FairLook &look = look_of(whole);
    request.fair = &look;
    request.weights = static_cast<int32 *>(palloc(sizeof(int32)));
    const Queue *rules = find_stored_queue(whole);
    if (rules != nullptr && rules->claim_rules && may_claim_part(*rules))
        add_queue(request, *rules, weight_of(*rules));
    renew_look(look);
    forget_empty(look);
    if (!missing_ok && look.n == 0) {
        auto is_there = [](int64 id) {
            const Queue *queue = find_queue(id);
            return queue != nullptr && queue->state != QueueState::deleted;
        };
        if (!std::any_of(look.ids, look.ids + look.n_ids, is_there))
            raise_no_queue(whole);
    }
    return request;
}

void
walk_fairly(Walk &walk, bool from_start)
{
    FairShares shares;
    if (from_start)
        walk_all(walk);
    while (!from_start && walk.n < walk.max && fair_shares(walk.request, walk.max - walk.n, shares)) {
        walk.deepest = walk.request.fair->parts[walk.request.fair->first].npriority;
        for (int i = 0; i < shares.n; i++) {
            int wanted = walk.n + shares.of[i].jobs;
            walk.most = std::min(wanted, most_with(walk, shares.of[i].queue_position));
            const Queue &queue = walk.request.queues[shares.of[i].queue_position];
            if (walk.n < walk.most && queue.state != QueueState::paused && !seems_empty(queue.id))
                walk_queue(walk, shares.of[i].queue_position, false);
            if (walk.n < wanted)
                note_short(walk, shares.of[i].queue_position);
        }
    }
    walk.deepest = PG_INT16_MAX;
}

QueueIds
all_queue_ids(Request &request)
{
    if (request.fair == nullptr)
        return queue_ids(request);
    FairLook &look = *request.fair;
    look.next_us = 0; /* whoever asks has found too few */
    renew_ids(look);
    auto *ids = static_cast<int64 *>(MemoryContextAllocHuge(CurrentMemoryContext, sizeof(int64) * look.n_ids));
    std::copy(look.ids, look.ids + look.n_ids, ids);
    return {ids, look.n_ids};
}

QueueIds
awaited_ids(Request &request)
{
    QueueIds queues = all_queue_ids(request);
    if (request.n_missing == 0)
        return queues;
    auto *ids = static_cast<int64 *>(palloc(sizeof(int64) * (queues.n + request.n_missing)));
    std::copy(request.missing, request.missing + request.n_missing, std::copy(queues.ids, queues.ids + queues.n, ids));
    return {ids, queues.n + request.n_missing};
}

QueueIds
notified_ids(Request &request)
{
    QueueIds queues = awaited_ids(request);
    if (request.n_missing > 0)
        queues.n -= request.n_missing - std::min(request.n_missing, room_for_unmade_queues());
    queues.n = std::min(queues.n, most_shared);
    return queues;
}

} // namespace ojs
