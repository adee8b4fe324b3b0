#!/usr/bin/env python3
"""Makes every call go wrong by which train, tokenize, eval and compare change files, one at a time: the process is killed
before it or half-way through it, it fails with ENOSPC or EIO, or the power is cut and what was not flushed is lost
(faults.cpp). After each the command is run again, and what it leaves must be what an undisturbed run leaves, bit for bit,
but for times; nothing else may lie about.

    tests/torture/torture.py --qdelta build/qdelta --faults build/libtorture_faults.so [--command train] [--mode lost]
        [--at 17] [--first 17] [--sample 40] [--jobs 2]
"""

import argparse
import collections
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

MODES = ["kill", "half", "enospc", "eio", "lost"]
TINY = ["--hidden-size", "16", "--layers", "1", "--heads", "1", "--head-dim", "8", "--mlp-width", "16", "--seq-len", "16",
        "--rows", "2", "--warmup", "0", "--threads", "1"]
# The last is of a state.json, which has seconds.
TIMES = {"seconds", "tokens_per_second", "fraction_of_limit", "total_evaluation_time_seconds", "date", "xxh3"}
NOT_COMPARED = re.compile(r"(^|/)(\.lock|events\.out\.tfevents\.[^/]*)$")


class Command:
    """What to run in a folder, and what to run after it went wrong."""

    def __init__(self, first, again=None):
        self.first = first
        self.again = again or first


def commands(text, model):
    train = ["train", "--text", text, "--out", "run", "--steps", "4", "--save-every", "2", "--eval-every", "2", "--keep", "1",
             "--validation-rows", "2", *TINY]
    return {
        "train": Command(train, train + ["--resume"]),
        "tokenize": Command(["tokenize", "--tokenizer", "bytes", "--out", "tokens", "--paragraphs", "--shard-tokens", "300",
                             "--threads", "1", "--force", text]),
        "eval": Command(["eval", "--model", model, "--tasks", "mqar", "--mqar", "8:1:5", "--batch", "1", "--threads", "1",
                         "--out", "results.json", "--log-examples", "examples.jsonl", "--harness-out", "harness.json"]),
        "compare": Command(["compare", "--rules", "q_delta,linear", "--seeds", "1", "--text", text, "--steps", "2",
                            "--eval-every", "0", "--validation-rows", "2", "--out", "comparison", *TINY]),
    }


def run(qdelta, folder, words, extra=None):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", **(extra or {})}
    return subprocess.run([qdelta, *words], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=120, check=False)


def without_times(value):
    if isinstance(value, dict):
        return {key: without_times(each) for key, each in value.items() if key not in TIMES}
    return [without_times(each) for each in value] if isinstance(value, list) else value


def comparable(path, contents, folder):
    """A file's contents without times and without the folder that it lies in."""
    name = os.path.basename(path)
    if name.endswith(".json"):
        contents = json.dumps(without_times(json.loads(contents))).encode()
    elif name == "log.jsonl":
        lines = [json.dumps(without_times(json.loads(line))) for line in contents.decode().splitlines()]
        contents = "\n".join(lines).encode()
    elif name == "runs.csv":
        rows = [line.split(",") for line in contents.decode().splitlines()]
        kept = [i for i, title in enumerate(rows[0]) if title not in TIMES]
        contents = "\n".join(",".join(row[i] for i in kept) for row in rows).encode()
    return contents.replace(folder.encode(), b"FOLDER")


def snapshot(folder):
    files = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            relative = os.path.relpath(path, folder)
            if NOT_COMPARED.search(relative):
                continue
            with open(path, "rb") as file:
                contents = file.read()
            try:
                files[relative] = comparable(path, contents, folder)
            except ValueError:  # no JSON
                files[relative] = contents
    return files


def difference(got, expected, more_is_fine=False):
    """The first file that is not as it should be; "" where all are."""
    for name in sorted(expected):
        if name not in got:
            return f"{name} is missing"
        if got[name] != expected[name]:
            return f"{name} differs"
    extra = sorted(set(got) - set(expected))
    return f"{extra[0]} is left" if extra and not more_is_fine else ""


def has_checkpoint(folder):
    checkpoints = os.path.join(folder, "run", "checkpoints")
    return any(re.fullmatch(r"step-\d+", name) and os.path.exists(os.path.join(checkpoints, name, "state.json"))
               for name in os.listdir(checkpoints))


