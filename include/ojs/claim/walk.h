/*
 * walk.h: a claim on its way through the queues: what it was asked for, and what it has met so far.
 */
#pragma once

#include "ojs/claim/request.h"
#include "ojs/claim/scan_hints.h"
#include "ojs/limits/rate_limits.h"
#include "ojs/state/worker_versions.h"

namespace ojs
{

struct ClaimedJob {
    ReadyRow ready;
    LeaseRow lease;
    HeapTuple job;
    int queue_position;
    int64 seq;
    int rank; /* among the jobs of its queue, where they are put into turns */
};

/* A job that the walk has passed over, and the name of the limit that it waits for. */
struct HeldJob {
    ReadyRow row;
    ItemPointerData tid;
    uint64 limit;
    int queue_position;
};

struct Walk {
    Tables &tables;
    Request &request; /* it may be given more queues (fair.h) */
    TimestampTz now;
    ClaimedJob *taken = nullptr;
    int n = 0;
    int left = 0;                 /* rows it has met and not taken */
    int most = 0;                 /* n may come to this in the queue at hand */
    int max = 0;                  /* and to this in all */
    int16 deepest = PG_INT16_MAX; /* jobs of a lower priority than this are left */
    Limits limits;
    HeldBack held_back = {}; /* that this walk is in */
    bool measures = false;   /* what it takes to find the next row: looked_us */
    int64 looked_us = 0;
    Bitmapset *arriving = nullptr; /* positions of the queues where it met jobs of open transactions */
    HeldJob *held = nullptr;       /* to be put into lines; the first most_moved */
    int n_held = 0;
    const WorkerVersions *versions; /* that the worker takes; null: every one */
};

/* The row in the slot of `ready` was taken: it becomes a lease, unless the job has expired. */
void hand_over(Walk &walk, int queue_position, const ReadyRow &ready);

/*
 * The row in the slot of `ready`, whose job is under a limit: false if it stays where it is, or was put elsewhere. The
 * limits are asked before the row is taken, so that who may not have it leaves it to others.
 */
bool within_limits(Walk &walk, int queue_position, const ReadyRow &ready, ItemPointer tid);

/* Takes jobs of one queue. Unless `from_start`, by what the session remembers of it. */
void walk_queue(Walk &walk, int queue_position, bool from_start);

/* Up to how many jobs the claim may have when it has walked this queue. */
int most_with(const Walk &walk, int queue_position);

} // namespace ojs
