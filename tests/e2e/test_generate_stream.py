"""GenerateStream over the real programs: many requests on one stream, every frame, lost connections."""
import queue
import random
import socket
import threading
import time

import grpc
import pytest

from conftest import patience

PROMPTS = ["Once upon a time", "The capital of France is", "def fib(n):", "Die Katze sitzt", "1, 2, 3,", "Dear Sir,",
           "Water boils at", "Emoji: \U0001f600\U0001f680", "List of colours:\n-", "In the beginning"]


class Proxy:
    """A TCP proxy whose connections can be cut or frozen."""

    def __init__(self, port):
        self.target = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.pairs, self.frozen = [], threading.Event()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.target))
            self.pairs.append((client, server))
            for a, b in ((client, server), (server, client)):
                threading.Thread(target=self.pump, args=(a, b), daemon=True).start()

    def pump(self, a, b):
        try:
            while data := a.recv(65536):
                while self.frozen.is_set():
                    time.sleep(0.01)
                b.sendall(data)
        except OSError:
            pass
        for s in (a, b):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self):
        for pair in self.pairs:
            for s in pair:
                try:
                    s.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        self.pairs = []

    def close(self):
        self.listener.close()
        self.cut()


class Answer:
    def __init__(self):
        self.info = None
        self.ids, self.text, self.finished, self.errors, self.messages = {}, {}, {}, [], 0

    def tokens(self):
        return sum(len(i) for i in self.ids.values())


class Stream:
    """One GenerateStream. What comes is checked as it comes: no gap, nothing twice, nothing after the end."""

    def __init__(self, served, channel=None, **kwargs):
        self.inference = served.stubs.inference
        stub = served.stubs.inference_grpc.InferenceStub(channel) if channel else served.inference
        self.out, self.answers, self.order = queue.Queue(), {}, []
        self.changed, self.over, self.status, self.complaint = threading.Condition(), False, None, None
        self.call = stub.GenerateStream(iter(self.out.get, None), **kwargs)
        threading.Thread(target=self.read, daemon=True).start()

    def send(self, request_id="", **frame):
        self.out.put(self.inference.GenerateStreamRequest(request_id=request_id, **frame))

    def start(self, request_id, request):
        self.send(request_id, start=request)

    def cancel(self, request_id):
        self.send(request_id, cancel=self.inference.CancelFrame())

    def pause(self, request_id):
        self.send(request_id, pause=self.inference.PauseFrame())

    def resume(self, request_id):
        self.send(request_id, resume=self.inference.ResumeFrame())

    def credit(self, request_id, n):
        self.send(request_id, credit=self.inference.CreditFrame(n_tokens=n))

    def update(self, request_id, **change):
        self.send(request_id, update=self.inference.UpdateFrame(**change))

    def reattach(self, request_id, received):
        """`received`: per choice what the client has, an Answer or a dict of counts."""
        if isinstance(received, Answer):
            self.answers[request_id] = received
            received = {c: len(ids) for c, ids in received.ids.items()}
        counts = [self.inference.ReceivedTokens(choice=c, n_tokens=n) for c, n in received.items()]
        self.send(request_id, reattach=self.inference.ReattachFrame(received=counts))

    def half_close(self):
        self.out.put(None)

    def take(self, response):
        answer = self.answers.setdefault(response.request_id, Answer())
        kind = response.WhichOneof("frame")
        answer.messages += 1
        if kind == "error":
            answer.errors.append(response)
            return
        if [e for e in answer.errors if not e.goes_on]:
            self.complaint = f"{response.request_id}: {kind} after its end"
        if kind == "prompt_info":
            answer.info = response.prompt_info
        elif kind == "tokens":
            t = response.tokens
            ids = answer.ids.setdefault(t.choice, [])
            if t.first_index != len(ids) or t.choice in answer.finished:
                self.complaint = f"{response.request_id}/{t.choice}: token {t.first_index} after {len(ids)}"
            ids += t.ids
            answer.text[t.choice] = answer.text.get(t.choice, "") + t.text
            self.order.append(response.request_id)
        else:
            if response.finished.choice in answer.finished:
                self.complaint = f"{response.request_id}: finished twice"
            answer.finished[response.finished.choice] = response.finished

    def read(self):
        try:
            for response in self.call:
                with self.changed:
                    self.take(response)
                    self.changed.notify_all()
            status = (grpc.StatusCode.OK, "")
        except grpc.RpcError as e:
            status = (e.code(), e.details())
        with self.changed:
            self.status, self.over = status, True
            self.changed.notify_all()

    def wait(self, condition, what, seconds=60):
        with self.changed:
            assert self.changed.wait_for(lambda: self.complaint or condition(), patience(seconds)), \
                f"never: {what}; {self.status}; {[(i, a.tokens(), a.errors) for i, a in self.answers.items()]}"
            assert not self.complaint, self.complaint

    def wait_tokens(self, request_id, n):
        self.wait(lambda: request_id in self.answers and self.answers[request_id].tokens() >= n, f"{n} tokens")
        return self.answers[request_id]

    def wait_finished(self, request_id, n=1):
        self.wait(lambda: request_id in self.answers and len(self.answers[request_id].finished) == n, f"{request_id} finished")
        return self.answers[request_id]

    def wait_error(self, request_id, n=1):
        self.wait(lambda: request_id in self.answers and len(self.answers[request_id].errors) >= n, f"error of {request_id!r}")
        return self.answers[request_id].errors[n - 1].error

    def end(self, code=grpc.StatusCode.OK):
        self.half_close()
        self.wait(lambda: self.over, "the end")
        assert self.status[0] == code, self.status


