/*
 * name_hash.h: ids made from names that callers choose: of queues, and of keys of rate limits.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

/*
 * SipHash-2-4 of the name under this database's secret key. Sessions that meet a new name at the same time agree on its
 * id without waiting, and nobody without the key can find two names with the same id.
 */
int64 name_hash(std::string_view name);

} // namespace ojs
