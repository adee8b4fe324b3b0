#!/usr/bin/env python3
"""Soak test of qdelta serve: many clients for minutes, short and long, streaming and not, some that disconnect and some
that are hostile, some that keep states by name, fork and delete them. Every answer with a seed is compared with the one
that the same request got alone. Fails on a wrong text or log-probability, on a 5xx other than 503 with Retry-After, and when memory keeps
growing.

    scripts/soak.py --qdelta build/qdelta [--model FOLDER] [--clients 256] [--minutes 10]
"""

import argparse
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

PATIENCE = 300  # seconds; a machine may have other work
PROMPTS = ["Once upon a time", "The river", "It was a dark night and " * 20, "a", "x" * 3000]


def make_model(qdelta, folder):
    """A small model of random weights that knows bytes: two training steps on a line of text."""
    text = os.path.join(folder, "text.txt")
    with open(text, "w", encoding="utf-8") as file:
        file.write("The quick brown fox jumps over the lazy dog. " * 400)
    run = os.path.join(folder, "run")
    subprocess.run(
        [qdelta, "train", "--text", text, "--out", run, "--steps", "2", "--hidden-size", "64", "--layers", "2", "--heads", "2",
         "--head-dim", "16", "--rows", "2", "--seq-len", "64", "--warmup", "0"],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    checkpoints = os.path.join(run, "checkpoints")
    return os.path.join(checkpoints, sorted(os.listdir(checkpoints))[-1])


def start(qdelta, model, extra):
    server = subprocess.Popen([qdelta, "serve", "--model", model, "--port", "0", "--max-queue", "128", *extra],
                              stderr=subprocess.PIPE, text=True)
    line = server.stderr.readline()
    while "listening on" not in line:
        if not line:
            sys.exit("the server did not start")
        line = server.stderr.readline()
    port = int(re.search(r"listening on http://[^:]+:(\d+)", line).group(1))
    threading.Thread(target=lambda: [print("server:", rest, end="") for rest in server.stderr], daemon=True).start()
    return server, port


def resident(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        return int(re.search(r"VmRSS:\s+(\d+)", file.read()).group(1))


class Soak:
    def __init__(self, port):
        self.port = port
        self.lock = threading.Lock()
        self.expected = {}
        self.expected_from_states = {}
        self.counts = {}
        self.wrong = []
        self.end = 0

    def count(self, what):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def fail(self, what):
        with self.lock:
            self.wrong.append(what)

    def request(self, number):
        chance = random.Random(number)
        return {"prompt": chance.choice(PROMPTS), "max_tokens": chance.choice([1, 8, 40, 200]),
                "temperature": chance.choice([0, 0.8, 1.2]), "top_k": chance.choice([0, 20]),
                "top_p": chance.choice([1, 0.9]), "seed": number, "ignore_eos": chance.random() < 0.5,
                "logprobs": chance.choice([None, 2]), "stop": chance.choice([None, ["e ", "zz"]])}

    def complete(self, body, stream):
        """The text and log-probabilities, or the status where it is not 200."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request("POST", "/v1/completions", json.dumps({**body, "stream": stream}))
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        if response.status != 200:
            if response.status >= 500 and not (response.status == 503 and response.getheader("Retry-After")):
                self.fail(f"status {response.status}: {data[:200]!r}")
            return response.status
        if not stream:
            choice = json.loads(data)["choices"][0]
            return choice["text"], (choice["logprobs"] or {}).get("token_logprobs")
        text, scores = "", []
        if not data.endswith(b"data: [DONE]\n\n"):
            self.fail(f"a stream that does not end: {data[-100:]!r}")
        for event in data.decode().split("\n\n"):
            if event.startswith("data: {"):
                choice = json.loads(event[6:])["choices"][0]
                text += choice["text"]
                scores += (choice["logprobs"] or {}).get("token_logprobs", [])
        return text, scores if body["logprobs"] is not None else None

    def honest(self, chance):
        number = chance.randrange(64)
        got = self.complete(self.request(number), chance.random() < 0.5)
        self.count(got if isinstance(got, int) else "answers")
        if got == 503 and chance.random() < 0.9:  # the others come back at once
            time.sleep(0.5 + chance.random())
        if not isinstance(got, int) and got != self.expected[number]:
            text, scores = self.expected[number]
            if got[0] != text:
                self.fail(f"request {number}: {got[0][:80]!r} instead of {text[:80]!r}")
            else:
                self.fail(f"request {number}: other bits of log-probabilities than alone")

    def ask_states(self, method, path, body=None):
        """The status; a full queue is waited for."""
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
            try:
                connection.request(method, "/v1/states" + path, body and json.dumps(body))
                response = connection.getresponse()
                data = response.read()
            finally:
                connection.close()
            if response.status != 503 or time.time() > self.end:
                break
            time.sleep(0.5 + random.random())  # as Retry-After says, and not all at once
        if response.status not in (200, 503):
            self.fail(f"{method} /v1/states{path}: {response.status} {data[:200]!r}")
        return response.status

    def from_state(self, number, name):
        """What a text goes on with behind a state that was kept in its middle, and forked."""
        prompt = PROMPTS[number % len(PROMPTS)]
        steps = [("POST", "", {"name": name, "prompt": prompt}), ("POST", "", {"name": name + "-fork", "from": name}),
                 ("DELETE", "/" + name, None)]
        for step in steps:
            if self.ask_states(*step) != 200:
                return 503
        body = {**self.request(number), "prompt": " and then", "state": name + "-fork"}
        got = self.complete(body, number % 2 == 0)
        return got if self.ask_states("DELETE", f"/{name}-fork") == 200 else 503

    def keeping(self, chance):
        number = chance.randrange(16)
        got = self.from_state(number, f"s{threading.get_ident()}")
        self.count(got if isinstance(got, int) else "answers from states")
        if not isinstance(got, int) and got[0] != self.expected_from_states[number][0]:
            self.fail(f"from a state, {number}: {got[0][:80]!r} instead of {self.expected_from_states[number][0][:80]!r}")

    def raw(self, data, wait=0.0):
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as client:
            client.sendall(data)
            time.sleep(wait)

    def leaving(self, chance):
        body = json.dumps({**self.request(chance.randrange(64)), "max_tokens": 2000, "stream": True}).encode()
        self.raw(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body), chance.random())
        self.count("left")

    def hostile(self, chance):
        head = b"POST /v1/completions HTTP/1.1\r\n"
        attacks = [
            b"GET /health HTTP/1.1\r\nRange: bytes=0-" + b",0-" * 2700 + b"\r\n\r\n",
            b"GET / HTTP/1.1\r\nX: " + b"a" * 200_000,
            head + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}",
            head + b"Content-Length: 16abc\r\n\r\n{}",
            head + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n{}",
            head + b"Content-Length: 99999999999\r\n\r\n",
            head + b"Content-Length: 100\r\n\r\n{",
            b"\0\xff garbage\r\n\r\n",
            b"",
        ]
        try:
            self.raw(chance.choice(attacks), chance.random())
        except OSError:
            pass  # the server may hang up
        self.count("hostile")

    def client(self, number):
        chance = random.Random(number)
        act = chance.choices([self.honest, self.leaving, self.hostile, self.keeping], [8, 1, 1, 1])[0]
        while time.time() < self.end:
            try:
                act(chance)
            except (OSError, http.client.HTTPException) as error:
                self.fail(f"{act.__name__}: {error!r}")
            if act is self.honest and chance.random() < 0.1:
                time.sleep(chance.random())

    def healthy(self):
        begin = time.time()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", "/health")
        if connection.getresponse().status != 200:
            self.fail("/health is not 200")
        connection.close()
        return time.time() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--qdelta", default="build/qdelta")
    parser.add_argument("--model", help="a model folder; without one a tiny model is made")
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--minutes", type=float, default=10)
    flags, extra = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        server, port = start(flags.qdelta, flags.model or make_model(flags.qdelta, folder),
                             ["--states", os.path.join(folder, "states"), "--max-states", "1024", *extra])
        soak = Soak(port)
        for number in range(64):  # alone, one after the other
            soak.expected[number] = soak.complete(soak.request(number), False)
        for number in range(16):
            soak.expected_from_states[number] = soak.from_state(number, "alone")
        soak.end = time.time() + 60 * flags.minutes
        clients = [threading.Thread(target=soak.client, args=(n,)) for n in range(flags.clients)]
        for client in clients:
            client.start()
        memory, slowest = [], 0.0
        while time.time() < soak.end:
            time.sleep(2)
            memory.append(resident(server.pid))
            try:
                slowest = max(slowest, soak.healthy())
            except OSError as error:
                soak.fail(f"/health: {error!r}")
            if server.poll() is not None:
                sys.exit(f"the server has ended with {server.returncode}")
        for client in clients:
            client.join()
        server.send_signal(signal.SIGTERM)
        status = server.wait(60)
        if status != 0:
            soak.fail(f"the server ended with {status}")
        third = len(memory) // 3
        early, late = max(memory[third:2 * third] or [0]), max(memory[2 * third:] or [0])
        if late > 1.1 * early + 20_000:
            soak.fail(f"memory grows: {early} KiB in the second third, {late} KiB in the last")
        print(f"{flags.clients} clients, {flags.minutes} minutes: {soak.counts}")
        print(f"memory {memory[0]} .. {early} .. {late} KiB, /health within {slowest * 1000:.0f} ms")
        for one in soak.wrong[:20]:
            print("WRONG:", one)
        sys.exit(f"{len(soak.wrong)} things went wrong" if soak.wrong else 0)


if __name__ == "__main__":
    main()
