"""Token limits, fair shares between callers, and priorities, through all programs."""
import json
import re
import subprocess
import urllib.request

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from conftest import BIN, model_path, names, patience
from generate_stream import Stream


def details(error):
    """(reason, field) of a refusal."""
    status = status_pb2.Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    reason = field = ""
    for any_detail in status.details:
        info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        if any_detail.Unpack(info):
            reason = info.reason
        elif any_detail.Unpack(bad):
            field = bad.field_violations[0].field
    return reason, field


def ids_request(sluice, n, max_tokens):
    request = sluice.request("smol", "", max_tokens=max_tokens or 1, ignore_eos=True)
    request.token_ids.ids.extend([100 + i % 1000 for i in range(n)])
    if max_tokens is None:
        request.stopping.ClearField("max_tokens")
    return request


def refusals(sluice, limit):
    with urllib.request.urlopen(f"http://{sluice.metrics_address}/metrics", timeout=patience(5)) as reply:
        text = reply.read().decode()
    return sum(float(v) for v in re.findall(rf'^sluice_refusals_total\{{limit="{limit}"\}} (\S+)$', text, re.M))


def test_limits_of_tokens_are_told_and_kept(fresh):
    fresh.start_measured()
    fresh.cli("register", "smol", model_path(), "--version", "1")
    fresh.cli("load", "smol", "--max-input-tokens", "40", "--max-total-tokens", "60", "--max-concurrent", "3", "--max-batch-tokens", "64",
              "--target-itl-ms", "50")
    fresh.wait(lambda: fresh.run("smol", "hi", "-n", "1", check=False).returncode == 0, 30, "the model answers")
    limits = fresh.inference.GetModel(fresh.stubs.inference.GetModelRequest(model="smol")).model.versions[0].info.limits
    assert (limits.max_prompt_tokens, limits.max_generated_tokens, limits.max_concurrent_requests) == (40, 59, 3)
    assert names(fresh.cli("show", "smol").stdout, "max_concurrent_requests 3", "max_batch_tokens 64", "target_itl_ms 50", "max_input_tokens 40",
                 "max_total_tokens 60")
    for n, max_tokens, answer in ((40, 20, 20), (40, None, 20), (1, 59, 59), (1, None, 59), (10, 50, 50)):
        assert len(fresh.inference.Complete(ids_request(fresh, n, max_tokens), timeout=patience(60)).choices[0].ids) == answer, (n, max_tokens)
    for n, max_tokens, reason, field, values in ((41, 1, "INPUT_TOO_LONG", "prompt", (41, "max_input_tokens", 40)),
                                                 (40, 21, "TOTAL_TOO_LONG", "stopping.max_tokens", (21, 40, "max_total_tokens", 60))):
        with pytest.raises(grpc.RpcError) as e:
            fresh.inference.Complete(ids_request(fresh, n, max_tokens), timeout=patience(30))
        assert e.value.code() == grpc.StatusCode.INVALID_ARGUMENT and names(e.value.details(), *values), e.value
        assert details(e.value) == (reason, field)
    assert refusals(fresh, "input_tokens") == 1 and refusals(fresh, "total_tokens") == 1
    # The default of the command line stays within the limit. An explicit value beyond the limit is refused.
    run = fresh.run("smol", "hi", "--raw", "--ignore-eos", "--json", "--priority", "100")
    assert json.loads(run.stdout.splitlines()[-1])["finished"]["reason"] == "FINISH_REASON_CONTEXT_LENGTH", run.stdout
    run = fresh.run("smol", "hi", "-n", "256", check=False)
    assert run.returncode == 1 and names(run.stderr, "TOTAL_TOO_LONG")
    run = fresh.run("smol", "hi", "--priority", "101", check=False)
    assert run.returncode != 0 and names(run.stderr, "--priority", 101, -100, 100)


