/*
 * push.cpp: ojs.push, ojs.push_job. Batches: push_many.cpp.
 *
 * The order of things (OP-01): read, enqueue hooks, validate, deduplicate, store, wake; all of it in the caller's
 * transaction.
 */
#include "ojs/queue/access.h"
#include "ojs/queue/push_rules.h"
#include "ojs/pg/args.h"
#include "ojs/push/capacity.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/job/hooks.h"
#include "ojs/job/schema_registry.h"
#include "ojs/pg/json.h"
#include "ojs/state/locate.h"
#include "ojs/push/unique.h"
#include "ojs/hot_set/hot_set.h"

using namespace ojs;

namespace
{

/* Parameters of ojs.push, in the order of sql/push.sql. */
enum {
    p_type,
    p_args,
    p_queue,
    p_priority,
    p_scheduled_at,
    p_delay,
    p_expires_at,
    p_retry,
    p_unique,
    p_meta,
    p_timeout,
    p_deduplication_key,
    p_deduplication_ttl,
    p_id,
    p_tags,
    p_pending,
    p_options
};

/* A JSON parameter; JSON's null is as good as SQL's. */
Jsonb *
json_arg(FunctionCallInfo fcinfo, int n)
{
    Jsonb *json = jsonb_or_null(fcinfo, n);
    return json != nullptr && JB_ROOT_IS_SCALAR(json) && JBE_ISNULL(json->root.children[0]) ? nullptr : json;
}

/* What the options say too must not differ. A parameter with the value of its default counts as not given. */
void
read_options(FunctionCallInfo fcinfo, TimestampTz at, Envelope &envelope)
{
    if (PG_ARGISNULL(p_options))
        return;
    Jsonb *options = PG_GETARG_JSONB_P(p_options);
    if (!JB_ROOT_IS_OBJECT(options))
        raise_field(Code::invalid_payload, "options", "Give a JSON object.", "options must be an object");
    if (JB_ROOT_COUNT(options) > 0)
        envelope_from_json(options, at, true, envelope);
}

Envelope
from_parameters(FunctionCallInfo fcinfo, TimestampTz at)
{
    Envelope envelope = empty_envelope();
    Jsonb *args = json_arg(fcinfo, p_args);
    Jsonb *meta = json_arg(fcinfo, p_meta);

    if (!PG_ARGISNULL(p_type))
        envelope.type = view(PG_GETARG_TEXT_PP(p_type));
    if (args != nullptr && (!is_array(args) || JB_ROOT_COUNT(args) > 0))
        envelope.args = args;
    if (!PG_ARGISNULL(p_queue))
        envelope.queue = view(PG_GETARG_TEXT_PP(p_queue));
    if (!PG_ARGISNULL(p_priority))
        envelope.priority = PG_GETARG_INT32(p_priority);
    if (!PG_ARGISNULL(p_scheduled_at) && !PG_ARGISNULL(p_delay))
        raise_field(Code::invalid_payload, "delay", "Give either scheduled_at or delay.",
                    "scheduled_at and delay exclude each other");
    if (!PG_ARGISNULL(p_scheduled_at))
        envelope.scheduled_at = PG_GETARG_TIMESTAMPTZ(p_scheduled_at);
    if (!PG_ARGISNULL(p_delay))
        envelope.scheduled_at = interval_arg_end(at, PG_GETARG_INTERVAL_P(p_delay), "delay");
    if (!PG_ARGISNULL(p_expires_at))
        envelope.expires_at = PG_GETARG_TIMESTAMPTZ(p_expires_at);
    envelope.retry = json_arg(fcinfo, p_retry);
    envelope.unique_policy = json_arg(fcinfo, p_unique);
    if (meta != nullptr && (!is_object(meta) || JB_ROOT_COUNT(meta) > 0))
        envelope.meta = meta;
    if (!PG_ARGISNULL(p_timeout))
        envelope.timeout_ms = interval_arg_ms(PG_GETARG_INTERVAL_P(p_timeout), "timeout");
    if (!PG_ARGISNULL(p_deduplication_key))
        envelope.deduplication_key = view(PG_GETARG_TEXT_PP(p_deduplication_key));
    if (!PG_ARGISNULL(p_deduplication_ttl))
        envelope.deduplication_ttl_ms =
            interval_arg_from(at, PG_GETARG_INTERVAL_P(p_deduplication_ttl), "deduplication_ttl");
    if (!PG_ARGISNULL(p_id)) {
        envelope.has_id = true;
        envelope.id = *PG_GETARG_UUID_P(p_id);
    }
    envelope.pending = !PG_ARGISNULL(p_pending) && PG_GETARG_BOOL(p_pending);

    read_options(fcinfo, at, envelope);
    if (envelope.type.data() == nullptr)
        raise_field(Code::invalid_payload, "type", "Give the job's type, such as 'email.send'.", "type is missing");
    if (envelope.args == nullptr)
        envelope.args = args;
    if (!PG_ARGISNULL(p_tags))
        set_tags(envelope, PG_GETARG_ARRAYTYPE_P(p_tags));
    return envelope;
}

/* How a push came out: a new job, or the one in whose favour it was dropped. */
struct Answer {
    Pushed pushed;
    bool duplicate;
    bool gone; /* the job of a deduplication key that has outlived it: only its id is known */
};

/* The job of a deduplication key that was taken before. */
Answer
marked(Tables &tables, const DeduplicationKey &deduplication, TimestampTz at)
{
    Answer answer = {};
    answer.duplicate = true;
    if (!read_current_status(tables, deduplication.job_id, at, answer.pushed.job, answer.pushed.status)) {
        answer.gone = true;
        answer.pushed.job.id = deduplication.job_id;
        return answer;
    }
    answer.pushed.status.deduplicated = true;
    answer.pushed.queue = queue_name(answer.pushed.status.queue);
    return answer;
}

/* Of a job in a queue that the caller may not see into, only the id is known. */
Answer
as_seen(Answer answer)
{
    if (answer.duplicate && !answer.gone && !may_use_queue(answer.pushed.status.queue, Right::read))
        answer.gone = true;
    return answer;
}

/* `at` moves on where the call had to wait: who comes after another in the order of a key comes after it in time. */
Answer
push_one(Tables &tables, Envelope &envelope, TimestampTz at)
{
    Answer answer = {};
    int64 queue = 0;
    bool has_key = !envelope.deduplication_key.empty();
    Uniqueness unique = {};

    begin_push();
    if (envelope.unique_policy != nullptr)
        unique = uniqueness_of(envelope);
    assign_ids(&envelope, 1);
    if (has_key || envelope.unique_policy != nullptr)
        check_push(envelope);
    if (has_key) {
        queue = queue_for_push(envelope.queue)->id;
        DeduplicationKey deduplication = take_deduplication_key(queue, envelope.deduplication_key, envelope.id,
                                                                deduplication_ttl(envelope.deduplication_ttl_ms));
        if (!deduplication.taken)
            return as_seen(marked(tables, deduplication, at));
    }
    if (envelope.unique_policy != nullptr) {
        ConflictCheck conflict = check_conflict(tables, unique, at, answer.pushed);
        answer.duplicate = conflict == ConflictCheck::in_the_way;
        if (!answer.duplicate) {
            bool fresh;
            lock_keys(tables, &unique, &envelope.id, 1, conflict == ConflictCheck::free, &fresh);
            at = now();
            answer.duplicate = !fresh && !admit(tables, envelope, unique, at, answer.pushed);
        }
        if (answer.duplicate) {
            if (has_key)
                point_deduplication_key(queue, envelope.deduplication_key, answer.pushed.job.id);
            return as_seen(answer);
        }
    } else if (has_key)
        at = now();
    enqueue(tables, &envelope, 1, at, &answer.pushed);
    if (has_key && envelope.updated != nullptr)
        point_deduplication_key(queue, envelope.deduplication_key, envelope.id);
    answer.duplicate = envelope.updated != nullptr;
    return as_seen(answer);
}

/* What is left to say of a deduplicated push whose job has been removed. */
Datum
only_id(const Answer &answer)
{
    Datum values[job_columns] = {};
    bool nulls[job_columns];
    memset(nulls, true, sizeof nulls);
    values[0] = UUIDPGetDatum(&answer.pushed.job.id);
    values[job_columns - 1] = BoolGetDatum(true);
    nulls[0] = false;
    nulls[job_columns - 1] = false;
    TupleDesc desc = lookup_rowtype_tupdesc(store::composite_type(false), -1);
    Datum row = HeapTupleGetDatum(heap_form_tuple(desc, values, nulls));
    ReleaseTupleDesc(desc);
    return row;
}

Jsonb *
only_id_json(const Answer &answer)
{
    ObjectBuilder out;
    out.add("id",
            std::string_view(DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&answer.pushed.job.id)))));
    return out.add("deduplicated", json_bool(true)).finish();
}

