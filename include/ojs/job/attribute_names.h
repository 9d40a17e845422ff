/*
 * attribute_names.h: the names of the attributes of an envelope, aliases among them.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

enum class Attr : uint8 {
    unknown,
    system, /* set by the server; ignored */
    args,
    deduplication_fallback,
    deduplication_key,
    deduplication_ttl,
    delay,
    delivery,
    enqueue_ttl,
    expires_at,
    grace_period,
    heartbeat_timeout,
    id,
    max_attempts,
    meta,
    metadata,
    options,
    ordering,
    ordering_key,
    parent_id,
    pending,
    priority,
    queue,
    rate_limit,
    result_ttl,
    retry,
    root_id,
    schema,
    scheduled_at,
    specversion,
    tag,
    tags,
    timeout,
    total_timeout,
    type,
    unique,
    version,
    visibility_timeout,
};

Attr attr_named(std::string_view name);

/* Refuses an unknown name that is nearly that of an attribute which a caller may set: it would be kept and mean nothing
 * (R-84). */
void refuse_near_name(std::string_view unknown);

} // namespace ojs
