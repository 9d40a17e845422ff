/*
 * maintenance.h: while the server is in maintenance, nothing is handed out and time stands still for what waits for it
 * (ADM-05). Pushes go on, and so does what workers hold.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

/* Costs a comparison: the table is read again only after somebody has changed it. */
bool in_maintenance();

/* Up to when jobs that wait for a time have been let go: now, or the moment at which maintenance began. */
TimestampTz promoted_to(TimestampTz now);

} // namespace ojs
