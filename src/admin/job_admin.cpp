/*
 * job_admin.cpp: ojs.retry, ojs.discard, ojs.delete_job, ojs.set_priority: what an administrator may do to a job; and
 * how SQL removes jobs.
 */
#include "ojs/queue/access.h"
#include "ojs/job/retry_policy.h"
#include "ojs/pg/args.h"
#include "ojs/state/dead_letter.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/queue/tenant.h"
#include "ojs/state/locate.h"
#include "ojs/state/members.h"
#include "ojs/state/ordering.h"
#include "ojs/state/reap.h"
#include "ojs/store/spi.h"
#include "ojs/push/unique.h"
#include "ojs/hot_set/hot_set.h"

using namespace ojs;

namespace
{

/* Overrides of a retry (null: what is there), and who has brought a discarded job back how often; the envelope is one
 * of the few things that are ever rewritten. */
constinit Statement rewrite_job = {
    R"sql(
    update ojs_store.job
    set meta = case when $9
            then coalesce($3, meta, '{}') - 'ojs.replay_rule'
                || jsonb_build_object('ojs.replay_count', ojs_store.replay_count(meta) + 1, 'ojs.last_replayed_at',
                    ojs_store.time_text($7))
                || case when $8 is null then '{}' else jsonb_build_object('ojs.replay_rule', $8) end
            else coalesce($3, meta) end,
        args = coalesce($2, args),
        retry = coalesce($4, retry),
        max_attempts = coalesce($5, max_attempts),
        queue = $6
    where id = $1
    returning ctid, exists (select from ojs_store.checkpoint where job_id = $1)
        or exists (select from ojs_store.progress where job_id = $1)
)sql",
    {UUIDOID, JSONBOID, JSONBOID, JSONBOID, INT4OID, INT8OID, TIMESTAMPTZOID, TEXTOID, BOOLOID},
    nullptr};

constinit Statement write_priority = {
    "update ojs_store.job set priority = $2 where id = $1 returning ctid", {UUIDOID, INT2OID}, nullptr};

constinit Statement record_act = {"select ojs_store.record_act($1, $2::text, "
                                  "jsonb_strip_nulls(jsonb_build_object('job_id', $2, 'queue', $3, 'reason', $4)))",
                                  {TEXTOID, UUIDOID, TEXTOID, TEXTOID},
                                  nullptr};

/* Takes the row that says a job has ended in this state; false: there is none. */
bool
take_done(Tables &tables, const pg_uuid_t &id, std::optional<State> state, FinishedRow &row)
{
    store::Table &table = tables.finished();
    for (;;) {
        ItemPointerData tid;
        store::Row seen = store::find(table, store::Idx::finished_job, id, &tid);
        if (seen == store::Row::none || seen == store::Row::arriving)
            return false;
        read(table.slot, row);
        if (state && row.state != *state)
            return false;
        if (store::take_waiting(table, &tid) == store::Outcome::ok)
            return true;
        CHECK_FOR_INTERRUPTS();
    }
}

/* What a retry changes of a job, in the form in which it is stored. */
struct Overrides {
    const Jsonb *args;      /* null: as they are */
    const Jsonb *meta;      /* the job's, with these members; null: as it is */
    const Jsonb *retry;     /* the job's policy, with these members; null: as it is */
    std::string_view queue; /* empty: where it is */
};

/* `base` (may be null) with the members of `over` in place of its own. */
Jsonb *
with_members(const Jsonb *base, const Jsonb *over)
{
    ObjectBuilder out;
    JsonbValue replaced;
    if (base != nullptr)
        each_member(root_of(base), [&](std::string_view key, const JsonbValue &value) {
            if (!find_member(root_of(over), key, replaced))
                out.add(key, value);
        });
    each_member(root_of(over), [&out](std::string_view key, const JsonbValue &value) { out.add(key, value); });
    return out.finish();
}

Jsonb *
without_nulls(const Jsonb *object)
{
    ObjectBuilder out;
    each_member(root_of(object), [&out](std::string_view key, const JsonbValue &value) {
        if (value.type != jbvNull)
            out.add(key, value);
    });
    return out.finish();
}

