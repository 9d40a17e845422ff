/*
 * claim_floor.h: below which position a class of a queue's jobs has none, as sessions tell each other. Under a snapshot
 * that is held for long, what is below it is dead index entries that nothing can remove: without floors each walk from
 * the start passes all of them.
 *
 * A walk announces up to where it may raise the floor, then walks. Whoever stores a job looks, once it can be found, at
 * what is announced; a job below that is late, and ends the floor. So a walk begins at a floor only where no job has
 * come in below it since; one that comes in after the walk has asked is told to it like any other new job.
 *
 * All of it is in shared memory; without preload there are no floors.
 */
#pragma once

#include "ojs/shared/shmem.h"

namespace ojs
{

/* The classes of a queue's jobs of one priority, in the order in which they are served: delivered before, whose
 * positions are negative, and not. */
enum { returned, fresh, n_classes };
constexpr int64 first_position[n_classes] = {PG_INT64_MIN, 0};

constexpr int64 no_floor = PG_INT64_MIN;

/* A walk of a class from the start. */
struct FloorWalk {
    FloorKey key;
    int64 announced; /* no_floor: it does not raise the floor */
    int64 from;      /* the floor that it began at */
    uint32 late;
};

/* A walk begins, and may raise the floor up to `announce`, or not at all: no_floor. Returns the floor that it can begin
 * at. */
int64 begin_floor_walk(FloorWalk &walk, int64 queue, int16 npriority, int klass, int64 announce);

/* The walk found no job below `position`. */
void raise_floor(const FloorWalk &walk, int64 position);

/* A job has come in, and can be found. */
void note_late(int64 queue, int16 npriority, int64 position);

/* Of a database that is gone; under shared->lock. */
void forget_floors(Oid database);

void init_floors();

} // namespace ojs
