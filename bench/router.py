"""bench/router.py DATA JOBS: the measuring part of bench/router."""
import os
import sys

import psycopg

data, jobs = sys.argv[1], int(sys.argv[2])
BATCH = """select count(*) from ojs.push_many((
    select jsonb_agg('{"type": "a.b", "args": [1, "two", {"three": 3}]}'::jsonb)
    from generate_series(1, 100)))"""


def cpu():
    """CPU time of the server's processes, in µs: those that are there, and what the postmaster has of those gone."""
    ticks, postmaster = 0, open(f'{data}/postmaster.pid').readline().strip()
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            if os.readlink(f'/proc/{pid}/cwd') == data:
                stat = open(f'/proc/{pid}/stat').read().rsplit(') ', 1)[1].split()
                ticks += sum(map(int, stat[11:15 if pid == postmaster else 13]))
        except OSError:
            pass
    return ticks * 1e6 / os.sysconf('SC_CLK_TCK')


def measure(database):
    """µs per job of four kinds of call, the least of three rounds: what else runs on the machine only adds."""
    figures = []
    with psycopg.connect(host=os.environ['PGHOST'], dbname=database, autocommit=True, prepare_threshold=1) as c:
        def single_work():
            for (id, lease) in c.execute("select id, lease_id from ojs.claim('default', 'w')").fetchall():
                c.execute('select state from ojs.ack(%s, lease_id => %s)', (id, lease))

        def batch_work():
            got = c.execute("select * from ojs.claim('default', 'w', 100)").fetchall()
            c.execute('select done from ojs.ack_many(%s, %s)', ('w', [job[0] for job in got]))

        for call, size in ((lambda: c.execute("select * from ojs.push('a.b', '[1, 2]')").fetchone(), 1),
            (single_work, 1),
                           (lambda: c.execute(BATCH), 100), (batch_work, 100)):
            number = jobs if size == 1 else jobs // 20
            for _ in range(20 if size == 1 else 0):
                call()
            least = None
            for _ in range(3):
                before = cpu()
                for _ in range(number // 3):
                    call()
                took = (cpu() - before) / (number // 3) / size
                least = took if least is None else min(least, took)
            figures.append(least)
    return figures


print(f'{"µs of CPU per job":20} {"push":>8} {"claim, ack":>12} {"push 100":>10} {"claim, ack 100":>16}')
direct = measure('node1')
print(f'{"direct":20} {direct[0]:8.0f} {direct[1]:12.0f} {direct[2]:10.1f} {direct[3]:16.1f}')
for node in (1, 2, 3, 4):
    with psycopg.connect(host=os.environ['PGHOST'], dbname='router', autocommit=True) as c:
        c.execute('select ojs_router.join_node(%s)', (f'host={os.environ["PGHOST"]} dbname=node{node}',))
    if node != 3:
        f = measure('router')
        print(f'{f"router, {node} node" + "s" * (node > 1):20} {f[0]:8.0f} {f[1]:12.0f} {f[2]:10.1f} {f[3]:16.1f}'
              f'   times direct: {" ".join(f"{a / b:.1f}" for a, b in zip(f, direct))}')
