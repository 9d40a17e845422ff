/*
 * in_doubt.h: jobs of which nobody can say where they belong.
 *
 * A prepared transaction outlives a crash or a promotion, and the hot rows that it changed do not. Until it is
 * resolved, a job that it has ended, moved on or removed may be open or not, and one that it has reported on may have a
 * checkpoint or not. So the rebuild leaves such a job in no place, where nobody gets it, and a reconcile pass puts it
 * back if it turns out to be open: the one that follows as soon as such a transaction has ended.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

/* The ids of such jobs, and of others that open transactions are at; null where no transaction of this database is
 * prepared. */
HTAB *undecided_jobs();

/* How many transactions of this database are prepared that began before this one. */
int prepared_before(TransactionId xid);

} // namespace ojs
