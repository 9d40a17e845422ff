"""world.py: one round of the torture: a server, its sessions, its faults, the drain, and what is left at the end."""

import copy
import json
import os
import random
import re
import signal
import time

import client
import cluster
import flow_sessions
import pq
import sessions
from faults import Faults, fork

SETTINGS = {
    "max_connections": "80", "fsync": "off", "shared_buffers": "128MB", "deadlock_timeout": "200ms",
    "autovacuum_naptime": "3s", "max_wal_size": "2GB", "log_checkpoints": "off", "jit": "off",
    "max_prepared_transactions": "10", "log_min_messages": "warning", "max_worker_processes": "16",
    "wal_receiver_status_interval": "1s", "restart_after_crash": "on", "track_activities": "on",
}
OVERTURE = 7.0
STATES = ("scheduled", "available", "pending", "active", "completed", "retryable", "cancelled", "discarded")
COMPLAINTS = re.compile(r"PANIC|TRAP|terminated by signal (?!9\b)|C\+\+ exception|leak|corrupt|was in no place", re.I)


class World:
    """What the sessions of a round share."""

    def __init__(self, directory, servers):
        self.directory, self.servers = directory, servers
        self.primary = fork.Value("i", 0, lock=False)
        self.stop_flag = fork.Value("i", 0, lock=False)
        self.crowded = fork.Value("i", 0, lock=False)
        self.clock_offset = fork.Value("d", 0.0, lock=False)
        self.calls = fork.Array("q", 256, lock=False)
        self.slot = 0
        self.features, self.extra, self.keys = set(), [], 12
        self.groups = fork.Value("i", 0, lock=False)      # how many a Grouper has seen ended
        self.size = 0

    def connect(self, application):
        # A session that was forked before the last standby was made does not have it in its list.
        server = copy.copy(self.servers[0])
        server.directory = os.path.join(self.directory, f"server{self.primary.value}")
        return server.connect(application)

    def stopping(self):
        return self.stop_flag.value

    def offset(self):
        return self.clock_offset.value

    def has(self, feature):
        return feature in self.features

    def count(self):
        self.calls[self.slot] += 1


