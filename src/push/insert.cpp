/*
 * insert.cpp: storing new jobs.
 *
 * Equivalent SQL, for a job that is due:
 *   insert into ojs_store.job (id, seq, queue, …) values (…);
 *   insert into ojs_store.ready (job_id, queue, position, job_tid, npriority, …)
 *   values (id, queue, seq, ctid, -priority, …);
 * and into ojs_store.delayed instead of ready for one that is scheduled or pending.
 */
#include "ojs/push/insert.h"

#include "ojs/push/capacity.h"
#include "ojs/push/tenant_room.h"
#include "ojs/push/update.h"
#include "ojs/counters/job_metrics.h"
#include "ojs/limits/held_position.h"
#include "ojs/state/lineage.h"
#include "ojs/state/transitions.h"
#include "ojs/state/ordering.h"
#include "ojs/queue/push_rules.h"
#include "ojs/pg/uuid.h"
#include "ojs/shared/wakeup.h"

namespace ojs
{

namespace
{

[[noreturn]] void
raise_duplicate_id(const pg_uuid_t &id)
{
    raise(Code::duplicate_job, Details().add("existing_job_id", id).add("field", "id"),
          "Leave the id out, or treat this push as done before.", "a job with the id %s exists already",
          DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&id))));
}

/*
 * A job with a caller's own id. A second session that brings the same id waits for the first to end, so DUPLICATE_JOB
 * is the answer and never a unique violation.
 */
void
insert_own_id(store::Table &jobs, HeapTuple tuple, const pg_uuid_t &id)
{
    while (!store::insert_unless_there(jobs, store::Idx::job_id, tuple)) {
        ScanKeyData key;
        store::Scan scan;
        CHECK_FOR_INTERRUPTS();
        store::key_uuid(&key, id);
        store::begin(scan, jobs, store::Idx::job_id, &key, 1, false);
        store::Row seen = store::next(scan);
        if (seen == store::Row::live)
            raise_duplicate_id(id);
        store::end(scan); /* who waits keeps no page of the index */
        if (seen != store::Row::none)
            store::wait_for(scan);
    }
}

struct GivenIds {
    int *at; /* positions of the envelopes that brought ids, in id order: two batches cannot wait for each other */
    int n;
};

GivenIds
given_ids(const Envelope *envelopes, int n)
{
    GivenIds given = {static_cast<int *>(palloc(sizeof(int) * n)), 0};
    for (int i = 0; i < n; i++)
        if (envelopes[i].has_id)
            given.at[given.n++] = i;
    std::sort(given.at, given.at + given.n, [&](int a, int b) {
        return same(envelopes[a].id, envelopes[b].id) ? a < b : envelopes[a].id < envelopes[b].id;
    });
    return given;
}

void
insert_jobs(store::Table &jobs, const Envelope *envelopes, HeapTuple *tuples, int n)
{
    GivenIds given = given_ids(envelopes, n);
    if (given.n == 0) {
        store::insert_many(jobs, tuples, n);
        return;
    }
    for (int i = 0; i < n; i++)
        if (!envelopes[i].has_id)
            store::insert(jobs, tuples[i]);
    for (int i = 0; i < given.n; i++) {
        error_item = envelopes[given.at[i]].item;
        insert_own_id(jobs, tuples[given.at[i]], envelopes[given.at[i]].id);
    }
    error_item = -1;
}

/* Rows of so many bytes are stored and forgotten before more are formed. */
constexpr Size rows_at_once = 1024 * 1024;

/* Whether rows may be stored before all are known: none waits for others, for an id or for room. */
bool
may_store_early(const Envelope *envelopes, int n)
{
    return std::none_of(envelopes, envelopes + n, [](const Envelope &envelope) {
        const Queue *queue = envelope.has_id ? nullptr : find_queue(envelope.queue);
        return queue == nullptr || queue->bounded || queue->tenant_bounded;
    });
}

void
store_rows(store::Table &jobs, const Envelope *envelopes, HeapTuple *tuples, Pushed *pushed, int n)
{
    error_item = -1;
    insert_jobs(jobs, envelopes, tuples, n);
    for (int i = 0; i < n; i++)
        pushed[i].tid = tuples[i]->t_self;
}

