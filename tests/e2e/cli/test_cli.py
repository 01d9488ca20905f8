"""The command line as people and scripts use it: on a terminal, in pipes, with completion and man pages."""
import concurrent.futures
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import time
import urllib.request

import grpc
import pytest

from conftest import BIN, ROOT, model_path, names, patience


def environment(served, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}  # environment variables are options too
    env.update(SLUICE_STATE_DIR=str(served.state), SLUICE_SERVER=served.address, TERM="xterm", LC_ALL="C",
               XDG_STATE_HOME=str(served.state / "xdg"), HOME=str(served.state), **more)
    return env


def sluice(served, *args, stdin="", check=True, **more):
    result = subprocess.run([BIN / "sluice", *map(str, args)], input=stdin, capture_output=True, text=True, timeout=patience(120),
                            env=environment(served, **more))
    if check and result.returncode != 0:
        raise AssertionError(f"sluice {args}: {result.stderr}")
    return result


class Terminal:
    """A program on its own pseudo terminal, with the text that the program has printed."""

    def __init__(self, served, *args):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(BIN / "sluice", ["sluice", *map(str, args)], environment(served))
        self.output = b""

    def read(self, seconds=0.1):
        if select.select([self.fd], [], [], seconds)[0]:
            try:
                self.output += os.read(self.fd, 65536)
            except OSError:  # the program has closed its side
                return False
        return True

    def expect(self, pattern, seconds=30):
        """Waits until newly printed text matches the pattern. Returns the text up to the end of the match."""
        until = time.monotonic() + patience(seconds)
        while time.monotonic() < until:
            found = re.search(pattern.encode(), self.output, re.S)
            if found:
                seen, self.output = self.output[:found.end()], self.output[found.end():]
                return seen.decode(errors="replace")
            if not self.read():
                break
        raise AssertionError(f"no {pattern!r} in {self.output!r}")

    def send(self, text):
        os.write(self.fd, text.encode())

    def wait(self, seconds=10):
        until = time.monotonic() + patience(seconds)
        while time.monotonic() < until:
            self.read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
        raise AssertionError(f"still running: {self.output!r}")

    def close(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.fixture
def terminal(served):
    opened = []

    def start(*args):
        opened.append(Terminal(served, *args))
        return opened[-1]

    yield start
    for t in opened:
        t.close()


def cut(n):
    """The line that chat prints below an answer that --max-tokens ended: "[cut at N tokens ...]"."""
    return rf"\[[a-z][^\]\n]*\b{n}\b"


def running(served):
    models = served.inference.ListModels(served.stubs.inference.ListModelsRequest()).models
    return sum(v.n_running + v.n_queued for m in models for v in m.versions)


# --- chat ---

def test_chat_ctrl_c_cancels_the_answer_and_not_the_program(served, terminal):
    chat = terminal("chat", "smol", "--ignore-eos", "-n", "1800", "--no-history")
    chat.expect(">>> ")
    chat.send("Count to a million.\r")
    chat.expect("million.*\n.*\\w+ \\w+", 30)  # the answer has begun
    assert running(served) == 1
    chat.send("\x03")
    chat.expect(r"\[cancelled\]", 10)
    chat.expect(">>> ")
    served.wait(lambda: running(served) == 0, 5, "the cancelled request has gone")
    chat.send("/params max-tokens 4\r")
    chat.expect(">>> ")
    chat.send("Say hello.\r")
    chat.expect(cut(4), 30)
    chat.expect(">>> ")
    chat.send("half a li\x03")  # Ctrl-C discards the line, and nothing else
    chat.expect("/exit")
    chat.expect(">>> ")
    chat.send("\x04")
    assert chat.wait() == 0


def test_an_answer_cut_by_max_tokens_says_so_on_a_terminal_alone(served, terminal):
    """Symptom: the answer ended in mid-sentence, and only --stats gave the reason."""
    command = ["run", "smol", "Count to a million.", "--ignore-eos", "-n", "5"]
    shown = terminal(*command)
    shown.expect(r"--max-tokens 5\b", 30)
    assert shown.wait() == 0
    assert sluice(served, *command).stderr == ""


def test_stats_have_no_rate_of_a_few_tokens(served):
    """Symptom: --stats printed 71615.3 tokens/s for an answer of five tokens that came in one message."""
    command = ["run", "smol", "Count to a million.", "--ignore-eos", "--stats", "-n"]
    assert "tokens/s" not in sluice(served, *command, 5).stderr
    assert "tokens/s" in sluice(served, *command, 12).stderr


def test_run_with_a_file_names_the_model_that_stays_loaded(served):
    """Symptoms: the model of a file stayed loaded under a name that no line showed; an unload named no version."""
    path = model_path()
    first = sluice(served, "run", path, "hi", "-n", "2", "--json")
    name = next(m["name"] for m in json.loads(sluice(served, "ls", "--json").stdout)["models"] if m["name"] != "smol")
    assert first.returncode == 0 and name not in first.stderr
    assert f"sluice unload {name}" in sluice(served, "run", path, "hi", "-n", "2").stderr
    ended = sluice(served, "unload", name).stdout
    assert names(ended, "version 1", "cpu"), ended
    sluice(served, "rm", name, "1")


def test_chat_keeps_its_history_for_the_next_time(served, terminal):
    chat = terminal("chat", "smol", "-n", "2")
    chat.expect(">>> ")
    chat.send("Grüße, \U0001f600 erste Frage\r")
    chat.expect(cut(2), 30)
    chat.expect(">>> ")
    chat.send("/exit\r")
    assert chat.wait() == 0
    history = served.state / "xdg/sluice/chat_history"
    assert history.stat().st_mode & 0o777 == 0o600
    chat = terminal("chat", "smol", "-n", "2")
    chat.expect(">>> ")
    chat.send("\x1b[A\x1b[A\r")  # two entries back in the history, past /exit
    seen = chat.expect(cut(2), 30)
    assert "Grüße, \U0001f600 erste Frage" in seen
    chat.expect(">>> ")
    chat.send("\x04")
    assert chat.wait() == 0


def test_chat_ends_after_the_answer_that_ctrl_d_was_typed_in(served, terminal):
    chat = terminal("chat", "smol", "--ignore-eos", "-n", "100", "--no-history")
    chat.expect(">>> ")
    chat.send("Count to a million.\r")
    chat.expect("million.*\n.*\\w+ \\w+", 30)  # the answer has begun
    chat.send("\x04")
    chat.expect(cut(100), 30)
    assert chat.wait() == 0


def test_chat_does_not_end_for_a_ctrl_space_at_the_prompt(served, terminal):
    chat = terminal("chat", "smol", "-n", "2", "--no-history")
    chat.expect(">>> ")
    chat.send("\x00")
    chat.send("Say hello.\r")
    chat.expect(cut(2), 30)
    chat.expect(">>> ")
    chat.send("\x04")
    assert chat.wait() == 0


def test_chat_takes_several_lines_as_one_turn(served, tmp_path):
    saved = tmp_path / "saved.json"
    script = f'one\\\ntwo\n"""three\nfour \\\n\nfive"""\n/save {saved}\n'
    sluice(served, "chat", "smol", "-n", "2", "--system", "Be brief.", stdin=script)
    messages = json.loads(saved.read_text())["messages"]
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert messages[1]["content"] == "one\ntwo" and messages[3]["content"] == "three\nfour \\\n\nfive"
    assert saved.stat().st_mode & 0o777 == 0o600
    again = sluice(served, "chat", "smol", stdin=f"/save {saved}\n", check=False)
    assert again.returncode == 1 and names(again.stderr, saved)


def test_chat_sends_the_whole_conversation(served, tmp_path):
    """The second answer of a chat equals the server's answer to the three messages before it."""
    saved = tmp_path / "saved.json"
    sluice(served, "chat", "smol", "-n", "12", stdin=f"Name a colour.\nAnother one.\n/save {saved}\n")
    messages = json.loads(saved.read_text())["messages"]
    inference = served.stubs.inference
    chat = inference.Chat(messages=[inference.ChatMessage(role=m["role"], content=m["content"]) for m in messages[:3]])
    whole = served.inference.Complete(inference.GenerateRequest(model="smol", chat=chat,
                                                                stopping=inference.Stopping(max_tokens=12)))
    assert whole.choices[0].text == messages[3]["content"]


def test_chat_commands(served, tmp_path):
    saved = tmp_path / "saved.json"
    script = (f"/params temperature 0.9\n/params seed 5\n/system Talk like a pirate.\nHello\n/retry\n/params\n/clear\n"
              f"/save {saved}\n/system -\n/system\n/help\n")
    result = sluice(served, "chat", "smol", "-n", "6", stdin=script)
    first, second = result.stdout.strip("\n").split("\n")[0], result.stdout.strip("\n").split("\n")[-1]
    assert first and first == second  # the same seed gives the same answer
    assert json.loads(saved.read_text())["messages"] == [{"role": "system", "content": "Talk like a pirate."}]
    assert re.search(r"temperature +0\.9", result.stderr) and names(result.stderr, "/retry")
    for bad, value in [("/nothing", "/help"), ("/params warmth 3", "/params"), ("/params temperature hot", "temperature"), ("/retry", "sluice chat"),
                       ("/save", "sluice chat"), ("\xff", "UTF-8")]:
        result = subprocess.run([BIN / "sluice", "chat", "smol"], input=(bad + "\n").encode("latin-1"),
                                capture_output=True, timeout=patience(60), env=environment(served))
        assert result.returncode == 1 and names(result.stderr.decode(), value), (bad, result.stderr)


def test_chat_of_a_pipe_goes_on_after_a_command_that_fails(served):
    """A misspelt parameter ended the whole script."""
    plain = sluice(served, "chat", "smol", "-n", "4", stdin="Hello\n").stdout
    script = "/params temperature hot\n/nothing\nHello\n"
    result = sluice(served, "chat", "smol", "-n", "4", stdin=script, check=False)
    assert result.returncode == 1 and result.stdout == plain and plain.strip()
    assert names(result.stderr, "temperature", "/help")
    unanswered = sluice(served, "chat", "smol", "-n", "4", stdin="/params temperature -1\nHello\n/params temperature 0\nHello\n",
                        check=False)
    assert unanswered.returncode == 1 and unanswered.stdout == "" and names(unanswered.stderr, "sampling.temperature")


def test_chat_refuses_what_it_cannot_do(served):
    result = sluice(served, "chat", "nobody", stdin="hi\n", check=False)
    assert result.returncode == 1 and names(result.stderr, "MODEL_NOT_FOUND", "sluice ls")
    result = sluice(served, "chat", "smol", "--temperature", "-1", stdin="hi\n", check=False)
    assert result.returncode == 1 and names(result.stderr, "sampling.temperature")


def test_chat_that_outgrows_the_context_leaves_the_oldest_out(fresh):
    fresh.start()
    fresh.cli("register", "smol", model_path(), "--version", "1")
    fresh.cli("load", "smol", "--context-length", "256")
    fresh.wait(lambda: fresh.run("smol", "hi", "-n", "1", check=False).returncode == 0, 30, "the model answers")
    saved = fresh.state / "saved.json"
    turns = "".join(f"Question number {i}: " + "tell me more about the colour blue " * 3 + "\n" for i in range(8))
    result = sluice(fresh, "chat", "smol", "-n", "24", stdin=turns + f"/save {saved}\n")
    assert names(result.stderr, 256)
    asked = [m["content"] for m in json.loads(saved.read_text())["messages"] if m["role"] == "user"]
    assert 1 <= len(asked) < 8 and asked[-1].startswith("Question number 7") and len(result.stdout.splitlines()) >= 8


def test_a_parked_version_is_told_once_however_the_server_words_it(served, stubs):
    """Symptom: the remedy stood twice, in the error and in the advice, where a server's text differed from this release's."""
    class Parked(stubs.inference_grpc.InferenceServicer):
        def Generate(self, request, context):
            from google.protobuf import any_pb2
            from google.rpc import error_details_pb2, status_pb2
            detail = any_pb2.Any()
            detail.Pack(error_details_pb2.ErrorInfo(reason="MODEL_PARKED", metadata={"version": "7"}))
            status = status_pb2.Status(code=grpc.StatusCode.FAILED_PRECONDITION.value[0], details=[detail])
            context.set_trailing_metadata([("grpc-status-details-bin", status.SerializeToString())])
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "it sleeps. Call WakeModelVersion first.")

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    stubs.inference_grpc.add_InferenceServicer_to_server(Parked(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        result = sluice(served, "run", "smol", "hi", "--server", address, check=False)
        assert result.returncode == 1 and names(result.stderr, "MODEL_PARKED", "smol", "7"), result
        assert result.stderr.count("sluice wake") == 1 and "sluice wake smol --version 7" in result.stderr, result.stderr
    finally:
        server.stop(0)


@pytest.mark.parametrize("socket, state_dir", [("run/manager.sock", True), ("other.sock", False)])
def test_the_advice_to_start_sluice_names_the_state_directory_of_the_managers_socket(served, tmp_path, socket, state_dir):
    """Symptom: the advice was `sluice serve MODEL.gguf --manager PATH`; serve has another manager, and none came to answer there."""
    result = sluice(served, "ps", "--manager", tmp_path / socket, check=False)
    assert result.returncode == 1 and names(result.stderr, "NOT_CONNECTED"), result
    (command,) = re.findall(r"sluice serve .*", result.stderr) or [""]
    assert names(command, f"--state-dir {tmp_path}") == state_dir and "--manager" not in command, result.stderr


def test_what_a_model_says_does_not_steer_the_terminal(served, stubs, terminal):
    """A server sends escape sequences in answers and errors. On a terminal the sequences are made harmless; a pipe
    gets the exact bytes."""
    evil = "\x1b]0;owned\x07\u009b2J ok\r\n"

    class Evil(stubs.inference_grpc.InferenceServicer):
        def Generate(self, request, context):
            if request.text == "fail":
                context.abort(grpc.StatusCode.NOT_FOUND, "no \x1b[2J such")
            if request.text in ("reason", "version"):
                from google.protobuf import any_pb2
                from google.rpc import error_details_pb2, status_pb2
                info = error_details_pb2.ErrorInfo(reason="\x1b[2JNEW")
                if request.text == "version":
                    info = error_details_pb2.ErrorInfo(reason="ALREADY_LOADED", metadata={"version": "\x1b[2J;id"})
                detail = any_pb2.Any()
                detail.Pack(info)
                status = status_pb2.Status(code=grpc.StatusCode.FAILED_PRECONDITION.value[0], details=[detail])
                context.set_trailing_metadata([("grpc-status-details-bin", status.SerializeToString())])
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no")
            yield stubs.inference.GenerateResponse(tokens=stubs.inference.Tokens(ids=[1], text=evil))
            yield stubs.inference.GenerateResponse(finished=stubs.inference.Finished(n_tokens=1))

        def Detokenize(self, request, context):
            return stubs.inference.DetokenizeResponse(text=evil)

        def ListModels(self, request, context):
            names = ["good", "g$(touch x)", "g;ls", "g\nh", "g`id`"]
            return stubs.inference.ListModelsResponse(models=[stubs.inference.ServedModel(name=n) for n in names])

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    stubs.inference_grpc.add_InferenceServicer_to_server(Evil(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        shown = terminal("run", "smol", "hi", "--server", address)
        assert shown.wait() == 0 and b"\\x1B]0;owned\\x07\\u009B2J ok" in shown.output and b"\x1b" not in shown.output
        shown = terminal("run", "smol", "fail", "--server", address)
        assert shown.wait() == 1 and b"no \\x1B[2J such" in shown.output and b"\x1b" not in shown.output
        # Symptom: a reason that the client does not know, and the version in the advice, reached the terminal as they came.
        shown = terminal("run", "smol", "reason", "--server", address)
        assert shown.wait() == 1 and b"\\x1B[2JNEW" in shown.output and b"\x1b" not in shown.output
        shown = terminal("run", "smol", "version", "--server", address)
        assert shown.wait() == 1 and b"'\\x1B[2J;id'" in shown.output and b"\x1b" not in shown.output
        shown = terminal("tokenize", "smol", "-d", "1", "--server", address)
        assert shown.wait() == 0 and b"?]0;owned" in shown.output and b"\x1b" not in shown.output
        piped = subprocess.run([BIN / "sluice", "run", "smol", "hi", "--server", address], capture_output=True, timeout=patience(60),
                               env=environment(served))
        assert piped.stdout == evil.encode() + b"\n"
        offered = sluice(served, "__complete", "run", "--server", address, "g", SLUICE_MANAGER="/nowhere").stdout
        assert [line.split("\t")[0] for line in offered.splitlines()] == ["good"]  # a name with such characters is not offered for completion
    finally:
        server.stop(0)


# --- output ---

def test_a_closed_pipe_ends_a_command_as_it_ends_a_filter(served):
    for command in (["run", "smol", "Tell a long story.", "--ignore-eos", "-n", "500"], ["run", "--help"]):
        p = subprocess.Popen([BIN / "sluice", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             env=environment(served))
        p.stdout.close()
        assert p.wait(patience(30)) == -signal.SIGPIPE and p.stderr.read() == b""
        p.stderr.close()
    served.wait(lambda: running(served) == 0, 5, "the request has gone")


def test_a_full_disk_is_told():
    with open("/dev/full", "w") as full:
        result = subprocess.run([BIN / "sluice", "help"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=patience(10))
    assert result.returncode == 1 and names(result.stderr, "stdout")


def test_wrong_usage_names_the_command(served):
    for args, value in [(["ops", "nothing"], "sluice ops cancel"), (["scale", "smol"], "MODEL N"), (["scale", "smol", "many"], '"many"'),
                        (["traffic", "smol", "2"], "VERSION=WEIGHT"), (["traffic", "smol", "2=x"], '"2=x"'),
                        (["update", "smol"], "--to"), (["update", "smol", "--to", "2", "--steps", "10,x"], "10,50,100"),
                        (["policy", "smol", "1", "--all"], "--all"), (["scale", "smol", "0"], "sluice unload"),
                        (["scale", "smol:1", "2", "-v", "1"], "--version"), (["unload", "smol:"], "MODEL[:VERSION]"),
                        (["show", "smol:1"], '"smol:1"'), (["key"], "sluice key new TENANT"), (["groups", "create", "x"], "DEVICE"),
                        (["events", "--from", "x"], "--from"), (["run", "a", "b", "c"], "sluice run [MODEL] PROMPT"),
                        (["nothing"], "sluice help"), (["completion", "csh"], "bash|zsh|fish"),
                        (["tokenize", "smol", "two", "words"], '"words"'), (["tokenize", "smol", "-d", "-p", "1"], "--pieces")]:
        result = sluice(served, *args, check=False)
        assert result.returncode == 2 and names(result.stderr, value) and result.stdout == "", (args, result.stderr)


def test_a_file_may_have_a_colon_in_its_name(tmp_path):
    shutil.copy(ROOT / "tests/golden/tiny/q4_1.gguf", tmp_path / "a:b")
    result = subprocess.run([BIN / "sluice", "bench", "engine", "a:b", "--prompt", "4", "--generate", "2", "--repetitions", "1"], cwd=tmp_path,
                            capture_output=True, text=True, timeout=patience(60))
    assert result.returncode == 0, result.stderr


def test_an_empty_stop_text_is_refused(served):
    """The client dropped an empty stop text silently, although the server refuses an empty one."""
    for program, *args in (["sluice", "run", "smol", "hi"], ["sluice", "chat", "smol"],
                           ["sluice-worker", "generate", model_path(), "hi"]):
        result = subprocess.run([BIN / program, *args, "--stop", ""], input="hi\n", capture_output=True, text=True,
                                timeout=patience(60), env=environment(served))
        assert result.returncode == 2 and names(result.stderr, "--stop") and result.stdout == "", (program, args)
    removed = sluice(served, "chat", "smol", "-n", "2", "--stop", " ", stdin="/params stop\n/params\nhi\n")
    assert re.search(r"^  stop  ", removed.stderr, re.M) and removed.stdout.strip()


def test_help_of_a_family_tells_all_of_it(served):
    for args in (("key", "--help"), ("key", "-h"), ("help", "key")):
        assert "sluice key new TENANT" in sluice(served, *args).stdout, args
    text = sluice(served, "ops", "--help").stdout
    assert all(f"sluice ops {word}" in text for word in ("list", "show", "watch", "cancel"))


def test_a_version_stands_behind_the_model(served):
    ids = sluice(served, "tokenize", "smol:1", "--no-bos", "Hello").stdout
    assert ids == sluice(served, "tokenize", "smol", "--no-bos", "Hello").stdout
    assert names(sluice(served, "run", "smol:9", "x", check=False).stderr, "VERSION_NOT_FOUND", '"9"')


def test_a_file_that_is_not_there_is_said_to_be_missing(served):
    result = sluice(served, "register", "x", "./none.gguf", check=False)
    assert result.returncode == 1 and names(result.stderr, "./none.gguf", "NOT_FOUND")


def test_a_key_that_has_expired_already_is_told(served):
    assert names(sluice(served, "key", "new", "acme", "--expires", "2020-01-31T00:00:00Z").stderr, "--expires 2020-01-31T00:00:00Z")
    assert "--expires" not in sluice(served, "key", "new", "acme", "--expires", "9000-01-31T00:00:00Z").stderr


# --- tokenize ---

@pytest.mark.parametrize("text", ["Hello, world", "Grüße \U0001f600 \t tab", "  leading and trailing  ", "a\nb\n\nc"])
def test_tokenize_and_back(served, text):
    ids = sluice(served, "tokenize", "smol", "--no-bos", text).stdout.split()
    assert list(map(int, ids)) == list(served.inference.Tokenize(served.stubs.inference.TokenizeRequest(
        model="smol", text=text, add_special_tokens=False)).ids)
    assert sluice(served, "tokenize", "smol", "--detokenize", *ids).stdout == text + "\n"
    assert sluice(served, "tokenize", "smol", "--detokenize", stdin=",".join(ids)).stdout == text + "\n"
    assert sluice(served, "tokenize", "smol", "--no-bos", stdin=text + "\n").stdout.split() == ids
    assert json.loads(sluice(served, "tokenize", "smol", "--no-bos", "--json", text).stdout)["ids"] == list(map(int, ids))


def test_tokenize_shows_pieces_and_chats(served):
    lines = sluice(served, "tokenize", "smol", "--pieces", "\U0001f600").stdout.splitlines()
    assert all("\t" in line for line in lines)
    raw = b"".join(re.sub(rb"\\x([0-9A-F]{2})", lambda m: bytes([int(m[1], 16)]), line.split("\t", 1)[1].encode())
                   for line in lines)
    assert raw.decode() == "\U0001f600"
    ids = sluice(served, "tokenize", "smol", "--chat", "--system", "S.", "Hi").stdout.split()
    text = sluice(served, "tokenize", "smol", "--detokenize", "--special", *ids).stdout
    assert "<|im_start|>system\nS." in text and "<|im_start|>user\nHi" in text
    for bad in ("x", "-1", "4294967296", "1.5"):
        result = sluice(served, "tokenize", "smol", "--detokenize", "--", bad, check=False)
        assert result.returncode == 2 and f'"{bad}"' in result.stderr
    result = sluice(served, "tokenize", "smol", "--detokenize", stdin="x", check=False)
    assert result.returncode == 1 and '"x"' in result.stderr


# --- completion and man pages ---

def complete_bash(served, line):
    script = ('source <("$1" completion bash); PATH="$(dirname "$1"):$PATH"; COMP_LINE=$2; COMP_POINT=${#COMP_LINE}; '
              '_sluice; printf "%s\\n" "${COMPREPLY[@]}"')
    result = subprocess.run(["bash", "-c", script, "bash", BIN / "sluice", line], capture_output=True, text=True,
                            timeout=patience(30), env=environment(served), cwd=ROOT)
    assert result.stderr == ""
    return [word for word in result.stdout.split("\n") if word]


def test_bash_completes_commands_options_values_and_names(served):
    assert {"run", "chat", "ops", "events"} <= set(complete_bash(served, "sluice "))
    assert complete_bash(served, "sluice sca") == ["scale"]
    assert complete_bash(served, "sluice ops c") == ["cancel"]
    assert complete_bash(served, "sluice groups ") == ["list", "create", "delete"]
    assert {"--temperature", "--top-p", "--json"} <= set(complete_bash(served, "sluice run smol hi --"))
    assert complete_bash(served, "sluice run smol hi --tempe") == ["--temperature"]
    assert complete_bash(served, "sluice completion ") == ["bash", "zsh", "fish"]
    assert complete_bash(served, "sluice serve --log-level w") == ["warn"]
    assert complete_bash(served, "sluice serve --log-level=w") == ["warn"]
    assert complete_bash(served, "sluice run s") == ["smol"]
    assert complete_bash(served, "sluice --nothing x") == []
    assert complete_bash(served, "sluice rm smol ") == ["1"]
    assert complete_bash(served, "sluice unload smol --version ") == ["1"]
    replica = served.ready()[0]["id"]
    assert complete_bash(served, "sluice drain ") == [replica]
    assert complete_bash(served, "sluice load smol --group c") == ["cpu"]
    assert complete_bash(served, "sluice groups create left cpu") == ["cpu:0"] or \
        complete_bash(served, "sluice groups create left cpu") == ["0"]
    assert "CMakeLists.txt" in complete_bash(served, "sluice register x CMakeL")
    assert complete_bash(served, "sluice serve --state-dir test") == ["tests"]


def test_completion_asks_the_server_where_there_is_no_manager_and_never_complains(served, tmp_path):
    result = sluice(served, "__complete", "run", "s", SLUICE_MANAGER=str(tmp_path / "none.sock"))
    assert result.stdout.split("\t")[0] == "smol" and result.stderr == ""
    for words in ([], [""], ["run", "--server", "nowhere", ""], ["ops", "cancel", ""], ["load", "--replicas", "x", ""]):
        result = sluice(served, "__complete", *words, SLUICE_MANAGER=str(tmp_path / "none.sock"))
        assert result.returncode == 0 and result.stderr == ""


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_complete_too(served, shell):
    script = {"zsh": 'PATH="$(dirname "$1"):$PATH"; compdef() { :; }; _describe() { print -l ${(P)4}; }; _files() { :; }; '
                     'source <("$1" completion zsh); words=(sluice run s); CURRENT=3; _sluice',
              "fish": 'set PATH (dirname $argv[1]) $PATH; $argv[1] completion fish | source; complete -C "sluice run s"'}
    arguments = ["-c", script[shell], *(["zsh"] if shell == "zsh" else []), str(BIN / "sluice")]
    result = subprocess.run([shell, *arguments], capture_output=True, text=True, timeout=patience(30), env=environment(served))
    assert result.stdout.strip().split("\n")[0].replace("\t", ":").startswith("smol:model"), result.stderr


def test_man_pages_lint_and_say_what_help_says(tmp_path):
    tmp_path /= "man1"  # the command creates the folder
    subprocess.run([BIN / "sluice", "man", "--output", tmp_path], check=True, timeout=patience(30))
    for program in ("sluice-server", "sluice-manager", "sluice-worker"):
        page = subprocess.run([BIN / program, "--man"], check=True, capture_output=True, timeout=patience(30)).stdout
        (tmp_path / f"{program}.8").write_bytes(page)
    for mode in ("serve", "generate", "inspect", "plan", "probe", "bench", "quantize"):
        page = subprocess.run([BIN / "sluice-worker", "--man", mode], check=True, capture_output=True, timeout=patience(30)).stdout
        (tmp_path / f"sluice-worker-{mode}.8").write_bytes(page)
    pages = sorted(tmp_path.iterdir())
    assert len(pages) > 30
    lint = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", *pages], capture_output=True, text=True, timeout=patience(60))
    assert lint.returncode == 0 and lint.stdout == "", lint.stdout
    overview = subprocess.run([BIN / "sluice", "help"], capture_output=True, text=True, timeout=patience(10)).stdout
    commands = re.findall(r"^  ([a-z]+(?: [a-z]+)?)  ", overview.split("commands:")[1].split("examples:")[0], re.M)
    assert {f"sluice-{c.replace(' ', '-')}.1" for c in commands} < {p.name for p in pages}
    for command in commands:
        text = subprocess.run([BIN / "sluice", "help", *command.split()], capture_output=True, text=True, timeout=patience(10))
        page = subprocess.run(["mandoc", "-T", "ascii", tmp_path / f"sluice-{command.replace(' ', '-')}.1"],
                              capture_output=True, text=True, timeout=patience(10)).stdout
        plain = re.sub(".\b", "", page)
        for option in re.findall(r"--[a-z][a-z-]+", text.stdout.split("\noptions:")[1].split("\n\n")[0]):
            assert option in plain, f"{command}: {option}"


def test_installed_pages_are_built():
    share = BIN.parent / "share"
    pages = {page.name: re.sub(r"\\f.|\\", "", page.read_text()) for page in share.glob("man/man?/*")}
    assert {"sluice-chat.1", "sluice-server.8", "sluice-manager.8", "sluice-worker.8"} <= set(pages)
    for page, text in pages.items():  # every man page that a page refers to exists
        for name, section in re.findall(r"([a-z-]+)\((\d)\)", text.split(".SH SEE ALSO")[1]):
            assert f"{name}.{section}" in pages, (page, name)
    assert "sluice-server(8)" in pages["sluice-serve.1"] and "sluice-server --man" in pages["sluice-man.1"]
    assert (share / "completions/sluice").read_text().endswith("complete -F _sluice sluice\n")


# --- the control plane ---

def test_groups_and_devices(served):
    assert "cpu:0" in sluice(served, "devices").stdout
    assert names(sluice(served, "groups", "create", "left", "cpu:0").stdout, "left", "cpu:0")
    assert re.search(r"^left +cpu:0 ", sluice(served, "groups").stdout, re.M)
    assert {g["name"] for g in json.loads(sluice(served, "groups", "list", "--json").stdout)["groups"]} == {"cpu", "left"}
    again = sluice(served, "groups", "create", "left", "cpu:0", check=False)
    assert again.returncode == 1 and names(again.stderr, "ALREADY_EXISTS")
    assert names(sluice(served, "groups", "delete", "left").stdout, "left")
    assert "left" not in sluice(served, "groups").stdout


def test_ops_are_listed_shown_and_watched(served):
    lines = sluice(served, "ops", "list", "smol", "--json").stdout.splitlines()
    loads = [op for op in map(json.loads, lines) if op["kind"] == "OPERATION_KIND_LOAD"]
    assert loads and loads[0]["state"] == "OPERATION_STATE_DONE"
    assert loads[0]["id"] in sluice(served, "ops").stdout
    assert re.search(r"^state +done$", sluice(served, "ops", "show", loads[0]["id"]).stdout, re.M)
    assert sluice(served, "ops", "watch", loads[0]["id"]).stdout.startswith("smol 1: ")
    assert sluice(served, "ops", "--open", "--json").stdout == ""
    result = sluice(served, "ops", "show", "o999", check=False)
    assert result.returncode == 1 and names(result.stderr, "OPERATION_NOT_FOUND")


def test_events_are_followed_over_a_restart_of_the_manager(served):
    before = list(map(json.loads, sluice(served, "events", "--json", "--from", "1").stdout.splitlines()))
    assert [e["seq"] for e in before] == list(range(1, len(before) + 1))
    assert {"model.registered", "replica.ready"} <= {e["type"] for e in before}
    loaded = sluice(served, "events", "smol", "--from", "1", "--type", "operation.", "--json").stdout.splitlines()
    assert loaded and {json.loads(line)["type"].split(".")[0] for line in loaded} == {"operation"}
    assert sluice(served, "events", "nobody", "--from", "1").stdout == ""
    assert len(sluice(served, "events").stdout.splitlines()) == min(20, len(before))
    follow = subprocess.Popen([BIN / "sluice", "events", "--follow", "--json", "--from", "1"], stdout=subprocess.PIPE,
                              text=True, env=environment(served))
    try:
        seen = [json.loads(follow.stdout.readline()) for _ in before]
        assert seen == before
        for name in ("one", "two"):
            sluice(served, "groups", "create", name, "cpu:0")
            while (seen[-1]["type"], seen[-1]["device_group"]) != ("device_group.created", name):
                seen.append(json.loads(follow.stdout.readline()))
            for pid in served.children("sluice-manager"):
                os.kill(pid, signal.SIGKILL)
            served.wait(lambda: sluice(served, "status", check=False).returncode == 0, 20, "the manager is back")
        sluice(served, "groups", "delete", "one")
        while seen[-1]["type"] != "device_group.deleted":
            seen.append(json.loads(follow.stdout.readline()))
        sluice(served, "groups", "delete", "two")
        assert [e["seq"] for e in seen] == list(range(1, len(seen) + 1))
    finally:
        follow.kill()
        follow.wait()
        follow.stdout.close()
    result = sluice(served, "events", "--from", "1000000", "--follow", check=False)
    assert result.returncode == 1 and names(result.stderr, "EVENTS_TO_COME")


def test_scale_drain_restart_and_cancel(served):
    out = sluice(served, "scale", "smol:1", "2").stdout
    assert out.startswith("smol 1: ") and len(served.ready()) == 2
    first, second = sorted(r["id"] for r in served.ready())
    pid = {r["id"]: r["pid"] for r in served.ready()}
    sluice(served, "restart", first, "--grace", "1s")
    assert {r["id"]: r["pid"] for r in served.ready()}[first] != pid[first]
    for _ in range(30):  # a replica that maps packed weights may be ready before the second command starts
        started = sluice(served, "scale", "smol", "3", "--no-wait").stdout
        operation = re.search(r"sluice ops watch (\S+)$", started)[1]
        cancel = sluice(served, "ops", "cancel", operation, check=False)
        if cancel.returncode == 0:
            break
        assert names(cancel.stderr, "OPERATION_ENDED"), cancel.stderr
        sluice(served, "scale", "smol", "2")
    assert re.fullmatch(rf"{operation}: (cancelling|cancelled)\n", cancel.stdout)
    watched = sluice(served, "ops", "watch", operation, check=False)
    assert watched.returncode == 1 and names(watched.stderr, "CANCELLED")
    ended = json.loads(sluice(served, "ops", "list", "--json").stdout.splitlines()[-1])["id"]
    again = sluice(served, "ops", "cancel", ended, check=False)
    assert again.returncode == 1 and names(again.stderr, "sluice ops")
    sluice(served, "drain", second, "--grace", "1s")
    ids = [r["id"] for r in served.ready()]
    assert first in ids and second not in ids and len(ids) == 2
    result = sluice(served, "drain", "r999", check=False)
    assert result.returncode == 1 and names(result.stderr, "REPLICA_NOT_FOUND", "sluice ps")
    plan = sluice(served, "scale", "smol", "3", "--validate-only").stdout
    assert "weights" in plan and len(served.ready()) == 2
    sluice(served, "scale", "smol", "1")
    assert len(served.ready()) == 1


def test_a_plan_tells_the_version_and_sizes_as_people_read_them(served):
    """The plan named no version, though the manager had chosen a version. The plan printed the memory promised to
    others in bytes."""
    for args in (("load", "smol"), ("scale", "smol", "1"), ("scale", "smol", "2")):
        text = sluice(served, *args, "--validate-only").stdout
        plan = json.loads(sluice(served, *args, "--validate-only", "--json").stdout)["plan"]
        assert text.startswith("smol version 1\n") and not re.search(r"\d{5,} bytes", text), text
        assert plan["model"] == "smol" and plan["version"] == "1"
        assert (plan["promised_bytes"] > 0) == (args != ("scale", "smol", "1")), plan
        assert plan["promised_bytes"] == 0 or any(re.match(r"[\d.]+ [KMGT]iB ", note) for note in plan["notes"]), plan


def test_status_tells_where_the_server_listens(served):
    line = next(line for line in sluice(served, "status").stdout.splitlines() if line.startswith("server "))
    assert names(line, served.address) and "server.sock" not in line


def test_status_tells_where_http_is_served(fresh):
    """Only the output of `sluice serve` had the port of HTTP."""
    fresh.start("--http-listen", "127.0.0.1:0")
    fresh.wait(lambda: "HTTP on" in sluice(fresh, "status").stdout, 20, "the server is connected")
    line = next(line for line in sluice(fresh, "status").stdout.splitlines() if line.startswith("server "))
    (http,) = re.findall(r"HTTP on (127\.0\.0\.1:\d+)", line)
    with urllib.request.urlopen(f"http://{http}/health", timeout=patience(20)) as answer:
        assert answer.status == 200


def test_ls_reads_every_page(served, stubs, tmp_path):
    """The fake manager lists two models a page; the real manager lists a thousand."""
    import concurrent.futures
    import grpc

    class Manager(stubs.manager_grpc.ModelManagerServicer):
        def ListModels(self, request, context):
            first = int(request.page_token or 0)
            names = [f"m{i}" for i in range(first, min(first + 2, 5))]
            models = [stubs.types.Model(name=n, versions=[stubs.types.ModelVersion(model=n, version="1")]) for n in names]
            return stubs.manager.ListModelsResponse(models=models, next_page_token=str(first + 2) if first < 4 else "")

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    stubs.manager_grpc.add_ModelManagerServicer_to_server(Manager(), server)
    server.add_insecure_port(f"unix:{tmp_path}/m.sock")
    server.start()
    try:
        names = ["m0", "m1", "m2", "m3", "m4"]
        text = sluice(served, "ls", "--manager", tmp_path / "m.sock").stdout
        assert re.findall(r"^(m\d) ", text, re.M) == names
        listed = json.loads(sluice(served, "ls", "--json", "--manager", tmp_path / "m.sock").stdout)
        assert [m["name"] for m in listed["models"]] == names
    finally:
        server.stop(0)


def test_events_go_on_from_the_oldest_that_is_kept_where_older_ones_go_meanwhile(served, stubs, tmp_path):
    """The fake manager prunes events while the command reads a filtered list. The command got EVENTS_GONE and printed
    nothing."""
    import concurrent.futures
    import grpc
    from google.protobuf import any_pb2
    from google.rpc import error_details_pb2, status_pb2
    kept = {"first": 1, "last": 1000}

    class Manager(stubs.manager_grpc.ModelManagerServicer):
        def GetStatus(self, request, context):
            return stubs.manager.GetStatusResponse(first_event_seq=kept["first"], last_event_seq=kept["last"])

        def WatchEvents(self, request, context):
            if request.from_seq == 1:
                kept["first"] = 301
            if request.from_seq < kept["first"]:
                detail = any_pb2.Any()
                detail.Pack(error_details_pb2.ErrorInfo(reason="EVENTS_GONE"))
                status = status_pb2.Status(code=grpc.StatusCode.OUT_OF_RANGE.value[0], message="gone", details=[detail])
                context.set_trailing_metadata([("grpc-status-details-bin", status.SerializeToString())])
                context.abort(grpc.StatusCode.OUT_OF_RANGE, "gone")
            for first in range(request.from_seq, kept["last"] + 1, 100):
                yield stubs.manager.WatchEventsResponse(events=[
                    stubs.types.Event(seq=n, type="model.registered" if n == 400 else "replica.state")
                    for n in range(first, min(first + 100, kept["last"] + 1))])

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    stubs.manager_grpc.add_ModelManagerServicer_to_server(Manager(), server)
    server.add_insecure_port(f"unix:{tmp_path}/m.sock")
    server.start()
    try:
        shown = sluice(served, "events", "--type", "model.", "--manager", tmp_path / "m.sock")
        assert kept["first"] == 301 and shown.returncode == 0, shown
        assert [line.split()[0] for line in shown.stdout.splitlines()] == ["400"], shown
        kept["first"] = 1
        asked = sluice(served, "events", "--from", "1", "--manager", tmp_path / "m.sock", check=False)  # with an explicit --from the command reports EVENTS_GONE
        assert asked.returncode == 1 and names(asked.stderr, "EVENTS_GONE"), asked
    finally:
        server.stop(0)
