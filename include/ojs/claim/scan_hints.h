/*
 * scan_hints.h: what a session remembers of the index of `ready`: per queue, priority and class the position of the
 * first row that may count (a hint), and rows that a limit keeps back.
 *
 * Within a class positions only grow, so nothing comes in below a hint, except what took long from drawing its number
 * to being stored: that is found by the walk from the start which every claim makes before it comes back short, and by
 * a claim after half a second; or after some seconds, where that walk passes very many dead entries. A rollback brings
 * rows back, and forgets all hints.
 */
#pragma once

#include "ojs/shared/claim_floor.h"
#include "ojs/store/store.h"

namespace ojs
{

/*
 * Rows that a walk passed over one after the other, all for the same limit. As long as that keeps one of them back, it
 * keeps back the others, so the next walk need not look at them; now and then it does, since a row may have come in
 * between.
 */
struct HeldBack {
    uint64 limit; /* which; 0: this is none */
    int64 from;   /* positions */
    int64 to;
    int64 rows;
    TimestampTz since; /* when they were looked at */
};

struct Level {
    int16 npriority;
    int64 hint[n_classes];
    int64 reached;             /* the last hint of fresh jobs that was given up as too old */
    int64 farthest[n_classes]; /* row that it has met */
    int64 recent[n_classes];   /* … when positions settled last */
    int64 settled[n_classes];  /* … and the time before: what drew a lower one has been stored by now, most often */
    int64 passed;              /* how far behind its hint the last walk found the last fresh job that it took */
    HeldBack held_back[n_classes]; /* the longest */
    int lines;                     /* of held jobs, when they were looked at */
    TimestampTz looked_at;
};

/* A queue's part of the index. */
struct Levels {
    int64 queue; /* key */
    int n;
    int room;
    Level *level; /* by npriority */
    TimestampTz since;
    TimestampTz settled_at;
    int64 walk_us; /* what the last walk from the start took to find rows, not to take them */
    std::optional<uint32>
        nothing_before; /* overtaking_in() as it was when no row came before fresh jobs of priority 0 */
};

Levels &levels_of(int64 queue);
Level &add_level(Levels &levels, int at, int16 npriority);

/* So long that others should be spared them. */
bool has_long_walks(const Levels &levels);

bool hints_are_old(const Levels &levels, TimestampTz now);
void start_anew(Levels &levels, TimestampTz now);

/* The walk, in the stretch `current`, passes over the row at `position` for `limit`: up to which position it need not
 * look at others. */
int64 passed_over(HeldBack &current, HeldBack &longest, uint64 limit, int64 position, TimestampTz now);

/* Like passed_over(), and goes on behind that position. */
void pass_over(store::Scan &scan, ScanKey keys, HeldBack &current, HeldBack &longest, uint64 limit, int64 position,
               TimestampTz now);

/* The stretch that the walk was in is over. */
void end_stretch(HeldBack &current, HeldBack &longest, TimestampTz now);

void hints_init(); /* once, at load */

/* Keys for the entries of a queue whose priority is within two bounds, each with how it is compared. */
void set_keys(ScanKey keys, int64 queue, StrategyNumber low_strategy, RegProcedure low_proc, int16 low,
              StrategyNumber high_strategy, RegProcedure high_proc, int16 high);
/* The first priority strictly between two that any entry of the queue has, dead ones included. Returns false if none
 * has. */
bool level_between(store::Scan &scan, int64 queue, int16 above, int16 below, int16 *found);

} // namespace ojs
