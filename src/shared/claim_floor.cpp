/*
 * claim_floor.cpp: see claim_floor.h.
 */
#include "ojs/shared/claim_floor.h"

#include "ojs/store/store.h"

namespace ojs
{

namespace
{

Floor &
floor_of(int64 queue, int16 npriority, int klass)
{
    uint32 hash = hash_combine(murmurhash32(static_cast<uint32>(queue)), MyDatabaseId);
    return shared->floors[(hash + static_cast<uint32>(npriority) * 2 + klass) % claim_floors];
}

bool
same(const FloorKey &a, const FloorKey &b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

int64
position_in(pg_atomic_uint64 &position)
{
    return static_cast<int64>(pg_atomic_read_u64(&position));
}

void
set_position(pg_atomic_uint64 &position, int64 to)
{
    pg_atomic_write_u64(&position, static_cast<uint64>(to));
}

void
end_floor(Floor &floor)
{
    (void)pg_atomic_add_fetch_u32(&floor.late, 1);
}

} // namespace

int64
begin_floor_walk(FloorWalk &walk, int64 queue, int16 npriority, int klass, int64 announce)
{
    walk.announced = walk.from = no_floor;
    if (shared == nullptr)
        return no_floor;
    Floor &floor = floor_of(queue, npriority, klass);
    if (announce == no_floor && position_in(floor.at) == no_floor)
        return no_floor;
    walk.key = {queue, MyDatabaseId, store::relation_oid(store::Rel::ready), npriority, klass};

    LWLockAcquire(shared->lock, announce == no_floor ? LW_SHARED : LW_EXCLUSIVE);
    bool ours = same(floor.key, walk.key);
    if (!ours && announce != no_floor) {
        floor.key = walk.key;
        set_position(floor.at, no_floor);
        set_position(floor.announced, announce);
        end_floor(floor);
        ours = true;
    }
    if (ours) {
        if (announce > position_in(floor.announced))
            set_position(floor.announced, announce);
        pg_memory_barrier(); /* jobs that come in from now on are late */
        walk.late = pg_atomic_read_u32(&floor.late);
        walk.announced = announce;
        if (floor.holds_at == walk.late)
            walk.from = position_in(floor.at);
    }
    LWLockRelease(shared->lock);
    return walk.from;
}

void
raise_floor(const FloorWalk &walk, int64 position)
{
    position = std::min(position, walk.announced);
    if (position <= walk.from)
        return;
    Floor &floor = floor_of(walk.key.queue, static_cast<int16>(walk.key.npriority), walk.key.klass);
    LWLockAcquire(shared->lock, LW_EXCLUSIVE);
    if (same(floor.key, walk.key) && pg_atomic_read_u32(&floor.late) == walk.late) {
        bool replaces = floor.holds_at != walk.late || position > position_in(floor.at);
        if (replaces)
            set_position(floor.at, position);
        floor.holds_at = walk.late;
    }
    LWLockRelease(shared->lock);
}

void
note_late(int64 queue, int16 npriority, int64 position)
{
    if (shared == nullptr)
        return;
    Floor &floor = floor_of(queue, npriority, position < 0 ? returned : fresh);
    pg_memory_barrier(); /* the job can be found */
    if (position < position_in(floor.announced))
        end_floor(floor);
}

void
forget_floors(Oid database)
{
    for (Floor &floor : shared->floors)
        if (floor.key.database == database) {
            set_position(floor.at, no_floor);
            end_floor(floor);
        }
}

void
init_floors()
{
    for (Floor &floor : shared->floors) {
        pg_atomic_init_u64(&floor.announced, static_cast<uint64>(no_floor));
        pg_atomic_init_u64(&floor.at, static_cast<uint64>(no_floor));
        pg_atomic_init_u32(&floor.late, 1); /* no floor holds */
    }
}

} // namespace ojs
