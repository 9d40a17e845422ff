"""server.py: a private throwaway PostgreSQL server with ojs and its peers, for bench/run and bench/profile."""
import json
import mmap
import os
import pathlib
import pwd
import shutil
import subprocess
import sys
import tempfile
import time

BENCH = pathlib.Path(__file__).resolve().parent
ROOT = BENCH.parent
BUILD = BENCH / "build"
NPM_SYSTEMS = ("graphile-worker", "pg-boss")
EXTENSIONS = {"pgq": "Debian: postgresql-15-pgq3", "pgmq": "from its own repository"}    # and where it is had
OJS = {"ojs", "queues"}
ASIDE = ("queues", "floor", "plpgsql")  # measured when asked for
SYSTEMS = ("ojs", "table", *EXTENSIONS, *ASIDE) + NPM_SYSTEMS

CONFIGURATION = """
listen_addresses = ''
shared_buffers = 1GB
max_wal_size = 8GB
synchronous_commit = on
fsync = on
jit = off
checkpoint_timeout = 30min
max_connections = 200
logging_collector = off
"""


class NotSupported(Exception):
    """The system has no such operation."""


def say(text):
    print(text, file=sys.stderr, flush=True)


def run(*command, **options):
    """Runs a command; what it said is shown only when it fails."""
    result = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        **options)
    if result.returncode:
        said = "\n".join(result.stdout.splitlines()[-30:])
        raise SystemExit(f"failed: {' '.join(map(str, command))}\n{said}")
    return result.stdout.strip()


def touch_memory():
    """
    On a virtual machine the first use of each page of memory can cost ten times what its later uses cost. Who runs
    first, or grows most, would pay for that; so pages enough for all are used before anything is measured.
    """
    page = mmap.PAGESIZE
    size = os.sysconf("SC_AVPHYS_PAGES") * page // 2
    with mmap.mmap(-1, size) as memory:
        for at in range(0, size, page):
            memory[at] = 1


