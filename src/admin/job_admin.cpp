/*
 * job_admin.cpp: ojs.retry, ojs.discard, ojs.delete_job: what an administrator may do to a job past its normal life; and how
 * SQL removes jobs.
 */
#include "ojs/pg/args.h"
#include "ojs/state/dead_letter.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/state/locate.h"
#include "ojs/store/spi.h"
#include "ojs/push/unique.h"
#include "ojs/hot_set/hot_set.h"

using namespace ojs;

namespace
{

/* Overrides of a retry, and who has brought the job back how often; the envelope is one of the few things that are ever
 * rewritten. */
constinit Statement rewrite_job = {R"sql(
    update ojs_store.job
    set meta = coalesce($2 -> 'meta', meta, '{}') - 'ojs.replay_rule'
            || jsonb_build_object('ojs.replay_count', ojs_store.replay_count(meta) + 1, 'ojs.last_replayed_at', ojs_store.time_text($4))
            || case when $5 is null then '{}' else jsonb_build_object('ojs.replay_rule', $5) end,
        args = coalesce($2 -> 'args', args),
        retry = coalesce($2 -> 'retry', retry),
        max_attempts = coalesce(($2 -> 'retry' ->> 'max_attempts')::int, max_attempts),
        queue = $3
    where id = $1
    returning ctid, exists (select from ojs_store.checkpoint where job_id = $1) or exists (select from ojs_store.progress where job_id = $1)
)sql", {UUIDOID, JSONBOID, INT8OID, TIMESTAMPTZOID, TEXTOID}, nullptr};

/* Takes the row that says a job has ended in this state; false: there is none. */
bool
take_done(Tables &tables, const pg_uuid_t &id, std::optional<State> state, DoneRow &row)
{
    store::Table &table = tables.done();
    for (;;) {
        ItemPointerData tid;
        store::Row seen = store::find(table, store::Idx::done_job, id, &tid);
        if (seen == store::Row::none || seen == store::Row::arriving)
            return false;
        read(table.slot, row);
        if (state && row.state != *state)
            return false;
        if (row.error != nullptr)
            row.error = DatumGetJsonbPCopy(PointerGetDatum(row.error));
        if (store::take_waiting(table, &tid) == store::Outcome::ok)
            return true;
        CHECK_FOR_INTERRUPTS();
    }
}

/* The overrides that a retry may bring, checked as a push would check them. */
Jsonb *
checked_overrides(Jsonb *overrides, TimestampTz at, int64 *queue)
{
    Envelope envelope = empty_envelope();
    envelope.queue = {}; /* unless they name one, the job stays where it is */
    if (!JB_ROOT_IS_OBJECT(overrides))
        raise_field(Code::invalid_payload, "overrides", "Give a JSON object.", "overrides must be an object");
    JsonbIterator *it = JsonbIteratorInit(&overrides->root);
    JsonbValue value;
    JsonbIteratorToken token;
    while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE) {
        std::string_view key = token == WJB_KEY ? std::string_view(value.val.string.val, value.val.string.len) : "args";
        if (key != "args" && key != "meta" && key != "retry" && key != "queue")
            raise_field(Code::invalid_payload, "overrides", "Override args, meta, retry or queue.",
                        "overrides cannot hold \"%s\"", clipped(key));
    }
    envelope_from_json(overrides, at, true, envelope);
    envelope.type = "any.type"; /* what a retry cannot change, and validate() wants */
    if (envelope.args == nullptr)
        envelope.args = DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum("[]")));
    bool moves = !envelope.queue.empty();
    if (!moves)
        envelope.queue = "default";
    validate(envelope);
    if (moves)
        *queue = queue_for_push(envelope.queue)->id;
    return overrides;
}

/* A retry is never stopped by a newer job with its uniqueness key (UNQ-21), but says that there is one (INT-09). */
Remark
remark_of(Tables &tables, const pg_uuid_t &id, TimestampTz at)
{
    Remark remark = {};
    JobRow job;
    Standing standing;
    pg_uuid_t twin;
    if (stand_now(tables, id, at, job, standing) && live_twin(tables, job, at, twin, remark.twin_state))
        remark.twin = twin;
    return remark;
}

void
record_revival(Tables &tables, const DoneRow &row, TimestampTz at)
{
    EventRow event = {};
    event.job_id = row.job_id;
    event.at = at;
    event.kind = EventKind::revived;
    event.attempt = 0;
    event.deliveries = row.deliveries;
    event.started_at = row.started_at;
    event.worker = row.worker;
    event.data = row.error;
    store::insert(tables.event(), form(tables.event().rel, event));
}

