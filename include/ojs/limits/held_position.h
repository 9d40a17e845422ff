/*
 * held_position.h: where jobs stand in `ready` whose limit is used up.
 *
 * A claim that passes over such jobs puts them behind all others of their queue and priority, sorted into lines: one
 * for each limit that holds jobs back, in it the jobs in their order. The next claim looks at the head of each line
 * instead of at every job. What a line is follows from the limit alone, so it is the same for every session.
 *
 * Positions, by queue and priority: below 0, jobs that were delivered before; from 0, the others; from first_held, the
 * lines: 17 bits for the line, one for the part that the job comes from, 44 for its number.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

constexpr int64 first_held = 4611686018427387904;
constexpr int64 number_bits = 17592186044415;
constexpr int64 fresh_bit = 17592186044416;
static_assert(first_held == int64(1) << 62 && fresh_bit == int64(1) << 44 && number_bits == fresh_bit - 1);
constexpr int64 position_bits = fresh_bit | number_bits;
constexpr int64 returned_base = -first_held; /* where positions of jobs that were delivered before begin */

/* The line that a limit's jobs wait in, by a name of the limit: the position at which it begins. */
inline int64
line_of(uint64 limit)
{
    return first_held + static_cast<int64>((limit ^ (limit >> 32)) & 0x1ffff) * (position_bits + 1);
}

inline int64
line_at(int64 position)
{
    return position & ~position_bits;
}

inline int64
end_of_line(int64 position)
{
    return position | position_bits;
}

/* Jobs whose number is too large stay where they are. */
inline bool
fits_into_line(int64 position)
{
    return position < first_held && (position < 0 ? position - returned_base : position) <= number_bits;
}

inline int64
held_position(int64 line, int64 position)
{
    return line | (position < 0 ? position - returned_base : position | fresh_bit);
}

/* The position that it had before. Also of a job that is not held back. */
inline int64
own_position(int64 position)
{
    if (position < first_held)
        return position;
    int64 number = position & number_bits;
    return (position & fresh_bit) != 0 ? number : returned_base + number;
}

} // namespace ojs
