"""bench/router.py DATA JOBS: the measuring part of bench/router."""
import os
import sys

import psycopg

data, jobs = sys.argv[1], int(sys.argv[2])
ROUNDS = 20
BATCH = """(select jsonb_agg('{"type": "a.b", "args": [1, "two", {"three": 3}]}'::jsonb)
    from generate_series(1, 100))"""
# One call of the node each, by a PL/Proxy function and nothing else.
BARE = {
    "select * from ojs.push('a.b', '[1, 2]')": "select ojs_router.remote_push(1, 'a.b', '[1, 2]', 'default')",
    "select id, lease_id from ojs.claim('default', 'w')": """
        with c as materialized (
            select ojs_router.remote_claim_one(1, '{default}', 'w', null, '0')::ojs.claimed_job as j)
        select (j).id, (j).lease_id from c""",
    'select state from ojs.ack(%s, lease_id => %s)': 'select ojs_router.remote_ack(1, %s, null, %s, null)',
    f'select count(*) from ojs.push_many({BATCH})':
        f"select count(*) from ojs_router.remote_push_many(1, {BATCH}, null, null, 'atomic', null)",
    "select * from ojs.claim('default', 'w', 100)":
        "select * from ojs_router.remote_claim(1, '{default}', 'w', 100, null, '0')",
    "select done from ojs.ack_many('w', %s)": "select done from ojs_router.remote_ack_many(1, 'w', %s, null, null)"}
PUSH, CLAIM, ACK, PUSH_100, CLAIM_100, ACK_100 = BARE


def cpu():
    """CPU time in µs of each of the server's processes."""
    times = {}
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            if os.readlink(f'/proc/{pid}/cwd') == data:
                times[pid] = int(open(f'/proc/{pid}/schedstat').read().split()[0]) / 1e3
        except OSError:
            pass
    return times


class Caller:
    """Calls on a node, through the router, or by PL/Proxy alone."""

    def __init__(self, database, bare=False):
        self.connection = psycopg.connect(host=os.environ['PGHOST'], dbname=database, autocommit=True,
            prepare_threshold=1)
        self.bare = bare
        if bare:
            self.connection.execute('set role ojs_router')
        for _ in range(10):
            self.push_batch()
        self.work_batch()

    def run(self, call, *parameters):
        return self.connection.execute(BARE[call] if self.bare else call, parameters or None).fetchall()

    def push(self):
        self.run(PUSH)

    def work(self):
        for id, lease in self.run(CLAIM):
            self.run(ACK, id, lease)

    def push_batch(self):
        self.run(PUSH_100)

    def work_batch(self):
        self.run(ACK_100, [job[0] for job in self.run(CLAIM_100)])


def measure(callers):
    """µs per job of four kinds of calls by each caller: the least of many rounds, in which all take turns, since what
    else runs on the machine only adds."""
    least = {}
    for _ in range(ROUNDS):
        for name, caller in callers.items():
            for call, size in ((caller.push, 1), (caller.work, 1), (caller.push_batch, 100), (caller.work_batch, 100)):
                number = max(1, jobs // ROUNDS // (1 if size == 1 else 20))
                before = cpu()
                for _ in range(number):
                    call()
                took = sum(time - before.get(pid, 0) for pid, time in cpu().items()) / number / size
                key = name, call.__name__
                least[key] = min(took, least.get(key, took))
    return {name: [t for (n, _), t in least.items() if n == name] for name in callers}


print(f'{"µs of CPU per job":24} {"push":>6} {"claim, ack":>11} {"push 100":>9} {"claim, ack 100":>15}   times direct')
for node in (1, 2, 3, 4):
    with psycopg.connect(host=os.environ['PGHOST'], dbname='router', autocommit=True) as c:
        c.execute('select ojs_router.join_node(%s)', (f'host={os.environ["PGHOST"]} dbname=node{node}',))
    if node == 3:
        continue
    # A caller leaves jobs behind, which are for those of the next number of nodes as well.
    figures = measure({'direct': Caller('node1'), 'PL/Proxy alone, 1 node': Caller('router', bare=True),
        f'router, {node} node{"s" * (node > 1)}': Caller('router')})
    for name, f in figures.items():
        print(f'{name:24} {f[0]:6.0f} {f[1]:11.0f} {f[2]:9.1f} {f[3]:15.1f}   '
            + ' '.join(f'{a / b:.1f}' for a, b in zip(f, figures['direct'])))
