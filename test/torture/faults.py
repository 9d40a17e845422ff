"""faults.py: what the fault maker of a round does to its server and its sessions."""

import multiprocessing
import os
import re
import signal
import time

import client
import pq

fork = multiprocessing.get_context("fork")

FAULTS = {"kill client": 18, "terminate": 20, "cancel": 8, "kill -9": 6, "immediate stop": 3, "restart": 2,
          "kill worker": 6, "snapshot": 6, "hold": 6, "clock": 10, "dead letters": 4, "prepare": 6, "clock back": 3}
OF_FAILOVER = {"failover": 4, "kill client": 3, "terminate": 3, "hold": 2, "clock": 2, "kill worker": 2,
               "standby away": 5}


class Faults:
    """A part of Round, world.py."""

    def fault(self):
        names, weights = zip(*(OF_FAILOVER if self.kind == "failover" else FAULTS).items())
        name = self.rng.choices(names, weights)[0]
        if self.to_update and client.Clock.now() > self.update_at:
            name = "update"
        t0 = client.Clock.now()
        try:
            done = getattr(self, "fault_" + re.sub(r"\W+", "_", name))(t0)
        except (pq.Dead, pq.SqlError) as e:
            self.log.write("note", client.Clock.now(), "57P01", f"fault {name}: {e}")
            self.control = self.server().wait_ready()
            done = None
        if done:
            self.faults_made[name] = self.faults_made.get(name, 0) + 1
            if done != "crash":
                self.log.write("fault", t0, client.Clock.now() + (done if isinstance(done, float) else 0), name)

    def fault_kill_client(self, t0):
        slot = self.rng.choice(sorted(self.children))
        process, kind, incarnation = self.children[slot]
        process.kill()
        process.join()
        self.spawn(slot, kind, incarnation + 1)
        return True

    def pick_backend(self):
        rows = self.control.execute("select pid from pg_stat_activity where backend_type = 'client backend'"
                                    " and application_name not like 'torture%' and application_name not like 'aud%'")
        return self.rng.choice(sorted(rows))[0] if rows else None

    def fault_terminate(self, t0):
        pid = self.pick_backend()
        return pid and bool(self.control.execute(f"select pg_terminate_backend({pid})"))

    def fault_cancel(self, t0):
        pid = self.pick_backend()
        return pid and bool(self.control.execute(f"select pg_cancel_backend({pid})"))

    def fault_kill_9(self, t0):
        if self.server().kill_a_backend(self.rng) is None:
            return None
        self.new_era(t0, "kill -9")
        return "crash"

    def fault_immediate_stop(self, t0):
        self.server().stop("immediate")
        self.server().start()
        self.new_era(t0, "immediate stop")
        return "crash"

    def fault_restart(self, t0):
        self.server().stop("fast")
        self.server().start()
        self.control.close()
        self.control = self.server().wait_ready()
        return True

    def fault_kill_worker(self, t0):
        pid = self.server().background_worker()
        if pid is None:
            return None
        os.kill(pid, signal.SIGTERM)
        return True

    def fault_update(self, t0):
        """The round began with the last release: now comes this version, while all others work. An update that does
        not get its locks in time changes nothing, and is tried again, at last when nobody works any more."""
        try:
            self.control.execute("alter extension ojs update")
        except pq.SqlError as e:
            if e.sqlstate == "55P03":
                return None
            self.log.write("note", client.Clock.now(), "XX000", f"the update failed: {e}")
        self.to_update = False
        return True

    def fault_standby_away(self, t0):
        """Commits wait for a standby that is away. Who is told to end meanwhile ends, with a work session or not."""
        primary, standby = self.server(), self.world.servers[-1]
        if primary is standby:
            return None
        standby.stop("fast")
        time.sleep(self.rng.uniform(0.5, 4))
        ended = [r[0] for r in self.control.execute("select pid from (select pid from pg_stat_activity"
            " where application_name like 'working%' or wait_event = 'SyncRep' order by random() limit 4) w"
            " where pg_terminate_backend(pid)")]
        until = time.monotonic() + 20
        stays = True
        while stays and ended and time.monotonic() < until:
            time.sleep(0.05)
            stays = self.control.execute("select pid, wait_event, query from pg_stat_activity where pid = any ('{"
                                         + ",".join(ended) + "}')")
        if stays and ended:
            self.log.write("note", client.Clock.now(), "XX000", f"sessions that cannot be ended: {stays}")
        standby.start()
        primary.await_standby()
        return True

    def fault_snapshot(self, t0):
        seconds = self.rng.uniform(2, 12)
        self.side(lambda session: (session.connection.execute("begin isolation level repeatable read;"
                                                              " select count(*) from pg_class"), time.sleep(seconds),
                                   session.connection.execute("rollback")))
        return seconds

    def fault_hold(self, t0):
        """A transaction that has pushed, claimed and acknowledged stays open, then ends one way or the other."""
        seconds, commit = self.rng.uniform(1, 12), self.rng.random() < 0.5

        def body(session):
            def act(i):
                session.push(self.rng.choice(client.QUEUES + ["fifo"]))
                session.claim(self.rng.choice(client.QUEUES), 3, 20)
                if session.held:
                    session.ack(next(iter(session.held.values())))
                if i == 2:
                    time.sleep(seconds)
                return i < 2
            session.transaction(act, commit=commit)
        self.side(body)
        return seconds

    def fault_prepare(self, t0):
        """A prepared transaction that has acked, claimed and pushed stays open, over crashes too, and then ends."""
        seconds, verb = self.rng.uniform(1, 10), self.rng.choice(("commit", "rollback"))
        name = f"torture {getattr(self, 'sides', 0)}"

        def body(session):
            session.claim(self.rng.choice(client.QUEUES), 2, 20)
            session.claim("ordered", 1, 20)
            session.claim("flows", 2, 20)
            session.begin("read committed")
            for held in list(session.held.values())[-4:]:
                session.ack(held)
            session.claim(self.rng.choice(client.QUEUES), 2, 20)
            session.push_many(self.rng.choice(client.QUEUES), 4)
            session.connection.execute(f"prepare transaction '{name}'")
            time.sleep(seconds)
            session.log.write("commit", client.Clock.now(), session.tx)
            while True:
                try:
                    session.world.connect("torture prepared").execute(f"{verb} prepared '{name}'")
                    break
                except (pq.SqlError, pq.Dead) as e:
                    if getattr(e, "sqlstate", None) == "42704":   # an answer was lost
                        break
                    time.sleep(0.1)
            session.log.write("end", client.Clock.now(), session.tx, "ok" if verb == "commit" else "rb")
        self.side(body)
        return seconds

    def fault_dead_letters(self, t0):
        """Dead letters that have been kept long enough: upkeep removes them with all that is theirs."""
        self.control.execute("""select ojs.configure_queue('dead', '{"dead_letter_ttl": "PT1S"}');
            select from ojs.push_many((select jsonb_agg('{"type": "t.dead", "args": [], "queue": "dead",
                "retry": {"max_attempts": 1, "on_exhaustion": "dead_letter"}}'::jsonb) from generate_series(1, 40)));
            select count(ojs.fail(id, '{"type": "t", "message": "m"}', lease_id => lease_id))
                from ojs.claim('dead', 'dead', 40)""")
        return True

    def side(self, body):
        self.sides = getattr(self, "sides", 0) + 1
        name = f"side{self.sides}"

        def run():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self.world.slot = 255
            session = client.Calls(name, self.world, f"{self.seed}/{name}")
            try:
                session.connect()
                body(session)
            except (pq.Dead, pq.SqlError, client.Stopped, client.Rollback):
                pass
            os._exit(0)
        self.beside = [p for p in getattr(self, "beside", []) if p.is_alive()]
        self.beside.append(fork.Process(target=run, daemon=True))
        self.beside[-1].start()

    def fault_clock_back(self, t0):
        """The clock jumps ahead, and back a moment later."""
        seconds = self.rng.choice((1, 5, 40))
        self.fault_clock(t0, seconds)
        time.sleep(self.rng.uniform(0.1, 1.5))
        return self.fault_clock(client.Clock.now(), -seconds)

    def fault_clock(self, t0, seconds=None):
        seconds = seconds or self.rng.choice((0.3, 1, 3, 10, 40))
        offset = round(self.world.clock_offset.value + seconds, 3)
        before = client.Clock.now()
        for server in self.world.servers:
            if server.postmaster() is None:
                continue
            c = self.control if server is self.server() else server.connect("torture control")
            c.execute("load 'ojs'")
            c.execute(f"alter system set ojs.clock_offset = {offset * 1000:.0f}")
            c.execute("select pg_reload_conf()")
        self.world.clock_offset.value = offset
        self.log.write("clock", before, client.Clock.now(), offset)
        return True
