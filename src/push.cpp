/*
 * push.cpp: ojs.push, ojs.push_job, ojs.push_many.
 *
 * The order of things (OP-01): read, validate, deduplicate, store, wake; all of it in the caller's transaction.
 */
#include "ojs/args.h"
#include "ojs/enqueue.h"
#include "ojs/guard.h"
#include "ojs/guc.h"
#include "ojs/uuid.h"
#include "ojs/worker.h"

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

int64
positive_ms(Interval *interval, const char *field)
{
    int64 ms = interval_ms(interval);
    if (ms < 0)
        raise_field(Code::invalid_payload, field, "Give a duration of zero or more.", "%s must not be negative", field);
    return ms;
}

/* A parameter that is given wins over the same attribute in `options`. */
Envelope
from_parameters(FunctionCallInfo fcinfo, TimestampTz at)
{
    Envelope envelope = empty_envelope();

    if (!PG_ARGISNULL(p_options)) {
        Jsonb *options = PG_GETARG_JSONB_P(p_options);
        if (!JB_ROOT_IS_OBJECT(options))
            raise_field(Code::invalid_payload, "options", "Give a JSON object.", "options must be an object");
        if (JB_ROOT_COUNT(options) > 0)
            envelope_from_json(options, at, true, envelope);
    }
    if (PG_ARGISNULL(p_type) && envelope.type.empty())
        raise_field(Code::invalid_payload, "type", "Give the job's type, such as 'email.send'.", "type is missing");
    if (!PG_ARGISNULL(p_type))
        envelope.type = view(PG_GETARG_TEXT_PP(p_type));
    if (!PG_ARGISNULL(p_args) && (envelope.args == nullptr || JB_ROOT_COUNT(PG_GETARG_JSONB_P(p_args)) > 0))
        envelope.args = PG_GETARG_JSONB_P(p_args);
    if (!PG_ARGISNULL(p_queue) && (envelope.queue.empty() || view(PG_GETARG_TEXT_PP(p_queue)) != "default"))
        envelope.queue = view(PG_GETARG_TEXT_PP(p_queue));
    if (!PG_ARGISNULL(p_priority) && PG_GETARG_INT32(p_priority) != 0)
        envelope.priority = PG_GETARG_INT32(p_priority);
    if (!PG_ARGISNULL(p_scheduled_at) && !PG_ARGISNULL(p_delay))
        raise_field(Code::invalid_payload, "delay", "Give either scheduled_at or delay.",
                    "scheduled_at and delay exclude each other");
    if (!PG_ARGISNULL(p_scheduled_at))
        envelope.scheduled_at = PG_GETARG_TIMESTAMPTZ(p_scheduled_at);
    if (!PG_ARGISNULL(p_delay))
        envelope.scheduled_at = at + positive_ms(PG_GETARG_INTERVAL_P(p_delay), "delay") * 1000;
    if (!PG_ARGISNULL(p_expires_at))
        envelope.expires_at = PG_GETARG_TIMESTAMPTZ(p_expires_at);
    if (!PG_ARGISNULL(p_retry))
        envelope.retry = PG_GETARG_JSONB_P(p_retry);
    if (!PG_ARGISNULL(p_unique))
        envelope.uniq = PG_GETARG_JSONB_P(p_unique);
    if (!PG_ARGISNULL(p_meta) && (envelope.meta == nullptr || JB_ROOT_COUNT(PG_GETARG_JSONB_P(p_meta)) > 0))
        envelope.meta = PG_GETARG_JSONB_P(p_meta);
    if (!PG_ARGISNULL(p_timeout))
        envelope.timeout_ms = positive_ms(PG_GETARG_INTERVAL_P(p_timeout), "timeout");
    if (!PG_ARGISNULL(p_deduplication_key))
        envelope.deduplication_key = view(PG_GETARG_TEXT_PP(p_deduplication_key));
    if (!PG_ARGISNULL(p_deduplication_ttl))
        envelope.deduplication_ttl_ms = positive_ms(PG_GETARG_INTERVAL_P(p_deduplication_ttl), "deduplication_ttl");
    if (!PG_ARGISNULL(p_id)) {
        envelope.has_id = true;
        envelope.id = *PG_GETARG_UUID_P(p_id);
    }
    if (!PG_ARGISNULL(p_tags))
        set_tags(envelope, PG_GETARG_ARRAYTYPE_P(p_tags));
    if (!PG_ARGISNULL(p_pending) && PG_GETARG_BOOL(p_pending))
        envelope.pending = true;
    return envelope;
}

