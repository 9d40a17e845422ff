/*
 * job_error.cpp: the errors of failed attempts: as a worker reports one, and as it is stored and shown (ERR-A).
 */
#include "ojs/pg/settings.h"
#include "ojs/job/envelope.h"
#include "ojs/pg/json.h"
#include "ojs/pg/subtransaction.h"

namespace ojs
{

namespace
{

constexpr int max_frames = 50;
constexpr int max_backtrace_chars = 10000;
constexpr int max_error_bytes = 64 * 1024; /* of a stored error as JSON text, in UTF-8: */
constexpr int max_kind_bytes = 255;        /* its code and its type, */
constexpr int max_message_bytes = 16 * 1024;
constexpr int max_backtrace_bytes = 40000; /* … and the rest is for its other members */

/* A value as text: what a report says counts, whatever its type (ERR-A). */
std::string_view
text_from(const JsonbValue &value)
{
    if (value.type == jbvString)
        return text_of(value);
    if (value.type == jbvNumeric && number_length(value.val.numeric) > longest_number)
        return "a very long number";
    Jsonb *json = jsonb_of(value);
    return JsonbToCString(nullptr, &json->root, static_cast<int>(VARSIZE(json)));
}

/* A member as text; empty where it is missing. */
std::string_view
text_member(const JsonbContainer *object, const char *key)
{
    JsonbValue value;
    return find_member(object, key, value) ? text_from(value) : std::string_view();
}

/* A boolean, or what reads as one: "false", "no", 0. */
bool
read_boolean(const JsonbValue &value, bool &out)
{
    int64 number;
    bool said;
    if (value.type == jbvBool)
        out = value.val.boolean;
    else if (value.type == jbvString && value.val.string.len > 0 && /* of none it reads what lies behind */
             parse_bool_with_len(value.val.string.val, value.val.string.len, &said))
        out = said;
    else if (number_of(value, 0, number) && (number == 0 || number == 1))
        out = number == 1;
    else
        return false;
    return true;
}

bool
read_time(const JsonbValue &value, TimestampTz now, std::optional<TimestampTz> &out)
{
    if (value.type != jbvString)
        return false;
    ErrorData *error = attempt([&] { out = parse_timestamp(text_of(value), now, "rate_limit_until"); });
    if (error != nullptr && is_of_server(*error))
        ReThrowError(error);
    return error == nullptr && IS_VALID_TIMESTAMP(*out);
}

/* Collects frames as long as the limits of ERR-02 allow. */
struct Backtrace {
    JsonbParseState *state = nullptr;
    int frames = 0;
    int chars = 0;

    Backtrace() { pushJsonbValue(&state, WJB_BEGIN_ARRAY, nullptr); }

    void add(std::string_view frame)
    {
        if (frames == max_frames || chars >= max_backtrace_chars)
            return;
        auto size = static_cast<int>(frame.size());
        int kept = pg_mbcharcliplen(frame.data(), size, max_backtrace_chars - chars);
        chars += pg_mbstrlen_with_len(frame.data(), kept);
        frames++;
        JsonbValue value = json_text(frame.substr(0, kept));
        pushJsonbValue(&state, WJB_ELEM, &value);
    }