/* Checked as a push would check the job that they make; null members are as absent. */
Overrides
read_overrides(Jsonb *given, const JobRow &job, TimestampTz at)
{
    if (!JB_ROOT_IS_OBJECT(given))
        raise_field(Code::invalid_payload, "overrides", "Give a JSON object.", "overrides must be an object");
    each_member(root_of(given), [](std::string_view key, const JsonbValue &) {
        if (key != "args" && key != "meta" && key != "retry" && key != "queue")
            raise_field(Code::invalid_payload, "overrides", "Override args, meta, retry or queue.",
                        "overrides cannot hold \"%s\"", clipped(key));
    });
    Envelope envelope = empty_envelope();
    envelope.queue = {};
    envelope_from_json(without_nulls(given), at, true, envelope);
    bool has_args = envelope.args != nullptr;
    bool has_meta = envelope.meta != nullptr;
    bool has_retry = envelope.retry != nullptr;
    Overrides overrides = {nullptr, nullptr, nullptr, envelope.queue};

    envelope.type = view(job.type);
    if (!has_args)
        envelope.args = job.args;
    if (!has_meta)
        envelope.meta = job.meta;
    else if (JB_ROOT_IS_OBJECT(envelope.meta))
        envelope.meta = with_members(job.meta, envelope.meta);
    if (!has_retry)
        envelope.retry = job.retry;
    else if (JB_ROOT_IS_OBJECT(envelope.retry)) {
        check_retry_names(envelope.retry);
        envelope.retry = merge_retry_policy(job.retry, without_nulls(envelope.retry));
    }
    envelope.checked_before = true; /* what is not overridden was, when it was pushed */
    if (envelope.queue.empty())
        envelope.queue = "default";
    validate(envelope);
    overrides.args = has_args ? envelope.args : nullptr;
    overrides.meta = has_meta ? envelope.meta : nullptr;
    overrides.retry = has_retry ? envelope.retry : nullptr;
    return overrides;
}

/* A job whose time is over would be discarded by the next claim. */
void
refuse_expired(const JobRow &job, int32 deliveries, TimestampTz at)
{
    std::optional<Expiry> expiry = (job.flags & job_expires) ? expiry_of(job, deliveries) : std::nullopt;
    if (!expiry || expiry->at > at)
        return;
    const char *id = DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&job.id)));
    raise(Code::invalid_state_transition,
          Details().add("job_id", job.id).add("attempted", "retry").add("reason", expiry->error_type),
          "Push a new job.", "cannot retry job %s: its time is over (%s)", id, expiry->error_type);
}

/* Where the job goes: the queue it is in is made anew if it was dropped, as a push would make it. */
int64
queue_of_retry(int64 queue, std::string_view wanted, bool by_rule)
{
    const Queue *now_in = find_queue(queue);
    if (wanted.empty() && (now_in == nullptr || now_in->state != QueueState::deleted))
        return queue;
    std::string_view name = wanted.empty()      ? std::string_view(pstrdup(now_in->name))
                            : now_in == nullptr ? wanted
                                                : beside(now_in->name, wanted);
    const Queue *target = by_rule ? queue_to_move_to(name) : queue_for_push(name);
    if (!by_rule)
        check_queue(*target, Right::produce);
    return target->id;
}

/* A retry is never stopped by a newer job with its uniqueness key (UNQ-21), but says that there is one (INT-09). */
Remark
remark_of(Tables &tables, const pg_uuid_t &id, TimestampTz at)
{
    Remark remark = {};
    JobRow job;
    Status status;
    pg_uuid_t twin;
    if (read_current_status(tables, id, at, job, status) && live_twin(tables, job, at, twin, remark.twin_state))
        remark.twin = twin;
    return remark;
}

/* A cancelled job goes on as one that was activated: nothing had failed. */
void
record_return(Tables &tables, const FinishedRow &row, TimestampTz at)
{
    HistoryRow event = {};
    event.job_id = row.job_id;
    event.at = at;
    event.kind = row.state == State::cancelled ? HistoryKind::activated : HistoryKind::revived;
    event.attempt = 0;
    event.deliveries = row.deliveries;
    if (event.kind == HistoryKind::revived) {
        event.started_at = row.started_at;
        event.worker = row.worker;
        event.data = row.error;
    }
    store::insert(tables.job_history(), form(tables.job_history().rel, event));
}

