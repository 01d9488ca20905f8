"""A stream outlives its worker, which is killed, hung or drained while the stream runs. Every kind of request
continues, byte for byte as in an undisturbed run. The request continues on another replica or on the restarted one."""
import os
import re
import signal
import subprocess
import threading
import time

import grpc
import pytest

from conftest import BIN, model_path, names, patience, steady, until
from invariants import worker_processes, worker_status
from generate_stream import Stream as GenerateStream, alone, quiet

N_TOKENS = 144
ENV = {"SLUICE_RESTART_BACKOFF_INITIAL": "100ms", "SLUICE_STALL_TIMEOUT": f"{round(patience(1500))}ms", "SLUICE_KILL_GRACE": "500ms"}


class Stream(threading.Thread):
    """A generation with any number of choices."""

    def __init__(self, sluice, request):
        super().__init__(daemon=True)
        self.sluice, self.request = sluice, request
        self.ids, self.text, self.finished, self.error, self.wrong, self.prompt = {}, {}, {}, None, [], []
        self.start()

    def run(self):
        try:
            for response in self.sluice.inference.Generate(self.request, timeout=patience(120)):
                kind = response.WhichOneof("event")
                if kind == "tokens":
                    choice = response.tokens.choice
                    ids = self.ids.setdefault(choice, [])
                    if response.tokens.first_index != len(ids):
                        self.wrong.append((choice, response.tokens.first_index, len(ids)))
                    ids += list(response.tokens.ids)
                    self.text[choice] = self.text.get(choice, "") + response.tokens.text
                elif kind == "prompt_info":
                    if response.prompt_info.first_prompt_logprob != len(self.prompt):
                        self.wrong.append(("prompt", response.prompt_info.first_prompt_logprob, len(self.prompt)))
                    self.prompt += [str(lp) for lp in response.prompt_info.prompt_logprobs]
                elif kind == "finished":
                    self.finished[response.finished.choice] = response.finished
        except grpc.RpcError as e:
            self.error = e

    def n(self):
        return sum(map(len, self.ids.values()))

    def outcome(self):
        ends = {c: (f.reason, f.stop, f.n_tokens, f.cumulative_logprob) for c, f in self.finished.items()}
        return (self.ids, self.text, ends, self.prompt)

    def receipt(self):
        return next(f.receipt for f in self.finished.values() if f.HasField("receipt"))


def requests(sluice, stop, speculate=True):
    """Returns name → request: everything that a resume must carry over. `speculate` is on if the model was loaded so;
    otherwise nothing is drafted."""
    def make(text, **kwargs):
        kwargs.setdefault("max_tokens", N_TOKENS)
        if not speculate:
            kwargs["speculate"] = sluice.stubs.inference.Speculate(drafter="DRAFTER_NONE")
        return sluice.request("smol", text, ignore_eos=True, **kwargs)

    n_repeated = N_TOKENS * (4 if getattr(sluice, "n_drafts", 0) else 1)  # repetitive texts are drafted well and end soon
    story = "Write a long story about a lighthouse keeper. It begins: "
    made = {
        "greedy": make(story),
        "seeded": make(story, temperature=0.9, top_p=0.95, seed=7),
        "n=3": make("Three wishes: ", temperature=0.8, seed=11, n=3, max_tokens=64),
        "stop across the cut": make(story, stop=[stop], max_tokens=4 * N_TOKENS) if stop else None,
        # Emoji and Chinese take several byte tokens per character, so some cut falls within a character.
        "emoji": make("\U0001f600" * 20, max_tokens=n_repeated), "chinese": make("天空很藍" * 16, max_tokens=n_repeated),
        "cyrillic": make("Привет мир! " * 6, max_tokens=n_repeated),
    }
    penalties = make(story + "Once ", temperature=0.7, seed=3)
    penalties.sampling.repetition_penalty = 1.3
    penalties.sampling.presence_penalty = 0.6
    penalties.sampling.frequency_penalty = 0.4
    made["penalties"] = penalties
    logprobs = make(story + "Then ")
    logprobs.output.logprobs = True
    logprobs.output.top_n = 2
    made["logprobs"] = logprobs
    marked = make(story + "There ", temperature=1.0, seed=21)
    marked.sampling.watermark = True
    marked.sampling.bad_words.extend(["light", "the keeper", "a small"])
    marked.stopping.min_tokens = 60
    made["watermark, bad words, min_tokens"] = marked
    full = make("Der Leuchtturm \U0001f5fc: ", temperature=0.6, seed=5)
    full.output.return_full_text = True
    full.output.prompt_logprobs = True
    full.output.top_n = 1
    made["full text, prompt_logprobs"] = full
    best = make(story + "Best ", temperature=1.0, seed=31, n=1, max_tokens=48)
    best.sampling.best_of = 3
    made["best_of"] = best
    return {name: r for name, r in made.items() if r}


