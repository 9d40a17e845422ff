/*
 * tidy.h: keeping the table of queues in order.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

/* Now and then, in a tick: merges rows of one name, adds up counters, revives a dropped queue that was pushed to while
 * it was being dropped. Waits for nobody. Looks at some hundreds of rows, however many there are. */
void tidy_queues(TimestampTz now);

} // namespace ojs
