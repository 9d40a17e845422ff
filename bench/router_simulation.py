#!/usr/bin/env python3
"""bench/router_simulation.py [--nodes N] [--rate JOBS_PER_SECOND] [--seconds S] ...: claims of a router at a size that
no machine here has.

Jobs arrive at nodes by a Poisson process, spread unevenly (Zipf), one queue. A session watches all nodes each 100 ms
and writes down how many jobs wait on each (ojs_router.watch). Workers claim up to `--max` jobs: up to 40 nodes of what
was seen, drawn without replacement by how many claims they have jobs for, one after the other, until they have enough;
each call of a node takes `--call` ms. A claim that comes back empty waits for the next look, which it notices within
20 ms, as a claim that waits does. Prints how many claims came back empty while jobs waited somewhere that the watch had
time to see, how evenly nodes are asked, and how long jobs wait."""
import argparse
import bisect
import collections
import heapq
import itertools
import random

parser = argparse.ArgumentParser()
parser.add_argument('--nodes', type=int, default=1000)
parser.add_argument('--rate', type=float, default=1e9 / 86400, help='jobs per second of all nodes (10^9 a day)')
parser.add_argument('--seconds', type=float, default=20)
parser.add_argument('--workers', type=int, default=1200)
parser.add_argument('--max', type=int, default=10, help='jobs per claim')
parser.add_argument('--job', type=float, default=80, help='ms that a job takes')
parser.add_argument('--call', type=float, default=1, help='ms that a call of a node takes')
parser.add_argument('--watch', type=float, default=100, help='ms between two looks')
parser.add_argument('--tries', type=int, default=40)
parser.add_argument('--zipf', type=float, default=1, help='0: even')
parser.add_argument('--seed', type=int, default=1)
o = parser.parse_args()
rng = random.Random(o.seed)

weights = [1 / (i + 1) ** o.zipf for i in range(o.nodes)]
rng.shuffle(weights)
arrival_sums = list(itertools.accumulate(weights))
waiting = [collections.deque() for _ in range(o.nodes)]  # arrival times
total = 0
seen, sums = [], []  # nodes with work as the watch saw them, and running sums of how many claims it is for

events, serial = [], itertools.count()


def at(time, what, *details):
    heapq.heappush(events, (time, next(serial), what, details))


def draw():
    """Up to --tries distinct nodes of those seen, by weight."""
    chosen = set()
    while len(chosen) < min(o.tries, len(seen)):
        node = seen[bisect.bisect(sums, rng.random() * sums[-1])]
        if node not in chosen:
            chosen.add(node)
            yield node


claims = empty = empty_in_vain = calls = useless = idle = 0
asked, waits = [0] * o.nodes, []
at(0, 'watch')
at(rng.expovariate(o.rate), 'push')
for worker in range(o.workers):
    at(rng.random() * 0.1, 'claim')
while events:
    now, _, what, details = heapq.heappop(events)
    if now > o.seconds:
        break
    if what == 'push':
        waiting[bisect.bisect(arrival_sums, rng.random() * arrival_sums[-1])].append(now)
        total += 1
        at(now + rng.expovariate(o.rate), 'push')
    elif what == 'watch':
        # It takes a call of all nodes at once, and is written down after it.
        at(now + 2 * o.call / 1000, 'seen', [(n, len(w)) for n, w in enumerate(waiting) if w])
        at(now + o.watch / 1000, 'watch')
    elif what == 'seen':
        seen = [n for n, _ in details[0]]
        sums = list(itertools.accumulate(-(-c // o.max) for _, c in details[0]))
        for _ in range(idle):
            at(now + rng.random() * 0.02, 'claim')
        idle = 0
    elif what == 'claim':
        got, steps = 0, 0
        for node in draw():
            steps += 1
            asked[node] += 1
            take = min(o.max - got, len(waiting[node]))
            useless += take == 0
            for _ in range(take):
                waits.append(now + steps * o.call / 1000 - waiting[node].popleft())
            got += take
            total -= take
            if got == o.max:
                break
        claims += 1
        calls += steps
        if got == 0:
            empty += 1
            # Something waited that the last look could have seen.
            limit = now - (o.watch + 2 * o.call) / 1000
            empty_in_vain += any(waiting[n] and waiting[n][0] < limit for n in seen)
            idle += 1
        else:
            at(now + (steps * o.call + got * o.job) / 1000, 'claim')

waits.sort()
busy = sorted(asked)
print(f'{o.nodes} nodes, {o.rate:.0f} jobs/s, {o.workers} workers, Zipf {o.zipf}: {len(waits)} jobs in '
      f'{claims} claims, seed {o.seed}')
print(f'  claims that came back empty                     {100 * empty / claims:6.2f} %')
print(f'  ... while a job waited that could have been seen {100 * empty_in_vain / claims:5.2f} %')
print(f'  calls of nodes per claim                        {calls / claims:6.2f}, '
      f'of which in vain {useless / claims:.2f}')
print(f'  wait of a job until it is handed out, ms        p50 {1000 * waits[len(waits) // 2]:.0f}, '
      f'p99 {1000 * waits[len(waits) * 99 // 100]:.0f}, longest {1000 * waits[-1]:.0f}')
print(f'  jobs left waiting                               {total}')
print(f'  calls of the busiest node                       {busy[-1] / o.seconds:.0f} per second; '
      f'of the median node {busy[len(busy) // 2] / o.seconds:.0f}')
