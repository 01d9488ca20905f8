"""A model that is served on a GPU. The answers do not depend on the other requests. Memory is planned, allocated and
freed, and some layers stay on the CPU. The GPU is emulated (tests/simt); everything else is real."""
import itertools
import json
import os
import signal
import subprocess

import pytest

from conftest import BIN, ROOT, names, patience, until
from generate_stream import Stream, alone, same
from invariants import worker_status
from log_events import DEVICE_FAILED, ENGINE_FAILED, logged
from test_devices import Card
from test_metrics import total, values, worker_scrape

SIMT = BIN.parent / "simt/libsluice_cuda_simt.so"
ENV = {"SLUICE_CUDA_MODULE": str(SIMT), "SIMT_DEVICE_BYTES": str(1 << 30)}
TINY = ROOT / "tests/golden/tiny"
LONG = "abc defg hi " * 12

pytestmark = [
    pytest.mark.emulated,
    pytest.mark.skipif(not SIMT.exists(), reason="the emulated GPU needs the CUDA toolkit's headers"),
]


def call(program, *args):
    return subprocess.run([BIN / program, *args], capture_output=True, text=True, timeout=patience(60))


def version(sluice):
    """The data plane's figures of the model's version: n_running, n_queued, free_kv_tokens."""
    (found,) = sluice.inference.GetModel(sluice.stubs.inference.GetModelRequest(model="tiny")).model.versions
    return found


def rest(sluice):
    sluice.wait(lambda: version(sluice).n_running + version(sluice).n_queued == 0, 20, "rest")


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory, stubs):
    from conftest import Sluice
    sluice = Sluice(tmp_path_factory.mktemp("state"), stubs)
    sluice.start(env=ENV)
    try:
        sluice.cli("register", "tiny", TINY / "q4_1.gguf", "--version", "1")
        sluice.cli("load", "tiny", "--devices", "cuda:0", "--gpu-memory", "64M", "--max-concurrent", "8")
        sluice.wait(lambda: sluice.run("tiny", "a", "-n", "1", check=False).returncode == 0, 30, "the model answers")
        yield sluice
    finally:
        sluice.stop()


def requests(served, n_tokens=24):
    prompts = ["a", "bc", LONG, "def", LONG[:40], "gh i"]
    return [served.request("tiny", p, max_tokens=n_tokens, ignore_eos=True, seed=i, temperature=0.9 * (i % 2)) for i, p in enumerate(prompts)]


def test_receipt_names_the_gpu(on_gpu):
    _, ids, finished = on_gpu.generate(on_gpu.request("tiny", "a", max_tokens=4, ignore_eos=True))
    numerics = finished.receipt.numerics_id
    assert len(ids) == 4 and numerics.startswith("cuda/cuda-v1-wgmma-fp8wgmma-attn") and "/kv-BF16/" in numerics, numerics
    (replica,) = on_gpu.ready()
    assert replica["device_group"] == "cuda-0"


def test_answers_do_not_depend_on_what_runs_beside(on_gpu):
    """The steps mix prompt chunks and generated tokens. Captured steps have several sizes, and a prefix comes from
    the prefix cache."""
    references = [alone(on_gpu, r) for r in requests(on_gpu)]
    stream = Stream(on_gpu)
    for round_ in range(3):
        for i, r in enumerate(requests(on_gpu)):
            r.request_id = f"{round_}-{i}"
            stream.start(r.request_id, r)
        for i, reference in enumerate(references):
            stream.wait_finished(f"{round_}-{i}")
            same(stream.answers[f"{round_}-{i}"], reference)
    stream.end()
    rest(on_gpu)


def test_prefix_hits_and_speculation_change_nothing(on_gpu):
    request = on_gpu.request("tiny", "xyz " * 30, max_tokens=20, ignore_eos=True)
    first, second = on_gpu.generate(request), on_gpu.generate(request)
    assert second[2].usage.n_cached_tokens > 0 and first[2].usage.n_cached_tokens == 0
    assert first[:2] == second[:2]
    request.speculate.drafter = on_gpu.stubs.inference.DRAFTER_NGRAM
    request.speculate.max_draft_tokens = 4
    drafted = on_gpu.generate(request)
    assert drafted[:2] == first[:2]


