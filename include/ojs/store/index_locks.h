/*
 * index_locks.h: the locks on indexes that reading takes.
 */
#pragma once

namespace ojs::store
{

/* A call that is going to wait, whose tables are unlocked, lets go of the locks on indexes that it has taken since
 * forget_index_locks(): REINDEX wants those while it has the table's. */
void forget_index_locks();
void unlock_indexes();

} // namespace ojs::store
