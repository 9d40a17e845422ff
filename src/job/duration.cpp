/*
 * duration.cpp: times as JSON carries them: RFC 3339 timestamps and ISO 8601 durations, both ways.
 *
 * The syntax is checked here, strictly, since the server's own input takes much more ("tomorrow", "1 day ago") and
 * raises errors of its own.
 */
#include "ojs/job/envelope.h"

namespace ojs
{

namespace
{

struct Cursor {
    const char *at;
    const char *end;

    bool done() const { return at == end; }
    char peek() const { return done() ? '\0' : *at; }

    bool accept(char c)
    {
        if (peek() != c)
            return false;
        at++;
        return true;
    }

    /* Exactly `n` digits, as RFC 3339 has them. */
    bool digits(int n, int &out)
    {
        out = 0;
        for (int i = 0; i < n; i++, at++) {
            if (peek() < '0' || peek() > '9')
                return false;
            out = out * 10 + (*at - '0');
        }
        return true;
    }

    /* One digit or more; stops growing at `limit`. */
    bool number(int64 limit, int64 &out)
    {
        const char *first = at;
        out = 0;
        for (; peek() >= '0' && peek() <= '9'; at++)
            out = std::min(limit, out * 10 + (*at - '0'));
        return at != first;
    }

    /* One digit or more after a point, in millionths; what is smaller is cut off. */
    bool fraction(int &millionths)
    {
        const char *first = at;
        int unit = 100000;
        millionths = 0;
        for (; peek() >= '0' && peek() <= '9'; at++, unit /= 10)
            millionths += (*at - '0') * unit;
        return at != first;
    }
};

bool
read_timestamp(Cursor c, TimestampTz &out)
{
    pg_tm tm = {};
    int millionths = 0;
    int zone_h = 0;
    int zone_m = 0;
    int zone = 0; /* seconds west of Greenwich, as the server counts */

    if (!c.digits(4, tm.tm_year) || !c.accept('-') || !c.digits(2, tm.tm_mon) || !c.accept('-') ||
        !c.digits(2, tm.tm_mday) || !(c.accept('T') || c.accept('t')) || !c.digits(2, tm.tm_hour) || !c.accept(':') ||
        !c.digits(2, tm.tm_min) || !c.accept(':') || !c.digits(2, tm.tm_sec))
        return false;
    if (c.accept('.') && !c.fraction(millionths))
        return false;
    if (!c.accept('Z') && !c.accept('z')) {
        bool west = c.peek() == '-';
        if (!(c.accept('-') || c.accept('+')) || !c.digits(2, zone_h) || !c.accept(':') || !c.digits(2, zone_m))
            return false;
        zone = (zone_h * 3600 + zone_m * 60) * (west ? 1 : -1);
    }
    if (!c.done() || tm.tm_mon < 1 || tm.tm_mon > MONTHS_PER_YEAR || tm.tm_mday < 1 ||
        tm.tm_mday > day_tab[isleap(tm.tm_year)][tm.tm_mon - 1] || tm.tm_hour > 23 || tm.tm_min > 59 ||
        tm.tm_sec > 60 || zone_h > 23 || zone_m > 59)
        return false;
    return tm2timestamp(&tm, millionths, &zone, &out) == 0;
}

/* Years of 12 months, months of 30 days, as interval_ms() has them. */
struct Unit {
    char designator;
    bool time; /* after the T */
    int64 ms;
};
constexpr Unit units[] = {
    {'Y', false, 360 * INT64CONST(86400000)},
    {'M', false, 30 * INT64CONST(86400000)},
    {'W', false, 7 * INT64CONST(86400000)},
    {'D', false, INT64CONST(86400000)},
    {'H', true, 3600000},
    {'M', true, 60000},
    {'S', true, 1000},
};

constexpr int64 too_long_ms = max_duration_ms + 1;

/* A fraction may stand only in the last component. Stops growing at too_long_ms. */
bool
read_duration(Cursor c, int64 &out)
{
    size_t unit = 0;
    bool time = false;
    bool last = false;
    bool any = false;

    out = 0;
    if (!c.accept('P'))
        return false;
    while (!c.done()) {
        if (!time && c.accept('T')) {
            time = true;
            any = false;
        }
        int64 whole;
        int millionths = 0;
        if (last || !c.number(too_long_ms, whole))
            return false;
        if (c.accept('.') || c.accept(',')) {
            last = true;
            if (!c.fraction(millionths))
                return false;
        }
        while (unit < lengthof(units) && (units[unit].time != time || units[unit].designator != c.peek()))
            unit++;
        if (unit == lengthof(units))
            return false;
        int64 ms = units[unit].ms;
        int64 part = whole > too_long_ms / ms ? too_long_ms : whole * ms;
        part += (ms * millionths + 999999) / 1000000; /* never down to nothing */
        out = std::min(too_long_ms, out + part);
        any = true;
        unit++;
        c.at++;
    }
    return any;
}

Cursor
cursor(std::string_view text)
{
    return {text.data(), text.data() + text.size()};
}

void
refuse_too_long(int64 ms, const char *field)
{
    if (ms > max_duration_ms)
        raise_field(Code::invalid_payload, field, "No duration is longer than 100 years.",
                    "%s is longer than 100 years", field);
}

int64
total_ms(const Interval *interval)
{
    int64 days = static_cast<int64>(interval->month) * 30 + interval->day;
    return days * INT64CONST(86400000) + interval->time / 1000 + (interval->time % 1000 > 0);
}

} // namespace

TimestampTz
parse_timestamp(std::string_view text, TimestampTz now, const char *field)
{
    TimestampTz at;
    int64 ms;

    if (text.starts_with("+P")) {
        if (read_duration(cursor(text.substr(1)), ms)) {
            refuse_too_long(ms, field);
            return now + ms * 1000;
        }
    } else if (read_timestamp(cursor(text), at))
        return at;
    raise_field(
        Code::invalid_payload, field,
        "Give an RFC 3339 timestamp with its zone, such as 2030-01-31T09:30:00Z, or a time from now, such as +PT5M.",
        "%s is not a timestamp: \"%s\"", field, clipped(text));
}

bool
parse_short_duration_ms(std::string_view text, int64 &ms)
{
    Cursor c = cursor(text);
    int64 count;
    if (!c.number(max_duration_ms, count))
        return false;
    int64 unit = c.accept('s')   ? 1000
                 : c.accept('m') ? 60000
                 : c.accept('h') ? 3600000
                 : c.accept('d') ? INT64CONST(86400000)
                 : c.accept('w') ? 7 * INT64CONST(86400000)
                                 : 0;
    ms = unit == 0 || count > max_duration_ms / unit ? max_duration_ms : count * unit;
    return unit != 0 && c.done();
}

int64
parse_duration_ms(std::string_view text, Code code, const char *field)
{
    int64 ms;

    if (!read_duration(cursor(text), ms))
        raise_field(code, field, "Give an ISO 8601 duration, such as PT30S, PT1.5S, P7D or P2W.",
                    "%s is not a duration: \"%s\"", field, clipped(text));
    return std::min(ms, max_duration_ms);
}

int64
parse_delay_ms(std::string_view text, const char *field)
{
    int64 ms = 0;
    (void)parse_duration_ms(text, Code::invalid_payload, field);
    (void)read_duration(cursor(text), ms);
    refuse_too_long(ms, field);
    return ms;
}

int64
interval_ms(const Interval *interval)
{
    return std::clamp(total_ms(interval), -max_duration_ms, max_duration_ms);
}

int64
interval_arg_ms(const Interval *interval, const char *field)
{
    int64 ms = total_ms(interval);
    refuse_too_long(ms, field);
    if (ms < 0)
        raise_field(Code::invalid_payload, field, "Give a duration of zero or more.", "%s must not be negative", field);
    return ms;
}

Interval *
interval_of(int64 ms)
{
    auto *interval = static_cast<Interval *>(palloc0(sizeof(Interval)));
    interval->time = ms * 1000;
    return interval;
}

std::string_view
format_duration(int64 ms, TimeText &buffer)
{
    int length;
    if (ms > 0 && ms % 3600000 == 0)
        length = snprintf(buffer.text, sizeof buffer.text, "PT" INT64_FORMAT "H", ms / 3600000);
    else if (ms > 0 && ms % 60000 == 0)
        length = snprintf(buffer.text, sizeof buffer.text, "PT" INT64_FORMAT "M", ms / 60000);
    else if (ms % 1000 == 0)
        length = snprintf(buffer.text, sizeof buffer.text, "PT" INT64_FORMAT "S", ms / 1000);
    else {
        length = snprintf(buffer.text, sizeof buffer.text, "PT" INT64_FORMAT ".%03d", ms / 1000,
                          static_cast<int>(ms % 1000));
        while (buffer.text[length - 1] == '0')
            length--;
        buffer.text[length++] = 'S';
        buffer.text[length] = '\0';
    }
    return {buffer.text, static_cast<size_t>(length)};
}

std::string_view
format_timestamp(TimestampTz at, bool plain, TimeText &buffer)
{
    pg_tm tm;
    fsec_t micros;

    if (TIMESTAMP_NOT_FINITE(at) || timestamp2tm(at, nullptr, &tm, &micros, nullptr, nullptr) != 0)
        return {};
    int length = snprintf(buffer.text, sizeof buffer.text, "%04d-%02d-%02dT%02d:%02d:%02d", tm.tm_year, tm.tm_mon,
                          tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec);
    if (micros % 1000 != 0)
        length += snprintf(buffer.text + length, sizeof buffer.text - length, ".%06d", static_cast<int>(micros));
    else if (micros != 0 || !plain)
        length += snprintf(buffer.text + length, sizeof buffer.text - length, ".%03d", static_cast<int>(micros / 1000));
    buffer.text[length++] = 'Z';
    buffer.text[length] = '\0';
    return {buffer.text, static_cast<size_t>(length)};
}

} // namespace ojs
