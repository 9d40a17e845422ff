/*
 * claim_rate.cpp: see claim_rate.h.
 */
#include "ojs/shared/claim_rate.h"

#include "ojs/pg/args.h"
#include "ojs/shared/shmem.h"
#include "ojs/store/name_hash.h"

namespace ojs
{

namespace
{

HTAB *session_calls; /* of Calls: without shared memory, or when there is no room in it */

void
forget_old(HTAB *calls, TimestampTz at)
{
    HASH_SEQ_STATUS scan;
    hash_seq_init(&scan, calls);
    while (auto *entry = static_cast<Calls *>(hash_seq_search(&scan)))
        if (at - entry->since >= USECS_PER_SEC || at < entry->since)
            (void)hash_search(calls, &entry->key, HASH_REMOVE, nullptr);
}

HTAB *
calls_of_session()
{
    if (session_calls == nullptr) {
        HASHCTL control = {};
        control.keysize = sizeof(CallsKey);
        control.entrysize = sizeof(Calls);
        session_calls = hash_create("ojs calls", 16, &control, HASH_ELEM | HASH_BLOBS);
    }
    return session_calls;
}

/* Returns null if there is no room. */
Calls *
entry_in(HTAB *calls, const CallsKey &key, TimestampTz at)
{
    bool found;
    if (hash_get_num_entries(calls) >= max_calls)
        forget_old(calls, at);
    HASHACTION enter = calls == session_calls ? HASH_ENTER : HASH_ENTER_NULL;
    bool room = hash_get_num_entries(calls) < max_calls;
    auto *entry = static_cast<Calls *>(hash_search(calls, &key, room ? enter : HASH_FIND, &found));
    if (entry != nullptr && (!found || at - entry->since >= USECS_PER_SEC || at < entry->since)) {
        entry->since = at;
        entry->n = 0;
    }
    return entry;
}

int64
count(Calls &entry, TimestampTz at, int64 most)
{
    if (entry.n >= most)
        return (entry.since + USECS_PER_SEC - at + 999) / 1000;
    entry.n++;
    return 0;
}

} // namespace

int64
throttle(int64 queue, const text *worker, int64 calls_per_second)
{
    TimestampTz at = GetCurrentTimestamp();
    CallsKey key = {queue, static_cast<uint64>(name_hash(view(worker))), MyDatabaseId, 0};

    if (shared != nullptr) {
        LWLockAcquire(shared->lock, LW_EXCLUSIVE);
        Calls *entry = entry_in(shared->calls, key, at);
        int64 wait_ms = entry != nullptr ? count(*entry, at, calls_per_second) : 0;
        LWLockRelease(shared->lock);
        if (entry != nullptr)
            return wait_ms;
    }
    Calls *entry = entry_in(calls_of_session(), key, at);
    return entry != nullptr ? count(*entry, at, calls_per_second) : 0;
}

} // namespace ojs
