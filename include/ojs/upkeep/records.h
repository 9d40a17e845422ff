/*
 * records.h: what upkeep does for events.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

/* Removes at most `limit` of those with rows of their own that are too old, and now and then of those that are too
 * many. Returns the number of rows removed. */
int prune_records(int limit, TimestampTz now);

/* Notifies listeners of at most `limit` new events, where an administrator wants that. */
void tell_events(int limit);

/* Turns at most `limit` new events into deliveries of webhooks, and forgets old ones. Returns whether there is more. */
bool tend_webhooks(int limit);

} // namespace ojs
