/*
 * dead_letter.cpp: see dead_letter.h.
 */
#include "ojs/state/dead_letter.h"

#include "ojs/job/canonical.h"
#include "ojs/counters/job_metrics.h"
#include "ojs/pg/json.h"
#include "ojs/pg/settings.h"
#include "ojs/state/lineage.h"
#include "ojs/state/members.h"
#include "ojs/state/ordering.h"
#include "ojs/state/transitions.h"
#include "ojs/state/reported.h"
#include "ojs/store/spi.h"
#include "ojs/pg/uuid.h"
#include "ojs/shared/wakeup.h"

namespace ojs
{

namespace
{

/* Only inserted into, so that two claims do not wait for each other; the tick adds the rows up. */
constinit Statement count_move = {
    "insert into ojs_store.queue_count (queue, dead_lettered) values ($1, 1)", {INT8OID}, nullptr};

Jsonb *
meta_with_origin(const JobRow &job, const Queue &from, int32 deliveries)
{
    ObjectBuilder meta;
    if (job.meta != nullptr)
        each_member(root_of(job.meta),
                    [&meta](std::string_view key, const JsonbValue &value) { meta.add(key, value); });
    meta.add("$dead_letter_from", std::string_view(from.name));
    meta.add("$dead_letter_deliveries", static_cast<int64>(deliveries));
    meta.add("$dead_letter_src_seq", job.seq);
    return meta.finish();
}

/* A job that no longer has to run, be unique or expire: only what is in it counts. */
JobRow
copy_for(const Queue &target, const Queue &from, const JobRow &job, const ReadyRow &ready, TimestampTz now)
{
    JobRow copy = job;
    copy.id = new_uuid();
    copy.seq = store::next_seq();
    copy.queue = target.id;
    copy.created_at = now;
    copy.flags &= ~(job_pending | job_expires | job_unique | job_has_history | job_sized | job_in_workflow |
                    job_has_parents | job_ordered | job_relaxed);
    if (target.max_size_bytes > 0)
        copy.flags |= job_sized;
    copy.scheduled_at = std::nullopt;
    copy.expires_at = std::nullopt;
    copy.unique_policy = nullptr;
    copy.meta = meta_with_origin(job, from, ready.deliveries);
    return copy;
}

Jsonb *
error_of_move(const Queue &from, const JobRow &copy, const ReadyRow &ready, TimestampTz now)
{
    Jsonb *error = server_error("max_deliveries",
                                psprintf("delivered %d times without an ack, and moved to the queue \"%s\"",
                                         ready.deliveries, from.dead_letter),
                                ready.attempt, now);
    ObjectBuilder out;
    each_member(root_of(error), [&out](std::string_view key, const JsonbValue &value) { out.add(key, value); });
    out.add("dead_lettered_to", std::string_view(from.dead_letter));
    out.add("dead_lettered_id",
            std::string_view(DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&copy.id)))));
    return out.finish();
}

} // namespace

void
move_to_dead_letters(Tables &tables, const Queue &queue, const JobRow &job, const ReadyRow &ready, TimestampTz now)
{
    Queue target = *queue_to_move_to(queue.dead_letter);
    JobRow copy = copy_for(target, queue, job, ready, now);
    HeapTuple tuple = form(tables.job().rel, copy);
    bool trace = !queue.delete_on_ack || !leaves_no_trace(job, State::discarded);
    FinishedRow end = end_waiting(ready, now);
    end.error = error_of_move(queue, copy, ready, now);

    store::note_write(target.durable); /* both come back together, or neither */
    store::insert(tables.job(), tuple);
    if (copy.flags & job_spawned)
        store_parent(tables, copy);
    ReadyRow row = {hot_row_of(copy, tuple->t_self), copy.seq};
    store::insert(tables.ready(), form(tables.ready().rel, row));
    wake_queue(target.id, target.name, 1);
    count_pushed(copy);

    if (trace)
        finish(tables, end, ready.flags);
    else {
        count_ended(end, ready.flags);
        if (ready.flags & ends_matter)
            follow_end(tables, end, ready.flags);
        remove_job(tables, ready.job_id, ready.job_tid, ready.flags);
    }
    /* With this the command counter moves, so that the same claim may hand out the copy, if it asks for that queue. */
    with_spi([&] { (void)execute(count_move, {Int64GetDatum(queue.id)}); });
}

bool
leaves_no_trace(const JobRow &job, State end)
{
    return job.unique_policy == nullptr ||
           (read_unique_policy(job.unique_policy).states & (1 << static_cast<int>(end))) == 0;
}

bool
removed_at_end(Tables &tables, const LeaseRow &lease, State end)
{
    JobRow job;
    read_job(tables, lease.job_id, lease.job_tid, job);
    if (!leaves_no_trace(job, end))
        return false;
    remove_job(tables, lease.job_id, lease.job_tid, lease.flags);
    return true;
}

void
remove_job(Tables &tables, const pg_uuid_t &id, ItemPointerData tid, int32 flags)
{
    store::Table &jobs = tables.job();
    if (try_find_job(tables, id, tid)) {
        tid = jobs.slot->tts_tid;
        (void)store::take_waiting(jobs, &tid);
    }
    if (flags & job_expires)
        forget_expiry(tables, id);
    if (flags & job_reported)
        forget_reports(tables, id);
    if (flags & job_in_workflow)
        member_removed(tables, id, now());
    if (flags & job_ordered)
        leave_line(tables, id);
    if (flags & job_spawned)
        forget_parent(tables, id);
    if (!(flags & job_has_history))
        return;

    ScanKeyData key;
    store::Scan scan;
    store::Row seen;
    store::Table &events = tables.job_history();
    store::key_uuid(&key, id);
    store::begin(scan, events, store::Idx::job_history_job, &key, 1, false);
    while ((seen = store::next(scan)) != store::Row::none)
        if (seen == store::Row::live)
            (void)store::take_waiting(events, &scan.tid);
    store::end(scan);
}

bool
remove_job(Tables &tables, const pg_uuid_t &id)
{
    JobBrief job;
    ItemPointerData tid;
    CHECK_FOR_INTERRUPTS();
    if (store::find(tables.job(), store::Idx::job_id, id, &tid) == store::Row::none)
        return false;
    read(tables.job().slot, job);
    remove_job(tables, id, tid, job.flags | job_has_history | job_reported);
    no_dead_letter(tables, id);
    return true;
}

} // namespace ojs
