/*
 * push_many.cpp: ojs.push_many: a batch, all or none, or what can be (partial).
 *
 * Partial batches go the same way as atomic ones, in subtransactions: each stretch of jobs is tried as a whole, and in
 * halves where that fails, so that n jobs of which k are refused cost about k log n tries, and one if all is well.
 */
#include "ojs/pg/args.h"
#include "ojs/pg/subtransaction.h"
#include "ojs/push/capacity.h"
#include "ojs/queue/access.h"
#include "ojs/queue/push_rules.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/job/hooks.h"
#include "ojs/push/idempotency.h"
#include "ojs/pg/json.h"
#include "ojs/push/unique.h"
#include "ojs/pg/uuid.h"
#include "ojs/pg/row.h"
#include "ojs/hot_set/hot_set.h"

using namespace ojs;

namespace
{

struct ItemResult {
    const char *status; /* created, duplicate, dropped, failed */
    bool has_id;
    pg_uuid_t id;
    Jsonb *error; /* or null */
};

/* The jobs of a batch that are to be stored, in its order. */
struct Batch {
    Envelope *envelopes;
    Uniqueness *keys; /* of those with a policy */
    int *at;          /* where they stand in the call */
    int n;
    bool any_unique;
    bool any_own_id;
};

struct Call {
    bool partial;
    Hooks hooks;
    TimestampTz at;
    JsonbValue *jobs;
    ItemResult *results; /* as many */
    int n;
};

template <typename T>
T *
array_of(int n)
{
    return static_cast<T *>(palloc0(sizeof(T) * std::max(n, 1)));
}

/* What is wrong with one job, and not with the whole call. */
bool
is_about_job(const ErrorData &error)
{
    return !is_of_server(error) && ERRCODE_TO_CATEGORY(error.sqlerrcode) != ERRCODE_INTERNAL_ERROR;
}

void
fail(Call &call, int i, ErrorData *error)
{
    if (!is_about_job(*error))
        ReThrowError(error);
    call.results[i] = {"failed", false, {}, error_json(error)};
}

/* --- reading --- */

void
read_jobs(Call &call, Jsonb *jobs)
{
    if (!JB_ROOT_IS_ARRAY(jobs) || JB_ROOT_IS_SCALAR(jobs))
        raise_field(Code::invalid_payload, "jobs", "Give a JSON array of job envelopes.", "jobs must be an array");
    int n = static_cast<int>(JB_ROOT_COUNT(jobs));
    if (n > settings.max_batch_size)
        raise(Code::batch_size_exceeded,
              Details()
                  .add("field", "jobs")
                  .add("size", static_cast<int64>(n))
                  .add("maximum", static_cast<int64>(settings.max_batch_size)),
              "Push the jobs in several batches.", "a batch may hold %d jobs, not %d: jobs is too long",
              settings.max_batch_size, n);
    call.jobs = array_of<JsonbValue>(n);
    call.results = array_of<ItemResult>(n);
    each_element(root_of(jobs), [&call](const JsonbValue &job) { call.jobs[call.n++] = job; });
}

void
read_job(Call &call, Batch &batch, int i)
{
    const JsonbValue &job = call.jobs[i];
    Envelope envelope = empty_envelope();
    envelope.item = call.partial ? -1 : i;
    error_item = envelope.item;
    if (!is_object(job))
        raise_field(Code::invalid_payload, "jobs", "Give each job as an object.", "a job must be an object");
    envelope_from_object(job, call.at, false, envelope);
    if (!admit_envelope(call.hooks, envelope, call.at)) {
        call.results[i] = {"dropped", false, {}, nullptr};
        return;
    }
    if (!envelope.deduplication_key.empty())
        raise_field(Code::invalid_payload, "deduplication_key",
                    "Give one deduplication_key for the whole batch, or push the jobs one by one.",
                    "a job of a batch cannot have a deduplication_key of its own");
    if (envelope.unique_policy != nullptr) {
        if (batch.keys == nullptr)
            batch.keys = array_of<Uniqueness>(call.n);
        batch.keys[batch.n] = uniqueness_of(envelope);
        batch.any_unique = true;
    }
    batch.any_own_id |= envelope.has_id;
    batch.at[batch.n] = i;
    batch.envelopes[batch.n++] = envelope;
}

/* Each on its own where a hook may have written something, which must stay if the next job fails. */
void
read_what_can_be(Call &call, Batch &batch)
{
    for (int i = 0; i < call.n; i++) {
        ErrorData *error = attempt([&] {
            read_job(call, batch, i);
            while (call.hooks.n == 0 && i + 1 < call.n) {
                CHECK_FOR_INTERRUPTS();
                read_job(call, batch, ++i);
            }
        });
        if (error != nullptr)
            fail(call, i, error);
    }
}

/* --- storing --- */

/* An id that the batch has brought before is no job of its own. */
void
drop_repeated(Call &call, Batch &batch, const bool *repeated)
{
    int kept = 0;
    for (int i = 0; i < batch.n; i++) {
        if (repeated[i]) {
            fail(call, batch.at[i], attempt([&] { raise_repeated_id(batch.envelopes[i].id); }));
            continue;
        }
        batch.envelopes[kept] = batch.envelopes[i];
        batch.at[kept] = batch.at[i];
        if (batch.keys != nullptr)
            batch.keys[kept] = batch.keys[i];
        kept++;
    }
    batch.n = kept;
}

/* The deduplication key of a batch. */
struct BatchKey {
    text *key; /* null: none */
    std::optional<int64> ttl_ms;
    int64 queue;
};

BatchKey
read_batch_key(text *key, const Interval *ttl)
{
    BatchKey batch_key = {key, {}, 0};
    if (key != nullptr)
        check_deduplication_key(view(key));
    if (ttl == nullptr)
        return batch_key;
    if (key == nullptr)
        raise_field(Code::invalid_payload, "deduplication_ttl", "Give a deduplication_key too, or leave it out.",
                    "deduplication_ttl means nothing without a deduplication_key");
    batch_key.ttl_ms = interval_arg_from(now(), ttl, "deduplication_ttl");
    if (*batch_key.ttl_ms == 0)
        raise_field(Code::invalid_payload, "deduplication_ttl", "Leave it out to have the default.",
                    "deduplication_ttl must be longer than zero");
    return batch_key;
}

/* Returns false if the batch's key was taken before; nothing is pushed then. */
bool
take_batch_key(const Batch &batch, BatchKey &key)
{
    for (int i = 1; i < batch.n; i++)
        if (batch.envelopes[i].queue != batch.envelopes[0].queue)
            raise_field(Code::invalid_payload, "deduplication_key",
                        "Push the jobs of each queue in a batch of their own.",
                        "a batch with a deduplication key must go to one queue: deduplication_key covers one queue");
    check_push(batch.envelopes[0]);
    key.queue = queue_for_push(batch.envelopes[0].queue)->id;
    return take_deduplication_key(key.queue, view(key.key), batch.envelopes[0].id, deduplication_ttl(key.ttl_ms)).taken;
}

bool
came_to(const Call &call, std::string_view status)
{
    return std::any_of(call.results, call.results + call.n,
                       [status](const ItemResult &result) { return result.status == status; });
}

/* The key stands for all of the batch: where a job failed it is free again, so that what is missing can be sent. It
 * names the batch's first job, or the one in whose favour that was dropped. */
void
finish_batch_key(const Call &call, const BatchKey &key, int first, const pg_uuid_t &id)
{
    if (came_to(call, "failed"))
        free_deduplication_key(key.queue, view(key.key));
    else if (!same(call.results[first].id, id))
        point_deduplication_key(key.queue, view(key.key), call.results[first].id);
}

/* Takes the keys of all jobs that want one; fresh[i] says that the key of job i was free. */
bool *
lock_batch(Call &call, const Batch &batch)
{
    auto *keys = array_of<Uniqueness>(batch.n);
    auto *ids = array_of<pg_uuid_t>(batch.n);
    auto *of = array_of<int>(batch.n);
    auto *were_free = array_of<bool>(batch.n);
    auto *fresh = array_of<bool>(batch.n);
    int n = 0;
    Tables tables;

    for (int i = 0; i < batch.n; i++) {
        if (batch.envelopes[i].unique_policy == nullptr)
            continue;
        keys[n] = batch.keys[i];
        ids[n] = batch.envelopes[i].id;
        of[n++] = i;
    }
    lock_keys(tables, keys, ids, n, false, were_free);
    call.at = now();
    hold_replaceable(tables, keys, were_free, n, call.at);
    for (int i = 0; i < n; i++)
        fresh[of[i]] = were_free[i];
    tables.close();
    return fresh;
}

/* Jobs first to last - 1, which are in no one's way, at once. */
void
store_plain(Call &call, Batch &batch, int first, int last)
{
    auto *pushed = array_of<Pushed>(last - first);
    Tables tables;
    enqueue(tables, batch.envelopes + first, last - first, call.at, pushed);
    for (int i = first; i < last; i++)
        call.results[batch.at[i]] = {"created", true, pushed[i - first].job.id, nullptr};
    tables.close();
    pfree(pushed);
}

/* One after the other, since what one does may be what stands in the way of the next (UNQ-26). */
void
store_unique(Call &call, Batch &batch, int first, int last, const bool *fresh)
{
    Tables tables;
    for (int i = first; i < last; i++) {
        Pushed pushed;
        Envelope &envelope = batch.envelopes[i];
        error_item = envelope.item;
        CHECK_FOR_INTERRUPTS();
        if (envelope.unique_policy != nullptr)
            check_push(envelope);
        bool admitted =
            envelope.unique_policy == nullptr || fresh[i] || admit(tables, envelope, batch.keys[i], call.at, pushed);
        if (admitted) {
            enqueue(tables, &envelope, 1, call.at, &pushed);
            CommandCounterIncrement();
        }
        bool created = admitted && envelope.updated == nullptr;
        call.results[batch.at[i]] = {created ? "created" : "duplicate", true, pushed.job.id, nullptr};
    }
    error_item = -1;
    tables.close();
}

void
store_jobs(Call &call, Batch &batch, int first, int last, const bool *fresh)
{
    if (batch.any_unique)
        store_unique(call, batch, first, last, fresh);
    else
        store_plain(call, batch, first, last);
}

void
store_what_can_be(Call &call, Batch &batch, int first, int last, const bool *fresh)
{
    ErrorData *error = attempt([&] { store_jobs(call, batch, first, last, fresh); });
    if (error == nullptr)
        return;
    if (last - first == 1 || !is_about_job(*error)) {
        fail(call, batch.at[first], error);
        return;
    }
    int middle = first + (last - first) / 2;
    FreeErrorData(error);
    store_what_can_be(call, batch, first, middle, fresh);
    store_what_can_be(call, batch, middle, last, fresh);
}

void
push_batch(Call &call, BatchKey key)
{
    Batch batch = {};
    bool *fresh = nullptr;

    batch.envelopes = array_of<Envelope>(call.n);
    batch.at = array_of<int>(call.n);
    if (call.partial)
        read_what_can_be(call, batch);
    else
        for (int i = 0; i < call.n; i++) {
            CHECK_FOR_INTERRUPTS();
            read_job(call, batch, i);
        }
    error_item = -1;
    if (batch.n == 0)
        return;
    begin_push();
    assign_ids(batch.envelopes, batch.n);
    if (key.key != nullptr && !take_batch_key(batch, key)) {
        for (int i = 0; i < batch.n; i++)
            call.results[batch.at[i]] = {"duplicate", false, {}, nullptr};
        return;
    }
    int first = batch.at[0];
    pg_uuid_t first_id = batch.envelopes[0].id;
    if (batch.any_own_id) {
        bool *repeated = call.partial ? array_of<bool>(batch.n) : nullptr;
        check_ids(batch.envelopes, batch.n, batch.any_unique || call.partial, repeated);
        if (call.partial)
            drop_repeated(call, batch, repeated);
    }
    if (batch.any_unique)
        fresh = lock_batch(call, batch);
    else if (key.key != nullptr)
        call.at = now();
    if (batch.any_unique || call.partial)
        hold_bounds(batch.envelopes, batch.n);
    if (call.partial)
        store_what_can_be(call, batch, 0, batch.n, fresh);
    else
        store_jobs(call, batch, 0, batch.n, fresh);
    if (key.key != nullptr)
        finish_batch_key(call, key, first, first_id);
}

/* --- answering --- */

bool
is_partial(const text *atomicity)
{
    if (atomicity == nullptr || view(atomicity) == "atomic")
        return false;
    if (view(atomicity) != "partial")
        raise_field(Code::invalid_payload, "atomicity", "Give atomic or partial.",
                    "atomicity must be atomic or partial");
    return true;
}

/* All that the answer depends on; the jobs in their binary form, since their text may be far longer. */
bytea *
request_of(Jsonb *jobs, const text *key, const Interval *ttl, bool partial)
{
    StringInfoData out;
    initStringInfo(&out);
    appendStringInfo(&out, "%s|", partial ? "partial" : "atomic");
    if (ttl != nullptr)
        appendStringInfo(&out, INT64_FORMAT, interval_ms(ttl));
    appendStringInfoChar(&out, '|');
    appendBinaryStringInfo(&out, VARDATA(jobs), static_cast<int>(VARSIZE(jobs) - VARHDRSZ));
    if (key != nullptr) {
        appendStringInfoChar(&out, '|');
        appendBinaryStringInfo(&out, VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key));
    }
    return cstring_to_text_with_len(out.data, out.len);
}

