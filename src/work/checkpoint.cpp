/*
 * checkpoint.cpp: ojs.checkpoint, ojs.get_checkpoint: what a job goes on from when an attempt has ended early.
 */
#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/pg/json.h"
#include "ojs/queue/access.h"
#include "ojs/state/locate.h"
#include "ojs/hot_set/hot_set.h"

using namespace ojs;

namespace
{

constexpr int64 max_state_bytes = 1024 * 1024;

void
check_state(const Jsonb *state)
{
    int64 size = text_bytes(state);
    if (size > max_state_bytes)
        raise(Code::payload_too_large,
              Details().add("field", "state").add("actual_bytes", size).add("maximum_bytes", max_state_bytes),
              "Store large data elsewhere and save a reference to it.",
              "state has " INT64_FORMAT " bytes as JSON, and " INT64_FORMAT " are allowed", size, max_state_bytes);
}

/* The row's number of saves. Nobody else can save meanwhile, but somebody may be deleting what was saved before. */
int64
save(Tables &tables, CheckpointRow row)
{
    store::Table &table = tables.checkpoint();
    ItemPointerData tid;
    while (store::find(table, store::Idx::checkpoint_job, row.job_id, &tid) != store::Row::none) {
        CheckpointRow last;
        CHECK_FOR_INTERRUPTS();
        if (store::lock(table, &tid, true) != store::Outcome::ok)
            continue;
        read(table.slot, last);
        row.sequence = last.sequence + 1;
        store::replace(table, &tid, form(table.rel, row));
        return row.sequence;
    }
    store::insert(table, form(table.rel, row));
    return row.sequence;
}

Datum
checkpoint_json(const pg_uuid_t &id, const Jsonb *state, int64 sequence, TimestampTz created_at)
{
    ObjectBuilder out;
    TimeText buffer;
    out.add("job_id", std::string_view(DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&id)))));
    out.add("state", state).add("sequence", sequence).add("created_at", format_timestamp(created_at, false, buffer));
    return JsonbPGetDatum(out.finish());
}

} // namespace

/* The job's hot row stays locked until the caller's transaction ends: it neither ends nor is removed meanwhile. */
OJS_CHANGE(ojs_checkpoint, "ojs.checkpoint()")
{
    const pg_uuid_t &id = job_id_arg(fcinfo, 0);
    Jsonb *state = jsonb_or_null(fcinfo, 1);
    TimestampTz at = now();

    if (state == nullptr)
        raise_field(Code::invalid_payload, "state", "Give a JSON value; JSON's null is one.", "state must not be null");
    check_state(state);
    if (!flag_open(tables, id, job_reported, at))
        raise_state(tables, id, "save a checkpoint of", Needs::open, at,
                    "The job has ended; a worker that has it stops working on it.");
    int64 sequence = save(tables, {id, 1, at, state});
    return checkpoint_json(id, state, sequence, at);
}

OJS_FUNCTION(ojs_get_checkpoint)
{
    const pg_uuid_t &id = job_id_arg(fcinfo, 0);
    Tables tables(AccessShareLock);
    CheckpointRow row;
    /* A worker that has just claimed the job goes on from what the last one saved, however old its own snapshot is. */
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    bool saved = store::read(tables.checkpoint(), store::Idx::checkpoint_job, id, snapshot);
    bool exists = store::read(tables.job(), store::Idx::job_id, id, snapshot);
    UnregisterSnapshot(snapshot);
    if (exists) {
        JobRow job;
        read(tables.job().slot, job);
        check_use_of_job(job.queue, id, Right::work);
    }
    if (!exists && !saved)
        raise_no_job(id);
    if (!saved)
        raise(Code::not_found, Details().add("resource_type", "checkpoint").add("resource_id", id).add("job_id", id),
              "Nothing has been saved, or it was deleted: begin at the beginning.", "job %s has no checkpoint",
              DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&id))));
    read(tables.checkpoint().slot, row);
    Datum answer = checkpoint_json(id, row.state, row.sequence, row.created_at);
    tables.close();
    return answer;
}
