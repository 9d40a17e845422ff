/*
 * canonical.cpp: ojs.canonical_json: the RFC 8785 text of a JSON value whose strings and keys are in NFC.
 *
 * Canonical text is always UTF-8, whatever the database's encoding, so that a
 * fingerprint means the same in every database.
 */
#include "ojs/job/canonical.h"

#include "ojs/pg/guard.h"
#include "ojs/pg/json.h"

namespace ojs
{

namespace
{

/* --- NFC --- */

/* The server puts combining marks into order in quadratic time and without looking at interrupts. So text is normalised
 * in pieces that end where nothing combines across, and text without such a place is not text. */
constexpr int usual_piece = 200;
constexpr int longest_piece = 1000;

/* No character before this one combines with it, or moves past it. */
bool
starts_afresh(pg_wchar c)
{
    /* U+0345 has the highest combining class there is: any other mark after it is out of order. */
    const pg_wchar alone[] = {c, 0};
    const pg_wchar after_mark[] = {0x0345, c, 0};
    return c < 0x0300 || (unicode_is_normalized_quickcheck(UNICODE_NFC, alone) == UNICODE_NORM_QC_YES &&
                          unicode_is_normalized_quickcheck(UNICODE_NFC, after_mark) != UNICODE_NORM_QC_NO);
}

void
put_normalized(StringInfo out, pg_wchar *chars, int n)
{
    pg_wchar after = chars[n];
    chars[n] = 0;
    pg_wchar *nfc = unicode_normalize(UNICODE_NFC, chars);
    chars[n] = after;

    int length = 0;
    while (nfc[length] != 0)
        length++;
    enlargeStringInfo(out, length * 4 + 1);
    out->len += pg_encoding_wchar2mb_with_len(PG_UTF8, nfc, out->data + out->len, length);
    pfree(nfc);
}

std::string_view
normalized(std::string_view text, Code code, const char *field)
{
    if (text.size() > MaxAllocSize / sizeof(pg_wchar) - 1)
        raise_field(Code::payload_too_large, field, "Split the value.",
                    "%s holds a string that is too long to normalise", field);
    auto *chars = static_cast<pg_wchar *>(palloc((text.size() + 1) * sizeof(pg_wchar)));
    int n = pg_encoding_mb2wchar_with_len(PG_UTF8, text.data(), chars, static_cast<int>(text.size()));
    if (unicode_is_normalized_quickcheck(UNICODE_NFC, chars) == UNICODE_NORM_QC_YES) {
        pfree(chars);
        return text;
    }

    StringInfoData out = {static_cast<char *>(palloc(text.size() + 1)), 0, static_cast<int>(text.size() + 1), 0};
    for (int start = 0, end; start < n; start = end) {
        CHECK_FOR_INTERRUPTS();
        end = std::min(start + usual_piece, n);
        while (end < n && !starts_afresh(chars[end]))
            if (++end - start > longest_piece)
                raise_field(code, field, "Leave the string out, or shorten it.",
                            "%s holds a string with more than %d combining characters in a row", field,
                            longest_piece - usual_piece);
        put_normalized(&out, chars + start, end - start);
    }
    pfree(chars);
    return {out.data, static_cast<size_t>(out.len)};
}

/* --- numbers --- */

/* A decimal number: 0.DIGITS times ten to the `point`, without leading or trailing zeros. */
struct Decimal {
    const char *digits;
    int n;
    int point;

    bool operator==(const Decimal &other) const
    {
        return n == other.n && point == other.point && memcmp(digits, other.digits, n) == 0;
    }
};

/* Reads "120.5" and "1.205e+02" alike; rewrites `text`. Meant for numbers other than zero. */
Decimal
take_apart(char *text)
{
    Decimal decimal = {text, 0, 0};
    bool in_fraction = false;
    char *p = text;

    for (; *p != '\0' && *p != 'e'; p++) {
        if (*p == '.') {
            in_fraction = true;
        } else if (*p == '0' && decimal.n == 0) {
            decimal.point -= in_fraction;
        } else {
            text[decimal.n++] = *p;
            decimal.point += !in_fraction;
        }
    }
    if (*p == 'e')
        decimal.point += static_cast<int>(strtol(p + 1, nullptr, 10));
    while (decimal.n > 0 && text[decimal.n - 1] == '0')
        decimal.n--;
    return decimal;
}

void
put_zeros(StringInfo out, int n)
{
    while (n-- > 0)
        appendStringInfoChar(out, '0');
}

/* ECMAScript's Number::toString, given the shortest digits. */
void
put_ecmascript(StringInfo out, const Decimal &number)
{
    const char *digits = number.digits;
    int k = number.n, point = number.point;

    if (point > 0 && point <= 21) {
        appendBinaryStringInfo(out, digits, std::min(k, point));
        put_zeros(out, point - k);
        if (k > point) {
            appendStringInfoChar(out, '.');
            appendBinaryStringInfo(out, digits + point, k - point);
        }
    } else if (point > -6 && point <= 0) {
        appendStringInfoString(out, "0.");
        put_zeros(out, -point);
        appendBinaryStringInfo(out, digits, k);
    } else {
        appendStringInfoChar(out, digits[0]);
        if (k > 1) {
            appendStringInfoChar(out, '.');
            appendBinaryStringInfo(out, digits + 1, k - 1);
        }
        appendStringInfo(out, "e%+d", point - 1);
    }
}

/* --- values --- */

struct Writer {
    StringInfo out;
    Numbers numbers;
    const char *field;