void
put(ReturnSetInfo *set, int index, std::string_view status, const pg_uuid_t *id, const Jsonb *error)
{
    Datum status_text = PointerGetDatum(cstring_to_text_with_len(status.data(), static_cast<int>(status.size())));
    Datum values[4] = {Int32GetDatum(index), UUIDPGetDatum(id), status_text, PointerGetDatum(error)};
    bool nulls[4] = {false, id == nullptr, false, error == nullptr};
    put_row(set, values, nulls);
}

/* The queue that a job of the batch names. */
std::string_view
queue_in(const JsonbContainer *job)
{
    JsonbValue name;
    JsonbValue options;
    if (find_member(job, "queue", name) && name.type == jbvString)
        return text_of(name);
    if (find_member(job, "options", options) && is_object(options) &&
        find_member(options.val.binary.data, "queue", name) && name.type == jbvString)
        return text_of(name);
    return "default";
}

/* An answer that was kept is for those who may push such jobs. */
void
check_producers(const Call &call)
{
    for (int i = 0; i < call.n; i++) {
        const Queue *queue = is_object(call.jobs[i]) ? find_queue(queue_in(call.jobs[i].val.binary.data)) : nullptr;
        if (queue != nullptr)
            check_queue(*queue, Right::produce);
    }
}

