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

constexpr int64 day_ms = INT64CONST(86400000);
constexpr int64 month_ms = 30 * day_ms;
constexpr int64 year_ms = 365 * day_ms;

struct Unit {
    char designator;
    bool time; /* after the T */
    int32 months;
    int64 ms;
};
constexpr Unit units[] = {
    {'Y', false, MONTHS_PER_YEAR, 0}, {'M', false, 1, 0},    {'W', false, 0, 7 * day_ms}, {'D', false, 0, day_ms},
    {'H', true, 0, 3600000},          {'M', true, 0, 60000}, {'S', true, 0, 1000},
};

constexpr int64 too_long_ms = max_duration_ms + 1;
constexpr int32 too_many_months = 101 * MONTHS_PER_YEAR;

/* Adds so many millionths of a unit; never down to nothing. A part of a month is so much of 30 days. */
void
add_fraction(const Unit &unit, int64 millionths, Duration &out)
{
    out.months += static_cast<int32>(unit.months * millionths / 1000000);
    int64 rest = unit.months > 0 ? unit.months * millionths % 1000000 * month_ms : millionths * unit.ms;
    out.ms += (rest + 999999) / 1000000;
}

/* A fraction may stand only in the last component. Neither part grows beyond what is too long. */
bool
read_duration(Cursor c, Duration &out)
{
    size_t unit = 0;
    bool time = false;
    bool last = false;
    bool any = false;

    out = {};
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
        const Unit &found = units[unit];
        if (found.months > 0)
            out.months = static_cast<int32>(
                std::min<int64>(too_many_months, out.months + std::min<int64>(whole, too_many_months) * found.months));
        else
            out.ms = std::min(too_long_ms, out.ms + (whole > too_long_ms / found.ms ? too_long_ms : whole * found.ms));
        add_fraction(found, millionths, out);
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

/* Not bounded: neither overflows. */
int64
length_ms(const Duration &duration)
{
    return duration.months / MONTHS_PER_YEAR * year_ms + duration.months % MONTHS_PER_YEAR * month_ms + duration.ms;
}

Duration
duration_of(const Interval *interval)
{
    return {interval->month, interval->day * day_ms + interval->time / 1000 + (interval->time % 1000 > 0)};
}

Duration
interval_arg(const Interval *interval, const char *field)
{
    Duration duration = duration_of(interval);
    int64 ms = length_ms(duration);
    (void)refuse_too_long(ms, Code::invalid_payload, field);
    if (ms < 0)
        raise_field(Code::invalid_payload, field, "Give a duration of zero or more.", "%s must not be negative", field);
    return duration;
}

Duration
duration_in(std::string_view text, Code code, const char *field)
{
    Duration duration;
    if (!read_duration(cursor(text), duration))
        raise_field(code, field, "Give an ISO 8601 duration, such as PT30S, PT1.5S, P7D or P2W.",
                    "%s is not a duration: \"%s\"", field, clipped(text));
    return duration;
}

} // namespace

int64
fixed_ms(const Duration &duration)
{
    return std::min(length_ms(duration), max_duration_ms);
}

TimestampTz
time_after(TimestampTz start, const Duration &duration)
{
    pg_tm tm;
    fsec_t micros;
    TimestampTz at = start;
    if (duration.months != 0 && timestamp2tm(start, nullptr, &tm, &micros, nullptr, nullptr) == 0) {
        int month = tm.tm_mon - 1 + duration.months % MONTHS_PER_YEAR;
        tm.tm_year += duration.months / MONTHS_PER_YEAR + (month >= MONTHS_PER_YEAR) - (month < 0);
        tm.tm_mon = (month + MONTHS_PER_YEAR) % MONTHS_PER_YEAR + 1;
        tm.tm_mday = std::min(tm.tm_mday, day_tab[isleap(tm.tm_year)][tm.tm_mon - 1]);
        if (tm2timestamp(&tm, micros, nullptr, &at) != 0)
            return start + fixed_ms(duration) * 1000;
    }
    return at + duration.ms * 1000;
}

int64
refuse_too_long(int64 ms, Code code, const char *field)
{
    if (ms > max_duration_ms)
        raise_field(code, field, "No duration is longer than 100 years.", "%s is longer than 100 years", field);
    return ms;
}

TimestampTz
parse_timestamp(std::string_view text, TimestampTz now, const char *field)
{
    TimestampTz at;
    Duration duration;

    if (text.starts_with("+P")) {
        if (read_duration(cursor(text.substr(1)), duration)) {
            (void)refuse_too_long(length_ms(duration), Code::invalid_payload, field);
            return time_after(now, duration);
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
                 : c.accept('d') ? day_ms
                 : c.accept('w') ? 7 * day_ms
                                 : 0;
    ms = unit == 0 || count > max_duration_ms / unit ? too_long_ms : count * unit;
    return unit != 0 && c.done();
}

Duration
parse_duration(std::string_view text, Code code, const char *field)
{
    Duration duration = duration_in(text, code, field);
    (void)refuse_too_long(length_ms(duration), code, field);
    return duration;
}

int64
parse_duration_ms(std::string_view text, Code code, const char *field)
{
    return fixed_ms(parse_duration(text, code, field));
}

Duration
stored_duration(std::string_view text, Code code, const char *field)
{
    Duration duration = duration_in(text, code, field);
    return length_ms(duration) > max_duration_ms ? Duration{0, too_long_ms} : duration;
}

int64
interval_ms(const Interval *interval)
{
    return std::clamp(length_ms(duration_of(interval)), -max_duration_ms, max_duration_ms);
}

int64
interval_arg_ms(const Interval *interval, const char *field)
{
    return fixed_ms(interval_arg(interval, field));
}

TimestampTz
interval_arg_end(TimestampTz start, const Interval *interval, const char *field)
{
    return std::max(start, time_after(start, interval_arg(interval, field)));
}

int64
interval_arg_from(TimestampTz start, const Interval *interval, const char *field)
{
    return (interval_arg_end(start, interval, field) - start) / 1000;
}

Interval *
interval_of(int64 ms)
{
    auto *interval = static_cast<Interval *>(palloc0(sizeof(Interval)));
    interval->time = ms * 1000;
    return interval;
}

Interval *
interval_of(const Duration &duration)
{
    Interval *interval = interval_of(duration.ms);
    interval->month = duration.months;
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
