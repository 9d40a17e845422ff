/*
 * idempotency.h: a call that is repeated under its idempotency key gets the answer of the first (BLK-02).
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

/* A key of the role that calls, and what was asked under it. */
struct RequestKey {
    const char *operation; /* keys of different operations have nothing to do with each other */
    text *key;
    bytea *request; /* in any form, as long as equal requests are equal */
};

/*
 * Returns null if this call now has the key; it ends with keep_answer(). Otherwise returns the answer of the call that
 * had the key before. Waits for a transaction that is using the same key; raises if that key was used for another
 * request.
 */
Jsonb *take_idempotency_key(const RequestKey &key);
/* Or with this, where nothing came of it: then it may be sent again. */
void free_idempotency_key(const RequestKey &key);
void keep_answer(const RequestKey &key, const Jsonb *answer);

/* Removes at most `limit` keys whose day is over. Returns the number of rows removed. */
int prune_idempotency_keys(int limit, TimestampTz now);

} // namespace ojs
