/*
 * json.cpp: reading values out of jsonb and putting new objects together.
 */
#include "ojs/pg/json.h"

namespace ojs
{

namespace
{

/* How many bytes of JSON text a byte of a string takes. */
constexpr std::array<uint8, 256>
escaped_lengths()
{
    std::array<uint8, 256> lengths{};
    for (size_t c = 0; c < lengths.size(); c++)
        lengths[c] = c < 0x20 ? 6 : 1;
    for (unsigned char c : {'\b', '\f', '\n', '\r', '\t', '"', '\\'})
        lengths[c] = 2;
    return lengths;
}
constexpr std::array<uint8, 256> escaped_length = escaped_lengths();

/* Whether none of the next eight bytes needs an escape: no control character, no quote, no backslash. */
bool
eight_plain(const char *p)
{
    constexpr uint64 each = 0x0101010101010101;
    uint64 bytes;
    memcpy(&bytes, p, sizeof bytes);
    auto zero = [](uint64 x) { return (x - each) & ~x; }; /* the high bit of a byte, where one is zero */
    uint64 control = (bytes - each * 0x20) & ~bytes;
    return ((control | zero(bytes ^ each * '"') | zero(bytes ^ each * '\\')) & each * 0x80) == 0;
}

char *
numeric_text(Numeric number)
{
    return DatumGetCString(DirectFunctionCall1(numeric_out, NumericGetDatum(number)));
}

} // namespace

/*
 * The length of a number's text, from what a numeric begins with: 16 bits that hold sign, scale and weight if both are
 * short; else 16 bits with the scale and 16 with the weight. The weight is that of the first group of four digits.
 */
int64
number_length(Numeric number)
{
    const char *p = VARDATA_ANY(number);
    auto next16 = [&p] {
        uint16 bits;
        memcpy(&bits, p, sizeof bits);
        p += sizeof bits;
        return bits;
    };
    const char *end = p + VARSIZE_ANY_EXHDR(number);
    uint16 head = next16();
    bool is_short = (head & 0x8000) != 0;
    bool negative = is_short ? (head & 0x2000) != 0 : (head & 0xC000) == 0x4000;
    int scale = is_short ? (head & 0x1F80) >> 7 : head & 0x3FFF;
    int weight = is_short ? (head & 0x3F) - (head & 0x40) : static_cast<int16>(next16());
    int first = p < end && weight >= 0 ? next16() : 0; /* of zero and of fractions the first digit is a 0 */
    int first_length = 1 + (first >= 10) + (first >= 100) + (first >= 1000);

    return static_cast<int>(negative) + first_length + 4 * std::max(weight, 0) + (scale > 0 ? 1 + scale : 0);
}

namespace
{

/* Brackets take two bytes; each element or member one for the comma before it, save the first of its container, and
 * each member one more for its colon. The server shows a blank after each of these; nobody has sent it. Reads
 * the entries where they lie: an iterator would copy each. */
void
measure(const JsonbContainer *json, int depth, Extent &extent)
{
    int n = static_cast<int>(JsonContainerSize(json));
    int entries = JsonContainerIsObject(json) ? 2 * n : n;
    auto data = reinterpret_cast<const char *>(&json->children[entries]);
    uint32 at = 0;

    check_stack_depth();
    CHECK_FOR_INTERRUPTS();
    extent.depth = std::max(extent.depth, depth);
    extent.values += n;
    int signs = std::max(n - 1, 0) + (entries - n);
    extent.text += 2 + signs;
    extent.blanks += signs;
    for (int i = 0; i < entries; i++) {
        JEntry entry = json->children[i];
        uint32 end = at;
        JBE_ADVANCE_OFFSET(end, entry);
        if (JBE_ISSTRING(entry)) {
            extent.text += text_length({data + at, end - at});
        } else if (JBE_ISCONTAINER(entry)) {
            measure(reinterpret_cast<const JsonbContainer *>(data + INTALIGN(at)), depth + 1, extent);
        } else if (JBE_ISNUMERIC(entry)) {
            int64 length = number_length(reinterpret_cast<Numeric>(const_cast<char *>(data + INTALIGN(at))));
            extent.text += length;
            extent.number = std::max(extent.number, length);
        } else {
            extent.text += JBE_ISBOOL_FALSE(entry) ? 5 : 4;
        }
        at = end;
    }
}

/* The text of a number times 10^scale as an integer. */
bool
read_scaled(const char *p, int scale, int64 &out)
{
    bool negative = *p == '-';
    int64 n = 0;
    int decimals = -1; /* digits after the point so far */

    for (p += negative; *p != '\0'; p++) {
        if (*p == '.') {
            decimals = 0;
            continue;
        }
        if (*p < '0' || *p > '9')
            return false;
        if (decimals >= scale) {
            if (*p != '0')
                return false;
            continue;
        }
        if (decimals >= 0)
            decimals++;
        if (pg_mul_s64_overflow(n, 10, &n) || pg_add_s64_overflow(n, *p - '0', &n))
            return false;
    }
    for (int i = std::max(decimals, 0); i < scale; i++)
        if (pg_mul_s64_overflow(n, 10, &n))
            return false;
    out = negative ? -n : n;
    return true;
}

} // namespace

bool
find_member(const JsonbContainer *object, std::string_view key, JsonbValue &value)
{
    return getKeyJsonValueFromContainer(const_cast<JsonbContainer *>(object), key.data(), static_cast<int>(key.size()),
                                        &value) != nullptr &&
           value.type != jbvNull;
}

const char *
kind_of(const JsonbValue &value)
{
    switch (value.type) {
    case jbvNull:
        return "null";
    case jbvString:
        return "a string";
    case jbvNumeric:
        return "a number";
    case jbvBool:
        return "a boolean";
    default:
        return is_object(value) ? "an object" : "an array";
    }
}

const char *
kind_of(const Jsonb *json)
{
    JsonbValue value = json_of(json);
    if (JB_ROOT_IS_SCALAR(json))
        (void)JsonbExtractScalar(const_cast<JsonbContainer *>(root_of(json)), &value);
    return kind_of(value);
}

bool
number_of(const JsonbValue &value, int scale, int64 &out)
{
    if (value.type != jbvNumeric || number_length(value.val.numeric) > longest_number)
        return false;
    char *text = numeric_text(value.val.numeric);
    bool whole = read_scaled(text, scale, out);
    pfree(text);
    return whole;
}

double
double_of(const JsonbValue &value)
{
    char *text = numeric_text(value.val.numeric);
    double number = strtod(text, nullptr);
    pfree(text);
    return number;
}

bool
same_json(const JsonbValue &a, const JsonbValue &b)
{
    return compareJsonbContainers(&jsonb_of(a)->root, &jsonb_of(b)->root) == 0;
}

int64
text_length(std::string_view text)
{
    int64 length = 2;
    for (const char *p = text.data(), *end = p + text.size(); p < end;) {
        if (end - p >= 8 && eight_plain(p)) {
            length += 8;
            p += 8;
        } else {
            length += escaped_length[static_cast<unsigned char>(*p++)];
        }
    }
    return length;
}

Extent
extent_of(const JsonbContainer *json)
{
    Extent extent = {};
    measure(json, 1, extent);
    return extent;
}

int64
text_bytes(const Jsonb *json)
{
    int64 brackets = JB_ROOT_IS_SCALAR(json) ? 2 : 0; /* a scalar is kept in an array that nobody sees */
    Extent extent = extent_of(root_of(json));
    return extent.text + extent.blanks - brackets;
}

JsonbValue
json_number(int64 n)
{
    JsonbValue value;
    value.type = jbvNumeric;
    value.val.numeric = int64_to_numeric(n);
    return value;
}

JsonbValue
json_decimal(int64 n, int decimals)
{
    for (; decimals > 0 && n % 10 == 0; decimals--)
        n /= 10;
    if (decimals == 0)
        return json_number(n);
    JsonbValue value;
    value.type = jbvNumeric;
    value.val.numeric = int64_div_fast_to_numeric(n, decimals);
    return value;
}

Jsonb *
jsonb_of(const JsonbValue &value)
{
    return JsonbValueToJsonb(const_cast<JsonbValue *>(&value));
}

ObjectBuilder &
ObjectBuilder::add(std::string_view key, const JsonbValue &value)
{
    JsonbValue name = json_text(key);
    pushJsonbValue(&state, WJB_KEY, &name);
    pushJsonbValue(&state, WJB_VALUE, const_cast<JsonbValue *>(&value));
    return *this;
}

} // namespace ojs
