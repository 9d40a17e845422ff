/*
 * render.cpp: from rows to ojs.job, column by column. On the hot path of claim and ack: no look-ups, and no JSON
 * is taken apart unless the job has options or a retry policy of its own.
 */
#include "ojs/job/envelope.h"
#include "ojs/pg/json.h"
#include "ojs/pg/settings.h"
#include "ojs/job/retry_policy.h"

namespace ojs
{

namespace
{

/* Fills one column after the other, in the order of sql/types.sql. */
struct Columns {
    Datum *values;
    bool *nulls;
    int at = 0;

    void put(Datum value)
    {
        values[at] = value;
        nulls[at++] = false;
    }
    void none()
    {
        values[at] = 0;
        nulls[at++] = true;
    }
    void pointer(const void *value)
    {
        if (value != nullptr)
            put(PointerGetDatum(value));
        else
            none();
    }
    void time(const std::optional<TimestampTz> &value)
    {
        if (value)
            put(TimestampTzGetDatum(*value));
        else
            none();
    }
    void string(std::string_view value) { put(PointerGetDatum(cstring_to_text_with_len(value.data(), value.size()))); }
};

/* '{}' as jsonb. */
struct alignas(8) {
    int32 length;
    uint32 header;
} empty_object;

const void *
no_meta()
{
    SET_VARSIZE(&empty_object, sizeof empty_object);
    empty_object.header = JB_FOBJECT;
    return &empty_object;
}

/* What ojs.job has a column for, and the rest. */
struct Options {
    std::string_view specversion;
    const text *schema;
    const ArrayType *tags;
    const Jsonb *extra;
};

ArrayType *
tags_of(const JsonbValue &value)
{
    const JsonbContainer *array = value.val.binary.data;
    auto *tags = static_cast<Datum *>(palloc(sizeof(Datum) * std::max<uint32>(JsonContainerSize(array), 1)));
    int n = 0;

    each_element(array, [&](const JsonbValue &tag) {
        tags[n++] = PointerGetDatum(cstring_to_text_with_len(tag.val.string.val, tag.val.string.len));
    });
    return construct_array(tags, n, TEXTOID, -1, false, TYPALIGN_INT);
}

Options
options_of(const JobRow &job, const Status &status)
{
    Options out = {"1.0", nullptr, nullptr, job.options};
    JsonbValue value;
    int taken = 0;

    if (job.options != nullptr) {
        const JsonbContainer *options = root_of(job.options);
        if (find_member(options, "specversion", value)) {
            out.specversion = text_of(value);
            taken++;
        }
        if (find_member(options, "schema", value)) {
            out.schema = cstring_to_text_with_len(value.val.string.val, value.val.string.len);
            taken++;
        }
        if (find_member(options, "tags", value)) {
            out.tags = tags_of(value);
            taken++;
        }
    }
    JsonbValue moved_to; /* */
    bool moved = status.state == State::discarded && status.error != nullptr &&
                 find_member(root_of(status.error), "dead_lettered_to", moved_to);
    bool more = status.retry_delay_ms || status.activated_at || status.previous_state || moved || status.reported;
    if (taken == 0 && !more)
        return out;
    if (!more && taken == static_cast<int>(JB_ROOT_COUNT(job.options))) {
        out.extra = nullptr;
        return out;
    }
    ObjectBuilder extra;
    if (job.options != nullptr)
        each_member(root_of(job.options), [&extra](std::string_view key, const JsonbValue &member) {
            if (key != "specversion" && key != "schema" && key != "tags")
                extra.add(key, member);
        });
    if (status.reported != nullptr)
        each_member(root_of(status.reported),
                    [&extra](std::string_view key, const JsonbValue &member) { extra.add(key, member); });
    TimeText buffer;
    if (status.retry_delay_ms)
        extra.add("retry_delay_ms", *status.retry_delay_ms);
    if (status.activated_at)
        extra.add("activated_at", format_timestamp(*status.activated_at, false, buffer));
    if (status.previous_state)
        extra.add("previous_state", std::string_view(state_name(*status.previous_state)));
    if (moved)
        extra.add("dead_lettered_to", moved_to);
    if (moved && find_member(root_of(status.error), "dead_lettered_id", value))
        extra.add("dead_lettered_id", value);
    out.extra = extra.finish();
    return out;
}

std::optional<TimestampTz>
only_if(bool condition, const std::optional<TimestampTz> &at)
{
    return condition ? at : std::nullopt;
}

} // namespace

void
render(const JobRow &job, const Status &status, std::string_view queue_name, bool claimed, Datum *values, bool *nulls)
{
    Options options = options_of(job, status);
    bool discarded = status.state == State::discarded;
    bool ran = status.state == State::completed || (discarded && (status.started_at || status.attempt > 0));
    Columns out = {values, nulls};

    out.put(UUIDPGetDatum(&job.id));
    out.put(Int64GetDatum(job.seq));
    out.string(options.specversion);
    out.pointer(job.type);
    out.string(shown_queue(queue_name));
    out.string(state_name(status.state));
    out.pointer(job.args);
    out.pointer(job.meta != nullptr ? job.meta : no_meta());
    out.put(Int32GetDatum(job.priority));
    out.put(Int32GetDatum(status.attempt));
    out.put(Int32GetDatum(job.max_attempts));
    out.put(Int32GetDatum(status.deliveries));
    out.put(TimestampTzGetDatum(job.created_at));
    out.time(status.enqueued_at);
    out.time(job.scheduled_at);
    out.time(job.expires_at);
    out.time(status.started_at);
    out.time(only_if(ran, status.finished_at)); /* */
    out.time(only_if(status.state == State::cancelled, status.finished_at));
    out.time(only_if(discarded, status.finished_at));
    out.time(status.next_attempt_at);
    out.pointer(job.timeout_ms ? interval_of(*job.timeout_ms) : nullptr);
    out.pointer(effective_retry_policy(job.retry));
    out.pointer(job.unique_policy);
    out.pointer(options.schema);
    out.pointer(options.tags);
    out.pointer(status.result);
    out.pointer(status.error);
    out.pointer(status.errors);
    out.pointer(status.worker);
    out.pointer(options.extra);
    if (status.deduplicated)
        out.put(BoolGetDatum(*status.deduplicated));
    else
        out.none();
    Assert(out.at == job_columns);
    if (!claimed)
        return;
    out.put(PointerGetDatum(lease_id(status.token)));
    out.put(TimestampTzGetDatum(status.lease_expires_at));
    Assert(out.at == claimed_columns);
}

Datum
render_job(const JobRow &job, const Status &status, std::string_view queue_name)
{
    Datum values[job_columns];
    bool nulls[job_columns];
    TupleDesc desc = lookup_rowtype_tupdesc(store::composite_type(false), -1);

    if (desc->natts != job_columns)
        elog(ERROR, "type ojs.job has %d columns, not %d", desc->natts, job_columns);
    render(job, status, queue_name, false, values, nulls);
    HeapTuple tuple = heap_form_tuple(desc, values, nulls);
    ReleaseTupleDesc(desc);
    return HeapTupleGetDatum(tuple);
}

const char *
state_name(State state)
{
    switch (state) {
    case State::scheduled:
        return "scheduled";
    case State::available:
        return "available";
    case State::pending:
        return "pending";
    case State::active:
        return "active";
    case State::completed:
        return "completed";
    case State::retryable:
        return "retryable";
    case State::cancelled:
        return "cancelled";
    case State::discarded:
        return "discarded";
    }
    elog(ERROR, "unknown job state %d", static_cast<int>(state));
}

namespace
{

constexpr std::string_view lease_prefix = "lease_";
constexpr int token_digits = 16;

} // namespace

text *
lease_id(int64 token)
{
    constexpr char hex[] = "0123456789abcdef";
    constexpr size_t length = lease_prefix.size() + token_digits;
    auto *id = static_cast<text *>(palloc(VARHDRSZ + length));
    char *p = VARDATA(id);

    SET_VARSIZE(id, VARHDRSZ + length);
    p = std::copy(lease_prefix.begin(), lease_prefix.end(), p);
    for (int shift = 60; shift >= 0; shift -= 4)
        *p++ = hex[(static_cast<uint64>(token) >> shift) & 0xf];
    return id;
}

bool
parse_lease_id(const text *id, int64 *token)
{
    std::string_view s(VARDATA_ANY(id), VARSIZE_ANY_EXHDR(id));
    uint64 bits = 0;

    if (s.size() != lease_prefix.size() + token_digits || !s.starts_with(lease_prefix))
        return false;
    for (char c : s.substr(lease_prefix.size())) {
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0)
            return false;
        bits = bits << 4 | static_cast<uint64>(digit);
    }
    *token = static_cast<int64>(bits);
    return true;
}

} // namespace ojs