class Server:
    def __init__(self, pg_config="pg_config", extension=True, preload=True, keep=False, extra="", flags="",
        valgrind=None):
        self.keep = keep
        self.valgrind = valgrind
        self.running = False
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="ojs-bench-"))
        try:
            self.set_up(pg_config, extension, preload, extra, flags)
        except BaseException:
            self.close()
            raise

    def set_up(self, pg_config, extension, preload, extra, flags):
        self.owner = pwd.getpwnam("postgres") if os.getuid() == 0 else None
        if self.owner:
            os.chown(self.dir, self.owner.pw_uid, self.owner.pw_gid)
        self.pg_config = run(ROOT / "test/lib/private-postgres", self.dir / "pg", pg_config)
        self.bin = pathlib.Path(self.pg_config).parent
        if extension:
            self.build_extension(flags)
        self.build_client()
        self.as_owner(self.bin / "initdb", "-D", self.data, "-A", "trust", "-U", "postgres", "--no-sync")
        with open(self.data / "postgresql.conf", "a") as file:
            file.write(f"{CONFIGURATION}unix_socket_directories = '{self.dir}'\n{extra}\n")
            if extension and preload:
                file.write("shared_preload_libraries = 'ojs'\n")
        self.start()

    @property
    def data(self):
        return self.dir / "data"

    def as_owner(self, *command):
        if self.owner:
            uid, gid = self.owner.pw_uid, self.owner.pw_gid
            return run(*command, user=uid, group=gid, extra_groups=[], cwd=self.dir)
        return run(*command, cwd=self.dir)

    def build_extension(self, flags):
        """Builds a copy of the checkout, so that nobody's build is disturbed."""
        say("building ojs")
        source = self.dir / "source"
        ignored = shutil.ignore_patterns(".git", "build", "results", "*.o", "*.d", "*.so", "*.bc")
        shutil.copytree(ROOT, source, ignore=ignored)
        options = [f"PG_CONFIG={self.pg_config}"] + ([f"CXX={os.environ.get('CXX', 'g++')} {flags}"] if flags else [])
        run("make", "-C", source, "-j2", *options)
        run("make", "-C", source, "install", *options)

    def build_client(self):
        BUILD.mkdir(exist_ok=True)
        self.client_program = self.dir / "client"
        include, lib = run(self.pg_config, "--includedir"), run(self.pg_config, "--libdir")
        system = run("pg_config", "--includedir")
        run("cc", "-O2", "-Wall", "-Wextra", f"-I{include}", f"-I{system}", BENCH / "client.c", "-o",
            self.client_program,
            f"-L{lib}", "-lpq", "-lpthread", "-lm")

    def start(self):
        # Not through a pipe: the server would hold it open.
        command = [str(self.bin / "pg_ctl"), "-D", str(self.data), "-l", str(self.dir / "log"), "-w", "-t", "120",
            "start"]
        if self.valgrind:
            # pg_ctl starts what stands beside it: a server of its own name, run by valgrind.
            program = self.bin / "postgres"
            if not (self.bin / "postgres.bin").exists():
                program.rename(self.bin / "postgres.bin")
                program.write_text(f"#!/bin/sh\nexec valgrind -q --trace-children=yes {self.valgrind} "
                                   f"--callgrind-out-file={self.dir}/callgrind.%p {self.bin}/postgres.bin \"$@\"\n")
                program.chmod(0o755)
        owner = {"user": self.owner.pw_uid, "group": self.owner.pw_gid, "extra_groups": []} if self.owner else {}
        if subprocess.run(command, stdout=subprocess.DEVNULL, cwd=self.dir, **owner).returncode:
            raise SystemExit("the server did not start:\n" + (self.dir / "log").read_text()[-2000:])
        self.running = True
        self.postmaster = (self.data / "postmaster.pid").read_text().split()[0]

    def processes(self):
        """The process ids of this server, as text."""
        found = {self.postmaster}
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                if stat.read_text().rsplit(")", 1)[1].split()[1] == self.postmaster:
                    found.add(stat.parent.name)
            except OSError:
                pass
        return found

    def cpu_us(self):
        """User and system time of the server's processes, and of those of its children that have ended."""
        ticks = 0
        for pid in self.processes():
            try:
                with open(f"/proc/{pid}/stat") as f:
                    fields = f.read().rsplit(")", 1)[1].split()
            except FileNotFoundError:
                continue
            own_and_ended = 4 if pid == self.postmaster else 2
            ticks += sum(int(n) for n in fields[11:11 + own_and_ended])
        return ticks * 1e6 / os.sysconf("SC_CLK_TCK")

    def stop(self, how="fast"):
        if self.running:
            self.as_owner(self.bin / "pg_ctl", "-D", self.data, "-m", how, "-w", "stop")
            self.running = False

    def close(self):
        try:
            self.stop("immediate")
        finally:
            if self.keep:
                say(f"kept: {self.dir}")
            else:
                shutil.rmtree(self.dir, ignore_errors=True)

    def psql(self, *commands, database="postgres"):
        return run(self.bin / "psql", "-h", self.dir, "-U", "postgres", "-d", database, "-qAtX", "-v",
            "ON_ERROR_STOP=1",
                   *(part for command in commands for part in ("-c", command)))

    def prepare(self, system):
        """Makes a system ready to be measured; the reason when it cannot be."""
        if system in EXTENSIONS and not self.version(system):
            return f"the server has no extension {system} ({EXTENSIONS[system]})"
        if system in NPM_SYSTEMS:
            return self.prepare_npm(system)
        if system == "floor":
            run("cc", "-O2", "-Wall", "-fPIC", "-shared", f"-I{run(self.pg_config, '--includedir-server')}",
                BENCH / "floor.c", "-o", pathlib.Path(run(self.pg_config, "--pkglibdir")) / "floor.so")
        return None

    def prepare_npm(self, system):
        if not (shutil.which("node") and shutil.which("npm")):
            return "node and npm are not installed"
        folder = BUILD / "node"
        if not (folder / "node_modules" / system).exists():
            say("installing peers with npm")
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(BENCH / "package.json", folder)
            result = subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--no-package-lock",
                "--loglevel=error"],
                                    cwd=folder, capture_output=True, text=True)
            if result.returncode:
                return "npm install failed: " + result.stderr.strip()[-300:]
        template, scratch = self.template(system), "scratch"
        self.psql(f'create database "{template}"', f"create database {scratch}")
        result = subprocess.run(["node", str(BENCH / "peers.mjs"), system, str(self.dir), "5432", template, scratch,
                                 str(self.spec(system))], cwd=folder, capture_output=True, text=True)
        self.psql(f"drop database {scratch} (force)")
        return None if result.returncode == 0 else "its library failed here: " + result.stderr.strip()[-300:]

    def template(self, system):
        return f"template {system}" if system in NPM_SYSTEMS else "template1"

    def spec(self, system):
        return self.dir / f"{system}.sql" if system in NPM_SYSTEMS else BENCH / "systems" / f"{system}.sql"

    def version(self, system):
        if system == "ojs" or system in EXTENSIONS:
            return self.psql(f"select default_version from pg_available_extensions where name = '{system}'")
        if system in NPM_SYSTEMS:
            return json.loads((BUILD / "node/node_modules" / system / "package.json").read_text())["version"]
        return "-"

    def fresh_database(self, system):
        """Each measurement begins in a new database, so none inherits another's dead rows."""
        for _ in range(50):
            # A worker that has just been told to let go may need a moment.
            try:
                self.psql("drop database if exists bench (force)",
                    f'create database bench template "{self.template(system)}"')
                break
            except SystemExit as error:
                failure = error
                time.sleep(0.1)
        else:
            raise failure
        self.client(system, mode="setup")

    def client_command(self, system, **options):
        return [str(self.client_program), f"dsn=host={self.dir} user=postgres dbname=bench",
            f"spec={self.spec(system)}",
                f"postmaster={self.postmaster}", *(f"{key}={value}" for key, value in options.items())]

    def client(self, system, **options):
        result = subprocess.run(self.client_command(system, **options), capture_output=True, text=True)
        if result.returncode == 3:
            raise NotSupported
        if result.returncode:
            raise RuntimeError(f"{system} {options}: {result.stderr.strip()}")
        return json.loads(result.stdout) if result.stdout.strip() else None
