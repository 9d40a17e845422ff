/*
 * pool.h: pools: sets of queues that claims name, with how they are served (FS-02). Made by sql/pools.sql.
 */
#pragma once

#include "ojs/pg/error.h"

namespace ojs
{

struct Pool {
    std::string_view name;
    std::string_view *queues;
    int n;
    int32 *weights;    /* by queue; null: strictly one after the other */
    int32 concurrency; /* -1: no limit */
};
static_assert(std::is_trivially_destructible_v<Pool>);

/* Raises NOT_FOUND. Good until it is called again. */
const Pool &find_pool(std::string_view name);

} // namespace ojs
