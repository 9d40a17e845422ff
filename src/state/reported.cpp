/*
 * reported.cpp: see reported.h.
 */
#include "ojs/state/reported.h"

#include "ojs/pg/json.h"

namespace ojs
{

namespace
{

void
forget(store::Table &table, store::Idx index, const pg_uuid_t &id)
{
    ItemPointerData tid;
    while (store::find(table, index, id, &tid) != store::Row::none &&
           store::take_waiting(table, &tid) != store::Outcome::ok)
        CHECK_FOR_INTERRUPTS();
}

JsonbValue
json_numeric(Numeric number)
{
    JsonbValue value;
    value.type = jbvNumeric;
    value.val.numeric = number;
    return value;
}

} // namespace

void
read_progress(Tables &tables, const pg_uuid_t &id, Snapshot snapshot, Status &status)
{
    store::Table &table = tables.progress();
    ProgressRow row;
    if (!store::read(table, store::Idx::progress_job, id, snapshot))
        return;
    read(table.slot, row);
    /* An attempt is told by the moment it began; a crash makes the number of its delivery come again. */
    if (row.deliveries != status.deliveries || (status.started_at && *status.started_at != row.started_at))
        return;

    ObjectBuilder out;
    TimeText buffer;
    if (status.state == State::completed)
        out.add("progress", static_cast<int64>(1));
    else if (row.progress != nullptr)
        out.add("progress", json_numeric(row.progress));
    if (row.message != nullptr)
        out.add("progress_message", std::string_view(VARDATA_ANY(row.message), VARSIZE_ANY_EXHDR(row.message)));
    if (row.data != nullptr)
        out.add("progress_data", row.data);
    out.add("progress_updated_at", format_timestamp(row.at, false, buffer));
    status.reported = out.finish();
}

void
read_checkpoint(Tables &tables, const pg_uuid_t &id, Snapshot snapshot, Status &status)
{
    store::Table &table = tables.checkpoint();
    CheckpointRow row;
    if (!store::read(table, store::Idx::checkpoint_job, id, snapshot))
        return;
    read(table.slot, row);

    ObjectBuilder checkpoint;
    checkpoint.add("state", row.state).add("sequence", row.sequence);
    ObjectBuilder out;
    out.add("checkpoint", checkpoint.finish()).add("last_checkpoint", row.state);
    status.reported = out.finish();
}

void
forget_reports(Tables &tables, const pg_uuid_t &id)
{
    forget(tables.checkpoint(), store::Idx::checkpoint_job, id);
    forget(tables.progress(), store::Idx::progress_job, id);
}

} // namespace ojs
