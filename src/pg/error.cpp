/*
 * error.cpp: the error catalogue as data, and building DETAIL from it.
 */
#include "ojs/pg/error.h"

#include "ojs/pg/guard.h"

namespace ojs
{

int error_item = -1;

namespace
{

struct Entry {
    Code code;
    const char *name;
    const char *sqlstate;
    bool retryable;
};

/* In the order of Code. Numbers: requirements ERR-B; OJxyy is family digit and catalogue number. */
constexpr Entry catalogue[] = {
    {Code::invalid_payload, "INVALID_PAYLOAD", "OJ100", false},
    {Code::invalid_job_type, "INVALID_JOB_TYPE", "OJ101", false},
    {Code::invalid_queue, "INVALID_QUEUE", "OJ102", false},
    {Code::invalid_args, "INVALID_ARGS", "OJ103", false},
    {Code::invalid_metadata, "INVALID_METADATA", "OJ104", false},
    {Code::invalid_state_transition, "INVALID_STATE_TRANSITION", "OJ105", false},
    {Code::invalid_retry_policy, "INVALID_RETRY_POLICY", "OJ106", false},
    {Code::invalid_cron_expression, "INVALID_CRON_EXPRESSION", "OJ107", false},
    {Code::schema_validation_failed, "SCHEMA_VALIDATION_FAILED", "OJ108", false},
    {Code::payload_too_large, "PAYLOAD_TOO_LARGE", "OJ109", false},
    {Code::metadata_too_large, "METADATA_TOO_LARGE", "OJ110", false},
    {Code::queue_name_too_long, "QUEUE_NAME_TOO_LONG", "OJ114", false},
    {Code::job_type_too_long, "JOB_TYPE_TOO_LONG", "OJ115", false},
    {Code::batch_size_exceeded, "BATCH_SIZE_EXCEEDED", "OJ118", false},
    {Code::unavailable, "UNAVAILABLE", "57P03", true},
    {Code::not_found, "NOT_FOUND", "OJ300", false},
    {Code::duplicate_job, "DUPLICATE_JOB", "OJ301", false},
    {Code::job_already_completed, "JOB_ALREADY_COMPLETED", "OJ302", false},
    {Code::job_already_cancelled, "JOB_ALREADY_CANCELLED", "OJ303", false},
    {Code::queue_paused, "QUEUE_PAUSED", "OJ304", true},
    {Code::lease_not_held, "LEASE_NOT_HELD", "OJ311", false},
    {Code::topic_not_a_queue, "TOPIC_NOT_A_QUEUE", "OJ312", false},
    {Code::topic_exists_incompatible, "TOPIC_EXISTS_INCOMPATIBLE", "OJ313", false},
    {Code::result_too_large, "RESULT_TOO_LARGE", "OJ314", false},
    {Code::schema_exists, "SCHEMA_EXISTS", "OJ315", false},
    {Code::workflow_not_found, "WORKFLOW_NOT_FOUND", "OJ400", false},
    {Code::invalid_workflow, "INVALID_WORKFLOW", "OJ404", false},
    {Code::workflow_ended, "WORKFLOW_ENDED", "OJ406", false},
    {Code::permission_denied, "PERMISSION_DENIED", "42501", false},
    {Code::rate_limited, "RATE_LIMITED", "OJ600", true},
    {Code::queue_full, "QUEUE_FULL", "OJ601", true},
    {Code::tenant_limit_exceeded, "TENANT_LIMIT_EXCEEDED", "OJ604", true},
    {Code::unsupported_feature, "UNSUPPORTED_FEATURE", "OJ700", false},
    {Code::unique_key_invalid, "UNIQUE_KEY_INVALID", "OJ702", false},
};

constexpr bool
in_order()
{
    for (size_t i = 0; i < lengthof(catalogue); i++)
        if (static_cast<size_t>(catalogue[i].code) != i)
            return false;
    return true;
}
static_assert(in_order());

int
sqlstate(const char *s)
{
    return MAKE_SQLSTATE(s[0], s[1], s[2], s[3], s[4]);
}

void
append_json_string(StringInfo out, std::string_view text)
{
    escape_json(out, pnstrdup(text.data(), text.size()));
}

void
begin_member(StringInfo out, const char *key)
{
    if (out->len > 0)
        appendStringInfoChar(out, ',');
    escape_json(out, key);
    appendStringInfoChar(out, ':');
}

void
report(int level, Code code, Details details, const char *hint, const char *message)
{
    const Entry &entry = catalogue[static_cast<size_t>(code)];

    if (error_item >= 0) {
        details.add("index", static_cast<int64>(error_item));
        message = psprintf("jobs[%d]: %s", error_item, message);
    }
    ereport(level,
            (errcode(sqlstate(entry.sqlstate)), errmsg_internal("%s", message),
             errdetail_internal("{\"code\":\"%s\",\"retryable\":%s,\"details\":{%s}}", entry.name,
                                entry.retryable ? "true" : "false", details.json.data),
             details.logged.len > 0 ? errdetail_log("{\"code\":\"%s\",\"retryable\":%s,\"details\":{%s}}", entry.name,
                                                    entry.retryable ? "true" : "false", details.logged.data)
                                    : 0,
             hint != nullptr ? errhint("%s", hint) : 0));
}

pg_attribute_printf(1, 0) char *format_message(const char *format, va_list args, int saved_errno)
{
    StringInfoData text;
    initStringInfo(&text);
    for (;;) {
        va_list copy;
        errno = saved_errno;
        va_copy(copy, args);
        int needed = appendStringInfoVA(&text, format, copy);
        va_end(copy);
        if (needed == 0)
            return text.data;
        enlargeStringInfo(&text, needed);
    }
}

} // namespace

extern "C" void
error_xact(XactEvent, void *)
{
    error_item = -1;
}

extern "C" void
error_subxact(SubXactEvent, SubTransactionId, SubTransactionId, void *)
{
    error_item = -1;
}

void
error_init()
{
    RegisterXactCallback(error_xact, nullptr);
    RegisterSubXactCallback(error_subxact, nullptr);
}

Details::Details()
{
    initStringInfo(&json);
    initStringInfo(&logged);
}

Details &
Details::add_unlogged(const char *key, std::string_view value)
{
    appendBinaryStringInfo(&logged, json.data, json.len);
    return add(key, value);
}

Details &
Details::add_unlogged_list(const char *key, const char *const *texts, int n)
{
    appendBinaryStringInfo(&logged, json.data, json.len);
    begin_member(&json, key);
    for (int i = 0; i < n; i++) {
        appendStringInfoChar(&json, i == 0 ? '[' : ',');
        escape_json(&json, texts[i]);
    }
    appendStringInfoString(&json, n == 0 ? "[]" : "]");
    return *this;
}

Details &
Details::add(const char *key, std::string_view value)
{
    begin_member(&json, key);
    append_json_string(&json, value);
    return *this;
}

Details &
Details::add(const char *key, int64 value)
{
    begin_member(&json, key);
    appendStringInfo(&json, INT64_FORMAT, value);
    return *this;
}

Details &
Details::add(const char *key, const pg_uuid_t &value)
{
    return add(key, DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&value))));
}

