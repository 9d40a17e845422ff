/*
 * progress.cpp: ojs.progress: how far the attempt that runs has come.
 */
#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/pg/json.h"
#include "ojs/queue/access.h"
#include "ojs/state/locate.h"
#include "ojs/work/batch.h"
#include "ojs/store/spi.h"
#include "ojs/hot_set/hot_set.h"

using namespace ojs;

namespace
{

constexpr int64 max_report_bytes = 64 * 1024;

/* Within an attempt the number never falls, and what a report leaves out stays as it was (PRG-02). */
constexpr char report_sql[] = R"sql(
    insert into ojs_store.progress as p (job_id, started_at, deliveries, at, progress, message, data)
    values ($1, $2, $3, $4, case when $5 <> 'NaN' then trim_scale(round(least(greatest($5, 0), 1), 9)) end, $6, $7)
    on conflict (job_id) do update set
        started_at = excluded.started_at, deliveries = excluded.deliveries, at = excluded.at,
        progress = greatest(excluded.progress, case when p.started_at = excluded.started_at then p.progress end),
        message = coalesce(excluded.message, case when p.started_at = excluded.started_at then p.message end),
        data = coalesce(excluded.data, case when p.started_at = excluded.started_at then p.data end)
)sql";
constinit Statement report = {
    report_sql, {UUIDOID, TIMESTAMPTZOID, INT4OID, TIMESTAMPTZOID, NUMERICOID, TEXTOID, JSONBOID}, nullptr};

void
check_report(bool number, const text *message, const Jsonb *data)
{
    if (!number && message == nullptr && data == nullptr)
        raise_field(Code::invalid_payload, "progress", "Give a number from 0 to 1, a message or data.",
                    "progress, message and data are all null");
    int64 size = message != nullptr ? VARSIZE_ANY_EXHDR(message) : 0;
    if (data != nullptr)
        size += text_bytes(data);
    if (size > max_report_bytes)
        raise(Code::payload_too_large,
              Details().add("field", "data").add("actual_bytes", size).add("maximum_bytes", max_report_bytes),
              "Keep it small, and what the job is to go on from in a checkpoint.",
              "message and data have " INT64_FORMAT " bytes, and " INT64_FORMAT " are allowed", size, max_report_bytes);
}

/* The specification wants 1.3 to count as 1; but 50 was most likely meant as 50 %. */
void
note_clamped(Datum number)
{
    constexpr double rounding = 1e-9;
    double given = DatumGetFloat8(DirectFunctionCall1(numeric_float8_no_overflow, number));
    if (given > 1 + rounding)
        ereport(NOTICE,
                (errmsg("progress is %s, and counts as 1", DatumGetCString(DirectFunctionCall1(numeric_out, number))),
                 errhint("It is a part of the whole, from 0 to 1: 50 percent are 0.5.")));
}

enum { p_job_id, p_progress, p_message, p_data, p_lease_id, p_worker };

/* Whoever does not hold the job is not told so, and changes nothing (PRG-01): the job may just have ended. */
bool
report_progress(FunctionCallInfo fcinfo, Tables &tables, SpiArg number)
{
    const pg_uuid_t &id = job_id_arg(fcinfo, p_job_id);
    text *message = text_or_null(fcinfo, p_message);
    Jsonb *data = jsonb_or_null(fcinfo, p_data);
    Holder holder = {};
    bool by_sql = PG_NARGS() <= p_lease_id;
    if (!by_sql)
        holder = {text_or_null(fcinfo, p_worker), text_or_null(fcinfo, p_lease_id)};
    TimestampTz at = now();
    LeaseRow lease;
    ItemPointerData tid;

    check_report(!number.null, message, data);
    bool held = lock_held(tables, id, holder, lease, &tid);
    if (held) {
        store::note_write(false); /* worth no wait for the disk */
        lease.flags |= job_reported;
        /* Only a beat starts the stall clock: whoever sends none may work in silence (R-103). */
        extend_lease(tables, lease, &tid, lease.lease_ms, at, lease.beat_at.has_value());
        with_spi([&] {
            auto or_null = [](const void *value) {
                return value != nullptr ? SpiArg(PointerGetDatum(value)) : SpiArg(nullptr);
            };
            (void)execute_latest(report, {UUIDPGetDatum(&id), TimestampTzGetDatum(lease.claimed_at),
                                          Int32GetDatum(lease.deliveries), TimestampTzGetDatum(at), number,
                                          or_null(message), or_null(data)});
        });
        if (by_sql && !number.null)
            note_clamped(number.value);
    } else {
        JobRow job;
        Status status;
        if (!read_current_status(tables, id, at, job, status) || !may_know_state(status.queue))
            raise_state(tables, id, "report progress of", Needs::lease, at);
    }
    return held;
}

} // namespace

/* ojs.progress(job_id, progress, message, data), and for HTTP with (…, lease_id, worker) behind. */
OJS_CHANGE(ojs_progress, "ojs.progress()")
{
    SpiArg number = PG_ARGISNULL(p_progress) ? SpiArg(nullptr) : SpiArg(PG_GETARG_DATUM(p_progress));
    PG_RETURN_BOOL(report_progress(fcinfo, tables, number)); /* nothing, to those that declare it so */
}

/* The same for drivers that pass a double precision, which PostgreSQL does not turn into a numeric by itself. */
OJS_CHANGE(ojs_progress_double, "ojs.progress()")
{
    SpiArg number = PG_ARGISNULL(p_progress) ? SpiArg(nullptr)
                                             : SpiArg(DirectFunctionCall1(float8_numeric, PG_GETARG_DATUM(p_progress)));
    PG_RETURN_BOOL(report_progress(fcinfo, tables, number));
}
