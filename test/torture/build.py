"""build.py: the extension, built from a copy of the sources and installed into a PostgreSQL tree of its own."""

import os
import shutil
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SOURCES = ("Makefile", "ojs.control", "ojs_test.control", "include", "router", "sql", "src")


BUGS = os.path.join(ROOT, "test", "torture", "bugs")


def build(directory, bug=None, as_it_is=False):
    """Builds in `directory`, with the patch of that name in test/torture/bugs applied; returns the tree's pg_config.

    as_it_is: uses what an earlier build left there, whatever has become of the sources since.
    """
    os.makedirs(directory, exist_ok=True)
    os.chmod(directory, 0o755)
    command = [os.path.join(ROOT, "test", "lib", "private-postgres"), os.path.join(directory, "pg")]
    config = subprocess.check_output(command, text=True).strip()
    if as_it_is:
        return config
    copy = os.path.join(directory, "source")
    unpatch(copy)
    for name in SOURCES:
        source, target = os.path.join(ROOT, name), os.path.join(copy, name)
        if os.path.isdir(source):
            refresh(source, target)
        else:
            os.makedirs(copy, exist_ok=True)
            shutil.copy2(source, target)
    make = ["make", "-s", "-C", copy, "-j2", f"PG_CONFIG={config}"]
    if bug:
        with open(os.path.join(BUGS, bug + ".patch")) as patch:
            subprocess.run(["patch", "-p1", "-s", "-F0", "-d", copy], stdin=patch, check=True)
        shutil.copy2(os.path.join(BUGS, bug + ".patch"), os.path.join(copy, "applied.patch"))
        make.append("CI=")  # a function that nobody calls any more is a warning
    # no test of these may use files of the checkout
    with open(os.path.join(directory, "build.log"), "w") as log:
        result = subprocess.run(make + ["all"], stdout=log, stderr=subprocess.STDOUT)
        if result.returncode == 0:
            result = subprocess.run(make + ["install"], stdout=log, stderr=subprocess.STDOUT)
    if result.returncode != 0:
        with open(os.path.join(directory, "build.log")) as log:
            raise SystemExit("the build failed:\n" + log.read()[-4000:])
    return config


def refresh(source, target):
    """Copies what is newer, so that a second build is short; what is gone goes."""
    for parent, _, files in os.walk(source):
        to = os.path.join(target, os.path.relpath(parent, source))
        os.makedirs(to, exist_ok=True)
        sources = [f for f in files if not f.endswith((".o", ".d", ".so", ".bc"))]
        for old in os.listdir(to):
            if old.endswith((".cpp", ".h", ".sql")) and old not in sources:
                os.remove(os.path.join(to, old))
        for f in sources:
            a, b = os.path.join(parent, f), os.path.join(to, f)
            if not os.path.exists(b) or os.stat(a).st_mtime > os.stat(b).st_mtime:
                shutil.copy2(a, b)


def unpatch(copy):
    """Puts back what the last bug has changed; make must see that it changed again."""
    applied = os.path.join(copy, "applied.patch")
    if not os.path.exists(applied):
        return
    with open(applied) as patch:
        for line in patch:
            if line.startswith("+++ b/"):
                name = line[6:].strip()
                shutil.copy(os.path.join(ROOT, name), os.path.join(copy, name))
    os.remove(applied)
