/*
 * strays.h: what a reconcile pass removes or sets going, inside with_spi and with the settings of a rebuild.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

/* Removes hot rows of jobs that are finished or gone, except those that another transaction has locked. Returns their
 * number. */
int64 remove_strays();

/* Safety net: has jobs go on that are first in the line of their ordering key, and blocked. Returns their number, which
 * is 0 unless there is a defect, or rows were removed by hand. */
int64 advance_stuck_lines();

} // namespace ojs