def alone(served, request, **kwargs):
    copy = type(request)()
    copy.CopyFrom(request)
    copy.ClearField("credit_tokens")
    copy.ClearField("request_id")
    copy.ClearField("reattach_window_ms")
    return served.generate(copy, **kwargs)


def same(answer, reference, choice=0):
    text, ids, finished = reference
    assert (answer.text.get(choice, ""), answer.ids.get(choice, [])) == (text, ids)
    assert answer.finished[choice].reason == finished.reason
    assert answer.finished[choice].n_tokens == len(ids)


def quiet(stream, request_id, seconds=0.5):
    """How many tokens there are once nothing comes any more."""
    n = -1
    while n != stream.answers[request_id].tokens():
        n = stream.answers[request_id].tokens()
        time.sleep(seconds)
    return n


def test_many_requests_on_one_stream_answer_as_alone(served):
    requests = {f"r{i}": served.request("smol", PROMPTS[i % len(PROMPTS)], seed=i, temperature=0.0 if i % 2 else 0.9,
                                        max_tokens=8 + i % 17) for i in range(64)}
    references = {i: alone(served, r) for i, r in requests.items()}
    stream = Stream(served)
    for i, r in requests.items():
        stream.start(i, r)
    stream.end()
    for i, reference in references.items():
        same(stream.answers[i], reference)
        assert stream.answers[i].info.request_id == i
        assert stream.answers[i].finished[0].usage.n_generated_tokens == len(reference[1])
        assert stream.answers[i].finished[0].receipt.model == "smol"
    # They were interleaved, not one after the other.
    assert sum(a != b for a, b in zip(stream.order, stream.order[1:])) > 200


