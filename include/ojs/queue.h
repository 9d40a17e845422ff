/*
 * queue.h: what a session knows of the queues: looked up once, and again after any of them was changed.
 */
#pragma once

#include "ojs/pg.h"

namespace ojs
{

enum class QueueState { active, paused, draining };

constexpr size_t max_queue_name = 128;

struct Queue {
    char name[max_queue_name + 1]; /* key of the session's cache: first member */
    int64 id;
    QueueState state;
    bool is_log;                /* type "log": takes pushes, hands out nothing */
    bool expiry_counts_attempt; /* */
    int64 lease_ms;             /* 0: the setting ojs.default_lease */
    int64 max_deliveries;       /* 0: no bound */
};
static_assert(std::is_trivially_destructible_v<Queue>);

/* Null: no such queue. The pointer holds until the next call that may find the cache outdated. */
const Queue *find_queue(std::string_view name);
const Queue *find_queue(int64 id);

/*
 * The queue a push goes to; made where it is missing, unless ojs.strict_queues says otherwise. Two sessions that make
 * the same queue at once do not wait for each other (see sql/tables.sql).
 */
const Queue *queue_for_push(std::string_view name);

/* Raises NOT_FOUND, with `topic_not_found` in its details. */
[[noreturn]] void raise_no_queue(std::string_view name);

void queue_init(); /* once, at load */

} // namespace ojs
