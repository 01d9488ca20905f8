"""A model with latent attention and one with Mamba-2, attention and experts through all programs, from GGUF files of
tests/golden/tiny. Greedy answers are those of transformers (tests/golden/greedy.bin). Choices and prefix hits change
no token."""
import struct

import pytest

from conftest import ROOT, Sluice, patience

TINY, GREEDY = ROOT / "tests/golden/tiny", ROOT / "tests/golden/greedy.bin"
# Tokens that a hit finds. Recurrent layers have a snapshot behind each block.
MODELS = {"deepseek_v2_lite": [], "granitehybrid_moe": ["--snapshot-blocks", "1"]}
BLOCK = 32


@pytest.fixture(scope="module")
def sluice(tmp_path_factory, stubs):
    instance = Sluice(tmp_path_factory.mktemp("state"), stubs)
    instance.start()
    try:
        for name, flags in MODELS.items():
            instance.cli("register", name, TINY / f"{name}.gguf", "--version", "1")
            instance.cli("load", name, "--threads", "1", "--kv-tokens", "2048", "--kernels", "f32", "--kv-dtype", "f32", *flags)
        instance.wait(lambda: len(instance.ready()) == len(MODELS), 60, "both replicas are ready")
        yield instance
    finally:
        instance.stop()


def golden(name):
    """(prompt, answer) of the model in greedy.bin."""
    data, at = GREEDY.read_bytes(), 8
    for _ in range(struct.unpack_from("<I", data, 4)[0]):
        n_name, n_prompt, n_steps = struct.unpack_from("<III", data, at)
        begin = at + 12 + n_name
        if data[at + 12 : begin].decode() == name:
            ids = list(struct.unpack_from(f"<{n_prompt + n_steps}I", data, begin))
            return ids[:n_prompt], ids[n_prompt:]
        at = begin + 4 * (n_prompt + n_steps)
    raise AssertionError(f"greedy.bin has no {name}")


def complete(sluice, name, ids, n_tokens, salt, **kwargs):
    """(ids of each choice, tokens of the prompt that the cache had)"""
    inference = sluice.stubs.inference
    request = sluice.request(name, "", max_tokens=n_tokens, ignore_eos=True, cache_salt=salt, **kwargs)
    request.token_ids.CopyFrom(inference.TokenIds(ids=ids))
    answer = sluice.inference.Complete(request, timeout=patience(60))
    return [list(c.ids) for c in answer.choices], answer.usage.n_cached_tokens


@pytest.mark.parametrize("name", MODELS)
def test_answers_are_those_of_transformers_alone_in_company_and_from_the_cache(sluice, name):
    prompt, answer = golden(name)
    assert complete(sluice, name, prompt, len(answer), "alone") == ([answer], 0)
    assert complete(sluice, name, prompt, len(answer), "two", n=2) == ([answer, answer], 0)
    # The prompt and a part of the answer give the rest. The second request finds the first block of both.
    n = BLOCK + 1 - len(prompt)
    longer = prompt + answer[:n]
    assert complete(sluice, name, longer, len(answer) - n, "again") == ([answer[n:]], 0)
    assert complete(sluice, name, longer, len(answer) - n, "again") == ([answer[n:]], BLOCK)
    drawn = {"temperature": 1.0, "seed": 3, "n": 2}
    alone, _ = complete(sluice, name, longer, 24, "drawn", **drawn)
    assert alone[0] != alone[1] and complete(sluice, name, longer, 24, "again", **drawn) == (alone, BLOCK)