def test_a_template_takes_so_many_steps_and_bytes_and_no_more(fresh):
    fresh.start_measured(model_path(), "--name", "smol", "--threads", "1",
                         env={"SLUICE_MAX_TEMPLATE_STEPS": "5000", "SLUICE_MAX_TEMPLATE_OUTPUT_BYTES": "2K"})
    fresh.wait(lambda: fresh.run("smol", "hi", "-n", "1", check=False).returncode == 0, 30, "the model answers")
    t = fresh.stubs.inference
    for template, limit in (("{% for i in range(6000) %}{% endfor %}", 5000), ("{{ 'x ' * 1025 }}", 2048)):
        chat = t.Chat(messages=[t.ChatMessage(role="user", content="hi")], template_override=template)
        request = fresh.request("smol", "", max_tokens=1)
        request.chat.CopyFrom(chat)
        for call in (lambda: fresh.inference.Complete(request, timeout=patience(30)),
                     lambda: fresh.inference.ApplyChatTemplate(t.ApplyChatTemplateRequest(model="smol", chat=chat), timeout=patience(30))):
            with pytest.raises(grpc.RpcError) as e:
                call()
            assert e.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and names(e.value.details(), limit), e.value
            assert details(e.value) == ("TEMPLATE_LIMIT", "chat.template_override")
    assert refusals(fresh, "template") == 4
    chat = t.Chat(messages=[t.ChatMessage(role="user", content="hi")], template_override="{{ 'x ' * 1024 }}")
    assert len(fresh.inference.ApplyChatTemplate(t.ApplyChatTemplateRequest(model="smol", chat=chat), timeout=patience(30)).text) == 2048


@pytest.mark.parametrize("flag, value", [("--max-total-tokens", "1"), ("--max-input-tokens", "99999999"), ("--target-itl-ms", "60001"),
                                         ("--max-concurrent", "5000")])
def test_limits_that_make_no_sense_are_refused_at_load(served, flag, value):
    result = served.cli("load", "smol", flag, value, check=False)
    assert result.returncode != 0 and names(result.stderr, flag, value), result


@pytest.mark.parametrize("args, named", [
    (["--target-itl-ms", "soon"], '"soon"'), (["--target-itl-ms", "-1"], '"-1"'),
    (["--target-itl-ms", "60001"], '"60001"'), (["--max-total-tokens", "1"], "max_total_tokens"),
    (["--max-queued", "65537"], "--max-queued"), (["--speculate", "17"], "--speculate"), (["--speculate", "-1"], "--speculate"),
    (["--max-input-tokens", "-5"], "--max-input-tokens"), (["--max-batch-tokens", "18446744073709551616"], "--max-batch-tokens"),
    # Symptom: the worker accepted these two flags and ignored them.
    (["--digest", "00"], "00"), (["--kv-bytes", "1"], "--kv-bytes")])
def test_a_worker_refuses_them_too(args, named):
    result = subprocess.run([BIN / "sluice-worker", "generate", model_path(), "x", "-n", "1", *args], capture_output=True, text=True,
                            timeout=patience(60))
    assert result.returncode != 0 and names(result.stderr, named), result


def keys_of(sluice, *callers):
    """Writes a keys file. Returns the file and the keys by name."""
    keys, lines = {}, []
    for name in callers:
        out = subprocess.run([BIN / "sluice", "key", "new", name], capture_output=True, text=True, timeout=patience(20), check=True).stdout
        keys[name], line = out.splitlines()[:2]
        lines.append(line)
    path = sluice.state / "keys"
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)
    return path, keys


