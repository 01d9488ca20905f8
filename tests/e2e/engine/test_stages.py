"""Pipeline stages through the programs: `sluice serve --pp 2`, loads on other splits, park and wake.
A split never changes the tokens. A split that the model's layers do not allow is refused, and the field is named."""
import json

import pytest

from conftest import ROOT, names

TINY = ROOT / "tests/golden/tiny"
TEXT = "The first (and 2nd) answer, it's"
SPLITS = {"1": (1, 1), "2": (1, 2), "3": (2, 2)}


def ask(sluice, name, version, **kwargs):
    request = sluice.request(name, TEXT, version=version, ignore_eos=True, max_tokens=24, **kwargs)
    return sluice.generate(request, timeout=60)[1]


@pytest.fixture(scope="module")
def split(tmp_path_factory, stubs):
    """Each version has the same file, on another split."""
    from conftest import Sluice
    sluice = Sluice(tmp_path_factory.mktemp("state"), stubs)
    sluice.start()
    try:
        for version, (tp, pp) in SPLITS.items():
            sluice.cli("register", "tiny", TINY / "q4_1.gguf", "--version", version)
            sluice.cli("load", "tiny", "--version", version, "--kv-tokens", "2048", "--tp", str(tp), "--pp", str(pp))
        yield sluice
    finally:
        sluice.stop()


def test_answers_are_the_same_whatever_the_split(split):
    for drawn in ({"temperature": 0}, {"temperature": 1.0, "seed": 7}):
        wanted = ask(split, "tiny", "1", **drawn)
        assert len(wanted) == 24
        assert [ask(split, "tiny", version, **drawn) for version in SPLITS] == [wanted] * len(SPLITS)


def test_a_plan_names_the_layers_of_each_rank(split):
    found = json.loads(split.cli("inspect", str(TINY / "q4_1.gguf"), "--pp", "2", "--tp", "2", "--json").stdout)["plan"]
    assert found["pp"] == 2 and found["tp"] == 2 and [d.get("rank", 0) for d in found["devices"]] == [0, 1, 2, 3]
    assert [d.get("stage", 0) for d in found["devices"]] == [0, 0, 1, 1]
    first, last = found["devices"][0], found["devices"][3]
    assert first.get("first_layer", 0) == 0 and last["first_layer"] == first["n_layers"]
    text = split.cli("inspect", str(TINY / "q4_1.gguf"), "--pp", "2").stdout
    assert names(text, "pp 2", "stage 1")


def test_parked_stages_wake_with_their_weights(split):
    before = ask(split, "tiny", "3", temperature=0)
    split.cli("park", "tiny", "--version", "3")
    split.wait(lambda: len(split.ready()) == len(SPLITS) - 1, 30, "the version is parked")
    split.cli("wake", "tiny", "--version", "3")
    split.wait(lambda: len(split.ready()) == len(SPLITS), 30, "the version serves again")
    assert ask(split, "tiny", "3", temperature=0) == before


@pytest.mark.parametrize("path,pp", [("q4_1.gguf", 8), ("gemma4.gguf", 2)])
def test_a_split_that_layers_do_not_allow_is_refused(split, path, pp):
    refused = split.cli("inspect", str(TINY / path), "--pp", str(pp), "--json", check=False)
    assert refused.returncode == 1 and names(json.loads(refused.stderr)["error"]["message"], "pp", pp)


def test_serve_takes_the_stages(fresh):
    fresh.start(TINY / "q4_1.gguf", "--pp", "2", "--kv-tokens", "2048")
    fresh.wait(lambda: len(fresh.ready()) == 1, 30, "the model is ready")
    models = fresh.manager_stub().ListModels(fresh.stubs.manager.ListModelsRequest()).models
    assert [(d.tp, d.pp) for m in models for v in m.versions for d in v.deployments] == [(1, 2)]
