/*
 * unique.cpp: strong uniqueness.
 *
 * One row of ojs_store.unique_key per fingerprint, kept single by a partial unique index; whoever decides about a
 * fingerprint has that row inserted or locked, until its transaction ends. The states of the jobs it names are looked
 * up then, by one snapshot taken after the lock, and the incoming policy is applied to them. Lock order: keys in
 * their own order, then rows of ready, delayed and lease, by job id where there are several. Claims, acks and upkeep
 * never touch ojs_store.unique_key.
 */
#include "ojs/push/unique.h"

#include "ojs/push/key_row.h"
#include "ojs/push/update.h"

#include "ojs/queue/access.h"
#include "ojs/queue/push_rules.h"
#include "ojs/pg/args.h"
#include "ojs/pg/subtransaction.h"
#include "ojs/state/locate.h"
#include "ojs/state/members.h"
#include "ojs/pg/uuid.h"

namespace ojs
{

namespace
{

bool
in_the_way(const UniquePolicy &policy, TimestampTz created_at, State state, TimestampTz now)
{
    return (policy.states & state_bit(state)) != 0 && within_period(policy, created_at, now);
}

bool
replaces(const UniquePolicy &policy)
{
    return policy.on_conflict == OnConflict::replace || policy.on_conflict == OnConflict::replace_except_schedule;
}

/* Whether the policy does something to the jobs that are in the way. */
bool
changes(const UniquePolicy &policy)
{
    return replaces(policy) || updates(policy);
}

[[noreturn]] void
raise_duplicate(const Uniqueness &unique, const JobRow &job, const Status &status)
{
    char hex[2 * sizeof unique.key.bytes + 1];
    for (size_t i = 0; i < sizeof unique.key.bytes; i++)
        snprintf(hex + 2 * i, 3, "%02x", unique.key.bytes[i]);
    Details details;
    details.add("existing_job_id", job.id);
    if (may_use_queue(status.queue, Right::read))
        details.add("existing_job_state", state_name(status.state));
    raise(Code::duplicate_job, details.add_unlogged("unique_key", hex),
          "Treat the existing job as this one, or choose on_conflict ignore or replace.",
          "a job with the same uniqueness key exists already");
}

/* Where one of a key's jobs stands. */
struct Look {
    bool done; /* whether it was looked at */
    bool exists;
    State state;
    TimestampTz created_at;
    std::optional<TimestampTz> scheduled_at;
};

/*
 * Looks the jobs up by one snapshot, so that none is missed because two of them moved in between. It ends at the first
 * that is older than the policy's period: all after it are. For a policy that rejects or ignores it ends at the first
 * that is in the way: true, and `existing` is that job.
 */
bool
look_up(Tables &tables, const KeyJobs &jobs, const Uniqueness &unique, TimestampTz now, Look *looks, Pushed &existing)
{
    bool found = false;
    bool within = true;
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    for (int i = 0; i < jobs.n && within && !found; i++) {
        JobRow job;
        Status status;
        CHECK_FOR_INTERRUPTS();
        looks[i] = {};
        looks[i].done = true;
        if (!read_status(tables, jobs.ids[i], snapshot, now, job, status))
            continue;
        looks[i] = {true, true, status.state, job.created_at, job.scheduled_at};
        within = within_period(unique.policy, job.created_at, now);
        found = !changes(unique.policy) && in_the_way(unique.policy, job.created_at, status.state, now);
        if (!found)
            continue;
        if (unique.policy.on_conflict == OnConflict::reject)
            raise_duplicate(unique, job, status);
        existing.job = job; /* points into slots that the next look-up uses again */
        existing.status = status;
        existing.status.deduplicated = true;
        existing.queue = queue_name(status.queue);
    }
    UnregisterSnapshot(snapshot);
    return found;
}

Look *
room_for(const KeyJobs &jobs)
{
    return static_cast<Look *>(palloc0(sizeof(Look) * std::max(jobs.n, 1)));
}

bool
open(const Look &look)
{
    return look.exists && !terminal(look.state);
}

/* It has moved since, out of the policy's reach. */
void
look_again(Tables &tables, const pg_uuid_t &id, TimestampTz now, Look &look)
{
    JobRow job;
    Status status;
    look.exists = read_current_status(tables, id, now, job, status);
    if (look.exists)
        look.state = status.state;
}

/* Has the newest job in the way that waits give its place to the new one. Its id is the new one's then, and not to be
 * named beside that. */
void
update_newest(Tables &tables, Envelope &envelope, const KeyJobs &jobs, const UniquePolicy &policy, TimestampTz now,
              Look *looks)
{
    for (int i = 0; i < jobs.n; i++) {
        Look &look = looks[i];
        if (!open(look) || look.state == State::active || !in_the_way(policy, look.created_at, look.state, now))
            continue;
        if (update_job(tables, jobs.ids[i], envelope, policy, now)) {
            look.exists = false;
            return;
        }
        look_again(tables, jobs.ids[i], now, look);
    }
}

/* Cancels the jobs in the way. The newest one that was waiting for its time lends it to the new job. */
void
replace_jobs(Tables &tables, Envelope &envelope, const KeyJobs &jobs, const UniquePolicy &policy, TimestampTz now,
             Look *looks)
{
    bool inherited = false;
    for (int i = 0; i < jobs.n; i++) {
        Look &look = looks[i];
        if (!open(look) || !in_the_way(policy, look.created_at, look.state, now))
            continue;
        State was;
        int64 queue;
        if (!cancel_in(tables, jobs.ids[i], policy.states & open_states, now, was, queue, &envelope.id)) {
            look_again(tables, jobs.ids[i], now, look);
            continue;
        }
        if (!may_replace_in(queue, envelope))
            raise_job_denied(jobs.ids[i], Right::cancel);
        look.state = State::cancelled;
        if (policy.on_conflict == OnConflict::replace_except_schedule && was == State::scheduled && !inherited) {
            envelope.scheduled_at = look.scheduled_at;
            inherited = true;
        }
    }
}

/* Looks at a few of the jobs that nobody had to look at: so of those that have ended few stay. */
void
look_at_some(Tables &tables, const KeyJobs &jobs, TimestampTz now, Look *looks)
{
    constexpr int most = 4;
    int first = 0;
    while (first < jobs.n && looks[first].done)
        first++;
    if (first == jobs.n)
        return;
    first += static_cast<int>(random64() % static_cast<uint64>(jobs.n - first));
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    for (int i = first; i < std::min(first + most, jobs.n); i++) {
        JobRow job;
        Status status;
        looks[i].done = true;
        looks[i].exists = read_status(tables, jobs.ids[i], snapshot, now, job, status);
        if (looks[i].exists)
            looks[i] = {true, true, status.state, job.created_at, job.scheduled_at};
    }
    UnregisterSnapshot(snapshot);
}

/* The jobs that the key goes on naming, the oldest first: the new one, those that are open or were not looked at, and
 * the newest of each final state, which is the one that decides a period. */
int
what_matters(const KeyJobs &jobs, const Look *looks, const pg_uuid_t &id, TimestampTz created_at, pg_uuid_t *named)
{
    auto is_newer = [created_at](const Look &look) {
        return look.done && (!look.exists || look.created_at > created_at);
    };
    constexpr int n_states = static_cast<int>(State::discarded) + 1;
    int newest[n_states];
    int n = 0;
    std::fill(newest, newest + n_states, -1);
    for (int i = 0; i < jobs.n; i++) {
        int &best = newest[static_cast<int>(looks[i].state)];
        if (looks[i].exists && terminal(looks[i].state) && (best < 0 || looks[i].created_at > looks[best].created_at))
            best = i;
    }
    /* It is the newest, unless it waited for the key or the clock was set back. */
    int newer = 0;
    while (newer < jobs.n && is_newer(looks[newer]))
        newer++;
    for (int i = jobs.n - 1; i >= 0; i--) {
        if (i == newer - 1)
            named[n++] = id;
        if (!looks[i].done || open(looks[i]) || (looks[i].exists && newest[static_cast<int>(looks[i].state)] == i))
            named[n++] = jobs.ids[i];
    }
    if (newer == 0)
        named[n++] = id;
    return n;
}

/* A job that a call may replace, or (`waits`) only change while it waits. */
struct Replaceable {
    pg_uuid_t id;
    bool waits;
};

bool
by_id(const Replaceable &a, const Replaceable &b)
{
    return same(a.id, b.id) ? a.waits < b.waits : a.id < b.id;
}

/* How many of the jobs may be within the policy's period. */
int
count_within_period(Tables &tables, const KeyJobs &jobs, const UniquePolicy &policy, TimestampTz now)
{
    if (!policy.period)
        return jobs.n;
    for (int i = 0; i < jobs.n; i++) {
        ItemPointerData tid;
        JobBrief job;
        if (store::find(tables.job(), store::Idx::job_id, jobs.ids[i], &tid) == store::Row::none)
            continue;
        read(tables.job().slot, job);
        if (!within_period(policy, job.created_at, now))
            return i;
    }
    return jobs.n;
}

/* A job in a queue that is not for the caller is not held: whoever comes to replace it is refused. */
void
hold_in_order(Tables &tables, Replaceable *jobs, int n, TimestampTz now)
{
    std::sort(jobs, jobs + n, by_id);
    for (int i = 0; i < n; i++) {
        JobRow job;
        Status status;
        if ((i > 0 && same(jobs[i].id, jobs[i - 1].id)) || !read_current_status(tables, jobs[i].id, now, job, status) ||
            !may_use_queue(status.queue, Right::cancel))
            continue;
        if (jobs[i].waits)
            (void)hold_in(tables, jobs[i].id, open_states & ~state_bit(State::active), true);
        else
            hold_open(tables, jobs[i].id, now);
    }
}

} // namespace

Uniqueness
uniqueness_of(const Envelope &envelope)
{
    Uniqueness unique = {read_unique_policy(envelope.unique_policy), {}};
    if (envelope.received_args != nullptr) {
        Envelope received = envelope;
        received.args = envelope.received_args;
        unique.key = fingerprint(received, unique.policy);
    } else
        unique.key = fingerprint(envelope, unique.policy);
    return unique;
}

ConflictCheck
check_conflict(Tables &tables, const Uniqueness &unique, TimestampTz now, Pushed &existing)
{
    if (changes(unique.policy))
        return ConflictCheck::known;
    /* A row that is about to change says what is committed, and that is enough to be refused by. */
    ItemPointerData tid;
    bool arriving;
    KeyJobs jobs = read_key(tables.get(store::Rel::unique_key), unique.key, &tid, &arriving);
    if (look_up(tables, jobs, unique, now, room_for(jobs), existing))
        return ConflictCheck::in_the_way;
    return jobs.n == 0 && !arriving ? ConflictCheck::free : ConflictCheck::known;
}

void
lock_keys(Tables &tables, const Uniqueness *keys, const pg_uuid_t *ids, int n, bool likely_free, bool *fresh)
{
    store::Table &table = tables.get(store::Rel::unique_key);
    auto *order = static_cast<int *>(palloc(sizeof(int) * std::max(n, 1)));
    for (int i = 0; i < n; i++)
        order[i] = i;
    auto compare = [&](int a, int b) { return memcmp(keys[a].key.bytes, keys[b].key.bytes, sizeof keys[a].key.bytes); };
    std::sort(order, order + n, [&](int a, int b) { return compare(a, b) != 0 ? compare(a, b) < 0 : a < b; });
    for (int i = 0; i < n; i++)
        fresh[order[i]] = (i == 0 || compare(order[i], order[i - 1]) != 0) &&
                          lock_key(table, keys[order[i]].key, ids[order[i]], likely_free);
    pfree(order);
}

void
hold_replaceable(Tables &tables, const Uniqueness *keys, const bool *fresh, int n, TimestampTz now)
{
    int room = 64;
    int n_ids = 0;
    auto *ids = static_cast<Replaceable *>(palloc(sizeof(Replaceable) * room));
    for (int i = 0; i < n; i++) {
        if (fresh[i] || !changes(keys[i].policy))
            continue;
        ItemPointerData tid;
        KeyJobs jobs = read_locked(tables.get(store::Rel::unique_key), keys[i].key, &tid);
        int n_within = count_within_period(tables, jobs, keys[i].policy, now);
        for (int j = 0; j < n_within; j++) {
            if (n_ids == room)
                ids = static_cast<Replaceable *>(repalloc_huge(ids, sizeof(Replaceable) * (room *= 2)));
            ids[n_ids++] = {jobs.ids[j], updates(keys[i].policy)};
        }
    }
    hold_in_order(tables, ids, n_ids, now);
    pfree(ids);
}

/* Who set up a workflow or a cron entry may push to the queue of the job; nothing is known of what else. */
bool
may_replace_in(int64 queue, const Envelope &envelope)
{
    if (!pushes_for_others() || queue == queue_id(envelope.queue))
        return may_use_queue(queue, Right::cancel);
    const Queue *found = find_queue(queue);
    return found == nullptr || !found->restricted;
}

bool
admit(Tables &tables, Envelope &envelope, const Uniqueness &unique, TimestampTz now, Pushed &existing)
{
    store::Table &table = tables.get(store::Rel::unique_key);
    ItemPointerData tid;
    KeyJobs jobs = read_locked(table, unique.key, &tid);
    Look *looks = room_for(jobs);
    auto *ids = static_cast<pg_uuid_t *>(palloc(sizeof(pg_uuid_t) * (jobs.n + 1)));

    if (look_up(tables, jobs, unique, now, looks, existing))
        return false;
    if (updates(unique.policy))
        update_newest(tables, envelope, jobs, unique.policy, now, looks);
    else if (replaces(unique.policy)) {
        int n_open = 0;
        auto *held = static_cast<Replaceable *>(palloc(sizeof(Replaceable) * jobs.n));
        for (int i = 0; i < jobs.n; i++)
            if (open(looks[i]))
                held[n_open++] = {jobs.ids[i], false};
        if (n_open > 1) {
            hold_in_order(tables, held, n_open, now);
            (void)look_up(tables, jobs, unique, now, looks, existing);
        }
        replace_jobs(tables, envelope, jobs, unique.policy, now, looks);
    }
    look_at_some(tables, jobs, now, looks);
    TimestampTz created_at = envelope.updated != nullptr ? envelope.updated->created_at : now;
    int n = what_matters(jobs, looks, envelope.id, created_at, ids);
    replace_key(table, unique.key, &tid, ids, n);
    pfree(looks);
    pfree(ids);
    return true;
}

bool
live_twin(Tables &tables, const JobRow &job, TimestampTz now, pg_uuid_t &twin, State &state)
{
    if (job.unique_policy == nullptr)
        return false;
    Envelope envelope = empty_envelope();
    envelope.type = view(job.type);
    envelope.queue = queue_name(job.queue);
    envelope.args = job.args;
    envelope.meta = job.meta;
    envelope.unique_policy = job.unique_policy;
    envelope.options = job.options;
    Uniqueness unique;
    ErrorData *error = attempt([&] { unique = uniqueness_of(envelope); });
    if (error != nullptr && !is(error, Code::unique_key_invalid))
        ReThrowError(error);
    if (error != nullptr)
        return false; /* args without what args_keys name: a hook has been at them */

    ItemPointerData tid;
    bool arriving;
    KeyJobs jobs = read_key(tables.get(store::Rel::unique_key), unique.key, &tid, &arriving);
    for (int i = 0; i < jobs.n; i++) {
        JobRow other;
        Status status;
        if (same(jobs.ids[i], job.id) || !read_current_status(tables, jobs.ids[i], now, other, status) ||
            terminal(status.state))
            continue;
        twin = jobs.ids[i];
        state = status.state;
        return true;
    }
    return false;
}

} // namespace ojs