def test_choices_logprobs_and_stops(on_gpu):
    inference = on_gpu.stubs.inference
    request = on_gpu.request("tiny", "a", max_tokens=12, ignore_eos=True, n=3, temperature=1.0, seed=5)
    request.output.logprobs = 3
    ids, logprobs = {}, {}
    for response in on_gpu.inference.Generate(request):
        if response.WhichOneof("event") == "tokens":
            ids.setdefault(response.tokens.choice, []).extend(response.tokens.ids)
            logprobs.setdefault(response.tokens.choice, []).extend(response.tokens.logprobs)
    assert sorted(ids) == [0, 1, 2] and all(len(i) == 12 for i in ids.values()) and len({tuple(i) for i in ids.values()}) > 1
    for choice, entries in logprobs.items():
        assert [e.id for e in entries] == ids[choice] and all(e.logprob <= 0 for e in entries)
    text = on_gpu.generate(on_gpu.request("tiny", "a", max_tokens=20, ignore_eos=True))[0]
    middle = next((text[i:i + 2] for i in range(4, len(text) - 2) if text.index(text[i:i + 2]) == i), None)
    if middle:
        stopped = on_gpu.generate(on_gpu.request("tiny", "a", max_tokens=20, ignore_eos=True, stop=[middle]))
        assert stopped[0] == text[:text.index(middle)] and stopped[2].reason == inference.FINISH_REASON_STOP_STRING


def test_cancels_leave_nothing(on_gpu):
    def free_tokens():
        return next(worker_status(on_gpu)).load.free_kv_tokens
    rest(on_gpu)
    before = free_tokens()
    stream = Stream(on_gpu)
    for i in range(24):
        stream.start(f"c{i}", on_gpu.request("tiny", LONG + str(i), max_tokens=100, ignore_eos=True))
    stream.wait_tokens("c0", 3)
    for i in range(24):
        stream.cancel(f"c{i}")
    for i in range(24):
        stream.wait(lambda i=i: stream.answers.get(f"c{i}") and (stream.answers[f"c{i}"].finished or stream.answers[f"c{i}"].errors), "the end")
    stream.end()
    rest(on_gpu)
    on_gpu.wait(lambda: free_tokens() == before, 10, f"{before} KV tokens are free again, {free_tokens()} are")


def test_plan_is_what_is_taken_and_comes_back(on_gpu):
    limits = ("--devices", "cuda:0", "--gpu-memory", "64M", "--kv-tokens", "4096")
    on_gpu.cli("register", "second", TINY / "q8_0.gguf", "--version", "1")
    plan = json.loads(on_gpu.cli("load", "second", *limits, "--validate-only", "--json").stdout)["plan"]
    (row,) = plan["devices"]
    planned = sum(int(row.get(k, 0)) for k in ("weight_bytes", "kv_bytes", "workspace_bytes"))
    assert row["device"] == "cuda:0" and 0 < planned <= 64 << 20
    on_gpu.cli("load", "second", *limits)  # next to the first model on the same GPU
    (memory,) = next(r for r in on_gpu.ready() if r["model"] == "second")["memory"]
    held = sum(int(memory[k]) for k in ("weight_bytes", "kv_bytes", "workspace_bytes"))
    assert abs(held - planned) <= 0.02 * planned, (planned, held)
    assert on_gpu.run("second", "a", "-n", "3").returncode == 0 and on_gpu.run("tiny", "a", "-n", "3").returncode == 0
    on_gpu.cli("unload", "second")
    on_gpu.cli("rm", "second", "1")


