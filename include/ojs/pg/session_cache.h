/*
 * session_cache.h: whether what this session has read of a table, or of several, may still be used.
 *
 * A change that commits after the read has taken its snapshot must count. So the generation (of a table:
 * store::catalog_generation) is noted before the read, and what was read is valid only at its end: an error on the way
 * leaves nothing behind that passes for valid, and a change on the way has it read again the next time.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

/*
 * How often something is read again because it may have changed meanwhile. Reading itself hears of changes, and under
 * debug_discard_caches each look-up drops everything. What the last try has read is used, and not kept.
 */
constexpr int most_reads = 5;

struct SessionCache {
    bool valid;
    uint64 noted;

    bool holds(uint64 generation) const { return valid && noted == generation; }

    /* Reads anew unless what is there holds. */
    template <typename Read> void refresh(uint64 generation, Read read)
    {
        if (holds(generation))
            return;
        valid = false;
        noted = generation;
        read();
        valid = true;
    }
};

} // namespace ojs
