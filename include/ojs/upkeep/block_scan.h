/*
 * block_scan.h: going through a table for what has outlived its time, without an index on time: block by block, round
 * and round, a little at a time. Where much is found the next step follows at once; so what waits to be removed stays a
 * small part of the table, and a push or an ack pays nothing for it.
 */
#pragma once

#include "ojs/store/store.h"

namespace ojs
{

/* One table's scan, as a session knows it. How far it has come is a row of ojs_store.retention_cursor. */
struct BlockScan {
    const char *what;
    store::Rel rel;
    BlockNumber most;      /* blocks in one step */
    TimestampTz look_at;   /* there is nothing to do before this, … */
    TimestampTz looked_at; /* … seen then, … */
    uint64 queues;         /* … by these settings of queues … */
    uint64 clock;          /* … and this clock */
};

struct Stretch {
    BlockNumber first;
    BlockNumber n; /* 0: nothing is to be done now, or another session is at it */
    BlockNumber of;
    bool empty; /* the table has no rows at all */
};

/* The blocks that are to be looked at now; until the end of the transaction no other session gets any of this scan. */
Stretch next_stretch(BlockScan &scan, TimestampTz now);

/*
 * They have been, up to block `next`. `dense`: much was found, so that it is worth going on at once. `newest` is the
 * time of the newest row that was removed.
 */
void stretch_done(BlockScan &scan, const Stretch &stretch, BlockNumber next, bool dense,
                  std::optional<TimestampTz> newest, TimestampTz now);

/* Like the functions above, but for what is found by an index, inside with_spi: whether this session may remove it, and
 * what it has removed. */
bool alone_with(const char *what);
void note_removed(const char *what, TimestampTz newest, TimestampTz now);

} // namespace ojs