class Round(Faults):
    def __init__(self, number, kind, seed, directory, config, options):
        self.number, self.kind, self.options = number, kind, options
        self.rng = random.Random(f"{seed}/{number}")
        self.seed = f"{seed}/{number}"
        self.directory = os.path.join(directory, f"round{number}")
        os.makedirs(self.directory)
        os.chmod(self.directory, 0o755)
        self.config = config
        self.log = client.Log(os.path.join(self.directory, "faults.jsonl"))
        self.era = 0
        self.children = {}          # slot -> (process, class, incarnation)
        self.faults_made = {}
        self.preload = kind != "plain"

    # --- setting up ---

    def set_up(self):
        server = cluster.Cluster(self.config, os.path.join(self.directory, "server0"))
        settings = dict(SETTINGS)
        if self.preload:
            settings["shared_preload_libraries"] = "ojs"
        server.create(settings)
        server.start()
        self.world = World(self.directory, [server])
        self.world.keys, self.world.size = self.options.keys, self.options.size
        c = self.control = server.connect("torture control")
        released = c.execute("select v.version from pg_available_extension_versions v join pg_available_extensions e"
                             " using (name) where name = 'ojs' and v.version <> default_version"
                             " order by string_to_array(v.version, '.')::int[] desc limit 1")
        self.to_update = bool(released) and self.number % 4 == 1
        self.update_at = client.Clock.now() + self.seconds() * self.rng.uniform(0.2, 0.6)
        c.execute("create extension ojs" + (f" version '{released[0][0]}'" if self.to_update else ""))
        c.execute("create schema torture; create unlogged table torture.era (n int);"
                  " insert into torture.era values (0);"
                  " create table torture.effects (job_id uuid, attempt int, worker text)")
        self.discover(c)
        if self.number % 2 == 0:    # as for a subscriber, which sees every logged table
            c.execute("set client_min_messages = error; create publication everything for all tables")
        self.log.write("round", {"kind": self.kind, "preload": self.preload, "seed": self.seed})
        setup = client.Calls("setup", self.world, "setup")
        setup.connect()
        for queue in self.queues():
            setup.push(queue)
        setup.connection.close()
        if self.kind == "failover":
            self.add_standby()

    def discover(self, c):
        """Leaves out what the extension does not have yet."""
        names = {r[0] for r in c.execute("select proname from pg_proc where pronamespace = 'ojs'::regnamespace")}
        self.world.features |= names
        for feature, call in (("unique", "ojs.push('probe', queue => 'probe', \"unique\" => '{}')"),
                              ("dedup", "ojs.push('probe', queue => 'probe', deduplication_key => 'x')")):
            try:
                c.execute(f"begin; select {call}")
                self.world.features.add(feature)
            except pq.SqlError as e:
                if e.sqlstate != "OJ700":
                    raise
            finally:
                c.execute("rollback")
        if "unique" in self.world.features and not self.really_unique(c):
            self.world.features.discard("unique")
        if "create_queue" in names:
            try:
                c.execute("""select ojs.create_queue('crowd1', '{"lease_ms": 1500}'),
                    ojs.create_queue('crowd2', '{"lease_ms": 600}')""")
                c.execute("select ojs.create_queue('extra', '{}')")
                for queue, config in client.APART.items():
                    c.execute(f"select ojs.create_queue('{queue}', '{json.dumps(config)}')")
                self.world.extra = ["extra"]
            except pq.SqlError:
                self.world.features.discard("create_queue")
        self.world.hooks = "register_hook" in names and self.number % 2 == 1     # all pushes pay for them
        if self.world.hooks:
            c.execute(client.HOOKS)
        known = {"unique", "dedup", "work_open", "pause_queue", "create_queue", "queue_stats", "tick", "beat"}
        self.missing = sorted(known - self.world.features)

    def queues(self):
        apart = list(client.APART) if self.world.has("create_queue") else []
        return client.QUEUES + self.world.extra + ["fifo", "wake", "uniq", "working"] + apart

    def really_unique(self, c):
        try:
            c.execute("begin; select ojs.push('probe', queue => 'probe', \"unique\" => '{}');"
                      " select ojs.push('probe', queue => 'probe', \"unique\" => '{}')")
            return False
        except pq.SqlError as e:
            return e.sqlstate == "OJ301"
        finally:
            c.execute("rollback")

    def spawn(self, slot, kind, incarnation=0):
        name = f"{kind.__name__.lower()}{slot}.{incarnation}"
        self.world.slot = slot

        def body():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self.world.slot = slot
            kind(name, self.world, f"{self.seed}/{name}").run()
            os._exit(0)
        process = fork.Process(target=body, daemon=True)
        process.start()
        self.children[slot] = (process, kind, incarnation)

    def spawn_all(self):
        kinds = [sessions.Auditor, sessions.Fifo, sessions.Waiter, sessions.Waker]
        if self.world.has("work_open"):
            kinds += [sessions.Working] * 2
        if self.world.has("create_queue"):
            kinds += [sessions.Kept] * 2 + [sessions.Hasty] * 2 + [sessions.Few] * 4 + [sessions.Paced] * 2 \
                + [sessions.Shared] * 3 + [sessions.Hooked] + [sessions.Keeper] + [sessions.Patient] * 2 \
                + [sessions.Tuner] * 2 + [sessions.Filtered] * 2
            kinds += [sessions.Ordered] * (self.options.clients if self.options.sessions else 3)
        if self.world.has("create_workflow"):
            kinds += [flow_sessions.Flows] * (self.options.clients if self.options.sessions else 4)
            if self.options.sessions:
                kinds += [flow_sessions.Grouper] + [flow_sessions.Finisher] * self.options.clients
        kinds += [sessions.Mixed] * self.options.clients
        if self.options.sessions:
            kinds += [sessions.Rival] * self.options.clients
            kinds = [k for k in kinds if k.__name__.lower() in self.options.sessions.split(",")]
        slots = sorted(enumerate(kinds), key=lambda k: k[1] not in (sessions.Waiter, sessions.Waker))
        for i, (slot, kind) in enumerate(slots):
            if i == 2:
                self.overture()
            self.spawn(slot, kind)

    def overture(self):
        """First the waiter and the waker are alone. With more going on, the worker ticks so often that it makes up for
        wake-ups that were lost."""
        until = client.Clock.now() + (OVERTURE if self.preload else 0)
        while client.Clock.now() < until:
            self.nap()
        self.world.crowded.value = 1
        self.log.write("crowd", client.Clock.now())

    # --- the life of a round ---

    def run(self):
        started = client.Clock.now()
        self.set_up()
        self.spawn_all()
        until = client.Clock.now() + self.seconds()
        mean = self.seconds() / max(1, self.options.faults)
        next_fault = client.Clock.now() + min(2.0, mean)
        while client.Clock.now() < until and not self.enough():
            self.nap()
            self.watch()
            if self.options.faults and client.Clock.now() >= next_fault:
                self.fault()
                next_fault = client.Clock.now() + self.rng.expovariate(1 / mean) * 0.9
        self.finish()
        self.wall = client.Clock.now() - started

    def nap(self, seconds=0.05):
        """Sleeps, and notes how much longer that took: as late as that may any process be on this machine just now."""
        t0 = client.Clock.now()
        time.sleep(seconds)
        t1 = client.Clock.now()
        if t1 - t0 > seconds + 0.02:
            self.log.write("lag", t0, t1, t1 - t0 - seconds)

    def seconds(self):
        return self.options.round_seconds

    def enough(self):
        return self.options.round_operations and sum(self.world.calls) >= self.options.round_operations \
            or self.options.groups and self.world.groups.value >= self.options.groups

    def watch(self):
        """Sessions that ended by themselves, and crashes that nobody ordered."""
        for slot, (process, kind, incarnation) in list(self.children.items()):
            if not process.is_alive():
                self.log.write("note", client.Clock.now(), "57P01", f"session {slot} ended with {process.exitcode}")
                if process.exitcode not in (0, -9):
                    self.log.write("note", client.Clock.now(), "XX000", f"session {slot} failed: {process.exitcode}")
                self.spawn(slot, kind, incarnation + 1)
        try:
            rows = self.control.execute("select n from torture.era")
        except pq.Dead:
            self.control = self.world.servers[self.world.primary.value].wait_ready()
            rows = self.control.execute("select n from torture.era")
        if not rows:
            now = client.Clock.now()
            self.log.write("note", now, "XX000", "the server crashed, and nobody had ordered it")
            self.new_era(now, "unexpected")

    def new_era(self, t0, kind):
        until = time.monotonic() + 120
        while True:
            self.control.close()
            try:
                self.control = self.world.servers[self.world.primary.value].wait_ready()
                if not self.control.execute("select n from torture.era"):
                    self.era += 1
                    self.control.execute(f"insert into torture.era values ({self.era})")
                    break
            except (pq.Dead, pq.SqlError):
                pass
            if time.monotonic() > until:
                raise SystemExit("the server did not come back")
            time.sleep(0.02)
        self.log.write("crash", t0, client.Clock.now(), self.era, kind)

    def server(self):
        return self.world.servers[self.world.primary.value]

    # --- a standby ---

    def add_standby(self):
        server = self.server()
        number = len(self.world.servers)
        other = server.standby(os.path.join(self.directory, f"server{number}"))
        self.control.execute("alter system set synchronous_standby_names = '*'")
        self.control.execute("select pg_reload_conf()")
        server.await_standby()
        self.world.servers.append(other)

    def fault_failover(self, t0):
        if len(self.world.servers) - 1 == self.world.primary.value:
            self.add_standby()
            return None
        old, new = self.server(), self.world.servers[-1]
        old.await_standby()
        t0 = client.Clock.now()
        old.stop("immediate")
        new.run("pg_ctl", "promote", "-D", new.data, "-w", check=False)
        self.world.primary.value += 1
        self.new_era(t0, "failover")
        old.destroy()
        self.add_standby()
        return "crash"

    # --- the end ---

    def finish(self):
        self.world.stop_flag.value = 1
        until = time.monotonic() + 180  # an auditor's two statements may take a minute each on a busy machine
        for process, kind, _ in self.children.values():
            process.join(max(0.1, until - time.monotonic()))
            if process.is_alive():
                self.log.write("note", client.Clock.now(), "XX000", f"a {kind.__name__} hangs: {self.server().doing()}")
                process.kill()
        self.control.close()
        self.control = self.server().wait_ready()
        if self.to_update and not self.fault_update(client.Clock.now()):
            self.log.write("note", client.Clock.now(), "XX000", "the update gets no locks though nobody works")
        if len(self.world.servers) - 1 > self.world.primary.value:
            self.control.execute("alter system set synchronous_standby_names = ''")
            self.control.execute("select pg_reload_conf()")
        self.control.execute("select pg_terminate_backend(pid) from pg_stat_activity"
                             " where backend_type = 'client backend' and pid <> pg_backend_pid()")
        if self.options.faults and self.rng.random() < 0.5:
            t0 = client.Clock.now()
            self.server().stop("immediate")
            self.server().start()
            self.new_era(t0, "immediate stop")
            self.faults_made["immediate stop"] = self.faults_made.get("immediate stop", 0) + 1
        self.world.stop_flag.value = 0
        # Who has prepared a transaction ends it, and notes how; what those leave open that were killed is rolled back.
        for process in getattr(self, "beside", []):
            process.join(60)
        for row in self.control.execute("select gid from pg_prepared_xacts"):
            self.control.execute(f"rollback prepared '{row[0]}'")
        self.settle()
        differences = self.statistics()
        self.drain()
        differences += self.statistics()
        self.dump(differences)
        for server in self.world.servers[self.world.primary.value:]:
            server.stop("fast")

    def settle(self):
        """What a crash has emptied is rebuilt. What a prepared transaction had in doubt over one is decided: a worker
        finds that at once, others within five minutes."""
        self.control.execute("select ojs.tick()")
        sessions.audit_once(self.control, self.log)
        self.control.execute("set client_min_messages = error; select ojs_store.reconcile('0')")

    def drain(self):
        drain = client.Calls("drain", self.world, "drain")
        drain.connect()
        self.fault_clock(client.Clock.now(), 86400)
        time.sleep(3.2)
        queues = self.queues()
        if self.world.has("create_queue"):
            drain.configure("paced", "rate_limit", None)
        if self.world.has("resume_queue"):
            for queue in self.world.extra:
                drain.simple("resume_queue", queue)
        drain.tick()
        idle = 0
        while idle < 5:
            for row in self.control.execute("select job_id from ojs_store.delayed where kind = 3"):
                drain.activate(row[0])
            rows = drain.claim(queues, 1000, 300)
            if rows:
                drain.many("ack_many", list(drain.held.values()))
                idle = 0
                continue
            for _ in range(3):
                drain.tick()
            if self.control.execute("select (select count(*) from ojs_store.job j where not exists"
                                    " (select from ojs_store.finished d where d.job_id = j.id))"
                                    " + (select count(*) from ojs_store.workflow where state = 'running')"
                                    )[0][0] == "0":
                break
            idle += 1
            if idle == 2:
                self.fault_clock(client.Clock.now(), 86400)
            time.sleep(1)
        drain.connection.close()

    def statistics(self):
        """What queue_stats says, where nothing moves but the time, against the rows. A lease may run out between the
        two looks, so what differs must differ again."""
        if not self.world.has("queue_stats"):
            return []
        for _ in range(3):
            differences = self.compare_statistics()
            if not differences:
                break
        return differences

    def compare_statistics(self):
        columns = "available, active, scheduled, retryable, pending, completed, cancelled, discarded".split(", ")
        try:
            self.control.execute("select ojs.tick()")   # what a crash has emptied is rebuilt before it is counted
            rows = self.control.execute(
                "select 'said', queue, " + ", ".join(columns) + " from ojs.queue_stats() "
                "union all select 'counted', queue, "
                + ", ".join(f"count(*) filter (where state = '{c}')" for c in columns)
                + " from ojs.jobs group by queue order by 2, 1")
        except pq.SqlError as e:
            return [] if e.sqlstate == "OJ700" else [str(e)]
        # jobs fall due while the rows are looked at: those that wait for a time and those to be claimed are one sum
        def sums(row):
            available, active, scheduled, retryable, *rest = [int(n) for n in row[2:]]
            return [available + scheduled + retryable, active] + rest
        said = {r[1]: sums(r) for r in rows if r[0] == "said"}
        return [f"queue {r[1]}: counted {sums(r)}, said {said.get(r[1])}" for r in rows
                if r[0] == "counted" and sums(r) != said.get(r[1])]

    def dump(self, differences):
        c = self.control
        # entries that claims have marked dead hide rows from indexes, and only from them: look at the tables
        c.execute("set statement_timeout = 0; set enable_indexscan = off; set enable_indexonlyscan = off;"
                  " set enable_bitmapscan = off")
        jobs = c.execute("select id, args #>> '{0,tag}', seq, priority, meta ->> 'hooked', type,"
                         " options ->> 'workflow_id', coalesce(options ->> 'workflow_step',"
                         " options ->> 'workflow_callback') from ojs_store.job where type <> 't.dead'")
        done = c.execute("select job_id, state, attempt, deliveries, extract(epoch from finished_at), error ->> 'type'"
                         " from ojs_store.finished")
        events = c.execute("select job_id, kind, extract(epoch from at), extract(epoch from due_at), attempt, "
                           "deliveries, worker from ojs_store.job_history order by at")
        effects = c.execute("select * from torture.effects")
        places = c.execute("select job_id, 'ready', position::text, xmin, ctid from ojs_store.ready union all"
                           " select job_id, 'lease', token::text, xmin, ctid from ojs_store.lease union all"
                           " select job_id, 'later ' || kind, due_at::text, xmin, ctid"
                           " from ojs_store.delayed limit 200")
        left = {t: int(c.execute(f"select count(*) from ojs_store.{t}")[0][0])
                for t in ("ready", "lease", "delayed", "ordering_line", "workflow_open", "workflow_due")}
        complaints = []
        for server in self.world.servers:
            if os.path.exists(server.log):
                with open(server.log, errors="replace") as f:
                    complaints += [line.strip() for line in f if COMPLAINTS.search(line)]
        final = {
            "jobs": [dict(zip(("id", "tag", "seq", "priority", "hooked", "type", "workflow", "step"), r))
                     for r in jobs],
            "ended": c.execute("select * from torture.ended") if self.world.hooks else None,
            "done": [dict(job_id=r[0], state=STATES[int(r[1])], attempt=int(r[2]), deliveries=int(r[3]),
                          finished_at=float(r[4]), error=r[5]) for r in done],
            "events": [dict(job_id=r[0], kind=int(r[1]), at=float(r[2]), due_at=r[3], attempt=int(r[4]),
                            deliveries=int(r[5]), worker=r[6]) for r in events],
            "flows": self.flows(c),
            "effects": [dict(job_id=r[0], attempt=int(r[1]), worker=r[2]) for r in effects],
            "left": left, "places": places, "differences": differences, "server": complaints[:50],
        }
        with open(os.path.join(self.directory, "final.json"), "w") as f:
            json.dump(final, f)

    def flows(self, c):
        """What is left of workflows, where there are any."""
        if not self.world.has("create_workflow"):
            return None
        return {
            "workflows": c.execute("select id, root, parent, position, type, state, members from ojs_store.workflow"),
            "ends": c.execute("select workflow, position, member, state, extract(epoch from ended_at)"
                              " from ojs_store.workflow_end"),
            "steps": [r[0] for r in c.execute("select definition #>> '{args,0,tag}' from ojs_store.workflow_member"
                                              " where definition #>> '{args,0,tag}' is not null")],
            "mended": int(c.execute("select coalesce(sum(mended), 0) from ojs_store.workflow_check")[0][0]),
        }

    def clean_up(self):
        for process, _, _ in self.children.values():
            if process.is_alive():
                process.kill()
        if hasattr(self, "world"):
            for server in self.world.servers:
                server.destroy()
