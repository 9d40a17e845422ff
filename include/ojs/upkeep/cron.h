/*
 * cron.h: cron expressions, and the entries that fall due. Entries themselves are SQL: sql/cron.sql.
 */
#pragma once

#include "ojs/pg/error.h"

namespace ojs
{

/* A bit per value that a field allows. */
struct CronExpression {
    int64 every_us; /* of "@every …"; 0: by the calendar, and the rest counts */
    uint64 seconds;
    uint64 minutes;
    uint64 hours;
    uint64 months;     /* from bit 1 */
    uint64 days;       /* of the month, from bit 1 */
    uint64 nearest;    /* days of the month "nW": the weekday nearest to day n */
    bool last_day;     /* L */
    bool last_workday; /* LW */
    uint64 weekdays;   /* from bit 0, Sunday */
    uint64 nth;        /* bit 7 × (n − 1) + weekday: "weekday#n" */
    uint64 last;       /* weekdays "nL": the last of the month */
    bool any_day;      /* one of the two day fields is "*": then the other alone decides, else either may match */
    bool any_weekday;
};
static_assert(std::is_trivially_destructible_v<CronExpression>);

/* Raises INVALID_CRON_EXPRESSION. */
CronExpression parse_cron(std::string_view text);

/* What comes after a moment. A local time that does not exist, because clocks are put forward over it, is no run. */
struct CronNext {
    std::optional<TimestampTz> run_at;  /* none: never again */
    std::optional<TimestampTz> skip_at; /* when clocks are put forward over due local times, if that is before run_at */
    int skipped;                        /* how many they are */
    struct pg_tm first_skipped;
};
static_assert(std::is_trivially_destructible_v<CronNext>);

/* By the calendar only. A local time that comes twice, because clocks are put back, runs the first time. */
CronNext next_run(const CronExpression &cron, const pg_tz *zone, TimestampTz after);

/* --- entries (cron.cpp) --- */

/* Runs at most `limit` entries that are due, and releases jobs that waited for the run before theirs. Returns the
 * number of entries that were due. A transaction with one snapshot for all of it (repeatable read) leaves them to
 * others. */
int run_crons(TimestampTz now, int limit);

/* When the next entry falls due, by the clock of ojs; DT_NOEND: none does. */
TimestampTz first_cron();

} // namespace ojs
