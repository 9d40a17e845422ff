"""cluster.py: a throwaway PostgreSQL cluster, unix socket only, that can be crashed, promoted and thrown away."""

import os
import pwd
import random
import shutil
import signal
import subprocess
import time

import pq


def server_user():
    """The server refuses to run as root: then it runs as postgres."""
    return pwd.getpwnam("postgres") if os.geteuid() == 0 else None


class Cluster:
    def __init__(self, pg_config, directory):
        self.bin = subprocess.check_output([pg_config, "--bindir"], text=True).strip()
        self.directory = directory
        self.data = os.path.join(directory, "data")
        self.log = os.path.join(directory, "server.log")
        self.environment = dict(os.environ, LC_ALL="C.UTF-8", TZ="UTC")
        self.user = server_user()
        os.makedirs(directory, exist_ok=True)
        if self.user:
            os.chown(directory, self.user.pw_uid, self.user.pw_gid)

    def conninfo(self, application="torture"):
        user = self.user.pw_name if self.user else pwd.getpwuid(os.geteuid()).pw_name
        return f"host={self.directory} dbname=postgres user={user} application_name='{application}' connect_timeout=5"

    def connect(self, application="torture"):
        return pq.Connection(self.conninfo(application))

    def doing(self):
        """What the sessions do and wait for, and who is in their way."""
        try:
            return self.connect("torture doing").execute(
                "select application_name, pid, state, wait_event, pg_blocking_pids(pid), now() - query_start,"
                " left(query, 200) from pg_stat_activity where backend_type = 'client backend' and state <> 'idle'")
        except (pq.Dead, pq.SqlError) as e:
            return f"unknown: {e}"

    def run(self, program, *arguments, check=True):
        command = [os.path.join(self.bin, program), *arguments]
        if self.user:
            command = ["setpriv", f"--reuid={self.user.pw_uid}", f"--regid={self.user.pw_gid}", "--clear-groups",
                       *command]
        return subprocess.run(command, env=self.environment, cwd=self.directory, check=check,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def create(self, settings):
        self.run("initdb", "-D", self.data, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "-N")
        self.configure(settings)

    def configure(self, settings):
        with open(os.path.join(self.data, "postgresql.conf"), "a") as conf:
            conf.write(f"listen_addresses = ''\nunix_socket_directories = '{self.directory}'\n")
            conf.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def start(self, timeout=90):
        # pg_ctl's children keep its output open, so it may not be a pipe
        command = ["start", "-D", self.data, "-l", self.log, "-w", "-t", str(timeout)]
        program = [os.path.join(self.bin, "pg_ctl"), *command]
        if self.user:
            program = ["setpriv", f"--reuid={self.user.pw_uid}", f"--regid={self.user.pw_gid}", "--clear-groups",
                       *program]
        subprocess.run(program, env=self.environment, cwd=self.directory, check=True, stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop(self, mode="fast"):
        return self.run("pg_ctl", "stop", "-D", self.data, "-m", mode, "-w", "-t", "60", check=False)

    def reload(self):
        self.run("pg_ctl", "reload", "-D", self.data)

    def postmaster(self):
        try:
            with open(os.path.join(self.data, "postmaster.pid")) as f:
                return int(f.readline())
        except (OSError, ValueError):
            return None

    def children(self):
        """Processes of this server: {pid: title}."""
        parent, found = self.postmaster(), {}
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                with open(f"/proc/{entry}/stat") as f:
                    if int(f.read().rsplit(")", 1)[1].split()[1]) != parent:
                        continue
                with open(f"/proc/{entry}/cmdline") as f:
                    found[int(entry)] = f.read().replace("\0", " ").strip()
            except (OSError, IndexError, ValueError):
                pass
        return found

    def kill_a_backend(self, rng):
        """kill -9 of one session's server process: the server restarts all of them. Returns its title, or None."""
        backends = [(pid, title) for pid, title in sorted(self.children().items()) if "[local]" in title]
        if not backends:
            return None
        pid, title = rng.choice(backends)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return None
        return title

    def background_worker(self):
        """The pid of ojs's own background worker, if any."""
        for pid, title in sorted(self.children().items()):
            if "ojs" in title and "[local]" not in title and "launcher" not in title:
                return pid
        return None

    def wait_ready(self, timeout=120):
        """Connects as soon as the server lets us."""
        until = time.monotonic() + timeout
        while True:
            try:
                return self.connect("torture control")
            except pq.Dead:
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)

    def standby(self, directory):
        """A streaming standby of this server, running."""
        other = Cluster.__new__(Cluster)
        other.__dict__.update(self.__dict__)
        other.directory, other.data = directory, os.path.join(directory, "data")
        other.log = os.path.join(directory, "server.log")
        os.makedirs(directory, exist_ok=True)
        if self.user:
            os.chown(directory, self.user.pw_uid, self.user.pw_gid)
        user = self.user.pw_name if self.user else pwd.getpwuid(os.geteuid()).pw_name
        self.run("pg_basebackup", "-h", self.directory, "-U", user, "-D", other.data, "-R", "-X", "stream", "-c",
                 "fast")
        other.configure({"synchronous_standby_names": "", "hot_standby": "on"})
        other.start()
        return other

    def await_standby(self, timeout=120):
        """Returns when commits wait for the standby, and it has all that this server shows. A server that has crashed
        shows what it had committed before its standby has it. The checkpointer tells sessions to wait, not their own
        setting: who asks for a checkpoint has it read the setting."""
        c, until = self.wait_ready(), time.monotonic() + timeout
        while not c.execute("select pid from pg_stat_replication where sync_state = 'sync'"):
            if time.monotonic() > until:
                raise SystemExit("the standby does not become synchronous")
            time.sleep(0.05)
        for command in ("checkpoint", "create table if not exists public.mark ()", "drop table public.mark"):
            c.execute(command)
        c.close()

    def destroy(self):
        if os.path.exists(os.path.join(self.data, "postmaster.pid")):
            self.stop("immediate")
        shutil.rmtree(self.directory, ignore_errors=True)
