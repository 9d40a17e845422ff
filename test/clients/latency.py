#!/usr/bin/env python3
"""test/clients/latency.py [COUNT]: from the call of push() to the handler, one job at a time, with a pause between two.
Needs a database with the extension, by PGHOST and so on. latency.mjs does the same."""
import random
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "clients/python"))
import psycopg
from ojs_postgres import Worker, push

db = psycopg.connect(autocommit=True)
arrived = threading.Event()
worker = Worker({"latency.job": lambda job: arrived.set()}, queues=["latency"])
thread = threading.Thread(target=worker.run)
thread.start()
time.sleep(1)
times = []
for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 300):
    arrived.clear()
    begun = time.monotonic()
    push(db, "latency.job", queue="latency")
    arrived.wait()
    times.append((time.monotonic() - begun) * 1000)
    time.sleep(random.uniform(0.02, 0.04))
times.sort()
at = lambda share: f"{times[int(len(times) * share)]:.1f}"
print(f"push to handler, ms: p50 {at(0.5)}, p95 {at(0.95)}, p99 {at(0.99)}")
worker.stop()
thread.join()
