/*
 * hooks.h: functions of the database's own that take part in a push, a claim, or the end of an attempt.
 */
#pragma once

#include "ojs/job/envelope.h"

namespace ojs
{

enum class Point { enqueue, before_execute, after_execute, count };

struct Hook {
    const char *name;
    const char *function; /* as it is written: schema.name(jsonb) */
    const char *role;
    const char
        *stranger;    /* who owns the function now, if that is not who owned it when it was registered; else empty */
    Oid function_oid; /* invalid: there is no such function, or role */
    Oid role_oid;
    bool at_push; /* its point is enqueue */
    int failures; /* in this call; of execution hooks only */
    int sqlstate; /* of the last of them */
};
static_assert(std::is_trivially_destructible_v<Hook>);

/* The chain of a point as this call runs it: what others register meanwhile does not touch it. */
struct Hooks {
    Hook *at;
    int n; /* 0: a call without hooks looks no further */
};

/* Whether a hook of this role may be given the job: access.cpp, which stands above, says so. */
extern bool (*hook_may_see)(const JsonbContainer *job, bool at_push, Oid role);

Hooks hooks_at(Point point);

/*
 * Runs the enqueue hooks over an envelope that was read and not yet validated. Returns false if one of
 * them dropped the job. Otherwise the envelope is what they made of it, validated. Without hooks it is only validated.
 */
bool admit_envelope(const Hooks &hooks, Envelope &envelope, TimestampTz now);

/* The columns of an ojs.claimed_job go through the before_execute hooks: they may change args, meta and what has no
 * column, for this delivery only. */
void before_execute(const Hooks &hooks, Datum *values, bool *nulls);

/* A job whose attempt has ended, as it stands now, for the after_execute hooks. */
void after_execute(const Hooks &hooks, Jsonb *envelope);

/* At the end of a call: warns about execution hooks that failed in it, and counts it. */
void report_failures(const Hooks &hooks, Point point);

/* Adds up what report_failures() has left; for the tick. Waits for nobody. */
void tidy_hooks(TimestampTz now);

void hooks_init(); /* once, at load */

} // namespace ojs