@pytest.mark.parametrize("draft", [(), ("--draft", TINY / "q8_0.gguf")], ids=["alone", "drafted"])
def test_layers_on_the_cpu(on_gpu, draft):
    on_gpu.cli("register", "split", TINY / "q4_1.gguf", "--version", "1")
    on_gpu.cli("load", "split", "--devices", "cuda:0", "--gpu-layers", "1", "--gpu-memory", "48M", "--max-concurrent", "4",
               "--kv-tokens", "2048", *draft)
    on_gpu.wait(lambda: on_gpu.run("split", "a", "-n", "1", check=False).returncode == 0, 30, "the model answers")
    memory = next(r for r in on_gpu.ready() if r["model"] == "split")["memory"]
    assert [m["device"] for m in memory] == ["cpu", "cuda:0"] and all(int(m["weight_bytes"]) > 0 for m in memory)
    request = on_gpu.request("split", LONG, max_tokens=12, ignore_eos=True)
    reference = alone(on_gpu, request)
    if draft:
        request.speculate.drafter = on_gpu.stubs.inference.DRAFTER_NONE
        same_without = alone(on_gpu, request)
        assert same_without[:2] == reference[:2] and reference[2].receipt.n_drafted_tokens > 0
    stream = Stream(on_gpu)
    for i in range(4):
        request.request_id = f"s{i}"
        stream.start(request.request_id, request)
    for i in range(4):
        stream.wait_finished(f"s{i}")
        same(stream.answers[f"s{i}"], reference)
    stream.end()
    on_gpu.cli("unload", "split")
    on_gpu.cli("rm", "split", "1")


def test_kv_too_small_for_all_preempts_and_changes_nothing(fresh):
    fresh.start(env=ENV)
    fresh.cli("register", "tiny", TINY / "bf16.gguf", "--version", "1")
    fresh.cli("load", "tiny", "--devices", "cuda:0", "--kv-tokens", "256", "--max-concurrent", "6", "--kv-dtype", "fp8")
    fresh.wait(lambda: fresh.run("tiny", "a", "-n", "1", check=False).returncode == 0, 30, "the model answers")
    wanted = [fresh.request("tiny", p, max_tokens=70, ignore_eos=True, seed=i, temperature=0.8 * (i % 2)) for i, p in enumerate("abcdef")]
    references = [alone(fresh, r) for r in wanted]
    stream, rounds = Stream(fresh), itertools.count()

    def one_was_preempted():  # on a busy machine the requests may run in sequence
        k = next(rounds)
        for i, r in enumerate(wanted):
            r.request_id = f"p{k}-{i}"
            stream.start(r.request_id, r)
        for i, reference in enumerate(references):
            stream.wait_finished(f"p{k}-{i}")
            same(stream.answers[f"p{k}-{i}"], reference)
        return any(a.finished[0].receipt.n_preemptions for a in stream.answers.values())
    until(one_was_preempted, 60, "none is preempted")
    stream.end()


def test_steps_are_computed_as_one_where_that_is_asked_for(fresh):
    """--no-deterministic: in a step with prompt and generated rows, all rows count as rows of path P."""
    fresh.start(env=ENV)
    fresh.cli("register", "tiny", TINY / "bf16.gguf", "--version", "1")
    fresh.cli("load", "tiny", "--devices", "cuda:0", "--gpu-memory", "64M", "--max-concurrent", "8", "--no-deterministic")
    fresh.wait(lambda: fresh.run("tiny", "a", "-n", "1", check=False).returncode == 0, 30, "the model answers")
    before = values(worker_scrape(fresh)[0])
    stream = Stream(fresh)

    def mixed_steps():
        return total(values(worker_scrape(fresh)[0]), "sluice_worker_mixed_steps_total")
    n_mixed, n_started = mixed_steps(), 0

    def have_met():  # on a busy machine a short answer ends before the next prompt starts, so a long answer decodes next to the others
        nonlocal n_started
        wanted = [*requests(fresh, 160)[:1], *requests(fresh)]
        ids = [f"m{n_started + i}" for i in range(len(wanted))]
        n_started += len(wanted)
        for request_id, r in zip(ids, wanted):
            r.request_id = request_id
            stream.start(request_id, r)
            if request_id == ids[0]:
                stream.wait_tokens(request_id, 1)
        for request_id in ids:
            stream.wait_finished(request_id)
        return mixed_steps() > n_mixed
    until(have_met, 60, "prompts and generated tokens never shared a step")
    stream.end()
    rest(fresh)
    after = values(worker_scrape(fresh)[0])

    def grew(name, **labels):
        return total(after, name, **labels) - total(before, name, **labels)
    assert all("-mixed/" in a.finished[0].receipt.numerics_id for a in stream.answers.values())
    n_prompt = sum(a.finished[0].usage.n_prompt_tokens for a in stream.answers.values()) - grew("sluice_worker_prefix_hit_tokens_total")
    n_generated = grew("sluice_worker_generated_tokens_total") - n_started
    by_d, by_p = (grew("sluice_worker_path_rows_total", path=path) for path in "dp")
    assert by_d + by_p == n_prompt + n_generated
    assert grew("sluice_worker_mixed_steps_total") > 0 and by_d < n_generated


