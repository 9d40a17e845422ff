/*
 * scan_hints.cpp: see scan_hints.h.
 */
#include "ojs/claim/scan_hints.h"

#include "ojs/pg/settings.h"

namespace ojs
{

namespace
{

constexpr int64 live_us = 500 * 1000;

MemoryContext hints; /* what the table and its arrays live in */
HTAB *known_queues;

extern "C" void
forget_hints(XactEvent event, void *)
{
    bool undone = event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE; /* or may be */
    if (undone && known_queues != nullptr) {
        MemoryContextReset(hints);
        known_queues = nullptr;
    }
}

extern "C" void
forget_hints_sub(SubXactEvent event, SubTransactionId, SubTransactionId, void *)
{
    if (event == SUBXACT_EVENT_ABORT_SUB)
        forget_hints(XACT_EVENT_ABORT, nullptr);
}

bool
holds(const HeldBack &stretch, TimestampTz now)
{
    constexpr int64 us_per_row = 20; /* far more than looking at one takes */
    return stretch.limit != 0 && now >= stretch.since && now - stretch.since < live_us + us_per_row * stretch.rows;
}

} // namespace

Levels &
levels_of(int64 queue)
{
    if (known_queues == nullptr) {
        if (hints == nullptr)
            hints = AllocSetContextCreate(TopMemoryContext, "ojs claim hints", ALLOCSET_DEFAULT_SIZES);
        HASHCTL control = {};
        control.keysize = sizeof(int64);
        control.entrysize = sizeof(Levels);
        control.hcxt = hints;
        known_queues = hash_create("ojs claim hints", 16, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
    }
    bool found;
    auto *levels = static_cast<Levels *>(hash_search(known_queues, &queue, HASH_ENTER, &found));
    if (!found) {
        *levels = {};
        levels->queue = queue;
    }
    return *levels;
}

Level &
add_level(Levels &levels, int at, int16 npriority)
{
    if (levels.n == levels.room) {
        int room = std::max(4, levels.room * 2);
        auto *wider = static_cast<Level *>(MemoryContextAlloc(hints, sizeof(Level) * room));
        if (levels.n > 0)
            memcpy(wider, levels.level, sizeof(Level) * levels.n);
        levels.level = wider;
        levels.room = room;
    }
    memmove(levels.level + at + 1, levels.level + at, sizeof(Level) * (levels.n - at));
    levels.n++;
    Level &level = levels.level[at];
    level = {};
    level.npriority = npriority;
    for (int klass : {returned, fresh}) {
        level.hint[klass] = first_position[klass];
        level.farthest[klass] = level.recent[klass] = level.settled[klass] = no_floor;
    }
    return level;
}

bool
has_long_walks(const Levels &levels)
{
    return levels.walk_us > 200;
}

bool
hints_are_old(const Levels &levels, TimestampTz now)
{
    constexpr int64 share = 64, longest_us = 5 * USECS_PER_SEC; /* at most a 64th of the time goes into such walks */
    return now - levels.since > std::clamp(levels.walk_us * share, live_us, longest_us) || now < levels.since;
}

void
start_anew(Levels &levels, TimestampTz now)
{
    bool settles = now - levels.settled_at > live_us || now < levels.settled_at;
    if (settles)
        levels.settled_at = now;
    for (int i = 0; i < levels.n; i++) {
        Level &level = levels.level[i];
        for (int klass : {returned, fresh}) {
            if (!settles)
                break;
            level.settled[klass] = level.recent[klass];
            level.recent[klass] = level.farthest[klass];
        }
        level.hint[returned] = first_position[returned];
        level.reached = std::max(level.reached, level.hint[fresh]);
        level.hint[fresh] = first_position[fresh];
    }
    levels.since = now;
    levels.nothing_before.reset();
}

void
end_stretch(HeldBack &current, HeldBack &longest, TimestampTz now)
{
    if (current.rows >= longest.rows || !holds(longest, now))
        longest = current;
    current = {};
}

int64
passed_over(HeldBack &current, HeldBack &longest, uint64 limit, int64 position, TimestampTz now)
{
    if (current.limit != limit)
        end_stretch(current, longest, now);
    if (limit == 0)
        return position;
    if (current.limit == 0)
        current = {limit, position, position, 0, now};
    if (longest.limit == limit && longest.from <= position && position < longest.to && holds(longest, now)) {
        current.to = longest.to;
        current.rows += longest.rows;
        current.since = longest.since;
    } else {
        current.to = position;
        current.rows++;
    }
    return current.to;
}

void
pass_over(store::Scan &scan, ScanKey keys, HeldBack &current, HeldBack &longest, uint64 limit, int64 position,
          TimestampTz now)
{
    int64 upto = passed_over(current, longest, limit, position, now);
    if (upto <= position)
        return;
    ScanKeyInit(&keys[2], 3, BTGreaterStrategyNumber, F_INT8GT, Int64GetDatum(upto));
    store::rescan(scan, keys, 4);
}

void
hints_init()
{
    RegisterXactCallback(forget_hints, nullptr);
    RegisterSubXactCallback(forget_hints_sub, nullptr);
}

void
set_keys(ScanKey keys, int64 queue, StrategyNumber low_strategy, RegProcedure low_proc, int16 low,
         StrategyNumber high_strategy, RegProcedure high_proc, int16 high)
{
    ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(queue));
    ScanKeyInit(&keys[1], 2, low_strategy, low_proc, Int16GetDatum(low));
    ScanKeyInit(&keys[2], 2, high_strategy, high_proc, Int16GetDatum(high));
    ScanKeyInit(&keys[3], 3, BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(PG_INT64_MIN));
}

bool
level_between(store::Scan &scan, int64 queue, int16 above, int16 below, int16 *found)
{
    ScanKeyData keys[4];
    Datum value;
    if (above + 1 >= below)
        return false;
    set_keys(keys, queue, BTGreaterStrategyNumber, F_INT2GT, above, BTLessStrategyNumber, F_INT2LT, below);
    if (!store::first_entry(scan, keys, 4, 2, &value))
        return false;
    *found = DatumGetInt16(value);
    return true;
}

} // namespace ojs
