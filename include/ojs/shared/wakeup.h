/*
 * wakeup.h: telling those who wait that a queue has work.
 *
 * A call that makes jobs claimable says so with wake_queue(). Nothing happens
 * before the commit, nothing at all after a rollback, of a savepoint too. With
 * the background worker of this database running, the commit marks the queue in
 * shared memory, sets the latches of claims that wait for it, and the worker
 * sends the NOTIFY; otherwise the transaction itself sends one for each queue that
 * somebody may be listening to, unless ojs.notify is off.
 *
 * A prepared transaction forgets its queued wake-ups: its COMMIT PREPARED may come from any
 * session, or after a restart. The worker looks again at the queues that somebody
 * waits for each tick; without it, claims that wait poll, and listeners look now
 * and then, as they should anyway.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

void wake_init(); /* at load: transaction callbacks */

/* `jobs` jobs of this queue become claimable when the current (sub)transaction commits. */
void wake_queue(int64 queue, std::string_view name, int jobs);

/* From now on commits of this session send no NOTIFY, which could wait for another session's commit. Those who listen
 * hear of it from the next commit or tick. */
void stop_notifying();

/* A claim came back short: someone may be listening or about to wait for these queues. Called before the claim's
 * closing look at the queue, so that a job which comes later sees the flag. Without preload the flag is a row
 * (listener_flags.h), which a claim that goes on to wait does without. */
void wake_wanted(const int64 *queues, int n, bool waits);

/* Any name may be of a queue that does not exist yet, and only a push to it takes its flag down: so such flags go up
 * only while few are up, and a tick takes them down if they are more than half as many. Who listens claims again at
 * times anyway. How many may go up. */
constexpr int few_flags = 256;
int room_for_unmade_queues();

/*
 * Waits until one of the queues may have work, `until_us` (by the steady clock) has passed, or a while has; the caller
 * looks again and decides. It does not wait if queues have changed since queue_names_generation() was `names`: one of
 * them may have been made or resumed while the caller looked. Registers as a waiter on entry and leaves on exit (also
 * on error). Holds no locks. Without preload it sleeps a short while (growing from 5 ms to 100 ms with `round`). One
 * that may have to leave what it finds to others is `picky`: then it takes nobody's wake-up.
 */
void wake_wait(const int64 *queues, int n, bool picky, uint64 names, int64 until_us, int round);

/* Nobody is told of this queue until a claim asks for it again. */
void forget_wish(int64 queue);

/* --- for the worker --- */

/* Sends the NOTIFYs that are due, in a transaction of its own, and returns when the next one is, by the steady clock
 * (PG_INT64_MAX: none is). */
int64 wake_send_due();

/* Whether some process waits for queues of this database or may listen to them. */
bool wake_anyone();

/* Inside a transaction: wakes those who wait for a queue that has work all the same. */
void wake_look_again();

} // namespace ojs