/* What an answer is kept as, under an idempotency key. */
Jsonb *
answer_of(const Call &call)
{
    JsonbParseState *list = nullptr;
    pushJsonbValue(&list, WJB_BEGIN_ARRAY, nullptr);
    for (int i = 0; i < call.n; i++) {
        const ItemResult &result = call.results[i];
        ObjectBuilder item;
        item.add("status", std::string_view(result.status));
        if (result.has_id)
            item.add("id", std::string_view(DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&result.id)))));
        if (result.error != nullptr)
            item.add("error", result.error);
        JsonbValue value = json_of(item.finish());
        pushJsonbValue(&list, WJB_ELEM, &value);
    }
    return JsonbValueToJsonb(pushJsonbValue(&list, WJB_END_ARRAY, nullptr));
}

void
put_again(ReturnSetInfo *set, const Jsonb *answer)
{
    int index = 0;
    each_element(root_of(answer), [&](const JsonbValue &item) {
        const JsonbContainer *object = item.val.binary.data;
        JsonbValue status;
        JsonbValue id_text;
        JsonbValue error;
        pg_uuid_t *id = nullptr;
        (void)find_member(object, "status", status);
        if (find_member(object, "id", id_text)) {
            std::string_view text = text_of(id_text);
            id = DatumGetUUIDP(DirectFunctionCall1(uuid_in, CStringGetDatum(pnstrdup(text.data(), text.size()))));
        }
        put(set, index++, text_of(status), id, find_member(object, "error", error) ? jsonb_of(error) : nullptr);
    });
}

} // namespace

