/*
 * hot_set.h: the unlogged tables hold every open job, or are rebuilt from the logged ones first.
 */
#pragma once

#include "ojs/pg/guard.h"
#include "ojs/state/hot_set_state.h"
#include "ojs/state/members.h"
#include "ojs/state/ordering.h"
#include "ojs/store/tables.h"

namespace ojs
{

/*
 * The hot set is valid before anything reads or writes it: checked once per session, and again after whatever empties
 * `hot_set_state`. Where it is not, has it rebuilt by a process of its own and waits for that; in the transaction that
 * created the extension, or where no process can be had, rebuilds in place.
 */
void ensure_hot_set();

/* Rows have come into the logged tables by SQL, past the hot set: it is rebuilt once this commits. */
void note_restore();
/* Whether the triggers that notice such rows fire always. `pg_restore --disable-triggers` leaves them otherwise. */
bool restores_noticed();
/* Makes them so again and has the hot set rebuilt, unless somebody writes to the table just now. For every tick. */
void mend_restore_triggers();

/* The rebuild itself, inside the caller's transaction (rebuild.cpp). Returns false if the hot set was valid already.
 * `cause` may be null: found out. */
bool rebuild_hot_set(const char *cause);

/* Whether a rebuild or a reconcile pass is under way in another process. */
bool rebuild_under_way();

/*
 * Safety net: reinserts open jobs, created before `created_before`, that are missing from the hot set, and removes hot
 * rows of jobs that are finished or gone; logs a WARNING of each. Returns the number of jobs, or -1 if another process
 * is already doing so.
 */
int64 reconcile_hot_set(TimestampTz created_before);
/* Calls it every five minutes, or more rarely where a pass takes long. For every tick. */
void reconcile_if_due();

/* At the end of a call that may have ended jobs: what waits for their ends goes on. */
inline void
advance_after_ends()
{
    advance_lines();
    advance_workflows();
}

} // namespace ojs

/*
 * Defines the SQL-callable function NAME, a call `what` that changes jobs; the body follows in braces and sees fcinfo
 * and tables, which are closed behind it; then jobs go on that wait for the end of another one of their ordering key,
 * and workflows of which it has ended the last open member. An error leaves all of it to the end of the transaction.
 */
#define OJS_CHANGE(name, what)                                                                                         \
    static Datum name##_change(FunctionCallInfo fcinfo, ojs::Tables &tables);                                          \
    OJS_FUNCTION(name)                                                                                                 \
    {                                                                                                                  \
        ojs::store::begin_write(what);                                                                                 \
        ojs::ensure_hot_set();                                                                                         \
        ojs::Tables tables;                                                                                            \
        Datum answer = name##_change(fcinfo, tables);                                                                  \
        tables.close();                                                                                                \
        ojs::store::end_write();                                                                                       \
        ojs::advance_after_ends();                                                                                     \
        return answer;                                                                                                 \
    }                                                                                                                  \
    static Datum name##_change([[maybe_unused]] FunctionCallInfo fcinfo, [[maybe_unused]] ojs::Tables &tables)
