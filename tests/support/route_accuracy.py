"""Measures how often the contract's kernels choose other experts than f32, and what that does to the logits. The weights are
those of make_experts.py with seeds 0, 1, 2, …, none chosen. The first figure is the error of f32 against transformers, with
bf16 weights. The others compare the kernels with f32 on the same file, with bf16 and with Q8_0 weights (int8 activations).

    route_accuracy.py ROUTES [N_SEEDS [NAME ...]]

ROUTES is the program build/dev/bin/routes."""

import dataclasses
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
sys.path.insert(0, str(GOLDEN))
import make_experts  # noqa: E402

NAMES = ["qwen3moe", "mixtral", "gpt_oss", "qwen2moe", "granitemoe_shared", "glm4moe", "ernie4_5_moe", "minimax_m2"]
WIDTHS = ("intermediate_size", "moe_intermediate_size", "shared_intermediate_size", "shared_expert_intermediate_size")
KINDS = ["BF16", "Q8_0"]


def family_of(name):
    """The family with FFNs of 64, so that Q8_0 fits every matrix."""
    family = make_experts.FAMILIES[name]
    return dataclasses.replace(family, config=family.config | {k: 64 for k in WIDTHS if k in family.config})


def write(name, family, seed):
    torch.manual_seed(0)
    c = family.make.config_class(**family.config)
    c._attn_implementation = "eager"
    model = family.make(c).float().eval()
    rng = np.random.default_rng([*name.encode(), 1000, seed])
    make_experts.randomize(model, family, rng)
    family.weights(model, rng)
    make_experts.FAMILIES[name] = family
    files = []
    for kind in KINDS:
        make_experts.MATRICES = make_experts.Q[kind]
        files.append(f"{name}_{kind}_{seed}.gguf")
        make_experts.write_gguf(files[-1][:-5], family, model)
        make_experts.write_logits(files[-1], model)
    return files


def measure(routes, folder, name, seeds):
    family = family_of(name)
    found = {kind: [] for kind in KINDS}
    for seed in range(seeds):
        files = write(name, family, seed)
        lines = subprocess.run([routes, "auto", folder, *files], check=True, capture_output=True, text=True).stdout.splitlines()
        for kind, line in zip(KINDS, lines):
            found[kind].append([float(x) for x in line.split()[1:]])
    print(f"{name:18} f32 {np.array(found['BF16'])[:, 2].max():.1e}", end="")
    for kind, rows in found.items():
        x = np.array(rows)
        print(f" | {kind} {100 * x[:, 1].sum() / x[:, 0].sum():5.2f} % of {x[:, 0].sum():.0f}: {np.median(x[:, 3]):.1e} "
              f"{np.quantile(x[:, 3], 0.9):.1e} {x[:, 3].max():.1e}, kept {x[:, 4].max():.1e}", end="")  # fmt: skip
    print(flush=True)


def main():
    routes, seeds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10
    transformers.logging.set_verbosity_error()
    print("per family: error of f32 | other choices of all: error by model, median, 90 %, largest; largest where no choice differs")
    for name in sys.argv[3:] or NAMES:
        with tempfile.TemporaryDirectory() as folder:
            make_experts.HERE = pathlib.Path(folder) / "tests/golden"
            (make_experts.HERE / "tiny").mkdir(parents=True)
            measure(routes, folder, name, seeds)


if __name__ == "__main__":
    main()
