#!/usr/bin/env python3
"""What hostile clients do to `qdelta serve`, at full size and with the server's own limits: headers of 600 MiB, a hundred
clients that send a byte now and then, readers that do not read, requests as large as they may be. Two minutes.

    hostile_test.py QDELTA
"""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts"))
from soak import make_model, resident, start  # noqa: E402  (beside the other scripts)

MIB = 1 << 20
SLACK = 3  # seconds for a machine with other work


class Server:
    def __init__(self, qdelta, model, *extra):
        self.process, self.port = start(qdelta, model, ["--threads", "1", *extra])

    def connect(self, receive_buffer=0):
        client = socket.socket()
        if receive_buffer:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        client.settimeout(120)
        client.connect(("127.0.0.1", self.port))
        return client

    def send(self, data):
        """What comes back until the server hangs up."""
        with self.connect() as client:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            return everything(client)

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request(method, path, body if body is None else json.dumps(body))
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response.status, data

    def metric(self, name):
        status, data = self.ask("GET", "/metrics")
        assert status == 200, status
        return float(re.search(rf"^{re.escape(name)} (\S+)$", data.decode(), re.M).group(1))

    def until(self, name, value, seconds):
        """How long it took."""
        begin = time.time()
        while self.metric(name) != value:
            assert time.time() - begin < seconds, f"{name} is not {value} after {seconds} s"
            time.sleep(0.01)
        return time.time() - begin

    def healthy(self):
        begin = time.time()
        assert self.ask("GET", "/health") == (200, b'{"status":"ok"}')
        return time.time() - begin

    def memory(self):
        return resident(self.process.pid) * 1024


def everything(client):
    data = b""
    try:
        while piece := client.recv(1 << 16):
            data += piece
    except ConnectionError:
        pass
    return data


def post(body, head=b""):
    data = json.dumps(body).encode()
    return b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n%s" % (head, len(data), data)


def endless(**more):
    return {"prompt": "a", "max_tokens": 1_000_000, "ignore_eos": True, "stream": True, "seed": 1, **more}