def test_bad_frames_are_answered_and_the_stream_lives_on(served):
    inference = served.stubs.inference
    stream = Stream(served)
    good = served.request("smol", "Once upon a time", max_tokens=150, ignore_eos=True)
    stream.start("good", good)
    stream.wait_tokens("good", 3)

    def refused(request_id, code, reason, field, n=1, goes_on=False, words=""):
        error = stream.wait_error(request_id, n)
        assert (error.code, error.reason, error.field) == (code.value[0], reason, field), error
        assert stream.answers[request_id].errors[n - 1].goes_on == goes_on
        assert words in error.message and len(error.message) > 10

    code = grpc.StatusCode
    stream.start("model", served.request("nobody", "x"))
    refused("model", code.NOT_FOUND, "MODEL_NOT_FOUND", "", words="nobody")
    stream.start("field", served.request("smol", "x", temperature=-1.0))
    refused("field", code.INVALID_ARGUMENT, "", "sampling.temperature")
    stream.send("empty")
    refused("empty", code.INVALID_ARGUMENT, "", "frame")
    stream.send("", cancel=inference.CancelFrame())
    refused("", code.INVALID_ARGUMENT, "", "request_id")
    stream.send("", start=served.request("smol", "x"))
    refused("", code.INVALID_ARGUMENT, "", "request_id", n=2)
    stream.start("one", served.request("smol", "x", request_id="two"))
    refused("one", code.INVALID_ARGUMENT, "", "start.request_id", words="two")
    stream.start("good", good)
    refused("good", code.ALREADY_EXISTS, "REQUEST_ID_LIVE", "", goes_on=True)
    for frame in ({"cancel": inference.CancelFrame()}, {"pause": inference.PauseFrame()}, {"resume": inference.ResumeFrame()},
                  {"credit": inference.CreditFrame(n_tokens=1)}, {"update": inference.UpdateFrame(max_tokens=5)},
                  {"reattach": inference.ReattachFrame()}):
        stream.send("nobody", **frame)
    for n in range(6):
        refused("nobody", code.NOT_FOUND, "REQUEST_NOT_FOUND", "", n=n + 1)
    stream.update("good", max_tokens=1)
    refused("good", code.INVALID_ARGUMENT, "", "update.max_tokens", n=2, goes_on=True, words="generated")
    stream.update("good", priority=101)
    refused("good", code.INVALID_ARGUMENT, "", "update.priority", n=3, goes_on=True)
    stream.update("good", stop=["x"])
    refused("good", code.INVALID_ARGUMENT, "", "update.stop", n=4, goes_on=True)
    stream.update("good", stop=["x"] * 5, replace_stop=True)
    refused("good", code.INVALID_ARGUMENT, "", "update.stop", n=5, goes_on=True, words="4")
    stream.credit("good", 5)
    refused("good", code.FAILED_PRECONDITION, "NO_CREDIT_NEEDED", "", n=6, goes_on=True)
    stream.reattach("good", {0: 0})
    refused("good", code.FAILED_PRECONDITION, "NOT_REATTACHABLE", "", n=7, goes_on=True)
    stream.start("window", served.request("smol", "x", reattach_window_ms=30001))
    refused("window", code.INVALID_ARGUMENT, "", "reattach_window_ms", words="30000")
    stream.start("x" * 129, served.request("smol", "x"))
    refused("", code.INVALID_ARGUMENT, "", "request_id", n=3, words="129")
    stream.end()
    same(stream.answers["good"], alone(served, good))


def test_a_message_that_is_no_message_ends_nobody(served):
    """Text that is not UTF-8, and bytes that are no frame."""
    method = "/sluice.v1.Inference/GenerateStream"
    inference = served.stubs.inference
    good = served.request("smol", "Once upon a time", max_tokens=20)
    frames = queue.Queue()
    call = served.channel.stream_stream(method, request_serializer=None,
                                        response_deserializer=inference.GenerateStreamResponse.FromString)(iter(frames.get, None))
    frames.put(inference.GenerateStreamRequest(request_id="good", start=good).SerializeToString())
    frames.put(b"\x12\xff\xff\xff\xff\x0f")
    bad = inference.GenerateStreamRequest(request_id="bad", start=served.request("smol", "XYZ")).SerializeToString()
    frames.put(bad.replace(b"XYZ", b"X\xffZ"))
    frames.put(None)
    responses = list(call)
    errors = [r for r in responses if r.WhichOneof("frame") == "error"]
    assert [e.error.code for e in errors] == [3, 3] and {e.request_id for e in errors} == {""}
    text = "".join(r.tokens.text for r in responses if r.WhichOneof("frame") == "tokens")
    assert text == alone(served, good)[0]


