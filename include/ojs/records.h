/*
 * records.h: what upkeep removes that is no job: events with rows of their own.
 */
#pragma once

#include "ojs/pg.h"

namespace ojs
{

/* Removes at most `limit` of those that are too old, and now and then of those that are too many; how many. */
int prune_records(int limit, TimestampTz now);

} // namespace ojs
