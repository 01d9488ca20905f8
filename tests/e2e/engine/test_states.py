"""A model with recurrent layers through all programs: its state slots are planned, shown and counted. Prefix hits reach to
snapshots alone. Choices, drafts, a killed worker, a park and a wake change no token. The model is tests/golden/tiny/qwen35
with a tokenizer of the 256 bytes."""
import json
import os
import random
import shutil
import signal

import grpc
import pytest

from conftest import ROOT, Sluice, bad_field, free_port, names, patience, steady, until
from invariants import worker_processes
from test_folder import tokenizer
from test_metrics import Scrape
from test_resume import Stream

MODEL = ROOT / "tests/golden/tiny/qwen35"
SLOTS, RUNNING = 10, 4  # all slots, and those that sequences may take
BLOCK = 32
N_TOKENS = 200  # tokens of a long answer
BUDGET = 1 << 30
ENV = {"SLUICE_RESTART_BACKOFF_INITIAL": "100ms", "SLUICE_KILL_GRACE": "500ms", "SLUICE_MEMORY_BUDGET": str(BUDGET)}


def make_folder(path, model=MODEL):
    shutil.copytree(model, path)
    (path / "tokenizer.json").write_text(json.dumps(tokenizer()))
    return path


def plan_of(sluice, folder, *flags):
    return json.loads(sluice.cli("inspect", folder, "--json", "--kv-tokens", "4096", *map(str, flags)).stdout)["plan"]


@pytest.fixture(scope="module")
def sluice(tmp_path_factory, stubs):
    """The model as "tiny". Six of its ten slots are for snapshots, so four sequences run at once."""
    instance = Sluice(tmp_path_factory.mktemp("state"), stubs)
    instance.folder = make_folder(tmp_path_factory.mktemp("model") / "Tiny")
    instance.metrics_port, instance.manager_metrics_port = free_port(), free_port()
    instance.start("--metrics", f"127.0.0.1:{instance.metrics_port}", "--manager-metrics",
                   f"127.0.0.1:{instance.manager_metrics_port}", env=ENV)
    try:
        instance.slot_bytes = int(plan_of(instance, instance.folder, "--state-slots", 1)["state_slot_bytes"])
        instance.flags = ["--threads", "1", "--kv-tokens", "4096", "--state-slots", str(SLOTS), "--snapshot-bytes",
                          str((SLOTS - RUNNING) * instance.slot_bytes)]
        instance.cli("register", "tiny", instance.folder, "--version", "1")
        instance.cli("load", "tiny", *instance.flags)
        instance.wait(lambda: len(instance.ready()) == 1, 60, "the replica is ready")
        yield instance
    finally:
        instance.stop()


def text_of(seed, n):
    """n tokens: the tokenizer has a token for each byte."""
    return "".join(random.Random(seed).choices("abcdefghijklmnop ", k=n))


def complete(sluice, text, salt="", n_tokens=24, **kwargs):
    """(ids of each choice, tokens of the prompt that the cache had). A salt of its own: the cache has nothing."""
    request = sluice.request("tiny", text, max_tokens=n_tokens, ignore_eos=True, cache_salt=salt, **kwargs)
    answer = sluice.inference.Complete(request, timeout=patience(60))
    return [list(c.ids) for c in answer.choices], answer.usage.n_cached_tokens


def metric(sluice, name):
    return Scrape(sluice.manager_metrics_port).sum(f"sluice_worker_{name}", model="tiny")


def server_metric(sluice, name, **labels):
    return Scrape(sluice.metrics_port).sum(f"sluice_{name}", model="tiny", **labels)


def settled(sluice, name):
    """The value, once two reports of the worker show the same."""
    return steady(lambda: metric(sluice, name), 1.2, 60)


