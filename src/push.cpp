/*
 * push.cpp: ojs.push, ojs.push_job, ojs.push_many.
 *
 * The order of things (OP-01): read, validate, deduplicate, store, wake; all of it in the caller's transaction.
 */
#include "ojs/args.h"
#include "ojs/guard.h"
#include "ojs/guc.h"
#include "ojs/place.h"
#include "ojs/unique.h"
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

/* How a push came out: a new job, or the one in whose favour it was dropped. */
struct Answer {
    Pushed pushed;
    bool duplicate;
    bool gone; /* the job of a deduplication key that has outlived it: only its id is known, */
    bool named; /* … or, if the key was a batch's, not even that */
};

/* The job of a deduplication key that was taken before. */
Answer
marked(Tables &tables, const Marker &marker, TimestampTz at)
{
    Answer answer = {};
    answer.duplicate = true;
    if (!marker.has_job || !stand_now(tables, marker.job_id, at, answer.pushed.job, answer.pushed.standing)) {
        answer.gone = true;
        answer.named = marker.has_job;
        answer.pushed.job.id = marker.job_id;
        return answer;
    }
    answer.pushed.standing.deduplicated = true;
    answer.pushed.queue = queue_name(answer.pushed.standing.queue);
    return answer;
}

int64
marker_ttl(std::optional<int64> ttl_ms)
{
    return ttl_ms.value_or(static_cast<int64>(settings.deduplication_ttl_s) * 1000);
}

/* `at` moves on where the call had to wait: who comes after another in the order of a key comes after it in time. */
Answer
push_one(Tables &tables, Envelope &envelope, TimestampTz at)
{
    Answer answer = {};
    int64 queue = 0;
    bool marks = !envelope.deduplication_key.empty();
    Uniqueness unique = {};

    if (envelope.uniq != nullptr)
        unique = uniqueness_of(envelope);
    assign_ids(&envelope, 1);
    if (marks) {
        queue = queue_for_push(envelope.queue)->id;
        Marker marker = take_marker(queue, envelope.deduplication_key, &envelope.id,
                                    marker_ttl(envelope.deduplication_ttl_ms));
        if (!marker.taken)
            return marked(tables, marker, at);
    }
    if (envelope.uniq != nullptr) {
        Sight sight = first_sight(tables, unique, at, answer.pushed);
        answer.duplicate = sight == Sight::in_the_way;
        if (!answer.duplicate) {
            bool fresh;
            lock_keys(tables, &unique, &envelope.id, 1, sight == Sight::free, &fresh);
            at = now();
            answer.duplicate = !fresh && !admit(tables, envelope, unique, at, answer.pushed);
        }
        if (answer.duplicate) {
            if (marks)
                point_marker(queue, envelope.deduplication_key, answer.pushed.job.id);
            return answer;
        }
    } else if (marks)
        at = now();
    enqueue(tables, &envelope, 1, at, &answer.pushed, false);
    return answer;
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
                        "a job of a batch cannot have a deduplication_key of its own");
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

/* False: the batch's key was taken before, and nothing is pushed. */
bool
mark_batch(const Batch &batch, text *key, Interval *ttl)
{
    if (key == nullptr)
        return true;
    check_deduplication_key(view(key));
    for (int i = 1; i < batch.n; i++)
        if (batch.envelopes[i].queue != batch.envelopes[0].queue)
            raise_field(Code::invalid_payload, "deduplication_key", "Push the jobs of each queue in a batch of their own.",
                        "a batch with a deduplication key must go to one queue: deduplication_key covers one queue");
    std::optional<int64> ttl_ms;
    if (ttl != nullptr)
        ttl_ms = positive_ms(ttl, "deduplication_ttl");
    if (ttl_ms && *ttl_ms == 0)
        raise_field(Code::invalid_payload, "deduplication_ttl", "Leave it out to have the default.",
                    "deduplication_ttl must be longer than zero");
    return take_marker(queue_for_push(batch.envelopes[0].queue)->id, view(key), nullptr, marker_ttl(ttl_ms)).taken;
}

/* The jobs of a batch that want a key, in the order of the batch. */
struct Wanted {
    Uniqueness *unique;
    pg_uuid_t *ids;
    int *of; /* by job: which of them, or -1 */
    int n;
};

Wanted
keys_of(const Batch &batch)
{
    Wanted wanted = {static_cast<Uniqueness *>(palloc(sizeof(Uniqueness) * batch.n)),
                     static_cast<pg_uuid_t *>(palloc(sizeof(pg_uuid_t) * batch.n)),
                     static_cast<int *>(palloc(sizeof(int) * batch.n)), 0};
    for (int i = 0; i < batch.n; i++) {
        error_item = i;
        CHECK_FOR_INTERRUPTS();
        wanted.of[i] = -1;
        if (batch.envelopes[i].uniq == nullptr)
            continue;
        wanted.of[i] = wanted.n;
        wanted.ids[wanted.n] = batch.envelopes[i].id;
        wanted.unique[wanted.n++] = uniqueness_of(batch.envelopes[i]);
    }
    error_item = -1;
    return wanted;
}

