"""Writes sampler.json: the tokens that each sampling parameter keeps, and their probabilities in f64, on fixed logits.

Draws are by Philox4x32-10. Where transformers has a processor for a stage, the mask is compared with the processor's.
`requests` are whole requests with their generated tokens (bad words, allowed ids, min_tokens, watermark ...).
`scores` are prompt rows with requested log-probabilities. Layout: README.md."""

import itertools
import json
import math
import pathlib

import numpy as np
import torch
from transformers import (
    MinNewTokensLengthLogitsProcessor, MinPLogitsWarper, NoBadWordsLogitsProcessor, RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, TypicalLogitsWarper,
)

HERE = pathlib.Path(__file__).parent
DEFAULTS = dict(
    temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0, repetition_penalty=1.0, presence_penalty=0.0,
    frequency_penalty=0.0, prompt_ids=[], generated_ids=[], logit_bias=[], allowed=None,
)
REQUEST_DEFAULTS = dict(
    DEFAULTS, prompt_ids=[1], bad_words=[], min_tokens=0, end_ids=[], stop_ids=[], ignore_eos=False, watermark=False,
)
WATERMARK_KEY, WATERMARK_TAG, WATERMARK_DELTA = 0x0EC6AA8D, 0x67726565, 2.0


def philox(counter, key):
    """Salmon et al., SC 2011: ten rounds on four 32-bit words."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
assert philox([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def green(n_vocab, previous):
    """The green list after `previous`: arXiv 2301.10226 with a list per previous token, gamma 1/2."""
    words = [philox([block, 0, 0, WATERMARK_TAG], [previous, WATERMARK_KEY]) for block in range((n_vocab + 3) // 4)]
    return (np.array(words, dtype=np.uint64).reshape(-1)[:n_vocab] < 2**31)


def banned(c):
    """Returns the ids that the stops and bad words of a request forbid as the next token."""
    out, tail = set(), c["generated_ids"]
    if len(tail) < c["min_tokens"]:
        out |= set(c["stop_ids"]) | (set() if c["ignore_eos"] else set(c["end_ids"]))
    for word in c["bad_words"]:
        if len(word) == 1 or tail[-(len(word) - 1):] == word[:-1]:
            out.add(word[-1])
    return sorted(out)


def check_banned(logits, c):
    """The same by transformers, whose context is the generated tokens alone."""
    tail = torch.tensor([c["generated_ids"]], dtype=torch.long)
    scores, theirs = torch.from_numpy(logits[None].astype(np.float32).copy()), set()
    if c["bad_words"]:
        after = NoBadWordsLogitsProcessor(c["bad_words"], eos_token_id=None)(tail, scores)
        theirs |= set(torch.isneginf(after[0]).nonzero().flatten().tolist())
    ends = c["stop_ids"] + ([] if c["ignore_eos"] else c["end_ids"])
    if c["min_tokens"] and ends:
        after = MinNewTokensLengthLogitsProcessor(0, c["min_tokens"], ends)(tail, scores)
        theirs |= set(torch.isneginf(after[0]).nonzero().flatten().tolist())
    assert theirs == set(banned(c)), c


def nucleus(order, p, mass):
    """Returns the shortest beginning of `order` whose p reach mass. Asserts that rounding cannot change the length."""
    total = np.cumsum(p[order])
    assert np.abs(total - mass).min() > 1e-5
    return order[: int((total < mass).sum()) + 1]


def chain(logits, c):
    x = logits.astype(np.float64).copy()
    listed = sorted(set(c["prompt_ids"]) | set(c["generated_ids"]))
    for i in listed:
        n = c["generated_ids"].count(i)
        x[i] = x[i] / c["repetition_penalty"] if x[i] > 0 else x[i] * c["repetition_penalty"]
        x[i] -= c["frequency_penalty"] * n + (c["presence_penalty"] if n else 0)
    for i, v in c["logit_bias"]:
        x[i] += v
    if "bad_words" in c:
        check_banned(logits, c)
        x[banned(c)] = -np.inf
    if c.get("watermark"):
        x[green(len(x), (c["prompt_ids"] + c["generated_ids"])[-1])] += WATERMARK_DELTA
    if c["allowed"] is not None:
        x[[i for i in range(len(x)) if i not in set(c["allowed"])]] = -np.inf
    if c["temperature"] == 0:
        return {"greedy": int(x.argmax())}
    y = x / c["temperature"]
    kept = np.flatnonzero(np.isfinite(y))
    prob = lambda: np.exp(y[kept] - y[kept].max()) / np.exp(y[kept] - y[kept].max()).sum()
    if c["top_k"]:
        kept = np.sort(kept[np.argsort(-y[kept], kind="stable")[: c["top_k"]]])
    if c["typical_p"] < 1:
        p = prob()
        far = np.abs(-np.log(p) + (p * np.log(p)).sum())
        kept = np.sort(kept[nucleus(np.argsort(far, kind="stable"), p, c["typical_p"])])
    if c["top_p"] < 1:
        p = prob()
        kept = np.sort(kept[nucleus(np.argsort(-p, kind="stable"), p, c["top_p"])])
    if c["min_p"] > 0:
        p = prob()
        assert np.abs(p / p.max() - c["min_p"]).min() > 1e-5
        kept = kept[p >= c["min_p"] * p.max()]
    check(logits, c, x, kept)
    return {"kept": kept.tolist(), "probs": [float(f"{v:.7g}") for v in prob()]}


def check(logits, c, x, kept):
    """The same stages by transformers."""
    ids = torch.tensor([sorted(set(c["prompt_ids"]) | set(c["generated_ids"]))], dtype=torch.long)
    alone = not (c["frequency_penalty"] or c["presence_penalty"] or c["logit_bias"] or c["allowed"] or "bad_words" in c)
    if c["repetition_penalty"] != 1 and alone:
        theirs = RepetitionPenaltyLogitsProcessor(c["repetition_penalty"])(ids, torch.from_numpy(logits[None].astype(np.float64)))
        assert np.allclose(theirs[0].numpy(), x, rtol=1e-6)
    scores = torch.from_numpy(x[None].copy())
    stages = [TemperatureLogitsWarper(c["temperature"])]
    stages += [TopKLogitsWarper(c["top_k"])] if c["top_k"] else []
    stages += [TypicalLogitsWarper(c["typical_p"])] if c["typical_p"] < 1 else []
    stages += [TopPLogitsWarper(c["top_p"])] if c["top_p"] < 1 else []
    stages += [MinPLogitsWarper(c["min_p"])] if c["min_p"] > 0 else []
    for stage in stages:
        scores = stage(ids, scores)
    assert torch.isfinite(scores[0]).nonzero().flatten().tolist() == kept.tolist(), c


def draws(result, n_vocab, rng):
    """Inverse CDF in ascending id; only draws that rounding cannot move are kept."""
    out = []
    edges = np.cumsum(result["probs"]) / np.sum(result["probs"])
    while len(out) < 6:
        seed, choice, position = int(rng.integers(0, 1 << 63)) * 2 + 1, int(rng.integers(0, 8)), int(rng.integers(0, 5000))
        u = (philox([position, choice, 0, 0], [seed & 0xFFFFFFFF, seed >> 32])[0] + 0.5) / 2**32
        if np.abs(edges[:-1] - u).min(initial=1) > 1e-5:
            out.append([str(seed), choice, position, result["kept"][int((edges <= u).sum())]])
    return out


def shortened(result, n_vocab):
    """Probabilities to 5e-8, but at least a digit: tests compare within 2e-6. `kept` is left out where all ids are kept."""
    result = {k: v for k, v in result.items() if k != "kept" or v != list(range(n_vocab))}
    short = lambda v: float(f"{v:.{max(1, min(7, 8 + math.floor(math.log10(v))))}g}") if v > 0 else v
    return result | ({"probs": [short(v) for v in result["probs"]]} if "probs" in result else {})


def main():
    rng = np.random.default_rng(11)
    rows = [(rng.standard_normal(n) * s).astype(np.float32) for n, s in ((40, 1.0), (97, 3.0), (150, 2.0), (300, 6.0))]
    cases = []

    def add(row, **given):
        c = dict(DEFAULTS, **given)
        result = chain(rows[row], c)
        if "kept" in result:
            result["draws"] = draws(result, len(rows[row]), rng)
        cases.append({"row": row, "params": given, **shortened(result, len(rows[row]))})

    used = dict(prompt_ids=[1, 2, 3, 3, 17], generated_ids=[5, 5, 5, 2, 30, 31, 30])
    for row in range(len(rows)):
        add(row)
        for t in (0.0, 0.3, 0.7, 1.7):
            add(row, temperature=t)
        for k in (1, 2, 17, len(rows[row]), len(rows[row]) + 5):
            add(row, top_k=k)
        for p in (0.05, 0.5, 0.9, 0.99):
            add(row, top_p=p)
        for p in (0.01, 0.1, 0.5):
            add(row, min_p=p)
        for p in (0.2, 0.6, 0.95):
            add(row, typical_p=p)
    for row in (0, 2):
        for r, f, p in itertools.product((1.0, 1.3, 0.8), (0.0, 0.6, -0.4), (0.0, 1.1, -0.7)):
            add(row, repetition_penalty=r, frequency_penalty=f, presence_penalty=p, **used)
        add(row, repetition_penalty=1.2, temperature=0.0, **used)
        add(row, logit_bias=[[0, 5.0], [7, -100.0], [9, 1.5], [0, -2.0]])
        add(row, logit_bias=[[4, 100.0]], temperature=0.0)
        add(row, allowed=[3, 8, 21, 22])
        add(row, allowed=[3], top_p=0.5)
        add(row, allowed=list(range(0, len(rows[row]), 3)), logit_bias=[[6, 3.0]], top_k=5, temperature=0.6)
    for row in (1, 2, 3):
        add(row, temperature=0.7, top_k=40, top_p=0.95)
        add(row, temperature=1.5, top_k=50, min_p=0.05)
        add(row, temperature=0.9, top_k=30, typical_p=0.8, top_p=0.7, min_p=0.02)
        add(row, temperature=1.2, top_p=0.8, min_p=0.1, repetition_penalty=1.15, frequency_penalty=0.3, presence_penalty=0.2,
            logit_bias=[[12, 2.0]], **used)
    requests = []

    def ask(row, **given):
        c = dict(REQUEST_DEFAULTS, **given)
        result = chain(rows[row], c)
        if "kept" in result:
            result["draws"] = draws(result, len(rows[row]), rng)
        requests.append({"row": row, "params": given, **shortened(result, len(rows[row]))})

    best = [np.argsort(-r)[:12].tolist() for r in rows]
    for row in range(len(rows)):
        b = best[row]
        words = [[b[0]], [b[5], b[1]], [b[6], b[5], b[2]], [b[7], b[7], b[7], b[3]]]
        for tail in ([], [b[5]], [b[6]], [b[6], b[5]], [b[5], b[6], b[5]], [b[7]] * 2, [b[7]] * 3, [b[7]] * 5, [b[5], b[7]]):
            ask(row, bad_words=words, generated_ids=tail)
            ask(row, bad_words=words, generated_ids=tail, temperature=0.0)
        ask(row, bad_words=words, prompt_ids=[b[6], b[5]])  # the prompt's tail does not count
        ask(row, bad_words=words, generated_ids=[b[6], b[5]], min_tokens=3, end_ids=[b[4]], logit_bias=[[b[4], 3.0]])
        for n in (0, 1, 2, 3, 4):
            ask(row, min_tokens=3, end_ids=b[:2], stop_ids=[b[3]], generated_ids=[b[9]] * n, top_k=20)
        ask(row, min_tokens=3, end_ids=b[:2], stop_ids=[b[3]], ignore_eos=True)
        ask(row, min_tokens=3, end_ids=b[:2], ignore_eos=True, temperature=0.0)
        for previous in (0, 3, 17, len(rows[row]) - 1):
            ask(row, watermark=True, generated_ids=[previous])
            ask(row, watermark=True, prompt_ids=[2, previous])
            ask(row, watermark=True, generated_ids=[5, previous], temperature=0.0)
        ask(row, watermark=True, generated_ids=[b[1]], temperature=0.8, top_p=0.9, repetition_penalty=1.3)
        ask(row, watermark=True, allowed=b[:6], bad_words=words, generated_ids=[b[5]])
        ask(row, allowed=b[2:9], typical_p=0.7, logit_bias=[[b[3], -2.0]])
        ask(row, allowed=[b[0], b[3], b[3]], bad_words=[[b[0]]])
    scores = []
    for row, logits in enumerate(rows):
        x = logits.astype(np.float64)
        logp = x - x.max() - np.log(np.exp(x - x.max()).sum())
        for n_top in (0, 1, 5, 20):
            for token in (0, len(x) - 1, int(x.argmax()), int(x.argmin())):
                top = np.argsort(-x, kind="stable")[:n_top]
                scores.append({"row": row, "id": token, "logprob": float(f"{logp[token]:.8g}"), "top": top.tolist(),
                               "top_logprobs": [float(f"{v:.8g}") for v in logp[top]]})
    kat = [{"counter": c, "key": k, "out": philox(c, k)} for c, k in (
        ([0] * 4, [0] * 2), ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2),
        ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0]), ([5, 1, 0, 0], [123, 456]))]
    doc = {"defaults": DEFAULTS, "philox": kat, "rows": [[float(f"{v:.9g}") for v in r] for r in rows], "cases": cases,
           "request_defaults": REQUEST_DEFAULTS, "requests": requests, "scores": scores}
    (HERE / "sampler.json").write_text(json.dumps(doc, separators=(",", ":")).replace('{"row"', '\n{"row"') + "\n")
    print(f"sampler: {len(cases)} cases, {len(requests)} requests, {len(scores)} scores")


if __name__ == "__main__":
    main()
