/*
 * waiter_filter.cpp: a waiter's queues: a list of a few, or a Bloom filter of many.
 */
#include "ojs/shared/waiter_filter.h"

namespace ojs
{

namespace
{

/* Two bits for each queue. */
template <typename Body>
void
each_filter_bit(int64 queue, Body body)
{
    constexpr uint32 n_bits = waiter_filter_words * 64;
    for (int shift : {0, 32}) {
        uint32 bit = static_cast<uint32>(static_cast<uint64>(queue) >> shift) % n_bits;
        body(bit / 64, UINT64CONST(1) << bit % 64);
    }
}

} // namespace

bool
waits_for(const Waiter &waiter, int64 queue)
{
    if (waiter.n > 0)
        return std::find(waiter.queues, waiter.queues + waiter.n, queue) != waiter.queues + waiter.n;
    bool passes = true;
    each_filter_bit(queue, [&](uint32 word, uint64 bit) { passes = passes && (waiter.filter[word] & bit) != 0; });
    return passes;
}

void
wait_for_queues(Waiter &waiter, const int64 *queues, int n, bool picky)
{
    waiter.n = n <= max_waiter_queues && !picky ? n : 0;
    std::copy(queues, queues + waiter.n, waiter.queues);
    std::fill(std::begin(waiter.filter), std::end(waiter.filter), 0);
    for (int i = 0; i < n && waiter.n == 0; i++)
        each_filter_bit(queues[i], [&](uint32 word, uint64 bit) { waiter.filter[word] |= bit; });
}

} // namespace ojs
