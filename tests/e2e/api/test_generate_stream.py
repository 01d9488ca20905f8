"""GenerateStream over the real programs: many requests on one stream, with every kind of frame. test_reattach.py
tests lost connections."""
import queue
import random
import time

import grpc
import pytest

from conftest import bad_field, keeps, names, patience, reason
from generate_stream import PROMPTS, Stream, alone, quiet, rest, same


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
    # The answers arrive interleaved, and not in sequence.
    assert sum(a != b for a, b in zip(stream.order, stream.order[1:])) > 200


def test_bad_frames_are_answered_and_the_stream_lives_on(served):
    inference = served.stubs.inference
    stream = Stream(served)
    good = served.request("smol", "Once upon a time", max_tokens=150, ignore_eos=True)
    stream.start("good", good)
    stream.wait_tokens("good", 3)

    def refused(request_id, code, reason, field, n=1, goes_on=False, value=""):
        error = stream.wait_error(request_id, n)
        assert (error.code, error.reason, error.field) == (code.value[0], reason, field), error
        assert stream.answers[request_id].errors[n - 1].goes_on == goes_on
        assert value in error.message and error.message

    code = grpc.StatusCode
    stream.start("model", served.request("nobody", "x"))
    refused("model", code.NOT_FOUND, "MODEL_NOT_FOUND", "", value="nobody")
    stream.start("field", served.request("smol", "x", temperature=-1.0))
    refused("field", code.INVALID_ARGUMENT, "", "sampling.temperature")
    stream.send("empty")
    refused("empty", code.INVALID_ARGUMENT, "", "frame")
    stream.send("", cancel=inference.CancelFrame())
    refused("", code.INVALID_ARGUMENT, "", "request_id")
    stream.send("", start=served.request("smol", "x"))
    refused("", code.INVALID_ARGUMENT, "", "request_id", n=2)
    stream.start("one", served.request("smol", "x", request_id="two"))
    refused("one", code.INVALID_ARGUMENT, "", "start.request_id", value="two")
    stream.start("good", good)
    refused("good", code.ALREADY_EXISTS, "REQUEST_ID_LIVE", "", goes_on=True)
    for frame in ({"cancel": inference.CancelFrame()}, {"pause": inference.PauseFrame()}, {"resume": inference.ResumeFrame()},
                  {"credit": inference.CreditFrame(n_tokens=1)}, {"update": inference.UpdateFrame(max_tokens=5)},
                  {"reattach": inference.ReattachFrame()}):
        stream.send("nobody", **frame)
    for n in range(6):
        refused("nobody", code.NOT_FOUND, "REQUEST_NOT_FOUND", "", n=n + 1)
    stream.update("good", max_tokens=1)
    refused("good", code.INVALID_ARGUMENT, "", "update.max_tokens", n=2, goes_on=True, value="1")
    stream.update("good", priority=101)
    refused("good", code.INVALID_ARGUMENT, "", "update.priority", n=3, goes_on=True)
    stream.update("good", stop=["x"])
    refused("good", code.INVALID_ARGUMENT, "", "update.stop", n=4, goes_on=True)
    stream.update("good", stop=["x"] * 5, replace_stop=True)
    refused("good", code.INVALID_ARGUMENT, "", "update.stop", n=5, goes_on=True, value="4")
    stream.credit("good", 5)
    refused("good", code.FAILED_PRECONDITION, "NO_CREDIT_NEEDED", "", n=6, goes_on=True)
    stream.reattach("good", {0: 0})
    refused("good", code.FAILED_PRECONDITION, "NOT_REATTACHABLE", "", n=7, goes_on=True)
    stream.start("window", served.request("smol", "x", reattach_window_ms=30001))
    refused("window", code.INVALID_ARGUMENT, "", "reattach_window_ms", value="30000")
    stream.start("x" * 129, served.request("smol", "x"))
    refused("", code.INVALID_ARGUMENT, "", "request_id", n=3, value="129")
    stream.end()
    same(stream.answers["good"], alone(served, good))


