/*
 * unique.h: uniqueness of jobs, and deduplication keys. What both promise, and why it holds:
 * docs/how-to/unique-jobs.md.
 */
#pragma once

#include "ojs/job/canonical.h"
#include "ojs/push/insert.h"

namespace ojs
{

/* A job's policy and its key, worked out once. */
struct Uniqueness {
    UniquePolicy policy;
    Fingerprint key;
};
Uniqueness uniqueness_of(const Envelope &envelope);

/*
 * For a policy that only rejects or ignores, without a lock and without writing. in_the_way: a committed job is, and it
 * is `existing` (ignore; reject raises DUPLICATE_JOB). Otherwise nothing is decided yet: the key is free, so that
 * taking it may begin with an insert, or known.
 */
enum class ConflictCheck { free, known, in_the_way };
ConflictCheck check_conflict(Tables &tables, const Uniqueness &unique, TimestampTz now, Pushed &existing);

/*
 * Takes the keys of a call in their own order, so that two calls never wait for each other: afterwards no other
 * transaction can decide about them before this one has ended. `ids` are the jobs that want them; fresh[i] says that
 * the key was free and is theirs.
 */
void lock_keys(Tables &tables, const Uniqueness *keys, const pg_uuid_t *ids, int n, bool likely_free, bool *fresh);

/*
 * For a call with several keys that are locked by now: keeps the jobs which its policies may replace from moving, in
 * the order of their ids, so that it never waits for a call that names several jobs and waits for it.
 */
void hold_replaceable(Tables &tables, const Uniqueness *keys, const bool *fresh, int n, TimestampTz now);

/* Whether the caller may do away with a job in that queue for the sake of this one. */
bool may_replace_in(int64 queue, const Envelope &envelope);

/*
 * Whether the job may be stored, whose key is locked: false, and `existing` is the job in its way (on_conflict ignore);
 * raises DUPLICATE_JOB (reject); or true, the jobs in its way are cancelled (replace), or one of them has given it its
 * place and id (update, merge), and the key is its own. May set the envelope's scheduled_at (…_except_schedule).
 */
bool admit(Tables &tables, Envelope &envelope, const Uniqueness &unique, TimestampTz now, Pushed &existing);

/*
 * The newest open job that has the uniqueness key of another one (INT-09): false, there is none. Where a hook has
 * changed what the key was made of, that is not found.
 */
bool live_twin(Tables &tables, const JobRow &job, TimestampTz now, pg_uuid_t &twin, State &state);

/*
 * Takes the deduplication key for the job (of a batch, the first), or finds that it is taken: then job_id is the job of
 * that push. Waits for a transaction that is taking the same key.
 */
struct DeduplicationKey {
    bool taken;       /* by this call */
    pg_uuid_t job_id; /* of who took it before */
};
DeduplicationKey take_deduplication_key(int64 queue, std::string_view key, const pg_uuid_t &job_id, int64 ttl_ms);

/* How long a key is kept, in ms, that asks for this or for nothing. */
int64 deduplication_ttl(std::optional<int64> ttl_ms);

/* Raises unless the key is one that can be kept. */
void check_deduplication_key(std::string_view key);

/* A deduplication key of this call's that names another job after all: the one that uniqueness put in its place. */
void point_deduplication_key(int64 queue, std::string_view key, const pg_uuid_t &job_id);

/* Gives up a key that this call took: not all of what it stands for was stored. */
void free_deduplication_key(int64 queue, std::string_view key);

/* Removes at most `limit` deduplication keys whose time is over. Returns the number of rows removed. */
int prune_deduplication_keys(int limit, TimestampTz now);

} // namespace ojs
