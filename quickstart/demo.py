"""demo.py [--dir FOLDER] [--files NUMBER] [--workers NUMBER]: the part of the quickstart that one looks at.

Pushes a job per file, lets workers do them, kills one of the workers, makes one job fail, tries a stale ack, and proves
from the outside that every file was done exactly once. Connects by PGHOST and so on; quickstart/run sees to that."""

import argparse
import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
import time

import worker
from worker import Connection

HERE = pathlib.Path(__file__).resolve().parent
QUEUE = "files"
LARGEST = 256 << 20  # a worker must be done with a file within its lease
VICTIM = "worker-2"
PAUSE = 0.004  # per file, so that there is something to watch


def say(label="", text=""):
    print(f"{label:<12}  {text}".rstrip(), flush=True)


def sql(text):
    for line in text.strip().splitlines():
        say("", "    " + line)


def number(n, thing=""):
    return f"{n:,} {thing}{'' if n == 1 or not thing else 's'}".strip()


def stop(message):
    print(f"\n{message}", flush=True)
    sys.exit(1)


def find_files(folder, most):
    """Up to `most` regular files that we can read, and whose names can stand in JSON."""
    found = []
    for place, folders, names in os.walk(folder):
        folders.sort()
        for path in (os.path.join(place, name) for name in sorted(names)):
            try:
                status = os.lstat(path)
                path.encode()
            except (OSError, UnicodeEncodeError):
                continue
            if stat.S_ISREG(status.st_mode) and status.st_size <= LARGEST and os.access(path,
                os.R_OK) and "\n" not in path:
                found.append(path)
                if len(found) == most:
                    return found
    return found


def psql(*arguments):
    return subprocess.run(["psql", "-X", "-P", "pager=off", *arguments], stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
                          text=True).stdout.rstrip()