void
to_row(const Envelope &envelope, int64 queue, TimestampTz now, JobRow &job)
{
    job = {};
    job.id = envelope.id;
    job.seq = store::next_seq();
    job.queue = queue;
    job.created_at = now;
    job.flags = envelope.flags;
    job.max_attempts = envelope.max_attempts;
    job.priority = static_cast<int16>(envelope.priority);
    job.scheduled_at = envelope.scheduled_at;
    job.expires_at = envelope.expires_at;
    job.timeout_ms = envelope.timeout_ms;
    job.type = cstring_to_text_with_len(envelope.type.data(), static_cast<int>(envelope.type.size()));
    job.args = envelope.args;
    job.meta = envelope.meta;
    job.retry = envelope.retry;
    job.unique_policy = envelope.unique_policy;
    job.options = envelope.options;
    if (envelope.updated != nullptr) {
        job.seq = envelope.updated->seq;
        job.created_at = envelope.updated->created_at;
    }
}

/* Of a job in ready that is updated. Within their class positions only grow, but for a row that is put back where it
 * has been: not in the line of a limit, which it may not have any more. */
int64
position_of(const Envelope &envelope, const JobRow &job)
{
    if (job.flags & job_ordered)
        return job.seq;
    bool stays = envelope.updated->position && envelope.updated->queue == job.queue;
    return stays ? own_position(*envelope.updated->position) : store::next_seq();
}

/* Who changes a job that waits takes no room that it did not take before, unless it is the size that counts. */
bool
needs_room(const Envelope &envelope, const Queue &queue)
{
    return envelope.updated == nullptr || envelope.updated->queue != queue.id || queue.max_size_bytes > 0;
}

State
first_state(const JobRow &job, TimestampTz now)
{
    if (job.flags & job_pending)
        return State::pending;
    return job.scheduled_at && *job.scheduled_at > now ? State::scheduled : State::available;
}

Bitmapset *
line_up(Tables &tables, JobRow &job, TimestampTz now, int position, Bitmapset *blocked)
{
    bool first = join_line(tables, job, first_state(job, now) == State::available);
    return first ? blocked : bms_add_member(blocked, position);
}

DelayedRow
delayed_row(const JobRow &job, ItemPointerData tid, DelayedKind kind, TimestampTz due_at)
{
    return {hot_row_of(job, tid), due_at, kind};
}

/* Of the first, the rules have been applied; they change sizes. */
TimestampTz
find_room_for_all(Tables &tables, Envelope *envelopes, int n, TimestampTz now)
{
    for (int i = 1; i < n; i++) {
        error_item = envelopes[i].item;
        const Queue *queue = queue_for_push(envelopes[i].queue);
        if (queue->push_rules)
            apply_push_rules(*queue, envelopes[i]);
    }
    error_item = -1; /* it is about all of them */
    keep_tenant_limits(tables, envelopes, n, now);
    return find_room(tables, envelopes, n, now);
}

} // namespace

void
raise_repeated_id(const pg_uuid_t &id)
{
    raise(Code::duplicate_job, Details().add("existing_job_id", id).add("field", "id"),
          "Give each job of a batch an id of its own, or none.", "the batch holds two jobs with the id %s",
          DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&id))));
}

void
check_ids(const Envelope *envelopes, int n, bool lock, bool *repeated)
{
    GivenIds given = given_ids(envelopes, n);
    constexpr int n_stripes = 64; /* what the lock table has room for per transaction, by default */
    bool wanted[n_stripes] = {};
    for (int i = 0; i < given.n; i++) {
        const pg_uuid_t &id = envelopes[given.at[i]].id;
        error_item = envelopes[given.at[i]].item;
        if (i > 0 && same(id, envelopes[given.at[i - 1]].id)) {
            if (repeated == nullptr)
                raise_repeated_id(id);
            repeated[given.at[i]] = true;
            continue;
        }
        wanted[DatumGetUInt32(hash_any(id.data, UUID_LEN)) % n_stripes] = lock;
    }
    error_item = -1;
    for (int i = 0; i < n_stripes; i++) {
        if (!wanted[i])
            continue;
        LOCKTAG tag;
        SET_LOCKTAG_OBJECT(tag, MyDatabaseId, store::relation_oid(store::Rel::job), static_cast<uint32>(i), 1);
        (void)LockAcquire(&tag, ExclusiveLock, false, false);
    }
}

