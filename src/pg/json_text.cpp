/*
 * json_text.cpp: see json_text.h.
 *
 * One scanner reads the text token by token, with a stack of its own: the text may be nested deeper than the server's
 * stack is. It runs only after jsonb has refused the text.
 */
#include "ojs/pg/json_text.h"

namespace ojs
{

namespace
{

constexpr int64 most_digits = 131072;  /* of a numeric, before its point */
constexpr int64 most_decimals = 16383; /* and after it */
constexpr size_t most_shown = 64;      /* bytes of a key or a number in a message */
constexpr int max_path_bytes = 1024;

enum class Mode { find, replace, replace_jobs };

struct Level {
    char bracket;
    int64 index;          /* of the element that is read */
    std::string_view key; /* of the member that is read */
};

struct Scan {
    Mode mode;
    std::string_view json;
    size_t at = 0;
    StringInfo out = nullptr;
    size_t copied = 0; /* how much of the text is in `out` */
    JsonFault fault = {};
    Level *levels = nullptr;
    int depth = 0;
    int room = 64;
    int most_levels = most_json_levels;
    size_t job_at = 0; /* where the element of "jobs" begins that is read */
    void (*visit)(int64, const JsonFault &, void *) = nullptr;
    void *arg = nullptr;

    Scan(Mode what, std::string_view text) : mode(what), json(text) {}
};

void
copy_to(Scan &s, size_t end)
{
    if (s.out != nullptr)
        appendBinaryStringInfo(s.out, s.json.data() + s.copied, static_cast<int>(end - s.copied));
    s.copied = end;
}

/* Puts `text` in the place of what lies from `from` to where the scan is. */
void
replace(Scan &s, size_t from, std::string_view text)
{
    copy_to(s, from);
    appendBinaryStringInfo(s.out, text.data(), static_cast<int>(text.size()));
    s.copied = s.at;
}

/* Whether an element of the document's member "jobs" is read. */
bool
in_job(const Scan &s)
{
    return s.mode == Mode::replace_jobs && s.depth >= 2 && s.levels[0].bracket == '{' && s.levels[0].key == "jobs" &&
           s.levels[1].bracket == '[';
}

const char *
shown(std::string_view text)
{
    size_t kept =
        text.size() <= most_shown ? text.size() : pg_mbcliplen(text.data(), static_cast<int>(text.size()), most_shown);
    return psprintf("%.*s%s", static_cast<int>(kept), text.data(), kept < text.size() ? "..." : "");
}

/* The path of what is read, from a level on: args[0].text */
const char *
path_of(const Scan &s, int from, bool of_key)
{
    StringInfoData path;
    initStringInfo(&path);
    for (int i = from; i < s.depth && path.len < max_path_bytes; i++) {
        const Level &level = s.levels[i];
        if (level.bracket == '[')
            appendStringInfo(&path, "[" INT64_FORMAT "]", level.index);
        else if (i + 1 < s.depth || !of_key)
            appendStringInfo(&path, "%s%s", path.len > 0 ? "." : "", shown(level.key));
    }
    return path.data;
}

/* Notes what is wrong with the token from `from` on, unless something was wrong before. */
void
note(Scan &s, size_t from, bool of_key, bool is_number, const char *what, const char *hint)
{
    if (s.fault.message != nullptr)
        return;
    const char *found = shown(s.json.substr(from, s.at - from));
    const char *field = path_of(s, in_job(s) ? 2 : 0, of_key);
    const char *place = *field != '\0' ? field : in_job(s) ? "the job" : "the body";
    const char *verb = of_key ? "has a key with" : is_number ? "is" : "holds";
    s.fault = {psprintf("%s %s %s, %s", place, verb, found, what), hint, field, found};
}

void
note_syntax(Scan &s, const char *what)
{
    std::string_view before = s.json.substr(0, std::min(s.at, s.json.size()));
    auto lines = std::count(before.begin(), before.end(), '\n');
    size_t begin = before.rfind('\n') + 1; /* npos + 1 is 0 */
    int column = 1 + pg_mbstrlen_with_len(before.data() + begin, static_cast<int>(before.size() - begin));
    s.fault = {
        psprintf("the body is not valid JSON: %s at line %ld, column %d", what, static_cast<long>(lines) + 1, column),
        "Send one JSON document as UTF-8.", "", nullptr};
}

void
unexpected(Scan &s)
{
    if (s.at >= s.json.size())
        return note_syntax(s, "it ends too early");
    const char *p = s.json.data() + s.at;
    int length = std::min(pg_mblen(p), static_cast<int>(s.json.size() - s.at));
    if (static_cast<unsigned char>(*p) < 0x20)
        return note_syntax(s, psprintf("control character 0x%02x", static_cast<unsigned char>(*p)));
    note_syntax(s, psprintf("unexpected \"%.*s\"", length, p));
}

/* Whether the encoding of the database has the character. */
bool
can_be_stored(pg_wchar c)
{
    int encoding = GetDatabaseEncoding();
    if (c < 0x80 || encoding == PG_UTF8)
        return c != 0;
    unsigned char utf8[8] = {};
    unsigned char buffer[32];
    unicode_to_utf8(c, utf8);
    int length = pg_utf_mblen(utf8);
    Oid conversion = FindDefaultConversionProc(PG_UTF8, encoding);
    return OidIsValid(conversion) && pg_do_encoding_conversion_buf(conversion, PG_UTF8, encoding, utf8, length, buffer,
                                                                   sizeof buffer, true) == length;
}

bool
read_hex(const Scan &s, size_t at, pg_wchar &code)
{
    code = 0;
    if (at + 4 > s.json.size())
        return false;
    for (int i = 0; i < 4; i++) {
        auto c = static_cast<unsigned char>(s.json[at + i]);
        if (!isxdigit(c))
            return false;
        code = code * 16 + (isdigit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return true;
}

/* An escape \uXXXX, or a pair of them; the scan is at its backslash. */
bool
scan_unicode(Scan &s, bool of_key)
{
    size_t from = s.at;
    pg_wchar code;
    pg_wchar low;
    if (!read_hex(s, s.at + 2, code)) {
        note_syntax(s, "\\u without four hexadecimal digits");
        return false;
    }
    s.at += 6;
    bool is_high = is_utf16_surrogate_first(code);
    if (is_high && s.json.substr(s.at, 2) == "\\u" && read_hex(s, s.at + 2, low) && is_utf16_surrogate_second(low)) {
        s.at += 6;
        code = surrogate_pair_to_codepoint(code, low);
        is_high = false;
    }
    bool half = is_high || is_utf16_surrogate_second(code);
    if (!half && can_be_stored(code))
        return true;
    if (s.mode == Mode::replace) {
        replace(s, from, GetDatabaseEncoding() == PG_UTF8 ? "\\ufffd" : "?");
        return true;
    }
    if (half)
        note(s, from, of_key, false, "half of a surrogate pair, which cannot be stored",
             "Send whole characters: an emoji is two escapes, or its bytes in UTF-8.");
    else if (code == 0)
        note(s, from, of_key, false, "which cannot be stored",
             "Leave the character out, or encode the text as base64.");
    else
        note(s, from, of_key, false,
             psprintf("which the encoding %s of the database does not have", GetDatabaseEncodingName()),
             "Leave the character out, or use a database with the encoding UTF8.");
    return s.mode != Mode::find;
}

/* A string; the scan is at its first quote, and behind its last one then. */
bool
scan_string(Scan &s, bool of_key)
{
    for (s.at++; s.at < s.json.size();) {
        auto c = static_cast<unsigned char>(s.json[s.at]);
        if (c == '"') {
            s.at++;
            return true;
        }
        if (c < 0x20)
            break;
        if (c != '\\') {
            s.at++;
            continue;
        }
        char escape = s.at + 1 < s.json.size() ? s.json[s.at + 1] : '\0';
        if (escape == 'u') {
            if (!scan_unicode(s, of_key))
                return false;
        } else if (escape != '\0' && strchr("\"\\/bfnrt", escape) != nullptr) {
            s.at += 2;
        } else {
            note_syntax(s, "an escape that JSON does not have");
            return false;
        }
    }
    unexpected(s);
    return false;
}

/* The digits of a number, by the grammar of JSON; false if it is none. */
bool
read_number(std::string_view token, int64 &digits, int64 &decimals)
{
    const char *p = token.data();
    const char *end = p + token.size();
    auto count = [&p, end] {
        const char *from = p;
        while (p < end && isdigit(static_cast<unsigned char>(*p)))
            p++;
        return static_cast<int64>(p - from);
    };
    p += p < end && *p == '-';
    bool zero = p < end && *p == '0';
    digits = count();
    decimals = 0;
    if (digits == 0 || (zero && digits > 1))
        return false;
    if (p < end && *p == '.') {
        p++;
        decimals = count();
        if (decimals == 0)
            return false;
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        p++;
        bool negative = p < end && *p == '-';
        p += p < end && (*p == '-' || *p == '+');
        int64 exponent = 0;
        const char *from = p;
        if (count() == 0)
            return false;
        for (; from < p; from++)
            exponent = std::min<int64>(exponent * 10 + (*from - '0'), 1000000000);
        digits += negative ? 0 : exponent;
        decimals += negative ? exponent : 0;
    }
    return p == end;
}

/* A number or a word. */
bool
scan_token(Scan &s)
{
    size_t from = s.at;
    int64 digits;
    int64 decimals;
    while (s.at < s.json.size() && (isalnum(static_cast<unsigned char>(s.json[s.at])) ||
                                    (s.json[s.at] != '\0' && strchr("+-._", s.json[s.at]) != nullptr)))
        s.at++;
    std::string_view token = s.json.substr(from, s.at - from);
    if (token == "true" || token == "false" || token == "null")
        return true;
    bool is_number = read_number(token, digits, decimals);
    bool is_special = token == "NaN" || token == "Infinity" || token == "-Infinity";
    if (is_number && digits <= most_digits && decimals <= most_decimals)
        return true;
    if (!is_number && !is_special) {
        s.at = from;
        unexpected(s);
        return false;
    }
    if (s.mode == Mode::replace) {
        replace(s, from, psprintf("\"%s\"", shown(token)));
        return true;
    }
    if (is_number)
        note(s, from, false, true, "a number that is too long to be stored", "Write the number as a string.");
    else
        note(s, from, false, true, "which JSON does not have", "Send null, or a string.");
    return s.mode != Mode::find;
}

/* Goes to the end of the value that begins here, whatever is in it. */
void
skip_nested(Scan &s)
{
    int64 open = 0;
    bool quoted = false;
    for (; s.at < s.json.size(); s.at++) {
        char c = s.json[s.at];
        if (quoted) {
            s.at += c == '\\';
            quoted = c != '"';
            continue;
        }
        quoted = c == '"';
        if (c == '[' || c == '{')
            open++;
        else if ((c == ']' || c == '}') && --open == 0) {
            s.at++;
            return;
        }
        CHECK_FOR_INTERRUPTS();
    }
    s.at = s.json.size();
}

/* Begins an array or an object, or passes over it if it lies too deep. */
bool
begin_level(Scan &s, bool &passed)
{
    passed = s.depth >= s.most_levels;
    if (!passed) {
        if (s.depth == s.room)
            s.levels = static_cast<Level *>(repalloc(s.levels, sizeof(Level) * (s.room *= 2)));
        s.levels[s.depth++] = {s.json[s.at++], 0, {}};
        return true;
    }
    size_t from = s.at;
    skip_nested(s);
    if (s.mode == Mode::replace) {
        replace(s, from, "\"... (cut)\"");
        return true;
    }
    if (s.fault.message == nullptr) {
        const char *field = path_of(s, in_job(s) ? 2 : 0, false);
        size_t member = std::min(strcspn(field, ".["), most_shown);
        field = pnstrdup(field, member);
        s.fault = {psprintf("%s is nested more than %d levels deep",
                            member > 0  ? field
                            : in_job(s) ? "the job"
                                        : "the body",
                            s.most_levels),
                   "Flatten it.", field, nullptr};
    }
    return s.mode != Mode::find;
}

/* A value is complete. Returns false if no more is to be read. */
void
end_value(Scan &s)
{
    if (s.fault.message == nullptr || !in_job(s) || s.depth != 2)
        return;
    s.visit(s.levels[1].index, s.fault, s.arg);
    replace(s, s.job_at, "null");
    s.fault = {};
}

enum class Next { value, value_or_end, key, key_or_end, colon, comma_or_end, nothing };

/* Reads one token. Returns false if no more is to be read. */
bool
scan_one(Scan &s, Next &next)
{
    char c = s.at < s.json.size() ? s.json[s.at] : '\0';
    auto value_read = [&] {
        end_value(s);
        next = s.depth == 0 ? Next::nothing : Next::comma_or_end;
        return s.fault.message == nullptr || in_job(s);
    };
    bool closes = s.depth > 0 && c == (s.levels[s.depth - 1].bracket == '[' ? ']' : '}') &&
                  (next == Next::value_or_end || next == Next::key_or_end || next == Next::comma_or_end);
    if (closes) {
        s.at++;
        s.depth--;
        return value_read();
    }
    switch (next) {
    case Next::value:
    case Next::value_or_end:
        if (s.depth == 2 && in_job(s))
            s.job_at = s.at;
        if (c == '[' || c == '{') {
            bool passed;
            if (!begin_level(s, passed))
                return false;
            if (passed)
                return value_read();
            next = c == '[' ? Next::value_or_end : Next::key_or_end;
            return true;
        }
        if (c == '"' ? !scan_string(s, false) : !scan_token(s))
            return false;
        return value_read();
    case Next::key:
    case Next::key_or_end: {
        size_t from = s.at + 1;
        if (c != '"')
            break;
        if (!scan_string(s, true))
            return false;
        s.levels[s.depth - 1].key = s.json.substr(from, s.at - from - 1);
        next = Next::colon;
        return s.fault.message == nullptr || in_job(s);
    }
    case Next::colon:
        if (c != ':')
            break;
        s.at++;
        next = Next::value;
        return true;
    case Next::comma_or_end:
        if (c != ',')
            break;
        s.at++;
        s.levels[s.depth - 1].index++;
        next = s.levels[s.depth - 1].bracket == '[' ? Next::value : Next::key;
        return true;
    case Next::nothing:
        break;
    }
    unexpected(s);
    return false;
}

void
scan(Scan &s)
{
    Next next = Next::value;
    s.levels = static_cast<Level *>(palloc(sizeof(Level) * s.room));
    for (;;) {
        while (s.at < s.json.size() && strchr(" \t\r\n", s.json[s.at]) != nullptr && s.json[s.at] != '\0')
            s.at++;
        if (next == Next::nothing && s.at == s.json.size())
            return;
        if (!scan_one(s, next))
            return;
        CHECK_FOR_INTERRUPTS();
    }
}

} // namespace

JsonFault
find_fault(std::string_view json)
{
    Scan s(Mode::find, json);
    scan(s);
    return s.fault;
}

text *
without_faults(std::string_view json, int levels)
{
    StringInfoData out;
    initStringInfo(&out);
    Scan s(Mode::replace, json);
    s.out = &out;
    s.most_levels = levels;
    scan(s);
    copy_to(s, json.size());
    return cstring_to_text_with_len(out.data, out.len);
}

JsonFault
without_faulty_jobs(std::string_view json, StringInfo out, void (*visit)(int64, const JsonFault &, void *), void *arg)
{
    Scan s(Mode::replace_jobs, json);
    s.out = out;
    s.visit = visit;
    s.arg = arg;
    scan(s);
    copy_to(s, json.size());
    return s.fault;
}

} // namespace ojs
