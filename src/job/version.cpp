/*
 * version.cpp: see version.h.
 */
#include "ojs/job/version.h"

#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"

namespace ojs
{

namespace
{

bool
is_digit(char c)
{
    return c >= '0' && c <= '9';
}

void
put_number(VersionKey &key, uint64 n, int bytes)
{
    for (int shift = (bytes - 1) * 8; shift >= 0; shift -= 8)
        key.bytes[key.n++] = static_cast<uint8>(n >> shift);
}

/* What follows the +, which says nothing of the order: identifiers with dots between. */
bool
is_build(std::string_view text)
{
    bool in_identifier = false;
    for (char c : text) {
        bool letter = is_digit(c) || c == '-' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!letter && (c != '.' || !in_identifier))
            return false;
        in_identifier = letter;
    }
    return in_identifier;
}

/* Identifiers of a version before the release: numbers by value and before all others, a longer list after its start.
 */
bool
read_identifiers(std::string_view text, VersionKey &key)
{
    for (;;) {
        std::string_view part = text.substr(0, text.find('.'));
        uint64 number = 0;
        bool numeric = part.size() <= 18;
        if (part.empty())
            return false;
        for (char c : part) {
            if (!is_digit(c) && c != '-' && !(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z'))
                return false;
            numeric = numeric && is_digit(c);
            number = number * 10 + static_cast<uint64>(c - '0');
        }
        key.bytes[key.n++] = numeric ? 1 : 2;
        if (numeric)
            put_number(key, number, 8);
        else {
            memcpy(key.bytes + key.n, part.data(), part.size());
            key.n += static_cast<int>(part.size());
            key.bytes[key.n++] = 0;
        }
        if (part.size() == text.size())
            break;
        text.remove_prefix(part.size() + 1);
    }
    key.bytes[key.n++] = 0;
    return true;
}

} // namespace

bool
read_version(std::string_view text, VersionKey &key)
{
    key.n = 0;
    if (text.size() > max_version_length)
        return false;
    size_t build = std::min(text.find('+'), text.size());
    if (build < text.size() && !is_build(text.substr(build + 1)))
        return false;
    text = text.substr(0, build);
    size_t dash = std::min(text.find('-'), text.size());
    std::string_view core = text.substr(0, dash);
    int numbers = 0;
    for (bool more = true; more; numbers++) {
        std::string_view part = core.substr(0, core.find('.'));
        uint64 number = 0;
        if (part.empty() || part.size() > 9 || numbers == 3)
            return false;
        for (char c : part) {
            if (!is_digit(c))
                return false;
            number = number * 10 + static_cast<uint64>(c - '0');
        }
        put_number(key, number, 4);
        more = part.size() < core.size();
        core.remove_prefix(std::min(part.size() + 1, core.size()));
    }
    for (; numbers < 3; numbers++)
        put_number(key, 0, 4);
    if (dash < text.size())
        return read_identifiers(text.substr(dash + 1), key);
    key.bytes[key.n++] = 0xff;
    return true;
}

int
compare(const VersionKey &a, const VersionKey &b)
{
    int order = memcmp(a.bytes, b.bytes, static_cast<size_t>(std::min(a.n, b.n)));
    return order != 0 ? order : a.n - b.n;
}

bool
read_range(std::string_view text, VersionRange &range)
{
    range.n = 0;
    if (text == "*")
        return true;
    for (;;) {
        size_t start = text.find_first_not_of(" ,");
        if (start == text.npos)
            return range.n > 0;
        text.remove_prefix(start);
        VersionRange::Bound bound = VersionRange::equal;
        size_t signs = 0;
        if (text.starts_with(">=") || text.starts_with("<="))
            signs = 2;
        else if (text.starts_with(">") || text.starts_with("<") || text.starts_with("="))
            signs = 1;
        if (text[0] == '>')
            bound = signs == 2 ? VersionRange::at_least : VersionRange::above;
        else if (text[0] == '<')
            bound = signs == 2 ? VersionRange::at_most : VersionRange::below;
        text.remove_prefix(std::min(text.find_first_not_of(' ', signs), text.size()));
        std::string_view version = text.substr(0, text.find_first_of(" ,"));
        if (range.n == VersionRange::max_bounds || !read_version(version, range.key[range.n]))
            return false;
        range.bound[range.n++] = bound;
        text.remove_prefix(version.size());
    }
}

bool
in_range(const VersionRange &range, std::string_view version)
{
    VersionKey key;
    if (range.n == 0)
        return true;
    if (!read_version(version, key))
        return false;
    for (int i = 0; i < range.n; i++) {
        int order = compare(key, range.key[i]);
        bool in = range.bound[i] == VersionRange::equal      ? order == 0
                  : range.bound[i] == VersionRange::at_least ? order >= 0
                  : range.bound[i] == VersionRange::above    ? order > 0
                  : range.bound[i] == VersionRange::at_most  ? order <= 0
                                                             : order < 0;
        if (!in)
            return false;
    }
    return true;
}

std::string_view
version_in(const Jsonb *options)
{
    JsonbValue value;
    if (options == nullptr || !find_member(root_of(options), "version", value))
        return {};
    if (value.type == jbvString)
        return text_of(value);
    if (value.type == jbvNumeric && number_length(value.val.numeric) <= static_cast<int64>(max_version_length))
        return DatumGetCString(DirectFunctionCall1(numeric_out, NumericGetDatum(value.val.numeric)));
    return {};
}

} // namespace ojs

using namespace ojs;

/* ojs_store.version_key(version text) returns bytea: in the order of versions; null for what is none */
OJS_FUNCTION(ojs_version_key)
{
    VersionKey key;
    if (!read_version(view(PG_GETARG_TEXT_PP(0)), key))
        PG_RETURN_NULL();
    PG_RETURN_BYTEA_P(
        reinterpret_cast<bytea *>(cstring_to_text_with_len(reinterpret_cast<const char *>(key.bytes), key.n)));
}

/* ojs_store.in_range(versions text, version text) returns boolean: null for what is no range */
OJS_FUNCTION(ojs_in_range)
{
    VersionRange range;
    if (!read_range(view(PG_GETARG_TEXT_PP(0)), range))
        PG_RETURN_NULL();
    PG_RETURN_BOOL(in_range(range, view(PG_GETARG_TEXT_PP(1))));
}