def test_cancel_ends_one_request_only(served):
    stream = Stream(served)
    long = served.request("smol", "Once upon a time", max_tokens=2000, ignore_eos=True)
    short = served.request("smol", "The capital of France is", max_tokens=60, ignore_eos=True)
    stream.start("long", long)
    stream.start("short", short)
    stream.wait_tokens("long", 5)
    stream.cancel("long")
    error = stream.wait_error("long")
    assert error.code == grpc.StatusCode.CANCELLED.value[0] and error.n_tokens_sent == stream.answers["long"].tokens()
    stream.start("long", short)  # the id is free again
    stream.answers.pop("long")
    stream.end()
    same(stream.answers["short"], alone(served, short))
    same(stream.answers["long"], alone(served, short))


def test_pause_stands_still_and_resume_goes_on(served):
    request = served.request("smol", "Once upon a time", max_tokens=120, ignore_eos=True)
    stream = Stream(served)
    stream.start("p", request)
    stream.wait_tokens("p", 10)
    stream.pause("p")
    n = quiet(stream, "p")
    time.sleep(2)
    assert stream.answers["p"].tokens() == n < 120
    stream.resume("p")
    same(stream.wait_finished("p"), alone(served, request))
    stream.end()


@pytest.mark.parametrize("n", [1, 3])
def test_credit_is_taken_to_the_token(served, n):
    request = served.request("smol", "Once upon a time", max_tokens=40, ignore_eos=True, credit_tokens=0, n=n,
                             stop=["never to be seen"])
    stream = Stream(served)
    stream.start("c", request)
    time.sleep(0.5)
    assert "c" not in stream.answers or stream.answers["c"].tokens() == 0
    given = 0
    for more in (1, 2, 5, 13):
        stream.credit("c", more)
        given += more
        answer = stream.wait_tokens("c", given)
        time.sleep(0.3)
        assert answer.tokens() == given
    stream.credit("c", 2**31)
    assert stream.wait_error("c").field == "credit.n_tokens"
    stream.credit("c", 2**31 - 1)  # with what is left; here nothing
    answer = stream.wait_finished("c", n)
    assert len(answer.errors) == 1 and answer.errors[0].goes_on
    same(answer, alone(served, request))
    stream.end()


def test_half_close_ends_what_could_never_go_on(served):
    stream = Stream(served)
    stream.start("c", served.request("smol", "Once upon", max_tokens=40, ignore_eos=True, credit_tokens=7))
    stream.start("p", served.request("smol", "Once upon", max_tokens=4000, ignore_eos=True))
    whole = served.request("smol", "Once upon", max_tokens=30, ignore_eos=True)
    stream.start("w", whole)
    stream.wait_tokens("p", 1)
    stream.pause("p")
    stream.end()
    for i in ("c", "p"):
        assert stream.wait_error(i).reason == "STREAM_HALF_CLOSED"
        assert stream.wait_error(i).code == grpc.StatusCode.FAILED_PRECONDITION.value[0]
    assert stream.answers["c"].tokens() == 7
    same(stream.answers["w"], alone(served, whole))


def test_update_of_a_running_request(served):
    request = served.request("smol", "Once upon a time", max_tokens=2000, ignore_eos=True)
    stream = Stream(served)
    stream.start("u", request)
    stream.wait_tokens("u", 10)
    stream.pause("u")
    n = quiet(stream, "u")
    stream.update("u", max_tokens=n + 30, priority=3)
    stream.resume("u")
    answer = stream.wait_finished("u")
    assert len(answer.ids[0]) == n + 30
    assert answer.finished[0].reason == served.stubs.inference.FINISH_REASON_LENGTH
    shorter = served.request("smol", "Once upon a time", max_tokens=n + 30, ignore_eos=True)
    same(answer, alone(served, shorter))
    stream.update("u", max_tokens=50)
    assert stream.wait_error("u").reason == "REQUEST_NOT_FOUND"
    stream.end()


