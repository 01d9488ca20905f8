"""A model with sliding windows of 16 tokens through all programs: its blocks for windows are planned and shown. Prefix hits,
choices, a killed worker, a park and a wake change no token. The model is tests/golden/tiny/exaone4 with a tokenizer of the
256 bytes."""
import json
import shutil

import pytest

import test_states as states
from conftest import ROOT, Sluice, names
from test_folder import tokenizer

MODEL = ROOT / "tests/golden/tiny/exaone4"
BLOCK = 32
# 8 windows of a block each and 3 more blocks, the 16 blocks of a step's rows, and a quarter of all that
FLAGS, N_WINDOW_BLOCKS = ["--max-concurrent", "8"], (8 * (1 + 3) + 16) * 5 // 4


@pytest.fixture(scope="module")
def sluice(tmp_path_factory, stubs):
    """The model as "tiny"."""
    instance = Sluice(tmp_path_factory.mktemp("state"), stubs)
    instance.folder = tmp_path_factory.mktemp("model") / "Tiny"
    shutil.copytree(MODEL, instance.folder)
    (instance.folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    instance.start(env=states.ENV)
    try:
        instance.cli("register", "tiny", instance.folder, "--version", "1")
        instance.cli("load", "tiny", "--threads", "1", "--kv-tokens", "4096", *FLAGS)
        instance.wait(lambda: len(instance.ready()) == 1, 60, "the replica is ready")
        yield instance
    finally:
        instance.stop()


def test_blocks_of_windows_stand_in_plans(sluice):
    plan = states.plan_of(sluice, sluice.folder, *FLAGS)
    assert (int(plan["n_window_blocks"]), plan["window_tokens"]) == (N_WINDOW_BLOCKS, 16), plan
    # three of four layers have a window
    per_layer = int(plan["kv_token_bytes"])
    assert int(plan["window_bytes"]) == 3 * per_layer * BLOCK * N_WINDOW_BLOCKS, plan
    assert int(plan["devices"][0]["kv_bytes"]) == per_layer * 4096 + int(plan["window_bytes"]), plan
    text = sluice.cli("inspect", sluice.folder, "--kv-tokens", "4096", *FLAGS).stdout
    assert names(text, N_WINDOW_BLOCKS), text
    (replica,) = sluice.ready()
    assert sum(int(m["kv_bytes"]) for m in replica["memory"]) == int(plan["devices"][0]["kv_bytes"]), replica


def test_prefix_hits_and_choices_change_nothing(sluice):
    first, sampling = states.text_of(1, 100), {"temperature": 0.9, "seed": 12}
    alone, n_cached = states.complete(sluice, first, salt="alone", n=4, **sampling)
    assert n_cached == 0 and len({tuple(ids) for ids in alone}) > 1
    assert states.complete(sluice, first, salt="chat", n=4, **sampling) == (alone, 0)
    assert states.complete(sluice, first, salt="chat", n=4, **sampling) == (alone, 3 * BLOCK)
    assert states.complete(sluice, first, salt="chat", n=1, **sampling) == (alone[:1], 3 * BLOCK)


def test_answers_go_on_after_the_worker_was_killed(sluice):
    states.test_answers_go_on_after_the_worker_was_killed(sluice)


def test_park_and_wake_keep_the_tokens(sluice):
    text = states.text_of(5, 80)
    alone, _ = states.complete(sluice, text, salt="before")
    sluice.cli("park", "tiny")
    sluice.wait(lambda: not sluice.ready(), 30, "the version is parked")
    sluice.cli("wake", "tiny")
    sluice.wait(lambda: len(sluice.ready()) == 1, 30, "the version serves again")
    assert states.complete(sluice, text, salt="before") == (alone, 0)
    assert states.complete(sluice, text, salt="before") == (alone, 2 * BLOCK)
