/*
 * id_walk.cpp: see id_walk.h.
 */
#include "ojs/queue/id_walk.h"

namespace ojs
{

namespace
{

constexpr int64 shortest_pause_us = USECS_PER_SEC;

/* From walk.next on. Returns which part of all ids that was. */
double
add_stretch(IdWalk &walk, int most, Ids &ids)
{
    int64 first = walk.next;
    auto n = static_cast<int>(execute_latest(walk.stretch, {Int64GetDatum(first), Int32GetDatum(most)}));
    for (int i = 0; i < n; i++) {
        bool null;
        ids.add(DatumGetInt64(cell(i, 1, &null)));
    }
    int64 last = n < most ? PG_INT64_MAX : ids[ids.n - 1];
    /* The last id again, of which there may be more. */
    walk.next = n < most ? PG_INT64_MIN : last == first ? last + 1 : last;
    return (static_cast<double>(last) - static_cast<double>(first)) / 0x1p64;
}

} // namespace

void
next_ids(IdWalk &walk, TimestampTz now, Ids &ids)
{
    if (!walk.begun)
        walk.next = static_cast<int64>(random64());
    walk.begun = true;
    int64 first = walk.next;
    double part = add_stretch(walk, walk.most, ids);
    if (ids.n < walk.most && first > PG_INT64_MIN) {
        int n = ids.n;
        part += add_stretch(walk, walk.most - n, ids);
        while (ids.n > n && ids[ids.n - 1] >= first) /* seen already */
            ids.n--;
    }
    part = std::min(part, 1.0);
    walk.seen += part;
    walk.looked_at = now;
    walk.look_at = now + std::clamp(static_cast<int64>(static_cast<double>(walk.round_us) * part), shortest_pause_us,
                                    walk.round_us);
}

} // namespace ojs
