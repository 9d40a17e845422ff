/*
 * update.h: a push that changes a job that waits, instead of making one: debouncing, and collecting what many pushes
 * bring. A uniqueness policy asks for it by on_conflict update, update_except_schedule, merge and
 * merge_except_schedule. What they promise: docs/how-to/debounce.md.
 */
#pragma once

#include "ojs/job/canonical.h"
#include "ojs/store/tables.h"

namespace ojs
{

/* What stays of a job that is updated, beside its id. */
struct UpdatedJob {
    int64 seq;
    int64 queue;
    TimestampTz created_at;
    std::optional<int64> position; /* where it could be claimed */
};

inline bool
updates(const UniquePolicy &policy)
{
    return policy.on_conflict >= OnConflict::update;
}

/* The states of a job that may be updated: one that runs never is. */
int updatable_states(const UniquePolicy &policy);

/*
 * Takes the job out of its place, for the envelope to be stored in it: the envelope gets its id, and what is to stay of
 * the rest. Waits for a transaction that has the job. Returns false if the job is in no updatable state any more.
 */
bool update_job(Tables &tables, const pg_uuid_t &id, Envelope &envelope, const UniquePolicy &policy, TimestampTz now);

} // namespace ojs
