"""A draft model through the programs: the answers are the same with and without the draft model, whatever it drafts.
The test also checks where the draft model is reported, stored and counted, and which settings are refused. The sample
model drafts for itself. SLUICE_DRAFT_ALWAYS forces that, although such a draft costs a full step. The drafts of a
random model are never right."""
import json
import re
import subprocess
import sys

import grpc
import pytest

from conftest import BIN, ROOT, bad_field, model_path, names, patience, reason
from test_speculate import KINDS, PROMPTS, REPEAT, complete

ENV = {"SLUICE_DRAFT_ALWAYS": "true"}
OTHER_WORDS = ROOT / "tests/golden/tiny/q4_0.gguf"


@pytest.fixture(scope="module")
def random_model(tmp_path_factory):
    """The sample model's first 2,048 tokens with random weights."""
    path = tmp_path_factory.mktemp("model") / "random.gguf"
    subprocess.run([sys.executable, ROOT / "tests/bench/make_model.py", "--shape", "tiny", "--format", "Q4_0", "--output", path],
                   check=True, capture_output=True, timeout=patience(120))
    return path


@pytest.fixture(scope="module")
def served(tmp_path_factory, stubs, random_model):
    """smol drafts with itself, as its version was registered. wild drafts with the random model, as the load
    asked."""
    from conftest import Sluice
    sluice = Sluice(tmp_path_factory.mktemp("state"), stubs)
    sluice.start(env=ENV)
    try:
        sluice.cli("register", "smol", model_path(), "--version", "1", "--draft", model_path())
        sluice.cli("load", "smol", "--kv-tokens", "8192")
        sluice.cli("register", "wild", model_path(), "--version", "1")
        sluice.cli("load", "wild", "--kv-tokens", "8192", "--draft", str(random_model), "--speculate", "3", "--tp", "2")
        for name in ("smol", "wild"):
            sluice.wait(lambda: sluice.run(name, "hi", "-n", "1", check=False).returncode == 0, 30, "the model answers")
        yield sluice
    finally:
        sluice.stop()


def ask(served, model, text, drafter, **kwargs):
    def by(request):
        request.model = model
        request.speculate.drafter = getattr(served.stubs.inference, drafter)
        if extra:
            extra(request)
    extra = kwargs.pop("extra", None)
    return complete(served, text, None, extra=by, **kwargs)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_answer_with_and_without(served, kind):
    n_drafted = n_accepted = 0
    for text in PROMPTS[1:3]:
        alone, receipt = ask(served, "smol", text, "DRAFTER_NONE", **KINDS[kind])
        assert receipt.n_drafted_tokens == 0
        drafted, receipt = ask(served, "smol", text, "DRAFTER_MODEL", **KINDS[kind])
        assert drafted == alone, text
        n_drafted += receipt.n_drafted_tokens
        n_accepted += receipt.n_accepted_tokens
        wild, receipt = ask(served, "wild", text, "DRAFTER_MODEL", **KINDS[kind])
        assert wild == alone, text
        assert receipt.n_accepted_tokens <= receipt.n_drafted_tokens / 10
    assert n_drafted > 20 and n_accepted >= n_drafted * 0.7, (n_drafted, n_accepted)
    if kind in ("greedy", "sampled", "hot", "logprobs"):
        assert n_accepted == n_drafted


def test_what_a_request_does_not_say_is_as_it_was_loaded(served):
    alone, _ = ask(served, "smol", REPEAT, "DRAFTER_NONE")
    for drafts in (None, 9):
        drafted, receipt = complete(served, REPEAT, None, **({"speculate": served.stubs.inference.Speculate(max_draft_tokens=9)} if drafts else {}))
        assert drafted == alone
        assert receipt.n_accepted_tokens == receipt.n_drafted_tokens >= 48 * (0.85 if drafts else 0.7), (drafts, receipt)
    told = served.run("smol", REPEAT, "--raw", "-n", "40", "--stats", "--speculate", "8")
    assert re.search(r"^(\d\d) of \1 ", told.stderr, re.M), told.stderr
    looked_up, receipt = ask(served, "wild", REPEAT, "DRAFTER_NGRAM")
    assert looked_up == alone and receipt.n_accepted_tokens > 0