OJS_CHANGE(ojs_push_many, "ojs.push_many()")
{
    enum { p_jobs, p_key, p_ttl, p_atomicity, p_idempotency_key };
    ReturnSetInfo *set = begin_set(fcinfo);
    if (PG_ARGISNULL(p_jobs))
        raise_field(Code::invalid_payload, "jobs", "Give a JSON array of job envelopes.", "jobs is missing");
    Jsonb *jobs = PG_GETARG_JSONB_P(p_jobs);
    text *key = text_or_null(fcinfo, p_key);
    Interval *ttl = interval_or_null(fcinfo, p_ttl);
    Call call = {is_partial(text_or_null(fcinfo, p_atomicity)), {}, now(), nullptr, nullptr, 0};
    RequestKey request = {"push_many", text_or_null(fcinfo, p_idempotency_key), nullptr};

    BatchKey batch_key = read_batch_key(key, ttl);
    begin_push(); /* again once hooks have run, which may push too */
    read_jobs(call, jobs);
    if (request.key != nullptr) {
        request.request = request_of(jobs, key, ttl, call.partial);
        Jsonb *answer = take_idempotency_key(request);
        if (answer != nullptr) {
            check_producers(call);
            put_again(set, answer);
            return (Datum)0;
        }
        call.at = now();
    }
    call.hooks = hooks_at(Point::enqueue);
    push_batch(call, batch_key);
    for (int i = 0; i < call.n; i++) {
        const ItemResult &result = call.results[i];
        put(set, i, result.status, result.has_id ? &result.id : nullptr, result.error);
    }
    if (request.key != nullptr && came_to(call, "failed") && !came_to(call, "created"))
        free_idempotency_key(request);
    else if (request.key != nullptr)
        keep_answer(request, answer_of(call));
    return (Datum)0;
}