def up(sluice, replicas, drafts=0, draft=()):
    sluice.start(env=dict(ENV, SLUICE_DRAFT_ALWAYS="true"))
    sluice.cli("register", "smol", model_path(), "--version", "1")
    sluice.cli("load", "smol", "--replicas", str(replicas), "--threads", "1", "--speculate", str(drafts), *draft)
    sluice.wait(lambda: len(sluice.ready()) == replicas, 30, "the replicas are ready")
    sluice.wait(lambda: sluice.run("smol", "hi", "-n", "1", check=False).returncode == 0, 30, "the model answers")
    greedy = Stream(sluice, requests(sluice, None, speculate=False)["greedy"])
    greedy.join(patience(60))
    text = greedy.text[0]
    sluice.stop_text = text[30:190]  # held back from its first byte to its last, so it spans any cut between
    assert len(sluice.stop_text) == 160 and text.count(sluice.stop_text) == 1
    references = {name: Stream(sluice, r) for name, r in requests(sluice, sluice.stop_text, speculate=False).items()}
    for name, s in references.items():
        s.join(patience(90))
        assert s.error is None and not s.wrong, (name, s.error, s.wrong)
        assert s.receipt().n_drafted_tokens == 0
    stopped = references["stop across the cut"].finished[0]
    assert stopped.stop == sluice.stop_text, stopped
    for name in ("emoji", "chinese", "cyrillic"):
        assert sum(ord(c) > 127 for c in references[name].text[0]) > 20, f"{name}: {references[name].text[0]!r}"
    sluice.references = {name: s.outcome() for name, s in references.items()}
    return sluice


@pytest.fixture(scope="module", params=[(2, 0), (1, 8), pytest.param((1, 8, "draft"), marks=pytest.mark.long)],
                ids=["another replica", "the restarted one, with drafts", "the restarted one, with a draft model"])
def sluice(request, tmp_path_factory, stubs):
    from conftest import Sluice
    instance = Sluice(tmp_path_factory.mktemp("state"), stubs)
    try:
        instance.n_replicas, instance.n_drafts = request.param[:2]
        yield up(instance, *request.param[:2], ("--draft", model_path()) if request.param[2:] else ())
    finally:
        instance.stop()


# The faults. The worker is stopped (SIGSTOP) at that point.

def kill(sluice, replica, pid):
    os.kill(pid, signal.SIGKILL)


def hang(sluice, replica, pid):
    os.kill(pid, signal.SIGSTOP)


def drain(sluice, replica, pid):
    manager = sluice.stubs.manager
    sluice.manager_stub().RestartReplica(manager.RestartReplicaRequest(replica_id=replica, grace_ms=0), timeout=patience(20))
    os.kill(pid, signal.SIGCONT)


def begin(sluice, pid):
    """Starts a stream of every kind, waits until all run, and stops the worker. Returns the streams that have not
    ended."""
    streams = {name: Stream(sluice, r) for name, r in requests(sluice, sluice.stop_text).items()}
    def under_way():
        assert not any(s.error for s in streams.values()), [(k, s.error) for k, s in streams.items()]
        return min(s.n() for name, s in streams.items() if "stop" not in name and name != "best_of") >= 20
    until(under_way, 60, "all are under way", 0.005)
    os.kill(pid, signal.SIGSTOP)
    if sluice.n_replicas == 1:
        steady(lambda: [(s.n(), s.is_alive()) for s in streams.values()], 0.1)
    return streams, [name for name, s in streams.items() if s.is_alive()]


