/*
 * delivery.h: the terms on which a job is handed out.
 */
#pragma once

#include "ojs/claim/walk.h"

namespace ojs
{

/* How long the lease is: as the claim says, or the job, or the queue. */
int64 lease_length(const Request &request, const Queue &queue, const JobRow &job);

/*
 * What must be known of a delivery although its lease is not logged. At most once (DLV-01): it must outlive a crash, so
 * it is logged and this commit is waited for; a rebuild discards the job unless the lease itself survives.
 */
void mark_delivered(Tables &tables, LeaseRow &lease, TimestampTz now);

/* A job as its worker gets it: the columns of ojs.claimed_job. */
void show(Tables &tables, const Request &request, const ClaimedJob &taken, const JobRow &job, Datum *values,
          bool *nulls);

} // namespace ojs
