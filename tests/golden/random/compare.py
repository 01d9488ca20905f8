"""Compares models that nobody chose with transformers: random small configurations of each family, with options of its config
class changed. The folders have F32, BF16 or F16, one file or shards, the spelling of transformers 4 or 5.

    compare.py PROGRAM [--seed N] [--each N] [--all] [--keep FOLDER] [FAMILY ...]

PROGRAM is model_logits. Each family gets its random base and --each random changes (3), or with --all every change. The base
and some changes are compared as a GGUF, too. The base and a wide model run with 2 and 4 ranks, whose bits must be equal.

A model passes if all logits are within 2e-5 of eager attention in f32. A refused model passes if cases.py allows a refusal. A
refusal must name the changed key. Where f32 of transformers is far from f64, too, the bound is 12 times that
distance. In transformers f64 has rope frequencies that were rounded to f32; those of Sluice are nearer to the truth."""

import argparse
import copy
import dataclasses
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import traceback
import zlib

import numpy as np
import torch
import transformers

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import make_families  # noqa: E402
from cases import CASES  # noqa: E402
from common import Change, widen  # noqa: E402
from families import FAMILIES, Family  # noqa: E402

BOUND, REFUSED = 2e-5, 3
WIDE = "for ranks"  # a wide model, which four ranks can divide
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def build(case, config, rng, dtype):
    cls = getattr(transformers, case.model)
    c = cls.config_class(**copy.deepcopy(config))
    # eager attention of Falcon adds ALiBi's biases twice
    c._attn_implementation = "sdpa" if config.get("alibi") else "eager"
    c._experts_implementation = "eager"
    torch.manual_seed(0)
    model = cls(c).float().eval()
    make_families.random_weights(model, Family(case.model, config, plus_one=case.plus_one, peak=1.3, edit=case.edit), rng)
    for p in model.parameters():
        x = p.data * 1.0001 if dtype == "f32" else p.data
        p.data = x.to(TYPES[dtype]).to(torch.float32)
    model.tie_weights()
    return model


def save(model, folder, dtype, shards, old, keeps_kinds):
    limit = {"max_shard_size": "30KB"} if shards else {}
    copy.deepcopy(model).to(TYPES[dtype]).save_pretrained(folder, **limit)
    file = folder / "config.json"
    doc = json.loads(file.read_text())
    if old:
        new = old_spelling(doc)
        if keeps_kinds and "layer_types" in doc:
            new["layer_types"] = doc["layer_types"]
        file.write_text(json.dumps(new, indent=2))


def old_spelling(doc):
    """config.json as transformers 4 wrote it."""
    if "text_config" in doc:
        doc["text_config"] = old_spelling(doc["text_config"])
        return doc
    rope = doc.get("rope_parameters")
    if "dtype" in doc:
        doc["torch_dtype"] = doc.pop("dtype")
    if not rope:
        return doc
    if "full_attention" not in rope:
        return make_families.old_spelling(doc | dict(dtype=doc.pop("torch_dtype", "float32")))
    del doc["rope_parameters"]
    full, local = dict(rope["full_attention"]), rope["sliding_attention"]
    doc["rope_theta"] = full.pop("rope_theta")
    doc["rope_scaling"] = None if full["rope_type"] == "default" else full
    if doc["model_type"].startswith("gemma3"):
        doc["rope_local_base_freq"] = local["rope_theta"]
    return doc


def had_old_spelling(config):
    """Version 4 had no scaling of the windows' rope, and one base for both kinds of OLMo 3."""
    rope = config.get("text_config", config).get("rope_parameters") or {}
    if "full_attention" not in rope:
        return True
    local = rope["sliding_attention"]
    return local["rope_type"] == "default" and "query_pre_attn_scalar" in config.get("text_config", config)


# --- the comparison ---


def logits(model, ids, dtype=torch.float32):
    with torch.no_grad():
        out = copy.deepcopy(model).to(dtype) if dtype != torch.float32 else model
        return out(torch.from_numpy(ids.astype(np.int64))[None], use_cache=False).logits[0].double().numpy()


def relative(a, b):
    return float((np.abs(a - b).max(1) / np.abs(b).max(1)).max())


def run(program, path, ids, vocab, *options):
    """Logits, or the text of the refusal."""
    r = subprocess.run([program, *options, str(path)], input=ids.astype("<u4").tobytes(), capture_output=True)
    if r.returncode == REFUSED:
        return r.stderr.decode().strip()
    if r.returncode:
        raise RuntimeError(f"the program ended with {r.returncode}: {r.stderr.decode()[-300:]}")
    return np.frombuffer(r.stdout, "<f4").reshape(len(ids), -1)


class Report:
    def __init__(self):
        self.n = self.refused = 0
        self.worst = 0.0
        self.failures = []

    def add(self, what, ok, text):
        self.n += 1
        print(f"{'ok  ' if ok else 'FAIL'} {what}: {text}", flush=True)
        if not ok:
            self.failures.append(what)


