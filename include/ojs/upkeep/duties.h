/*
 * duties.h: what upkeep consists of, and how each part of it is doing. Each duty stands alone: one that fails stops no
 * other, is reported once, and is shown by ojs.health() and ojs.metrics() until it has succeeded again.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

/* In the order in which a pass runs them. */
enum class Duty {
    hot_set, /* the worker only */
    reap,
    dead_workers,
    promote,
    workflows,
    deduplication_keys,
    idempotency_keys,
    events,
    backpressure,
    event_notices,
    retention,
    dead_letters,
    unique_keys,
    lease_log,
    queues,
    workers,
    hooks,
    rate_limits,
    replay,
    webhooks,
    cron,
    priority_aging,
    reconcile,
    wake_up,
    recount, /* from here on the worker only */
    notifications,
    count
};
constexpr int n_duties = static_cast<int>(Duty::count);
const char *duty_name(Duty duty);

/* The work of one pass, and what has become of it. */
struct Pass {
    TimestampTz at; /* by the clock of ojs */
    int budget;     /* rows per duty */
    bool more;      /* a duty met the budget */
    bool failed;    /* a part of a duty failed, and was counted; the rest stays */
    int reaped;
    int dead_workers; /* whose heartbeats stopped; their jobs count as reaped */
    int promoted;
    int crons;
    int keys;     /* deduplication and idempotency keys whose time was over */
    int records;  /* events with rows of their own, too old or too many */
    int jobs;     /* finished ones that are not kept any longer */
    int replayed; /* dead letters, by a rule */
};
static_assert(std::is_trivially_destructible_v<Pass>);

/* Runs one duty of those that ojs.tick() has (tick.cpp). Raises what it raises. */
void run_duty(Duty duty, Pass &pass);

/* Nobody waits for a lock for longer than this in a duty: other duties wait behind it. */
constexpr int duty_lock_timeout_ms = 500;

struct DutyState {
    TimestampTz good_at;       /* the end of its last success; 0: none yet */
    TimestampTz failing_since; /* 0: it does not fail */
    bool more;                 /* its last success left some for the next pass */
    int64 failures;
    int sqlstate; /* of the last failure, as is the message */
    char message[96];
};

/* The states are shared by all sessions of the database where the library is preloaded, else they are the session's. */
Size duties_size();
void duties_startup(bool found);
void read_duty_states(DutyState (&states)[n_duties]);

void duty_succeeded(Duty duty, bool more);
/* Counts the failure, and reports it as a warning where the one before was another, or a success. */
void duty_failed(Duty duty, const ErrorData &error);

/* Whether the error is not the duty's own: the session is to be stopped, or its transaction cannot go on. */
bool ends_the_call(const ErrorData &error);

} // namespace ojs
