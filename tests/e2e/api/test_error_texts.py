"""The error texts of every RPC, and their log lines. The texts name no memory address, no file of the machine, and
forge no log line."""
import os
import re

import grpc
from google.protobuf import message_factory
from google.rpc import error_details_pb2, status_pb2

from conftest import BIN, ROOT, Sluice, patience

SERVICE = "/sluice.manager.v1.ModelManager/"

# Texts for callers, and log lines about calls, leak nothing of the machine. They name no memory address, and no file
# that the caller did not name.
POINTER = re.compile(r"0x[0-9a-fA-F]{5,}|\(nil\)")
PATH = re.compile(r"(?<![\w/:.])/(?:[\w.@+-]+/)*[\w.@+-]+")
# Names of RPCs and links look like paths: "/sluice.manager.v1.ModelManager/GetStatus", "google.rpc".
NO_FILE = re.compile(r"^/(sluice|grpc)\.")
NASTY = ["", "x", "../../../etc/shadow", "/etc/shadow", "/proc/self/maps", "%s%p%n", "a\x1b[31m\nlevel=error", "z" * 5000, "r999999", "\u202e"]


def fill(message, text, number, depth=0):
    """Sets every field of a request to the same text and number."""
    for field in message.DESCRIPTOR.fields:
        many = field.is_repeated
        try:
            if field.type == field.TYPE_MESSAGE:
                if depth < 2 and not (many and field.message_type.GetOptions().map_entry):
                    inner = getattr(message, field.name).add() if many else getattr(message, field.name)
                    fill(inner, text, number, depth + 1)
                continue
            value = {field.CPPTYPE_STRING: text.encode() if field.type == field.TYPE_BYTES else text, field.CPPTYPE_BOOL: bool(number % 2),
                     field.CPPTYPE_DOUBLE: float(number), field.CPPTYPE_FLOAT: float(number)}.get(field.cpp_type, number)
            if many:
                getattr(message, field.name).append(value)
            else:
                setattr(message, field.name, value)
        except (ValueError, TypeError):
            pass  # the field has another type
    return message


def check_text(text, said, where, folders):
    """`said`: the texts that the caller sent."""
    assert not POINTER.search(text), (where, text)
    for path in PATH.findall(text):
        assert NO_FILE.match(path) or any(path in s for s in said), (where, path, text)
    for folder in folders:
        assert folder not in text, (where, text)
    for name in ["struct ", ".c:", "sqlite3_", "protobuf_c", "errno", "assert"]:
        assert name not in text, (where, text)


def every_text(message):
    """Yields all strings of an answer, at any depth."""
    for field, value in message.ListFields():
        for v in value if field.is_repeated else [value]:
            if field.type == field.TYPE_MESSAGE:
                yield from every_text(v) if hasattr(v, "ListFields") else ()
            elif isinstance(v, str):
                yield field.name, v


def test_what_is_said_tells_nothing_of_the_machine(tmp_path, stubs):
    sluice = Sluice(tmp_path, stubs)
    models = tmp_path / "models"
    models.mkdir()
    tiny = (ROOT / "tests/golden/tiny/q8_0.gguf").read_bytes()
    for name, data in {"a.gguf": tiny, "cut.gguf": tiny[:3000], "junk.gguf": b"GGUF" + b"\xff" * 4000, "empty.gguf": b""}.items():
        (models / name).write_bytes(data)
    sluice.start("--model-root", models)
    try:
        sluice.cli("register", "a", models / "a.gguf")
        sluice.cli("load", "a", "--threads", "1")
        sluice.cli("register", "gone", models / "a.gguf")
        folders = [str(tmp_path), str(models), str(BIN), os.path.expanduser("~/.")]
        n = 0
        with grpc.insecure_channel(f"unix:{tmp_path}/run/manager.sock") as manager, grpc.insecure_channel(sluice.address) as server:
            for file, channel in [(stubs.manager, manager), (stubs.routing, manager), (stubs.inference, server)]:
                for service in file.DESCRIPTOR.services_by_name.values():
                    for method in service.methods:
                        kind = message_factory.GetMessageClass(method.input_type)
                        for i, text in enumerate(NASTY):
                            request = fill(kind(), text, [0, 1, 2**31 - 1, 7][i % 4]) if text or i else kind()
                            if hasattr(request, "model") and i % 2:
                                request.model = "a"
                            n += tells_nothing(channel, f"/{service.full_name}/{method.name}", method, request, folders)
            register = stubs.manager.DESCRIPTOR.services_by_name["ModelManager"].methods_by_name["RegisterModelVersion"]
            for path in ["cut.gguf", "junk.gguf", "empty.gguf", "none.gguf", ".", "a.gguf/x"]:
                for config in [{}, {"draft_model": path}]:
                    request = stubs.manager.RegisterModelVersionRequest(model="b", path="a.gguf" if config else path, config=config)
                    n += tells_nothing(manager, SERVICE + "RegisterModelVersion", register, request, folders)
        assert n > 200
        # a failed load reports the error in the operation, the replica and the events
        (models / "a.gguf").write_bytes(tiny[:5000])
        sluice.cli("load", "gone", check=False)
        for words in [["ops", "--json"], ["ps", "--json"], ["events", "--json"]]:
            out = sluice.cli(*words).stdout
            assert not POINTER.search(out) and str(BIN) not in out and "/etc/" not in out, out
        for name in ["manager", "server"]:
            for log in (tmp_path / "log").glob(f"*{name}*"):
                text = log.read_text()
                assert not POINTER.search(text), [line for line in text.splitlines() if POINTER.search(line)]
                assert "\x1b" not in text and all(re.match(r"ts=|[IWE]\d{4} ", line) for line in text.splitlines() if line), text[-3000:]
    finally:
        sluice.stop()


def tells_nothing(channel, path, method, request, folders):
    """Returns true if the call failed. Checks the texts of the answer or of the error."""
    said = [text for _, text in every_text(request)]
    make = {(False, False): channel.unary_unary, (False, True): channel.unary_stream, (True, False): channel.stream_unary,
            (True, True): channel.stream_stream}[method.client_streaming, method.server_streaming]
    answers = message_factory.GetMessageClass(method.output_type)
    call = make(path, request_serializer=lambda m: m.SerializeToString(), response_deserializer=answers.FromString)
    try:
        got = call(iter([request]) if method.client_streaming else request, timeout=patience(0.3 if method.server_streaming else 30))
        for answer_, _ in zip(got if method.server_streaming else [got], range(5)):
            for name, text in every_text(answer_):
                if name in ("message", "reason", "details", "error"):
                    check_text(text, said, path, folders)
        return False
    except grpc.RpcError as e:
        if e.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
            return False
        check_text(e.details() or "", said, path, folders)
        for key, value in e.trailing_metadata() or ():
            if key == "grpc-status-details-bin":
                for detail in status_pb2.Status.FromString(value).details:
                    kind = message_factory.GetMessageClass(
                        error_details_pb2.DESCRIPTOR.message_types_by_name[detail.type_url.rsplit(".", 1)[1]])
                    for _, text in every_text(kind.FromString(detail.value)):
                        check_text(text, said, path, folders)
        return True