def test_update_of_the_stop_strings_of_a_running_request(served):
    reference = alone(served, served.request("smol", "Once upon a time", max_tokens=300, ignore_eos=True))
    stream = Stream(served)
    stream.start("u", served.request("smol", "Once upon a time", max_tokens=300, ignore_eos=True, credit_tokens=20))
    stream.wait_tokens("u", 20)
    word = next(w for w in reference[0][len(stream.answers["u"].text[0]) + 200:].split() if len(w) > 5)
    stream.update("u", stop=[word], replace_stop=True)
    stream.credit("u", 10000)
    answer = stream.wait_finished("u")
    assert answer.finished[0].stop == word
    assert answer.text[0] == reference[0][:reference[0].index(word, 20)]
    stream.end()


def test_a_deadline_ends_every_request_of_the_stream(served):
    stream = Stream(served, timeout=2)
    for i in range(3):
        stream.start(f"d{i}", served.request("smol", "Once upon a time", max_tokens=8000, ignore_eos=True))
    start = time.monotonic()
    stream.wait(lambda: stream.over, "the deadline", 10)
    assert stream.status[0] == grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - start < patience(3)
    rest(served)


def rest(served):
    """Nothing runs any more and all KV is back."""
    stub = served.stubs.inference_grpc.InferenceStub(served.channel)
    get = served.stubs.inference.GetModelRequest(model="smol")
    served.wait(lambda: sum(v.n_running + v.n_queued for v in stub.GetModel(get).model.versions) == 0, 15, "rest")


def test_a_lost_connection_cancels_what_has_no_window(served):
    proxy = Proxy(served.port)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{proxy.port}") as channel:
            stream = Stream(served, channel)
            for i in range(4):
                stream.start(f"l{i}", served.request("smol", "Once upon a time", max_tokens=8000, ignore_eos=True))
            stream.wait_tokens("l3", 3)
            proxy.cut()
            stream.wait(lambda: stream.over, "the end")
    finally:
        proxy.close()
    rest(served)  # the server has noticed
    again = Stream(served)
    again.reattach("l0", {0: 0})
    assert again.wait_error("l0").reason == "REQUEST_NOT_FOUND"
    again.end()
    rest(served)


@pytest.mark.parametrize("kind", ["Generate", "GenerateStream"])
def test_reattach_at_every_index(served, kind):
    inference = served.stubs.inference
    proxy = Proxy(served.port)
    reference = alone(served, served.request("smol", PROMPTS[7], max_tokens=24, ignore_eos=True, seed=3, temperature=1.0))
    try:
        for cut_at in range(25):
            name = f"{kind}-{cut_at}"
            request = served.request("smol", PROMPTS[7], max_tokens=24, ignore_eos=True, seed=3, temperature=1.0,
                                     reattach_window_ms=10000, request_id=name)
            answer = Answer()
            with grpc.insecure_channel(f"127.0.0.1:{proxy.port}") as channel:
                if kind == "Generate":
                    call = served.stubs.inference_grpc.InferenceStub(channel).Generate(request)
                    for response in call:
                        if response.WhichOneof("event") == "tokens":
                            answer.ids.setdefault(0, []).extend(response.tokens.ids)
                        if answer.tokens() >= cut_at:
                            break
                    proxy.cut()
                else:
                    stream = Stream(served, channel)
                    stream.start(name, request)
                    if cut_at:
                        stream.wait_tokens(name, cut_at)
                    else:
                        stream.wait(lambda: name in stream.answers, "prompt_info")
                    proxy.cut()
                    stream.wait(lambda: stream.over, "the end")
                    answer.ids = {0: list(stream.answers[name].ids.get(0, []))}
            # The client may have got more than it noticed: it says what it kept.
            have = answer.ids.get(0, [])[:cut_at]
            assert have == reference[1][:cut_at]
            again = Stream(served)
            kept = Answer()
            kept.ids = {0: list(have)} if have else {}
            again.reattach(name, kept)
            again.wait_finished(name)
            assert kept.ids[0] == reference[1]
            assert reference[0].endswith(kept.text.get(0, "")) and kept.info.request_id == name
            if not have:
                assert kept.text[0] == reference[0]
            again.end()
    finally:
        proxy.close()


