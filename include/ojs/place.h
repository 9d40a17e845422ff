/*
 * place.h: finding an open job by its id, wherever it is.
 */
#pragma once

#include "ojs/moves.h"

namespace ojs
{

/* A job that nobody holds: its row in ready, or the one in later that is not a reminder of its expiry. */
struct Place {
    store::Table *table; /* null: it is in neither */
    ItemPointerData tid;
    store::Row seen; /* live, arriving or leaving */
    LaterRow row;    /* kind only where it is in later */
};

Place locate(Tables &tables, const pg_uuid_t &id);

/*
 * Cancels a job that is open, held or not, waiting for a transaction that is moving it. False: it has ended, or does
 * not exist; then `standing` says how it stands, and `exists` whether.
 */
bool cancel_open(Tables &tables, const pg_uuid_t &id, TimestampTz now, JobRow &job, Standing &standing, bool &exists);

/* Where the job stands by a snapshot of this moment. */
bool stand_now(Tables &tables, const pg_uuid_t &id, TimestampTz now, JobRow &job, Standing &standing);

} // namespace ojs
