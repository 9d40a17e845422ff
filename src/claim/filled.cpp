/*
 * filled.cpp: see filled.h.
 *
 * Two walks along the index of `ready`. The first meets entries of dead rows, too: so it comes to the next queue by one
 * descent, however many dead ones a queue has that vacuum cannot remove. It steps from entry to entry, and descends
 * anew to the next of the queues once `few` entries have shown nothing new. Where many queues have few entries, dead or
 * not, that is a page for hundreds of them. The second walk goes over such a stretch again, without entries that are
 * marked dead, and looks at rows; it goes by itself to each queue with many entries.
 */
#include "ojs/claim/filled.h"

#include "ojs/claim/scan_hints.h"

namespace ojs
{

namespace
{

constexpr int few = 32;

struct Look {
    const int64 *ids;
    int n;
    const FilledQueue *known;
    int n_known;
    FilledQueue *filled;
    int n_filled;
};

/* Looks at the rows that the scan comes to: the first of each queue that will count, at most of so many queues. */
void
look_at_rows(Look &look, store::Scan &rows, ScanKey keys, int most)
{
    Datum entry[2];
    int64 last = 0;
    int n = 0;
    store::rescan(rows, keys, 3);
    while (n < most && store::next_entry(rows, 2, entry)) {
        int64 queue = DatumGetInt64(entry[0]);
        CHECK_FOR_INTERRUPTS();
        if ((n > 0 && queue == last) || !std::binary_search(look.ids, look.ids + look.n, queue))
            continue;
        store::Row row = store::row_of_entry(rows);
        if (row != store::Row::live && row != store::Row::arriving)
            continue;
        look.filled[look.n_filled++] = {queue, DatumGetInt16(entry[1])};
        last = queue;
        n++;
    }
}

void
look_at_stretch(Look &look, store::Scan &rows, int64 from, int64 upto)
{
    ScanKeyData keys[3];
    ScanKeyInit(&keys[0], 1, BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(from));
    ScanKeyInit(&keys[1], 1, BTLessEqualStrategyNumber, F_INT8LE, Int64GetDatum(upto));
    ScanKeyInit(&keys[2], 2, BTGreaterEqualStrategyNumber, F_INT2GE, Int16GetDatum(PG_INT16_MIN));
    look_at_rows(look, rows, keys, look.n);
}

/* One with many entries, the first of which is of this priority. */
void
look_at_queue(Look &look, store::Scan &rows, int64 queue, int16 npriority)
{
    ScanKeyData keys[3];
    const FilledQueue *known = known_as(look.known, look.n_known, queue);
    int before = look.n_filled;
    if (known == nullptr || npriority < known->npriority) {
        int32 below = known == nullptr ? PG_INT16_MAX + 1 : known->npriority;
        ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(queue));
        ScanKeyInit(&keys[1], 2, BTLessEqualStrategyNumber, F_INT2LE, Int16GetDatum(static_cast<int16>(below - 1)));
        ScanKeyInit(&keys[2], 2, BTGreaterEqualStrategyNumber, F_INT2GE, Int16GetDatum(PG_INT16_MIN));
        look_at_rows(look, rows, keys, 1);
    }
    if (known != nullptr && look.n_filled == before)
        look.filled[look.n_filled++] = *known;
}

/* Where the first walk is. */
struct Stretch {
    int64 from; /* queues with few entries that were met since it descended */
    int64 upto;
    bool any;
    FilledQueue last; /* of the queues that are asked for; it may have many */
    bool is_open;
};

void
add_last(Stretch &stretch)
{
    if (stretch.is_open && !stretch.any)
        stretch.from = stretch.last.queue;
    stretch.any = stretch.any || stretch.is_open;
    if (stretch.is_open)
        stretch.upto = stretch.last.queue;
    stretch.is_open = false;
}

} // namespace

int
filled_queues(Tables &tables, const int64 *ids, int n, const FilledQueue *known, int n_known, FilledQueue *filled)
{
    Look look = {ids, n, known, n_known, filled, 0};
    const int64 *next = ids;
    const int64 *end = ids + n;
    ScanKeyData key;
    ScanKeyData row_keys[4];
    store::Scan entries;
    store::Scan rows;
    Datum entry[2];

    ScanKeyInit(&key, 1, BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(0));
    set_keys(row_keys, 0, BTGreaterStrategyNumber, F_INT2GT, 0, BTLessStrategyNumber, F_INT2LT, 0);
    store::begin(entries, tables.ready(), store::Idx::ready_order, &key, 1, false);
    store::begin(rows, tables.ready(), store::Idx::ready_order, row_keys, 3, true);
    store::keep_entries(entries, true);
    store::keep_entries(rows, false);
    bool more = true;
    while (more && next < end) {
        Stretch stretch = {};
        int nothing_new = 0;
        ScanKeyInit(&key, 1, BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(*next));
        store::rescan(entries, &key, 1);
        while (nothing_new < few && (next < end || stretch.is_open) && (more = store::next_entry(entries, 2, entry))) {
            int64 queue = DatumGetInt64(entry[0]);
            nothing_new++;
            if (stretch.is_open && queue == stretch.last.queue)
                continue;
            add_last(stretch);
            next = std::lower_bound(next, end, queue);
            if (next == end || *next != queue)
                continue;
            stretch.last = {queue, DatumGetInt16(entry[1])};
            stretch.is_open = true;
            nothing_new = 0;
            next++;
        }
        bool has_many = stretch.is_open && more;
        if (!has_many)
            add_last(stretch);
        if (stretch.any)
            look_at_stretch(look, rows, stretch.from, stretch.upto);
        if (has_many)
            look_at_queue(look, rows, stretch.last.queue, stretch.last.npriority);
    }
    store::end(rows);
    store::end(entries);
    return look.n_filled;
}

} // namespace ojs