def refused(result, *values):
    assert result.returncode == 1 and names(result.stderr + result.stdout, *values), (values, result)


def test_prompts_in_16_bit_are_the_same_beside_others_and_after_a_kill(fresh):
    """The default on a GPU. Answers depend neither on neighbours, nor on prefix hits, nor on a resume, which replays
    generated tokens by path D. The numerics id names f16, but not "exact". The CPU refuses f16."""
    fresh.start(env=ENV)
    fresh.cli("register", "tiny", TINY / "q4_1.gguf", "--version", "1")
    refused = fresh.cli("load", "tiny", "--prompt-arithmetic", "f16", "--devices", "cpu:0", check=False)
    assert refused.returncode != 0
    fresh.cli("load", "tiny", "--devices", "cuda:0", "--gpu-memory", "64M", "--max-concurrent", "8")
    fresh.wait(lambda: fresh.run("tiny", "a", "-n", "1", check=False).returncode == 0, 30, "the model answers")
    references = [alone(fresh, r) for r in requests(fresh, 60)]
    stream = Stream(fresh)
    for round_ in range(2):
        for i, r in enumerate(requests(fresh, 60)):
            r.request_id = f"{round_}-{i}"
            stream.start(r.request_id, r)
        if round_ == 1:
            stream.wait_tokens("1-0", 3)
            (replica,) = fresh.ready()
            os.kill(replica["pid"], signal.SIGKILL)
        for i, reference in enumerate(references):
            stream.wait_finished(f"{round_}-{i}")
            same(stream.answers[f"{round_}-{i}"], reference)
    assert all("-p16/" in a.finished[0].receipt.numerics_id for a in stream.answers.values())
    assert any(a.finished[0].usage.n_cached_tokens for a in stream.answers.values())
    stream.end()
    fresh.cli("register", "exact", TINY / "q4_1.gguf", "--version", "1")
    fresh.cli("load", "exact", "--devices", "cuda:0", "--gpu-memory", "64M", "--max-concurrent", "8", "--prompt-arithmetic", "exact")
    _, _, finished = alone(fresh, fresh.request("exact", "a", max_tokens=2, ignore_eos=True))
    assert "-p16" not in finished.receipt.numerics_id, finished.receipt.numerics_id


def test_memory_that_is_promised_is_not_promised_again(fresh, tmp_path, monkeypatch):
    """Emulated processes do not see each other's memory. Real processes do not see memory before it is allocated. The
    manager reported to both loads that the model fits."""
    card = Card(tmp_path, monkeypatch)
    card.always(f"SIMT_DEVICE_BYTES={96 << 20}")
    fresh.start(env=card.env)
    sizes = ("--devices", "cuda:0", "--gpu-memory", "80M", "--gpu-layers", "99", "--max-concurrent", "8", "--kv-tokens", "65536", "--kv-dtype", "f32")
    for name in ("a", "b"):
        fresh.cli("register", name, TINY / "q8_0.gguf", "--version", "1")
    fresh.cli("load", "a", *sizes)
    (first,) = fresh.ready()
    taken = first["gpu_bytes"]
    assert taken > 48 << 20, first
    plan = fresh.cli("load", "b", *sizes, "--validate-only", "--json", check=False)
    (row,) = json.loads(plan.stdout)["plan"]["devices"]
    assert plan.returncode == 1 and '"fits":false' in plan.stdout, plan
    assert row["promised_bytes"] >= taken and 0 < row["missing_bytes"] <= taken and row["free_bytes"] < taken, (row, taken)
    refused(fresh.cli("load", "b", *sizes, check=False), "DEVICE_MEMORY", "cuda:0")
    assert [r["id"] for r in fresh.ready()] == [first["id"]]
    scaled = fresh.cli("scale", "a", "2", "--validate-only", "--json", check=False)
    assert scaled.returncode == 1 and json.loads(scaled.stdout)["plan"]["fits"] is False, scaled
    fresh.cli("unload", "a")
    fresh.cli("unload", "b")
    fresh.cli("load", "b", *sizes)


