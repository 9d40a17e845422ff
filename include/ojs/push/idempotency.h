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
 * Null: the key is this call's now, which ends with keep_answer(). Else what the call answered that had it before.
 * Waits for a transaction that is using the same key; raises if that key was used for another request.
 */
Jsonb *take_idempotency_key(const RequestKey &key);
/* Or with this, where nothing came of it: then it may be sent again. */
void free_idempotency_key(const RequestKey &key);
void keep_answer(const RequestKey &key, const Jsonb *answer);

/* Removes keys whose day is over, at most `limit`; how many. */
int prune_idempotency_keys(int limit, TimestampTz now);

} // namespace ojs