Datum
push_json(FunctionCallInfo fcinfo, Tables &tables, bool checked_before)
{
    TimestampTz at = now();
    Jsonb *json = jsonb_or_null(fcinfo, 0);
    if (json == nullptr)
        raise_field(Code::invalid_payload, "job", "Give the envelope as a JSON object.", "job must not be null");
    if (!JB_ROOT_IS_OBJECT(json))
        raise_field(Code::invalid_payload, "job", "Give the envelope as a JSON object.", "a job must be an object");
    Envelope envelope = empty_envelope();
    envelope.checked_before = checked_before;
    envelope_from_json(json, at, false, envelope);
    if (!admit_envelope(hooks_at(Point::enqueue), envelope, at))
        return JsonbPGetDatum(ObjectBuilder().add("dropped", json_bool(true)).finish());
    Answer answer = push_one(tables, envelope, at);
    Jsonb *job =
        answer.gone ? only_id_json(answer) : job_json(answer.pushed.job, answer.pushed.status, answer.pushed.queue);
    return JsonbPGetDatum(with_schema_warnings(with_pressure(job), envelope));
}

} // namespace

OJS_CHANGE(ojs_push, "ojs.push()")
{
    TimestampTz at = now();
    Envelope envelope = from_parameters(fcinfo, at);
    if (!admit_envelope(hooks_at(Point::enqueue), envelope, at))
        PG_RETURN_NULL();
    Answer answer = push_one(tables, envelope, at);
    return answer.gone ? only_id(answer) : render_job(answer.pushed.job, answer.pushed.status, answer.pushed.queue);
}

OJS_CHANGE(ojs_push_job, "ojs.push_job()")
{
    return push_json(fcinfo, tables, false);
}

/* ojs_store.push_stored(job jsonb) returns jsonb: a job whose names were checked when it was registered */
OJS_CHANGE(ojs_push_stored, "ojs.push_job()")
{
    return push_json(fcinfo, tables, true);
}
