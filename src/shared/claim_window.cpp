/*
 * claim_window.cpp: see claim_window.h. The members are under shared->lock, which is held for look-ups in memory only.
 *
 * A member that is cancelled or whose session ends leaves by the abort of its transaction: before the division its part
 * goes to the others, after it its jobs stay ready. A window is divided once the one before it has claimed, so that no
 * job is counted twice; but nobody waits for that longer than claims_within_us.
 */
#include "ojs/shared/claim_window.h"

#include "ojs/pg/settings.h"
#include "ojs/shared/shmem.h"

namespace ojs
{

namespace
{

constexpr int64 claims_within_us = 100 * 1000;

bool joined; /* this process is a member */

Member &
me()
{
    return shared->members[my_process_number()];
}

/* The members that claim from the same queue as this process, itself too, in the order of their arrival. */
template <typename Visit>
void
each_of_queue(Visit visit)
{
    for (int i = 0; i < shared->n_members; i++) {
        Member &member = shared->members[shared->arrived[i]];
        if (member.queue == me().queue && member.database == me().database)
            visit(member, shared->arrived[i]);
    }
}

/* Begins the division if that is this claim's to do: the most jobs that its window can take; else 0. */
int64
begin_to_divide(int64 at)
{
    int64 most = 0;
    bool others_claim = false;

    each_of_queue([&](const Member &member, int) {
        others_claim |=
            member.turn == Turn::is_divided || (member.turn == Turn::claims && at - member.at < claims_within_us);
    });
    if (others_claim || me().turn != Turn::gathers || at < me().at)
        return 0;
    each_of_queue([&](Member &member, int) {
        if (member.turn != Turn::gathers)
            return;
        member.turn = Turn::is_divided;
        member.divider = my_process_number();
        most += member.max;
    });
    return most;
}

} // namespace

void
claim_window_join(int64 queue, int max, int64 window_ms)
{
    int64 closes_at = steady_us() + window_ms * 1000;
    int number = my_process_number();

    claim_window_leave();
    LWLockAcquire(shared->lock, LW_EXCLUSIVE);
    shared->members[number] = {MyDatabaseId, Turn::gathers, 0, max, 0, queue, closes_at};
    each_of_queue([&](const Member &other, int) {
        if (other.turn == Turn::gathers)
            me().at = std::min(me().at, other.at);
    });
    shared->arrived[shared->n_members++] = number;
    joined = true;
    LWLockRelease(shared->lock);
}

std::optional<int64>
claim_window_wait()
{
    constexpr int64 look_every_ms = 100, overdue_every_ms = 10;
    static uint32 event;

    for (;;) {
        int64 at = steady_us();
        LWLockAcquire(shared->lock, LW_EXCLUSIVE);
        bool served = me().turn == Turn::claims;
        int64 most = served ? 0 : begin_to_divide(at);
        int64 left_ms = (me().at - at + 999) / 1000;
        LWLockRelease(shared->lock);
        if (served)
            return std::nullopt;
        if (most > 0)
            return most;
        sleep_ms(left_ms > 0 ? std::min(left_ms, look_every_ms) : overdue_every_ms, "OjsClaimWindow", &event);
    }
}

void
claim_window_divide(int64 jobs)
{
    int64 at = steady_us();
    int64 all = 0, upto = 0, given = 0;

    auto each_of_mine = [](auto visit) {
        each_of_queue([&](Member &member, int number) {
            if (member.turn == Turn::is_divided && member.divider == my_process_number())
                visit(member, number);
        });
    };
    LWLockAcquire(shared->lock, LW_EXCLUSIVE);
    each_of_mine([&](const Member &member, int) { all += member.max; });
    /*
     * Where the sum so far, rounded up, grows: each is within one of its exact part, and what is left over is spread.
     */
    each_of_mine([&](Member &member, int number) {
        upto += member.max;
        int64 sum = (jobs * upto + all - 1) / all;
        member.quota = static_cast<int>(sum - given);
        member.turn = Turn::claims;
        member.at = at;
        given = sum;
        set_latch(static_cast<uint32>(number) + 1);
    });
    LWLockRelease(shared->lock);
}

int
claim_window_quota()
{
    return me().quota;
}

bool
claim_window_is_over()
{
    int members = 0;
    LWLockAcquire(shared->lock, LW_SHARED);
    each_of_queue([&](const Member &, int) { members++; });
    LWLockRelease(shared->lock);
    return members == 1;
}

void
claim_window_leave()
{
    if (!joined)
        return;
    joined = false;
    LWLockAcquire(shared->lock, LW_EXCLUSIVE);
    int *end = shared->arrived + shared->n_members;
    int *slot = std::find(shared->arrived, end, my_process_number());
    memmove(slot, slot + 1, sizeof(int) * (end - slot - 1));
    shared->n_members--;
    int64 at = steady_us();
    each_of_queue([&](Member &member, int number) {
        if (member.turn == Turn::is_divided && member.divider == my_process_number())
            member.turn = Turn::gathers;
        if (member.turn == Turn::gathers && member.at <= at)
            set_latch(static_cast<uint32>(number) + 1);
    });
    LWLockRelease(shared->lock);
}

} // namespace ojs
