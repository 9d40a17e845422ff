/*
 * uuid.h: UUIDv7 identifiers.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

/* A new UUIDv7: unique across sessions, and never smaller than the session's last one (ENV-02). */
pg_uuid_t new_uuid();

inline bool
is_uuid_v7(const pg_uuid_t &id)
{
    return (id.data[6] & 0xf0) == 0x70 && (id.data[8] & 0xc0) == 0x80;
}

inline bool
operator<(const pg_uuid_t &a, const pg_uuid_t &b)
{
    return memcmp(a.data, b.data, UUID_LEN) < 0;
}

inline bool
same(const pg_uuid_t &a, const pg_uuid_t &b)
{
    return memcmp(a.data, b.data, UUID_LEN) == 0;
}

} // namespace ojs
