/*
 * ordering_line.h: the rows of ordering_line, for ordering.cpp and ordering_move.cpp.
 */
#pragma once

#include "ojs/state/ordering.h"

namespace ojs
{

LOCKTAG lock_of_line(int64 key);

/* What `body` does takes microseconds and waits for nothing: the tables are opened before. */
template <typename Body>
void
with_line(Tables &tables, int64 key, Body body)
{
    for (store::Rel rel : {store::Rel::ordering_line, store::Rel::ordering_due, store::Rel::ready, store::Rel::delayed})
        (void)tables.get(rel);
    LOCKTAG tag = lock_of_line(key);
    (void)LockAcquire(&tag, ExclusiveLock, false, false);
    body();
    LockRelease(&tag, ExclusiveLock, false);
}

/* The key of a job whose flags say that there is one: by its options, or by its row, by way of a table of its own,
 * since callers hold on to what is in theirs. */
int64 stated_key(int64 queue, const Jsonb *options);
int64 key_of_job(const HotRow &row);

bool find_in_line(Tables &tables, const pg_uuid_t &id, LineRow &line, ItemPointer tid = nullptr);
void insert_in_line(Tables &tables, const LineRow &line);

/* The first of a line. False: it is empty, as far as that is committed. */
bool first_in_line(Tables &tables, int64 key, LineRow &line, ItemPointer tid);

/* Whether no open transaction is about to change who is first, and whether that one is blocked. */
bool first_is_sure(Tables &tables, int64 key);

/* Under the lock of the key. Returns whether it is the turn of the job in this place. */
bool is_first(Tables &tables, const LineRow &line);

/* Somebody has to look at the line when open transactions have ended. One row says so as well as many. */
void note_due(Tables &tables, int64 queue, int64 key);

/* At the end of this call. */
void note_left_line(int64 queue, int64 key);

} // namespace ojs