    /* What is to be hashed is a uniqueness key; anything else is just a value. */
    Code code() const { return numbers == Numbers::exact ? Code::unique_key_invalid : Code::invalid_payload; }
    void number(Numeric value) const;
    void container(const JsonbContainer *json) const;
    void value(const JsonbValue &v) const;

private:
    [[noreturn]] void refuse(Numeric value, const char *why, const char *hint) const;
    void array(const JsonbContainer *json) const;
    void object(const JsonbContainer *json) const;
};

void
Writer::refuse(Numeric value, const char *why, const char *hint) const
{
    const char *text = numeric_normalize(value);
    raise_field(code(), field, hint, "%s holds a number %s: %.40s%s", field, why, text, strlen(text) > 40 ? "..." : "");
}

void
Writer::number(Numeric value) const
{
    char *text = numeric_normalize(value); /* plain decimal, as short as its value allows; never -0 */
    size_t length = strlen(text);

    /* An integer of up to 15 digits is its own canonical form: the usual case. */
    if (length <= 15 && memchr(text, '.', length) == nullptr) {
        appendBinaryStringInfo(out, text, static_cast<int>(length));
        pfree(text);
        return;
    }

    char *magnitude = text + (*text == '-');
    double nearest = strtod(magnitude, nullptr); /* rounds to nearest even; the server's LC_NUMERIC is always C */
    if (std::isinf(nearest))
        refuse(value, "beyond the range of a double",
               "Canonical JSON knows doubles only. Write the number as a string.");

    char shortest_text[40];
    *std::to_chars(shortest_text, shortest_text + sizeof shortest_text - 1, nearest, std::chars_format::scientific)
         .ptr = '\0';
    Decimal shortest = take_apart(shortest_text);
    if (numbers == Numbers::exact) {
        constexpr double largest_integer = 9007199254740991;
        Decimal given = take_apart(magnitude);
        if (!(given == shortest) || (given.n <= given.point && nearest > largest_integer))
            refuse(value, "that canonical JSON cannot tell from its neighbours",
                   "Jobs that differ in such a number would count as duplicates. Write it as a string, or leave it out "
                   "of the policy.");
    }
    if (nearest == 0) {
        appendStringInfoChar(out, '0');
    } else {
        if (magnitude != text)
            appendStringInfoChar(out, '-');
        put_ecmascript(out, shortest);
    }
    pfree(text);
}

void
Writer::value(const JsonbValue &v) const
{
    switch (v.type) {
    case jbvNull:
        appendBinaryStringInfo(out, "null", 4);
        break;
    case jbvString:
        put_quoted(out, canonical_text(text_of(v), code(), field));
        break;
    case jbvNumeric:
        number(v.val.numeric);
        break;
    case jbvBool:
        appendStringInfoString(out, v.val.boolean ? "true" : "false");
        break;
    case jbvBinary:
        container(v.val.binary.data);
        break;
    default:
        elog(ERROR, "unexpected type of JSON value: %d", static_cast<int>(v.type));
    }
}

void
Writer::container(const JsonbContainer *json) const
{
    check_stack_depth();
    if (JsonContainerIsObject(json))
        object(json);
    else
        array(json);
}

void
Writer::array(const JsonbContainer *json) const
{
    bool bare = JsonContainerIsScalar(json); /* jsonb keeps a top-level scalar as an array of one */
    bool first = true;

    if (!bare)
        appendStringInfoChar(out, '[');
    each_element(json, [&](const JsonbValue &element) {
        if (!first)
            appendStringInfoChar(out, ',');
        first = false;
        value(element);
    });
    if (!bare)
        appendStringInfoChar(out, ']');
}

void
Writer::object(const JsonbContainer *json) const
{
    struct Member {
        std::string_view key;   /* canonical */
        std::string_view given; /* as it stands in the value, for errors */
        JsonbValue value;
    };
    auto *members = static_cast<Member *>(palloc(sizeof(Member) * std::max<size_t>(JsonContainerSize(json), 1)));
    int n = 0;

    each_member(json, [&](std::string_view given, const JsonbValue &member) {
        members[n++] = {canonical_text(given, code(), field), given, member};
    });
    std::sort(members, members + n, [](const Member &a, const Member &b) { return canonical_less(a.key, b.key); });

    appendStringInfoChar(out, '{');
    for (int i = 0; i < n; i++) {
        if (i > 0) {
            if (members[i].key == members[i - 1].key)
                raise_field(code(), field, "Keep one of the two keys, and write keys in NFC.",
                            "%s holds an object with two keys that are the same in Unicode's form NFC: \"%s\"", field,
                            clipped(members[i].given));
            appendStringInfoChar(out, ',');
        }
        put_quoted(out, members[i].key);
        appendStringInfoChar(out, ':');
        value(members[i].value);
    }
    appendStringInfoChar(out, '}');
    pfree(members);
}

} // namespace

/* By UTF-16 code units, as RFC 8785 wants it: the order of code points, and so of UTF-8 bytes, but for U+E000 to U+FFFF
 * (bytes EE, EF), which come after the surrogates of everything higher (F0 to F4). */
bool
canonical_less(std::string_view a, std::string_view b)
{
    auto rank = [](char c) {
        int byte = static_cast<unsigned char>(c);
        return byte == 0xEE || byte == 0xEF ? byte + 0x10 : byte;
    };
    size_t n = std::min(a.size(), b.size());
    for (size_t i = 0; i < n; i++)
        if (a[i] != b[i])
            return rank(a[i]) < rank(b[i]);
    return a.size() < b.size();
}

std::string_view
canonical_text(std::string_view text, Code code, const char *field)
{
    int encoding = GetDatabaseEncoding();
    auto has_byte_from = [&text](unsigned char least) {
        return std::any_of(text.begin(), text.end(),
                           [least](char c) { return static_cast<unsigned char>(c) >= least; });
    };

    if (encoding != PG_UTF8) {
        if (!has_byte_from(0x80))
            return text;
        /* A database without an encoding may hold any bytes. */
        if (encoding == PG_SQL_ASCII && !pg_verify_mbstr(PG_UTF8, text.data(), static_cast<int>(text.size()), true))
            raise_field(code, field, "Use a database with the encoding UTF8.", "%s holds a string that is not UTF-8",
                        field);
        char *utf8 = pg_server_to_any(text.data(), static_cast<int>(text.size()), PG_UTF8);
        if (utf8 != text.data())
            text = {utf8, strlen(utf8)};
    }
    /* U+0300, the first character that NFC may touch, begins with CC. */
    return has_byte_from(0xCC) ? normalized(text, code, field) : text;
}

void
put_quoted(StringInfo out, std::string_view text)
{
    const char *p = text.data(), *end = p + text.size();

    appendStringInfoChar(out, '"');
    while (p < end) {
        const char *plain = p;
        while (p < end && static_cast<unsigned char>(*p) >= 0x20 && *p != '"' && *p != '\\')
            p++;
        appendBinaryStringInfo(out, plain, static_cast<int>(p - plain));
        if (p == end)
            break;
        constexpr std::string_view named = "\b\t\n\f\r\"\\";
        constexpr std::string_view letters = "btnfr\"\\";
        size_t i = named.find(*p);
        if (i != named.npos)
            appendStringInfo(out, "\\%c", letters[i]);
        else
            appendStringInfo(out, "\\u%04x", static_cast<unsigned>(*p));
        p++;
    }
    appendStringInfoChar(out, '"');
}

void
canonical_json(const JsonbContainer *json, Numbers numbers, const char *field, StringInfo out)
{
    Writer{out, numbers, field}.container(json);
}

void
canonical_value(const JsonbValue &value, Numbers numbers, const char *field, StringInfo out)
{
    Writer{out, numbers, field}.value(value);
}

} // namespace ojs

using namespace ojs;

OJS_FUNCTION(ojs_canonical_json)
{
    Jsonb *json = PG_GETARG_JSONB_P(0);
    StringInfoData out;
    initStringInfo(&out);
    canonical_json(&json->root, Numbers::rounded, "value", &out);
    char *text = pg_any_to_server(out.data, out.len, PG_UTF8);
    return PointerGetDatum(cstring_to_text_with_len(text, text == out.data ? out.len : static_cast<int>(strlen(text))));
}