/* `rule`: by which it is brought back; null: by hand. `cancelled_too`: and not only a discarded or retryable job. */
Datum
bring_back(Tables &tables, const pg_uuid_t &id, Jsonb *overrides, text *rule, bool cancelled_too = false)
{
    TimestampTz at = now();
    const char *hint = cancelled_too ? "Only discarded, cancelled and retryable jobs can be retried."
                                     : "Only discarded and retryable jobs can be retried.";
    JobRow job;
    FinishedRow done;
    DelayedRow row = {};

    Location location = locate(tables, id);
    bool retryable = location.table == &tables.delayed() && location.row.kind == DelayedKind::retryable &&
                     location.seen != store::Row::arriving &&
                     store::take_waiting(tables.delayed(), &location.tid) == store::Outcome::ok;
    if (retryable)
        row = location.row;
    else if (take_done(tables, id, State::discarded, done) ||
             (cancelled_too && take_done(tables, id, State::cancelled, done))) {
        row.queue = done.queue;
        row.deliveries = done.deliveries;
    } else
        raise_state(tables, id, "retry", Needs::pending, at, hint);

    if (rule == nullptr)
        check_use_of_job(row.queue, id, Right::administer);
    ItemPointerData tid;
    if (store::find(tables.job(), store::Idx::job_id, id, &tid) == store::Row::none)
        raise_state(tables, id, "retry", Needs::pending, at, hint);
    read(tables.job().slot, job);
    Overrides changes = read_overrides(overrides, job, at);
    if (rule == nullptr)
        refuse_expired(job, row.deliveries, at);
    Remark remark = remark_of(tables, id, at); /* by the key that it was pushed with */
    int64 queue = queue_of_retry(row.queue, changes.queue, rule != nullptr);
    bool rewrites = !retryable || queue != row.queue || changes.args != nullptr || changes.meta != nullptr ||
                    changes.retry != nullptr;
    row.queue = queue;
    if (!retryable) {
        record_return(tables, done, at);
        no_dead_letter(tables, id);
    }
    if (rewrites) {
        auto or_null = [](const void *value) {
            return value != nullptr ? SpiArg(PointerGetDatum(value)) : SpiArg(nullptr);
        };
        SpiArg max_attempts =
            changes.retry != nullptr ? SpiArg(Int32GetDatum(read_retry_policy(changes.retry).max_attempts)) : nullptr;
        with_spi([&] {
            execute_latest(rewrite_job, {UUIDPGetDatum(&id), or_null(changes.args), or_null(changes.meta),
                                         or_null(changes.retry), max_attempts, Int64GetDatum(row.queue),
                                         TimestampTzGetDatum(at), or_null(rule), BoolGetDatum(!retryable)});
            bool null;
            row.job_tid = *reinterpret_cast<ItemPointer>(DatumGetPointer(cell(0, 1, &null)));
            if (DatumGetBool(cell(0, 2, &null)))
                row.flags |= job_reported;
        });
        CommandCounterIncrement();
    }
    if (!retryable) {
        read_job(tables, id, row.job_tid, job);
        if ((job.flags & job_at_most_once) && row.deliveries > 0) /* DLV-01 */
            raise(Code::invalid_state_transition,
                  Details().add("job_id", id).add("current_state", "discarded").add("attempted", "retry"),
                  "Push a new job, if it is to run once more.",
                  "cannot retry job %s: it may be delivered only once, and has been",
                  DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&id))));
        row.job_id = id;
        row.npriority = static_cast<int16>(-job.priority);
        row.flags |= job.flags | job_has_history;
    }
    if (retryable && (row.flags & job_ordered) && queue != location.row.queue)
        leave_line(tables, id); /* of the queue that it was in */
    make_ready(tables, row, row.deliveries > 0 ? returned_position() : store::next_seq());
    return answer_now(tables, id, at, remark);
}

/* Emits the event that says who has done this to a job. `reason` may be null. */
void
record_act_on(const char *act, const pg_uuid_t &id, int64 queue, const char *reason)
{
    SpiArg type = CStringGetTextDatum(act);
    std::string_view of = queue_name(queue);
    SpiArg name = PointerGetDatum(cstring_to_text_with_len(of.data(), static_cast<int>(of.size())));
    SpiArg why = reason != nullptr ? SpiArg(CStringGetTextDatum(reason)) : SpiArg(nullptr);
    with_spi([&] { (void)execute_latest(record_act, {type, UUIDPGetDatum(&id), name, why}); });
}

/* Removes a finished job and its history. Returns false if there is no such job; `done` is how it had ended. */
bool
delete_if_finished(Tables &tables, const pg_uuid_t &id, FinishedRow &done)
{
    if (!take_done(tables, id, std::nullopt, done))
        return false;
    check_use_of_job(done.queue, id, Right::administer);
    (void)remove_job(tables, id);
    return true;
}

Jsonb *
no_overrides()
{
    return DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum("{}")));
}

} // namespace

/* A discarded job becomes available with a new budget (R-39); a retryable one at once, within its budget (SM-12). */
OJS_CHANGE(ojs_retry, "ojs.retry()")
{
    return bring_back(tables, job_id_arg(fcinfo, 0), PG_ARGISNULL(1) ? no_overrides() : PG_GETARG_JSONB_P(1), nullptr);
}

/*
 * ojs_http.retry_ended(job_id uuid, overrides jsonb) returns ojs.job: a cancelled one, too, as the Admin API wants it
 */
OJS_CHANGE(ojs_retry_ended, "ojs.http()")
{
    return bring_back(tables, job_id_arg(fcinfo, 0), PG_GETARG_JSONB_P(1), nullptr, true);
}

