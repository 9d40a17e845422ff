"""worker.py NAME QUEUE BATCH [PAUSE]: a worker as small as it can be. Claims jobs, digests the file that each one
names, and acknowledges them, until it is told to stop. Connects by PGHOST and so on.

The digest is stored and its job completed by one statement, hence in one transaction: either both happen or neither.
So each file is recorded exactly once, even though a job whose worker died is handed out a second time."""

import hashlib
import json
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "test/torture"))
from pq import Connection, Dead, SqlError

LEASE = "3 s"
CLAIM = f"""select id, lease_id, attempt, args->>0, meta ? 'fail_once'
from ojs.claim($1, $2, max => $3, lease => '{LEASE}', wait => '1 s')"""
DONE = """insert into digest (job_id, path, sha256, lines, worker)
select id, args->>0, result->>'sha256', (result->>'lines')::bigint, $4
from ojs.ack($1, result => $2, lease_id => $3)"""
FAILED = "select from ojs.fail($1, error => $2, lease_id => $3)"
LEASE_NOT_HELD = "OJ311"


def digest(path):
    sha256, lines = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            sha256.update(block)
            lines += block.count(b"\n")
    return {"sha256": sha256.hexdigest(), "lines": lines}


def main(name, queue, batch, pause=0.0):
    database = Connection(f"application_name={name}")
    while True:
        for job, lease, attempt, path, fail_once in database.query(CLAIM, queue, name, batch):
            try:
                try:
                    if fail_once == "t" and attempt == "1":
                        raise OSError("the disk says no (for show, at the first attempt only)")
                    result = digest(path)
                except OSError as error:
                    database.query(FAILED, job, json.dumps({"type": "OSError", "message": str(error)}), lease)
                else:
                    time.sleep(pause)
                    database.query(DONE, job, json.dumps(result), lease, name)
            except SqlError as error:
                # Too slow: the lease lapsed and the job is another worker's now.
                if error.sqlstate != LEASE_NOT_HELD:
                    raise


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        main(sys.argv[1], sys.argv[2], sys.argv[3], *map(float, sys.argv[4:]))
    except Dead:
        sys.exit(f"{sys.argv[1]}: the server is gone")
