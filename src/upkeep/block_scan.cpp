/*
 * block_scan.cpp: see block_scan.h.
 *
 * A round takes a twentieth of the shortest retention that any queue has, so nothing is kept longer by more than that,
 * unless the table is so large that the bound on blocks in one step says otherwise.
 */
#include "ojs/upkeep/block_scan.h"

#include "ojs/pg/guard.h"
#include "ojs/pg/settings.h"
#include "ojs/job/attributes.h"
#include "ojs/job/envelope.h"
#include "ojs/pg/json.h"
#include "ojs/queue/queue.h"
#include "ojs/store/spi.h"

namespace ojs
{

namespace
{

constexpr BlockNumber step = 64;
constexpr int64 shortest_round_us = 5 * USECS_PER_SEC;
constexpr int64 longest_pause_us = 60 * USECS_PER_SEC; /* tables grow */

constinit Statement where_it_is = {
    "select block, at from ojs_store.retention_cursor where what = $1", {TEXTOID}, nullptr};
constinit Statement take_it = {
    "select block, at from ojs_store.retention_cursor where what = $1 for update skip locked", {TEXTOID}, nullptr};
constinit Statement move_it = {
    "update ojs_store.retention_cursor set block = $2, at = $3, removed_to = greatest(removed_to, $4) where what = $1",
    {TEXTOID, INT8OID, TIMESTAMPTZOID, TIMESTAMPTZOID},
    nullptr};

/* From one end of the index queue_retention. */
constinit Statement shortest_stated = {R"sql(
    select min(ojs_store.shortest_retention(config)) from ojs_store.queue
    where config ? 'retention' and state <> 'deleted'
)sql",
                                       {},
                                       nullptr};

/* The shortest that any queue or the default policy asks for. */
int64
shortest_retention_ms()
{
    int64 shortest = std::min({kept_completed_ms, kept_discarded_ms, kept_cancelled_ms});
    with_spi([&] {
        bool none;
        plan_by_index();
        execute_latest(shortest_stated);
        Datum stated = cell(0, 1, &none);
        if (!none)
            shortest = std::min(shortest, DatumGetInt64(stated));
    });
    return shortest;
}

int64
round_us()
{
    static int64 known_us;
    static uint64 known_queues = PG_UINT64_MAX;
    uint64 queues = store::catalog_generation(store::Rel::queue);
    if (queues != known_queues) {
        known_us = std::max(shortest_round_us, shortest_retention_ms() * 1000 / 20);
        known_queues = queues;
    }
    return known_us;
}

bool
read_row(Statement &statement, const char *what, int64 &block, TimestampTz &at)
{
    if (execute_latest(statement, {CStringGetTextDatum(what)}) == 0)
        return false;
    bool null;
    block = DatumGetInt64(cell(0, 1, &null));
    at = DatumGetTimestampTz(cell(0, 2, &null));
    return true;
}

void
move(const char *what, BlockNumber block, TimestampTz at, std::optional<TimestampTz> newest)
{
    execute_latest(move_it, {CStringGetTextDatum(what), Int64GetDatum(block), TimestampTzGetDatum(at),
                             newest ? SpiArg(TimestampTzGetDatum(*newest)) : SpiArg(nullptr)});
}

/* How many of `of` blocks are due, by when the last step was. */
BlockNumber
due(TimestampTz at, BlockNumber of, int64 round, TimestampTz now)
{
    if (at > now || at < now - round)
        return of;
    return static_cast<BlockNumber>(static_cast<double>(now - at) / static_cast<double>(round) * of);
}

TimestampTz
next_look(TimestampTz at, BlockNumber of, TimestampTz now)
{
    double part = static_cast<double>(std::min(step, of)) / std::max<BlockNumber>(of, 1);
    auto pause_us = static_cast<int64>(static_cast<double>(round_us()) * part);
    return std::clamp(at + pause_us, now, now + longest_pause_us);
}

} // namespace

Stretch
next_stretch(BlockScan &scan, TimestampTz now)
{
    uint64 queues = store::catalog_generation(store::Rel::queue);
    if (now >= scan.looked_at && now < scan.look_at && queues == scan.queues && clock_generation == scan.clock)
        return {};

    store::Table table = store::open(scan.rel, AccessShareLock);
    BlockNumber of = store::blocks_of(table);
    store::close(table);
    int64 block = 0;
    TimestampTz at = now;
    BlockNumber n = 0;
    bool ours = false;
    int64 round = round_us();
    with_spi([&] {
        if (of == 0 || !read_row(where_it_is, scan.what, block, at))
            return;
        n = due(at, of, round, now);
        if (n < std::min(step, of))
            n = 0;
        ours = n > 0 && read_row(take_it, scan.what, block, at);
    });
    scan.looked_at = now;
    scan.queues = queues;
    scan.clock = clock_generation;
    scan.look_at = n > 0 ? now : next_look(at, of, now);
    if (!ours)
        return {0, 0, of, of == 0};
    BlockNumber first = block < of ? static_cast<BlockNumber>(block) : 0;
    return {first, std::min({std::max(n, std::min(step, of)), scan.most, of - first}), of, false};
}

void
stretch_done(BlockScan &scan, const Stretch &stretch, BlockNumber next, bool dense, std::optional<TimestampTz> newest,
             TimestampTz now)
{
    TimestampTz at = dense ? now - round_us() : now;
    with_spi([&] { move(scan.what, next < stretch.of ? next : 0, at, newest); });
    scan.look_at = dense ? now : next_look(at, stretch.of, now);
}

bool
alone_with(const char *what)
{
    int64 block;
    TimestampTz at;
    return read_row(take_it, what, block, at);
}

void
note_removed(const char *what, TimestampTz newest, TimestampTz now)
{
    move(what, 0, now, newest);
}

} // namespace ojs

using namespace ojs;

/* ojs_store.shortest_retention(config jsonb) returns bigint: in ms, null where none is stated. Completed jobs that are
 * not kept are removed by their ack. */
OJS_FUNCTION(ojs_shortest_retention)
{
    const Jsonb *config = PG_GETARG_JSONB_P(0);
    std::optional<int64> shortest;
    JsonbValue retention;
    if (find_member(root_of(config), "retention", retention) && is_object(retention))
        each_member(retention.val.binary.data, [&](std::string_view key, const JsonbValue &value) {
            int64 ms = fixed_ms(stored_duration(text_value(value, Code::invalid_payload, "retention"),
                                                Code::invalid_payload, "retention"));
            if (ms > 0 || key != "completed")
                shortest = std::min(shortest.value_or(ms), ms);
        });
    if (!shortest)
        PG_RETURN_NULL();
    PG_RETURN_INT64(*shortest);
}

/* ojs_store.longest_retry(config jsonb) returns bigint: how long discarded jobs may be retried by hand, in ms; null
 * where nothing is stated. */
OJS_FUNCTION(ojs_longest_retry)
{
    const JsonbContainer *config = root_of(PG_GETARG_JSONB_P(0));
    std::optional<int64> longest;
    JsonbValue retention;
    JsonbValue kept;
    auto take = [&longest](const JsonbValue &value) {
        constexpr const char *field = "retention";
        longest = std::max(
            longest.value_or(0),
            fixed_ms(stored_duration(text_value(value, Code::invalid_payload, field), Code::invalid_payload, field)));
    };
    if (find_member(config, "dead_letter_ttl", kept))
        take(kept);
    if (find_member(config, "retention", retention) && is_object(retention) &&
        find_member(retention.val.binary.data, "discarded", kept))
        take(kept);
    if (!longest)
        PG_RETURN_NULL();
    PG_RETURN_INT64(*longest);
}
