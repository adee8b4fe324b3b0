#!/usr/bin/env python3
"""Runs clang-tidy over the compile database and remembers what passed.

    scripts/tidy.py BUILD_FOLDER [JOBS]

A file is checked again only if something that could change the outcome did: its own text or that of any header it
includes, its compile command, .clang-tidy, or clang-tidy itself. What a file includes is known from the last time.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys

# Kernels include themselves once per instruction set: once is enough here.
DEFINE = "-DHWY_COMPILE_ONLY_STATIC"
# The analyzer follows calls into fmt and the JSON library for minutes if it may.
SHALLOW = ["-Xclang", "-analyzer-config", "-Xclang", "mode=shallow"]


class Checker:
    def __init__(self, build):
        self.build = build
        self.cache = build / "lint-cache"
        self.cache.mkdir(exist_ok=True)
        self.digests = {}
        version = subprocess.run(["clang-tidy", "--version"], capture_output=True, check=True).stdout
        self.salt = version + pathlib.Path(".clang-tidy").read_bytes() + pathlib.Path(__file__).read_bytes()

    def digest(self, path):
        if path not in self.digests:
            try:
                self.digests[path] = hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
            except OSError:
                self.digests[path] = "gone"
        return self.digests[path]

    def key(self, command, includes):
        text = self.salt + repr(command).encode()
        return hashlib.sha256(text + "".join(self.digest(path) for path in includes).encode()).hexdigest()

    def record(self, source):
        return self.cache / (hashlib.sha256(source.encode()).hexdigest()[:32] + ".json")

    def passed_before(self, source, command):
        try:
            record = json.loads(self.record(source).read_text())
            return record["key"] == self.key(command, record["includes"])
        except (OSError, ValueError, KeyError):
            return False

    def includes(self, command, folder):
        """All files that the compiler reads for this one; empty if it could not tell."""
        kept = []
        arguments = iter(command[1:])
        for argument in arguments:
            if argument == "-o":
                next(arguments)
            elif argument != "-c":
                kept.append(argument)
        compiler = "clang" if command[-1].endswith(".c") else "clang++"
        run = subprocess.run([compiler, *kept, DEFINE, "-M", "-MT", "x"], cwd=folder, capture_output=True, text=True)
        names = run.stdout.replace("\\\n", " ").split()[1:] if run.returncode == 0 else []
        return sorted({os.path.normpath(os.path.join(folder, name)) for name in names})

    def check(self, source, command, folder):
        """The complaints about one file; none if it is in order."""
        options = [f"--extra-arg={argument}" for argument in [DEFINE, *SHALLOW]]
        if "tests" in pathlib.Path(os.path.relpath(source)).parts:  # there it would mostly analyze GoogleTest
            options.append("--checks=-clang-analyzer-*")
        run = subprocess.run(["clang-tidy", "-p", self.build, "--quiet", *options, source], capture_output=True, text=True)
        if run.returncode != 0:
            return run.stdout + "".join(line for line in run.stderr.splitlines(True) if "warnings generated" not in line)
        includes = self.includes(command, folder)
        if includes:
            self.record(source).write_text(json.dumps({"key": self.key(command, includes), "includes": includes}))
        return ""


def main():
    build = pathlib.Path(sys.argv[1])
    jobs = int(sys.argv[2]) if len(sys.argv) > 2 else os.cpu_count()
    checker = Checker(build)
    entries = {}  # a file that is compiled twice is checked once
    tests = os.path.abspath("tests") + os.sep  # compiled with all warnings on, but too many to wait for here
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if os.path.abspath(entry["file"]).startswith(tests):
            continue
        entries[os.path.normpath(entry["file"])] = (shlex.split(entry["command"]), entry["directory"])
    todo = [source for source, (command, _) in sorted(entries.items()) if not checker.passed_before(source, command)]
    print(f"lint: clang-tidy on {len(todo)} of {len(entries)} files, the others passed before as they are", flush=True)
    failed = []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        runs = {pool.submit(checker.check, source, *entries[source]): source for source in todo}
        for run in concurrent.futures.as_completed(runs):
            if run.result():
                failed.append(os.path.relpath(runs[run]))
                print(run.result(), flush=True)
    if failed:
        print("lint: clang-tidy complains about " + " ".join(sorted(failed)))
    return 1 if failed else 0


sys.exit(main())