def test_reattach_says_what_cannot_be(served):
    proxy = Proxy(served.port)
    request = served.request("smol", "Once upon a time", max_tokens=100, ignore_eos=True, reattach_window_ms=30000)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{proxy.port}") as channel:
            stream = Stream(served, channel)
            stream.start("a", request)
            stream.wait_tokens("a", 10)
            proxy.cut()
            stream.wait(lambda: stream.over, "the end")
    finally:
        proxy.close()
    again = Stream(served)
    for received, status, field in (({0: 301}, 3, "reattach.received[0].n_tokens"), ({1: 0}, 3, "reattach.received[0].choice")):
        again.answers.pop("a", None)
        again.reattach("a", received)
        error = again.wait_error("a")
        assert (error.code, error.field) == (status, field), error
    reference = alone(served, served.request("smol", "Once upon a time", max_tokens=100, ignore_eos=True))
    kept = Answer()
    kept.ids = {0: reference[1][:10]}
    again.reattach("a", kept)  # the first ten are let go with this
    again.wait_tokens("a", 11)
    other = Stream(served)
    other.reattach("a", {0: 9})
    error = other.wait_error("a")
    assert (error.code, error.reason) == (9, "REPLAY_GONE") and "10" in error.message
    # The newer connection takes over; the older one is told.
    other.answers.pop("a")
    kept = Answer()
    kept.ids = {0: reference[1][:10]}
    other.reattach("a", kept)
    other.wait_finished("a")
    assert kept.ids[0] == reference[1]
    assert [e.error.reason for e in again.answers["a"].errors] in ([], ["REATTACHED"])
    other.end()
    again.call.cancel()


def test_the_newest_connection_wins_over_a_half_open_one(served):
    request = served.request("smol", "Once upon a time", max_tokens=120, ignore_eos=True, reattach_window_ms=30000)
    old, new = Stream(served), None
    old.start("t", request)
    old.wait_tokens("t", 20)
    new = Stream(served)
    kept = Answer()
    kept.ids, kept.text = {0: list(old.answers["t"].ids[0])}, {0: old.answers["t"].text[0]}
    # One that goes on receiving meanwhile: only what it says counts.
    n = len(kept.ids[0])
    kept.ids[0] = kept.ids[0][:n]
    kept.text = {}
    new.reattach("t", kept)
    assert old.wait_error("t").reason == "REATTACHED"
    new.wait_finished("t")
    assert kept.ids[0] == alone(served, request)[1]
    new.end()
    old.end()


def test_the_window_ends(served):
    request = served.request("smol", "Once upon a time", max_tokens=8000, ignore_eos=True, reattach_window_ms=1000)
    with grpc.insecure_channel(served.address) as channel:
        stream = Stream(served, channel)
        stream.start("w", request)
        stream.wait_tokens("w", 3)
        stream.call.cancel()
        stream.wait(lambda: stream.over, "the end")
    rest(served)
    again = Stream(served)
    again.reattach("w", {0: 0})
    assert again.wait_error("w").reason == "REQUEST_NOT_FOUND"
    again.end()


