"""build.py: the extension, built from a copy of the sources and installed into a PostgreSQL tree of its own."""

import os
import shutil
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SOURCES = ("Makefile", "ojs.control", "include", "sql", "src")


def build(directory, plants=False, as_it_is=False):
    """Builds in `directory`, with the planted bugs compiled in or not; returns the path of the tree's pg_config.

    as_it_is: uses what an earlier build left there, whatever has become of the sources since.
    """
    os.makedirs(directory, exist_ok=True)
    os.chmod(directory, 0o755)
    command = [os.path.join(ROOT, "test", "private-postgres"), os.path.join(directory, "pg")]
    config = subprocess.check_output(command, text=True).strip()
    if as_it_is:
        return config
    copy = os.path.join(directory, "source")
    for name in SOURCES:
        source, target = os.path.join(ROOT, name), os.path.join(copy, name)
        if os.path.isdir(source):
            refresh(source, target)
        else:
            os.makedirs(copy, exist_ok=True)
            shutil.copy2(source, target)
    make = ["make", "-s", "-C", copy, "-j2", f"PG_CONFIG={config}"]
    if plants:
        make.append("CXX=g++ -DOJS_PLANT")
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