def judge(report, what, got, model, ids, change):
    if isinstance(got, str):
        report.refused += 1
        named = f'key "' in got or 'tensor "' in got
        ok = named and any(key in got for key in change.refused.split("|") if key)
        report.add(what, ok, f"refused: {got}")
        return
    expected = logits(model, ids)[:, : got.shape[1]]
    error = relative(got, expected)
    text, ok = f"{error:.1e}", error <= BOUND
    if not ok and error < 1e-3:
        true = logits(model, ids, torch.float64)[:, : got.shape[1]]
        own, theirs = relative(got, true), relative(expected, true)
        ok = own <= max(BOUND, 12 * theirs)
        text += f", of f64 {own:.1e} (transformers {theirs:.1e})"
    if change.refused:
        text += f", although {change.refused} may be refused"
    report.worst = max(report.worst, error if ok else 0)
    report.add(what, ok, text)


def same_over_ranks(report, what, program, folder, ids, got, must):
    for ranks in ("2", "4"):
        other = run(program, folder, ids, 0, "-t", ranks, "-c", "7")
        if isinstance(other, str):
            report.add(f"{what}, {ranks} ranks", not must and f"tp {ranks}" in other, f"refused: {other}")
        else:
            report.add(f"{what}, {ranks} ranks, steps of 7", np.array_equal(other, got), "the same bits")


def compare(report, program, name, label, change, seed, root):
    case = CASES[name]
    rng = np.random.default_rng([seed, zlib.crc32(f"{name} {label}".encode())])
    config = case.sizes(rng)
    if label == WIDE:
        widen(config)
        config |= case.wide
    settings = change.settings(rng, config) if callable(change.settings) else change.settings
    config |= settings
    dtype, shards, old = ("f32", "bf16", "f16")[rng.integers(3)], bool(rng.integers(2)), bool(rng.integers(2))
    golden = FAMILIES.get(case.golden)
    gguf = golden is not None and (not label or label in case.gguf)
    if gguf:  # its tokens are those of make_families.py
        dtype = "bf16"
        text = config.get("text_config", config)
        text |= {key: make_families.VOCAB for key in ("vocab_size", "vocab_size_per_layer_input") if key in text}
    old = old and had_old_spelling(config)
    what = f"{name} {label or 'base'} ({dtype}{', shards' if shards else ''}{', version 4' if old else ''})"
    folder = root / f"{name} {label}".strip().replace(" ", "_")
    try:
        model = build(case, config, rng, dtype)
        ids = rng.integers(0, 283, case.longest).astype(np.uint32)
        logits(model, ids)
    except Exception as e:  # the change makes no model in transformers, either
        print(f"skip {what}: transformers: {type(e).__name__}: {str(e).splitlines()[-1][:150]}", flush=True)
        return
    save(model, folder, dtype, shards, old, "layer_types" in config)
    got = run(program, folder, ids, 0)
    judge(report, what, got, model, ids, change)
    if label in ("", WIDE) and not isinstance(got, str):
        same_over_ranks(report, what, program, folder, ids, got, label == WIDE)
    if gguf:
        make_families.OUT = root
        t, tokens, merges = make_families.tokenizer()
        make_families.write_gguf(folder.name, golden, model, tokens, merges)
        judge(report, f"{what}, GGUF", run(program, root / f"{folder.name}.gguf", ids, 0), model, ids, change)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("families", nargs="*")
    parser.add_argument("--seed", type=int, default=int.from_bytes(np.random.bytes(3), "little"))
    parser.add_argument("--each", type=int, default=3)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--change", help="only this change")
    parser.add_argument("--keep", type=pathlib.Path, help="keeps the models in this folder")
    args = parser.parse_intermixed_args()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    print(f"seed {args.seed}", flush=True)
    report, rng = Report(), np.random.default_rng(args.seed)
    root = args.keep or pathlib.Path(tempfile.mkdtemp(prefix="sluice-models-"))
    root.mkdir(parents=True, exist_ok=True)
    for name in args.families or CASES:
        labels = list(CASES[name].changes)
        if args.change is not None:
            labels = [label for label in [*labels, WIDE] if label == args.change]
        elif not args.all:
            labels = [labels[i] for i in sorted(rng.choice(len(labels), min(args.each, len(labels)), replace=False))]
        for label in ([] if args.change else ["", WIDE]) + labels:
            change = CASES[name].changes.get(label, Change({}))
            try:
                compare(report, args.program, name, label, change, args.seed, root)
            except Exception:
                report.add(f"{name} {label}", False, traceback.format_exc(limit=-3))
    if not args.keep:
        shutil.rmtree(root)
    print(f"seed {args.seed}: {report.n} comparisons, {report.refused} refusals, worst error {report.worst:.1e}, {len(report.failures)} failures")
    for what in report.failures:
        print(f"  {what}")
    return len(report.failures) > 0


if __name__ == "__main__":
    sys.exit(main())