/* A job that waits lines up anew among those of its new priority. */
OJS_CHANGE(ojs_set_priority, "ojs.set_priority()")
{
    const pg_uuid_t &id = job_id_arg(fcinfo, 0);
    if (PG_ARGISNULL(1))
        raise_field(Code::invalid_payload, "priority", "Give a number from -100 to 100.", "priority must not be null");
    int32 priority = PG_GETARG_INT32(1);
    validate_priority(priority);
    TimestampTz at = now();
    Location location;

    for (;;) {
        location = locate(tables, id);
        bool waits = location.table == &tables.ready() ||
                     (location.table == &tables.delayed() &&
                      (location.row.kind == DelayedKind::scheduled || location.row.kind == DelayedKind::released ||
                       location.row.kind == DelayedKind::blocked));
        if (!waits || location.seen == store::Row::arriving)
            raise_state(tables, id, "change the priority of", Needs::pending, at,
                        "Only jobs that wait for their turn have a priority to change: available or scheduled ones.");
        check_use_of_job(location.row.queue, id, Right::administer);
        if (store::take_waiting(*location.table, &location.tid) == store::Outcome::ok)
            break;
        CHECK_FOR_INTERRUPTS();
    }
    DelayedRow &row = location.row;
    with_spi([&] {
        bool null;
        (void)execute_latest(write_priority, {UUIDPGetDatum(&id), Int16GetDatum(static_cast<int16>(priority))});
        row.job_tid = *reinterpret_cast<ItemPointer>(DatumGetPointer(cell(0, 1, &null)));
    });
    CommandCounterIncrement();
    row.npriority = static_cast<int16>(-priority);
    if (location.table == &tables.ready())
        make_ready(tables, row, row.deliveries > 0 ? returned_position() : store::next_seq());
    else
        store::insert(tables.delayed(), form(tables.delayed().rel, row));
    return answer_now(tables, id, at);
}

/* ojs_store.replay(job_id uuid, rule text) returns ojs.job: a dead letter, whose row of `finished` the caller has
 * locked (DLQ-10) */
OJS_CHANGE(ojs_replay, "ojs_store.replay()")
{
    return bring_back(tables, job_id_arg(fcinfo, 0), no_overrides(), PG_GETARG_TEXT_PP(1));
}

/* An open job that nobody holds ends as discarded. */
OJS_CHANGE(ojs_discard, "ojs.discard()")
{
    const pg_uuid_t &id = job_id_arg(fcinfo, 0);
    const char *reason = PG_ARGISNULL(1) ? "discarded by an administrator" : text_to_cstring(PG_GETARG_TEXT_PP(1));
    TimestampTz at = now();
    JobRow job;

    for (;;) {
        Location location = locate(tables, id);
        if (location.table == nullptr || location.seen == store::Row::arriving)
            raise_state(tables, id, "discard", Needs::open, at);
        check_use_of_job(location.row.queue, id, Right::administer);
        if (store::take_waiting(*location.table, &location.tid) != store::Outcome::ok) {
            CHECK_FOR_INTERRUPTS();
            continue;
        }
        read_job(tables, id, location.row.job_tid, job);
        discard(tables, job, location.row, "discarded", reason, at);
        record_act_on("job_discarded", id, location.row.queue, reason);
        break;
    }
    return answer_now(tables, id, at);
}

OJS_CHANGE(ojs_delete_job, "ojs.delete_job()")
{
    const pg_uuid_t &id = job_id_arg(fcinfo, 0);
    FinishedRow done;
    TimestampTz at = now();
    JobRow job;
    Status status;
    bool existed = delete_if_finished(tables, id, done);
    if (existed)
        record_act_on("job_deleted", id, done.queue, nullptr);
    else if (read_current_status(tables, id, at, job, status))
        raise_state(tables, id, "delete", Needs::open, at);
    PG_RETURN_BOOL(existed);
}

/* ojs_store.delete_finished(job_id uuid) returns boolean: as part of ojs.delete_many, which emits one event for all */
OJS_CHANGE(ojs_delete_finished, "ojs.delete_job()")
{
    FinishedRow done;
    PG_RETURN_BOOL(delete_if_finished(tables, *PG_GETARG_UUID_P(0), done));
}

/* ojs_http.take_back_jobs(worker text) returns int: as those of a dead worker */
OJS_CHANGE(ojs_take_back_jobs, "ojs_http.take_back_jobs()")
{
    int n = take_back_from(tables, PG_GETARG_TEXT_PP(0), now());
    PG_RETURN_INT32(n);
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
    advance_after_ends();
    PG_RETURN_INT64(n);
}
