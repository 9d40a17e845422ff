/*
 * slots.h: the slots of concurrency limits.
 *
 * In ojs_store.limit_use a held job has a row of kind `held` for each slot that it takes. How many slots of a key are
 * taken is the sum of the numbers of its rows of the kinds `change`, inserted by whoever takes or frees slots, and
 * `total`, put in the place of many changes.
 */
#pragma once

#include "ojs/store/rows.h"
#include "ojs/store/tables.h"

namespace ojs
{

/* The changes and totals of a key that a count has met and that no open transaction may undo. */
struct SlotChanges {
    struct Settled {
        ItemPointerData tid;
        int64 number;
    };
    Settled *rows;
    int n;
    int room;
};

/* Whoever counts has the turn until it has stored what it takes. Freeing needs none. */
void take_turn(Tables &tables);
void end_turn();

void begin_uses(store::Scan &scan, store::Table &table, int64 key, LimitUse kind, TimestampTz after);

/* These have the turn. Slots that open transactions take or free count as taken. */
int64 count_slots(Tables &tables, int64 key, SlotChanges &changes);
void change_slots(Tables &tables, int64 key, int64 number, text *name, TimestampTz now);
void merge_if_many(Tables &tables, int64 key, const SlotChanges &changes, text *name, TimestampTz now);

/* The row of a slot that a job takes. */
LimitUseRow slot_of(const LeaseRow &lease, int64 key, text *name, TimestampTz now);

/* Frees the slots of a lease that the caller has deleted; of one that moves to another queue all but those of a pool,
 * which has it still. Whoever waits for its queue looks again after the commit. */
void free_counted(Tables &tables, const LeaseRow &lease, bool moves = false);
inline void
free_slots(Tables &tables, const LeaseRow &lease)
{
    if (lease.flags & job_counted)
        free_counted(tables, lease);
}

/* Puts one row in the place of all changes of a key; for keys that nobody claims. */
void merge_slots(Tables &tables, std::string_view name, TimestampTz now);

} // namespace ojs