class Torture:
    def __init__(self, options, work):
        self.options = options
        self.work = work
        self.commands = commands(os.path.join(work, "text"), os.path.join(work, "model", "run", "checkpoints", "step-00000002"))
        with open(os.path.join(work, "text"), "w", encoding="utf-8") as file:
            file.write("".join(f"The river runs past mill {i} and on.\n\n" for i in range(30)))
        self.expected = {}
        self.first_checkpoint = 0  # the call after which a run has one for good

    def fresh(self, name):
        folder = os.path.join(self.work, name)
        os.makedirs(folder)
        os.makedirs(folder + ".torture")
        return folder

    def prepare(self):
        """The model for eval, and what each command leaves when nothing goes wrong. Gives all calls that it makes."""
        folder = self.fresh("model")
        words = ["train", "--text", os.path.join(self.work, "text"), "--out", "run", "--steps", "2", *TINY]
        made = run(self.options.qdelta, folder, words)
        if made.returncode != 0:
            sys.exit(f"torture: no model: {made.stderr.decode()}")
        cases = []
        for name, command in self.commands.items():
            if self.options.command and name not in self.options.command:
                continue
            folder = self.fresh("whole-" + name)
            log = os.path.join(self.work, "calls-" + name)
            result = run(self.options.qdelta, folder, command.first,
                         {"LD_PRELOAD": self.options.faults, "TORTURE_ROOT": folder, "TORTURE_LOG": log})
            if result.returncode != 0:
                sys.exit(f"torture: {name} fails undisturbed: {result.stderr.decode()}")
            self.expected[name] = snapshot(folder)
            with open(log, encoding="utf-8") as file:
                calls = [line.split(" ", 2) for line in file.read().splitlines()]
            if name == "train":
                named = next(int(n) for n, call, path in calls if call == "rename" and path.endswith("/checkpoints/step-00000002"))
                self.first_checkpoint = next(int(n) for n, call, path in calls
                                             if int(n) > named and call == "fsync" and path.endswith("/run/checkpoints"))
            print(f"torture: {name} makes {len(calls)} calls that change files", flush=True)
            for number, call, path in calls:
                for mode in self.options.mode or MODES:
                    if int(number) < self.options.first or (self.options.at and int(number) != self.options.at):
                        continue
                    if mode != "half" or call in ("write", "pwrite"):
                        cases.append((name, int(number), mode, call, os.path.relpath(path, folder)))
        return cases

    def one(self, case):
        """"" where all is well, else what is not."""
        name, number, mode = case[:3]
        folder = self.fresh(f"{name}-{number}-{mode}")
        try:
            environment = {"LD_PRELOAD": self.options.faults, "TORTURE_ROOT": folder, "TORTURE_AT": str(number),
                           "TORTURE_MODE": mode}
            first = run(self.options.qdelta, folder, self.commands[name].first, environment)
            if mode in ("kill", "half", "lost") and first.returncode != -9:
                return f"was not killed: status {first.returncode}"
            if name == "train" and number > self.first_checkpoint and not has_checkpoint(folder):
                return "there was a checkpoint, and there is none any more"
            if mode in ("enospc", "eio"):
                if first.returncode == 0:  # then it has done its work all the same
                    problem = difference(snapshot(folder), self.expected[name], more_is_fine=True)
                    if problem:
                        return f"ended with status 0, but {problem}"
                elif first.returncode != 1 or not first.stderr.startswith(b"qdelta: "):
                    return f"ended with status {first.returncode}: {first.stderr.decode(errors='replace')[-300:]}"
            again = run(self.options.qdelta, folder, self.commands[name].again)
            if again.returncode != 0:
                return f"run again it fails: {again.stderr.decode(errors='replace')[-300:]}"
            return difference(snapshot(folder), self.expected[name])
        except subprocess.TimeoutExpired:
            return "hangs"
        finally:
            if not self.options.keep:
                shutil.rmtree(folder, ignore_errors=True)
                shutil.rmtree(folder + ".torture", ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--qdelta", required=True, type=os.path.abspath)
    parser.add_argument("--faults", required=True, type=os.path.abspath)
    parser.add_argument("--command", action="append", help="only this one; may be given again")
    parser.add_argument("--mode", action="append", choices=MODES, help="only this one; may be given again")
    parser.add_argument("--at", type=int, help="only the call of this number")
    parser.add_argument("--first", type=int, default=1, help="only calls from this number on")
    parser.add_argument("--sample", type=int, help="only so many cases, evenly chosen; always the same ones")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--keep", action="store_true", help="keep the folders, to look at")
    options = parser.parse_args()
    begin = time.monotonic()
    work = os.path.realpath(tempfile.mkdtemp(prefix="qdelta-torture-"))
    try:
        torture = Torture(options, work)
        cases = torture.prepare()
        if options.sample and options.sample < len(cases):
            cases = [cases[i * len(cases) // options.sample] for i in range(options.sample)]
        counts = collections.Counter()
        failures = []
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for done, (case, problem) in enumerate(zip(cases, pool.map(torture.one, cases)), 1):
                counts[case[0], case[2]] += 1
                if problem:
                    failures.append(case)
                    print(f"torture: {case[0]}, call {case[1]} ({case[3]} {case[4]}), {case[2]}: {problem}", flush=True)
                if sys.stderr.isatty() or done % 100 == 0:
                    end = "\r" if sys.stderr.isatty() else "\n"
                    print(f"torture: {done} of {len(cases)}, {len(failures)} wrong", end=end, file=sys.stderr, flush=True)
        for name in torture.expected:
            print(f"torture: {name}: " + ", ".join(f"{mode} {counts[name, mode]}" for mode in MODES))
        print(f"torture: {len(cases)} cases, {len(failures)} wrong, {time.monotonic() - begin:.0f} s")
        return 1 if failures or not cases else 0
    finally:
        if options.keep:
            print(f"torture: everything is in {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
