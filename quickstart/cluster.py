"""quickstart/cluster.py FOLDER PG_CTL [OPTIONS]: the work of quickstart/cluster, with its options."""
import argparse
import collections
import json
import os
import shlex
import subprocess
import sys
import threading
import time

import psycopg

parser = argparse.ArgumentParser()
parser.add_argument('folder')
parser.add_argument('pg_ctl')
parser.add_argument('--jobs', type=int, default=6000)
parser.add_argument('--workers', type=int, default=6)
parser.add_argument('--seconds', type=float, default=120, help='give up after so many')
options = parser.parse_args()
options.jobs -= options.jobs % 50

started = time.time()
# Ids; by id, how often a worker was told that it had completed the job; ids of which a worker said so, perhaps without
# an answer; how many batches were pushed twice.
pushed, finished, acked, redone = [], {}, set(), 0
mutex = threading.Lock()
all_pushed, over = threading.Event(), threading.Event()
failed = []


def say(what):
    print(f'{time.time() - started:6.1f} s  {what}', flush=True)


def address(node, folder=None):
    return f'host={options.folder}/{folder or f"node{node}"}/socket dbname=jobs user=postgres'


def router():
    return psycopg.connect(autocommit=True)


def admin(sql, *parameters):
    with router() as c:
        return c.execute(sql, parameters).fetchall()


def pg_ctl(folder, *words):
    subprocess.run([*shlex.split(options.pg_ctl), f'{options.folder}/{folder}/data', *words], check=True,
        stdout=subprocess.DEVNULL,
                   stdin=subprocess.DEVNULL)


def until(done):
    while not done():
        if failed:
            raise failed[0]
        time.sleep(0.05)


def give_up():
    """However a call hangs, the whole ends."""
    time.sleep(options.seconds)
    say(f'given up after {options.seconds:g} s: {len(pushed)} of {options.jobs} jobs were pushed, {len(acked)} acked,'
        f' {len(finished)} with an answer (--seconds gives more time)')
    os._exit(1)


def thread(target, *arguments):
    def run():
        try:
            target(*arguments)
        except Exception as e:
            failed.append(e)
    t = threading.Thread(target=run, daemon=True)
    t.start()
    return t


def push():
    """Batches of 50. One that failed is pushed again later with the same key, and is there once."""
    global redone
    batches = collections.deque(range(options.jobs // 50))
    with router() as c:
        while batches:
            batch = batches.popleft()
            jobs = json.dumps([{'type': 'sum.up', 'args': [batch * 50 + i], 'queue': 'work'} for i in range(50)])
            try:
                ids = [row[0] for row in c.execute('select id from ojs.push_many(%s, idempotency_key => %s)',
                    (jobs, f'batch {batch}'))]
                with mutex:
                    pushed.extend(ids)
            except psycopg.OperationalError as e:
                if e.sqlstate != '57P03':
                    raise
                redone += 1
                batches.append(batch)
            time.sleep(0.02)
    all_pushed.set()


def work(name):
    """A worker knows one database only, the router."""
    with router() as c:
        while not over.is_set():
            try:
                jobs = c.execute("""select id, args, lease_id from ojs.claim('work', %s, 10, lease => '5 s',
                    wait => '1 s', missing_ok => true)""", (name,)).fetchall()
                if jobs:
                    ids = [job[0] for job in jobs]
                    with mutex:
                        acked.update(ids)
                    results = [json.dumps({'sum': sum(range(job[1][0] % 1000))}) for job in jobs]
                    skipped = c.execute('select skipped from ojs.ack_many(%s, %s, %s::jsonb[], %s)', (
                        name, ids, results, [job[2] for job in jobs])).fetchone()[0]
                    with mutex:
                        for id in set(ids) - set(skipped):
                            finished[id] = finished.get(id, 0) + 1
            except psycopg.OperationalError as e:
                if e.sqlstate != '57P03':
                    raise


def all_done():
    """As the nodes say: an ack may have been carried out whose answer was lost with node 1."""
    return all_pushed.is_set() and admin('select sum(completed) from ojs.queue_stats()') == [(len(pushed),)]


threading.Thread(target=give_up, daemon=True).start()
for node in (1, 2, 3):
    admin('select ojs_router.join_node(%s)', address(node).replace(' user=postgres', ''))
say('three nodes have joined the router; node 1 has a streaming standby')
watcher = thread(lambda: router().execute('call ojs_router.watch()'))
threads = [thread(push)] + [thread(work, f'worker-{i + 1}') for i in range(options.workers)]
until(lambda: len(finished) > options.jobs / 5)
say(f'{len(finished)} jobs are done; node 1 is killed')
pg_ctl('node1', '-m', 'immediate', 'stop')
before, died = len(finished), time.time()
until(lambda: len(finished) > before)
say(f'the next job of another node was done {time.time() - died:.1f} s later')
until(lambda: len(finished) > options.jobs * 2 / 5 or time.time() > died + 5)
say(f'{len(finished)} jobs are done; the standby of node 1 is promoted, and the router told where it is')
pg_ctl('standby', 'promote')
admin("select ojs_router.set_conninfo(1, %s)", address(1, 'standby').replace(' user=postgres', ''))
until(lambda: len(finished) > options.jobs * 3 / 5)
say(f'{len(finished)} jobs are done; node 4 joins')
# A slot of a push that is under way is not settled.
until(lambda: admin('select ojs_router.settle()') == [(0,)])
admin('select ojs_router.join_node(%s)', address(4).replace(' user=postgres', ''))
until(all_done)
over.set()
for t in threads:
    t.join()
say('all are done')

print(f'\n  {"node":20} {"jobs":>6} {"completed":>10} {"delivered again":>16}')
seen, completed = {}, 0
for node, folder in ((1, 'standby'), (2, None), (3, None), (4, None)):
    with psycopg.connect(address(node, folder)) as c:
        rows = c.execute('select id, state, deliveries from ojs.jobs').fetchall()
    for id, state, _ in rows:
        seen[id] = seen.get(id, 0) + 1
    done = sum(state == 'completed' for _, state, _ in rows)
    completed += done
    title = f'{node} (promoted standby)' if folder else node
    print(f'  {title:<20} {len(rows):6} {done:10} {sum(d > 1 for _, _, d in rows):16}')
print(f'  {"all":20} {len(seen):6} {completed:10}\n')
checks = {
    f'{len(pushed)} jobs were pushed; each is on exactly one node':
        set(seen) == set(pushed) and set(seen.values()) == {1} and len(set(pushed)) == len(pushed),
    f'each was completed exactly once; {len(pushed) - len(finished)} by acks whose answers were lost with node 1':
        completed == len(pushed) and set(finished) <= acked == set(pushed) and set(finished.values()) == {1},
    f'{redone} pushes were tried again while a node was gone, and none made a job twice': len(pushed) == options.jobs,
}
for what, good in checks.items():
    print(f'  {"yes" if good else "NO ":4} {what}')
sys.exit(0 if all(checks.values()) else 1)
