/*
 * cron_expression.cpp: reading cron expressions, and finding the next time that one means. Pure: no tables. Time zones
 * are PostgreSQL's.
 */
#include "ojs/upkeep/cron.h"

#include "ojs/job/envelope.h"

namespace ojs
{

namespace
{

/* --- reading --- */

enum class Part : uint8 { second, minute, hour, day, month, weekday };

struct Field {
    const char *name;
    int low;
    int high;
    const char *hint;
};

/* In the order of Part. */
constexpr Field fields[] = {
    {"second", 0, 59, "A second is 0 to 59, such as 0, 15-30, */10 or 0,30."},
    {"minute", 0, 59, "A minute is 0 to 59, such as 0, 15-30, */10 or 0,30."},
    {"hour", 0, 23, "An hour is 0 to 23, such as 9, 8-17, */2 or 9,18."},
    {"day of month", 1, 31,
     "A day of the month is 1 to 31, such as 1, 1-7, */2, L (the last), 15W (the nearest weekday) or LW."},
    {"month", 1, 12, "A month is 1 to 12 or JAN to DEC, such as 6, JAN-MAR or */3."},
    {"day of week", 0, 7,
     "A day of the week is 0 to 7 or SUN to SAT, such as MON-FRI, 5#3 (the third Friday) or 5L (the last)."},
};

constexpr std::string_view month_names[] = {"JAN", "FEB", "MAR", "APR", "MAY", "JUN",
                                            "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"};
constexpr std::string_view weekday_names[] = {"SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"};

struct Macro {
    std::string_view name;
    std::string_view meaning;
};
constexpr Macro macros[] = {
    {"@YEARLY", "0 0 1 1 *"}, {"@ANNUALLY", "0 0 1 1 *"}, {"@MONTHLY", "0 0 1 * *"}, {"@WEEKLY", "0 0 * * 0"},
    {"@DAILY", "0 0 * * *"},  {"@MIDNIGHT", "0 0 * * *"}, {"@HOURLY", "0 * * * *"},
};

constexpr size_t longest_expression = 1000;

constexpr uint64
bit(int n)
{
    return UINT64CONST(1) << n;
}

[[noreturn]] void
refuse(std::string_view text, const char *why, const char *hint)
{
    raise_field(Code::invalid_cron_expression, "cron", hint, "cron \"%s\" is no cron expression: %s", clipped(text),
                why);
}

struct Reader {
    std::string_view rest;

    bool done() const { return rest.empty(); }

    bool accept(char c)
    {
        if (!rest.starts_with(c))
            return false;
        rest.remove_prefix(1);
        return true;
    }

    bool number(int64 limit, int64 &out)
    {
        size_t n = 0;
        for (out = 0; n < rest.size() && rest[n] >= '0' && rest[n] <= '9'; n++)
            out = std::min(limit, out * 10 + (rest[n] - '0'));
        rest.remove_prefix(n);
        return n > 0;
    }

    /* The index of the name that comes next; -1: none of them does. */
    template <size_t N> int name(const std::string_view (&names)[N])
    {
        for (size_t i = 0; i < N; i++)
            if (rest.starts_with(names[i])) {
                rest.remove_prefix(names[i].size());
                return static_cast<int>(i);
            }
        return -1;
    }

