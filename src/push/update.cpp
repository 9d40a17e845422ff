/*
 * update.cpp: see update.h.
 *
 * The hot row is taken as a cancel takes it, all that belongs to the job is removed, and the push then stores the
 * envelope under the id of the job. So whatever a push sees to (bounds, expiry, ordering keys) is seen to anew.
 */
#include "ojs/push/update.h"

#include "ojs/job/schema_registry.h"
#include "ojs/pg/args.h"
#include "ojs/pg/json.h"
#include "ojs/pg/settings.h"
#include "ojs/push/unique.h"
#include "ojs/queue/access.h"
#include "ojs/state/dead_letter.h"
#include "ojs/state/locate.h"
#include "ojs/store/spi.h"

namespace ojs
{

namespace
{

constinit Statement record = {
    "select ojs_store.record_event('job.updated', $1::text, jsonb_build_object('job_id', $1, 'queue', $2, "
    "'job_type', $3))",
    {UUIDOID, TEXTOID, TEXTOID},
    nullptr};

Datum
text_of(std::string_view text)
{
    return PointerGetDatum(cstring_to_text_with_len(text.data(), static_cast<int>(text.size())));
}

bool
merges(const UniquePolicy &policy)
{
    return policy.on_conflict == OnConflict::merge || policy.on_conflict == OnConflict::merge_except_schedule;
}

bool
keeps_schedule(const UniquePolicy &policy)
{
    return policy.on_conflict == OnConflict::update_except_schedule ||
           policy.on_conflict == OnConflict::merge_except_schedule;
}

Jsonb *
joined(const Jsonb *first, const Jsonb *second)
{
    JsonbParseState *array = nullptr;
    pushJsonbValue(&array, WJB_BEGIN_ARRAY, nullptr);
    for (const Jsonb *part : {first, second})
        each_element(root_of(part), [&array](const JsonbValue &element) {
            JsonbValue copy = element;
            pushJsonbValue(&array, WJB_ELEM, &copy);
        });
    return JsonbValueToJsonb(pushJsonbValue(&array, WJB_END_ARRAY, nullptr));
}

/* `base`, which lies in a row that a slot shows, with the members of `over` in place of its own; either may be null. */
Jsonb *
with_members(const Jsonb *base, Jsonb *over)
{
    ObjectBuilder out;
    JsonbValue replaced;
    if (base == nullptr)
        return over;
    if (over == nullptr)
        return DatumGetJsonbPCopy(PointerGetDatum(base));
    each_member(root_of(base), [&](std::string_view key, const JsonbValue &value) {
        if (!find_member(root_of(over), key, replaced))
            out.add(key, value);
    });
    each_member(root_of(over), [&out](std::string_view key, const JsonbValue &value) { out.add(key, value); });
    return out.finish();
}

/* What comes out must be a job that could be pushed, so that it cannot grow without bound. */
void
merge(Envelope &envelope, const JobRow &job)
{
    bool brought_id = envelope.has_id;
    envelope.args = joined(job.args, envelope.args);
    envelope.meta = with_members(job.meta, envelope.meta);
    envelope.flags &= ~job_bare_object;
    envelope.measured = false;
    envelope.has_id = false;
    envelope.queue = shown_queue(envelope.queue);
    validate(envelope);
    envelope.has_id = brought_id;
    check_schema_of(envelope, envelope.args);
}

void
keep_schedule(Envelope &envelope, const JobRow &job, const Location &location, bool ready)
{
    envelope.pending = !ready && location.row.kind == DelayedKind::pending;
    envelope.flags = (envelope.flags & ~job_pending) | (envelope.pending ? job_pending : 0);
    if (envelope.pending)
        envelope.scheduled_at = job.scheduled_at;
    else if (ready || location.row.due_at == DT_NOEND)
        envelope.scheduled_at = std::nullopt;
    else
        envelope.scheduled_at = location.row.due_at;
}

} // namespace

int
updatable_states(const UniquePolicy &policy)
{
    return policy.states & open_states & ~state_bit(State::active);
}

bool
update_job(Tables &tables, const pg_uuid_t &id, Envelope &envelope, const UniquePolicy &policy, TimestampTz now)
{
    Location location;
    JobRow job;
    auto *updated = static_cast<UpdatedJob *>(palloc0(sizeof(UpdatedJob)));

    if (!take_waiting_job(tables, id, updatable_states(policy), now, location, updated->position))
        return false;
    store::note_write(true); /* also where the push may be lost */
    if (!may_replace_in(location.row.queue, envelope))
        raise_job_denied(id, Right::cancel);
    read_job(tables, id, location.row.job_tid, job);
    if (job.flags & job_in_workflow)
        raise(Code::duplicate_job, Details().add("existing_job_id", id),
              "Push it with another uniqueness key, or wait until that job has ended.",
              "the job that would be updated belongs to a workflow");
    updated->seq = job.seq;
    updated->queue = location.row.queue;
    updated->created_at = job.created_at;
    if (merges(policy)) {
        /* What was there must not get to where others may see it. */
        if (queue_id(envelope.queue) != location.row.queue && !may_use_queue(location.row.queue, Right::read))
            raise_job_denied(id, Right::read);
        merge(envelope, job);
    }
    if (keeps_schedule(policy))
        keep_schedule(envelope, job, location, updated->position.has_value());
    remove_job(tables, id, location.row.job_tid, location.row.flags);
    envelope.id = id;
    envelope.has_id = false;
    envelope.updated = updated;
    with_spi([&] { (void)execute(record, {UUIDPGetDatum(&id), text_of(envelope.queue), text_of(envelope.type)}); });
    CommandCounterIncrement();
    return true;
}

} // namespace ojs