def test_slots_stand_in_plans_and_lists(sluice):
    plan = plan_of(sluice, sluice.folder, *sluice.flags[4:])
    device = plan["devices"][0]
    assert (plan["n_state_slots"], plan["n_running_states"]) == (SLOTS, RUNNING), plan
    assert int(device["state_bytes"]) == SLOTS * sluice.slot_bytes > 0, plan
    facts = json.loads(sluice.cli("inspect", sluice.folder, "--json").stdout)
    recurrent = [kind for kind in facts["layers"] if kind["mixer"] == "gated delta net"]
    per_layer = sum(int(kind["state_bytes"]) * len(kind["layers"]) for kind in recurrent)
    assert recurrent and per_layer <= sluice.slot_bytes < per_layer + 64 * 16, (per_layer, sluice.slot_bytes)
    text = sluice.cli("inspect", sluice.folder, "--kv-tokens", "4096", *sluice.flags[4:]).stdout
    assert names(text, SLOTS, RUNNING), text
    (replica,) = sluice.ready()
    assert replica["n_state_slots"] == SLOTS, replica
    assert "STATES" in sluice.cli("ps").stdout and f"/{SLOTS}" in sluice.cli("ps").stdout
    (memory,) = replica["memory"][:1]
    assert sum(int(m["state_bytes"]) for m in replica["memory"]) >= SLOTS * sluice.slot_bytes - len(replica["memory"]), memory
    assert metric(sluice, "state_slots") == SLOTS


def test_without_a_number_every_sequence_gets_a_slot(sluice):
    plan = plan_of(sluice, sluice.folder, "--max-concurrent", 8)
    assert (plan["n_state_slots"], plan["n_running_states"]) == (10, 8), plan


def test_a_prefix_hit_reaches_to_a_snapshot(sluice):
    """Snapshots stand at the end of a prompt, and at the end of a prefix once two prompts have shared the prefix."""
    first = text_of(1, 100)
    prompts = {"same": first, "shared": first[:70] + text_of(2, 30), "shared again": first[:70] + text_of(3, 30)}
    alone = {name: complete(sluice, text, salt=f"alone {name}") for name, text in prompts.items()}
    assert [n for _, n in alone.values()] == [0, 0, 0]
    before = settled(sluice, "state_snapshot_hits_total")
    assert complete(sluice, first, salt="chat") == (alone["same"][0], 0)
    assert complete(sluice, first, salt="chat") == (alone["same"][0], 3 * BLOCK)  # its last token is computed always
    # The blocks of the prefix are known, but no snapshot lies within them.
    assert complete(sluice, prompts["shared"], salt="chat") == (alone["shared"][0], 0)
    assert complete(sluice, prompts["shared again"], salt="chat") == (alone["shared again"][0], 2 * BLOCK)
    assert settled(sluice, "state_snapshot_hits_total") == before + 2
    assert metric(sluice, "state_snapshot_bytes") == metric(sluice, "state_snapshots") * sluice.slot_bytes > 0


def test_snapshots_give_way_to_newer_ones(sluice):
    before = settled(sluice, "state_snapshot_evictions_total")
    for i in range(2 * SLOTS):
        complete(sluice, text_of(100 + i, 70), n_tokens=2)
    assert settled(sluice, "state_snapshot_evictions_total") >= before + SLOTS
    assert SLOTS >= metric(sluice, "state_snapshots") >= SLOTS - RUNNING and metric(sluice, "state_slots_used") == 0
    # The server, the lists and the board's metrics have the same figures.
    n, evicted = metric(sluice, "state_snapshots"), metric(sluice, "state_snapshot_evictions_total")
    sluice.wait(lambda: server_metric(sluice, "replica_state_snapshots") == n, 10, "the server has the load")
    assert server_metric(sluice, "replica_state_slots", state="used") == 0
    assert server_metric(sluice, "replica_state_slots", state="free") == SLOTS
    assert server_metric(sluice, "state_snapshot_evictions_total") == evicted
    assert server_metric(sluice, "state_snapshot_hits_total") == metric(sluice, "state_snapshot_hits_total")
    (replica,) = sluice.ready()
    assert (replica["n_snapshots"], int(replica["n_snapshot_evictions"])) == (n, evicted)
    for command in (["ps"], ["top", "--once"]):
        assert f"{n:.0f} ({evicted:.0f} evicted)" in sluice.cli(*command).stdout