void
raise(Code code, const Details &details, const char *hint, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *message = format_message(format, args, errno);
    va_end(args);
    report(ERROR, code, details, hint, message);
    pg_unreachable();
}

void
tell(Code code, const Details &details, const char *hint, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *message = format_message(format, args, errno);
    va_end(args);
    report(NOTICE, code, details, hint, message);
}

void
warn(Code code, const Details &details, const char *hint, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *message = format_message(format, args, errno);
    va_end(args);
    report(WARNING, code, details, hint, message);
}

void
raise_field(Code code, const char *field, const char *hint, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *message = format_message(format, args, errno);
    va_end(args);
    report(ERROR, code, Details().add("field", field), hint, message);
    pg_unreachable();
}

bool
is(const ErrorData *error, Code code)
{
    return error->sqlerrcode == sqlstate(catalogue[static_cast<size_t>(code)].sqlstate);
}

Jsonb *
error_json(const ErrorData *error)
{
    StringInfoData json;
    const char *state = unpack_sql_state(error->sqlerrcode);
    bool ours = false;

    for (const Entry &entry : catalogue)
        ours |= strcmp(entry.sqlstate, state) == 0;
    ours = ours && error->detail != nullptr && strncmp(error->detail, "{\"code\":", 8) == 0;
    initStringInfo(&json);
    appendStringInfoString(&json, "{\"message\":");
    escape_json(&json, error->message);
    if (error->hint != nullptr) {
        appendStringInfoString(&json, ",\"hint\":");
        escape_json(&json, error->hint);
    }
    if (ours)
        appendStringInfo(&json, ",%s", error->detail + 1);
    else
        appendStringInfo(&json, ",\"code\":\"HOOK_ERROR\",\"sqlstate\":\"%s\",\"retryable\":false}", state);
    return DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(json.data)));
}

} // namespace ojs

/* ojs_store.raise(code text, message text, details jsonb, hint text): for SQL functions; the code by its name */
OJS_FUNCTION(ojs_raise)
{
    using namespace ojs;
    if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
        ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("code and message must not be null")));
    const char *name = text_to_cstring(PG_GETARG_TEXT_PP(0));
    const char *message = text_to_cstring(PG_GETARG_TEXT_PP(1));
    const char *hint = PG_ARGISNULL(3) ? nullptr : text_to_cstring(PG_GETARG_TEXT_PP(3));
    Details details;
    if (!PG_ARGISNULL(2)) {
        Jsonb *given = PG_GETARG_JSONB_P(2);
        char *json = JsonbToCString(nullptr, &given->root, VARSIZE(given));
        size_t length = strlen(json);
        if (length >= 2 && json[0] == '{') /* its members */
            appendBinaryStringInfo(&details.json, json + 1, static_cast<int>(length - 2));
    }
    for (const Entry &entry : catalogue)
        if (strcmp(entry.name, name) == 0)
            report(ERROR, entry.code, details, hint, message);
    ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("unknown error code \"%s\": %s", name, message)));
}