class Demo:
    def __init__(self, options):
        self.files = find_files(options.dir, options.files)
        self.options = options
        if len(self.files) < 2:
            stop(f"There are not enough readable files in {options.dir}. "
                 "Choose another folder: make quickstart DIR=/etc")
        self.batch = max(1, min(20, len(self.files) // (2 * options.workers)))
        self.database = Connection("application_name=quickstart")
        self.workers = {}
        self.refused = False

    def one(self, statement, *parameters):
        return self.database.query(statement, *parameters)[0]

    def push(self):
        unlucky = self.files[len(self.files) // 3]
        jobs = [{"type": "file.digest", "queue": QUEUE, "args": [path]} for path in self.files]
        for job in jobs:
            if job["args"] == [unlucky]:
                job["meta"] = {"fail_once": True}
                job["retry"] = {"max_attempts": 3, "initial_interval": "PT1S", "jitter": False}
        self.database.execute("create table digest (job_id uuid, path text, sha256 text, lines bigint, worker text)")
        started = time.monotonic()
        pushed = []
        for at in range(0, len(jobs), 1000):
            pushed += self.database.query("select id from ojs.push_many($1)", json.dumps(jobs[at:at + 1000]))
        took = time.monotonic() - started
        self.unlucky = pushed[self.files.index(unlucky)][0]
        say("push", f"{number(len(pushed), 'file')} of {self.options.dir}, one job each, in {took:.2f} s")
        first = self.files[0]
        sql(f"""select * from ojs.push_many('[{{"type": "file.digest", "queue": "{QUEUE}", "args": ["{first}"]}},
                            …]');""")

    def start(self, name, pause=0.0):
        self.workers[name] = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py"), name, QUEUE, str(self.batch), str(pause)],
            stdin=subprocess.DEVNULL)

    def await_(self, what, condition, seconds=120):
        until = time.monotonic() + seconds
        while not (answer := condition()):
            for name, process in self.workers.items():
                if name != VICTIM and process.poll() is not None:
                    stop(f"{name} ended by itself: see above.")
            if time.monotonic() > until:
                stop(f"Waited {seconds} s in vain for {what}.")
            time.sleep(0.02)
        return answer

    def done(self):
        return int(self.one("select count(*) from digest")[0])

    def held(self):
        return int(self.one("select count(*) from ojs.leases where worker = $1", VICTIM)[0])

    def tell(self, text):
        say(f"{time.monotonic() - self.started:8.1f} s", text)

    def work(self):
        names = [f"worker-{n}" for n in range(1, self.options.workers + 1)]
        say("work", f"{len(names)} workers, each a process with a connection of its own, {self.batch} jobs at a time")
        sql(f"select * from ojs.claim('{QUEUE}', 'worker-1', max => {self.batch}, lease => '{worker.LEASE}', "
            "wait => '1 s');")
        sql("""insert into digest (job_id, path, sha256, lines, worker)        -- one transaction with the ack
select id, args->>0, result->>'sha256', (result->>'lines')::bigint, 'worker-1'
from ojs.ack('job id', result => '{"sha256": "…", "lines": 42}', lease_id => 'lease id');""")
        self.started = time.monotonic()
        # The victim is slow, so that there is a middle to kill it in, and first, so that it gets a batch.
        self.start(VICTIM, 10 * PAUSE)
        self.await_(f"{VICTIM} to claim jobs", lambda: self.held() > 0)
        for name in names:
            if name != VICTIM:
                self.start(name, PAUSE)
        self.kill()
        total, last, failure = len(self.files), time.monotonic(), None
        retried = relet = False
        while (done := self.done()) < total:
            if time.monotonic() - last > 0.7:
                self.tell(f"{number(done)} of {number(total)} done")
                last = time.monotonic()
            if not failure:
                failure = self.database.query("""select worker, state, error->>'message', args->>0,
                    round(extract(epoch from next_attempt_at - now()), 1)
                    from ojs.jobs where id = $1 and error is not null""", self.unlucky)
                if failure:
                    _, state, message, path, wait = failure[0]
                    self.tell(f"an attempt failed: {message}")
                    following = f", next attempt in {wait} s" if state == "retryable" else ""
                    self.tell(f"    {path} is {state}{following}")
            elif not retried:
                again = self.database.query("select worker from digest where job_id = $1", self.unlucky)
                if again:
                    retried = True
                    self.tell(f"    its second attempt succeeded, by {again[0][0]}")
            if not self.refused:
                self.stale_ack()
            if not relet and self.lapsed():
                relet = True
            for name, process in self.workers.items():
                if name != VICTIM and process.poll() is not None:
                    stop(f"{name} ended by itself: see above.")
            if time.monotonic() - self.started > 240 + total / 50:
                stop(f"Only {number(done)} of {number(total)} jobs are done, and no end in sight. "
                     "select * from ojs.leases; may say why.")
            time.sleep(0.01)
        if not self.refused:
            self.stale_ack(too_late=True)
        if not relet:
            self.lapsed()
        self.tell(f"{number(done)} of {number(total)} done")
        for process in self.workers.values():
            process.kill()
            process.wait()

    def kill(self):
        """kill -9 while the victim holds jobs. It is stopped first: what it had sent is done, what it holds stays."""
        process = self.workers[VICTIM]
        middle = range(max(1, self.batch // 3), max(1, self.batch * 2 // 3) + 1)
        self.await_("a good moment", lambda: self.done() > len(self.files) // 10 and self.held() in middle)
        while True:
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.2)
            if self.held() > 0:
                break
            process.send_signal(signal.SIGCONT)
            self.await_("another", lambda: self.held() > 0)
        process.kill()
        process.wait()
        self.orphans = self.database.query("select job_id, lease_id from ojs.leases where worker = $1 order by job_id",
            VICTIM)
        wait = self.one("select round(extract(epoch from min(lease_expires_at) - clock_timestamp()), 1) "
                        "from ojs.leases where worker = $1", VICTIM)[0]
        self.tell(f"kill -9 {process.pid}: {VICTIM} dies in the middle of a batch. {number(len(self.orphans), 'job')} "
                  f"still leased to it, for {wait} s")

    def lapsed(self):
        ids = "{" + ",".join(job for job, _ in self.orphans) + "}"
        rows = self.database.query("select worker, count(*) from digest "
                                   "where job_id = any ($1::uuid[]) group by 1 order by 1", ids)
        if sum(int(n) for _, n in rows) < len(self.orphans):
            return False
        self.tell(f"the leases of {VICTIM} lapsed; its {number(len(self.orphans), 'job')} came back and were done by "
                  + ", ".join(f"{name} ({n})" for name, n in rows))
        return True

    def stale_ack(self, too_late=False):
        """What the fence is for: the victim was not dead but slow, and acks what another worker holds by now."""
        holder = None
        if not too_late:
            ids = "{" + ",".join(job for job, _ in self.orphans) + "}"
            find = "select worker, job_id from ojs.leases where worker <> $1 and job_id = any ($2::uuid[]) limit 1"
            if not self.database.query(find, VICTIM, ids):
                return
            # Hold the new holder still for a moment, lest it is done before we are.
            holder = self.workers[self.one(find, VICTIM, ids)[0]]
            holder.send_signal(signal.SIGSTOP)
            time.sleep(0.1)
            held = self.database.query(find, VICTIM, ids)
            if not held:
                holder.send_signal(signal.SIGCONT)
                return
        self.refused = True
        job, lease = next(o for o in self.orphans if too_late or o[0] == held[0][1])
        self.tell(f"as if {VICTIM} had only been slow: an ack with its old lease, of a job that "
                  + ("another worker has done since" if too_late else f"{held[0][0]} holds now"))
        statement = f"select ojs.ack('{job}', lease_id => '{lease}');"
        sql(statement)
        answer = psql("-v", "VERBOSITY=verbose", "-c", statement)
        if holder:
            holder.send_signal(signal.SIGCONT)
        sql("\n".join(line for line in answer.splitlines() if not line.startswith("LOCATION")))
        if "ERROR" not in answer:
            stop("The stale ack was not refused. That is a bug.")

    def prove(self):
        say("proof", "every file once more, by sha256sum and wc -l; their answers go to the table outside")
        listing = "\0".join(self.files).encode()
        sums = subprocess.run(["xargs", "-0", "sha256sum", "--zero", "--"], input=listing,
            stdout=subprocess.PIPE).stdout
        # One wc per file prints no totals in between.
        lines = subprocess.run(["xargs", "-0", "-n", "1", "wc", "-l", "--"], input=listing,
            stdout=subprocess.PIPE).stdout
        counts = [int(line.split()[0]) for line in lines.splitlines()]
        rows = [[entry[66:].decode(), entry[:64].decode(), n] for entry, n in zip(sums.split(b"\0"), counts)]
        self.database.execute("create table outside (path text, sha256 text, lines bigint)")
        self.database.query("insert into outside select e->>0, e->>1, (e->>2)::bigint "
                            "from jsonb_array_elements($1::jsonb) e", json.dumps(rows))
        query = """\
select count(*)                                       as "files, a job each",
    count(*) filter (where j.state = 'completed')     as "completed",
    count(*) filter (where d.times = 1)               as "recorded once",
    count(*) filter (where d.times is null)           as "never",
    count(*) filter (where d.times > 1)               as "twice",
    count(*) filter (where (j.result->>'sha256', (j.result->>'lines')::bigint)
                         = (o.sha256, o.lines))       as "right result",
    count(*) filter (where j.deliveries > 1)          as "begun twice"
from ojs.jobs j
left join (select job_id, count(*) as times from digest group by job_id) d on d.job_id = j.id
left join outside o on o.path = j.args->>0;"""
        sql(query)
        print(flush=True)
        print(psql("-P", "footer=off", "-c", query, "-c", """
select worker, count(*) as "jobs done", sum(lines) as "lines counted" from digest
group by worker order by worker"""), flush=True)
        print(flush=True)
        figures = [int(n) for n in psql("-qAt", "-F", " ", "-c", query).split()]
        if figures[:6] != [len(self.files)] * 3 + [0, 0, len(self.files)]:
            stop("That is not what it should be. If no file changed meanwhile, it is a bug.")
        print(f"All {number(len(self.files))} files were done exactly once. "
              f"{number(len(self.orphans), 'job')} had to be begun again "
              "because their worker died,\nand one because it failed; none was lost, and none recorded twice.")

    def run(self):
        try:
            self.push()
            self.work()
            self.prove()
        finally:
            for process in self.workers.values():
                if process.poll() is None:
                    process.kill()
                    process.wait()


def main():
    parser = argparse.ArgumentParser(description="Real jobs in front of your eyes.")
    parser.add_argument("--dir", default="/usr/share/doc")
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=4)
    options = parser.parse_args()
    options.dir = os.path.abspath(options.dir)
    if options.workers < 2:
        stop("Give at least two workers: one of them is going to be killed.")
    try:
        Demo(options).run()
    except KeyboardInterrupt:
        sys.exit(130)
    except (worker.SqlError, OSError) as error:
        stop(f"This step failed: {error}")


main()
