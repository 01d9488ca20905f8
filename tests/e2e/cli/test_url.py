"""The command line over HTTP. run, chat and bench serve speak with Sluice and with servers of other habits. `sluice serve`
prints its HTTP address."""
import contextlib
import http.server
import json
import os
import shutil
import socket
import ssl
import subprocess
import threading

import pytest

from conftest import BIN, Sluice, free_port, model_path, names, patience, until
from pki import Authority
from test_cli import Terminal


def environment(**more):
    return {**{k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}, "LC_ALL": "C", **more}


def sluice(*args, stdin="", env=None):
    return subprocess.run([BIN / "sluice", *map(str, args)], input=stdin, capture_output=True, text=True, timeout=patience(120),
                          env=environment(**(env or {})))


def done(*args, **kwargs):
    result = sluice(*args, **kwargs)
    assert result.returncode == 0, result.stderr
    return result


def failed(*args, **kwargs):
    """Returns the error of a failed command as JSON, and its exit status."""
    result = sluice(*args, "--json", **kwargs)
    assert result.returncode != 0 and result.stdout == "", result.stdout
    return json.loads(result.stderr.splitlines()[-1])["error"], result.returncode


# --- a server of other habits ---

DELTA = '{"choices":[{"index":0,"delta":%s,"finish_reason":%s}]}'
USAGE = '{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":%d}}'


def delta(content, finish=None):
    return DELTA % (json.dumps(content), json.dumps(finish))


def text(content, finish=None):
    return delta({"content": content}, finish)


