/*
 * near_name.h: which known name a misspelt one may mean: one that differs in case, underscores and hyphens, or by one
 * letter that is another, missing or too much, or by two that are swapped.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

/* A name without case, underscores and hyphens; of a long one the beginning, which is near no known name. */
struct FoldedName {
    char text[32];
    size_t n;
};

struct NearName {
    std::string_view known; /* the nearest of those that were offered; empty: none is near */
    bool spelt_alike;       /* it differs in case, underscores and hyphens alone */
    FoldedName given;
};

NearName near_name(std::string_view given);
void offer(NearName &near, std::string_view known);

} // namespace ojs
