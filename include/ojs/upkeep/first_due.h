/*
 * first_due.h: when upkeep will have something to do, by the server's clock.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

TimestampTz first_due();   /* of the jobs that wait for a time, and cron entries */
TimestampTz first_lapse(); /* of the leases */

} // namespace ojs
