"""A draft model with recurrent layers through all programs, for a target with attention and for itself. Answers are the
same with and without drafts, also after a kill of the worker. Plans and refusals count its states."""
import json
import os
import signal

import pytest

from conftest import ROOT, Sluice, names, patience, until
from invariants import worker_processes
from test_resume import Stream
from test_states import make_folder, text_of

ENV = {"SLUICE_DRAFT_ALWAYS": "true", "SLUICE_RESTART_BACKOFF_INITIAL": "100ms", "SLUICE_KILL_GRACE": "500ms",
       "SLUICE_MEMORY_BUDGET": str(1 << 30)}
FLAGS = ["--threads", "1", "--kv-tokens", "4096", "--max-concurrent", "8"]
SLOTS = 8 + 16  # a state for each sequence, and 16 for drafted tokens and snapshots
KINDS = {"greedy": {}, "sampled": {"temperature": 0.9, "seed": 3}, "n=3": {"temperature": 1.0, "seed": 4, "n": 3},
         "penalty": {"penalty": 1.3}}


@pytest.fixture(scope="module")
def sluice(tmp_path_factory, stubs):
    """twin: a delta net that drafts for itself. wild: a model with attention; the same delta net drafts for it."""
    instance = Sluice(tmp_path_factory.mktemp("state"), stubs)
    folder = tmp_path_factory.mktemp("model")
    instance.draft = make_folder(folder / "Draft")
    instance.wild = make_folder(folder / "Wild", ROOT / "tests/golden/tiny/qwen3")
    instance.start(env=ENV)
    try:
        for name, path in (("twin", instance.draft), ("wild", instance.wild)):
            instance.cli("register", name, path, "--version", "1", "--draft", instance.draft)
            instance.cli("load", name, *FLAGS)
        instance.wait(lambda: len(instance.ready()) == 2, 60, "the replicas are ready")
        yield instance
    finally:
        instance.stop()


def ask(sluice, model, text, drafter, n_tokens=60, penalty=1.0, **kwargs):
    speculate = sluice.stubs.inference.Speculate(drafter=drafter)
    if drafter != "DRAFTER_NONE":
        speculate.max_draft_tokens = 6
    request = sluice.request(model, text, max_tokens=n_tokens, ignore_eos=True, speculate=speculate, **kwargs)
    request.sampling.repetition_penalty = penalty
    answer = sluice.inference.Complete(request, timeout=patience(60))
    return [list(c.ids) for c in answer.choices], answer.receipt


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", ("twin", "wild"))
def test_the_same_answer_with_and_without(sluice, model, kind):
    n_drafted = n_accepted = 0
    for i in range(3):  # the last prompt is the first: a prefix hit
        text = text_of(i % 2, 90)
        alone, receipt = ask(sluice, model, text, "DRAFTER_NONE", cache_salt="alone", **KINDS[kind])
        assert receipt.n_drafted_tokens == 0
        drafted, receipt = ask(sluice, model, text, "DRAFTER_MODEL", cache_salt=kind, **KINDS[kind])
        assert drafted == alone, text
        n_drafted += receipt.n_drafted_tokens
        n_accepted += receipt.n_accepted_tokens
    assert n_drafted > 30, n_drafted
    if model == "wild":
        assert n_accepted < n_drafted / 2, (n_accepted, n_drafted)
    elif kind != "penalty":  # a right draft after each step: no state was lost or mixed up
        assert n_accepted == n_drafted
    else:
        assert n_accepted < n_drafted, n_drafted


def test_answers_go_on_after_the_worker_was_killed(sluice):
    def stream():
        return Stream(sluice, sluice.request("twin", text_of(5, 40), max_tokens=190, ignore_eos=True))
    alone = stream()
    alone.join(patience(60))
    assert alone.error is None and alone.n() == 190, alone.error
    for _ in range(20):  # a tiny model is fast: the stream may end before the signal
        pids = [pid for (_, _, pid, _) in worker_processes(sluice)]
        again = stream()
        until(lambda: again.n() > 5, 60, "the stream is under way", 0.0005)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        again.join(patience(90))
        assert again.error is None and not again.wrong, (again.error, sluice.tail())
        assert again.outcome() == alone.outcome()
        sluice.wait(lambda: len(sluice.ready()) == 2, 60, "the replicas are back")
        if again.receipt().n_resumes:
            return
    raise AssertionError("no stream went on after a kill")


def test_its_states_stand_in_plans_and_refusals(sluice):
    def plan(draft, n=8):
        m, t = sluice.stubs.manager, sluice.stubs.types
        return sluice.manager_stub().LoadModelVersion(m.LoadModelVersionRequest(
            model="planned", version="1", validate_only=True,
            config=t.ModelConfig(kv_tokens=4096, max_concurrent_requests=n, draft_model=draft)), timeout=patience(30)).plan
    sluice.cli("register", "planned", sluice.wild, "--version", "1")
    facts = json.loads(sluice.cli("inspect", sluice.draft, "--json", "--kv-tokens", "4096", "--state-slots", "1").stdout)
    slot = int(facts["plan"]["state_slot_bytes"])
    without, planned = plan(""), plan(str(sluice.draft))
    assert without.devices[0].state_bytes == 0 and planned.devices[0].state_bytes == SLOTS * slot > 0
    assert any(names(note, SLOTS, "draft") for note in planned.notes), planned.notes
    assert plan(str(sluice.draft), 1).devices[0].state_bytes == 17 * slot
    (memory,) = [r["memory"] for r in sluice.ready() if r["model"] == "wild"]
    assert sum(int(m["state_bytes"]) for m in memory) == SLOTS * slot, memory
