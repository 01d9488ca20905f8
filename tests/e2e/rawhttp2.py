"""HTTP/2 and gRPC by hand: a client that can send bytes that no library sends."""
import base64
import socket
import struct
import time

import hpack
from google.rpc import error_details_pb2, status_pb2

from conftest import patience

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS, ACK, PADDED = 1, 4, 1, 8


def integer(value, bits, first=0):
    """An integer with a prefix: RFC 7541, section 5.1."""
    limit = (1 << bits) - 1
    if value < limit:
        return bytes([first | value])
    out, value = [first | limit], value - limit
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    return bytes(out + [value])


def literal(name, value):
    """A header field without indexing and without Huffman code; names and values may be any bytes."""
    name, value = (x.encode() if isinstance(x, str) else x for x in (name, value))
    return b"\0" + integer(len(name), 7) + name + integer(len(value), 7) + value


def block(headers):
    return b"".join(literal(n, v) for n, v in headers)


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def message(body, compressed=0, length=None):
    """gRPC's length-prefixed message."""
    return struct.pack(">BI", compressed, len(body) if length is None else length) + body


def varint(value):
    out = []
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    return bytes(out + [value])


def field(number, wire, body):
    return varint(number << 3 | wire) + body


def text(number, value):
    value = value.encode() if isinstance(value, str) else value
    return field(number, 2, varint(len(value)) + value)


def request_headers(path, extra=(), scheme="http"):
    return [(":method", "POST"), (":scheme", scheme), (":path", path), (":authority", "localhost"),
            ("content-type", "application/grpc"), ("te", "trailers"), *extra]


class Closed(Exception):
    pass


def raw_reason(headers):
    """Returns the reason in an answer's google.rpc.ErrorInfo, or ""."""
    value = headers.get("grpc-status-details-bin", "")
    info = error_details_pb2.ErrorInfo()
    any(detail.Unpack(info) for detail in status_pb2.Status.FromString(base64.b64decode(value + "==")).details)
    return info.reason


class Peer:
    """A connection of a raw HTTP/2 client."""

    def __init__(self, port, preface=PREFACE, settings=b"", timeout=10, tls=None):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=patience(timeout))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self.timeout = patience(timeout)
        self.decoder = hpack.Decoder()
        self.decoder.max_header_list_size = 1 << 20
        self.buffer = b""
        self.next_stream = 1
        self.windows = {0: 65535}
        self.initial_window = 65535
        self.kept = []  # frames read during the wait for another frame
        if preface is not None:
            self.socket.sendall(preface + frame(SETTINGS, 0, 0, settings))

    def send(self, data):
        try:
            self.socket.sendall(data)
        except OSError as e:
            raise Closed(str(e)) from e

    def open(self, path, extra=(), end=False, headers=None):
        """Starts a stream; returns its number."""
        stream, self.next_stream = self.next_stream, self.next_stream + 2
        self.send(frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream,
                        block(request_headers(path, extra) if headers is None else headers)))
        return stream

    def room(self, stream):
        return min(self.windows[0], self.windows.get(stream, 0) + self.initial_window)

    def data(self, stream, payload, end=True, size=16384, batch=1):
        """Sends data in frames of at most `size` bytes, as the windows allow, with `batch` frames per write."""
        pending = []
        for at in range(0, len(payload), size) or [0]:
            part = payload[at:at + size]
            last = end and at + size >= len(payload)
            while self.room(stream) < len(part):
                self.send(b"".join(pending))
                pending = []
                self.kept.append(self.read_frame())
            self.windows[0] -= len(part)
            self.windows[stream] = self.windows.get(stream, 0) - len(part)
            pending.append(frame(DATA, END_STREAM if last else 0, stream, part))
            if len(pending) >= batch or last:
                self.send(b"".join(pending))
                pending = []
        self.send(b"".join(pending))

    def call(self, path, body, extra=(), **kwargs):
        stream = self.open(path, extra)
        self.data(stream, message(body, **kwargs))
        return self.answer(stream)

    def read_exactly(self, n, until):
        while len(self.buffer) < n:
            self.socket.settimeout(max(0.001, until - time.monotonic()))
            try:
                part = self.socket.recv(65536)
            except (TimeoutError, BlockingIOError):
                raise TimeoutError("nothing more came") from None
            except OSError as e:
                raise Closed(str(e)) from e
            if not part:
                raise Closed("end of file")
            self.buffer += part
        out, self.buffer = self.buffer[:n], self.buffer[n:]
        return out

    def read_frame(self, timeout=None):
        """Returns the next frame, after the required reply to the frame."""
        until = time.monotonic() + (self.timeout if timeout is None else timeout)
        head = self.read_exactly(9, until)
        kind, flags, stream = head[3], head[4], struct.unpack(">I", head[5:])[0] & 0x7fffffff
        payload = self.read_exactly(int.from_bytes(head[:3], "big"), until)
        if kind == SETTINGS and not flags & ACK:
            for at_setting in range(0, len(payload), 6):
                name, value = struct.unpack(">HI", payload[at_setting:at_setting + 6])
                if name == 4:
                    self.initial_window = value
            self.send(frame(SETTINGS, ACK, 0))
        if kind == PING and not flags & ACK:
            self.send(frame(PING, ACK, 0, payload))
        if kind == WINDOW_UPDATE:
            self.windows[stream] = self.windows.get(stream, 0) + struct.unpack(">I", payload)[0]
        if kind == DATA and payload:
            self.send(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", len(payload))))
        return kind, flags, stream, payload

    def answer(self, stream, timeout=None):
        """Returns the end of a stream: {"grpc-status": …}, {"rst": code}, {"goaway": code, "text": …} or {"closed":
        why}."""
        until = time.monotonic() + (self.timeout if timeout is None else timeout)
        found = {"messages": 0}
        try:
            while True:
                kind, flags, at, payload = (self.kept.pop(0) if self.kept
                                            else self.read_frame(max(0.001, until - time.monotonic())))
                if kind == HEADERS:
                    assert flags & END_HEADERS
                    decoded = dict(self.decoder.decode(payload))
                    if at == stream:
                        found.update(decoded)
                elif kind == DATA and at == stream:
                    found["messages"] += 1
                elif kind == RST_STREAM and at == stream:
                    return {**found, "rst": struct.unpack(">I", payload)[0]}
                elif kind == GOAWAY:
                    code = struct.unpack(">I", payload[4:8])[0]
                    if code:
                        return {**found, "goaway": code, "text": payload[8:].decode(errors="replace")}
                if at == stream and flags & END_STREAM and kind in (HEADERS, DATA):
                    return found
        except Closed as e:
            return {**found, "closed": str(e)}

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
