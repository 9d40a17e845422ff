/*
 * id_walk.h: going through the ids of queues in a table that may have very many, a stretch at a time, round and round.
 * A session begins somewhere, so that many short ones get everywhere too. Ids are hashes, so the width of a stretch
 * says which part of all it was, and how soon the next one is due for a round to take its time.
 */
#pragma once

#include "ojs/store/spi.h"

namespace ojs
{

struct IdWalk {
    Statement stretch; /* ids from $1 on, in their order, $2 of them */
    int most;          /* in one stretch */
    int64 round_us;    /* in which all are to be seen; with very many ids it takes longer */
    bool begun;
    int64 next;
    double seen; /* which part of all, in this round */
    TimestampTz looked_at, look_at;
};

struct Ids {
    Datum *all;
    int n;

    explicit Ids(int most) : all(static_cast<Datum *>(palloc(sizeof(Datum) * most))), n(0) {}
    int64 operator[](int i) const { return DatumGetInt64(all[i]); }
    void add(int64 id) { all[n++] = Int64GetDatum(id); }
    Datum array() const
    {
        return PointerGetDatum(construct_array(all, n, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
    }
};

inline bool
is_due(const IdWalk &walk, TimestampTz now)
{
    return now < walk.looked_at || now >= walk.look_at;
}

inline bool
round_done(const IdWalk &walk)
{
    return walk.seen > 0.999999;
}

/* Inside with_spi: the next stretch, at the other end too when it comes to one; at most walk.most ids. */
void next_ids(IdWalk &walk, TimestampTz now, Ids &ids);

} // namespace ojs
