"""A streamed answer over HTTP, read from a socket of its own. The test decides when it reads, and how it leaves."""
import json
import re
import socket
import struct

from conftest import patience


def echo_text(ids, index, choice=0):
    """The text of a token of an echoing worker (tests/support/load/echo_text.c)."""
    mixed = (ids[(index + choice) % len(ids)] * 2654435761 ^ index * 2246822519) & 0xFFFFFFFF
    mixed ^= mixed >> 15
    text = ""
    for _ in range(3):
        text += chr(ord("a") + mixed % 26)
        mixed //= 26
    return text + " "


def echoed(prompt, n_tokens, choice=0):
    return "".join(echo_text(prompt.encode(), i, choice) for i in range(n_tokens))


def dial(address, receive_buffer=None, seconds=20):
    if address.startswith("unix:"):
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(patience(seconds))
        s.connect(address[5:])
        return s
    s = socket.socket()
    s.settimeout(patience(seconds))
    if receive_buffer:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    host, port = address.rsplit(":", 1)
    s.connect((host, int(port)))
    return s


def leave(s, how):
    """Closes the socket with FIN or RST."""
    if how == "reset":
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def post(path, body, **headers):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{lines}\r\n".encode() + body


class Answer:
    """Reads answers from a socket: status, headers, and the body by its length or its chunks."""

    def __init__(self, s):
        self.socket, self.data = s, b""

    def more(self):
        got = self.socket.recv(65536)
        if not got:
            raise EOFError("the connection ended")
        self.data += got

    def line(self):
        while b"\r\n" not in self.data:
            self.more()
        line, _, self.data = self.data.partition(b"\r\n")
        return line.decode()

    def take(self, n):
        while len(self.data) < n:
            self.more()
        taken, self.data = self.data[:n], self.data[n:]
        return taken

    def head(self):
        self.status = int(self.line().split()[1])
        self.headers = {}
        while line := self.line():
            name, _, value = line.partition(": ")
            self.headers[name.lower()] = value
        return self

    def chunk(self):
        """Returns the next chunk; b"" at the end of the body."""
        chunk = self.take(int(self.line(), 16))
        assert self.line() == ""
        return chunk

    def body(self):
        if "content-length" in self.headers:
            return self.take(int(self.headers["content-length"]))
        body = b""
        while chunk := self.chunk():
            body += chunk
        return body


class Stream:
    """A streamed /v1/completions of an echoing worker."""

    def __init__(self, address, prompt="abc", n_tokens=100, n=1, receive_buffer=None, send=True, socket=None):
        self.prompt, self.n = prompt, n
        self.request = post("/v1/completions", {"model": "echo", "prompt": prompt, "max_tokens": n_tokens, "n": n, "stream": True,
                                                "ignore_eos": True})
        self.socket = socket or dial(address, receive_buffer)
        self.answer = Answer(self.socket)
        self.text = [""] * n
        self.error, self.finished, self.done, self.frames = None, [None] * n, False, b""
        if send:
            self.socket.sendall(self.request)

    def begin(self):
        self.answer.head()
        assert self.answer.status == 200, self.answer.body()
        return self

    def read(self):
        """Takes the next chunk. Returns False at the end of the body."""
        chunk = self.answer.chunk()
        self.frames += chunk
        *whole, self.frames = self.frames.split(b"\n\n")
        for frame in whole:
            self.take(frame.decode())
        return chunk != b""

    def take(self, frame):
        if frame.startswith(":"):
            return
        assert frame.startswith("data: "), frame
        if frame == "data: [DONE]":
            self.done = True
            return
        event = json.loads(frame[6:])
        if "error" in event:
            self.error = event["error"]
            return
        for choice in event["choices"]:
            self.text[choice["index"]] += choice["text"]
            self.finished[choice["index"]] = choice["finish_reason"] or self.finished[choice["index"]]

    def wait_tokens(self, n_tokens):
        while len(self.text[0]) < 4 * n_tokens:
            assert self.read(), "the stream ended"
        return self

    def finish(self):
        while self.read():
            pass
        return self

    def is_right(self):
        """True if every choice has the echo's text so far."""
        return all(text == echoed(self.prompt, len(text) // 4, i) for i, text in enumerate(self.text))


def scrape(address):
    """The samples of /metrics at an address of HTTP."""
    with dial(address) as s:
        s.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        text = Answer(s).head().body().decode()
    return {m[1]: float(m[2]) for m in re.finditer(r"^([^#\n]+?)\s+(\S+)$", text, re.M)}