@pytest.mark.long(but=["another replica-kill", "the restarted one, with drafts-hang", "the restarted one, with drafts-drain"])
@pytest.mark.parametrize("fault", [kill, hang, drain])
def test_every_kind_of_request_goes_on_where_it_was(sluice, fault):
    for _ in range(8):  # on a busy machine some streams end before others begin, and the test would show little
        # a worker that stood still for long was replaced
        sluice.wait(lambda: len(sluice.ready()) == len(worker_processes(sluice)) == sluice.n_replicas, 30, "the replicas are ready")
        replica, _, pid, _ = worker_processes(sluice)[0]
        streams, running = begin(sluice, pid)
        if len(running) >= 7:
            break
        os.kill(pid, signal.SIGCONT)
        for stream in streams.values():
            stream.join(patience(90))
    fault(sluice, replica, pid)
    for name, s in streams.items():
        s.join(patience(90))
        assert not s.is_alive() and s.error is None and not s.wrong, (name, s.error, s.wrong, sluice.tail())
        assert s.outcome() == sluice.references[name], name
    moved = [name for name, s in streams.items() if s.receipt().n_resumes]
    assert any(s.receipt().n_drafted_tokens for s in streams.values()) == (sluice.n_drafts > 0)
    assert len(running) >= 7, f"too little ran when it happened: {running}"
    assert len(moved) >= (7 if sluice.n_replicas == 1 else 2), f"too little was moved: {moved}"
    if sluice.n_replicas == 1:  # a draft model may end a request by its stop string before the fault
        assert "stop across the cut" in moved + [name for name in streams if name not in running] and {"emoji", "chinese", "cyrillic"} & set(moved)
    sluice.wait(lambda: len(sluice.ready()) == sluice.n_replicas, 30, "the replica is back")
    sluice.wait(lambda: pid not in [w[2] for w in worker_processes(sluice)], 10, "the old worker is gone")