    /* The next word, and what separates it from the one after; empty at the end. */
    std::string_view word()
    {
        constexpr std::string_view space = " \t";
        size_t begin = std::min(rest.find_first_not_of(space), rest.size());
        size_t end = std::min(rest.find_first_of(space, begin), rest.size());
        std::string_view found(rest.data() + begin, end - begin);
        rest.remove_prefix(end);
        return found;
    }
};

/* A number, or a name where the field has names. */
bool
read_value(Reader &item, Part part, int &value, bool &named)
{
    constexpr int64 too_high = 1000;
    int64 number;

    value = part == Part::month ? item.name(month_names) + 1 : part == Part::weekday ? item.name(weekday_names) : -1;
    named = value > (part == Part::month ? 0 : -1);
    if (named)
        return true;
    const Field &field = fields[static_cast<int>(part)];
    if (!item.number(too_high, number) || number < field.low || number > field.high)
        return false;
    value = static_cast<int>(number);
    return true;
}

uint64 &
bits_of(CronExpression &cron, Part part)
{
    switch (part) {
    case Part::second:
        return cron.seconds;
    case Part::minute:
        return cron.minutes;
    case Part::hour:
        return cron.hours;
    case Part::day:
        return cron.days;
    case Part::month:
        return cron.months;
    case Part::weekday:
        break;
    }
    return cron.weekdays;
}

/* What only days have: L, LW, 15W; 5L, 5#3. */
bool
read_special(Reader &item, Part part, int value, CronExpression &cron)
{
    int64 n;

    if (part == Part::day && item.accept('W'))
        cron.nearest |= bit(value);
    else if (part == Part::weekday && item.accept('L'))
        cron.last |= bit(value % 7);
    else if (part == Part::weekday && item.accept('#') && item.number(10, n) && n >= 1 && n <= 5)
        cron.nth |= bit(static_cast<int>(n - 1) * 7 + value % 7);
    else
        return false;
    return item.done();
}

/* One item of a field's list: *, 5, 5-9, each with /step; or a special one. */
bool
read_item(Reader item, Part part, CronExpression &cron)
{
    const Field &field = fields[static_cast<int>(part)];
    int highest = part == Part::weekday ? 6 : field.high;
    int low = field.low;
    int high = highest;
    int64 step = 1;
    bool named = false;
    bool all = item.accept('*');

    if (!all) {
        if (part == Part::day && item.accept('L')) {
            (item.accept('W') ? cron.last_workday : cron.last_day) = true;
            return item.done();
        }
        if (!read_value(item, part, low, named))
            return false;
        high = low;
        if (item.accept('-')) {
            if (!read_value(item, part, high, named))
                return false;
            if (named && part == Part::weekday && high == 0 && low > 0) /* FRI-SUN */
                high = 7;
            if (high < low)
                return false;
        } else if (item.rest.starts_with('/'))
            high = std::max(low, highest);
        else if (!item.done())
            return read_special(item, part, low, cron);
    }
    if (item.accept('/') && (!item.number(1000, step) || step < 1 || step > highest - field.low + 1))
        return false;
    for (int value = low; value <= high; value += static_cast<int>(step))
        bits_of(cron, part) |= bit(part == Part::weekday ? value % 7 : value);
    if (all && step == 1 && part == Part::day)
        cron.any_day = true;
    if (all && step == 1 && part == Part::weekday)
        cron.any_weekday = true;
    return item.done();
}

void
read_field(std::string_view text, std::string_view word, Part part, CronExpression &cron)
{
    const Field &field = fields[static_cast<int>(part)];
    std::string_view list = word;

    for (;;) {
        size_t comma = std::min(list.find(','), list.size());
        if (!read_item({std::string_view(list.data(), comma)}, part, cron))
            refuse(text, psprintf("the %s \"%s\"", field.name, clipped(word)), field.hint);
        if (comma == list.size())
            return;
        list.remove_prefix(comma + 1);
    }
}

/* "1h30m": what Go calls a duration, in h, m, s and ms. */
int64
read_every(std::string_view text, Reader duration)
{
    struct Unit {
        std::string_view name;
        int64 us;
    };
    constexpr Unit units[] = {{"MS", 1000}, {"H", USECS_PER_HOUR}, {"M", USECS_PER_MINUTE}, {"S", USECS_PER_SEC}};
    constexpr int64 longest_us = max_duration_ms * 1000;
    int64 sum = 0;

    do {
        int64 whole;
        double fraction = 0;
        const Unit *unit = nullptr;
        bool good = duration.number(longest_us, whole);
        if (good && duration.accept('.')) {
            size_t before = duration.rest.size();
            int64 digits;
            good = duration.number(1000000000, digits);
            fraction = static_cast<double>(digits) / std::pow(10.0, static_cast<double>(before - duration.rest.size()));
        }
        for (const Unit &candidate : units)
            if (unit == nullptr && duration.rest.starts_with(candidate.name))
                unit = &candidate;
        if (!good || unit == nullptr)
            refuse(text, "@every needs a duration",
                   "Give hours, minutes and seconds, such as @every 1h30m or @every 45s.");
        duration.rest.remove_prefix(unit->name.size());
        if (whole > longest_us / unit->us)
            refuse(text, "@every takes at most 100 years", "Give a shorter time, such as @every 24h.");
        sum += whole * unit->us + static_cast<int64>(fraction * static_cast<double>(unit->us));
        if (sum > longest_us)
            refuse(text, "@every takes at most 100 years", "Give a shorter time, such as @every 24h.");
    } while (!duration.done());
    if (sum == 0)
        refuse(text, "@every needs a duration above zero", "Give one, such as @every 30s.");
    return std::max<int64>(sum, USECS_PER_SEC); /* nothing is looked at more often than once a second */
}

} // namespace

CronExpression
parse_cron(std::string_view text)
{
    constexpr int most_fields = 6;
    CronExpression cron = {};
    std::string_view words[most_fields + 1];
    int n = 0;

    if (text.size() > longest_expression)
        refuse(text, "it is too long", "A cron expression has at most 1000 characters.");
    char *upper = pnstrdup(text.data(), text.size());
    for (char *c = upper; *c != '\0'; c++)
        *c = static_cast<char>(pg_ascii_toupper(static_cast<unsigned char>(*c)));

    Reader reader = {upper};
    while (n <= most_fields && !(words[n] = reader.word()).empty())
        n++;
    if (n == 2 && words[0] == "@EVERY") {
        cron.every_us = read_every(text, {words[1]});
        return cron;
    }
    if (n == 1 && words[0].starts_with('@')) {
        for (const Macro &macro : macros)
            if (macro.name == words[0])
                return parse_cron(macro.meaning);
        refuse(text, "unknown name",
               "Names are @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly and @every.");
    }
    if (n != most_fields - 1 && n != most_fields)
        refuse(text, "it needs five or six fields",
               "Give minute, hour, day of month, month and day of week, such as 30 9 * * MON-FRI; seconds may stand in "
               "front.");
    if (n < most_fields)
        cron.seconds = bit(0);
    for (int i = 0; i < n; i++)
        read_field(text, words[i], static_cast<Part>(i + most_fields - n), cron);
    return cron;
}

/* --- the next time --- */

namespace
{

/* Seconds of a local calendar, counted as if it were UTC. */
using LocalTime = int64;

constexpr LocalTime
local_time(int julian_day, int second)
{
    return static_cast<LocalTime>(julian_day - UNIX_EPOCH_JDATE) * SECS_PER_DAY + second;
}

LocalTime
offset_at(const pg_tz *zone, pg_time_t at)
{
    return pg_localtime(&at, zone)->tm_gmtoff;
}

/*
 * The first moment at which clocks show a local time; false: they never do, and `at` is when they are put forward over
 * it. The offsets a day before and a day after tell: between them clocks are moved once at most.
 */
bool
moment_of(const pg_tz *zone, LocalTime local, pg_time_t &at)
{
    LocalTime before = offset_at(zone, local - SECS_PER_DAY);
    LocalTime after = offset_at(zone, local + SECS_PER_DAY);

    at = local - before;
    if (before == after || offset_at(zone, at) == before)
        return true; /* where it comes twice, the offset before the change shows it first */
    at = local - after;
    if (offset_at(zone, at) == after)
        return true;

    long offset;
    int dst;
    pg_time_t moved;
    pg_time_t from = at;
    if (pg_next_dst_boundary(&from, &offset, &dst, &moved, &offset, &dst, zone) == 1)
        at = moved;
    return false;
}

int
month_length(int year, int month)
{
    return day_tab[isleap(year)][month - 1];
}

bool
nearest_workday_matches(uint64 nearest, int day, int weekday, int length)
{
    /* A weekend's days go to the Friday before or the Monday after, but not into another month. */
    for (int n = 1; nearest != 0 && n <= length; n++) {
        if ((nearest & bit(n)) == 0)
            continue;
        int its_weekday = (weekday + 35 + n - day) % 7;
        int target = its_weekday == 6 ? (n > 1 ? n - 1 : n + 2) : its_weekday == 0 ? (n < length ? n + 1 : n - 2) : n;
        if (target == day)
            return true;
    }
    return false;
}

bool
day_matches(const CronExpression &cron, int julian_day, int day, int length)
{
    int weekday = j2day(julian_day);
    bool by_month = (cron.days & bit(day)) != 0 || (cron.last_day && day == length) ||
                    nearest_workday_matches(cron.nearest, day, weekday, length) ||
                    (cron.last_workday && nearest_workday_matches(bit(length), day, weekday, length));
    bool by_week = (cron.weekdays & bit(weekday)) != 0 || (cron.nth & bit((day - 1) / 7 * 7 + weekday)) != 0 ||
                   ((cron.last & bit(weekday)) != 0 && day + 7 > length);

    if (cron.any_day || cron.any_weekday)
        return (cron.any_day || by_month) && (cron.any_weekday || by_week);
    return by_month || by_week;
}

/* The first second of a day, from `from` on, that the expression allows; false: none. */
bool
next_second(const CronExpression &cron, int &from)
{
    for (int hour = from / SECS_PER_HOUR; hour < HOURS_PER_DAY; hour++) {
        if ((cron.hours & bit(hour)) == 0)
            continue;
        int in_hour = std::max(from - hour * SECS_PER_HOUR, 0);
        for (int minute = in_hour / SECS_PER_MINUTE; minute < MINS_PER_HOUR; minute++) {
            if ((cron.minutes & bit(minute)) == 0)
                continue;
            for (int second = std::max(in_hour - minute * SECS_PER_MINUTE, 0); second < SECS_PER_MINUTE; second++)
                if ((cron.seconds & bit(second)) != 0) {
                    from = hour * SECS_PER_HOUR + minute * SECS_PER_MINUTE + second;
                    return true;
                }
        }
    }
    return false;
}

} // namespace

CronNext
next_run(const CronExpression &cron, const pg_tz *zone, TimestampTz after)
{
    constexpr int calendar_repeats_after = 146097; /* days: what does not come in 400 years never comes */
    CronNext next = {};
    pg_time_t start = timestamptz_to_time_t(after);
    if (time_t_to_timestamptz(start) > after)
        start--; /* before 2000 it rounds up */
    struct pg_tm tm = *pg_localtime(&start, zone);
    int julian = date2j(tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday);
    int second = tm.tm_hour * SECS_PER_HOUR + tm.tm_min * SECS_PER_MINUTE + std::min(tm.tm_sec, 59);
    int end = julian + calendar_repeats_after;
    int year, month, day;

    for (j2date(julian, &year, &month, &day); julian < end; second = 0) {
        int length = month_length(year, month);
        if ((cron.months & bit(month)) == 0) {
            julian += length - day + 1;
            day = length + 1;
        } else {
            for (; day_matches(cron, julian, day, length) && next_second(cron, second); second++) {
                pg_time_t moment;
                bool shown = moment_of(zone, local_time(julian, second), moment);
                TimestampTz at = time_t_to_timestamptz(moment);
                if (at <= after)
                    continue;
                if (shown) {
                    next.run_at = at;
                    return next;
                }
                if (!next.skip_at) {
                    next.skip_at = at;
                    next.first_skipped = {second % 60, second / 60 % 60, second / 3600, day, month, year, 0, 0, 0,
                                          0,           nullptr};
                }
                if (*next.skip_at == at)
                    next.skipped++;
                CHECK_FOR_INTERRUPTS();
            }
            julian++;
            day++;
        }
        if (day > length) {
            day = 1;
            month = month % MONTHS_PER_YEAR + 1;
            year += month == 1;
        }
    }
    return next;
}

} // namespace ojs
