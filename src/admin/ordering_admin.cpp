/*
 * ordering_admin.cpp: ordering keys, as administrators change them.
 */
#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/state/locate.h"
#include "ojs/state/ordering.h"
#include "ojs/store/spi.h"
#include "ojs/hot_set/hot_set.h"

using namespace ojs;

static constinit Statement write_relaxed = {
    "update ojs_store.job set flags = flags | $2 where id = $1 returning ctid", {UUIDOID, INT4OID}, nullptr};

/*
 * ojs_store.skip_in_line(job_id uuid) returns ojs.job: a job that holds back others of its ordering key does so no
 * more. It becomes a relaxed one for good, so a rebuild knows.
 */
OJS_CHANGE(ojs_skip_in_line, "ojs.skip_ordering_key()")
{
    const pg_uuid_t &id = job_id_arg(fcinfo, 0);
    TimestampTz at = now();
    Location location;
    for (;;) {
        location = locate(tables, id);
        if (location.table == nullptr || location.seen == store::Row::arriving)
            raise_state(tables, id, "skip", Needs::open, at);
        if (store::take_waiting(*location.table, &location.tid) == store::Outcome::ok)
            break;
        CHECK_FOR_INTERRUPTS();
    }
    DelayedRow &row = location.row;
    with_spi([&] {
        bool null;
        (void)execute_latest(write_relaxed, {UUIDPGetDatum(&id), Int32GetDatum(job_relaxed)});
        row.job_tid = *reinterpret_cast<ItemPointer>(DatumGetPointer(cell(0, 1, &null)));
    });
    CommandCounterIncrement();
    row.flags |= job_relaxed;
    leave_line(tables, id);
    if (location.table == &tables.ready() || row.kind == DelayedKind::blocked)
        make_ready(tables, row, row.deliveries > 0 ? returned_position() : store::next_seq());
    else
        store::insert(tables.delayed(), form(tables.delayed().rel, row));
    return answer_now(tables, id, at);
}

/* ojs_store.move_in_line(job_id uuid, queue bigint) */
OJS_CHANGE(ojs_move_in_line, "ojs.drop_queue()")
{
    move_in_line(tables, *PG_GETARG_UUID_P(0), PG_GETARG_INT64(1));
    PG_RETURN_VOID();
}
