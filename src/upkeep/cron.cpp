/*
 * cron.cpp: cron entries on their way from SQL to SQL: what an expression means next, and running what is due. The
 * entries, and what a run of one is: sql/cron.sql.
 */
#include "ojs/upkeep/cron.h"

#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/job/envelope.h"
#include "ojs/queue/maintenance.h"
#include "ojs/state/members.h"
#include "ojs/store/spi.h"

namespace ojs
{

namespace
{

constinit Statement run_due = {R"sql(
    select ojs_store.run_crons($1, $2)
    where exists (select from ojs_store.cron where due_at <= $1)
        or exists (select from (select null::timestamptz as planned_at) not_in_0_1_0
            where exists (select from ojs_store.cron where planned_at > $1))
        or exists (select from ojs_store.cron_run where waiting)
)sql",
                               {TIMESTAMPTZOID, INT4OID},
                               nullptr};

constinit Statement next_due = {"select min(due_at) from ojs_store.cron", {}, nullptr};

/* The zones and links of the IANA database whose names are one word, but for abbreviations such as EST. */
constexpr std::string_view one_word_zones[] = {
    "Cuba",     "Egypt",   "Eire",  "GB",        "GB-Eire", "GMT", "Greenwich", "Hongkong",  "Iceland", "Iran",
    "Israel",   "Jamaica", "Japan", "Kwajalein", "Libya",   "NZ",  "NZ-CHAT",   "Navajo",    "PRC",     "Poland",
    "Portugal", "ROC",     "ROK",   "Singapore", "Turkey",  "UCT", "UTC",       "Universal", "W-SU",    "Zulu",
};

/*
 * A name of the IANA database. The server takes much more for a zone: abbreviations, which change their meaning twice a
 * year, offsets, which have digits, and copies of the database that count leap seconds or do not.
 */
const pg_tz *
zone_named(text *name)
{
    std::string_view given = view(name);
    bool region = given.find('/') != given.npos && given.size() <= TZ_STRLEN_MAX &&
                  pg_strncasecmp(given.data(), "posix/", std::min<size_t>(given.size(), 6)) != 0 &&
                  pg_strncasecmp(given.data(), "right/", std::min<size_t>(given.size(), 6)) != 0;

    for (char c : given)
        region &= (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-' || c == '/';
    bool known = region || std::ranges::find(one_word_zones, given) != std::end(one_word_zones);
    const pg_tz *zone = known ? pg_tzset(text_to_cstring(name)) : nullptr;
    if (zone == nullptr || !pg_tz_acceptable(const_cast<pg_tz *>(zone)))
        raise_field(Code::invalid_payload, "timezone",
                    "Name a zone of the IANA database, such as Europe/Berlin, or UTC.",
                    "timezone is no IANA time zone: \"%s\"", clipped(given));
    return zone;
}

} // namespace

int
run_crons(TimestampTz now, int limit)
{
    int due = 0;

    if (IsolationUsesXactSnapshot() || in_maintenance())
        return 0;
    bool first = begin_workflow_work();
    with_spi([&] {
        bool null;
        if (execute(run_due, {TimestampTzGetDatum(now), Int32GetDatum(limit)}) > 0)
            due = DatumGetInt32(cell(0, 1, &null));
    });
    end_workflow_work(first);
    advance_workflows(); /* those whose jobs a run has cancelled */
    return due;
}

TimestampTz
first_cron()
{
    TimestampTz due = DT_NOEND;
    with_spi([&due] {
        bool null;
        (void)execute(next_due);
        Datum at = cell(0, 1, &null);
        if (!null)
            due = DatumGetTimestampTz(at);
    });
    return due;
}

} // namespace ojs

using namespace ojs;

/* ojs_store.cron_zone(name text) returns text: as the database of time zones spells it */
OJS_FUNCTION(ojs_cron_zone)
{
    PG_RETURN_TEXT_P(cstring_to_text(pg_get_timezone_name(const_cast<pg_tz *>(zone_named(PG_GETARG_TEXT_PP(0))))));
}

/* ojs_store.cron_set_back(timezone text, after timestamptz, out at timestamptz, out length interval) */
OJS_FUNCTION(ojs_cron_set_back)
{
    constexpr int most_changes = 8;
    const pg_tz *zone = zone_named(PG_GETARG_TEXT_PP(0));
    pg_time_t from = timestamptz_to_time_t(PG_GETARG_TIMESTAMPTZ(1));
    Datum values[2] = {};
    bool nulls[2] = {true, true};
    TupleDesc desc;
    if (get_call_result_type(fcinfo, nullptr, &desc) != TYPEFUNC_COMPOSITE)
        elog(ERROR, "return type must be a row type");
    for (int i = 0; i < most_changes && nulls[0]; i++) {
        long before, after;
        int dst;
        pg_time_t moved;
        if (pg_next_dst_boundary(&from, &before, &dst, &moved, &after, &dst, zone) != 1)
            break;
        if (after < before) {
            values[0] = TimestampTzGetDatum(time_t_to_timestamptz(moved));
            values[1] = IntervalPGetDatum(interval_of((before - after) * INT64CONST(1000)));
            nulls[0] = nulls[1] = false;
        }
        from = moved;
    }
    PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

/* ojs_store.cron_next(expression text, timezone text, anchor timestamptz, after timestamptz,
 *     out run_at timestamptz, out skip_at timestamptz, out skipped_local text, out skipped int) */
OJS_FUNCTION(ojs_cron_next)
{
    CronExpression cron = parse_cron(view(PG_GETARG_TEXT_PP(0)));
    const pg_tz *zone = zone_named(PG_GETARG_TEXT_PP(1));
    TimestampTz anchor = PG_GETARG_TIMESTAMPTZ(2);
    TimestampTz after = PG_GETARG_TIMESTAMPTZ(3);
    CronNext next = {};

    if (cron.every_us == 0)
        next = next_run(cron, zone, after);
    else { /* the anchor may be a time to come, by a clock that was put right */
        int64 passed = (after - anchor) / cron.every_us - ((after - anchor) % cron.every_us < 0);
        next.run_at = anchor + (passed + 1) * cron.every_us;
    }

    TupleDesc desc;
    Datum values[4] = {};
    bool nulls[4] = {!next.run_at, !next.skip_at, !next.skip_at, !next.skip_at};
    if (get_call_result_type(fcinfo, nullptr, &desc) != TYPEFUNC_COMPOSITE)
        elog(ERROR, "return type must be a row type");
    if (next.run_at)
        values[0] = TimestampTzGetDatum(*next.run_at);
    if (next.skip_at) {
        const struct pg_tm &tm = next.first_skipped;
        values[1] = TimestampTzGetDatum(*next.skip_at);
        values[2] = PointerGetDatum(cstring_to_text(psprintf("%04d-%02d-%02dT%02d:%02d:%02d", tm.tm_year, tm.tm_mon,
                                                             tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec)));
        values[3] = Int32GetDatum(next.skipped);
    }
    PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}