/* One after the other, since what one does may be what stands in the way of the next (UNQ-26). */
void
push_unique_batch(Tables &tables, Batch &batch, const Wanted &wanted, ReturnSetInfo *set)
{
    auto *fresh = static_cast<bool *>(palloc(sizeof(bool) * batch.n));
    lock_keys(tables, wanted.unique, wanted.ids, wanted.n, false, fresh);
    TimestampTz at = now();
    hold_replaceable(tables, wanted.unique, fresh, wanted.n, at);
    for (int i = 0; i < batch.n; i++) {
        Pushed pushed;
        int key = wanted.of[i];
        error_item = i;
        CHECK_FOR_INTERRUPTS();
        bool admitted = key < 0 || fresh[key] || admit(tables, batch.envelopes[i], wanted.unique[key], at, pushed);
        if (admitted) {
            enqueue(tables, &batch.envelopes[i], 1, at, &pushed, false);
            CommandCounterIncrement();
        }
        put_result(set, i, &pushed.job.id, admitted ? "created" : "duplicate");
    }
    error_item = -1;
}

void
push_batch(Tables &tables, Batch &batch, text *key, Interval *ttl, TimestampTz at, ReturnSetInfo *set)
{
    assign_ids(batch.envelopes, batch.n);
    Wanted wanted = keys_of(batch);
    if (!mark_batch(batch, key, ttl)) {
        for (int i = 0; i < batch.n; i++)
            put_result(set, i, nullptr, "duplicate");
        return;
    }
    check_ids(batch.envelopes, batch.n, wanted.n > 0);
    if (wanted.n > 0) {
        push_unique_batch(tables, batch, wanted, set);
        return;
    }
    if (key != nullptr)
        at = now();
    auto *pushed = static_cast<Pushed *>(palloc(sizeof(Pushed) * batch.n));
    enqueue(tables, batch.envelopes, batch.n, at, pushed, true);
    for (int i = 0; i < batch.n; i++)
        put_result(set, i, &pushed[i].job.id, "created");
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
    nulls[0] = !answer.named;
    nulls[job_columns - 1] = false;
    TupleDesc desc = lookup_rowtype_tupdesc(store::composite_type(false), -1);
    Datum row = HeapTupleGetDatum(heap_form_tuple(desc, values, nulls));
    ReleaseTupleDesc(desc);
    return row;
}

Jsonb *
only_id_json(const Answer &answer)
{
    const pg_uuid_t &id = answer.pushed.job.id;
    const char *text = "{\"deduplicated\": true}";
    if (answer.named)
        text = psprintf("{\"id\": \"%s\", \"deduplicated\": true}",
                        DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&id))));
    return DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(text)));
}

} // namespace

OJS_FUNCTION(ojs_push)
{
    store::begin_write("ojs.push()");
    ensure_hot_set();
    TimestampTz at = now();
    Envelope envelope = from_parameters(fcinfo, at);
    validate(envelope);
    Tables tables;
    Answer answer = push_one(tables, envelope, at);
    Datum job = answer.gone ? only_id(answer) : render_job(answer.pushed.job, answer.pushed.standing, answer.pushed.queue);
    tables.close();
    store::end_write();
    return job;
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
    Tables tables;
    Answer answer = push_one(tables, envelope, at);
    Jsonb *job = answer.gone ? only_id_json(answer) : job_json(answer.pushed.job, answer.pushed.standing, answer.pushed.queue);
    tables.close();
    store::end_write();
    return JsonbPGetDatum(job);
}

OJS_FUNCTION(ojs_push_many)
{
    enum { p_jobs, p_key, p_ttl, p_atomicity, p_idempotency_key };
    ReturnSetInfo *set = begin_set(fcinfo);
    store::begin_write("ojs.push_many()");
    ensure_hot_set();
    TimestampTz at = now();
    if (PG_ARGISNULL(p_jobs))
        raise_field(Code::invalid_payload, "jobs", "Give a JSON array of job envelopes.", "jobs is missing");
    if (!PG_ARGISNULL(p_idempotency_key) || (!PG_ARGISNULL(p_atomicity) && view(PG_GETARG_TEXT_PP(p_atomicity)) != "atomic"))
        raise_field(Code::unsupported_feature, PG_ARGISNULL(p_idempotency_key) ? "atomicity" : "idempotency_key",
                    "Push the batch atomically.", "only atomic batches without an idempotency key are supported yet");
    Batch batch = read_batch(PG_GETARG_JSONB_P(p_jobs), at);
    Tables tables;
    if (batch.n > 0)
        push_batch(tables, batch, text_or_null(fcinfo, p_key), interval_or_null(fcinfo, p_ttl), at, set);
    tables.close();
    store::end_write();
    return (Datum)0;
}