def test_budget_that_is_too_small_does_not_fit_in_the_plan_either(on_gpu):
    """The plan checked the free memory only. The load checks the budget too."""
    on_gpu.cli("register", "small", TINY / "q8_0.gguf", "--version", "1")
    result = on_gpu.cli("load", "small", "--devices", "cuda:0", "--gpu-layers", "99", "--kv-tokens", "65536", "--gpu-memory", "8M",
                        "--validate-only", "--json", check=False)
    plan = json.loads(result.stdout)["plan"]
    assert result.returncode == 1 and plan["fits"] is False and plan["devices"][0]["missing_bytes"] > 0, result
    on_gpu.cli("rm", "small", "1")


def test_worker_says_that_a_plan_does_not_fit(monkeypatch):
    for name, value in ENV.items():
        monkeypatch.setenv(name, value)
    words = ("plan", TINY / "q8_0.gguf", "--devices", "cuda:0", "--gpu-layers", "99", "--kv-tokens", "4096", "--text")
    fits = call("sluice-worker", *words)
    assert fits.returncode == 0 and "fits: true" in fits.stdout
    not_so = call("sluice-worker", *words, "--gpu-promised", str(1 << 30), "--gpu-held", "1000")
    assert not_so.returncode == 1 and "fits: false" in not_so.stdout and "promised_bytes: " in not_so.stdout, not_so


def test_bench_engine_takes_a_gpu(monkeypatch):
    for name, value in ENV.items():
        monkeypatch.setenv(name, value)
    result = call("sluice", "bench", "engine", TINY / "q8_0.gguf", "--devices", "cuda:0", "--gpu-layers", "1", "--gpu-memory", "64M",
                  "--prompt", "4", "--generate", "2", "--repetitions", "1", "--json")
    assert result.returncode == 0, result
    report = json.loads(result.stdout)
    assert "cuda" in json.dumps(report["rows"] and report), report
    wrong = call("sluice", "bench", "engine", TINY / "q8_0.gguf", "--devices", "cuda:0,cuda:1", "--prompt", "4", "--generate", "0")
    refused(wrong, "--devices", '"cuda:0,cuda:1"')


@pytest.mark.parametrize("typed, hint", [("cuda0", "cuda:0"), ("gpu:0", "cuda:0"), ("0", "cuda:0"), ("cuda:0,cuda:1", "cuda:0,1")])
def test_devices_that_are_written_wrongly_are_told_how_to_write_them(on_gpu, typed, hint):
    result = on_gpu.cli("load", "tiny", "--devices", typed, check=False)
    refused(result, "--devices", hint)


def test_fields_are_told_as_the_flags_that_were_typed(on_gpu):
    on_gpu.cli("register", "named", TINY / "q8_0.gguf", "--version", "1")
    result = on_gpu.cli("load", "named", "--gpu-memory", "64M", check=False)
    assert result.returncode == 1 and names(result.stderr, "--gpu-memory") and "gpu_memory_bytes" not in result.stderr, result
    result = on_gpu.cli("load", "named", "--devices", "cuda:0", "--gpu-memory", "0.9", check=False)
    assert result.returncode == 2 and names(result.stderr, "--gpu-memory", '"0.9"'), result
    on_gpu.cli("rm", "named", "1")


