/*
 * insert.h: from a checked envelope to its rows. What push, push_many and whatever else makes jobs have in common.
 */
#pragma once

#include "ojs/state/status.h"

namespace ojs
{

struct Pushed {
    JobRow job;
    Status status;
    ItemPointerData tid;    /* of its row */
    std::string_view queue; /* its name, good until the next look-up of a queue */
};

/*
 * Refuses a batch that brings an id twice. Jobs with ids of their own are stored in id order, so that two batches do
 * not wait for each other; one whose jobs are stored in another order (unique jobs, partial batches) asks for `lock`:
 * until the transaction ends, no other such batch stores ids that share one of 64 hash values with its own. With
 * `repeated`, marks the later ones instead of refusing.
 */
void check_ids(const Envelope *envelopes, int n, bool lock, bool *repeated = nullptr);
[[noreturn]] void raise_repeated_id(const pg_uuid_t &id);

/*
 * Stores the jobs of `envelopes`, checked already, in their order; fills `pushed`. All or none: raises for the first
 * that cannot be.
 */
void enqueue(Tables &tables, Envelope *envelopes, int n, TimestampTz now, Pushed *pushed);

} // namespace ojs