def test_a_message_that_is_no_message_ends_nobody(served):
    """Sends text that is not UTF-8, and bytes that are not a frame."""
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


@pytest.mark.parametrize("by_call", [False, True], ids=["frame", "call"])
def test_cancel_ends_an_answer_that_waits_for_credit(served, by_call):
    """The worker has finished both answers and the best of two is known. The client has credit for two tokens
    only."""
    stream = Stream(served)
    request = served.request("smol", "Once upon a time", max_tokens=8, ignore_eos=True, temperature=1.0)
    request.sampling.best_of = 2
    request.credit_tokens = 2
    stream.start("best", request)
    stream.wait_tokens("best", 2)
    if by_call:
        assert served.inference.Cancel(served.stubs.inference.CancelRequest(request_id="best")).n_tokens_sent == 2
    else:
        stream.cancel("best")
    error = stream.wait_error("best")
    assert error.code == grpc.StatusCode.CANCELLED.value[0] and error.n_tokens_sent == 2, error
    assert stream.answers["best"].tokens() == 2
    stream.end()


def test_pause_stands_still_and_resume_goes_on(served):
    request = served.request("smol", "Once upon a time", max_tokens=120, ignore_eos=True)
    stream = Stream(served)
    stream.start("p", request)
    stream.wait_tokens("p", 10)
    stream.pause("p")
    n = quiet(stream, "p")
    keeps(lambda: stream.answers["p"].tokens() == n < 120, 2, "it pauses")
    stream.resume("p")
    same(stream.wait_finished("p"), alone(served, request))
    stream.end()


@pytest.mark.parametrize("n", [1, 3])
def test_credit_is_taken_to_the_token(served, n):
    request = served.request("smol", "Once upon a time", max_tokens=40, ignore_eos=True, credit_tokens=0, n=n,
                             stop=["never to be seen"])
    stream = Stream(served)
    stream.start("c", request)
    keeps(lambda: "c" not in stream.answers or stream.answers["c"].tokens() == 0, 0.5, "it has no credit")
    given = 0
    for more in (1, 2, 5, 13):
        stream.credit("c", more)
        given += more
        answer = stream.wait_tokens("c", given)
        keeps(lambda: answer.tokens() == given, 0.3, "it has no more credit")
    stream.credit("c", 2**31)
    assert stream.wait_error("c").field == "credit.n_tokens"
    stream.credit("c", 2**31 - 1)  # adds to the remaining credit, which is 0 here
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
    assert (error.code, error.reason) == (8, "STREAM_REQUESTS") and names(error.message, 256) and error.retry_after_ms
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
                                 (inference.ApplyChatTemplateRequest(model="nobody", chat=chat), "NOT_FOUND", "")):
        with pytest.raises(grpc.RpcError) as e:
            served.inference.ApplyChatTemplate(request)
        assert (e.value.code().name, bad_field(e.value)) == (code, field)


def test_cancelled_calls_for_text_keep_no_request_thread(served):
    """Each call would occupy a request thread for most of a second. Together the calls would block Tokenize past its
    deadline."""
    inference = served.stubs.inference
    endless = "{% for i in range(9000) %}{% for j in range(1000) %}{% set x = i %}{% endfor %}{% endfor %}"
    chat = inference.Chat(messages=[inference.ChatMessage(role="user", content="hi")], template_override=endless)
    request = inference.ApplyChatTemplateRequest(model="smol", chat=chat)
    with pytest.raises(grpc.RpcError) as e:
        served.inference.ApplyChatTemplate(request)
    assert (e.value.code(), reason(e.value)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TEMPLATE_LIMIT")
    for _ in range(5):
        calls = [served.inference.ApplyChatTemplate.future(request) for _ in range(80)]
        time.sleep(0.2)  # some calls are in the template step; no counter shows that
        [call.cancel() for call in calls]
    assert served.inference.Tokenize(inference.TokenizeRequest(model="smol", text="abc"), timeout=patience(20)).ids


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
