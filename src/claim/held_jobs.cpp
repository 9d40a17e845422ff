/*
 * held_jobs.cpp: see held_jobs.h. All of it runs in the claim's turn at the limits (limits/rate_limits.h), so nobody
 * else puts jobs into lines at the same time.
 */
#include "ojs/claim/held_jobs.h"

#include "ojs/limits/held_position.h"
#include "ojs/state/status.h"

namespace ojs
{

namespace
{

constexpr int most_moved = 2000;  /* by one claim */
constexpr int few_lines = 16;     /* so many are looked at by every claim, … */
constexpr int64 us_per_line = 50; /* … more of them once in so many times that */

/* The first job of a line that may start, as far as the walk knows. */
struct Head {
    ReadyRow row;
    ItemPointerData tid;
};

void
set_position_keys(ScanKey keys, int64 queue, int16 npriority, int64 from, int64 to)
{
    ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(queue));
    ScanKeyInit(&keys[1], 2, BTEqualStrategyNumber, F_INT2EQ, Int16GetDatum(npriority));
    ScanKeyInit(&keys[2], 3, BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(from));
    ScanKeyInit(&keys[3], 3, BTLessEqualStrategyNumber, F_INT8LE, Int64GetDatum(to));
}

bool
has_limits(const Walk &walk, int queue_position, const ReadyRow &row)
{
    return (row.flags & job_limits) || walk.request.queues[queue_position].limited;
}

/*
 * Goes on with rows of one line, or, where `from` is the end of one, with the next line. Returns true at a row that may
 * start; else `from` is past the line, or PG_INT64_MAX if there is none.
 */
bool
next_in_line(Walk &walk, store::Scan &scan, int queue_position, int16 npriority, int64 *from, Head *head)
{
    ScanKeyData keys[4];
    store::Row seen;
    int64 line = 0;

    set_position_keys(keys, walk.request.queues[queue_position].id, npriority, *from, PG_INT64_MAX);
    store::rescan(scan, keys, 4);
    while ((seen = store::next(scan)) != store::Row::none) {
        ReadyRow row;
        read(walk.tables.ready().slot, row);
        if (line == 0)
            line = line_at(row.position);
        if (line_at(row.position) != line) {
            *from = end_of_line(line) + 1;
            return false;
        }
        if (seen != store::Row::live)
            continue;
        walk.limits.closed = 0;
        if (!has_limits(walk, queue_position, row) || within_limits(walk, queue_position, row, &scan.tid)) {
            if (walk.versions != nullptr && !takes_job(walk.tables, *walk.versions, row))
                continue;
            *head = {row, scan.tid};
            return true;
        }
        if (walk.limits.closed != 0 && line_of(walk.limits.closed) == line) {
            *from = line > PG_INT64_MAX - position_bits - 1 ? PG_INT64_MAX : end_of_line(line) + 1;
            return false;
        }
        note_held(walk, queue_position, row, scan.tid);
    }
    *from = PG_INT64_MAX;
    return false;
}

/* Whether jobs that wait for this limit may line up here: nobody is there, or such jobs are. */
bool
may_line_up(Walk &walk, store::Scan &scan, const HeldJob &job)
{
    ScanKeyData keys[4];
    store::Row seen;
    int64 line = line_of(job.limit);
    const Queue &queue = walk.request.queues[job.queue_position];

    set_position_keys(keys, queue.id, job.row.npriority, line, end_of_line(line));
    store::rescan(scan, keys, 4);
    while ((seen = store::next(scan)) != store::Row::none) {
        ReadyRow row;
        JobRow envelope;
        TimestampTz again_at;
        read(walk.tables.ready().slot, row);
        if (seen == store::Row::leaving || !try_read_job(walk.tables, row.job_id, row.job_tid, envelope))
            continue;
        (void)may_start(walk.limits, queue, envelope, &again_at);
        return walk.limits.closed == job.limit;
    }
    return true;
}

} // namespace

