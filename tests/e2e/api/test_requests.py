"""Bad input gets the right status and the name of the field. Other requests are unharmed.
The bounds of fields have a test of their own, tests/unit/gateway/front/test_request_bounds.c."""
import socket
import threading

import grpc
import pytest

from conftest import bad_field, patience, reason


def raw_call(served, method, body):
    call = served.channel.unary_stream(method, request_serializer=lambda b: b, response_deserializer=lambda b: b)
    return list(call(body, timeout=patience(20)))


@pytest.mark.parametrize("body, name", [
    (b"\xff\xff\xff", "GenerateRequest"),
    (b"\x0a\x05ab", "GenerateRequest"),
    (b"\x0a\x02\xc3\x28", "model"),
    (b"\x0a\x04smol\x22\x03a\x00b", "text"),
    (b"\x0a\x04smol\x22\x02\xed\xa0", "text"),
    (b"\x00\x01", "GenerateRequest"),
    (b"\x0b" * 20000, "GenerateRequest"),
], ids=["varint", "length", "utf8-model", "nul", "surrogate", "field-0", "groups"])
def test_malformed_bytes_are_refused(served, body, name):
    with pytest.raises(grpc.RpcError) as e:
        raw_call(served, "/sluice.v1.Inference/Generate", body)
    assert e.value.code() == grpc.StatusCode.INVALID_ARGUMENT and name in e.value.details(), e.value


def test_other_calls_name_the_field_too(served):
    inference = served.stubs.inference
    chat = inference.TokenizeRequest(model="smol")
    chat.chat.messages.add(role="user", content="x")
    chat.chat.template_variables_json = "[1]"
    for method, request, field in (
        (served.inference.Cancel, inference.CancelRequest(request_id="\u00e9" * 65), "request_id"),
        (served.inference.Detokenize, inference.DetokenizeRequest(model="smol", ids=[1, 49152]), "ids[1]"),
        (served.inference.Tokenize, inference.TokenizeRequest(model="smol", text="ab1 " * 300000, with_pieces=True),
         "with_pieces"),
        (served.inference.Tokenize, chat, "chat.template_variables_json"),
    ):
        with pytest.raises(grpc.RpcError) as e:
            method(request, timeout=patience(20))
        assert e.value.code() == grpc.StatusCode.INVALID_ARGUMENT and bad_field(e.value) == field, e.value


def test_too_large_unknown_method_and_empty_service(served):
    with pytest.raises(grpc.RpcError) as e:
        raw_call(served, "/sluice.v1.Inference/Generate", b"\x22" + b"\x80\x80\x80\x03" + b"a" * (6 << 20))
    assert e.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    for method in ("/sluice.v1.Inference/Nothing", "/no.Such/Thing"):
        with pytest.raises(grpc.RpcError) as e:
            raw_call(served, method, b"")
        assert e.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_a_prompt_that_cannot_fit_is_refused(served):
    with pytest.raises(grpc.RpcError) as e:
        served.generate(served.request("smol", "word " * 20000))
    assert (e.value.code(), reason(e.value)) == (grpc.StatusCode.INVALID_ARGUMENT, "CONTEXT_TOO_LONG")


def test_deadline_ends_deadline_exceeded(served):
    with pytest.raises(grpc.RpcError) as e:
        served.generate(served.request("smol", "Write forever.", max_tokens=8000, ignore_eos=True), timeout=0.5)
    assert e.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


def test_garbage_on_the_port_harms_nobody(served):
    for junk in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 4096, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 500):
        with socket.create_connection(("127.0.0.1", served.port)) as s:
            s.sendall(junk)
    text, _, _ = served.generate(served.request("smol", "The capital of France is", max_tokens=8))
    assert "Paris" in text


def test_stop_strings_logprobs_and_choices(served):
    request = served.request("smol", "Count: 1, 2, 3, 4,", max_tokens=40, stop=["8,"])
    request.output.logprobs = True
    request.output.top_n = 3
    responses = list(served.inference.Generate(request))
    text = "".join(r.tokens.text for r in responses)
    finished = responses[-1].finished
    assert finished.stop == "8," and "8," not in text and "7" in text
    logprobs = [lp for r in responses for lp in r.tokens.logprobs]
    assert logprobs and all(lp.logprob <= 0 and len(lp.top) == 3 for lp in logprobs)
    assert all(lp.id == lp.top[0].id for lp in logprobs)  # greedy sampling
    request = served.request("smol", "Once", max_tokens=12, temperature=0.9, seed=3, n=3)
    whole = served.inference.Complete(request)
    assert len(whole.choices) == 3 and len({c.text for c in whole.choices}) == 3
    again = served.inference.Complete(request)
    assert [c.text for c in again.choices] == [c.text for c in whole.choices]


def test_a_generated_nul_is_text_of_its_id(served):
    """The text of a token was cut at a NUL byte. The rest of the message was lost with that text."""
    inference = served.stubs.inference

    def text_of(ids):
        return served.inference.Detokenize(inference.DetokenizeRequest(model="smol", ids=ids)).text

    nul = next(i for i in range(600) if text_of([i]) == "\x1a")
    request = served.request("smol", "x", max_tokens=6)
    request.stopping.ignore_eos = True
    request.sampling.logit_bias.add(token_id=nul, bias=100)
    answer = served.inference.Complete(request).choices[0]
    assert list(answer.ids) == [nul] * 6 and answer.text == "\x1a" * 6
    assert text_of([nul] * 2) == "\x1a" * 2


def test_detokenize_names_the_id(served):
    with pytest.raises(grpc.RpcError) as e:
        served.inference.Detokenize(served.stubs.inference.DetokenizeRequest(model="smol", ids=[1, 2, 49152]))
    assert e.value.code() == grpc.StatusCode.INVALID_ARGUMENT and bad_field(e.value) == "ids[2]"


def test_many_at_once_answer_as_each_alone(served):
    requests = [served.request("smol", f"Tell me about {w}.", max_tokens=8 + 5 * i, temperature=0.6 * (i % 3), seed=i)
                for i, w in enumerate("cats dogs rivers trains paint bread snow salt wind stone glass iron".split())]
    alone = [served.generate(r) for r in requests]
    together = [None] * len(requests)

    def one(i):
        together[i] = served.generate(requests[i])

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(requests))]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert [t[1] for t in together] == [a[1] for a in alone]
