"""router_tap.py: what the tests of the router share: TAP, and calls on the router or on another connection."""
import json
import os
import threading

import psycopg

here = os.environ['PGHOST']
n = 0
default = None


def ok(good, name, said=''):
    global n
    n += 1
    print('ok' if good else 'not ok', n, '-', name, flush=True)
    if not good:
        print('#', str(said).replace('\n', '\n# '), flush=True)


def same(have, want, name):
    ok(have == want, name, f'have {have!r}, want {want!r}')


def plan():
    print(f'1..{n}')


def connect(database='router', **options):
    return psycopg.connect(f'dbname={database}', **{'autocommit': True, 'host': here, **options})


def use(connection):
    """Where calls go that name no other."""
    global default
    default = connection
    return connection


def rows(sql, *parameters, on=None):
    return (on or default).execute(sql, parameters or None).fetchall()


def one(sql, *parameters, on=None):
    return rows(sql, *parameters, on=on)[0][0]


def error(sql, *parameters, on=None):
    try:
        (on or default).execute(sql, parameters or None)
        return None
    except psycopg.Error as e:
        return e


def code(e):
    return (e.sqlstate, json.loads(e.diag.message_detail)['code']) if e and e.diag.message_detail else e and e.sqlstate


def spread(sql, *parameters):
    """How many ids of what the query returns each node made."""
    counts = {}
    for (id,) in rows(sql, *parameters):
        counts[int(str(id).split('-')[3], 16) & 16383] = counts.get(int(str(id).split('-')[3], 16) & 16383, 0) + 1
    return counts


def at_once(*calls):
    threads = [threading.Thread(target=c) for c in calls]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
