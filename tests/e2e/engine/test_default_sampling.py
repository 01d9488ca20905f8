"""The default sampling of a model's files through the programs. generation_config.json chooses the sampling of a request
that leaves the fields out. Requests and the load override the file."""
import concurrent.futures
import json
import os
import signal
import urllib.request

import grpc
import pytest

from conftest import BIN, Sluice, alive, names, patience, until
from generate_stream import Stream
from test_folder import folder  # noqa: F401

FILE = {"do_sample": True, "temperature": 1.5, "top_k": 40, "top_p": 0.75, "repetition_penalty": 1.25, "eos_token_id": 256}
LONG = 150
SAME = {"temperature": 1.5, "top_k": 40, "top_p": 0.75, "repetition_penalty": 1.25}


@pytest.fixture
def served(folder, tmp_path, stubs):  # noqa: F811
    (folder / "generation_config.json").write_text(json.dumps(FILE))
    (tmp_path / "state").mkdir()
    sluice = Sluice(tmp_path / "state", stubs)
    sluice.start()
    try:
        sluice.cli("register", "tiny", folder, "--version", "1")
        yield sluice
    finally:
        sluice.stop()


def load(sluice, *flags):
    sluice.cli("load", "tiny", "--kv-tokens", "2048", *flags)
    sluice.wait(lambda: len(sluice.ready()) == 1, 30, "ready")
    sluice.wait(lambda: info(sluice), 30, "the server knows the model")


def info(sluice):
    t = sluice.stubs.inference
    models = sluice.inference.ListModels(t.ListModelsRequest()).models
    return models and models[0].versions[0].info


def answer(sluice, seed=7, max_tokens=24, **sampling):
    t = sluice.stubs.inference
    request = t.GenerateRequest(model="tiny", text="The first answer", sampling=t.Sampling(seed=seed, **sampling),
                                stopping=t.Stopping(max_tokens=max_tokens, ignore_eos=True))
    return sluice.generate(request)[1]


def test_a_request_without_sampling_takes_the_files(served):
    load(served)
    defaults = info(served).default_sampling
    assert {f.name: pytest.approx(v) for f, v in defaults.ListFields()} == {k: pytest.approx(v) for k, v in SAME.items()}
    drawn, greedy = answer(served), answer(served, temperature=0)
    assert drawn == answer(served, **SAME)
    assert drawn != greedy and drawn != answer(served, seed=8)
    # each field by itself
    assert answer(served, top_k=3) == answer(served, **SAME | {"top_k": 3})
    assert answer(served, temperature=0.5, do_sample=True) == answer(served, **SAME | {"temperature": 0.5})
    assert answer(served, do_sample=True) == drawn
    assert answer(served, do_sample=False) == greedy == answer(served, temperature=0, repetition_penalty=1.25)
    # a request without the message
    t = served.stubs.inference
    bare = t.GenerateRequest(model="tiny", text="The first answer", stopping=t.Stopping(max_tokens=24, ignore_eos=True))
    seed = next(r.prompt_info.seed for r in served.inference.Generate(bare) if r.WhichOneof("event") == "prompt_info")
    assert answer(served, seed=seed) == answer(served, seed=seed, **SAME)
    shown = [line for line in served.cli("show", "tiny").stdout.splitlines() if line.startswith("sampling ")]
    assert len(shown) == 1 and names(shown[0], "temperature", "1.5", "top_k", "40", "top_p", "0.75")


def resumed(sluice, seed):
    """The answer to a request whose replica dies while the request waits for credit, and the number of resumes."""
    t = sluice.stubs.inference
    stream = Stream(sluice)
    stream.start("r", t.GenerateRequest(model="tiny", text="The first answer", credit_tokens=4, sampling=t.Sampling(seed=seed),
                                        stopping=t.Stopping(max_tokens=LONG, ignore_eos=True)))
    stream.wait_tokens("r", 4)
    pid = sluice.ready()[0]["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid), 10, "the worker is dead")
    stream.credit("r", LONG)
    got = stream.wait_finished("r")
    stream.end()
    sluice.wait(lambda: len(sluice.ready()) == 1, 30, "ready again")
    return got.ids[0], got.finished[0].receipt.n_resumes


def test_a_request_that_loses_its_replica_keeps_the_files_sampling(served):
    """A small model may finish the request before the credit's end reaches the engine. Then the next seed is tried."""
    load(served)
    for seed in range(1, 6):
        want = answer(served, seed=seed, max_tokens=LONG)
        got, n_resumes = resumed(served, seed)
        assert got == want
        if n_resumes:
            return
    raise AssertionError("no request was resumed")


def test_a_load_may_ignore_the_files(served):
    load(served, "--default-sampling", "none")
    assert not info(served).HasField("default_sampling")
    assert answer(served) == answer(served, temperature=0) == answer(served, seed=8)


@pytest.fixture
def gated(folder, tmp_path, stubs):  # noqa: F811
    """As `served`, but a worker starts to load only when the file `gate` is gone. Returns the instance and the file."""
    gate, worker = tmp_path / "gate", tmp_path / "worker"
    worker.write_text(f'#!/bin/sh\nif [ "$1" = serve ]; then while [ -e {gate} ]; do sleep 0.1; done; fi\n'
                      f'exec {BIN}/sluice-worker "$@"\n')
    worker.chmod(0o755)
    (folder / "generation_config.json").write_text(json.dumps(FILE))
    (tmp_path / "state").mkdir()
    sluice = Sluice(tmp_path / "state", stubs)
    sluice.start_measured(env={"SLUICE_WORKER": str(worker)})
    try:
        sluice.cli("register", "tiny", folder, "--version", "1")
        yield sluice, gate
    finally:
        gate.unlink(missing_ok=True)
        sluice.stop()


def replicas_known(sluice):
    """The number of replicas that the server has in its routes."""
    models = sluice.inference.ListModels(sluice.stubs.inference.ListModelsRequest()).models
    return models[0].versions[0].n_replicas if models else 0


def waiting(sluice):
    with urllib.request.urlopen(f"http://{sluice.metrics_address}/metrics", timeout=patience(5)) as reply:
        lines = reply.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("sluice_requests_waiting_for_replica"))


