"""Speculation through the programs: the same answers with and without drafts, the reported figures, and the
refusals."""
import json
import re
import subprocess

import grpc
import pytest

from conftest import BIN, bad_field, model_path, names, patience, steady
from test_metrics import Scrape

REPEAT = "List the days of the week, again and again.\n" + "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday.\n" * 6
QUOTE = ("def area(width, height):\n    return width * height\n\n\ndef volume(width, height, depth):\n    return width * height * depth\n\n\n"
         "# The same two functions again:\n\ndef area(")
PROMPTS = [REPEAT, QUOTE, "The sky is blue because", "Once upon a time there was a"]


def complete(served, text, drafts, **kwargs):
    """(client-visible answer, receipt). `drafts`: 0 for no drafts, None for the setting of the load."""
    speculate = served.stubs.inference.Speculate
    if drafts is not None:
        kwargs["speculate"] = speculate(drafter="DRAFTER_NGRAM", max_draft_tokens=drafts) if drafts else speculate(drafter="DRAFTER_NONE")
    extra = kwargs.pop("extra", None)
    request = served.request("smol", text, max_tokens=kwargs.pop("max_tokens", 48), **kwargs)
    if extra:
        extra(request)
    answer = served.inference.Complete(request, timeout=patience(120))
    choices = [(c.index, c.text, list(c.ids), c.finished.reason, c.finished.stop, str(list(c.logprobs))) for c in answer.choices]
    return choices, answer.receipt


def penalties(r):
    r.sampling.repetition_penalty, r.sampling.frequency_penalty = 1.1, 0.05


def logprobs(r):
    r.output.logprobs, r.output.top_n = True, 3


def banned(r):
    r.sampling.bad_words.extend(["Tuesday", "return width"])
    r.sampling.watermark = True


KINDS = {"greedy": {}, "sampled": {"temperature": 0.8, "top_p": 0.95, "seed": 5}, "hot": {"temperature": 1.5, "seed": 9},
         "penalties": {"temperature": 0.5, "seed": 3, "extra": penalties}, "logprobs": {"extra": logprobs},
         "stop": {"stop": ["Saturday", "depth", "morning"]}, "n=3": {"temperature": 0.7, "seed": 11, "n": 3},
         "bad words, watermark": {"temperature": 0.7, "seed": 2, "extra": banned}, "min_tokens": {"min_tokens": 40, "stop": ["."]}}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_answer_with_and_without(served, kind):
    n_accepted = 0
    for text in PROMPTS:
        alone, receipt = complete(served, text, 0, **KINDS[kind])
        assert receipt.n_drafted_tokens == receipt.n_accepted_tokens == 0
        for drafts in (3, 16):
            drafted, receipt = complete(served, text, drafts, **KINDS[kind])
            assert drafted == alone, (text, drafts)
            assert receipt.n_accepted_tokens <= receipt.n_drafted_tokens
            n_accepted += receipt.n_accepted_tokens
    assert n_accepted > 0 or kind == "hot"


def test_repeating_text_takes_fewer_steps(served):
    """An accepted draft token saves a step. The worker's counters agree with the receipts."""
    def steps(drafts):
        before = {n: counter(served, n) for n in ("decode_steps", "drafted_tokens", "accepted_draft_tokens")}
        answer, receipt = complete(served, REPEAT, drafts, max_tokens=100, ignore_eos=True)
        after = {n: counter(served, n) - before[n] for n in before}
        assert after["drafted_tokens"] == receipt.n_drafted_tokens
        assert after["accepted_draft_tokens"] == receipt.n_accepted_tokens
        return answer, after["decode_steps"], receipt.n_accepted_tokens
    alone, n_alone, _ = steps(0)
    drafted, n_drafted, n_accepted = steps(8)
    assert drafted == alone and n_alone == 99
    assert n_drafted == 99 - n_accepted and n_drafted < 50