def ranges(server):
    answer = server.send(b"GET /health HTTP/1.1\r\nRange: bytes=0-" + b",0-" * 2699 + b"\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b'{"status":"ok"}'), answer[:200]
    return "2,700 ranges: 200"


def heads(server):
    said = []
    for what, piece, count in (("a header of 600 MiB", b"a" * MIB, 600), ("3 million headers", b"a: b\r\n" * 10_000, 300)):
        before, sent = server.memory(), 0
        with server.connect() as client:
            try:
                client.sendall(b"GET /health HTTP/1.1\r\nX: y\r\n" + (b"Z: " if count == 600 else b""))
                for _ in range(count):
                    client.sendall(piece)
                    sent += len(piece)
            except ConnectionError:
                pass
        grown = server.memory() - before
        assert sent < 64 * MIB and grown < 16 * MIB, (what, sent, grown)
        server.healthy()
        said.append(f"{what}: hung up after {sent / MIB:.1f} MiB, memory +{grown / MIB:.1f} MiB")
    assert server.send(b"GET / HTTP/1.1\r\nX: " + b"a" * 65536 + b"\r\n\r\n").startswith(b"HTTP/1.1 431")
    return "; ".join(said)


def slow_heads(server):
    """A byte each 18 seconds, of a hundred: each has the ten seconds of a head."""
    clients = [server.connect() for _ in range(100)]
    begin, slowest = time.time(), 0.0
    for client in clients:
        client.sendall(b"G")
    while time.time() < begin + 18:
        slowest = max(slowest, server.healthy())
        time.sleep(0.2)
    for client in clients:
        client.settimeout(1)
        assert everything(client) == b"", "a head that takes 18 seconds is still waited for"
        client.close()
    assert slowest < SLACK, slowest
    return f"100 slow heads: cut off, /health within {1000 * slowest:.0f} ms"


def slow_body(server):
    begin = time.time()
    with server.connect() as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{")
        everything(client)
    took = time.time() - begin
    assert 55 < took < 60 + SLACK, took
    return f"a body that does not come: cut off after {took:.1f} s"


def slow_reader(server):
    """On a server of its own, so that the only sequences are its own."""
    client = server.connect(4096)
    client.sendall(post(endless(logprobs=20, max_tokens=4_000_000)))  # more than come in that time
    server.until("qdelta_running_sequences", 1, 10)
    took = server.until("qdelta_running_sequences", 0, 60 + SLACK)
    assert server.metric("qdelta_abandoned_sequences_total") == 1
    client.close()
    return f"a reader that does not read: its slot is free after {took:.1f} s"


def kept_alive(server):
    connections = [http.client.HTTPConnection("127.0.0.1", server.port, timeout=60) for _ in range(40)]
    sockets = set()
    for turn in range(26):
        if turn == 25:
            time.sleep(20)  # idle for a while
        for connection in connections:
            connection.request("POST", "/tokenize", json.dumps({"prompt": "abc"}))
            response = connection.getresponse()
            assert response.status == 200 and response.read(), response.status
            sockets.add(connection.sock.getsockname())
    assert len(sockets) == 40, len(sockets)
    return "40 kept connections: 1,040 answers, none dropped, 20 s of silence between"


def bodies(server):
    inner = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = server.send(b"GET /health HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(inner), inner))
    assert answer.count(b"HTTP/1.1 ") == 1 and b"models" not in answer, answer
    body = b'{"prompt":"a"   }'
    for lengths in (b"Content-Length: 17\r\nContent-Length: 17\r\n", b"Content-Length: 17\r\nContent-Length: 3\r\n",
                    b"Content-Length: 16abc\r\n", b"Content-Length: +16\r\n",
                    b"Content-Length: 17\r\nTransfer-Encoding: chunked\r\n"):
        answer = server.send(b"POST /v1/completions HTTP/1.1\r\n" + lengths + b"\r\n" + body)
        assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1 ") == 1, (lengths, answer)
    answer = server.send(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n{" % (8 * MIB + 1))
    assert answer.startswith(b"HTTP/1.1 413"), answer
    return "bodies that are no requests, that end in two places, that are too large: refused"


def gone(server):
    took = []
    for stream in (True, False) * 3:
        client = server.connect()
        client.sendall(post(endless(stream=stream)))
        server.until("qdelta_running_sequences", 1, 10)
        client.close()
        took.append(server.until("qdelta_running_sequences", 0, 10))
    assert sorted(took)[3] < 1, took
    return f"clients that go: noticed within {1000 * max(took):.0f} ms"


def stops(server):
    stop = [("ab" * 500)[:900 + i] + "!" for i in range(64)]
    body = {"prompt": "a", "max_tokens": 2000, "n": 15, "ignore_eos": True, "temperature": 1, "seed": 3,
            "logit_bias": {"97": 100, "98": 100}}
    seconds = []
    for more in ({}, {"stop": stop}):
        slowest, done = 0.0, threading.Event()
        begin = time.time()
        worker = threading.Thread(target=lambda: (server.ask("POST", "/v1/completions", {**body, **more}), done.set()))
        worker.start()
        while not done.is_set():
            slowest = max(slowest, server.healthy())
            time.sleep(0.05)
        worker.join()
        seconds.append(time.time() - begin)
    assert slowest < SLACK and seconds[1] < 3 * seconds[0] + SLACK, (slowest, seconds)
    return (f"64 stop strings in 15 sequences: {seconds[1]:.1f} s instead of {seconds[0]:.1f} without, "
            f"/health within {1000 * slowest:.0f} ms")


def scored(server):
    said = []
    for top in (20, 0):
        before, most, size = server.memory(), 0, 0
        prompts = [[97 + (i * k) % 26 for i in range(32768)] for k in range(1, 9)]
        with server.connect() as client:
            body = {"prompt": prompts, "max_tokens": 0, "echo": True, "logprobs": top}
            client.sendall(post(body, b"Connection: close\r\n"))
            client.settimeout(1)
            first = b""
            while True:
                most = max(most, server.memory() - before)
                try:
                    piece = client.recv(MIB)
                except TimeoutError:
                    server.healthy()
                    continue
                if not piece:
                    break
                first, size = first or piece, size + len(piece)
        assert first[:12] in (b"HTTP/1.1 200", b"HTTP/1.1 400", b"HTTP/1.1 503"), first[:300]
        assert most < 1100 * MIB, most
        said.append(f"logprobs {top}: {first[9:12].decode()}, {size / MIB:.1f} MiB, memory +{most / MIB:.0f} MiB at most")
    return "8 prompts of 32,768 ids with echo, " + "; ".join(said)


def terminated(qdelta, model):
    server = Server(qdelta, model, "--grace", "30")
    with server.connect() as client:
        client.sendall(post({"prompt": "a", "max_tokens": 4096, "ignore_eos": True, "stream": True}))
        server.until("qdelta_running_sequences", 1, 10)
        begin = time.time()
        server.process.send_signal(signal.SIGTERM)
        assert b"[DONE]" in everything(client)
    assert server.process.wait(30 + SLACK) == 0
    finished = time.time() - begin
    server = Server(qdelta, model, "--grace", "2", "--max-tokens", "100000000", "--max-memory", "1000000")
    with server.connect() as client:
        client.sendall(post(endless(max_tokens=100_000_000)))
        server.until("qdelta_running_sequences", 1, 10)
        begin = time.time()
        server.process.send_signal(signal.SIGTERM)
        data = everything(client)
        assert b"the server is stopping" in data and b"[DONE]" not in data, data[-300:]
    server.process.wait(2 + SLACK)
    cut = time.time() - begin
    assert 1.5 < cut < 2 + SLACK, cut
    return f"SIGTERM: an answer comes to its end ({finished:.1f} s); with a grace of 2 s one is cut off after {cut:.1f} s"


def main():
    qdelta, failed = sys.argv[1], []

    def attempt(name, action):
        try:
            print(action(), flush=True)
        except (AssertionError, OSError, http.client.HTTPException, subprocess.TimeoutExpired) as error:
            failed.append(name)
            print(f"FAILED: {name}: {error!r}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        model = make_model(qdelta, folder)
        large = ["--max-tokens", "4000000", "--max-memory", "8192"]
        servers = [Server(qdelta, model), Server(qdelta, model, *large), Server(qdelta, model, *large)]
        try:
            together = [threading.Thread(target=attempt, args=(action.__name__, lambda a=action, s=server: a(s)))
                        for action, server in ((slow_body, servers[0]), (slow_reader, servers[1]))]
            for thread in together:
                thread.start()
            for action, server in ((slow_heads, servers[0]), (kept_alive, servers[0]), (ranges, servers[0]),
                                   (bodies, servers[0]), (gone, servers[2]), (stops, servers[0])):
                attempt(action.__name__, lambda a=action, s=server: a(s))
            for thread in together:
                thread.join()
            for action in (heads, scored):  # whose memory is looked at
                attempt(action.__name__, lambda a=action: a(servers[0]))
            attempt("terminated", lambda: terminated(qdelta, model))
        finally:
            for server in servers:
                server.process.terminate()
            for server in servers:
                server.process.wait(60)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