@pytest.mark.parametrize("queue", ["the replica's", "the server's"])
def test_one_request_does_not_wait_for_those_of_another_caller(fresh, queue):
    """A caller has 45 requests on four places. The request of a second caller ends before most of them. That holds
    for the queue of the server and for the queue of the replica."""
    path, keys = keys_of(fresh, "hog", "modest")
    config = fresh.state / "sluice.conf"
    config.write_text("[server]\nmax_concurrent = 3\n" if queue == "the server's" else "")
    fresh.start("--keys-file", path, "--config", config)
    fresh.cli("register", "smol", model_path(), "--version", "1")
    fresh.cli("load", "smol", "--max-concurrent", "4")

    def call(name, request):
        return fresh.inference.Complete.future(request, timeout=patience(300), metadata=[("authorization", f"Bearer {keys[name]}")])
    call("modest", fresh.request("smol", "Hello", max_tokens=1)).result()
    hogs = [call("hog", fresh.request("smol", f"Count on from {i}:", max_tokens=32, ignore_eos=True)) for i in range(45)]
    fresh.wait(lambda: sum(h.done() for h in hogs) >= 2, 60, "the hog's first answers")
    for i in range(3):
        before = sum(h.done() for h in hogs)
        answer = call("modest", fresh.request("smol", f"The capital of {i} is", max_tokens=8, ignore_eos=True)).result()
        after = sum(h.done() for h in hogs)
        assert len(answer.choices[0].ids) == 8
        assert after - before <= 12, (before, after)  # in order of arrival all 45 requests would have come first
    assert all(len(h.result().choices[0].ids) == 32 for h in hogs)


def test_a_waiting_request_whose_priority_is_raised_comes_first(fresh):
    """With a single place, requests run in order of arrival. After an `update` that raises its priority, a later
    request runs first."""
    fresh.start()
    fresh.cli("register", "smol", model_path(), "--version", "1")
    fresh.cli("load", "smol", "--max-concurrent", "1")
    stream = Stream(fresh)
    for raised, first in ((False, "b"), (True, "c")):
        stream.order.clear()
        stream.start("a", fresh.request("smol", "Once upon a time", max_tokens=150, ignore_eos=True))
        stream.wait_tokens("a", 1)
        for name in ("b", "c"):
            stream.start(name, fresh.request("smol", "Once upon", max_tokens=10, ignore_eos=True))
        if raised:
            stream.update("c", priority=50)
        for name in ("a", "b", "c"):
            answer = stream.wait_finished(name)
            assert len(answer.ids[0]) == {"a": 150}.get(name, 10)
        assert min(stream.order.index("b"), stream.order.index("c")) == stream.order.index(first)
        for name in ("a", "b", "c"):
            del stream.answers[name]
    stream.end()


def test_a_caller_who_fills_the_queue_leaves_places_to_others(fresh):
    """Sixteen requests may wait. The last two places are for callers with less than two waiting requests."""
    path, keys = keys_of(fresh, "hog", "modest")
    config = fresh.state / "sluice.conf"
    config.write_text("[server]\nmax_queued = 16\n")
    fresh.start("--keys-file", path, "--config", config)
    fresh.cli("register", "smol", model_path(), "--version", "1")
    fresh.cli("load", "smol", "--max-concurrent", "2")

    def call(name, max_tokens=int(patience(150))):
        request = fresh.request("smol", "Count on:", max_tokens=min(max_tokens, 1000), ignore_eos=True)
        return fresh.inference.Complete.future(request, timeout=patience(300), metadata=[("authorization", f"Bearer {keys[name]}")])

    def refused(answer):
        return answer.done() and answer.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and details(answer)[0] == "QUEUE_FULL"
    call("modest", 1).result()
    hogs = [call("hog") for _ in range(40)]
    fresh.wait(lambda: sum(map(refused, hogs)) == 40 - 2 - 14, 30, "all but those that run and 14 that wait are refused")
    modest = [call("modest", 5) for _ in range(2)]
    late = call("hog")
    fresh.wait(lambda: refused(late), 20, "the hog gets none of the last places")
    for answer in modest:
        assert len(answer.result().choices[0].ids) == 5
    assert sum(map(refused, hogs)) == 40 - 2 - 14
    [h.cancel() for h in hogs]