def counter(served, name):
    """A worker's counter, once two reports of the worker show the same value."""
    return steady(lambda: Scrape(served.manager_metrics_port).sum(f"sluice_worker_{name}_total", model="smol"), 1.2, 240)


@pytest.mark.parametrize("speculate, field, values", [
    ({"drafter": 2, "max_draft_tokens": 0}, "speculate.max_draft_tokens", (0, 1, 16)),
    ({"drafter": 2, "max_draft_tokens": 17}, "speculate.max_draft_tokens", (17, 1, 16)),
    ({"drafter": 1, "max_draft_tokens": 2}, "speculate.max_draft_tokens", (2, "DRAFTER_NONE")),
    ({"drafter": 9}, "speculate.drafter", (9,)),
])
def test_what_is_refused_names_field_and_limit(served, speculate, field, values):
    request = served.request("smol", "x", max_tokens=2, speculate=served.stubs.inference.Speculate(**speculate))
    with pytest.raises(grpc.RpcError) as e:
        served.inference.Complete(request, timeout=patience(20))
    assert (e.value.code(), bad_field(e.value)) == (grpc.StatusCode.INVALID_ARGUMENT, field)
    assert names(e.value.details(), *values), e.value.details()


def test_the_command_line_has_it(served):
    def run(*args):
        return served.run("smol", REPEAT, "--raw", "-n", "60", "--ignore-eos", "--stats", *args)
    alone, drafted = run("--speculate", "0"), run("--speculate", "8")
    assert drafted.stdout == alone.stdout
    receipts = [json.loads(run("--speculate", n, "--json").stdout.splitlines()[-1])["finished"]["receipt"] for n in ("0", "8")]
    assert not receipts[0].get("n_drafted_tokens") and receipts[1]["n_accepted_tokens"] > 0
    assert names(drafted.stderr, receipts[1]["n_drafted_tokens"], receipts[1]["n_accepted_tokens"])
    refused = served.run("smol", "x", "--speculate", "17", check=False)
    assert refused.returncode == 2 and names(refused.stderr, "--speculate", 17)
    refused = served.cli("load", "smol", "--speculate", "17", check=False)
    assert refused.returncode == 2 and names(refused.stderr, "--speculate")


def test_the_worker_alone_has_it():
    def generate(*args):
        return subprocess.run([BIN / "sluice-worker", "generate", model_path(), REPEAT, "--raw", "-n", "60", "--stats", *args],
                              capture_output=True, text=True, check=True, timeout=patience(120))
    alone, drafted = generate(), generate("--speculate", "8")
    assert drafted.stdout == alone.stdout
    figures = [re.findall(r"\b\d+\b", run.stderr) for run in (alone, drafted)]
    assert len(figures[1]) > len(figures[0]), drafted.stderr  # the number of drafted tokens and of accepted tokens


@pytest.fixture(scope="module")
def served(tmp_path_factory, stubs):
    """Loaded with --speculate 4, with /metrics of the manager."""
    from conftest import Sluice, free_port
    sluice = Sluice(tmp_path_factory.mktemp("state"), stubs)
    sluice.manager_metrics_port = free_port()
    sluice.start("--manager-metrics", f"127.0.0.1:{sluice.manager_metrics_port}")
    try:
        sluice.cli("register", "smol", model_path(), "--version", "1")
        sluice.cli("load", "smol", "--speculate", "4")
        sluice.wait(lambda: sluice.run("smol", "hi", "-n", "1", check=False).returncode == 0, 30, "the model answers")
        yield sluice
    finally:
        sluice.stop()


def test_a_request_that_says_nothing_drafts_as_the_model_was_loaded(served):
    alone, _ = complete(served, REPEAT, 0)
    drafted, receipt = complete(served, REPEAT, None)
    assert drafted == alone and receipt.n_accepted_tokens > 0
    info = served.inference.GetModel(served.stubs.inference.GetModelRequest(model="smol")).model.versions[0].info
    assert info.capabilities.speculate
