"""Live streams beside a manager under faults. A real sluice-server works in front of the manager's fake workers, which
echo (tests/support/load/echo_serve.h). The clients know every token that must come."""
import os
import signal
import subprocess
import threading

import grpc

from conftest import BIN, free_port, patience, until

MASK = (1 << 32) - 1


def echo_text(token, index):
    """The text of tests/support/load/echo_text.c."""
    mixed = (token * 2654435761 & MASK) ^ (index * 2246822519 & MASK)
    mixed ^= mixed >> 15
    letters = ""
    for _ in range(3):
        letters += chr(ord("a") + mixed % 26)
        mixed //= 26
    return letters + " "


class Server:
    """A sluice-server of one manager program (manager_program.Manager)."""

    def __init__(self, manager, *options, env=None):
        self.manager, self.options, self.env = manager, options, env or {}
        self.address = f"127.0.0.1:{free_port()}"
        self.log = open(manager.folder / "server.log", "ab")
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [BIN / "sluice-server", "--listen", self.address, "--manager", self.manager.state / "run/manager.sock", "--routes-file",
             self.manager.folder / "routes.pb", "--metrics", "", *self.options], stdout=self.log, stderr=self.log,
            env=dict(os.environ, **self.env))

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(patience(70))
        self.log.close()


class EchoLoad:
    """`n` clients of one model. Each client requests max_tokens tokens again and again until stop(). `wrong` collects
    lost, repeated and foreign tokens, and calls that do not end OK."""

    def __init__(self, server, stubs, model="live", n=4, max_tokens=60, timeout=60):
        self.stubs, self.model, self.max_tokens, self.timeout = stubs, model, max_tokens, timeout
        self.wrong, self.n_tokens, self.n_whole = [], 0, 0
        self.changed, self.over = threading.Condition(), threading.Event()
        self.channel = grpc.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1),
                                                                      ("grpc.initial_reconnect_backoff_ms", 50),
                                                                      ("grpc.max_reconnect_backoff_ms", 200)])
        self.stub = stubs.inference_grpc.InferenceStub(self.channel)
        self.calls = {}
        self.threads = [threading.Thread(target=self.run, args=(k,), daemon=True) for k in range(n)]

    def ask(self, prompt, **kwargs):
        pb = self.stubs.inference
        return self.stub.Generate(pb.GenerateRequest(model=self.model, text=prompt, stopping=pb.Stopping(max_tokens=self.max_tokens)),
                                  wait_for_ready=True, **kwargs)

    def begin(self):
        """Starts the clients when the model is served."""
        def served():
            try:
                return list(self.ask("warm", timeout=patience(10)))
            except grpc.RpcError:
                return None
        until(served, 20, "the model answers", 0.05)
        [t.start() for t in self.threads]
        return self.more(20 * len(self.threads))

    def run(self, k):
        prompt = "".join(chr(ord("a") + k % 26) if i % 3 else chr(ord("A") + i + k // 26) for i in range(8))
        while not self.over.is_set():
            n, text, wanted, finished = 0, "", "", []
            try:
                self.calls[k] = self.ask(prompt, timeout=patience(self.timeout))
                for response in self.calls[k]:
                    kind = response.WhichOneof("event")
                    if kind == "finished":
                        finished.append(response.finished)
                    if kind != "tokens":
                        continue
                    ids = list(response.tokens.ids)
                    expected = [ord(prompt[i % len(prompt)]) for i in range(n, n + len(ids))]
                    if response.tokens.first_index != n or ids != expected:
                        self.say(0, f"client {k}: {ids} at {response.tokens.first_index} after {n} tokens")
                    wanted += "".join(echo_text(t, n + i) for i, t in enumerate(ids))
                    text += response.tokens.text
                    n += len(ids)
                    self.say(len(ids))
                if n != self.max_tokens or text != wanted or len(finished) != 1:
                    self.say(0, f"client {k}: OK with {n} tokens, {len(finished)} endings, {text!r}")
                self.n_whole += 1
            except grpc.RpcError as e:
                self.say(0, f"client {k} after {n} tokens: {e.code()} {e.details()}")
                self.over.wait(0.05)

    def say(self, n_tokens, wrong=None):
        with self.changed:
            self.n_tokens += n_tokens
            self.wrong += [wrong] if wrong else []
            self.changed.notify_all()

    def more(self, n, seconds=30):
        """Waits until n more tokens have come (I9), none of them wrong."""
        with self.changed:
            target = self.n_tokens + n
            reached = self.changed.wait_for(lambda: self.n_tokens >= target or self.wrong, patience(seconds))
            assert reached and not self.wrong, (self.n_tokens, target, self.wrong[:5])
        return self

    def stop(self):
        self.over.set()
        for t in self.threads:
            t.join(patience(self.timeout + 10))
            assert not t.is_alive()
        self.channel.close()
        assert not self.wrong, self.wrong[:5]
        assert self.n_whole >= len(self.threads), "too little ran: void"
