"""An int8 KV cache through all programs. The receipt names the cache type. A request gets the same answer with its
own blocks, with shared blocks and with copied blocks. The answer is the same next to other requests, and after its
worker was killed."""
import os
import signal
import threading

from conftest import model_path, patience
from invariants import worker_processes

STORY = "Write a long story about a lighthouse keeper who counts ships. One evening in autumn the keeper saw a light: " * 5


def test_an_int8_cache_answers_alike_however_its_blocks_came(fresh):
    fresh.start(env={"SLUICE_RESTART_BACKOFF_INITIAL": "100ms"})
    fresh.cli("register", "smol", model_path(), "--version", "1")
    fresh.cli("load", "smol", "--kv-dtype", "int8")
    fresh.wait(lambda: fresh.run("smol", "hi", "-n", "1", check=False).returncode == 0, 30, "the model answers")
    request = fresh.request("smol", STORY, max_tokens=96, ignore_eos=True)
    _, ids, first = fresh.generate(request)
    assert len(ids) == 96 and "/kv-I8/" in first.receipt.numerics_id and first.usage.n_cached_tokens == 0

    _, again, hit = fresh.generate(request)
    assert again == ids and hit.usage.n_cached_tokens > 0

    copied = {}
    for response in fresh.inference.Generate(fresh.request("smol", STORY, max_tokens=96, ignore_eos=True, n=3), timeout=patience(60)):
        if response.WhichOneof("event") == "tokens":
            copied.setdefault(response.tokens.choice, []).extend(response.tokens.ids)
    assert copied == {0: ids, 1: ids, 2: ids}

    others = [fresh.request("smol", f"Tell me about {w}. ", max_tokens=40 + 9 * i, temperature=0.8, seed=i) for i, w in enumerate("cats snow".split())]
    threads = [threading.Thread(target=fresh.generate, args=(r,)) for r in others]
    [t.start() for t in threads]
    assert fresh.generate(request)[1] == ids
    [t.join() for t in threads]

    outlived, killed = [], False
    for response in fresh.inference.Generate(request, timeout=patience(90)):
        kind = response.WhichOneof("event")
        if kind == "tokens":
            outlived += response.tokens.ids
            if len(outlived) >= 8 and not killed:
                os.kill(worker_processes(fresh)[0][2], signal.SIGKILL)
                killed = True
        elif kind == "finished":
            assert response.finished.receipt.n_resumes == 1
    assert outlived == ids


def test_the_plan_counts_codes_and_scales(fresh):
    fresh.start()
    fresh.cli("register", "smol", model_path(), "--version", "1")
    m = fresh.stubs.manager
    for dtype, vector in (("bf16", 2 * 64), ("int8", 64 + 4)):
        config = fresh.stubs.types.ModelConfig(kv_dtype=dtype, kv_tokens=4096)
        request = m.LoadModelVersionRequest(model="smol", validate_only=True, config=config)
        plan = fresh.manager_stub().LoadModelVersion(request, timeout=patience(30)).plan
        assert (plan.n_kv_tokens, plan.devices[0].kv_bytes) == (4096, 4096 * 30 * 2 * 3 * vector), plan