@pytest.mark.long(but=["another replica"])
def test_the_stats_of_run_tell_that_it_was_resumed(sluice):
    """Symptom: the statistics gave the last replica's time for all tokens, and did not mention the resume."""
    sluice.wait(lambda: len(sluice.ready()) == sluice.n_replicas, 30, "the replicas are ready")
    command = [BIN / "sluice", "run", "smol", "Write a long story about a lighthouse keeper.", "-n", "400", "--ignore-eos", "--stats",
               "--speculate", "0", "--server", sluice.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        run.stdout.read(1)
        began = time.monotonic()
        run.stdout.read(600)  # more than a third of it
        running = [(r, pid) for r, _, pid, _ in worker_processes(sluice)
                   if (status := next(worker_status(sluice, pid), None)) and status.load.n_running]
        kill(sluice, *running[0])
        _, said = run.communicate(timeout=patience(90))
    seconds = time.monotonic() - began
    assert run.returncode == 0, said
    # A busy machine may stall the other replica, too. Then the answer ends at either.
    once = int(re.search(r"resumed (\d+)", said.decode())[1]) == 1
    took_over = [r for r, _, _, _ in worker_processes(sluice) if sluice.n_replicas == 1 or not once or r != running[0][0]]
    assert any(names(said.decode(), r) for r in took_over), said
    rate = float(re.search(r"([0-9.]+) tokens/s", said.decode())[1])
    assert rate == pytest.approx(399 / seconds, rel=0.3), "of the whole time"
    sluice.wait(lambda: len(sluice.ready()) == sluice.n_replicas, 30, "the replica is back")


def stand_still_with_held_text(sluice, stream, pieces, n_chars):
    """Stops the worker of the stream's only request when the worker holds back the given amount of text. Returns (the
    worker's pid, ids that the server knows of, the held text). Returns None if the request passed that point before
    the stop."""
    until, running, status = time.monotonic() + patience(60), [], {}
    while not running:
        assert time.monotonic() < until, status
        if stream.answers["u"].finished:
            return None
        status = {w[2]: next(worker_status(sluice, w[2]), None) for w in worker_processes(sluice)}
        running = [pid for pid, s in status.items() if s and s.load.n_running]
    while True:  # lets the worker make a few tokens at a time
        os.kill(running[0], signal.SIGSTOP)
        quiet(stream, "u", 0.1)
        if stream.answers["u"].finished:
            os.kill(running[0], signal.SIGCONT)
            return None
        stream.update("u", max_tokens=1)
        answer = stream.answers["u"]
        refused = stream.wait_error("u", len(answer.errors) + 1)
        if refused.field != "update.max_tokens":  # the request has ended in the worker, and the report is in flight
            os.kill(running[0], signal.SIGCONT)
            stream.wait_finished("u")
            return None
        n = max(map(int, re.findall(r"\d+", refused.message)))  # the number of tokens so far
        held = "".join(pieces[:n])[len(answer.text[0]):]
        if len(held) >= n_chars:
            return running[0], n, held
        assert time.monotonic() < until, (n, held)
        os.kill(running[0], signal.SIGCONT)
        time.sleep(0.004)  # lets the worker make a few tokens before the next stop


@pytest.mark.long(but=["another replica-stop", "the restarted one, with drafts-max_tokens"])
@pytest.mark.parametrize("change", ["max_tokens", "stop"])
def test_an_update_that_its_worker_did_not_live_to_hear_is_heeded_by_the_next(sluice, change):
    """An update lowers max_tokens to the current count, or adds a stop string within text that another stop string
    holds back. Then the worker is killed before it reads the update. The end equals that of a request with these
    settings from the start."""
    sluice.wait(lambda: len(sluice.ready()) == sluice.n_replicas, 30, "the replicas are ready")
    request = requests(sluice, None)["greedy"]
    pieces = []
    for response in sluice.inference.Generate(request, timeout=patience(60)):
        if response.WhichOneof("event") == "tokens":
            pieces += [response.tokens.text] + [""] * (len(response.tokens.ids) - 1)
    request.stopping.max_tokens = 4 * N_TOKENS
    request.stopping.stop.append(sluice.stop_text)
    for _ in range(20):  # on a busy machine the request may pass that point before the next check
        stream = GenerateStream(sluice)
        stream.start("u", request)
        stream.wait_tokens("u", 3)
        if stood := stand_still_with_held_text(sluice, stream, pieces, 24):
            break
        stream.end()
    assert stood, "it could not be stopped with text held back"
    pid, n, held = stood
    expected = type(request)()
    expected.CopyFrom(request)
    if change == "max_tokens":
        stream.update("u", max_tokens=n)
        expected.stopping.max_tokens = n
    else:
        word = held[8:20]
        stream.update("u", stop=[word], replace_stop=True)
        expected.stopping.stop[:] = [word]
    errors = len(stream.answers["u"].errors)
    stream.update("u", priority=101)  # refused, so the update before it has been applied
    assert stream.wait_error("u", errors + 1).field == "update.priority" and not stream.answers["u"].finished
    os.kill(pid, signal.SIGKILL)
    answer = stream.wait_finished("u")
    stream.end()
    sluice.wait(lambda: len(sluice.ready()) == sluice.n_replicas, 30, "the replica is back")
    if change == "max_tokens":  # tokens in flight when the limit was lowered stay
        expected.stopping.max_tokens = len(answer.ids[0])
        assert n <= len(answer.ids[0]) <= n + 2
    text, ids, finished = alone(sluice, expected)
    assert (answer.text[0], answer.ids[0]) == (text, ids)
    assert (answer.finished[0].reason, answer.finished[0].stop) == (finished.reason, finished.stop)
    assert finished.stop == (word if change == "stop" else "")