void
walk_lines(Walk &walk, store::Scan &scan, int queue_position, Level &level, bool all)
{
    bool forward = level.looked_at <= walk.now;
    if (level.looked_at == walk.now && !walk.request.may_wait)
        return; /* earlier in this claim; one that goes on to wait must have looked since it said so */
    if (!all && forward && walk.now - level.looked_at < us_per_line * level.lines && level.lines > few_lines)
        return;
    if (!all && forward && level.lines == 0 && walk.now - level.looked_at < 100 * 1000)
        return;
    level.lines = 0;

    int room = 16;
    int n = 0;
    auto *heads = static_cast<Head *>(palloc(sizeof(Head) * room));
    for (int64 from = first_held; from < PG_INT64_MAX;) {
        Head head;
        bool found = next_in_line(walk, scan, queue_position, level.npriority, &from, &head);
        if (found || from < PG_INT64_MAX)
            level.lines++;
        if (!found)
            continue;
        if (n == room)
            heads = static_cast<Head *>(repalloc(heads, sizeof(Head) * (room *= 2)));
        heads[n++] = head;
        from = end_of_line(head.row.position);
        from = from == PG_INT64_MAX ? from : from + 1;
    }
    level.looked_at = walk.now; /* as it is once it was our turn */
    while (n > 0 && walk.n < walk.most) {
        Head *first = std::min_element(heads, heads + n, [](const Head &a, const Head &b) {
            return own_position(a.row.position) < own_position(b.row.position);
        });
        Head head = *first;
        int before = walk.n;
        walk.limits.closed = 0;
        bool limited = has_limits(walk, queue_position, head.row);
        if ((!limited || within_limits(walk, queue_position, head.row, &head.tid)) &&
            store::take(walk.tables.ready(), &head.tid) == store::Outcome::ok)
            hand_over(walk, queue_position, head.row);
        if (limited && walk.n > before)
            starts(walk.limits, walk.taken[before].lease);
        /* The one behind it, unless that is of another line. */
        int64 line = line_at(head.row.position);
        int64 from = head.row.position + 1;
        Head next;
        bool goes_on = (walk.n > before || walk.limits.closed == 0 || line_of(walk.limits.closed) != line) &&
                       next_in_line(walk, scan, queue_position, level.npriority, &from, &next) &&
                       line_at(next.row.position) == line;
        if (goes_on)
            *first = next;
        else
            *first = heads[--n];
    }
    pfree(heads);
}

void
note_held(Walk &walk, int queue_position, const ReadyRow &row, const ItemPointerData &tid)
{
    if (walk.limits.closed == 0 || walk.n_held == most_moved || !fits_into_line(own_position(row.position)))
        return;
    if (walk.held == nullptr)
        walk.held = static_cast<HeldJob *>(palloc(sizeof(HeldJob) * most_moved));
    walk.held[walk.n_held++] = {row, tid, walk.limits.closed, queue_position};
}

void
store_held(Walk &walk)
{
    struct Line {
        struct {
            int64 queue;
            int64 npriority;
            uint64 limit;
        } key;
        bool open;
    };
    if (walk.n_held == 0)
        return;
    HASHCTL control = {};
    control.keysize = sizeof(Line::key);
    control.entrysize = sizeof(Line);
    control.hcxt = CurrentMemoryContext;
    HTAB *lines = hash_create("ojs lines of held jobs", 64, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
    store::Table &ready = walk.tables.ready();
    ScanKeyData keys[4];
    store::Scan scan;
    set_position_keys(keys, 0, 0, 0, 0); /* as many as each look gives */
    store::begin(scan, ready, store::Idx::ready_order, keys, 4, true);
    for (int i = 0; i < walk.n_held; i++) {
        HeldJob &job = walk.held[i];
        decltype(Line::key) name = {job.row.queue, job.row.npriority, job.limit};
        bool found;
        auto *line = static_cast<Line *>(hash_search(lines, &name, HASH_ENTER, &found));
        if (!found)
            line->open = may_line_up(walk, scan, job);
        if (!line->open || store::take(ready, &job.tid) != store::Outcome::ok)
            continue;
        int64 position = held_position(line_of(job.limit), own_position(job.row.position));
        store::insert(ready, form(ready.rel, moved_to(job.row, position)));
    }
    store::end(scan);
    hash_destroy(lines);
}

} // namespace ojs