Pushed
push_one(Envelope &envelope, TimestampTz at)
{
    Pushed pushed;
    Tables tables;
    enqueue(tables, &envelope, 1, at, &pushed, false);
    tables.close();
    store::end_write();
    return pushed;
}

/* --- ojs.push_many --- */

struct Batch {
    Envelope *envelopes;
    int n;
};

Batch
read_batch(Jsonb *jobs, TimestampTz at)
{
    if (!JB_ROOT_IS_ARRAY(jobs) || JB_ROOT_IS_SCALAR(jobs))
        raise_field(Code::invalid_payload, "jobs", "Give a JSON array of job envelopes.", "jobs must be an array");
    int n = static_cast<int>(JB_ROOT_COUNT(jobs));
    if (n > settings.max_batch_size)
        raise(Code::batch_size_exceeded, Details().add("field", "jobs").add("size", static_cast<int64>(n)).add("maximum", static_cast<int64>(settings.max_batch_size)),
              "Push the jobs in several batches.", "a batch may hold %d jobs, not %d", settings.max_batch_size, n);

    Batch batch = {static_cast<Envelope *>(palloc(sizeof(Envelope) * std::max(n, 1))), n};
    JsonbIterator *it = JsonbIteratorInit(&jobs->root);
    JsonbValue element;
    JsonbIteratorToken token;
    int i = 0;
    while ((token = JsonbIteratorNext(&it, &element, true)) != WJB_DONE) {
        if (token != WJB_ELEM)
            continue;
        CHECK_FOR_INTERRUPTS();
        error_item = i;
        if (element.type != jbvBinary || JsonContainerIsArray(element.val.binary.data))
            raise_field(Code::invalid_payload, "jobs", "Give each job as an object.", "a job must be an object");
        batch.envelopes[i] = empty_envelope();
        envelope_from_json(JsonbValueToJsonb(&element), at, false, batch.envelopes[i]);
        if (!batch.envelopes[i].deduplication_key.empty())
            raise_field(Code::invalid_payload, "deduplication_key",
                        "Give one deduplication_key for the whole batch, or push the jobs one by one.",
                        "a job of a batch cannot have a deduplication key of its own");
        validate(batch.envelopes[i]);
        i++;
    }
    error_item = -1;
    return batch;
}

void
put_result(ReturnSetInfo *set, int index, const pg_uuid_t *id, const char *status)
{
    Datum values[4] = {Int32GetDatum(index), id != nullptr ? UUIDPGetDatum(id) : 0, CStringGetTextDatum(status), 0};
    bool nulls[4] = {false, id == nullptr, false, true};
    tuplestore_putvalues(set->setResult, set->setDesc, values, nulls);
}

} // namespace

OJS_FUNCTION(ojs_push)
{
    store::begin_write("ojs.push()");
    ensure_hot_set();
    TimestampTz at = now();
    Envelope envelope = from_parameters(fcinfo, at);
    validate(envelope);
    Pushed pushed = push_one(envelope, at);
    return render_job(pushed.job, pushed.standing, pushed.queue);
}

OJS_FUNCTION(ojs_push_job)
{
    store::begin_write("ojs.push_job()");
    ensure_hot_set();
    TimestampTz at = now();
    Jsonb *json = PG_GETARG_JSONB_P(0);
    if (!JB_ROOT_IS_OBJECT(json))
        raise_field(Code::invalid_payload, "job", "Give the envelope as a JSON object.", "a job must be an object");
    Envelope envelope = empty_envelope();
    envelope_from_json(json, at, false, envelope);
    validate(envelope);
    Pushed pushed = push_one(envelope, at);
    return JsonbPGetDatum(job_json(pushed.job, pushed.standing, pushed.queue));
}

OJS_FUNCTION(ojs_push_many)
{
    ReturnSetInfo *set = begin_set(fcinfo);
    store::begin_write("ojs.push_many()");
    ensure_hot_set();
    TimestampTz at = now();
    if (PG_ARGISNULL(0))
        raise_field(Code::invalid_payload, "jobs", "Give a JSON array of job envelopes.", "jobs is missing");
    Batch batch = read_batch(PG_GETARG_JSONB_P(0), at);
    if (batch.n == 0)
        return (Datum)0;

    auto *pushed = static_cast<Pushed *>(palloc(sizeof(Pushed) * batch.n));
    Tables tables;
    enqueue(tables, batch.envelopes, batch.n, at, pushed, true);
    tables.close();
    store::end_write();
    for (int i = 0; i < batch.n; i++)
        put_result(set, i, &pushed[i].job.id, "created");
    return (Datum)0;
}