def during_a_load(sluice, gate, *flags):
    """The default sampling while the version loads, and the answer to a request that arrives then."""
    gate.touch()
    sluice.cli("load", "tiny", "--kv-tokens", "2048", "--no-wait", *flags)
    sluice.wait(lambda: replicas_known(sluice) == 1, 30, "the server knows the replica")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        early = pool.submit(answer, sluice)
        sluice.wait(lambda: waiting(sluice) == 1, 30, "the request waits")
        shown = info(sluice).HasField("default_sampling")
        gate.unlink()
        return shown, early.result()


def test_a_request_that_arrives_during_a_load_obeys_the_load(gated):
    """A request took the files' values when the load with "none" was not ready yet. After that load was unloaded, a request
    during the next load took no values."""
    sluice, gate = gated
    shown, early = during_a_load(sluice, gate, "--default-sampling", "none")
    assert early == answer(sluice, temperature=0) and not shown
    sluice.cli("unload", "tiny")
    sluice.wait(lambda: replicas_known(sluice) == 0, 30, "the server forgets the replica")
    shown, early = during_a_load(sluice, gate)
    assert early == answer(sluice, **SAME) and shown


def shows_sampling(sluice):
    return any(line.startswith("sampling ") for line in sluice.cli("show", "tiny").stdout.splitlines())


def test_show_tells_what_requests_get(served):
    """`sluice show` named the files' values also for a version that was loaded with "none"."""
    assert shows_sampling(served)
    load(served, "--default-sampling", "none")
    assert not shows_sampling(served)
    served.cli("unload", "tiny")
    assert shows_sampling(served)


def test_tokens_that_the_files_suppress_are_never_drawn(folder, served):  # noqa: F811
    """Gemma 4 drew the ends of images and sounds. A load with "none" draws them, as transformers without the file."""
    load(served)
    drawn = answer(served, temperature=0, repetition_penalty=1)
    suppressed = sorted(set(drawn))[:2]
    served.cli("unload", "tiny")
    served.wait(lambda: not served.ready(), 30, "unloaded")
    (folder / "generation_config.json").write_text(json.dumps({"suppress_tokens": suppressed}))
    served.cli("rm", "tiny", "1")
    served.cli("register", "tiny", folder, "--version", "1")
    load(served)
    assert list(info(served).default_sampling.suppress_tokens) == suppressed
    without = answer(served)
    assert not set(without) & set(suppressed)
    (line,) = [line for line in served.cli("show", "tiny").stdout.splitlines() if line.startswith("sampling ")]
    assert names(line, "suppress_tokens", *suppressed), line
    with pytest.raises(grpc.RpcError) as e:
        answer(served, allowed_token_ids=suppressed)
    assert e.value.code() == grpc.StatusCode.INVALID_ARGUMENT and names(e.value.details(), "allowed_token_ids", "suppress_tokens")
    served.cli("unload", "tiny")
    served.wait(lambda: not served.ready(), 30, "unloaded")
    load(served, "--default-sampling", "none")
    assert answer(served) == drawn


def test_a_bad_value_is_noted_and_the_model_serves(folder, served):  # noqa: F811
    """A value outside its range refused the registration of the model, and no setting of a load could help."""
    (folder / "generation_config.json").write_text(json.dumps(FILE | {"top_p": 1e-50, "repetition_penalty": "1.25"}))
    notes = json.loads(served.cli("inspect", folder, "--json").stdout)["notes"]
    for key in "top_p", "repetition_penalty":
        assert len([n for n in notes if names(n, f"generation_config.{key}")]) == 1, notes
    served.cli("rm", "tiny", "1")
    served.cli("register", "tiny", folder, "--version", "1")
    load(served)
    given = {"temperature": 1.5, "top_k": 40}
    assert {f.name: v for f, v in info(served).default_sampling.ListFields()} == given
    assert answer(served) == answer(served, **given)