void
enqueue(Tables &tables, Envelope *envelopes, int n, TimestampTz now, Pushed *pushed)
{
    store::Table &jobs = tables.job();
    auto *tuples = static_cast<HeapTuple *>(palloc(sizeof(HeapTuple) * n));
    auto *ready = static_cast<HeapTuple *>(palloc(sizeof(HeapTuple) * n));
    int n_ready = 0;
    int stored = 0;
    Size bytes = 0;
    Size most = rows_at_once;
    bool has_room = false;
    Bitmapset *blocked = nullptr; /* positions of jobs behind others of their ordering key */

    for (int i = 0; i < n; i++) {
        error_item = envelopes[i].item;
        const Queue *queue = queue_for_push(envelopes[i].queue);
        if (queue->state == QueueState::draining)
            raise(Code::queue_paused, Details().add("queue", queue->name), "Try again when the queue is resumed.",
                  "queue \"%s\" is draining and takes no new jobs", queue->name);
        store::note_write(queue->durable && !(envelopes[i].flags & job_at_most_once)); /* R-79, DLV-01 */
        if (queue->push_rules && !has_room)
            apply_push_rules(*queue, envelopes[i]);
        if ((queue->bounded || queue->tenant_bounded) && needs_room(envelopes[i], *queue)) {
            if (!has_room)
                now = find_room_for_all(tables, envelopes + i, n - i, now);
            has_room = true;
            queue = queue_for_push(envelopes[i].queue);
            error_item = envelopes[i].item;
            if (queue->max_size_bytes > 0)
                envelopes[i].flags |= job_sized;
        }
        to_row(envelopes[i], queue->id, now, pushed[i].job);
        pushed[i].queue = envelopes[i].queue;
        if (envelopes[i].flags & job_ordered)
            blocked = line_up(tables, pushed[i].job, now, i, blocked);
        tuples[i] = form(jobs.rel, pushed[i].job);
        bytes += tuples[i]->t_len;
        if (bytes > most && i + 1 < n) {
            if (stored == 0 && !may_store_early(envelopes, n)) {
                most = SIZE_MAX;
                continue;
            }
            store_rows(jobs, envelopes + stored, tuples + stored, pushed + stored, i + 1 - stored);
            std::for_each(tuples + stored, tuples + i + 1, heap_freetuple);
            stored = i + 1;
            bytes = 0;
        }
        CHECK_FOR_INTERRUPTS();
    }
    store_rows(jobs, envelopes + stored, tuples + stored, pushed + stored, n - stored);

    for (int i = 0; i < n; i++) {
        const JobRow &job = pushed[i].job;
        Status &status = pushed[i].status;
        status = {};
        status.state = first_state(job, now);
        status.queue = job.queue;
        status.deduplicated = envelopes[i].updated != nullptr;
        if (envelopes[i].updated == nullptr)
            count_pushed(job);
        if (job.flags & job_spawned)
            store_parent(tables, job.id, *envelopes[i].parent);
        if (status.state == State::available && blocked != nullptr && bms_is_member(i, blocked)) {
            store::insert(tables.delayed(),
                          form(tables.delayed().rel, delayed_row(job, pushed[i].tid, DelayedKind::blocked, DT_NOEND)));
            status.enqueued_at = now;
            wake_queue(job.queue, pushed[i].queue, 1); /* it may be its turn by then */
        } else if (status.state == State::available) {
            ReadyRow row = {hot_row_of(job, pushed[i].tid), job.seq};
            bool updated = envelopes[i].updated != nullptr; /* others may look for it by the envelope that it had */
            ready[n_ready++] = form(tables.ready().rel, updated ? moved_to(row, position_of(envelopes[i], job)) : row);
            status.enqueued_at = now;
            wake_queue(job.queue, pushed[i].queue, 1);
        } else {
            bool pending = status.state == State::pending;
            DelayedRow row = delayed_row(job, pushed[i].tid, pending ? DelayedKind::pending : DelayedKind::scheduled,
                                         pending ? DT_NOEND : *job.scheduled_at);
            store::insert(tables.delayed(), form(tables.delayed().rel, row));
        }
        std::optional<Expiry> expiry = (job.flags & job_expires) ? expiry_of(job) : std::nullopt;
        if (expiry)
            store::insert(tables.delayed(),
                          form(tables.delayed().rel, delayed_row(job, pushed[i].tid, DelayedKind::expiry, expiry->at)));
    }
    if (n_ready > 0)
        store::insert_many(tables.ready(), ready, n_ready);
}

} // namespace ojs
