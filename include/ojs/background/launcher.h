/*
 * launcher.h: the process that keeps an upkeep worker in every database that has the extension.
 */
#pragma once

namespace ojs
{

/* For _PG_init, while preloading. */
void register_launcher();

} // namespace ojs