def test_random_cancels_leave_nothing_behind(served):
    rng = random.Random(5)
    stream = Stream(served)
    requests = {}
    for i in range(100):
        name = f"x{i}"
        requests[name] = served.request("smol", PROMPTS[i % len(PROMPTS)], seed=i, temperature=0.7, max_tokens=rng.choice([1, 5, 20, 60]))
        stream.start(name, requests[name])
        for _ in range(rng.randrange(3)):
            victim = f"x{rng.randrange(i + 1)}"
            getattr(stream, rng.choice(["cancel", "cancel", "pause", "resume"]))(victim)
    for name in requests:
        stream.resume(name)
    stream.end()
    n_whole = 0
    for name, request in requests.items():
        answer = stream.answers[name]
        ended = [e for e in answer.errors if e.error.code == 1]
        assert bool(ended) != bool(answer.finished), (name, answer.errors, answer.finished)
        if answer.finished and n_whole < 12:
            n_whole += 1
            same(answer, alone(served, request))
    rest(served)


def test_too_many_requests_on_one_stream(served):
    stream = Stream(served)
    for i in range(257):
        stream.start(f"m{i}", served.request("smol", "x", max_tokens=1000, ignore_eos=True, credit_tokens=0))
    error = stream.wait_error("m256")
    assert (error.code, error.reason) == (8, "STREAM_REQUESTS") and "256" in error.message and error.retry_after_ms
    stream.call.cancel()
    stream.wait(lambda: stream.over, "the end")
    rest(served)


def test_apply_chat_template_is_what_tokenize_sees(served):
    inference = served.stubs.inference
    chat = inference.Chat(messages=[inference.ChatMessage(role="system", content="Be brief."),
                                    inference.ChatMessage(role="user", content="Grüße, 你好 \U0001f600")])
    applied = served.inference.ApplyChatTemplate(inference.ApplyChatTemplateRequest(model="smol", chat=chat))
    tokens = served.inference.Tokenize(inference.TokenizeRequest(model="smol", chat=chat))
    assert list(applied.ids) == list(tokens.ids) and applied.version == "1"
    again = served.inference.Tokenize(inference.TokenizeRequest(model="smol", text=applied.text, add_special_tokens=False,
                                                                parse_special_tokens=True))
    assert list(again.ids) == list(applied.ids) and "Be brief." in applied.text
    for request, code, field in ((inference.ApplyChatTemplateRequest(model="smol"), "INVALID_ARGUMENT", "chat"),
                                 (inference.ApplyChatTemplateRequest(model="smol", chat=inference.Chat()), "INVALID_ARGUMENT", "chat.messages"),
                                 (inference.ApplyChatTemplateRequest(model="nobody", chat=chat), "NOT_FOUND", "nobody")):
        with pytest.raises(grpc.RpcError) as e:
            served.inference.ApplyChatTemplate(request)
        assert e.value.code().name == code and field in e.value.details()


def test_a_drain_lets_running_requests_finish_and_refuses_new_ones(fresh):
    from conftest import model_path
    fresh.start()
    fresh.cli("register", "smol", model_path(), "--version", "1")
    fresh.cli("load", "smol")
    fresh.wait(lambda: fresh.run("smol", "hi", "-n", "1", check=False).returncode == 0, 30, "the model answers")
    stream, idle = Stream(fresh), Stream(fresh)
    request = fresh.request("smol", "Once upon a time", max_tokens=60, ignore_eos=True)
    reference = alone(fresh, request)
    idle.start("quick", fresh.request("smol", "x", max_tokens=1))
    idle.wait_finished("quick")
    held = fresh.request("smol", "Once upon a time", max_tokens=60, ignore_eos=True, credit_tokens=30)
    stream.start("r", held)
    stream.wait_tokens("r", 30)
    import os, signal
    os.kill(fresh.children("sluice-server")[0], signal.SIGTERM)
    idle.wait(lambda: idle.over, "an idle stream's end", 10)
    assert idle.status[0] == grpc.StatusCode.UNAVAILABLE
    stream.start("late", request)
    assert stream.wait_error("late").reason == "DRAINING"
    stream.credit("r", 1000)
    same(stream.wait_finished("r"), reference)