/* `rule`: by which it is brought back; null: by hand. */
Datum
bring_back(const pg_uuid_t &id, Jsonb *overrides, text *rule)
{
    TimestampTz at = now();
    Tables tables;
    JobRow job;
    DoneRow done;
    LaterRow row = {};

    Place place = locate(tables, id);
    bool retryable = place.table == &tables.later() && place.row.kind == LaterKind::retryable &&
                     place.seen != store::Row::arriving &&
                     store::take_waiting(tables.later(), &place.tid) == store::Outcome::ok;
    if (retryable)
        row = place.row;
    else if (take_done(tables, id, State::discarded, done)) {
        row.queue = done.queue;
        row.deliveries = done.deliveries;
    } else
        raise_state(tables, id, "retry", Needs::pending, at);

    (void)checked_overrides(overrides, at, &row.queue);
    Remark remark = remark_of(tables, id, at); /* by the key that it was pushed with */
    if (!retryable) {
        record_revival(tables, done, at);
        no_dead_letter(tables, id);
        with_spi([&] {
            execute_latest(rewrite_job, {UUIDPGetDatum(&id), JsonbPGetDatum(overrides), Int64GetDatum(row.queue), TimestampTzGetDatum(at),
                                         rule == nullptr ? SpiArg(nullptr) : SpiArg(PointerGetDatum(rule))});
            bool null;
            row.job_tid = *reinterpret_cast<ItemPointer>(DatumGetPointer(cell(0, 1, &null)));
            row.flags = DatumGetBool(cell(0, 2, &null)) ? job_reported : 0;
        });
        CommandCounterIncrement();
        read_job(tables, id, row.job_tid, job);
        if ((job.flags & job_at_most_once) && row.deliveries > 0) /* DLV-01 */
            raise(Code::invalid_state_transition, Details().add("job_id", id).add("current_state", "discarded").add("attempted", "retry"),
                  "Push a new job, if it is to run once more.", "cannot retry job %s: it may be delivered only once, and has been",
                  DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&id))));
        row.job_id = id;
        row.npriority = static_cast<int16>(-job.priority);
        row.flags |= job.flags | job_has_events;
    }
    make_ready(tables, row, row.deliveries > 0 ? place_of_returned() : store::next_seq());
    return answer_now(tables, id, at, remark);
}

Jsonb *
no_overrides()
{
    return DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum("{}")));
}

} // namespace

/* A discarded job becomes available with a new budget (R-39); a retryable one at once, within its budget (SM-12). */
OJS_FUNCTION(ojs_retry)
{
    store::begin_write("ojs.retry()");
    ensure_hot_set();
    return bring_back(job_id_arg(fcinfo, 0), PG_ARGISNULL(1) ? no_overrides() : PG_GETARG_JSONB_P(1), nullptr);
}

/* ojs_store.replay(job_id uuid, rule text) returns ojs.job: a dead letter, whose row of `done` the caller has locked (DLQ-10) */
OJS_FUNCTION(ojs_replay)
{
    store::begin_write("ojs_store.replay()");
    return bring_back(job_id_arg(fcinfo, 0), no_overrides(), PG_GETARG_TEXT_PP(1));
}

/* An open job that nobody holds ends as discarded. */
OJS_FUNCTION(ojs_discard)
{
    store::begin_write("ojs.discard()");
    ensure_hot_set();
    const pg_uuid_t &id = job_id_arg(fcinfo, 0);
    const char *reason = PG_ARGISNULL(1) ? "discarded by an administrator" : text_to_cstring(PG_GETARG_TEXT_PP(1));
    TimestampTz at = now();
    Tables tables;
    JobRow job;

    for (;;) {
        Place place = locate(tables, id);
        if (place.table == nullptr || place.seen == store::Row::arriving)
            raise_state(tables, id, "discard", Needs::open, at);
        if (store::take_waiting(*place.table, &place.tid) != store::Outcome::ok) {
            CHECK_FOR_INTERRUPTS();
            continue;
        }
        read_job(tables, id, place.row.job_tid, job);
        discard(tables, job, place.row.queue, place.row.attempt, place.row.deliveries, "discarded", reason, at);
        break;
    }
    return answer_now(tables, id, at);
}

/* Removes a finished job and its history. */
OJS_FUNCTION(ojs_delete_job)
{
    store::begin_write("ojs.delete_job()");
    ensure_hot_set();
    const pg_uuid_t &id = job_id_arg(fcinfo, 0);
    TimestampTz at = now();
    Tables tables;
    DoneRow done;

    if (!take_done(tables, id, std::nullopt, done)) {
        JobRow job;
        Standing standing;
        if (!stand_now(tables, id, at, job, standing)) {
            tables.close();
            PG_RETURN_BOOL(false);
        }
        raise_state(tables, id, "delete", Needs::open, at);
    }
    (void)remove_job(tables, id);
    tables.close();
    store::end_write();
    PG_RETURN_BOOL(true);
}

/* ojs_store.remove_jobs(ids uuid[]) returns bigint: for SQL that has taken the rows which say where these jobs stand */
OJS_FUNCTION(ojs_remove_jobs)
{
    store::begin_write("ojs_store.remove_jobs()");
    Ids ids = ids_arg(fcinfo, 0, "ids");
    Tables tables;
    int64 n = 0;
    for (int i = 0; i < ids.n; i++)
        n += remove_job(tables, *ids.ids[i]);
    tables.close();
    store::end_write();
    PG_RETURN_INT64(n);
}
