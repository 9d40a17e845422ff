/*
 * tenant_room.h: what a tenant may push (MT-04): the one place that asks for its max_queue_depth, max_scheduled and
 * max_enqueue_rate. (Its max_concurrency is a limit of claims: limits/rate_limits.cpp.)
 */
#pragma once

#include "ojs/push/insert.h"

namespace ojs
{

/* Room for those of the jobs, all about to be stored, whose tenants have limits: for all of them, or it raises
 * TENANT_LIMIT_EXCEEDED. */
void keep_tenant_limits(Tables &tables, const Envelope *envelopes, int n, TimestampTz now);

/* Takes the locks that this will need, if there are to be any, in an order that all calls keep. */
void hold_tenant_limits(const Envelope *envelopes, int n);

} // namespace ojs
