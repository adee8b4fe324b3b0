#!/usr/bin/env python3
"""Runs clang-tidy over the compile database and remembers what passed.

    scripts/tidy.py BUILD_FOLDER [JOBS [SECONDS]]

With SECONDS the files that changed last come first, and what has not begun by then is left for another time.
A file is checked again only if something that could change the outcome did: its own text or that of any header it
includes, its compile command, .clang-tidy, or clang-tidy itself. What a file includes is known from the last time. The
memory is the user's (QDELTA_LINT_CACHE, or qdelta-lint in the folder for caches), so that a new checkout starts warm.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), ".."))
# Kernels include themselves once per instruction set: once is enough here. The analyzer would follow calls into fmt and
# the JSON library for minutes. -H lists what is included.
ARGUMENTS = ["-DHWY_COMPILE_ONLY_STATIC", "-Xclang", "-analyzer-config", "-Xclang", "mode=shallow", "-H"]


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Checker:
    def __init__(self, build):
        self.build = build
        user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        self.cache = pathlib.Path(os.environ.get("QDELTA_LINT_CACHE") or os.path.join(user, "qdelta-lint"))
        self.cache.mkdir(parents=True, exist_ok=True)
        self.digests = {}
        version = subprocess.run(["clang-tidy", "--version"], capture_output=True, check=True).stdout
        rules = pathlib.Path(ROOT, ".clang-tidy").read_bytes()
        self.salt = sha256(version + rules + pathlib.Path(__file__).read_bytes())

    def digest(self, path):
        """Of a file, named from the root if it is one of ours."""
        if path not in self.digests:
            try:
                self.digests[path] = sha256(pathlib.Path(ROOT, path).read_bytes())
            except OSError:
                self.digests[path] = "gone"
        return self.digests[path]

    def key(self, command, includes):
        return sha256("\n".join([self.salt, command, *includes, *map(self.digest, includes)]).encode())

    def record(self, command):
        return self.cache / (sha256(command.encode()) + ".json")

    def passed_before(self, command):
        try:
            record = json.loads(self.record(command).read_text())
            return record["key"] == self.key(command, record["includes"])
        except (OSError, ValueError, KeyError):
            return False

    def check(self, source, command):
        """The complaints about one file; none if it is in order."""
        options = [f"--extra-arg={argument}" for argument in ARGUMENTS]
        run = subprocess.run(["clang-tidy", "-p", self.build, "--quiet", *options, os.path.join(ROOT, source)],
                             capture_output=True, text=True)
        included = re.findall(r"^\.+ (.*)$", run.stderr, re.MULTILINE)
        if run.returncode != 0:
            return run.stdout + re.sub(r"^(\.+ .*|\d+ warnings? (treated|generated).*)\n", "", run.stderr, flags=re.MULTILINE)
        includes = sorted({from_root(path) for path in [os.path.join(ROOT, source), *included]})
        record = self.record(command)
        unfinished = record.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps({"key": self.key(command, includes), "includes": includes}))
        unfinished.replace(record)
        return ""


def from_root(path):
    path = os.path.realpath(path)
    return os.path.relpath(path, ROOT) if path.startswith(ROOT + os.sep) else path


def last_changed():
    """The files of the newest commits, newest first."""
    log = subprocess.run(["git", "log", "--format=", "--name-only", "-n", "200"], cwd=ROOT, capture_output=True, text=True)
    return {name: place for place, name in reversed(list(enumerate(log.stdout.split())))}


def main():
    build = os.path.realpath(sys.argv[1])
    jobs = int(sys.argv[2]) if len(sys.argv) > 2 else os.cpu_count()
    end = time.monotonic() + float(sys.argv[3]) if len(sys.argv) > 3 else None
    checker = Checker(build)
    commands = {}  # a file that is compiled twice is checked once
    for entry in json.loads(pathlib.Path(build, "compile_commands.json").read_text()):
        source = from_root(entry["file"])
        if source.startswith("tests/"):  # compiled with all warnings on, but too many to wait for here
            continue
        # The same in every checkout.
        command = shlex.join(shlex.split(entry["command"])).replace(build, "BUILD").replace(ROOT, "ROOT")
        commands[source] = command
    todo = [source for source, command in sorted(commands.items()) if not checker.passed_before(command)]
    print(f"lint: clang-tidy on {len(todo)} of {len(commands)} files, the others passed before as they are", flush=True)
    if end is not None:
        newest = last_changed()
        todo.sort(key=lambda source: newest.get(source, len(newest)))
    failed, left = [], []

    def check(source):
        if end is not None and time.monotonic() > end:
            left.append(source)
            return ""
        return checker.check(source, commands[source])

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        runs = {pool.submit(check, source): source for source in todo}
        for run in concurrent.futures.as_completed(runs):
            if run.result():
                failed.append(runs[run])
                print(run.result(), flush=True)
    if left:
        print(f"lint: no time for {len(left)} files, those that changed longest ago; make lint checks them all")
    if failed:
        print("lint: clang-tidy complains about " + " ".join(sorted(failed)))
    return 1 if failed else 0


sys.exit(main())