def test_module_of_a_relative_path_is_found_by_workers(fresh, monkeypatch):
    """Workers run in another folder. The load failed because the worker could not open the module."""
    monkeypatch.chdir(SIMT.parent)
    fresh.start(env={**ENV, "SLUICE_CUDA_MODULE": f"./{SIMT.name}"})
    fresh.cli("register", "tiny", TINY / "bf16.gguf", "--version", "1")
    fresh.cli("load", "tiny", "--devices", "cuda:0", "--gpu-memory", "64M", "--max-concurrent", "8")
    assert [r["device_group"] for r in fresh.ready()] == ["cuda-0"]


def test_failure_of_the_engine_that_is_no_device_s_blames_none(fresh, tmp_path):
    """A fault of layers on the CPU was reported as DEVICE_LOST of the GPU."""
    fault = tmp_path / "fault"
    fresh.start(env={**ENV, "SLUICE_DEVICE_FAULT": str(fault)})
    fresh.cli("register", "tiny", TINY / "q8_0.gguf", "--version", "1")
    fresh.cli("load", "tiny", "--devices", "cuda:0", "--gpu-layers", "1", "--gpu-memory", "64M", "--max-concurrent", "8")
    fresh.wait(lambda: fresh.run("tiny", "a", "-n", "1", check=False).returncode == 0, 30, "the model answers")
    (old,) = fresh.ready()
    fault.write_text("1")  # cudaErrorInvalidValue: a call with a wrong argument
    answer = fresh.generate(fresh.request("tiny", "a", max_tokens=8, ignore_eos=True))
    assert len(answer[1]) == 8 and answer[2].receipt.n_resumes == 1
    fresh.wait(lambda: [r["epoch"] for r in fresh.ready()] == [old["epoch"] + 1], 30, "it is started again")
    log = (fresh.state / f"run/replica-{old['id']}/log").read_text()
    assert logged(log, ENGINE_FAILED, reason="ENGINE_FAILED") and not logged(log, DEVICE_FAILED), log
    events = fresh.cli("events", "--json").stdout
    assert "ENGINE_FAILED" in events or "replica.died" in events, events
    assert "device.fault" not in events, events


def test_prompts_by_wgmma_are_the_same_in_any_chunks_and_refused_where_there_is_none(monkeypatch):
    for name, value in (ENV | {"SLUICE_CUDA_PROMPTS": "wgmma"}).items():
        monkeypatch.setenv(name, value)
    words = ("generate", TINY / "bf16.gguf", LONG, "--raw", "--ids", "--max-tokens", "8", "--temperature", "0", "--devices", "cuda:0",
             "--kv-tokens", "512")
    whole, cut = call("sluice-worker", *words), call("sluice-worker", *words, "--prefill-chunk-tokens", "5")
    assert whole.returncode == 0 and whole.stdout.split() and cut.stdout == whole.stdout, (whole, cut)
    monkeypatch.setenv("SIMT_COMPUTE", "89")
    refused(call("sluice-worker", *words), "SLUICE_CUDA_PROMPTS=wgmma", "9.0", "cuda:0", "8.9")
    monkeypatch.setenv("SLUICE_CUDA_PROMPTS", "wgmm")
    refused(call("sluice-worker", *words), '"wgmm"', "auto", "own", "wgmma", "cublaslt")


def test_attention_by_wgmma_is_the_same_in_any_chunks_and_refused_where_there_is_none(monkeypatch):
    for name, value in (ENV | {"SLUICE_CUDA_ATTENTION": "wgmma"}).items():
        monkeypatch.setenv(name, value)
    words = ("generate", TINY / "bf16.gguf", LONG, "--raw", "--ids", "--max-tokens", "8", "--temperature", "0", "--devices", "cuda:0",
             "--kv-tokens", "512")
    whole, cut = call("sluice-worker", *words), call("sluice-worker", *words, "--prefill-chunk-tokens", "5")
    assert whole.returncode == 0 and whole.stdout.split() and cut.stdout == whole.stdout, (whole, cut)
    monkeypatch.setenv("SIMT_COMPUTE", "89")
    refused(call("sluice-worker", *words), "SLUICE_CUDA_ATTENTION=wgmma", "9.0", "cuda:0", "8.9")
    monkeypatch.setenv("SLUICE_CUDA_ATTENTION", "wgmm")
    refused(call("sluice-worker", *words), '"wgmm"', "mma", "wgmma", "auto")
