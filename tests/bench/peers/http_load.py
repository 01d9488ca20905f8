"""Puts the load of `sluice bench serve` on llama-server's /completion.

The loop is closed: a client sends its next request when the last has ended. Prompts are random token ids. Answers are
greedy, with a fixed number of tokens past any end of text, and no prompt cache. TTFT is the time to a request's first
event. ITL has a sample per token: the time since the event before, divided by the tokens of the event. A token that
ends inside a character waits for the next. The client uses one thread and one selector. The result includes the
client's CPU time."""

import json
import resource
import selectors
import socket
import time

from prompts import Prompts


class Stream:
    def __init__(self, port, prompt, gen):
        body = json.dumps({
            "prompt": prompt, "n_predict": gen, "ignore_eos": True, "stream": True, "cache_prompt": False, "temperature": 0.0, "top_k": 1,
            "samplers": ["top_k"],
        }).encode()  # fmt: skip
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sent = time.monotonic()
        self.socket.sendall(b"POST /completion HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\n"
                            b"Content-Length: %d\r\n\r\n" % len(body) + body)  # fmt: skip
        self.socket.setblocking(False)
        self.pending = b""
        self.last = self.first = 0.0
        self.tokens = 0
        self.gaps = []  # seconds before each token after the first event
        self.ended = False

    def read(self):
        """Reads what has arrived. Returns True if the answer has ended."""
        data = self.socket.recv(65536)
        now = time.monotonic()
        if not data:
            raise RuntimeError(f"llama-server closed a stream early: {self.pending[-200:]!r}")
        events = (self.pending + data).split(b"\n\n")
        self.pending = events.pop()
        for event in events:
            at = event.find(b"data: ")
            if at >= 0:
                self.take(json.loads(event[at + 6 :]), now)
        return self.ended

    def take(self, message, now):
        if "error" in message:
            raise RuntimeError(f"llama-server: {message['error']}")
        new = message["tokens_predicted"] - self.tokens
        if new > 0:
            if self.tokens:
                self.gaps += [(now - self.last) / new] * new
            else:
                self.first = now
            self.last = now
            self.tokens += new
        self.ended = message["stop"]


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(p / 100 * len(values)))]


def closed_loop(port, clients, requests, prompts, gen):
    """Runs all requests with `clients` at a time. Returns the ended streams."""
    selector = selectors.DefaultSelector()
    done, sent = [], 0
    try:
        while len(done) < requests:
            while sent < requests and sent - len(done) < clients:
                stream = Stream(port, prompts.next(), gen)
                selector.register(stream.socket, selectors.EVENT_READ, stream)
                sent += 1
            ready = selector.select(timeout=300)
            if not ready:
                raise RuntimeError("llama-server: no token for 300 s")
            for key, _ in ready:
                if key.data.read():
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
                    done.append(key.data)
    finally:
        for key in list(selector.get_map().values()):
            key.fileobj.close()
        selector.close()
    return done


def run(port, clients, requests, prompt, gen, seed=1):
    cpu = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    started = time.monotonic()
    streams = closed_loop(port, clients, requests, Prompts(prompt, seed), gen)
    seconds = time.monotonic() - started
    cpu = sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) - cpu
    lengths = [s.tokens for s in streams if s.tokens != gen]
    if lengths:
        raise RuntimeError(f"llama-server: {len(lengths)} answers have another length than {gen} tokens: {lengths[:4]}")
    first = [s.first - s.sent for s in streams]
    gaps = [gap for s in streams for gap in s.gaps] or [0.0]
    return {
        "tokens_per_s": len(streams) * gen / seconds,
        "ttft_p50_ms": percentile(first, 50) * 1e3, "ttft_p99_ms": percentile(first, 99) * 1e3,
        "itl_p50_ms": percentile(gaps, 50) * 1e3, "itl_p99_ms": percentile(gaps, 99) * 1e3,
        "seconds": seconds, "client_cpu_s": cpu,
    }  # fmt: skip
