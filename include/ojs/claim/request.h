/*
 * request.h: a claim's parameters, and what it must pass on a queue that has rules for claims: claim_rate, and
 * claim_jitter_ms.
 */
#pragma once

#include "ojs/claim/scan.h"
#include "ojs/hot_set/hot_set.h"
#include "ojs/pg/settings.h"
#include "ojs/store/index_locks.h"

namespace ojs
{

/* Reads the parameters that claims have in common; raises on bad ones. `weights` are by queue, or null. */
Request read_request(const std::string_view *queues, int n, text *worker, int max, Interval *lease, bool missing_ok,
                     const int32 *weights = nullptr);

/* Adds a queue, which the request has not, with its weight where it has weights. Returns its position. */
int add_queue(Request &request, const Queue &queue, int32 weight);

/* Counts a claim against the claim_rate of its queues; RATE_LIMITED beyond. */
void admit(const Request &request);
/* Like admit(), but for work mode: beyond the rate it emits a NOTICE and waits for the next second. Returns false if
 * that second does not begin before `until`. */
bool admit_or_tell(const Queue &queue, const text *worker, int64 until_us);

/* For a request with claim_rules: waits for the window of its first queue that has one, and for its share of that
 * queue's jobs. Returns false if there is nothing to share. */
bool await_share(const Request &request, Share *share);

/* For a call that was handed nothing and has written nothing: sleeps until there may be jobs for it, or `until_us` by
 * the steady clock. */
void await_jobs(Request &request, const HandedOut &out, int64 until_us, int round);

/*
 * Reads a request, has it admitted once, and waits for its share. The queues may have changed in that time, so it is
 * then read again.
 */
template <typename Read>
Request
read_admitted(Tables &tables, bool &admitted, Read read)
{
    Request request = read();
    Share share;
    if (!request.claim_rules)
        return request;
    tables.close_and_unlock();
    if (!admitted)
        admit(request);
    admitted = true;
    if (!await_share(request, &share))
        return request;
    request = read();
    request.share = share;
    return request;
}

/*
 * Hands out jobs to `set`, or waits for them until `until_us`; ends the write that began at `before`. `note` gets what
 * was handed out. Nobody sleeps with a lock: a call that has written something and found no job lets go of it by
 * returning.
 */
template <typename Read, typename Note>
void
hand_out_until(int64 until_us, bool admitted, const store::WriteMark &before, ReturnSetInfo *set, Read read, Note note)
{
    for (int round = 0;; round++) {
        Tables tables;
        Request request = read_admitted(tables, admitted, [&] { return read(tables); });
        request.may_wait = until_us > 0 && steady_us() < until_us;
        HandedOut out = hand_out(tables, request, now(), set);
        note(out);
        if (out.jobs > 0 || !request.may_wait || !(store::write_mark() == before)) {
            tables.close();
            store::end_write();
            advance_after_ends();
            return;
        }
        tables.close_and_unlock();
        store::unlock_indexes();
        await_jobs(request, out, until_us, round);
    }
}

} // namespace ojs
