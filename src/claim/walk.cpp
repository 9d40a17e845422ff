/*
 * walk.cpp: one queue's part of a claim: along its priorities, and its classes of jobs.
 *
 * It marks the dead index entries that it meets (store::begin, kill_dead), and remembers where the first row that may
 * count was (scan_hints.h): so it does not wade through what vacuum cannot remove while an old snapshot lives. A walk
 * from the start begins at what others found (claim_floor.h).
 */
#include "ojs/claim/walk.h"

#include "ojs/limits/held_position.h"
#include "ojs/pg/settings.h"
#include "ojs/claim/held_jobs.h"
#include "ojs/state/transitions.h"
#include "ojs/shared/shmem.h"
#include "ojs/state/worker_versions.h"

namespace ojs
{

bool
within_limits(Walk &walk, int queue_position, const ReadyRow &ready, ItemPointer tid)
{
    const Queue &queue = walk.request.queues[queue_position];
    TimestampTz again_at;
    JobRow job;

    if (!try_read_job(walk.tables, ready.job_id, ready.job_tid, job))
        return true; /* whoever takes the row sees whether there is a job */
    LimitVerdict verdict = may_start(walk.limits, queue, job, &again_at);
    walk.now = walk.limits.now; /* it may have waited for its turn: the job starts now */
    if (verdict == LimitVerdict::allowed)
        return true;
    if (verdict == LimitVerdict::wait || store::take(walk.tables.ready(), tid) != store::Outcome::ok)
        return false;
    if (verdict == LimitVerdict::drop)
        discard(walk.tables, job, ready, "rate_limited", "the job was dropped at its rate limit", walk.now);
    else
        put_off(walk.tables, ready, again_at);
    return false;
}

namespace
{

store::Row
next(Walk &walk, store::Scan &scan)
{
    if (!walk.measures)
        return store::next(scan);
    int64 from_us = steady_us();
    store::Row seen = store::next(scan);
    walk.looked_us += steady_us() - from_us;
    return seen;
}

/* A part of a class, in the order of positions. */
void
walk_positions(Walk &walk, store::Scan &scan, int queue_position, Level &level, int klass, int64 from, int64 to,
               bool &hinted)
{
    store::Table &ready = walk.tables.ready();
    HeldBack &longest = level.held_back[klass];
    ScanKeyData keys[4];
    store::Row seen;

    ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(walk.request.queues[queue_position].id));
    ScanKeyInit(&keys[1], 2, BTEqualStrategyNumber, F_INT2EQ, Int16GetDatum(level.npriority));
    ScanKeyInit(&keys[2], 3, BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(from));
    ScanKeyInit(&keys[3], 3, BTLessEqualStrategyNumber, F_INT8LE, Int64GetDatum(to));
    store::rescan(scan, keys, 4);
    while (walk.n < walk.most && (seen = next(walk, scan)) != store::Row::none) {
        ReadyRow row;
        read(ready.slot, row);
        walk.left++;
        /* Rows that this transaction has taken lie below the hint; should it roll back, all hints are forgotten. */
        if (!hinted)
            level.hint[klass] = row.position;
        hinted = true;
        level.farthest[klass] = std::max(level.farthest[klass], row.position);
        if (seen == store::Row::arriving)
            walk.arriving = bms_add_member(walk.arriving, queue_position);
        if (walk.versions != nullptr && seen == store::Row::live && !takes_job(walk.tables, *walk.versions, row)) {
            pass_over(scan, keys, walk.held_back, longest, id_of(*walk.versions), row.position, walk.now);
            continue;
        }
        bool limited = (row.flags & job_limits) || walk.request.queues[queue_position].limited;
        if (limited) {
            walk.limits.closed = 0;
            if (seen != store::Row::live || !within_limits(walk, queue_position, row, &scan.tid)) {
                note_held(walk, queue_position, row, scan.tid);
                pass_over(scan, keys, walk.held_back, longest, walk.limits.closed, row.position, walk.now);
                continue;
            }
        }
        if (walk.held_back.limit != 0)
            end_stretch(walk.held_back, level.held_back[klass], walk.now);
        int before = walk.n;
        bool at_once = walk.n > 0 || !walk.request.may_wait; /* who has written does not go on to wait */
        if (seen == store::Row::live && store::take(ready, &scan.tid, at_once) == store::Outcome::ok)
            hand_over(walk, queue_position, row);
        walk.left -= walk.n - before;
        if (limited && walk.n > before)
            starts(walk.limits, walk.taken[before].lease);
    }
}

void
walk_class(Walk &walk, store::Scan &scan, int queue_position, Level &level, int klass, bool raises_floor)
{
    int64 from = level.hint[klass];
    bool anew = from == first_position[klass];
    FloorWalk floor = {};
    if (anew)
        from = std::max(from, begin_floor_walk(floor, walk.request.queues[queue_position].id, level.npriority, klass,
                                               raises_floor ? level.settled[klass] : no_floor));
    int64 last = klass == returned ? -1 : first_held - 1;
    int before = walk.n;
    bool hinted = false;

    /* The index compares every entry of each page it reads. Where a hint was, few or none are before it; behind it most
     * often a few will do: as many as the last walk had to pass, and some more. */
    if (klass == fresh && anew && level.reached > from) {
        walk_positions(walk, scan, queue_position, level, klass, from, level.reached - 1, hinted);
        from = level.reached;
    }
    int64 hint = from;
    if (klass == fresh && hint > 0 && walk.n < walk.most) {
        int64 near = hint + level.passed + std::min<int64>(level.passed, 16) + 2;
        walk_positions(walk, scan, queue_position, level, klass, hint, near, hinted);
        from = near + 1;
    }
    if (walk.n < walk.most)
        walk_positions(walk, scan, queue_position, level, klass, from, last, hinted);
    if (klass == fresh && hint > 0 && walk.n > before)
        level.passed = std::max<int64>(walk.taken[walk.n - 1].ready.position - hint, 0);
    if (walk.held_back.limit != 0)
        end_stretch(walk.held_back, level.held_back[klass], walk.now);
    if (anew && !scan.saw_ours) /* rows that this transaction took are dead to it alone: a rollback brings them back */
        raise_floor(floor, hinted ? level.hint[klass] : floor.announced);
}

} // namespace

