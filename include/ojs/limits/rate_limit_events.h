/*
 * rate_limit_events.h: the events rate_limit.exceeded and rate_limit.released. They tell of keys, not of jobs: a key
 * that holds jobs back all the time emits one event a minute.
 */
#pragma once

#include "ojs/job/limit_policy.h"
#include "ojs/store/rows.h"
#include "ojs/store/tables.h"

namespace ojs
{

/* What a claim has seen of a key. */
struct LimitSight {
    const char *strategy; /* by which it held a job back; null: it did not */
    int64 limit;
    int64 current;
    bool started;     /* a job */
    pg_uuid_t job_id; /* … this one */
    text *name;       /* of the key, where it did either */
};

/* The key's limit lets no job start now. */
void see_closed(LimitSight &sight, const LimitPolicy &policy, int64 held, int64 started, bool paused);
void see_start(LimitSight &sight, const LimitPolicy &policy, const pg_uuid_t &job_id);

/* To be called in turn (rate_limits.h), once for each key that the claim has met. */
void tell_limit(Tables &tables, int64 key, const LimitSight &sight, TimestampTz now);

} // namespace ojs
