/*
 * uuid.cpp: UUIDv7 with a fraction of a millisecond in its 12 bits (RFC 9562, method 3), so that ids made in one
 * millisecond keep their order. By the machine's clock, which ojs.clock_offset does not move: an id is an identity,
 * and only roughly a time.
 */
#include "ojs/pg/uuid.h"

#include "ojs/pg/settings.h"

namespace ojs
{

/* From the server's cryptographic generator, since who knows an id may look at its job; many at a time, since each call
 * of the generator costs. */
static uint64
strong_random64()
{
    static uint64 pool[64];
    static size_t left;
    static int made_by;

    if (left == 0 || made_by != MyProcPid) { /* a process never goes on with what its parent has */
        if (!pg_strong_random(pool, sizeof pool))
            ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR), errmsg("could not make random bytes for a job's id")));
        left = lengthof(pool);
        made_by = MyProcPid;
    }
    return pool[--left];
}

pg_uuid_t
new_uuid()
{
    /* The 12 bits count steps of a 4096th of a millisecond, about 244 ns: a step at least from one id to the next. */
    constexpr int64 step_ns = 245;
    static int64 last_ns;

    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    last_ns = std::max(static_cast<int64>(at.tv_sec) * 1000000000 + at.tv_nsec, last_ns + step_ns);

    uint64 ms = static_cast<uint64>(last_ns / 1000000);
    uint32 fraction = static_cast<uint32>((last_ns % 1000000) * 4096 / 1000000);
    uint64 random = strong_random64();
    pg_uuid_t id;
    for (int i = 5; i >= 0; i--, ms >>= 8)
        id.data[i] = static_cast<unsigned char>(ms & 0xff);
    id.data[6] = static_cast<unsigned char>(0x70 | (fraction >> 8));
    id.data[7] = static_cast<unsigned char>(fraction & 0xff);
    memcpy(id.data + 8, &random, 8);
    if (settings.node_id != 0) { /* in place of the first 14 random bits; ojs.node_of reads it */
        id.data[8] = static_cast<unsigned char>(settings.node_id >> 8);
        id.data[9] = static_cast<unsigned char>(settings.node_id & 0xff);
    }
    id.data[8] = (id.data[8] & 0x3f) | 0x80;
    return id;
}

} // namespace ojs