class Foreign(http.server.BaseHTTPRequestHandler):
    """The model's name chooses the habit."""
    protocol_version = "HTTP/1.1"
    models = ["one", "two"]
    seen = {}  # the last request's headers and body, and whether the client has left
    left = threading.Event()

    def log_message(self, *args):
        pass

    def whole(self, status, body, *headers):
        data = body.encode()
        self.send_response(status)
        for name, value in (("Content-Type", "application/json"), ("Content-Length", len(data)), *headers):
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.whole(200, json.dumps({"data": [{"id": m} for m in self.models]}))

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def stream(self, *events, end="data: [DONE]\n\n"):
        """Chunks of seven bytes, cut anywhere."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        data = ("".join(f"data: {e}\n\n" for e in events) + end).encode()
        for i in range(0, len(data), 7):
            self.chunk(data[i:i + 7])
        self.chunk(b"")

    def raw(self, body):
        """HTTP/1.0, and the connection's end ends the body."""
        self.close_connection = True
        self.wfile.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + body.encode())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Foreign.seen = {"headers": dict(self.headers), "body": body, "path": self.path}
        getattr(self, "as_" + body["model"])(body)

    def as_one(self, body):
        self.stream(delta({"role": "assistant", "content": ""}), text("a"), text("b", "stop"), USAGE % 2)

    def as_crlf(self, body):
        self.raw(": ping\r\n\r\n" + "".join(f"id: 1\r\ndata:{e}\r\n\r\n" for e in (text("a"), text("b", "stop"), "[DONE]")))

    def as_lines(self, body):
        self.raw('data: {"choices":\ndata: [{"delta":{"content":"ab"},"finish_reason":"stop"}]}\n')

    def as_whole(self, body):
        self.whole(200, '{"choices":[{"message":{"role":"assistant","content":"ab"},"finish_reason":"stop"}]}')

    def as_thinks(self, body):
        self.stream(delta({"reasoning_content": "hm", "reasoning": "hm"}), text("ab", "stop"))

    def as_no_end(self, body):
        """The stream is over, and the connection is not."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(f"data: {text('ab', 'stop')}\n\ndata: [DONE]\n\n".encode())
        self.rfile.read(1)  # until the client leaves
        self.close_connection = True

    def as_breaks(self, body):
        self.stream(text("a"), '{"error":{"message":"lost","type":"server_error","code":503}}')

    def as_cut(self, body):
        self.stream(text("a"), end="")

    def as_other(self, body):
        self.whole(307, "", ("Location", "http://other.example/v1"))

    def as_busy(self, body):
        self.whole(429, '{"error":{"message":"later","param":"n","code":"queue_full"}}')

    def as_page(self, body):
        self.whole(200, "<html>")

    def as_short(self, body):
        """Holds three messages."""
        if len(body["messages"]) > 3:
            self.whole(400, '{"error":{"message":"too long","code":"context_length_exceeded"}}')
        else:
            self.stream(text(body["messages"][-1]["content"], "stop"))

    def as_endless(self, body):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            while True:
                self.chunk(f"data: {text('again ')}\n\n".encode())
                threading.Event().wait(0.02)
        except OSError:
            self.close_connection = True
            Foreign.left.set()

    def as_lies(self, body):
        self.stream(text("a"), text("b"), text("c", "length"), USAGE % 2)

    def as_llama(self, body):
        """The usage comes with the finish reason."""
        end = text("", "length")[:-1] + ',"usage":{"prompt_tokens":5,"completion_tokens":3}}'
        self.stream(text("a"), text("b c"), end)

    def as_merges(self, body):
        self.stream(text("a b"), text("c", "length"), USAGE % 3)


def start(context=None):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Foreign)
    server.daemon_threads = True
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.fixture(scope="module")
def foreign():
    server = start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pki")
    ca = Authority(folder, "ca")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*ca.issue("server", "server", "IP:127.0.0.1"))
    server = start(context)
    yield f"https://127.0.0.1:{server.server_port}", ca
    server.shutdown()


@pytest.mark.parametrize("model", ["one", "crlf", "lines", "whole", "thinks", "no_end"])
def test_servers_of_other_habits_are_understood(foreign, model):
    result = done("run", "--url", foreign, model, "hi", "--timeout", "60s")
    assert result.stdout == "ab\n" and result.stderr == ("hm\n" if model == "thinks" else "")


def test_the_request_has_the_options_that_exist(foreign):
    done("run", "--url", foreign + "/api/", "one", "hi", "-n", 3, "-t", "0.5", "--top-p", "0.9", "--seed", 7, "--stop", 'x"',
         "--presence-penalty", 1, "--frequency-penalty", "-1", "--system", "be\nbrief")
    assert Foreign.seen["path"] == "/api/chat/completions"
    assert Foreign.seen["body"] == {
        "model": "one", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 3, "temperature": 0.5, "top_p": 0.9,
        "seed": 7, "stop": 'x"', "presence_penalty": 1, "frequency_penalty": -1,
        "messages": [{"role": "system", "content": "be\nbrief"}, {"role": "user", "content": "hi"}]}
    done("run", "--url", foreign, "one", "-", "--raw", stdin="from stdin\n")
    assert Foreign.seen["path"] == "/v1/completions" and Foreign.seen["body"]["prompt"] == "from stdin"
    assert "suffix" not in Foreign.seen["body"]


def test_a_suffix_goes_to_completions(foreign):
    """Symptom: the API fills gaps, and the command line could not ask for that."""
    done("run", "--url", foreign, "one", "def f(", "--suffix", "): pass\n")
    body = Foreign.seen["body"]
    assert Foreign.seen["path"] == "/v1/completions" and (body["prompt"], body["suffix"]) == ("def f(", "): pass\n")
    for option in (("--suffix", ""), ("--suffix", "x", "--system", "y"), ("--suffix", "x", "--template", "y")):
        error, code = failed("run", "--url", foreign, "one", "hi", *option)
        assert code == 2 and error["reason"] == "USAGE" and names(error["message"], option[-2])


@pytest.mark.parametrize("option", [("--min-tokens", 1), ("--top-k", 1), ("--min-p", 0.1), ("--typical-p", 0.5), ("--ignore-eos",),
                                    ("--repetition-penalty", 1.1), ("--speculate", 1), ("--priority", 1), ("--template", "x"),
                                    ("--version", 1), ("--server", "127.0.0.1:1")])
def test_options_that_do_not_exist_are_refused_by_name(foreign, option):
    error, code = failed("run", "--url", foreign, "one", "hi", *option)
    assert code == 2 and error["reason"] == "USAGE" and names(error["message"], option[0])


@pytest.mark.parametrize("model, reason", [("breaks", ""), ("cut", ""), ("other", ""), ("busy", "QUEUE_FULL"), ("page", "")])
def test_faults_of_a_server_are_errors(foreign, model, reason):
    result = sluice("run", "--url", foreign, model, "hi", "--json")
    error = json.loads(result.stderr)["error"]
    assert result.returncode == 1 and error["reason"] == reason
    assert error["code"] == {"breaks": "UNAVAILABLE", "cut": "DATA_LOSS", "other": "FAILED_PRECONDITION", "busy": "RESOURCE_EXHAUSTED",
                               "page": "DATA_LOSS"}[model]
    if model == "other":
        assert names(error["message"], "http://other.example/v1")
    if model == "busy":
        assert error["field"] == "n"


@pytest.mark.parametrize("url, model, code, reason", [
    ("http://127.0.0.1:{closed}", "one", 1, "NOT_CONNECTED"), ("ftp://127.0.0.1", "one", 2, "USAGE"),
    ("http://user:secret@127.0.0.1", "one", 2, "USAGE"), ("127.0.0.1:8000", "one", 2, "USAGE"),
    ("https://127.0.0.1:{plain}", "one", 1, "PEER_WITHOUT_TLS")])
def test_addresses_that_cannot_be_reached_are_named(foreign, url, model, code, reason):
    url = url.format(closed=free_port(), plain=foreign.rsplit(":", 1)[1])
    error, status = failed("run", "--url", url, model, "hi")
    assert status == code and error["reason"] == reason and "secret" not in error["message"].split("@")[-1]


def test_a_key_does_not_leave_the_machine_in_plain_text(tmp_path):
    error, code = failed("run", "--url", "http://192.0.2.1:8000", "one", "hi", env={"SLUICE_API_KEY": "secret"})
    assert code == 2 and names(error["message"], "--allow-plaintext-keys") and "secret" not in error["message"]


def test_a_model_is_chosen_only_if_it_is_the_only_one(foreign):
    error, code = failed("run", "--url", foreign, "hi")
    assert code == 2 and names(error["message"], "one", "two")
    try:
        Foreign.models = []  # the error asked for a MODEL, and none was there
        error, code = failed("run", "--url", foreign, "hi")
        assert code == 1 and error["code"] == "FAILED_PRECONDITION"
        Foreign.models = ["one"]
        assert done("run", "--url", foreign, "hi").stdout == "ab\n"
        assert done("chat", "--url", foreign, stdin="hi\n").stdout == "ab\n"
    finally:
        Foreign.models = ["one", "two"]
    for command in ("run", "chat", "bench serve"):
        error, code = failed(*command.split(), *(["hi"] if command == "run" else []))
        assert code == 2 and names(error["message"], "MODEL")


def test_tls_trusts_the_given_ca_and_the_key_goes_along(secured, tmp_path):
    url, ca = secured
    (tmp_path / "key").write_text("secret\n")
    assert done("run", "--url", url, "one", "hi", "--tls-ca", ca.cert, "--api-key-file", tmp_path / "key").stdout == "ab\n"
    assert Foreign.seen["headers"]["Authorization"] == "Bearer secret"
    assert failed("run", "--url", url, "one", "hi")[0]["reason"] == "CERTIFICATE_UNTRUSTED"
    assert failed("run", "--url", url, "one", "hi", "--tls-ca", ca.cert, "--server-name", "other")[0]["reason"] == "CERTIFICATE_OTHER_NAME"
    assert failed("run", "--url", "http://127.0.0.1:1", "one", "hi", "--tls-ca", ca.cert)[1] == 2


def test_no_proxy_is_used(foreign):
    proxy = f"http://127.0.0.1:{free_port()}"
    env = {name: proxy for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY")}
    assert done("run", "--url", foreign, "one", "hi", env=env).stdout == "ab\n"


def test_a_conversation_that_is_too_long_loses_its_oldest_turns(foreign):
    result = done("chat", "--url", foreign, "short", stdin="1\n2\n3\n/retry\n")
    assert result.stdout == "1\n2\n3\n3\n"
    assert [m["content"] for m in Foreign.seen["body"]["messages"]] == ["2", "2", "3"]


def test_ctrl_c_ends_the_answer_and_not_the_chat(foreign, served):
    Foreign.left.clear()
    terminal = Terminal(served, "chat", "endless", "--url", foreign, "--no-history")
    terminal.expect(">>> ")
    terminal.send("go on\r")
    terminal.expect("again again")
    terminal.send("\x03")
    terminal.expect(r"\[cancelled\]")
    assert Foreign.left.wait(patience(20))
    terminal.send("/exit\r")
    assert terminal.wait() == 0


# --- Sluice itself ---


@pytest.fixture(scope="module")
def web(tmp_path_factory, stubs):
    """The sample model over gRPC and over HTTP, under the name smol."""
    served = Sluice(tmp_path_factory.mktemp("web"), stubs)
    served.url = f"http://127.0.0.1:{free_port()}"
    served.start(model_path(), "--name", "smol", "--http-listen", served.url[7:])
    try:
        served.wait(lambda: served.announced("ready"), 60, "the model is ready")
        yield served
    finally:
        served.stop()


def test_run_and_chat_give_what_they_give_over_grpc(web):
    grpc = ("--state-dir", web.state)
    for args in (["run", "smol", "Name a colour.", "-n", 12], ["run", "smol", "The sky is", "--raw", "-n", 12],
                 ["run", "smol", "Name a colour.", "-n", 12, "-t", "0.9", "--seed", 3, "--stop", "a"]):
        assert done(*args, "--url", web.url).stdout == done(*args, *grpc).stdout
    lines = "My name is Ada.\nWhat is my name?\n"
    args = ["chat", "smol", "-n", 12, "--system", "Answer briefly."]
    assert done(*args, "--url", web.url, stdin=lines).stdout == done(*args, *grpc, stdin=lines).stdout
    result = done("run", "smol", "The sky is", "--raw", "-n", 12, "--url", web.url + "/v1", "--stats")
    assert names(result.stderr, "12 tokens")
    events = [json.loads(line) for line in done("run", "smol", "hi", "-n", 5, "--url", web.url, "--json").stdout.splitlines()]
    assert events[-1]["usage"]["completion_tokens"] == 5
    error, code = failed("run", "absent", "hi", "--url", web.url)
    assert code == 1 and error["code"] == "NOT_FOUND" and error["reason"] == "MODEL_NOT_FOUND"


def test_the_port_of_the_other_protocol_is_named(web):
    """Symptom: the errors spoke of a broken response and of the port of --metrics."""
    error, code = failed("run", "smol", "hi", "--url", f"http://{web.address}")
    # a server that closes before its first frame gives no sign of gRPC
    assert code == 1 and error["reason"] in ("GRPC_PORT", "CONNECTION_LOST"), error
    error, code = failed("run", "smol", "hi", "--server", web.url[7:])
    assert code == 1 and error["reason"] == "HTTP1_PORT", error


def test_serve_prints_the_url_and_a_curl_line_that_works(web):
    assert web.announced("serving", http=web.url) and not web.announced("http_moved")
    curl = web.announced("ready")[0]["curl"]
    assert curl.startswith(f"curl {web.url}/v1/chat/completions ")
    if shutil.which("curl"):
        answer = subprocess.run(curl + " -s --max-time 60", shell=True, capture_output=True, text=True, timeout=patience(90))
        assert json.loads(answer.stdout)["choices"][0]["message"]["content"], answer


def bench(*args):
    result = sluice("bench", "serve", "--json", *args)
    return json.loads(result.stdout), result.returncode


def test_bench_measures_over_http_as_over_grpc(web):
    load = ("smol", "--clients", 3, "--requests", 7, "--warmup", 2, "--prompt-tokens", "20-30", "--max-tokens", "6")
    (by_http, code), (by_grpc, _) = bench(*load, "--http", web.url), bench(*load, "--state-dir", web.state)
    assert code == 0 and list(by_http) == list(by_grpc)
    for key in ("requests", "errors", "input_tokens", "cached_tokens", "output_tokens", "max_in_flight"):
        assert by_http[key] == by_grpc[key], key
    assert by_http["output_tokens"] == 42 and by_http["connections"] == 3 and by_http["ttft_ms"]["n"] == 7
    assert 0 < by_http["itl_ms"]["n"] <= 35  # tokens of the first message have none
    report, _ = bench("smol", "--http", web.url, "--clients", 2, "--rate", 20, "--requests", 5, "--max-tokens", 3, "--slo-e2e-ms", 60000)
    assert report["requests"]["ok"] == 5 and report["goodput"]["share"] == 1


def test_bench_checks_the_count_of_a_server(foreign):
    report, code = bench("merges", "--http", foreign, "--requests", 4, "--clients", 2)
    assert code == 0 and report["output_tokens"] == 12 and report["messages"] == 8 and report["input_tokens"] == 20
    report, code = bench("llama", "--http", foreign, "--requests", 1)
    assert code == 0 and (report["output_tokens"], report["messages"], report["itl_ms"]["n"], report["input_tokens"]) == (3, 2, 1, 5)
    report, code = bench("lies", "--http", foreign, "--requests", 2)
    assert code == 1 and report["requests"]["failed"] == 2 and report["errors"] == {"DATA_LOSS": 2}
    report, code = bench("busy", "--http", foreign, "--requests", 1)
    assert code == 1 and report["errors"] == {"RESOURCE_EXHAUSTED": 1}
    assert failed("bench", "serve", "one", "--http", foreign, "--speculate", 1)[1] == 2


def test_a_taken_default_port_moves_http_and_a_given_one_fails(tmp_path, stubs):
    """With its defaults, serve has to start also where another program has port 8000. Symptom: the program was another run
    of this test, which released the port in the middle."""
    def hold():
        with contextlib.suppress(OSError):
            return held.enter_context(socket.create_server(("127.0.0.1", 8000)))

    with contextlib.ExitStack() as held, socket.create_server(("127.0.0.1", 0)) as given:
        with contextlib.suppress(AssertionError):  # another program may have the port all the time
            until(hold, 20, "the port is free")
        default = Sluice(tmp_path, stubs)
        environ = {k: v for k, v in os.environ.items() if k != "SLUICE_HTTP_LISTEN"}
        log = open(tmp_path / "serve.out", "ab")
        default.process = subprocess.Popen([BIN / "sluice", "serve", "--json", "--state-dir", tmp_path, "--listen", default.address], env=environ,
                                           stdout=log, stderr=log)
        try:
            default.wait(lambda: default.announced("serving"), 30, "serve starts")
            moved = default.announced("http_moved")[0]["address"]
            assert moved != "127.0.0.1:8000" and default.announced("serving", http=f"http://{moved}")
            host, port = moved.split(":")
            with socket.create_connection((host, int(port)), timeout=patience(10)) as s:
                s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                assert s.recv(100).startswith(b"HTTP/1.1 200 ")
        finally:
            default.stop()
        (tmp_path / "x").mkdir()
        error, code = failed("serve", "--state-dir", tmp_path / "x", "--listen", f"127.0.0.1:{free_port()}", "--http-listen",
                             f"127.0.0.1:{given.getsockname()[1]}", "--metrics", "", "--manager-metrics", "")
        assert code == 1 and error["reason"] == "ADDRESS_IN_USE" and names(error["message"], "--http-listen")
        assert failed("serve", "--no-http", "--http-listen", "127.0.0.1:1")[1] == 2


def test_http_can_be_turned_off(fresh):
    fresh.start("--no-http", env={"SLUICE_HTTP_LISTEN": f"127.0.0.1:{free_port()}"})
    fresh.wait(lambda: fresh.announced("serving"), 30, "serve starts")
    assert fresh.announced("serving", http="") and not fresh.announced("http_moved")