def test_it_is_recorded_and_shown(served, random_model):
    assert names(served.cli("show", "smol").stdout, model_path())
    config = json.loads(served.cli("show", "wild", "--json").stdout)["model"]["versions"][0]["deployments"][0]["config"]
    assert config["draft_model"] == str(random_model) and config["max_draft_tokens"] == 3
    known = served.cli("register", "smol", model_path(), "--version", "1", "--draft", model_path())
    assert known.returncode == 0
    other = served.cli("register", "smol", model_path(), "--version", "1", "--draft", str(random_model), check=False)
    assert other.returncode != 0


def test_its_memory_is_planned_and_told(served, random_model):
    served.cli("register", "planned", model_path(), "--version", "1")

    def plan(draft):
        m, t = served.stubs.manager, served.stubs.types
        return served.manager_stub().LoadModelVersion(m.LoadModelVersionRequest(
            model="planned", version="1", n_replicas=2, validate_only=True, config=t.ModelConfig(kv_tokens=4096, draft_model=draft)),
            timeout=patience(30)).plan
    without, small, twin = plan(""), plan(str(random_model)), plan(model_path())
    assert twin.packed_bytes == 2 * without.packed_bytes and without.packed_bytes < small.packed_bytes < 1.1 * without.packed_bytes
    # Two replicas share the model's weights. Each replica has its own draft model.
    assert twin.devices[0].weight_bytes == 3 * without.devices[0].weight_bytes
    assert twin.devices[0].kv_bytes == 2 * without.devices[0].kv_bytes
    assert len(twin.notes) > len(without.notes), (twin.notes, without.notes)
    replica = next(r for r in served.replicas() if r["model"] == "smol")
    assert int(replica["memory"][0]["weight_bytes"]) == twin.packed_bytes


def test_what_cannot_draft_is_refused_with_both_names(served, tmp_path):
    served.cli("register", "bad", model_path(), "--version", "1")
    refused = served.cli("load", "bad", "--draft", str(OTHER_WORDS), check=False)
    assert refused.returncode != 0
    assert names(refused.stderr, "DRAFT_MISMATCH", "q4_0.gguf", 288, 49152) and "SmolLM2-135M" in refused.stderr, refused.stderr
    refused = served.cli("load", "bad", "--draft", str(tmp_path / "none.gguf"), check=False)
    assert refused.returncode != 0 and names(refused.stderr, "--draft", "none.gguf")
    refused = served.cli("register", "bad2", model_path(), "--draft", str(tmp_path), check=False)
    assert refused.returncode != 0 and names(refused.stderr, "--draft", tmp_path.name)


def test_a_drafter_that_was_not_loaded_is_refused(served):
    served.cli("register", "plain", model_path(), "--version", "1")
    served.cli("load", "plain", "--kv-tokens", "2048")
    served.wait(lambda: served.run("plain", "hi", "-n", "1", check=False).returncode == 0, 30, "the model answers")
    with pytest.raises(grpc.RpcError) as e:
        ask(served, "plain", "x", "DRAFTER_MODEL", max_tokens=2)
    assert (e.value.code(), reason(e.value), bad_field(e.value)) == (grpc.StatusCode.FAILED_PRECONDITION, "NO_DRAFT_MODEL", "speculate.drafter")
    served.cli("unload", "plain")


def test_the_worker_alone_has_it(random_model):
    def generate(*args):
        return subprocess.run([BIN / "sluice-worker", "generate", model_path(), REPEAT, "--raw", "-n", "40", "--stats", "-t", "2", *args],
                              capture_output=True, text=True, check=True, timeout=patience(120))
    alone = generate()
    twin = generate("--draft", model_path(), "--draft-always")
    assert twin.stdout == alone.stdout
    drafted, accepted = map(int, re.search(r"drafted\D+(\d+)\D+(\d+)", twin.stderr).groups())
    assert drafted == accepted >= 28
    wild = generate("--draft", str(random_model), "--speculate", "8")
    assert wild.stdout == alone.stdout
    found = re.search(r"drafted\D+(\d+)\D+(\d+)", wild.stderr)
    assert not found or int(found[2]) <= 2