def test_caches_of_windows_are_counted(sluice, tmp_path):
    """Three of four layers have a window of 16 tokens, and blocks of their own."""
    folder, flags = make_folder(tmp_path / "Windows", ROOT / "tests/golden/tiny/exaone4"), ["--max-concurrent", "4"]
    n = plan_of(sluice, folder, *flags)["n_window_blocks"] * BLOCK
    sluice.cli("register", "windows", folder, "--version", "1")
    sluice.cli("load", "windows", "--threads", "1", "--kv-tokens", "4096", *flags)
    request = sluice.request("windows", text_of(9, 100), max_tokens=24, ignore_eos=True)
    sluice.wait(lambda: len(sluice.ready()) == 2, 60, "both replicas are ready")
    sluice.inference.Complete(request, timeout=patience(60))
    ports = {"worker": sluice.manager_metrics_port, "replica": sluice.metrics_port}

    def tokens(of, name, **labels):
        return Scrape(ports[of]).sum(f"sluice_{of}_{name}", model="windows", **labels)
    for of in ports:
        sluice.wait(lambda of=of: tokens(of, "window_kv_tokens", state="cached") > 0, 10, "the end of the prompt is cached")
        assert tokens(of, "window_kv_tokens") == n and tokens(of, "kv_tokens") == 4096
        assert tokens(of, "window_kv_tokens", state="used") == 0
        assert not Scrape(ports[of]).samples(f"sluice_{of}_state_slots", model="windows")
    assert not Scrape(sluice.metrics_port).samples("sluice_replica_window_kv_tokens", model="tiny")
    sluice.cli("unload", "windows")
    sluice.wait(lambda: len(sluice.ready()) == 1, 60, "the model is gone")


def test_choices_share_the_state_of_the_prompt(sluice):
    text, sampling = text_of(4, 90), {"temperature": 0.9, "seed": 12}
    alone, _ = complete(sluice, text, salt="one", n=4, **sampling)
    assert len({tuple(ids) for ids in alone}) > 1
    assert complete(sluice, text, salt="two", n=4, **sampling)[0] == alone
    assert complete(sluice, text, salt="two", n=4, **sampling) == (alone, 2 * BLOCK)
    assert complete(sluice, text, salt="two", n=1, **sampling)[0] == alone[:1]


def test_more_choices_than_slots_are_refused(sluice):
    with pytest.raises(grpc.RpcError) as e:
        complete(sluice, "a", n=RUNNING + 1, temperature=1.0)
    assert (e.value.code(), bad_field(e.value)) == (grpc.StatusCode.INVALID_ARGUMENT, "sampling.n")
    assert names(e.value.details(), RUNNING + 1, RUNNING, sluice.slot_bytes, "state_slots"), e.value.details()


def test_drafts_change_nothing(sluice):
    speculate = sluice.stubs.inference.Speculate
    text = "the cat sat on the mat. " * 4
    alone, _ = complete(sluice, text, salt="no", n_tokens=100, speculate=speculate(drafter="DRAFTER_NONE"))
    for n in (2, 16):
        drafted = speculate(drafter="DRAFTER_NGRAM", max_draft_tokens=n)
        assert complete(sluice, text, salt=f"drafts {n}", n_tokens=100, speculate=drafted)[0] == alone


def kinds(sluice):
    """name -> request of an answer that is long for a tiny model."""
    def make(i, **kwargs):
        return sluice.request("tiny", text_of(i, 40), max_tokens=N_TOKENS, ignore_eos=True, **kwargs)
    return {"greedy": make(21), "greedy, other": make(22), "sampled": make(23, temperature=0.8, seed=5),
            "n=4": make(24, temperature=1.0, seed=9, n=4)}