void
walk_queue(Walk &walk, int queue_position, bool from_start)
{
    const Queue &queue = walk.request.queues[queue_position];
    Levels &levels = levels_of(queue.id);
    walk.measures = from_start || hints_are_old(levels, walk.now);
    walk.looked_us = 0;
    if (walk.measures)
        start_anew(levels, walk.now);
    bool raises_floor = has_long_walks(levels);

    ScanKeyData keys[4];
    store::Scan scan;
    int16 above = PG_INT16_MIN;
    set_keys(keys, queue.id, BTGreaterStrategyNumber, F_INT2GT, above, BTLessStrategyNumber, F_INT2LT, PG_INT16_MAX);
    store::begin(scan, walk.tables.ready(), store::Idx::ready_order, keys, 4, true);
    std::optional<uint32> overtaking = overtaking_in(queue.id);
    bool nothing_before = overtaking && overtaking == levels.nothing_before;
    int left = walk.left;
    for (int i = 0; walk.n < walk.most; i++) {
        int16 found;
        bool is_empty = nothing_before && i < levels.n && levels.level[i].npriority <= 0; /* but for its fresh jobs */
        if (!is_empty &&
            level_between(scan, queue.id, above, i < levels.n ? levels.level[i].npriority : PG_INT16_MAX, &found))
            add_level(levels, i, found);
        else if (i == levels.n)
            break;
        above = levels.level[i].npriority;
        if (above > walk.deepest)
            break;
        if (!is_empty)
            walk_class(walk, scan, queue_position, levels.level[i], returned, raises_floor);
        if (above == 0 && walk.n < walk.most && walk.left == left)
            levels.nothing_before = overtaking;
        if (is_empty && above < 0)
            continue;
        if (walk.n < walk.most)
            walk_lines(walk, scan, queue_position, levels.level[i], from_start);
        walk.left += levels.level[i].lines;
        if (walk.n < walk.most)
            walk_class(walk, scan, queue_position, levels.level[i], fresh, raises_floor);
    }
    if (walk.measures)
        levels.walk_us = walk.looked_us;
    store::end(scan);
}

} // namespace ojs
