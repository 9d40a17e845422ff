/*
 * plant.h: bugs to be put in on purpose, so that test/torture/planted can show that the history checker finds them.
 *
 * Without the macro OJS_PLANT, which only that test defines, planted() is the constant false and leaves no trace in the
 * program. With it, the environment variable OJS_PLANT of the server says by number which bug is in.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

enum class Bug {
    none,
    claim_ignores_lock,      /* a claim hands out rows that another transaction has */
    ack_ignores_token,       /* whoever names a leased job may end it */
    extend_ignores_token,    /* whoever names a leased job may extend it, a former holder too */
    rebuild_forgets_later,   /* jobs that wait for a time are not put back after a crash */
    rebuild_forgets_events,  /* counts and delays start anew after a crash */
    retry_too_early,         /* half the delay */
    stale_hint,              /* a claim's hint passes rows that are busy, and stays */
    reap_ignores_extension,  /* leases end as if they had never been extended */
    lost_wake_up,            /* a savepoint that is rolled back takes all wake-ups of its transaction with it */
    kills_own_deletes,       /* entries of rows that this transaction took are marked dead, and it may roll back */
    unique_without_lock,     /* a push decides about its key without having locked it */
    limit_without_turns,     /* claims count the places of a limit at the same time */
    limit_frees_twice,       /* the place of a lease that has ended is taken off twice */
    window_forgets_open,     /* what open transactions have started does not count in a window */
    lease_not_logged,        /* a durable lease leaves no event when it is made */
    commit_not_awaited,      /* no commit of a push or of an end waits for the disk */
    once_not_logged,         /* nothing outlives a crash that says that an at-most-once job was delivered */
    hook_not_with_claim,     /* no execution hook runs for what ack_and_claim ends */
    hook_not_for_last,       /* no enqueue hook sees the last job of a batch */
    count,
};

#ifdef OJS_PLANT
inline bool
planted(Bug bug)
{
    const char *number = std::getenv("OJS_PLANT");
    return number != nullptr && std::atoi(number) == static_cast<int>(bug);
}
#else
constexpr bool
planted(Bug)
{
    return false;
}
#endif

} // namespace ojs
