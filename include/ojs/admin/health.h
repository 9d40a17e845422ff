/*
 * health.h: what metrics say as ojs.health() says it.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

/* Whether a background worker runs here, or comes in its turn without being late. */
bool upkeep_served();

} // namespace ojs