    JsonbValue finish() { return *pushJsonbValue(&state, WJB_END_ARRAY, nullptr); }
};

void
add_lines(Backtrace &out, std::string_view text)
{
    while (!text.empty()) {
        size_t end = std::min(text.find('\n'), text.size());
        std::string_view line = text.substr(0, end);
        if (line.ends_with('\r'))
            line.remove_suffix(1);
        if (!line.empty())
            out.add(line);
        text.remove_prefix(std::min(end + 1, text.size()));
        CHECK_FOR_INTERRUPTS();
    }
}

JsonbValue
read_backtrace(const JsonbValue &value)
{
    Backtrace out;

    if (is_array(value))
        each_element(value.val.binary.data, [&out](const JsonbValue &frame) { out.add(text_from(frame)); });
    else
        add_lines(out, text_from(value));
    return out.finish();
}

bool
is_directive(std::string_view code)
{
    return code == "RETRY" || code == "DISCARD" || code == "DEAD_LETTER" || code == "FAIL";
}

/* Of the server's own errors: events are made from these. */
bool
written_by_server(std::string_view key)
{
    return key == "timeout_kind" || key == "limit_seconds" || key == "elapsed_seconds";
}

/* The text, or what fits of it with a mark. */
std::string_view
cut(std::string_view text, int most)
{
    constexpr std::string_view mark = " ... (cut)";
    if (text.size() <= static_cast<size_t>(most))
        return text;
    int kept = pg_mbcliplen(text.data(), static_cast<int>(text.size()), most - static_cast<int>(mark.size()));
    return psprintf("%.*s%s", kept, text.data(), mark.data());
}

/* The members that every stored error has. */
void
add_facts(ObjectBuilder &out, std::string_view code, std::string_view type, std::string_view message, int attempt,
          TimestampTz now)
{
    TimeText buffer;

    out.add("code", code).add("type", type).add("message", message).add("attempt", static_cast<int64>(attempt));
    std::string_view at = format_timestamp(now, false, buffer);
    out.add("occurred_at", pnstrdup(at.data(), at.size()));
}

} // namespace

void
require_error(const Jsonb *json)
{
    JsonbValue value;
    bool given = json != nullptr;
    if (given && JB_ROOT_IS_SCALAR(json))
        given = JsonbExtractScalar(const_cast<JsonbContainer *>(root_of(json)), &value) && value.type != jbvNull;
    if (!given)
        raise_field(Code::invalid_payload, "error",
                    "Report an error as an object with a message and a type or a code, such as "
                    "{\"type\": \"SmtpError\", \"message\": \"connection refused\"}.",
                    "error must be an object, not null");
}

ReportedError
read_error(const Jsonb *json, int attempt_number, TimestampTz now)
{
    ReportedError error = {nullptr, {}, {}, true, std::nullopt};
    JsonbValue value;
    JsonbValue details;
    Jsonb *ignored = nullptr;

    /* An error that is no object is its own message. */
    if (!is_object(json)) {
        value = json_of(json);
        if (JB_ROOT_IS_SCALAR(json))
            (void)JsonbExtractScalar(const_cast<JsonbContainer *>(root_of(json)), &value);
        json = ObjectBuilder().add("message", text_from(value)).finish();
    }
    const JsonbContainer *given = root_of(json);

    std::string_view code = text_member(given, "code");
    error.type = text_member(given, "type");
    if (error.type.empty() && find_member(given, "details", details) && is_object(details))
        error.type = text_member(details.val.binary.data, "error_class");
    if (error.type.empty())
        error.type = code;
    if (error.type.empty())
        error.type = "unknown_error";
    if (is_directive(code))
        error.directive = code;
    else if (code.empty())
        code = error.type;

    std::string_view message = text_member(given, "message");
    if (message.empty() && !find_member(given, "message", value))
        message = error.type;

    JsonbParseState *names = nullptr;
    auto ignore = [&names](const char *name) {
        if (names == nullptr)
            pushJsonbValue(&names, WJB_BEGIN_ARRAY, nullptr);
        JsonbValue element = json_text(name);
        pushJsonbValue(&names, WJB_ELEM, &element);
    };
    if (find_member(given, "retryable", value) && !read_boolean(value, error.retryable))
        ignore("retryable");
    if (find_member(given, "rate_limit_until", value) && !read_time(value, now, error.paused_until)) {
        error.paused_until = std::nullopt;
        ignore("rate_limit_until");
    }
    if (names != nullptr)
        ignored = JsonbValueToJsonb(pushJsonbValue(&names, WJB_END_ARRAY, nullptr));

    /* A member that does not fit beside those before it is left out. */
    ObjectBuilder out;
    bool has_backtrace = find_member(given, "backtrace", value);
    int64 room = max_error_bytes - std::min<int64>(message.size(), max_message_bytes) - 4 * max_kind_bytes -
                 (has_backtrace ? max_backtrace_bytes : 0);
    bool is_cut = false;
    each_member(given, [&](std::string_view key, const JsonbValue &member) {
        if (member.type == jbvNull || key == "backtrace" || key == "code" || key == "type" || key == "message" ||
            key == "ignored" || written_by_server(key))
            return;
        Extent extent = extent_of(root_of(jsonb_of(member)));
        int64 size = static_cast<int64>(key.size()) + 8 + extent.text + extent.blanks;
        if (size > room || extent.depth > most_error_levels) {
            is_cut = true;
            return;
        }
        room -= size;
        out.add(key, member);
    });
    if (ignored != nullptr)
        out.add("ignored", ignored);
    is_cut |= message.size() > max_message_bytes;
    if (is_cut)
        out.add("truncated", json_bool(true));
    add_facts(out, cut(code, max_kind_bytes), cut(error.type, max_kind_bytes), cut(message, max_message_bytes),
              attempt_number, now);
    if (has_backtrace) {
        JsonbValue backtrace = read_backtrace(value);
        if (!settings.redact_backtrace)
            out.add("backtrace", backtrace);
    }
    error.stored = out.finish();
    return error;
}

Jsonb *
server_error(const char *type, const char *message, int attempt, TimestampTz now, TimeoutFacts facts)
{
    ObjectBuilder out;

    add_facts(out, type, type, cut(message, max_message_bytes), attempt, now);
    if (facts.kind != nullptr) {
        out.add("timeout_kind", facts.kind);
        out.add("limit_seconds", json_seconds(facts.limit_ms));
        out.add("elapsed_seconds", json_seconds(facts.elapsed_ms));
    }
    return out.finish();
}

} // namespace ojs