def stop_midway(sluice):
    """Starts a stream of each kind and stops the worker before all have ended. Returns (pid, streams)."""
    for _ in range(50):  # a tiny model is fast: all streams may end before the signal
        (_, _, pid, _), = worker_processes(sluice)
        streams = {name: Stream(sluice, r) for name, r in kinds(sluice).items()}
        until(lambda: sum(s.n() for s in streams.values()) > 20, 60, "streams are under way", 0.0005)
        os.kill(pid, signal.SIGSTOP)
        steady(lambda: [(s.n(), s.is_alive()) for s in streams.values()], 0.3)
        if any(s.is_alive() and 0 < s.n() < N_TOKENS * len(s.ids) for s in streams.values()):
            return pid, streams
        os.kill(pid, signal.SIGCONT)
        for s in streams.values():
            s.join(patience(60))
    raise AssertionError("the streams end too soon")


def test_answers_go_on_after_the_worker_was_killed(sluice):
    alone = {name: Stream(sluice, r) for name, r in kinds(sluice).items()}
    for s in alone.values():
        s.join(patience(60))
        assert s.error is None and s.n() == N_TOKENS * len(s.ids), s.error
    moved = []
    for _ in range(3):  # on a busy machine a stream's last tokens may be on their way when the worker stops
        pid, streams = stop_midway(sluice)
        os.kill(pid, signal.SIGKILL)
        for name, s in streams.items():
            s.join(patience(90))
            assert not s.is_alive() and s.error is None and not s.wrong, (name, s.error, s.wrong, sluice.tail())
            assert s.outcome() == alone[name].outcome(), name
        moved = [name for name, s in streams.items() if s.receipt().n_resumes]
        sluice.wait(lambda: len(sluice.ready()) == 1, 30, "the replica is back")
        if moved:
            break
    assert moved, "no stream went on after the kill"


def test_park_and_wake_keep_the_tokens(sluice):
    text = text_of(5, 80)
    alone, _ = complete(sluice, text, salt="before")
    sluice.cli("park", "tiny")
    sluice.wait(lambda: not sluice.ready(), 30, "the version is parked")
    sluice.cli("wake", "tiny")
    sluice.wait(lambda: len(sluice.ready()) == 1, 30, "the version serves again")
    (replica,) = sluice.ready()
    assert replica["n_state_slots"] == SLOTS
    assert complete(sluice, text, salt="before") == (alone, 0)
    assert complete(sluice, text, salt="before") == (alone, 2 * BLOCK)


def test_snapshots_stand_at_the_distance_that_was_set(sluice):
    """With a snapshot behind every block, a prefix of two blocks is found at once."""
    first = text_of(6, 100)
    other = first[:70] + text_of(7, 30)
    alone, _ = complete(sluice, other, salt="no one else")
    sluice.cli("unload", "tiny", "--grace", "0s")
    sluice.cli("load", "tiny", *sluice.flags, "--snapshot-blocks", "1")
    sluice.wait(lambda: len(sluice.ready()) == 1, 30, "the replica is ready")
    complete(sluice, first, salt="near")
    assert complete(sluice, other, salt="near") == (alone, 2 * BLOCK)


def test_slots_beyond_the_memory_are_refused(sluice):
    n = 2 * BUDGET // sluice.slot_bytes
    plan = plan_of(sluice, sluice.folder, "--state-slots", n)
    assert int(plan["devices"][0]["state_bytes"]) == n * sluice.slot_bytes
    sluice.cli("register", "tiny", sluice.folder, "--version", "2")
    refused = sluice.cli("load", "tiny", "--version", "2", "--kv-tokens", "4096", "--state-slots", str(n), check=False)
    assert refused.returncode and names(refused.stderr, "--state-slots", "states"), refused.stderr
